//! Every protocol over a pair of sockets, with the fake runtime behind.

mod turns;
mod upstream;

use alloc::rc::Rc;
use core::cell::{Cell, RefCell};
use core::time::Duration;
use std::os::unix::net::UnixStream;

use async_io::{Async, Timer};
use nix::sys::socket::{setsockopt, sockopt::SndBufForce};
use smol::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;
use crate::api::cri::{ContainerConfig, ExecOutput, SandboxConfig};
use crate::api::{ContainerId, SandboxId, link::LinkClass};
use crate::runtime::fake::Fake;
use crate::runtime::{
    ImageService as _, PortConnector, RuntimeCall, RuntimeService as _, SessionStart, StreamRoute,
    StreamSession,
};
use crate::server::backend::{BackendReply, RunningContainer};
use crate::server::connection::StreamTransport;
use crate::stream::remote_command::CREATION_TIMEOUT;
use crate::stream::testing::{SpdyClient, masked, spdy_frames, ws_frames};
use crate::sys::clock;

/// Time that only a test that hangs takes, also where an emulator runs the tests beside others.
const PATIENCE: Duration = Duration::from_mins(5);

/// A node with a pod `n/p` that has a container `c`.
struct Node {
    runtime: Fake,
    sandbox: SandboxId,
    container: ContainerId,
    tty: bool,
    stdin_once: bool,
    idle: Duration,
    creation: Duration,
    ended: Cell<u32>,
    /// Session that stands in for the runtime's next command.
    session: RefCell<Option<StreamSession>>,
    /// URL of the runtime's streams, if they are elsewhere.
    url: Option<String>,
    /// Ports that were named when it was asked for that.
    ports: RefCell<Vec<u16>>,
    /// Bytes that may wait for the client in the kernel, where that is not its default.
    lag: Option<usize>,
    /// Bytes after which a session ends; its client is on another machine then.
    limit: Option<u64>,
}

impl Node {
    async fn new() -> Self {
        let runtime = Fake::new();
        runtime.add_image("i");
        let config = SandboxConfig {
            uid: "u".into(),
            name: "p".into(),
            namespace: "n".into(),
            ..SandboxConfig::default()
        };
        let sandbox = runtime.run_pod_sandbox(&config).await.expect("sandbox");
        let images = runtime.list_images().await.expect("images");
        let container = ContainerConfig {
            name: "c".into(),
            image: images[0].id.clone(),
            ..ContainerConfig::default()
        };
        let container = runtime
            .create_container(&sandbox.id, &container, Some(&config))
            .await;
        let container = container.expect("container");
        runtime.start_container(&container).await.expect("start");
        Self {
            runtime,
            sandbox: sandbox.id,
            container,
            tty: false,
            stdin_once: false,
            idle: Duration::from_hours(4),
            creation: CREATION_TIMEOUT,
            ended: Cell::new(0),
            session: RefCell::new(None),
            url: None,
            ports: RefCell::default(),
            lag: None,
            limit: None,
        }
    }
}

impl Node {
    fn elsewhere<'a, T: 'a>(&self) -> Option<RuntimeCall<'a, StreamRoute<T>>> {
        let url = self.url.clone()?;
        Some(Box::pin(async { Ok(StreamRoute::Url(url)) }))
    }
}

impl StreamingBackend for Node {
    fn running_container<'a>(
        &'a self,
        pod: PodName<'a>,
        container: &'a str,
    ) -> BackendReply<'a, RunningContainer> {
        Box::pin(async move {
            if pod.name != "p" {
                return Err(Refusal::not_found("pods not found"));
            }
            if container != "c" {
                let text = format!("container not found (\"{container}\")");
                return Err(Refusal::new(500, text));
            }
            Ok(RunningContainer {
                id: self.container.clone(),
                tty: self.tty,
                stdin_once: self.stdin_once,
            })
        })
    }

    fn ready_sandbox<'a>(&'a self, _: PodName<'a>) -> BackendReply<'a, SandboxId> {
        Box::pin(async { Ok(self.sandbox.clone()) })
    }

    fn open_exec<'a>(
        &'a self,
        id: &'a ContainerId,
        options: &'a ExecOptions,
    ) -> RuntimeCall<'a, StreamRoute<SessionStart<'a>>> {
        if let Some(url) = self.elsewhere() {
            return url;
        }
        if self.session.borrow().is_some() {
            let start: SessionStart<'a> = Box::pin(async { Ok(self.session.take().expect("one")) });
            return Box::pin(async { Ok(StreamRoute::Local(start)) });
        }
        self.runtime.exec(id, options)
    }

    fn run_command<'a>(
        &'a self,
        id: &'a ContainerId,
        command: &'a [String],
        limit: usize,
    ) -> RuntimeCall<'a, ExecOutput> {
        self.runtime.exec_sync(id, command, None, limit)
    }

    fn open_attach<'a>(
        &'a self,
        id: &'a ContainerId,
        options: AttachOptions,
    ) -> RuntimeCall<'a, StreamRoute<SessionStart<'a>>> {
        if let Some(url) = self.elsewhere() {
            return url;
        }
        self.runtime.attach(id, options)
    }

    fn open_port_forward<'a>(
        &'a self,
        id: &'a SandboxId,
        ports: &'a [u16],
    ) -> RuntimeCall<'a, StreamRoute<PortConnector<'a>>> {
        self.ports.borrow_mut().extend_from_slice(ports);
        if let Some(url) = self.elsewhere() {
            return url;
        }
        self.runtime.port_forward(id, ports)
    }

    fn idle_timeout(&self) -> Duration {
        self.idle
    }

    fn creation_timeout(&self) -> Duration {
        self.creation
    }

    fn session_limit_bytes(&self) -> Option<u64> {
        self.limit
    }

    fn release_stream_memory(&self) {
        self.ended.set(self.ended.get() + 1);
    }
}

