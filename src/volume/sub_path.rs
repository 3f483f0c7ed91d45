//! subPath: a part of a volume, pinned by a bind mount so that no rename in the volume can redirect it.
//!
//! The container (or another one that shares the volume) may change what a name means at any moment. So the target is opened
//! once, beneath the volume's root, and from then on only the descriptor is used (CVE-2017-1002101, CVE-2021-25741).

use std::{
    fs::{self, File, Permissions},
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::{MetadataExt, PermissionsExt},
    },
    path::{Component, Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::OFlag,
    sys::stat::{Mode, mkdirat},
};

use super::{
    MountedVolume, SUBPATHS, VolumeError, VolumeErrorCause, Volumes,
    beneath::{self, fd_metadata, fd_path, open_beneath, open_child},
    is_component, mkdir_all, mounts, plugin,
};
use crate::{
    api::PodUid,
    sys::{mount::bind_mount_opened, open},
};

/// A `volumeMounts` entry with a subPath, its variables expanded.
#[derive(Clone, Copy, Debug)]
pub struct SubPath<'a> {
    /// The volume's name in the pod.
    pub volume: &'a str,
    /// The container that mounts it.
    pub container: &'a str,
    /// Place of the entry in the container's list.
    pub mount_index: usize,
    /// Relative path in the volume.
    pub path: &'a str,
}

impl Volumes {
    /// Pins a subPath of `volume` and returns the path to give to the runtime. A missing directory is made.
    ///
    /// - Shape: a pin that is still right is used again. If the volume is not the pod's own
    ///   ([`Self::owns_volume_data`]) this may never return: the server of a share may be gone.
    /// - Errors: [`VolumeError::SubPath`]; its text may be shown to the pod's owner.
    /// - Source: kubelet `pkg/volume/util/subpath/subpath_linux.go`.
    pub fn pin_sub_path(
        &self,
        uid: &PodUid,
        volume: &MountedVolume,
        sub: &SubPath<'_>,
    ) -> Result<PathBuf, VolumeError> {
        self.pin_target(uid, volume, sub)
            .map_err(|cause| VolumeError::SubPath {
                volume: sub.volume.into(),
                container: sub.container.into(),
                cause,
            })
    }

    /// Returns true if the data of `volume` was made for the pod, in the pod's directory. Other data may be a path of
    /// the host or a share, which does not always answer.
    #[must_use]
    pub fn owns_volume_data(&self, uid: &PodUid, volume: &MountedVolume) -> bool {
        let below = volume.host_path.strip_prefix(self.volume_dir(uid, "", ""));
        let plugin = below.ok().and_then(|below| below.iter().next());
        plugin.is_some_and(plugin::owns_data)
    }

    fn pin_target(
        &self,
        uid: &PodUid,
        volume: &MountedVolume,
        sub: &SubPath<'_>,
    ) -> Result<PathBuf, VolumeErrorCause> {
        for name in [uid.as_str(), sub.volume, sub.container] {
            if !is_component(name) {
                return Err(VolumeErrorCause::Refused(format!(
                    "{name:?} is not a plain file name"
                )));
            }
        }
        let path = clean_sub_path(sub.path)?;
        let root = beneath::open_dir(&volume.host_path).map_err(explain_without_path)?;
        let target = match open_or_make(&root, &path) {
            // The links of a path of the host may be written as the host reads them.
            Err(e) if is_way_out(&e) && !self.owns_volume_data(uid, volume) => {
                open_resolved(&root, &volume.host_path, &path)
            }
            target => target,
        };
        let target = target.map_err(explain_without_path)?;
        let point = self
            .pod_dir(uid)
            .join(SUBPATHS)
            .join(sub.volume)
            .join(sub.container)
            .join(sub.mount_index.to_string());
        self.bind_at_point(&target, &point)
            .map_err(explain_without_path)?;
        Ok(point)
    }

