use alloc::vec::Vec;

use super::*;
use crate::stream::recorded::{self, EXEC_SPDY, EXEC_WEBSOCKET, TERMINAL_SPDY};
use crate::stream::spdy::StreamClosedError;
use crate::stream::testing::{SpdyClient, drive, masked, piece, spdy_frames, ws_frames};

const ALL: RequestedStreams = RequestedStreams {
    stdin: true,
    stdout: true,
    stderr: true,
    tty: false,
};
const TERMINAL: RequestedStreams = RequestedStreams {
    stderr: false,
    tty: true,
    ..ALL
};

/// Serves a client; returns what the command sees, and all that the client is sent before its end.
fn serve(
    mut remote: RemoteCommandSession,
    bytes: &[u8],
    size: usize,
) -> (RemoteCommandSession, Vec<String>, Vec<u8>) {
    let mut seen: Vec<String> = Vec::new();
    let shared = core::cell::RefCell::new(&mut remote);
    let (sent, error) = drive(
        bytes,
        size,
        |input, out| shared.borrow_mut().receive_input(input, out),
        |event, taken, out| match event {
            RemoteCommandEvent::Stdin(span) => {
                let text = String::from_utf8(piece(span, taken)).expect("text");
                shared.borrow_mut().record_passed_on(span.len, out);
                match seen.last_mut() {
                    Some(data) if data.starts_with("stdin ") => data.push_str(&text),
                    _ => seen.push(format!("stdin {text}")),
                }
            }
            RemoteCommandEvent::Resize(size) => {
                seen.push(format!("{}x{}", size.width, size.height))
            }
            RemoteCommandEvent::Ready | RemoteCommandEvent::StdinEnd | RemoteCommandEvent::Left => {
                seen.push(format!("{event:?}"))
            }
        },
    );
    if let Some(error) = error {
        seen.push(error.to_string());
    }
    (remote, seen, sent)
}

