//! Image references: `[domain/]path[:tag][@digest]`.
//!
//! A pod's reference stays in the API as it is written: the kubelet appends `:latest` and expands nothing. The *store*
//! keeps and looks up normalised names (`busybox` is `docker.io/library/busybox:latest`), so both forms find an image.
//!
//! Source: the grammar of distribution/reference.

use core::fmt;

use super::digest::{Digest, DigestError};
use super::error::ImageError;

/// Longest repository name (domain and path), bytes.
pub const MAX_REPOSITORY_BYTES: usize = 255;
/// Longest tag, bytes.
pub const MAX_TAG_BYTES: usize = 128;
/// Domain of names that carry none.
const DEFAULT_DOMAIN: &str = "docker.io";
/// Path prefix of one-word names at the default domain.
const OFFICIAL: &str = "library/";

/// Reason why a text is no reference.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    /// The text is empty.
    #[error("it is empty")]
    Empty,
    /// An image's id.
    #[error("64 hex digits are an id, not a name; write sha256: before them")]
    Id,
    /// Domain and path together are too long.
    #[error("its name is longer than {MAX_REPOSITORY_BYTES} bytes")]
    TooLong,
    /// A name is wanted that can be given to an image.
    #[error("a digest cannot be given as a name")]
    ByDigest,
    /// The digest behind the `@`.
    #[error(transparent)]
    Digest(#[from] DigestError),
    /// The tag.
    #[error("tag {0:?} is not 1 to {MAX_TAG_BYTES} letters, digits, `_`, `.`, `-`")]
    Tag(String),
    /// The domain, and its fault.
    #[error("domain {0:?} {1}")]
    Domain(String, &'static str),
    /// Capitals in the path.
    #[error("repository name must be lower case")]
    UpperCase,
    /// The path.
    #[error("path {0:?} is not lower-case words joined by `.`, `_`, `__`, `-` and `/`")]
    Path(String),
}

/// A parsed, normalised reference. Ordered by text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ImageReference {
    repository: String,
    tag: Option<String>,
    digest: Option<Digest>,
}

impl ImageReference {
    /// Parses and normalises `text`. With neither tag nor digest the tag is `latest`.
    ///
    /// Errors: [`ImageError::InvalidReference`], for which the API's word is `InvalidImageName`.
    pub fn parse(text: &str) -> Result<Self, ImageError> {
        parse_reference(text).map_err(|reason| ImageError::InvalidReference {
            reference: text.chars().take(MAX_REPOSITORY_BYTES).collect(),
            reason,
        })
    }

    /// Domain and path: `docker.io/library/busybox`.
    #[must_use]
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// The registry: `docker.io`, `localhost:5000`.
    #[must_use]
    pub fn domain(&self) -> &str {
        let (domain, _) = self
            .repository
            .split_once('/')
            .expect("a reference has a domain");
        domain
    }

    /// The tag, `latest` if the text had neither tag nor digest.
    #[must_use]
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    /// The digest, if the text had one.
    #[must_use]
    pub fn digest(&self) -> Option<Digest> {
        self.digest
    }

    /// `repository:tag`; `None` for a reference by digest alone.
    #[must_use]
    pub fn tagged_name(&self) -> Option<String> {
        self.tag
            .as_ref()
            .map(|tag| format!("{}:{tag}", self.repository))
    }
}

impl fmt::Display for ImageReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.repository)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = self.digest {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}

fn parse_reference(text: &str) -> Result<ImageReference, ReferenceError> {
    if text.is_empty() {
        return Err(ReferenceError::Empty);
    }
    if Digest::from_hex(text).is_some() {
        return Err(ReferenceError::Id);
    }
    let (rest, digest) = match text.split_once('@') {
        Some((rest, digest)) => (rest, Some(Digest::parse(digest)?)),
        None => (text, None),
    };
    // A colon after the last slash starts a tag, one before it a port.
    let after_slash = rest.rfind('/').map_or(0, |at| at + 1);
    let (name, tag) = match rest[after_slash..].find(':') {
        Some(at) => (
            &rest[..after_slash + at],
            Some(&rest[after_slash + at + 1..]),
        ),
        None => (rest, None),
    };
    if let Some(tag) = tag {
        check_tag(tag)?;
    }
    let (domain, path) = split_domain(name);
    check_domain(domain)?;
    check_path(path)?;
    let official = if domain == DEFAULT_DOMAIN && !path.contains('/') {
        OFFICIAL
    } else {
        ""
    };
    let repository = format!("{domain}/{official}{path}");
    if repository.len() > MAX_REPOSITORY_BYTES {
        return Err(ReferenceError::TooLong);
    }
    let tag = match (tag, digest) {
        (Some(tag), _) => Some(tag.to_owned()),
        (None, None) => Some("latest".to_owned()),
        (None, Some(_)) => None,
    };
    Ok(ImageReference {
        repository,
        tag,
        digest,
    })
}

