//! The terminal's side of `exec` and `attach`: WebSocket's `v5.channel.k8s.io` with the agent, as kubectl speaks it with
//! newer kubelets.

use std::{
    io::{self, BufReader, Read as _, Write as _},
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

use super::{CliError, client::AgentClient, escape_controls};
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
    let command = RemoteCommand::start(client, target)?;
    let raw = if streams.tty {
        RawTerminal::enter()
    } else {
        None
    };
    let end = copy_streams(command, streams);
    drop(raw);
    end
}

/// A command in a container, with its streams. Reading gives its standard output; its standard error goes to ours.
pub(super) struct RemoteCommand {
    body: BufReader<UnixStream>,
    /// The last message: a channel, then its bytes.
    message: Vec<u8>,
    /// Bytes of the message that were read.
    at: usize,
    /// Status object of the agent, once the command has ended.
    status: Option<serde_json::Value>,
    /// Set if control characters of its standard error do not reach the terminal.
    escapes_stderr: bool,
}

impl RemoteCommand {
    /// Opens the streams at `target`.
    pub(super) fn start(client: &AgentClient, target: &str) -> Result<Self, CliError> {
        let headers = format!(
            "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {KEY}\r\n\
             Sec-WebSocket-Protocol: {}\r\n",
            ChannelProtocol::V5.protocol_name()
        );
        let answer = client.send_request("GET", target, &headers)?;
        Ok(Self {
            body: answer.body,
            message: Vec::new(),
            at: 0,
            status: None,
            escapes_stderr: false,
        })
    }

    /// Escapes the control characters of its standard error: a command that the user did not type says nothing to the
    /// terminal.
    pub(super) fn with_escaped_stderr(mut self) -> Self {
        self.escapes_stderr = true;
        self
    }

    fn sender(&self) -> Result<UnixStream, CliError> {
        let sender = self.body.get_ref().try_clone();
        sender.map_err(|e| connection_lost(&e))
    }

    /// Opens the way to the standard input of the command.
    pub(super) fn stdin(&self) -> Result<RemoteStdin, CliError> {
        self.sender().map(RemoteStdin)
    }

    /// Waits for the next standard output, which is then in the message. False: the command has ended.
    fn next_output(&mut self) -> Result<bool, CliError> {
        while self.status.is_none() {
            match read_message(&mut self.body, &mut self.message) {
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                    return Err(CliError::new(
                        "the agent ended the connection before the command did",
                    ));
                }
                other => other.map_err(|e| connection_lost(&e))?,
            }
            self.at = 1;
            match self.message.split_first() {
                Some((&STDOUT, _)) => return Ok(true),
                Some((&STDERR, bytes)) if self.escapes_stderr => {
                    let text = escape_controls(&String::from_utf8_lossy(bytes));
                    written(io::stderr().write_all(text.as_bytes()))?;
                }
                Some((&STDERR, bytes)) => written(io::stderr().write_all(bytes))?,
                Some((&ERROR, bytes)) if !bytes.is_empty() => {
                    let status = serde_json::from_slice(bytes);
                    let status =
                        status.map_err(|e| CliError::new(format!("malformed status: {e}")))?;
                    self.status = Some(status);
                }
                _ => {}
            }
        }
        Ok(false)
    }

    /// Waits for the end of the command, and passes over its standard output.
    pub(super) fn finish(mut self) -> Result<ExitCode, CliError> {
        while self.next_output()? {}
        exit_code_of_status(&self.status.unwrap_or_default())
    }
}

impl io::Read for RemoteCommand {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let lost = |e: CliError| io::Error::other(e.bare_message().to_owned());
        // At the end of a command the message is its status, which is no output.
        while self.status.is_some() || self.at >= self.message.len() {
            if !self.next_output().map_err(lost)? {
                return Ok(0);
            }
        }
        let from = &self.message[self.at..];
        let n = from.len().min(buffer.len());
        buffer[..n].copy_from_slice(&from[..n]);
        self.at += n;
        Ok(n)
    }
}

/// Standard input of a command in a container. Dropped, it ends.
pub(super) struct RemoteStdin(UnixStream);

impl io::Write for RemoteStdin {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = bytes.len().min(INPUT_BYTES);
        send_frame(&self.0, STDIN, &bytes[..n])?;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for RemoteStdin {
    fn drop(&mut self) {
        // A command that has ended needs no end of its input.
        let _ = send_frame(&self.0, CLOSE, &[STDIN]);
    }
}

fn connection_lost(e: &io::Error) -> CliError {
    CliError::new(format!("connection to the agent failed: {e}"))
}

/// A reader of our output that left is no error.
fn written(result: io::Result<()>) -> Result<(), CliError> {
    match result {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            Err(CliError::new(format!("cannot write: {e}")))
        }
        _ => Ok(()),
    }
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

/// Copies both ways until the command ends.
fn copy_streams(
    mut command: RemoteCommand,
    streams: TerminalStreams,
) -> Result<ExitCode, CliError> {
    if streams.tty {
        send_window_sizes(command.sender()?);
    }
    if streams.stdin {
        let stdin = command.stdin()?;
        thread::spawn(move || send_stdin(stdin));
    }
    while command.next_output()? {
        let mut stdout = io::stdout();
        let bytes = &command.message[1..];
        written(stdout.write_all(bytes).and_then(|()| stdout.flush()))?;
    }
    command.finish()
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

fn send_stdin(mut to: RemoteStdin) {
    let mut buffer = vec![0; INPUT_BYTES];
    while let Ok(n @ 1..) = io::stdin().read(&mut buffer) {
        if to.write_all(&buffer[..n]).is_err() {
            return;
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
fn exit_code_of_status(status: &serde_json::Value) -> Result<ExitCode, CliError> {
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

    #[test]
    fn output_of_a_command() {
        // CMD-07
        let run = |frames: &[(u8, &[u8])]| {
            let (agent, client) = UnixStream::pair().expect("pair");
            for (channel, bytes) in frames {
                // As the agent sends them: without a mask.
                let length = u8::try_from(bytes.len() + 1).expect("short");
                let frame = [&[BINARY, length, *channel], *bytes].concat();
                (&agent).write_all(&frame).expect("sent");
            }
            drop(agent);
            let mut command = RemoteCommand {
                body: BufReader::new(client),
                message: Vec::new(),
                at: 0,
                status: None,
                escapes_stderr: false,
            };
            let mut output = String::new();
            let read = command.read_to_string(&mut output).is_ok();
            (read, output, command.finish().map_err(|e| e.code))
        };
        let done = (ERROR, &br#"{"status":"Success"}"#[..]);
        let failed = br#"{"details":{"causes":[{"message":"3","reason":"ExitCode"}]}}"#;
        let (read, output, end) = run(&[(STDOUT, b"a"), (STDOUT, b""), (STDOUT, b"bc"), done]);
        assert!(read && output == "abc" && end.is_ok());
        let (read, output, end) = run(&[(STDOUT, b"a"), (ERROR, failed)]);
        assert!(read && output == "a" && end == Err(3));
        let (read, output, end) = run(&[(STDOUT, b"a")]);
        assert!(!read && output == "a" && end == Err(1), "the agent ended");
    }
}
