//! The node runs short of something real, and the pod that takes it goes.

use std::{fs, path::Path};

use serde_json::{Value, json};

use crate::{
    evicted::amounts,
    host::{self, Host, IDLE, mount_tmpfs, sh, with},
};

/// What all pods may have together, MiB.
const ALL_PODS_MIB: u64 = 384;
/// Memory of this machine, KiB.
fn memory_kib() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").expect("meminfo");
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let number = line.and_then(|line| line.trim().strip_suffix(" kB"));
    number.expect("MemTotal").parse().expect("a number")
}

/// Puts so many MiB into `file`, and goes on.
fn fills(file: &str, mib: u64) -> Value {
    sh(
        "main",
        &format!("dd if=/dev/zero of={file} bs=1M count={mib}; {IDLE}"),
    )
}

fn message(pod: &Value) -> &str {
    pod["status"]["message"].as_str().unwrap_or_default()
}

/// Waits until the pod has gone for want of something; what its status says.
fn wait_evicted(host: &Host, name: &str) -> Value {
    let pod = host.wait_phase(name, "Failed");
    assert_eq!(pod["status"]["reason"], "Evicted", "{}", pod["status"]);
    pod
}

/// Nothing else tells of pods that were killed for want of memory.
fn is_first_instance(host: &Host, name: &str) -> bool {
    let pod = host.get(name);
    let status = host::status_of(&pod, "main");
    status["restartCount"] == 0 && status["state"]["running"].is_object()
}

// EVICT-02 EVICT-05 EVICT-08 EVICT-12 EVICT-13
#[test]
fn memory_of_all_pods() {
    if !host::able() {
        return;
    }
    let reserved = memory_kib() - ALL_PODS_MIB * 1024;
    let reserved = format!("--system-reserved=memory={reserved}Ki");
    let host = Host::start(&[
        &reserved,
        "--eviction-hard=memory.available<100Mi",
        "--evict-static-pods",
    ]);
    let in_memory = json!({"name": "data", "emptyDir": {"medium": "Memory"}});
    let mounts = json!({"volumeMounts": [{"name": "data", "mountPath": "/data"}]});
    let eats = |mib, request: &str| {
        let resources = json!({"requests": {"memory": request}});
        let main = with(fills("/data/x", mib), mounts.clone());
        json!({"containers": [with(main, json!({"resources": resources}))], "volumes": [in_memory]})
    };
    // It has what it asked for.
    host.pod("modest", eats(40, "64Mi"));
    host.wait_ready("modest");
    let node = host.ok(&["describe", "node", "--eviction-order"]);
    assert!(node.contains("Short of:  <none>"), "{node}");
    assert!(
        node.contains("Eviction order by memory.available:"),
        "{node}"
    );
    host.pod("greedy", eats(290, "16Mi"));
    let greedy = wait_evicted(&host, "greedy");
    let said = message(&greedy);
    let start = "The node was low on resource: memory. Threshold quantity: 100Mi, available: ";
    assert!(said.starts_with(start), "{said}");
    let end = ", request is 16Mi, has larger consumption of memory. ";
    assert!(
        said.ends_with(end) && said.contains("Container main was using "),
        "{said}"
    );
    let conditions = greedy["status"]["conditions"]
        .as_array()
        .expect("conditions");
    let disruption = conditions.iter().find(|c| c["type"] == "DisruptionTarget");
    assert_eq!(disruption.expect("told")["message"], said);
    assert!(is_first_instance(&host, "modest"), "{}", host.get("modest"));
    let node = host.ok(&["describe", "node"]);
    assert!(node.contains("KubeletHasInsufficientMemory"), "{node}");
    let events = host.ok(&["get", "events", "-A"]);
    assert!(events.contains("Attempting to reclaim memory"), "{events}");
    host.finish();
}

