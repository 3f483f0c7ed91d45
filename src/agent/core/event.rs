//! Everything that can happen to the loop, and everything that it can want done.

use alloc::rc::Rc;

use serde_json::Value;
use smol::channel::Sender;

use super::{
    Agent,
    chores::{HousekeepingChores, PodRemains},
    eviction::EvictionWork,
    runtime_view::{RuntimeInspection, RuntimeListing},
    sources::{PodRecording, RecordingResult, SourceDelivery},
};
use crate::{
    agent::{
        executor::{CallCancel, CallStep},
        node_resources::{ResourceNews, ResourceQuestion},
        pod_store::PodStoreError,
        probes::UnshownProbeResult,
        times::ClockHistoryFile,
        views::ApiAnswer,
    },
    api::{ContainerId, Pod, PodUid, cri::RuntimeStatus},
    logic::{
        eviction::EvictionInput,
        pod_table::{CallStart, PodHandle},
        pod_worker::CallOutcome,
        status_update::ProbeChange,
    },
};

/// A question to the agent: reads it and sends the answer off.
pub(in crate::agent) type AgentQuestion = Box<dyn FnOnce(&Agent)>;

/// A request to the loop.
pub(in crate::agent) enum AgentCommand {
    /// End the agent; with `all` every pod first. Closed when it is done; what is sent is why it is not done yet.
    Stop { all: bool, done: Sender<String> },
    /// The machine goes down: end the pods in their order, if there is one. Answered as [`AgentCommand::Stop`] is.
    Shutdown { done: Sender<String> },
    /// The machine does not go down after all.
    ShutdownCancelled,
    /// End a pod and start it anew.
    Restart(PodUid),
    /// Images were imported.
    ImagesArrived,
}

/// Everything that can happen to the agent.
pub(in crate::agent) enum AgentEvent {
    /// A source says something.
    Delivered(SourceDelivery),
    /// Pods of it are recorded on disk.
    Recorded(Box<RecordingResult>),
    /// The manifests were read, and nothing has changed.
    ManifestsRead,
    /// Records that waited for the disk were looked at: whether some still wait.
    Settled(bool),
    /// The API shows a pod so, after a write of the agent.
    Shown(PodUid, Value),
    /// A pod was read from its record.
    Loaded(PodUid, LoadPurpose, Result<Rc<Pod>, PodStoreError>),
    /// Directories and cgroups of pods were looked through.
    Searched(PodRemains),
    /// An object that these pods depend on has changed.
    Resync(Vec<PodUid>),
    /// Images were imported: pods that wait for one are synced.
    ImagesArrived,
    /// The runtime was listed.
    Listed(RuntimeListing),
    /// The pods that differed in the last listing were read.
    Inspected(RuntimeInspection),
    /// The runtime's conditions were read.
    Conditions(Box<RuntimeStatus>),
    /// A reader asks a question.
    Ask(AgentQuestion),
    /// A probe's result is another.
    Probed(UnshownProbeResult),
    /// The apiserver answers otherwise than before. It is taken down for whoever reads a dump; nothing is decided by it.
    Api(ApiAnswer),
    /// The Node was read, as was wanted, or no answer came.
    NodeRead(bool),
    /// A call of a worker came to something.
    Step(PodHandle, CallStep),
    /// A call of a worker ended.
    Done(PodHandle, CallOutcome),
    /// A tick of housekeeping is due.
    Housekeeping,
    /// The work of a housekeeping tick is done.
    Cleaned,
    /// A pass of garbage collection is over.
    Collected,
    /// A local command.
    Command(AgentCommand),
    /// Memory may be short: a doorbell.
    MemoryBell,
    /// A step of an eviction round is done.
    Eviction(Box<EvictionInput>),
    /// Whoever offers extended resources says something.
    Resources(ResourceNews),
    /// SIGTERM or SIGINT: the agent ends, pods go on.
    Terminate,
}

const _: () = assert!(
    size_of::<AgentEvent>() <= 104,
    "256 of them have room in the queue"
);

/// Everything that the agent can have done.
pub(in crate::agent) enum AgentEffect {
    /// Run a worker's call, which looks at the flag.
    Start(CallStart, PodUid, Rc<CallCancel>),
    /// Relist soon.
    Relist,
    /// Read these pods, which the listing showed to differ; none: it was taken as it is. What was read goes back to whoever listed.
    Inspect(Vec<PodUid>, Sender<Vec<PodUid>>),
    /// Remove surplus dead instances of the container that died (CLEAN-14).
    TidyDead(PodUid, ContainerId),
    /// Read a pod from its record; ends with [`AgentEvent::Loaded`].
    Load(PodUid, LoadPurpose),
    /// Look through directories and cgroups of pods; ends with [`AgentEvent::Searched`].
    Search,
    /// Write records; ends with [`AgentEvent::Recorded`].
    Record(Box<PodRecording>),
    /// Move records that wait to the disk; ends with [`AgentEvent::Settled`].
    SettleRecords,
    /// Keep what the API shows in the pod's record.
    KeepShown(PodUid, Value),
    /// Store what the wall clock has said, for the agents of this boot after this one.
    KeepTimes(ClockHistoryFile),
    /// Forget how pods came to their end: they are no longer configured.
    ForgetOutcomes(Vec<PodUid>),
    /// Carry out what housekeeping found.
    Housekeeping(Box<HousekeepingChores>),
    /// Do something for a round of eviction; ends with [`AgentEvent::Eviction`].
    Eviction(EvictionWork),
    /// Ask a question about extended resources; ends with [`AgentEvent::Resources`].
    AskResources(ResourceQuestion),
}

/// Reason for reading a pod's record.
#[derive(Clone, Debug)]
pub(in crate::agent) enum LoadPurpose {
    /// The pod is wanted and gets a worker.
    Create,
    /// A probe changed its mind about an instance, as the API names it; the status shows it.
    Show(Box<str>, ProbeChange),
    /// An image came that it may have waited for.
    Image,
    /// The pod is evicted, and its status says why.
    Evict,
}
