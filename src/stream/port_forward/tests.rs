use alloc::vec::Vec;

use super::*;
use crate::api::MonoTime;
use crate::stream::recorded::{self, FORWARD_SPDY, FORWARD_TUNNEL};
use crate::stream::spdy::StreamClosedError;
use crate::stream::testing::{SpdyClient, drive, masked, piece, spdy_frames, ws_frames};
use crate::stream::websocket::ChannelProtocol;

/// Connections that echo, and end when the client does.
fn serve(
    mut streams: SpdyPortForward,
    bytes: &[u8],
    size: usize,
) -> (SpdyPortForward, Vec<String>, Vec<u8>) {
    let mut seen: Vec<String> = Vec::new();
    let shared = core::cell::RefCell::new(&mut streams);
    let (sent, error) = drive(
        bytes,
        size,
        |input, out| shared.borrow_mut().receive_input(input, MonoTime(0), out),
        |event, taken, out| {
            let mut streams = shared.borrow_mut();
            match event {
                SpdyPortEvent::Connect { pair, port } => seen.push(format!("{pair:?} to {port}")),
                SpdyPortEvent::Data { pair, span } => {
                    let data = piece(span, taken);
                    streams.record_passed_on(pair, data.len(), out);
                    // Gone, if the client wants no answer.
                    let _ = streams.send_data(pair, &data, out);
                    let text = String::from_utf8(data).expect("text");
                    let start = format!("{pair:?}: ");
                    match seen.last_mut() {
                        Some(last) if last.starts_with(&start) => last.push_str(&text),
                        _ => seen.push(start + &text),
                    }
                }
                SpdyPortEvent::End { pair } => {
                    streams.finish_sending(pair, out);
                    seen.push(format!("{pair:?} ends"));
                }
                SpdyPortEvent::Reset { pair } => seen.push(format!("{pair:?} reset")),
                SpdyPortEvent::Left => seen.push("left".into()),
            }
        },
    );
    if let Some(error) = error {
        seen.push(error.to_string());
    }
    (streams, seen, sent)
}

fn served(client: &SpdyClient) -> (SpdyPortForward, Vec<String>, Vec<String>) {
    let (streams, seen, sent) = serve(SpdyPortForward::new(), &client.bytes, usize::MAX);
    (streams, seen, spdy_frames(&sent))
}

// STREAM-12 STREAM-13 STREAM-14
#[test]
fn real_kubectl() {
    let expected = [
        "PairId(3) to 80",
        "PairId(3): ping 0",
        "PairId(3) ends",
        "PairId(7) to 80",
        "PairId(7): ping 1",
        "PairId(7) ends",
    ];
    for size in [1, 2, 3, 4, 5, 16, usize::MAX] {
        let (streams, seen, sent) = serve(
            SpdyPortForward::new(),
            &recorded::decode_recorded(FORWARD_SPDY),
            size,
        );
        assert_eq!(seen, expected, "in pieces of {size}");
        assert_eq!(streams.pairs.len(), 0);
        let plain = spdy_frames(&sent);
        let recorded = recorded::decode_recorded(FORWARD_TUNNEL);
        let (streams, seen, sent) = serve(SpdyPortForward::over_web_socket(), &recorded, size);
        assert_eq!(seen, expected, "tunnelled, in pieces of {size}");
        assert_eq!(streams.pairs.len(), 0);
        let messages = ws_frames(&sent);
        assert!(messages.iter().all(|(first, _)| *first == 0x82));
        let tunnelled: Vec<u8> = messages.into_iter().flat_map(|(_, m)| m).collect();
        if size > 16 {
            assert_eq!(spdy_frames(&tunnelled), plain);
        }
    }
}

