//! Rules of Services with real packets (PROX-29): the cases of `tests/golden/services/cases.json`, dialled in network
//! namespaces. The rules are those of the golden files, which the unit tests of `src/logic/services` hold equal to what
//! the program writes.
//!
//! To compare with another proxy, let it work in the namespace that `PICOLET_SERVICES_NODE` names, as the golden file
//! says: then nothing is written here, and only the case that `PICOLET_SERVICES_CASE` names is dialled.

#![allow(clippy::disallowed_methods, reason = "a test may read its environment")]

#[macro_use]
#[path = "common/skipped.rs"]
mod skipped;

use std::{
    collections::BTreeMap,
    env, fs,
    io::{self, Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    path::Path,
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use nix::sched::{CloneFlags, setns};
use serde_json::Value;

const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/services");
/// Dials of one row whose answers are to be found out.
const DIALS: usize = 60;
/// A packet that is dropped has no answer for this time. Only a drop waits so long.
const DROPPED: Duration = Duration::from_millis(1500);
/// An answer that is expected may take this long on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// Namespaces: name, address and IPv6 address, gateways.
const ENDS: [(&str, &str, &str, &str, &str); 4] = [
    (
        "client",
        "192.0.2.10",
        "2001:db8::10",
        "192.0.2.1",
        "2001:db8::1",
    ),
    ("p1", "10.42.0.11", "fd42::11", "10.42.0.1", "fd42::1"),
    ("p2", "10.42.0.12", "fd42::12", "10.42.0.1", "fd42::1"),
    ("p3", "10.42.1.13", "fd42:0:0:1::13", "10.42.0.1", "fd42::1"),
];

fn run(words: &str) -> bool {
    let words: Vec<&str> = words.split_whitespace().collect();
    let status = Command::new(words[0])
        .args(&words[1..])
        .stderr(Stdio::null())
        .stdout(Stdio::null())
        .status();
    status.is_ok_and(|status| status.success())
}

fn must(words: &str) {
    assert!(run(words), "{words}");
}

/// A client, a node and three pods, each in a namespace of its own.
struct Lab {
    prefix: String,
    node: String,
    owns_node: bool,
}

impl Lab {
    fn new(name: &str) -> Self {
        let given = env::var("PICOLET_SERVICES_NODE").ok();
        let prefix = format!("ps{}{name}", std::process::id());
        let lab = Self {
            node: given.clone().unwrap_or_else(|| format!("{prefix}-node")),
            owns_node: given.is_none(),
            prefix,
        };
        if lab.owns_node {
            must(&format!("ip netns add {}", lab.node));
        }
        let node = &lab.node;
        must(&format!("ip -n {node} link set lo up"));
        for (end, v4, v6, gate4, gate6) in ENDS {
            let namespace = lab.namespace(end);
            must(&format!("ip netns add {namespace}"));
            let on_node = format!("to-{end}");
            must(&format!(
                "ip -n {node} link add {on_node} type veth peer name eth0 netns {namespace}"
            ));
            must(&format!("ip -n {namespace} link set lo up"));
            must(&format!("ip -n {node} link set {on_node} up"));
            must(&format!("ip -n {namespace} link set eth0 up"));
            for (ip, gate, bits) in [(v4, gate4, 32), (v6, gate6, 128)] {
                let nodad = if bits == 128 { "nodad" } else { "" };
                must(&format!(
                    "ip -n {node} addr add {gate}/{bits} dev {on_node} {nodad}"
                ));
                must(&format!(
                    "ip -n {namespace} addr add {ip}/{bits} dev eth0 {nodad}"
                ));
                must(&format!("ip -n {node} route add {ip}/{bits} dev {on_node}"));
                must(&format!(
                    "ip -n {namespace} route add {gate}/{bits} dev eth0"
                ));
                must(&format!(
                    "ip -n {namespace} route add default via {gate} dev eth0"
                ));
            }
        }
        // Addresses of Services have a way, as on every node: that to the rest of the world, where nobody answers.
        let world = lab.namespace("world");
        must(&format!("ip netns add {world}"));
        must(&format!(
            "ip -n {node} link add world type veth peer name eth0 netns {world}"
        ));
        must(&format!("ip -n {world} link set eth0 up"));
        must(&format!("ip -n {node} link set world up arp off"));
        for family in ["-4", "-6"] {
            must(&format!(
                "ip {family} -n {node} route add default dev world"
            ));
        }
        for key in ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"] {
            must(&format!("ip netns exec {node} sysctl -qw {key}=1"));
        }
        for (end, ..) in ENDS.iter().filter(|end| end.0 != "client") {
            lab.serve(end);
        }
        lab
    }

    fn namespace(&self, end: &str) -> String {
        match end {
            "node" => self.node.clone(),
            end => format!("{}-{end}", self.prefix),
        }
    }

    /// Runs `work` on a thread in a namespace.
    fn within<T: Send + 'static>(
        &self,
        end: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> thread::JoinHandle<T> {
        let path = Path::new("/run/netns").join(self.namespace(end));
        let namespace = fs::File::open(path).expect("a namespace");
        thread::spawn(move || {
            setns(namespace, CloneFlags::CLONE_NEWNET).expect("enter the namespace");
            work()
        })
    }

    /// Starts the servers of a pod: TCP 8080 and UDP 8053. They answer with its name and the client's address, and end
    /// with the test's process.
    fn serve(&self, end: &'static str) {
        let (ready, is_ready) = mpsc::channel();
        let tell = ready.clone();
        self.within(end, move || {
            let listener = TcpListener::bind("[::]:8080").expect("listen");
            tell.send(()).expect("told");
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { continue };
                let Ok(peer) = stream.peer_addr() else {
                    continue;
                };
                // A client that waits keeps no other waiting.
                thread::spawn(move || {
                    let answer = format!("{end} {}\n", name_of(peer.ip()));
                    let mut request = [0; 64];
                    while let Ok(1..) = stream.read(&mut request) {
                        if stream.write_all(answer.as_bytes()).is_err() {
                            break;
                        }
                    }
                });
            }
        });
        self.within(end, move || {
            let socket = UdpSocket::bind("[::]:8053").expect("listen");
            ready.send(()).expect("told");
            let mut request = [0; 64];
            while let Ok((_, peer)) = socket.recv_from(&mut request) {
                let _ = socket.send_to(format!("{end} {}\n", name_of(peer.ip())).as_bytes(), peer);
            }
        });
        for _ in 0..2 {
            is_ready.recv().expect("a server");
        }
    }

    /// Gives `nft` of the node a text: one transaction.
    fn nft(&self, text: &str) {
        let mut nft = Command::new("ip")
            .args(["netns", "exec", &self.node, "nft", "-f", "-"])
            .stdin(Stdio::piped())
            .spawn()
            .expect("nft");
        let mut input = nft.stdin.take().expect("input");
        input.write_all(text.as_bytes()).expect("written");
        drop(input);
        assert!(nft.wait().expect("ended").success(), "{text}");
    }

    /// Writes an empty table, then the rules of a case.
    fn write_rules(&self, rules: &str) {
        if !self.owns_node {
            return;
        }
        for family in ["ip", "ip6"] {
            let table = fs::read_to_string(format!("{DATA}/table.{family}.nft")).expect("golden");
            let anew = format!(
                "add table {family} picolet-services\ndelete table {family} picolet-services\n{table}"
            );
            self.nft(&anew);
        }
        self.nft(rules);
    }

    /// Dials so many times, and counts the answers.
    fn dial(
        &self,
        from: &str,
        to: SocketAddr,
        protocol: &str,
        times: usize,
    ) -> BTreeMap<Answer, usize> {
        let is_udp = protocol == "UDP";
        let dials = self.within(from, move || {
            let mut found: BTreeMap<Answer, usize> = BTreeMap::new();
            for _ in 0..times {
                let answer = if is_udp { dial_udp(to) } else { dial_tcp(to) };
                *found.entry(answer).or_default() += 1;
            }
            found
        });
        dials.join().expect("dialled")
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        run(&format!("ip -n {} link del world", self.node));
        run(&format!("ip netns del {}", self.namespace("world")));
        for (end, ..) in ENDS {
            run(&format!("ip -n {} link del to-{end}", self.node));
            run(&format!("ip netns del {}", self.namespace(end)));
        }
        if self.owns_node {
            run(&format!("ip netns del {}", self.node));
        }
    }
}

