//! `cargo xtask bench`: the figures of SPECIFICATION.md that need no apiserver, beside runc and CNI called bare in the same run.
//!
//! Processor time is read per process (`/proc/<pid>/stat`, children included), so that other work on the machine does not count;
//! wall time does suffer from it: measure on a machine that is otherwise at rest.

mod bare;
mod proc;

use std::time::Duration;

use crate::{
    Failure, install,
    process::is_root,
    stage::{IMAGE, NODE, Stage},
    wait::{Watch, pass, until},
};

/// Pods of the crowd.
const CROWD: usize = 100;
/// Pods that are started and ended one after the other for medians.
const SINGLES: usize = 10;
/// Over which processor time at rest is measured.
const REST: Duration = Duration::from_secs(20);
/// After which a crowd counts as at rest.
const SETTLE: Duration = Duration::from_secs(5);
const LIMIT: Duration = Duration::from_secs(180);

pub(crate) fn run() -> Result<(), Failure> {
    if !is_root() {
        return Err("the bench makes namespaces, mounts and interfaces: run it as root".into());
    }
    let missing = install::ensure(&[&install::BUILD, &install::HOST])?;
    if !missing.is_empty() {
        return Err(format!("still missing after installation: {}", missing.join(", ")).into());
    }
    println!("Building the release program");
    let mut stage = Stage::new("bench")?;
    let parallel = std::thread::available_parallelism()?.get() * 2;

    let bare = bare::Bare::new(&stage)?;
    let bare_single = bare.singles(SINGLES)?;
    let bare_crowd = bare.crowd(CROWD, parallel)?;
    drop(bare);

    stage.start_agent()?;
    let archive = stage.base.join("busybox.tar");
    stage.write_image(&archive, IMAGE)?;
    stage.client(&["image", "import", &archive.display().to_string()])?;
    pass(SETTLE);
    let empty = at_rest(&stage)?;
    let single = singles(&stage)?;
    let available = proc::mem_available()?;
    let crowd = crowd(&stage)?;
    pass(SETTLE);
    let full = at_rest(&stage)?;
    let fall = available.saturating_sub(proc::mem_available()?);
    let crowd_gone = gone(&stage)?;

    println!("\n{:<46} {:>14} {:>14}", "", "picolet", "bare runc+CNI");
    let row =
        |what: &str, ours: String, theirs: String| println!("{what:<46} {ours:>14} {theirs:>14}");
    let none = String::new;
    let kib = |n: u64| format!("{n} KiB");
    let ms = |t: Duration| format!("{:.0} ms", t.as_secs_f64() * 1000.0);
    row("agent without pods, PSS", kib(empty.agent_pss), none());
    row(
        &format!("agent with {CROWD} pods, PSS"),
        kib(full.agent_pss),
        none(),
    );
    row(
        "shim, private memory: mean / most",
        format!(
            "{} / {}",
            full.shim_private_mean,
            kib(full.shim_private_most)
        ),
        none(),
    );
    row("shim, PSS: mean", kib(full.shim_pss_mean), none());
    row("whole stack, PSS", kib(full.stack_pss), none());
    row("fall of MemAvailable", kib(fall), none());
    row(
        "processor at rest without pods, per s",
        format!("{:.2} ms", empty.cpu_ms),
        none(),
    );
    row(
        &format!("processor at rest with {CROWD} pods, per s"),
        format!("{:.2} ms", full.cpu_ms),
        none(),
    );
    row(
        "one pod: made -> Running, median",
        ms(single.up),
        ms(bare_single.up),
    );
    row(
        "one pod: deleted (1 s grace) -> gone, median",
        ms(single.down),
        none(),
    );
    row(
        "one pod: processor time, start and end",
        ms(single.cpu),
        ms(bare_single.cpu),
    );
    row(
        &format!("{CROWD} pods at once: all Running"),
        ms(crowd),
        ms(bare_crowd),
    );
    row(
        &format!("{CROWD} pods at once: all gone"),
        ms(crowd_gone),
        none(),
    );
    println!(
        "\nBare runs with {parallel} in parallel, on one shared root directory without overlay mounts."
    );
    Ok(())
}

