//! Devices of containers of the direct backend that are more than nodes: those that vendors describe (CDI), and those
//! that come and go (DEV-44). This agent opens the devices that a container may use, exactly those that it has.

use std::{
    io,
    path::{Path, PathBuf},
};

use super::{
    config::DeviceConfig,
    machine::{self, cdi},
};
use crate::{
    api::{PodError, oci::Spec},
    cgroup::Cgroups,
    logic::devices::{cdi as rules, compute_live_rules},
    runtime::runc::{DeviceInjector, LiveContainer, SpecEdit},
};

/// Settings for devices that vendors describe.
#[derive(Clone, Debug)]
pub(crate) struct VendorDevices {
    /// Directories of files, absolute; the later ones count.
    dirs: Vec<PathBuf>,
    /// Hooks may run, as root on the machine.
    hooks: bool,
}

impl From<&DeviceConfig> for VendorDevices {
    fn from(cfg: &DeviceConfig) -> Self {
        Self {
            dirs: cfg.cdi.clone(),
            hooks: cfg.cdi_hooks,
        }
    }
}

impl DeviceInjector for VendorDevices {
    /// The files are read each time and not kept, and so are the nodes: they may be others at the next time.
    fn find_edits(&self, names: &[String]) -> Result<SpecEdit, PodError> {
        let (files, wrong) = cdi::read_named_files(&self.dirs, rules::read_named_devices, names);
        for wrong in &wrong {
            log::warn!("CDI file {wrong}");
        }
        let mut edits = rules::resolve_edits(files, names, &wrong, self.hooks)?;
        cdi::fill_in_node_numbers(&mut edits);
        Ok(Box::new(move |spec| rules::apply_edits(spec, edits)))
    }

    fn give_live(&self, container: &LiveContainer, spec: &mut Spec) -> io::Result<()> {
        let LiveContainer {
            devices,
            cgroup,
            is_v2,
            user,
            is_limited,
        } = container;
        for live in devices {
            machine::give_nodes(Path::new(&live.host_path), *user, live.gid)?;
        }
        match devices.first() {
            Some(live) if *is_limited => {
                let rules = compute_live_rules(devices, cgroup, *is_v2, spec);
                machine::keep_rules(Path::new(&live.host_path), &rules)
            }
            _ => Ok(()),
        }
    }

    fn open_live(&self, at: &Path, cgroups: &Cgroups) -> io::Result<()> {
        machine::open_nodes(at, cgroups)
    }
}
