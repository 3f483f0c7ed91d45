//! The manifest directory, or one manifest file, as a poller sees it.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::manifest::{self, Manifest, ManifestFileStamp, ManifestObject};
use super::{ObjectKey, Rules, SourceProblem, SourceReading, SourceSnapshot, Trigger};
use crate::api::received::{ReceivedPod, SnapshotEntry};
use crate::api::{ConfigMap, ObjectMeta, PodUid, Secret};
use crate::sys::clock;

/// Most entries of the directory, dotfiles left out. With more there is no snapshot.
pub const MAX_ENTRIES: usize = 4096;

/// Reads a directory of manifests, or one manifest, and remembers of each file only what the next read needs.
///
/// - Not recursive; dotfiles are skipped; names count in byte order (SRC-16). Links are followed.
/// - A file is read again only if its size, times or inode moved.
/// - Of two files with one pod the later name wins (SRC-19), likewise of two ConfigMaps or two Secrets of one name.
/// - An immutable ConfigMap or Secret stays as it was read first, until its file is found gone.
/// - A missing path is an empty source, any other error is no snapshot (SRC-17).
/// - A bad file harms no other. It may just be half written, so it is reported once it was found bad twice in the same
///   state (at the first read at once). A pod that it held before stays until a [`Trigger::Poll`] after that.
///
/// Blocking: belongs on a lane.
#[derive(Debug)]
pub struct ManifestDir {
    path: PathBuf,
    node: String,
    rules: Rules,
    files: BTreeMap<OsString, KnownManifestFile>,
    started: bool,
    recheck: bool,
    /// Last failure that was reported, so that it is reported once.
    failure: Option<String>,
}

/// Memory of one file.
#[derive(Debug, Default)]
struct KnownManifestFile {
    /// State of the file that `held` comes from; `None` if it must be read again.
    good: Option<ManifestFileStamp>,
    held: HeldObject,
    notes: Vec<String>,
    notes_reported: bool,
    /// Reason why the file's last change does not count: the object it holds is immutable.
    refused: Option<String>,
    /// Last message about another file hiding this one, or about a change that does not count.
    unused_reported: Option<String>,
    bad: Option<UnusableFile>,
}

#[derive(Debug, Default)]
enum HeldObject {
    #[default]
    Nothing,
    Pod {
        uid: PodUid,
        key: ObjectKey,
    },
    /// Message of a pod or an object that another file's hides.
    Hidden(String),
    ConfigMap(Arc<ConfigMap>),
    Secret(Arc<Secret>),
}

impl HeldObject {
    const fn is_object(&self) -> bool {
        matches!(self, Self::ConfigMap(_) | Self::Secret(_))
    }

    /// Kind, namespace and name.
    fn object_key(&self) -> Option<(&'static str, ObjectKey)> {
        let of = |m: &ObjectMeta| (m.namespace.clone(), m.name.clone());
        match self {
            Self::Nothing | Self::Hidden(_) => None,
            Self::Pod { key, .. } => Some(("pod", key.clone())),
            Self::ConfigMap(object) => Some(("ConfigMap", of(&object.metadata))),
            Self::Secret(object) => Some(("Secret", of(&object.metadata))),
        }
    }

    /// Finds the field in which `new` differs from this object although this object is immutable.
    fn find_immutable_difference(&self, new: &ManifestObject) -> Option<&'static str> {
        match (self, new) {
            (Self::ConfigMap(old), ManifestObject::ConfigMap(new))
                if old.immutable == Some(true) && has_same_name(&old.metadata, &new.metadata) =>
            {
                let text = (old.data != new.data).then_some("data");
                let binary = (old.binary_data != new.binary_data).then_some("binaryData");
                let open = (new.immutable != Some(true)).then_some("immutable");
                open.or(text).or(binary)
            }
            (Self::Secret(old), ManifestObject::Secret(new))
                if old.immutable == Some(true) && has_same_name(&old.metadata, &new.metadata) =>
            {
                let open = (new.immutable != Some(true)).then_some("immutable");
                let data = (old.data != new.data).then_some("data");
                open.or(data)
            }
            _ => None,
        }
    }
}

/// Returns true if two objects of one kind have one name.
fn has_same_name(a: &ObjectMeta, b: &ObjectMeta) -> bool {
    (&a.namespace, &a.name) == (&b.namespace, &b.name)
}

