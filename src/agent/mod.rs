//! The agent: the event loop, sync tasks and the executor. The only module that knows both decisions and effects.
//!
//! | file | what it is |
//! |---|---|
//! | `run` | assembly: from the command line to the loop |
//! | `core` | the deciding half of the loop, which owns what is known: events in, effects out |
//! | `event_loop` | the only loop that waits, and the executor of effects |
//! | `driver` | the seam above the runtime: what runs a pod |
//! | `external_pods` | the seam beside it: pods that no container runtime runs, for lists, streams, figures and logs |
//! | `executor` | how pods are run as containers, step by step |
//! | `parts`, `assembly` | what the agent is put together from, and how |
//! | `asker` | how others ask the loop |
//! | `claims` | who works on which pod |
//! | `relister` | who reads the runtime for the loop |
//! | `pollers`, `manifests` | outside worlds read as snapshots |
//! | `images` | everything that is known of images |
//! | `probes` | which containers are alive, ready, started |
//! | `eviction` | what is measured and thrown away when the node is short |
//! | `gc`, `housekeeping`, `records` | garbage, chores and records: carried out |
//! | `write_watch` | who writes much to the disk |
//! | `admission` | what admission knows of the node |
//! | `pods` | what is known of pods |
//! | `complaints`, `objects`, `pod_store`, `outcome`, `backoff_store`, `record`, `times`, `recorder`, `ring` | what is kept and told |
//! | `cluster` | the apiserver |
//! | `views`, `cluster_views` | what `cluster` is shown of the rest, and who shows it |
//! | `tasks`, `wake`, `waker_set` | small tools |
//! | `serving` | what is served over the network |
//! | `reset` | removes everything |
//! | `start_error` | how the agent ends, and why it cannot start |
//! | `neighbours` | who else runs pods on this machine |
//! | `kernel_log`, `kernel_settings` | which kills the kernel tells of; how it is set at start |
//! | `node`, `offered` | this machine as a node; which extended resources it has offered |
//! | `backend`, `streams`, `metrics`, `node_runtime` | what the server shows, the runtime as it is asked |
//! | `vitals` | what the agent notes of itself |
//!
//! One thread decides. A call of a worker is never dropped while its pod exists; it looks at its flag between steps.

mod admission;
mod allocation;
pub(crate) mod asker;
mod assembly;
mod backend;
mod backends;
mod backoff_store;
mod checkpoints;
mod claims;
pub(crate) mod clock;
pub(crate) mod cluster;
pub(crate) mod cluster_network;
mod cluster_views;
pub(crate) mod complaints;
mod core;
mod cpu_manager;
pub(crate) mod driver;
mod event_loop;
mod eviction;
pub(crate) mod executor;
pub(crate) mod external_pods;
mod gc;
mod housekeeping;
pub(crate) mod images;
mod inhibitor;
mod kept_node;
mod kernel_log;
pub(crate) mod kernel_settings;
mod link_budget;
mod link_cost;
mod link_limits;
pub(crate) mod link_policy;
mod log_rotation;
mod manifests;
mod metrics;
mod neighbours;
pub(crate) mod node;
pub(crate) mod node_resources;
mod node_runtime;
mod objects;
pub(crate) mod offered;
mod outcome;
mod parts;
pub(crate) mod pod_store;
mod pods;
mod pollers;
mod probes;
pub(crate) mod record;
pub(crate) mod recorder;
mod records;
mod relister;
mod removed;
mod reset;
mod ring;
mod run;
mod serving;
#[cfg(test)]
#[path = "../../tests/sim/mod.rs"]
mod sim;
mod start_error;
mod streams;
pub(crate) mod tasks;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod times;
mod views;
pub(crate) mod vitals;
pub(crate) mod wake;
pub(crate) mod waker_set;
mod write_watch;

pub use pod_store::RECORD_VERSION as POD_RECORD_VERSION;
#[cfg(any(test, fuzzing))]
pub(crate) use pod_store::fuzz;
pub use reset::{LockedReset, ResetError, ResetOptions, ResetPlan};
pub(crate) use run::find_start_faults;
pub use run::{ProgramName, ServiceManagerEnv, agent_main};
