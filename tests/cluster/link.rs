//! A node behind a link that is slow, loses packets and forgets connections.

use core::time::Duration;
use std::fs;
use std::net::SocketAddr;

use picolet::sys::clock;
use picolet_test_apiserver::TestServer;
use serde_json::json;

use crate::host::{Host, IDLE, NODE, PATIENCE, able, manifest, pause, sh};
use crate::wire::{Weather, Wire};

/// What a kubelet without pods sends and receives in an hour, TLS included.
const BYTES_PER_HOUR: u64 = 524_000;
/// What the agent's memory, but that of files, may grow by over such a link, KiB.
const GROWTH_KIB: u64 = 1024;
/// Time between two lists while nothing rings.
const POLL_INTERVAL: Duration = Duration::from_secs(10);

/// Memory of its own. Its pages of the program belong to the agents of other tests as well, for as long as these run.
fn anonymous_kib(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("smaps");
    let line = text
        .lines()
        .find(|l| l.starts_with("Anonymous:"))
        .expect("Anonymous");
    line.split_whitespace()
        .nth(1)
        .and_then(|n| n.parse().ok())
        .expect("a number")
}

/// Creates a pod, and returns how long after that it was Running.
fn start(server: &TestServer, name: &str) -> Duration {
    let spec = json!({"containers": [sh("c", IDLE)], "nodeName": NODE, "automountServiceAccountToken": false});
    let mut pod = manifest(name, spec);
    pod["metadata"]["namespace"] = "default".into();
    let begun = clock::mono_now();
    server.create(&pod).expect("create");
    server.wait_for_phase("default", name, "Running", PATIENCE);
    clock::mono_now() - begun
}

/// Long enough for the NAT to forget whatever is silent.
const REST: Duration = Duration::from_secs(75);

#[test]
fn slow_lossy_and_forgetful() {
    // SRC-29 SRC-30 OFF-03 CONF-21 LEASE-05
    if !able() {
        return;
    }
    if !std::path::Path::new("/dev/net/tun").exists() {
        skipped!("cluster: a bad link needs /dev/net/tun");
        return;
    }
    let weather = Weather {
        delay: Duration::from_millis(150),
        lost_one_in: 50,
        forgets: Duration::from_secs(60),
    };
    let number = u8::try_from(std::process::id() % 250).expect("small");
    let wire = Wire::lay(number, weather);
    let server = TestServer::builder()
        .listen(SocketAddr::from((wire.near, 0)))
        .host(&wire.near.to_string())
        .start()
        .expect("server");
    let config = server.kubeconfig_for_node(NODE).expect("kubeconfig");
    let mut host = Host::new(&[]);
    let path = host.path("kubeconfig");
    fs::write(&path, config).expect("kubeconfig");
    host.flags
        .extend(["--kubeconfig".into(), path.display().to_string()]);
    host.namespace = Some(wire.namespace.clone());
    host.start_agent();
    host.import();
    let pid = host.agent.as_ref().expect("an agent").id();
    let mut slowest = start(&server, "first");
    server
        .delete("pods", "default", "first", None)
        .expect("delete");
    server.wait_until_gone("pods", "default", "first", PATIENCE);
    server.wait_for("all was told", PATIENCE, |view| {
        let events = view.list("events", "default");
        events
            .iter()
            .any(|e| e["reason"] == "Killing")
            .then_some(())
    });
    let (memory, renewed) = (anonymous_kib(pid), lease(&server));
    let carried = || server.totals().bytes_in + server.totals().bytes_out;
    let bytes = carried();
    server.clear_audit();
    pause(REST);
    let hourly = (carried() - bytes) * 3600 / REST.as_secs();
    let asked: Vec<_> = server
        .audit()
        .iter()
        .map(|e| format!("{} {}", e.method, e.uri))
        .collect();
    assert!(
        hourly <= BYTES_PER_HOUR,
        "{hourly} bytes an hour at rest: {asked:#?}"
    );
    assert_ne!(lease(&server), renewed, "the lease was renewed");
    for name in ["second", "third"] {
        slowest = slowest.max(start(&server, name));
    }
    // From the creation to the list that shows it, and then some round trips.
    assert!(
        slowest < POLL_INTERVAL * 2,
        "{slowest:?} until a pod ran; {} packets of forgotten connections",
        wire.forgotten()
    );
    let grown = anonymous_kib(pid).saturating_sub(memory);
    assert!(grown < GROWTH_KIB, "{grown} KiB more than before");
    let wrong = server.wrong();
    assert!(wrong.is_empty(), "{wrong:#?}");
    host.finish();
}

fn lease(server: &TestServer) -> serde_json::Value {
    let lease = server.get("leases", "kube-node-lease", NODE);
    lease.expect("a lease")["spec"]["renewTime"].clone()
}
