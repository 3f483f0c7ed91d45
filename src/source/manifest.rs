//! Manifest files: bytes → pod, ConfigMap or Secret.

use alloc::sync::Arc;
use std::fs::{self, File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use serde_json::{Value, json};

use super::{KeyRule, MAX_ENTRIES, PodRule, Rules};
use crate::api::config_map::Base64Bytes;
use crate::api::received::{InvalidObject, ReceivedPod, SnapshotEntry};
use crate::api::{ConfigMap, ObjectMeta, Secret, WallTime};
use crate::config::decode::{self, DecodeError, MAX_DOCUMENT_BYTES};

/// Nanoseconds within which a change may not show in a file's times: the kernel stamps files with the time of its last
/// tick, at most 10 ms ago.
const TIME_GRAIN_NS: u64 = 20_000_000;

/// State of a file: tells one version from another without reading it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ManifestFileStamp {
    device: u64,
    inode: u64,
    size: u64,
    modified_ns: i64,
    changed_ns: i64,
}

impl ManifestFileStamp {
    pub(super) fn from_metadata(metadata: &Metadata) -> Self {
        let ns = |s: i64, ns: i64| s.saturating_mul(1_000_000_000).saturating_add(ns);
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified_ns: ns(metadata.mtime(), metadata.mtime_nsec()),
            changed_ns: ns(metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// Returns true if the file could change once more at `now` without the stamp showing it.
    pub(super) fn may_still_change(&self, now: WallTime) -> bool {
        now.0.abs_diff(self.changed_ns) < TIME_GRAIN_NS
    }
}

/// Object of a manifest.
#[derive(Debug)]
pub(super) enum ManifestObject {
    Pod(Box<ReceivedPod>),
    ConfigMap(Arc<ConfigMap>),
    Secret(Arc<Secret>),
}

/// An object, and the oddities of its file.
#[derive(Debug)]
pub(super) struct Manifest {
    pub(super) object: ManifestObject,
    pub(super) notes: Vec<String>,
}

/// Reason why a file holds no object. Its author can mend it.
#[derive(Debug, thiserror::Error)]
pub(super) enum ManifestError {
    /// The file is a link that leads nowhere.
    #[error("link to a file that does not exist")]
    Link,
    /// The file cannot be read.
    #[error("cannot be read: {0}")]
    Read(io::Error),
    /// A directory.
    #[error("is a directory: manifests are read from one directory only")]
    Directory,
    /// A FIFO, a device.
    #[error("is not a regular file")]
    Special,
    /// No document, or a value of the wrong kind.
    #[error(transparent)]
    Text(#[from] DecodeError),
    /// An object that is not valid.
    #[error(transparent)]
    Invalid(#[from] InvalidObject),
    /// The object does not say what it is.
    #[error("apiVersion and kind are required")]
    Untyped,
    /// More than one object.
    #[error("kind: {0}: lists are not read, a file holds one object")]
    List(String),
    /// A list that is too long.
    #[error("items: has more than {MAX_ENTRIES} pods")]
    Many,
    /// An item of a list, by its index.
    #[error("items[{0}]: {1}")]
    Item(usize, Box<Self>),
    /// An object with oddities that may be the reason of its fault.
    #[error("{0}; {1}")]
    Odd(Box<Self>, String),
    /// Version and kind of an object that is not read from a URL.
    #[error("{0} {1:?} is not read from a URL: only a v1 Pod, PodList or List of pods is")]
    UrlKind(String, String),
    /// Version and kind of an object that is not read from manifests.
    #[error("{0} {1} is not read from manifests: only v1 Pod, ConfigMap and Secret are")]
    Kind(String, String),
}

/// Reads one file. `None` if it is gone. The stamp is that of the bytes that were read.
pub(super) fn read_manifest(
    path: &Path,
    node: &str,
    rules: &Rules,
) -> Option<(ManifestFileStamp, Result<Manifest, ManifestError>)> {
    let (stamp, bytes) = match read_file_bytes(path) {
        Ok(read) => read,
        // A link to nowhere exists; a file that was removed between listing and reading does not.
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return fs::symlink_metadata(path)
                .is_ok()
                .then(|| (ManifestFileStamp::default(), Err(ManifestError::Link)));
        }
        Err(e) => return Some((ManifestFileStamp::default(), Err(ManifestError::Read(e)))),
    };
    let manifest = bytes.and_then(|bytes| decode_manifest(&bytes, path, stamp, node, rules));
    Some((stamp, manifest))
}

/// Most oddities of a list that are told.
const MAX_NOTES: usize = 100;

/// Longest message about one file, bytes: messages quote the file.
const MAX_MESSAGE_BYTES: usize = 2048;

impl ManifestError {
    /// Adds the oddities of the object.
    fn with_notes(self, notes: &[String]) -> Self {
        match notes {
            [] => self,
            notes => Self::Odd(Box::new(self), notes.join("; ")),
        }
    }

    /// Makes the message for people, cut if it is long.
    pub(super) fn message(&self) -> String {
        let mut message = self.to_string();
        if message.len() > MAX_MESSAGE_BYTES {
            message.truncate(message.floor_char_boundary(MAX_MESSAGE_BYTES));
            message.push_str(" (cut)");
            message.shrink_to_fit();
        }
        message
    }
}

/// Reads a regular file, at most as many bytes as show that it is too large.
fn read_file_bytes(path: &Path) -> io::Result<(ManifestFileStamp, Result<Vec<u8>, ManifestError>)> {
    // O_NONBLOCK: opening a FIFO or a device must not wait for its other end.
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC | libc::O_NOCTTY)
        .open(path)?;
    let metadata = file.metadata()?;
    let stamp = ManifestFileStamp::from_metadata(&metadata);
    if metadata.is_dir() {
        return Ok((stamp, Err(ManifestError::Directory)));
    }
    if !metadata.is_file() {
        return Ok((stamp, Err(ManifestError::Special)));
    }
    let mut bytes = Vec::new();
    let limit = u64::try_from(MAX_DOCUMENT_BYTES).unwrap_or(u64::MAX);
    file.take(limit).read_to_end(&mut bytes)?;
    Ok((stamp, Ok(bytes)))
}

fn decode_manifest(
    bytes: &[u8],
    path: &Path,
    stamp: ManifestFileStamp,
    node: &str,
    rules: &Rules,
) -> Result<Manifest, ManifestError> {
    let (value, mut notes) = parse_document(bytes)?;
    notes.extend((rules.keys)(&value));
    match decode_object(value, path, stamp, node, rules) {
        Ok(object) => Ok(Manifest { object, notes }),
        Err(why) => Err(why.with_notes(&notes)),
    }
}

fn decode_object(
    value: Value,
    path: &Path,
    stamp: ManifestFileStamp,
    node: &str,
    rules: &Rules,
) -> Result<ManifestObject, ManifestError> {
    let (version, kind) = read_kind(&value);
    Ok(match (&*version, &*kind) {
        ("v1", "Pod") => {
            let file = path.to_string_lossy();
            ManifestObject::Pod((rules.pod)(value, node, &file)?)
        }
        ("v1", "ConfigMap") => {
            let mut object: ConfigMap = decode::deserialize_value(&value)?;
            fill_in_metadata(&mut object.metadata, stamp);
            (rules.config_map)(&object)?;
            ManifestObject::ConfigMap(Arc::new(object))
        }
        ("v1", "Secret") => {
            let mut object: Secret = decode::deserialize_value(&value)?;
            fill_in_metadata(&mut object.metadata, stamp);
            if object.kind.is_empty() {
                object.kind.push_str("Opaque");
            }
            for (key, text) in core::mem::take(&mut object.string_data) {
                object.data.insert(key, Base64Bytes(text.into_bytes()));
            }
            (rules.secret)(&object)?;
            ManifestObject::Secret(Arc::new(object))
        }
        ("", _) | (_, "") => return Err(ManifestError::Untyped),
        (_, kind) if kind.ends_with("List") => {
            return Err(ManifestError::List(kind.into()));
        }
        (version, kind) => {
            return Err(ManifestError::Kind(version.into(), kind.into()));
        }
    })
}

/// Reads the pods of a document at a URL, one or a list, and the document's oddities. A single wrong pod makes the
/// whole document invalid (SRC-24).
pub(super) fn decode_pods(
    bytes: &[u8],
    node: &str,
    url: &str,
    (rule, keys): (PodRule, KeyRule),
) -> Result<(Vec<SnapshotEntry>, Vec<String>), ManifestError> {
    let (mut value, mut notes) = parse_document(bytes)?;
    let (version, kind) = read_kind(&value);
    let items = match (&*version, &*kind) {
        ("v1", "Pod") => {
            notes.extend(keys(&value));
            return match rule(value, node, url) {
                Ok(pod) => Ok((vec![SnapshotEntry::Read(pod)], notes)),
                Err(why) => Err(ManifestError::from(why).with_notes(&notes)),
            };
        }
        ("v1", "PodList" | "List") => match value["items"].take() {
            Value::Null => Vec::new(),
            Value::Array(items) => items,
            other => vec![other],
        },
        ("", _) | (_, "") => return Err(ManifestError::Untyped),
        _ => return Err(ManifestError::UrlKind(version, kind)),
    };
    if items.len() > MAX_ENTRIES {
        return Err(ManifestError::Many);
    }
    let mut item = |n: usize, mut item: Value| {
        let (mut version, mut own) = read_kind(&item);
        // Items of a `PodList` may lack version and kind.
        if kind == "PodList" && version.is_empty() && own.is_empty() && item.is_object() {
            item["apiVersion"] = json!("v1");
            item["kind"] = json!("Pod");
            (version, own) = read_kind(&item);
        }
        let odd = keys(&item);
        let room = MAX_NOTES.saturating_sub(notes.len());
        let numbered = odd.iter().map(|note| format!("items[{n}]: {note}"));
        notes.extend(numbered.take(room));
        match (&*version, &*own) {
            ("v1", "Pod") => match rule(item, node, url) {
                Ok(pod) => Ok(SnapshotEntry::Read(pod)),
                Err(why) => Err(ManifestError::from(why).with_notes(&odd)),
            },
            ("", _) | (_, "") => Err(ManifestError::Untyped),
            _ => Err(ManifestError::UrlKind(version, own)),
        }
    };
    let numbered = items.into_iter().enumerate();
    let pods =
        numbered.map(|(n, one)| item(n, one).map_err(|why| ManifestError::Item(n, Box::new(why))));
    let pods = pods.collect::<Result<_, _>>()?;
    Ok((pods, notes))
}

/// Reads a document, and its oddities.
fn parse_document(bytes: &[u8]) -> Result<(Value, Vec<String>), DecodeError> {
    let decode::DecodedDocument { value, duplicates } = decode::parse_document(bytes)?;
    let notes = duplicates
        .into_iter()
        .map(|field| format!("field {field} occurs twice, the last one counts"));
    Ok((value, notes.collect()))
}

/// Reads `apiVersion` and `kind`; empty if absent.
fn read_kind(value: &Value) -> (String, String) {
    let text = |field: &str| value.get(field).and_then(Value::as_str).unwrap_or("");
    (text("apiVersion").to_owned(), text("kind").to_owned())
}

/// Fills in the fields that an apiserver would.
fn fill_in_metadata(metadata: &mut ObjectMeta, stamp: ManifestFileStamp) {
    if metadata.namespace.is_empty() {
        metadata.namespace.push_str("default");
    }
    if metadata.creation_timestamp.is_none() {
        metadata.creation_timestamp = Some(WallTime(stamp.modified_ns).truncated_to_second());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fresh_files() {
        let fresh = |changed_ns, now| {
            let stamp = ManifestFileStamp {
                changed_ns,
                ..ManifestFileStamp::default()
            };
            stamp.may_still_change(WallTime(now))
        };
        assert!(fresh(100, 100) && fresh(100, 90) && fresh(90, 100));
        assert!(!fresh(0, 20_000_000) && !fresh(20_000_000, 0));
        // Times of another file system.
        assert!(!fresh(i64::MIN, 1) && !fresh(i64::MAX, i64::MIN));
    }
}
