//! Tools of the keeper and of its rounds.

use alloc::rc::Rc;
use core::time::Duration;
use std::io;

use super::{
    ServicesBoard,
    writer::{NftError, TableWriter},
};
use crate::{
    agent::{
        clock::Clock,
        cluster_network::ClusterNetworkBoard,
        complaints::Complaints,
        link_policy::LinkPolicy,
        node::LocalNode,
        recorder::{EventRecorder, EventSeverity},
    },
    kube::ClusterReader,
    logic::services::{ProxyNode, live::has_kube_proxy, udp::UdpPort},
    sys::lane::Lane,
};

/// See the module.
pub(super) struct KeeperTools {
    pub(super) board: Rc<ServicesBoard>,
    pub(super) writer: Rc<dyn TableWriter>,
    pub(super) recorder: Rc<EventRecorder>,
    pub(super) complaints: Rc<Complaints>,
    pub(super) disk: Lane,
    pub(super) clock: Rc<dyn Clock>,
    /// Removes flows of UDP; blocks.
    pub(super) remove_flows: fn(&[UdpPort]) -> io::Result<usize>,
    /// Reads the node as the choice of endpoints sees it.
    pub(super) read_node: Box<dyn Fn() -> ProxyNode>,
    pub(super) link_policy: Rc<dyn LinkPolicy>,
    pub(super) cluster_network: Rc<ClusterNetworkBoard>,
    pub(super) reader: Option<Rc<ClusterReader>>,
}

/// Describes the node as the choice of endpoints sees it.
pub(super) fn proxy_node(node: &LocalNode) -> ProxyNode {
    ProxyNode {
        name: node.name.clone(),
        zone: node
            .label("topology.kubernetes.io/zone")
            .unwrap_or_default(),
        addresses: node.host_ips(),
    }
}

impl KeeperTools {
    pub(super) async fn sleep(&self, time: Duration) {
        self.clock.sleep_until(self.clock.now() + time).await;
    }

    /// Returns true if rules of a kube-proxy are there.
    pub(super) async fn finds_kube_proxy(&self) -> Result<bool, NftError> {
        let mut printed = self.writer.list(&["list", "chains"]).await?;
        printed.push_str(&self.writer.list(&["list", "tables"]).await?);
        Ok(has_kube_proxy(&printed))
    }

    /// Tells once why nothing is written.
    pub(super) fn refuse(&self, why: &str, fix: &str) {
        let is_new = self.board.health.borrow().trouble.as_deref() != Some(why);
        if is_new {
            self.recorder
                .record_node_event(EventSeverity::Warning, "ServicesRefused", why);
        }
        self.board.set_trouble(Some((why.to_owned(), fix)));
    }

    /// Tells of a step that failed and is tried again.
    pub(super) fn fail(&self, why: &str) {
        self.complaints.complain(why);
        self.board
            .set_trouble(Some((why.to_owned(), "see docs/services.md")));
    }
}
