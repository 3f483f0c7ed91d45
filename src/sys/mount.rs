//! Mounts. Every call acts on the mount namespace of the calling thread, which for the agent is the host's.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::statvfs::{FsFlags, statvfs};

use super::open;

/// Bytes of `/proc/self/mountinfo` that are read at most: some 50 000 mounts.
pub const MAX_MOUNTINFO_BYTES: u64 = 16 * 1024 * 1024;
/// Rounds of [`unmount_below`]: a mount can lie over others, and another process may mount meanwhile.
const UNMOUNT_ROUNDS: usize = 8;
/// Bytes of options that the kernel takes: one page, on every architecture at least this.
const MAX_OPTIONS_BYTES: usize = 4095;

const NONE: Option<&str> = None;

/// Shows the file or directory `source` at `target` too; with the mounts below it if `recursive`.
pub fn bind_mount(source: &Path, target: &Path, recursive: bool) -> io::Result<()> {
    let mut flags = MsFlags::MS_BIND;
    flags.set(MsFlags::MS_REC, recursive);
    Ok(mount(Some(source), target, NONE, flags, NONE)?)
}

/// As [`bind_mount`], from an opened file (`O_PATH` is enough): the path cannot be changed under the caller.
pub fn bind_mount_opened(source: BorrowedFd<'_>, target: &Path, recursive: bool) -> io::Result<()> {
    bind_mount(&fd_path(source), target, recursive)
}

/// Makes the mount at `target` read-only, keeping its other restrictions. Mounts below it stay as they are.
pub fn remount_read_only(target: &Path) -> io::Result<()> {
    let found = statvfs(target)?.flags();
    let mut flags = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY;
    // `relatime` need not be named: the kernel keeps it if no other flag of its kind is given, and takes it beside
    // `nodiratime`.
    for (has, keep) in [
        (FsFlags::ST_NOSUID, MsFlags::MS_NOSUID),
        (FsFlags::ST_NODEV, MsFlags::MS_NODEV),
        (FsFlags::ST_NOEXEC, MsFlags::MS_NOEXEC),
        (FsFlags::ST_NOATIME, MsFlags::MS_NOATIME),
        (FsFlags::ST_NODIRATIME, MsFlags::MS_NODIRATIME),
    ] {
        flags.set(keep, found.contains(has));
    }
    Ok(mount(NONE, target, NONE, flags, NONE)?)
}

/// Mounts a tmpfs of at most `size_bytes` (`None`: half of the memory, the kernel's default) whose root has `mode`.
/// `flags` usually are `MS_NOSUID | MS_NODEV`, and `MS_NOEXEC` where nothing is run.
pub fn mount_tmpfs(
    target: &Path,
    size_bytes: Option<u64>,
    mode: u32,
    flags: MsFlags,
) -> io::Result<()> {
    let mut options = format!("mode={mode:o}");
    if let Some(size) = size_bytes {
        options += &format!(",size={size}");
    }
    let kind = Some("tmpfs");
    Ok(mount(kind, target, kind, flags, Some(options.as_str()))?)
}

/// Gives the tmpfs at `target` another size.
///
/// # Errors
/// Less than is in it, among others: it keeps what it has.
pub fn resize_tmpfs(target: &Path, size_bytes: u64) -> io::Result<()> {
    let options = format!("size={size_bytes}");
    // A remount clears flags that it does not name.
    let flags = MsFlags::MS_REMOUNT | MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    Ok(mount(NONE, target, NONE, flags, Some(options.as_str()))?)
}

