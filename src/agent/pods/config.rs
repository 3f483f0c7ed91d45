//! Facts remembered of each configured pod besides its worker: enough for admission and to find the users of an object.

use crate::{
    api::{Pod, PodUid, pod::CONFIG_HASH, pod_status::QosClass},
    logic::{
        admission::ActivePod, eviction::has_storage_limit, mirror::PodFullName, mux::PodSource,
        pod_worker::PodFacts, qos::qos_class,
    },
};

/// A configured pod.
#[derive(Clone, Debug)]
pub(in crate::agent) struct PodConfigFacts {
    /// Set if the pod is from a source other than the apiserver.
    pub(in crate::agent) is_static: bool,
    /// Set if `metadata.deletionTimestamp` is.
    pub(in crate::agent) deletion_requested: bool,
    /// Set if the phase of the delivered object is terminal.
    pub(in crate::agent) api_phase_terminal: bool,
    /// Set if the pod mounts or reads a ConfigMap or Secret.
    pub(in crate::agent) uses_objects: bool,
    /// Set if the pod has limits of its own on the node's disk.
    pub(in crate::agent) limits_storage: bool,
    /// Set while the pod waits to be taken in: it takes nothing of the node yet.
    pub(in crate::agent) waits_in_line: bool,
    /// QoS class of the pod.
    pub(in crate::agent) qos: QosClass,
    /// Resources that the pod takes of the node.
    pub(in crate::agent) takes: ActivePod,
    /// Name and grace periods of the pod.
    pub(in crate::agent) id: Box<ConfiguredPodIdentity>,
}

/// Name of a pod, hash of its mirror, and time that it has to end.
#[derive(Clone, Debug)]
pub(in crate::agent) struct ConfiguredPodIdentity {
    /// Full name of the pod.
    pub(in crate::agent) name: PodFullName,
    /// Hash that a static pod's mirror carries; empty without one.
    pub(in crate::agent) hash: String,
    /// `metadata.deletionGracePeriodSeconds`.
    deletion_grace_s: Option<i64>,
    /// `spec.terminationGracePeriodSeconds`.
    pub(in crate::agent) spec_grace_s: Option<i64>,
}

impl PodConfigFacts {
    /// Takes the facts of `pod` that are remembered.
    #[must_use]
    pub(in crate::agent) fn from_pod(source: PodSource, pod: &Pod) -> Self {
        let volumes = pod.spec.volumes.iter().any(|v| {
            v.config_map.is_some()
                || v.secret.is_some()
                || v.projected.as_ref().is_some_and(|p| {
                    p.sources
                        .iter()
                        .any(|s| s.config_map.is_some() || s.secret.is_some())
                })
        });
        let env = pod.spec.all_containers().any(|c| {
            !c.env_from.is_empty()
                || c.env.iter().any(|e| {
                    e.value_from.as_ref().is_some_and(|f| {
                        f.config_map_key_ref.is_some() || f.secret_key_ref.is_some()
                    })
                })
        });
        let hash = pod.metadata.annotations.get(CONFIG_HASH);
        let hash = hash.filter(|_| source != PodSource::Api);
        Self {
            is_static: source != PodSource::Api,
            deletion_requested: pod.metadata.deletion_timestamp.is_some(),
            api_phase_terminal: pod.status.phase.is_terminal(),
            uses_objects: volumes || env,
            limits_storage: has_storage_limit(pod),
            waits_in_line: false,
            qos: qos_class(pod),
            takes: ActivePod::from_pod(pod),
            id: Box::new(ConfiguredPodIdentity {
                name: PodFullName::from_metadata(&pod.metadata),
                hash: hash.cloned().unwrap_or_default(),
                deletion_grace_s: pod.metadata.deletion_grace_period_seconds,
                spec_grace_s: pod.spec.termination_grace_period_seconds,
            }),
        }
    }

    /// Facts that the pod's worker needs.
    pub(in crate::agent) fn worker_facts<'a>(&'a self, uid: &'a PodUid) -> PodFacts<'a> {
        PodFacts {
            uid,
            name: &self.id.name.name,
            namespace: &self.id.name.namespace,
            is_static: self.is_static,
            deletion_requested: self.deletion_requested,
            deletion_grace_s: self.id.deletion_grace_s,
            spec_grace_s: self.id.spec_grace_s,
            phase_terminal: self.api_phase_terminal,
        }
    }
}
