//! A CDI device in a container that may do nothing else: of uid 1000, with the default capabilities, not privileged.
//!
//! Its files are in directories of the test. The node that it gives is of a device that can be read, and that no container may
//! use by itself.

use std::fs;
use std::path::Path;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::devices::{DEVICE, start, units, waits};
use crate::host::{self, Host, IDLE, full, manifest, sh, status_of, with};

const CONFIG: &str = r#"  cdiSpecDirs: [ROOT/first, ROOT/nowhere, ROOT/second]
  devices:
  - resource: gpu
    match: {cdi: "example.com/gpu=*"}
"#;

/// A device of the kind `example.com/gpu`.
fn device(name: &str, edits: Value) -> Value {
    json!({"name": name, "containerEdits": edits})
}

fn file(devices: &[Value]) -> Value {
    json!({
        "cdiVersion": "0.7.0",
        "kind": "example.com/gpu",
        "containerEdits": {"env": ["COMMON=yes"]},
        "devices": devices,
    })
}

/// What the device gives: a node under another name, a variable, a directory, and a group.
fn given(driver: &Path) -> Value {
    json!({
        "env": ["GIVEN=new", "HOME=/opt/driver"],
        "deviceNodes": [{"path": "/dev/given", "hostPath": DEVICE, "permissions": "r"}],
        "mounts": [{"hostPath": driver, "containerPath": "/opt/driver", "options": ["ro", "nosuid", "nodev", "rbind"]}],
        "additionalGids": [0, 4242],
    })
}

fn waits_to_be_made(host: &Host, why: &str) {
    host.wait_pod("reader", "waits", |pod| {
        let waiting = &status_of(pod, "main")["state"]["waiting"];
        let message = waiting["message"].as_str().unwrap_or_default();
        waiting["reason"] == "CreateContainerError" && message.contains(why)
    });
}

fn end(host: &Host) {
    let pid = Pid::from_raw(host.pid("reader", "main"));
    kill(pid, Signal::SIGKILL).expect("killed");
}

// CDI-01 CDI-03 CDI-04 CDI-05 CDI-06 CDI-07 CDI-08 DEV-46
#[test]
fn a_device_of_a_file_for_a_container_without_rights() {
    let Some(mut host) = start(CONFIG, &[DEVICE]) else {
        return;
    };
    let machine = host.path("machine");
    let [first, second, driver] = ["first", "second", "driver"].map(|name| {
        let dir = machine.join(name);
        fs::create_dir(&dir).expect("directory");
        dir
    });
    fs::write(driver.join("library"), "of the driver\n").expect("library");
    let script = format!(
        "echo $(id -u) $(id -G) $COMMON $GIVEN $HOME .$ALL.; od -An -tu4 -N4 /dev/given || exit 1; \
         cat /opt/driver/library; echo read; {IDLE}"
    );
    let container = with(
        sh("main", &script),
        json!({
            "resources": {"limits": {"picolet/gpu": 1}},
            "securityContext": {"runAsUser": 1000},
            "env": [{"name": "HOME", "value": "/"}],
        }),
    );
    // Anybody could write that.
    let mut pod = manifest("reader", json!({"containers": [container]}));
    pod["metadata"]["annotations"] = json!({"cdi.k8s.io/all": "example.com/gpu=all"});
    host.write("reader.yaml", &pod.to_string());
    waits(&host, "reader");

    // An older file says something else. That of all devices is no unit, and a file that is wrong harms no other.
    let older = file(&[device("0", json!({"env": ["GIVEN=old"]}))]);
    fs::write(first.join("gpu.json"), older.to_string()).expect("file");
    fs::write(first.join("wrong.yaml"), "kind: example.com/gpu\n").expect("file");
    let everything = device("all", json!({"env": ["ALL=yes"]}));
    let newer = file(&[everything.clone(), device("0", given(&driver))]).to_string();
    let place = second.join("gpu.yaml");
    fs::write(&place, &newer).expect("file");
    host.wait_ready("reader");
    let reads = |host: &Host| {
        host.until("it has read", |host| {
            let log = host.ok(&["logs", &full("reader")]);
            (log.ends_with("of the driver\nread\n"), log)
        });
    };
    reads(&host);
    let log = host.ok(&["logs", &full("reader")]);
    assert!(
        log.starts_with("1000 0 4242 yes new /opt/driver ..\n"),
        "{log}"
    );
    let script =
        "stat -c '%u' /dev/given; touch /opt/driver/x 2>&1; (exec 3> /dev/given) 2>&1; echo";
    let tried = host.exec("reader", "main", script);
    assert!(
        tried.starts_with("1000\n")
            && tried.contains("Read-only")
            && tried.contains("not permitted"),
        "{tried}"
    );
    let found = units(&host);
    let names: Vec<_> = found.iter().map(|unit| &unit["nodes"]).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        names[0].to_string().contains("example.com/gpu=0"),
        "{names:?}"
    );
    let skipped = "wrong.yaml: cdiVersion: is \"\", must be one of 0.3.0";
    assert!(host.agent_log().contains(skipped), "{}", host.agent_log());
    let check = host.command_with_flags("check", &[]);
    let said = host::text(&check.stdout);
    assert!(said.contains(skipped), "{said}");

    // Without its files the container is not made, and waits until they are back.
    fs::remove_file(&place).expect("removed");
    fs::remove_file(first.join("gpu.json")).expect("removed");
    end(&host);
    waits_to_be_made(&host, "of picolet/gpu is not here");
    fs::write(&place, &newer).expect("file");
    host.wait_ready("reader");
    reads(&host);

    // What a hook would do as root is not done unless the operator lets it.
    let state = machine.join("state");
    let mut edits = given(&driver);
    let hook = |name: &str, script: String| json!({"hookName": name, "path": "/bin/sh", "args": ["sh", "-c", script], "timeout": 10});
    edits["hooks"] = json!([
        hook("createRuntime", format!("cat > {}", state.display())),
        hook("poststop", format!("rm {}", state.display())),
    ]);
    let with_hooks = file(&[everything, device("0", edits)]).to_string();
    fs::write(&place, &with_hooks).expect("file");
    end(&host);
    let refused = format!(
        "CDI device example.com/gpu=0: {} has hooks, which run as root on the machine: picolet.cdiHooks is not set",
        place.display()
    );
    waits_to_be_made(&host, &refused);
    assert!(!state.exists());
    host.end_agent(Signal::SIGTERM);
    let config = host.path("config.yaml");
    let text = fs::read_to_string(&config).expect("configuration");
    let text = text.replace("picolet:\n", "picolet:\n  cdiHooks: true\n");
    fs::write(&config, text).expect("configuration");
    host.start_agent();
    host.wait_ready("reader");
    reads(&host);
    let told: Value =
        serde_json::from_slice(&fs::read(&state).expect("state")).expect("a container's state");
    assert!(told["pid"].is_u64(), "{told}");
    host.remove("reader.yaml");
    host.wait_gone("reader");
    host.until("the last hook has run", |_| {
        (!state.exists(), String::new())
    });
    host.finish();
}
