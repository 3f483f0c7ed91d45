//! YAML text of JSON values, in kubectl's form: readers of YAML 1.1 and of YAML 1.2 find the same object in it.
//!
//! Source: sigs.k8s.io/yaml (`goyaml.v2/encode.go`, `resolve.go`, `emitterc.go`), YAML 1.1 types (yaml.org/type).

use alloc::string::{String, ToString as _};
use core::fmt::Write as _;

use serde_json::Value;

/// Longest key that stands before its colon, bytes: readers look for the colon in the next 1024 characters only.
const MAX_SIMPLE_KEY_BYTES: usize = 128;
/// Words that YAML 1.1 reads as a truth value, as nothing, or as a sign of its own, in small letters.
const WORDS: [&str; 13] = [
    "", "~", "null", "true", "false", "yes", "no", "on", "off", "y", "n", "=", "<<",
];
/// Signs that a plain text cannot begin with.
const INDICATORS: &str = ",[]{}#&*!|>'\"%@`";
/// Signs that a plain text can begin with, if no blank follows.
const HALF_INDICATORS: &str = "-?:";

/// Makes the text of a document.
#[must_use]
pub fn yaml_text(value: &Value) -> String {
    let mut out = String::new();
    write_value(&mut out, value, 0, "");
    out
}

/// Writes a value and the end of its line. `gap`: what separates a scalar from the text before it. The entries of a map or
/// list stand at column `indent`; behind a `-`, the first one stands in its line.
fn write_value(out: &mut String, value: &Value, indent: usize, gap: &str) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (n, (key, value)) in map.iter().enumerate() {
                begin_entry(out, indent, n == 0);
                let is_long = key.len() > MAX_SIMPLE_KEY_BYTES;
                if is_long {
                    out.push_str("? ");
                }
                write_line_text(out, key);
                if is_long {
                    begin_entry(out, indent, false);
                }
                out.push(':');
                match value {
                    Value::Object(map) if !map.is_empty() => {
                        out.push('\n');
                        write_value(out, value, indent + 2, "");
                    }
                    Value::Array(list) if !list.is_empty() => {
                        out.push('\n');
                        write_value(out, value, indent, "");
                    }
                    _ => write_value(out, value, indent + 2, " "),
                }
            }
            return;
        }
        Value::Array(list) if !list.is_empty() => {
            for (n, value) in list.iter().enumerate() {
                begin_entry(out, indent, n == 0);
                out.push_str("- ");
                write_value(out, value, indent + 2, "");
            }
            return;
        }
        _ => out.push_str(gap),
    }
    match value {
        Value::String(text) if is_block_text(text) => write_block(out, text, indent),
        Value::String(text) => write_line_text(out, text),
        Value::Number(number) if number.is_f64() => write_float(out, &number.to_string()),
        // Empty maps and lists, numbers, truth values and nothing look as in JSON.
        other => {
            let _ = write!(out, "{other}");
        }
    }
    out.push('\n');
}

/// Begins an entry at a column, in a line of its own unless it is the first one behind a `-`.
fn begin_entry(out: &mut String, indent: usize, is_first: bool) {
    if is_first && out.ends_with("- ") {
        return;
    }
    if !is_first && !out.ends_with('\n') {
        out.push('\n');
    }
    write_indent(out, indent);
}

fn write_indent(out: &mut String, indent: usize) {
    out.extend(core::iter::repeat_n(' ', indent));
}

/// Writes a number with a fraction so that YAML 1.1 reads a number, too: `1.0e+30`, not `1e30`.
fn write_float(out: &mut String, text: &str) {
    let Some((digits, power)) = text.split_once('e') else {
        return out.push_str(text);
    };
    let fraction = if digits.contains('.') { "" } else { ".0" };
    let sign = if power.starts_with(['-', '+']) {
        ""
    } else {
        "+"
    };
    for part in [digits, fraction, "e", sign, power] {
        out.push_str(part);
    }
}

/// Returns true if a text can be a block of lines (`|`), with nothing in it that a reader could drop.
fn is_block_text(text: &str) -> bool {
    let is_plain = |c: char| c == '\n' || is_printable(c);
    text.contains('\n')
        && !text.starts_with([' ', '\n'])
        && !text.ends_with(' ')
        && !text.contains(" \n")
        && text.chars().all(is_plain)
}

