//! The agent called as `kubelet`, with the files and words that kubeadm gives one.

use core::time::Duration;
use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
};

use nix::sys::signal::Signal;

use crate::held_port::held_port;
use crate::host::NODE;
use crate::member::{able, manual_server, newcomer, wait_ready, wrong};

const SOON: Duration = Duration::from_secs(180);

/// The first line that `/healthz` answers; empty if nobody does.
fn healthz(port: u16) -> String {
    let mut answer = String::new();
    if let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) {
        let _ = stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
        let _ = stream.read_to_string(&mut answer);
    }
    answer.lines().next().unwrap_or_default().to_owned()
}

#[test]
fn kubeadm_joins_it() {
    // KADM-20 KADM-21 KADM-22 KADM-23 KADM-24 KADM-25
    if !able() {
        return;
    }
    let server = manual_server();
    let mut host = newcomer(&server, &[]);
    host.is_kubelet = true;
    let path = |name: &str| host.path(name).display().to_string();
    let (config, pki, absent) = (path("config.yaml"), path("pki"), path("no-manifests"));
    let port = held_port();
    let ca = path("ca.crt");
    fs::write(&ca, server.ca_pem()).expect("CA");
    let text = format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ncgroupDriver: systemd\n\
         containerRuntimeEndpoint: unix:///var/run/containerd/containerd.sock\nstaticPodPath: {absent}\n\
         authentication: {{anonymous: {{enabled: false}}, webhook: {{cacheTTL: 0s, enabled: true}}, \
         x509: {{clientCAFile: {ca}}}}}\n\
         crashLoopBackOff: {{}}\nlogging: {{flushFrequency: 0}}\nmemorySwap: {{}}\nrotateCertificates: true\n\
         syncFrequency: 0s\nresolvConf: /etc/resolv.conf\n"
    );
    fs::write(&config, text).expect("configuration");
    let port_text = port.to_string();
    host.add_flags(&[
        "--config",
        &config,
        // The test's, and not the machine's.
        "--cert-dir",
        &pki,
        "--healthz-port",
        &port_text,
        "--pod-manifest-path",
        &absent,
        "--register-with-taints=example.com/new=:NoSchedule",
        "--pod-infra-container-image=registry.k8s.io/pause:3.9",
    ]);
    host.start_agent();
    let name = server.wait_for("a request", SOON, |view| {
        let request = view
            .list("certificatesigningrequests", "")
            .into_iter()
            .next()?;
        Some(request["metadata"]["name"].as_str()?.to_owned())
    });
    // kubeadm waits for this first, and only then for the certificate.
    host.until("it is healthy without a certificate", |_| {
        let said = healthz(port);
        (said.contains(" 200 "), said)
    });
    server.decide_request(&name, true).expect("approved");
    let node = wait_ready(&server, SOON);
    assert_eq!(node["spec"]["taints"][0]["key"], "example.com/new");
    assert!(host.path("pki/kubelet-client-current.pem").exists());
    let log = fs::read_to_string(host.path("agent.log")).expect("log");
    for once in [
        "cgroupDriver: systemd is not used",
        "containerd.sock is not used",
        "--pod-infra-container-image is without effect",
    ] {
        assert_eq!(log.matches(once).count(), 1, "{once}: {log}");
    }
    // kubeadm deletes the file with the token; the unit starts the agent with the same words.
    host.end_agent(Signal::SIGTERM);
    fs::remove_file(host.path("bootstrap")).expect("removed");
    server.clear_audit();
    host.start_agent();
    server.wait_for("a word of the next agent", SOON, |_| {
        server
            .audit()
            .iter()
            .any(|e| e.verb == "patch")
            .then_some(())
    });
    assert!(server.get("nodes", "", NODE).is_some());
    assert_eq!(wrong(&server), [""; 0]);
    host.end_agent(Signal::SIGTERM);
    host.clear();
}
