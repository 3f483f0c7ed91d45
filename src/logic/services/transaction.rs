//! Text that brings the table from what it holds to the plan of a Service, and its division into transactions
//! (PROX-25, PROX-26).
//!
//! A Service is never in two transactions, and chains stand before the elements that lead to them: after each
//! transaction every address that the table knows leads to the right endpoints.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    format,
    string::{String, ToString as _},
    vec::Vec,
};
use core::net::IpAddr;

use super::{
    AddressFamily,
    live::LiveTable,
    plan::{ChainKind, ChainName, ElementKey, MissingVerdict, ServicePlan, TableMap},
    table::{CLUSTER_IPS, HAIRPINS, TABLE, missing_set},
};

/// Bytes of text of one transaction: the memory of `nft` follows them. A larger Service is one of its own.
pub const PART_BYTES: usize = 48 * 1024;
/// Most bytes of text of one Service, about. One with more is not written.
pub const MAX_SERVICE_BYTES: usize = 512 * 1024;
/// Chains that one transaction deletes.
pub const DELETED_CHAINS: usize = 500;

/// A chain of a family that no rule and no element leads to. It can be deleted a second later: kernels before 6.2 know
/// only then that it is free.
pub type StaleChain = (AddressFamily, ChainName);

/// Result of writing a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceWrite {
    /// Chains that are empty now.
    pub stale: Vec<StaleChain>,
    /// Addresses that another Service has already.
    pub conflicts: BTreeSet<ElementKey>,
    /// Set if the Service has given up an address, for which another may wait.
    pub gave_up: bool,
    /// Digests of the UIDs of Services that exist and have lost an address to this one.
    pub robbed: BTreeSet<u64>,
}

/// Text of a transaction, command by command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct TransactionText {
    /// Elements that are added or deleted by one command, by (verb, family, name of the set).
    elements: BTreeMap<(ElementVerb, AddressFamily, &'static str), Vec<String>>,
}

/// Order of commands: sets lose elements before they get those of another chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ElementVerb {
    /// Adds an element that is deleted next: only what is there can be deleted.
    Ensure,
    Delete,
    Add,
}

impl TransactionText {
    fn add(
        &mut self,
        verb: ElementVerb,
        family: AddressFamily,
        set: &'static str,
        element: String,
    ) {
        let of_set = self.elements.entry((verb, family, set)).or_default();
        of_set.push(element);
    }

    /// Makes sure that a set has the element, or has it not.
    fn set_member(&mut self, family: AddressFamily, set: &'static str, element: &str, is_in: bool) {
        if is_in {
            return self.add(ElementVerb::Add, family, set, element.into());
        }
        self.add(ElementVerb::Ensure, family, set, element.into());
        self.add(ElementVerb::Delete, family, set, element.into());
    }

    fn write_elements(&self, out: &mut String) {
        for ((verb, family, set), elements) in &self.elements {
            let verb = match verb {
                ElementVerb::Ensure | ElementVerb::Add => "add",
                ElementVerb::Delete => "delete",
            };
            let (of, all) = (family.word(), elements.join(", "));
            out.push_str(&format!("{verb} element {of} {TABLE} {set} {{ {all} }}\n"));
        }
    }
}

/// Knowledge about the table before a Service is written.
#[derive(Clone, Copy)]
pub enum TableBefore<'a> {
    /// The table has the elements of the plan's maps, and no others of this Service. `was_missing`: keys without an
    /// endpoint may be in the sets.
    SameFrontends {
        /// See above.
        was_missing: bool,
    },
    /// The table was read. `is_living`: tells from the digest of a UID whether its Service exists.
    Read {
        /// The table.
        live: &'a LiveTable,
        /// Set if the table is new: its sets are empty.
        is_new: bool,
        /// See above.
        is_living: &'a dyn Fn(u64) -> bool,
    },
}