// STREAM-12
#[test]
fn pairs() {
    type Say = fn(&mut SpdyClient);
    let cases: [(&str, Say, &[&str], &[&str]); 12] = [
        (
            "the data stream first",
            |c| {
                c.forward(1, "data", "80", "a")
                    .forward(3, "error", "80", "a");
                c.data(1, false, b"x");
            },
            &["PairId(1) to 80", "PairId(1): x"],
            &["reply 1", "reply 3", "data 1 \"x\""],
        ),
        (
            "two at once",
            |c| {
                c.forward(1, "error", "80", "a")
                    .forward(3, "error", "81", "b");
                c.forward(5, "data", "81", "b")
                    .forward(7, "data", "80", "a");
            },
            &["PairId(5) to 81", "PairId(7) to 80"],
            &["reply 1", "reply 3", "reply 5", "reply 7"],
        ),
        (
            "an old client without names",
            |c| {
                c.forward(1, "error", "80", "").forward(3, "data", "80", "");
            },
            &["PairId(3) to 80"],
            &["reply 1", "reply 3"],
        ),
        (
            "a name again",
            |c| {
                c.forward(1, "error", "80", "a")
                    .forward(3, "data", "80", "a");
                c.forward(5, "error", "80", "a")
                    .forward(7, "data", "80", "a");
            },
            &["PairId(3) to 80", "PairId(7) to 80"],
            &["reply 1", "reply 3", "reply 5", "reply 7"],
        ),
        (
            "ended before it is whole",
            |c| {
                c.forward(1, "data", "80", "a").data(1, true, b"");
                c.forward(3, "error", "80", "a");
            },
            &["PairId(1) to 80", "PairId(1) ends"],
            &["reply 1", "reply 3", "data 1 \"\" fin", "data 3 \"\" fin"],
        ),
        (
            "bad headers",
            |c| {
                c.forward(1, "data", "0", "a")
                    .forward(3, "data", "+80", "a");
                c.forward(5, "data", "65536", "a")
                    .forward(7, "data", "", "a");
                c.forward(9, "stdin", "80", "a").forward(11, "", "80", "a");
            },
            &[],
            &[
                "reset 1 1",
                "reset 3 1",
                "reset 5 1",
                "reset 7 1",
                "reset 9 1",
                "reset 11 1",
            ],
        ),
        (
            "two of a kind",
            |c| {
                c.forward(1, "error", "80", "a")
                    .forward(3, "error", "80", "a");
            },
            &[],
            &[
                "reply 1",
                "reset 3 1",
                "data 1 \"error processing stream\"",
                "reset 1 1",
            ],
        ),
        (
            "data before the connection",
            |c| {
                c.forward(1, "data", "80", "a")
                    .data(1, false, b"x")
                    .data(1, false, b"y");
            },
            &[],
            &["reply 1", "reset 1 1"],
        ),
        (
            "given up",
            |c| {
                c.forward(1, "error", "80", "a")
                    .forward(3, "data", "80", "a");
                c.reset(3).data(3, false, b"late");
            },
            &["PairId(3) to 80", "PairId(3) reset"],
            &["reply 1", "reply 3", "reset 1 5"],
        ),
        (
            "without its error stream",
            |c| {
                c.forward(1, "error", "80", "a")
                    .forward(3, "data", "80", "a");
                c.reset(1).data(3, true, b"x");
            },
            &["PairId(3) to 80", "PairId(3): x", "PairId(3) ends"],
            &["reply 1", "reply 3", "data 3 \"x\"", "data 3 \"\" fin"],
        ),
        (
            "half of it given up",
            |c| {
                c.forward(1, "error", "80", "a").reset(1);
                c.forward(3, "data", "80", "a");
            },
            &[],
            &["reply 1", "reply 3"],
        ),
        (
            "goodbye",
            |c| {
                c.forward(1, "error", "80", "a")
                    .data(1, false, b"?")
                    .numbers(7, &[0, 0]);
            },
            &["left"],
            &["reply 1"],
        ),
    ];
    for (name, say, events, frames) in cases {
        let mut client = SpdyClient::default();
        say(&mut client);
        let (_, seen, sent) = served(&client);
        assert_eq!(seen, events, "{name}");
        assert_eq!(sent, frames, "{name}");
    }
}

fn connected(ids: &[u32]) -> (SpdyPortForward, Vec<PairId>) {
    let mut client = SpdyClient::default();
    for id in ids {
        let name = id.to_string();
        client.forward(*id, "error", "80", &name);
        client.forward(id + 2, "data", "80", &name);
    }
    let (mut streams, mut pairs, mut out) = (SpdyPortForward::new(), Vec::new(), Vec::new());
    let mut at = 0;
    while at < client.bytes.len() {
        let step = streams.receive_input(&mut client.bytes[at..], MonoTime(0), &mut out);
        let step = step.expect("frames");
        if let Some(SpdyPortEvent::Connect { pair, .. }) = step.event {
            pairs.push(pair);
        }
        at += step.taken;
    }
    (streams, pairs)
}

