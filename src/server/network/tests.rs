//! The server as clients meet it: over TLS, on the loopback interface.

use alloc::collections::BTreeMap;
use core::cell::{Cell, RefCell};
use std::{fs, os::unix::net::UnixStream};

use futures_rustls::TlsConnector;
use rustls::{
    DigitallySignedStruct, DistinguishedName, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::danger::{ClientCertVerified, ClientCertVerifier},
};
use smol::future::yield_now;

use super::*;
use crate::{
    kube::testing::{Authority, NOW, Pair},
    net::{
        any_peer::{MAX_CHAIN, MAX_CHAIN_BYTES, PeerProof},
        known_time::KNOWN,
        serving::{self, ClientAuthorities, ServingCertificateSlot, TlsOffer},
        tls,
    },
    server::{
        connection::testing::Eager,
        http::UserIdentity,
        testing::{FakeBackend, cpu_time},
    },
    testing::TestDir,
};

/// Says who may what, and counts how often it was asked.
#[derive(Default)]
struct Apiserver {
    asked: RefCell<Vec<String>>,
    /// Subresources that each user may use.
    rights: BTreeMap<&'static str, &'static [&'static str]>,
    is_down: Cell<bool>,
}

impl Apiserver {
    fn down() -> ReviewError {
        ReviewError {
            why: "nobody answers".into(),
            may_pass: false,
        }
    }
}

impl Reviewer for Rc<Apiserver> {
    fn find_token_user(&self, token: String) -> ReviewReply<'_, Option<UserIdentity>> {
        Box::pin(async move {
            self.asked.borrow_mut().push(format!("token {token}"));
            yield_now().await;
            if self.is_down.get() {
                return Err(Apiserver::down());
            }
            Ok(token.strip_prefix("of-").map(|name| UserIdentity {
                name: name.into(),
                groups: vec!["g".into()],
                ..UserIdentity::default()
            }))
        })
    }

    fn is_user_allowed(&self, question: AccessQuestion) -> ReviewReply<'_, bool> {
        Box::pin(async move {
            let AccessQuestion {
                user,
                verb,
                subresource,
            } = question;
            let text = format!("{} {verb} {subresource}", user.name);
            self.asked.borrow_mut().push(text);
            if self.is_down.get() {
                return Err(Apiserver::down());
            }
            let rights = self.rights.get(&*user.name);
            let with_verb = format!("{verb} {subresource}");
            let is_meant = |right: &&str| *right == subresource || *right == with_verb;
            Ok(rights.is_some_and(|all| all.iter().any(is_meant)))
        })
    }
}

struct World {
    executor: Rc<LocalExecutor<'static>>,
    apiserver: Rc<Apiserver>,
    ours: Authority,
    address: SocketAddr,
    network: Rc<NetworkServer>,
    _server: smol::Task<()>,
}

/// Settings in which the worlds of the tests differ.
struct Plan {
    access: AccessSettings,
    debugging: bool,
    node_logs: Option<NodeLogSettings>,
    backend: FakeBackend,
}

impl Default for Plan {
    fn default() -> Self {
        let time = Duration::from_secs(60);
        Self {
            access: AccessSettings {
                tokens: Some(time),
                anonymous: false,
                authorization: AuthorizationMode::Webhook(time, time),
            },
            debugging: true,
            node_logs: None,
            backend: FakeBackend::default(),
        }
    }
}

impl World {
    fn new(plan: Plan) -> Self {
        let executor = Rc::new(LocalExecutor::new());
        let apiserver = Rc::new(Apiserver {
            rights: BTreeMap::from([
                (
                    "admin",
                    &["proxy", "metrics", "stats", "log", "checkpoint", "statusz"][..],
                ),
                ("reader", &["metrics", "stats", "pods"]),
                ("viewer", &["get proxy"]),
                ("operator", &["create proxy"]),
            ]),
            ..Apiserver::default()
        });
        let ours = Authority::new();
        let shown = Arc::new(ServingCertificateSlot::default());
        let pair = ours.server(&["node"], NOW);
        shown
            .set_certificate(pair.certificate.as_bytes(), pair.key.as_bytes())
            .expect("pair");
        let offer = TlsOffer {
            client_certificates: true,
            ..TlsOffer::default()
        };
        let tls = serving::build_server_config(&offer, shown).expect("tls");
        let access = AccessControl::new(plan.access, Some(Box::new(Rc::clone(&apiserver))));
        access.set_authorities(Arc::new(
            ClientAuthorities::from_pem(ours.pem.as_bytes()).expect("CA"),
        ));
        let free = TcpListener::bind(("127.0.0.1", 0)).expect("port");
        let address = free.local_addr().expect("address");
        drop(free);
        let settings = NetworkServerSettings {
            listen: address,
            debugging: plan.debugging,
            node_logs: plan.node_logs,
        };
        let network = NetworkServer::new(settings, tls, Rc::new(access), Rc::new(plan.backend));
        let network = Rc::new(network);
        let server = executor.spawn(Rc::clone(&network).serve_network(Rc::clone(&executor)));
        Self {
            executor,
            apiserver,
            ours,
            address,
            network,
            _server: server,
        }
    }

    fn run<T>(&self, work: impl Future<Output = T>) -> T {
        smol::block_on(self.executor.run(work))
    }

    /// A client with or without a certificate.
    async fn client(
        &self,
        pair: Option<&Pair>,
    ) -> futures_rustls::client::TlsStream<Async<TcpStream>> {
        let identity = pair.map(|pair| tls::ClientIdentity {
            chain: tls::PemSource::Text("chain", pair.certificate.as_bytes()),
            key: tls::PemSource::Text("key", pair.key.as_bytes()),
        });
        let config =
            tls::client_config(tls::ServerRoots::Any(PeerProof::Key), identity).expect("client");
        let stream = loop {
            match Async::<TcpStream>::connect(self.address).await {
                Ok(stream) => break stream,
                Err(_) => yield_now().await,
            }
        };
        let name = ServerName::try_from("node").expect("name");
        let connector = TlsConnector::from(config);
        connector.connect(name, stream).await.expect("handshake")
    }

