//! Mirror pods, which stand for static pods in the apiserver (MIR). Names and rules follow kubelet
//! `pod/mirror_client.go`, `pod/pod_manager.go` and the static part of `syncPod`.
//!
//! A mirror is never run or admitted. It is known by its metadata alone, so a list of metadata is enough.

use alloc::{collections::BTreeMap, string::String, vec::Vec};
use core::time::Duration;

use serde_json::{Value, json};

use crate::api::{
    MonoTime, ObjectMeta, Pod, PodUid,
    meta::OwnerReference,
    order::OrderExt as _,
    pod::{CONFIG_HASH, CONFIG_MIRROR},
};

/// Mirrors that are remembered. A node has some ten static pods; further pods with the annotation are strangers. A
/// mirror without room is looked at when others are gone.
pub const MAX_MIRRORS: usize = 256;
/// First pause after a failed request for a mirror, milliseconds.
const FIRST_PAUSE_MS: u64 = 1000;
/// Longest pause: that between two syncs of a pod at rest, milliseconds.
const LONGEST_PAUSE_MS: u64 = 60_000;

/// Metadata that an apiserver sets itself, or that must not be said when a pod is created.
const NOT_TO_BE_SENT: [&str; 10] = [
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "generateName",
    "generation",
    "managedFields",
    "ownerReferences",
    "resourceVersion",
    "selfLink",
    "uid",
];

/// Namespace and name of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodFullName {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl PodFullName {
    /// Full name of an object.
    #[must_use]
    pub fn from_metadata(metadata: &ObjectMeta) -> Self {
        Self {
            namespace: metadata.namespace.clone(),
            name: metadata.name.clone(),
        }
    }
}

/// A mirror in the apiserver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorPod {
    /// UID of the mirror, which is not that of the static pod.
    pub uid: PodUid,
    /// Hash of the static pod that is mirrored.
    pub hash: String,
    /// Set if the mirror has a deletionTimestamp.
    pub terminating: bool,
}

impl MirrorPod {
    /// Reads a mirror from the metadata of a pod in the apiserver; `None` if the pod is no mirror.
    #[must_use]
    pub fn from_metadata(metadata: &ObjectMeta) -> Option<Self> {
        Some(Self {
            uid: metadata.uid.clone(),
            hash: metadata.annotations.get(CONFIG_MIRROR)?.clone(),
            terminating: metadata.deletion_timestamp.is_some(),
        })
    }
}

/// Action on the mirror of a static pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MirrorAction {
    /// No action: the mirror is as it should be.
    Nothing,
    /// Delete it with grace 0 and this uid as precondition. If that really deleted it, ask again.
    Delete(PodUid),
    /// Create it.
    Create,
}

/// Decides the action on the mirror of `pod`, a static pod (MIR-04, MIR-05).
#[must_use]
pub fn decide_mirror_action(pod: &ObjectMeta, mirror: Option<&MirrorPod>) -> MirrorAction {
    let hash = pod.annotations.get(CONFIG_HASH);
    match mirror {
        Some(mirror) if !mirror.terminating && Some(&mirror.hash) == hash => MirrorAction::Nothing,
        Some(mirror) => MirrorAction::Delete(mirror.uid.clone()),
        None => MirrorAction::Create,
    }
}

/// Reason why no mirror is created.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MirrorError {
    /// Not a static pod of ours.
    #[error("pod {0} has no hash")]
    NoHash(String),
    /// The pod is of another node: the apiserver would count the mirror as that node's.
    #[error("pod {0} is of another node")]
    OtherNode(String),
    /// The Node, which is to own the mirror, has no uid.
    #[error("the Node object has no uid")]
    NoNodeUid,
    /// NodeRestriction refuses it.
    #[error("pod {0} refers to API objects")]
    References(String),
}

