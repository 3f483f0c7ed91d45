//! `cargo xtask mutants`: plants known bugs, one after the other, and asks the tests whether they notice.
//!
//! A mutant is a file of `tests/mutants`: a sentence that says what is wrong with it, and what to change where.
//!
//! ```text
//! A container that failed is started again at once.
//!
//! src/logic/backoff.rs
//! <<<<
//! the text as it is, which stands there once
//! ====
//! the text as it shall be
//! >>>>
//! ```
//!
//! It works on a copy of the project in `target/mutants`, so that a build of a mutant begins with what the one before built.

use std::{
    fs,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};

use crate::{
    Failure,
    process::{cargo, output},
    wait::{Watch, pass},
};

const MUTANTS: &str = "tests/mutants";
const TREE: &str = "target/mutants/tree";
/// Schedules of each kind that the simulation gets to find a mutant.
const SCHEDULES: u32 = 300;
/// Least number of mutants.
const MIN_MUTANTS: usize = 30;
/// How long the tests of a proof may take; those of a mutant may go round for ever.
const LIMIT: Duration = Duration::from_secs(900);
/// Between two looks at tests that run.
const LOOK: Duration = Duration::from_millis(50);
/// Tests that are named of those that noticed.
const NAMED: usize = 3;

/// Tests that may notice, in the order in which they are asked. Name, and arguments of cargo.
const PROOFS: [(&str, &[&str]); 3] = [
    ("rules", &["-p", "picolet-logic", "--lib", "--"]),
    (
        "agent",
        &[
            "-p",
            "picolet",
            "--lib",
            "--",
            "agent::",
            "--skip",
            "agent::sim::",
        ],
    ),
    (
        "simulation",
        &[
            "-p",
            "picolet",
            "--lib",
            "--",
            "--include-ignored",
            "agent::sim::schedules",
            "agent::sim::cluster_schedules",
            "agent::sim::regressions",
        ],
    ),
];

const HELP: &str = "\
Usage: cargo xtask mutants [--all] [NAME…]

  --all   Ask every proof about each mutant; else the first that notices is enough
  NAME    Only these files of tests/mutants, without .txt
";

/// A bug to plant.
#[derive(Debug)]
struct Mutant {
    name: String,
    /// What is wrong with it.
    sentence: String,
    changes: Vec<Change>,
}

#[derive(Debug)]
struct Change {
    file: PathBuf,
    from: String,
    to: String,
}

/// What a proof said.
enum Verdict {
    /// Its tests pass.
    Passed,
    /// These fail; none if they do not end.
    Failed(Vec<String>),
}

pub(crate) fn run(args: &[String]) -> Result<(), Failure> {
    let (flags, names): (Vec<&String>, Vec<&String>) =
        args.iter().partition(|arg| arg.starts_with('-'));
    if let Some(flag) = flags.iter().find(|flag| **flag != "--all") {
        return Err(format!("unknown argument {flag:?}\n\n{HELP}").into());
    }
    let mut mutants = read_all(Path::new(MUTANTS))?;
    if names.is_empty() && mutants.len() < MIN_MUTANTS {
        return Err(format!("{MUTANTS} has only {} mutants", mutants.len()).into());
    }
    if !names.is_empty() {
        mutants.retain(|mutant| names.contains(&&mutant.name));
        if mutants.len() != names.len() {
            return Err(format!("{MUTANTS} has not all of {names:?}").into());
        }
    }
    copy_project()?;
    // Who does not pass as it is says nothing of a mutant.
    for (proof, arguments) in PROOFS {
        if let Verdict::Failed(tests) = ask(arguments)? {
            return Err(format!("{proof}: fails without a mutant: {tests:?}").into());
        }
    }
    let mut missed = Vec::new();
    println!("| mutant | what is wrong | noticed by |\n|---|---|---|");
    for mutant in &mutants {
        let by = judge(mutant, !flags.is_empty())?;
        if by.is_empty() {
            missed.push(mutant.name.as_str());
        }
        let shown = if by.is_empty() {
            "NOBODY"
        } else {
            &by.join("; ")
        };
        println!("| {} | {} | {shown} |", mutant.name, mutant.sentence);
    }
    match missed.as_slice() {
        [] => Ok(()),
        missed => Err(format!("nobody noticed {}", missed.join(", ")).into()),
    }
}

/// Plants a mutant, asks the proofs, and takes it away again.
fn judge(mutant: &Mutant, all: bool) -> Result<Vec<String>, Failure> {
    let tree = Path::new(TREE);
    let mut kept = Vec::new();
    for change in &mutant.changes {
        let path = tree.join(&change.file);
        let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", mutant.name))?;
        if text.matches(&change.from).count() != 1 {
            let file = change.file.display();
            restore(kept)?;
            return Err(format!("{}: {file} has not its text once", mutant.name).into());
        }
        fs::write(&path, text.replacen(&change.from, &change.to, 1))?;
        kept.push((path, text));
    }
    let asked = ask_all(all);
    restore(kept)?;
    asked.map_err(|e| format!("{}: {e}", mutant.name).into())
}

fn ask_all(all: bool) -> Result<Vec<String>, Failure> {
    let mut by = Vec::new();
    for (proof, arguments) in PROOFS {
        if let Verdict::Failed(tests) = ask(arguments)? {
            let named = match tests.as_slice() {
                [] => "does not end".to_owned(),
                some => some[..some.len().min(NAMED)].join(", "),
            };
            by.push(format!("{proof} ({}): {named}", tests.len()));
            if !all {
                break;
            }
        }
    }
    Ok(by)
}

