//! What the node serves over the network: to whom, and how `kubectl` reads logs by it.

use core::time::Duration;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;

use picolet::sys::clock;
use picolet_test_apiserver::{Credentials, TestServer};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme, StreamOwned};
use serde_json::json;

use crate::host::{Host, IDLE, NODE, PATIENCE, able, sh, text};
use crate::kubectl::{Kubectl, kubectls};
use crate::member::{manual_server, wait_ready as wait_node};
use crate::pods::{cluster, finish, pod, wait_ready};

pub(crate) const HOUR: Duration = Duration::from_secs(3600);
/// Connections that do nothing.
const IDLE_CONNECTIONS: usize = 1000;
/// Memory of its own by which the agent may grow through them, KiB.
const IDLE_GROWTH_KIB: u64 = 8 * 1024;

/// Flags of an agent that knows clients of this cluster by their certificates.
fn with_ca(server: &TestServer) -> Vec<String> {
    let path = std::env::temp_dir().join(format!("picolet-client-ca-{}", server.port()));
    fs::write(&path, server.ca_pem()).expect("CA");
    vec!["--client-ca-file".into(), path.display().to_string()]
}

pub(crate) fn started(more: &[&str]) -> (Host, TestServer) {
    let (mut host, server) = cluster(&[]);
    host.end_agent(nix::sys::signal::Signal::SIGTERM);
    host.flags.extend(with_ca(&server));
    host.flags.extend(more.iter().map(|&f| f.to_owned()));
    host.start_agent();
    wait_node(&server, PATIENCE);
    (host, server)
}

pub(crate) fn ended(host: Host, server: &TestServer) {
    let path = std::env::temp_dir().join(format!("picolet-client-ca-{}", server.port()));
    let _ = fs::remove_file(path);
    finish(host, server);
}

/// Takes any certificate of a server.
#[derive(Debug)]
struct Any;

impl ServerCertVerifier for Any {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let all = ring::default_provider().signature_verification_algorithms;
        all.supported_schemes()
    }
}

pub(crate) type Link = StreamOwned<ClientConnection, TcpStream>;

/// A connection to the node, after its handshake.
pub(crate) fn connect(host: &Host, own: Option<&Credentials>) -> std::io::Result<Link> {
    let at = host.flags.iter().position(|f| f == "--port").expect("port");
    connect_to(host.flags[at + 1].parse().expect("port"), own)
}

fn connect_to(port: u16, own: Option<&Credentials>) -> std::io::Result<Link> {
    shake(TcpStream::connect(("127.0.0.1", port))?, own)
}

/// Shakes hands on a connection.
pub(crate) fn shake(mut tcp: TcpStream, own: Option<&Credentials>) -> std::io::Result<Link> {
    let own = own.map(|own| {
        let chain = CertificateDer::from_pem_slice(own.certificate.as_bytes()).expect("chain");
        let key = PrivateKeyDer::from_pem_slice(own.key.as_bytes()).expect("key");
        (vec![chain], key)
    });
    let mut session = session(&client(own));
    tcp.set_read_timeout(Some(PATIENCE))?;
    while session.is_handshaking() {
        session.complete_io(&mut tcp)?;
    }
    Ok(StreamOwned::new(session, tcp))
}

/// A client that takes any server, and shows this chain.
pub(crate) fn client(
    own: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
) -> Arc<ClientConfig> {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Any));
    Arc::new(match own {
        None => builder.with_no_client_auth(),
        Some((chain, key)) => builder.with_client_auth_cert(chain, key).expect("pair"),
    })
}

/// The client's side of a connection to the node.
pub(crate) fn session(client: &Arc<ClientConfig>) -> ClientConnection {
    let name = ServerName::try_from("node").expect("name");
    ClientConnection::new(Arc::clone(client), name).expect("session")
}

