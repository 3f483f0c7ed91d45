//! Access to the dashboard. A browser reaches it, and so does every page that the browser shows. A request must name
//! this machine's address as its host, come from the dashboard's own page, and have the token.

use alloc::string::String;
use core::{hint::black_box, net::IpAddr};

/// Kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DashboardRequestKind {
    /// The page itself, without any data.
    Page,
    /// Data about the node.
    Data,
    /// An action on the node.
    Action,
}

/// Parts of a request that tell who asks.
#[derive(Clone, Copy, Debug)]
pub struct DashboardRequester<'a> {
    /// `Host`, if there is exactly one.
    pub host: Option<&'a str>,
    /// `Origin`.
    pub origin: Option<&'a str>,
    /// `Authorization`.
    pub authorization: Option<&'a str>,
    /// The address of this machine that was asked.
    pub local: IpAddr,
}

/// Reason why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DashboardDenial {
    /// `Host` is not this machine's address: the name may come from a stranger's name server (DNS rebinding).
    #[error(
        "host {0:?} is not this machine's address; open the URL that picolet dashboard printed"
    )]
    Host(String),
    /// The request comes from a page that is not the dashboard's.
    #[error(
        "a page of {0:?} may not use this dashboard; open the URL that picolet dashboard printed"
    )]
    Origin(String),
    /// An action without `Origin`: the page that asks for it is not known.
    #[error("a request that changes something needs an Origin header")]
    NoOrigin,
    /// Without the token, or with a wrong one.
    #[error("the token is missing or wrong; open the URL that picolet dashboard printed")]
    Token,
    /// An action on a dashboard that may only show.
    #[error(
        "this dashboard is read-only; start it with picolet dashboard --allow-actions to make changes"
    )]
    ReadOnly,
}

impl DashboardDenial {
    /// HTTP status of the refusal.
    #[must_use]
    pub const fn http_status(&self) -> u16 {
        match self {
            Self::Token => 401,
            Self::Host(_) | Self::Origin(_) | Self::NoOrigin | Self::ReadOnly => 403,
        }
    }
}

/// Longest part of a request that an answer repeats.
const MAX_REPEATED_CHARS: usize = 80;

fn shorten_header(text: &str) -> String {
    text.chars().take(MAX_REPEATED_CHARS).collect()
}

/// Checks that a request may be answered.
///
/// - Errors: the fault of the request, the most telling first.
pub fn check_request(
    asked: &DashboardRequester<'_>,
    wanted: DashboardRequestKind,
    token: &str,
    allow_actions: bool,
) -> Result<(), DashboardDenial> {
    let host = asked.host.unwrap_or_default();
    let is_ours = parse_host_address(host)
        .is_some_and(|ip| ip == asked.local || ip.is_loopback() && asked.local.is_loopback());
    if !is_ours {
        return Err(DashboardDenial::Host(shorten_header(host)));
    }
    match asked.origin {
        Some(origin) if origin.strip_prefix("http://") != Some(host) => {
            return Err(DashboardDenial::Origin(shorten_header(origin)));
        }
        None if wanted == DashboardRequestKind::Action => return Err(DashboardDenial::NoOrigin),
        _ => {}
    }
    if wanted == DashboardRequestKind::Page {
        return Ok(());
    }
    let shown = asked.authorization.and_then(|a| a.strip_prefix("Bearer "));
    if !shown.is_some_and(|shown| constant_time_eq(shown, token)) {
        return Err(DashboardDenial::Token);
    }
    if wanted == DashboardRequestKind::Action && !allow_actions {
        return Err(DashboardDenial::ReadOnly);
    }
    Ok(())
}

/// Reads the address in a `Host`, with or without a port. A name is refused, except `localhost`, which always means
/// this machine.
fn parse_host_address(host: &str) -> Option<IpAddr> {
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => host.find(':').map_or((host, ""), |at| host.split_at(at)),
    };
    let is_port = |port: &str| port.parse::<u16>().is_ok();
    if !port.is_empty() && !port.strip_prefix(':').is_some_and(is_port) {
        return None;
    }
    if name.eq_ignore_ascii_case("localhost") {
        return Some(IpAddr::from([127, 0, 0, 1]));
    }
    name.parse().ok().map(|ip: IpAddr| ip.to_canonical())
}