/// Reason why a file is unusable.
#[derive(Debug)]
struct UnusableFile {
    /// State of the file when it was found bad.
    stamp: ManifestFileStamp,
    /// Set if the file could have changed once more without its state showing it.
    fresh: bool,
    message: String,
    /// Set if the file was found bad twice in the same state.
    confirmed: bool,
    reported: bool,
}

enum ManifestListing {
    Missing,
    File,
    Directory(BTreeSet<OsString>),
}

/// A read in the making.
#[derive(Default)]
struct ReadRound {
    changed: bool,
    objects_changed: bool,
    /// Pods that were read this time, by file.
    read: BTreeMap<OsString, Box<ReceivedPod>>,
}

impl ManifestDir {
    /// Makes a source that has not read anything yet. `node` is the node's name.
    #[must_use]
    pub fn new(path: PathBuf, node: String, rules: Rules) -> Self {
        Self {
            path,
            node,
            rules,
            files: BTreeMap::new(),
            started: false,
            recheck: false,
            failure: None,
        }
    }

    /// The directory or file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns true if a file was found bad that may only have been half written: a read soon after settles it.
    #[must_use]
    pub fn wants_recheck(&self) -> bool {
        self.recheck
    }

    /// Forgets what was read, so that the next read delivers every pod anew.
    pub fn forget_reads(&mut self) {
        self.files.clear();
        self.started = false;
    }

    /// Reads the source.
    pub fn read_source(&mut self, trigger: Trigger) -> SourceReading {
        let single;
        let names = match list_manifests(&self.path, MAX_ENTRIES) {
            Ok(ManifestListing::Missing) => {
                single = false;
                BTreeSet::new()
            }
            Ok(ManifestListing::Directory(names)) => {
                single = false;
                names
            }
            Ok(ManifestListing::File) => {
                single = true;
                // The file has an empty name here: joining it to the path would add a slash.
                BTreeSet::from([OsString::new()])
            }
            Err(e) => return self.fail_read(format!("cannot be read: {e}")),
        };
        let mut round = ReadRound::default();
        self.recheck = false;
        self.drop_absent(&names, &mut round);
        for name in &names {
            self.refresh_file(name, trigger, &mut round);
        }
        if single
            && let Some(bad) = self
                .files
                .get(&OsString::new())
                .and_then(|known| known.bad.as_ref())
        {
            if !bad.confirmed {
                return SourceReading::Unchanged;
            }
            let message = bad.message.clone();
            return self.fail_read(message);
        }
        self.failure = None;
        if self.started && !round.changed {
            return SourceReading::Unchanged;
        }
        self.started = true;
        self.reread_hidden(&mut round);
        SourceReading::Snapshot(self.build_snapshot(round))
    }

    fn fail_read(&mut self, message: String) -> SourceReading {
        let new = self.failure.as_ref() != Some(&message);
        self.failure = Some(message.clone());
        SourceReading::Failed(SourceProblem {
            path: self.path.clone(),
            message,
            fatal: true,
            new,
        })
    }

    fn file_path(&self, name: &OsString) -> PathBuf {
        if name.is_empty() {
            self.path.clone()
        } else {
            self.path.join(name)
        }
    }

    fn drop_absent(&mut self, names: &BTreeSet<OsString>, round: &mut ReadRound) {
        self.files.retain(|name, known| {
            let present = names.contains(name);
            if !present {
                round.changed = true;
                round.objects_changed |= known.held.is_object();
            }
            present
        });
    }

