//! Requests to stream and the answers to them: HTTP heads only.
//!
//! Sources: RFC 6455 section 4; k8s.io/streaming `httpstream.go` `Handshake`, `spdy/upgrade.go`, `wsstream/conn.go`.

use alloc::borrow::ToOwned as _;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY};

/// `UpgradeRequest` of SPDY.
const SPDY: &str = "SPDY/3.1";
/// `UpgradeRequest` of WebSocket.
const WEBSOCKET: &str = "websocket";
/// Header that names a SPDY client's protocols.
const PROTOCOL_HEADER: &str = "X-Stream-Protocol-Version";
/// Header of a refusal: what would be served.
const ACCEPTED_HEADER: &str = "X-Accepted-Stream-Protocol-Versions";
/// Prefix of a bearer token that a browser sends among the protocols; it is no protocol. Whoever authenticates takes
/// the token from here.
const BEARER_PREFIX: &str = "base64url.bearer.authorization.k8s.io.";
/// GUID of the handshake. Source: RFC 6455.
const WEBSOCKET_GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// The only version there is.
const WEBSOCKET_VERSION: &str = "13";
/// Bytes of a decoded `Sec-WebSocket-Key`.
pub const KEY_BYTES: usize = 16;
/// Protocol names of one request; further ones are not looked at.
const MAX_PROTOCOLS: usize = 16;

/// A header value of `Sec-WebSocket-Protocol` without the bearer tokens in it; `None` if nothing is left.
pub(crate) fn strip_bearer_tokens(value: &str) -> Option<String> {
    let words = value.split(',').map(str::trim);
    let kept: Vec<_> = words
        .filter(|w| !w.is_empty() && !w.starts_with(BEARER_PREFIX))
        .collect();
    (!kept.is_empty()).then(|| kept.join(", "))
}

/// Protocol that a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpgradeRequest<'a> {
    /// SPDY/3.1.
    Spdy {
        /// Protocols above it, the client's first choice first.
        protocols: Vec<&'a str>,
    },
    /// WebSocket.
    WebSocket {
        /// `Sec-WebSocket-Key`, checked.
        key: &'a str,
        /// Sub-protocols, the client's first choice first. May be empty.
        protocols: Vec<&'a str>,
    },
}

/// Reason why a request cannot be upgraded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UpgradeError {
    /// The request asks for no upgrade that is known here.
    #[error("Upgrade request required")]
    Plain,
    /// A WebSocket begins with GET.
    #[error("unable to upgrade: WebSocket needs GET")]
    Method,
    /// The header is missing or says nothing.
    #[error("unable to upgrade: header {0} is required")]
    Header(&'static str),
    /// The server knows none of the protocols.
    #[error("unable to upgrade: client supports {offered:?}, server accepts {accepted:?}")]
    Protocol {
        /// Protocols of the client.
        offered: Vec<String>,
        /// Protocols of the server.
        accepted: &'static [&'static str],
    },
}

impl UpgradeError {
    /// HTTP status.
    #[must_use]
    pub const fn http_status(&self) -> u16 {
        match self {
            Self::Plain | Self::Header(_) => 400,
            Self::Method => 405,
            Self::Protocol { .. } => 403,
        }
    }

    /// Header lines that the answer needs, each with its end of line.
    #[must_use]
    pub fn header_lines(&self) -> String {
        match self {
            Self::Protocol { accepted, .. } => accepted
                .iter()
                .map(|name| format!("{ACCEPTED_HEADER}: {name}\r\n"))
                .collect(),
            Self::Header("Sec-WebSocket-Version") => {
                format!("Sec-WebSocket-Version: {WEBSOCKET_VERSION}\r\n")
            }
            Self::Plain | Self::Method | Self::Header(_) => String::new(),
        }
    }
}

