//! The whole program as a node of a cluster, over a strict stand-in for kube-apiserver.
//!
//! Needs root; says aloud if that is missing and skips. Every test has an agent on directories and cgroups of its own, and a
//! cluster of its own. Those with pods need what `tests/host` needs.

#[macro_use]
#[path = "../common/skipped.rs"]
mod skipped;

#[path = "../common/held_port.rs"]
mod held_port;
#[path = "../host/host.rs"]
#[expect(
    dead_code,
    reason = "more is used by the tests of a node without a cluster"
)]
mod host;
#[path = "../host/image.rs"]
mod image;
#[path = "../common/loop_disk.rs"]
#[expect(
    dead_code,
    reason = "more is used by the tests of a node without a cluster"
)]
mod loop_disk;
#[path = "../common/plugin.rs"]
#[expect(
    dead_code,
    reason = "more is used by the tests of a node without a cluster"
)]
mod plugin;
#[path = "../common/program.rs"]
mod program;

mod addresses;
mod bytes;
mod containerd;
mod debug;
mod flash;
mod hostile;
mod identity;
mod join;
mod k3s;
mod konnectivity;
mod kubeadm;
mod kubectl;
mod kubelet;
mod link;
mod member;
mod node;
mod objects;
mod own_network;
mod pods;
mod provider;
mod rest_memory;
mod server;
mod services;
mod stream_memory;
mod streams;
mod trust;
mod tunnel;
mod wire;
