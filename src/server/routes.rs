//! Routes of the local socket.
//!
//! | route | answer |
//! |---|---|
//! | `GET /healthz`, `/version`, `/debug/dump` | text |
//! | `GET /pods[?namespace=]`, `/configmaps[…]`, `/secrets[…]`, `/events[…]`, `/node`, `/images`, `/health` | JSON |
//! | `GET /containerLogs/{namespace}/{pod}/{container}` | text, streamed; kubelet's parameters |
//! | `POST /exec/{namespace}/{pod}/{container}` | upgrade to [`super::stream`] |
//! | `POST /images/import`, `/images/prune`, `DELETE /images` | text; `import?progress=true`: JSON lines |
//! | `POST /stop[?all=true]` | text |
//!
//! The container name `-` means the pod's default container.

use core::time::Duration;
use std::{io, path::PathBuf};

use smol::io::AsyncWriteExt as _;

use super::{
    backend::{Backend, ExecRequest, log_options},
    exec,
    http::{self, Connection, Refusal, Request},
    log_reader::{Chunk, LogReader},
};
use crate::sys::clock;

/// A followed log is looked at so often at its end. LOG-03 asks for at least once a second.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(500);
/// A request's head must arrive within this time.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// Serves one connection: one request.
pub async fn serve(backend: &dyn Backend, connection: Connection) -> io::Result<()> {
    let read = http::read_request(&connection);
    let late = async {
        async_io::Timer::after(HEAD_TIMEOUT).await;
        Ok(Err(Refusal::bad("the request did not arrive in time")))
    };
    match smol::future::or(read, late).await? {
        Ok(None) => Ok(()),
        Err(refusal) => http::refuse(&connection, &refusal).await,
        Ok(Some(request)) => match route(backend, &connection, &request).await? {
            Ok(()) => Ok(()),
            Err(refusal) => http::refuse(&connection, &refusal).await,
        },
    }
}

type Outcome = io::Result<Result<(), Refusal>>;

async fn route(backend: &dyn Backend, connection: &Connection, request: &Request) -> Outcome {
    let path: Vec<&str> = request.path.iter().map(String::as_str).collect();
    match (request.method.as_str(), path.as_slice()) {
        ("GET", ["healthz"]) => text(connection, Ok("ok".into())).await,
        ("GET", ["version"]) => text(connection, Ok(format!("picolet {}\n", crate::VERSION))).await,
        ("GET", ["pods"]) => {
            let pods = backend
                .pods(request.param("namespace").filter(|n| !n.is_empty()))
                .await;
            list(connection, "PodList", pods).await
        }
        ("GET", ["debug", "dump"]) => text(connection, Ok(backend.dump())).await,
        ("GET", ["health"]) => json(connection, Ok(backend.health())).await,
        ("GET", ["events"]) => {
            let events = backend.events(request.param("namespace").filter(|n| !n.is_empty()));
            list(connection, "EventList", Ok(events)).await
        }
        ("GET", ["configmaps"]) => {
            let namespace = request.param("namespace").filter(|n| !n.is_empty());
            list(
                connection,
                "ConfigMapList",
                Ok(backend.config_maps(namespace)),
            )
            .await
        }
        ("GET", ["secrets"]) => {
            let namespace = request.param("namespace").filter(|n| !n.is_empty());
            list(connection, "SecretList", Ok(backend.secrets(namespace))).await
        }
        ("GET", ["node"]) => json(connection, backend.node().await).await,
        ("GET", ["images"]) => {
            let images = backend
                .images()
                .await
                .map(|all| all.iter().map(image_json).collect());
            list(connection, "ImageList", images).await
        }
        ("GET", ["containerLogs", namespace, pod, container]) => {
            logs(
                backend,
                connection,
                request,
                (namespace, pod, default_name(container)),
            )
            .await
        }
        ("POST", ["exec", namespace, pod, container]) => {
            let words = request
                .query
                .iter()
                .filter(|(k, _)| k == "command")
                .map(|(_, v)| v.clone());
            let exec_request = ExecRequest {
                namespace: (*namespace).into(),
                pod: (*pod).into(),
                container: default_name(container).into(),
                command: words.collect(),
                stdin: request.flag("stdin"),
                tty: request.flag("tty"),
            };
            exec::serve(backend, connection, request, exec_request).await
        }
        ("POST", ["images", "import"]) => {
            let Some(file) = request.param("path").filter(|p| p.starts_with('/')) else {
                return Ok(Err(Refusal::bad("path: an absolute path is required")));
            };
            let name = request.param("name").unwrap_or("").to_owned();
            if request.flag("progress") {
                return import(backend, connection, PathBuf::from(file), name).await;
            }
            let names = backend.import_image(PathBuf::from(file), name, None).await;
            text(
                connection,
                names.map(|all| all.iter().map(|n| format!("Imported: {n}\n")).collect()),
            )
            .await
        }
        ("POST", ["images", "prune"]) => {
            let pruned = backend.prune_images().await;
            let word = pruned.map(|(names, bytes)| {
                let lines: String = names.iter().map(|n| format!("Deleted: {n}\n")).collect();
                format!("{lines}Total reclaimed space: {bytes} bytes\n")
            });
            text(connection, word).await
        }
        ("DELETE", ["images"]) => {
            let Some(reference) = request.param("reference").filter(|r| !r.is_empty()) else {
                return Ok(Err(Refusal::bad("reference: required")));
            };
            text(
                connection,
                backend
                    .remove_image(reference)
                    .await
                    .map(|()| String::new()),
            )
            .await
        }
        ("POST", ["stop"]) => {
            let stopped = backend.stop(request.flag("all")).await;
            text(connection, stopped.map(|()| "stopped\n".into())).await
        }
        (
            _,
            [
                "healthz" | "health" | "events" | "version" | "pods" | "configmaps" | "secrets"
                | "node" | "images" | "stop",
            ],
        )
        | (_, ["containerLogs" | "exec", _, _, _])
        | (_, ["images", "import" | "prune"] | ["debug", "dump"]) => Ok(Err(Refusal::new(
            405,
            format!("method {} is not allowed here", request.method),
        ))),
        _ => Ok(Err(Refusal::not_found("no such page"))),
    }
}

