//! ConfigMaps and Secrets that lie in the manifest directory, for the static pods beside them.

use alloc::{collections::BTreeMap, sync::Arc};

use crate::{
    api::{ConfigMap, Secret},
    source::ObjectKey,
};

/// Objects by namespace and name, shared with the source that read them; its limits bound them.
#[derive(Debug, Default)]
pub(super) struct Objects {
    config_maps: BTreeMap<ObjectKey, Arc<ConfigMap>>,
    secrets: BTreeMap<ObjectKey, Arc<Secret>>,
}

impl Objects {
    /// Takes a complete set.
    pub(super) fn replace(
        &mut self,
        config_maps: BTreeMap<ObjectKey, Arc<ConfigMap>>,
        secrets: BTreeMap<ObjectKey, Arc<Secret>>,
    ) {
        *self = Self {
            config_maps,
            secrets,
        };
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
}
