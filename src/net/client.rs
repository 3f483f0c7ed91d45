//! A client of HTTP for documents: registries and servers of manifests are asked by one and the same code.

use alloc::sync::Arc;

use rustls::ClientConfig;
use ureq::Agent;
use ureq::config::Config;
use ureq::unversioned::transport::{ConnectProxyConnector, Connector as _, TcpConnector};

use super::Names;
use super::pace::Stop;
use super::tls::TlsConnector;
use super::watch::Watch;

/// Asks as `config` says, by `tls` where a URL wants it. Its reads end soon once `stop` says so.
pub(crate) fn agent(config: Config, tls: Option<Arc<ClientConfig>>, stop: Arc<Stop>) -> Agent {
    let connector =
        ().chain(ConnectProxyConnector::default())
            .chain(TcpConnector::default())
            .chain(Watch(stop))
            .chain(TlsConnector {
                config: tls,
                server_name: None,
            });
    Agent::with_parts(config, connector, Names::system())
}