// EVICT-02 EVICT-07 EVICT-09 EVICT-12
#[test]
fn a_small_disk() {
    if !host::able() {
        return;
    }
    let mut host = Host::new(&[
        "--eviction-hard=nodefs.available<25%",
        "--evict-static-pods",
    ]);
    // A disk of its own.
    mount_tmpfs(&host.path("root"), "mode=755,size=128m");
    host.start_agent();
    host.import();
    host.pod("modest", json!({"containers": [fills("/x", 1)]}));
    host.wait_ready("modest");
    // Of 128 MiB, of which images and the other pod take a few, less than 32 are left then.
    let greedy = fills("/data/x", 100);
    let volume = json!({"name": "data", "emptyDir": {}});
    let mounts = json!({"volumeMounts": [{"name": "data", "mountPath": "/data"}]});
    host.pod(
        "greedy",
        json!({"containers": [with(greedy, mounts)], "volumes": [volume]}),
    );
    let greedy = wait_evicted(&host, "greedy");
    let said = message(&greedy);
    let start = "The node was low on resource: ephemeral-storage. Threshold quantity: ";
    assert!(said.starts_with(start), "{said}");
    assert!(is_first_instance(&host, "modest"), "{}", host.get("modest"));
    let node = host.ok(&["describe", "node"]);
    assert!(node.contains("KubeletHasDiskPressure"), "{node}");
    host.finish();
}

// EVICT-11 EVICT-13
#[test]
fn limits_of_a_pod_on_the_disk() {
    if !host::able() {
        return;
    }
    let host = Host::start(&["--evict-static-pods"]);
    let volume = |limit: &str| json!({"name": "data", "emptyDir": {"sizeLimit": limit}});
    let writes = |mib| {
        let mounts = json!({"volumeMounts": [{"name": "data", "mountPath": "/data"}]});
        with(fills("/data/x", mib), mounts)
    };
    let pod = |mib, limit| json!({"containers": [writes(mib)], "volumes": [volume(limit)]});
    host.pod("fits", pod(1, "4Mi"));
    host.pod("full", pod(6, "4Mi"));
    let limits = json!({"resources": {"limits": {"ephemeral-storage": "3Mi"}}});
    let layer = with(fills("/x", 5), limits);
    host.pod("layer", json!({"containers": [layer]}));
    // Together they may have more than one of them has.
    let limit = |mib: &str| json!({"resources": {"limits": {"ephemeral-storage": mib}}});
    let one = with(fills("/x", 5), limit("3Mi"));
    let other = with(sh("other", IDLE), limit("10Mi"));
    host.pod("one", json!({"containers": [one, other]}));
    assert_eq!(
        message(&wait_evicted(&host, "full")),
        "Usage of EmptyDir volume \"data\" exceeds the limit \"4Mi\". "
    );
    assert_eq!(
        message(&wait_evicted(&host, "one")),
        "Container main exceeded its local ephemeral storage limit \"3Mi\". "
    );
    let layer = wait_evicted(&host, "layer");
    assert_eq!(
        message(&layer),
        "Pod ephemeral local storage usage exceeds the total limit of containers 3Mi. "
    );
    let conditions = layer["status"]["conditions"]
        .as_array()
        .expect("conditions");
    assert!(conditions.iter().all(|c| c["type"] != "DisruptionTarget"));
    assert!(is_first_instance(&host, "fits"), "{}", host.get("fits"));
    host.finish();
}

// EVICT-02 EVICT-09
#[test]
fn inodes_of_a_small_disk() {
    if !host::able() {
        return;
    }
    let mut host = Host::new(&[
        "--eviction-hard=nodefs.inodesFree<25%",
        "--evict-static-pods",
    ]);
    mount_tmpfs(&host.path("root"), "mode=755,size=128m,nr_inodes=8000");
    host.start_agent();
    host.import();
    host.pod("modest", json!({"containers": [fills("/x", 1)]}));
    host.wait_ready("modest");
    let many = format!("cd /data && seq 1 6500 | xargs touch; {IDLE}");
    let mounts = json!({"volumeMounts": [{"name": "data", "mountPath": "/data"}]});
    let volume = json!({"name": "data", "emptyDir": {}});
    host.pod(
        "greedy",
        json!({"containers": [with(sh("main", &many), mounts)], "volumes": [volume]}),
    );
    let greedy = wait_evicted(&host, "greedy");
    let said = message(&greedy);
    let start = "The node was low on resource: inodes. Threshold quantity: ";
    assert!(
        said.starts_with(start) && said.contains(", available: "),
        "{said}"
    );
    assert!(is_first_instance(&host, "modest"), "{}", host.get("modest"));
    host.finish();
}

