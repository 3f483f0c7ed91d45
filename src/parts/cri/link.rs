//! The connection to a runtime: dialled when it is needed, one at a time, with a pause after a failure. No call is
//! queued or sent twice: after a failure the caller lists again, and calls again.
//!
//! On each new connection the runtime first tells its version and its capabilities.

use alloc::rc::Rc;
use core::{
    cell::{Cell, RefCell},
    time::Duration,
};
use std::{os::unix::net::UnixStream, path::PathBuf};

use smol::{Async, LocalExecutor, Task, Timer, future::or, lock::Mutex, lock::Semaphore};

use super::{facts::CriRuntimeFacts, wire};
use crate::{
    api::MonoTime,
    grpc::{
        ConnectionClock, SleepFuture,
        client::{self, CallOptions, GrpcClient},
        proto::{self, Message},
        status::{GrpcCode, GrpcStatus},
    },
    sys::clock,
};

/// Pause after the first dial that failed; each further failure makes it longer by [`GROWTH_PERCENT`] (CRI-04).
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const GROWTH_PERCENT: u32 = 160;
const MAX_PAUSE: Duration = Duration::from_secs(3);
/// Part of a pause by which it varies, percent.
const JITTER_PERCENT: u32 = 20;
/// Time limit for a dial.
const DIAL_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for the runtime's answer about its version and its status.
pub(super) const STATUS_TIMEOUT: Duration = Duration::from_secs(10);

/// Calls at a time: 64, of which some are kept for stops, and pulls, which may take hours, have few.
const MAX_CALLS: usize = 40;
const MAX_STOPS: usize = 16;
const MAX_PULLS: usize = 8;

/// Kinds of calls. Each has places of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallKind {
    /// A call to the runtime service.
    Call,
    /// Makes a sandbox or container: only after pods were listed on this connection.
    Make,
    /// Stops or removes: it gets through when all other calls hang.
    Stop,
    /// Pulls an image: without time limit.
    Pull,
    /// A call to the image service.
    Image,
}

/// See the module.
pub(super) struct RuntimeLink {
    path: PathBuf,
    executor: Rc<LocalExecutor<'static>>,
    state: RefCell<RuntimeLinkState>,
    dialling: Mutex<()>,
    places: [Semaphore; 3],
    facts: RefCell<CriRuntimeFacts>,
    /// Number of the connection on which pods were last listed.
    listed: Cell<u64>,
    /// Channel for news of new connections.
    connected: smol::channel::Sender<()>,
}

#[derive(Default)]
struct RuntimeLinkState {
    /// The client, and the task that carries its calls.
    up: Option<(GrpcClient, Task<()>)>,
    /// Number of this connection.
    number: u64,
    failures: u32,
    not_before: MonoTime,
    /// Error of the last dial.
    why: String,
}

pub(super) struct CriClock;

impl ConnectionClock for CriClock {
    fn now(&self) -> Duration {
        clock::mono_now() - MonoTime(0)
    }

    fn sleep(&self, time: Duration) -> SleepFuture {
        Box::pin(async move {
            Timer::after(time).await;
        })
    }
}

impl RuntimeLink {
    /// Makes a link to the socket at `path`. `connected` is told of new connections.
    pub(super) fn new(
        path: PathBuf,
        executor: Rc<LocalExecutor<'static>>,
        connected: smol::channel::Sender<()>,
    ) -> Self {
        Self {
            path,
            executor,
            state: RefCell::default(),
            dialling: Mutex::new(()),
            places: [MAX_CALLS, MAX_STOPS, MAX_PULLS].map(Semaphore::new),
            facts: RefCell::default(),
            listed: Cell::new(0),
            connected,
        }
    }

    /// Facts that the runtime last told about itself.
    pub(super) fn runtime_facts(&self) -> CriRuntimeFacts {
        self.facts.borrow().clone()
    }

    /// Takes in a new status of the runtime.
    pub(super) fn take_status(&self, answer: wire::StatusResponse) {
        self.facts.borrow_mut().take_status(answer);
    }

    /// Number of the connection; 0: there was none yet.
    pub(super) fn connection_number(&self) -> u64 {
        self.state.borrow().number
    }

    /// Notes that pods were listed on the connection of this number. On any other connection calls that make something
    /// fail until pods are listed: a broken call may have made a sandbox or container, and a restarted runtime may have
    /// found some (CRI-91).
    pub(super) fn record_listing(&self, number: u64) {
        self.listed.set(number);
    }

    /// Asks once, within `timeout`, and reads the answer.
    pub(super) async fn ask_once(
        &self,
        kind: CallKind,
        method: &'static str,
        request: &mut dyn Message,
        answer: &mut dyn Message,
        timeout: Option<Duration>,
    ) -> Result<(), GrpcStatus> {
        let request = proto::encode(request);
        let (places, service) = match kind {
            CallKind::Call | CallKind::Make => (&self.places[0], "Runtime"),
            CallKind::Stop => (&self.places[1], "Runtime"),
            CallKind::Pull => (&self.places[2], "Image"),
            CallKind::Image => (&self.places[0], "Image"),
        };
        let place = async { Some(places.acquire().await) };
        let late = async {
            match timeout {
                Some(timeout) => Timer::after(timeout).await,
                None => core::future::pending().await,
            };
            None
        };
        let Some(_place) = or(place, late).await else {
            return Err(late_status());
        };
        let client = self.connected_client().await?;
        if kind == CallKind::Make && self.listed.get() != self.connection_number() {
            let text = "the connection to the runtime is new: its pods are listed first";
            return Err(unavailable(text));
        }
        let path = format!("/runtime.v1.{service}Service/{method}");
        let options = CallOptions {
            timeout,
            ..CallOptions::default()
        };
        client
            .call_unary_encoded(&path, request, answer, &options)
            .await
    }