impl<'a> UpgradeRequest<'a> {
    /// Reads `method` and `headers` (names in any case, in the order sent).
    pub fn parse(
        method: &str,
        headers: impl Iterator<Item = (&'a str, &'a str)> + Clone,
    ) -> Result<Self, UpgradeError> {
        let all = |name: &'static str| {
            let headers = headers.clone();
            headers.filter_map(move |(n, value)| n.eq_ignore_ascii_case(name).then_some(value))
        };
        let words = |name| {
            all(name)
                .flat_map(|value| value.split(','))
                .map(str::trim)
                .filter(|word| !word.is_empty())
        };
        let upgrades = words("Connection").any(|word| word.eq_ignore_ascii_case("upgrade"));
        let to = |name: &str| upgrades && words("Upgrade").any(|w| w.eq_ignore_ascii_case(name));
        if to(WEBSOCKET) {
            if method != "GET" {
                return Err(UpgradeError::Method);
            }
            if !all("Sec-WebSocket-Version").any(|v| v.trim() == WEBSOCKET_VERSION) {
                return Err(UpgradeError::Header("Sec-WebSocket-Version"));
            }
            let key = all("Sec-WebSocket-Key").map(str::trim).next();
            let is_key = |key: &&str| STANDARD.decode(key).is_ok_and(|k| k.len() == KEY_BYTES);
            let key = key
                .filter(|k| k.len() < 2 * KEY_BYTES)
                .filter(is_key)
                .ok_or(UpgradeError::Header("Sec-WebSocket-Key"))?;
            let protocols = words("Sec-WebSocket-Protocol");
            let protocols = protocols.filter(|name| !name.starts_with(BEARER_PREFIX));
            let protocols = protocols.take(MAX_PROTOCOLS).collect();
            Ok(Self::WebSocket { key, protocols })
        } else if to(SPDY) {
            let protocols: Vec<_> = words(PROTOCOL_HEADER).take(MAX_PROTOCOLS).collect();
            if protocols.is_empty() {
                return Err(UpgradeError::Header(PROTOCOL_HEADER));
            }
            Ok(Self::Spdy { protocols })
        } else {
            Err(UpgradeError::Plain)
        }
    }

    /// The first of the client's protocols that is `accepted`. A WebSocket without any gets the one without name.
    pub fn choose_protocol(
        &self,
        accepted: &'static [&'static str],
    ) -> Result<&'static str, UpgradeError> {
        let (Self::Spdy { protocols } | Self::WebSocket { protocols, .. }) = self;
        if protocols.is_empty() {
            return Ok("");
        }
        let known = |name: &&str| accepted.iter().find(|a| *a == name).copied();
        let chosen = protocols.iter().find_map(known);
        chosen.ok_or_else(|| UpgradeError::Protocol {
            offered: protocols.iter().map(|&name| name.to_owned()).collect(),
            accepted,
        })
    }

    /// Returns true if the client would speak `protocol` over WebSocket.
    #[must_use]
    pub fn offers_protocol(&self, protocol: &str) -> bool {
        matches!(self, Self::WebSocket { protocols, .. } if protocols.contains(&protocol))
    }

    /// Head of the answer, for a chosen `protocol`.
    #[must_use]
    pub fn answer_head(&self, protocol: &str) -> String {
        let start = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: ";
        match self {
            Self::Spdy { .. } => {
                format!("{start}{SPDY}\r\n{PROTOCOL_HEADER}: {protocol}\r\n\r\n")
            }
            Self::WebSocket { key, .. } => {
                let accept = accept_key(key);
                let protocol = if protocol.is_empty() {
                    String::new()
                } else {
                    format!("Sec-WebSocket-Protocol: {protocol}\r\n")
                };
                format!("{start}{WEBSOCKET}\r\nSec-WebSocket-Accept: {accept}\r\n{protocol}\r\n")
            }
        }
    }
}

/// Head of a client's request for a WebSocket without sub-protocol. `host`: host and port. `key`: random bytes.
#[must_use]
pub fn client_request_head(host: &str, path: &str, key: &str) -> String {
    format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: {WEBSOCKET}\r\n\
         Sec-WebSocket-Version: {WEBSOCKET_VERSION}\r\nSec-WebSocket-Key: {key}\r\n\r\n"
    )
}

/// Text of a client's key.
#[must_use]
pub fn encode_client_key(random: [u8; KEY_BYTES]) -> String {
    STANDARD.encode(random)
}

