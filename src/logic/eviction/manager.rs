//! Rounds of the eviction manager (EVICT-04, EVICT-06, EVICT-07, EVICT-10): observe, reclaim what is unused, measure
//! pods, evict one, wait for its end, observe again.
//!
//! ```text
//!  Waiting ──due──▶ Observing ──▶ CheckingLimits ──▶ Reclaiming ──▶ Measuring ──▶ Ending ──stopped──▶ CleaningUp ──┐
//!     ▲                 │ nothing is short │ the same     │ enough        │ no victim ▲  │ it takes too long   ▲    │ gone,
//!     └─────────────────┴──────────────────┴──────────────┴───────────────┘           │  └─────────────────────┘    │ or 30 s
//!                       ▲                  └── pods that exceed their own limits ─────┘                             │
//!                       └───────────────────────────────────────────────────────────────────────────────────────────┘
//! ```

use alloc::{collections::VecDeque, vec::Vec};
use core::time::Duration;

use super::{
    IMMEDIATE_GRACE_S,
    local_storage::StorageViolation,
    observation::{DiskLayout, Observations},
    pressure::{MetThreshold, PressureConditions, PressureState},
    rank::{EvictablePod, PodFigures, rank_candidates},
    threshold::{EvictionSignal, EvictionThreshold, StarvedResource},
};
use crate::api::{MonoTime, PodUid, Quantity};

/// Pause between two observations.
pub const POLL: Duration = Duration::from_secs(10);
/// Pause between two observations while a resource falls so fast that it would be short before [`POLL`] ends, or when
/// the kernel reports memory pressure.
pub const MIN_POLL: Duration = Duration::from_secs(1);
/// Longest wait for the removal of unused images. After it the round goes on, whether or not the removal has ended. The
/// removal itself waits while an image is unpacked, which takes minutes on a board. During the wait no other resource
/// is observed, not even memory.
pub const IMAGE_RECLAIM: Duration = Duration::from_secs(30);
/// Longest wait for the clean-up of a pod that has stopped.
const MAX_CLEAN_UP: Duration = Duration::from_secs(30);
/// Least time that a pod is given to stop, whatever its grace.
const MIN_STOP: Duration = Duration::from_secs(10);

/// Settings of eviction, from the configuration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EvictionSettings {
    /// See [`parse_thresholds`](super::parse_thresholds).
    pub thresholds: Vec<EvictionThreshold>,
    /// Time that a condition stays after its threshold was last met.
    pub transition: Duration,
    /// Longest grace, in seconds, of a pod that is evicted for a soft threshold.
    pub max_grace_s: i64,
}

/// Resource that can be removed before a pod is evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReclaimTarget {
    /// Dead containers, and all containers of pods that have ended.
    DeadContainers,
    /// Images without a user.
    UnusedImages,
}

/// Part of the pods' usage that is to be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MeasureScope {
    /// Memory and processes: a few small files for each container.
    Groups,
    /// Files as well, which needs a walk through all of them.
    Disk,
}

/// Pod that is to be evicted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvictionVictim {
    /// The pod.
    pub uid: PodUid,
    /// Usage of the pod, as far as it is known.
    pub figures: Option<PodFigures>,
    /// Grace in seconds. A shorter grace of the pod's own wins.
    pub grace_s: i64,
    /// Signal whose threshold is met.
    pub signal: EvictionSignal,
    /// Amount of the signal that must be left, and the amount that was left.
    pub quantities: Option<(Quantity, Quantity)>,
    /// All signals that were short, for metrics.
    pub short: Vec<EvictionSignal>,
    /// Age of the observation.
    pub age: Duration,
}

impl MeasureScope {
    /// Measurement that shows which pods use most of a resource.
    #[must_use]
    pub const fn for_starved(starved: StarvedResource) -> Self {
        match starved {
            StarvedResource::EphemeralStorage | StarvedResource::Inodes => Self::Disk,
            StarvedResource::Memory | StarvedResource::Pids => Self::Groups,
        }
    }
}

