//! What the server's routes ask of the agent. The agent implements it; the server knows nothing else of the agent.

use alloc::borrow::Cow;
use core::{future::Future, pin::Pin, time::Duration};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{http::Refusal, log_reader::LogOptions};
use crate::{
    api::{
        ContainerId, Event, Node, PodUid, SandboxId, Wall, cri::ExecOutput, link::LinkBytes,
        stats::Detail,
    },
    image::{Progress, Verification},
    runtime::{AttachOptions, Call, Connect, ExecOptions, Start, Stream},
    stream::remote_command::CREATION_TIMEOUT,
    sys::lane::Lane,
};

/// An answer that takes time.
pub type Reply<'a, T> = Pin<Box<dyn Future<Output = Result<T, Refusal>> + 'a>>;

/// Text that is made while it is read: pieces of bounded size, none empty.
pub type Pieces = Box<dyn Iterator<Item = String>>;

/// Which figures are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figures {
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
    Summary(Detail),
    /// `/stats/disk`.
    Disk,
}

/// A log to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogTarget {
    /// The live log file; empty: whoever runs the instance keeps it (see [`Backend::provided_log`]).
    pub path: PathBuf,
    /// Where its shim may hold the end of it in memory.
    pub memory: PathBuf,
    /// The instance that writes or wrote it.
    pub id: ContainerId,
}

/// Text that comes from somewhere else: the next piece, `None` at its end.
pub trait Incoming {
    /// Waits for it.
    fn next(&mut self) -> Reply<'_, Option<Vec<u8>>>;
}

/// A pod that a request names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodName<'a> {
    /// Pod namespace.
    pub namespace: &'a str,
    /// Pod name.
    pub name: &'a str,
    /// Its UID, if the request has one: no other pod of that name is meant.
    pub uid: Option<&'a str>,
}

/// A container that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running {
    /// Its id.
    pub id: ContainerId,
    /// It has a terminal.
    pub tty: bool,
    /// Its standard input ends with the first client's.
    pub stdin_once: bool,
}

/// Since when the agent runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Uptime {
    /// By the clock of that moment, which may have been wrong.
    pub since: Wall,
    /// How long.
    pub up: Duration,
    /// What the Node says.
    pub kubelet_version: String,
}

/// What streams lead to.
pub trait Streaming {
    /// The running instance of a container. Container empty: the default one.
    fn running<'a>(&'a self, pod: PodName<'a>, container: &'a str) -> Reply<'a, Running>;
    /// The sandbox of a pod that runs.
    fn ready_sandbox<'a>(&'a self, pod: PodName<'a>) -> Reply<'a, SandboxId>;
    /// A command in a container.
    fn open_exec<'a>(
        &'a self,
        id: &'a ContainerId,
        options: &'a ExecOptions,
    ) -> Call<'a, Stream<Start<'a>>>;
    /// Runs a command to its end; of each of its outputs at most `limit` bytes are kept.
    fn run<'a>(
        &'a self,
        id: &'a ContainerId,
        command: &'a [String],
        limit: usize,
    ) -> Call<'a, ExecOutput>;
    /// A container's streams.
    fn open_attach<'a>(
        &'a self,
        id: &'a ContainerId,
        options: AttachOptions,
    ) -> Call<'a, Stream<Start<'a>>>;
    /// The ports of a pod; those that the client names at once.
    fn open_port_forward<'a>(
        &'a self,
        id: &'a SandboxId,
        ports: &'a [u16],
    ) -> Call<'a, Stream<Connect<'a>>>;
    /// How long nothing may come or go on a connection before it is closed.
    fn idle_timeout(&self) -> Duration;
    /// After how many bytes a session ends now whose client is not on this machine; `None`: it does not.
    fn stream_bytes(&self) -> Option<u64> {
        None
    }
    /// How long a client of exec and attach may take to make its streams (STREAM-06).
    fn creation_timeout(&self) -> Duration {
        CREATION_TIMEOUT
    }
    /// A connection has ended: what it used can go back to the system.
    fn stream_ended(&self);
}

