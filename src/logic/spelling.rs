//! Misspelt names: finds the known one that was meant. The same rule serves manifests and the configuration.

use alloc::{format, string::String, vec::Vec};

/// Most bytes of a name that are shown or compared. No key of Kubernetes is longer.
pub const MAX_NAME_BYTES: usize = 64;

/// Finds the name that `word` was meant to be: the one in which the fewest letters differ, if these are not more than a
/// third.
pub fn nearest_name(
    word: &str,
    names: &mut dyn Iterator<Item = &'static str>,
) -> Option<&'static str> {
    let word = &word[..word.floor_char_boundary(MAX_NAME_BYTES)];
    let (letters, name) = names.map(|name| (edit_distance(word, name), name)).min()?;
    (letters <= (word.len() / 3).max(1)).then_some(name)
}

/// Shortest word for which a name is suggested, bytes: of shorter ones half the letters would differ.
const MIN_WORD_BYTES: usize = 3;

/// Makes the end of an error about a misspelt word: the name that was meant, with `before` in front; empty if none is near.
#[must_use]
pub fn suggest_name(
    word: &str,
    before: &str,
    names: &mut dyn Iterator<Item = &'static str>,
) -> String {
    match nearest_name(word, names) {
        Some(near) if word.len() >= MIN_WORD_BYTES => format!(", did you mean {before}{near}?"),
        _ => String::new(),
    }
}

/// Makes the sentence about a field that nothing knows. `near`: the name that was meant; `home`: the place in which a field
/// of this name is known.
#[must_use]
pub fn describe_unknown_field(path: &str, near: Option<&str>, home: Option<&str>) -> String {
    let (says, name, end) = match (near, home) {
        (Some(near), _) => (", did you mean ", near, "?"),
        (None, Some(home)) => (", it is a field of ", home, ""),
        (None, None) => ("", "", ""),
    };
    format!("unknown field {path} is ignored{says}{name}{end}")
}

/// Number of letters to insert, remove, replace or swap with their neighbour that make `b` of `a`. Case does not count.
fn edit_distance(a: &str, b: &str) -> usize {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = Vec::with_capacity(b.len() + 1);
        row.push(i);
        for j in 1..=b.len() {
            let is_same = |i: usize, j: usize| a[i - 1].eq_ignore_ascii_case(&b[j - 1]);
            let replaced = above[j - 1] + usize::from(!is_same(i, j));
            let mut least = replaced.min(above[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && is_same(i, j - 1) && is_same(i - 1, j) {
                least = least.min(before[j - 2] + 1);
            }
            row.push(least);
        }
        before = core::mem::replace(&mut above, row);
    }
    above.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_were_meant() {
        // CLI-02
        for (word, end) in [
            ("describ", ", did you mean -describe?"),
            ("Pods", ", did you mean -pods?"),
            ("ppods", ", did you mean -pods?"),
            ("po", ""),
            ("nothing", ""),
        ] {
            let mut names = ["pods", "describe"].into_iter();
            assert_eq!(suggest_name(word, "-", &mut names), end, "{word}");
        }
    }

    #[test]
    fn letters_that_differ() {
        for (a, b, letters) in [
            ("", "", 0),
            ("", "abc", 3),
            ("image", "image", 0),
            ("imgae", "image", 1),
            ("Image", "image", 0),
            ("comand", "command", 1),
            ("restart", "restartPolicy", 6),
        ] {
            assert_eq!(edit_distance(a, b), letters, "{a} {b}");
            assert_eq!(edit_distance(b, a), letters, "{b} {a}");
        }
    }
}
