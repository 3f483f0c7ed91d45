//! Settings of the network between nodes: `picolet.podNetwork` (FLAN-04).

use serde::Deserialize;
use serde_json::Value;

use crate::{
    config::{
        AgentConfig, TableKey,
        checks::{InvalidField, invalid_field},
        key,
    },
    logic::{node::Cidr, pod_network::choice::OwnChoice},
    parts::read_section,
};

/// Section of the configuration.
const SECTION: &str = "podNetwork";
/// Keys of the network.
pub(super) const KEYS: [TableKey; 5] = [
    key("picolet.podNetwork.backend"),
    key("picolet.podNetwork.clusterCIDRs"),
    key("picolet.podNetwork.interface"),
    key("picolet.podNetwork.ipv6Masquerade"),
    key("picolet.podNetwork.port"),
];
/// One range of each family.
const MAX_RANGES: usize = 2;
/// Longest name of an interface, bytes.
const MAX_INTERFACE_BYTES: usize = 15;

/// `picolet.podNetwork`, as it is written.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PodNetworkSection {
    backend: Option<String>,
    #[serde(rename = "clusterCIDRs")]
    cluster_cidrs: Vec<String>,
    interface: Option<String>,
    #[serde(rename = "ipv6Masquerade")]
    ipv6_masquerade: Option<bool>,
    port: Option<u16>,
}

/// Settings of the node, checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PodNetworkSettings {
    pub(super) choice: OwnChoice,
    /// External interface; `None`: that of the default route.
    pub(super) interface: Option<String>,
    /// UDP port of vxlan; 0: that of the kernel.
    pub(super) port: u16,
}

