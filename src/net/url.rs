//! URLs, as far as a registry needs them: `http` or `https`, a host, a path. Nothing else is taken from a peer.

use core::fmt;
use core::net::Ipv6Addr;

/// Longest URL taken, bytes. Signed addresses of blob stores have about 2000.
pub(crate) const MAX_URL_BYTES: usize = 8192;

/// Reason why a text is no URL. Does not repeat it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// The scheme is another, or missing.
    #[error("it is neither http:// nor https://")]
    Scheme,
    /// Longer than any that is needed.
    #[error("it is longer than {MAX_URL_BYTES} bytes")]
    TooLong,
    /// Spaces, control characters, or characters beyond ASCII.
    #[error("it has characters that no URL has")]
    Characters,
    /// Credentials do not belong there.
    #[error("it has a user in it")]
    User,
    /// Neither a name nor an address, or its port is no number.
    #[error("its host is not valid")]
    Host,
}

/// An absolute URL without user and fragment.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Url {
    /// Set for `https`, else `http`.
    pub https: bool,
    /// Host, and port if it is given: `registry.example:5000`, `[2001:db8::1]`.
    pub authority: String,
    /// Path from its slash on, with the query.
    pub path: String,
}

impl Url {
    /// Parses an absolute URL.
    pub fn parse(text: &str) -> Result<Self, UrlError> {
        let (https, rest) = match text.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") => (true, rest),
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => (false, rest),
            _ => return Err(UrlError::Scheme),
        };
        if text.len() > MAX_URL_BYTES {
            return Err(UrlError::TooLong);
        }
        if !text.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(UrlError::Characters);
        }
        let rest = rest.split('#').next().unwrap_or("");
        let at = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(at);
        if authority.contains('@') {
            return Err(UrlError::User);
        }
        let (host, port) = split_port(authority);
        if !is_host(host) || port.is_some_and(|p| p.parse::<u16>().is_err()) {
            return Err(UrlError::Host);
        }
        let slash = if path.starts_with('/') { "" } else { "/" };
        Ok(Self {
            https,
            authority: authority.to_ascii_lowercase(),
            path: format!("{slash}{path}"),
        })
    }

    /// Resolves `location`, absolute or not, against this URL. Source: RFC 3986 section 5.2, without dot segments.
    pub fn resolve_location(&self, location: &str) -> Result<Self, UrlError> {
        if location.contains("://") && !location.starts_with(['/', '?']) {
            return Self::parse(location);
        }
        let scheme = self.scheme();
        let base = self.path.split('?').next().unwrap_or("/");
        if location.starts_with("//") {
            Self::parse(&format!("{scheme}:{location}"))
        } else if location.starts_with('/') {
            Self::parse(&format!("{scheme}://{}{location}", self.authority))
        } else if location.starts_with('?') {
            Self::parse(&format!("{scheme}://{}{base}{location}", self.authority))
        } else {
            let dir = &base[..=base.rfind('/').unwrap_or(0)];
            Self::parse(&format!("{scheme}://{}{dir}{location}", self.authority))
        }
    }

    /// Makes the URL of another path on the same server.
    #[must_use]
    pub fn with_path(&self, path: String) -> Self {
        Self {
            path,
            ..self.clone()
        }
    }

    /// Returns true if both name one server: a secret for one may be told to the other.
    #[must_use]
    pub fn same_origin(&self, other: &Self) -> bool {
        self.https == other.https && self.host() == other.host() && self.port() == other.port()
    }

    /// Host without port and brackets.
    #[must_use]
    pub fn host(&self) -> &str {
        let (host, _) = split_port(&self.authority);
        host.trim_start_matches('[').trim_end_matches(']')
    }

    /// Port, the scheme's own if none is given.
    #[must_use]
    pub fn port(&self) -> u16 {
        let (_, port) = split_port(&self.authority);
        let default = if self.https { 443 } else { 80 };
        port.and_then(|p| p.parse().ok()).unwrap_or(default)
    }

    /// `http` or `https`.
    #[must_use]
    pub const fn scheme(&self) -> &'static str {
        if self.https { "https" } else { "http" }
    }

    /// Returns true if requests leave this machine without TLS.
    #[must_use]
    pub fn is_plain_over_network(&self) -> bool {
        !self.https && !is_loopback(self.host())
    }

    /// The URL without its query, which may hold a signature: for messages.
    #[must_use]
    pub fn without_query(&self) -> String {
        let path = self.path.split('?').next().unwrap_or("");
        format!("{}://{}{path}", self.scheme(), self.authority)
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", self.scheme(), self.authority, self.path)
    }
}

