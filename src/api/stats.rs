//! What runs costs: figures as they were counted, and nothing computed from them but what the kernel leaves to its readers.
//!
//! A figure that the machine does not have is `None` and is left out of every answer: absent is not zero (MET-11).

use super::{ContainerId, PodUid, Wall, cri::FsInfo};

/// How much is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Detail {
    /// Processor time, memory and swap.
    Basic,
    /// Everything that is counted.
    Full,
}

/// Processor time of a control group, since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cpu {
    /// All of it, nanoseconds.
    pub total_ns: u64,
    /// Of that, in the programs themselves and in the kernel, nanoseconds.
    pub user_system_ns: Option<(u64, u64)>,
    /// What its quota did; only with [`Detail::Full`].
    pub throttled: Option<Throttled>,
}

/// What the quota of a control group did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Throttled {
    /// Periods in which something ran.
    pub periods: u64,
    /// Of these, in how many it was stopped.
    pub throttled_periods: u64,
    /// How long it was stopped, nanoseconds.
    pub throttled_ns: u64,
}

/// Memory of a control group, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
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
pub struct Swap {
    /// In use.
    pub usage_bytes: u64,
    /// The limit in force, if there is one.
    pub limit_bytes: Option<u64>,
}

/// How much waiting there was for one resource: averages in percent times 100, as the kernel prints them with two digits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stall {
    /// Over the last 10, 60 and 300 seconds, hundredths of a percent.
    pub averages: [u32; 3],
    /// Since the group was made, microseconds.
    pub total_us: u64,
}

/// Pressure on one resource (PSI). Source: kernel `Documentation/accounting/psi.rst`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    /// Somebody waited.
    pub some: Stall,
    /// Everybody waited.
    pub full: Stall,
}

/// What a control group and all below it have used. `None`: not counted on this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// When it was read.
    pub at: Wall,
    /// Processor time.
    pub cpu: Option<Cpu>,
    /// Memory.
    pub memory: Option<Memory>,
    /// Swap.
    pub swap: Option<Swap>,
    /// Processes and threads; only with [`Detail::Full`], as what follows.
    pub pids: Option<u64>,
    /// How often the kernel killed for want of memory.
    pub oom_kills: Option<u64>,
    /// Pressure on processor, memory and disks; only with version 2.
    pub pressure: Option<Box<[Option<Pressure>; 3]>>,
    /// What was asked for: shares of the processor, its quota and period in microseconds.
    pub cpu_shares: Option<u64>,
    /// Quota and period, microseconds; `None`: no quota.
    pub cpu_quota: Option<(u64, u64)>,
}

/// Counts of one network interface, as `/proc/net/dev` has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Received.
    pub rx: Traffic,
    /// Sent.
    pub tx: Traffic,
}

/// One direction of an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
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
    /// Its id.
    pub id: ContainerId,
    /// Its name in the pod.
    pub name: String,
    /// Image as the user named it.
    pub image: String,
    /// When it was started.
    pub started_at: Wall,
    /// Its control group.
    pub cgroup: String,
    /// Its log file, absolute.
    pub log_path: String,
    /// What it has used.
    pub usage: Usage,
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
    /// When its sandbox was made.
    pub started_at: Wall,
    /// Its control group; empty if it is not known.
    pub cgroup: String,
    /// What that has used.
    pub usage: Usage,
    /// Interfaces of its network; `None` for the host's, and where only [`Detail::Basic`] was asked for.
    pub network: Option<Vec<Interface>>,
    /// Containers that run, sorted by name.
    pub containers: Vec<ContainerUsage>,
}

/// What files below a directory take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskUsage {
    /// Bytes on disk.
    pub used_bytes: u64,
    /// Inodes.
    pub inodes_used: u64,
}

impl DiskUsage {
    /// What is used of a file system, whoever used it.
    #[must_use]
    pub const fn of_all(fs: &FsInfo) -> Self {
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

/// What the files of a container take. `None`: too much to be counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContainerDisk {
    /// Above its image.
    pub layer: Option<DiskUsage>,
    /// Its logs.
    pub logs: Option<DiskUsage>,
}

/// What a volume takes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeUsage {
    /// Its name in the pod.
    pub name: String,
    /// Name of the claim that it was given to.
    pub claim: Option<String>,
    /// It counts as the pod's ephemeral storage.
    pub ephemeral: bool,
    /// What is in it; `None`: too much to be counted.
    pub used: Option<DiskUsage>,
    /// The file system that it is on.
    pub fs: Option<FsInfo>,
}

/// What there is in a volume that a claim is bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimUsage {
    /// A pod that uses it.
    pub uid: PodUid,
    /// Its name in that pod.
    pub volume: String,
    /// Namespace of the claim, which is the pod's.
    pub namespace: String,
    /// Name of the claim.
    pub claim: String,
    /// The file system that it is.
    pub fs: FsInfo,
}
