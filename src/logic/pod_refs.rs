//! References of a pod to objects of the apiserver: ConfigMaps, Secrets, services, tokens, claims, trust bundles. A node
//! may read exactly these (AUTHZ-04 to AUTHZ-06), object by object.
//!
//! References are told apart by the time when they are needed: volumes at each sync, environments when a container
//! starts, credentials when an image is pulled. A volume that no container mounts is not read.

use alloc::{boxed::Box, collections::BTreeSet, string::String, vec::Vec};

use super::trust_bundle::{MAX_POD_BUNDLES, bundle_key};
use crate::api::pod::{Container, PodCertificateProjection, Volume};
use crate::api::{Pod, PodError, PodUid};

/// Objects that one pod may refer to, of all kinds: a pod with more has an error that says so.
pub const MAX_POD_OBJECTS: usize = 512;
/// Longest name of an object, bytes.
const MAX_NAME_BYTES: usize = 253;
/// The service every pod is told of, and its namespace.
const MASTER: (&str, &str) = ("default", "kubernetes");

/// Kinds that are kept for pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PodObjectKind {
    /// A ConfigMap.
    ConfigMap,
    /// A Secret.
    Secret,
    /// All services of a namespace if the name is empty; else one.
    Services,
    /// A claim of one pod, with the volume that it is bound to. The name is [`claim_name`].
    Claim,
    /// The handler of a RuntimeClass. It is in no namespace.
    RuntimeClass,
    /// UID and annotations of a service account, for credential plugins.
    ServiceAccount,
    /// Certificates to trust, of one ClusterTrustBundle or of a selection of them. In no namespace. The name is that of a
    /// [`bundle_key`].
    TrustBundle,
}

impl PodObjectKind {
    /// Name of the kind in messages and records.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ConfigMap => "configmap",
            Self::Secret => "secret",
            Self::Services => "services",
            Self::Claim => "persistentvolumeclaim",
            Self::RuntimeClass => "runtimeclass",
            Self::ServiceAccount => "serviceaccount",
            Self::TrustBundle => "clustertrustbundle",
        }
    }
}

/// Names one object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodObjectKey {
    /// Kind.
    pub kind: PodObjectKind,
    /// Namespace; empty for a [`PodObjectKind::RuntimeClass`] and a [`PodObjectKind::TrustBundle`].
    pub namespace: Box<str>,
    /// Name.
    pub name: Box<str>,
}

impl PodObjectKey {
    /// An object of `namespace`.
    #[must_use]
    pub fn new(kind: PodObjectKind, namespace: &str, name: &str) -> Self {
        Self {
            kind,
            namespace: namespace.into(),
            name: name.into(),
        }
    }
}

impl core::fmt::Display for PodObjectKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self {
            kind,
            namespace,
            name,
        } = self;
        if name.is_empty() {
            return write!(f, "{} of namespace {namespace}", kind.as_str());
        }
        if namespace.is_empty() {
            return write!(f, "{} {name}", kind.as_str());
        }
        write!(f, "{} {namespace}/{name}", kind.as_str())
    }
}

/// Name of the [`PodObjectKind::Claim`] of a pod. It contains the uid, so that no other pod uses what this pod has resolved.
#[must_use]
pub fn claim_name(uid: &PodUid, claim: &str) -> String {
    format!("{uid}/{claim}")
}

/// A token that a volume asks for (TOK-02).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TokenRef {
    /// Audience of the token; empty: the apiserver.
    pub audience: String,
    /// Seconds it is to live; `None`: as long as the apiserver likes.
    pub expiration_s: Option<i64>,
}

/// Place of a token in the pod's volumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenLocation<'a> {
    /// Token.
    pub token: TokenRef,
    /// Name of the volume.
    pub volume: &'a str,
    /// Path in it.
    pub path: &'a str,
}

/// Volumes that some container mounts or uses as a device.
pub fn used_volumes(pod: &Pod) -> impl Iterator<Item = &Volume> {
    pod.spec.volumes.iter().filter(|volume| {
        pod.spec.all_containers().any(|c| {
            c.mounts_volume(&volume.name) || c.volume_devices.iter().any(|d| d.name == volume.name)
        })
    })
}

