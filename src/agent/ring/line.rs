//! One line of a dump: its form, and how it is made of what the loop knows.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    agent::{core::Purpose, probes::Probed, views::ApiAnswer},
    api::{Mono, Pod, pod_status::Phase},
    logic::{
        pod_table::Start,
        pod_worker::{Call, Outcome, UpdateKind},
        probe::{ProbeKind, ProbeResult},
        work_queue::Retry,
    },
};

/// Bytes of one text in a line; names and ids are shorter.
pub(super) const MAX_TEXT_BYTES: usize = 320;

/// Another line of a dump; exactly one of the two is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::agent) struct Line {
    /// Milliseconds since the machine was switched on.
    pub(in crate::agent) t: u64,
    /// What the loop heard.
    #[serde(rename = "in", default, skip_serializing_if = "Option::is_none")]
    pub(in crate::agent) heard: Option<Heard>,
    /// What it made be done.
    #[serde(rename = "out", default, skip_serializing_if = "Option::is_none")]
    pub(in crate::agent) done: Option<Made>,
}

/// An input of the loop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::agent) enum Heard {
    /// A pod is new in its source.
    Add(Seen),
    /// It changed, deletion included.
    Update(Seen),
    /// Only its status differs.
    Reconcile(Seen),
    /// It is no longer in its source.
    Remove { pod: String },
    /// Somebody wants it to end and start anew.
    Restart { pod: String },
    /// ConfigMaps or Secrets changed.
    Objects,
    /// Images were imported.
    Images,
    /// The runtime was found changed.
    Pleg {
        pod: String,
        kind: String,
        id: String,
    },
    /// A record of a pod could not be written.
    Unrecorded { pod: String },
    /// It could not be read.
    Unread {
        pod: String,
        /// `create`, `show`, `image`, `evict`: for what.
        wanted: String,
    },
    /// Whether records wait for a disk that cannot be written.
    RecordsWait(bool),
    /// The runtime was listed, for the first time or after that had failed for too long.
    #[serde(rename_all = "camelCase")]
    Listed {
        /// Age of the list before.
        after_ms: Option<u64>,
    },
    /// Whether the runtime and its network are ready, as it says for the first time, after a long silence, or otherwise
    /// than before.
    Conditions { runtime: bool, network: bool },
    /// A call of a worker came to something.
    Step(Stepped),
    /// A probe's result is another.
    Probed {
        pod: String,
        /// Of the instance, as the API names it.
        id: String,
        kind: ProbeKind,
        result: ProbeResult,
    },
    /// The apiserver answers otherwise than before.
    Api(ApiAnswer),
    /// What the API shows of a pod, after a write.
    Shown {
        pod: String,
        /// Of the object.
        version: String,
        phase: String,
    },
    /// Pods are synced, for something else that they need is another.
    Resync(Vec<String>),
    /// A call of a worker ended; the pod is empty if its slot is another's by now.
    #[serde(rename_all = "camelCase")]
    Done {
        pod: String,
        /// `done`, `terminal`, `canceled`, `failed`, `networkNotReady`, `backOff`.
        outcome: String,
        /// When the back-off ends.
        until_ms: Option<u64>,
    },
    /// A local command: end the agent, with `all` every pod first.
    Stop { all: bool },
    /// A local command, or logind: the machine goes down.
    Shutdown,
    /// It does not after all.
    ShutdownCancelled,
    /// A signal.
    Terminate,
}

/// What a call of a worker came to. The pod is empty if its slot is another's by now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::agent) struct Stepped {
    pub(in crate::agent) pod: String,
    /// `begun`, `outcomeKept`, `limited`, `unlimited`, `probed`, `sandboxUp`, `restarts`, `started`, `stopping`, `killed`, `stopped`,
    /// `cleanedUp`.
    pub(in crate::agent) step: String,
    /// Of `begun`, `stopping`, `stopped`: what the status says from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::agent) phase: Option<String>,
    /// Of `restarts`, `started`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::agent) container: Option<String>,
    /// Of `restarts`: not before. Without it: at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::agent) until_ms: Option<u64>,
    /// Of `begun`, `runtime`, `name` or `network`: for which nothing may start. Of `started`: why it was not, as its status says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::agent) reason: Option<String>,
}

/// A pod as its source has it, as far as the loop decides by it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::agent) struct Seen {
    pub(in crate::agent) pod: String,
    /// `namespace/name`.
    pub(in crate::agent) name: String,
    #[serde(rename = "static")]
    pub(in crate::agent) is_static: bool,
    /// Its end is announced.
    pub(in crate::agent) deleted: bool,
    /// Of the announcement, else of the spec.
    pub(in crate::agent) grace_s: Option<i64>,
    /// Restart policy.
    pub(in crate::agent) restart: String,
    /// Init containers.
    pub(in crate::agent) init: usize,
    /// Containers.
    pub(in crate::agent) containers: usize,
}

