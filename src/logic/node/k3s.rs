//! Node of a k3s cluster: annotations, labels and addresses by which its controllers know it (K3SN-03, K3SN-05, K3SN-16,
//! K3ST-16).
//!
//! The cloud controller of k3s writes `status.addresses` from the annotations each minute. So the agent writes the same
//! addresses, and leaves those that are the same in another order.

use alloc::{
    borrow::ToOwned as _,
    format,
    string::{String, ToString},
    vec::Vec,
};
use core::net::IpAddr;

use super::NodeSettings;
use crate::api::{
    Node,
    cluster_network::{AddressRange, ClusterNetwork, K3sClusterFacts},
    node::NodeAddress,
    order::OrderExt as _,
};

/// Annotation: internal addresses.
const INTERNAL_IP: &str = "k3s.io/internal-ip";
/// Annotation: external addresses.
const EXTERNAL_IP: &str = "k3s.io/external-ip";
/// Annotation: internal names. Only an agent of k3s sets them.
const INTERNAL_DNS: &str = "k3s.io/internal-dns";
/// Annotation: external names. Only an agent of k3s sets them.
const EXTERNAL_DNS: &str = "k3s.io/external-dns";
/// Annotation: host name.
const HOSTNAME: &str = "k3s.io/hostname";
/// Label: servers reach pods of this node through its tunnel.
const EGRESS: &str = "egress.k3s.io/cluster";
/// Prefix of provider IDs that the cloud controller of k3s gives.
const PROVIDER: &str = "k3s://";

/// Facts of a cluster of k3s that its Nodes depend on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct K3sNodeRules {
    /// Set if the servers run the cloud controller of k3s.
    pub has_cloud_controller: bool,
    /// Set if servers want to reach pods through tunnels.
    pub serves_pods: bool,
}

impl K3sNodeRules {
    /// Rules of a cluster.
    #[must_use]
    pub fn from_facts(facts: &K3sClusterFacts) -> Self {
        Self {
            has_cloud_controller: facts.network.has_cloud_controller,
            serves_pods: is_pod_egress(&facts.egress_mode),
        }
    }
}

/// Returns true for the ways to nodes in which servers dial pods, too, through tunnels (K3ST-16).
#[must_use]
pub fn is_pod_egress(mode: &str) -> bool {
    matches!(mode, "pod" | "cluster")
}

/// The provider ID that the cloud controller of k3s would give a node.
#[must_use]
pub(super) fn provider_id(name: &str) -> String {
    format!("{PROVIDER}{name}")
}

/// Puts into a Node what servers of k3s go by. `node`: with the addresses of this machine; `seen`: the addresses before.
/// Leaves what others set as it is.
pub(super) fn mark_node(
    node: &mut Node,
    seen: Vec<NodeAddress>,
    settings: &NodeSettings,
    rules: K3sNodeRules,
) {
    let labels = &mut node.metadata.labels;
    for (name, value) in &settings.labels {
        labels.insert(name.clone(), value.clone());
    }
    if rules.serves_pods && settings.carries_pod_dials {
        labels.insert(EGRESS.into(), "true".into());
    } else {
        labels.remove(EGRESS);
    }
    let mine = node.status.addresses.iter();
    let internal: Vec<String> = mine
        .filter(|address| address.kind == "InternalIP")
        .map(|address| address.address.clone())
        .collect();
    // Without an address there is nothing to tell; with a cloud of another kind the addresses are that one's.
    if !rules.has_cloud_controller || settings.external_cloud || internal.is_empty() {
        return;
    }
    let external: Vec<String> = settings
        .external_ips
        .iter()
        .map(ToString::to_string)
        .collect();
    let annotations = &mut node.metadata.annotations;
    let mut annotate = |name: &str, value: String| {
        annotations.insert(name.to_owned(), value);
    };
    annotate(INTERNAL_IP, internal.join(","));
    annotate(HOSTNAME, settings.name.clone());
    if !external.is_empty() {
        annotate(EXTERNAL_IP, external.join(","));
    }
    let mut wanted = Vec::new();
    let mut add = |kind: &str, text: Option<&String>| {
        let words = text.map_or("", String::as_str).split(',');
        for word in words.map(str::trim).filter(|word| !word.is_empty()) {
            wanted.push(NodeAddress {
                kind: kind.into(),
                address: word.into(),
            });
        }
    };
    for (kind, name) in [
        ("InternalIP", INTERNAL_IP),
        ("ExternalIP", EXTERNAL_IP),
        ("Hostname", HOSTNAME),
        ("InternalDNS", INTERNAL_DNS),
        ("ExternalDNS", EXTERNAL_DNS),
    ] {
        add(kind, annotations.get(name));
    }
    node.status.addresses = if is_same_set(&wanted, &seen) {
        seen
    } else {
        wanted
    };
}