/// Something that is looked at to know whether the agent is well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// As a kubelet calls it.
    pub name: &'static str,
    /// What is wrong, if anything is.
    pub trouble: Option<String>,
}

/// A pod with containers that run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunningPod {
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Its UID.
    pub uid: PodUid,
    /// Names of these containers, and their images.
    pub containers: Vec<(String, String)>,
}

/// How the agent is, for `picolet check`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Health {
    /// Version of the program.
    pub version: Cow<'static, str>,
    /// Its process.
    pub pid: u32,
    /// Since the last successful relist began.
    pub relist_age_ms: Option<u64>,
    /// Since the manifests were last read.
    pub manifests_age_ms: Option<u64>,
    /// How often they are to be.
    pub manifests_interval_ms: u64,
    /// Why no pod is handled, if so.
    pub down: Option<String>,
    /// Why pods get no network, if so.
    pub network_down: Option<String>,
    /// Configured pods.
    pub pods: usize,
    /// Its probes.
    pub probes: ProbesHealth,
    /// The apiserver; `None`: the node stands alone.
    pub apiserver: Option<ApiserverHealth>,
    /// The tunnel; `None`: there is none.
    pub tunnel: Option<TunnelHealth>,
    /// The budget of the link; `None`: there is none.
    pub link: Option<LinkHealth>,
}

/// How the budget of the link stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LinkHealth {
    /// For people.
    pub says: String,
    /// Images wait.
    pub waits: bool,
}

/// What went over the link.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LinkShown {
    /// Bytes of the agent.
    pub bytes: LinkBytes,
    /// How the budget of the day stands, for people; `None`: there is none.
    pub budget: Option<String>,
    /// Bytes cost money now.
    #[serde(default, rename = "metered")]
    pub is_metered: bool,
    /// The same for people, and by what; `None`: they cost nothing, whatever the way.
    #[serde(default)]
    pub cost: Option<String>,
}

/// What the node is short of, and who would go for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PressureShown {
    /// Thresholds that are met.
    pub short: Vec<ShortShown>,
    /// What pods are ordered by; empty if nobody asked for the order.
    pub by: String,
    /// Pods that may be evicted, the first one first.
    pub order: Vec<NextShown>,
}

/// A unit of a device that is given to pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceShown {
    /// What pods ask for.
    pub resource: String,
    /// Its lasting id; empty: a device plugin offers the resource, and has no unit of it.
    pub id: String,
    /// Its nodes, with commas between.
    pub nodes: String,
    /// It is here.
    pub healthy: bool,
    /// It is a device plugin's.
    #[serde(default)]
    pub plugin: bool,
    /// How often it may be held at once.
    pub shares: u32,
    /// How often it is, at most: containers that run one after the other count once.
    #[serde(default)]
    pub used: u32,
    /// Containers that hold it: `namespace/pod/container`.
    pub holders: Vec<String>,
}

/// A threshold that is met.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ShortShown {
    /// Of what.
    pub signal: String,
    /// What is left.
    pub available: String,
    /// What must be.
    pub limit: String,
    /// Since when.
    pub since: Wall,
    /// It may be met for a grace period.
    pub soft: bool,
}

/// A pod that may be evicted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NextShown {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its priority.
    pub priority: i32,
    /// What it takes; `None`: nobody knows.
    pub used: Option<String>,
    /// What it asked for.
    pub request: String,
}

/// What is counted of probes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbesHealth {
    /// Probes there are.
    pub count: usize,
    /// Answers there were.
    pub ended: u64,
    /// Of them those that came later than their period.
    pub late: u64,
    /// Commands that run.
    pub commands: usize,
    /// Connections that are open.
    pub connections: usize,
}