/// Compares every byte, so that the time it takes does not show where the texts differ.
fn constant_time_eq(a: &str, b: &str) -> bool {
    let differ = a
        .bytes()
        .zip(b.bytes())
        .fold(0, |differ, (a, b)| black_box(differ | (a ^ b)));
    a.len() == b.len() && differ == 0
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString as _;

    use super::*;

    const TOKEN: &str = "0123456789abcdef0123456789abcdef";
    const BEARER: &str = "Bearer 0123456789abcdef0123456789abcdef";

    fn asked(
        host: &str,
        origin: Option<&str>,
        wanted: DashboardRequestKind,
    ) -> Result<(), DashboardDenial> {
        let asked = DashboardRequester {
            host: Some(host),
            origin,
            authorization: Some(BEARER),
            local: IpAddr::from([127, 0, 0, 1]),
        };
        check_request(&asked, wanted, TOKEN, true)
    }

    #[test]
    fn hosts() {
        for host in [
            "127.0.0.1:8899",
            "127.0.0.1",
            "localhost:9000",
            "LocalHost",
            "[::1]:8899",
            "[::ffff:127.0.0.1]:1",
        ] {
            assert_eq!(
                asked(host, None, DashboardRequestKind::Data),
                Ok(()),
                "{host}"
            );
        }
        for host in [
            "",
            "evil.example:8899",
            "localhost.evil.example",
            "127.0.0.1.evil.example:8899",
            "192.0.2.1:8899",
            "[::1",
            "::1",
            "[::1]8899",
            "127.0.0.1:",
            "127.0.0.1:x",
            "127.0.0.1:99999",
            "127.0.0.1:8899:1",
            "evil.example@127.0.0.1",
            "127.1",
            "2130706433",
        ] {
            let denied = asked(host, None, DashboardRequestKind::Page);
            assert_eq!(denied, Err(DashboardDenial::Host(host.into())), "{host}");
        }
        // A request to another address of this machine must name that one.
        let mut by_network = DashboardRequester {
            host: Some("192.0.2.1:8899"),
            origin: None,
            authorization: Some(BEARER),
            local: IpAddr::from([192, 0, 2, 1]),
        };
        assert_eq!(
            check_request(&by_network, DashboardRequestKind::Data, TOKEN, false),
            Ok(())
        );
        by_network.host = Some("localhost:8899");
        assert!(check_request(&by_network, DashboardRequestKind::Data, TOKEN, false).is_err());
        by_network.host = None;
        assert!(check_request(&by_network, DashboardRequestKind::Page, TOKEN, false).is_err());
    }

    #[test]
    fn origins() {
        let of = |origin, wanted| asked("localhost:8899", Some(origin), wanted);
        for wanted in [
            DashboardRequestKind::Page,
            DashboardRequestKind::Data,
            DashboardRequestKind::Action,
        ] {
            assert_eq!(of("http://localhost:8899", wanted), Ok(()));
            for foreign in [
                "http://evil.example",
                "https://localhost:8899",
                "http://localhost:8898",
                "http://localhost:8899.evil.example",
                "http://127.0.0.1:8899",
                "null",
                "",
            ] {
                let denied = of(foreign, wanted);
                assert_eq!(
                    denied,
                    Err(DashboardDenial::Origin(foreign.into())),
                    "{wanted:?}"
                );
            }
        }
        assert_eq!(
            asked("localhost:8899", None, DashboardRequestKind::Data),
            Ok(())
        );
        let silent = asked("localhost:8899", None, DashboardRequestKind::Action);
        assert_eq!(silent, Err(DashboardDenial::NoOrigin));
    }

    #[test]
    fn tokens() {
        let of = |authorization, wanted, allow_actions| {
            let asked = DashboardRequester {
                host: Some("localhost"),
                origin: Some("http://localhost"),
                authorization,
                local: IpAddr::from([127, 0, 0, 1]),
            };
            check_request(&asked, wanted, TOKEN, allow_actions)
        };
        let longer = alloc::format!("{BEARER}0");
        for wrong in [
            None,
            Some(""),
            Some("Bearer "),
            Some(TOKEN),
            Some("Basic 0123456789abcdef0123456789abcdef"),
            Some("Bearer 0123456789abcdef0123456789abcdee"),
            Some("Bearer 0123456789abcdef0123456789abcde"),
            Some(&*longer),
        ] {
            assert_eq!(
                of(wrong, DashboardRequestKind::Page, false),
                Ok(()),
                "{wrong:?}"
            );
            assert_eq!(
                of(wrong, DashboardRequestKind::Data, false),
                Err(DashboardDenial::Token)
            );
            assert_eq!(
                of(wrong, DashboardRequestKind::Action, true),
                Err(DashboardDenial::Token)
            );
        }
        assert_eq!(of(Some(BEARER), DashboardRequestKind::Data, false), Ok(()));
        assert_eq!(of(Some(BEARER), DashboardRequestKind::Action, true), Ok(()));
        let only = of(Some(BEARER), DashboardRequestKind::Action, false);
        assert_eq!(only, Err(DashboardDenial::ReadOnly));
    }

    #[test]
    fn why_is_one_line() {
        let long = "x".repeat(70_000);
        let denied = asked(&long, None, DashboardRequestKind::Page).expect_err("not ours");
        let text = denied.to_string();
        assert!(text.len() < 200 && !text.contains('\n'), "{text}");
        assert_eq!(
            (denied.http_status(), DashboardDenial::Token.http_status()),
            (403, 401)
        );
    }
}
