//! Choice of the network: the node's own settings, else those that the servers of its cluster tell (FLAN-04).

use alloc::{string::String, vec::Vec};

use super::{
    PodNetworkBackend,
    ranges::{covers, range_of},
};
use crate::{api::cluster_network::ClusterNetwork, node::Cidr};

/// Settings of the node itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnChoice {
    /// Name of the backend; `None`: that of the cluster.
    pub backend: Option<String>,
    /// Ranges of all pods; empty: those of the cluster.
    pub ranges: Vec<Cidr>,
    /// Set if pods' IPv6 addresses are hidden; `None`: as in the cluster.
    pub hides_v6: Option<bool>,
}

/// Network that a node is to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChosenNetwork {
    /// Backend.
    pub backend: PodNetworkBackend,
    /// Ranges of all pods.
    pub ranges: Vec<Cidr>,
    /// Set if pods' IPv6 addresses are hidden.
    pub hides_v6: bool,
    /// Set if nodes reach each other at their external addresses.
    pub uses_external_ip: bool,
}

/// Result of the choice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetworkChoice {
    /// No server has told the network yet.
    Unknown,
    /// There is to be none.
    Off,
    /// The backend is none of ours: the node stays without routes.
    Foreign(String),
    /// A network with these properties.
    Use(ChosenNetwork),
}

/// Longest name of a backend that is shown, characters.
const SHOWN_CHARACTERS: usize = 32;

/// Chooses the network. `cluster`: what servers tell, if they do.
#[must_use]
pub fn choose_network(own: &OwnChoice, cluster: Option<&ClusterNetwork>) -> NetworkChoice {
    let told = cluster.map(|cluster| cluster.flannel_backend.as_str());
    let Some(name) = own.backend.as_deref().or(told) else {
        return NetworkChoice::Unknown;
    };
    if matches!(name, "" | "none") {
        return NetworkChoice::Off;
    }
    let Some(backend) = PodNetworkBackend::from_name(name) else {
        return NetworkChoice::Foreign(name.chars().take(SHOWN_CHARACTERS).collect());
    };
    let ranges = match (own.ranges.is_empty(), cluster) {
        (false, _) => own.ranges.clone(),
        (true, None) => return NetworkChoice::Unknown,
        (true, Some(cluster)) => {
            let told = cluster.cluster_ranges.iter();
            told.filter_map(|(address, prefix)| range_of(*address, *prefix))
                .collect()
        }
    };
    NetworkChoice::Use(ChosenNetwork {
        backend,
        ranges,
        hides_v6: own
            .hides_v6
            .unwrap_or_else(|| cluster.is_some_and(|cluster| cluster.flannel_ipv6_masquerade)),
        uses_external_ip: cluster.is_some_and(|cluster| cluster.flannel_external_ip),
    })
}

/// Reason why the node's own pods have no place in the network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OwnRangeError {
    /// The control plane has not given addresses.
    #[error(
        "waiting for spec.podCIDR of this node: the controller manager of the cluster gives it"
    )]
    NotGiven,
    /// The addresses are not the network's.
    #[error("spec.podCIDR {0} of this node is outside the network of pods")]
    Outside(Cidr),
}

/// Families in which the node takes part: for each, the range of all pods and that of its own.
pub fn own_families(
    network: &ChosenNetwork,
    own: &[Cidr],
) -> Result<Vec<(Cidr, Cidr)>, OwnRangeError> {
    let mut families = Vec::new();
    for range in own {
        let all = network.ranges.iter().find(|all| covers(**all, *range));
        families.push((*all.ok_or(OwnRangeError::Outside(*range))?, *range));
    }
    match families.is_empty() {
        true => Err(OwnRangeError::NotGiven),
        false => Ok(families),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(text: &str) -> Cidr {
        text.parse().expect(text)
    }

    fn told(backend: &str) -> ClusterNetwork {
        ClusterNetwork {
            cluster_ranges: vec![("10.42.0.0".parse().expect("an address"), 16)],
            service_ranges: Vec::new(),
            node_ports: ClusterNetwork::NODE_PORTS,
            flannel_backend: backend.into(),
            flannel_ipv6_masquerade: true,
            flannel_external_ip: true,
            has_kube_proxy: true,
            has_service_lb: true,
            has_cloud_controller: true,
            has_network_policy: true,
        }
    }

    #[test]
    fn the_network_is_chosen() {
        // FLAN-04
        let none = OwnChoice::default();
        let of_cluster = ChosenNetwork {
            backend: PodNetworkBackend::Vxlan,
            ranges: vec![range("10.42.0.0/16")],
            hides_v6: true,
            uses_external_ip: true,
        };
        let own = OwnChoice {
            backend: Some("host-gw".into()),
            ranges: vec![range("10.9.0.0/16")],
            hides_v6: Some(false),
        };
        let of_node = ChosenNetwork {
            backend: PodNetworkBackend::HostGateway,
            ranges: own.ranges.clone(),
            hides_v6: false,
            uses_external_ip: false,
        };
        let foreign = |name: &str| NetworkChoice::Foreign(name.into());
        for (own, cluster, choice) in [
            (&none, None, NetworkChoice::Unknown),
            (&none, Some("vxlan"), NetworkChoice::Use(of_cluster)),
            (&none, Some("none"), NetworkChoice::Off),
            (&none, Some(""), NetworkChoice::Off),
            (&none, Some("tailscale"), foreign("tailscale")),
            (&none, Some("wireguard-native"), foreign("wireguard-native")),
            (&own, None, NetworkChoice::Use(of_node)),
        ] {
            let cluster = cluster.map(told);
            assert_eq!(choose_network(own, cluster.as_ref()), choice);
        }
        let backend_only = OwnChoice {
            backend: Some("vxlan".into()),
            ..OwnChoice::default()
        };
        assert_eq!(choose_network(&backend_only, None), NetworkChoice::Unknown);
    }

    #[test]
    fn own_pods_have_a_place() {
        // FLAN-05
        let network = ChosenNetwork {
            backend: PodNetworkBackend::Vxlan,
            ranges: vec![range("10.42.0.0/16"), range("fd42::/56")],
            hides_v6: false,
            uses_external_ip: false,
        };
        let (v4, v6) = (range("10.42.3.0/24"), range("fd42:0:0:3::/64"));
        assert_eq!(own_families(&network, &[]), Err(OwnRangeError::NotGiven));
        assert_eq!(
            own_families(&network, &[v4, v6]),
            Ok(vec![(network.ranges[0], v4), (network.ranges[1], v6)])
        );
        let outside = range("10.88.0.0/16");
        assert_eq!(
            own_families(&network, &[outside]),
            Err(OwnRangeError::Outside(outside))
        );
    }
}
