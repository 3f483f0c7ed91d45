//! What a test chooses about the server.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

/// What happens to certificate requests of the kubelet's client signer.
///
/// Requests of other signers always wait for a test to approve them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CsrMode {
    /// Approved and signed at once, as kube-controller-manager does for bootstrap tokens and nodes.
    Auto,
    /// Nothing happens until a test approves; then they are signed.
    Manual,
}

/// Settings of a server. Made with [`crate::TestServer::builder`].
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) minor: u32,
    pub(crate) listen: SocketAddr,
    /// Further names and addresses in the certificate; the first is put into kubeconfigs.
    pub(crate) hosts: Vec<String>,
    pub(crate) csr: CsrMode,
    /// How long certificates live that answer requests.
    pub(crate) certificate_life: Duration,
    /// Bind pods, and do what the node controller does.
    pub(crate) controllers: bool,
    /// Objects have `metadata.managedFields`.
    pub(crate) managed_fields: bool,
    /// So long after its binding the Node authorizer learns of a pod.
    pub(crate) graph_lag: Duration,
    /// Bearer tokens beside those of service accounts: token, user, groups.
    pub(crate) tokens: BTreeMap<String, (String, Vec<String>)>,
    /// How old the authorities are.
    pub(crate) ca_age: Duration,
    /// It is a k3s server: `server:password`, and the mode of its egress selector.
    pub(crate) k3s: Option<(String, String)>,
    /// Fields of its configuration that a test has set.
    pub(crate) k3s_config: serde_json::Value,
    /// Nodes are reached through this proxy, under the first of their names.
    pub(crate) egress: Option<SocketAddr>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            minor: 36,
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            hosts: Vec::new(),
            csr: CsrMode::Auto,
            certificate_life: Duration::from_secs(365 * 24 * 3600),
            controllers: false,
            managed_fields: false,
            graph_lag: Duration::ZERO,
            tokens: BTreeMap::from([(
                crate::BOOTSTRAP_TOKEN.to_owned(),
                (
                    "system:bootstrap:abcdef".to_owned(),
                    vec![
                        "system:bootstrappers".to_owned(),
                        "system:bootstrappers:kubeadm:default-node-token".to_owned(),
                    ],
                ),
            )]),
            ca_age: Duration::ZERO,
            k3s: None,
            k3s_config: serde_json::Value::Null,
            egress: None,
        }
    }
}

impl Config {
    /// Whether pods have `metadata.generation`: since 1.33.
    pub(crate) fn pod_generation(&self) -> bool {
        self.minor >= 33
    }

    /// Whether a node's reads of pods and nodes are narrowed to its own: since 1.32.
    pub(crate) fn node_selectors(&self) -> bool {
        self.minor >= 32
    }

    /// How long a node may be silent: 40 s until 1.31, 50 s since.
    pub(crate) fn node_grace(&self) -> Duration {
        Duration::from_secs(if self.minor >= 32 { 50 } else { 40 })
    }

    pub(crate) fn git_version(&self) -> String {
        format!("v1.{}.0", self.minor)
    }
}