/// Appends the text that brings the table to `plan`. A plan with a UID and nothing else removes the Service.
pub fn write_service(
    plan: &ServicePlan,
    before: TableBefore<'_>,
    out: &mut String,
) -> ServiceWrite {
    let mut result = ServiceWrite::default();
    let label = quotable(&plan.label);
    for chain in &plan.chains {
        let (of, name) = (chain.family.word(), &chain.name);
        if let ChainKind::Endpoint(..) = name.kind {
            let (set, kind) = (name.affinity_set(), address_type(chain.family));
            out.push_str(&format!(
                "add set {of} {TABLE} {set} {{ type {kind} ; flags dynamic,timeout ; }}\n"
            ));
        }
        out.push_str(&format!(
            "add chain {of} {TABLE} {name} {{ comment \"{label}\" ; }}\nflush chain {of} {TABLE} {name}\n"
        ));
    }
    for chain in &plan.chains {
        for rule in chain.rules.lines() {
            let (of, name) = (chain.family.word(), &chain.name);
            out.push_str(&format!("add rule {of} {TABLE} {name} {rule}\n"));
        }
    }
    let mut text = TransactionText::default();
    for ip in &plan.hairpins {
        text.add(
            ElementVerb::Add,
            AddressFamily::of(*ip),
            HAIRPINS,
            format!("{ip} . {ip}"),
        );
    }
    // Keys whose places in the sets of keys without endpoints are written.
    let mut keys: BTreeSet<ElementKey> = BTreeSet::new();
    let mut only_members = false;
    match before {
        TableBefore::SameFrontends { was_missing } => {
            if was_missing || !plan.missing.is_empty() {
                keys.extend(checked_keys(plan.elements.keys()));
            }
        }
        TableBefore::Read {
            live,
            is_living,
            is_new,
        } => {
            only_members = is_new;
            write_maps(plan, live, is_living, &mut text, &mut result);
            let lost = &result.conflicts;
            let of_plan = checked_keys(plan.elements.keys());
            keys.extend(of_plan.filter(|key| !lost.contains(key)));
            let owned = live
                .elements
                .iter()
                .filter(|(_, chain)| chain.uid == plan.uid);
            keys.extend(checked_keys(owned.map(|(key, _)| key)));
            write_cluster_ips(plan, live, lost, &mut text);
            let own = live
                .chains
                .iter()
                .filter(|(_, chain)| chain.uid == plan.uid);
            for (family, name) in own {
                let is_planned =
                    |it: &super::plan::PlannedChain| (it.family, it.name) == (*family, *name);
                if !plan.chains.iter().any(is_planned) {
                    out.push_str(&format!("flush chain {} {TABLE} {name}\n", family.word()));
                    result.stale.push((*family, *name));
                }
            }
        }
    }
    for key in keys {
        let verdict = plan.missing.get(&key);
        for is_drop in [false, true] {
            let wanted = if is_drop {
                MissingVerdict::Drop
            } else {
                MissingVerdict::Reject
            };
            let set = missing_set(key.ip.is_none(), is_drop);
            let is_in = verdict == Some(&wanted);
            if is_in || !only_members {
                text.set_member(key.family, set, &key.to_string(), is_in);
            }
        }
    }
    text.write_elements(out);
    result
}

/// Keys of addresses and ports to which endpoints belong.
fn checked_keys<'a>(
    elements: impl Iterator<Item = &'a (TableMap, ElementKey)>,
) -> impl Iterator<Item = ElementKey> {
    let checked = elements.filter(|(map, _)| *map != TableMap::Firewall);
    checked.map(|(_, key)| *key)
}

fn write_maps(
    plan: &ServicePlan,
    live: &LiveTable,
    is_living: &dyn Fn(u64) -> bool,
    text: &mut TransactionText,
    result: &mut ServiceWrite,
) {
    for ((map, key), chain) in &live.elements {
        if chain.uid == plan.uid && plan.elements.get(&(*map, *key)) != Some(chain) {
            result.gave_up |= !plan.elements.contains_key(&(*map, *key));
            text.add(ElementVerb::Delete, key.family, map.name(), key.to_string());
        }
    }
    for ((map, key), chain) in &plan.elements {
        // Nor in the maps that follow: they would judge the packets of the one that has the address.
        if result.conflicts.contains(key) {
            continue;
        }
        let add = format!("{key} : goto {chain}");
        let other = live
            .elements
            .get(&(*map, *key))
            .filter(|other| *other != chain);
        let has_it = live.elements.get(&(*map, *key)) == Some(chain);
        match other {
            Some(other) if other.uid != plan.uid => {
                // The address in the cluster is one that the apiserver gave; an external one is what a user wrote.
                let is_stronger =
                    chain.kind != ChainKind::External && other.kind == ChainKind::External;
                if is_living(other.uid) {
                    if !is_stronger {
                        result.conflicts.insert(*key);
                        continue;
                    }
                    result.robbed.insert(other.uid);
                }
                text.add(ElementVerb::Delete, key.family, map.name(), key.to_string());
                text.add(ElementVerb::Add, key.family, map.name(), add);
            }
            // The loop above has deleted it.
            Some(_) => text.add(ElementVerb::Add, key.family, map.name(), add),
            None if has_it => {}
            None => text.add(ElementVerb::Add, key.family, map.name(), add),
        }
    }
}

