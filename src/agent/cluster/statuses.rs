//! Sending of pod statuses, and of the ends of pods, to the apiserver. [`ApiWriter`] decides what is due. Answers go to it and
//! to the poller.

use alloc::rc::Rc;
use core::cell::RefCell;

use serde_json::{Value, json};
use smol::{channel::Sender, future::FutureExt as _};

use super::{
    answers::{self, ApiPodAnswer, ApiPodSnapshot},
    api_pods::ApiPods,
    membership::Membership,
    writer::ApiWriter,
};
use crate::{
    agent::{
        asker::AgentHandle,
        clock::Clock,
        complaints::Complaints,
        core::AgentEvent,
        outcome::{self, PodOutcome},
        pod_store::PodStore,
        tasks::{TaskSpawner, boxed},
        views::{ApiAnswer, ConfiguredPod, PodWriteKind},
    },
    api::PodUid,
    error::chain,
    kube::{KubeApi, KubeError, KubeLanes, PatchFormat},
    logic::{
        api_poll::PodListItem,
        status_writer::{
            ApiPodCopy, ForbiddenWrites, StatusWrite, WriteAnswer, WriteFailure, WriteFollowUp,
            WriteRightChange,
        },
    },
    sys::{crash, lane::Lane},
};

/// Sends statuses and deletions.
pub(super) struct StatusSender {
    pub(super) node: String,
    pub(super) spawner: TaskSpawner,
    pub(super) lanes: KubeLanes,
    pub(super) clock: Rc<dyn Clock>,
    pub(super) complaints: Rc<Complaints>,
    pub(super) writer: Rc<ApiWriter>,
    pub(super) api_pods: Rc<ApiPods>,
    pub(super) member: Rc<Membership>,
    pub(super) asker: AgentHandle,
    /// Records of pods, where their ends are kept.
    pub(super) store: PodStore,
    pub(super) disk: Lane,
    /// State of a refusal (403) to write statuses.
    pub(super) forbidden: RefCell<ForbiddenWrites>,
    /// Takes answers that say more than was known.
    pub(super) written: Sender<ApiPodAnswer>,
}

impl StatusSender {
    /// Until the executor is gone.
    pub(super) async fn run(self: Rc<Self>) {
        self.member.wait_read().await;
        loop {
            while self.writer.may_write() {
                let writes = self.next_writes().await;
                if writes.is_empty() {
                    break;
                }
                writes.into_iter().for_each(|write| self.send(write));
            }
            if self.writer.take_meddled() {
                self.member.doubt();
            }
            let due = async {
                let next = self.writer.next_timeout(self.clock.now());
                self.clock.until(next).await;
            };
            self.writer.wait_statuses().or(due).await;
        }
    }

    /// All that is to be written now.
    async fn next_writes(&self) -> Vec<StatusWrite> {
        let (now, wall) = (self.clock.now(), self.clock.wall());
        let writer = Rc::clone(&self.writer);
        let writes = self.asker.ask(move |agent| {
            let next = || writer.next_write(agent, now, wall);
            core::iter::from_fn(next).collect()
        });
        writes.await
    }

    /// Namespace and name of a pod of the API.
    fn path(&self, uid: &PodUid) -> Option<(String, String)> {
        match self.writer.mirror_name(uid) {
            Some(name) => Some((name.namespace, name.name)),
            None => self.api_pods.path(uid),
        }
    }

    fn send(self: &Rc<Self>, write: StatusWrite) {
        let this = Rc::clone(self);
        let (StatusWrite::Patch { uid, .. } | StatusWrite::Delete { uid }) = &write;
        self.api_pods.write_started(uid);
        let task = async move {
            match write {
                StatusWrite::Patch { uid, body } => this.patch(&uid, body).await,
                StatusWrite::Delete { uid } => this.delete(&uid).await,
            }
        };
        self.spawner.spawn(boxed(task));
    }

