//! Routes of the local socket.
//!
//! | route | answer |
//! |---|---|
//! | `GET /healthz`, `/version`, `/debug/dump` | text |
//! | `GET /pods[?namespace=]`, `/configmaps[…]`, `/secrets[…]`, `/events[…][limit=]`, `/node`, `/link`, `/pressure[?order=]`, `/devices`, `/images`, `/health`, `/configz` | JSON |
//! | `GET /containerLogs/{namespace}/{pod}/{container}` | text, streamed; kubelet's parameters |
//! | `/exec`, `/attach`, `/run`, `/portForward` | see [`super::streaming`] |
//! | `POST /images/import`, `/images/prune`, `DELETE /images` | text; `import?progress=true`: JSON lines |
//! | `GET /images/inspect?reference=[&layers=true]` | JSON; `layers`: an error without a store of the agent's own |
//! | `POST /images/tag?reference=&name=` | text |
//! | `POST /images/verify[?repair=true]` | JSON lines: [`ProgressLine`]s: `step`, then `verified` or `failed` |
//! | `POST /images/pull?reference=[&now=true]` | JSON lines, as of an import |
//! | `POST /link/update?received=&sent=` | text; bytes that another process of picolet spent on a release, at most 1 GiB at a time |
//! | `POST /pods/{namespace}/{pod}/restart` | text |
//! | `POST /stop[?all=true][?shutdown=true]` | text |
//! | `GET /metrics`, `/metrics/slis`, `/metrics/probes`, `/metrics/resource`, `/metrics/cadvisor` | Prometheus text, streamed |
//! | `GET /stats/summary[?only_cpu_and_memory=true]`, `/stats/disk` | JSON, streamed |
//!
//! The container name `-` means the pod's default container.

use core::time::Duration;
use std::{io, path::PathBuf};

use super::{
    ServeOutcome,
    backend::{ProgressLine, ServerBackend, parse_log_options},
    figures,
    http::{self, HttpRequest, Refusal, StreamConnection},
    logs, pods, streaming,
};
use serde::Serialize;

use crate::{
    api::{link::LinkClass, strict},
    image::ImageProgress,
    net::meter,
    sys::clock,
};

/// Interval at which a client hears the progress of a pull.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);
/// Bytes each way that another process may report at a time.
const MAX_REPORTED_BYTES: u64 = 1 << 30;
/// A request's head must arrive within this time.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// Serves one connection: one request.
pub async fn serve_connection(
    backend: &dyn ServerBackend,
    mut connection: StreamConnection,
) -> io::Result<()> {
    let connection = &mut connection;
    let read = http::read_request(connection);
    let late = async {
        async_io::Timer::after(HEAD_TIMEOUT).await;
        Ok(Err(Refusal::bad_request(
            "the request did not arrive in time",
        )))
    };
    match smol::future::or(read, late).await? {
        Ok(None) => Ok(()),
        Err(refusal) => http::send_refusal(connection, &refusal).await,
        Ok(Some(request)) => {
            // A client that takes chunks can tell the end of the answer from the end of the agent.
            connection.answer.chunked = request.headers_named("te").any(|te| te == "chunked");
            match route_request(backend, connection, &request).await? {
                Ok(()) => Ok(()),
                Err(refusal) => http::send_refusal(connection, &refusal).await,
            }
        }
    }
}

