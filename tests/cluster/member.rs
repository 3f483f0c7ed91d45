//! An agent that belongs to a cluster.

use core::time::Duration;
use std::fs;
use std::process::{Command, Stdio};

use picolet::sys::clock;
use picolet_test_apiserver::{CsrMode, Entry, TestServer};
use serde_json::Value;

use crate::host::{Host, NODE, PATIENCE, pause, text};

/// Says aloud what is missing; whether the tests can run.
pub(crate) fn able() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        skipped!("cluster needs root");
    }
    root
}

impl Host {
    /// Flags of the agent, from its next start on.
    pub(crate) fn add_flags(&mut self, flags: &[&str]) {
        self.flags.extend(flags.iter().map(|&f| f.to_owned()));
    }

    /// Removes what an agent without pods left, once it has ended.
    pub(crate) fn clear(self) {
        assert!(self.agent.is_none(), "the agent runs");
        self.dismantle().expect("only empty things are left");
    }
}

/// Runs a program of the machine; what it prints.
pub(crate) fn output_of(program: &str, words: &[&str]) -> String {
    let output = Command::new(program).args(words).output().expect(program);
    text(&output.stdout)
}

/// An agent with a kubeconfig of its own.
pub(crate) fn member(server: &TestServer, flags: &[&str]) -> Host {
    let config = server.kubeconfig_for_node(NODE).expect("kubeconfig");
    with_kubeconfig(&config, flags)
}

/// An agent with that kubeconfig.
pub(crate) fn with_kubeconfig(config: &str, flags: &[&str]) -> Host {
    let mut host = Host::new(flags);
    let path = host.path("kubeconfig");
    fs::write(&path, config).expect("kubeconfig");
    host.add_flags(&["--kubeconfig", &path.display().to_string()]);
    host
}

/// A server that leaves certificate requests to an operator.
pub(crate) fn manual_server() -> TestServer {
    let server = TestServer::builder().csr(CsrMode::Manual).start();
    server.expect("server")
}

/// An agent that has a bootstrap kubeconfig only.
pub(crate) fn newcomer(server: &TestServer, flags: &[&str]) -> Host {
    let mut host = Host::new(flags);
    let bootstrap = host.path("bootstrap");
    fs::write(&bootstrap, server.bootstrap_kubeconfig()).expect("kubeconfig");
    let path = |name: &str| host.path(name).display().to_string();
    let (kubeconfig, bootstrap) = (path("kubeconfig"), path("bootstrap"));
    host.add_flags(&[
        "--kubeconfig",
        &kubeconfig,
        "--bootstrap-kubeconfig",
        &bootstrap,
    ]);
    host
}

/// Runs the agent, which ends by itself; its exit code and what it says.
pub(crate) fn ends(host: &Host) -> (Option<i32>, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_picolet"))
        .arg("run")
        .args(&host.flags)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("agent");
    let end = clock::mono_now() + PATIENCE;
    while child.try_wait().expect("agent").is_none() {
        if clock::mono_now() > end {
            let _ = child.kill();
        }
        pause(Duration::from_millis(20));
    }
    let output = child.wait_with_output().expect("agent");
    (output.status.code(), text(&output.stderr))
}

/// A condition of a Node.
pub(crate) fn condition<'a>(node: &'a Value, kind: &str) -> &'a Value {
    let all = node["status"]["conditions"].as_array();
    let found = all.and_then(|all| all.iter().find(|c| c["type"] == kind));
    found.unwrap_or(&Value::Null)
}

/// Waits until the API says that the node is ready.
pub(crate) fn wait_ready(server: &TestServer, limit: Duration) -> Value {
    server.wait_for("the node is ready", limit, |view| {
        let node = view.get("nodes", "", NODE)?;
        (condition(node, "Ready")["status"] == "True").then(|| node.clone())
    })
}

/// The Node as local commands show it.
pub(crate) fn shown(host: &Host) -> Value {
    let list: Value =
        serde_json::from_str(&host.ok(&["get", "node", "-o", "json"])).expect("a node");
    match list["items"].as_array() {
        Some(items) => items[0].clone(),
        None => list,
    }
}

/// What a correct client would not have sent.
pub(crate) fn wrong(server: &TestServer) -> Vec<String> {
    let wrong = server.wrong();
    let line = |e: &Entry| format!("{} {} {} {} {}", e.user, e.method, e.uri, e.code, e.message);
    wrong.iter().map(line).collect()
}
