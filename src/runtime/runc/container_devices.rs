//! Devices of containers that are more than nodes: the seam to whoever knows them.

use alloc::sync::Arc;
use core::fmt::Debug;
use std::{io, path::Path};

use super::{Runc, failed_error};
use crate::{
    api::{PodError, cri::LiveDevices, oci::Spec},
    cgroup::Cgroups,
    runtime::RuntimeError,
};

/// Changes of a container's configuration, found before it is made. They fail if a node is not what it is to be.
pub type SpecEdit = Box<dyn FnOnce(&mut Spec) -> Result<(), PodError> + Send>;

/// A container with devices that come and go, before its configuration is written.
#[derive(Clone, Debug)]
pub struct LiveContainer {
    /// Directories of its devices.
    pub devices: Vec<LiveDevices>,
    /// Control group, absolute within the hierarchy.
    pub cgroup: String,
    /// Control groups are of version 2.
    pub is_v2: bool,
    /// User and group of its process.
    pub user: (u32, u32),
    /// Set if rules limit its devices: a privileged container may use all of them.
    pub is_limited: bool,
}

/// Devices that vendors describe, and devices that come and go while a container runs. Every call blocks.
pub trait DeviceInjector: Debug + Send + Sync {
    /// Finds the changes for devices of these names.
    ///
    /// # Errors
    /// A device is not known, or its description is wrong.
    fn find_edits(&self, names: &[String]) -> Result<SpecEdit, PodError>;

    /// Gives the nodes that are there to the container's user, and adds rules for them.
    ///
    /// # Errors
    /// As of the calls.
    fn give_live(&self, container: &LiveContainer, spec: &mut Spec) -> io::Result<()>;

    /// Opens the nodes that are there to a limited container that is about to start. `at`: the first of its directories.
    ///
    /// # Errors
    /// It cannot be done: nothing of the container must run.
    fn open_live(&self, at: &Path, cgroups: &Cgroups) -> io::Result<()>;
}

impl Runc {
    /// The giver of devices; an error if there is none.
    pub(super) fn device_injector(&self) -> Result<Arc<dyn DeviceInjector>, RuntimeError> {
        let devices = self.settings.devices.clone();
        devices.ok_or_else(|| RuntimeError::Failed("no devices are given to containers".into()))
    }

    /// Finds the changes for devices of these names; `None`: there are no names.
    pub(super) async fn find_device_edits(
        &self,
        names: &[String],
    ) -> Result<Option<SpecEdit>, RuntimeError> {
        if names.is_empty() {
            return Ok(None);
        }
        let (devices, names) = (self.device_injector()?, names.to_vec());
        let edits = self.disk.run_job(move || devices.find_edits(&names));
        edits.await.map(Some).map_err(failed_error)
    }
}
