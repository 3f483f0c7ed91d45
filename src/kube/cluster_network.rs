//! Description of a cluster, as a supervisor of k3s gives it to nodes (K3SJ-07, K3SN-01).
//!
//! Source: k3s `pkg/daemons/config/types.go`, whose field names these are.

use serde::Deserialize;

use crate::api::cluster_network::{
    AddressRange, ClusterNetwork, GoAddressRange, K3sClusterFacts, MAX_RANGES,
};
use crate::net::Url;

/// Longest word of a description that is kept, bytes.
const MAX_WORD_BYTES: usize = 64;

/// A supervisor's description of its cluster. It has secrets, too: fields without a name here are dropped with the text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct K3sCluster {
    /// Name servers of pods.
    #[serde(rename = "ClusterDNSs")]
    dns: Option<Vec<String>>,
    /// Name server of pods, as older servers name it.
    #[serde(rename = "ClusterDNS")]
    one_dns: Option<String>,
    /// Domain of Services.
    pub cluster_domain: String,
    /// Way of the apiserver to nodes: `disabled` is directly.
    pub egress_selector_mode: String,
    /// Port of the apiserver.
    #[serde(rename = "HTTPSPort")]
    pub port: u16,
    /// Port of the supervisor beside each apiserver; 0: the one that was joined.
    pub supervisor_port: u16,
    #[serde(rename = "ClusterIPRanges")]
    cluster_ranges: Option<Vec<Option<GoAddressRange>>>,
    #[serde(rename = "ClusterIPRange")]
    cluster_range: Option<GoAddressRange>,
    #[serde(rename = "ServiceIPRanges")]
    service_ranges: Option<Vec<Option<GoAddressRange>>>,
    #[serde(rename = "ServiceIPRange")]
    service_range: Option<GoAddressRange>,
    service_node_port_range: Option<GoPortRange>,
    flannel_backend: String,
    #[serde(rename = "FlannelIPv6Masq")]
    flannel_ipv6_masquerade: bool,
    #[serde(rename = "FlannelExternalIP")]
    flannel_external_ip: bool,
    disable_kube_proxy: bool,
    #[serde(rename = "DisableNPC")]
    disable_network_policy: bool,
    #[serde(rename = "DisableCCM")]
    disable_cloud_controller: bool,
    #[serde(rename = "DisableServiceLB")]
    disable_service_lb: bool,
    embedded_registry: bool,
}

/// First port and number of ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct GoPortRange {
    base: i64,
    size: i64,
}

impl K3sCluster {
    /// Name servers of pods.
    #[must_use]
    pub fn name_servers(&self) -> Vec<&str> {
        let many = self.dns.as_deref().filter(|dns| !dns.is_empty());
        let all = many.unwrap_or(self.one_dns.as_slice()).iter();
        all.map(String::as_str)
            .filter(|ip| !ip.is_empty())
            .collect()
    }

    /// The URL of the apiserver beside the supervisor at `url`.
    #[must_use]
    pub fn apiserver_url(&self, url: &Url) -> Url {
        let of_port = format!("https://{}:{}", bracketed(url.host()), self.port);
        let other = (self.port != 0 && self.port != url.port()).then(|| Url::parse(&of_port).ok());
        other.flatten().unwrap_or_else(|| url.clone())
    }

    /// Returns true if the apiserver reaches nodes only through a tunnel that each of them keeps open (K3ST-06).
    #[must_use]
    pub fn wants_tunnel(&self) -> bool {
        !matches!(&*self.egress_selector_mode, "" | "disabled")
    }

    /// Facts that a node goes by and keeps. `apiservers`: the addresses that the same server has told.
    #[must_use]
    pub fn to_facts(&self, apiservers: Vec<String>) -> K3sClusterFacts {
        K3sClusterFacts {
            network: ClusterNetwork {
                cluster_ranges: read_ranges(
                    self.cluster_ranges.as_deref(),
                    self.cluster_range.as_ref(),
                ),
                service_ranges: read_ranges(
                    self.service_ranges.as_deref(),
                    self.service_range.as_ref(),
                ),
                node_ports: self.node_ports(),
                flannel_backend: short_word(&self.flannel_backend),
                flannel_ipv6_masquerade: self.flannel_ipv6_masquerade,
                flannel_external_ip: self.flannel_external_ip,
                has_kube_proxy: !self.disable_kube_proxy,
                has_service_lb: !self.disable_service_lb,
                has_cloud_controller: !self.disable_cloud_controller,
                has_network_policy: !self.disable_network_policy,
            },
            egress_mode: short_word(&self.egress_selector_mode),
            supervisor_port: self.supervisor_port,
            has_embedded_registry: self.embedded_registry,
            apiservers,
        }
    }

    fn node_ports(&self) -> core::ops::RangeInclusive<u16> {
        let range = self.service_node_port_range.unwrap_or_default();
        let last = range.base.saturating_add(range.size).saturating_sub(1);
        match (u16::try_from(range.base), u16::try_from(last)) {
            (Ok(first @ 1..), Ok(last)) if first <= last => first..=last,
            _ => ClusterNetwork::NODE_PORTS,
        }
    }
}

