//! The client side of the local socket: blocking, one request a connection.

use core::time::Duration;
use std::{
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
};

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::CliError;
use crate::api::strict::from_json;

/// Most bytes of an answer's head.
const MAX_HEAD_BYTES: usize = 16 * 1024;
/// Most bytes of the line before a chunk.
const MAX_CHUNK_LINE_BYTES: usize = 32;
/// Most bytes of an answer that is read whole (a list of pods or images).
const MAX_BODY_BYTES: u64 = 64 << 20;

/// Connection to the agent's socket.
#[derive(Clone, Debug)]
pub(crate) struct AgentClient {
    socket: PathBuf,
    /// Longest silence of the agent; `None`: no limit.
    patience: Option<Duration>,
}

/// An answer: its status and the connection, placed at the body.
pub(crate) struct AgentAnswer {
    pub(crate) status: u16,
    /// Set if the body comes in chunks; only [`AgentAnswer::copy_body_to`] reads these.
    is_chunked: bool,
    /// Bytes of the body, if the agent has told.
    length: Option<u64>,
    pub(crate) body: BufReader<UnixStream>,
}

impl AgentClient {
    pub(crate) fn new(socket: &Path) -> Self {
        Self {
            socket: socket.into(),
            patience: None,
        }
    }

    /// Makes a longer silence of the agent than this an error.
    pub(crate) const fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = Some(patience);
        self
    }

    /// Checks that this user may talk to the agent. An agent that does not run is no error.
    pub(crate) fn check_permission(&self) -> Result<(), CliError> {
        match UnixStream::connect(&self.socket) {
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                self.start_request("GET", "/health", "").map(drop)
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn socket_path(&self) -> &Path {
        &self.socket
    }

    /// Sends a request without a body and reads the head of the answer. An answer of 400 or more is an error
    /// carrying the agent's text.
    pub(crate) fn send_request(
        &self,
        method: &str,
        target: &str,
        headers: &str,
    ) -> Result<AgentAnswer, CliError> {
        Self::read_answer_head(self.start_request(method, target, headers)?)
    }

    /// Sends a request for an answer to copy as it comes; see [`AgentAnswer::copy_body_to`].
    pub(super) fn request_stream(&self, target: &str) -> Result<AgentAnswer, CliError> {
        self.send_request("GET", target, "TE: chunked\r\n")
    }

    /// Sends a request without a body. Its connection can be read once the agent answers.
    pub(crate) fn start_request(
        &self,
        method: &str,
        target: &str,
        headers: &str,
    ) -> Result<UnixStream, CliError> {
        let mut stream = UnixStream::connect(&self.socket).map_err(|e| {
            let hint = match e.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                    "; is the agent running (picolet run)?"
                }
                io::ErrorKind::PermissionDenied => {
                    "; only root may talk to the agent: use sudo picolet …"
                }
                _ => "",
            };
            CliError::new(format!(
                "cannot reach the agent at {}: {e}{hint}",
                self.socket.display()
            ))
        })?;
        let head = format!("{method} {target} HTTP/1.1\r\nHost: picolet\r\n{headers}\r\n");
        stream
            .set_read_timeout(self.patience)
            .map_err(|e| connection_error(&e))?;
        stream
            .write_all(head.as_bytes())
            .map_err(|e| connection_error(&e))?;
        Ok(stream)
    }

    /// Reads the head of the answer to a request that was sent.
    pub(crate) fn read_answer_head(stream: UnixStream) -> Result<AgentAnswer, CliError> {
        let mut answer = AgentAnswer {
            status: 0,
            is_chunked: false,
            length: None,
            body: BufReader::new(stream),
        };
        let mut left = MAX_HEAD_BYTES;
        let mut line = String::new();
        loop {
            line.clear();
            let limit = u64::try_from(left).unwrap_or(0);
            let n = (&mut answer.body)
                .take(limit)
                .read_line(&mut line)
                .map_err(|e| connection_error(&e))?;
            left -= n;
            let text = line.trim_end();
            if n == 0 || left == 0 {
                return Err(CliError::new(
                    "the agent closed the connection without an answer",
                ));
            }
            if answer.status == 0 {
                let code = text.split(' ').nth(1).and_then(|c| c.parse().ok());
                answer.status = code.ok_or_else(|| {
                    CliError::new("the program that listens at the socket is not a picolet agent")
                })?;
            } else if text.is_empty() {
                break;
            } else if text.eq_ignore_ascii_case("transfer-encoding: chunked") {
                answer.is_chunked = true;
            } else if let Some((name, value)) = text.split_once(": ")
                && name.eq_ignore_ascii_case("content-length")
            {
                answer.length = value.parse().ok();
            }
        }
        if answer.status >= 400 {
            let text = answer.read_text()?;
            return Err(CliError::from_server(answer.status, text.trim_end()));
        }
        Ok(answer)
    }

    /// Sends a request and reads the whole answer as JSON.
    pub(crate) fn request_json(&self, method: &str, target: &str) -> Result<Value, CliError> {
        self.send_request(method, target, "")?.parse_json()
    }

    /// Lists the objects at `target`. An object that is no list comes alone.
    pub(crate) fn fetch_items(&self, target: &str) -> Result<Vec<Value>, CliError> {
        let mut list = self.request_json("GET", target)?;
        Ok(match list.get_mut("items").map(Value::take) {
            Some(Value::Array(items)) => items,
            Some(_) => Vec::new(),
            None => vec![list],
        })
    }

    /// Reads the agent's answer to a `GET` of `target`.
    pub(crate) fn fetch_typed<T: DeserializeOwned>(&self, target: &str) -> Result<T, CliError> {
        self.send_request("GET", target, "")?.parse_json()
    }
}

