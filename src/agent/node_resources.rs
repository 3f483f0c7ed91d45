//! Extended resources: the seam between the agent and whoever offers them on this Node.
//!
//! Whoever offers resources is two halves. [`NodeResources`] is owned by the loop and decides: what the Node offers, which
//! pod gets what, who waits. [`ResourceGiver`] has effects: it keeps what pods hold, and tells what a container gets for
//! it. The first half is told news by the second one; the agent only hands them on.

use alloc::{rc::Rc, sync::Arc};
use core::{any::Any, pin::Pin};
use std::io;

use smol::LocalExecutor;

pub(crate) use super::core::{PodLoop, PodsView};
use super::{
    asker::AgentHandle, clock::Clock, complaints::Complaints, pod_store::PodStore,
    tasks::AgentTask, vitals::WorkCounters,
};
use crate::{
    api::{
        ContainerId, MonoTime, Pod, PodStatus, PodUid,
        cri::{ContainerDeviceNode, ContainerMount, LiveDevices},
    },
    cgroup::Cgroups,
    config::AgentDirs,
    logic::{
        admission::Rejection,
        extended_resources::{HeldUnits, PodDevices, ResourceUnits},
    },
    server::backend::{AgentCheck, DeviceReport},
    sys::lane::Lane,
};

/// News of a [`ResourceGiver`] for its [`NodeResources`].
pub(crate) type ResourceNews = Box<dyn Any>;

/// A question of [`NodeResources`] to the outside; its answer comes back as news.
pub(crate) type ResourceQuestion = Pin<Box<dyn Future<Output = Option<ResourceNews>>>>;

/// An answer that takes its time.
pub(crate) type ResourceFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Answer to a pod that asks for extended resources.
pub(crate) enum ResourceAdmission {
    /// The pod has what it asks for, as far as it is offered here.
    Given,
    /// The pod is held back; nothing is told of it yet.
    Held,
    /// The pod waits, and why.
    Waits(String),
    /// The pod never runs.
    Refused(Rejection),
}

/// Result of giving resources to a pod that held none when a container was to start.
pub(crate) enum LateResourceGrant {
    /// The pod asks for no resource that is given here.
    Nothing,
    /// The pod holds resources now; its next sync begins with them.
    Given,
    /// The pod waits, and why.
    Waits(String),
}

/// Extended resources of the Node, and the pods that hold some. Every method has a default for a Node that offers none.
pub(crate) trait NodeResources: Any {
    /// Amount of each resource that is offered, by name.
    fn resource_amounts(&self) -> Vec<ResourceUnits> {
        Vec::new()
    }

    /// Units that the pod holds.
    fn held_devices(&self, pod: &PodUid) -> Option<PodDevices> {
        _ = pod;
        None
    }

    /// Gives an admitted pod what it asks for.
    fn admit_pod(&mut self, pod: &Pod, pods: &mut PodLoop<'_>, now: MonoTime) -> ResourceAdmission {
        _ = (pod, pods, now);
        ResourceAdmission::Given
    }

    /// Replaces what a pod holds and cannot begin with. Returns why it is refused, if it is.
    fn replace_held(
        &mut self,
        pod: &Pod,
        pods: &mut PodLoop<'_>,
        now: MonoTime,
    ) -> Option<Rejection> {
        _ = (pod, pods, now);
        None
    }

    /// Gives resources to a running pod that holds none but is about to start a container. Also returns why it is refused,
    /// if it is.
    fn give_late(
        &mut self,
        pod: &Pod,
        pods: &mut PodLoop<'_>,
        now: MonoTime,
    ) -> (LateResourceGrant, Option<Rejection>) {
        _ = (pod, pods, now);
        (LateResourceGrant::Nothing, None)
    }

    /// Returns true if the pod is held back, or waits.
    fn is_waiting(&self, pod: &PodUid) -> bool {
        _ = pod;
        false
    }

    /// Returns true if the pod is held back, or waits and its time is not over.
    fn may_wait(&self, pod: &PodUid, pods: &PodsView<'_>, now: MonoTime) -> bool {
        _ = (pod, pods, now);
        false
    }

    /// The pod does not wait any more: it goes, or runs.
    fn forget_waiting(&mut self, pod: &PodUid) {
        _ = pod;
    }

    /// Takes back what pods had that are no longer active.
    fn release_inactive(&mut self, pods: &PodLoop<'_>) {
        _ = pods;
    }

    /// Takes in news of the other half.
    fn take_resource_news(&mut self, news: ResourceNews, pods: &mut PodLoop<'_>, now: MonoTime) {
        _ = (news, pods, now);
    }

