//! Paths of a kubelet. A request comes here only after [`super::access`] has admitted it.
//!
//! | path | answer |
//! |---|---|
//! | `GET /healthz[/CHECK]` | text |
//! | `GET /pods`, `/runningpods/` | a `PodList` |
//! | `GET /configz` | JSON |
//! | `GET /metrics`, `/metrics/slis`, `/metrics/probes`, `/metrics/resource`, `/metrics/cadvisor` | Prometheus text, streamed |
//! | `GET /stats/summary`, or `POST` | JSON, streamed |
//! | `GET /stats/disk` | JSON |
//! | `GET /containerLogs/{namespace}/{pod}/{container}` | text, streamed |
//! | `GET /statusz` | text |
//! | `GET /logs/?query=`, or `POST` | text, streamed; see [`node_logs`](super::node_logs) |
//! | `GET /logs/…` without it, `/debug/pprof/…`, `PUT /debug/flags/v` | 405, as of a kubelet that has them switched off |
//! | `POST /checkpoint/{namespace}/{pod}/{container}` | JSON with the path of the archive |
//! | `/exec`, `/attach`, `/run`, `/portForward` | see [`streaming`] |

use core::time::Duration;

use serde_json::json;

use super::{logs, node_logs::NodeLogServer};
use crate::api::link::LinkClass;
use crate::server::{
    ServeOutcome,
    backend::{AgentCheck, PodName, RunningPod, ServerBackend, Uptime},
    figures,
    http::{self, HttpRequest, Refusal, StreamConnection},
    pods,
    routes::serve_configuration,
    streaming,
};

/// First segments of what `enableDebuggingHandlers` switches off with an answer (SRV-04).
const DEBUG_PATHS: [&str; 8] = [
    "run",
    "exec",
    "attach",
    "portForward",
    "containerLogs",
    "runningpods",
    "debug",
    "logs",
];

/// Pages that the configuration switches on or off.
#[derive(Clone, Copy)]
pub(super) struct OptionalPages<'a> {
    /// `enableDebuggingHandlers`
    pub(super) debugging: bool,
    /// `enableSystemLogQuery`
    pub(super) node_logs: Option<&'a NodeLogServer>,
}

/// Class that the bytes of a request's answer are counted as.
pub(super) fn request_link_class(request: &HttpRequest) -> LinkClass {
    let path = request.path.first().map_or("", |first| &**first);
    match path {
        "metrics" | "stats" => LinkClass::Figures,
        "run" | "exec" | "attach" | "portForward" | "containerLogs" | "logs" => LinkClass::Stream,
        _ => LinkClass::Api,
    }
}

