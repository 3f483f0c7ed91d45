//! The whole agent over the fake runtime and a clock that tests move: from a manifest to the calls of the runtime.

mod admission;
pub(crate) mod api;
pub(in crate::agent) mod api_objects;
mod cluster;
mod cpus;
mod dates;
#[cfg(feature = "devices")]
mod devices;
pub(in crate::agent) mod drawn;
mod driver;
mod ends;
mod ephemeral;
mod eviction;
mod garbage;
pub(super) mod gauge;
mod images;
mod life;
mod member;
mod metrics;
mod node;
mod objects;
mod order;
mod probe_load;
pub(crate) mod probes;
mod replay;
mod resize;
mod runtime_class;
mod scaling;
mod shutdown;
mod suite;
mod sync;
mod trouble;
mod trust;
mod volumes;
pub(super) mod wire;
pub(crate) mod world;
mod writes;
