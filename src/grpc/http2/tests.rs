//! Two connections that speak with each other, and peers that do not keep to the rules.

use super::{frame::flag, *};

const START: Duration = Duration::from_secs(100);
const REQUEST: [(&[u8], &[u8]); 3] = [
    (b":method", b"POST"),
    (b":path", b"/a.B/C"),
    // grpc-C on the socket /run/a.sock.
    (b":authority", b"%2Frun%2Fa.sock"),
];
const OK: [(&[u8], &[u8]); 1] = [(b":status", b"200")];

/// An event that owns what it says.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Said {
    Headers(Http2StreamId, Option<usize>, bool),
    Data(Http2StreamId, Vec<u8>, bool),
    Reset(Http2StreamId, Http2ErrorCode),
    GoAway(Http2StreamId, Http2ErrorCode),
}

fn said(event: &Http2Event<'_>) -> Said {
    match event {
        Http2Event::Headers { id, fields, is_end } => {
            Said::Headers(*id, fields.as_ref().map(Vec::len), *is_end)
        }
        Http2Event::Data { id, bytes, is_end } => Said::Data(*id, bytes.to_vec(), *is_end),
        Http2Event::Reset { id, reason } => Said::Reset(*id, *reason),
        Http2Event::GoAway { last, reason } => Said::GoAway(*last, *reason),
    }
}

fn feed(
    to: &mut Http2Connection,
    mut bytes: &[u8],
    now: Duration,
) -> Result<Vec<Said>, ConnectionFault> {
    let mut all = Vec::new();
    loop {
        let step = to.receive_frame(bytes, now)?;
        if step.taken == 0 {
            assert!(step.event.is_none());
            return Ok(all);
        }
        all.extend(step.event.as_ref().map(said));
        bytes = &bytes[step.taken..];
    }
}

fn flush(from: &mut Http2Connection) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let out = from.next_output(START).to_vec();
        if out.is_empty() {
            return all;
        }
        from.record_written(out.len());
        all.extend(out);
    }
}

/// Lets both sides speak until both are silent; returns the events of the client, and of the server.
fn talk(client: &mut Http2Connection, server: &mut Http2Connection) -> (Vec<Said>, Vec<Said>) {
    let (mut of_client, mut of_server) = (Vec::new(), Vec::new());
    loop {
        let asked = flush(client);
        of_server.extend(feed(server, &asked, START).expect("the server understands"));
        let answered = flush(server);
        of_client.extend(feed(client, &answered, START).expect("the client understands"));
        for (side, seen) in [(&mut *client, &of_client), (&mut *server, &of_server)] {
            for event in seen {
                if let Said::Data(id, bytes, _) = event {
                    side.release_payload(*id, bytes.len());
                }
            }
        }
        if asked.is_empty() && answered.is_empty() {
            return (of_client, of_server);
        }
    }
}

fn frame(kind: u8, flags: u8, id: Http2StreamId, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    frame::put_frame(&mut out, kind, flags, id, payload);
    out
}

fn block(fields: &[(&[u8], &[u8])]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut encoder = HpackEncoder::default();
    // So that each block stands for itself.
    encoder.resize(0);
    encoder.encode(fields.iter().copied(), &mut out);
    out
}

fn headers(flags: u8, id: Http2StreamId, fields: &[(&[u8], &[u8])]) -> Vec<u8> {
    frame(kind::HEADERS, flags | flag::END_HEADERS, id, &block(fields))
}

fn request(id: Http2StreamId) -> Vec<u8> {
    headers(0, id, &REQUEST)
}

/// A server, after the preface of its client.
fn server() -> Http2Connection {
    let mut server = Http2Connection::new(ConnectionRole::Server);
    let hello = [PREFACE, &frame(kind::SETTINGS, 0, 0, &[])].concat();
    assert_eq!(feed(&mut server, &hello, START), Ok(Vec::new()));
    flush(&mut server);
    server
}

/// A client with one stream, after the settings of its server.
fn client() -> Http2Connection {
    let mut client = Http2Connection::new(ConnectionRole::Client);
    feed(&mut client, &frame(kind::SETTINGS, 0, 0, &[]), START).expect("settings");
    assert_eq!(client.open_stream(REQUEST), Ok(1));
    flush(&mut client);
    client
}

