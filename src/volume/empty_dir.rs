//! Directories that belong to the pod: emptyDir, and the directories of projected volumes.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::Path,
};

use super::{StepContext, VolumeErrorCause, beneath, mkdir_all, mounts};
use crate::sys::file;

/// Storage of the directory's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EmptyDirBacking {
    /// The disk of the root directory.
    Disk,
    /// A tmpfs of at most this many bytes.
    Memory(Option<u64>),
    /// A hugetlbfs with pages of so many bytes. The pod's cgroup limits their number.
    HugePages(u64),
}

/// Returns true if the volume was set up completely and is still there. A reboot takes a tmpfs and leaves the marker.
pub(super) fn is_volume_ready(
    dir: &Path,
    marker: &Path,
    backing: EmptyDirBacking,
) -> Result<bool, VolumeErrorCause> {
    if !marker.exists() {
        return Ok(false);
    }
    match backing {
        EmptyDirBacking::Disk => Ok(fs::symlink_metadata(dir).is_ok_and(|m| m.is_dir())),
        EmptyDirBacking::Memory(_) | EmptyDirBacking::HugePages(_) => {
            beneath::is_mount_point(dir).at_step("failed to look for the volume's mount")
        }
    }
}

/// Makes `dir` (0777 whatever the umask) and mounts its file system on it, if it needs one and has none.
pub(super) fn make_backed_dir(
    dir: &Path,
    backing: EmptyDirBacking,
) -> Result<(), VolumeErrorCause> {
    file::mark_change(dir).at_step("failed to make the volume's directory")?;
    if let Some(parent) = dir.parent() {
        mkdir_all(parent, 0o750).at_step("failed to make the volume's directory")?;
    }
    mkdir_all(dir, 0o777).at_step("failed to make the volume's directory")?;
    match backing {
        // A half-made one may have had other bits.
        EmptyDirBacking::Disk => fs::set_permissions(dir, Permissions::from_mode(0o777))
            .at_step("failed to set the volume's mode"),
        EmptyDirBacking::Memory(_) | EmptyDirBacking::HugePages(_)
            if beneath::is_mount_point(dir).at_step("failed to look for the volume's mount")? =>
        {
            Ok(())
        }
        EmptyDirBacking::Memory(limit) => {
            mounts::mount_tmpfs(dir, limit).at_step("failed to mount a tmpfs")
        }
        EmptyDirBacking::HugePages(bytes) => {
            mounts::mount_huge_pages(dir, bytes).at_step("failed to mount a hugetlbfs")
        }
    }
}

/// Returns true if the volume was set up in this boot: the marker says so.
pub(super) fn is_marked_in_boot(marker: &Path, boot: &str) -> bool {
    fs::metadata(marker).is_ok_and(|m| m.len() == boot.len() as u64)
        && fs::read(marker).is_ok_and(|text| text == boot.as_bytes())
}

/// Writes the ready marker, which names the boot.
pub(super) fn mark_ready(marker: &Path, boot: &str) -> Result<(), VolumeErrorCause> {
    if let Some(parent) = marker.parent() {
        mkdir_all(parent, 0o750).at_step("failed to mark the volume as ready")?;
    }
    let marked = file::mark_change(marker).and_then(|()| fs::write(marker, boot));
    marked.at_step("failed to mark the volume as ready")
}
