//! Holds SPECIFICATION.md: a promise names a test, and the test exists.

use std::{fs, path::Path};

fn read(path: &str) -> String {
    let full = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&full).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// Words in backquotes.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Attributes of the function of that name, if it is a test.
fn attributes<'a>(source: &'a str, name: &str) -> Option<Vec<&'a str>> {
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    let begins = format!("fn {name}()");
    let at = lines.iter().position(|line| line.starts_with(&begins));
    let before = at.map_or(&[][..], |at| &lines[..at]);
    let above = before
        .iter()
        .rev()
        .take_while(|line| line.starts_with("#["));
    let attributes: Vec<&str> = above.copied().collect();
    attributes.contains(&"#[test]").then_some(attributes)
}

/// Lanes of `cargo xtask test`: name, and when it runs: `Always`, `Root` or `Long`.
fn lanes() -> Vec<(String, String)> {
    let source = read("xtask/src/test/mod.rs");
    let (_, table) = source.split_once("const LANES").expect("lanes");
    let (table, _) = table.split_once("\n];").expect("their end");
    let lanes: Vec<(String, String)> = table
        .lines()
        .filter_map(|line| {
            let (name, rest) = line.trim().strip_prefix("(\"")?.split_once("\", When::")?;
            Some((name.to_owned(), rest.split(',').next()?.to_owned()))
        })
        .collect();
    assert!(lanes.len() > 10, "the lanes were not found: {lanes:?}");
    lanes
}

/// The lane that runs a test which no other lane runs, as `tests/skipped.md` has it.
fn lane_of_its_own(test: &str) -> String {
    let list = read("tests/skipped.md");
    let row = list.lines().find(|line| {
        let name = line.strip_prefix("| `").and_then(|l| l.split('`').next());
        name.is_some_and(|name| name.rsplit("::").next() == Some(test))
    });
    let row = row.unwrap_or_else(|| panic!("{test} is not in tests/skipped.md"));
    let cell = row.trim_end_matches([' ', '|']).rsplit('|').next();
    cell.unwrap_or_default().trim().to_owned()
}

/// What runs only when it is asked for says so: a promise that such a test holds names its lane, as ``lane `long tests` ``.
fn names_its_lane(promise: &str, lane: &str, what: &str) {
    assert!(
        lanes().iter().any(|(name, _)| name == lane),
        "{what} runs in {lane}, which is no lane"
    );
    assert!(
        promise.contains(&format!("lane `{lane}`")),
        "{what} is run by the lane {lane} alone, and this does not say so: {promise}"
    );
}

#[test]
fn every_promise_names_a_test_that_exists() {
    let paper = read("SPECIFICATION.md");
    let mut promises = 0;
    let mut of_promises = false;
    for line in paper.lines() {
        let head = line.ends_with("| held by |");
        // Other tables are figures.
        of_promises = head || of_promises && line.starts_with('|');
        let row = of_promises && line.starts_with("| ") && !head;
        let Some(cell) = line.trim_end_matches([' ', '|']).rsplit('|').next() else {
            continue;
        };
        let mut source = None;
        let mut tests = 0;
        for word in quoted(cell) {
            if word.ends_with(".rs") {
                source = Some((word, read(word)));
            } else if let Some(task) = word.strip_prefix("cargo xtask ").filter(|_| row) {
                let lane = lanes().into_iter().find(|(name, when)| {
                    when == "Long" && cell.contains(&format!("lane `{name}`"))
                });
                assert!(lane.is_some(), "no lane runs the whole of {task}: {line}");
            } else if let Some((path, text)) = &source {
                if lanes().iter().any(|(lane, _)| lane == word) {
                    continue;
                }
                let attributes = attributes(text, word);
                let attributes = attributes.unwrap_or_else(|| panic!("{path} has no test {word}"));
                if attributes.iter().any(|a| a.starts_with("#[ignore")) {
                    names_its_lane(cell, &lane_of_its_own(word), word);
                }
                tests += 1;
            }
        }
        if row {
            let (path, text) = source.unwrap_or_else(|| panic!("no test is named: {line}"));
            let by_compiler = cell.contains("const assertion");
            assert!(tests > 0 || by_compiler, "no test is named: {line}");
            assert!(
                !by_compiler || text.contains("const _: () = assert!("),
                "{path}"
            );
            promises += 1;
        }
    }
    assert!(promises > 20, "the tables were not found");
}

#[test]
fn it_says_which_lanes_run_when() {
    let paper = read("SPECIFICATION.md");
    for (when, row) in [
        ("Always", "| with every change |"),
        ("Root", "| with every change, as root |"),
        ("Long", "| by hand, as root: `cargo xtask test --long` |"),
    ] {
        let line = paper.lines().find_map(|line| line.strip_prefix(row));
        let line = line.unwrap_or_else(|| panic!("no row {row}"));
        let told: Vec<&str> = line.trim_matches([' ', '|']).split(", ").collect();
        let all = lanes();
        let of = all.iter().filter(|(_, w)| w == when);
        let expected: Vec<&str> = of.map(|(name, _)| name.as_str()).collect();
        assert_eq!(told, expected, "{row}");
    }
}