/// Ranges as newer servers name them, else the one of older servers. What is no range is left out.
fn read_ranges(
    many: Option<&[Option<GoAddressRange>]>,
    one: Option<&GoAddressRange>,
) -> Vec<AddressRange> {
    let many = many.unwrap_or_default().iter().flatten();
    let mut ranges: Vec<AddressRange> = many
        .filter_map(GoAddressRange::range)
        .take(MAX_RANGES)
        .collect();
    if ranges.is_empty() {
        ranges.extend(one.and_then(GoAddressRange::range));
    }
    ranges
}

/// A word; empty if it is longer than any.
fn short_word(text: &str) -> String {
    let is_short = text.len() <= MAX_WORD_BYTES;
    text.get(..).filter(|_| is_short).unwrap_or("").to_owned()
}

fn bracketed(host: &str) -> String {
    if host.contains(':') {
        format!("[{host}]")
    } else {
        host.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::strict::from_json;

    #[test]
    fn what_is_read_of_a_description() {
        // K3SN-01
        let facts = |text: &str| {
            let cluster: K3sCluster = from_json(text.as_bytes()).expect(text);
            cluster.to_facts(Vec::new())
        };
        let text = r#"{"ClusterIPRanges":[{"IP":"10.42.0.0","Mask":"//8AAA=="},{"IP":"fd42::","Mask":"////////AAAAAAAAAAAAAA=="}],
            "ClusterIPRange":{"IP":"10.42.0.0","Mask":"//8AAA=="},"ServiceIPRanges":[{"IP":"10.43.0.0","Mask":"//8AAA=="},null],
            "ServiceNodePortRange":{"Base":31000,"Size":100},"FlannelBackend":"host-gw","FlannelIPv6Masq":true,
            "FlannelExternalIP":true,"EgressSelectorMode":"pod","SupervisorPort":9345,"HTTPSPort":6443,"DisableKubeProxy":true,
            "DisableNPC":true,"DisableCCM":true,"DisableServiceLB":true,"EmbeddedRegistry":true,"MinTLSVersion":"",
            "IPSECPSK":"secret","Skips":{"a":true},"CipherSuites":null}"#;
        let read = facts(text);
        let ranges = |ranges: &[AddressRange]| -> Vec<String> {
            ranges
                .iter()
                .map(|(ip, length)| format!("{ip}/{length}"))
                .collect()
        };
        let network = &read.network;
        assert_eq!(
            ranges(&network.cluster_ranges),
            ["10.42.0.0/16", "fd42::/48"]
        );
        assert_eq!(ranges(&network.service_ranges), ["10.43.0.0/16"]);
        assert_eq!(network.node_ports, 31_000..=31_099);
        assert_eq!(network.flannel_backend, "host-gw");
        assert!(network.flannel_ipv6_masquerade && network.flannel_external_ip);
        let all = [
            network.has_kube_proxy,
            network.has_network_policy,
            network.has_cloud_controller,
            network.has_service_lb,
        ];
        assert_eq!(all, [false; 4]);
        assert_eq!((&*read.egress_mode, read.supervisor_port), ("pod", 9345));
        assert!(read.has_embedded_registry);
        // The secret is nowhere: not in what is shown, nor in what is kept.
        let kept = serde_json::to_string(&read).expect("JSON");
        assert!(!format!("{read:?}{kept}").contains("secret"));
        let again: K3sClusterFacts = from_json(kept.as_bytes()).expect("kept");
        assert_eq!(again, read);

        // An older server, one that says little, and one that says nonsense.
        let older = facts(r#"{"ClusterIPRange":{"IP":"10.1.0.0","Mask":"//8AAA=="}}"#);
        assert_eq!(ranges(&older.network.cluster_ranges), ["10.1.0.0/16"]);
        let little = facts("{}").network;
        assert!(little.cluster_ranges.is_empty() && little.has_kube_proxy);
        for (base, size) in [
            (0, 5),
            (-1, 5),
            (65_000, 600),
            (30_000, 0),
            (i64::MAX, i64::MAX),
        ] {
            let text = format!(r#"{{"ServiceNodePortRange":{{"Base":{base},"Size":{size}}}}}"#);
            assert_eq!(facts(&text).network.node_ports, 30_000..=32_767, "{text}");
        }
        let many = vec![r#"{"IP":"10.1.0.0","Mask":"//8AAA=="}"#; 99].join(",");
        let many = facts(&format!(r#"{{"ClusterIPRanges":[{many}]}}"#));
        assert_eq!(many.network.cluster_ranges.len(), MAX_RANGES);
        let long = facts(&format!(r#"{{"FlannelBackend":"{}"}}"#, "x".repeat(65)));
        assert_eq!(long.network.flannel_backend, "");
    }
}
