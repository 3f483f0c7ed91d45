//! NodeRestriction: what a node may write within what it may write.
//!
//! Source: `plugin/pkg/admission/noderestriction/admission.go`.

use std::collections::BTreeSet;

use serde_json::Value;

use super::User;
use crate::csr;
use crate::error::ApiError;
use crate::json::{at, has, list, map, text};
use crate::kinds::Kind;
use crate::rules;
use crate::store::Store;

const ALLOWED_LABELS: &[&str] = &[
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
];

/// Which operation admission is asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Create,
    Update,
    Delete,
}

/// One write, as admission sees it.
pub(crate) struct Attributes<'a> {
    pub(crate) kind: &'a Kind,
    pub(crate) sub: &'a str,
    pub(crate) operation: Operation,
    pub(crate) ns: &'a str,
    /// As in the URL; empty for a creation without subresource.
    pub(crate) name: &'a str,
    pub(crate) new: &'a Value,
    pub(crate) old: &'a Value,
    /// May this user request tokens for any audience?
    pub(crate) any_audience: bool,
    /// Audiences are narrowed since 1.33, names in certificate requests since 1.31.
    pub(crate) minor: u32,
}

/// Refuses what a node may not do; others are not looked at.
pub(crate) fn admit(store: &Store, user: &User, a: &Attributes<'_>) -> Result<(), ApiError> {
    if !user.in_group("system:nodes") {
        return Ok(());
    }
    let Some(node) = user.node() else {
        return Ok(());
    };
    let refuse = |why: String| Err(ApiError::forbidden(a.kind, refused_name(a), why));
    match (a.kind.group, a.kind.plural, a.sub) {
        ("", "pods", "") => match a.operation {
            Operation::Create => create_pod(store, node, a),
            Operation::Delete if text(a.old, "/spec/nodeName") != node => refuse(format!(
                "node {node:?} can only delete pods with spec.nodeName set to itself"
            )),
            Operation::Delete => Ok(()),
            Operation::Update => refuse(format!(
                "unexpected operation \"UPDATE\", node {node:?} can only create and delete mirror pods"
            )),
        },
        ("", "pods", "status") => pod_status(node, a),
        ("", "pods", "eviction") => {
            let pod = store
                .find("pods", a.ns, a.name)
                .ok_or_else(|| ApiError::not_found(a.kind, a.name))?;
            if text(pod, "/spec/nodeName") != node {
                return refuse(format!(
                    "node {node} can only evict pods with spec.nodeName set to itself"
                ));
            }
            Ok(())
        }
        ("", "pods", sub) => refuse(format!(
            "unexpected pod subresource {sub:?}, only 'status' and 'eviction' are allowed"
        )),
        ("", "nodes", _) => self::node(node, a),
        ("", "persistentvolumeclaims", "status") => claim_status(node, a),
        ("", "persistentvolumeclaims", _) => refuse("may only update PVC status".to_owned()),
        ("", "serviceaccounts", "token") => token(store, node, user, a),
        ("coordination.k8s.io", "leases", _) => {
            if a.ns != "kube-node-lease" {
                return refuse(
                    "can only access leases in the \"kube-node-lease\" system namespace".to_owned(),
                );
            }
            let name = match a.operation {
                Operation::Create => text(a.new, "/metadata/name"),
                Operation::Update | Operation::Delete => a.name,
            };
            if name != node {
                return refuse(
                    "can only access node lease with the same name as the requesting node"
                        .to_owned(),
                );
            }
            Ok(())
        }
        ("certificates.k8s.io", "podcertificaterequests", _) => certificate_of_pod(store, node, a),
        ("certificates.k8s.io", "certificatesigningrequests", "")
            if a.operation == Operation::Create && a.minor >= 31 =>
        {
            let signer = text(a.new, "/spec/signerName");
            if signer != csr::CLIENT_SIGNER && signer != csr::SERVING_SIGNER {
                return Ok(());
            }
            match csr::parse(a.new) {
                Err(why) => refuse(format!("unable to parse csr: {why}")),
                Ok(request) if request.common_name != user.name => {
                    refuse(format!("can only create a node CSR with CN={}", user.name))
                }
                Ok(_) => Ok(()),
            }
        }
        _ => Ok(()),
    }
}

fn refused_name<'a>(a: &'a Attributes<'_>) -> &'a str {
    if a.name.is_empty() {
        text(a.new, "/metadata/name")
    } else {
        a.name
    }
}