fn reason(to: &mut Http2Connection, bytes: &[u8]) -> Option<Http2ErrorCode> {
    feed(to, bytes, START).err().map(|fault| fault.reason)
}

#[test]
fn a_question_whether_somebody_is_there() {
    let (mut client, mut server) = (client(), server());
    client.send_ping();
    assert!(client.awaits_pong());
    assert_eq!(flush(&mut client).len(), frame::HEAD_BYTES + 8);
    client.send_ping();
    talk(&mut client, &mut server);
    assert!(client.awaits_pong(), "the first is not answered");
    // An answer that nobody asked for is none to the next question.
    let pong = frame(kind::PING, flag::ACK, 0, &[0; 8]);
    for _ in 0..3 {
        feed(&mut client, &pong, START).expect("an answer");
    }
    assert!(!client.awaits_pong());
    client.send_ping();
    assert!(client.awaits_pong());
}

#[test]
fn a_call() {
    let (mut client, mut server) = (
        Http2Connection::new(ConnectionRole::Client),
        Http2Connection::new(ConnectionRole::Server),
    );
    let id = client.open_stream(REQUEST).expect("room");
    client.send_payload(id, b"ask".to_vec());
    client.end_stream(id, Vec::new());
    let (_, asked) = talk(&mut client, &mut server);
    let request = Said::Headers(1, Some(3), false);
    assert_eq!(asked, [request, Said::Data(1, b"ask".to_vec(), true)]);
    server.send_headers(id, OK);
    server.send_payload(id, b"answer".to_vec());
    server.end_stream(id, vec![(b"grpc-status".to_vec(), b"0".to_vec())]);
    let (answered, _) = talk(&mut client, &mut server);
    let data = Said::Data(1, b"answer".to_vec(), false);
    let trailers = Said::Headers(1, Some(1), true);
    assert_eq!(answered, [Said::Headers(1, Some(1), false), data, trailers]);
    assert!(client.streams.is_empty() && server.streams.is_empty());
    assert_eq!(client.open_stream(REQUEST), Ok(3));
}

#[test]
fn an_answer_before_the_end_of_the_question() {
    let (mut client, mut server) = (client(), server());
    feed(&mut server, &request(1), START).expect("a request");
    server.send_headers(1, OK);
    server.end_stream(1, vec![(b"grpc-status".to_vec(), b"12".to_vec())]);
    let answer = flush(&mut server);
    let heard = feed(&mut client, &answer, START).expect("an answer");
    let end = Said::Reset(1, Http2ErrorCode::NO_ERROR);
    assert_eq!(heard[1..], [Said::Headers(1, Some(1), true), end]);
    assert!(server.streams.is_empty() && client.streams.is_empty());
    // What was on its way is no fault.
    let late = frame(kind::DATA, flag::END_STREAM, 1, b"late");
    assert_eq!(feed(&mut server, &late, START), Ok(Vec::new()));
}

#[test]
fn large_messages_of_many_streams_pass_both_ways_and_leave_nothing_behind() {
    const BYTES: usize = 3 << 20;
    let (mut client, mut server) = (
        Http2Connection::new(ConnectionRole::Client),
        Http2Connection::new(ConnectionRole::Server),
    );
    let message = |id: Http2StreamId| vec![id.to_le_bytes()[0]; BYTES];
    let ids: Vec<_> = (0..3)
        .map(|_| client.open_stream(REQUEST).expect("room"))
        .collect();
    for &id in &ids {
        client.send_payload(id, message(id));
        client.end_stream(id, Vec::new());
    }
    let (_, asked) = talk(&mut client, &mut server);
    for &id in &ids {
        server.send_headers(id, OK);
        server.send_payload(id, message(id));
        server.end_stream(id, Vec::new());
    }
    let (answered, _) = talk(&mut client, &mut server);
    for seen in [asked, answered] {
        let order: Vec<_> = seen
            .iter()
            .filter_map(|event| match event {
                Said::Data(id, _, _) => Some(*id),
                _ => None,
            })
            .collect();
        assert!(
            order.windows(2).filter(|w| w[0] != w[1]).count() > 100,
            "in turn"
        );
        for &id in &ids {
            let all = seen.iter().filter_map(|event| match event {
                Said::Data(of, bytes, _) if *of == id => Some(bytes.as_slice()),
                _ => None,
            });
            assert_eq!(all.collect::<Vec<_>>().concat(), message(id));
        }
    }
    for side in [client, server] {
        assert!(side.streams.is_empty() && side.block.is_none());
        assert!(side.output.capacity() <= KEPT_BYTES);
    }
}

