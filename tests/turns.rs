//! Holds that no peer keeps the one thread to himself: reads the tree, so that a loop without an end of its own fails a test.
//!
//! Where async code speaks with peers, each `loop`, `while` and endless `for` either gives others their turn
//! (`sys::turn`, a carrier's pause), or says above itself what ends it: `// Bounded: …`. A reason is read by a person; what
//! is checked is that there is one.

use std::{fs, path::Path};

/// Where peers are spoken with on the loop's thread.
const LAYERS: [&str; 12] = [
    "grpc",
    "server",
    "stream",
    "kube",
    "probe",
    "shim",
    "net",
    "sys",
    "runtime",
    "parts/cri",
    "parts/devices",
    "parts/provider",
];
/// What gives a turn.
const TURNS: [&str; 3] = ["turn::yield_to_others(", "poll_pause(", "yield_now("];
const MARK: &str = "// Bounded: ";

/// Code without texts and comments, so that braces and words in it are the language's own.
fn code(line: &str) -> String {
    let mut out = String::new();
    let mut chars = line.chars().peekable();
    let mut in_text = false;
    while let Some(c) = chars.next() {
        match c {
            '\\' if in_text => {
                chars.next();
            }
            '"' => in_text = !in_text,
            _ if in_text => {}
            '/' if chars.peek() == Some(&'/') => break,
            '\'' => {
                // A character, or the name of a lifetime.
                let rest: String = chars.clone().take(4).collect();
                let end = match rest.strip_prefix('\\') {
                    Some(escaped) => escaped.find('\'').map(|at| at + 2),
                    None => rest.chars().nth(1).filter(|c| *c == '\'').map(|_| 2),
                };
                for _ in 0..end.unwrap_or(0) {
                    chars.next();
                }
            }
            c => out.push(c),
        }
    }
    out
}

fn words(code: &str) -> Vec<&str> {
    code.split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter(|word| !word.is_empty())
        .collect()
}

/// Whether code that is polled begins here: it is left only where it waits.
fn begins_polled(code: &str) -> bool {
    let words = words(code);
    let follows = |first: &str, then: &[&str]| {
        words
            .windows(2)
            .any(|pair| pair[0] == first && then.contains(&pair[1]))
    };
    let block = ["async {", "async ||", "async |"];
    follows("async", &["fn", "move"])
        || block.iter().any(|form| code.contains(form))
        || words.contains(&"poll_fn")
        || words
            .windows(2)
            .any(|pair| pair[0] == "fn" && pair[1].starts_with("poll"))
}

fn begins_loop(code: &str) -> bool {
    let words = words(code);
    let endless = code.trim_end().ends_with(".. {") && words.contains(&"for");
    words.contains(&"loop") || words.contains(&"while") || endless
}

/// Lines of loops in polled code that neither give a turn nor say what ends them.
fn open_loops(text: &str) -> Vec<usize> {
    let text = text.split("#[cfg(test)]").next().unwrap_or("");
    let lines: Vec<&str> = text.lines().collect();
    let code: Vec<String> = lines.iter().map(|line| code(line)).collect();
    let mut depth = 0;
    // Depths at which polled code began, and whether its brace is still to come.
    let (mut polled, mut coming) = (Vec::new(), false);
    let mut found = Vec::new();
    for (n, line) in code.iter().enumerate() {
        coming |= begins_polled(line);
        if (!polled.is_empty() || coming) && begins_loop(line) {
            let above = lines[..n].iter().rev();
            let mut comments = above.map_while(|l| l.trim().strip_prefix("//"));
            let marked = comments.any(|c| format!("//{c}").starts_with(MARK));
            if !marked && !gives_turn(&code[n..]) {
                found.push(n + 1);
            }
        }
        for c in line.chars() {
            match c {
                '{' => {
                    depth += 1;
                    if core::mem::take(&mut coming) {
                        polled.push(depth);
                    }
                }
                '}' => {
                    if polled.last() == Some(&depth) {
                        polled.pop();
                    }
                    depth -= 1;
                }
                // Declared, not defined.
                ';' if polled.is_empty() => coming = false,
                _ => {}
            }
        }
    }
    found
}

