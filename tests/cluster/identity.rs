//! Certificates: the first one, the next one, none.

use core::time::Duration;
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use nix::sys::signal::Signal;
use picolet_test_apiserver::{Identity, TestServer};
use serde_json::Value;

use crate::host::{Host, NODE, PATIENCE};
use crate::member::{
    able, condition, manual_server, newcomer, shown, wait_ready, with_kubeconfig, wrong,
};

const SOON: Duration = Duration::from_secs(180);
const CSRS: &str = "certificatesigningrequests";

/// Where the pair in use lies.
fn current(host: &Host) -> PathBuf {
    fs::read_link(host.path("root/pki/kubelet-client-current.pem")).expect("a link")
}

/// The pair in use.
fn pair(host: &Host) -> String {
    fs::read_to_string(current(host)).expect("a pair")
}

/// What `/metrics` says under a name without labels.
fn figure(host: &Host, name: &str) -> Option<String> {
    let mut stream = UnixStream::connect(host.path("run/picolet.sock")).expect("socket");
    let request = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
    stream.write_all(request).expect("request");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("answer");
    let mut lines = text.lines();
    let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.map(str::to_owned)
}

#[test]
fn a_token_leads_to_a_certificate() {
    // BOOT-01 BOOT-02 BOOT-03 BOOT-05 BOOT-06 BOOT-08 AUTHZ-01
    if !able() {
        return;
    }
    let server = TestServer::builder().start().expect("server");
    let mut host = newcomer(&server, &[]);
    host.start_agent();
    wait_ready(&server, SOON);
    let requests = server.list(CSRS, "");
    assert_eq!(requests.len(), 1);
    assert_eq!(requests[0]["spec"]["username"], "system:bootstrap:abcdef");
    let file = current(&host);
    assert_eq!(
        fs::metadata(&file).expect("file").permissions().mode() & 0o777,
        0o600
    );
    let kubeconfig = fs::read_to_string(host.path("kubeconfig")).expect("kubeconfig");
    assert!(
        kubeconfig.contains("kubelet-client-current.pem"),
        "{kubeconfig}"
    );
    assert!(!kubeconfig.contains("token"), "{kubeconfig}");
    let left = figure(&host, "kubelet_certificate_manager_client_ttl_seconds");
    let left = left.and_then(|left| left.parse::<i64>().ok());
    assert!(left.is_some_and(|left| left > 60), "{left:?}");
    // The apiserver shows what was written before the answer is back.
    server.wait_for("the age of an answer", SOON, |_| {
        figure(&host, "picolet_apiserver_answer_age_seconds")
    });
    // The next agent needs no token any more.
    host.end_agent(Signal::SIGTERM);
    fs::remove_file(host.path("bootstrap")).expect("removed");
    server.clear_audit();
    host.start_agent();
    server.wait_for("a lease of the next agent", SOON, |_| {
        let by = server.audit().into_iter().any(|e| e.verb == "patch");
        by.then_some(())
    });
    assert_eq!(server.list(CSRS, "").len(), 1);
    assert_eq!(wrong(&server), [""; 0]);
    host.end_agent(Signal::SIGTERM);
    host.clear();
}

#[test]
fn somebody_has_to_approve() {
    // BOOT-05 OFF-10
    if !able() {
        return;
    }
    let server = manual_server();
    let mut host = newcomer(&server, &[]);
    host.start_agent();
    let name = server.wait_for("a request", SOON, |view| {
        let request = view.list(CSRS, "").into_iter().next()?;
        Some(request["metadata"]["name"].as_str()?.to_owned())
    });
    host.until("it says so, and is ready for pods", |host| {
        let node = shown(host);
        let said = condition(&node, "ApiserverReachable");
        let ready = condition(&node, "Ready")["status"] == "True";
        (
            ready && said["reason"] == "NoCertificate",
            node["status"].to_string(),
        )
    });
    let left = figure(&host, "kubelet_certificate_manager_client_ttl_seconds");
    assert_eq!(left.as_deref(), Some("+Inf"), "there is none");
    server.decide_request(&name, false).expect("denied");
    let second = server.wait_for("another request", PATIENCE, |view| {
        let all = view.list(CSRS, "");
        let other = all
            .iter()
            .find(|r| r["metadata"]["name"] != name.as_str())?;
        Some(other["metadata"]["name"].as_str()?.to_owned())
    });
    server.decide_request(&second, true).expect("approved");
    wait_ready(&server, SOON);
    assert_eq!(wrong(&server), [""; 0]);
    host.end_agent(Signal::SIGTERM);
    host.clear();
}

