//! The wire protocols of kubectl exec, attach and port-forward, as state machines without input or output.
//!
//! | module | what it is |
//! |---|---|
//! | [`upgrade`] | the protocol that a request asks for, and the head that answers it |
//! | [`spdy`] | SPDY/3.1, server side; client side towards a runtime |
//! | [`websocket`] | RFC 6455, server side and client side; the Kubernetes channels in its messages; SPDY tunnelled through it |
//! | [`remote_command`] | exec and attach over either: stdin, sizes, output, status |
//! | [`port_forward`] | port forwarding over either: pairs of streams, pairs of channels |
//!
//! # Whom they serve
//!
//! A kubelet's clients are apiservers. What kubectl sends to one is passed on byte for byte, with two exceptions: since
//! 1.30 an apiserver turns the newest exec and attach protocol (`v5.channel.k8s.io`, what kubectl speaks since 1.31) into
//! SPDY with `v4.channel.k8s.io`, and since 1.31 it unpacks port forwarding tunnelled through WebSocket
//! (`SPDY/3.1+portforward.k8s.io`) into plain SPDY. An apiserver of 1.36 leaves both to the kubelet, but only on nodes that
//! declare `ExtendWebSocketsToKubelet`. So for every apiserver from 1.30 to 1.36 SPDY and the *old* WebSocket channels must
//! be served, and the newest forms by a node that declares them, as this one does. All are here.
//!
//! # How they are driven
//!
//! A machine's `receive_input` is given the bytes that were read from the connection and not yet taken. It answers with a
//! [`MachineStep`]: so many bytes are taken, and there is at most one event. Payload is never copied: an event names a
//! [`Span`] of the given bytes, decoded in place. The caller
//!
//! 1. acts on the event, and only then removes the taken bytes from the front of its buffer;
//! 2. calls again, with the bytes that are left unchanged, until nothing is taken and nothing happened;
//! 3. then reads more; or, if its `out` has reached [`OUT_BYTES`], writes first: a machine takes nothing more until then.
//!
//! Every call that has something to send appends whole frames to the caller's `out`, answers to the peer's own frames
//! included, so that any two calls can follow each other. A payload given at once is at most [`PAYLOAD_BYTES`], and is given
//! only while `out` is below [`OUT_BYTES`]: that bounds `out` by [`MAX_OUT_BYTES`].
//!
//! A caller that cannot pass payload on (a full pipe) keeps the span and does not call `receive_input`: the peer is slowed by its
//! connection. That holds up all streams of the connection, as spdystream does it; its clients know no other back-pressure.
//! Time-outs are the caller's; any byte counts against a connection being idle, pings too, as upstream counts.
//! After an error the peer is told (`close`, `go_away`), `out` written, the connection closed.
//!
//! # Memory of one connection
//!
//! | what | bytes |
//! |---|---|
//! | `out` | ≤ [`MAX_OUT_BYTES`], usually half of it |
//! | the caller's input | its choice; 8 KiB is enough for all protocols |
//! | SPDY: decompressor | 10 KiB, its window 4 KiB, growing to 32 KiB after hundreds of streams |
//! | SPDY: a stream; port forwarding: a pair | 24; 48 and its request's name |
//!
//! Names only `core::` and `alloc::`, as [`crate::logic`]; `tests/layers.rs` holds it.
#![warn(
    clippy::std_instead_of_core,
    clippy::std_instead_of_alloc,
    clippy::wildcard_enum_match_arm
)]

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
pub mod port_forward;
#[cfg(test)]
pub(crate) mod recorded;
pub mod remote_command;
pub mod spdy;
#[cfg(any(test, fuzzing))]
pub(crate) mod testing;
pub mod upgrade;
pub mod websocket;

/// Bytes waiting to be sent at which a machine takes no more input and should be given no more payload.
pub const OUT_BYTES: usize = 8 * 1024;

/// Most bytes of payload to send in one call.
pub const PAYLOAD_BYTES: usize = 8 * 1024;

/// Most bytes that ever wait to be sent, if the caller keeps to the two limits above: payload in base64, and the frames
/// that end a connection's streams.
pub const MAX_OUT_BYTES: usize = OUT_BYTES + PAYLOAD_BYTES * 4 / 3 + 4 * 1024;

/// Result of giving bytes to a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineStep<E> {
    /// Bytes taken, from the first given.
    pub taken: usize,
    /// Event that the bytes brought, if any.
    pub event: Option<E>,
}

impl<E> MachineStep<E> {
    const fn without_event(taken: usize) -> Self {
        Self { taken, event: None }
    }

    const fn new(taken: usize, event: E) -> Self {
        Self {
            taken,
            event: Some(event),
        }
    }

    /// Returns true if the caller has to read (or write) before the next call.
    #[must_use]
    pub const fn is_idle(&self) -> bool {
        self.taken == 0 && self.event.is_none()
    }
}

/// A piece of the bytes given, within those taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Index of its first byte.
    pub at: usize,
    /// Bytes.
    pub len: usize,
}

impl Span {
    /// Returns the bytes of the span in `input`, as it was given.
    #[must_use]
    pub fn slice_of<'a>(&self, input: &'a [u8]) -> &'a [u8] {
        input
            .get(self.at..self.at.saturating_add(self.len))
            .unwrap_or_default()
    }

    /// Moves the span `by` bytes on.
    const fn shifted_by(self, by: usize) -> Self {
        Self {
            at: self.at + by,
            len: self.len,
        }
    }
}
