//! core/v1 PersistentVolumeClaim and PersistentVolume, limited to what mounting them needs.
#![expect(missing_docs, reason = "field names and meanings are those of core/v1")]

use alloc::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::WallTime;
use super::meta::OwnerReference;
use super::pod::{HostPathVolume, NfsVolume, NodeSelector, is_default, object};

object!(
    /// A claim, as far as a pod's volume needs it.
    PersistentVolumeClaim { metadata: StorageMeta, spec: ClaimSpec, status: ClaimStatus }
);
object!(StorageMeta {
    name: String,
    namespace: String,
    uid: String,
    deletion_timestamp: Option<WallTime>,
    finalizers: Vec<String>,
    owner_references: Vec<OwnerReference>,
    annotations: BTreeMap<String, String>,
});
object!(ClaimSpec {
    volume_name: String,
    /// `Filesystem` when empty.
    volume_mode: String,
});
object!(ClaimStatus { phase: String });

object!(
    /// A volume of the cluster, to which a claim is bound.
    PersistentVolume { metadata: StorageMeta, spec: VolumeSpec }
);
object!(VolumeSpec {
    claim_ref: Option<ClaimRef>,
    access_modes: Vec<String>,
    mount_options: Vec<String>,
    /// `Filesystem` when empty.
    volume_mode: String,
    node_affinity: Option<VolumeNodeAffinity>,
    host_path: Option<HostPathVolume>,
    local: Option<LocalVolume>,
    nfs: Option<NfsVolume>,
});
object!(ClaimRef {
    namespace: String,
    name: String,
    uid: String,
});
object!(LocalVolume { path: String, fs_type: Option<String> });
object!(VolumeNodeAffinity { required: Option<NodeSelector> });
