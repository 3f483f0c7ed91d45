//! Outcomes of pods, on disk beside their records: `<root>/pods/<uid>/outcome.json`, mode 0600.
//!
//! What ran is forgotten with the run directory when the machine is booted. A pod that is not to run for ever must not run
//! again because of that, nor a container of it that has succeeded; when its manifest is removed its outcome goes too.

use std::io;

use serde::{Deserialize, Serialize};

use super::pod_store::{PROVIDER, PodRecordHeader, PodStore, PodStoreError};
use crate::{
    api::{PodStatus, PodUid, cri::ContainerStatus, strict::from_json},
    error::error_chain,
    logic::{mux::PodSource, outcome},
};

/// Version of the file's form.
const VERSION: u32 = 1;
/// Version of the record of a pod that goes on after a boot without some of its containers. Older agents do not know
/// it: they pass it over and run the whole pod.
const VERSION_GOES_ON: u32 = 2;
/// Bytes of a file: a status with as many containers and messages as a pod can have, and the containers once more.
const MAX_BYTES: u64 = 2 << 20;

/// Outcome of a pod that is to outlive the machine's boot.
#[derive(Clone, Debug)]
pub(super) struct PodOutcome {
    /// Status in which the pod ended, or with which it began.
    pub(super) status: PodStatus,
    /// Set if the pod is to run after the next boot as well.
    pub(super) goes_on: bool,
    /// Containers that do not run again, of a pod that goes on; else none.
    pub(super) succeeded: Vec<ContainerStatus>,
}

impl PodOutcome {
    /// Makes the outcome of a pod that has ended.
    pub(super) fn ended(status: PodStatus) -> Self {
        Self {
            status,
            goes_on: false,
            succeeded: Vec::new(),
        }
    }
}

/// Outcome of a pod in an earlier boot.
#[derive(Debug)]
pub(super) enum EarlierOutcome {
    /// The pod has ended with this status.
    Ended(Box<PodStatus>),
    /// The pod goes on without these containers.
    GoesOn(Vec<ContainerStatus>),
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodOutcomeFile {
    v: u32,
    /// Boot in which it was written.
    boot_id: String,
    /// Digest of the object, as in the pod's record: another pod of the same UID has another outcome.
    digest: u64,
    status: PodStatus,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    succeeded: Vec<ContainerStatus>,
}

impl PodOutcomeFile {
    /// Returns true if all that `outcome` of the same pod says is kept already: an end does not change, and a begin is
    /// noted once.
    fn covers(&self, outcome: &PodOutcome) -> bool {
        if self.status.phase.is_terminal() {
            return !outcome::has_new_container_end(&self.status, &outcome.status);
        }
        // Times are kept in whole seconds: an instance is told by its id.
        let same = self
            .succeeded
            .iter()
            .map(|c| &c.id)
            .eq(outcome.succeeded.iter().map(|c| &c.id));
        let same = same && self.v == outcome_version(outcome);
        !outcome.status.phase.is_terminal() && same
    }
}

fn read_outcome_file(store: &PodStore, uid: &PodUid) -> Option<PodOutcomeFile> {
    let bytes = store.read_outcome(uid, MAX_BYTES)?;
    // A damaged one counts as none: the pod runs once more.
    let kept: PodOutcomeFile = from_json(&bytes).ok()?;
    [VERSION, VERSION_GOES_ON].contains(&kept.v).then_some(kept)
}

/// Keeps what is the pod's outcome, or shows that it began. Durable: it is for after a power cut, and for a boot that
/// finds no apiserver to ask. A pod without a record has nothing to be kept for. Returns whether it waits for the disk. Blocking.
pub(super) fn keep_outcome(
    store: &PodStore,
    uid: &PodUid,
    outcome: PodOutcome,
) -> io::Result<bool> {
    let header = match store.read_record_header(uid) {
        Err(PodStoreError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            return Ok(false);
        }
        read => read.map_err(io::Error::other)?,
    };
    let digest = pod_identity(&header);
    let known = read_outcome_file(store, uid).filter(|kept| kept.digest == digest);
    if known.is_some_and(|kept| kept.covers(&outcome)) {
        return Ok(false);
    }
    let kept = PodOutcomeFile {
        v: outcome_version(&outcome),
        boot_id: store.boot_id().into(),
        digest,
        status: outcome.status,
        succeeded: outcome.succeeded,
    };
    store.keep_outcome(uid, &serde_json::to_vec(&kept)?)
}

/// Recalls the state from which the pod with this record starts: a terminal status if the pod ended in an earlier boot,
/// or began and must not begin again; or the containers that it does without. Within one boot the runtime knows better,
/// except for what has ended: that stays as it was, see [`outcome::stays_ended`]. Blocking.
pub(super) fn recall_outcome(
    store: &PodStore,
    uid: &PodUid,
    header: &PodRecordHeader,
) -> Option<EarlierOutcome> {
    let kept = read_outcome_file(store, uid)?;
    let of_the_api = header.source == PodSource::Api.as_str();
    let ended = outcome::stays_ended(&kept.status, of_the_api);
    let booted = store.boot_id() != kept.boot_id;
    // Providers forget what has ended, and a boot of this machine ends nothing of theirs.
    let provided = store.pod_dir(uid).join(PROVIDER).exists();
    let counts = match provided {
        true => kept.status.phase.is_terminal(),
        false => ended || booted,
    };
    if kept.digest != pod_identity(header) || !counts {
        return None;
    }
    Some(match kept.v {
        VERSION => EarlierOutcome::Ended(Box::new(outcome::status_after_reboot(kept.status))),
        _ => EarlierOutcome::GoesOn(kept.succeeded),
    })
}

const fn outcome_version(outcome: &PodOutcome) -> u32 {
    match outcome.goes_on {
        false => VERSION,
        true => VERSION_GOES_ON,
    }
}

/// Identity that tells a pod from another of the same UID. A pod of the apiserver is told by its UID alone: new labels
/// do not make it run again.
fn pod_identity(header: &PodRecordHeader) -> u64 {
    if header.source == PodSource::Api.as_str() {
        0
    } else {
        header.digest
    }
}

/// Forgets it, for good: the pod is no longer configured. If it comes back it runs.
pub(super) fn forget_outcome(store: &PodStore, uid: &PodUid) {
    if let Err(e) = store.forget_outcome(uid) {
        log::warn!("uid={uid} outcome: {}", error_chain(&e));
    }
}

#[cfg(test)]
mod tests {
    use alloc::rc::Rc;
    use std::{fs, os::unix::fs::MetadataExt as _, path::Path};

