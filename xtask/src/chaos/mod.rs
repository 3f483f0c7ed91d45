//! `cargo xtask chaos`: an agent under churn whose surroundings fail: it is killed at random moments and at every named crash
//! point, its shims die, runc fails or hangs, the disk is full, read-only, or does not answer. A second agent is a node of a
//! cluster. After each phase the machine is audited: nothing lost, doubled, restarted without cause, or left behind.
//!
//! Its choices follow from a seed; the kernel's do not. A failure names seed and phase and keeps the evidence.

mod audit;
mod cluster;
mod ledger;
mod planted;
mod points;
mod rng;
mod trouble;
mod world;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

pub(crate) use ledger::{WITNESS, witness};

use self::{
    audit::{audit, audit_briefly},
    rng::Rng,
    world::{Kind, Place, World},
};
use crate::{
    Failure, install,
    process::{is_root, output, run as call},
    stage::{IMAGE, Stage, build},
    wait::{Watch, pass, until},
};

/// Random kills of a full run, and between two audits.
const KILLS: u32 = 300;
const KILLS_PER_AUDIT: u32 = 25;
/// How many of them there are for each of a node of a cluster.
const KILLS_PER_MEMBER_KILL: u32 = 3;
/// Random kills of a quick run.
const QUICK_KILLS: u32 = 15;
/// Crash points between two audits of a quick run; a full one audits after each.
const QUICK_POINTS_PER_AUDIT: usize = 16;
/// Longest time an agent lives between two random kills, milliseconds.
const LIFE_MS: u64 = 1200;
/// Size of the file system that the agent's root directory lies on.
const DISK: &str = "256M";
/// Subnet of this task's pods.
const SUBNET: &str = "10.121.0.0/16";
/// Warnings of the agent that a failure shows.
const LAST_WARNINGS: usize = 20;
/// Pods end, and the image is there, by then.
const LIMIT: Duration = Duration::from_secs(60);

/// What was asked for.
struct Options {
    kills: u32,
    seed: u64,
    /// The random kills end after this time, too.
    limit: Option<Duration>,
    quick: bool,
    only: Option<String>,
    /// A program with crash points, instead of one that is built.
    program: Option<PathBuf>,
    /// Where all there is lies: the program, its sources, the test API server. Nothing is installed or built.
    from: Option<PathBuf>,
}

/// In a directory where all there is lies: the program with crash points, and the test API server.
pub(crate) const PROGRAM: &str = "picolet-crash-points";
pub(crate) const APISERVER: &str = "test-apiserver";
/// There, and in the project.
pub(crate) const SOURCES: &str = "src";

impl Options {
    fn parse(words: &[String]) -> Result<Self, Failure> {
        let mut options = Self {
            kills: KILLS,
            seed: 1,
            limit: None,
            quick: false,
            only: None,
            program: None,
            from: None,
        };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
            match word.as_str() {
                "--kills" => options.kills = value()?.parse()?,
                "--seed" => options.seed = value()?.parse()?,
                "--minutes" => {
                    options.limit = Some(Duration::from_secs(60 * value()?.parse::<u64>()?));
                }
                "--only" => options.only = Some(value()?.clone()),
                "--program" => options.program = Some(value()?.into()),
                "--from" => options.from = Some(value()?.into()),
                "--quick" => {
                    options.quick = true;
                    options.kills = QUICK_KILLS;
                }
                other => return Err(format!("unknown flag {other}").into()),
            }
        }
        Ok(options)
    }
}

/// A phase: its name, whether a quick run has it, what it does.
type Phase = (
    &'static str,
    bool,
    fn(&mut World, &Options) -> Result<String, Failure>,
);

/// Those of a node of a cluster. It is audited in the end, when time has passed that others needed.
const OF_MEMBER: [Phase; 4] = [
    ("cluster-audit", true, planted::planted),
    ("cluster-points", true, every_point),
    ("cluster-kills", true, random_kills),
    ("resizes", true, trouble::resizes),
];
const OF_HOST: [Phase; 10] = [
    ("audit", true, planted::planted),
    ("points", true, every_point),
    ("kills", true, random_kills),
    ("shims", true, trouble::shims),
    ("runc-fails", false, trouble::runc_fails),
    ("runc-hangs", false, trouble::runc_hangs),
    ("runc-missing", false, trouble::runc_missing),
    ("disk-full", false, trouble::disk_full),
    ("disk-read-only", false, trouble::disk_read_only),
    ("disk-slow", false, trouble::disk_slow),
];

