//! Opening paths that others control: the kernel holds the walk below a directory. Source: openat2(2), Linux 5.6.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::sys::stat::{Mode, mkdirat};

use crate::api::cri;

/// Tries of a walk that loses a race: a container that renames without end must not hold a lane.
const RACE_TRIES: u32 = 1000;

/// Opens a directory as the start of a walk (`O_PATH`: usable for `*at` calls and mounts only). Follows links: the path
/// must be a trusted one.
pub fn open_dir(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    Ok(open(path, flags, Mode::empty())?)
}

/// Reads the metadata of a device node from the opened node (DEV-41): its name may lead to another device by now.
///
/// # Errors
/// The node is another device now, or cannot be opened.
pub fn read_device_metadata(wanted: &cri::ContainerDeviceNode) -> io::Result<Metadata> {
    let flags = OFlag::O_PATH | OFlag::O_CLOEXEC;
    let node = open(&*wanted.host_path, flags, Mode::empty())?;
    let metadata = File::from(node).metadata()?;
    let (kind, number) = (metadata.file_type(), metadata.rdev());
    let is_kind = match wanted.block {
        true => kind.is_block_device(),
        false => kind.is_char_device(),
    };
    if !is_kind || (libc::major(number), libc::minor(number)) != (wanted.major, wanted.minor) {
        return Err(io::Error::other("is another device now"));
    }
    Ok(metadata)
}

/// Opens `path` below `dir`. Symbolic links are followed as long as they stay below; absolute ones and `..` that leave
/// it fail with `EXDEV`. `flags` get `O_CLOEXEC`; `mode` counts only with `O_CREAT`.
pub fn open_beneath(dir: impl AsFd, path: &Path, flags: OFlag, mode: u32) -> io::Result<File> {
    open_resolved(dir, path, flags, mode, ResolveFlag::RESOLVE_BENEATH)
}

/// Opens the regular file `path` below `dir` for reading, as [`open_beneath`]. Anything else is not opened: to open a
/// device may be enough to change its state, and a FIFO waits for a writer.
pub fn open_file_beneath(dir: impl AsFd, path: &Path) -> io::Result<File> {
    reopen_regular(&open_beneath(dir, path, OFlag::O_PATH, 0)?)
}

/// As [`open_beneath`], but any symbolic link on the way, the last component included, fails with `ELOOP`.
pub fn open_without_symlinks(
    dir: impl AsFd,
    path: &Path,
    flags: OFlag,
    mode: u32,
) -> io::Result<File> {
    let resolve_flags = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS;
    open_resolved(dir, path, flags, mode, resolve_flags)
}

/// Opens `path` as a process with the root directory `root` would: absolute links and `..` stay inside.
pub fn open_in_root(root: impl AsFd, path: &Path, flags: OFlag, mode: u32) -> io::Result<File> {
    open_resolved(root, path, flags, mode, ResolveFlag::RESOLVE_IN_ROOT)
}

/// Opens the regular file `path` for reading, as a process with the root directory `root` would. What is opened first
/// cannot do anything: opening a device, or a FIFO without a writer, may have an effect or wait.
pub fn open_file_in_root(root: &Path, path: &Path) -> io::Result<File> {
    reopen_regular(&open_in_root(open_dir(root)?, path, OFlag::O_PATH, 0)?)
}

