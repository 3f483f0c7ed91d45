//! Help for the tests of this folder.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{EmptyDirBacking, PodVolumes, Volumes, beneath, mounts};
use crate::{api::PodUid, sys::remove};

/// A directory that disappears with the value, mounts in it first.
pub(super) struct Scratch(PathBuf);

impl Scratch {
    pub(super) fn new() -> Self {
        let dir = crate::testing::unused_path("volume");
        fs::create_dir_all(&dir).expect("scratch directory");
        Self(fs::canonicalize(dir).expect("scratch directory"))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    pub(super) fn volumes(&self) -> Volumes {
        Volumes::new(&self.0.join("root")).expect("root")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        for point in mounts::mounts_below(&self.0)
            .unwrap_or_default()
            .iter()
            .rev()
        {
            let _ = mounts::unmount_point(point);
        }
        if let (Some(parent), Some(name)) = (self.0.parent(), self.0.file_name())
            && let Ok(parent) = beneath::open_dir(parent)
        {
            let _ = remove::remove_entry(&parent, name);
        }
    }
}

impl Volumes {
    /// Mounts no file system, puts volumes that are to be in memory on disk, and does not read the machine's mount
    /// table, which may be long.
    pub(crate) fn without_mounts(mut self) -> Self {
        self.mounts_below = |_| Ok(Vec::new());
        self.in_memory = |_| EmptyDirBacking::Disk;
        self
    }
}

pub(super) fn uid() -> PodUid {
    PodUid::new("0f0e0d0c-0000-4000-8000-000000000001")
}

/// The volumes of the pod that are on disk, as (plugin directory, volume), sorted.
pub(super) fn volumes_on_disk(volumes: &Volumes) -> Vec<(String, String)> {
    let names = |dir: &Path| {
        let entries = fs::read_dir(dir).into_iter().flatten();
        let names = entries.map(|entry| entry.expect("entry").file_name());
        let mut names: Vec<String> = names.map(|n| n.to_string_lossy().into()).collect();
        names.sort_unstable();
        names
    };
    let base = volumes.pod_dir(&uid()).join(super::VOLUMES);
    let of = |plugin: String| {
        let volumes = names(&base.join(&plugin)).into_iter();
        volumes.map(move |volume| (plugin.clone(), volume))
    };
    names(&base).into_iter().flat_map(of).collect()
}

/// A pod with these volumes and nothing else.
pub(super) fn pod(volumes: Vec<super::PodVolume>) -> PodVolumes {
    PodVolumes {
        uid: uid(),
        volumes,
        ..PodVolumes::default()
    }
}

/// Returns true if this test may mount; says so if not, for a skipped test must be seen.
pub(super) fn can_mount(test: &str) -> bool {
    let scratch = Scratch::new();
    let root =
        nix::unistd::geteuid().is_root() && mounts::mount_tmpfs(scratch.path(), Some(4096)).is_ok();
    if !root {
        skipped!("{test}: needs root and the right to mount");
    }
    root
}