#[test]
fn pieces_are_as_good_as_the_whole() {
    let bytes = [
        PREFACE.to_vec(),
        frame(kind::SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 9]),
        request(1),
        frame(kind::DATA, 0, 1, b"abc"),
        frame(kind::PING, 0, 0, &[7; 8]),
        frame(kind::DATA, flag::END_STREAM, 1, b""),
    ]
    .concat();
    let mut whole = Http2Connection::new(ConnectionRole::Server);
    let events = feed(&mut whole, &bytes, START).expect("whole");
    let mut other = Http2Connection::new(ConnectionRole::Server);
    let (mut held, mut pieces) = (Vec::new(), Vec::new());
    for byte in bytes {
        held.push(byte);
        let step = other.receive_frame(&held, START).expect("a piece");
        pieces.extend(step.event.as_ref().map(said));
        let taken = step.taken;
        held.drain(..taken);
    }
    assert_eq!(pieces, events);
    assert_eq!(flush(&mut other), flush(&mut whole));
    assert_eq!(other.peer.max_streams, 9);
}

#[test]
fn padding_priorities_and_unknown_frames() {
    let mut server = server();
    let padded = [&[2, 0, 0, 0, 0, 7][..], &block(&REQUEST), &[0; 2]].concat();
    let flags = flag::END_HEADERS | flag::PADDED | flag::PRIORITY;
    let bytes = [
        frame(kind::HEADERS, flags, 1, &padded),
        frame(kind::PRIORITY, 0, 5, &[0; 5]),
        frame(0x42, 0xff, 1, b"unknown"),
        frame(kind::DATA, flag::PADDED, 1, b"\x03abc\0\0\0"),
    ]
    .concat();
    let heard = feed(&mut server, &bytes, START);
    let data = Said::Data(1, b"abc".to_vec(), false);
    assert_eq!(heard, Ok(vec![Said::Headers(1, Some(3), false), data]));
    assert_eq!(
        server.streams.get(1).expect("a stream").receive_window.used,
        4,
        "padding is read"
    );
    for wrong in [&b""[..], b"\x01", b"\x04abc"] {
        let wrong = frame(kind::DATA, flag::PADDED, 1, wrong);
        let fault = reason(&mut self::server(), &[request(1), wrong].concat());
        assert_eq!(fault, Some(Http2ErrorCode::PROTOCOL_ERROR));
    }
}

