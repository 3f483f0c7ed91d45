//! The tunnel by which the apiserver reaches a node that it cannot dial: an agent of konnectivity. Rows TUN-01 to
//! TUN-15, off unless `picolet.tunnel` is set.
//!
//! | file | content |
//! |---|---|
//! | `base` | what both protocols share: access to the agent, the connections of a stream, the end |
//! | `board` | the tunnel's state, as people are told it |
//! | `connect`, `credentials` | opening a stream to an address, and what is shown there |
//! | `stream` | a stream, and the connections that it carries to the server of this node, in this process |
//! | `packet` | the packets on it |
//! | `part`, `settings` | the part of a node, and its keys |
//! | `remotedialer` | the tunnel of k3s, which has another protocol: a part of its own in the same room |
//! | here | the lines, and how many streams there are to be |
//!
//! ```text
//! apiserver ─▶ konnectivity server ◀─ stream (TLS, HTTP/2, one call) ─ line ─▶ pipe ─▶ server::network: TLS, who?, may he?
//! ```
//!
//! A *line* keeps one stream: one for each address of the configuration, and further ones while a server says that there are
//! more of its kind. All run on the agent's thread. `logic::tunnel` decides.

mod base;
mod board;
mod connect;
mod credentials;
mod packet;
pub(crate) mod part;
#[cfg(feature = "k3s")]
pub(crate) mod remotedialer;
mod settings;
mod stream;

#[cfg(any(test, fuzzing))]
pub(crate) use packet::fuzz;

use alloc::rc::Rc;
use core::{
    cell::{Cell, RefCell},
    pin::Pin,
    time::Duration,
};

use smol::{LocalExecutor, future::FutureExt as _};

use self::{
    base::{TunnelBase, random},
    connect::{OpenedStream, StreamFailure, open_stream},
    settings::TunnelConfig,
    stream::{StreamCarrier, StreamTurn},
};
use crate::{
    agent::{
        node::LocalNode,
        recorder::{EventRecorder, EventSeverity},
        tasks::box_task,
        wake::WakeFlag,
    },
    logic::tunnel::{
        self, OwnServer,
        line::{ConnectedServers, MAX_LINES, StreamLossReason, TunnelLine},
        stream::ConnectionIds,
    },
    parts::PartTools,
};

/// Time between two looks whether the apiserver has the addresses of this node, before there is a first stream.
const LOOK: Duration = Duration::from_secs(1);

/// Settings that do not change.
struct TunnelSettings {
    cfg: TunnelConfig,
    /// Identity of this agent, for servers.
    agent_id: String,
}

/// A stream on its way.
type StreamOpening = Pin<Box<dyn Future<Output = Result<OpenedStream, StreamFailure>>>>;

/// Opens a stream to the server at that address of the configuration, as an agent with these identifiers.
type OpenTunnelStream = Box<dyn Fn(Rc<TunnelShared>, usize, String) -> StreamOpening>;

/// State that all lines share.
struct TunnelShared {
    base: Rc<TunnelBase>,
    settings: TunnelSettings,
    open: OpenTunnelStream,
    recorder: Rc<EventRecorder>,
    node: Rc<LocalNode>,
    ids: RefCell<ConnectionIds>,
    servers: RefCell<ConnectedServers>,
    /// Running lines, one bit for each.
    lines: Cell<u32>,
}

/// Begins to dial, and goes on until [`TunnelBase::stop`].
fn start_tunnel(base: &Rc<TunnelBase>, settings: TunnelSettings, tools: &PartTools<'_>) {
    let shared = Rc::new(TunnelShared {
        base: Rc::clone(base),
        settings,
        open: Box::new(|shared, address, identifiers| {
            Box::pin(async move {
                let server = &shared.settings.cfg.servers[address];
                open_stream(&shared, server, &identifiers).await
            })
        }),
        recorder: Rc::clone(tools.recorder),
        node: Rc::clone(tools.node),
        ids: RefCell::new(ConnectionIds::new(random())),
        servers: RefCell::default(),
        lines: Cell::new(0),
    });
    shared.start_lines();
}

impl TunnelShared {
    /// Identifiers of the node for servers, and the addresses that may be dialled here; `None`: the apiserver does not
    /// have its addresses yet.
    fn node_identifiers(&self) -> Option<(String, OwnServer)> {
        let addresses = self.node.published_addresses()?;
        let (node, port) = (&self.node.name, self.base.port);
        Some((
            tunnel::agent_identifiers(node, &addresses),
            OwnServer::new(node, &addresses, port),
        ))
    }

    /// Reports a dial that was meant for another target (TUN-06, TUN-07).
    fn report_misrouted(&self, target: &str) {
        if let Some(target) = self.base.count_misrouted(target) {
            let message = format!(
                "a dial for {target:?} came through the tunnel: start proxy-server with --proxy-strategies=destHost,defaultRoute"
            );
            log::warn!("{message}");
            self.recorder
                .record_node_event(EventSeverity::Warning, "TunnelMisrouted", &message);
        }
    }

