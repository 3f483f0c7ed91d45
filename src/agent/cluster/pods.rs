//! The pods of this node, from the apiserver to the loop. When to ask is decided by [`ApiPoll`](crate::logic::api_poll::ApiPoll), what changed by the mux;
//! here the requests are made, and what they bring is recorded and told.
//!
//! ```text
//!  ApiPoll ──Ask──▶ lanes ──Answer──▶ one queue ──▶ ApiPoll ──Deliver──▶ mux ──▶ record on disk ──▶ loop
//!                 doorbell ──Rung──────────▲
//!                 statuses ──Written───────┘  (an answer to a write that says more than was known)
//! ```
//!
//! One queue, worked off one by one: an object that was read before another of the same pod is also delivered before it.

use alloc::{collections::BTreeMap, rc::Rc};
use core::time::Duration;

use smol::{
    channel::{Receiver, Sender},
    future::FutureExt as _,
};

use super::{
    answers::{self, ApiPodAnswer, ApiPodSnapshot},
    api_pods::ApiPods,
    membership::Membership,
    restore::PodRecordRestorer,
    statuses,
    writer::ApiWriter,
};
use crate::{
    agent::{
        asker::AgentHandle,
        clock::Clock,
        complaints::Complaints,
        core::{Agent, AgentEvent, SourceNews},
        link_policy::LinkPolicy,
        pod_store::RETRY,
        recorder::{EventRecorder, EventSeverity, EventSubject},
        tasks::{TaskSpawner, box_task},
        views::{ApiAnswer, ApiPodChange, DeliveryResult, LoopEnded},
    },
    api::{
        MonoTime, PodUid,
        received::{ReceivedPod, SnapshotEntry},
    },
    error::error_chain,
    kube::{DoorbellNews, KubeApi, KubeLanes, WatchDoorbell, WatchEnd, WatchOptions},
    logic::{
        api_poll::{
            ApiRequestFailure, DeliveryVerdict, DoorbellEnd, GetTicket, PodListItem, PodListKind,
            PollIntervals, PollRequest,
        },
        object_fields,
    },
};

/// A watch ends after this time, a little before a list would be due all the same.
const WATCH_TIME: Duration = Duration::from_secs(280);
/// A watch that ends so much earlier did not end by its time: the server stops, or was put back to an older state in
/// which the versions known here lie in the future.
const WATCH_SLACK: Duration = Duration::from_secs(10);
/// Reason of a pod that no list of pods can be told more of than that it is wrong; a kubelet's word for what admission did
/// not expect.
const UNUSABLE: &str = "UnexpectedAdmissionError";

/// Reason of a pod with fields that this node leaves out.
const UNSUPPORTED: &str = "UnsupportedField";

/// Asks for pods; what comes goes to one queue.
pub(super) struct PodRequests {
    pub(super) node: String,
    pub(super) spawner: TaskSpawner,
    pub(super) lanes: KubeLanes,
    pub(super) complaints: Rc<Complaints>,
    pub(super) answers: Sender<ApiPodAnswer>,
    /// Cost of the link. While bytes cost money, lists are further apart and a watch asks for no bookmarks.
    pub(super) link_policy: Rc<dyn LinkPolicy>,
}

impl PodRequests {
    fn request_list(&self, list: PodListKind) {
        let (lanes, node) = (self.lanes.clone(), self.node.clone());
        let answers = self.answers.clone();
        let task = async move {
            let objects = answers.clone();
            let job = move |api: &dyn KubeApi| {
                let mut items = Vec::new();
                let mut each = |meta| items.push(answers::item_from_metadata(meta));
                let ended = match list {
                    PodListKind::Live => api.list_pods(&node, &mut each),
                    PodListKind::All => api.list_all_pods(&node, &mut each),
                    PodListKind::Objects => api.list_whole_pods(&node, &mut |raw| {
                        if let Some(seen) = ApiPodSnapshot::from_object(raw, &node) {
                            // Nobody takes it only when the agent ends.
                            let _ = objects.send_blocking(ApiPodAnswer::Object(Box::new(seen)));
                        }
                    }),
                };
                ApiPodAnswer::Listed(items, ended)
            };
            let answer = lanes.run_request(job).await;
            let _ = answers.send(answer).await;
        };
        self.spawner.spawn(box_task(task));
    }

