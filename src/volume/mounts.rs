//! The mount table of this mount namespace, and the few mounts volumes need.

use std::{
    ffi::OsString,
    fs::File,
    io::{self, Read},
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    mount::{MntFlags, MsFlags, mount, umount2},
};

use super::beneath::is_mount_point;

/// Most bytes of `/proc/self/mountinfo` that are read; the kernel's default limit of 100 000 mounts fits.
const MOUNTINFO_LIMIT_BYTES: u64 = 32 * 1024 * 1024;

/// Mounts stacked on one point that are taken off before giving up. More than one is an accident already.
const STACK_LIMIT: u32 = 16;

/// Mount points at or below `dir`, in the order of the table (a later one may cover an earlier one).
///
/// - Errors: the table cannot be read whole. The caller must then assume that everything is mounted.
/// - Source: `proc_pid_mountinfo(5)`.
pub(super) fn mounts_below(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut table = Vec::new();
    File::open("/proc/self/mountinfo")?
        .take(MOUNTINFO_LIMIT_BYTES)
        .read_to_end(&mut table)?;
    if u64::try_from(table.len()).unwrap_or(u64::MAX) >= MOUNTINFO_LIMIT_BYTES {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            "the mount table is longer than what is read of it",
        ));
    }
    Ok(mount_points(&table)
        .filter(|point| point.starts_with(dir))
        .collect())
}

fn mount_points(table: &[u8]) -> impl Iterator<Item = PathBuf> {
    table
        .split(|b| *b == b'\n')
        .filter_map(|line| line.split(|b| *b == b' ').nth(4))
        .map(|field| PathBuf::from(OsString::from_vec(unescape(field))))
}

/// Blank, tab, newline and backslash are written as three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        if first == b'\\'
            && let [
                a @ b'0'..=b'3',
                b @ b'0'..=b'7',
                c @ b'0'..=b'7',
                after @ ..,
            ] = tail
        {
            out.push((a - b'0') * 64 + (b - b'0') * 8 + (c - b'0'));
            rest = after;
        } else {
            out.push(first);
            rest = tail;
        }
    }
    out
}

/// Unmounts `point`. Not mounted (any more) is success.
pub(super) fn unmount(point: &Path) -> io::Result<()> {
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
        unmount(point)?;
    }
    Err(Errno::EBUSY.into())
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

/// Bind-mounts `source` (not what is mounted below it) on `target`.
pub(super) fn bind(source: &Path, target: &Path) -> io::Result<()> {
    Ok(mount(
        Some(source),
        target,
        None::<&str>,
        MsFlags::MS_BIND,
        None::<&str>,
    )?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_read() {
        let table = b"23 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
            40 23 0:35 / /var/lib/a\\040b/c\\134d rw - tmpfs tmpfs rw\n";
        assert_eq!(
            mount_points(table).collect::<Vec<_>>(),
            [Path::new("/"), Path::new("/var/lib/a b/c\\d")]
        );
        for (name, from, to) in [
            ("plain", "a", "a"),
            ("newline", "a\\012b", "a\nb"),
            ("cut short", "a\\04", "a\\04"),
            ("not octal", "a\\999", "a\\999"),
        ] {
            assert_eq!(unescape(from.as_bytes()), to.as_bytes(), "{name}");
        }
    }
}
