//! Upkeep of objects and tokens beside the pods that use them: they are synced to disk, replaced in time, removed.

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
/// Pause between looks for tokens that are to be replaced. Syncs replace them too, as long as they are more frequent.
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
    pub(in crate::agent::cluster) async fn run(self) {
        let (mine, clock) = (&*self.objects, &self.objects.tools.clock);
        let mut sweep = clock.now() + TOKEN_INTERVAL;
        loop {
            let round = clock.now() + TOKEN_INTERVAL;
            let written = async {
                let is_unsynced = || mine.is_unsynced().then_some(());
                mine.written.until(is_unsynced).await;
                true
            };
            let over = async {
                clock.until(round).await;
                false
            };
            if written.or(over).await {
                clock.until(clock.now() + GROUP).await;
                mine.commit().await;
            }
            let now = clock.now();
            let due = mine.tokens.due(now);
            if !due.is_empty() {
                self.asker.send(AgentEvent::Resync(due)).await;
            }
            if now >= sweep {
                sweep = now + self.tidy().await;
            }
        }
    }

    /// Forgets pods that nobody wants and removes files that none needs; returns in how long to look again.
    async fn tidy(&self) -> Duration {
        let mine = &*self.objects;
        let known: Vec<PodUid> = mine.table.borrow().pods().cloned().gather();
        let unwanted = self.asker.ask(move |agent| {
            let unwanted = known.into_iter().filter(|uid| agent.is_orphaned(uid));
            unwanted.collect::<Vec<_>>()
        });
        for uid in unwanted.await {
            mine.forget(&uid).await;
        }
        // A pod that has not come to say what it needs may need any of them.
        let known: BTreeSet<PodUid> = mine.table.borrow().pods().cloned().gather();
        let complete = self
            .asker
            .ask(move |agent| agent.sources_ready() && agent.every_api_pod(&known));
        let complete = complete.await;
        if !complete {
            return TOKEN_INTERVAL;
        }
        let (keys, pods): (BTreeSet<_>, BTreeSet<_>) = {
            let table = mine.table.borrow();
            (
                table.keys().cloned().gather(),
                table.pods().cloned().gather(),
            )
        };
        let files = mine.files.clone();
        mine.tools.disk.run(move || files.sweep(&keys, &pods)).await;
        SWEEP_INTERVAL
    }
}
