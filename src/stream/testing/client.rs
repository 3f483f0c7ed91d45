//! The client's side.

use alloc::vec::Vec;

use crate::stream::spdy::{HeaderCompressor, HeaderDecompressor, encode_headers, wire_head};

/// Frames as a SPDY client sends them.
#[derive(Default)]
pub(crate) struct SpdyClient {
    compress: HeaderCompressor,
    /// Bytes that were sent.
    pub(crate) bytes: Vec<u8>,
}

impl SpdyClient {
    /// Sends a control frame of any kind.
    pub(crate) fn control(&mut self, kind: u8, flags: u8, payload: &[u8]) -> &mut Self {
        let [_, x, y, z] = u32::try_from(payload.len()).expect("short").to_be_bytes();
        self.bytes.extend([0x80, 3, 0, kind, flags, x, y, z]);
        self.bytes.extend_from_slice(payload);
        self
    }

    /// SYN_STREAM.
    pub(crate) fn open(&mut self, id: u32, fin: bool, headers: &[(&str, &str)]) -> &mut Self {
        self.open_with(id, u8::from(fin), headers)
    }

    /// SYN_STREAM with any flags.
    pub(crate) fn open_with(&mut self, id: u32, flags: u8, headers: &[(&str, &str)]) -> &mut Self {
        let mut payload = id.to_be_bytes().to_vec();
        payload.extend([0; 6]);
        payload.extend(self.compress.compress_block(&encode_headers(headers)));
        self.control(1, flags, &payload)
    }

    /// HEADERS.
    pub(crate) fn headers(&mut self, id: u32, fin: bool, headers: &[(&str, &str)]) -> &mut Self {
        let mut payload = id.to_be_bytes().to_vec();
        payload.extend(self.compress.compress_block(&encode_headers(headers)));
        self.control(8, u8::from(fin), &payload)
    }

    /// A stream of exec.
    pub(crate) fn stream(&mut self, id: u32, kind: &str) -> &mut Self {
        self.open(id, false, &[("streamtype", kind)])
    }

    /// A stream of a forwarded port.
    pub(crate) fn forward(&mut self, id: u32, kind: &str, port: &str, request: &str) -> &mut Self {
        let headers = [("port", port), ("requestid", request), ("streamtype", kind)];
        let headers = headers.iter().filter(|(_, v)| !v.is_empty());
        self.open(id, false, &headers.copied().collect::<Vec<_>>())
    }

    /// DATA.
    pub(crate) fn data(&mut self, id: u32, fin: bool, payload: &[u8]) -> &mut Self {
        let length = u32::try_from(payload.len()).expect("short");
        self.bytes.extend(wire_head(id, fin, length));
        self.bytes.extend_from_slice(payload);
        self
    }

    /// A control frame of numbers.
    pub(crate) fn numbers(&mut self, kind: u8, numbers: &[u32]) -> &mut Self {
        let payload: Vec<u8> = numbers.iter().flat_map(|n| n.to_be_bytes()).collect();
        self.control(kind, 0, &payload)
    }

    /// RST_STREAM: cancel.
    pub(crate) fn reset(&mut self, id: u32) -> &mut Self {
        self.numbers(3, &[id, 5])
    }
}

/// Reads frames as a SPDY client does; returns a line for each: `reply 1`, `data 1 "x" fin`, `reset 1 5`, `ping 1`,
/// `go away 1 0`, `window 1 2`.
pub(crate) fn spdy_frames(mut bytes: &[u8]) -> Vec<String> {
    let mut inflate = HeaderDecompressor::new();
    let mut frames = Vec::new();
    while let Some((head, rest)) = bytes.split_first_chunk::<8>() {
        let [a, b, c, d, flags, x, y, z] = *head;
        let length = u32::from_be_bytes([0, x, y, z]);
        let (payload, rest) = rest.split_at(usize::try_from(length).expect("length"));
        bytes = rest;
        let number = |at: usize| {
            let four = payload[at..at + 4].try_into().expect("four");
            u32::from_be_bytes(four)
        };
        frames.push(match (a & 0x80, d) {
            (0, _) => {
                let id = u32::from_be_bytes([a, b, c, d]);
                let fin = if flags == 1 { " fin" } else { "" };
                format!("data {id} {:?}{fin}", String::from_utf8_lossy(payload))
            }
            (_, 2) => {
                let mut block = Vec::new();
                inflate
                    .decompress_into(&payload[4..], &mut block)
                    .expect("headers");
                assert_eq!(block, [0; 4], "no headers");
                format!("reply {}", number(0))
            }
            (_, 3) => format!("reset {} {}", number(0), number(4)),
            (_, 6) => format!("ping {}", number(0)),
            (_, 7) => format!("go away {} {}", number(0), number(4)),
            (_, 9) => format!("window {} {}", number(0), number(4)),
            (_, other) => panic!("frame {other}"),
        });
    }
    assert!(bytes.is_empty(), "half a frame");
    frames
}

/// A frame as a WebSocket client sends it; `first` is its first byte.
pub(crate) fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
    let key = [0x37, 0xfa, 0x21, 0x3d];
    let mut frame = alloc::vec![first];
    match payload.len() {
        short @ ..126 => frame.push(0x80 | u8::try_from(short).expect("short")),
        long => {
            frame.push(0x80 | 126);
            frame.extend(u16::try_from(long).expect("short").to_be_bytes());
        }
    }
    frame.extend(key);
    frame.extend(payload.iter().zip(key.iter().cycle()).map(|(b, k)| b ^ k));
    frame
}

/// Reads frames as a WebSocket client does; returns the first byte and the payload of each.
pub(crate) fn ws_frames(mut bytes: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut frames = Vec::new();
    while let [first, length, rest @ ..] = bytes {
        let (length, rest) = match (length, rest) {
            (126, [a, b, rest @ ..]) => (usize::from(u16::from_be_bytes([*a, *b])), rest),
            (short, rest) => (usize::from(*short), rest),
        };
        let (payload, rest) = rest.split_at(length);
        frames.push((*first, payload.to_vec()));
        bytes = rest;
    }
    assert!(bytes.is_empty(), "half a frame");
    frames
}
