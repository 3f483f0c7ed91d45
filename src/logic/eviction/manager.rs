//! The rounds (EVICT-04, EVICT-06, EVICT-07, EVICT-10): observe, reclaim what is unused, measure pods, evict one, wait
//! for its end, observe again.
//!
//! ```text
//!  Waiting ──due──▶ Observing ──▶ CheckingLimits ──▶ Reclaiming ──▶ Measuring ──▶ Ending ──stopped──▶ CleaningUp ──┐
//!     ▲                 │ nothing is short │ the same     │ enough        │ nobody    ▲  │ it takes too long   ▲    │ gone,
//!     └─────────────────┴──────────────────┴──────────────┴───────────────┘           │  └─────────────────────┘    │ or 30 s
//!                       ▲                  └── pods that have more than they may ─────┘                             │
//!                       └───────────────────────────────────────────────────────────────────────────────────────────┘
//! ```

use alloc::{collections::VecDeque, vec::Vec};
use core::time::Duration;

use super::{
    IMMEDIATE_GRACE_S,
    local_storage::Violation,
    observation::{Layout, Observations},
    pressure::{Conditions, Pressure, Short},
    rank::{Candidate, PodFigures, rank},
    threshold::{Signal, Starved, Threshold},
};
use crate::api::{Mono, PodUid, Quantity};

/// Pause between two observations.
pub const POLL: Duration = Duration::from_secs(10);
/// Pause between two observations while a resource falls so fast that it would be short before [`POLL`] ends, or when
/// the kernel reports memory pressure.
pub const MIN_POLL: Duration = Duration::from_secs(1);
/// Longest wait for the removal of unused images; then the round goes on with what is left. The removal itself waits
/// while an image is unpacked, which takes minutes on a board, and meanwhile no other resource is observed, not even
/// memory.
pub const IMAGE_RECLAIM: Duration = Duration::from_secs(30);
/// Longest wait for the clean-up of a pod that has stopped.
const CLEAN_UP: Duration = Duration::from_secs(30);
/// Least time that a pod is given to stop, whatever its grace.
const MIN_STOP: Duration = Duration::from_secs(10);

/// Settings of the configuration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// See [`thresholds`](super::thresholds).
    pub thresholds: Vec<Threshold>,
    /// Time that a condition stays after its threshold was last met.
    pub transition: Duration,
    /// Longest grace, in seconds, of a pod that is evicted for a soft threshold.
    pub max_grace_s: i64,
}

/// Resource that can be removed before a pod is evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reclaim {
    /// Dead containers, and all containers of pods that have ended.
    DeadContainers,
    /// Images without a user.
    UnusedImages,
}

/// Part of the pods' usage that is to be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Memory and processes: a few small files for each container.
    Groups,
    /// Files as well, which takes a walk.
    Disk,
}

/// Pod that is to be evicted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Victim {
    /// The pod.
    pub uid: PodUid,
    /// Usage of the pod, as far as it is known.
    pub figures: Option<PodFigures>,
    /// Grace in seconds. A shorter grace of the pod's own wins.
    pub grace_s: i64,
    /// Signal whose threshold is met.
    pub signal: Signal,
    /// Amount of the signal that must be left, and the amount that was left.
    pub quantities: Option<(Quantity, Quantity)>,
    /// All signals that were short, for metrics.
    pub short: Vec<Signal>,
    /// Age of the observation.
    pub age: Duration,
}

impl Measure {
    /// Measurement that shows which pods use most of a resource.
    #[must_use]
    pub const fn of(starved: Starved) -> Self {
        match starved {
            Starved::EphemeralStorage | Starved::Inodes => Self::Disk,
            Starved::Memory | Starved::Pids => Self::Groups,
        }
    }
}

/// Order of the manager to its caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Observe all resources; ends with [`Input::Observed`].
    Observe,
    /// Check whether pods exceed their own limits; ends with [`Input::Checked`].
    CheckLimits,
    /// Report that a resource is short and will be reclaimed.
    Tell(Starved),
    /// Remove these unused resources, images within [`IMAGE_RECLAIM`], and observe again; ends with
    /// [`Input::Reclaimed`].
    Reclaim(&'static [Reclaim]),
    /// Measure pods; ends with [`Input::Measured`].
    Measure(Measure),
    /// Evict the pod; ends with [`Input::Stopped`], or [`Input::Spared`].
    Evict(Victim),
    /// Evict the pod that exceeds its own limits; ends with [`Input::Stopped`], or [`Input::Spared`].
    EvictLimited(Violation),
    /// Report that the pod took longer to stop than it had time.
    TellExceeded(PodUid),
}

