//! Settings of a server, one method each.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use crate::TestServer;
use crate::config::{Config, CsrMode};

/// Made by [`TestServer::builder`]; ends with [`Builder::start`].
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Builder(Config);

impl Builder {
    /// The minor version that it behaves as: 30 to 36. Pods have a generation since 33, a node's reads are narrowed
    /// to its own since 32.
    pub fn version(mut self, minor: u32) -> Self {
        self.0.minor = minor;
        self
    }

    /// Whether objects say who wrote which field.
    pub fn managed_fields(mut self, on: bool) -> Self {
        self.0.managed_fields = on;
        self
    }

    /// How long after its binding the Node authorizer learns of a pod; at once otherwise.
    pub fn graph_lag(mut self, lag: Duration) -> Self {
        self.0.graph_lag = lag;
        self
    }

    /// Where to listen; 127.0.0.1 and a free port otherwise.
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.0.listen = address;
        self
    }

    /// A further name or address in the certificate; the first one is put into kubeconfigs.
    pub fn host(mut self, host: &str) -> Self {
        self.0.hosts.push(host.to_owned());
        self
    }

    /// What happens to certificate requests.
    pub fn csr(mut self, mode: CsrMode) -> Self {
        self.0.csr = mode;
        self
    }

    /// How long certificates live that answer requests.
    pub fn certificate_life(mut self, life: Duration) -> Self {
        self.0.certificate_life = life;
        self
    }

    /// Bind pods to nodes, and do to nodes and their pods what the node controllers do.
    pub fn controllers(mut self, on: bool) -> Self {
        self.0.controllers = on;
        self
    }

    /// How long ago the authorities were made. They hold for ten years.
    pub fn ca_age(mut self, age: Duration) -> Self {
        self.0.ca_age = age;
        self
    }

    /// Be a server of k3s, with this secret (`server:password`, as in `node-token`) and this mode of the egress selector.
    pub fn k3s(mut self, secret: &str, egress: &str) -> Self {
        self.0.k3s = Some((secret.to_owned(), egress.to_owned()));
        self
    }

    /// Have these fields in the configuration that a server of k3s gives its nodes.
    pub fn k3s_config(mut self, fields: serde_json::Value) -> Self {
        self.0.k3s_config = fields;
        self
    }

    /// Reach nodes through a proxy that takes `CONNECT` (an egress of the type HTTPConnect), by their host names: what
    /// `EgressSelectorConfiguration` and `--kubelet-preferred-address-types=Hostname` ask for.
    pub fn egress(mut self, proxy: SocketAddr) -> Self {
        self.0.egress = Some(proxy);
        self
    }

    /// Starts it.
    ///
    /// # Errors
    ///
    /// The address is taken, or no thread can be had.
    pub fn start(self) -> io::Result<TestServer> {
        TestServer::start(self.0)
    }
}
