//! Thresholds that are met, since when, and the conditions of the node that result (EVICT-03, EVICT-05).

use alloc::vec::Vec;
use core::time::Duration;

use super::{
    observation::{DiskLayout, Observations, ResourceReading},
    threshold::{EvictionSignal, EvictionThreshold, StarvedResource},
};
use crate::api::{MonoTime, Quantity, order::OrderExt as _};

/// Conditions of the node that hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PressureConditions {
    /// `MemoryPressure`.
    pub memory: bool,
    /// `DiskPressure`.
    pub disk: bool,
    /// `PIDPressure`.
    pub pid: bool,
}

impl PressureConditions {
    const NAMES: [&'static str; 3] = ["MemoryPressure", "DiskPressure", "PIDPressure"];

    /// Names of the conditions that hold, in the order of reports.
    pub fn condition_names(self) -> impl Iterator<Item = &'static str> {
        let holds = [self.memory, self.disk, self.pid];
        let all = Self::NAMES.into_iter().zip(holds);
        all.filter(|(_, holds)| *holds).map(|(name, _)| name)
    }
}

/// Index of the condition that a signal belongs to.
const fn condition_index(signal: EvictionSignal) -> usize {
    match signal.starved_resource() {
        StarvedResource::Memory => 0,
        StarvedResource::EphemeralStorage | StarvedResource::Inodes => 1,
        StarvedResource::Pids => 2,
    }
}

/// A threshold that is met, in the form that people read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetThreshold {
    /// Signal of the threshold.
    pub signal: EvictionSignal,
    /// Time since which the threshold is met.
    pub since: MonoTime,
    /// Amount that must be left.
    pub limit: Quantity,
    /// Amount that was left at the last observation.
    pub available: Quantity,
    /// Set for a soft threshold. Its grace period may still be running.
    pub soft: bool,
}

/// Threshold with its history.
#[derive(Clone, Debug)]
struct TrackedThreshold {
    threshold: EvictionThreshold,
    /// Time since which the threshold is met without interruption.
    since: Option<MonoTime>,
    /// Set if the threshold had been met for its grace period at the last observation. Then the threshold stays met
    /// until its minimum to reclaim is available as well.
    needs_action: bool,
}

impl TrackedThreshold {
    /// Returns true if less is left than must be left. `with_reclaim`: the minimum to reclaim must be left in addition.
    /// `None`: the amount is not known.
    fn is_met(&self, observations: &Observations, with_reclaim: bool) -> Option<bool> {
        let reading = observations.signal_reading(self.threshold.signal)?;
        let more = self.threshold.min_reclaim.as_ref().filter(|_| with_reclaim);
        let more = more.map_or(0, |more| more.amount_of_capacity(reading.capacity));
        let least = self.threshold.limit.amount_of_capacity(reading.capacity);
        Some(reading.available < least.saturating_add(more))
    }

    /// The limit and the available amount, as messages write them.
    fn limit_and_available(&self, observations: &Observations) -> Option<(Quantity, Quantity)> {
        let EvictionThreshold { signal, limit, .. } = &self.threshold;
        let ResourceReading {
            available,
            capacity,
        } = observations.signal_reading(*signal)?;
        Some((
            limit.quantity_of_capacity(capacity),
            signal.format_amount(available),
        ))
    }
}

/// State of all thresholds and conditions.
#[derive(Clone, Debug)]
pub(super) struct PressureState {
    /// Sorted by signal, hard ones first.
    tracked: Vec<TrackedThreshold>,
    layout: Option<DiskLayout>,
    transition: Duration,
    /// Time at which a threshold of each condition was last met.
    last_met: [Option<MonoTime>; 3],
    conditions: PressureConditions,
    last: Option<Observations>,
    /// Observations before `last`.
    previous: Option<Observations>,
}

impl PressureState {
    /// Starts with these thresholds and without observations.
    pub(super) fn new(thresholds: Vec<EvictionThreshold>, transition: Duration) -> Self {
        let tracked = |threshold| TrackedThreshold {
            threshold,
            since: None,
            needs_action: false,
        };
        Self {
            tracked: thresholds.into_iter().map(tracked).collect(),
            layout: None,
            transition,
            last_met: [None; 3],
            conditions: PressureConditions::default(),
            last: None,
            previous: None,
        }
    }

    /// Returns true if there are no thresholds.
    pub(super) fn is_empty(&self) -> bool {
        self.tracked.is_empty()
    }

    pub(super) const fn conditions(&self) -> PressureConditions {
        self.conditions
    }