fn write_cluster_ips(
    plan: &ServicePlan,
    live: &LiveTable,
    lost: &BTreeSet<ElementKey>,
    text: &mut TransactionText,
) {
    let is_lost = |ip: &IpAddr| lost.iter().any(|key| key.ip == Some(*ip));
    for ip in plan.cluster_ips.iter().filter(|ip| !is_lost(ip)) {
        text.add(
            ElementVerb::Add,
            AddressFamily::of(*ip),
            CLUSTER_IPS,
            ip.to_string(),
        );
    }
    let is_inside = |chain: &ChainName| matches!(chain.kind, ChainKind::Cluster | ChainKind::Local);
    let inside = || {
        live.elements
            .iter()
            .filter(|((map, _), chain)| *map == TableMap::Services && is_inside(chain))
    };
    let before: BTreeSet<IpAddr> = inside()
        .filter(|(_, chain)| chain.uid == plan.uid)
        .filter_map(|((_, key), _)| key.ip)
        .collect();
    for ip in before {
        // The address may have gone to another Service meanwhile.
        let is_other =
            || inside().any(|((_, key), chain)| key.ip == Some(ip) && chain.uid != plan.uid);
        if !plan.cluster_ips.contains(&ip) && !is_other() {
            text.set_member(AddressFamily::of(ip), CLUSTER_IPS, &ip.to_string(), false);
        }
    }
}

/// Brings what is known of the table up to date, once `plan` was written.
pub fn update_live(live: &mut LiveTable, plan: &ServicePlan, written: &ServiceWrite) {
    live.elements.retain(|_, chain| chain.uid != plan.uid);
    let mine = plan
        .elements
        .iter()
        .filter(|((_, key), _)| !written.conflicts.contains(key));
    live.elements
        .extend(mine.map(|(key, chain)| (*key, *chain)));
    for stale in &written.stale {
        live.chains.remove(stale);
    }
    live.chains
        .extend(plan.chains.iter().map(|chain| (chain.family, chain.name)));
}

/// Returns the text that removes pairs of endpoints that this node has no more.
#[must_use]
pub fn remove_hairpins(gone: &[IpAddr]) -> String {
    let mut text = TransactionText::default();
    for ip in gone {
        text.set_member(
            AddressFamily::of(*ip),
            HAIRPINS,
            &format!("{ip} . {ip}"),
            false,
        );
    }
    let mut out = String::new();
    text.write_elements(&mut out);
    out
}

/// Returns the text that deletes these chains, at most [`DELETED_CHAINS`]. All are free for a second.
#[must_use]
pub fn delete_chains(chains: &[StaleChain]) -> String {
    let mut out = String::new();
    for (family, name) in chains {
        let of = family.word();
        out.push_str(&format!("delete chain {of} {TABLE} {name}\n"));
        if let ChainKind::Endpoint(..) = name.kind {
            out.push_str(&format!(
                "delete set {of} {TABLE} {}\n",
                name.affinity_set()
            ));
        }
    }
    out
}

/// Texts of Services, gathered into transactions of at most [`PART_BYTES`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TransactionParts {
    text: String,
}

impl TransactionParts {
    /// Adds the whole text of a Service. Returns a transaction that is to be sent first.
    pub fn push(&mut self, service: &str) -> Option<String> {
        let is_full = !self.text.is_empty() && self.text.len() + service.len() > PART_BYTES;
        let full = is_full.then(|| core::mem::take(&mut self.text));
        self.text.push_str(service);
        full
    }

    /// Takes the last transaction; `None`: it is empty.
    pub fn finish(&mut self) -> Option<String> {
        let last = core::mem::take(&mut self.text);
        (!last.is_empty()).then_some(last)
    }
}

const fn address_type(family: AddressFamily) -> &'static str {
    match family {
        AddressFamily::V4 => "ipv4_addr",
        AddressFamily::V6 => "ipv6_addr",
    }
}

/// A label without characters that end the text of a comment, at most as long as a comment may be (128 bytes with its
/// end).
fn quotable(label: &str) -> String {
    let is_plain = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '/' | '-' | '.' | '_');
    label.chars().filter(is_plain).take(120).collect()
}