fn is_same_set(some: &[NodeAddress], others: &[NodeAddress]) -> bool {
    let sorted = |all: &[NodeAddress]| {
        let mut all: Vec<(String, String)> = all
            .iter()
            .map(|address| (address.kind.clone(), address.address.clone()))
            .collect();
        all.stable_sort();
        all
    };
    some.len() == others.len() && sorted(some) == sorted(others)
}

/// Finds a family of addresses that the network of the cluster has and Services or this node do not have, or the reverse
/// (K3SN-16). Ranges that are not known make no fault.
#[must_use]
pub fn find_family_fault(network: &ClusterNetwork, node_ips: &[IpAddr]) -> Option<String> {
    let families = |ranges: &[AddressRange]| {
        [true, false].map(|v4| ranges.iter().any(|(ip, _)| ip.is_ipv4() == v4))
    };
    let (pods, services) = (&network.cluster_ranges, &network.service_ranges);
    if pods.is_empty() || services.is_empty() {
        return None;
    }
    if families(pods) != families(services) {
        return Some(format!(
            "pods of the cluster have {} addresses and Services {}: the servers need --cluster-cidr and --service-cidr of the same families",
            family_names(families(pods)),
            family_names(families(services)),
        ));
    }
    let own = [true, false].map(|v4| node_ips.iter().any(|ip| ip.is_ipv4() == v4));
    let is_missing = families(pods)
        .iter()
        .zip(own)
        .any(|(wanted, own)| *wanted && !own);
    (is_missing && !node_ips.is_empty()).then(|| {
        format!(
            "pods of the cluster have {} addresses and this node {}: set picolet.nodeIP to an address of each family",
            family_names(families(pods)),
            family_names(own),
        )
    })
}

const fn family_names([v4, v6]: [bool; 2]) -> &'static str {
    match (v4, v6) {
        (true, true) => "IPv4 and IPv6",
        (true, false) => "IPv4",
        (false, true) => "IPv6",
        (false, false) => "no",
    }
}

#[cfg(test)]
mod tests {
    use alloc::{vec, vec::Vec};

    use super::*;
    use crate::{
        api::WallTime,
        node::{apply_node_status, compute_status_patch, initial_node, testing::Parts},
    };

    const NOW: WallTime = WallTime(0);

    fn parts(has_cloud_controller: bool, serves_pods: bool) -> Parts {
        let mut parts = Parts::board();
        parts.k3s = Some(K3sNodeRules {
            has_cloud_controller,
            serves_pods,
        });
        parts
    }

    fn shown(node: &Node) -> Vec<String> {
        let all = node.status.addresses.iter();
        all.map(|address| format!("{} {}", address.kind, address.address))
            .collect()
    }

    #[test]
    fn marks_of_a_node() {
        // K3SN-03 K3SN-05 K3SN-06
        let mut parts = parts(true, false);
        parts.settings.labels = [("shelf".to_owned(), "2".to_owned())].into();
        let (node, _) = initial_node(&parts.view(), NOW);
        let note = |node: &Node, name: &str| node.metadata.annotations.get(name).cloned();
        assert_eq!(note(&node, INTERNAL_IP).as_deref(), Some("192.0.2.1"));
        assert_eq!(note(&node, HOSTNAME).as_deref(), Some("pi"));
        assert_eq!(note(&node, EXTERNAL_IP), None);
        assert_eq!(node.spec.provider_id, "k3s://pi");
        assert!(node.spec.taints.is_empty());
        assert_eq!(shown(&node), ["InternalIP 192.0.2.1", "Hostname pi"]);
        assert_eq!(node.metadata.labels.get("shelf").map(|s| &**s), Some("2"));

        // An address of others' choice, a Node that is taken over, and labels that somebody has taken away.
        let ip = |text: &str| text.parse().expect(text);
        parts.settings.external_ips = vec![ip("198.51.100.7"), ip("2001:db8::7")];
        let mut old = node.clone();
        old.spec.provider_id = "other://1".into();
        old.metadata.labels.remove("shelf");
        old.metadata
            .annotations
            .insert(INTERNAL_DNS.into(), "pi.lan".into());
        let mut wanted = old.clone();
        apply_node_status(&mut wanted, &parts.view(), NOW);
        assert_eq!(
            note(&wanted, EXTERNAL_IP).as_deref(),
            Some("198.51.100.7,2001:db8::7")
        );
        assert_eq!(
            shown(&wanted),
            [
                "InternalIP 192.0.2.1",
                "ExternalIP 198.51.100.7",
                "ExternalIP 2001:db8::7",
                "Hostname pi",
                "InternalDNS pi.lan"
            ]
        );
        assert!(wanted.metadata.labels.contains_key("shelf"));
        assert_eq!(wanted.spec.provider_id, "other://1");
        // It has none of its own any more: the annotation stays, and so does the address.
        parts.settings.external_ips = Vec::new();
        let before = wanted.clone();
        apply_node_status(&mut wanted, &parts.view(), NOW);
        assert_eq!(shown(&wanted), shown(&before));
    }