    fn request_pod(&self, ticket: GetTicket, namespace: Box<str>, name: Box<str>) {
        let (lanes, node) = (self.lanes.clone(), self.node.clone());
        let answers = self.answers.clone();
        let task = async move {
            let job = move |api: &dyn KubeApi| {
                let read = api.read_pod(&node, &namespace, &name)?;
                let seen = ApiPodSnapshot::from_object(read, &node).map(Box::new);
                // Another pod than the one asked for is no answer.
                Ok(seen.filter(|s| s.item.namespace == namespace && s.item.name == name))
            };
            let got = lanes.run_request(job).await;
            let _ = answers.send(ApiPodAnswer::Got(ticket, got)).await;
        };
        self.spawner.spawn(box_task(task));
    }

    fn refuse_pod(&self, item: PodListItem, reason: &'static str, message: &str) {
        let (lanes, complaints) = (self.lanes.clone(), Rc::clone(&self.complaints));
        let task = statuses::refuse_pod(lanes, complaints, item, reason, message.into());
        self.spawner.spawn(box_task(task));
    }

    /// Has the doorbell watch, and makes one first if there is none. Returns whether there is one.
    async fn start_watch(&self, bell: &mut Option<WatchDoorbell>, from: &str) -> bool {
        if bell.is_none() {
            match self.lanes.open_doorbell() {
                Ok(started) => *bell = Some(started),
                Err(e) => self.complaints.complain(&format!(
                    "apiserver: cannot start a thread that watches pods: {e}"
                )),
            }
        }
        let Some(bell) = bell else { return false };
        bell.start_watch(WatchOptions {
            node: self.node.clone(),
            resource_version: from.into(),
            timeout: WATCH_TIME,
            bookmarks: !self.link_policy.is_metered(),
        })
        .await;
        true
    }
}

/// Polls the pods of this node, and hands on what it learns.
pub(super) struct PodPoller {
    pub(super) requests: PodRequests,
    pub(super) answers: Receiver<ApiPodAnswer>,
    pub(super) clock: Rc<dyn Clock>,
    pub(super) recorder: Rc<EventRecorder>,
    pub(super) writer: Rc<ApiWriter>,
    pub(super) api_pods: Rc<ApiPods>,
    pub(super) member: Rc<Membership>,
    pub(super) asker: AgentHandle,
    pub(super) course: PollerState,
}

/// Other memory of the poller.
#[derive(Debug, Default)]
pub(super) struct PollerState {
    /// Pods whose record could not be written, to be read again.
    unrecorded: BTreeMap<PodUid, MonoTime>,
    /// Start of the watch.
    watching_since: MonoTime,
    /// Set if the last list came; `None` before the first.
    lists: Option<bool>,
}

/// Reason why the poller wakes.
enum PollerWakeReason {
    Answer(ApiPodAnswer),
    Rung(DoorbellNews),
    Due,
}

impl PodPoller {
    /// Until the loop is gone.
    pub(super) async fn poll_pods(mut self, restore: PodRecordRestorer) {
        // Only the loop's end ends it.
        let _ = self.poll_until_end(restore).await;
    }

    fn now(&self) -> MonoTime {
        self.clock.now()
    }

    fn complain(&self, text: &str) {
        self.requests.complaints.complain(text);
    }

    async fn poll_until_end(&mut self, restore: PodRecordRestorer) -> Result<(), LoopEnded> {
        restore.restore_all().await?;
        let mut bell = None;
        loop {
            self.send_due_requests(&mut bell).await?;
            match self.wait_for_wake(bell.as_ref()).await {
                PollerWakeReason::Answer(answer) => self.take_answer(answer).await?,
                PollerWakeReason::Rung(rung) => self.take_doorbell_news(rung),
                PollerWakeReason::Due => self.retry_unrecorded(),
            }
        }
    }