    async fn patch(&self, uid: &PodUid, body: Value) {
        // What the next agent must not do without. Of ephemeral containers: which have begun, for each runs once.
        let is_news = ["phase", "startTime", "ephemeralContainerStatuses"]
            .iter()
            .any(|field| !body["status"][field].is_null());
        let tells_end = matches!(
            body["status"]["phase"].as_str(),
            Some("Succeeded" | "Failed")
        );
        // How the containers of an ended pod ended may follow its phase, which somebody else may have written.
        let tells_containers = ["containerStatuses", "initContainerStatuses"]
            .iter()
            .any(|list| !body["status"][list].is_null());
        if (tells_end || tells_containers) && !self.writer.is_mirror(uid) {
            self.keep_end(uid).await;
        }
        let answer = match self.path(uid) {
            None => Err(not_sent()),
            Some((namespace, name)) => {
                let (own, node) = (uid.clone(), self.node.clone());
                crash::point("status.due");
                let job = move |api: &dyn KubeApi| {
                    let body = body.to_string();
                    let kind = PatchFormat::Strategic;
                    let raw = api.patch_pod_status(&namespace, &name, kind, body.as_bytes())?;
                    let shown = is_news.then(|| raw.clone());
                    let seen = ApiPodSnapshot::of(raw, &node).filter(|seen| seen.item.uid == own);
                    Ok((seen.map(Box::new), shown))
                };
                self.lanes.work(job).await
            }
        };
        crash::point("status.answered");
        let ended_by_others = match &answer {
            Ok((Some(seen), _)) if !tells_end => self.is_ended_by_others(uid, seen).await,
            _ => false,
        };
        self.tell_rights(&answer);
        let word = word(&answer).filter(|word| self.writer.is_new_word(uid, *word));
        let now = self.clock.now();
        let (mut more, mut news) = (None, None);
        let copied = match answer {
            Ok((Some(seen), shown)) if seen.pod.is_ok() => {
                let says_more = self.api_pods.write_ended(uid, Some(seen.sight), now);
                let copy = copy(&seen);
                if says_more || ended_by_others {
                    more = Some(seen);
                } else {
                    news = shown;
                }
                copy.ok_or(WriteFailure::Failed)
            }
            Ok(_) => {
                self.complaints
                    .complain(&format!("uid={uid} the answer to its status is of no use"));
                self.api_pods.write_ended(uid, None, now);
                Err(WriteFailure::Failed)
            }
            Err(e) => {
                self.api_pods.write_ended(uid, None, now);
                Err(failed(&self.complaints, uid, "status", &e))
            }
        };
        let next = self.writer.patched(uid, copied, now);
        self.follow(uid, next);
        self.tell(uid, PodWriteKind::Status, word).await;
        if let Some(seen) = more {
            // It is gone only when the agent ends.
            let _ = self.written.send(ApiPodAnswer::Written(seen)).await;
        }
        if let Some(shown) = news {
            self.asker.send(AgentEvent::Shown(uid.clone(), shown)).await;
        }
    }

    /// Keeps how a pod of the API ended, for the next agent; comes back when it lies on disk. It is told only then: a list
    /// that is older than the telling, or no list at all, would have the pod run again.
    async fn keep_end(&self, uid: &PodUid) {
        let of = uid.clone();
        let ended = self.asker.ask(move |agent| {
            // One that comes back, from a backup of the API, has not ended for good.
            let pods = agent.pods();
            let stays = pods.is_configured(&of) && !pods.comes_back(&of);
            let status = pods.status(&of).filter(|_| stays);
            status.filter(|status| status.phase.is_terminal()).cloned()
        });
        let Some(status) = ended.await else {
            return;
        };
        let (store, of) = (self.store.clone(), uid.clone());
        let kept = self
            .disk
            .run(move || outcome::keep(&store, &of, PodOutcome::ended(status)));
        match kept.await {
            Ok(false) => {}
            Ok(true) => self.asker.send(AgentEvent::Settled(true)).await,
            Err(e) => {
                let complaint = format!("uid={uid} cannot keep the outcome: {e}");
                self.complaints.complain(&complaint);
            }
        }
    }

    /// Tells when this node may not write statuses any more, and when it may again. One pod's refusal says nothing: it may be
    /// another node's by now.
    fn tell_rights<T>(&self, answer: &Result<T, KubeError>) {
        let turn = word(answer).and_then(|word| self.forbidden.borrow_mut().heard(word));
        match (turn, answer) {
            (Some(WriteRightChange::Refused), Err(e)) => log::warn!(
                "the apiserver takes no status of a pod from this node: {}. Nobody sees how its pods are. Its certificate must be \
                 of system:node:{} in the group system:nodes, and the apiserver must have --authorization-mode=Node,RBAC",
                chain(e),
                self.node
            ),
            (Some(WriteRightChange::TakenAgain), _) => {
                log::info!("the apiserver takes statuses of pods again")
            }
            (Some(WriteRightChange::Refused) | None, _) => {}
        }
    }

    /// Returns true if the API shows an end that the pod's worker does not know of (OFF-04). The phase is the agent's
    /// own field, so the poller takes it for an echo.
    async fn is_ended_by_others(&self, uid: &PodUid, seen: &ApiPodSnapshot) -> bool {
        let pod = seen.pod.as_ref();
        if !pod.is_ok_and(|pod| pod.pod.status.phase.is_terminal()) {
            return false;
        }
        let uid = uid.clone();
        let lives = move |c: ConfiguredPod| !c.has_ended;
        let look = self
            .asker
            .ask(move |agent| agent.configured(&uid).is_some_and(lives));
        look.await
    }