/// Serves a request that was admitted.
pub(super) async fn route_admitted_request(
    backend: &dyn ServerBackend,
    connection: &mut StreamConnection,
    request: &HttpRequest,
    pages: OptionalPages<'_>,
) -> ServeOutcome {
    if !request.is_plain {
        return Ok(Err(page_not_found()));
    }
    let path: Vec<&str> = request.path.iter().map(String::as_str).collect();
    let first = path.first().copied().unwrap_or("");
    if !pages.debugging {
        if DEBUG_PATHS.contains(&first) {
            return Ok(Err(Refusal::new(405, "Debug endpoints are disabled.\n")));
        }
        if matches!(first, "configz" | "checkpoint") {
            return Ok(Err(page_not_found()));
        }
    }
    if let Some(asked) = figures::requested_page(&path, request) {
        return match asked {
            Ok(figures) => figures::serve_metrics_page(backend, connection, figures).await,
            Err(_) => Ok(Err(method_not_allowed())),
        };
    }
    if let Some(outcome) = streaming::serve_streaming_request(backend, connection, request).await {
        return outcome;
    }
    if first == "logs"
        && let Some(node_logs) = pages.node_logs
        && let Some(outcome) = node_logs.serve_query(backend, connection, request).await
    {
        return outcome;
    }
    match (request.method.as_str(), path.as_slice()) {
        ("GET" | "HEAD", ["healthz"]) => {
            serve_health_checks(connection, request, backend.run_health_checks()).await
        }
        ("GET" | "HEAD", ["healthz", name]) => {
            serve_one_check(connection, name, backend.run_health_checks()).await
        }
        ("GET", ["pods"]) => pods::serve_pod_list(backend, connection, None, "{}").await,
        ("GET", ["runningpods"]) => {
            let shown = |pods: Vec<_>| {
                pod_list_object(&pods.iter().map(running_pod_object).collect::<Vec<_>>())
            };
            let pods = backend.running_pods().await;
            respond_json(connection, pods.map(shown)).await
        }
        ("GET", ["configz"]) => serve_configuration(backend, connection).await,
        ("GET", ["containerLogs", namespace, pod, container]) => {
            logs::serve_container_log(backend, connection, request, (namespace, pod, container))
                .await
        }
        ("GET", ["statusz"]) => serve_statusz(connection, request, &backend.uptime()).await,
        (_, ["logs", ..]) => Ok(Err(page_disabled_refusal("logs"))),
        (_, ["debug", "pprof", ..]) => Ok(Err(page_disabled_refusal("profiling"))),
        (_, ["debug", "flags", "v"]) => Ok(Err(page_disabled_refusal("flags"))),
        ("POST", ["checkpoint", namespace, pod, container]) => {
            let pod = PodName {
                namespace,
                name: pod,
                uid: None,
            };
            let made = make_checkpoint(backend, request, pod, container).await;
            let body = made.map(|path| json!({ "items": [path] }));
            respond_json(connection, body).await
        }
        (_, ["healthz"] | ["healthz", _] | ["pods" | "runningpods" | "configz" | "statusz"])
        | (_, ["checkpoint", _, _, _])
        | (_, ["containerLogs", _, _, _]) => Ok(Err(method_not_allowed())),
        _ => Ok(Err(page_not_found())),
    }
}

/// Refuses a page that the configuration switches off, in a kubelet's words.
fn page_disabled_refusal(page: &str) -> Refusal {
    Refusal::new(405, format!("{page} endpoint is disabled.\n"))
}

/// Time for a checkpoint whose client sets none, as for other calls of a kubelet's runtime.
const CHECKPOINT_TIMEOUT: Duration = Duration::from_secs(120);
/// Longest time for a checkpoint: meanwhile its container stands still, and others wait for their turn.
const MAX_CHECKPOINT_TIMEOUT: Duration = Duration::from_secs(3600);

/// Makes a checkpoint; returns the path of its archive (SRV-14).
async fn make_checkpoint(
    backend: &dyn ServerBackend,
    request: &HttpRequest,
    pod: PodName<'_>,
    container: &str,
) -> Result<String, Refusal> {
    let is_there = backend
        .container_names(pod.namespace, pod.name)
        .await
        .is_ok_and(|names| names.iter().any(|name| name == container));
    if !is_there {
        return Err(Refusal::not_found("pod or container does not exist"));
    }
    let timeout = match request.query_number::<u32>("timeout")? {
        None | Some(0) => CHECKPOINT_TIMEOUT,
        Some(seconds) => Duration::from_secs(seconds.into()).min(MAX_CHECKPOINT_TIMEOUT),
    };
    let made = backend.checkpoint_container(pod, container, timeout).await;
    made.map_err(|why| {
        let PodName {
            namespace, name, ..
        } = pod;
        let text = format!("checkpointing of {namespace}/{name}/{container} failed ({why})");
        Refusal::new(500, text)
    })
}

fn page_not_found() -> Refusal {
    Refusal::not_found("404: Page Not Found")
}

fn method_not_allowed() -> Refusal {
    Refusal::new(405, "405: Method Not Allowed")
}

/// Makes the object of a running pod. Only its running containers are in it.
fn running_pod_object(pod: &RunningPod) -> serde_json::Value {
    let containers = pod.containers.iter();
    let containers: Vec<_> = containers
        .map(|(name, image)| json!({ "name": name, "image": image, "resources": {} }))
        .collect();
    let meta = json!({ "name": pod.name, "namespace": pod.namespace, "uid": pod.uid, "creationTimestamp": null });
    json!({ "metadata": meta, "spec": { "containers": containers }, "status": {} })
}

