//! Agents under churn are killed on control groups version 2, alone and in a cluster: a part of [`crate::chaos`], for all of it
//! takes an emulated processor an hour.

use std::{
    io::{BufRead as _, BufReader},
    process::{Command, Stdio},
};

use super::Guest;
use crate::{
    Failure,
    vm::{disk::PAYLOAD, report::Line},
};

/// The task that agents are killed by, where there is no project.
pub(crate) const TASK: &str = "vm-guest-chaos";
/// Times that the agent alone is killed; the one in a cluster has its share of them.
const KILLS: &str = "24";
/// Phases, those of a cluster first.
const PHASES: [&str; 2] = ["cluster-kills,resizes", "kills,shims"];

pub(super) fn run(guest: &mut Guest) {
    for phases in PHASES {
        let mut seen = Vec::new();
        let held = chaos(phases, |line| {
            guest.note(line.clone());
            seen.push(line);
        });
        guest.step(phases, || held.map(|()| seen.pop().unwrap_or_default()));
    }
    guest.say(&Line::End);
}

/// `told`: each line that is said meanwhile; minutes pass without a verdict.
fn chaos(phases: &str, mut told: impl FnMut(String)) -> Result<(), Failure> {
    let mut child = Command::new("/proc/self/exe")
        .args([TASK, "--only", phases, "--kills", KILLS])
        .args(["--from", PAYLOAD])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let output = child.stdout.take().ok_or("it has no output")?;
    for line in BufReader::new(output).lines() {
        told(line?);
    }
    // Its error, in the end: less than a pipe holds.
    let done = child.wait_with_output()?;
    match done.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&done.stderr).into()),
    }
}
