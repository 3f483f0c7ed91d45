//! Parts of a Service and of an EndpointSlice that the rules use (PROX-02, PROX-03).
//!
//! Fields are taken one by one: what is unknown is ignored, and one wrong field costs that field alone, with a fault
//! that names it.

use alloc::{
    format,
    string::{String, ToString as _},
    vec::Vec,
};
use core::net::IpAddr;

use serde_json::Value;

use super::{
    AddressFamily, AddressRange, ProxyNode, ProxyProtocol,
    endpoints::{EndpointCollector, EndpointFlags, ServiceEndpoint},
    parse_range,
};
use crate::digest::FnvHasher;

/// Most ports of a Service or of a slice.
pub const MAX_PORTS: usize = 100;
/// Most addresses of one kind of a Service: external ones, those of a load balancer, source ranges.
pub const MAX_ADDRESSES: usize = 256;
/// Most endpoints of one slice, as the API limits it.
pub const MAX_SLICE_ENDPOINTS: usize = 1000;
/// Most faults that are told of one object.
const MAX_FAULTS: usize = 8;
/// Time after which a client may get another endpoint, seconds, unless the Service sets it.
const AFFINITY_S: u32 = 10_800;
/// Longest such time, seconds, as the API limits it.
const MAX_AFFINITY_S: u32 = 86_400;

/// Label of an object that another proxy serves.
pub const OTHER_PROXY: &str = "service.kubernetes.io/service-proxy-name";
/// Label of an object of a headless Service.
pub const HEADLESS: &str = "service.kubernetes.io/headless";
/// Label of a slice that names its Service.
pub const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// Faults of an object, which a user can mend. Each names the field.
pub type ObjectFaults = Vec<String>;

/// A Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProxyService {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Digest of the UID: nobody can choose it.
    pub uid: u64,
    /// Digest of the version.
    pub version: u64,
    /// Addresses in the cluster, at most one of each family.
    pub cluster_ips: Vec<IpAddr>,
    /// Ports, at most [`MAX_PORTS`].
    pub ports: Vec<ProxyPort>,
    /// External addresses, at most [`MAX_ADDRESSES`].
    pub external_ips: Vec<IpAddr>,
    /// Addresses of the load balancer that it does not serve itself, at most [`MAX_ADDRESSES`].
    pub balancer_ips: Vec<IpAddr>,
    /// Sources that may use these; empty: all. At most [`MAX_ADDRESSES`].
    pub source_ranges: Vec<AddressRange>,
    /// Set if connections from outside may only go to this node's endpoints.
    pub is_external_local: bool,
    /// Set if connections to the address in the cluster may only go to this node's endpoints.
    pub is_internal_local: bool,
    /// Time for which a client keeps its endpoint, seconds.
    pub affinity_s: Option<u32>,
    /// Port on which load balancers ask whether this node has an endpoint.
    pub health_port: Option<u16>,
}

/// A port of a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProxyPort {
    /// Name; may be empty.
    pub name: String,
    /// Protocol.
    pub protocol: ProxyProtocol,
    /// Number.
    pub port: u16,
    /// Port on every node.
    pub node_port: Option<u16>,
}

impl ProxyService {
    /// Takes a Service from its JSON; `None`: there is nothing to serve (no address in the cluster, `ExternalName`,
    /// another proxy).
    #[must_use]
    pub fn from_json(object: &Value, faults: &mut ObjectFaults) -> Option<Self> {
        let (metadata, spec) = (&object["metadata"], &object["spec"]);
        if is_served_by_others(metadata) || text(&spec["type"]) == "ExternalName" {
            return None;
        }
        let cluster_ip = text(&spec["clusterIP"]);
        if cluster_ip.is_empty() || cluster_ip == "None" {
            return None;
        }
        let kind = text(&spec["type"]);
        let mut fields = FieldReader { faults };
        let mut cluster_ips =
            fields.addresses("spec.clusterIPs", items(&spec["clusterIPs"]).map(text));
        if cluster_ips.is_empty() {
            cluster_ips = fields.addresses("spec.clusterIP", [cluster_ip].into_iter());
        }
        let mut one_each: Vec<IpAddr> = Vec::new();
        for ip in cluster_ips {
            if one_each
                .iter()
                .all(|other| AddressFamily::of(*other) != AddressFamily::of(ip))
            {
                one_each.push(ip);
            }
        }
        let external_ips =
            fields.addresses("spec.externalIPs", items(&spec["externalIPs"]).map(text));
        let ingress = items(&object["status"]["loadBalancer"]["ingress"]);
        let ingress = ingress.filter(|item| matches!(text(&item["ipMode"]), "" | "VIP"));
        let ingress = ingress
            .map(|item| text(&item["ip"]))
            .filter(|ip| !ip.is_empty());
        let balancer_ips = fields.addresses("status.loadBalancer.ingress", ingress);
        let is_local = |field: &str| text(&spec[field]) == "Local";
        let is_accessible = matches!(kind, "LoadBalancer" | "NodePort") || !external_ips.is_empty();
        let is_external_local = is_accessible && is_local("externalTrafficPolicy");
        let affinity_s = (text(&spec["sessionAffinity"]) == "ClientIP").then(|| {
            let set = &spec["sessionAffinityConfig"]["clientIP"]["timeoutSeconds"];
            let set = set.as_u64().and_then(|s| u32::try_from(s).ok());
            set.unwrap_or(AFFINITY_S).clamp(1, MAX_AFFINITY_S)
        });
        let health_port = (kind == "LoadBalancer" && is_external_local)
            .then(|| port_number(&spec["healthCheckNodePort"]))
            .flatten();
        Some(Self {
            namespace: text(&metadata["namespace"]).into(),
            name: text(&metadata["name"]).into(),
            uid: digest_text(text(&metadata["uid"])),
            version: digest_text(text(&metadata["resourceVersion"])),
            cluster_ips: one_each,
            ports: fields.ports(&spec["ports"]),
            source_ranges: fields.ranges(&spec["loadBalancerSourceRanges"]),
            external_ips,
            balancer_ips,
            is_external_local,
            is_internal_local: is_local("internalTrafficPolicy"),
            affinity_s,
            health_port,
        })
    }