#[test]
fn faults_of_connections() {
    // CRI-98
    use Http2ErrorCode as R;
    for (name, bytes, want) in [
        (
            "too long",
            frame(kind::DATA, 0, 1, &[0; 16_385]),
            R::FRAME_SIZE_ERROR,
        ),
        (
            "DATA of none",
            frame(kind::DATA, 0, 0, b"a"),
            R::PROTOCOL_ERROR,
        ),
        (
            "DATA unopened",
            frame(kind::DATA, 0, 3, b"a"),
            R::PROTOCOL_ERROR,
        ),
        ("HEADERS of a server", request(2), R::PROTOCOL_ERROR),
        (
            "PUSH_PROMISE",
            frame(kind::PUSH_PROMISE, 4, 1, &[0, 0, 0, 2]),
            R::PROTOCOL_ERROR,
        ),
        (
            "RST_STREAM short",
            frame(kind::RST_STREAM, 0, 1, &[0]),
            R::FRAME_SIZE_ERROR,
        ),
        (
            "RST_STREAM unopened",
            frame(kind::RST_STREAM, 0, 9, &[0; 4]),
            R::PROTOCOL_ERROR,
        ),
        (
            "SETTINGS on a stream",
            frame(kind::SETTINGS, 0, 1, &[]),
            R::PROTOCOL_ERROR,
        ),
        (
            "SETTINGS cut",
            frame(kind::SETTINGS, 0, 0, &[0; 5]),
            R::FRAME_SIZE_ERROR,
        ),
        (
            "SETTINGS ack",
            frame(kind::SETTINGS, 1, 0, &[0; 6]),
            R::FRAME_SIZE_ERROR,
        ),
        (
            "ENABLE_PUSH",
            frame(kind::SETTINGS, 0, 0, &[0, 2, 0, 0, 0, 2]),
            R::PROTOCOL_ERROR,
        ),
        (
            "MAX_FRAME_SIZE",
            frame(kind::SETTINGS, 0, 0, &[0, 5, 0, 0, 0, 1]),
            R::PROTOCOL_ERROR,
        ),
        (
            "PING short",
            frame(kind::PING, 0, 0, &[0; 7]),
            R::FRAME_SIZE_ERROR,
        ),
        (
            "PING on a stream",
            frame(kind::PING, 0, 1, &[0; 8]),
            R::PROTOCOL_ERROR,
        ),
        (
            "GOAWAY short",
            frame(kind::GOAWAY, 0, 0, &[0; 7]),
            R::FRAME_SIZE_ERROR,
        ),
        (
            "CONTINUATION alone",
            frame(kind::CONTINUATION, 4, 1, &[]),
            R::PROTOCOL_ERROR,
        ),
        (
            "a frame between",
            [
                frame(kind::HEADERS, 0, 1, &[]),
                frame(kind::PING, 0, 0, &[0; 8]),
            ]
            .concat(),
            R::PROTOCOL_ERROR,
        ),
        (
            "CONTINUATION of another",
            [
                frame(kind::HEADERS, 0, 1, &[]),
                frame(kind::CONTINUATION, 4, 3, &[]),
            ]
            .concat(),
            R::PROTOCOL_ERROR,
        ),
        (
            "no block",
            frame(kind::HEADERS, 4, 1, &[0xbe]),
            R::COMPRESSION_ERROR,
        ),
        (
            "priority cut",
            frame(kind::HEADERS, 0x24, 1, &[0; 4]),
            R::FRAME_SIZE_ERROR,
        ),
        (
            "window by 0",
            frame(kind::WINDOW_UPDATE, 0, 0, &[0; 4]),
            R::PROTOCOL_ERROR,
        ),
        (
            "window short",
            frame(kind::WINDOW_UPDATE, 0, 0, &[0; 3]),
            R::FRAME_SIZE_ERROR,
        ),
    ] {
        let mut client = client();
        assert_eq!(reason(&mut client, &bytes), Some(want), "{name}");
        let told = flush(&mut client);
        assert_eq!(
            (told[3], told[16]),
            (kind::GOAWAY, want.0.to_le_bytes()[0]),
            "{name}"
        );
        assert_eq!(reason(&mut client, &[]), Some(want), "{name}, for good");
        assert_eq!(client.open_stream(REQUEST), Err(OpenStreamError), "{name}");
    }
    let mut early = Http2Connection::new(ConnectionRole::Client);
    let ping = frame(kind::PING, 0, 0, &[0; 8]);
    assert_eq!(reason(&mut early, &ping), Some(R::PROTOCOL_ERROR));
    let mut old = Http2Connection::new(ConnectionRole::Client);
    let fault = feed(&mut old, b"HTTP/1.1 400 Bad Request", START);
    let text = fault.expect_err("not a frame").text;
    assert_eq!(text, "the server does not speak HTTP/2");
    let mut strange = Http2Connection::new(ConnectionRole::Server);
    assert_eq!(reason(&mut strange, b"GET / "), Some(R::PROTOCOL_ERROR));
}

