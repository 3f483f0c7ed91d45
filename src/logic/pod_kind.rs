//! Kinds of pods: static or mirror pods, critical pods, pods that wait for the clock.

use alloc::string::String;

use crate::api::{
    Pod,
    pod::{CONFIG_MIRROR, CONFIG_SOURCE, RestartPolicy},
};

/// Priority at and above which a pod is critical.
pub const SYSTEM_CRITICAL_PRIORITY: i32 = 2_000_000_000;
/// Priority of `system-node-critical`.
pub const NODE_CRITICAL_PRIORITY: i32 = 2_000_001_000;

/// Returns true if the pod comes from a source other than the apiserver.
#[must_use]
pub fn is_static(pod: &Pod) -> bool {
    pod.metadata
        .annotations
        .get(CONFIG_SOURCE)
        .is_some_and(|source| source != "api")
}

/// Returns true if the pod only mirrors a static pod in the apiserver.
#[must_use]
pub fn is_mirror(pod: &Pod) -> bool {
    pod.metadata.annotations.contains_key(CONFIG_MIRROR)
}

/// Checks that the pod may be ended on request, to start anew.
///
/// - Errors: the reason why not, in words that follow the pod's name. The pod belongs to the apiserver; or it is to run
///   once, and its end or the start of its active time is on record.
pub fn may_start_anew(pod: &Pod) -> Result<(), &'static str> {
    if !is_static(pod) {
        return Err("belongs to the apiserver: kubectl delete it, and its owner makes another");
    }
    let spec = &pod.spec;
    if spec.restart_policy != RestartPolicy::Always || spec.active_deadline_seconds.is_some() {
        return Err(
            "runs only once: to run it again, edit its manifest, or remove the manifest for a moment",
        );
    }
    Ok(())
}

/// Annotation of a pod that starts nothing before the wall clock is right (TIME-06).
const WAIT_FOR_CLOCK: &str = "picolet/wait-for-clock";
/// Reason of the event of such a pod. Its message: [`WAITS_FOR_CLOCK`].
pub const CLOCK_UNTRUSTED: &str = "ClockUntrusted";
/// Message of the event [`CLOCK_UNTRUSTED`].
pub const WAITS_FOR_CLOCK: &str = "waits until the clock is right: no time service (NTP) has set it since this machine was started";

/// Returns true if nothing of the pod may start before the wall clock is right.
#[must_use]
pub fn waits_for_clock(pod: &Pod) -> bool {
    let word = pod.metadata.annotations.get(WAIT_FOR_CLOCK);
    word.is_some_and(|word| word == "true")
}

/// Returns true if the pod must not be given up for others: static, mirror, or of a system priority.
#[must_use]
pub fn is_critical(pod: &Pod) -> bool {
    is_static(pod)
        || is_mirror(pod)
        || pod
            .spec
            .priority
            .is_some_and(|p| p >= SYSTEM_CRITICAL_PRIORITY)
}

/// Returns true if the pod has at least the priority of `system-node-critical`.
#[must_use]
pub fn is_node_critical(pod: &Pod) -> bool {
    pod.spec
        .priority
        .is_some_and(|p| p >= NODE_CRITICAL_PRIORITY)
}

/// `name_namespace(uid)`, as messages name a pod.
#[must_use]
pub fn pod_ref(pod: &Pod) -> String {
    let meta = &pod.metadata;
    format!("{}_{}({})", meta.name, meta.namespace, meta.uid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_may_start_anew() {
        // DASH-04
        let says = |source: &str, spec: serde_json::Value| {
            let pod = json!({"metadata": {"annotations": {CONFIG_SOURCE: source}}, "spec": spec});
            let pod = serde_json::from_value(pod).expect("pod");
            may_start_anew(&pod).err().unwrap_or_default()
        };
        let always = json!({"restartPolicy": "Always"});
        assert_eq!(says("file", always.clone()), "");
        assert_eq!(says("http", always.clone()), "");
        assert!(says("api", always).contains("kubectl"));
        for once in [
            json!({"restartPolicy": "Never"}),
            json!({"restartPolicy": "OnFailure"}),
            json!({"restartPolicy": "Always", "activeDeadlineSeconds": 9}),
        ] {
            assert!(
                says("file", once.clone()).contains("runs only once"),
                "{once}"
            );
        }
    }
}
