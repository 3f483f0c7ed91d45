//! Pure decisions: plain data in, next state and a list of effects out.
//!
//! Nothing here names a clock, file, socket, thread, environment or unordered map; `tests/layers.rs` holds it.
#![warn(
    clippy::std_instead_of_core,
    clippy::std_instead_of_alloc,
    clippy::wildcard_enum_match_arm
)]

pub mod capabilities;
pub mod dns;
pub mod downward;
pub mod env;
pub mod expansion;
pub mod hosts;
pub mod oci;
pub mod seccomp;
pub mod service_env;
pub mod user;