fn write_block(out: &mut String, text: &str, indent: usize) {
    let lines = text.trim_end_matches('\n');
    out.push_str(match text.len() - lines.len() {
        0 => "|-",
        1 => "|",
        _ => "|+",
    });
    for line in text.strip_suffix('\n').unwrap_or(text).split('\n') {
        out.push('\n');
        if !line.is_empty() {
            write_indent(out, indent.max(2));
            out.push_str(line);
        }
    }
}

/// Writes a text in one line: as it is, or in quotes of the kind that kubectl takes.
fn write_line_text(out: &mut String, text: &str) {
    if text.contains(|c| !is_printable(c)) || is_ambiguous(text) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' | '\\' => out.extend(['\\', c]),
                c if is_printable(c) => out.push(c),
                c => push_escape(out, c),
            }
        }
        out.push('"');
    } else if has_indicators(text) {
        out.push('\'');
        out.push_str(&text.replace('\'', "''"));
        out.push('\'');
    } else {
        out.push_str(text);
    }
}

/// Writes the escape of a character, the shortest that there is. None of them needs more than four digits.
fn push_escape(out: &mut String, c: char) {
    const SHORT: [(char, char); 9] = [
        ('\0', '0'),
        ('\u{7}', 'a'),
        ('\u{8}', 'b'),
        ('\t', 't'),
        ('\n', 'n'),
        ('\u{b}', 'v'),
        ('\u{c}', 'f'),
        ('\r', 'r'),
        ('\u{1b}', 'e'),
    ];
    let code = u32::from(c);
    let short = SHORT.iter().find(|(known, _)| *known == c);
    let _ = match (short, code) {
        (Some((_, letter)), _) => write!(out, "\\{letter}"),
        (None, 0..0x100) => write!(out, "\\x{code:02X}"),
        (None, _) => write!(out, "\\u{code:04X}"),
    };
}

/// Returns true if readers of any version take the character as it is, and not as the end of a line.
fn is_printable(c: char) -> bool {
    !c.is_control()
        && !matches!(
            c,
            '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}'
        )
}

/// Returns true if the structure of YAML does not let the text stand without quotes.
fn has_indicators(text: &str) -> bool {
    let mut chars = text.chars();
    let first = chars.next().unwrap_or(' ');
    INDICATORS.contains(first)
        || HALF_INDICATORS.contains(first) && matches!(chars.next(), None | Some(' '))
        || text.starts_with("---")
        || text.starts_with("...")
        || text.starts_with(' ')
        || text.ends_with([' ', ':'])
        || text.contains(": ")
        || text.contains(" #")
}

/// Returns true if some reader takes the text without quotes for something else than a text.
fn is_ambiguous(text: &str) -> bool {
    WORDS.iter().any(|word| word.eq_ignore_ascii_case(text))
        || is_like_number(text)
        || is_like_time(text)
}

/// Returns true for numbers of YAML 1.1 and 1.2: with signs, bases, powers, underscores, or in sixties (`12:30`).
fn is_like_number(text: &str) -> bool {
    let digits = text.replace('_', "").to_ascii_lowercase();
    let digits = digits.strip_prefix(['-', '+']).unwrap_or(&digits);
    if matches!(digits, ".inf" | ".nan") {
        return true;
    }
    if !digits.starts_with(|c: char| c == '.' || c.is_ascii_digit()) {
        return false;
    }
    let of_base = ["0x", "0o", "0b"]
        .iter()
        .find_map(|base| digits.strip_prefix(base));
    if let Some(digits) = of_base {
        return digits.bytes().all(|c| c.is_ascii_hexdigit());
    }
    let whole = digits.split_once('.').map_or(digits, |(whole, _)| whole);
    let mut sixties = whole.split(':');
    let is_digits = |part: &str| part.bytes().all(|c| c.is_ascii_digit());
    let is_sixties = sixties.next().is_some_and(is_digits)
        && whole.contains(':')
        && sixties.all(|part| part.parse::<u8>().is_ok_and(|n| n < 60));
    // A point alone is a number without digits for some.
    is_sixties || digits == "." || digits.parse::<f64>().is_ok()
}

