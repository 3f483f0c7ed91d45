//! Rotating the logs of running containers (LOG-06, IGC-04), unless their writer does it, and compressing what was rotated.

use alloc::rc::Rc;
use core::time::Duration;
use std::path::PathBuf;

use super::{
    asker::Asker,
    clock::{Clock, in_step},
    complaints::Complaints,
};
use crate::{
    api::{ContainerId, cri::ContainerState},
    runtime::{
        RuntimeService,
        log_rotation::{self, Looked},
    },
    sys::lane::Lane,
};

/// Rotates logs that are too large.
pub(super) struct LogRotation {
    pub(super) asker: Asker,
    pub(super) runtime: Rc<dyn RuntimeService>,
    pub(super) clock: Rc<dyn Clock>,
    pub(super) complaints: Rc<Complaints>,
    pub(super) disk: Lane,
    /// Between two looks.
    pub(super) interval: Duration,
    /// Above this a log is rotated.
    pub(super) max_size_bytes: u64,
    /// Files of a log, the live one included.
    pub(super) max_files: usize,
    /// Directories in which there is nothing to compress.
    pub(super) looked: Looked,
}

impl LogRotation {
    /// For as long as the agent runs.
    pub(super) async fn run(mut self) {
        loop {
            let next = in_step(self.clock.now() + self.interval);
            self.clock.until(next).await;
            self.pass().await;
        }
    }

    /// Looks at every running container's log once and rotates what is too large.
    async fn pass(&mut self) {
        let running = self.asker.ask(|agent| {
            let mut running: Vec<(ContainerId, PathBuf)> = Vec::new();
            for pod in agent.runtime_statuses() {
                let open = pod
                    .containers
                    .iter()
                    .filter(|c| c.state == ContainerState::Running && !c.log_path.is_empty());
                running.extend(open.map(|c| (c.id.clone(), PathBuf::from(&c.log_path))));
            }
            running
        });
        let (running, limit) = (running.await, self.max_size_bytes);
        let lives: Vec<PathBuf> = running.iter().map(|(_, path)| path.clone()).collect();
        let due = self.disk.run(move || {
            let due = |(_, path): &(ContainerId, PathBuf)| {
                log_rotation::is_due(path, limit).unwrap_or(false)
            };
            running.into_iter().filter(due).collect::<Vec<_>>()
        });
        for (id, path) in due.await {
            self.rotate(&id, path).await;
        }
        let (looked, max_files) = (core::mem::take(&mut self.looked), self.max_files);
        let compress = move || log_rotation::compress_rotated(lives, looked, limit, max_files);
        let (looked, failed) = self.disk.run(compress).await;
        self.looked = looked;
        for (live, e) in failed {
            let text = format!("cannot compress rotated files of {}: {e}", live.display());
            self.complaints.complain(&text);
        }
    }

    async fn rotate(&self, id: &ContainerId, path: PathBuf) {
        let complain = |what: &str, e: &dyn core::fmt::Display| {
            let text = format!("container={id} cannot {what} {}: {e}", path.display());
            self.complaints.complain(&text);
        };
        let (live, max_files, now) = (path.clone(), self.max_files, self.clock.wall());
        let rotate = move || log_rotation::rotate(&live, max_files, now);
        let rotated = match self.disk.run(rotate).await {
            Ok(rotated) => rotated,
            Err(e) => return complain("rotate", &e),
        };
        if let Err(e) = self.runtime.reopen_log(id).await {
            complain("reopen", &e);
            if let Some(rotated) = rotated {
                let undo = move || log_rotation::undo(&path, &rotated);
                let _ = self.disk.run(undo).await;
            }
        }
    }
}