    /// Waits for whatever comes first.
    async fn wait_for_wake(&self, bell: Option<&WatchDoorbell>) -> PollerWakeReason {
        let is_read = self.member.is_node_read();
        let answer = async {
            match self.answers.recv().await {
                Ok(answer) => PollerWakeReason::Answer(answer),
                Err(_) => core::future::pending().await,
            }
        };
        let rung = async {
            match bell {
                Some(bell) => PollerWakeReason::Rung(WatchDoorbell::next_news(bell).await),
                None => core::future::pending().await,
            }
        };
        let asked = async {
            if is_read {
                self.api_pods.wait_for_work().await;
            } else {
                self.member.wait_for_node_read().await;
            }
            PollerWakeReason::Due
        };
        let due = async {
            let now = self.now();
            let next = is_read.then(|| self.api_pods.with_poll(|poll| poll.next_timeout(now)));
            let retry = self.course.unrecorded.values().min().copied();
            let first = [next, retry].into_iter().flatten().min();
            self.clock
                .sleep_until(first.unwrap_or(MonoTime(u64::MAX)))
                .await;
            PollerWakeReason::Due
        };
        answer.or(rung).or(asked).or(due).await
    }

    /// Does all that is to be done now.
    async fn send_due_requests(
        &mut self,
        bell: &mut Option<WatchDoorbell>,
    ) -> Result<(), LoopEnded> {
        if !self.member.is_node_read() {
            return Ok(());
        }
        let link = &self.requests.link_policy;
        let paces = match link.is_metered() || link.is_spent() {
            true => PollIntervals::METERED,
            false => PollIntervals::NORMAL,
        };
        self.api_pods
            .with_poll(|poll| poll.set_list_interval(paces.list));
        loop {
            let now = self.now();
            match self.api_pods.with_poll(|poll| poll.poll(now)) {
                None => return Ok(()),
                Some(PollRequest::List(list)) => self.requests.request_list(list),
                Some(PollRequest::Get {
                    ticket,
                    namespace,
                    name,
                }) => self.requests.request_pod(ticket, namespace, name),
                Some(PollRequest::Watch { from }) => {
                    self.course.watching_since = now;
                    if !self.requests.start_watch(bell, &from).await {
                        self.api_pods
                            .with_poll(|poll| poll.on_watch_end(DoorbellEnd::Broken, now));
                    }
                }
                Some(PollRequest::Gone(uid)) => self.note_pod_gone(uid).await?,
                Some(PollRequest::Refuse(item)) => {
                    let message = "Node didn't have enough resource: pods";
                    self.requests.refuse_pod(item, "OutOfpods", message);
                }
                Some(PollRequest::Complete) => self.complete_list().await?,
            }
        }
    }

    fn take_doorbell_news(&self, rung: DoorbellNews) {
        let now = self.now();
        let end = match rung {
            DoorbellNews::Ring(ring) => {
                return self
                    .api_pods
                    .with_poll(|poll| match answers::translate_ring(ring) {
                        Some(ring) => poll.on_watch_event(&ring, now),
                        None => poll.on_unknown_watch_event(),
                    });
            }
            DoorbellNews::Overrun => {
                return self
                    .api_pods
                    .with_poll(|poll| poll.on_unknown_watch_event());
            }
            DoorbellNews::Ended(Ok(WatchEnd::Clean)) => {
                let lived = now - self.course.watching_since;
                if lived + WATCH_SLACK < WATCH_TIME {
                    DoorbellEnd::Broken
                } else {
                    DoorbellEnd::Clean
                }
            }
            DoorbellNews::Ended(Ok(WatchEnd::Error(e))) => {
                log::debug!("apiserver: watch of pods: {e}");
                DoorbellEnd::Broken
            }
            DoorbellNews::Ended(Err(e)) => {
                log::debug!("apiserver: watch of pods: {}", error_chain(&e));
                DoorbellEnd::Broken
            }
        };
        self.api_pods.with_poll(|poll| poll.on_watch_end(end, now));
    }

