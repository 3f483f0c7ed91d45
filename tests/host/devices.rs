//! A device of the machine in a container that may do nothing else: of uid 1000, with the default capabilities, not privileged.
//!
//! The machine is a directory whose `dev` has one node: of a device that can be read, and that no container may use by itself.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;

use nix::sys::signal::Signal;
use nix::sys::stat::{Mode, SFlag, mknod};
use serde_json::{Value, json};

use crate::host::{self, Host, IDLE, full, sh, status_of, with};

/// Four bytes: how long the processor may take to wake up.
pub(crate) const DEVICE: &str = "/dev/cpu_dma_latency";
/// What every such agent has; `ROOT` is the machine.
const HEAD: &str = "\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
evictionHard: {memory.available: 1Mi}
imageGCHighThresholdPercent: 100
picolet:
  deviceRoot: ROOT
";
const CONFIG: &str = r#"  devices:
  - resource: serial
    match: {path: "/dev/serial/by-id/*"}
    containerPath: /dev/line
    env: LINE
    onReplug: restart
  - resource: example.com/none
    match: {path: /dev/nothing}
"#;

const LIVE: &str = r#"  devices:
  - resource: serial
    match: {path: "/dev/serial/by-id/*"}
    count: 2
    live: true
    containerPath: /dev/lines
    env: LINES
"#;

/// Reads the line, says so, and goes on; without it, it fails.
fn reader() -> Value {
    let script = format!("id -u; od -An -tu4 -N4 $LINE || exit 1; echo read; {IDLE}");
    let container = with(
        sh("main", &script),
        json!({"resources": {"limits": {"picolet/serial": 1}}, "securityContext": {"runAsUser": 1000}}),
    );
    json!({"containers": [container]})
}

fn plug(host: &Host, device: &str) {
    let dev = host.path("machine/dev");
    let number = fs::metadata(device).expect("device").rdev();
    let node = dev.join("ttyFAKE0");
    mknod(&node, SFlag::S_IFCHR, Mode::empty(), number).expect("node");
    fs::set_permissions(&node, fs::Permissions::from_mode(0o660)).expect("mode");
    symlink("../../ttyFAKE0", dev.join("serial/by-id/usb-fake")).expect("link");
}

fn unplug(host: &Host) {
    let dev = host.path("machine/dev");
    fs::remove_file(dev.join("serial/by-id/usb-fake")).expect("link");
    fs::remove_file(dev.join("ttyFAKE0")).expect("node");
}

fn events(host: &Host, reason: &str) -> usize {
    let list = host.ok(&["get", "events", "-A", "-o", "json"]);
    let list: Value = serde_json::from_str(&list).expect("events");
    let all = list["items"].as_array().expect("items").iter();
    all.filter(|e| e["reason"] == reason).count()
}

pub(crate) fn units(host: &Host) -> Vec<Value> {
    let list = host.ok(&["get", "devices", "-o", "json"]);
    let list: Value = serde_json::from_str(&list).expect("devices");
    list["items"].as_array().expect("items").clone()
}

pub(crate) fn waits(host: &Host, name: &str) {
    host.wait_pod(name, "waits", |pod| {
        pod["status"]["phase"] == "Pending" && pod["status"]["reason"] == "DeviceNotReady"
    });
}

/// An agent on such a machine, with what else stands below `picolet`; `None` where that cannot be.
pub(crate) fn start(config: &str, devices: &[&str]) -> Option<Host> {
    if !host::able() {
        return None;
    }
    if let Some(missing) = devices.iter().find(|device| !Path::new(device).exists()) {
        skipped!("devices need {missing}");
        return None;
    }
    let mut host = Host::new(&[]);
    let file = host.path("config.yaml");
    let root = host.path("machine");
    fs::create_dir_all(root.join("dev/serial/by-id")).expect("directory");
    let text = format!("{HEAD}{config}").replace("ROOT", &root.display().to_string());
    fs::write(&file, text).expect("configuration");
    host.flags
        .extend(["--config".into(), file.display().to_string()]);
    host.start_agent();
    host.import();
    Some(host)
}

/// What a container sees of a line: its numbers, owner and permission bits, and whether it can be opened.
fn seen(host: &Host) -> String {
    // A node may go at any moment, also between two of these words.
    let script = "cd /dev/lines; for n in *; do stat -c '%n %t:%T %u %a' $n && (exec 3< $n) && echo open; done 2> /dev/null; true";
    host.exec("live", "main", script)
}

