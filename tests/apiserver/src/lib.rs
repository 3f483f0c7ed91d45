//! A test API server: a strict stand-in for kube-apiserver, for tests, demonstrations and measurements of the agent.
//!
//! It keeps objects in memory and treats them as upstream does where a node agent can tell the difference: versions
//! and conflicts, selectors, pages, watches, patches, graceful deletion, validation, the Node authorizer, NodeRestriction,
//! certificate requests and tokens. What it refuses or drops is written down, so that a test can demand that nothing
//! was. Faults are ordered with [`Faults`]; the clock is set forward with [`TestServer::advance`].
//!
//! ```text
//! server   sockets, TLS, threads          api       routes → reads, watches, writes, deletions, reviews
//! serve    one request: authn, faults     auth      authorizer, graph, NodeRestriction
//! http     HTTP/1.1                       rules     defaults and validation, per resource
//! store    objects, versions, history     schema    types: unknown fields, wrong types
//! managed  who wrote which field, if wanted
//! patch    merge, JSON, strategic         csr token pki   certificates and tokens
//! kubeadm supervisor   what kubeadm and k3s have for who joins
//! control  the log over HTTP              controllers     scheduler and node controllers, if wanted
//! ```
//!
//! What it does not have: protobuf, YAML bodies, server-side apply, OpenAPI, RBAC objects, admission webhooks,
//! quotas, workloads and their controllers.

#[cfg(test)]
#[macro_use]
#[path = "../../common/skipped.rs"]
mod skipped;
#[cfg(test)]
#[path = "../../common/held_port.rs"]
mod held_port;

mod api;
mod audit;
mod auth;
mod builder;
mod clock;
mod config;
mod control;
mod controllers;
mod core;
mod csr;
mod error;
mod faults;
mod http;
mod json;
mod kinds;
mod kubeadm;
mod managed;
mod patch;
mod path;
mod pki;
mod proxy;
mod remotedialer;
mod rules;
mod schema;
mod select;
mod serve;
mod server;
mod store;
mod supervisor;
#[cfg(test)]
mod tests;
mod token;
mod upgrade;

pub use audit::{Entry, Totals};
pub use auth::User;
pub use auth::authorize::Grant;
pub use builder::Builder;
pub use config::CsrMode;
pub use error::ApiError;
pub use faults::{Fault, Faults, Rule};
pub use pki::{Credentials, Identity};

use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};

use crate::core::Core;
use crate::json::text;
use crate::kinds::Kind;
use crate::server::Listener;
use crate::store::Store;

/// The bearer token of a machine that has no certificate yet.
pub const BOOTSTRAP_TOKEN: &str = "abcdef.0123456789abcdef";

/// Seconds that issued client certificates live.
const CLIENT_LIFE_S: i64 = 365 * 24 * 3600;

/// The last lines of the log that a failed wait shows.
const SHOWN_ENTRIES: usize = 20;

/// A lock, also after another thread's panic: the test has failed already.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A running server; ends with its value.
pub struct TestServer {
    core: Arc<Core>,
    listener: Listener,
    controllers: Option<JoinHandle<()>>,
    host: String,
}

/// The cluster at one instant, for [`TestServer::wait_for`].
pub struct View<'a>(&'a Store);

impl View<'_> {
    /// An object without its type; `ns` is empty for resources without namespaces.
    pub fn get(&self, plural: &str, ns: &str, name: &str) -> Option<&Value> {
        let kind = kinds::plural(plural)?;
        self.0.find(kind.storage(), ns, name).map(|o| &**o)
    }

    /// Objects of a resource, of all namespaces when `ns` is empty.
    pub fn list(&self, plural: &str, ns: &str) -> Vec<&Value> {
        let Some(kind) = kinds::plural(plural) else {
            return Vec::new();
        };
        let here = |ns_of: &str| ns.is_empty() || ns_of == ns;
        self.0
            .iter(kind.storage(), "")
            .filter(|(key, _)| here(&key.1))
            .map(|(_, object)| &**object)
            .collect()
    }

    /// The version of the latest write.
    pub fn resource_version(&self) -> u64 {
        self.0.rv()
    }
}

