//! Garbage of containers, sandboxes and log directories: chosen by `logic::gc`, removed here.

use alloc::{collections::BTreeMap, rc::Rc};
use core::time::Duration;
use std::{
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
};

use super::{
    asker::AgentHandle,
    claims::PodWorkClaims,
    clock::Clock,
    complaints::Complaints,
    core::Agent,
    images::AgentImages,
    recorder::{EventRecorder, EventSeverity},
    times::DateCorrector,
};
use crate::{
    api::{ContainerId, PodUid, SandboxId, cri::PodItem, order::OrderExt as _},
    config::GarbageConfig,
    logic::gc::{self, ContainerGcPolicy, PodGcState},
    runtime::{LogRetention, RuntimeError, RuntimeService, log_links::LogLinks, log_rotation},
    sys::{lane::Lane, remove},
};

/// Number of dead instances that the configuration keeps.
pub(super) fn container_gc_policy(garbage: &GarbageConfig) -> ContainerGcPolicy {
    let count = |n: u32| usize::try_from(n).unwrap_or(usize::MAX);
    ContainerGcPolicy {
        min_age: garbage.min_age,
        max_per_container: garbage.max_per_container.map_or(usize::MAX, count),
        max_total: garbage.max_total.map(count),
    }
}

/// Removes what is left of containers, sandboxes and logs.
pub(super) struct GarbageCollector {
    pub(super) runtime: Rc<dyn RuntimeService>,
    pub(super) disk: Lane,
    pub(super) claims: Rc<PodWorkClaims>,
    pub(super) asker: AgentHandle,
    pub(super) clock: Rc<dyn Clock>,
    pub(super) times: Rc<DateCorrector>,
    pub(super) recorder: Rc<EventRecorder>,
    pub(super) complaints: Rc<Complaints>,
    pub(super) images: Rc<AgentImages>,
    pub(super) policy: ContainerGcPolicy,
    /// Directories of pods' logs.
    pub(super) pod_logs: PathBuf,
    /// Links to logs.
    pub(super) log_links: PathBuf,
}

/// The loop's word on pods: all sources have reported, and the pods that may be removed.
struct GcDecisions {
    sources_ready: bool,
    removable: Vec<PodUid>,
}

impl GcDecisions {
    fn decide_pod_fate(&self, uid: &PodUid) -> PodGcState {
        match self.removable.binary_search(uid) {
            Ok(_) => PodGcState::ContentRemovable,
            Err(_) => PodGcState::Kept,
        }
    }
}

/// Pods whose dead containers are all removed.
#[derive(Clone, Copy, Debug)]
enum DeadContainerScope {
    /// Pods that are gone. Dead containers of other pods may still be of use.
    OfPodsThatAreGone,
    /// Pods that have ended, too.
    OfPodsThatHaveEnded,
}

impl GarbageCollector {
    /// Runs one pass over everything (GC-01 to GC-06). A failure is tried again in the next pass; an event of the node
    /// tells it (GC-13).
    pub(super) async fn collect_garbage(&self) {
        self.collect_in_scope(DeadContainerScope::OfPodsThatAreGone)
            .await;
    }

    /// Runs one pass while the disk is short: of ended pods only that stays which their status still needs.
    pub(super) async fn reclaim_disk_space(&self) {
        self.collect_in_scope(DeadContainerScope::OfPodsThatHaveEnded)
            .await;
    }

    async fn collect_in_scope(&self, dead: DeadContainerScope) {
        let mut failed = Vec::new();
        if let Err(e) = self.try_pass(dead, &mut failed).await {
            failed.push(e.to_string());
        }
        if !failed.is_empty() {
            let message = failed.join("; ");
            let recorder = &self.recorder;
            recorder.record_node_event(EventSeverity::Warning, "ContainerGCFailed", &message);
        }
        self.images.sweep_pull_delays();
        crate::sys::memory::trim_memory();
    }

    /// Asks the loop about pods.
    async fn ask_gc_decisions(
        &self,
        dead: DeadContainerScope,
        uids: impl IntoIterator<Item = PodUid>,
    ) -> GcDecisions {
        let mut uids: Vec<PodUid> = uids.into_iter().collect();
        uids.stable_sort();
        uids.dedup();
        let look = move |agent: &Agent| {
            uids.retain(|uid| match dead {
                DeadContainerScope::OfPodsThatAreGone => agent.may_remove_content(uid),
                DeadContainerScope::OfPodsThatHaveEnded => agent.may_remove_containers(uid),
            });
            GcDecisions {
                sources_ready: agent.sources_ready(),
                removable: uids,
            }
        };
        self.asker.ask_agent(look).await
    }

