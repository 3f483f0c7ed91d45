//! Rules of the firewall, and settings and modules of the kernel, that packets between nodes need (FLAN-13 to FLAN-15).

use core::time::Duration;
use std::path::Path;

use crate::{
    logic::pod_network::rules::{CHAIN, JUMP, TableRules},
    runtime::runc::cni::{
        IptablesError,
        iptables::{ask_iptables, find_iptables_program, run_iptables},
    },
    sys::{
        child::{self, Command},
        namespaces,
    },
};

/// Time that a module may take to load.
const MODULE_TIMEOUT: Duration = Duration::from_secs(10);
/// Module by which the firewall sees packets between pods of one bridge.
pub(super) const BRIDGE_FILTER: &str = "br_netfilter";

/// Programs of a family.
pub(super) const fn programs(is_v6: bool) -> (&'static str, &'static str) {
    match is_v6 {
        false => ("iptables", "iptables-restore"),
        true => ("ip6tables", "ip6tables-restore"),
    }
}

/// Makes the rules of a family that are missing or differ. Returns true if there were such.
pub(super) async fn ensure_rules(
    tables: &[TableRules],
    is_v6: bool,
) -> Result<bool, IptablesError> {
    let (program, restore) = programs(is_v6);
    let mut is_changed = false;
    for rules in tables {
        let listed = ask_iptables(program, &["-t", rules.table, "-S", CHAIN]).await?;
        let [verb, target] = JUMP;
        let check = ["-t", rules.table, "-C", rules.from, verb, target];
        // No jump leads to a chain that is absent, and iptables refuses the question.
        let has_jump = listed.is_some() && ask_iptables(program, &check).await?.is_some();
        if has_jump && listed.is_some_and(|listing| rules.is_listed(&listing)) {
            continue;
        }
        is_changed = true;
        let input = rules.restore_input(!has_jump);
        run_iptables(restore, &["--noflush"], Some(input), None).await?;
    }
    Ok(is_changed)
}

/// Returns true if a table of a family has our chain.
async fn has_chain(program: &'static str, table: &str) -> Result<bool, IptablesError> {
    match ask_iptables(program, &["-t", table, "-S", CHAIN]).await {
        Err(e) if e.is_of_no_table() => Ok(false),
        listed => Ok(listed?.is_some()),
    }
}

/// Returns true if there are rules of ours in a family.
pub(super) async fn has_rules(is_v6: bool) -> Result<bool, IptablesError> {
    let (program, _) = programs(is_v6);
    Ok(find_iptables_program(program).is_some() && has_chain(program, "nat").await?)
}

/// Removes the chains of a family, and the jumps to them. Absent ones count as removed.
pub(super) async fn remove_rules(is_v6: bool) -> Result<(), IptablesError> {
    /// Jumps that are removed: each run of the agent makes one at most.
    const MOST: usize = 8;
    let (program, _) = programs(is_v6);
    if find_iptables_program(program).is_none() {
        return Ok(());
    }
    for (table, from) in [("nat", "POSTROUTING"), ("filter", "FORWARD")] {
        if !has_chain(program, table).await? {
            continue;
        }
        for _ in 0..MOST {
            let [verb, target] = JUMP;
            let undo = ["-t", table, "-D", from, verb, target];
            if ask_iptables(program, &undo).await?.is_none() {
                break;
            }
        }
        ask_iptables(program, &["-t", table, "-F", CHAIN]).await?;
        let removed = ask_iptables(program, &["-t", table, "-X", CHAIN]).await;
        if has_chain(program, table).await? {
            // Old programs say of a chain in use that something is absent.
            return Err(removed
                .err()
                .unwrap_or_else(|| IptablesError::InUse(CHAIN.into())));
        }
    }
    Ok(())
}

/// Lists the rules for packets to this node; `None`: they are not known.
pub(super) async fn list_input_rules(is_v6: bool) -> Option<String> {
    let (program, _) = programs(is_v6);
    ask_iptables(program, &["-S", "INPUT"]).await.ok().flatten()
}

/// Sets what the kernel needs to forward packets of pods. Returns what failed; pods run all the same.
pub(super) fn set_sysctls(has_v4: bool, has_v6: bool) -> Vec<String> {
    const V4: [&str; 2] = [
        "net/ipv4/conf/all/forwarding",
        "net/ipv4/conf/default/forwarding",
    ];
    const V6: [&str; 2] = [
        "net/ipv6/conf/all/forwarding",
        "net/ipv6/conf/default/forwarding",
    ];
    let bridge = |is_used: bool, name| (is_used && has_bridge_filter()).then_some(name);
    let of = |is_used: bool, names: [&'static str; 2]| names.into_iter().filter(move |_| is_used);
    let names = of(has_v4, V4)
        .chain(of(has_v6, V6))
        .chain(bridge(has_v4, "net/bridge/bridge-nf-call-iptables"))
        .chain(bridge(has_v6, "net/bridge/bridge-nf-call-ip6tables"));
    let set = |name: &str| {
        let error = namespaces::set_sysctl(name, "1").err()?;
        Some(format!("set {}: {error}", name.replace('/', ".")))
    };
    names.filter_map(set).collect()
}

/// Returns true if the firewall can see packets between pods of one bridge.
fn has_bridge_filter() -> bool {
    Path::new("/proc/sys/net/bridge/bridge-nf-call-iptables").exists()
}

/// Loads the module of the firewall for bridges, if it is missing. Returns whether it is there.
pub(super) async fn load_bridge_filter() -> bool {
    if has_bridge_filter() {
        return true;
    }
    if let Some(path) = find_iptables_program("modprobe") {
        let command = Command::new(path)
            .args([BRIDGE_FILTER])
            .capture_output(1024);
        if let Err(e) = child::run_command(command, Some(MODULE_TIMEOUT)).await {
            log::debug!("modprobe {BRIDGE_FILTER}: {e}");
        }
    }
    has_bridge_filter()
}