/// A node asks only for pods of its own, and as they are.
fn certificate_of_pod(store: &Store, node: &str, a: &Attributes<'_>) -> Result<(), ApiError> {
    let refuse = |why: &str| {
        let why = format!("node {node:?}: {why}");
        Err(ApiError::forbidden(a.kind, refused_name(a), why))
    };
    if a.operation != Operation::Create {
        return refuse("may only create PodCertificateRequests");
    }
    let spec = |name: &str| text(a.new, &format!("/spec/{name}"));
    let Some(pod) = store.find("pods", a.ns, spec("podName")) else {
        return refuse("the pod is not known");
    };
    let uid_of = |kind: &'static str, ns: &str, name: &str| {
        let found = store.find(kind, ns, name);
        found.map(|object| text(object, "/metadata/uid").to_owned())
    };
    let account_uid = uid_of("serviceaccounts", a.ns, spec("serviceAccountName"));
    let is_right = spec("nodeName") == node
        && text(pod, "/spec/nodeName") == node
        && text(pod, "/metadata/uid") == spec("podUID")
        && text(pod, "/spec/serviceAccountName") == spec("serviceAccountName")
        && account_uid.as_deref() == Some(spec("serviceAccountUID"))
        && uid_of("nodes", "", node).as_deref() == Some(spec("nodeUID"));
    if rules::is_mirror(pod) || !is_right {
        return refuse("the request is not that of a pod of the node");
    }
    Ok(())
}

fn create_pod(store: &Store, node: &str, a: &Attributes<'_>) -> Result<(), ApiError> {
    let refuse = |why: String| Err(ApiError::forbidden(a.kind, refused_name(a), why));
    let pod = a.new;
    if !rules::is_mirror(pod) {
        return refuse(format!(
            "pod does not have \"kubernetes.io/config.mirror\" annotation, node {node:?} can only create mirror pods"
        ));
    }
    if text(pod, "/spec/nodeName") != node {
        return refuse(format!(
            "node {node:?} can only create pods with spec.nodeName set to itself"
        ));
    }
    let owner = match list(pod, "/metadata/ownerReferences") {
        [one] => one,
        [] => {
            return refuse(format!(
                "node {node:?} can only create pods with an owner reference set to itself"
            ));
        }
        _ => {
            return refuse(format!(
                "node {node:?} can only create pods with a single owner reference set to itself"
            ));
        }
    };
    if text(owner, "/apiVersion") != "v1"
        || text(owner, "/kind") != "Node"
        || text(owner, "/name") != node
    {
        return refuse(format!(
            "node {node:?} can only create pods with an owner reference set to itself"
        ));
    }
    if at(owner, "/controller").as_bool() != Some(true) {
        return refuse(format!(
            "node {node:?} can only create pods with a controller owner reference set to itself"
        ));
    }
    if at(owner, "/blockOwnerDeletion").as_bool() == Some(true) {
        return refuse(format!(
            "node {node:?} must not set blockOwnerDeletion on an owner reference"
        ));
    }
    let nodes = crate::kinds::plural("nodes").ok_or_else(ApiError::no_route)?;
    let object = store
        .find("nodes", "", node)
        .ok_or_else(|| ApiError::not_found(nodes, node))?;
    let (given, uid) = (text(owner, "/uid"), text(object, "/metadata/uid"));
    if given != uid {
        return refuse(format!(
            "node {node} UID mismatch: expected {given} got {uid}"
        ));
    }
    if let Some(what) = rules::api_references(pod) {
        return refuse(format!(
            "node {node:?} can not create pods that reference {what}"
        ));
    }
    Ok(())
}

fn pod_status(node: &str, a: &Attributes<'_>) -> Result<(), ApiError> {
    let refuse = |why: String| Err(ApiError::forbidden(a.kind, refused_name(a), why));
    if text(a.old, "/spec/nodeName") != node {
        return refuse(format!(
            "node {node:?} can only update pod status for pods with spec.nodeName set to itself"
        ));
    }
    let same = |pointer: &str| at(a.old, pointer) == at(a.new, pointer);
    if !same("/metadata/labels") {
        return refuse(format!(
            "node {node:?} cannot update labels through pod status"
        ));
    }
    if !same("/status/resourceClaimStatuses") {
        return refuse(format!(
            "node {node:?} cannot update resource claim statues"
        ));
    }
    if !same("/status/extendedResourceClaimStatus") {
        return refuse(format!(
            "node {node:?} cannot update extended resource claim status"
        ));
    }
    Ok(())
}

/// Labels that differ between two objects, by key.
fn changed_labels<'a>(new: &'a Value, old: &'a Value) -> BTreeSet<&'a str> {
    let value = |object: &Value, key: &str| object["metadata"]["labels"].get(key).cloned();
    map(new, "/metadata/labels")
        .chain(map(old, "/metadata/labels"))
        .map(|(key, _)| key)
        .filter(|key| value(new, key) != value(old, key))
        .collect()
}

fn within(domain: &str, parent: &str) -> bool {
    domain == parent
        || domain
            .strip_suffix(parent)
            .is_some_and(|head| head.ends_with('.'))
}

