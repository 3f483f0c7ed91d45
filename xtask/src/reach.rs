//! `cargo xtask reach`: names what the program as it ships cannot reach.
//!
//! The compiler knows what nothing calls, but takes all that is public in a library for called. So the crates are laid out
//! once more below `target`, as modules of one program in which nothing is public, and checked: its `dead_code` warnings
//! are the answer. A rule of `logic` that only its own tests call is found this way.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
};

use serde_json::Value;

use crate::{Failure, process::cargo};

/// Where the one program is laid out.
const DIR: &str = "target/reach";
/// What is kept though the program does not reach it, and why: the start of the file's path, and words of the line. May only
/// shrink.
const KEPT: [(&str, &str, &str); 11] = [
    ("src/logic/preemption.rs", "", PREEMPTION),
    ("src/logic/admission.rs", "", PREEMPTION),
    (
        "src/logic/pleg.rs",
        "",
        "PLEG-15: relists of one pod are decided, and not asked for yet",
    ),
    ("src/logic/runtime_cache.rs", "", "PLEG-16: the same"),
    (
        "src/logic/mirror.rs",
        "",
        "a whole list of mirrors; the poller tells them one by one",
    ),
    ("src/logic/mux.rs", "Http", "manifests from a URL follow"),
    ("src/logic/pod_table.rs", "", TESTS),
    ("src/logic/mux.rs", "uids", TESTS),
    ("src/logic/", "fn len", TESTS),
    ("src/logic/", "fn is_empty", TESTS),
    ("src/logic/", "struct No", TESTS),
];
const PREEMPTION: &str = "ADM-14: preemption is decided, and not carried out yet";
const TESTS: &str = "a question that tests ask";

/// Crates that become modules again, in the order of their layers.
const CRATES: [&str; 2] = ["api", "logic"];

/// Lists what is dead; an error if anything is.
pub(crate) fn run() -> Result<(), Failure> {
    let src = Path::new(DIR).join("src");
    if src.exists() {
        fs::remove_dir_all(&src)?;
    }
    copy(Path::new("src"), &src)?;
    fs::write(Path::new(DIR).join("Cargo.toml"), manifest()?)?;
    fs::copy("Cargo.lock", Path::new(DIR).join("Cargo.lock"))?;
    for name in CRATES {
        become_module(&src.join(name), name)?;
    }
    fs::write(src.join("main.rs"), program()?)?;
    fs::remove_file(src.join("lib.rs"))?;
    let all = dead_code()?;
    for line in &all {
        println!("{line}");
    }
    // The rest of the program is told of, and not held yet.
    let rules = |line: &&String| {
        CRATES
            .iter()
            .any(|name| line.starts_with(&format!("src/{name}/")))
    };
    let kept = |line: &String| {
        let mut reasons = KEPT.iter();
        reasons.any(|(path, words, _)| line.starts_with(path) && line.contains(words))
    };
    let dead = all.iter().filter(rules).filter(|line| !kept(line)).count();
    if dead == 0 {
        println!("The program reaches every rule, but for those that are kept with a reason.");
        Ok(())
    } else {
        Err(format!(
            "{dead} places of {} that the program cannot reach",
            CRATES.join(" and ")
        )
        .into())
    }
}

fn copy(from: &Path, to: &Path) -> Result<(), Failure> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let path = entry?.path();
        let target = to.join(path.file_name().ok_or("a file without a name")?);
        if path.is_dir() {
            copy(&path, &target)?;
        } else {
            fs::copy(&path, &target)?;
        }
    }
    Ok(())
}

/// The manifest of one program: dependencies of all crates, none of them the project's own.
fn manifest() -> Result<String, Failure> {
    let own = format!("\n{}", fs::read_to_string("Cargo.toml")?);
    let section = |name: &str| {
        own.split_once(&format!("\n[{name}]\n"))
            .and_then(|(_, after)| after.split("\n[").next())
            .unwrap_or_default()
            .to_owned()
    };
    let dependencies: String = section("dependencies")
        .lines()
        .filter(|line| !line.contains("path = "))
        .map(|line| format!("{line}\n"))
        .collect();
    Ok(format!(
        "[package]\n{}\n[features]\n{}\n[workspace]\n\n[dependencies]\n{dependencies}",
        section("package"),
        section("features"),
    ))
}

