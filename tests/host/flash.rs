//! What is written to the disk of the root directory, as the kernel counts it.

use std::fs;

use serde_json::{Value, json};

use crate::host::{Host, IDLE, able, sh, status_of, text, with};
use crate::image;
use crate::loop_disk::{
    DISK_BYTES, LIFE_BYTES, LoopDisk, PODS, assert_costs, no_access_times, written_by,
};
use crate::metrics::{get, samples};

/// Relists of a period: they come each second or slower, and what has the longest interval, the search for dead containers,
/// comes each minute.
const REST_RELISTS: f64 = 65.0;
/// Probes that write nothing.
const PROBES: f64 = 5.0;
/// Periods after which a node rests: the first one may still read what is new, of which the kernel keeps the time.
const PERIODS: usize = 3;

/// Runs what follows, in a mount namespace where the second directory is what is in the first one.
const EMMC: &str = r#"mount --bind "$1" "$2"; shift 2; "$@" & wait $!"#;

/// A host whose root directory is on a disk of its own. Elsewhere reading leaves no trace, so that what its processes are said
/// to write is there.
fn host_on_disk(test: &str) -> Option<(Host, LoopDisk)> {
    if !able() {
        return None;
    }
    let mut host = Host::new(&[]);
    no_access_times(&host.path(""));
    let disk = LoopDisk::mount(test, DISK_BYTES, &host.path("root"))?;
    host.start_agent();
    host.import();
    Some((host, disk))
}

fn relists(host: &Host) -> f64 {
    let text = get(host, "/metrics");
    samples(&text, "kubelet_pleg_relist_duration_seconds_count")[""]
}

/// What the device, the agent and its shims have written. A process that has ended counts no more.
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

/// Waits for `count` relists.
fn wait_relists(host: &Host, count: f64) {
    let first = relists(host);
    let mut last = first;
    while last < first + count {
        host.until("the next relist", |host| {
            let now = relists(host);
            let came = now > last;
            last = now;
            (came, now.to_string())
        });
    }
}

/// Demands that a whole period passes in which nothing is written.
fn nothing_is_written(host: &Host, disk: &LoopDisk) {
    let mut before = written(host, disk);
    for left in (0..PERIODS).rev() {
        wait_relists(host, REST_RELISTS);
        let now = written(host, disk);
        if now == before {
            return;
        }
        assert!(left > 0, "{before:#?} {now:#?}");
        before = now;
    }
}

// WEAR-01
#[test]
fn a_node_at_rest_writes_nothing() {
    let Some((host, disk)) = host_on_disk("a_node_at_rest_writes_nothing") else {
        return;
    };
    let settings = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"colour": "red"},
    });
    host.write("settings.json", &settings.to_string());
    let mounts = json!([{"name": "own", "mountPath": "/own"}, {"name": "settings", "mountPath": "/settings"}]);
    let volumes = json!([{"name": "own", "emptyDir": {}}, {"name": "settings", "configMap": {"name": "settings"}}]);
    for number in 0..PODS {
        let spec = match number {
            0 => {
                json!({"containers": [with(sh("c", IDLE), json!({"volumeMounts": mounts}))], "volumes": volumes})
            }
            _ => json!({"containers": [sh("c", IDLE)]}),
        };
        host.pod(&format!("p{number}"), spec);
    }
    for number in 0..PODS {
        host.wait_ready(&format!("p{number}"));
    }
    assert_eq!(written(&host, &disk).len(), PODS + 2, "a shim each");
    nothing_is_written(&host, &disk);
    drop(disk);
    host.finish();
}

// WEAR-02
#[test]
fn what_a_static_pod_costs_the_disk() {
    let Some((host, disk)) = host_on_disk("what_a_static_pod_costs_the_disk") else {
        return;
    };
    let costs = (0..).map(|round: u32| {
        let name = format!("p{round}");
        disk.cost(|| {
            host.pod(&name, json!({"containers": [sh("c", IDLE)]}));
            host.wait_ready(&name);
            host.remove(&format!("{name}.yaml"));
            host.wait_gone(&name);
        })
    });
    assert_costs("a pod that is to run for ever", costs, LIFE_BYTES, 0);
    let costs = (0..).map(|round: u32| {
        let name = format!("crash{round}");
        disk.cost(|| {
            host.pod(&name, json!({"containers": [sh("c", "exit 1")]}));
            host.wait_pod(&name, "restarted", |pod| {
                status_of(pod, "c")["restartCount"].as_u64() >= Some(1)
            });
        })
    });
    assert_costs("a start and a restart", costs, LIFE_BYTES, 0);
    drop(disk);
    host.finish();
}

