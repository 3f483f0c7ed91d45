//! An agent of an older build and this one, in turn, with the same pods: each goes on with what the other left.
//!
//! The older program is named by `PICOLET_OLDER`; the lane `older build` builds one of an earlier commit.

use std::env;
use std::path::PathBuf;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::host::{self, Host, IDLE, PICOLET, full, sh, status_of, with};
use crate::restart::{COUNTER, all_running, gapless, last_number, processes, same_processes};

/// Names the older program.
const OLDER: &str = "PICOLET_OLDER";
/// Pods that run from the beginning to the end.
const STAYING: [&str; 5] = ["counter", "memory", "sidecar", "probed", "phoenix"];
/// Changes from one build to the other, the first one to this build.
const CHANGES: usize = 4;

// PKG-23 PKG-24
#[test]
#[ignore = "long: needs a program of an older build"]
fn pods_of_an_older_build_and_back() {
    if !host::able() {
        return;
    }
    let older = PathBuf::from(env::var_os(OLDER).expect("PICOLET_OLDER names a program"));
    let programs = [PathBuf::from(PICOLET), older];
    let mut host = Host::new(&[]);
    host.program.clone_from(&programs[1]);
    host.start_agent();
    host.import();
    begin(&host);
    all_running(&host, STAYING.len());
    let done = host.wait_phase("done", "Failed");
    let mut counted = last_number(&host);
    for change in 0..CHANGES {
        let before = processes(&host);
        let signal = [Signal::SIGKILL, Signal::SIGTERM][change / 2];
        host.end_agent(signal);
        // Ends while nobody watches: the shim of the one build tells the agent of the other.
        let phoenix = before[&full("phoenix")].0;
        kill(Pid::from_raw(phoenix), Signal::SIGKILL).expect("kill");
        host.wait_process_gone(phoenix);
        host.program.clone_from(&programs[change % 2]);
        host.start_agent();

        let lives = change + 1;
        host.wait_pod("phoenix", "restarted", |pod| {
            let main = status_of(pod, "main");
            main["restartCount"] == lives && main["ready"] == true
        });
        same_processes(&host, &before, &[&full("phoenix")]);
        counted = gapless(&host, counted);
        for name in ["sidecar", "probed", "memory"] {
            let pod = host.wait_ready(name);
            assert_eq!(status_of(&pod, "main")["restartCount"], 0, "{pod}");
        }
        assert_eq!(host.exec("memory", "main", "cat /m/x"), "kept\n");
        // The end that the first one saw is what each one tells.
        let still = host.wait_phase("done", "Failed");
        assert_eq!(end(&still), end(&done), "change {change}");
        // What this one begins, the next one goes on with; what the one before began, ends here.
        let name = format!("of-{change}");
        host.pod(&name, json!({"containers": [sh("main", IDLE)]}));
        host.wait_ready(&name);
        if change > 0 {
            let last = format!("of-{}", change - 1);
            host.remove(&format!("{last}.yaml"));
            host.wait_gone(&last);
        }
    }
    host.program.clone_from(&programs[0]);
    host.finish();
}

fn begin(host: &Host) {
    host.pod("counter", json!({"containers": [sh("main", COUNTER)]}));
    host.pod("phoenix", json!({"containers": [sh("main", IDLE)]}));
    host.pod(
        "memory",
        json!({
            "containers": [with(sh("main", &format!("echo kept > /m/x; {IDLE}")), json!({"volumeMounts": [{"name": "m", "mountPath": "/m"}]}))],
            "volumes": [{"name": "m", "emptyDir": {"medium": "Memory"}}]
        }),
    );
    host.pod(
        "sidecar",
        json!({
            "initContainers": [sh("first", "exit 0"), with(sh("side", IDLE), json!({"restartPolicy": "Always"}))],
            "containers": [with(sh("main", IDLE), json!({"resources": {"limits": {"memory": "64Mi", "cpu": "500m"}}}))]
        }),
    );
    let probe = json!({"exec": {"command": ["true"]}, "periodSeconds": 1});
    host.pod(
        "probed",
        json!({"containers": [with(sh("main", IDLE), json!({"livenessProbe": probe, "readinessProbe": probe}))]}),
    );
    host.pod(
        "done",
        json!({"restartPolicy": "Never", "containers": [sh("main", "exit 3")]}),
    );
}

fn end(pod: &Value) -> &Value {
    let end = &status_of(pod, "main")["state"]["terminated"];
    assert_eq!(end["exitCode"], 3, "{pod}");
    end
}
