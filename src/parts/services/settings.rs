//! Settings of Services on this node (PROX-01, PROX-09, PROX-21).

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
pub(super) static KEYS: [TableKey; 5] = [
    key("picolet.services.clusterRanges"),
    key("picolet.services.enabled"),
    key("picolet.services.nodePortAddresses"),
    key("picolet.services.serviceRanges"),
    key("picolet.services.watch"),
];

/// Most ranges of a key.
const MAX_RANGES: usize = 8;

/// `picolet.services`, as it is written.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ServicesSection {
    cluster_ranges: Vec<String>,
    enabled: Option<bool>,
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
    /// Ranges of pods; empty: those that servers tell.
    pub(super) cluster_ranges: Vec<AddressRange>,
    /// Ranges of Services; empty: those that servers tell.
    pub(super) service_ranges: Vec<AddressRange>,
    /// Addresses of the node that serve ports of nodes; empty: all.
    pub(super) node_port_ranges: Vec<AddressRange>,
    /// Set if changes are watched; `None`: unless the bytes of the link cost money.
    pub(super) watch: Option<bool>,
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
    let cfg = ServicesConfig {
        is_off: section.enabled == Some(false),
        is_of_k3s,
        cluster_ranges: ranges("clusterRanges", &section.cluster_ranges)?,
        service_ranges: ranges("serviceRanges", &section.service_ranges)?,
        node_port_ranges: ranges("nodePortAddresses", &section.node_port_addresses)?,
        watch: section.watch,
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
