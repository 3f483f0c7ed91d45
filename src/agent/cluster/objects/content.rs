//! Content that a read of the apiserver gives, or the reason why it gives none.

use alloc::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::super::answers;
use crate::{
    api::{ConfigMap, ObjectMeta, PodError, RuntimeClass, Secret, service, strict},
    kube::{KubeApi, KubeError},
    logic::{
        bound_volume::BoundVolume,
        pod_refs::{PodObjectKey, PodObjectKind},
    },
};

/// Services of one namespace that are kept.
const MAX_SERVICES: usize = 5000;

/// Reason why there is no usable answer.
#[derive(Clone, Debug)]
pub(super) enum ObjectReadError {
    NotFound(String),
    Forbidden(String),
    /// The apiserver did not answer.
    Silent(String),
    Other(PodError),
    /// The answer is not wanted any more: the pod is to end.
    Ended,
}

impl From<KubeError> for ObjectReadError {
    fn from(error: KubeError) -> Self {
        let text = error.to_string();
        match error.http_status() {
            _ if answers::is_api_refusal(&error, 404, "NotFound") => Self::NotFound(text),
            Some(403) => Self::Forbidden(text),
            None if !error.is_answer() => Self::Silent(text),
            _ => Self::Other(PodError::Object(text)),
        }
    }
}

impl From<PodError> for ObjectReadError {
    fn from(error: PodError) -> Self {
        Self::Other(error)
    }
}

impl From<strict::WrongValue> for ObjectReadError {
    fn from(error: strict::WrongValue) -> Self {
        Self::Other(PodError::Object(error.to_string()))
    }
}

impl From<ObjectReadError> for PodError {
    fn from(refusal: ObjectReadError) -> Self {
        match refusal {
            ObjectReadError::NotFound(text)
            | ObjectReadError::Forbidden(text)
            | ObjectReadError::Silent(text) => Self::Object(text),
            ObjectReadError::Other(error) => error,
            ObjectReadError::Ended => Self::Object("the pod is to end".into()),
        }
    }
}

/// Facts of a service account that credential plugins are told.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(in crate::agent) struct ServiceAccountFacts {
    /// UID.
    pub(in crate::agent) uid: String,
    /// Annotations, without the copy of the object that kubectl writes.
    pub(in crate::agent) annotations: BTreeMap<String, String>,
}

/// Annotation in which kubectl keeps a copy of the object.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Content of an object that was read.
#[derive(Debug)]
pub(super) enum ObjectContent {
    ConfigMap(Box<ConfigMap>),
    Secret(Box<Secret>),
    Services(Vec<service::Service>),
    Claim(Box<BoundVolume>),
    /// Handler of a RuntimeClass.
    RuntimeClass(String),
    ServiceAccount(ServiceAccountFacts),
    /// Certificates to trust, PEM.
    TrustBundle(String),
}

impl ObjectContent {
    pub(super) const fn is_immutable(&self) -> bool {
        match self {
            Self::ConfigMap(map) => matches!(map.immutable, Some(true)),
            Self::Secret(secret) => matches!(secret.immutable, Some(true)),
            // A class of that name may be made anew with another handler.
            Self::Services(_)
            | Self::Claim(_)
            | Self::RuntimeClass(_)
            | Self::ServiceAccount(_)
            | Self::TrustBundle(_) => false,
        }
    }

    pub(super) fn encode(&self) -> Result<Vec<u8>, serde_json::Error> {
        fn encode_json(value: &impl Serialize) -> Result<Vec<u8>, serde_json::Error> {
            serde_json::to_vec(value)
        }
        match self {
            Self::ConfigMap(map) => encode_json(map),
            Self::Secret(secret) => encode_json(secret),
            Self::Services(services) => encode_json(services),
            Self::Claim(bound) => encode_json(bound),
            Self::RuntimeClass(text) | Self::TrustBundle(text) => encode_json(text),
            Self::ServiceAccount(facts) => encode_json(facts),
        }
    }

