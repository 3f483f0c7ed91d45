//! What is remembered of each configured pod besides its worker: enough for admission and for asking who uses what.

use crate::{
    api::{Pod, pod::CONFIG_HASH, pod_status::QosClass},
    logic::{admission::ActivePod, mirror::FullName, mux::Source, qos::qos_class},
};

/// One configured pod.
#[derive(Clone, Debug)]
pub(in crate::agent) struct ConfigPod {
    /// From a source other than the apiserver.
    pub(in crate::agent) is_static: bool,
    /// `metadata.deletionTimestamp` is set.
    pub(in crate::agent) deletion_requested: bool,
    /// Phase of the delivered object is terminal.
    pub(in crate::agent) api_phase_terminal: bool,
    /// Mounts or reads a ConfigMap or Secret.
    pub(in crate::agent) uses_objects: bool,
    /// Its class.
    pub(in crate::agent) qos: QosClass,
    /// What it takes of the node.
    pub(in crate::agent) takes: ActivePod,
    /// How its mirror is known, of a static pod.
    pub(in crate::agent) static_id: Option<Box<StaticId>>,
}

/// What tells the mirror of a static pod.
#[derive(Clone, Debug)]
pub(in crate::agent) struct StaticId {
    /// Its name.
    pub(in crate::agent) name: FullName,
    /// Its hash; empty if it has none.
    pub(in crate::agent) hash: String,
}

impl ConfigPod {
    /// What is remembered of `pod`.
    #[must_use]
    pub(in crate::agent) fn of(source: Source, pod: &Pod) -> Self {
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
        Self {
            is_static: source != Source::Api,
            deletion_requested: pod.metadata.deletion_timestamp.is_some(),
            api_phase_terminal: pod.status.phase.is_terminal(),
            uses_objects: volumes || env,
            qos: qos_class(pod),
            takes: ActivePod::of(pod),
            static_id: (source != Source::Api).then(|| {
                let hash = pod.metadata.annotations.get(CONFIG_HASH);
                Box::new(StaticId {
                    name: FullName::of(&pod.metadata),
                    hash: hash.cloned().unwrap_or_default(),
                })
            }),
        }
    }
}
