//! Settings of Services on this node (PROX-01, PROX-09, PROX-19, PROX-21).

use core::net::{Ipv4Addr, SocketAddr};

use serde::Deserialize;
use serde_json::Value;

use super::NAME;
use crate::{
    config::{
        AgentConfig, TableKey,
        checks::{InvalidField, invalid_field},
        key,
    },
    logic::services::{AddressRange, parse_range},
    parts::read_section,
};

/// Keys of the part.
pub(super) static KEYS: [TableKey; 6] = [
    key("picolet.services.clusterRanges"),
    key("picolet.services.enabled"),
    key("picolet.services.healthzBindAddress"),
    key("picolet.services.nodePortAddresses"),
    key("picolet.services.serviceRanges"),
    key("picolet.services.watch"),
];

/// Port at which a kube-proxy tells its health.
const HEALTHZ_PORT: u16 = 10256;
/// Most ranges of a key.
const MAX_RANGES: usize = 8;

/// `picolet.services`, as it is written.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ServicesSection {
    cluster_ranges: Vec<String>,
    enabled: Option<bool>,
    healthz_bind_address: Option<String>,
    node_port_addresses: Vec<String>,
    service_ranges: Vec<String>,
    watch: Option<bool>,
}

/// Settings of Services on this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ServicesConfig {
    /// Set if rules that are there are only to be removed.
    pub(super) is_off: bool,
    /// Set if servers of k3s tell what is not set here, and if the part is wanted at all.
    pub(super) is_of_k3s: bool,
    /// Address at which the health of this node is told; `None`: nowhere.
    pub(super) healthz: Option<SocketAddr>,
    /// Ranges of pods; empty: those that servers tell.
    pub(super) cluster_ranges: Vec<AddressRange>,
    /// Ranges of Services; empty: those that servers tell.
    pub(super) service_ranges: Vec<AddressRange>,
    /// Addresses of the node that serve ports of nodes; empty: all.
    pub(super) node_port_ranges: Vec<AddressRange>,
    /// Set if changes are watched.
    pub(super) watch: bool,
}

/// Resolves the part below `own`, the value of `picolet`; `None`: it is not configured.
pub(super) fn resolve_services(
    own: &Value,
    config: &AgentConfig,
) -> Result<Option<ServicesConfig>, InvalidField> {
    let section: ServicesSection = read_section(own, NAME)?;
    let is_of_k3s = config.cluster.k3s.is_some();
    let has_section = own.get(NAME).is_some_and(|section| !section.is_null());
    if !is_of_k3s && !has_section {
        return Ok(None);
    }
    let ranges = |name: &str, texts: &[String]| {
        let field = format!("picolet.services.{name}");
        if texts.len() > MAX_RANGES {
            let found = texts.len();
            return invalid_field(
                &field,
                format!("has {found} items, must have at most {MAX_RANGES}"),
            );
        }
        let ranges = texts.iter().map(|text| match parse_range(text) {
            Some(range) => Ok(range),
            None => invalid_field(&field, format!("has {text:?}, must be ADDRESS/BITS")),
        });
        ranges.collect::<Result<Vec<_>, _>>()
    };
    // A server of k3s starts its kube-proxy on loopback.
    let healthz = match section.healthz_bind_address.as_deref() {
        Some("") => None,
        Some(text) => match text.parse() {
            Ok(address) => Some(address),
            Err(_) => {
                return invalid_field(
                    "picolet.services.healthzBindAddress",
                    format!("has {text:?}, must be ADDRESS:PORT"),
                );
            }
        },
        None if is_of_k3s => Some((Ipv4Addr::LOCALHOST, HEALTHZ_PORT).into()),
        None => Some((Ipv4Addr::UNSPECIFIED, HEALTHZ_PORT).into()),
    };
    let cfg = ServicesConfig {
        is_off: section.enabled == Some(false),
        is_of_k3s,
        healthz,
        cluster_ranges: ranges("clusterRanges", &section.cluster_ranges)?,
        service_ranges: ranges("serviceRanges", &section.service_ranges)?,
        node_port_ranges: ranges("nodePortAddresses", &section.node_port_addresses)?,
        watch: section.watch.unwrap_or(true),
    };
    if !cfg.is_off && !is_of_k3s {
        if cfg.cluster_ranges.is_empty() || cfg.service_ranges.is_empty() {
            return invalid_field(
                "picolet.services",
                "needs clusterRanges and serviceRanges: only servers of k3s tell them",
            );
        }
        if config.cluster.network_kubeconfig.is_none() {
            return invalid_field(
                "picolet.services",
                "needs picolet.networkKubeconfig: a node may not list Services",
            );
        }
    }
    Ok(Some(cfg))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::{self, HostIdentity};

    #[test]
    fn settings() {
        // PROX-01 PROX-09
        let host = HostIdentity {
            hostname: "node".into(),
        };
        let mut alone = config::default_config(&host).expect("a configuration");
        alone.cluster.k3s = None;
        let mut reads = alone.clone();
        reads.cluster.network_kubeconfig = Some("/network.conf".into());
        let of = |config: &AgentConfig, section: Value| {
            let found = resolve_services(&json!({ "services": section }), config);
            found.map_err(|e| format!("{}: {}", e.field, e.message))
        };
        assert_eq!(of(&alone, Value::Null), Ok(None));
        let off = of(&alone, json!({"enabled": false})).expect("right");
        assert!(off.is_some_and(|cfg| cfg.is_off));
        let whole = json!({
            "clusterRanges": ["10.42.0.0/16"], "serviceRanges": ["10.43.0.0/16", "fd43::/112"],
            "nodePortAddresses": ["192.0.2.0/24"], "watch": false,
        });
        let cfg = of(&reads, whole.clone())
            .expect("right")
            .expect("configured");
        assert_eq!(
            (cfg.service_ranges.len(), cfg.watch, cfg.is_of_k3s),
            (2, false, false)
        );
        for (config, address, expected) in [
            (&alone, Value::Null, "127.0.0.1:10256"),
            (&reads, Value::Null, "0.0.0.0:10256"),
            (&reads, json!("192.0.2.1:80"), "192.0.2.1:80"),
            (&reads, json!(""), ""),
        ] {
            let mut section = whole.clone();
            section["healthzBindAddress"] = address;
            let mut config = config.clone();
            if expected.starts_with("127") {
                let url = crate::net::Url::parse("https://a.test:6443").expect("a URL");
                config.cluster.k3s = Some((url, "/password".into()));
            }
            let cfg = of(&config, section).expect("right").expect("configured");
            let found = cfg.healthz.map(|it| it.to_string()).unwrap_or_default();
            assert_eq!(found, expected);
        }
        for (config, section, says) in [
            (
                &reads,
                json!({"healthzBindAddress": "192.0.2.1"}),
                "picolet.services.healthzBindAddress: has \"192.0.2.1\", must be ADDRESS:PORT",
            ),
            (
                &reads,
                json!({}),
                "picolet.services: needs clusterRanges and serviceRanges",
            ),
            (
                &alone,
                whole,
                "picolet.services: needs picolet.networkKubeconfig",
            ),
            (
                &reads,
                json!({"serviceRanges": ["10.43.0.0"]}),
                "picolet.services.serviceRanges: has \"10.43.0.0\", must be ADDRESS/BITS",
            ),
            (
                &reads,
                json!({"clusterRanges": vec!["10.42.0.0/16"; 9]}),
                "picolet.services.clusterRanges: has 9 items, must have at most 8",
            ),
        ] {
            let error = of(config, section).expect_err(says);
            assert!(error.starts_with(says), "{error}");
        }
    }
}