    use serde_json::json;

    use super::*;
    use crate::{
        agent::pod_store::RECORD_VERSION,
        api::{WallTime, cri::ContainerState},
        sys::file,
    };

    fn succeeded(id: &str) -> ContainerStatus {
        let mut container: ContainerStatus = serde_json::from_value(json!({
            "id": id, "sandbox": "s", "name": id, "restart_count": 0, "state": "Exited",
            "created_at": "2026-01-01T00:00:00Z", "started_at": null, "finished_at": null, "exit_code": 0, "reason": "",
            "message": "", "image": "", "image_id": "", "hash": 0, "user": null, "pid": 0, "log_path": "",
        }))
        .expect("instance");
        container.finished_at = Some(WallTime(1_700_000_000_123_456_789));
        assert_eq!(container.state, ContainerState::Exited);
        container
    }

    #[test]
    fn what_of_a_pod_has_succeeded_is_written_once_and_read_in_the_next_boot() {
        // SYNC-35
        let root = crate::testing::unused_path("outcome");
        let [first, second] = ["1", "2"].map(|boot| PodStore::new(&root, &root.join("run"), boot));
        let uid = PodUid::from("abc");
        let header = |digest| PodRecordHeader {
            v: RECORD_VERSION,
            source: "file".into(),
            digest,
            ..PodRecordHeader::default()
        };
        let has = |ids: &[&str]| PodOutcome {
            status: PodStatus::default(),
            goes_on: true,
            succeeded: ids.iter().map(|id| succeeded(id)).collect(),
        };
        let inode = || {
            fs::metadata(first.pod_dir(&uid).join("outcome.json"))
                .expect("there")
                .ino()
        };
        let recalled = |store: &PodStore, digest| match recall_outcome(store, &uid, &header(digest))
        {
            Some(EarlierOutcome::GoesOn(containers)) => {
                containers.into_iter().map(|c| c.name).collect()
            }
            Some(EarlierOutcome::Ended(status)) => panic!("{status:?}"),
            None => Vec::new(),
        };
        first
            .write_record(&uid, &header(7), &json!({}))
            .expect("record");
        keep_outcome(&first, &uid, has(&["a"])).expect("kept");
        let one = inode();
        keep_outcome(&first, &uid, has(&["a"])).expect("kept");
        assert_eq!(inode(), one, "nothing is new");
        keep_outcome(&first, &uid, has(&["a", "b"])).expect("kept");
        assert_ne!(inode(), one);
        assert_eq!(
            recalled(&first, 7),
            Vec::<String>::new(),
            "the runtime knows"
        );
        assert_eq!(recalled(&second, 7), ["a", "b"]);
        assert_eq!(recalled(&second, 8), Vec::<String>::new(), "another pod");

        // It has another manifest now: what was kept is of the one before.
        first
            .write_record(&uid, &header(8), &json!({}))
            .expect("record");
        keep_outcome(&first, &uid, has(&["b"])).expect("kept");
        assert_eq!(recalled(&second, 8), ["b"]);
        // All of it starts over.
        keep_outcome(&first, &uid, has(&[])).expect("kept");
        assert_eq!(recalled(&second, 8), Vec::<String>::new());
        forget_outcome(&first, &uid);
        assert_eq!(recalled(&second, 8), Vec::<String>::new());

        // One that ended stays so in the same boot, though its containers are removed; one that was refused is tried again.
        let ended = |state: serde_json::Value| {
            let text =
                json!({"phase": "Failed", "containerStatuses": [{"name": "c", "state": state}]});
            PodOutcome::ended(serde_json::from_value(text).expect("status"))
        };
        let refused = ended(json!({"waiting": {"reason": "ContainerCreating"}}));
        keep_outcome(&first, &uid, refused).expect("kept");
        assert!(recall_outcome(&first, &uid, &header(8)).is_none());
        forget_outcome(&first, &uid);
        let ran = ended(json!({"terminated": {"exitCode": 3}}));
        keep_outcome(&first, &uid, ran).expect("kept");
        let recalled = recall_outcome(&first, &uid, &header(8));
        assert!(
            matches!(recalled, Some(EarlierOutcome::Ended(_))),
            "{recalled:?}"
        );
        assert!(
            recall_outcome(&first, &uid, &header(9)).is_none(),
            "another pod"
        );
        fs::remove_dir_all(&root).expect("clean up");
    }

