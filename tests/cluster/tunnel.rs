//! A node that nobody can dial: the tunnel that it dials itself, to servers of all kinds.

use core::time::Duration;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use picolet::sys::clock;
use picolet_test_apiserver::{Credentials, TestServer};
use serde_json::{Value, json};

use crate::host::{Host, NODE, PATIENCE, able as able_with_pods, sh, text};
use crate::konnectivity::{
    CLOSE_RESPONSE, DATA, DIAL_RESPONSE, DRAIN, Konnectivity, Link, close, close_dial, data, dial,
    message, until,
};
use crate::kubectl::kubectls;
use crate::member::{able, condition, member, shown, wait_ready};
use crate::pods::{pod, wait_ready as wait_pod};
use crate::server::{HOUR, own_kib, shake};

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn konnectivity(server: &TestServer, id: &str) -> Konnectivity {
    let konnectivity = Konnectivity::start(HERE, id);
    konnectivity.know(server.ca_pem());
    konnectivity
}

/// Has the agent dial these from its next start on. `more`: further lines of `picolet.tunnel`.
pub(crate) fn with_tunnel(host: &mut Host, server: &TestServer, all: &[&Konnectivity], more: &str) {
    let (ca, clients, config) = (
        host.path("tunnel-ca"),
        host.path("client-ca"),
        host.path("config.yaml"),
    );
    let cas: String = all.iter().map(|one| one.ca.as_str()).collect();
    fs::write(&ca, cas).expect("CAs");
    fs::write(&clients, server.ca_pem()).expect("CA");
    let servers: Vec<String> = all
        .iter()
        .map(|one| format!("\"{}\"", one.agents))
        .collect();
    // With a file, a disk that is nearly full keeps pods away.
    let text = format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nevictionHard: {{memory.available: 1Mi}}\npicolet:\n  tunnel:\n    ca: {}\n    servers: [{}]\n{more}",
        ca.display(),
        servers.join(", ")
    );
    fs::write(&config, text).expect("configuration");
    let words = [
        "--config",
        &config.display().to_string(),
        "--client-ca-file",
        &clients.display().to_string(),
    ];
    host.add_flags(&words);
}

fn port(host: &Host) -> u16 {
    let at = host.flags.iter().position(|f| f == "--port").expect("port");
    host.flags[at + 1].parse().expect("port")
}

/// An agent without pods that dials these.
fn started(server: &TestServer, all: &[&Konnectivity], more: &str) -> Host {
    let mut host = member(server, &[]);
    with_tunnel(&mut host, server, all, more);
    host.start_agent();
    wait_ready(server, PATIENCE);
    host
}

/// Demands that the agent has asked for nothing wrong, and that it ends well.
fn ended(mut host: Host, server: &TestServer) {
    assert_eq!(crate::member::wrong(server), Vec::<String>::new());
    host.end_agent(Signal::SIGTERM);
    host.clear();
}

/// A connection through the tunnel, as an apiserver makes it.
fn through(konnectivity: &Konnectivity, target: &str) -> io::Result<TcpStream> {
    let mut tcp = TcpStream::connect(konnectivity.egress)?;
    write!(tcp, "CONNECT {target} HTTP/1.1\r\n\r\n")?;
    let (mut answer, mut byte) = (Vec::new(), [0]);
    while !answer.ends_with(b"\r\n\r\n") {
        tcp.read_exact(&mut byte)?;
        answer.push(byte[0]);
    }
    match answer.starts_with(b"HTTP/1.1 200") {
        true => Ok(tcp),
        false => Err(io::Error::other(text(&answer))),
    }
}

/// Status and answer of a question through the tunnel.
fn ask(
    konnectivity: &Konnectivity,
    target: &str,
    own: Option<&Credentials>,
    page: &str,
) -> (u16, String) {
    let tcp = through(konnectivity, target).expect("a connection");
    let mut link = shake(tcp, own).expect("TLS");
    write!(
        link,
        "GET {page} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n"
    )
    .expect("ask");
    let mut answer = Vec::new();
    let _ = link.read_to_end(&mut answer);
    let answer = text(&answer);
    let code = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
    (code.unwrap_or(0), answer)
}