    /// The whole answer to one request of somebody on another machine.
    async fn ask_from_afar(&self, pair: &Pair, line: &str) -> String {
        let identity = tls::ClientIdentity {
            chain: tls::PemSource::Text("chain", pair.certificate.as_bytes()),
            key: tls::PemSource::Text("key", pair.key.as_bytes()),
        };
        let config = tls::client_config(tls::ServerRoots::Any(PeerProof::Key), Some(identity))
            .expect("client");
        let (near, far) = Async::<UnixStream>::pair().expect("a pair");
        let below = StreamTransport::Counted {
            socket: near.as_raw_fd(),
            class: Rc::new(Cell::new(LinkClass::Stream)),
            leaves: true,
        };
        self.network.admit_connection(
            Box::new(near),
            below,
            ConnectionCaller::Source("test"),
            &self.executor,
        );
        let name = ServerName::try_from("node").expect("name");
        let connector = TlsConnector::from(config);
        let mut client = connector.connect(name, far).await.expect("handshake");
        let head = format!("{line} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n");
        client.write_all(head.as_bytes()).await.expect("ask");
        let mut answer = Vec::new();
        let _ = client.read_to_end(&mut answer).await;
        String::from_utf8(answer).expect("text")
    }

    /// The whole answer to one request.
    async fn ask(&self, pair: Option<&Pair>, line: &str, headers: &str) -> String {
        let mut client = self.client(pair).await;
        let head = format!("{line} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n{headers}\r\n");
        client.write_all(head.as_bytes()).await.expect("ask");
        let mut answer = Vec::new();
        // A server that ends with a reset instead of a word has answered all the same.
        let _ = client.read_to_end(&mut answer).await;
        String::from_utf8(answer).expect("text")
    }

    fn asked(&self) -> Vec<String> {
        self.apiserver.asked.take()
    }

    fn user(&self, name: &str) -> Pair {
        self.ours.client("", name, NOW)
    }
}

fn status(answer: &str) -> u16 {
    let word = answer.split(' ').nth(1);
    word.and_then(|w| w.parse().ok()).unwrap_or(0)
}

/// Requests, one for each kind of page.
const PAGES: [&str; 23] = [
    "GET /",
    "GET /healthz",
    "GET /healthz/ping",
    "GET /pods",
    "GET /runningpods/",
    "GET /configz",
    "GET /containerLogs/ns/p/c",
    "POST /exec/ns/p/c?command=sh",
    "GET /exec/ns/p/uid/c?command=sh",
    "POST /attach/ns/p/c",
    "POST /portForward/ns/p",
    "POST /run/ns/p/c?cmd=sh",
    "GET /metrics",
    "GET /metrics/cadvisor",
    "GET /metrics/resource",
    "GET /metrics/probes",
    "GET /stats/summary",
    "GET /stats/disk",
    "GET /logs/",
    "GET /debug/pprof/",
    "PUT /debug/flags/v",
    "GET /statusz",
    "POST /checkpoint/ns/p/c",
];

#[test]
fn nothing_is_served_to_strangers() {
    // SRV-05 SRV-10
    let world = World::new(Plan::default());
    let other = Authority::new();
    let ended = world.ours.client("", "admin", (-100, -50));
    let foreign = other.client("system:masters", "admin", NOW);
    let powerless = world.user("eve");
    world.run(async {
        for page in PAGES {
            for (who, pair, headers) in [
                ("nobody", None, ""),
                ("of another CA", Some(&foreign), ""),
                ("ended", Some(&ended), ""),
                (
                    "a token that ended",
                    None,
                    "Authorization: Bearer ended\r\n",
                ),
                ("no token", None, "Authorization: Basic YTpi\r\n"),
            ] {
                let answer = world.ask(pair, page, headers).await;
                assert_eq!(status(&answer), 401, "{page} {who}: {answer}");
                assert!(answer.ends_with("\r\n\r\nUnauthorized"), "{answer}");
            }
            let answer = world.ask(Some(&powerless), page, "").await;
            assert_eq!(status(&answer), 403, "{page}: {answer}");
            assert!(answer.contains("Forbidden (user=eve, verb="), "{answer}");
        }
    });
}

#[test]
fn a_path_is_what_was_asked_about() {
    // SRV-09 SRV-14 SRV-17
    let world = World::new(Plan::default());
    let (admin, reader) = (world.user("admin"), world.user("reader"));
    world.run(async {
        for path in [
            "//pods",
            "/metrics/../configz",
            "/metrics/%2e%2e/configz",
            "/metrics/%2E./configz",
            "/metrics;/../configz",
            "/metrics;x=y",
            "/metrics%2f..%2fconfigz",
            "/metrics/..%2fconfigz",
            "/metrics%5c..%5cconfigz",
            "/./configz",
            "/configz//",
            "/configz%00",
            "https://node/metrics",
        ] {
            let page = format!("GET {path}");
            // What may be read of metrics is no way round.
            let answer = world.ask(Some(&reader), &page, "").await;
            assert_eq!(status(&answer), 403, "{path}: {answer}");
            let answer = world.ask(Some(&admin), &page, "").await;
            assert_eq!(status(&answer), 404, "{path}: {answer}");
        }
        for (page, code) in [
            ("GET /pods", 200),
            ("GET /pods/", 200),
            ("GET /pods?x=//;..", 200),
            ("GET /PODS", 404),
            ("GET /pods/x", 404),
            ("GET /nothing", 404),
            ("GET /metrics", 200),
            ("GET /metrics/probes", 200),
            ("GET /metrics/slis", 200),
            ("GET /metrics/resource", 200),
            ("POST /metrics/resource", 405),
            ("GET /metrics/resource/x", 404),
            ("POST /stats/summary?only_cpu_and_memory=true", 200),
            ("PUT /stats/summary", 405),
            ("POST /pods", 405),
            ("HEAD /pods", 405),
            ("DELETE /containerLogs/ns/p/c", 405),
            ("GET /statusz", 200),
            ("POST /statusz", 405),
            ("GET /logs", 405),
            ("GET /logs/syslog", 405),
            ("GET /debug/pprof/heap", 405),
            ("PUT /debug/flags/v", 405),
            ("GET /debug/flags", 404),
            ("POST /checkpoint/ns/p/c", 200),
            ("POST /checkpoint/ns/p/c?timeout=x", 400),
            ("POST /checkpoint/ns/p/c?timeout=-1", 400),
            ("POST /checkpoint/ns/p/c?timeout=13", 500),
            ("POST /checkpoint/ns/p/d", 404),
            ("POST /checkpoint/ns/p/d?timeout=x", 404),
            ("GET /checkpoint/ns/p/c", 405),
        ] {
            let answer = world.ask(Some(&admin), page, "").await;
            assert_eq!(status(&answer), code, "{page}: {answer}");
        }
    });
}

