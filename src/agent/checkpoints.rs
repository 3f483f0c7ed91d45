//! Archives of checkpoints: one is made at a time, and the newest of each container is kept.

use core::{cell::Cell, time::Duration};
use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::backend::LocalBackend;
use crate::{
    api::{WallTime, cri::ContainerState},
    logic::checkpoint,
    runtime::RuntimeError,
    server::{backend::PodName, http::Refusal},
};

/// Archives of checkpoints. Tells if one is being made.
pub(super) struct CheckpointArchives {
    dir: PathBuf,
    is_busy: Cell<bool>,
}

impl CheckpointArchives {
    /// Archives in the directory `dir`, which need not exist.
    pub(super) const fn new(dir: PathBuf) -> Self {
        Self {
            dir,
            is_busy: Cell::new(false),
        }
    }

    /// Keeps others from making a checkpoint until the guard is dropped.
    fn begin_checkpoint(&self) -> Result<BusyGuard<'_>, RuntimeError> {
        if self.is_busy.replace(true) {
            let text = "another checkpoint is being made";
            return Err(RuntimeError::Exhausted(text.into()));
        }
        Ok(BusyGuard(&self.is_busy))
    }
}

/// Ends the time in which no other checkpoint is made.
struct BusyGuard<'a>(&'a Cell<bool>);

impl Drop for BusyGuard<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

impl LocalBackend {
    /// Makes a checkpoint, and removes older ones of the same container. Returns the path of the archive.
    pub(super) async fn make_checkpoint(
        &self,
        pod: PodName<'_>,
        container: &str,
        timeout: Duration,
        now: WallTime,
    ) -> Result<String, RuntimeError> {
        let archives = &self.settings.checkpoints;
        let _busy = archives.begin_checkpoint()?;
        let refused = |refusal: Refusal| RuntimeError::Failed(refusal.message);
        let found = self.find_pod(pod.namespace, pod.name).await;
        let status = self.runtime_status(&found.map_err(refused)?).await;
        let status = status.map_err(refused)?;
        let running = status
            .container_instances(container)
            .find(|c| c.state == ContainerState::Running)
            .ok_or_else(|| RuntimeError::Failed(format!("container {container} is not running")))?;
        let newest = checkpoint::archive_name(pod.name, pod.namespace, container, now);
        let location = archives.dir.join(&newest);
        self.runtime
            .checkpoint_container(&running.id, &location, timeout)
            .await?;
        let dir = archives.dir.clone();
        let remove = move || remove_superseded(&dir, &newest);
        if let Err(e) = self.disk.run_job(remove).await {
            log::warn!("older checkpoints in {}: {e}", archives.dir.display());
        }
        Ok(location.display().to_string())
    }
}

/// Removes the archives that `newest` replaces.
fn remove_superseded(dir: &Path, newest: &str) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        let text = name.to_str().unwrap_or_default();
        if checkpoint::is_superseded(text, newest) {
            fs::remove_file(dir.join(name))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestDir;

    #[test]
    fn one_is_made_at_a_time() {
        // CKPT-04
        let archives = CheckpointArchives::new(PathBuf::new());
        let first = archives.begin_checkpoint();
        assert!(first.is_ok());
        let second = archives.begin_checkpoint().map(drop);
        let second = second.expect_err("the first one is not done");
        assert_eq!(second.to_string(), "another checkpoint is being made");
        drop(first);
        assert!(archives.begin_checkpoint().is_ok());
    }

    #[test]
    fn the_newest_archive_of_a_container_stays() {
        // CKPT-04
        let scratch = TestDir::new("checkpoints");
        let at = |seconds| WallTime::from_unix_seconds(seconds);
        let name = |container: &str, seconds| {
            checkpoint::archive_name("web", "shop", container, at(seconds))
        };
        let newest = name("app", 9);
        for name in [
            &*newest,
            &name("app", 1),
            &name("app", 2),
            &name("log", 1),
            "else",
        ] {
            fs::write(scratch.join(name), "").expect("file");
        }
        remove_superseded(&scratch, &newest).expect("removed");
        let left = fs::read_dir(&*scratch).expect("dir").flatten();
        let mut left: Vec<_> = left.map(|entry| entry.file_name()).collect();
        left.sort();
        assert_eq!(left, [&*newest, &name("log", 1), "else"]);
    }
}
