//! Names of things: the rules of RFC 1123 and of labels, as an apiserver holds them. And patterns of names.
//!
//! Source: apimachinery `pkg/util/validation/validation.go`.

/// Bytes of a DNS label and of the name part of a label.
const MAX_LABEL_BYTES: usize = 63;
/// Bytes of a DNS subdomain.
const MAX_SUBDOMAIN_BYTES: usize = 253;

fn is_lower_alphanumeric(c: u8) -> bool {
    c.is_ascii_lowercase() || c.is_ascii_digit()
}

fn is_dns_part(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes
        .iter()
        .all(|c| is_lower_alphanumeric(*c) || *c == b'-')
        && bytes.first().is_some_and(|c| is_lower_alphanumeric(*c))
        && bytes.last().is_some_and(|c| is_lower_alphanumeric(*c))
}

/// RFC 1123 label, at most 63 bytes.
#[must_use]
pub fn is_dns_label(text: &str) -> bool {
    text.len() <= MAX_LABEL_BYTES && is_dns_part(text)
}

/// RFC 1123 subdomain, at most 253 bytes.
#[must_use]
pub fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= MAX_SUBDOMAIN_BYTES && text.split('.').all(is_dns_part)
}

/// The part of a qualified name after the slash, and label values: at most 63 bytes.
fn is_plain_name(text: &str) -> bool {
    let bytes = text.as_bytes();
    let edge = |c: Option<&u8>| c.is_some_and(u8::is_ascii_alphanumeric);
    bytes.len() <= MAX_LABEL_BYTES
        && bytes
            .iter()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.'))
        && edge(bytes.first())
        && edge(bytes.last())
}

/// `[prefix/]name` of labels, annotations, taints and resources.
#[must_use]
pub fn is_qualified_name(text: &str) -> bool {
    match text.split_once('/') {
        Some((prefix, name)) => is_dns_subdomain(prefix) && is_plain_name(name),
        None => is_plain_name(text),
    }
}

/// Value of a label; may be empty.
#[must_use]
pub fn is_label_value(text: &str) -> bool {
    text.is_empty() || is_plain_name(text)
}

/// Returns true if `text` matches `pattern`, in which `*` stands for any bytes and `?` for one. Takes at most the
/// product of their lengths.
#[must_use]
pub fn matches_glob(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    // Where to go on if what follows the last star does not fit.
    let (mut p, mut t, mut star) = (0, 0, None);
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(&c) if c == b'?' || c == text[t] => {
                p += 1;
                t += 1;
            }
            _ => match &mut star {
                Some((at, from)) => {
                    *from += 1;
                    p = *at + 1;
                    t = *from;
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|&c| c == b'*')
}
