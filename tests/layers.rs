//! Holds the layers of the crate: reads the tree, so that a forbidden import fails a test, not a review.

use std::{fs, path::Path};

/// Every source file below `dir`, with its path.
fn sources(dir: &Path, out: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(dir).expect("source directory") {
        let path = entry.expect("entry").path();
        if path.is_dir() {
            sources(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push((
                path.display().to_string(),
                fs::read_to_string(&path).expect("source"),
            ));
        }
    }
}

fn offenders(layer: &str, forbidden: &[&str]) -> Vec<String> {
    let mut files = Vec::new();
    sources(
        &Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("src")
            .join(layer),
        &mut files,
    );
    assert!(!files.is_empty(), "layer {layer} has no files");
    let mut found = Vec::new();
    for (path, text) in files {
        for (n, line) in text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or("");
            for word in forbidden {
                // A whole word: `std::` but not `my_std::`, `PodStore` but not `PodStoreError`.
                let is_of_word = |c: char| c.is_alphanumeric() || c == '_';
                let hit = code.match_indices(word).any(|(at, _)| {
                    let goes_on = word.ends_with(is_of_word)
                        && code[at + word.len()..].starts_with(is_of_word);
                    !goes_on && !code[..at].ends_with(is_of_word)
                });
                if hit {
                    found.push(format!("{path}:{}: {}", n + 1, line.trim()));
                }
            }
        }
    }
    found
}

/// What has an effect, or knows of one.
const OUTSIDE: &[&str] = &[
    "std::",
    "nix::",
    "libc::",
    "smol::",
    "async_io::",
    "log::",
    "crate::sys",
    "crate::agent",
    "crate::runtime",
    "crate::image",
    "crate::volume",
    "crate::server",
    "crate::config",
    "crate::shim",
    "crate::cgroup",
    "crate::source",
    "crate::cli",
    "crate::net",
    "crate::kube",
    "crate::probe",
    "crate::bus",
    "crate::parts",
];

/// Names of the crates that the crate in `dir` depends on, its tests' own left out.
fn dependencies(dir: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join(dir)
        .join("Cargo.toml");
    let text = fs::read_to_string(path).expect("Cargo.toml");
    let (_, after) = text.split_once("\n[dependencies]\n").expect("dependencies");
    let table = after.split("\n[").next().unwrap_or(after);
    let names = table
        .lines()
        .filter_map(|line| line.split_once(" = "))
        .map(|(name, _)| name.to_owned());
    names.collect()
}

/// The compiler holds the rest: without `std` there is no clock, file, socket or thread to name, and no layer but `api`.
#[test]
fn logic_is_pure() {
    let lib = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/logic/lib.rs");
    let lib = fs::read_to_string(lib).expect("front page of logic");
    assert!(lib.contains("\n#![no_std]\n"));
    assert_eq!(
        dependencies("src/logic"),
        ["picolet-api", "base64", "serde", "serde_json", "thiserror"]
    );
}

#[test]
fn protocols_are_pure() {
    let outside = [OUTSIDE, &["crate::logic"]].concat();
    assert_eq!(offenders("stream", &outside), Vec::<String>::new());
}

#[test]
fn api_is_data() {
    assert_eq!(
        dependencies("src/api"),
        ["base64", "serde", "serde_json", "thiserror", "time"]
    );
}

/// Protocols take bytes and the time.
#[test]
fn grpc_is_pure() {
    assert_eq!(dependencies("src/grpc"), ["smol", "thiserror"]);
    for part in ["grpc/http2", "grpc/proto"] {
        let outside = ["std::io", "std::net", "std::time", "std::thread", "std::fs"];
        assert_eq!(offenders(part, &outside), Vec::<String>::new(), "{part}");
    }
}

#[test]
fn effects_do_not_know_decisions() {
    for layer in [
        "runtime", "image", "volume", "cgroup", "shim", "source", "sys", "net", "kube", "probe",
        "bus",
    ] {
        assert_eq!(
            offenders(layer, &["crate::logic", "crate::agent"]),
            Vec::<String>::new(),
            "{layer}"
        );
    }
}

/// Names of the folders below `src/parts`.
fn parts() -> Vec<String> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/parts");
    let entries = fs::read_dir(dir).expect("directory of parts");
    let dirs = entries.map(|entry| entry.expect("entry").path());
    let names = dirs.filter(|path| path.is_dir());
    names
        .map(|path| {
            path.file_name()
                .expect("name")
                .to_string_lossy()
                .into_owned()
        })
        .collect()
}

