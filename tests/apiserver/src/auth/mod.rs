//! Who asks, whether they may, and what a node may not do even where it may write.

pub(crate) mod authorize;
mod graph;
pub(crate) mod restriction;

pub(crate) use graph::grants;

use std::collections::BTreeMap;

use ring::digest;
use rustls::pki_types::CertificateDer;
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// Whoever made a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    /// `system:node:n1`, `system:anonymous`, ….
    pub name: String,
    /// Known for service accounts only.
    pub uid: String,
    /// As authentication gave them, `system:authenticated` included.
    pub groups: Vec<String>,
    /// Further facts, as `TokenReview` lists them.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// A user with these groups and that of all who are known.
    pub(crate) fn known(name: &str, groups: &[&str]) -> Self {
        let mut groups: Vec<String> = groups.iter().map(|g| (*g).to_owned()).collect();
        groups.push("system:authenticated".to_owned());
        Self {
            name: name.to_owned(),
            groups,
            ..Self::default()
        }
    }

    /// Who may do everything.
    pub(crate) fn admin() -> Self {
        Self::known("admin", &["system:masters"])
    }

    pub(crate) fn anonymous() -> Self {
        Self {
            name: "system:anonymous".to_owned(),
            groups: vec!["system:unauthenticated".to_owned()],
            ..Self::default()
        }
    }

    /// The subject of a client certificate that has been verified.
    pub(crate) fn from_certificate(certificate: &CertificateDer<'_>) -> Option<Self> {
        let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
        let subject = parsed.subject();
        let name = subject.iter_common_name().next()?.as_str().ok()?;
        if name.is_empty() {
            return None;
        }
        let groups: Vec<&str> = subject
            .iter_organization()
            .filter_map(|o| o.as_str().ok())
            .collect();
        let digest = digest::digest(&digest::SHA256, certificate);
        let digest: String = digest.as_ref().iter().map(|b| format!("{b:02x}")).collect();
        let mut user = Self::known(name, &groups);
        user.extra.insert(
            "authentication.kubernetes.io/credential-id".to_owned(),
            vec![format!("X509SHA256={digest}")],
        );
        Some(user)
    }

    pub(crate) fn in_group(&self, group: &str) -> bool {
        self.groups.iter().any(|g| g == group)
    }

    /// The node's name, when this is a node: name and group together.
    pub(crate) fn node(&self) -> Option<&str> {
        let name = self.name.strip_prefix("system:node:")?;
        self.in_group("system:nodes").then_some(name)
    }
}
