//! `containerLogs` as a kubelet serves it: the parameters of `PodLogOptions`, and its texts (SRV-18, SRV-19).

use core::str::FromStr;

use super::STREAM_TIMEOUT;
use crate::{
    api::WallTime,
    server::{
        ServeOutcome,
        backend::ServerBackend,
        http::{HttpRequest, Refusal, StreamConnection},
        log_reader::LogOptions,
        logs,
    },
    sys::clock,
};

/// Parameters of a client's request for a log, read and checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct LogRequest {
    options: LogOptions,
    previous: bool,
}

/// Serves a container's log.
pub(super) async fn serve_container_log(
    backend: &dyn ServerBackend,
    connection: &mut StreamConnection,
    request: &HttpRequest,
    (namespace, pod, container): (&str, &str, &str),
) -> ServeOutcome {
    let asked = match parse_log_request(request, clock::wall_now()) {
        Ok(asked) => asked,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let Ok(names) = backend.container_names(namespace, pod).await else {
        let text = format!("pod \"{pod}\" does not exist\n");
        return Ok(Err(Refusal::not_found(text)));
    };
    if !names.iter().any(|name| name == container) {
        let text = format!("container \"{container}\" not found in pod \"{pod}\"\n");
        return Ok(Err(Refusal::not_found(text)));
    }
    let target = backend
        .find_log_target(namespace, pod, container, asked.previous)
        .await;
    match target {
        Ok(target) => {
            connection.set_write_timeout(Some(STREAM_TIMEOUT));
            logs::stream_log(backend, connection, target, asked.options).await
        }
        // Whatever keeps it from being read is the request's fault.
        Err(refusal) => Ok(Err(Refusal::bad_request(refusal.message))),
    }
}

/// Reads the parameters. 400: one cannot be read; 422: together they make no sense.
fn parse_log_request(request: &HttpRequest, now: WallTime) -> Result<LogRequest, Refusal> {
    let unreadable = || Refusal::bad_request("{\"message\": \"Unable to decode query.\"}");
    let senseless = || Refusal::new(422, "{\"message\": \"Invalid request.\"}");
    let number = |name: &str| -> Result<Option<i64>, Refusal> {
        let text = request.query_param(name);
        text.map(|text| i64::from_str(text).map_err(|_| unreadable()))
            .transpose()
    };
    // Present is true, whatever it says, but for two words.
    let flag = |name: &str| {
        request
            .query_param(name)
            .is_some_and(|text| text != "0" && !text.eq_ignore_ascii_case("false"))
    };
    let tail_lines = match request.query_param("tail").filter(|tail| !tail.is_empty()) {
        Some("all") => None,
        Some(tail) => Some(i64::from_str(tail).map_err(|_| unreadable())?),
        None => number("tailLines")?,
    };
    let since_seconds = number("sinceSeconds")?;
    let limit_bytes = number("limitBytes")?;
    let since_time = match request
        .query_param("sinceTime")
        .filter(|text| !text.is_empty())
    {
        None => None,
        Some(text) => Some(WallTime::parse(text).ok_or_else(unreadable)?),
    };
    match request.query_param("stream") {
        None | Some("" | "All") => {}
        Some("Stdout" | "Stderr") if tail_lines.is_some() => return Err(senseless()),
        Some("Stdout" | "Stderr") => {
            return Err(Refusal::bad_request(
                "{\"message\": \"feature PodLogsQuerySplitStreams is not enabled\"}",
            ));
        }
        Some(_) => return Err(senseless()),
    }
    if since_seconds.is_some() && since_time.is_some() {
        return Err(senseless());
    }
    let unsigned = |value: Option<i64>, least: i64| -> Result<Option<u64>, Refusal> {
        let value = value.map(|n| u64::try_from(n).ok().filter(|_| n >= least));
        value.map(|n| n.ok_or_else(senseless)).transpose()
    };
    let since_seconds = unsigned(since_seconds, 1)?;
    let ago = since_seconds.map(|s| {
        let nanos = i64::try_from(s)
            .unwrap_or(i64::MAX)
            .saturating_mul(1_000_000_000);
        WallTime(now.0.saturating_sub(nanos))
    });
    Ok(LogRequest {
        options: LogOptions {
            follow: flag("follow"),
            tail: unsigned(tail_lines, 0)?,
            since: since_time.or(ago),
            timestamps: flag("timestamps"),
            limit_bytes: unsigned(limit_bytes, 1)?,
            stream: None,
        },
        previous: flag("previous"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters() {
        // SRV-18
        let now = WallTime(100_000_000_000);
        let read = |query: &str| {
            let pairs = query.split('&').filter(|pair| !pair.is_empty());
            let request = HttpRequest {
                query: pairs
                    .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
                    .map(|(k, v)| (k.to_owned(), v.to_owned()))
                    .collect(),
                ..HttpRequest::default()
            };
            parse_log_request(&request, now)
        };
        let options = |query: &str| read(query).expect(query).options;
        assert_eq!(options(""), LogOptions::default());
        assert!(options("follow=true&timestamps=1").timestamps);
        assert!(options("follow").follow && !options("follow=False").follow);
        assert!(!options("follow=0").follow && read("previous=t").expect("word").previous);
        assert_eq!(options("tailLines=0").tail, Some(0));
        assert_eq!(options("tailLines=7&tail=3").tail, Some(3));
        assert_eq!(options("tailLines=7&tail=all").tail, None);
        assert_eq!(options("limitBytes=1").limit_bytes, Some(1));
        assert_eq!(
            options("sinceSeconds=40").since,
            Some(WallTime(60_000_000_000))
        );
        assert_eq!(
            options("sinceTime=1970-01-01T00:00:05Z").since,
            Some(WallTime::from_unix_seconds(5))
        );
        assert_eq!(options("stream=All&tailLines=1").tail, Some(1));
        for (query, status) in [
            ("tailLines=x", 400),
            ("tailLines=", 400),
            ("tail=some", 400),
            ("limitBytes=1.5", 400),
            ("sinceSeconds=99999999999999999999", 400),
            ("sinceTime=yesterday", 400),
            ("stream=Stdout", 400),
            ("tailLines=-1", 422),
            ("limitBytes=0", 422),
            ("sinceSeconds=0", 422),
            ("sinceSeconds=1&sinceTime=1970-01-01T00:00:05Z", 422),
            ("stream=Both", 422),
            ("stream=Stderr&tailLines=1", 422),
        ] {
            let refused = read(query).expect_err(query);
            assert_eq!(refused.status, status, "{query}");
        }
    }
}