#[test]
fn faults_of_streams() {
    use Http2ErrorCode as R;
    let ok = headers(0, 1, &OK);
    let other: &[(&[u8], &[u8])] = &[(b"a", b"b")];
    for (name, bytes, want) in [
        (
            "DATA first",
            frame(kind::DATA, 0, 1, b"a"),
            R::PROTOCOL_ERROR,
        ),
        ("no status", headers(0, 1, other), R::PROTOCOL_ERROR),
        (
            "capitals",
            headers(0, 1, &[OK[0], (b"A", b"b")]),
            R::PROTOCOL_ERROR,
        ),
        (
            "status last",
            headers(0, 1, &[(b"a", b"b"), OK[0]]),
            R::PROTOCOL_ERROR,
        ),
        (
            "status twice",
            headers(0, 1, &[OK[0], OK[0]]),
            R::PROTOCOL_ERROR,
        ),
        (
            "no end",
            [ok.clone(), headers(0, 1, other)].concat(),
            R::PROTOCOL_ERROR,
        ),
        (
            "status again",
            [ok.clone(), headers(1, 1, &OK)].concat(),
            R::PROTOCOL_ERROR,
        ),
        (
            "after the end",
            [
                headers(flag::END_STREAM, 1, &OK),
                frame(kind::DATA, 0, 1, b"a"),
            ]
            .concat(),
            R::STREAM_CLOSED,
        ),
        (
            "window by 0",
            frame(kind::WINDOW_UPDATE, 0, 1, &[0; 4]),
            R::PROTOCOL_ERROR,
        ),
        (
            "window",
            frame(kind::WINDOW_UPDATE, 0, 1, &[0x7f, 0xff, 0xff, 0xff]),
            R::FLOW_CONTROL_ERROR,
        ),
    ] {
        let mut client = client();
        let heard = feed(&mut client, &bytes, START).expect(name);
        assert_eq!(heard.last(), Some(&Said::Reset(1, want)), "{name}");
        let told = flush(&mut client);
        assert_eq!(
            (told[3], told[12]),
            (kind::RST_STREAM, want.0.to_le_bytes()[0]),
            "{name}"
        );
        assert_eq!(
            client.open_stream(REQUEST),
            Ok(3),
            "{name}: the connection goes on"
        );
    }
    let mut waiting = client();
    let more = [headers(0, 1, &[(b":status", b"103")]), ok].concat();
    let heard = feed(&mut waiting, &more, START);
    assert_eq!(heard, Ok(vec![Said::Headers(1, Some(1), false)]));
}

#[test]
fn a_flood_of_continuations() {
    let mut server = server();
    let mut flood = frame(kind::HEADERS, 0, 1, &[]);
    flood.extend(frame(kind::CONTINUATION, 0, 1, &[]).repeat(1000));
    assert_eq!(
        reason(&mut server, &flood),
        Some(Http2ErrorCode::ENHANCE_YOUR_CALM)
    );
    let mut server = self::server();
    let mut flood = frame(kind::HEADERS, 0, 1, &[]);
    flood.extend(frame(kind::CONTINUATION, 0, 1, &[0; 8192]).repeat(3));
    assert_eq!(
        reason(&mut server, &flood),
        Some(Http2ErrorCode::ENHANCE_YOUR_CALM)
    );
    // And what came before is given back.
    assert!(server.block.is_none());
}

#[test]
fn rapid_resets() {
    let max = MAX_RESETS_PER_S;
    let pair = |n: u32| {
        let id = 2 * n + 1;
        [request(id), frame(kind::RST_STREAM, 0, id, &[0, 0, 0, 8])].concat()
    };
    let mut server = server();
    for n in 0..max {
        feed(&mut server, &pair(n), START).expect("as many as allowed");
    }
    assert!(server.streams.is_empty());
    let later = START + SECOND;
    for n in max..2 * max {
        feed(&mut server, &pair(n), later).expect("and in the next second");
    }
    let fault = feed(&mut server, &pair(2 * max), later).expect_err("too many");
    assert_eq!(fault.reason, Http2ErrorCode::ENHANCE_YOUR_CALM);
    // Also if this side is made to send them.
    let mut server = self::server();
    let wrong = |n: u32| {
        let id = 2 * n + 1;
        [request(id), frame(kind::WINDOW_UPDATE, 0, id, &[0; 4])].concat()
    };
    let all: Vec<_> = (0..=max).flat_map(wrong).collect();
    assert_eq!(
        reason(&mut server, &all),
        Some(Http2ErrorCode::ENHANCE_YOUR_CALM)
    );
}

#[test]
fn floods_of_small_frames() {
    for (name, one) in [
        ("PING", frame(kind::PING, 0, 0, &[0; 8])),
        ("PING ack", frame(kind::PING, flag::ACK, 0, &[0; 8])),
        ("SETTINGS", frame(kind::SETTINGS, 0, 0, &[])),
        ("empty DATA", frame(kind::DATA, 0, 1, &[])),
        ("PRIORITY", frame(kind::PRIORITY, 0, 1, &[0; 5])),
        (
            "WINDOW_UPDATE",
            frame(kind::WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]),
        ),
        ("unknown", frame(0x42, 0, 0, &[])),
    ] {
        let mut server = server();
        feed(&mut server, &request(1), START).expect("a request");
        let max = usize::try_from(MAX_CONTROL_FRAMES_PER_S).expect("a number");
        let some = one.repeat(max - 1);
        for second in 1..4 {
            let heard = feed(&mut server, &some, START + second * SECOND);
            heard.unwrap_or_else(|e| panic!("{name}: {e}"));
            flush(&mut server);
        }
        let many = one.repeat(2 * max);
        let fault = feed(&mut server, &many, START + 4 * SECOND).expect_err(name);
        assert_eq!(fault.reason, Http2ErrorCode::ENHANCE_YOUR_CALM, "{name}");
        assert!(server.output.len() < MAX_OUTPUT_BYTES, "{name}");
    }
}

