//! The doorbell of memory: says that a look at memory is worth while, never how much is left.
//!
//! Two things ring it: tasks that stall for want of memory anywhere on the machine (PSI), and the limit of all pods together
//! (version 2). A kernel that has neither has no doorbell: then the next regular look finds the shortage.

use std::{
    fs::File,
    io::{self, Write as _},
    os::{fd::OwnedFd, unix::fs::FileExt as _},
    path::{Path, PathBuf},
};

use async_io::Async;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use super::Cgroups;
use crate::sys::readiness;

/// PSI triggers, the preferred one first: tasks have stalled for 100 ms within a second. Microseconds. Without
/// CAP_SYS_RESOURCE the kernel takes only windows that are multiples of two seconds.
const STALLS: [&[u8]; 2] = [b"some 100000 1000000\0", b"some 100000 2000000\0"];
/// Longest file of events that is read, bytes.
const EVENTS_BYTES: usize = 512;

/// Rings when memory may be short. Dropping it takes it off.
///
/// Both files say so by `EPOLLPRI` alone and are readable at all times: they are waited for by an epoll of their own.
#[derive(Debug)]
pub struct MemoryDoorbell {
    epoll: Epoll,
    /// A copy of the epoll for the executor to wait on.
    ready: Async<OwnedFd>,
    /// Holds the trigger.
    _stalls: Option<File>,
    events: Option<File>,
}

impl MemoryDoorbell {
    /// Sets the triggers; `kubepods` is the group of all pods.
    ///
    /// - Errors: there is nothing that could ring.
    /// - Source: kernel documentation `accounting/psi.rst`, `admin-guide/cgroup-v2.rst` (`memory.events.local`).
    pub fn install_triggers(cgroups: &Cgroups, kubepods: &str) -> io::Result<Self> {
        let events = cgroups
            .memory_dir(kubepods)
            .map(|d| d.join("memory.events.local"));
        Self::watch_files(Path::new("/proc/pressure/memory"), events)
    }

    fn watch_files(stalls: &Path, events: Option<PathBuf>) -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let add = |file: &File| epoll.add(file, EpollEvent::new(EpollFlags::EPOLLPRI, 0));
        let stalls = File::options()
            .read(true)
            .write(true)
            .open(stalls)
            .and_then(|file| {
                // Not at an offset: the kernel takes it as a stream.
                let [first, second] = STALLS.map(|stall| move |mut file: &File| file.write(stall));
                first(&file).or_else(|_| second(&file))?;
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
            ready: Async::new_nonblocking(epoll.0.try_clone()?)?,
            epoll,
            _stalls: stalls.ok(),
            events,
        };
        Ok(bell)
    }

    /// Waits until it rings. An earlier sign of PSI is not heard: PSI repeats it as long as tasks stall.
    ///
    /// - Errors: it will never ring again.
    pub async fn wait_for_ring(&mut self) -> io::Result<()> {
        readiness::wait_first_readable(&self.ready).await?;
        // The wait itself may have taken the event: the end of the wait is enough.
        if let Some(events) = &self.events {
            // The file repeats its event until it is read. After the group has gone it cannot be read.
            let mut seen = [0; EVENTS_BYTES];
            if events.read_at(&mut seen, 0).is_err() {
                self.epoll.delete(events)?;
                self.events = None;
            }
        }
        let mut all = [EpollEvent::empty(); 2];
        self.epoll.wait(&mut all, EpollTimeout::ZERO)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_rings() {
        MemoryDoorbell::watch_files(Path::new("/none"), None).expect_err("nothing could ring");
        if !nix::unistd::geteuid().is_root() {
            skipped!("doorbell of memory: needs root");
            return;
        }
        let stalls = Path::new("/proc/pressure/memory");
        // A pressure file that can be read takes a trigger of root.
        if std::fs::read(stalls).is_ok() {
            drop(MemoryDoorbell::watch_files(stalls, None).expect("laid"));
        }
        // The mount table tells a change in the same way: by EPOLLPRI, and is readable at all times.
        let mounts = Path::new("/proc/self/mounts");
        let mut bell =
            MemoryDoorbell::watch_files(Path::new("/none"), Some(mounts.into())).expect("laid");
        let dir = crate::testing::unused_path("bell");
        std::fs::create_dir_all(&dir).expect("directory");
        // A look takes the event, and so does a wait: the act comes after the wait has begun.
        let ring = |bell: &mut MemoryDoorbell, act: &dyn Fn() -> nix::Result<()>| {
            smol::block_on(async {
                let mut rung = Box::pin(bell.wait_for_ring());
                // Other tests mount, too.
                while let Some(early) = smol::future::poll_once(&mut rung).await {
                    early.expect("it rang");
                    drop(rung);
                    rung = Box::pin(bell.wait_for_ring());
                }
                act().expect("done");
                rung.await.expect("it rang");
            });
        };
        ring(&mut bell, &|| {
            nix::mount::mount(
                Some("picolet-test"),
                &dir,
                Some("tmpfs"),
                nix::mount::MsFlags::empty(),
                None::<&str>,
            )
        });
        ring(&mut bell, &|| nix::mount::umount(&dir));
        std::fs::remove_dir(&dir).expect("removed");
    }
}
