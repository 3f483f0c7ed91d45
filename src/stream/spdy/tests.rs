use alloc::vec::Vec;

use miniz_oxide::deflate::core::{
    CompressorOxide, TDEFLFlush, TDEFLStatus, compress, create_comp_flags_from_zip_params,
};

use super::inflate::MAX_BLOCK_BYTES;
use super::*;
use crate::stream::recorded::{self, EXEC_SPDY, FORWARD_SPDY};
use crate::stream::testing::{SpdyClient, drive, piece, spdy_frames};
use crate::stream::{MAX_OUT_BYTES, OUT_BYTES, PAYLOAD_BYTES, Span};

/// Serves a client, accepting every stream; returns what the server sees, and what it sends.
fn serve(bytes: &[u8], size: usize) -> (Vec<String>, Vec<String>, Option<SpdyError>) {
    let session = core::cell::RefCell::new(SpdySession::new());
    let mut seen: Vec<(Option<SpdyStreamId>, String)> = Vec::new();
    let (sent, error) = drive(
        bytes,
        size,
        |input, out| session.borrow_mut().receive_input(input, out),
        |event, taken, out| {
            let mut session = session.borrow_mut();
            match event {
                SpdyEvent::Open { id, fin } => {
                    let kind = session.headers().get("streamtype").map(String::from);
                    session.accept_stream(id, out);
                    seen.push((
                        None,
                        format!("open {id} {} {fin}", kind.unwrap_or_default()),
                    ));
                }
                SpdyEvent::Data { id, span } => {
                    let text = String::from_utf8(piece(span, taken)).expect("text");
                    session.record_passed_on(id, span.len, out);
                    match seen.last_mut() {
                        Some((Some(last), data)) if *last == id => data.push_str(&text),
                        _ => seen.push((Some(id), format!("data {id} {text}"))),
                    }
                }
                SpdyEvent::End { id } => seen.push((None, format!("end {id}"))),
                SpdyEvent::Reset { id } => seen.push((None, format!("reset {id}"))),
                SpdyEvent::GoAway => seen.push((None, "go away".into())),
                SpdyEvent::Reply { id } => panic!("{id} is not ours"),
            }
        },
    );
    let seen = seen.into_iter().map(|(_, text)| text).collect();
    (seen, spdy_frames(&sent), error)
}

fn served(client: &SpdyClient) -> (Vec<String>, Vec<String>, Option<SpdyError>) {
    serve(&client.bytes, usize::MAX)
}

// STREAM-05 STREAM-06
#[test]
fn real_kubectl() {
    let bytes = recorded::decode_recorded(EXEC_SPDY);
    for size in [1, 2, 3, 5, 7, 8, 9, 64, usize::MAX] {
        let (seen, sent, error) = serve(&bytes, size);
        let expected = [
            "open 1 error false",
            "open 3 stdin false",
            "open 5 stdout false",
            "open 7 stderr false",
            "data 3 some input\n",
            "end 3",
            "reset 5",
            "reset 7",
            "reset 1",
            "go away",
        ];
        assert_eq!(seen, expected, "in pieces of {size}");
        assert_eq!(sent, ["reply 1", "reply 3", "reply 5", "reply 7"]);
        assert_eq!(error, None);
    }
    let mut session = SpdySession::new();
    let bytes = recorded::decode_recorded(FORWARD_SPDY);
    let step = session
        .receive_input(&bytes, &mut Vec::new())
        .expect("frames");
    assert_eq!(step.event, Some(SpdyEvent::Open { id: 1, fin: false }));
    let headers = session.headers();
    for (name, value) in [
        ("streamtype", Some("error")),
        ("port", Some("80")),
        ("requestid", Some("0")),
        ("other", None),
    ] {
        assert_eq!(headers.get(name), value, "{name}");
    }
}

#[test]
fn frames() {
    let mut client = SpdyClient::default();
    client
        .stream(1, "a")
        .numbers(6, &[7]) // a ping, and one that would answer ours
        .numbers(6, &[2])
        .control(10, 0, b"credentials are skipped")
        .data(1, false, b"x")
        .headers(1, true, &[("more", "h")])
        .data(1, false, b"behind its end")
        .open(3, true, &[("streamtype", "b")])
        .reset(3)
        .reset(3)
        .data(3, false, b"behind its reset")
        .stream(9, "ids may leap")
        .numbers(9, &[9, 1])
        .numbers(7, &[0, 0]);
    let (seen, sent, error) = served(&client);
    assert_eq!(
        seen,
        [
            "open 1 a false",
            "data 1 x",
            "end 1",
            "open 3 b true",
            "reset 3",
            "open 9 ids may leap false",
            "go away"
        ]
    );
    assert_eq!(sent, ["reply 1", "ping 7", "reply 3", "reply 9"]);
    assert_eq!(error, None);
}

