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
        tasks::{TaskSpawner, box_task},
        views::{ApiAnswer, ConfiguredPod, PodWriteKind},
    },
    api::PodUid,
    error::error_chain,
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
    pub(super) async fn send_statuses(self: Rc<Self>) {
        self.member.wait_for_node_read().await;
        loop {
            while self.writer.may_write_statuses() {
                let writes = self.take_due_writes().await;
                if writes.is_empty() {
                    break;
                }
                writes.into_iter().for_each(|write| self.start_write(write));
            }
            if self.writer.take_external_change() {
                self.member.request_reread();
            }
            let due = async {
                let next = self.writer.next_write_time(self.clock.now());
                self.clock.sleep_until(next).await;
            };
            self.writer.wait_for_status_work().or(due).await;
        }
    }

    /// All that is to be written now.
    async fn take_due_writes(&self) -> Vec<StatusWrite> {
        let (now, wall) = (self.clock.now(), self.clock.wall_time());
        let writer = Rc::clone(&self.writer);
        let writes = self.asker.ask_agent(move |agent| {
            let next = || writer.next_status_write(agent, now, wall);
            core::iter::from_fn(next).collect()
        });
        writes.await
    }

    /// Namespace and name of a pod of the API.
    fn pod_name(&self, uid: &PodUid) -> Option<(String, String)> {
        match self.writer.mirrored_pod_name(uid) {
            Some(name) => Some((name.namespace, name.name)),
            None => self.api_pods.pod_name(uid),
        }
    }

    fn start_write(self: &Rc<Self>, write: StatusWrite) {
        let this = Rc::clone(self);
        let (StatusWrite::Patch { uid, .. } | StatusWrite::Delete { uid }) = &write;
        self.api_pods.note_write_start(uid);
        let task = async move {
            match write {
                StatusWrite::Patch { uid, body } => this.patch_status(&uid, body).await,
                StatusWrite::Delete { uid } => this.delete_pod(&uid).await,
            }
        };
        self.spawner.spawn(box_task(task));
    }

    async fn patch_status(&self, uid: &PodUid, body: Value) {
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
            self.keep_outcome(uid).await;
        }
        let answer = match self.pod_name(uid) {
            None => Err(not_sent_error()),
            Some((namespace, name)) => {
                let (own, node) = (uid.clone(), self.node.clone());
                crash::point("status.due");
                let job = move |api: &dyn KubeApi| {
                    let body = body.to_string();
                    let kind = PatchFormat::Strategic;
                    let raw = api.patch_pod_status(&namespace, &name, kind, body.as_bytes())?;
                    let shown = is_news.then(|| raw.clone());
                    let seen =
                        ApiPodSnapshot::from_object(raw, &node).filter(|seen| seen.item.uid == own);
                    Ok((seen.map(Box::new), shown))
                };
                self.lanes.run_request(job).await
            }
        };
        crash::point("status.answered");
        let ended_by_others = match &answer {
            Ok((Some(seen), _)) if !tells_end => self.is_ended_by_others(uid, seen).await,
            _ => false,
        };
        self.report_write_rights(&answer);
        let word = write_answer(&answer).filter(|word| self.writer.is_new_write_answer(uid, *word));
        let now = self.clock.now();
        let (mut more, mut news) = (None, None);
        let copied = match answer {
            Ok((Some(seen), shown)) if seen.pod.is_ok() => {
                let says_more = self.api_pods.note_write_end(uid, Some(seen.sight), now);
                let copy = snapshot_copy(&seen);
                if says_more || ended_by_others {
                    more = Some(seen);
                } else {
                    news = shown;
                }
                copy.ok_or(WriteFailure::Failed)
            }
            Ok(_) => {
                self.complaints
                    .complain(&format!("uid={uid} cannot use the answer to its status"));
                self.api_pods.note_write_end(uid, None, now);
                Err(WriteFailure::Failed)
            }
            Err(e) => {
                self.api_pods.note_write_end(uid, None, now);
                Err(report_write_failure(&self.complaints, uid, "status", &e))
            }
        };
        let next = self.writer.note_patched(uid, copied, now);
        self.wake_followers(uid, next);
        self.report_write_answer(uid, PodWriteKind::Status, word)
            .await;
        if let Some(seen) = more {
            // It is gone only when the agent ends.
            let _ = self.written.send(ApiPodAnswer::Written(seen)).await;
        }
        if let Some(shown) = news {
            self.asker
                .send_event(AgentEvent::Shown(uid.clone(), shown))
                .await;
        }
    }

    /// Keeps how a pod of the API ended, for the next agent; comes back when it lies on disk. It is told only then: a list
    /// that is older than the telling, or no list at all, would have the pod run again.
    async fn keep_outcome(&self, uid: &PodUid) {
        let of = uid.clone();
        let ended = self.asker.ask_agent(move |agent| {
            // One that comes back, from a backup of the API, has not ended for good.
            let pods = agent.pods();
            let stays = pods.is_configured(&of) && !pods.is_restart_requested(&of);
            let status = pods.stored_status(&of).filter(|_| stays);
            status.filter(|status| status.phase.is_terminal()).cloned()
        });
        let Some(status) = ended.await else {
            return;
        };
        let (store, of) = (self.store.clone(), uid.clone());
        let kept = self
            .disk
            .run_job(move || outcome::keep_outcome(&store, &of, PodOutcome::ended(status)));
        match kept.await {
            Ok(false) => {}
            Ok(true) => self.asker.send_event(AgentEvent::Settled(true)).await,
            Err(e) => {
                let complaint = format!("uid={uid} cannot store the outcome: {e}");
                self.complaints.complain(&complaint);
            }
        }
    }

    /// Tells when this node may not write statuses any more, and when it may again. One pod's refusal says nothing: it may be
    /// another node's by now.
    fn report_write_rights<T>(&self, answer: &Result<T, KubeError>) {
        let turn = write_answer(answer)
            .and_then(|word| self.forbidden.borrow_mut().take_write_answer(word));
        match (turn, answer) {
            (Some(WriteRightChange::Refused), Err(e)) => log::warn!(
                "the apiserver refuses the pod statuses of this node: {}. The API does not show how its pods are. The certificate of the node must be \
                 for user system:node:{} in the group system:nodes, and the apiserver must have --authorization-mode=Node,RBAC",
                error_chain(e),
                self.node
            ),
            (Some(WriteRightChange::TakenAgain), _) => {
                log::info!("the apiserver accepts pod statuses again")
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
            .ask_agent(move |agent| agent.configured_pod(&uid).is_some_and(lives));
        look.await
    }

    async fn delete_pod(&self, uid: &PodUid) {
        let answer = match self.pod_name(uid) {
            None => Err(not_sent_error()),
            Some((namespace, name)) => {
                let (own, node) = (uid.clone(), self.node.clone());
                crash::point("deletion.due");
                let job = move |api: &dyn KubeApi| {
                    let left = api.delete_pod(&namespace, &name, &own)?;
                    Ok(left.map(|raw| ApiPodSnapshot::from_object(raw, &node).map(Box::new)))
                };
                self.lanes.run_request(job).await
            }
        };
        crash::point("deletion.answered");
        let word = write_answer(&answer).filter(|word| self.writer.is_new_write_answer(uid, *word));
        let now = self.clock.now();
        let mut more = None;
        let copied = match answer {
            Ok(None) => {
                self.api_pods.note_write_end(uid, None, now);
                self.api_pods.note_deleted_pod(uid);
                Ok(None)
            }
            Ok(Some(Some(seen))) if seen.pod.is_ok() => {
                let says_more = self.api_pods.note_write_end(uid, Some(seen.sight), now);
                let copy = snapshot_copy(&seen);
                more = says_more.then_some(seen);
                copy.map(Some).ok_or(WriteFailure::Failed)
            }
            Ok(Some(_)) => {
                self.api_pods.note_write_end(uid, None, now);
                Err(WriteFailure::Unsure)
            }
            Err(e) => {
                self.api_pods.note_write_end(uid, None, now);
                Err(report_write_failure(&self.complaints, uid, "deletion", &e))
            }
        };
        let next = self.writer.note_deleted(uid, copied, now);
        self.wake_followers(uid, next);
        self.report_write_answer(uid, PodWriteKind::Deletion, word)
            .await;
        if let Some(seen) = more {
            let _ = self.written.send(ApiPodAnswer::Written(seen)).await;
        }
    }

    /// Has the loop take down a word on a write that is another than the one before.
    async fn report_write_answer(
        &self,
        uid: &PodUid,
        what: PodWriteKind,
        word: Option<WriteAnswer>,
    ) {
        if let Some(word) = word {
            let answer = ApiAnswer::Write {
                pod: uid.clone(),
                what,
                word,
            };
            self.asker.send_event(AgentEvent::Api(answer)).await;
        }
    }

    /// Wakes the poller and the writer after an answer.
    fn wake_followers(&self, uid: &PodUid, next: WriteFollowUp) {
        if next == WriteFollowUp::Reread {
            self.api_pods.request_reread(uid);
            // A mirror that has ended is in no list that the poller would miss it in.
            if self.writer.is_mirror(uid) {
                self.writer.take_lost_pod(uid);
                self.writer.wake_mirror_keeper();
            }
        }
        self.api_pods.wake_poller();
        self.writer.wake_status_sender();
    }
}

/// A request that is not sent, for its pod went meanwhile.
fn not_sent_error() -> KubeError {
    KubeError::Cancelled
}

/// The apiserver's word on a write, if it was asked.
fn write_answer<T>(answer: &Result<T, KubeError>) -> Option<WriteAnswer> {
    let failed = answer.as_ref().err();
    failed.map_or(Some(WriteAnswer::Done), answers::failed_write_answer)
}

fn snapshot_copy(seen: &ApiPodSnapshot) -> Option<ApiPodCopy> {
    let pod = seen.pod.as_ref().ok()?;
    Some(answers::api_copy_of(pod))
}

fn report_write_failure(
    complaints: &Complaints,
    uid: &PodUid,
    what: &str,
    e: &KubeError,
) -> WriteFailure {
    let failure = answers::classify_write_failure(e);
    match failure {
        // Gone, or another's by now: nothing to tell anybody.
        WriteFailure::Unsure => log::debug!("uid={uid} {what}: {}", error_chain(e)),
        WriteFailure::Refused | WriteFailure::Busy { .. } | WriteFailure::Failed => {
            complaints.complain(&format!("uid={uid} {what}: {}", error_chain(e)));
        }
    }
    failure
}

/// Tells the API that the node does not take a pod that is in no table of the agent's. One that is to be deleted is.
pub(super) async fn refuse_pod(
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
    if let Err(e) = lanes.run_request(job).await {
        // The next list brings it again.
        let _ = report_write_failure(&complaints, &uid, "refusal", &e);
    }
}
