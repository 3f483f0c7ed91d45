//! The control plane of the demo: the real programs if they are on `PATH`, otherwise the test API server.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use super::{
    audit::{self, Asked},
    client::Client,
    double::Double,
    real::{PROGRAMS, Real},
};
use crate::{Failure, process::find};

/// Not the node.
const ADMINISTRATOR: &str = "admin";

enum Kind {
    Real(Real),
    Double(Double),
}

/// A control plane with all its files in one directory; it ends with its value.
pub(super) struct Plane {
    dir: PathBuf,
    kind: Kind,
    /// As administrator.
    pub(super) client: Client,
}

/// What of a real control plane is not on `PATH`.
pub(super) fn missing() -> Vec<&'static str> {
    let absent = |name: &&str| find(name).is_none();
    PROGRAMS.into_iter().filter(absent).collect()
}

impl Plane {
    pub(super) fn start(dir: &Path) -> Result<Self, Failure> {
        fs::create_dir_all(dir)?;
        let (kind, client) = if missing().is_empty() {
            let (real, client) = Real::start(dir)?;
            (Kind::Real(real), client)
        } else {
            let (double, client) = Double::start(&Double::build()?, dir, &[])?;
            (Kind::Double(double), client)
        };
        Ok(Self {
            dir: dir.to_owned(),
            kind,
            client,
        })
    }

    /// With the token that a new node joins by.
    pub(super) fn bootstrap_kubeconfig(&self) -> PathBuf {
        self.dir.join("bootstrap.kubeconfig")
    }

    /// Nobody is answered any more.
    pub(super) fn down(&mut self) -> Result<(), Failure> {
        match &mut self.kind {
            Kind::Real(real) => {
                real.down();
                Ok(())
            }
            Kind::Double(double) => double.set_down(&self.client, true),
        }
    }

    /// Everybody is answered again.
    pub(super) fn up(&mut self) -> Result<(), Failure> {
        match &mut self.kind {
            Kind::Real(real) => real.up(&self.client),
            Kind::Double(double) => double.set_down(&self.client, false),
        }
    }

    /// Whether it has controllers of Deployments, DaemonSets and Jobs.
    pub(super) fn runs_workloads(&self) -> bool {
        matches!(self.kind, Kind::Real(_))
    }

    /// Its processes.
    pub(super) fn pids(&self) -> Vec<u32> {
        match &self.kind {
            Kind::Real(real) => real.pids(),
            Kind::Double(double) => vec![double.pid()],
        }
    }

    /// What `kubectl` shows, where there is one.
    pub(super) fn kubectl(&self, words: &[&str]) -> Result<Option<String>, Failure> {
        match &self.kind {
            Kind::Real(real) => real.kubectl(words).map(Some),
            Kind::Double(_) => Ok(None),
        }
    }

    /// What the node has asked so far.
    pub(super) fn asked(&self) -> Result<Vec<Asked>, Failure> {
        let mut all = match &self.kind {
            Kind::Real(_) => audit::of_log(&self.dir.join("audit.log"))?,
            Kind::Double(_) => audit::of_test_server(&self.client.get("/_test/audit")?),
        };
        all.retain(|asked| asked.user != ADMINISTRATOR);
        Ok(all)
    }

    /// Whom a token is of.
    pub(super) fn review(&self, token: &str) -> Result<Value, Failure> {
        let review = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token},
        });
        let path = "/apis/authentication.k8s.io/v1/tokenreviews";
        Ok(self.client.post(path, &review)?["status"].clone())
    }
}
