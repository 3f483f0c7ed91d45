//! What one step of a pod uses of objects, read for it.

use alloc::collections::BTreeSet;

use super::{
    content::plain,
    loaded::Loaded,
    store::{Objects, User},
};
use crate::{
    agent::executor::Cancel,
    api::{Container, Pod, PodError},
    logic::pod_refs::{self, Key},
};

impl Objects {
    /// What the pod's volumes hold, tokens included.
    pub(in crate::agent) async fn for_volumes(&self, pod: &Pod, cancel: &Cancel) -> Loaded {
        let mut loaded = self.load(pod, cancel, pod_refs::of_volumes(pod)).await;
        loaded.tokens = self.tokens(pod, cancel).await;
        loaded
    }

    /// What the environment of `container` is made of.
    pub(in crate::agent) async fn for_environment(
        &self,
        pod: &Pod,
        container: &Container,
        cancel: &Cancel,
    ) -> Loaded {
        self.load(pod, cancel, pod_refs::of_environment(pod, container))
            .await
    }

    /// What the pod's images are pulled with.
    pub(in crate::agent) async fn for_pulls(&self, pod: &Pod, cancel: &Cancel) -> Loaded {
        self.load(pod, cancel, pod_refs::of_pulls(pod)).await
    }

    async fn load(
        &self,
        pod: &Pod,
        cancel: &Cancel,
        keys: Result<BTreeSet<Key>, PodError>,
    ) -> Loaded {
        let mut loaded = Loaded::default();
        let meta = &pod.metadata;
        // What was not taken in is missing with the error where it is looked for.
        let keys = match keys.and_then(|keys| self.register(pod, keys)) {
            Ok(keys) => keys,
            Err(why) => {
                self.complain(&format!("pod={}/{} {why}", meta.namespace, meta.name));
                loaded.fail(why);
                return loaded;
            }
        };
        let user = User {
            uid: &meta.uid,
            cancel,
        };
        for key in keys {
            let content = self.obtain(user, &key, plain(&key)).await;
            loaded.take(&key, content);
        }
        loaded
    }
}
