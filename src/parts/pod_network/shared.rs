//! State and tools that the tasks of the network share.

use alloc::{rc::Rc, sync::Arc};
use core::{
    cell::{Cell, RefCell},
    net::IpAddr,
    pin::Pin,
};
use std::collections::BTreeSet;

use serde_json::Value;

use super::{
    kernel::AppliedPlan, remains::NetworkRemains, settings::PodNetworkSettings,
    status::PodNetworkStatus,
};
use crate::{
    agent::{
        clock::Clock,
        cluster_network::ClusterNetworkBoard,
        complaints::Complaints,
        link_policy::LinkPolicy,
        recorder::{EventRecorder, EventSeverity},
        wake::WakeFlag,
    },
    api::{MonoTime, Node},
    kube::KubeError,
    logic::{
        node::Cidr,
        pod_network::{
            PodNetworkBackend,
            peers::{PeerFault, PeerTable},
        },
    },
    runtime::runc::cni::SpanningNetwork,
    sys::lane::Lane,
};

/// Events about nodes that are remembered: those of the present.
const MAX_TOLD: usize = 64;

/// The own Node, as the network uses it.
pub(super) trait AnnouncedNode {
    /// Node as last known; `None`: it is not known yet.
    fn node_object(&self) -> Option<Node>;
    /// Addresses of this machine in the cluster.
    fn host_ips(&self) -> Vec<IpAddr>;
    /// Patches the Node, by the node's own identity.
    fn patch_node<'a>(
        &'a self,
        patch: &'a Value,
    ) -> Pin<Box<dyn Future<Output = Result<(), KubeError>> + 'a>>;
}

/// Families, as the range of the cluster and that of this node, and the time of a look at them.
pub(super) type SeenRules = (Vec<(Cidr, Cidr)>, MonoTime);

/// State and tools of the network, which its two tasks share.
pub(super) struct PodNetworkShared {
    pub(super) settings: PodNetworkSettings,
    /// Ranges of this node's pods that an agent before this one knew.
    pub(super) kept_ranges: Vec<Cidr>,
    /// Name of this node.
    pub(super) name: String,
    pub(super) own_node: Rc<dyn AnnouncedNode>,
    /// What is left once there is to be no network.
    pub(super) remains: NetworkRemains,
    pub(super) cluster: Rc<ClusterNetworkBoard>,
    pub(super) clock: Rc<dyn Clock>,
    pub(super) complaints: Rc<Complaints>,
    pub(super) recorder: Rc<EventRecorder>,
    pub(super) link_policy: Rc<dyn LinkPolicy>,
    pub(super) disk: Lane,
    pub(super) spanning: Arc<SpanningNetwork>,
    pub(super) status: Rc<PodNetworkStatus>,
    pub(super) state: KeeperState,
    /// Other nodes.
    pub(super) peers: RefCell<PeerTable>,
}

/// State of the keeper.
#[derive(Default)]
pub(super) struct KeeperState {
    pub(super) backend: Cell<Option<PodNetworkBackend>>,
    pub(super) backend_chosen: WakeFlag,
    /// Number of changes of the backend: a list from before the last one is of no use.
    pub(super) choices: Cell<u64>,
    /// Wakes the keeper: the nodes changed.
    pub(super) peers_changed: WakeFlag,
    /// Set once a whole list of nodes came.
    pub(super) has_list: Cell<bool>,
    pub(super) list_faults: RefCell<Vec<(String, PeerFault)>>,
    pub(super) list_trouble: RefCell<Option<String>>,
    /// Last patch of the own Node, and its time.
    pub(super) patched: RefCell<Option<(Value, MonoTime)>>,
    /// Events about nodes that were told.
    pub(super) told: RefCell<BTreeSet<String>>,
    /// Families for which rules, settings and modules were last looked at, and the time.
    pub(super) rules_seen: RefCell<Option<SeenRules>>,
    pub(super) subnet_file: RefCell<String>,
    /// Things that this agent has made and not noted yet: devices of both families, the file.
    pub(super) made: Cell<[bool; 3]>,
}

