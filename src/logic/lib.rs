//! Pure decisions: plain data in, next state and a list of effects out.
//!
//! No code here names a clock, file, socket, thread, environment or unordered map: there is no `std` to name.
#![no_std]
#![warn(
    clippy::std_instead_of_core,
    clippy::std_instead_of_alloc,
    clippy::wildcard_enum_match_arm
)]

#[macro_use]
extern crate alloc;
#[cfg(test)]
extern crate std;

pub use api::fnv;
use picolet_api as api;

// Sources.
pub mod api_pod;
pub mod api_poll;
#[cfg(test)]
mod api_sim;
pub mod declared_features;
pub mod defaults;
pub mod digest;
pub mod mux;
pub mod object_fields;
pub mod spelling;
pub mod static_pod;
pub mod validation;

// Inputs of containers: configuration, files, resources.
pub mod bound_volume;
pub mod capabilities;
pub mod cgroup;
pub mod checkpoint;
pub mod cpu_manager;
pub mod cpu_set;
pub mod dns;
pub mod downward;
pub mod env;
pub mod expansion;
pub mod extended_resources;
mod fields;
pub mod generate;
pub mod hosts;
pub mod object_table;
pub mod oci;
pub mod outcome;
pub mod page_size;
pub mod pod_refs;
pub mod pod_resources;
pub mod process;
pub mod projection;
pub mod seccomp;
pub mod security;
pub mod service_env;
pub mod spec_hash;
pub mod token;
pub mod trust_bundle;
pub mod user;
pub mod user_namespaces;

// Pods, containers, statuses and the node.
pub mod access;
pub mod actions;
pub mod admission;
pub mod authority;
pub mod backoff;
pub mod certificate_versions;
pub mod certificates;
pub mod check;
pub mod clock_history;
pub mod conditions;
pub mod container_copy;
pub mod container_status;
#[cfg(feature = "dashboard")]
pub mod dashboard;
#[cfg(feature = "devices")]
pub mod devices;
pub mod dispatch;
pub mod events;
pub mod eviction;
pub mod field_selector;
pub mod flash;
pub mod gc;
pub mod housekeeping;
pub mod image_access;
pub mod image_gc;
pub mod image_names;
pub mod jsonpath;
pub mod kernel_log;
pub mod kill;
pub mod label_selector;
pub mod lease;
pub mod link_budget;
pub mod link_cost;
pub mod log_budget;
pub mod loop_health;
pub mod metrics;
pub mod mirror;
pub mod node;
pub mod node_logs;
pub mod node_resources;
pub mod node_selector;
pub mod pleg;
pub mod pod_certificate;
pub mod pod_kind;
#[cfg(feature = "pod-network")]
pub mod pod_network;
pub mod pod_table;
pub mod pod_worker;
pub mod pod_writes;
pub mod preemption;
pub mod probe;
#[cfg(feature = "provider")]
pub mod provider;
pub mod pull_rate;
pub mod qos;
pub mod reason_cache;
pub mod resize;
pub mod restart;
pub mod runtime_cache;
pub mod server_clock;
#[cfg(feature = "services")]
pub mod services;
pub mod shutdown;
pub mod status;
pub mod status_cache;
pub mod status_patch;
pub mod status_update;
pub mod status_writer;
pub mod sysctl;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod text;
#[cfg(feature = "tunnel")]
pub mod tunnel;
#[cfg(feature = "update")]
pub mod update;
pub mod work_queue;
