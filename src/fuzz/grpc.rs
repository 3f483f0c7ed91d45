//! Entry points of the fuzz targets into gRPC's protocols.

use alloc::collections::BTreeMap;
use core::time::Duration;

use crate::grpc::{
    hpack::{HeaderField, HpackDecoder, HpackEncoder},
    http2::{ConnectionRole, Http2Connection, Http2ErrorCode, Http2Event},
    proto::{self, Limits, Message as _, message},
};

const NOW: Duration = Duration::from_secs(1);
/// Most bytes of a block's fields.
const LIST_BYTES: usize = 16 * 1024;
/// Bound for the bytes that wait to be sent if the peer does not read: the limit of a connection, and an answer.
const OUTPUT_BYTES: usize = 320 * 1024;

const REQUEST: [(&[u8], &[u8]); 4] = [
    (b":method", b"POST"),
    (b":path", b"/runtime.v1.RuntimeService/Version"),
    (b":authority", b"localhost"),
    (b"content-type", b"application/grpc"),
];
const ANSWER: [(&[u8], &[u8]); 1] = [(b":status", b"200")];

/// Feeds a connection. The first byte of `data` chooses its role, the rest is received: once whole and once in pieces,
/// with the same outcome.
pub(super) fn http2(data: &[u8]) -> String {
    let Some((first, bytes)) = data.split_first() else {
        return String::new();
    };
    let role = [ConnectionRole::Client, ConnectionRole::Server][usize::from(first & 1)];
    let whole = converse(role, bytes, usize::MAX);
    let size = 1 + bytes.len() % 7;
    assert_eq!(whole, converse(role, bytes, size), "in pieces of {size}");
    let mut kinds = whole.0;
    kinds.truncate(6);
    kinds.concat()
}

/// Runs a conversation with `bytes` received in pieces of `size`. Returns the events, and the bytes of all answers.
fn converse(role: ConnectionRole, bytes: &[u8], size: usize) -> (Vec<String>, Vec<u8>) {
    let mut connection = Http2Connection::new(role);
    if role == ConnectionRole::Client {
        for _ in 0..3 {
            let id = connection.open_stream(REQUEST).expect("room");
            connection.send_payload(id, vec![b'x'; 70_000]);
            connection.end_stream(id, Vec::new());
        }
    }
    let (mut said, mut held) = (Vec::new(), Vec::new());
    for piece in bytes.chunks(size.max(1)) {
        held.extend_from_slice(piece);
        let mut at = 0;
        loop {
            match connection.receive_frame(&held[at..], NOW) {
                Ok(step) => {
                    if let Some(event) = &step.event {
                        said.push(kind(event));
                    }
                    let (taken, wanted) = (step.taken, step.event.map(|e| react(&e)));
                    if taken == 0 {
                        break;
                    }
                    at += taken;
                    if let Some(act) = wanted {
                        act(&mut connection);
                    }
                }
                Err(fault) => {
                    said.push(fault.to_string());
                    return (said, drain(&mut connection));
                }
            }
        }
        held.drain(..at);
    }
    (said, drain(&mut connection))
}

fn kind(event: &Http2Event<'_>) -> String {
    match event {
        Http2Event::Headers { fields, is_end, .. } => {
            format!("headers {} {is_end};", fields.is_some())
        }
        Http2Event::Data { is_end, .. } => format!("data {is_end};"),
        Http2Event::Reset { reason, .. } => format!("reset {reason:?};"),
        Http2Event::GoAway { .. } => "gone;".into(),
    }
}

/// Reacts as a server or client: payload is read, some streams are answered, some given up.
fn react(event: &Http2Event<'_>) -> Box<dyn FnOnce(&mut Http2Connection)> {
    match *event {
        Http2Event::Headers { id, .. } if id % 8 == 7 => {
            Box::new(move |c| c.reset_stream(id, Http2ErrorCode::CANCEL))
        }
        Http2Event::Headers { id, .. } => Box::new(move |c| {
            c.send_headers(id, ANSWER);
            c.send_payload(id, vec![b'y'; 1000]);
        }),
        Http2Event::Data { id, bytes, is_end } => {
            let len = bytes.len();
            Box::new(move |c| {
                c.release_payload(id, len);
                if is_end {
                    c.end_stream(id, vec![(b"grpc-status".to_vec(), b"0".to_vec())]);
                }
            })
        }
        Http2Event::Reset { .. } | Http2Event::GoAway { .. } => Box::new(|_| {}),
    }
}

/// Sends everything, and returns it. Only bytes that need no window may wait, fewer than [`OUTPUT_BYTES`] at a time.
fn drain(connection: &mut Http2Connection) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let out = connection.next_output(NOW).to_vec();
        assert!(out.len() < OUTPUT_BYTES, "{} bytes", out.len());
        if out.is_empty() {
            break;
        }
        connection.record_written(out.len());
        all.extend(out);
    }
    while connection
        .reset_stalled_stream(NOW + Duration::from_secs(3600))
        .is_some()
    {}
    all
}