const SPDY: &str = "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: ";
const WEBSOCKET: &str = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: ";

/// Serves one request on `connection`, as the servers do.
async fn serve_on(node: &Node, mut connection: StreamConnection) {
    let request = http::read_request(&mut connection).await;
    let request = request.expect("read").expect("valid").expect("a request");
    let outcome = serve_streaming_request(node, &mut connection, &request).await;
    match outcome.expect("a route of ours") {
        Ok(Err(refusal)) => http::send_refusal(&mut connection, &refusal)
            .await
            .expect("refuse"),
        Ok(Ok(())) => {}
        // The client left.
        Err(e) => log::debug!("{e}"),
    }
}

/// The other end, as a client uses it.
struct Client(Async<UnixStream>);

impl Client {
    async fn ask(&mut self, target: &str, headers: &str) {
        let method = if headers.contains("websocket") {
            "GET"
        } else {
            "POST"
        };
        let head = format!("{method} {target} HTTP/1.1\r\n{headers}\r\n\r\n");
        self.0.write_all(head.as_bytes()).await.expect("request");
    }

    async fn write(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).await.expect("write");
    }

    /// The head of the answer.
    async fn head(&mut self) -> String {
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") {
            self.0.read_exact(&mut byte).await.expect("head");
            head.push(byte[0]);
        }
        String::from_utf8(head).expect("text")
    }

    /// Reads all that comes until the end.
    async fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        self.0.read_to_end(&mut rest).await.expect("the end");
        rest
    }

    /// Reads `min` bytes more.
    async fn some(&mut self, min: usize) -> Vec<u8> {
        let mut bytes = vec![0; min];
        self.0.read_exact(&mut bytes).await.expect("more");
        bytes
    }
}

fn pair(lag: Option<usize>) -> (StreamConnection, Client) {
    use std::os::fd::AsRawFd as _;
    let (ours, theirs) = Async::<UnixStream>::pair().expect("socket pair");
    if let Some(bytes) = lag {
        setsockopt(&ours, SndBufForce, &bytes).expect("a larger buffer");
    }
    let socket = ours.as_raw_fd();
    (
        StreamConnection::new(ours).with_socket(socket),
        Client(theirs),
    )
}

/// Runs `client` against `node` to the end of both.
fn with_node<T>(change: impl FnOnce(&mut Node), client: impl AsyncFnOnce(Client, &Node) -> T) -> T {
    smol::block_on(async {
        let mut node = Node::new().await;
        change(&mut node);
        let (mut connection, other) = pair(node.lag);
        if node.limit.is_some() {
            connection = connection.with_transport(StreamTransport::Counted {
                socket: other.0.as_raw_fd(),
                class: Rc::new(Cell::new(LinkClass::Stream)),
                leaves: true,
            });
        }
        let both = smol::future::zip(serve_on(&node, connection), client(other, &node));
        let late = async {
            Timer::after(PATIENCE).await;
            panic!("{PATIENCE:?} are over");
        };
        smol::future::or(both, late).await.1
    })
}

fn streams(kinds: &[&str]) -> SpdyClient {
    let mut client = SpdyClient::default();
    for (id, kind) in (1..).step_by(2).zip(kinds) {
        client.stream(id, kind);
    }
    client
}

const EXEC: &str = "/exec/n/p/c?output=1&error=1&command=";

// SRV-12
#[test]
fn routes() {
    let pod = PodName {
        namespace: "n",
        name: "p",
        uid: None,
    };
    let named = PodName {
        uid: Some("u"),
        ..pod
    };
    for (path, expected) in [
        ("exec/n/p/c", Some(StreamingRoute::Exec(pod, "c"))),
        ("exec/n/p/u/c", Some(StreamingRoute::Exec(named, "c"))),
        ("attach/n/p/c", Some(StreamingRoute::Attach(pod, "c"))),
        ("attach/n/p/u/c", Some(StreamingRoute::Attach(named, "c"))),
        ("run/n/p/c", Some(StreamingRoute::Run(pod, "c"))),
        ("portForward/n/p", Some(StreamingRoute::PortForward(pod))),
        (
            "portForward/n/p/u",
            Some(StreamingRoute::PortForward(named)),
        ),
        ("portForward/n/p/u/c", None),
        ("exec/n/p", None),
        ("exec/n/p/u/c/x", None),
        ("Exec/n/p/c", None),
        ("exec", None),
        ("pods/n/p/c", None),
    ] {
        let path: Vec<&str> = path.split('/').collect();
        assert_eq!(parse_streaming_route(&path), expected, "{path:?}");
    }
}

