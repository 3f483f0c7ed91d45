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

/// What is kept though the program does not reach it: an item, by its file and the words that its line begins with, and
/// why. What it needs is kept with it. One that is reached by now is an error. May only shrink.
type Kept = (&'static str, &'static str, &'static str);
const KEPT: &[Kept] = &[
    ("src/grpc/server.rs", "pub fn metadata(", GRPC),
    ("src/grpc/client.rs", "pub fn call_unary<", GRPC),
    ("src/grpc/client.rs", "pub async fn next_answer<", GRPC),
    ("src/grpc/proto/mod.rs", "pub fn formed(", GRPC),
    ("src/grpc/proto/mod.rs", "Zigzag,", GRPC),
    (
        "src/runtime/runc/mod.rs",
        "pub async fn check_network(",
        "CNI's CHECK, which tests ask of real plugins",
    ),
    ("src/shim/control.rs", "pub async fn close_stdin(", SHIM),
    ("src/shim/control.rs", "pub async fn resize_terminal(", SHIM),
    ("src/shim/control.rs", "pub async fn next_event(", SHIM),
    ("src/shim/control.rs", "pub async fn send_input(", SHIM),
    ("src/shim/launch.rs", "pub shim_pid: ", SHIM),
    (
        "src/sys/file.rs",
        "pub fn set_watcher(",
        "where the simulation stops the disk, in the code that ships",
    ),
];
const GRPC: &str = "what plugins will be answered with";
const SHIM: &str = "the shim's protocol as a test speaks it to a real shim";
/// What tests of any runtime run, beside the seam that it describes.
const CONTRACT: &str = "src/runtime/contract.rs";
/// What programs have whose C library is not glibc, as those for boards: the one that is looked at here may have it.
const HEAP: &str = "src/sys/heap.rs";

const KEPT_MARK: &str = "#[expect(dead_code)]";
const UNFULFILLED: &str = "unfulfilled_lint_expectations";

/// Crates that become modules again, in the order of their layers.
const CRATES: [&str; 3] = ["api", "grpc", "logic"];

/// Lists what is dead; an error if anything is.
pub(crate) fn run() -> Result<(), Failure> {
    // What is not the project's is checked as lints and documentation check it, in the same place: once.
    let mut dead = dead_code(Path::new("."), Path::new(DIR), Path::new("target"), KEPT)?;
    dead.retain(|line| ![CONTRACT, HEAP].iter().any(|file| line.starts_with(file)));
    if dead.is_empty() {
        println!("The program reaches all of its code, but for what is kept with a reason.");
        return Ok(());
    }
    for line in &dead {
        println!("{line}");
    }
    Err(format!("{} places that are not as they should be", dead.len()).into())
}

/// What of the program in `root` is dead: place and message of each, sorted. Works in `dir`, builds in `target`.
fn dead_code(
    root: &Path,
    dir: &Path,
    target: &Path,
    kept: &[Kept],
) -> Result<Vec<String>, Failure> {
    let src = dir.join("src");
    if src.exists() {
        fs::remove_dir_all(&src)?;
    }
    copy(&root.join("src"), &src)?;
    fs::write(dir.join("Cargo.toml"), manifest(root)?)?;
    fs::copy(root.join("Cargo.lock"), dir.join("Cargo.lock"))?;
    if root.join("build.rs").exists() {
        // It makes files that the program has in it, and reads these.
        fs::copy(root.join("build.rs"), dir.join("build.rs"))?;
        copy(&root.join("cross"), &dir.join("cross"))?;
    }
    for (path, words, _) in kept {
        keep(&dir.join(path), words)?;
    }
    for name in CRATES {
        become_module(&src.join(name), name)?;
    }
    fs::write(src.join("main.rs"), program(root)?)?;
    fs::remove_file(src.join("lib.rs"))?;
    let mut check = cargo();
    check
        .args(["check", "--message-format=json", "--manifest-path"])
        .arg(dir.join("Cargo.toml"))
        .env("CARGO_TARGET_DIR", std::path::absolute(target)?);
    read_dead(&mut check)
}

/// Tells the compiler that one item is expected to be dead: it then takes what that needs for needed, and complains once
/// it is not dead any more.
fn keep(file: &Path, words: &str) -> Result<(), Failure> {
    let text = fs::read_to_string(file)?;
    let is_it = |line: &&str| line.trim_start().starts_with(words);
    if text.lines().filter(is_it).count() != 1 {
        return Err(format!(
            "{}: no single {words:?} is there to be kept",
            file.display()
        )
        .into());
    }
    let before = text.split_inclusive('\n').take_while(|line| !is_it(line));
    let before: usize = before.map(str::len).sum();
    let at = before + text[before..].find(words).unwrap_or_default();
    let kept = format!("{}{KEPT_MARK} {}", &text[..at], &text[at..]);
    Ok(fs::write(file, kept)?)
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
fn manifest(root: &Path) -> Result<String, Failure> {
    let own = format!("\n{}", fs::read_to_string(root.join("Cargo.toml"))?);
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
    // Features of the project's own crates are those of the one program.
    let features: String = section("features")
        .lines()
        .map(|line| match line.split_once(" = ") {
            Some((name, on)) if on.contains("picolet-logic/") => format!("{name} = []\n"),
            _ => format!("{line}\n"),
        })
        .collect();
    Ok(format!(
        "[package]\n{}\n[features]\n{}\n[workspace]\n\n[build-dependencies]\n{}\n[profile.dev]\n{}\n[dependencies]\n{dependencies}",
        section("package"),
        features,
        section("build-dependencies"),
        section("profile.dev"),
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
fn program(root: &Path) -> Result<String, Failure> {
    let library = fs::read_to_string(root.join("src/lib.rs"))?;
    let modules: String = library
        .lines()
        .filter(|line| !line.starts_with("//!") && !line.starts_with("pub use picolet_"))
        .map(|line| format!("{}\n", line.strip_prefix("pub ").unwrap_or(line)))
        .collect();
    let program = fs::read_to_string(root.join("src/main.rs"))?;
    // Attributes of the whole crate come first.
    let (inner, rest): (Vec<&str>, Vec<&str>) = program
        .lines()
        .filter(|line| !line.starts_with("//!"))
        .partition(|line| line.starts_with("#!["));
    Ok(format!(
        "{}\n{modules}\nmod api;\nmod grpc;\nmod logic;\n{}\n",
        inner.join("\n"),
        rest.join("\n").replace("picolet::", "crate::"),
    ))
}

fn read_dead(check: &mut Command) -> Result<Vec<String>, Failure> {
    let mut child = check.stdout(Stdio::piped()).spawn()?;
    let out = child.stdout.take().ok_or("no output of cargo")?;
    let mut dead = Vec::new();
    for line in BufReader::new(out).lines() {
        let said: Value = serde_json::from_str(&line?)?;
        let message = &said["message"];
        let code = message["code"]["code"].as_str().unwrap_or_default();
        if ["dead_code", UNFULFILLED].contains(&code) {
            let text = message["message"].as_str().unwrap_or_default();
            let spans = message["spans"].as_array().map(Vec::as_slice);
            for span in spans.unwrap_or_default() {
                if span["is_primary"] == true {
                    let file = span["file_name"].as_str().unwrap_or_default();
                    let words = span["text"][0]["text"].as_str().unwrap_or_default().trim();
                    // Other expectations of the program mean what it is as a library.
                    if code != UNFULFILLED || words.starts_with(KEPT_MARK) {
                        dead.push(format!("{file}:{}: {text}: {words}", span["line_start"]));
                    }
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

#[cfg(test)]
mod tests {
    use std::env;

    use super::*;

    const RULES: &str = "//! Rules.\n#![no_std]\nuse picolet_api as api;\n/// Called.\npub fn shipped() -> u8 { api::one() }\n\
         /// Only its test calls it.\npub fn planted() -> u8 { needed() }\nfn needed() -> u8 { api::one() + 1 }\n\
         #[cfg(test)]\nmod tests {\n    #[test]\n    fn planted() { assert_eq!(super::planted(), 2); }\n}\n";
    const FILES: [(&str, &str); 7] = [
        (
            "Cargo.toml",
            "[package]\nname = \"picolet\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n[dependencies]\n",
        ),
        ("Cargo.lock", "version = 4\n"),
        (
            "src/api/lib.rs",
            "//! Objects.\n#![no_std]\n/// One.\npub fn one() -> u8 { 1 }\n",
        ),
        ("src/grpc/lib.rs", "//! Frames.\n#![no_std]\n"),
        ("src/logic/lib.rs", RULES),
        (
            "src/lib.rs",
            "//! Front page.\npub use picolet_api as api;\npub use picolet_logic as logic;\n",
        ),
        (
            "src/main.rs",
            "//! Program.\nfn main() { assert_eq!(picolet::logic::shipped(), 1); }\n",
        ),
    ];

    #[test]
    fn a_rule_that_only_tests_call_is_found() {
        let root = env::temp_dir().join(format!("reach-{}", std::process::id()));
        for (path, text) in FILES {
            let path = root.join(path);
            fs::create_dir_all(path.parent().expect("a directory")).expect("directory");
            fs::write(path, text).expect("file");
        }
        let dead = |kept: &[Kept]| {
            let one = root.join("one");
            dead_code(&root, &one, &one.join("target"), kept).map_err(|e| e.to_string())
        };
        let file = "src/logic/lib.rs";
        let lines = dead(&[]).expect("compiles");
        let found = |words: &str| lines.iter().filter(|line| line.contains(words)).count();
        assert_eq!(
            (lines.len(), found("`planted`"), found("`needed`")),
            (2, 1, 1),
            "{lines:?}"
        );
        // Kept with what it needs; and no longer once it is reached, or is not there.
        assert_eq!(dead(&[(file, "pub fn planted(", "why")]), Ok(Vec::new()));
        let reached = dead(&[
            (file, "pub fn planted(", "why"),
            (file, "pub fn shipped(", "why"),
        ]);
        assert_eq!(reached.map(|lines| lines.len()), Ok(1));
        assert!(dead(&[(file, "pub fn gone(", "why")]).is_err());
        fs::remove_dir_all(&root).expect("removed");
    }
}
