//! Limits of this process and its children: the lowest `oom_score_adj` that they may have, and no capabilities.

#![expect(unsafe_code, reason = "prctl is a variadic function")]

use std::fs::{read_to_string, write};
use std::io;

const OWN: &str = "/proc/self/oom_score_adj";
/// The kernel's lowest value.
pub const LOWEST: i32 = -1000;

/// The lowest `oom_score_adj` that this process may set: -1000 with `CAP_SYS_RESOURCE`, else the value last set by a
/// process with that capability. Found by trying; the value is as before afterwards.
pub fn min_oom_score_adj() -> io::Result<i32> {
    let current = oom_score_adj()?;
    let allowed = |value: i32| write(OWN, value.to_string()).is_ok();
    // The lowest allowed value lies in (refused, granted].
    let (mut refused, mut granted) = (LOWEST - 1, current);
    if allowed(LOWEST) {
        granted = LOWEST;
    } else {
        refused = LOWEST;
    }
    while granted - refused > 1 {
        let middle = i32::midpoint(granted, refused);
        if allowed(middle) {
            granted = middle;
        } else {
            refused = middle;
        }
    }
    write(OWN, current.to_string())?;
    Ok(granted)
}

/// The value of this process.
pub fn oom_score_adj() -> io::Result<i32> {
    let text = read_to_string(OWN)?;
    text.trim().parse().map_err(io::Error::other)
}

/// Sets the value of this process, or the lowest one allowed if that is higher. Returns what was set.
pub fn set_oom_score_adj(wanted: i32) -> io::Result<i32> {
    match write(OWN, wanted.to_string()) {
        Ok(()) => Ok(wanted),
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
            let lowest = min_oom_score_adj()?;
            let clamped = wanted.max(lowest);
            write(OWN, clamped.to_string())?;
            Ok(clamped)
        }
        Err(e) => Err(e),
    }
}

/// Takes all capabilities from programs that this process executes from now on, those of root and of files. Needs
/// `CAP_SETPCAP`. Source: capabilities(7), prctl(2) `PR_CAPBSET_DROP`.
pub fn drop_exec_capabilities() -> io::Result<()> {
    /// Bits of the mask: more than any kernel has capabilities.
    const MOST: libc::c_ulong = 64;
    for number in 0..MOST {
        // SAFETY: two plain numbers; no memory is named.
        let dropped = unsafe { libc::prctl(libc::PR_CAPBSET_DROP, number) };
        match nix::Error::result(dropped) {
            Ok(_) => {}
            // The kernel has no capability of this number.
            Err(nix::Error::EINVAL) => break,
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probing_changes_nothing() {
        let before = oom_score_adj().expect("read");
        let lowest = min_oom_score_adj().expect("probe");
        assert!(lowest <= before);
        assert_eq!(oom_score_adj().expect("read"), before);
        // Raising and lowering again is allowed down to the lowest.
        assert_eq!(set_oom_score_adj(LOWEST).expect("clamp"), lowest);
        assert_eq!(set_oom_score_adj(before).expect("restore"), before);
    }
}
