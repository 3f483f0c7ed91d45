//! SIGTERM for a process that watches over another: it kills the other, now or as soon as that is known.
//!
//! The handlers do system calls only. A handler is not inherited by a program that is executed.

#![expect(unsafe_code, reason = "signal handlers")]

use core::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use nix::{
    libc,
    sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction},
    unistd::Pid,
};

/// The signal came.
static ORDERED: AtomicBool = AtomicBool::new(false);
/// Process to kill; 0 while unknown.
static TARGET: AtomicI32 = AtomicI32::new(0);
/// Seconds that may pass until the target is known.
static PATIENCE_S: AtomicI32 = AtomicI32::new(0);

/// Lets SIGTERM kill the target from now on. If that is not known `patience_s` seconds after the signal, the whole
/// process group is killed instead.
///
/// # Errors
/// Those of sigaction(2).
pub fn install_handler(patience_s: i32) -> nix::Result<()> {
    PATIENCE_S.store(patience_s, Ordering::SeqCst);
    for (signal, handler) in [
        (Signal::SIGALRM, handle_alarm as extern "C" fn(libc::c_int)),
        (Signal::SIGTERM, handle_term),
    ] {
        let action = SigAction::new(
            SigHandler::Handler(handler),
            SaFlags::empty(),
            SigSet::all(),
        );
        // SAFETY: the handlers touch atomics and make system calls only.
        unsafe { sigaction(signal, &action) }?;
    }
    Ok(())
}

/// Makes this process ignore SIGTERM from now on. Processes that it starts are ended by the signal all the same.
///
/// # Errors
/// Those of sigaction(2).
pub fn ignore_term() -> nix::Result<()> {
    let action = SigAction::new(SigHandler::SigIgn, SaFlags::empty(), SigSet::empty());
    // SAFETY: no handler is called.
    unsafe { sigaction(Signal::SIGTERM, &action) }.map(drop)
}

/// Names the target, a child that was not waited for, and kills it if SIGTERM has come already.
pub fn set_target(pid: Pid) {
    TARGET.store(pid.as_raw(), Ordering::SeqCst);
    if was_term_received() {
        kill_target();
    }
}

/// Returns true if SIGTERM has come.
pub fn was_term_received() -> bool {
    ORDERED.load(Ordering::SeqCst)
}

fn kill_target() -> bool {
    let pid = TARGET.load(Ordering::SeqCst);
    if pid > 0 {
        // SAFETY: integer arguments only.
        unsafe { libc::kill(pid, libc::SIGKILL) };
    }
    pid > 0
}

extern "C" fn handle_term(_: libc::c_int) {
    ORDERED.store(true, Ordering::SeqCst);
    if !kill_target() {
        let seconds = PATIENCE_S.load(Ordering::SeqCst).unsigned_abs();
        // SAFETY: integer argument only.
        unsafe { libc::alarm(seconds) };
    }
}

extern "C" fn handle_alarm(_: libc::c_int) {
    if !kill_target() {
        // SAFETY: integer arguments only: the own process group.
        unsafe { libc::kill(0, libc::SIGKILL) };
    }
}
