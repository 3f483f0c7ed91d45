//! Rates of processor time, each from two samples.
//!
//! There is no sampling in the background: a rate spans the time since the last request (MET-14), at least
//! [`WINDOW`]. The first request gets no rate.

use alloc::collections::BTreeMap;
use core::time::Duration;

use crate::{api::MonoTime, fnv};

/// Least time over which a rate is taken: as often as a kubelet samples.
pub const WINDOW: Duration = Duration::from_secs(10);
/// Least time over which the first rate of a group is taken.
const FIRST_WINDOW: Duration = Duration::from_secs(1);
/// Number of groups that are remembered; further ones have no rate.
pub const MAX_GROUPS: usize = 4096;

#[derive(Clone, Copy, Debug)]
struct CpuTimeSample {
    at: MonoTime,
    total_ns: u64,
    nano_cores: Option<u64>,
    round: u32,
}

/// Last sample of each group. Keys are hashes of names: a collision shows two wrong rates and does no harm.
#[derive(Debug, Default)]
pub struct CpuRates {
    groups: BTreeMap<u64, CpuTimeSample>,
    round: u32,
}

impl CpuRates {
    /// Begins a round: all groups follow.
    pub const fn begin_round(&mut self) {
        self.round = self.round.wrapping_add(1);
    }

    /// Takes the processor time of a group; returns its rate in billionths of a processor.
    pub fn take_cpu_rate(&mut self, name: &str, total_ns: u64, now: MonoTime) -> Option<u64> {
        let round = self.round;
        let fresh = CpuTimeSample {
            at: now,
            total_ns,
            nano_cores: None,
            round,
        };
        let key = fnv::fnv1a(name.bytes());
        let Some(known) = self.groups.get_mut(&key) else {
            if self.groups.len() < MAX_GROUPS {
                self.groups.insert(key, fresh);
            }
            return None;
        };
        // Another group of this name.
        if total_ns < known.total_ns || now < known.at {
            *known = fresh;
            return None;
        }
        known.round = round;
        let passed = now - known.at;
        let whole = passed >= WINDOW;
        if whole || (known.nano_cores.is_none() && passed >= FIRST_WINDOW) {
            let used = u128::from(total_ns - known.total_ns) * 1_000_000_000;
            known.nano_cores = u64::try_from(used / passed.as_nanos()).ok();
        }
        if whole {
            (known.at, known.total_ns) = (now, total_ns);
        }
        known.nano_cores
    }

    /// Ends the round: groups that were not in it are gone.
    pub fn end_round(&mut self) {
        let round = self.round;
        self.groups.retain(|_, sample| sample.round == round);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_samples_make_a_rate() {
        // MET-14
        let mut rates = CpuRates::default();
        for (name, at_ms, total_ns, want) in [
            ("the first says nothing", 0, 5_000_000, None),
            ("too soon after it", 999, 900_000_000, None),
            ("half a processor", 2000, 1_005_000_000, Some(500_000_000)),
            (
                "too soon for another rate",
                3000,
                2_005_000_000,
                Some(500_000_000),
            ),
            (
                "since the first sample",
                10_000,
                1_005_000_000,
                Some(100_000_000),
            ),
            ("at rest", 20_000, 1_005_000_000, Some(0)),
            ("a new group of that name", 30_000, 10, None),
            (
                "two processors",
                40_000,
                20_000_000_010,
                Some(2_000_000_000),
            ),
        ] {
            rates.begin_round();
            assert_eq!(
                rates.take_cpu_rate("a", total_ns, MonoTime(at_ms)),
                want,
                "{name}"
            );
            rates.end_round();
        }
    }

    #[test]
    fn only_what_is_there_is_remembered() {
        let mut rates = CpuRates::default();
        rates.begin_round();
        for n in 0..MAX_GROUPS + 10 {
            assert_eq!(
                rates.take_cpu_rate(&alloc::format!("{n}"), 1, MonoTime(0)),
                None
            );
        }
        rates.end_round();
        assert_eq!(rates.groups.len(), MAX_GROUPS);
        rates.begin_round();
        assert_eq!(
            rates.take_cpu_rate("7", 10_000_000_001, MonoTime(10_000)),
            Some(1_000_000_000)
        );
        rates.end_round();
        assert_eq!(rates.groups.len(), 1);
    }
}