/// Event for the manager, in most cases the end of an [`Action`].
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// All resources were observed. The flag is set if a pod has limits of its own.
    Observed(Observations, bool),
    /// These pods exceed their own limits.
    Checked(Vec<Violation>),
    /// Everything that could be removed in time is gone; the new observations.
    Reclaimed(Observations),
    /// Pods that might be evicted, with their usage.
    Measured(Vec<Candidate>),
    /// No container of the pod runs any more.
    Stopped(PodUid),
    /// The pod is cleaned up completely.
    Gone(PodUid),
    /// The pod could not be ended, or has ended by itself.
    Spared(PodUid),
}

/// Round in which a threshold may have been found met.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Round {
    /// Indices of the thresholds that call for action; the round deals with the first.
    driving: Vec<usize>,
    at: Mono,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Stage {
    Waiting {
        due: Mono,
    },
    Observing,
    CheckingLimits(Round),
    Reclaiming(Round),
    Measuring(Round),
    /// Pods that have not stopped yet, and those that have.
    Ending {
        running: Vec<PodUid>,
        stopped: Vec<PodUid>,
        until: Mono,
    },
    CleaningUp {
        pods: Vec<PodUid>,
        until: Mono,
    },
}

/// Manager of evictions: thresholds, conditions and the current round. An agent has one.
#[derive(Clone, Debug)]
pub struct Manager {
    pressure: Pressure,
    max_grace_s: i64,
    stage: Stage,
    actions: VecDeque<Action>,
}

impl Manager {
    /// Creates a manager that has not observed anything; the first observation is due at once.
    #[must_use]
    pub fn new(settings: Settings, now: Mono) -> Self {
        Self {
            pressure: Pressure::new(settings.thresholds, settings.transition),
            max_grace_s: settings.max_grace_s,
            stage: Stage::Waiting { due: now },
            actions: VecDeque::new(),
        }
    }

    /// Conditions of the node.
    #[must_use]
    pub const fn conditions(&self) -> Conditions {
        self.pressure.conditions()
    }

    /// Time that a condition stays after its threshold was last met.
    #[must_use]
    pub const fn transition(&self) -> Duration {
        self.pressure.transition()
    }

    /// Thresholds that are met, by signal.
    #[must_use]
    pub fn short(&self) -> Vec<Short> {
        self.pressure.short()
    }

