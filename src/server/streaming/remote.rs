//! Exec and attach: a client's protocol on one side, a process's streams on the other. One task, fixed buffers; a slow
//! side holds back the other, and no other session.
//!
//! A client that goes, or is silent for too long, ends the session, and with it the streams of a command or of a
//! container that is attached to. The runtime decides on the command itself.

use core::task::{Context, Poll, ready};
use core::time::Duration;
use std::io;

use super::carrier::{SessionCarrier, TURNS};
use crate::api::MonoTime;
use crate::runtime::{OutputRead as Read, OutputRoom, RuntimeError, SessionStart, StreamSession};
use crate::stream::remote_command::{
    CommandOutcome, OutputStream, RemoteCommandError, RemoteCommandEvent, RemoteCommandSession,
    TerminalSize,
};
use crate::stream::{OUT_BYTES, PAYLOAD_BYTES, Span};
use crate::sys::clock;

/// End of a session.
enum RemoteSessionEnd {
    /// The process has ended, or could not be run.
    Ended(CommandOutcome),
    /// The client talks nonsense.
    Broken(RemoteCommandError),
    /// The client is gone, or was given up.
    Left,
}

/// Input on its way to the process.
struct PendingInput {
    span: Span,
    /// Bytes of it that were passed on.
    done: usize,
    /// Bytes of the client's to remove then.
    taken: usize,
}

enum RemoteProcess<'a> {
    /// The process waits until the client has made its streams.
    Wanted(Option<SessionStart<'a>>),
    Starting(SessionStart<'a>),
    Running(StreamSession),
}

struct RemoteDriver<'a> {
    carrier: SessionCarrier<'a>,
    remote: RemoteCommandSession,
    process: RemoteProcess<'a>,
    pending: Option<PendingInput>,
    /// Size to set the terminal to once it is there.
    size: Option<TerminalSize>,
    stdin_end: bool,
    output_over: bool,
    /// The client makes its streams until then.
    created_by: Option<MonoTime>,
}

/// Carries one session to its end. `start` starts the process when the client has made its streams, which is `within` that
/// time.
///
/// - Errors: the connection broke.
pub(super) async fn drive_remote_session<'a>(
    carrier: SessionCarrier<'a>,
    remote: RemoteCommandSession,
    within: Duration,
    start: SessionStart<'a>,
) -> io::Result<()> {
    let mut drive = RemoteDriver {
        carrier,
        remote,
        process: RemoteProcess::Wanted(Some(start)),
        pending: None,
        size: None,
        stdin_end: false,
        output_over: false,
        created_by: Some(clock::mono_now() + within),
    };
    let over = core::future::poll_fn(|cx| drive.poll(cx)).await?;
    let RemoteDriver {
        mut carrier,
        mut remote,
        process,
        ..
    } = drive;
    // Before the client hears of the end: nothing of the session is left then.
    drop(process);
    match over {
        RemoteSessionEnd::Ended(outcome) => remote.send_outcome(&outcome, &mut carrier.out),
        RemoteSessionEnd::Broken(e) => {
            log::debug!("a client of exec or attach: {e}");
            remote.abort_session(e, &mut carrier.out);
        }
        RemoteSessionEnd::Left => return Ok(()),
    }
    carrier.close_gracefully().await;
    Ok(())
}

