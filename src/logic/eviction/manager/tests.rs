//! Rounds, from the first look to the next.

use alloc::{
    format,
    string::{String, ToString},
};

use super::{super::threshold::ThresholdLimit, *};
use crate::api::{cri::FsInfo, stats::DiskUsage};

use super::super::{observation::ResourceReading, rank::ContainerFigures};

const fn s(n: u64) -> Duration {
    Duration::from_secs(n)
}

const fn at(n: u64) -> MonoTime {
    MonoTime(n * 1000)
}

fn threshold(signal: EvictionSignal, least: &str, grace: Option<u64>) -> EvictionThreshold {
    EvictionThreshold {
        signal,
        limit: ThresholdLimit::Amount(Quantity::parse(least).expect(least)),
        grace: grace.map(s),
        min_reclaim: None,
    }
}

/// A manager, and the time.
struct Bench {
    manager: EvictionManager,
    now: u64,
}

impl Bench {
    fn new(thresholds: Vec<EvictionThreshold>) -> Self {
        let settings = EvictionSettings {
            thresholds,
            transition: s(300),
            max_grace_s: 20,
        };
        Self {
            manager: EvictionManager::new(settings, at(0)),
            now: 0,
        }
    }

    fn done(&mut self) -> Vec<String> {
        let mut all = Vec::new();
        while let Some(action) = self.manager.poll_action() {
            all.push(match action {
                EvictionAction::Observe => "observe".into(),
                EvictionAction::CheckLimits => "check".into(),
                EvictionAction::Tell(starved) => format!("tell {}", starved.name()),
                EvictionAction::Reclaim(what) => format!("reclaim {what:?}"),
                EvictionAction::Measure(what) => format!("measure {what:?}"),
                EvictionAction::Evict(v) => {
                    let (limit, left) = v.quantities.expect("known");
                    format!(
                        "evict {} {}s {} {limit} {left}",
                        v.uid,
                        v.grace_s,
                        v.signal.name()
                    )
                }
                EvictionAction::EvictLimited(v) => format!("evict {} {}", v.uid, v.signal),
                EvictionAction::TellExceeded(uid) => format!("exceeded {uid}"),
            });
        }
        all
    }

    /// Moves the time to `now` and returns the actions.
    fn at(&mut self, now: u64) -> Vec<String> {
        self.now = now;
        self.manager.handle_timeout(false, at(now));
        self.done()
    }

    fn hear(&mut self, input: EvictionInput) -> Vec<String> {
        self.manager.handle_input(input, at(self.now));
        self.done()
    }