/// Action that the manager asks of its caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EvictionAction {
    /// Observe all resources; ends with [`EvictionInput::Observed`].
    Observe,
    /// Check whether pods exceed their own limits; ends with [`EvictionInput::Checked`].
    CheckLimits,
    /// Report that a resource is short and will be reclaimed.
    Tell(StarvedResource),
    /// Remove these unused resources, images within [`IMAGE_RECLAIM`], and observe again; ends with
    /// [`EvictionInput::Reclaimed`].
    Reclaim(&'static [ReclaimTarget]),
    /// Measure pods; ends with [`EvictionInput::Measured`].
    Measure(MeasureScope),
    /// Evict the pod; ends with [`EvictionInput::Stopped`], or [`EvictionInput::Spared`].
    Evict(EvictionVictim),
    /// Evict the pod that exceeds its own limits; ends with [`EvictionInput::Stopped`], or [`EvictionInput::Spared`].
    EvictLimited(StorageViolation),
    /// Report that the pod took longer to stop than it had time.
    TellExceeded(PodUid),
}

/// Event for the manager, in most cases the end of an [`EvictionAction`].
#[derive(Clone, Debug, PartialEq)]
pub enum EvictionInput {
    /// All resources were observed. The flag is set if a pod has limits of its own.
    Observed(Observations, bool),
    /// These pods exceed their own limits.
    Checked(Vec<StorageViolation>),
    /// Unused resources were removed as far as time allowed. Carries the new observations.
    Reclaimed(Observations),
    /// Pods that might be evicted, with their usage.
    Measured(Vec<EvictablePod>),
    /// No container of the pod runs any more.
    Stopped(PodUid),
    /// The pod is cleaned up completely.
    Gone(PodUid),
    /// The pod could not be ended, or has ended by itself.
    Spared(PodUid),
}

/// Round that follows an observation. It may have no threshold to deal with.
#[derive(Clone, Debug, PartialEq, Eq)]
struct EvictionRound {
    /// Indices of the thresholds that call for action, most urgent first. The round deals with the first.
    thresholds: Vec<usize>,
    at: MonoTime,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum EvictionStage {
    Waiting {
        due: MonoTime,
    },
    Observing,
    CheckingLimits(EvictionRound),
    Reclaiming(EvictionRound),
    Measuring(EvictionRound),
    /// Pods that have not stopped yet, and those that have.
    Ending {
        running: Vec<PodUid>,
        stopped: Vec<PodUid>,
        until: MonoTime,
    },
    CleaningUp {
        pods: Vec<PodUid>,
        until: MonoTime,
    },
}

/// Manager of evictions: thresholds, conditions and the current round. An agent has one.
#[derive(Clone, Debug)]
pub struct EvictionManager {
    pressure: PressureState,
    max_grace_s: i64,
    stage: EvictionStage,
    actions: VecDeque<EvictionAction>,
}

impl EvictionManager {
    /// Creates a manager that has not observed anything; the first observation is due at once.
    #[must_use]
    pub fn new(settings: EvictionSettings, now: MonoTime) -> Self {
        Self {
            pressure: PressureState::new(settings.thresholds, settings.transition),
            max_grace_s: settings.max_grace_s,
            stage: EvictionStage::Waiting { due: now },
            actions: VecDeque::new(),
        }
    }

    /// Conditions of the node.
    #[must_use]
    pub const fn conditions(&self) -> PressureConditions {
        self.pressure.conditions()
    }

    /// Time that a condition stays after its threshold was last met.
    #[must_use]
    pub const fn transition(&self) -> Duration {
        self.pressure.transition()
    }

    /// Thresholds that are met, by signal.
    #[must_use]
    pub fn met_thresholds(&self) -> Vec<MetThreshold> {
        self.pressure.met_thresholds()
    }