fn label_forbidden(key: &str) -> bool {
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    if within(domain, "node-restriction.kubernetes.io") {
        return true;
    }
    let reserved = within(domain, "kubernetes.io") || within(domain, "k8s.io");
    let kubelet = within(domain, "kubelet.kubernetes.io") || within(domain, "node.kubernetes.io");
    reserved && !kubelet && !ALLOWED_LABELS.contains(&key)
}

fn node(node: &str, a: &Attributes<'_>) -> Result<(), ApiError> {
    let refuse = |why: String| Err(ApiError::forbidden(a.kind, refused_name(a), why));
    let requested = refused_name(a);
    if requested != node {
        return refuse(format!(
            "node {node:?} is not allowed to modify node {requested:?}"
        ));
    }
    let creates = a.operation == Operation::Create;
    if has(a.new, "/spec/configSource")
        && at(a.new, "/spec/configSource") != at(a.old, "/spec/configSource")
    {
        return refuse(format!(
            "node {node:?} is not allowed to update configSource to a new non-nil configSource"
        ));
    }
    if !creates {
        // An absent list and an empty one are the same.
        if list(a.new, "/spec/taints") != list(a.old, "/spec/taints") {
            return refuse(format!("node {node:?} is not allowed to modify taints"));
        }
        if list(a.new, "/metadata/ownerReferences") != list(a.old, "/metadata/ownerReferences") {
            return refuse(format!(
                "node {node:?} is not allowed to modify ownerReferences"
            ));
        }
    }
    let forbidden: Vec<&str> = changed_labels(a.new, a.old)
        .into_iter()
        .filter(|key| label_forbidden(key))
        .collect();
    if !forbidden.is_empty() {
        let all = forbidden.join(", ");
        return refuse(if creates {
            format!("node {node:?} is not allowed to set the following labels: {all}")
        } else {
            format!("is not allowed to modify labels: {all}")
        });
    }
    Ok(())
}

fn claim_status(node: &str, a: &Attributes<'_>) -> Result<(), ApiError> {
    let strip = |value: &Value| {
        let mut value = value.clone();
        if let Some(metadata) = value["metadata"].as_object_mut() {
            metadata.remove("resourceVersion");
        }
        if let Some(status) = value["status"].as_object_mut() {
            for key in [
                "capacity",
                "conditions",
                "allocatedResourceStatuses",
                "allocatedResources",
            ] {
                status.remove(key);
            }
        }
        value
    };
    if strip(a.new) != strip(a.old) {
        return Err(ApiError::forbidden(
            a.kind,
            a.name,
            format!(
                "node {node:?} is not allowed to update fields other than status.quantity and status.conditions"
            ),
        ));
    }
    Ok(())
}

fn token(store: &Store, node: &str, user: &User, a: &Attributes<'_>) -> Result<(), ApiError> {
    let refuse = |why: String| Err(ApiError::forbidden(a.kind, a.name, why));
    let bound = at(a.new, "/spec/boundObjectRef");
    if text(bound, "/apiVersion") != "v1"
        || text(bound, "/kind") != "Pod"
        || text(bound, "/name").is_empty()
    {
        return refuse("node requested token not bound to a pod".to_owned());
    }
    let uid = text(bound, "/uid");
    if uid.is_empty() {
        return refuse("node requested token with a pod binding without a uid".to_owned());
    }
    let pods = crate::kinds::plural("pods").ok_or_else(ApiError::no_route)?;
    let name = text(bound, "/name");
    let pod = store
        .find("pods", a.ns, name)
        .ok_or_else(|| ApiError::not_found(pods, name))?;
    if text(pod, "/metadata/uid") != uid {
        return refuse(format!(
            "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have \
             been deleted and then recreated"
        ));
    }
    if text(pod, "/spec/nodeName") != node {
        return refuse(
            "node requested token bound to a pod scheduled on a different node".to_owned(),
        );
    }
    if a.minor < 33 {
        return Ok(());
    }
    let wanted = match list(a.new, "/spec/audiences") {
        [] => "",
        [one] => one.as_str().unwrap_or(""),
        _ => return refuse("node may only request 0 or 1 audiences".to_owned()),
    };
    if a.any_audience || has_audience(pod, wanted) {
        return Ok(());
    }
    refuse(format!(
        "audience {wanted:?} not found in pod spec volume, {} is not authorized to request tokens for this audience",
        user.name
    ))
}

/// Whether a volume of the pod asks for tokens of that audience.
fn has_audience(pod: &Value, wanted: &str) -> bool {
    list(pod, "/spec/volumes")
        .iter()
        .flat_map(|volume| list(volume, "/projected/sources"))
        .filter_map(|source| source.get("serviceAccountToken"))
        .any(|token| text(token, "/audience") == wanted)
}
