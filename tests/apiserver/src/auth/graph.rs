//! What a node is related to: the objects that pods bound to it refer to.
//!
//! Source: `plugin/pkg/auth/authorizer/node/graph.go`. Upstream's graph trails the writes; this one does as far as a
//! test wants it to.

use serde_json::Value;

use crate::json::{list, text};
use crate::rules;
use crate::store::Store;

/// Claims that a pod uses.
pub(crate) fn claims(pod: &Value) -> Vec<String> {
    let name = text(pod, "/metadata/name");
    list(pod, "/spec/volumes")
        .iter()
        .filter_map(|volume| {
            if volume.get("ephemeral").is_some() {
                return Some(format!("{name}-{}", text(volume, "/name")));
            }
            let claim = text(volume, "/persistentVolumeClaim/claimName");
            (!claim.is_empty()).then(|| claim.to_owned())
        })
        .collect()
}

/// Volumes that a node reaches through claims of its pods, by name.
fn volumes<'a>(store: &'a Store, node: &'a str) -> impl Iterator<Item = &'a Value> {
    store
        .iter("persistentvolumes", "")
        .map(|(_, volume)| &**volume)
        .filter(move |volume| {
            let ns = text(volume, "/spec/claimRef/namespace");
            let claim = text(volume, "/spec/claimRef/name");
            !claim.is_empty()
                && store.iter("pods", ns).any(|(_, pod)| {
                    store.in_graph(pod) && grants(pod, node, "persistentvolumeclaims", ns, claim)
                })
        })
}

/// Whether one pod, bound to that node, relates the node to an object.
pub(crate) fn grants(pod: &Value, node: &str, plural: &str, ns: &str, name: &str) -> bool {
    if text(pod, "/spec/nodeName") != node || text(pod, "/metadata/namespace") != ns {
        return false;
    }
    if plural == "pods" {
        return text(pod, "/metadata/name") == name;
    }
    !rules::is_mirror(pod)
        && match plural {
            "secrets" => rules::secrets(pod).contains(name),
            "configmaps" => rules::config_maps(pod).contains(name),
            "serviceaccounts" => text(pod, "/spec/serviceAccountName") == name,
            "persistentvolumeclaims" => claims(pod).iter().any(|c| c == name),
            _ => false,
        }
}

/// Whether a node is related to an object of that resource.
pub(super) fn related(store: &Store, node: &str, plural: &str, ns: &str, name: &str) -> bool {
    let by_pod = || {
        store
            .iter("pods", ns)
            .any(|(_, pod)| store.in_graph(pod) && grants(pod, node, plural, ns, name))
    };
    match plural {
        "secrets" => by_pod() || by_volume(store, node, ns, name),
        "podcertificaterequests" => store
            .find("podcertificaterequests", ns, name)
            .is_some_and(|request| text(request, "/spec/nodeName") == node),
        "persistentvolumes" => volumes(store, node).any(|v| text(v, "/metadata/name") == name),
        _ => by_pod(),
    }
}

/// Secrets that a volume's CSI driver wants.
fn by_volume(store: &Store, node: &str, ns: &str, name: &str) -> bool {
    volumes(store, node).any(|volume| {
        [
            "nodePublishSecretRef",
            "nodeStageSecretRef",
            "nodeExpandSecretRef",
        ]
        .iter()
        .any(|key| {
            let base = format!("/spec/csi/{key}");
            text(volume, &format!("{base}/name")) == name
                && text(volume, &format!("{base}/namespace")) == ns
        })
    })
}