/// The last text first: a file may be changed twice.
fn restore(kept: Vec<(PathBuf, String)>) -> Result<(), Failure> {
    for (path, text) in kept.into_iter().rev() {
        fs::write(path, text)?;
    }
    Ok(())
}

fn tests(arguments: &[&str]) -> Command {
    let mut command = cargo();
    command
        .current_dir(TREE)
        .env("CARGO_TARGET_DIR", "../build")
        .env("PICOLET_SIM_SCHEDULES", SCHEDULES.to_string())
        .env("RUST_BACKTRACE", "0")
        .args(["test", "--quiet"])
        .args(arguments)
        .stdin(Stdio::null());
    command
}

/// Has tests run. A mutant that cannot be built is an error: it shows nothing.
fn ask(arguments: &[&str]) -> Result<Verdict, Failure> {
    let built = arguments.iter().position(|word| *word == "--");
    output(tests(&arguments[..built.unwrap_or(arguments.len())]).arg("--no-run"))?;
    let told = Path::new(TREE).with_file_name("told");
    let mut child = tests(arguments)
        .arg("--no-capture")
        .args(["--format", "pretty"])
        .stdout(fs::File::create(&told)?)
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()?;
    let watch = Watch::start();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if watch.elapsed() > LIMIT {
            killpg(Pid::from_raw(i32::try_from(child.id())?), Signal::SIGKILL)?;
            child.wait()?;
            return Ok(Verdict::Failed(Vec::new()));
        }
        pass(LOOK);
    };
    if status.success() {
        return Ok(Verdict::Passed);
    }
    Ok(Verdict::Failed(failed(&fs::read_to_string(&told)?)))
}

/// Names of the tests that failed, as the list at the end has them.
fn failed(told: &str) -> Vec<String> {
    let list = told.rsplit("\nfailures:\n").next().unwrap_or("");
    let names = list.lines().map_while(|line| line.strip_prefix("    "));
    names.map(|name| name.trim().to_owned()).collect()
}

/// Brings the copy up to date. What is the same keeps its time, and what was built of it.
fn copy_project() -> Result<(), Failure> {
    let listed = output(Command::new("git").args([
        "ls-files",
        "--cached",
        "--others",
        "--exclude-standard",
    ]))?;
    let files: Vec<&str> = listed
        .lines()
        .filter(|file| Path::new(file).is_file())
        .collect();
    remove_others(Path::new(TREE), &files)?;
    for file in files {
        let (text, copy) = (fs::read(file)?, Path::new(TREE).join(file));
        if fs::read(&copy).is_ok_and(|old| old == text) {
            continue;
        }
        fs::create_dir_all(copy.parent().ok_or("no folder")?)?;
        fs::copy(file, &copy)?;
    }
    Ok(())
}

/// Removes what an earlier copy had and the project has no more.
fn remove_others(dir: &Path, files: &[&str]) -> Result<(), Failure> {
    for entry in fs::read_dir(dir).into_iter().flatten() {
        let path = entry?.path();
        if path.is_dir() {
            remove_others(&path, files)?;
        } else if !files.iter().any(|file| path == Path::new(TREE).join(file)) {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

fn read_all(dir: &Path) -> Result<Vec<Mutant>, Failure> {
    let mut mutants = Vec::new();
    for entry in fs::read_dir(dir).map_err(|e| format!("{}: {e}", dir.display()))? {
        let path = entry?.path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let text = fs::read_to_string(&path)?;
        let mutant = parse(&name, &text).map_err(|e| format!("{}: {e}", path.display()))?;
        mutants.push(mutant);
    }
    mutants.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(mutants)
}

fn parse(name: &str, text: &str) -> Result<Mutant, &'static str> {
    let (sentence, mut rest) = text
        .split_once("\n\n")
        .ok_or("a sentence is wanted first")?;
    let mut changes = Vec::new();
    while !rest.trim().is_empty() {
        let (file, change) = rest
            .split_once("\n<<<<\n")
            .ok_or("a file and <<<< are wanted")?;
        let (from, change) = change.split_once("\n====\n").ok_or("==== is wanted")?;
        let (to, after) = change.split_once("\n>>>>\n").ok_or(">>>> is wanted")?;
        changes.push(Change {
            file: file.trim().into(),
            from: from.into(),
            to: to.into(),
        });
        rest = after;
    }
    if changes.is_empty() {
        return Err("nothing is changed");
    }
    Ok(Mutant {
        name: name.into(),
        sentence: sentence.replace('\n', " "),
        changes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_planted_text_stands_in_the_code_once() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mutants = read_all(&root.join(MUTANTS)).expect("mutants");
        assert!(mutants.len() >= MIN_MUTANTS, "{}", mutants.len());
        for mutant in mutants {
            for Change { file, from, to } in mutant.changes {
                let text = fs::read_to_string(root.join(&file)).expect("its file");
                assert_eq!(text.matches(&from).count(), 1, "{}: {from}", mutant.name);
                assert_ne!(from, to, "{}", mutant.name);
            }
        }
    }

    #[test]
    fn what_failed_is_read_off() {
        let told = "test a ... FAILED\n\nfailures:\n\n---- a stdout ----\nno\n\nfailures:\n    a::b\n    c\n\n\
                    test result: FAILED. 1 passed\n";
        assert_eq!(failed(told), ["a::b", "c"]);
        assert!(parse("m", "Sentence.\n\n").is_err());
    }
}
