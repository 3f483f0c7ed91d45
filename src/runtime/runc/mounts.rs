//! Mounts of the run directory: which there are, how they are shared, how they go.

use std::{
    fs, io,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use nix::mount::{MntFlags, MsFlags, mount, umount2};

const NONE: Option<&str> = None;

/// One line of the mount table.
#[derive(Debug, PartialEq, Eq)]
struct Entry {
    point: PathBuf,
    shared: bool,
}

/// Makes `dir` (or the mount it lies on) propagate: what is pinned or mounted below is seen, and released, in every mount
/// namespace that got a copy, and a pod may propagate its own mounts out.
///
/// A directory on a private mount is bound onto itself first. Idempotent.
pub(super) fn make_shared(dir: &Path) -> io::Result<()> {
    let dir = fs::canonicalize(dir)?;
    let table = table()?;
    // The last line of the longest prefix is the mount on top.
    let on = table
        .iter()
        .filter(|e| dir.starts_with(&e.point))
        .max_by_key(|e| e.point.as_os_str().len());
    if on.is_some_and(|e| e.shared) {
        return Ok(());
    }
    if on.is_none_or(|e| e.point != dir) {
        mount(Some(&dir), &dir, NONE, MsFlags::MS_BIND | MsFlags::MS_REC, NONE)?;
    }
    mount(NONE, &dir, NONE, MsFlags::MS_SHARED | MsFlags::MS_REC, NONE)?;
    Ok(())
}

/// Mount points at and below `dir`, deepest first.
pub(super) fn below(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut points: Vec<PathBuf> = table()?
        .into_iter()
        .map(|e| e.point)
        .filter(|p| p.starts_with(dir))
        .collect();
    points.sort();
    points.reverse();
    Ok(points)
}

/// Unmounts everything stacked on `point`. Not mounted, or absent, counts as done.
pub(super) fn unmount(point: &Path) -> io::Result<()> {
    /// More mounts than this on one point were not made by us.
    const STACKED: usize = 16;
    for _ in 0..STACKED {
        // Detached: a straggler that still holds it keeps only its own view.
        match umount2(point, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) {
            Ok(()) => {}
            Err(nix::Error::EINVAL | nix::Error::ENOENT) => return Ok(()),
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

/// Unmounts everything at and below `dir`.
pub(super) fn unmount_below(dir: &Path) -> io::Result<()> {
    for point in below(dir)? {
        unmount(&point)?;
    }
    Ok(())
}

fn table() -> io::Result<Vec<Entry>> {
    Ok(parse(&fs::read("/proc/self/mountinfo")?))
}

/// Source: `proc_pid_mountinfo(5)`.
fn parse(text: &[u8]) -> Vec<Entry> {
    text.split(|b| *b == b'\n')
        .filter_map(|line| {
            let mut fields = line.split(|b| *b == b' ');
            let point = unescape(fields.nth(4)?);
            let shared = fields
                .skip(1)
                .take_while(|f| *f != b"-")
                .any(|f| f.starts_with(b"shared:"));
            Some(Entry { point, shared })
        })
        .collect()
}

/// Blank, tab, line feed and backslash are written as three octal digits.
fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        if *first == b'\\'
            && let Some(digits) = tail.get(..3)
            && let Ok(digits) = core::str::from_utf8(digits)
            && let Ok(byte) = u8::from_str_radix(digits, 8)
        {
            bytes.push(byte);
            rest = &tail[3..];
        } else {
            bytes.push(*first);
            rest = tail;
        }
    }
    PathBuf::from(std::ffi::OsStr::from_bytes(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_lines() {
        let text = b"27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
            30 27 0:9 / /a\\040b rw,relatime - tmpfs tmpfs rw\n\
            31 27 0:9 / /c rw master:3 shared:4 - tmpfs shared:9 rw\nrubbish\n";
        let entry = |point: &str, shared| Entry {
            point: point.into(),
            shared,
        };
        assert_eq!(
            parse(text),
            [entry("/", true), entry("/a b", false), entry("/c", true)]
        );
    }
}
