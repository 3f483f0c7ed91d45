//! `cargo xtask sim`: the agent simulated, as often as wanted, on a machine that stands alone and on a node of a cluster.
//! The simulation itself is `tests/sim`, part of the library's tests; here its settings are typed.

use std::{
    process::Command,
    time::{SystemTime, UNIX_EPOCH},
};

use crate::{
    Failure,
    process::{cargo, show},
    wait::Watch,
};

/// Schedules of each kind, unless it is said.
const SCHEDULES: u64 = 10_000;
/// Those that every change has to pass: one of a cluster takes three times as long as one without, one of resizes some seconds.
/// With fewer than 5000 the simulation does not ask that everything has come about (`MANY` in `tests/sim`).
pub(crate) const IN_EACH_RUN: [(&str, u64); 3] = [(CLUSTER, 5000), (ALONE, 10_000), (RESIZES, 8)];

/// Seeds that no run can get through in a second.
const SEEDS_PER_SECOND: u64 = 1000;

/// Tests: schedules of a machine that stands alone, and of a node of a cluster.
const ALONE: &str = "schedules";
/// See [`ALONE`].
const CLUSTER: &str = "cluster_schedules";
/// Both.
pub(crate) const KINDS: [&str; 2] = [ALONE, CLUSTER];
/// Schedules of a node whose pods are resized.
const RESIZES: &str = "resize_schedules";

const HELP: &str = "\
Usage: cargo xtask sim [--alone | --cluster | --resizes] [--schedules N] [--seed SEED] [--jobs J]
       cargo xtask sim --replay FILE

  --alone        Only schedules of a machine without a cluster
  --cluster      Only schedules of a node of a cluster whose apiserver fails
  --resizes      Only schedules of a node whose pods are resized; each takes long
  --schedules N  So many seeds of each; 1 if --seed is given, else 10,000. From 5000 on, things that never happened fail
                 too
  --seed SEED    From this one on. Without it, other ones each time
  --jobs J       Threads (2)
  --replay FILE  A schedule as a failure prints it, one of tests/sim/regressions, or a dump of `picolet debug dump`
";

pub(crate) fn run(args: &[String]) -> Result<(), Failure> {
    let kinds: Vec<&str> = match args
        .iter()
        .find(|a| ["--alone", "--cluster", "--resizes"].contains(&&***a))
    {
        Some(flag) if flag == "--alone" => vec![ALONE],
        Some(flag) if flag == "--resizes" => vec![RESIZES],
        Some(_) => vec![CLUSTER],
        None => vec![ALONE, CLUSTER],
    };
    let mut command = simulation(&kinds);
    let (mut schedules, mut seed, mut replay) = (None, None, false);
    let mut args = args.iter();
    while let Some(flag) = args.next() {
        let mut value = || {
            args.next()
                .ok_or_else(|| format!("{flag} wants a value\n\n{HELP}"))
        };
        let mut number = || -> Result<u64, Failure> { Ok(value()?.replace('_', "").parse()?) };
        match flag.as_str() {
            "--alone" | "--cluster" | "--resizes" => {}
            "--schedules" => schedules = Some(number()?),
            "--jobs" => _ = command.env("PICOLET_SIM_JOBS", number()?.to_string()),
            "--seed" => seed = Some(number()?),
            "--replay" => {
                replay = true;
                let file = std::path::absolute(value()?)?;
                command = simulation(&["replay"]);
                command.env("PICOLET_SIM_REPLAY", file);
            }
            other => return Err(format!("unknown argument {other:?}\n\n{HELP}").into()),
        }
    }
    if !replay {
        let schedules = schedules.unwrap_or_else(|| seed.map_or(SCHEDULES, |_| 1));
        command.env("PICOLET_SIM_SCHEDULES", schedules.to_string());
        let seed = seed.unwrap_or_else(new_seed);
        println!("seeds from {seed} on");
        command.env("PICOLET_SIM_SEED", seed.to_string());
    }
    println!("{}", show(&command));
    let watch = Watch::start();
    let status = command.status()?;
    if !status.success() {
        return Err("a schedule fails; its seed and what is needed for it are above".into());
    }
    println!(
        "None failed. It took {} s, with what had to be built.",
        watch.elapsed().as_secs()
    );
    Ok(())
}

/// Has the library's tests run simulations of these kinds.
pub(crate) fn set(tests: &mut Command, kinds: &[&str], schedules: u64) {
    add_tests(tests, kinds);
    let seed = new_seed();
    println!("seeds of the simulation from {seed} on");
    tests.env("PICOLET_SIM_SEED", seed.to_string());
    tests.env("PICOLET_SIM_SCHEDULES", schedules.to_string());
}

/// First seed of this run: no two runs try the same ones. A seed that fails is mended, or stays in `tests/sim/regressions`.
#[expect(
    clippy::disallowed_methods,
    reason = "any number will do that is another one each time"
)]
fn new_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(1, |since| since.as_secs() * SEEDS_PER_SECOND)
}

fn simulation(tests: &[&str]) -> Command {
    let mut command = cargo();
    command.args(["test", "--profile", "sim", "--lib", "--"]);
    add_tests(&mut command, tests);
    command
}

fn add_tests(command: &mut Command, tests: &[&str]) {
    command.args(tests.iter().map(|test| format!("agent::sim::{test}")));
    // Each has threads of its own.
    command.args([
        "--exact",
        "--include-ignored",
        "--nocapture",
        "--test-threads=1",
    ]);
}
