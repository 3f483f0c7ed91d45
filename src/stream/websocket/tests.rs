use alloc::vec::Vec;

use super::*;
use crate::stream::recorded::{self, EXEC_WEBSOCKET};
use crate::stream::testing::{drive, masked, piece, ws_frames};
use crate::stream::{MachineStep, OUT_BYTES};

const SIZES: [usize; 8] = [1, 2, 3, 4, 5, 7, 64, usize::MAX];

/// Serves a client; returns what the server sees, the pieces of a frame put together, and what it sends.
fn frames(bytes: &[u8], size: usize) -> (Vec<String>, Vec<u8>, Option<WebSocketError>) {
    let mut socket = WebSocket::new();
    let mut seen: Vec<String> = Vec::new();
    let (sent, error) = drive(
        bytes,
        size,
        |input, out| socket.receive_input(input, out),
        |event, taken, _| match event {
            WebSocketEvent::Data {
                kind,
                first,
                last,
                span,
                ..
            } => {
                let text = String::from_utf8_lossy(&piece(span, taken)).into_owned();
                if first {
                    seen.push(format!("{kind:?} "));
                }
                let message = seen.last_mut().expect("a first piece");
                message.push_str(&text);
                if last {
                    message.push('.');
                }
            }
            WebSocketEvent::Close { code } => seen.push(format!("close {code:?}")),
        },
    );
    (seen, sent, error)
}

/// The examples of RFC 6455 section 5.7, masked where they are a server's.
#[test]
fn messages() {
    let example = [
        0x81, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58,
    ];
    assert_eq!(masked(0x81, b"Hello"), example);
    let long = vec![b'x'; 300];
    let (texts, zeros) = (masked(0x82, &long), masked(0x82, b""));
    let pieces = [
        masked(0x01, b"Hel"),
        masked(0x89, b"are you there?"),
        masked(0x00, b""),
        masked(0x8a, b"unasked"),
        masked(0x80, b"lo"),
    ];
    let bytes = [&example[..], &pieces.concat(), &texts, &zeros].concat();
    for size in SIZES {
        let (seen, sent, error) = frames(&bytes, size);
        let binary = format!("Binary {}.", String::from_utf8_lossy(&long));
        assert_eq!(
            seen,
            ["Text Hello.", "Text Hello.", &binary, "Binary ."],
            "in pieces of {size}"
        );
        assert_eq!(ws_frames(&sent), [(0x8a, b"are you there?".to_vec())]);
        assert_eq!(error, None);
    }
}

#[test]
fn goodbyes() {
    for (name, payload, seen, answer) in [
        ("normal", &[3, 0xe8][..], "close Some(1000)", 1000),
        (
            "with words",
            &[3, 0xe9, b'b', b'y', b'e'],
            "close Some(1001)",
            1001,
        ),
        ("without", &[], "close None", 1000),
        ("an application's", &[0x0f, 0xa0], "close Some(4000)", 4000),
    ] {
        let bytes = [masked(0x88, payload), masked(0x82, b"late")].concat();
        for size in SIZES {
            let (events, sent, error) = frames(&bytes, size);
            assert_eq!(
                (events.as_slice(), error),
                (&[seen.to_owned()][..], None),
                "{name}"
            );
            let code: u16 = answer;
            assert_eq!(
                ws_frames(&sent),
                [(0x88, code.to_be_bytes().to_vec())],
                "{name}"
            );
        }
    }
    // Ours is answered, not answered again.
    let (mut socket, mut out) = (WebSocket::new(), Vec::new());
    socket.send_close(NORMAL, &mut out);
    socket.send_message(MessageKind::Binary, &[b"late"], &mut out);
    let mut answer = masked(0x88, &[3, 0xe8]);
    let step = socket.receive_input(&mut answer, &mut out).expect("frames");
    assert_eq!(step.event, Some(WebSocketEvent::Close { code: Some(1000) }));
    assert_eq!(ws_frames(&out).len(), 1);
}

#[test]
fn nonsense_is_refused() {
    let head = |bytes: &[u8]| [bytes, &[0; 12]].concat();
    for (name, bytes, code) in [
        ("no mask", head(&[0x82, 1]), 1002),
        ("compressed", head(&[0xc2, 0x81]), 1002),
        ("kind 3", head(&[0x83, 0x81]), 1002),
        ("kind 11", head(&[0x8b, 0x81]), 1002),
        ("a ping in pieces", head(&[0x09, 0x81]), 1002),
        ("a long ping", head(&[0x89, 0xfe, 0, 126]), 1002),
        ("a continuation of nothing", masked(0x80, b"x"), 1002),
        (
            "two at once",
            [masked(0x01, b"x"), masked(0x81, b"y")].concat(),
            1002,
        ),
        ("125 in two bytes", head(&[0x82, 0xfe, 0, 125]), 1002),
        (
            "65535 in eight",
            head(&[0x82, 0xff, 0, 0, 0, 0, 0, 0, 0xff, 0xff]),
            1002,
        ),
        (
            "a terabyte",
            head(&[0x82, 0xff, 0, 0, 1, 0, 0, 0, 0, 0]),
            1009,
        ),
        (
            "a negative length",
            head(&[0x82, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0]),
            1009,
        ),
        ("half a code", masked(0x88, &[3]), 1002),
        ("a code for logs only", masked(0x88, &[3, 0xee]), 1002),
        ("no code at all", masked(0x88, &[0, 1]), 1002),
    ] {
        for size in SIZES {
            let (_, _, error) = frames(&bytes, size);
            assert_eq!(error.map(|e| e.close_code()), Some(code), "{name}");
        }
    }
    let (mut socket, mut out) = (WebSocket::new(), Vec::new());
    assert!(socket.receive_input(&mut [0x82, 1], &mut out).is_err());
    assert_eq!(
        socket.receive_input(&mut [0x82, 1], &mut out),
        Ok(MachineStep::without_event(2))
    );
}

