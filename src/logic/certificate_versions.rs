//! Versions of `certificates.k8s.io` that an apiserver has trust bundles and pod certificates in (PCT-02, CTB-03). They
//! change with its version, its feature gates and its flags.

use core::time::Duration;

use serde_json::Value;

use crate::api::{MonoTime, PodError};

/// API group of all of them.
pub const GROUP: &str = "certificates.k8s.io";
/// Pause after which an apiserver that did not have a resource is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(600);

/// A resource that not every apiserver has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificateResource {
    /// Certificates to trust.
    TrustBundles,
    /// Requests for certificates of pods.
    PodRequests,
}

impl CertificateResource {
    /// Name of the resource in the API.
    #[must_use]
    pub const fn plural(self) -> &'static str {
        match self {
            Self::TrustBundles => "clustertrustbundles",
            Self::PodRequests => "podcertificaterequests",
        }
    }

    /// Versions that this agent knows, the best first.
    #[must_use]
    pub const fn versions(self) -> &'static [&'static str] {
        match self {
            Self::TrustBundles => &["v1", "v1beta1", "v1alpha1"],
            Self::PodRequests => &["v1", "v1beta1"],
        }
    }

    const fn gate(self) -> &'static str {
        match self {
            Self::TrustBundles => "ClusterTrustBundle",
            Self::PodRequests => "PodCertificateRequest",
        }
    }

    /// The error of a pod that needs a resource that the apiserver does not have.
    #[must_use]
    pub fn missing_error(self) -> PodError {
        PodError::Object(format!(
            "the API server does not offer {}.{GROUP}: see its feature gate {} and its flag --runtime-config",
            self.plural(),
            self.gate(),
        ))
    }
}

/// Returns true if a list of resources (`APIResourceList`) has that one.
#[must_use]
pub fn is_listed(resource: CertificateResource, list: &Value) -> bool {
    let all = list["resources"].as_array().into_iter().flatten();
    all.into_iter().any(|one| one["name"] == resource.plural())
}

/// Result of the last look for each resource.
#[derive(Debug, Default)]
pub struct CertificateVersions {
    found: [Option<LastLook>; 2],
}

#[derive(Clone, Copy, Debug)]
struct LastLook {
    version: Option<&'static str>,
    at: MonoTime,
}

impl CertificateVersions {
    /// Version to use; `Some(None)`: the apiserver has none; `None`: ask it.
    #[must_use]
    pub fn known_version(
        &self,
        resource: CertificateResource,
        now: MonoTime,
    ) -> Option<Option<&'static str>> {
        let last = self.found[resource as usize]?;
        (last.version.is_some() || now - last.at < ASK_AGAIN).then_some(last.version)
    }

    /// Notes the result of a look.
    pub fn record_look(
        &mut self,
        resource: CertificateResource,
        version: Option<&'static str>,
        now: MonoTime,
    ) {
        self.found[resource as usize] = Some(LastLook { version, at: now });
    }

    /// Forgets a version that the apiserver has no more.
    pub fn forget_version(&mut self, resource: CertificateResource) {
        self.found[resource as usize] = None;
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString as _;

    use serde_json::json;

    use super::*;

    const BUNDLES: CertificateResource = CertificateResource::TrustBundles;

    #[test]
    fn an_absent_resource_is_looked_for_again() {
        // CTB-03
        let at = |s: u64| MonoTime(s * 1000);
        let mut versions = CertificateVersions::default();
        assert_eq!(versions.known_version(BUNDLES, at(0)), None);
        versions.record_look(BUNDLES, None, at(0));
        assert_eq!(versions.known_version(BUNDLES, at(599)), Some(None));
        assert_eq!(versions.known_version(BUNDLES, at(600)), None);
        versions.record_look(BUNDLES, Some("v1beta1"), at(600));
        let found = versions.known_version(BUNDLES, at(1_000_000));
        assert_eq!(found, Some(Some("v1beta1")));
        versions.forget_version(BUNDLES);
        assert_eq!(versions.known_version(BUNDLES, at(1_000_000)), None);
    }

    #[test]
    fn lists_of_resources() {
        // CTB-03
        let list = json!({"resources": [{"name": "certificatesigningrequests"}, {"name": "clustertrustbundles"}]});
        assert!(is_listed(BUNDLES, &list));
        assert!(!is_listed(
            BUNDLES,
            &json!({"resources": [{"name": "other"}]})
        ));
        assert!(!is_listed(BUNDLES, &json!({})));
        let error = BUNDLES.missing_error().to_string();
        assert!(error.contains("feature gate ClusterTrustBundle"), "{error}");
    }
}
