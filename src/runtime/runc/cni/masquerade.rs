//! Masquerading: pods of the built-in network speak to the world under the node's address.
//!
//! One chain for the whole subnet, made before the first pod, and looked at before later pods and at the agent's start.
//! The bridge plugin's own `ipMasq` makes a chain for each pod instead: eight calls of iptables when it comes, as many
//! when it goes, a fifth of the whole cost of a start.
//!
//! ```text
//! POSTROUTING  -s SUBNET -j PICOLET-MASQ-<bridge>
//! PICOLET-MASQ-<bridge>  -d SUBNET -j RETURN            from pod to pod: as it is
//!                        -d RANGE -j RETURN             to pods of other nodes, if there is a network to them
//!                        ! -d 224.0.0.0/4 -j MASQUERADE
//! ```

use smol::lock::Mutex;

use super::{
    BuiltInNetwork,
    iptables::{IptablesError, ask_iptables, find_iptables_program, query_iptables, run_iptables},
};
use crate::{api::MonoTime, logic::node::Cidr, runtime::runc::gate::ChildLimiter, sys::clock};

/// The rules are looked at again before an ADD that comes so much later, milliseconds: a firewall may have been reloaded.
const LOOK_AGAIN_MS: u64 = 10_000;

/// An address family.
struct MasqueradeFamily {
    program: &'static str,
    restore: &'static str,
    multicast: &'static str,
}

const V4: MasqueradeFamily = MasqueradeFamily {
    program: "iptables",
    restore: "iptables-restore",
    multicast: "224.0.0.0/4",
};
const V6: MasqueradeFamily = MasqueradeFamily {
    program: "ip6tables",
    restore: "ip6tables-restore",
    multicast: "ff00::/8",
};

/// Time of a look at the rules, with the subnets and the ranges that they were for.
type SeenRules = (MonoTime, Vec<String>, Vec<String>);

/// The chain of one bridge; when it was last seen in place, and for which subnets and ranges.
#[derive(Debug, Default)]
pub(super) struct Masquerade {
    seen: Mutex<Option<SeenRules>>,
}

impl Masquerade {
    /// Makes the rules if they are missing. Pods that start together wait for one look. Hosts of the ranges `reachable`
    /// see the pods' own addresses.
    pub(super) async fn ensure_rules(
        &self,
        built_in: &BuiltInNetwork,
        reachable: &[String],
        gate: &ChildLimiter,
    ) -> Result<(), IptablesError> {
        let mut seen = self.seen.lock().await;
        if let Some((at, subnets, ranges)) = &*seen
            && *subnets == built_in.subnets
            && ranges == reachable
            && clock::mono_now().0.saturating_sub(at.0) < LOOK_AGAIN_MS
        {
            return Ok(());
        }
        *seen = None;
        let chain = chain_name(&built_in.bridge);
        for (family, subnets) in families_in_use(built_in) {
            let list = ["-t", "nat", "-S", "POSTROUTING"];
            let list = query_iptables(family.program, &list, gate).await?;
            let list = list.unwrap_or_default();
            let jumps = jumps_to(&list, &chain);
            let missing = missing_jumps(&jumps, &subnets);
            let ranges = ranges_of_family(&family, reachable);
            let mut lacks_range = false;
            for range in &ranges {
                let check = ["-t", "nat", "-C", &chain, "-d", range, "-j", "RETURN"];
                let found = query_iptables(family.program, &check, gate).await?;
                lacks_range |= found.is_none();
            }
            if !missing.is_empty() || lacks_range {
                // The jumps of earlier subnets stay: these may still have pods.
                let former = jumps.iter().filter_map(|words| rule_source_subnet(words));
                let mut all = subnets.clone();
                all.extend(former.filter(|subnet| !subnets.contains(subnet)));
                all.extend(ranges);
                let rules = format_restore_input(&family, &chain, &all, &missing);
                run_iptables(family.restore, &["--noflush"], Some(rules), Some(gate)).await?;
            }
        }
        *seen = Some((
            clock::mono_now(),
            built_in.subnets.clone(),
            reachable.to_vec(),
        ));
        Ok(())
    }

