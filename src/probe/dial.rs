//! Makes connections to a host and a port.

use core::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};
use std::{
    io,
    net::TcpStream,
    os::{fd::AsRawFd as _, linux::net::TcpStreamExt as _},
};

use async_io::Async;
use nix::{
    errno::Errno,
    sys::socket::{
        AddressFamily, SockFlag, SockType, SockaddrStorage, connect as connect_socket, socket,
    },
};

use super::{ProbeRequestError, Prober, plain::PlainConnection};
use crate::{net::NameResolver, sys::lane::Lane};

/// Addresses of one name that are tried.
const MAX_ADDRESSES: usize = 4;
/// Longest wait for name servers; a probe that has less time gives up before.
const NAME_TIME: Duration = Duration::from_secs(10);
/// Stack of the thread that asks name servers, bytes.
const NAME_STACK_BYTES: usize = 128 * 1024;

/// Connects. Dropped before, it closes the socket.
pub(super) async fn connect_to_host(
    prober: &Prober,
    host: &str,
    ip: Option<IpAddr>,
    port: u16,
) -> Result<PlainConnection, ProbeRequestError> {
    let mut last = String::new();
    for ip in prober.resolve_addresses(host, ip).await? {
        let address = SocketAddr::new(ip, port);
        match open_socket(address).await {
            Ok(stream) => return Ok(PlainConnection::new(stream)),
            Err(e) => last = format!("dial tcp {address}: connect: {}", go_error_text(&e)),
        }
    }
    Err(ProbeRequestError::Peer(last))
}

/// Opens one connection. Within a machine it is there when the call returns, without a wait for the reactor, which is
/// another thread.
async fn open_socket(address: SocketAddr) -> io::Result<TcpStream> {
    let family = if address.is_ipv4() {
        AddressFamily::Inet
    } else {
        AddressFamily::Inet6
    };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let mut stream = TcpStream::from(socket(family, SockType::Stream, flags, None)?);
    // The request goes out with the last packet of the handshake: one packet less, and the peer is woken once (tcp(7)).
    stream.set_quickack(false)?;
    match connect_socket(stream.as_raw_fd(), &SockaddrStorage::from(address)) {
        Ok(()) | Err(Errno::EINPROGRESS) => {}
        Err(e) => return Err(e.into()),
    }
    if stream.peer_addr().is_err() {
        let waits = Async::new_nonblocking(stream)?;
        waits.writable().await?;
        stream = waits.into_inner()?;
        if let Some(e) = stream.take_error()? {
            return Err(e);
        }
    }
    Ok(stream)
}

/// Host and port as in a URL.
pub(super) fn host_and_port(host: &str, ip: Option<IpAddr>, port: u16) -> String {
    let own = ip.map(|ip| ip.to_string()).unwrap_or_default();
    let host = if host.is_empty() { &own } else { host };
    if host.contains(':') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

/// Text of the kernel's error, in Go's words: `connection refused`.
pub(super) fn go_error_text(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(number) => Errno::from_raw(number).desc().to_ascii_lowercase(),
        None => error.to_string(),
    }
}

impl Prober {
    async fn resolve_addresses(
        &self,
        host: &str,
        ip: Option<IpAddr>,
    ) -> Result<Vec<IpAddr>, ProbeRequestError> {
        if host.is_empty() {
            let ip = ip.ok_or_else(|| ProbeRequestError::Node("the pod has no IP".into()))?;
            return Ok(vec![ip]);
        }
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        if let Ok(ip) = bare.parse() {
            return Ok(vec![ip]);
        }
        // The one blocking step: name servers are asked by one thread, which is there only if some probe names a host.
        let lane = self.names.get_or_init(|| {
            Lane::start_threads("probe-names", 1, NAME_STACK_BYTES)
                .map_err(|e| log::warn!("cannot start a thread: {e}"))
                .ok()
        });
        let none = || ProbeRequestError::Node("names cannot be looked up".into());
        let lane = lane.as_ref().ok_or_else(none)?;
        let name = bare.to_owned();
        let found =
            lane.run_job(move || NameResolver::system_default().resolve_host(&name, NAME_TIME));
        let failed = |e| ProbeRequestError::Node(format!("lookup {bare}: {e}"));
        let mut found = found.await.map_err(failed)?;
        found.truncate(MAX_ADDRESSES);
        Ok(found)
    }
}