#[test]
fn nonsense_is_refused() {
    type Say = fn(&mut SpdyClient);
    let block = |text: &'static str| SpdyError::Headers(text);
    let cases: [(&str, Say, SpdyError); 16] = [
        (
            "SPDY/2",
            |c| c.bytes.extend([0x80, 2, 0, 6, 0, 0, 0, 4]),
            SpdyError::Version(2),
        ),
        (
            "TLS",
            |c| c.bytes.extend([0x16, 3, 1, 2, 0, 1, 0, 1]),
            SpdyError::Stream(0x1603_0102),
        ),
        (
            "a long ping",
            |c| {
                c.numbers(6, &[1, 1]);
            },
            SpdyError::Length { kind: 6, length: 8 },
        ),
        (
            "a short reset",
            |c| {
                c.numbers(3, &[1]);
            },
            SpdyError::Length { kind: 3, length: 4 },
        ),
        (
            "headers of 9 KiB",
            |c| c.bytes.extend([0x80, 3, 0, 1, 0, 0, 0x24, 0]),
            SpdyError::Length {
                kind: 1,
                length: 0x2400,
            },
        ),
        (
            "stream 0",
            |c| {
                c.stream(0, "");
            },
            SpdyError::Stream(0),
        ),
        (
            "a server's stream",
            |c| {
                c.stream(2, "");
            },
            SpdyError::Stream(2),
        ),
        (
            "a stream twice",
            |c| {
                c.stream(3, "").stream(3, "");
            },
            SpdyError::Stream(3),
        ),
        (
            "a stream before",
            |c| {
                c.stream(3, "").stream(1, "");
            },
            SpdyError::Stream(1),
        ),
        (
            "data for none",
            |c| {
                c.data(1, false, b"x");
            },
            SpdyError::Stream(1),
        ),
        (
            "data for 0",
            |c| {
                c.data(0, false, b"");
            },
            SpdyError::Stream(0),
        ),
        (
            "two settings, not three",
            |c| {
                c.numbers(4, &[3, 7, 1, 7, 1]);
            },
            SpdyError::Length {
                kind: 4,
                length: 20,
            },
        ),
        (
            "a window over 31 bits",
            |c| {
                c.numbers(4, &[1, 7, 1 << 31]);
            },
            SpdyError::Window,
        ),
        (
            "no zlib",
            |c| {
                c.control(
                    1,
                    0,
                    &[0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0x78, 0x9c, 1, 2, 3, 4],
                );
            },
            block("not compressed with SPDY's dictionary"),
        ),
        (
            "no headers at all",
            |c| {
                c.control(1, 0, &[0, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
            },
            block("cut short"),
        ),
        (
            "a capital",
            |c| {
                c.open(1, false, &[("streamType", "x")]);
            },
            block("an invalid name"),
        ),
    ];
    for (name, say, expected) in cases {
        let mut client = SpdyClient::default();
        say(&mut client);
        // Big enough for what a head promises.
        client.bytes.extend([0; 4]);
        for size in [1, usize::MAX] {
            assert_eq!(serve(&client.bytes, size).2, Some(expected), "{name}");
        }
    }
    let mut session = SpdySession::new();
    let mut out = Vec::new();
    assert!(session.receive_input(&[0; 8], &mut out).is_err());
    let rest = session.receive_input(b"whatever comes", &mut out);
    assert_eq!(
        rest,
        Ok(crate::stream::MachineStep::without_event(14)),
        "nothing is understood"
    );
    session.send_go_away(GoAwayReason::ProtocolError, &mut out);
    session.send_go_away(GoAwayReason::Ok, &mut out);
    assert_eq!(spdy_frames(&out), ["go away 0 1"]);
}

#[test]
fn header_blocks() {
    let number = |n: u32| n.to_be_bytes().to_vec();
    let text = |t: &str| [number(u32::try_from(t.len()).expect("short")), t.into()].concat();
    for (name, block, expected) in [
        ("none", number(0), Ok(())),
        ("one", [number(1), text("a"), text("")].concat(), Ok(())),
        (
            "cut",
            [number(1), text("a")].concat(),
            Err(SpdyError::Headers("cut short")),
        ),
        ("too many", number(33), Err(SpdyError::Headers("too many"))),
        (
            "a huge name",
            [number(1), number(u32::MAX)].concat(),
            Err(SpdyError::Headers("cut short")),
        ),
        (
            "twice",
            [number(2), text("a"), text("1"), text("a"), text("2")].concat(),
            Err(SpdyError::Headers("a name twice")),
        ),
        (
            "more",
            [number(0), text("a")].concat(),
            Err(SpdyError::Headers("more than they say")),
        ),
    ] {
        assert_eq!(SpdyHeaders::new(&block).check_form(), expected, "{name}");
    }
    let lists = [number(1), text("a"), text("1\x002")].concat();
    assert_eq!(
        SpdyHeaders::new(&lists).get("a"),
        Some("1"),
        "the first value"
    );
    assert_eq!(SpdyHeaders::new(&[]).get("a"), None);
}

/// A peer's compressor, cut at frames as Go's and zlib's are.
struct Deflate(CompressorOxide);

impl Deflate {
    fn new() -> Self {
        // Raw: the zlib head with SPDY's dictionary is put in front by hand.
        Self(CompressorOxide::new(create_comp_flags_from_zip_params(
            6, -15, 0,
        )))
    }

    fn block(&mut self, plain: &[u8]) -> Vec<u8> {
        let mut out = vec![0; plain.len() * 2 + 256];
        let (status, used, made) = compress(&mut self.0, plain, &mut out, TDEFLFlush::Sync);
        assert_eq!((status, used), (TDEFLStatus::Okay, plain.len()));
        out.truncate(made);
        out
    }
}

/// Far more than a window, with matches everywhere, in pieces of every size.
#[test]
fn one_compression_context_for_ever() {
    let (mut peer, mut ours) = (Deflate::new(), HeaderDecompressor::new());
    let mut packed = vec![0x78, 0xf9, 0xe3, 0xc6, 0xa7, 0xc2];
    let mut seed = 1_u32;
    let mut random = move || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        seed >> 8
    };
    let mut total = 0;
    let mut before: Vec<Vec<u8>> = vec![];
    for n in 0..2000_usize {
        let mut plain = format!("{n} {}", random()).into_bytes();
        for _ in 0..random() % 20 {
            if let Some(old) = before.get(usize::try_from(random()).expect("small") % n.max(1)) {
                plain.extend_from_slice(&old[..old.len().min(100)]);
            }
        }
        plain.truncate(MAX_BLOCK_BYTES);
        packed.extend(peer.block(&plain));
        let mut block = Vec::new();
        for piece in packed.chunks(1 + n % 50) {
            ours.decompress_into(piece, &mut block).expect("deflate");
        }
        assert_eq!(block, plain, "{n}");
        packed.clear();
        total += plain.len();
        before.push(plain);
    }
    assert!(total > 300_000, "{total}");
}

#[test]
fn a_bomb_does_not_go_off() {
    let mut packed = vec![0x78, 0xf9, 0xe3, 0xc6, 0xa7, 0xc2];
    packed.extend(Deflate::new().block(&vec![0; 1 << 20]));
    assert!(packed.len() < 4 * 1024, "fits into a frame");
    let mut block = Vec::new();
    let error = HeaderDecompressor::new()
        .decompress_into(&packed, &mut block)
        .expect_err("a bomb");
    assert_eq!(error, SpdyError::Headers("too long"));
    assert!(block.len() <= MAX_BLOCK_BYTES);
}

#[test]
fn streams_have_a_limit() {
    let mut client = SpdyClient::default();
    let last = u32::try_from(MAX_STREAMS).expect("small") * 2 - 1;
    for id in (1..=last + 4).step_by(2) {
        client.stream(id, "x");
    }
    let (_, sent, error) = served(&client);
    assert_eq!(error, None);
    assert_eq!(sent.len(), MAX_STREAMS + 2);
    let refused = [last + 2, last + 4].map(|id| format!("reset {id} 3"));
    assert_eq!(sent[MAX_STREAMS..], refused);
}

fn open(ids: &[SpdyStreamId]) -> (SpdySession, Vec<u8>) {
    let mut client = SpdyClient::default();
    for id in ids {
        client.stream(*id, "x");
    }
    let (mut session, mut out) = (SpdySession::new(), Vec::new());
    let mut at = 0;
    while at < client.bytes.len() {
        let step = session
            .receive_input(&client.bytes[at..], &mut out)
            .expect("frames");
        at += step.taken;
    }
    for id in ids {
        session.accept_stream(*id, &mut out);
    }
    out.clear();
    (session, out)
}

#[test]
fn sending() {
    let (mut session, mut out) = open(&[1, 3]);
    assert_eq!(session.send_data(1, b"abc", &mut out), Ok(()));
    session.finish_stream(1, &mut out);
    session.finish_stream(1, &mut out);
    assert_eq!(
        session.send_data(1, b"late", &mut out),
        Err(StreamClosedError)
    );
    assert!(session.has_stream(1) && !session.is_stream_open(1));
    session.reset_stream(3, ResetReason::Cancel, &mut out);
    session.reset_stream(3, ResetReason::Cancel, &mut out);
    assert_eq!(
        session.send_data(3, b"late", &mut out),
        Err(StreamClosedError)
    );
    assert_eq!((session.has_stream(3), session.streams.len()), (false, 1));
    assert_eq!(
        spdy_frames(&out),
        ["data 1 \"abc\"", "data 1 \"\" fin", "reset 3 5"]
    );
    let mut client = SpdyClient::default();
    client.data(1, true, b"");
    session
        .receive_input(&client.bytes, &mut out)
        .expect("frames");
    assert_eq!(session.streams.len(), 0, "over in both directions");

    let mut client = SpdyClient::default();
    client.stream(1, "x");
    let mut session = SpdySession::new();
    session
        .receive_input(&client.bytes, &mut out)
        .expect("frames");
    assert_eq!(
        session.send_data(1, b"x", &mut out),
        Err(StreamClosedError),
        "not before the reply"
    );
}

/// spdystream keeps no windows: it may be sent any amount. A peer that keeps them must not be overrun.
#[test]
fn windows_of_the_peer() {
    let (mut session, mut out) = open(&[1, 3]);
    let big = vec![0; 100_000];
    session.send_data(1, &big, &mut out).expect("open");
    assert_eq!(session.sendable_bytes(1), usize::MAX, "no window");
    assert_eq!(session.sendable_bytes(7), 0, "no stream");

    let say = |session: &mut SpdySession, kind, numbers: &[u32]| {
        let mut client = SpdyClient::default();
        client.numbers(kind, numbers);
        session
            .receive_input(&client.bytes, &mut Vec::new())
            .expect("frames");
    };
    say(&mut session, 4, &[1, 7, 1000]);
    assert_eq!(
        (session.sendable_bytes(1), session.sendable_bytes(3)),
        (0, 1000),
        "from now on"
    );
    say(&mut session, 9, &[1, 99_500]);
    assert_eq!(session.sendable_bytes(1), 500);
    session.send_data(3, &big[..600], &mut out).expect("open");
    assert_eq!(session.sendable_bytes(3), 400);
    say(&mut session, 9, &[0, 35_200]);
    assert_eq!(
        (session.sendable_bytes(1), session.sendable_bytes(3)),
        (136, 136),
        "all streams together"
    );
    say(&mut session, 9, &[3, u32::MAX]);
    assert_eq!(session.sendable_bytes(3), 136);
    say(&mut session, 4, &[1, 4, 100]);
    assert_eq!(session.sendable_bytes(3), 136, "another setting");
}

#[test]
fn our_windows_open_when_payload_has_left() {
    let (mut session, mut out) = open(&[1, 3]);
    let client = |id| {
        let mut client = SpdyClient::default();
        client.data(id, false, &[b'x'; 40_000]);
        client.bytes
    };
    for id in [1, 3] {
        let step = session
            .receive_input(&client(id), &mut out)
            .expect("frames");
        assert!(matches!(step.event, Some(SpdyEvent::Data { .. })));
    }
    assert!(out.is_empty(), "nothing has left yet");
    session.record_passed_on(1, 20_000, &mut out);
    session.record_passed_on(3, 20_000, &mut out);
    assert_eq!(spdy_frames(&out), ["window 0 40000"]);
    out.clear();
    session.record_passed_on(1, 20_000, &mut out);
    assert_eq!(spdy_frames(&out), ["window 1 40000"]);
    out.clear();
    // What comes for a stream that is no more counts as passed on.
    session.reset_stream(3, ResetReason::Cancel, &mut out);
    out.clear();
    let bytes = client(3);
    let mut taken = 0;
    while taken < bytes.len() {
        taken += session
            .receive_input(&bytes[taken..], &mut out)
            .expect("frames")
            .taken;
    }
    assert_eq!(spdy_frames(&out), ["window 0 60000"]);
}

#[test]
fn a_peer_that_does_not_read_is_not_read() {
    let mut client = SpdyClient::default();
    for _ in 0..10_000 {
        client.numbers(6, &[1]);
    }
    let (mut session, mut out) = (SpdySession::new(), Vec::new());
    let step = session
        .receive_input(&client.bytes, &mut out)
        .expect("frames");
    assert!(out.len() >= OUT_BYTES && out.len() < OUT_BYTES + 100);
    assert_eq!(step.taken, out.len());
    let next = session.receive_input(&client.bytes[step.taken..], &mut out);
    assert!(next.expect("frames").is_idle());
}

/// `out` stays below its limit when all streams end at once.
#[test]
fn the_end_of_all_streams_fits() {
    let ids: Vec<u32> = (0..u32::try_from(MAX_STREAMS).expect("small"))
        .map(|n| n * 2 + 1)
        .collect();
    let (mut session, mut out) = open(&ids);
    out.resize(OUT_BYTES - 1, 0);
    session
        .send_data(1, &[0; PAYLOAD_BYTES], &mut out)
        .expect("open");
    for id in ids {
        session.finish_stream(id, &mut out);
    }
    session.send_go_away(GoAwayReason::Ok, &mut out);
    assert!(out.len() <= MAX_OUT_BYTES, "{}", out.len());
}

/// Bytes that reach a server after it has closed destroy the data still on the way from it: the client sends no
/// WINDOW_UPDATE, for the server does not heed it.
#[test]
fn a_client_opens_no_windows() {
    let (mut client, mut out) = (SpdySession::new_client(), Vec::new());
    let id = client.open_stream(&[], &mut out).expect("a stream");
    out.clear();
    client.record_passed_on(id, 1_000_000, &mut out);
    assert!(out.is_empty(), "{out:?}");
}

/// A client and a server understand each other; the server says what it hears.
#[test]
fn our_client_and_our_server() {
    let (mut client, mut server) = (SpdySession::new_client(), SpdySession::new());
    let (mut there, mut back) = (Vec::new(), Vec::new());
    let first = client
        .open_stream(&[("streamtype", "error")], &mut there)
        .expect("a stream");
    let second = client
        .open_stream(&[("port", "80"), ("streamtype", "data")], &mut there)
        .expect("a stream");
    assert_eq!((first, second), (1, 3));
    let early = client.send_data(first, b"early", &mut there);
    assert_eq!(early, Err(StreamClosedError), "it is not accepted yet");
    let mut heard = Vec::new();
    let mut take = |bytes: &mut Vec<u8>, session: &mut SpdySession, out: &mut Vec<u8>| {
        let mut events = Vec::new();
        loop {
            let step = session.receive_input(bytes, out).expect("valid");
            bytes.drain(..step.taken);
            if step.is_idle() {
                return events;
            }
            if let Some(SpdyEvent::Open { id, .. }) = step.event {
                heard.push((id, session.headers().get("streamtype").map(String::from)));
                session.accept_stream(id, out);
            }
            events.extend(step.event);
        }
    };
    take(&mut there, &mut server, &mut back);
    // A server's pings are even, and answered.
    back.extend([0x80, 3, 0, 6, 0, 0, 0, 4, 0, 0, 0, 2]);
    let events = take(&mut back, &mut client, &mut there);
    assert_eq!(
        events,
        [SpdyEvent::Reply { id: 1 }, SpdyEvent::Reply { id: 3 }]
    );
    assert_eq!(there, [0x80, 3, 0, 6, 0, 0, 0, 4, 0, 0, 0, 2]);
    there.clear();
    client.send_data(second, b"hi", &mut there).expect("open");
    client.finish_stream(second, &mut there);
    let span = Span { at: 8, len: 2 };
    let events = take(&mut there, &mut server, &mut back);
    assert_eq!(events.len(), 2, "{events:?}");
    assert!(matches!(events[0], SpdyEvent::Data { id: 3, span: got } if got.len == span.len));
    assert_eq!(events[1], SpdyEvent::End { id: 3 });
    server.send_go_away(GoAwayReason::Ok, &mut back);
    assert_eq!(
        take(&mut back, &mut client, &mut there),
        [SpdyEvent::GoAway]
    );
    assert!(
        client.open_stream(&[], &mut there).is_err(),
        "it wants no more"
    );
    assert!(
        server.open_stream(&[], &mut there).is_err(),
        "servers open none"
    );
    let open = |id: u32| SpdyClient::default().open(id, false, &[]).bytes.clone();
    assert_eq!(
        SpdySession::new_client().receive_input(&open(2), &mut there),
        Err(SpdyError::Stream(2)),
        "clients are opened none"
    );
    assert_eq!(heard, [(1, Some("error".into())), (3, Some("data".into()))]);
}