#[test]
fn a_peer_that_does_not_read_is_not_read() {
    let mut pings = masked(0x89, &[b'x'; 125]).repeat(1000);
    let (mut socket, mut out) = (WebSocket::new(), Vec::new());
    let step = socket.receive_input(&mut pings, &mut out).expect("frames");
    assert!(out.len() >= OUT_BYTES && out.len() < OUT_BYTES + 127);
    let next = socket.receive_input(&mut pings[step.taken..], &mut out);
    assert!(next.expect("frames").is_idle());
}

#[test]
fn lengths_of_what_is_sent() {
    for (length, head) in [
        (0, vec![0x82, 0]),
        (125, vec![0x82, 125]),
        (126, vec![0x82, 126, 0, 126]),
        (65_535, vec![0x82, 126, 0xff, 0xff]),
        (65_536, vec![0x82, 127, 0, 0, 0, 0, 0, 1, 0, 0]),
    ] {
        let mut out = Vec::new();
        WebSocket::new().send_message(MessageKind::Binary, &[&vec![7; length]], &mut out);
        assert_eq!(out[..head.len()], head);
        assert_eq!(out.len(), head.len() + length);
    }
}

fn channels(
    protocol: ChannelProtocol,
    bytes: &[u8],
    size: usize,
) -> (Vec<(u8, String)>, Option<WebSocketError>) {
    let mut channels = Channels::new(protocol);
    let mut seen: Vec<(u8, String)> = Vec::new();
    let (_, error) = drive(
        bytes,
        size,
        |input, out| channels.receive_input(input, out),
        |event, taken, _| match event {
            ChannelEvent::Data { channel, span } => {
                assert!(span.len > 0);
                let text = String::from_utf8_lossy(&piece(span, taken)).into_owned();
                match seen.last_mut() {
                    Some((last, data)) if *last == channel => data.push_str(&text),
                    _ => seen.push((channel, text)),
                }
            }
            ChannelEvent::End { channel } => seen.push((channel, "END".into())),
            ChannelEvent::Left => seen.push((99, "left".into())),
        },
    );
    (seen, error)
}

fn said(of: &[(u8, &str)]) -> Vec<(u8, String)> {
    of.iter()
        .map(|(c, text)| (*c, (*text).to_owned()))
        .collect()
}

// STREAM-10 STREAM-11
#[test]
fn channels_of_messages() {
    let plain = [
        masked(0x82, b"\x00some "),
        masked(0x81, b"\x00input"),
        masked(0x82, b""),
        masked(0x82, b"\x00"),
        masked(0x02, b"\x04{\"Width\""),
        masked(0x89, b"ping"),
        masked(0x80, b":1}"),
        masked(0x82, b"\xff\x00"),
        masked(0x88, b""),
    ]
    .concat();
    let base64 = [
        masked(0x81, b"0c29tZSA="),
        masked(0x82, b"0aW5wdXQ="),
        masked(0x81, b"0"),
        masked(0x01, b"4eyJX"),
        masked(0x89, b"ping"),
        masked(0x80, b"aWR0aCI6MX0="),
        masked(0x88, b""),
    ]
    .concat();
    for size in SIZES {
        let resize = (4, "{\"Width\":1}");
        let all = [(0, "some input"), resize, (255, "\0"), (99, "left")];
        for protocol in [
            ChannelProtocol::Unnamed,
            ChannelProtocol::Channel,
            ChannelProtocol::V4,
        ] {
            assert_eq!(channels(protocol, &plain, size), (said(&all), None));
        }
        let all = [(0, "some input"), resize, (0, "END"), (99, "left")];
        assert_eq!(
            channels(ChannelProtocol::V5, &plain, size),
            (said(&all), None)
        );
        let all = [(0, "some input"), resize, (99, "left")];
        for protocol in [ChannelProtocol::Base64, ChannelProtocol::V4Base64] {
            let seen = channels(protocol, &base64, size);
            assert_eq!(seen, (said(&all), None), "in pieces of {size}");
        }
        let kubectl = recorded::decode_recorded(EXEC_WEBSOCKET);
        let all = [(0, "some input\n"), (0, "END"), (99, "left")];
        assert_eq!(
            channels(ChannelProtocol::V5, &kubectl, size),
            (said(&all), None)
        );
    }
}

