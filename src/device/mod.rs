//! Devices of the machine: what nodes there are, and when that may have changed; and how device plugins are spoken with. What
//! is made of it is not decided here. Nodes of devices that come and go are put where running containers see them. Files in
//! which vendors describe devices are read (CDI).

pub mod cdi;
mod live;
pub mod plugin;
pub mod pod_resources;
pub mod registry;
mod scan;
mod socket;
mod uevent;

use std::path::{Path, PathBuf};

use crate::api::device::{Seen, Wanted};

pub use live::{Kept, LiveError, LiveNodes, give_nodes, keep_rules, open_nodes};
pub use socket::{Listener, Trouble};
pub use uevent::Doorbell;

/// Where devices can be looked at. Every call blocks for some milliseconds.
pub trait Machine: Send + Sync {
    /// What is there of what is wanted. What cannot be read counts as absent.
    fn look(&self, wanted: &dyn Wanted) -> Seen;
}

/// This machine: its device nodes, its sysfs, and its CDI files.
#[derive(Clone, Debug)]
pub struct Host {
    root: PathBuf,
    cdi: Vec<PathBuf>,
}

impl Host {
    /// `root`: below which `dev` and `sys` are; `/` as a rule. `cdi`: directories of CDI files.
    #[must_use]
    pub fn below(root: &Path, cdi: &[PathBuf]) -> Self {
        Self {
            root: root.to_path_buf(),
            cdi: cdi.to_vec(),
        }
    }
}

impl Machine for Host {
    fn look(&self, wanted: &dyn Wanted) -> Seen {
        let mut seen = scan::look(&self.root, wanted);
        if wanted.any_cdi() {
            cdi::look(&self.cdi, wanted, &mut seen);
        }
        seen
    }
}