async fn route_request(
    backend: &dyn ServerBackend,
    connection: &mut StreamConnection,
    request: &HttpRequest,
) -> ServeOutcome {
    if let Some(outcome) = streaming::serve_streaming_request(backend, connection, request).await {
        return outcome;
    }
    let path: Vec<&str> = request.path.iter().map(String::as_str).collect();
    if let Some(asked) = figures::requested_page(&path, request) {
        return match asked {
            Ok(figures) => figures::serve_metrics_page(backend, connection, figures).await,
            Err(refusal) => Ok(Err(refusal)),
        };
    }
    match (request.method.as_str(), path.as_slice()) {
        ("GET", ["healthz"]) => respond_text(connection, Ok("ok".into())).await,
        ("GET", ["version"]) => {
            respond_text(connection, Ok(format!("picolet {}\n", crate::VERSION))).await
        }
        ("GET", ["pods"]) => {
            let namespace = request.query_param("namespace").filter(|n| !n.is_empty());
            pods::serve_pod_list(backend, connection, namespace, pods::LOCAL_META).await
        }
        ("GET", ["debug", "dump"]) => {
            respond_text(connection, backend.dump_recorded_events().await).await
        }
        ("GET", ["health"]) => {
            let shown = |health| strict::to_value(&health).unwrap_or_default();
            respond_json(connection, backend.agent_health().await.map(shown)).await
        }
        ("GET", ["configz"]) => serve_configuration(backend, connection).await,
        ("GET", ["events"]) => {
            let limit = match request.query_number("limit") {
                Ok(limit) => limit.unwrap_or(usize::MAX),
                Err(refusal) => return Ok(Err(refusal)),
            };
            let namespace = request.query_param("namespace").filter(|n| !n.is_empty());
            let events = backend.events(namespace, limit);
            respond_list(connection, "EventList", Ok(events)).await
        }
        ("GET", ["configmaps"]) => {
            let namespace = request.query_param("namespace").filter(|n| !n.is_empty());
            let maps = backend.config_maps(namespace).await;
            respond_list(connection, "ConfigMapList", maps).await
        }
        ("GET", ["secrets"]) => {
            let namespace = request.query_param("namespace").filter(|n| !n.is_empty());
            let secrets = backend.secrets(namespace).await;
            respond_list(connection, "SecretList", secrets).await
        }
        ("GET", ["node"]) => {
            let node = backend.node_object().await;
            respond_json(connection, node.map(|node| node.to_object())).await
        }
        ("GET", ["link"]) => {
            let shown = strict::to_value(&backend.link_report()).unwrap_or_default();
            respond_json(connection, Ok(shown)).await
        }
        ("POST", ["link", "update"]) => {
            let bytes = |name| Ok(request.query_number::<u64>(name)?.unwrap_or(0));
            let bytes = match (bytes("received"), bytes("sent")) {
                (Ok(received), Ok(sent)) => [received, sent],
                (Err(refusal), _) | (_, Err(refusal)) => return Ok(Err(refusal)),
            };
            if bytes.iter().any(|n| *n > MAX_REPORTED_BYTES) {
                let most = format!("received, sent: at most {MAX_REPORTED_BYTES} bytes");
                return Ok(Err(Refusal::bad_request(most)));
            }
            meter::add_bytes(LinkClass::Update, bytes);
            respond_text(connection, Ok("counted\n".into())).await
        }
        ("GET", ["pressure"]) => {
            let shown = |pressure| strict::to_value(&pressure).unwrap_or_default();
            let pressure = backend.pressure_report(request.query_flag("order")).await;
            respond_json(connection, pressure.map(shown)).await
        }
        ("GET", ["devices"]) => {
            respond_list(connection, "DeviceList", backend.device_reports().await).await
        }
        ("GET", ["images"]) => {
            respond_list(connection, "ImageList", backend.list_images().await).await
        }
        ("GET", ["containerLogs", namespace, pod, container]) => {
            serve_logs(
                backend,
                connection,
                request,
                (namespace, pod, parse_container_name(container)),
            )
            .await
        }
        ("POST", ["images", "import"]) => {
            let Some(file) = request.query_param("path").filter(|p| p.starts_with('/')) else {
                return Ok(Err(Refusal::bad_request(
                    "path: an absolute path is required",
                )));
            };
            let name = request.query_param("name").unwrap_or("").to_owned();
            if request.query_flag("progress") {
                return import_image(backend, connection, PathBuf::from(file), name).await;
            }
            let names = backend.import_image(PathBuf::from(file), name, None).await;
            respond_text(
                connection,
                names.map(|all| all.iter().map(|n| format!("Imported: {n}\n")).collect()),
            )
            .await
        }
        ("POST", ["images", "pull"]) => {
            let Some(reference) = request.query_param("reference").filter(|r| !r.is_empty()) else {
                return Ok(Err(Refusal::bad_request("reference: required")));
            };
            pull_image(backend, connection, reference, request.query_flag("now")).await
        }
        ("GET", ["images", "inspect"]) => {
            let reference = request.query_param("reference").unwrap_or("");
            let layers = request.query_flag("layers");
            respond_json(connection, backend.inspect_image(reference, layers).await).await
        }
        ("POST", ["images", "tag"]) => {
            let param = |name| request.query_param(name).unwrap_or("");
            let tagged = backend.tag_image(param("reference"), param("name")).await;
            respond_text(connection, tagged.map(|name| format!("Tagged: {name}\n"))).await
        }
        ("POST", ["images", "verify"]) => {
            let (sender, steps) = smol::channel::bounded(1);
            let verifying = backend.verify_images(request.query_flag("repair"), sender);
            let last = async { Ok(ProgressLine::Verified(verifying.await?)) };
            report_progress(connection, last, receive_steps(&steps)).await
        }
        ("POST", ["images", "prune"]) => {
            let pruned = backend.prune_images().await;
            let word = pruned.map(|(names, bytes)| {
                let lines: String = names.iter().map(|n| format!("Deleted: {n}\n")).collect();
                format!("{lines}Total reclaimed space: {bytes} bytes\n")
            });
            respond_text(connection, word).await
        }
        ("DELETE", ["images"]) => {
            let Some(reference) = request.query_param("reference").filter(|r| !r.is_empty()) else {
                return Ok(Err(Refusal::bad_request("reference: required")));
            };
            let removed = backend.remove_image(reference).await;
            let lines = removed.map(|lines| lines.iter().map(|line| format!("{line}\n")).collect());
            respond_text(connection, lines).await
        }
        ("POST", ["pods", namespace, pod, "restart"]) => {
            let told = backend.restart_pod(namespace, pod).await;
            respond_text(connection, told.map(|()| format!("Restarting: {pod}\n"))).await
        }
        ("POST", ["stop"]) => {
            let stopped = match request.query_flag("shutdown") {
                true => backend.shut_down_machine().await,
                false => backend.stop_agent(request.query_flag("all")).await,
            };
            respond_text(connection, stopped.map(|()| "stopped\n".into())).await
        }
        (
            _,
            [
                "configz" | "healthz" | "health" | "events" | "version" | "pods" | "configmaps"
                | "secrets" | "node" | "link" | "pressure" | "images" | "stop",
            ],
        )
        | (_, ["containerLogs", _, _, _] | ["pods", _, _, "restart"])
        | (_, ["link", "update"])
        | (
            _,
            [
                "images",
                "import" | "inspect" | "prune" | "pull" | "tag" | "verify",
            ]
            | ["debug", "dump"],
        ) => Ok(Err(Refusal::new(
            405,
            format!("method {} is not allowed here", request.method),
        ))),
        _ => Ok(Err(Refusal::not_found("no such page"))),
    }
}