#[test]
fn what_a_kubelet_has_for_people() {
    // SRV-13 SRV-14 SRV-15 CKPT-01
    let world = World::new(Plan::default());
    let admin = world.user("admin");
    world.run(async {
        let answer = world.ask(Some(&admin), "GET /statusz", "").await;
        assert!(answer.contains("kubelet statusz\n"), "{answer}");
        assert!(answer.contains("Up: 1 hr 02 min 03 sec\n"), "{answer}");
        let json = "Accept: application/json\r\n";
        let answer = world.ask(Some(&admin), "GET /statusz", json).await;
        assert_eq!(status(&answer), 406, "{answer}");
        for (page, says) in [
            ("GET /logs/", "logs endpoint is disabled."),
            ("GET /debug/pprof/", "profiling endpoint is disabled."),
            ("PUT /debug/flags/v", "flags endpoint is disabled."),
            ("POST /checkpoint/ns/p/c?timeout=x", "timeout: \"x\""),
            (
                "POST /checkpoint/ns/p/c?timeout=13",
                "checkpointing of ns/p/c failed (no CRIU)",
            ),
            (
                "POST /checkpoint/ns/p/c?timeout=7",
                r#"{"items":["/checkpoints/c-7.tar"]}"#,
            ),
            ("POST /checkpoint/ns/p/c", "c-120.tar"),
            ("POST /checkpoint/ns/p/c?timeout=0", "c-120.tar"),
            ("POST /checkpoint/ns/p/c?timeout=4294967295", "c-3600.tar"),
        ] {
            let answer = world.ask(Some(&admin), page, "").await;
            assert!(answer.contains(says), "{answer}");
        }
    });
}

/// A machine whose `journalctl` is a script: it prints its arguments, and behaves by the service that is asked for.
fn machine_with_logs(dir: &TestDir, answer_time: Duration) -> NodeLogSettings {
    let script = dir.join("journalctl");
    let text = format!(
        "#!/bin/sh\necho started >>{0}/started\ncase \"$*\" in\n\
         --field*) printf 'ssh.service\\nslow.service\\nflood.service\\nmute.service\\n' ;;\n\
         *--unit=slow*) echo $$ >{0}/pid; echo begun; exec sleep 1000 ;;\n\
         *--unit=mute*) echo $$ >{0}/pid; exec sleep 1000 ;;\n\
         *--unit=flood*) exec cat /dev/zero ;;\n\
         *) echo \"TZ=$TZ\" \"$@\"; echo error >&2; exit 1 ;;\nesac\n",
        dir.display()
    );
    crate::testing::write_script(&script, &text);
    let logs = dir.join("log");
    fs::create_dir_all(logs.join("web")).expect("directory");
    for (file, text) in [
        ("syslog", "of the system\n"),
        ("web/web.log", "of the web\n"),
    ] {
        fs::write(logs.join(file), text).expect("file");
    }
    NodeLogSettings {
        journalctl: script,
        dir: logs,
        answer_time,
    }
}

/// A time that no answer takes.
const LONG: Duration = Duration::from_secs(600);

fn world_with_logs(settings: NodeLogSettings) -> World {
    World::new(Plan {
        node_logs: Some(settings),
        ..Plan::default()
    })
}

#[test]
fn logs_of_the_node() {
    // NLQ-01 NLQ-02 NLQ-03 NLQ-04 NLQ-05 NLQ-06
    let dir = TestDir::new("node-logs");
    let world = world_with_logs(machine_with_logs(&dir, LONG));
    let (admin, reader) = (world.user("admin"), world.user("reader"));
    let started = dir.join("started");
    world.run(async {
        for (page, code, says) in [
            ("GET /logs/", 405, "logs endpoint is disabled."),
            ("GET /logs/?other=x", 405, "logs endpoint is disabled."),
            ("GET /logs/?tailLines=3", 400, "cannot be empty with options"),
            ("GET /logs/?query=%20", 400, "query cannot be empty"),
            ("GET /logs/?query=a%20b", 400, "input contains unsupported characters"),
            ("GET /logs/?query=ssh&pattern=(", 400, "pattern: Invalid value"),
            ("GET /logs/?query=ssh&boot=1", 400, "must be less than 1"),
            ("GET /logs/?query=/none", 400, "query: Invalid value"),
            ("GET /logs/?query=/web", 400, "query: Invalid value"),
            ("GET /logs/?query=/../journalctl", 400, "query: Invalid value"),
            ("GET /logs/syslog?query=ssh", 406, "path not allowed in query mode"),
            ("PUT /logs/?query=ssh", 405, "\r\nAllow: GET, POST\r\n"),
        ] {
            let answer = world.ask(Some(&admin), page, "").await;
            assert_eq!(status(&answer), code, "{page}: {answer}");
            assert!(answer.contains(says), "{page}: {answer}");
        }
        let answer = world.ask(Some(&reader), "GET /logs/?query=ssh", "").await;
        assert_eq!(status(&answer), 403, "{answer}");
        assert!(!started.exists(), "nothing was started");
        let ssh = "TZ=UTC --utc --no-pager --output=short-precise --unit=ssh\n";
        for (page, says) in [
            ("GET /logs/?query=ssh", &[ssh, "error\n"][..]),
            ("POST /logs/?query=ssh", &[ssh, "error\n"]),
            (
                "GET /logs/?query=ssh&untilTime=2026-09-04T01:02:03Z&tailLines=5&pattern=a%20b&boot=-1",
                &["--until=2026-09-04 01:02:03 --pager-end --lines=5 --unit=ssh --grep=a b --boot=-1\n"],
            ),
            ("GET /logs/?query=ssh&query=web&query=none", &[ssh, "of the web\n", "\nlog not found for none\n"]),
            (
                "GET /logs/?query=web&query=ssh&query=x&boot=0",
                &[
                    "--unit=ssh --boot=0\n",
                    "\noptions present and query resolved to log files for [web x]\ntry without specifying options\n",
                ],
            ),
            ("GET /logs/?query=syslog", &["of the system\n"]),
            ("GET /logs/?query=/syslog", &["of the system\n"]),
            ("GET /logs?query=web%5Cweb.log", &["of the web\n"]),
        ] {
            let answer = world.ask(Some(&admin), page, "").await;
            assert_eq!(status(&answer), 200, "{page}: {answer}");
            let kind = "\r\nContent-Type: text/plain;charset=UTF-8\r\n";
            assert!(answer.contains(kind), "{page}: {answer}");
            assert!(answer.ends_with("\r\n0\r\n\r\n"), "{page}: {answer}");
            for part in says {
                assert!(answer.contains(part), "{page}: {answer}");
            }
        }
    });
}

