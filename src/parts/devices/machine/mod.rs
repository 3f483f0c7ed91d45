//! Devices of the machine: their nodes, a sign when these may have changed, and the protocol of device plugins. Nodes
//! of devices that come and go are put where running containers see them. Files in which vendors describe devices are
//! read (CDI). No decision is made here.

pub(crate) mod cdi;
mod live;
pub(crate) mod plugin;
pub(crate) mod pod_resources;
pub(crate) mod registry;
mod scan;
mod socket;
mod uevent;

use std::path::{Path, PathBuf};

use crate::api::device::{DeviceFilter, MachineDevices};

pub(crate) use live::{LiveNodes, give_nodes, keep_rules, open_nodes};
pub(crate) use socket::{DeviceSocketListener, ListenerTrouble};
pub(crate) use uevent::UeventDoorbell;

/// A machine whose devices can be looked at. Every call blocks for some milliseconds.
pub(crate) trait DeviceMachine: core::fmt::Debug + Send + Sync {
    /// Looks for the wanted devices. A device that cannot be read counts as absent.
    fn find_devices(&self, wanted: &dyn DeviceFilter) -> MachineDevices;
}

/// The local machine: its device nodes, its sysfs, and its CDI files.
#[derive(Clone, Debug)]
pub(crate) struct LocalMachine {
    root: PathBuf,
    cdi: Vec<PathBuf>,
}

impl LocalMachine {
    /// `root`: below which `dev` and `sys` are; `/` as a rule. `cdi`: directories of CDI files.
    #[must_use]
    pub(crate) fn below(root: &Path, cdi: &[PathBuf]) -> Self {
        Self {
            root: root.to_path_buf(),
            cdi: cdi.to_vec(),
        }
    }
}

impl DeviceMachine for LocalMachine {
    fn find_devices(&self, wanted: &dyn DeviceFilter) -> MachineDevices {
        let mut seen = scan::scan_devices(&self.root, wanted);
        if wanted.wants_any_cdi() {
            cdi::find_wanted_devices(&self.cdi, wanted, &mut seen);
        }
        seen
    }
}
