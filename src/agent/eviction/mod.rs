//! Work that the rounds of `logic::eviction` order: reading all amounts, measuring pods, removing dead containers and
//! unused images.
//!
//! | file | what it is |
//! |---|---|
//! | `doorbell` | an event that makes the next look at memory come sooner |
//! | `gauge` | amounts of memory, disk space and process ids |
//! | `files` | disk use of a pod's files |
//! | `limits` | pods that use more of the node's disk than they may |

mod doorbell;
mod files;
pub(super) mod gauge;
mod limits;

use alloc::rc::Rc;
use core::cell::RefCell;

use smol::future::FutureExt as _;

pub(super) use doorbell::forward_rings;
pub(super) use files::PodFileCounter;
pub(super) use limits::LimitCheckSchedule;

use gauge::EvictionGauge;

use super::{
    clock::Clock,
    complaints::Complaints,
    core::EvictionWork,
    gc::GarbageCollector,
    images::{UnusedImageRequests, remove_unused_images},
    pod_store::PodStore,
};
use crate::{
    api::{
        MonoTime,
        stats::{PodUsage, StatsDetail},
    },
    error::error_chain,
    logic::eviction::{
        ContainerFigures, DiskLayout, EvictablePod, EvictionInput, IMAGE_RECLAIM, MAX_WALKS,
        MeasureScope, PodFigures, ReclaimTarget, WalkResult, WalkRound,
    },
    runtime::RuntimeService,
};

/// Carries out the work of eviction rounds.
pub(super) struct Evictor {
    pub(super) gauge: Rc<dyn EvictionGauge>,
    pub(super) runtime: Rc<dyn RuntimeService>,
    pub(super) clock: Rc<dyn Clock>,
    pub(super) complaints: Rc<Complaints>,
    pub(super) store: PodStore,
    pub(super) files: PodFileCounter,
    pub(super) garbage: Rc<GarbageCollector>,
    /// Remover of unused images; `None`: the agent removes no images.
    pub(super) unused_images: Option<UnusedImageRequests>,
    pub(super) limits: LimitCheckSchedule,
    /// Order in which the files of pods are walked.
    pub(super) walks: RefCell<WalkRound>,
}

impl Evictor {
    /// Carries out one order, and returns the result as the round's next input.
    pub(super) async fn carry_out(&self, work: EvictionWork) -> EvictionInput {
        match work {
            EvictionWork::Observe => {
                EvictionInput::Observed(self.gauge.read_observations().await, false)
            }
            EvictionWork::CheckLimits(uids, layout) => EvictionInput::Checked(
                self.check_storage_limits(uids, layout != DiskLayout::OneDisk)
                    .await,
            ),
            EvictionWork::Reclaim(what) => {
                for one in what {
                    match one {
                        ReclaimTarget::DeadContainers => self.garbage.reclaim_disk_space().await,
                        ReclaimTarget::UnusedImages => self.remove_unused_images().await,
                    }
                }
                EvictionInput::Reclaimed(self.gauge.read_observations().await)
            }
            EvictionWork::Measure(what, candidates) => {
                EvictionInput::Measured(self.measure_candidates(what, candidates).await)
            }
        }
    }

    /// Has unused images removed, and waits for that only so long. The removal goes on after that.
    async fn remove_unused_images(&self) {
        let Some(ask) = &self.unused_images else {
            return;
        };
        let until = self.clock.now() + IMAGE_RECLAIM;
        let done = async {
            remove_unused_images(ask).await;
            true
        };
        let late = async {
            self.clock.sleep_until(until).await;
            false
        };
        if !done.or(late).await {
            let s = IMAGE_RECLAIM.as_secs();
            let text = format!(
                "removing unused images has taken more than {s} s: eviction goes on without waiting for it"
            );
            self.complaints.complain(&text);
        }
    }

    /// Returns the candidates with their figures; none if the runtime cannot list the use of pods.
    pub(super) async fn measure_candidates(
        &self,
        what: MeasureScope,
        mut candidates: Vec<EvictablePod>,
    ) -> Vec<EvictablePod> {
        let usages = match self.runtime.list_pod_usage(StatsDetail::Full).await {
            Ok(usages) => usages,
            Err(e) => {
                let text = format!("cannot measure pods, none is evicted: {}", error_chain(&e));
                self.complaints.complain(&text);
                return Vec::new();
            }
        };
        let until = self.clock.now() + MAX_WALKS;
        let mut walks = self.walks.borrow().clone();
        let split = candidates.partition_point(|pod| walks.was_walked_last_round(&pod.uid));
        let (had, due) = candidates.split_at_mut(split);
        for candidate in due.iter_mut().chain(had) {
            let Some(usage) = usages.iter().find(|usage| usage.uid == candidate.uid) else {
                continue;
            };
            candidate.figures = match what {
                MeasureScope::Groups => Some(pod_figures(usage)),
                MeasureScope::Disk => {
                    let begun = self.clock.now();
                    let walked = self.measure_with_files(usage, until).await;
                    walks.on_walk_ended(&usage.uid, walked, self.clock.now() - begun)
                }
            };
        }
        if what == MeasureScope::Disk {
            self.walks.replace(walks.into_next_round());
        }
        candidates
    }

    /// Measures a pod, files included, as far as these can be counted before `until`.
    async fn measure_with_files(&self, usage: &PodUsage, until: MonoTime) -> WalkResult {
        let mut figures = pod_figures(usage);
        if self.clock.now() >= until {
            return WalkResult::Cut(figures);
        }
        let late = async {
            self.clock.sleep_until(until).await;
            None
        };
        let counted = async { Some(self.files.count_pod_files(usage).await) };
        // Dropping a walk ends it with the slice that runs.
        let Some(files) = counted.or(late).await else {
            return WalkResult::Cut(figures);
        };
        if files.too_large {
            return WalkResult::TooLarge;
        }
        // Files without a figure were removed meanwhile: they use nothing.
        for (container, disk) in figures.containers.iter_mut().zip(&files.containers) {
            container.rootfs = disk.layer;
            container.logs = disk.logs;
        }
        let volumes = files.volumes.into_iter().filter(|v| v.ephemeral);
        let counted = volumes.filter_map(|v| Some((v.name, v.used?)));
        figures.volumes.extend(counted);
        // The empty name is one that no volume can have.
        let hosts = files.hosts.map(|used| (String::new(), used));
        figures.volumes.extend(hosts);
        WalkResult::Counted(figures)
    }
}

/// Takes a pod's figures from its control groups.
fn pod_figures(usage: &PodUsage) -> PodFigures {
    let containers = usage.containers.iter().map(|c| ContainerFigures {
        name: c.name.clone(),
        memory_bytes: c.usage.memory.map(|m| m.working_set_bytes),
        rootfs: None,
        logs: None,
    });
    PodFigures {
        memory_bytes: usage.usage.memory.map(|m| m.working_set_bytes),
        processes: usage.usage.pids,
        containers: containers.collect(),
        volumes: Vec::new(),
    }
}
