//! Metrics and statistics (SRV-16): pages that are generated while they are sent.

use core::time::Duration;
use std::io;

use super::{
    ServeOutcome,
    backend::{MetricsEndpoint, ServerBackend, TextPieces},
    http::{self, HttpRequest, Refusal, StreamConnection},
};
use crate::api::stats::StatsDetail;

/// Time in which a client has to take a piece, or is left: the page that it asked for stands in memory until then.
const PATIENCE: Duration = Duration::from_secs(10);
/// The Prometheus text form.
const EXPOSITION: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Returns the figures that a request asks for; `None`: another page. A wrong method alone is a 405.
pub(super) fn requested_page(
    path: &[&str],
    request: &HttpRequest,
) -> Option<Result<MetricsEndpoint, Refusal>> {
    let (figures, methods): (_, &[&str]) = match path {
        ["metrics"] => (MetricsEndpoint::Own, &["GET"]),
        ["metrics", "slis"] => (MetricsEndpoint::Slis, &["GET"]),
        ["metrics", "probes"] => (MetricsEndpoint::Probes, &["GET"]),
        ["metrics", "resource"] => (MetricsEndpoint::Resource, &["GET"]),
        ["metrics", "cadvisor"] => (MetricsEndpoint::Cadvisor, &["GET"]),
        ["stats", "summary"] if request.query_flag("only_cpu_and_memory") => (
            MetricsEndpoint::Summary(StatsDetail::Basic),
            &["GET", "POST"],
        ),
        ["stats", "summary"] => (
            MetricsEndpoint::Summary(StatsDetail::Full),
            &["GET", "POST"],
        ),
        ["stats", "disk"] => (MetricsEndpoint::Disk, &["GET"]),
        _ => return None,
    };
    let method = request.method.as_str();
    Some(if methods.contains(&method) {
        Ok(figures)
    } else {
        Err(Refusal::new(
            405,
            format!("method {method} is not allowed here"),
        ))
    })
}

/// Answers with a page, piece by piece.
pub(super) async fn serve_metrics_page(
    backend: &dyn ServerBackend,
    connection: &mut StreamConnection,
    figures: MetricsEndpoint,
) -> ServeOutcome {
    let pieces = match backend.metrics_page(figures).await {
        Ok(pieces) => pieces,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let kind = match figures {
        MetricsEndpoint::Summary(_) | MetricsEndpoint::Disk => "application/json",
        MetricsEndpoint::Own
        | MetricsEndpoint::Slis
        | MetricsEndpoint::Probes
        | MetricsEndpoint::Resource
        | MetricsEndpoint::Cadvisor => EXPOSITION,
    };
    send_pieces(connection, kind, pieces).await
}

/// Answers with these pieces, each of which the client takes in time.
pub(super) async fn send_pieces(
    connection: &mut StreamConnection,
    kind: &str,
    pieces: TextPieces,
) -> ServeOutcome {
    let mut stream = http::start_answer_stream(connection, kind).await?;
    for piece in pieces {
        let late = async {
            async_io::Timer::after(PATIENCE).await;
            Err(io::ErrorKind::TimedOut.into())
        };
        smol::future::or(stream.send_bytes(piece.as_bytes()), late).await?;
    }
    stream.finish_answer().await.map(Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_methods() {
        // SRV-16 SRV-17
        let resource = Some(MetricsEndpoint::Resource);
        let basic = Some(MetricsEndpoint::Summary(StatsDetail::Basic));
        let full = Some(MetricsEndpoint::Summary(StatsDetail::Full));
        for (method, path, query, want) in [
            ("GET", "metrics/resource", "", Ok(resource)),
            ("POST", "metrics/resource", "", Err(405)),
            (
                "GET",
                "metrics/cadvisor",
                "",
                Ok(Some(MetricsEndpoint::Cadvisor)),
            ),
            ("GET", "metrics", "", Ok(Some(MetricsEndpoint::Own))),
            ("GET", "metrics/slis", "", Ok(Some(MetricsEndpoint::Slis))),
            (
                "GET",
                "metrics/probes",
                "",
                Ok(Some(MetricsEndpoint::Probes)),
            ),
            ("GET", "metrics/other", "", Ok(None)),
            ("GET", "stats/summary", "", Ok(full)),
            ("POST", "stats/summary", "true", Ok(basic)),
            ("GET", "stats/summary", "false", Ok(full)),
            ("GET", "stats/disk", "", Ok(Some(MetricsEndpoint::Disk))),
            ("POST", "stats/disk", "", Err(405)),
            ("DELETE", "stats/summary", "", Err(405)),
            ("GET", "stats", "", Ok(None)),
        ] {
            let request = HttpRequest {
                method: method.into(),
                query: vec![("only_cpu_and_memory".into(), query.into())],
                ..HttpRequest::default()
            };
            let path: Vec<&str> = path.split('/').collect();
            let asked = requested_page(&path, &request)
                .transpose()
                .map_err(|e| e.status);
            assert_eq!(asked, want, "{method} {path:?}");
        }
    }
}