/// Objects that the pod's volumes hold.
pub fn refs_of_volumes(pod: &Pod) -> Result<BTreeSet<PodObjectKey>, PodError> {
    let mut refs = ReferenceCollector::for_pod(pod);
    for volume in used_volumes(pod) {
        if let Some(source) = &volume.config_map {
            refs.add_reference(PodObjectKind::ConfigMap, &source.name)?;
        }
        if let Some(source) = &volume.secret {
            refs.add_reference(PodObjectKind::Secret, &source.secret_name)?;
        }
        for source in volume.projected.iter().flat_map(|p| &p.sources) {
            if let Some(source) = &source.config_map {
                refs.add_reference(PodObjectKind::ConfigMap, &source.name)?;
            }
            if let Some(source) = &source.secret {
                refs.add_reference(PodObjectKind::Secret, &source.name)?;
            }
        }
    }
    for key in chosen_bundles(pod).into_iter().take(MAX_POD_BUNDLES) {
        refs.add_key(key)?;
    }
    Ok(refs.found)
}

/// Bundles that the pod's volumes choose beyond [`MAX_POD_BUNDLES`].
#[must_use]
pub fn refused_bundles(pod: &Pod) -> Vec<PodObjectKey> {
    let mut chosen = chosen_bundles(pod);
    chosen.drain(..chosen.len().min(MAX_POD_BUNDLES));
    chosen
}

/// Bundles and selections of bundles that the pod's volumes choose, each once, in the order of the volumes. A wrong source
/// chooses none: its volume tells why.
fn chosen_bundles(pod: &Pod) -> Vec<PodObjectKey> {
    let mut seen = BTreeSet::new();
    let projected = used_volumes(pod).filter_map(|volume| volume.projected.as_ref());
    let sources = projected.flat_map(|p| &p.sources);
    sources
        .filter_map(|source| bundle_key(source.cluster_trust_bundle.as_ref()?).ok()?)
        .filter(|key| seen.insert(key.clone()))
        .collect()
}

/// Objects that the environment of `container` is made of, services among them (ENV-07).
pub fn refs_of_environment(
    pod: &Pod,
    container: &Container,
) -> Result<BTreeSet<PodObjectKey>, PodError> {
    let mut refs = ReferenceCollector::for_pod(pod);
    for source in &container.env_from {
        if let Some(source) = &source.config_map_ref {
            refs.add_reference(PodObjectKind::ConfigMap, &source.name)?;
        }
        if let Some(source) = &source.secret_ref {
            refs.add_reference(PodObjectKind::Secret, &source.name)?;
        }
    }
    // A given value wins over `valueFrom`.
    let unset = container.env.iter().filter(|var| var.value.is_empty());
    for source in unset.filter_map(|var| var.value_from.as_ref()) {
        if let Some(source) = &source.config_map_key_ref {
            refs.add_reference(PodObjectKind::ConfigMap, &source.name)?;
        }
        if let Some(source) = &source.secret_key_ref {
            refs.add_reference(PodObjectKind::Secret, &source.name)?;
        }
    }
    refs.found.extend(refs_of_services(pod));
    Ok(refs.found)
}

/// Services that the pod's containers are told of.
#[must_use]
pub fn refs_of_services(pod: &Pod) -> BTreeSet<PodObjectKey> {
    let mut found = BTreeSet::new();
    found.insert(PodObjectKey::new(
        PodObjectKind::Services,
        MASTER.0,
        MASTER.1,
    ));
    if pod.spec.enable_service_links.unwrap_or(true) {
        found.insert(PodObjectKey::new(
            PodObjectKind::Services,
            &pod.metadata.namespace,
            "",
        ));
    }
    found
}

/// Secrets that the pod's images are pulled with (IMG-13). Empty names are ignored silently.
pub fn refs_of_pull_secrets(pod: &Pod) -> Result<BTreeSet<PodObjectKey>, PodError> {
    let mut refs = ReferenceCollector::for_pod(pod);
    for reference in &pod.spec.image_pull_secrets {
        if !reference.name.is_empty() {
            refs.add_reference(PodObjectKind::Secret, &reference.name)?;
        }
    }
    Ok(refs.found)
}

