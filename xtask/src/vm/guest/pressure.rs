//! A machine of 256 MiB that runs short of one thing after the other: the pod that takes it is evicted, and no other one
//! notices.

use std::{collections::BTreeMap, fs, path::Path};

use serde_json::Value;

use super::{
    Guest, LIMIT, call, expect,
    facts::{TREE, available, inits, text, unit},
    groups::{check_files, group_of},
    node::{MIB, STATE, drop_manifest, manifest, no_restarts, set_up},
    pod, pods, until, wait_running,
};
use crate::{
    Failure,
    evicted::amounts,
    vm::{
        manifests::{self, BYSTANDERS, Eater},
        report::Line,
    },
};

/// Pods that eat memory, one after the other.
const ROUNDS: u32 = 20;
/// The same of everything else, and of those that take memory faster than anybody can look.
const FEW: u32 = 5;
/// What is left of disk, inodes and process numbers above their thresholds. An eater takes more.
const SPARE: [u64; 3] = [64 * MIB, 4000, 100];

const CONFIG: &str = "/etc/picolet/config.yaml";
/// How a pod ended that the kernel was quicker with.
const BY_KERNEL: &str = "its own process was ended by the kernel";

pub(super) fn run(guest: &mut Guest) {
    set_up(guest);
    guest.step("Thresholds near to what is left", configure);
    guest.step("Pods that take little run", || {
        for (name, text) in manifests::bystanders() {
            drop_manifest(&name, &text)?;
        }
        wait_running(&BYSTANDERS.map(str::to_owned))
    });
    let before = inits();
    let mut by_kernel = 0;
    for (eater, rounds) in [
        (Eater::Memory, ROUNDS),
        (Eater::MemoryAtOnce, FEW),
        (Eater::Disk, FEW),
        (Eater::Inodes, FEW),
        (Eater::Pids, FEW),
    ] {
        for n in 1..=rounds {
            let what = format!("{eater:?} {n} of {rounds}: it goes, and no other");
            guest.step(&what, || {
                let said = round(eater, n, &before)?;
                by_kernel += u32::from(said == BY_KERNEL);
                Ok(said)
            });
        }
    }
    guest.note(format!(
        "{by_kernel} of {FEW} that take memory at once were ended by the kernel, before a look"
    ));
    guest.step("describe node names what was short", || {
        let node = call(&["picolet", "describe", "node"])?;
        let known = node.contains("PIDPressure") && node.contains("Short of:");
        expect("told", &known, &true)?;
        Ok(String::new())
    });
    guest.step(
        "MemoryQoS throttles a container and keeps what it asked for",
        memory_qos,
    );
    guest.say(&Line::End);
}

fn memory_qos() -> Result<String, Failure> {
    let mut config = fs::read_to_string(CONFIG)?;
    config
        .push_str("featureGates: {MemoryQoS: true}\nmemoryReservationPolicy: TieredReservation\n");
    fs::write(CONFIG, config)?;
    call(&["systemctl", "restart", "picolet"])?;
    drop_manifest("kept", &manifests::kept())?;
    wait_running(&["kept".to_owned()])?;
    let (pod, own) = group_of("kept", "burstable", "main")?;
    // 8 MiB and nine tenths of what is between that and 32 MiB, in pages of 4 KiB.
    let files = [("memory.low", "8388608"), ("memory.high", "31035392")];
    check_files(&own, &files)?;
    check_files(&pod, &files[..1])?;
    // With it those of two other pods.
    let all = [("memory.low", "25165824"), ("memory.min", "0")];
    let kubepods = Path::new(TREE).join("kubepods");
    until(LIMIT, || {
        check_files(&kubepods, &all)?;
        check_files(&kubepods.join("burstable"), &all)
    })?;
    Ok("memory.high of the container, memory.low up to kubepods".into())
}

