//! Flags of a kubelet that this agent accepts and ignores, so that a unit written for a kubelet starts it too
//! (KADM-03).
//!
//! They are flags of kubelet 1.36 without a meaning here, and flags that were removed since 1.30. Each one that is
//! given causes one warning. A value has to have the form that a kubelet asks for.

use super::flags::Kind::{self, List, Map, Number, Size, Switch, Text, Time};

/// Names without dashes, and kinds of their values. Sorted by name.
#[rustfmt::skip]
pub(super) const FLAGS: &[(&str, Kind)] = &[
    ("application-metrics-count-limit", Number),
    ("boot-id-file", Text),
    ("cloud-config", Text),
    ("container-hints", Text),
    ("containerd", Text),
    ("containerd-namespace", Text),
    ("contention-profiling", Switch),
    ("cpu-manager-policy", Text),
    ("cpu-manager-policy-options", Map("=")),
    ("cpu-manager-reconcile-period", Time),
    ("enable-load-reader", Switch),
    ("event-storage-age-limit", Text),
    ("event-storage-event-limit", Text),
    ("exit-on-lock-contention", Switch),
    ("experimental-allocatable-ignore-eviction", Switch),
    ("experimental-mounter-path", Text),
    ("global-housekeeping-interval", Time),
    ("hairpin-mode", Text),
    ("housekeeping-interval", Time),
    ("iptables-drop-bit", Number),
    ("iptables-masquerade-bit", Number),
    ("keep-terminated-pod-volumes", Switch),
    ("kernel-memcg-notification", Switch),
    ("kube-api-content-type", Text),
    ("kubelet-cgroups", Text),
    ("lock-file", Text),
    ("log-cadvisor-usage", Switch),
    ("log-flush-frequency", Time),
    ("log-json-info-buffer-size", Size),
    ("log-json-split-stream", Switch),
    ("log-text-info-buffer-size", Size),
    ("log-text-split-stream", Switch),
    ("logging-format", Text),
    ("machine-id-file", Text),
    ("make-iptables-util-chains", Switch),
    ("memory-manager-policy", Text),
    ("pod-infra-container-image", Text),
    ("protect-kernel-defaults", Switch),
    ("qos-reserved", Map("=")),
    ("register-schedulable", Switch),
    ("reserved-memory", List),
    ("runtime-cgroups", Text),
    ("storage-driver-buffer-duration", Time),
    ("storage-driver-db", Text),
    ("storage-driver-host", Text),
    ("storage-driver-password", Text),
    ("storage-driver-secure", Switch),
    ("storage-driver-table", Text),
    ("storage-driver-user", Text),
    ("system-cgroups", Text),
    ("topology-manager-policy", Text),
    ("topology-manager-policy-options", Map("=")),
    ("topology-manager-scope", Text),
    ("vmodule", Text),
    ("volume-plugin-dir", Text),
];

/// Finds the flag of this name, with the kind of its value.
pub(super) fn find(name: &str) -> Option<&'static (&'static str, Kind)> {
    let at = FLAGS.binary_search_by_key(&name, |(name, _)| name).ok()?;
    FLAGS.get(at)
}