/// Imports an archive and tells how far it is.
async fn import_image(
    backend: &dyn ServerBackend,
    connection: &mut StreamConnection,
    file: PathBuf,
    name: String,
) -> ServeOutcome {
    let (sender, steps) = smol::channel::bounded(1);
    let importing = backend.import_image(file, name, Some(sender));
    let last = async { Ok(ProgressLine::Imported(importing.await?)) };
    report_progress(connection, last, receive_steps(&steps)).await
}

/// The next step that comes through `steps`.
fn receive_steps(
    steps: &smol::channel::Receiver<ImageProgress>,
) -> impl AsyncFnMut() -> ImageProgress {
    async || match steps.recv().await {
        Ok(step) => step,
        // The work is over, or about to be.
        Err(_) => core::future::pending().await,
    }
}

/// Pulls an image and tells how far it is. A client that leaves ends the pull, unless others wait for it; what arrived stays.
async fn pull_image(
    backend: &dyn ServerBackend,
    connection: &mut StreamConnection,
    reference: &str,
    now: bool,
) -> ServeOutcome {
    let pulling = async {
        let id = backend.pull_image(reference, now).await?;
        Ok(ProgressLine::Imported(vec![id]))
    };
    let mut told = None;
    // Bounded: each round waits a while.
    let next = async || loop {
        async_io::Timer::after(PROGRESS_INTERVAL).await;
        let step = match backend.pull_progress(reference) {
            // Its turn or a credential plugin is waited for, or a runtime pulls and tells no progress.
            None if told.is_none() => Some(ImageProgress::default()),
            step => step,
        };
        if let Some(step) = step
            && told.as_ref() != Some(&step)
        {
            told = Some(step.clone());
            break step;
        }
    };
    report_progress(connection, pulling, next).await
}

