//! `cargo xtask bench`: the figures of SPECIFICATION.md that need no apiserver, beside runc and CNI called bare in the same run.
//!
//! Processor time is what the kernel counted for a tree of cgroups, of ours and of the bare programs alike: processes that
//! came and went are in it, other work on the machine is not. Wall time does suffer from that: measure on a machine that is
//! otherwise at rest.

mod account;
mod bare;
mod proc;
mod pull;
mod runtime;
mod table;

use std::{path::PathBuf, time::Duration};

use self::{
    account::Account,
    bare::{Bare, Times},
    table::{Table, ms},
};
use crate::{
    Failure, install,
    process::is_root,
    stage::{IMAGE, Stage},
    wait::{Watch, pass, until_each},
};

/// Pods of the crowd.
const CROWD: usize = 100;
/// Pods that are started and ended one after the other for medians.
const SINGLES: usize = 10;
/// Over which processor time at rest is measured: several passes of everything that happens at an interval but garbage
/// collection, of which one falls into it more often than not.
const REST: Duration = Duration::from_secs(30);
/// After which a crowd counts as at rest.
const SETTLE: Duration = Duration::from_secs(5);
const LIMIT: Duration = Duration::from_secs(180);
/// Between two looks at one pod; at a crowd, whose list costs the agent more.
const LOOK: Duration = Duration::from_millis(5);
const LOOK_AT_CROWD: Duration = Duration::from_millis(50);
/// What a crowd's containers run, as arguments of busybox.
const SLEEP: [&str; 2] = ["sleep", "86400"];
/// A container that ends when it is asked to: init of a PID namespace ignores SIGTERM without a handler.
const SHORT_LIVED: [&str; 3] = ["sh", "-c", "trap 'exit 0' TERM; sleep 86400 & wait"];
const KIB_PER_MIB: f64 = 1024.0;

/// Aims; see SPECIFICATION.md.
mod aim {
    pub(super) const AGENT_EMPTY_MIB: f64 = 4.5;
    pub(super) const AGENT_FULL_MIB: f64 = 6.5;
    pub(super) const SHIM_PRIVATE_KIB: f64 = 64.0;
    pub(super) const SHIM_PSS_KIB: f64 = 96.0;
    pub(super) const STACK_MIB: f64 = 18.0;
    pub(super) const REST_EMPTY_MS: f64 = 0.5;
    pub(super) const REST_FULL_MS: f64 = 3.0;
    pub(super) const ONE_POD: f64 = 2.0;
    pub(super) const CROWD: f64 = 1.5;
    /// With the pods of the crowd on a containerd.
    pub(super) const BESIDE_RUNTIME_MIB: f64 = 8.0;
    pub(super) const PULL_MIB: f64 = 10.0;
    /// 0.8 of the throughput.
    pub(super) const PULL: f64 = 1.25;
}

