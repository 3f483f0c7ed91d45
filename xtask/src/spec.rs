//! `cargo xtask spec`: which rows of the behaviour specification a test names.
//!
//! A test claims a row by naming it in a plain comment (`// PW-10 PW-11`) in test code: a file below `tests/`, or a
//! `#[cfg(test)]` module. This counts claims; whether a test proves what it claims is for its reader to judge. Rows of parts that
//! do not exist yet count as rows without a test.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use crate::Failure;

/// One row of the specification.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    id: String,
    priority: Priority,
    text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Priority {
    Core,
    Full,
    Rare,
}

pub(crate) fn run() -> Result<(), Failure> {
    let mut rows = Vec::new();
    let mut papers: Vec<PathBuf> = fs::read_dir("tests/spec")?
        .map(|entry| entry.map(|e| e.path()))
        .collect::<Result<_, _>>()?;
    papers.sort();
    for paper in papers {
        rows.extend(read_rows(&fs::read_to_string(paper)?));
    }
    let named = named_rows()?;
    print!("{}", report(&rows, &named));
    Ok(())
}

/// Rows named in test code, with the files that name them.
fn named_rows() -> Result<BTreeMap<String, BTreeSet<String>>, Failure> {
    let mut named: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (file, text) in test_code()? {
        for id in text.lines().flat_map(ids_in_comment) {
            named.entry(id).or_default().insert(file.clone());
        }
    }
    Ok(named)
}

fn report(rows: &[Row], named: &BTreeMap<String, BTreeSet<String>>) -> String {
    let mut sections: Vec<(&str, Vec<&Row>)> = Vec::new();
    for row in rows {
        let prefix = prefix(&row.id);
        match sections.iter_mut().find(|(name, _)| *name == prefix) {
            Some((_, rows)) => rows.push(row),
            None => sections.push((prefix, vec![row])),
        }
    }
    let count = |rows: &[&Row], priority: Option<Priority>| {
        let of: Vec<_> = rows
            .iter()
            .filter(|row| priority.is_none_or(|p| p == row.priority))
            .collect();
        let tested = of.iter().filter(|row| named.contains_key(&row.id)).count();
        format!("{tested} of {}", of.len())
    };
    let line = |name: &str, rows: &[&Row]| {
        format!(
            "{name:<8} {:>12} {:>12} {:>12} {:>12}\n",
            count(rows, None),
            count(rows, Some(Priority::Core)),
            count(rows, Some(Priority::Full)),
            count(rows, Some(Priority::Rare)),
        )
    };
    let mut out = format!(
        "{:<8} {:>12} {:>12} {:>12} {:>12}\n",
        "Section", "rows tested", "[core]", "[full]", "[rare]"
    );
    for (name, rows) in &sections {
        out += &line(name, rows);
    }
    out += &line("all", &rows.iter().collect::<Vec<_>>());

    out += "\n[core] rows that no test names:\n";
    for (_, rows) in &sections {
        for row in rows {
            if row.priority == Priority::Core && !named.contains_key(&row.id) {
                out += &format!("  {:<9} {}\n", row.id, row.text);
            }
        }
    }
    // A name that no row has is a slip of the pen, unless its letters belong to something else (CVE-2017).
    let unknown: Vec<_> = named
        .iter()
        .filter(|(id, _)| {
            sections.iter().any(|(name, _)| *name == prefix(id))
                && !rows.iter().any(|row| row.id == **id)
        })
        .collect();
    if !unknown.is_empty() {
        out += "\nNamed by a test, but no row has this name:\n";
        for (id, files) in unknown {
            let files: Vec<_> = files.iter().map(String::as_str).collect();
            out += &format!("  {id:<9} {}\n", files.join(", "));
        }
    }
    out
}

fn prefix(id: &str) -> &str {
    id.split('-').next().unwrap_or(id)
}

/// Rows of one paper: lines `| PW-10 | [core] | text |`, and headings that define one: `### Table (PW-36 [core])`.
fn read_rows(paper: &str) -> Vec<Row> {
    let mut rows = Vec::new();
    for line in paper.lines() {
        if let Some(cells) = line.strip_prefix('|') {
            let cells: Vec<_> = cells.split('|').map(str::trim).collect();
            if let [id, mark, text, ..] = cells[..]
                && is_id(id)
                && let Some(priority) = priority(mark)
            {
                rows.push(row(id, priority, text));
            }
        } else if line.starts_with('#')
            && let Some((title, rest)) = line.trim_start_matches(['#', ' ']).split_once('(')
            && let Some((id, mark)) = rest.trim_end_matches(')').split_once(' ')
            && is_id(id)
            && let Some(priority) = priority(mark)
        {
            rows.push(row(id, priority, title));
        }
    }
    rows
}

fn row(id: &str, priority: Priority, text: &str) -> Row {
    const WIDTH: usize = 110;
    let mut text: String = text.trim().into();
    if let Some((at, _)) = text.char_indices().nth(WIDTH) {
        text.truncate(at);
        text.push('…');
    }
    Row {
        id: id.into(),
        priority,
        text,
    }
}

fn priority(mark: &str) -> Option<Priority> {
    match mark {
        "[core]" => Some(Priority::Core),
        "[full]" => Some(Priority::Full),
        "[rare]" => Some(Priority::Rare),
        _ => None,
    }
}

/// Capital letters, a dash, digits.
fn is_id(word: &str) -> bool {
    word.split_once('-').is_some_and(|(letters, digits)| {
        !letters.is_empty()
            && letters.bytes().all(|b| b.is_ascii_uppercase())
            && !digits.is_empty()
            && digits.bytes().all(|b| b.is_ascii_digit())
    })
}