fn numbers(device: &str) -> (u64, u64) {
    let number = fs::metadata(device).expect("device").rdev();
    let (major, minor) = (nix::sys::stat::major(number), nix::sys::stat::minor(number));
    (major, minor)
}

/// As [`seen`] says it of the line while it is this device.
fn usable(device: &str) -> String {
    let (major, minor) = numbers(device);
    format!("usb-fake {major:x}:{minor:x} 1000 660\nopen\n")
}

// DEV-44
#[test]
fn nodes_come_and_go_while_a_container_runs() {
    // The first two are of one major, the third is not.
    let [first, second, other] = [DEVICE, "/dev/fuse", "/dev/tty60"];
    let Some(mut host) = start(LIVE, &[first, second, other]) else {
        return;
    };
    assert_eq!(numbers(first).0, numbers(second).0);
    assert_ne!(numbers(first).0, numbers(other).0);
    plug(&host, first);
    let main = with(
        sh("main", &format!("echo $LINES; {IDLE}")),
        json!({"resources": {"limits": {"picolet/serial": 1}}, "securityContext": {"runAsUser": 1000}}),
    );
    // Another one has it too: of root, and able to make nodes.
    let side = with(
        sh("side", IDLE),
        json!({"resources": {"limits": {"picolet/serial": 1}}}),
    );
    let containers = json!({"containers": [main, side]});
    host.pod("live", containers);
    host.wait_ready("live");
    assert_eq!(
        host.ok(&["logs", &full("live"), "-c", "main"]),
        "/dev/lines\n"
    );
    assert_eq!(seen(&host), usable(first));
    let running = || status_of(&host.get("live"), "main")["containerID"].clone();
    let begun = running();
    let [one, two] = [first, second].map(|device| {
        let (major, minor) = numbers(device);
        format!("c {major} {minor}")
    });
    let script = format!("mknod /one {one}; mknod /two {two}; stat -c '%u %a' /dev/lines/*");
    assert_eq!(host.exec("live", "side", &script), "0 660\n");
    // It may use what it has now, whatever nodes there are.
    let usable_by_side = |host: &Host| {
        let script = "for n in one two; do (exec 3< /$n) 2> /dev/null && echo $n; done; true";
        host.exec("live", "side", script)
    };
    assert_eq!(usable_by_side(&host), "one\n");
    let written = host.exec(
        "live",
        "main",
        "touch /dev/lines/x 2>&1; rm -f /dev/lines/usb-fake 2>&1; echo",
    );
    assert_eq!(written.matches("Read-only").count(), 2, "{written}");

    // It goes, and is back as another one; nothing is restarted for it, with an agent and without.
    unplug(&host);
    host.until("the node is gone", |host| {
        let seen = seen(host);
        (seen.is_empty(), seen)
    });
    host.until("it is told", |host| {
        (events(host, "DeviceLost") == 2, host.agent_log())
    });
    assert_eq!(usable_by_side(&host), "");
    plug(&host, second);
    host.until("the node is back", |host| {
        let seen = seen(host);
        (seen == usable(second), seen)
    });
    assert_eq!(usable_by_side(&host), "two\n");
    assert_eq!(running(), begun);
    host.end_agent(Signal::SIGKILL);
    unplug(&host);
    plug(&host, first);
    host.start_agent();
    host.wait_ready("live");
    host.until("the node is the other one", |host| {
        let seen = seen(host);
        (seen == usable(first), seen)
    });
    let pod = host.get("live");
    let status = status_of(&pod, "main");
    assert_eq!(
        (&status["containerID"], &status["restartCount"]),
        (&begun, &json!(0))
    );

    assert_eq!(usable_by_side(&host), "one\n");

    // A device of another kind is given by a start.
    unplug(&host);
    plug(&host, other);
    host.wait_pod("live", "is started anew", |pod| {
        let status = status_of(pod, "main");
        status["containerID"] != begun && !status["state"]["running"].is_null()
    });
    assert_eq!(seen(&host), usable(other));

    let pods = fs::read_dir(host.path("run/live")).expect("directory");
    assert_eq!(pods.count(), 1);
    host.remove("live.yaml");
    host.wait_gone("live");
    let place = host.path("run/live");
    host.until("nothing is left of it", |_| {
        (!place.exists(), String::new())
    });
    host.finish();
}

