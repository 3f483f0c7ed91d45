//! State of the tunnel of k3s for people: the finding of `picolet check` (K3ST-11, K3ST-19).

use alloc::{format, string::String};

use serde::{Deserialize, Serialize};

use crate::{check::CheckFinding, tunnel::health::TunnelHealth};

/// State of the tunnel, as the agent reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct K3sTunnelHealth {
    /// Way of the apiserver to nodes; `None`: no server has told it yet.
    pub mode: Option<String>,
    /// Sessions.
    pub tunnel: TunnelHealth,
}

/// Checks the tunnel to the servers of a k3s cluster, of which `joined` is one. `health`: the agent's word; `None`: no
/// agent runs.
#[must_use]
pub fn check_k3s_tunnel(joined: &str, health: Option<&K3sTunnelHealth>) -> CheckFinding {
    const FIX: &str =
        "see docs/join.md; until then kubectl logs, exec and port-forward do not reach this node";
    let Some(health) = health else {
        return CheckFinding::ok(format!("the agent opens one to each server of {joined}"));
    };
    let TunnelHealth {
        streams, servers, ..
    } = health.tunnel;
    let trouble = || health.tunnel.trouble.clone();
    match health.mode.as_deref() {
        Some("disabled") => CheckFinding::ok("none is needed: the servers reach nodes directly"),
        mode if streams == 0 => {
            let nothing = match mode {
                None => format!("{joined} has not answered yet"),
                Some(_) => format!("no server of {joined} is reached"),
            };
            CheckFinding::warning(trouble().unwrap_or(nothing), FIX)
        }
        Some(_) | None if streams < servers => CheckFinding::warning(
            format!(
                "streams to {streams} of {servers} servers; the others do not reach this node: {}",
                trouble().unwrap_or_default()
            ),
            FIX,
        ),
        Some(_) | None => CheckFinding::ok(format!("streams to {streams} of {servers} servers")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::FindingLevel;

    #[test]
    fn what_check_says_of_it() {
        // K3ST-11 K3ST-19
        let health =
            |mode: Option<&str>, streams, servers, trouble: Option<&str>| K3sTunnelHealth {
                mode: mode.map(String::from),
                tunnel: TunnelHealth {
                    streams,
                    servers,
                    misrouted: 0,
                    trouble: trouble.map(String::from),
                },
            };
        let (ok, warning) = (FindingLevel::Ok, FindingLevel::Warning);
        for (health, level, says) in [
            (None, ok, "the agent opens one to each server of https://s"),
            (
                Some(health(None, 0, 0, None)),
                warning,
                "https://s has not answered yet",
            ),
            (
                Some(health(None, 0, 0, Some("refused"))),
                warning,
                "refused",
            ),
            (
                Some(health(Some("disabled"), 0, 0, Some("old"))),
                ok,
                "none is needed: the servers reach nodes directly",
            ),
            (
                Some(health(Some("agent"), 0, 3, None)),
                warning,
                "no server of https://s is reached",
            ),
            (
                Some(health(Some("agent"), 2, 3, Some("c: refused"))),
                warning,
                "streams to 2 of 3 servers; the others do not reach this node: c: refused",
            ),
            (
                Some(health(Some("cluster"), 3, 3, Some("old"))),
                ok,
                "streams to 3 of 3 servers",
            ),
        ] {
            let finding = check_k3s_tunnel("https://s", health.as_ref());
            assert_eq!((finding.level, &*finding.says), (level, says));
            assert_eq!(finding.fix.contains("docs/join.md"), level == warning);
        }
    }
}
