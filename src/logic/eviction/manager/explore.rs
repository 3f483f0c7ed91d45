//! Schedules drawn from a seed: the promises hold whichever resource is short at any moment, and however long actions
//! take. Met thresholds and conditions are computed here a second time, from all observations.

use alloc::collections::BTreeMap;

use super::{
    super::{observation::ResourceReading, threshold::ThresholdLimit},
    *,
};
use crate::testing::Random;

/// Schedules of one run, and steps of each.
const SCHEDULES: u64 = 20_000;
const STEPS: usize = 60;
/// Pods of a machine; the first two are critical.
const PODS: [&str; 5] = ["critical", "system", "a", "b", "c"];
const CRITICAL: usize = 2;

fn number(random: &mut Random, below: u64) -> u64 {
    random.below(below)
}

/// Model of a node from which the promises are computed.
struct NodeModel {
    random: Random,
    now: MonoTime,
    thresholds: Vec<EvictionThreshold>,
    transition: Duration,
    /// Memory and process numbers that are left, of 1000 each.
    left: [i64; 2],
    /// Time since which each threshold is met at every observation. Once the threshold called for action, the minimum
    /// to reclaim counts, too.
    met: Vec<Option<MonoTime>>,
    acted: Vec<bool>,
    /// Time at which a threshold of each condition was last met.
    seen: [Option<MonoTime>; 2],
    last: MonoTime,
    /// Set if the round may still evict a pod. Each observation allows one.
    may_evict: bool,
    /// Pods that are being evicted, with the time at which that began.
    ending: BTreeMap<PodUid, MonoTime>,
    evictions: u64,
}

impl NodeModel {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let mut thresholds = Vec::new();
        for signal in [
            EvictionSignal::MemoryAvailable,
            EvictionSignal::PidAvailable,
        ] {
            let least = |random: &mut Random| {
                let amount = i64::try_from(100 + number(random, 300)).expect("small");
                ThresholdLimit::Amount(Quantity::from_decimal_units(amount))
            };
            let more = |random: &mut Random| {
                let amount = i64::try_from(number(random, 200)).expect("small");
                (amount > 100).then(|| ThresholdLimit::Amount(Quantity::from_decimal_units(amount)))
            };
            for grace in [None, Some(Duration::from_secs(number(&mut random, 60)))] {
                if number(&mut random, 3) > 0 {
                    thresholds.push(EvictionThreshold {
                        signal,
                        limit: least(&mut random),
                        grace,
                        min_reclaim: more(&mut random),
                    });
                }
            }
        }
        let transition = Duration::from_secs(number(&mut random, 120));
        Self {
            random,
            now: MonoTime(0),
            transition,
            left: [500; 2],
            met: vec![None; thresholds.len()],
            acted: vec![false; thresholds.len()],
            thresholds,
            seen: [None; 2],
            last: MonoTime(0),
            may_evict: false,
            ending: BTreeMap::new(),
            evictions: 0,
        }
    }

    fn observations(&self) -> Observations {
        let [memory, pids] = self.left.map(|available| {
            Some(ResourceReading {
                available,
                capacity: 1000,
            })
        });
        Observations {
            at: self.now,
            memory,
            pids,
            ..Observations::default()
        }
    }

    fn place(signal: EvictionSignal) -> usize {
        usize::from(signal == EvictionSignal::PidAvailable)
    }

    /// Computes what an observation must show.
    fn looked(&mut self) {
        for (n, threshold) in self.thresholds.iter().enumerate() {
            let place = Self::place(threshold.signal);
            let more = threshold
                .min_reclaim
                .as_ref()
                .map_or(0, |more| more.amount_of_capacity(0));
            let least =
                threshold.limit.amount_of_capacity(0) + if self.acted[n] { more } else { 0 };
            if self.left[place] < least {
                self.met[n] = self.met[n].or(Some(self.now));
                self.seen[place] = Some(self.now);
            } else {
                self.met[n] = None;
            }
            let grace = threshold.grace.unwrap_or_default();
            self.acted[n] = self.met[n].is_some_and(|since| self.now - since >= grace);
        }
        self.last = self.now;
    }

    fn conditions_hold(&self, found: PressureConditions) {
        let want = self.seen.map(|seen| {
            seen.is_some_and(|seen| seen == self.last || self.last - seen < self.transition)
        });
        assert_eq!([found.memory, found.pid], want, "conditions");
        assert!(!found.disk);
    }

    fn candidates(&mut self) -> Vec<EvictablePod> {
        let mut all = Vec::new();
        for (n, name) in PODS.into_iter().enumerate() {
            let uid = PodUid::from(name);
            if self.ending.contains_key(&uid) || number(&mut self.random, 5) == 0 {
                continue;
            }
            let memory = number(&mut self.random, 100);
            let measured = number(&mut self.random, 4) > 0;
            all.push(EvictablePod {
                uid,
                critical: n < CRITICAL,
                grace_s: Some(i64::try_from(number(&mut self.random, 40)).expect("small")),
                figures: measured.then(|| PodFigures {
                    memory_bytes: Some(memory),
                    ..PodFigures::default()
                }),
                ..EvictablePod::default()
            });
        }
        all
    }

    fn evicted(&mut self, victim: &EvictionVictim) {
        let is_critical = PODS[..CRITICAL].contains(&victim.uid.as_str());
        assert!(!is_critical, "{} went", victim.uid);
        assert!(self.may_evict, "a second pod in one round");
        self.may_evict = false;
        let mut all = self.thresholds.iter().zip(&self.acted);
        let met = all.find(|(t, acted)| **acted && t.signal == victim.signal);
        assert!(met.is_some(), "{:?} is not short", victim.signal);
        if victim.signal == EvictionSignal::PidAvailable {
            let mut all = self.thresholds.iter().zip(&self.acted);
            let memory = all.find(|(t, acted)| **acted && t.signal != victim.signal);
            assert_eq!(memory, None, "memory comes first");
        }
        assert!(victim.grace_s == IMMEDIATE_GRACE_S || victim.grace_s <= 20);
        self.ending.insert(victim.uid.clone(), self.now);
        self.evictions += 1;
    }
}

