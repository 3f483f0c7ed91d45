//! Lines of a dump: their form, and how they are made from the loop's events and effects.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    agent::{core::LoadPurpose, probes::UnshownProbeResult, views::ApiAnswer},
    api::{MonoTime, Pod, pod_status::PodPhase},
    logic::{
        pod_table::CallStart,
        pod_worker::{CallOutcome, UpdateKind, WorkerCall},
        probe::{ProbeKind, ProbeResult},
        work_queue::RetryCause,
    },
};

/// Bytes of one text in a line; names and ids are shorter.
pub(super) const MAX_TEXT_BYTES: usize = 320;

/// A line of a dump after its header; exactly one of `heard` and `done` is set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::agent) struct RecordedLine {
    /// Milliseconds since the machine was switched on.
    pub(in crate::agent) t: u64,
    /// Input of the loop.
    #[serde(rename = "in", default, skip_serializing_if = "Option::is_none")]
    pub(in crate::agent) heard: Option<RecordedEvent>,
    /// Output of the loop.
    #[serde(rename = "out", default, skip_serializing_if = "Option::is_none")]
    pub(in crate::agent) done: Option<RecordedEffect>,
}

/// An input of the loop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::agent) enum RecordedEvent {
    /// A pod is new in its source.
    Add(RecordedPod),
    /// A pod changed in its source, deletion included.
    Update(RecordedPod),
    /// Only the status of a pod differs in its source.
    Reconcile(RecordedPod),
    /// A pod is no longer in its source.
    Remove { pod: String },
    /// A local command: end the pod and start it anew.
    Restart { pod: String },
    /// ConfigMaps or Secrets changed.
    Objects,
    /// Images were imported.
    Images,
    /// A change was found at the runtime.
    Pleg {
        pod: String,
        kind: String,
        id: String,
    },
    /// A record of a pod could not be written.
    Unrecorded { pod: String },
    /// The record of a pod could not be read.
    Unread {
        pod: String,
        /// Purpose of the read: `create`, `show`, `image`, `evict`.
        wanted: String,
    },
    /// Records wait for a disk that cannot be written (true), or no longer do.
    RecordsWait(bool),
    /// The runtime was listed, for the first time or after listing had failed for too long.
    #[serde(rename_all = "camelCase")]
    Listed {
        /// Age of the list before, in milliseconds.
        after_ms: Option<u64>,
    },
    /// Readiness of the runtime and of its network: the first report, one after a long silence, or one that differs
    /// from the report before.
    Conditions { runtime: bool, network: bool },
    /// A call of a worker reported a step.
    Step(RecordedStep),
    /// A probe's result has changed.
    Probed {
        pod: String,
        /// Id of the container instance, as the API names it.
        id: String,
        kind: ProbeKind,
        result: ProbeResult,
    },
    /// An answer of the apiserver differs from the one before.
    Api(ApiAnswer),
    /// A pod as the API shows it after a write.
    Shown {
        pod: String,
        /// `resourceVersion` of the object.
        version: String,
        phase: String,
    },
    /// Pods are synced, because something else that they need has changed.
    Resync(Vec<String>),
    /// A call of a worker ended; the pod is empty if its slot is another pod's by now.
    #[serde(rename_all = "camelCase")]
    Done {
        pod: String,
        /// `done`, `terminal`, `canceled`, `failed`, `networkNotReady`, `backOff`.
        outcome: String,
        /// End of the back-off, milliseconds as in [`RecordedLine::t`].
        until_ms: Option<u64>,
    },
    /// A local command: end the agent, with `all` every pod first.
    Stop { all: bool },
    /// A local command, or logind: the machine is about to shut down.
    Shutdown,
    /// The shutdown of the machine is cancelled.
    ShutdownCancelled,
    /// The agent is to end, pods go on: a signal, or no client certificate can be had any more.
    Terminate,
}

/// A step that a call of a worker reports. The pod is empty if its slot is another pod's by now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::agent) struct RecordedStep {
    pub(in crate::agent) pod: String,
    /// `begun`, `outcomeKept`, `limited`, `unlimited`, `probed`, `sandboxUp`, `restarts`, `started`, `stopping`, `killed`, `stopped`,
    /// `cleanedUp`.
    pub(in crate::agent) step: String,
    /// Phase in the pod's status from now on, with `begun`, `stopping`, `stopped`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::agent) phase: Option<String>,
    /// Container, with `restarts` and `started`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::agent) container: Option<String>,
    /// Earliest time of the start, with `restarts`, milliseconds as in [`RecordedLine::t`]. Without it the start is at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::agent) until_ms: Option<u64>,
    /// With `begun`: the cause for which no container may start, `runtime`, `name`, `network` or `clock`. With
    /// `started`: the reason in the status why the container was not started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::agent) reason: Option<String>,
}

/// A pod as its source has it, as far as the loop decides by it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::agent) struct RecordedPod {
    pub(in crate::agent) pod: String,
    /// `namespace/name`.
    pub(in crate::agent) name: String,
    #[serde(rename = "static")]
    pub(in crate::agent) is_static: bool,
    /// Set if the pod's end is announced (`metadata.deletionTimestamp`).
    pub(in crate::agent) deleted: bool,
    /// Grace period of the announcement, else of the spec, in seconds.
    pub(in crate::agent) grace_s: Option<i64>,
    /// Restart policy.
    pub(in crate::agent) restart: String,
    /// Number of init containers.
    pub(in crate::agent) init: usize,
    /// Number of containers.
    pub(in crate::agent) containers: usize,
}

