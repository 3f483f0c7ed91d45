//! Cutting text to a limit.

/// The head of `text`, at most `limit` bytes, never through a character.
#[must_use]
pub fn cut(text: &str, limit: usize) -> &str {
    &text[..text.floor_char_boundary(limit)]
}

#[cfg(test)]
mod tests {
    #[test]
    fn whole_characters() {
        for (text, limit, head) in [
            ("abc", 5, "abc"),
            ("abc", 2, "ab"),
            ("a€b", 3, "a"),
            ("", 0, ""),
        ] {
            assert_eq!(super::cut(text, limit), head);
        }
    }
}
