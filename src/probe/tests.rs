//! Probes against peers that behave, and that do not, on sockets of this machine.

use alloc::sync::Arc;
use core::{net::IpAddr, time::Duration};
use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    thread,
};

use rustls::{ServerConfig, ServerConnection, StreamOwned, crypto::ring};

use super::{
    HttpGet, ProbeAction, ProbeAnswer, Prober, TimeLimit,
    http::{self, HookOutcome, MAX_BODY_BYTES, MAX_HEAD_BYTES, MAX_PIECES},
};
use crate::held_port::held_port;

const LOCAL: IpAddr = IpAddr::V4(core::net::Ipv4Addr::LOCALHOST);
/// Time for peers that are silent.
const SHORT: Duration = Duration::from_millis(150);
/// Time for peers that answer.
const LONG: Duration = Duration::from_secs(30);

/// Runs `talk` with each connection; returns the port.
fn serve(talk: impl Fn(TcpStream) + Send + Sync + 'static) -> u16 {
    let listener = TcpListener::bind((LOCAL, 0)).expect("listener");
    let port = listener.local_addr().expect("address").port();
    let talk = Arc::new(talk);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let talk = Arc::clone(&talk);
            thread::spawn(move || talk(stream));
        }
    });
    port
}

/// Reads the head of a request: its lines.
fn head(stream: &TcpStream) -> Vec<String> {
    let mut lines = Vec::new();
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        if line.is_empty() {
            break;
        }
        lines.push(line);
    }
    lines
}

/// Answers each request with that text, then closes.
fn says(answer: impl Into<Vec<u8>>) -> u16 {
    let answer = answer.into();
    serve(move |mut stream| {
        head(&stream);
        let _ = stream.write_all(&answer);
    })
}

fn late(limit: Duration) -> TimeLimit {
    Box::pin(async move { _ = async_io::Timer::after(limit).await })
}

fn ask(action: &ProbeAction, limit: Duration) -> ProbeAnswer {
    let prober = Prober::default();
    let limit_told = Duration::from_secs(1);
    smol::block_on(prober.run_probe(action, Some(LOCAL), limit_told, late(limit)))
}

fn get(port: u16) -> HttpGet {
    HttpGet {
        https: false,
        host: "".into(),
        port,
        target: "/p".into(),
        headers: [].into(),
    }
}

fn probe(port: u16, limit: Duration) -> ProbeAnswer {
    ask(&ProbeAction::Http(get(port)), limit)
}

fn failure(port: u16, why: &str) -> ProbeAnswer {
    ProbeAnswer::Failure(format!("Get \"http://127.0.0.1:{port}/p\": {why}"))
}

#[test]
fn answers() {
    // PROBE-30
    let long = format!(
        "HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n{}",
        "x".repeat(MAX_BODY_BYTES + 1)
    );
    for (answer, want) in [
        ("HTTP/1.1 200 OK\r\n\r\nhello", ProbeAnswer::Success),
        ("HTTP/1.0 204 No\r\n\r\n", ProbeAnswer::Success),
        (
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
            ProbeAnswer::Success,
        ),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
            ProbeAnswer::Success,
        ),
        (&long, ProbeAnswer::Success),
        (
            "HTTP/1.1 503 Busy\r\n\r\nsecret",
            ProbeAnswer::Failure("HTTP probe failed with statuscode: 503".into()),
        ),
        (
            "HTTP/1.1 199 X\r\n\r\nHTTP/1.1 404 X\r\n\r\n",
            ProbeAnswer::Failure("HTTP probe failed with statuscode: 404".into()),
        ),
        (
            "HTTP/1.1 101 Switch\r\n\r\n",
            ProbeAnswer::Failure("HTTP probe failed with statuscode: 101".into()),
        ),
        (
            "HTTP/1.1 304 Not Modified\r\n\r\n",
            ProbeAnswer::Warning("Probe terminated redirects, Response body: ".into()),
        ),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\ncut",
            ProbeAnswer::Error("unexpected EOF".into()),
        ),
    ] {
        assert_eq!(probe(says(answer), LONG), want, "{answer:.60}");
    }
}

