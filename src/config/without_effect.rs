//! Flags, keys and feature gates of a kubelet that this agent accepts and ignores, so that a unit and a file written for
//! a kubelet start it too (KADM-03, CONF-22).
//!
//! Flags are those of kubelet 1.36 without a meaning here, and flags that were removed since 1.30. A value has to have
//! the form that a kubelet asks for. Each flag, key and gate that asks for something causes one warning.

use serde_json::Value;

use super::FieldWarning;
use super::flags::FlagValueKind::{self, List, Map, Number, Size, Switch, Text, Time};
use super::gates::MEMORY_QOS;

/// Names without dashes, and kinds of their values. Sorted by name.
#[rustfmt::skip]
pub(super) const FLAGS: &[(&str, FlagValueKind)] = &[
    ("application-metrics-count-limit", Number),
    ("boot-id-file", Text),
    ("cloud-config", Text),
    ("container-hints", Text),
    ("containerd", Text),
    ("containerd-namespace", Text),
    ("contention-profiling", Switch),
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
    ("max-open-files", Number),
    ("memory-manager-policy", Text),
    ("pod-infra-container-image", Text),
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
pub(super) fn find_ignored_flag(name: &str) -> Option<&'static (&'static str, FlagValueKind)> {
    let at = FLAGS.binary_search_by_key(&name, |(name, _)| name).ok()?;
    FLAGS.get(at)
}

/// Keys of the document without effect, each with the word that says what is so here. Sorted.
#[rustfmt::skip]
const KEYS: &[(&str, &str)] = &[
    ("configMapAndSecretChangeDetectionStrategy", "Cache"),
    ("contentType", "application/json"),
    ("cpuManagerReconcilePeriod", ""),
    ("enableContentionProfiling", ""),
    ("enableDebugFlagsHandler", ""),
    ("enableProfilingHandler", ""),
    ("hairpinMode", "none"),
    ("iptablesDropBit", ""),
    ("iptablesMasqueradeBit", ""),
    ("kernelMemcgNotification", ""),
    ("kubeletCgroups", ""),
    ("logging.flushFrequency", ""),
    ("logging.format", "text"),
    ("logging.options", ""),
    ("logging.vmodule", ""),
    ("makeIPTablesUtilChains", ""),
    ("maxOpenFiles", "1000000"),
    ("memoryManagerPolicy", "None"),
    ("qosReserved", ""),
    ("reservedMemory", ""),
    ("showHiddenMetricsForVersion", ""),
    ("systemCgroups", ""),
    ("topologyManagerPolicy", "none"),
    ("topologyManagerPolicyOptions", ""),
    ("topologyManagerScope", "container"),
    ("tracing", ""),
    ("volumePluginDir", ""),
];

/// Keys of `picolet` without effect if a container runtime runs the pods.
const KEYS_OF_OWN_RUNTIME: &[&str] = &[
    "builtinNetwork.bridge",
    "cniBinDir",
    "cniConfDir",
    "imageDir",
    "ociRuntime",
    "ociRuntimeRoot",
];

/// Removes what is without effect from a document, and returns one warning for each.
///
/// A key stays if its value asks for nothing: kubeadm writes many of those.
pub(super) fn remove_ignored_keys(document: &mut Value) -> Vec<FieldWarning> {
    let mut said = Vec::new();
    for (key, so) in KEYS {
        let (parent, name) = match key.split_once('.') {
            Some((parent, name)) => (document.get_mut(parent), name),
            None => (Some(&mut *document), *key),
        };
        let fields = parent.and_then(Value::as_object_mut);
        let is_ignored =
            |value: &Value| !asks_nothing(value) && value.to_string().trim_matches('"') != *so;
        if let Some(fields) = fields
            && fields.get(name).is_some_and(is_ignored)
        {
            fields.remove(name);
            said.push(FieldWarning::new(key, "is without effect here"));
        }
    }
    // The pages of a kubelet that show files are absent: only queries are answered.
    let handler = "enableSystemLogHandler";
    if document[handler] == true && document["enableSystemLogQuery"] != true {
        if let Some(fields) = document.as_object_mut() {
            fields.remove(handler);
        }
        said.push(FieldWarning::new(handler, "is without effect here"));
    }
    let gates = document.get_mut("featureGates");
    if let Some(gates) = gates.and_then(Value::as_object_mut) {
        gates.retain(|name, _| {
            let counts = name == MEMORY_QOS;
            if !counts {
                let field = format!("featureGates.{name}");
                said.push(FieldWarning::new(&field, "is without effect here"));
            }
            counts
        });
    }
    let runtime = "containerRuntimeEndpoint";
    for key in KEYS_OF_OWN_RUNTIME {
        let own = &document["picolet"];
        let value = key.split('.').fold(own, |value, name| &value[name]);
        if !asks_nothing(value) && !asks_nothing(&document[runtime]) {
            let field = format!("picolet.{key}");
            let text = format!("is without effect with {runtime}");
            said.push(FieldWarning::new(&field, &text));
        }
    }
    said
}

