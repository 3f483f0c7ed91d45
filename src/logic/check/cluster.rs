//! The apiserver, if this machine is to be a node of one.

use alloc::{format, vec::Vec};

use super::{
    ApiserverAnswer, ApiserverFacts, BootstrapKubeconfig, CheckFacts, CheckFinding,
    machine::SET_CLOCK,
};
use crate::api::{WallTime, cluster_network::K3sClusterFacts};

/// Time before the end of a certificate from which on a warning is given if nobody renews it, seconds.
const SHORT_SECS: i64 = 14 * 24 * 3600;

fn apiserver_facts(facts: &CheckFacts) -> Result<&ApiserverFacts, CheckFinding> {
    facts
        .apiserver
        .as_ref()
        .ok_or_else(|| CheckFinding::ok("none: this node stands alone"))
}

pub(super) fn check_kubeconfig(facts: &CheckFacts) -> CheckFinding {
    let it = match apiserver_facts(facts) {
        Ok(it) => it,
        Err(alone) => return alone,
    };
    let path = &it.kubeconfig;
    match (&it.error, &it.bootstrap) {
        (None, _) => CheckFinding::ok(format!("{path} for {}", it.server)),
        // The agent writes it.
        (Some(_), Some(BootstrapKubeconfig::Usable(bootstrap))) => CheckFinding::ok(format!(
            "the agent will write {path} with the help of {bootstrap}"
        )),
        (Some(why), Some(BootstrapKubeconfig::Unusable(bootstrap))) => CheckFinding::error(
            format!("{why}; {bootstrap}"),
            "picolet join --force, with the arguments that this prints on the control plane: kubeadm token create --print-join-command",
        ),
        (Some(why), None) => CheckFinding::error(
            why.clone(),
            format!("picolet join --force, or copy a kubeconfig for this node to {path}"),
        ),
    }
}

pub(super) fn check_certificate(facts: &CheckFacts) -> CheckFinding {
    let it = match apiserver_facts(facts) {
        Ok(it) => it,
        Err(alone) => return alone,
    };
    let Some((begins, ends)) = it.certificate else {
        return CheckFinding::ok(match it.bootstrap {
            Some(_) => "none yet: the agent requests it",
            None => "none: the kubeconfig has another credential",
        });
    };
    let now = facts.clock.now;
    let renew =
        "picolet join --force with a new token, or copy a new kubeconfig from the control plane";
    if now < begins {
        return CheckFinding::warning(
            format!("valid only from {begins} on, and the clock shows {now}"),
            SET_CLOCK,
        );
    }
    // The agent tries it then (SVC-15).
    if now > ends && facts.clock.synchronized != Some(true) {
        return CheckFinding::warning(
            format!("expired at {ends} by the clock, which shows {now} and is not synchronized"),
            SET_CLOCK,
        );
    }
    if now > ends {
        let says = format!("expired at {ends}");
        return match &it.bootstrap {
            Some(BootstrapKubeconfig::Usable(_)) => {
                CheckFinding::ok(format!("{says}: the agent requests a new one"))
            }
            _ => CheckFinding::error(says, renew),
        };
    }
    if !it.renews
        && ends < WallTime::from_unix_seconds(now.unix_seconds().saturating_add(SHORT_SECS))
    {
        return CheckFinding::warning(
            format!("expires at {ends}, and the agent does not renew it"),
            "picolet run --rotate-certificates  (or rotateCertificates: true in the configuration)",
        );
    }
    CheckFinding::ok(format!("valid until {ends}"))
}

pub(super) fn check_apiserver(facts: &CheckFacts) -> CheckFinding {
    let it = match apiserver_facts(facts) {
        Ok(it) => it,
        Err(alone) => return alone,
    };
    if let Some(clock) = &it.clock {
        return CheckFinding::warning(clock.clone(), SET_CLOCK);
    }
    match &it.answer {
        None => CheckFinding::ok("not asked"),
        Some(ApiserverAnswer::Given) => CheckFinding {
            more: it.k3s.as_ref().map_or_else(Vec::new, find_absent_features),
            ..CheckFinding::ok(format!("{} answers", it.server))
        },
        Some(ApiserverAnswer::Silent(why)) => CheckFinding::warning(
            format!("{why}; pods keep running without it"),
            format!("curl -kv {}/healthz", it.server),
        ),
    }
}

/// Features of an agent of k3s that the servers want and this node does not have (K3SN-15).
fn find_absent_features(facts: &K3sClusterFacts) -> Vec<CheckFinding> {
    let features = [
        (
            facts.has_embedded_registry,
            "the servers have an embedded registry mirror: this node pulls from the registries, and gives no other node images",
        ),
        (
            facts.network.has_network_policy,
            "agents of k3s enforce network policies: nothing enforces them for pods of this node, unless a program of yours does",
        ),
        (
            facts.network.flannel_backend == "tailscale",
            "the network of the cluster is a VPN (tailscale): this node is not in it",
        ),
    ];
    let absent = features.into_iter().filter(|(is_wanted, _)| *is_wanted);
    absent.map(|(_, says)| CheckFinding::ok(says)).collect()
}

/// Checks routes to pods of other nodes: the built-in network is only this machine's, so another program must make them
/// (K3SJ-11).
pub(super) fn check_pod_routes(facts: &CheckFacts) -> CheckFinding {
    let net = &facts.network;
    match apiserver_facts(facts) {
        Err(alone) => alone,
        Ok(_) if facts.runtime.socket.is_some() || net.conf.is_some() => {
            CheckFinding::ok("managed by the configured network")
        }
        Ok(_) if net.routes > 0 => {
            CheckFinding::ok(format!("{} routes through other machines", net.routes))
        }
        Ok(_) => CheckFinding::warning(
            "pods do not reach pods of other nodes: the built-in network has no routes to them",
            format!(
                "ip route add POD-CIDR via NODE-IP, for each other node; or put a network configuration into {}",
                net.conf_dir
            ),
        ),
    }
}

/// Checks that Services are reachable: not a kubelet makes them so, but kube-proxy, or a network that replaces it.
pub(super) fn check_services(facts: &CheckFacts) -> CheckFinding {
    match (apiserver_facts(facts), &facts.network.services) {
        (Err(alone), _) => alone,
        (Ok(_), Some(by)) => CheckFinding::ok(by.clone()),
        (Ok(_), None) => CheckFinding::warning(
            "pods do not reach Services: no kube-proxy has made rules on this machine",
            "run kube-proxy here: kubeadm has a DaemonSet of it (kubectl -n kube-system get ds kube-proxy), k3s has none",
        ),
    }
}

/// Checks that the control plane can reach this node for logs and exec. Servers of k3s that want nodes to open tunnels
/// to them do not reach it, unless a part keeps one (K3ST-06).
pub(super) fn check_control_plane_tunnel(facts: &CheckFacts) -> CheckFinding {
    match apiserver_facts(facts) {
        Err(alone) => alone,
        Ok(it) => match &it.tunnel {
            None => CheckFinding::ok("none is needed"),
            Some(mode) => CheckFinding::warning(
                format!(
                    "kubectl logs and exec do not reach this node: the servers want a tunnel ({mode})"
                ),
                "run all servers of k3s with --egress-selector-mode=disabled",
            ),
        },
    }
}
