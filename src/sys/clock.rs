//! The only place where clocks are read.

use nix::time::{ClockId, clock_gettime};

use crate::api::{Mono, Wall};

/// Milliseconds since boot, suspend included (`CLOCK_BOOTTIME`).
#[must_use]
pub fn mono() -> Mono {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Mono(0), |t| {
        let seconds = u64::try_from(t.tv_sec()).unwrap_or(0);
        let millis = u64::try_from(t.tv_nsec() / 1_000_000).unwrap_or(0);
        Mono(seconds * 1000 + millis)
    })
}

/// Wall-clock time (`CLOCK_REALTIME`).
#[must_use]
pub fn wall() -> Wall {
    clock_gettime(ClockId::CLOCK_REALTIME).map_or(Wall(0), |t| {
        Wall(i64::from(t.tv_sec()) * 1_000_000_000 + i64::from(t.tv_nsec()))
    })
}