fn asks_nothing(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Bool(true) => false,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => matches!(text.as_str(), "" | "0" | "0s"),
        Value::Array(items) => items.iter().all(asks_nothing),
        Value::Object(fields) => fields.values().all(asks_nothing),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{decode, file, keys};
    use super::*;

    #[test]
    fn keys_without_effect_are_those_that_nothing_reads() {
        // CONF-22: no field takes a list of lists.
        let is_read = |key: &str| {
            let mut names = key.rsplit('.');
            let last = names.next().unwrap_or("");
            let document = names.fold(json!({last: [[]]}), |inner, name| json!({name: inner}));
            decode::deserialize_value::<file::KubeletConfiguration>(&document).is_err()
        };
        let of_kubelet = |key: &&str| {
            let is_leaf = matches!(keys::find_key_place(key), keys::KeyPlace::Leaf);
            is_leaf && !key.starts_with("picolet.")
        };
        for key in keys::key_names().filter(of_kubelet) {
            let top = key.split('.').next().unwrap_or(key);
            let is_listed = KEYS.iter().any(|(listed, _)| *listed == top);
            let of_every_object = matches!(key, "apiVersion" | "kind");
            assert_eq!(is_read(key) || of_every_object, !is_listed, "{key}");
        }
        for (key, _) in KEYS {
            assert!(!is_read(key), "{key}");
            assert!(
                file::tests::is_known(key.split('.').next().unwrap_or(key)),
                "{key}"
            );
        }
        assert!(KEYS.is_sorted());
    }

    #[test]
    fn each_key_that_asks_for_something_is_said_once() {
        // CONF-22
        let mut document = json!({
            "memoryManagerPolicy": "Static", "topologyManagerPolicy": "none", "enableSystemLogHandler": true,
            "hairpinMode": "veth", "kernelMemcgNotification": false, "maxPods": 7,
            "configMapAndSecretChangeDetectionStrategy": "Watch", "reservedMemory": [],
            "maxOpenFiles": 4096, "tracing": {"endpoint": "a:1"},
            "logging": {"format": "json", "verbosity": 2},
            "featureGates": {"MemoryQoS": true, "NodeSwap": false},
        });
        let said = remove_ignored_keys(&mut document);
        let named: Vec<&str> = said.iter().map(|one| &*one.field).collect();
        for one in &said {
            let message = format!("{} is without effect here", one.field);
            assert_eq!(one.message, message);
        }
        assert_eq!(
            named,
            [
                "configMapAndSecretChangeDetectionStrategy",
                "hairpinMode",
                "logging.format",
                "maxOpenFiles",
                "memoryManagerPolicy",
                "tracing",
                "enableSystemLogHandler",
                "featureGates.NodeSwap",
            ]
        );
        assert_eq!(
            document,
            json!({
                "topologyManagerPolicy": "none", "kernelMemcgNotification": false, "maxPods": 7, "reservedMemory": [],
                "logging": {"verbosity": 2}, "featureGates": {"MemoryQoS": true},
            })
        );
    }

    #[test]
    fn keys_of_the_own_runtime_are_said_beside_another() {
        // CONF-22
        let own = json!({"imageDir": "/i", "cniBinDir": "", "builtinNetwork": {"bridge": "b", "subnet": "s"}});
        let mut document = json!({"picolet": own});
        assert!(remove_ignored_keys(&mut document).is_empty());
        document["containerRuntimeEndpoint"] = "unix:///r".into();
        let said = remove_ignored_keys(&mut document);
        assert!(said.iter().map(|one| &*one.message).eq(
            ["builtinNetwork.bridge", "imageDir"].map(|key| format!(
                "picolet.{key} is without effect with containerRuntimeEndpoint"
            ))
        ));
    }

    #[test]
    fn what_kubeadm_writes_costs_no_warning() {
        // CONF-22
        let mut document = json!({
            "cgroupDriver": "systemd", "containerRuntimeEndpoint": "", "cpuManagerReconcilePeriod": "0s",
            "crashLoopBackOff": {}, "evictionPressureTransitionPeriod": "0s", "maxOpenFiles": 1000000, "memorySwap": {},
            "logging": {
                "flushFrequency": 0, "verbosity": 0,
                "options": {"json": {"infoBufferSize": "0"}, "text": {"infoBufferSize": "0"}},
            },
            "rotateCertificates": true, "staticPodPath": "/etc/kubernetes/manifests", "volumeStatsAggPeriod": "0s",
        });
        let before = document.clone();
        assert!(remove_ignored_keys(&mut document).is_empty());
        assert_eq!(document, before);
    }
}
