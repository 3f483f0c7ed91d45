//! Many hostile clients of the node's HTTPS port at once, and what the node does meanwhile.
//!
//! They take what the processors have left: whoever floods a node does it from elsewhere. Beside the node is another with the
//! same pods, to which nobody is hostile: whatever else makes a node late on this machine makes that one late too.
//! `PICOLET_HOSTILE_SECONDS` makes it longer than CI has time for.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::{env, fs, thread};

use picolet::sys::clock;
use picolet_test_apiserver::TestServer;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, Stream};
use serde_json::json;

use crate::host::{Host, able, pause, text};
use crate::pods::{pod, wait_ready};
use crate::server::{HOUR, ask, client, ended, own_kib, session, started};

/// Clients of each of the four kinds.
const CLIENTS_OF_A_KIND: usize = 50;
/// How long they go on, unless told.
const SECONDS: u64 = 10;
/// Pods of each node, each with one probe.
const PODS: usize = 20;
/// Time between two probes of one.
const PERIOD: Duration = Duration::from_secs(2);
/// What the agent's own memory may grow by meanwhile: that of a thousand connections. KiB.
const GROWTH_KIB: u64 = 8 * 1024;
/// What may be left of that, KiB.
const LEFT_KIB: u64 = 1024;
/// A lease that is not renewed for so long ends.
const LEASE: Duration = Duration::from_secs(40);
/// Until then all have come, on whatever machine.
const ARRIVAL_LIMIT: Duration = Duration::from_secs(300);
/// A client looks so often whether it is over.
const LOOK: Duration = Duration::from_millis(500);
/// Requests sent at once.
const PIPELINED: usize = 1000;
/// Bytes of a head that never ends, sent one by one.
const SLOW_BYTES: usize = 4096;
/// Bytes of certificates that one message of a handshake takes, nearly.
const CHAIN_BYTES: usize = 60_000;

/// A server whose pages are probed: notes when each was asked for.
#[derive(Default)]
struct Probed(Mutex<BTreeMap<String, Vec<u64>>>);

impl Probed {
    /// Serves as long as the test runs; returns its port.
    fn serve(self: &Arc<Self>) -> u16 {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("port");
        let port = listener.local_addr().expect("address").port();
        let this = Arc::clone(self);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let _ = this.answer(stream.expect("a prober"));
            }
        });
        port
    }

    fn answer(&self, mut stream: TcpStream) -> io::Result<()> {
        stream.set_read_timeout(Some(LOOK))?;
        let mut head = [0; 1024];
        let n = stream.read(&mut head)?;
        let head = text(&head[..n]);
        let page = head.split(' ').nth(1).unwrap_or_default().to_owned();
        let now = clock::mono_now().0;
        self.0
            .lock()
            .expect("lock")
            .entry(page)
            .or_default()
            .push(now);
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    }

    /// The longest times between two requests for one page of a node from `begin` on, up to `end`; the shortest of them first.
    fn pauses(&self, node: &str, begin: u64, end: u64) -> Vec<Duration> {
        let all = self.0.lock().expect("lock");
        let longest = |times: &Vec<u64>| {
            let before = times.iter().copied().rfind(|t| *t <= begin);
            let within = times.iter().copied().filter(|t| (begin..end).contains(t));
            let times: Vec<u64> = before.into_iter().chain(within).chain([end]).collect();
            let longest = times.windows(2).map(|two| two[1] - two[0]).max();
            Duration::from_millis(longest.expect("two"))
        };
        let of_node = all.iter().filter(|(page, _)| page.starts_with(node));
        let mut pauses: Vec<_> = of_node.map(|(_, times)| longest(times)).collect();
        pauses.sort();
        pauses
    }
}

/// What a kind of client did.
#[derive(Default)]
struct Done {
    connections: AtomicU64,
    bytes: AtomicU64,
}

/// All that a hostile client knows.
struct Siege {
    port: u16,
    over: AtomicBool,
    nobody: Arc<ClientConfig>,
    /// Shows as many certificates as are taken, and as many as fit a message.
    chains: [Arc<ClientConfig>; 2],
    done: [Done; 4],
}

