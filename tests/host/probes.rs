//! Probes of real containers: by HTTP, TCP and command, and hooks by HTTP.

use serde_json::{Value, json};

use crate::host::{self, Host, IDLE, sh, status_of, with};

/// A page at /ok, on port 8080.
const SERVER: &str =
    "mkdir /w; echo yes > /w/ok; trap 'exit 0' TERM; httpd -f -p 8080 -h /w & wait $!";

fn ready(pod: &Value, container: &str) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    let of_pod = conditions
        .into_iter()
        .flatten()
        .find(|c| c["type"] == "Ready");
    let all = of_pod.is_some_and(|c| c["status"] == "True");
    let own = status_of(pod, container)["ready"] == true;
    assert_eq!(all, own, "{pod}");
    own
}

fn restarts(pod: &Value, container: &str) -> u64 {
    status_of(pod, container)["restartCount"]
        .as_u64()
        .unwrap_or(0)
}

// PROBE-09 PROBE-12 PROBE-20 PROBE-22 PROBE-24 PROBE-30 PROBE-31 PROBE-41 EVT-16 EVT-17
#[test]
fn what_answers_is_ready_and_what_does_not_is_killed() {
    if !host::able() {
        return;
    }
    let host = Host::start(&[]);
    let http = json!({"httpGet": {"path": "/ok", "port": "web"}, "periodSeconds": 1, "failureThreshold": 1});
    let tcp = json!({"tcpSocket": {"port": 8080}, "periodSeconds": 1, "failureThreshold": 1000});
    let web = with(
        sh("main", SERVER),
        json!({"ports": [{"name": "web", "containerPort": 8080}], "readinessProbe": http, "livenessProbe": tcp}),
    );
    host.pod("web", json!({"containers": [web]}));
    let command = |words: &str, failures: u32| json!({"exec": {"command": ["sh", "-c", words]}, "periodSeconds": 1, "failureThreshold": failures});
    // A command of a probe is a process that a busy machine may be slow to start. These two are to find what they look for.
    let patient =
        |words: &str, failures: u32| with(command(words, failures), json!({"timeoutSeconds": 10}));
    let slow = with(
        sh("main", IDLE),
        json!({
            "startupProbe": patient("test -e /tmp/started", 1000),
            "livenessProbe": patient("test -e /tmp/started || { echo not well; exit 3; }", 2),
            "readinessProbe": command("sleep 100 & echo $! > /tmp/pid; test -e /tmp/ready && exit 0; wait", 1),
        }),
    );
    host.pod(
        "slow",
        json!({"containers": [slow], "terminationGracePeriodSeconds": 1}),
    );

    host.wait_ready("web");
    host.exec("web", "main", "mv /w/ok /w/away");
    host.wait_pod("web", "is not ready", |pod| !ready(pod, "main"));
    host.exec("web", "main", "mv /w/away /w/ok");
    let pod = host.wait_pod("web", "is ready again", |pod| ready(pod, "main"));
    assert_eq!(restarts(&pod, "main"), 0);
    // Stopped, it neither answers nor refuses.
    host.exec("web", "main", "kill -STOP $(pidof httpd)");
    host.wait_pod("web", "is silent", |pod| !ready(pod, "main"));
    host.exec("web", "main", "kill -CONT $(pidof httpd)");
    host.wait_pod("web", "goes on", |pod| ready(pod, "main"));

    let pod = host.get("slow");
    let shown = status_of(&pod, "main").clone();
    assert_eq!(shown["started"], false, "{shown}");
    host.exec("slow", "main", "touch /tmp/started");
    host.wait_pod("slow", "has started", |pod| {
        status_of(pod, "main")["started"] == true
    });
    host.until("its probe takes too long", |host| {
        let log = host.agent_log();
        (log.contains("command timed out"), log)
    });
    let pod = host.get("slow");
    assert!(!ready(&pod, "main"), "its probe takes too long");
    host.exec("slow", "main", "touch /tmp/ready");
    host.wait_pod("slow", "is ready", |pod| ready(pod, "main"));
    host.exec("slow", "main", "rm /tmp/started");
    let pod = host.wait_pod("slow", "runs again", |pod| {
        restarts(pod, "main") == 1 && status_of(pod, "main")["state"]["running"].is_object()
    });
    assert_eq!(status_of(&pod, "main")["started"], false);

    let log = host.agent_log();
    for text in [
        "Readiness probe failed: HTTP probe failed with statuscode: 404",
        "Liveness probe failed: not well",
        "Container main failed liveness probe, will be restarted",
    ] {
        assert!(log.contains(text), "{text}: {log}");
    }
    host.remove("web.yaml");
    host.remove("slow.yaml");
    host.wait_gone("web");
    host.wait_gone("slow");
    host.finish();
}