impl TestServer {
    /// Settings for a server.
    pub fn builder() -> Builder {
        Builder::default()
    }

    pub(crate) fn start(config: config::Config) -> io::Result<Self> {
        let host = config
            .hosts
            .first()
            .cloned()
            .unwrap_or_else(|| config.listen.ip().to_string());
        let core = Arc::new(Core::new(config).map_err(io::Error::other)?);
        let listener = Listener::start(Arc::clone(&core))?;
        let controllers = if core.config.controllers {
            let core = Arc::clone(&core);
            Some(
                std::thread::Builder::new()
                    .name("controllers".to_owned())
                    .spawn(move || controllers::run(&core))?,
            )
        } else {
            None
        };
        Ok(Self {
            core,
            listener,
            controllers,
            host,
        })
    }

    /// The port that it listens on.
    pub fn port(&self) -> u16 {
        self.core.port.load(Ordering::Relaxed)
    }

    /// `https://host:port`.
    pub fn url(&self) -> String {
        pki::url(&self.host, self.port())
    }

    /// The certificate authority, PEM.
    pub fn ca_pem(&self) -> &str {
        &self.core.of_servers().pem
    }

    /// Leaves in the cluster what kubeadm does, signed with each of these tokens, of which [`BOOTSTRAP_TOKEN`] may log in.
    /// Returns the digest of the CA.
    pub fn publish_as_kubeadm(&self, tokens: &[&str]) -> io::Result<String> {
        kubeadm::publish(&self.core, &self.url(), tokens).map_err(io::Error::other)?;
        for (subject, resource) in [
            ("system:unauthenticated", "configmaps"),
            (
                "system:bootstrappers:kubeadm:default-node-token",
                "configmaps",
            ),
            ("system:bootstrappers:kubeadm:default-node-token", "nodes"),
        ] {
            self.grant(subject, "get", resource);
        }
        Ok(kubeadm::pin(&self.core))
    }

    /// A whole token of k3s for what is behind the colons: with the digest of the CA before it.
    pub fn k3s_token(&self, secret: &str) -> String {
        format!("K10{}::{secret}", kubeadm::hex(self.ca_pem().as_bytes()))
    }

    /// Has k3s forget by which password it knew the node.
    pub fn forget_node_password(&self, node: &str) {
        if let Some(supervisor) = &self.core.supervisor {
            supervisor.forget(node);
        }
    }

    /// How many sessions of the tunnel of k3s a node has open.
    #[must_use]
    pub fn tunnel_sessions(&self, node: &str) -> usize {
        let supervisor = self.core.supervisor.as_ref();
        supervisor.map_or(0, |supervisor| supervisor.sessions.count(node))
    }

    /// Connects to a target of a node (`tcp/HOST:PORT`) through the tunnel of k3s.
    ///
    /// # Errors
    ///
    /// The node has no session.
    pub fn dial_in_tunnel(&self, node: &str, target: &str) -> io::Result<std::net::TcpStream> {
        let supervisor = self.core.supervisor.as_ref();
        let supervisor = supervisor.ok_or_else(|| io::Error::other("no server of k3s"))?;
        supervisor.sessions.dial(node, target)
    }

    /// What nodes have done in sessions that they must not.
    #[must_use]
    pub fn wrong_in_tunnels(&self) -> Vec<String> {
        let supervisor = self.core.supervisor.as_ref();
        supervisor.map_or_else(Vec::new, |supervisor| supervisor.sessions.wrong())
    }

    /// A client certificate for a user and groups, valid for `life` from now; zero gives one that has expired.
    pub fn credentials(
        &self,
        user: &str,
        groups: &[&str],
        life: Duration,
    ) -> io::Result<Credentials> {
        let now = self.core.clock.now_s();
        let life = i64::try_from(life.as_secs()).unwrap_or(i64::MAX);
        let to = if life == 0 { now - 1 } else { now + life };
        self.core
            .authority
            .client(user, groups, now - CLIENT_LIFE_S, to)
            .map_err(io::Error::other)
    }

    /// A kubeconfig for whoever that is, for a client that reaches the server under its own name.
    pub fn kubeconfig(&self, identity: &Identity) -> String {
        pki::kubeconfig(&self.url(), self.ca_pem(), identity)
    }

