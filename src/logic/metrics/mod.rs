//! What `/metrics` and `/stats/summary` say, made from figures that were read. Text comes out in pieces of bounded size, as
//! fast as its reader takes it; the figures are all that waits in memory.
//!
//! - [`exposition`]: the Prometheus text form. [`histogram`]: counts of durations. [`own`]: what the agent counts. [`probes`]: what probes came to. [`claims`]: volumes of claims. [`containers`]: what their statuses say.
//! - [`sample`]: figures of everything that runs, as they were at one time. [`rate`]: what two of them tell.
//! - [`resource`], [`cadvisor`]: pages of figures, family by family. [`summary`]: the same as an object.

pub mod cadvisor;
pub mod claims;
pub mod containers;
mod evictions;
pub mod exposition;
pub mod histogram;
pub mod own;
mod plugins;
pub mod probes;
pub mod rate;
pub mod resource;
pub mod sample;
pub mod summary;
