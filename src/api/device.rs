//! Devices as a look at the machine shows them, and as plugins describe them: data that crosses from those who look to
//! those who decide.

use alloc::{boxed::Box, collections::BTreeMap, string::String, vec::Vec};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    cri::{ContainerDeviceNode, ContainerMount},
    strict::WrongValue,
};

/// Devices of the machine, as far as somebody asked for them.
///
/// - Shape: `nodes` sorted by name, each name once; `usb` sorted by port; `udev` and `cdi` sorted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineDevices {
    /// Nodes below `/dev`.
    pub nodes: Vec<HostDeviceNode>,
    /// Devices on the USB.
    pub usb: Vec<UsbDevice>,
    /// Nodes of which [`DeviceFilter::matching_udev_rules`] gave this number.
    pub udev: Vec<(u16, HostDeviceNode)>,
    /// Qualified names of CDI devices, each once for each file that has it, with the number of that one's directory.
    pub cdi: Vec<(String, usize)>,
    /// CDI files that say nothing, and why.
    pub wrong: Vec<String>,
}

/// A device node, and where in the machine its device is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostDeviceNode {
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
    /// Place on the USB that the device is plugged into.
    pub usb: Option<UsbPlace>,
}

/// A place on the USB.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsbPlace {
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
pub struct UsbDevice {
    /// Port, interface and identity.
    pub place: UsbPlace,
    /// Nodes with their subsystems, sorted. The device's own node under `/dev/bus/usb` is of the subsystem `usb`.
    pub nodes: Vec<(String, HostDeviceNode)>,
}

/// A kind of devices, for a rule: whether of block devices, and their major number.
pub type DeviceMajor = (bool, u32);

/// Identity of a node: true for a block device, major, minor.
pub type DeviceNumber = (bool, u32, u32);

/// Record of a container's nodes that come and go, for one resource, kept as long as its pod is there (DEV-44).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveDeviceRecord {
    /// Resource.
    pub resource: Box<str>,
    /// Units that it holds.
    pub ids: Vec<Box<str>>,
    /// Kinds of their nodes when it started: it can use no others.
    pub majors: Vec<DeviceMajor>,
    /// Letters of `rwm`.
    pub permissions: String,
}

/// A device that a container may use.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DeviceAccess {
    /// Identity of the node.
    pub number: DeviceNumber,
    /// Letters of `rwm`.
    pub access: String,
}

/// Rules for the device accesses of a container with nodes that come and go, over all resources.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveDeviceRules {
    /// Control group of the container, absolute within the hierarchy.
    pub cgroup: String,
    /// Kinds that its OCI runtime has opened for them, and of which all but the numbers here are closed.
    pub majors: Vec<DeviceMajor>,
    /// Other nodes of these kinds that it may read and write.
    pub others: Vec<DeviceNumber>,
    /// Other nodes of these kinds that it may either read or write.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limited: Vec<DeviceAccess>,
    /// Nodes that are there, sorted, each once.
    pub allowed: Vec<DeviceAccess>,
}

/// Answer of a plugin: what a container gets for the units that it holds.
///
/// - Source: `ContainerAllocateResponse` of `pkg/apis/deviceplugin/v1beta1/api.proto`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PluginAllocation {
    /// Variables.
    pub env: BTreeMap<String, String>,
    /// Mounts.
    pub mounts: Vec<ContainerMount>,
    /// Nodes, or directories of nodes. Their numbers are not known yet.
    pub nodes: Vec<ContainerDeviceNode>,
    /// Annotations, for the runtime.
    pub annotations: BTreeMap<String, String>,
    /// Names of CDI devices.
    pub cdi_devices: Vec<String>,
}

/// Ids by their resources, in order.
pub type IdsByResource = Vec<(String, Vec<String>)>;

/// Devices that an active pod holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodDeviceHoldings {
    /// Name of the pod.
    pub name: String,
    /// Namespace of the pod.
    pub namespace: String,
    /// Containers of the pod, without plain init containers, also those that hold no device.
    pub containers: Vec<(String, IdsByResource)>,
}

/// Holders of all devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceHoldings {
    /// Active pods.
    pub pods: Vec<PodDeviceHoldings>,
    /// Devices that can be given, held or not.
    pub healthy: IdsByResource,
}

/// Filter for a search of devices.
pub trait DeviceFilter: Send + Sync {
    /// Returns true if a node of this name is wanted.
    fn wants_node(&self, name: &str) -> bool;

    /// Returns true if a wanted node may lie in this directory, or below it.
    fn wants_directory(&self, path: &str) -> bool;

    /// Returns true if the device on the USB is wanted.
    fn wants_usb_device(&self, place: &UsbPlace) -> bool;

    /// Returns true if any device on the USB is wanted.
    fn wants_any_usb(&self) -> bool;

    /// Returns true if any device is wanted by facts that udev knows.
    fn wants_any_udev(&self) -> bool;

    /// Returns true if such a device may be of this subsystem.
    fn wants_subsystem(&self, name: &str) -> bool;

    /// The numbers of what this device is wanted for.
    fn matching_udev_rules(&self, subsystem: &str, device: &dyn NodeDeviceFacts) -> Vec<u16>;

    /// Returns true if any CDI device is wanted.
    fn wants_any_cdi(&self) -> bool;

    /// The qualified names of the devices of a CDI file that are wanted.
    ///
    /// # Errors
    /// The file is not valid.
    fn wanted_cdi_devices(&self, file: Value) -> Result<Vec<String>, WrongValue>;
}

/// Facts of a device that has a node, read on demand. A fact that cannot be read is missing.
pub trait NodeDeviceFacts {
    /// Number of levels: level 0 is the device itself, the next is the device that it is a part of, and so on.
    fn level_count(&self) -> usize;

    /// The driver of one of these.
    fn driver_at_level(&self, level: usize) -> Option<String>;

    /// Content of a file of one of these, without the end of its line.
    fn attribute_at_level(&self, level: usize, name: &str) -> Option<String>;

    /// Entry of level 0 in udev's database: lines such as `E:NAME=value` and `G:tag`.
    fn udev_database(&self) -> String;

    /// The kernel's `uevent` of level 0: lines such as `NAME=value`.
    fn kernel_uevent(&self) -> String;
}