fn tunnel_condition(host: &Host) -> Value {
    condition(&shown(host), "TunnelReady").clone()
}

fn wait_tunnel(host: &Host, status: &str) -> String {
    let mut message = String::new();
    host.until(&format!("the tunnel is {status}"), |host| {
        let condition = tunnel_condition(host);
        message = condition["message"].as_str().unwrap_or_default().to_owned();
        (condition["status"] == status, condition.to_string())
    });
    message
}

#[test]
fn a_tunnel_leads_to_the_server_of_the_node() {
    // TUN-01 TUN-02 TUN-03 TUN-04 TUN-05 TUN-06 TUN-07 TUN-08 TUN-14
    if !able() {
        return;
    }
    let server = TestServer::builder().start().expect("server");
    let konnectivity = konnectivity(&server, "one");
    let host = started(&server, &[&konnectivity], "");
    let link = konnectivity.wait();
    let id = link.field("agentid").expect("an id");
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("boot id");
    assert_eq!(id, format!("{NODE}-{}", boot.trim()));
    assert_eq!(link.field(":path"), Some("/AgentService/Connect"));
    assert_eq!(link.field("authorization"), None);
    assert!(link.is_known, "it shows the certificate of the node");
    let node = server.get("nodes", "", NODE).expect("a node");
    let addresses = node["status"]["addresses"].as_array().expect("addresses");
    let ip = addresses.iter().find(|a| a["type"] == "InternalIP");
    let ip = ip.expect("an address")["address"].as_str().expect("text");
    let identifiers = link.field("agentidentifiers").expect("identifiers");
    assert!(
        identifiers.starts_with(&format!("host={NODE}&")),
        "{identifiers}"
    );
    let of_ip = format!("ipv4={ip}");
    assert!(
        identifiers.split('&').any(|one| one == of_ip),
        "{identifiers}"
    );
    // By name and by address, and as from outside: who is nobody gets no answer.
    let user = |name: &str, groups: &[&str]| {
        let user = server.credentials(name, groups, HOUR);
        user.expect("certificate")
    };
    let (admin, eve) = (user("admin", &["system:masters"]), user("eve", &[]));
    let port = port(&host);
    for target in [format!("{NODE}:{port}"), format!("{ip}:{port}")] {
        for (own, page, code) in [
            (None, "/pods", 401),
            (Some(&eve), "/pods", 403),
            (Some(&admin), "/pods", 200),
            (Some(&admin), "/nothing", 404),
        ] {
            let (got, said) = ask(&konnectivity, &target, own, page);
            assert_eq!(got, code, "{target} {page}: {said}");
        }
    }
    let (_, figures) = ask(
        &konnectivity,
        &format!("{NODE}:{port}"),
        Some(&admin),
        "/metrics",
    );
    assert!(figures.contains("picolet_tunnel_streams 1\n"), "{figures}");
    assert_eq!(wait_tunnel(&host, "True"), "streams to 1 of 1 servers");
    let check = |host: &Host| text(&host.command_with_flags("check", &[]).stdout);
    let said = check(&host);
    assert!(
        said.contains("--kubelet-preferred-address-types=Hostname,"),
        "{said}"
    );
    // Nothing else can be dialled, and people hear of it.
    let foreign = [
        format!("{NODE}:{}", port ^ 1),
        format!("127.0.0.1:{port}"),
        "10.96.0.1:443".into(),
    ];
    for (random, target) in (1..).zip(foreign) {
        link.send(&dial(random, &target));
        let refused = link.answer(random);
        assert_eq!(refused.id, 0);
        assert!(
            refused.error.contains("destHost,defaultRoute"),
            "{refused:?}"
        );
    }
    server.wait_for("an event", PATIENCE, |view| {
        let all = view.list("events", "default");
        let told = all.iter().filter(|e| e["reason"] == "TunnelMisrouted");
        (told.count() == 1).then_some(())
    });
    let said = check(&host);
    assert!(
        said.contains("3 dials for others came through it"),
        "{said}"
    );
    assert!(
        said.contains("--proxy-strategies=destHost,defaultRoute"),
        "{said}"
    );
    // A connection that stands idle does not keep the agent, but for some seconds; the server hears of the end.
    ended(host, &server);
    link.wait_packet("the last word", |p| p.kind == DRAIN);
}