/// The pod to create as the mirror of a static pod (MIR-06, AUTHZ-11).
///
/// - `raw`: the static pod as its record keeps it: without defaults, with identity. `pod`: the same, decoded.
pub fn mirror_pod(
    raw: &Value,
    pod: &Pod,
    node: &str,
    node_uid: &str,
) -> Result<Value, MirrorError> {
    let name = || pod.metadata.name.clone();
    let hash = pod.metadata.annotations.get(CONFIG_HASH);
    let hash = hash.ok_or_else(|| MirrorError::NoHash(name()))?;
    if pod.spec.node_name != node {
        return Err(MirrorError::OtherNode(name()));
    }
    if node_uid.is_empty() {
        return Err(MirrorError::NoNodeUid);
    }
    // Refused when the manifest was read; a record of an older version may still have them.
    if !super::validation::find_static_references(pod).is_empty() {
        return Err(MirrorError::References(name()));
    }
    let mut metadata = raw["metadata"].as_object().cloned().unwrap_or_default();
    for field in NOT_TO_BE_SENT {
        metadata.remove(field);
    }
    let mut annotations = pod.metadata.annotations.clone();
    annotations.insert(CONFIG_MIRROR.into(), hash.clone());
    let owner = OwnerReference {
        controller: Some(true),
        ..OwnerReference::to_node(node, node_uid)
    };
    metadata.insert("annotations".into(), json!(annotations));
    metadata.insert("ownerReferences".into(), json!([owner]));
    Ok(json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": raw["spec"],
    }))
}

/// Kind of an existing pod that was in the way of a mirror (MIR-06).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MirrorConflict {
    /// The mirror itself: it counts as created.
    Same(MirrorPod),
    /// A mirror, of an older version: [`decide_mirror_action`] deletes it.
    Older(MirrorPod),
    /// No mirror: another party made a pod of this name. Logged, and tried again later.
    Stranger,
}

/// Judges the pod that "already exists", as it was then read.
#[must_use]
pub fn judge_existing_pod(existing: &ObjectMeta, pod: &ObjectMeta) -> MirrorConflict {
    match MirrorPod::from_metadata(existing) {
        Some(mirror) if Some(&mirror.hash) == pod.annotations.get(CONFIG_HASH) => {
            MirrorConflict::Same(mirror)
        }
        Some(mirror) => MirrorConflict::Older(mirror),
        None => MirrorConflict::Stranger,
    }
}

#[derive(Clone, Copy, Debug)]
struct MirrorPause {
    until: MonoTime,
    ms: u64,
}

/// Mirrors in the apiserver, by full name; at most [`MAX_MIRRORS`].
#[derive(Clone, Debug, Default)]
pub struct MirrorPods {
    known: BTreeMap<PodFullName, MirrorPod>,
    /// Requests that failed lately: no more entries than static pods and mirrors.
    pauses: BTreeMap<PodFullName, MirrorPause>,
}

impl MirrorPods {
    /// Takes a mirror as it was created or read.
    pub fn record_mirror(&mut self, name: PodFullName, mirror: MirrorPod) {
        if self.known.len() < MAX_MIRRORS || self.known.contains_key(&name) {
            self.known.insert(name, mirror);
        }
    }

    /// Forgets the mirror with this uid. A mirror of the same name with another uid stays.
    pub fn forget_mirror(&mut self, name: &PodFullName, uid: &PodUid) {
        if self.known.get(name).is_some_and(|m| m.uid == *uid) {
            self.known.remove(name);
        }
    }

    /// The mirror of that name.
    #[must_use]
    pub fn find_mirror(&self, name: &PodFullName) -> Option<&MirrorPod> {
        self.known.get(name)
    }

    /// Uids of all mirrors, sorted.
    #[must_use]
    pub fn uids(&self) -> Vec<PodUid> {
        let mut uids: Vec<PodUid> = self.known.values().map(|m| m.uid.clone()).collect();
        uids.stable_sort();
        uids
    }

    /// The name of the pod that a mirror's uid stands for; `None`: it is no mirror's, and stands for itself (MIR-01).
    #[must_use]
    pub fn static_pod_name(&self, uid: &PodUid) -> Option<&PodFullName> {
        let mut known = self.known.iter();
        known.find_map(|(name, mirror)| (mirror.uid == *uid).then_some(name))
    }

    /// Mirrors to delete, with grace 0 and their uid as precondition (MIR-10).
    ///
    /// - `is_configured`: a pod of that full name is configured that is no mirror.
    /// - `still_ends`: `PodTable::is_pod_for_mirror_pod_terminating`.
    pub fn orphaned_mirrors(
        &self,
        is_configured: impl Fn(&PodFullName) -> bool,
        still_ends: impl Fn(&PodFullName) -> bool,
    ) -> Vec<(PodFullName, PodUid)> {
        self.known
            .iter()
            .filter(|(name, _)| !is_configured(name) && !still_ends(name))
            .map(|(name, mirror)| (name.clone(), mirror.uid.clone()))
            .collect()
    }

    /// Earliest time of a request for that mirror: at once, unless one failed lately.
    #[must_use]
    pub fn next_try_at(&self, name: &PodFullName) -> MonoTime {
        self.pauses
            .get(name)
            .map_or(MonoTime(0), |pause| pause.until)
    }

