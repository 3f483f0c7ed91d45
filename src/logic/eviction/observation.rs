//! Amounts of all resources, at one time (EVICT-02).

use super::threshold::EvictionSignal;
use crate::api::{MonoTime, cri::FsInfo};

/// Available and total amount of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResourceReading {
    /// Amount that is left.
    pub available: i64,
    /// Amount in all.
    pub capacity: i64,
}

impl ResourceReading {
    /// Computes a reading from capacity and usage. `None`: the capacity is 0, which also stands for unknown.
    #[must_use]
    pub fn from_used(capacity: u64, used: u64) -> Option<Self> {
        Self::from_available(capacity, capacity.saturating_sub(used))
    }

    fn from_available(capacity: u64, available: u64) -> Option<Self> {
        let signed = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        (capacity > 0).then(|| Self {
            available: signed(available),
            capacity: signed(capacity),
        })
    }
}

/// Layout of images and writable layers over the node's file systems.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DiskLayout {
    /// All on one file system.
    #[default]
    OneDisk,
    /// Images and writable layers on other file systems than the root directory.
    SeparateRuntime,
    /// Only images on another file system than the root directory.
    SplitImages,
}

/// Identities of the file systems of three directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSystems {
    /// The root directory.
    pub root: u64,
    /// Images.
    pub images: u64,
    /// Writable layers.
    pub layers: u64,
}

impl FileSystems {
    /// Layout that follows from these identities.
    #[must_use]
    pub const fn layout(self) -> DiskLayout {
        if self.images == self.root {
            DiskLayout::OneDisk
        } else if self.layers == self.root {
            DiskLayout::SplitImages
        } else {
            DiskLayout::SeparateRuntime
        }
    }
}

/// All resources that may run short. `None`: the amount is not known, and then no threshold of the resource is met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Observations {
    /// Time of the observation.
    pub at: MonoTime,
    /// Layout of the file systems.
    pub layout: DiskLayout,
    /// Memory of the node, less the working set of all processes.
    pub memory: Option<ResourceReading>,
    /// The limit of all pods together, less their working set.
    pub allocatable_memory: Option<ResourceReading>,
    /// The file system of the root directory.
    pub nodefs: Option<FsInfo>,
    /// The file system of the images.
    pub imagefs: Option<FsInfo>,
    /// Process numbers.
    pub pids: Option<ResourceReading>,
}

impl Observations {
    /// Reading of one signal.
    #[must_use]
    pub fn signal_reading(&self, signal: EvictionSignal) -> Option<ResourceReading> {
        let containerfs = match self.layout {
            DiskLayout::OneDisk | DiskLayout::SplitImages => self.nodefs,
            DiskLayout::SeparateRuntime => self.imagefs,
        };
        let bytes = |fs: Option<FsInfo>| {
            fs.and_then(|fs| ResourceReading::from_available(fs.capacity_bytes, fs.available_bytes))
        };
        // File systems without an inode table report 0 of 0.
        let inodes = |fs: Option<FsInfo>| {
            fs.and_then(|fs| ResourceReading::from_available(fs.inodes, fs.inodes_free))
        };
        match signal {
            EvictionSignal::MemoryAvailable => self.memory,
            EvictionSignal::AllocatableMemory => self.allocatable_memory,
            EvictionSignal::NodeFsAvailable => bytes(self.nodefs),
            EvictionSignal::NodeFsInodes => inodes(self.nodefs),
            EvictionSignal::ImageFsAvailable => bytes(self.imagefs),
            EvictionSignal::ImageFsInodes => inodes(self.imagefs),
            EvictionSignal::ContainerFsAvailable => bytes(containerfs),
            EvictionSignal::ContainerFsInodes => inodes(containerfs),
            EvictionSignal::PidAvailable => self.pids,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readings() {
        // EVICT-01 EVICT-02
        let fs = |available_bytes, inodes| FsInfo {
            capacity_bytes: 100,
            available_bytes,
            inodes,
            inodes_free: 3,
            ..FsInfo::default()
        };
        let all = |layout| Observations {
            layout,
            memory: ResourceReading::from_used(10, 12),
            nodefs: Some(fs(40, 9)),
            imagefs: Some(fs(50, 0)),
            pids: ResourceReading::from_used(0, 7),
            ..Observations::default()
        };
        let left = |layout, signal| all(layout).signal_reading(signal).map(|r| r.available);
        for (signal, one, separate, split) in [
            (EvictionSignal::MemoryAvailable, Some(0), Some(0), Some(0)),
            (EvictionSignal::AllocatableMemory, None, None, None),
            (
                EvictionSignal::NodeFsAvailable,
                Some(40),
                Some(40),
                Some(40),
            ),
            (EvictionSignal::NodeFsInodes, Some(3), Some(3), Some(3)),
            (
                EvictionSignal::ImageFsAvailable,
                Some(50),
                Some(50),
                Some(50),
            ),
            // A file system without a table of inodes.
            (EvictionSignal::ImageFsInodes, None, None, None),
            (
                EvictionSignal::ContainerFsAvailable,
                Some(40),
                Some(50),
                Some(40),
            ),
            (EvictionSignal::ContainerFsInodes, Some(3), None, Some(3)),
            (EvictionSignal::PidAvailable, None, None, None),
        ] {
            let found = [
                DiskLayout::OneDisk,
                DiskLayout::SeparateRuntime,
                DiskLayout::SplitImages,
            ]
            .map(|layout| left(layout, signal));
            assert_eq!(found, [one, separate, split], "{signal:?}");
        }
    }

    #[test]
    fn layouts() {
        // EVICT-01
        for (root, images, layers, want) in [
            (1, 1, 1, DiskLayout::OneDisk),
            (1, 1, 2, DiskLayout::OneDisk),
            (1, 2, 1, DiskLayout::SplitImages),
            (1, 2, 2, DiskLayout::SeparateRuntime),
        ] {
            let found = FileSystems {
                root,
                images,
                layers,
            };
            assert_eq!(found.layout(), want);
        }
    }
}