/// A part is attached in one place, and knows of no other. The compiler holds the rest: the core is compiled
/// alone.
#[test]
fn parts_do_not_know_each_other() {
    let parts = parts();
    assert!(!parts.is_empty());
    for part in &parts {
        for other in parts.iter().filter(|other| *other != part) {
            let names = [
                format!("parts::{other}"),
                format!("super::super::{other}"),
                format!("logic::{other}"),
            ];
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let found = offenders(&format!("parts/{part}"), &names);
            assert_eq!(found, Vec::<String>::new(), "{part}");
        }
    }
}

/// Most places outside `src/parts` where code depends on a feature.
const MAX_FEATURE_LINES: usize = 40;

#[test]
fn features_are_chosen_in_one_place() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&src, &mut files);
    let mut found = Vec::new();
    for (path, text) in &files {
        if Path::new(path).starts_with(src.join("parts")) {
            continue;
        }
        let lines = text.lines().filter(|line| line.contains("feature = \""));
        let lines = lines.filter(|line| !line.contains("\"crash-points\""));
        found.extend(lines.map(|line| format!("{path}: {}", line.trim())));
    }
    assert!(found.len() <= MAX_FEATURE_LINES, "{found:#?}");
}

/// What carries out a pod's calls is given what it needs; the agent's state it asks for.
#[test]
fn executors_do_not_see_the_agent() {
    let state = [
        "AgentParts",
        "StateOwners",
        "AgentCell",
        "AgentHandle",
        "PodRegistry",
        "NodeProbes",
        "RuntimeView",
        "StatusGenerator",
        "SourceMux",
        "RefCell",
    ];
    assert_eq!(offenders("agent/executor", &state), Vec::<String>::new());
}

/// The deciding side waits for nothing, does no I/O and owns what it knows.
#[test]
fn decisions_wait_for_nothing() {
    let effects = [
        "async ", "await", "RefCell", "Cell", "Lane", "std::fs", "std::net", "PodStore", "Volumes",
    ];
    assert_eq!(offenders("agent/core", &effects), Vec::<String>::new());
}

/// Fields of the largest struct of the agent: nobody holds everything, and nobody is handed everything.
const MAX_FIELDS: usize = 15;

#[test]
fn nobody_holds_everything() {
    let mut files = Vec::new();
    let agent = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/agent");
    sources(&agent, &mut files);
    let (mut structs, mut large) = (0, Vec::new());
    for (path, text) in &files {
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            if !line.contains("struct ") || !line.ends_with('{') {
                continue;
            }
            structs += 1;
            let body = lines.by_ref().take_while(|line| *line != "}");
            let is_field = |line: &&str| {
                line.starts_with("    ")
                    && !line.starts_with("     ")
                    && line.contains(": ")
                    && !line.contains("///")
            };
            let fields = body.filter(is_field).count();
            if fields > MAX_FIELDS {
                large.push(format!("{path}: {line} {fields} fields"));
            }
        }
    }
    assert!(structs > 100, "{structs} structs were found");
    assert_eq!(large, Vec::<String>::new());
}

#[test]
fn clocks_are_read_in_one_place() {
    let mut files = Vec::new();
    sources(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("src"),
        &mut files,
    );
    for (path, text) in files {
        if !path.ends_with("sys/clock.rs") {
            assert!(
                !text.contains("Instant::now(") && !text.contains("SystemTime::now("),
                "{path} reads a clock"
            );
        }
    }
}

/// Only whole modules are compiled for tests, and what makes them known: all else that tests run is what ships.
#[test]
fn tests_run_what_ships() {
    let mut files = Vec::new();
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    sources(&src, &mut files);
    let mut found = Vec::new();
    for (path, text) in &files {
        let mut lines = text.lines().map(str::trim).enumerate();
        while let Some((n, line)) = lines.next() {
            let Some((_, condition)) = line.split_once("cfg") else {
                continue;
            };
            let mut words = condition.split(|c: char| !c.is_alphanumeric() && c != '_');
            if line.starts_with("//") || !words.any(|word| word == "test") {
                continue;
            }
            let mut after = lines.clone().map(|(_, line)| line);
            let item = after
                .find(|line| !line.starts_with("#["))
                .unwrap_or_default();
            let item = match item.strip_prefix("pub") {
                Some(rest) if rest.starts_with('(') => rest.split_once(") ").map_or(rest, |s| s.1),
                Some(rest) => rest.trim_start(),
                None => item,
            };
            let is_whole = ["mod ", "use ", "extern crate "]
                .iter()
                .any(|kind| item.starts_with(kind));
            if !line.starts_with("#[cfg(") || line.contains("not(") || !is_whole {
                found.push(format!("{path}:{}: {line} {item}", n + 1));
            }
        }
    }
    assert_eq!(found, Vec::<String>::new());
}