/// Numbers of processes that nobody has.
fn process_numbers_left() -> u64 {
    let number = |file: &str| -> u64 {
        let text = fs::read_to_string(file).expect(file);
        text.trim().parse().expect("a number")
    };
    let all = number("/proc/sys/kernel/pid_max").min(number("/proc/sys/kernel/threads-max"));
    let load = fs::read_to_string("/proc/loadavg").expect("loadavg");
    let (_, running) = load
        .split(' ')
        .nth(3)
        .and_then(|n| n.split_once('/'))
        .expect("two");
    all - running.parse::<u64>().expect("a number")
}

// EVICT-02 EVICT-09
#[test]
fn numbers_of_processes() {
    const GREEDY: u64 = 3000;
    if !host::able() {
        return;
    }
    let left = process_numbers_left();
    // What the tests beside this one start is far less than half of it.
    let hard = format!("--eviction-hard=pid.available<{}", left - GREEDY / 2);
    let host = Host::start(&[&hard, "--evict-static-pods"]);
    host.pod("modest", json!({"containers": [sh("main", IDLE)]}));
    host.wait_ready("modest");
    let forks = format!("n=0; while [ $n -lt {GREEDY} ]; do sleep 1000 & n=$((n+1)); done; {IDLE}");
    host.pod("greedy", json!({"containers": [sh("main", &forks)]}));
    let greedy = wait_evicted(&host, "greedy");
    let said = message(&greedy);
    let start = "The node was low on resource: pids. Threshold quantity: ";
    assert!(
        said.starts_with(start) && said.contains(", available: "),
        "{said}"
    );
    assert!(is_first_instance(&host, "modest"), "{}", host.get("modest"));
    host.finish();
}

/// Pods that take too much memory, one after the other, and such of everything else.
const ROUNDS: u32 = 20;
const FEW: u32 = 5;
/// Names another number of rounds, for each resource.
const ROUNDS_VARIABLE: &str = "PICOLET_EVICTION_ROUNDS";
/// Process numbers that one of them takes, and twice those that are left above the threshold. With more of them memory would be
/// short first.
const FORKS: u64 = 1200;

