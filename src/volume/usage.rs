//! Volumes of a pod that take room which can be counted: those whose data was made for the pod. Other data is not the
//! pod's alone: for a directory of the node's own disk its file system is shown. A share of the network may not answer.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use super::{VOLUMES, Volumes, is_component, plugin};
use crate::{
    api::{PodUid, cri::FsInfo},
    sys::disk_usage,
};

/// Volumes of one pod that are looked at.
const MAX_VOLUMES: usize = 256;

/// A volume of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldVolume {
    /// Name of the volume in the pod.
    pub name: String,
    /// Directory of the data.
    pub path: PathBuf,
    /// Set if the volume's room on the node's disk counts as the pod's: an `emptyDir` on disk, a ConfigMap.
    pub ephemeral: bool,
}

impl Volumes {
    /// Volumes of a pod with data of their own, in no order. A pod that is not known has none.
    #[must_use]
    pub fn held_volumes(&self, uid: &PodUid) -> Vec<HeldVolume> {
        if !is_component(uid) {
            return Vec::new();
        }
        let list = |dir: PathBuf| fs::read_dir(dir).into_iter().flatten().flatten();
        let plugins = list(self.pod_dir(uid).join(VOLUMES));
        plugins
            .filter(|p| plugin::owns_data(&p.file_name()))
            .flat_map(|p| list(p.path()).map(move |volume| (p.file_name(), volume)))
            .take(MAX_VOLUMES)
            .filter_map(|(kind, volume)| {
                let path = volume.path();
                let ephemeral = match kind.to_str()? {
                    plugin::CONFIG_MAP => true,
                    // In memory it is a file system of its own.
                    plugin::EMPTY_DIR => {
                        let device = |path: &Path| fs::symlink_metadata(path).map(|m| m.dev());
                        let above = path.parent().and_then(|dir| device(dir).ok());
                        above.is_some_and(|above| device(&path).is_ok_and(|own| own == above))
                    }
                    _ => false,
                };
                Some(HeldVolume {
                    name: volume.file_name().to_str()?.to_owned(),
                    path,
                    ephemeral,
                })
            })
            .collect()
    }

    /// Directories of the node's own disk that are shown in the pod's: the PersistentVolume's name, and the file system that
    /// it is on. In no order. A pod that is not known has none.
    #[must_use]
    pub fn local_volumes(&self, uid: &PodUid) -> Vec<(String, FsInfo)> {
        if !is_component(uid) {
            return Vec::new();
        }
        let shown = fs::read_dir(self.volume_dir(uid, plugin::LOCAL, ""));
        shown
            .into_iter()
            .flatten()
            .flatten()
            .take(MAX_VOLUMES)
            .filter_map(|volume| {
                let name = volume.file_name().to_str()?.to_owned();
                Some((name, disk_usage::read_file_system(&volume.path()).ok()?))
            })
            .collect()
    }
}
