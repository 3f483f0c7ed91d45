//! Field errors and name rules, in upstream's words (apimachinery `util/validation/field`, `util/validation`).

use alloc::{string::String, vec::Vec};
use core::fmt;

use crate::api::{names, strict::WrongValue};

/// Most errors kept of one object: the rest says nothing new.
pub const MAX_ERRORS: usize = 20;

/// Collects what is wrong with one object.
#[derive(Debug, Default)]
pub(super) struct FieldErrors(pub(super) Vec<WrongValue>);

impl FieldErrors {
    fn add_error(&mut self, path: &str, message: String) {
        if self.0.len() < MAX_ERRORS {
            self.0.push(WrongValue::new(path, message));
        }
    }

    /// The field must be set.
    pub(super) fn required(&mut self, path: &str, detail: &str) {
        let message = if detail.is_empty() {
            "Required value".into()
        } else {
            format!("Required value: {detail}")
        };
        self.add_error(path, message);
    }

    /// The value is not allowed, for the reason in `detail`.
    pub(super) fn invalid(&mut self, path: &str, value: impl fmt::Debug, detail: &str) {
        let value = ShortenedValue::from_value(value);
        self.add_error(path, format!("Invalid value: {value}: {detail}"));
    }

    /// The value is taken.
    pub(super) fn duplicate(&mut self, path: &str, value: impl fmt::Debug) {
        let value = ShortenedValue::from_value(value);
        self.add_error(path, format!("Duplicate value: {value}"));
    }

    /// The value refers to nothing.
    pub(super) fn not_found(&mut self, path: &str, value: impl fmt::Debug) {
        let value = ShortenedValue::from_value(value);
        self.add_error(path, format!("Not found: {value}"));
    }

    /// The field must not be set here.
    pub(super) fn forbidden(&mut self, path: &str, detail: &str) {
        self.add_error(path, format!("Forbidden: {detail}"));
    }

    /// The value must be one of `known`.
    pub(super) fn require_one_of(&mut self, path: &str, value: &str, known: &[&str]) {
        if !known.contains(&value) {
            let known: Vec<String> = known
                .iter()
                .filter(|k| !k.is_empty())
                .map(|k| format!("{k:?}"))
                .collect();
            let value = ShortenedValue::from_value(value);
            let known = known.join(", ");
            let message = format!("Unsupported value: {value}: supported values: {known}");
            self.add_error(path, message);
        }
    }

    /// `value` is set.
    pub(super) fn require_present(&mut self, path: &str, value: &str) {
        if value.is_empty() {
            self.required(path, "");
        }
    }

    /// `value` is set and satisfies `rule`, which returns what it asks for.
    pub(super) fn check_name(
        &mut self,
        path: &str,
        value: &str,
        rule: fn(&str) -> Option<&'static str>,
    ) {
        if value.is_empty() {
            self.required(path, "");
        } else if let Some(detail) = rule(value) {
            self.invalid(path, value, detail);
        }
    }
}

/// Bytes of a wrong value that are shown.
const MAX_SHOWN_BYTES: usize = 512;

/// The beginning of a value: who wrote it knows the rest, and it may be as large as the manifest.
struct ShortenedValue(String);

impl ShortenedValue {
    fn from_value(value: impl fmt::Debug) -> Self {
        let mut shown = Self(String::new());
        if fmt::write(&mut shown, format_args!("{value:?}")).is_err() {
            shown.0.push_str("...");
        }
        shown
    }
}

impl fmt::Write for ShortenedValue {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = MAX_SHOWN_BYTES.saturating_sub(self.0.len());
        self.0.push_str(&text[..text.floor_char_boundary(room)]);
        if text.len() > room {
            return Err(fmt::Error);
        }
        Ok(())
    }
}

impl fmt::Display for ShortenedValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn is_alphanumeric(c: u8) -> bool {
    c.is_ascii_lowercase() || c.is_ascii_digit()
}

/// RFC 1123 label, at most 63 bytes.
pub(super) fn dns_label(text: &str) -> Option<&'static str> {
    (!names::is_dns_label(text)).then_some(
        "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', must start and end with an alphanumeric character, and have at most 63 characters",
    )
}

/// RFC 1123 subdomain, at most 253 bytes.
pub(super) fn dns_subdomain(text: &str) -> Option<&'static str> {
    (!names::is_dns_subdomain(text)).then_some(
        "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', must start and end with an alphanumeric character, and have at most 253 characters",
    )
}