/// Checks the headers of the answer 101 to [`client_request_head`].
///
/// - Errors: the header that is wrong.
pub fn check_client_answer<'a>(
    key: &str,
    headers: impl Iterator<Item = (&'a str, &'a [u8])>,
) -> Result<(), &'static str> {
    const UPGRADE: &str = "Upgrade";
    const CONNECTION: &str = "Connection";
    const ACCEPT: &str = "Sec-WebSocket-Accept";
    let (mut upgrades, mut connects, mut accepts) = (false, false, false);
    for (name, value) in headers {
        let value = value.trim_ascii();
        let is = |known: &str| name.eq_ignore_ascii_case(known);
        if is(UPGRADE) {
            upgrades = value.eq_ignore_ascii_case(WEBSOCKET.as_bytes());
        } else if is(CONNECTION) {
            let mut words = value.split(|byte| *byte == b',');
            connects |= words.any(|word| word.trim_ascii().eq_ignore_ascii_case(b"upgrade"));
        } else if is(ACCEPT) {
            accepts = value == accept_key(key).as_bytes();
        } else if is("Sec-WebSocket-Extensions") || is("Sec-WebSocket-Protocol") {
            // Nothing was offered.
            return Err("Sec-WebSocket-Extensions or Sec-WebSocket-Protocol");
        }
    }
    let all = [
        (upgrades, UPGRADE),
        (connects, CONNECTION),
        (accepts, ACCEPT),
    ];
    match all.iter().find(|(is_right, _)| !is_right) {
        None => Ok(()),
        Some((_, name)) => Err(name),
    }
}

