//! Memory that is given back after a burst: free pages of the heap and of the stack, and code. Man pages: `mallopt(3)`,
//! `malloc_trim(3)`, `madvise(2)`.
//!
//! The heap is glibc's, which has knobs, or that of `super::heap`.
#![expect(
    unsafe_code,
    reason = "mallopt, malloc_trim and madvise have no safe wrapper; bounds of the program are the linker's"
)]

use core::{ffi::c_void, ptr::NonNull};

use nix::{
    sys::mman::{MmapAdvise, madvise},
    unistd::{getpid, gettid},
};

#[cfg(target_env = "gnu")]
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The heap is one agent's: [`use_one_arena`] was called. Simulated agents by the thousand share theirs, and leave it alone.
#[cfg(target_env = "gnu")]
static IS_OWN: AtomicBool = AtomicBool::new(false);

/// Settings that glibc reads only at its start and offers no call for.
///
/// - `tcache_count`: each thread keeps up to seven freed pieces of each of 64 sizes, wherever in the heap they lie, and trimming
///   cannot have them: after a crowd of 60 pods 400 KiB of such pieces kept 1.4 MiB of pages.
/// - `stack_cache_size`: stacks of threads that ended are kept, two pages of each: those of one crowd were 300 KiB.
#[cfg(target_env = "gnu")]
const TUNABLES: &str = "glibc.malloc.tcache_count=0:glibc.pthread.stack_cache_size=0";

/// Starts the program over, as the same process and with the same arguments, so that its threads keep no freed memory.
/// Returns if that is done already, or cannot be done, which only costs memory.
///
/// Call it before the first thread is started and the first descriptor opened.
pub fn start_over_without_thread_caches() {
    #[cfg(target_env = "gnu")]
    {
        use std::{env, os::unix::process::CommandExt as _, process::Command};

        const VARIABLE: &str = "GLIBC_TUNABLES";
        // The operator's own settings come later in the text, and win.
        let wanted = env::var_os(VARIABLE).unwrap_or_default();
        let wanted = wanted.to_string_lossy();
        if wanted.starts_with(TUNABLES) {
            return;
        }
        let mut words = env::args_os();
        if let (Ok(program), Some(name)) = (env::current_exe(), words.next()) {
            let tunables = format!("{TUNABLES}:{wanted}");
            let tunables = tunables.trim_end_matches(':');
            let _ = Command::new(program)
                .arg0(name)
                .args(words)
                .env(VARIABLE, tunables)
                .exec();
        }
    }
}

/// Makes all threads share one arena: arenas of the lanes would each keep the memory of a past burst. Call it before
/// the first thread is started.
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
        IS_OWN.store(true, Relaxed);
    }
}

/// Gives free pages of the heap and of the first thread's stack back to the system, and lets go of the program's own code, so that
/// what started the agent, pulled an image or saw a crowd of pods come does not count as its memory for ever after. Takes
/// milliseconds on a full heap: call it when a burst is over. A heap that [`use_one_arena`] was not called for is left alone.
pub fn trim_memory() {
    #[cfg(target_env = "gnu")]
    if IS_OWN.load(Relaxed) {
        // SAFETY: malloc_trim may be called at any time.
        unsafe { libc::malloc_trim(0) };
    }
    #[cfg(not(target_env = "gnu"))]
    super::heap::trim();
    if gettid() == getpid() {
        clear_below(FREE_STACK_BYTES);
    }
    #[cfg(not(debug_assertions))]
    let_go_of_code();
}

/// Depth of the first thread's stack that is given back: more than was ever used, as reading the configuration and a
/// large manifest took 190 KiB. Below it there is nothing else for as far as the stack may grow.
const FREE_STACK_BYTES: usize = 512 << 10;
/// Stack below the caller that is kept: for calls from here, and for a signal meanwhile.
const LIVE_STACK_BYTES: usize = 16 << 10;

