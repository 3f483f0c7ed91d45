//! Picolet: a kubelet for very small machines.
//!
//! Arrows point one way: `main → agent → logic → api` and `agent → effects → sys`. Effects and logic share `api` and
//! nothing else; only `agent` knows both.
//!
//! | module | what it is |
//! |---|---|
//! | [`api`] | Kubernetes objects and the runtime seam's data; a crate of its own |
//! | [`logic`] | pure decisions, without `std`; a crate of its own |
//! | [`agent`] | the event loop, sync tasks, the executor; the only one that knows logic and effects |
//! | [`grpc`] | HTTP/2, HPACK and protobuf, without I/O; client and server; a crate of its own |
//! | [`config`] | KubeletConfiguration, flags, defaults with units |
//! | [`source`] | sources of pods: manifest directory, URL |
//! | [`runtime`] | traits `RuntimeService`, `ImageService`; `runc`, the direct backend |
//! | [`shim`] | the process beside each container that outlives the agent |
//! | [`image`], [`volume`], [`cgroup`] | one world each |
//! | [`probe`] | probes of containers: HTTP, TCP, gRPC |
//! | [`kube`] | the apiserver: client, credentials, requests, the doorbell |
//! | [`bus`] | systemd and logind, by D-Bus |
//! | [`parts`] | features that a node can be without, each a folder and a cargo feature |
//! | [`net`] | the way to servers: names, proxies, TLS |
//! | [`server`] | HTTP over the unix socket |
//! | [`stream`] | protocols of exec, attach, port-forward, pure: SPDY, WebSocket |
//! | [`cli`] | the command line, and the local commands |
//! | [`sys`] | every unsafe block, every clock read |

extern crate alloc;

#[cfg(test)]
#[macro_use]
#[path = "../tests/common/skipped.rs"]
mod skipped;
#[cfg(test)]
#[path = "../tests/common/dead_share.rs"]
mod dead_share;
#[cfg(test)]
#[path = "../tests/common/held_port.rs"]
mod held_port;
#[cfg(any(test, fuzzing))]
mod testing;

pub mod agent;
pub mod bus;
pub mod cgroup;
pub mod cli;
pub mod config;
pub mod error;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod image;
pub mod kube;
pub mod net;
pub mod parts;
pub mod probe;
pub mod runtime;
pub mod server;
pub mod shim;
pub mod source;
pub mod stream;
pub mod sys;
pub mod volume;

pub use picolet_api as api;
pub use picolet_grpc as grpc;
pub use picolet_logic as logic;

/// Version of this build.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