/// A name, an IPv4 address, or an IPv6 address in brackets.
fn is_host(host: &str) -> bool {
    match host.strip_prefix('[').and_then(|h| h.strip_suffix(']')) {
        Some(address) => address.parse::<Ipv6Addr>().is_ok(),
        None => !host.is_empty() && !host.contains(['[', ']', ':']),
    }
}

/// Host, in its brackets if it has them, and port.
pub(crate) fn split_port(authority: &str) -> (&str, Option<&str>) {
    match authority.rfind(':') {
        // A colon within brackets belongs to the address.
        Some(at) if !authority[at..].contains(']') => {
            (&authority[..at], Some(&authority[at + 1..]))
        }
        _ => (authority, None),
    }
}

/// Returns true if `host` is this machine: there, plain http is the rule.
pub(crate) fn is_loopback(host: &str) -> bool {
    host == "localhost"
        || host
            .parse::<core::net::IpAddr>()
            .is_ok_and(|ip| ip.is_loopback())
}

/// Percent-encodes the value of a query: `%` and two digits for each byte that may not stand there.
pub(crate) fn encode_query_value(text: &str) -> String {
    encode_percent(text, b"-._~/:,")
}

/// Percent-encodes a text: `%` and two digits for each byte but ASCII letters, digits and `kept`.
pub(crate) fn encode_percent(text: &str, kept: &[u8]) -> String {
    use fmt::Write as _;
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || kept.contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parsed_joined_compared() {
        let base = Url::parse("https://R.example:443/v2/a/b?x=1#f").expect("url");
        assert_eq!(base.to_string(), "https://r.example:443/v2/a/b?x=1");
        for (location, want) in [
            ("http://o.example/p", "http://o.example/p"),
            ("//o.example/p", "https://o.example/p"),
            ("/p?q", "https://r.example:443/p?q"),
            ("?q", "https://r.example:443/v2/a/b?q"),
            ("c", "https://r.example:443/v2/a/c"),
            ("/p?u=http://x/", "https://r.example:443/p?u=http://x/"),
        ] {
            let joined = base.resolve_location(location).expect(location);
            assert_eq!(joined.to_string(), want, "{location}");
        }
        for (other, same) in [
            ("https://r.example/x", true),
            ("http://r.example:443/", false),
            ("https://r.example:444/", false),
            ("https://s.example/", false),
        ] {
            let other = Url::parse(other).expect(other);
            assert_eq!(base.same_origin(&other), same, "{other}");
        }
        let six = Url::parse("http://[::1]:5000").expect("url");
        assert_eq!((six.host(), six.path.as_str()), ("::1", "/"));
        assert!(is_loopback(six.host()) && is_loopback("127.0.0.2") && !is_loopback("10.0.0.1"));
        for (text, is_plain) in [
            ("http://r.example/m", true),
            ("http://127.0.0.1.example:80/m", true),
            ("http://10.0.0.1/m", true),
            ("https://r.example/m", false),
            ("http://localhost:8000/m", false),
            ("http://[::1]/m", false),
        ] {
            let url = Url::parse(text).expect(text);
            assert_eq!(url.is_plain_over_network(), is_plain, "{text}");
        }
    }

    #[test]
    fn refused() {
        let long = format!("http://a/{}", "x".repeat(MAX_URL_BYTES));
        for text in [
            "",
            "a.example/x",
            "ftp://a/x",
            "file:///etc/passwd",
            "http://",
            "http:///x",
            "https://user:secret@a/x",
            "http://a:port/",
            "http://a:70000/",
            "http://a/\u{e9}",
            "http://a/ b",
            "http://[",
            "http://[x]/",
            "http://a]:80/",
            "http://::1/",
            "http://a/\r\nX: y",
            &long,
        ] {
            assert!(Url::parse(text).is_err(), "{text:?}");
        }
    }
}
