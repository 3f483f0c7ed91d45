//! Messages between the loop and a running call of a pod's worker: the plan with which the call begins, and the steps
//! that it reports. All of it is data.

use alloc::rc::Rc;
use core::{net::IpAddr, pin::Pin};

use smol::channel::Sender;

use super::cancel::CallCancel;
use crate::{
    agent::{node_resources::LateResourceGrant, objects::ManifestObjects, outcome::PodOutcome},
    api::{MonoTime, Pod, PodUid, cri::PodRuntimeStatus},
    logic::{
        actions::PodActions,
        backoff::{BackoffRecord, CrashLoopWait},
        cgroup::PodRequestTotals,
        extended_resources::PodDevices,
        pod_table::PodHandle,
        resize::{PodAllocation, StepFailure},
        status::PodFailure,
    },
};

/// Facts that a call is given when it begins. The pod itself is read from its record.
pub(crate) struct CallPlan {
    pub(crate) uid: PodUid,
    /// Last runtime status of the pod.
    pub(crate) runtime: Rc<PodRuntimeStatus>,
    /// ConfigMaps and Secrets of the manifest directory.
    pub(in crate::agent) objects: Rc<ManifestObjects>,
    /// Addresses of the node, primary first.
    pub(crate) host_ips: Vec<IpAddr>,
    /// Requests of all pods together, by which the cgroups above this one are made; `None`: the pod runs and has its cgroup.
    pub(crate) asked: Option<PodRequestTotals>,
    /// Digest of the limits that this agent has given the pod's cgroup.
    pub(crate) limits: Option<u32>,
    /// Set if the remains of the pod may go: it is deleted or evicted, or no source has it.
    pub(crate) content_goes: bool,
    /// Extended resources that the pod holds.
    pub(crate) held: Option<PodDevices>,
    /// Grace of a pod that is to end, in seconds.
    pub(crate) grace_s: Option<u32>,
    /// Flag that tells the call to end early.
    pub(crate) cancel: Rc<CallCancel>,
    /// To the loop.
    pub(crate) line: CallChannel,
}

/// Report of a call before its end. Reports keep their order.
pub(crate) enum CallStep {
    /// A sync has read its pod. What the status says by now is shown before anything is done.
    Begun {
        pod: Rc<Pod>,
        runtime: Rc<PodRuntimeStatus>,
        /// Failure of the pod that its driver reports.
        failure: Option<PodFailure>,
        answer: StepAnswer<SyncOrders>,
    },
    /// The outcome of the pod is kept, or waits for the disk. Answered: a source still has the pod.
    OutcomeKept(bool, StepAnswer<bool>),
    /// The pod's cgroup has the limits of this digest, or does not have its limits.
    Limited(Option<u32>),
    /// Resources that the pod holds cannot be recorded, or are not given.
    Unsettled(Rc<Pod>),
    /// A pod is about to start a container, asks for extended resources and holds none. Answered: what it was given.
    HoldsNothing(Rc<Pod>, StepAnswer<LateResourceGrant>),
    /// Volumes are there: probes may begin (SYNC-12).
    Mounted(Rc<Pod>),
    /// A new sandbox with its network is up: shown before images are pulled (SYNC-16, ACT-24).
    SandboxUp(Rc<Pod>),
    /// May the container be started again?
    Restarts {
        pod: Rc<Pod>,
        container: String,
        /// With the whole pod.
        all: bool,
        runtime: Rc<PodRuntimeStatus>,
        answer: StepAnswer<CrashLoopGrant>,
    },
    /// A sync has changed something at the runtime.
    Acted {
        pod: Rc<Pod>,
        /// Containers that were to be started, in the order of their turns.
        starts: Vec<ContainerStartResult>,
        /// Not all of it was done: what waits is shown now, over what the sync began with. A newer look may have come between
        /// the kill of a container and the start of its next instance, and show a pod that is never restarted as failed.
        failed: Option<Rc<PodRuntimeStatus>>,
        /// Set if the sync removed something and is to start over at once (SYNC-17).
        again: bool,
    },
    /// The pod is about to be stopped. Answered: its addresses, as it shows them.
    Stopping {
        pod: Rc<Pod>,
        runtime: Rc<PodRuntimeStatus>,
        answer: StepAnswer<Vec<IpAddr>>,
    },
    /// The containers of the pod were killed.
    Killed,
    /// No container of the pod runs any more; the pod ended in this state (SYNC-27).
    Stopped {
        pod: Rc<Pod>,
        runtime: Rc<PodRuntimeStatus>,
    },
    /// Resources of the pod reached its containers, or failed to.
    Resized(Box<ResizeReport>),
    /// The call has changed something at the runtime.
    Changed,
    /// Volumes and cgroup are gone (DEL-03). The pod, if it could be read.
    CleanedUp(Option<Rc<Pod>>),
}