#[test]
fn a_promise_without_its_lane_is_found() {
    let refused = |test: fn()| std::panic::catch_unwind(test).is_err();
    let lane = "long tests";
    names_its_lane("`a`: `b`, lane `long tests`", lane, "b");
    assert!(refused(|| names_its_lane("`a`: `b`", "long tests", "b")));
    assert!(refused(|| names_its_lane("lane `no such`", "no such", "b")));
    assert_eq!(lane_of_its_own("a_directory_of_a_million_names"), lane);
    assert!(refused(|| drop(lane_of_its_own("every_promise"))));
    let source = "#[test]\n#[ignore = \"long\"]\nfn a() {\n}\nfn b() {\n}\n";
    assert_eq!(
        attributes(source, "a"),
        Some(vec!["#[ignore = \"long\"]", "#[test]"])
    );
    assert_eq!(attributes(source, "b"), None);
}

/// What people read beside SPECIFICATION.md.
fn papers() -> Vec<String> {
    let mut papers: Vec<String> = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"]
        .map(String::from)
        .into();
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    let files = fs::read_dir(docs).expect("docs");
    let names = files.map(|file| file.expect("entry").file_name());
    let names = names.map(|name| name.to_string_lossy().into_owned());
    // Pictures lie beside them.
    let pages = names.filter(|name| name.ends_with(".md"));
    papers.extend(pages.map(|name| format!("docs/{name}")));
    papers
}

/// A paper without its blocks of commands and drawings, and these.
fn prose_and_blocks(paper: &str) -> (String, String) {
    let mut parts = [String::new(), String::new()];
    for (n, part) in paper.split("\n```").enumerate() {
        parts[n % 2].push('\n');
        parts[n % 2].push_str(part);
    }
    parts.into()
}

#[test]
fn links_lead_somewhere() {
    for name in papers() {
        let paper = read(&name);
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join(&name);
        let dir = dir.parent().expect("a paper lies in a directory");
        for link in paper.split("](").skip(1) {
            let target = link.split(')').next().unwrap_or_default();
            assert!(
                target.starts_with("https://") || dir.join(target).exists(),
                "{name} links to {target}"
            );
        }
    }
}

#[test]
fn papers_name_what_exists() {
    let flags = read("src/config/flags.rs");
    let fields = read("src/config/file.rs");
    let commands = read("src/cli/commands.rs");
    let script = read("cross/install.sh");
    let has_flag = |flag: &str| {
        flags.contains(&format!("flag(\"{flag}\""))
            || ["switch", "value"]
                .iter()
                .any(|kind| commands.contains(&format!("{kind}(\"{flag}\"")))
            // In its help.
            || script.contains(&format!("\n  --{flag} "))
            // Of every command, of tasks, and of tests.
            || ["help", "version", "socket", "cluster", "schedules", "long"].contains(&flag)
            || commands.contains(&format!("\n    \"{flag}\",\n"))
    };
    let mut named = 0;
    for name in papers() {
        let (prose, blocks) = prose_and_blocks(&read(&name));
        for word in quoted(&prose) {
            if let Some(flag) = word.strip_prefix("--") {
                let flag = flag.split(['=', ' ']).next().unwrap_or_default();
                assert!(has_flag(flag), "{name} speaks of --{flag}");
                named += 1;
            }
            if word.starts_with("picolet.") && !word.ends_with(".service") {
                let key = word
                    .trim_end_matches(':')
                    .split(": ")
                    .next()
                    .unwrap_or(word);
                assert!(
                    ["picolet.sock", "picolet.yaml"].contains(&key)
                        || fields.contains(&format!("\"{key}\"")),
                    "{name} speaks of the key {key}"
                );
                named += 1;
            }
            let is_path = ["contrib/", "cross/", "src/", "tests/", "xtask/", "systemd/"]
                .iter()
                .any(|top| word.starts_with(top));
            if is_path && !word.contains(['*', '<', ' ']) {
                let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(word);
                assert!(path.exists(), "{name} speaks of {word}");
                named += 1;
            }
        }
        let typed = blocks
            .lines()
            .map(|line| line.trim_start_matches(['#', '$', ' ']));
        let typed = typed.chain(quoted(&prose));
        for line in typed.filter_map(|line| line.strip_prefix("picolet ")) {
            let mut words = line.split_whitespace();
            let first = words.next().unwrap_or_default();
            let both = format!("{first} {}", words.next().unwrap_or_default());
            assert!(
                [first, &both]
                    .iter()
                    .any(|known| commands.contains(&format!("name: \"{known}\""))),
                "{name} speaks of picolet {line}"
            );
            let words = line.split_whitespace();
            // What stands behind `--` alone, or behind `#`, is not for picolet.
            let own = words.take_while(|word| !["--", "#", "&&", "<<END"].contains(word));
            for flag in own.filter_map(|word| word.strip_prefix("--")) {
                let flag = flag.split('=').next().unwrap_or_default();
                assert!(has_flag(flag), "{name} speaks of picolet {line}");
            }
            named += 1;
        }
    }
    assert!(named > 100, "the papers name {named} things");
}
