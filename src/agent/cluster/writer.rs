//! Writes to the API about pods: which are due, and when.

use core::cell::{Cell, RefCell};

use crate::{
    agent::{core::Agent, wake::WakeFlag},
    api::{MonoTime, ObjectMeta, PodUid, WallTime, order::OrderExt as _, pod::CONFIG_HASH},
    logic::{
        mirror::{self, MirrorAction, MirrorPod, MirrorPods, PodFullName},
        status_writer::{
            ApiPodCopy, StatusWrite, StatusWriter, WriteAnswer, WriteFailure, WriteFollowUp,
        },
    },
};

/// A change of the agent's pods that the API may have to be told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::agent) enum PodNews {
    /// A status was stored that says something new.
    Status,
    /// The set of pods that may run has changed, or an end has moved on.
    Pods,
    /// Static pods are others, or those that end.
    StaticPods,
    /// Stored statuses are dated anew.
    Redated,
    /// All pods are ended now, and then the agent ends, as when the machine is switched off. A kubelet that goes down with
    /// its machine tells nothing either: pods are no less wanted for it, and start again with the next.
    EndOfAll,
}

/// Writer of pods to the API: statuses, deletions, mirrors of static pods.
///
/// ```text
/// whoever stores a status ──on(News::Status)──▶ ApiWriter ──wakes──▶ StatusSender ──next_write(pods)──▶ PATCH
///                                                  ▲ ▲                                              │
/// PodPoller ──api_shows, api_lost──────────────────┘ └─────────────── patched, deleted ─────────────┘
/// ```
///
/// Holds what the API last showed of each pod, and what was told. The truth is asked of the pods each time. As many
/// entries as the API has pods of this node, and [`MirrorPods`].
pub(in crate::agent) struct ApiWriter {
    statuses: RefCell<StatusWriter>,
    mirrors: RefCell<MirrorPods>,
    /// Wakes the sender of statuses.
    statuses_due: WakeFlag,
    /// Mirrors may not be as they should.
    mirrors_due: WakeFlag,
    /// Set once the loop knows what an agent before this one has recorded.
    is_restored: Cell<bool>,
    /// All of the API's pods were read once. What is on disk may be older than what was told: a power cut takes the newest.
    is_listed: Cell<bool>,
    /// The agent ends with its pods: how they end is not the API's business.
    is_silent: Cell<bool>,
}

/// A task for the keeper of mirrors.
pub(super) enum MirrorWork {
    /// The static pod of that uid has none.
    Create(PodUid, PodFullName),
    /// Delete the mirror with that UID: it stands for no static pod, or for an older one.
    Delete(PodFullName, PodUid),
}

impl ApiWriter {
    /// Begins without a known pod.
    pub(super) fn new(seed: u64) -> Self {
        Self {
            statuses: RefCell::new(StatusWriter::new(seed)),
            mirrors: RefCell::default(),
            statuses_due: WakeFlag::default(),
            mirrors_due: WakeFlag::default(),
            is_restored: Cell::new(false),
            is_listed: Cell::new(false),
            is_silent: Cell::new(false),
        }
    }

    /// Takes news of the agent's pods.
    pub(in crate::agent) fn take_pod_news(&self, news: PodNews) {
        match news {
            PodNews::Status | PodNews::Pods => {
                self.statuses.borrow_mut().on_status_change();
                self.statuses_due.wake_waiters();
            }
            PodNews::Redated => {
                self.statuses.borrow_mut().on_times_corrected();
                self.statuses_due.wake_waiters();
            }
            PodNews::StaticPods => self.mirrors_due.wake_waiters(),
            PodNews::EndOfAll => self.is_silent.set(true),
        }
    }

    /// Notes that the loop knows the recorded pods of the API.
    pub(super) fn note_restored(&self) {
        self.is_restored.set(true);
        self.statuses_due.wake_waiters();
    }

    /// All of the API's pods were read.
    pub(super) fn note_listed(&self) {
        if !self.is_listed.replace(true) {
            self.statuses_due.wake_waiters();
        }
    }

    /// The API shows a pod so. Returns whether it is a mirror.
    pub(super) fn take_shown_pod(
        &self,
        uid: &PodUid,
        copy: ApiPodCopy,
        mirror: Option<(PodFullName, MirrorPod)>,
    ) -> bool {
        self.statuses.borrow_mut().on_api_copy(uid, copy);
        self.statuses_due.wake_waiters();
        let Some((name, mirror)) = mirror else {
            return false;
        };
        self.mirrors.borrow_mut().record_mirror(name, mirror);
        true
    }

    /// The API does not have the pod any more. Returns whether it was a mirror.
    pub(super) fn take_lost_pod(&self, uid: &PodUid) -> bool {
        self.statuses.borrow_mut().on_pod_gone(uid);
        let Some(name) = self.mirrored_pod_name(uid) else {
            return false;
        };
        self.mirrors.borrow_mut().forget_mirror(&name, uid);
        true
    }

    /// Returns true if statuses may be written.
    pub(super) fn may_write_statuses(&self) -> bool {
        self.is_restored.get() && self.is_listed.get() && !self.is_silent.get()
    }

    /// Chooses the next write by the present state of the agent's pods.
    pub(super) fn next_status_write(
        &self,
        agent: &Agent,
        now: MonoTime,
        wall: WallTime,
    ) -> Option<StatusWrite> {
        if !self.may_write_statuses() {
            return None;
        }
        agent.with_local_statuses(&self.mirrors.borrow(), |truths| {
            self.statuses.borrow_mut().poll_write(truths, now, wall)
        })
    }