    #[test]
    fn an_end_waits_for_a_disk_that_cannot_be_written() {
        // SYNC-35
        let root = crate::testing::unused_path("outcome-ro");
        let store = PodStore::new(&root, &root.join("run"), "1");
        let uid = PodUid::from("abc");
        let header = PodRecordHeader {
            v: RECORD_VERSION,
            source: PodSource::Api.as_str().into(),
            ..PodRecordHeader::default()
        };
        store
            .write_record(&uid, &header, &json!({}))
            .expect("record");
        let failed = || {
            let text = json!({"phase": "Failed", "reason": "Evicted"});
            PodOutcome::ended(serde_json::from_value(text).expect("status"))
        };
        let reason = || match recall_outcome(&store, &uid, &header) {
            Some(EarlierOutcome::Ended(status)) => status.reason.to_string(),
            other => format!("{other:?}"),
        };
        let disk = root.join("pods");
        file::watched::set_watcher(Some(Rc::new(move |path: &Path, _| {
            let full = path.starts_with(&disk);
            let no_room = || io::Error::from_raw_os_error(libc::ENOSPC);
            if full { Err(no_room()) } else { Ok(()) }
        })));
        assert!(
            keep_outcome(&store, &uid, failed()).expect("kept"),
            "it waits"
        );
        assert_eq!(reason(), "Evicted", "for an agent of this boot");
        assert_eq!(store.waiting_pods(), core::slice::from_ref(&uid));
        file::watched::set_watcher(None);
        store.settle_waiting_records(&uid).expect("moved");
        assert_eq!(store.waiting_pods(), []);
        assert_eq!(reason(), "Evicted");
        forget_outcome(&store, &uid);
        assert_eq!(reason(), "None");
        fs::remove_dir_all(&root).expect("clean up");
    }
}
