//! core/v1 PodStatus: what the agent reports.
#![expect(missing_docs, reason = "field names and meanings are those of core/v1")]

use alloc::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Quantity, WallTime, pod::Resources};

/// Pod phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PodPhase {
    #[default]
    Pending,
    Running,
    Succeeded,
    Failed,
    Unknown,
}

impl PodPhase {
    /// `Succeeded` or `Failed`.
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }

    /// The API's word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Running => "Running",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
            Self::Unknown => "Unknown",
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum QosClass {
    Guaranteed,
    Burstable,
    #[default]
    BestEffort,
}

macro_rules! object {
    ($(#[$m:meta])* $name:ident { $($(#[$fm:meta])* $field:ident : $ty:ty),* $(,)? }) => {
        $(#[$m])*
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default, rename_all = "camelCase")]
        pub struct $name { $($(#[$fm])* pub $field: $ty),* }
    };
}

object!(PodStatus {
    phase: PodPhase,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    conditions: Vec<PodCondition>,
    #[serde(skip_serializing_if = "String::is_empty")]
    message: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    reason: String,
    #[serde(rename = "hostIP", skip_serializing_if = "String::is_empty")]
    host_ip: String,
    #[serde(rename = "hostIPs", skip_serializing_if = "Vec::is_empty")]
    host_ips: Vec<IpEntry>,
    #[serde(rename = "podIP", skip_serializing_if = "String::is_empty")]
    pod_ip: String,
    #[serde(rename = "podIPs", skip_serializing_if = "Vec::is_empty")]
    pod_ips: Vec<IpEntry>,
    #[serde(skip_serializing_if = "Option::is_none")]
    start_time: Option<WallTime>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    init_container_statuses: Vec<ContainerStatus>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    container_statuses: Vec<ContainerStatus>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ephemeral_container_statuses: Vec<ContainerStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    qos_class: Option<QosClass>,
    #[serde(skip_serializing_if = "Option::is_none")]
    observed_generation: Option<i64>,
    /// Requests that a pod with resources of its own was allocated (RSZ-30).
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    allocated_resources: BTreeMap<String, Quantity>,
    /// Resources that the pod's cgroup has.
    #[serde(skip_serializing_if = "Option::is_none")]
    resources: Option<Box<Resources>>,
});

impl PodStatus {
    /// Gives back the room that lists have for more: a list of one container has grown with room for four.
    pub fn shrink_lists(&mut self) {
        self.conditions.shrink_to_fit();
        self.host_ips.shrink_to_fit();
        self.pod_ips.shrink_to_fit();
        self.init_container_statuses.shrink_to_fit();
        self.container_statuses.shrink_to_fit();
        self.ephemeral_container_statuses.shrink_to_fit();
    }
}

object!(IpEntry { ip: String });

object!(PodCondition {
    #[serde(rename = "type")]
    kind: String,
    /// `True`, `False` or `LookupError`.
    status: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_transition_time: Option<WallTime>,
    #[serde(skip_serializing_if = "String::is_empty")]
    reason: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    observed_generation: Option<i64>,
});

object!(ContainerStatus {
    name: String,
    state: ContainerState,
    last_state: ContainerState,
    ready: bool,
    restart_count: u32,
    image: String,
    #[serde(rename = "imageID")]
    image_id: String,
    /// `picolet://<id>`; empty before creation.
    #[serde(rename = "containerID", skip_serializing_if = "String::is_empty")]
    container_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    started: Option<bool>,
    /// Left out, as `resources` is: see RSZ-04. Read, so that those of another agent are removed from the API.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    allocated_resources: BTreeMap<String, Quantity>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resources: Option<Resources>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    volume_mounts: Vec<VolumeMountStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<ContainerUser>,
    /// Health of the devices that the container holds; sorted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    allocated_resources_status: Vec<ResourceStatus>,
    #[serde(skip_serializing_if = "String::is_empty")]
    stop_signal: String,
});

object!(ResourceStatus {
    name: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    resources: Vec<ResourceHealth>,
});

object!(ResourceHealth {
    #[serde(rename = "resourceID")]
    resource_id: String,
    /// `Healthy`, `PlegUnhealthy` or `LookupError`.
    #[serde(skip_serializing_if = "String::is_empty")]
    health: String,
});

object!(
    /// At most one of the three is set.
    ContainerState {
        #[serde(skip_serializing_if = "Option::is_none")]
        waiting: Option<Waiting>,
        #[serde(skip_serializing_if = "Option::is_none")]
        running: Option<Running>,
        #[serde(skip_serializing_if = "Option::is_none")]
        terminated: Option<Box<Terminated>>,
    }
);

object!(Waiting {
    #[serde(skip_serializing_if = "String::is_empty")]
    reason: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    message: String,
});

object!(Running { started_at: Option<WallTime> });

object!(Terminated {
    exit_code: i32,
    #[serde(skip_serializing_if = "is_zero")]
    signal: i32,
    #[serde(skip_serializing_if = "String::is_empty")]
    reason: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    message: String,
    started_at: Option<WallTime>,
    finished_at: Option<WallTime>,
    #[serde(rename = "containerID", skip_serializing_if = "String::is_empty")]
    container_id: String,
});

object!(VolumeMountStatus {
    name: String,
    mount_path: String,
    #[serde(skip_serializing_if = "core::ops::Not::not")]
    read_only: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    recursive_read_only: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    volume_status: Option<VolumeStatus>,
});

object!(VolumeStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    image: Option<ImageVolumeStatus>,
});
object!(ImageVolumeStatus { image_ref: String });

object!(ContainerUser {
    #[serde(skip_serializing_if = "Option::is_none")]
    linux: Option<LinuxContainerUser>,
});
object!(LinuxContainerUser {
    uid: i64,
    gid: i64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    supplemental_groups: Vec<i64>,
});

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_zero(n: &i32) -> bool {
    *n == 0
}
