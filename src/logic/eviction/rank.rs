//! Order in which pods are evicted (EVICT-08 to EVICT-10).

use alloc::{string::String, vec::Vec};
use core::cmp::Ordering;

use super::{
    observation::DiskLayout,
    threshold::{EvictionSignal, StarvedResource},
};
use crate::api::{PodUid, Quantity, order::OrderExt as _, stats::DiskUsage};

/// Usage of a container. `None`: not measured, or too much to be counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerFigures {
    /// Name of the container in the pod.
    pub name: String,
    /// Working set, bytes.
    pub memory_bytes: Option<u64>,
    /// Files of the writable layer, above the image.
    pub rootfs: Option<DiskUsage>,
    /// Logs of the container.
    pub logs: Option<DiskUsage>,
}

/// Usage of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodFigures {
    /// Working set, bytes.
    pub memory_bytes: Option<u64>,
    /// Number of processes and threads.
    pub processes: Option<u64>,
    /// Running containers.
    pub containers: Vec<ContainerFigures>,
    /// Volumes on the node's disk, by name, and other data that is kept there for the pod.
    pub volumes: Vec<(String, DiskUsage)>,
}

impl PodFigures {
    /// Usage of the file system that a signal watches.
    fn disk_usage(&self, signal: EvictionSignal, layout: DiskLayout) -> DiskUsage {
        let (has_layers, has_other_files) = contents_of_filesystem(signal, layout);
        let mut sum = DiskUsage::default();
        for container in &self.containers {
            let rootfs = container.rootfs.filter(|_| has_layers);
            let logs = container.logs.filter(|_| has_other_files);
            rootfs.into_iter().chain(logs).for_each(|used| sum += used);
        }
        if has_other_files {
            self.volumes.iter().for_each(|(_, used)| sum += *used);
        }
        sum
    }

    /// Bytes that the pod uses of the node's disk in all.
    #[must_use]
    pub(super) fn ephemeral_bytes(&self) -> u64 {
        let files = self.containers.iter().flat_map(|c| [c.rootfs, c.logs]);
        let volumes = self.volumes.iter().map(|(_, used)| Some(*used));
        let all = files.chain(volumes).flatten().map(|used| used.used_bytes);
        all.fold(0, u64::saturating_add)
    }
}

/// Returns two flags for the file system that a signal watches. The first is set if writable layers are on it, the
/// second if logs and volumes are.
const fn contents_of_filesystem(signal: EvictionSignal, layout: DiskLayout) -> (bool, bool) {
    match (layout, signal) {
        (
            DiskLayout::SeparateRuntime,
            EvictionSignal::NodeFsAvailable | EvictionSignal::NodeFsInodes,
        ) => (false, true),
        (DiskLayout::SeparateRuntime, _) => (true, false),
        (
            DiskLayout::SplitImages,
            EvictionSignal::ImageFsAvailable | EvictionSignal::ImageFsInodes,
        ) => (false, false),
        (DiskLayout::OneDisk | DiskLayout::SplitImages, _) => (true, true),
    }
}

/// Pod that might be evicted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EvictablePod {
    /// The pod.
    pub uid: PodUid,
    /// Set for a critical pod, which is never evicted.
    pub critical: bool,
    /// `spec.priority`; 0 without one.
    pub priority: i32,
    /// Request for memory, bytes.
    pub memory_request: i64,
    /// Request for ephemeral storage, bytes.
    pub storage_request: i64,
    /// `spec.terminationGracePeriodSeconds`.
    pub grace_s: Option<i64>,
    /// Usage of the pod; `None`: not known.
    pub figures: Option<PodFigures>,
}

impl EvictablePod {
    /// Usage of the signal's resource; `None`: not known.
    fn used_amount(&self, signal: EvictionSignal, layout: DiskLayout) -> Option<i64> {
        let figures = self.figures.as_ref()?;
        let signed = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        Some(match signal.starved_resource() {
            StarvedResource::Memory => signed(figures.memory_bytes.unwrap_or(0)),
            StarvedResource::EphemeralStorage => {
                signed(figures.disk_usage(signal, layout).used_bytes)
            }
            StarvedResource::Inodes => signed(figures.disk_usage(signal, layout).inodes_used),
            StarvedResource::Pids => signed(figures.processes.unwrap_or(0)),
        })
    }

    /// Request for the signal's resource; 0 for resources that cannot be requested.
    const fn requested_amount(&self, signal: EvictionSignal) -> i64 {
        match signal.starved_resource() {
            StarvedResource::Memory => self.memory_request,
            StarvedResource::EphemeralStorage => self.storage_request,
            StarvedResource::Inodes | StarvedResource::Pids => 0,
        }
    }

    /// Usage of the signal's resource and request for it, as messages write them.
    #[must_use]
    pub fn used_and_requested(
        &self,
        signal: EvictionSignal,
        layout: DiskLayout,
    ) -> (Option<Quantity>, Quantity) {
        let used = self
            .used_amount(signal, layout)
            .map(|used| signal.format_amount(used));
        (used, signal.format_amount(self.requested_amount(signal)))
    }
}

