//! A machine whose root is mounted read-only, as PID 1 of it sees it: nothing else than what the flags name is written to.

use std::process::Command;

use serde_json::json;

use crate::host::{Host, IDLE, PICOLET, able, full, sh, text, with};

/// Runs its arguments where everything is read-only but the directory named first; the agent refuses to run in another mount
/// namespace than PID 1, which is this shell.
const READ_ONLY: &str = r#"
set -e
base=${1%/}; shift
mount --rbind "$base" "$base"
grep -q ' /run ' /proc/self/mounts || mount -t tmpfs none /run
# /var and /tmp may be mounts of their own. One that lies below another cannot be reached, and does not matter.
while read -r _ at _; do
    at=$(printf %b "$at")
    case $at in "$base" | "$base"/* | /run | /run/* | /proc | /proc/* | /sys | /sys/* | /dev | /dev/*) continue ;; esac
    mount -o remount,bind,ro "$at" 2>/dev/null || true
done </proc/self/mounts
for dir in /etc /var/lib /tmp; do
    if touch $dir/picolet-probe 2>/dev/null; then
        rm -f $dir/picolet-probe
        echo "$dir is not read-only"
        exit 99
    fi
done
"$@" &
wait $!
"#;

fn inside(host: &Host) -> Vec<String> {
    let base = host.path("").display().to_string();
    [
        &["unshare", "--mount", "--pid", "--fork", "--mount-proc"][..],
        &["sh", "-c", READ_ONLY, "sh", &base],
    ]
    .concat()
    .iter()
    .map(|&word| word.to_owned())
    .collect()
}

#[test]
fn a_pod_runs_and_only_what_was_named_is_written() {
    // SVC-20
    if !able() {
        return;
    }
    let mut host = Host::new(&[]);
    host.inside = inside(&host);
    host.start_agent();
    host.import();
    let container = with(
        sh("main", &format!("echo kept > /v/x; {IDLE}")),
        json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]}),
    );
    host.pod(
        "web",
        json!({"containers": [container], "volumes": [{"name": "v", "emptyDir": {}}]}),
    );
    host.wait_phase("web", "Running");
    assert_eq!(
        host.exec("web", "main", "cat /v/x; echo >> /etc/hosts"),
        "kept\n"
    );
    let events = host.ok(&["describe", "pod", &full("web")]);
    for trace in ["Read-only file system", "read-only file system", "EROFS"] {
        assert!(!events.contains(trace), "{events}");
        assert!(!host.agent_log().contains(trace), "{}", host.agent_log());
    }
    host.finish();
}

#[test]
fn what_cannot_be_written_is_named_before_the_first_pod() {
    // SVC-20
    if !able() {
        return;
    }
    let host = Host::new(&[]);
    let words = inside(&host);
    let check = |flags: &[&str]| {
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).arg(PICOLET).arg("check");
        let output = command.args(flags).output().expect("started");
        text(&output.stdout) + &text(&output.stderr)
    };
    let line = |said: &str, name: &str| {
        let mut lines = said.lines();
        let found = lines.find(|line| line.split_whitespace().nth(1) == Some(name));
        found.unwrap_or_else(|| panic!("{name}: {said}")).to_owned()
    };
    let said = check(&[
        "--root-dir=/var/lib/nowhere",
        "--cert-dir=/etc/nowhere",
        "--kubeconfig=/etc/nowhere/kubelet.conf",
    ]);
    let found = line(&said, "read-only");
    assert!(
        found.starts_with("ERROR")
            && found.contains("/var/lib/nowhere, /var/log/pods")
            && found.contains("more are read-only"),
        "{found}"
    );
    assert!(said.contains("another directory with --root-dir"), "{said}");
    // Each of them can be elsewhere.
    let at = |name: &str| host.path(name).display().to_string();
    let moved = [
        ("--root-dir", "root"),
        ("--run-dir", "run"),
        ("--pod-logs-dir", "logs"),
        ("--container-log-dir", "links"),
        ("--cert-dir", "root/pki"),
        ("--bootstrap-kubeconfig", "root/bootstrap.conf"),
        ("--kubeconfig", "root/kubelet.conf"),
    ]
    .map(|(flag, name)| format!("{flag}={}", at(name)));
    let all: Vec<&str> = moved.iter().map(String::as_str).collect();
    let found = line(&check(&all), "read-only");
    assert!(found.starts_with("ok"), "{found}");
    // One that is not.
    for (left, named) in [
        ("--cert-dir", "/etc/nowhere"),
        ("--kubeconfig", "/etc/nowhere"),
        ("--container-log-dir", "/var/log/containers"),
        ("--run-dir", "/opt/nowhere"),
    ] {
        let elsewhere = match left {
            "--kubeconfig" => "--kubeconfig=/etc/nowhere/kubelet.conf",
            "--cert-dir" => "--cert-dir=/etc/nowhere",
            "--run-dir" => "--run-dir=/opt/nowhere",
            _ => "--container-log-dir=/var/log/containers",
        };
        let mut words: Vec<&str> = all
            .iter()
            .copied()
            .filter(|w| !w.starts_with(left))
            .collect();
        words.push(elsewhere);
        let said = check(&words);
        let found = line(&said, "read-only");
        assert!(
            found.starts_with("ERROR") && found.contains(named),
            "{left}: {found}"
        );
        assert!(
            said.contains(&format!("another directory with {left}")),
            "{said}"
        );
    }
    host.dismantle().expect("only empty things are left");
}
