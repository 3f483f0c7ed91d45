//! PersistentVolumes of claims: the check that this pod may use one on this node, and its source (VOL-16, VOL-17,
//! VOL-33).
//!
//! Names and texts follow kubelet `volumemanager/populator/desired_state_of_world_populator.go`.

use alloc::{collections::BTreeMap, string::String, vec::Vec};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::node_selector;
use crate::api::pod::{HostPathVolume, NfsVolume, Volume};
use crate::api::storage::{PersistentVolume, PersistentVolumeClaim};
use crate::api::strict::{self, WrongValue};
use crate::api::{Pod, PodError};

/// Finalizer of a claim that is still in use.
const IN_USE: &str = "kubernetes.io/pvc-protection";
/// Annotation of a volume: a group whose members may use it.
const GROUP: &str = "pv.beta.kubernetes.io/gid";
/// Longest name of a claim, bytes.
const MAX_NAME_BYTES: usize = 253;

/// A volume that a claim is bound to, as far as it is mounted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BoundVolume {
    /// Name of the PersistentVolume, and of its directory.
    pub name: String,
    /// A path of the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_path: Option<HostPathVolume>,
    /// A directory of the node's own disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local_path: Option<String>,
    /// An NFS share.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nfs: Option<NfsVolume>,
    /// Options for mount.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mount_options: Vec<String>,
    /// Set if the volume is read-only for every container.
    pub read_only: bool,
    /// Group that containers of the pod get beside their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<i64>,
}

/// Name of the claim that a volume uses; `None`: it uses none.
#[must_use]
pub fn claim_name_of_volume(pod: &Pod, volume: &Volume) -> Option<String> {
    if let Some(claim) = &volume.persistent_volume_claim {
        return Some(claim.claim_name.clone());
    }
    let own = || format!("{}-{}", pod.metadata.name, volume.name);
    volume.ephemeral.as_ref().map(|_| own())
}

/// Checks a claim that `volume` of `pod` uses; returns the name of the volume that it is bound to.
///
/// Errors: the reason why the claim cannot be used now; to be tried again.
pub fn bound_volume_name(
    pod: &Pod,
    volume: &Volume,
    claim: &PersistentVolumeClaim,
) -> Result<String, PodError> {
    let name = &claim.metadata.name;
    let at = format!("{}/{name}", claim.metadata.namespace);
    let is_own = || {
        let owners = &claim.metadata.owner_references;
        owners
            .iter()
            .any(|owner| owner.controller == Some(true) && *owner.uid == *pod.metadata.uid)
    };
    if volume.ephemeral.is_some() && !is_own() {
        return Err(PodError::Object(format!(
            "PVC {at} was not created for pod {}",
            pod.metadata.name
        )));
    }
    let meta = &claim.metadata;
    if meta.deletion_timestamp.is_some() && !meta.finalizers.iter().any(|f| f == IN_USE) {
        return Err(PodError::Object(format!("PVC {at} is being deleted")));
    }
    let volume_name = &claim.spec.volume_name;
    if claim.status.phase != "Bound" || volume_name.is_empty() {
        return Err(PodError::Object(format!(
            "PVC {at} has non-bound phase ({:?}) or empty pvc.Spec.VolumeName ({volume_name:?})",
            claim.status.phase
        )));
    }
    check_volume_mode(pod, volume, &claim.spec.volume_mode)?;
    if volume_name.len() > MAX_NAME_BYTES
        || volume_name.contains('/')
        || volume_name.starts_with('.')
    {
        return Err(PodError::Object(format!(
            "PVC {at} names a volume {volume_name:?}, which is not a valid name"
        )));
    }
    Ok(volume_name.clone())
}

/// Checks that containers use a volume by its mode: mounted as a file system, or as a device.
fn check_volume_mode(pod: &Pod, volume: &Volume, mode: &str) -> Result<(), PodError> {
    let name = &volume.name;
    let mut containers = pod.spec.all_containers();
    let as_device = pod
        .spec
        .all_containers()
        .any(|c| c.volume_devices.iter().any(|d| d.name == *name));
    let as_files = containers.any(|c| c.mounts_volume(name));
    match mode {
        "" | "Filesystem" if as_device => Err(PodError::Spec(format!(
            "volume {name} has volumeMode Filesystem, but is specified in volumeDevices"
        ))),
        "" | "Filesystem" => Ok(()),
        "Block" if as_files => Err(PodError::Spec(format!(
            "volume {name} has volumeMode Block, but is specified in volumeMounts"
        ))),
        _ => Err(PodError::Object(format!(
            "volume {name} has volumeMode {mode}, which this agent does not support"
        ))),
    }
}