/// What a server gets as an answer for a connection that is not there.
fn is_unknown(link: &Link, id: i64) {
    let is = |p: &crate::konnectivity::Packet| p.kind == CLOSE_RESPONSE && p.id == id;
    let answer = link.wait_packet("an answer", is);
    assert_eq!(answer.error, "there is no such connection");
}

#[test]
fn what_servers_may_do() {
    // TUN-03 TUN-04 TUN-05 TUN-11 TUN-13 TUN-15
    if !able() {
        return;
    }
    let server = TestServer::builder().start().expect("server");
    let konnectivity = konnectivity(&server, "one");
    let host = started(&server, &[&konnectivity], "");
    let link = konnectivity.wait();
    let own = format!("{NODE}:{}", port(&host));
    // Bytes, and an end, for nobody.
    link.send(&data(4711, b"hello"));
    is_unknown(&link, 4711);
    link.send(&close(4712));
    is_unknown(&link, 4712);
    // Packets that agents send, and kinds that do not exist.
    for odd in [&b"\x08\x03\x1a\x02\x10\x05"[..], b"\x08\x63", b""] {
        link.send(odd);
    }
    // A dial is given up before it is answered.
    link.send_raw(&[message(&dial(1, &own)), message(&close_dial(1))].concat());
    let given_up = link.answer(1).id;
    let closed = |link: &Link, id| {
        let is = |p: &crate::konnectivity::Packet| p.kind == CLOSE_RESPONSE && p.id == id;
        link.wait_packet("the end of a connection", is)
    };
    assert_eq!(closed(&link, given_up).error, "");
    // Too many at once: as many as there is room for are taken.
    let all: Vec<u8> = (100..140).flat_map(|n| message(&dial(n, &own))).collect();
    link.send_raw(&all);
    let answers: Vec<_> = (100..140).map(|n| link.answer(n)).collect();
    let refused: Vec<_> = answers.iter().filter(|a| !a.error.is_empty()).collect();
    assert_eq!(refused.len(), 8);
    assert!(
        refused
            .iter()
            .all(|a| a.error == "too many connections" && a.id == 0)
    );
    let ids: Vec<i64> = answers.iter().map(|a| a.id).filter(|id| *id != 0).collect();
    assert!(ids.is_sorted_by(|a, b| a < b), "{ids:?}");
    for id in &ids {
        link.send(&close(*id));
        closed(&link, *id);
    }
    // There is room for all of them again, and each dial has had one answer.
    for n in 200..232 {
        link.dial(n, &own);
    }
    let answered = |n| {
        let all = link.packets();
        all.iter()
            .filter(|p| p.kind == DIAL_RESPONSE && p.random == n)
            .count()
    };
    for n in (100..140).chain(200..232).chain([1]) {
        assert_eq!(answered(n), 1, "{n}");
    }
    // No TLS comes: the node ends the connection, and says so after what it has to say.
    let nonsense = link.answer(200).id;
    link.send(&data(nonsense, b"GET / HTTP/1.1\r\n\r\n"));
    closed(&link, nonsense);
    let all = link.packets();
    let last = all.iter().rposition(|p| p.id == nonsense).expect("said");
    assert_eq!(all[last].kind, CLOSE_RESPONSE);
    assert!(all.iter().any(|p| p.kind == DATA && p.id == nonsense));
    // It goes away: another stream comes first, what is carried goes on, and then it hears that it is to dial elsewhere.
    for n in 201..232 {
        let id = link.answer(n).id;
        link.send(&close(id));
        closed(&link, id);
    }
    let admin = server.credentials("admin", &["system:masters"], HOUR);
    let tcp = through(&konnectivity, &own).expect("a connection");
    let mut kept = shake(tcp, Some(&admin.expect("certificate"))).expect("TLS");
    let mut ask = || {
        write!(kept, "GET /healthz HTTP/1.1\r\nHost: node\r\n\r\n").expect("ask");
        let mut answer = Vec::new();
        let mut byte = [0];
        while !answer.ends_with(b"\r\n\r\nok") {
            kept.read_exact(&mut byte).expect("an answer");
            answer.push(byte[0]);
        }
    };
    ask();
    link.frame(7, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 0]);
    let next = konnectivity.wait_other(&[&link]);
    link.wait_packet("the word that it is left", |p| p.kind == DRAIN);
    // Not all servers do: a dial is taken all the same.
    let late = link.dial(300, &own);
    assert!(!link.is_gone());
    ask();
    drop(kept);
    link.send(&close(late));
    link.wait_gone();
    // Numbers go on.
    let id = next.dial(1, &own);
    assert!(id > *ids.last().expect("some"), "{id}");
    // What is no packet ends the stream, and so does what is too long.
    next.send(b"\x12\x7f");
    next.wait_gone();
    let next = konnectivity.wait();
    next.send_raw(&[0, 0, 0x40, 0, 1]);
    next.wait_gone();
    let next = konnectivity.wait();
    next.dial(1, &own);
    ended(host, &server);
}

