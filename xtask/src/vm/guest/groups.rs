//! Control groups of version 2.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
};

use serde_json::Value;

use super::{
    HOSTNAME, LIMIT, board, call, container_id, expect,
    facts::{TREE, inits, members, shims, text, unit},
    node::{MIB, PIDS, RESERVED_MIB, RESERVED_PIDS, drop_manifest},
    pod, until, wait_running,
};
use crate::{Failure, vm::manifests};

// CG-02 CG-03 CG-07 CG-08 CG-10 CG-14
pub(super) fn guaranteed() -> Result<String, Failure> {
    let (pod, own) = group_of("exact", "", "main")?;
    let memory = (32 * MIB).to_string();
    // 250 thousandths are 256 shares, which are weight 10 of 10000.
    let both = [("cpu.max", "25000 100000"), ("memory.max", memory.as_str())];
    check_files(&pod, &both)?;
    check_files(
        &pod,
        &[("cpu.weight", "10"), ("pids.max", &PIDS.to_string())],
    )?;
    check_files(&own, &both)?;
    check_files(&own, &[("memory.oom.group", "1"), ("memory.swap.max", "0")])?;
    // CG-09: the OCI runtime is given shares; which weight it makes of them is its own affair.
    let config = text(format!(
        "/run/picolet/containers/{}/config.json",
        own.file_name().unwrap_or_default().display()
    ))?;
    let config: Value = serde_json::from_str(&config)?;
    let resources = &config["linux"]["resources"];
    expect("shares", &resources["cpu"]["shares"], &256.into())?;
    expect(
        "weight given",
        &resources["unified"]["cpu.weight"],
        &Value::Null,
    )?;
    let weight = text(own.join("cpu.weight"))?;
    expect(
        &format!("weight {weight} is one of both formulas"),
        &["10", "35"].contains(&weight.as_str()),
        &true,
    )?;
    Ok(
        "cpu.weight 10, cpu.max 25000 100000, memory.max 32 MiB, memory.oom.group 1, pids.max 128"
            .into(),
    )
}

// CG-02 CG-08 CG-10
pub(super) fn burstable() -> Result<String, Failure> {
    let (pod, own) = group_of("web", "burstable", "server")?;
    // The limits of server, writer and sidecar; processor time is not limited for all, so not for the pod.
    check_files(
        &pod,
        &[
            ("memory.max", &(80 * MIB).to_string()),
            ("cpu.max", "max 100000"),
            ("cpu.weight", "4"),
        ],
    )?;
    check_files(
        &own,
        &[
            ("memory.max", &(32 * MIB).to_string()),
            ("cpu.max", "50000 100000"),
            ("cpu.weight", "4"),
            ("memory.oom.group", "1"),
        ],
    )?;
    Ok("pod: memory.max 80 MiB; server: cpu.max 50000 100000, memory.max 32 MiB".into())
}

// WEAR-07
pub(super) fn slow_writer() -> Result<String, Failure> {
    let controllers = text(Path::new(TREE).join("cgroup.controllers"))?;
    if !controllers.split_whitespace().any(|name| name == "io") {
        return Ok("not shown: this kernel has no io controller".into());
    }
    let name = "slow";
    drop_manifest(name, &manifests::slow_writer(name, "1Mi"))?;
    wait_running(&[name.to_owned()])?;
    let (pod, _) = group_of(name, "besteffort", "main")?;
    let limit = text(pod.join("io.max"))?;
    let held = limit.contains(&format!(" wbps={MIB} "));
    expect(&format!("io.max {limit:?} is held"), &held, &true)?;
    board::gone(name)?;
    Ok(format!("io.max {}", limit.trim()))
}

// DEV-44
pub(super) fn live_device() -> Result<String, Failure> {
    let dev = Path::new(manifests::MACHINE).join("dev");
    fs::create_dir_all(&dev)?;
    let node = dev.join("line").display().to_string();
    let [first, second] = two_disks()?;
    let plug = |number: &str| {
        let words: Vec<&str> = number.split(' ').collect();
        // Not there for a moment: nobody looks then.
        let _ = fs::remove_file(&node);
        call(&[&["mknod", "-m", "660", &node, "b"], &*words].concat())
    };
    plug(&first)?;
    let name = "holder";
    drop_manifest(name, &manifests::holder(name))?;
    wait_running(&[name.to_owned()])?;
    let begun = container_id(&pod(name)?, "main")?;
    let own = format!("{name}-{HOSTNAME}");
    let in_pod = |script: &str| call(&["picolet", "exec", &own, "--", "sh", "-c", script]);
    in_pod(&format!("mknod /one b {first}; mknod /two b {second}"))?;
    let usable = |want: &str| {
        let script =
            "for n in /one /two /dev/lines/*; do (exec 3< $n) 2> /dev/null && echo $n; done; true";
        let seen = in_pod(script)?;
        expect(
            "usable",
            &seen.split_whitespace().collect::<Vec<_>>().join(" "),
            &want.into(),
        )
    };
    usable("/one /dev/lines/line")?;
    plug(&second)?;
    until(LIMIT, || usable("/two /dev/lines/line"))?;
    expect("container", &container_id(&pod(name)?, "main")?, &begun)?;
    fs::remove_file(&node)?;
    until(LIMIT, || usable(""))?;
    board::gone(name)?;
    Ok(format!("{first}, then {second}"))
}

