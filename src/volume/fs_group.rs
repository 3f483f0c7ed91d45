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
    errno::Errno,
    fcntl::{AtFlags, OFlag},
    unistd::{Gid, fchownat},
};

use super::{StepContext, VolumeErrorCause, beneath};
use crate::sys::dirents::Dirents;

/// Policy for later changes of a volume's ownership. Source: core/v1 `PodFSGroupChangePolicy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FsGroupChangePolicy {
    /// The ownership is changed at each set-up.
    #[default]
    Always,
    /// The ownership is changed only if the volume's root does not have the right group and bits already.
    OnRootMismatch,
}

/// Directory levels that are walked, each with one descriptor; no volume of ours is deeper before its containers start.
const DEPTH_LIMIT: u32 = 256;
/// Most names that are walked in one volume. A container that makes names as fast as they are walked has an end here.
const NAMES_LIMIT: u64 = 100_000_000;

/// Gives everything in the volume at `root` to `group`.
///
/// - Source: kubelet `pkg/volume/volume_linux.go`. Children come before their directory, so that an interrupted walk leaves
///   a root that [`FsGroupChangePolicy::OnRootMismatch`] still finds wrong.
pub(super) fn apply_fs_group(
    root: &Path,
    group: u32,
    policy: FsGroupChangePolicy,
    read_only: bool,
) -> Result<(), VolumeErrorCause> {
    let fd = beneath::open_dir(root).at_step("failed to open the volume for its fsGroup")?;
    let status = beneath::fd_metadata(&fd).at_step("failed to read the volume's owner")?;
    if policy == FsGroupChangePolicy::OnRootMismatch
        && status.gid() == group
        && wanted_mode_bits(&status, read_only) == status.mode() & 0o7777
    {
        return Ok(());
    }
    let mut walk = OwnershipWalk {
        group: Gid::from_raw(group),
        read_only,
        names_left: NAMES_LIMIT,
    };
    walk.walk_entry(fd, 0).at_step("failed to apply fsGroup")
}

/// Keeps a page and a name for each level, however many names a directory has: a pod filled it.
struct OwnershipWalk {
    group: Gid,
    read_only: bool,
    names_left: u64,
}

impl OwnershipWalk {
    fn walk_entry(&mut self, fd: OwnedFd, depth: u32) -> io::Result<()> {
        let status = beneath::fd_metadata(&fd)?;
        if !status.is_dir() {
            return self.give_to_group(&fd, &status);
        }
        if depth == DEPTH_LIMIT {
            return Err(invalid_input_error(
                "the volume's directories are nested too deep",
            ));
        }
        // To be read it is opened once more; from here on that descriptor alone is kept.
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
        let mut names = Dirents::new(beneath::open_child(&fd, Path::new("."), flags)?);
        drop(fd);
        // No name is deleted on the way: the walk comes to an end.
        while let Some(name) = names.next_name()?.map(Path::new).map(Path::to_owned) {
            self.names_left = (self.names_left.checked_sub(1))
                .ok_or_else(|| invalid_input_error("the volume has too many names"))?;
            match beneath::open_child(names.dir(), &name, OFlag::O_PATH) {
                Ok(child) => self.walk_entry(child, depth + 1)?,
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                // Another mount on a directory of the node's own disk is not the volume's, and is not shown.
                Err(e) if e.raw_os_error() == Some(Errno::EXDEV as i32) => {}
                Err(e) => return Err(e),
            }
        }
        self.give_to_group(names.dir(), &status)
    }

    /// Gives an open file to the group. `status` is from before: chown may clear setgid.
    fn give_to_group(&self, fd: &OwnedFd, status: &fs::Metadata) -> io::Result<()> {
        let flags = AtFlags::AT_EMPTY_PATH;
        fchownat(fd.as_fd(), "", None, Some(self.group), flags)?;
        if status.is_symlink() {
            return Ok(());
        }
        let mode = Permissions::from_mode(wanted_mode_bits(status, self.read_only));
        fs::set_permissions(beneath::fd_path(fd), mode)
    }
}

fn invalid_input_error(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

fn wanted_mode_bits(status: &fs::Metadata, read_only: bool) -> u32 {
    let mut bits = if read_only { 0o440 } else { 0o660 };
    if status.is_dir() {
        bits |= 0o2110;
    }
    status.mode() & 0o7777 | bits
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::{
        super::testing::{Scratch, can_mount},
        *,
    };

    #[test]
    fn what_is_mounted_inside_is_passed_over() {
        // VOL-21
        if !can_mount("what_is_mounted_inside_is_passed_over") {
            return;
        }
        let scratch = Scratch::new();
        let at = |name: &str| scratch.path().join(name);
        for dir in ["a", "disk", "z"] {
            fs::create_dir(at(dir)).unwrap();
        }
        super::super::mounts::mount_tmpfs(&at("disk"), Some(4096)).unwrap();
        fs::write(at("disk/file"), "").unwrap();
        apply_fs_group(scratch.path(), 4321, FsGroupChangePolicy::Always, false).unwrap();
        let group = |name: &str| fs::metadata(at(name)).unwrap().gid();
        assert_eq!(["", "a", "z"].map(group), [4321; 3]);
        assert_eq!(["disk", "disk/file"].map(group), [0; 2], "another's");
    }

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
            apply_fs_group(scratch.path(), 4321, FsGroupChangePolicy::Always, read_only).unwrap();
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
            apply_fs_group(
                scratch.path(),
                4321,
                FsGroupChangePolicy::OnRootMismatch,
                read_only,
            )
            .unwrap();
            assert_eq!(read("dir/file").2, 0o600, "{name}");
            fs::set_permissions(scratch.path(), Permissions::from_mode(0o700)).unwrap();
            apply_fs_group(
                scratch.path(),
                4321,
                FsGroupChangePolicy::OnRootMismatch,
                read_only,
            )
            .unwrap();
            assert_eq!(read("dir/file").2, file, "{name}");
        }
    }
}
