//! Control groups of pods, tiers and shims: made, limited, emptied and removed. Values come in as data.
//!
//! Two layouts exist on boards: version 1 (each controller its own mount, perhaps with a bare version 2 tree beside it) and
//! version 2 (one tree). [`Cgroups`] hides which. Containers' own groups are made by the OCI runtime below the pod's.
//!
//! Where the cgroup driver is `systemd`, a path that ends in `.slice` is a unit of it: [`Slices`] makes it and stops it, and
//! its files are written as those of any other group.
//!
//! Paths are absolute within the hierarchy (`/kubepods/burstable/pod<uid>`), never file names.

mod devices;
mod doorbell;
mod freeze;
mod hierarchy;
mod kill;
mod slices;
mod usage;
mod values;

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use crate::api::PodError;
use crate::api::cri::LinuxResources;
use crate::api::order::OrderExt;
use crate::api::stats::{CgroupUsage, StatsDetail};
use crate::bus::BusError;
use crate::sys::{crash, lane::Lane};

pub use doorbell::MemoryDoorbell;
pub use hierarchy::{CgroupVersion, Hierarchy};
pub use slices::{SOCKET as SYSTEMD_SOCKET, Slices};

/// Longest control file that is read, in bytes; `cgroup.procs` of a fork bomb is cut, and read again next round.
const FILE_LIMIT: u64 = 1 << 20;

