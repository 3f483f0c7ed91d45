//! Facts that servers of k3s tell of their cluster, for whoever goes by them: the board on which the newest ones stand
//! (K3SN-01). They are kept in the root directory: a node that boots while no server answers has them too.

use alloc::rc::Rc;
use core::cell::{Cell, RefCell};
use std::{io, path::Path};

use serde::{Deserialize, Serialize};

use super::{record, waker_set::WakerSet};
use crate::{
    api::cluster_network::{ClusterNetwork, K3sClusterFacts},
    net::Url,
};

/// In the root directory.
const FILE: &str = "k3s-cluster.json";
/// Bytes of it.
const MAX_BYTES: u64 = 16 * 1024;

#[derive(Serialize, Deserialize, PartialEq, Eq)]
struct K3sClusterFile {
    /// The server that was joined: facts of another cluster do not count.
    server: String,
    facts: K3sClusterFacts,
}

/// Reads the facts that an agent before this one has kept of the cluster of `server`; `None` if there is no usable
/// record; a bad one is logged. Blocking.
pub(super) fn recall_facts(root: &Path, server: &Url) -> Option<K3sClusterFacts> {
    let record: K3sClusterFile = record::recall_record(&root.join(FILE), MAX_BYTES)?;
    (record.server == server.without_query()).then_some(record.facts)
}

/// Keeps facts for the next agent. They are written only if they differ from those on disk. Blocking.
pub(crate) fn keep_facts(root: &Path, server: &Url, facts: K3sClusterFacts) -> io::Result<()> {
    let server = server.without_query();
    let record = K3sClusterFile { server, facts };
    record::keep_record(&root.join(FILE), &record, MAX_BYTES)
}

/// The newest facts of a cluster of k3s; on other nodes there are never any.
#[derive(Debug, Default)]
pub(crate) struct ClusterNetworkBoard {
    facts: RefCell<Option<Rc<K3sClusterFacts>>>,
    network: RefCell<Option<Rc<ClusterNetwork>>>,
    /// Number of changes.
    changes: Cell<u64>,
    waiters: WakerSet,
}

impl ClusterNetworkBoard {
    /// Network of the cluster; `None`: no server has told it, in this boot or before.
    pub(crate) fn current(&self) -> Option<Rc<ClusterNetwork>> {
        self.network.borrow().clone()
    }

    /// All facts; `None`: no server has told them, in this boot or before.
    pub(crate) fn facts(&self) -> Option<Rc<K3sClusterFacts>> {
        self.facts.borrow().clone()
    }

    /// Waits for other facts than those of the time of this call.
    pub(crate) fn changed(&self) -> impl Future<Output = ()> {
        let before = self.changes.get();
        self.waiters
            .wait_until(move || (self.changes.get() != before).then_some(()))
    }

    /// Puts up other facts. The same ones are no change. Returns true if it is one.
    pub(crate) fn set_facts(&self, facts: K3sClusterFacts) -> bool {
        if self.facts.borrow().as_deref() == Some(&facts) {
            return false;
        }
        *self.network.borrow_mut() = Some(Rc::new(facts.network.clone()));
        *self.facts.borrow_mut() = Some(Rc::new(facts));
        self.changes.set(self.changes.get() + 1);
        self.waiters.wake_all();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Facts of a cluster with that way to nodes.
    fn facts(mode: &str) -> K3sClusterFacts {
        K3sClusterFacts {
            network: ClusterNetwork {
                cluster_ranges: vec![("10.42.0.0".parse().expect("an address"), 16)],
                service_ranges: Vec::new(),
                node_ports: ClusterNetwork::NODE_PORTS,
                flannel_backend: "vxlan".into(),
                flannel_ipv6_masquerade: false,
                flannel_external_ip: false,
                has_kube_proxy: true,
                has_service_lb: true,
                has_cloud_controller: true,
                has_network_policy: true,
            },
            egress_mode: mode.into(),
            supervisor_port: 0,
            has_embedded_registry: false,
            apiservers: vec!["10.0.0.1:6443".into()],
        }
    }

    #[test]
    fn facts_come_back_of_the_same_cluster() {
        // K3SN-01
        let scratch = crate::testing::TestDir::new("k3s-cluster");
        let url = |text: &str| Url::parse(text).expect("a URL");
        let server = url("https://a.lan:6443");
        assert_eq!(recall_facts(&scratch.0, &server), None);
        keep_facts(&scratch.0, &server, facts("agent")).expect("kept");
        assert_eq!(recall_facts(&scratch.0, &server), Some(facts("agent")));
        assert_eq!(recall_facts(&scratch.0, &url("https://b.lan:6443")), None);
        let path = scratch.join(FILE);
        let mode = std::os::unix::fs::MetadataExt::mode(&path.metadata().expect("a file"));
        assert_eq!(mode & 0o777, 0o600);
        std::fs::write(&path, "{").expect("written");
        assert_eq!(recall_facts(&scratch.0, &server), None);
    }

    #[test]
    fn only_other_facts_are_a_change() {
        let board = ClusterNetworkBoard::default();
        assert!(board.current().is_none());
        let changed = Box::pin(board.changed());
        assert!(board.set_facts(facts("agent")));
        smol::block_on(changed);
        let mut changed = Box::pin(board.changed());
        assert!(!board.set_facts(facts("agent")));
        assert!(smol::block_on(smol::future::poll_once(&mut changed)).is_none());
        assert!(board.set_facts(facts("disabled")));
        smol::block_on(changed);
        let network = board.current().expect("one");
        assert_eq!(network.flannel_backend, "vxlan");
    }
}