/// `words` may be `pull` or `--runtime containerd` first, then `--program FILE`: that file is measured and nothing is built.
pub(crate) fn run(words: &[String]) -> Result<(), Failure> {
    if !is_root() {
        return Err("the bench makes namespaces, mounts and interfaces: run it as root".into());
    }
    let missing = install::ensure(&[&install::BUILD, &install::HOST])?;
    if !missing.is_empty() {
        return Err(format!("still missing after installation: {}", missing.join(", ")).into());
    }
    let (what, words) = match words {
        [first, rest @ ..] if first == "pull" => (What::Pull, rest),
        [flag, name, rest @ ..] if flag == "--runtime" && name == "containerd" => {
            (What::Containerd, rest)
        }
        all => (What::Direct, all),
    };
    let mut stage = match words {
        [] => {
            println!("Building the release program");
            Stage::new("bench")?
        }
        [flag, file] if flag == "--program" => {
            Stage::with("bench", PathBuf::from(file).canonicalize()?)?
        }
        _ => {
            return Err(
                "usage: cargo xtask bench [pull | --runtime containerd] [--program FILE]".into(),
            );
        }
    };
    stage.run_in_memory()?;
    match what {
        What::Direct => {}
        What::Pull => return pull::run_on(stage),
        What::Containerd => return runtime::run_on(stage),
    }
    let parallel = std::thread::available_parallelism()?.get() * 2;

    println!("Measuring runc and CNI alone");
    let bare = Bare::new(&stage)?;
    let bare_single = bare.singles(SINGLES)?;
    let (bare_up, bare_down) = bare.crowd(CROWD, parallel)?;
    drop(bare);

    println!("Measuring picolet");
    let account = Account::open(&format!("picolet-{}", stage.mark))?;
    stage.start_agent()?;
    let archive = stage.base.join("busybox.tar");
    stage.write_image(&archive, IMAGE)?;
    stage.client(&["image", "import", &archive.display().to_string()])?;
    let agent = stage.agent_pid().ok_or("no agent runs")?;
    account.adopt("agent", agent)?;
    pass(SETTLE);
    let empty = at_rest(&stage, &account)?;
    let single = singles(&stage, &account)?;
    // What the pods before this one cost is given back by the kernel in its own time.
    pass(SETTLE);
    let available = proc::mem_available()?;
    let watch = Watch::start();
    let before = account.used()?;
    let up = crowd(&stage, &account)?;
    let crowd_cpu = account.used()?.saturating_sub(before) / u32::try_from(CROWD)?;
    println!(
        "{CROWD} pods run after {:.1} s",
        watch.elapsed().as_secs_f64()
    );
    pass(SETTLE);
    let full = at_rest(&stage, &account)?;
    let fall = i64::try_from(available)? - i64::try_from(proc::mem_available()?)?;
    let processes = account.processes();
    let down = gone(&stage, &account)?;
    pass(SETTLE);
    let after = proc::memory(agent)?;
    drop(account);

    let mut table = Table::default();
    memory_rows(&mut table, &empty, &full, processes);
    table.show(
        format!("agent after {CROWD} pods came and went, PSS"),
        format!("{:.2} MiB", mib(after.pss)),
    );
    table.show(
        format!("fall of MemAvailable with {CROWD} pods"),
        format!("{} MiB", fall / 1024),
    );
    rest_rows(&mut table, &empty, &full);
    single_rows(&mut table, &single, &bare_single);
    table.beside(
        format!("{CROWD} pods at once: all Running"),
        up,
        bare_up,
        aim::CROWD,
    );
    table.show(
        format!("{CROWD} pods at once: processor time of each"),
        format!("{:.1} ms", ms(crowd_cpu)),
    );
    table.show(
        format!("{CROWD} pods (1 s grace) at once: all gone"),
        format!("{:.0} ms, bare {:.0}", ms(down), ms(bare_down)),
    );
    table.print();
    // After the figures: they are worth having even if something is in the way here.
    stage.stop_all()?;
    stage.dismantle()?;
    println!(
        "\nBare runs with {parallel} in parallel, on one shared root directory without overlay mounts and without logs."
    );
    match table.missed().as_slice() {
        [] => Ok(()),
        missed => Err(format!("aims missed: {}", missed.join("; ")).into()),
    }
}

/// What is measured.
#[derive(Clone, Copy)]
enum What {
    /// The agent that runs containers itself.
    Direct,
    /// Pulls of images.
    Pull,
    /// The agent beside a containerd.
    Containerd,
}

fn mib(kib: u64) -> f64 {
    // Exact below 2^53, which is more memory than there is.
    u32::try_from(kib).map_or(f64::INFINITY, f64::from) / KIB_PER_MIB
}

fn memory_rows(table: &mut Table, empty: &AtRest, full: &AtRest, processes: usize) {
    let kib = |n: u64| mib(n) * KIB_PER_MIB;
    table.at_most(
        "agent without pods, PSS",
        mib(empty.agent_pss),
        aim::AGENT_EMPTY_MIB,
        "MiB",
    );
    table.at_most(
        format!("agent with {CROWD} pods, PSS"),
        mib(full.agent_pss),
        aim::AGENT_FULL_MIB,
        "MiB",
    );
    table.at_most(
        "a shim, private: the most",
        kib(full.shim_private_most),
        aim::SHIM_PRIVATE_KIB,
        "KiB",
    );
    table.at_most(
        "a shim, PSS: the most",
        kib(full.shim_pss_most),
        aim::SHIM_PSS_KIB,
        "KiB",
    );
    table.at_most(
        format!("agent and {} shims, PSS", full.shims),
        mib(full.stack_pss),
        aim::STACK_MIB,
        "MiB",
    );
    let expected = 1 + full.shims + CROWD;
    table.row_of_count("processes: agent, shims, containers", processes, expected);
}

fn rest_rows(table: &mut Table, empty: &AtRest, full: &AtRest) {
    table.at_most(
        "processor at rest without pods, a second",
        empty.cpu_ms,
        aim::REST_EMPTY_MS,
        "ms",
    );
    table.at_most(
        format!("processor at rest with {CROWD} pods, a second"),
        full.cpu_ms,
        aim::REST_FULL_MS,
        "ms",
    );
    table.show(
        "wake-ups a second without pods / with",
        format!("{:.1} / {:.1}", empty.wakes, full.wakes),
    );
}

fn single_rows(table: &mut Table, ours: &Times, theirs: &Times) {
    table.beside(
        "one pod: manifest → Running",
        ours.up,
        theirs.up,
        aim::ONE_POD,
    );
    table.beside(
        "one pod: processor time for that",
        ours.up_cpu,
        theirs.up_cpu,
        aim::ONE_POD,
    );
    table.beside(
        "one pod: manifest removed → gone",
        ours.down,
        theirs.down,
        aim::ONE_POD,
    );
    table.beside(
        "one pod: processor time for that",
        ours.down_cpu,
        theirs.down_cpu,
        aim::ONE_POD,
    );
}