/// Turns the crate in `dir` into the module `name`.
fn become_module(dir: &Path, name: &str) -> Result<(), Failure> {
    let front = fs::read_to_string(dir.join("lib.rs"))?;
    let kept: String = front
        .lines()
        .filter(|line| {
            !line.starts_with("#![no_std]")
                && !line.starts_with("extern crate")
                && *line != "#[macro_use]"
        })
        .map(|line| {
            format!(
                "{}\n",
                line.replace("use picolet_api as", "use crate::api as")
            )
        })
        .collect();
    // An attribute may have stood before what was left out.
    let kept = kept.replace("#[cfg(test)]\n\n", "\n");
    fs::remove_file(dir.join("lib.rs"))?;
    fs::write(dir.join("mod.rs"), kept)?;
    each_source(dir, &mut |path| {
        let text = fs::read_to_string(path)?;
        let moved = text
            .replace("crate::", &format!("crate::{name}::"))
            .replace("use crate::logic::api as api", "use crate::api");
        Ok(fs::write(path, moved)?)
    })
}

fn each_source(
    dir: &Path,
    done: &mut dyn FnMut(&Path) -> Result<(), Failure>,
) -> Result<(), Failure> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            each_source(&path, done)?;
        } else if path.extension().is_some_and(|e| e == "rs") {
            done(&path)?;
        }
    }
    Ok(())
}

/// The library's front page and the program in one file, with everything private.
fn program() -> Result<String, Failure> {
    let library = fs::read_to_string("src/lib.rs")?;
    let modules: String = library
        .lines()
        .filter(|line| !line.starts_with("//!") && !line.starts_with("pub use picolet_"))
        .map(|line| format!("{}\n", line.strip_prefix("pub ").unwrap_or(line)))
        .collect();
    let program = fs::read_to_string("src/main.rs")?;
    // Attributes of the whole crate come first.
    let (inner, rest): (Vec<&str>, Vec<&str>) = program
        .lines()
        .filter(|line| !line.starts_with("//!"))
        .partition(|line| line.starts_with("#!["));
    Ok(format!(
        "{}\n{modules}\nmod api;\nmod logic;\n{}\n",
        inner.join("\n"),
        rest.join("\n").replace("picolet::", "crate::"),
    ))
}

/// What the compiler calls dead: place and message of each.
fn dead_code() -> Result<Vec<String>, Failure> {
    let mut check = cargo();
    check
        .args(["check", "--message-format=json", "--manifest-path"])
        .arg(Path::new(DIR).join("Cargo.toml"))
        // Of the crates of others both know the same.
        .env("CARGO_TARGET_DIR", "target");
    read_dead(&mut check)
}

fn read_dead(check: &mut Command) -> Result<Vec<String>, Failure> {
    let mut child = check.stdout(Stdio::piped()).spawn()?;
    let out = child.stdout.take().ok_or("no output of cargo")?;
    let mut dead = Vec::new();
    for line in BufReader::new(out).lines() {
        let said: Value = serde_json::from_str(&line?)?;
        let message = &said["message"];
        if message["code"]["code"] == "dead_code" {
            let text = message["message"].as_str().unwrap_or_default();
            let spans = message["spans"].as_array().map(Vec::as_slice);
            for span in spans.unwrap_or_default() {
                if span["is_primary"] == true {
                    let file = span["file_name"].as_str().unwrap_or_default();
                    let words = span["text"][0]["text"].as_str().unwrap_or_default().trim();
                    dead.push(format!("{file}:{}: {text}: {words}", span["line_start"]));
                }
            }
        } else if message["level"] == "error" {
            eprintln!("{}", message["rendered"].as_str().unwrap_or_default());
        }
    }
    if child.wait()?.success() {
        dead.sort();
        Ok(dead)
    } else {
        Err("the one program does not compile".into())
    }
}
