//! Pod network, firewall, names.

use alloc::string::String;

use super::{CheckFacts, CheckFinding, join_first};

/// Text for a network that is the container runtime's, not this agent's.
const OF_RUNTIME: &str = "managed by the container runtime";

pub(super) fn check_network_config(facts: &CheckFacts) -> CheckFinding {
    let net = &facts.network;
    match (&facts.runtime.socket, &facts.runtime.network_error) {
        (Some(_), Some(why)) => {
            return CheckFinding::error(
                format!("the container runtime says: {why}"),
                "give the container runtime a network configuration; restart it if it does not notice that",
            );
        }
        (Some(_), None) => return CheckFinding::ok(OF_RUNTIME),
        (None, _) => {}
    }
    if let Some(why) = &net.conf_error {
        return CheckFinding::error(
            why.clone(),
            format!(
                "correct that file, or move it out of {} to use the built-in network",
                net.conf_dir
            ),
        );
    }
    match &net.conf {
        None => CheckFinding::ok(format!("built in, bridge {}", facts.wanted.bridge)),
        Some(file) if needs_daemon(&net.plugins) => CheckFinding::warning(
            format!(
                "{file} calls {}, which works only with its daemon: was it left by another cluster?",
                join_first(net.plugins.iter().map(String::as_str), 3)
            ),
            format!("mv {file} {file}.off  (the built-in network is used then)"),
        ),
        Some(file) => CheckFinding::ok(file.clone()),
    }
}

/// Plugins that only hand the request over to a pod of a cluster.
fn needs_daemon(plugins: &[String]) -> bool {
    const HANDED_OVER: [&str; 7] = [
        "flannel",
        "calico",
        "calico-ipam",
        "cilium-cni",
        "weave-net",
        "multus",
        "antrea",
    ];
    plugins.iter().any(|p| HANDED_OVER.contains(&p.as_str()))
}

pub(super) fn check_cni_plugins(facts: &CheckFacts) -> CheckFinding {
    let net = &facts.network;
    if facts.runtime.socket.is_some() {
        return CheckFinding::ok(OF_RUNTIME);
    }
    match &net.plugin_error {
        Some(why) if net.conf.is_some() => CheckFinding::error(
            why.clone(),
            "install the plugin, or move the configuration away to use the built-in network",
        ),
        Some(why) => CheckFinding::warning(
            format!("pods with a hostPort will not start: {why}"),
            "apt-get install containernetworking-plugins",
        ),
        None => CheckFinding::ok(join_first(net.plugins.iter().map(String::as_str), 4)),
    }
}

pub(super) fn check_iptables(facts: &CheckFacts) -> CheckFinding {
    let net = &facts.network;
    if facts.runtime.socket.is_some() {
        return CheckFinding::ok(OF_RUNTIME);
    }
    let built_in = net.conf.is_none();
    let Some(version) = &net.iptables else {
        return if built_in {
            CheckFinding::error(
                "the built-in network needs the iptables program",
                "apt-get install iptables",
            )
        } else {
            CheckFinding::ok("not installed; the configured network must work without it")
        };
    };
    if let Some(why) = &net.nat_error {
        return CheckFinding::error(
            format!("{version} cannot use the nat table: {why}"),
            if version.contains("legacy") {
                "modprobe iptable_nat, or update-alternatives --set iptables /usr/sbin/iptables-nft"
            } else {
                "modprobe nf_tables nft_compat nft_chain_nat, or update-alternatives --set iptables /usr/sbin/iptables-legacy"
            },
        );
    }
    if net.other_rules > 0 {
        let (other, set) = if version.contains("legacy") {
            ("nft", "nft")
        } else {
            ("legacy", "legacy")
        };
        return CheckFinding::warning(
            format!(
                "{version}, but {} rules were made with the {other} flavour: packets pass both",
                net.other_rules
            ),
            format!(
                "update-alternatives --set iptables /usr/sbin/iptables-{set}, or remove those rules"
            ),
        );
    }
    CheckFinding::ok(version.clone())
}

pub(super) fn check_forwarding(facts: &CheckFacts) -> CheckFinding {
    let net = &facts.network;
    let on = "printf 'net.ipv4.ip_forward=1\\n' > /etc/sysctl.d/90-picolet-forward.conf && sysctl --system";
    if !net.ip_forward && (net.bridge_exists || net.conf.is_some()) {
        return CheckFinding::error("net.ipv4.ip_forward is off: pods reach nothing", on);
    }
    if net.conf.is_some() && net.bridge_filter != Some(true) {
        return CheckFinding::warning(
            "the firewall does not see bridged packets (br_netfilter): Services of a cluster do not reach pods on the same node",
            "modprobe br_netfilter && echo br_netfilter > /etc/modules-load.d/br_netfilter.conf && \
             sysctl -w net.bridge.bridge-nf-call-iptables=1",
        );
    }
    if net.ip_forward {
        CheckFinding::ok("net.ipv4.ip_forward is on")
    } else {
        CheckFinding::ok("off; the bridge plugin switches it on with the first pod")
    }
}

pub(super) fn check_firewall(facts: &CheckFacts) -> CheckFinding {
    let net = &facts.network;
    let closed = net
        .forward
        .iter()
        .any(|rule| rule == "-P FORWARD DROP" || rule == "-P FORWARD REJECT");
    if !closed {
        return CheckFinding::ok("forwarded packets pass");
    }
    if net.conf.is_some() || facts.runtime.socket.is_some() {
        return CheckFinding::ok(
            "forwarded packets are dropped unless the configured network says otherwise",
        );
    }
    let bridge = &facts.wanted.bridge;
    let passes = |option: &str| {
        let word = format!("{option} {bridge} ");
        net.forward
            .iter()
            .any(|rule| rule.contains(&word) && rule.ends_with("-j ACCEPT"))
    };
    if passes("-i") && passes("-o") {
        return CheckFinding::ok(format!("packets of {bridge} pass, others are dropped"));
    }
    CheckFinding::error(
        "the firewall drops forwarded packets (docker and ufw do that): pods reach nothing",
        format!(
            "iptables -I FORWARD -i {bridge} -j ACCEPT && iptables -I FORWARD -o {bridge} -j ACCEPT"
        ),
    )
}

pub(super) fn check_dns(facts: &CheckFacts) -> CheckFinding {
    let net = &facts.network;
    let Some(file) = &net.resolv_conf else {
        return CheckFinding::ok("pods inherit no name servers");
    };
    let local = |server: &String| server.starts_with("127.") || server == "::1";
    if net.name_servers.is_empty() {
        return CheckFinding::warning(
            format!("{file} names no server: pods cannot resolve names"),
            "picolet run --resolv-conf FILE with a line such as: nameserver 192.168.1.1",
        );
    }
    if !net.name_servers.iter().any(local) {
        return CheckFinding::ok(join_first(net.name_servers.iter().map(String::as_str), 3));
    }
    let says = format!(
        "{file} names a server on this machine ({}), which pods cannot reach",
        join_first(net.name_servers.iter().map(String::as_str), 3)
    );
    if net.resolved {
        return CheckFinding::error(
            says,
            "picolet run --resolv-conf /run/systemd/resolve/resolv.conf  (or resolvConf: in the configuration)",
        );
    }
    CheckFinding::error(
        says,
        "picolet run --resolv-conf FILE, which names the servers that the local name server asks",
    )
}
