//! What all that is for the edge costs an agent at rest that has it configured: the tunnel, devices of the machine and of
//! plugins, a budget of bytes, updates by themselves.

use std::fs;
use std::path::Path;

use nix::sys::signal::Signal;
use picolet_test_apiserver::TestServer;
use serde_json::json;

use crate::flash::{BUSY, wait_renewals};
use crate::host::{Host, able};
use crate::konnectivity::Konnectivity;
use crate::plugin::{Habits, Plugin};
use crate::pods::{cluster, finish, pod, wait_ready};
use crate::program::{is_shipped, program};
use crate::tunnel::with_tunnel;

const PODS: usize = 10;
const RESOURCE: &str = "example.com/probe";
/// Renewals of the lease, one each second, until an agent counts as at rest.
const SETTLING_RENEWALS: u32 = 20;
/// Renewals in which it is at rest: passes of all kinds, and some lists. Each minute it lets go of its code.
const REST_RENEWALS: u32 = 65;
/// Copy of the program, in memory: of a file on a disk, a kernel may map pieces as large as it was written in.
const COPY: &str = "run/program";
/// By which the agent may be larger, its share of what it maps (PSS), KiB.
const LARGER_KIB: u64 = 512;
/// Of a build with checks: by which its heap, stacks and written data may be, KiB.
const OWN_LARGER_KIB: u64 = 256;
const KIND: &str = "\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
evictionHard: {memory.available: 1Mi}
";
/// All but `metered`: who asks less needs less.
const EDGE: &str = "  \
  link: {dailyBytes: 10Mi, pullWindow: \"02:00-04:00\", meteredInterfaces: [wwan*], streamBytes: 10Mi}
  logMemory: 4Mi
  devicePlugins: true
  devicePluginDir: PLUGINS
  devices:
  - {resource: zero, match: {path: /dev/zero}, count: 8}
  - {preset: serial}
  - {preset: i2c}
  - {preset: gpio}
  update:
    source: https://127.0.0.1:1/stable.json
    keys: [MCowBQYDK2VwAyEABwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=]
    window: {start: \"02:30\", length: 1h}
";

/// Most memory of the agent at rest, KiB: its share of what it maps, and what of that is no file's.
fn at_rest(host: &Host, server: &TestServer) -> [u64; 2] {
    wait_renewals(server, SETTLING_RENEWALS);
    let file = format!("/proc/{}/smaps_rollup", host.agent_pid());
    let mut most = [0, 0];
    for _ in 0..REST_RENEWALS {
        wait_renewals(server, 1);
        let text = fs::read_to_string(&file).expect("memory");
        for (most, name) in most.iter_mut().zip(["Pss:", "Pss_Anon:"]) {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            let line = line.expect("a line").trim();
            let kib = line.strip_suffix(" kB").expect("a unit");
            *most = kib.parse::<u64>().expect("a number").max(*most);
        }
    }
    most
}

fn wait_all(server: &TestServer) {
    for number in 0..PODS {
        wait_ready(server, &format!("p{number}"));
    }
}

fn restart(host: &mut Host, server: &TestServer) {
    host.end_agent(Signal::SIGTERM);
    host.start_agent();
    wait_all(server);
}

/// What is at a socket in this directory that agents listen at.
fn listens(host: &Host, dir: &Path) {
    host.until("plugins may come", |_| {
        let socket = dir.join("kubelet.sock");
        (socket.exists(), socket.display().to_string())
    });
}

#[test]
#[ignore = "measures the program as it is shipped"]
fn everything_configured_costs_little_at_rest() {
    if !able() {
        return;
    }
    let (mut host, server) = cluster(&[]);
    for number in 0..PODS {
        let created = server.create(&pod(&format!("p{number}"), json!({})));
        created.expect("create");
    }
    // Both agents find their pods running.
    wait_all(&server);
    host.program = host.path(COPY);
    fs::copy(program(), &host.program).expect("a copy");
    let konnectivity = Konnectivity::start([127, 0, 0, 1].into(), "one");
    konnectivity.know(server.ca_pem());
    let config = host.path("config.yaml");
    fs::write(&config, format!("{KIND}{BUSY}")).expect("configuration");
    host.add_flags(&["--config", &config.display().to_string()]);
    restart(&mut host, &server);
    let [before, own_before] = at_rest(&host, &server);

    let dir = host.path("plugins");
    let edge = EDGE.replace("PLUGINS", &dir.display().to_string());
    with_tunnel(
        &mut host,
        &server,
        &[&konnectivity],
        &format!("{edge}{BUSY}"),
    );
    restart(&mut host, &server);
    konnectivity.wait();
    listens(&host, &dir);
    let habits = Habits {
        units: vec![("a".into(), true), ("b".into(), true)],
        ..Habits::default()
    };
    let plugin = Plugin::start(&dir.join("probe.sock"), habits);
    plugin.register(RESOURCE);
    let [after, own_after] = at_rest(&host, &server);
    let node = host.ok(&["get", "node", "-o", "json"]);
    for resource in [RESOURCE, "picolet/zero"] {
        assert!(node.contains(resource), "{resource}: {node}");
    }

    println!("PSS {before} to {after} KiB, of no file {own_before} to {own_after} KiB");
    let larger = after.saturating_sub(before);
    assert!(!is_shipped() || larger <= LARGER_KIB, "{larger} KiB");
    let larger = own_after.saturating_sub(own_before);
    assert!(larger <= OWN_LARGER_KIB, "{larger} KiB");
    drop(plugin);
    finish(host, &server);
}