pub(crate) fn run(words: &[String]) -> Result<(), Failure> {
    let options = Options::parse(words)?;
    if !is_root() {
        return Err("chaos makes namespaces, mounts and interfaces: run it as root".into());
    }
    let (program, apiserver) = programs(&options)?;
    println!("Seed {}", options.seed);
    let watch = Watch::start();
    let of_member = |name: &str| OF_MEMBER.iter().any(|phase| phase.0 == name);
    let asked = |member: bool| {
        let only = options.only.as_ref();
        only.is_none_or(|only| only.split(',').any(|name| of_member(name) == member))
    };
    let (mut starts, mut sessions) = (0, 0);
    let mut member = asked(true)
        .then(|| world("chapi", &program, options.seed, Place::Cluster(apiserver)))
        .transpose()?;
    if let Some(world) = &mut member {
        guarded(world, &options, |world| {
            set_up(world)?;
            phases(world, &options, &OF_MEMBER)?;
            // What goes once a minute goes while others are at work.
            world.remove_all()?;
            world.settle().map(drop)
        })?;
    }
    if asked(false) {
        let mut host = world("chaos", &program, options.seed, Place::Host)?;
        guarded(&mut host, &options, |world| {
            set_up(world)?;
            phases(world, &options, &OF_HOST)?;
            finish(world, "end")
        })?;
        starts += host.ledger.starts();
    }
    if let Some(world) = &mut member {
        sessions = world.cluster.as_ref().map_or(0, cluster::Cluster::sessions);
        guarded(world, &options, |world| finish(world, "cluster-end"))?;
        starts += world.ledger.starts();
        let audited = options.only.as_deref() == Some("cluster-audit");
        if sessions == 0 && !audited {
            return Err("no session was ever open".into());
        }
    }
    println!(
        "\nNothing lost, doubled, restarted without cause or left behind: {starts} starts of containers, {sessions} sessions, {:.0} s.",
        watch.elapsed().as_secs_f64()
    );
    Ok(())
}

/// What is at work: the program, and the test API server if it is built already.
fn programs(options: &Options) -> Result<(PathBuf, Option<PathBuf>), Failure> {
    if let Some(dir) = &options.from {
        return Ok((dir.join(PROGRAM), Some(dir.join(APISERVER))));
    }
    let missing = install::ensure(&[&install::BUILD, &install::HOST, &install::CHAOS])?;
    if !missing.is_empty() {
        return Err(format!("still missing after installation: {}", missing.join(", ")).into());
    }
    let program = if let Some(file) = &options.program {
        std::path::absolute(file)?
    } else {
        println!("Building the program with crash points");
        build("try", &["--features", "crash-points"])?
    };
    Ok((program, None))
}

/// An agent with a disk of its own.
fn world(name: &str, program: &Path, seed: u64, place: Place) -> Result<World, Failure> {
    let mut stage = Stage::with(name, program.to_owned())?;
    stage.subnet = SUBNET;
    stage.run_in_memory()?;
    mount_disk(&stage)?;
    World::new(stage, place, Rng::new(seed))
}

/// Does `what`; if it fails, keeps the evidence and undoes troubles.
fn guarded(
    world: &mut World,
    options: &Options,
    what: impl FnOnce(&mut World) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let Err(why) = what(world) else {
        return Ok(());
    };
    let kept = keep_evidence(world);
    let said = world.stage.agent_log();
    let said: Vec<&str> = said
        .lines()
        .filter(|line| line.starts_with("WARN"))
        .rev()
        .take(LAST_WARNINGS)
        .collect();
    let said: Vec<&str> = said.into_iter().rev().collect();
    trouble::heal(world);
    let kept = kept.map_or_else(
        |e| format!("(not kept: {e})"),
        |dir| dir.display().to_string(),
    );
    Err(format!(
        "{why}\n\nthe last warnings of the agent:\n{}\n\nseed {}; evidence: {kept}; again: cargo xtask chaos --seed {}",
        said.join("\n"),
        options.seed,
        options.seed
    )
    .into())
}

