//! How the directories of the agent propagate mounts.

use std::{fs, io, path::Path};

use crate::sys::mount;

/// Makes `dir` (or the mount it lies on) propagate: what is pinned or mounted below is seen, and released, in every mount
/// namespace that got a copy, and a pod may propagate its own mounts out.
///
/// A directory on a private mount is bound onto itself first. Idempotent.
pub(super) fn make_shared(dir: &Path) -> io::Result<()> {
    let dir = fs::canonicalize(dir)?;
    let (mut on, mut shared) = (Path::new("/").to_owned(), false);
    mount::each_mount(|m| {
        // Of equal ones the last is on top.
        if dir.starts_with(&m.target) && m.target.components().count() >= on.components().count() {
            (on, shared) = (m.target, m.shared);
        }
    })?;
    if shared {
        return Ok(());
    }
    if on != dir {
        mount::bind(&dir, &dir, true)?;
    }
    mount::make_shared(&dir)
}