#[test]
fn the_end_of_the_agent_waits_for_streams_that_were_replaced() {
    // TUN-11 TUN-14
    if !able() {
        return;
    }
    let server = TestServer::builder().start().expect("server");
    let konnectivity = konnectivity(&server, "one");
    let mut host = started(&server, &[&konnectivity], "");
    let link = konnectivity.wait();
    let own = format!("{NODE}:{}", port(&host));
    let kept = link.dial(1, &own);
    link.frame(7, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 0]);
    let next = konnectivity.wait_other(&[&link]);
    link.wait_packet("the word that it is left", |p| p.kind == DRAIN);
    assert_eq!(crate::member::wrong(&server), Vec::<String>::new());
    kill(Pid::from_raw(host.agent_pid()), Signal::SIGTERM).expect("signal");
    // The newer one carries nothing.
    next.wait_gone();
    link.send(&dial(2, &own));
    assert_eq!(link.answer(2).error, "the agent is leaving");
    link.send(&close(kept));
    link.wait_gone();
    host.reap_agent();
    host.clear();
}

#[test]
fn cut_at_each_byte_of_a_packet() {
    // TUN-10 TUN-15
    if !able() {
        return;
    }
    let server = TestServer::builder().start().expect("server");
    let all: Vec<_> = (0..8)
        .map(|n| konnectivity(&server, &n.to_string()))
        .collect();
    let host = started(&server, &all.iter().collect::<Vec<_>>(), "");
    let own = format!("{NODE}:{}", port(&host));
    let packet = message(&dial(77, &own));
    // As many at a time as there are streams.
    for lengths in (0..packet.len()).collect::<Vec<_>>().chunks(all.len()) {
        for (one, length) in all.iter().zip(lengths) {
            let link = one.wait();
            link.send_raw(&packet[..*length]);
            link.cut();
            link.wait_gone();
        }
    }
    for one in &all {
        one.wait().dial(1, &own);
    }
    ended(host, &server);
}