/// The agent starts and has its first pods.
fn set_up(world: &mut World) -> Result<(), Failure> {
    world.stage.start_agent()?;
    let archive = world.stage.base.join("first.tar");
    world.stage.write_image(&archive, IMAGE)?;
    world
        .stage
        .client(&["image", "import", &archive.display().to_string()])?;
    let kinds = match &world.cluster {
        Some(cluster) => {
            cluster.ready()?;
            [Kind::Member, Kind::Member, Kind::Task, Kind::Plain]
        }
        None => [Kind::Full, Kind::Plain, Kind::Plain, Kind::Job],
    };
    for kind in kinds {
        world.add(kind)?;
    }
    world.settle().map(drop)
}

fn phases(world: &mut World, options: &Options, phases: &[Phase]) -> Result<(), Failure> {
    for (name, quick, phase) in phases {
        let audits = name.ends_with("audit");
        let asked = options
            .only
            .as_ref()
            .is_none_or(|only| audits || only.split(',').any(|o| o == *name));
        if asked && (*quick || !options.quick) {
            one_phase(world, name, options.quick, |world| phase(world, options))?;
        }
    }
    Ok(())
}

/// One phase and the audit that follows.
fn one_phase(
    world: &mut World,
    name: &str,
    briefly: bool,
    phase: impl FnOnce(&mut World) -> Result<String, Failure>,
) -> Result<(), Failure> {
    let watch = Watch::start();
    let done = phase(world).and_then(|seen| {
        if briefly {
            audit_briefly(world)?;
        } else {
            audit(world)?;
        }
        Ok(seen)
    });
    let told = world.told();
    match done {
        Ok(seen) => println!("✓ {name}: {seen} ({:.0} s)", watch.elapsed().as_secs_f64()),
        Err(why) => return Err(format!("✗ {name}: {why}\nlast done: {told:?}").into()),
    }
    Ok(())
}

/// Every pod is removed; the audit then allows nothing. Then the agent ends, and no trace of it is left.
fn finish(world: &mut World, name: &str) -> Result<(), Failure> {
    one_phase(world, name, false, |world| {
        world.remove_all()?;
        world.settle()?;
        Ok("all pods removed".into())
    })?;
    world.stage.stop_all()?;
    until(LIMIT, || {
        let left: Vec<String> = world
            .stage
            .mounts()
            .into_iter()
            .filter(|m| {
                Path::new(m) != world.stage.base.join("root") && Path::new(m) != world.stage.run
            })
            .collect();
        if left.is_empty() {
            Ok(())
        } else {
            Err(format!("mounts are left: {left:?}").into())
        }
    })?;
    output(Command::new("umount").arg(world.stage.base.join("root")))?;
    world.stage.dismantle()?;
    let traces = world.stage.traces();
    if traces.is_empty() {
        Ok(())
    } else {
        Err(format!("traces are left:\n{}", traces.join("\n")).into())
    }
}

/// The agent dies at each crash point.
fn every_point(world: &mut World, options: &Options) -> Result<String, Failure> {
    let dir = options.from.as_deref().unwrap_or_else(|| Path::new(""));
    let mut points = points::all(&dir.join(SOURCES))?;
    points.retain(|point| points::is_of_cluster(point) == world.cluster.is_some());
    for (count, point) in points.iter().enumerate() {
        let since = Watch::start();
        points::meet(world, point, options.quick).map_err(|e| format!("at {point}: {e}"))?;
        let met = if options.quick && (count + 1) % QUICK_POINTS_PER_AUDIT != 0 {
            Ok(())
        } else {
            audit_briefly(world)
        };
        met.map_err(|e| format!("after {point}: {e}"))?;
        println!("  died at {point} ({:.1} s)", since.elapsed().as_secs_f64());
        world.told();
    }
    Ok(format!("died at each of {} crash points", points.len()))
}

