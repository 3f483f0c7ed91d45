//! Base of a tunnel of either protocol: its access to the agent, the connections that a stream carries to the server of
//! this node, and the end.

use alloc::{rc::Rc, sync::Arc};
use core::{
    cell::{Cell, RefCell},
    task::{Context, Poll},
    time::Duration,
};
use std::path::PathBuf;

use ring::rand::{SecureRandom as _, SystemRandom};
use rustls::ClientConfig;
use smol::{LocalExecutor, future::FutureExt as _};

use super::{board::TunnelStatus, connect::StreamFailure, credentials::read_credentials};
use crate::{
    agent::{
        clock::{Clock, TimerFuture},
        complaints::Complaints,
        link_policy::LinkPolicy,
        tasks::{AgentTask, box_task},
        waker_set::WakerSet,
    },
    api::MonoTime,
    error::error_chain,
    kube::store::CertificateStore,
    logic::tunnel::carried::ConnectionId,
    parts::PartTools,
    server::pipe::{PipeServerEnd, PipeSourceEnd, new_pipe},
    sys::lane::Lane,
};

/// Time that the end of the agent waits for connections in the tunnel.
const STOP_TIME: Duration = Duration::from_secs(10);
/// Bytes of a connection in one message, and those that wait for it.
const DATA_BYTES: usize = 16 * 1024;
/// Steps of a stream after which others have their turn.
pub(super) const TURNS: usize = 16;
/// Characters shown of a dial's target.
const MAX_SHOWN_TARGET: usize = 100;

/// Access of a tunnel to the agent, and the state that all of its lines share.
pub(super) struct TunnelBase {
    pub(super) kubeconfig: PathBuf,
    /// Store of the certificate that this node renews, if it does.
    pub(super) kept: Option<CertificateStore>,
    /// Port of the server of this node.
    pub(super) port: u16,
    /// Serves a connection as one from outside.
    pub(super) serve: Box<dyn Fn(PipeServerEnd)>,
    pub(super) clock: Rc<dyn Clock>,
    pub(super) complaints: Rc<Complaints>,
    pub(super) disk: Lane,
    pub(super) link_policy: Rc<dyn LinkPolicy>,
    pub(super) executor: Rc<LocalExecutor<'static>>,
    pub(super) board: Rc<TunnelStatus>,
    pub(super) is_stopping: Cell<bool>,
    /// A stream has ended, other lines are wanted, or all are to end.
    pub(super) changed: WakerSet,
}

impl TunnelBase {
    /// Takes from an agent what a tunnel needs; `None`: the node has no cluster or no server, so it has no tunnel.
    ///
    /// - `name`: name of the source of connections.
    pub(super) fn new(
        tools: &PartTools<'_>,
        board: &Rc<TunnelStatus>,
        name: &'static str,
    ) -> Option<Rc<Self>> {
        let cluster = &tools.config.cluster;
        let serve = Rc::clone(tools.serve.as_ref()?);
        Some(Rc::new(Self {
            kubeconfig: cluster.kubeconfig.clone()?,
            kept: cluster
                .renewed_certificate_dir()
                .map(CertificateStore::client),
            port: tools.config.server.listen?.port(),
            serve: Box::new(move |near| serve(near, name)),
            clock: Rc::clone(tools.clock),
            complaints: Rc::clone(tools.complaints),
            disk: tools.disk.clone(),
            link_policy: Rc::clone(tools.link_policy),
            executor: Rc::clone(tools.executor),
            board: Rc::clone(board),
            is_stopping: Cell::new(false),
            changed: WakerSet::default(),
        }))
    }

    /// Takes no dials any more, and gives open connections some seconds to end.
    pub(super) async fn stop(&self) {
        self.is_stopping.set(true);
        self.changed.wake_all();
        let are_gone = || (self.board.streams.get() == 0).then_some(());
        let all = self.changed.wait_until(are_gone);
        all.or(self.alarm_after(STOP_TIME)).await;
    }

    pub(super) fn alarm_after(&self, time: Duration) -> TimerFuture {
        self.clock.sleep_until(self.clock.now() + time)
    }

    pub(super) async fn wait_until_stopping(&self) {
        let is_stopping = || self.is_stopping.get().then_some(());
        self.changed.wait_until(is_stopping).await;
    }

    /// Waits for `time`, or until the agent ends.
    pub(super) async fn pause(&self, time: Duration) {
        let stopping = self.wait_until_stopping();
        self.alarm_after(time).or(stopping).await;
    }

    /// Reads the credentials for servers. A renewed certificate is shown from the next connection on. See
    /// [`read_credentials`].
    pub(super) async fn read_credentials(
        &self,
        ca: Option<PathBuf>,
        token_file: Option<PathBuf>,
        protocol: &'static [u8],
    ) -> Result<(Arc<ClientConfig>, Option<String>), StreamFailure> {
        let (kubeconfig, kept) = (self.kubeconfig.clone(), self.kept.clone());
        let read = move || {
            let (ca, token_file) = (ca.as_deref(), token_file.as_deref());
            read_credentials(&kubeconfig, kept.as_ref(), ca, token_file, protocol)
        };
        let read = self.disk.run_job(read).await;
        read.map_err(|e| StreamFailure::broken(error_chain(&e)))
    }

    /// Shows people the state of the tunnel, with the trouble if there is any.
    pub(super) fn show_status(&self, servers: (usize, usize), trouble: Option<String>) {
        let now = self.clock.wall_time();
        self.board.set_connectivity(servers, trouble, now);
    }

