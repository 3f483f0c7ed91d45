//! Named places at which a process of ours can be made to die: between an intent, the announced action, and the record
//! of it.
//!
//! Only with the cargo feature `crash-points`; without it [`point`] is nothing. `PICOLET_CRASH_AT=name[:n]`, read by `cli`,
//! names the point and its n-th passing; the process then ends by SIGKILL, as a fault or the kernel would end it. A point of
//! the shim (`shim.…`) is passed on to shims, of which only the first dies: it leaves a file in the run directory, called
//! `SHIM_MARK` and the point, that names its container.
//!
//! The list of points is the source text: each name is a literal at its only `crash::point` or `crash::shim_point`.

/// Variable that names the point.
#[cfg(feature = "crash-points")]
pub const VARIABLE: &str = "PICOLET_CRASH_AT";
/// Beginning of the name of the file that a shim leaves.
#[cfg(feature = "crash-points")]
pub const SHIM_MARK: &str = "crashed-";

/// Passes the point `name`.
#[cfg(not(feature = "crash-points"))]
#[inline(always)]
pub const fn point(_name: &str) {}

/// Passes a point of the shim.
#[cfg(not(feature = "crash-points"))]
#[inline(always)]
pub const fn shim_point(_name: &str) {}

#[cfg(feature = "crash-points")]
pub use armed::{arm, arm_shim, point, shim_argument, shim_point};

#[cfg(feature = "crash-points")]
mod armed {
    use std::ffi::CStr;
    use std::fs::File;
    use std::io::Write as _;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU32, Ordering};

    use nix::sys::signal::{Signal, raise};

    use super::SHIM_MARK;

    static AT: OnceLock<(String, u32)> = OnceLock::new();
    static PASSED: AtomicU32 = AtomicU32::new(0);

    /// Arms the point that `text` names: `name` or `name:n`, n counted from 1.
    pub fn arm(text: &str) {
        let (name, count) = text.split_once(':').unwrap_or((text, "1"));
        // The first one counts: there is only one variable.
        let _ = AT.set((name.to_owned(), count.parse().unwrap_or(1)));
    }

    /// Argument for a shim: the armed point, if it is one of the shim's.
    pub fn shim_argument() -> Option<&'static str> {
        let (name, _) = AT.get()?;
        name.starts_with("shim.").then_some(name)
    }

    /// Arms a shim by its argument.
    pub fn arm_shim(name: &CStr) {
        arm(&name.to_string_lossy());
    }

    /// Passes the point `name`; does not return if it is its turn.
    pub fn point(name: &str) {
        if AT.get().is_some_and(|(at, n)| {
            at == name && PASSED.fetch_add(1, Ordering::Relaxed).saturating_add(1) == *n
        }) {
            die();
        }
    }

    /// Passes a point of the shim, whose directory is `<run>/containers/<id>`.
    pub fn shim_point(name: &str) {
        if AT.get().is_none_or(|(at, _)| at != name) {
            return;
        }
        let Ok(mut mark) = File::create_new(format!("../../{SHIM_MARK}{name}")) else {
            return;
        };
        let dir = std::env::current_dir().unwrap_or_default();
        if mark.write_all(dir.as_os_str().as_encoded_bytes()).is_ok() {
            die();
        }
    }

    fn die() {
        // Processes that wait for this one see the same as after a kill.
        let _ = raise(Signal::SIGKILL);
    }
}