#[test]
fn a_certificate_is_renewed_in_time() {
    // BOOT-05 BOOT-06 BOOT-07 BOOT-08
    if !able() {
        return;
    }
    let life = Duration::from_secs(1000 * 24 * 3600);
    let server = TestServer::builder()
        .certificate_life(life)
        .start()
        .expect("server");
    let mut host = newcomer(&server, &["--node-status-update-frequency=1s"]);
    host.start_agent();
    wait_ready(&server, SOON);
    let first = pair(&host);
    fs::remove_file(host.path("bootstrap")).expect("removed");
    // The apiserver's clock is the one that counts for its certificates.
    server.advance(life / 100 * 95);
    host.until("another certificate", |host| {
        (pair(host) != first, "it is the first one".into())
    });
    let names: Vec<Value> = server
        .list(CSRS, "")
        .iter()
        .map(|r| r["spec"]["username"].clone())
        .collect();
    assert!(
        names.contains(&format!("system:node:{NODE}").into()),
        "{names:?}"
    );
    server.advance(life / 100 * 10);
    server.clear_audit();
    let seen = server.wait_for("a heartbeat with the new one", PATIENCE, |_| {
        let audit = server.audit();
        let by = |e: &&picolet_test_apiserver::Entry| e.uri.contains("/leases/") && e.code == 200;
        audit.iter().find(by).map(|e| e.user.clone())
    });
    assert_eq!(seen, format!("system:node:{NODE}"));
    host.end_agent(Signal::SIGTERM);
    host.clear();
}

#[test]
fn a_certificate_that_ended_while_nobody_answered() {
    // BOOT-01 BOOT-09
    if !able() {
        return;
    }
    let server = TestServer::builder().start().expect("server");
    let mut host = newcomer(&server, &["--node-status-update-frequency=1s"]);
    let ended = server
        .credentials(
            &format!("system:node:{NODE}"),
            &["system:nodes"],
            Duration::ZERO,
        )
        .expect("certificate");
    let text = server.kubeconfig(&Identity::Certificate(ended));
    fs::write(host.path("kubeconfig"), &text).expect("kubeconfig");
    server.set_down(true);
    host.start_agent();
    host.until("it says so", |host| {
        let said = condition(&shown(host), "ApiserverReachable").clone();
        (said["reason"] == "NoCertificate", said.to_string())
    });
    server.set_down(false);
    wait_ready(&server, PATIENCE);
    host.end_agent(Signal::SIGTERM);
    host.clear();

    // Nobody can help without a bootstrap kubeconfig; it goes on and says what is wrong.
    let mut host = with_kubeconfig(
        &text,
        &["--rotate-certificates", "--node-status-update-frequency=1s"],
    );
    host.start_agent();
    host.until("it says so", |host| {
        let said = condition(&shown(host), "ApiserverReachable").clone();
        let message = said["message"].as_str().unwrap_or_default().to_owned();
        (
            message.contains("expired at") && message.contains("401"),
            message,
        )
    });
    host.end_agent(Signal::SIGTERM);
    host.clear();
}

#[test]
fn another_cluster_of_the_same_address() {
    // BOOT-05
    if !able() {
        return;
    }
    let server = TestServer::builder().start().expect("server");
    let other = TestServer::builder().start().expect("server");
    let text = server.kubeconfig_for_node(NODE).expect("kubeconfig");
    let (own, theirs) = (server.url(), other.url());
    let mut host = with_kubeconfig(&text.replace(&own, &theirs), &[]);
    host.start_agent();
    host.until("it is not trusted", |host| {
        let said = condition(&shown(host), "ApiserverReachable").clone();
        let message = said["message"].as_str().unwrap_or_default().to_owned();
        (message.contains("cannot trust"), message)
    });
    assert!(other.audit().is_empty(), "nothing was told to a stranger");
    let check = host.command_with_flags("check", &[]);
    let said = crate::host::text(&check.stdout);
    assert!(said.contains("cannot trust"), "{said}");
    host.end_agent(Signal::SIGTERM);
    host.clear();
}