fn pod_list_object(items: &[serde_json::Value]) -> serde_json::Value {
    json!({ "kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items })
}

async fn respond_json(
    connection: &mut StreamConnection,
    body: Result<serde_json::Value, Refusal>,
) -> ServeOutcome {
    match body {
        Ok(body) => {
            let body = body.to_string();
            http::send_response(connection, 200, "application/json", body.as_bytes())
                .await
                .map(Ok)
        }
        Err(refusal) => Ok(Err(refusal)),
    }
}

/// Answers with the start of the agent and its versions. For people: as upstream, the form is not promised.
async fn serve_statusz(
    connection: &mut StreamConnection,
    request: &HttpRequest,
    uptime: &Uptime,
) -> ServeOutcome {
    let wanted = request.header_value("accept").unwrap_or("*/*");
    if !["*/*", "text/*", "text/plain"]
        .iter()
        .any(|kind| wanted.contains(kind))
    {
        return Ok(Err(Refusal::new(
            406,
            "media type not acceptable, must be: text/plain",
        )));
    }
    let seconds = uptime.up.as_secs();
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    let text = format!(
        "\nkubelet statusz\nWarning: for troubleshooting by people; the format may change at any time.\n\n\
         Started: {}\nUp: {hours} hr {minutes:02} min {:02} sec\nBinary version: {}\nProgram: picolet {}\n",
        uptime.since,
        seconds % 60,
        uptime.kubelet_version,
        crate::VERSION,
    );
    http::send_response(connection, 200, TEXT, text.as_bytes())
        .await
        .map(Ok)
}

/// Text of a kind that no browser guesses at.
const TEXT: &str = "text/plain; charset=utf-8";

/// Answers with all checks at once: `ok`, or those that failed. Their reasons are in the log only (SRV-03).
async fn serve_health_checks(
    connection: &mut StreamConnection,
    request: &HttpRequest,
    checks: Vec<AgentCheck>,
) -> ServeOutcome {
    let excluded: Vec<&str> = request
        .query
        .iter()
        .filter(|(key, _)| key == "exclude")
        .map(|(_, value)| value.as_str())
        .collect();
    let mut text = String::new();
    let mut failed = Vec::new();
    for check in &checks {
        let name = check.name;
        if excluded.contains(&name) {
            text.push_str(&format!("[+]{name} excluded: ok\n"));
            continue;
        }
        match &check.trouble {
            None => text.push_str(&format!("[+]{name} ok\n")),
            Some(why) => {
                log::warn!("check {name} fails: {why}");
                text.push_str(&format!("[-]{name} failed: reason withheld\n"));
                failed.push(name);
            }
        }
    }
    let unknown = |name: &&str| !checks.iter().any(|check| check.name == *name);
    let strangers: Vec<String> = excluded
        .iter()
        .copied()
        .filter(unknown)
        .map(|name| format!("{name:?}"))
        .collect();
    if !strangers.is_empty() {
        text.push_str(&format!(
            "warn: some health checks cannot be excluded: no matches for {}\n",
            strangers.join(",")
        ));
    }
    let (status, body) = if !failed.is_empty() {
        text.push_str("healthz check failed\n");
        (500, text)
    } else if request.query_param("verbose").is_some() {
        text.push_str("healthz check passed\n");
        (200, text)
    } else {
        (200, "ok".to_owned())
    };
    http::send_response(connection, status, TEXT, body.as_bytes())
        .await
        .map(Ok)
}

async fn serve_one_check(
    connection: &mut StreamConnection,
    name: &str,
    checks: Vec<AgentCheck>,
) -> ServeOutcome {
    let Some(check) = checks.into_iter().find(|check| check.name == name) else {
        return Ok(Err(page_not_found()));
    };
    let (status, body) = match check.trouble {
        None => (200, "ok".to_owned()),
        Some(why) => (500, format!("internal server error: {why}\n")),
    };
    http::send_response(connection, status, TEXT, body.as_bytes())
        .await
        .map(Ok)
}