    /// Observations with this much memory and disk left of 1000.
    fn left(&self, memory: i64, disk: u64) -> Observations {
        Observations {
            at: at(self.now),
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

    fn observed(&mut self, memory: i64, disk: u64) -> Vec<String> {
        let left = self.left(memory, disk);
        self.hear(EvictionInput::Observed(left, false))
    }

    fn measured(&mut self, pods: &[(&str, u64, bool)]) -> Vec<String> {
        let pods = pods.iter().map(|(uid, memory, critical)| EvictablePod {
            uid: (*uid).into(),
            critical: *critical,
            grace_s: Some(7),
            figures: Some(PodFigures {
                memory_bytes: Some(*memory),
                containers: vec![ContainerFigures {
                    rootfs: Some(DiskUsage {
                        used_bytes: *memory,
                        inodes_used: 1,
                    }),
                    ..ContainerFigures::default()
                }],
                ..PodFigures::default()
            }),
            ..EvictablePod::default()
        });
        let input = EvictionInput::Measured(pods.collect());
        self.hear(input)
    }
}

fn memory() -> Vec<EvictionThreshold> {
    vec![threshold(EvictionSignal::MemoryAvailable, "100", None)]
}

#[test]
fn a_look_every_ten_seconds() {
    // EVICT-04
    let mut bench = Bench::new(memory());
    assert_eq!(bench.at(0), ["observe"]);
    assert_eq!(bench.at(30), [""; 0], "one at a time");
    assert_eq!(bench.observed(500, 0), [""; 0]);
    assert_eq!(bench.manager.next_timeout(), Some(at(40)));
    assert_eq!(bench.at(39), [""; 0]);
    assert_eq!(bench.at(40), ["observe"]);
    let mut idle = Bench::new(vec![]);
    assert_eq!(idle.at(0), [""; 0], "nobody asks about anything");
    idle.manager.handle_timeout(true, at(10));
    assert_eq!(idle.done(), ["observe"]);
}

#[test]
fn one_pod_goes_and_then_all_is_looked_at_anew() {
    // EVICT-04 EVICT-06 EVICT-10
    let mut bench = Bench::new(memory());
    bench.at(0);
    assert_eq!(bench.observed(99, 0), ["tell memory", "measure Groups"]);
    assert!(bench.manager.conditions().memory);
    assert_eq!(
        bench.measured(&[
            ("small", 10, false),
            ("big", 50, false),
            ("critical", 90, true)
        ]),
        ["evict big 1s memory.available 100 99"]
    );
    let leaving: Vec<_> = bench
        .manager
        .pods_being_evicted()
        .map(ToString::to_string)
        .collect();
    assert_eq!(leaving, ["big"]);
    // Events that come meanwhile are ignored.
    assert_eq!(bench.measured(&[("small", 10, false)]), [""; 0]);
    assert_eq!(bench.observed(1, 0), [""; 0]);
    assert_eq!(bench.at(5), [""; 0]);
    assert_eq!(bench.hear(EvictionInput::Stopped("other".into())), [""; 0]);
    assert_eq!(bench.hear(EvictionInput::Stopped("big".into())), [""; 0]);
    assert_eq!(
        bench.manager.next_timeout(),
        Some(at(35)),
        "for its clean-up"
    );
    assert_eq!(bench.at(20), [""; 0]);
    assert_eq!(bench.hear(EvictionInput::Gone("big".into())), ["observe"]);
    assert_eq!(bench.observed(500, 0), [""; 0]);
}

#[test]
fn nobody_waits_for_ever() {
    // EVICT-04 EVICT-10
    let mut bench = Bench::new(memory());
    bench.at(0);
    bench.observed(99, 0);
    bench.measured(&[("big", 50, false)]);
    assert_eq!(bench.at(9), [""; 0]);
    assert_eq!(bench.at(10), ["exceeded big"]);
    assert_eq!(bench.at(39), [""; 0]);
    assert_eq!(
        bench.at(40),
        ["observe"],
        "its clean-up takes too long as well"
    );
    // One and a half times the grace, where that is longer.
    let mut soft = Bench::new(vec![threshold(
        EvictionSignal::MemoryAvailable,
        "100",
        Some(0),
    )]);
    soft.manager.max_grace_s = 60;
    soft.at(0);
    soft.observed(99, 0);
    let pod = EvictablePod {
        uid: "big".into(),
        ..EvictablePod::default()
    };
    assert_eq!(
        soft.hear(EvictionInput::Measured(vec![pod])),
        ["evict big 60s memory.available 100 99"]
    );
    assert_eq!(soft.at(89), [""; 0]);
    assert_eq!(soft.at(90), ["exceeded big"]);
}

#[test]
fn graces() {
    // EVICT-10
    for (grace, most, own, want) in [
        (None, 20, Some(7), 1),
        (None, 0, Some(0), 1),
        (Some(0), 20, Some(7), 7),
        (Some(0), 5, Some(7), 5),
        (Some(0), 0, Some(7), 0),
        (Some(0), 20, None, 20),
    ] {
        let mut bench = Bench::new(vec![threshold(
            EvictionSignal::MemoryAvailable,
            "100",
            grace,
        )]);
        bench.manager.max_grace_s = most;
        bench.at(0);
        bench.observed(99, 0);
        let pod = EvictablePod {
            uid: "a".into(),
            grace_s: own,
            ..EvictablePod::default()
        };
        assert_eq!(
            bench.hear(EvictionInput::Measured(vec![pod])),
            [format!("evict a {want}s memory.available 100 99")]
        );
    }
}

#[test]
fn critical_pods_stay() {
    // EVICT-10
    let mut bench = Bench::new(memory());
    bench.at(0);
    bench.observed(99, 0);
    assert_eq!(bench.measured(&[("critical", 90, true)]), [""; 0]);
    assert_eq!(bench.manager.next_timeout(), Some(at(10)));
    bench.at(10);
    bench.observed(99, 0);
    assert_eq!(bench.measured(&[]), [""; 0]);
    assert_eq!(bench.manager.next_timeout(), Some(at(20)));
    bench.at(20);
    bench.observed(99, 0);
    bench.measured(&[("a", 1, false)]);
    assert_eq!(bench.hear(EvictionInput::Spared("a".into())), [""; 0]);
    assert_eq!(
        bench.manager.next_timeout(),
        Some(at(30)),
        "it has gone by itself"
    );
}

#[test]
fn what_is_nobodys_goes_first() {
    // EVICT-07
    let thresholds = || vec![threshold(EvictionSignal::NodeFsAvailable, "100", None)];
    let mut bench = Bench::new(thresholds());
    bench.at(0);
    let both = [
        "tell ephemeral-storage",
        "reclaim [DeadContainers, UnusedImages]",
    ];
    assert_eq!(bench.observed(0, 99), both);
    let enough = bench.left(0, 100);
    assert_eq!(
        bench.hear(EvictionInput::Reclaimed(enough)),
        [""; 0],
        "no pod goes"
    );
    assert!(bench.manager.conditions().disk);
    bench.at(10);
    assert_eq!(bench.observed(0, 99), both);
    let still = bench.left(0, 99);
    assert_eq!(
        bench.hear(EvictionInput::Reclaimed(still)),
        ["measure Disk"]
    );
    assert_eq!(
        bench.measured(&[("a", 1, false), ("b", 2, false)]),
        ["evict b 1s nodefs.available 100 99"]
    );
    use DiskLayout::{OneDisk, SeparateRuntime, SplitImages};
    let (none, containers, images) = ("[]", "[DeadContainers]", "[UnusedImages]");
    let both = "[DeadContainers, UnusedImages]";
    for (signal, one, separate, split) in [
        (EvictionSignal::MemoryAvailable, none, none, none),
        (EvictionSignal::AllocatableMemory, none, none, none),
        (EvictionSignal::PidAvailable, none, none, none),
        (EvictionSignal::NodeFsAvailable, both, none, containers),
        (EvictionSignal::NodeFsInodes, both, none, containers),
        (EvictionSignal::ImageFsAvailable, both, both, images),
        (EvictionSignal::ImageFsInodes, both, both, images),
        (EvictionSignal::ContainerFsAvailable, both, both, containers),
        (EvictionSignal::ContainerFsInodes, both, both, containers),
    ] {
        let found = [OneDisk, SeparateRuntime, SplitImages]
            .map(|layout| format!("{:?}", reclaim_targets(signal, layout)));
        assert_eq!(found, [one, separate, split], "{signal:?}");
    }
}

#[test]
fn memory_goes_before_disk() {
    // EVICT-06
    let mut bench = Bench::new(vec![
        threshold(EvictionSignal::MemoryAvailable, "100", None),
        threshold(EvictionSignal::NodeFsAvailable, "100", None),
    ]);
    bench.at(0);
    assert_eq!(bench.observed(9, 9), ["tell memory", "measure Groups"]);
    let conditions: Vec<_> = bench.manager.conditions().condition_names().collect();
    assert_eq!(conditions, ["MemoryPressure", "DiskPressure"]);
}

#[test]
fn pods_with_limits_of_their_own_come_before_thresholds() {
    // EVICT-11
    let mut bench = Bench::new(memory());
    bench.at(0);
    let left = bench.left(99, 0);
    assert_eq!(bench.hear(EvictionInput::Observed(left, true)), ["check"]);
    let violation = |uid: &str| StorageViolation {
        uid: uid.into(),
        message: "too much".into(),
        signal: "emptydirfs.limit",
    };
    assert_eq!(
        bench.hear(EvictionInput::Checked(vec![violation("a"), violation("b")])),
        ["evict a emptydirfs.limit", "evict b emptydirfs.limit"],
        "and the round ends"
    );
    assert_eq!(bench.hear(EvictionInput::Stopped("a".into())), [""; 0]);
    assert_eq!(bench.hear(EvictionInput::Gone("b".into())), [""; 0]);
    assert_eq!(bench.hear(EvictionInput::Gone("a".into())), ["observe"]);
    let left = bench.left(99, 0);
    bench.hear(EvictionInput::Observed(left, true));
    bench.now = 1;
    bench.hear(EvictionInput::Checked(vec![]));
    assert_eq!(
        bench.manager.next_timeout(),
        Some(at(11)),
        "no news of memory"
    );
    assert_eq!(bench.at(11), ["observe"]);
    let left = bench.left(99, 0);
    bench.hear(EvictionInput::Observed(left, true));
    assert_eq!(
        bench.hear(EvictionInput::Checked(vec![])),
        ["tell memory", "measure Groups"]
    );
}