    /// Port of this name and protocol.
    fn find_port(&self, name: &str, protocol: ProxyProtocol) -> Option<usize> {
        let mut ports = self.ports.iter();
        ports.position(|port| port.name == name && port.protocol == protocol)
    }
}

/// Adds the endpoints of an EndpointSlice to those of its Service's ports. `collector` has one entry for each port.
pub fn collect_slice(
    slice: &Value,
    service: &ProxyService,
    node: &ProxyNode,
    collector: &mut EndpointCollector,
    faults: &mut ObjectFaults,
) {
    let metadata = &slice["metadata"];
    if is_served_by_others(metadata) || text(&metadata["labels"][SERVICE_NAME]) != service.name {
        return;
    }
    collector.count_slice(slice_digest(
        text(&metadata["name"]),
        text(&metadata["uid"]),
        text(&metadata["resourceVersion"]),
    ));
    let family = match text(&slice["addressType"]) {
        "IPv4" => AddressFamily::V4,
        "IPv6" => AddressFamily::V6,
        _ => return,
    };
    let mut fields = FieldReader { faults };
    if items(&slice["ports"]).count() > MAX_PORTS {
        fields.add_fault(format!("ports: more than {MAX_PORTS}"));
    }
    if items(&slice["endpoints"]).count() > MAX_SLICE_ENDPOINTS {
        fields.add_fault(format!("endpoints: more than {MAX_SLICE_ENDPOINTS}"));
    }
    let ports = items(&slice["ports"]).take(MAX_PORTS);
    let ports: Vec<(usize, u16)> = ports
        .filter_map(|port| {
            // A port without a name (null) or number stands for none; the empty name is one.
            let name = port["name"].as_str()?;
            let protocol = ProxyProtocol::from_api(text(&port["protocol"]))?;
            Some((
                service.find_port(name, protocol)?,
                port_number(&port["port"])?,
            ))
        })
        .collect();
    for endpoint in items(&slice["endpoints"]).take(MAX_SLICE_ENDPOINTS) {
        let Some(first) = items(&endpoint["addresses"]).next() else {
            continue;
        };
        let Ok(ip) = text(first).parse::<IpAddr>() else {
            fields.add_fault(format!("endpoints: {:?} is no address", short(text(first))));
            continue;
        };
        if AddressFamily::of(ip) != family {
            fields.add_fault(format!("endpoints: {ip} is of the wrong family"));
            continue;
        }
        let flags = endpoint_flags(endpoint, node);
        for (index, port) in &ports {
            let (ip, port) = (ip, *port);
            collector.add_endpoint(*index, ServiceEndpoint { ip, port, flags });
        }
    }
}

/// Digest of a slice, by which a change of it is noticed.
#[must_use]
pub fn slice_digest(name: &str, uid: &str, version: &str) -> u64 {
    let mut fnv = FnvHasher::default();
    for part in [name, uid, version] {
        fnv.write_text(part);
    }
    fnv.finish64()
}

/// Digest of one text.
#[must_use]
pub fn digest_text(text: &str) -> u64 {
    let mut fnv = FnvHasher::default();
    fnv.write_text(text);
    fnv.finish64()
}

