//! The agent: the event loop, sync tasks and the executor. The only module that knows both decisions and effects.
//!
//! | file | what it is |
//! |---|---|
//! | `run` | assembly: from the command line to the loop |
//! | `core` | the deciding half of the loop: events in, effects out |
//! | `event_loop` | the only loop that waits, and the executor of effects |
//! | `executor` | what carries out the calls of pod workers, step by step |
//! | `calls` | the calls that run: what they are given, and what the loop makes of their steps |
//! | `assembly` | what runs the calls, put together once |
//! | `sources` | pods of all sources on their way in |
//! | `asker` | how others ask the loop |
//! | `runtime_view`, `relister` | what is known of the runtime; who reads it |
//! | `pollers`, `manifests` | outside worlds read as snapshots |
//! | `images` | everything that is known of images |
//! | `probes` | which containers are alive, ready, started |
//! | `status`, `admission`, `gc`, `housekeeping` | facts gathered for `logic`, and its answers carried out |
//! | `pods` | what is known of pods |
//! | `ctx`, `complaints`, `objects`, `pod_store`, `outcome`, `backoff_store`, `recorder`, `records`, `ring` | what the loop and the calls share |
//! | `cluster` | the apiserver |
//! | `views`, `cluster_views` | what `cluster` is shown of the rest, and who shows it |
//! | `tasks`, `wake` | small tools |
//! | `serving` | what is served over the network |
//! | `reset` | removes everything |
//! | `neighbours` | who else runs pods on this machine |
//! | `node` | this machine as a node |
//! | `backend`, `streams`, `metrics`, `metered` | what the server shows |
//! | `questions` | where they are answered: one trait for each asker |
//! | `vitals` | what the agent notes of itself |
//!
//! One thread decides. A call of a worker is never dropped while its pod exists; it looks at its flag between steps.

mod admission;
mod asker;
mod assembly;
mod backend;
mod backoff_store;
mod calls;
mod clock;
mod cluster;
mod cluster_views;
mod complaints;
mod core;
mod ctx;
mod event_loop;
mod executor;
mod gc;
mod housekeeping;
mod images;
mod log_rotation;
mod manifests;
mod metered;
mod metrics;
mod neighbours;
mod node;
mod objects;
mod outcome;
mod pod_store;
mod pods;
mod pollers;
mod probes;
mod questions;
mod recorder;
mod records;
mod relister;
mod reset;
mod ring;
mod run;
mod runtime_view;
mod serving;
#[cfg(test)]
#[path = "../../tests/sim/mod.rs"]
mod sim;
mod sources;
mod status;
mod streams;
mod tasks;
#[cfg(test)]
mod tests;
mod views;
mod vitals;
mod wake;

#[cfg(any(test, fuzzing))]
pub(crate) use pod_store::fuzz;
pub use reset::{Choice, Reset, ResetError};
pub use run::{Manager, main};
