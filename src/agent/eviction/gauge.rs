//! Amounts of memory, disk space and process ids: one read of a few small files, whatever runs (EVICT-02).

use alloc::{rc::Rc, sync::Arc};
use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use crate::{
    agent::{clock::Clock, node::MachineFacts, views::LoopFuture},
    api::stats::{MemoryUsage, StatsDetail},
    cgroup::Cgroups,
    logic::eviction::{DiskLayout, FileSystems, Observations, ResourceReading},
    sys::{disk_usage, lane::Lane, proc},
};

/// Reads how much memory, disk space and process ids there are. Tests have a gauge of their own.
pub(in crate::agent) trait EvictionGauge {
    /// Reads the present amounts.
    fn read_observations(&self) -> LoopFuture<'_, Observations>;
}

/// The gauge of this machine.
pub(in crate::agent) struct MachineGauge {
    pub(in crate::agent) cgroups: Cgroups,
    pub(in crate::agent) disk: Lane,
    pub(in crate::agent) clock: Rc<dyn Clock>,
    pub(in crate::agent) places: Arc<GaugePaths>,
}

/// Paths to look at, and amounts that do not change.
pub(in crate::agent) struct GaugePaths {
    root: PathBuf,
    images: PathBuf,
    layers: PathBuf,
    kubepods: String,
    memory_bytes: u64,
    pids: u64,
    counts_kernel: bool,
}

impl GaugePaths {
    /// Takes the root directory, the directories of the backend for images and writable layers, and the control group
    /// of all pods.
    pub(in crate::agent) fn new(
        root: &Path,
        images: PathBuf,
        layers: PathBuf,
        kubepods: String,
        facts: &MachineFacts,
        counts_kernel: bool,
    ) -> Self {
        Self {
            root: root.into(),
            images,
            layers,
            kubepods,
            memory_bytes: facts.memory_bytes,
            pids: facts.pids,
            counts_kernel,
        }
    }

    fn disk_layout(&self) -> DiskLayout {
        let of = |path: &Path| fs::metadata(path).map(|meta| meta.dev()).ok();
        let Some(root) = of(&self.root) else {
            return DiskLayout::default();
        };
        // A directory that does not exist yet will be made on the root's disk.
        let file_systems = FileSystems {
            root,
            images: of(&self.images).unwrap_or(root),
            layers: of(&self.layers).unwrap_or(root),
        };
        file_systems.layout()
    }

    fn read_amounts(&self, cgroups: &Cgroups) -> Observations {
        let machine = cgroups.read_machine_usage(StatsDetail::Basic).memory;
        let pods = cgroups.read_usage(&self.kubepods, StatsDetail::Basic);
        let pods = pods.and_then(|usage| usage.memory);
        let all = |memory: MemoryUsage| {
            let mut reading =
                ResourceReading::from_used(self.memory_bytes, memory.working_set_bytes)?;
            // The kernel's own memory: with thirty pods a quarter of 256 MiB.
            if self.counts_kernel
                && let Some(left) = kernel_available_bytes()
            {
                reading.available = reading.available.min(left);
            }
            Some(reading)
        };
        let of_pods = |memory: MemoryUsage| {
            let limit = memory.limit_bytes?;
            ResourceReading::from_used(limit, memory.working_set_bytes)
        };
        Observations {
            layout: self.disk_layout(),
            memory: machine.and_then(all),
            allocatable_memory: pods.and_then(of_pods),
            nodefs: disk_usage::read_file_system(&self.root).ok(),
            imagefs: disk_usage::read_file_system(&self.images).ok(),
            pids: running_task_count()
                .and_then(|tasks| ResourceReading::from_used(self.pids, tasks)),
            ..Observations::default()
        }
    }
}

impl EvictionGauge for MachineGauge {
    fn read_observations(&self) -> LoopFuture<'_, Observations> {
        Box::pin(async {
            let (cgroups, places) = (self.cgroups.clone(), Arc::clone(&self.places));
            let at = self.clock.now();
            let read = self
                .disk
                .run_job(move || places.read_amounts(&cgroups))
                .await;
            Observations { at, ..read }
        })
    }
}

/// Memory that is free or holds files not used lately, bytes: the rest if the kernel's own memory counts as used.
fn kernel_available_bytes() -> Option<i64> {
    let mut buffer = [0; 4096];
    let text = proc::read_small("/proc/meminfo", &mut buffer).ok()?;
    parse_available_bytes(text)
}

/// Source: proc_meminfo(5).
fn parse_available_bytes(meminfo: &str) -> Option<i64> {
    let kib = |name: &str| -> Option<i64> {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix(" kB")?.parse().ok()
    };
    let left = kib("MemFree:")?.saturating_add(kib("Inactive(file):")?);
    Some(left.saturating_mul(1024))
}

/// Processes and threads of the machine. Source: proc_loadavg(5).
pub(in crate::agent) fn running_task_count() -> Option<u64> {
    let mut buffer = [0; 128];
    let text = proc::read_small("/proc/loadavg", &mut buffer).ok()?;
    let (_, all) = text.split(' ').nth(3)?.split_once('/')?;
    all.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_leaves() {
        // EVICT-02
        let meminfo = "MemTotal:  222352 kB\nMemFree:   1000 kB\nInactive(file):   24 kB\nKReclaimable: 9 kB\n";
        assert_eq!(parse_available_bytes(meminfo), Some(1 << 20));
        assert_eq!(parse_available_bytes("MemFree: 1 kB\n"), None);
    }

    #[test]
    fn this_machine() {
        // EVICT-01 EVICT-02: no more than that, for an emulator makes most of it up.
        let root = std::env::temp_dir();
        let places = GaugePaths {
            images: root.join("none"),
            layers: root.join("containers"),
            root,
            kubepods: "/none".into(),
            memory_bytes: 1 << 40,
            pids: 1 << 30,
            counts_kernel: false,
        };
        let mount = "30 23 0:26 / /none rw - cgroup2 cgroup2 rw";
        let cgroups =
            Cgroups::with_hierarchy(crate::cgroup::Hierarchy::parse(mount).expect("hierarchy"));
        let read = places.read_amounts(&cgroups);
        assert_eq!(read.layout, DiskLayout::OneDisk);
        assert!(read.nodefs.is_some_and(|fs| fs.capacity_bytes > 0));
        let memory = read.memory.expect("known");
        assert!(memory.available > 0 && memory.available < memory.capacity);
        assert_eq!(read.allocatable_memory, None, "no pod has a group");
        // EVICT-01: a runtime that has images, or all it keeps, on another disk than the agent.
        let other = PathBuf::from("/proc");
        let root = places.root.clone();
        let there = disk_usage::read_file_system(&other).expect("there");
        let mut places = GaugePaths {
            images: other.clone(),
            ..places
        };
        for (layers, want) in [
            (root, DiskLayout::SplitImages),
            (other, DiskLayout::SeparateRuntime),
        ] {
            places.layers = layers;
            let read = places.read_amounts(&cgroups);
            assert_eq!(read.layout, want);
            let images = read.imagefs.map(|fs| fs.capacity_bytes);
            assert_eq!(images, Some(there.capacity_bytes));
        }
        let pids = read.pids.expect("known");
        assert!(pids.available < 1 << 30 && pids.capacity == 1 << 30);
    }
}
