//! The tunnel by which the servers of a k3s cluster reach this node: a client of remotedialer. Rows K3ST. Off unless
//! this is a node of k3s (`picolet.k3sServer`) whose servers want a tunnel.
//!
//! | file | content |
//! |---|---|
//! | `connect` | opening a session with a server |
//! | `session` | a session, and the connections that it carries to the server of this node, in this process |
//! | `pods` | a connection to a pod of this node |
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
mod pods;
mod session;

use alloc::rc::Rc;
use core::{
    cell::{Cell, RefCell},
    pin::Pin,
};

use smol::future::FutureExt as _;

use self::{
    connect::{OpenedSession, open_session},
    session::SessionCarrier,
};
use crate::{
    agent::{cluster_network::ClusterNetworkBoard, tasks::box_task},
    error::error_chain,
    kube::{
        KubeError,
        bootstrap::kubeconfig_in_use,
        join::{JoinError, k3s},
        lanes::STACK_BYTES,
    },
    logic::{
        node::is_pod_egress,
        tunnel::{
            line::{StreamLossReason, TunnelLine},
            remotedialer::{
                health::K3sTunnelHealth,
                servers::{K3sServers, SupervisorAddress},
            },
        },
    },
    net::{ProxyVariables, Url},
    parts::{
        IsPodAddress,
        tunnel::{
            base::{TunnelBase, random},
            board::TunnelStatus,
            connect::StreamFailure,
        },
    },
    sys::lane::Lane,
};

/// Settings that do not change.
struct DialerSettings {
    /// Supervisors that are asked for the servers: first the one that was joined.
    supervisors: Vec<Url>,
    proxies: ProxyVariables,
}

type DialerFuture<T> = Pin<Box<dyn Future<Output = Result<T, StreamFailure>>>>;

/// Sources of sessions and of the servers.
struct DialerSources {
    /// Opens a session with a server.
    open: Box<dyn Fn(Rc<DialerShared>, SupervisorAddress) -> DialerFuture<OpenedSession>>,
    /// Asks for the addresses of the apiservers.
    ask: Box<dyn Fn(Rc<DialerShared>) -> DialerFuture<Vec<String>>>,
    /// Returns true if a pod of this node answers at an address.
    is_pod_address: IsPodAddress,
}

/// State of the tunnel, for all who show it.
#[derive(Default)]
struct K3sTunnelStatus {
    board: Rc<TunnelStatus>,
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
    base: Rc<TunnelBase>,
    settings: DialerSettings,
    sources: DialerSources,
    /// Facts of the cluster.
    cluster: Rc<ClusterNetworkBoard>,
    status: Rc<K3sTunnelStatus>,
    servers: RefCell<K3sServers>,
    lines: RefCell<Vec<Rc<ServerLine>>>,
    /// Number of the last message.
    message: Cell<i64>,
}

/// Begins to ask and to dial, and goes on until [`TunnelBase::stop`].
fn start_tunnel(
    base: &Rc<TunnelBase>,
    settings: DialerSettings,
    cluster: Rc<ClusterNetworkBoard>,
    status: Rc<K3sTunnelStatus>,
    is_pod_address: IsPodAddress,
) {
    let joined = &settings.supervisors[0];
    let joined = (joined.host().to_owned(), joined.port());
    let place = Rc::new(Cell::new(0));
    let sources = DialerSources {
        open: Box::new(|shared, server| Box::pin(open_session(shared, server))),
        ask: Box::new(move |shared| Box::pin(ask_servers(shared, Rc::clone(&place)))),
        is_pod_address,
    };
    let shared = Rc::new(DialerShared {
        base: Rc::clone(base),
        settings,
        sources,
        cluster,
        status,
        servers: RefCell::new(K3sServers::new(joined)),
        lines: RefCell::default(),
        message: Cell::new((random() >> 1).cast_signed()),
    });
    base.executor.spawn(box_task(keep_servers(shared))).detach();
}

impl DialerShared {
    /// Number of the next message. Nobody compares them.
    fn next_message_number(&self) -> i64 {
        self.message.set(self.message.get().wrapping_add(1));
        self.message.get()
    }

    /// Reports a dial for something else than this node's server and pods (K3ST-05).
    fn report_foreign(&self, target: &str) {
        if let Some(target) = self.base.count_misrouted(target) {
            log::warn!(
                "a server of k3s dialled {target:?} through the tunnel: refused, for that is neither the kubelet of this node nor a pod that servers reach through it"
            );
        }
    }

