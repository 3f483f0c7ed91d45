//! What a node of a cluster writes to the disk of its root directory, as the kernel counts it.

use std::fs;

use picolet::api::link::LinkClass;
use picolet::sys::clock;
use picolet_test_apiserver::TestServer;
use serde_json::{Value, json};

use crate::bytes::{Behind, counted};
use crate::host::{Host, IDLE, NODE, PATIENCE, able, sh, with};
use crate::konnectivity::Konnectivity;
use crate::loop_disk::{
    DISK_BYTES, LIFE_BYTES, LoopDisk, PODS, assert_costs, no_access_times, written_by,
};
use crate::pods::{cluster_on, finish, pod, wait_gone, wait_ready};
use crate::tunnel::with_tunnel;

/// Renewals of the lease in a period: as many seconds, and what has the longest interval of what can be waited for, looks for
/// dead containers and for tokens to renew, comes each minute.
const REST_RENEWALS: u32 = 65;
/// Pods of the long rest.
const CROWD: usize = 100;
/// Renewals on a metered link, every 20 s: what a rest begins with, and an hour.
const SETTLING_RENEWALS: u32 = 5;
const HOUR_RENEWALS: u32 = 180;
const DAY_S: u64 = 24 * 3600;
/// What a node of so many pods at rest may receive and send in a day on a metered link, with a tunnel.
const DAY_BYTES: u64 = 12_000_000;
/// How often that waits for the disk: for how the pod ended, its name, that of its directory, and that it is forgotten.
const LIFE_SYNCS: u64 = 4;
/// The same of a job, which is not to begin again after a power cut: that it began is kept too, and forgotten.
const JOB_BYTES: u64 = 224 << 10;
const JOB_SYNCS: u64 = 10;
/// A restart in a crash loop.
const RESTART_BYTES: u64 = 128 << 10;
/// Periods after which a node rests: the first one may still write what came before.
const PERIODS: usize = 3;
/// Each second the lease and the status of the node, whether it is news or not.
pub(crate) const BUSY: &str =
    "nodeLeaseDurationSeconds: 4\nnodeStatusUpdateFrequency: 1s\nnodeStatusReportFrequency: 1s\n";

/// An agent of a cluster whose root directory is on a disk of its own. Elsewhere reading leaves no trace.
fn on_disk(test: &str, configuration: &str) -> Option<(Host, TestServer, LoopDisk)> {
    if !able() {
        return None;
    }
    let server = TestServer::builder().start().expect("server");
    let mut disk = None;
    let file = std::env::temp_dir().join(format!("picolet-flash-{}", server.port()));
    let text = format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n{configuration}"
    );
    fs::write(&file, text).expect("configuration");
    let flag = format!("--config={}", file.display());
    let (host, server) = cluster_on(server, &[&flag], |host| {
        no_access_times(&host.path(""));
        disk = LoopDisk::mount(test, DISK_BYTES, &host.path("root"));
    });
    let _ = fs::remove_file(file);
    let Some(disk) = disk else {
        finish(host, &server);
        return None;
    };
    Some((host, server, disk))
}

/// What the device, the agent and its shims have written.
fn written(host: &Host, disk: &LoopDisk) -> Vec<(String, u64)> {
    let shims = host.processes().into_iter();
    let shims = shims.filter(|(_, words)| words.contains(" shim "));
    let mut all: Vec<_> = shims
        .chain([(host.agent_pid(), "agent".to_owned())])
        .filter_map(|(pid, words)| Some((format!("{pid} {words}"), written_by(pid)?)))
        .collect();
    all.push(("device".to_owned(), disk.written()));
    all
}

pub(crate) fn wait_renewals(server: &TestServer, count: u32) {
    let mut last = Value::Null;
    for _ in 0..=count {
        last = server.wait_for("the lease is renewed", PATIENCE, |view| {
            let lease = view.get("leases", "kube-node-lease", NODE)?;
            let renewed = &lease["spec"]["renewTime"];
            (*renewed != last).then(|| renewed.clone())
        });
    }
}

// WEAR-01 WEAR-02
#[test]
fn a_node_at_rest_writes_nothing() {
    let Some((host, server, disk)) = on_disk("a_node_at_rest_writes_nothing", BUSY) else {
        return;
    };
    run_pods(&server, PODS);
    let token = host.mounts().into_iter();
    let mut token = token.filter(|point| point.ends_with("kubernetes.io~projected/token"));
    assert!(token.next().is_some(), "tokens are in memory");
    let before = written(&host, &disk);
    assert_eq!(before.len(), PODS + 2, "a shim each");
    wait_rest(&host, &disk, &server, REST_RENEWALS);
    drop(disk);
    finish(host, &server);
}

