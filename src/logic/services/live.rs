//! The table as the kernel has it, read from what `nft -n list` prints (PROX-25).
//!
//! Only names are read: of elements and of chains. What a chain does is known by what was written.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};
use core::net::IpAddr;

use super::{
    AddressFamily, ProxyProtocol,
    plan::{ChainName, ElementKey, TableMap},
    table::TABLE,
};

/// Most elements, and most chains, that are read of a table.
pub const MAX_READ: usize = 100_000;

/// Elements and chains that the kernel has, of all families.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LiveTable {
    /// Elements of the maps.
    pub elements: BTreeMap<(TableMap, ElementKey), ChainName>,
    /// Chains of Services.
    pub chains: BTreeSet<(AddressFamily, ChainName)>,
    /// Addresses in the set of this node's endpoints.
    pub hairpins: BTreeSet<IpAddr>,
}

impl LiveTable {
    /// Adds the elements that `nft -n list map` printed of a map.
    pub fn read_map(&mut self, family: AddressFamily, map: TableMap, printed: &str) {
        for element in elements(printed).take(MAX_READ) {
            let Some((key, verdict)) = element.split_once(" : ") else {
                continue;
            };
            let chain = verdict
                .trim()
                .strip_prefix("goto ")
                .and_then(ChainName::parse);
            if let (Some(key), Some(chain)) = (parse_key(family, map, key), chain) {
                self.elements.insert((map, key), chain);
            }
        }
    }

    /// Adds the pairs that `nft list set` printed of the set of this node's endpoints.
    pub fn read_hairpins(&mut self, printed: &str) {
        for element in elements(printed).take(MAX_READ) {
            let first = element.split(" . ").next().unwrap_or_default();
            self.hairpins.extend(first.trim().parse::<IpAddr>().ok());
        }
    }

    /// Adds the chains that `nft list chains` printed of all tables of a family.
    pub fn read_chains(&mut self, family: AddressFamily, printed: &str) {
        let names = chains_of_table(printed, TABLE).take(MAX_READ);
        let names = names.filter_map(ChainName::parse);
        self.chains.extend(names.map(|name| (family, name)));
    }

    /// Digests of the UIDs of all Services that the table knows, in order.
    #[must_use]
    pub fn owners(&self) -> Vec<u64> {
        let of_elements = self.elements.values().map(|chain| chain.uid);
        let of_chains = self.chains.iter().map(|(_, chain)| chain.uid);
        let all: BTreeSet<u64> = of_elements.chain(of_chains).collect();
        all.into_iter().collect()
    }
}

/// Names of the chains of a table in what `nft list chains` printed.
pub fn chains_of_table<'a>(printed: &'a str, table: &'a str) -> impl Iterator<Item = &'a str> {
    let mut is_ours = false;
    printed.lines().filter_map(move |line| {
        let mut words = line.split_whitespace();
        match (words.next(), words.next(), words.next()) {
            (Some("table"), _, name) => {
                is_ours = name == Some(table);
                None
            }
            (Some("chain"), Some(name), _) => is_ours.then_some(name),
            _ => None,
        }
    })
}

/// Returns true if `nft list tables` printed the table of this program, of any family.
#[must_use]
pub fn has_own_table(printed: &str) -> bool {
    let mut lines = printed.lines();
    lines.any(|line| {
        let mut words = line.split_whitespace();
        (words.next(), words.nth(1)) == (Some("table"), Some(TABLE))
    })
}

/// Returns true if the machine has rules of a kube-proxy: its own table, or its chain of iptables (PROX-01).
#[must_use]
pub fn has_kube_proxy(printed: &str) -> bool {
    let mut lines = printed.lines().map(str::trim);
    lines.any(|line| {
        let mut words = line.split_whitespace();
        match (words.next(), words.next(), words.next()) {
            (Some("table"), _, Some(name)) => name == "kube-proxy",
            (Some("chain"), Some(name), _) => name == "KUBE-SERVICES",
            _ => false,
        }
    })
}

/// Elements between the braces behind `elements =`.
fn elements(printed: &str) -> impl Iterator<Item = &str> {
    let from = printed
        .split_once("elements = {")
        .map_or("", |(_, rest)| rest);
    let all = from.split_once('}').map_or(from, |(all, _)| all);
    all.split(',')
        .map(str::trim)
        .filter(|element| !element.is_empty())
}

fn parse_key(family: AddressFamily, map: TableMap, text: &str) -> Option<ElementKey> {
    let mut words = text.split(" . ").map(str::trim);
    let ip = match map {
        TableMap::NodePorts => None,
        TableMap::Services | TableMap::Firewall => Some(words.next()?.parse().ok()?),
    };
    Some(ElementKey {
        family,
        ip,
        protocol: ProxyProtocol::from_nft(words.next()?)?,
        port: words.next()?.parse().ok()?,
    })
}