/// Returns true for a date of YAML 1.1 (`2001-1-1`), with or without a time behind it.
fn is_like_time(text: &str) -> bool {
    let mut parts = text.splitn(3, '-');
    let mut next = || parts.next().unwrap_or("");
    let (year, month, rest) = (next(), next(), next());
    let is_number = |part: &str, len: usize| {
        !part.is_empty() && part.len() <= len && part.bytes().all(|c| c.is_ascii_digit())
    };
    let day = rest.split(['T', 't', ' ', '\t']).next().unwrap_or("");
    year.len() == 4 && is_number(year, 4) && is_number(month, 2) && is_number(day, 2)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn texts_have_the_quotes_of_kubectl() {
        // CLI-01
        for (texts, quote) in [
            // Read as something else by YAML 1.1, by YAML 1.2 or by both.
            (
                &[
                    "",
                    "~",
                    "null",
                    "Null",
                    "true",
                    "False",
                    "yes",
                    "No",
                    "ON",
                    "off",
                    "y",
                    "N",
                    "=",
                    "<<",
                    "0",
                    "-1",
                    "+7",
                    "007",
                    "0x1F",
                    "0o17",
                    "0b11",
                    "1_000",
                    "1.",
                    ".5",
                    "-0.5",
                    "1e3",
                    "6.02e+23",
                    "1234567e8",
                    ".inf",
                    "-.INF",
                    ".NaN",
                    "12:30",
                    "1:2:3",
                    "-1:59",
                    "190:20:30.15",
                    "2001-12-14",
                    "2001-1-1",
                    "2001-12-14T21:59:43Z",
                    "2001-12-14 21:59:43.10 -5",
                    "tab\there",
                    "\u{7f}",
                    "\u{85}",
                    "\u{2028}",
                    "\u{feff}",
                    "ends \nin a blank",
                    " begins\nwith one",
                    "\nbegins",
                    "\n",
                    "a\r\nb",
                ][..],
                Some('"'),
            ),
            // Signs of YAML's own.
            (
                &[
                    " a", "a ", "- a", "-", "? a", ": a", "---", "--- a", "...", "*a", "&a", "!a",
                    "|a", ">a", "%a", "@a", "`a", "'a'", "\"a\"", "#a", "a #b", "a: b", "a:",
                    "[a]", "{a}", ",a",
                ],
                Some('\''),
            ),
            (
                &[
                    "a",
                    "-a",
                    "--flag=x",
                    ":8080",
                    "?a",
                    "a#b",
                    "a:b",
                    "nginx:1.25",
                    "10.0.0.1",
                    "10.0.0.0/24",
                    "2001:db8::1",
                    "::1",
                    "8080:80",
                    "100m",
                    "128Mi",
                    "24h",
                    "1.36.0",
                    "v1",
                    "none",
                    "yesterday",
                    "inf",
                    "nan",
                    "1-2",
                    "12-14-2001",
                    "0xyz",
                    "it's",
                    "a \"b\"",
                    "a, b",
                    "a [b] {c}",
                    "ü",
                    "€ 5",
                    "http://h:80/a?b=c#d",
                ],
                None,
            ),
        ] {
            for text in texts {
                let line = yaml_text(&json!({"k": text}));
                let value = line.strip_prefix("k: ").expect("one entry");
                let first = value.chars().next();
                let is_quoted =
                    first.filter(|c| "'\"".contains(*c) && value.trim_end().ends_with(*c));
                assert_eq!(is_quoted, quote, "{text:?}: {line}");
                assert!(quote.is_some() || value == format!("{text}\n"), "{line}");
                // Keys are written by the same rule.
                let line = yaml_text(&json!({*text: 1}));
                assert_eq!(
                    line.trim_end().strip_suffix(": 1"),
                    Some(value.trim_end()),
                    "{line}"
                );
            }
        }
    }

    #[test]
    fn documents_have_the_form_of_kubectl() {
        // CLI-01
        let document = json!({
            "empty": {}, "float": 1e30, "list": [1, {"a": 1, "b": [2]}, [3, 4], [], "x\ny"],
            "lines": "one\n  two\n\nend\n", "more": {"m": {"o": null}}, "rest": "a\n\n", "w": "don't: do",
        });
        assert_eq!(
            yaml_text(&document),
            "empty: {}\nfloat: 1.0e+30\nlines: |\n  one\n    two\n\n  end\nlist:\n- 1\n- a: 1\n  b:\n  - 2\n\
             - - 3\n  - 4\n- []\n- |-\n  x\n  y\nmore:\n  m:\n    o: null\nrest: |+\n  a\n\nw: 'don''t: do'\n"
        );
        let long = "k".repeat(MAX_SIMPLE_KEY_BYTES + 1);
        let text = yaml_text(&json!({"a": {&*long: {"b": 1}}}));
        assert_eq!(text, format!("a:\n  ? {long}\n  :\n    b: 1\n"));
        assert_eq!(yaml_text(&json!("a")), "a\n");
    }
}
