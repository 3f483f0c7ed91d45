//! The terminal's side of `exec` and `attach`: WebSocket's `v5.channel.k8s.io` with the agent, as kubectl speaks it with
//! newer kubelets.

use std::{
    io::{self, Read as _, Write as _},
    os::{
        fd::{AsFd as _, BorrowedFd},
        unix::net::UnixStream,
    },
    process::ExitCode,
    thread,
};

use nix::sys::{
    signal::{SigSet, Signal},
    signalfd::SignalFd,
    termios::{SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr},
};

use super::{
    CliError,
    client::{AgentAnswer, AgentClient},
};
use crate::{stream::websocket::ChannelProtocol, sys::tty};

/// Bytes of standard input read at a time. A frame's length is two bytes.
const INPUT_BYTES: usize = 16 * 1024;
/// Longest message of the agent, bytes.
const MAX_MESSAGE_BYTES: usize = 64 * 1024;
/// `Sec-WebSocket-Key`, always the same: no proxy between here and the agent could take one connection for another.
const KEY: &str = "cGljb2xldC1sb2NhbC13cw==";

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const ERROR: u8 = 3;
const RESIZE: u8 = 4;
const CLOSE: u8 = 255;

/// First byte of a frame: a whole binary message.
const BINARY: u8 = 0x82;
/// First byte of a frame that ends the connection.
const GOODBYE: u8 = 0x88;
/// Bit in the second byte of a frame: the data are masked. The mask is zero, and changes nothing.
const MASKED: u8 = 0x80;
const MASK: [u8; 4] = [0; 4];
/// Longest length that stands in the second byte itself; greater ones follow it in two bytes.
const SHORT: u8 = 125;
const TWO_BYTES: u8 = 126;

/// Streams between the terminal and the container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TerminalStreams {
    /// Set if standard input is passed on.
    pub(super) stdin: bool,
    /// Set if the other side is a terminal.
    pub(super) tty: bool,
}

impl TerminalStreams {
    /// Switches the other terminal off if there is none here.
    pub(super) fn drop_absent_terminal(&mut self) {
        if self.tty && !is_terminal(io::stdin().as_fd()) {
            let text = "Unable to use a TTY - input is not a terminal or the right kind of file";
            let _ = writeln!(io::stderr(), "{text}");
            self.tty = false;
        }
    }

    /// Makes the parameters of a request.
    pub(super) fn query_parameters(self) -> String {
        let bit = |on: bool| u8::from(on);
        format!(
            "input={}&output=1&error={}&tty={}",
            bit(self.stdin),
            bit(!self.tty),
            bit(self.tty)
        )
    }
}

/// Opens streams at `target` and passes them on to the end.
pub(super) fn run_remote_streams(
    client: &AgentClient,
    target: &str,
    streams: TerminalStreams,
) -> Result<ExitCode, CliError> {
    let headers = format!(
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {KEY}\r\n\
         Sec-WebSocket-Protocol: {}\r\n",
        ChannelProtocol::V5.protocol_name()
    );
    let answer = client.send_request("GET", target, &headers)?;
    let raw = if streams.tty {
        RawTerminal::enter()
    } else {
        None
    };
    let end = copy_streams(answer, streams);
    drop(raw);
    exit_code_of_status(end?)
}

fn is_terminal(fd: BorrowedFd<'_>) -> bool {
    tcgetattr(fd).is_ok()
}

/// Guard of the terminal's raw mode: the former mode comes back on drop.
struct RawTerminal(Termios);

impl RawTerminal {
    fn enter() -> Option<Self> {
        let stdin = io::stdin();
        let before = tcgetattr(&stdin).ok()?;
        let mut raw = before.clone();
        cfmakeraw(&mut raw);
        tcsetattr(&stdin, SetArg::TCSANOW, &raw).ok()?;
        Some(Self(before))
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        let _ = tcsetattr(io::stdin(), SetArg::TCSANOW, &self.0);
    }
}

/// Copies both ways until the agent sends the end of the command; returns its status object.
fn copy_streams(
    mut answer: AgentAnswer,
    streams: TerminalStreams,
) -> Result<serde_json::Value, CliError> {
    let lost = |e: io::Error| CliError::new(format!("connection to the agent failed: {e}"));
    let sender = answer.body.get_ref().try_clone().map_err(lost)?;
    if streams.tty {
        send_window_sizes(sender.try_clone().map_err(lost)?);
    }
    if streams.stdin {
        thread::spawn(move || send_stdin(sender));
    }
    let mut message = Vec::new();
    loop {
        match read_message(&mut answer.body, &mut message) {
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(CliError::new(
                    "the agent ended the connection before the command did",
                ));
            }
            other => other.map_err(lost)?,
        }
        let Some((&channel, bytes)) = message.split_first() else {
            continue;
        };
        let shown = match channel {
            STDOUT => io::stdout()
                .write_all(bytes)
                .and_then(|()| io::stdout().flush()),
            STDERR => io::stderr().write_all(bytes),
            ERROR if !bytes.is_empty() => {
                return serde_json::from_slice(bytes)
                    .map_err(|e| CliError::new(format!("malformed status: {e}")));
            }
            _ => Ok(()),
        };
        match shown {
            Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
                return Err(CliError::new(format!("cannot write: {e}")));
            }
            _ => {}
        }
    }
}

