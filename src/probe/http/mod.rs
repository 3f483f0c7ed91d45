//! A GET and its redirects. Rows PROBE-30, PROBE-31, PROBE-33, HOOK-05. [`answer`] reads the answer.

mod answer;

pub use answer::{MAX_BODY_BYTES, MAX_HEAD_BYTES, MAX_PIECES};

use core::{cell::Cell, fmt::Write as _, net::IpAddr};

use smol::future;

use answer::{IncomingAnswer, ProbeConnection};

use super::{
    HttpGet, ProbeAnswer, ProbeRequestError, Prober, TimeLimit, UnansweredRequest, VERSION, dial,
};
use crate::net::Url;

/// Redirects followed.
const MAX_REDIRECTS: usize = 10;

/// Probes once.
pub(super) async fn probe_http(
    prober: &Prober,
    get: &HttpGet,
    ip: Option<IpAddr>,
    late: TimeLimit,
) -> ProbeAnswer {
    let state = HttpGetProgress::new(get, ip);
    let ask = async {
        match fetch_with_redirects(prober, get, ip, "probe", &state).await {
            Ok(answer) => judge_response(&answer),
            Err(e) if state.in_body.get() => ProbeAnswer::Error(e.to_string()),
            Err(e) => ProbeAnswer::Failure(state.unanswered(e).to_string()),
        }
    };
    let late = async {
        late.await;
        if state.in_body.get() {
            ProbeAnswer::Error(
                "context deadline exceeded (Client.Timeout or context cancellation while reading body)"
                    .into(),
            )
        } else {
            let text = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)";
            ProbeAnswer::Failure(
                state
                    .unanswered(ProbeRequestError::Peer(text.into()))
                    .to_string(),
            )
        }
    };
    future::or(ask, late).await
}

fn judge_response(answer: &ProbeResponse) -> ProbeAnswer {
    match answer.code {
        200..300 => ProbeAnswer::Success,
        300..400 => ProbeAnswer::Warning(format!(
            "Probe terminated redirects, Response body: {}",
            String::from_utf8_lossy(&answer.body)
        )),
        code => ProbeAnswer::Failure(format!("HTTP probe failed with statuscode: {code}")),
    }
}

/// Result of a lifecycle hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HookOutcome {
    /// The hook was answered.
    Answered,
    /// The hook was answered in plain text; the host and port that were asked over TLS first.
    InPlainText(String),
}

/// Asks as a lifecycle hook does: any answer is good. If a port that was asked over TLS answers in plain HTTP, it is
/// asked once more in plain text, without credentials.
///
/// - Errors: the reason why there was no answer.
pub async fn run_http_hook(
    prober: &Prober,
    get: &HttpGet,
    ip: Option<IpAddr>,
) -> Result<HookOutcome, UnansweredRequest> {
    let state = HttpGetProgress::new(get, ip);
    match fetch_with_redirects(prober, get, ip, "lifecycle", &state).await {
        Ok(_) => Ok(HookOutcome::Answered),
        Err(_) if state.in_body.get() => Ok(HookOutcome::Answered),
        Err(ProbeRequestError::PlainHttp) => {
            let secret = |name: &str| name.eq_ignore_ascii_case("authorization");
            let open = get.headers.iter().filter(|(name, _)| !secret(name));
            let plain = HttpGet {
                https: false,
                headers: open.cloned().collect(),
                ..get.clone()
            };
            let again = HttpGetProgress::new(&plain, ip);
            match fetch_with_redirects(prober, &plain, ip, "lifecycle", &again).await {
                // As upstream: the first error is the one that is told.
                Err(_) if !again.in_body.get() => {
                    Err(state.unanswered(ProbeRequestError::PlainHttp))
                }
                _ => Ok(HookOutcome::InPlainText(dial::host_and_port(
                    &get.host, ip, get.port,
                ))),
            }
        }
        Err(e) => Err(state.unanswered(e)),
    }
}

