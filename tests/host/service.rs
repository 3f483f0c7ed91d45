//! The agent as a service manager has it.

use std::{fs, os::unix::net::UnixDatagram, path::Path, time::Duration};

use nix::sys::signal::{Signal, kill};
use serde_json::{Value, json};

use crate::host::{Host, able, sh};

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(180);

fn heard(manager: &UnixDatagram) -> String {
    let mut buffer = [0; 64];
    let count = manager.recv(&mut buffer).expect("a message");
    String::from_utf8_lossy(&buffer[..count]).into_owned()
}

#[test]
fn a_stuck_agent_falls_silent_and_the_next_one_has_its_pods() {
    // SVC-05 SHUT-08
    if !able() {
        return;
    }
    let mut host = Host::new(&[]);
    let path = host.path("shared/manager");
    let manager = UnixDatagram::bind(&path).expect("bind");
    manager.set_read_timeout(Some(PATIENCE)).expect("time-out");
    host.variables = vec![
        ("NOTIFY_SOCKET", path.display().to_string()),
        ("WATCHDOG_USEC", "2000000".into()),
    ];
    host.start_agent();
    host.import();
    assert_eq!(heard(&manager), "READY=1");
    for _ in 0..2 {
        assert_eq!(heard(&manager), "WATCHDOG=1");
    }
    host.pod("stays", json!({"containers": [sh("main", "sleep 1000")]}));
    host.wait_phase("stays", "Running");
    let pid = host.pid("stays", "main");
    // Nothing says so but the loop: it does not move, and nothing is said.
    let agent = nix::unistd::Pid::from_raw(host.agent_pid());
    kill(agent, Signal::SIGSTOP).expect("stopped");
    manager.set_nonblocking(true).expect("mode");
    let mut buffer = [0; 64];
    while manager.recv(&mut buffer).is_ok() {}
    manager.set_nonblocking(false).expect("mode");
    manager
        .set_read_timeout(Some(Duration::from_secs(3)))
        .expect("time-out");
    assert!(manager.recv(&mut buffer).is_err(), "it said something");
    // A service manager then kills it and starts another.
    host.end_agent(Signal::SIGKILL);
    manager.set_read_timeout(Some(PATIENCE)).expect("time-out");
    host.start_agent();
    assert_eq!(heard(&manager), "READY=1");
    host.wait_phase("stays", "Running");
    assert_eq!(host.pid("stays", "main"), pid);
    host.finish();
}

#[test]
fn the_node_has_events_about_its_machine() {
    // EVT-35 CG-20
    if !able() {
        return;
    }
    let mut host = Host::new(&[]);
    let resolver = host.path("shared/resolv.conf");
    let searches = " a.example".repeat(33);
    fs::write(&resolver, format!("search{searches}\n")).expect("written");
    host.flags
        .push(format!("--resolv-conf={}", resolver.display()));
    host.start_agent();
    let wanted = format!(
        "Resolv.conf file '{}' contains search line consisting of more than 32 domains!",
        resolver.display()
    );
    host.until("it is told", |host| {
        let list = host.ok(&["get", "events", "-A", "-o", "json"]);
        let all: Value = serde_json::from_str(&list).expect("events");
        let mut all = all["items"].as_array().expect("items").iter();
        let is_told = all.any(|event| {
            event["reason"] == "CheckLimitsForResolvConf" && event["message"] == wanted
        });
        (is_told, list)
    });
    // No program can write what the kernel says of a kill, but the agent reads it.
    host.until("the log of the kernel is read", |host| {
        let files = fs::read_dir(format!("/proc/{}/fd", host.agent_pid())).expect("files");
        let mut files = files.filter_map(|file| fs::read_link(file.ok()?.path()).ok());
        let log = host.agent_log();
        let is_read = files.any(|file| file == Path::new("/dev/kmsg"));
        (is_read || log.contains("/dev/kmsg cannot be read"), log)
    });
    host.finish();
}

/// What the agent runs under does not reach containers, unless somebody puts it on the agent.
#[test]
fn containers_inherit_nothing_of_the_unit() {
    // SVC-02
    if !able() {
        return;
    }
    let host = Host::start(&[]);
    host.pod("bare", json!({"containers": [sh("main", "sleep 1000")]}));
    host.wait_phase("bare", "Running");
    let status = format!("/proc/{}/status", host.pid("bare", "main"));
    let status = fs::read_to_string(status).expect("status");
    let value = |name: &str| {
        let mut lines = status.lines();
        let line = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("{name}")).trim().to_owned()
    };
    assert_eq!(value("Seccomp_filters"), "0");
    assert_eq!(value("NoNewPrivs"), "0");
    // The 14 of every runtime, whatever the agent itself may do.
    assert_eq!(value("CapBnd"), "00000000a80425fb");
    host.finish();
}