/// The first component is a domain if it could not be a path: it has a dot or a port, is `localhost`, or has capitals.
fn split_domain(name: &str) -> (&str, &str) {
    match name.split_once('/') {
        Some((first, rest))
            if first.contains(['.', ':'])
                || first == "localhost"
                || first.bytes().any(|b| b.is_ascii_uppercase()) =>
        {
            let first = if first == "index.docker.io" {
                DEFAULT_DOMAIN
            } else {
                first
            };
            (first, rest)
        }
        _ => (DEFAULT_DOMAIN, name),
    }
}

fn check_tag(tag: &str) -> Result<(), ReferenceError> {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    let mut bytes = tag.bytes();
    let ok = bytes.next().is_some_and(word)
        && bytes.all(|b| word(b) || b == b'.' || b == b'-')
        && tag.len() <= MAX_TAG_BYTES;
    if ok {
        Ok(())
    } else {
        Err(ReferenceError::Tag(tag.into()))
    }
}

fn check_domain(domain: &str) -> Result<(), ReferenceError> {
    let wrong = |why| ReferenceError::Domain(domain.into(), why);
    let (host, port) = if let Some(rest) = domain.strip_prefix('[') {
        let Some((inside, port)) = rest.split_once(']') else {
            return Err(wrong("has no closing bracket"));
        };
        if inside.is_empty() || !inside.bytes().all(|b| b.is_ascii_hexdigit() || b == b':') {
            return Err(wrong("is not an IPv6 address"));
        }
        (None, port.strip_prefix(':'))
    } else {
        match domain.split_once(':') {
            Some((host, port)) => (Some(host), Some(port)),
            None => (Some(domain), None),
        }
    };
    if let Some(host) = host {
        let label = |l: &str| {
            !l.is_empty()
                && l.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
                && !l.starts_with('-')
                && !l.ends_with('-')
        };
        if !host.split('.').all(label) {
            return Err(wrong("is not a host name"));
        }
    }
    match port {
        Some(port) if port.is_empty() || !port.bytes().all(|b| b.is_ascii_digit()) => {
            Err(wrong("has a port that is not a number"))
        }
        _ => Ok(()),
    }
}

fn check_path(path: &str) -> Result<(), ReferenceError> {
    if path.bytes().any(|b| b.is_ascii_uppercase()) {
        return Err(ReferenceError::UpperCase);
    }
    if path.split('/').all(is_path_component) {
        Ok(())
    } else {
        Err(ReferenceError::Path(path.into()))
    }
}

/// Alphanumeric runs with one separator (`.`, `_`, `__`, any number of `-`) between two of them.
fn is_path_component(component: &str) -> bool {
    let alnum = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = component.as_bytes();
    let (Some(&first), Some(&last)) = (bytes.first(), bytes.last()) else {
        return false;
    };
    alnum(first)
        && alnum(last)
        && component
            .split(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
            .all(|gap| matches!(gap, "" | "." | "_" | "__") || gap.bytes().all(|b| b == b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const D: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn normalised() {
        let with_digest = format!("busybox@{D}");
        let both = format!("quay.io/a/b:1@{D}");
        for (text, want) in [
            ("busybox", "docker.io/library/busybox:latest".to_owned()),
            ("busybox:1.36", "docker.io/library/busybox:1.36".to_owned()),
            (
                "docker.io/busybox",
                "docker.io/library/busybox:latest".to_owned(),
            ),
            (
                "index.docker.io/library/busybox:x",
                "docker.io/library/busybox:x".to_owned(),
            ),
            ("user/app", "docker.io/user/app:latest".to_owned()),
            (
                "registry.k8s.io/pause:3.9",
                "registry.k8s.io/pause:3.9".to_owned(),
            ),
            ("localhost/app", "localhost/app:latest".to_owned()),
            ("localhost:5000/app", "localhost:5000/app:latest".to_owned()),
            ("host:5000/app:v1", "host:5000/app:v1".to_owned()),
            (
                "[2001:db8::1]:5000/app:v1",
                "[2001:db8::1]:5000/app:v1".to_owned(),
            ),
            (
                "a/b-c__d.e/f--g:T_1-x.y",
                "docker.io/a/b-c__d.e/f--g:T_1-x.y".to_owned(),
            ),
            (&with_digest, format!("docker.io/library/busybox@{D}")),
            (&both, format!("quay.io/a/b:1@{D}")),
        ] {
            assert_eq!(
                ImageReference::parse(text).expect(text).to_string(),
                want,
                "{text}"
            );
        }
    }

    #[test]
    fn invalid() {
        // IMG-01
        let long = format!("{}/x", "a".repeat(260));
        let long_tag = format!("x:{}", "t".repeat(129));
        for text in [
            "",
            ":tag",
            "a:",
            "a::b",
            "Busybox",
            "docker.io/Library/x",
            "a//b",
            "/a",
            "a/",
            "a b",
            "a_-b",
            "a___b",
            "a..b",
            "-a",
            "a-",
            "x@sha256:12",
            "x@md5:00",
            "x@",
            "a.b:port/x",
            "-a.b/x",
            "../x",
            "x:ta/g:1:2",
            "http://x/y",
            &D[7..],
            &long,
            &long_tag,
            "é",
        ] {
            assert!(
                matches!(
                    ImageReference::parse(text),
                    Err(ImageError::InvalidReference { .. })
                ),
                "{text:?}"
            );
        }
    }
}
