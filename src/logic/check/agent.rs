//! Configuration, manifests, neighbours and the agent itself.

use alloc::{string::String, vec::Vec};

use super::{AgentReachability, CheckFacts, CheckFinding, ManifestFacts, join_first};
use crate::api::health::AgentHealth;

/// A relist is due every second; an agent whose last one is older than this cannot do its work.
const STALE_RELIST_MS: u64 = 30_000;

pub(super) fn check_config(facts: &CheckFacts) -> CheckFinding {
    let wanted = &facts.wanted;
    let fix = |place: &String| format!("correct {place}");
    let errors = wanted.errors.iter();
    let errors = errors.map(|(place, why)| CheckFinding::error(why, fix(place)));
    let protected = wanted.protected.iter().map(|why| {
        CheckFinding::error(
            why,
            "set them with sysctl, or set protectKernelDefaults to false so that the agent sets them",
        )
    });
    let warnings = wanted.warnings.iter();
    let warnings = warnings.map(|(place, what)| CheckFinding::warning(what, fix(place)));
    CheckFinding::join(errors.chain(protected).chain(warnings).collect())
        .unwrap_or_else(|| CheckFinding::ok(wanted.file.as_deref().unwrap_or("defaults and flags")))
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
    let says = |(file, what): &(String, String)| format!("{file}: {what}");
    let fix = |(file, _): &(String, String)| format!("correct {file}");
    let bad = manifests.bad.iter();
    let bad = bad.map(|found| CheckFinding::error(says(found), fix(found)));
    let odd = manifests.odd.iter();
    let odd = odd.map(|found| CheckFinding::warning(says(found), fix(found)));
    CheckFinding::join(bad.chain(odd).chain(plain).collect()).unwrap_or_else(|| {
        CheckFinding::ok(match (&manifests.path, url) {
            (Some(path), None) => format!("{} pods in {path}", manifests.pods),
            (Some(path), Some(url)) => format!("{} pods in {path}; more at {url}", manifests.pods),
            (None, Some(url)) => format!("only at {url}"),
            (None, None) => "turned off".into(),
        })
    })
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
        let restart = match facts.agent {
            AgentReachability::Up(_) => "; if there was one, restart the agent",
            AgentReachability::Absent | AgentReachability::Mute(_) => "",
        };
        return CheckFinding::ok(format!(
            "no configuration of registries: each is contacted directly{restart}"
        ));
    };
    let unusable = registries
        .unusable
        .iter()
        .map(|why| CheckFinding::error(why, format!("correct {path}: the agent does not start")));
    let faults = registries.faults.iter().map(|fault| {
        CheckFinding::warning(fault, format!("correct {path}, then restart the agent"))
    });
    let newer = registries.is_newer.then(|| {
        CheckFinding::warning(
            format!("{path} was changed after the agent had read it"),
            "systemctl restart picolet",
        )
    });
    CheckFinding::join(unusable.chain(faults).chain(newer).collect())
        .unwrap_or_else(|| CheckFinding::ok(format!("{path}, read when the agent starts")))
}

pub(super) fn check_agent(facts: &CheckFacts) -> CheckFinding {
    let restart = "systemctl restart picolet; journalctl -u picolet -n 50";
    let agent = match &facts.agent {
        AgentReachability::Absent => {
            return CheckFinding::ok("not running (systemctl start picolet)");
        }
        AgentReachability::Mute(why) => {
            // Nobody but root may ask it.
            let fix = match facts.rights.root {
                true => restart,
                false => "sudo picolet check",
            };
            return CheckFinding::error(format!("does not answer: {why}"), fix);
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
        Some(link) if link.waits => CheckFinding::warning(
            link.says.clone(),
            "picolet image pull --now IMAGE, or raise picolet.link.dailyBytes",
        ),
        Some(link) => CheckFinding::ok(link.says.clone()),
    }
}

/// Returns the reason why an agent does not work, if it does not. An agent that has never read its manifests counts as
/// sound: it may have none.
#[must_use]
pub fn agent_trouble(agent: &AgentHealth) -> Option<String> {
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
