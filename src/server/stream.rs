//! Frames of an interactive stream on the local socket (`Upgrade: picolet-stream`).
//!
//! ```text
//! ┌─────────┬────────────────────┬─────────────┐
//! │ channel │ length, big endian │ payload     │
//! │ 1 byte  │ 4 bytes            │ ≤ MAX_FRAME │
//! └─────────┴────────────────────┴─────────────┘
//! ```
//!
//! Channel numbers are those of the Kubernetes remote command protocol v5.

/// Protocol name in `Upgrade`.
pub const PROTOCOL: &str = "picolet-stream";
/// Payload bytes of one frame.
pub const MAX_FRAME: usize = 32 * 1024;
/// Bytes of a frame's head.
pub const HEAD_BYTES: usize = 5;

/// Standard input, client to agent.
pub const STDIN: u8 = 0;
/// Standard output.
pub const STDOUT: u8 = 1;
/// Standard error.
pub const STDERR: u8 = 2;
/// The end: a `metav1.Status` as JSON.
pub const ERROR: u8 = 3;
/// Terminal size, `{"Width":80,"Height":24}`.
pub const RESIZE: u8 = 4;
/// The payload's one byte names a channel that its sender has closed.
pub const CLOSE: u8 = 255;

/// Head of a frame.
///
/// # Panics
/// Never for payloads up to [`MAX_FRAME`].
#[must_use]
pub fn head(channel: u8, length: usize) -> [u8; HEAD_BYTES] {
    let [a, b, c, d] = u32::try_from(length)
        .expect("a frame's length fits")
        .to_be_bytes();
    [channel, a, b, c, d]
}

/// Channel and payload length; `None` if the length is over the limit.
#[must_use]
pub fn parse_head(bytes: [u8; HEAD_BYTES]) -> Option<(u8, usize)> {
    let length =
        usize::try_from(u32::from_be_bytes([bytes[1], bytes[2], bytes[3], bytes[4]])).ok()?;
    (length <= MAX_FRAME).then_some((bytes[0], length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads() {
        assert_eq!(parse_head(head(STDOUT, 300)), Some((STDOUT, 300)));
        assert_eq!(parse_head([0, 0xff, 0, 0, 0]), None);
    }
}
