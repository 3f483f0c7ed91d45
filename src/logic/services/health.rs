//! State of the part for people and for load balancers: answers of health check ports (PROX-18, PROX-19), the finding of
//! `picolet check`, figures of `/metrics`.

use alloc::{
    format,
    string::{String, ToString as _},
};

use serde::{Deserialize, Serialize};

use crate::{
    api::{Node, WallTime},
    check::CheckFinding,
    metrics::exposition::{MetricType, MetricsText},
};

/// Taint of a node that the cluster autoscaler is about to delete.
const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";

/// State of the part, as the agent reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServicesHealth {
    /// Set once every Service was written.
    pub is_written: bool,
    /// Number of Services in the table.
    pub services: usize,
    /// Reason why the part does nothing, or why its last step failed.
    pub trouble: Option<String>,
    /// Line to type against it.
    pub fix: Option<String>,
    /// Set if no doorbell rings: changes come by polling.
    pub is_polling: bool,
    /// Number of Services whose rules the kernel does not take.
    #[serde(default)]
    pub refused: usize,
}

/// Figures of the part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServicesFigures {
    /// Services in the table.
    pub services: u64,
    /// Transactions that the kernel took.
    pub written: u64,
    /// Transactions that failed.
    pub failed: u64,
    /// Repairs of a table that others changed.
    pub repaired: u64,
    /// Flows of UDP whose endpoint was gone.
    pub flows: u64,
}

/// Checks the part. `health`: the agent's word; `None`: no agent runs. `watch`: changes are to be watched.
#[must_use]
pub fn check_services(health: Option<&ServicesHealth>, watch: bool) -> CheckFinding {
    let Some(health) = health else {
        return CheckFinding::ok(
            "is configured: picolet writes the rules of Services (docs/services.md)",
        );
    };
    if let Some(trouble) = &health.trouble {
        let fix = health.fix.as_deref().unwrap_or("see docs/services.md");
        return CheckFinding::warning(trouble.clone(), fix);
    }
    if !health.is_written {
        return CheckFinding::warning(
            "no Service is reachable yet: the lists of Services and EndpointSlices were not read",
            "see the log of the agent",
        );
    }
    if health.refused > 0 {
        return CheckFinding::warning(
            format!(
                "{} of the Services could not be written: the others work",
                health.refused
            ),
            "see the events ServiceNotWritten of the Node",
        );
    }
    if health.is_polling {
        return CheckFinding::warning(
            "changes of Services come by polling: connections to pods that end are lost until the next poll",
            match watch {
                // A thread could not be started; each poll tries it again.
                true => "see the log of the agent",
                false => "set picolet.services.watch: true",
            },
        );
    }
    CheckFinding::ok(format!("{} Services are reachable", health.services))
}

/// Writes the metrics of the part.
pub fn write_services_metrics(figures: &ServicesFigures, page: &mut MetricsText) {
    for (name, of, help, label, values) in [
        (
            "picolet_services",
            MetricType::Gauge,
            "Services in the table of nftables.",
            "",
            &[("", figures.services)][..],
        ),
        (
            "picolet_services_transactions_total",
            MetricType::Counter,
            "Transactions of nftables.",
            "result",
            &[("written", figures.written), ("failed", figures.failed)],
        ),
        (
            "picolet_services_repairs_total",
            MetricType::Counter,
            "Repairs of a table that another program changed.",
            "",
            &[("", figures.repaired)],
        ),
        (
            "picolet_services_udp_flows_removed_total",
            MetricType::Counter,
            "Flows of UDP that were removed because their endpoint was gone.",
            "",
            &[("", figures.flows)],
        ),
    ] {
        page.write_family(name, of, help, |samples| {
            for (text, value) in values {
                let labels = [(label, *text)];
                let end = usize::from(!label.is_empty());
                samples.write_sample(&labels[..end], (*value).into(), None);
            }
        });
    }
}

/// Returns true if load balancers may use a Node: it stays. One that is not known yet does.
#[must_use]
pub fn is_node_eligible(node: Option<&Node>) -> bool {
    node.is_none_or(|node| {
        let mut taints = node.spec.taints.iter();
        node.metadata.deletion_timestamp.is_none() && taints.all(|taint| taint.key != TO_BE_DELETED)
    })
}

/// Answer about this node as a whole: status and JSON. `updated`: time of the last write.
///
/// - Source: kubernetes `pkg/proxy/healthcheck/proxy_health.go`.
#[must_use]
pub fn answer_healthz(
    path: &[u8],
    is_healthy: bool,
    is_eligible: bool,
    (updated, now): (WallTime, WallTime),
) -> (u16, String) {
    let (status, more) = match path {
        b"/livez" => (status_of(is_healthy), String::new()),
        b"/healthz" => (
            status_of(is_healthy && is_eligible),
            format!(",\"nodeEligible\":{is_eligible}"),
        ),
        _ => return (404, String::new()),
    };
    // Who is healthy has nothing to write.
    let updated = if status == 200 { now } else { updated };
    let body = format!("{{\"lastUpdated\":\"{updated}\",\"currentTime\":\"{now}\"{more}}}");
    (status, body)
}

const fn status_of(is_healthy: bool) -> u16 {
    if is_healthy { 200 } else { 503 }
}

/// Answer of the health check port of a Service: status and JSON.
#[must_use]
pub fn answer_health_port(
    (namespace, name): (&str, &str),
    local_endpoints: usize,
    is_healthy: bool,
) -> (u16, String) {
    let text = |text: &str| serde_json::Value::from(text).to_string();
    let body = format!(
        "{{\"service\":{{\"namespace\":{},\"name\":{}}},\"localEndpoints\":{local_endpoints},\"serviceProxyHealthy\":{is_healthy}}}",
        text(namespace),
        text(name)
    );
    (status_of(local_endpoints > 0 && is_healthy), body)
}