    /// Looks at one file and reads it if it moved.
    fn refresh_file(&mut self, name: &OsString, trigger: Trigger, round: &mut ReadRound) {
        let path = self.file_path(name);
        // A file that cannot be looked at has the empty state, as in `manifest::read`.
        let stamp = fs::metadata(&path)
            .map(|m| ManifestFileStamp::from_metadata(&m))
            .unwrap_or_default();
        let known = self.files.entry(name.clone()).or_default();
        if known.good == Some(stamp) {
            // The file was bad for a moment, and is back in its last good state.
            round.changed |= known.bad.take().is_some_and(|bad| bad.reported);
            return;
        }
        let settled = |bad: &&mut UnusableFile| bad.stamp == stamp && !bad.fresh;
        if let Some(bad) = known.bad.as_mut().filter(settled) {
            round.changed |= !bad.confirmed;
            bad.confirmed = true;
        } else {
            let Some((stamp, read)) = manifest::read_manifest(&path, &self.node, &self.rules)
            else {
                // The file was removed after it was listed.
                if let Some(known) = self.files.remove(name) {
                    round.changed = true;
                    round.objects_changed |= known.held.is_object();
                }
                return;
            };
            let fresh = stamp.may_still_change(clock::wall_now());
            match read {
                Ok(manifest) => {
                    round.changed = true;
                    known.take_manifest(manifest, (!fresh).then_some(stamp), name, round);
                    return;
                }
                Err(why) => {
                    let message = why.message();
                    let old = known.bad.take();
                    let again = !fresh && old.as_ref().is_some_and(|old| old.stamp == stamp);
                    let confirmed = again || !self.started;
                    round.changed |= confirmed;
                    known.bad = Some(UnusableFile {
                        stamp,
                        fresh,
                        confirmed,
                        reported: old.is_some_and(|old| old.reported && old.message == message),
                        message,
                    });
                }
            }
        }
        known.drop_held_object(trigger, round);
        self.recheck |= known.bad.as_ref().is_some_and(|bad| !bad.confirmed);
    }

    /// Reads hidden pods again, for the one that hid them may be gone.
    fn reread_hidden(&mut self, round: &mut ReadRound) {
        let hidden: Vec<OsString> = self
            .files
            .iter()
            .filter(|(_, known)| matches!(known.held, HeldObject::Hidden(_)))
            .map(|(name, _)| name.clone())
            .collect();
        for name in hidden {
            let path = self.file_path(&name);
            if let Some((_, Ok(manifest))) = manifest::read_manifest(&path, &self.node, &self.rules)
                && let Some(known) = self.files.get_mut(&name)
            {
                // The state stays: if the file moved in between, the next read sees it.
                let good = known.good;
                known.take_manifest(manifest, good, &name, round);
            }
        }
    }

    fn build_snapshot(&mut self, mut round: ReadRound) -> SourceSnapshot {
        self.hide_doubles(&mut round);
        let mut snapshot = SourceSnapshot {
            objects_changed: round.objects_changed,
            ..SourceSnapshot::default()
        };
        for (name, known) in &mut self.files {
            match &known.held {
                HeldObject::Nothing | HeldObject::Hidden(_) => {}
                HeldObject::Pod { uid, .. } => snapshot.pods.push(match round.read.remove(name) {
                    Some(received) => SnapshotEntry::Read(received),
                    None => SnapshotEntry::Known(uid.clone()),
                }),
                HeldObject::ConfigMap(object) => {
                    let key = (
                        object.metadata.namespace.clone(),
                        object.metadata.name.clone(),
                    );
                    snapshot.config_maps.insert(key, object.clone());
                }
                HeldObject::Secret(object) => {
                    let key = (
                        object.metadata.namespace.clone(),
                        object.metadata.name.clone(),
                    );
                    snapshot.secrets.insert(key, object.clone());
                }
            }
            let path = if name.is_empty() {
                self.path.clone()
            } else {
                self.path.join(name)
            };
            known.collect_problems(&path, &mut snapshot.problems);
        }
        snapshot
    }

    /// Hides doubles: of pods with one name or one uid only the last stays (SRC-19), and of objects of one kind with
    /// one name.
    fn hide_doubles(&mut self, round: &mut ReadRound) {
        let mut keys = BTreeMap::new();
        let mut uids = BTreeMap::new();
        for (name, known) in self.files.iter_mut().rev() {
            let Some(key) = known.held.object_key() else {
                continue;
            };
            let uid = match &known.held {
                HeldObject::Pod { uid, .. } => Some(uid),
                HeldObject::Nothing
                | HeldObject::Hidden(_)
                | HeldObject::ConfigMap(_)
                | HeldObject::Secret(_) => None,
            };
            let message = if let Some(other) = keys.get(&key) {
                let (kind, (namespace, object)) = key;
                format!("{kind} {namespace}/{object} is also in {other:?}, which is used")
            } else if let Some((uid, other)) = uid.and_then(|u| Some((u, uids.get(u)?))) {
                format!("pod uid {uid} is also in {other:?}, which is used")
            } else {
                keys.insert(key, name.clone());
                if let Some(uid) = uid {
                    uids.insert(uid.clone(), name.clone());
                }
                continue;
            };
            round.read.remove(name);
            known.held = HeldObject::Hidden(message);
        }
    }
}