#[test]
fn servers_that_repeat_lack_or_refuse() {
    // TUN-01 TUN-09 TUN-10 TUN-15
    if !able() {
        return;
    }
    let server = TestServer::builder().start().expect("server");
    let (first, second) = (konnectivity(&server, "same"), konnectivity(&server, "same"));
    second.change(|habits| habits.count = None);
    let token = std::env::temp_dir().join(format!("picolet-tunnel-token-{}", server.port()));
    fs::write(&token, "first").expect("token");
    let more = format!("    tokenFile: {}\n", token.display());
    let host = started(&server, &[&first, &second], &more);
    let link = first.wait();
    assert_eq!(link.field("authorization"), Some("Bearer first"));
    assert!(!link.is_known, "a token is shown, and no certificate");
    // The other does not say how many there are: that is no server.
    host.until("a word of it", |host| {
        let log = host.agent_log();
        (log.contains("without serverid and servercount"), log)
    });
    // Now it is the first one once more: one stream is enough, and it is not asked again at once.
    second.change(|habits| habits.count = Some("1".into()));
    let answered = || {
        let all = second.all().into_iter();
        all.filter(|link| link.answered.0.count.is_some())
    };
    until("a try that was given up", || {
        answered().any(|link| link.is_gone()).then_some(())
    });
    second.change(|habits| habits.server_id = "other".into());
    let is_other = |link: &Arc<Link>| link.answered.0.server_id == "other";
    let other = until("a stream to the other", || {
        second.open().into_iter().find(is_other)
    });
    let times: Vec<_> = answered().map(|link| link.answered.1).collect();
    assert!(times.len() >= 2, "{times:?}");
    assert!(
        times
            .windows(2)
            .all(|pair| pair[1] - pair[0] > Duration::from_secs(8)),
        "{times:?}: tried again too soon"
    );
    assert_eq!(wait_tunnel(&host, "True"), "streams to 2 of 1 servers");
    // A server that does not want this node is asked again later, with the token as it is then.
    first.change(|habits| habits.refuses = true);
    link.cut();
    link.wait_gone();
    let before = first.accepted();
    until("a try", || (first.accepted() > before).then_some(()));
    fs::write(&token, "second").expect("token");
    host.until("a word of it", |host| {
        let log = host.agent_log();
        (log.contains("invalid identity"), log)
    });
    first.change(|habits| habits.refuses = false);
    let link = first.wait();
    assert_eq!(link.field("authorization"), Some("Bearer second"));
    // Links that break are there again soon. The node is Ready all the time.
    second.change(|habits| habits.is_away = true);
    other.cut();
    other.wait_gone();
    let before = second.accepted();
    until("some tries", || {
        (second.accepted() > before + 2).then_some(())
    });
    second.change(|habits| habits.is_away = false);
    second.wait();
    let node = server.get("nodes", "", NODE).expect("a node");
    assert_eq!(condition(&node, "Ready")["status"], "True");
    let _ = fs::remove_file(token);
    ended(host, &server);
}

#[test]
fn a_server_that_has_a_stream_says_how_many_there_are() {
    // TUN-10
    if !able() {
        return;
    }
    let server = TestServer::builder().start().expect("server");
    let (first, second) = (konnectivity(&server, "same"), konnectivity(&server, "same"));
    second.change(|habits| {
        habits.is_away = true;
        habits.count = Some("3".into());
    });
    let host = started(&server, &[&first, &second], "");
    let link = first.wait();
    assert_eq!(first.accepted(), 1);
    second.change(|habits| habits.is_away = false);
    until("a third line", || (first.accepted() > 1).then_some(()));
    assert!(!link.is_gone());
    ended(host, &server);
}

/// Bytes of a day at rest.
const DAY_BYTES: u64 = 1 << 20;
/// Bytes of headers that the kernel adds to each segment: IP, TCP with timestamps. And segments of a question, its answer, and
/// the word that this has come.
const HEADER_BYTES: u64 = 20 + 32;
const SEGMENTS: u64 = 3;
/// Memory of a stream at rest, KiB.
const IDLE_KIB: u64 = 128;

