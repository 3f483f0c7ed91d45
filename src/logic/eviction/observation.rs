//! Amounts of all resources, at one time (EVICT-02).

use super::threshold::Signal;
use crate::api::{Mono, cri::FsInfo};

/// Available and total amount of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Amount that is left.
    pub available: i64,
    /// Amount in all.
    pub capacity: i64,
}

impl Reading {
    /// Computes a reading from capacity and usage. `None`: the capacity is 0, which also stands for unknown.
    #[must_use]
    pub fn of_used(capacity: u64, used: u64) -> Option<Self> {
        Self::of(capacity, capacity.saturating_sub(used))
    }

    fn of(capacity: u64, available: u64) -> Option<Self> {
        let signed = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        (capacity > 0).then(|| Self {
            available: signed(available),
            capacity: signed(capacity),
        })
    }
}

/// Layout of images and writable layers over the node's file systems.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// All on one file system.
    #[default]
    OneDisk,
    /// Images and writable layers on a file system of their own.
    SeparateRuntime,
    /// Images alone on a file system of their own.
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
    /// Layout that these file systems make.
    #[must_use]
    pub const fn layout(self) -> Layout {
        if self.images == self.root {
            Layout::OneDisk
        } else if self.layers == self.root {
            Layout::SplitImages
        } else {
            Layout::SeparateRuntime
        }
    }
}

/// All resources that may run short. `None`: not known, and then none of their thresholds is met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Observations {
    /// Time of the observation.
    pub at: Mono,
    /// Layout of the file systems.
    pub layout: Layout,
    /// Memory of the node, less the working set of all processes.
    pub memory: Option<Reading>,
    /// The limit of all pods together, less their working set.
    pub allocatable_memory: Option<Reading>,
    /// The file system of the root directory.
    pub nodefs: Option<FsInfo>,
    /// The file system of the images.
    pub imagefs: Option<FsInfo>,
    /// Process numbers.
    pub pids: Option<Reading>,
}

impl Observations {
    /// Reading of one signal.
    #[must_use]
    pub fn reading(&self, signal: Signal) -> Option<Reading> {
        let containerfs = match self.layout {
            Layout::OneDisk | Layout::SplitImages => self.nodefs,
            Layout::SeparateRuntime => self.imagefs,
        };
        let bytes = |fs: Option<FsInfo>| {
            fs.and_then(|fs| Reading::of(fs.capacity_bytes, fs.available_bytes))
        };
        // File systems without an inode table say 0 of 0.
        let inodes = |fs: Option<FsInfo>| fs.and_then(|fs| Reading::of(fs.inodes, fs.inodes_free));
        match signal {
            Signal::MemoryAvailable => self.memory,
            Signal::AllocatableMemory => self.allocatable_memory,
            Signal::NodeFsAvailable => bytes(self.nodefs),
            Signal::NodeFsInodes => inodes(self.nodefs),
            Signal::ImageFsAvailable => bytes(self.imagefs),
            Signal::ImageFsInodes => inodes(self.imagefs),
            Signal::ContainerFsAvailable => bytes(containerfs),
            Signal::ContainerFsInodes => inodes(containerfs),
            Signal::PidAvailable => self.pids,
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
            memory: Reading::of_used(10, 12),
            nodefs: Some(fs(40, 9)),
            imagefs: Some(fs(50, 0)),
            pids: Reading::of_used(0, 7),
            ..Observations::default()
        };
        let left = |layout, signal| all(layout).reading(signal).map(|r| r.available);
        for (signal, one, separate, split) in [
            (Signal::MemoryAvailable, Some(0), Some(0), Some(0)),
            (Signal::AllocatableMemory, None, None, None),
            (Signal::NodeFsAvailable, Some(40), Some(40), Some(40)),
            (Signal::NodeFsInodes, Some(3), Some(3), Some(3)),
            (Signal::ImageFsAvailable, Some(50), Some(50), Some(50)),
            // A file system without a table of inodes.
            (Signal::ImageFsInodes, None, None, None),
            (Signal::ContainerFsAvailable, Some(40), Some(50), Some(40)),
            (Signal::ContainerFsInodes, Some(3), None, Some(3)),
            (Signal::PidAvailable, None, None, None),
        ] {
            let found = [
                Layout::OneDisk,
                Layout::SeparateRuntime,
                Layout::SplitImages,
            ]
            .map(|layout| left(layout, signal));
            assert_eq!(found, [one, separate, split], "{signal:?}");
        }
    }

    #[test]
    fn layouts() {
        // EVICT-01
        for (root, images, layers, want) in [
            (1, 1, 1, Layout::OneDisk),
            (1, 1, 2, Layout::OneDisk),
            (1, 2, 1, Layout::SplitImages),
            (1, 2, 2, Layout::SeparateRuntime),
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
