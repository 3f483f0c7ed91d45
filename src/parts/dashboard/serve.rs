//! Requests of a browser, and the answers.
//!
//! | request | answer |
//! |---|---|
//! | `GET /`, `/app.js`, `/style.css` | the page, without data |
//! | `GET /state?seen=&from=` | JSON: what changed; see [`super::watch`] |
//! | `GET /log?namespace=&pod=&container=[&previous=true]` | text with times, followed; with `&all=true` the whole log, not followed |
//! | `POST /restart?namespace=&pod=`, `/delete?…`, `/pull?reference=` | text; with `--allow-actions` |

use core::{net::IpAddr, time::Duration};
use std::{
    io::{self, BufRead as _, Read as _},
    net::TcpStream,
    os::fd::AsRawFd as _,
};

use async_io::{Async, Timer};

use super::{MAX_CONNECTIONS, watch::NodeStateCache};
use crate::{
    api::strict::from_json,
    cli::{
        CliError,
        check::AgentPaths,
        client::{AgentAnswer, AgentClient},
        delete::set_manifest_aside,
        logs::container_or_default,
        restart::restart_target,
    },
    logic::dashboard::{self, DashboardRequestKind, DashboardRequester},
    server::{
        backend::ProgressLine,
        http::{self, HttpRequest, Refusal, StreamConnection, percent_encode},
    },
};

/// Time in which a request's head has to arrive.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Time after which a browser that takes nothing of an answer is given up.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Interval of looks at whether the browser still reads a silent log.
const LOOK: Duration = Duration::from_secs(1);
/// Lines of a log that are shown at first: 200.
const LOG_LINES: &str = "&tailLines=200";
/// Most bytes of one line of a pull's answer.
const MAX_LINE_BYTES: u64 = 1 << 20;

/// Headers of every answer: nothing of another place is loaded or run, and no other page shows this one.
const HEADERS: &str = "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'\r\n\
     X-Content-Type-Options: nosniff\r\n\
     X-Frame-Options: DENY\r\n\
     Referrer-Policy: no-referrer\r\n\
     Cross-Origin-Opener-Policy: same-origin\r\n\
     Cross-Origin-Resource-Policy: same-origin\r\n\
     Cache-Control: no-store\r\n";

/// Files of the page, packed by gzip, which every browser unpacks: see `build.rs`.
const PAGE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/page.html.gz"));
const SCRIPT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/app.js.gz"));
const STYLE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/style.css.gz"));

/// State that all answers need.
pub(super) struct DashboardState {
    pub(super) token: String,
    pub(super) allow_actions: bool,
    pub(super) client: AgentClient,
    pub(super) place: AgentPaths,
    pub(super) watch: NodeStateCache,
}

type AnswerResult = io::Result<Result<(), Refusal>>;

impl DashboardState {
    /// Answers one request. A browser that leaves is no error.
    pub(super) fn answer_request(&self, stream: TcpStream, is_busy: bool) {
        let _ = self.serve_connection(stream, is_busy);
    }

    fn serve_connection(&self, stream: TcpStream, is_busy: bool) -> io::Result<()> {
        let local = stream.local_addr()?.ip().to_canonical();
        let stream = Async::new(stream)?;
        let socket = stream.as_raw_fd();
        let mut connection = StreamConnection::new(stream).with_socket(socket);
        connection.set_write_timeout(Some(WRITE_TIMEOUT));
        smol::block_on(async {
            let late = async {
                Timer::after(HEAD_TIMEOUT).await;
                Ok(Err(Refusal::bad_request(
                    "the request did not arrive in time",
                )))
            };
            let served = if is_busy {
                let text = format!("more than {MAX_CONNECTIONS} connections");
                Err(Refusal::new(503, text))
            } else {
                let read = http::read_request(&mut connection);
                match smol::future::or(read, late).await? {
                    Ok(None) => return Ok(()),
                    Ok(Some(request)) => {
                        self.route_request(&mut connection, &request, local).await?
                    }
                    Err(refusal) => Err(refusal),
                }
            };
            match served {
                Ok(()) => Ok(()),
                Err(refusal) => {
                    http::send_refusal_with_headers(&mut connection, &refusal, HEADERS).await
                }
            }
        })
    }