#[test]
fn streams_at_rest() {
    // TUN-11 TUN-13 TUN-15
    if !able() {
        return;
    }
    let server = TestServer::builder().start().expect("server");
    let all: Vec<_> = (0..8)
        .map(|n| konnectivity(&server, &n.to_string()))
        .collect();
    for one in &all[1..] {
        one.change(|habits| habits.is_away = true);
    }
    let host = started(&server, &all.iter().collect::<Vec<_>>(), "");
    let link = all[0].wait();
    let settle = |host: &Host| {
        let mut last = 0;
        host.until("the memory rests", |host| {
            let now = own_kib(host);
            let rests = core::mem::replace(&mut last, now) == now;
            (rests, format!("{now} KiB"))
        });
        last
    };
    let before = settle(&host);
    for one in &all[1..] {
        one.change(|habits| habits.is_away = false);
    }
    let mute = all[1].wait();
    all[1].change(|habits| habits.is_mute = true);
    for one in &all[1..] {
        one.wait();
    }
    let during = settle(&host);
    println!(
        "a stream at rest: {} KiB",
        during.saturating_sub(before) / 7
    );
    assert!(during <= before + 7 * IDLE_KIB, "{before} to {during} KiB");
    // One question to the next, and the answer to the second.
    let pings = |n: usize| {
        until("a question", || {
            (link.pings.load(Ordering::Relaxed) >= n).then(clock::mono_now)
        })
    };
    let begun = pings(1);
    let bytes = link.bytes.load(Ordering::Relaxed);
    // Who does not answer is left, and another stream is there soon.
    let other = all[1].wait_other(&[&mute]);
    assert!(mute.is_gone());
    assert_eq!(mute.pings.load(Ordering::Relaxed), 1);
    all[1].change(|habits| habits.is_mute = false);
    let ended_at = pings(2);
    let bytes = link.bytes.load(Ordering::Relaxed) - bytes + SEGMENTS * HEADER_BYTES;
    let period = (ended_at - begun).as_secs();
    let daily = bytes * 24 * 3600 / period;
    println!("{bytes} bytes in {period} s: {daily} a day");
    assert!(daily <= DAY_BYTES, "{daily} bytes a day");
    assert!(!link.is_gone() && !other.is_gone());
    ended(host, &server);
}

/// Readers that have stopped to read.
const STALLED: usize = 32;
/// A log that is long enough for them all to have more of it than fits on the way.
const LOG_BYTES: usize = 3 << 20;
/// What the agent may grow by through them, KiB.
const STALLED_KIB: u64 = 4 * 1024;

#[test]
fn readers_that_do_not_read() {
    // TUN-12 TUN-13 TUN-15
    if !able_with_pods() {
        return;
    }
    let server = TestServer::builder().start().expect("server");
    let konnectivity = konnectivity(&server, "one");
    let mut host = member(&server, &[]);
    with_tunnel(&mut host, &server, &[&konnectivity], "");
    host.start_agent();
    host.import();
    wait_ready(&server, PATIENCE);
    let script = "yes 'a line that is said again and again' | head -n 100000; sleep 1000000";
    let spec = json!({"containers": [sh("c", script)]});
    server.create(&pod("talker", spec)).expect("create");
    wait_pod(&server, "talker");
    let admin = server.credentials("admin", &["system:masters"], HOUR);
    let admin = admin.expect("certificate");
    let link = konnectivity.wait();
    let target = format!("{NODE}:{}", port(&host));
    let page = "/containerLogs/default/talker/c";
    until("a long log", || {
        let (_, whole) = ask(&konnectivity, &target, Some(&admin), page);
        (whole.len() > LOG_BYTES).then_some(())
    });
    let before = own_kib(&host);
    let followed: Vec<_> = (0..STALLED)
        .map(|_| {
            let tcp = through(&konnectivity, &target).expect("a connection");
            let mut follow = shake(tcp, Some(&admin)).expect("TLS");
            write!(
                follow,
                "GET {page}?follow=true HTTP/1.1\r\nHost: node\r\n\r\n"
            )
            .expect("ask");
            follow
        })
        .collect();
    // They all have begun, and then the server reads nothing any more.
    let bytes = |link: &Arc<Link>| link.bytes.load(Ordering::Relaxed);
    let begun = bytes(&link);
    until("logs", || (bytes(&link) > begun + (4 << 20)).then_some(()));
    let dialled = konnectivity.accepted();
    konnectivity.change(|habits| habits.is_deaf = true);
    let mut most = 0;
    let mut last = 0;
    host.until("the memory rests", |host| {
        let now = own_kib(host);
        most = most.max(now);
        (
            core::mem::replace(&mut last, now) == now,
            format!("{now} KiB"),
        )
    });
    // Until it is given up and dialled anew: nothing more piles up.
    until("another dial", || {
        most = most.max(own_kib(&host));
        (konnectivity.accepted() > dialled).then_some(())
    });
    println!("{STALLED} that do not read: {before} to {most} KiB");
    assert!(most <= before + STALLED_KIB, "{before} to {most} KiB");
    // The next stream is there. Nothing of the old one is left.
    konnectivity.change(|habits| habits.is_deaf = false);
    drop(followed);
    let next = konnectivity.wait_other(&[&link]);
    link.wait_gone();
    let (code, _) = ask(&konnectivity, &target, Some(&admin), "/healthz");
    assert_eq!(code, 200);
    host.until("there is room for all again", |_| {
        let open = next.packets().len();
        let answers: Vec<_> = (5000..5032)
            .map(|n| n + i64::try_from(open).expect("few") * 100)
            .collect();
        for n in &answers {
            next.send(&dial(*n, &target));
        }
        let answers: Vec<_> = answers.iter().map(|n| next.answer(*n)).collect();
        for answer in &answers {
            next.send(&close(answer.id));
        }
        let refused = answers.iter().filter(|a| !a.error.is_empty()).count();
        (refused == 0, format!("{refused} refused"))
    });
    crate::pods::finish(host, &server);
}