fn connection_error(e: &io::Error) -> CliError {
    // The kernel's error when the time of `patience` is over.
    if e.kind() == io::ErrorKind::WouldBlock {
        return CliError::new("the agent does not answer");
    }
    CliError::new(format!("connection to the agent failed: {e}"))
}

fn incomplete_answer() -> CliError {
    CliError::new("the answer is incomplete: the agent has ended, or could not read the rest")
}

impl AgentAnswer {
    /// Reads the whole answer as JSON.
    pub(crate) fn parse_json<T: DeserializeOwned>(&mut self) -> Result<T, CliError> {
        from_json(self.read_text()?.as_bytes())
            .map_err(|e| CliError::new(format!("the agent's answer is not understood: {e}")))
    }

    /// Reads the whole body as text, at most [`MAX_BODY_BYTES`].
    pub(crate) fn read_text(&mut self) -> Result<String, CliError> {
        let mut text = String::new();
        let limit = self.length.unwrap_or(u64::MAX).min(MAX_BODY_BYTES);
        let read = (&mut self.body).take(limit).read_to_string(&mut text);
        let n = read.map_err(|e| connection_error(&e))?;
        match self.length {
            Some(length) if n as u64 != length => Err(incomplete_answer()),
            _ => Ok(text),
        }
    }

    /// Copies the body to `out` as it comes. In chunks ([`AgentClient::request_stream`]) or with a length it has an end of
    /// its own: without that the agent has ended, which is an error.
    pub(crate) fn copy_body_to(&mut self, out: &mut dyn io::Write) -> Result<(), CliError> {
        // Bytes until the end of the chunk, or of the body.
        let mut left = match self.length {
            _ if self.is_chunked => 0,
            Some(length) => usize::try_from(length).unwrap_or(usize::MAX),
            None => usize::MAX,
        };
        loop {
            if left == 0 && !self.is_chunked {
                return Ok(());
            }
            if left == 0 {
                left = self.read_chunk_size()?;
                if left == 0 {
                    return Ok(());
                }
            }
            let piece = self.body.fill_buf().map_err(|e| connection_error(&e))?;
            if piece.is_empty() {
                return match self.is_chunked || self.length.is_some() {
                    true => Err(incomplete_answer()),
                    false => Ok(()),
                };
            }
            let n = piece.len().min(left);
            match out.write_all(&piece[..n]).and_then(|()| out.flush()) {
                Ok(()) => self.body.consume(n),
                // The reader of our output left (`| head`): that is the end, not an error.
                Err(e) if e.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
                Err(e) => return Err(CliError::new(format!("cannot write: {e}"))),
            }
            if self.is_chunked || self.length.is_some() {
                left -= n;
            }
        }
    }

