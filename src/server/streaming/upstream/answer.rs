//! Answers of a runtime's server of streams, read with limits.

use core::time::Duration;

use async_io::Timer;
use smol::io::AsyncReadExt as _;

use super::UpstreamError;
use crate::net::http_response::ResponseHead;
use crate::server::connection::StreamConnection;
use crate::server::http::HeadEnd;
use crate::sys::turn;

/// Bytes of the head of an answer. Those that servers give have 200.
const MAX_HEAD_BYTES: usize = 16 * 1024;
/// Header lines of an answer.
const MAX_HEADERS: usize = 32;
/// Bytes of a refusal that are passed on. It is a line of text.
const MAX_BODY_BYTES: usize = 16 * 1024;
/// Time in which the body of a refusal has to come.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes taken at a time.
const STEP_BYTES: usize = 1024;
/// Headers that a refusal may carry to the client.
const PASSED: [&str; 3] = [
    "x-accepted-stream-protocol-versions",
    "sec-websocket-version",
    "retry-after",
];

/// Fault of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::server::streaming) enum UpstreamAnswerError {
    /// The answer ended before its head did.
    #[error("its answer is cut short")]
    Cut,
    /// The head is too long.
    #[error("the head of its answer is over {MAX_HEAD_BYTES} bytes")]
    TooLong,
    /// The answer is not HTTP.
    #[error("{0}")]
    Http(httparse::Error),
}

/// An answer that is not the switch to another protocol.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::server::streaming) struct UpstreamAnswer {
    pub(super) status: u16,
    /// Header lines for the client, each with its end.
    pub(super) lines: String,
    kind: Option<String>,
    /// Body, as far as it was read.
    pub(super) body: Vec<u8>,
    length: Option<usize>,
    is_chunked: bool,
}

impl UpstreamAnswer {
    /// Content type of the body.
    pub(super) fn content_type(&self) -> &str {
        self.kind.as_deref().unwrap_or("text/plain")
    }

    /// Text of the refusal, for people.
    pub(super) fn text(&self) -> String {
        let body = String::from_utf8_lossy(&self.body);
        match (self.status, body.trim()) {
            (..400, _) => format!("invalid upgrade response: status code {}", self.status),
            (_, "") => format!("the runtime refuses streams: status code {}", self.status),
            (_, text) => format!("the runtime refuses streams: {text}"),
        }
    }
}

/// The head of an answer.
pub(super) struct UpstreamAnswerHead {
    pub(super) answer: UpstreamAnswer,
    /// Bytes of the head, as they came.
    pub(super) raw: Vec<u8>,
}

/// Reads the head of an answer. Bytes behind it stay in the connection.
pub(super) async fn read_answer_head(
    connection: &mut StreamConnection,
    place: &str,
) -> Result<UpstreamAnswerHead, UpstreamError> {
    let nonsense = |why: UpstreamAnswerError| UpstreamError::Nonsense {
        place: place.to_owned(),
        why,
    };
    let mut raw = Vec::new();
    let mut end = HeadEnd::default();
    let mut step = [0; STEP_BYTES];
    loop {
        let n = connection.read(&mut step).await;
        let n = n.map_err(|source| UpstreamError::Broken {
            place: place.to_owned(),
            source,
        })?;
        if n == 0 {
            return Err(nonsense(UpstreamAnswerError::Cut));
        }
        if let Some(length) = end.find_end(&step[..n]) {
            connection.push_back_bytes(&step[length..n]);
            raw.extend_from_slice(&step[..length]);
            break;
        }
        raw.extend_from_slice(&step[..n]);
        if raw.len() > MAX_HEAD_BYTES {
            return Err(nonsense(UpstreamAnswerError::TooLong));
        }
        turn::yield_to_others().await;
    }
    let answer = parse_answer(&raw).map_err(nonsense)?;
    Ok(UpstreamAnswerHead { answer, raw })
}

fn parse_answer(raw: &[u8]) -> Result<UpstreamAnswer, UpstreamAnswerError> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let head = ResponseHead::parse(raw, &mut headers).map_err(UpstreamAnswerError::Http)?;
    let head = head.ok_or(UpstreamAnswerError::Cut)?;
    let mut answer = UpstreamAnswer {
        status: head.status,
        ..UpstreamAnswer::default()
    };
    for header in head.headers {
        let name = header.name.to_ascii_lowercase();
        let value = String::from_utf8_lossy(header.value);
        match &*name {
            "content-type" => answer.kind = Some(value.into_owned()),
            "content-length" => answer.length = value.trim().parse().ok(),
            "transfer-encoding" => answer.is_chunked = true,
            known if PASSED.contains(&known) => {
                answer
                    .lines
                    .push_str(&format!("{}: {value}\r\n", header.name));
            }
            _ => {}
        }
    }
    Ok(answer)
}

/// Reads the text of a refusal, as far as it comes.
pub(super) async fn read_answer_body(
    connection: &mut StreamConnection,
    mut answer: UpstreamAnswer,
) -> UpstreamAnswer {
    // A body in chunks would have to be put together first. The status says enough.
    if answer.is_chunked {
        return answer;
    }
    let most = answer.length.unwrap_or(MAX_BODY_BYTES).min(MAX_BODY_BYTES);
    let reading = async {
        let mut step = [0; STEP_BYTES];
        while answer.body.len() < most {
            let room = step.len().min(most - answer.body.len());
            match connection.read(&mut step[..room]).await {
                Ok(0) | Err(_) => break,
                Ok(n) => answer.body.extend_from_slice(&step[..n]),
            }
            turn::yield_to_others().await;
        }
    };
    let late = async {
        Timer::after(BODY_TIMEOUT).await;
    };
    smol::future::or(reading, late).await;
    answer
}
