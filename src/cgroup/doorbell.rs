//! The doorbell of memory: says that a look at memory is worth while, never how much is left.
//!
//! Two things ring it: tasks that stall for want of memory anywhere on the machine (PSI), and the limit of all pods together
//! (version 2). A kernel that has neither has no doorbell: then the next regular look finds what is short.

use std::{
    fs::File,
    io,
    os::{fd::AsFd, unix::fs::FileExt as _},
    path::{Path, PathBuf},
};

use async_io::Async;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use super::Cgroups;

/// What rings: tasks have stalled for 100 ms within a second. Microseconds.
const STALL: &[u8] = b"some 100000 1000000\0";
/// Longest file of events that is read, bytes.
const EVENTS_BYTES: usize = 512;

/// Rings when memory may be short. Dropping it takes it off.
///
/// Both files say so by `EPOLLPRI` alone and are readable at all times: they are waited for by an epoll of their own.
#[derive(Debug)]
pub struct MemoryBell {
    epoll: Async<std::os::fd::OwnedFd>,
    /// Holds the trigger.
    _stalls: Option<File>,
    events: Option<File>,
}

impl MemoryBell {
    /// Lays it; `kubepods` is the group of all pods.
    ///
    /// - Errors: there is nothing that could ring.
    /// - Source: kernel documentation `accounting/psi.rst`, `admin-guide/cgroup-v2.rst` (`memory.events.local`).
    pub fn lay(cgroups: &Cgroups, kubepods: &str) -> io::Result<Self> {
        let events = cgroups
            .memory_dir(kubepods)
            .map(|d| d.join("memory.events.local"));
        Self::over(Path::new("/proc/pressure/memory"), events)
    }

    fn over(stalls: &Path, events: Option<PathBuf>) -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let add = |file: &File| epoll.add(file, EpollEvent::new(EpollFlags::EPOLLPRI, 0));
        let stalls = File::options()
            .read(true)
            .write(true)
            .open(stalls)
            .and_then(|file| {
                file.write_at(STALL, 0)?;
                add(&file)?;
                Ok(file)
            });
        let events = events.and_then(|path| {
            let file = File::open(path).ok()?;
            add(&file).is_ok().then_some(file)
        });
        if let (Err(e), None) = (&stalls, &events) {
            return Err(io::Error::new(e.kind(), e.to_string()));
        }
        let bell = Self {
            epoll: Async::new_nonblocking(epoll.0)?,
            _stalls: stalls.ok(),
            events,
        };
        Ok(bell)
    }

    /// Waits until it rings. What rang before is heard once.
    ///
    /// - Errors: it will never ring again.
    pub async fn rung(&mut self) -> io::Result<()> {
        self.epoll.readable().await?;
        // What was waited for may have been taken by the wait itself: that it ended is enough.
        if let Some(events) = &self.events {
            // Until the file is read it says the same again. It cannot be once the group has gone.
            let mut seen = [0; EVENTS_BYTES];
            if events.read_at(&mut seen, 0).is_err() {
                let epoll = Epoll(self.epoll.as_fd().try_clone_to_owned()?);
                epoll.delete(events)?;
                self.events = None;
            }
        }
        let epoll = Epoll(self.epoll.as_fd().try_clone_to_owned()?);
        let mut all = [EpollEvent::empty(); 2];
        epoll.wait(&mut all, EpollTimeout::ZERO)?;
        Ok(())
    }
}
