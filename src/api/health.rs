//! Health of an agent, as it reports it at `/health`, and as checks judge it.

use alloc::{borrow::Cow, collections::BTreeMap};

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Health of the agent, for `picolet check`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentHealth {
    /// Version of the program.
    pub version: Cow<'static, str>,
    /// Process id of the agent.
    pub pid: u32,
    /// Time since the last successful relist began.
    pub relist_age_ms: Option<u64>,
    /// Time since the manifests were last read.
    pub manifests_age_ms: Option<u64>,
    /// Interval at which the manifests are to be read.
    pub manifests_interval_ms: u64,
    /// Reason why no pod is handled, if so.
    pub down: Option<String>,
    /// Reason why pods get no network, if so.
    pub network_down: Option<String>,
    /// Configured pods.
    pub pods: usize,
    /// Probes of the pods.
    pub probes: ProbesHealth,
    /// The apiserver; `None`: the node stands alone.
    pub apiserver: Option<ApiserverHealth>,
    /// States of the parts, by their names.
    #[serde(default)]
    pub parts: BTreeMap<String, Value>,
    /// The budget of the link; `None`: there is none.
    pub link: Option<LinkHealth>,
}

/// State of the link's budget.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LinkHealth {
    /// State of the budget, for people.
    pub says: String,
    /// Set while images wait.
    pub waits: bool,
}

/// Counts of the probes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbesHealth {
    /// Probes there are.
    pub count: usize,
    /// Answers there were.
    pub ended: u64,
    /// Answers that came later than the period of their probe.
    pub late: u64,
    /// Commands that run.
    pub commands: usize,
    /// Connections that are open.
    pub connections: usize,
}

/// State of the connection to the apiserver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApiserverHealth {
    /// Time since the apiserver last answered.
    pub answered_age_ms: Option<u64>,
    /// Reason why the apiserver does not answer, if so.
    pub trouble: Option<String>,
    /// Error of the node's clock, for people, if it is wrong.
    pub clock: Option<String>,
    /// Fault of the node's certificate, if any.
    pub certificate: Option<String>,
}
