//! Interface through which the server's routes use the agent. The agent implements it; the server knows nothing else
//! of the agent.

use alloc::borrow::Cow;
use core::{future::Future, pin::Pin, time::Duration};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{http::Refusal, log_reader::LogOptions};
use crate::{
    api::{
        ContainerId, Event, Node, PodUid, SandboxId, WallTime, cri::ExecOutput,
        health::AgentHealth, link::LinkBytes, stats::StatsDetail,
    },
    image::{ImageProgress, StoreVerification},
    runtime::{AttachOptions, ExecOptions, PortConnector, RuntimeCall, SessionStart, StreamRoute},
    stream::remote_command::CREATION_TIMEOUT,
    sys::lane::Lane,
};

/// An answer that takes time.
pub type BackendReply<'a, T> = Pin<Box<dyn Future<Output = Result<T, Refusal>> + 'a>>;

/// Text that is made while it is read: pieces of bounded size, none empty.
pub type TextPieces = Box<dyn Iterator<Item = String>>;

/// Pages of metrics and statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricsEndpoint {
    /// `/metrics`.
    Own,
    /// `/metrics/probes`.
    Probes,
    /// `/metrics/slis`.
    Slis,
    /// `/metrics/resource`.
    Resource,
    /// `/metrics/cadvisor`.
    Cadvisor,
    /// `/stats/summary`.
    Summary(StatsDetail),
    /// `/stats/disk`.
    Disk,
}

/// A log to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogTarget {
    /// Live log file; empty: the provider that runs the instance keeps the log (see [`ServerBackend::open_provided_log`]).
    pub path: PathBuf,
    /// File in which its shim may hold the end of the log in memory.
    pub memory: PathBuf,
    /// The instance that writes or wrote it.
    pub id: ContainerId,
}

/// Text that comes from somewhere else: the next piece, `None` at its end.
pub trait IncomingText {
    /// Waits for it.
    fn next_piece(&mut self) -> BackendReply<'_, Option<Vec<u8>>>;
}

/// A pod that a request names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodName<'a> {
    /// Pod namespace.
    pub namespace: &'a str,
    /// Pod name.
    pub name: &'a str,
    /// UID, if the request has one: no other pod of that name is meant.
    pub uid: Option<&'a str>,
}

/// A container that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningContainer {
    /// Id of the container.
    pub id: ContainerId,
    /// Set if the container has a terminal.
    pub tty: bool,
    /// Set if the standard input of the container ends with the first client's.
    pub stdin_once: bool,
}

/// Start of the agent, and the time since then.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Uptime {
    /// Start by the clock of that moment, which may have been wrong.
    pub since: WallTime,
    /// Time since the start.
    pub up: Duration,
    /// Version of the kubelet, as the Node object has it.
    pub kubelet_version: String,
}

/// Sources of the server's streams: commands, containers and ports of pods.
pub trait StreamingBackend {
    /// The running instance of a container. Container empty: the default one.
    fn running_container<'a>(
        &'a self,
        pod: PodName<'a>,
        container: &'a str,
    ) -> BackendReply<'a, RunningContainer>;
    /// The sandbox of a pod that runs.
    fn ready_sandbox<'a>(&'a self, pod: PodName<'a>) -> BackendReply<'a, SandboxId>;
    /// A command in a container.
    fn open_exec<'a>(
        &'a self,
        id: &'a ContainerId,
        options: &'a ExecOptions,
    ) -> RuntimeCall<'a, StreamRoute<SessionStart<'a>>>;
    /// Runs a command to its end; of each of its outputs at most `limit` bytes are kept.
    fn run_command<'a>(
        &'a self,
        id: &'a ContainerId,
        command: &'a [String],
        limit: usize,
    ) -> RuntimeCall<'a, ExecOutput>;
    /// A container's streams.
    fn open_attach<'a>(
        &'a self,
        id: &'a ContainerId,
        options: AttachOptions,
    ) -> RuntimeCall<'a, StreamRoute<SessionStart<'a>>>;
    /// The ports of a pod; those that the client names at once.
    fn open_port_forward<'a>(
        &'a self,
        id: &'a SandboxId,
        ports: &'a [u16],
    ) -> RuntimeCall<'a, StreamRoute<PortConnector<'a>>>;
    /// Returns the time after which a connection is closed on which no byte came or went.
    fn idle_timeout(&self) -> Duration;
    /// Returns the number of bytes after which a session now ends whose client is on another machine; `None`: no limit.
    fn session_limit_bytes(&self) -> Option<u64> {
        None
    }
    /// Returns the time in which a client of exec and attach has to make its streams (STREAM-06).
    fn creation_timeout(&self) -> Duration {
        CREATION_TIMEOUT
    }
    /// Frees the memory of a connection that has ended.
    fn release_stream_memory(&self);
}