    /// Time that a condition stays after its threshold was last met.
    pub(super) const fn transition(&self) -> Duration {
        self.transition
    }

    /// Last observations.
    pub(super) const fn last_observations(&self) -> Option<&Observations> {
        self.last.as_ref()
    }

    /// The threshold at this index.
    pub(super) fn threshold_at(&self, at: usize) -> &EvictionThreshold {
        &self.tracked[at].threshold
    }

    /// Takes observations in. Returns the indices of thresholds that call for action, most urgent first.
    pub(super) fn take_observations(
        &mut self,
        observations: &Observations,
        now: MonoTime,
    ) -> Vec<usize> {
        self.adopt_layout(observations.layout);
        for tracked in &mut self.tracked {
            let met = tracked
                .is_met(observations, tracked.needs_action)
                .unwrap_or(false);
            tracked.since = met.then(|| tracked.since.unwrap_or(now));
            if met {
                self.last_met[condition_index(tracked.threshold.signal)] = Some(now);
            }
            let grace = tracked.threshold.grace.unwrap_or_default();
            tracked.needs_action = tracked.since.is_some_and(|since| now - since >= grace);
        }
        let holds = |at: usize| {
            self.last_met[at]
                .is_some_and(|last_met| is_condition_held(last_met, now, self.transition))
        };
        self.conditions = PressureConditions {
            memory: holds(0),
            disk: holds(1),
            pid: holds(2),
        };
        let is_newer = self.last.is_none_or(|last| observations.at > last.at);
        if is_newer {
            self.previous = self.last;
        }
        self.last = Some(*observations);
        let all = self.tracked.iter().enumerate();
        let acting = all.filter(|(_, tracked)| tracked.needs_action && is_newer);
        acting.map(|(at, _)| at).collect()
    }

    /// Returns true if a resource falls so fast that a threshold which is not met would be met within this time.
    pub(super) fn is_falling(&self, within: Duration) -> bool {
        let (Some(previous), Some(last)) = (&self.previous, &self.last) else {
            return false;
        };
        let elapsed_ms = (last.at - previous.at).as_millis();
        let falls = |threshold: &EvictionThreshold| {
            let (first, second) = (
                previous.signal_reading(threshold.signal)?,
                last.signal_reading(threshold.signal)?,
            );
            let left = second.available - threshold.limit.amount_of_capacity(second.capacity);
            let (left, fall) = (
                u128::try_from(left).ok()?,
                u128::try_from(first.available - second.available).ok()?,
            );
            Some(left.saturating_mul(elapsed_ms) < fall.saturating_mul(within.as_millis()))
        };
        let mut all = self.tracked.iter();
        all.any(|tracked| falls(&tracked.threshold) == Some(true))
    }

    /// Returns true if no threshold is met any more, minimums to reclaim included.
    pub(super) fn is_resolved(&self, observations: &Observations) -> bool {
        let mut all = self.tracked.iter();
        !all.any(|tracked| tracked.is_met(observations, true) == Some(true))
    }

    /// Thresholds that are met.
    pub(super) fn met_thresholds(&self) -> Vec<MetThreshold> {
        let shown = |tracked: &TrackedThreshold| {
            let (limit, available) = tracked.limit_and_available(self.last.as_ref()?)?;
            Some(MetThreshold {
                signal: tracked.threshold.signal,
                since: tracked.since?,
                limit,
                available,
                soft: tracked.threshold.grace.is_some(),
            })
        };
        self.tracked.iter().filter_map(shown).collect()
    }

    /// The limit of the threshold at this index and the amount that was left, as messages write them.
    pub(super) fn limit_and_available(&self, at: usize) -> Option<(Quantity, Quantity)> {
        self.tracked[at].limit_and_available(self.last.as_ref()?)
    }

