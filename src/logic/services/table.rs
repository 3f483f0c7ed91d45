//! The table itself: all that does not belong to one Service (PROX-22 to PROX-24).

use alloc::{format, string::String};

use super::{AddressFamily, ProxyNetwork, render::ranges_of};
use crate::fnv::fnv1a_32;

/// Name of the table, one in each family. No other program writes into it.
pub const TABLE: &str = "picolet-services";
/// Rule that marks a connection whose source is to be hidden behind this node. The bit is that of a kubelet.
pub const MASQUERADE: &str = "meta mark set meta mark or 0x4000";
/// Set of the addresses in the cluster.
pub const CLUSTER_IPS: &str = "cluster-ips";
/// Set of the pairs of this node's endpoints with themselves.
pub const HAIRPINS: &str = "hairpins";
/// Set whose element tells what was written. It goes with the table; a flush of chains alone leaves it. To look at a
/// rule, `nft` would read the rules of all chains.
pub const STAMP: &str = "stamp";

/// Name of the set of keys that are rejected, or dropped. `is_port`: those of ports of the node.
#[must_use]
pub const fn missing_set(is_port: bool, is_drop: bool) -> &'static str {
    match (is_port, is_drop) {
        (false, false) => "no-endpoints-reject",
        (false, true) => "no-endpoints-drop",
        (true, false) => "no-endpoints-reject-ports",
        (true, true) => "no-endpoints-drop-ports",
    }
}

/// Base chains: name, type, hook and priority. NAT stands before that of host ports, which is at -100 (K3SN-10); a
/// priority has no name in all hooks.
const BASE_CHAINS: [(&str, &str, &str, i32); 8] = [
    ("filter-prerouting-pre-dnat", "filter", "prerouting", -110),
    ("filter-output-pre-dnat", "filter", "output", -110),
    ("filter-input", "filter", "input", 0),
    ("filter-forward", "filter", "forward", 0),
    ("filter-output", "filter", "output", 0),
    ("nat-prerouting", "nat", "prerouting", -105),
    ("nat-output", "nat", "output", -105),
    ("nat-postrouting", "nat", "postrouting", 100),
];

/// Chains that base chains lead to.
const CHAINS: [&str; 5] = [
    "services",
    "firewall-check",
    "endpoints-check",
    "ports-check",
    "cluster-ips-check",
];

/// Returns the text that makes or renews what belongs to no Service. Sets and maps keep their elements.
#[must_use]
pub fn base_table(family: AddressFamily, network: &ProxyNetwork) -> String {
    let rules = base_rules(family, network);
    let (of, addr) = (family.word(), address_type(family));
    let mut text = format!("add table {of} {TABLE}\n");
    for (name, kind, hook, priority) in BASE_CHAINS {
        text.push_str(&format!(
            "add chain {of} {TABLE} {name} {{ type {kind} hook {hook} priority {priority} ; }}\nflush chain {of} {TABLE} {name}\n"
        ));
    }
    for name in CHAINS {
        text.push_str(&format!(
            "add chain {of} {TABLE} {name}\nflush chain {of} {TABLE} {name}\n"
        ));
    }
    let service = format!("{addr} . inet_proto . inet_service");
    let port = "inet_proto . inet_service";
    for (kind, name, of_type, verdict) in [
        ("map", "service-ips", service.as_str(), " : verdict"),
        ("map", "service-nodeports", port, " : verdict"),
        ("map", "firewall-ips", &service, " : verdict"),
        ("set", missing_set(false, false), &service, ""),
        ("set", missing_set(false, true), &service, ""),
        ("set", missing_set(true, false), port, ""),
        ("set", missing_set(true, true), port, ""),
        ("set", CLUSTER_IPS, addr, ""),
        ("set", HAIRPINS, &format!("{addr} . {addr}"), ""),
        ("set", STAMP, "mark", ""),
    ] {
        text.push_str(&format!(
            "add {kind} {of} {TABLE} {name} {{ type {of_type}{verdict} ; }}\n"
        ));
    }
    for line in rules.lines() {
        text.push_str(&format!("add rule {of} {TABLE} {line}\n"));
    }
    let stamp = stamp_of(&rules);
    text.push_str(&format!(
        "flush set {of} {TABLE} {STAMP}\nadd element {of} {TABLE} {STAMP} {{ {stamp} }}\n"
    ));
    text
}

