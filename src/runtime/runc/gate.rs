//! Children of the backend: a limit on how many run at a time, and a wait for those of an agent that died.
//!
//! An agent that is killed leaves plugins and runtimes that go on, with children of their own: they may take an
//! address, or write a rule, after the next agent has cleaned up. So each of them inherits a shared lock, and the next
//! agent waits until no process holds it.

use alloc::collections::BTreeMap;
use core::{
    cell::{Cell, RefCell},
    future::poll_fn,
    task::{Poll, Waker},
    time::Duration,
};
use std::path::{Path, PathBuf};

use async_io::Timer;
use smol::future;

use crate::sys::{child::Command, clock, lock};

/// Longest wait for calls of an earlier agent: one that hangs must not keep every pod waiting.
const ORPHAN_WAIT: Duration = Duration::from_secs(15);
/// Pause between two looks.
const ORPHAN_LOOK: Duration = Duration::from_millis(10);
/// Name of the lock in the run directory.
const LOCK: &str = "calls.lock";

/// Memory that one OCI runtime or CNI plugin may need while it runs, bytes (runc 1.1 peaks at about 12 MiB).
const CHILD_BYTES: u64 = 16 * 1024 * 1024;
/// Children for each core; more of them only wait for one another.
const PER_CORE: u64 = 2;

/// Purpose of a child, and with it its turn. The later step goes first: when many pods start at once, each start is
/// brought to its end before the next is begun, so that the first pods run as early as if they were alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChildPriority {
    /// The last step of a start, or a step of an end, which makes room.
    Last,
    /// Creates a container in a sandbox that stands.
    Create,
    /// Connects a new sandbox.
    Connect,
}

/// Lets a bounded number of children run at once; the rest wait by [`ChildPriority`], and in the order they came.
#[derive(Debug)]
pub struct ChildLimiter {
    free: Cell<usize>,
    /// Callers that wait, at most one for each pod's one operation. A waiter leaves with its future.
    waiting: RefCell<BTreeMap<(ChildPriority, u64), Option<Waker>>>,
    arrivals: Cell<u64>,
    lock: PathBuf,
}

/// A place among the children that run; dropping it frees it.
#[derive(Debug)]
pub struct ChildPermit<'a> {
    gate: &'a ChildLimiter,
}

impl Drop for ChildPermit<'_> {
    fn drop(&mut self) {
        self.gate.free.set(self.gate.free.get() + 1);
        self.gate.wake_next_waiter();
    }
}

/// A caller that waits, until it is let through or gives up.
struct Waiter<'a> {
    gate: &'a ChildLimiter,
    key: (ChildPriority, u64),
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        if self.gate.waiting.borrow_mut().remove(&self.key).is_some() {
            // It may have been called without taking the place.
            self.gate.wake_next_waiter();
        }
    }
}

impl ChildLimiter {
    /// Lets `children` (at least one) run at a time. The lock that they inherit lies in `run_dir`.
    #[must_use]
    pub fn new(children: usize, run_dir: &Path) -> Self {
        Self {
            free: Cell::new(children.max(1)),
            waiting: RefCell::default(),
            arrivals: Cell::new(0),
            lock: run_dir.join(LOCK),
        }
    }

    /// The lock's file, which stays.
    pub(super) fn lock_path(&self) -> &Path {
        &self.lock
    }

    /// Waits until no call of an earlier agent goes on, or until that takes too long.
    pub async fn wait_for_orphans(&self) {
        let deadline = clock::mono_now() + ORPHAN_WAIT;
        // Bounded: by the deadline, and each round waits.
        loop {
            match lock::try_lock(&self.lock) {
                Ok(Some(_)) => return,
                Ok(None) if clock::mono_now() < deadline => {}
                Ok(None) => {
                    log::warn!(
                        "calls of an earlier agent are still running; this agent no longer waits for them"
                    );
                    return;
                }
                Err(e) => {
                    log::warn!("{}: {e}", self.lock.display());
                    return;
                }
            }
            Timer::after(ORPHAN_LOOK).await;
        }
    }

    /// Gives the lock to a child that is about to be started. Without it the child runs all the same.
    pub fn attach_lock(&self, command: Command) -> Command {
        match lock::try_share(&self.lock) {
            Ok(Some(file)) => command.inherit_fd(file.into()),
            Ok(None) => command,
            Err(e) => {
                log::debug!("{}: {e}", self.lock.display());
                command
            }
        }
    }

    /// Number of children that a machine bears: by half of its available memory, and [`PER_CORE`] for each core.
    #[must_use]
    pub fn compute_child_limit(available_bytes: u64, cores: usize) -> usize {
        let by_memory = available_bytes / 2 / CHILD_BYTES;
        let by_cores = PER_CORE * u64::try_from(cores).unwrap_or(1);
        usize::try_from(by_memory.min(by_cores).max(1)).unwrap_or(1)
    }

