//! Hears from logind that the machine goes down, and has it wait until the pods have ended (SHUT-02, SHUT-03, SHUT-06). Only where
//! pods are to end in groups. Without logind the unit `picolet-pods.service` does what it can.
//!
//! At rest this is one connection and no thread.

use alloc::rc::Rc;
use core::{convert::Infallible, time::Duration};
use std::io;

use async_io::Async;
use smol::channel::{self, Sender};

use super::{
    clock::Clock,
    core::{AgentCommand, AgentEvent},
};
use crate::{
    bus::{
        BusError,
        logind::{LogindPaths, ShutdownInhibitor},
    },
    error::error_chain,
    sys::lane::run_on_fresh_thread,
};

/// After the connection broke.
const FIRST_RETRY: Duration = Duration::from_secs(1);
/// The longest pause: where there is no logind none comes while the machine is up.
const LONGEST_RETRY: Duration = Duration::from_secs(60);

/// See the module.
pub(super) struct ShutdownWatch {
    pub(super) places: LogindPaths,
    /// Time that all groups together may take.
    pub(super) needed: Duration,
    pub(super) clock: Rc<dyn Clock>,
    pub(super) events: Sender<AgentEvent>,
}

/// Reason why logind cannot be heard.
#[derive(Debug, thiserror::Error)]
enum InhibitorError {
    #[error(transparent)]
    Bus(#[from] BusError),
    #[error("a thread or a descriptor")]
    System(#[from] io::Error),
    #[error("the agent ends")]
    Ended,
}

impl ShutdownWatch {
    /// Goes on for as long as the agent.
    pub(super) async fn watch_shutdown(self) {
        let mut pause = FIRST_RETRY;
        let mut told = String::new();
        loop {
            match self.hold_inhibitor(&mut pause).await {
                Err(InhibitorError::Ended) => return,
                Err(e) => {
                    let why = error_chain(&e);
                    // Once, not once a minute.
                    if why != told {
                        log::warn!(
                            "cannot watch logind for a shutdown: {why}. Until this works, only picolet-pods.service stops the pods at shutdown"
                        );
                        told = why;
                    }
                }
            }
            self.clock.sleep_until(self.clock.now() + pause).await;
            pause = (pause * 2).min(LONGEST_RETRY);
        }
    }

    async fn hold_inhibitor(&self, pause: &mut Duration) -> Result<Infallible, InhibitorError> {
        let (places, needed) = (self.places.clone(), self.needed);
        let taken = run_on_fresh_thread("logind", move || {
            ShutdownInhibitor::acquire(&places, needed)
        });
        let mut inhibitor = taken.await??;
        *pause = FIRST_RETRY;
        let delay = inhibitor.max_delay();
        if delay < needed {
            log::warn!(
                "logind waits {} s for pods when the machine goes down, not {} s: set InhibitDelayMaxSec in logind.conf",
                delay.as_secs(),
                needed.as_secs()
            );
        }
        let ear = Async::new_nonblocking(inhibitor.signal_descriptor().try_clone_to_owned()?)?;
        loop {
            ear.readable().await?;
            // More than one word may have come.
            loop {
                let heard = run_on_fresh_thread("logind", move || {
                    let heard = inhibitor.read_shutdown_signal();
                    (inhibitor, heard)
                });
                let heard = heard.await?;
                inhibitor = heard.0;
                match heard.1? {
                    None => break,
                    Some(true) => {
                        let (done, ended) = channel::bounded(1);
                        self.send_command(AgentCommand::Shutdown { done }).await?;
                        // Closed once the pods have ended.
                        let _ = ended.recv().await;
                        inhibitor.release_lock();
                    }
                    Some(false) => {
                        self.send_command(AgentCommand::ShutdownCancelled).await?;
                        let again = run_on_fresh_thread("logind", move || {
                            let taken = inhibitor.take_lock();
                            (inhibitor, taken)
                        });
                        let again = again.await?;
                        inhibitor = again.0;
                        again.1?;
                    }
                }
            }
        }
    }

    async fn send_command(&self, command: AgentCommand) -> Result<(), InhibitorError> {
        let sent = self.events.send(AgentEvent::Command(command)).await;
        sent.map_err(|_| InhibitorError::Ended)
    }
}

#[cfg(test)]
mod tests {
    use smol::LocalExecutor;

    use super::*;
    use crate::{
        agent::clock::SystemClock,
        bus::testing::{Double, logind, places, shutdown},
    };

    async fn command(events: &channel::Receiver<AgentEvent>) -> AgentCommand {
        match events.recv().await {
            Ok(AgentEvent::Command(command)) => command,
            _ => panic!("another event"),
        }
    }

    /// The next lock that is given out.
    async fn lock(double: &Double) -> io::PipeReader {
        loop {
            match double.locks.try_recv() {
                Ok(lock) => return lock,
                Err(_) => smol::future::yield_now().await,
            }
        }
    }

    #[test]
    fn the_machine_waits_for_pods() {
        // SHUT-02 SHUT-03 SHUT-06
        let double = Double::new(logind(60_000_000));
        let (sender, events) = channel::bounded(8);
        let clock = SystemClock::new().expect("timer");
        let executor = LocalExecutor::new();
        executor.spawn(clock.clone().drive()).detach();
        let watch = ShutdownWatch {
            places: places(&double),
            needed: Duration::from_secs(30),
            clock: Rc::new(clock),
            events: sender,
        };
        let watching = executor.spawn(watch.watch_shutdown());
        let told = async {
            // Taken on a thread of its own.
            let held = lock(&double).await;
            double.tell(&shutdown(true));
            let AgentCommand::Shutdown { done } = command(&events).await else {
                panic!("not the end");
            };
            // Not before the pods have ended.
            let mut look = [nix::poll::PollFd::new(
                std::os::fd::AsFd::as_fd(&held),
                nix::poll::PollFlags::POLLIN,
            )];
            let ready = nix::poll::poll(&mut look, nix::poll::PollTimeout::ZERO);
            assert_eq!(ready, Ok(0), "it is held");
            drop(done);
            let ended = smol::unblock(move || io::Read::read(&mut { held }, &mut [0]));
            assert_eq!(ended.await.expect("let go"), 0);
            // It is called off: the lock is taken again.
            double.tell(&shutdown(false));
            let cancelled = command(&events).await;
            assert!(matches!(cancelled, AgentCommand::ShutdownCancelled));
            let _held = lock(&double).await;
            // The bus goes, and comes back.
            let peer = double.peer.lock().expect("peer").take().expect("a peer");
            peer.shutdown(std::net::Shutdown::Both).expect("cut");
        };
        smol::block_on(executor.run(told));
        // Its second connection.
        let again = async {
            while double.members().iter().filter(|m| *m == "Inhibit").count() < 3 {
                smol::future::yield_now().await;
            }
        };
        smol::block_on(executor.run(again));
        drop(watching);
    }
}
