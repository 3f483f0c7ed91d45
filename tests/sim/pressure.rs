//! Memory of the node as an input: when it is short, and what must hold of those that go for it.

use alloc::collections::BTreeSet;
use core::time::Duration;

use super::{
    super::{core::Agent, tests::gauge::Left},
    input::{Input, Random, Timed},
};
use crate::api::{Mono, PodUid};

/// Memory that is left while nothing is short, MiB.
pub(super) const PLENTY_MIB: u16 = 500;
/// So late what was seen may come, and so long no look is made while a pod ends.
const SLACK: Duration = Duration::from_secs(60);
/// The condition stays for so long.
const TRANSITION: Duration = Duration::from_secs(300);

/// Adds, to one schedule of four, times at which memory is short, and times at which it is not.
pub(super) fn with_pressure(mut schedule: Vec<Timed>, seed: u64) -> Vec<Timed> {
    let random = &mut Random::new(seed ^ 0x0e71_u64.rotate_left(32));
    let end_ms = schedule.last().map_or(0, |last| last.at_ms);
    if !random.percent(25) {
        return schedule;
    }
    for _ in 0..random.below(4) + 1 {
        let at_ms = random.below(end_ms + 1);
        let mib = random.pick(&[0, 60, 99, 100, PLENTY_MIB]);
        schedule.push(Timed {
            at_ms,
            input: Input::MemoryLeft { mib },
        });
    }
    schedule.sort_by_key(|timed| timed.at_ms);
    schedule
}

/// Pods that went.
#[derive(Debug, Default)]
pub(super) struct Evictions {
    /// In the life of this agent.
    now: BTreeSet<PodUid>,
    /// In that of one before: a uid ends once, though a backup of the API may have forgotten it.
    before: BTreeSet<PodUid>,
}

impl Evictions {
    /// An agent without memory has taken over.
    pub(super) fn another_agent(&mut self, left: &Left) {
        self.before.append(&mut self.now);
        left.forget_looks();
    }

    /// Compares this instant with the one before.
    pub(super) fn check(&mut self, agent: &Agent, left: &Left, now: Mono) -> Result<(), String> {
        // EVICT-05 EVICT-06 EVICT-10
        for (uid, status) in agent.pods().statuses() {
            // A pod that was refused says so otherwise, and one that an agent before this one evicted is nobody's here.
            let is_new = status
                .message
                .starts_with("The node was low on resource: memory. ")
                && !self.now.contains(uid)
                && !self.before.contains(uid);
            let Some(config) = agent.pods().config(uid).filter(|_| is_new) else {
                continue;
            };
            if config.is_static {
                return Err(format!("the critical pod {uid} was evicted"));
            }
            if config.api_phase_terminal {
                continue;
            }
            self.now.insert(uid.clone());
        }
        let looks = left.short_looks();
        let gone = u64::try_from(self.now.len()).unwrap_or(u64::MAX);
        if gone > looks {
            return Err(format!(
                "{gone} pods went, and memory was found short {looks} times"
            ));
        }
        let said = agent.standing().pressure.memory;
        let since = left.last_short_look().map(|seen| now - seen);
        let wrong = match since {
            // What was seen last may still be on its way.
            Some(since) if since <= SLACK => false,
            Some(since) if since < TRANSITION => !said,
            Some(since) => said && since > TRANSITION + SLACK,
            None => said,
        };
        if wrong {
            return Err(format!(
                "MemoryPressure={said}, memory was last found short {since:?} ago"
            ));
        }
        Ok(())
    }
}