    /// Instant of the next work.
    fn next_timeout(&self) -> Option<MonoTime> {
        None
    }

    /// Time has passed.
    fn handle_timeout(&mut self, pods: &mut PodLoop<'_>, now: MonoTime) {
        _ = (pods, now);
    }

    /// Instances of a pod that are to be restarted, for what they hold is something else now.
    fn instances_to_restart(&mut self, pod: &PodUid, pods: &PodsView<'_>) -> Vec<ContainerId> {
        _ = (pod, pods);
        Vec::new()
    }

    /// Puts the health of what the pod holds into a status. A pod that has ended keeps what was told of it.
    fn show_health(
        &self,
        pod: &PodUid,
        status: &mut PodStatus,
        previous: &PodStatus,
        now: MonoTime,
    ) {
        _ = (pod, now);
        if !status.phase.is_terminal() {
            return;
        }
        for container in &mut status.container_statuses {
            let mut told = previous.container_statuses.iter();
            if let Some(told) = told.find(|told| told.name == container.name) {
                let health = &told.allocated_resources_status;
                container.allocated_resources_status.clone_from(health);
            }
        }
    }

    /// Every unit, for people.
    fn shown_devices(&self, pods: &PodsView<'_>) -> Vec<DeviceReport> {
        _ = pods;
        Vec::new()
    }
}

/// The resources of a Node that offers none.
pub(crate) struct NoResources;

impl NodeResources for NoResources {}

/// Everything that a container gets for what its pod holds.
#[derive(Default)]
pub(crate) struct ContainerAllocation {
    /// Device nodes.
    pub(crate) nodes: Vec<ContainerDeviceNode>,
    /// Environment variables.
    pub(crate) env: Vec<(String, String)>,
    /// Mounts.
    pub(crate) mounts: Vec<ContainerMount>,
    /// Annotations, for the runtime.
    pub(crate) annotations: Vec<(String, String)>,
    /// Names of CDI devices.
    pub(crate) cdi_devices: Vec<String>,
    /// Directories of nodes that come and go.
    pub(crate) live: Vec<LiveDevices>,
}

/// Reason why no container of a pod may start.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct ResourcesNotReady(pub(crate) String);

/// Reason why a container does not get what its pod holds.
pub(crate) enum AllocationError {
    /// The container cannot be made with it.
    Create(String),
    /// A giver was to be told before the start, and was not.
    PreStart(String),
}

/// Tools that a [`ResourceGiver`] works with.
pub(crate) struct ResourceTools<'a> {
    pub(crate) dirs: &'a AgentDirs,
    pub(crate) clock: &'a Rc<dyn Clock>,
    pub(crate) complaints: &'a Rc<Complaints>,
    pub(crate) counters: &'a WorkCounters,
    pub(crate) store: &'a PodStore,
    pub(crate) cgroups: &'a Arc<Cgroups>,
    /// For blocking work.
    pub(crate) disk: &'a Lane,
    /// Set if signs of the kernel are waited for.
    pub(crate) doorbells: bool,
}

/// Gives containers what they get for the resources of their pods.
pub(crate) trait ResourceGiver: Any {
    /// Makes the half for the loop, with what is there before the first pod is admitted. Blocking.
    fn make_node_resources(self: Rc<Self>, now: MonoTime) -> Box<dyn NodeResources>;

    /// Tasks that run as long as the agent.
    fn resource_giver_tasks(self: Rc<Self>, agent: AgentHandle) -> Vec<AgentTask>;

    /// Opens what others connect to, and returns the tasks that serve them.
    ///
    /// - Errors: it cannot be opened; the agent does not start then.
    fn open_resource_servers(
        self: Rc<Self>,
        agent: AgentHandle,
        executor: &Rc<LocalExecutor<'static>>,
    ) -> io::Result<Vec<AgentTask>>;

    /// Keeps what a pod holds before anything of it starts.
    ///
    /// - Errors: it cannot be kept, or somebody does not answer. It is tried again.
    fn settle_held_devices<'a>(
        &'a self,
        pod: &'a PodUid,
        held: &'a [HeldUnits],
    ) -> ResourceFuture<'a, Result<(), ResourcesNotReady>>;

    /// Gathers what a container that is about to start gets.
    fn gather_allocation<'a>(
        &'a self,
        pod: &'a PodUid,
        held: &'a [HeldUnits],
        container: &'a str,
    ) -> ResourceFuture<'a, Result<ContainerAllocation, AllocationError>>;

    /// Checks for `/healthz`.
    fn health_checks(&self) -> Vec<AgentCheck>;
}
