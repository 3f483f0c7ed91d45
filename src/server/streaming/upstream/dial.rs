//! Connects to a runtime's server of streams: on this node, with or without TLS.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::time::Duration;
use std::io;
use std::net::TcpStream;
use std::os::fd::AsRawFd as _;

use async_io::{Async, Timer};
use futures_rustls::TlsConnector;
use nix::ifaddrs::getifaddrs;
use rustls::pki_types::ServerName;
use smol::io::AsyncWriteExt as _;

use super::answer::{self, UpstreamAnswerHead};
use super::{UpstreamConnection, UpstreamError};
use crate::net::any_peer::PeerProof;
use crate::net::tls::{self, ServerRoots};
use crate::net::{Url, UrlError};
use crate::server::connection::StreamConnection;

/// Time in which a connection within this machine has to be made, TLS included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Connects to `url`, asks there what `head` makes of it, and waits `time` until the server has switched protocols.
pub(super) async fn open_upstream(
    url: &str,
    time: Duration,
    head: impl FnOnce(&Url) -> String,
) -> Result<UpstreamConnection, UpstreamError> {
    let url = parse_runtime_url(url)?;
    let place = &url.authority;
    let addresses = local_addresses(&url)?;
    let broken = |source| UpstreamError::Broken {
        place: place.clone(),
        source,
    };
    let connecting = async {
        let socket = connect_first(&addresses, url.port()).await;
        let socket = socket.map_err(|source| UpstreamError::Connect {
            place: place.clone(),
            source,
        })?;
        secure_connection(&url, socket).await.map_err(broken)
    };
    let mut connection = fail_after(CONNECT_TIMEOUT, place, connecting).await?;
    let head = head(&url);
    let asking = async {
        connection
            .write_all(head.as_bytes())
            .await
            .map_err(broken)?;
        connection.flush().await.map_err(broken)?;
        answer::read_answer_head(&mut connection, place).await
    };
    let UpstreamAnswerHead { answer, raw } = fail_after(time, place, asking).await?;
    if answer.status == 101 {
        return Ok(UpstreamConnection {
            connection,
            head: raw,
        });
    }
    Err(UpstreamError::Refused(
        answer::read_answer_body(&mut connection, answer).await,
    ))
}

/// A runtime may leave the scheme out.
fn parse_runtime_url(url: &str) -> Result<Url, UrlError> {
    if url.contains("://") {
        return Url::parse(url);
    }
    Url::parse(&format!("http://{}", url.trim_start_matches('/')))
}

/// Returns the addresses of the URL's host, on this node and nowhere else: names are not asked for.
fn local_addresses(url: &Url) -> Result<Vec<IpAddr>, UpstreamError> {
    let host = url.host();
    if host == "localhost" {
        return Ok(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
    }
    let ip = host.parse().ok().filter(|ip: &IpAddr| is_own_address(*ip));
    ip.map(|ip| vec![ip])
        .ok_or_else(|| UpstreamError::Elsewhere(host.to_owned()))
}

fn is_own_address(ip: IpAddr) -> bool {
    if ip.is_loopback() || ip.is_unspecified() {
        return true;
    }
    let Ok(mut all) = getifaddrs() else {
        return false;
    };
    all.any(|entry| {
        entry.address.is_some_and(|address| {
            let v4 = address.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
            let v6 = || address.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip()));
            v4.or_else(v6) == Some(ip)
        })
    })
}

/// Connects to the first address with a listener.
async fn connect_first(addresses: &[IpAddr], port: u16) -> io::Result<Async<TcpStream>> {
    let mut failed = io::ErrorKind::AddrNotAvailable.into();
    for ip in addresses {
        match Async::<TcpStream>::connect(SocketAddr::new(*ip, port)).await {
            Ok(socket) => {
                // Keys are typed one by one.
                socket.get_ref().set_nodelay(true)?;
                return Ok(socket);
            }
            Err(e) => failed = e,
        }
    }
    Err(failed)
}

/// Speaks TLS if the scheme is `https`. The signer of the certificate is not looked at: the way does not leave the
/// node, and without `https` the server would have shown none.
async fn secure_connection(url: &Url, socket: Async<TcpStream>) -> io::Result<StreamConnection> {
    let fd = socket.as_raw_fd();
    if !url.https {
        return Ok(StreamConnection::new(socket).with_socket(fd));
    }
    let config =
        tls::client_config(ServerRoots::Any(PeerProof::Key), None).map_err(io::Error::other)?;
    let name = ServerName::try_from(url.host().to_owned()).map_err(io::Error::other)?;
    let stream = TlsConnector::from(config).connect(name, socket).await?;
    Ok(StreamConnection::new(stream).with_socket(fd))
}

async fn fail_after<T>(
    limit: Duration,
    place: &str,
    work: impl Future<Output = Result<T, UpstreamError>>,
) -> Result<T, UpstreamError> {
    let late = async {
        Timer::after(limit).await;
        Err(UpstreamError::Silent {
            place: place.to_owned(),
            after: limit,
        })
    };
    smol::future::or(work, late).await
}

#[cfg(test)]
mod tests {
    use super::*;

    // CRI-80
    #[test]
    fn only_this_node_is_called() {
        let of = |url: &str| local_addresses(&parse_runtime_url(url).expect(url));
        for own in [
            "http://127.0.0.1:1/exec/a",
            "127.0.0.2:1/exec/a",
            "//localhost/exec/a",
            "https://[::1]:1/",
            "http://0.0.0.0:1/",
        ] {
            assert!(of(own).is_ok_and(|all| !all.is_empty()), "{own}");
        }
        for other in [
            "http://192.0.2.1:80/exec/a",
            "http://[2001:db8::1]/",
            "http://example.com/",
            "localhost.example:1/",
        ] {
            let said = of(other).expect_err(other).to_string();
            assert!(said.contains("is not of this node"), "{said}");
        }
        for none in [
            "",
            "ftp://127.0.0.1/",
            "http://127.0.0.1/ a",
            "http://u@127.0.0.1/",
        ] {
            assert!(parse_runtime_url(none).is_err(), "{none}");
        }
    }
}