/// Orders for a sync that has begun.
pub(crate) struct SyncOrders {
    /// The pod has come to its end by itself: nothing is done.
    pub(crate) terminal: bool,
    /// Outcome that has to outlive the machine's boot.
    pub(in crate::agent) outcome: Option<PodOutcome>,
    /// Addresses of the pod, as its status has them.
    pub(crate) ips: Vec<IpAddr>,
    /// Reason why no container may start.
    pub(crate) problem: Option<StartProblem>,
    /// Changes to make at the runtime.
    pub(crate) actions: PodActions,
    /// Resources to give, of a pod whose resources were edited.
    pub(crate) resize: Option<ResizeOrder>,
}

/// Resources that a pod is to have.
pub(crate) struct ResizeOrder {
    pub(crate) allocation: PodAllocation,
    /// Names of containers that are restarted for it.
    pub(crate) restart: Vec<String>,
    /// False: what runs has its resources, or the last step failed and is not tried again yet.
    pub(crate) may_step: bool,
    pub(crate) ordered_at: MonoTime,
}

/// Result of giving a pod its resources.
pub(crate) struct ResizeReport {
    pub(crate) pod: Rc<Pod>,
    /// Status of the pod at the runtime before.
    pub(crate) runtime: Rc<PodRuntimeStatus>,
    /// Resources in force now.
    pub(crate) allocation: PodAllocation,
    /// Time of the order, if steps were tried.
    pub(crate) begun_at: Option<MonoTime>,
    /// The step that failed.
    pub(crate) failure: Option<StepFailure>,
}

/// Reason why no container of a pod may start.
pub(crate) enum StartProblem {
    Runtime(String),
    /// A pod with the same name that still runs.
    Name(PodUid),
    Network(String),
    /// The pod wants a right clock at its start, and the clock is not known to be right.
    Clock,
}

/// The delays to be kept for the next agent, or how long this start has to wait.
pub(crate) type CrashLoopGrant = Result<Vec<BackoffRecord>, CrashLoopWait>;

/// Result of a container's start.
pub(crate) struct ContainerStartResult {
    pub(crate) container: String,
    pub(crate) result: Result<(), ContainerWaitReason>,
}

/// Reason why a container waits.
pub(crate) struct ContainerWaitReason {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

/// Channel for the answer to a step.
pub(crate) struct StepAnswer<T>(Sender<T>);

impl<T> StepAnswer<T> {
    /// Answers.
    pub(crate) fn send_answer(self, answer: T) {
        // Whoever asked leaves only with the agent.
        let _ = self.0.try_send(answer);
    }
}

/// Takes a step to the loop, behind all that were told before.
pub(crate) type StepSender = Rc<dyn Fn(PodHandle, CallStep) -> Pin<Box<dyn Future<Output = ()>>>>;

/// The way of one call to the loop.
pub(crate) struct CallChannel {
    pub(crate) call: PodHandle,
    pub(crate) tell: StepSender,
}

impl CallChannel {
    /// Tells the loop.
    pub(crate) async fn tell_loop(&self, step: CallStep) {
        (self.tell)(self.call, step).await;
    }

    /// Tells the loop and waits for its answer.
    pub(crate) async fn ask_loop<T>(&self, step: impl FnOnce(StepAnswer<T>) -> CallStep) -> T {
        let (answer, answered) = smol::channel::bounded(1);
        self.tell_loop(step(StepAnswer(answer))).await;
        match answered.recv().await {
            Ok(answer) => answer,
            // The loop is over, and the agent with it.
            Err(_) => core::future::pending().await,
        }
    }
}
