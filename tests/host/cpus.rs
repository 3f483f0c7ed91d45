//! Processors of single containers, as the kernel has them: the policy `static` of the CPU manager.

use std::fs;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::host::{self, Host, IDLE, sh, status_of, with};

const STATIC: [&str; 2] = [
    "--cpu-manager-policy=static",
    // The first processor is nobody's own.
    "--reserved-cpus=0",
];

/// A pod of one container that asks for so many processors, and has a limit of so many.
fn pod(host: &Host, name: &str, cpu: &str, limit: &str) {
    let amounts = |cpu: &str| json!({"cpu": cpu, "memory": "16Mi"});
    let resources = json!({"requests": amounts(cpu), "limits": amounts(limit)});
    let container = with(sh("c", IDLE), json!({"resources": resources}));
    host.pod(name, json!({"containers": [container]}));
}

/// Processors on which the kernel lets the container's first process run.
fn cpus(host: &Host, name: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{}/status", host.pid(name, "c")));
    let status = status.unwrap_or_default();
    let line = status
        .lines()
        .find_map(|l| l.strip_prefix("Cpus_allowed_list:"));
    line.unwrap_or_default().trim().to_owned()
}

fn until_cpus(host: &Host, name: &str, wanted: &str) {
    host.until(&format!("{name} has {wanted}"), |host| {
        let has = cpus(host, name);
        (has == wanted, has + "\n" + &host.agent_log())
    });
}

/// Returns true if a quota of processor time slows the container down, on either version of control groups.
fn has_quota(host: &Host, name: &str) -> bool {
    let groups = fs::read_to_string(format!("/proc/{}/cgroup", host.pid(name, "c")));
    let groups = groups.expect("groups");
    let files = groups.lines().filter_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let is_of_cpu = controllers.split(',').any(|one| one == "cpu");
        let [v1, v2] = [("/cpu", "cpu.cfs_quota_us"), ("", "cpu.max")];
        let (dir, file) = if is_of_cpu { v1 } else { v2 };
        fs::read_to_string(format!("/sys/fs/cgroup{dir}{path}/{file}")).ok()
    });
    let files: Vec<String> = files.collect();
    assert_eq!(files.len(), 1, "{groups}");
    !files[0].starts_with("max") && !files[0].starts_with("-1")
}

#[test]
fn a_container_has_processors_of_its_own() {
    // CPUM-20 CPUM-21 CPUM-22 CPUM-23 CPUM-24
    if !host::able() {
        return;
    }
    let online = fs::read_to_string("/sys/devices/system/cpu/online").expect("processors");
    let last = match online.trim().rsplit(['-', ',']).next() {
        Some("0") | None => {
            skipped!("a processor of one's own needs two");
            return;
        }
        // All but the first one are given.
        Some(last) => last.parse::<u32>().expect("a number"),
    };
    let own = match last {
        1 => "1".to_owned(),
        _ => format!("1-{last}"),
    };
    let all = format!("0-{last}");
    assert_eq!(online.trim(), all, "every processor is on-line");
    let mut host = Host::start(&STATIC);
    pod(&host, "shares", "0", "500m");
    host.wait_ready("shares");
    until_cpus(&host, "shares", &all);
    assert!(has_quota(&host, "shares"));

    // Who comes takes them from those that share; no quota slows it down.
    pod(&host, "owns", &last.to_string(), &last.to_string());
    host.wait_ready("owns");
    assert_eq!(cpus(&host, "owns"), own);
    assert!(!has_quota(&host, "owns"));
    until_cpus(&host, "shares", "0");

    // The next agent, and the next instance, have the same.
    host.end_agent(Signal::SIGKILL);
    let record = fs::read(host.path("root/cpu_manager_state")).expect("record");
    let record: Value = serde_json::from_slice(&record).expect("JSON");
    assert_eq!(record["policyName"], "static");
    assert_eq!(record["defaultCpuSet"], "0");
    host.start_agent();
    pod(&host, "later", "0", "500m");
    host.wait_ready("later");
    assert_eq!(cpus(&host, "later"), "0");
    let pid = nix::unistd::Pid::from_raw(host.pid("owns", "c"));
    nix::sys::signal::kill(pid, Signal::SIGKILL).expect("kill");
    host.wait_pod("owns", "another instance", |pod| {
        let status = status_of(pod, "c");
        status["restartCount"] == 1 && status["ready"] == true
    });
    assert_eq!(cpus(&host, "owns"), own);

    // What nobody has any more is shared again.
    host.remove("owns.yaml");
    host.wait_gone("owns");
    for name in ["shares", "later"] {
        until_cpus(&host, name, &all);
    }
    host.finish();
}