    fn bind_at_point(&self, target: &OwnedFd, point: &Path) -> io::Result<()> {
        let status = fd_metadata(target)?;
        if beneath::is_mount_point(point)? {
            let there = fs::symlink_metadata(point)?;
            if (there.dev(), there.ino()) == (status.dev(), status.ino()) {
                return Ok(());
            }
            mounts::unmount_all(point)?;
        }
        if let Some(parent) = point.parent() {
            mkdir_all(parent, 0o750)?;
        }
        // The mount point of an earlier instance may be of the other kind.
        match fs::symlink_metadata(point) {
            Ok(there) if there.is_dir() && !status.is_dir() => fs::remove_dir(point)?,
            Ok(there) if !there.is_dir() && status.is_dir() => fs::remove_file(point)?,
            _ => {}
        }
        if status.is_dir() {
            mkdir_all(point, 0o750)?;
        } else {
            File::options()
                .append(true)
                .create(true)
                .open(point)?
                .set_permissions(Permissions::from_mode(0o640))?;
        }
        bind_mount_opened(target.as_fd(), point, false)
    }
}

fn clean_sub_path(text: &str) -> Result<PathBuf, VolumeErrorCause> {
    let mut clean = PathBuf::new();
    for component in Path::new(text).components() {
        match component {
            Component::Normal(name) => clean.push(name),
            Component::CurDir => {}
            Component::ParentDir => {
                return Err(VolumeErrorCause::Refused(format!(
                    "subPath {text:?} must not contain '..'"
                )));
            }
            Component::RootDir | Component::Prefix(_) => {
                return Err(VolumeErrorCause::Refused(format!(
                    "subPath {text:?} must not be an absolute path"
                )));
            }
        }
    }
    if clean.as_os_str().is_empty() {
        clean.push(".");
    }
    Ok(clean)
}

/// An errno without any path: the volume's owner must not learn the host's directories.
fn explain_without_path(error: io::Error) -> VolumeErrorCause {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EXDEV | Errno::ELOOP) => {
            VolumeErrorCause::Refused("subPath leads out of the volume".into())
        }
        Some(Errno::ENOTDIR) => VolumeErrorCause::Refused(
            "subPath goes through something that is not a directory".into(),
        ),
        _ => VolumeErrorCause::Io("subPath could not be opened", error),
    }
}

fn is_way_out(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::EXDEV as i32)
}

/// Opens `path` in the volume at `root_path` by links that are absolute, or leave the volume and come back. It must
/// exist.
///
/// - Errors: EXDEV, whatever there is outside: the maker of a link must not learn it.
/// - Source: kubelet `pkg/volume/util/subpath/subpath_linux.go`, `safeMakeDir` and `doBindSubPath`.
fn open_resolved(root: &OwnedFd, root_path: &Path, path: &Path) -> io::Result<OwnedFd> {
    let resolve = || {
        let base = fs::canonicalize(root_path).ok()?;
        let real = fs::canonicalize(root_path.join(path)).ok()?;
        Some(real.strip_prefix(base).ok()?.to_owned())
    };
    let mut rest = resolve().ok_or(Errno::EXDEV)?;
    if rest.as_os_str().is_empty() {
        rest.push(".");
    }
    // No link is followed any more: one that was put there since leads nowhere.
    open::open_without_symlinks(root, &rest, OFlag::O_PATH, 0).map(OwnedFd::from)
}

/// Opens `path` below `root`, making the directories that are missing.
fn open_or_make(root: &OwnedFd, path: &Path) -> io::Result<OwnedFd> {
    match open_beneath(root, path, OFlag::O_PATH) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        opened => return opened,
    }
    let bits = fd_metadata(root)?.mode() & 0o7777;
    let mut done = PathBuf::from(".");
    let mut at = open_beneath(root, &done, OFlag::O_PATH | OFlag::O_DIRECTORY)?;
    for component in path.components() {
        done.push(component);
        at = match open_beneath(root, &done, OFlag::O_PATH | OFlag::O_DIRECTORY) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                make_directory(&at, Path::new(&component), bits)?
            }
            opened => opened?,
        };
    }
    Ok(at)
}

