//! Messages of device plugins, as far as they are used.
//!
//! Source: kubelet `pkg/apis/deviceplugin/v1beta1/api.proto`.

use alloc::collections::BTreeMap;

use crate::grpc::proto::message;

message! {
    pub(super) struct DevicePluginEmpty {}
    /// Offer of a plugin: its resource and its socket.
    pub(crate) struct RegisterRequest {
        /// Version of the protocol.
        1 version: String,
        /// Name of its socket.
        2 endpoint: String,
        /// Extended resource.
        3 resource_name: String,
    }
    pub(super) struct PluginOptions {
        1 pre_start_required: bool,
        2 preferred_allocation: bool,
    }
    pub(super) struct ListAndWatchResponse {
        1 devices: Vec<ListedDevice>,
    }
    pub(super) struct ListedDevice {
        1 id: String,
        2 health: String,
    }
    /// Units of one container in `Allocate`; also the request of `PreStartContainer`.
    pub(super) struct DeviceIds {
        1 ids: Vec<String>,
    }
    /// Request of `Allocate`; also the answer of `GetPreferredAllocation`.
    pub(super) struct ContainersDeviceIds {
        1 containers: Vec<DeviceIds>,
    }
    pub(super) struct PreferredAllocationRequest {
        1 containers: Vec<ContainerPreferredRequest>,
    }
    pub(super) struct ContainerPreferredRequest {
        1 available: Vec<String>,
        2 must_include: Vec<String>,
        3 size: i32,
    }
    pub(super) struct AllocateResponse {
        1 containers: Vec<ContainerAllocateResponse>,
    }
    pub(super) struct ContainerAllocateResponse {
        1 envs: BTreeMap<String, String>,
        2 mounts: Vec<PluginMount>,
        3 devices: Vec<DeviceSpec>,
        4 annotations: BTreeMap<String, String>,
        5 cdi_devices: Vec<PluginCdiDevice>,
    }
    pub(super) struct PluginMount {
        1 container_path: String,
        2 host_path: String,
        3 read_only: bool,
    }
    pub(super) struct DeviceSpec {
        1 container_path: String,
        2 host_path: String,
        3 permissions: String,
    }
    pub(super) struct PluginCdiDevice {
        1 name: String,
    }
}