// STREAM-03
#[test]
fn what_is_wanted() {
    let of = |query: &[(&str, &'static str)], tty| {
        let param = |name: &str| query.iter().find(|(n, _)| *n == name).map(|(_, v)| *v);
        RequestedStreams::from_query(param, tty)
    };
    let all = [("input", "1"), ("output", "1"), ("error", "1")];
    assert_eq!(of(&all, None), Ok(ALL));
    assert_eq!(
        of(&all, Some(true)),
        Ok(TERMINAL),
        "an attach to a terminal"
    );
    let tty = [&all[..], &[("tty", "1")]].concat();
    assert_eq!(of(&tty, None), Ok(TERMINAL));
    assert_eq!(of(&tty, Some(false)), Ok(ALL), "the container has none");
    assert_eq!(
        of(&[("output", "true"), ("tty", "1")], None),
        Err(NoStreams)
    );
    assert_eq!(of(&[("error", "1"), ("tty", "1")], None), Err(NoStreams));
}

// STREAM-05 STREAM-10 STREAM-11
#[test]
fn protocols() {
    let versions: Vec<_> = SPDY_PROTOCOLS
        .iter()
        .map(|n| RemoteCommandVersion::from_name(n))
        .collect();
    let all = [
        RemoteCommandVersion::V4,
        RemoteCommandVersion::V3,
        RemoteCommandVersion::V2,
        RemoteCommandVersion::V1,
    ];
    assert_eq!(versions, all.map(Some));
    assert_eq!(RemoteCommandVersion::from_name("v5.channel.k8s.io"), None);
    for name in WEBSOCKET_PROTOCOLS.iter().chain(&[""]) {
        assert_eq!(
            websocket_protocol(name).map(ChannelProtocol::protocol_name),
            Some(*name)
        );
    }
}

// STREAM-06 STREAM-08 STREAM-09
#[test]
fn real_kubectl() {
    for size in [1, 3, 10, usize::MAX] {
        let remote = || RemoteCommandSession::over_spdy(RemoteCommandVersion::V4, ALL);
        let (_, seen, sent) = serve(remote(), &recorded::decode_recorded(EXEC_SPDY), size);
        assert_eq!(seen, ["Ready", "stdin some input\n", "StdinEnd", "Left"]);
        assert_eq!(
            spdy_frames(&sent),
            ["reply 1", "reply 3", "reply 5", "reply 7"]
        );

        let remote = RemoteCommandSession::over_spdy(RemoteCommandVersion::V4, TERMINAL);
        let (_, seen, _) = serve(remote, &recorded::decode_recorded(TERMINAL_SPDY), size);
        assert_eq!(seen[..3], ["Ready", "100x30", "stdin q"]);

        let remote =
            RemoteCommandSession::over_web_socket(ChannelProtocol::V5, ALL, &mut Vec::new());
        let (_, seen, _) = serve(remote, &recorded::decode_recorded(EXEC_WEBSOCKET), size);
        assert_eq!(seen, ["Ready", "stdin some input\n", "StdinEnd", "Left"]);
    }
}

/// Streams by what is wanted and which version; only those, each once.
// STREAM-06
#[test]
fn all_streams_make_it_ready() {
    let (v3, v2) = (RemoteCommandVersion::V3, RemoteCommandVersion::V2);
    let out = RequestedStreams {
        stdin: false,
        stderr: false,
        ..ALL
    };
    for (name, version, wanted, kinds, ready, refused) in [
        (
            "output only",
            v2,
            out,
            &["error", "stdout"][..],
            true,
            vec![],
        ),
        (
            "one missing",
            v2,
            ALL,
            &["stdin", "error", "stderr"],
            false,
            vec![],
        ),
        (
            "a size before v3",
            v2,
            TERMINAL,
            &["error", "resize", "stdin", "stdout"],
            true,
            vec![3],
        ),
        (
            "no size yet",
            v3,
            TERMINAL,
            &["error", "stdin", "stdout"],
            false,
            vec![],
        ),
        (
            "a size",
            v3,
            TERMINAL,
            &["resize", "stdout", "stdin", "error"],
            true,
            vec![],
        ),
        (
            "twice",
            v3,
            out,
            &["error", "error", "stdout"],
            true,
            vec![3],
        ),
        (
            "not asked for",
            v3,
            out,
            &["stderr", "", "error", "stdout"],
            true,
            vec![1, 3],
        ),
    ] {
        let mut client = SpdyClient::default();
        for (n, kind) in (0_u32..).zip(kinds) {
            client.stream(2 * n + 1, kind);
        }
        let (_, seen, sent) = serve(
            RemoteCommandSession::over_spdy(version, wanted),
            &client.bytes,
            9,
        );
        assert_eq!(seen.concat() == "Ready", ready, "{name}");
        let resets: Vec<_> = refused.iter().map(|id| format!("reset {id} 1")).collect();
        let sent = spdy_frames(&sent);
        let (answers, refusals): (Vec<_>, Vec<_>) =
            sent.into_iter().partition(|f| f.starts_with("reply"));
        assert_eq!(refusals, resets, "{name}");
        assert_eq!(answers.len(), kinds.len() - resets.len(), "{name}");
    }
}

fn ready(version: RemoteCommandVersion, wanted: RequestedStreams) -> RemoteCommandSession {
    let mut client = SpdyClient::default();
    for (id, kind) in [(1, "error"), (3, "stdin"), (5, "stdout"), (7, "stderr")] {
        client.stream(id, kind);
    }
    serve(
        RemoteCommandSession::over_spdy(version, wanted),
        &client.bytes,
        usize::MAX,
    )
    .0
}

// STREAM-04 STREAM-07
#[test]
fn ends_over_spdy() {
    let success = r#"{"metadata":{},"status":"Success"}"#;
    let failure = r#"{"details":{"causes":[{"message":"3","reason":"ExitCode"}]},"message":"command terminated with non-zero exit code: exit status 3","metadata":{},"reason":"NonZeroExitCode","status":"Failure"}"#;
    let no_command = r#"{"code":500,"message":"Internal error occurred: error executing command in container: no such file","metadata":{},"reason":"InternalError","status":"Failure"}"#;
    let failed = || CommandOutcome::Failed("no such file".into());
    for (version, outcome, words) in [
        (RemoteCommandVersion::V4, CommandOutcome::Exited(0), success),
        (RemoteCommandVersion::V4, CommandOutcome::Exited(3), failure),
        (RemoteCommandVersion::V4, failed(), no_command),
        (RemoteCommandVersion::V3, CommandOutcome::Exited(0), ""),
        (
            RemoteCommandVersion::V1,
            CommandOutcome::Exited(3),
            "command terminated with non-zero exit code: exit status 3",
        ),
        (
            RemoteCommandVersion::V2,
            failed(),
            "Internal error occurred: error executing command in container: no such file",
        ),
    ] {
        let (mut remote, mut out) = (ready(version, ALL), Vec::new());
        remote
            .send_output(OutputStream::Stdout, b"out", &mut out)
            .expect("open");
        remote
            .send_output(OutputStream::Stderr, b"err", &mut out)
            .expect("open");
        remote.send_outcome(&outcome, &mut out);
        // The reply's compression context is the one of before.
        let mut frames = spdy_frames(&out);
        let mut expected = vec!["data 5 \"out\"".to_owned(), "data 7 \"err\"".to_owned()];
        if !words.is_empty() {
            expected.push(format!("data 1 {words:?}"));
        }
        assert_eq!(frames.pop().as_deref(), Some("go away 7 0"));
        expected.extend([3, 5, 7, 1].map(|id| format!("data {id} \"\" fin")));
        assert_eq!(frames, expected, "{version:?} {outcome:?}");
    }
}

// STREAM-10
#[test]
fn web_socket() {
    let failed = CommandOutcome::Failed("no".into());
    let text = failed.message_text();
    for (protocol, wanted, outcome, first, words) in [
        (
            ChannelProtocol::V4,
            ALL,
            CommandOutcome::Exited(0),
            1,
            CommandOutcome::Exited(0).status_json(),
        ),
        (
            ChannelProtocol::V5,
            ALL,
            CommandOutcome::Exited(1),
            1,
            CommandOutcome::Exited(1).status_json(),
        ),
        // The conformance test fails on anything here.
        (
            ChannelProtocol::Channel,
            ALL,
            CommandOutcome::Exited(0),
            1,
            String::new(),
        ),
        (ChannelProtocol::Unnamed, ALL, failed, 1, text),
        (
            ChannelProtocol::V4,
            RequestedStreams {
                stdout: false,
                ..ALL
            },
            CommandOutcome::Exited(0),
            2,
            CommandOutcome::Exited(0).status_json(),
        ),
        (
            ChannelProtocol::V4,
            RequestedStreams {
                stdout: false,
                stderr: false,
                ..ALL
            },
            CommandOutcome::Exited(0),
            3,
            CommandOutcome::Exited(0).status_json(),
        ),
    ] {
        let mut out = Vec::new();
        let mut remote = RemoteCommandSession::over_web_socket(protocol, wanted, &mut out);
        assert_eq!(remote.sendable_bytes(OutputStream::Stdout), usize::MAX);
        remote
            .send_output(OutputStream::Stdout, b"x", &mut out)
            .expect("dropped at worst");
        remote.send_outcome(&outcome, &mut out);
        let mut frames = vec![(0x82, vec![first])];
        if wanted.stdout {
            frames.push((0x82, b"\x01x".to_vec()));
        }
        if !words.is_empty() {
            frames.push((0x82, [&[3], words.as_bytes()].concat()));
        }
        frames.push((0x88, vec![3, 0xe8]));
        assert_eq!(ws_frames(&out), frames, "{protocol:?} {wanted:?}");
    }
}

// STREAM-10 STREAM-11
#[test]
fn channels_that_were_not_asked_for() {
    let no_stdin = RequestedStreams {
        stdin: false,
        ..ALL
    };
    let bytes = [
        masked(0x82, b"\x00x"),
        masked(0x82, b"\x01x"),
        masked(0x82, b"\x09x"),
        masked(0x82, b"\xff\x00"),
        masked(0x82, b"\x04{\"Width\":80,\"Height\":24}"),
        masked(0x82, b"\x00y"),
    ]
    .concat();
    let seen = |protocol, wanted| {
        let remote = RemoteCommandSession::over_web_socket(protocol, wanted, &mut Vec::new());
        serve(remote, &bytes, 5).1
    };
    assert_eq!(seen(ChannelProtocol::V5, no_stdin), ["Ready", "80x24"]);
    let all = ["Ready", "stdin x", "StdinEnd", "80x24"];
    assert_eq!(
        seen(ChannelProtocol::V5, ALL),
        all,
        "nothing comes behind a close"
    );
    assert_eq!(
        seen(ChannelProtocol::V4, ALL),
        ["Ready", "stdin x", "80x24", "stdin y"]
    );
}

#[test]
fn streams_that_go() {
    let mut remote = ready(RemoteCommandVersion::V4, ALL);
    assert_eq!(remote.sendable_bytes(OutputStream::Stdout), usize::MAX);
    let mut client = SpdyClient::default();
    client
        .reset(5)
        .data(1, false, b"?")
        .data(7, true, b"?")
        .reset(3);
    let (mut remote, seen, _) = {
        let mut out = Vec::new();
        let step = remote
            .receive_input(&mut client.bytes, &mut out)
            .expect("frames");
        assert_eq!(step.taken, client.bytes.len());
        (remote, format!("{:?}", step.event), out)
    };
    assert_eq!(seen, "Some(StdinEnd)");
    let mut out = Vec::new();
    assert_eq!(remote.sendable_bytes(OutputStream::Stdout), usize::MAX);
    assert_eq!(
        remote.send_output(OutputStream::Stdout, b"x", &mut out),
        Err(StreamClosedError)
    );
    assert_eq!(
        remote.send_output(OutputStream::Stderr, b"x", &mut out),
        Ok(())
    );
    remote.abort_session(
        RemoteCommandError::Spdy(crate::stream::spdy::SpdyError::Window),
        &mut out,
    );
    assert_eq!(spdy_frames(&out), ["data 7 \"x\"", "go away 7 1"]);
}

// STREAM-08
#[test]
fn sizes() {
    let size = |width, height| Some(TerminalSize { width, height });
    for (name, text, newest) in [
        ("one", "{\"Width\":80,\"Height\":24}\n", size(80, 24)),
        (
            "the newest",
            "{\"Width\":1,\"Height\":1}{\"Height\":3,\"Width\":2}",
            size(2, 3),
        ),
        ("a zero", "{\"Width\":80,\"Height\":0}", None),
        ("one side", "{\"Width\":80}", None),
        (
            "more members",
            "{\"Width\":8,\"Height\":2,\"X\":[1]}",
            size(8, 2),
        ),
        ("not yet", "{\"Width\":80,\"Height\":24", None),
        (
            "too wide",
            "{\"Width\":70000,\"Height\":24}{\"Width\":8,\"Height\":2}",
            None,
        ),
        (
            "nothing after nonsense",
            "}{\"Width\":8,\"Height\":2}",
            None,
        ),
    ] {
        for size in [1, 7, usize::MAX] {
            let mut sizes = size::TerminalSizeReader::new();
            let pieces = text
                .as_bytes()
                .chunks(size)
                .map(|piece| sizes.read_piece(piece));
            let found = pieces.collect::<Vec<_>>().into_iter().flatten().next_back();
            assert_eq!(found, newest, "{name}");
        }
    }
    let mut sizes = size::TerminalSizeReader::new();
    assert_eq!(sizes.read_piece(&[b' '; 1000]), None);
    assert_eq!(
        sizes.read_piece(b"{\"Width\":8,\"Height\":2}"),
        None,
        "too long"
    );
}
