//! A network whose answers a test decides.

use core::{
    cell::{Cell, RefCell},
    future::pending,
    net::IpAddr,
    time::Duration,
};
use std::{collections::BTreeMap, rc::Rc};

use smol::future::FutureExt as _;

use super::super::{
    clock::TimerFuture,
    probes::{ProbeFuture, ProbeNetwork},
    waker_set::WakerSet,
};
use crate::probe::{HttpGet, ProbeAction, ProbeAnswer, UnansweredRequest, http::HookOutcome};

/// Behaviour of a port.
#[derive(Clone, Debug)]
pub(in crate::agent) enum Port {
    /// The port gives this answer.
    Answers(ProbeAnswer),
    /// The port is silent until the time is over.
    Hangs,
    /// The port is silent until [`FakeWire::release`], then gives this answer.
    Waits(ProbeAnswer),
}

/// A network of ports, each the same for every address. A port that was not set up answers well.
#[derive(Debug, Default)]
pub(in crate::agent) struct FakeWire {
    ports: RefCell<BTreeMap<u16, Port>>,
    asked: RefCell<Vec<(u16, Option<IpAddr>)>>,
    /// Ends of hooks, the next one last; `None`: it hangs.
    hooks: RefCell<Vec<Option<Result<HookOutcome, UnansweredRequest>>>>,
    /// Hooks that hang now.
    hanging: Cell<usize>,
    releases: Cell<u32>,
    waiters: WakerSet,
}

impl FakeWire {
    /// Sets the behaviour of a port from now on.
    pub(in crate::agent) fn set(&self, port: u16, what: Port) {
        self.ports.borrow_mut().insert(port, what);
    }

    /// Sets the answer of a port from now on.
    pub(in crate::agent) fn answers(&self, port: u16, answer: ProbeAnswer) {
        self.set(port, Port::Answers(answer));
    }

    /// Makes a port answer well from now on, or fail.
    pub(in crate::agent) fn is_well(&self, port: u16, well: bool) {
        let answer = if well {
            ProbeAnswer::Success
        } else {
            ProbeAnswer::Failure("no".into())
        };
        self.answers(port, answer);
    }

    /// Sets the end of the next hook; the end that was set last comes first.
    pub(in crate::agent) fn hook_ends(&self, end: Result<HookOutcome, UnansweredRequest>) {
        self.hooks.borrow_mut().push(Some(end));
    }

    /// Makes the next hook hang until nobody waits for it.
    pub(in crate::agent) fn hook_hangs(&self) {
        self.hooks.borrow_mut().push(None);
    }

    /// Number of hooks that hang now.
    pub(in crate::agent) fn hanging_hooks(&self) -> usize {
        self.hanging.get()
    }

    /// Answers all probes that wait.
    pub(in crate::agent) fn release(&self) {
        self.releases.set(self.releases.get() + 1);
        self.waiters.wake_all();
    }

    /// Number of times that a port was asked since this was last called.
    pub(in crate::agent) fn take_asked(&self, port: u16) -> usize {
        let mut asked = self.asked.borrow_mut();
        let before = asked.len();
        asked.retain(|(p, _)| *p != port);
        before - asked.len()
    }

    /// The address that was asked last.
    pub(in crate::agent) fn last_asked(&self) -> Option<IpAddr> {
        self.asked.borrow().last().and_then(|(_, ip)| *ip)
    }
}

impl ProbeNetwork for Rc<FakeWire> {
    fn send_probe<'a>(
        &'a self,
        action: &'a ProbeAction,
        ip: Option<IpAddr>,
        _: Duration,
        late: TimerFuture,
    ) -> ProbeFuture<'a, ProbeAnswer> {
        let port = match action {
            ProbeAction::Http(get) => get.port,
            ProbeAction::Tcp { port, .. } | ProbeAction::Grpc { port, .. } => *port,
        };
        self.asked.borrow_mut().push((port, ip));
        let what = self.ports.borrow().get(&port).cloned();
        let before = self.releases.get();
        Box::pin(async move {
            let answer = async {
                match what {
                    None => ProbeAnswer::Success,
                    Some(Port::Answers(answer)) => answer,
                    Some(Port::Hangs) => pending().await,
                    Some(Port::Waits(answer)) => {
                        let released = || (self.releases.get() > before).then_some(());
                        self.waiters.wait_until(released).await;
                        answer
                    }
                }
            };
            let late = async {
                late.await;
                ProbeAnswer::Failure("too late".into())
            };
            answer.or(late).await
        })
    }

    fn call_hook<'a>(
        &'a self,
        get: &'a HttpGet,
        ip: Option<IpAddr>,
    ) -> ProbeFuture<'a, Result<HookOutcome, UnansweredRequest>> {
        self.asked.borrow_mut().push((get.port, ip));
        let end = self.hooks.borrow_mut().pop();
        Box::pin(async move {
            match end {
                Some(Some(end)) => end,
                Some(None) => {
                    let _hanging = Hanging::new(&self.hanging);
                    pending().await
                }
                None => Ok(HookOutcome::Answered),
            }
        })
    }
}

/// A hook that hangs, counted for as long as somebody waits for it.
struct Hanging<'a>(&'a Cell<usize>);

impl<'a> Hanging<'a> {
    fn new(count: &'a Cell<usize>) -> Self {
        count.set(count.get() + 1);
        Self(count)
    }
}

impl Drop for Hanging<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}
