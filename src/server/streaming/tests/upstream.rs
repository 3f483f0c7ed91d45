//! Streams that are at a server of the runtime. Another node stands in for it, over TCP, and is not asked for the
//! protocols that such servers do not know; or a thread that answers nonsense.

use alloc::sync::Arc;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread::{self, JoinHandle};

use futures_rustls::TlsAcceptor;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::PrivatePkcs8KeyDer;

use super::*;
use crate::held_port::held_port;

const V4: &str = "v4.channel.k8s.io";
const V5: &str = "v5.channel.k8s.io";
const TUNNEL: &str = "SPDY/3.1+portforward.k8s.io";
const FORWARDING: &str = "portforward.k8s.io";
/// Number of bytes that is more than all buffers hold.
const MUCH: usize = 3 << 20;

/// A runtime with a server of streams.
struct Runtime {
    node: Node,
    listener: Async<TcpListener>,
    tls: Option<TlsAcceptor>,
    asked: RefCell<Vec<HttpRequest>>,
}

/// A server's side of TLS with a certificate that nobody has signed.
fn self_made() -> TlsAcceptor {
    let made =
        rcgen::generate_simple_self_signed(["other.example".to_owned()]).expect("certificate");
    let key = made.signing_key.serialize_der();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(
            vec![made.cert.der().clone()],
            PrivatePkcs8KeyDer::from(key).into(),
        )
        .expect("configuration");
    TlsAcceptor::from(Arc::new(config))
}

impl Runtime {
    async fn new(is_tls: bool) -> Self {
        Self {
            node: Node::new().await,
            listener: Async::<TcpListener>::bind(([127, 0, 0, 1], 0)).expect("listener"),
            tls: is_tls.then(self_made),
            asked: RefCell::default(),
        }
    }

    fn url(&self, path: &str) -> String {
        let address = self.listener.get_ref().local_addr().expect("address");
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{address}{path}")
    }

    /// Serves one connection after the other.
    async fn serve<T>(&self) -> T {
        loop {
            let (socket, _) = self.listener.accept().await.expect("accept");
            let fd = socket.as_raw_fd();
            let mut connection = match &self.tls {
                Some(tls) => StreamConnection::new(tls.accept(socket).await.expect("handshake")),
                None => StreamConnection::new(socket),
            }
            .with_socket(fd);
            let request = http::read_request(&mut connection).await;
            let request = request.expect("read").expect("valid").expect("a request");
            for newer in [V5, TUNNEL] {
                assert!(
                    !parse_upgrade(&request).is_ok_and(|upgrade| upgrade.offers_protocol(newer))
                );
            }
            self.asked.borrow_mut().push(request.clone());
            let outcome = serve_streaming_request(&self.node, &mut connection, &request).await;
            match outcome.expect("a route of ours") {
                Ok(Err(refusal)) => http::send_refusal(&mut connection, &refusal)
                    .await
                    .expect("say"),
                Ok(Ok(())) => {}
                // The agent left.
                Err(e) => log::debug!("{e}"),
            }
        }
    }
}

/// Runs `client` against a node whose streams are at `path` of a runtime.
fn with_runtime<T>(
    is_tls: bool,
    path: &str,
    change: impl FnOnce(&mut Node, &mut Runtime),
    client: impl AsyncFnOnce(Client, &Runtime, &Node) -> T,
) -> T {
    smol::block_on(async {
        let mut runtime = Runtime::new(is_tls).await;
        let mut node = Node::new().await;
        node.url = Some(runtime.url(path));
        change(&mut node, &mut runtime);
        let (connection, other) = pair(node.lag);
        let both = async {
            let client = client(other, &runtime, &node);
            smol::future::zip(serve_on(&node, connection), client)
                .await
                .1
        };
        let late = async {
            Timer::after(PATIENCE).await;
            panic!("{PATIENCE:?} are over");
        };
        smol::future::or(both, smol::future::or(runtime.serve(), late)).await
    })
}

fn nothing(_: &mut Node, _: &mut Runtime) {}

/// Bytes in which none that is lost, doubled or moved goes unnoticed.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 1_u32;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    };
    core::iter::repeat_with(next).take(len).collect()
}

