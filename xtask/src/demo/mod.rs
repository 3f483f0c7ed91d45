//! `cargo xtask demo`: shows the pod host on this machine, or with `--cluster` a node of a cluster. Every step is checked; the first that does not hold ends the demo,
//! and what it made is removed either way.

mod cluster;
mod manifests;
mod steps;

pub(crate) use cluster::{Client, DOUBLE, Double};

use std::{path::PathBuf, time::Duration};

use crate::{Failure, install, process::is_root, stage::Stage, wait::Watch};

/// The demo itself, installation and build left out, should take less than this.
const AIM: Duration = Duration::from_secs(180);
/// The same with a cluster, whose control plane has to start and to go away for a while.
const CLUSTER_AIM: Duration = Duration::from_secs(300);

/// What was typed.
#[derive(Debug, Default, PartialEq)]
struct Args {
    /// A node of a cluster instead of a machine that stands alone.
    cluster: bool,
    /// Pods run on containerd.
    containerd: bool,
    /// Shown instead of the release program, and nothing is built.
    program: Option<PathBuf>,
}

fn parse(words: &[String]) -> Result<Args, Failure> {
    let mut args = Args::default();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--cluster" => args.cluster = true,
            "--runtime" => match words.next().map(String::as_str) {
                Some("containerd") => args.containerd = true,
                _ => return Err("--runtime: only containerd can be shown".into()),
            },
            "--program" => {
                let file = words.next().ok_or("--program: a file is wanted")?;
                args.program = Some(std::path::absolute(file)?);
            }
            odd => {
                let known = "--cluster, --runtime containerd, --program FILE";
                return Err(format!("unknown option {odd:?}; known: {known}").into());
            }
        }
    }
    if args.cluster && args.containerd {
        return Err("--cluster and --runtime are shown apart".into());
    }
    Ok(args)
}

/// `words` may have `--cluster` or `--runtime containerd`, and `--program FILE`.
pub(crate) fn run(words: &[String]) -> Result<(), Failure> {
    let args = parse(words)?;
    if !is_root() {
        return Err("the demo makes namespaces, mounts and interfaces: run it as root".into());
    }
    let missing = install::ensure(&[&install::BUILD, &install::HOST])?;
    if !missing.is_empty() {
        return Err(format!("still missing after installation: {}", missing.join(", ")).into());
    }
    let mut stage = if let Some(program) = args.program {
        Stage::with("demo", program)?
    } else {
        println!("Building the release program");
        Stage::new("demo")?
    };
    let mut show = Show {
        watch: Watch::start(),
        steps: 0,
    };
    println!("The agent's directories: {}\n", stage.base.display());
    let mut containerd = None;
    if args.containerd {
        containerd = Some(stage.use_containerd()?);
    }
    let (done, aim) = if args.cluster {
        (cluster::all(&mut show, &mut stage), CLUSTER_AIM)
    } else {
        let done = steps::all(&mut show, &mut stage, containerd.as_mut());
        (done, AIM)
    };
    if done.is_err() {
        let log = stage.agent_log();
        let lines: Vec<_> = log.lines().collect();
        let from = lines.len().saturating_sub(40);
        eprintln!("\nThe agent's last words:");
        for line in &lines[from..] {
            eprintln!("  {line}");
        }
    }
    // Pods end while their runtime is there.
    drop(stage);
    drop(containerd);
    let took = show.watch.elapsed();
    done?;
    println!(
        "\nAll {} steps held, in {:.1} s.",
        show.steps,
        took.as_secs_f64()
    );
    if took > aim {
        println!(
            "That is longer than the {} s it should take.",
            aim.as_secs()
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
    /// Prints what another program shows.
    fn table(&mut self, what: &str, lines: &str) {
        println!("  $ {what}");
        for line in lines.lines() {
            println!("  {line}");
        }
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words() {
        let parsed = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|&w| w.to_owned()).collect();
            parse(&words).map_err(|e| e.to_string())
        };
        assert_eq!(parsed(&[]), Ok(Args::default()));
        let both = Args {
            cluster: true,
            containerd: false,
            program: Some("/p".into()),
        };
        assert_eq!(parsed(&["--cluster", "--program", "/p"]), Ok(both));
        let on_containerd = Args {
            containerd: true,
            ..Args::default()
        };
        assert_eq!(parsed(&["--runtime", "containerd"]), Ok(on_containerd));
        parsed(&["--runtime", "docker"]).expect_err("no such runtime");
        parsed(&["--cluster", "--runtime", "containerd"]).expect_err("one of both");
        parsed(&["--program"]).expect_err("no file");
        parsed(&["cluster"]).expect_err("no option");
    }
}