/// Reads the next binary message; the agent sends none in pieces.
fn read_message(from: &mut impl io::Read, message: &mut Vec<u8>) -> io::Result<()> {
    loop {
        let mut head = [0; 2];
        from.read_exact(&mut head)?;
        let [kind, length] = head;
        let length = match length {
            short @ ..=SHORT => usize::from(short),
            TWO_BYTES => {
                let mut length = [0; 2];
                from.read_exact(&mut length)?;
                usize::from(u16::from_be_bytes(length))
            }
            _ => MAX_MESSAGE_BYTES + 1,
        };
        if length > MAX_MESSAGE_BYTES {
            let text = "malformed frame from the agent";
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        message.resize(length, 0);
        from.read_exact(message)?;
        match kind {
            BINARY => return Ok(()),
            GOODBYE => return Err(io::ErrorKind::UnexpectedEof.into()),
            _ => {}
        }
    }
}

/// Makes the frame of a message. `bytes` is at most [`INPUT_BYTES`] long.
fn encode_frame(channel: u8, bytes: &[u8]) -> Vec<u8> {
    let mut frame = vec![BINARY];
    let length = u16::try_from(bytes.len() + 1).unwrap_or(u16::MAX);
    match u8::try_from(length) {
        Ok(short) if short <= SHORT => frame.push(MASKED | short),
        _ => {
            frame.push(MASKED | TWO_BYTES);
            frame.extend(length.to_be_bytes());
        }
    }
    frame.extend(MASK);
    frame.push(channel);
    frame.extend_from_slice(bytes);
    frame
}

fn send_frame(to: &UnixStream, channel: u8, bytes: &[u8]) -> io::Result<()> {
    // One write a frame: window sizes come from another thread.
    let mut to = to;
    to.write_all(&encode_frame(channel, bytes))
}

fn send_stdin(to: UnixStream) {
    let mut buffer = vec![0; INPUT_BYTES];
    loop {
        match io::stdin().read(&mut buffer) {
            Ok(0) | Err(_) => {
                let _ = send_frame(&to, CLOSE, &[STDIN]);
                return;
            }
            Ok(n) => {
                if send_frame(&to, STDIN, &buffer[..n]).is_err() {
                    return;
                }
            }
        }
    }
}

/// Sends the window size now and whenever it changes.
fn send_window_sizes(to: UnixStream) {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGWINCH);
    if signals.thread_block().is_err() {
        return;
    }
    thread::spawn(move || {
        let changes = SignalFd::new(&signals);
        loop {
            let Some((columns, rows)) = tty::window_size(io::stdin().as_fd()) else {
                return;
            };
            let size = format!("{{\"Width\":{columns},\"Height\":{rows}}}");
            if send_frame(&to, RESIZE, size.as_bytes()).is_err() {
                return;
            }
            match changes.as_ref().map(SignalFd::read_signal) {
                Ok(Ok(Some(_))) => {}
                _ => return,
            }
        }
    });
}

/// Finds the exit code as kubectl does: the command's own.
fn exit_code_of_status(status: serde_json::Value) -> Result<ExitCode, CliError> {
    if status["status"] == "Success" {
        return Ok(ExitCode::SUCCESS);
    }
    let message = status["message"]
        .as_str()
        .unwrap_or("the command failed")
        .to_owned();
    let causes = status["details"]["causes"].as_array();
    let code = causes
        .and_then(|all| all.iter().find(|c| c["reason"] == "ExitCode"))
        .and_then(|c| c["message"].as_str())
        .and_then(|text| text.parse::<u8>().ok());
    match code {
        Some(code) => Err(CliError {
            message: format!("command terminated with exit code {code}"),
            code,
        }),
        None => Err(CliError {
            message: format!("error: {message}"),
            code: 1,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames() {
        assert_eq!(encode_frame(0, b"ab"), b"\x82\x83\0\0\0\0\0ab");
        let long = encode_frame(STDIN, &[7; 300]);
        assert_eq!(long[..4], [0x82, 0xfe, 1, 45]);
        assert_eq!(long.len(), 8 + 301);
        let mut from: &[u8] = b"\x89\0\x82\x03\x01hi\x82\x7e\0\x02\x03x\x88\0";
        let mut message = Vec::new();
        let mut next = || read_message(&mut from, &mut message).map(|()| message.clone());
        assert_eq!(next().expect("short"), b"\x01hi");
        assert_eq!(next().expect("long"), b"\x03x");
        assert_eq!(
            next().expect_err("over").kind(),
            io::ErrorKind::UnexpectedEof
        );
    }
}