/// Status and whole answer.
pub(crate) fn ask(
    host: &Host,
    own: Option<&Credentials>,
    line: &str,
    headers: &str,
) -> (u16, String) {
    let mut link = connect(host, own).expect("a connection");
    let head = format!("{line} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n{headers}\r\n");
    link.write_all(head.as_bytes()).expect("ask");
    let mut answer = Vec::new();
    let _ = link.read_to_end(&mut answer);
    let answer = text(&answer);
    let code = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
    (code.unwrap_or(0), answer)
}

#[test]
fn who_is_served_what() {
    // SRV-01 SRV-05 SRV-06 SRV-08 SRV-09 SRV-10 SRV-11 SRV-13 SRV-17 AUTHZ-01 BOOT-10 NODE-15
    if !able() {
        return;
    }
    let (host, server) = started(&[]);
    server.create(&pod("web", json!({}))).expect("create");
    wait_ready(&server, "web");
    server.grant("reader", "get", "nodes/metrics");
    server.grant("reader", "get", "nodes/pods");
    let stranger = TestServer::builder().start().expect("another cluster");
    let user = |server: &TestServer, name: &str, groups: &[&str], life| {
        server.credentials(name, groups, life).expect("certificate")
    };
    let admin = user(&server, "admin", &["system:masters"], HOUR);
    let reader = user(&server, "reader", &[], HOUR);
    let nobody = user(&server, "eve", &[], HOUR);
    let old = user(&server, "admin", &["system:masters"], Duration::ZERO);
    let foreign = user(&stranger, "admin", &["system:masters"], HOUR);
    for page in [
        "GET /pods",
        "GET /runningpods/",
        "GET /configz",
        "GET /healthz",
        "GET /containerLogs/default/web/c",
        "POST /exec/default/web/c?command=id&output=1",
        "POST /attach/default/web/c",
        "POST /portForward/default/web",
        "POST /run/default/web/c?cmd=id",
        "GET /metrics",
        "GET /metrics/resource",
        "GET /stats/summary",
        "GET //pods",
    ] {
        for own in [None, Some(&old), Some(&foreign)] {
            let (code, said) = ask(&host, own, page, "");
            assert_eq!(code, 401, "{page}: {said}");
        }
        let bad = "Authorization: Bearer a.b.c\r\n";
        assert_eq!(ask(&host, None, page, bad).0, 401, "{page}");
        let (code, said) = ask(&host, Some(&nobody), page, "");
        assert_eq!(code, 403, "{page}: {said}");
        assert!(said.contains("Forbidden (user=eve, verb="), "{said}");
    }
    for (own, page, code, says) in [
        (&admin, "GET /pods", 200, "\"name\":\"web\""),
        (&reader, "GET /pods", 200, "\"name\":\"web\""),
        (&admin, "GET /runningpods/", 200, "localhost/busybox:1"),
        (&admin, "GET /configz", 200, "\"kubeletconfig\""),
        (&admin, "GET /healthz?verbose", 200, "[+]syncloop ok"),
        (&admin, "PUT /pods", 405, ""),
        (&admin, "GET /nothing", 404, ""),
        (&admin, "GET /metrics/../configz", 404, ""),
        (&reader, "GET /metrics/../configz", 403, ""),
        (&reader, "GET /metrics/%2e%2e/configz", 403, ""),
        (&reader, "GET /configz", 403, ""),
    ] {
        let (got, said) = ask(&host, Some(own), page, "");
        assert_eq!(got, code, "{page}: {said}");
        assert!(said.contains(says), "{page}: {said}");
    }
    let node = server.get("nodes", "", NODE).expect("node");
    let port = &node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"];
    let at = host.flags.iter().position(|f| f == "--port").expect("port");
    assert_eq!(port.to_string(), host.flags[at + 1]);
    // Offline, what was allowed counts on; what was never asked cannot be.
    server.set_down(true);
    assert_eq!(ask(&host, Some(&admin), "GET /pods", "").0, 200);
    assert_eq!(ask(&host, Some(&nobody), "GET /pods", "").0, 403);
    server.set_down(false);
    ended(host, &server);
}