    /// Starts the lines that are missing.
    fn start_lines(self: &Rc<Self>) {
        let addresses = self.settings.cfg.servers.len();
        let wanted = self.servers.borrow().wanted_line_count(addresses);
        for number in 0..wanted.min(MAX_LINES) {
            let bit = 1 << number;
            if self.lines.get() & bit == 0 {
                self.lines.set(self.lines.get() | bit);
                let line = keep_line(Rc::clone(self), number);
                self.base.executor.spawn(box_task(line)).detach();
            }
        }
        // A line that was not wanted any more may be wanted again.
        self.base.changed.wake_all();
    }

    fn is_wanted(&self, number: usize) -> bool {
        let addresses = self.settings.cfg.servers.len();
        number < self.servers.borrow().wanted_line_count(addresses)
    }

    async fn wanted_again(&self, number: usize) {
        let is_so = || self.is_wanted(number) || self.base.is_stopping.get();
        self.base.changed.wait_until(|| is_so().then_some(())).await;
    }
}

/// A stream that is left, for another or none. Its connections end with it, and when this is dropped.
struct ReplacedStream {
    /// Wakes it once the other stream is there, or none is to be.
    replaced: Rc<WakeFlag>,
    task: smol::Task<()>,
}

impl ReplacedStream {
    fn spawn(
        carrying: Box<StreamCarrier>,
        line: TunnelLine,
        executor: &LocalExecutor<'static>,
    ) -> Self {
        let replaced = Rc::new(WakeFlag::default());
        let rest = carry_until_empty(carrying, line, Rc::clone(&replaced));
        let task = executor.spawn(rest);
        Self { replaced, task }
    }

    /// Waits until no connection is left.
    async fn wait_until_ended(&mut self) {
        self.replaced.wake_waiters();
        (&mut self.task).await;
    }
}

/// Keeps one stream, for as long as it is wanted.
async fn keep_line(shared: Rc<TunnelShared>, number: usize) {
    let addresses = &shared.settings.cfg.servers;
    let mut line = TunnelLine::default();
    let mut old: Option<ReplacedStream> = None;
    let mut address = number % addresses.len();
    while !shared.base.is_stopping.get() {
        if !shared.is_wanted(number) {
            let Some(left) = &mut old else { break };
            let ended = async {
                left.wait_until_ended().await;
                true
            };
            let wanted = async {
                shared.wanted_again(number).await;
                false
            };
            if ended.or(wanted).await {
                old = None;
            }
            continue;
        }
        let Some((identifiers, own)) = shared.node_identifiers() else {
            shared.base.alarm_after(LOOK).await;
            continue;
        };
        let opened = (shared.open)(Rc::clone(&shared), address, identifiers.clone()).await;
        let opened = opened.and_then(|opened| {
            let mut servers = shared.servers.borrow_mut();
            match servers.record_stream(number, &opened.server, opened.count) {
                true => Ok(opened),
                false => Err(StreamFailure {
                    ending: StreamLossReason::Repeated,
                    why: "it leads to a server that has a stream already".into(),
                }),
            }
        });
        // Also a server that is left at once has said how many there are.
        shared.start_lines();
        let (failed, up) = match opened {
            Err(failed) => (failed, None),
            Ok(opened) => {
                let (host, port) = &addresses[address];
                log::info!("tunnel to {host}:{port} is up");
                if let Some(old) = &old {
                    old.replaced.wake_waiters();
                }
                let begun = shared.base.clock.now();
                let carrying = StreamCarrier::new(&shared, opened, own, identifiers);
                shared.show_status(None);
                let mut carrying = Box::new(carrying);
                let turned = carrying.carry_until_turn(&mut line, None).await;
                shared.servers.borrow_mut().remove_stream(number);
                let up = Some(shared.base.clock.now() - begun);
                match turned {
                    StreamTurn::Ended(failed) => (failed, up),
                    StreamTurn::Leaves(why) => {
                        // At most one: connections of an older one end now.
                        old = Some(ReplacedStream::spawn(
                            carrying,
                            line.clone(),
                            &shared.base.executor,
                        ));
                        (StreamFailure::broken(why), up)
                    }
                }
            }
        };
        if shared.base.is_stopping.get() {
            break;
        }
        let (host, port) = &addresses[address];
        let why = format!("tunnel to {host}:{port}: {}", failed.why);
        // One server that has a stream is enough while there is no other.
        if failed.ending == StreamLossReason::Repeated {
            log::debug!("{why}");
        } else {
            shared.base.complaints.complain(&why);
            shared.show_status(Some(why));
        }
        line.set_metered(shared.base.link_policy.is_metered());
        let pause = line.next_pause(failed.ending, up, random());
        if number >= addresses.len() {
            address = (address + 1) % addresses.len();
        }
        shared.base.pause(pause).await;
    }
    if let Some(mut old) = old {
        old.wait_until_ended().await;
    }
    shared.lines.set(shared.lines.get() & !(1 << number));
}

/// Carries on the connections of a stream after another stream has taken its place.
async fn carry_until_empty(
    mut carrying: Box<StreamCarrier>,
    mut line: TunnelLine,
    replaced: Rc<WakeFlag>,
) {
    carrying.carry_until_turn(&mut line, Some(&replaced)).await;
}

impl TunnelShared {
    /// Shows people the state of the tunnel, with the trouble if there is any.
    fn show_status(&self, trouble: Option<String>) {
        let known = self.servers.borrow().server_counts();
        self.base.show_status(known, trouble);
    }
}

#[cfg(test)]
mod tests;