    /// Waits for a place; dropping the guard frees it.
    pub async fn acquire_permit(&self, turn: ChildPriority) -> ChildPermit<'_> {
        let key = (turn, self.arrivals.get());
        self.arrivals.set(key.1 + 1);
        self.waiting.borrow_mut().insert(key, None);
        let waiter = Waiter { gate: self, key };
        poll_fn(|context| {
            let mut waiting = self.waiting.borrow_mut();
            let is_next = waiting.keys().next() == Some(&key);
            if is_next && self.free.get() > 0 {
                waiting.remove(&key);
                self.free.set(self.free.get() - 1);
                return Poll::Ready(());
            }
            if let Some(waker) = waiting.get_mut(&key) {
                *waker = Some(context.waker().clone());
            }
            Poll::Pending
        })
        .await;
        drop(waiter);
        // Another place may be free, and the next waiter has not looked since.
        self.wake_next_waiter();
        ChildPermit { gate: self }
    }

    /// Does `work` with a place. Work that takes longer than `limit` goes on without the place: it only waits, perhaps
    /// for a server that is gone, and others need the place.
    pub async fn run_with_permit<T>(
        &self,
        turn: ChildPriority,
        limit: Duration,
        work: impl Future<Output = T>,
    ) -> T {
        let pass = self.acquire_permit(turn).await;
        let late = async {
            Timer::after(limit).await;
            drop(pass);
            future::pending().await
        };
        future::or(work, late).await
    }

    fn wake_next_waiter(&self) {
        if self.free.get() == 0 {
            return;
        }
        let mut waiting = self.waiting.borrow_mut();
        let waker = waiting.values_mut().next().and_then(Option::take);
        drop(waiting);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn width_follows_memory_and_cores() {
        const MIB: u64 = 1 << 20;
        for (name, bytes, cores, want) in [
            ("Pi Zero", 60 * MIB, 1, 1),
            ("nothing free", 0, 4, 1),
            ("1 GiB board", 700 * MIB, 4, 8),
            ("big", 24_000 * MIB, 2, 4),
        ] {
            assert_eq!(
                ChildLimiter::compute_child_limit(bytes, cores),
                want,
                "{name}"
            );
        }
    }

    #[test]
    fn who_is_nearer_to_the_end_goes_first() {
        use core::pin::pin;
        use smol::future::{FutureExt as _, poll_once};
        smol::block_on(async {
            let gate = ChildLimiter::new(2, Path::new("/nowhere"));
            let first = gate.acquire_permit(ChildPriority::Connect).await;
            let second = gate.acquire_permit(ChildPriority::Connect).await;
            let done = RefCell::new(Vec::new());
            let go = |name: &'static str, turn| {
                let (gate, done) = (&gate, &done);
                async move {
                    let pass = gate.acquire_permit(turn).await;
                    done.borrow_mut().push(name);
                    pass
                }
            };
            let mut connect = pin!(go("connect", ChildPriority::Connect));
            let mut gives_up = go("gives up", ChildPriority::Last).boxed_local();
            let mut create = pin!(go("create", ChildPriority::Create));
            let mut start = pin!(go("start", ChildPriority::Last));
            assert!(poll_once(&mut connect).await.is_none());
            assert!(poll_once(&mut gives_up).await.is_none());
            assert!(poll_once(&mut create).await.is_none());
            assert!(poll_once(&mut start).await.is_none());
            drop(first);
            // Called, and it goes away instead.
            drop(gives_up);
            assert!(poll_once(&mut connect).await.is_none());
            let start = start.await;
            drop(second);
            assert!(poll_once(&mut connect).await.is_none());
            let create = create.await;
            drop(start);
            let connect = connect.await;
            assert_eq!(*done.borrow(), ["start", "create", "connect"]);
            drop((create, connect));
            assert_eq!(gate.free.get(), 2);
            assert!(gate.waiting.borrow().is_empty());
        });
    }

    #[test]
    fn who_only_waits_gives_the_place_back() {
        use core::pin::pin;
        use smol::future::poll_once;
        smol::block_on(async {
            let gate = ChildLimiter::new(1, Path::new("/nowhere"));
            let limit = Duration::from_millis(10);
            let (server, hangs) = smol::channel::bounded::<u32>(1);
            let mut slow = pin!(gate.run_with_permit(ChildPriority::Create, limit, hangs.recv()));
            assert!(poll_once(&mut slow).await.is_none());
            assert_eq!(gate.free.get(), 0);
            // The other waits for the place only.
            let mut other = pin!(gate.run_with_permit(ChildPriority::Create, limit, async { 1 }));
            assert!(poll_once(&mut other).await.is_none());
            let other = async {
                let done = other.await;
                server.send(2).await.expect("it is waited for");
                done
            };
            let late = async {
                Timer::after(Duration::from_secs(10)).await;
                panic!("the place is kept");
            };
            let (slow, other) = future::or(future::zip(slow, other), late).await;
            assert_eq!((slow, other), (Ok(2), 1));
            assert_eq!(gate.free.get(), 1);
            // Once is given back once.
            assert_eq!(
                gate.run_with_permit(ChildPriority::Last, limit, async { 3 })
                    .await,
                3
            );
            assert_eq!(gate.free.get(), 1);
        });
    }

    #[test]
    fn calls_of_a_dead_agent_are_waited_for() {
        let dir = crate::testing::unused_path("gate");
        std::fs::create_dir_all(&dir).expect("dir");
        smol::block_on(async {
            let gate = ChildLimiter::new(1, &dir);
            gate.wait_for_orphans().await;
            let (reader, writer) = std::io::pipe().expect("pipe");
            // A shell that waits for its own child, as plugins do.
            let command = Command::new("/bin/sh")
                .args(["-c", "cat; exit 0"])
                .stdin(crate::sys::child::ChildInput::Fd(reader.into()));
            let mut child = gate.attach_lock(command).spawn().expect("sh");
            let next = ChildLimiter::new(1, &dir);
            assert!(lock::try_lock(&next.lock).expect("lock").is_none());
            drop(writer);
            next.wait_for_orphans().await;
            assert!(lock::try_lock(&next.lock).expect("lock").is_some());
            child.wait().await.expect("reaped");
        });
        std::fs::remove_dir_all(dir).expect("clean");
    }
}