    /// Begins a call with a stream of answers.
    pub(super) async fn subscribe(&self, method: &str) -> Result<client::ClientCall, GrpcStatus> {
        let client = self.connected_client().await?;
        let path = format!("/runtime.v1.RuntimeService/{method}");
        let options = CallOptions::default();
        let call = client.call_streaming(&path, &mut wire::CriEmpty::default(), &options);
        call.await
    }

    /// The connection, or a new one.
    async fn connected_client(&self) -> Result<GrpcClient, GrpcStatus> {
        if let Some(client) = self.current() {
            return Ok(client);
        }
        let _dialling = self.dialling.lock().await;
        // Another call may have dialled meanwhile.
        if let Some(client) = self.current() {
            return Ok(client);
        }
        {
            let state = self.state.borrow();
            if clock::mono_now() < state.not_before {
                return Err(unavailable(&state.why));
            }
        }
        match self.dial().await {
            Ok((client, driver)) => {
                let mut state = self.state.borrow_mut();
                state.up = Some((client.clone(), driver));
                state.number += 1;
                state.failures = 0;
                drop(state);
                let _ = self.connected.try_send(());
                Ok(client)
            }
            Err(status) => {
                let mut state = self.state.borrow_mut();
                let now = clock::mono_now();
                state.not_before = now + redial_pause(state.failures, now);
                state.failures = state.failures.saturating_add(1);
                state.why = status.message;
                Err(unavailable(&state.why))
            }
        }
    }

    fn current(&self) -> Option<GrpcClient> {
        let mut state = self.state.borrow_mut();
        let is_over = |(client, _): &mut (GrpcClient, _)| client.is_leaving();
        // Calls on the old connection go on for as long as they hold it; no new call begins there.
        if let Some((client, driver)) = state.up.take_if(is_over) {
            drop(client);
            driver.detach();
        }
        state.up.as_ref().map(|(client, _)| client.clone())
    }

    async fn dial(&self) -> Result<(GrpcClient, Task<()>), GrpcStatus> {
        let failed = |why: &dyn core::fmt::Display| {
            unavailable(&format!("dial unix {}: {why}", self.path.display()))
        };
        let connect = async {
            let socket = Async::<UnixStream>::connect(&self.path).await;
            socket.map_err(|e| failed(&e))
        };
        let late = async {
            Timer::after(DIAL_TIMEOUT).await;
            Err(failed(&"it takes too long"))
        };
        let socket = or(connect, late).await?;
        let (client, driver) = client::connect(socket, "localhost", Rc::new(CriClock));
        let path = self.path.display().to_string();
        let driver = self.executor.spawn(async move {
            let end = driver.await;
            log::debug!("the connection to {path} has ended: {}", end.message);
        });
        let facts = CriRuntimeFacts::ask_runtime(&client)
            .await
            .map_err(|e| failed(&e))?;
        let mut known = self.facts.borrow_mut();
        if known.version != facts.version {
            log::info!(
                "{} is {} {}",
                self.path.display(),
                facts.version.name,
                facts.version.version
            );
        }
        *known = facts;
        drop(known);
        Ok((client, driver))
    }
}

/// Pause after a failed dial that follows on so many failures.
fn redial_pause(failures: u32, now: MonoTime) -> Duration {
    let mut pause = FIRST_PAUSE;
    for _ in 0..failures {
        if pause >= MAX_PAUSE {
            break;
        }
        pause = pause * GROWTH_PERCENT / 100;
    }
    // The clock of this machine serves as a random number: no other is in step with it.
    let vary = u32::try_from(now.0 % u64::from(2 * JITTER_PERCENT)).unwrap_or(0);
    pause.min(MAX_PAUSE) * (100 - JITTER_PERCENT + vary) / 100
}

fn unavailable(text: &str) -> GrpcStatus {
    GrpcStatus::new(GrpcCode::UNAVAILABLE, text)
}

fn late_status() -> GrpcStatus {
    GrpcStatus::new(
        GrpcCode::DEADLINE_EXCEEDED,
        "too many calls wait for the runtime",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_end() {
        // CRI-04
        for (failures, middle) in [(0, 100), (1, 160), (2, 256), (8, 3000), (u32::MAX, 3000)] {
            for now in 0..40 {
                let pause = redial_pause(failures, MonoTime(now)).as_millis();
                let (low, high) = (middle * 80 / 100, middle * 120 / 100);
                assert!((low..=high).contains(&pause), "{failures}: {pause}");
            }
        }
    }
}