    async fn route_request(
        &self,
        connection: &mut StreamConnection,
        request: &HttpRequest,
        local: IpAddr,
    ) -> AnswerResult {
        let path: Vec<&str> = request.path.iter().map(String::as_str).collect();
        let page = match *path {
            [] => Some(("text/html", PAGE)),
            ["app.js"] => Some(("text/javascript", SCRIPT)),
            ["style.css"] => Some(("text/css", STYLE)),
            _ => None,
        };
        let (wanted, method) = match *path {
            _ if page.is_some() => (DashboardRequestKind::Page, "GET"),
            ["state" | "log"] => (DashboardRequestKind::Data, "GET"),
            ["restart" | "delete" | "pull"] => (DashboardRequestKind::Action, "POST"),
            _ => return Ok(Err(Refusal::not_found("no such page"))),
        };
        if let Err(denied) = self.may_ask(request, wanted, local) {
            return Ok(Err(denied));
        }
        if request.method != method {
            let text = format!("method {} is not allowed here", request.method);
            return Ok(Err(Refusal::new(405, text)));
        }
        if request.content_length > 0 || request.is_chunked {
            return Ok(Err(Refusal::new(413, "a request has no body here")));
        }
        if let Some((kind, packed)) = page {
            let lines = format!("{HEADERS}Content-Encoding: gzip\r\n");
            let kind = format!("{kind}; charset=utf-8");
            let sent =
                http::send_response_with_headers(connection, 200, &kind, &lines, packed).await;
            return sent.map(Ok);
        }
        let param = |name: &str| request.query_param(name).unwrap_or_default();
        let (namespace, pod) = (param("namespace"), param("pod"));
        match *path {
            ["state"] => {
                let from = match request.query_number("from") {
                    Ok(from) => from.unwrap_or(0),
                    Err(refusal) => return Ok(Err(refusal)),
                };
                let text = self
                    .watch
                    .news_since(param("seen"), from, self.allow_actions);
                respond_with_text(connection, "application/json", &text).await
            }
            ["log"] => {
                self.stream_container_log(connection, request, (namespace, pod))
                    .await
            }
            ["pull"] => self.stream_image_pull(connection, param("reference")).await,
            ["restart"] => {
                let target = restart_target(namespace, pod);
                let told = self.client.send_request("POST", &target, "");
                let told = told.and_then(|mut answer| answer.read_text());
                self.answer_action_result(connection, told).await
            }
            _ => {
                let kept = set_manifest_aside(&self.place, namespace, pod);
                let told = kept.map(|kept| {
                    format!("Deleting {pod}: its manifest is now {}\n", kept.display())
                });
                self.answer_action_result(connection, told).await
            }
        }
    }

    fn may_ask(
        &self,
        request: &HttpRequest,
        wanted: DashboardRequestKind,
        local: IpAddr,
    ) -> Result<(), Refusal> {
        let mut hosts = request.headers_named("host");
        let asked = DashboardRequester {
            host: hosts.next().filter(|_| hosts.next().is_none()),
            origin: request.header_value("origin"),
            authorization: request.header_value("authorization"),
            local,
        };
        dashboard::check_request(&asked, wanted, &self.token, self.allow_actions)
            .map_err(|denied| Refusal::new(denied.http_status(), denied.to_string()))
    }

    /// Answers with the result of an action, or the reason of its failure. Either way the page may show something new.
    async fn answer_action_result(
        &self,
        connection: &mut StreamConnection,
        told: Result<String, CliError>,
    ) -> AnswerResult {
        self.watch.mark_stale();
        match told {
            Ok(text) => respond_with_text(connection, TEXT, &text).await,
            Err(e) => Ok(Err(agent_refusal(&e))),
        }
    }