/// Self-made CAs of one name, each of which may have signed each other, and a certificate by one of them.
fn worst_chain(bytes: usize, most: usize) -> Arc<ClientConfig> {
    let ca = || {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // What the CA of the cluster calls itself.
        params.distinguished_name = rcgen::DistinguishedName::new();
        params
            .distinguished_name
            .push(DnType::CommonName, "test-ca");
        let key = KeyPair::generate().expect("key");
        let certificate = params.self_signed(&key).expect("CA");
        (certificate.der().clone(), Issuer::new(params, key))
    };
    let (first, issuer) = ca();
    let key = KeyPair::generate().expect("key");
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "admin");
    let leaf = params.signed_by(&key, &issuer).expect("certificate");
    let mut chain: Vec<CertificateDer<'static>> = vec![leaf.der().clone(), first];
    while chain.len() < most && chain.iter().map(|one| one.len()).sum::<usize>() < bytes {
        chain.push(ca().0);
    }
    let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
    client(Some((chain, key)))
}

/// Sends each byte by itself.
struct OneByOne(TcpStream);

impl Read for OneByOne {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read(buf)
    }
}

impl Write for OneByOne {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.0.write(&buf[..buf.len().min(1)])
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl Siege {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Whether each kind has made as many connections as it has clients.
    fn all_came(&self) -> bool {
        let all = u64::try_from(CLIENTS_OF_A_KIND).expect("small");
        let mut done = self.done.iter();
        done.all(|done| done.connections.load(Ordering::Relaxed) >= all)
    }

    fn connect(&self, kind: usize) -> io::Result<TcpStream> {
        let tcp = TcpStream::connect(("127.0.0.1", self.port))?;
        self.done[kind].connections.fetch_add(1, Ordering::Relaxed);
        tcp.set_nodelay(true)?;
        tcp.set_read_timeout(Some(LOOK))?;
        tcp.set_write_timeout(Some(LOOK))?;
        Ok(tcp)
    }

    /// A connection of a client of this kind, from its begin to its end.
    fn attack(&self, kind: usize, number: usize) -> io::Result<()> {
        let tcp = self.connect(kind)?;
        let config = match kind {
            1 => &self.chains[number % 2],
            _ => &self.nobody,
        };
        let mut session = session(config);
        match kind {
            0 | 1 => {
                let mut tcp = tcp;
                shake_hands(&mut session, &mut tcp)?;
                let mut link = Stream::new(&mut session, &mut tcp);
                let all = b"GET / HTTP/1.1\r\n\r\n".repeat(PIPELINED);
                let sent = link.write_all(&all);
                self.wait_for_the_end(kind, &mut link);
                sent
            }
            2 => {
                let mut tcp = OneByOne(tcp);
                shake_hands(&mut session, &mut tcp)?;
                let mut link = Stream::new(&mut session, &mut tcp);
                link.write_all(b"GET / HTTP/1.1\r\nA: ")?;
                for _ in 0..SLOW_BYTES {
                    if self.is_over() {
                        break;
                    }
                    link.write_all(b"a")?;
                }
                Ok(())
            }
            // Some say nothing at all, others not after the handshake.
            _ => {
                let mut tcp = tcp;
                if number.is_multiple_of(2) {
                    self.wait_for_the_end(kind, &mut tcp);
                } else {
                    shake_hands(&mut session, &mut tcp)?;
                    self.wait_for_the_end(kind, &mut Stream::new(&mut session, &mut tcp));
                }
                Ok(())
            }
        }
    }

    fn wait_for_the_end(&self, kind: usize, link: &mut impl Read) {
        let mut some = [0; 4096];
        while !self.is_over() {
            match link.read(&mut some) {
                Ok(0) => return,
                Ok(n) => {
                    let n = u64::try_from(n).expect("small");
                    self.done[kind].bytes.fetch_add(n, Ordering::Relaxed);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
        }
    }
}

fn shake_hands(session: &mut ClientConnection, link: &mut (impl Read + Write)) -> io::Result<()> {
    while session.is_handshaking() {
        session.complete_io(link)?;
    }
    Ok(())
}

/// From now on this thread, and those that it starts, run when nobody else wants to.
fn last_of_all() {
    let id = nix::unistd::gettid().to_string();
    let status = Command::new("chrt")
        .args(["--idle", "--pid", "0", &id])
        .status();
    assert!(status.is_ok_and(|status| status.success()), "chrt");
}

fn pss_kib(host: &Host) -> u64 {
    let memory = fs::read_to_string(format!("/proc/{}/smaps_rollup", host.agent_pid()));
    let memory = memory.expect("the agent's memory");
    let line = memory.lines().find(|l| l.starts_with("Pss:")).expect("PSS");
    let kib = line.split_whitespace().nth(1).and_then(|n| n.parse().ok());
    kib.expect("KiB")
}

/// When the lease was renewed, milliseconds of the apiserver's clock.
fn renewals(server: &TestServer) -> Vec<i64> {
    let all = server.audit();
    let renewed = all
        .iter()
        .filter(|e| e.uri.contains("/leases/") && e.verb != "get" && e.code == 200);
    renewed.map(|e| e.at_ms).collect()
}

/// Milliseconds of this machine's clock, which is the apiserver's.
fn wall_ms() -> i64 {
    clock::wall_now().0 / 1_000_000
}

/// Pages of the node that has hostile clients, and of the one that has none.
const BESIEGED: &str = "/besieged/";
const CALM: &str = "/calm/";

/// Starts pods whose probes ask this port for pages of `node`.
fn start_pods(server: &TestServer, port: u16, node: &str) {
    let names: Vec<_> = (0..PODS).map(|n| format!("p{n}")).collect();
    for name in &names {
        let get = json!({"host": "127.0.0.1", "port": port, "path": format!("{node}{name}")});
        let probe = json!({"httpGet": get, "periodSeconds": PERIOD.as_secs(), "timeoutSeconds": 1, "failureThreshold": 1000});
        let mut all = pod(name, json!({}));
        all["spec"]["containers"][0]["readinessProbe"] = probe;
        server.create(&all).expect("create");
    }
    for name in &names {
        wait_ready(server, name);
    }
}

#[test]
fn two_hundred_hostile_clients() {
    // SRV-01
    if !able() {
        return;
    }
    let seconds = env::var_os("PICOLET_HOSTILE_SECONDS");
    let seconds = seconds.and_then(|n| n.to_str()?.parse().ok());
    let time = Duration::from_secs(seconds.unwrap_or(SECONDS));
    let (host, server) = started(&[]);
    let probed = Arc::new(Probed::default());
    let (calm, calm_server) = started(&[]);
    // One that is slow to ask does not hold up the other.
    start_pods(&calm_server, probed.serve(), CALM);
    start_pods(&server, probed.serve(), BESIEGED);
    let admin = server.credentials("admin", &["system:masters"], HOUR);
    let admin = admin.expect("pair");
    assert_eq!(ask(&host, Some(&admin), "GET /healthz", "").0, 200);
    let (begin, begin_wall) = (clock::mono_now().0, wall_ms());
    let (pss, own) = (pss_kib(&host), own_kib(&host));
    server.clear_audit();

    let at = host.flags.iter().position(|f| f == "--port").expect("port");
    let siege = Siege {
        port: host.flags[at + 1].parse().expect("port"),
        over: AtomicBool::new(false),
        nobody: client(None),
        chains: [
            worst_chain(usize::MAX, 5),
            worst_chain(CHAIN_BYTES, usize::MAX),
        ],
        done: Default::default(),
    };
    let siege = &siege;
    let (mut most_pss, mut most_own) = (pss, own);
    let mut waits = Vec::new();
    thread::scope(|scope| {
        scope.spawn(|| {
            last_of_all();
            for number in 0..CLIENTS_OF_A_KIND {
                for kind in 0..4 {
                    scope.spawn(move || {
                        while !siege.is_over() {
                            // However it ended: the next one.
                            let _ = siege.attack(kind, number);
                        }
                    });
                }
            }
        });
        // Whatever fails, they stop: the scope waits for them.
        let over = Over(siege);
        let end = clock::mono_now() + time;
        let limit = clock::mono_now() + time.max(ARRIVAL_LIMIT);
        while clock::mono_now() < end
            || ((renewals(&server).is_empty() || !siege.all_came()) && clock::mono_now() < limit)
        {
            let asked = clock::mono_now();
            let (code, said) = ask(&host, Some(&admin), "GET /healthz", "");
            assert_eq!(code, 200, "an honest client: {said}");
            let by_network = clock::mono_now().0 - asked.0;
            host.ok(&["get", "node", "-o", "name"]);
            waits.push((by_network, clock::mono_now().0 - asked.0 - by_network));
            most_pss = most_pss.max(pss_kib(&host));
            most_own = most_own.max(own_kib(&host));
            pause(LOOK);
        }
        drop(over);
    });
    let (stop, stop_wall) = (clock::mono_now().0, wall_ms());
    let [pauses, calm_pauses] = [BESIEGED, CALM].map(|node| probed.pauses(node, begin, stop));
    let renewed = renewals(&server);
    let counts: Vec<_> = ["pipelining", "chains", "one byte", "silence"]
        .iter()
        .zip(&siege.done)
        .map(|(kind, done)| {
            let connections = done.connections.load(Ordering::Relaxed);
            format!(
                "{kind} {connections} ({} bytes back)",
                done.bytes.load(Ordering::Relaxed)
            )
        })
        .collect();
    println!(
        "{} s; connections: {}",
        (stop - begin) / 1000,
        counts.join(", ")
    );
    let middle = |all: &[Duration]| all[all.len() / 2];
    println!(
        "longest time between two probes of a pod: {:?} (median {:?}) of {} pods; of the other node {:?} (median {:?}); period {PERIOD:?}",
        pauses.last(),
        middle(&pauses),
        pauses.len(),
        calm_pauses.last(),
        middle(&calm_pauses),
    );
    let times = [&[begin_wall], &*renewed, &[stop_wall]].concat();
    let gaps: Vec<_> = times.windows(2).map(|two| two[1] - two[0]).collect();
    println!(
        "lease renewed {} times, ms between: {gaps:?}",
        renewed.len()
    );
    let of = |pick: fn(&(u64, u64)) -> u64| {
        let mut all: Vec<_> = waits.iter().map(pick).collect();
        all.sort_unstable();
        (all[all.len() / 2], all[all.len() - 1])
    };
    println!(
        "ms, median and most, of {}: an honest client {:?}, a local command {:?}",
        waits.len(),
        of(|w| w.0),
        of(|w| w.1)
    );
    println!("PSS before {pss}, most {most_pss} KiB; own memory before {own}, most {most_own} KiB");
    assert_eq!([pauses.len(), calm_pauses.len()], [PODS; 2]);
    let late = pauses.last().expect("pods");
    // They are not blamed for what else makes a node late; but nothing makes it late without end.
    let most = (PERIOD * 2).max(*calm_pauses.last().expect("pods") * 2);
    let most = most.min(PERIOD * 10);
    assert!(
        *late <= most,
        "a probe was late: {pauses:?}, at most {most:?}"
    );
    assert!(!renewed.is_empty(), "the lease was not renewed");
    assert!(
        gaps.iter()
            .all(|gap| u128::try_from(*gap).expect("order") < LEASE.as_millis()),
        "{gaps:?}"
    );
    assert!(most_own <= own + GROWTH_KIB, "{own} to {most_own} KiB");
    assert!(siege.all_came(), "{counts:?}");
    host.until("the memory is back", |host| {
        let now = own_kib(host);
        (
            now <= own + LEFT_KIB,
            format!("{own}, then {most_own}, now {now} KiB"),
        )
    });
    println!(
        "PSS after {}, own memory after {} KiB",
        pss_kib(&host),
        own_kib(&host)
    );
    ended(host, &server);
    ended(calm, &calm_server);
}

/// Ends a siege.
struct Over<'a>(&'a Siege);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Relaxed);
    }
}
