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

#[test]
fn readme_names_what_exists() {
    let paper = read("README.md");
    for link in paper.split("](").skip(1) {
        let target = link.split(')').next().unwrap_or_default();
        assert!(
            target.starts_with("https://")
                || Path::new(env!("CARGO_MANIFEST_DIR")).join(target).exists(),
            "README.md links to {target}"
        );
    }
    let flags = read("src/config/flags.rs");
    for flag in quoted(&paper).filter_map(|word| word.strip_prefix("--")) {
        // Of client commands, and of `run` itself.
        let elsewhere = ["all", "socket", "help", "dry-run", "schedules", "repair"];
        assert!(
            elsewhere.iter().any(|e| flag.starts_with(e))
                || flags.contains(&format!("flag(\"{flag}\"")),
            "README.md speaks of --{flag}"
        );
    }
}