/// A token of a service account, for ten minutes.
fn token(server: &TestServer, account: &str) -> String {
    let admin = server.credentials("admin", &["system:masters"], HOUR);
    let mut link = connect_to(server.port(), Some(&admin.expect("pair"))).expect("connection");
    let body = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 600}});
    let body = body.to_string();
    let head = format!(
        "POST /api/v1/namespaces/default/serviceaccounts/{account}/token HTTP/1.1\r\nHost: a\r\n\
         Connection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    link.write_all(head.as_bytes()).expect("ask");
    let mut answer = Vec::new();
    let _ = link.read_to_end(&mut answer);
    let answer = text(&answer);
    let token = answer
        .split("\"token\":\"")
        .nth(1)
        .and_then(|t| t.split('"').next());
    token.unwrap_or_else(|| panic!("{answer}")).to_owned()
}

#[test]
fn tokens_of_a_metrics_collector() {
    // SRV-05 SRV-06 SRV-09
    if !able() {
        return;
    }
    let (host, server) = started(&[]);
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "collector", "namespace": "default"}});
    server.create(&account).expect("account");
    server.grant(
        "system:serviceaccount:default:collector",
        "get",
        "nodes/metrics",
    );
    let bearer = |token: &str| format!("Authorization: Bearer {token}\r\n");
    let (first, second) = (token(&server, "collector"), token(&server, "collector"));
    assert_ne!(first, second);
    for (page, code) in [
        ("GET /metrics/resource", 200),
        ("GET /pods", 403),
        ("GET /configz", 403),
    ] {
        let (got, said) = ask(&host, None, page, &bearer(&first));
        assert_eq!(got, code, "{page}: {said}");
    }
    // A quarter of an hour later; the second was not seen before.
    server.advance(HOUR / 4);
    let (got, said) = ask(&host, None, "GET /metrics/resource", &bearer(&second));
    assert_eq!(got, 401, "{said}");
    ended(host, &server);
}

#[test]
fn files_are_read_again() {
    // SRV-05 BOOT-10 BOOT-13
    if !able() {
        return;
    }
    let stranger = TestServer::builder().start().expect("another cluster");
    let dir = std::env::temp_dir().join(format!("picolet-shown-{}", stranger.port()));
    fs::create_dir_all(&dir).expect("dir");
    let (crt, key) = (dir.join("crt"), dir.join("key"));
    let show = |server: &TestServer| {
        let pair = server.credentials("shown", &[], HOUR).expect("pair");
        fs::write(&crt, &pair.certificate).expect("write");
        fs::write(&key, &pair.key).expect("write");
        CertificateDer::from_pem_slice(pair.certificate.as_bytes()).expect("certificate")
    };
    let before = show(&stranger);
    let (crt, key) = (crt.display().to_string(), key.display().to_string());
    let (host, server) = started(&["--tls-cert-file", &crt, "--tls-private-key-file", &key]);
    let admin = |server: &TestServer| {
        let pair = server.credentials("admin", &["system:masters"], HOUR);
        pair.expect("pair")
    };
    let (own, foreign) = (admin(&server), admin(&stranger));
    let shown = || {
        let link = connect(&host, None).expect("connection");
        link.conn.peer_certificates().expect("chain")[0].to_vec()
    };
    let seen = || {
        let code = |pair| ask(&host, Some(pair), "GET /healthz", "").0;
        (code(&own), code(&foreign), shown())
    };
    assert_eq!(seen(), (200, 401, before.to_vec()));
    let after = show(&server);
    let ca = &with_ca(&server)[1];
    fs::write(ca, stranger.ca_pem()).expect("CA");
    // They are looked at once a minute.
    let deadline = clock::mono_now() + PATIENCE * 2;
    while seen() != (401, 200, after.to_vec()) {
        assert!(clock::mono_now() < deadline, "{:?}", (seen().0, seen().1));
        crate::host::pause(Duration::from_secs(1));
    }
    let _ = fs::remove_dir_all(&dir);
    ended(host, &server);
}

