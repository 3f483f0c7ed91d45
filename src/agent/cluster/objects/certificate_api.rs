//! Resources of `certificates.k8s.io` that pods use: the version that the apiserver has them in, and the reads of trust
//! bundles (CTB-01, CTB-03).

use alloc::sync::Arc;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{
    super::answers,
    content::{ObjectContent, ObjectReadError, ObjectRequest},
};
use crate::{
    api::MonoTime,
    kube::{KubeApi, KubeError, api::ApiResult, csr},
    logic::{
        certificate_versions::{self, CertificateResource, CertificateVersions},
        trust_bundle::{TrustAnchors, split_selection},
    },
    net::tls,
};

/// Versions that the apiserver was found to have, for all threads that ask it.
#[derive(Clone, Debug, Default)]
pub(super) struct CertificateApi(Arc<Mutex<CertificateVersions>>);

impl CertificateApi {
    fn versions(&self) -> MutexGuard<'_, CertificateVersions> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if the apiserver was found to have no version of the resource, lately. Asks nobody.
    pub(super) fn is_missing(&self, resource: CertificateResource, now: MonoTime) -> bool {
        self.versions().known_version(resource, now) == Some(None)
    }

    /// Version that the apiserver has; looks for it if it is not known.
    pub(super) fn version_in_use(
        &self,
        api: &dyn KubeApi,
        resource: CertificateResource,
        now: MonoTime,
    ) -> Result<&'static str, ObjectReadError> {
        let last = self.versions().known_version(resource, now);
        let found = match last {
            Some(found) => found,
            None => {
                let found = find_version(api, resource)?;
                self.versions().record_look(resource, found, now);
                found
            }
        };
        Ok(found.ok_or_else(|| resource.missing_error())?)
    }

    /// Sends a request in the version that the apiserver has, and looks for that first if it is not known.
    pub(super) fn ask_in_version<T>(
        &self,
        api: &dyn KubeApi,
        resource: CertificateResource,
        now: MonoTime,
        ask: impl FnOnce(&'static str) -> ApiResult<T>,
    ) -> Result<T, ObjectReadError> {
        let version = self.version_in_use(api, resource, now)?;
        ask(version).map_err(|e| {
            // The path is unknown, and not only the object.
            if e.is_not_found() && !answers::is_api_refusal(&e, 404, "NotFound") {
                self.versions().forget_version(resource);
            }
            e.into()
        })
    }

    /// Makes the request for a bundle, or for a selection of them.
    pub(super) fn bundle_request(&self, name: &str, now: MonoTime) -> ObjectRequest {
        let (versions, name) = (self.clone(), name.to_owned());
        Arc::new(move |api| {
            let mut anchors = TrustAnchors::default();
            let mut chosen = Ok(());
            let mut add = |bundle: &serde_json::Value| {
                let text = bundle["spec"]["trustBundle"].as_str().unwrap_or("");
                let found = tls::parse_certificates(text.as_bytes());
                let certificates = found.into_iter().map(|der| der.to_vec());
                if chosen.is_ok() {
                    chosen = anchors.add_bundle(certificates);
                }
            };
            let resource = CertificateResource::TrustBundles;
            let mut count = 0;
            versions.ask_in_version(api, resource, now, |version| {
                match split_selection(&name) {
                    None => {
                        add(&api.read_trust_bundle(version, &name)?);
                        count = 1;
                        Ok(())
                    }
                    Some((signer, labels)) => {
                        api.list_trust_bundles(version, signer, labels, &mut |bundle| {
                            if bundle["spec"]["signerName"] == signer {
                                add(&bundle);
                                count += 1;
                            }
                        })?;
                        Ok(())
                    }
                }
            })?;
            chosen?;
            if count == 0 {
                return Err(ObjectReadError::NotFound(name.clone()));
            }
            let blocks = anchors.certificates();
            let text = blocks.map(|der| csr::encode_pem("CERTIFICATE", der));
            Ok(ObjectContent::TrustBundle(text.collect()))
        })
    }
}

/// Looks for the best version that the apiserver has of a resource.
fn find_version(
    api: &dyn KubeApi,
    resource: CertificateResource,
) -> Result<Option<&'static str>, KubeError> {
    for version in resource.versions() {
        match api.list_api_resources(certificate_versions::GROUP, version) {
            Ok(list) if certificate_versions::is_listed(resource, &list) => {
                return Ok(Some(version));
            }
            Ok(_) => {}
            Err(e) if e.is_not_found() => {}
            Err(e) => return Err(e),
        }
    }
    Ok(None)
}