/// Name of the end that has an address.
fn name_of(ip: IpAddr) -> String {
    let ip = ip.to_canonical().to_string();
    let end = ENDS.iter().find(|end| ip == end.1 || ip == end.2);
    let is_node = ENDS.iter().any(|end| ip == end.3 || ip == end.4);
    match (end, is_node) {
        (Some(end), _) => end.0.into(),
        (None, true) => "node".into(),
        (None, false) => ip,
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Answer {
    Of(String),
    Rejected,
    Dropped,
}

impl Answer {
    fn from_error(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionRefused
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable => Self::Rejected,
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => Self::Dropped,
            _ => panic!("{error}"),
        }
    }
}

fn dial_tcp(to: SocketAddr) -> Answer {
    let stream = match TcpStream::connect_timeout(&to, DROPPED) {
        Ok(stream) => stream,
        Err(e) => return Answer::from_error(&e),
    };
    ask(&stream)
}

fn ask(mut stream: &TcpStream) -> Answer {
    stream.set_read_timeout(Some(PATIENCE)).expect("a time");
    stream.write_all(b"?").expect("asked");
    let mut answer = [0; 64];
    let length = stream.read(&mut answer).expect("answered");
    Answer::Of(String::from_utf8_lossy(&answer[..length]).trim().into())
}

fn dial_udp(to: SocketAddr) -> Answer {
    let any: IpAddr = match to.is_ipv4() {
        true => [0, 0, 0, 0].into(),
        false => [0_u16; 8].into(),
    };
    let socket = UdpSocket::bind((any, 0)).expect("a socket");
    socket.set_read_timeout(Some(DROPPED)).expect("a time");
    socket.connect(to).expect("connected");
    let mut answer = [0; 64];
    match socket.send(b"?").and_then(|_| socket.recv(&mut answer)) {
        Ok(length) => Answer::Of(String::from_utf8_lossy(&answer[..length]).trim().into()),
        Err(e) => Answer::from_error(&e),
    }
}

fn cases() -> Vec<Value> {
    let text = fs::read_to_string(format!("{DATA}/cases.json")).expect("golden");
    let all: Value = serde_json::from_str(&text).expect("json");
    let wanted = env::var("PICOLET_SERVICES_CASE").ok();
    let cases = all["cases"].as_array().expect("cases").iter();
    let is_wanted = |case: &&Value| wanted.as_deref().is_none_or(|name| case["name"] == name);
    cases.filter(is_wanted).cloned().collect()
}

fn rules_of(case: &Value) -> String {
    let lines = case["rules"].as_array().expect("rules").iter();
    lines
        .map(|line| format!("{}\n", line.as_str().expect("a line")))
        .collect()
}

/// Answers that a dial may have, and whether all dials have the same.
fn expected(dial: &Value) -> (Vec<Answer>, bool) {
    let answers = match &dial["answers"] {
        Value::String(word) if word == "rejected" => vec![Answer::Rejected],
        Value::String(_) => vec![Answer::Dropped],
        list => {
            let list = list.as_array().expect("answers").iter();
            list.map(|answer| Answer::Of(answer.as_str().expect("an answer").into()))
                .collect()
        }
    };
    (answers, dial["same"].as_bool().unwrap_or(false))
}

fn can_run() -> bool {
    if !nix::unistd::geteuid().is_root() {
        skipped!("not root");
        return false;
    }
    if !run("nft --version") {
        skipped!("nft is not installed");
        return false;
    }
    true
}

#[test]
fn cases_with_packets() {
    // PROX-05 PROX-06 PROX-07 PROX-08 PROX-09 PROX-10 PROX-11 PROX-12 PROX-13 PROX-14 PROX-15 PROX-16 PROX-17 PROX-29
    if !can_run() {
        return;
    }
    let lab = Lab::new("a");
    let mut wrong = Vec::new();
    for case in cases() {
        lab.write_rules(&rules_of(&case));
        for dial in case["dials"].as_array().expect("dials") {
            let from = dial["from"].as_str().expect("from");
            let to = dial["to"]
                .as_str()
                .expect("to")
                .parse()
                .expect("an address");
            let protocol = dial["protocol"].as_str().unwrap_or("TCP");
            let (mut allowed, is_same) = expected(dial);
            allowed.sort();
            let times = if allowed.len() > 1 { DIALS } else { 1 };
            let found = lab.dial(from, to, protocol, times);
            let answers: Vec<&Answer> = found.keys().collect();
            // That one of three endpoints is missing by chance in 60 dials has a probability of 1e-10.
            let is_right = match is_same {
                true => answers.len() == 1 && allowed.contains(answers[0]),
                false => answers == allowed.iter().collect::<Vec<_>>(),
            };
            if !is_right {
                wrong.push(format!(
                    "{}: {from} to {to} {protocol}: {found:?}, expected {allowed:?}",
                    case["name"]
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn connections_are_spread_evenly() {
    // PROX-05 PROX-24
    if !can_run() {
        return;
    }
    let lab = Lab::new("b");
    let case = cases()
        .into_iter()
        .find(|case| case["name"] == "cluster IP, three endpoints");
    let Some(case) = case else { return };
    lab.write_rules(&rules_of(&case));
    const TIMES: usize = 3000;
    let to: SocketAddr = "10.43.0.10:80".parse().expect("an address");
    let found = lab.dial("client", to, "TCP", TIMES);
    assert_eq!(found.len(), 3, "{found:?}");
    // 1000 each; the deviation is 25.8, so chance stays within 8 of them.
    assert!(
        found.values().all(|n| (793..=1207).contains(n)),
        "{found:?}"
    );
}

#[test]
fn rewriting_keeps_connections_and_clients() {
    // PROX-04 PROX-15
    if !can_run() {
        return;
    }
    let lab = Lab::new("c");
    let find = |name: &str| cases().into_iter().find(|case| case["name"] == name);
    let Some(case) = find("affinity") else { return };
    let rules = rules_of(&case);
    lab.write_rules(&rules);
    let to: SocketAddr = "10.43.0.10:80".parse().expect("an address");
    let (dialled, is_dialled) = mpsc::channel();
    let (go_on, may_go_on) = mpsc::channel::<()>();
    let client = lab.within("client", move || {
        let stream = TcpStream::connect_timeout(&to, PATIENCE).expect("connected");
        let first = ask(&stream);
        dialled.send(()).expect("told");
        may_go_on.recv().expect("rewritten");
        let second = ask(&stream);
        (first, second, dial_tcp(to))
    });
    is_dialled.recv().expect("dialled");
    // The same text again, as after a restart of the agent.
    lab.nft(&rules);
    go_on.send(()).expect("told");
    let (first, second, anew) = client.join().expect("a client");
    assert_eq!(first, second, "the connection goes on");
    assert_eq!(first, anew, "the client keeps its endpoint");
}
