//! The apiserver, if this machine is to be a node of one.

use alloc::format;

use super::{Answer, Apiserver, Bootstrap, Facts, Finding, machine::SET_CLOCK};
use crate::api::Wall;

/// Time before the end of a certificate from which on a warning is given if nobody renews it, seconds.
const SHORT_SECS: i64 = 14 * 24 * 3600;

fn told(facts: &Facts) -> Result<&Apiserver, Finding> {
    facts
        .apiserver
        .as_ref()
        .ok_or_else(|| Finding::ok("none: this node stands alone"))
}

pub(super) fn kubeconfig(facts: &Facts) -> Finding {
    let it = match told(facts) {
        Ok(it) => it,
        Err(alone) => return alone,
    };
    let path = &it.kubeconfig;
    match (&it.error, &it.bootstrap) {
        (None, _) => Finding::ok(format!("{path} for {}", it.server)),
        // The agent writes it.
        (Some(_), Some(Bootstrap::Usable(bootstrap))) => {
            Finding::ok(format!("{path} will be written as {bootstrap} says"))
        }
        (Some(why), Some(Bootstrap::Unusable(bootstrap))) => Finding::error(
            format!("{why}; {bootstrap}"),
            "picolet join --force, with what this prints on the control plane: kubeadm token create --print-join-command",
        ),
        (Some(why), None) => Finding::error(
            why.clone(),
            format!("picolet join --force, or copy a kubeconfig for this node to {path}"),
        ),
    }
}

pub(super) fn certificate(facts: &Facts) -> Finding {
    let it = match told(facts) {
        Ok(it) => it,
        Err(alone) => return alone,
    };
    let Some((begins, ends)) = it.certificate else {
        return Finding::ok(match it.bootstrap {
            Some(_) => "none yet: it is asked for",
            None => "none: another way to say who this is",
        });
    };
    let now = facts.clock.now;
    let renew =
        "picolet join --force with a new token, or copy a new kubeconfig from the control plane";
    if now < begins {
        return Finding::warning(
            format!("holds from {begins} on, and it is {now}"),
            SET_CLOCK,
        );
    }
    // The agent tries it then (SVC-15).
    if now > ends && facts.clock.synchronized != Some(true) {
        return Finding::warning(
            format!("ended at {ends}, says a clock that nobody keeps right: it is {now} here"),
            SET_CLOCK,
        );
    }
    if now > ends {
        let says = format!("ended at {ends}");
        return match &it.bootstrap {
            Some(Bootstrap::Usable(_)) => Finding::ok(format!("{says}: another is asked for")),
            _ => Finding::error(says, renew),
        };
    }
    if !it.renews && ends < Wall::from_secs(now.secs().saturating_add(SHORT_SECS)) {
        return Finding::warning(
            format!("ends at {ends}, and the agent does not renew it"),
            "picolet run --rotate-certificates  (or rotateCertificates: true in the configuration)",
        );
    }
    Finding::ok(format!("holds until {ends}"))
}

pub(super) fn apiserver(facts: &Facts) -> Finding {
    let it = match told(facts) {
        Ok(it) => it,
        Err(alone) => return alone,
    };
    if let Some(clock) = &it.clock {
        return Finding::warning(clock.clone(), SET_CLOCK);
    }
    match &it.answer {
        None => Finding::ok("not asked"),
        Some(Answer::Given) => Finding::ok(format!("{} answers", it.server)),
        Some(Answer::Silent(why)) => Finding::warning(
            format!("{why}; pods go on without it"),
            format!("curl -kv {}/healthz", it.server),
        ),
    }
}

/// Checks routes to pods of other nodes: the built-in network is only this machine's, so another program must make them
/// (K3SJ-11).
pub(super) fn pod_routes(facts: &Facts) -> Finding {
    let net = &facts.network;
    match told(facts) {
        Err(alone) => alone,
        Ok(_) if facts.runtime.socket.is_some() || net.conf.is_some() => {
            Finding::ok("the configured network's")
        }
        Ok(_) if net.routes > 0 => Finding::ok(format!("{} by other machines", net.routes)),
        Ok(_) => Finding::warning(
            "pods do not reach pods of other nodes: the built-in network has no routes to them",
            format!(
                "ip route add PODS-OF-A-NODE via ADDRESS-OF-THE-NODE, for each other node; or a network configuration in {}",
                net.conf_dir
            ),
        ),
    }
}

/// Checks that Services are reachable: not a kubelet makes them so, but kube-proxy, or a network that replaces it.
pub(super) fn services(facts: &Facts) -> Finding {
    match (told(facts), &facts.network.services) {
        (Err(alone), _) => alone,
        (Ok(_), Some(by)) => Finding::ok(by.clone()),
        (Ok(_), None) => Finding::warning(
            "pods do not reach Services: no kube-proxy has made rules on this machine",
            "run kube-proxy here: kubeadm has a DaemonSet of it (kubectl -n kube-system get ds kube-proxy), k3s has none",
        ),
    }
}

/// Checks that the control plane can reach this node for logs and exec. Servers of k3s that want nodes to open tunnels
/// to them do not reach it (K3SJ-09).
pub(super) fn tunnel(facts: &Facts) -> Finding {
    match told(facts) {
        Err(alone) => alone,
        Ok(it) => match &it.tunnel {
            None => Finding::ok("none is needed"),
            Some(mode) => Finding::warning(
                format!(
                    "kubectl logs and exec do not reach this node: the servers want a tunnel ({mode})"
                ),
                "run all servers of k3s with --egress-selector-mode=disabled",
            ),
        },
    }
}