    async fn delete(&self, uid: &PodUid) {
        let answer = match self.path(uid) {
            None => Err(not_sent()),
            Some((namespace, name)) => {
                let (own, node) = (uid.clone(), self.node.clone());
                crash::point("deletion.due");
                let job = move |api: &dyn KubeApi| {
                    let left = api.delete_pod(&namespace, &name, &own)?;
                    Ok(left.map(|raw| ApiPodSnapshot::of(raw, &node).map(Box::new)))
                };
                self.lanes.work(job).await
            }
        };
        crash::point("deletion.answered");
        let word = word(&answer).filter(|word| self.writer.is_new_word(uid, *word));
        let now = self.clock.now();
        let mut more = None;
        let copied = match answer {
            Ok(None) => {
                self.api_pods.write_ended(uid, None, now);
                self.api_pods.deleted(uid);
                Ok(None)
            }
            Ok(Some(Some(seen))) if seen.pod.is_ok() => {
                let says_more = self.api_pods.write_ended(uid, Some(seen.sight), now);
                let copy = copy(&seen);
                more = says_more.then_some(seen);
                copy.map(Some).ok_or(WriteFailure::Failed)
            }
            Ok(Some(_)) => {
                self.api_pods.write_ended(uid, None, now);
                Err(WriteFailure::Unsure)
            }
            Err(e) => {
                self.api_pods.write_ended(uid, None, now);
                Err(failed(&self.complaints, uid, "deletion", &e))
            }
        };
        let next = self.writer.deleted(uid, copied, now);
        self.follow(uid, next);
        self.tell(uid, PodWriteKind::Deletion, word).await;
        if let Some(seen) = more {
            let _ = self.written.send(ApiPodAnswer::Written(seen)).await;
        }
    }

    /// Has the loop take down a word on a write that is another than the one before.
    async fn tell(&self, uid: &PodUid, what: PodWriteKind, word: Option<WriteAnswer>) {
        if let Some(word) = word {
            let answer = ApiAnswer::Write {
                pod: uid.clone(),
                what,
                word,
            };
            self.asker.send(AgentEvent::Api(answer)).await;
        }
    }

    /// Wakes the poller and the writer after an answer.
    fn follow(&self, uid: &PodUid, next: WriteFollowUp) {
        if next == WriteFollowUp::Reread {
            self.api_pods.reread(uid);
            // A mirror that has ended is in no list that the poller would miss it in.
            if self.writer.is_mirror(uid) {
                self.writer.api_lost(uid);
                self.writer.look_at_mirrors();
            }
        }
        self.api_pods.look_again();
        self.writer.look_again();
    }
}

/// A request that is not sent, for its pod went meanwhile.
fn not_sent() -> KubeError {
    KubeError::Cancelled
}

/// The apiserver's word on a write, if it was asked.
fn word<T>(answer: &Result<T, KubeError>) -> Option<WriteAnswer> {
    let failed = answer.as_ref().err();
    failed.map_or(Some(WriteAnswer::Done), answers::word)
}

fn copy(seen: &ApiPodSnapshot) -> Option<ApiPodCopy> {
    let pod = seen.pod.as_ref().ok()?;
    Some(answers::copy_of(&pod.pod))
}

fn failed(complaints: &Complaints, uid: &PodUid, what: &str, e: &KubeError) -> WriteFailure {
    let failure = answers::write_failure(e);
    match failure {
        // Gone, or another's by now: nothing to tell anybody.
        WriteFailure::Unsure => log::debug!("uid={uid} {what}: {}", chain(e)),
        WriteFailure::Refused | WriteFailure::Busy { .. } | WriteFailure::Failed => {
            complaints.complain(&format!("uid={uid} {what}: {}", chain(e)));
        }
    }
    failure
}

/// Tells the API that the node does not take a pod that is in no table of the agent's. One that is to be deleted is.
pub(super) async fn refuse(
    lanes: KubeLanes,
    complaints: Rc<Complaints>,
    item: PodListItem,
    reason: &'static str,
    message: String,
) {
    log::info!(
        "pod={}/{} uid={} is refused: {reason}: {message}",
        item.namespace,
        item.name,
        item.uid
    );
    let body = json!({
        "metadata": {"uid": item.uid},
        "status": {
            "phase": "Failed",
            "reason": reason,
            "message": format!("Pod was rejected: {message}"),
        },
    });
    let uid = item.uid.clone();
    let job = move |api: &dyn KubeApi| {
        let body = body.to_string();
        let PodListItem {
            namespace, name, ..
        } = &item;
        api.patch_pod_status(namespace, name, PatchFormat::Strategic, body.as_bytes())?;
        if item.deleting {
            api.delete_pod(namespace, name, &item.uid)?;
        }
        Ok::<_, KubeError>(())
    };
    if let Err(e) = lanes.work(job).await {
        // The next list brings it again.
        let _ = failed(&complaints, &uid, "refusal", &e);
    }
}