/// A node's network behind a NAT of its own; it goes with this.
struct Nat {
    /// Its name, and that of the router before it.
    namespace: String,
    router: String,
}

/// The address that each of them has there.
const INSIDE: &str = "192.168.77.2";

fn ip(words: &[&str]) {
    let status = Command::new("ip").args(words).status().expect("ip");
    assert!(status.success(), "ip {}", words.join(" "));
}

/// The way out of the NAT with this number leads here.
fn outside(number: u8) -> Ipv4Addr {
    let net = u8::try_from(std::process::id() % 250).expect("small");
    Ipv4Addr::new(10, 198, net, number * 4 + 1)
}

/// The outside end of that NAT.
fn far_end(number: u8) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(outside(number)) + 1)
}

impl Nat {
    fn lay(number: u8) -> Self {
        let id = std::process::id();
        let [namespace, router] = ["n", "r"].map(|kind| format!("picolet-{kind}{id}x{number}"));
        let device = format!("pn{id}x{number}");
        let here = outside(number);
        let there = far_end(number);
        let nat = Self { namespace, router };
        let (inner, router) = (&*nat.namespace, &*nat.router);
        for name in [inner, router] {
            ip(&["netns", "add", name]);
            ip(&["-n", name, "link", "set", "lo", "up"]);
        }
        ip(&[
            "link", "add", &device, "type", "veth", "peer", "name", "out", "netns", router,
        ]);
        ip(&["addr", "add", &format!("{here}/30"), "dev", &device]);
        ip(&["link", "set", &device, "up"]);
        ip(&[
            "-n", router, "link", "add", "in", "type", "veth", "peer", "name", "eth0", "netns",
            inner,
        ]);
        for (namespace, device, address) in [
            (router, "out", format!("{there}/30")),
            (router, "in", "192.168.77.1/24".into()),
            (inner, "eth0", format!("{INSIDE}/24")),
        ] {
            ip(&["-n", namespace, "addr", "add", &address, "dev", device]);
            ip(&["-n", namespace, "link", "set", device, "up"]);
        }
        ip(&[
            "-n",
            router,
            "route",
            "add",
            "default",
            "via",
            &here.to_string(),
        ]);
        ip(&[
            "-n",
            inner,
            "route",
            "add",
            "default",
            "via",
            "192.168.77.1",
        ]);
        let run = |words: &[&str]| ip(&[&["netns", "exec", router], words].concat());
        run(&["sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"]);
        run(&[
            "iptables",
            "-t",
            "nat",
            "-A",
            "POSTROUTING",
            "-o",
            "out",
            "-j",
            "MASQUERADE",
        ]);
        nat
    }
}