// SRV-12 SRV-17 STREAM-01 STREAM-03 STREAM-05 STREAM-10 STREAM-14
#[test]
fn what_is_refused_before_the_upgrade() {
    let v4 = format!("{SPDY}v4.channel.k8s.io");
    for (target, headers, status, text) in [
        (
            "/exec/n/x/c?output=1&command=a",
            &*v4,
            404,
            "pods not found",
        ),
        (
            "/exec/n/p/d?output=1&command=a",
            &v4,
            500,
            "container not found (\"d\")",
        ),
        (
            "/attach/n/p/d?output=1",
            &v4,
            500,
            "container not found (\"d\")",
        ),
        (
            "/exec/n/p/c?command=a",
            &v4,
            400,
            "at least 1 of stdin, stdout, stderr",
        ),
        ("/exec/n/p/c?output=1", &v4, 400, "command: required"),
        (
            "/exec/n/p/c?output=1&command=a",
            "A: b",
            400,
            "Upgrade request required",
        ),
        (
            "/exec/n/p/c?output=1&command=a",
            &format!("{SPDY}v9.channel.k8s.io"),
            403,
            "X-Accepted-Stream-Protocol-Versions: v4.channel.k8s.io",
        ),
        (
            "/exec/n/p/c?output=1&command=a",
            &format!("{WEBSOCKET}v9.channel.k8s.io"),
            403,
            "v9.channel.k8s.io",
        ),
        (
            "/portForward/n/p",
            &format!("{WEBSOCKET}v4.channel.k8s.io"),
            400,
            "\"port\" is required",
        ),
        (
            "/portForward/n/p?port=0",
            &format!("{WEBSOCKET}v4.channel.k8s.io"),
            400,
            "as a port",
        ),
    ] {
        let answer = with_node(
            |_| (),
            async |mut client, _| {
                client.ask(target, headers).await;
                String::from_utf8(client.rest().await).expect("text")
            },
        );
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{target}: {answer}"
        );
        assert!(answer.contains(text), "{target}: {answer}");
    }
}

// STREAM-04 STREAM-05 STREAM-06 STREAM-07
#[test]
fn exec_over_spdy() {
    let failure = r#"{"details":{"causes":[{"message":"3","reason":"ExitCode"}]},"message":"command terminated with non-zero exit code: exit status 3","metadata":{},"reason":"NonZeroExitCode","status":"Failure"}"#;
    for (versions, chosen, command, error) in [
        (
            "v5.channel.k8s.io, v4.channel.k8s.io",
            "v4.channel.k8s.io",
            "echo&command=hi",
            r#"{"metadata":{},"status":"Success"}"#,
        ),
        (
            "v4.channel.k8s.io",
            "v4.channel.k8s.io",
            "echo&command=hi&command=exit%203",
            failure,
        ),
        (
            "v3.channel.k8s.io",
            "v3.channel.k8s.io",
            "echo&command=hi",
            "",
        ),
        (
            "v2.channel.k8s.io",
            "v2.channel.k8s.io",
            "echo&command=hi&command=exit%203",
            "command terminated with non-zero exit code: exit status 3",
        ),
        ("channel.k8s.io", "channel.k8s.io", "echo&command=hi", ""),
    ] {
        let (head, frames) = with_node(
            |_| (),
            async |mut client, node| {
                client
                    .ask(&format!("{EXEC}{command}"), &format!("{SPDY}{versions}"))
                    .await;
                let head = client.head().await;
                client
                    .write(&streams(&["error", "stdout", "stderr"]).bytes)
                    .await;
                let frames = spdy_frames(&client.rest().await);
                drop(client);
                assert_eq!(node.ended.get(), 0, "the client leaves first");
                (head, frames)
            },
        );
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        assert!(
            head.contains(&format!("X-Stream-Protocol-Version: {chosen}\r\n")),
            "{head}"
        );
        let text = if command.contains("exit") {
            "hi exit 3"
        } else {
            "hi"
        };
        let data = |id: u32, text: &str| format!("data {id} {text:?}");
        let mut expected = vec![
            "reply 1".into(),
            "reply 3".into(),
            "reply 5".into(),
            data(3, text),
        ];
        expected.extend((!error.is_empty()).then(|| data(1, error)));
        expected.extend([5, 3, 1].map(|id| format!("data {id} \"\" fin")));
        expected.push("go away 5 0".into());
        let mut frames = frames;
        let finished = |f: &String| f.ends_with("fin");
        let at = frames.iter().position(finished).expect("finished");
        frames[at..].sort();
        let at = expected.iter().position(finished).expect("finished");
        expected[at..].sort();
        assert_eq!(frames, expected, "{versions} {command}");
    }
}

/// The payload of all data frames of one stream.
fn payload_of(id: u32, frames: &[String]) -> String {
    let prefix = format!("data {id} ");
    let data = frames.iter().filter_map(|f| f.strip_prefix(&prefix));
    let texts = data.map(|text| text.strip_suffix(" fin").unwrap_or(text));
    texts.map(|text| text.trim_matches('"')).collect()
}

// STREAM-09
#[test]
fn input_ends_where_the_client_ends_it() {
    let frames = with_node(
        |_| (),
        async |mut client, _| {
            let target = "/exec/n/p/c?input=1&output=1&command=cat";
            client
                .ask(target, &format!("{SPDY}v4.channel.k8s.io"))
                .await;
            client.head().await;
            let mut frames = streams(&["error", "stdin", "stdout"]);
            frames.data(3, false, b"one ").data(3, true, b"two");
            client.write(&frames.bytes).await;
            spdy_frames(&client.rest().await)
        },
    );
    assert_eq!(payload_of(5, &frames), "one two");
    assert!(payload_of(1, &frames).contains("Success"), "{frames:?}");
}