/// Makes directory `name` with the bits of the volume's root, the sticky one among them. A directory that was made
/// meanwhile is taken, a symbolic link is not.
fn make_directory(parent: &OwnedFd, name: &Path, bits: u32) -> io::Result<OwnedFd> {
    match mkdirat(parent, name, Mode::from_bits_truncate(bits)) {
        Ok(()) => {
            let made = open_child(parent, name, OFlag::O_PATH | OFlag::O_DIRECTORY)?;
            // The umask took bits away; setgid came from the parent and stays, for fsGroup lives on it.
            let setgid = fd_metadata(&made)?.mode() & 0o2000;
            fs::set_permissions(fd_path(&made), Permissions::from_mode(bits | setgid))?;
            Ok(made)
        }
        Err(Errno::EEXIST) => open_child(parent, name, OFlag::O_PATH | OFlag::O_DIRECTORY),
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        os::unix::fs::symlink,
        sync::atomic::{AtomicBool, Ordering},
        thread,
    };

    use nix::fcntl::AT_FDCWD;

    use crate::sys::file::tests::exchange_names;

    use super::{
        super::testing::{Scratch, can_mount, uid},
        *,
    };

    fn volume_in(scratch: &Scratch) -> MountedVolume {
        let host_path = scratch.path().join("volume");
        fs::create_dir(&host_path).unwrap();
        fs::set_permissions(&host_path, Permissions::from_mode(0o2771)).unwrap();
        MountedVolume {
            host_path,
            read_only: false,
            size_limit: None,
        }
    }

    fn sub(path: &str) -> SubPath<'_> {
        SubPath {
            volume: "v",
            container: "main",
            mount_index: 0,
            path,
        }
    }

    fn inode(path: &Path) -> (u64, u64) {
        let status = fs::metadata(path).unwrap();
        (status.dev(), status.ino())
    }

    #[test]
    fn targets() {
        // VOL-24 VOL-25 CFG-35 CFG-38
        if !can_mount("targets") {
            return;
        }
        let scratch = Scratch::new();
        let volume = volume_in(&scratch);
        let at = |name: &str| volume.host_path.join(name);
        fs::create_dir_all(at("dir/inner")).unwrap();
        fs::write(at("dir/file"), "x").unwrap();
        symlink("dir/inner", at("within")).unwrap();
        symlink("../dir", at("dir/inner/back")).unwrap();
        let volumes = scratch.volumes();
        for (path, is) in [
            ("dir", "dir"),
            ("./dir//inner", "dir/inner"),
            (".", "."),
            ("dir/file", "dir/file"),
            ("within", "dir/inner"),
            ("new", "new"),
            ("within/made/deep", "dir/inner/made/deep"),
        ] {
            let point = volumes.pin_sub_path(&uid(), &volume, &sub(path)).unwrap();
            assert_eq!(
                point,
                volumes.pod_dir(&uid()).join("volume-subpaths/v/main/0"),
                "{path}"
            );
            assert_eq!(inode(&point), inode(&at(is)), "{path}");
            let again = volumes.pin_sub_path(&uid(), &volume, &sub(path)).unwrap();
            assert_eq!(
                mounts::mounts_below(&again).unwrap().len(),
                1,
                "{path}: used again"
            );
        }
        let mode = |name: &str| fs::metadata(at(name)).unwrap().mode() & 0o7777;
        assert_eq!(mode("new"), 0o2771);
        assert_eq!(
            mode("dir/inner/made"),
            0o2771,
            "setgid comes down from the root"
        );
    }

    #[test]
    fn links_of_the_host_that_stay_in_the_volume() {
        // VOL-24
        if !can_mount("links_of_the_host_that_stay_in_the_volume") {
            return;
        }
        let scratch = Scratch::new();
        let volume = volume_in(&scratch);
        let at = |name: &str| volume.host_path.join(name);
        fs::create_dir_all(at("releases/5/deep")).unwrap();
        fs::write(at("releases/file"), "").unwrap();
        symlink(at("releases/5"), at("current")).unwrap();
        symlink("../volume/releases", at("back")).unwrap();
        symlink(at("releases/file"), at("file")).unwrap();
        symlink(&volume.host_path, at("self")).unwrap();
        symlink(scratch.path(), at("above")).unwrap();
        // The volume may be named by a link itself.
        let named = MountedVolume {
            host_path: scratch.path().join("named"),
            ..volume.clone()
        };
        symlink("volume", &named.host_path).unwrap();
        let volumes = scratch.volumes();
        for volume in [&volume, &named] {
            for (path, is) in [
                ("current", "releases/5"),
                ("current/deep", "releases/5/deep"),
                ("back/5", "releases/5"),
                ("file", "releases/file"),
                ("self", "."),
                ("above/volume/releases", "releases"),
            ] {
                let point = volumes
                    .pin_sub_path(&uid(), volume, &sub(path))
                    .expect(path);
                assert_eq!(inode(&point), inode(&at(is)), "{path}");
            }
            for path in ["above", "current/missing"] {
                let error = volumes
                    .pin_sub_path(&uid(), volume, &sub(path))
                    .unwrap_err();
                let text = error.to_string();
                assert!(text.ends_with("subPath leads out of the volume"), "{text}");
            }
        }
    }

    #[test]
    fn links_in_a_volume_of_the_pod_mean_nothing_on_the_host() {
        // VOL-24
        let scratch = Scratch::new();
        let volumes = scratch.volumes();
        let host_path = volumes.volume_dir(&uid(), plugin::EMPTY_DIR, "v");
        fs::create_dir_all(host_path.join("dir")).unwrap();
        symlink(host_path.join("dir"), host_path.join("link")).unwrap();
        let mut volume = MountedVolume {
            host_path,
            read_only: false,
            size_limit: None,
        };
        assert!(volumes.owns_volume_data(&uid(), &volume));
        let error = volumes
            .pin_sub_path(&uid(), &volume, &sub("link"))
            .unwrap_err();
        let text = error.to_string();
        assert!(text.ends_with("subPath leads out of the volume"), "{text}");
        for path in [
            volumes.nfs_dir(&uid(), "v"),
            volumes.volume_dir(&uid(), plugin::LOCAL, "v"),
            volumes.volume_dir(&"another".into(), plugin::EMPTY_DIR, "v"),
            volumes.pod_dir(&uid()),
            "/mnt".into(),
        ] {
            volume.host_path = path;
            assert!(!volumes.owns_volume_data(&uid(), &volume), "{volume:?}");
        }
    }

    #[test]
    fn a_missing_directory_has_all_bits_of_the_volume() {
        // VOL-24
        // An emptyDir in memory is 01777, and fsGroup makes that 03777: conformance wants `dgtrwxrwxrwx` below it too.
        let scratch = Scratch::new();
        for mode in [0o3777, 0o1777, 0o2770, 0o755] {
            let volume = scratch.path().join(format!("{mode:o}"));
            fs::create_dir(&volume).unwrap();
            fs::set_permissions(&volume, Permissions::from_mode(mode)).unwrap();
            let root = beneath::open_dir(&volume).unwrap();
            open_or_make(&root, Path::new("made/deep")).unwrap();
            for made in ["made", "made/deep"] {
                let got = fs::metadata(volume.join(made)).unwrap().mode() & 0o7777;
                assert_eq!(got, mode, "{made} in a volume with {mode:o}");
            }
        }
    }

    #[test]
    fn ways_out_are_refused() {
        // VOL-24 CFG-35
        // CVE-2017-1002101: a symbolic link in the volume names a directory of the host.
        let scratch = Scratch::new();
        let volume = volume_in(&scratch);
        let at = |name: &str| volume.host_path.join(name);
        let outside = scratch.path().join("outside");
        fs::create_dir(&outside).unwrap();
        symlink(&outside, at("absolute")).unwrap();
        symlink("../outside", at("relative")).unwrap();
        symlink("../outside/missing", at("dangling")).unwrap();
        symlink("missing", at("dangling-inside")).unwrap();
        symlink("/proc/self/root", at("magic")).unwrap();
        symlink("loop", at("loop")).unwrap();
        fs::write(at("file"), "").unwrap();
        let volumes = scratch.volumes();
        for (path, why) in [
            ("absolute", "subPath leads out of the volume"),
            ("absolute/new", "subPath leads out of the volume"),
            ("relative", "subPath leads out of the volume"),
            ("relative/new", "subPath leads out of the volume"),
            ("dangling", "subPath leads out of the volume"),
            (
                "dangling-inside/new",
                "subPath goes through something that is not a directory",
            ),
            ("magic/etc", "subPath leads out of the volume"),
            ("loop/x", "subPath leads out of the volume"),
            (
                "file/x",
                "subPath goes through something that is not a directory",
            ),
            ("a/../b", "subPath \"a/../b\" must not contain '..'"),
            ("/etc", "subPath \"/etc\" must not be an absolute path"),
        ] {
            let error = volumes
                .pin_sub_path(&uid(), &volume, &sub(path))
                .expect_err(path);
            let text = error.to_string();
            assert_eq!(
                text,
                format!(
                    "failed to prepare subPath for volumeMount \"v\" of container \"main\": {why}"
                ),
                "{path}"
            );
            assert!(!text.contains(scratch.path().to_str().unwrap()), "{text}");
        }
        assert_eq!(
            fs::read_dir(&outside).unwrap().count(),
            0,
            "nothing was made out there"
        );
        assert!(!volumes.pod_dir(&uid()).exists(), "nothing was mounted");
    }

    #[test]
    fn a_swapped_link_cannot_redirect_the_mount() {
        // VOL-25
        // CVE-2021-25741: the directory becomes a link to the host between check and mount.
        if !can_mount("a_swapped_link_cannot_redirect_the_mount") {
            return;
        }
        let scratch = Scratch::new();
        let volume = volume_in(&scratch);
        let outside = scratch.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::create_dir(volume.host_path.join("sub")).unwrap();
        symlink(&outside, volume.host_path.join("link")).unwrap();
        let (inside, outside_id) = (inode(&volume.host_path.join("sub")), inode(&outside));
        let volumes = scratch.volumes();
        let done = AtomicBool::new(false);
        let (mut right, mut refused) = (0, 0);
        thread::scope(|scope| {
            scope.spawn(|| {
                let (a, b) = (volume.host_path.join("sub"), volume.host_path.join("link"));
                while !done.load(Ordering::Acquire) {
                    exchange_names(AT_FDCWD, a.as_ref(), AT_FDCWD, b.as_ref()).unwrap();
                }
            });
            for _ in 0..400 {
                match volumes.pin_sub_path(&uid(), &volume, &sub("sub")) {
                    Ok(point) => {
                        assert_eq!(inode(&point), inside);
                        mounts::unmount_point(&point).unwrap();
                        right += 1;
                    }
                    Err(_) => refused += 1,
                }
                // A directory below the swapped name must not be made outside either.
                let _ = open_or_make(
                    &beneath::open_dir(&volume.host_path).unwrap(),
                    Path::new("sub/new"),
                );
            }
            done.store(true, Ordering::Release);
        });
        assert_eq!(right + refused, 400);
        assert_eq!(inode(&outside), outside_id);
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    }
}
