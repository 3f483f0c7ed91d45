//! Objects while they are used: owned by one step of one pod, and dropped with it.

use alloc::{boxed::Box, collections::BTreeMap};

use super::{content::ObjectContent, pod_certificates::LoadedCertificates};
use crate::{
    api::{ConfigMap, PodError, Secret},
    logic::{
        pod_certificate::CertificatePair,
        pod_refs::{PodObjectKey, PodObjectKind, TokenRef},
        service_env::EnvService,
    },
};

/// Objects that one step of a pod uses, for as long as it takes.
#[derive(Debug, Default)]
pub(in crate::agent) struct LoadedObjects {
    config_maps: BTreeMap<Box<str>, Result<Option<ConfigMap>, PodError>>,
    secrets: BTreeMap<Box<str>, Result<Option<Secret>, PodError>>,
    trust_bundles: BTreeMap<Box<str>, Result<Option<String>, PodError>>,
    pub(super) tokens: BTreeMap<TokenRef, Result<Vec<u8>, PodError>>,
    pub(super) certificates: LoadedCertificates,
    services: Vec<EnvService>,
    services_error: Option<PodError>,
}

impl LoadedObjects {
    pub(in crate::agent) fn config_map(&self, name: &str) -> Result<Option<&ConfigMap>, PodError> {
        find_object(&self.config_maps, "configmap", name)
    }

    pub(in crate::agent) fn secret(&self, name: &str) -> Result<Option<&Secret>, PodError> {
        find_object(&self.secrets, "secret", name)
    }

    pub(in crate::agent) fn trust_bundle(
        &self,
        key: &PodObjectKey,
    ) -> Result<Option<&str>, PodError> {
        let text = find_object(&self.trust_bundles, key.kind.as_str(), &key.name)?;
        Ok(text.map(String::as_str))
    }

    pub(in crate::agent) fn pod_certificate(
        &self,
        volume: &str,
        source: usize,
    ) -> Result<&CertificatePair, PodError> {
        let pair = self.certificates.pairs.get(&(volume.to_owned(), source));
        let unknown = || PodError::Node("the certificate has not been asked for".into());
        pair.ok_or_else(unknown)?.as_ref().map_err(Clone::clone)
    }

    /// Events that the pod is to have about its certificates: reason and message of each.
    pub(in crate::agent) fn certificate_warnings(&self) -> &[(&'static str, String)] {
        &self.certificates.warnings
    }

    pub(in crate::agent) fn service_account_token(
        &self,
        audience: &str,
        expiration_s: Option<i64>,
    ) -> Result<Vec<u8>, PodError> {
        let token = TokenRef {
            audience: audience.into(),
            expiration_s,
        };
        let unknown = || Err(PodError::Node("the token has not been asked for".into()));
        self.tokens.get(&token).cloned().unwrap_or_else(unknown)
    }

    /// Services that the pod is told of. Errors: they could not be read (ENV-09).
    pub(in crate::agent) fn services(&self) -> Result<&[EnvService], PodError> {
        match &self.services_error {
            None => Ok(&self.services),
            Some(why) => Err(why
                .clone()
                .with_subject("services have not been read yet, cannot construct environment")),
        }
    }

    /// Notes that the services could not be read.
    pub(super) fn fail_services(&mut self, why: PodError) {
        self.services_error = Some(why);
    }

    pub(super) fn put_object(
        &mut self,
        key: &PodObjectKey,
        content: Result<Option<ObjectContent>, PodError>,
    ) {
        let name = key.name.clone();
        match (key.kind, content) {
            (PodObjectKind::ConfigMap, content) => {
                let map = content.map(|c| match c {
                    Some(ObjectContent::ConfigMap(map)) => Some(*map),
                    _ => None,
                });
                self.config_maps.insert(name, map);
            }
            (PodObjectKind::Secret, content) => {
                let secret = content.map(|c| match c {
                    Some(ObjectContent::Secret(secret)) => Some(*secret),
                    _ => None,
                });
                self.secrets.insert(name, secret);
            }
            (PodObjectKind::TrustBundle, content) => {
                let text = content.map(|c| match c {
                    Some(ObjectContent::TrustBundle(text)) => Some(text),
                    _ => None,
                });
                self.trust_bundles.insert(name, text);
            }
            (PodObjectKind::Services, Ok(Some(ObjectContent::Services(services)))) => {
                self.services
                    .extend(services.into_iter().map(EnvService::from));
            }
            (PodObjectKind::Services, Err(why)) => self.services_error = Some(why),
            (PodObjectKind::Services, Ok(_))
            | (
                PodObjectKind::Claim | PodObjectKind::RuntimeClass | PodObjectKind::ServiceAccount,
                _,
            ) => {}
        }
    }
}

fn find_object<'a, T>(
    all: &'a BTreeMap<Box<str>, Result<Option<T>, PodError>>,
    kind: &str,
    name: &str,
) -> Result<Option<&'a T>, PodError> {
    match all.get(name) {
        Some(Ok(object)) => Ok(object.as_ref()),
        Some(Err(why)) => Err(why.clone().with_subject(format_args!("{kind} {name:?}"))),
        None => Err(PodError::Node(format!(
            "{kind} {name:?} has not been asked for"
        ))),
    }
}
