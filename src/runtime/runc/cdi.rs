//! Devices that a container gets as their vendors describe them (CDI).

use std::path::PathBuf;

use super::{Runc, failed_error};
use crate::{
    api::{
        PodError,
        cdi::{Edits, Rules},
    },
    device::cdi,
    runtime::RuntimeError,
};

/// Configuration of CDI.
#[derive(Clone, Debug)]
pub struct Cdi {
    /// Directories of files, absolute; the later ones count. None: no container is to get such devices.
    pub dirs: Vec<PathBuf>,
    /// Hooks may run, as root on the machine.
    pub hooks: bool,
    /// `logic::cdi::RULES`.
    pub rules: Rules,
}

impl Runc {
    /// Computes the edits for devices of these names. The files are read each time and not kept, and so are the nodes:
    /// they may be others at the next time.
    pub(super) async fn cdi_edits(&self, names: &[String]) -> Result<Vec<Edits>, RuntimeError> {
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let (cdi, names) = (self.settings.cdi.clone(), names.to_vec());
        let read = move || -> Result<Vec<Edits>, PodError> {
            let (files, wrong) = cdi::named(&cdi.dirs, cdi.rules.read, &names);
            for wrong in &wrong {
                log::warn!("CDI file {wrong}");
            }
            let mut edits = (cdi.rules.resolve)(files, &names, &wrong, cdi.hooks)?;
            cdi::look_at(&mut edits);
            Ok(edits)
        };
        self.disk.run(read).await.map_err(failed_error)
    }
}