/// Element of the set [`STAMP`], as `nft -n` shows it.
#[must_use]
pub fn table_stamp(family: AddressFamily, network: &ProxyNetwork) -> String {
    stamp_of(&base_rules(family, network))
}

fn stamp_of(rules: &str) -> String {
    format!("{:#010x}", fnv1a_32(rules.bytes()))
}

/// Returns the text that removes a table, there or not.
#[must_use]
pub fn remove_table(family: AddressFamily) -> String {
    let of = family.word();
    format!("add table {of} {TABLE}\ndelete table {of} {TABLE}\n")
}

const fn address_type(family: AddressFamily) -> &'static str {
    match family {
        AddressFamily::V4 => "ipv4_addr",
        AddressFamily::V6 => "ipv6_addr",
    }
}

/// Rules: chain and rule, one a line.
fn base_rules(family: AddressFamily, network: &ProxyNetwork) -> String {
    let ip = family.word();
    let key = format!("{ip} daddr . meta l4proto . th dport");
    let port_key = "meta l4proto . th dport";
    let not_loopback = match family {
        AddressFamily::V4 => "ip daddr != 127.0.0.0/8",
        AddressFamily::V6 => "ip6 daddr != ::1",
    };
    let node_ports = ranges_of(family, &network.node_port_ranges);
    let node_address = match (network.node_port_ranges.is_empty(), node_ports.as_str()) {
        (true, _) => Some(format!("fib daddr type local {not_loopback}")),
        // All ranges are of the other family.
        (false, "") => None,
        (false, ranges) => Some(format!(
            "fib daddr type local {not_loopback} {ip} daddr {{ {ranges} }}"
        )),
    };
    let mut rules = String::new();
    let mut add = |rule: &str| {
        rules.push_str(rule);
        rules.push('\n');
    };
    for (from, to) in [
        ("filter-prerouting-pre-dnat", "firewall-check"),
        ("filter-output-pre-dnat", "firewall-check"),
        ("filter-input", "ports-check"),
        ("filter-input", "endpoints-check"),
        ("filter-forward", "endpoints-check"),
        ("filter-output", "endpoints-check"),
        ("filter-forward", "cluster-ips-check"),
        ("filter-output", "cluster-ips-check"),
    ] {
        add(&format!("{from} ct state new jump {to}"));
    }
    add("nat-prerouting jump services");
    add("nat-output jump services");
    add(&format!("firewall-check {key} vmap @firewall-ips"));
    let (reject, drop) = (missing_set(false, false), missing_set(false, true));
    add(&format!("endpoints-check {key} @{drop} drop"));
    add(&format!("endpoints-check {key} @{reject} reject"));
    if let Some(node) = &node_address {
        let (reject, drop) = (missing_set(true, false), missing_set(true, true));
        add(&format!("ports-check {node} {port_key} @{drop} drop"));
        add(&format!("ports-check {node} {port_key} @{reject} reject"));
    }
    add(&format!(
        "cluster-ips-check {ip} daddr @{CLUSTER_IPS} reject"
    ));
    let service_ranges = ranges_of(family, &network.service_ranges);
    if !service_ranges.is_empty() {
        add(&format!(
            "cluster-ips-check {ip} daddr {{ {service_ranges} }} drop"
        ));
    }
    let pods = ranges_of(family, &network.cluster_ranges);
    if !pods.is_empty() {
        add(&format!(
            "services {ip} daddr @{CLUSTER_IPS} {ip} saddr != {{ {pods} }} {MASQUERADE}"
        ));
    }
    add(&format!("services {key} vmap @service-ips"));
    if let Some(node) = &node_address {
        add(&format!(
            "services {node} {port_key} vmap @service-nodeports"
        ));
    }
    add(
        "nat-postrouting meta mark and 0x4000 != 0 meta mark set meta mark xor 0x4000 masquerade fully-random",
    );
    add(&format!(
        "nat-postrouting ct status dnat {ip} saddr . {ip} daddr @{HAIRPINS} masquerade fully-random"
    ));
    rules
}
