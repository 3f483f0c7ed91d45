//! The tunnel by which the servers of a k3s cluster reach this node: a client of remotedialer. Rows K3ST. Off unless
//! this is a node of k3s (`picolet.k3sServer`) whose servers want a tunnel.
//!
//! | file | content |
//! |---|---|
//! | `connect` | opening a session with a server |
//! | `session` | a session, and the connections that it carries to the server of this node, in this process |
//! | `part` | the part of a node |
//! | here | the servers, and one line for each |
//!
//! ```text
//! apiserver ─▶ k3s server ◀─ session (TLS, WebSocket) ─ line ─▶ pipe ─▶ server::network: TLS, who?, may he?
//! ```
//!
//! A *line* keeps one session with one server. All run on the agent's thread. `logic::tunnel::remotedialer` decides.

mod connect;
pub(crate) mod part;
mod session;

use alloc::rc::Rc;
use core::{
    cell::{Cell, RefCell},
    pin::Pin,
    time::Duration,
};
use std::path::PathBuf;

use smol::{LocalExecutor, future::FutureExt as _};

use self::{
    connect::{OpenedSession, open_session},
    session::SessionCarrier,
};
use crate::{
    agent::{
        clock::{Clock, TimerFuture},
        complaints::Complaints,
        link_policy::LinkPolicy,
        tasks::box_task,
        waker_set::WakerSet,
    },
    error::error_chain,
    kube::{
        KubeError,
        bootstrap::kubeconfig_in_use,
        join::{JoinError, k3s},
        lanes::STACK_BYTES,
        store::CertificateStore,
    },
    logic::tunnel::{
        line::{StreamLossReason, TunnelLine},
        remotedialer::{
            health::K3sTunnelHealth,
            servers::{K3sServers, SupervisorAddress, SupervisorAnswer},
        },
    },
    net::{ProxyVariables, Url},
    parts::{
        PartTools, ServeConnection,
        tunnel::{STOP_TIME, board::TunnelStatus, connect::StreamFailure, cut_target, random},
    },
    server::pipe::PipeServerEnd,
    sys::lane::Lane,
};

/// Settings that do not change.
struct DialerSettings {
    kubeconfig: PathBuf,
    /// Store of the certificate that this node renews, if it does.
    kept: Option<CertificateStore>,
    /// Supervisors that are asked for the servers: first the one that was joined.
    supervisors: Vec<Url>,
    proxies: ProxyVariables,
    /// Port of the server of this node.
    port: u16,
}

type DialerFuture<T> = Pin<Box<dyn Future<Output = Result<T, StreamFailure>>>>;

/// Both ends of the carried connections, and the source of the servers.
struct DialerEnds {
    /// Opens a session with a server.
    open: Box<dyn Fn(Rc<DialerShared>, SupervisorAddress) -> DialerFuture<OpenedSession>>,
    /// Asks for the servers, and for the configuration of the cluster if that is set.
    ask: Box<dyn Fn(Rc<DialerShared>, bool) -> DialerFuture<SupervisorAnswer>>,
    /// Serves a connection as one from outside.
    serve: Box<dyn Fn(PipeServerEnd)>,
}

/// State of the tunnel, for all who show it.
#[derive(Default)]
struct K3sTunnelStatus {
    board: TunnelStatus,
    /// Way of the apiserver to nodes; `None`: no server has told it yet.
    mode: RefCell<Option<String>>,
}

impl K3sTunnelStatus {
    /// The answer for `check`.
    fn tunnel_health(&self) -> K3sTunnelHealth {
        K3sTunnelHealth {
            mode: self.mode.borrow().clone(),
            tunnel: self.board.tunnel_health(),
        }
    }

    /// Returns true if the servers reach nodes without a tunnel.
    fn is_needless(&self) -> bool {
        self.mode.borrow().as_deref() == Some("disabled")
    }
}

/// Line of one server.
struct ServerLine {
    server: SupervisorAddress,
    is_wanted: Cell<bool>,
    is_up: Cell<bool>,
}

/// State that all lines share.
struct DialerShared {
    settings: DialerSettings,
    ends: DialerEnds,
    clock: Rc<dyn Clock>,
    complaints: Rc<Complaints>,
    disk: Lane,
    link_policy: Rc<dyn LinkPolicy>,
    executor: Rc<LocalExecutor<'static>>,
    status: Rc<K3sTunnelStatus>,
    servers: RefCell<K3sServers>,
    lines: RefCell<Vec<Rc<ServerLine>>>,
    is_stopping: Cell<bool>,
    /// A session has ended, other servers are known, or all are to end.
    changed: WakerSet,
    /// Number of the last message.
    message: Cell<i64>,
}

