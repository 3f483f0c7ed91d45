//! Volumes: set up, tear down, subPath.
//!
//! Everything lies below `<root>/pods/<uid>/`, named as a kubelet names it, so that the files found after a restart
//! need no record beside them:
//!
//! ```text
//! volumes/kubernetes.io~<plugin>/<volume>             the volume: directory or mount point
//! volume-subpaths/<volume>/<container>/<mount index>  bind mount of one subPath
//! plugins/kubernetes.io~<plugin>/<volume>/ready       marker: the volume was set up completely once
//! containers/<container>/<instance>                   termination log of one instance
//! ```
//!
//! All functions block and belong on the disk lane, except those that look at files of the host which may never answer
//! ([`PodVolumes::split_off_checks`], [`Volumes::owns_volume_data`]): these belong elsewhere. They decide nothing:
//! the content of a volume is passed in. Invariants:
//!
//! - nothing below a volume's root is ever reached through a path that a container can redirect: descriptors are
//!   opened with `openat2(2)` beneath a directory of ours (Linux 5.6);
//! - nothing is deleted across a mount point: unmounting comes first, and a mount found on the way is an error;
//! - a host path is never deleted, never changes its owner.

mod atomic;
mod beneath;
mod bound;
mod empty_dir;
mod fs_group;
mod host_path;
mod mounts;
mod orphan;
mod request;
mod set_up;
mod sub_path;
mod tear_down;
mod termination_log;
#[cfg(test)]
mod testing;
mod usage;

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

pub use fs_group::FsGroupChangePolicy;
pub use host_path::HostPathType;
pub use request::{
    EmptyDirMedium, PodVolume, PodVolumes, ProjectedFiles, VolumeRequestError, VolumeSource,
};
pub use set_up::{MountedVolume, VolumeSetUp, VolumeWarning};
pub use sub_path::SubPath;
pub(crate) use tear_down::plugin;
pub use usage::HeldVolume;

use empty_dir::EmptyDirBacking;

use crate::api::PodUid;

/// The pod directories of one agent.
#[derive(Clone, Debug)]
pub struct Volumes {
    /// `<root>/pods`, without symbolic links, as mountinfo shows it.
    pods: PathBuf,
    /// Reader of the mounts at and below a directory.
    mounts_below: MountTable,
    /// Storage of volumes that are to be in memory.
    in_memory: fn(Option<u64>) -> EmptyDirBacking,
    /// Identity of the machine's boot: containers that run were started in it.
    boot: Arc<str>,
}

/// Answers for the kernel's mount table.
type MountTable = fn(&Path) -> io::Result<Vec<PathBuf>>;

/// Error of a volume. The texts are the ones events show after `FailedMount`.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// A volume of the pod could not be set up, or not be refreshed.
    #[error("MountVolume.SetUp failed for volume {volume:?} : {cause}")]
    SetUp {
        /// The volume's name in the pod.
        volume: String,
        /// Cause of the failure.
        cause: VolumeErrorCause,
    },
    /// A subPath could not be prepared. Neither this text nor its source names a host path.
    #[error(
        "failed to prepare subPath for volumeMount {volume:?} of container {container:?}: {cause}"
    )]
    SubPath {
        /// The volume's name in the pod.
        volume: String,
        /// The container that mounts it.
        container: String,
        /// Cause.
        cause: VolumeErrorCause,
    },
    /// A volume could not be taken down; the pod directory stays and the caller tries again.
    #[error("failed to tear down volume {volume:?}: {cause}")]
    TearDown {
        /// The volume's name, or the directory's where no name is known.
        volume: String,
        /// Cause of the failure.
        cause: VolumeErrorCause,
    },
    /// The pod still has mounts, or its mounts could not be read: its directory must not be touched.
    #[error("pod {uid} still has mounted volumes: {cause}")]
    Mounted {
        /// The pod.
        uid: PodUid,
        /// A mount point, or the reason why the mounts are not known.
        cause: VolumeErrorCause,
    },
    /// The orphaned pod directory holds something that only a tear-down may delete.
    #[error("orphaned pod {uid} found, but {cause}")]
    Orphan {
        /// The pod.
        uid: PodUid,
        /// Step that failed.
        cause: VolumeErrorCause,
    },
}