#[test]
fn messages_that_mean_nothing() {
    for (name, protocol, bytes) in [
        ("no base64", ChannelProtocol::Base64, masked(0x81, b"0c2!t")),
        (
            "half a group",
            ChannelProtocol::Base64,
            masked(0x81, b"0c29"),
        ),
        (
            "a group in two frames",
            ChannelProtocol::Base64,
            [masked(0x01, b"0c2"), masked(0x80, b"9t")].concat(),
        ),
        (
            "a close of nothing",
            ChannelProtocol::V5,
            masked(0x82, b"\xff"),
        ),
        (
            "a long close",
            ChannelProtocol::V5,
            masked(0x82, b"\xff\x00\x00"),
        ),
    ] {
        for size in SIZES {
            let (_, error) = channels(protocol, &bytes, size);
            assert_eq!(
                error.map(|e| e.close_code()),
                Some(1003),
                "{name}, in pieces of {size}"
            );
        }
    }
}

#[test]
fn channels_of_what_is_sent() {
    for (protocol, payload, frame) in [
        (
            ChannelProtocol::V4,
            &b"hello"[..],
            (0x82, &b"\x01hello"[..]),
        ),
        (ChannelProtocol::V4, b"", (0x82, b"\x01")),
        (ChannelProtocol::Base64, b"hello", (0x81, b"1aGVsbG8=")),
        (ChannelProtocol::Base64, b"", (0x81, b"1")),
        (ChannelProtocol::V4Base64, &[0, 255, 254], (0x81, b"1AP/+")),
    ] {
        let (mut channels, mut out) = (Channels::new(protocol), Vec::new());
        channels.send_message(1, payload, &mut out);
        assert_eq!(ws_frames(&out), [(frame.0, frame.1.to_vec())]);
        channels.send_close(NORMAL, &mut out);
        out.clear();
        channels.send_message(1, payload, &mut out);
        assert!(out.is_empty(), "closed");
    }
}

/// A client's side whose masking key is always this one.
fn client() -> WebSocket {
    WebSocket::new_client(|| [0x37, 0xfa, 0x21, 0x3d])
}

#[test]
fn a_client_masks_and_a_server_reads_it() {
    // K3ST-01 K3ST-08
    let (mut socket, mut sent) = (client(), Vec::new());
    let long = [vec![b'x'; 300], vec![b'y'; 70_000]];
    for payload in [&b"Hello"[..], b"", &long[0], &long[1]] {
        let (a, b) = payload.split_at(payload.len() / 2);
        socket.send_message(MessageKind::Binary, &[a, b], &mut sent);
    }
    socket.send_ping(&mut sent);
    // The example of RFC 6455 section 5.7, as a binary message.
    let example = [
        0x82, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58,
    ];
    assert_eq!(sent[..example.len()], example);
    for size in SIZES {
        let (seen, answer, error) = frames(&sent, size);
        let whole = long
            .each_ref()
            .map(|long| format!("Binary {}.", String::from_utf8_lossy(long)));
        assert_eq!(seen, ["Binary Hello.", "Binary .", &whole[0], &whole[1]]);
        assert_eq!(
            (ws_frames(&answer), error),
            (vec![(0x8a, Vec::new())], None)
        );
    }
    // What the server answers, and its own frames, have no mask.
    let (mut out, mut came) = (
        Vec::new(),
        vec![0x8a, 0, 0x89, 2, b'h', b'i', 0x02, 1, b'a', 0x80, 1, b'b'],
    );
    assert!(!socket.take_pong());
    let mut at = 0;
    let mut got = Vec::new();
    while at < came.len() {
        let step = socket
            .receive_input(&mut came[at..], &mut out)
            .expect("frames");
        if let Some(WebSocketEvent::Data { span, last, .. }) = step.event {
            got.push((span.slice_of(&came[at..]).to_vec(), last));
        }
        at += step.taken;
    }
    assert_eq!(got, [(b"a".to_vec(), false), (b"b".to_vec(), true)]);
    assert!(socket.take_pong() && !socket.take_pong());
    assert_eq!(out, masked_by(0x8a, b"hi"));
    // A server that masks is none.
    let wrong = socket.receive_input(&mut masked(0x82, b"x"), &mut out);
    assert_eq!(
        wrong,
        Err(WebSocketError::Protocol("a server's frame with a mask"))
    );
    out.clear();
    socket.send_close(1002, &mut out);
    socket.send_ping(&mut out);
    assert_eq!(out, masked_by(0x88, &[3, 0xea]));
}

/// A frame of the client of these tests.
fn masked_by(head: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![head, 0x80 | u8::try_from(payload.len()).expect("short")];
    let key = [0x37, 0xfa, 0x21, 0x3d];
    out.extend(key);
    out.extend(
        payload
            .iter()
            .zip(key.iter().cycle())
            .map(|(byte, key)| byte ^ key),
    );
    out
}