/// A health check of the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentCheck {
    /// Name of the check in a kubelet.
    pub name: &'static str,
    /// Fault that the check found, if any.
    pub trouble: Option<String>,
}

/// A pod with containers that run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunningPod {
    /// Name of the pod.
    pub name: String,
    /// Namespace of the pod.
    pub namespace: String,
    /// UID of the pod.
    pub uid: PodUid,
    /// Names of these containers, and their images.
    pub containers: Vec<(String, String)>,
}

/// Traffic over the link, its budget and its cost.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LinkReport {
    /// Bytes of the agent.
    pub bytes: LinkBytes,
    /// State of the day's budget, for people; `None`: there is no budget.
    pub budget: Option<String>,
    /// Bytes cost money now.
    #[serde(default, rename = "metered")]
    pub is_metered: bool,
    /// Cost of the bytes now, and the interface that decides it, for people; `None`: bytes cost nothing on any
    /// interface.
    #[serde(default)]
    pub cost: Option<String>,
}

/// Resources that the node is short of, and the pods that would be evicted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PressureReport {
    /// Thresholds that are met.
    pub short: Vec<PressureSignalReport>,
    /// Eviction signal by which the pods are ordered; empty if the order was not asked for.
    pub by: String,
    /// Pods that may be evicted, the first one first.
    pub order: Vec<EvictionCandidateReport>,
}

/// A unit of a device that is given to pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceReport {
    /// Name of the resource that pods ask for.
    pub resource: String,
    /// Lasting id of the unit; empty: a device plugin offers the resource, and has no unit of it.
    pub id: String,
    /// Device nodes of the unit, with commas between.
    pub nodes: String,
    /// Set while the unit is present and healthy.
    pub healthy: bool,
    /// Set if a device plugin offers the unit.
    #[serde(default)]
    pub plugin: bool,
    /// Number of shares: the unit may be held so many times at once.
    pub shares: u32,
    /// Number of shares in use, at most: containers that run one after the other count once.
    #[serde(default)]
    pub used: u32,
    /// Containers that hold it: `namespace/pod/container`.
    pub holders: Vec<String>,
}

/// A threshold that is met.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PressureSignalReport {
    /// Eviction signal.
    pub signal: String,
    /// Amount that is left.
    pub available: String,
    /// Amount that must be left.
    pub limit: String,
    /// Time from which on the threshold has been met.
    pub since: WallTime,
    /// Set for a soft threshold: it may be met for a grace period.
    pub soft: bool,
}

/// A pod that may be evicted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EvictionCandidateReport {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
    /// Priority of the pod.
    pub priority: i32,
    /// Amount that the pod uses; `None`: unknown.
    pub used: Option<String>,
    /// Request of the pod.
    pub request: String,
}

/// An answer with several objects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectList<T> {
    /// `v1`.
    pub api_version: Cow<'static, str>,
    /// Kind of the objects with `ObjectList` behind it.
    pub kind: Cow<'static, str>,
    /// Empty list metadata, as the API has it here.
    pub metadata: ListMeta,
    /// The objects.
    pub items: Vec<T>,
}

/// `metadata` of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ListMeta {
    /// Empty: lists of the agent have no version.
    pub resource_version: String,
}

