//! Health check ports of Services: load balancers ask there whether this node has an endpoint (PROX-18). One more tells
//! of the node as a whole (PROX-19).
//!
//! One task waits for all ports. Of a request only the path counts, and only about the node.

use alloc::rc::Rc;
use core::{
    cell::Cell,
    future::poll_fn,
    net::{Ipv6Addr, SocketAddr, SocketAddrV6},
    task::Poll,
    time::Duration,
};
use std::{
    io,
    net::{TcpListener, TcpStream},
    os::fd::AsRawFd as _,
};

use async_io::Async;
use nix::{
    errno::Errno,
    sys::socket::{self, AddressFamily, Backlog, SockFlag, SockType, SockaddrIn6, sockopt},
};
use smol::{
    future,
    io::{AsyncReadExt as _, AsyncWriteExt as _},
};

use super::{HealthPort, ServicesBoard};
use crate::{
    agent::{
        clock::Clock,
        complaints::Complaints,
        recorder::{EventRecorder, EventSeverity},
        tasks::{TaskSpawner, box_task},
    },
    logic::services::health::{answer_health_port, answer_healthz, is_node_eligible},
    parts::PartTools,
};

/// Connections at a time; more wait in the kernel.
const MAX_CONNECTIONS: usize = 8;
/// Connections that wait in the kernel, at most.
const WAITING: i32 = 128;
/// Bytes of a request; a longer one gets the answer, too.
const REQUEST_BYTES: usize = 1024;
/// Time for a request and its answer.
const ANSWER_TIME: Duration = Duration::from_secs(5);
/// Pause after the kernel gave no connection, for example because the process has too many files open.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);
/// Pause before a port that was taken is tried again.
const RETRY: Duration = Duration::from_secs(30);
/// Time for which the table may fail before the node counts as unhealthy: that of a kube-proxy.
const LATE: Duration = Duration::from_secs(60);

/// See the module.
pub(super) struct HealthPortServer {
    board: Rc<ServicesBoard>,
    clock: Rc<dyn Clock>,
    recorder: Rc<EventRecorder>,
    complaints: Rc<Complaints>,
    spawner: TaskSpawner,
    /// Tells if load balancers may use the Node.
    is_eligible: Box<dyn Fn() -> bool>,
    open: Cell<usize>,
}

/// A place among the connections.
struct OpenConnection(Rc<HealthPortServer>);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.open.set(self.0.open.get() - 1);
        // The server may wait for a place.
        self.0.board.ports_changed.wake_all();
    }
}

impl HealthPortServer {
    pub(super) fn new(tools: &PartTools<'_>, board: &Rc<ServicesBoard>) -> Self {
        let node = Rc::clone(tools.node);
        Self {
            board: Rc::clone(board),
            clock: Rc::clone(tools.clock),
            recorder: Rc::clone(tools.recorder),
            complaints: Rc::clone(tools.complaints),
            spawner: TaskSpawner::new(tools.executor),
            is_eligible: Box::new(move || is_node_eligible(node.node_object().as_ref())),
            open: Cell::default(),
        }
    }

    /// Answers as long as the agent runs.
    pub(super) async fn serve_health_ports(self: Rc<Self>) {
        let mut listeners = Vec::new();
        loop {
            let changes = self.board.port_changes.get();
            let is_missing = self.renew_listeners(&mut listeners);
            let change = self.board.ports_changed.wait_until(|| {
                let has_room = self.open.get() < MAX_CONNECTIONS;
                (self.board.port_changes.get() != changes && has_room).then_some(Ok(None))
            });
            let accepted = poll_fn(|cx| {
                if self.open.get() >= MAX_CONNECTIONS {
                    // Woken by the end of a connection.
                    return Poll::Pending;
                }
                for (address, listener) in &listeners {
                    // Only a listener that says it is not ready wakes this task.
                    while listener.poll_readable(cx).is_ready() {
                        match listener.get_ref().accept() {
                            Ok((stream, _)) => return Poll::Ready(Ok(Some((*address, stream)))),
                            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                            Err(e) => return Poll::Ready(Err((*address, e))),
                        }
                    }
                }
                Poll::Pending
            });
            let retry = async {
                if !is_missing {
                    future::pending::<()>().await;
                }
                self.clock.sleep_until(self.clock.now() + RETRY).await;
                Ok(None)
            };
            let found: Result<Option<(SocketAddr, TcpStream)>, (SocketAddr, io::Error)> =
                future::or(future::or(change, accepted), retry).await;
            match found {
                Ok(Some((address, stream))) => self.start_connection(address, stream),
                Ok(None) => {}
                Err((address, e)) => {
                    log::debug!("health check port {address}: {e}");
                    let later = self.clock.now() + ACCEPT_PAUSE;
                    self.clock.sleep_until(later).await;
                }
            }
        }
    }