/// Finds the volume that a claim is bound to; `labels` are the node's.
///
/// Errors: the reason why the volume cannot be mounted.
pub fn resolve_bound_volume(
    volume: &Volume,
    claim: &PersistentVolumeClaim,
    bound: &PersistentVolume,
    node_name: &str,
    labels: &BTreeMap<String, String>,
) -> Result<BoundVolume, PodError> {
    let name = &bound.metadata.name;
    let at = format!("{}/{}", claim.metadata.namespace, claim.metadata.name);
    let spec = &bound.spec;
    match &spec.claim_ref {
        None => {
            return Err(PodError::Object(format!(
                "PV {name} is not bound to PVC {at}: it has no claimRef"
            )));
        }
        Some(other) if other.uid != claim.metadata.uid => {
            return Err(PodError::Object(format!(
                "PV {name} is bound to another claim than PVC {at}: spec.claimRef.uid {:?} is not {:?}",
                other.uid, claim.metadata.uid
            )));
        }
        Some(_) => {}
    }
    let required = spec
        .node_affinity
        .as_ref()
        .and_then(|a| a.required.as_ref());
    if required
        .is_some_and(|r| !node_selector::fits_terms(&r.node_selector_terms, node_name, labels))
    {
        return Err(PodError::Object(format!(
            "MountVolume.NodeAffinity check failed for volume {:?} : no matching NodeSelectorTerms",
            volume.name
        )));
    }
    if !matches!(&*spec.volume_mode, "" | "Filesystem") {
        return Err(PodError::Object(format!(
            "PV {name} has volumeMode {}, which this agent does not support",
            spec.volume_mode
        )));
    }
    let claimed = volume.persistent_volume_claim.as_ref();
    let reads_only = claimed.is_some_and(|c| c.read_only)
        || (!spec.access_modes.is_empty() && spec.access_modes.iter().all(|m| m == "ReadOnlyMany"));
    let group = bound.metadata.annotations.get(GROUP);
    let resolved = BoundVolume {
        name: name.clone(),
        host_path: spec.host_path.clone(),
        local_path: spec.local.as_ref().map(|local| local.path.clone()),
        nfs: spec.nfs.clone(),
        mount_options: spec.mount_options.clone(),
        read_only: reads_only || spec.nfs.as_ref().is_some_and(|nfs| nfs.read_only),
        group: group
            .and_then(|gid| gid.parse().ok())
            .filter(|gid| *gid > 0),
    };
    if resolved.host_path.is_none() && resolved.local_path.is_none() && resolved.nfs.is_none() {
        return Err(PodError::Object(format!(
            "PV {name} is of a type that this agent does not support: only hostPath, local and nfs"
        )));
    }
    if spec
        .local
        .as_ref()
        .is_some_and(|local| local.path.is_empty())
    {
        return Err(PodError::Object(format!("PV {name} has no path")));
    }
    Ok(resolved)
}

/// Reads a claim as the apiserver gives it.
pub fn parse_claim(object: &Value) -> Result<PersistentVolumeClaim, WrongValue> {
    strict::typed_from_value(object)
}

/// Reads a volume as the apiserver gives it.
pub fn parse_volume(object: &Value) -> Result<PersistentVolume, WrongValue> {
    strict::typed_from_value(object)
}

#[cfg(test)]
mod tests {
    use alloc::borrow::ToOwned;

    use serde_json::json;

    use super::*;