struct AtRest {
    agent_pss: u64,
    shims: usize,
    shim_private_most: u64,
    shim_pss_most: u64,
    stack_pss: u64,
    cpu_ms: f64,
    wakes: f64,
}

fn at_rest(stage: &Stage, account: &Account) -> Result<AtRest, Failure> {
    let agent = stage.agent_pid().ok_or("no agent runs")?;
    let shims = proc::shims(stage);
    let mut all = shims.clone();
    all.push(agent);
    let (used, switches) = (account.used()?, proc::switches(&all));
    let watch = Watch::start();
    pass(REST);
    let seconds = watch.elapsed().as_secs_f64();
    let used = account.used()?.saturating_sub(used);
    let switches = proc::switches(&all).saturating_sub(switches);

    let agent_pss = proc::memory(agent)?.pss;
    let memory = shims
        .iter()
        .map(|pid| proc::memory(*pid))
        .collect::<Result<Vec<_>, _>>()?;
    let shim_pss: u64 = memory.iter().map(|m| m.pss).sum();
    Ok(AtRest {
        agent_pss,
        shims: shims.len(),
        shim_private_most: memory.iter().map(|m| m.private).max().unwrap_or_default(),
        shim_pss_most: memory.iter().map(|m| m.pss).max().unwrap_or_default(),
        stack_pss: agent_pss + shim_pss,
        cpu_ms: ms(used) / seconds,
        wakes: f64::from(u32::try_from(switches)?) / seconds,
    })
}

fn singles(stage: &Stage, account: &Account) -> Result<Times, Failure> {
    let (mut ups, mut downs) = (Vec::new(), Vec::new());
    let (mut up_cpu, mut down_cpu) = (Duration::ZERO, Duration::ZERO);
    for n in 0..SINGLES {
        let name = format!("single-{n}");
        let start = account.used()?;
        let watch = Watch::start();
        stage.write_manifest(&format!("{name}.yaml"), &manifest(&name, &SHORT_LIVED))?;
        until_each(LOOK, LIMIT, || all_running(stage, 1))?;
        ups.push(watch.elapsed());
        let middle = account.used()?;
        let watch = Watch::start();
        stage.remove_manifest(&format!("{name}.yaml"))?;
        until_each(LOOK, LIMIT, || all_running(stage, 0))?;
        downs.push(watch.elapsed());
        // What is tidied up later belongs to it as well.
        pass(SETTLE);
        up_cpu += middle.saturating_sub(start);
        down_cpu += account.used()?.saturating_sub(middle);
    }
    let count = u32::try_from(SINGLES)?;
    Ok(Times {
        up: median(&mut ups),
        up_cpu: up_cpu / count,
        down: median(&mut downs),
        down_cpu: down_cpu / count,
    })
}

fn crowd(stage: &Stage, account: &Account) -> Result<Duration, Failure> {
    let texts: Vec<_> = (0..CROWD)
        .map(|n| manifest(&format!("crowd-{n}"), &SLEEP))
        .collect();
    let watch = Watch::start();
    for (n, text) in texts.iter().enumerate() {
        stage.write_manifest(&format!("crowd-{n}.yaml"), text)?;
    }
    // Counting processes does not disturb the agent; listing its pods does.
    until_each(LOOK_AT_CROWD, LIMIT, || match account.processes() {
        n if n > 2 * CROWD => Ok(()),
        n => Err(format!("only {n} processes").into()),
    })?;
    until_each(LOOK_AT_CROWD, LIMIT, || all_running(stage, CROWD))?;
    Ok(watch.elapsed())
}

fn gone(stage: &Stage, account: &Account) -> Result<Duration, Failure> {
    let watch = Watch::start();
    for n in 0..CROWD {
        stage.remove_manifest(&format!("crowd-{n}.yaml"))?;
    }
    until_each(LOOK_AT_CROWD, LIMIT, || match account.processes() {
        1 => Ok(()),
        n => Err(format!("{n} processes are left").into()),
    })?;
    until_each(LOOK_AT_CROWD, LIMIT, || all_running(stage, 0))?;
    Ok(watch.elapsed())
}

/// Whether exactly `count` pods are listed, and all run.
fn all_running(stage: &Stage, count: usize) -> Result<(), Failure> {
    let pods = proc::pods(&stage.socket())?;
    if pods.len() != count {
        return Err(format!("{} pods are listed, not {count}", pods.len()).into());
    }
    match pods.iter().find(|pod| pod["status"]["phase"] != "Running") {
        None => Ok(()),
        Some(pod) => Err(format!("{} is not Running", pod["metadata"]["name"]).into()),
    }
}

/// A pod of one container, which calls busybox.
pub(crate) fn manifest(name: &str, args: &[&str]) -> String {
    let command = serde_json::json!(args);
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
    command: {command}
"
    )
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}
