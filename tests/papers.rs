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

/// Whether a function of that name has the attribute of a test, alone or among others.
fn has_test(source: &str, name: &str) -> bool {
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    let begins = format!("fn {name}()");
    let at = lines.iter().position(|line| line.starts_with(&begins));
    let before = at.map_or(&[][..], |at| &lines[..at]);
    let attributes = before
        .iter()
        .rev()
        .take_while(|line| line.starts_with("#["));
    attributes.into_iter().any(|line| *line == "#[test]")
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
            } else if let Some((path, text)) = &source {
                assert!(has_test(text, word), "{path} has no test {word}");
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

/// What people read beside SPECIFICATION.md.
fn papers() -> Vec<String> {
    let mut papers: Vec<String> = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"]
        .map(String::from)
        .into();
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    let files = fs::read_dir(docs).expect("docs");
    papers.extend(files.map(|file| {
        let name = file.expect("entry").file_name();
        format!("docs/{}", name.to_string_lossy())
    }));
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
    let has_flag = |flag: &str| {
        flags.contains(&format!("flag(\"{flag}\""))
            || ["switch", "value"]
                .iter()
                .any(|kind| commands.contains(&format!("{kind}(\"{flag}\"")))
            // Of every command, of tasks, and of tests.
            || ["help", "socket", "cluster", "schedules", "long"].contains(&flag)
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
                    key == "picolet.sock" || fields.contains(&format!("\"{key}\"")),
                    "{name} speaks of the key {key}"
                );
                named += 1;
            }
            let is_path = ["cross/", "src/", "tests/", "xtask/", "systemd/"]
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