/// Whether the block that begins in the first of these lines gives others their turn.
fn gives_turn(code: &[String]) -> bool {
    let (mut depth, mut begun) = (0, false);
    for line in code {
        if TURNS.iter().any(|turn| line.contains(turn)) {
            return true;
        }
        for c in line.chars() {
            match c {
                '{' => (depth, begun) = (depth + 1, true),
                '}' => depth -= 1,
                _ => {}
            }
        }
        if begun && depth <= 0 {
            return false;
        }
    }
    false
}

fn sources(dir: &Path, out: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(dir).expect("source directory") {
        let path = entry.expect("entry").path();
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or("");
        // Tests may wait as they like.
        if ["tests", "tests.rs", "testing", "testing.rs", "fuzz.rs"].contains(&name) {
            continue;
        }
        if path.is_dir() {
            sources(&path, out);
        } else if name.ends_with(".rs") {
            let text = fs::read_to_string(&path).expect("source");
            out.push((path.display().to_string(), text));
        }
    }
}

#[test]
fn every_loop_that_a_peer_can_keep_busy_gives_turns() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for layer in LAYERS {
        let mut files = Vec::new();
        sources(&root.join(layer), &mut files);
        assert!(!files.is_empty(), "layer {layer} has no files");
        let mut found: Vec<String> = files
            .iter()
            .flat_map(|(path, text)| {
                let lines = open_loops(text);
                lines.into_iter().map(move |line| format!("{path}:{line}"))
            })
            .collect();
        found.sort();
        assert_eq!(found, Vec::<String>::new());
    }
}

#[test]
fn what_counts_as_such_a_loop() {
    for (text, lines) in [
        (
            "async fn a() {\n    loop {\n        b().await;\n    }\n}",
            &[2][..],
        ),
        (
            "async fn a() {\n    // Bounded: by b.\n    loop {\n    }\n}",
            &[],
        ),
        (
            "async fn a() {\n    // Bounded: by b,\n    // which ends.\n    while c() {\n    }\n}",
            &[],
        ),
        (
            "async fn a() {\n    // bounded by b\n    loop {\n    }\n}",
            &[3],
        ),
        (
            "async fn a() {\n    loop {\n        turn::yield_to_others().await;\n    }\n}",
            &[],
        ),
        (
            "async fn a() {\n    loop {\n    }\n    turn::yield_to_others().await;\n}",
            &[2],
        ),
        (
            "async fn a() {\n    loop {\n        while b() {\n        }\n        yield_now().await;\n    }\n}",
            &[3],
        ),
        (
            "fn a() {\n    loop {\n    }\n}\nasync fn b() {}\nfn c() {\n    loop {\n    }\n}",
            &[],
        ),
        (
            "fn poll_a(\n    cx: &mut Context<'_>,\n) {\n    while let Some(b) = c() {\n    }\n}",
            &[4],
        ),
        (
            "fn a() {\n    spawn(async move {\n        loop {\n        }\n    });\n    loop {\n    }\n}",
            &[3],
        ),
        (
            "fn a() {\n    poll_fn(|cx| {\n        loop {\n        }\n    })\n}",
            &[3],
        ),
        (
            "trait A {\n    async fn a();\n    fn b() {\n        loop {\n        }\n    }\n}",
            &[],
        ),
        (
            "async fn a() {\n    b(\"loop {\", '{', '\\'', \"\\\"while\"); // loop\n    for c in 0.. {\n    }\n    for d in 0..3 {\n    }\n}",
            &[3],
        ),
        (
            "async fn a() {}\n#[cfg(test)]\nmod tests {\n    async fn b() {\n        loop {}\n    }\n}",
            &[],
        ),
    ] {
        assert_eq!(open_loops(text), lines, "{text}");
    }
}