/// The tunnel of this node.
struct K3sTunnel(Rc<DialerShared>);

impl K3sTunnel {
    /// Begins to ask and to dial, and goes on until [`Self::stop`].
    fn start(
        settings: DialerSettings,
        tools: &PartTools<'_>,
        serve: ServeConnection,
        status: Rc<K3sTunnelStatus>,
    ) -> Option<Self> {
        let joined = settings.supervisors.first()?;
        let joined = (joined.host().to_owned(), joined.port());
        let place = Rc::new(Cell::new(0));
        let ends = DialerEnds {
            open: Box::new(|shared, server| Box::pin(open_session(shared, server))),
            ask: Box::new(move |shared, with_cluster| {
                Box::pin(ask_servers(shared, Rc::clone(&place), with_cluster))
            }),
            serve: Box::new(move |near| serve(near, part::NAME)),
        };
        let shared = Rc::new(DialerShared {
            settings,
            ends,
            clock: Rc::clone(tools.clock),
            complaints: Rc::clone(tools.complaints),
            disk: tools.disk.clone(),
            link_policy: Rc::clone(tools.link_policy),
            executor: Rc::clone(tools.executor),
            status,
            servers: RefCell::new(K3sServers::new(joined)),
            lines: RefCell::default(),
            is_stopping: Cell::new(false),
            changed: WakerSet::default(),
            message: Cell::new((random() >> 1).cast_signed()),
        });
        let task = box_task(keep_servers(Rc::clone(&shared)));
        shared.executor.spawn(task).detach();
        Some(Self(shared))
    }

    /// Takes no dials any more, and gives open connections some seconds to end.
    async fn stop(&self) {
        let shared = &self.0;
        shared.is_stopping.set(true);
        shared.changed.wake_all();
        let streams = &shared.status.board.streams;
        let all = shared
            .changed
            .wait_until(|| (streams.get() == 0).then_some(()));
        all.or(shared.alarm_after(STOP_TIME)).await;
    }
}

impl DialerShared {
    fn alarm_after(&self, time: Duration) -> TimerFuture {
        self.clock.sleep_until(self.clock.now() + time)
    }

    /// Number of the next message. Nobody compares them.
    fn next_message_number(&self) -> i64 {
        self.message.set(self.message.get().wrapping_add(1));
        self.message.get()
    }

    /// Reports a dial for something else than this node's server (K3ST-05).
    fn report_foreign(&self, target: &str) {
        if self.status.board.count_misrouted(self.clock.now()) {
            let target = cut_target(target);
            log::warn!(
                "a server of k3s dialled {target:?} through the tunnel: refused, for it leads to the kubelet of this node only"
            );
        }
    }

    /// Starts the lines that are missing, and has those end that are not wanted any more.
    fn start_lines(self: &Rc<Self>) {
        let wanted = self.servers.borrow().wanted_servers();
        let mut lines = self.lines.borrow_mut();
        for line in lines.iter() {
            line.is_wanted.set(wanted.contains(&line.server));
        }
        for server in wanted {
            if lines.iter().all(|line| line.server != server) {
                let line = Rc::new(ServerLine {
                    server,
                    is_wanted: Cell::new(true),
                    is_up: Cell::new(false),
                });
                lines.push(Rc::clone(&line));
                let task = box_task(keep_line(Rc::clone(self), line));
                self.executor.spawn(task).detach();
            }
        }
        self.changed.wake_all();
    }

    /// Shows people the state of the tunnel, with the trouble if there is any.
    fn show_status(&self, trouble: Option<String>) {
        let lines = self.lines.borrow();
        let is_up = |line: &&Rc<ServerLine>| line.is_up.get();
        let counts = (lines.iter().filter(is_up).count(), lines.len());
        let now = self.clock.wall_time();
        self.status.board.set_connectivity(counts, trouble, now);
    }

    /// Waits for `time`, or until the agent ends.
    async fn pause(&self, time: Duration) {
        let is_stopping = || self.is_stopping.get().then_some(());
        let stopping = self.changed.wait_until(is_stopping);
        self.alarm_after(time).or(stopping).await;
    }
}

