//! Pages of `/metrics` and `/stats/summary`, made from figures that were read. Text comes out in pieces of bounded
//! size, as fast as its reader takes it; the figures are all that waits in memory.
//!
//! - [`exposition`]: the Prometheus text form. [`histogram`]: counts of durations. [`own`]: counts of the agent's work.
//!   [`probes`]: results of probes. [`claims`]: volumes of claims. [`containers`]: restarts and waiting containers.
//! - [`sample`]: figures of machine, pods and containers at one time. [`rate`]: rates from two of them.
//! - [`resource`], [`cadvisor`]: pages of these figures, family by family. [`summary`]: these figures as an object.

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
pub mod resizes;
pub mod resource;
pub mod sample;
pub mod summary;