/// Shows that the server has read the key.
fn accept_key(key: &str) -> String {
    let mut digest = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
    digest.update(key.as_bytes());
    digest.update(WEBSOCKET_GUID);
    STANDARD.encode(digest.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";

    fn of<'a>(
        method: &str,
        head: &[(&'a str, &'a str)],
    ) -> Result<UpgradeRequest<'a>, UpgradeError> {
        UpgradeRequest::parse(method, head.iter().copied())
    }

    fn web_socket<'a>(protocols: &[&'a str]) -> UpgradeRequest<'a> {
        UpgradeRequest::WebSocket {
            key: KEY,
            protocols: protocols.to_vec(),
        }
    }

    // STREAM-01 STREAM-05 STREAM-10 SRV-07
    #[test]
    fn requests() {
        let spdy = ("upgrade", "SPDY/3.1");
        let ws = ("Upgrade", "websocket");
        let on = ("Connection", "keep-alive, Upgrade");
        let key = ("Sec-WebSocket-Key", KEY);
        let v13 = ("sec-websocket-version", "13");
        let bearer = "base64url.bearer.authorization.k8s.io.dG9rZW4";
        let spdy_of = |protocols: &[&'static str]| UpgradeRequest::Spdy {
            protocols: protocols.to_vec(),
        };
        for (name, method, head, expected) in [
            (
                "kubectl's five, in a row of headers",
                "POST",
                &[
                    on,
                    spdy,
                    ("X-Stream-Protocol-Version", "v5.channel.k8s.io"),
                    ("X-Stream-Protocol-Version", "v4.channel.k8s.io"),
                ][..],
                Ok(spdy_of(&["v5.channel.k8s.io", "v4.channel.k8s.io"])),
            ),
            (
                "in one header",
                "GET",
                &[on, spdy, ("x-stream-protocol-version", "a, b ,,c")],
                Ok(spdy_of(&["a", "b", "c"])),
            ),
            (
                "SPDY without protocol",
                "POST",
                &[on, spdy],
                Err(UpgradeError::Header(PROTOCOL_HEADER)),
            ),
            ("nothing", "POST", &[], Err(UpgradeError::Plain)),
            (
                "no Connection",
                "GET",
                &[ws, key, v13],
                Err(UpgradeError::Plain),
            ),
            (
                "HTTP/2",
                "GET",
                &[on, ("Upgrade", "h2c")],
                Err(UpgradeError::Plain),
            ),
            (
                "WebSocket without protocol",
                "GET",
                &[on, ws, key, v13],
                Ok(web_socket(&[])),
            ),
            (
                "a token is no protocol",
                "GET",
                &[on, ws, key, v13, ("Sec-WebSocket-Protocol", bearer)],
                Ok(web_socket(&[])),
            ),
            (
                "protocols",
                "GET",
                &[
                    on,
                    ws,
                    key,
                    v13,
                    ("Sec-WebSocket-Protocol", "v4.channel.k8s.io,channel.k8s.io"),
                ],
                Ok(web_socket(&["v4.channel.k8s.io", "channel.k8s.io"])),
            ),
            (
                "POST",
                "POST",
                &[on, ws, key, v13],
                Err(UpgradeError::Method),
            ),
            (
                "an old version",
                "GET",
                &[on, ws, key, ("Sec-WebSocket-Version", "8")],
                Err(UpgradeError::Header("Sec-WebSocket-Version")),
            ),
            (
                "a short key",
                "GET",
                &[on, ws, v13, ("Sec-WebSocket-Key", "YQ==")],
                Err(UpgradeError::Header("Sec-WebSocket-Key")),
            ),
        ] {
            assert_eq!(of(method, head), expected, "{name}");
        }
    }

    // STREAM-05 STREAM-10
    #[test]
    fn the_client_chooses() {
        const OURS: &[&str] = &["v4.channel.k8s.io", "channel.k8s.io"];
        for (offered, chosen) in [
            (&["channel.k8s.io", "v4.channel.k8s.io"][..], Some(OURS[1])),
            (&["v5.channel.k8s.io", "v4.channel.k8s.io"], Some(OURS[0])),
            (&[], Some("")),
            (&["V4.channel.k8s.io"], None),
        ] {
            let choice = web_socket(offered).choose_protocol(OURS);
            assert_eq!(choice.as_ref().ok().copied(), chosen, "{offered:?}");
            if let Err(refused) = choice {
                assert_eq!(refused.http_status(), 403);
                assert_eq!(
                    refused.header_lines(),
                    "X-Accepted-Stream-Protocol-Versions: v4.channel.k8s.io\r\n\
                     X-Accepted-Stream-Protocol-Versions: channel.k8s.io\r\n"
                );
            }
        }
    }

    #[test]
    fn answers() {
        // The key and its answer are the example of RFC 6455.
        assert_eq!(
            web_socket(&[]).answer_head("v4.channel.k8s.io"),
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nSec-WebSocket-Protocol: v4.channel.k8s.io\r\n\r\n"
        );
        assert!(!web_socket(&[]).answer_head("").contains("Protocol:"));
        let spdy = UpgradeRequest::Spdy { protocols: vec![] };
        assert_eq!(
            spdy.answer_head("portforward.k8s.io"),
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\
             X-Stream-Protocol-Version: portforward.k8s.io\r\n\r\n"
        );
    }

    #[test]
    fn a_client_asks_and_checks_the_answer() {
        // K3ST-01
        let head = client_request_head("a:6443", "/x", KEY);
        let fields = |head: &str| {
            let lines = head.trim_end().lines().skip(1);
            let fields = lines.filter_map(|line| line.split_once(": "));
            fields
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect::<Vec<_>>()
        };
        assert!(head.starts_with("GET /x HTTP/1.1\r\nHost: a:6443\r\n"));
        let asked = fields(&head);
        assert_eq!(asked.len(), 5, "no further headers: {asked:?}");
        let asked = asked.iter().map(|(name, value)| (&**name, &**value));
        let asked = UpgradeRequest::parse("GET", asked).expect("a server reads it");
        assert_eq!(asked, web_socket(&[]));
        let check = |answer: &str| {
            let fields = fields(answer);
            let all = fields
                .iter()
                .map(|(name, value)| (&**name, value.as_bytes()));
            check_client_answer(KEY, all)
        };
        let answer = asked.answer_head("");
        assert_eq!(check(&answer), Ok(()));
        assert_eq!(
            check(&answer.replace("Upgrade: websocket", "upgrade: WebSocket")),
            Ok(())
        );
        for (from, to, wrong) in [
            ("s3pPL", "s3pPM", "Sec-WebSocket-Accept"),
            ("Sec-WebSocket-Accept", "X", "Sec-WebSocket-Accept"),
            ("Upgrade: websocket", "Upgrade: h2c", "Upgrade"),
            ("Connection: Upgrade", "Connection: close", "Connection"),
            (
                "\r\n\r\n",
                "\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n",
                "Sec-WebSocket-Extensions or Sec-WebSocket-Protocol",
            ),
        ] {
            assert_eq!(check(&answer.replace(from, to)), Err(wrong), "{from}");
        }
        assert_eq!(encode_client_key(*b"the sample nonce"), KEY);
    }
}
