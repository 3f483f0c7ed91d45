//! Propagation of mounts: for the directories of the agent, and for paths of the host that containers mount.

use std::{fs, io, path::Path};

use crate::{api::cri::MountPropagation, sys::mount};

/// Checks that mounts can go between a container and the host at `path`, which is without links, as `wanted`.
///
/// - Errors: the mount that it lies on lets none through. The container, which waits for them, would not notice that.
/// - Source: containerd `internal/cri/opts`, `ensureShared` and `ensureSharedOrSlave`.
pub(super) fn check_propagation(path: &Path, wanted: MountPropagation) -> io::Result<()> {
    if wanted == MountPropagation::Private {
        return Ok(());
    }
    let Some(on) = mount::mount_holding(path)? else {
        return Ok(());
    };
    let Some(missing) = missing_propagation(&on, wanted) else {
        return Ok(());
    };
    Err(io::Error::other(format!(
        "path {path:?} is mounted on {:?} but it is not a {missing} mount",
        on.target
    )))
}

/// Kind of propagation that the mount `on` lacks.
fn missing_propagation(on: &mount::MountEntry, wanted: MountPropagation) -> Option<&'static str> {
    match wanted {
        MountPropagation::Bidirectional if !on.shared => Some("shared"),
        MountPropagation::HostToContainer if !on.shared && !on.slave => Some("shared or slave"),
        _ => None,
    }
}

/// Makes `dir` (or the mount it lies on) shared: pins and mounts below it are seen, and released, in every mount
/// namespace that got a copy, and a pod may propagate its own mounts out.
///
/// A directory on a private mount is bound onto itself first. Idempotent.
pub(super) fn make_shared(dir: &Path) -> io::Result<()> {
    let dir = fs::canonicalize(dir)?;
    let on = mount::mount_holding(&dir)?;
    if on.as_ref().is_some_and(|on| on.shared) {
        return Ok(());
    }
    if on.is_none_or(|on| on.target != dir) {
        mount::bind_mount(&dir, &dir, true)?;
    }
    mount::make_shared(&dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_propagates_lies_on_a_mount_that_does() {
        // VOL-23
        use MountPropagation::{Bidirectional, HostToContainer, Private};
        for (shared, slave, wanted, want) in [
            (false, false, Private, None),
            (false, false, HostToContainer, Some("shared or slave")),
            (false, false, Bidirectional, Some("shared")),
            (true, false, Private, None),
            (true, false, HostToContainer, None),
            (true, false, Bidirectional, None),
            (false, true, HostToContainer, None),
            (false, true, Bidirectional, Some("shared")),
            (true, true, Bidirectional, None),
        ] {
            let on = mount::MountEntry {
                device: "8:1".into(),
                root: "/".into(),
                target: "/mnt/disk".into(),
                read_only: false,
                shared,
                slave,
                kind: "ext4".into(),
                source: "/dev/sda1".into(),
                options: String::new(),
            };
            let got = missing_propagation(&on, wanted);
            assert_eq!(got, want, "{shared} {slave} {wanted:?}");
        }
    }
}
