//! Rotating the logs of running containers (LOG-06, IGC-04), unless their writer does it, compressing what was rotated, and
//! removing the oldest files if all logs together have too much.

use alloc::{collections::BTreeMap, rc::Rc};
use core::time::Duration;
use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use super::{
    asker::AgentHandle,
    clock::{Clock, align_to_second},
    complaints::Complaints,
};
use crate::{
    api::{ContainerId, cri::ContainerState},
    logic::log_budget::{self, LogTrim},
    runtime::{
        RuntimeService,
        log_rotation::{self, LogDirectoryStates},
        log_trim::{self, LogFiles},
    },
    sys::lane::Lane,
};

/// Rotates logs that are too large.
pub(super) struct LogRotation {
    pub(super) asker: AgentHandle,
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
    pub(super) looked: LogDirectoryStates,
    /// Limit of all logs together, if there is one.
    pub(super) max_all_bytes: Option<u64>,
}

/// A container with a log.
struct LoggedContainer {
    id: ContainerId,
    path: PathBuf,
    runs: bool,
}

impl LogRotation {
    /// For as long as the agent runs.
    pub(super) async fn run_log_rotation(mut self) {
        loop {
            let now = self.clock.now();
            let next = align_to_second(now + self.interval, now);
            self.clock.sleep_until(next).await;
            self.rotate_large_logs().await;
        }
    }

    /// Looks at every running container's log once and rotates what is too large.
    async fn rotate_large_logs(&mut self) {
        let all = self.asker.ask_agent(|agent| {
            let mut all = Vec::new();
            for pod in agent.runtime_statuses() {
                let logged = pod.containers.iter().filter(|c| !c.log_path.is_empty());
                all.extend(logged.map(|c| LoggedContainer {
                    id: c.id.clone(),
                    path: PathBuf::from(&c.log_path),
                    runs: c.state == ContainerState::Running,
                }));
            }
            all
        });
        let (all, limit) = (all.await, self.max_size_bytes);
        let running = all.iter().filter(|logged| logged.runs);
        let running: Vec<_> = running.map(|l| (l.id.clone(), l.path.clone())).collect();
        let lives: Vec<PathBuf> = running.iter().map(|(_, path)| path.clone()).collect();
        let due = self.disk.run_job(move || {
            let due = |(_, path): &(ContainerId, PathBuf)| {
                log_rotation::is_rotation_due(path, limit).unwrap_or(false)
            };
            running.into_iter().filter(due).collect::<Vec<_>>()
        });
        for (id, path) in due.await {
            self.rotate_log(&id, path).await;
        }
        let (looked, max_files) = (core::mem::take(&mut self.looked), self.max_files);
        let compress = move || log_rotation::compress_rotated(lives, looked, limit, max_files);
        let (looked, failed) = self.disk.run_job(compress).await;
        self.looked = looked;
        for (live, e) in failed {
            let text = format!("cannot compress rotated files of {}: {e}", live.display());
            self.complaints.complain(&text);
        }
        if let Some(budget) = self.max_all_bytes {
            self.keep_within(budget, all).await;
        }
    }

    /// Removes the oldest files of the largest logs until all have no more than `budget`.
    async fn keep_within(&self, budget: u64, all: Vec<LoggedContainer>) {
        // One log for all instances of a container; the one that runs tells which file is written.
        let mut newest: BTreeMap<PathBuf, LoggedContainer> = BTreeMap::new();
        for logged in all {
            let Some(dir) = logged.path.parent() else {
                continue;
            };
            match newest.get(dir) {
                Some(known) if known.runs => {}
                Some(_) | None => drop(newest.insert(dir.into(), logged)),
            }
        }
        let places = newest.values().map(|l| (l.path.clone(), l.runs));
        let places: Vec<_> = places.collect();
        let measure = move || {
            let measure = |(path, runs)| log_trim::measure_log(path, runs);
            places.into_iter().map(measure).collect::<Vec<_>>()
        };
        let found = self.disk.run_job(measure).await;
        let logs: Vec<_> = found.iter().map(|files| files.log.clone()).collect();
        let trims = log_budget::plan_log_trims(&logs, budget);
        let ids = newest.into_values().map(|logged| logged.id);
        let mut found: Vec<_> = found.into_iter().zip(ids).map(Some).collect();
        for trim in trims {
            if let Some((files, id)) = found[trim.log].take() {
                self.trim_log_files(trim, files, &id).await;
            }
        }
    }

    async fn trim_log_files(&self, trim: LogTrim, files: LogFiles, id: &ContainerId) {
        let LogFiles {
            path, mut names, ..
        } = files;
        self.complaints.complain(&format!(
            "the logs together are larger than picolet.maxLogBytes: removing the oldest file of {}",
            path.parent().unwrap_or(&path).display()
        ));
        names.truncate(trim.files - usize::from(trim.rotate));
        self.remove_log_files(&path, names).await;
        if trim.rotate
            && let Some(rotated) = self.rotate_log(id, path.clone()).await
        {
            let name = rotated.file_name().unwrap_or_default().to_owned();
            self.remove_log_files(&path, vec![name]).await;
        }
    }

    async fn remove_log_files(&self, path: &Path, names: Vec<OsString>) {
        let log = path.to_owned();
        let removed = self
            .disk
            .run_job(move || log_trim::remove_log_files(&log, &names))
            .await;
        if let Err(e) = removed {
            let text = format!("cannot remove old files of {}: {e}", path.display());
            self.complaints.complain(&text);
        }
    }

    /// Returns what the log is called now.
    async fn rotate_log(&self, id: &ContainerId, path: PathBuf) -> Option<PathBuf> {
        let complain = |what: &str, e: &dyn core::fmt::Display| {
            let text = format!("container={id} cannot {what} {}: {e}", path.display());
            self.complaints.complain(&text);
        };
        let (live, max_files, now) = (path.clone(), self.max_files, self.clock.wall_time());
        let rotate = move || log_rotation::rotate_log(&live, max_files, now);
        let rotated = match self.disk.run_job(rotate).await {
            Ok(rotated) => rotated,
            Err(e) => {
                complain("rotate", &e);
                return None;
            }
        };
        if let Err(e) = self.runtime.reopen_container_log(id).await {
            complain("reopen", &e);
            if let Some(rotated) = rotated {
                let undo = move || log_rotation::undo_rotation(&path, &rotated);
                let _ = self.disk.run_job(undo).await;
            }
            return None;
        }
        rotated
    }
}