    /// Layout of the file systems at the last observation.
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.pressure.last().map(|o| o.layout).unwrap_or_default()
    }

    /// Time at which [`Manager::handle_timeout`] has work. `None`: an action is under way.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Mono> {
        match self.stage {
            Stage::Waiting { due } => Some(due),
            Stage::Ending { until, .. } | Stage::CleaningUp { until, .. } => Some(until),
            Stage::Observing
            | Stage::CheckingLimits(_)
            | Stage::Reclaiming(_)
            | Stage::Measuring(_) => None,
        }
    }

    /// Applies the passage of time. `limited`: a pod has limits of its own.
    pub fn handle_timeout(&mut self, limited: bool, now: Mono) {
        match &mut self.stage {
            Stage::Waiting { due } if *due <= now => {
                if limited || !self.pressure.is_empty() {
                    self.observe();
                } else {
                    // There is no threshold and no limit.
                    *due = now + POLL;
                }
            }
            Stage::Ending {
                running,
                stopped,
                until,
            } if *until <= now => {
                let late = running.iter().cloned().map(Action::TellExceeded);
                self.actions.extend(late);
                let pods = running.drain(..).chain(stopped.drain(..)).collect();
                self.clean_up(pods, now);
            }
            Stage::CleaningUp { until, .. } if *until <= now => self.observe(),
            Stage::Waiting { .. }
            | Stage::Observing
            | Stage::CheckingLimits(_)
            | Stage::Reclaiming(_)
            | Stage::Measuring(_)
            | Stage::Ending { .. }
            | Stage::CleaningUp { .. } => {}
        }
    }

    /// Takes in that the kernel reports memory pressure: the next observation is due, unless the last one was made less
    /// than [`MIN_POLL`] ago.
    pub fn handle_bell(&mut self, now: Mono) {
        let last = self.pressure.last();
        let earliest = last.map_or(now, |last| now.max(last.at + MIN_POLL));
        if let Stage::Waiting { due } = &mut self.stage {
            *due = earliest.min(*due);
        }
    }

    /// Takes in an event. An event that does not belong to the present stage is ignored.
    pub fn handle(&mut self, input: Input, now: Mono) {
        match input {
            Input::Observed(observations, limited) => {
                if self.stage == Stage::Observing {
                    let driving = self.pressure.observe(&observations, now);
                    let at = observations.at;
                    let round = Round { driving, at };
                    if limited {
                        self.stage = Stage::CheckingLimits(round);
                        self.actions.push_back(Action::CheckLimits);
                    } else {
                        self.begin(round, now);
                    }
                }
            }
            Input::Checked(violations) => {
                if let Stage::CheckingLimits(round) = &self.stage {
                    if violations.is_empty() {
                        let round = round.clone();
                        self.begin(round, now);
                    } else {
                        let pods = violations.iter().map(|v| v.uid.clone()).collect();
                        self.end(pods, IMMEDIATE_GRACE_S, now);
                        let actions = violations.into_iter().map(Action::EvictLimited);
                        self.actions.extend(actions);
                    }
                }
            }
            Input::Reclaimed(observations) => {
                if let Stage::Reclaiming(round) = &self.stage {
                    if self.pressure.is_resolved(&observations) {
                        self.wait(now);
                    } else {
                        let round = round.clone();
                        self.measure(round, now);
                    }
                }
            }
            Input::Measured(candidates) => {
                if let Stage::Measuring(round) = &self.stage {
                    let round = round.clone();
                    self.choose(&round, candidates, now);
                }
            }
            Input::Stopped(uid) => {
                if let Stage::Ending {
                    running, stopped, ..
                } = &mut self.stage
                    && running.contains(&uid)
                {
                    running.retain(|other| *other != uid);
                    stopped.push(uid);
                    self.go_on(now);
                }
            }
            Input::Gone(uid) => match &mut self.stage {
                Stage::Ending {
                    running, stopped, ..
                } => {
                    running.retain(|other| *other != uid);
                    stopped.retain(|other| *other != uid);
                    self.go_on(now);
                }
                Stage::CleaningUp { pods, .. } => {
                    pods.retain(|other| *other != uid);
                    if pods.is_empty() {
                        self.observe();
                    }
                }
                Stage::Waiting { .. }
                | Stage::Observing
                | Stage::CheckingLimits(_)
                | Stage::Reclaiming(_)
                | Stage::Measuring(_) => {}
            },
            Input::Spared(uid) => {
                if let Stage::Ending {
                    running, stopped, ..
                } = &mut self.stage
                    && running.contains(&uid)
                {
                    running.retain(|other| *other != uid);
                    if running.is_empty() && stopped.is_empty() {
                        self.wait(now);
                    } else {
                        self.go_on(now);
                    }
                }
            }
        }
    }

    /// The next thing to do.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Pods that are being evicted.
    pub fn leaving(&self) -> impl Iterator<Item = &PodUid> {
        let (a, b): (&[PodUid], &[PodUid]) = match &self.stage {
            Stage::Ending {
                running, stopped, ..
            } => (running, stopped),
            Stage::CleaningUp { pods, .. } => (pods, &[]),
            Stage::Waiting { .. }
            | Stage::Observing
            | Stage::CheckingLimits(_)
            | Stage::Reclaiming(_)
            | Stage::Measuring(_) => (&[], &[]),
        };
        a.iter().chain(b)
    }

    fn observe(&mut self) {
        self.stage = Stage::Observing;
        self.actions.push_back(Action::Observe);
    }

    fn wait(&mut self, now: Mono) {
        let pause = if self.pressure.is_falling(POLL) {
            MIN_POLL
        } else {
            POLL
        };
        self.stage = Stage::Waiting { due: now + pause };
    }

    fn begin(&mut self, round: Round, now: Mono) {
        let Some(first) = round.driving.first() else {
            return self.wait(now);
        };
        let signal = self.pressure.threshold(*first).signal;
        self.actions.push_back(Action::Tell(signal.starved()));
        match reclaims(signal, self.layout()) {
            [] => self.measure(round, now),
            all => {
                self.actions.push_back(Action::Reclaim(all));
                self.stage = Stage::Reclaiming(round);
            }
        }
    }

    fn measure(&mut self, round: Round, now: Mono) {
        let Some(first) = round.driving.first() else {
            return self.wait(now);
        };
        let what = Measure::of(self.pressure.threshold(*first).signal.starved());
        self.actions.push_back(Action::Measure(what));
        self.stage = Stage::Measuring(round);
    }

    /// Chooses one pod to evict, or none.
    fn choose(&mut self, round: &Round, mut candidates: Vec<Candidate>, now: Mono) {
        let Some(first) = round.driving.first() else {
            return self.wait(now);
        };
        let threshold = self.pressure.threshold(*first);
        rank(&mut candidates, threshold.signal, self.layout());
        let Some(pod) = candidates.into_iter().find(|pod| !pod.critical) else {
            return self.wait(now);
        };
        let grace_s = match threshold.grace {
            None => IMMEDIATE_GRACE_S,
            Some(_) => self.max_grace_s.min(pod.grace_s.unwrap_or(i64::MAX)),
        };
        let short = round.driving.iter();
        let victim = Victim {
            uid: pod.uid.clone(),
            figures: pod.figures,
            grace_s,
            signal: threshold.signal,
            quantities: self.pressure.quantities(*first),
            short: short
                .map(|at| self.pressure.threshold(*at).signal)
                .collect(),
            age: now - round.at,
        };
        self.end(vec![pod.uid], grace_s, now);
        self.actions.push_back(Action::Evict(victim));
    }

    fn end(&mut self, pods: Vec<PodUid>, grace_s: i64, now: Mono) {
        let grace = Duration::from_secs(u64::try_from(grace_s).unwrap_or(0));
        self.stage = Stage::Ending {
            running: pods,
            stopped: Vec::new(),
            until: now + MIN_STOP.max(grace.saturating_mul(3) / 2),
        };
    }

    /// Waits for the clean-up of the pods once all have stopped.
    fn go_on(&mut self, now: Mono) {
        if let Stage::Ending {
            running, stopped, ..
        } = &mut self.stage
            && running.is_empty()
        {
            let pods = core::mem::take(stopped);
            self.clean_up(pods, now);
        }
    }

    fn clean_up(&mut self, pods: Vec<PodUid>, now: Mono) {
        if pods.is_empty() {
            return self.observe();
        }
        let until = now + CLEAN_UP;
        self.stage = Stage::CleaningUp { pods, until };
    }
}

