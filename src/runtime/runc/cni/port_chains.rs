//! Chains that the portmap plugin shares among all pods of all networks. The plugin makes them and never removes them.

use super::iptables::{IptablesError, run_iptables};

/// Chain with a rule for each pod that has a hostPort: while it has a rule, it is in use.
const ENTRY: &str = "CNI-HOSTPORT-DNAT";
/// All shared chains.
const CHAINS: [&str; 3] = [ENTRY, "CNI-HOSTPORT-MASQ", "CNI-HOSTPORT-SETMARK"];

/// Removes the chains if no pod of any runtime uses them (reset). Absent chains and absent iptables count as removed.
///
/// # Errors
/// iptables refuses, or cannot be run. All or nothing is removed: a pod that gets a hostPort meanwhile keeps the chains.
pub async fn forget_port_chains() -> Result<(), IptablesError> {
    // A kernel without the table has no chains.
    let Ok(list) = run_iptables("iptables", &["-t", "nat", "-S"], None, None).await else {
        return Ok(());
    };
    let Some(script) = format_chain_removal(&list) else {
        return Ok(());
    };
    match run_iptables("iptables-restore", &["--noflush"], Some(script), None).await {
        Err(IptablesError::Missing(_)) => Ok(()),
        done => done.map(drop),
    }
}

/// Writes the input of iptables-restore for the removal, from the rules of the nat table; `None` if there is nothing to
/// do.
fn format_chain_removal(rules: &str) -> Option<String> {
    let used = rules
        .lines()
        .any(|l| l.starts_with(&format!("-A {ENTRY} ")));
    let there: Vec<&str> = CHAINS
        .into_iter()
        .filter(|c| rules.lines().any(|l| l.strip_prefix("-N ") == Some(c)))
        .collect();
    if used || there.is_empty() {
        return None;
    }
    let mut script = String::from("*nat\n");
    for rule in rules.lines().filter_map(|l| l.strip_prefix("-A ")) {
        let leads_there = |c: &&&str| rule.ends_with(&format!("-j {c}"));
        let own = |c: &&&str| rule.starts_with(&format!("{c} "));
        if there.iter().any(|c| leads_there(&c)) && !there.iter().any(|c| own(&c)) {
            script += &format!("-D {rule}\n");
        }
    }
    for what in ["-F", "-X"] {
        for chain in &there {
            // This chain is not emptied: a rule that came meanwhile keeps it, and with it all of them.
            if *chain != ENTRY || what == "-X" {
                script += &format!("{what} {chain}\n");
            }
        }
    }
    Some(script + "COMMIT\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_go_when_nobody_uses_them() {
        let idle = "-P PREROUTING ACCEPT\n-N CNI-HOSTPORT-DNAT\n-N CNI-HOSTPORT-MASQ\n-N CNI-HOSTPORT-SETMARK\n-N DOCKER\n\
            -A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT\n-A PREROUTING -j DOCKER\n\
            -A POSTROUTING -m comment --comment \"CNI portfwd requiring masquerade\" -j CNI-HOSTPORT-MASQ\n\
            -A CNI-HOSTPORT-MASQ -m mark --mark 0x2000/0x2000 -j MASQUERADE\n\
            -A CNI-HOSTPORT-SETMARK -m comment --comment \"CNI portfwd masquerade mark\" -j MARK --set-xmark 0x2000/0x2000";
        assert_eq!(
            format_chain_removal(idle).as_deref(),
            Some(
                "*nat\n-D PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT\n\
                 -D POSTROUTING -m comment --comment \"CNI portfwd requiring masquerade\" -j CNI-HOSTPORT-MASQ\n\
                 -F CNI-HOSTPORT-MASQ\n-F CNI-HOSTPORT-SETMARK\n\
                 -X CNI-HOSTPORT-DNAT\n-X CNI-HOSTPORT-MASQ\n-X CNI-HOSTPORT-SETMARK\nCOMMIT\n"
            )
        );
        let used = format!("{idle}\n-A CNI-HOSTPORT-DNAT -p tcp -j CNI-DN-0123");
        assert_eq!(format_chain_removal(&used), None);
        assert_eq!(
            format_chain_removal("-P PREROUTING ACCEPT\n-N DOCKER"),
            None
        );
    }
}
