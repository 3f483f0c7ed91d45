//! Names of archives of container checkpoints, and the choice of those that go.
//!
//! Source: kubelet `CheckpointContainer`.

use alloc::string::String;

use crate::api::WallTime;

/// Longest name of a file, bytes.
const MAX_NAME_BYTES: usize = 255;
/// Bytes of the time in the name of an archive.
const TIME_BYTES: usize = "2026-01-02T03:04:05Z".len();

/// Makes the name of an archive. `None`: no file can have it, for it is too long.
#[must_use]
pub fn archive_name(pod: &str, namespace: &str, container: &str, at: WallTime) -> Option<String> {
    let name = format!("checkpoint-{pod}_{namespace}-{container}-{at}.tar");
    (name.len() <= MAX_NAME_BYTES).then_some(name)
}

/// Returns true if `name` may be an archive that goes because `newest` is complete. Names of two containers may begin alike,
/// for namespaces and containers have hyphens in their names: the archive itself says whose it is.
#[must_use]
pub fn is_superseded(name: &str, newest: &str) -> bool {
    let owner = archive_owner(newest);
    name != newest && owner.is_some() && archive_owner(name) == owner
}

/// The name of an archive before its time.
fn archive_owner(name: &str) -> Option<&str> {
    let stem = name.strip_suffix(".tar")?;
    let (owner, time) = stem.split_at_checked(stem.len().checked_sub(TIME_BYTES)?)?;
    WallTime::parse(time).map(|_| owner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_the_archives_that_go() {
        // SRV-14 CKPT-04
        let at = WallTime::from_unix_seconds(1_767_323_045);
        assert_eq!(archive_name(&"a".repeat(220), "shop", "app", at), None);
        let newest = archive_name("web-0", "shop", "app", at).expect("short");
        assert_eq!(newest, "checkpoint-web-0_shop-app-2026-01-02T03:04:05Z.tar");
        for (name, goes) in [
            ("checkpoint-web-0_shop-app-2026-01-02T03:04:04Z.tar", true),
            // The clock was ahead.
            ("checkpoint-web-0_shop-app-2027-01-02T03:04:05Z.tar", true),
            (&*newest, false),
            ("checkpoint-web-0_shop-app-2026-01-02T03:04:04Z", false),
            ("checkpoint-web-0_shop-app-x.tar", false),
            (
                "checkpoint-web-0_shop-app-x-2026-01-02T03:04:04Z.tar",
                false,
            ),
            ("checkpoint-web-0_shop-2026-01-02T03:04:04Z.tar", false),
            ("checkpoint-web-1_shop-app-2026-01-02T03:04:04Z.tar", false),
            ("ä.tar", false),
            ("", false),
        ] {
            assert_eq!(is_superseded(name, &newest), goes, "{name}");
        }
        assert!(!is_superseded("b.tar", "a.tar"));
    }
}
