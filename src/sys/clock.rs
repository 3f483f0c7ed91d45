//! The only place where clocks are read.
#![expect(unsafe_code, reason = "adjtimex has no safe wrapper")]

use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_gettime};

use crate::api::{MonoTime, WallTime};

/// Seconds are 64 bits wide on every board, so that time goes on after January 2038. With musl on 32 bits this needs the
/// flag in `.cargo/config.toml`.
const _: () = assert!(size_of::<TimeSpec>() >= 16);

/// Milliseconds since boot, suspend included (`CLOCK_BOOTTIME`).
#[must_use]
pub fn mono_now() -> MonoTime {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(MonoTime(0), |t| {
        let seconds = u64::try_from(t.tv_sec()).unwrap_or(0);
        let millis = u64::try_from(t.tv_nsec() / 1_000_000).unwrap_or(0);
        MonoTime(seconds * 1000 + millis)
    })
}

/// Wall-clock time (`CLOCK_REALTIME`).
#[must_use]
pub fn wall_now() -> WallTime {
    clock_gettime(ClockId::CLOCK_REALTIME).map_or(WallTime(0), |t| {
        WallTime(i64::from(t.tv_sec()) * 1_000_000_000 + i64::from(t.tv_nsec()))
    })
}

/// Returns true if the wall clock is kept right (by NTP, GPS, …); `None` if the kernel does not say.
///
/// Source: adjtimex(2), `STA_UNSYNC`.
#[must_use]
pub fn is_synchronized() -> Option<bool> {
    let mut state = core::mem::MaybeUninit::<libc::timex>::zeroed();
    // SAFETY: the structure is the caller's, and without a mode it is only written to.
    let code = unsafe { libc::adjtimex(state.as_mut_ptr()) };
    // SAFETY: numbers only, of which any value is one.
    let state = unsafe { state.assume_init() };
    (code >= 0).then_some(state.status & libc::STA_UNSYNC == 0)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::sync::{Condvar, Mutex};

    use nix::sys::stat::{fstat, futimens};

    use super::*;

    /// The second after the last that 32 bits can say, and a later one.
    const LATER: [i64; 2] = [1 << 31, 4_102_444_800];

    #[test]
    fn file_times_go_on_after_2038() {
        let path = crate::testing::unused_path("2038");
        let file = File::create(&path).expect("file");
        for seconds in LATER {
            let time = TimeSpec::new(seconds, 999_999_999);
            futimens(&file, &time, &time).expect("set");
            let found = fstat(&file).expect("stat");
            assert_eq!(
                (found.st_mtime, found.st_mtime_nsec),
                (seconds, 999_999_999)
            );
            // Cut to 32 bits on boards of 32 bits, but no error.
            std::fs::metadata(&path).expect("metadata");
        }
        std::fs::remove_file(path).expect("remove");
    }

    #[test]
    fn a_wait_of_the_standard_library_takes_its_time() {
        // The test makes a time for the kernel: both must agree on its width.
        const WAIT: core::time::Duration = core::time::Duration::from_millis(50);
        let (never, mutex) = (Condvar::new(), Mutex::new(()));
        for _ in 0..4 {
            let before = mono_now();
            let guard = mutex.lock().expect("lock");
            let (_guard, waited) = never
                .wait_timeout_while(guard, WAIT, |()| true)
                .expect("lock");
            assert!(waited.timed_out());
            assert!(mono_now() - before >= WAIT - core::time::Duration::from_millis(2));
        }
    }

    #[test]
    #[ignore = "needs a clock far ahead: `cargo xtask test` gives it one by a time namespace"]
    fn the_clock_is_read_whole() {
        assert!(mono_now() > MonoTime((1 << 31) * 1000));
    }
}