#[test]
fn logs_by_kubectl() {
    // SRV-18 SRV-19 SRV-20 SRV-21
    if !able() {
        return;
    }
    let (host, server) = started(&[]);
    let config = host.path("admin.kubeconfig");
    fs::write(&config, server.admin_kubeconfig().expect("kubeconfig")).expect("write");
    for kubectl in kubectls(&config, "logs") {
        logs_by(&kubectl, &host, &server);
    }
    ended(host, &server);
}

pub(crate) fn logs_by(kubectl: &Kubectl, host: &Host, server: &TestServer) {
    let ask = |words: &[&str]| {
        let output = kubectl.run(words);
        (
            output.status.success(),
            text(&output.stdout),
            text(&output.stderr),
        )
    };
    let script =
        "echo one; echo two; echo three; trap 'echo end; exit 3' TERM; while :; do sleep 0.1; done";
    let spec = json!({"containers": [sh("c", script), sh("side", IDLE)]});
    server.create(&pod("talk", spec)).expect("create");
    wait_ready(server, "talk");
    host.until("all is said", |_| {
        let (_, said, _) = ask(&["logs", "talk", "-c", "c"]);
        (said == "one\ntwo\nthree\n", said)
    });
    for (words, says) in [
        (&["--tail=1"][..], "three\n"),
        (&["--limit-bytes=5"], "one\nt"),
        (&["--since=1h"], "one\ntwo\nthree\n"),
        (&["--since-time=2099-01-01T00:00:00Z"], ""),
    ] {
        let (ok, said, _) = ask(&[&["logs", "talk", "-c", "c"][..], words].concat());
        assert!(ok && said == says, "{words:?}: {said}");
    }
    let (_, said, _) = ask(&["logs", "talk", "-c", "c", "--timestamps", "--tail=1"]);
    let (time, line) = said.split_once(' ').expect("a time");
    assert_eq!(
        (time.len(), line),
        ("2026-01-01T00:00:00.123456789Z".len(), "three\n")
    );
    for (words, says) in [
        (
            &["logs", "talk", "-c", "no"][..],
            "container no is not valid for pod talk",
        ),
        (
            &["logs", "talk", "-c", "c", "-p"],
            "previous terminated container \"c\" in pod \"talk\" not found",
        ),
        (&["logs", "none"], "not found"),
    ] {
        let (ok, _, said) = ask(words);
        assert!(!ok && said.contains(says), "{words:?}: {said}");
    }
    // It follows until the container has ended, and hears the last word.
    let mut follower = kubectl
        .command(&["logs", "-f", "talk", "-c", "c"])
        .spawn()
        .expect("kubectl");
    let mut lines = BufReader::new(follower.stdout.take().expect("stdout")).lines();
    let mut next = || lines.next().and_then(Result::ok).unwrap_or_default();
    assert_eq!([next(), next(), next()], ["one", "two", "three"]);
    server
        .delete("pods", "default", "talk", Some(5))
        .expect("delete");
    assert_eq!([next(), next()], ["end", ""]);
    assert!(follower.wait().expect("kubectl").success());
    host.until("the pod is gone", |_| {
        let gone = server.get("pods", "default", "talk").is_none();
        (gone, String::new())
    });
}

#[test]
fn a_follower_that_leaves_costs_nothing() {
    // SRV-21
    if !able() {
        return;
    }
    let (host, server) = started(&[]);
    server.create(&pod("web", json!({}))).expect("create");
    wait_ready(&server, "web");
    let admin = server
        .credentials("admin", &["system:masters"], HOUR)
        .expect("pair");
    let open = |host: &Host| {
        let path = format!("/proc/{}/fd", host.agent_pid());
        fs::read_dir(path).expect("descriptors").count()
    };
    // What the first request keeps open is there before.
    ask(&host, Some(&admin), "GET /containerLogs/default/web/c", "");
    let before = open(&host);
    let mut followers = Vec::new();
    for _ in 0..20 {
        let mut link = connect(&host, Some(&admin)).expect("connection");
        link.write_all(b"GET /containerLogs/default/web/c?follow=true HTTP/1.1\r\n\r\n")
            .expect("ask");
        let mut head = [0; 512];
        assert!(link.read(&mut head).expect("head at once") > 0);
        followers.push(link);
    }
    // Each has its connection, and soon its file; what the first request had may have gone meanwhile.
    host.until("they are followers", |host| {
        let now = open(host);
        (now >= before + 30, format!("{now}, {before} before them"))
    });
    drop(followers);
    host.until("nothing is left of them", |host| {
        let now = open(host);
        (now <= before, format!("{now} of {before}"))
    });
    ended(host, &server);
}