    /// Removes the rules of both families: there may have been subnets of the other one. Absent rules count as removed,
    /// also if iptables is not installed or the kernel has no such table.
    pub(super) async fn remove_rules(
        &self,
        built_in: &BuiltInNetwork,
        gate: &ChildLimiter,
    ) -> Result<(), IptablesError> {
        let mut seen = self.seen.lock().await;
        *seen = None;
        let chain = chain_name(&built_in.bridge);
        for family in [V4, V6] {
            if find_iptables_program(family.program).is_none() {
                continue;
            }
            let list = ["-t", "nat", "-S", "POSTROUTING"];
            let list = match query_iptables(family.program, &list, gate).await {
                Err(e) if e.is_of_no_table() => continue,
                list => list?.unwrap_or_default(),
            };
            let mut undo = jumps_to(&list, &chain);
            undo.push(vec!["-F", &chain]);
            undo.push(vec!["-X", &chain]);
            for rule in undo {
                let args: Vec<&str> = ["-t", "nat"].into_iter().chain(rule).collect();
                // A rule may be gone already; the result is checked below. A chain in use is refused with other codes.
                match query_iptables(family.program, &args, gate).await {
                    Err(IptablesError::Refused { words, .. }) => log::debug!("{args:?}: {words}"),
                    done => drop(done?),
                }
            }
            let left = ["-t", "nat", "-S", &chain];
            if query_iptables(family.program, &left, gate).await?.is_some() {
                return Err(IptablesError::InUse(chain));
            }
        }
        Ok(())
    }

    /// Name of the program that the network needs and that is not installed.
    pub(super) fn missing_program(built_in: &BuiltInNetwork) -> Option<&'static str> {
        families_in_use(built_in)
            .flat_map(|(family, _)| [family.program, family.restore])
            .find(|program| find_iptables_program(program).is_none())
    }
}

/// Exempts the ranges in the chain of a bridge that has pods: hosts of these see the pods' own addresses. For a network
/// between nodes that becomes known while no pod starts. Returns true if rules were missing.
pub(crate) async fn exempt_ranges(bridge: &str, ranges: &[String]) -> Result<bool, IptablesError> {
    let chain = chain_name(bridge);
    let mut is_changed = false;
    for family in [V4, V6] {
        let ranges = ranges_of_family(&family, ranges);
        let list = ["-t", "nat", "-S", &chain];
        if ranges.is_empty() || ask_iptables(family.program, &list).await?.is_none() {
            continue;
        }
        for range in ranges {
            let of = |verb| ["-t", "nat", verb, &chain, "-d", range, "-j", "RETURN"];
            if ask_iptables(family.program, &of("-C")).await?.is_none() {
                // Before the rule that hides addresses.
                run_iptables(family.program, &of("-I"), None, None).await?;
                is_changed = true;
            }
        }
    }
    Ok(is_changed)
}

/// Ends the exemptions in the chain of a bridge for all ranges but the bridge's own subnets: the network between nodes is no
/// more.
pub(crate) async fn end_exemptions(bridge: &str) -> Result<(), IptablesError> {
    let chain = chain_name(bridge);
    for family in [V4, V6] {
        if find_iptables_program(family.program).is_none() {
            continue;
        }
        let list = |chain| ["-t", "nat", "-S", chain];
        let rules = match ask_iptables(family.program, &list(&chain)).await {
            Err(e) if e.is_of_no_table() => continue,
            rules => rules?.unwrap_or_default(),
        };
        let from = ask_iptables(family.program, &list("POSTROUTING")).await?;
        let from = from.unwrap_or_default();
        for range in exempted_ranges(&rules, &jumps_to(&from, &chain)) {
            let undo = ["-t", "nat", "-D", &chain, "-d", range, "-j", "RETURN"];
            ask_iptables(family.program, &undo).await?;
        }
    }
    Ok(())
}

/// Ranges of a listing of the chain that are exempted and have no jump of their own.
fn exempted_ranges<'a>(rules: &'a str, jumps: &[Vec<&str>]) -> Vec<&'a str> {
    let range = |line: &'a str| match *line.split_whitespace().collect::<Vec<_>>() {
        ["-A", _, "-d", range, "-j", "RETURN"] => Some(range),
        _ => None,
    };
    let ranges = rules.lines().filter_map(range);
    let is_subnet = |range: &&str| {
        jumps
            .iter()
            .any(|words| rule_source_subnet(words) == Some(range))
    };
    ranges.filter(|range| !is_subnet(range)).collect()
}