    /// Layout of the file systems at the last observation.
    #[must_use]
    pub fn layout(&self) -> DiskLayout {
        self.pressure
            .last_observations()
            .map(|o| o.layout)
            .unwrap_or_default()
    }

    /// Time at which [`EvictionManager::handle_timeout`] has work. `None`: an action is under way.
    #[must_use]
    pub fn next_timeout(&self) -> Option<MonoTime> {
        match self.stage {
            EvictionStage::Waiting { due } => Some(due),
            EvictionStage::Ending { until, .. } | EvictionStage::CleaningUp { until, .. } => {
                Some(until)
            }
            EvictionStage::Observing
            | EvictionStage::CheckingLimits(_)
            | EvictionStage::Reclaiming(_)
            | EvictionStage::Measuring(_) => None,
        }
    }

    /// Applies the passage of time. `has_pod_limits`: a pod has limits of its own.
    pub fn handle_timeout(&mut self, has_pod_limits: bool, now: MonoTime) {
        match &mut self.stage {
            EvictionStage::Waiting { due } if *due <= now => {
                if has_pod_limits || !self.pressure.is_empty() {
                    self.begin_observation();
                } else {
                    // There is no threshold and no limit.
                    *due = now + POLL;
                }
            }
            EvictionStage::Ending {
                running,
                stopped,
                until,
            } if *until <= now => {
                let exceeded = running.iter().cloned().map(EvictionAction::TellExceeded);
                self.actions.extend(exceeded);
                let pods = running.drain(..).chain(stopped.drain(..)).collect();
                self.wait_for_clean_up(pods, now);
            }
            EvictionStage::CleaningUp { until, .. } if *until <= now => self.begin_observation(),
            EvictionStage::Waiting { .. }
            | EvictionStage::Observing
            | EvictionStage::CheckingLimits(_)
            | EvictionStage::Reclaiming(_)
            | EvictionStage::Measuring(_)
            | EvictionStage::Ending { .. }
            | EvictionStage::CleaningUp { .. } => {}
        }
    }

    /// Handles the kernel's report of memory pressure. The next observation is due now, but not before [`MIN_POLL`] has
    /// passed since the last one.
    pub fn handle_pressure_signal(&mut self, now: MonoTime) {
        let last = self.pressure.last_observations();
        let earliest = last.map_or(now, |last| now.max(last.at + MIN_POLL));
        if let EvictionStage::Waiting { due } = &mut self.stage {
            *due = earliest.min(*due);
        }
    }