impl RemoteDriver<'_> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<RemoteSessionEnd>> {
        loop {
            ready!(self.carrier.poll_pause(cx));
            for _ in 0..TURNS {
                let mut moved = self.carrier.poll_write(cx)?;
                if let Some(why) = self.carrier.spent_reason() {
                    return Poll::Ready(Ok(RemoteSessionEnd::Ended(CommandOutcome::Cut(why))));
                }
                let over = self
                    .poll_start(cx, &mut moved)
                    .or_else(|| self.poll_client(cx, &mut moved))
                    .or_else(|| self.poll_process(cx, &mut moved));
                if let Some(over) = over {
                    return Poll::Ready(Ok(over));
                }
                if !moved {
                    let late = ready!(self.carrier.poll_wait_end(cx, self.created_by));
                    log::debug!("a client of exec or attach is given up: {late:?}");
                    return Poll::Ready(Ok(RemoteSessionEnd::Left));
                }
            }
            self.carrier.begin_pause();
        }
    }

    /// Goes on with the start of the process.
    fn poll_start(&mut self, cx: &mut Context<'_>, moved: &mut bool) -> Option<RemoteSessionEnd> {
        if let RemoteProcess::Wanted(start) = &mut self.process
            && self.created_by.is_none()
            && let Some(start) = start.take()
        {
            self.process = RemoteProcess::Starting(start);
        }
        let RemoteProcess::Starting(call) = &mut self.process else {
            return None;
        };
        let Poll::Ready(started) = call.as_mut().poll(cx) else {
            return None;
        };
        *moved = true;
        match started {
            Ok(mut session) => {
                if let Some(size) = self.size.take() {
                    session.streams.resize_terminal(size.width, size.height);
                }
                if self.stdin_end {
                    session.streams.end_input();
                }
                self.process = RemoteProcess::Running(session);
                None
            }
            Err(e) => Some(failed_session_end(&e)),
        }
    }

    /// Passes input on, and reads the client's bytes.
    fn poll_client(&mut self, cx: &mut Context<'_>, moved: &mut bool) -> Option<RemoteSessionEnd> {
        match self.carrier.poll_read(cx) {
            Ok(read) => *moved |= read,
            Err(_) => return Some(RemoteSessionEnd::Left),
        }
        if self.pending.is_some() && !self.poll_input(cx, moved) {
            return None;
        }
        let (input, out) = self.carrier.io_buffers();
        let step = match self.remote.receive_input(input, out) {
            Ok(step) => step,
            Err(e) => return Some(RemoteSessionEnd::Broken(e)),
        };
        *moved |= !step.is_idle();
        match step.event {
            Some(RemoteCommandEvent::Stdin(span)) => {
                self.pending = Some(PendingInput {
                    span,
                    done: 0,
                    taken: step.taken,
                });
                return None;
            }
            Some(RemoteCommandEvent::Ready) => self.created_by = None,
            Some(RemoteCommandEvent::StdinEnd) => {
                self.stdin_end = true;
                if let RemoteProcess::Running(session) = &mut self.process {
                    session.streams.end_input();
                }
            }
            Some(RemoteCommandEvent::Resize(size)) => match &mut self.process {
                RemoteProcess::Running(session) => {
                    session.streams.resize_terminal(size.width, size.height)
                }
                RemoteProcess::Wanted(_) | RemoteProcess::Starting(_) => self.size = Some(size),
            },
            Some(RemoteCommandEvent::Left) => return Some(RemoteSessionEnd::Left),
            None => {}
        }
        self.carrier.consume_input(step.taken);
        None
    }

    /// Passes pending input on; whether all of it was.
    fn poll_input(&mut self, cx: &mut Context<'_>, moved: &mut bool) -> bool {
        let (Some(pending), RemoteProcess::Running(session)) =
            (&mut self.pending, &mut self.process)
        else {
            return false;
        };
        let (input, out) = self.carrier.io_buffers();
        let rest = &pending.span.slice_of(input)[pending.done..];
        let passed = match session.streams.poll_input(cx, rest) {
            Poll::Pending => return false,
            Poll::Ready(Ok(n)) => n,
            // The process does not read its input any more.
            Poll::Ready(Err(_)) => rest.len(),
        };
        *moved = true;
        self.remote.record_passed_on(passed, out);
        pending.done += passed;
        if pending.done < pending.span.len {
            return false;
        }
        let taken = pending.taken;
        self.pending = None;
        self.carrier.consume_input(taken);
        true
    }

    /// Passes output on, and hears of the end.
    fn poll_process(&mut self, cx: &mut Context<'_>, moved: &mut bool) -> Option<RemoteSessionEnd> {
        let RemoteProcess::Running(session) = &mut self.process else {
            return None;
        };
        if !self.output_over && self.carrier.out.len() < OUT_BYTES {
            let room = OutputRoom {
                stdout: self.remote.sendable_bytes(OutputStream::Stdout),
                stderr: self.remote.sendable_bytes(OutputStream::Stderr),
            };
            let mut buffer = [0; PAYLOAD_BYTES];
            let (stream, len) = match session.streams.poll_output(cx, room, &mut buffer) {
                Poll::Pending => return None,
                Poll::Ready(Ok(Read::Stdout(n))) => (OutputStream::Stdout, n),
                Poll::Ready(Ok(Read::Stderr(n))) => (OutputStream::Stderr, n),
                Poll::Ready(Ok(Read::End)) => {
                    self.output_over = true;
                    (OutputStream::Stdout, 0)
                }
                Poll::Ready(Err(e)) => {
                    return Some(RemoteSessionEnd::Ended(CommandOutcome::Failed(format!(
                        "output lost: {e}"
                    ))));
                }
            };
            *moved = true;
            // Output that the client does not want any more is dropped.
            let _ = self
                .remote
                .send_output(stream, &buffer[..len], &mut self.carrier.out);
        }
        if !self.output_over {
            return None;
        }
        let Poll::Ready(end) = session.end.as_mut().poll(cx) else {
            return None;
        };
        Some(match end {
            Ok(code) => RemoteSessionEnd::Ended(CommandOutcome::Exited(code)),
            Err(e) => failed_session_end(&e),
        })
    }
}

fn failed_session_end(e: &RuntimeError) -> RemoteSessionEnd {
    RemoteSessionEnd::Ended(CommandOutcome::Failed(e.to_string()))
}