// STREAM-01 CRI-79 CRI-81
#[test]
fn commands_over_every_protocol() {
    let path = format!("{EXEC}echo&command=hi&command=exit%203");
    for is_tls in [false, true] {
        let (head, frames) = with_runtime(is_tls, &path, nothing, async |mut client, _, _| {
            client
                .ask(&format!("{EXEC}x"), &format!("{SPDY}{V4}"))
                .await;
            let head = client.head().await;
            client
                .write(&streams(&["error", "stdout", "stderr"]).bytes)
                .await;
            (head, spdy_frames(&client.rest().await))
        });
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        assert!(head.contains(&format!("X-Stream-Protocol-Version: {V4}\r\n")));
        assert_eq!(payload_of(3, &frames), "hi exit 3");
        assert!(
            payload_of(1, &frames).contains("NonZeroExitCode"),
            "{frames:?}"
        );
        for protocol in [V4, V5] {
            let got = with_runtime(is_tls, &path, nothing, async |mut client, runtime, _| {
                client
                    .ask(&format!("{EXEC}x"), &format!("{WEBSOCKET}{protocol}"))
                    .await;
                let head = client.head().await;
                assert!(head.contains(&format!("Sec-WebSocket-Protocol: {protocol}\r\n")));
                let rest = client.rest().await;
                let asked = runtime.asked.borrow();
                let passed = asked[0].header_value("upgrade") == Some("websocket");
                assert_eq!(passed, protocol == V4, "the newest is SPDY there");
                messages(&rest)
            });
            assert_eq!(got[..2], ["1 ", "1 hi exit 3"], "{protocol}");
            assert!(got[2].contains(r#""reason":"ExitCode""#), "{got:?}");
            assert_eq!(got.last().map(String::as_str), Some("close"));
        }
    }
}

// CRI-79
#[test]
fn what_the_runtime_is_asked() {
    let path = format!("{EXEC}echo&command=hi");
    let headers = format!(
        "Host: node:10250\r\nAuthorization: Bearer secret\r\nCookie: a=b\r\nX-Forwarded-For: 192.0.2.7\r\n\
         User-Agent: kubectl\r\nExpect: 100-continue\r\n{WEBSOCKET}base64url.bearer.authorization.k8s.io.c2VjcmV0, {V4}"
    );
    with_runtime(false, &path, nothing, async |mut client, runtime, _| {
        client
            .ask(&format!("{EXEC}something&command=else"), &headers)
            .await;
        client.rest().await;
        let asked = runtime.asked.borrow();
        let request = &asked[0];
        assert_eq!(request.method, "GET");
        assert_eq!(request.path, ["exec", "n", "p", "c"]);
        assert_eq!(request.query_param("command"), Some("echo"));
        for (name, value) in [
            ("host", Some("node:10250")),
            ("user-agent", Some("kubectl")),
            ("x-forwarded-for", Some("192.0.2.7")),
            ("sec-websocket-protocol", Some(V4)),
            ("connection", Some("Upgrade")),
            ("authorization", None),
            ("cookie", None),
            ("expect", None),
        ] {
            assert_eq!(request.header_value(name), value, "{name}");
        }
    });
}

// CRI-79
#[test]
fn a_client_of_the_network_is_named() {
    smol::block_on(async {
        let listener = Async::<TcpListener>::bind(([127, 0, 0, 1], 0)).expect("listener");
        let address = listener.get_ref().local_addr().expect("address");
        let client = Async::<TcpStream>::connect(address).await.expect("connect");
        let (socket, _) = listener.accept().await.expect("accept");
        let fd = socket.as_raw_fd();
        let connection = StreamConnection::new(socket).with_socket(fd);
        let peer = connection.peer_address();
        assert_eq!(peer, client.get_ref().local_addr().ok().map(|a| a.ip()));
        let request = HttpRequest {
            method: "POST".into(),
            headers: vec![("x-forwarded-for".into(), "192.0.2.7".into())],
            ..HttpRequest::default()
        };
        let url = crate::net::Url::parse("http://127.0.0.1:1/exec/t").expect("url");
        assert_eq!(
            super::super::upstream::build_request_head(
                &request,
                &url,
                peer.map(|ip| ip.to_string())
            ),
            "POST /exec/t HTTP/1.1\r\nHost: 127.0.0.1:1\r\nX-Forwarded-For: 192.0.2.7, 127.0.0.1\r\n\
             Connection: Upgrade\r\nContent-Length: 0\r\n\r\n"
        );
    });
}

// CRI-81
#[test]
fn how_a_command_ended_is_told_by_the_newest_protocol() {
    for (command, expected) in [
        ("echo&command=hi", r#""status":"Success""#),
        ("exit%2042", r#""message":"42""#),
        (
            "/nonexistent",
            "occurred: error executing command in container: exec /nonexistent: no such file",
        ),
    ] {
        let path = format!("{EXEC}{command}");
        let got = with_runtime(false, &path, nothing, async |mut client, _, _| {
            client
                .ask(&format!("{EXEC}x"), &format!("{WEBSOCKET}{V5}"))
                .await;
            client.head().await;
            messages(&client.rest().await)
        });
        let status = got.iter().find(|message| message.starts_with("3 "));
        let status = status.unwrap_or_else(|| panic!("{got:?}"));
        assert!(status.contains(expected), "{status}");
        assert_eq!(
            status.matches("error executing").count(),
            expected.matches("error executing").count()
        );
    }
}

// STREAM-01 STREAM-09
#[test]
fn much_input_comes_back_whole() {
    let target = "/exec/n/p/c?input=1&output=1&command=cat";
    let sent = noise(MUCH);
    // Over SPDY, byte for byte.
    let got = with_runtime(false, target, nothing, async |mut client, _, _| {
        client.ask(target, &format!("{SPDY}{V4}")).await;
        client.head().await;
        let mut frames = streams(&["error", "stdin", "stdout"]);
        for piece in sent.chunks(32 * 1024) {
            frames.data(3, false, piece);
        }
        frames.data(3, true, b"");
        let (mut reader, mut writer) = smol::io::split(client.0);
        let send = async { writer.write_all(&frames.bytes).await.expect("send") };
        let mut got = Vec::new();
        let receive = async { reader.read_to_end(&mut got).await.expect("receive") };
        smol::future::zip(send, receive).await;
        got
    });
    let mut rest = &got[..];
    let mut whole = Vec::new();
    while let Some((&[a, b, c, d, _, x, y, z], after)) = rest.split_first_chunk::<8>() {
        let length = usize::try_from(u32::from_be_bytes([0, x, y, z])).expect("length");
        let (payload, after) = after.split_at(length);
        if u32::from_be_bytes([a, b, c, d]) == 5 {
            whole.extend_from_slice(payload);
        }
        rest = after;
    }
    assert!(whole == sent, "{} of {}", whole.len(), sent.len());
    // By the newest protocol, which is another one there.
    let got = with_runtime(true, target, nothing, async |mut client, _, _| {
        client.ask(target, &format!("{WEBSOCKET}{V5}")).await;
        client.head().await;
        let frames = sent
            .chunks(32 * 1024)
            .flat_map(|piece| masked(0x82, &[b"\0", piece].concat()));
        let bytes: Vec<u8> = frames.chain(masked(0x82, &[255, 0])).collect();
        let (mut reader, mut writer) = smol::io::split(client.0);
        let send = async { writer.write_all(&bytes).await.expect("send") };
        let mut got = Vec::new();
        let receive = async { reader.read_to_end(&mut got).await.expect("receive") };
        smol::future::zip(send, receive).await;
        ws_frames(&got)
    });
    let stdout = got
        .iter()
        .filter_map(|(_, payload)| payload.strip_prefix(b"\x01"));
    assert!(stdout.flatten().eq(&sent));
}

// STREAM-08
#[test]
fn sizes_pass_on() {
    let path = "/exec/n/p/c?input=1&output=1&tty=1&command=a";
    let (session, told) = Stub::new(None, true).session();
    with_runtime(
        false,
        path,
        |_, runtime| *runtime.node.session.borrow_mut() = Some(session),
        async |mut client, _, _| {
            client.ask(path, &format!("{WEBSOCKET}{V5}")).await;
            client.head().await;
            client
                .write(&masked(0x82, b"\x04{\"Width\":80,\"Height\":24}"))
                .await;
            client.write(&masked(0x82, &[255, 0])).await;
            client.rest().await;
        },
    );
    assert_eq!(told.borrow().sizes, [(80, 24)]);
}

// STREAM-01 STREAM-09
#[test]
fn a_client_that_goes_takes_its_session_along() {
    let path = "/exec/n/p/c?input=1&output=1&command=a";
    for reads in [true, false] {
        for protocol in [V4, V5] {
            let (session, told) = Stub::new(None, reads).session();
            let sent = with_runtime(
                false,
                path,
                |_, runtime| *runtime.node.session.borrow_mut() = Some(session),
                async |mut client, _, _| {
                    client.ask(path, &format!("{WEBSOCKET}{protocol}")).await;
                    client.head().await;
                    let all = masked(0x82, &[0; 60_000]).repeat(256);
                    let sent = Cell::new(0);
                    let write = async {
                        while sent.get() < all.len() {
                            let n = client.0.write(&all[sent.get()..]).await.expect("write");
                            sent.set(sent.get() + n);
                        }
                        true
                    };
                    // Nothing of it is taken any more, however often it is looked.
                    let full = async {
                        let (mut seen, mut looks) = (0, 0);
                        while looks < 200 {
                            Timer::after(carrier::PAUSE).await;
                            let now = sent.get();
                            looks = if now == seen { looks + 1 } else { 0 };
                            seen = now;
                        }
                        false
                    };
                    let sent = smol::future::or(write, full).await;
                    drop(client);
                    while !told.borrow().dropped {
                        Timer::after(Duration::from_millis(1)).await;
                    }
                    sent
                },
            );
            assert_eq!(
                sent, reads,
                "{protocol}: who does not read holds the other side back"
            );
        }
    }
}

// STREAM-04
#[test]
fn silence_ends_both_sides() {
    let path = "/exec/n/p/c?input=1&output=1&command=a";
    for protocol in [V4, V5] {
        let (session, told) = Stub::new(None, true).session();
        with_runtime(
            false,
            path,
            |node, runtime| {
                node.idle = Duration::from_millis(80);
                *runtime.node.session.borrow_mut() = Some(session);
            },
            async |mut client, _, _| {
                let begun = clock::mono_now();
                client.ask(path, &format!("{WEBSOCKET}{protocol}")).await;
                client.rest().await;
                assert!(clock::mono_now() - begun >= Duration::from_millis(80));
                while !told.borrow().dropped {
                    Timer::after(Duration::from_millis(1)).await;
                }
            },
        );
    }
}

// STREAM-01 STREAM-13
#[test]
fn ports_over_every_protocol() {
    let path = "/portForward/n/p";
    let frames = || {
        let mut frames = SpdyClient::default();
        frames.forward(1, "error", "8080", "0");
        frames.forward(3, "data", "8080", "0");
        frames.data(3, true, b"ping");
        frames.bytes
    };
    let pong = b"pong";
    for (headers, sent) in [
        (format!("{SPDY}{FORWARDING}"), frames()),
        (format!("{WEBSOCKET}{TUNNEL}"), masked(0x82, &frames())),
    ] {
        for is_tls in [false, true] {
            with_runtime(is_tls, path, nothing, async |mut client, runtime, node| {
                client.ask(path, &headers).await;
                let head = client.head().await;
                assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
                client.write(&sent).await;
                let mut port = forwarded(&runtime.node).await;
                let mut got = Vec::new();
                port.read_to_end(&mut got).await.expect("the client's end");
                assert_eq!(got, b"ping");
                port.write_all(pong).await.expect("answer");
                drop(port);
                let mut seen = Vec::new();
                while !seen.ends_with(pong) {
                    seen.extend(client.some(1).await);
                }
                assert!(node.ports.borrow().is_empty(), "they are named later");
                drop(client);
            });
        }
    }
}

// CRI-78 STREAM-14
#[test]
fn ports_of_a_query_are_told_to_the_runtime() {
    let path = "/portForward/n/p?port=8080";
    let got = with_runtime(false, path, nothing, async |mut client, runtime, node| {
        client
            .ask("/portForward/n/p?port=8080", &format!("{WEBSOCKET}{V4}"))
            .await;
        client.head().await;
        client.write(&masked(0x82, b"\0ping")).await;
        let mut port = forwarded(&runtime.node).await;
        let mut got = [0; 4];
        port.read_exact(&mut got).await.expect("data");
        port.write_all(b"pong").await.expect("answer");
        drop(port);
        assert_eq!(*node.ports.borrow(), [8080]);
        messages(&client.rest().await)
    });
    assert!(got.contains(&"0 pong".to_owned()), "{got:?}");
}

// STREAM-13
#[test]
fn one_port_of_the_local_socket_passes_whole() {
    let headers = format!("Connection: Upgrade\r\nUpgrade: {PROTOCOL}");
    let target = "/portForward/n/p?port=8080";
    let sent = noise(MUCH);
    let got = with_runtime(
        false,
        "/portForward/n/p",
        nothing,
        async |mut client, runtime, node| {
            client.ask(target, &headers).await;
            assert!(client.head().await.contains(PROTOCOL));
            assert_eq!(*node.ports.borrow(), [8080]);
            let echo = async {
                let mut port = forwarded(&runtime.node).await;
                let mut all = Vec::new();
                port.read_to_end(&mut all).await.expect("the client's end");
                port.write_all(&all).await.expect("echo");
            };
            let talk = async {
                client.write(&sent).await;
                let half = client.0.get_ref().shutdown(std::net::Shutdown::Write);
                half.expect("half close");
                client.rest().await
            };
            smol::future::zip(echo, talk).await.1
        },
    );
    assert!(got == sent, "{} of {}", got.len(), sent.len());
    // Nobody listens: the connection ends.
    let closed = "/portForward/n/p?port=80";
    let got = with_runtime(
        false,
        "/portForward/n/p",
        nothing,
        async |mut client, _, _| {
            client.ask(closed, &headers).await;
            client.head().await;
            client.rest().await
        },
    );
    assert!(got.is_empty());
}

/// A server that says `says` to whoever has asked, and stays until he leaves.
fn strange(says: Vec<u8>) -> (String, JoinHandle<()>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("listener");
    let address = listener.local_addr().expect("address");
    let thread = thread::spawn(move || {
        let (mut socket, _) = listener.accept().expect("accept");
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") {
            socket.read_exact(&mut byte).expect("head");
            head.push(byte[0]);
        }
        // He may have left in the middle of it.
        let _ = socket.write_all(&says);
        if says.is_empty() {
            let _ = socket.read(&mut byte);
        }
    });
    (format!("http://{address}/exec/token"), thread)
}

/// Returns the answer that a client gets if the runtime's server answers `says`.
fn told(says: &[u8], headers: &str) -> String {
    let (url, thread) = strange(says.to_vec());
    let answer = with_node(
        |node| {
            node.url = Some(url);
            node.creation = Duration::from_millis(500);
        },
        async |mut client, _| {
            client.ask(&format!("{EXEC}a"), headers).await;
            String::from_utf8_lossy(&client.rest().await).into_owned()
        },
    );
    thread.join().expect("server");
    answer
}

// CRI-79
#[test]
fn servers_that_do_not_do_as_they_should() {
    let endless = [b"HTTP/1.1 101 a\r\nA: ".as_slice(), &[b'a'; 100_000]].concat();
    let many = format!("HTTP/1.1 101 a\r\n{}\r\n", "A: b\r\n".repeat(100));
    let long = format!("HTTP/1.1 500 a\r\n\r\n{}", "x".repeat(1 << 20));
    let spdy = format!("{SPDY}{V4}");
    for (says, status, text) in [
        (&b""[..], 504, "did not answer within 500ms"),
        (b"hello\r\n\r\n", 502, "gave an invalid answer"),
        (b"HTTP/1.1 101 Sw", 502, "cut short"),
        (&endless, 502, "over 16384 bytes"),
        (many.as_bytes(), 502, "gave an invalid answer"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi",
            500,
            "invalid upgrade response: status code 200",
        ),
        (
            b"HTTP/1.1 404 Not Found\r\nContent-Length: 18\r\n\r\n404 page not found",
            404,
            "404 page not found",
        ),
        (
            b"HTTP/1.1 403 Forbidden\r\nX-Accepted-Stream-Protocol-Versions: v4\r\n\r\nno",
            403,
            "X-Accepted-Stream-Protocol-Versions: v4\r\n",
        ),
        (
            b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 7\r\nSet-Cookie: a=b\r\n\r\nlater",
            429,
            "Retry-After: 7\r\n",
        ),
        (
            b"HTTP/1.1 500 a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
            500,
            "Content-Length: 0\r\n",
        ),
        (long.as_bytes(), 500, "Content-Length: 16384\r\n"),
    ] {
        let answer = told(says, &spdy);
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{answer}"
        );
        assert!(answer.contains(text), "{text}: {answer}");
        assert!(!answer.contains("Set-Cookie"), "{answer}");
    }
    // Who is spoken with here hears it by his protocol.
    for (says, text) in [
        (&b""[..], "did not answer within 500ms"),
        (b"hello\r\n\r\n", "gave an invalid answer"),
        (
            b"HTTP/1.1 404 Not Found\r\n\r\n404 page not found",
            "404 page not found",
        ),
        (b"HTTP/1.1 101 a\r\n\r\nhello, who is there?", "SPDY"),
        (b"HTTP/1.1 101 a\r\n\r\n", "streams of the runtime"),
    ] {
        let answer = told(says, &format!("{WEBSOCKET}{V5}"));
        assert!(
            answer.contains("InternalError") && answer.contains(text),
            "{answer}"
        );
    }
    // What is no client of streams is not passed on.
    let answer = with_node(
        |node| node.url = Some("http://127.0.0.1:1/".into()),
        async |mut client, _| {
            client.ask(&format!("{EXEC}a"), "A: b").await;
            String::from_utf8(client.rest().await).expect("text")
        },
    );
    assert!(answer.contains("Upgrade request required"), "{answer}");
}

// CRI-79 CRI-80
#[test]
fn nobody_listens_there() {
    let closed = format!("http://127.0.0.1:{}/exec/t", held_port());
    let port = format!("Connection: Upgrade\r\nUpgrade: {PROTOCOL}");
    for (url, status, text) in [
        (&*closed, 502, "Connection refused"),
        ("", 500, "cannot be used"),
        ("http://192.0.2.1:80/exec/t", 500, "is not of this node"),
    ] {
        for (target, headers) in [
            (&*format!("{EXEC}a"), &*format!("{SPDY}{V4}")),
            ("/portForward/n/p", &*format!("{WEBSOCKET}{TUNNEL}")),
            ("/portForward/n/p?port=8080", &port),
        ] {
            let answer = with_node(
                |node| node.url = Some(url.to_owned()),
                async |mut client, _| {
                    client.ask(target, headers).await;
                    String::from_utf8(client.rest().await).expect("text")
                },
            );
            assert!(
                answer.starts_with(&format!("HTTP/1.1 {status} ")),
                "{answer}"
            );
            assert!(answer.contains(text), "{answer}");
        }
    }
}

// CRI-78
#[test]
fn what_the_runtime_says_instead_of_a_url() {
    for (error, status) in [
        (RuntimeError::NotFound("container c".into()), 404),
        (
            RuntimeError::Exhausted("maximum number of in-flight requests exceeded".into()),
            429,
        ),
        (RuntimeError::Failed("no".into()), 500),
    ] {
        assert_eq!(streams_refusal(error).status, status);
    }
    smol::block_on(async {
        let (mut connection, mut client) = pair(None);
        let refusal = Refusal::new(429, "later");
        http::send_refusal(&mut connection, &refusal)
            .await
            .expect("say");
        drop(connection);
        let answer = String::from_utf8(client.rest().await).expect("text");
        assert!(answer.contains("\r\nRetry-After: 60\r\n"), "{answer}");
    });
}
