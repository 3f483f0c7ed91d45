//! What open streams cost the agent: of its own memory, over the node's HTTPS port.

use std::fs;
use std::io::{Read as _, Write as _};

use picolet_test_apiserver::{Credentials, TestServer};
use serde_json::json;

use crate::host::{Host, able, sh};
use crate::pods::{pod, wait_ready};
use crate::server::{HOUR, Link, connect, ended, own_kib, started};

/// Streams open at once, of each kind.
const STREAMS: u64 = 40;
/// Memory of its own by which the agent may grow for each, KiB.
const STREAM_KIB: u64 = 64;
/// All of the agent's own memory while clients do not read, KiB.
const AGENT_KIB: u64 = 16 * 1024;
/// What may be left of it all, KiB: an allocator's rounding, not something for each stream.
const LEFT_KIB: u64 = 512;

/// A stream over WebSocket, after the answer's head.
fn open(host: &Host, own: &Credentials, target: &str) -> Link {
    let mut link = connect(host, Some(own)).expect("a connection");
    let head = format!(
        "GET {target} HTTP/1.1\r\nHost: node\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\
         Sec-WebSocket-Protocol: v4.channel.k8s.io\r\n\r\n"
    );
    link.write_all(head.as_bytes()).expect("ask");
    let mut answer = Vec::new();
    let mut byte = [0];
    while !answer.ends_with(b"\r\n\r\n") {
        link.read_exact(&mut byte).expect("a head");
        answer.push(byte[0]);
    }
    assert!(answer.starts_with(b"HTTP/1.1 101 "), "{answer:?}");
    link
}

/// The next frame that says something, with its channel.
fn next_frame(link: &mut Link) -> Vec<u8> {
    loop {
        let mut head = [0; 2];
        link.read_exact(&mut head).expect("a frame");
        assert!(head[1] < 126, "only short ones are expected");
        let mut payload = vec![0; head[1].into()];
        link.read_exact(&mut payload).expect("a payload");
        if payload.len() > 1 {
            return payload;
        }
    }
}

/// Opens many streams at once, lets each be proven, and holds them until the memory was looked at.
fn cost(host: &Host, what: &str, mut one: impl FnMut() -> Link) {
    // What the first of them keeps is there before.
    drop(one());
    settled(host);
    let before = own_kib(host);
    let held: Vec<Link> = (0..STREAMS).map(|_| one()).collect();
    let during = own_kib(host);
    drop(held);
    println!("{STREAMS} of {what}: {before} to {during} KiB");
    assert!(
        during <= before + STREAMS * STREAM_KIB,
        "{what}: {before} to {during} KiB"
    );
    host.until("the memory is back", |host| {
        let now = own_kib(host);
        (
            now <= before + LEFT_KIB,
            format!("{what}: {before}, then {during}, now {now} KiB"),
        )
    });
}

/// Waits until nothing more comes into the agent.
fn settled(host: &Host) {
    let mut last = String::new();
    host.until("the agent rests", |host| {
        let io = fs::read_to_string(format!("/proc/{}/io", host.agent_pid())).expect("io");
        let read = io.lines().find(|l| l.starts_with("rchar:"));
        let read = read.expect("rchar").to_owned();
        let moved = core::mem::replace(&mut last, read) != last;
        (!moved, last.clone())
    });
}

#[test]
fn open_streams_cost_little() {
    // STREAM-09 STREAM-10 STREAM-14
    if !able() {
        return;
    }
    let (host, server) = started(&[]);
    let serve = "exec httpd -f -p 127.0.0.1:8080 -h /tmp";
    let talk = json!({"containers": [sh("c", serve)]});
    server.create(&pod("web", talk)).expect("create");
    wait_ready(&server, "web");
    let admin = admin(&server);
    cost(&host, "exec", || {
        let target = "/exec/default/web/c?command=cat&input=1&output=1";
        let mut link = open(&host, &admin, target);
        // Masked, with a mask of zeroes.
        let frame = [0x82, 0x80 | 3, 0, 0, 0, 0, 0, b'h', b'i'];
        link.write_all(&frame).expect("say");
        assert_eq!(next_frame(&mut link), b"\x01hi");
        link
    });
    cost(&host, "attach", || {
        open(&host, &admin, "/attach/default/web/c?output=1")
    });
    cost(&host, "port-forward", || {
        let mut link = open(&host, &admin, "/portForward/default/web?port=8080");
        assert_eq!(next_frame(&mut link), [0, 0x90, 0x1f]);
        link
    });
    // Who never reads is no dearer: what he is sent waits where it is made.
    let target = "/exec/default/web/c?command=cat&command=/dev/zero&output=1";
    let held: Vec<Link> = (0..STREAMS).map(|_| open(&host, &admin, target)).collect();
    settled(&host);
    let during = own_kib(&host);
    println!("{STREAMS} clients that never read: {during} KiB");
    assert!(during <= AGENT_KIB, "{during} KiB");
    drop(held);
    host.until("the commands are gone", |host| {
        let all = host.processes();
        let left: Vec<_> = all
            .iter()
            .filter(|(_, l)| l.contains("/dev/zero"))
            .collect();
        (left.is_empty(), format!("{left:?}"))
    });
    ended(host, &server);
}

fn admin(server: &TestServer) -> Credentials {
    let pair = server.credentials("admin", &["system:masters"], HOUR);
    pair.expect("certificate")
}
