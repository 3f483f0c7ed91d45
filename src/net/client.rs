//! A client of HTTP for documents: registries and servers of manifests are asked by one and the same code.

use alloc::sync::Arc;

use rustls::ClientConfig;
use ureq::Agent;
use ureq::config::{Config, ConfigBuilder};
use ureq::typestate::AgentScope;
use ureq::unversioned::transport::{ConnectProxyConnector, Connector as _};

use super::NameResolver;
use super::pace::StopFlag;
use super::tcp::LongTcpConnector;
use super::tls::TlsConnector;
use super::watch::StoppableConnector;
use crate::api::link::LinkClass;

/// Head of an answer, bytes.
const MAX_HEAD_BYTES: usize = 32 * 1024;

/// Makes the settings common to all clients: the caller sees statuses and follows redirects itself, and unpacks
/// nothing.
pub(crate) fn common_config() -> ConfigBuilder<AgentScope> {
    Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .user_agent(concat!("picolet/", env!("CARGO_PKG_VERSION")))
        .accept_encoding("identity")
        .max_response_header_size(MAX_HEAD_BYTES)
}

/// Makes a client with `config`, and with `tls` for URLs that want it. Its reads end soon once `stop` says so. Bytes
/// count as `class`.
pub(crate) fn build_agent(
    config: Config,
    tls: Option<Arc<ClientConfig>>,
    stop: Arc<StopFlag>,
    class: LinkClass,
) -> Agent {
    let connector =
        ().chain(ConnectProxyConnector::default())
            .chain(LongTcpConnector { class, peer: None })
            .chain(StoppableConnector(stop))
            .chain(TlsConnector {
                config: tls,
                server_name: None,
            });
    Agent::with_parts(config, connector, NameResolver::system_default())
}