/// Imports an archive and tells how far it is: a JSON object a line, the last one with `imported` or `error` and `status`.
async fn import(
    backend: &dyn Backend,
    connection: &Connection,
    file: PathBuf,
    name: String,
) -> Outcome {
    http::start_stream(connection, "application/x-ndjson").await?;
    let (sender, steps) = smol::channel::bounded::<serde_json::Value>(1);
    let mut importing = backend.import_image(file, name, Some(sender));
    let mut stream = connection;
    let last = loop {
        let step = async {
            match steps.recv().await {
                Ok(step) => Err(step),
                // The import is over, or about to be.
                Err(_) => core::future::pending().await,
            }
        };
        match smol::future::or(async { Ok((&mut importing).await) }, step).await {
            Ok(Ok(names)) => break serde_json::json!({ "imported": names }),
            Ok(Err(refusal)) => {
                break serde_json::json!({ "error": refusal.message, "status": refusal.status });
            }
            Err(step) => stream.write_all(format!("{step}\n").as_bytes()).await?,
        }
    };
    stream
        .write_all(format!("{last}\n").as_bytes())
        .await
        .map(Ok)
}

fn default_name(container: &str) -> &str {
    if container == "-" { "" } else { container }
}

fn image_json(image: &crate::api::cri::Image) -> serde_json::Value {
    crate::api::strict::to_value(image).unwrap_or_default()
}

async fn text(connection: &Connection, body: Result<String, Refusal>) -> Outcome {
    match body {
        Ok(body) => http::respond(connection, 200, "text/plain", body.as_bytes())
            .await
            .map(Ok),
        Err(refusal) => Ok(Err(refusal)),
    }
}

async fn json(connection: &Connection, body: Result<serde_json::Value, Refusal>) -> Outcome {
    match body {
        Ok(body) => http::respond(
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

async fn list(
    connection: &Connection,
    kind: &str,
    items: Result<Vec<serde_json::Value>, Refusal>,
) -> Outcome {
    let body = items.map(|items| {
        serde_json::json!({ "apiVersion": "v1", "kind": kind, "metadata": { "resourceVersion": "" }, "items": items })
    });
    json(connection, body).await
}

async fn logs(
    backend: &dyn Backend,
    connection: &Connection,
    request: &Request,
    (namespace, pod, container): (&str, &str, &str),
) -> Outcome {
    let options = match log_options(request, clock::wall()) {
        Ok(options) => options,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let follow = options.follow;
    let target = match backend
        .log_target(namespace, pod, container, request.flag("previous"))
        .await
    {
        Ok(target) => target,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let path = target.path.clone();
    let mut reader = match backend
        .disk_lane()
        .run(move || LogReader::open(&path, options))
        .await
    {
        Ok(reader) => reader,
        Err(e) => {
            return Ok(Err(Refusal::new(
                500,
                format!("log of container {container:?}: {e}"),
            )));
        }
    };
    http::start_stream(connection, "text/plain").await?;
    // Ask before reading: what an ending container wrote last is then read after it was seen to have ended.
    let mut ended = false;
    loop {
        let (back, chunk) = backend
            .disk_lane()
            .run(move || {
                let chunk = reader.next_chunk();
                (reader, chunk)
            })
            .await;
        reader = back;
        match chunk? {
            Chunk::Text(text) => {
                let mut stream = connection;
                stream.write_all(&text).await?;
            }
            Chunk::Limit => return Ok(Ok(())),
            Chunk::End if !follow || ended => return Ok(Ok(())),
            Chunk::End => {
                if backend.is_running(&target.id) {
                    let pause = async { _ = async_io::Timer::after(FOLLOW_INTERVAL).await };
                    let left = async { drop(connection.readable().await) };
                    smol::future::or(pause, left).await;
                    if has_left(connection) {
                        return Ok(Ok(()));
                    }
                } else {
                    ended = true;
                }
            }
        }
    }
}

/// Whether the client has closed the connection (it sends nothing more, so readable means closed).
fn has_left(connection: &Connection) -> bool {
    use nix::sys::socket::{MsgFlags, recv};
    use std::os::fd::AsRawFd as _;
    let mut byte = [0];
    matches!(
        recv(
            connection.as_raw_fd(),
            &mut byte,
            MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT
        ),
        Ok(0)
    )
}
