//! Every unsafe block and every clock read, one file per family of system calls.

pub mod bpf;
pub mod child;
pub mod clock;
pub mod confine;
#[cfg(feature = "services")]
pub(crate) mod conntrack;
#[cfg(test)]
pub(crate) mod counted_heap;
pub mod crash;
pub mod dirents;
pub mod disk_usage;
pub mod disk_wear;
pub mod file;
pub mod heap;
pub mod lane;
pub mod limits;
pub mod lock;
pub mod memory;
pub mod mount;
pub mod namespaces;
pub(crate) mod netlink;
pub mod notify;
pub mod on_term;
pub mod open;
pub mod pages;
pub mod pidfd;
pub mod pod_init_program;
pub mod proc;
pub mod readiness;
pub mod remove;
pub mod socket;
mod spawn;
pub mod start;
pub mod timer;
#[cfg(test)]
pub(crate) mod trace;
pub mod tty;
pub mod turn;
pub mod user_namespace;
pub mod xattr;