/// Who calls has to know what went wrong, and who is at fault: an error has a type.
#[test]
fn errors_have_types() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&src, &mut files);
    let mut found = Vec::new();
    for (path, text) in &files {
        let file = Path::new(path).strip_prefix(&src).expect("of the tree");
        let of_tests = ["tests", "testing", "fuzz", "powercut"];
        if file.iter().any(|part| {
            let part = part.to_string_lossy();
            of_tests.contains(&part.trim_end_matches(".rs"))
        }) {
            continue;
        }
        let code = text.split("\nmod tests {").next().unwrap_or(text);
        let code: String = code.split_whitespace().collect();
        for (at, word) in code.match_indices("Result<") {
            if failure(&code[at + word.len()..]) == "String" {
                found.push(path);
            }
        }
    }
    assert_eq!(found, Vec::<&String>::new());
}

/// The last argument of a type, of which `rest` is what follows its `<`; empty if there is only one.
fn failure(rest: &str) -> &str {
    let (mut depth, mut last) = (0, None);
    for (at, c) in rest.char_indices() {
        match c {
            '<' | '(' | '[' => depth += 1,
            // Of an arrow.
            '>' if rest[..at].ends_with('-') => {}
            '>' if depth == 0 => {
                return last.map_or("", |from| rest[from..at].trim_end_matches(','));
            }
            '>' | ')' | ']' => depth -= 1,
            ',' if depth == 0 && !rest[at..].starts_with(",>") => last = Some(at + 1),
            _ => {}
        }
    }
    ""
}

#[test]
fn what_fails_is_seen() {
    for (text, want) in [
        ("Vec<(A,B)>,String>{", "String"),
        ("(),Box<String>>", "Box<String>"),
        ("fn(A)->B,C,>", "C"),
        ("String>", ""),
        ("A", ""),
    ] {
        assert_eq!(failure(text), want, "{text}");
    }
}

#[test]
fn the_size_of_a_page_is_asked_for() {
    // SVC-17
    let mut files = Vec::new();
    sources(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("src"),
        &mut files,
    );
    let mut asked = Vec::new();
    for (path, text) in files {
        let (code, _) = text.split_once("#[cfg(test)]").unwrap_or((&text, ""));
        for line in code.lines().map(|l| l.split("//").next().unwrap_or("")) {
            let lower = line.to_lowercase();
            let number = ["4096", "4_096", "4 << 10", "4 * 1024", "0x1000"].iter();
            let is_constant = lower.contains("page") && number.clone().any(|n| lower.contains(n));
            let is_common = path.ends_with("logic/page_size.rs");
            let is_test =
                path.contains("/tests") || path.contains("/testing") || lower.contains("huge");
            assert!(!is_constant || is_common || is_test, "{path}: {line}");
            if line.contains("SysconfVar::PAGE_SIZE") || line.contains("_SC_PAGE") {
                asked.push(path.clone());
            }
        }
    }
    let here = asked.iter().all(|path| path.ends_with("sys/pages.rs"));
    assert!(here && !asked.is_empty(), "one place asks: {asked:?}");
}

#[test]
fn what_is_configured_is_read() {
    // CONF-22: a setting that only `src/config` knows does nothing.
    let mut files = Vec::new();
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    sources(&src, &mut files);
    let is_reader = |path: &str| {
        let path = path.trim_start_matches(&*src.to_string_lossy());
        !path.starts_with("/config/") && !path.contains("tests")
    };
    let values = fs::read_to_string(src.join("config/values.rs")).expect("source");
    let members: Vec<&str> = values
        .lines()
        .filter_map(|line| line.strip_prefix("    pub ")?.split_once(": "))
        .map(|(name, _)| name)
        .collect();
    assert!(members.len() > 50, "{members:?}");
    let of_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut words = std::collections::BTreeSet::new();
    for (_, text) in files.iter().filter(|(path, _)| is_reader(path)) {
        let code = text
            .lines()
            .map(|line| line.split("//").next().unwrap_or(""));
        words.extend(code.flat_map(|line| line.split(|c| !of_word(c))));
    }
    let is_read = |name: &str| words.contains(name) || values.contains(&format!("self.{name}"));
    let unread: Vec<_> = members.iter().filter(|name| !is_read(name)).collect();
    assert!(unread.is_empty(), "nothing reads {unread:?}");
}