/// Name of the chain: at most 28 bytes, the limit of iptables, as a bridge's name has 15 at most.
fn chain_name(bridge: &str) -> String {
    format!("PICOLET-MASQ-{bridge}")
}

/// The families in use, each with its subnets.
fn families_in_use(
    built_in: &BuiltInNetwork,
) -> impl Iterator<Item = (MasqueradeFamily, Vec<&str>)> {
    [(V4, false), (V6, true)]
        .into_iter()
        .map(|(family, six)| {
            let subnets = built_in.subnets.iter().map(String::as_str);
            (family, subnets.filter(|s| s.contains(':') == six).collect())
        })
        .filter(|(_, subnets): &(MasqueradeFamily, Vec<&str>)| !subnets.is_empty())
}

/// The ranges of one family.
fn ranges_of_family<'a>(family: &MasqueradeFamily, ranges: &'a [String]) -> Vec<&'a str> {
    let is_v6 = family.program == V6.program;
    let ranges = ranges.iter().map(String::as_str);
    ranges
        .filter(|range| range.contains(':') == is_v6)
        .collect()
}

/// The rule that leads into the chain, without its `-A POSTROUTING`.
fn jump_rule(subnet: &str, chain: &str) -> [String; 4] {
    ["-s", subnet, "-j", chain].map(str::to_owned)
}

/// Writes the input of iptables-restore: the chain anew, and the jumps that are missing. Packets to `subnets` stay as
/// they are.
fn format_restore_input(
    family: &MasqueradeFamily,
    chain: &str,
    subnets: &[&str],
    missing: &[&str],
) -> String {
    let mut rules = format!("*nat\n:{chain} - [0:0]\n");
    for subnet in subnets {
        rules.push_str(&format!("-A {chain} -d {subnet} -j RETURN\n"));
    }
    let multicast = family.multicast;
    rules.push_str(&format!("-A {chain} ! -d {multicast} -j MASQUERADE\n"));
    for subnet in missing {
        let jump = jump_rule(subnet, chain).join(" ");
        rules.push_str(&format!("-A POSTROUTING {jump}\n"));
    }
    rules.push_str("COMMIT\n");
    rules
}

/// The rules of a listing (`iptables -S`) that lead to `chain`, each as the words that delete it.
fn jumps_to<'a>(list: &'a str, chain: &str) -> Vec<Vec<&'a str>> {
    list.lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|words| words.first() == Some(&"-A") && words.ends_with(&["-j", chain]))
        .map(|mut words| {
            words[0] = "-D";
            words
        })
        .collect()
}

/// The subnets of which no jump leads into the chain.
fn missing_jumps<'a>(jumps: &[Vec<&str>], subnets: &[&'a str]) -> Vec<&'a str> {
    let leads = |words: &[&str], subnet: &str| match words {
        ["-D", "POSTROUTING", "-s", source, "-j", _] => {
            let (a, b) = (source.parse::<Cidr>(), subnet.parse::<Cidr>());
            *source == subnet || a.is_ok_and(|a| b.is_ok_and(|b| a == b))
        }
        _ => false,
    };
    let subnets = subnets.iter().copied();
    subnets
        .filter(|subnet| !jumps.iter().any(|words| leads(words, subnet)))
        .collect()
}