    /// Reads how long the next chunk is, in bytes; 0 for the end.
    fn read_chunk_size(&mut self) -> Result<usize, CliError> {
        let mut line = String::new();
        // The end of the chunk before leaves an empty line.
        for _ in 0..2 {
            line.clear();
            let limit = u64::try_from(MAX_CHUNK_LINE_BYTES).unwrap_or(0);
            let read = (&mut self.body).take(limit).read_line(&mut line);
            read.map_err(|e| connection_error(&e))?;
            if !line.ends_with('\n') {
                return Err(incomplete_answer());
            }
            if !line.trim_end().is_empty() {
                break;
            }
        }
        usize::from_str_radix(line.trim_end(), 16)
            .map_err(|_| CliError::new("the agent's answer is not understood"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_in_chunks_has_an_end_and_without_it_the_agent_has_ended() {
        // LOG-10
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n";
        let chunked = "Transfer-Encoding: chunked\r\n\r\n";
        for (name, rest, copied, says) in [
            ("an older agent", "\r\n3\r\nabc", "3\r\nabc", None),
            ("with a length", "Content-Length: 3\r\n\r\nabc", "abc", None),
            ("with nothing", "Content-Length: 0\r\n\r\n", "", None),
            (
                "killed before its length",
                "Content-Length: 9\r\n\r\nabc",
                "abc",
                Some("has ended"),
            ),
            (
                "whole",
                &format!("{chunked}3\r\nabc\r\nb\r\nd\r\nefghijkl\r\n0\r\n\r\n"),
                "abcd\r\nefghijkl",
                None,
            ),
            ("empty", &format!("{chunked}0\r\n\r\n"), "", None),
            (
                "killed between chunks",
                &format!("{chunked}3\r\nabc\r\n"),
                "abc",
                Some("has ended"),
            ),
            (
                "killed in a chunk",
                &format!("{chunked}9\r\nabc"),
                "abc",
                Some("has ended"),
            ),
            ("killed before a chunk", chunked, "", Some("has ended")),
            (
                "killed in a size",
                &format!("{chunked}9"),
                "",
                Some("has ended"),
            ),
            (
                "no size",
                &format!("{chunked}x\r\n"),
                "",
                Some("not understood"),
            ),
        ] {
            let (mut agent, client) = UnixStream::pair().expect("pair");
            agent
                .write_all(format!("{head}{rest}").as_bytes())
                .expect("write");
            drop(agent);
            let mut answer = AgentClient::read_answer_head(client).expect(name);
            let mut out = Vec::new();
            let end = answer.copy_body_to(&mut out).map_err(|e| e.message);
            assert_eq!(String::from_utf8_lossy(&out), copied, "{name}");
            match says {
                None => assert_eq!(end, Ok(()), "{name}"),
                Some(says) => assert!(end.expect_err(name).contains(says), "{name}"),
            }
        }
    }

    #[test]
    fn an_answer_that_is_read_whole_has_its_length() {
        let read = |rest: &str| {
            let (mut agent, client) = UnixStream::pair().expect("pair");
            let text = format!("HTTP/1.1 200 OK\r\n{rest}");
            agent.write_all(text.as_bytes()).expect("write");
            drop(agent);
            let mut answer = AgentClient::read_answer_head(client).expect(rest);
            answer.read_text().map_err(|e| e.message)
        };
        assert_eq!(read("\r\nabc"), Ok("abc".into()));
        assert_eq!(read("Content-Length: 3\r\n\r\nabc"), Ok("abc".into()));
        let cut = read("Content-Length: 4\r\n\r\nabc").expect_err("cut");
        assert!(cut.contains("has ended"), "{cut}");
    }
}