/// Numbers of two block devices of one kind: major and minor.
fn two_disks() -> Result<[String; 2], Failure> {
    let all = text("/proc/partitions")?;
    let mut seen: Vec<(&str, &str)> = Vec::new();
    for line in all.lines().skip(1) {
        let mut words = line.split_whitespace();
        let (Some(major), Some(minor)) = (words.next(), words.next()) else {
            continue;
        };
        if let Some((_, other)) = seen.iter().find(|(known, _)| *known == major) {
            return Ok([format!("{major} {other}"), format!("{major} {minor}")]);
        }
        seen.push((major, minor));
    }
    Err(format!("no two disks of one kind in {all:?}").into())
}

// CG-11 CG-12
pub(super) fn tiers() -> Result<String, Failure> {
    let kubepods = Path::new(TREE).join("kubepods");
    let total: u64 = text("/proc/meminfo")?
        .split_whitespace()
        .nth(1)
        .unwrap_or_default()
        .parse()?;
    let number = |path: &str| -> Result<u64, Failure> { Ok(text(path)?.parse()?) };
    let pids = number("/proc/sys/kernel/pid_max")?.min(number("/proc/sys/kernel/threads-max")?);
    let all = match thread::available_parallelism()?.get() {
        // 900 thousandths are 921 shares, which are weight 36 of 10000.
        1 => "36",
        // 1900 thousandths are 1945 shares.
        2 => "75",
        n => return Err(format!("{n} processors, for which no weight is known").into()),
    };
    check_files(
        &kubepods,
        &[
            (
                "memory.max",
                &(total * 1024 - RESERVED_MIB * MIB).to_string(),
            ),
            ("pids.max", &(pids - RESERVED_PIDS).to_string()),
            ("cpu.weight", all),
        ],
    )?;
    // web's 100 thousandths are 102 shares; the other two pods of the tier ask for nothing.
    for (tier, weight) in [("burstable", "4"), ("besteffort", "1")] {
        check_files(&kubepods.join(tier), &[("cpu.weight", weight)])?;
    }
    let (pod, own) = group_of("crowd-0", "besteffort", "main")?;
    check_files(&pod, &[("cpu.weight", "1"), ("memory.max", "max")])?;
    check_files(&own, &[("cpu.weight", "1"), ("memory.oom.group", "1")])?;
    for dir in [Path::new(TREE), &kubepods, &pod] {
        let list = text(dir.join("cgroup.subtree_control"))?;
        for controller in ["cpu", "memory", "pids"] {
            if !list.split(' ').any(|c| c == controller) {
                return Err(format!("{} hands down only {list:?}", dir.display()).into());
            }
        }
    }
    Ok("cpu.weight 4 and 1, 1 a pod; cpu, memory and pids handed down".into())
}

pub(super) fn oom() -> Result<String, Failure> {
    until(LIMIT, || {
        let pod = pod("hog")?;
        let state = &pod["status"]["containerStatuses"][0]["state"]["terminated"];
        expect("phase", &pod["status"]["phase"], &"Failed".into())?;
        expect("reason", &state["reason"], &"OOMKilled".into())?;
        expect("exit code", &state["exitCode"], &137.into())?;
        Ok("phase Failed, reason OOMKilled, exit code 137".into())
    })
}

/// Whatever the agent forks for pods must be elsewhere: systemd would count it, and end it with the unit.
pub(super) fn unit_alone() -> Result<String, Failure> {
    let group = unit("ControlGroup")?;
    let main: u32 = unit("MainPID")?.parse()?;
    // A client or a plugin may be running this moment.
    until(LIMIT, || {
        let members = members(&Path::new(TREE).join(group.trim_start_matches('/')));
        expect("processes of the unit", &members, &vec![main])
    })?;
    let (shims, containers) = (shims().len(), inits().len());
    expect("shims", &shims, &containers)?;
    Ok(format!("{shims} shims for {containers} containers"))
}

/// Directory of a pod's control group and of one container's in it.
pub(super) fn group_of(
    name: &str,
    tier: &str,
    container: &str,
) -> Result<(PathBuf, PathBuf), Failure> {
    let pod = pod(name)?;
    let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
    let dir = Path::new(TREE)
        .join("kubepods")
        .join(tier)
        .join(format!("pod{uid}"));
    let own = dir.join(container_id(&pod, container)?);
    Ok((dir, own))
}

pub(super) fn check_files(dir: &Path, files: &[(&str, &str)]) -> Result<(), Failure> {
    for (file, wanted) in files {
        let path = dir.join(file);
        expect(
            &path.display().to_string(),
            &text(&path)?,
            &(*wanted).to_owned(),
        )?;
    }
    Ok(())
}