    /// A request failed: the next one comes after 1 s, doubling to 60 s.
    ///
    /// - Returns when that is.
    pub fn record_failure(&mut self, name: &PodFullName, now: MonoTime) -> MonoTime {
        let last = self.pauses.get(name).map_or(0, |pause| pause.ms);
        let ms = last
            .saturating_mul(2)
            .clamp(FIRST_PAUSE_MS, LONGEST_PAUSE_MS);
        let until = now + Duration::from_millis(ms);
        if self.pauses.len() < MAX_MIRRORS || last > 0 {
            self.pauses.insert(name.clone(), MirrorPause { until, ms });
        }
        until
    }

    /// A request succeeded, or there is nothing to ask for any more.
    pub fn clear_failure(&mut self, name: &PodFullName) {
        self.pauses.remove(name);
    }
}

impl core::fmt::Display for PodFullName {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}_{}", self.name, self.namespace)
    }
}

#[cfg(test)]
mod tests {
    use alloc::{string::ToString as _, vec};

    use super::*;
    use crate::{api::WallTime, static_pod};

    fn static_pod() -> (Value, Pod) {
        let raw = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "web", "labels": {"a": "b"}, "annotations": {"note": "x"},
                "resourceVersion": "7", "finalizers": ["a/b"]},
            "spec": {"containers": [{"name": "c", "image": "i", "someday": 1}]},
        });
        let received = *static_pod::prepare_static_pod(raw, "pi", "/m/web.yaml").expect("valid");
        (received.raw, received.pod)
    }

    fn mirror(uid: &str, hash: &str, terminating: bool) -> MirrorPod {
        MirrorPod {
            uid: uid.into(),
            hash: hash.into(),
            terminating,
        }
    }

    fn meta(name: &str, uid: &str, mirrors: Option<&str>) -> ObjectMeta {
        let note = mirrors.map(|hash| (CONFIG_MIRROR.into(), hash.into()));
        ObjectMeta {
            name: name.into(),
            namespace: "ns".into(),
            uid: uid.into(),
            annotations: note.into_iter().collect(),
            ..ObjectMeta::default()
        }
    }

    fn take(mirrors: &mut MirrorPods, pods: &[ObjectMeta]) {
        for pod in pods {
            if let Some(mirror) = MirrorPod::from_metadata(pod) {
                mirrors.record_mirror(PodFullName::from_metadata(pod), mirror);
            }
        }
    }

    fn name(name: &str) -> PodFullName {
        PodFullName {
            namespace: "ns".into(),
            name: name.into(),
        }
    }

    #[test]
    fn what_is_created() {
        // MIR-06 AUTHZ-11
        let (raw, pod) = static_pod();
        let body = mirror_pod(&raw, &pod, "pi", "nu").expect("mirror");
        let hash = pod.metadata.uid.as_str();
        assert_eq!(body["apiVersion"], "v1");
        assert_eq!(body["kind"], "Pod");
        let metadata = &body["metadata"];
        assert_eq!(metadata["name"], "web-pi");
        assert_eq!(metadata["namespace"], "default");
        assert_eq!(metadata["labels"], json!({"a": "b"}));
        assert_eq!(metadata["annotations"][CONFIG_MIRROR], hash);
        assert_eq!(metadata["annotations"][CONFIG_HASH], hash);
        assert_eq!(metadata["annotations"]["note"], "x");
        assert_eq!(
            metadata["ownerReferences"],
            json!([{"apiVersion": "v1", "kind": "Node", "name": "pi", "uid": "nu", "controller": true}])
        );
        for field in ["uid", "resourceVersion", "creationTimestamp"] {
            assert!(metadata.get(field).is_none(), "{field}");
        }
        assert_eq!(body["spec"]["nodeName"], "pi");
        assert_eq!(body["spec"]["containers"][0]["someday"], 1, "as written");
        assert!(body.get("status").is_none());
    }

    #[test]
    fn what_is_not_created() {
        // MIR-06 AUTHZ-11
        type Edit = fn(&mut Pod);
        let cases: [(Edit, MirrorError); 3] = [
            (
                |pod| pod.metadata.annotations.clear(),
                MirrorError::NoHash("web-pi".into()),
            ),
            (
                |pod| pod.spec.node_name = "other".into(),
                MirrorError::OtherNode("web-pi".into()),
            ),
            (
                |pod| pod.spec.service_account_name = "x".into(),
                MirrorError::References("web-pi".into()),
            ),
        ];
        for (edit, error) in cases {
            let (raw, mut pod) = static_pod();
            edit(&mut pod);
            assert_eq!(mirror_pod(&raw, &pod, "pi", "nu"), Err(error));
        }
        let (raw, pod) = static_pod();
        let nobody = mirror_pod(&raw, &pod, "pi", "");
        assert_eq!(nobody, Err(MirrorError::NoNodeUid));
    }

    #[test]
    fn reconciling() {
        let mut pod = meta("p", "h1", None);
        pod.annotations = [(CONFIG_HASH.into(), "h1".into())].into();
        let delete = || MirrorAction::Delete("m".into());
        // MIR-04 MIR-05 MIR-09
        for (name, found, want) in [
            (
                "as it should be",
                Some(mirror("m", "h1", false)),
                MirrorAction::Nothing,
            ),
            ("terminating", Some(mirror("m", "h1", true)), delete()),
            (
                "of another version",
                Some(mirror("m", "h2", false)),
                delete(),
            ),
            ("none", None, MirrorAction::Create),
        ] {
            assert_eq!(decide_mirror_action(&pod, found.as_ref()), want, "{name}");
        }
        pod.annotations.clear();
        assert_eq!(
            decide_mirror_action(&pod, Some(&mirror("m", "", false))),
            delete()
        );
    }

    #[test]
    fn what_already_exists() {
        // MIR-06
        let mut pod = meta("p", "h1", None);
        pod.annotations = [(CONFIG_HASH.into(), "h1".into())].into();
        for (hash, want) in [
            (Some("h1"), MirrorConflict::Same(mirror("m", "h1", false))),
            (Some("h2"), MirrorConflict::Older(mirror("m", "h2", false))),
            (None, MirrorConflict::Stranger),
        ] {
            assert_eq!(judge_existing_pod(&meta("p", "m", hash), &pod), want);
        }
    }

    #[test]
    fn known_mirrors() {
        // MIR-01 MIR-03
        let mut mirrors = MirrorPods::default();
        let mut dying = meta("b", "mb", Some("hb"));
        dying.deletion_timestamp = Some(WallTime(0));
        let list = [meta("a", "ma", Some("ha")), dying, meta("c", "uc", None)];
        take(&mut mirrors, &list);
        assert_eq!(mirrors.known.len(), 2);
        assert_eq!(
            mirrors.find_mirror(&name("a")),
            Some(&mirror("ma", "ha", false))
        );
        assert_eq!(
            mirrors.find_mirror(&name("b")),
            Some(&mirror("mb", "hb", true))
        );
        assert_eq!(mirrors.find_mirror(&name("c")), None);
        let uid = |text: &str| PodUid::from(text);
        assert_eq!(mirrors.static_pod_name(&uid("mb")), Some(&name("b")));
        assert_eq!(mirrors.static_pod_name(&uid("uc")), None);
        // MIR-09: gone by its own uid only.
        mirrors.forget_mirror(&name("a"), &uid("other"));
        assert!(mirrors.find_mirror(&name("a")).is_some());
        mirrors.forget_mirror(&name("a"), &uid("ma"));
        assert!(mirrors.find_mirror(&name("a")).is_none());
    }

    #[test]
    fn orphans() {
        // MIR-10
        let mut mirrors = MirrorPods::default();
        let list = ["kept", "orphan", "ends"].map(|n| meta(n, &["m", n].concat(), Some("h")));
        take(&mut mirrors, &list);
        assert_eq!(
            mirrors.orphaned_mirrors(|n| n.name == "kept", |n| n.name == "ends"),
            [(name("orphan"), "morphan".into())]
        );
    }

    #[test]
    fn bounds_and_pauses() {
        let mut mirrors = MirrorPods::default();
        let many: Vec<ObjectMeta> = (0..MAX_MIRRORS + 9)
            .map(|n| meta(&["p", &n.to_string()].concat(), "u", Some("h")))
            .collect();
        take(&mut mirrors, &many);
        assert_eq!(mirrors.known.len(), MAX_MIRRORS);
        let p = name("p0");
        assert_eq!(mirrors.next_try_at(&p), MonoTime(0));
        let mut now = MonoTime(0);
        let mut pauses = vec![];
        for _ in 0..8 {
            let next = mirrors.record_failure(&p, now);
            assert_eq!(mirrors.next_try_at(&p), next);
            pauses.push(next.since_ms(now) / 1000);
            now = next;
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        mirrors.clear_failure(&p);
        assert_eq!(mirrors.next_try_at(&p), MonoTime(0));
    }
}