/// An output of the loop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::agent) enum Made {
    /// A call of a worker began.
    #[serde(rename_all = "camelCase")]
    Start {
        pod: String,
        /// `sync`, `terminating`, `terminatingRuntime`, `terminated`.
        call: String,
        /// Of `terminating`, if one was said.
        grace_s: Option<u32>,
        /// The update that it serves.
        kind: UpdateKind,
        since_ms: u64,
        first: bool,
    },
    /// A relist was asked for.
    Relist { pod: String },
    /// A running call was told to end early.
    Cancel { pod: String },
    /// Nothing of the pod runs any more.
    Stopped { pod: String },
    /// The pod's status could not be read.
    StatusFailed { pod: String },
    /// The pod's slot is free; with `restart` it is created again.
    Gone { pod: String, restart: bool },
    /// Surplus dead instances are removed.
    TidyDead { pod: String, id: String },
    /// Housekeeping removes what nobody owns.
    Housekeeping,
}

impl Seen {
    /// What is told of `pod`.
    pub(in crate::agent) fn of(pod: &Pod, is_static: bool) -> Self {
        let meta = &pod.metadata;
        Self {
            pod: cut(meta.uid.as_str()),
            name: cut(&format!("{}/{}", meta.namespace, meta.name)),
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

impl Stepped {
    /// A call of that pod came to that.
    pub(in crate::agent) fn of(pod: &str, step: &str) -> Self {
        Self {
            pod: cut(pod),
            step: step.into(),
            ..Self::default()
        }
    }

    /// The same, with what the pod's status says from now on.
    pub(in crate::agent) fn to(pod: &Pod, step: &str, phase: Phase) -> Self {
        Self {
            phase: Some(phase.as_str().into()),
            ..Self::of(&pod.metadata.uid, step)
        }
    }

    /// About a container.
    pub(in crate::agent) fn about(mut self, container: &str) -> Self {
        self.container = Some(cut(container));
        self
    }

    /// Not before.
    pub(in crate::agent) fn until(mut self, until: Option<Mono>) -> Self {
        self.until_ms = until.map(|until| until.0);
        self
    }

    /// Why not.
    pub(in crate::agent) fn because(mut self, reason: Option<&str>) -> Self {
        self.reason = reason.map(cut);
        self
    }
}

impl Heard {
    /// The record of a pod could not be written.
    pub(in crate::agent) fn unrecorded(pod: &str) -> Self {
        Self::Unrecorded { pod: cut(pod) }
    }

    /// The record of a pod could not be read.
    pub(in crate::agent) fn unread(pod: &str, wanted: &Purpose) -> Self {
        let wanted = match wanted {
            Purpose::Create => "create",
            Purpose::Show(..) => "show",
            Purpose::Image => "image",
            Purpose::Evict => "evict",
        };
        Self::Unread {
            pod: cut(pod),
            wanted: wanted.into(),
        }
    }

    /// A probe's result.
    pub(in crate::agent) fn probed(probed: &Probed) -> Self {
        Self::Probed {
            pod: cut(probed.uid.as_str()),
            id: cut(&probed.container_id),
            kind: probed.kind,
            result: probed.result,
        }
    }

    /// What the API shows of a pod.
    pub(in crate::agent) fn shown(pod: &str, object: &Value) -> Self {
        let text = |value: &Value| cut(value.as_str().unwrap_or(""));
        Self::Shown {
            pod: cut(pod),
            version: text(&object["metadata"]["resourceVersion"]),
            phase: text(&object["status"]["phase"]),
        }
    }

    /// The end of a call.
    pub(in crate::agent) fn done(pod: &str, outcome: Outcome) -> Self {
        let (word, until) = match outcome {
            Outcome::Done => ("done", None),
            Outcome::Terminal => ("terminal", None),
            Outcome::Canceled => ("canceled", None),
            Outcome::Failed(Retry::Error) => ("failed", None),
            Outcome::Failed(Retry::NetworkNotReady) => ("networkNotReady", None),
            Outcome::Failed(Retry::BackOff(until)) => ("backOff", Some(until.0)),
        };
        Self::Done {
            pod: cut(pod),
            outcome: word.into(),
            until_ms: until,
        }
    }
}

impl Made {
    /// The begin of a call.
    pub(in crate::agent) fn start(pod: &str, start: &Start) -> Self {
        let (call, grace_s) = match start.call {
            Call::Sync => ("sync", None),
            Call::Terminating { grace_s } => ("terminating", grace_s),
            Call::TerminatingRuntime => ("terminatingRuntime", None),
            Call::Terminated => ("terminated", None),
        };
        Self::Start {
            pod: cut(pod),
            call: call.into(),
            grace_s,
            kind: start.kind,
            since_ms: start.since.0,
            first: start.first,
        }
    }
}

/// The head of a text.
pub(in crate::agent) fn cut(text: &str) -> String {
    let mut end = text.len().min(MAX_TEXT_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}
