//! The allocator: one arena, and pages given back after a burst. Man pages: `mallopt(3)`, `malloc_trim(3)`.
//!
//! Only glibc has these knobs; with another C library both functions do nothing.
#![cfg_attr(
    target_env = "gnu",
    expect(unsafe_code, reason = "mallopt and malloc_trim have no safe wrapper")
)]

/// Makes all threads share one arena: the lanes' own would each keep what a burst once needed.
/// Call it before the first thread is started.
pub fn use_one_arena() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: no other thread runs yet, and M_ARENA_MAX takes any positive number.
        unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
        // Large buffers go straight back to the system when freed.
        // SAFETY: as above; the threshold is in bytes.
        unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, 64 * 1024) };
        // SAFETY: as above.
        unsafe { libc::mallopt(libc::M_TRIM_THRESHOLD, 128 * 1024) };
    }
}

/// Gives free pages of the heap back to the system. Takes milliseconds on a full heap: call it when a burst is over.
/// Simulated agents by the thousand share one heap, and leave it alone.
pub fn trim() {
    #[cfg(all(target_env = "gnu", not(test)))]
    {
        // SAFETY: malloc_trim may be called at any time.
        unsafe { libc::malloc_trim(0) };
    }
}
