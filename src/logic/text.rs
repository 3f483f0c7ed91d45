//! Texts within limits: cut to bytes, wrapped to columns.

use alloc::string::String;

/// Widest line of a help text, columns.
pub const HELP_COLUMNS: usize = 100;
/// Widest left column of a help text. What is wider has the text of its right column on the next line.
const MAX_LEFT_COLUMNS: usize = 36;

/// Sets rows of two texts in two columns, at most [`HELP_COLUMNS`] wide. Breaks right texts between words; a word that is wider
/// stays whole.
#[must_use]
pub fn two_columns<'a>(rows: impl Iterator<Item = (&'a str, &'a str)> + Clone) -> String {
    let lefts = rows.clone().map(|(left, _)| left.chars().count());
    let width = lefts
        .filter(|len| *len <= MAX_LEFT_COLUMNS)
        .max()
        .unwrap_or(0);
    let indent = 2 + width + 2;
    let mut out = String::new();
    for (left, right) in rows {
        out.push_str("  ");
        out.push_str(left);
        let mut column = 2 + left.chars().count();
        // Two spaces before the right text, or its own line.
        let mut is_first = true;
        for word in right.split_whitespace() {
            let len = word.chars().count();
            let is_full = if is_first {
                column + 2 > indent
            } else {
                column + 1 + len > HELP_COLUMNS
            };
            if is_full {
                out.push('\n');
                column = 0;
            }
            let gap = if is_first || is_full {
                indent - column
            } else {
                1
            };
            out.extend(core::iter::repeat_n(' ', gap));
            out.push_str(word);
            column += gap + len;
            is_first = false;
        }
        out.push('\n');
    }
    out
}

/// The head of `text`, at most `limit` bytes, never through a character.
#[must_use]
pub fn truncate_text(text: &str, limit: usize) -> &str {
    &text[..text.floor_char_boundary(limit)]
}

#[cfg(test)]
mod tests {
    use alloc::string::String;

    use super::{HELP_COLUMNS, two_columns};

    #[test]
    fn help_has_two_columns() {
        let long = "word ".repeat(30);
        let wide = "x".repeat(40);
        let rows = [
            ("-a", "one two"),
            ("--long", long.trim()),
            (&*wide, "below"),
            ("-b", ""),
        ];
        let text = two_columns(rows.into_iter());
        let lines: alloc::vec::Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "  -a      one two");
        assert!(lines[1].starts_with("  --long  word word"));
        assert!(lines[2].starts_with("          word"));
        assert_eq!(lines[3], String::from("  ") + &wide);
        assert_eq!(lines[4..], ["          below", "  -b"]);
        assert!(
            lines.iter().all(|line| line.len() <= HELP_COLUMNS),
            "{text}"
        );
    }

    #[test]
    fn whole_characters() {
        for (text, limit, head) in [
            ("abc", 5, "abc"),
            ("abc", 2, "ab"),
            ("a€b", 3, "a"),
            ("", 0, ""),
        ] {
            assert_eq!(super::truncate_text(text, limit), head);
        }
    }
}