#[test]
fn logs_of_a_node_without_systemd() {
    // NLQ-03 NLQ-04
    let dir = TestDir::new("no-journal");
    let mut settings = machine_with_logs(&dir, LONG);
    settings.journalctl = dir.join("none");
    let world = world_with_logs(settings);
    let admin = world.user("admin");
    world.run(async {
        let page = "GET /logs/?query=ssh&query=web";
        let answer = world.ask(Some(&admin), page, "").await;
        assert_eq!(status(&answer), 200, "{answer}");
        assert!(answer.contains("\nlog not found for ssh\n"), "{answer}");
        assert!(answer.contains("of the web\n"), "{answer}");
    });
}

#[test]
fn logs_are_packed_if_that_is_asked_for() {
    // NLQ-06
    let dir = TestDir::new("packed-logs");
    let world = world_with_logs(machine_with_logs(&dir, LONG));
    let admin = world.user("admin");
    world.run(async {
        let mut client = world.client(Some(&admin)).await;
        // Without chunks the answer is all that follows the head.
        let head = "GET /logs/?query=ssh HTTP/1.0\r\nAccept-Encoding: gzip\r\n\r\n";
        client.write_all(head.as_bytes()).await.expect("ask");
        let mut answer = Vec::new();
        let _ = client.read_to_end(&mut answer).await;
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
        let (head, body) = answer.split_at(end.expect("a head") + 4);
        let head = String::from_utf8_lossy(head);
        assert!(head.contains("\r\nContent-Encoding: gzip\r\n"), "{head}");
        let text = io::read_to_string(flate2::read::GzDecoder::new(body)).expect("packed");
        assert!(text.ends_with("--unit=ssh\nerror\n"), "{text}");
        let other = "Accept-Encoding: gzip, br\r\n";
        let answer = world.ask(Some(&admin), "GET /logs/?query=ssh", other).await;
        // Plain: what the program prints at two times may be two chunks.
        assert!(!answer.contains("Content-Encoding"), "{answer}");
        assert!(answer.contains("--unit=ssh\n"), "{answer}");
        assert!(answer.contains("error\n"), "{answer}");
    });
}

#[test]
fn logs_of_the_node_end() {
    // NLQ-06
    let dir = TestDir::new("slow-logs");
    let world = world_with_logs(machine_with_logs(&dir, LONG));
    let admin = world.user("admin");
    let has_ended = async || {
        let pid = fs::read_to_string(dir.join("pid")).expect("pid");
        let pid: i32 = pid.trim().parse().expect("a number");
        // Reaped at the next start of a child, so its state is asked for.
        let is_over = || {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
            stat.map_or(true, |stat| stat.contains(") Z "))
        };
        while !is_over() {
            yield_now().await;
        }
    };
    let begun = async || {
        while !fs::read_to_string(dir.join("pid")).is_ok_and(|pid| pid.ends_with('\n')) {
            yield_now().await;
        }
    };
    world.run(async {
        for service in ["slow", "mute"] {
            let mut client = world.client(Some(&admin)).await;
            let head = format!("GET /logs/?query={service} HTTP/1.1\r\n\r\n");
            client.write_all(head.as_bytes()).await.expect("ask");
            begun().await;
            // One at a time.
            let other = world.ask(Some(&admin), "GET /logs/?query=ssh", "").await;
            assert_eq!(status(&other), 429, "{other}");
            assert!(other.contains("\r\nRetry-After: "), "{other}");
            drop(client);
            has_ended().await;
            fs::remove_file(dir.join("pid")).expect("remove");
            // The turn is free again.
            let other = loop {
                let other = world.ask(Some(&admin), "GET /logs/?query=ssh", "").await;
                if status(&other) != 429 {
                    break other;
                }
            };
            assert_eq!(status(&other), 200, "{other}");
        }
    });
    // Its time is over: what there is, is the answer.
    let dir = TestDir::new("late-logs");
    let world = world_with_logs(machine_with_logs(&dir, Duration::from_secs(2)));
    let admin = world.user("admin");
    world.run(async {
        let answer = world.ask(Some(&admin), "GET /logs/?query=mute", "").await;
        assert_eq!(status(&answer), 200, "{answer}");
        assert!(answer.ends_with("0\r\n\r\n"), "{answer}");
    });
    // Output without end is held back by a client that does not read, and ends with its bytes.
    let limit = 100_000;
    let world = World::new(Plan {
        node_logs: Some(machine_with_logs(&dir, LONG)),
        backend: FakeBackend {
            limit: Some(limit),
            ..FakeBackend::default()
        },
        ..Plan::default()
    });
    let admin = world.user("admin");
    let answer = world.run(world.ask_from_afar(&admin, "GET /logs/?query=flood"));
    assert!(answer.contains("picolet.link.streamBytes"), "its end");
    let most = usize::try_from(limit).expect("small") * 2;
    assert!(answer.len() < most, "{}", answer.len());
}

#[test]
fn bodies_are_read_past() {
    // SRV-01
    let world = World::new(Plan::default());
    let admin = world.user("admin");
    world.run(async {
        let chunked = "POST /stats/summary HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
        let body = "3\r\nabc\r\n0\r\n\r\n";
        let plain = "POST /stats/summary HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc";
        let last = "GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n";
        let mut client = world.client(Some(&admin)).await;
        let all = format!("{chunked}{body}{plain}{chunked}{body}{last}");
        client.write_all(all.as_bytes()).await.expect("ask");
        let mut answers = Vec::new();
        let _ = client.read_to_end(&mut answers).await;
        let answers = String::from_utf8(answers).expect("text");
        assert_eq!(answers.matches("HTTP/1.1 200 OK").count(), 4, "{answers}");
        let long = format!("{chunked}fffff\r\n");
        for (request, code) in [(long, 413), (format!("{chunked}x\r\n"), 400)] {
            let mut client = world.client(Some(&admin)).await;
            client.write_all(request.as_bytes()).await.expect("ask");
            let mut answer = Vec::new();
            let _ = client.read_to_end(&mut answer).await;
            let answer = String::from_utf8(answer).expect("text");
            assert_eq!(status(&answer), code, "{answer}");
        }
    });
}

