//! The few mounts volumes need beside [`crate::sys::mount`].

use std::{io, path::Path};

use nix::{
    errno::Errno,
    mount::{MntFlags, MsFlags, mount, umount2},
};

use super::beneath::is_mount_point;
pub(super) use crate::sys::mount::mounts_below;

/// Mounts stacked on one point that are taken off before giving up. More than one is an accident already.
const STACK_LIMIT: u32 = 16;

/// Unmounts `point`. Not mounted (any more) is success. Not lazily: a volume that is in use fails its tear-down, which is then
/// tried again.
pub(super) fn unmount_point(point: &Path) -> io::Result<()> {
    match umount2(point, MntFlags::UMOUNT_NOFOLLOW) {
        Ok(()) | Err(Errno::EINVAL | Errno::ENOENT) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

/// Unmounts everything that is stacked on `point`, whose parent's path is trusted.
///
/// - Errors: EBUSY if something is still mounted there, for whatever reason.
pub(super) fn unmount_all(point: &Path) -> io::Result<()> {
    for _ in 0..STACK_LIMIT {
        if !is_mount_point(point)? {
            return Ok(());
        }
        unmount_point(point)?;
    }
    Err(Errno::EBUSY.into())
}

/// Mounts a hugetlbfs with pages of `page_bytes` on `point`, with the mode of a tmpfs. Fails where the kernel has no such pages.
pub(super) fn mount_huge_pages(point: &Path, page_bytes: u64) -> io::Result<()> {
    let options = format!("mode=1777,pagesize={page_bytes}");
    Ok(mount(
        Some("hugetlbfs"),
        point,
        Some("hugetlbfs"),
        MsFlags::MS_NODEV,
        Some(options.as_str()),
    )?)
}

/// Mounts a tmpfs of at most `size` bytes on `point`, kept out of swap where the kernel can (Linux 6.4).
pub(super) fn mount_tmpfs(point: &Path, size: Option<u64>) -> io::Result<()> {
    let size = size.map_or_else(String::new, |bytes| format!("size={bytes}"));
    let with_noswap = if size.is_empty() {
        "noswap".to_owned()
    } else {
        format!("{size},noswap")
    };
    let attempt = |options: &str| {
        mount(
            Some("tmpfs"),
            point,
            Some("tmpfs"),
            MsFlags::empty(),
            Some(options),
        )
    };
    match attempt(&with_noswap) {
        // An older kernel does not know the option; inside a user namespace it is refused.
        Err(Errno::EINVAL | Errno::EPERM) => Ok(attempt(&size)?),
        done => Ok(done?),
    }
}
