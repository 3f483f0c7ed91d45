//! Chores of housekeeping, carried out: directories and cgroups of pods are looked through, what nobody owns is removed.

use alloc::{rc::Rc, sync::Arc};

use super::{
    asker::AgentHandle,
    claims::PodWorkClaims,
    cluster,
    complaints::Complaints,
    core::{Agent, HousekeepingChores, PodRemains},
    driver::PodDriver,
    executor::PodCgroups,
    pod_store::PodStore,
};
use crate::{
    api::{PodUid, order::OrderExt as _},
    cgroup::Cgroups,
    error::error_chain,
    logic::housekeeping::CgroupAction,
    sys::{crash, lane::Lane},
    volume::Volumes,
};

/// See the module's words.
pub(super) struct Housekeeper {
    pub(super) volumes: Volumes,
    pub(super) store: PodStore,
    pub(super) disk: Lane,
    pub(super) cgroups: Arc<Cgroups>,
    pub(super) pod_cgroups: PodCgroups,
    pub(super) claims: Rc<PodWorkClaims>,
    pub(super) asker: AgentHandle,
    pub(super) complaints: Rc<Complaints>,
    pub(super) driver: Rc<dyn PodDriver>,
}

impl Housekeeper {
    /// Looks through directories and cgroups, which takes a system call for each of a few dozen.
    pub(super) async fn search_remains(&self) -> PodRemains {
        let (volumes, store) = (self.volumes.clone(), self.store.clone());
        let listed = self.disk.run_job(move || {
            let mut dirs = volumes.list_pod_dirs()?;
            dirs.extend(store.waiting_pods());
            dirs.stable_sort();
            dirs.dedup();
            Ok::<_, std::io::Error>(dirs)
        });
        let dirs = listed.await.unwrap_or_else(|e| {
            self.complaints
                .complain(&format!("housekeeping: pod directories: {e}"));
            Vec::new()
        });
        let groups = self.pod_cgroups.list_pod_cgroups().await;
        PodRemains { dirs, groups }
    }

    /// The other half: removes what was found. One pass at a time. Much may have happened since it was decided, so each pod is
    /// claimed and looked at again; one that is busy or wanted by now is left to a later pass.
    pub(super) async fn carry_out_chores(&self, chores: HousekeepingChores) {
        if let Some(asked) = chores.tiers
            && let Err(e) = self.pod_cgroups.refresh_tiers(asked).await
        {
            log::warn!("cgroups of pods: {}", error_chain(&e));
        }
        for (uid, path, action) in &chores.cgroups {
            let Some(_turn) = self.claims.try_claim_operation(uid) else {
                continue;
            };
            let of = uid.clone();
            let look = move |agent: &Agent| {
                agent
                    .pods()
                    .worker_table()
                    .could_have_running_containers(&of)
            };
            if self.asker.ask_agent(look).await {
                continue;
            }
            let done = match action {
                CgroupAction::Reduce => {
                    let (cgroups, path) = (Arc::clone(&self.cgroups), path.clone());
                    self.disk.run_job(move || cgroups.reduce_cpu(&path)).await
                }
                CgroupAction::Destroy => self.cgroups.destroy_group(path).await,
            };
            if let Err(e) = done {
                self.complaints
                    .complain(&format!("cgroup {path}: {}", error_chain(&e)));
            }
        }
        for uid in &chores.forgotten {
            // Whoever writes a new record of this pod waits until the old one is gone.
            let claims = &self.claims;
            let (Some(_turn), Some(_record)) = (
                claims.try_claim_operation(uid),
                claims.try_claim_record(uid),
            ) else {
                continue;
            };
            let of = uid.clone();
            if self
                .asker
                .ask_agent(move |agent| agent.is_orphaned(&of))
                .await
            {
                self.remove_pod_remains(uid).await;
            }
        }
    }

    async fn remove_pod_remains(&self, uid: &PodUid) {
        self.driver.remove_pod_remains(uid).await;
        // What is known of the runtime is not to show it any longer.
        self.asker.ask_agent(|agent| agent.request_relist()).await;
        crash::point("pod.content-removed");
        if !cluster::unmount_nfs(&self.volumes, &self.disk, &self.complaints, uid).await {
            return;
        }
        let (volumes, store, gone) = (self.volumes.clone(), self.store.clone(), uid.clone());
        // Also volumes whose pod was lost over a restart: nobody else takes them down.
        let removed = match volumes.tear_down_on_lane(&self.disk, uid).await {
            Err(e) => Err(e),
            Ok(()) => {
                let forget = move || {
                    crash::point("pod.forgotten");
                    (
                        volumes.remove_pod_dir(&gone),
                        store.forget_waiting_records(&gone),
                    )
                };
                Ok(self.disk.run_job(forget).await)
            }
        };
        match removed {
            Ok((Err(e), _)) | Err(e) => self
                .complaints
                .complain(&format!("uid={uid} {}", error_chain(&e))),
            Ok((_, Err(e))) => self
                .complaints
                .complain(&format!("uid={uid} {}", error_chain(&e))),
            Ok((Ok(()), Ok(()))) => {}
        }
    }
}
