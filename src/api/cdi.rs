//! Devices as their vendors describe them in files (Container Device Interface): data that crosses from whoever reads to
//! whoever decides.
//!
//! Source: cncf-tags/container-device-interface `SPEC.md` (1.1.0).

use alloc::{boxed::Box, string::String, vec::Vec};

use serde_json::Value;

use crate::{
    oci::{Hook, Mount, OciDevice},
    strict::WrongValue,
};

/// The wanted part of a CDI file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CdiFile {
    /// Path of the file.
    pub path: String,
    /// The number of its directory: of two files that have a device, that of the later one counts.
    pub dir: usize,
    /// Edits for each of its devices.
    pub common: CdiEdits,
    /// Qualified names (`vendor/class=name`) of devices that are wanted, and what is done for each. In the file's order.
    pub devices: Vec<(String, CdiEdits)>,
}

/// Edits of a container's configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CdiEdits {
    /// The file that says so.
    pub file: String,
    /// `NAME=value`.
    pub env: Vec<String>,
    /// Device nodes.
    pub nodes: Vec<DeviceNode>,
    /// Mounts.
    pub mounts: Vec<Mount>,
    /// Programs that the OCI runtime calls as root on the machine, and when.
    pub hooks: Vec<(Box<str>, Hook)>,
    /// Groups that the process gets beside its own.
    pub gids: Vec<u32>,
    /// A field that asks for what the direct backend cannot do.
    pub impossible: Option<&'static str>,
}

/// A device node that a container gets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceNode {
    /// As it is written: the type may be empty, and the numbers 0.
    pub device: OciDevice,
    /// Absolute path on the machine.
    pub host_path: String,
    /// Letters of `rwm`, in this order; none: it cannot be used.
    pub access: String,
    /// The node that was found on the machine.
    pub seen: HostNodeLookup,
}

/// A device node as found on the machine; links are not followed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum HostNodeLookup {
    /// The path was not looked at.
    #[default]
    Not,
    /// A block device, a character device or a FIFO. Its path is not set.
    Node(OciDevice),
    /// No node that could be given, and why.
    Wrong(String),
}

/// Reads one file: what it says of devices of these names, and of none else.
///
/// - Errors: the first thing that is wrong with the file, whatever it concerns. All of it is void then.
pub type ReadCdiFileFn = fn(Value, &[String]) -> Result<CdiFile, WrongValue>;