    async fn take_answer(&mut self, answer: ApiPodAnswer) -> Result<(), LoopEnded> {
        let (now, api_pods) = (self.now(), &self.api_pods);
        match answer {
            ApiPodAnswer::Listed(items, ended) => {
                api_pods
                    .with_poll(|poll| items.iter().for_each(|item| poll.on_list_item(item, now)));
                let came = ended.is_ok();
                match ended {
                    Ok(listed) => {
                        api_pods.with_poll(|poll| poll.on_list_end(&listed.resource_version, now));
                    }
                    Err(e) => {
                        self.complain(&format!("apiserver: pods: {}", error_chain(&e)));
                        let failure = answers::classify_list_failure(&e);
                        api_pods.with_poll(|poll| poll.on_list_failed(failure, now));
                    }
                }
                if self.course.lists.replace(came) != Some(came) {
                    self.asker
                        .send_event(AgentEvent::Api(ApiAnswer::Lists(came)))
                        .await;
                }
                // The queue is empty: what stood in memory whole lives on disk by now.
                crate::sys::memory::trim_memory();
                Ok(())
            }
            ApiPodAnswer::Object(seen) if seen.pod.is_err() => {
                // It is read by itself, and judged then.
                api_pods.with_poll(|poll| poll.on_list_item(&seen.item, now));
                Ok(())
            }
            ApiPodAnswer::Object(seen) => {
                let verdict =
                    api_pods.with_poll(|poll| poll.on_list_object(&seen.item, seen.sight, now));
                self.deliver_pod(verdict, seen).await
            }
            ApiPodAnswer::Got(ticket, Ok(Some(seen))) if seen.pod.is_ok() => {
                let verdict =
                    api_pods.with_poll(|poll| poll.on_read(ticket, &seen.item, seen.sight, now));
                self.deliver_pod(verdict, seen).await
            }
            ApiPodAnswer::Got(ticket, Ok(seen)) => {
                api_pods.with_poll(|poll| {
                    poll.on_read_failed(ticket, ApiRequestFailure::Unusable, now)
                });
                if let Some(seen) = seen {
                    self.end_unusable_pod(*seen).await;
                }
                Ok(())
            }
            ApiPodAnswer::Got(ticket, Err(e)) => {
                let failure = answers::classify_read_failure(&e);
                if matches!(
                    failure,
                    ApiRequestFailure::Server { .. } | ApiRequestFailure::Unusable
                ) {
                    self.complain(&format!("apiserver: pod: {}", error_chain(&e)));
                }
                api_pods.with_poll(|poll| poll.on_read_failed(ticket, failure, now));
                Ok(())
            }
            ApiPodAnswer::Written(seen) => {
                // It may have gone since.
                let verdict = if api_pods.is_known(&seen.item.uid) {
                    DeliveryVerdict::Deliver
                } else {
                    DeliveryVerdict::Ignore
                };
                self.deliver_pod(verdict, seen).await
            }
        }
    }

    async fn deliver_pod(
        &mut self,
        verdict: DeliveryVerdict,
        seen: Box<ApiPodSnapshot>,
    ) -> Result<(), LoopEnded> {
        let (DeliveryVerdict::Deliver, Ok(received)) = (verdict, seen.pod) else {
            return Ok(());
        };
        // One that has taken the name of another comes after the other's end (SRC-07).
        while let Some(uid) = self.api_pods.with_poll(|poll| poll.next_gone_pod()) {
            self.note_pod_gone(uid).await?;
        }
        let uid = received.pod.metadata.uid.clone();
        let of = uid.clone();
        let look = move |agent: &Agent| agent.configured_pod(&of).map(|c| c.is_static);
        let known = self.asker.ask_agent(look).await;
        if known == Some(true) {
            // Files of root come before the apiserver.
            let message = "a static pod has this uid; this one is ignored";
            self.complain(&format!("uid={uid} {message}"));
            return Ok(());
        }
        let api_pods = &self.api_pods;
        if api_pods.with_poll(|poll| poll.reread_if_overtaken(&uid, seen.sight)) {
            // A status was written and answered while the loop was asked: this copy would hide that.
            return Ok(());
        }
        let copy = answers::api_copy_of(&received);
        let mirror = answers::parse_mirror(&received.pod);
        if self.writer.take_shown_pod(&uid, copy, mirror) {
            self.writer.wake_mirror_keeper();
            return Ok(());
        }
        self.report_unsupported_fields(&received, known.is_none());
        self.hand_to_loop(ApiPodChange::Read(received)).await
    }