/// The inner half of a [`VolumeError`].
#[derive(Debug, thiserror::Error)]
pub enum VolumeErrorCause {
    /// A system call failed while doing what the text says.
    #[error("{0}: {1}")]
    Io(&'static str, #[source] io::Error),
    /// The pod asks for what cannot be done; the text is complete.
    #[error("{0}")]
    Refused(String),
}

/// Names the step in which an I/O error happened.
trait StepContext<T> {
    fn at_step(self, what: &'static str) -> Result<T, VolumeErrorCause>;
}

impl<T, E: Into<io::Error>> StepContext<T> for Result<T, E> {
    fn at_step(self, what: &'static str) -> Result<T, VolumeErrorCause> {
        self.map_err(|e| VolumeErrorCause::Io(what, e.into()))
    }
}

impl Volumes {
    /// Opens the pod directories below `root`, making `<root>/pods` (0750) if it is missing.
    ///
    /// - Errors: the directory cannot be made or resolved.
    pub fn new(root: &Path) -> io::Result<Self> {
        let pods = root.join("pods");
        mkdir_all(&pods, 0o750)?;
        close_to_others(&pods);
        Ok(Self {
            pods: fs::canonicalize(pods)?,
            mounts_below: mounts::mounts_below,
            in_memory: EmptyDirBacking::Memory,
            boot: Arc::default(),
        })
    }

    /// Names this boot of the machine. Files that an earlier boot wrote may be torn, for a volume's set-up does not
    /// wait until they are on the disk.
    #[must_use]
    pub fn with_boot_id(mut self, id: &str) -> Self {
        self.boot = id.into();
        self
    }

    /// `<root>/pods/<uid>`.
    #[must_use]
    pub fn pod_dir(&self, uid: &PodUid) -> PathBuf {
        self.pods.join(uid.as_str())
    }

    /// Content of one file of a projected volume, at most `limit` bytes.
    ///
    /// - Errors: it is not there, or longer.
    pub fn read_projected_file(
        &self,
        uid: &PodUid,
        volume: &str,
        path: &str,
        limit: u64,
    ) -> io::Result<Vec<u8>> {
        use std::io::Read as _;
        if !is_component(uid) || !is_component(volume) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let root = beneath::open_dir(&self.volume_dir(uid, plugin::PROJECTED, volume))?;
        let flags = nix::fcntl::OFlag::O_RDONLY | nix::fcntl::OFlag::O_NONBLOCK;
        let file = fs::File::from(beneath::open_beneath(root, Path::new(path), flags)?);
        let mut content = Vec::new();
        file.take(limit.saturating_add(1))
            .read_to_end(&mut content)?;
        if u64::try_from(content.len()).unwrap_or(u64::MAX) > limit {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        Ok(content)
    }

    /// Returns true if a projected volume was set up since the boot, and not taken down.
    #[must_use]
    pub fn has_projected_files(&self, uid: &PodUid, volume: &str) -> bool {
        is_component(uid)
            && is_component(volume)
            && atomic::has_files(&self.volume_dir(uid, plugin::PROJECTED, volume))
    }

    fn volume_dir(&self, uid: &PodUid, plugin: &str, volume: &str) -> PathBuf {
        self.pod_dir(uid).join(VOLUMES).join(plugin).join(volume)
    }

    fn ready_marker(&self, uid: &PodUid, plugin: &str, volume: &str) -> PathBuf {
        self.pod_dir(uid)
            .join(PLUGINS)
            .join(plugin)
            .join(volume)
            .join("ready")
    }
}

const VOLUMES: &str = "volumes";
const SUBPATHS: &str = "volume-subpaths";
const PLUGINS: &str = "plugins";

/// Returns true if `name` is a plain path component: every name from a pod must be one before it becomes part of a
/// path.
fn is_component(name: &str) -> bool {
    !name.is_empty()
        && name != "."
        && name != ".."
        && name.len() <= 255
        && !name.contains(['/', '\0'])
}

/// Closes the pods' directory to other users of the machine, also one that existed before: the modes of volumes are
/// meant for containers.
fn close_to_others(dir: &Path) {
    use std::os::unix::fs::PermissionsExt;
    let closed = fs::metadata(dir).and_then(|found| {
        let mode = found.permissions().mode() & 0o7777;
        match mode & 0o007 {
            0 => Ok(()),
            _ => fs::set_permissions(dir, fs::Permissions::from_mode(mode & !0o007)),
        }
    });
    if let Err(e) = closed {
        log::warn!("{} stays open to all users: {e}", dir.display());
    }
}

/// Makes `path` and its missing parents, all with `mode` whatever the umask. What exists keeps its mode.
fn mkdir_all(path: &Path, mode: u32) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    if fs::metadata(path).is_ok_and(|m| m.is_dir()) {
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        mkdir_all(parent, mode)?;
    }
    match fs::create_dir(path) {
        Ok(()) => fs::set_permissions(path, fs::Permissions::from_mode(mode)),
        // Another thread was faster, or a file is in the way.
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists && fs::metadata(path)?.is_dir() => {
            Ok(())
        }
        Err(e) => Err(e),
    }
}