#[test]
fn a_peer_that_asks_and_does_not_read() {
    let mut server = server();
    let pings = frame(kind::PING, 0, 0, &[0; 8]).repeat(900);
    let mut last = Ok(Vec::new());
    for second in 1..100 {
        last = feed(&mut server, &pings, START + second * SECOND);
        if last.is_err() {
            break;
        }
    }
    assert_eq!(
        last.expect_err("never").reason,
        Http2ErrorCode::ENHANCE_YOUR_CALM
    );
    assert!(server.output.len() <= MAX_OUTPUT_BYTES + MAX_FRAME_BYTES);
}

#[test]
fn windows_that_are_too_large() {
    let grow = |id| frame(kind::WINDOW_UPDATE, 0, id, &[0x7f, 0xff, 0xff, 0xff]);
    let mut server = server();
    feed(&mut server, &request(1), START).expect("a request");
    let heard = feed(&mut server, &grow(1), START);
    assert_eq!(
        heard,
        Ok(vec![Said::Reset(1, Http2ErrorCode::FLOW_CONTROL_ERROR)])
    );
    assert_eq!(
        reason(&mut server, &grow(0)),
        Some(Http2ErrorCode::FLOW_CONTROL_ERROR)
    );
    for (first, value) in [
        ([0; 4], [0x80, 0, 0, 0]),
        ([0, 0, 1, 0], [0x7f, 0xff, 0xff, 0xff]),
    ] {
        let mut server = self::server();
        let wider = frame(kind::WINDOW_UPDATE, 0, 1, &first);
        feed(&mut server, &request(1), START).expect("a request");
        if first != [0; 4] {
            feed(&mut server, &wider, START).expect("a wider window");
        }
        let set = frame(kind::SETTINGS, 0, 0, &[&[0, 4][..], &value].concat());
        assert_eq!(
            reason(&mut server, &set),
            Some(Http2ErrorCode::FLOW_CONTROL_ERROR)
        );
    }
}

#[test]
fn more_than_the_windows() {
    let full = frame(kind::DATA, 0, 1, &[0; MAX_FRAME_BYTES]);
    let frames = usize::try_from(STREAM_WINDOW_BYTES).expect("a number") / MAX_FRAME_BYTES;
    let mut server = server();
    feed(&mut server, &request(1), START).expect("a request");
    feed(&mut server, &full.repeat(frames), START).expect("what the window allows");
    let heard = feed(&mut server, &full, START);
    assert_eq!(
        heard,
        Ok(vec![Said::Reset(1, Http2ErrorCode::FLOW_CONTROL_ERROR)])
    );
    // Nobody reads the other streams either: the connection goes on, for its window is granted as it is used.
    for id in (3..21).step_by(2) {
        feed(&mut server, &request(id), START).expect("a request");
        let full = frame(kind::DATA, 0, id, &[0; MAX_FRAME_BYTES]);
        let heard = feed(&mut server, &full.repeat(frames), START);
        assert_eq!(heard.expect("within the window").len(), frames);
    }
    // What is read may come again; more cannot be released than came.
    server.release_payload(3, usize::MAX);
    let stream = server.streams.get(3).expect("a stream");
    assert_eq!(stream.receive_window.open, STREAM_WINDOW_BYTES);
    server.receive_window.open = 10;
    let fault = reason(&mut server, &frame(kind::DATA, 0, 3, &[0; 11]));
    assert_eq!(fault, Some(Http2ErrorCode::FLOW_CONTROL_ERROR));
}

