//! The agent goes and comes back; pods do not notice.

use std::collections::BTreeMap;
use std::fs;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::host::{self, Host, IDLE, full, sh, status_of, with};

/// Pods in all.
const PODS: usize = 20;
/// A line every few milliseconds, each with its number.
pub(crate) const COUNTER: &str =
    "trap 'exit 0' TERM; n=0; while :; do n=$((n+1)); echo $n; usleep 3000; done";

// OFF-06 OFF-07 SHUT-07 PW-31 PLEG-01 SRC-25 RTM-01 RTM-03 RTM-07 BACK-05 WAIT-24 STAT-25 CLEAN-11 CLEAN-12 VOL-14
#[test]
fn pods_outlive_the_agent() {
    if !host::able() {
        return;
    }
    let mut host = Host::start(&[]);
    host.pod("counter", json!({"containers": [sh("main", COUNTER)]}));
    for job in ["job-1", "job-2"] {
        host.pod(job, waits_for_signal(&host, job));
    }
    // Comes back by its policy, even if it ends while nobody watches.
    host.pod("phoenix", json!({"containers": [sh("main", IDLE)]}));
    host.pod("lost", json!({"containers": [sh("main", IDLE)]}));
    host.pod("removed", json!({"containers": [sh("main", IDLE)]}));
    host.pod(
        "memory",
        json!({
            "containers": [with(sh("main", &format!("echo kept > /m/x; {IDLE}")), json!({"volumeMounts": [{"name": "m", "mountPath": "/m"}]}))],
            "volumes": [{"name": "m", "emptyDir": {"medium": "Memory"}}]
        }),
    );
    for n in 7..PODS {
        host.pod(
            &format!("idle-{n}"),
            json!({"containers": [sh("main", IDLE)]}),
        );
    }
    all_running(&host, PODS);
    let before = processes(&host);
    assert_eq!(before.len(), PODS);
    let counted = last_number(&host);

    host.end_agent(Signal::SIGKILL);
    end_job(&host, &before, "job-1");
    let phoenix = before["phoenix-node"].0;
    kill(Pid::from_raw(phoenix), Signal::SIGKILL).expect("kill");
    host.wait_process_gone(phoenix);
    host.start_agent();
    let job = host.wait_phase("job-1", "Failed");
    assert_eq!(
        status_of(&job, "main")["state"]["terminated"]["exitCode"],
        7,
        "{job}"
    );
    let back = host.wait_pod("phoenix", "restarted", |pod| {
        let main = status_of(pod, "main");
        main["restartCount"] == 1 && main["ready"] == true
    });
    let last = &status_of(&back, "main")["lastState"]["terminated"];
    assert_eq!(last["exitCode"], 137, "{back}");
    same_processes(&host, &before, &["job-1-node", "phoenix-node"]);
    let counted = gapless(&host, counted);

    // Asked to end it leaves everything as it is, too. While it is away a shim dies, a manifest goes, another comes.
    let before = processes(&host);
    let removed = format!(
        "pod{}",
        host.get("removed")["metadata"]["uid"]
            .as_str()
            .unwrap_or_default()
    );
    host.end_agent(Signal::SIGTERM);
    end_job(&host, &before, "job-2");
    let shim = before["lost-node"].1;
    kill(Pid::from_raw(shim), Signal::SIGKILL).expect("kill");
    host.wait_process_gone(shim);
    host.remove("removed.yaml");
    host.pod("added", json!({"containers": [sh("main", IDLE)]}));
    host.start_agent();
    let job = host.wait_phase("job-2", "Failed");
    assert_eq!(
        status_of(&job, "main")["state"]["terminated"]["exitCode"],
        7,
        "{job}"
    );
    let lost = host.wait_pod("lost", "restarted", |pod| {
        let main = status_of(pod, "main");
        main["restartCount"] == 1 && main["ready"] == true
    });
    let last = &status_of(&lost, "main")["lastState"]["terminated"];
    assert_eq!(last["exitCode"], 137, "{lost}");
    assert_eq!(last["reason"], "ContainerStatusUnknown", "{lost}");
    host.wait_ready("added");
    // What the agent knows from the runtime only goes with its cgroup.
    host.until("the pod without manifest ends", |host| {
        let left = host.left().into_iter().filter(|l| l.contains(&removed));
        let left: Vec<String> = left.collect();
        (left.is_empty(), left.join("\n"))
    });
    same_processes(&host, &before, &["job-2-node", "lost-node", "removed-node"]);
    gapless(&host, counted);
    assert_eq!(host.exec("memory", "main", "cat /m/x"), "kept\n");
    // A finished pod stays finished.
    let job = host.get("job-1");
    assert_eq!(job["status"]["phase"], "Failed", "{job}");
    host.finish();
}