/// Memory of the agent's own.
pub(crate) fn own_kib(host: &Host) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/smaps_rollup", host.agent_pid()));
    let status = status.expect("the agent's memory");
    let line = status.lines().find(|l| l.starts_with("Pss_Anon:"));
    let mut words = line.expect("anonymous memory").split_whitespace();
    let kib = words.nth(1).and_then(|n| n.parse().ok());
    kib.expect("KiB")
}

#[test]
fn a_thousand_connections() {
    // SRV-01
    if !able() {
        return;
    }
    let (host, server) = started(&[]);
    let admin = server
        .credentials("admin", &["system:masters"], HOUR)
        .expect("pair");
    assert_eq!(ask(&host, Some(&admin), "GET /healthz", "").0, 200);
    let before = own_kib(&host);
    let mut held = Vec::new();
    for _ in 0..IDLE_CONNECTIONS {
        // One that is closed for another is closed in its own time.
        if let Ok(link) = connect(&host, Some(&admin)) {
            held.push(link);
        }
    }
    let after = own_kib(&host);
    println!("{} connections: {before} to {after} KiB", held.len());
    assert!(after < before + IDLE_GROWTH_KIB, "{before} to {after} KiB");
    assert_eq!(ask(&host, Some(&admin), "GET /healthz", "").0, 200);
    drop(held);
    ended(host, &server);
}

#[test]
fn a_certificate_of_the_cluster() {
    // BOOT-11 BOOT-12
    if !able() {
        return;
    }
    let server = manual_server();
    let config = server.kubeconfig_for_node(NODE).expect("kubeconfig");
    let mut host = crate::member::with_kubeconfig(&config, &["--rotate-server-certificates"]);
    host.start_agent();
    wait_node(&server, PATIENCE);
    let request = server.wait_for("a request", PATIENCE, |view| {
        let all = view.list("certificatesigningrequests", "");
        let serving =
            |c: &&&serde_json::Value| c["spec"]["signerName"] == "kubernetes.io/kubelet-serving";
        all.iter().find(serving).map(|c| (*c).clone())
    });
    assert_eq!(
        request["spec"]["usages"],
        json!(["digital signature", "server auth"])
    );
    assert!(
        connect(&host, None).is_err(),
        "there is nothing to show yet"
    );
    let name = request["metadata"]["name"].as_str().expect("name");
    server.decide_request(name, true).expect("approval");
    host.until("it is shown", |host| {
        let link = connect(host, None);
        (
            link.is_ok(),
            link.err().map_or_else(String::new, |e| e.to_string()),
        )
    });
    let link = connect(&host, None).expect("connection");
    let shown = link.conn.peer_certificates().expect("chain")[0].to_vec();
    let addresses = server.get("nodes", "", NODE).expect("node")["status"]["addresses"].clone();
    // The name of the node stands in it, as it is.
    let name = addresses
        .as_array()
        .expect("list")
        .iter()
        .find(|a| a["type"] == "Hostname");
    let name = name.expect("name")["address"]
        .as_str()
        .expect("text")
        .as_bytes();
    assert!(shown.windows(name.len()).any(|part| part == name));
    assert!(host.path("root/pki/kubelet-server-current.pem").exists());
    assert!(
        !host.path("root/pki/kubelet.crt").exists(),
        "none of its own"
    );
    host.end_agent(nix::sys::signal::Signal::SIGTERM);
    assert_eq!(crate::member::wrong(&server), [""; 0]);
    host.clear();
}