#[test]
fn a_window_that_stays_shut() {
    let mut server = server();
    let shut = frame(kind::SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]);
    feed(&mut server, &[shut, request(1), request(3)].concat(), START).expect("requests");
    flush(&mut server);
    for id in [1, 3] {
        server.send_headers(id, OK);
        server.send_payload(id, vec![0; 100]);
        server.end_stream(id, Vec::new());
    }
    let out = flush(&mut server);
    assert!(out.len() < 100, "headers only");
    assert_eq!(server.waiting_bytes(1), 100);
    let due = server.next_stall_check().expect("a stall");
    assert_eq!(due, START + MAX_STALL);
    assert_eq!(
        server.reset_stalled_stream(due - Duration::from_millis(1)),
        None
    );
    // One moves on.
    let more = frame(kind::WINDOW_UPDATE, 0, 3, &[0, 0, 0, 10]);
    feed(&mut server, &more, due).expect("a window");
    assert_eq!(server.next_output(due).len(), 19);
    assert_eq!(server.waiting_bytes(3), 90);
    assert_eq!(server.reset_stalled_stream(due), Some(1));
    assert_eq!(server.reset_stalled_stream(due), None);
    assert_eq!(server.next_stall_check(), Some(due + MAX_STALL));
    // A window may even become negative.
    let wider = frame(kind::SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 20]);
    let again = frame(kind::SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]);
    feed(&mut server, &wider, due).expect("wider");
    server.next_output(due);
    assert_eq!(server.waiting_bytes(3), 70);
    feed(&mut server, &again, due).expect("shut");
    assert_eq!(server.streams.get(3).expect("a stream").send_window, -20);
}

#[test]
fn headers_that_grow() {
    // A large entry that is meant often: the stream is told that its headers are too long, the connection goes on.
    let mut bomb = vec![0x40, 1, b'a', 0x7f, 0xb1, 0x16];
    bomb.extend([b'x'; 3000 - 64]);
    bomb.extend([0xbe; 8192]);
    let mut server = server();
    let bomb = frame(kind::HEADERS, flag::END_HEADERS, 1, &bomb);
    let heard = feed(&mut server, &bomb, START);
    assert_eq!(heard, Ok(vec![Said::Headers(1, None, false)]));
    let heard = feed(&mut server, &request(3), START);
    assert_eq!(heard, Ok(vec![Said::Headers(3, Some(3), false)]));
}

#[test]
fn streams_are_bounded() {
    let mut server = server();
    let count = u32::try_from(MAX_STREAMS).expect("a number");
    for n in 0..count {
        feed(&mut server, &request(2 * n + 1), START).expect("a request");
    }
    flush(&mut server);
    let heard = feed(&mut server, &request(2 * count + 1), START);
    assert_eq!(heard, Ok(Vec::new()));
    let told = flush(&mut server);
    assert_eq!((told[3], told[12]), (kind::RST_STREAM, 7));
    // A client keeps to what it is told.
    let mut client = client();
    let one = frame(kind::SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 1]);
    feed(&mut client, &one, START).expect("settings");
    assert_eq!(client.open_stream(REQUEST), Err(OpenStreamError));
    client.reset_stream(1, Http2ErrorCode::CANCEL);
    assert_eq!(client.open_stream(REQUEST), Ok(3));
}

#[test]
fn a_peer_that_leaves() {
    let mut client = client();
    assert_eq!(client.open_stream(REQUEST), Ok(3));
    let leave = frame(kind::GOAWAY, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 0, b'x']);
    let heard = feed(&mut client, &leave, START);
    assert_eq!(heard, Ok(vec![Said::GoAway(1, Http2ErrorCode::NO_ERROR)]));
    assert!(client.is_leaving());
    assert_eq!(client.open_stream(REQUEST), Err(OpenStreamError));
    let heard = feed(&mut client, &headers(flag::END_STREAM, 1, &OK), START);
    assert_eq!(heard, Ok(vec![Said::Headers(1, Some(1), true)]));
}

#[test]
fn nothing_that_comes_makes_it_fall() {
    let mut seed = 7_u64;
    let mut byte = move || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        seed.to_be_bytes()[0]
    };
    for round in 0..2000 {
        let mut side = if round % 2 == 0 { server() } else { client() };
        for _ in 0..20 {
            let payload: Vec<u8> = (0..byte() % 20).map(|_| byte()).collect();
            let bytes = frame(byte() % 11, byte(), u32::from(byte() % 6), &payload);
            if feed(&mut side, &bytes, START).is_err() {
                break;
            }
            if byte() % 4 == 0 {
                side.send_payload(u32::from(byte() % 6), vec![0; 300]);
                flush(&mut side);
            }
        }
    }
}