/// Takes what is there as the measure: a new machine has more of everything than a step can take in a minute.
fn configure() -> Result<String, Failure> {
    let blocks = call(&["stat", "-f", "-c", "%a %S %d", STATE])?;
    let numbers: Vec<u64> = blocks
        .split(' ')
        .map(str::parse)
        .collect::<Result<_, _>>()?;
    let [free, size, inodes] = numbers[..] else {
        return Err(format!("stat -f said {blocks:?}").into());
    };
    let all = text("/proc/sys/kernel/pid_max")?
        .parse::<u64>()?
        .min(text("/proc/sys/kernel/threads-max")?.parse()?);
    let load = text("/proc/loadavg")?;
    let (_, tasks) = load
        .split(' ')
        .nth(3)
        .and_then(|n| n.split_once('/'))
        .ok_or("no tasks in /proc/loadavg")?;
    let [bytes, inodes, pids] = [
        (free * size - SPARE[0]).to_string(),
        (inodes - SPARE[1]).to_string(),
        (all - tasks.parse::<u64>()? - SPARE[2]).to_string(),
    ];
    // The limit of processes is another one's test, and lower than what one needs here.
    let old: String = fs::read_to_string(CONFIG)?
        .lines()
        .filter(|line| !line.starts_with("podPidsLimit"))
        .map(|line| format!("{line}\n"))
        .collect();
    fs::write(
        CONFIG,
        format!(
            "{old}evictionHard: {{nodefs.available: '{bytes}', nodefs.inodesFree: '{inodes}', pid.available: '{pids}'}}\n\
             mergeDefaultEvictionSettings: true\nevictionPressureTransitionPeriod: 1s\n\
             picolet: {{profile: board, evictStaticPods: true}}\n"
        ),
    )?;
    call(&["systemctl", "restart", "picolet"])?;
    Ok(format!(
        "{} MiB of memory available, {bytes} bytes of disk, {inodes} inodes, {pids} processes",
        available()? / 1024
    ))
}

/// One pod comes, eats, and has to go. `before`: first processes of all others.
fn round(
    eater: Eater,
    n: u32,
    before: &BTreeMap<String, (u32, String)>,
) -> Result<String, Failure> {
    let name = format!("eater-{}-{n}", eater.name());
    drop_manifest(&name, &eater.manifest(&name))?;
    let shown = until(LIMIT, || {
        let shown = pod(&name)?;
        if shown["status"]["phase"] == "Failed" || by_kernel(&shown, eater) {
            return Ok(shown);
        }
        Err(format!("{}", shown["status"]).into())
    })?;
    // Whatever it shows: the next one has to have its place.
    fs::remove_file(manifest(&name))?;
    until(LIMIT, || {
        let left = pods()?.len();
        expect("pods", &left, &BYSTANDERS.len())
    })?;
    until(LIMIT, || expect("first processes", &inits(), before))?;
    let uid = shown["metadata"]["uid"].as_str().ok_or("no uid")?;
    let killed = killed()?;
    let may = |line: &&String| eater == Eater::MemoryAtOnce && line.contains(uid);
    let others: Vec<&String> = killed.iter().filter(|line| !may(line)).collect();
    expect("ended by the kernel", &others, &Vec::new())?;
    let status = &shown["status"];
    let said = if by_kernel(&shown, eater) {
        BY_KERNEL.to_owned()
    } else {
        expect("reason", &status["reason"], &"Evicted".into())?;
        let message = status["message"].as_str().unwrap_or_default();
        let amounts = amounts(message, eater.resource())?;
        let conditions = status["conditions"].as_array().ok_or("no conditions")?;
        let disruption = conditions.iter().find(|c| c["type"] == "DisruptionTarget");
        let disruption = disruption.ok_or("no condition DisruptionTarget")?;
        expect("its message", &disruption["message"], &message.into())?;
        format!("{amounts:?}")
    };
    no_restarts()?;
    expect("ActiveState", &unit("ActiveState")?, &"active".into())?;
    Ok(said)
}

/// Whether the kernel had to end the container itself, which it has to if a process is quicker than any look.
fn by_kernel(pod: &Value, eater: Eater) -> bool {
    let main = &pod["status"]["containerStatuses"][0];
    let ended = ["state", "lastState"].map(|state| &main[state]["terminated"]["reason"]);
    eater == Eater::MemoryAtOnce && ended.iter().any(|reason| **reason == "OOMKilled")
}

/// What the kernel's killer said since the last call.
fn killed() -> Result<Vec<String>, Failure> {
    let said = call(&["dmesg", "--read-clear"])?;
    // With it comes the control group, which has the pod's uid in its path.
    let lines = said.lines().filter(|line| line.contains("oom-kill:"));
    Ok(lines.map(str::to_owned).collect())
}
