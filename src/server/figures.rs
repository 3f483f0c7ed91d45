//! Metrics and statistics (SRV-16): pages that are generated while they are sent.

use core::time::Duration;
use std::io;

use super::{
    Outcome,
    backend::{Backend, Figures, Pieces},
    http::{self, Connection, Refusal, Request},
};
use crate::api::stats::Detail;

/// Time in which a client has to take a piece, or is left: the page that it asked for stands in memory until then.
const PATIENCE: Duration = Duration::from_secs(10);
/// The Prometheus text form.
const EXPOSITION: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Returns the figures that a request asks for; `None`: another page. A wrong method alone is a 405.
pub(super) fn asked(path: &[&str], request: &Request) -> Option<Result<Figures, Refusal>> {
    let (figures, methods): (_, &[&str]) = match path {
        ["metrics"] => (Figures::Own, &["GET"]),
        ["metrics", "slis"] => (Figures::Slis, &["GET"]),
        ["metrics", "probes"] => (Figures::Probes, &["GET"]),
        ["metrics", "resource"] => (Figures::Resource, &["GET"]),
        ["metrics", "cadvisor"] => (Figures::Cadvisor, &["GET"]),
        ["stats", "summary"] if request.flag("only_cpu_and_memory") => {
            (Figures::Summary(Detail::Basic), &["GET", "POST"])
        }
        ["stats", "summary"] => (Figures::Summary(Detail::Full), &["GET", "POST"]),
        ["stats", "disk"] => (Figures::Disk, &["GET"]),
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
pub(super) async fn serve(
    backend: &dyn Backend,
    connection: &mut Connection,
    figures: Figures,
) -> Outcome {
    let pieces = match backend.figures(figures).await {
        Ok(pieces) => pieces,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let kind = match figures {
        Figures::Summary(_) | Figures::Disk => "application/json",
        Figures::Own | Figures::Slis | Figures::Probes | Figures::Resource | Figures::Cadvisor => {
            EXPOSITION
        }
    };
    send(connection, kind, pieces).await
}

/// Answers with these pieces, each of which the client takes in time.
pub(super) async fn send(connection: &mut Connection, kind: &str, pieces: Pieces) -> Outcome {
    let mut stream = http::start_stream(connection, kind).await?;
    for piece in pieces {
        let late = async {
            async_io::Timer::after(PATIENCE).await;
            Err(io::ErrorKind::TimedOut.into())
        };
        smol::future::or(stream.write(piece.as_bytes()), late).await?;
    }
    stream.finish().await.map(Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_methods() {
        // SRV-16 SRV-17
        let resource = Some(Figures::Resource);
        let basic = Some(Figures::Summary(Detail::Basic));
        let full = Some(Figures::Summary(Detail::Full));
        for (method, path, query, want) in [
            ("GET", "metrics/resource", "", Ok(resource)),
            ("POST", "metrics/resource", "", Err(405)),
            ("GET", "metrics/cadvisor", "", Ok(Some(Figures::Cadvisor))),
            ("GET", "metrics", "", Ok(Some(Figures::Own))),
            ("GET", "metrics/slis", "", Ok(Some(Figures::Slis))),
            ("GET", "metrics/probes", "", Ok(Some(Figures::Probes))),
            ("GET", "metrics/other", "", Ok(None)),
            ("GET", "stats/summary", "", Ok(full)),
            ("POST", "stats/summary", "true", Ok(basic)),
            ("GET", "stats/summary", "false", Ok(full)),
            ("GET", "stats/disk", "", Ok(Some(Figures::Disk))),
            ("POST", "stats/disk", "", Err(405)),
            ("DELETE", "stats/summary", "", Err(405)),
            ("GET", "stats", "", Ok(None)),
        ] {
            let request = Request {
                method: method.into(),
                query: vec![("only_cpu_and_memory".into(), query.into())],
                ..Request::default()
            };
            let path: Vec<&str> = path.split('/').collect();
            let asked = asked(&path, &request).transpose().map_err(|e| e.status);
            assert_eq!(asked, want, "{method} {path:?}");
        }
    }
}
