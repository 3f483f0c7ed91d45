//! `cargo xtask test`: everything a change has to pass, in one command.

use std::{
    env,
    io::{BufRead, BufReader, Write},
    process::{Command, Stdio},
};

use crate::{
    Failure, dist, fuzz, install,
    process::{cargo, is_root, show},
    vm,
    wait::Watch,
};

/// Boards whose programs are built, measured and tested.
const TESTED_BOARDS: [&str; 2] = ["aarch64", "armv7"];

/// What a test prints to standard error when it cannot run here.
const SKIPPED: &str = "SKIPPED ";

/// `--vm`: the virtual machine also where it has to be emulated, which takes a quarter of an hour.
const EMULATE: &str = "--vm";

pub(crate) fn run(words: &[String]) -> Result<(), Failure> {
    if let Some(odd) = words.iter().find(|word| *word != EMULATE) {
        return Err(format!("unknown option {odd:?}; known: {EMULATE}").into());
    }
    let mut skipped = Vec::new();
    for missing in install::ensure(&[&install::BUILD, &install::HOST, &install::TEST])? {
        skipped.push(format!(
            "tests that need {missing}: the package is not installed"
        ));
    }
    if !is_root() {
        skipped.push(
            "kernel tests (mounts, namespaces, cgroups, runc): they need root; run `sudo -E cargo xtask test`"
                .into(),
        );
    }

    let mut failed = Vec::new();
    let mut step = |name: &str, command: &mut Command, skipped: &mut Vec<String>| {
        println!("\n== {name}: {}", show(command));
        let watch = Watch::start();
        let passed = watch_for_skips(command, skipped);
        let word = match &passed {
            Ok(()) => "passed".into(),
            Err(e) => format!("FAILED ({e})"),
        };
        println!("== {name}: {word} in {} s", watch.elapsed().as_secs());
        if passed.is_err() {
            failed.push(name.to_owned());
        }
    };
    step(
        "format",
        cargo().args(["fmt", "--all", "--check"]),
        &mut skipped,
    );
    step(
        "lints",
        cargo().args([
            "clippy",
            "--workspace",
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ]),
        &mut skipped,
    );
    step(
        "documentation",
        cargo()
            .args([
                "doc",
                "--workspace",
                "--no-deps",
                "--document-private-items",
            ])
            .env("RUSTDOCFLAGS", "-D warnings"),
        &mut skipped,
    );
    // Budgets count for the program as it is shipped.
    step(
        "budgets",
        cargo().args([
            "test",
            "--release",
            "--test",
            "shim_memory",
            "--test",
            "budget",
        ]),
        &mut skipped,
    );
    step("simulation", &mut crate::sim::ci(false), &mut skipped);
    step(
        "simulation on disk",
        &mut crate::sim::ci(true),
        &mut skipped,
    );
    if is_root() {
        let mut command = cargo();
        command.args(["xtask", "chaos", "--quick"]);
        step("chaos", &mut command, &mut skipped);
    } else {
        skipped
            .push("kills of agent and shims (`cargo xtask chaos --quick`): they need root".into());
    }
    let has_kvm = vm::accelerator() == "kvm";
    if (has_kvm && is_root()) || !words.is_empty() {
        let mut command = cargo();
        command.args(["xtask", "vm"]);
        step("machine", &mut command, &mut skipped);
    } else {
        skipped.push(format!(
            "the virtual machine (cgroup v2, systemd, AppArmor, power cut): it needs root, and KVM to be quick; \
             run `cargo xtask test {EMULATE}` or `cargo xtask vm`"
        ));
    }
    // Another seed than the tests' own short run.
    step(
        "fuzz",
        &mut fuzz::command(fuzz::Long::Seconds(fuzz::SHORT_SECONDS), 2, ""),
        &mut skipped,
    );
    match dist::prepare(&TESTED_BOARDS) {
        Err(e) if env::var_os("CI").is_none() => {
            skipped.push(format!("programs for boards and their tests: {e}"));
        }
        // What CI does not build would rot: there the step fails.
        _ => {
            for task in ["dist", "emulate"] {
                let mut command = Command::new(env::current_exe()?);
                command.arg(task).args(TESTED_BOARDS);
                step(task, &mut command, &mut skipped);
            }
        }
    }
    // Last, so that what CI shows of a long log ends with the tests' own count.
    step(
        "tests",
        cargo().args(["test", "--workspace", "--no-fail-fast"]),
        &mut skipped,
    );

    println!();
    skipped.sort();
    skipped.dedup();
    if skipped.is_empty() {
        println!("Nothing was skipped.");
    }
    for what in &skipped {
        println!("Skipped: {what}");
    }
    if failed.is_empty() {
        println!(
            "All passed: format, lints, documentation, budgets, fuzz, simulation, boards, chaos, \
             tests."
        );
        Ok(())
    } else {
        Err(format!("failed: {}", failed.join(", ")).into())
    }
}

/// Runs `command`, passing its output on and noting what it says it skipped.
fn watch_for_skips(command: &mut Command, skipped: &mut Vec<String>) -> Result<(), Failure> {
    // The order of the two streams is kept: what was printed before must be out.
    std::io::stdout().flush()?;
    let mut child = command
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    if let Some(stderr) = child.stderr.take() {
        for line in BufReader::new(stderr).split(b'\n') {
            let line = line?;
            let line = String::from_utf8_lossy(&line);
            eprintln!("{line}");
            if let Some(at) = line.find(SKIPPED) {
                skipped.push(line[at + SKIPPED.len()..].to_owned());
            }
        }
    }
    let status = child.wait()?;
    if status.success() {
        Ok(())
    } else {
        Err(status.to_string().into())
    }
}