/// Tokens of the pod's volumes, in the order of the volumes.
pub fn token_locations(pod: &Pod) -> impl Iterator<Item = TokenLocation<'_>> {
    used_volumes(pod).flat_map(|volume| {
        let sources = volume.projected.iter().flat_map(|p| &p.sources);
        sources.filter_map(|source| {
            let token = source.service_account_token.as_ref()?;
            Some(TokenLocation {
                token: TokenRef {
                    audience: token.audience.clone(),
                    expiration_s: token.expiration_seconds,
                },
                volume: &volume.name,
                path: &token.path,
            })
        })
    })
}

/// Place of a certificate in the pod's volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CertificateLocation<'a> {
    /// Name of the volume.
    pub volume: &'a str,
    /// Number of the source in it.
    pub source: usize,
    /// Certificate that is wanted, and its files.
    pub projection: &'a PodCertificateProjection,
}

/// Certificates of the pod's volumes, in the order of the volumes.
pub fn certificate_locations(pod: &Pod) -> impl Iterator<Item = CertificateLocation<'_>> {
    used_volumes(pod).flat_map(|volume| {
        let sources = volume.projected.iter().flat_map(|p| &p.sources);
        sources.enumerate().filter_map(|(n, source)| {
            Some(CertificateLocation {
                volume: &volume.name,
                source: n,
                projection: source.pod_certificate.as_ref()?,
            })
        })
    })
}

struct ReferenceCollector<'a> {
    namespace: &'a str,
    found: BTreeSet<PodObjectKey>,
}

impl<'a> ReferenceCollector<'a> {
    const fn for_pod(pod: &'a Pod) -> Self {
        Self {
            namespace: pod.metadata.namespace.as_str(),
            found: BTreeSet::new(),
        }
    }

    fn add_reference(&mut self, kind: PodObjectKind, name: &str) -> Result<(), PodError> {
        if name.is_empty() || name.len() > MAX_NAME_BYTES {
            return Err(PodError::Spec(format!(
                "{name:?} is not the name of a {}",
                kind.as_str()
            )));
        }
        self.add_key(PodObjectKey::new(kind, self.namespace, name))
    }

