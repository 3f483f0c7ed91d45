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

/// A threshold that is met, for people.
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
    /// Set for a soft threshold. Its grace period may not be over.
    pub soft: bool,
}

/// Threshold with its history.
#[derive(Clone, Debug)]
struct TrackedThreshold {
    threshold: EvictionThreshold,
    /// Time since which the threshold is met without interruption.
    since: Option<MonoTime>,
    /// Set if the threshold had been met for its grace period at the last observation. The threshold stays met until
    /// its minimum to reclaim is back as well.
    drives: bool,
}

impl TrackedThreshold {
    /// Returns true if less is left than must be; with `reclaim` the minimum to reclaim counts as well. `None`: not
    /// known.
    fn is_met(&self, observations: &Observations, reclaim: bool) -> Option<bool> {
        let reading = observations.signal_reading(self.threshold.signal)?;
        let more = self.threshold.min_reclaim.as_ref().filter(|_| reclaim);
        let more = more.map_or(0, |more| more.amount_of_capacity(reading.capacity));
        let least = self.threshold.limit.amount_of_capacity(reading.capacity);
        Some(reading.available < least.saturating_add(more))
    }

    /// The limit and the available amount, in the form of messages.
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
    held: Vec<TrackedThreshold>,
    layout: Option<DiskLayout>,
    transition: Duration,
    /// Time at which a threshold of each condition was last met.
    seen: [Option<MonoTime>; 3],
    conditions: PressureConditions,
    last: Option<Observations>,
    /// Observations before the last ones.
    before: Option<Observations>,
}

impl PressureState {
    /// Starts with these thresholds and without observations.
    pub(super) fn new(thresholds: Vec<EvictionThreshold>, transition: Duration) -> Self {
        let held = |threshold| TrackedThreshold {
            threshold,
            since: None,
            drives: false,
        };
        Self {
            held: thresholds.into_iter().map(held).collect(),
            layout: None,
            transition,
            seen: [None; 3],
            conditions: PressureConditions::default(),
            last: None,
            before: None,
        }
    }

    /// Returns true if there are no thresholds.
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Conditions that hold.
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
        &self.held[at].threshold
    }

    /// Takes observations in. Returns the indices of thresholds that call for action, most urgent first.
    pub(super) fn take_observations(
        &mut self,
        observations: &Observations,
        now: MonoTime,
    ) -> Vec<usize> {
        self.adopt_layout(observations.layout);
        for held in &mut self.held {
            let met = held.is_met(observations, held.drives).unwrap_or(false);
            held.since = met.then(|| held.since.unwrap_or(now));
            if met {
                self.seen[condition_index(held.threshold.signal)] = Some(now);
            }
            let grace = held.threshold.grace.unwrap_or_default();
            held.drives = held.since.is_some_and(|since| now - since >= grace);
        }
        let holds = |at: usize| {
            self.seen[at].is_some_and(|seen| is_condition_held(seen, now, self.transition))
        };
        self.conditions = PressureConditions {
            memory: holds(0),
            disk: holds(1),
            pid: holds(2),
        };
        let is_newer = self.last.is_none_or(|last| observations.at > last.at);
        if is_newer {
            self.before = self.last;
        }
        self.last = Some(*observations);
        let all = self.held.iter().enumerate();
        let driving = all.filter(|(_, held)| held.drives && is_newer);
        driving.map(|(at, _)| at).collect()
    }

    /// Returns true if a resource falls so fast that a threshold which is not met would be met within this time.
    pub(super) fn is_falling(&self, within: Duration) -> bool {
        let (Some(before), Some(last)) = (&self.before, &self.last) else {
            return false;
        };
        let took = (last.at - before.at).as_millis();
        let falls = |threshold: &EvictionThreshold| {
            let (first, second) = (
                before.signal_reading(threshold.signal)?,
                last.signal_reading(threshold.signal)?,
            );
            let left = second.available - threshold.limit.amount_of_capacity(second.capacity);
            let (left, fall) = (
                u128::try_from(left).ok()?,
                u128::try_from(first.available - second.available).ok()?,
            );
            Some(left.saturating_mul(took) < fall.saturating_mul(within.as_millis()))
        };
        let mut all = self.held.iter();
        all.any(|held| falls(&held.threshold) == Some(true))
    }

    /// Returns true if no threshold is met any more, minimums to reclaim included.
    pub(super) fn is_resolved(&self, observations: &Observations) -> bool {
        let mut all = self.held.iter();
        !all.any(|held| held.is_met(observations, true) == Some(true))
    }

    /// Thresholds that are met.
    pub(super) fn met_thresholds(&self) -> Vec<MetThreshold> {
        let shown = |held: &TrackedThreshold| {
            let (limit, available) = held.limit_and_available(self.last.as_ref()?)?;
            Some(MetThreshold {
                signal: held.threshold.signal,
                since: held.since?,
                limit,
                available,
                soft: held.threshold.grace.is_some(),
            })
        };
        self.held.iter().filter_map(shown).collect()
    }

    /// The limit of the threshold at this index and the amount that was left, in the form of messages.
    pub(super) fn limit_and_available(&self, at: usize) -> Option<(Quantity, Quantity)> {
        self.held[at].limit_and_available(self.last.as_ref()?)
    }

    /// Gives the file system of the writable layers the thresholds of the file system it is on: the root's or the
    /// images' (EVICT-01).
    fn adopt_layout(&mut self, layout: DiskLayout) {
        if self.layout == Some(layout) {
            return;
        }
        self.layout = Some(layout);
        let is_own = |signal| {
            matches!(
                signal,
                EvictionSignal::ContainerFsAvailable | EvictionSignal::ContainerFsInodes
            )
        };
        self.held.retain(|held| !is_own(held.threshold.signal));
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
        let mut more = Vec::new();
        for held in &self.held {
            let signal = if held.threshold.signal == bytes {
                EvictionSignal::ContainerFsAvailable
            } else if held.threshold.signal == inodes {
                EvictionSignal::ContainerFsInodes
            } else {
                continue;
            };
            let threshold = EvictionThreshold {
                signal,
                ..held.threshold.clone()
            };
            more.push(TrackedThreshold {
                threshold,
                since: held.since,
                drives: held.drives,
            });
        }
        self.held.extend(more);
        self.held
            .stable_sort_by_key(|held| (held.threshold.signal, held.threshold.grace));
    }
}

/// Returns true if a condition still holds whose threshold was last met at `seen` (EVICT-05). A kubelet puts it as:
/// observed since now less the period.
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