struct AtRest {
    agent_pss: u64,
    shim_private_mean: u64,
    shim_private_most: u64,
    shim_pss_mean: u64,
    stack_pss: u64,
    cpu_ms: f64,
}

fn at_rest(stage: &Stage) -> Result<AtRest, Failure> {
    let agent = stage.agent_pid().ok_or("no agent runs")?;
    let shims = proc::shims(stage);
    let mut all = shims.clone();
    all.push(agent);
    let before = proc::cpu_of(&all, false);
    let watch = Watch::start();
    pass(REST);
    let cpu = proc::cpu_of(&all, false).saturating_sub(before);
    let cpu_ms = cpu.as_secs_f64() * 1000.0 / watch.elapsed().as_secs_f64();

    let agent_pss = proc::memory(agent)?.pss;
    let memory: Vec<_> = shims
        .iter()
        .filter_map(|pid| proc::memory(*pid).ok())
        .collect();
    let count = u64::try_from(memory.len().max(1))?;
    let shim_pss: u64 = memory.iter().map(|m| m.pss).sum();
    Ok(AtRest {
        agent_pss,
        shim_private_mean: memory.iter().map(|m| m.private).sum::<u64>() / count,
        shim_private_most: memory.iter().map(|m| m.private).max().unwrap_or_default(),
        shim_pss_mean: shim_pss / count,
        stack_pss: agent_pss + shim_pss,
        cpu_ms,
    })
}

struct Single {
    up: Duration,
    down: Duration,
    cpu: Duration,
}

fn singles(stage: &Stage) -> Result<Single, Failure> {
    let agent = stage.agent_pid().ok_or("no agent runs")?;
    let (mut ups, mut downs) = (Vec::new(), Vec::new());
    let before = proc::cpu_of(&[agent], true);
    let mut shims = Duration::ZERO;
    for n in 0..SINGLES {
        let name = format!("single-{n}");
        let watch = Watch::start();
        stage.write_manifest(&format!("{name}.yaml"), &manifest(&name))?;
        until(LIMIT, || running(stage, &[&name]))?;
        ups.push(watch.elapsed());
        // A shim's own children (the runtime's create) are counted with it; it ends with its pod.
        shims += proc::cpu_of(&proc::shims(stage), true);
        let watch = Watch::start();
        stage.remove_manifest(&format!("{name}.yaml"))?;
        until(LIMIT, || absent(stage))?;
        downs.push(watch.elapsed());
    }
    let cpu = proc::cpu_of(&[agent], true).saturating_sub(before) + shims;
    Ok(Single {
        up: median(&mut ups),
        down: median(&mut downs),
        cpu: cpu / u32::try_from(SINGLES)?,
    })
}

fn crowd(stage: &Stage) -> Result<Duration, Failure> {
    let names: Vec<_> = (0..CROWD).map(|n| format!("crowd-{n}")).collect();
    let watch = Watch::start();
    for name in &names {
        stage.write_manifest(&format!("{name}.yaml"), &manifest(name))?;
    }
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    until(LIMIT, || running(stage, &names))?;
    Ok(watch.elapsed())
}

fn gone(stage: &Stage) -> Result<Duration, Failure> {
    let watch = Watch::start();
    for n in 0..CROWD {
        stage.remove_manifest(&format!("crowd-{n}.yaml"))?;
    }
    until(LIMIT, || absent(stage))?;
    Ok(watch.elapsed())
}

fn running(stage: &Stage, names: &[&str]) -> Result<(), Failure> {
    let pods = stage.pods()?;
    for name in names {
        let full = format!("{name}-{NODE}");
        let pod = pods.iter().find(|p| p["metadata"]["name"] == full.as_str());
        if pod.is_none_or(|p| p["status"]["phase"] != "Running") {
            return Err(format!("{full} is not Running").into());
        }
    }
    Ok(())
}

fn absent(stage: &Stage) -> Result<(), Failure> {
    match stage.pods()?.len() {
        0 => Ok(()),
        n => Err(format!("{n} pods are left").into()),
    }
}

pub(crate) fn manifest(name: &str) -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata:
  name: {name}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: {IMAGE}
    imagePullPolicy: Never
    command: [sleep, '86400']
"
    )
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}