// EVICT-02 EVICT-06 EVICT-07 EVICT-08 EVICT-09 EVICT-12 EVICT-13
#[test]
#[ignore = "takes ten minutes"]
fn pods_that_take_too_much() {
    if !host::able() {
        return;
    }
    let reserved = memory_kib() - ALL_PODS_MIB * 1024;
    let hard = format!(
        "--eviction-hard=memory.available<100Mi,nodefs.available<25%,nodefs.inodesFree<25%,pid.available<{}",
        process_numbers_left() - FORKS / 2
    );
    let mut host = Host::new(&[
        &format!("--system-reserved=memory={reserved}Ki"),
        &hard,
        "--eviction-pressure-transition-period=1s",
        "--evict-static-pods",
    ]);
    mount_tmpfs(&host.path("root"), "mode=755,size=128m,nr_inodes=8000");
    host.start_agent();
    host.import();
    let others = ["modest-1", "modest-2", "modest-3"];
    for name in others {
        host.pod(name, json!({"containers": [sh("main", IDLE)]}));
        host.wait_ready(name);
    }
    let pids = || others.map(|name| (host.pid(name, "main"), is_first_instance(&host, name)));
    let before = pids();
    assert!(before.iter().all(|(_, first)| *first), "{before:?}");
    // Some 20 MiB a second: nobody has so much that the kernel would have to end it before the agent looks.
    let eats =
        "n=0; while :; do n=$((n+1)); dd if=/dev/zero of=/data/$n bs=1M count=4; sleep 0.2; done";
    let forks = format!("n=0; while [ $n -lt {FORKS} ]; do sleep 1000 & n=$((n+1)); done; {IDLE}");
    let files = format!("cd /data && seq 1 6500 | xargs touch; {IDLE}");
    let fill = format!("dd if=/dev/zero of=/data/x bs=1M count=100; {IDLE}");
    for (resource, medium, script) in [
        ("memory", "Memory", eats),
        ("ephemeral-storage", "", &fill),
        ("inodes", "", &files),
        ("pids", "", &forks),
    ] {
        let default = if resource == "memory" { ROUNDS } else { FEW };
        let asked = std::env::var_os(ROUNDS_VARIABLE);
        let asked = asked.map(|n| n.to_str().and_then(|n| n.parse().ok()));
        let rounds = asked.map_or(default, |n| n.expect(ROUNDS_VARIABLE));
        for n in 1..=rounds {
            let name = format!("greedy-{resource}-{n}");
            let mounts = json!({"volumeMounts": [{"name": "data", "mountPath": "/data"}]});
            let volume = json!({"name": "data", "emptyDir": {"medium": medium}});
            let main = with(sh("main", script), mounts);
            host.pod(&name, json!({"containers": [main], "volumes": [volume]}));
            let pod = wait_evicted(&host, &name);
            let said = message(&pod);
            let found = amounts(said, resource).unwrap_or_else(|e| panic!("{name}: {e}"));
            // A container is blamed for memory, and for bytes: what dd said is in its log. For the rest nobody is.
            let blamed = ["memory", "ephemeral-storage"].contains(&resource);
            assert_eq!(found.len(), if blamed { 3 } else { 2 }, "{said}");
            let conditions = pod["status"]["conditions"].as_array().expect("conditions");
            let disruption = conditions.iter().find(|c| c["type"] == "DisruptionTarget");
            assert_eq!(disruption.expect("told")["message"], said);
            let main = host::status_of(&pod, "main");
            assert_ne!(main["state"]["terminated"]["reason"], "OOMKilled", "{main}");
            assert_eq!(main["restartCount"], 0, "{main}");
            println!("{name}: {found:?}");
            host.remove(&format!("{name}.yaml"));
            host.wait_gone(&name);
            assert_eq!(pids(), before, "{name}");
        }
    }
    host.finish();
}

// CG-13 OFF-10
#[test]
fn what_is_reserved_holds() {
    if !host::able() {
        return;
    }
    let group = format!("/picolet-reserved{}", std::process::id());
    let named = format!("--system-reserved-cgroup={group}");
    let mut host = Host::new(&[
        "--enforce-node-allocatable=pods,system-reserved",
        "--system-reserved=cpu=500m,memory=64Mi",
        &named,
    ]);
    let refused = host.command_with_flags("run", &[]);
    assert!(!refused.status.success());
    let said = host::text(&refused.stderr);
    let want = format!("systemReservedCgroup: there is no control group {group}");
    assert!(said.contains(&want), "{said}");
    let top = Path::new("/sys/fs/cgroup");
    let versions = ["", "cpu", "memory", "pids"].map(|name| top.join(name).join(&group[1..]));
    let is_v2 = top.join("cgroup.controllers").exists();
    let made = if is_v2 {
        &versions[..1]
    } else {
        &versions[1..]
    };
    for dir in made {
        fs::create_dir(dir).expect("a control group");
    }
    host.start_agent();
    let file = if is_v2 {
        "memory.max"
    } else {
        "memory.limit_in_bytes"
    };
    let dir = if is_v2 { &versions[0] } else { &versions[2] };
    let limit = fs::read_to_string(dir.join(file)).expect(file);
    assert_eq!(limit.trim(), (64 << 20).to_string());
    host.finish();
    for dir in made {
        fs::remove_dir(dir).expect("nobody is there");
    }
}
