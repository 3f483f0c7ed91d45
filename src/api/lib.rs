//! Kubernetes objects this agent uses: data only, no decisions and no effects.
//!
//! - [`meta`], [`pod`], [`pod_status`], [`config_map`]: the core/v1 kinds, limited to the fields the agent reads.
//!   What is not modelled here is kept in the pod record as received and takes part in the pod's digest.
//! - [`node`], [`lease`]: what the agent says of this machine.
//! - [`certificates`]: requests for certificates. [`service`], [`storage`]: what pods refer to. [`cluster_network`]: its
//!   ranges of addresses.
//! - [`stats`]: what runs costs. [`event`]: what was told of it. [`link`]: bytes that went over the link. [`route`]: a
//!   route of the kernel.
//! - [`cri`]: what crosses the runtime seam, in the words of CRI v1.
//! - [`device`]: what a look at the machine's devices shows. [`cdi`]: what files of their vendors say.
//! - [`oci`]: the OCI runtime configuration (`config.json`) and image configuration.
//! - [`health`]: what an agent says of itself.
//! - [`received`]: a pod on its way from a source to the pod table.
//! - [`strict`]: JSON text or value → typed value, with the path of what is wrong. [`yaml`]: value → YAML text.
//! - [`time`], [`quantity`], [`ids`], [`names`], [`mod@hex`]: small value types, which texts are names, and bytes as text.
//!
//! Every type decodes with absent fields at their Go zero value. `null` counts as absent: callers strip nulls
//! before decoding (`config::decode`).

extern crate alloc;

pub mod cdi;
pub mod certificates;
pub mod cluster_network;
pub mod config_map;
pub mod cri;
pub mod device;
pub mod event;
pub mod fnv;
pub mod health;
pub mod hex;
pub mod ids;
pub mod lease;
pub mod link;
pub mod log_memory;
pub mod meta;
pub mod names;
pub mod node;
pub mod oci;
pub mod order;
pub mod pod;
pub mod pod_error;
pub mod pod_status;
pub mod projected;
pub mod quantity;
pub mod received;
pub mod route;
pub mod runtime_class;
pub mod service;
pub mod stats;
pub mod storage;
pub mod strict;
pub mod tar_header;
pub mod time;
pub mod yaml;

pub use certificates::CertificateSigningRequest;
pub use config_map::{ConfigMap, Secret};
pub use event::Event;
pub use hex::encode_hex;
pub use ids::{ContainerId, PodUid, SandboxId};
pub use lease::Lease;
pub use meta::ObjectMeta;
pub use node::Node;
pub use pod::{Container, Pod, PodSpec};
pub use pod_error::PodError;
pub use pod_status::PodStatus;
pub use projected::ProjectedFile;
pub use quantity::Quantity;
pub use runtime_class::RuntimeClass;
pub use time::{MicroTime, MonoTime, WallTime};