/// Opens a file for reading that was only found so far, if it is a regular one.
///
/// # Errors
/// The file is not regular, or cannot be opened.
pub fn reopen_regular(found: &File) -> io::Result<File> {
    if !found.metadata()?.is_file() {
        let why = "not a regular file";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    let mut options = File::options();
    options
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
    options.open(format!("/proc/self/fd/{}", found.as_raw_fd()))
}

/// Opens entry `name` of `dir` itself: a symbolic link fails with `ELOOP` (with `O_PATH` the link is opened), a mount
/// point, bind mounts included, with `EXDEV`.
pub fn open_entry(dir: impl AsFd, name: &Path, flags: OFlag) -> io::Result<File> {
    let resolve_flags = ResolveFlag::RESOLVE_BENEATH
        | ResolveFlag::RESOLVE_NO_SYMLINKS
        | ResolveFlag::RESOLVE_NO_XDEV;
    open_resolved(dir, name, flags | OFlag::O_NOFOLLOW, 0, resolve_flags)
}

/// Directories between the log directory of the node and a container's log: the pod's and the container's.
const LOG_DIRS: usize = 2;

/// Opens the directory that holds the container log `log`: `<logs>/<pod>/<container>/<n>.log`.
///
/// `<logs>` is the operator's and may be a link. Below it a pod may have made entries (hostPath on it): links are
/// refused.
pub fn open_log_dir(log: &Path) -> io::Result<OwnedFd> {
    let (logs, below) = split_log(log)?;
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY;
    Ok(open_without_symlinks(open_dir(logs)?, below, flags, 0)?.into())
}

/// Makes the directory that holds the container log `log`, and the pod's; links are refused as in [`open_log_dir`].
pub fn make_log_dir(log: &Path) -> io::Result<()> {
    let (logs, below) = split_log(log)?;
    let mut at = open_dir(logs)?;
    for part in below {
        match mkdirat(&at, part, Mode::from_bits_truncate(0o755)) {
            Ok(()) | Err(nix::Error::EEXIST) => {}
            Err(e) => return Err(e.into()),
        }
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY;
        at = open_without_symlinks(&at, Path::new(part), flags, 0)?.into();
    }
    Ok(())
}

/// Opens the container log `log` for reading: no link on the way below the log directory, and a regular file.
pub fn open_log(log: &Path) -> io::Result<File> {
    let name = Path::new(log.file_name().unwrap_or_default());
    // A FIFO without writer would block the open.
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let file = open_without_symlinks(open_log_dir(log)?, name, flags, 0)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "not a regular file",
        ));
    }
    Ok(file)
}

/// Cuts the path of a log into the log directory and the path below it, without the file's name.
fn split_log(log: &Path) -> io::Result<(&Path, &Path)> {
    let logs = log.ancestors().nth(LOG_DIRS + 1);
    let below = logs.and_then(|logs| log.parent()?.strip_prefix(logs).ok());
    logs.zip(below).ok_or_else(|| {
        let why = "is not a container's log: <logs>/<pod>/<container>/<n>.log";
        io::Error::new(io::ErrorKind::InvalidInput, why)
    })
}

