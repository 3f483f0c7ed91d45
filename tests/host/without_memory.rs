//! A machine whose kernel has the memory controller switched off, as the firmware of a Raspberry Pi does.

use std::path::Path;

use serde_json::json;

use crate::host::{Host, IDLE, able, full, sh, with};

/// Where the kernel has it with version 1.
const CONTROLLER: &str = "/sys/fs/cgroup/memory";
/// Runs its arguments as if it was off; the agent refuses to run in another mount namespace than PID 1, which is this shell.
const OFF: &str = "umount /sys/fs/cgroup/memory && { \"$@\" & wait $!; }";

#[test]
fn pods_run_and_a_limit_that_cannot_be_held_is_told() {
    // QEMU-22
    if !able() {
        return;
    }
    if !Path::new(CONTROLLER).is_dir() {
        skipped!("without_memory needs {CONTROLLER}; `cargo xtask board` shows it with version 2");
        return;
    }
    let mut host = Host::new(&[]);
    let words = ["unshare", "--mount", "--pid", "--fork", "--mount-proc"];
    let words = words.into_iter().chain(["sh", "-c", OFF, "sh"]);
    host.inside = words.map(str::to_owned).collect();
    host.start_agent();
    host.import();
    let limited = with(
        sh("main", IDLE),
        json!({"resources": {"limits": {"memory": "64Mi"}}}),
    );
    host.pod("limited", json!({"containers": [limited]}));
    host.pod("plain", json!({"containers": [sh("main", IDLE)]}));
    host.wait_ready("plain");
    host.wait_pod("limited", "told", |_| {
        let told = host.ok(&["describe", "pod", &full("limited")]);
        told.contains("memory") && told.contains("kernel command line")
    });
    assert!(host.agent_log().contains("controllers are missing: memory"));
    host.remove("limited.yaml");
    host.finish();
}
