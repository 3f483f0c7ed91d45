//! Kubernetes events on their way: from the recorder's ring to the apiserver, one at a time, as `logic::events` says.

use alloc::rc::Rc;
use core::time::Duration;

use smol::future::FutureExt as _;

use super::writer::ApiWriter;
use crate::{
    agent::{
        clock::Clock, complaints::Complaints, link_policy::LinkPolicy, recorder::EventRecorder,
    },
    api::MonoTime,
    kube::{KubeApi, KubeError, KubeLanes},
    logic::events::{EventPost, EventPostFailure, EventPoster},
};

/// Statuses go first: events wait while any is on its way, but in one crowd no longer than this.
const MAX_YIELD: Duration = Duration::from_secs(5);
/// Between two looks whether they are done.
const YIELD_STEP: Duration = Duration::from_millis(200);

/// Sends events.
pub(super) struct EventSender {
    pub(super) lanes: KubeLanes,
    pub(super) clock: Rc<dyn Clock>,
    pub(super) complaints: Rc<Complaints>,
    pub(super) recorder: Rc<EventRecorder>,
    /// Statuses are waited for.
    pub(super) writer: Rc<ApiWriter>,
    /// Fewer are told where bytes cost money.
    pub(super) link_policy: Rc<dyn LinkPolicy>,
    pub(super) sender: EventPoster,
}

impl EventSender {
    /// Until the executor is gone.
    pub(super) async fn send_events(mut self) {
        let mut complained = 0;
        let mut busy_since = None;
        loop {
            self.wait_for_statuses(&mut busy_since).await;
            let now = self.clock.now();
            let recorder = &self.recorder;
            self.sender.set_warnings_only(self.link_policy.is_metered());
            if let Some(post) = self.sender.poll(|| recorder.next_untold(), now) {
                let sent = self
                    .lanes
                    .run_request(move |api| send_event(api, &post))
                    .await;
                self.sender.on_sent(sent, self.clock.now());
                recorder.note_lost_events(self.sender.lost_count());
                let lost = recorder.lost_event_count();
                if lost > complained {
                    self.complaints
                        .complain(&format!("apiserver: {lost} events are lost"));
                    complained = lost;
                }
                continue;
            }
            busy_since = None;
            // Due in the past: there is nothing that waits.
            let due = self.sender.next_timeout();
            let recorded = recorder.wait_for_event();
            if due > now {
                recorded.or(self.clock.sleep_until(due)).await;
            } else {
                recorded.await;
            }
        }
    }

    /// Waits for the statuses that are being written; `since`: when that began.
    async fn wait_for_statuses(&self, since: &mut Option<MonoTime>) {
        loop {
            if !self.writer.has_writes_pending() {
                *since = None;
                return;
            }
            let now = self.clock.now();
            if now - *since.get_or_insert(now) >= MAX_YIELD {
                return;
            }
            self.clock.sleep_until(now + YIELD_STEP).await;
        }
    }
}

fn send_event(api: &dyn KubeApi, post: &EventPost) -> Result<(), EventPostFailure> {
    let create = || {
        let body = post.object.to_string();
        api.create_event(&post.namespace, body.as_bytes())
    };
    let done = match &post.patch {
        None => create(),
        Some(patch) => {
            let body = patch.to_string();
            match api.patch_event(&post.namespace, &post.name, body.as_bytes()) {
                // It lives for an hour only.
                Err(e) if e.is_not_found() => create(),
                done => done,
            }
        }
    };
    done.map(|_| ()).map_err(|e| {
        log::debug!("event {}/{}: {e}", post.namespace, post.name);
        classify_send_failure(&e)
    })
}

fn classify_send_failure(e: &KubeError) -> EventPostFailure {
    match e.http_status() {
        Some(status) if status != 429 && status < 500 => EventPostFailure::Rejected,
        _ => EventPostFailure::Failed,
    }
}
