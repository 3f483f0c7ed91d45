//! How many children of the backend run at a time, and whether those of an agent that died still do.
//!
//! An agent that is killed leaves plugins and runtimes that go on, with children of their own: an address may be taken, or a
//! rule written, after the next agent has given back what it found. So each of them inherits a shared lock, and whoever comes
//! next waits until nobody holds it.

use core::time::Duration;
use std::path::{Path, PathBuf};

use async_io::Timer;
use smol::lock::{Semaphore, SemaphoreGuard};

use crate::sys::{child::Command, clock, lock};

/// Longest wait for calls of an agent before this one: one that hangs must not keep every pod waiting.
const ORPHAN_WAIT: Duration = Duration::from_secs(15);
/// Between two looks.
const ORPHAN_LOOK: Duration = Duration::from_millis(10);
/// Name of the lock in the run directory.
const LOCK: &str = "calls.lock";

/// Memory that one OCI runtime or CNI plugin may need while it runs, bytes (runc 1.1 peaks at about 12 MiB).
const CHILD_BYTES: u64 = 16 * 1024 * 1024;
/// More children than this for each core only wait for one another.
const PER_CORE: u64 = 2;

/// Lets a bounded number of children run at once; the rest wait in the order they came.
#[derive(Debug)]
pub struct Gate {
    permits: Semaphore,
    lock: PathBuf,
}

impl Gate {
    /// Lets `children` (at least one) run at a time. The lock that they inherit lies in `run_dir`.
    #[must_use]
    pub fn new(children: usize, run_dir: &Path) -> Self {
        Self {
            permits: Semaphore::new(children.max(1)),
            lock: run_dir.join(LOCK),
        }
    }

    /// The lock's file, which stays.
    pub(super) fn file(&self) -> &Path {
        &self.lock
    }

    /// Waits until no call of an agent before this one goes on, or that has taken too long.
    pub async fn wait_for_orphans(&self) {
        let deadline = clock::mono() + ORPHAN_WAIT;
        loop {
            match lock::try_lock(&self.lock) {
                Ok(Some(_)) => return,
                Ok(None) if clock::mono() < deadline => {}
                Ok(None) => {
                    log::warn!(
                        "calls of an agent before this one still go on; they are no longer waited for"
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
    pub fn mark(&self, command: Command) -> Command {
        match lock::try_share(&self.lock) {
            Ok(Some(file)) => command.keep(file.into()),
            Ok(None) => command,
            Err(e) => {
                log::debug!("{}: {e}", self.lock.display());
                command
            }
        }
    }

    /// How many children a machine bears: half of its available memory, and [`PER_CORE`] for each core.
    #[must_use]
    pub fn width(available_bytes: u64, cores: usize) -> usize {
        let by_memory = available_bytes / 2 / CHILD_BYTES;
        let by_cores = PER_CORE * u64::try_from(cores).unwrap_or(1);
        usize::try_from(by_memory.min(by_cores).max(1)).unwrap_or(1)
    }

    /// Waits for a place; dropping the guard frees it.
    pub async fn pass(&self) -> SemaphoreGuard<'_> {
        self.permits.acquire().await
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
            assert_eq!(Gate::width(bytes, cores), want, "{name}");
        }
    }

    #[test]
    fn calls_of_a_dead_agent_are_waited_for() {
        let dir = std::env::temp_dir().join(format!("picolet-gate-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("dir");
        smol::block_on(async {
            let gate = Gate::new(1, &dir);
            gate.wait_for_orphans().await;
            let (reader, writer) = std::io::pipe().expect("pipe");
            // A shell that waits for its own child, as plugins do.
            let command = Command::new("/bin/sh")
                .args(["-c", "cat; exit 0"])
                .stdin(crate::sys::child::Input::Fd(reader.into()));
            let mut child = gate.mark(command).spawn().expect("sh");
            let next = Gate::new(1, &dir);
            assert!(lock::try_lock(&next.lock).expect("lock").is_none());
            drop(writer);
            next.wait_for_orphans().await;
            assert!(lock::try_lock(&next.lock).expect("lock").is_some());
            child.wait().await.expect("reaped");
        });
        std::fs::remove_dir_all(dir).expect("clean");
    }
}
