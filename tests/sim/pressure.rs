//! What the node has left of everything as an input: when something is short, and what must hold of those that go for it.

use alloc::collections::BTreeSet;
use core::time::Duration;

use super::{
    super::{
        core::Agent,
        tests::gauge::{Left, Looks},
    },
    input::{Input, Left as Amount, Random, Timed},
};
use crate::{
    api::{MonoTime, PodUid},
    logic::eviction::EVICTED,
};

/// Memory that is left while nothing is short, MiB.
const PLENTY_MIB: u16 = 500;
/// So late what was seen may come, and so long no look is made while a pod ends.
const SLACK: Duration = Duration::from_secs(60);
/// The condition stays for so long.
const TRANSITION: Duration = Duration::from_secs(300);

/// Adds, to one schedule of four, times at which something is short, and times at which it is not.
pub(super) fn with_pressure(mut schedule: Vec<Timed>, seed: u64) -> Vec<Timed> {
    let random = &mut Random::new(seed ^ 0x0e71_u64.rotate_left(32));
    let end_ms = schedule.last().map_or(0, |last| last.at_ms);
    if !random.percent(25) {
        return schedule;
    }
    let all = random.percent(50);
    for _ in 0..random.below(4) + 1 {
        let at_ms = random.below(end_ms + 1);
        let input = match random.below(if all { 4 } else { 1 }) {
            0 => Input::MemoryLeft {
                mib: random.pick(&[0, 60, 99, 100, PLENTY_MIB]),
            },
            1 => Input::Left(Amount::DiskMib(random.pick(&[0, 2047, 2048, 8000]))),
            2 => Input::Left(Amount::Inodes(random.pick(&[1, 49_999, 50_000, 800_000]))),
            _ => Input::Left(Amount::Pids(random.pick(&[0, 99, 100, 900]))),
        };
        schedule.push(Timed { at_ms, input });
    }
    schedule.sort_by_key(|timed| timed.at_ms);
    schedule
}

/// So much is left from now on.
pub(super) fn set(left: &Left, amount: Amount) {
    let fs = left.file_system();
    match amount {
        Amount::DiskMib(mib) => left.set_file_system(u64::from(mib) << 20, fs.inodes_free),
        Amount::Inodes(inodes) => left.set_file_system(fs.available_bytes, u64::from(inodes)),
        Amount::Pids(pids) => left.set_pids(i64::from(pids)),
    }
}

/// Nothing is short from now on.
pub(super) fn set_plenty(left: &Left) {
    left.set_memory(i64::from(PLENTY_MIB) << 20);
    left.set_file_system(8 << 30, 800_000);
    left.set_pids(900);
}

/// What a status names, in the order of [`Left::short_looks`].
const STARVED: [&str; 4] = ["memory", "ephemeral-storage", "inodes", "pids"];

/// Pods that went.
#[derive(Debug, Default)]
pub(super) struct Evictions {
    /// In the life of this agent.
    now: BTreeSet<PodUid>,
    /// In that of one before: a uid ends once, though a backup of the API may have forgotten it.
    before: BTreeSet<PodUid>,
    /// How often each was found short when the last one went.
    looks: [u64; 4],
}

impl Evictions {
    /// An agent without memory has taken over.
    pub(super) fn another_agent(&mut self, left: &Left) {
        self.before.append(&mut self.now);
        self.looks = [0; 4];
        left.forget_looks();
    }

    /// Compares this instant with the one before.
    pub(super) fn check(
        &mut self,
        agent: &Agent,
        left: &Left,
        now: MonoTime,
    ) -> Result<(), String> {
        // EVICT-05 EVICT-06 EVICT-10
        let looks = left.short_looks();
        let table = agent.pods().worker_table();
        for (uid, config) in agent.pods().configs() {
            // One that was refused says so in its status alone.
            let told = table
                .find_handle(uid)
                .and_then(|handle| table.stop_status(handle));
            let is_new = !self.now.contains(uid) && !self.before.contains(uid);
            let Some(told) = told.filter(|told| is_new && *told.reason == *EVICTED) else {
                continue;
            };
            let what = told.message.strip_prefix("The node was low on resource: ");
            let what = what.ok_or_else(|| format!("pod {uid} went: {}", told.message))?;
            if config.is_static {
                return Err(format!("the critical pod {uid} was evicted"));
            }
            let mut all = STARVED.iter().zip(looks).zip(self.looks);
            let short = all.find(|((name, now), before)| {
                let named = what.strip_prefix(**name);
                named.is_some_and(|rest| rest.starts_with(". ")) && now.count > *before
            });
            if short.is_none() {
                return Err(format!(
                    "pod {uid} went for {what:?}, which was not found short since the last one went"
                ));
            }
            self.looks = looks.map(|looks| looks.count);
            self.now.insert(uid.clone());
        }
        let [memory, bytes, inodes, pids] = looks;
        let either = |a: Looks, b: Looks| (a.last.max(b.last), a.twice.max(b.twice));
        let one = |looks: Looks| either(looks, looks);
        let told = agent.node_standing().pressure;
        for (name, said, (last, twice)) in [
            ("MemoryPressure", told.memory, one(memory)),
            ("DiskPressure", told.disk, either(bytes, inodes)),
            ("PIDPressure", told.pid, one(pids)),
        ] {
            let since = last.map(|seen| now - seen);
            let must = twice.map(|seen| now - seen);
            // What was seen last may still be on its way.
            let wrong = match said {
                true => since.is_none_or(|since| since > TRANSITION + SLACK),
                false => must.is_some_and(|must| must > SLACK && must < TRANSITION),
            };
            if wrong {
                return Err(format!(
                    "{name}={said}, it was last found short {since:?} ago"
                ));
            }
        }
        Ok(())
    }
}