fn messages(bytes: &[u8]) -> Vec<String> {
    let text = |(first, payload): (u8, Vec<u8>)| match first {
        0x88 => "close".to_owned(),
        _ => {
            let (channel, text) = payload.split_first().expect("a channel");
            format!("{channel} {}", String::from_utf8_lossy(text))
        }
    };
    ws_frames(bytes).into_iter().map(text).collect()
}

// STREAM-02
#[test]
fn each_kind_of_client_is_served_without_the_other() {
    // As an apiserver sends on what its clients speak: the newest kinds as SPDY if the node does not declare that it knows
    // them, older ones never as anything but WebSocket.
    for (headers, upgrade, chosen) in [
        (
            format!("{SPDY}v5.channel.k8s.io, v4.channel.k8s.io"),
            "SPDY/3.1",
            "X-Stream-Protocol-Version: v4.channel.k8s.io",
        ),
        (
            format!("{WEBSOCKET}channel.k8s.io"),
            "websocket",
            "Sec-WebSocket-Protocol: channel.k8s.io",
        ),
        (
            format!("{WEBSOCKET}base64.channel.k8s.io"),
            "websocket",
            "Sec-WebSocket-Protocol: base64.channel.k8s.io",
        ),
        (
            format!("{WEBSOCKET}v4.channel.k8s.io"),
            "websocket",
            "Sec-WebSocket-Protocol: v4.channel.k8s.io",
        ),
    ] {
        let head = with_node(
            |_| (),
            async |mut client, _| {
                client
                    .ask(&format!("{EXEC}echo&command=hi"), &headers)
                    .await;
                client.head().await
            },
        );
        assert!(head.starts_with("HTTP/1.1 101 "), "{headers}: {head}");
        let lower = head.to_lowercase();
        let has = |line: &str| lower.lines().any(|l| l == line.to_lowercase());
        assert!(has(&format!("Upgrade: {upgrade}")) && has(chosen), "{head}");
    }
}

// STREAM-10 STREAM-11
#[test]
fn exec_over_websocket() {
    const SUCCESS: &str = r#"{"metadata":{},"status":"Success"}"#;
    let status = format!("3 {SUCCESS}");
    let base64 = "51 eyJtZXRhZGF0YSI6e30sInN0YXR1cyI6IlN1Y2Nlc3MifQ==";
    for (protocol, input, expected) in [
        (
            "v5.channel.k8s.io",
            [masked(0x82, b"\0in"), masked(0x82, &[255, 0])].concat(),
            &["1 ", "1 in", &status, "close"][..],
        ),
        (
            "v4.channel.k8s.io",
            Vec::new(),
            &["1 ", "1 hi", &status, "close"],
        ),
        ("channel.k8s.io", Vec::new(), &["1 ", "1 hi", "close"]),
        (
            "v4.base64.channel.k8s.io",
            Vec::new(),
            &["49 ", "49 aGk=", base64, "close"],
        ),
        (
            "base64.channel.k8s.io",
            Vec::new(),
            &["49 ", "49 aGk=", "close"],
        ),
    ] {
        let (head, got) = with_node(
            |_| (),
            async |mut client, _| {
                let command = if input.is_empty() {
                    "output=1&command=echo&command=hi"
                } else {
                    "output=1&input=1&command=cat"
                };
                let target = format!("/exec/n/p/c?{command}");
                client.ask(&target, &format!("{WEBSOCKET}{protocol}")).await;
                let head = client.head().await;
                client.write(&input).await;
                let rest = client.rest().await;
                (head, messages(&rest))
            },
        );
        assert!(
            head.contains(&format!("Sec-WebSocket-Protocol: {protocol}\r\n")),
            "{head}"
        );
        assert_eq!(got, expected, "{protocol}");
    }
}

/// A process as a test needs it.
struct Stub {
    /// Bytes that it still writes; it ends behind them.
    writes: Option<u64>,
    /// Set if the process reads its input.
    reads: bool,
    told: Rc<RefCell<Told>>,
}

/// Record of a process's life.
#[derive(Debug, Default)]
struct Told {
    read: u64,
    sizes: Vec<(u16, u16)>,
    dropped: bool,
}

impl Stub {
    fn new(writes: Option<u64>, reads: bool) -> Self {
        Self {
            writes,
            reads,
            told: Rc::default(),
        }
    }

    fn session(self) -> (StreamSession, Rc<RefCell<Told>>) {
        let told = Rc::clone(&self.told);
        let session = StreamSession {
            streams: Box::new(self),
            end: Box::pin(async { Ok(0) }),
        };
        (session, told)
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        self.told.borrow_mut().dropped = true;
    }
}

impl crate::runtime::ProcessStreams for Stub {
    fn poll_output(
        &mut self,
        _: &mut core::task::Context<'_>,
        room: crate::runtime::OutputRoom,
        buffer: &mut [u8],
    ) -> core::task::Poll<io::Result<crate::runtime::OutputRead>> {
        use core::task::Poll;
        let Some(left) = &mut self.writes else {
            return Poll::Pending;
        };
        let n = room
            .stdout
            .min(buffer.len())
            .min(usize::try_from(*left).expect("small"));
        if *left == 0 {
            return Poll::Ready(Ok(crate::runtime::OutputRead::End));
        }
        if n == 0 {
            return Poll::Pending;
        }
        buffer[..n].fill(b'x');
        *left -= u64::try_from(n).expect("small");
        Poll::Ready(Ok(crate::runtime::OutputRead::Stdout(n)))
    }

