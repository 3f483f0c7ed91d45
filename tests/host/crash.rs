//! Containers that end: restarts, back-off, restart policies, phases and exit codes.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::host::{self, Host, IDLE, full, sh, status_of, text, with};

// ACT-33 ACT-38 ACT-40 BACK-01 BACK-02 BACK-06 RTM-05 STAT-08 STAT-20 WAIT-01 WAIT-20 CFG-06 LOG-05 EVT-12
#[test]
fn killed_container_is_restarted_then_delayed() {
    if !host::able() {
        return;
    }
    let host = Host::start(&[]);
    host.pod(
        "crash",
        json!({"containers": [
            sh("victim", &format!("echo life; {IDLE}")),
            sh("witness", IDLE),
        ]}),
    );
    let before = host.wait_ready("crash");
    let witness = host.pid("crash", "witness");
    let life = |n: u64| {
        host.wait_pod("crash", &format!("restart {n}"), |pod| {
            let victim = status_of(pod, "victim");
            victim["restartCount"] == n && victim["ready"] == true
        })
    };
    let strike = || {
        let pid = host.pid("crash", "victim");
        kill(Pid::from_raw(pid), Signal::SIGKILL).expect("kill");
        host.wait_process_gone(pid);
    };
    strike();
    let second = life(1);
    let victim = status_of(&second, "victim");
    let last = &victim["lastState"]["terminated"];
    assert_eq!(last["exitCode"], 137, "{victim}");
    assert_eq!(last["reason"], "Error", "{victim}");
    assert_eq!(
        last["containerID"],
        status_of(&before, "victim")["containerID"]
    );
    assert_ne!(victim["containerID"], last["containerID"]);
    assert_eq!(
        host.ok(&["logs", "-p", &full("crash"), "-c", "victim"]),
        "life\n"
    );
    // The second time it has to wait, for ten seconds; the pod stays Running, and not ready.
    strike();
    let waiting = host.wait_pod("crash", "back-off", |pod| {
        status_of(pod, "victim")["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    });
    let victim = status_of(&waiting, "victim");
    let message = victim["state"]["waiting"]["message"]
        .as_str()
        .unwrap_or_default();
    let wanted = "back-off 10s restarting failed container=victim pod=crash-node_default";
    assert!(message.starts_with(wanted), "{message}");
    assert_eq!(victim["ready"], false);
    assert_eq!(victim["restartCount"], 1);
    assert_eq!(waiting["status"]["phase"], "Running");
    let table = host.ok(&["get", "pods", "--no-headers"]);
    assert!(
        table.contains("1/2") && table.contains("CrashLoopBackOff"),
        "{table}"
    );
    // What its last instance said is shown while it waits.
    assert_eq!(host.ok(&["logs", &full("crash"), "-c", "victim"]), "life\n");
    assert!(
        host.agent_log()
            .contains("BackOff: Back-off restarting failed container victim")
    );
    let third = life(2);
    let seconds = |value: &Value| {
        picolet::api::WallTime::parse(value.as_str().unwrap_or_default())
            .expect("a time")
            .unix_seconds()
    };
    let victim = status_of(&third, "victim");
    let waited = seconds(&victim["state"]["running"]["startedAt"])
        - seconds(&victim["lastState"]["terminated"]["finishedAt"]);
    assert!((9..30).contains(&waited), "restarted after {waited} s");
    assert_eq!(
        host.pid("crash", "witness"),
        witness,
        "its neighbour never noticed"
    );
    // Once waiting, a pod can still be ended.
    strike();
    host.remove("crash.yaml");
    host.wait_gone("crash");
    host.finish();
}

/// What a container does, the pod's restart policy, and how the pod ends.
const OUTCOMES: [(&str, &str, &str, &str, u64, i64); 6] = [
    ("never-0", "Never", "exit 0", "Succeeded", 0, 0),
    ("never-3", "Never", "exit 3", "Failed", 0, 3),
    (
        "never-kill",
        "Never",
        "kill -TERM 0; exit 9",
        "Failed",
        0,
        9,
    ),
    ("onfailure-0", "OnFailure", "exit 0", "Succeeded", 0, 0),
    // Fails once, then succeeds: the file is the pod's, not the container's.
    (
        "onfailure-1",
        "OnFailure",
        "test -e /keep/x && exit 0; touch /keep/x; exit 1",
        "Succeeded",
        1,
        0,
    ),
    ("never-absent", "Never", "", "Failed", 0, 128),
];

// STAT-01 STAT-09 STAT-12 STAT-43 STAT-44 ACT-39 ACT-40 WAIT-20 RTM-03 RTM-05 SYNC-02 SYNC-27 PW-25 TMSG-01 TMSG-02
#[test]
fn restart_policies() {
    if !host::able() {
        return;
    }
    let host = Host::start(&[]);
    for (name, policy, script, ..) in OUTCOMES {
        let mut main = with(
            sh("main", script),
            json!({"volumeMounts": [{"name": "keep", "mountPath": "/keep"}]}),
        );
        if script.is_empty() {
            main["command"] = json!(["/no/such/program"]);
        }
        host.pod(
            name,
            json!({
                "restartPolicy": policy,
                "containers": [main],
                "volumes": [{"name": "keep", "emptyDir": {}}]
            }),
        );
    }
    // An init container that fails for good: nothing after it runs.
    host.pod(
        "init-fails",
        json!({
            "restartPolicy": "Never",
            "initContainers": [with(sh("first", "echo the reason; exit 5"), json!({"terminationMessagePolicy": "FallbackToLogsOnError"})), sh("second", "true")],
            "containers": [sh("main", "true")]
        }),
    );
    // One that fails once is run again under Always; the sidecar does not keep a finished pod alive.
    host.pod(
        "init-again",
        json!({
            "restartPolicy": "OnFailure",
            "initContainers": [
                with(
                    sh("first", "test -e /keep/x && exit 0; touch /keep/x; exit 1"),
                    json!({"volumeMounts": [{"name": "keep", "mountPath": "/keep"}]}),
                ),
                with(sh("side", IDLE), json!({"restartPolicy": "Always"})),
            ],
            "containers": [sh("main", "echo done > /dev/termination-log")],
            "volumes": [{"name": "keep", "emptyDir": {}}]
        }),
    );
    for (name, _, _, phase, restarts, code) in OUTCOMES {
        let pod = host.wait_phase(name, phase);
        let main = status_of(&pod, "main");
        let end = &main["state"]["terminated"];
        assert_eq!(main["restartCount"], restarts, "{name}: {main}");
        assert_eq!(end["exitCode"], code, "{name}: {main}");
        let reason = match code {
            0 => "Completed",
            128 => "StartError",
            _ => "Error",
        };
        assert_eq!(end["reason"], reason, "{name}: {main}");
        let (ready, why) = condition(&pod, "Ready");
        let wanted = if phase == "Failed" {
            "PodFailed"
        } else {
            "PodCompleted"
        };
        assert_eq!((ready.as_str(), why.as_str()), ("False", wanted), "{name}");
    }
    let pod = host.wait_phase("init-fails", "Failed");
    let first = status_of(&pod, "first");
    assert_eq!(first["state"]["terminated"]["exitCode"], 5, "{first}");
    assert_eq!(
        first["state"]["terminated"]["message"], "the reason\n",
        "{first}"
    );
    for never in ["second", "main"] {
        let waits = status_of(&pod, never);
        assert_eq!(
            waits["state"]["waiting"]["reason"], "PodInitializing",
            "{waits}"
        );
    }
    assert_eq!(condition(&pod, "Initialized").0, "False");
    let pod = host.wait_phase("init-again", "Succeeded");
    let first = status_of(&pod, "first");
    assert_eq!(first["restartCount"], 1, "{first}");
    let main = status_of(&pod, "main");
    assert_eq!(main["state"]["terminated"]["message"], "done\n", "{main}");
    // The sidecar is stopped with its pod.
    let pod = host.wait_pod("init-again", "sidecar ended", |pod| {
        status_of(pod, "side")["state"]["terminated"].is_object()
    });
    assert_eq!(
        status_of(&pod, "side")["state"]["terminated"]["exitCode"],
        0
    );
    // A finished pod can still be read.
    assert_eq!(
        host.ok(&["logs", &full("init-fails"), "-c", "first"]),
        "the reason\n"
    );
    let table = host.ok(&["get", "pods", "--no-headers"]);
    let row = |name: &str| {
        table.lines().find(|l| l.starts_with(&full(name))).map(|l| {
            l.split_whitespace()
                .take(3)
                .skip(1)
                .collect::<Vec<_>>()
                .join(" ")
        })
    };
    assert_eq!(row("never-0").as_deref(), Some("0/1 Completed"), "{table}");
    assert_eq!(row("never-3").as_deref(), Some("0/1 Error"), "{table}");
    assert_eq!(
        row("init-fails").as_deref(),
        Some("0/1 Init:Error"),
        "{table}"
    );
    host.finish();
}

// IMG-04 WAIT-02 WAIT-10 WAIT-13 SEC-03 VOL-07 VOL-15 ENV-03 STAT-04 CFG-35
#[test]
fn containers_that_cannot_start_say_why() {
    if !host::able() {
        return;
    }
    let host = Host::start(&[]);
    let one = |more: Value| json!({"containers": [with(sh("main", IDLE), more)]});
    host.pod(
        "absent",
        one(json!({"image": "localhost/absent:1", "imagePullPolicy": "Never"})),
    );
    host.pod("pull", one(json!({"image": "localhost/absent:2"})));
    host.pod("name", one(json!({"image": "Upper:1"})));
    host.pod(
        "root",
        one(json!({"securityContext": {"runAsNonRoot": true}})),
    );
    host.pod(
        "key",
        one(json!({"env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "later", "key": "a"}}}]})),
    );
    let waits = |pod: &str, reasons: &[&str], part: &str| {
        host.wait_pod(pod, &format!("{reasons:?}"), |pod| {
            let waiting = &status_of(pod, "main")["state"]["waiting"];
            let message = waiting["message"].as_str().unwrap_or_default();
            reasons.iter().any(|r| waiting["reason"] == *r)
                && message.contains(part)
                && pod["status"]["phase"] == "Pending"
        })
    };
    waits("absent", &["ErrImageNeverPull"], "localhost/absent:1");
    waits(
        "pull",
        &["ErrImagePull", "ImagePullBackOff"],
        "localhost/absent:2",
    );
    waits("name", &["InvalidImageName"], "Upper:1");
    waits("root", &["CreateContainerConfigError"], "runAsNonRoot");
    waits("key", &["CreateContainerConfigError"], "later");
    let logs = host.cli(&["logs", &full("absent")]);
    assert!(
        !logs.status.success() && text(&logs.stderr).contains("waiting to start"),
        "{logs:?}"
    );
    // Each starts once its cause is gone.
    host.write(
        "later.yaml",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: later}\ndata: {a: b}\n",
    );
    host.write_image("images/late.tar", "localhost/absent:1", &json!({}));
    host.wait_ready("key");
    host.wait_ready("absent");
    host.finish();
}

fn condition(pod: &Value, kind: &str) -> (String, String) {
    let all = pod["status"]["conditions"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let one = all
        .into_iter()
        .find(|c| c["type"] == kind)
        .unwrap_or_default();
    let text = |key: &str| one[key].as_str().unwrap_or_default().to_owned();
    (text("status"), text("reason"))
}
