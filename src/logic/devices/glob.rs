//! Patterns of device nodes (DEV-31): `*`, `?` and `[…]` within one component of an absolute path below `/dev`.

use alloc::{format, string::String};

/// Bytes of a pattern.
const MAX_BYTES: usize = 256;
/// Directory of device nodes.
const DEV: &str = "/dev/";

/// Returns the error of a pattern of paths, if it has one.
pub(super) fn path_pattern_error(pattern: &str) -> Option<String> {
    if pattern.len() > MAX_BYTES {
        return Some(format!("is longer than {MAX_BYTES} bytes"));
    }
    let Some(below) = pattern.strip_prefix(DEV) else {
        return Some(format!("is {pattern:?}, must begin with {DEV}"));
    };
    for part in below.split('/') {
        if part.is_empty() || part == "." || part == ".." {
            return Some(format!(
                "is {pattern:?}, must not contain an empty component, \".\" or \"..\""
            ));
        }
        if text_pattern_error(part).is_some() {
            return unclosed_class_error(pattern);
        }
    }
    None
}

/// Returns the error of a pattern of one text, if it has one.
pub(super) fn text_pattern_error(part: &str) -> Option<String> {
    let mut rest = part.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = match first {
            b'[' => match parse_class(after) {
                Some((_, after)) => after,
                None => return unclosed_class_error(part),
            },
            _ => after,
        };
    }
    None
}

fn unclosed_class_error(pattern: &str) -> Option<String> {
    Some(format!("is {pattern:?}, whose \"[\" has no end"))
}

/// Returns true if the pattern matches `path`.
pub(super) fn matches_path(pattern: &str, path: &str) -> bool {
    let (mut patterns, mut parts) = (pattern.split('/'), path.split('/'));
    loop {
        match (patterns.next(), parts.next()) {
            (Some(pattern), Some(part)) if matches_component(pattern, part) => {}
            (None, None) => return true,
            _ => return false,
        }
    }
}

/// Returns true if the directory `dir`, or one below it, may contain a path that the pattern matches.
pub(super) fn may_match_below(pattern: &str, dir: &str) -> bool {
    let mut patterns = pattern.split('/');
    let mut all = dir.split('/');
    all.all(|part| patterns.next().is_some_and(|p| matches_component(p, part)))
        && patterns.next().is_some()
}

fn matches_component(pattern: &str, name: &str) -> bool {
    // Files that are being made have hidden names.
    if name.starts_with('.') && !pattern.starts_with('.') {
        return false;
    }
    matches_text(pattern, name)
}

/// Returns true if the pattern matches a text that is no file name: hidden names are matched as well.
pub(super) fn matches_text(pattern: &str, name: &str) -> bool {
    let (mut p, mut n) = (pattern.as_bytes(), name.as_bytes());
    // The last star: the pattern behind it, and the text behind what it has matched so far.
    let mut star: Option<(&[u8], &[u8])> = None;
    loop {
        let step = match (p.split_first(), n.split_first()) {
            (None, None) => return true,
            (Some((b'*', rest)), _) => {
                star = Some((rest, n));
                p = rest;
                continue;
            }
            (Some((b'?', rest)), Some((_, left))) => Some((rest, left)),
            (Some((b'[', rest)), Some((byte, left))) => parse_class(rest)
                .filter(|(set, _)| set.contains_byte(*byte))
                .map(|(_, rest)| (rest, left)),
            (Some((a, rest)), Some((b, left))) if a == b => Some((rest, left)),
            _ => None,
        };
        match (step, star) {
            (Some((rest, left)), _) => (p, n) = (rest, left),
            (None, Some((rest, from))) => match from.split_first() {
                Some((_, left)) => {
                    star = Some((rest, left));
                    (p, n) = (rest, left);
                }
                None => return false,
            },
            (None, None) => return false,
        }
    }
}

/// Set of bytes between brackets.
#[derive(Clone, Copy)]
struct GlobByteClass<'a> {
    negated: bool,
    bytes: &'a [u8],
}

impl GlobByteClass<'_> {
    fn contains_byte(&self, byte: u8) -> bool {
        let mut rest = self.bytes;
        let mut found = false;
        while let Some((first, after)) = rest.split_first() {
            rest = match after {
                [b'-', last, after @ ..] => {
                    found |= (*first..=*last).contains(&byte);
                    after
                }
                _ => {
                    found |= *first == byte;
                    after
                }
            };
        }
        found != self.negated
    }
}

/// Reads a set of bytes behind its `[`. Returns the set and the text behind its `]`.
fn parse_class(text: &[u8]) -> Option<(GlobByteClass<'_>, &[u8])> {
    let (negated, body) = match text {
        [b'!' | b'^', body @ ..] => (true, body),
        body => (false, body),
    };
    // A `]` that comes first means itself.
    let end = body.iter().skip(1).position(|byte| *byte == b']')? + 1;
    let (bytes, after) = body.split_at(end);
    Some((GlobByteClass { negated, bytes }, after.get(1..)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_meant() {
        // DEV-31
        for (pattern, path, is) in [
            ("/dev/ttyUSB0", "/dev/ttyUSB0", true),
            ("/dev/ttyUSB*", "/dev/ttyUSB", true),
            ("/dev/ttyUSB*", "/dev/ttyUSB12", true),
            ("/dev/ttyUSB*", "/dev/ttyS1", false),
            ("/dev/tty*1", "/dev/ttyUSB101", true),
            ("/dev/*", "/dev/serial/by-id", false),
            ("/dev/serial/by-id/*", "/dev/serial/by-id/usb-a", true),
            ("/dev/serial/by-id/*", "/dev/serial/by-id/.tmp-a", false),
            ("/dev/video?", "/dev/video1", true),
            ("/dev/video?", "/dev/video10", false),
            ("/dev/i2c-[0-2]", "/dev/i2c-1", true),
            ("/dev/i2c-[0-2]", "/dev/i2c-3", false),
            ("/dev/i2c-[!0-2]", "/dev/i2c-3", true),
            ("/dev/i2c-[]3]", "/dev/i2c-]", true),
            ("/dev/i2c-[3-]", "/dev/i2c--", true),
            ("/dev/a*b*c", "/dev/axbxbxc", true),
            ("/dev/a*b*c", "/dev/axbxbx", false),
        ] {
            assert_eq!(path_pattern_error(pattern), None);
            assert_eq!(matches_path(pattern, path), is, "{pattern} {path}");
        }
    }

    #[test]
    fn no_patterns() {
        // DEV-31
        for pattern in [
            "ttyUSB0",
            "/tmp/a",
            "/dev",
            "/dev/",
            "/dev//a",
            "/dev/a/",
            "/dev/../etc/passwd",
            "/dev/./a",
            "/dev/a[0-9",
            "/dev/a[]",
        ] {
            assert!(path_pattern_error(pattern).is_some(), "{pattern}");
        }
        assert!(path_pattern_error(&format!("/dev/{}", "a".repeat(MAX_BYTES))).is_some());
    }

    #[test]
    fn on_the_way() {
        for (dir, is) in [
            ("/dev", true),
            ("/dev/serial", true),
            ("/dev/serial/by-id", true),
            ("/dev/serial/by-id/x", false),
            ("/dev/snd", false),
        ] {
            assert_eq!(may_match_below("/dev/serial/by-*/*", dir), is, "{dir}");
        }
    }

    #[test]
    fn many_stars_take_no_time() {
        // DEV-31
        let pattern = format!("/dev/{}b", "a*".repeat(100));
        assert!(!matches_path(
            &pattern,
            &format!("/dev/{}", "a".repeat(4000))
        ));
    }
}