    fn poll_input(
        &mut self,
        _: &mut core::task::Context<'_>,
        bytes: &[u8],
    ) -> core::task::Poll<io::Result<usize>> {
        if !self.reads {
            return core::task::Poll::Pending;
        }
        self.told.borrow_mut().read += u64::try_from(bytes.len()).expect("small");
        core::task::Poll::Ready(Ok(bytes.len()))
    }

    fn end_input(&mut self) {
        self.writes.get_or_insert(0);
    }

    fn resize_terminal(&mut self, columns: u16, rows: u16) {
        self.told.borrow_mut().sizes.push((columns, rows));
    }
}

/// A client of `exec -it`, and what its process was told.
fn with_stub<T>(
    stub: Stub,
    change: impl FnOnce(&mut Node),
    client: impl AsyncFnOnce(Client) -> T,
) -> (T, Told) {
    let (session, told) = stub.session();
    let result = with_node(
        |node| {
            *node.session.borrow_mut() = Some(session);
            change(node);
        },
        async |mut other, _| {
            let target = "/exec/n/p/c?input=1&output=1&tty=1&command=a";
            other.ask(target, &format!("{SPDY}v4.channel.k8s.io")).await;
            other.head().await;
            let frames = streams(&["error", "stdin", "stdout", "resize"]);
            other.write(&frames.bytes).await;
            client(other).await
        },
    );
    let told = core::mem::take(&mut *told.borrow_mut());
    (result, told)
}

// STREAM-08
#[test]
fn sizes_reach_the_terminal() {
    let stub = Stub::new(None, false);
    let ((), told) = with_stub(
        stub,
        |_| (),
        async |mut client| {
            let mut frames = SpdyClient::default();
            frames.data(
                7,
                false,
                br#"{"Width":80,"Height":24}{"Width":0,"Height":9}"#,
            );
            frames.data(7, false, br#"{"Width":100,"Height":30}"#);
            frames.data(3, true, b"");
            client.write(&frames.bytes).await;
            client.rest().await;
        },
    );
    assert_eq!(told.sizes, [(80, 24), (100, 30)]);
}

// STREAM-09
#[test]
fn nothing_stays_behind_when_the_client_goes() {
    for reads in [true, false] {
        let stub = Stub::new(None, reads);
        let (sent, told) = with_stub(
            stub,
            |_| (),
            async |mut client| {
                let mut frames = SpdyClient::default();
                frames.data(3, false, &[b'y'; 60_000]);
                // More than the session and the kernel hold, if nobody reads it.
                let all = frames.bytes.repeat(64);
                let sent = Cell::new(0);
                let write = async {
                    while sent.get() < all.len() {
                        let n = client.0.write(&all[sent.get()..]).await.expect("write");
                        sent.set(sent.get() + n);
                    }
                    true
                };
                // Nothing of it is taken any more, however often the session may look.
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
                smol::future::or(write, full).await
            },
        );
        assert_eq!(
            sent, reads,
            "an input that nobody reads holds its client back"
        );
        assert!(told.dropped);
        assert!(!reads || told.read > 0);
    }
}

// STREAM-04 STREAM-06
#[test]
fn streams_that_are_not_made_in_time() {
    assert_eq!(CREATION_TIMEOUT, Duration::from_secs(30));
    for (made, starts) in [
        (&["error"][..], false),
        (&["error", "stdin", "resize"], false),
        (&["error", "stdin", "stdout", "resize"], true),
    ] {
        let (session, told) = Stub::new(None, true).session();
        let (frames, started) = with_node(
            |node| {
                *node.session.borrow_mut() = Some(session);
                node.creation = Duration::from_millis(20);
                // Who has made all his streams has all the time there is.
                node.idle = Duration::from_millis(200);
            },
            async |mut client, node| {
                let target = "/exec/n/p/c?input=1&output=1&tty=1&command=a";
                let begun = clock::mono_now();
                client
                    .ask(target, &format!("{SPDY}v4.channel.k8s.io"))
                    .await;
                client.head().await;
                client.write(&streams(made).bytes).await;
                let frames = spdy_frames(&client.rest().await);
                assert!(
                    clock::mono_now() - begun >= if starts { node.idle } else { node.creation }
                );
                (frames, node.session.borrow().is_none())
            },
        );
        assert_eq!(started, starts, "{made:?}");
        assert_eq!(frames.len(), made.len(), "one answer each: {frames:?}");
        assert!(told.borrow().dropped);
    }
}

// STREAM-04
#[test]
fn an_idle_connection_is_closed() {
    let stub = Stub::new(None, true);
    let (rest, told) = with_stub(
        stub,
        |node| node.idle = Duration::from_millis(80),
        async |mut client| client.rest().await,
    );
    assert!(told.dropped);
    assert!(spdy_frames(&rest).iter().all(|f| f.starts_with("reply")));
}

/// A stream that always has something to do leaves others their turns, and its buffers stay what they are.
#[test]
fn a_busy_stream_leaves_turns_to_others() {
    // All of it finds room in the kernel, so that nothing but a pause ends the stream's turn.
    const BYTES: u64 = 8 << 20;
    const LAG: usize = 64 << 20;
    if !nix::unistd::geteuid().is_root() {
        skipped!("turns beside a busy stream: a buffer of that size needs root");
        return;
    }
    let stub = Stub::new(Some(BYTES), false);
    let turns = Cell::new(0_u64);
    let (got, _) = with_stub(
        stub,
        |node| node.lag = Some(LAG),
        async |mut client| {
            let read = async {
                let mut buffer = vec![0; 64 * 1024];
                let mut got = 0;
                loop {
                    match client.0.read(&mut buffer).await.expect("read") {
                        0 => return got,
                        n => got += u64::try_from(n).expect("small"),
                    }
                }
            };
            let other = async {
                loop {
                    // Not a timer: a short one has passed before a slow machine looks at it first.
                    smol::future::yield_now().await;
                    turns.set(turns.get() + 1);
                }
            };
            smol::future::or(read, other).await
        },
    );
    assert!(got > BYTES, "{got}");
    // A round moves a buffer each way. A slow machine finds some pauses over when it looks at them first.
    let rounds = usize::try_from(BYTES).expect("small") / crate::stream::PAYLOAD_BYTES;
    let at_least = u64::try_from(rounds / carrier::TURNS / 2).expect("small");
    assert!(
        turns.get() >= at_least,
        "{} turns, {at_least} wanted",
        turns.get()
    );
}

// STREAM-09 SRV-12
#[test]
fn attach() {
    let frames = with_node(
        |node| node.stdin_once = true,
        async |mut client, node| {
            let target = "/attach/n/p/u/c?input=1&output=1&tty=1";
            client
                .ask(target, &format!("{SPDY}v4.channel.k8s.io"))
                .await;
            client.head().await;
            // No terminal: a client that makes a stream for sizes is refused it.
            let mut frames = streams(&["error", "stdin", "stdout", "resize"]);
            frames.data(3, true, b"hello");
            client.write(&frames.bytes).await;
            let frames = spdy_frames(&client.rest().await);
            assert!(node.runtime.pods()[0].is_running());
            frames
        },
    );
    assert_eq!(payload_of(5, &frames), "hello");
    assert!(frames.contains(&"reset 7 1".to_owned()), "{frames:?}");
    assert!(payload_of(1, &frames).contains("Success"), "{frames:?}");
}

// SRV-12
#[test]
fn run_without_streams() {
    for (method, cmd, status, text) in [
        ("POST", "echo+a+b", 200, "a b"),
        ("POST", "exit%20x+exit", 200, ""),
        ("POST", "", 400, "cmd: required"),
        ("GET", "echo+a", 405, "not allowed"),
    ] {
        let answer = with_node(
            |_| (),
            async |mut client, _| {
                let head = format!("{method} /run/n/p/c?cmd={cmd} HTTP/1.1\r\n\r\n");
                client.write(head.as_bytes()).await;
                String::from_utf8(client.rest().await).expect("text")
            },
        );
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{cmd}: {answer}"
        );
        assert!(answer.trim_end().contains(text), "{cmd}: {answer}");
    }
}

