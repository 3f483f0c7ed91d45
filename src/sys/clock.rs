//! The only place where clocks are read.
#![expect(unsafe_code, reason = "adjtimex has no safe wrapper")]

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

/// Whether somebody (NTP, GPS, …) keeps the wall clock right; `None` if the kernel does not say.
///
/// Source: adjtimex(2), `STA_UNSYNC`.
#[must_use]
pub fn synchronized() -> Option<bool> {
    let mut state = core::mem::MaybeUninit::<libc::timex>::zeroed();
    // SAFETY: the structure is the caller's, and without a mode it is only written to.
    let code = unsafe { libc::adjtimex(state.as_mut_ptr()) };
    // SAFETY: numbers only, of which any value is one.
    let state = unsafe { state.assume_init() };
    (code >= 0).then_some(state.status & libc::STA_UNSYNC == 0)
}
