//! `cargo xtask test`: everything a change has to pass, in one command.

use std::{
    collections::VecDeque,
    env,
    io::{BufRead, BufReader, Write, pipe},
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

/// What a test prints when it cannot run here.
const SKIPPED: &str = "SKIPPED ";

/// Lines of a failed step that are repeated at the end, of each kind: what says that something failed, and the last ones.
const MAX_REPEATED: usize = 30;
/// What a line has that says so.
const TELLING: [&str; 5] = [
    "FAILED",
    "panicked at",
    "error: ",
    "error[",
    "timeout: sending",
];

/// Seconds that one step may take where nobody watches: one that hangs fails, and the others are still heard of.
const STEP_LIMIT_S: u32 = 40 * 60;
/// Seconds that it then has to end.
const STEP_GRACE_S: u32 = 10;

/// Names directories in which tests look for a kubectl.
const KUBECTLS: &str = "K8S_BIN";

/// `--vm`: the virtual machine also where there is no KVM, by User Mode Linux.
const MACHINE: &str = "--vm";

pub(crate) fn run(words: &[String]) -> Result<(), Failure> {
    if let Some(odd) = words.iter().find(|word| *word != MACHINE) {
        return Err(format!("unknown option {odd:?}; known: {MACHINE}").into());
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
        let (passed, lines) = match watch_output(command, skipped) {
            Ok(None) => ("passed".into(), None),
            Ok(Some(lines)) => ("FAILED".into(), Some(lines)),
            Err(e) => (format!("FAILED ({e})"), Some(Telling::default())),
        };
        println!("== {name}: {passed} in {} s", watch.elapsed().as_secs());
        if let Some(lines) = lines {
            failed.push((name.to_owned(), lines));
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
            "--test",
            "pull_memory",
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
    let wanted = vm::is_quick() || !words.is_empty();
    if wanted && is_root() && vm::is_possible() {
        let mut command = cargo();
        command.args(["xtask", "vm"]);
        step("machine", &mut command, &mut skipped);
    } else {
        skipped.push(
            "the virtual machine (cgroup v2, systemd, AppArmor, power cut): it needs root and x86-64; \
             run `cargo xtask test --vm` or `cargo xtask vm`"
                .into(),
        );
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
                // Not this program's own file: cargo may have put another in its place since.
                let mut command = cargo();
                command.args(["xtask", task]).args(TESTED_BOARDS);
                step(task, &mut command, &mut skipped);
            }
        }
    }
    // Last, so that what CI shows of a long log ends with the tests' own count.
    let mut command = cargo();
    command.args(["test", "--workspace", "--no-fail-fast"]);
    // Tests take every kubectl that they find.
    match install::old_kubectl() {
        Ok(dir) => {
            let at_hand = env::var_os(KUBECTLS);
            let dirs = at_hand.iter().flat_map(env::split_paths).chain([dir]);
            command.env(KUBECTLS, env::join_paths(dirs)?);
        }
        Err(e) => skipped.push(format!("Debian's kubectl: {e}")),
    }
    step("tests", &mut command, &mut skipped);

    println!();
    skipped.sort();
    skipped.dedup();
    if skipped.is_empty() {
        println!("Nothing was skipped.");
    }
    for what in &skipped {
        println!("Skipped: {what}");
    }
    for (name, lines) in &failed {
        println!("\n== what {name} said:");
        lines.print();
    }
    if failed.is_empty() {
        println!(
            "All passed: format, lints, documentation, budgets, fuzz, simulation, boards, chaos, \
             tests."
        );
        Ok(())
    } else {
        let names: Vec<_> = failed.into_iter().map(|(name, _)| name).collect();
        Err(format!("failed: {}", names.join(", ")).into())
    }
}

/// What a failed step said, as far as it is repeated where a long log ends.
#[derive(Default)]
struct Telling {
    /// Lines that say what failed: the first of them.
    telling: Vec<String>,
    last: VecDeque<String>,
}

impl Telling {
    fn note(&mut self, line: &str) {
        if self.telling.len() < MAX_REPEATED && TELLING.iter().any(|word| line.contains(word)) {
            self.telling.push(line.to_owned());
        }
        if self.last.len() == MAX_REPEATED {
            self.last.pop_front();
        }
        self.last.push_back(line.to_owned());
    }

    fn print(&self) {
        for line in &self.telling {
            println!("{line}");
        }
        println!("[...]");
        for line in &self.last {
            println!("{line}");
        }
    }
}

/// `command` with an end to its patience in CI, by timeout(1). A person ends what hangs, and that with all its children.
fn limited(command: &Command) -> Command {
    let mut limited = if env::var_os("CI").is_some() {
        let mut timeout = Command::new("timeout");
        timeout
            .arg("--verbose")
            .arg(format!("--kill-after={STEP_GRACE_S}"))
            .arg(STEP_LIMIT_S.to_string())
            .arg(command.get_program());
        timeout
    } else {
        Command::new(command.get_program())
    };
    limited.args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    limited
}

/// Runs `command`, passing its output on and noting what it says it skipped; returns what it said if it failed.
fn watch_output(command: &Command, skipped: &mut Vec<String>) -> Result<Option<Telling>, Failure> {
    let mut command = limited(command);
    // One pipe for both streams keeps their order; what was printed before must be out.
    std::io::stdout().flush()?;
    let (output, writer) = pipe()?;
    command
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer);
    let mut child = command.spawn()?;
    // This process's own ends would keep the pipe open.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut lines = Telling::default();
    for line in BufReader::new(output).split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        if let Some(at) = line.find(SKIPPED) {
            skipped.push(line[at + SKIPPED.len()..].to_owned());
        }
        lines.note(&line);
    }
    let status = child.wait()?;
    if status.success() {
        return Ok(None);
    }
    lines.note(&format!("It ended with {status}."));
    Ok(Some(lines))
}