/// The subnet of a rule, as the words that delete it.
fn rule_source_subnet<'a>(words: &[&'a str]) -> Option<&'a str> {
    let at = words.iter().position(|word| *word == "-s")?;
    words.get(at + 1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn built_in(subnets: &[&str]) -> BuiltInNetwork {
        BuiltInNetwork {
            bridge: "fifteen-letters".into(),
            subnets: subnets.iter().map(|s| (*s).to_owned()).collect(),
            mtu: 0,
        }
    }

    #[test]
    fn chain_name_fits() {
        assert!(chain_name("fifteen-letters").len() <= 28);
    }

    #[test]
    fn one_chain_for_each_family_in_use() {
        for (name, subnets, want) in [
            ("v4", &["10.88.0.0/16"][..], &["iptables"][..]),
            ("v6", &["fd00::/64"], &["ip6tables"]),
            (
                "both",
                &["fd00::/64", "10.88.0.0/16"],
                &["iptables", "ip6tables"],
            ),
        ] {
            let built_in = built_in(subnets);
            let got: Vec<_> = families_in_use(&built_in).map(|(f, _)| f.program).collect();
            assert_eq!(got, want, "{name}");
        }
    }

    #[test]
    fn rules_leave_other_chains_alone() {
        let text = format_restore_input(&V4, "C", &["10.1.0.0/16"], &["10.1.0.0/16"]);
        assert_eq!(
            text,
            "*nat\n:C - [0:0]\n-A C -d 10.1.0.0/16 -j RETURN\n-A C ! -d 224.0.0.0/4 -j MASQUERADE\n\
             -A POSTROUTING -s 10.1.0.0/16 -j C\nCOMMIT\n"
        );
    }

    #[test]
    fn pods_of_other_nodes_see_own_addresses() {
        // FLAN-13
        let ranges = ["10.42.0.0/16", "fd42::/56"].map(str::to_owned);
        assert_eq!(ranges_of_family(&V4, &ranges), ["10.42.0.0/16"]);
        assert_eq!(ranges_of_family(&V6, &ranges), ["fd42::/56"]);
        let text = format_restore_input(&V4, "C", &["10.42.1.0/24", "10.42.0.0/16"], &[]);
        assert_eq!(
            text,
            "*nat\n:C - [0:0]\n-A C -d 10.42.1.0/24 -j RETURN\n-A C -d 10.42.0.0/16 -j RETURN\n\
             -A C ! -d 224.0.0.0/4 -j MASQUERADE\nCOMMIT\n"
        );
    }

    #[test]
    fn exemptions_end_but_for_own_subnets() {
        // FLAN-13
        let rules = "-N C\n-A C -d 10.42.1.0/24 -j RETURN\n-A C -d 10.42.0.0/16 -j RETURN\n\
                     -A C -d 10.9.0.0/16 -j ACCEPT\n-A C ! -d 224.0.0.0/4 -j MASQUERADE\n";
        let from = "-A POSTROUTING -s 10.42.1.0/24 -j C\n-A POSTROUTING -s 10.42.0.0/16 -j D\n";
        assert_eq!(
            exempted_ranges(rules, &jumps_to(from, "C")),
            ["10.42.0.0/16"]
        );
        assert_eq!(exempted_ranges("", &[]), Vec::<&str>::new());
    }

    #[test]
    fn missing_jumps_are_found() {
        let list = "-A POSTROUTING -s 10.1.0.0/16 -j C\n-A POSTROUTING -s fd00:0:0:1::/64 -j C\n\
                    -A POSTROUTING -s 10.2.0.0/16 -o eth0 -j C\n-A POSTROUTING -s 10.3.0.0/16 -j C2\n";
        let jumps = jumps_to(list, "C");
        assert_eq!(missing_jumps(&jumps, &["10.1.0.0/16"]), Vec::<&str>::new());
        // As another writes the same range.
        assert_eq!(
            missing_jumps(&jumps, &["10.1.0.1/16", "fd00:0:0:1:0:0:0:0/64"]),
            Vec::<&str>::new()
        );
        let others = ["10.2.0.0/16", "10.3.0.0/16", "10.1.0.0/17"];
        assert_eq!(missing_jumps(&jumps, &others), others);
        assert_eq!(missing_jumps(&[], &others[..1]), others[..1]);
    }

    #[test]
    fn only_jumps_to_the_chain_are_deleted() {
        let list = "-P POSTROUTING ACCEPT\n-A POSTROUTING -s 10.1.0.0/16 -j C\n\
                    -A POSTROUTING -s 10.2.0.0/16 -j C2\n-A POSTROUTING -j MASQUERADE\n";
        assert_eq!(
            jumps_to(list, "C"),
            [["-D", "POSTROUTING", "-s", "10.1.0.0/16", "-j", "C"]]
        );
        assert_eq!(
            rule_source_subnet(&jumps_to(list, "C")[0]),
            Some("10.1.0.0/16")
        );
        assert_eq!(
            rule_source_subnet(&["-D", "POSTROUTING", "-j", "C", "-s"]),
            None
        );
    }
}