#[test]
fn questions_are_asked_once() {
    // SRV-06 SRV-08 SRV-09 SRV-10
    let world = World::new(Plan::default());
    let (admin, reader) = (world.user("admin"), world.user("reader"));
    world.run(async {
        for _ in 0..2 {
            assert_eq!(status(&world.ask(Some(&admin), "GET /pods", "").await), 200);
        }
        assert_eq!(world.asked(), ["admin get pods", "admin get proxy"]);
        assert_eq!(status(&world.ask(Some(&reader), "GET /pods", "").await), 200);
        assert_eq!(world.asked(), ["reader get pods"]);
        assert_eq!(status(&world.ask(Some(&reader), "GET /configz", "").await), 403);
        assert_eq!(world.asked(), ["reader get configz", "reader get proxy"]);
        assert_eq!(status(&world.ask(Some(&reader), "GET /configz", "").await), 403);
        assert!(world.asked().is_empty(), "a no counts too");
        // At once: the second one waits for the answer to the first.
        let by_token = || world.ask(None, "GET /pods", "authorization: bearer of-reader\r\n");
        let both = smol::future::zip(by_token(), by_token()).await;
        assert_eq!((status(&both.0), status(&both.1)), (200, 200));
        assert_eq!(world.asked(), ["token of-reader", "reader get pods"]);
        // A websocket may hide its token.
        let hidden = "Upgrade: websocket\r\nSec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.b2YtcmVhZGVy, x\r\n";
        assert_eq!(status(&world.ask(None, "GET /pods", hidden).await), 200);
        assert!(world.asked().is_empty());
        // Offline what was said counts on, and nothing else.
        world.apiserver.is_down.set(true);
        assert_eq!(status(&by_token().await), 200);
        assert_eq!(status(&world.ask(Some(&admin), "GET /metrics", "").await), 500);
        let strange = "Authorization: Bearer of-somebody\r\n";
        assert_eq!(status(&world.ask(None, "GET /pods", strange).await), 401);
        world.apiserver.is_down.set(false);
        assert_eq!(status(&world.ask(None, "GET /pods", strange).await), 403);
    });
}

#[test]
fn who_may_only_read_acts_in_no_pod() {
    // SRV-08 SRV-09
    let world = World::new(Plan::default());
    let (viewer, operator) = (world.user("viewer"), world.user("operator"));
    // A WebSocket begins as a GET.
    let websocket = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
        Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: v5.channel.k8s.io\r\n";
    world.run(async {
        for page in [
            "/exec/ns/p/c?command=sh&output=1",
            "/exec/ns/p/uid/c?command=sh&output=1",
            "/%65xec/ns/p/c?command=sh&output=1",
            "/attach/ns/p/c?output=1",
            "/portForward/ns/p?ports=1",
            "/run/ns/p/c?cmd=sh",
        ] {
            for method in ["GET", "POST", "HEAD", "PUT"] {
                for headers in ["", websocket] {
                    let page = format!("{method} {page}");
                    let answer = world.ask(Some(&viewer), &page, headers).await;
                    assert_eq!(status(&answer), 403, "{page}: {answer}");
                    let answer = world.ask(Some(&operator), &page, headers).await;
                    assert!(![401, 403].contains(&status(&answer)), "{page}: {answer}");
                }
            }
        }
        let answer = world.ask(Some(&viewer), "GET /runningpods/", "").await;
        assert_eq!(status(&answer), 200, "what is read needs get: {answer}");
    });
}

#[test]
fn who_comes_without_a_name() {
    // SRV-05 SRV-10
    let mut plan = Plan::default();
    plan.access.anonymous = true;
    plan.access.authorization = AuthorizationMode::AlwaysAllow;
    let world = World::new(plan);
    let foreign = Authority::new().client("", "admin", NOW);
    world.run(async {
        assert_eq!(status(&world.ask(None, "GET /pods", "").await), 200);
        assert_eq!(
            status(&world.ask(Some(&foreign), "GET /pods", "").await),
            401
        );
        let bad = "Authorization: Bearer bad\r\n";
        assert_eq!(status(&world.ask(None, "GET /pods", bad).await), 401);
        assert_eq!(world.asked(), ["token bad"]);
        // Of two credentials one suffices.
        let good = "Authorization: Bearer of-x\r\n";
        assert_eq!(
            status(&world.ask(Some(&foreign), "GET /pods", good).await),
            200
        );
    });
}

