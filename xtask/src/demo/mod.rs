//! `cargo xtask demo`: shows the pod host on this machine. Every step is checked; the first that does not hold ends the demo,
//! and what it made is removed either way.

mod manifests;
mod steps;

use std::time::Duration;

use crate::{Failure, install, process::is_root, stage::Stage, wait::Watch};

/// The demo itself, installation and build left out, should take less than this.
const AIM: Duration = Duration::from_secs(180);

pub(crate) fn run() -> Result<(), Failure> {
    if !is_root() {
        return Err("the demo makes namespaces, mounts and interfaces: run it as root".into());
    }
    let missing = install::ensure(&[&install::BUILD, &install::HOST])?;
    if !missing.is_empty() {
        return Err(format!("still missing after installation: {}", missing.join(", ")).into());
    }
    println!("Building the release program");
    let mut stage = Stage::new("demo")?;
    let mut show = Show {
        watch: Watch::start(),
        steps: 0,
    };
    println!("The agent's directories: {}\n", stage.base.display());
    let done = steps::all(&mut show, &mut stage);
    if done.is_err() {
        let log = stage.agent_log();
        let lines: Vec<_> = log.lines().collect();
        let from = lines.len().saturating_sub(40);
        eprintln!("\nThe agent's last words:");
        for line in &lines[from..] {
            eprintln!("  {line}");
        }
    }
    drop(stage);
    let took = show.watch.elapsed();
    done?;
    println!(
        "\nAll {} steps held, in {:.1} s.",
        show.steps,
        took.as_secs_f64()
    );
    if took > AIM {
        println!(
            "That is longer than the {} s it should take.",
            AIM.as_secs()
        );
    }
    Ok(())
}

/// Prints one line per step.
struct Show {
    watch: Watch,
    steps: u32,
}

impl Show {
    /// Runs one step and prints how it went; `check` returns what was seen.
    fn step(
        &mut self,
        what: &str,
        check: impl FnOnce() -> Result<String, Failure>,
    ) -> Result<(), Failure> {
        let since = Watch::start();
        self.steps += 1;
        match check() {
            Ok(seen) => {
                let seen = if seen.is_empty() {
                    seen
                } else {
                    format!(": {seen}")
                };
                println!("✓ {what}{seen} ({:.2} s)", since.elapsed().as_secs_f64());
                Ok(())
            }
            Err(why) => {
                println!("✗ {what}: {why}");
                Err(format!("step {} did not hold: {what}", self.steps).into())
            }
        }
    }
}
