//! The agent on real containers, from the outside: manifests in, commands and the kernel's own view out.
//!
//! Needs root, runc, the CNI plugins, iptables and a static busybox; says aloud what is missing and skips. Every test has an
//! agent, a bridge, a subnet and cgroups of its own, and ends with nothing left of them.

#[macro_use]
#[path = "../common/skipped.rs"]
mod skipped;
#[path = "../common/dead_share.rs"]
mod dead_share;
#[path = "../common/evicted.rs"]
mod evicted;
#[path = "../common/held_port.rs"]
mod held_port;
#[path = "../common/lamps.rs"]
mod lamps;
#[path = "../common/loop_disk.rs"]
mod loop_disk;
#[path = "../common/plugin.rs"]
mod plugin;

mod host;
mod image;

mod cdi;
mod commands;
mod containerd;
mod cpus;
mod crash;
mod dashboard;
mod device_plugins;
mod devices;
mod eviction;
mod flash;
mod image_volumes;
mod inside;
mod installed;
mod live;
mod logs;
mod manifests;
mod metrics;
mod mischief;
mod objects;
mod older;
mod probes;
mod prometheus;
mod provider;
mod read_only;
mod restart;
mod service;
mod suite;
mod takeover;
mod updates;
mod upgrade;
mod url;
mod verify;
mod without_memory;
