//! Eviction when the node runs short of a resource: thresholds, conditions, and the pod to evict (EVICT). Names follow
//! kubelet `pkg/kubelet/eviction`.
//!
//! | file | what it is |
//! |---|---|
//! | `threshold` | resources that may run short, and the amount of each that must be left, as an operator writes it |
//! | `observation` | amounts of all resources, at one time |
//! | `pressure` | thresholds that are met, since when, and the conditions that result |
//! | `rank` | order in which pods are evicted |
//! | `walks` | rounds in which the files of pods are counted, and the rank of a pod that could not be counted |
//! | `manager` | the rounds: observe, reclaim, measure, evict one pod, wait for its end |
//! | `local_storage` | a pod's own limits for its usage of the node's disk |
//! | `message` | message of the pod's status |
//!
//! Pods without limits of their own are not measured before a threshold is met.

mod local_storage;
mod manager;
mod message;
mod observation;
mod pressure;
mod rank;
mod threshold;
mod walks;

pub use local_storage::{StorageViolation, find_violation, has_storage_limit};
pub use manager::{
    EvictionAction, EvictionInput, EvictionManager, EvictionSettings, EvictionVictim,
    IMAGE_RECLAIM, MIN_POLL, MeasureScope, POLL, ReclaimTarget,
};
pub use message::{EvictionTexts, eviction_texts};
pub use observation::{DiskLayout, FileSystems, Observations, ResourceReading};
pub use pressure::{MetThreshold, PressureConditions, is_condition_held};
pub use rank::{ContainerFigures, EvictablePod, PodFigures, rank_candidates};
pub use threshold::{
    EvictionSignal, EvictionThreshold, StarvedResource, ThresholdError, ThresholdLimit,
    ThresholdMaps, parse_thresholds,
};
pub use walks::{MAX_WALKS, WalkResult, WalkRound};

/// Reason of the status and of the event of a pod that is evicted.
pub const EVICTED: &str = "Evicted";
/// Reason of the condition `DisruptionTarget` of a pod that the kubelet terminates.
pub const TERMINATION_BY_KUBELET: &str = "TerminationByKubelet";
/// Grace in seconds of a pod that is evicted for a hard threshold or a limit of its own.
pub const IMMEDIATE_GRACE_S: i64 = 1;
