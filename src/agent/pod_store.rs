//! Pod specs on disk: `<root>/pods/<uid>/pod.json`, read when a sync needs one and dropped after.
//!
//! ```text
//! {"v":1,"source":"file","resourceVersion":"","digest":123}\n
//! {…the object as received, defaulted…}\n
//! ```
//!
//! Written once a change, by rename, mode 0600. While the disk cannot be written (full, read-only, broken) records wait in the
//! run directory, `<run>/pod-records/<uid>/`, up to [`MAX_WAITING_BYTES`]; one that waits is newer than the one on disk, and
//! moves there as soon as it can ([`PodStore::settle_waiting_records`]). What a record holds is never trusted to be
//! whole: an unreadable one is an error of that pod alone.

use alloc::{rc::Rc, sync::Arc};
use core::{fmt::Display, time::Duration};
use std::{
    fs,
    io::{self, BufRead as _, Read as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::allocation;
use crate::{
    api::{
        Pod, PodUid,
        strict::{JsonTextError, WrongValue, from_json},
    },
    logic::static_pod,
    sys::{crash, file, lane::Lane},
};

/// Version of the record's form.
pub const RECORD_VERSION: u32 = 1;
/// A pod whose record could not be written is read again after this time, and records that wait are moved: the disk may have
/// room by then.
pub(super) const RETRY: Duration = Duration::from_secs(10);
/// Name of the file beside a pod's record that says which provider runs it.
pub(crate) const PROVIDER: &str = "provider";
/// Bytes of a record: a manifest's limit and room for defaults.
pub(super) const MAX_RECORD_BYTES: u64 = 12 << 20;
/// Bytes of all records that wait in the run directory: it is memory.
const MAX_WAITING_BYTES: u64 = 4 << 20;
/// Bytes of a record's first line: the longest resource version and some numbers.
const HEADER_BYTES: usize = 1024;
/// The record in force, and the one kept for after the present incarnation.
const RECORD: &str = "pod.json";
const NEXT: &str = "next.json";
/// File with the outcome of the pod.
const OUTCOME: &str = "outcome.json";
/// File with the devices that the pod holds.
const DEVICES: &str = "devices.json";
/// File with the resources that the pod was allocated; only while they, or those in force, are not those of the record.
const RESOURCES: &str = "resources.json";
/// File with the host ids of the pod's user namespace, named as a kubelet names it.
const USER_IDS: &str = "userns";
/// Mode of a pod's directory (SYNC-08).
const POD_DIR_MODE: u32 = 0o750;

/// First line of a record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PodRecordHeader {
    /// [`RECORD_VERSION`].
    pub(super) v: u32,
    /// `file`, `http` or `api`.
    pub(super) source: String,
    /// Version at the apiserver; empty for static pods.
    #[serde(default)]
    pub(super) resource_version: String,
    /// Semantic digest of the object.
    #[serde(default)]
    pub(super) digest: u64,
    /// Identity of the pod's cluster ([`logic::authority`](crate::logic::authority)); empty for static pods.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) cluster: String,
}

/// Reason why a record cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PodStoreError {
    /// The file system said no.
    #[error("pod record {path}")]
    Io {
        /// The record.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The record is damaged or of another version.
    #[error("pod record {path} is unusable: {why}")]
    Damaged {
        /// The record.
        path: PathBuf,
        /// Fault of the record.
        why: String,
    },
}

impl PodStoreError {
    /// Returns true if there is no record.
    pub(super) fn is_absent(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }

    /// Returns true if another try may succeed: there is a record, and the disk does not give it now.
    pub(super) fn may_succeed_later(&self) -> bool {
        matches!(self, Self::Io { .. }) && !self.is_absent()
    }
}

/// The records of one agent.
#[derive(Clone, Debug)]
pub(crate) struct PodStore {
    pods: PathBuf,
    waiting: PathBuf,
    boot_id: Arc<str>,
    cluster: Arc<str>,
}

impl PodStore {
    /// Records below `root`; those that wait for the disk below `run`. Both must exist. `boot_id`: of the machine, now.
    #[must_use]
    pub(crate) fn new(root: &Path, run: &Path, boot_id: &str) -> Self {
        Self {
            pods: root.join("pods"),
            waiting: run.join("pod-records"),
            boot_id: boot_id.into(),
            cluster: "".into(),
        }
    }

    /// Makes the store of a member of the cluster with this identity.
    #[must_use]
    pub(super) fn with_cluster(self, cluster: &str) -> Self {
        Self {
            cluster: cluster.into(),
            ..self
        }
    }

    /// Identity of the cluster; empty without one.
    pub(super) fn cluster_identity(&self) -> &str {
        &self.cluster
    }

    /// Id of this boot of the machine.
    pub(super) fn boot_id(&self) -> &str {
        &self.boot_id
    }

    /// Makes the directories of one pod (SYNC-08).
    pub(crate) fn make_dirs(&self, uid: &PodUid) -> io::Result<()> {
        let dir = self.pod_dir(uid);
        ["volumes", "plugins", "containers"]
            .iter()
            .map(|name| dir.join(name))
            // They are there at each sync but the first.
            .filter(|path| !path.is_dir())
            .try_for_each(|path| file::make_dirs(&path, POD_DIR_MODE))
    }

    /// Directory of one pod.
    #[must_use]
    pub(crate) fn pod_dir(&self, uid: &PodUid) -> PathBuf {
        self.pods.join(uid.as_str())
    }

    /// Writes the record of one pod.
    pub(super) fn write_record(
        &self,
        uid: &PodUid,
        header: &PodRecordHeader,
        object: &serde_json::Value,
    ) -> Result<(), PodStoreError> {
        self.write_as(RECORD, uid, header, object)?;
        // What was kept for after an incarnation before this one is older than this.
        let path = self.pod_dir(uid).join(NEXT);
        remove_record(&self.waiting.join(uid.as_str()).join(NEXT))?;
        match remove_record(&path) {
            // It cannot go, so it is outdone.
            Err(_) if path.exists() => self.write_waiting_record(NEXT, uid, header, object, &path),
            _ => Ok(()),
        }
    }

    /// Writes a record with the same object again, to the disk or not at all: what waits has little room.
    pub(super) fn rewrite_record(
        &self,
        uid: &PodUid,
        header: &PodRecordHeader,
        object: &serde_json::Value,
    ) -> Result<(), PodStoreError> {
        if self.record_path(uid).starts_with(&self.waiting) {
            return Ok(());
        }
        write_in(&self.pod_dir(uid), RECORD, header, object)
    }

    fn write_as(
        &self,
        name: &'static str,
        uid: &PodUid,
        header: &PodRecordHeader,
        object: &serde_json::Value,
    ) -> Result<(), PodStoreError> {
        match write_in(&self.pod_dir(uid), name, header, object) {
            Ok(()) => self.remove_waiting_file(name, uid),
            Err(PodStoreError::Io { path, source }) if is_unwritable(&source) => {
                log::debug!("{}: {source}; kept in the run directory", path.display());
                self.write_waiting_record(name, uid, header, object, &path)
            }
            Err(e) => Err(e),
        }
    }

    /// Writes a record where it waits for the disk, unless too many do.
    fn write_waiting_record(
        &self,
        name: &str,
        uid: &PodUid,
        header: &PodRecordHeader,
        object: &serde_json::Value,
        path: &Path,
    ) -> Result<(), PodStoreError> {
        let dir = self.waiting.join(uid.as_str());
        write_in(&dir, name, header, object)?;
        self.enforce_waiting_limit(name, uid)
            .map_err(|source| PodStoreError::Io {
                path: path.into(),
                source,
            })
    }

    /// Takes back what was written last if too much waits for the disk.
    fn enforce_waiting_limit(&self, name: &str, uid: &PodUid) -> io::Result<()> {
        if self.waiting_bytes() <= MAX_WAITING_BYTES {
            return Ok(());
        }
        self.remove_waiting_file(name, uid)
            .map_err(io::Error::other)?;
        Err(io::Error::other(format!(
            "the disk cannot be written, and no more than {MAX_WAITING_BYTES} bytes of records wait for it"
        )))
    }

    /// Keeps what came of a pod beside its record: durable, for it is for after a power cut. If the disk cannot be written it
    /// waits, for the next agent of this boot. Returns whether it does.
    pub(super) fn keep_outcome(&self, uid: &PodUid, text: &[u8]) -> io::Result<bool> {
        // The pod's directory is as young as its record, and a name like any other.
        crash::point("outcome.due");
        let kept = file::write_atomic(&self.pod_dir(uid).join(OUTCOME), text, 0o600, true)
            .and_then(|()| file::sync_dir(&self.pods));
        match kept {
            Ok(()) => {
                crash::point("outcome.kept");
                self.remove_waiting_file(OUTCOME, uid)
                    .map_err(io::Error::other)?;
                Ok(false)
            }
            Err(e) if is_unwritable(&e) => {
                let dir = self.waiting.join(uid.as_str());
                make_dir(&dir)?;
                file::write_atomic(&dir.join(OUTCOME), text, 0o600, false)?;
                self.enforce_waiting_limit(OUTCOME, uid)?;
                Ok(true)
            }
            Err(e) => Err(e),
        }
    }

    /// Reads the kept outcome of a pod: a file of at most `limit` bytes, or the begin of a longer one.
    pub(super) fn read_outcome(&self, uid: &PodUid, limit: u64) -> Option<Vec<u8>> {
        self.read_side_file(OUTCOME, uid, limit)
    }

    /// Makes the names of what was kept beside records survive a power cut. The agent that wrote it may have been killed before
    /// it did. On a disk that cannot be written nothing can be done about it, and no power cut makes it worse. Blocking.
    pub(super) fn sync_dir_entries(&self) {
        let mut any = false;
        for uid in self.recorded_pods() {
            let dir = self.pod_dir(&uid);
            if [OUTCOME, DEVICES, RESOURCES, USER_IDS]
                .iter()
                .any(|name| dir.join(name).exists())
            {
                any = true;
                if let Err(e) = file::sync_dir(&dir) {
                    log::debug!("uid={uid}: {e}");
                }
            }
        }
        if any && let Err(e) = file::sync_dir(&self.pods) {
            log::debug!("{}: {e}", self.pods.display());
        }
    }

    /// Forgets what came of a pod.
    pub(super) fn forget_outcome(&self, uid: &PodUid) -> Result<(), PodStoreError> {
        let dir = self.pod_dir(uid);
        self.remove_waiting_file(OUTCOME, uid)?;
        let path = dir.join(OUTCOME);
        if !path.exists() {
            return Ok(());
        }
        remove_record(&path)?;
        file::sync_dir(&dir).map_err(|source| PodStoreError::Io { path, source })
    }

    /// Keeps what a pod holds of the machine beside its record, durable, or in the run directory while the disk cannot be
    /// written: until the next boot nobody else gets it.
    pub(crate) fn keep_devices(&self, uid: &PodUid, text: &[u8]) -> io::Result<()> {
        self.keep_side_file(DEVICES, uid, text)
    }

    /// Keeps what a pod was allocated beside its record, as [`Self::keep_devices`] does.
    pub(super) fn keep_resources(&self, uid: &PodUid, text: &[u8]) -> io::Result<()> {
        self.keep_side_file(RESOURCES, uid, text)
    }

    /// Reads what a pod was allocated: a file of at most `limit` bytes, or the begin of a longer one.
    pub(super) fn read_resources(&self, uid: &PodUid, limit: u64) -> Option<Vec<u8>> {
        self.read_side_file(RESOURCES, uid, limit)
    }

    /// Forgets what a pod was allocated: its record says the same, and is made durable first. Should a power cut bring the file
    /// back, that is still so.
    pub(super) fn forget_resources(&self, uid: &PodUid) -> Result<(), PodStoreError> {
        let dir = self.pod_dir(uid);
        let path = dir.join(RESOURCES);
        if path.exists() {
            // A record that waits for the disk is no durable one: then there is none here, or an older one.
            let record = self.record_path(uid);
            let synced = match record.starts_with(&dir) {
                true => file::sync_path(&record).and_then(|()| file::sync_path(&dir)),
                false => Err(io::ErrorKind::StorageFull.into()),
            };
            synced.map_err(|source| PodStoreError::Io {
                path: record,
                source,
            })?;
        }
        self.remove_waiting_file(RESOURCES, uid)?;
        remove_record(&path)
    }

    /// Keeps the ids of a pod's user namespace, as [`Self::keep_devices`] does.
    pub(super) fn keep_user_ids(&self, uid: &PodUid, text: &[u8]) -> io::Result<()> {
        self.keep_side_file(USER_IDS, uid, text)
    }

    /// Reads the ids of a pod's user namespace: a file of at most `limit` bytes, or the begin of a longer one. `None`: there
    /// is none.
    pub(super) fn read_user_ids(&self, uid: &PodUid, limit: u64) -> io::Result<Option<Vec<u8>>> {
        for dir in [&self.waiting, &self.pods] {
            match file::read_start(&dir.join(uid.as_str()).join(USER_IDS), limit) {
                Err(e) if is_absent(&e) => {}
                other => return other.map(Some),
            }
        }
        Ok(None)
    }

    fn keep_side_file(&self, name: &str, uid: &PodUid, text: &[u8]) -> io::Result<()> {
        let pod_dir = self.pod_dir(uid);
        // A pod whose record is not written yet, as after a power cut, has no directory.
        let made = match pod_dir.is_dir() {
            true => Ok(()),
            false => make_dir(&pod_dir),
        };
        let kept = made
            .and_then(|()| file::write_atomic(&pod_dir.join(name), text, 0o600, true))
            .and_then(|()| file::sync_dir(&self.pods));
        match kept {
            Ok(()) => self
                .remove_waiting_file(name, uid)
                .map_err(io::Error::other),
            Err(e) if is_unwritable(&e) => {
                let dir = self.waiting.join(uid.as_str());
                make_dir(&dir)?;
                file::write_atomic(&dir.join(name), text, 0o600, false)?;
                self.enforce_waiting_limit(name, uid)
            }
            Err(e) => Err(e),
        }
    }

    /// Reads the kept devices of a pod: a file of at most `limit` bytes, or the begin of a longer one.
    pub(crate) fn read_devices(&self, uid: &PodUid, limit: u64) -> Option<Vec<u8>> {
        self.read_side_file(DEVICES, uid, limit)
    }

    fn read_side_file(&self, name: &str, uid: &PodUid, limit: u64) -> Option<Vec<u8>> {
        let open = |dir: &Path| fs::File::open(dir.join(uid.as_str()).join(name));
        let file = open(&self.waiting).or_else(|_| open(&self.pods)).ok()?;
        let mut text = Vec::new();
        file.take(limit).read_to_end(&mut text).ok()?;
        Some(text)
    }

    fn remove_waiting_file(&self, name: &str, uid: &PodUid) -> Result<(), PodStoreError> {
        let dir = self.waiting.join(uid.as_str());
        remove_record(&dir.join(name))?;
        // Still there while the other record waits; absent as a rule.
        let _ = fs::remove_dir(&dir);
        Ok(())
    }

    fn waiting_bytes(&self) -> u64 {
        let sizes = self.waiting_pods().into_iter().flat_map(|uid| {
            [RECORD, NEXT, OUTCOME, DEVICES, RESOURCES, USER_IDS].map(|name| {
                let path = self.waiting.join(uid.as_str()).join(name);
                path.metadata().map_or(0, |m| m.len())
            })
        });
        sizes.fold(0, u64::saturating_add)
    }

    /// Pods with a directory, in no order.
    pub(crate) fn recorded_pods(&self) -> Vec<PodUid> {
        pod_uids_in(&self.pods)
    }

    /// Pods with a directory, or with records that wait for the disk.
    ///
    /// # Errors
    /// They cannot be read, so it is not known which ones there are.
    pub(crate) fn all_recorded_pods(&self) -> io::Result<Vec<PodUid>> {
        let mut all = Vec::new();
        for dir in [&self.pods, &self.waiting] {
            match fs::read_dir(dir) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                entries => {
                    for entry in entries? {
                        all.extend(entry?.file_name().to_str().map(PodUid::new));
                    }
                }
            }
        }
        Ok(all)
    }

    /// Pods with records that wait for the disk, in no order. Empty as a rule.
    pub(super) fn waiting_pods(&self) -> Vec<PodUid> {
        pod_uids_in(&self.waiting)
    }

    /// Moves the waiting records of a pod to the disk, if it can be written again.
    pub(super) fn settle_waiting_records(&self, uid: &PodUid) -> Result<(), PodStoreError> {
        // Before the record with the spec that asks for others.
        let path = self.waiting.join(uid.as_str()).join(RESOURCES);
        if path.exists()
            && let Some(text) = self.read_resources(uid, MAX_WAITING_BYTES)
        {
            self.keep_resources(uid, &text)
                .map_err(|source| PodStoreError::Io { path, source })?;
        }
        for name in [RECORD, NEXT] {
            let path = self.waiting.join(uid.as_str()).join(name);
            if path.exists() {
                let (header, object) = self.read_record_at::<serde_json::Value>(&path)?;
                write_in(&self.pod_dir(uid), name, &header, &object)?;
                self.remove_waiting_file(name, uid)?;
            }
        }
        let path = self.waiting.join(uid.as_str()).join(DEVICES);
        if path.exists()
            && let Some(text) = self.read_devices(uid, MAX_WAITING_BYTES)
        {
            self.keep_devices(uid, &text)
                .map_err(|source| PodStoreError::Io { path, source })?;
        }
        let path = self.waiting.join(uid.as_str()).join(USER_IDS);
        if path.exists()
            && let Some(text) = self.read_side_file(USER_IDS, uid, MAX_WAITING_BYTES)
        {
            self.keep_user_ids(uid, &text)
                .map_err(|source| PodStoreError::Io { path, source })?;
        }
        let path = self.waiting.join(uid.as_str()).join(OUTCOME);
        if !path.exists() {
            return Ok(());
        }
        // The one that waits goes before that on disk, and no more than this ever waits.
        let Some(text) = self.read_outcome(uid, MAX_WAITING_BYTES) else {
            return Ok(());
        };
        let kept = self.keep_outcome(uid, &text);
        kept.map(drop)
            .map_err(|source| PodStoreError::Io { path, source })
    }

    /// Removes what waits of a pod that is gone.
    pub(super) fn forget_waiting_records(&self, uid: &PodUid) -> Result<(), PodStoreError> {
        self.remove_waiting_file(RECORD, uid)?;
        self.remove_waiting_file(NEXT, uid)?;
        self.remove_waiting_file(DEVICES, uid)?;
        self.remove_waiting_file(RESOURCES, uid)?;
        self.remove_waiting_file(USER_IDS, uid)?;
        self.remove_waiting_file(OUTCOME, uid)
    }

    /// Reads header and object of one pod.
    pub(super) fn read_record<T: serde::de::DeserializeOwned>(
        &self,
        uid: &PodUid,
    ) -> Result<(PodRecordHeader, T), PodStoreError> {
        self.read_record_at(&self.record_path(uid))
    }

    /// Reads the header of one pod's record.
    pub(super) fn read_record_header(
        &self,
        uid: &PodUid,
    ) -> Result<PodRecordHeader, PodStoreError> {
        let path = self.record_path(uid);
        let mut line = Vec::new();
        let read = fs::File::open(&path).and_then(|file| {
            let mut file =
                io::BufReader::with_capacity(HEADER_BYTES, file.take(HEADER_BYTES as u64));
            file.read_until(b'\n', &mut line)
        });
        match read {
            Ok(_) => parse_header(&line).map_err(|e| PodStoreError::Damaged {
                path,
                why: e.to_string(),
            }),
            Err(source) => Err(PodStoreError::Io { path, source }),
        }
    }

    /// The pod as recorded, with defaults applied and with the resources that it was allocated. Blocking; read anew each
    /// time: specs do not live in memory.
    pub(super) fn read_pod(&self, uid: &PodUid) -> Result<Pod, PodStoreError> {
        let mut pod = self.read_recorded_pod(uid)?;
        if let Some(kept) = allocation::read_allocation(self, uid) {
            kept.allocated.apply_to(&mut pod);
        }
        Ok(pod)
    }

    /// The pod as recorded, with the resources that its newest spec asks for. Blocking.
    pub(super) fn read_recorded_pod(&self, uid: &PodUid) -> Result<Pod, PodStoreError> {
        let (_, raw) = self.read_record(uid)?;
        self.check_decoded(uid, static_pod::decode_recorded_pod(&raw))
    }

    /// Reads the pod of a record on the disk lane.
    pub(crate) async fn load_pod(
        &self,
        disk: &Lane,
        uid: &PodUid,
    ) -> Result<Rc<Pod>, PodStoreError> {
        let (store, uid) = (self.clone(), uid.clone());
        disk.run_job(move || store.read_pod(&uid))
            .await
            .map(Rc::new)
    }

    /// Reads on the disk lane the pod of the incarnation that begins: its waiting record becomes the pod's record.
    pub(super) async fn load_next(
        &self,
        disk: &Lane,
        uid: &PodUid,
    ) -> Result<Rc<Pod>, PodStoreError> {
        let (store, uid) = (self.clone(), uid.clone());
        let read = move || store.adopt_next(&uid).and_then(|()| store.read_pod(&uid));
        disk.run_job(read).await.map(Rc::new)
    }

    /// The record in force: the one that waits is newer.
    fn record_path(&self, uid: &PodUid) -> PathBuf {
        let waiting = self.waiting.join(uid.as_str()).join(RECORD);
        if waiting.exists() {
            waiting
        } else {
            self.pod_dir(uid).join(RECORD)
        }
    }

    fn read_record_at<T: serde::de::DeserializeOwned>(
        &self,
        path: &Path,
    ) -> Result<(PodRecordHeader, T), PodStoreError> {
        let damaged = |why: String| PodStoreError::Damaged {
            path: path.into(),
            why,
        };
        let text = file::read_start(path, MAX_RECORD_BYTES + 1);
        let text = text.map_err(|source| PodStoreError::Io {
            path: path.into(),
            source,
        })?;
        if text.len() as u64 > MAX_RECORD_BYTES {
            return Err(damaged(format!("over {MAX_RECORD_BYTES} bytes")));
        }
        parse_record(&text).map_err(|e| damaged(e.to_string()))
    }

    /// The result of decoding a record's object, with the record named if that failed.
    pub(super) fn check_decoded<T>(
        &self,
        uid: &PodUid,
        decoded: Result<T, impl Display>,
    ) -> Result<T, PodStoreError> {
        decoded.map_err(|why| PodStoreError::Damaged {
            path: self.record_path(uid),
            why: why.to_string(),
        })
    }

    /// Keeps the object of a pod that shall start again once its present incarnation has ended.
    pub(super) fn write_next(
        &self,
        uid: &PodUid,
        header: &PodRecordHeader,
        object: &serde_json::Value,
    ) -> Result<(), PodStoreError> {
        self.write_as(NEXT, uid, header, object)
    }

    /// Makes the object kept by [`PodStore::write_next`] the pod's record. None kept is success.
    pub(super) fn adopt_next(&self, uid: &PodUid) -> Result<(), PodStoreError> {
        let dir = self.pod_dir(uid);
        let waiting = self.waiting.join(uid.as_str());
        let newest = waiting.join(NEXT);
        if newest.exists() {
            // What the disk keeps is older, and must not be found when this is asked for again.
            let older = dir.join(NEXT);
            return match remove_record(&older) {
                // It cannot go, so it stays outdone.
                Err(_) if older.exists() => {
                    let (header, object) = self.read_record_at::<serde_json::Value>(&newest)?;
                    self.write_waiting_record(RECORD, uid, &header, &object, &older)
                }
                _ => rename_record(&newest, &waiting.join(RECORD)),
            };
        }
        match rename_record(&dir.join(NEXT), &dir.join(RECORD)) {
            Ok(()) => self.remove_waiting_file(RECORD, uid),
            Err(PodStoreError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Ok(())
            }
            Err(_) if !dir.join(NEXT).exists() => Ok(()),
            Err(PodStoreError::Io { path, source }) if is_unwritable(&source) => {
                let (header, object) = self.read_record_at::<serde_json::Value>(&dir.join(NEXT))?;
                self.write_waiting_record(RECORD, uid, &header, &object, &path)
            }
            Err(e) => Err(e),
        }
    }
}