    /// Listens on the ports that Services have now, and on that of the node. Returns true if one is taken.
    fn renew_listeners(&self, listeners: &mut Vec<(SocketAddr, Async<TcpListener>)>) -> bool {
        let ports = self.board.health_ports.borrow();
        let healthz = self.board.healthz.get();
        let wanted = ports
            .keys()
            .map(|port| (Ipv6Addr::UNSPECIFIED, *port).into());
        let wanted: Vec<SocketAddr> = wanted.chain(healthz).collect();
        listeners.retain(|(address, _)| wanted.contains(address));
        let mut is_missing = false;
        for address in wanted {
            if listeners.iter().any(|it| it.0 == address) {
                continue;
            }
            match listen(address) {
                Ok(listener) => listeners.push((address, listener)),
                Err(e) => {
                    is_missing = true;
                    let port = address.port();
                    match ports.get(&port).filter(|_| healthz != Some(address)) {
                        Some(HealthPort {
                            namespace, name, ..
                        }) => {
                            let why = format!(
                                "Service {namespace}/{name}: cannot listen on port {port}: {e}"
                            );
                            let reason = "FailedToStartServiceHealthcheck";
                            self.recorder
                                .record_node_event(EventSeverity::Warning, reason, &why);
                        }
                        None => self.complaints.complain(&format!(
                            "picolet.services.healthzBindAddress: cannot listen on port {port}: {e}"
                        )),
                    }
                }
            }
        }
        is_missing
    }

    fn start_connection(self: &Rc<Self>, address: SocketAddr, stream: TcpStream) {
        self.open.set(self.open.get() + 1);
        let place = OpenConnection(Rc::clone(self));
        let deadline = self.clock.sleep_until(self.clock.now() + ANSWER_TIME);
        self.spawner.spawn(box_task(async move {
            let answer = async {
                if let Err(e) = place.0.answer_connection(address, stream).await {
                    log::debug!("health check port {address}: {e}");
                }
            };
            future::or(answer, deadline).await;
        }));
    }

    async fn answer_connection(&self, address: SocketAddr, stream: TcpStream) -> io::Result<()> {
        let mut stream = Async::new(stream)?;
        let mut request = [0; REQUEST_BYTES];
        let mut length = 0;
        while length < request.len() && !request[..length].windows(4).any(|end| end == b"\r\n\r\n")
        {
            match stream.read(&mut request[length..]).await? {
                0 => return Ok(()),
                more => length += more,
            }
        }
        let board = &self.board;
        let is_written = board.health.borrow().is_written;
        let failing_since = board.failing_since.get();
        let (status, body, more) = if board.healthz.get() == Some(address) {
            let mut words = request[..length].split(|byte| matches!(byte, b' ' | b'?'));
            let path = words.nth(1).unwrap_or_default();
            let is_late = failing_since.is_some_and(|since| self.clock.now() - since > LATE);
            let times = (board.updated.get(), self.clock.wall_time());
            let is_healthy = is_written && !is_late;
            let (status, body) = answer_healthz(path, is_healthy, (self.is_eligible)(), times);
            (status, body, String::new())
        } else {
            let Some(service) = board.health_ports.borrow().get(&address.port()).cloned() else {
                return Ok(());
            };
            let is_healthy = is_written && failing_since.is_none();
            let name = (service.namespace.as_str(), service.name.as_str());
            let (status, body) = answer_health_port(name, service.endpoints, is_healthy);
            let weight = service.endpoints;
            let more = format!("X-Load-Balancing-Endpoint-Weight: {weight}\r\n");
            (status, body, more)
        };
        let reason = match status {
            200 => "OK",
            404 => "Not Found",
            _ => "Service Unavailable",
        };
        let answer = format!(
            "HTTP/1.1 {status} {reason}\r\nContent-Type: application/json\r\nX-Content-Type-Options: nosniff\r\n\
             {more}Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(answer.as_bytes()).await?;
        stream.close().await
    }
}

fn listen(address: SocketAddr) -> io::Result<Async<TcpListener>> {
    if address.ip().is_unspecified() {
        // A socket of IPv6 serves both families, if the kernel has IPv6.
        match listen_on_all(address.port()) {
            Err(Errno::EAFNOSUPPORT) => {}
            bound => return Async::new(bound?),
        }
        return Async::<TcpListener>::bind(([0, 0, 0, 0], address.port()));
    }
    Async::<TcpListener>::bind(address)
}

/// Listens at all addresses of both families, also where net.ipv6.bindv6only is set, as programs in Go do.
fn listen_on_all(port: u16) -> nix::Result<TcpListener> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let made = socket::socket(AddressFamily::Inet6, SockType::Stream, flags, None)?;
    socket::setsockopt(&made, sockopt::Ipv6V6Only, &false)?;
    socket::setsockopt(&made, sockopt::ReuseAddr, &true)?;
    let all = SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, port, 0, 0);
    socket::bind(made.as_raw_fd(), &SockaddrIn6::from(all))?;
    socket::listen(&made, Backlog::new(WAITING)?)?;
    Ok(made.into())
}

#[cfg(test)]
mod tests;