/// The test's end of a forwarded port.
async fn forwarded(node: &Node) -> Async<UnixStream> {
    loop {
        if let Some(forwarded) = node.runtime.take_forwarded().pop() {
            assert_eq!(forwarded.sandbox, node.sandbox);
            return Async::new(forwarded.stream).expect("async");
        }
        Timer::after(Duration::from_millis(1)).await;
    }
}

// STREAM-12 STREAM-13
#[test]
fn ports_over_spdy() {
    let frames = with_node(
        |_| (),
        async |mut client, node| {
            client
                .ask("/portForward/n/p", &format!("{SPDY}portforward.k8s.io"))
                .await;
            assert!(client.head().await.contains("portforward.k8s.io"));
            let mut frames = SpdyClient::default();
            // Nobody listens at 80; that is no other connection's business.
            frames
                .forward(1, "error", "80", "0")
                .forward(3, "data", "80", "0");
            frames
                .forward(5, "error", "8080", "1")
                .forward(7, "data", "8080", "1");
            frames.data(7, false, b"ping");
            client.write(&frames.bytes).await;
            let mut port = forwarded(node).await;
            let mut got = [0; 4];
            port.read_exact(&mut got).await.expect("data");
            assert_eq!(&got, b"ping");
            // Half-close, from the client.
            let mut end = SpdyClient::default();
            end.data(7, true, b"!");
            client.write(&end.bytes).await;
            let mut last = Vec::new();
            port.read_to_end(&mut last).await.expect("the client's end");
            assert_eq!(last, b"!");
            port.write_all(b"pong").await.expect("answer");
            drop(port);
            // Until the port's end has arrived.
            let mut seen = Vec::new();
            loop {
                seen.extend(client.some(1).await);
                let fin = b"pong\0\0\0\x07\x01\0\0\0";
                if seen.windows(fin.len()).any(|w| w == fin) {
                    break;
                }
            }
            let mut bye = SpdyClient::default();
            bye.numbers(7, &[0, 0]);
            client.write(&bye.bytes).await;
            seen.extend(client.rest().await);
            spdy_frames(&seen)
        },
    );
    let refused = payload_of(1, &frames);
    assert!(
        refused.contains("error forwarding port 80: 127.0.0.1:80: Connection refused"),
        "{frames:?}"
    );
    assert_eq!(payload_of(7, &frames), "pong");
    assert!(!frames.contains(&"reset 7 5".to_owned()), "{frames:?}");
}

