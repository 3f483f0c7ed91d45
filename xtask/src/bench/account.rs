//! What a tree of cgroups used: the kernel's own count, in nanoseconds, of everything that ever ran in it. Processes that came
//! and went are in it, whoever reaped them, and nothing else on the machine is.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::Failure;

/// A cgroup of the hierarchy that counts processor time, and all below it.
pub(super) struct Account {
    dir: PathBuf,
    /// Where this task was before it entered.
    home: Option<PathBuf>,
}

impl Account {
    /// Opens or makes the cgroup `name`, which lies at the top of the hierarchy.
    pub(super) fn open(name: &str) -> Result<Self, Failure> {
        let account = Self {
            dir: hierarchy().join(name),
            home: None,
        };
        fs::create_dir_all(&account.dir)?;
        Ok(account)
    }

    /// Puts a process into the leaf `leaf` of the tree: what it starts from now on is counted too.
    pub(super) fn adopt(&self, leaf: &str, pid: u32) -> Result<(), Failure> {
        let leaf = self.dir.join(leaf);
        fs::create_dir_all(&leaf)?;
        Ok(fs::write(leaf.join("cgroup.procs"), pid.to_string())?)
    }

    /// Puts this task itself into the tree, until the value is dropped.
    pub(super) fn enter(&mut self, leaf: &str) -> Result<(), Failure> {
        let hierarchy = hierarchy();
        let controller = if hierarchy.ends_with("cgroup") {
            ""
        } else {
            "cpuacct"
        };
        let path = fs::read_to_string("/proc/self/cgroup")?
            .lines()
            .find_map(|line| {
                let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
                controllers
                    .split(',')
                    .any(|c| c == controller)
                    .then(|| path.trim_start_matches('/').to_owned())
            })
            .ok_or("this task is in no cgroup")?;
        self.home = Some(hierarchy.join(path));
        self.adopt(leaf, std::process::id())
    }

    /// Processor time used in the tree since it was made.
    pub(super) fn used(&self) -> Result<Duration, Failure> {
        if let Ok(text) = fs::read_to_string(self.dir.join("cpuacct.usage")) {
            return Ok(Duration::from_nanos(text.trim().parse()?));
        }
        let text = fs::read_to_string(self.dir.join("cpu.stat"))?;
        let micros = text
            .lines()
            .find_map(|line| line.strip_prefix("usage_usec "))
            .ok_or("no usage_usec in cpu.stat")?;
        Ok(Duration::from_micros(micros.trim().parse()?))
    }

    /// How many processes are in the tree.
    pub(super) fn processes(&self) -> usize {
        count(&self.dir)
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        if let Some(home) = &self.home {
            let _ = fs::write(home.join("cgroup.procs"), std::process::id().to_string());
            for entry in fs::read_dir(&self.dir).into_iter().flatten().flatten() {
                let _ = fs::remove_dir(entry.path());
            }
            let _ = fs::remove_dir(&self.dir);
        }
    }
}

/// Version 1 has a hierarchy for it; in version 2 every cgroup counts.
fn hierarchy() -> PathBuf {
    let top = Path::new("/sys/fs/cgroup");
    ["cpuacct", "cpu,cpuacct"]
        .iter()
        .map(|name| top.join(name))
        .find(|dir| dir.join("cpuacct.usage").exists())
        .unwrap_or_else(|| top.to_path_buf())
}

fn count(dir: &Path) -> usize {
    let own = fs::read_to_string(dir.join("cgroup.procs"))
        .unwrap_or_default()
        .lines()
        .count();
    let below = fs::read_dir(dir).into_iter().flatten().flatten();
    own + below
        .filter(|entry| entry.file_type().is_ok_and(|t| t.is_dir()))
        .map(|entry| count(&entry.path()))
        .sum::<usize>()
}