/// A line of an answer that takes long: how far it is; the last one, how it ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ProgressLine {
    /// Progress of the work, which goes on.
    Step(ImageProgress),
    /// References of the imported images, or the id of the pulled one.
    Imported(Vec<String>),
    /// Result of a check of all images.
    Verified(StoreVerification),
    /// The work failed.
    Failed {
        /// An HTTP status.
        status: u16,
        /// Reason, for people.
        error: String,
    },
}

/// The agent, as the server sees it.
pub trait ServerBackend: StreamingBackend {
    /// The lane on which files are read.
    fn disk_lane(&self) -> &Lane;
    /// Pods to show, sorted by namespace and name; all of them, or those of one namespace.
    fn pod_uids<'a>(&'a self, namespace: Option<&'a str>) -> BackendReply<'a, Vec<PodUid>>;
    /// Returns a pod as a Kubernetes object; `None`: it has gone. JSON, for that keeps fields that are not modelled.
    fn pod_object<'a>(&'a self, uid: &'a PodUid) -> BackendReply<'a, Option<Value>>;
    /// Pods with containers that run, as the runtime has them; sorted by uid.
    fn running_pods(&self) -> BackendReply<'_, Vec<RunningPod>>;
    /// Names of the containers of a pod's spec, of all kinds.
    fn container_names<'a>(
        &'a self,
        namespace: &'a str,
        pod: &'a str,
    ) -> BackendReply<'a, Vec<String>>;
    /// Makes a checkpoint of a container that runs; returns the path of the archive.
    fn checkpoint_container<'a>(
        &'a self,
        pod: PodName<'a>,
        container: &'a str,
        timeout: Duration,
    ) -> RuntimeCall<'a, String>;
    /// The configuration in force, as the JSON of a `KubeletConfiguration`.
    fn configuration(&self) -> &str;
    /// Runs the checks of `/healthz`.
    fn run_health_checks(&self) -> Vec<AgentCheck>;
    /// Returns the start of the agent, and the time since then.
    fn uptime(&self) -> Uptime;
    /// Returns the health of the agent.
    fn agent_health(&self) -> BackendReply<'_, AgentHealth>;
    /// Kept Event objects, oldest first; all of them, or those of pods of one namespace. At most the newest `limit`.
    fn events(&self, namespace: Option<&str>, limit: usize) -> Vec<Event>;
    /// ConfigMap objects beside the manifests, sorted by namespace and name; all of them, or those of one namespace.
    fn config_maps(&self, namespace: Option<&str>) -> BackendReply<'_, Vec<Value>>;
    /// Secret objects, like ConfigMaps. They carry the sizes of their values (`dataBytes`), never these.
    fn secrets(&self, namespace: Option<&str>) -> BackendReply<'_, Vec<Value>>;
    /// Returns the last events and effects of the loop, one JSON object a line.
    fn dump_recorded_events(&self) -> BackendReply<'_, String>;
    /// Figures of the agent, or of what runs.
    fn metrics_page(&self, which: MetricsEndpoint) -> BackendReply<'_, TextPieces>;
    /// Returns the traffic over the link.
    fn link_report(&self) -> LinkReport;
    /// The Node object.
    fn node_object(&self) -> BackendReply<'_, Node>;
    /// Returns the resources that the node is short of; with `order` also the pods that would be evicted.
    fn pressure_report(&self, order: bool) -> BackendReply<'_, PressureReport>;
    /// Finds the file of a container's log. Container empty: the default one.
    fn find_log_target<'a>(
        &'a self,
        namespace: &'a str,
        pod: &'a str,
        container: &'a str,
        previous: bool,
    ) -> BackendReply<'a, LogTarget>;
    /// Reads the log of an instance that has no file here, from the provider that runs it.
    fn open_provided_log<'a>(
        &'a self,
        id: &'a ContainerId,
        options: &'a LogOptions,
    ) -> BackendReply<'a, Box<dyn IncomingText>> {
        let _ = (id, options);
        Box::pin(async { Err(Refusal::not_found("the log has no file")) })
    }
    /// Returns true if an instance still runs, or may do so: a followed log goes on.
    fn is_instance_running<'a>(&'a self, id: &'a ContainerId) -> BackendReply<'a, bool>;
    /// Units of the devices that are given to pods.
    fn device_reports(&self) -> BackendReply<'_, Vec<DeviceReport>>;
    /// Lists all images.
    fn list_images(&self) -> BackendReply<'_, Vec<crate::api::cri::StoredImage>>;
    /// Imports an archive; returns the references it brought. `name` (may be empty) names an image that has none.
    /// `steps` hears how far it is, as far as it has room; closed by its reader it stops the import.
    fn import_image(
        &self,
        path: PathBuf,
        name: String,
        steps: Option<smol::channel::Sender<ImageProgress>>,
    ) -> BackendReply<'_, Vec<String>>;
    /// Pulls an image with the credentials of the node, whatever is in the store; `now`: whatever the link has left. Returns
    /// its id.
    fn pull_image<'a>(&'a self, reference: &'a str, now: bool) -> BackendReply<'a, String>;
    /// Returns the progress of an image's pull; `None` if no pull of it is under way.
    fn pull_progress(&self, reference: &str) -> Option<ImageProgress>;
    /// Describes an image by reference or id; `layers`: refused if its layers are not in a store of this agent.
    fn inspect_image<'a>(&'a self, reference: &'a str, layers: bool) -> BackendReply<'a, Value>;
    /// Gives an image a further name; returns it in full.
    fn tag_image<'a>(&'a self, reference: &'a str, name: &'a str) -> BackendReply<'a, String>;
    /// Removes an image by reference or id, or one of its names. Returns a line for each name that is gone.
    fn remove_image<'a>(&'a self, reference: &'a str) -> BackendReply<'a, Vec<String>>;
    /// Removes the images that no container uses; returns their names and the bytes that they held.
    fn prune_images(&self) -> BackendReply<'_, (Vec<String>, u64)>;
    /// Checks every image; with `repair` damaged ones that are not in use are removed. `steps` hears the progress;
    /// closed by its reader it ends the check.
    fn verify_images(
        &self,
        repair: bool,
        steps: smol::channel::Sender<ImageProgress>,
    ) -> BackendReply<'_, StoreVerification>;
    /// Ends a pod of this machine's own manifests, and starts it anew after that.
    fn restart_pod<'a>(&'a self, namespace: &'a str, pod: &'a str) -> BackendReply<'a, ()>;
    /// Ends the agent; with `all` every pod first.
    fn stop_agent(&self, all: bool) -> BackendReply<'_, ()>;
    /// The machine goes down: ends the pods in their order, or all at once and then the agent, as it is configured.
    fn shut_down_machine(&self) -> BackendReply<'_, ()>;
}

