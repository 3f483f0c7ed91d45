//! State of the network of pods for people: the finding of `picolet check`, the condition of `get node`, and metrics
//! (FLAN-19).

use alloc::{format, string::String, vec::Vec};

use serde::{Deserialize, Serialize};

use crate::{
    check::{CheckFinding, join_first},
    metrics::exposition::{MetricType, MetricsText},
};

/// State of the network, as the agent reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodNetworkHealth {
    /// Name of the backend; empty while it is not known.
    pub backend: String,
    /// Set once pods of this node can reach those of other nodes.
    pub is_ready: bool,
    /// Set if the cluster wants no network of this kind.
    pub is_off: bool,
    /// Other nodes that are reached.
    pub peers: usize,
    /// Other nodes that take part and are not reached, each with the reason; at most 16.
    pub faults: Vec<String>,
    /// Reason why the network is not ready, or the last thing that failed.
    pub trouble: Option<String>,
    /// Module of the kernel that is missing.
    pub missing_module: Option<String>,
    /// UDP port that the firewall of this node seems to close.
    pub closed_port: Option<u16>,
}

/// Figures of the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodNetworkFigures {
    /// Other nodes that are reached.
    pub peers: u64,
    /// Other nodes that take part and are not reached.
    pub refused: u64,
    /// Entries of the kernel that were made or changed.
    pub changed: u64,
    /// Entries of the kernel that were deleted.
    pub deleted: u64,
    /// Changes that the kernel refused.
    pub failed: u64,
    /// Lists of nodes that were read to their end.
    pub lists: u64,
}

/// Advice while the network is not as it is to be. Routes that are there stay, whatever fails.
const SEE: &str = "see docs/pod-network.md; until then pods reach those of other nodes only by routes that are there already";

/// Checks the network. `health`: the agent's word; `None`: no agent runs.
#[must_use]
pub fn check_pod_network(health: Option<&PodNetworkHealth>) -> CheckFinding {
    let Some(health) = health else {
        return CheckFinding::ok("made by the agent, which does not run");
    };
    if health.is_off {
        return CheckFinding::ok("none: the cluster has another");
    }
    if let Some(module) = &health.missing_module {
        let load =
            format!("modprobe {module} && echo {module} > /etc/modules-load.d/{module}.conf");
        return match &**module {
            "vxlan" => CheckFinding::error(
                "the kernel has no module vxlan",
                format!(
                    "{load}; on Ubuntu for the Raspberry Pi: apt-get install linux-modules-extra-raspi"
                ),
            ),
            _ => CheckFinding::warning(
                format!(
                    "the kernel has no module {module}: a pod that reaches another of this node through a Service gets no answer"
                ),
                load,
            ),
        };
    }
    if let Some(why) = &health.trouble {
        return CheckFinding::warning(why.clone(), SEE);
    }
    if !health.is_ready {
        return CheckFinding::warning("it is not ready yet", SEE);
    }
    if let Some(port) = health.closed_port {
        return CheckFinding::warning(
            format!(
                "the firewall of this node seems to drop UDP port {port}: other nodes do not reach its pods"
            ),
            format!(
                "iptables -I INPUT -p udp --dport {port} -j ACCEPT, or open it in the firewall's own settings"
            ),
        );
    }
    if !health.faults.is_empty() {
        let faults = health.faults.iter().map(String::as_str);
        return CheckFinding::warning(
            format!("nodes that are not reached: {}", join_first(faults, 3)),
            "see docs/pod-network.md",
        );
    }
    CheckFinding::ok(format!("{}, {}", health.backend, peers_text(health.peers)))
}

/// Text for a number of nodes.
#[must_use]
pub fn peers_text(peers: usize) -> String {
    match peers {
        1 => "1 other node".into(),
        _ => format!("{peers} other nodes"),
    }
}