// WEAR-01 METER-03
#[test]
#[ignore = "takes an hour"]
fn an_hour_at_rest() {
    let Some(behind) = Behind::new(0) else {
        return;
    };
    let (wire, server, mut host) = (behind.wire, behind.server, behind.host);
    no_access_times(&host.path(""));
    let root = host.path("root");
    let Some(disk) = LoopDisk::mount("an_hour_at_rest", 2 * DISK_BYTES, &root) else {
        return;
    };
    let konnectivity = Konnectivity::start(wire.near.into(), "one");
    konnectivity.know(server.ca_pem());
    with_tunnel(&mut host, &server, &[&konnectivity], "");
    host.add_flags(&["--metered"]);
    host.start_agent();
    host.import();
    run_pods(&server, CROWD);
    konnectivity.wait();
    let before = wait_rest(&host, &disk, &server, SETTLING_RENEWALS);
    assert_eq!(before.len(), CROWD + 2, "a shim each");
    let (begun, (classes, _)) = (clock::mono_now(), counted(&host));
    wait_renewals(&server, HOUR_RENEWALS);
    let (took, (after, _)) = (clock::mono_now() - begun, counted(&host));
    assert_eq!(written(&host, &disk), before, "nothing is written");
    let mut day = 0;
    println!(
        "at rest for {} s. Bytes of a day, received and sent:",
        took.as_secs()
    );
    for (class, (after, before)) in LinkClass::NAMES.iter().zip(after.iter().zip(&classes)) {
        let of_day = [0, 1].map(|way| (after[way] - before[way]) * DAY_S / took.as_secs());
        println!("{class} {} {}", of_day[0], of_day[1]);
        day += of_day[0] + of_day[1];
    }
    println!("all {day}");
    assert!(day <= DAY_BYTES, "{day} bytes");
    drop(disk);
    host.finish();
}

/// Pods that are ready; the first one has volumes of all kinds that change.
fn run_pods(server: &TestServer, count: usize) {
    for (kind, name) in [("ConfigMap", "conf"), ("Secret", "login")] {
        let metadata = json!({"name": name, "namespace": "default"});
        let object =
            json!({"apiVersion": "v1", "kind": kind, "metadata": metadata, "data": {"a": "MQ=="}});
        server.create(&object).expect("created");
    }
    let names: Vec<String> = (0..count).map(|number| format!("p{number}")).collect();
    for (number, name) in names.iter().enumerate() {
        let token = json!({"serviceAccountToken": {"path": "token", "expirationSeconds": 600}});
        let volumes = json!([
            {"name": "conf", "configMap": {"name": "conf"}},
            {"name": "login", "secret": {"secretName": "login"}},
            {"name": "token", "projected": {"sources": [token]}},
            {"name": "own", "emptyDir": {}},
        ]);
        let mounts = ["conf", "login", "token", "own"];
        let mounts = mounts.map(|name| json!({"name": name, "mountPath": format!("/{name}")}));
        let container = with(sh("c", IDLE), json!({"volumeMounts": mounts}));
        let more = match number {
            0 => json!({"containers": [container], "volumes": volumes}),
            _ => json!({}),
        };
        server.create(&pod(name, more)).expect("create");
    }
    for name in &names {
        wait_ready(server, name);
    }
}

/// Waits for a period, of so many renewals of the lease, in which nothing is written; what was written until then.
fn wait_rest(
    host: &Host,
    disk: &LoopDisk,
    server: &TestServer,
    renewals: u32,
) -> Vec<(String, u64)> {
    let mut before = written(host, disk);
    for left in (0..PERIODS).rev() {
        wait_renewals(server, renewals);
        let now = written(host, disk);
        if now == before {
            break;
        }
        assert!(left > 0, "{before:#?} {now:#?}");
        before = now;
    }
    before
}

// WEAR-02
#[test]
fn what_a_pod_costs_the_disk() {
    let Some((host, server, disk)) = on_disk("what_a_pod_costs_the_disk", "") else {
        return;
    };
    let create = |name: &str, more: Value| {
        server.create(&pod(name, more)).expect("create");
    };
    let delete = |name: &str| {
        let deleted = server.delete("pods", "default", name, None);
        deleted.expect("delete");
        wait_gone(&server, name);
    };
    // Copies of services are written for the first pod of a namespace, and stay until its last one goes.
    create("first", json!({}));
    wait_ready(&server, "first");
    let costs = (0..).map(|round: u32| {
        let name = format!("p{round}");
        disk.cost(|| {
            create(&name, json!({}));
            wait_ready(&server, &name);
            delete(&name);
        })
    });
    assert_costs("a pod", costs, LIFE_BYTES, LIFE_SYNCS);
    let costs = (0..).map(|round: u32| {
        let name = format!("job{round}");
        // It is seen to run before it has ended: that it began is kept as well.
        let job = json!({"restartPolicy": "Never", "containers": [sh("c", "sleep 3")]});
        disk.cost(|| {
            create(&name, job);
            server.wait_for_phase("default", &name, "Succeeded", PATIENCE);
            delete(&name);
        })
    });
    assert_costs("a job", costs, JOB_BYTES, JOB_SYNCS);
    let costs = (0..).map(|round: u32| {
        let name = format!("crash{round}");
        create(&name, json!({"containers": [sh("c", "exit 1")]}));
        let restarted = |count: u64| {
            server.wait_for("it is restarted", PATIENCE, |view| {
                let pod = view.get("pods", "default", &name)?;
                let status = &pod["status"]["containerStatuses"][0];
                (status["restartCount"].as_u64() >= Some(count)).then_some(())
            });
        };
        restarted(1);
        let cost = disk.cost(|| restarted(2));
        delete(&name);
        cost
    });
    assert_costs("a restart", costs, RESTART_BYTES, 0);
    drop(disk);
    finish(host, &server);
}