/// Reads the settings below `own`, the value of `picolet`. `None`: the node makes no such network.
pub(super) fn resolve_pod_network(
    own: &Value,
    config: &AgentConfig,
) -> Result<Option<PodNetworkSettings>, InvalidField> {
    let section: PodNetworkSection = read_section(own, SECTION)?;
    let is_k3s = config.cluster.k3s.is_some();
    let backend = section.backend.filter(|name| !name.is_empty());
    let field = "picolet.podNetwork.backend";
    match backend.as_deref() {
        Some("vxlan" | "host-gw") | None => {}
        Some("none") => return Ok(None),
        Some(name) => {
            return invalid_field(
                field,
                format!("is {name:?}, must be vxlan, host-gw or none"),
            );
        }
    }
    let ranges = section.cluster_cidrs.iter().map(|text| {
        text.parse::<Cidr>().or_else(|_| {
            let field = "picolet.podNetwork.clusterCIDRs";
            invalid_field(
                field,
                format!("has {text:?}, must be ranges such as 10.42.0.0/16"),
            )
        })
    });
    let ranges: Vec<Cidr> = ranges.collect::<Result<_, _>>()?;
    let v4 = ranges
        .iter()
        .filter(|range| range.address.is_ipv4())
        .count();
    if v4 > 1 || ranges.len() > MAX_RANGES || ranges.len() - v4 > 1 {
        let field = "picolet.podNetwork.clusterCIDRs";
        return invalid_field(field, "must be one range, or one of each family");
    }
    if let Some(name) = &section.interface
        && (name.is_empty() || name.len() > MAX_INTERFACE_BYTES || name.contains('/'))
    {
        let field = "picolet.podNetwork.interface";
        return invalid_field(
            field,
            format!("is {name:?}, must be the name of an interface"),
        );
    }
    match (&backend, is_k3s) {
        (None, false) => return Ok(None),
        // Whoever chose the addresses of the pods has another network.
        (None, true) if config.network.subnet_is_given => return Ok(None),
        (Some(_), _) if config.network.subnet_is_given => {
            return invalid_field(
                field,
                "cannot be used with podCIDR: the cluster gives each node its addresses",
            );
        }
        (Some(_), false) if config.cluster.network_kubeconfig.is_none() => {
            return invalid_field(
                field,
                "needs picolet.networkKubeconfig, an identity that may list and watch nodes",
            );
        }
        (Some(_), false) if ranges.is_empty() => {
            return invalid_field(field, "needs picolet.podNetwork.clusterCIDRs");
        }
        _ => {}
    }
    Ok(Some(PodNetworkSettings {
        choice: OwnChoice {
            backend,
            ranges,
            hides_v6: section.ipv6_masquerade,
        },
        interface: section.interface,
        port: section.port.unwrap_or(0),
    }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        config::{self, HostIdentity},
        net::Url,
    };

    fn resolve(
        section: Value,
        change: impl FnOnce(&mut AgentConfig),
    ) -> Result<Option<PodNetworkSettings>, String> {
        let host = HostIdentity {
            hostname: "node".into(),
        };
        let mut config = config::default_config(&host).expect("a configuration");
        change(&mut config);
        let found = resolve_pod_network(&json!({ "podNetwork": section }), &config);
        found.map_err(|e| format!("{}: {}", e.field, e.message))
    }

    fn k3s(config: &mut AgentConfig) {
        let url = Url::parse("https://a.test:6443").expect("a URL");
        config.cluster.k3s = Some((url, "/password".into()));
    }

    fn kubeconfig(config: &mut AgentConfig) {
        config.cluster.network_kubeconfig = Some("/network.conf".into());
    }

    #[test]
    fn only_a_cluster_that_asks_has_it() {
        // FLAN-04
        assert_eq!(resolve(Value::Null, |_| {}), Ok(None));
        assert_eq!(
            resolve(Value::Null, k3s),
            Ok(Some(PodNetworkSettings::default()))
        );
        assert_eq!(resolve(json!({"backend": "none"}), k3s), Ok(None));
        let chosen = |config: &mut AgentConfig| {
            k3s(config);
            config.network.subnet_is_given = true;
        };
        assert_eq!(resolve(Value::Null, chosen), Ok(None));
        let section = json!({
            "backend": "host-gw", "clusterCIDRs": ["10.9.0.0/16", "fd09::/56"],
            "interface": "eth1", "port": 4789, "ipv6Masquerade": true,
        });
        let settings = resolve(section, kubeconfig).expect("right").expect("it");
        assert_eq!(settings.choice.backend.as_deref(), Some("host-gw"));
        assert_eq!(settings.choice.ranges.len(), 2);
        assert_eq!(settings.choice.hides_v6, Some(true));
        assert_eq!(settings.interface.as_deref(), Some("eth1"));
        assert_eq!(settings.port, 4789);
    }

    #[test]
    fn wrong_settings_are_refused() {
        // FLAN-04
        let full = json!({"backend": "vxlan", "clusterCIDRs": ["10.9.0.0/16"]});
        for (section, change, says) in [
            (
                json!({"backend": "wireguard"}),
                k3s as fn(&mut AgentConfig),
                "backend: is \"wireguard\", must be vxlan, host-gw or none",
            ),
            (
                full.clone(),
                |_| {},
                "backend: needs picolet.networkKubeconfig, an identity that may list and watch nodes",
            ),
            (
                json!({"backend": "vxlan"}),
                kubeconfig,
                "backend: needs picolet.podNetwork.clusterCIDRs",
            ),
            (
                full,
                |config| config.network.subnet_is_given = true,
                "backend: cannot be used with podCIDR",
            ),
            (
                json!({"clusterCIDRs": ["x"]}),
                k3s,
                "clusterCIDRs: has \"x\", must be ranges such as 10.42.0.0/16",
            ),
            (
                json!({"clusterCIDRs": ["10.1.0.0/16", "10.2.0.0/16"]}),
                k3s,
                "clusterCIDRs: must be one range, or one of each family",
            ),
            (
                json!({"interface": "../eth0"}),
                k3s,
                "interface: is \"../eth0\", must be the name of an interface",
            ),
        ] {
            let error = resolve(section, change).expect_err(says);
            assert!(
                error.starts_with(&format!("picolet.podNetwork.{says}")),
                "{error}"
            );
        }
    }
}
