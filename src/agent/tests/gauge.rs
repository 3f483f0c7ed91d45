//! Gauge of memory, disk space and process ids, with amounts that tests set.

use alloc::rc::Rc;
use core::cell::Cell;

use super::{super::eviction::gauge::EvictionGauge, world::Hands};
use crate::{
    agent::views::LoopFuture,
    api::{MonoTime, cri::FsInfo},
    logic::eviction::{EvictionSignal, Observations, ResourceReading},
};

/// Bytes and inodes of the only disk.
const DISK: (u64, u64) = (1 << 34, 1_000_000);
/// Number of process ids.
const PIDS: i64 = 1000;
/// Thresholds whose looks are counted: memory, bytes and inodes of the disk, process ids. The threshold of memory is a
/// kubelet's.
pub(in crate::agent) const HARD: &str = "--eviction-hard=memory.available<100Mi,nodefs.available<2Gi,nodefs.inodesFree<50k,\
    pid.available<100";
/// The thresholds of [`HARD`] as numbers.
const LEAST: [(EvictionSignal, i64); 4] = [
    (EvictionSignal::MemoryAvailable, 100 << 20),
    (EvictionSignal::NodeFsAvailable, 2 << 30),
    (EvictionSignal::NodeFsInodes, 50_000),
    (EvictionSignal::PidAvailable, 100),
];

/// Looks at one signal that found it short.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::agent) struct Looks {
    pub(in crate::agent) count: u64,
    pub(in crate::agent) last: Option<MonoTime>,
    /// Time of the first of two looks in a row that found it short: one of the two begins a round. The other one may be
    /// the look after a reclaim, which changes no condition.
    pub(in crate::agent) twice: Option<MonoTime>,
    /// Time of the last look, if it found the signal short.
    latest: Option<MonoTime>,
}

/// Amounts that are left, as a test sets them. A signal that was not set is not known, and so not short.
#[derive(Debug, Default)]
pub(in crate::agent) struct Left {
    left: Cell<Observations>,
    looks: Cell<[Looks; 4]>,
}

impl Left {
    /// Looks that found each signal short, in the order of [`LEAST`].
    pub(in crate::agent) fn short_looks(&self) -> [Looks; 4] {
        self.looks.get()
    }

    /// Forgets all looks: another agent looks from now on.
    pub(in crate::agent) fn forget_looks(&self) {
        self.looks.take();
    }

    fn note_look(&self, now: MonoTime) {
        let (left, mut all) = (self.left.get(), self.looks.get());
        for (looks, (signal, least)) in all.iter_mut().zip(LEAST) {
            let reading = left.signal_reading(signal);
            let short = reading.is_some_and(|reading| reading.available < least);
            if short {
                looks.count += 1;
                looks.twice = looks.latest.or(looks.twice);
                looks.last = Some(now);
            }
            looks.latest = short.then_some(now);
        }
        self.looks.set(all);
    }

    /// Sets the bytes of memory that are left, of a GiB.
    pub(in crate::agent) fn set_memory(&self, available: i64) {
        let capacity = 1 << 30;
        self.change(|left| {
            left.memory = Some(ResourceReading {
                available,
                capacity,
            });
        });
    }

    /// Sets the bytes that are left on the only disk, of 16 GiB.
    pub(in crate::agent) fn set_disk(&self, available_bytes: u64) {
        let inodes_free = self.file_system().inodes_free;
        self.set_file_system(available_bytes, inodes_free);
    }

    /// The only disk.
    pub(in crate::agent) fn file_system(&self) -> FsInfo {
        self.left.get().nodefs.unwrap_or_default()
    }

    /// Sets the bytes and inodes that are left, of 16 GiB and a million. 0 inodes: the file system has no inode table.
    pub(in crate::agent) fn set_file_system(&self, available_bytes: u64, inodes_free: u64) {
        let (capacity_bytes, inodes) = DISK;
        let fs = FsInfo {
            capacity_bytes,
            available_bytes,
            free_bytes: available_bytes,
            inodes: if inodes_free > 0 { inodes } else { 0 },
            inodes_free,
            ..FsInfo::default()
        };
        self.change(|left| {
            left.nodefs = Some(fs);
            left.imagefs = Some(fs);
        });
    }

    /// Sets the process ids that are left, of 1000.
    pub(in crate::agent) fn set_pids(&self, available: i64) {
        let capacity = PIDS;
        self.change(|left| {
            left.pids = Some(ResourceReading {
                available,
                capacity,
            });
        });
    }

    fn change(&self, change: impl FnOnce(&mut Observations)) {
        let mut left = self.left.get();
        change(&mut left);
        self.left.set(left);
    }
}

/// Gauge that an agent reads.
pub(in crate::agent) struct TestGauge {
    pub(in crate::agent) left: Rc<Left>,
    pub(in crate::agent) hands: Rc<Hands>,
}

impl EvictionGauge for TestGauge {
    fn read_observations(&self) -> LoopFuture<'_, Observations> {
        Box::pin(async {
            let at = self.hands.now();
            self.left.note_look(at);
            Observations {
                at,
                ..self.left.left.get()
            }
        })
    }
}