    /// Counts a dial that was meant for another target. Returns the target as far as it is shown, if people are to be
    /// told.
    pub(super) fn count_misrouted(&self, target: &str) -> Option<String> {
        let is_due = self.board.count_misrouted(self.clock.now());
        is_due.then(|| target.chars().take(MAX_SHOWN_TARGET).collect())
    }
}

/// Ends a tunnel, if it runs.
pub(super) fn stop_tunnel(running: &RefCell<Option<Rc<TunnelBase>>>) -> AgentTask {
    let running = running.take();
    box_task(async move {
        if let Some(base) = running {
            base.stop().await;
        }
    })
}

pub(super) fn random() -> u64 {
    let mut bytes = [0; 8];
    fill_random(&mut bytes);
    u64::from_ne_bytes(bytes)
}

pub(super) fn fill_random(bytes: &mut [u8]) {
    // The kernel's source does not fail. If it does, numbers begin where others may have begun.
    let _ = SystemRandom::new().fill(bytes);
}

/// Ends of the connections that an open stream carries. The stream is counted for as long as this lives.
pub(super) struct CarriedEnds {
    base: Rc<TunnelBase>,
    ends: Vec<(ConnectionId, PipeSourceEnd)>,
    alarm: Option<(MonoTime, TimerFuture)>,
}

impl CarriedEnds {
    pub(super) fn new(base: &Rc<TunnelBase>) -> Self {
        let streams = &base.board.streams;
        streams.set(streams.get() + 1);
        Self {
            base: Rc::clone(base),
            ends: Vec::new(),
            alarm: None,
        }
    }

    /// Opens a connection to the server of this node. `inward`: bytes that may wait for that server.
    pub(super) fn open(&mut self, id: ConnectionId, inward: usize) {
        let near = self.add_pipe(id, inward);
        (self.base.serve)(near);
    }

    /// Opens a connection. Returns the end that the caller connects. `inward`: bytes that may wait for it.
    pub(super) fn add_pipe(&mut self, id: ConnectionId, inward: usize) -> PipeServerEnd {
        let (near, far) = new_pipe(inward, DATA_BYTES);
        self.ends.push((id, far));
        self.base
            .board
            .change_figures(|figures| figures.opened += 1);
        near
    }

    pub(super) fn find(&self, id: ConnectionId) -> Option<&PipeSourceEnd> {
        self.ends
            .iter()
            .find(|(of, _)| *of == id)
            .map(|(_, end)| end)
    }

    pub(super) fn remove(&mut self, id: ConnectionId) {
        self.ends.retain(|(of, _)| *of != id);
        if self.ends.is_empty() {
            self.ends = Vec::new();
        }
    }

    #[cfg(feature = "k3s")]
    pub(super) const fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Bytes from the server that wait in all connections. Their number wakes nobody.
    #[cfg(feature = "k3s")]
    pub(super) fn waiting_bytes(&self, cx: &Context<'_>) -> usize {
        let waiting = self.ends.iter();
        waiting
            .map(|(_, end)| end.waiting_bytes(usize::MAX, cx))
            .sum()
    }

    /// Gives a connection the bytes that have room there. Returns their number; `None`: there is no such connection.
    pub(super) fn give_bytes(
        &self,
        id: ConnectionId,
        bytes: &[u8],
        cx: &Context<'_>,
    ) -> Option<usize> {
        let given = self.find(id)?.give_bytes(bytes, cx);
        self.base
            .board
            .change_figures(|figures| figures.bytes_in += u64::try_from(given).unwrap_or(0));
        Some(given)
    }

    /// Returns true if a connection has bytes for the server, or has ended.
    pub(super) fn has_pending_bytes(&self, id: ConnectionId, cx: &Context<'_>) -> bool {
        self.find(id).is_some_and(|end| end.has_pending_bytes(cx))
    }

    /// Takes bytes for one message from a connection; `None`: the last ones have been taken before, and it is removed.
    pub(super) fn take_bytes(&mut self, id: ConnectionId, cx: &Context<'_>) -> Option<Vec<u8>> {
        let mut bytes = vec![0; DATA_BYTES];
        let taken = self.find(id).and_then(|end| end.take_bytes(&mut bytes, cx));
        bytes.truncate(taken.unwrap_or(0));
        if bytes.is_empty() {
            self.remove(id);
            return None;
        }
        self.base
            .board
            .change_figures(|figures| figures.bytes_out += u64::try_from(bytes.len()).unwrap_or(0));
        Some(bytes)
    }

    /// Waits until `due`, or an earlier time for which this was called. An alarm that rings too early is looked at again,
    /// so arriving data need not move it.
    pub(super) fn poll_alarm(&mut self, due: MonoTime, cx: &mut Context<'_>) -> Poll<()> {
        let alarm = match self.alarm.take() {
            Some(alarm) if alarm.0 <= due => alarm,
            _ => (due, self.base.clock.sleep_until(due)),
        };
        let (_, alarm) = self.alarm.insert(alarm);
        let rings = alarm.as_mut().poll(cx);
        if rings.is_ready() {
            self.alarm = None;
        }
        rings
    }
}

impl Drop for CarriedEnds {
    fn drop(&mut self) {
        let streams = &self.base.board.streams;
        streams.set(streams.get() - 1);
        self.base.changed.wake_all();
    }
}