// STREAM-13
#[test]
fn one_connection_fails_and_others_go_on() {
    let (mut streams, pairs) = connected(&[1, 5]);
    let [first, second] = pairs[..] else {
        panic!("{pairs:?}")
    };
    let mut out = Vec::new();
    streams.fail_pair(first, "connection refused", &mut out);
    streams.fail_pair(first, "connection refused", &mut out);
    assert_eq!(
        streams.send_data(first, b"x", &mut out),
        Err(StreamClosedError)
    );
    assert_eq!(streams.sendable_bytes(first), 0);
    streams.send_data(second, b"y", &mut out).expect("open");
    streams.finish_sending(second, &mut out);
    assert_eq!(streams.pairs.len(), 1, "the client may still send");
    streams.close_pair(second, &mut out);
    streams.close_pair(second, &mut out);
    assert_eq!(streams.pairs.len(), 0);
    streams.send_go_away(&mut out);
    assert_eq!(
        spdy_frames(&out),
        [
            "data 1 \"connection refused\"",
            "data 1 \"\" fin",
            "reset 3 5",
            "reset 1 5",
            "data 7 \"y\"",
            "data 7 \"\" fin",
            "data 5 \"\" fin",
            "reset 7 5",
            "reset 5 5",
            "go away 7 0"
        ]
    );
}

// A connection of which only the port would hear the end could not be counted any more.
#[test]
fn data_that_cannot_be_answered_is_refused() {
    for (flags, fin) in [(2, true), (3, false)] {
        for first in ["error", "data"] {
            let mut client = SpdyClient::default();
            for pair in 0..3 {
                let id = 4 * pair + 1;
                let name = pair.to_string();
                let headers = |kind| [("port", "80"), ("requestid", &*name), ("streamtype", kind)];
                let (error, data) = match first {
                    "error" => (id, id + 2),
                    _ => (id + 2, id),
                };
                if first == "error" {
                    client.open_with(error, 0, &headers("error"));
                }
                client.open_with(data, flags, &headers("data"));
                if first != "error" {
                    client.open_with(error, 0, &headers("error"));
                }
                if fin {
                    client.data(data, true, b"");
                }
            }
            let (streams, seen, sent) = served(&client);
            assert_eq!(seen, Vec::<String>::new(), "{flags} {first}");
            assert_eq!(streams.pairs.len(), 3, "they wait for their mates");
            let resets = sent.iter().filter(|frame| frame.starts_with("reset"));
            assert_eq!(resets.count(), 3, "{sent:?}");
        }
    }
}

// STREAM-12
#[test]
fn a_mate_that_does_not_come() {
    let mut client = SpdyClient::default();
    client
        .forward(1, "error", "80", "a")
        .forward(3, "data", "80", "b");
    let (mut streams, _, _) = served(&client);
    let at = MonoTime(0) + CREATION_TIMEOUT;
    assert_eq!(streams.next_timeout(), Some(at));
    let mut out = Vec::new();
    streams.handle_timeout(MonoTime(at.0 - 1), &mut out);
    assert_eq!(streams.pairs.len(), 2);
    streams.handle_timeout(at, &mut out);
    assert_eq!((streams.pairs.len(), streams.next_timeout()), (0, None));
    let mut frames = spdy_frames(&out);
    frames.sort();
    let text = "data 1 \"timed out waiting for streams\"";
    assert_eq!(frames, [text, "reset 1 5", "reset 3 5"]);
}

#[test]
fn connections_have_a_limit() {
    let mut client = SpdyClient::default();
    let most = u32::try_from(MAX_PAIRS).expect("small");
    for n in 0..=most {
        client.forward(2 * n + 1, "error", "80", &n.to_string());
    }
    let (streams, _, sent) = served(&client);
    assert_eq!(streams.pairs.len(), MAX_PAIRS);
    assert_eq!(sent.last(), Some(&format!("reset {} 3", 2 * most + 1)));
}