/// Runs one schedule. Returns the number of evicted pods.
fn run(seed: u64) -> u64 {
    let mut world = NodeModel::new(seed);
    let settings = EvictionSettings {
        thresholds: world.thresholds.clone(),
        transition: world.transition,
        max_grace_s: 20,
    };
    let mut manager = EvictionManager::new(settings, world.now);
    // Actions that are not answered yet.
    let mut asked: Option<EvictionAction> = None;
    for _ in 0..STEPS {
        let time = number(&mut world.random, 12_000);
        world.now = MonoTime(world.now.0 + time);
        for place in 0..2 {
            let by = i64::try_from(number(&mut world.random, 301)).expect("small") - 150;
            world.left[place] = (world.left[place] + by).clamp(0, 1000);
        }
        match number(&mut world.random, 4) {
            0 => {
                // An action ends, or an event comes that the manager did not ask for.
                let n = usize::try_from(number(&mut world.random, 5)).expect("small");
                let uid = PodUid::from(PODS[n]);
                let input = match number(&mut world.random, 3) {
                    0 => EvictionInput::Stopped(uid),
                    1 => {
                        world.ending.remove(&uid);
                        EvictionInput::Gone(uid)
                    }
                    _ => {
                        world.ending.remove(&uid);
                        EvictionInput::Spared(uid)
                    }
                };
                manager.handle_input(input, world.now);
            }
            1 => manager.handle_pressure_signal(world.now),
            _ => {
                let input = match asked.take() {
                    Some(EvictionAction::Observe) => {
                        world.may_evict = true;
                        let observations = world.observations();
                        world.looked();
                        manager
                            .handle_input(EvictionInput::Observed(observations, false), world.now);
                        world.conditions_hold(manager.conditions());
                        None
                    }
                    Some(EvictionAction::Measure(_)) => {
                        Some(EvictionInput::Measured(world.candidates()))
                    }
                    Some(other) => panic!("{other:?} was asked"),
                    None => None,
                };
                if let Some(input) = input {
                    manager.handle_input(input, world.now);
                }
            }
        }
        manager.handle_timeout(false, world.now);
        while let Some(action) = manager.poll_action() {
            match action {
                EvictionAction::Tell(_) | EvictionAction::TellExceeded(_) => {}
                EvictionAction::Evict(victim) => world.evicted(&victim),
                EvictionAction::Observe | EvictionAction::Measure(_) => {
                    assert_eq!(asked.replace(action), None, "two things at a time");
                }
                EvictionAction::CheckLimits
                | EvictionAction::Reclaim(_)
                | EvictionAction::EvictLimited(_) => {
                    panic!("{action:?} of nothing")
                }
            }
        }
        assert!(
            asked.is_some() || manager.next_timeout().is_some(),
            "nothing will ever happen again"
        );
    }
    world.evictions
}

#[test]
fn whatever_is_short_at_whatever_moment() {
    // EVICT-03 EVICT-05 EVICT-06 EVICT-10
    let evictions: u64 = (0..SCHEDULES).map(run).sum();
    assert!(evictions > SCHEDULES, "{evictions} pods went");
}
