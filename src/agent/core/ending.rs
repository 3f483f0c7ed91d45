//! The end: of the agent alone, whose pods go on, or of everything, with or without an order.

use core::time::Duration;

use smol::channel::Sender;

use super::Agent;
use crate::{
    agent::{pods::PodConfigFacts, recorder::EventSeverity},
    api::{MonoTime, PodUid},
    logic::{
        mux::PodSource,
        pod_worker::KillOptions,
        shutdown::{self, EndingPod, NodeShutdown, PriorityGroup},
    },
};

/// Longest wait of clients for the end of all pods while the runtime cannot stop any; it may be starting.
const STOP_PATIENCE: Duration = Duration::from_secs(30);
/// Longest time for telling the apiserver of the last pods, once the machine goes down and they have ended.
pub(in crate::agent) const TELLING: Duration = Duration::from_secs(3);

/// Progress of an end of the agent together with its pods.
pub(super) struct StopProgress {
    /// The machine goes down.
    pub(super) shutdown: NodeShutdown,
    /// Clients that wait until the pods have ended with it.
    shutdown_waiters: Vec<Sender<String>>,
    /// The agent ends once no pod has remains.
    pub(super) when_idle: bool,
    /// The loop is to end.
    pub(super) finished: bool,
    /// Clients that wait for it, and since when. What they are sent is why they wait no longer.
    waiters: Vec<(MonoTime, Sender<String>)>,
}

impl StopProgress {
    /// Begins without an end in sight. `groups`: the order in which pods end with the machine.
    pub(super) fn new(groups: Vec<PriorityGroup>) -> Self {
        Self {
            shutdown: NodeShutdown::new(groups),
            shutdown_waiters: Vec::new(),
            when_idle: false,
            finished: false,
            waiters: Vec::new(),
        }
    }
}

impl Agent {
    /// The machine goes down. Unless pods are to end in groups, they end all at once, and start again with it (SHUT-01).
    pub(super) fn on_shutdown(&mut self, done: Sender<String>, now: MonoTime) {
        if !self.stop.shutdown.is_on() {
            return self.on_stop(true, done, now);
        }
        self.stop.shutdown_waiters.push(done);
        if !self.stop.shutdown.is_under_way() {
            log::warn!("the node is shutting down");
            let recorder = &self.tools.recorder;
            let message = "Shutdown manager detected shutdown event";
            recorder.record_node_event(EventSeverity::Normal, "Shutdown", message);
            let ending = |(uid, pod): (&PodUid, &PodConfigFacts)| EndingPod {
                uid: uid.clone(),
                priority: pod.takes.rank.priority.unwrap_or(0),
                grace_s: pod.id.spec_grace_s,
            };
            let pods = self.pods.active_pods().map(ending).collect();
            let cluster = self.owners.cluster.as_ref();
            let telling = cluster.map_or(Duration::ZERO, |_| TELLING);
            self.stop.shutdown.begin_shutdown(pods, telling);
            if let Some(cluster) = cluster {
                // It is not ready any more, which is told at once.
                cluster.member.request_reread();
            }
        }
        self.advance_shutdown(now);
    }

    /// The machine does not go down after all: the node is ready again, and takes pods (SHUT-06).
    pub(super) fn on_shutdown_cancelled(&mut self) {
        if !self.stop.shutdown.cancel_shutdown() {
            return;
        }
        log::warn!("the shutdown of the node was cancelled");
        let message = "Shutdown manager detected shutdown cancelled";
        self.tools
            .recorder
            .record_node_event(EventSeverity::Normal, "Shutdown", message);
        self.stop.shutdown_waiters.clear();
        if let Some(cluster) = &self.owners.cluster {
            cluster.member.request_reread();
        }
    }

    /// Ends the pods whose turn it is.
    pub(super) fn advance_shutdown(&mut self, now: MonoTime) {
        let table = self.pods.worker_table();
        let is_gone = |uid: &PodUid| table.should_pod_be_finished(uid);
        let kills = self.stop.shutdown.next_kills(is_gone, now);
        for kill in kills {
            let Some(config) = self.pods.config(&kill.uid).cloned() else {
                continue;
            };
            let options = KillOptions {
                grace_s: Some(kill.grace_s),
                evict: true,
                status: Some(Box::new(shutdown::shutdown_stop_status())),
                ..KillOptions::default()
            };
            self.kill_pod(&kill.uid, Some(config), Some(options), now);
        }
        if self.stop.shutdown.is_over() {
            self.stop.shutdown_waiters.clear();
        }
    }

    pub(super) fn on_stop(&mut self, all: bool, done: Sender<String>, now: MonoTime) {
        self.stop.waiters.push((now, done));
        if !all {
            self.finish_loop();
            return;
        }
        self.stop.when_idle = true;
        self.kill_all_pods(now);
    }

    /// With every pod ended on request, the agent ends too: once the manifests have said what there is, all workers are
    /// done, and the runtime says that nothing runs.
    pub(super) fn end_if_idle(&mut self, now: MonoTime) {
        if !self.stop.when_idle {
            return;
        }
        let table = self.pods.worker_table();
        let is_done = |h| table.pod_stage(h).is_none_or(|s| s.is_finished());
        let done = table.handles().all(is_done);
        let idle = self.view.nothing_runs(now);
        // Pods that only the apiserver knows run no earlier than it is heard of.
        // Before the files of root have said which pods there are, nobody knows whether that is all.
        let told = !self.settings.has_manifests || self.sources.is_ready(PodSource::File);
        if done && idle && told {
            self.finish_loop();
        }
    }

    /// While the runtime is away, clients wait no longer than [`STOP_PATIENCE`]. The pods end all the same when it is back,
    /// and the agent with them.
    pub(super) fn answer_stop_late(&mut self, now: MonoTime) {
        let Some(why) = self.view.down_reason(now) else {
            return;
        };
        let waits = |since: MonoTime| now < since + STOP_PATIENCE;
        self.stop.waiters.retain(|(since, waiter)| {
            if !waits(*since) {
                // Who has gone does not hear it.
                let _ = waiter.try_send(format!(
                    "the pods cannot be stopped now: {why}. They are stopped when this problem is over, and then the agent ends"
                ));
            }
            waits(*since)
        });
    }

    /// The loop is to end. Whoever waits for that hears of it.
    pub(super) fn finish_loop(&mut self) {
        self.stop.finished = true;
        self.stop.waiters.clear();
    }

    /// Ends every pod that has a worker, or may have something running.
    pub(super) fn kill_all_pods(&mut self, now: MonoTime) {
        let uids: Vec<PodUid> = self.pods.configured_uids();
        for uid in uids {
            let ended = self.pods.is_termination_requested(&uid);
            let idle = !self.pods.has_worker(&uid) && self.view.is_pod_idle(&uid);
            if !ended && !idle {
                let config = self.pods.config(&uid).cloned();
                self.kill_pod(&uid, config, Some(KillOptions::default()), now);
            }
        }
    }
}