fn pod_uids_in(dir: &Path) -> Vec<PodUid> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str().map(PodUid::new))
        .collect()
}

/// Header and object of a record, or what is wrong with it.
fn parse_record<T: serde::de::DeserializeOwned>(
    text: &[u8],
) -> Result<(PodRecordHeader, T), JsonTextError> {
    let at = text.iter().position(|&b| b == b'\n').unwrap_or(text.len());
    let header = parse_header(&text[..text.len().min(at.saturating_add(1))])?;
    let object = from_json(&text[at + 1..])?;
    Ok((header, object))
}

/// The first line, with its end.
fn parse_header(line: &[u8]) -> Result<PodRecordHeader, JsonTextError> {
    let text = line.strip_suffix(b"\n");
    let text = text.ok_or_else(|| JsonTextError::Syntax("no header line".into()))?;
    let header: PodRecordHeader = from_json(text)?;
    if header.v != RECORD_VERSION {
        let why = format!("version {} is not {RECORD_VERSION}", header.v);
        return Err(JsonTextError::Value(WrongValue::new("v", why)));
    }
    Ok(header)
}

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz {
    use super::*;

    /// For [`crate::fuzz`].
    pub(crate) fn run(data: &[u8]) -> String {
        use crate::logic::static_pod;
        let read = parse_record::<serde_json::Value>(data);
        let pod = read.and_then(|(_, object)| {
            static_pod::decode_recorded_pod(&object).map_err(JsonTextError::Value)
        });
        pod.map_or_else(|e| e.to_string(), |_| "ok".into())
    }
}

