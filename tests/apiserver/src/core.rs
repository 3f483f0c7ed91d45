//! What all threads of a server share.

use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::{Value, json};

use crate::audit::Audit;
use crate::auth::User;
use crate::auth::authorize::Grant;
use crate::clock::Clock;
use crate::config::Config;
use crate::error::ApiError;
use crate::faults::Faults;
use crate::kinds;
use crate::lock;
use crate::pki::Authority;
use crate::store::{self, Store};
use crate::supervisor::Supervisor;
use crate::token::Signer;

/// Everything but sockets and threads.
pub(crate) struct Core {
    pub(crate) config: Config,
    store: Mutex<Store>,
    changed: Condvar,
    pub(crate) clock: Clock,
    pub(crate) authority: Authority,
    /// That of a k3s server, if it is one.
    pub(crate) supervisor: Option<Supervisor>,
    pub(crate) signer: Signer,
    pub(crate) audit: Audit,
    pub(crate) faults: Faults,
    pub(crate) grants: Mutex<Vec<Grant>>,
    pub(crate) port: AtomicU16,
    stopped: AtomicBool,
}

impl Core {
    /// A cluster with the namespaces and objects that every cluster has, and the configured nodes' identities.
    pub(crate) fn new(config: Config) -> Result<Self, ApiError> {
        let clock = Clock::default();
        let age_s = i64::try_from(config.ca_age.as_secs()).unwrap_or(0);
        let made_s = clock.now_s() - age_s;
        let authority = Authority::new(made_s).map_err(ApiError::internal)?;
        let supervisor = config
            .k3s
            .clone()
            .map(|(secret, egress)| Supervisor::new(made_s, secret, egress));
        let core = Self {
            supervisor: supervisor.transpose()?,
            store: Mutex::new(Store::new(store::HISTORY)),
            changed: Condvar::new(),
            signer: Signer::new().ok_or_else(|| ApiError::internal("no key for tokens"))?,
            authority,
            clock,
            audit: Audit::default(),
            faults: Faults::default(),
            grants: Mutex::new(Vec::new()),
            port: AtomicU16::new(0),
            stopped: AtomicBool::new(false),
            config,
        };
        core.store().graph_lag = core.config.graph_lag;
        for name in ["default", "kube-system", "kube-public", "kube-node-lease"] {
            core.admin_create(
                &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}),
            )?;
        }
        for (name, value) in [
            ("system-node-critical", 2_000_001_000),
            ("system-cluster-critical", 2_000_000_000),
        ] {
            core.admin_create(&json!({
                "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name},
                "value": value,
            }))?;
        }
        core.admin_create(&json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "kubernetes", "namespace": "default",
                "labels": {"component": "apiserver", "provider": "kubernetes"}},
            "spec": {"clusterIP": "10.96.0.1", "ports": [{"name": "https", "port": 443, "targetPort": 6443}]},
        }))?;
        Ok(core)
    }

    /// Whose certificate the server shows.
    pub(crate) fn of_servers(&self) -> &Authority {
        self.supervisor
            .as_ref()
            .map_or(&self.authority, |s| &s.authority)
    }

    /// The state; whoever changes it calls [`Core::notify`].
    pub(crate) fn store(&self) -> MutexGuard<'_, Store> {
        lock(&self.store)
    }

    pub(crate) fn notify(&self) {
        self.changed.notify_all();
    }

    /// Waits for the next change, at most so long.
    pub(crate) fn wait<'a>(
        &self,
        store: MutexGuard<'a, Store>,
        limit: Duration,
    ) -> MutexGuard<'a, Store> {
        self.changed
            .wait_timeout(store, limit)
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .0
    }

    pub(crate) fn stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
        self.faults.stop();
        // Under the lock, or a waiter could miss it.
        let store = self.store();
        self.notify();
        drop(store);
    }

    /// Creates an object of any stored kind as the cluster's administrator.
    pub(crate) fn admin_create(&self, object: &Value) -> Result<Value, ApiError> {
        let version = crate::json::text(object, "/apiVersion");
        let kind = kinds::find_kind(version, crate::json::text(object, "/kind"))
            .filter(|kind| kind.stored)
            .ok_or_else(|| ApiError::bad_request(format!("no such kind: {object}")))?;
        let ns = match crate::json::text(object, "/metadata/namespace") {
            "" if kind.namespaced => "default",
            ns => ns,
        };
        crate::api::create(
            self,
            &User::admin(),
            kind,
            ns,
            object.clone(),
            false,
            &mut Vec::new(),
        )
    }
}