// DEV-05 DEV-12 DEV-31 DEV-38 DEV-39 DEV-40 DEV-41 DEV-43
#[test]
fn a_line_for_a_container_without_rights() {
    let Some(mut host) = start(CONFIG, &[DEVICE]) else {
        return;
    };

    // Nothing is plugged in: the pod waits, and no other is concerned.
    host.pod("reader", reader());
    waits(&host, "reader");
    plug(&host, DEVICE);
    host.wait_ready("reader");
    host.until("it has read", |host| {
        let log = host.ok(&["logs", &full("reader")]);
        (log.starts_with("1000\n") && log.ends_with("read\n"), log)
    });
    let node = host.exec("reader", "main", "stat -c '%a %u' /dev/line");
    assert_eq!(node, "660 1000\n");

    // It is the rule that lets it: another container, which may make such a node, cannot use it.
    let (major, minor) = numbers(DEVICE);
    let script =
        format!("mknod /line c {major} {minor} && echo made; cat /line 2>&1; echo done; {IDLE}");
    host.pod("stranger", json!({"containers": [sh("main", &script)]}));
    host.wait_ready("stranger");
    host.until("it has tried", |host| {
        let log = host.ok(&["logs", &full("stranger")]);
        (log.ends_with("done\n"), log)
    });
    let log = host.ok(&["logs", &full("stranger")]);
    let refused = |line: &str| {
        line.starts_with("cat:") && line.contains("/line") && line.ends_with("not permitted")
    };
    assert!(log.lines().any(|line| line == "made"), "{log}");
    assert!(log.lines().any(refused), "{log}");

    // A second pod waits for the first.
    host.pod("second", reader());
    waits(&host, "second");
    let second = host.get("second");
    let message = second["status"]["message"].as_str().unwrap_or_default();
    assert!(
        message.contains(
            "requested number of devices unavailable for picolet/serial. Requested: 1, Available: 0"
        ),
        "{message}"
    );
    let holder = |unit: &Value| unit["holders"][0].as_str().unwrap_or_default().to_owned();
    let all = units(&host);
    assert_eq!(all.len(), 1, "{all:?}");
    let of_reader = format!("default/{}/main", full("reader"));
    assert_eq!(
        (holder(&all[0]), &all[0]["healthy"]),
        (of_reader.clone(), &json!(true))
    );
    let table = host.ok(&["get", "devices"]);
    assert!(
        table.contains("/dev/serial/by-id/usb-fake") && table.contains("Healthy"),
        "{table}"
    );

    // Another agent knows who has it, and restarts nothing.
    let running = status_of(&host.get("reader"), "main")["containerID"].clone();
    host.end_agent(Signal::SIGKILL);
    host.start_agent();
    host.wait_ready("reader");
    waits(&host, "second");
    assert_eq!(
        status_of(&host.get("reader"), "main")["containerID"],
        running
    );
    assert_eq!(holder(&units(&host)[0]), of_reader);

    // Unplugged: it runs on. Back: it is started anew, and reads.
    unplug(&host);
    host.until("it is told", |host| {
        (events(host, "DeviceLost") == 1, host.agent_log())
    });
    assert_eq!(units(&host)[0]["healthy"], json!(false));
    assert_eq!(
        status_of(&host.get("reader"), "main")["containerID"],
        running
    );
    let allocatable = |host: &Host| {
        let node: Value =
            serde_json::from_str(&host.ok(&["get", "node", "-o", "json"])).expect("node");
        let node = node["items"].get(0).cloned().unwrap_or(node);
        node["status"]["allocatable"]["picolet/serial"].clone()
    };
    assert_eq!(allocatable(&host), "0");
    plug(&host, DEVICE);
    host.until("it is told", |host| {
        (events(host, "DeviceBack") == 1, host.agent_log())
    });
    host.wait_pod("reader", "started anew", |pod| {
        let status = status_of(pod, "main");
        status["containerID"] != running && !status["state"]["running"].is_null()
    });
    host.until("it has read again", |host| {
        let log = host.ok(&["logs", &full("reader")]);
        (log.ends_with("read\n"), log)
    });
    assert_eq!(allocatable(&host), "1");

    // The first one goes, the second one gets it.
    host.remove("reader.yaml");
    host.wait_gone("reader");
    host.wait_ready("second");
    host.until("it has read", |host| {
        let log = host.ok(&["logs", &full("second")]);
        (log.ends_with("read\n"), log)
    });
    assert_eq!(
        holder(&units(&host)[0]),
        format!("default/{}/main", full("second"))
    );

    // What is declared and nowhere is named.
    let check = host.command_with_flags("check", &[]);
    let said = host::text(&check.stdout);
    assert!(
        said.contains("no device of example.com/none was found"),
        "{said}"
    );
    host.finish();
}