/// The agent dies whenever the dice say so, while pods come and go.
fn random_kills(world: &mut World, options: &Options) -> Result<String, Failure> {
    let watch = Watch::start();
    let mut killed = 0;
    let mut audited = 0;
    let kills = match world.cluster.is_some() {
        true => options.kills / KILLS_PER_MEMBER_KILL,
        false => options.kills,
    };
    while killed < kills && options.limit.is_none_or(|limit| watch.elapsed() < limit) {
        for _ in 0..=world.rng.below(3) {
            world.churn()?;
        }
        pass(Duration::from_millis(world.rng.below(LIFE_MS)));
        world.stage.kill_agent()?;
        killed += 1;
        if world.rng.chance(30) {
            world.churn()?;
        }
        if killed < kills && world.rng.chance(25) {
            // Also while it looks for what the one before it left.
            world.stage.spawn_agent()?;
            pass(Duration::from_millis(world.rng.below(150)));
            world.stage.kill_agent()?;
            killed += 1;
        }
        world.stage.start_agent()?;
        if killed - audited >= KILLS_PER_AUDIT {
            audited = killed;
            audit_briefly(world).map_err(|e| format!("after {killed} kills: {e}"))?;
            println!("  {killed} kills ({:.0} s)", watch.elapsed().as_secs_f64());
            world.told();
        }
    }
    Ok(format!("killed {killed} times"))
}

/// Puts the agent's root directory on a disk of its own, which can then be filled, frozen and made read-only.
fn mount_disk(stage: &Stage) -> Result<(), Failure> {
    let file = disk(stage);
    call(Command::new("truncate").args(["-s", DISK]).arg(&file))?;
    call(
        Command::new("mkfs.ext4")
            .args(["-q", "-F", "-m", "0"])
            .arg(&file),
    )?;
    call(
        Command::new("mount")
            .args(["-o", "loop"])
            .arg(&file)
            .arg(stage.base.join("root")),
    )
}

/// The file that is the disk.
fn disk(stage: &Stage) -> PathBuf {
    stage.base.join("disk")
}

/// Copies what tells how it came to a failure.
fn keep_evidence(world: &mut World) -> Result<PathBuf, Failure> {
    let dir = PathBuf::from(format!("/tmp/picolet-chaos-{}", std::process::id()));
    fs::create_dir_all(&dir)?;
    let stage = &world.stage;
    let copy = |what: &Path, name: &str| {
        // Sockets and FIFOs are not copied, and what vanishes meanwhile is no loss.
        let _ = Command::new("sh")
            .args(["-c", "cd \"$1\" && find . -xdev -type f -size -200k ! -name .witness | cpio -pdm --quiet \"$2\" 2>/dev/null || cp -a \"$1\" \"$2\" 2>/dev/null", "sh"])
            .arg(what)
            .arg(dir.join(name))
            .status();
    };
    copy(&stage.run, "run");
    copy(&stage.base.join("ledger"), "ledger");
    copy(&stage.base.join("manifests"), "manifests");
    if let Some(cluster) = &world.cluster {
        copy(cluster.dir(), "plane");
        let pods = cluster.pods().map(serde_json::Value::from);
        let pods = pods.map_or_else(|e| e.to_string(), |pods| pods.to_string());
        fs::write(dir.join("api-pods.json"), pods)?;
    }
    let _ = fs::copy(stage.base.join("agent.log"), dir.join("agent.log"));
    for (name, script) in [
        ("mountinfo", "cat /proc/self/mountinfo"),
        ("processes", "ps axfww -o pid,ppid,stat,lstart,args"),
        ("rules", "iptables-save; ip6tables-save; nft list ruleset"),
    ] {
        let said =
            output(Command::new("sh").args(["-c", script])).unwrap_or_else(|e| e.to_string());
        fs::write(dir.join(name), said)?;
    }
    let pods = stage.client(&["get", "pods", "-A", "-o", "json"]);
    fs::write(
        dir.join("pods.json"),
        pods.unwrap_or_else(|e| e.to_string()),
    )?;
    Ok(dir)
}