#[test]
fn no_answer() {
    // PROBE-30
    let closed = {
        let listener = TcpListener::bind((LOCAL, 0)).expect("listener");
        listener.local_addr().expect("address").port()
    };
    let refused = format!("dial tcp 127.0.0.1:{closed}: connect: connection refused");
    assert_eq!(probe(closed, LONG), failure(closed, &refused));
    let port = says("");
    assert_eq!(probe(port, LONG), failure(port, "EOF"));
    let port = says("HTTP/1.1 2");
    assert_eq!(probe(port, LONG), failure(port, "unexpected EOF"));
    let port = says("220 mail\r\n\r\n");
    assert_eq!(
        probe(port, LONG),
        failure(port, "malformed HTTP response \"220 mail\"")
    );
    let silent = serve(|stream| {
        let mut stream = stream;
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let over = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)";
    assert_eq!(probe(silent, SHORT), failure(silent, over));
    // Head and nothing else.
    let port = serve(|mut stream| {
        head(&stream);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n");
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let ProbeAnswer::Error(text) = probe(port, SHORT) else {
        panic!("it has no body");
    };
    assert!(text.ends_with("while reading body)"), "{text}");
    let nobody = Prober::default();
    let action = ProbeAction::Http(get(80));
    let answer = smol::block_on(nobody.run_probe(&action, None, LONG, late(LONG)));
    assert_eq!(
        answer,
        ProbeAnswer::Failure("Get \"http://:80/p\": the pod has no IP".into())
    );
}

#[test]
fn peers_that_never_end() {
    // PROBE-30
    let pour = |piece: Vec<u8>| {
        serve(move |mut stream| {
            head(&stream);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n");
            while stream.write_all(&piece).is_ok() {}
        })
    };
    let port = pour(b"X: y\r\n".repeat(200));
    let text = format!("the head of the answer is longer than {MAX_HEAD_BYTES} bytes");
    assert_eq!(probe(port, LONG), failure(port, &text));
    // Bytes one by one, as fast as they go.
    let drip = |first: &'static [u8]| {
        serve(move |mut stream| {
            let _ = stream.set_nodelay(true);
            head(&stream);
            let _ = stream.write_all(first);
            let mut count = 0_usize;
            while stream.write_all(b"x").is_ok() {
                count += 1;
                if count > 2 * MAX_PIECES {
                    thread::yield_now();
                }
            }
        })
    };
    let port = drip(b"HTTP/1.1 200 OK\r\n\r\n");
    assert_eq!(
        probe(port, LONG),
        ProbeAnswer::Success,
        "a body is read as far as it goes"
    );
    let port = drip(b"HTTP/1.1 200 OK\r\n");
    let ProbeAnswer::Failure(text) = probe(port, LONG) else {
        panic!("it has no end");
    };
    let known = ["longer than", "too many pieces"]
        .iter()
        .any(|t| text.contains(t));
    assert!(known, "{text}");
}

#[test]
fn redirects() {
    // PROBE-33
    let to = |location: String| {
        serve(move |mut stream| {
            let first = head(&stream).remove(0);
            let answer = if first.contains(" /end ") {
                "HTTP/1.1 200 OK\r\n\r\n".to_owned()
            } else {
                format!(
                    "HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 4\r\n\r\nbody"
                )
            };
            let _ = stream.write_all(answer.as_bytes());
        })
    };
    let end = says("HTTP/1.1 200 OK\r\n\r\n");
    let warning = ProbeAnswer::Warning("Probe terminated redirects, Response body: body".into());
    for (location, want) in [
        ("/end", ProbeAnswer::Success),
        ("end", ProbeAnswer::Success),
        (&*format!("http://127.0.0.1:{end}/x"), ProbeAnswer::Success),
        ("http://other.example/end", warning.clone()),
        ("https://10.255.255.1/", warning.clone()),
        ("", warning),
    ] {
        assert_eq!(probe(to(location.into()), LONG), want, "{location}");
    }
    // Names of hosts have no case.
    let named = HttpGet {
        host: "LOCALHOST".into(),
        ..get(to("/end".into()))
    };
    assert_eq!(ask(&ProbeAction::Http(named), LONG), ProbeAnswer::Success);
    let port = to("/again".into());
    let text = format!("Get \"http://127.0.0.1:{port}/again\": stopped after 10 redirects");
    assert_eq!(probe(port, LONG), ProbeAnswer::Failure(text));
    let port = to("http://[".into());
    let ProbeAnswer::Failure(text) = probe(port, LONG) else {
        panic!("no place to go");
    };
    assert!(text.contains("failed to parse Location header"), "{text}");
}

#[test]
fn own_headers_go_along() {
    // PROBE-31 PROBE-33
    let (sender, received) = std::sync::mpsc::channel();
    let port = serve(move |mut stream| {
        let lines = head(&stream);
        let next = match &*lines[0] {
            "GET /p HTTP/1.1" => "HTTP/1.1 301 X\r\nLocation: /q\r\n\r\n",
            _ => "HTTP/1.1 200 OK\r\n\r\n",
        };
        let _ = sender.send(lines);
        let _ = stream.write_all(next.as_bytes());
    });
    let mut get = get(port);
    get.headers = [("Host", "a.example"), ("X-Own", "1")]
        .map(|(n, v)| (n.into(), v.into()))
        .into();
    assert_eq!(ask(&ProbeAction::Http(get), LONG), ProbeAnswer::Success);
    for path in ["/p", "/q"] {
        let lines = received.recv().expect("a request");
        assert_eq!(lines[0], format!("GET {path} HTTP/1.1"));
        assert!(lines.contains(&"Host: a.example".into()), "{lines:?}");
        assert!(lines.contains(&"X-Own: 1".into()), "{lines:?}");
        assert!(
            lines.contains(&"User-Agent: kube-probe/1.36".into()),
            "{lines:?}"
        );
    }
}

fn https(answer: &'static str) -> u16 {
    let made =
        rcgen::generate_simple_self_signed(["other.example".to_owned()]).expect("certificate");
    let key = made.signing_key.serialize_der();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(
            vec![made.cert.der().clone()],
            rustls::pki_types::PrivatePkcs8KeyDer::from(key).into(),
        )
        .expect("configuration");
    let config = Arc::new(config);
    serve(move |stream| {
        let session = ServerConnection::new(Arc::clone(&config)).expect("session");
        let mut stream = StreamOwned::new(session, stream);
        let mut seen = Vec::new();
        let mut piece = [0; 512];
        while !seen.ends_with(b"\r\n\r\n") {
            match stream.read(&mut piece) {
                Ok(len) if len > 0 => seen.extend_from_slice(&piece[..len]),
                _ => return,
            }
        }
        let _ = stream.write_all(answer.as_bytes());
        let _ = stream.flush();
    })
}

#[test]
fn over_tls_whoever_it_is() {
    // PROBE-31
    let secure = |port| HttpGet {
        https: true,
        ..get(port)
    };
    let well = https("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi");
    assert_eq!(
        ask(&ProbeAction::Http(secure(well)), LONG),
        ProbeAnswer::Success
    );
    let to_the_end = https("HTTP/1.1 200 OK\r\n\r\nhi");
    assert_eq!(
        ask(&ProbeAction::Http(secure(to_the_end)), LONG),
        ProbeAnswer::Success
    );
    let ill = https("HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n");
    let text = "HTTP probe failed with statuscode: 500";
    assert_eq!(
        ask(&ProbeAction::Http(secure(ill)), LONG),
        ProbeAnswer::Failure(text.into())
    );
    // The other way round.
    let plain = says("HTTP/1.1 400 Bad Request\r\n\r\n");
    let ProbeAnswer::Failure(text) = ask(&ProbeAction::Http(secure(plain)), LONG) else {
        panic!("it does not speak TLS");
    };
    assert_eq!(
        text,
        format!(
            "Get \"https://127.0.0.1:{plain}/p\": http: server gave HTTP response to HTTPS client"
        )
    );
    let closes = serve(drop);
    let ProbeAnswer::Failure(_) = ask(&ProbeAction::Http(secure(closes)), LONG) else {
        panic!("nobody is there");
    };
}

#[test]
fn hooks() {
    // HOOK-05
    let prober = Prober::default();
    let hook = |get: &HttpGet| smol::block_on(http::run_http_hook(&prober, get, Some(LOCAL)));
    for answer in [
        "HTTP/1.1 500 No\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\ncut",
    ] {
        assert_eq!(hook(&get(says(answer))), Ok(HookOutcome::Answered));
    }
    let silent = says("");
    assert!(hook(&get(silent)).is_err());
    // Plain HTTP where TLS was expected: once more, without what is secret.
    let (sender, received) = std::sync::mpsc::channel();
    let plain = serve(move |mut stream| {
        let mut first = [0; 1];
        if stream.peek(&mut first).is_ok() && first == *b"G" {
            let _ = sender.send(head(&stream));
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
        } else {
            let _ = stream.read(&mut [0; 2048]);
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let mut secure = get(plain);
    secure.https = true;
    secure.headers = [("Authorization", "x"), ("X-Own", "1")]
        .map(|(n, v)| (n.into(), v.into()))
        .into();
    let host = format!("127.0.0.1:{plain}");
    assert_eq!(hook(&secure), Ok(HookOutcome::InPlainText(host)));
    let lines = received.recv().expect("a request");
    assert!(
        lines.contains(&"User-Agent: kube-lifecycle/1.36".into()),
        "{lines:?}"
    );
    assert!(
        !lines.iter().any(|l| l.starts_with("Authorization")),
        "{lines:?}"
    );
}

#[test]
fn connections() {
    // PROBE-22
    let tcp = |host: &str, port| ProbeAction::Tcp {
        host: host.into(),
        port,
    };
    let listener = TcpListener::bind((LOCAL, 0)).expect("listener");
    let port = listener.local_addr().expect("address").port();
    assert_eq!(
        ask(&tcp("", port), LONG),
        ProbeAnswer::Success,
        "it need not be accepted"
    );
    assert_eq!(ask(&tcp("127.0.0.1", port), LONG), ProbeAnswer::Success);
    assert_eq!(
        ask(&tcp("localhost", port), LONG),
        ProbeAnswer::Success,
        "a name"
    );
    let silent = held_port();
    let text = format!("dial tcp 127.0.0.1:{silent}: connect: connection refused");
    assert_eq!(ask(&tcp("", silent), LONG), ProbeAnswer::Failure(text));
    // Full: nobody answers.
    let listener = TcpListener::bind((LOCAL, 0)).expect("listener");
    nix::sys::socket::listen(
        &listener,
        nix::sys::socket::Backlog::new(0).expect("backlog"),
    )
    .expect("listen");
    let address = listener.local_addr().expect("address");
    let fill: Vec<_> = (0..4)
        .filter_map(|_| TcpStream::connect_timeout(&address, SHORT).ok())
        .collect();
    let text = format!("dial tcp {address}: i/o timeout");
    assert_eq!(
        ask(&tcp("", address.port()), SHORT),
        ProbeAnswer::Failure(text)
    );
    drop(fill);
}

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let len = u8::try_from(payload.len()).expect("short");
    let mut out = vec![0, 0, len, kind, flags, 0, 0, 0, stream];
    out.extend_from_slice(payload);
    out
}

/// Answers a health check with that status, and that gRPC status.
fn health(status: u8, grpc: &'static [u8]) -> u16 {
    serve(move |mut stream| {
        let mut piece = [0; 4096];
        let _ = stream.read(&mut piece);
        let trailer = [
            &b"\x40\x0bgrpc-status"[..],
            &[u8::try_from(grpc.len()).expect("short")],
            grpc,
        ]
        .concat();
        let frames = [
            frame(4, 0, 0, &[]),
            frame(6, 0, 0, &[7; 8]),
            frame(1, 4, 1, &[0x20, 0x88]),
            frame(0, 0, 1, &[0, 0, 0, 0, 2, 8, status]),
            frame(1, 5, 1, &trailer),
        ];
        let _ = stream.write_all(&frames.concat());
        // It is the client that goes first.
        let _ = stream.read_to_end(&mut Vec::new());
    })
}

#[test]
fn grpc() {
    // PROBE-23
    let grpc = |port| ProbeAction::Grpc {
        port,
        service: "s".into(),
    };
    assert_eq!(ask(&grpc(health(1, b"0")), LONG), ProbeAnswer::Success);
    let fails = |port, limit, text: &str| {
        assert_eq!(ask(&grpc(port), limit), ProbeAnswer::Failure(text.into()));
    };
    fails(
        health(2, b"0"),
        LONG,
        "service unhealthy (responded with \"NOT_SERVING\")",
    );
    fails(
        health(3, b"0"),
        LONG,
        "service unhealthy (responded with \"SERVICE_UNKNOWN\")",
    );
    fails(
        health(1, b"12"),
        LONG,
        "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): ",
    );
    fails(
        health(1, b"5"),
        LONG,
        "error: health rpc probe failed: rpc error: code = NotFound desc = ",
    );
    fails(
        health(1, b"4"),
        LONG,
        "timeout: health rpc did not complete within 1s",
    );
    let silent = serve(|mut stream| _ = stream.read_to_end(&mut Vec::new()));
    fails(
        silent,
        SHORT,
        "timeout: health rpc did not complete within 1s",
    );
    fails(
        says("HTTP/1.1 400 Bad Request\r\n\r\n"),
        LONG,
        "error: health rpc probe failed: rpc error: code = Unavailable desc = the server does not speak HTTP/2",
    );
    // A message without end, and frames that say nothing.
    for (first, next, why) in [
        (
            &b"\0\0\xff\0\0"[..],
            frame(0, 0, 1, &[7; 200]),
            "Internal desc = the answer is too long",
        ),
        (
            b"\0",
            frame(4, 1, 0, &[]),
            "Unavailable desc = too many frames without payload",
        ),
    ] {
        let endless = serve(move |mut stream| {
            let mut piece = [0; 4096];
            let _ = stream.read(&mut piece);
            let begin = [
                frame(4, 0, 0, &[]),
                frame(1, 4, 1, &[0x88]),
                frame(0, 0, 1, first),
            ];
            let _ = stream.write_all(&begin.concat());
            while stream.write_all(&next).is_ok() {}
        });
        let why = format!("error: health rpc probe failed: rpc error: code = {why}");
        fails(endless, LONG, &why);
    }
}