/// Writes the metrics of the network.
pub fn write_pod_network_metrics(figures: &PodNetworkFigures, page: &mut MetricsText) {
    let mut family =
        |name: &str, of: MetricType, help: &str, label: &str, values: &[(&str, u64)]| {
            page.write_family(name, of, help, |samples| {
                for (text, value) in values {
                    let labels = [(label, *text)];
                    let labels = &labels[usize::from(label.is_empty())..];
                    samples.write_sample(labels, (*value).into(), None);
                }
            });
        };
    family(
        "picolet_pod_network_nodes",
        MetricType::Gauge,
        "Other nodes that take part in the network of pods.",
        "state",
        &[("reached", figures.peers), ("refused", figures.refused)],
    );
    family(
        "picolet_pod_network_entry_changes_total",
        MetricType::Counter,
        "Changes of the kernel's entries for other nodes.",
        "result",
        &[
            ("set", figures.changed),
            ("deleted", figures.deleted),
            ("failed", figures.failed),
        ],
    );
    family(
        "picolet_pod_network_lists_total",
        MetricType::Counter,
        "Lists of nodes that were read for the network of pods.",
        "",
        &[("", figures.lists)],
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::FindingLevel;

    #[test]
    fn the_finding() {
        // FLAN-15 FLAN-19
        let ready = || PodNetworkHealth {
            backend: "vxlan".into(),
            is_ready: true,
            peers: 2,
            ..PodNetworkHealth::default()
        };
        for (health, level, says) in [
            (
                None,
                FindingLevel::Ok,
                "made by the agent, which does not run",
            ),
            (Some(ready()), FindingLevel::Ok, "vxlan, 2 other nodes"),
            (
                Some(PodNetworkHealth {
                    peers: 1,
                    ..ready()
                }),
                FindingLevel::Ok,
                "vxlan, 1 other node",
            ),
            (
                Some(PodNetworkHealth {
                    is_off: true,
                    ..PodNetworkHealth::default()
                }),
                FindingLevel::Ok,
                "none: the cluster has another",
            ),
            (
                Some(PodNetworkHealth::default()),
                FindingLevel::Warning,
                "it is not ready yet",
            ),
            (
                Some(PodNetworkHealth {
                    missing_module: Some("vxlan".into()),
                    ..ready()
                }),
                FindingLevel::Error,
                "the kernel has no module vxlan",
            ),
            (
                Some(PodNetworkHealth {
                    trouble: Some("no default route".into()),
                    ..ready()
                }),
                FindingLevel::Warning,
                "no default route",
            ),
            (
                Some(PodNetworkHealth {
                    faults: vec!["a: x".into()],
                    ..ready()
                }),
                FindingLevel::Warning,
                "nodes that are not reached: a: x",
            ),
            (
                Some(PodNetworkHealth {
                    closed_port: Some(8472),
                    ..ready()
                }),
                FindingLevel::Warning,
                "the firewall of this node seems to drop UDP port 8472: other nodes do not reach its pods",
            ),
        ] {
            let found = check_pod_network(health.as_ref());
            assert_eq!((found.level, &*found.says), (level, says));
            assert_eq!(found.fix.is_empty(), level == FindingLevel::Ok, "{says}");
        }
        let missing = PodNetworkHealth {
            missing_module: Some("vxlan".into()),
            ..ready()
        };
        let found = check_pod_network(Some(&missing));
        assert!(found.fix.contains("linux-modules-extra-raspi"));
    }

    #[test]
    fn the_metrics() {
        // FLAN-19
        let figures = PodNetworkFigures {
            peers: 1,
            refused: 2,
            changed: 3,
            deleted: 4,
            failed: 5,
            lists: 6,
        };
        let mut page = MetricsText::default();
        write_pod_network_metrics(&figures, &mut page);
        for line in [
            "picolet_pod_network_nodes{state=\"reached\"} 1",
            "picolet_pod_network_nodes{state=\"refused\"} 2",
            "picolet_pod_network_entry_changes_total{result=\"set\"} 3",
            "picolet_pod_network_entry_changes_total{result=\"deleted\"} 4",
            "picolet_pod_network_entry_changes_total{result=\"failed\"} 5",
            "picolet_pod_network_lists_total 6",
        ] {
            assert!(page.0.lines().any(|l| l == line), "{line}: {}", page.0);
        }
    }
}
