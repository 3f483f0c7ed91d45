//! Health check ports of Services: load balancers ask there whether this node has an endpoint (PROX-18).
//!
//! One task waits for all ports. A request is not understood, only read to its end: every path has the same answer.

use alloc::{collections::BTreeMap, rc::Rc};
use core::{cell::Cell, future::poll_fn, net::Ipv6Addr, task::Poll, time::Duration};
use std::{
    io,
    net::{TcpListener, TcpStream},
};

use async_io::Async;
use smol::{
    future,
    io::{AsyncReadExt as _, AsyncWriteExt as _},
};

use super::ServicesBoard;
use crate::{
    agent::{
        clock::Clock,
        recorder::{EventRecorder, EventSeverity},
        tasks::{TaskSpawner, box_task},
    },
    logic::services::health::answer_health_port,
    parts::PartTools,
};

/// Connections at a time; more wait in the kernel.
const MAX_CONNECTIONS: usize = 8;
/// Bytes of a request; a longer one gets the answer, too.
const REQUEST_BYTES: usize = 1024;
/// Time for a request and its answer.
const ANSWER_TIME: Duration = Duration::from_secs(5);
/// Pause after the kernel gave no connection, for example because the process has too many files open.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);
/// Pause before a port that was taken is tried again.
const RETRY: Duration = Duration::from_secs(30);

/// See the module.
pub(super) struct HealthPortServer {
    board: Rc<ServicesBoard>,
    clock: Rc<dyn Clock>,
    recorder: Rc<EventRecorder>,
    spawner: TaskSpawner,
    open: Rc<Cell<usize>>,
}

/// A place among the connections.
struct OpenConnection {
    open: Rc<Cell<usize>>,
    board: Rc<ServicesBoard>,
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.open.set(self.open.get() - 1);
        // The server may wait for a place.
        self.board.ports_changed.wake_all();
    }
}

impl HealthPortServer {
    pub(super) fn new(tools: &PartTools<'_>, board: &Rc<ServicesBoard>) -> Self {
        Self {
            board: Rc::clone(board),
            clock: Rc::clone(tools.clock),
            recorder: Rc::clone(tools.recorder),
            spawner: TaskSpawner::new(tools.executor),
            open: Rc::default(),
        }
    }

    /// Answers as long as the agent runs.
    pub(super) async fn serve_health_ports(self) {
        let mut listeners: BTreeMap<u16, Async<TcpListener>> = BTreeMap::new();
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
                for (port, listener) in &listeners {
                    // Only a listener that says it is not ready wakes this task.
                    while listener.poll_readable(cx).is_ready() {
                        match listener.get_ref().accept() {
                            Ok((stream, _)) => return Poll::Ready(Ok(Some((*port, stream)))),
                            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                            Err(e) => return Poll::Ready(Err((*port, e))),
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
            let found: Result<Option<(u16, TcpStream)>, (u16, io::Error)> =
                future::or(future::or(change, accepted), retry).await;
            match found {
                Ok(Some((port, stream))) => self.start_connection(port, stream),
                Ok(None) => {}
                Err((port, e)) => {
                    log::debug!("health check port {port}: {e}");
                    let later = self.clock.now() + ACCEPT_PAUSE;
                    self.clock.sleep_until(later).await;
                }
            }
        }
    }

    /// Listens on the ports that Services have now. Returns true if one is taken.
    fn renew_listeners(&self, listeners: &mut BTreeMap<u16, Async<TcpListener>>) -> bool {
        let ports = self.board.health_ports.borrow();
        listeners.retain(|port, _| ports.contains_key(port));
        let mut is_missing = false;
        for (port, service) in ports.iter() {
            if listeners.contains_key(port) {
                continue;
            }
            match listen(*port) {
                Ok(listener) => drop(listeners.insert(*port, listener)),
                Err(e) => {
                    is_missing = true;
                    let why = format!(
                        "Service {}/{}: cannot listen on port {port}: {e}",
                        service.namespace, service.name
                    );
                    let reason = "FailedToStartServiceHealthcheck";
                    self.recorder
                        .record_node_event(EventSeverity::Warning, reason, &why);
                }
            }
        }
        is_missing
    }

    fn start_connection(&self, port: u16, stream: TcpStream) {
        self.open.set(self.open.get() + 1);
        let place = OpenConnection {
            open: Rc::clone(&self.open),
            board: Rc::clone(&self.board),
        };
        let deadline = self.clock.sleep_until(self.clock.now() + ANSWER_TIME);
        self.spawner.spawn(box_task(async move {
            let answer = async {
                if let Err(e) = answer_connection(&place.board, port, stream).await {
                    log::debug!("health check port {port}: {e}");
                }
            };
            future::or(answer, deadline).await;
        }));
    }
}

fn listen(port: u16) -> io::Result<Async<TcpListener>> {
    // A socket of IPv6 serves both families, if the kernel has IPv6.
    let both = Async::<TcpListener>::bind((Ipv6Addr::UNSPECIFIED, port));
    match both {
        Err(e) if e.raw_os_error() == Some(libc::EAFNOSUPPORT) => {
            Async::<TcpListener>::bind(([0, 0, 0, 0], port))
        }
        bound => bound,
    }
}

async fn answer_connection(board: &ServicesBoard, port: u16, stream: TcpStream) -> io::Result<()> {
    let mut stream = Async::new(stream)?;
    let mut request = [0; REQUEST_BYTES];
    let mut length = 0;
    while length < request.len() && !request[..length].windows(4).any(|end| end == b"\r\n\r\n") {
        match stream.read(&mut request[length..]).await? {
            0 => return Ok(()),
            more => length += more,
        }
    }
    let Some(service) = board.health_ports.borrow().get(&port).cloned() else {
        return Ok(());
    };
    let is_healthy = {
        let health = board.health.borrow();
        health.is_written && !board.is_failing.get()
    };
    let name = (service.namespace.as_str(), service.name.as_str());
    let (status, body) = answer_health_port(name, service.endpoints, is_healthy);
    let reason = if status == 200 {
        "OK"
    } else {
        "Service Unavailable"
    };
    let answer = format!(
        "HTTP/1.1 {status} {reason}\r\nContent-Type: application/json\r\nX-Content-Type-Options: nosniff\r\n\
         X-Load-Balancing-Endpoint-Weight: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        service.endpoints,
        body.len()
    );
    stream.write_all(answer.as_bytes()).await?;
    stream.close().await
}
