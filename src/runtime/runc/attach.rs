//! Streams of running containers, by way of their shims.
//!
//! All goes over one connection, so that a client's request comes after the input that it sent before.

use core::task::{Context, Poll, ready};
use core::time::Duration;
use std::io;

use async_io::Timer;
use smol::future;

use super::{Runc, failed_at_step};
use crate::api::ContainerId;
use crate::runtime::{
    AttachOptions, OutputRead, OutputRoom, ProcessStreams, RuntimeError, StreamSession,
};
use crate::shim::control::{self, MAX_DATA_BYTES, ShimConnection, kind};

/// Time limit for a shim to let a client in.
const PATIENCE: Duration = Duration::from_secs(10);

impl Runc {
    pub(super) async fn attach_to_shim(
        &self,
        id: &ContainerId,
        options: AttachOptions,
    ) -> Result<StreamSession, RuntimeError> {
        self.demand_running(id)?;
        let dir = self.container_dirs(id).run;
        let wanted = control::AttachStreams {
            stdin: options.stdin,
            stdout: options.stdout,
            stderr: options.stderr,
        };
        let late = async {
            Timer::after(PATIENCE).await;
            let why = "the container's shim does not answer";
            Err(io::Error::new(io::ErrorKind::TimedOut, why))
        };
        let attached = future::or(control::attach_streams(&dir, wanted), late).await;
        let streams = ShimAttachment {
            attached: attached.map_err(failed_at_step(&format!("attach to container {id}")))?,
            stdin: options.stdin,
            stdin_once: options.stdin_once,
            closing: false,
            size: None,
            over: false,
        };
        Ok(StreamSession {
            streams: Box::new(streams),
            end: Box::pin(async { Ok(0) }),
        })
    }
}

/// A client of a shim.
#[derive(Debug)]
struct ShimAttachment {
    attached: ShimConnection,
    stdin: bool,
    stdin_once: bool,
    /// Requests that are sent as soon as the shim takes them: the end of input, the terminal's size.
    closing: bool,
    size: Option<(u16, u16)>,
    over: bool,
}

impl ShimAttachment {
    fn poll_requests(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some((columns, rows)) = self.size {
            let ([a, b], [c, d]) = (columns.to_le_bytes(), rows.to_le_bytes());
            ready!(self.attached.poll_send(cx, kind::RESIZE, &[a, b, c, d]))?;
            self.size = None;
        }
        if self.closing {
            ready!(self.attached.poll_send(cx, kind::CLOSE_STDIN, &[]))?;
            self.closing = false;
        }
        Poll::Ready(Ok(()))
    }
}

impl ProcessStreams for ShimAttachment {
    fn poll_output(
        &mut self,
        cx: &mut Context<'_>,
        room: OutputRoom,
        buffer: &mut [u8],
    ) -> Poll<io::Result<OutputRead>> {
        // If the shim is gone, the next read fails.
        let _ = self.poll_requests(cx);
        if self.over {
            return Poll::Ready(Ok(OutputRead::End));
        }
        // Only a taken packet tells its stream.
        if room.stdout.min(room.stderr).min(buffer.len()) < MAX_DATA_BYTES {
            return Poll::Pending;
        }
        // Bounded: beside output a shim sends only an answer to each request.
        loop {
            let output = match ready!(self.attached.poll_packet(cx, buffer))? {
                (kind::STDOUT, n) => OutputRead::Stdout(n),
                (kind::STDERR, n) => OutputRead::Stderr(n),
                (kind::END, _) => {
                    self.over = true;
                    OutputRead::End
                }
                // Answers to requests, and a later shim's news.
                _ => continue,
            };
            return Poll::Ready(Ok(output));
        }
    }

    fn poll_input(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if !self.stdin {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        self.attached.poll_send(cx, kind::INPUT, bytes)
    }

    fn end_input(&mut self) {
        self.closing |= self.stdin && self.stdin_once;
        self.stdin = false;
    }

    fn resize_terminal(&mut self, columns: u16, rows: u16) {
        self.size = Some((columns, rows));
    }
}