/// Mounts an overlay of `lower` (top layer first) at `target`.
///
/// - `upper_work`: the writable layer and its empty work directory on the same file system; `None`: read-only.
/// - `extra`: further options such as `volatile`, `metacopy=off`.
/// - Shape: any number of layers the kernel takes (500, less if options get longer than a page: over 200). Paths may hold
///   any byte: those that the option syntax cannot carry, or too many of them, are passed as opened directories.
pub fn mount_overlay(
    lower: &[PathBuf],
    upper_work: Option<(&Path, &Path)>,
    target: &Path,
    extra: &[&str],
) -> io::Result<()> {
    if lower.is_empty() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let plain = |p: &Path| p.to_str().is_some_and(|t| !t.contains([',', ':', '\\']));
    let all = || {
        lower
            .iter()
            .map(PathBuf::as_path)
            .chain(upper_work.iter().flat_map(|(u, w)| [*u, *w]))
    };
    let mut options = overlay_options(lower, upper_work, extra);
    let mut opened: Vec<OwnedFd> = Vec::new();
    if options.len() > MAX_OPTIONS_BYTES || !all().all(plain) {
        for path in all() {
            opened.push(open::open_dir(path)?);
        }
        let paths: Vec<PathBuf> = opened.iter().map(|fd| fd_path(fd.as_fd())).collect();
        let (lower, rest) = paths.split_at(lower.len());
        let upper_work = match rest {
            [upper, work] => Some((upper.as_path(), work.as_path())),
            _ => None,
        };
        options = overlay_options(lower, upper_work, extra);
    }
    if options.len() > MAX_OPTIONS_BYTES {
        let text = format!("{} layers are more than the kernel takes", lower.len());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    let kind = Some("overlay");
    Ok(mount(
        kind,
        target,
        kind,
        MsFlags::empty(),
        Some(options.as_str()),
    )?)
}

fn overlay_options(
    lower: &[PathBuf],
    upper_work: Option<(&Path, &Path)>,
    extra: &[&str],
) -> String {
    let lower: Vec<_> = lower.iter().map(|p| p.to_string_lossy()).collect();
    let mut options = format!("lowerdir={}", lower.join(":"));
    if let Some((upper, work)) = upper_work {
        options += &format!(",upperdir={},workdir={}", upper.display(), work.display());
    }
    for option in extra {
        options.push(',');
        options += option;
    }
    options
}

/// Makes the mount at `target`, and all mounts below it, shared: mounts made below it later are seen wherever it is
/// shown, and the reverse. Source: mount_namespaces(7).
pub fn make_shared(target: &Path) -> io::Result<()> {
    let flags = MsFlags::MS_SHARED | MsFlags::MS_REC;
    Ok(mount(NONE, target, NONE, flags, NONE)?)
}

/// Unmounts the top mount at `target`, at once for new users even if it is in use (lazy). "Not mounted" and "not found"
/// are success. Never follows a symbolic link.
pub fn unmount(target: &Path) -> io::Result<()> {
    match umount2(target, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) {
        Ok(()) | Err(nix::Error::EINVAL | nix::Error::ENOENT) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

/// Unmounts everything at and below `root`, deepest first. `root` must be without links and `..`.
/// Returns how many mounts went. `ResourceBusy` if some are left after several rounds.
pub fn unmount_below(root: &Path) -> io::Result<usize> {
    let mut gone = 0;
    for _ in 0..UNMOUNT_ROUNDS {
        let mounts = mounts_below(root)?;
        if mounts.is_empty() {
            return Ok(gone);
        }
        // Later lines lie over or below earlier ones.
        for target in mounts.iter().rev() {
            unmount(target)?;
            gone += 1;
        }
    }
    Err(io::ErrorKind::ResourceBusy.into())
}

/// Mount points at and below `root` in the order of mounting; one that is mounted over counts each time.
pub fn mounts_below(root: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    each_mount(|m| {
        if m.target.starts_with(root) {
            found.push(m.target);
        }
    })?;
    Ok(found)
}

/// Returns true if a mount is at exactly `target`.
pub fn is_mount_point(target: &Path) -> io::Result<bool> {
    let mut found = false;
    each_mount(|m| found |= m.target == target)?;
    Ok(found)
}

/// The mount that `path` lies on; without links and `..`.
pub fn mount_holding(path: &Path) -> io::Result<Option<MountEntry>> {
    let mut on: Option<MountEntry> = None;
    each_mount(|m| {
        // Of mounts at the same place the last is on top.
        let depth = |m: &MountEntry| m.target.components().count();
        if path.starts_with(&m.target) && on.as_ref().is_none_or(|on| depth(&m) >= depth(on)) {
            on = Some(m);
        }
    })?;
    Ok(on)
}

/// Undoes binds of `dir` onto itself, one or several on top of each other. Any other mount there stays: it may be a
/// disk. `dir` must be without links and `..`.
pub fn unmount_self_binds(dir: &Path) -> io::Result<()> {
    for _ in 0..UNMOUNT_ROUNDS {
        let mut mounts = Vec::new();
        each_mount(|m| {
            if dir.starts_with(&m.target) {
                mounts.push(m);
            }
        })?;
        if !bound_onto_itself(dir, &mounts) {
            return Ok(());
        }
        unmount(dir)?;
    }
    Err(io::ErrorKind::ResourceBusy.into())
}

/// Returns true if the last of `mounts`, all at `dir` or above it, is a mount at `dir` that shows the same as the one
/// before.
fn bound_onto_itself(dir: &Path, mounts: &[MountEntry]) -> bool {
    let shown = |m: &MountEntry| {
        let rest = dir.strip_prefix(&m.target).ok()?;
        Some((m.device.clone(), m.root.join(rest)))
    };
    match mounts {
        [.., before, top] => top.target == dir && shown(before) == shown(top),
        _ => false,
    }
}

/// A mount: a line of `/proc/self/mountinfo`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// Major and minor number of the file system.
    pub device: String,
    /// Directory of the file system that is shown.
    pub root: PathBuf,
    /// Mount point.
    pub target: PathBuf,
    /// Read-only here; the file system may be writable elsewhere.
    pub read_only: bool,
    /// Part of a shared peer group.
    pub shared: bool,
    /// Set if mounts in a peer group are taken over, and none are given back.
    pub slave: bool,
    /// File system type.
    pub kind: String,
    /// Source, e.g. a device.
    pub source: String,
    /// Options of the file system.
    pub options: String,
}

/// Calls `f` for every mount of this namespace, in the order of mounting. Source: proc_pid_mountinfo(5).
/// A table longer than [`MAX_MOUNTINFO_BYTES`] is an error: half of it would make mounts look gone.
pub fn each_mount(f: impl FnMut(MountEntry)) -> io::Result<()> {
    read_mounts(File::open("/proc/thread-self/mountinfo")?, f)
}

/// As [`each_mount`], for the mount namespace of process `pid`, below its root directory.
pub fn each_mount_of(pid: i32, f: impl FnMut(MountEntry)) -> io::Result<()> {
    read_mounts(File::open(format!("/proc/{pid}/mountinfo"))?, f)
}

fn read_mounts(file: File, mut f: impl FnMut(MountEntry)) -> io::Result<()> {
    let mut lines = BufReader::new(file.take(MAX_MOUNTINFO_BYTES));
    let mut line = Vec::new();
    loop {
        line.clear();
        if lines.read_until(b'\n', &mut line)? == 0 {
            return match lines.get_ref().limit() {
                0 => Err(io::ErrorKind::FileTooLarge.into()),
                _ => Ok(()),
            };
        }
        if let Some(mount) = parse_mount_line(&line) {
            f(mount);
        }
    }
}

fn parse_mount_line(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.trim_ascii_end().split(|b| *b == b' ');
    let device = String::from_utf8_lossy(fields.nth(2)?).into_owned();
    let root = unescape(fields.next()?);
    let target = unescape(fields.next()?);
    let read_only = fields.next()?.split(|b| *b == b',').any(|o| o == b"ro");
    let (mut shared, mut slave) = (false, false);
    // Optional fields up to a lone dash.
    for field in fields.by_ref() {
        if field == b"-" {
            break;
        }
        shared |= field.starts_with(b"shared:");
        slave |= field.starts_with(b"master:");
    }
    let mut text = || {
        fields
            .next()
            .map(|f| String::from_utf8_lossy(&unescape_octal(f)).into_owned())
    };
    Some(MountEntry {
        device,
        root,
        target,
        read_only,
        shared,
        slave,
        kind: text()?,
        source: text()?,
        options: text()?,
    })
}

fn unescape(field: &[u8]) -> PathBuf {
    use std::os::unix::ffi::OsStringExt;
    std::ffi::OsString::from_vec(unescape_octal(field)).into()
}

/// Undoes `\ooo`.
fn unescape_octal(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        rest = tail;
        if let (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', tail @ ..]) =
            (first, rest)
        {
            out.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
            rest = tail;
        } else {
            out.push(*first);
        }
    }
    out
}

fn fd_path(fd: BorrowedFd<'_>) -> PathBuf {
    format!("/proc/self/fd/{}", fd.as_raw_fd()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_lines() {
        let line = br"36 35 98:0 /mnt1 /mnt\0402 rw,noatime master:1 shared:7 - ext3 /dev/ro\134ot rw,errors=continue";
        let mount = parse_mount_line(line).expect("a line");
        assert_eq!(
            mount,
            MountEntry {
                device: "98:0".into(),
                root: "/mnt1".into(),
                target: "/mnt 2".into(),
                read_only: false,
                shared: true,
                slave: true,
                kind: "ext3".into(),
                source: r"/dev/ro\ot".into(),
                options: "rw,errors=continue".into(),
            }
        );
        let plain = parse_mount_line(b"36 35 98:0 / / ro,nodev - tmpfs none rw\n").expect("a line");
        assert!(plain.read_only);
        assert_eq!((plain.shared, plain.slave), (false, false));
        assert_eq!(plain.kind, "tmpfs");
        assert_eq!(parse_mount_line(b"36 35"), None);
        assert!(is_mount_point(Path::new("/proc")).expect("read"));
        assert!(!is_mount_point(Path::new("/proc/self")).expect("read"));
    }

    #[test]
    fn options() {
        let text = overlay_options(
            &["/b".into(), "/a".into()],
            Some((Path::new("/u"), Path::new("/w"))),
            &["volatile"],
        );
        assert_eq!(text, "lowerdir=/b:/a,upperdir=/u,workdir=/w,volatile");
        assert_eq!(overlay_options(&["/a".into()], None, &[]), "lowerdir=/a");
    }

    /// Runs `test` as root on a thread with a mount namespace of its own, in a fresh directory on tmpfs.
    fn privately(test: impl FnOnce(&Path) + Send + 'static) {
        if !nix::unistd::geteuid().is_root() {
            skipped!("mounts: it needs root");
            return;
        }
        let thread = std::thread::spawn(move || {
            if let Err(e) = nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS) {
                skipped!("no mount namespace: {e}");
                return;
            }
            let private = MsFlags::MS_PRIVATE | MsFlags::MS_REC;
            mount(NONE, Path::new("/"), NONE, private, NONE).expect("private");
            let dir = std::env::temp_dir().join(format!("picolet-mount-{}", nix::unistd::gettid()));
            std::fs::create_dir_all(&dir).expect("dir");
            mount_tmpfs(
                &dir,
                Some(1 << 20),
                0o755,
                MsFlags::MS_NOSUID | MsFlags::MS_NODEV,
            )
            .expect("tmpfs");
            test(&dir);
            assert!(unmount_below(&dir).expect("unmount") > 0);
            assert_eq!(mounts_below(&dir).expect("list"), Vec::<PathBuf>::new());
            unmount(&dir).expect("not mounted is success");
            std::fs::remove_dir(&dir).expect("remove");
        });
        thread.join().expect("test thread");
    }

    #[test]
    fn binds_and_remounts() {
        privately(|dir| {
            for name in ["a", "b", "b/deep"] {
                std::fs::create_dir(dir.join(name)).expect("dir");
            }
            bind_mount(&dir.join("a"), &dir.join("b"), false).expect("bind");
            std::fs::create_dir(dir.join("b/under")).expect("dir");
            bind_mount(&dir.join("b"), &dir.join("b/under"), true).expect("bind");
            bind_mount(&dir.join("b"), &dir.join("b"), true).expect("over itself");
            remount_read_only(&dir.join("b")).expect("read-only");
            let refused = std::fs::write(dir.join("b/x"), "").expect_err("read-only");
            assert_eq!(refused.kind(), io::ErrorKind::ReadOnlyFilesystem);
            let flags = statvfs(&dir.join("b")).expect("statvfs").flags();
            assert!(flags.contains(FsFlags::ST_NOSUID | FsFlags::ST_NODEV));
            std::fs::write(dir.join("a/x"), "").expect("the source is writable");
            let on = |path: &str| {
                let found = mount_holding(&dir.join(path))
                    .expect("read")
                    .expect("a mount");
                (found.target, found.read_only)
            };
            for (path, target, read_only) in [
                ("a/x", "", false),
                ("b/x", "b", true),
                ("b/under/x", "b/under", false),
                ("b/under-not", "b", true),
            ] {
                // Without a slash at the end.
                let target: PathBuf = dir.join(target).components().collect();
                assert_eq!(on(path), (target, read_only), "{path}");
            }
        });
    }

    #[test]
    fn only_binds_onto_itself_are_undone() {
        privately(|dir| {
            for name in ["a", "a/sub", "b"] {
                std::fs::create_dir(dir.join(name)).expect("dir");
            }
            let (a, sub) = (dir.join("a"), dir.join("a/sub"));
            let count = |at: &Path| {
                let all = mounts_below(dir).expect("list");
                all.iter().filter(|m| *m == at).count()
            };
            unmount_self_binds(&a).expect("nothing is mounted");
            bind_mount(&dir.join("b"), &a, false).expect("somebody's");
            unmount_self_binds(&a).expect("left alone");
            assert_eq!(count(&a), 1);
            bind_mount(&a, &a, false).expect("ours");
            bind_mount(&a, &a, false).expect("ours");
            unmount_self_binds(&a).expect("undone");
            assert_eq!(count(&a), 1, "the first one was not ours");
            unmount(&a).expect("unmount");
            mount_tmpfs(&sub, Some(4096), 0o755, MsFlags::empty()).expect("a disk");
            unmount_self_binds(&sub).expect("left alone");
            assert_eq!(count(&sub), 1);
            bind_mount(&sub, &sub, false).expect("ours");
            unmount_self_binds(&sub).expect("undone");
            assert_eq!(count(&sub), 1);
        });
    }

    #[test]
    fn overlays() {
        privately(|dir| {
            let odd = dir.join("with,comma:colon");
            let mut layers = vec![odd.clone()];
            for n in 0..60 {
                // Longer than a page together.
                layers.push(dir.join(format!("layer-{n:080}")));
            }
            for layer in
                layers
                    .iter()
                    .chain(&[dir.join("up"), dir.join("work"), dir.join("merged")])
            {
                std::fs::create_dir(layer).expect("dir");
            }
            std::fs::write(odd.join("file"), "top").expect("write");
            std::fs::write(layers[60].join("file"), "bottom").expect("write");
            std::fs::write(layers[60].join("low"), "").expect("write");
            let merged = dir.join("merged");
            let upper_work = (dir.join("up"), dir.join("work"));
            mount_overlay(&layers, Some((&upper_work.0, &upper_work.1)), &merged, &[])
                .expect("overlay");
            assert_eq!(
                std::fs::read_to_string(merged.join("file")).expect("read"),
                "top"
            );
            std::fs::write(merged.join("new"), "").expect("write");
            assert!(upper_work.0.join("new").exists() && merged.join("low").exists());
        });
    }
}
