//! A node on containerd: what a user sees of it, and what becomes of pods when it dies, hangs and comes back.

#[path = "../common/containerd.rs"]
pub(crate) mod daemon;

use std::{fs, time::Duration};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use self::daemon::{Containerd, IMAGE};
use crate::host::{Host, full, status_of};

/// A containerd, and an agent that runs pods by it; `None`: said aloud what is missing.
///
/// The agent goes first: what it still does at its end it does at a containerd that is there.
pub(crate) fn start(name: &str) -> Option<(Containerd, Host)> {
    let (containerd, mut host) = start_containerd(name)?;
    host.start_agent();
    Some((containerd, host))
}

/// The same without the agent.
pub(crate) fn start_containerd(name: &str) -> Option<(Containerd, Host)> {
    if let Some(why) = daemon::missing() {
        skipped!("{name}: {why}");
        return None;
    }
    let containerd = Containerd::start();
    let endpoint = format!("unix://{}", containerd.socket().display());
    let host = Host::new(&["--container-runtime-endpoint", &endpoint]);
    Some((containerd, host))
}

pub(crate) fn container(name: &str, script: &str, more: &Value) -> Value {
    let mut container = json!({
        "name": name, "image": IMAGE, "imagePullPolicy": "Never", "command": ["sh", "-c", script],
    });
    let fields = container.as_object_mut().expect("object");
    fields.extend(more.as_object().cloned().unwrap_or_default());
    container
}

/// Containers and their restart counts.
pub(crate) fn identity(pod: &Value) -> Vec<(String, u64)> {
    let statuses = pod["status"]["containerStatuses"].as_array();
    let one = |status: &Value| {
        let id = status["containerID"].as_str().unwrap_or_default();
        let count = status["restartCount"].as_u64().unwrap_or_default();
        (id.to_owned(), count)
    };
    statuses.into_iter().flatten().map(one).collect()
}

fn node_is_ready(host: &Host) -> (bool, String) {
    let node = host.ok(&["get", "node", "-o", "json"]);
    let node: Value = serde_json::from_str(&node).expect("a node");
    let node = match node["items"].as_array() {
        Some(items) => items[0].clone(),
        None => node,
    };
    let conditions = node["status"]["conditions"].as_array().cloned();
    let ready = conditions.into_iter().flatten();
    let ready = ready.into_iter().find(|c| c["type"] == "Ready");
    let ready = ready.unwrap_or_default();
    (ready["status"] == "True", ready.to_string())
}

const IDLE: &str = "trap 'exit 0' TERM; while :; do sleep 1000 & wait; done";
/// Exits with code 5 once its file appears in the shared directory.
const ENDS_ON_SIGNAL: &str = "while [ ! -e /signal/ends ]; do sleep 0.1; done; exit 5";