/// How it stands with the tunnel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TunnelHealth {
    /// Servers with which there are streams.
    pub streams: usize,
    /// Servers that there are, as they say.
    pub servers: usize,
    /// Dials that were meant for others.
    pub misrouted: u64,
    /// Why there is no stream, or the last one has ended.
    pub trouble: Option<String>,
}

/// How it stands with the apiserver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApiserverHealth {
    /// Since it last answered.
    pub answered_age_ms: Option<u64>,
    /// Why it does not answer, if so.
    pub trouble: Option<String>,
    /// How far our clock is off, if it is.
    pub clock: Option<String>,
    /// What is wrong with our certificate, if anything is.
    pub certificate: Option<String>,
}

/// An answer with several objects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct List<T> {
    /// `v1`.
    pub api_version: Cow<'static, str>,
    /// The objects' with `List` behind it.
    pub kind: Cow<'static, str>,
    /// What the API has here, all of it empty.
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
pub enum Line {
    /// It goes on.
    Step(Progress),
    /// References, or the id, of what was imported or pulled.
    Imported(Vec<String>),
    /// What a check of all images came to.
    Verified(Verification),
    /// It failed.
    Failed {
        /// An HTTP status.
        status: u16,
        /// Why, for people.
        error: String,
    },
}

/// The agent, as the server sees it.
pub trait Backend: Streaming {
    /// The lane on which files are read.
    fn disk_lane(&self) -> &Lane;
    /// Pods to show, sorted by namespace and name; all of them, or those of one namespace.
    fn pods<'a>(&'a self, namespace: Option<&'a str>) -> Reply<'a, Vec<PodUid>>;
    /// One of them as a Kubernetes object; `None`: it has gone. JSON, for it keeps what is not modelled.
    fn pod<'a>(&'a self, uid: &'a PodUid) -> Reply<'a, Option<serde_json::Value>>;
    /// Pods with containers that run, as the runtime has them; sorted by uid.
    fn running_pods(&self) -> Reply<'_, Vec<RunningPod>>;
    /// Names of the containers of a pod's spec, of all kinds.
    fn container_names<'a>(&'a self, namespace: &'a str, pod: &'a str) -> Reply<'a, Vec<String>>;
    /// The configuration in force, as the JSON of a `KubeletConfiguration`.
    fn configuration(&self) -> &str;
    /// What `/healthz` looks at.
    fn checks(&self) -> Vec<Check>;
    /// Since when the agent runs.
    fn uptime(&self) -> Uptime;
    /// How the agent is.
    fn health(&self) -> Reply<'_, Health>;
    /// Kept Event objects, oldest first; all of them, or those of pods of one namespace. At most the newest `limit`.
    fn events(&self, namespace: Option<&str>, limit: usize) -> Vec<Event>;
    /// ConfigMap objects beside the manifests, sorted by namespace and name; all of them, or those of one namespace.
    fn config_maps(&self, namespace: Option<&str>) -> Reply<'_, Vec<serde_json::Value>>;
    /// Secret objects, like ConfigMaps. They carry the sizes of their values (`dataBytes`), never these.
    fn secrets(&self, namespace: Option<&str>) -> Reply<'_, Vec<serde_json::Value>>;
    /// What the loop lately heard and did, one JSON object a line.
    fn dump(&self) -> Reply<'_, String>;
    /// Figures of the agent, or of what runs.
    fn figures(&self, which: Figures) -> Reply<'_, Pieces>;
    /// What went over the link.
    fn link(&self) -> LinkShown;
    /// The Node object.
    fn node(&self) -> Reply<'_, Node>;
    /// What the node is short of; with `order` also who would go for it.
    fn pressure(&self, order: bool) -> Reply<'_, PressureShown>;
    /// Which file to read for a container's log. Container empty: the default one.
    fn log_target<'a>(
        &'a self,
        namespace: &'a str,
        pod: &'a str,
        container: &'a str,
        previous: bool,
    ) -> Reply<'a, LogTarget>;
    /// The log of an instance that has no file here, from whoever runs it.
    fn provided_log<'a>(
        &'a self,
        id: &'a ContainerId,
        options: &'a LogOptions,
    ) -> Reply<'a, Box<dyn Incoming>> {
        let _ = (id, options);
        Box::pin(async { Err(Refusal::not_found("the log has no file")) })
    }
    /// Whether an instance still runs, or may do so, so that a followed log goes on.
    fn is_running<'a>(&'a self, id: &'a ContainerId) -> Reply<'a, bool>;
    /// Units of the devices that are given to pods.
    fn devices(&self) -> Reply<'_, Vec<DeviceShown>>;
    /// All images.
    fn images(&self) -> Reply<'_, Vec<crate::api::cri::Image>>;
    /// Imports an archive; returns the references it brought. `name` (may be empty) names an image that has none.
    /// `steps` hears how far it is, as far as it has room; closed by its reader it stops the import.
    fn import_image(
        &self,
        path: PathBuf,
        name: String,
        steps: Option<smol::channel::Sender<Progress>>,
    ) -> Reply<'_, Vec<String>>;
    /// Pulls an image with the credentials of the node, whatever is in the store; `now`: whatever the link has left. Returns
    /// its id.
    fn pull_image<'a>(&'a self, reference: &'a str, now: bool) -> Reply<'a, String>;
    /// How far that is; `None` if no pull of it is under way.
    fn pull_progress(&self, reference: &str) -> Option<Progress>;
    /// Removes an image by reference or id.
    fn remove_image<'a>(&'a self, reference: &'a str) -> Reply<'a, ()>;
    /// Removes what no container uses; returns what was removed and the bytes it held.
    fn prune_images(&self) -> Reply<'_, (Vec<String>, u64)>;
    /// Checks every image; with `repair` damaged ones that nobody uses are removed. `steps` hears how far it is; closed by
    /// its reader it ends the check.
    fn verify_images(
        &self,
        repair: bool,
        steps: smol::channel::Sender<Progress>,
    ) -> Reply<'_, Verification>;
    /// Ends a pod of this machine's own manifests, and starts it anew after that.
    fn restart_pod<'a>(&'a self, namespace: &'a str, pod: &'a str) -> Reply<'a, ()>;
    /// Ends the agent; with `all` every pod first.
    fn stop(&self, all: bool) -> Reply<'_, ()>;
    /// The machine goes down: ends the pods in their order, or all at once and then the agent, as it is configured.
    fn shut_down(&self) -> Reply<'_, ()>;
}

