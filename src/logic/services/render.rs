//! Rules of the chains of a Service, in the language of nftables.

use alloc::{
    format,
    string::{String, ToString as _},
    vec::Vec,
};
use core::net::IpAddr;

use super::{
    AddressFamily, AddressRange, ProxyProtocol, endpoints::ServiceEndpoint, plan::ChainName,
    table::MASQUERADE,
};

/// Text of a range.
pub(super) fn range_text((ip, bits): AddressRange) -> String {
    format!("{ip}/{bits}")
}

/// Texts of the ranges of a family, with commas between.
pub(super) fn ranges_of(family: AddressFamily, ranges: &[AddressRange]) -> String {
    let mine = ranges
        .iter()
        .filter(|range| AddressFamily::of(range.0) == family);
    let texts: Vec<String> = mine.copied().map(range_text).collect();
    texts.join(", ")
}

fn socket_text(ip: IpAddr, port: u16) -> String {
    match ip {
        IpAddr::V4(ip) => format!("{ip}:{port}"),
        IpAddr::V6(ip) => format!("[{ip}]:{port}"),
    }
}

/// Sends each new connection to one of the endpoints, at random.
pub(super) fn dnat_rules(
    family: AddressFamily,
    protocol: ProxyProtocol,
    endpoints: &[&ServiceEndpoint],
) -> String {
    match endpoints {
        [] => String::new(),
        [one] => format!(
            "meta l4proto {protocol} dnat to {}\n",
            socket_text(one.ip, one.port)
        ),
        many => {
            let mut rule = format!(
                "meta l4proto {protocol} dnat {} addr . port to numgen random mod {} map {{ ",
                family.word(),
                many.len()
            );
            for (n, it) in many.iter().enumerate() {
                let comma = if n == 0 { "" } else { ", " };
                rule.push_str(&format!("{comma}{n} : {} . {}", it.ip, it.port));
            }
            rule.push_str(" }\n");
            rule
        }
    }
}

/// Sends a client to the endpoint that it had, or to any.
pub(super) fn affinity_rules(family: AddressFamily, endpoints: &[ChainName]) -> String {
    let mut rules = String::new();
    let mut choices = String::new();
    for (n, chain) in endpoints.iter().enumerate() {
        let (word, set) = (family.word(), chain.affinity_set());
        rules.push_str(&format!("{word} saddr @{set} goto {chain}\n"));
        let comma = if n == 0 { "" } else { ", " };
        choices.push_str(&format!("{comma}{n} : goto {chain}"));
    }
    if !endpoints.is_empty() {
        rules.push_str(&format!(
            "numgen random mod {} vmap {{ {choices} }}\n",
            endpoints.len()
        ));
    }
    rules
}

/// Remembers the client for `timeout_s`, and sends its connection to the endpoint.
pub(super) fn remember_and_dnat(
    family: AddressFamily,
    chain: &ChainName,
    timeout_s: u32,
    (ip, port): (IpAddr, u16),
) -> String {
    let (word, set, protocol) = (family.word(), chain.affinity_set(), chain.protocol);
    let to = socket_text(ip, port);
    format!(
        "update @{set} {{ {word} saddr timeout {timeout_s}s }}\nmeta l4proto {protocol} dnat to {to}\n"
    )
}

/// Drops all sources but these.
pub(super) fn firewall_rules(family: AddressFamily, sources: &[String]) -> String {
    format!(
        "{} saddr != {{ {} }} drop\n",
        family.word(),
        sources.join(", ")
    )
}

/// Hides the client behind this node: the endpoint may be elsewhere, and its answer has to come back this way.
pub(super) fn masquerade_and_go(cluster: &ChainName) -> String {
    format!("{MASQUERADE}\ngoto {cluster}\n")
}

/// Rules for an address from outside whose connections may only go to this node's endpoints. Pods and the node itself
/// use all endpoints, as if their packets went out and came back by the load balancer.
pub(super) fn local_only_rules(
    family: AddressFamily,
    cluster_ranges: &[AddressRange],
    cluster: &ChainName,
    local: Option<&ChainName>,
) -> String {
    let mut rules = String::new();
    let pods = ranges_of(family, cluster_ranges);
    if !pods.is_empty() {
        let word = family.word();
        rules.push_str(&format!("{word} saddr {{ {pods} }} goto {cluster}\n"));
    }
    rules.push_str(&format!(
        "fib saddr type local {MASQUERADE}\nfib saddr type local goto {cluster}\n"
    ));
    if let Some(local) = local {
        rules.push_str(&["goto ", &local.to_string(), "\n"].concat());
    }
    rules
}