    /// Tells the author of a pod which of its fields this node leaves out.
    fn report_unsupported_fields(&self, received: &ReceivedPod, is_new: bool) {
        let shown = &received.pod.status.ephemeral_container_statuses;
        let message = object_fields::describe_unsupported_fields(&received.raw, shown, is_new);
        if let Some(message) = message {
            let (pod, severity) = (&received.pod, EventSeverity::Warning);
            self.recorder
                .record_pod_event(pod, severity, UNSUPPORTED, &message);
        }
    }

    async fn note_pod_gone(&mut self, uid: PodUid) -> Result<(), LoopEnded> {
        self.course.unrecorded.remove(&uid);
        if self.writer.take_lost_pod(&uid) {
            self.writer.wake_mirror_keeper();
            return Ok(());
        }
        self.hand_to_loop(ApiPodChange::Gone(uid)).await
    }

    /// The whole is known: what is not in it is no pod of this node.
    async fn complete_list(&mut self) -> Result<(), LoopEnded> {
        let writer = &self.writer;
        let known = self.api_pods.with_poll(|poll| {
            let own = poll.delivered_pods().filter(|uid| !writer.is_mirror(uid));
            own.map(SnapshotEntry::Known).collect()
        });
        self.hand_to_loop(ApiPodChange::All(known)).await?;
        self.writer.note_listed();
        self.writer.wake_mirror_keeper();
        Ok(())
    }

    async fn hand_to_loop(&mut self, change: ApiPodChange) -> Result<(), LoopEnded> {
        let DeliveryResult {
            unknown,
            unrecorded,
        } = self
            .asker
            .deliver_source_news(SourceNews::Api(change))
            .await?;
        self.api_pods.with_poll(|poll| {
            unknown.iter().for_each(|uid| poll.undeliver(uid));
        });
        let again = self.now() + RETRY;
        let all = unrecorded.into_iter().map(|uid| (uid, again));
        self.course.unrecorded.extend(all);
        Ok(())
    }

    /// Pods without a record are read again.
    fn retry_unrecorded(&mut self) {
        let now = self.now();
        self.course.unrecorded.retain(|uid, at| {
            let due = *at <= now;
            if due {
                self.api_pods.request_reread(uid);
            }
            !due
        });
    }

    /// A pod that this agent cannot read ends here, unless something of it may run.
    async fn end_unusable_pod(&self, seen: ApiPodSnapshot) {
        let Err(why) = seen.pod else { return };
        let why = why.to_string();
        let item = seen.item;
        let uid = &item.uid;
        self.complain(&format!(
            "pod={}/{} uid={uid} cannot be used: {why}",
            item.namespace, item.name
        ));
        let about = EventSubject::whole_object(uid, &item.namespace, &item.name);
        self.recorder
            .record_event(about, EventSeverity::Warning, UNUSABLE, &why);
        let settled = seen.sight.terminal && !seen.sight.deleting;
        if settled || self.api_pods.is_known(uid) {
            return;
        }
        let of = uid.clone();
        let is_nothing = self.asker.ask_agent(move |agent| {
            agent.configured_pod(&of).is_none() && agent.runs_nothing_of(&of)
        });
        if is_nothing.await {
            self.requests.refuse_pod(item, UNUSABLE, &why);
        }
    }
}