/// An output of the loop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::agent) enum RecordedEffect {
    /// A call of a worker began.
    #[serde(rename_all = "camelCase")]
    Start {
        pod: String,
        /// `sync`, `terminating`, `terminatingRuntime`, `terminated`.
        call: String,
        /// Grace period of `terminating` in seconds, if one was given.
        grace_s: Option<u32>,
        /// The kind of update that the call serves.
        kind: UpdateKind,
        since_ms: u64,
        first: bool,
    },
    /// A relist was asked for.
    Relist { pod: String },
    /// A running call was told to end early.
    Cancel { pod: String },
    /// No container of the pod runs any more.
    Stopped { pod: String },
    /// The pod's status could not be read.
    StatusFailed { pod: String },
    /// The pod's slot is free; with `restart` it is created again.
    Gone { pod: String, restart: bool },
    /// Surplus dead instances are removed.
    TidyDead { pod: String, id: String },
    /// Housekeeping removes everything without an owner.
    Housekeeping,
}

impl RecordedPod {
    /// Takes the facts of `pod` that a dump tells.
    pub(in crate::agent) fn from_pod(pod: &Pod, is_static: bool) -> Self {
        let meta = &pod.metadata;
        Self {
            pod: cut_text(meta.uid.as_str()),
            name: cut_text(&format!("{}/{}", meta.namespace, meta.name)),
            is_static,
            deleted: meta.deletion_timestamp.is_some(),
            grace_s: meta
                .deletion_grace_period_seconds
                .or(pod.spec.termination_grace_period_seconds),
            restart: format!("{:?}", pod.spec.restart_policy),
            init: pod.spec.init_containers.len(),
            containers: pod.spec.containers.len(),
        }
    }
}

impl RecordedStep {
    /// Makes a step of a call of this pod.
    pub(in crate::agent) fn for_call(pod: &str, step: &str) -> Self {
        Self {
            pod: cut_text(pod),
            step: step.into(),
            ..Self::default()
        }
    }

    /// Makes a step with the phase that the pod's status has from now on.
    pub(in crate::agent) fn with_phase(pod: &Pod, step: &str, phase: PodPhase) -> Self {
        Self {
            phase: Some(phase.as_str().into()),
            ..Self::for_call(&pod.metadata.uid, step)
        }
    }

    /// Adds the container.
    pub(in crate::agent) fn with_container(mut self, container: &str) -> Self {
        self.container = Some(cut_text(container));
        self
    }

    /// Adds the earliest time of the start.
    pub(in crate::agent) fn with_start_time(mut self, until: Option<MonoTime>) -> Self {
        self.until_ms = until.map(|until| until.0);
        self
    }

    /// Adds the reason why nothing starts, if there is one.
    pub(in crate::agent) fn with_reason(mut self, reason: Option<&str>) -> Self {
        self.reason = reason.map(cut_text);
        self
    }
}

impl RecordedEvent {
    /// Makes the input for a record that could not be written.
    pub(in crate::agent) fn unrecorded_pod(pod: &str) -> Self {
        Self::Unrecorded { pod: cut_text(pod) }
    }

    /// Makes the input for a record that could not be read.
    pub(in crate::agent) fn unread_record(pod: &str, wanted: &LoadPurpose) -> Self {
        let wanted = match wanted {
            LoadPurpose::Create => "create",
            LoadPurpose::Show(..) => "show",
            LoadPurpose::Image => "image",
            LoadPurpose::Evict => "evict",
        };
        Self::Unread {
            pod: cut_text(pod),
            wanted: wanted.into(),
        }
    }

    /// Makes the input for a probe's result.
    pub(in crate::agent) fn probe_result(probed: &UnshownProbeResult) -> Self {
        Self::Probed {
            pod: cut_text(probed.uid.as_str()),
            id: cut_text(&probed.container_id),
            kind: probed.kind,
            result: probed.result,
        }
    }

    /// Makes the input for a pod as the API shows it.
    pub(in crate::agent) fn shown_pod(pod: &str, object: &Value) -> Self {
        let text = |value: &Value| cut_text(value.as_str().unwrap_or(""));
        Self::Shown {
            pod: cut_text(pod),
            version: text(&object["metadata"]["resourceVersion"]),
            phase: text(&object["status"]["phase"]),
        }
    }

    /// Makes the input for the end of a call.
    pub(in crate::agent) fn call_done(pod: &str, outcome: CallOutcome) -> Self {
        let (word, until) = match outcome {
            CallOutcome::Done => ("done", None),
            CallOutcome::Terminal => ("terminal", None),
            CallOutcome::Canceled => ("canceled", None),
            CallOutcome::Failed(RetryCause::Error) => ("failed", None),
            CallOutcome::Failed(RetryCause::NetworkNotReady) => ("networkNotReady", None),
            CallOutcome::Failed(RetryCause::BackOff(until)) => ("backOff", Some(until.0)),
        };
        Self::Done {
            pod: cut_text(pod),
            outcome: word.into(),
            until_ms: until,
        }
    }
}

impl RecordedEffect {
    /// Makes the output for the begin of a call.
    pub(in crate::agent) fn call_start(pod: &str, start: &CallStart) -> Self {
        let (call, grace_s) = match start.call {
            WorkerCall::Sync => ("sync", None),
            WorkerCall::Terminating { grace_s } => ("terminating", grace_s),
            WorkerCall::TerminatingRuntime => ("terminatingRuntime", None),
            WorkerCall::Terminated => ("terminated", None),
        };
        Self::Start {
            pod: cut_text(pod),
            call: call.into(),
            grace_s,
            kind: start.kind,
            since_ms: start.since.0,
            first: start.first,
        }
    }
}

/// Cuts a text to [`MAX_TEXT_BYTES`] bytes.
pub(in crate::agent) fn cut_text(text: &str) -> String {
    let mut end = text.len().min(MAX_TEXT_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}