// STREAM-13
#[test]
fn a_port_may_end_first() {
    with_node(
        |_| (),
        async |mut client, node| {
            client
                .ask("/portForward/n/p", &format!("{SPDY}portforward.k8s.io"))
                .await;
            client.head().await;
            let mut frames = SpdyClient::default();
            frames
                .forward(1, "error", "8080", "")
                .forward(3, "data", "8080", "");
            client.write(&frames.bytes).await;
            let mut port = forwarded(node).await;
            nix::sys::socket::shutdown(
                std::os::fd::AsRawFd::as_raw_fd(&port),
                nix::sys::socket::Shutdown::Write,
            )
            .expect("half close");
            let mut seen = Vec::new();
            while !seen.ends_with(b"\0\0\0\x01\x01\0\0\0") {
                seen.extend(client.some(1).await);
            }
            // What the client sends after still arrives.
            let mut more = SpdyClient::default();
            more.data(3, true, b"late");
            client.write(&more.bytes).await;
            let mut got = Vec::new();
            port.read_to_end(&mut got).await.expect("the client's end");
            assert_eq!(got, b"late");
        },
    );
}

// STREAM-14
#[test]
fn ports_over_websocket() {
    let got = with_node(
        |_| (),
        async |mut client, node| {
            let target = "/portForward/n/p/u?port=80,8080";
            client
                .ask(target, &format!("{WEBSOCKET}v4.channel.k8s.io"))
                .await;
            client.head().await;
            client.write(&masked(0x82, b"\x02ping")).await;
            let mut port = forwarded(node).await;
            let mut got = [0; 4];
            port.read_exact(&mut got).await.expect("data");
            port.write_all(b"pong").await.expect("answer");
            drop(port);
            messages(&client.rest().await)
        },
    );
    assert_eq!(
        got[..4],
        ["0 P\0", "1 P\0", "2 \u{90}\u{1f}", "3 \u{90}\u{1f}"]
            .map(|t| t.replace('\u{90}', "\u{fffd}")),
        "{got:?}"
    );
    assert!(got.contains(&"2 pong".to_owned()), "{got:?}");
    assert!(
        got.iter()
            .any(|m| m.starts_with("1 error forwarding port 80")),
        "{got:?}"
    );
    assert_eq!(got.last().map(String::as_str), Some("close"));
}

// STREAM-14
#[test]
fn ports_in_a_tunnel() {
    let got = with_node(
        |_| (),
        async |mut client, node| {
            let headers = format!("{WEBSOCKET}SPDY/3.1+portforward.k8s.io");
            client.ask("/portForward/n/p", &headers).await;
            assert!(client.head().await.contains("SPDY/3.1+portforward.k8s.io"));
            let mut frames = SpdyClient::default();
            frames
                .forward(1, "error", "8080", "0")
                .forward(3, "data", "8080", "0");
            frames.data(3, true, b"ping");
            client.write(&masked(0x82, &frames.bytes)).await;
            let mut port = forwarded(node).await;
            let mut got = Vec::new();
            port.read_to_end(&mut got).await.expect("data");
            assert_eq!(got, b"ping");
            port.write_all(b"pong").await.expect("answer");
            drop(port);
            let mut seen = Vec::new();
            while !seen.windows(4).any(|w| w == b"pong") {
                seen.extend(client.some(1).await);
            }
            client.write(&masked(0x88, &[3, 232])).await;
            seen.extend(client.rest().await);
            ws_frames(&seen)
        },
    );
    let inner: Vec<u8> = got
        .into_iter()
        .filter(|(first, _)| *first == 0x82)
        .flat_map(|(_, p)| p)
        .collect();
    assert_eq!(payload_of(3, &spdy_frames(&inner)), "pong");
}

/// Fifty connections at once, each with more than all buffers hold, echoed whole.
#[test]
fn many_ports_at_once() {
    const PAIRS: u32 = 50;
    const BYTES: usize = 256 * 1024;
    with_node(
        |_| (),
        async |client, node| {
            let mut client = client;
            client
                .ask("/portForward/n/p", &format!("{SPDY}portforward.k8s.io"))
                .await;
            client.head().await;
            let mut frames = SpdyClient::default();
            for pair in 0..PAIRS {
                let name = pair.to_string();
                frames.forward(4 * pair + 1, "error", "8080", &name);
                frames.forward(4 * pair + 3, "data", "8080", &name);
            }
            client.write(&frames.bytes).await;
            let mut echoes = Vec::new();
            for _ in 0..PAIRS {
                let mut port = forwarded_one(node).await;
                echoes.push(async move {
                    let mut all = Vec::new();
                    port.read_to_end(&mut all).await.expect("data");
                    port.write_all(&all).await.expect("echo");
                });
            }
            let executor = smol::LocalExecutor::new();
            for echo in echoes {
                executor.spawn(echo).detach();
            }
            let (mut reader, mut writer) = smol::io::split(client.0);
            let send = async {
                for round in 0..BYTES / 32_768 {
                    for pair in 0..PAIRS {
                        let mut frame = SpdyClient::default();
                        let last = round == BYTES / 32_768 - 1;
                        frame.data(4 * pair + 3, last, &[b'z'; 32_768]);
                        writer.write_all(&frame.bytes).await.expect("send");
                    }
                }
            };
            let want = usize::try_from(PAIRS).expect("few") * BYTES;
            let receive = async {
                let mut buffer = vec![0; 64 * 1024];
                let mut got = 0;
                while got < want {
                    let n = reader.read(&mut buffer).await.expect("read");
                    assert!(n > 0, "{got} of {want}");
                    got += buffer[..n].iter().filter(|b| **b == b'z').count();
                }
            };
            executor.run(smol::future::zip(send, receive)).await;
        },
    );
}