/// Tells the steps of some work, a [`ProgressLine`] each, and its outcome.
async fn report_progress(
    connection: &mut StreamConnection,
    work: impl Future<Output = Result<ProgressLine, Refusal>>,
    mut next: impl AsyncFnMut() -> ImageProgress,
) -> ServeOutcome {
    let mut stream = http::start_answer_stream(connection, "application/x-ndjson").await?;
    let mut work = core::pin::pin!(work);
    // Bounded: by the steps of the work, which its callers wait between.
    let last = loop {
        let done = async { Ok(work.as_mut().await) };
        match smol::future::or(done, async { Err(next().await) }).await {
            Ok(Ok(last)) => break last,
            Ok(Err(refusal)) => {
                break ProgressLine::Failed {
                    status: refusal.status,
                    error: refusal.message,
                };
            }
            Err(step) => {
                stream
                    .send_bytes(&progress_line_bytes(&ProgressLine::Step(step)))
                    .await?
            }
        }
    };
    stream.send_bytes(&progress_line_bytes(&last)).await?;
    stream.finish_answer().await.map(Ok)
}

fn progress_line_bytes(line: &ProgressLine) -> Vec<u8> {
    let value = strict::to_value(line).unwrap_or_default();
    format!("{value}\n").into_bytes()
}

fn parse_container_name(container: &str) -> &str {
    if container == "-" { "" } else { container }
}

async fn respond_text(
    connection: &mut StreamConnection,
    body: Result<String, Refusal>,
) -> ServeOutcome {
    match body {
        Ok(body) => http::send_response(connection, 200, "text/plain", body.as_bytes())
            .await
            .map(Ok),
        Err(refusal) => Ok(Err(refusal)),
    }
}

/// Answers `/configz`, on the local socket and in the network.
pub(super) async fn serve_configuration(
    backend: &dyn ServerBackend,
    connection: &mut StreamConnection,
) -> ServeOutcome {
    let document: serde_json::Value =
        serde_json::from_str(backend.configuration()).unwrap_or_default();
    respond_json(
        connection,
        Ok(serde_json::json!({ "kubeletconfig": document })),
    )
    .await
}

async fn respond_json(
    connection: &mut StreamConnection,
    body: Result<serde_json::Value, Refusal>,
) -> ServeOutcome {
    match body {
        Ok(body) => http::send_response(
            connection,
            200,
            "application/json",
            body.to_string().as_bytes(),
        )
        .await
        .map(Ok),
        Err(refusal) => Ok(Err(refusal)),
    }
}

