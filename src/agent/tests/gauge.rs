//! How much there is of everything, as tests want it.

use alloc::rc::Rc;
use core::cell::Cell;

use super::{super::eviction::gauge::Gauge, world::Hands};
use crate::{
    agent::views::Later,
    api::{Mono, cri::FsInfo},
    logic::eviction::{Observations, Reading},
};

/// The threshold of memory that tests have unless they say otherwise: a kubelet's, bytes.
const LEAST: i64 = 100 << 20;

/// What is left; nothing is known as long as nothing is said, and then nothing is short.
#[derive(Debug, Default)]
pub(in crate::agent) struct Left {
    left: Cell<Observations>,
    /// How often memory was found short, and when last.
    looks: Cell<(u64, Option<Mono>)>,
}

impl Left {
    /// How often memory was found short.
    pub(in crate::agent) fn short_looks(&self) -> u64 {
        self.looks.get().0
    }

    /// When that was last.
    pub(in crate::agent) fn last_short_look(&self) -> Option<Mono> {
        self.looks.get().1
    }

    /// Another agent looks from now on.
    pub(in crate::agent) fn forget_looks(&self) {
        self.looks.take();
    }

    fn note_look(&self, now: Mono) {
        let memory = self.left.get().memory;
        if memory.is_some_and(|memory| memory.available < LEAST) {
            let (count, _) = self.looks.get();
            self.looks.set((count + 1, Some(now)));
        }
    }

    /// So many bytes of memory are left of a GiB.
    pub(in crate::agent) fn set_memory(&self, available: i64) {
        let capacity = 1 << 30;
        self.change(|left| {
            left.memory = Some(Reading {
                available,
                capacity,
            });
        });
    }

    /// So many bytes are left of 16 GiB on the only disk.
    pub(in crate::agent) fn set_disk(&self, available_bytes: u64) {
        let fs = FsInfo {
            capacity_bytes: 1 << 34,
            available_bytes,
            free_bytes: available_bytes,
            ..FsInfo::default()
        };
        self.change(|left| {
            left.nodefs = Some(fs);
            left.imagefs = Some(fs);
        });
    }

    /// So many numbers of processes are left of 1000.
    pub(in crate::agent) fn set_pids(&self, available: i64) {
        let capacity = 1000;
        self.change(|left| {
            left.pids = Some(Reading {
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

/// What an agent reads.
pub(in crate::agent) struct TestGauge {
    pub(in crate::agent) left: Rc<Left>,
    pub(in crate::agent) hands: Rc<Hands>,
}

impl Gauge for TestGauge {
    fn read(&self) -> Later<'_, Observations> {
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