    fn pod(volume: Value, containers: Value) -> Pod {
        let pod = json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u"},
            "spec": {"volumes": [volume], "containers": [containers]}});
        serde_json::from_value(pod).expect("pod")
    }

    fn mounted() -> Value {
        json!({"name": "c", "volumeMounts": [{"name": "v", "mountPath": "/v"}]})
    }

    fn a_claim(change: &[(&str, Value)]) -> PersistentVolumeClaim {
        let mut object = json!({"metadata": {"name": "data", "namespace": "ns", "uid": "c1", "finalizers": []},
            "spec": {"volumeName": "pv-1"}, "status": {"phase": "Bound"}});
        for (pointer, value) in change {
            let (parent, field) = pointer.rsplit_once('/').expect("pointer");
            object.pointer_mut(parent).expect("there")[field] = value.clone();
        }
        parse_claim(&object).expect("claim")
    }

    #[test]
    fn claims() {
        // VOL-16
        let plain = json!({"name": "v", "persistentVolumeClaim": {"claimName": "data"}});
        let own = json!({"name": "v", "ephemeral": {}});
        let owner =
            |uid: &str| json!([{"kind": "Pod", "name": "p", "uid": uid, "controller": true}]);
        let device = json!({"name": "c", "volumeDevices": [{"name": "v", "devicePath": "/dev/x"}]});
        let soon = json!("2030-01-01T00:00:00Z");
        for (name, volume, container, change, want) in [
            ("bound", &plain, mounted(), &[][..], "pv-1"),
            (
                "pending",
                &plain,
                mounted(),
                &[("/status/phase", json!("Pending"))],
                "error: PVC ns/data has non-bound phase (\"Pending\") or empty pvc.Spec.VolumeName (\"pv-1\")",
            ),
            (
                "no volume",
                &plain,
                mounted(),
                &[("/spec/volumeName", json!(""))],
                "error: PVC ns/data has non-bound phase (\"Bound\") or empty pvc.Spec.VolumeName (\"\")",
            ),
            (
                "on its way out",
                &plain,
                mounted(),
                &[("/metadata/deletionTimestamp", soon.clone())],
                "error: PVC ns/data is being deleted",
            ),
            (
                "on its way out, and in use",
                &plain,
                mounted(),
                &[
                    ("/metadata/deletionTimestamp", soon),
                    ("/metadata/finalizers", json!([IN_USE])),
                ],
                "pv-1",
            ),
            (
                "a device",
                &plain,
                device,
                &[],
                "error: volume v has volumeMode Filesystem, but is specified in volumeDevices",
            ),
            (
                "a block device as files",
                &plain,
                mounted(),
                &[("/spec/volumeMode", json!("Block"))],
                "error: volume v has volumeMode Block, but is specified in volumeMounts",
            ),
            (
                "a path for a name",
                &plain,
                mounted(),
                &[("/spec/volumeName", json!("../x"))],
                "error: PVC ns/data names a volume \"../x\", which is not a valid name",
            ),
            (
                "its own",
                &own,
                mounted(),
                &[("/metadata/ownerReferences", owner("u"))],
                "pv-1",
            ),
            (
                "another pod's own",
                &own,
                mounted(),
                &[("/metadata/ownerReferences", owner("w"))],
                "error: PVC ns/data was not created for pod p",
            ),
        ] {
            let pod = pod(volume.clone(), container);
            let found = bound_volume_name(&pod, &pod.spec.volumes[0], &a_claim(change));
            assert_eq!(
                found.unwrap_or_else(|e| format!("error: {e}")),
                want,
                "{name}"
            );
        }
        let names = [plain, own, json!({"name": "v", "emptyDir": {}})].map(|volume| {
            let pod = pod(volume, mounted());
            claim_name_of_volume(&pod, &pod.spec.volumes[0])
        });
        assert_eq!(names, [Some("data".into()), Some("p-v".into()), None]);
    }

    #[test]
    fn volumes() {
        // VOL-17 VOL-33
        let labels = BTreeMap::from([("zone".to_owned(), "a".to_owned())]);
        let bound = json!({"uid": "c1", "name": "data", "namespace": "ns"});
        let zone = |zone: &str| {
            json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "zone", "operator": "In", "values": [zone]}]}]}})
        };
        for (name, spec, reads, want) in [
            (
                "hostPath",
                json!({"hostPath": {"path": "/d"}, "claimRef": bound}),
                false,
                "/d",
            ),
            (
                "read by its user",
                json!({"hostPath": {"path": "/d"}, "claimRef": bound}),
                true,
                "/d ro",
            ),
            (
                "local",
                json!({"local": {"path": "/d"}, "claimRef": bound, "nodeAffinity": zone("a"), "accessModes": ["ReadOnlyMany"]}),
                false,
                "local /d ro",
            ),
            (
                "nfs",
                json!({"nfs": {"server": "s", "path": "/x", "readOnly": true}, "claimRef": bound, "mountOptions": ["hard", "vers=4"]}),
                false,
                "s:/x hard,vers=4 ro",
            ),
            (
                "elsewhere",
                json!({"local": {"path": "/d"}, "claimRef": bound, "nodeAffinity": zone("b")}),
                false,
                "error: MountVolume.NodeAffinity check failed for volume \"v\" : no matching NodeSelectorTerms",
            ),
            (
                "another claim's",
                json!({"hostPath": {"path": "/d"}, "claimRef": {"uid": "c0"}}),
                false,
                "error: PV pv-1 is bound to another claim than PVC ns/data: spec.claimRef.uid \"c0\" is not \"c1\"",
            ),
            (
                "nobody's",
                json!({"hostPath": {"path": "/d"}}),
                false,
                "error: PV pv-1 is not bound to PVC ns/data: it has no claimRef",
            ),
            (
                "of another kind",
                json!({"csi": {"driver": "d"}, "claimRef": bound}),
                false,
                "error: PV pv-1 is of a type that this agent does not support: only hostPath, local and nfs",
            ),
        ] {
            let object =
                json!({"metadata": {"name": "pv-1", "annotations": {GROUP: "44"}}, "spec": spec});
            let claimed = json!({"name": "v", "persistentVolumeClaim": {"claimName": "data", "readOnly": reads}});
            let pod = pod(claimed, mounted());
            let pv = parse_volume(&object).expect("volume");
            let found =
                resolve_bound_volume(&pod.spec.volumes[0], &a_claim(&[]), &pv, "n", &labels);
            let shown = found.map_or_else(
                |e| format!("error: {e}"),
                |v| {
                    assert_eq!((&*v.name, v.group), ("pv-1", Some(44)), "{name}");
                    let host = v.host_path.map(|h| h.path);
                    let local = v.local_path.map(|path| format!("local {path}"));
                    let nfs = v
                        .nfs
                        .map(|n| format!("{}:{} {}", n.server, n.path, v.mount_options.join(",")));
                    let mut text = host.or(local).or(nfs).unwrap_or_default();
                    text.push_str(if v.read_only { " ro" } else { "" });
                    text
                },
            );
            assert_eq!(shown, want, "{name}");
        }
    }
}
