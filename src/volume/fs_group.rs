//! fsGroup: gives a volume to a group. Bits are only added; owners and symbolic links' modes stay.

use std::{
    fs::{self, Permissions},
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::{MetadataExt, PermissionsExt},
    },
    path::Path,
};

use nix::{
    fcntl::{AtFlags, OFlag},
    unistd::{Gid, fchownat},
};

use super::{Cause, Step, beneath, remove};

/// When the ownership of a volume is changed again. Source: core/v1 `PodFSGroupChangePolicy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChangePolicy {
    /// At each set-up.
    #[default]
    Always,
    /// Only if the volume's root does not have the right group and bits already.
    OnRootMismatch,
}

/// Directory levels that are walked; no volume of ours is deeper before its containers start.
const DEPTH_LIMIT: u32 = 256;

/// Gives everything in the volume at `root` to `group`.
///
/// - Source: kubelet `pkg/volume/volume_linux.go`. Children come before their directory, so that an interrupted walk leaves
///   a root that [`ChangePolicy::OnRootMismatch`] still finds wrong.
pub(super) fn apply(
    root: &Path,
    group: u32,
    policy: ChangePolicy,
    read_only: bool,
) -> Result<(), Cause> {
    let fd = beneath::dir(root).step("failed to open the volume for its fsGroup")?;
    let status = beneath::metadata(&fd).step("failed to read the volume's owner")?;
    if policy == ChangePolicy::OnRootMismatch
        && status.gid() == group
        && wanted(&status, read_only) == status.mode() & 0o7777
    {
        return Ok(());
    }
    walk(&fd, group, read_only, 0).step("failed to apply fsGroup")
}

fn walk(fd: &OwnedFd, group: u32, read_only: bool, depth: u32) -> io::Result<()> {
    let status = beneath::metadata(fd)?;
    if status.is_dir() {
        if depth == DEPTH_LIMIT {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the volume's directories are nested too deep",
            ));
        }
        for name in all_names(fd)? {
            match beneath::open_child(fd, Path::new(&name), OFlag::O_PATH) {
                Ok(child) => walk(&child, group, read_only, depth + 1)?,
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Err(e),
            }
        }
    }
    fchownat(
        fd.as_fd(),
        "",
        None,
        Some(Gid::from_raw(group)),
        AtFlags::AT_EMPTY_PATH,
    )?;
    if status.is_symlink() {
        return Ok(());
    }
    // chown may have cleared setgid: what was read before it decides.
    fs::set_permissions(
        beneath::fd_path(fd),
        Permissions::from_mode(wanted(&status, read_only)),
    )
}

fn wanted(status: &fs::Metadata, read_only: bool) -> u32 {
    let mut bits = if read_only { 0o440 } else { 0o660 };
    if status.is_dir() {
        bits |= 0o2110;
    }
    status.mode() & 0o7777 | bits
}

fn all_names(fd: &OwnedFd) -> io::Result<Vec<std::ffi::OsString>> {
    // Nothing is deleted on the way, so reading in batches would not end.
    let opened = beneath::open_child(fd, Path::new("."), OFlag::O_RDONLY | OFlag::O_DIRECTORY)?;
    remove::read_names(opened, usize::MAX)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::{
        super::testing::{Scratch, can_mount},
        *,
    };

    #[test]
    fn bits_and_group() {
        // VOL-21
        if !can_mount("bits_and_group") {
            return;
        }
        for (name, read_only, file, script, dir) in [
            ("writable", false, 0o660, 0o775, 0o2770),
            ("read-only", true, 0o640, 0o755, 0o2750),
        ] {
            let scratch = Scratch::new();
            let at = |name: &str| scratch.path().join(name);
            let chmod = |name: &str, mode| {
                fs::set_permissions(at(name), Permissions::from_mode(mode)).unwrap()
            };
            fs::create_dir(at("dir")).unwrap();
            fs::write(at("dir/file"), "").unwrap();
            fs::write(at("script"), "").unwrap();
            symlink("/etc/passwd", at("link")).unwrap();
            let before = fs::metadata("/etc/passwd").unwrap();
            chmod("dir", 0o700);
            chmod("dir/file", 0o600);
            chmod("script", 0o755);
            apply(scratch.path(), 4321, ChangePolicy::Always, read_only).unwrap();
            let read = |name: &str| {
                let status = fs::symlink_metadata(at(name)).unwrap();
                (status.uid(), status.gid(), status.mode() & 0o7777)
            };
            assert_eq!(read("dir/file"), (0, 4321, file), "{name}");
            assert_eq!(read("script"), (0, 4321, script), "{name}");
            assert_eq!(read("dir"), (0, 4321, dir), "{name}");
            assert_eq!(read("link").1, 4321, "{name}");
            let after = fs::metadata("/etc/passwd").unwrap();
            assert_eq!(
                (before.gid(), before.mode()),
                (after.gid(), after.mode()),
                "{name}: a link's target is another's"
            );

            // The root is right, so nobody looks further; once its bits are wrong everything is walked.
            chmod("dir/file", 0o600);
            apply(
                scratch.path(),
                4321,
                ChangePolicy::OnRootMismatch,
                read_only,
            )
            .unwrap();
            assert_eq!(read("dir/file").2, 0o600, "{name}");
            fs::set_permissions(scratch.path(), Permissions::from_mode(0o700)).unwrap();
            apply(
                scratch.path(),
                4321,
                ChangePolicy::OnRootMismatch,
                read_only,
            )
            .unwrap();
            assert_eq!(read("dir/file").2, file, "{name}");
        }
    }
}