/// Reads three header blocks of one connection. Fields that were read are written again, and read as the same fields.
pub(super) fn hpack(data: &[u8]) -> String {
    let (mut decoder, mut encoder, mut again) = (
        HpackDecoder::default(),
        HpackEncoder::default(),
        HpackDecoder::default(),
    );
    let mut kinds = String::new();
    for block in data.chunks(data.len().div_ceil(3).max(1)) {
        match decoder.decode(block, LIST_BYTES) {
            Ok(Some(fields)) => {
                let bytes: usize = fields.iter().map(|(n, v)| n.len() + v.len() + 32).sum();
                assert!(bytes <= LIST_BYTES);
                let mut out = Vec::new();
                encoder.encode(pairs(&fields), &mut out);
                let read = again.decode(&out, LIST_BYTES).expect("its own");
                assert_eq!(read, Some(fields));
                kinds += "fields ";
            }
            Ok(None) => kinds += "too many ",
            Err(e) => return kinds + &e.to_string(),
        }
    }
    kinds
}

fn pairs(fields: &[HeaderField]) -> impl Iterator<Item = (&[u8], &[u8])> {
    fields.iter().map(|(n, v)| (n.as_slice(), v.as_slice()))
}

message! {
    struct Node {
        1 name: String,
        2 nodes: Vec<Node>,
        3 number: i32,
    }
}
message! {
    struct All {
        1 int: i32,
        2 long: i64,
        3 zigzag: i32 as Zigzag,
        4 fixed: u32 as Fixed32,
        5 flag: bool,
        6 double: f64,
        7 text: String,
        8 bytes: Vec<u8>,
        9 node: Option<Node>,
        10 numbers: Vec<u64>,
        11 deltas: Vec<i64> as Zigzag,
        12 texts: Vec<String>,
        13 labels: BTreeMap<String, String>,
        14 by_number: BTreeMap<u32, Option<Node>>,
        15 path: Option<String>,
        16 handle: Option<u64>,
    } oneof [15 path, 16 handle]
}

/// Reads a message. A message that was read is written again, and read as the same message.
pub(super) fn protobuf(data: &[u8]) -> String {
    let limits = Limits {
        depth: 8,
        entries: 10_000,
        bytes: 1 << 20,
    };
    let mut message = All::default();
    if let Err(e) = proto::decode(&mut message, data, limits) {
        return e.to_string();
    }
    assert!(message.path.is_none() || message.handle.is_none());
    let bytes = proto::encode(&mut message);
    let mut again = All::default();
    proto::decode(&mut again, &bytes, Limits::default()).expect("its own");
    // The written forms are compared, for two NaNs are never equal.
    assert_eq!(proto::encode(&mut again), bytes);
    let filled = message.numbers().iter().filter(|n| {
        let slot = message.clone();
        is_filled(slot, **n)
    });
    let letters = filled.filter_map(|n| char::from_u32(u32::from(b'a') + n));
    letters.collect()
}

fn is_filled(mut message: All, number: u32) -> bool {
    match message.slot(number) {
        Some(proto::Slot::Number(_, numbers)) => numbers.count() > 0,
        Some(proto::Slot::Text(texts)) => texts.count() > 0,
        Some(proto::Slot::Message(messages)) => messages.count() > 0,
        Some(proto::Slot::Map(_)) | None => false,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Valid inputs.
    pub(in crate::fuzz) fn seeds(target: &str) -> Vec<Vec<u8>> {
        let trailers = || vec![(b"grpc-status".to_vec(), b"0".to_vec())];
        let send = |of: &mut Http2Connection| {
            let bytes = of.next_output(NOW).to_vec();
            of.record_written(bytes.len());
            bytes
        };
        let mut client = Http2Connection::new(ConnectionRole::Client);
        let mut server = Http2Connection::new(ConnectionRole::Server);
        let id = client.open_stream(REQUEST).expect("room");
        client.send_payload(id, vec![0, 0, 0, 0, 1, 9]);
        client.end_stream(id, Vec::new());
        let asked = send(&mut client);
        let mut rest = &asked[..];
        while let Ok(step) = server.receive_frame(rest, NOW)
            && step.taken > 0
        {
            rest = &rest[step.taken..];
        }
        server.send_headers(id, ANSWER);
        server.send_payload(id, vec![0, 0, 0, 0, 1, 9]);
        server.end_stream(id, trailers());
        let answered = send(&mut server);
        match target {
            "http2" => vec![[&[1][..], &asked].concat(), [&[0][..], &answered].concat()],
            "hpack" => {
                let (mut encoder, mut blocks) = (HpackEncoder::default(), Vec::new());
                for _ in 0..3 {
                    encoder.encode(REQUEST, &mut blocks);
                }
                encoder.resize(100);
                encoder.encode(ANSWER, &mut blocks);
                vec![blocks]
            }
            _ => {
                let node = Node {
                    name: "a".into(),
                    nodes: vec![Node::default(); 2],
                    number: -1,
                };
                let mut all = All {
                    int: 5,
                    long: -5,
                    zigzag: -7,
                    fixed: 1,
                    flag: true,
                    double: 0.5,
                    text: "text".into(),
                    bytes: vec![0xff; 3],
                    node: Some(node.clone()),
                    numbers: vec![1, 300],
                    deltas: vec![-1, 1],
                    texts: vec!["a".into(), String::new()],
                    labels: [("k".into(), "v".into())].into(),
                    by_number: [(1, Some(node))].into(),
                    path: Some("p".into()),
                    handle: None,
                };
                vec![proto::encode(&mut all)]
            }
        }
    }
}
