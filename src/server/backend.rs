//! What the server's routes ask of the agent. The agent implements it; the server knows nothing else of the agent.

use core::{future::Future, pin::Pin};
use std::path::PathBuf;

use super::{http::Refusal, log_reader::LogOptions};
use crate::{api::ContainerId, runtime::ExecSession, sys::lane::Lane};

/// An answer that takes time.
pub type Reply<'a, T> = Pin<Box<dyn Future<Output = Result<T, Refusal>> + 'a>>;

/// A log to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogTarget {
    /// The live log file.
    pub path: PathBuf,
    /// The instance that writes or wrote it.
    pub id: ContainerId,
}

/// A command to run in a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecRequest {
    /// Pod namespace.
    pub namespace: String,
    /// Pod name.
    pub pod: String,
    /// Container name; empty for the default one.
    pub container: String,
    /// The command and its arguments.
    pub command: Vec<String>,
    /// Keep stdin open.
    pub stdin: bool,
    /// Allocate a terminal.
    pub tty: bool,
}

/// The agent, as the server sees it.
pub trait Backend {
    /// The lane on which files are read.
    fn disk_lane(&self) -> &Lane;
    /// Pods as Kubernetes objects, sorted by namespace and name; all of them, or those of one namespace.
    fn pods(&self, namespace: Option<&str>) -> Reply<'_, Vec<serde_json::Value>>;
    /// How the agent is: an object whose keys `picolet check` knows.
    fn health(&self) -> serde_json::Value;
    /// Kept Event objects, oldest first; all of them, or those of pods of one namespace.
    fn events(&self, namespace: Option<&str>) -> Vec<serde_json::Value>;
    /// ConfigMap objects beside the manifests, sorted by namespace and name; all of them, or those of one namespace.
    fn config_maps(&self, namespace: Option<&str>) -> Vec<serde_json::Value>;
    /// Secret objects, like ConfigMaps. They carry the sizes of their values (`dataBytes`), never these.
    fn secrets(&self, namespace: Option<&str>) -> Vec<serde_json::Value>;
    /// What the loop lately heard and did, one JSON object a line.
    fn dump(&self) -> String;
    /// The Node object.
    fn node(&self) -> Reply<'_, serde_json::Value>;
    /// Which file to read for a container's log. Container empty: the default one.
    fn log_target<'a>(
        &'a self,
        namespace: &'a str,
        pod: &'a str,
        container: &'a str,
        previous: bool,
    ) -> Reply<'a, LogTarget>;
    /// Whether an instance still runs, so that a followed log goes on.
    fn is_running(&self, id: &ContainerId) -> bool;
    /// Starts a command in a container.
    fn exec(&self, request: ExecRequest) -> Reply<'_, Box<dyn ExecSession>>;
    /// All images.
    fn images(&self) -> Reply<'_, Vec<crate::api::cri::Image>>;
    /// Imports an archive; returns the references it brought. `name` (may be empty) names an image that has none.
    /// `steps` hears how far it is, as far as it has room; closed by its reader it stops the import.
    fn import_image(
        &self,
        path: PathBuf,
        name: String,
        steps: Option<smol::channel::Sender<serde_json::Value>>,
    ) -> Reply<'_, Vec<String>>;
    /// Removes an image by reference or id.
    fn remove_image<'a>(&'a self, reference: &'a str) -> Reply<'a, ()>;
    /// Removes what no container uses; returns what was removed and the bytes it held.
    fn prune_images(&self) -> Reply<'_, (Vec<String>, u64)>;
    /// Ends the agent; with `all` every pod first.
    fn stop(&self, all: bool) -> Reply<'_, ()>;
}

/// Reads the options of a log request.
pub(super) fn log_options(
    request: &super::http::Request,
    now: crate::api::Wall,
) -> Result<LogOptions, Refusal> {
    let since_seconds: Option<u32> = request.number("sinceSeconds")?;
    let since_time =
        match request.param("sinceTime") {
            None | Some("") => None,
            Some(text) => Some(crate::api::Wall::parse(text).ok_or_else(|| {
                Refusal::bad(format!("sinceTime: {text:?} is not an RFC 3339 time"))
            })?),
        };
    let by_seconds =
        since_seconds.map(|s| crate::api::Wall(now.0.saturating_sub(i64::from(s) * 1_000_000_000)));
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
