//! Settings of the tunnel by which an apiserver reaches a node that nobody can dial (TUN-01, TUN-09, TUN-10).

use crate::config::{
    ServerConfig, TunnelConfig,
    checks::{Invalid, absolute, invalid},
    file::Tunnel,
};

/// Most servers of a tunnel. Each has a stream of its own.
const MAX_SERVERS: usize = 8;
/// Port on which a server of a tunnel listens for agents, unless another is named.
const PORT: u16 = 8091;

/// Resolves the tunnel; `None`: there is none. `is_member`: there is an apiserver.
pub(crate) fn resolve(
    own: &Tunnel,
    is_member: bool,
    server: &ServerConfig,
) -> Result<Option<TunnelConfig>, Invalid> {
    let field = "picolet.tunnel.servers";
    let file = |field: &str, path: &Option<String>| {
        let path = path.as_deref().filter(|path| !path.is_empty());
        path.map(|path| absolute(field, Some(path), "")).transpose()
    };
    let ca = file("picolet.tunnel.ca", &own.ca)?;
    let token_file = file("picolet.tunnel.tokenFile", &own.token_file)?;
    if own.servers.is_empty() {
        return match ca.is_some() || token_file.is_some() {
            false => Ok(None),
            true => invalid(field, "must be set for picolet.tunnel"),
        };
    }
    if own.servers.len() > MAX_SERVERS {
        let found = own.servers.len();
        return invalid(
            field,
            format!("has {found} items, must have at most {MAX_SERVERS}"),
        );
    }
    if !is_member {
        return invalid(
            field,
            "is for an apiserver to reach this node, and there is none: set picolet.kubeconfig too",
        );
    }
    if server.listen.is_none() {
        return invalid(
            field,
            "leads to the server of this node, and enableServer is false: set it to true",
        );
    }
    let servers = own.servers.iter().map(|text| match address(text) {
        Some(address) => Ok(address),
        None => invalid(field, format!("has {text:?}, must be HOST or HOST:PORT")),
    });
    Ok(Some(TunnelConfig {
        servers: servers.collect::<Result<_, _>>()?,
        ca,
        token_file,
    }))
}

/// Reads host, without brackets, and port.
fn address(text: &str) -> Option<(String, u16)> {
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
