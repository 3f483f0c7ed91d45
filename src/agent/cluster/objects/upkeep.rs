//! Upkeep of objects, tokens and certificates beside the pods that use them: they are synced to disk, replaced in time,
//! removed.

use alloc::{collections::BTreeSet, rc::Rc};
use core::time::Duration;

use smol::future::FutureExt as _;

use super::store::ObjectStore;
use crate::{
    agent::{asker::AgentHandle, core::AgentEvent},
    api::{PodUid, order::GatherExt as _},
};

/// Time for writes to gather before they are brought to disk for good: a rollout is one such group.
const GROUP: Duration = Duration::from_secs(5);
/// Pause between looks for tokens and certificates that are to be replaced. Syncs replace them too, as long as they are
/// more frequent.
const TOKEN_INTERVAL: Duration = Duration::from_secs(60);
/// Pause between looks for files that no pod needs: what a crash has left.
const SWEEP_INTERVAL: Duration = Duration::from_secs(3600);

/// Looks after objects and tokens.
pub(in crate::agent::cluster) struct ObjectKeeper {
    pub(in crate::agent::cluster) objects: Rc<ObjectStore>,
    pub(in crate::agent::cluster) asker: AgentHandle,
}

impl ObjectKeeper {
    /// For the agent's life.
    pub(in crate::agent::cluster) async fn keep_objects(self) {
        let (mine, clock) = (&*self.objects, &self.objects.tools.clock);
        let mut sweep = clock.now() + TOKEN_INTERVAL;
        loop {
            let round = clock.now() + TOKEN_INTERVAL;
            let written = async {
                let is_unsynced = || mine.has_unsynced_files().then_some(());
                mine.written.wait_until(is_unsynced).await;
                true
            };
            let over = async {
                clock.sleep_until(round).await;
                false
            };
            if written.or(over).await {
                clock.sleep_until(clock.now() + GROUP).await;
                mine.sync_written_files().await;
            }
            let now = clock.now();
            let mut due = mine.tokens.pods_due(now);
            let now_s = mine.server_time().unix_seconds();
            due.extend(mine.pod_certificates.pods_due(now_s, now));
            if !due.is_empty() {
                self.asker.send_event(AgentEvent::Resync(due)).await;
            }
            if now >= sweep {
                sweep = now + self.tidy_objects().await;
            }
        }
    }

    /// Forgets pods that nobody wants and removes files that none needs; returns in how long to look again.
    async fn tidy_objects(&self) -> Duration {
        let mine = &*self.objects;
        let known: Vec<PodUid> = mine
            .table
            .borrow()
            .registered_pods()
            .cloned()
            .gather_items();
        let unwanted = self.asker.ask_agent(move |agent| {
            let unwanted = known.into_iter().filter(|uid| agent.is_orphaned(uid));
            unwanted.collect::<Vec<_>>()
        });
        for uid in unwanted.await {
            mine.forget_pod(&uid).await;
        }
        // A pod that has not come to say what it needs may need any of them.
        let known: BTreeSet<PodUid> = mine
            .table
            .borrow()
            .registered_pods()
            .cloned()
            .gather_items();
        let complete = self
            .asker
            .ask_agent(move |agent| agent.sources_ready() && agent.knows_all_api_pods(&known));
        let complete = complete.await;
        if !complete {
            return TOKEN_INTERVAL;
        }
        let (keys, pods): (BTreeSet<_>, BTreeSet<_>) = {
            let table = mine.table.borrow();
            (
                table.referenced_keys().cloned().gather_items(),
                table.registered_pods().cloned().gather_items(),
            )
        };
        let files = mine.files.clone();
        mine.tools
            .disk
            .run_job(move || files.remove_unowned(&keys, &pods))
            .await;
        SWEEP_INTERVAL
    }
}