fn endpoint_flags(endpoint: &Value, node: &ProxyNode) -> EndpointFlags {
    let condition = |name: &str, unset| endpoint["conditions"][name].as_bool().unwrap_or(unset);
    let hints = &endpoint["hints"];
    let names = |field: &str, own: &str| {
        let mut names = items(&hints[field]).map(|hint| text(&hint["name"]));
        let has_any = items(&hints[field]).next().is_some();
        (has_any, names.any(|name| name == own))
    };
    let (has_node_hint, is_for_node) = names("forNodes", &node.name);
    let (has_zone_hint, is_for_zone) = names("forZones", &node.zone);
    let node_name = text(&endpoint["nodeName"]);
    let mut flags = EndpointFlags::default();
    for (flag, is_set) in [
        (
            EndpointFlags::LOCAL,
            !node_name.is_empty() && node_name == node.name,
        ),
        (EndpointFlags::READY, condition("ready", true)),
        (EndpointFlags::SERVING, condition("serving", true)),
        (EndpointFlags::TERMINATING, condition("terminating", false)),
        (EndpointFlags::NODE_HINT, has_node_hint),
        (EndpointFlags::FOR_NODE, is_for_node),
        (EndpointFlags::ZONE_HINT, has_zone_hint),
        (EndpointFlags::FOR_ZONE, is_for_zone),
    ] {
        flags.set(flag, is_set);
    }
    flags
}

fn is_served_by_others(metadata: &Value) -> bool {
    let labels = &metadata["labels"];
    [OTHER_PROXY, HEADLESS]
        .iter()
        .any(|label| labels.get(label).is_some())
}

fn items(list: &Value) -> core::slice::Iter<'_, Value> {
    list.as_array()
        .map(Vec::as_slice)
        .unwrap_or_default()
        .iter()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn short(text: &str) -> &str {
    crate::text::truncate_text(text, 64)
}

fn port_number(value: &Value) -> Option<u16> {
    let number = value.as_u64().and_then(|number| u16::try_from(number).ok());
    number.filter(|number| *number > 0)
}

/// Reads fields, and tells which are wrong.
struct FieldReader<'a> {
    faults: &'a mut ObjectFaults,
}

impl FieldReader<'_> {
    fn add_fault(&mut self, fault: String) {
        if self.faults.len() < MAX_FAULTS {
            self.faults.push(fault);
        }
    }

    fn addresses<'v>(&mut self, field: &str, texts: impl Iterator<Item = &'v str>) -> Vec<IpAddr> {
        let mut found = Vec::new();
        for text in texts {
            let is_address =
                |ip: &IpAddr| !ip.is_unspecified() && !ip.is_loopback() && !ip.is_multicast();
            match text
                .parse::<IpAddr>()
                .ok()
                .map(|ip| ip.to_canonical())
                .filter(is_address)
            {
                Some(_) if found.len() == MAX_ADDRESSES => {
                    self.add_fault(format!("{field}: more than {MAX_ADDRESSES}"));
                    break;
                }
                Some(ip) if !found.contains(&ip) => found.push(ip),
                Some(_) => {}
                None => self.add_fault(format!(
                    "{field}: {:?} is no address that can be served",
                    short(text)
                )),
            }
        }
        found
    }

    fn ranges(&mut self, list: &Value) -> Vec<AddressRange> {
        let mut found = Vec::new();
        for text in items(list).map(text).take(MAX_ADDRESSES) {
            match parse_range(text) {
                Some(range) => found.push(range),
                None => self.add_fault(format!(
                    "spec.loadBalancerSourceRanges: {:?} is no range",
                    short(text)
                )),
            }
        }
        if items(list).count() > MAX_ADDRESSES {
            self.add_fault(format!(
                "spec.loadBalancerSourceRanges: more than {MAX_ADDRESSES}"
            ));
        }
        found
    }

    fn ports(&mut self, list: &Value) -> Vec<ProxyPort> {
        let mut found: Vec<ProxyPort> = Vec::new();
        for port in items(list).take(MAX_PORTS) {
            let Some(protocol) = ProxyProtocol::from_api(text(&port["protocol"])) else {
                let word = short(text(&port["protocol"])).to_string();
                self.add_fault(format!("spec.ports: {word:?} is no protocol"));
                continue;
            };
            let Some(number) = port_number(&port["port"]) else {
                self.add_fault("spec.ports: a port has no number".into());
                continue;
            };
            if found
                .iter()
                .any(|other| (other.protocol, other.port) == (protocol, number))
            {
                self.add_fault(format!("spec.ports: {protocol} {number} is there twice"));
                continue;
            }
            found.push(ProxyPort {
                name: text(&port["name"]).into(),
                protocol,
                port: number,
                node_port: port_number(&port["nodePort"]),
            });
        }
        if items(list).count() > MAX_PORTS {
            self.add_fault(format!("spec.ports: more than {MAX_PORTS}"));
        }
        found
    }
}
