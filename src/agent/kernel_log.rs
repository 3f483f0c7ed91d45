//! Tells of processes that the kernel killed because the machine had no memory left, as events of the node (CG-20).

use alloc::rc::Rc;
use std::{
    fs::OpenOptions,
    io::{self, Seek as _, SeekFrom},
    os::{fd::OwnedFd, unix::fs::OpenOptionsExt as _},
    path::Path,
};

use async_io::Async;
use nix::errno::Errno;

use super::recorder::{EventRecorder, EventSeverity};
use crate::{logic::kernel_log::parse_system_oom, sys::turn};

/// The kernel's log.
const KERNEL_LOG: &str = "/dev/kmsg";
/// Longest record, bytes: the kernel's `CONSOLE_EXT_LOG_MAX`.
const RECORD_BYTES: usize = 8192;

/// Tells until the log cannot be read any more.
pub(super) async fn watch_kernel_log(recorder: Rc<EventRecorder>) {
    let followed = match open_kernel_log(Path::new(KERNEL_LOG)).and_then(Async::new_nonblocking) {
        Ok(log) => follow_kernel_log(&log, &recorder).await,
        Err(e) => Err(e),
    };
    if let Err(e) = followed {
        log::info!("{KERNEL_LOG} cannot be read, SystemOOM is not reported: {e}");
    }
}

/// Opens the log behind its last record: what was before an agent was told by the one before.
fn open_kernel_log(path: &Path) -> io::Result<OwnedFd> {
    let mut options = OpenOptions::new();
    let mut log = options
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)?;
    log.seek(SeekFrom::End(0))?;
    Ok(log.into())
}

async fn follow_kernel_log(log: &Async<OwnedFd>, recorder: &EventRecorder) -> io::Result<()> {
    loop {
        log.readable().await?;
        // Only while there is something to read.
        let mut record = vec![0; RECORD_BYTES];
        match nix::unistd::read(log, &mut record) {
            Ok(0) => return Ok(()),
            Ok(n) => {
                let text = String::from_utf8_lossy(&record[..n]);
                for message in text.lines().filter_map(parse_system_oom) {
                    recorder.record_node_event(EventSeverity::Warning, "SystemOOM", &message);
                }
            }
            Err(e) if passes(e) => {}
            Err(e) => return Err(e.into()),
        }
        turn::yield_to_others().await;
    }
}

/// Returns true if the next record may be read all the same. EPIPE: records were overwritten before they were read.
const fn passes(error: Errno) -> bool {
    matches!(error, Errno::EPIPE | Errno::EAGAIN | Errno::EINTR)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use super::*;
    use crate::agent::tests::world::{Hands, TestClock};

    #[test]
    fn kills_are_told() {
        // CG-20 OOMW-05
        let (read, write) = io::pipe().expect("a pipe");
        let mut write = std::fs::File::from(OwnedFd::from(write));
        let kill =
            "oom-kill:constraint=CONSTRAINT_NONE,global_oom,task_memcg=/,task=tail,pid=77,uid=0";
        writeln!(write, "6,1,2,-;usb 1-1: new device\n SUBSYSTEM=usb").expect("write");
        writeln!(write, "6,2,3,-;{kill}").expect("write");
        drop(write);
        let clock = Rc::new(TestClock(Rc::new(Hands::default())));
        let recorder = EventRecorder::new(clock, "node".into());
        let log = Async::new(OwnedFd::from(read)).expect("readable");
        smol::block_on(follow_kernel_log(&log, &recorder)).expect("to its end");
        let told = recorder.newest_events(None, 2);
        let told: Vec<_> = told
            .iter()
            .map(|event| (event.severity, &*event.reason, &*event.message))
            .collect();
        assert_eq!(
            told,
            [(
                EventSeverity::Warning,
                "SystemOOM",
                "System OOM encountered, victim process: tail, pid: 77"
            )]
        );
    }

    #[test]
    fn old_records_are_not_told_again() {
        // OOMW-06
        let dir = crate::testing::unused_path("kmsg");
        std::fs::create_dir_all(&dir).expect("directory");
        let path = dir.join("kmsg");
        std::fs::write(&path, "6,1,2,-;old\n").expect("write");
        let mut log = std::fs::File::from(open_kernel_log(&path).expect("opened"));
        let mut options = OpenOptions::new();
        let mut writer = options.append(true).open(&path).expect("opened");
        writeln!(writer, "6,2,3,-;new").expect("write");
        let mut text = String::new();
        log.read_to_string(&mut text).expect("text");
        assert_eq!(text, "6,2,3,-;new\n");
        std::fs::remove_dir_all(&dir).expect("remove");
        let none = open_kernel_log(&path).expect_err("no log");
        assert_eq!(none.kind(), io::ErrorKind::NotFound);
        assert!(passes(Errno::EPIPE) && passes(Errno::EINTR) && !passes(Errno::EIO));
    }
}