impl PodNetworkShared {
    /// Remembers that a thing was made, by its place in the mark.
    pub(super) fn set_made(&self, thing: usize) {
        let mut made = self.state.made.get();
        made[thing] = true;
        self.state.made.set(made);
    }

    /// Sets the backend. With another one than before, all that is known of other nodes is of no use.
    pub(super) fn set_backend(&self, backend: Option<PodNetworkBackend>) {
        if self.state.backend.replace(backend) != backend {
            self.state.has_list.set(false);
            self.state.choices.set(self.state.choices.get() + 1);
            *self.peers.borrow_mut() = PeerTable::default();
            self.state.backend_chosen.wake_waiters();
        }
    }

    /// Waits until it is known which backend there is to be.
    pub(super) async fn wait_for_backend(&self) -> PodNetworkBackend {
        // Bounded: by how often the choice changes.
        loop {
            if let Some(backend) = self.state.backend.get() {
                return backend;
            }
            self.state.backend_chosen.wait_for_wake().await;
        }
    }

    /// Takes the faults of a whole list, which is there now.
    pub(super) fn note_list(&self, faults: Vec<(String, PeerFault)>) {
        *self.state.list_faults.borrow_mut() = faults;
        self.state.has_list.set(true);
        self.status.change_figures(|figures| figures.lists += 1);
        self.state.peers_changed.wake_waiters();
    }

    /// Takes the reason why nodes cannot be listed; `None`: they can.
    pub(super) fn set_list_trouble(&self, trouble: Option<String>) {
        if let Some(text) = &trouble {
            self.complaints.complain(&format!("pod network: {text}"));
        }
        let before = self.state.list_trouble.replace(trouble);
        if before != *self.state.list_trouble.borrow() {
            self.state.peers_changed.wake_waiters();
        }
    }

    pub(super) fn show_trouble(&self, why: &str) {
        let now = self.clock.wall_time();
        self.status.change_health(now, |health| {
            health.is_ready = false;
            health.is_off = false;
            health.trouble = Some(why.to_owned());
        });
        let mut settings = self.spanning.current_settings();
        // Pods that have a network once keep starting: the way to other nodes alone is missing.
        if settings.mtu == 0 && settings.not_ready.as_deref() != Some(why) {
            settings.not_ready = Some(why.to_owned());
            self.spanning.set_settings(settings);
        }
        self.complaints.complain(&format!("pod network: {why}"));
    }

    /// Tells people of something about a node once, for as long as it is so.
    pub(super) fn tell_once(&self, present: &mut BTreeSet<String>, reason: &str, text: String) {
        if present.len() >= MAX_TOLD {
            return;
        }
        if !self.state.told.borrow().contains(&text) {
            log::warn!("pod network: {text}");
            self.recorder
                .record_node_event(EventSeverity::Warning, reason, &text);
        }
        present.insert(text);
    }

    pub(super) fn note_applied(&self, applied: &AppliedPlan) {
        log::info!(
            "pod network: {} entries made or changed, {} deleted",
            applied.changed,
            applied.deleted
        );
        self.status.change_figures(|figures| {
            figures.changed += applied.changed;
            figures.deleted += applied.deleted;
            let failed = applied.failed.len() + applied.undeleted.len();
            figures.failed += u64::try_from(failed).unwrap_or(u64::MAX);
        });
    }

    pub(super) fn tell_faults(&self, faults: &[(String, String)]) {
        let mut present = BTreeSet::new();
        for (name, why) in faults {
            let text = format!("pods of node {name} are not reached: {why}");
            self.tell_once(&mut present, "PodNetworkNodeRefused", text);
        }
        *self.state.told.borrow_mut() = present;
    }
}
