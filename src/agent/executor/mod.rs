//! Calls of pod workers: plain `async fn`s, step by step.
//!
//! | file | what it is |
//! |---|---|
//! | `steps` | what a call is given, and what it tells the loop; `cancel`: whether it is still wanted |
//! | `errors` | why a call did not do all of its work |
//! | `prepare` | what every pod needs before it starts, wherever it runs |
//! | `sync`, `start` | brings a pod closer to its spec; starts its containers |
//! | `terminate`, `kill`, `hooks` | ends a pod; kills containers; runs their hooks |
//! | `generation`, `volumes`, `cgroups` | from a spec to what the runtime is told, with what that needs on disk |
//!
//! None of it sees the state of the agent (`tests/layers.rs` holds that): what it must know comes with its [`Plan`], what it did
//! the loop hears as a [`Step`]. Nothing is kept between two calls. Files are read and written on the disk lane.

mod cancel;
mod cgroups;
mod errors;
mod generation;
mod hooks;
mod kill;
mod prepare;
mod start;
mod steps;
mod sync;
mod terminate;
mod volumes;

pub(crate) use cancel::Cancel;
pub(super) use cgroups::{PodCgroups, limited_disk, settings as cgroup_settings};
pub(crate) use errors::SyncError;
pub(crate) use generation::Generator;
pub(super) use generation::{node_context, resolver_warning};
pub(super) use hooks::Hooks;
pub(super) use kill::Killer;
pub(crate) use kill::join_all;
pub(crate) use prepare::Preparer;
pub(super) use start::Starter;
pub(crate) use steps::{Begun, Granted, Line, NotStarted, Plan, Problem, Started, Step, Tell};
pub(super) use sync::Syncer;
pub(super) use terminate::Terminator;
pub(crate) use volumes::Mounted;
pub(super) use volumes::Mounter;