    async fn try_pass(
        &self,
        dead: DeadContainerScope,
        failed: &mut Vec<String>,
    ) -> Result<(), RuntimeError> {
        let listed = self.runtime.list_pods().await?;
        let uids = listed.iter().map(|pod| pod.uid.clone());
        let fates = self.ask_gc_decisions(dead, uids).await;
        let (fate, ready) = (
            |uid: &PodUid| fates.decide_pod_fate(uid),
            fates.sources_ready,
        );
        let age = |at| self.times.time_elapsed_since(at);
        let surplus = gc::removable_containers(&listed, &fate, ready, &self.policy, &age);
        let any = !surplus.is_empty();
        for removal in surplus {
            let found = listed.iter().find_map(|pod| {
                let mut containers = pod.containers.iter();
                Some((&pod.uid, containers.find(|c| c.id == removal.id)?))
            });
            let Some((owner, container)) = found else {
                continue;
            };
            // A pod that is being worked on is left to the next pass.
            let Some(_turn) = self.claims.try_claim_operation(owner) else {
                continue;
            };
            if !self
                .is_part_unchanged(owner, |pod| pod.containers.contains(container))
                .await
            {
                continue;
            }
            let stopped = if removal.stop_first {
                self.runtime
                    .stop_container(&removal.id, Duration::ZERO)
                    .await
            } else {
                Ok(())
            };
            let removed = match stopped {
                Ok(()) => {
                    self.runtime
                        .remove_container(&removal.id, LogRetention::Remove)
                        .await
                }
                Err(e) => Err(e),
            };
            failed.extend(
                removed
                    .err()
                    .map(|e| format!("container {}: {e}", removal.id)),
            );
        }
        let listed = if any {
            self.runtime.list_pods().await?
        } else {
            listed
        };
        // Much may have happened while containers went.
        let uids = listed.iter().map(|pod| pod.uid.clone());
        let fates = self.ask_gc_decisions(dead, uids).await;
        let fate = |uid: &PodUid| fates.decide_pod_fate(uid);
        let sandboxes = gc::removable_sandboxes(&listed, &fate, fates.sources_ready);
        let any = any || !sandboxes.is_empty();
        self.remove_sandboxes(&listed, sandboxes, failed).await;
        if any {
            // What is known of the runtime is not to show them any longer.
            self.request_relist().await;
        }
        self.remove_forgotten_logs(failed).await;
        self.remove_log_dirs(failed).await;
        self.remove_dangling_links(failed).await
    }

    /// Asks for a relist.
    async fn request_relist(&self) {
        self.asker.ask_agent(|agent| agent.request_relist()).await;
    }

    /// Returns true if the listed part of a pod is unchanged. Earlier removals may have taken long, and a pod that came
    /// back meanwhile may have given the same id to a running container.
    async fn is_part_unchanged(&self, pod: &PodUid, is_there: impl Fn(&PodItem) -> bool) -> bool {
        let now = self.runtime.pod_status(pod).await;
        now.is_ok_and(|pod| is_there(&PodItem::from(&pod)))
    }

    async fn remove_container(&self, id: &ContainerId) {
        if let Err(e) = self
            .runtime
            .remove_container(id, LogRetention::Remove)
            .await
        {
            self.complaints
                .complain(&format!("container={id} cannot remove: {e}"));
        }
    }

    async fn remove_sandboxes(
        &self,
        listed: &[PodItem],
        ids: Vec<SandboxId>,
        failed: &mut Vec<String>,
    ) {
        for id in ids {
            let found = listed.iter().find_map(|pod| {
                let mut sandboxes = pod.sandboxes.iter();
                Some((&pod.uid, sandboxes.find(|s| s.id == id)?))
            });
            let Some((owner, sandbox)) = found else {
                continue;
            };
            let Some(_turn) = self.claims.try_claim_operation(owner) else {
                continue;
            };
            if !self
                .is_part_unchanged(owner, |pod| pod.sandboxes.contains(sandbox))
                .await
            {
                continue;
            }
            // Stopping first releases what a half-made or lost sandbox still holds.
            let stopped = self.runtime.stop_pod_sandbox(&id).await;
            let removed = match stopped {
                Ok(()) => self.runtime.remove_pod_sandbox(&id).await,
                Err(e) => Err(e),
            };
            failed.extend(removed.err().map(|e| format!("sandbox {id}: {e}")));
        }
    }

    async fn remove_log_dirs(&self, failed: &mut Vec<String>) {
        let root = self.pod_logs.clone();
        let listing = root.clone();
        let names = self.disk.run_job(move || names(&listing)).await;
        let uids = names.iter().filter_map(|name| gc::log_dir_uid(name));
        let fates = self
            .ask_gc_decisions(DeadContainerScope::OfPodsThatAreGone, uids)
            .await;
        let (fate, ready) = (
            |uid: &PodUid| fates.decide_pod_fate(uid),
            fates.sources_ready,
        );
        // A pod that comes back under its uid waits for its record, and with it for its logs, until the old ones are gone.
        let (mut claimed, mut turns) = (Vec::new(), Vec::new());
        for name in gc::removable_log_dirs(names.iter().map(String::as_str), &fate, ready) {
            if let Some(uid) = gc::log_dir_uid(name)
                && let Some(turn) = self.claims.try_claim_record(&uid)
            {
                turns.push(turn);
                claimed.push((uid, root.join(name)));
            }
        }
        if claimed.is_empty() {
            return;
        }
        let look = move |agent: &Agent| {
            claimed.retain(|(uid, _)| !agent.pods().is_arriving(uid));
            claimed
        };
        let gone = self.asker.ask_agent(look).await;
        let removed = self.disk.run_job(move || {
            gone.into_iter()
                .filter_map(|(_, path)| remove::remove_path(&path).err().map(|e| (path, e)))
                .collect::<Vec<_>>()
        });
        let removed = removed.await.into_iter();
        failed.extend(removed.map(|(path, e)| format!("{}: {e}", path.display())));
        drop(turns);
    }