    /// Makes the thresholds of `containerfs` anew, when the layout has changed. The writable layers are on the file
    /// system of the root directory or on that of the images, and get copies of its thresholds (EVICT-01).
    fn adopt_layout(&mut self, layout: DiskLayout) {
        if self.layout == Some(layout) {
            return;
        }
        self.layout = Some(layout);
        let is_containerfs = |signal| {
            matches!(
                signal,
                EvictionSignal::ContainerFsAvailable | EvictionSignal::ContainerFsInodes
            )
        };
        self.tracked
            .retain(|tracked| !is_containerfs(tracked.threshold.signal));
        let (bytes, inodes) = match layout {
            DiskLayout::OneDisk | DiskLayout::SplitImages => (
                EvictionSignal::NodeFsAvailable,
                EvictionSignal::NodeFsInodes,
            ),
            DiskLayout::SeparateRuntime => (
                EvictionSignal::ImageFsAvailable,
                EvictionSignal::ImageFsInodes,
            ),
        };
        let mut copies = Vec::new();
        for tracked in &self.tracked {
            let signal = if tracked.threshold.signal == bytes {
                EvictionSignal::ContainerFsAvailable
            } else if tracked.threshold.signal == inodes {
                EvictionSignal::ContainerFsInodes
            } else {
                continue;
            };
            let threshold = EvictionThreshold {
                signal,
                ..tracked.threshold.clone()
            };
            copies.push(TrackedThreshold {
                threshold,
                since: tracked.since,
                needs_action: tracked.needs_action,
            });
        }
        self.tracked.extend(copies);
        self.tracked
            .stable_sort_by_key(|tracked| (tracked.threshold.signal, tracked.threshold.grace));
    }
}

/// Returns true if a condition still holds (EVICT-05). `seen`: time at which its threshold was last met. A kubelet has
/// the same rule: the time must be later than `now` less `period`.
#[must_use]
pub fn is_condition_held(seen: MonoTime, now: MonoTime, period: Duration) -> bool {
    seen == now || now - seen < period
}

#[cfg(test)]
mod tests {
    use alloc::{string::String, vec};

    use super::{super::threshold::ThresholdLimit, *};
    use crate::api::cri::FsInfo;

    const fn s(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    const fn at(n: u64) -> MonoTime {
        MonoTime(n * 1000)
    }

    fn threshold(
        signal: EvictionSignal,
        least: &str,
        grace: Option<u64>,
        more: &str,
    ) -> EvictionThreshold {
        let amount = |text: &str| ThresholdLimit::Amount(Quantity::parse(text).expect(text));
        EvictionThreshold {
            signal,
            limit: amount(least),
            grace: grace.map(s),
            min_reclaim: (!more.is_empty()).then(|| amount(more)),
        }
    }

    /// Observations at `now` with this much memory and disk left of 1000.
    fn left(memory: i64, disk: u64, now: u64) -> Observations {
        Observations {
            at: at(now),
            memory: Some(ResourceReading {
                available: memory,
                capacity: 1000,
            }),
            nodefs: Some(FsInfo {
                capacity_bytes: 1000,
                available_bytes: disk,
                ..FsInfo::default()
            }),
            ..Observations::default()
        }
    }

    fn names(pressure: &PressureState) -> Vec<&'static str> {
        pressure.conditions().condition_names().collect()
    }

    /// Thresholds that call for action, and conditions that hold, after each observation (second, memory, disk).
    fn run(pressure: &mut PressureState, rounds: &[(u64, i64, u64)]) -> Vec<String> {
        let rounds = rounds.iter().map(|(now, memory, disk)| {
            let driving = pressure.take_observations(&left(*memory, *disk, *now), at(*now));
            let driving = driving
                .iter()
                .map(|n| pressure.threshold_at(*n).signal.name());
            let driving: Vec<_> = driving.collect();
            format!(
                "{now}: {} | {}",
                driving.join(" "),
                names(pressure).join(" ")
            )
        });
        rounds.collect()
    }

    #[test]
    fn hard_thresholds_and_the_transition_period() {
        // EVICT-03 EVICT-05
        let memory = threshold(EvictionSignal::MemoryAvailable, "100", None, "");
        let mut pressure = PressureState::new(vec![memory], s(300));
        let rounds = [
            (0, 100, 0),
            (10, 99, 0),
            (20, 100, 0),
            (300, 100, 0),
            (309, 100, 0),
            (310, 100, 0),
            (320, -5, 0),
        ];
        assert_eq!(
            run(&mut pressure, &rounds),
            [
                "0:  | ",
                "10: memory.available | MemoryPressure",
                "20:  | MemoryPressure",
                "300:  | MemoryPressure",
                "309:  | MemoryPressure",
                "310:  | ",
                "320: memory.available | MemoryPressure",
            ]
        );
    }