/// Error of a call on a control group.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// The mount table shows no usable hierarchy.
    #[error("no control group hierarchy is mounted: mount cgroup2 on /sys/fs/cgroup")]
    NotMounted,
    /// A limit was asked for that this kernel cannot hold.
    #[error(
        "control group controller {0:?} is not available: enable it on the kernel command line"
    )]
    NoController(&'static str),
    /// The path is not absolute or tries to leave the hierarchy.
    #[error("control group path {0:?} is not absolute and plain")]
    BadPath(String),
    /// A limit of the pod is invalid, or this machine cannot enforce it.
    #[error(transparent)]
    Limit(#[from] PodError),
    /// A file of the control group file system could not be read or written.
    #[error("{}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// systemd does not make or stop a slice.
    #[error("systemd: {unit}")]
    Unit {
        /// Name of the slice.
        unit: String,
        /// The cause.
        source: BusError,
    },
    /// Processes outlived every round of killing.
    #[error("{path}: {left} processes outlived SIGKILL")]
    Busy {
        /// The group.
        path: String,
        /// Number of processes that are left.
        left: usize,
    },
}

impl CgroupError {
    fn at_path(path: &Path, source: io::Error) -> Self {
        Self::Io {
            path: path.to_owned(),
            source,
        }
    }
}

/// The machine's control groups.
#[derive(Clone)]
pub struct Cgroups {
    hierarchy: Hierarchy,
    /// Slices of systemd; only where systemd makes groups.
    slices: Option<Slices>,
}

impl Cgroups {
    /// Reads the mount table of this process.
    ///
    /// # Errors
    /// [`CgroupError::NotMounted`], or the mount table cannot be read.
    pub fn detect() -> Result<Self, CgroupError> {
        let path = Path::new("/proc/self/mountinfo");
        let text = fs::read_to_string(path).map_err(|e| CgroupError::at_path(path, e))?;
        Ok(Self {
            hierarchy: Hierarchy::parse(&text).ok_or(CgroupError::NotMounted)?,
            slices: None,
        })
    }

    /// Uses a hierarchy found elsewhere (tests).
    #[must_use]
    pub const fn with_hierarchy(hierarchy: Hierarchy) -> Self {
        Self {
            hierarchy,
            slices: None,
        }
    }

    /// Slices are made by systemd from now on.
    #[must_use]
    pub fn with_systemd_slices(self, slices: Slices) -> Self {
        Self {
            slices: Some(slices),
            ..self
        }
    }

    /// Lane for calls that make groups; `None` if they never wait for systemd.
    #[must_use]
    pub fn slice_lane(&self) -> Option<&Lane> {
        self.slices.as_ref().map(Slices::lane)
    }

    /// The slice that systemd has at this path.
    fn systemd_slice<'a>(&self, path: &'a str) -> Option<(&Slices, &'a str)> {
        self.slices.as_ref().zip(slices::unit_at_path(path))
    }

    /// The machine's layout of control groups.
    #[must_use]
    pub const fn cgroup_version(&self) -> CgroupVersion {
        self.hierarchy.cgroup_version()
    }

    /// Controllers that pods need (`cpu`, `memory`, `pids`) and this machine lacks.
    #[must_use]
    pub fn missing_controllers(&self) -> Vec<&'static str> {
        ["cpu", "memory", "pids"]
            .into_iter()
            .filter(|c| !self.hierarchy.has_controller(c))
            .collect()
    }

    /// Returns true if containers can be limited by `controller`.
    #[must_use]
    pub fn has_controller(&self, controller: &str) -> bool {
        self.hierarchy.has_controller(controller)
    }

    /// Directories of `path` that a process of ours is moved into, one for each hierarchy that counts or limits.
    #[must_use]
    pub fn process_dirs(&self, path: &str) -> Vec<PathBuf> {
        self.hierarchy.process_dirs(path)
    }

    /// Makes a group for groups, with all its parents, and writes its limits. An existing group gets the limits written again.
    ///
    /// # Errors
    /// See [`CgroupError`]; a half-made group is left and made whole by the next call.
    pub fn create_group(&self, path: &str, values: &LinuxResources) -> Result<(), CgroupError> {
        check_plain_path(path)?;
        self.make_slice(path, values)?;
        self.make(path)?;
        crash::point("cgroup.made");
        values::write_limits(&self.hierarchy, path, values)
    }

    /// Makes a group for processes that this program moves into it itself, with all its parents, and writes its limits. On version
    /// 2 it hands down nothing: a group that does takes no process.
    ///
    /// # Errors
    /// See [`CgroupError`]; a half-made group is left and made whole by the next call.
    pub fn create_limited_leaf(
        &self,
        path: &str,
        values: &LinuxResources,
    ) -> Result<(), CgroupError> {
        check_plain_path(path)?;
        match path.rsplit_once('/') {
            Some((above, _)) if self.cgroup_version() == CgroupVersion::V2 => self.make(above)?,
            _ => self.make(path)?,
        }
        self.create_leaf(path)?;
        values::write_limits(&self.hierarchy, path, values)
    }

    /// Writes the limits of an existing group. Fields that are `None` keep what they have.
    ///
    /// # Errors
    /// See [`CgroupError`].
    pub fn update_limits(&self, path: &str, values: &LinuxResources) -> Result<(), CgroupError> {
        check_plain_path(path)?;
        values::write_limits(&self.hierarchy, path, values)
    }

    /// Makes a group for processes of our own, without limits (the leaf that shims live in).
    ///
    /// # Errors
    /// See [`CgroupError`].
    pub fn create_leaf(&self, path: &str) -> Result<(), CgroupError> {
        check_plain_path(path)?;
        self.make_slice(path, &LinuxResources::default())?;
        for dir in self.hierarchy.process_dirs(path) {
            fs::create_dir_all(&dir).map_err(|e| CgroupError::at_path(&dir, e))?;
        }
        Ok(())
    }

    /// Returns true if the group exists in a hierarchy that holds limits (memory or cpu).
    #[must_use]
    pub fn has_group(&self, path: &str) -> bool {
        self.hierarchy
            .controller_dir("memory", path)
            .is_some_and(|d| d.is_dir())
            || self
                .hierarchy
                .controller_dir("cpu", path)
                .is_some_and(|d| d.is_dir())
    }

    /// The directory whose files count memory and OOM kills of the group.
    #[must_use]
    pub fn memory_dir(&self, path: &str) -> Option<PathBuf> {
        self.hierarchy.controller_dir("memory", path)
    }

    /// Returns how often the kernel has killed in the group for want of memory, and the rest of it lives on.
    #[must_use]
    pub fn read_outlived_oom_kills(&self, path: &str) -> u64 {
        let dir = check_plain_path(path)
            .ok()
            .and_then(|()| self.memory_dir(path));
        dir.map_or(0, |dir| usage::read_outlived_oom_kills(&dir))
    }

    /// Reads the usage of the group and all groups below it; `None` if it is gone. A few small files are read.
    #[must_use]
    pub fn read_usage(&self, path: &str, detail: StatsDetail) -> Option<CgroupUsage> {
        check_plain_path(path).ok()?;
        usage::read_group_usage(&self.hierarchy, path, detail)
    }

    /// Bytes that the group and all groups below it had written to a disk (`179:0`); `None` if unknown, as on version
    /// 1, which counts no writes that wait in memory.
    #[must_use]
    pub fn read_written_bytes(&self, path: &str, disk: &str) -> Option<u64> {
        check_plain_path(path).ok()?;
        usage::read_written_bytes(self.hierarchy.unified_root()?, path, disk)
    }

    /// Reads the usage of the whole machine.
    #[must_use]
    pub fn read_machine_usage(&self, detail: StatsDetail) -> CgroupUsage {
        usage::read_machine(&self.hierarchy, Path::new("/proc"), detail)
    }

    /// Moves a process into the group (all its threads).
    ///
    /// # Errors
    /// [`CgroupError::Io`].
    pub fn move_process(&self, path: &str, pid: i32) -> Result<(), CgroupError> {
        check_plain_path(path)?;
        for dir in self.hierarchy.process_dirs(path) {
            let procs = dir.join("cgroup.procs");
            fs::write(&procs, pid.to_string()).map_err(|e| CgroupError::at_path(&procs, e))?;
        }
        Ok(())
    }

    /// Processes of the group and everything below it, sorted.
    #[must_use]
    pub fn list_pids(&self, path: &str) -> Vec<i32> {
        kill::list_pids(&self.hierarchy, path)
    }

    /// Sends SIGKILL to every process of the group and below, once, and returns how many there were.
    /// A group that does not exist counts as empty.
    pub fn kill_processes(&self, path: &str) -> usize {
        kill::kill_once(&self.hierarchy, path)
    }

    /// Stops all processes of the group and below, and waits until they stand still. Absent counts as done.
    ///
    /// # Errors
    /// The kernel has no freezer, or they do not stand still within ten seconds: call [`Self::thaw_group`] all the same.
    pub async fn freeze_group(&self, path: &str) -> Result<(), CgroupError> {
        check_plain_path(path)?;
        freeze::freeze(&self.hierarchy, path).await
    }

    /// Lets the processes of the group go on. Absent counts as done.
    ///
    /// # Errors
    /// See [`CgroupError`].
    pub fn thaw_group(&self, path: &str) -> Result<(), CgroupError> {
        check_plain_path(path)?;
        freeze::thaw(&self.hierarchy, path)
    }

    /// Kills what is left in the group and below, and waits until it is empty. Absent counts as empty.
    ///
    /// # Errors
    /// [`CgroupError::Busy`] after five rounds; the caller tries again later.
    pub async fn drain_group(&self, path: &str) -> Result<(), CgroupError> {
        check_plain_path(path)?;
        kill::drain(&self.hierarchy, path).await
    }

    /// Kills the remaining processes of the group and below, then removes it everywhere. Absent counts as done.
    ///
    /// # Errors
    /// [`CgroupError::Busy`] after five rounds; the caller tries again later.
    pub async fn destroy_group(&self, path: &str) -> Result<(), CgroupError> {
        check_plain_path(path)?;
        if let Some((slices, unit)) = self.systemd_slice(path) {
            // Its last processes are killed first: systemd would give them a grace of its own.
            kill::drain(&self.hierarchy, path).await?;
            let (slices, unit) = (slices.clone(), unit.to_owned());
            let lane = slices.lane().clone();
            let stopped =
                lane.run_job(move || slices.stop_slice(&unit).map_err(|source| (unit, source)));
            stopped
                .await
                .map_err(|(unit, source)| CgroupError::Unit { unit, source })?;
        }
        kill::destroy(&self.hierarchy, path).await
    }

    /// Removes a group that is empty, wherever it is; one that is not stays.
    pub fn remove_empty_group(&self, path: &str) {
        for dir in self.hierarchy.mounted_dirs(path) {
            let _ = fs::remove_dir(dir);
        }
    }

    /// Takes nearly all cpu from a group that may not be removed yet (an orphan whose volumes are still mounted). One that
    /// has gone meanwhile needs nothing.
    ///
    /// # Errors
    /// [`CgroupError::Io`].
    pub fn reduce_cpu(&self, path: &str) -> Result<(), CgroupError> {
        /// The kernel's smallest shares.
        const MINIMUM_SHARES: u64 = 2;
        let reduced = LinuxResources {
            cpu_shares: Some(MINIMUM_SHARES),
            ..LinuxResources::default()
        };
        match self.update_limits(path, &reduced) {
            Err(CgroupError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Ok(())
            }
            result => result,
        }
    }

    /// Names of the groups in this one, sorted, each once.
    #[must_use]
    pub fn list_child_groups(&self, path: &str) -> Vec<String> {
        let mut found = Vec::new();
        for dir in self.hierarchy.mounted_dirs(path) {
            let entries = fs::read_dir(dir).into_iter().flatten().flatten();
            let groups = entries.filter(|entry| entry.file_type().is_ok_and(|t| t.is_dir()));
            found.extend(groups.filter_map(|entry| entry.file_name().into_string().ok()));
        }
        found.stable_sort();
        found.dedup();
        found
    }

    /// Checks that groups can be made, by making `parent`, which stays.
    ///
    /// # Errors
    /// [`CgroupError::Io`] with the reason.
    pub fn probe_writable(&self, parent: &str) -> Result<(), CgroupError> {
        check_plain_path(parent)?;
        for dir in self.hierarchy.limit_dirs(parent) {
            fs::create_dir_all(&dir).map_err(|e| CgroupError::at_path(&dir, e))?;
        }
        Ok(())
    }

    fn make_slice(&self, path: &str, limits: &LinuxResources) -> Result<(), CgroupError> {
        let Some((slices, unit)) = self.systemd_slice(path) else {
            return Ok(());
        };
        slices
            .start_slice(unit, limits)
            .map_err(|source| CgroupError::Unit {
                unit: unit.into(),
                source,
            })
    }

    fn make(&self, path: &str) -> Result<(), CgroupError> {
        match self.cgroup_version() {
            CgroupVersion::V1 => {
                for dir in self.hierarchy.limit_dirs(path) {
                    fs::create_dir_all(&dir).map_err(|e| CgroupError::at_path(&dir, e))?;
                }
                Ok(())
            }
            CgroupVersion::V2 => values::make_v2(&self.hierarchy, path),
        }
    }
}