/// Makes path and query of a request from the text of a pod's author (PROBE-31): unchanged where the text is a path of
/// a URL, with `%` and two digits elsewhere. Text that no URL can be is a path to its last character.
#[must_use]
pub fn request_target(path: &str) -> String {
    let plain = path.split('#').next().unwrap_or("");
    let is_url = is_url(plain);
    let mut rest = if is_url { plain } else { path };
    if is_url {
        // Scheme and host are the probe's own.
        if let Some((scheme, after)) = rest.split_once("://")
            && !scheme.is_empty()
            && scheme
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b))
        {
            rest = after.find(['/', '?']).map_or("", |at| &after[at..]);
        } else if let Some(after) = rest.strip_prefix("//") {
            rest = after.find(['/', '?']).map_or("", |at| &after[at..]);
        }
    }
    let mut out = String::with_capacity(rest.len() + 1);
    if !rest.starts_with('/') {
        out.push('/');
    }
    let mut in_query = false;
    for byte in rest.bytes() {
        in_query |= is_url && byte == b'?';
        let kept = byte.is_ascii_alphanumeric()
            || b"-._~$&+,/:;=@!'()*[]".contains(&byte)
            || (is_url && byte == b'%')
            || (in_query && byte.is_ascii_graphic());
        if kept {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

/// Returns true if Go's `url.Parse` takes the text: no control characters, and digits after each `%` of its path.
fn is_url(text: &str) -> bool {
    let path = text.split('?').next().unwrap_or("");
    let mut parts = path.split('%').skip(1);
    !text.bytes().any(|b| b.is_ascii_control())
        && parts.all(|part| part.bytes().take(2).filter(u8::is_ascii_hexdigit).count() == 2)
}

/// Status and body of an answer.
struct ProbeResponse {
    code: u16,
    /// The first bytes of the body.
    body: Vec<u8>,
}

/// Progress of a GET.
struct HttpGetProgress {
    url: Cell<String>,
    /// Set when the head of the answer is there; only the body is left.
    in_body: Cell<bool>,
}

impl HttpGetProgress {
    fn new(get: &HttpGet, ip: Option<IpAddr>) -> Self {
        Self {
            url: Cell::new(request_url(get, ip).to_string()),
            in_body: Cell::new(false),
        }
    }

    fn unanswered(&self, source: ProbeRequestError) -> UnansweredRequest {
        let url = self.url.take();
        self.url.set(url.clone());
        UnansweredRequest { url, source }
    }
}

fn request_url(get: &HttpGet, ip: Option<IpAddr>) -> Url {
    Url {
        https: get.https,
        authority: dial::host_and_port(&get.host, ip, get.port),
        path: get.target.to_string(),
    }
}

async fn fetch_with_redirects(
    prober: &Prober,
    get: &HttpGet,
    ip: Option<IpAddr>,
    purpose: &str,
    state: &HttpGetProgress,
) -> Result<ProbeResponse, ProbeRequestError> {
    let mut url = request_url(get, ip);
    let asked = url.host().to_owned();
    let mut own_host = header_values(get, "host").next().filter(|h| !h.is_empty());
    // Bounded: by MAX_REDIRECTS.
    for redirects in 0.. {
        let socket = dial::connect_to_host(prober, &get.host, ip, url.port()).await?;
        let mut stream = ProbeConnection::open(prober, &url, socket).await?;
        let head = request_head(get, purpose, &url, own_host)?;
        stream.write_all(head.as_bytes()).await.map_err(|e| {
            ProbeRequestError::Peer(format!("write tcp: write: {}", dial::go_error_text(&e)))
        })?;
        let mut answer = IncomingAnswer::new(stream);
        let head = answer.read_head().await?;
        if let (301..=303 | 307 | 308, Some(location)) = (head.code, &head.location) {
            let next = url.resolve_location(location).map_err(|e| {
                ProbeRequestError::Peer(format!(
                    "failed to parse Location header {location:?}: {e}"
                ))
            })?;
            if next.host().eq_ignore_ascii_case(&asked) {
                if redirects >= MAX_REDIRECTS - 1 {
                    let text = format!("stopped after {MAX_REDIRECTS} redirects");
                    return Err(ProbeRequestError::Peer(text));
                }
                if location.contains("://") || location.starts_with("//") {
                    own_host = None;
                }
                state.url.set(next.to_string());
                url = next;
                continue;
            }
        }
        state.in_body.set(true);
        let body = answer.read_body(&head).await?;
        return Ok(ProbeResponse {
            code: head.code,
            body,
        });
    }
    Err(ProbeRequestError::Peer("stopped".into()))
}

fn header_values<'a>(get: &'a HttpGet, name: &'a str) -> impl Iterator<Item = &'a str> {
    let named = get.headers.iter();
    named
        .filter(move |(n, _)| n.eq_ignore_ascii_case(name))
        .map(|(_, value)| value.as_ref())
}

/// Headers that a request has of its own, whatever is listed. Go leaves these out, too.
const OWN_HEADERS: [&str; 6] = [
    "host",
    "user-agent",
    "accept",
    "content-length",
    "transfer-encoding",
    "trailer",
];

fn request_head(
    get: &HttpGet,
    purpose: &str,
    url: &Url,
    own_host: Option<&str>,
) -> Result<String, ProbeRequestError> {
    let mut head = format!("GET {} HTTP/1.1\r\n", url.path);
    let mut line = |name: &str, value: &str| -> Result<(), ProbeRequestError> {
        let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
        if name.is_empty() || !name.bytes().all(token) {
            let text = format!("net/http: invalid header field name {name:?}");
            return Err(ProbeRequestError::Spec(text));
        }
        if value.bytes().any(|b| b.is_ascii_control() && b != b'\t') {
            let text = format!("net/http: invalid header field value for {name:?}");
            return Err(ProbeRequestError::Spec(text));
        }
        let _ = write!(head, "{name}: {}\r\n", value.trim());
        Ok(())
    };
    line("Host", own_host.unwrap_or(&url.authority))?;
    match header_values(get, "user-agent").next() {
        None => line("User-Agent", &format!("kube-{purpose}/{VERSION}"))?,
        Some("") => {}
        Some(agent) => line("User-Agent", agent)?,
    }
    let mut accepts = header_values(get, "accept").peekable();
    match accepts.peek() {
        None => line("Accept", "*/*")?,
        // Explicitly none.
        Some(&"") => {}
        Some(_) => accepts.try_for_each(|value| line("Accept", value))?,
    }
    for (name, value) in &get.headers {
        if !OWN_HEADERS.iter().any(|own| own.eq_ignore_ascii_case(name)) {
            line(name, value)?;
        }
    }
    head.push_str("Connection: close\r\n\r\n");
    Ok(head)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets() {
        // PROBE-31
        for (path, want) in [
            ("", "/"),
            ("/", "/"),
            ("healthz", "/healthz"),
            ("/a/b?x=1&y=%20z", "/a/b?x=1&y=%20z"),
            ("?x", "/?x"),
            ("/a#part", "/a"),
            ("/a b", "/a%20b"),
            ("/é", "/%C3%A9"),
            ("/a%2Fb", "/a%2Fb"),
            ("/?q=a b", "/?q=a%20b"),
            ("/?q=\"{}\"", "/?q=\"{}\""),
            ("//host/path", "/path"),
            ("http://host:1/path?q", "/path?q"),
            ("http://host?q", "/?q"),
            // No URL: a path as a whole.
            ("/%zz?a#b", "/%25zz%3Fa%23b"),
            ("/a\r\nX: y", "/a%0D%0AX:%20y"),
            ("/%", "/%25"),
        ] {
            assert_eq!(request_target(path), want, "{path:?}");
        }
    }

    fn get(headers: &[(&str, &str)]) -> HttpGet {
        HttpGet {
            https: false,
            host: "".into(),
            port: 80,
            target: "/p".into(),
            headers: headers
                .iter()
                .map(|(n, v)| ((*n).into(), (*v).into()))
                .collect(),
        }
    }

    #[test]
    fn requests() {
        // PROBE-31
        let ip = "10.0.0.1".parse().ok();
        let head = |headers: &[(&str, &str)]| {
            let get = get(headers);
            let host = header_values(&get, "host").next();
            let host = host.filter(|h| !h.is_empty());
            request_head(&get, "probe", &request_url(&get, ip), host)
        };
        let lines = |parts: &[&str]| {
            let mut text = "GET /p HTTP/1.1\r\n".to_owned();
            for part in parts {
                text.push_str(part);
                text.push_str("\r\n");
            }
            Ok(text + "Connection: close\r\n\r\n")
        };
        let host = "Host: 10.0.0.1:80";
        let agent = "User-Agent: kube-probe/1.36";
        let accept = "Accept: */*";
        for (headers, want) in [
            (&[][..], lines(&[host, agent, accept])),
            (
                &[("X-A", "1"), ("x-a", " 2 "), ("X-B", "")],
                lines(&[host, agent, accept, "X-A: 1", "x-a: 2", "X-B: "]),
            ),
            (
                &[
                    ("host", "other"),
                    ("USER-AGENT", "me"),
                    ("accept", "a/b"),
                    ("Accept", "c/d"),
                ],
                lines(&[
                    "Host: other",
                    "User-Agent: me",
                    "Accept: a/b",
                    "Accept: c/d",
                ]),
            ),
            (
                &[("Accept", ""), ("User-Agent", ""), ("Content-Length", "5")],
                lines(&[host]),
            ),
            (
                &[("X", "a\r\nY: b")],
                Err(ProbeRequestError::Spec(
                    "net/http: invalid header field value for \"X\"".into(),
                )),
            ),
            (
                &[("X Y", "a")],
                Err(ProbeRequestError::Spec(
                    "net/http: invalid header field name \"X Y\"".into(),
                )),
            ),
        ] {
            assert_eq!(head(headers), want, "{headers:?}");
        }
        let six = request_url(&get(&[]), "fd00::1".parse().ok());
        assert_eq!(six.to_string(), "http://[fd00::1]:80/p");
    }
}