    /// Removes logs of instances of earlier boots, of which the runtime knows nothing, as those of dead instances.
    async fn remove_forgotten_logs(&self, failed: &mut Vec<String>) {
        let mut containers: BTreeMap<PathBuf, Vec<OsString>> = BTreeMap::new();
        let known = self.asker.ask_agent(Agent::runtime_statuses).await;
        let all = known.iter().flat_map(|pod| &pod.containers);
        for path in all.map(|c| Path::new(&c.log_path)) {
            if let (Some(dir), Some(name)) = (path.parent(), path.file_name()) {
                containers
                    .entry(dir.to_owned())
                    .or_default()
                    .push(name.to_owned());
            }
        }
        let keep = self.policy.max_per_container;
        let removed = self.disk.run_job(move || {
            let each = containers.into_iter().map(|(dir, known)| {
                // Any name stands for the directory.
                let live = dir.join("0.log");
                let removed = log_rotation::remove_forgotten_logs(&live, &known, keep);
                (dir, removed)
            });
            each.filter_map(|(dir, removed)| Some((dir, removed.err()?)))
                .filter(|(_, e)| e.kind() != io::ErrorKind::NotFound)
                .collect::<Vec<_>>()
        });
        let removed = removed.await.into_iter();
        failed.extend(removed.map(|(dir, e)| format!("{}: {e}", dir.display())));
    }

    /// Removes links to logs that are gone. Links of others, which lead elsewhere, stay.
    async fn remove_dangling_links(&self, failed: &mut Vec<String>) -> Result<(), RuntimeError> {
        let (links, logs) = (self.log_links.clone(), self.pod_logs.clone());
        let dir = links.clone();
        let dangling = self.disk.run_job(move || -> io::Result<Vec<String>> {
            let links = match LogLinks::open(&dir) {
                // No link there is ours. Whoever starts a container tells of it.
                Err(e) if e.kind() == io::ErrorKind::NotADirectory => None,
                opened => opened?,
            };
            let Some(links) = links else {
                return Ok(Vec::new());
            };
            let dir = links.fd_path();
            let is_dangling = |name: &String| {
                let target = fs::read_link(dir.join(name));
                target.is_ok_and(|to| {
                    to.starts_with(&logs)
                        && fs::symlink_metadata(&to)
                            .is_err_and(|e| e.kind() == io::ErrorKind::NotFound)
                })
            };
            Ok(names(&dir).into_iter().filter(is_dangling).collect())
        });
        let shown = self.log_links.display();
        let dangling = dangling.await.unwrap_or_else(|e| {
            failed.push(format!("{shown}: {e}"));
            Vec::new()
        });
        if dangling.is_empty() {
            return Ok(());
        }
        // Only now: a container that was made meanwhile is among them, and its log may not be there yet.
        let listed = self.runtime.list_pods().await?;
        let removable = gc::removable_links(dangling.iter().map(String::as_str), &listed);
        let removable: Vec<String> = removable.into_iter().map(str::to_owned).collect();
        let removed = self.disk.run_job(move || -> io::Result<Vec<String>> {
            let Some(links) = LogLinks::open(&links)? else {
                return Ok(Vec::new());
            };
            let dir = links.fd_path();
            let each = removable.into_iter().map(|name| {
                let removed = fs::remove_file(dir.join(&name));
                (name, removed)
            });
            let left = each.filter_map(|(name, removed)| Some((name, removed.err()?)));
            let left = left.filter(|(_, e)| e.kind() != io::ErrorKind::NotFound);
            Ok(left.map(|(name, e)| format!("{name}: {e}")).collect())
        });
        let removed = removed.await;
        failed.extend(removed.unwrap_or_else(|e| vec![format!("{shown}: {e}")]));
        Ok(())
    }

    /// Removes surplus dead instances of a container that died, or all of a pod whose content may go (CLEAN-14).
    pub(super) async fn collect_after_death(&self, uid: &PodUid, died: &ContainerId) {
        // Before the status is looked at: a call that runs now may change it.
        let _turn = self.claims.claim_operation(uid).await;
        let fates = self
            .ask_gc_decisions(DeadContainerScope::OfPodsThatAreGone, [uid.clone()])
            .await;
        let of = uid.clone();
        let Ok(status) = self
            .asker
            .ask_agent(move |agent| agent.pod_runtime_status(&of))
            .await
        else {
            return;
        };
        let keep = self.policy.max_per_container;
        for id in gc::removable_after_death(&status, died, keep, fates.decide_pod_fate(uid)) {
            self.remove_container(&id).await;
        }
    }
}

/// Names in a directory; none if it cannot be read.
fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .filter_map(|e| e.file_name().into_string().ok())
        .collect()
}
