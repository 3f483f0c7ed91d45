//! `cargo xtask sim`: the agent simulated, as often as wanted. The simulation itself is `tests/sim`, part of the library's
//! tests; here its settings are typed.

use std::process::Command;

use crate::{
    Failure,
    process::{cargo, show},
    wait::Watch,
};

/// Schedules that every change has to pass.
pub(crate) const CI_SCHEDULES: u64 = 10_000;
/// Of these many, agents keep their records on a real disk.
pub(crate) const CI_SCHEDULES_ON_DISK: u64 = 500;

const HELP: &str = "\
Usage: cargo xtask sim [--schedules N] [--seed SEED] [--jobs J] [--disk]
       cargo xtask sim --replay FILE

  --schedules N  So many seeds; 1 if --seed is given, else 10,000. From 5000 on, things that never happened fail too
  --seed SEED    From this one on (1)
  --jobs J       Threads (2)
  --disk         The agents keep their records on a real disk
  --replay FILE  A schedule as a failure prints it, one of tests/sim/regressions, or a dump of `picolet debug dump`
";

pub(crate) fn run(args: &[String]) -> Result<(), Failure> {
    let mut command = simulation("schedules");
    let (mut schedules, mut seed, mut replay) = (None, None, false);
    let mut args = args.iter();
    while let Some(flag) = args.next() {
        let mut value = || {
            args.next()
                .ok_or_else(|| format!("{flag} wants a value\n\n{HELP}"))
        };
        let mut number = || -> Result<u64, Failure> { Ok(value()?.replace('_', "").parse()?) };
        match flag.as_str() {
            "--schedules" => schedules = Some(number()?),
            "--jobs" => _ = command.env("PICOLET_SIM_JOBS", number()?.to_string()),
            "--disk" => _ = command.env("PICOLET_SIM_DISK", "1"),
            "--seed" => seed = Some(number()?),
            "--replay" => {
                replay = true;
                let file = std::path::absolute(value()?)?;
                command = simulation("replay");
                command.env("PICOLET_SIM_REPLAY", file);
            }
            other => return Err(format!("unknown argument {other:?}\n\n{HELP}").into()),
        }
    }
    if !replay {
        let schedules = schedules.unwrap_or_else(|| seed.map_or(CI_SCHEDULES, |_| 1));
        command.env("PICOLET_SIM_SCHEDULES", schedules.to_string());
        command.env("PICOLET_SIM_SEED", seed.unwrap_or(1).to_string());
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

/// A test of the simulation, with the schedules of CI.
pub(crate) fn ci(on_disk: bool) -> Command {
    let mut command = simulation("schedules");
    let schedules = if on_disk {
        command.env("PICOLET_SIM_DISK", "1");
        CI_SCHEDULES_ON_DISK
    } else {
        CI_SCHEDULES
    };
    command.env("PICOLET_SIM_SCHEDULES", schedules.to_string());
    command
}

fn simulation(test: &str) -> Command {
    let mut command = cargo();
    command.args(["test", "--profile", "sim", "--lib"]);
    command.arg(format!("agent::sim::{test}"));
    command.args(["--", "--exact", "--include-ignored", "--nocapture"]);
    command
}
