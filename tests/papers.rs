//! Holds SPECIFICATION.md: a promise names a test, the test exists, and each figure is that of the code.

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
    let (_, table) = source.split_once("const LANES:").expect("lanes");
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

/// The sources of all parts, with their commands and keys.
fn parts() -> String {
    let mut all = String::new();
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/parts");
    for part in fs::read_dir(dir).expect("parts") {
        let Ok(files) = fs::read_dir(part.expect("entry").path()) else {
            continue;
        };
        for file in files {
            let path = file.expect("entry").path();
            if path.extension().is_some_and(|end| end == "rs") {
                all += &fs::read_to_string(path).expect("source");
            }
        }
    }
    all
}

#[test]
fn papers_name_what_exists() {
    let flags = read("src/config/keys.rs") + &read("src/config/flags.rs");
    let fields = read("src/config/keys.rs");
    let parts = parts();
    let commands = read("src/cli/commands.rs") + &parts;
    let script = read("cross/install.sh");
    let has_flag = |flag: &str| {
        flags.contains(&format!("flag(\"{flag}\""))
            || ["switch_flag", "value_flag"]
                .iter()
                .any(|kind| commands.contains(&format!("{kind}(\"{flag}\"")))
            // In its help.
            || script.contains(&format!("\n  --{flag} "))
            // Of every command, of tasks, and of tests.
            || ["help", "version", "socket", "cluster", "schedules", "long", "core"].contains(&flag)
            || commands.contains(&format!("\n    \"{flag}\",\n"))
            || parts.contains(&format!("value_flag(\n                \"{flag}\","))
            || parts.contains(&format!("switch_flag(\n                \"{flag}\","))
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
                        || fields.contains(&format!("\"{key}\""))
                        || parts.contains(&format!("\"{key}\"")),
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

/// A figure of a paper: its number, and its unit if that stands beside it.
#[derive(Clone, Debug, PartialEq)]
struct Figure {
    number: f64,
    unit: Option<&'static str>,
}

/// Units of figures, in bytes, milliseconds, or as they are.
const UNITS: [(&str, f64); 11] = [
    ("bytes", 1.0),
    ("KiB", 1024.0),
    ("MiB", 1024.0 * 1024.0),
    ("GiB", 1024.0 * 1024.0 * 1024.0),
    ("MB", 1e6),
    ("ms", 1.0),
    ("s", 1000.0),
    ("min", 60_000.0),
    ("h", 3_600_000.0),
    ("%", 1.0),
    ("×", 1.0),
];
/// Numbers that are no figures: codes of HTTP, and 0, for which there is nothing to compare. A number in its place is one.
const NO_FIGURES: [f64; 5] = [0.0, 401.0, 403.0, 429.0, 503.0];

impl Figure {
    /// In the smallest unit of its kind.
    fn value(&self) -> f64 {
        let unit = UNITS.iter().find(|unit| Some(unit.0) == self.unit);
        self.number * unit.map_or(1.0, |unit| unit.1)
    }
}

/// Figures of a text, without those in backquotes. Numbers written as words are none.
fn figures(text: &str) -> Vec<Figure> {
    let plain: String = text.split('`').step_by(2).collect();
    let mut words = plain.split_whitespace().peekable();
    let mut found = Vec::new();
    while let Some(word) = words.next() {
        let bare = word.trim_start_matches('(');
        let mut digits = bare.trim_end_matches([',', ';', ':', '.', ')']).to_owned();
        if !digits.starts_with(|c: char| c.is_ascii_digit()) {
            continue;
        }
        let mut is_closed = digits.len() < bare.len();
        // 100 000
        while let Some(more) = words.peek().filter(|_| !is_closed && digits.len() <= 7) {
            let three = more.trim_end_matches([',', ';', ':', '.', ')']);
            if three.len() != 3 || !three.bytes().all(|b| b.is_ascii_digit()) {
                break;
            }
            is_closed = three.len() < more.len();
            digits += three;
            words.next();
        }
        let Ok(number) = digits.replace(',', "").parse() else {
            continue;
        };
        let next = words.peek().filter(|_| !is_closed);
        let next = next.map(|word| word.trim_end_matches([',', ';', ':', '.', ')']));
        let mut units = UNITS.iter().map(|unit| unit.0);
        let unit = units.find(|unit| next == Some(*unit));
        if !NO_FIGURES.contains(&number) {
            found.push(Figure { number, unit });
        }
    }
    found
}

/// The value of an expression of `source`, which may name its constants: in bytes, in milliseconds, or as it is.
fn value(source: &str, expression: &str) -> Option<f64> {
    let expression = expression.trim().trim_start_matches("core::time::");
    let balanced = |text: &str| text.matches('(').count() == text.matches(')').count();
    type Operation = fn(f64, f64) -> f64;
    let operations: [(&str, Operation); 5] = [
        ("<<", |a, b| a * b.exp2()),
        (" + ", |a, b| a + b),
        (" - ", |a, b| a - b),
        (" * ", |a, b| a * b),
        (" / ", |a, b| a / b),
    ];
    for (sign, operation) in operations {
        if let Some((left, right)) = expression.rsplit_once(sign)
            && balanced(left)
            && balanced(right)
        {
            return Some(operation(value(source, left)?, value(source, right)?));
        }
    }
    for (head, unit) in [
        ("Duration::from_secs(", 1000.0),
        ("Duration::from_millis(", 1.0),
        ("(", 1.0),
    ] {
        if let Some(inner) = expression.strip_prefix(head) {
            return Some(value(source, inner.strip_suffix(')')?)? * unit);
        }
    }
    if !expression.starts_with(|c: char| c.is_ascii_digit()) {
        return constant(source, expression);
    }
    expression.replace('_', "").parse().ok()
}

/// The value of a constant of `source`, whose name may tell its unit.
fn constant(source: &str, name: &str) -> Option<f64> {
    let (_, rest) = source.split_once(&format!("const {name}: "))?;
    let (kind, rest) = rest.split_once('=')?;
    let (expression, _) = rest.split_once(';')?;
    let unit = match name.rsplit_once('_').map(|(_, unit)| unit) {
        Some("KIB") => 1024.0,
        Some("S")
            if !kind.contains("Duration")
                && !name.ends_with("BYTES_S")
                && !name.ends_with("PER_S") =>
        {
            1000.0
        }
        _ => 1.0,
    };
    Some(value(source, expression)? * unit)
}

/// Rows of tables that begin with this head, cell by cell.
fn rows(paper: &str, is_head: impl Fn(&str) -> bool) -> Vec<Vec<&str>> {
    let mut is_in = false;
    let mut found = Vec::new();
    for line in paper.lines() {
        let head = is_head(line);
        is_in = head || is_in && line.starts_with('|');
        if is_in && !head && line.starts_with("| ") {
            let cells = line.trim_matches(['|', ' ']).split(" | ");
            found.push(cells.map(str::trim).collect());
        }
    }
    found
}

/// Promises of SPECIFICATION.md: what is promised, and the text with its figures.
fn promises(paper: &str) -> Vec<(&str, &str)> {
    let rows = rows(paper, |line| line.ends_with("| held by |"));
    let rows = rows.into_iter();
    rows.map(|cells| (cells[0], cells[cells.len() - 2]))
        .collect()
}

/// A figure of `tests/limits.md`, and what holds it: a file, and words of it.
type Held<'a> = (Figure, &'a str, &'a str);

/// ``512 `src/a.rs` `MAX_PODS`; 64 `MAX_CONTAINERS` ``: the file stays until another is named.
fn held(cell: &str) -> Vec<Held<'_>> {
    let (mut file, mut figure) = ("", None);
    let mut found = Vec::new();
    for (n, part) in cell.split('`').enumerate() {
        if n % 2 == 0 {
            figure = figures(part).pop().or(figure);
        } else if [".rs", ".sh"].iter().any(|end| part.ends_with(end)) {
            file = part;
        } else {
            let figure = figure.take();
            found.push((
                figure.unwrap_or_else(|| panic!("no figure: {cell}")),
                file,
                part,
            ));
        }
    }
    found
}

/// Whether a file holds a figure: by an expression of its constants; or by words of it that have this number, or set this value.
fn holds((figure, file, words): &Held<'_>) -> bool {
    let source = read(file);
    let is = |found: f64| (found - figure.value()).abs() < 1e-6;
    if let Some(found) = value(&source, words) {
        return is(found);
    }
    let set = ["<= ", ": ", "="]
        .iter()
        .find_map(|sign| words.rsplit_once(sign));
    let set = set.and_then(|(_, set)| value(&source, set));
    let number = figure.number.to_string();
    source.contains(words) && (set.is_some_and(is) || words.contains(&number))
}

/// What is wrong with figures of SPECIFICATION.md (`paper`), as `tests/limits.md` (`list`) says what holds them.
fn wrong_figures(paper: &str, list: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut rows = rows(list, |line| line == "| promise | figures |");
    for (promise, limit) in promises(paper) {
        let mut missing = figures(limit);
        let (of_it, others) = rows
            .into_iter()
            .partition(|row| promise.starts_with(row[0]));
        rows = others;
        for row in of_it {
            for held in held(row[1]) {
                let is_it = |f: &Figure| {
                    f.number == held.0.number && (f.unit.is_none() || f.unit == held.0.unit)
                };
                match missing.iter().position(is_it) {
                    Some(at) => _ = missing.remove(at),
                    None => wrong.push(format!("{promise}: it does not say {:?}", held.0)),
                }
                if !holds(&held) {
                    wrong.push(format!("{promise}: not so in the code: {held:?}"));
                }
            }
        }
        wrong.extend(
            missing
                .iter()
                .map(|f| format!("{promise}: what holds {f:?}?")),
        );
    }
    wrong.extend(
        rows.iter()
            .map(|row| format!("no such promise: {}", row[0])),
    );
    wrong
}

#[test]
fn every_figure_of_a_promise_is_that_of_the_code() {
    let wrong = wrong_figures(&read("SPECIFICATION.md"), &read("tests/limits.md"));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_figure_that_changes_in_one_place_is_found() {
    let (paper, list) = (read("SPECIFICATION.md"), read("tests/limits.md"));
    let right = wrong_figures(&paper, &list).len();
    for (was, is) in [
        ("| 18 MiB |", "| 17 MiB |"),
        ("| 18 MiB |", "| 18 KiB |"),
        (
            "no pods / 100 sleeping pods | 4.5 /",
            "no pods / 100 sleeping pods | 4.4 /",
        ),
        ("| 512; 8192 |", "| 512; 8193 |"),
        ("3 starts and 120 s", "3 starts and 121 s"),
        (
            "| 100 ms, growing to 3 s |",
            "| 100 ms, growing to 3 s, then 5 |",
        ),
        ("| 72 bytes; 144 bytes |", "| 72 bytes; 143 bytes |"),
    ] {
        let other = paper.replacen(was, is, 1);
        assert_ne!(other, paper, "{was}");
        assert!(wrong_figures(&other, &list).len() > right, "{is}");
    }
    let other = list.replacen("18 MiB", "17 MiB", 2);
    assert!(wrong_figures(&paper, &other).len() > right);
}

#[test]
fn figures_and_values() {
    let of = |text| figures(text).iter().map(Figure::value).collect::<Vec<_>>();
    assert_eq!(
        of("64, 4 KiB; 1.5 MiB (20 to 3600)"),
        [64.0, 4096.0, 1_572_864.0, 20.0, 3600.0]
    );
    assert_eq!(
        of("100 000 000 names, 262,144; `9`, 0, 403"),
        [1e8, 262_144.0]
    );
    assert_eq!(of("v2 5xx CVE-2021-1 10 min, 0.5 s"), [600_000.0, 500.0]);
    let source = "const A: u32 = 2 * (3 + 1);\nconst B_KIB: u64 = A + 1;\nconst C: Duration = Duration::from_secs(2 * 60);\nconst D_S: u64 = 7;";
    let is = |words: &str, wanted: f64| assert_eq!(value(source, words), Some(wanted), "{words}");
    is("A", 8.0);
    is("B_KIB", 9.0 * 1024.0);
    is("C", 120_000.0);
    is("D_S", 7000.0);
    is("(A + 2) / 4", 2.5);
    is("1 << 4", 16.0);
    assert_eq!(value(source, "E"), None);
}

#[test]
fn every_limit_of_memory_is_in_the_list() {
    fn sources(dir: &Path, found: &mut Vec<std::path::PathBuf>) {
        for entry in fs::read_dir(dir).expect("sources").flatten() {
            let path = entry.path();
            if path.is_dir() {
                sources(&path, found);
            } else if path.extension().is_some_and(|end| end == "rs") {
                found.push(path);
            }
        }
    }
    let list = read("tests/limits.md");
    let rows = rows(&list, |line| line.starts_with("| limit | measured |"));
    assert!(rows.len() > 20, "{rows:?}");
    for row in &rows {
        let cells = format!("{} {}", row[2], row[4]);
        let (figure, of) = (figures(row[2]), held(&cells));
        assert_eq!((figure.len(), of.len()), (1, 1), "{row:?}");
        assert!(of.iter().all(holds), "not so in the code: {row:?}");
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for dir in ["tests", "xtask/src"] {
        sources(&root.join(dir), &mut files);
    }
    for file in files {
        let source = fs::read_to_string(&file).expect("source");
        let name = file
            .strip_prefix(root)
            .expect("below")
            .display()
            .to_string();
        let constants = source.lines().filter_map(|line| {
            let line = line.trim_start();
            let line = line
                .trim_start_matches("pub(super) ")
                .trim_start_matches("pub(crate) ");
            line.strip_prefix("const ")?.split_once(':')
        });
        for (constant, _) in constants.filter(|(name, _)| name.ends_with("_KIB")) {
            let is_it = |row: &Vec<&str>| {
                row[4].contains(&format!("`{name}`")) && row[4].contains(&format!("`{constant}`"))
            };
            assert!(
                rows.iter().any(is_it),
                "{name}: {constant} is not in the list"
            );
        }
    }
}

#[test]
fn programs_have_the_limits_of_their_boards() {
    let paper = read("SPECIFICATION.md");
    let rows = rows(&paper, |line| line == "| board | bytes | limit |");
    assert!(rows.len() > 2, "{rows:?}");
    for row in rows {
        let board = read(&format!("cross/{}.conf", row[0]));
        let limit = board
            .lines()
            .find_map(|line| line.strip_prefix("max-bytes = "));
        let limit: f64 = limit.expect("a limit").parse().expect("a number");
        assert_eq!(figures(row[2])[0].number, limit, "{}", row[0]);
        assert!(figures(row[1])[0].number <= limit, "{}", row[0]);
    }
}
