//! State of the tunnel for people: the finding of `picolet check`, and the figures of `/metrics` (TUN-14).

use alloc::{format, string::String, vec::Vec};

use serde::{Deserialize, Serialize};

use crate::{
    check::{CheckFinding, join_first},
    metrics::exposition::{MetricType, MetricsText},
};

/// State of a tunnel, as the agent reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TunnelHealth {
    /// Number of servers with a stream.
    pub streams: usize,
    /// Number of all servers, as they report it.
    pub servers: usize,
    /// Dials that were meant for other nodes.
    pub misrouted: u64,
    /// Reason why there is no stream, or why the last one has ended.
    pub trouble: Option<String>,
}

/// Figures of a tunnel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TunnelFigures {
    /// Open streams.
    pub streams: u64,
    /// Dials that became connections.
    pub opened: u64,
    /// Dials that were too many, or came too late.
    pub refused: u64,
    /// Dials that were meant for other nodes.
    pub misrouted: u64,
    /// Bytes of connections, from servers.
    pub bytes_in: u64,
    /// Bytes of connections, to servers.
    pub bytes_out: u64,
}

/// Checks a tunnel to these servers: it needs settings in the control plane (TUN-07, TUN-08). `health`: the agent's word;
/// `None`: no agent runs.
#[must_use]
pub fn check_tunnel(servers: &[(String, u16)], health: Option<&TunnelHealth>) -> CheckFinding {
    // Nodes behind different NATs may have the same address: only their names differ.
    const NEEDS: &str =
        "kube-apiserver needs --kubelet-preferred-address-types=Hostname,InternalIP,ExternalIP";
    let to = || {
        let names = servers.iter().map(|(host, port)| format!("{host}:{port}"));
        let names: Vec<String> = names.collect();
        join_first(names.iter().map(String::as_str), 3)
    };
    let Some(health) = health else {
        return CheckFinding::ok(format!("to {}; {NEEDS}", to()));
    };
    if health.misrouted > 0 {
        return CheckFinding::warning(
            format!("{} dials for others came through it", health.misrouted),
            "start proxy-server with --proxy-strategies=destHost,defaultRoute (see docs/tunnel.md)",
        );
    }
    match (health.streams, &health.trouble) {
        (0, why) => CheckFinding::warning(
            why.clone()
                .unwrap_or_else(|| format!("no server is reached: {}", to())),
            "see docs/tunnel.md; until then kubectl logs and exec do not reach this node",
        ),
        (streams, _) => CheckFinding::ok(format!(
            "streams to {streams} of {} servers; {NEEDS}",
            health.servers
        )),
    }
}

/// Writes the metrics of a tunnel. `kind`: the kind of its servers, if it is not that of konnectivity.
pub fn write_tunnel_metrics(
    figures: &TunnelFigures,
    kind: Option<&'static str>,
    page: &mut MetricsText,
) {
    let mut family =
        |name: &str, of: MetricType, help: &str, label: &str, values: &[(&str, u64)]| {
            page.write_family(name, of, help, |samples| {
                for (text, value) in values {
                    let labels = [("kind", kind.unwrap_or_default()), (label, *text)];
                    let first = usize::from(kind.is_none());
                    let end = 1 + usize::from(!label.is_empty());
                    samples.write_sample(&labels[first..end], (*value).into(), None);
                }
            });
        };
    family(
        "picolet_tunnel_streams",
        MetricType::Gauge,
        "Streams to servers of the tunnel that are open.",
        "",
        &[("", figures.streams)],
    );
    family(
        "picolet_tunnel_dials_total",
        MetricType::Counter,
        "Dials that came through the tunnel.",
        "result",
        &[
            ("opened", figures.opened),
            ("refused", figures.refused),
            ("misrouted", figures.misrouted),
        ],
    );
    family(
        "picolet_tunnel_bytes_total",
        MetricType::Counter,
        "Bytes of connections that the tunnel carried.",
        "direction",
        &[("in", figures.bytes_in), ("out", figures.bytes_out)],
    );
}

#[cfg(test)]
mod tests {
    use alloc::borrow::ToOwned as _;

    use super::*;
    use crate::check::FindingLevel;

    #[test]
    fn the_preflight_of_a_tunnel() {
        // TUN-07 TUN-08 TUN-14
        let up = || TunnelHealth {
            streams: 1,
            servers: 2,
            ..TunnelHealth::default()
        };
        let down = |trouble: Option<&str>| TunnelHealth {
            streams: 0,
            trouble: trouble.map(str::to_owned),
            ..up()
        };
        let misrouted = TunnelHealth {
            misrouted: 7,
            ..up()
        };
        let see = "see docs/tunnel.md; until then kubectl logs and exec do not reach this node";
        let needs =
            "kube-apiserver needs --kubelet-preferred-address-types=Hostname,InternalIP,ExternalIP";
        for (health, level, says, fix) in [
            (
                Some(misrouted),
                FindingLevel::Warning,
                "7 dials for others came through it".to_owned(),
                "start proxy-server with --proxy-strategies=destHost,defaultRoute (see docs/tunnel.md)",
            ),
            (
                Some(down(Some("tunnel to k:8091: refused"))),
                FindingLevel::Warning,
                "tunnel to k:8091: refused".to_owned(),
                see,
            ),
            (
                Some(down(None)),
                FindingLevel::Warning,
                "no server is reached: k:8091".to_owned(),
                see,
            ),
            (
                Some(up()),
                FindingLevel::Ok,
                format!("streams to 1 of 2 servers; {needs}"),
                "",
            ),
            (None, FindingLevel::Ok, format!("to k:8091; {needs}"), ""),
        ] {
            let found = check_tunnel(&[("k".to_owned(), 8091)], health.as_ref());
            assert_eq!(
                (found.level, &*found.says, &*found.fix),
                (level, &*says, fix)
            );
        }
    }

    #[test]
    fn the_metrics_of_a_tunnel() {
        // TUN-14
        let figures = TunnelFigures {
            streams: 1,
            opened: 2,
            refused: 3,
            misrouted: 4,
            bytes_in: 5,
            bytes_out: 6,
        };
        let mut page = MetricsText::default();
        write_tunnel_metrics(&figures, None, &mut page);
        assert_eq!(
            page.0,
            "# HELP picolet_tunnel_streams Streams to servers of the tunnel that are open.
# TYPE picolet_tunnel_streams gauge
picolet_tunnel_streams 1
# HELP picolet_tunnel_dials_total Dials that came through the tunnel.
# TYPE picolet_tunnel_dials_total counter
picolet_tunnel_dials_total{result=\"opened\"} 2
picolet_tunnel_dials_total{result=\"refused\"} 3
picolet_tunnel_dials_total{result=\"misrouted\"} 4
# HELP picolet_tunnel_bytes_total Bytes of connections that the tunnel carried.
# TYPE picolet_tunnel_bytes_total counter
picolet_tunnel_bytes_total{direction=\"in\"} 5
picolet_tunnel_bytes_total{direction=\"out\"} 6
"
        );
    }
}