/// Reads the options of a log request.
pub(super) fn parse_log_options(
    request: &super::http::HttpRequest,
    now: WallTime,
) -> Result<LogOptions, Refusal> {
    let since_seconds: Option<u32> = request.query_number("sinceSeconds")?;
    let since_time = match request.query_param("sinceTime") {
        None | Some("") => None,
        Some(text) => Some(WallTime::parse(text).ok_or_else(|| {
            Refusal::bad_request(format!("sinceTime: {text:?} is not an RFC 3339 time"))
        })?),
    };
    let by_seconds =
        since_seconds.map(|s| WallTime(now.0.saturating_sub(i64::from(s) * 1_000_000_000)));
    let stream = match request.query_param("stream") {
        None | Some("" | "All") => None,
        Some("Stdout") => Some("stdout".to_owned()),
        Some("Stderr") => Some("stderr".to_owned()),
        Some(other) => {
            return Err(Refusal::bad_request(format!(
                "stream: {other:?} is not All, Stdout or Stderr"
            )));
        }
    };
    Ok(LogOptions {
        follow: request.query_flag("follow"),
        tail: request.query_number("tailLines")?,
        // The later bound wins (LOG-03).
        since: since_time.max(by_seconds),
        timestamps: request.query_flag("timestamps"),
        limit_bytes: request.query_number("limitBytes")?,
        stream,
    })
}
