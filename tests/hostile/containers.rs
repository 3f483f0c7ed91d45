//! Containers that write without end, fill what they are given, fork without end and do not listen.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read as _;
use std::path::Path;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::bystander::Bystander;
use crate::host::{self, Host, IDLE, full, sh, status_of, with};

/// Most memory that the agent may have used beside such containers, KiB.
const MAX_PEAK_KIB: u64 = 32 * 1024;
/// Most processes of one pod here.
const PIDS: u64 = 64;
/// Log files of one container here, and the size at which one is rotated.
const LOG_FILES: u64 = 3;
const LOG_BYTES: u64 = 1 << 20;

fn container(script: &str, more: Value) -> Value {
    json!({"containers": [with(sh("main", script), more)]})
}

fn log_dir(host: &Host, name: &str, pod: &Value) -> std::path::PathBuf {
    let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
    host.path("logs")
        .join(format!("default_{}_{uid}", full(name)))
        .join("main")
}

// LOG-05 LOG-06 TMSG-01 RTM-05
#[test]
fn what_a_container_does_without_end() {
    if !host::able() {
        return;
    }
    let config = std::env::temp_dir().join(format!("picolet-hostile-{}.yaml", std::process::id()));
    let text = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ncontainerLogMonitorInterval: 3s\n";
    fs::write(&config, text).expect("configuration");
    let host = Host::start(&[
        "--config",
        &config.display().to_string(),
        "--file-check-frequency",
        "2s",
        "--pod-max-pids",
        &PIDS.to_string(),
        "--container-log-max-size",
        &LOG_BYTES.to_string(),
        "--container-log-max-files",
        &LOG_FILES.to_string(),
    ]);
    let good = Bystander::start(&host, MAX_PEAK_KIB);
    // One line that never ends, as fast as a fiftieth of a processor writes it.
    let slow = json!({"resources": {"limits": {"cpu": "20m"}}});
    host.pod("talker", container("exec cat /dev/zero", slow));
    let talker = host.wait_ready("talker");
    let logs = log_dir(&host, "talker", &talker);
    // A copy of a full file has no room beside the others: nothing is compressed, and no more is on the disk.
    let mut seen = BTreeSet::new();
    host.until("its log is rotated", |_| {
        let files: Vec<_> = fs::read_dir(&logs)
            .into_iter()
            .flatten()
            .flatten()
            .collect();
        let bytes: u64 = files
            .iter()
            .filter_map(|f| Some(f.metadata().ok()?.len()))
            .sum();
        assert!(bytes <= LOG_FILES * LOG_BYTES, "{bytes} bytes of logs");
        seen.extend(files.iter().map(|f| f.file_name()));
        (seen.len() >= 6 && files.len() == 3, format!("{seen:?}"))
    });
    good.forget_peak();
    let shown = host.ok(&["logs", &full("talker"), "--tail", "1"]);
    assert!(shown.len() <= 20_000, "{} bytes of one record", shown.len());
    let uid = |pod: &Value| {
        pod["metadata"]["uid"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    let (_, shim) = {
        let main = host.get("talker");
        let id = status_of(&main, "main")["containerID"].as_str();
        host.pids_of(id.unwrap_or_default())
    };
    let memory = fs::read_to_string(format!("/proc/{shim}/status")).expect("status");
    let memory = memory.lines().find_map(|l| l.strip_prefix("RssAnon:"));
    let memory = memory.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok());
    assert!(
        memory.is_some_and(|kib| kib <= 256),
        "its shim uses {memory:?} KiB"
    );
    good.is_untouched(&host, "an endless line");
    host.remove("talker.yaml");
    host.wait_gone("talker");
    // A client that asks for all of an endless output, and does not read it.
    good.forget_peak();
    let mut client = host
        .command(&["exec", &full("good"), "--", "cat", "/dev/zero"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("picolet");
    let mut begin = vec![0; 1 << 20];
    let mut out = client.stdout.take().expect("a pipe");
    out.read_exact(&mut begin).expect("zeros");
    good.is_untouched(&host, "a client that does not read");
    client.kill().expect("kill");
    client.wait().expect("wait");
    host.until("what it started ends", |host| {
        let running = host.exec("good", "main", "ps -o args");
        (!running.contains("cat /dev/zero"), running)
    });

    // Words without end for the reason of its end.
    good.forget_peak();
    let mut flood = container(
        "tr '\\0' x < /dev/zero | head -c 50000000 > /dev/termination-log; exit 3",
        json!({}),
    );
    flood["restartPolicy"] = "Never".into();
    host.pod("flood", flood);
    let pod = host.wait_phase("flood", "Failed");
    let end = &status_of(&pod, "main")["state"]["terminated"];
    let message = end["message"].as_str().unwrap_or_default();
    assert_eq!((message.len(), &end["exitCode"]), (4096, &json!(3)));
    good.is_untouched(&host, "a long farewell");
    host.remove("flood.yaml");
    host.wait_gone("flood");

    // A volume in memory is full when it is full.
    good.forget_peak();
    host.pod(
        "filler",
        json!({
            "containers": [with(
                sh("main", &format!("cat /dev/zero > /v/f; stat -c %s /v/f; {IDLE}")),
                json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]}),
            )],
            "volumes": [{"name": "v", "emptyDir": {"medium": "Memory", "sizeLimit": "4Mi"}}]
        }),
    );
    host.wait_ready("filler");
    host.until("it says so", |host| {
        let log = host.ok(&["logs", &full("filler")]);
        let told = log.contains("No space left on device") && log.contains("4194304");
        (told, log)
    });
    good.is_untouched(&host, "a full volume in memory");
    host.remove("filler.yaml");
    host.wait_gone("filler");

    // Forks without end, and none of them listens.
    if !["/sys/fs/cgroup/pids", "/sys/fs/cgroup/cgroup.controllers"]
        .iter()
        .any(|p| Path::new(p).exists())
    {
        skipped!("host has no pids controller: nothing holds a container that forks without end");
    } else {
        good.forget_peak();
        // A shell that cannot fork ends. The first process forks no more, so the container goes on, and reaps nobody, so that who has
        // ended still counts.
        let bomb = "trap '' TERM INT HUP; f() { while :; do f & done; }; setsid sleep 1000 & f & exec sleep 1000";
        let mut pod = container(bomb, json!({"resources": {"limits": {"cpu": "200m"}}}));
        pod["terminationGracePeriodSeconds"] = 1.into();
        host.pod("forker", pod);
        let pod = host.wait_phase("forker", "Running");
        let group = pids_of(&uid(&pod));
        host.until("its processes are as many as they may be", |_| {
            let n = number(&group.join("pids.current"));
            (n == PIDS, format!("{n} in {}", group.display()))
        });
        good.is_untouched(&host, "forks without end");
        host.remove("forker.yaml");
        host.wait_gone("forker");
        host.until("all of them are gone", |_| (!group.exists(), String::new()));
        good.is_untouched(&host, "after the forks");
    }
    fs::remove_file(&config).expect("configuration");
    host.finish();
}

/// The pod's cgroup of the hierarchy that counts processes.
fn pids_of(uid: &str) -> std::path::PathBuf {
    let find = format!(
        "find /sys/fs/cgroup/pids /sys/fs/cgroup -maxdepth 6 -type d -name 'pod{uid}' 2>/dev/null | head -n 1"
    );
    let found = std::process::Command::new("sh")
        .args(["-c", &find])
        .output();
    host::text(&found.expect("find").stdout).trim().into()
}

fn number(file: &Path) -> u64 {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.trim().parse().unwrap_or(0)
}