// WEAR-02
#[test]
fn a_probe_by_command_writes_nothing() {
    let Some((host, disk)) = host_on_disk("a_probe_by_command_writes_nothing") else {
        return;
    };
    let probe = json!({"exec": {"command": ["true"]}, "periodSeconds": 1});
    let container = with(sh("c", IDLE), json!({"readinessProbe": probe}));
    host.pod("probed", json!({"containers": [container]}));
    host.wait_ready("probed");
    let probes = |host: &Host| {
        let text = get(host, "/metrics/probes");
        samples(&text, "prober_probe_total").values().sum::<f64>()
    };
    // A while without a byte comes as soon as what the start left is written.
    host.until("probes write nothing", |host| {
        let (begun, before) = (probes(host), disk.written());
        host.until("probes come", |host| {
            let now = probes(host);
            (now >= begun + PROBES, now.to_string())
        });
        let now = disk.written();
        (now == before, format!("{before} {now}"))
    });
    drop(disk);
    host.finish();
}

// WEAR-06
#[test]
fn it_is_told_who_writes_and_how_worn_the_disk_is() {
    let test = "it_is_told_who_writes_and_how_worn_the_disk_is";
    if !able() {
        return;
    }
    let mut host = Host::new(&[]);
    let Some(disk) = LoopDisk::mount(test, DISK_BYTES, &host.path("root")) else {
        return;
    };
    // What the kernel would say of an eMMC.
    let emmc = host.path("emmc");
    fs::create_dir_all(emmc.join("device")).expect("directory");
    for (name, text) in [
        ("stat", "1 0 8 1 4 0 4194304 1 0 1 1\n"),
        ("dev", "179:0\n"),
        ("device/life_time", "0x02 0x09\n"),
        ("device/pre_eol_info", "0x01\n"),
    ] {
        fs::write(emmc.join(name), text).expect("written");
    }
    let of_disk = format!("/sys/class/block/{}", disk.name());
    let of_disk = fs::canonicalize(of_disk).expect("a disk");
    let inside = ["unshare", "--mount", "--pid", "--fork", "--mount-proc"];
    let script = ["sh", "-c", EMMC, "sh"];
    let dirs = [emmc, of_disk].map(|dir| dir.display().to_string());
    let words = inside.iter().chain(&script).map(|&word| word.to_owned());
    host.inside = words.chain(dirs).collect();
    host.start_agent();
    host.import();
    let text = get(&host, "/stats/disk");
    let writers: Vec<Value> = serde_json::from_str(&text).expect("JSON");
    let written = |name: &str| {
        let mut lines = writers.iter();
        let line = lines.find(|w| w["name"] == name);
        line.unwrap_or_else(|| panic!("{name}: {text}"))["writtenBytes"].as_u64()
    };
    let size = fs::metadata(image::BUSYBOX).expect("busybox").len();
    let images = written("images").expect("known");
    assert!((size..2 * size).contains(&images), "{size}: {text}");
    assert!(written("agent").is_some(), "{text}");
    let name = disk.name();
    assert_eq!(written(name), Some(2 << 30));
    let shown = host.ok(&["top", "disk"]);
    let line = |name: &str| {
        let mut lines = shown.lines();
        let found = lines.find(|line| line.split_whitespace().next() == Some(name));
        found
            .unwrap_or_else(|| panic!("{name}: {shown}"))
            .to_owned()
    };
    assert!(line("NAME").contains("A-DAY(bytes)"), "{shown}");
    assert!(
        line(name).ends_with("90%") && line(name).contains(" 2048Mi "),
        "{shown}"
    );
    for writer in ["agent", "images", "logs", "pods"] {
        line(writer);
    }
    let node = host.ok(&["get", "node", "-o", "json"]);
    let node: Value = serde_json::from_str(&node).expect("a node");
    let text = node.to_string();
    assert!(text.contains("StorageIsWorn"), "{text}");
    drop(disk);
    host.finish();
}

#[test]
fn a_machine_that_cannot_limit_writes_does_not_start_with_a_limit() {
    // WEAR-07
    if !able() {
        return;
    }
    if fs::exists("/sys/fs/cgroup/cgroup.controllers").unwrap_or(false) {
        skipped!("a limit of writes that cannot be held: this machine has cgroup v2");
        return;
    }
    let host = Host::new(&["--pod-write-limit=4Mi"]);
    let run = host.command_with_flags("run", &[]);
    let said = text(&run.stderr);
    assert_eq!(run.status.code(), Some(2), "{said}");
    let why = "picolet: picolet.podWriteLimit: this machine cannot limit what a pod writes: that needs cgroup v2";
    assert!(said.contains(why), "{said}");
    let check = host.command_with_flags("check", &[]);
    let said = text(&check.stdout);
    let why = "version 1, and picolet.podWriteLimit needs version 2";
    assert!(said.contains(why), "{said}");
    host.dismantle().expect("nothing is left");
}
