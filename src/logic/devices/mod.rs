//! Devices that pods ask for by `limits` (DEV): what is declared, what of it is here, who holds what.
//!
//! | file | what it is |
//! |---|---|
//! | `glob` | patterns of device nodes |
//! | `declared` | the operator's entries, checked; `preset`: those that everybody needs |
//! | `units` | from a look at the machine to units with lasting ids |
//! | `demand` | what a pod asks for |
//! | `table` | resources, their units, their holders. Where a resource comes from does not matter here |
//!
//! A *unit* is what is given to one container as a whole: a node, or several that belong together.

mod declared;
mod demand;
mod glob;
mod preset;
mod table;
mod units;

pub use declared::{Declared, Entry, OnReplug, declared};
pub use demand::{Demand, demands};
pub use table::{
    Amount, Change, Found, Held, Holder, Number, PodDevices, Refusal, Shown, Table, Verdict, What,
    judge,
};
pub use units::{Given, given, units};

/// Units of all resources together (DEV-46).
pub const MAX_UNITS: usize = 256;
/// Entries of the configuration.
pub const MAX_ENTRIES: usize = 64;
/// Alternatives of an entry, and members of a group.
pub const MAX_MATCHES: usize = 16;
/// Pods that may hold one unit at once.
pub const MAX_SHARES: u32 = 1024;
