//! Ways to drive the machines, for tests and fuzzing.

use alloc::vec::Vec;
use core::fmt::Debug;

#[cfg(test)]
pub(crate) use client::{SpdyClient, masked, spdy_frames, ws_frames};

use super::{MachineStep, Span};

#[cfg(test)]
mod client;

/// Gives `bytes` to a machine in pieces of `piece` bytes, as [`crate::stream`] says, and checks its answers. `see` is
/// told each event with the bytes that were given. The end: an error, or all is taken that can be.
pub(crate) fn drive<E: Copy + Debug, F: Debug>(
    bytes: &[u8],
    piece: usize,
    mut receive: impl FnMut(&mut [u8], &mut Vec<u8>) -> Result<MachineStep<E>, F>,
    mut see: impl FnMut(E, &[u8], &mut Vec<u8>),
) -> (Vec<u8>, Option<F>) {
    let (mut held, mut sent, mut out) = (Vec::new(), Vec::new(), Vec::new());
    for piece in bytes.chunks(piece.max(1)) {
        held.extend_from_slice(piece);
        loop {
            let step = match receive(&mut held, &mut out) {
                Ok(step) => step,
                Err(e) => {
                    sent.append(&mut out);
                    return (sent, Some(e));
                }
            };
            assert!(step.taken <= held.len(), "{step:?}");
            if let Some(event) = step.event {
                see(event, held.get(..step.taken).expect("taken"), &mut out);
            }
            assert!(out.len() <= super::MAX_OUT_BYTES, "{}", out.len());
            held.drain(..step.taken);
            if step.is_idle() {
                if out.is_empty() {
                    break;
                }
                sent.append(&mut out);
            }
        }
    }
    (sent, None)
}

/// The bytes of `span`, which must lie within `taken`.
pub(crate) fn piece(span: Span, taken: &[u8]) -> Vec<u8> {
    assert_eq!(span.slice_of(taken).len(), span.len, "{span:?}");
    span.slice_of(taken).to_vec()
}
