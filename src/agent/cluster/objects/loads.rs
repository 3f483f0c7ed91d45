//! Objects that one step of a pod uses, read for it.

use alloc::collections::BTreeSet;

use super::{
    content::{ObjectContent, ServiceAccountFacts, named_object_request},
    loaded::LoadedObjects,
    store::{ObjectStore, RequestingPod},
};
use crate::{
    agent::executor::CallCancel,
    api::{Container, Pod, PodError},
    logic::{
        pod_refs::{self, PodObjectKey, PodObjectKind},
        token::service_account_of,
        trust_bundle,
    },
};

impl ObjectStore {
    /// Loads the objects of the pod's volumes, tokens included.
    pub(in crate::agent) async fn load_for_volumes(
        &self,
        pod: &Pod,
        cancel: &CallCancel,
    ) -> LoadedObjects {
        let mut loaded = self
            .load_objects(pod, cancel, pod_refs::refs_of_volumes(pod))
            .await;
        for key in pod_refs::refused_bundles(pod) {
            loaded.put_object(&key, Err(trust_bundle::many_error()));
        }
        loaded.tokens = self.pod_tokens(pod, cancel).await;
        loaded.certificates = self.load_pod_certificates(pod, cancel).await;
        loaded
    }

    /// Loads the objects of the environment of `container`.
    pub(in crate::agent) async fn load_for_environment(
        &self,
        pod: &Pod,
        container: &Container,
        cancel: &CallCancel,
    ) -> LoadedObjects {
        self.load_objects(pod, cancel, pod_refs::refs_of_environment(pod, container))
            .await
    }

    /// Loads the pull secrets of the pod.
    pub(in crate::agent) async fn load_for_pulls(
        &self,
        pod: &Pod,
        cancel: &CallCancel,
    ) -> LoadedObjects {
        self.load_objects(pod, cancel, pod_refs::refs_of_pull_secrets(pod))
            .await
    }

    /// The pod may need its class again, also while nobody answers: what is known of it is kept.
    pub(in crate::agent) fn note_runtime_class(&self, pod: &Pod) {
        if let Some(class) = &pod.spec.runtime_class_name
            && let Err(e) = self.register_references(pod, BTreeSet::from([class_key(class)]))
        {
            self.complain(&e.to_string());
        }
    }

    /// The handler of the pod's RuntimeClass (RC-01). Errors are to be tried again.
    pub(in crate::agent) async fn runtime_handler(
        &self,
        pod: &Pod,
        class: &str,
        cancel: &CallCancel,
    ) -> Result<String, PodError> {
        let key = class_key(class);
        self.register_references(pod, BTreeSet::from([key.clone()]))?;
        let uid = &pod.metadata.uid;
        match self
            .obtain_object(
                RequestingPod { uid, cancel },
                &key,
                named_object_request(&key),
            )
            .await?
        {
            Some(ObjectContent::RuntimeClass(handler)) => Ok(handler),
            _ => Err(PodError::Object(format!(
                "RuntimeClass {class:?} not found"
            ))),
        }
    }

    /// The pod's service account, for credential plugins (ICV-07).
    ///
    /// - Errors: it cannot be read, or there is none.
    pub(in crate::agent) async fn service_account(
        &self,
        pod: &Pod,
        cancel: &CallCancel,
    ) -> Result<ServiceAccountFacts, PodError> {
        let (namespace, name) = (&pod.metadata.namespace, service_account_of(pod));
        let key = PodObjectKey::new(PodObjectKind::ServiceAccount, namespace, name);
        self.register_references(pod, BTreeSet::from([key.clone()]))?;
        let user = RequestingPod {
            uid: &pod.metadata.uid,
            cancel,
        };
        let found = self.obtain_object(user, &key, named_object_request(&key));
        match found.await? {
            Some(ObjectContent::ServiceAccount(facts)) => Ok(facts),
            _ => Err(PodError::Object(format!("{key} not found"))),
        }
    }

    async fn load_objects(
        &self,
        pod: &Pod,
        cancel: &CallCancel,
        keys: Result<BTreeSet<PodObjectKey>, PodError>,
    ) -> LoadedObjects {
        let mut loaded = LoadedObjects::default();
        let meta = &pod.metadata;
        // What was not taken in is missing with the error where it is looked for.
        let keys = match keys.and_then(|keys| self.register_references(pod, keys)) {
            Ok(keys) => keys,
            Err(why) => {
                self.complain(&format!("pod={}/{} {why}", meta.namespace, meta.name));
                loaded.fail_services(why);
                return loaded;
            }
        };
        let user = RequestingPod {
            uid: &meta.uid,
            cancel,
        };
        for key in keys {
            let ask = match key.kind {
                PodObjectKind::TrustBundle => {
                    self.certificates.bundle_request(&key.name, self.now())
                }
                _ => named_object_request(&key),
            };
            let content = self.obtain_object(user, &key, ask).await;
            loaded.put_object(&key, content);
        }
        loaded
    }
}

/// Classes are in no namespace.
fn class_key(class: &str) -> PodObjectKey {
    PodObjectKey::new(PodObjectKind::RuntimeClass, "", class)
}
