//! The direct backend.

mod files;
mod mounts;
pub mod pod_init;
pub mod program;
pub mod record;
mod sandbox;
mod settings;
mod table;
pub mod cni;
mod gate;
