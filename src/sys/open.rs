//! Opening paths that others control: the kernel holds the walk below a directory. Source: openat2(2), Linux 5.6.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::sys::stat::Mode;

/// How often a walk is repeated that lost a race: a container that renames without end must not hold a lane.
const RACE_TRIES: u32 = 1000;

/// Opens a directory as the start of a walk (`O_PATH`: usable for `*at` calls and mounts only). Follows links: the path
/// must be a trusted one.
pub fn dir(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    Ok(open(path, flags, Mode::empty())?)
}

/// Opens `path` below `dir`. Symbolic links are followed as long as they stay below; absolute ones and `..` that leave
/// it fail with `EXDEV`. `flags` get `O_CLOEXEC`; `mode` counts only with `O_CREAT`.
pub fn beneath(dir: impl AsFd, path: &Path, flags: OFlag, mode: u32) -> io::Result<File> {
    resolve(dir, path, flags, mode, ResolveFlag::RESOLVE_BENEATH)
}

/// As [`beneath`], but any symbolic link on the way, the last component included, fails with `ELOOP`.
pub fn no_symlinks(dir: impl AsFd, path: &Path, flags: OFlag, mode: u32) -> io::Result<File> {
    let resolve_flags = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS;
    resolve(dir, path, flags, mode, resolve_flags)
}

/// Opens `path` as a process with the root directory `root` would: absolute links and `..` stay inside.
pub fn in_root(root: impl AsFd, path: &Path, flags: OFlag, mode: u32) -> io::Result<File> {
    resolve(root, path, flags, mode, ResolveFlag::RESOLVE_IN_ROOT)
}

/// Opens entry `name` of `dir` itself: a symbolic link fails with `ELOOP` (with `O_PATH` the link is opened), a mount
/// point, bind mounts included, with `EXDEV`.
pub fn entry(dir: impl AsFd, name: &Path, flags: OFlag) -> io::Result<File> {
    let resolve_flags = ResolveFlag::RESOLVE_BENEATH
        | ResolveFlag::RESOLVE_NO_SYMLINKS
        | ResolveFlag::RESOLVE_NO_XDEV;
    resolve(dir, name, flags | OFlag::O_NOFOLLOW, 0, resolve_flags)
}

fn resolve(
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
    fn walks_stay_inside() {
        let top = std::env::temp_dir().join(format!("picolet-open-{}", std::process::id()));
        let root = top.join("root");
        std::fs::create_dir_all(root.join("etc")).expect("dir");
        std::fs::write(top.join("secret"), "").expect("file");
        std::fs::write(root.join("etc/passwd"), "").expect("file");
        symlink("/etc", root.join("abs")).expect("link");
        symlink("etc", root.join("rel")).expect("link");
        symlink("../secret", root.join("up")).expect("link");
        let from = dir(&root).expect("root");
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
            assert_eq!(beneath(&from, path, flags, 0).is_ok(), below, "{path:?}");
            assert_eq!(
                no_symlinks(&from, path, flags, 0).is_ok(),
                plain,
                "{path:?}"
            );
            assert_eq!(in_root(&from, path, flags, 0).is_ok(), chrooted, "{path:?}");
        }
        let made = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_WRONLY;
        beneath(&from, Path::new("new"), made, 0o640).expect("create");
        std::fs::remove_dir_all(&top).expect("remove");
    }
}