    #[test]
    fn soft_thresholds_wait_and_set_the_condition_at_once() {
        // EVICT-03 EVICT-05
        let soft = threshold(EvictionSignal::MemoryAvailable, "200", Some(30), "");
        let mut pressure = PressureState::new(vec![soft], s(60));
        let rounds = [
            (0, 199, 0),
            (10, 199, 0),
            // An interruption: the grace period starts again.
            (20, 200, 0),
            (30, 199, 0),
            (50, 199, 0),
            (60, 199, 0),
        ];
        assert_eq!(
            run(&mut pressure, &rounds),
            [
                "0:  | MemoryPressure",
                "10:  | MemoryPressure",
                "20:  | MemoryPressure",
                "30:  | MemoryPressure",
                "50:  | MemoryPressure",
                "60: memory.available | MemoryPressure",
            ]
        );
        let short = pressure.met_thresholds();
        assert_eq!(short.len(), 1);
        assert_eq!((short[0].since, short[0].soft), (at(30), true));
        assert_eq!(
            (short[0].limit.as_str(), short[0].available.as_str()),
            ("200", "199")
        );
    }

    #[test]
    fn a_minimum_is_reclaimed_before_it_is_over() {
        // EVICT-03
        let memory = threshold(EvictionSignal::MemoryAvailable, "100", None, "50");
        let mut pressure = PressureState::new(vec![memory], s(0));
        let rounds = [
            (0, 140, 0),
            (10, 90, 0),
            (20, 149, 0),
            (30, 150, 0),
            (40, 149, 0),
        ];
        assert_eq!(
            run(&mut pressure, &rounds),
            [
                "0:  | ",
                "10: memory.available | MemoryPressure",
                "20: memory.available | MemoryPressure",
                "30:  | ",
                "40:  | ",
            ]
        );
        assert!(!pressure.is_resolved(&left(149, 0, 50)));
        assert!(pressure.is_resolved(&left(150, 0, 50)));
    }

    #[test]
    fn memory_comes_first_and_writable_layers_follow() {
        // EVICT-01 EVICT-06
        let thresholds = || {
            vec![
                threshold(EvictionSignal::MemoryAvailable, "100", None, ""),
                threshold(EvictionSignal::AllocatableMemory, "100", None, ""),
                threshold(EvictionSignal::NodeFsAvailable, "100", None, ""),
                threshold(EvictionSignal::ImageFsAvailable, "300", None, ""),
            ]
        };
        let mut pressure = PressureState::new(thresholds(), s(0));
        assert_eq!(
            run(&mut pressure, &[(0, 10, 10)]),
            [
                "0: memory.available nodefs.available containerfs.available | MemoryPressure DiskPressure"
            ],
            "of what is not known nothing is met"
        );
        let separate = Observations {
            layout: DiskLayout::SeparateRuntime,
            imagefs: left(0, 250, 0).nodefs,
            ..left(500, 500, 10)
        };
        let driving = pressure.take_observations(&separate, at(10));
        let driving: Vec<_> = driving
            .iter()
            .map(|n| pressure.threshold_at(*n).signal.name())
            .collect();
        assert_eq!(driving, ["imagefs.available", "containerfs.available"]);
    }

    #[test]
    fn what_falls_fast_is_looked_at_soon() {
        // EVICT-04
        for (name, rounds, want) in [
            ("one look tells nothing", &[(0, 500, 0)][..], false),
            ("it stays", &[(0, 500, 0), (10, 500, 0)], false),
            ("slowly", &[(0, 500, 0), (10, 400, 0)], false),
            (
                "in ten seconds it would just not be met",
                &[(0, 500, 0), (10, 300, 0)],
                false,
            ),
            ("it would be", &[(0, 500, 0), (10, 299, 0)], true),
            ("the rate counts", &[(0, 500, 0), (1, 459, 0)], true),
            ("it grows", &[(0, 299, 0), (10, 500, 0)], false),
            ("it is met already", &[(0, 500, 0), (10, 99, 0)], false),
        ] {
            let memory = threshold(EvictionSignal::MemoryAvailable, "100", None, "");
            let mut pressure = PressureState::new(vec![memory], s(300));
            run(&mut pressure, rounds);
            assert_eq!(pressure.is_falling(s(10)), want, "{name}");
        }
    }

    #[test]
    fn what_was_acted_upon_is_not_acted_upon_again() {
        // EVICT-04
        let memory = threshold(EvictionSignal::MemoryAvailable, "100", None, "");
        let mut pressure = PressureState::new(vec![memory], s(300));
        let observed = left(10, 0, 5);
        assert_eq!(pressure.take_observations(&observed, at(5)).len(), 1);
        assert_eq!(pressure.take_observations(&observed, at(15)).len(), 0);
        assert_eq!(names(&pressure), ["MemoryPressure"]);
        assert_eq!(
            pressure.take_observations(&left(10, 0, 16), at(16)).len(),
            1
        );
    }
}