/// Refuses paths that would leave the hierarchy.
fn check_plain_path(path: &str) -> Result<(), CgroupError> {
    let ok = path.len() > 1
        && path.starts_with('/')
        && !path.contains('\0')
        && path[1..]
            .split('/')
            .all(|part| !part.is_empty() && part != "." && part != "..");
    if ok {
        Ok(())
    } else {
        Err(CgroupError::BadPath(path.to_owned()))
    }
}

/// Reads a small control file.
fn read_control_file(path: &Path) -> io::Result<String> {
    use std::io::Read;
    let mut text = String::new();
    fs::File::open(path)?
        .take(FILE_LIMIT)
        .read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_inside() {
        for (path, ok) in [
            ("/kubepods/burstable/pod1", true),
            ("/kubepods", true),
            ("kubepods", false),
            ("/", false),
            ("/kubepods/../etc", false),
            ("/kubepods//x", false),
            ("/kubepods/./x", false),
            ("", false),
        ] {
            assert_eq!(check_plain_path(path).is_ok(), ok, "{path}");
        }
    }

    /// On the kernel's own version 2, which is there beside version 1, too. A group that hands controllers down takes no process.
    #[test]
    fn a_limited_leaf_takes_a_process() {
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
        let mount = mounts.lines().find(|line| line.contains(" - cgroup2 "));
        let Some(hierarchy) = mount.and_then(Hierarchy::parse) else {
            eprintln!("SKIPPED a_limited_leaf_takes_a_process: no cgroup2 is mounted");
            return;
        };
        let cgroups = Cgroups::with_hierarchy(hierarchy);
        let top = format!("/picolet-leaf-{}", std::process::id());
        let (pod, leaf) = (format!("{top}/pod"), format!("{top}/pod/leaf"));
        let values = LinuxResources::default();
        if !nix::unistd::geteuid().is_root() {
            eprintln!("SKIPPED a_limited_leaf_takes_a_process: needs root");
            return;
        }
        cgroups.create_group(&pod, &values).expect("made");
        cgroups.create_limited_leaf(&leaf, &values).expect("made");
        let mut sleeper = std::process::Command::new("sleep")
            .arg("1000")
            .spawn()
            .expect("sleep");
        let pid = i32::try_from(sleeper.id()).expect("a pid");
        let joined = cgroups.move_process(&leaf, pid);
        let pids = cgroups.list_pids(&leaf);
        sleeper.kill().expect("it lives");
        sleeper.wait().expect("it ends");
        for path in [leaf, pod, top] {
            cgroups.remove_empty_group(&path);
            assert!(
                cgroups
                    .hierarchy
                    .mounted_dirs(&path)
                    .iter()
                    .all(|dir| !dir.exists()),
                "{path} is left"
            );
        }
        joined.expect("joined");
        assert_eq!(pids, [pid]);
    }
}