#[test]
fn pages() {
    // SRV-03 SRV-11 SRV-13 SRV-19 SRV-20
    let scratch = TestDir::new("network");
    let log = scratch.join("log");
    let line = |n: u8, text: &str| format!("2024-01-01T00:00:0{n}.000000000Z stdout F {text}\n");
    fs::write(&log, line(1, "one") + &line(2, "two")).expect("log");
    let world = World::new(Plan {
        backend: FakeBackend {
            log,
            trouble: Some("it hangs".into()),
            ..FakeBackend::default()
        },
        ..Plan::default()
    });
    let admin = world.user("admin");
    world.run(async {
        for (page, code, body) in [
            ("GET /pods", 200, r#""metadata":{"name":"p"}"#),
            ("GET /runningpods/", 200, r#""name":"running""#),
            ("GET /configz", 200, r#"{"kubeletconfig":{"maxPods":7}}"#),
            (
                "GET /healthz",
                500,
                "[+]ping ok\n[-]syncloop failed: reason withheld\nhealthz check failed\n",
            ),
            ("GET /healthz?exclude=syncloop", 200, "\r\n\r\nok"),
            (
                "GET /healthz?exclude=syncloop&verbose",
                200,
                "[+]ping ok\n[+]syncloop excluded: ok\nhealthz check passed\n",
            ),
            (
                "GET /healthz?exclude=syncloop&exclude=x&verbose",
                200,
                "warn: some health checks cannot be excluded: no matches for \"x\"\n",
            ),
            ("GET /healthz/ping", 200, "\r\n\r\nok"),
            (
                "GET /healthz/syncloop",
                500,
                "internal server error: it hangs\n",
            ),
            ("GET /healthz/x", 404, ""),
            (
                "GET /containerLogs/ns/p/c",
                200,
                "8\r\none\ntwo\n\r\n0\r\n\r\n",
            ),
            (
                "GET /containerLogs/ns/p/c?follow=1&tailLines=1",
                200,
                "4\r\ntwo\n\r\n0\r\n\r\n",
            ),
            (
                "GET /containerLogs/ns/p/c?limitBytes=5",
                200,
                "5\r\none\nt\r\n0\r\n\r\n",
            ),
            (
                "GET /containerLogs/ns/p/c?timestamps=true&tailLines=1",
                200,
                "2024-01-01T00:00:02.000000000Z two\n",
            ),
            (
                "GET /containerLogs/ns/p/c?previous=1",
                400,
                "previous terminated",
            ),
            ("GET /containerLogs/ns/p/c?tailLines=-1", 422, ""),
            (
                "GET /containerLogs/ns/p/x",
                404,
                "container \"x\" not found in pod \"p\"",
            ),
            ("GET /containerLogs/ns/x/c", 404, "pod \"x\" does not exist"),
        ] {
            let answer = world.ask(Some(&admin), page, "").await;
            assert_eq!(status(&answer), code, "{page}: {answer}");
            assert!(answer.contains(body), "{page}: {answer}");
        }
    });
}

#[test]
fn a_log_ends_with_its_bytes() {
    // METER-05
    let scratch = TestDir::new("network");
    let log = scratch.join("log");
    let line = |n: u32| format!("2024-01-01T00:00:00.000000000Z stdout F line {n:060}\n");
    fs::write(&log, (0..4000).map(line).collect::<String>()).expect("log");
    let world = World::new(Plan {
        backend: FakeBackend {
            log,
            limit: Some(50_000),
            ..FakeBackend::default()
        },
        ..Plan::default()
    });
    let admin = world.user("admin");
    world.run(async {
        let page = "GET /containerLogs/ns/p/c";
        let whole = world.ask(Some(&admin), page, "").await;
        assert_eq!(status(&whole), 200, "{whole}");
        assert!(whole.contains(&format!("line {:060}", 3999)), "it is here");
        assert!(!whole.contains("streamBytes"));
        let cut = world.ask_from_afar(&admin, page).await;
        assert_eq!(status(&cut), 200, "{cut}");
        let said = "\npicolet: the session ends here: a node may send and receive 50.0kB in one (picolet.link.streamBytes)\n";
        assert!(cut.contains(said), "{}", cut.len());
        assert!(cut.ends_with("0\r\n\r\n"), "and it ends whole");
        assert!((50_000..50_000 + 64 * 1024).contains(&cut.len()), "{}", cut.len());
    });
}

#[test]
fn what_is_switched_off() {
    // SRV-04
    let world = World::new(Plan {
        debugging: false,
        ..Plan::default()
    });
    let admin = world.user("admin");
    world.run(async {
        for (page, code) in [
            ("GET /containerLogs/ns/p/c", 405),
            ("POST /exec/ns/p/c", 405),
            ("GET /runningpods/", 405),
            ("GET /debug/pprof/", 405),
            ("GET /configz", 404),
            ("GET /pods", 200),
            ("GET /healthz", 200),
        ] {
            let answer = world.ask(Some(&admin), page, "").await;
            assert_eq!(status(&answer), code, "{page}: {answer}");
            assert_eq!(
                answer.contains("Debug endpoints are disabled."),
                code == 405
            );
        }
    });
}

#[test]
fn a_connection_is_kept() {
    // SRV-01
    let world = World::new(Plan::default());
    let admin = world.user("admin");
    world.run(async {
        let mut client = world.client(Some(&admin)).await;
        assert_eq!(client.get_ref().1.alpn_protocol(), None);
        // All at once, a body and a log between: answers come in order.
        let asked = "GET /healthz/ping HTTP/1.1\r\n\r\nPOST /pods HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc\
                     HEAD /healthz HTTP/1.1\r\n\r\nGET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n";
        client.write_all(asked.as_bytes()).await.expect("ask");
        let mut text = String::new();
        client.read_to_string(&mut text).await.expect("answers");
        let codes: Vec<u16> = text.split("HTTP/1.1 ").skip(1).map(|a| a[..3].parse().expect("code")).collect();
        assert_eq!(codes, [200, 405, 200, 200], "{text}");
        assert_eq!(text.matches("Connection: close").count(), 1);
        for (asked, code) in [
            (format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(http::MAX_HEAD_BYTES)), 431),
            ("GET /pods HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n".into(), 413),
            ("nonsense\r\n\r\n".into(), 400),
        ] {
            let mut client = world.client(Some(&admin)).await;
            client.write_all(asked.as_bytes()).await.expect("ask");
            let mut answer = Vec::new();
            let _ = client.read_to_end(&mut answer).await;
            assert_eq!(status(&String::from_utf8_lossy(&answer)), code);
        }
    });
}

#[test]
fn there_are_only_so_many() {
    // SRV-01
    let world = World::new(Plan::default());
    let admin = world.user("admin");
    world.run(async {
        let ping = b"GET /healthz/ping HTTP/1.1\r\n\r\n";
        let mut used = world.client(Some(&admin)).await;
        let mut answer = [0; 1024];
        used.write_all(ping).await.expect("ask");
        assert!(used.read(&mut answer).await.expect("answer") > 0);
        // Nobody of these ever says a word.
        let mut silent = Vec::new();
        for _ in 0..MAX_CONNECTIONS {
            let stream = Async::<TcpStream>::connect(world.address).await;
            silent.push(stream.expect("connect"));
        }
        let mut last = world.client(Some(&admin)).await;
        last.write_all(ping).await.expect("ask");
        assert!(last.read(&mut answer).await.expect("answer") > 0);
        let mut first = silent.remove(0);
        assert!(
            matches!(first.read(&mut answer).await, Ok(0) | Err(_)),
            "closed"
        );
        used.write_all(ping).await.expect("ask");
        assert!(
            used.read(&mut answer).await.expect("answer") > 0,
            "it was of use"
        );
    });
}

/// Serves a client that has sent all of this already; returns the answers and the turns that another task had
/// meanwhile.
fn turns_beside(world: &World, pair: Option<&Pair>, sent: &[u8], step: usize) -> (String, usize) {
    let (client, got) = Eager::new(sent, step);
    let turns = Cell::new(0);
    world.run(async {
        let place = world.network.places.take_place().expect("a place");
        let connection = StreamConnection::new(client);
        let papers = HandshakeCertificates::new(
            &pair.map_or_else(Vec::new, |pair| chain(&[&pair.certificate])),
        );
        let talk = world.network.serve_requests(connection, papers, &place);
        let other = async {
            loop {
                turns.set(turns.get() + 1);
                yield_now().await;
            }
        };
        smol::future::or(talk, other).await.expect("an end");
        place.release_place();
    });
    let got = String::from_utf8(got.take()).expect("text");
    (got, turns.get())
}

/// Certificates in this order.
fn chain(pems: &[&str]) -> Vec<CertificateDer<'static>> {
    tls::parse_certificates(pems.concat().as_bytes())
}

/// Requests that a client sends without waiting for an answer.
const PIPELINED: usize = 10_000;

#[test]
fn strangers_are_not_listened_to_for_long() {
    // SRV-01 SRV-10
    let world = World::new(Plan::default());
    let all = "GET / HTTP/1.1\r\n\r\n".repeat(PIPELINED);
    let (got, _) = turns_beside(&world, None, all.as_bytes(), usize::MAX);
    assert_eq!(got.matches("HTTP/1.1 ").count(), 1);
    assert!(got.starts_with("HTTP/1.1 401 "), "{got}");
    assert!(got.contains("Connection: close\r\n"), "{got}");
    // Who is known and allowed nothing has a few more.
    let eve = world.user("eve");
    let (got, _) = turns_beside(&world, Some(&eve), all.as_bytes(), usize::MAX);
    let most = usize::try_from(MAX_UNPROVEN).expect("small");
    assert_eq!(got.matches("HTTP/1.1 403 ").count(), most);
    assert_eq!(got.matches("HTTP/1.1 ").count(), most);
    assert_eq!(got.matches("Connection: close\r\n").count(), 1);
    // One that is allowed something begins anew.
    let reader = world.user("reader");
    let no = "GET /configz HTTP/1.1\r\n\r\n".repeat(most - 1);
    let all = format!("{no}GET /pods HTTP/1.1\r\n\r\n").repeat(3);
    let (got, _) = turns_beside(&world, Some(&reader), all.as_bytes(), usize::MAX);
    assert_eq!(got.matches("HTTP/1.1 403 ").count(), 3 * (most - 1));
    assert_eq!(got.matches("HTTP/1.1 200 ").count(), 3);
}

#[test]
fn a_client_that_always_asks_leaves_turns_to_others() {
    // SRV-01
    let mut plan = Plan::default();
    plan.access.anonymous = true;
    plan.access.authorization = AuthorizationMode::AlwaysAllow;
    let world = World::new(plan);
    let all = "GET /healthz/ping HTTP/1.1\r\n\r\n".repeat(PIPELINED);
    let (got, turns) = turns_beside(&world, None, all.as_bytes(), usize::MAX);
    assert_eq!(got.matches("HTTP/1.1 200 OK").count(), PIPELINED);
    assert!(turns >= PIPELINED, "{turns} beside {PIPELINED} requests");
    // A byte at a time, and each is there at once: a head, a body, one in chunks.
    let bytes = 16 * 1024;
    let long = "a".repeat(bytes);
    for sent in [
        format!("GET /healthz HTTP/1.1\r\nA: {long}\r\n\r\n"),
        format!("GET /healthz HTTP/1.1\r\nContent-Length: {bytes}\r\n\r\n{long}"),
        format!(
            "GET /healthz HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n{bytes:x}\r\n{long}\r\n0\r\n\r\n"
        ),
    ] {
        let (got, turns) = turns_beside(&world, None, sent.as_bytes(), 1);
        assert!(got.starts_with("HTTP/1.1 200 OK"), "{got}");
        assert!(turns >= bytes, "{turns} beside {}", &sent[..40]);
    }
}

/// CAs that count how often they are asked; with `held`, about a chain, they do not answer before the other end is gone.
#[derive(Debug)]
struct Counting {
    inner: Arc<dyn ClientCertVerifier>,
    asked: std::sync::atomic::AtomicUsize,
    held: Option<smol::channel::Receiver<()>>,
}

impl Counting {
    fn new(of: &Authority, held: Option<smol::channel::Receiver<()>>) -> Arc<Self> {
        let authorities = ClientAuthorities::from_pem(of.pem.as_bytes()).expect("CA");
        Arc::new(Self {
            inner: authorities.verifier(),
            asked: 0.into(),
            held,
        })
    }

    fn asked(&self) -> usize {
        self.asked.swap(0, std::sync::atomic::Ordering::SeqCst)
    }
}

impl ClientCertVerifier for Counting {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        own: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.asked.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        if let Some(held) = self.held.as_ref().filter(|_| !others.is_empty()) {
            let _ = held.recv_blocking();
        }
        self.inner.verify_client_cert(own, others, now)
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::HandshakeNotComplete)
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::HandshakeNotComplete)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        Vec::new()
    }
}