/// Name of a port: at most 15 bytes, with a letter, no `-` at the ends or twice in a row.
pub(super) fn port_name(text: &str) -> Option<&'static str> {
    let bytes = text.as_bytes();
    let ok = bytes.len() <= 15
        && bytes.iter().all(|c| is_alphanumeric(*c) || *c == b'-')
        && bytes.iter().any(u8::is_ascii_lowercase)
        && !text.contains("--")
        && !text.starts_with('-')
        && !text.ends_with('-');
    (!ok).then_some(
        "must be no more than 15 lower case alphanumeric characters or '-', contain at least one letter, and neither start or end with a hyphen nor contain '--'",
    )
}

/// `[prefix/]name` of labels, annotations and resources.
pub(super) fn qualified_name(text: &str) -> Option<&'static str> {
    (!names::is_qualified_name(text)).then_some(
        "a qualified name must consist of alphanumeric characters, '-', '_' or '.', must start and end with an alphanumeric character, with an optional DNS subdomain prefix and '/'",
    )
}

/// Value of a label; may be empty.
pub(super) fn label_value(text: &str) -> Option<&'static str> {
    (!names::is_label_value(text)).then_some(
        "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character",
    )
}

/// Name of an environment variable: printable ASCII without `=`.
pub(super) fn env_name(text: &str) -> Option<&'static str> {
    let ok = !text.is_empty() && text.bytes().all(|c| (0x20..0x7f).contains(&c) && c != b'=');
    (!ok).then_some(
        "a valid environment variable name must consist only of printable ASCII characters other than '='",
    )
}

/// Key in a ConfigMap or Secret.
pub(super) fn config_key(text: &str) -> Option<&'static str> {
    let ok = text.len() <= 253
        && !text.is_empty()
        && text != "."
        && !text.starts_with("..")
        && text
            .bytes()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.'));
    (!ok).then_some(
        "a valid config key must consist of alphanumeric characters, '-', '_' or '.', and must not be '.' or start with '..'",
    )
}

/// Name of a sysctl, with dots or slashes.
pub(super) fn sysctl_name(text: &str) -> Option<&'static str> {
    let part = |p: &str| {
        let bytes = p.as_bytes();
        bytes
            .iter()
            .all(|c| is_alphanumeric(*c) || matches!(c, b'-' | b'_'))
            && bytes.first().is_some_and(|c| is_alphanumeric(*c))
            && bytes.last().is_some_and(|c| is_alphanumeric(*c))
    };
    (text.len() > 253 || !text.split(['.', '/']).all(part)).then_some(
        "must have at most 253 characters and match the form of a sysctl name (lower case parts separated by '.' or '/')",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        type Rule = fn(&str) -> Option<&'static str>;
        let long = "a".repeat(64);
        let rows: [(&str, Rule, &[&str], &[&str]); 8] = [
            (
                "label",
                dns_label,
                &["a", "a-1", "1"],
                &["", "A", "-a", "a-", "a.b", "a_b", &long],
            ),
            (
                "subdomain",
                dns_subdomain,
                &["a.b-c", "1"],
                &["", "a..b", ".a", "a.", "A", "a/b"],
            ),
            (
                "port",
                port_name,
                &["http", "a-1"],
                &["1", "a--b", "-a", "sixteenletters-a", "A"],
            ),
            (
                "qualified",
                qualified_name,
                &["a", "A_b.c", "x.io/a"],
                &["", "/a", "x.io/", "x io/a", "-a", &long],
            ),
            (
                "label value",
                label_value,
                &["", "a.B_c-1"],
                &["-", "a b", &long],
            ),
            (
                "env",
                env_name,
                &["A", "a.b-c d", "1"],
                &["", "A=B", "ä", "a\nb"],
            ),
            (
                "key",
                config_key,
                &["a.b", ".a", "A_-"],
                &["", ".", "..", "..a", "a/b"],
            ),
            (
                "sysctl",
                sysctl_name,
                &["net.ipv4.tcp_syncookies", "net/ipv4/a-b"],
                &["", "a..b", "a.", "A", "_a"],
            ),
        ];
        for (name, rule, good, bad) in rows {
            for text in good {
                assert_eq!(rule(text), None, "{name} {text:?}");
            }
            for text in bad {
                assert!(rule(text).is_some(), "{name} {text:?}");
            }
        }
    }
}