#[test]
fn what_is_wrong_with_a_tunnel() {
    for (bytes, why) in [
        (masked(0x81, b"text"), "text instead of SPDY"),
        (masked(0x82, &[0x16; 8]), "SPDY stream"),
        (vec![0x82, 1], "without mask"),
    ] {
        let (mut streams, seen, _) = serve(SpdyPortForward::over_web_socket(), &bytes, 3);
        assert!(seen.concat().contains(why), "{seen:?}");
        let mut out = Vec::new();
        streams.abort_session(
            PortForwardError::Spdy(crate::stream::spdy::SpdyError::Window),
            &mut out,
        );
        let frames = ws_frames(&out);
        assert_eq!(frames.len(), 2, "go away, and goodbye");
        assert_eq!(spdy_frames(&frames[0].1), ["go away 0 1"]);
        assert_eq!(frames[1], (0x88, vec![3, 0xe8]));
    }
    let (_, seen, sent) = serve(SpdyPortForward::over_web_socket(), &masked(0x88, b""), 1);
    assert_eq!(seen, ["left"]);
    assert_eq!(ws_frames(&sent).len(), 1);
}

/// An event of SPDY that needs no further byte is not held back until one comes.
#[test]
fn an_end_at_the_end_of_a_message() {
    let mut client = SpdyClient::default();
    client
        .forward(1, "error", "80", "a")
        .forward(3, "data", "80", "a");
    client.data(3, true, b"x");
    let bytes = masked(0x82, &client.bytes);
    for size in [1, 50, usize::MAX] {
        let (_, seen, _) = serve(SpdyPortForward::over_web_socket(), &bytes, size);
        assert_eq!(seen, ["PairId(3) to 80", "PairId(3): x", "PairId(3) ends"]);
    }
}

// STREAM-14
#[test]
fn ports_of_a_query() {
    let of = |values: &[&str]| {
        WebSocketPortForward::parse_ports(values.iter().copied()).map_err(|e| e.to_string())
    };
    let number = |text: &str| Err(format!("unable to parse {text:?} as a port"));
    assert_eq!(of(&["80"]), Ok(vec![80]));
    assert_eq!(of(&["80,90", "100"]), Ok(vec![80, 90, 100]));
    assert_eq!(of(&[]), Err("query parameter \"port\" is required".into()));
    for bad in ["", "0", "-1", "+1", "65536", "abc", " 1"] {
        assert_eq!(of(&[bad]), number(bad));
    }
    let many = vec!["1"; 128];
    assert_eq!(of(&many), Err("more than 127 ports".into()));
}

// STREAM-14
#[test]
fn ports_by_channels() {
    for protocol in [ChannelProtocol::V4, ChannelProtocol::V4Base64] {
        let mut out = Vec::new();
        let mut ports = WebSocketPortForward::new(protocol, vec![80, 443], &mut out);
        ports.send_data(1, b"hi", &mut out);
        ports.fail_port(0, "refused", &mut out);
        ports.send_close(crate::stream::websocket::NORMAL, &mut out);
        let messages: Vec<_> = ws_frames(&out).into_iter().map(|(_, m)| m).collect();
        let plain: [&[u8]; 7] = [
            &[0, 80, 0],
            &[1, 80, 0],
            &[2, 187, 1],
            &[3, 187, 1],
            b"\x02hi",
            b"\x01refused",
            &[3, 232],
        ];
        let base64: [&[u8]; 7] = [
            b"0UAA=",
            b"1UAA=",
            b"2uwE=",
            b"3uwE=",
            b"2aGk=",
            b"1cmVmdXNlZA==",
            &[3, 232],
        ];
        let expected = if protocol == ChannelProtocol::V4 {
            plain
        } else {
            base64
        };
        assert_eq!(messages, expected);
    }
    let mut ports = WebSocketPortForward::new(ChannelProtocol::V4, vec![80, 443], &mut Vec::new());
    let bytes = [
        masked(0x82, b"\x02x"),
        masked(0x82, b"\x01on an error channel"),
        masked(0x82, b"\x04of no port"),
        masked(0x82, b"\x00y"),
        masked(0x88, b""),
    ];
    let mut seen = Vec::new();
    drive(
        &bytes.concat(),
        4,
        |input, out| ports.receive_input(input, out),
        |event, taken, _| {
            seen.push(match event {
                WebSocketPortEvent::Data { index, span } => (index, piece(span, taken)),
                WebSocketPortEvent::Left => (9, vec![]),
            });
        },
    );
    assert_eq!(seen, [(1, b"x".to_vec()), (0, b"y".to_vec()), (9, vec![])]);
    assert_eq!(ports.ports(), [80, 443]);
}