    pub(super) fn decode(kind: PodObjectKind, bytes: &[u8]) -> Result<Self, strict::JsonTextError> {
        Ok(match kind {
            PodObjectKind::ConfigMap => Self::ConfigMap(Box::new(strict::from_json(bytes)?)),
            PodObjectKind::Secret => Self::Secret(Box::new(strict::from_json(bytes)?)),
            PodObjectKind::Services => Self::Services(strict::from_json(bytes)?),
            PodObjectKind::Claim => Self::Claim(Box::new(strict::from_json(bytes)?)),
            PodObjectKind::RuntimeClass => Self::RuntimeClass(strict::from_json(bytes)?),
            PodObjectKind::ServiceAccount => Self::ServiceAccount(strict::from_json(bytes)?),
            PodObjectKind::TrustBundle => Self::TrustBundle(strict::from_json(bytes)?),
        })
    }
}

/// Asks for one object, on a thread that may wait.
pub(super) type ObjectRequest =
    Arc<dyn Fn(&dyn KubeApi) -> Result<ObjectContent, ObjectReadError> + Send + Sync>;

/// Makes the request for an object that needs only its name.
pub(super) fn named_object_request(key: &PodObjectKey) -> ObjectRequest {
    let PodObjectKey {
        kind,
        namespace,
        name,
    } = key.clone();
    Arc::new(move |api| match kind {
        PodObjectKind::ConfigMap => {
            let mut map: ConfigMap = decode_object(&api.read_config_map(&namespace, &name)?)?;
            map.metadata = prune_metadata(map.metadata);
            Ok(ObjectContent::ConfigMap(Box::new(map)))
        }
        PodObjectKind::Secret => {
            let mut secret: Secret = decode_object(&api.read_secret(&namespace, &name)?)?;
            secret.metadata = prune_metadata(secret.metadata);
            Ok(ObjectContent::Secret(Box::new(secret)))
        }
        PodObjectKind::Services if name.is_empty() => {
            let mut services = Vec::new();
            api.list_services(&namespace, &mut |item| {
                // One that cannot be read is no reason to know none.
                if let Ok(service) = strict::typed_from_value::<service::Service>(&item)
                    && !matches!(&*service.spec.cluster_ip, "" | "None")
                    && services.len() < MAX_SERVICES
                {
                    services.push(service);
                }
            })?;
            Ok(ObjectContent::Services(services))
        }
        PodObjectKind::Services => {
            let service = decode_object(&api.read_service(&namespace, &name)?)?;
            Ok(ObjectContent::Services(vec![service]))
        }
        PodObjectKind::RuntimeClass => {
            let class: RuntimeClass = decode_object(&api.read_runtime_class(&name)?)?;
            Ok(ObjectContent::RuntimeClass(class.handler))
        }
        PodObjectKind::ServiceAccount => {
            let account: NamedObject =
                decode_object(&api.read_service_account(&namespace, &name)?)?;
            let mut facts = account.metadata;
            facts.annotations.remove(LAST_APPLIED);
            Ok(ObjectContent::ServiceAccount(facts))
        }
        PodObjectKind::Claim | PodObjectKind::TrustBundle => {
            let why = "the request for it needs more than its name";
            Err(ObjectReadError::Other(PodError::Node(why.into())))
        }
    })
}

/// An object of which only identity and annotations are read.
#[derive(Default, Deserialize)]
#[serde(default)]
struct NamedObject {
    metadata: ServiceAccountFacts,
}

/// Reads an object of the apiserver, without telling what is in it.
fn decode_object<T: DeserializeOwned>(object: &Value) -> Result<T, ObjectReadError> {
    strict::typed_from_value(object).map_err(|e| e.without_value().into())
}

/// Keeps the identity of an object. Annotations go: they may hold a copy of a Secret.
fn prune_metadata(metadata: ObjectMeta) -> ObjectMeta {
    ObjectMeta {
        name: metadata.name,
        namespace: metadata.namespace,
        uid: metadata.uid,
        ..ObjectMeta::default()
    }
}