/// Rows that the plain comment of a line names. Documentation (`///`, `//!`) claims nothing.
fn ids_in_comment(line: &str) -> Vec<String> {
    let Some((_, comment)) = line.split_once("//") else {
        return Vec::new();
    };
    if comment.starts_with(['/', '!']) {
        return Vec::new();
    }
    comment
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '-')
        .filter(|word| is_id(word))
        .map(str::to_owned)
        .collect()
}

/// Test code of the tree as (file, text).
fn test_code() -> Result<Vec<(String, String)>, Failure> {
    let mut found = Vec::new();
    let mut sources = Vec::new();
    for dir in ["src", "tests", "xtask/src"] {
        rust_files(Path::new(dir), &mut sources)?;
    }
    // Files that are test modules of their own: `#[cfg(test)] mod testing;`.
    let mut whole: BTreeSet<PathBuf> = BTreeSet::new();
    for (path, text) in &sources {
        for name in test_module_files(text) {
            let dir = module_dir(path);
            whole.insert(dir.join(format!("{name}.rs")));
            whole.insert(dir.join(&name));
        }
    }
    for (path, text) in sources {
        let file = path.display().to_string();
        // What the virtual machine is asked is all test.
        let asks = path.starts_with("tests") || path.starts_with("xtask/src/vm/guest");
        if asks || whole.iter().any(|w| path.starts_with(w)) {
            found.push((file, text));
        } else {
            found.push((file, test_modules(&text)));
        }
    }
    Ok(found)
}

/// Where the child modules of the file at `path` are.
fn module_dir(path: &Path) -> PathBuf {
    let parent = path.parent().unwrap_or_else(|| Path::new(""));
    match path.file_stem().and_then(|s| s.to_str()) {
        None | Some("mod" | "lib" | "main") => parent.into(),
        Some(stem) => parent.join(stem),
    }
}

fn rust_files(dir: &Path, out: &mut Vec<(PathBuf, String)>) -> Result<(), Failure> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            rust_files(&path, out)?;
        } else if path.extension().is_some_and(|e| e == "rs") {
            let text = fs::read_to_string(&path)?;
            out.push((path, text));
        }
    }
    Ok(())
}

/// The inline `#[cfg(test)]` modules of a file. The source is formatted: a block ends where a brace stands at its indent.
fn test_modules(text: &str) -> String {
    let mut out = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.trim() != "#[cfg(test)]" {
            continue;
        }
        let indent = &line[..line.len() - line.trim_start().len()];
        let end = format!("{indent}}}");
        let mut inside = false;
        for line in lines.by_ref() {
            let code = line.trim();
            if !(inside || code.starts_with("#[") || code.starts_with("//")) {
                if !(code.contains("mod ") && code.ends_with('{')) {
                    break;
                }
                inside = true;
            }
            if inside && line == end {
                break;
            }
            out.push_str(line);
            out.push('\n');
        }
    }
    out
}

/// Names in `#[cfg(test)] mod name;`.
fn test_module_files(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut lines = text.lines().map(str::trim);
    while let Some(line) = lines.next() {
        if line == "#[cfg(test)]"
            && let Some(next) = lines.next()
            && let Some((_, name)) = next.split_once("mod ")
            && let Some(name) = name.strip_suffix(';')
        {
            names.push(name.to_owned());
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows() {
        let paper = "# Title (XX)\n| ID | P | Behaviour |\n|---|---|---|\n| AB-01 | [core] | First. |\n\
            | AB-02 | [rare] | A | b | c |\n### Table (AB-36 [full])\nText AB-03 [core].\n| state | F |\n";
        let read: Vec<_> = read_rows(paper)
            .into_iter()
            .map(|r| (r.id, r.priority, r.text))
            .collect();
        assert_eq!(
            read,
            [
                ("AB-01".into(), Priority::Core, "First.".into()),
                ("AB-02".into(), Priority::Rare, "A".into()),
                ("AB-36".into(), Priority::Full, "Table".into()),
            ]
        );
    }

    #[test]
    fn claims() {
        for (name, line, ids) in [
            ("plain", "    // AB-01 AB-02", vec!["AB-01", "AB-02"]),
            ("behind code", "let x = 1; // AB-01: why", vec!["AB-01"]),
            ("with a comma", "// AB-01, AB-02.", vec!["AB-01", "AB-02"]),
            ("documentation", "/// AB-01", vec![]),
            ("module documentation", "//! AB-01", vec![]),
            ("code", "let id = \"AB-01\";", vec![]),
            ("lower case", "// utf-8 x86-64", vec![]),
        ] {
            assert_eq!(ids_in_comment(line), ids, "{name}");
        }
    }

    #[test]
    fn only_test_modules_count() {
        let text = "// AB-01\nfn f() {\n}\n\n#[cfg(test)]\nuse x;\n// AB-02\n\n#[cfg(test)]\nmod tests {\n    // AB-03\n    fn g() {\n    }\n}\n// AB-04\n";
        let ids: Vec<_> = test_modules(text)
            .lines()
            .flat_map(ids_in_comment)
            .collect();
        assert_eq!(ids, ["AB-03"]);
        assert_eq!(
            test_module_files("#[cfg(test)]\nmod testing;\nmod other;\n"),
            ["testing"]
        );
    }

    #[test]
    fn the_papers_are_read() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/spec");
        for paper in ["lifecycle.md", "runtime.md", "node.md"] {
            let rows = read_rows(&fs::read_to_string(dir.join(paper)).unwrap());
            assert!(rows.len() > 100, "{paper}: {} rows", rows.len());
            let ids: BTreeSet<_> = rows.iter().map(|row| &row.id).collect();
            assert_eq!(ids.len(), rows.len(), "{paper}: a name is given twice");
        }
    }
}
