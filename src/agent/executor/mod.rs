//! Calls of pod workers: plain `async fn`s, step by step.
//!
//! | file | what it is |
//! |---|---|
//! | `steps` | what a call is given, and what it tells the loop; `cancel`: whether it is still wanted |
//! | `errors` | why a call did not do all of its work |
//! | `prepare` | what every pod needs before it starts, wherever it runs |
//! | `sync`, `start` | brings a pod closer to its spec; starts its containers |
//! | `resize` | gives what runs other resources |
//! | `terminate`, `kill`, `hooks` | ends a pod; kills containers; runs their hooks |
//! | `generation`, `volumes`, `cgroups`, `user_ids` | from a spec to what the runtime is told, with what that needs on disk |
//!
//! None of it sees the state of the agent (`tests/layers.rs` holds that): what it must know comes with its
//! [`CallPlan`], what it did the loop hears as a [`CallStep`]. Nothing is kept between two calls. Files are read and
//! written on the disk lane.

mod cancel;
mod cgroups;
mod errors;
mod generation;
mod hooks;
mod kill;
mod prepare;
mod resize;
mod start;
mod steps;
mod sync;
mod terminate;
mod user_ids;
mod volumes;

pub(crate) use cancel::CallCancel;
pub(super) use cgroups::{
    PodCgroups, find_limitable_disk, read_cgroup_settings as cgroup_settings,
};
pub(crate) use errors::SyncError;
pub(crate) use generation::ConfigGenerator;
pub(super) use generation::{gather_node_context, resolver_warning};
pub(super) use hooks::HookRunner;
pub(super) use kill::PodKiller;
pub(crate) use kill::join_all;
pub(crate) use prepare::PodPreparer;
pub(super) use resize::PodResizer;
pub(super) use start::ContainerStarter;
pub(crate) use steps::{
    CallChannel, CallPlan, CallStep, ContainerStartResult, ContainerWaitReason, CrashLoopGrant,
    ResizeOrder, ResizeReport, StartProblem, StepSender, SyncOrders,
};
pub(super) use sync::PodSyncer;
pub(super) use terminate::PodTerminator;
pub(crate) use volumes::MountedVolumes;
pub(super) use volumes::VolumeMounter;