/// Exits with code 7 once its file appears in the shared directory.
fn waits_for_signal(host: &Host, name: &str) -> Value {
    let script = format!("while [ ! -e /signal/{name} ]; do usleep 10000; done; exit 7");
    json!({
        "restartPolicy": "Never",
        "containers": [with(sh("main", &script), json!({"volumeMounts": [{"name": "signal", "mountPath": "/signal"}]}))],
        "volumes": [{"name": "signal", "hostPath": {"path": host.path("shared"), "type": "Directory"}}]
    })
}

fn end_job(host: &Host, processes: &BTreeMap<String, (i32, i32)>, name: &str) {
    fs::write(host.path("shared").join(name), "").expect("signal");
    host.wait_process_gone(processes[&full(name)].0);
}

pub(crate) fn all_running(host: &Host, count: usize) {
    host.until("all pods run", |host| {
        let pods = host.pods();
        let running = pods
            .iter()
            .filter(|p| p["status"]["phase"] == "Running")
            .count();
        (running == count, format!("{running} of {}", pods.len()))
    });
}

/// Pids of every running pod's only container and of its shim.
pub(crate) fn processes(host: &Host) -> BTreeMap<String, (i32, i32)> {
    let mut found = BTreeMap::new();
    for pod in host.pods() {
        let main = status_of(&pod, "main");
        if main["state"]["running"].is_object() {
            let name = pod["metadata"]["name"].as_str().unwrap_or_default();
            let id = main["containerID"].as_str().unwrap_or_default();
            found.insert(name.to_owned(), host.pids_of(id));
        }
    }
    found
}

/// Every pod but those named has the processes it had, and was never restarted.
pub(crate) fn same_processes(host: &Host, before: &BTreeMap<String, (i32, i32)>, but: &[&str]) {
    let now = processes(host);
    for (name, pids) in before {
        if !but.contains(&name.as_str()) {
            assert_eq!(now.get(name), Some(pids), "{name}");
        }
    }
}

pub(crate) fn last_number(host: &Host) -> u64 {
    let log = host.ok(&["logs", &full("counter"), "--tail", "1"]);
    log.trim().parse().unwrap_or(0)
}

/// The log counts from 1 without a gap, and went on after `before`.
pub(crate) fn gapless(host: &Host, before: u64) -> u64 {
    let log = host.ok(&["logs", &full("counter")]);
    let mut count = 0;
    for line in log.lines() {
        count += 1;
        assert_eq!(line, count.to_string(), "line {count} of the log");
    }
    assert!(count > before, "{count} lines, {before} before");
    count
}

// LOOP-16 PLEG-01 SRC-15 ACT-33 CLEAN-16
#[test]
fn slower_never_wrong_without_doorbells() {
    if !host::able() {
        return;
    }
    let flags = ["--doorbells=false", "--file-check-frequency", "2s"];
    let host = Host::start(&flags);
    host.write_image("images/late.tar", "localhost/late:1", &json!({}));
    host.pod(
        "poll",
        json!({"containers": [with(sh("main", IDLE), json!({"image": "localhost/late:1"}))]}),
    );
    host.wait_ready("poll");
    let pid = host.pid("poll", "main");
    kill(Pid::from_raw(pid), Signal::SIGKILL).expect("kill");
    host.wait_pod("poll", "restarted", |pod| {
        let main = status_of(pod, "main");
        main["restartCount"] == 1 && main["ready"] == true
    });
    host.remove("poll.yaml");
    host.wait_gone("poll");
    host.finish();
}