    /// Returns true if servers may dial pods of this node (K3ST-16).
    fn serves_pods(&self) -> bool {
        let servers = self.servers.borrow();
        servers.mode().is_some_and(is_pod_egress)
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
                self.base.executor.spawn(task).detach();
            }
        }
        self.base.changed.wake_all();
    }

    /// Takes in the newest facts of the cluster.
    fn take_facts(self: &Rc<Self>) {
        let Some(facts) = self.cluster.facts() else {
            return;
        };
        let mut servers = self.servers.borrow_mut();
        servers.take_configuration(&facts.egress_mode, facts.supervisor_port);
        *self.status.mode.borrow_mut() = servers.mode().map(str::to_owned);
        drop(servers);
        self.start_lines();
    }

    /// Shows people the state of the tunnel, with the trouble if there is any.
    fn show_status(&self, trouble: Option<String>) {
        let lines = self.lines.borrow();
        let is_up = |line: &&Rc<ServerLine>| line.is_up.get();
        let counts = (lines.iter().filter(is_up).count(), lines.len());
        self.base.show_status(counts, trouble);
    }
}

/// Asks for the servers now and then, and has each of them have a line.
async fn keep_servers(shared: Rc<DialerShared>) {
    let mut line = TunnelLine::default();
    while !shared.base.is_stopping.get() {
        let news = shared.cluster.changed();
        shared.take_facts();
        let is_metered = shared.base.link_policy.is_metered();
        let now = shared.base.clock.now();
        let next = || shared.servers.borrow().next_question(is_metered);
        if let Some(due) = next().filter(|due| *due > now) {
            let is_other = || shared.base.is_stopping.get() || next() != Some(due);
            let changed = shared.base.changed.wait_until(|| is_other().then_some(()));
            shared
                .base
                .clock
                .sleep_until(due)
                .or(changed)
                .or(news)
                .await;
            continue;
        }
        match (shared.sources.ask)(Rc::clone(&shared)).await {
            Ok(apiservers) => {
                line = TunnelLine::default();
                let now = shared.base.clock.now();
                shared.servers.borrow_mut().take_list(&apiservers, now);
                shared.start_lines();
            }
            Err(failed) => {
                shared.base.complaints.complain(&failed.why);
                shared.show_status(Some(failed.why));
                line.set_metered(is_metered);
                let pause = line.next_pause(failed.ending, None, random());
                shared.base.pause(pause).or(news).await;
            }
        }
    }
}

/// Asks the supervisors one after the other, by the node's certificate. `place`: the one that answered last; it is asked
/// first, until it does not answer.
async fn ask_servers(
    shared: Rc<DialerShared>,
    place: Rc<Cell<usize>>,
) -> Result<Vec<String>, StreamFailure> {
    let settings = &shared.settings;
    let mut supervisors = settings.supervisors.clone();
    let first = place.get() % supervisors.len();
    supervisors.rotate_left(first);
    let (kubeconfig, kept) = (shared.base.kubeconfig.clone(), shared.base.kept.clone());
    let proxies = settings.proxies.clone();
    let ask = move || {
        let config = kubeconfig_in_use(&kubeconfig, &[], kept.as_ref());
        let config = config.map_err(|e| KubeError::Local(e.to_string()))?;
        k3s::read_servers(&config, &supervisors, &proxies)
    };
    let lane = Lane::start_threads("k3s-servers", 1, STACK_BYTES);
    let lane = lane.map_err(|e| StreamFailure::broken(format!("cannot start a thread: {e}")))?;
    match lane.run_job(ask).await {
        Ok((at, apiservers)) => {
            place.set((place.get() + at) % settings.supervisors.len());
            Ok(apiservers)
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
    let is_over = || shared.base.is_stopping.get() || !this.is_wanted.get();
    while !is_over() {
        let opened = (shared.sources.open)(Rc::clone(&shared), this.server.clone()).await;
        let (failed, up) = match opened {
            Err(failed) => (failed, None),
            Ok(_) if is_over() => break,
            Ok(opened) => {
                log::info!("tunnel to {host}:{port} is up");
                this.is_up.set(true);
                shared.show_status(None);
                let begun = shared.base.clock.now();
                let mut carrier = Box::new(SessionCarrier::new(&shared, opened));
                let failed = carrier.carry(|| this.is_wanted.get()).await;
                // The connection is closed before another is made: servers dial on the oldest.
                drop(carrier);
                this.is_up.set(false);
                shared.servers.borrow_mut().doubt_list();
                (failed, Some(shared.base.clock.now() - begun))
            }
        };
        if is_over() {
            break;
        }
        let why = format!("tunnel to {host}:{port}: {}", failed.why);
        shared.base.complaints.complain(&why);
        shared.show_status(Some(why));
        line.set_metered(shared.base.link_policy.is_metered());
        let pause = line.next_pause(failed.ending, up, random());
        shared.base.changed.wake_all();
        let unwanted = shared.base.changed.wait_until(|| is_over().then_some(()));
        shared.base.alarm_after(pause).or(unwanted).await;
    }
    shared
        .lines
        .borrow_mut()
        .retain(|line| !Rc::ptr_eq(line, &this));
    shared.show_status(None);
}

#[cfg(test)]
mod tests;
