//! What a look at the machine shows of its devices, and what plugins say of theirs: data that crosses from whoever looks to
//! whoever decides.

use alloc::{boxed::Box, collections::BTreeMap, string::String, vec::Vec};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    cri::{Device, Mount},
    strict::WrongValue,
};

/// Devices of the machine, as far as somebody asked for them.
///
/// - Shape: `nodes` sorted by name, each name once; `usb` sorted by port; `udev` and `cdi` sorted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Nodes below `/dev`.
    pub nodes: Vec<Node>,
    /// Devices on the USB.
    pub usb: Vec<Usb>,
    /// Nodes of which [`Wanted::udev`] gave this number.
    pub udev: Vec<(u16, Node)>,
    /// Qualified names of CDI devices, each once for each file that has it, with the number of that one's directory.
    pub cdi: Vec<(String, usize)>,
    /// CDI files that say nothing, and why.
    pub wrong: Vec<String>,
}

/// A device node, and where in the machine its device is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Absolute path under which it was found, which may be a link.
    pub name: String,
    /// Absolute path of the node itself.
    pub path: String,
    /// A block device; a character device otherwise.
    pub block: bool,
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
    /// Path of the device below `/sys`, without `/sys`; empty if it has none.
    pub sysfs: String,
    /// What it is plugged into.
    pub usb: Option<Place>,
}

/// A place on the USB.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Port path, such as `1-1.4`.
    pub port: String,
    /// Number of the interface, such as `1.0`; empty for the device as a whole.
    pub interface: String,
    /// Vendor and product.
    pub product: (u16, u16),
    /// Serial number; empty if it has none.
    pub serial: String,
}

/// A device on the USB.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usb {
    /// Where, and what.
    pub place: Place,
    /// Its nodes with their subsystems, sorted. Its own under `/dev/bus/usb` is of the subsystem `usb`.
    pub nodes: Vec<(String, Node)>,
}

/// A kind of devices, for a rule: whether of block devices, and their major number.
pub type Major = (bool, u32);

/// Of a node: whether it is a block device, major, minor.
pub type Number = (bool, u32, u32);

/// What is kept of a container with nodes that come and go, of one resource, as long as its pod is there (DEV-44).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveRecord {
    /// Resource.
    pub resource: Box<str>,
    /// Units that it holds.
    pub ids: Vec<Box<str>>,
    /// Kinds of their nodes when it started: it can use no others.
    pub majors: Vec<Major>,
    /// Letters of `rwm`.
    pub permissions: String,
}

/// A device that a container may use.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Allowed {
    /// Which.
    pub number: Number,
    /// Letters of `rwm`.
    pub access: String,
}

/// What a container with nodes that come and go may use, of all resources.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveRules {
    /// Its control group, absolute within the hierarchy.
    pub cgroup: String,
    /// Kinds that its OCI runtime has opened for them, and of which all but the numbers here are closed.
    pub majors: Vec<Major>,
    /// What it may read and write of these kinds anyway.
    pub others: Vec<Number>,
    /// What it may use of these kinds anyway, but not in both ways.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limited: Vec<Allowed>,
    /// Nodes that are there, sorted, each once.
    pub allowed: Vec<Allowed>,
}

/// What a container gets of a plugin for units that it holds.
///
/// - Source: `ContainerAllocateResponse` of `pkg/apis/deviceplugin/v1beta1/api.proto`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Answer {
    /// Variables.
    pub env: BTreeMap<String, String>,
    /// Mounts.
    pub mounts: Vec<Mount>,
    /// Nodes, or directories of nodes. Their numbers are not known yet.
    pub nodes: Vec<Device>,
    /// Annotations, for the runtime.
    pub annotations: BTreeMap<String, String>,
    /// Names of CDI devices.
    pub cdi_devices: Vec<String>,
}

/// Ids by their resources, in order.
pub type IdsByResource = Vec<(String, Vec<String>)>;

/// What an active pod has of devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodHolds {
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Its containers, but for plain init containers, also those that hold nothing.
    pub containers: Vec<(String, IdsByResource)>,
}

/// Who has which devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    /// Active pods.
    pub pods: Vec<PodHolds>,
    /// Those that can be given, held or not.
    pub healthy: IdsByResource,
}

/// What is looked for.
pub trait Wanted: Send + Sync {
    /// Whether a node of this name is wanted.
    fn node(&self, name: &str) -> bool;

    /// Whether such a node may lie in this directory, or below it.
    fn directory(&self, path: &str) -> bool;

    /// Whether the device on the USB is wanted.
    fn usb(&self, place: &Place) -> bool;

    /// Whether anything on the USB is.
    fn any_usb(&self) -> bool;

    /// Whether anything is wanted by what udev knows of it.
    fn any_udev(&self) -> bool;

    /// Whether such a device may be of this subsystem.
    fn subsystem(&self, name: &str) -> bool;

    /// The numbers of what this device is wanted for.
    fn udev(&self, subsystem: &str, device: &dyn Facts) -> Vec<u16>;

    /// Whether any CDI device is wanted.
    fn any_cdi(&self) -> bool;

    /// The qualified names of the devices of a CDI file that are wanted.
    ///
    /// # Errors
    /// The file is not valid.
    fn cdi(&self, file: Value) -> Result<Vec<String>, WrongValue>;
}

/// What is known of a device that has a node: read when it is asked for. What cannot be read is not there.
pub trait Facts {
    /// How many devices there are: itself is 0, then what it is a part of.
    fn levels(&self) -> usize;

    /// The driver of one of these.
    fn driver(&self, level: usize) -> Option<String>;

    /// What a file of one of these holds, without the end of its line.
    fn attr(&self, level: usize, name: &str) -> Option<String>;

    /// What udev's database holds of itself: lines such as `E:NAME=value` and `G:tag`.
    fn database(&self) -> String;

    /// What the kernel says of itself: lines such as `NAME=value`.
    fn event(&self) -> String;
}