/// The oldest connection that nobody has taken.
async fn forwarded_one(node: &Node) -> Async<UnixStream> {
    thread_local! {
        static WAITING: RefCell<std::collections::VecDeque<UnixStream>> = RefCell::default();
    }
    loop {
        let new = node.runtime.take_forwarded();
        let next = WAITING.with_borrow_mut(|waiting| {
            waiting.extend(new.into_iter().map(|f| f.stream));
            waiting.pop_front()
        });
        if let Some(stream) = next {
            return Async::new(stream).expect("async");
        }
        Timer::after(Duration::from_millis(1)).await;
    }
}

#[test]
fn one_port_of_the_local_socket() {
    for (port, status) in [(0, 400), (80, 500)] {
        let answer = with_node(
            |_| (),
            async |mut client, _| {
                let headers = format!("Connection: Upgrade\r\nUpgrade: {PROTOCOL}");
                let target = format!("/portForward/n/p?port={port}");
                client.ask(&target, &headers).await;
                String::from_utf8(client.rest().await).expect("text")
            },
        );
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{answer}"
        );
    }
    let got = with_node(
        |_| (),
        async |mut client, node| {
            let headers = format!("Connection: Upgrade\r\nUpgrade: {PROTOCOL}");
            client.ask("/portForward/n/p?port=8080", &headers).await;
            let mut port = forwarded(node).await;
            assert!(client.head().await.contains(PROTOCOL));
            client.write(b"ping").await;
            let mut got = [0; 4];
            port.read_exact(&mut got).await.expect("data");
            assert_eq!(&got, b"ping");
            let half = client.0.get_ref().shutdown(std::net::Shutdown::Write);
            half.expect("half close");
            assert_eq!(port.read(&mut got).await.expect("the client's end"), 0);
            port.write_all(&[b'p'; 100_000]).await.expect("answer");
            drop(port);
            client.rest().await
        },
    );
    assert_eq!(got.len(), 100_000);
}

/// Text at the end of a session that has used up its bytes.
const SPENT: &str =
    "the session ends here: a node may send and receive 2.0kB in one (picolet.link.streamBytes)";

// METER-05
#[test]
fn a_command_ends_with_its_bytes() {
    let input = "x".repeat(500);
    for (limit, is_cut) in [(2000, true), (1 << 20, false)] {
        let frames = with_node(
            |node| node.limit = Some(limit),
            async |mut client, _| {
                let target = "/exec/n/p/c?input=1&output=1&command=cat";
                client
                    .ask(target, &format!("{SPDY}v4.channel.k8s.io"))
                    .await;
                client.head().await;
                // What goes in counts as what comes out.
                let mut frames = streams(&["error", "stdin", "stdout"]);
                for n in 1..=4 {
                    frames.data(3, n == 4, input.as_bytes());
                }
                client.write(&frames.bytes).await;
                spdy_frames(&client.rest().await)
            },
        );
        let end = payload_of(1, &frames);
        let says = end.contains(SPENT) && end.contains("Forbidden");
        assert_eq!((says, end.contains("Success")), (is_cut, !is_cut), "{end}");
        let whole = payload_of(5, &frames).len() == 4 * input.len();
        assert_eq!(whole, !is_cut, "{limit}");
    }
}

// METER-05
#[test]
fn one_who_is_here_has_no_limit() {
    let frames = smol::block_on(async {
        let mut node = Node::new().await;
        node.limit = Some(1);
        let (here, mut there) = pair(None);
        let asked = async {
            let target = format!("{EXEC}echo&command=hi");
            there
                .ask(&target, &format!("{SPDY}v4.channel.k8s.io"))
                .await;
            there.head().await;
            let made = streams(&["error", "stdout", "stderr"]);
            there.write(&made.bytes).await;
            let rest = there.rest().await;
            drop(there);
            rest
        };
        let (_, rest) = smol::future::zip(serve_on(&node, here), asked).await;
        spdy_frames(&rest)
    });
    assert_eq!(payload_of(3, &frames), "hi");
    assert!(payload_of(1, &frames).contains("Success"), "{frames:?}");
}

// METER-05
#[test]
fn ports_end_with_their_bytes() {
    let frames = with_node(
        |node| node.limit = Some(2000),
        async |mut client, node| {
            client
                .ask("/portForward/n/p", &format!("{SPDY}portforward.k8s.io"))
                .await;
            client.head().await;
            let mut frames = SpdyClient::default();
            frames
                .forward(1, "error", "8080", "1")
                .forward(3, "data", "8080", "1");
            client.write(&frames.bytes).await;
            let mut port = forwarded(node).await;
            port.write_all(&[b'x'; 3000]).await.expect("data");
            spdy_frames(&client.rest().await)
        },
    );
    let end = payload_of(1, &frames);
    assert!(
        end.contains(&format!("error forwarding port 8080: {SPENT}")),
        "{end}"
    );
    assert!(
        frames
            .last()
            .is_some_and(|last| last.starts_with("go away"))
    );
}