async fn respond_list<T: Serialize + 'static>(
    connection: &mut StreamConnection,
    kind: &'static str,
    items: Result<Vec<T>, Refusal>,
) -> ServeOutcome {
    let items = match items {
        Ok(items) => items,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let meta = pods::LOCAL_META;
    let head = format!(r#"{{"apiVersion":"v1","kind":"{kind}","metadata":{meta},"items":["#);
    // The items are written one by one: all at once, they would take a multiple of their memory.
    let items = items.into_iter().enumerate().map(|(n, item)| {
        let comma = if n == 0 { "" } else { "," };
        format!("{comma}{}", strict::to_value(&item).unwrap_or_default())
    });
    let pieces = core::iter::once(head).chain(items);
    let pieces = pieces.chain(core::iter::once("]}\n".into()));
    figures::send_pieces(connection, "application/json", Box::new(pieces)).await
}

async fn serve_logs(
    backend: &dyn ServerBackend,
    connection: &mut StreamConnection,
    request: &HttpRequest,
    (namespace, pod, container): (&str, &str, &str),
) -> ServeOutcome {
    let options = match parse_log_options(request, clock::wall_now()) {
        Ok(options) => options,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let target = backend
        .find_log_target(namespace, pod, container, request.query_flag("previous"))
        .await;
    match target {
        Ok(target) => logs::stream_log(backend, connection, target, options).await,
        Err(refusal) => Ok(Err(refusal)),
    }
}

#[cfg(test)]
mod tests {
    use smol::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::{
        super::{connection::testing::pair, testing::FakeBackend},
        *,
    };

    #[test]
    fn a_log_has_an_end_of_its_own_for_who_takes_chunks() {
        // LOG-10
        let dir = crate::testing::TestDir::new("routes");
        let backend = FakeBackend {
            log: dir.join("log"),
            ..FakeBackend::default()
        };
        let line = "2026-01-01T00:00:00.000000000Z stdout F hello\n";
        std::fs::write(&backend.log, line).expect("log");
        for (header, end) in [
            ("TE: chunked\r\n", "\r\n0\r\n\r\n"),
            ("", "\r\n\r\nhello\n"),
        ] {
            let answer = smol::block_on(async {
                let (connection, mut client) = pair();
                let ask = format!("GET /containerLogs/ns/p/c HTTP/1.1\r\n{header}\r\n");
                client.write_all(ask.as_bytes()).await.expect("sent");
                serve_connection(&backend, connection)
                    .await
                    .expect("served");
                let mut answer = String::new();
                client.read_to_string(&mut answer).await.expect("read");
                answer
            });
            assert!(answer.ends_with(end), "{answer}");
        }
    }

    #[test]
    fn a_pull_of_which_nothing_is_known_waits() {
        // IMG-28
        let (arrives, pulled) = smol::channel::bounded(1);
        let backend = FakeBackend {
            pulled: Some(pulled),
            ..FakeBackend::default()
        };
        let begun = clock::mono_now();
        let answer = smol::block_on(async {
            let (connection, mut client) = pair();
            let ask = "POST /images/pull?reference=a HTTP/1.1\r\n\r\n";
            client.write_all(ask.as_bytes()).await.expect("sent");
            let mut answer = String::new();
            let reads = async {
                let mut piece = [0; 1024];
                while !answer.contains("\"stage\":\"waiting\"") {
                    let n = client.read(&mut piece).await.expect("read");
                    assert!(n > 0, "{answer}");
                    answer.push_str(&String::from_utf8_lossy(&piece[..n]));
                }
                assert!(clock::mono_now() - begun >= PROGRESS_INTERVAL);
                arrives.send("sha256:12".into()).await.expect("arrives");
                let mut rest = String::new();
                client.read_to_string(&mut rest).await.expect("read");
                answer.push_str(&rest);
            };
            let served = serve_connection(&backend, connection);
            let (served, ()) = smol::future::zip(served, reads).await;
            served.expect("served");
            answer
        });
        assert!(answer.contains("sha256:12"), "{answer}");
    }
}
