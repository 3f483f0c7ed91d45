//! The network between nodes as a part of a node: its keys, and what a running agent shows of it.

use alloc::{collections::BTreeMap, rc::Rc, sync::Arc};
use core::{cell::RefCell, fmt, net::IpAddr, pin::Pin};

use serde_json::Value;

use super::{
    lister,
    remains::NetworkRemains,
    settings::{self, PodNetworkSettings},
    shared::{AnnouncedNode, KeeperState, PodNetworkShared},
    status::PodNetworkStatus,
};
use crate::{
    agent::{
        cluster::{OwnNodeObject, pod_cidr::restore_pod_cidrs},
        node::LocalNode,
        tasks::{AgentTask, box_task},
    },
    api::{Node, WallTime, node::NodeCondition},
    config::{AgentConfig, InvalidField, TableKey},
    kube::KubeError,
    logic::{
        check::CheckFinding,
        metrics::exposition::MetricsText,
        pod_network::{
            health::{check_pod_network, write_pod_network_metrics},
            look::node_ranges,
            peers::PeerTable,
        },
    },
    parts::{ConfiguredPart, Part, PartTools, part_state, read_health},
    runtime::runc::cni::{SpanningNetwork, SpanningSettings},
};

/// Name of the part.
const NAME: &str = "pod-network";
/// Name of its check, which stands in the place of the core's.
const CHECK: &str = "pod-routes";

/// The network between pods of different nodes.
pub(crate) struct PodNetworkPart;

impl Part for PodNetworkPart {
    fn name(&self) -> &'static str {
        NAME
    }

    fn keys(&self) -> &'static [TableKey] {
        &settings::KEYS
    }

    fn configure(
        &self,
        own: &Value,
        config: &AgentConfig,
    ) -> Result<Option<Rc<dyn ConfiguredPart>>, InvalidField> {
        let remains = NetworkRemains::of_agent(&config.dirs.root, &config.network.builtin_bridge);
        let Some(settings) = settings::resolve_pod_network(own, config)? else {
            return Ok(Some(Rc::new(AbsentPodNetwork { remains })));
        };
        let spanning = SpanningNetwork::default();
        spanning.set_settings(SpanningSettings {
            not_ready: Some("the network between nodes is being made".into()),
            ..SpanningSettings::default()
        });
        Ok(Some(Rc::new(ConfiguredPodNetwork {
            settings,
            remains,
            spanning: Arc::new(spanning),
            status: Rc::default(),
        })))
    }
}

/// The own Node of an agent that runs.
struct ClusterNode {
    node: Rc<LocalNode>,
    object: Option<Rc<OwnNodeObject>>,
}

impl AnnouncedNode for ClusterNode {
    fn node_object(&self) -> Option<Node> {
        self.node.node_object()
    }

    fn host_ips(&self) -> Vec<IpAddr> {
        self.node.host_ips()
    }

    fn patch_node<'a>(
        &'a self,
        patch: &'a Value,
    ) -> Pin<Box<dyn Future<Output = Result<(), KubeError>> + 'a>> {
        Box::pin(async {
            match &self.object {
                Some(object) => object.patch_status(patch).await.map(drop),
                None => Ok(()),
            }
        })
    }
}

/// No network: what an agent before this one has made is removed.
#[derive(Debug)]
struct AbsentPodNetwork {
    remains: NetworkRemains,
}

impl ConfiguredPart for AbsentPodNetwork {
    fn start(&self, tools: &PartTools<'_>) -> Vec<AgentTask> {
        if !self.remains.has_mark() {
            return Vec::new();
        }
        let remains = self.remains.clone();
        let (lane, clock) = (tools.disk.clone(), Rc::clone(tools.clock));
        vec![box_task(remains.remove_with_tries(lane, clock))]
    }

    fn list_remains(&self) -> Vec<String> {
        self.remains.list(false)
    }

    fn remove_remains(&self) -> Pin<Box<dyn Future<Output = Vec<String>>>> {
        let remains = self.remains.clone();
        Box::pin(async move { remains.remove(false, None).await })
    }
}

/// A network that is configured, and runs in an agent.
struct ConfiguredPodNetwork {
    settings: PodNetworkSettings,
    remains: NetworkRemains,
    spanning: Arc<SpanningNetwork>,
    status: Rc<PodNetworkStatus>,
}

impl fmt::Debug for ConfiguredPodNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.settings.fmt(f)
    }
}

impl ConfiguredPart for ConfiguredPodNetwork {
    fn reads_cluster(&self) -> bool {
        true
    }

    fn start(&self, tools: &PartTools<'_>) -> Vec<AgentTask> {
        let kept = restore_pod_cidrs(tools.config);
        let kept: Vec<String> = kept
            .accepted_networks()
            .split(',')
            .map(str::to_owned)
            .collect();
        let shared = Rc::new(PodNetworkShared {
            settings: self.settings.clone(),
            kept_ranges: node_ranges("", &kept),
            name: tools.node.name.clone(),
            own_node: Rc::new(ClusterNode {
                node: Rc::clone(tools.node),
                object: tools.own_node.clone(),
            }),
            remains: self.remains.clone(),
            cluster: Rc::clone(tools.cluster_network),
            clock: Rc::clone(tools.clock),
            complaints: Rc::clone(tools.complaints),
            recorder: Rc::clone(tools.recorder),
            link_policy: Rc::clone(tools.link_policy),
            disk: tools.disk.clone(),
            spanning: Arc::clone(&self.spanning),
            status: Rc::clone(&self.status),
            state: KeeperState::default(),
            peers: RefCell::new(PeerTable::default()),
        });
        let mut tasks = vec![box_task(Rc::clone(&shared).keep_network())];
        match &tools.cluster_reader {
            Some(reader) => tasks.push(box_task(lister::list_nodes(shared, Rc::clone(reader)))),
            None => shared.set_list_trouble(Some("this node has no identity to list nodes".into())),
        }
        tasks
    }

    fn spanning_network(&self) -> Option<Arc<SpanningNetwork>> {
        Some(Arc::clone(&self.spanning))
    }

    fn list_remains(&self) -> Vec<String> {
        self.remains.list(true)
    }

    fn remove_remains(&self) -> Pin<Box<dyn Future<Output = Vec<String>>>> {
        let remains = self.remains.clone();
        Box::pin(async move { remains.remove(true, None).await })
    }

    fn conditions(&self, now: WallTime) -> Vec<NodeCondition> {
        self.status.node_condition(now).into_iter().collect()
    }

    fn state(&self) -> Option<(String, Value)> {
        part_state(NAME, &self.status.health())
    }

    fn check(
        &self,
        states: Option<&BTreeMap<String, Value>>,
    ) -> Option<(&'static str, CheckFinding)> {
        let health = read_health(states, NAME);
        Some((CHECK, check_pod_network(health.as_ref())))
    }

    fn write_metrics(&self, page: &mut MetricsText) {
        write_pod_network_metrics(&self.status.figures(), page);
    }
}
