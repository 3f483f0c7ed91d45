//! Labels and taints of the Node in the API, kept in the root directory for admission: an agent that starts without the
//! apiserver has to know what others gave to the node (NODE-06, OFF-07).

use alloc::collections::BTreeMap;
use core::cell::Cell;
use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::record;
use crate::{
    api::node::Taint,
    logic::{admission::KeptNode, authority},
    sys::lane::Lane,
};

/// In the root directory.
const FILE: &str = "node-labels.json";
/// Bytes of it. A Node with more labels is not kept.
const MAX_BYTES: u64 = 64 << 10;

#[derive(Serialize, Deserialize, PartialEq, Eq)]
struct NodeLabelsFile {
    /// Name of the node.
    node: String,
    /// Identity of the cluster.
    cluster: String,
    labels: BTreeMap<String, String>,
    taints: Vec<Taint>,
}

/// Reads what an agent before this one has kept of that Node of that cluster; `None` if there is no usable record; a
/// bad one is logged. Blocking.
pub(super) fn recall_kept_node(root: &Path, node: &str, cluster: &str) -> Option<KeptNode> {
    let path = root.join(FILE);
    let record: NodeLabelsFile = record::recall_record(&path, MAX_BYTES)?;
    if record.node != node || !authority::is_same_authority(&record.cluster, cluster) {
        let path = path.display();
        log::warn!("{path}: it is of another node, or another cluster");
        return None;
    }
    let NodeLabelsFile { labels, taints, .. } = record;
    Some(KeptNode { labels, taints })
}

/// Keeps it for the next agent.
pub(super) struct NodeLabelsStore {
    path: PathBuf,
    node: String,
    cluster: String,
    disk: Lane,
    /// Set if the last word is on disk.
    is_kept: Cell<bool>,
}

impl NodeLabelsStore {
    /// Keeps that Node of that cluster.
    pub(super) fn new(root: &Path, node: String, cluster: String, disk: Lane) -> Self {
        Self {
            path: root.join(FILE),
            node,
            cluster,
            disk,
            is_kept: Cell::new(false),
        }
    }

    /// Returns true if the last word is on disk.
    pub(super) fn is_kept(&self) -> bool {
        self.is_kept.get()
    }

    /// Keeps what admission goes by from now on. It is written only if it differs from what lies there.
    ///
    /// # Errors
    /// The disk cannot be written, or it is too much. Only an agent that starts without an apiserver is worse off.
    pub(super) async fn keep_node_labels(
        &self,
        KeptNode { labels, taints }: KeptNode,
    ) -> io::Result<()> {
        let path = self.path.clone();
        let record = NodeLabelsFile {
            node: self.node.clone(),
            cluster: self.cluster.clone(),
            labels,
            taints,
        };
        let kept = self
            .disk
            .run_job(move || write_labels_file(&path, &record))
            .await;
        self.is_kept.set(kept.is_ok());
        kept
    }
}

fn write_labels_file(path: &Path, record: &NodeLabelsFile) -> io::Result<()> {
    let bytes = serde_json::to_vec(record)?.len();
    if bytes as u64 >= MAX_BYTES {
        // By an older one, pods would be refused that fit.
        return match fs::remove_file(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Err(io::Error::other(format!(
                "it has {bytes} bytes, more than {MAX_BYTES}"
            ))),
        };
    }
    record::keep_record(path, record, MAX_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labelled(value: &str) -> KeptNode {
        KeptNode {
            labels: [("disk".to_owned(), value.to_owned())].into(),
            taints: vec![Taint {
                key: "k".into(),
                effect: "NoExecute".into(),
                ..Taint::default()
            }],
        }
    }

    #[test]
    fn it_comes_back_and_is_written_only_if_it_differs() {
        // NODE-06
        let root = crate::testing::unused_path("kept-node");
        fs::create_dir_all(&root).expect("directory");
        let path = root.join(FILE);
        let of = |cluster: &str| {
            NodeLabelsStore::new(&root, "n".into(), cluster.into(), Lane::without_thread())
        };
        let keep = |kept: KeptNode| smol::future::block_on(of("old").keep_node_labels(kept));
        assert_eq!(
            recall_kept_node(&root, "n", "old"),
            None,
            "no agent was here"
        );
        keep(labelled("ssd")).expect("kept");
        assert_eq!(
            recall_kept_node(&root, "n", "new,old"),
            Some(labelled("ssd"))
        );
        assert_eq!(
            recall_kept_node(&root, "n", "other"),
            None,
            "of another cluster"
        );
        assert_eq!(recall_kept_node(&root, "m", "old"), None, "of another node");
        let written = || {
            fs::metadata(&path)
                .expect("there")
                .modified()
                .expect("time")
        };
        let inode = || std::os::unix::fs::MetadataExt::ino(&fs::metadata(&path).expect("there"));
        let before = (written(), inode());
        keep(labelled("ssd")).expect("kept");
        assert_eq!((written(), inode()), before, "flash is spared");
        keep(labelled("hdd")).expect("kept");
        assert_eq!(recall_kept_node(&root, "n", "old"), Some(labelled("hdd")));
        assert!(keep(labelled(&"x".repeat(70_000))).is_err());
        assert_eq!(
            recall_kept_node(&root, "n", "old"),
            None,
            "nothing is better than what was"
        );
        fs::write(&path, "torn").expect("written");
        assert_eq!(recall_kept_node(&root, "n", "old"), None);
        keep(labelled("ssd")).expect("kept");
        assert_eq!(recall_kept_node(&root, "n", "old"), Some(labelled("ssd")));
        fs::remove_dir_all(root).expect("clean");
    }
}