    fn add_key(&mut self, key: PodObjectKey) -> Result<(), PodError> {
        self.found.insert(key);
        if self.found.len() > MAX_POD_OBJECTS {
            return Err(PodError::Spec(format!(
                "the pod refers to more than {MAX_POD_OBJECTS} objects"
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use serde_json::json;

    use super::*;

    fn pod(spec: serde_json::Value) -> Pod {
        let pod = json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": spec});
        serde_json::from_value(pod).expect("pod")
    }

    fn shown(keys: Result<BTreeSet<PodObjectKey>, PodError>) -> String {
        match keys {
            Ok(keys) => keys
                .iter()
                .map(PodObjectKey::to_string)
                .collect::<Vec<_>>()
                .join(", "),
            Err(e) => format!("error: {e}"),
        }
    }

    #[test]
    fn references() {
        // AUTHZ-04 ENV-07 VOL-27
        let mounts = json!([{"name": "v", "mountPath": "/v"}]);
        for (name, spec, volumes, env, pulls) in [
            (
                "nothing",
                json!({"containers": [{"name": "c"}], "enableServiceLinks": false}),
                "",
                "services default/kubernetes",
                "",
            ),
            (
                "volumes that are mounted",
                json!({"volumes": [{"name": "v", "configMap": {"name": "a"}}, {"name": "w", "secret": {"secretName": "b"}}],
                    "containers": [{"name": "c", "volumeMounts": mounts}]}),
                "configmap ns/a",
                "services default/kubernetes, services of namespace ns",
                "",
            ),
            (
                "projected sources",
                json!({"volumes": [{"name": "v", "projected": {"sources": [{"configMap": {"name": "a"}}, {"secret": {"name": "b"}},
                    {"configMap": {"name": "a"}}, {"serviceAccountToken": {"path": "t"}}]}}],
                    "containers": [{"name": "c"}], "initContainers": [{"name": "i", "volumeMounts": mounts}]}),
                "configmap ns/a, secret ns/b",
                "services default/kubernetes, services of namespace ns",
                "",
            ),
            (
                "environment and pulls",
                json!({"enableServiceLinks": false, "imagePullSecrets": [{"name": "p"}, {"name": ""}],
                    "containers": [{"name": "c", "envFrom": [{"configMapRef": {"name": "a"}}, {"secretRef": {"name": "b"}}],
                    "env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "d", "key": "k"}}},
                        {"name": "Y", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}},
                        {"name": "Z", "value": "1", "valueFrom": {"configMapKeyRef": {"name": "not", "key": "k"}}}]}]}),
                "",
                "configmap ns/a, configmap ns/c, secret ns/b, secret ns/d, services default/kubernetes",
                "secret ns/p",
            ),
            (
                "no name",
                json!({"volumes": [{"name": "v", "configMap": {}}], "containers": [{"name": "c", "volumeMounts": mounts}]}),
                "error: \"\" is not the name of a configmap",
                "services default/kubernetes, services of namespace ns",
                "",
            ),
        ] {
            let pod = pod(spec);
            assert_eq!(shown(refs_of_volumes(&pod)), volumes, "{name}: volumes");
            let found = refs_of_environment(&pod, &pod.spec.containers[0]);
            assert_eq!(shown(found), env, "{name}: env");
            assert_eq!(shown(refs_of_pull_secrets(&pod)), pulls, "{name}: pulls");
        }
    }

    #[test]
    fn growth_is_bounded() {
        let many = |count: usize| -> Vec<_> {
            let from = |n| json!({"configMapRef": {"name": format!("c{n}")}});
            (0..count).map(from).collect()
        };
        for (count, fits) in [(MAX_POD_OBJECTS, true), (MAX_POD_OBJECTS + 1, false)] {
            let pod = pod(json!({"containers": [{"name": "c", "envFrom": many(count)}]}));
            let found = refs_of_environment(&pod, &pod.spec.containers[0]);
            assert_eq!(found.is_ok(), fits, "{count}");
        }
    }

    #[test]
    fn bundles_of_one_pod_are_bounded() {
        // CTB-01
        let mounts = json!([{"name": "v", "mountPath": "/v"}]);
        let pod_of = |sources: Vec<serde_json::Value>| {
            pod(
                json!({"volumes": [{"name": "v", "projected": {"sources": sources}}],
                "containers": [{"name": "c", "volumeMounts": mounts}]}),
            )
        };
        let named = |n: usize| json!({"clusterTrustBundle": {"name": format!("b{n:02}"), "path": format!("{n}")}});
        let mut sources: Vec<_> = (0..MAX_POD_BUNDLES).map(named).collect();
        sources.push(named(0));
        // A wrong source is no reason to read nothing else.
        sources.push(json!({"clusterTrustBundle": {"name": "x".repeat(5000), "path": "long"}}));
        sources.push(json!({"configMap": {"name": "a"}}));
        let fits = pod_of(sources.clone());
        let found = refs_of_volumes(&fits).expect("references");
        assert_eq!(found.len(), MAX_POD_BUNDLES + 1);
        assert_eq!(refused_bundles(&fits), []);
        sources.push(named(MAX_POD_BUNDLES));
        let many = pod_of(sources);
        assert_eq!(refs_of_volumes(&many).expect("references"), found);
        let refused = PodObjectKey::new(PodObjectKind::TrustBundle, "", "b16");
        assert_eq!(refused_bundles(&many), [refused]);
    }

    #[test]
    fn places_of_tokens() {
        // TOK-02
        let pod = pod(json!({"volumes": [{"name": "v", "projected": {"sources": [
                {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
                {"serviceAccountToken": {"path": "vault", "audience": "vault"}}]}},
                {"name": "unused", "projected": {"sources": [{"serviceAccountToken": {"path": "x"}}]}}],
            "containers": [{"name": "c", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]}));
        let found: Vec<_> = token_locations(&pod)
            .map(|p| (p.volume, p.path, p.token.audience, p.token.expiration_s))
            .collect();
        assert_eq!(
            found,
            [
                ("v", "token", String::new(), Some(3607)),
                ("v", "vault", "vault".into(), None)
            ]
        );
    }
}