    /// A kubeconfig with the certificate of a node.
    pub fn kubeconfig_for_node(&self, name: &str) -> io::Result<String> {
        let user = format!("system:node:{name}");
        let life = Duration::from_secs(CLIENT_LIFE_S.unsigned_abs());
        let credentials = self.credentials(&user, &["system:nodes"], life)?;
        Ok(self.kubeconfig(&Identity::Certificate(credentials)))
    }

    /// A kubeconfig that may do everything.
    pub fn admin_kubeconfig(&self) -> io::Result<String> {
        let life = Duration::from_secs(CLIENT_LIFE_S.unsigned_abs());
        let credentials = self.credentials("admin", &["system:masters"], life)?;
        Ok(self.kubeconfig(&Identity::Certificate(credentials)))
    }

    /// A kubeconfig with [`BOOTSTRAP_TOKEN`].
    pub fn bootstrap_kubeconfig(&self) -> String {
        self.kubeconfig(&Identity::Token(BOOTSTRAP_TOKEN.to_owned()))
    }

    /// Writes `admin.kubeconfig` and `bootstrap.kubeconfig`.
    pub fn write_files(&self, dir: &Path) -> io::Result<()> {
        std::fs::create_dir_all(dir)?;
        std::fs::write(dir.join("admin.kubeconfig"), self.admin_kubeconfig()?)?;
        std::fs::write(
            dir.join("bootstrap.kubeconfig"),
            self.bootstrap_kubeconfig(),
        )?;
        Ok(())
    }