#[test]
fn a_node_on_containerd() {
    // CRI-01 CRI-11 CRI-25 CRI-27 CRI-28 CRI-56 CRI-57 CRI-58 CRI-60 CRI-77
    let Some((containerd, mut host)) = start("a_node_on_containerd") else {
        return;
    };
    let ready = json!({
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        "readinessProbe": {"exec": {"command": ["cat", "/data/ready"]}, "periodSeconds": 1},
        "env": [{"name": "WORD", "value": "heard"}],
    });
    let script = format!("echo \"$WORD\"; : > /data/ready; {IDLE}");
    host.pod(
        "web",
        json!({
            "containers": [container("main", &script, &ready)],
            "volumes": [{"name": "data", "emptyDir": {}}],
        }),
    );
    let fails = "echo last words > /dev/termination-log; exit 3";
    host.pod(
        "fails",
        json!({"containers": [container("main", fails, &json!({}))]}),
    );
    let web = host.wait_ready("web");
    let before = identity(&web);
    assert!(before[0].0.starts_with("containerd://"), "{before:?}");
    assert_eq!(before[0].1, 0);
    let status = status_of(&web, "main");
    assert_eq!(status["image"], IMAGE);
    assert!(web["status"]["podIP"].is_string(), "{}", web["status"]);
    assert_eq!(host.ok(&["logs", &full("web")]), "heard\n");

    let pod = host.wait_pod("fails", "restarted", |pod| {
        status_of(pod, "main")["restartCount"].as_u64() >= Some(1)
    });
    let main = status_of(&pod, "main");
    let last = &main["lastState"]["terminated"];
    assert_eq!(last["exitCode"], 3, "{main}");
    assert_eq!(last["reason"], "Error");
    assert_eq!(last["message"], "last words\n");

    let node = host.ok(&["get", "node", "-o", "json"]);
    assert!(node.contains("containerd://1."), "{node}");
    assert!(host.ok(&["image", "ls"]).contains("picolet.test/app"));
    let archive = containerd.dir.join("image.tar").display().to_string();
    for words in [&["image", "import", &archive][..], &["image", "verify"]] {
        let refused = host.cli(words);
        let told = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success(), "{words:?}");
        assert!(
            told.contains("the container runtime keeps the images"),
            "{told}"
        );
    }

    // Another agent finds everything again.
    host.remove("fails.yaml");
    host.wait_gone("fails");
    host.end_agent(Signal::SIGKILL);
    host.start_agent();
    let web = host.wait_ready("web");
    assert_eq!(identity(&web), before, "nothing was started anew");
    assert_eq!(containerd.tasks(), 2, "a sandbox and a container");

    host.remove("web.yaml");
    host.wait_gone("web");
    host.until("containerd has nothing of it", |_| has_nothing(&containerd));
}

#[test]
fn containerd_dies_hangs_and_comes_back() {
    // CRI-90 CRI-91 CRI-92
    let Some((mut containerd, host)) = start("containerd_dies_hangs_and_comes_back") else {
        return;
    };
    host.pod(
        "stays",
        json!({"containers": [container("main", IDLE, &json!({}))]}),
    );
    let signal = json!({"volumeMounts": [{"name": "signal", "mountPath": "/signal"}]});
    host.pod(
        "ends",
        json!({
            "restartPolicy": "Never",
            "containers": [container("main", ENDS_ON_SIGNAL, &signal)],
            "volumes": [{"name": "signal", "hostPath": {"path": host.path("shared"), "type": "Directory"}}],
        }),
    );
    host.pod(
        "removed",
        json!({"containers": [container("main", IDLE, &json!({}))]}),
    );
    let before = identity(&host.wait_ready("stays"));
    host.wait_ready("removed");
    host.wait_ready("ends");
    host.until("the node is ready", node_is_ready);

    containerd.kill();
    fs::write(host.path("shared/ends"), "").expect("signal");
    host.remove("removed.yaml");
    host.until("the node is not ready", |host| {
        let (ready, seen) = node_is_ready(host);
        (!ready, seen)
    });
    let pod = host.get("stays");
    assert_eq!(pod["status"]["phase"], "Running", "none counts as lost");
    containerd.run();
    host.until("the node is ready again", node_is_ready);
    host.wait_gone("removed");
    let ended = host.wait_phase("ends", "Failed");
    // Its shim saw how it ended: that of containerd 1 outlives the daemon and tells the next one.
    let terminated = &status_of(&ended, "main")["state"]["terminated"];
    assert_eq!(terminated["exitCode"], 5, "{terminated}");
    assert_eq!(terminated["reason"], "Error");
    assert_eq!(identity(&host.wait_ready("stays")), before);

    let hung = containerd.hang();
    host.pod(
        "late",
        json!({"containers": [container("main", IDLE, &json!({}))]}),
    );
    host.until("the node is not ready while it hangs", |host| {
        let (ready, seen) = node_is_ready(host);
        (!ready, seen)
    });
    drop(hung);
    host.until("the node is ready once more", node_is_ready);
    host.wait_ready("late");
    assert_eq!(identity(&host.wait_ready("stays")), before);
    host.until("a sandbox and a container for each of two pods", |_| {
        let tasks = containerd.tasks();
        (tasks == 4 || tasks == 5, tasks.to_string())
    });
}