fn make_dir(dir: &Path) -> io::Result<()> {
    file::mark_change(dir)?;
    file::make_dirs(dir, POD_DIR_MODE)
}

fn write_in(
    dir: &Path,
    name: &str,
    header: &PodRecordHeader,
    object: &serde_json::Value,
) -> Result<(), PodStoreError> {
    let path = dir.join(name);
    let staged = dir.join(format!(".{name}.new"));
    let attempt = || -> io::Result<()> {
        make_dir(dir)?;
        crash::point("pod.directory");
        file::mark_change(&staged)?;
        let file = fs::File::options()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&staged)?;
        let mut out = io::BufWriter::new(file);
        serde_json::to_writer(&mut out, header)?;
        out.write_all(b"\n")?;
        serde_json::to_writer(&mut out, object)?;
        out.write_all(b"\n")?;
        out.into_inner().map_err(io::IntoInnerError::into_error)?;
        crash::point("pod.staged");
        file::mark_change(&path)?;
        fs::rename(&staged, &path)?;
        crash::point("pod.recorded");
        Ok(())
    };
    attempt().map_err(|source| {
        // On a full disk the half-written file would keep its blocks.
        let _ = fs::remove_file(&staged);
        PodStoreError::Io {
            path: path.clone(),
            source,
        }
    })
}