impl Drop for Nat {
    fn drop(&mut self) {
        for name in [&self.namespace, &self.router] {
            let _ = Command::new("ip").args(["netns", "del", name]).status();
        }
    }
}

#[test]
fn two_nodes_with_one_address_behind_two_nats() {
    // TUN-08 TUN-14
    if !able_with_pods() {
        return;
    }
    let nats = [0, 1].map(Nat::lay);
    let near = outside(0);
    let konnectivity = Konnectivity::start(near.into(), "one");
    let server = TestServer::builder()
        .listen(SocketAddr::from((near, 0)))
        .host(&near.to_string())
        .egress(konnectivity.egress)
        .start()
        .expect("server");
    konnectivity.know(server.ca_pem());
    let nodes = ["left", "right"].map(|name| (name, format!("pod-{name}")));
    let hosts: Vec<Host> = nodes
        .iter()
        .zip(&nats)
        .map(|((name, pod_name), nat)| {
            let mut host = Host::new(&["--hostname-override", name, "--node-ip", INSIDE]);
            let path = host.path("kubeconfig");
            let config = server.kubeconfig_for_node(name).expect("kubeconfig");
            fs::write(&path, config).expect("kubeconfig");
            host.add_flags(&["--kubeconfig", &path.display().to_string()]);
            with_tunnel(&mut host, &server, &[&konnectivity], "");
            host.namespace = Some(nat.namespace.clone());
            host.start_agent();
            host.import();
            let script = format!("echo this is {name}; exec sleep 1000000");
            let spec = json!({"nodeName": name, "containers": [sh("c", &script)]});
            server.create(&pod(pod_name, spec)).expect("create");
            host
        })
        .collect();
    for (_, pod_name) in &nodes {
        wait_pod(&server, pod_name);
    }
    until("both streams", || {
        (konnectivity.open().len() == 2).then_some(())
    });
    for (name, _) in &nodes {
        let node = server.get("nodes", "", name).expect("a node");
        assert!(
            node["status"]["addresses"].to_string().contains(INSIDE),
            "{node}"
        );
    }
    // Nobody can dial a node, but from inside.
    for ((host, nat), number) in hosts.iter().zip(&nats).zip(0..) {
        let port = port(host);
        let router = SocketAddr::from((far_end(number), port));
        assert!(TcpStream::connect_timeout(&router, Duration::from_secs(2)).is_err());
        let dial = format!("exec 3<>/dev/tcp/{INSIDE}/{port}");
        ip(&["netns", "exec", &nat.namespace, "bash", "-c", &dial]);
    }
    let config = hosts[0].path("admin");
    fs::write(&config, server.admin_kubeconfig().expect("kubeconfig")).expect("write");
    let all = kubectls(&config, "logs and exec through a tunnel");
    for kubectl in &all {
        for (name, pod_name) in &nodes {
            assert_eq!(kubectl.ok(&["logs", pod_name]), format!("this is {name}\n"));
            let said = kubectl.ok(&["exec", pod_name, "--", "cat", "/etc/hostname"]);
            assert_eq!(said.trim(), pod_name);
        }
    }
    // A link is cut: pods and nodes are as they were, and it is there again.
    let before = konnectivity.open();
    before[0].cut();
    before[0].wait_gone();
    konnectivity.wait_other(&[&before[0], &before[1]]);
    for (name, pod_name) in &nodes {
        let node = server.get("nodes", "", name).expect("a node");
        assert_eq!(condition(&node, "Ready")["status"], "True");
        let pod = server.get("pods", "default", pod_name).expect("a pod");
        assert_eq!(pod["status"]["containerStatuses"][0]["restartCount"], 0);
    }
    assert_eq!(crate::member::wrong(&server), Vec::<String>::new());
    for host in hosts {
        host.finish();
    }
}
