//! The agent whole, over the fake runtime and a clock that tests move: from a manifest to what the runtime was told.

pub(super) mod api;
pub(in crate::agent) mod api_objects;
mod cluster;
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
mod probes;
mod replay;
mod runtime_class;
mod shutdown;
mod sync;
mod trouble;
mod volumes;
pub(super) mod wire;
pub(super) mod world;
