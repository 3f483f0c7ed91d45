//! Archives of checkpoints: one is made at a time, and the newest of each container is kept.

use core::{cell::Cell, ffi::CStr, time::Duration};
use std::{
    fs::{self, File},
    io,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
};

use super::backend::LocalBackend;
use crate::{
    api::{WallTime, cri::ContainerState},
    logic::checkpoint,
    runtime::RuntimeError,
    server::{backend::PodName, http::Refusal},
    sys::{open, xattr},
};

/// Attribute of an archive that says whose it is: namespace, pod and container.
const OWNER_XATTR: &CStr = c"trusted.picolet.container";

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
        let newest = newest.ok_or_else(|| {
            RuntimeError::Failed("the name of its archive would be longer than a file's".into())
        })?;
        let location = archives.dir.join(&newest);
        if location.exists() {
            return Err(RuntimeError::Failed(format!("{newest} is there already")));
        }
        self.runtime
            .checkpoint_container(&running.id, &location, timeout)
            .await?;
        let dir = archives.dir.clone();
        let owner = format!("{}/{}/{container}", pod.namespace, pod.name);
        let remove = move || remove_superseded(&dir, &newest, owner.as_bytes());
        if let Err(e) = self.disk.run_job(remove).await {
            log::warn!("older checkpoints in {}: {e}", archives.dir.display());
        }
        Ok(location.display().to_string())
    }
}

/// Marks the archive `newest` as that of `owner`, and removes the owner's others.
fn remove_superseded(dir: &Path, newest: &str, owner: &[u8]) -> io::Result<()> {
    xattr::set_attribute(open_archive(dir, newest)?.as_fd(), OWNER_XATTR, owner)?;
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        let Some(name) = name
            .to_str()
            .filter(|n| checkpoint::is_superseded(n, newest))
        else {
            continue;
        };
        let archive = open_archive(dir, name)?;
        if xattr::read_attribute(archive.as_fd(), OWNER_XATTR)?.as_deref() == Some(owner) {
            fs::remove_file(dir.join(name))?;
        }
    }
    Ok(())
}

fn open_archive(dir: &Path, name: &str) -> io::Result<File> {
    open::open_file_beneath(File::open(dir)?, Path::new(name))
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
        if !nix::unistd::geteuid().is_root() {
            skipped!("the attribute of an archive needs root");
            return;
        }
        let scratch = TestDir::new("checkpoints");
        let at = |seconds| WallTime::from_unix_seconds(seconds);
        // The same names for the containers `app` of `shop-x` and `x-app` of `shop`.
        let make = |namespace: &str, container: &str, seconds| {
            let name = checkpoint::archive_name("web", namespace, container, at(seconds));
            let name = name.expect("short");
            fs::write(scratch.join(&name), "").expect("file");
            let owner = format!("{namespace}/web/{container}");
            remove_superseded(&scratch, &name, owner.as_bytes()).expect("removed");
            name
        };
        let other = make("shop", "x-app", 1);
        let (log, own) = (make("shop-x", "log", 1), make("shop-x", "app", 2));
        assert!(scratch.join(&own).exists());
        fs::write(scratch.join("else"), "").expect("file");
        let newest = make("shop-x", "app", 9);
        let left = fs::read_dir(&*scratch).expect("dir").flatten();
        let mut left: Vec<_> = left.map(|entry| entry.file_name()).collect();
        left.sort();
        assert_eq!(left, [&*other, &newest, &log, "else"]);
    }
}