/// Asks for the servers now and then, and has each of them have a line.
async fn keep_servers(shared: Rc<DialerShared>) {
    let mut line = TunnelLine::default();
    while !shared.is_stopping.get() {
        let is_metered = shared.link_policy.is_metered();
        let now = shared.clock.now();
        let next = || shared.servers.borrow().next_question(is_metered);
        if let Some(due) = next().filter(|due| *due > now) {
            let is_other = || shared.is_stopping.get() || next() != Some(due);
            let changed = shared.changed.wait_until(|| is_other().then_some(()));
            shared.clock.sleep_until(due).or(changed).await;
            continue;
        }
        let with_cluster = shared.servers.borrow().wants_configuration(now);
        match (shared.ends.ask)(Rc::clone(&shared), with_cluster).await {
            Ok(answer) => {
                line = TunnelLine::default();
                let now = shared.clock.now();
                let mut servers = shared.servers.borrow_mut();
                servers.take_answer(answer, now);
                *shared.status.mode.borrow_mut() = servers.mode().map(str::to_owned);
                drop(servers);
                shared.start_lines();
            }
            Err(failed) => {
                shared.complaints.complain(&failed.why);
                shared.show_status(Some(failed.why));
                line.set_metered(is_metered);
                shared
                    .pause(line.next_pause(failed.ending, None, random()))
                    .await;
            }
        }
    }
}

/// Asks the supervisors one after the other, by the node's certificate. `place`: the one that answered last; it is asked
/// first, until it does not answer.
async fn ask_servers(
    shared: Rc<DialerShared>,
    place: Rc<Cell<usize>>,
    with_cluster: bool,
) -> Result<SupervisorAnswer, StreamFailure> {
    let settings = &shared.settings;
    let mut supervisors = settings.supervisors.clone();
    let first = place.get() % supervisors.len();
    supervisors.rotate_left(first);
    let (kubeconfig, kept) = (settings.kubeconfig.clone(), settings.kept.clone());
    let proxies = settings.proxies.clone();
    let ask = move || {
        let config = kubeconfig_in_use(&kubeconfig, &[], kept.as_ref());
        let config = config.map_err(|e| KubeError::Local(e.to_string()))?;
        k3s::read_servers(&config, &supervisors, &proxies, with_cluster)
    };
    let lane = Lane::start_threads("k3s-servers", 1, STACK_BYTES);
    let lane = lane.map_err(|e| StreamFailure::broken(format!("cannot start a thread: {e}")))?;
    match lane.run_job(ask).await {
        Ok((at, cluster, apiservers)) => {
            place.set((place.get() + at) % settings.supervisors.len());
            let port = cluster
                .as_ref()
                .map_or(0, |cluster| cluster.supervisor_port);
            Ok(SupervisorAnswer {
                mode: cluster.map(|cluster| cluster.egress_selector_mode),
                port,
                apiservers,
            })
        }
        Err(e) => {
            let is_refused = match &e {
                JoinError::Kube(e) => {
                    matches!(e, KubeError::Tls { .. }) || matches!(e.http_status(), Some(401 | 403))
                }
                _ => true,
            };
            Err(StreamFailure {
                ending: match is_refused {
                    true => StreamLossReason::Refused,
                    false => StreamLossReason::Broken,
                },
                why: format!("servers of k3s for the tunnel: {}", error_chain(&e)),
            })
        }
    }
}

/// Keeps one session with a server, for as long as it is wanted.
async fn keep_line(shared: Rc<DialerShared>, this: Rc<ServerLine>) {
    let (host, port) = &this.server;
    let mut line = TunnelLine::default();
    let is_over = || shared.is_stopping.get() || !this.is_wanted.get();
    while !is_over() {
        let opened = (shared.ends.open)(Rc::clone(&shared), this.server.clone()).await;
        let (failed, up) = match opened {
            Err(failed) => (failed, None),
            Ok(_) if is_over() => break,
            Ok(opened) => {
                log::info!("tunnel to {host}:{port} is up");
                this.is_up.set(true);
                shared.show_status(None);
                let begun = shared.clock.now();
                let mut carrier = Box::new(SessionCarrier::new(&shared, opened));
                let failed = carrier.carry(|| this.is_wanted.get()).await;
                // The connection is closed before another is made: servers dial on the oldest.
                drop(carrier);
                this.is_up.set(false);
                shared.servers.borrow_mut().doubt_list();
                (failed, Some(shared.clock.now() - begun))
            }
        };
        if is_over() {
            break;
        }
        let why = format!("tunnel to {host}:{port}: {}", failed.why);
        shared.complaints.complain(&why);
        shared.show_status(Some(why));
        line.set_metered(shared.link_policy.is_metered());
        let pause = line.next_pause(failed.ending, up, random());
        shared.changed.wake_all();
        let unwanted = shared.changed.wait_until(|| is_over().then_some(()));
        shared.alarm_after(pause).or(unwanted).await;
    }
    shared
        .lines
        .borrow_mut()
        .retain(|line| !Rc::ptr_eq(line, &this));
    shared.show_status(None);
}

#[cfg(test)]
mod tests;
