//! ConfigMaps and Secrets that lie in the manifest directory, for the static pods beside them.

use alloc::{collections::BTreeMap, sync::Arc};

use serde_json::Value;

use crate::{
    api::{ConfigMap, Secret, order::GatherExt as _, strict},
    source::ObjectKey,
};

/// Annotation with the object as `kubectl apply` was given it.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Objects by namespace and name, shared with the source that read them; its limits bound them.
#[derive(Debug, Default)]
pub(super) struct ManifestObjects {
    config_maps: BTreeMap<ObjectKey, Arc<ConfigMap>>,
    secrets: BTreeMap<ObjectKey, Arc<Secret>>,
}

impl ManifestObjects {
    /// A complete set.
    pub(super) fn new(
        config_maps: BTreeMap<ObjectKey, Arc<ConfigMap>>,
        secrets: BTreeMap<ObjectKey, Arc<Secret>>,
    ) -> Self {
        Self {
            config_maps,
            secrets,
        }
    }

    /// A ConfigMap.
    #[must_use]
    pub(super) fn config_map(&self, namespace: &str, name: &str) -> Option<&ConfigMap> {
        self.config_maps
            .get(&(namespace.to_owned(), name.to_owned()))
            .map(Arc::as_ref)
    }

    /// A Secret.
    #[must_use]
    pub(super) fn secret(&self, namespace: &str, name: &str) -> Option<&Secret> {
        self.secrets
            .get(&(namespace.to_owned(), name.to_owned()))
            .map(Arc::as_ref)
    }

    /// ConfigMaps as Kubernetes objects, sorted by namespace and name; all of them, or those of one namespace.
    pub(super) fn config_maps_shown(&self, namespace: Option<&str>) -> Vec<Value> {
        let maps = objects_in_namespace(&self.config_maps, namespace);
        maps.map(|map| typed(strict::to_value(map), "ConfigMap"))
            .collect()
    }

    /// Secrets as Kubernetes objects without what they hold: in place of `data` stands `dataBytes`, the size of each value.
    /// Sorted like [`ManifestObjects::config_maps_shown`].
    pub(super) fn secrets_shown(&self, namespace: Option<&str>) -> Vec<Value> {
        let secrets = objects_in_namespace(&self.secrets, namespace);
        secrets
            .map(|secret| {
                let mut metadata = secret.metadata.clone();
                // kubectl keeps a copy of the whole object there.
                metadata.annotations.remove(LAST_APPLIED);
                let shell = Secret {
                    metadata,
                    kind: secret.kind.clone(),
                    immutable: secret.immutable,
                    ..Secret::default()
                };
                let mut shown = typed(strict::to_value(&shell), "Secret");
                let sizes = secret.data.iter().map(|(key, v)| (key.clone(), v.0.len()));
                if let Some(fields) = shown.as_object_mut() {
                    fields.remove("data");
                    let sizes = sizes.map(|(key, len)| (key, len.into())).gather_items();
                    fields.insert("dataBytes".into(), Value::Object(sizes));
                }
                shown
            })
            .collect()
    }
}

fn objects_in_namespace<'a, T>(
    all: &'a BTreeMap<ObjectKey, Arc<T>>,
    namespace: Option<&'a str>,
) -> impl Iterator<Item = &'a T> {
    let own = all
        .iter()
        .filter(move |((of, _), _)| namespace.is_none_or(|n| n == of));
    own.map(|(_, object)| object.as_ref())
}

fn typed(object: Result<Value, serde_json::Error>, kind: &str) -> Value {
    let mut object = object.unwrap_or_default();
    object["apiVersion"] = "v1".into();
    object["kind"] = kind.into();
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_shown_without_their_values() {
        let secret = |namespace: &str, name: &str| {
            let mut secret: Secret = serde_json::from_value(serde_json::json!({
                "metadata": {"name": name, "namespace": namespace, "annotations": {"a": "b"}},
                "type": "Opaque",
                "data": {"password": "aHVudGVyMg=="}
            }))
            .expect("secret");
            let copy = r#"{"data":{"password":"aHVudGVyMg=="}}"#;
            let annotations = &mut secret.metadata.annotations;
            annotations.insert(LAST_APPLIED.into(), copy.into());
            ((namespace.to_owned(), name.to_owned()), Arc::new(secret))
        };
        let all = [secret("x", "t"), secret("default", "s")];
        let objects = ManifestObjects::new(BTreeMap::new(), BTreeMap::from(all));
        let shown = objects.secrets_shown(None);
        assert_eq!(
            shown[0],
            serde_json::json!({
                "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
                "metadata": {"name": "s", "namespace": "default", "annotations": {"a": "b"}},
                "dataBytes": {"password": 7}
            })
        );
        assert_eq!(shown.len(), 2);
        assert_eq!(objects.secrets_shown(Some("x"))[0]["metadata"]["name"], "t");
        assert!(objects.config_maps_shown(None).is_empty());
    }
}
