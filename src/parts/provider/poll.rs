//! Polling of a provider: asked for everything every five seconds, and when it reports a change (PRVD-04).

use alloc::rc::Rc;
use core::{future::Future, pin::Pin, time::Duration};

use smol::future::FutureExt as _;

use super::{
    PodProvider, PodProviders,
    wire::{CHANGES_TIMEOUT, ProviderRequest},
};
use crate::{
    agent::{
        clock::align_to_second,
        complaints::Complaints,
        external_pods::PodResync,
        recorder::{EventRecorder, EventSeverity, EventSubject},
        tasks::{AgentTask, box_task},
    },
    error::error_chain,
    logic::provider::MisreportedPod,
    net::url::encode_query_value,
};

/// Time between the end of a look and the next one.
const INTERVAL: Duration = Duration::from_secs(5);
/// Looks follow each other no faster than this.
const MIN_GAP: Duration = Duration::from_millis(20);

/// Pending answer to a question for changes: true if there are any, or may be.
type ProviderDoorbell = Pin<Box<dyn Future<Output = bool>>>;

/// Makes the tasks that watch the providers, one for each.
pub(super) fn watch_providers(
    providers: &PodProviders,
    resync: &PodResync,
    recorder: &Rc<EventRecorder>,
    complaints: &Rc<Complaints>,
) -> Vec<AgentTask> {
    let task = |provider: &Rc<PodProvider>| {
        let watcher = ProviderWatcher {
            provider: Rc::clone(provider),
            resync: Rc::clone(resync),
            recorder: Rc::clone(recorder),
            complaints: Rc::clone(complaints),
        };
        box_task(watcher.watch_provider())
    };
    providers.iter().map(task).collect()
}

struct ProviderWatcher {
    provider: Rc<PodProvider>,
    resync: PodResync,
    recorder: Rc<EventRecorder>,
    complaints: Rc<Complaints>,
}

impl ProviderWatcher {
    /// Looks until the loop is gone.
    async fn watch_provider(self) {
        let clock = Rc::clone(&self.provider.clock);
        let mut doorbell: Option<(String, ProviderDoorbell)> = None;
        // It rang, and nothing had changed: it is not listened to until the next look at the interval.
        let mut rang_for = None;
        // Bounded: each turn waits for `MIN_GAP` at least.
        loop {
            if !self.poll_once().await {
                return;
            }
            let ended = clock.now();
            let cursor = self.provider.cursor.borrow().clone();
            if rang_for.take().is_some_and(|of| of == cursor) {
                doorbell = None;
            } else if doorbell.as_ref().is_none_or(|(of, _)| *of != cursor) {
                doorbell = self.ask_for_change(cursor);
            }
            let mut is_over = false;
            let tick = clock.sleep_until(align_to_second(ended + INTERVAL, ended));
            let ring = async {
                if let Some((of, asking)) = &mut doorbell {
                    let has_changed = asking.as_mut().await;
                    is_over = true;
                    if has_changed {
                        rang_for = Some(of.clone());
                        return;
                    }
                }
                core::future::pending().await
            };
            tick.or(self.provider.asked.wait_for_wake()).or(ring).await;
            if is_over {
                doorbell = None;
            }
            clock.sleep_until(ended + MIN_GAP).await;
        }
    }

    /// Takes one look. Returns false if the loop is gone.
    async fn poll_once(&self) -> bool {
        let provider = &self.provider;
        let was_heard = provider.is_heard();
        match provider.poll_pods().await {
            Ok(news) => {
                if !was_heard {
                    log::info!("provider {} answers", provider.handler);
                }
                tell_bad(&self.recorder, &news.bad);
                (self.resync)(news.sync).await
            }
            Err(e) => {
                let why = error_chain(&e);
                let complaint = format!("provider {}: {why}", provider.handler);
                self.complaints.complain(&complaint);
                (self.resync)(Vec::new()).await
            }
        }
    }

    /// Asks to be told of the next change after `cursor`. A provider that cannot do that, or fails, is asked at the
    /// interval only.
    fn ask_for_change(&self, cursor: String) -> Option<(String, ProviderDoorbell)> {
        if cursor.is_empty() || !self.provider.table.borrow().is_answering() {
            return None;
        }
        let provider = Rc::clone(&self.provider);
        let request = ProviderRequest {
            time: CHANGES_TIMEOUT,
            ..ProviderRequest::new(
                "GET",
                format!("/changes?after={}", encode_query_value(&cursor)),
            )
        };
        let asking = async move {
            // Else nothing changed, or that is not known: the next look is at the interval.
            matches!(provider.wire.send_request(request).await, Ok(answer) if answer.status == 200)
        };
        Some((cursor, Box::pin(asking)))
    }
}

/// Tells people of statuses that were not believed (PRVD-05).
pub(super) fn tell_bad(recorder: &EventRecorder, bad: &[MisreportedPod]) {
    for bad in bad {
        let about = EventSubject::whole_object(&bad.uid, &bad.namespace, &bad.name);
        recorder.record_event(
            about,
            EventSeverity::Warning,
            "ProviderStatusInvalid",
            &bad.why,
        );
    }
}