/// Reads the options of a log request.
pub(super) fn log_options(
    request: &super::http::Request,
    now: Wall,
) -> Result<LogOptions, Refusal> {
    let since_seconds: Option<u32> = request.number("sinceSeconds")?;
    let since_time =
        match request.param("sinceTime") {
            None | Some("") => None,
            Some(text) => Some(Wall::parse(text).ok_or_else(|| {
                Refusal::bad(format!("sinceTime: {text:?} is not an RFC 3339 time"))
            })?),
        };
    let by_seconds =
        since_seconds.map(|s| Wall(now.0.saturating_sub(i64::from(s) * 1_000_000_000)));
    let stream = match request.param("stream") {
        None | Some("" | "All") => None,
        Some("Stdout") => Some("stdout".to_owned()),
        Some("Stderr") => Some("stderr".to_owned()),
        Some(other) => {
            return Err(Refusal::bad(format!(
                "stream: {other:?} is not All, Stdout or Stderr"
            )));
        }
    };
    Ok(LogOptions {
        follow: request.flag("follow"),
        tail: request.number("tailLines")?,
        // The later bound wins (LOG-03).
        since: since_time.max(by_seconds),
        timestamps: request.flag("timestamps"),
        limit_bytes: request.number("limitBytes")?,
        stream,
    })
}
