//! Settings of the tunnel by which an apiserver reaches a node that nobody can dial (TUN-01, TUN-09, TUN-10).

use std::path::PathBuf;

use serde::Deserialize;
use serde_json::Value;

use super::part::NAME;
use crate::{
    config::{
        ServerConfig, TableKey,
        checks::{InvalidField, invalid_field, read_absolute_path},
        key,
    },
    parts::read_section,
};

/// Keys of the tunnel.
pub(super) const KEYS: [TableKey; 3] = [
    key("picolet.tunnel.ca").path(),
    key("picolet.tunnel.servers"),
    key("picolet.tunnel.tokenFile").path(),
];

/// Most servers of a tunnel. Each has a stream of its own.
const MAX_SERVERS: usize = 8;
/// Port on which a server of a tunnel listens for agents, unless another is named.
const PORT: u16 = 8091;

/// `picolet.tunnel`, as it is written.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct TunnelSection {
    ca: Option<String>,
    servers: Vec<String>,
    token_file: Option<String>,
}

/// Tunnel by which the apiserver reaches a node that nobody can dial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TunnelConfig {
    /// Host and port of each server: names, or addresses without brackets. 1 to 8; default port 8091.
    pub(super) servers: Vec<(String, u16)>,
    /// CAs of the servers; `None`: those of the apiserver.
    pub(super) ca: Option<PathBuf>,
    /// File with the token that is shown, read again for each connection; `None`: the node's own client certificate is
    /// shown.
    pub(super) token_file: Option<PathBuf>,
}

/// Returns true if `own`, the value of `picolet`, names servers of a tunnel.
#[cfg(feature = "k3s")]
pub(super) fn names_servers(own: &Value) -> bool {
    let servers = own.pointer("/tunnel/servers").and_then(Value::as_array);
    servers.is_some_and(|servers| !servers.is_empty())
}

/// Resolves the tunnel below `own`, the value of `picolet`; `None`: there is none. `is_member`: there is an apiserver.
pub(super) fn resolve_tunnel(
    own: &Value,
    is_member: bool,
    server: &ServerConfig,
) -> Result<Option<TunnelConfig>, InvalidField> {
    let own: TunnelSection = read_section(own, NAME)?;
    let field = "picolet.tunnel.servers";
    let file = |field: &str, path: &Option<String>| {
        let path = path.as_deref().filter(|path| !path.is_empty());
        path.map(|path| read_absolute_path(field, Some(path), ""))
            .transpose()
    };
    let ca = file("picolet.tunnel.ca", &own.ca)?;
    let token_file = file("picolet.tunnel.tokenFile", &own.token_file)?;
    if own.servers.is_empty() {
        return match ca.is_some() || token_file.is_some() {
            false => Ok(None),
            true => invalid_field(field, "must be set for picolet.tunnel"),
        };
    }
    if own.servers.len() > MAX_SERVERS {
        let found = own.servers.len();
        return invalid_field(
            field,
            format!("has {found} items, must have at most {MAX_SERVERS}"),
        );
    }
    if !is_member {
        return invalid_field(
            field,
            "lets an apiserver reach this node, and none is configured: set picolet.kubeconfig too",
        );
    }
    if server.listen.is_none() {
        return invalid_field(
            field,
            "needs the server of this node, but enableServer is false: set it to true",
        );
    }
    let servers = own
        .servers
        .iter()
        .map(|text| match parse_server_address(text) {
            Some(address) => Ok(address),
            None => invalid_field(field, format!("has {text:?}, must be HOST or HOST:PORT")),
        });
    Ok(Some(TunnelConfig {
        servers: servers.collect::<Result<_, _>>()?,
        ca,
        token_file,
    }))
}

/// Reads host, without brackets, and port.
fn parse_server_address(text: &str) -> Option<(String, u16)> {
    let is_bare_v6 = text.parse::<core::net::Ipv6Addr>().is_ok();
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !is_bare_v6 && !text.ends_with(']') => (host, port.parse().ok()?),
        _ => (text, PORT),
    };
    let bracketed = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
    let host = bracketed.unwrap_or(host);
    // A name for TLS, or an address.
    let is_host = rustls::pki_types::ServerName::try_from(host).is_ok();
    (is_host && port > 0).then(|| (host.to_owned(), port))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::{self, HostIdentity};

    /// Resolves a tunnel of a node in a cluster.
    fn of(tunnel: Value) -> Result<Option<TunnelConfig>, String> {
        with(tunnel, true, true)
    }

    fn with(tunnel: Value, is_member: bool, serves: bool) -> Result<Option<TunnelConfig>, String> {
        let host = HostIdentity {
            hostname: "node".into(),
        };
        let server = config::default_config(&host)
            .expect("a configuration")
            .server;
        let server = ServerConfig {
            listen: serves.then(|| ([0, 0, 0, 0], 10250).into()),
            ..server
        };
        let found = resolve_tunnel(&json!({ "tunnel": tunnel }), is_member, &server);
        found.map_err(|e| format!("{}: {}", e.field, e.message))
    }

    #[test]
    fn a_tunnel() {
        // TUN-01 TUN-09
        assert_eq!(of(Value::Null), Ok(None));
        let servers = ["a.example", "10.0.0.1:1", "::1", "[::2]:3", "[::4]"];
        let tunnel = json!({"servers": servers, "ca": "/ca", "tokenFile": "/token"});
        let tunnel = of(tunnel).expect("right").expect("a tunnel");
        let servers: Vec<_> = tunnel.servers.iter().map(|(h, p)| (&**h, *p)).collect();
        assert_eq!(
            servers,
            [
                ("a.example", 8091),
                ("10.0.0.1", 1),
                ("::1", 8091),
                ("::2", 3),
                ("::4", 8091)
            ]
        );
        assert_eq!(tunnel.ca, Some("/ca".into()));
        assert_eq!(tunnel.token_file, Some("/token".into()));
    }

    #[test]
    fn refused() {
        let one = || json!({"servers": ["a"]});
        for (found, says) in [
            (
                with(one(), false, true),
                "servers: lets an apiserver reach this node, and none is configured: set picolet.kubeconfig too",
            ),
            (
                with(one(), true, false),
                "servers: needs the server of this node, but enableServer is false: set it to true",
            ),
            (
                of(json!({ "servers": vec!["a"; 9] })),
                "servers: has 9 items, must have at most 8",
            ),
            (
                of(json!({"servers": ["a b"]})),
                "servers: has \"a b\", must be HOST or HOST:PORT",
            ),
            (
                of(json!({"servers": ["a:99999"]})),
                "servers: has \"a:99999\", must be HOST or HOST:PORT",
            ),
            (
                of(json!({"servers": ["a:0"]})),
                "servers: has \"a:0\", must be HOST or HOST:PORT",
            ),
            (
                of(json!({"ca": "/x"})),
                "servers: must be set for picolet.tunnel",
            ),
            (
                of(json!({"servers": ["a"], "tokenFile": "/a/../b"})),
                "tokenFile: is \"/a/../b\", must not contain '..'",
            ),
            (of(json!({"servers": [7]})), "servers[0]: "),
        ] {
            let error = found.expect_err(says);
            assert!(
                error.starts_with(&format!("picolet.tunnel.{says}")),
                "{error}"
            );
        }
    }
}
