//! The agent whole, over the fake runtime and a clock that tests move: from a manifest to what the runtime was told.

mod garbage;
mod life;
mod sync;
mod trouble;
pub(super) mod world;