/// Returns true if there is no such file: its directory may be no directory either.
fn is_absent(e: &io::Error) -> bool {
    use io::ErrorKind::{NotADirectory, NotFound};
    matches!(e.kind(), NotFound | NotADirectory)
}

/// Returns true if the disk cannot be written, which is no fault of the record.
fn is_unwritable(e: &io::Error) -> bool {
    use io::ErrorKind::{QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    matches!(e.kind(), StorageFull | QuotaExceeded | ReadOnlyFilesystem)
        || e.raw_os_error() == Some(libc::EIO)
}

/// Removes a record. None there is success.
fn remove_record(path: &Path) -> Result<(), PodStoreError> {
    match file::mark_change(path).and_then(|()| fs::remove_file(path)) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(PodStoreError::Io {
            path: path.into(),
            source,
        }),
        _ => Ok(()),
    }
}

fn rename_record(from: &Path, to: &Path) -> Result<(), PodStoreError> {
    let renamed = file::mark_change(from).and_then(|()| fs::rename(from, to));
    renamed.map_err(|source| PodStoreError::Io {
        path: from.into(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Pod;

    #[test]
    fn a_record_for_later_waits_and_never_outlives_a_newer_one() {
        let root = crate::testing::unused_path("store-next");
        let store = PodStore::new(&root, &root.join("run"), "boot");
        let uid = PodUid::from("abc");
        let header = PodRecordHeader {
            v: RECORD_VERSION,
            ..PodRecordHeader::default()
        };
        let named = |name: &str| serde_json::json!({"metadata": {"name": name}});
        let name = || {
            store
                .read_record::<Pod>(&uid)
                .expect("read")
                .1
                .metadata
                .name
        };
        store
            .write_record(&uid, &header, &named("a"))
            .expect("write");
        store.write_next(&uid, &header, &named("b")).expect("next");
        assert_eq!(name(), "a", "the stop still needs the old object");
        store.adopt_next(&uid).expect("adopt");
        assert_eq!(name(), "b");
        store.adopt_next(&uid).expect("nothing kept is success");
        store.write_next(&uid, &header, &named("c")).expect("next");
        store
            .write_record(&uid, &header, &named("d"))
            .expect("write");
        store.adopt_next(&uid).expect("adopt");
        assert_eq!(name(), "d", "an old one kept for later is not adopted");
        fs::remove_dir_all(&root).expect("clean up");
    }

    #[test]
    fn records_wait_for_a_disk_that_cannot_be_written() {
        if !nix::unistd::geteuid().is_root() {
            skipped!("records_wait_for_a_disk_that_cannot_be_written: not root");
            return;
        }
        let root = crate::testing::unused_path("store-ro");
        let (disk, run) = (root.join("disk"), root.join("run"));
        fs::create_dir_all(&disk).expect("dir");
        fs::create_dir_all(&run).expect("dir");
        crate::sys::mount::mount_tmpfs(&disk, None, 0o755, nix::mount::MsFlags::empty())
            .expect("tmpfs");
        let read_only = |on: bool| {
            let how = if on { "remount,ro" } else { "remount,rw" };
            let mount = std::process::Command::new("mount")
                .args(["-o", how])
                .arg(&disk)
                .status();
            assert!(mount.is_ok_and(|s| s.success()), "{how}");
        };
        let store = PodStore::new(&disk, &run, "boot");
        let header = PodRecordHeader {
            v: RECORD_VERSION,
            ..PodRecordHeader::default()
        };
        let named = |name: &str| serde_json::json!({"metadata": {"name": name}});
        let name = |uid: &PodUid| store.read_record::<Pod>(uid).expect("read").1.metadata.name;
        let (old, new, big) = (
            PodUid::from("old"),
            PodUid::from("new"),
            PodUid::from("big"),
        );
        store
            .write_record(&old, &header, &named("a"))
            .expect("write");
        store.write_next(&old, &header, &named("b")).expect("write");
        read_only(true);
        store
            .write_record(&new, &header, &named("n"))
            .expect("waits");
        assert_eq!(name(&new), "n");
        store.adopt_next(&old).expect("adopt");
        assert_eq!(name(&old), "b", "from the disk that cannot be changed");
        store
            .write_record(&old, &header, &named("c"))
            .expect("waits");
        for _ in 0..2 {
            store.adopt_next(&old).expect("adopt");
            assert_eq!(name(&old), "c", "what the disk keeps for later is outdone");
        }
        store.write_next(&new, &header, &named("m")).expect("waits");
        store.adopt_next(&new).expect("adopt");
        assert_eq!(name(&new), "m");
        let much = "x".repeat(usize::try_from(MAX_WAITING_BYTES).expect("fits"));
        let refused = store
            .write_record(&big, &header, &named(&much))
            .expect_err("too much");
        assert!(
            crate::error::error_chain(&refused).contains("cannot be written"),
            "{refused:?}"
        );
        assert_eq!(store.waiting_pods().len(), 2);
        assert!(store.settle_waiting_records(&new).is_err());
        assert_eq!(name(&new), "m");
        read_only(false);
        for uid in [&old, &new] {
            store.settle_waiting_records(uid).expect("the disk is back");
        }
        assert!(store.waiting_pods().is_empty());
        store.adopt_next(&old).expect("adopt");
        assert_eq!((name(&old), name(&new)), ("c".into(), "m".into()));
        // The disk can be written again before what waits is moved there.
        store.write_next(&old, &header, &named("d")).expect("write");
        read_only(true);
        store.write_next(&old, &header, &named("e")).expect("waits");
        read_only(false);
        for _ in 0..2 {
            store.adopt_next(&old).expect("adopt");
            assert_eq!(name(&old), "e");
        }
        store
            .settle_waiting_records(&old)
            .expect("the disk is back");
        assert!(store.waiting_pods().is_empty());
        assert!(store.pod_dir(&new).join(RECORD).exists());
        read_only(true);
        store
            .write_record(&new, &header, &named("o"))
            .expect("waits");
        store.forget_waiting_records(&new).expect("forget");
        assert!(store.waiting_pods().is_empty());
        crate::sys::mount::unmount(&disk).expect("unmount");
        fs::remove_dir_all(root).expect("clean");
    }

    #[test]
    fn records_come_back_and_damage_is_named() {
        let root = crate::testing::unused_path("store");
        let store = PodStore::new(&root, &root.join("run"), "boot");
        let uid = PodUid::from("abc");
        let header = PodRecordHeader {
            v: RECORD_VERSION,
            source: "file".into(),
            digest: 7,
            ..PodRecordHeader::default()
        };
        let object = serde_json::json!({"metadata": {"name": "p", "uid": "abc"}, "spec": {"unknownField": 1}});
        store.write_record(&uid, &header, &object).expect("write");
        let (back, value) = store.read_record::<serde_json::Value>(&uid).expect("read");
        assert_eq!(
            (back, &value),
            (header.clone(), &object),
            "fields that are not modelled are kept"
        );
        assert_eq!(
            store.read_record::<Pod>(&uid).expect("pod").1.metadata.name,
            "p"
        );
        let path = store.pod_dir(&uid).join("pod.json");
        for (name, text) in [
            ("empty", ""),
            ("no object", "{\"v\":1,\"source\":\"file\"}\n"),
            ("torn", "{\"v\":1,\"source\":\"file\"}\n{\"metadata\":{\"na"),
            ("other version", "{\"v\":9,\"source\":\"file\"}\n{}\n"),
        ] {
            fs::write(&path, text).expect("write");
            let error = store.read_record::<Pod>(&uid).expect_err(name).to_string();
            assert!(error.contains("pod.json is unusable"), "{name}: {error}");
        }
        fs::remove_dir_all(&root).expect("clean up");
        assert!(matches!(
            store.read_record::<Pod>(&uid),
            Err(PodStoreError::Io { .. })
        ));
    }
}
