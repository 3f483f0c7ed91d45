//! `cargo xtask fuzz`: every parser of what comes from outside on mutated inputs, without coverage.
//!
//! The targets are in `src/fuzz`; `fuzz/` drives the same with libFuzzer.

use std::process::Command;

use crate::{Failure, process::cargo};

/// How long, unless it is said.
const SECONDS: u32 = 60;
/// How long in `cargo xtask test`.
pub(crate) const SHORT_SECONDS: u32 = 15;

/// `[--seconds N | --runs N] [--seed N] [TARGET]`.
pub(crate) fn run(words: &[String]) -> Result<(), Failure> {
    let (mut long, mut seed, mut target) = (Long::Seconds(SECONDS), 1_u64, "");
    let mut words = words.iter().map(String::as_str);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a number"));
        match word {
            "--seconds" => long = Long::Seconds(value()?.parse()?),
            "--runs" => long = Long::Runs(value()?.parse()?),
            "--seed" => seed = value()?.parse()?,
            word if word.starts_with('-') => return Err(format!("unknown flag {word}").into()),
            word => target = word,
        }
    }
    let status = command(long, seed, target).status()?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("seed {seed}: {status}").into())
    }
}

/// How long to go on.
#[derive(Clone, Copy)]
pub(crate) enum Long {
    /// All targets together.
    Seconds(u32),
    /// Inputs for each target. Optimised, with the checks of a debug build.
    Runs(u64),
}

/// The call that runs all targets, or the one called `target`.
fn command(long: Long, seed: u64, target: &str) -> Command {
    let mut command = cargo();
    command.args(["test", "--lib", "--quiet"]);
    if let Long::Runs(_) = long {
        command
            .args(["--profile", "try"])
            .env("CARGO_PROFILE_TRY_DEBUG_ASSERTIONS", "true")
            .env("CARGO_PROFILE_TRY_OVERFLOW_CHECKS", "true");
    }
    command.arg("--");
    set(&mut command, long, seed, target);
    command
}

/// Has the library's tests do it.
pub(crate) fn set(tests: &mut Command, long: Long, seed: u64, target: &str) {
    let (seconds, runs) = match long {
        Long::Seconds(n) => (n, 0),
        Long::Runs(n) => (0, n),
    };
    tests
        .args([
            "fuzz::run::longer_run",
            "--ignored",
            "--exact",
            "--nocapture",
        ])
        .env("PICOLET_FUZZ", format!("{seconds} {runs} {seed} {target}"));
}