/// Resources that can be removed for a signal before a pod is evicted.
const fn reclaims(signal: Signal, layout: Layout) -> &'static [Reclaim] {
    const CONTAINERS: &[Reclaim] = &[Reclaim::DeadContainers];
    const IMAGES: &[Reclaim] = &[Reclaim::UnusedImages];
    const BOTH: &[Reclaim] = &[Reclaim::DeadContainers, Reclaim::UnusedImages];
    match signal {
        Signal::MemoryAvailable | Signal::AllocatableMemory | Signal::PidAvailable => &[],
        Signal::NodeFsAvailable | Signal::NodeFsInodes => match layout {
            Layout::OneDisk => BOTH,
            Layout::SeparateRuntime => &[],
            Layout::SplitImages => CONTAINERS,
        },
        Signal::ImageFsAvailable | Signal::ImageFsInodes => match layout {
            Layout::OneDisk | Layout::SeparateRuntime => BOTH,
            Layout::SplitImages => IMAGES,
        },
        Signal::ContainerFsAvailable | Signal::ContainerFsInodes => match layout {
            Layout::OneDisk | Layout::SeparateRuntime => BOTH,
            Layout::SplitImages => CONTAINERS,
        },
    }
}

#[cfg(test)]
mod explore;
#[cfg(test)]
mod tests;
