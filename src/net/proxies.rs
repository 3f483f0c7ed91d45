//! Choice of requests that go through a proxy.
//!
//! Source: Go's `golang.org/x/net/http/httpproxy`, whose rules every Go program on a node follows.

use core::net::IpAddr;

use super::url::{Url, is_loopback, split_port};

/// Proxies, as the usual variables name them; empty for none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProxyVariables {
    /// `HTTP_PROXY`
    pub http: String,
    /// `HTTPS_PROXY`
    pub https: String,
    /// `NO_PROXY`: `*`, domains (with all below; with a leading dot only those below), addresses, networks such as
    /// `10.0.0.0/8`, each but a network with a port if wanted; separated by commas.
    pub no_proxy: String,
}

impl ProxyVariables {
    /// Reads the variables from an environment, in capitals or not. `value`: the value of a variable, if it is there.
    /// An empty one counts as not there.
    ///
    /// - Source: Go's `golang.org/x/net/http/httpproxy`, for the order.
    pub(crate) fn from_environment(value: impl Fn(&str) -> Option<String>) -> Self {
        let set = |name: &str| value(name).filter(|value| !value.is_empty());
        let read = |name: &str| {
            set(name)
                .or_else(|| set(&name.to_ascii_lowercase()))
                .unwrap_or_default()
        };
        Self {
            http: read("HTTP_PROXY"),
            https: read("HTTPS_PROXY"),
            no_proxy: read("NO_PROXY"),
        }
    }

    /// The variables that are set.
    pub(crate) fn to_environment(&self) -> Vec<(&'static str, String)> {
        [
            ("HTTP_PROXY", &self.http),
            ("HTTPS_PROXY", &self.https),
            ("NO_PROXY", &self.no_proxy),
        ]
        .into_iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(name, value)| (name, value.clone()))
        .collect()
    }

    /// The proxy for a request, as the library takes it. Requests in plain text are tunnelled too: a proxy that caches
    /// an answer may also change it.
    ///
    /// Errors: the fault of the variable, without its text, which may hold a password.
    pub(crate) fn tunnel_for(&self, url: &Url) -> Result<Option<ureq::Proxy>, &'static str> {
        let Some(text) = self.proxy_for(url) else {
            return Ok(None);
        };
        // Of another kind the library would pass it by without a word.
        match text.split_once("://") {
            None | Some(("http" | "https", _)) => {}
            Some(_) => return Err("the proxy is neither http:// nor https://"),
        }
        ureq::Proxy::new(text)
            .map(Some)
            .map_err(|_| "the proxy's address is not valid")
    }

    /// The proxy for a request. This machine itself is never reached through one.
    pub(crate) fn proxy_for(&self, url: &Url) -> Option<&str> {
        let proxy = if url.https { &self.https } else { &self.http };
        let direct = proxy.is_empty() || is_loopback(url.host()) || self.excludes_url(url);
        (!direct).then_some(proxy.as_str())
    }

    fn excludes_url(&self, url: &Url) -> bool {
        let (host, port) = (url.host(), url.port());
        let address: Option<IpAddr> = host.parse().ok();
        let entries = self.no_proxy.split(',').map(str::trim);
        entries.filter(|e| !e.is_empty()).any(|entry| {
            if entry == "*" {
                return true;
            }
            if let Some((network, bits)) = entry.split_once('/') {
                return address.is_some_and(|a| is_within_network(a, network, bits));
            }
            // An address of IPv6 without brackets has no port.
            let (name, wanted) = match entry.parse::<IpAddr>() {
                Ok(_) => (entry, None),
                Err(_) => split_port(entry),
            };
            if wanted.is_some_and(|w| w.parse() != Ok(port)) {
                return false;
            }
            let name = name.trim_start_matches('[').trim_end_matches(']');
            match (address, name.parse::<IpAddr>()) {
                (Some(address), Ok(named)) => address == named,
                (Some(_), Err(_)) | (None, Ok(_)) => false,
                (None, Err(_)) => is_below_domain(host, name),
            }
        })
    }
}

/// Returns true if `host` is the domain `name` or below it; below it only, if `name` begins with a dot or `*.`.
fn is_below_domain(host: &str, name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let name = name.strip_prefix('*').unwrap_or(&name);
    if name.starts_with('.') {
        return host.ends_with(name);
    }
    host.strip_suffix(name)
        .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

fn is_within_network(address: IpAddr, network: &str, bits: &str) -> bool {
    let Ok(bits) = bits.parse::<u32>() else {
        return false;
    };
    match (address, network.parse()) {
        (IpAddr::V4(a), Ok(IpAddr::V4(n))) if bits <= 32 => {
            let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
            a.to_bits() & mask == n.to_bits() & mask
        }
        (IpAddr::V6(a), Ok(IpAddr::V6(n))) if bits <= 128 => {
            let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
            a.to_bits() & mask == n.to_bits() & mask
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_reached_directly() {
        for (no_proxy, url, direct) in [
            ("", "https://r.example/", false),
            ("*", "https://r.example/", true),
            ("r.example", "https://r.example/", true),
            ("R.Example", "https://r.example/", true),
            ("example", "https://r.example/", true),
            ("example", "https://rexample/", false),
            (".r.example", "https://r.example/", false),
            (".example", "https://r.example/", true),
            ("*.example", "https://r.example/", true),
            ("r.example:5000", "https://r.example:5000/", true),
            ("r.example:5000", "https://r.example/", false),
            ("r.example:443", "https://r.example/", true),
            ("a, 10.0.0.0/8", "https://10.1.2.3/", true),
            ("10.0.0.0/8", "https://11.1.2.3/", false),
            ("0.0.0.0/0", "https://11.1.2.3/", true),
            ("10.0.0.0/33", "https://10.0.0.0/", false),
            ("10.1.2.3", "https://10.1.2.3:5000/", true),
            ("10.1.2.3:80", "https://10.1.2.3:5000/", false),
            ("2001:db8::1", "https://[2001:db8::1]:5000/", true),
            ("[2001:db8::1]:5000", "https://[2001:db8::1]:5000/", true),
            ("2001:db8::/32", "https://[2001:db8:1::1]/", true),
            ("::/0", "https://[2001:db8:1::1]/", true),
            ("10.0.0.0/8", "https://[2001:db8:1::1]/", false),
            ("", "https://localhost:5000/", true),
            ("", "https://127.0.0.2/", true),
            ("", "https://[::1]/", true),
            (" ,,", "https://r.example/", false),
        ] {
            let variables = ProxyVariables {
                http: String::new(),
                https: "http://proxy:3128".into(),
                no_proxy: no_proxy.into(),
            };
            let url = Url::parse(url).expect(url);
            assert_eq!(
                variables.proxy_for(&url).is_none(),
                direct,
                "{no_proxy:?} {url}"
            );
        }
    }

    #[test]
    fn each_scheme_has_its_own() {
        let variables = ProxyVariables {
            http: "http://plain:1".into(),
            https: "http://secret:2".into(),
            no_proxy: String::new(),
        };
        for (url, proxy) in [
            ("http://r.example/", "http://plain:1"),
            ("https://r.example/", "http://secret:2"),
        ] {
            let url = Url::parse(url).expect(url);
            assert_eq!(variables.proxy_for(&url), Some(proxy));
        }
    }
}
