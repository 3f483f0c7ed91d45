//! What is done when the node runs short: thresholds, conditions, and which pod goes (EVICT). Names follow kubelet
//! `pkg/kubelet/eviction`.
//!
//! | file | what it is |
//! |---|---|
//! | `threshold` | what may run short, and how much of it must be left: as an operator writes it |
//! | `observation` | how much there is, of everything, at one time |
//! | `pressure` | which thresholds are met, since when, and which conditions that makes |
//! | `rank` | in which order pods go |
//! | `walks` | whose files are counted when, and what a pod is taken for that could not be counted |
//! | `manager` | the rounds: look, reclaim, measure, evict one pod, wait for its end |
//! | `local_storage` | what a pod may have on the node's disk by its own limits |
//! | `message` | what the pod's status says |
//!
//! Nothing of pods is measured before a threshold is met.

mod local_storage;
mod manager;
mod message;
mod observation;
mod pressure;
mod rank;
mod threshold;
mod walks;

pub use local_storage::{Violation, is_limited, violation};
pub use manager::{
    Action, IMAGE_RECLAIM, Input, MIN_POLL, Manager, Measure, POLL, Reclaim, Settings, Victim,
};
pub use message::{Words, eviction};
pub use observation::{FileSystems, Layout, Observations, Reading};
pub use pressure::{Conditions, Short, is_recent};
pub use rank::{Candidate, ContainerFigures, PodFigures, rank};
pub use threshold::{Limit, Signal, Starved, Threshold, ThresholdError, Written, thresholds};
pub use walks::{MAX_WALKS, Walked, Walks};

/// Reason of the status and of the event of a pod that is evicted.
pub const EVICTED: &str = "Evicted";
/// Reason of the condition `DisruptionTarget` of a pod that the node itself ends.
pub const TERMINATION_BY_KUBELET: &str = "TerminationByKubelet";
/// Grace of a pod that goes because a hard threshold is met, or a limit of its own, seconds.
pub const IMMEDIATE_GRACE_S: i64 = 1;