    #[test]
    fn addresses_do_not_flap() {
        // K3SN-05: what the cloud controller makes of the annotations is what the agent wants, in any order.
        let mut parts = parts(true, false);
        parts.settings.external_ips = vec!["198.51.100.7".parse().expect("an address")];
        let (mut node, _) = initial_node(&parts.view(), NOW);
        apply_node_status(&mut node, &parts.view(), NOW);
        node.status.addresses.reverse();
        let seen = node.clone();
        apply_node_status(&mut node, &parts.view(), NOW);
        assert_eq!(compute_status_patch(&seen, &node), None);
        // Other addresses are no such thing.
        node.status.addresses[0].address = "other".into();
        apply_node_status(&mut node, &parts.view(), NOW);
        assert_eq!(shown(&node).len(), 3);
        assert!(!shown(&node).iter().any(|text| text.contains("other")));
    }

    #[test]
    fn without_the_cloud_controller() {
        // K3SN-03 K3SN-05: another one gives addresses and IDs.
        let none = Parts::board();
        let parts = parts(false, false);
        let (plain, _) = initial_node(&none.view(), NOW);
        let (node, _) = initial_node(&parts.view(), NOW);
        assert_eq!(node, plain);
        assert_eq!(node.spec.provider_id, "");
        let mut external = Parts::board();
        external.settings.external_cloud = true;
        external.k3s = Some(K3sNodeRules {
            has_cloud_controller: true,
            serves_pods: false,
        });
        let (node, _) = initial_node(&external.view(), NOW);
        assert_eq!(node.metadata.annotations.get(INTERNAL_IP), None);
        // The operator wants a kubelet's way.
        assert_eq!(node.spec.taints.len(), 1);
    }

    #[test]
    fn label_of_nodes_whose_pods_are_reached() {
        // K3ST-16
        for (mode, has_tunnel, wanted) in [
            ("agent", true, false),
            ("pod", true, true),
            ("cluster", true, true),
            ("disabled", true, false),
            ("pod", false, false),
        ] {
            let mut parts = parts(true, is_pod_egress(mode));
            parts.settings.carries_pod_dials = has_tunnel;
            let mut node = Node::default();
            for before in [false, true] {
                if before {
                    node.metadata.labels.insert(EGRESS.into(), "true".into());
                }
                apply_node_status(&mut node, &parts.view(), NOW);
                assert_eq!(node.metadata.labels.contains_key(EGRESS), wanted, "{mode}");
            }
        }
    }

    #[test]
    fn families() {
        // K3SN-16
        let range = |text: &&str| (text.parse().expect("an address"), 16);
        let ips = |all: &[&str]| -> Vec<IpAddr> {
            all.iter()
                .map(|ip| ip.parse().expect("an address"))
                .collect()
        };
        for (pods, services, own, fault) in [
            (
                &["10.42.0.0"][..],
                &["10.43.0.0"][..],
                &["192.0.2.1"][..],
                "",
            ),
            (
                &["10.42.0.0"],
                &["10.43.0.0"],
                &["192.0.2.1", "fd00::1"],
                "",
            ),
            (&["10.42.0.0"], &["10.43.0.0"], &[], ""),
            (&[], &["10.43.0.0"], &["fd00::1"], ""),
            (&["fd42::"], &["fd43::"], &["fd00::1"], ""),
            (
                &["10.42.0.0"],
                &["10.43.0.0"],
                &["fd00::1"],
                "IPv4 addresses and this node IPv6",
            ),
            (
                &["10.42.0.0", "fd42::"],
                &["10.43.0.0", "fd43::"],
                &["192.0.2.1"],
                "IPv4 and IPv6 addresses and this node IPv4",
            ),
            (
                &["10.42.0.0", "fd42::"],
                &["10.43.0.0", "fd43::"],
                &["192.0.2.1", "fd00::1"],
                "",
            ),
            (
                &["10.42.0.0", "fd42::"],
                &["10.43.0.0"],
                &["192.0.2.1", "fd00::1"],
                "Services IPv4",
            ),
        ] {
            let network = ClusterNetwork {
                cluster_ranges: pods.iter().map(range).collect(),
                service_ranges: services.iter().map(range).collect(),
                node_ports: ClusterNetwork::NODE_PORTS,
                flannel_backend: String::new(),
                flannel_ipv6_masquerade: false,
                flannel_external_ip: false,
                has_kube_proxy: true,
                has_service_lb: true,
                has_cloud_controller: true,
                has_network_policy: true,
            };
            let found = find_family_fault(&network, &ips(own));
            assert_eq!(
                found.is_some(),
                !fault.is_empty(),
                "{pods:?} {services:?} {own:?}"
            );
            assert!(found.unwrap_or_default().contains(fault));
        }
    }
}