    /// Takes in an event. An event that does not belong to the present stage is ignored.
    pub fn handle_input(&mut self, input: EvictionInput, now: MonoTime) {
        match input {
            EvictionInput::Observed(observations, has_pod_limits) => {
                if self.stage == EvictionStage::Observing {
                    let thresholds = self.pressure.take_observations(&observations, now);
                    let at = observations.at;
                    let round = EvictionRound { thresholds, at };
                    if has_pod_limits {
                        self.stage = EvictionStage::CheckingLimits(round);
                        self.actions.push_back(EvictionAction::CheckLimits);
                    } else {
                        self.begin_round(round, now);
                    }
                }
            }
            EvictionInput::Checked(violations) => {
                if let EvictionStage::CheckingLimits(round) = &self.stage {
                    if violations.is_empty() {
                        let round = round.clone();
                        self.begin_round(round, now);
                    } else {
                        let pods = violations.iter().map(|v| v.uid.clone()).collect();
                        self.wait_for_pod_ends(pods, IMMEDIATE_GRACE_S, now);
                        let actions = violations.into_iter().map(EvictionAction::EvictLimited);
                        self.actions.extend(actions);
                    }
                }
            }
            EvictionInput::Reclaimed(observations) => {
                if let EvictionStage::Reclaiming(round) = &self.stage {
                    if self.pressure.is_resolved(&observations) {
                        self.wait_for_poll(now);
                    } else {
                        let round = round.clone();
                        self.begin_measuring(round, now);
                    }
                }
            }
            EvictionInput::Measured(candidates) => {
                if let EvictionStage::Measuring(round) = &self.stage {
                    let round = round.clone();
                    self.choose_victim(&round, candidates, now);
                }
            }
            EvictionInput::Stopped(uid) => {
                if let EvictionStage::Ending {
                    running, stopped, ..
                } = &mut self.stage
                    && running.contains(&uid)
                {
                    running.retain(|other| *other != uid);
                    stopped.push(uid);
                    self.continue_once_stopped(now);
                }
            }
            EvictionInput::Gone(uid) => match &mut self.stage {
                EvictionStage::Ending {
                    running, stopped, ..
                } => {
                    running.retain(|other| *other != uid);
                    stopped.retain(|other| *other != uid);
                    self.continue_once_stopped(now);
                }
                EvictionStage::CleaningUp { pods, .. } => {
                    pods.retain(|other| *other != uid);
                    if pods.is_empty() {
                        self.begin_observation();
                    }
                }
                EvictionStage::Waiting { .. }
                | EvictionStage::Observing
                | EvictionStage::CheckingLimits(_)
                | EvictionStage::Reclaiming(_)
                | EvictionStage::Measuring(_) => {}
            },
            EvictionInput::Spared(uid) => {
                if let EvictionStage::Ending {
                    running, stopped, ..
                } = &mut self.stage
                    && running.contains(&uid)
                {
                    running.retain(|other| *other != uid);
                    if running.is_empty() && stopped.is_empty() {
                        self.wait_for_poll(now);
                    } else {
                        self.continue_once_stopped(now);
                    }
                }
            }
        }
    }

    /// The next action for the caller.
    pub fn poll_action(&mut self) -> Option<EvictionAction> {
        self.actions.pop_front()
    }

    /// Pods that are being evicted.
    pub fn pods_being_evicted(&self) -> impl Iterator<Item = &PodUid> {
        let (a, b): (&[PodUid], &[PodUid]) = match &self.stage {
            EvictionStage::Ending {
                running, stopped, ..
            } => (running, stopped),
            EvictionStage::CleaningUp { pods, .. } => (pods, &[]),
            EvictionStage::Waiting { .. }
            | EvictionStage::Observing
            | EvictionStage::CheckingLimits(_)
            | EvictionStage::Reclaiming(_)
            | EvictionStage::Measuring(_) => (&[], &[]),
        };
        a.iter().chain(b)
    }

    fn begin_observation(&mut self) {
        self.stage = EvictionStage::Observing;
        self.actions.push_back(EvictionAction::Observe);
    }

    fn wait_for_poll(&mut self, now: MonoTime) {
        let pause = if self.pressure.is_falling(POLL) {
            MIN_POLL
        } else {
            POLL
        };
        self.stage = EvictionStage::Waiting { due: now + pause };
    }

    fn begin_round(&mut self, round: EvictionRound, now: MonoTime) {
        let Some(first) = round.thresholds.first() else {
            return self.wait_for_poll(now);
        };
        let signal = self.pressure.threshold_at(*first).signal;
        self.actions
            .push_back(EvictionAction::Tell(signal.starved_resource()));
        match reclaim_targets(signal, self.layout()) {
            [] => self.begin_measuring(round, now),
            targets => {
                self.actions.push_back(EvictionAction::Reclaim(targets));
                self.stage = EvictionStage::Reclaiming(round);
            }
        }
    }

    fn begin_measuring(&mut self, round: EvictionRound, now: MonoTime) {
        let Some(first) = round.thresholds.first() else {
            return self.wait_for_poll(now);
        };
        let scope =
            MeasureScope::for_starved(self.pressure.threshold_at(*first).signal.starved_resource());
        self.actions.push_back(EvictionAction::Measure(scope));
        self.stage = EvictionStage::Measuring(round);
    }

