//! Usage of pods and machine: figures as they were counted. Only those are computed that the kernel leaves to its readers.
//!
//! A figure that the machine does not have is `None` and is left out of every answer: absent is not zero (MET-11).

use super::{ContainerId, PodUid, WallTime, cri::FsInfo};

/// Extent of a reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StatsDetail {
    /// Processor time, memory and swap.
    Basic,
    /// Everything that is counted.
    Full,
}

/// Processor time of a control group, since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuUsage {
    /// All of it, nanoseconds.
    pub total_ns: u64,
    /// Part of it in the programs themselves, and part in the kernel, nanoseconds.
    pub user_system_ns: Option<(u64, u64)>,
    /// Effect of its quota; only with [`StatsDetail::Full`].
    pub throttled: Option<CpuThrottling>,
}

/// Effect of a control group's quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuThrottling {
    /// Periods in which something ran.
    pub periods: u64,
    /// Periods in which the group was stopped.
    pub throttled_periods: u64,
    /// Time for which the group was stopped, nanoseconds.
    pub throttled_ns: u64,
}

/// Memory of a control group, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUsage {
    /// In use, page cache included.
    pub usage_bytes: u64,
    /// In use without pages of files that were not used for long: usage − `inactive_file`, never below zero.
    pub working_set_bytes: u64,
    /// Anonymous memory.
    pub rss_bytes: Option<u64>,
    /// Page cache.
    pub cache_bytes: Option<u64>,
    /// Page cache that is mapped.
    pub mapped_file_bytes: Option<u64>,
    /// Page faults, and of these those that waited for a disk.
    pub faults: Option<(u64, u64)>,
    /// The limit in force, if there is one.
    pub limit_bytes: Option<u64>,
}

/// Swap of a control group, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwapUsage {
    /// In use.
    pub usage_bytes: u64,
    /// The limit in force, if there is one.
    pub limit_bytes: Option<u64>,
}

/// Waiting for one resource: averages in percent times 100, as the kernel prints them with two digits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PressureStall {
    /// Over the last 10, 60 and 300 seconds, hundredths of a percent.
    pub averages: [u32; 3],
    /// Since the group was made, microseconds.
    pub total_us: u64,
}

/// Pressure on one resource (PSI). Source: kernel `Documentation/accounting/psi.rst`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResourcePressure {
    /// At least one task waited.
    pub some: PressureStall,
    /// Everybody waited.
    pub full: PressureStall,
}

/// Usage of a control group and all groups below it. `None`: not counted on this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CgroupUsage {
    /// Time of the reading.
    pub at: WallTime,
    /// Processor time.
    pub cpu: Option<CpuUsage>,
    /// Memory.
    pub memory: Option<MemoryUsage>,
    /// Swap.
    pub swap: Option<SwapUsage>,
    /// Processes and threads; only with [`StatsDetail::Full`], as what follows.
    pub pids: Option<u64>,
    /// Processes that the kernel killed for want of memory.
    pub oom_kills: Option<u64>,
    /// Pressure on processor, memory and disks; only with version 2.
    pub pressure: Option<Box<[Option<ResourcePressure>; 3]>>,
    /// Requested shares of the processor.
    pub cpu_shares: Option<u64>,
    /// Quota and period, microseconds; `None`: no quota.
    pub cpu_quota: Option<(u64, u64)>,
}

/// Counts of one network interface, as `/proc/net/dev` has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InterfaceCounts {
    /// Name of the interface.
    pub name: String,
    /// Received.
    pub rx: TrafficCounts,
    /// Sent.
    pub tx: TrafficCounts,
}

/// Counts of one direction of an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrafficCounts {
    /// Bytes.
    pub bytes: u64,
    /// Packets.
    pub packets: u64,
    /// Packets that were in error.
    pub errors: u64,
    /// Packets that were dropped.
    pub dropped: u64,
}

/// A container that runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerUsage {
    /// Id of the container.
    pub id: ContainerId,
    /// Name of the container in the pod.
    pub name: String,
    /// Image as the user named it.
    pub image: String,
    /// Start of the container.
    pub started_at: WallTime,
    /// Control group of the container.
    pub cgroup: String,
    /// Log file of the container, absolute.
    pub log_path: String,
    /// Usage of the container.
    pub usage: CgroupUsage,
}

/// A pod that runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodUsage {
    /// UID.
    pub uid: PodUid,
    /// Name.
    pub name: String,
    /// Namespace.
    pub namespace: String,
    /// Creation of the sandbox.
    pub started_at: WallTime,
    /// Control group of the pod; empty if it is not known.
    pub cgroup: String,
    /// Usage of that control group.
    pub usage: CgroupUsage,
    /// Interfaces of its network; `None` for the host's, and where only [`StatsDetail::Basic`] was asked for.
    pub network: Option<Vec<InterfaceCounts>>,
    /// Containers that run, sorted by name.
    pub containers: Vec<ContainerUsage>,
}

/// Disk use of all files below a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskUsage {
    /// Bytes on disk.
    pub used_bytes: u64,
    /// Inodes.
    pub inodes_used: u64,
}

impl DiskUsage {
    /// Makes the use of a whole file system, whoever used it.
    #[must_use]
    pub const fn of_filesystem(fs: &FsInfo) -> Self {
        Self {
            used_bytes: fs.capacity_bytes.saturating_sub(fs.free_bytes),
            inodes_used: fs.inodes.saturating_sub(fs.inodes_free),
        }
    }
}

impl core::ops::AddAssign for DiskUsage {
    fn add_assign(&mut self, more: Self) {
        self.used_bytes = self.used_bytes.saturating_add(more.used_bytes);
        self.inodes_used = self.inodes_used.saturating_add(more.inodes_used);
    }
}

/// Disk use of a container. `None`: too much to be counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContainerDiskUsage {
    /// Above its image.
    pub layer: Option<DiskUsage>,
    /// Disk use of its logs.
    pub logs: Option<DiskUsage>,
}

/// Disk use of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeUsage {
    /// Name of the volume in the pod.
    pub name: String,
    /// Name of the claim that it was given to.
    pub claim: Option<String>,
    /// Set if the volume counts as the pod's ephemeral storage.
    pub ephemeral: bool,
    /// Disk use of its content; `None`: too much to be counted.
    pub used: Option<DiskUsage>,
    /// The file system that it is on.
    pub fs: Option<FsInfo>,
}

/// Usage of a volume that a claim is bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimUsage {
    /// A pod that uses it.
    pub uid: PodUid,
    /// Name of the volume in that pod.
    pub volume: String,
    /// Namespace of the claim, which is the pod's.
    pub namespace: String,
    /// Name of the claim.
    pub claim: String,
    /// The file system that it is.
    pub fs: FsInfo,
}