fn open_resolved(
    dir: impl AsFd,
    path: &Path,
    flags: OFlag,
    mode: u32,
    resolve: ResolveFlag,
) -> io::Result<File> {
    let mut how = OpenHow::new()
        .flags(flags | OFlag::O_CLOEXEC)
        .resolve(resolve | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    // The kernel refuses a mode without O_CREAT.
    if flags.intersects(OFlag::O_CREAT | OFlag::O_TMPFILE) {
        how = how.mode(Mode::from_bits_truncate(mode));
    }
    for _ in 0..RACE_TRIES {
        match openat2(dir.as_fd(), path, how) {
            Ok(fd) => return Ok(fd.into()),
            // A rename raced with the walk (EAGAIN), or a signal came.
            Err(nix::Error::EAGAIN | nix::Error::EINTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Err(io::ErrorKind::WouldBlock.into())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_regular_files_are_opened_in_a_root() {
        // NLQ-05
        let top = crate::testing::unused_path("in-root");
        let root = top.join("log");
        std::fs::create_dir_all(root.join("sub")).expect("dir");
        std::fs::write(top.join("secret"), "secret").expect("file");
        std::fs::write(root.join("sub/a.log"), "text").expect("file");
        let fifo = Mode::from_bits_truncate(0o600);
        nix::unistd::mkfifo(&root.join("fifo"), fifo).expect("fifo");
        for (target, link) in [
            ("../secret", "out"),
            ("/secret", "absolute"),
            ("sub/a.log", "in"),
            ("/sub/a.log", "as-in-root"),
            ("/proc/self/fd/0", "magic"),
            ("loop", "loop"),
        ] {
            symlink(target, root.join(link)).expect("link");
        }
        symlink("/proc/self/root", root.join("proc")).expect("link");
        for (path, is_there) in [
            ("sub/a.log", true),
            ("/sub/a.log", true),
            ("in", true),
            ("as-in-root", true),
            ("../log/sub/a.log", false),
            ("../secret", false),
            ("../../../sub/a.log", true),
            ("out", false),
            ("absolute", false),
            ("magic", false),
            ("proc/etc/passwd", false),
            ("loop", false),
            ("sub", false),
            ("fifo", false),
            ("none", false),
            ("", false),
        ] {
            let opened = open_file_in_root(&root, Path::new(path));
            assert_eq!(opened.is_ok(), is_there, "{path}: {opened:?}");
            let text = opened.map(|file| io::read_to_string(file).expect("text"));
            assert_eq!(text.unwrap_or_else(|_| "text".into()), "text", "{path}");
        }
        std::fs::remove_dir_all(&top).expect("remove");
    }

    #[test]
    fn log_paths_are_walked_without_links() {
        let top = crate::testing::unused_path("logs");
        std::fs::create_dir_all(top.join("disk")).expect("dir");
        std::fs::create_dir_all(top.join("victim/main")).expect("dir");
        std::fs::write(top.join("victim/main/0.log"), "secret").expect("file");
        // The operator's own link counts.
        symlink("disk", top.join("logs")).expect("link");
        let logs = top.join("logs");
        let good = logs.join("pod/main/0.log");
        make_log_dir(&good).expect("made");
        make_log_dir(&good).expect("made already");
        std::fs::write(&good, "text").expect("file");
        open_log(&good).expect("a log");
        symlink("../victim", logs.join("by-pod")).expect("link");
        symlink("../../victim/main", logs.join("pod/by-container")).expect("link");
        symlink("../../../victim/main/0.log", logs.join("pod/main/1.log")).expect("link");
        for path in ["by-pod/main/0.log", "pod/by-container/0.log"] {
            let path = logs.join(path);
            for refused in [
                open_log_dir(&path).map(drop),
                make_log_dir(&path),
                open_log(&path).map(drop),
            ] {
                let errno = refused.expect_err("a link").raw_os_error();
                assert!(
                    matches!(errno, Some(libc::ELOOP | libc::ENOTDIR)),
                    "{errno:?}"
                );
            }
        }
        assert!(open_log(&logs.join("pod/main/1.log")).is_err());
        assert!(open_log(&logs.join("pod/main")).is_err(), "a directory");
        nix::unistd::mkfifo(
            &logs.join("pod/main/2.log"),
            Mode::from_bits_truncate(0o600),
        )
        .expect("fifo");
        assert!(open_log(&logs.join("pod/main/2.log")).is_err(), "a FIFO");
        assert!(open_log_dir(Path::new("0.log")).is_err());
        std::fs::remove_dir_all(&top).expect("remove");
    }

    #[test]
    fn walks_stay_inside() {
        let top = crate::testing::unused_path("open");
        let root = top.join("root");
        std::fs::create_dir_all(root.join("etc")).expect("dir");
        std::fs::write(top.join("secret"), "").expect("file");
        std::fs::write(root.join("etc/passwd"), "").expect("file");
        symlink("/etc", root.join("abs")).expect("link");
        symlink("etc", root.join("rel")).expect("link");
        symlink("../secret", root.join("up")).expect("link");
        let from = open_dir(&root).expect("root");
        let flags = OFlag::O_RDONLY;
        for (path, below, plain, chrooted) in [
            ("etc/passwd", true, true, true),
            ("rel/passwd", true, false, true),
            ("abs/passwd", false, false, true),
            ("up", false, false, false),
            ("../secret", false, false, false),
            ("/etc/passwd", false, false, true),
        ] {
            let path = Path::new(path);
            assert_eq!(
                open_beneath(&from, path, flags, 0).is_ok(),
                below,
                "{path:?}"
            );
            assert_eq!(
                open_without_symlinks(&from, path, flags, 0).is_ok(),
                plain,
                "{path:?}"
            );
            assert_eq!(
                open_in_root(&from, path, flags, 0).is_ok(),
                chrooted,
                "{path:?}"
            );
        }
        let made = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_WRONLY;
        open_beneath(&from, Path::new("new"), made, 0o640).expect("create");
        std::fs::remove_dir_all(&top).expect("remove");
    }
}
