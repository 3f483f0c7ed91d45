//! The end: of the agent alone, whose pods go on, or of everything.

use core::time::Duration;

use smol::channel::Sender;

use super::Agent;
use crate::{
    api::{Mono, PodUid},
    logic::{mux::Source, pod_worker::KillOptions},
};

/// How long clients wait for the end of all pods while nothing can be done to them; the runtime may be starting.
const STOP_PATIENCE: Duration = Duration::from_secs(30);

/// Whether the agent is to end with its pods.
#[derive(Default)]
pub(super) struct Stopping {
    /// It ends once nothing of any pod is left.
    pub(super) when_idle: bool,
    /// The loop is to end.
    pub(super) finished: bool,
    /// Clients that wait for it, and since when. What they are sent is why they wait no longer.
    waiters: Vec<(Mono, Sender<String>)>,
}

impl Agent {
    pub(super) fn on_stop(&mut self, all: bool, done: Sender<String>, now: Mono) {
        self.stop.waiters.push((now, done));
        if !all {
            self.finish();
            return;
        }
        self.stop.when_idle = true;
        self.kill_all(now);
    }

    /// With every pod ended on request, the agent ends too: once the manifests have said what there is, all workers are
    /// done, and the runtime says that nothing runs.
    pub(super) fn end_if_idle(&mut self, now: Mono) {
        if !self.stop.when_idle {
            return;
        }
        let table = self.pods.table();
        let is_done = |h| table.stage(h).is_none_or(|s| s.is_finished());
        let done = table.handles().all(is_done);
        let idle = self.view.nothing_runs(now);
        // Pods that only the apiserver knows run no earlier than it is heard of.
        // Before the files of root have said which pods there are, nobody knows whether that is all.
        let told = !self.settings.has_manifests || self.sources.is_ready(Source::File);
        if done && idle && told {
            self.finish();
        }
    }

    /// While the runtime is away, clients wait no longer than [`STOP_PATIENCE`]. The pods end all the same when it is back,
    /// and the agent with them.
    pub(super) fn answer_stop_late(&mut self, now: Mono) {
        let Some(why) = self.view.down(now) else {
            return;
        };
        let waits = |since: Mono| now < since + STOP_PATIENCE;
        self.stop.waiters.retain(|(since, waiter)| {
            if !waits(*since) {
                // Who has gone does not hear it.
                let _ = waiter.try_send(format!(
                    "the pods cannot be stopped now: {why}. They are stopped when that is over, and the agent ends then"
                ));
            }
            waits(*since)
        });
    }

    /// The loop is to end. Whoever waits for that hears of it.
    pub(super) fn finish(&mut self) {
        self.stop.finished = true;
        self.stop.waiters.clear();
    }

    /// Ends every pod that has a worker, or may have something running.
    pub(super) fn kill_all(&mut self, now: Mono) {
        let uids: Vec<PodUid> = self.pods.configured();
        for uid in uids {
            let ended = self.pods.is_to_end(&uid);
            let idle = !self.pods.has_worker(&uid) && self.view.is_idle(&uid);
            if !ended && !idle {
                let config = self.pods.config(&uid).cloned();
                self.kill(&uid, config, Some(KillOptions::default()), now);
            }
        }
    }
}