fn request(token: Option<&str>) -> HttpRequest {
    let header = token.map(|token| ("Authorization".into(), format!("Bearer {token}")));
    HttpRequest {
        method: "GET".into(),
        path: vec!["pods".into()],
        is_plain: true,
        headers: header.into_iter().collect(),
        ..HttpRequest::default()
    }
}

#[test]
fn a_chain_is_verified_once() {
    // SRV-05
    let world = World::new(Plan::default());
    let access = &world.network.access;
    let middle = world.ours.below("middle");
    let far = middle.client("", "reader", NOW);
    let stranger = Authority::new();
    let counting = Counting::new(&world.ours, None);
    access.set_authorities(Arc::new(ClientAuthorities::staged(counting.clone())));
    world.run(async {
        for (what, shown, token, is_good) in [
            (
                "alone",
                chain(&[&world.user("reader").certificate]),
                None,
                true,
            ),
            ("two", chain(&[&far.certificate, &middle.pem]), None, true),
            ("incomplete", chain(&[&far.certificate]), None, false),
            (
                "bad, with a token",
                chain(&[
                    &stranger.client("", "reader", NOW).certificate,
                    &stranger.pem,
                ]),
                Some("of-reader"),
                true,
            ),
        ] {
            let mut papers = HandshakeCertificates::new(&shown);
            for _ in 0..20 {
                let admitted = access.admit_request(&mut request(token), &mut papers).await;
                assert_eq!(admitted.is_ok(), is_good, "{what}: {admitted:?}");
            }
            assert_eq!(counting.asked(), 1, "{what}");
            // Of other CAs, or of the same ones read again, nothing is known.
            access.set_authorities(Arc::new(ClientAuthorities::staged(counting.clone())));
            let _ = access.admit_request(&mut request(token), &mut papers).await;
            assert_eq!(counting.asked(), 1, "{what}");
        }
        let shown = chain(&[&world.user("reader").certificate]);
        let mut papers = HandshakeCertificates::new(&shown);
        assert!(
            access
                .admit_request(&mut request(None), &mut papers)
                .await
                .is_ok()
        );
        let theirs = ClientAuthorities::from_pem(stranger.pem.as_bytes()).expect("CA");
        access.set_authorities(Arc::new(theirs));
        let refused = access.admit_request(&mut request(None), &mut papers).await;
        assert_eq!(
            refused.map_err(|refusal| refusal.status),
            Err(401),
            "another CA since"
        );
    });
}