    /// Instant of the next possible write, if nothing happens until then.
    pub(super) fn next_write_time(&self, now: MonoTime) -> MonoTime {
        if self.may_write_statuses() {
            self.statuses.borrow().next_timeout(now)
        } else {
            MonoTime(u64::MAX)
        }
    }

    /// Waits until something may have to be written.
    pub(super) async fn wait_for_status_work(&self) {
        self.statuses_due.wait_for_wake().await;
    }

    /// Returns true, once, if somebody else has changed a status.
    pub(super) fn take_external_change(&self) -> bool {
        self.statuses.borrow_mut().take_external_change()
    }

    /// Returns true if statuses are on their way.
    pub(super) fn has_writes_pending(&self) -> bool {
        self.statuses.borrow().is_busy()
    }

    /// A write was answered with that word. Returns whether it is another than on the write before.
    pub(super) fn is_new_write_answer(&self, uid: &PodUid, word: WriteAnswer) -> bool {
        self.statuses.borrow_mut().on_write_answer(uid, word)
    }

    /// A status was answered.
    pub(super) fn note_patched(
        &self,
        uid: &PodUid,
        answer: Result<ApiPodCopy, WriteFailure>,
        now: MonoTime,
    ) -> WriteFollowUp {
        self.statuses.borrow_mut().on_patched(uid, answer, now)
    }

    /// A deletion was answered; `None`: the pod is gone.
    pub(super) fn note_deleted(
        &self,
        uid: &PodUid,
        answer: Result<Option<ApiPodCopy>, WriteFailure>,
        now: MonoTime,
    ) -> WriteFollowUp {
        self.statuses.borrow_mut().on_deleted(uid, answer, now)
    }

    /// Wakes the sender once the consequences of an answer are drawn.
    pub(super) fn wake_status_sender(&self) {
        self.statuses_due.wake_waiters();
    }

    /// Returns true for the UID of a mirror.
    pub(super) fn is_mirror(&self, uid: &PodUid) -> bool {
        self.mirrors.borrow().static_pod_name(uid).is_some()
    }

    /// Name of the static pod that a mirror stands for; `None`: the uid is no mirror's.
    pub(super) fn mirrored_pod_name(&self, uid: &PodUid) -> Option<PodFullName> {
        self.mirrors.borrow().static_pod_name(uid).cloned()
    }

    /// UIDs of mirror pods, sorted.
    pub(super) fn mirror_uids(&self) -> Vec<PodUid> {
        self.mirrors.borrow().uids()
    }

    /// Mirrors may not be as they should.
    pub(super) fn wake_mirror_keeper(&self) {
        self.mirrors_due.wake_waiters();
    }

    /// Waits until they may not be.
    pub(super) async fn wait_for_mirror_work(&self) {
        self.mirrors_due.wait_for_wake().await;
    }

    /// The first mirror that is not as it should be and may be tried now. If there is none: when another may.
    pub(super) fn next_mirror(&self, agent: &Agent, now: MonoTime) -> Result<MirrorWork, MonoTime> {
        let mut next = MonoTime(u64::MAX);
        let mirrors = self.mirrors.borrow();
        let mut may_try = |name: &PodFullName| {
            let at = mirrors.next_try_at(name);
            if at > now {
                next = at.min(next);
            }
            at <= now
        };
        for pod in agent.static_pods() {
            let found = mirrors.find_mirror(pod.name);
            let wanted =
                match mirror::decide_mirror_action(&mirror_metadata(pod.name, pod.hash), found) {
                    MirrorAction::Nothing => continue,
                    // Also that of a pod which has ended: it shows what another was.
                    MirrorAction::Delete(mirror) => MirrorWork::Delete(pod.name.clone(), mirror),
                    MirrorAction::Create if pod.ends => continue,
                    MirrorAction::Create => MirrorWork::Create(pod.uid.clone(), pod.name.clone()),
                };
            if may_try(pod.name) {
                return Ok(wanted);
            }
        }
        if agent.sources_ready() {
            let mut names: Vec<&PodFullName> = agent.static_pods().map(|pod| pod.name).collect();
            names.stable_sort();
            let is_static = |name: &PodFullName| names.binary_search(&name).is_ok();
            let orphans = mirrors.orphaned_mirrors(is_static, |name| agent.is_static_ending(name));
            let mut orphans = orphans.into_iter();
            if let Some((name, uid)) = orphans.find(|(name, _)| may_try(name)) {
                return Ok(MirrorWork::Delete(name, uid));
            }
        }
        // Until they are, static pods of mirrors may be in a manifest that was not read yet.
        Err(next)
    }

    /// Notes the result of a task for a mirror.
    pub(super) fn note_mirror_result(&self, name: &PodFullName, went_well: bool, now: MonoTime) {
        let mut mirrors = self.mirrors.borrow_mut();
        if went_well {
            mirrors.clear_failure(name);
        } else {
            let _ = mirrors.record_failure(name, now);
        }
    }
}

/// The metadata of a static pod, as far as mirrors go.
fn mirror_metadata(name: &PodFullName, hash: &str) -> ObjectMeta {
    let hash = (!hash.is_empty()).then(|| (CONFIG_HASH.into(), hash.to_owned()));
    ObjectMeta {
        name: name.name.clone(),
        namespace: name.namespace.clone(),
        annotations: hash.into_iter().collect(),
        ..ObjectMeta::default()
    }
}

#[cfg(test)]
mod testing {
    //! What tests ask.
    impl super::ApiWriter {
        /// Describes the memory of the writer, for the report of a failure.
        pub(in crate::agent::cluster) fn describe_memory(&self) -> String {
            format!("{:?}", self.statuses.borrow())
        }
    }
}