    fn kind(plural: &str) -> Result<&'static Kind, ApiError> {
        kinds::plural(plural).ok_or_else(ApiError::no_route)
    }

    /// Creates an object as administrator; without a namespace in `default`. Returns it as stored.
    pub fn create(&self, object: &Value) -> Result<Value, ApiError> {
        self.core.admin_create(object)
    }

    /// Reads an object.
    pub fn get(&self, plural: &str, ns: &str, name: &str) -> Option<Value> {
        let kind = kinds::plural(plural)?;
        let store = self.core.store();
        store
            .find(kind.storage(), ns, name)
            .map(|o| api::present(kind, o))
    }

    /// Reads all objects of a resource, of all namespaces when `ns` is empty.
    pub fn list(&self, plural: &str, ns: &str) -> Vec<Value> {
        let Some(kind) = kinds::plural(plural) else {
            return Vec::new();
        };
        let store = self.core.store();
        store
            .iter(kind.storage(), ns)
            .map(|(_, o)| api::present(kind, o))
            .collect()
    }

    /// Applies a merge patch as administrator; `sub` is `""`, `"status"`, `"approval"`, ….
    pub fn patch(
        &self,
        plural: &str,
        ns: &str,
        name: &str,
        sub: &str,
        patch: &Value,
    ) -> Result<Value, ApiError> {
        let kind = Self::kind(plural)?;
        let user = User::admin();
        let written = api::update(&self.core, &user, kind, ns, name, sub, false, |old| {
            let body = patch.to_string();
            let mut new = patch::apply("application/merge-patch+json", kind, old, body.as_bytes())?;
            schema::normalise(kind, &mut new).map_err(ApiError::bad_request)?;
            Ok(new)
        })?;
        Ok(api::present(kind, &written))
    }

    /// Deletes as administrator; `grace_s` of none takes the pod's own.
    pub fn delete(
        &self,
        plural: &str,
        ns: &str,
        name: &str,
        grace_s: Option<i64>,
    ) -> Result<Value, ApiError> {
        let options = json!({"gracePeriodSeconds": grace_s});
        api::delete(
            &self.core,
            &User::admin(),
            Self::kind(plural)?,
            ns,
            name,
            &options,
        )
    }

    /// Approves a certificate request, or denies it; an approved one is signed at once.
    pub fn decide_request(&self, name: &str, approve: bool) -> Result<Value, ApiError> {
        let ty = if approve { "Approved" } else { "Denied" };
        let condition =
            json!({"type": ty, "status": "True", "reason": "Test", "message": "decided by a test"});
        let plural = "certificatesigningrequests";
        self.patch(
            plural,
            "",
            name,
            "approval",
            &json!({"status": {"conditions": [condition]}}),
        )
    }

    /// Blocks until `find` finds something, looking after each change, and returns it.
    ///
    /// # Panics
    ///
    /// After `limit`, with the last requests.
    pub fn wait_for<T>(
        &self,
        what: &str,
        limit: Duration,
        mut find: impl FnMut(&View<'_>) -> Option<T>,
    ) -> T {
        let end = clock::instant() + limit;
        let mut store = self.core.store();
        loop {
            if let Some(found) = find(&View(&store)) {
                return found;
            }
            let left = end.saturating_duration_since(clock::instant());
            if left.is_zero() {
                drop(store);
                let entries = self.audit();
                let last: Vec<String> = entries
                    .iter()
                    .rev()
                    .take(SHOWN_ENTRIES)
                    .rev()
                    .map(|e| format!("{} {} {} {} {}", e.user, e.method, e.uri, e.code, e.message))
                    .collect();
                panic!(
                    "{what}: not within {limit:?}; last requests:\n{}",
                    last.join("\n")
                );
            }
            store = self.core.wait(store, left);
        }
    }

    /// Blocks until a pod has that phase, and returns the pod.
    pub fn wait_for_phase(&self, ns: &str, name: &str, phase: &str, limit: Duration) -> Value {
        self.wait_for(&format!("pod {ns}/{name} {phase}"), limit, |view| {
            let pod = view.get("pods", ns, name)?;
            (text(pod, "/status/phase") == phase).then(|| pod.clone())
        })
    }

    /// Blocks until an object is gone.
    pub fn wait_until_gone(&self, plural: &str, ns: &str, name: &str, limit: Duration) {
        self.wait_for(&format!("{plural} {ns}/{name} gone"), limit, |view| {
            view.get(plural, ns, name).is_none().then_some(())
        });
    }

    /// All requests since the start or [`TestServer::clear_audit`], oldest first.
    pub fn audit(&self) -> Vec<Entry> {
        self.core.audit.entries()
    }

    /// Requests that a correct client would not have sent; see [`Entry::is_wrong`].
    pub fn wrong(&self) -> Vec<Entry> {
        let mut entries = self.core.audit.entries();
        entries.retain(Entry::is_wrong);
        entries
    }

    /// Forgets the requests so far.
    pub fn clear_audit(&self) {
        self.core.audit.clear();
    }

    /// Bytes of all connections.
    pub fn totals(&self) -> Totals {
        self.core.audit.totals()
    }

    /// The faults, to add to.
    pub fn faults(&self) -> &Faults {
        &self.core.faults
    }

    /// Allows something that is allowed to nobody but administrators.
    pub fn grant(&self, subject: &str, verb: &str, resource: &str) {
        lock(&self.core.grants).push(Grant {
            subject: subject.to_owned(),
            verb: verb.to_owned(),
            resource: resource.to_owned(),
        });
    }

    /// The version of the latest write.
    pub fn resource_version(&self) -> u64 {
        self.core.store().rv()
    }

    /// Forgets the history: whoever asks for what was before gets 410.
    pub fn compact(&self) {
        self.core.store().compact();
        self.core.notify();
    }

    /// Restores the state of an earlier version, as etcd from a backup: later versions are given again, to other
    /// writes. Ends all watches, but no connection. False when that version is not kept.
    pub fn restore(&self, resource_version: u64) -> bool {
        let restored = self.core.store().restore(resource_version);
        self.core.notify();
        restored
    }

    /// Sets the server's clock forward: leases grow old, tokens and certificates expire.
    pub fn advance(&self, by: Duration) {
        self.core.clock.advance(by);
        self.core.notify();
    }

    /// Takes the server off the network, or puts it back: no connection lives, none is accepted. Its state stays.
    pub fn set_down(&self, down: bool) {
        self.core.faults.refuse_connections(down);
        if down {
            self.listener.shared.break_connections();
        }
    }

    /// Ends all threads; what is stored can still be read.
    pub fn stop(&mut self) {
        self.listener.stop();
        if let Some(thread) = self.controllers.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.stop();
    }
}
