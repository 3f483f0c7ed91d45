//! `picolet exec [-it] POD [-c CONTAINER] -- COMMAND`.

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
    args::{Word, Words, unexpected},
    client::Answer,
    get::DEFAULT_NAMESPACE,
    logs::or_default,
};
use crate::{
    server::{http::encode, stream},
    sys::tty,
};

#[derive(Default)]
struct Exec {
    namespace: String,
    pod: String,
    container: String,
    stdin: bool,
    tty: bool,
    command: Vec<String>,
}

pub(super) fn run(mut words: Words) -> Result<ExitCode, CliError> {
    let mut exec = Exec {
        namespace: DEFAULT_NAMESPACE.into(),
        ..Exec::default()
    };
    while let Some(word) = words.next()? {
        match word {
            Word::Flag("namespace") => exec.namespace = words.value()?,
            Word::Flag("container") => exec.container = words.value()?,
            Word::Flag("stdin") => exec.stdin = words.switch()?,
            Word::Flag("tty") => exec.tty = words.switch()?,
            Word::Value(value) if exec.pod.is_empty() => {
                exec.pod = value
                    .strip_prefix("pod/")
                    .map(str::to_owned)
                    .unwrap_or(value);
            }
            Word::Value(first) => {
                exec.command.push(first);
                exec.command.extend(words.rest()?);
            }
            other @ Word::Flag(_) => return Err(unexpected(other)),
        }
    }
    if exec.pod.is_empty() {
        return Err(CliError::new("pod or type/name must be specified"));
    }
    if exec.command.is_empty() {
        return Err(CliError::new(
            "you must specify at least one command for the container",
        ));
    }
    if exec.tty && !is_terminal(io::stdin().as_fd()) {
        let _ = writeln!(
            io::stderr(),
            "Unable to use a TTY - input is not a terminal or the right kind of file"
        );
        exec.tty = false;
    }
    let answer = words.client().send(
        "POST",
        &exec.target(),
        &format!("Connection: Upgrade\r\nUpgrade: {}\r\n", stream::PROTOCOL),
    )?;
    let raw = if exec.tty { RawTerminal::enter() } else { None };
    let end = talk(answer, &exec);
    drop(raw);
    finish(end?)
}

impl Exec {
    fn target(&self) -> String {
        let mut target = format!(
            "/exec/{}/{}/{}?stdin={}&tty={}&stdout=true&stderr={}",
            encode(&self.namespace),
            encode(&self.pod),
            encode(or_default(&self.container)),
            self.stdin,
            self.tty,
            !self.tty
        );
        for word in &self.command {
            target.push_str("&command=");
            target.push_str(&encode(word));
        }
        target
    }
}

fn is_terminal(fd: BorrowedFd<'_>) -> bool {
    tcgetattr(fd).is_ok()
}

/// The terminal in raw mode for as long as this lives.
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

/// Copies both ways until the agent says how it ended; returns that status object.
fn talk(mut answer: Answer, exec: &Exec) -> Result<serde_json::Value, CliError> {
    let lost = |e: io::Error| CliError::new(format!("connection to the agent failed: {e}"));
    let sender = answer.body.get_ref().try_clone().map_err(lost)?;
    if exec.tty {
        send_window_sizes(sender.try_clone().map_err(lost)?);
    }
    if exec.stdin {
        thread::spawn(move || send_stdin(sender));
    }
    let mut payload = vec![0; stream::MAX_FRAME];
    loop {
        let mut head = [0; stream::HEAD_BYTES];
        match answer.body.read_exact(&mut head) {
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(CliError::new(
                    "the agent ended the connection before the command did",
                ));
            }
            other => other.map_err(lost)?,
        }
        let (channel, length) = stream::parse_head(head)
            .ok_or_else(|| CliError::new("malformed frame from the agent"))?;
        answer
            .body
            .read_exact(&mut payload[..length])
            .map_err(lost)?;
        let bytes = &payload[..length];
        let shown = match channel {
            stream::STDOUT => io::stdout()
                .write_all(bytes)
                .and_then(|()| io::stdout().flush()),
            stream::STDERR => io::stderr().write_all(bytes),
            stream::ERROR => {
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

fn send(to: &UnixStream, channel: u8, bytes: &[u8]) -> io::Result<()> {
    // One write a frame: window sizes come from another thread.
    let mut frame = stream::head(channel, bytes.len()).to_vec();
    frame.extend_from_slice(bytes);
    let mut to = to;
    to.write_all(&frame)
}

fn send_stdin(to: UnixStream) {
    let mut buffer = vec![0; stream::MAX_FRAME];
    loop {
        match io::stdin().read(&mut buffer) {
            Ok(0) | Err(_) => {
                let _ = send(&to, stream::CLOSE, &[stream::STDIN]);
                return;
            }
            Ok(n) => {
                if send(&to, stream::STDIN, &buffer[..n]).is_err() {
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
            if send(&to, stream::RESIZE, size.as_bytes()).is_err() {
                return;
            }
            match changes.as_ref().map(SignalFd::read_signal) {
                Ok(Ok(Some(_))) => {}
                _ => return,
            }
        }
    });
}

/// The exit code kubectl would end with: the command's own.
fn finish(status: serde_json::Value) -> Result<ExitCode, CliError> {
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
