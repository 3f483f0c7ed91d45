//! Configuration, manifests, neighbours and the agent itself.

use alloc::{string::String, vec::Vec};

use super::{AgentFacts, AgentReachability, CheckFacts, CheckFinding, ManifestFacts, join_first};

/// A relist is due every second; an agent whose last one is older than this cannot do its work.
const STALE_RELIST_MS: u64 = 30_000;

pub(super) fn check_config(facts: &CheckFacts) -> CheckFinding {
    let wanted = &facts.wanted;
    if let Some(why) = &wanted.unusable {
        return CheckFinding::error(
            why.clone(),
            "correct that field; picolet run --help lists them",
        );
    }
    if let Some(why) = &wanted.protected {
        return CheckFinding::error(
            why.clone(),
            "set them with sysctl, or set protectKernelDefaults to false so that the agent sets them",
        );
    }
    let file = wanted.file.as_deref();
    if !wanted.warnings.is_empty() {
        return CheckFinding::warning(
            join_first(wanted.warnings.iter().map(String::as_str), 3),
            format!("correct {}", file.unwrap_or("the flags")),
        );
    }
    CheckFinding::ok(file.unwrap_or("defaults and flags"))
}

pub(super) fn check_neighbours(facts: &CheckFacts) -> CheckFinding {
    let Some((name, pid)) = facts.kubelets.first() else {
        return CheckFinding::ok("no other program runs pods here");
    };
    let unit = match name.as_str() {
        "k3s" | "k3s-server" | "k3s-agent" => "k3s",
        "kubelite" => "snap.microk8s.daemon-kubelite",
        other => other,
    };
    CheckFinding::error(
        format!("{name} (process {pid}) runs pods on this machine"),
        format!(
            "systemctl disable --now {unit}, or give picolet --cgroup-root and --pod-logs-dir of its own"
        ),
    )
}

pub(super) fn check_ports(facts: &CheckFacts) -> CheckFinding {
    let listening = &facts.network.listening;
    // An agent's own pods listen as they should.
    let running = matches!(facts.agent, AgentReachability::Up(_));
    let taken = facts
        .manifests
        .host_ports
        .iter()
        .find(|(port, _)| !running && listening.binary_search(port).is_ok());
    match taken {
        Some((port, pod)) => CheckFinding::error(
            format!("port {port} that pod {pod} asks for is taken"),
            format!(
                "ss -ltnp 'sport = :{port}'  (then end that program, or change the pod's hostPort)"
            ),
        ),
        None => CheckFinding::ok(format!(
            "{} asked for by pods",
            facts.manifests.host_ports.len()
        )),
    }
}

pub(super) fn check_manifests(facts: &CheckFacts) -> CheckFinding {
    judge_manifests(&facts.manifests)
}

/// Judges manifests: the same rule for those of a node and for a file by itself.
#[must_use]
pub fn judge_manifests(manifests: &ManifestFacts) -> CheckFinding {
    let url = manifests.url.as_deref();
    let plain = url.filter(|_| manifests.is_url_plain).map(|url| {
        CheckFinding::warning(
            format!("staticPodURL {url} is plain http: anyone on the network path can decide which pods run"),
            "serve it over https; set picolet.manifestURLCA to the CA of the server",
        )
    });
    let Some(path) = &manifests.path else {
        let none = || "turned off".into();
        let only = url.map_or_else(none, |url| format!("only at {url}"));
        return plain.unwrap_or_else(|| CheckFinding::ok(only));
    };
    match manifests.bad.as_slice() {
        [] => {
            if let Some((file, _)) = manifests.odd.first() {
                let all: Vec<String> = manifests
                    .odd
                    .iter()
                    .map(|(file, what)| format!("{file}: {what}"))
                    .collect();
                let says = join_first(all.iter().map(String::as_str), 3);
                return CheckFinding::warning(says, format!("correct {file}"));
            }
            if let Some(plain) = plain {
                return plain;
            }
            let more = url.map_or_else(String::new, |url| format!("; more at {url}"));
            CheckFinding::ok(format!("{} pods in {path}{more}", manifests.pods))
        }
        [(file, why), more @ ..] => CheckFinding::error(
            match more.len() {
                0 => format!("{file}: {why}"),
                more => format!("{file}: {why} (and {more} more files)"),
            },
            format!("correct {file}"),
        ),
    }
}