    /// Chooses one pod to evict, or none.
    fn choose_victim(
        &mut self,
        round: &EvictionRound,
        mut candidates: Vec<EvictablePod>,
        now: MonoTime,
    ) {
        let Some(first) = round.thresholds.first() else {
            return self.wait_for_poll(now);
        };
        let threshold = self.pressure.threshold_at(*first);
        rank_candidates(&mut candidates, threshold.signal, self.layout());
        let Some(pod) = candidates.into_iter().find(|pod| !pod.critical) else {
            return self.wait_for_poll(now);
        };
        let grace_s = match threshold.grace {
            None => IMMEDIATE_GRACE_S,
            Some(_) => self.max_grace_s.min(pod.grace_s.unwrap_or(i64::MAX)),
        };
        let indices = round.thresholds.iter();
        let victim = EvictionVictim {
            uid: pod.uid.clone(),
            figures: pod.figures,
            grace_s,
            signal: threshold.signal,
            quantities: self.pressure.limit_and_available(*first),
            short: indices
                .map(|index| self.pressure.threshold_at(*index).signal)
                .collect(),
            age: now - round.at,
        };
        self.wait_for_pod_ends(vec![pod.uid], grace_s, now);
        self.actions.push_back(EvictionAction::Evict(victim));
    }

    fn wait_for_pod_ends(&mut self, pods: Vec<PodUid>, grace_s: i64, now: MonoTime) {
        let grace = Duration::from_secs(u64::try_from(grace_s).unwrap_or(0));
        self.stage = EvictionStage::Ending {
            running: pods,
            stopped: Vec::new(),
            until: now + MIN_STOP.max(grace.saturating_mul(3) / 2),
        };
    }

    /// Waits for the clean-up of the pods once all have stopped.
    fn continue_once_stopped(&mut self, now: MonoTime) {
        if let EvictionStage::Ending {
            running, stopped, ..
        } = &mut self.stage
            && running.is_empty()
        {
            let pods = core::mem::take(stopped);
            self.wait_for_clean_up(pods, now);
        }
    }

    fn wait_for_clean_up(&mut self, pods: Vec<PodUid>, now: MonoTime) {
        if pods.is_empty() {
            return self.begin_observation();
        }
        let until = now + MAX_CLEAN_UP;
        self.stage = EvictionStage::CleaningUp { pods, until };
    }
}

/// Resources that can be removed for a signal before a pod is evicted.
const fn reclaim_targets(signal: EvictionSignal, layout: DiskLayout) -> &'static [ReclaimTarget] {
    const CONTAINERS: &[ReclaimTarget] = &[ReclaimTarget::DeadContainers];
    const IMAGES: &[ReclaimTarget] = &[ReclaimTarget::UnusedImages];
    const BOTH: &[ReclaimTarget] = &[ReclaimTarget::DeadContainers, ReclaimTarget::UnusedImages];
    match signal {
        EvictionSignal::MemoryAvailable
        | EvictionSignal::AllocatableMemory
        | EvictionSignal::PidAvailable => &[],
        EvictionSignal::NodeFsAvailable | EvictionSignal::NodeFsInodes => match layout {
            DiskLayout::OneDisk => BOTH,
            DiskLayout::SeparateRuntime => &[],
            DiskLayout::SplitImages => CONTAINERS,
        },
        EvictionSignal::ImageFsAvailable | EvictionSignal::ImageFsInodes => match layout {
            DiskLayout::OneDisk | DiskLayout::SeparateRuntime => BOTH,
            DiskLayout::SplitImages => IMAGES,
        },
        EvictionSignal::ContainerFsAvailable | EvictionSignal::ContainerFsInodes => match layout {
            DiskLayout::OneDisk | DiskLayout::SeparateRuntime => BOTH,
            DiskLayout::SplitImages => CONTAINERS,
        },
    }
}

#[cfg(test)]
mod explore;
#[cfg(test)]
mod tests;
