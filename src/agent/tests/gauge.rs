//! How much there is of everything, as tests want it.

use alloc::rc::Rc;
use core::cell::Cell;

use super::{super::eviction::Gauge, world::Hands};
use crate::{
    agent::views::Later,
    api::cri::FsInfo,
    logic::eviction::{Observations, Reading},
};

/// What is left; nothing is known as long as nothing is said, and then nothing is short.
#[derive(Debug, Default)]
pub(in crate::agent) struct Left(Cell<Observations>);

impl Left {
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
        let mut left = self.0.get();
        change(&mut left);
        self.0.set(left);
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
            Observations {
                at: self.hands.now(),
                ..self.left.0.get()
            }
        })
    }
}
