//! The apiserver: transport and typed requests. The requests to send, and the reactions to answers, are decided
//! elsewhere.
//!
//! | module | content |
//! |---|---|
//! | [`api`] | the seam: trait [`KubeApi`], which the simulation implements too |
//! | [`requests`] | [`HttpApi`]: the seam over HTTP, by three clients |
//! | [`client`], [`connect`] | one exchange: connections, servers in turn, time limits, errors |
//! | [`kubeconfig`], [`credentials`], [`exec`] | address of the apiserver, and our credentials |
//! | [`stream`], [`body`] | lists of which one item at a time stands in memory |
//! | [`watch`], [`cancel`] | the doorbell |
//! | [`cluster_network`] | description of a cluster of k3s |
//! | [`cluster_reader`] | lists of objects that no node may read, by an identity of its own |
//! | [`bootstrap`], [`csr`], [`store`], [`x509`] | certificates: asked for, made, kept, read |
//! | [`join`] | clusters, before this machine is a node of one |
//! | [`lanes`] | the threads that all of this runs on |
//! | [`rate`], [`date`], [`path`], [`error`] | small parts of an exchange |
//!
//! Everything blocks and runs on lanes. Data of the apiserver is bounded before it is believed: it is trusted less than
//! files of root, and the server may be anybody until TLS says otherwise.
//!
//! Nothing here is started, read or allocated without a kubeconfig.

pub mod api;
pub mod authority;
mod body;
pub mod bootstrap;
pub mod cancel;
pub mod client;
pub mod cluster_network;
pub mod cluster_reader;
mod connect;
pub(crate) mod credentials;
pub mod csr;
mod date;
pub mod error;
pub mod exec;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
pub mod join;
pub mod kubeconfig;
pub mod lanes;
pub(crate) mod path;
pub mod rate;
pub mod requests;
pub mod store;
pub mod stream;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
pub mod watch;
pub mod x509;

pub use api::{CompleteList, KubeApi, PatchFormat};
pub use cancel::WatchCancel;
pub use client::{ClientTimeouts, KubeClient, SharedApiserver};
pub use cluster_reader::ClusterReader;
pub use error::{ApiError, KubeError};
pub use kubeconfig::{Kubeconfig, KubeconfigError};
#[cfg(test)]
pub(crate) use lanes::ThreadTransport;
pub use lanes::{DoorbellNews, KubeLanes, KubeTransport, TravelDelay, WatchDoorbell, WatchThread};
pub use requests::{HttpApi, RequestRates};
pub use watch::{WatchEnd, WatchEvent, WatchEventKind, WatchOptions};