    /// Sends a container's log with its times: its last lines until it ends or the browser leaves, or all that there is.
    async fn stream_container_log(
        &self,
        connection: &mut StreamConnection,
        request: &HttpRequest,
        (namespace, pod): (&str, &str),
    ) -> AnswerResult {
        let container = request.query_param("container").unwrap_or_default();
        let previous = request.query_flag("previous");
        let all = request.query_flag("all");
        let target = format!(
            "/containerLogs/{}/{}/{}?timestamps=true&follow={}&previous={previous}{}",
            percent_encode(namespace),
            percent_encode(pod),
            percent_encode(container_or_default(container)),
            !previous && !all,
            if all { "" } else { LOG_LINES },
        );
        let mut answer = match self.client.send_request("GET", &target, "") {
            Ok(answer) => answer,
            Err(e) => return Ok(Err(agent_refusal(&e))),
        };
        answer.body.get_ref().set_read_timeout(Some(LOOK))?;
        let mut stream = http::start_stream_with_headers(connection, TEXT, HEADERS).await?;
        loop {
            let piece = match answer.body.fill_buf() {
                Ok(piece) => piece,
                Err(e) if is_pause(&e) => {
                    if stream.has_hung_up() {
                        return Ok(Ok(()));
                    }
                    continue;
                }
                Err(e) => return Err(e),
            };
            if piece.is_empty() {
                return stream.finish_answer().await.map(Ok);
            }
            stream.send_bytes(piece).await?;
            let taken = piece.len();
            answer.body.consume(taken);
        }
    }

    /// Pulls an image: a line for each step. A browser that leaves ends the pull, unless a pod waits for it too.
    async fn stream_image_pull(
        &self,
        connection: &mut StreamConnection,
        reference: &str,
    ) -> AnswerResult {
        let target = format!("/images/pull?reference={}", percent_encode(reference));
        let mut answer = match self.client.send_request("POST", &target, "") {
            Ok(answer) => answer,
            Err(e) => return Ok(Err(agent_refusal(&e))),
        };
        answer.body.get_ref().set_read_timeout(Some(LOOK))?;
        let mut stream = http::start_stream_with_headers(connection, TEXT, HEADERS).await?;
        let mut line = Vec::new();
        loop {
            match read_line(&mut answer, &mut line) {
                Ok(false) if stream.has_hung_up() => return Ok(Ok(())),
                Ok(false) => continue,
                Ok(true) => {}
                Err(e) => return Err(e),
            }
            let text = match from_json(&line) {
                Ok(ProgressLine::Step(step)) => format!("{step}\n"),
                Ok(ProgressLine::Failed { error, .. }) => format!("failed: {error}\n"),
                _ => "pulled\n".into(),
            };
            self.watch.mark_stale();
            stream.send_bytes(text.as_bytes()).await?;
            if !text.starts_with("pulled") && !text.starts_with("failed") {
                line.clear();
                continue;
            }
            return stream.finish_answer().await.map(Ok);
        }
    }
}

const TEXT: &str = "text/plain; charset=utf-8";

/// Reads on in a line. Returns true if it is whole.
fn read_line(answer: &mut AgentAnswer, line: &mut Vec<u8>) -> io::Result<bool> {
    let room = MAX_LINE_BYTES - u64::try_from(line.len()).unwrap_or(MAX_LINE_BYTES);
    match (&mut answer.body).take(room).read_until(b'\n', line) {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(_) => Ok(line.ends_with(b"\n")),
        Err(e) if is_pause(&e) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Returns true if no byte came in time.
fn is_pause(e: &io::Error) -> bool {
    matches!(
        e.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
    )
}

async fn respond_with_text(
    connection: &mut StreamConnection,
    kind: &str,
    text: &str,
) -> AnswerResult {
    let sent =
        http::send_response_with_headers(connection, 200, kind, HEADERS, text.as_bytes()).await;
    sent.map(Ok)
}

/// Makes the answer to a request that the agent refuses.
fn agent_refusal(e: &CliError) -> Refusal {
    Refusal::new(502, e.message.clone())
}