pub(super) fn check_secret_files(facts: &CheckFacts) -> CheckFinding {
    let open = &facts.manifests.open_secrets;
    if open.is_empty() {
        return CheckFinding::ok("read from manifests only; copied nowhere but into memory");
    }
    let names = || open.iter().map(String::as_str);
    let all: Vec<&str> = names().collect();
    CheckFinding::warning(
        format!(
            "anyone on this machine can read the secrets in {}",
            join_first(names(), 3)
        ),
        format!("chmod 600 {}", all.join(" ")),
    )
}

pub(super) fn check_registries(facts: &CheckFacts) -> CheckFinding {
    let registries = &facts.registries;
    let Some(path) = &registries.path else {
        return CheckFinding::ok("no configuration of registries: each is contacted directly");
    };
    if let Some(why) = &registries.unusable {
        return CheckFinding::error(
            why.clone(),
            format!("correct {path}: the agent does not start"),
        );
    }
    if !registries.faults.is_empty() {
        let faults = join_first(registries.faults.iter().map(String::as_str), 5);
        return CheckFinding::warning(faults, format!("correct {path}, then restart the agent"));
    }
    if registries.is_newer {
        return CheckFinding::warning(
            format!("{path} was changed after the agent had read it"),
            "systemctl restart picolet",
        );
    }
    CheckFinding::ok(format!("{path}, read when the agent starts"))
}

pub(super) fn check_agent(facts: &CheckFacts) -> CheckFinding {
    let restart = "systemctl restart picolet; journalctl -u picolet -n 50";
    let agent = match &facts.agent {
        AgentReachability::Absent => {
            return CheckFinding::ok("not running (systemctl start picolet)");
        }
        AgentReachability::Mute(why) => {
            return CheckFinding::error(format!("does not answer: {why}"), restart);
        }
        AgentReachability::Up(agent) => agent,
    };
    if let Some(why) = agent_trouble(agent) {
        return CheckFinding::error(why, restart);
    }
    if facts.manifests.path.is_some() && agent.manifests_age_ms.is_none() {
        return CheckFinding::error("has never read its manifests", restart);
    }
    if let Some(why) = &agent.network_down {
        return CheckFinding::error(
            format!("pods get no network: {why}"),
            "see cni-config and cni-plugins",
        );
    }
    CheckFinding::ok(format!(
        "{} with {} pods; containers seen {}, manifests read {}",
        agent.version,
        agent.pods,
        format_age(agent.relist_age_ms),
        format_age(agent.manifests_age_ms)
    ))
}

pub(super) fn check_link_budget(facts: &CheckFacts) -> CheckFinding {
    let link = match &facts.agent {
        AgentReachability::Up(agent) => agent.link.as_ref(),
        AgentReachability::Absent | AgentReachability::Mute(_) => None,
    };
    match link {
        None => CheckFinding::ok("none"),
        Some((says, false)) => CheckFinding::ok(says.clone()),
        Some((says, true)) => CheckFinding::warning(
            says.clone(),
            "picolet image pull --now IMAGE, or raise picolet.link.dailyBytes",
        ),
    }
}

/// Returns the reason why an agent does not work, if it does not. An agent that has never read its manifests counts as
/// sound: it may have none.
#[must_use]
pub fn agent_trouble(agent: &AgentFacts) -> Option<String> {
    if let Some(why) = &agent.down {
        return Some(format!("handles no pods: {why}"));
    }
    if agent.relist_age_ms.is_none_or(|age| age > STALE_RELIST_MS) {
        let ago = format_age(agent.relist_age_ms);
        return Some(format!("last looked at its containers {ago}"));
    }
    let limit = agent.manifests_interval_ms.saturating_mul(3);
    if agent.manifests_age_ms.is_some_and(|age| age > limit) {
        let ago = format_age(agent.manifests_age_ms);
        return Some(format!("last read its manifests {ago}"));
    }
    None
}

fn format_age(ms: Option<u64>) -> String {
    ms.map_or_else(|| "never".into(), |ms| format!("{} s ago", ms / 1000))
}