/// Gives back the stack up to `bytes` below this function, which is not in use. The next deep call finds zeros.
#[inline(never)]
fn clear_below(bytes: usize) {
    let here = 0_u8;
    let Some(page) = page_bytes() else {
        return;
    };
    let end = ((&raw const here).addr() - LIVE_STACK_BYTES) / page * page;
    let start = (end - bytes) / page * page;
    let Some(start) = NonNull::new(
        (&raw const here)
            .cast_mut()
            .with_addr(start)
            .cast::<c_void>(),
    ) else {
        return;
    };
    // SAFETY: the range is this thread's stack below all that is in use, and of what was never reached there is no mapping.
    let _ = unsafe { madvise(start, bytes, MmapAdvise::MADV_DONTNEED) };
    // An error means that the stack does not reach so far down: the existing part was given back all the same.
}

fn page_bytes() -> Option<usize> {
    usize::try_from(super::pages::page_size_bytes()).ok()
}

/// Unmaps the pages of the program's constants and code; they stay in the page cache while there is room. Code that
/// still runs is mapped again when it is next called, 64 KiB at a time and without reading the disk: some fifty faults
/// of a microsecond.
///
/// Not where a debugger may have written breakpoints: its copies would go.
#[cfg(not(debug_assertions))]
fn let_go_of_code() {
    // SAFETY: every linker for Linux defines them, and only their addresses are taken.
    unsafe extern "C" {
        safe static __executable_start: u8;
        safe static etext: u8;
    }
    let start = &raw const __executable_start;
    let Some(page) = page_bytes() else {
        return;
    };
    // Down to a whole page: the one that the code ends in is left alone.
    let len = ((&raw const etext).addr() / page * page).saturating_sub(start.addr());
    let Some(start) = NonNull::new(start.cast_mut().cast::<c_void>()) else {
        return;
    };
    // SAFETY: the range ends before anything that can be written, and what is never written reads the same from the file.
    let _ = unsafe { madvise(start, len, MmapAdvise::MADV_DONTNEED) };
    // An error means a gap between the program's parts: the mapped parts were let go of all the same.
}

#[cfg(test)]
mod tests {
    use core::hint::black_box;

    use super::*;

    const DEEP_BYTES: usize = 256 << 10;

    /// Kilobytes of the mapping that `address` is in, in memory.
    fn resident_kib(address: usize) -> u64 {
        let maps = std::fs::read_to_string("/proc/self/smaps").expect("smaps");
        let mut inside = false;
        for line in maps.lines() {
            let range = line
                .split(' ')
                .next()
                .and_then(|range| range.split_once('-'));
            let number = |text| usize::from_str_radix(text, 16);
            if let Some((from, to)) = range
                && let (Ok(from), Ok(to)) = (number(from), number(to))
            {
                inside = (from..to).contains(&address);
            }
            if inside && let Some(kib) = line.strip_prefix("Rss:") {
                return kib.trim().trim_end_matches(" kB").parse().expect("number");
            }
        }
        panic!("no mapping");
    }

    #[inline(never)]
    fn go_deep() -> u8 {
        let deep = [1_u8; DEEP_BYTES];
        black_box(&deep)[DEEP_BYTES / 2]
    }

    #[test]
    fn what_was_deep_in_the_stack_is_given_back() {
        let thread = std::thread::Builder::new().stack_size(2 << 20);
        let run = move || {
            let kept = black_box([7_u8; 1000]);
            let here = (&raw const kept).addr();
            assert_eq!(go_deep(), 1);
            let before = resident_kib(here);
            clear_below(FREE_STACK_BYTES);
            let after = resident_kib(here);
            assert_eq!(kept, [7; 1000], "what is in use stays");
            (before, after)
        };
        let (before, after) = thread.spawn(run).expect("thread").join().expect("ran");
        let given = before.saturating_sub(after);
        assert!(given >= 200, "{before} KiB before, {after} after");
        assert_eq!(go_deep(), 1);
    }
}
