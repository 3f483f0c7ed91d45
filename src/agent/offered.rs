//! Extended resources that this node has offered, kept in the root directory for the agent after this one: those of device
//! plugins that are to come back (DEV-12), and those that the Node in the API shows although they are gone (NODE-03).

use alloc::collections::BTreeSet;
use std::{
    io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::record;
use crate::sys::lane::Lane;

/// File in the root directory with the resources that device plugins have offered.
const OF_PLUGINS: &str = "device-plugins.json";
/// File in the root directory with the resources that the Node was last registered with.
const OF_NODE: &str = "node-resources.json";
/// Bytes of a file.
const MAX_BYTES: u64 = 64 << 10;

/// Names of extended resources.
pub(crate) type ResourceNames = BTreeSet<Box<str>>;

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct OfferedResourcesFile {
    resources: ResourceNames,
}

/// Path of the record of what device plugins have offered.
pub(crate) fn plugin_record_path(root: &Path) -> PathBuf {
    root.join(OF_PLUGINS)
}

/// Reads a record; `None` if there is no usable one; a bad one is logged (DEV-11). Blocking.
pub(crate) fn recall_resource_names(path: &Path) -> Option<ResourceNames> {
    let known: Option<OfferedResourcesFile> = record::recall_record(path, MAX_BYTES);
    known.map(|known| known.resources)
}

/// Keeps the names that device plugins have offered. The caller has a new one. Blocking.
pub(crate) fn keep_plugin_resources(path: &Path, resources: ResourceNames) -> io::Result<()> {
    record::write_record(path, &OfferedResourcesFile { resources })
}

/// Resources that the Node in the API was told of.
pub(super) struct OfferedResources {
    root: PathBuf,
    disk: Lane,
}

impl OfferedResources {
    /// In this root directory.
    pub(super) fn new(root: &Path, disk: Lane) -> Self {
        Self {
            root: root.into(),
            disk,
        }
    }

    /// Resources that agents before this one have told the Node; `None` if that is not known.
    pub(super) async fn earlier_resource_names(&self) -> Option<ResourceNames> {
        let root = self.root.clone();
        let recalled = self.disk.run_job(move || {
            // Plugins may be off by now.
            [root.join(OF_NODE), plugin_record_path(&root)].map(|path| recall_resource_names(&path))
        });
        let known: Vec<ResourceNames> = recalled.await.into_iter().flatten().collect();
        (!known.is_empty()).then(|| known.into_iter().flatten().collect())
    }

    /// The Node is told of these. They are written only if they differ.
    pub(super) async fn keep_offered_names(&self, names: ResourceNames) -> io::Result<()> {
        let path = self.root.join(OF_NODE);
        let content = OfferedResourcesFile { resources: names };
        let keep = move || record::keep_record(&path, &content, MAX_BYTES);
        self.disk.run_job(keep).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back() {
        // DEV-11 NODE-03
        let root = crate::testing::unused_path("offered");
        std::fs::create_dir_all(&root).expect("directory");
        let offered = OfferedResources::new(&root, Lane::without_thread());
        let before = || smol::future::block_on(offered.earlier_resource_names());
        let names = |all: &[&str]| {
            all.iter()
                .map(|name| (*name).into())
                .collect::<ResourceNames>()
        };
        assert_eq!(before(), None, "no agent was here");
        smol::future::block_on(offered.keep_offered_names(ResourceNames::new())).expect("kept");
        assert_eq!(
            before(),
            Some(ResourceNames::new()),
            "one that offered nothing"
        );
        for _ in 0..2 {
            smol::future::block_on(offered.keep_offered_names(names(&["picolet/serial"])))
                .expect("kept");
            assert_eq!(before(), Some(names(&["picolet/serial"])));
        }
        keep_plugin_resources(&plugin_record_path(&root), names(&["a.io/x"])).expect("kept");
        assert_eq!(before(), Some(names(&["a.io/x", "picolet/serial"])));
        std::fs::write(root.join(OF_NODE), "torn").expect("written");
        assert_eq!(before(), Some(names(&["a.io/x"])));
        std::fs::remove_dir_all(root).expect("clean");
    }
}