impl KnownManifestFile {
    /// Takes the present object of the file.
    fn take_manifest(
        &mut self,
        manifest: Manifest,
        stamp: Option<ManifestFileStamp>,
        name: &OsString,
        round: &mut ReadRound,
    ) {
        self.refused = self.held.find_immutable_difference(&manifest.object).map(|field| {
            format!(
                "{field}: Forbidden: field is immutable when `immutable` is set; what the file held before stays in use \
                 (remove the file, then write it anew)"
            )
        });
        self.good = stamp;
        self.bad = None;
        if self.refused.is_some() {
            return;
        }
        round.objects_changed |= self.held.is_object();
        round.read.remove(name);
        self.held = match manifest.object {
            ManifestObject::Pod(received) => {
                let metadata = &received.pod.metadata;
                let held = HeldObject::Pod {
                    uid: metadata.uid.clone(),
                    key: (metadata.namespace.clone(), metadata.name.clone()),
                };
                round.read.insert(name.clone(), received);
                held
            }
            ManifestObject::ConfigMap(object) => HeldObject::ConfigMap(object),
            ManifestObject::Secret(object) => HeldObject::Secret(object),
        };
        round.objects_changed |= self.held.is_object();
        if self.notes != manifest.notes {
            self.notes = manifest.notes;
            self.notes_reported = false;
        }
    }

    /// Drops the object that a bad file held, if it is time to.
    fn drop_held_object(&mut self, trigger: Trigger, round: &mut ReadRound) {
        let sure = self.bad.as_ref().is_some_and(|bad| bad.confirmed);
        if sure && trigger == Trigger::Poll && !matches!(self.held, HeldObject::Nothing) {
            round.changed = true;
            round.objects_changed |= self.held.is_object();
            self.held = HeldObject::Nothing;
            self.good = None;
            self.refused = None;
            self.notes.clear();
        }
    }

    fn collect_problems(&mut self, path: &Path, problems: &mut Vec<SourceProblem>) {
        if let Some(bad) = self.bad.as_mut().filter(|bad| bad.confirmed) {
            problems.push(SourceProblem {
                path: path.into(),
                message: bad.message.clone(),
                fatal: true,
                new: !core::mem::replace(&mut bad.reported, true),
            });
            return;
        }
        let hidden = match &self.held {
            HeldObject::Hidden(message) => Some(message),
            HeldObject::Nothing
            | HeldObject::Pod { .. }
            | HeldObject::ConfigMap(_)
            | HeldObject::Secret(_) => None,
        };
        if let Some(message) = hidden.or(self.refused.as_ref()) {
            let said = self.unused_reported.replace(message.clone());
            problems.push(SourceProblem {
                path: path.into(),
                message: message.clone(),
                fatal: true,
                new: said.as_ref() != Some(message),
            });
        } else {
            self.unused_reported = None;
        }
        let new = !core::mem::replace(&mut self.notes_reported, true);
        problems.extend(self.notes.iter().map(|message| SourceProblem {
            path: path.into(),
            message: message.clone(),
            fatal: false,
            new,
        }));
    }
}

fn list_manifests(path: &Path, most: usize) -> io::Result<ManifestListing> {
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(ManifestListing::Missing),
        Err(e) if e.kind() == io::ErrorKind::NotADirectory => return Ok(ManifestListing::File),
        Err(e) => return Err(e),
    };
    let mut names = BTreeSet::new();
    for entry in entries {
        let name = entry?.file_name();
        if name.as_bytes().starts_with(b".") {
            continue;
        }
        names.insert(name);
        if names.len() > most {
            return Err(io::Error::other(format!("has more than {most} entries")));
        }
    }
    Ok(ManifestListing::Directory(names))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_counted() {
        let dir = crate::testing::unused_path("entries");
        fs::create_dir_all(&dir).expect("directory");
        for name in ["a", "b", ".c"] {
            fs::write(dir.join(name), "").expect("write");
        }
        assert!(
            matches!(list_manifests(&dir, 2), Ok(ManifestListing::Directory(names)) if names.len() == 2)
        );
        let error = list_manifests(&dir, 1).err().map(|e| e.to_string());
        assert_eq!(error.as_deref(), Some("has more than 1 entries"));
        fs::remove_dir_all(&dir).expect("remove");
    }
}