/// Sorts the pods: the first one is evicted first.
pub fn rank_candidates(
    candidates: &mut [EvictablePod],
    signal: EvictionSignal,
    layout: DiskLayout,
) {
    let used = |pod: &EvictablePod| pod.used_amount(signal, layout);
    let request = |pod: &EvictablePod| pod.requested_amount(signal);
    // The pod with the larger excess is evicted sooner. An unknown usage counts as the largest.
    let excess =
        |pod: &EvictablePod| used(pod).map_or(i64::MAX, |used| used.saturating_sub(request(pod)));
    let exceeds = |pod: &EvictablePod| excess(pod) > 0;
    candidates.stable_sort_by(|a, b| {
        let by_excess = match signal.starved_resource() {
            StarvedResource::Memory
            | StarvedResource::EphemeralStorage
            | StarvedResource::Inodes => {
                let unknown = a.figures.is_none().cmp(&b.figures.is_none()).reverse();
                unknown.then(exceeds(a).cmp(&exceeds(b)).reverse())
            }
            StarvedResource::Pids => Ordering::Equal,
        };
        by_excess
            .then(a.priority.cmp(&b.priority))
            .then(excess(a).cmp(&excess(b)).reverse())
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn disk(used_bytes: u64, inodes_used: u64) -> Option<DiskUsage> {
        Some(DiskUsage {
            used_bytes,
            inodes_used,
        })
    }

    fn pod(uid: &str, priority: i32, request: i64, figures: Option<PodFigures>) -> EvictablePod {
        EvictablePod {
            uid: uid.into(),
            priority,
            memory_request: request,
            storage_request: request,
            figures,
            ..EvictablePod::default()
        }
    }

    fn order(
        mut pods: Vec<EvictablePod>,
        signal: EvictionSignal,
        layout: DiskLayout,
    ) -> Vec<String> {
        rank_candidates(&mut pods, signal, layout);
        pods.iter().map(|pod| pod.uid.as_str().into()).collect()
    }

    #[test]
    fn by_memory() {
        // EVICT-08 EVICT-09 EVICT-10
        let takes = |uid, priority, request, memory| {
            let figures = PodFigures {
                memory_bytes: Some(memory),
                ..PodFigures::default()
            };
            pod(uid, priority, request, Some(figures))
        };
        let pods = vec![
            takes("under, low", -5, 100, 90),
            takes("over, high", 9, 100, 500),
            takes("over, a little", 0, 100, 101),
            // The request decides, not the QoS class.
            takes("best effort", 0, 0, 50),
            takes("over, much", 0, 100, 300),
            takes("under, high", 7, 100, 10),
            takes("exactly", -5, 100, 100),
            pod("not known", 9, 0, None),
        ];
        let want = [
            "not known",
            "over, much",
            "best effort",
            "over, a little",
            "over, high",
            "exactly",
            "under, low",
            "under, high",
        ];
        for signal in [
            EvictionSignal::MemoryAvailable,
            EvictionSignal::AllocatableMemory,
        ] {
            assert_eq!(order(pods.clone(), signal, DiskLayout::OneDisk), want);
        }
        let (used, asked) =
            pods[1].used_and_requested(EvictionSignal::MemoryAvailable, DiskLayout::OneDisk);
        assert_eq!(
            (used.expect("known").as_str(), asked.as_str()),
            ("500", "100")
        );
        assert_eq!(
            pods[7]
                .used_and_requested(EvictionSignal::PidAvailable, DiskLayout::OneDisk)
                .0,
            None
        );
    }

    #[test]
    fn by_disk() {
        // EVICT-09
        let takes = |uid, priority, request, rootfs, logs, volume: u64| {
            let figures = PodFigures {
                containers: vec![ContainerFigures {
                    rootfs: disk(rootfs, 1),
                    logs: disk(logs, 1),
                    ..ContainerFigures::default()
                }],
                volumes: vec![("v".into(), disk(volume, volume).expect("some"))],
                ..PodFigures::default()
            };
            pod(uid, priority, request, Some(figures))
        };
        let pods = || {
            vec![
                takes("layer", 0, 100, 300, 0, 0),
                takes("logs", 0, 100, 0, 200, 0),
                takes("volume", 0, 100, 0, 0, 150),
                takes("under", -9, 1000, 300, 300, 300),
                pod("not known", 9, 0, None),
            ]
        };
        use DiskLayout::{OneDisk, SeparateRuntime, SplitImages};
        for (signal, layout, want) in [
            (
                EvictionSignal::NodeFsAvailable,
                OneDisk,
                ["not known", "layer", "logs", "volume", "under"],
            ),
            (
                EvictionSignal::ImageFsAvailable,
                OneDisk,
                ["not known", "layer", "logs", "volume", "under"],
            ),
            (
                EvictionSignal::NodeFsAvailable,
                SeparateRuntime,
                ["not known", "logs", "volume", "under", "layer"],
            ),
            (
                EvictionSignal::ImageFsAvailable,
                SeparateRuntime,
                ["not known", "layer", "under", "logs", "volume"],
            ),
            (
                EvictionSignal::ContainerFsAvailable,
                SplitImages,
                ["not known", "layer", "logs", "volume", "under"],
            ),
            // An image disk has no files of pods.
            (
                EvictionSignal::ImageFsAvailable,
                SplitImages,
                ["not known", "under", "layer", "logs", "volume"],
            ),
            // Without requests every pod exceeds them.
            (
                EvictionSignal::NodeFsInodes,
                OneDisk,
                ["not known", "under", "volume", "layer", "logs"],
            ),
        ] {
            assert_eq!(order(pods(), signal, layout), want, "{signal:?} {layout:?}");
        }
    }

    #[test]
    fn by_processes() {
        // EVICT-09
        let takes = |uid, priority, processes| {
            let figures = PodFigures {
                processes: Some(processes),
                ..PodFigures::default()
            };
            pod(uid, priority, 0, Some(figures))
        };
        let pods = vec![
            takes("many, high", 5, 900),
            takes("few", 0, 3),
            takes("many", 0, 400),
            pod("not known", 0, 0, None),
            pod("not known, high", 5, 0, None),
        ];
        assert_eq!(
            order(pods, EvictionSignal::PidAvailable, DiskLayout::OneDisk),
            ["not known", "many", "few", "not known, high", "many, high"]
        );
    }
}