// SHUT-03 SHUT-04 SHUT-05
#[test]
fn the_machine_goes_down() {
    if !host::able() {
        return;
    }
    let mut host = Host::new(&[]);
    let config = host.path("shutdown.yaml");
    let text = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nevictionHard: {memory.available: 1Mi}\n\
                shutdownGracePeriod: 8s\nshutdownGracePeriodCriticalPods: 4s\n";
    fs::write(&config, text).expect("written");
    host.flags
        .extend(["--config".to_owned(), config.display().to_string()]);
    host.start_agent();
    host.import();
    let says = |word: &str| {
        let script = format!(
            "trap 'cat /proc/uptime > /say/{word}; exit 0' TERM; while :; do sleep 1000 & wait $!; done"
        );
        let mounts = json!({"volumeMounts": [{"name": "say", "mountPath": "/say"}]});
        json!({
            "terminationGracePeriodSeconds": 20,
            "containers": [with(sh("main", &script), mounts)],
            "volumes": [{"name": "say", "hostPath": {"path": host.path("shared"), "type": "Directory"}}],
        })
    };
    let mut critical = says("critical");
    critical["priority"] = 2_000_000_000.into();
    host.pod("plain", says("plain"));
    host.pod("critical", critical);
    let first = host.wait_ready("plain");
    host.wait_ready("critical");
    host.ok(&["stop", "--shutdown"]);
    let ended = |word: &str| -> f64 {
        let text = fs::read_to_string(host.path("shared").join(word)).expect("it was told to end");
        let since_boot = text.split(' ').next().unwrap_or("");
        since_boot.parse().expect("a time")
    };
    assert!(ended("plain") < ended("critical"), "one after the other");
    for name in ["plain", "critical"] {
        let pod = host.wait_phase(name, "Failed");
        assert_eq!(pod["status"]["reason"], "Terminated", "{name}");
    }
    host.pod("late", json!({"containers": [sh("main", IDLE)]}));
    let late = host.wait_phase("late", "Failed");
    assert_eq!(late["status"]["reason"], "NodeShutdown");
    // The machine is there again: what is wanted runs.
    host.end_agent(Signal::SIGTERM);
    host.start_agent();
    let again = host.wait_ready("plain");
    assert_eq!(again["metadata"]["uid"], first["metadata"]["uid"]);
    host.wait_ready("critical");
    host.finish();
}

// ACT-11 CFG-06 STAT-20 STAT-12
#[test]
fn stopped_pods_start_with_the_next_agent() {
    if !host::able() {
        return;
    }
    let mut host = Host::start(&[]);
    host.pod(
        "again",
        json!({"containers": [sh("main", &format!("echo life; {IDLE}"))]}),
    );
    host.pod(
        "done",
        json!({"restartPolicy": "Never", "containers": [sh("main", "exit 3")]}),
    );
    let first = host.wait_ready("again");
    host.wait_phase("done", "Failed");
    let agent = host.agent_pid();
    host.ok(&["stop", "--all"]);
    host.wait_process_gone(agent);
    host.reap_agent();
    host.until("nothing is left", |host| {
        let left = host.left();
        (left.is_empty(), left.join("\n"))
    });
    host.start_agent();
    let second = host.wait_ready("again");
    let main = status_of(&second, "main");
    assert_eq!(second["metadata"]["uid"], first["metadata"]["uid"]);
    assert_eq!(main["restartCount"], 1, "{main}");
    assert_eq!(
        main["lastState"]["terminated"]["containerID"],
        status_of(&first, "main")["containerID"],
        "{main}"
    );
    // It is ready as soon as its process is there.
    host.until("it says that it lives, once", |host| {
        let log = host.ok(&["logs", &full("again")]);
        (log == "life\n", log)
    });
    let done = host.wait_phase("done", "Failed");
    let end = &status_of(&done, "main")["state"]["terminated"];
    assert_eq!(end["exitCode"], 3, "{done}");
    host.finish();
}
