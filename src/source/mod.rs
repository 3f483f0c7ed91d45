//! Sources of pods: the manifest directory and manifests at a URL.
//!
//! - [`ManifestDir`]: reads a directory or one file and returns a full snapshot. Plain blocking code, made for a lane.
//! - [`ManifestDoorbell`]: inotify, a hint to read sooner. It may be lost at any time.
//! - [`ManifestDirPoller`]: both together: reads at the start, every interval, and when the doorbell rings.
//!
//! - [`ManifestUrl`]: looks at a URL, and keeps its last good answer for a start without link. Blocking too; it waits for a
//!   network, so it has a lane of its own.
//!
//! The content of manifests is not judged here: the rules come in as functions ([`Rules`]).

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use std::path::PathBuf;

use serde_json::Value;

use crate::api::received::{InvalidObject, ReceivedPod, SnapshotEntry};
use crate::api::{ConfigMap, Secret};

mod doorbell;
pub(crate) mod http;
mod manifest;
mod manifest_dir;
mod manifest_url;
mod poller;

pub use doorbell::ManifestDoorbell;
pub use http::{DocumentLocation, MAX_REDIRECTS, WHOLE_TIMEOUT};
pub use manifest_dir::{MAX_ENTRIES, ManifestDir};
pub use manifest_url::ManifestUrl;
pub use poller::{MIN_GAP, ManifestDirPoller, RECHECK};

/// Function that turns a raw pod into a pod of this node, or names its fault: (object, node name, file path or URL).
pub type PodRule = fn(Value, &str, &str) -> Result<Box<ReceivedPod>, InvalidObject>;

/// Function that finds keys of an object which no Kubernetes has, one sentence each.
pub type KeyRule = fn(&Value) -> Vec<String>;

/// Rules that a source needs, as functions: the source reads files and knows nothing of pods.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Rule for pods.
    pub pod: PodRule,
    /// Rule for ConfigMaps: finds their faults.
    pub config_map: fn(&ConfigMap) -> Result<(), InvalidObject>,
    /// Rule for Secrets: finds their faults; `stringData` is folded into `data` before.
    pub secret: fn(&Secret) -> Result<(), InvalidObject>,
    /// Rule for the keys of all of them.
    pub keys: KeyRule,
}

/// Namespace and name of an object.
pub type ObjectKey = (String, String);

/// Reason for reading the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// The interval has passed. Only such a read takes a pod away whose file went bad (SRC-16).
    Poll,
    /// The doorbell rang: a file may have changed.
    Bell,
}

/// Result of one read.
#[derive(Debug)]
pub enum SourceReading {
    /// The source is exactly as at the previous read.
    Unchanged,
    /// A full snapshot.
    Snapshot(SourceSnapshot),
    /// The source could not be read: there is no snapshot, and nothing changes (SRC-17).
    Failed(SourceProblem),
}

/// All objects of the source.
#[derive(Debug, Default)]
pub struct SourceSnapshot {
    /// Pods in the order of their files' names; no two with one uid, or with one namespace and name.
    pub pods: Vec<SnapshotEntry>,
    /// ConfigMaps by namespace and name, shared with the source.
    pub config_maps: BTreeMap<ObjectKey, Arc<ConfigMap>>,
    /// Secrets by namespace and name, shared with the source.
    pub secrets: BTreeMap<ObjectKey, Arc<Secret>>,
    /// Set if a ConfigMap or Secret differs from the previous snapshot.
    pub objects_changed: bool,
    /// Present problems, in the order of the files' names.
    pub problems: Vec<SourceProblem>,
}

/// A problem of one file, or of a URL, that the operator should know about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceProblem {
    /// The file or directory, or the URL.
    pub path: PathBuf,
    /// Fault and its place in the file.
    pub message: String,
    /// Set if the file is unused because of it; otherwise it is only odd.
    pub fatal: bool,
    /// Set in the first snapshot with this problem: log it then, and only then.
    pub new: bool,
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod url_tests;