/// Kills of containerd in every run; with `--ignored` there are [`MANY_KILLS`].
const KILLS: usize = 3;
const MANY_KILLS: usize = 20;
/// Pods that are there all the time, and pods of which one comes and one goes with each kill.
const STAYS: usize = 3;
const LIVES: usize = 2;

#[test]
fn containerd_is_killed_while_pods_come_and_go() {
    // CRI-41 CRI-90 CRI-91
    killed_under_churn("containerd_is_killed_while_pods_come_and_go", KILLS);
}

#[test]
#[ignore = "takes minutes"]
fn containerd_is_killed_many_times_while_pods_come_and_go() {
    killed_under_churn("containerd_is_killed_many_times", MANY_KILLS);
}

/// Each kill meets the agent at another moment of what it does; nothing is lost or doubled by any.
fn killed_under_churn(name: &str, kills: usize) {
    let Some((mut containerd, host)) = start(name) else {
        return;
    };
    let idle = || json!({"containers": [container("main", IDLE, &json!({}))]});
    for n in 0..STAYS {
        host.pod(&format!("stays{n}"), idle());
    }
    let stays = |host: &Host| -> Vec<_> {
        let names = (0..STAYS).map(|n| format!("stays{n}"));
        names
            .map(|name| identity(&host.wait_ready(&name)))
            .collect()
    };
    let before = stays(&host);
    for kill in 0..kills {
        host.pod(&format!("comes{kill}"), idle());
        if let Some(old) = kill.checked_sub(LIVES) {
            host.remove(&format!("comes{old}.yaml"));
        }
        // What the agent does meanwhile is cut off at another place each time.
        crate::host::pause(Duration::from_millis(
            37 * u64::try_from(kill).expect("small"),
        ));
        containerd.kill();
        if kill % 3 == 2 {
            // The socket too: it comes back with the daemon.
            fs::remove_file(containerd.socket()).expect("removed");
        }
        let pod = host.get("stays0");
        assert_eq!(pod["status"]["phase"], "Running", "none counts as lost");
        containerd.run();
        host.wait_ready(&format!("comes{kill}"));
        assert_eq!(stays(&host), before, "kill {kill}");
    }
    for old in 0..kills.saturating_sub(LIVES) {
        host.wait_gone(&format!("comes{old}"));
    }
    host.until("a sandbox and a container for each pod", |_| {
        let (tasks, pods) = (containerd.tasks(), STAYS + LIVES.min(kills));
        (tasks == 2 * pods, format!("{tasks} tasks of {pods} pods"))
    });
    // Nor is anything of what broke off.
    let names = (0..STAYS).map(|n| format!("stays{n}"));
    let last = (kills.saturating_sub(LIVES)..kills).map(|n| format!("comes{n}"));
    let names: Vec<String> = names.chain(last).collect();
    names
        .iter()
        .for_each(|name| host.remove(&format!("{name}.yaml")));
    names.iter().for_each(|name| host.wait_gone(name));
    host.until("containerd has nothing of them", |_| {
        has_nothing(&containerd)
    });
}

/// Whether containerd knows no container and no sandbox any more; and what it knows.
fn has_nothing(containerd: &Containerd) -> (bool, String) {
    let left = containerd.ctr().args(["containers", "ls", "-q"]).output();
    let left = String::from_utf8_lossy(&left.expect("ctr").stdout).into_owned();
    (left.trim().is_empty(), left)
}

#[test]
fn all_pods_cannot_be_stopped_while_containerd_hangs() {
    // CRI-92
    let Some((containerd, mut host)) = start("all_pods_cannot_be_stopped_while_containerd_hangs")
    else {
        return;
    };
    host.pod(
        "stays",
        json!({"containers": [container("main", IDLE, &json!({}))]}),
    );
    host.wait_ready("stays");
    let hung = containerd.hang();
    let refused = host.cli(&["stop", "--all"]);
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success(), "{told}");
    assert!(told.contains("cannot be stopped now"), "{told}");
    assert_eq!(containerd.shims().len(), 1, "the pod runs on");
    drop(hung);
    // It was asked for, and is done when it can be.
    host.reap_agent();
    assert_eq!(containerd.tasks(), 0);
}
