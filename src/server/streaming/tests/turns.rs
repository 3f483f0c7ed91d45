//! Clients that always have more to say, and always take what is said: none of them keeps others from their turn.

use core::pin::Pin;
use core::task::{Context, Poll};

use smol::io::{AsyncRead, AsyncWrite};

use super::*;

/// Times that a client is heard before it leaves.
const READS: u32 = 2000;

/// A client's end that is always ready.
struct Endless {
    /// Bytes that the client sends first.
    first: Vec<u8>,
    /// Bytes that it then sends again and again.
    then: Vec<u8>,
    at: usize,
    reads: u32,
}

impl AsyncRead for Endless {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        self.reads += 1;
        if self.reads > READS {
            return Poll::Ready(Ok(0));
        }
        for byte in &mut *buf {
            let first = self.first.len();
            *byte = match self.first.get(self.at) {
                Some(byte) => *byte,
                None => self.then[(self.at - first) % self.then.len()],
            };
            self.at += 1;
        }
        Poll::Ready(Ok(buf.len()))
    }
}

impl AsyncWrite for Endless {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Turns that another task has while a client says `first`, and then `then` without end.
fn turns_beside(head: &str, first: &[u8], then: &[u8]) -> u32 {
    smol::block_on(async {
        let node = Node::new().await;
        // Whatever is asked for: a process that reads all that it is given, and says nothing.
        *node.session.borrow_mut() = Some(Stub::new(None, true).session().0);
        let client = Endless {
            first: [head.as_bytes(), b"\r\n\r\n", first].concat(),
            then: then.to_vec(),
            at: 0,
            reads: 0,
        };
        let turns = Cell::new(0);
        let other = async {
            loop {
                turns.set(turns.get() + 1);
                for mut port in node.runtime.take_forwarded() {
                    std::thread::spawn(move || io::copy(&mut port.stream, &mut io::sink()));
                }
                smol::future::yield_now().await;
            }
        };
        smol::future::or(serve_on(&node, StreamConnection::new(client)), other).await;
        turns.get()
    })
}

// STREAM-09
#[test]
fn every_protocol_leaves_turns_to_others() {
    let exec = streams(&["error", "stdin", "stdout"]).bytes;
    let mut forward = SpdyClient::default();
    forward.forward(1, "error", "8080", "0");
    forward.forward(3, "data", "8080", "0");
    let forward = forward.bytes;
    let ping = |n: usize| {
        let mut client = SpdyClient::default();
        for _ in 0..n {
            client.numbers(6, &[1]);
        }
        client.bytes
    };
    let data = |id| {
        let mut client = SpdyClient::default();
        client.data(id, false, b"some input");
        client.bytes
    };
    let exec_target = "/exec/n/p/c?input=1&output=1&command=a";
    let (post, get) = (
        |target: &str, protocol: &str| format!("POST {target} HTTP/1.1\r\n{SPDY}{protocol}"),
        |target: &str, protocol: &str| format!("GET {target} HTTP/1.1\r\n{WEBSOCKET}{protocol}"),
    );
    let v4 = "v4.channel.k8s.io";
    let forwarding = "portforward.k8s.io";
    let tunnel = "SPDY/3.1+portforward.k8s.io";
    for (what, head, first, then) in [
        ("exec: pings", post(exec_target, v4), &exec, ping(3)),
        ("exec: input", post(exec_target, v4), &exec, data(3)),
        (
            "exec: what nobody wants",
            post(exec_target, v4),
            &exec,
            data(5),
        ),
        (
            "exec: streams that are not made",
            post(exec_target, v4),
            &vec![],
            ping(1),
        ),
        (
            "channels: pings",
            get(exec_target, v4),
            &vec![],
            masked(0x89, b"p"),
        ),
        (
            "channels: input",
            get(exec_target, v4),
            &vec![],
            masked(0x82, b"\0some"),
        ),
        (
            "channels: another's",
            get(exec_target, v4),
            &vec![],
            masked(0x82, b"\x09some"),
        ),
        (
            "channels: nothing",
            get(exec_target, v4),
            &vec![],
            masked(0x82, b""),
        ),
        (
            "ports: pings",
            post("/portForward/n/p", forwarding),
            &forward,
            ping(1),
        ),
        (
            "ports: data",
            post("/portForward/n/p", forwarding),
            &forward,
            data(3),
        ),
        (
            "ports: what nobody wants",
            post("/portForward/n/p", forwarding),
            &forward,
            data(1),
        ),
        (
            "tunnel: pings of its own",
            get("/portForward/n/p", tunnel),
            &vec![],
            masked(0x89, b"p"),
        ),
        (
            "tunnel: pings",
            get("/portForward/n/p", tunnel),
            &masked(0x82, &forward),
            masked(0x82, &ping(5)),
        ),
        (
            "tunnel: data",
            get("/portForward/n/p", tunnel),
            &masked(0x82, &forward),
            masked(0x82, &data(3)),
        ),
        (
            "port channels: pings",
            get("/portForward/n/p?port=8080", v4),
            &vec![],
            masked(0x89, b"p"),
        ),
        (
            "port channels: data",
            get("/portForward/n/p?port=8080", v4),
            &vec![],
            masked(0x82, b"\0some"),
        ),
        (
            "one port",
            format!(
                "POST /portForward/n/p?port=8080 HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: {PROTOCOL}"
            ),
            &vec![],
            b"some".to_vec(),
        ),
    ] {
        let turns = turns_beside(&head, first, &then);
        // A round hears a client once at most.
        let at_least = READS / u32::try_from(carrier::TURNS).expect("small") / 2;
        assert!(turns >= at_least, "{what}: {turns} turns");
    }
}