#[test]
fn strangers_with_chains_wait_for_each_other() {
    // SRV-05
    let world = World::new(Plan::default());
    let access = &world.network.access;
    let stranger = Authority::new();
    let shown = chain(&[
        &stranger.client("", "reader", NOW).certificate,
        &stranger.pem,
    ]);
    let (hold, held) = smol::channel::bounded(1);
    let counting = Counting::new(&world.ours, Some(held));
    access.set_authorities(Arc::new(ClientAuthorities::staged(counting.clone())));
    world.run(async {
        let ask = || {
            let (access, mut papers) = (Rc::clone(access), HandshakeCertificates::new(&shown));
            let task = async move { access.admit_request(&mut request(None), &mut papers).await };
            world.executor.spawn(task)
        };
        let mut all: Vec<_> = (0..access::MAX_CHAINS).map(|_| ask()).collect();
        yield_now().await;
        yield_now().await;
        // Who leaves makes no room: his chain is in the queue.
        all.pop().expect("one").cancel().await;
        let further = ask().await.map_err(|refusal| refusal.status);
        assert_eq!(further, Err(503));
        // The apiserver waits for none of them.
        let mut papers = HandshakeCertificates::new(&chain(&[&world.user("reader").certificate]));
        let served = access.admit_request(&mut request(None), &mut papers).await;
        assert!(served.is_ok(), "{served:?}");
        drop(hold);
        for waiting in all {
            let refused = waiting.await.map_err(|refusal| refusal.status);
            assert_eq!(refused, Err(401));
        }
        assert_eq!(ask().await.map_err(|refusal| refusal.status), Err(401));
    });
}

#[test]
fn the_worst_chain_costs_little() {
    // SRV-05
    let world = World::new(Plan::default());
    let access = &world.network.access;
    let ours = Authority::named("kubernetes");
    let trusted = ClientAuthorities::from_pem(ours.pem.as_bytes()).expect("CA");
    let vouch = |shown: &[CertificateDer<'_>], good: bool| {
        let one = || {
            let begin = cpu_time();
            let now = KNOWN.certificate_time();
            assert_eq!(trusted.vouch_for_chain(shown, now).is_ok(), good);
            cpu_time() - begin
        };
        (0..5).map(|_| one()).min().expect("some")
    };
    let honest = chain(&[&ours.client("", "reader", NOW).certificate]);
    let cost = vouch(&honest, true);
    // All are of one name, and each may have signed each other. Of the trusted one's name, each way costs a signature.
    for (name, most) in [("kubernetes", 150), ("nobody", 50)] {
        let selves: Vec<_> = (1..MAX_CHAIN).map(|_| Authority::named(name)).collect();
        let leaf = selves[0].client("", "reader", NOW);
        let pems = selves.iter().map(|ca| &*ca.pem);
        let worst = chain(
            &[&*leaf.certificate]
                .into_iter()
                .chain(pems)
                .collect::<Vec<_>>(),
        );
        assert_eq!(worst.len(), MAX_CHAIN);
        let dear = vouch(&worst, false);
        println!("a chain of {name}: {dear:?}, an honest one: {cost:?}");
        assert!(dear < cost * most, "{dear:?}, an honest one {cost:?}");
    }
    // What the loop's thread pays for a connection with many requests.
    access.set_authorities(Arc::new(
        ClientAuthorities::from_pem(ours.pem.as_bytes()).expect("CA"),
    ));
    let selves: Vec<_> = (1..MAX_CHAIN)
        .map(|_| Authority::named("kubernetes"))
        .collect();
    let leaf = selves[0].client("", "reader", NOW);
    let pems = selves.iter().map(|ca| &*ca.pem);
    let worst = chain(
        &[&*leaf.certificate]
            .into_iter()
            .chain(pems)
            .collect::<Vec<_>>(),
    );
    let paid = |shown: &[CertificateDer<'static>], token: Option<&str>| {
        let begin = cpu_time();
        world.run(async {
            let mut papers = HandshakeCertificates::new(shown);
            for _ in 0..50 {
                let admitted = access.admit_request(&mut request(token), &mut papers).await;
                assert!(admitted.is_ok(), "{admitted:?}");
            }
        });
        cpu_time() - begin
    };
    paid(&honest, Some("of-reader"));
    let (honest, dear) = (
        paid(&honest, Some("of-reader")),
        paid(&worst, Some("of-reader")),
    );
    println!("50 requests: {dear:?}, of an honest client {honest:?}");
    assert!(
        dear < honest * 4,
        "{dear:?}, of an honest client {honest:?}"
    );
}

#[test]
fn long_chains_are_refused_in_the_handshake() {
    // SRV-05
    let world = World::new(Plan::default());
    let mut cas = vec![world.ours.below("1")];
    for n in 2..=MAX_CHAIN {
        cas.push(cas[n - 2].below(&n.to_string()));
    }
    world.run(async {
        for (certificates, code) in [(MAX_CHAIN, 200), (MAX_CHAIN + 1, 0)] {
            let between = &cas[..certificates - 1];
            let mut shown = between[between.len() - 1].client("", "reader", NOW);
            for ca in between.iter().rev() {
                shown.certificate += &ca.pem;
            }
            let answer = world.ask(Some(&shown), "GET /pods", "").await;
            assert_eq!(status(&answer), code, "{certificates}: {answer}");
        }
        // Few, and large.
        let long = world
            .ours
            .client(&"o".repeat(MAX_CHAIN_BYTES), "reader", NOW);
        let answer = world.ask(Some(&long), "GET /pods", "").await;
        assert_eq!(status(&answer), 0, "{answer}");
    });
}
