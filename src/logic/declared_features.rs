//! Features that this node declares in its status, and those that a pod needs (NDF). Names and rules follow
//! `component-helpers/nodedeclaredfeatures`.

use alloc::{string::String, vec::Vec};

use crate::api::{Pod, pod_status::PodPhase};

use super::restart::has_restart_all_rule;

/// Exec, attach and port forwarding may come as WebSocket in their newest forms (STREAM-11).
const WEB_SOCKETS: &str = "ExtendWebSocketsToKubelet";
/// An exit code may restart all containers of the pod (ACT-72).
const RESTART_ALL: &str = "RestartAllContainersOnContainerExits";
/// A pod can have the network of the host and a user namespace.
const HOST_NETWORK_USERS: &str = "UserNamespacesHostNetworkSupport";

/// Resources of the pod level may change while the pod runs (RSZ-30).
const POD_LEVEL_RESIZE: &str = "InPlacePodLevelResourcesVerticalScaling";

/// Returns the features of this node, sorted, each once. `listens`: the node has a port.
#[must_use]
pub fn declared_features(listens: bool) -> Vec<String> {
    let own = [
        listens.then_some(WEB_SOCKETS),
        Some(POD_LEVEL_RESIZE),
        Some(RESTART_ALL),
    ];
    own.into_iter().flatten().map(Into::into).collect()
}

/// Returns the features that `pod` needs and that are not among `declared`, sorted. A pod that has begun lacks none: it
/// runs on where a node no longer declares what it declared before (NDF-03).
#[must_use]
pub fn missing_features(pod: &Pod, declared: &[String]) -> Vec<&'static str> {
    let of_host = pod.spec.host_network && pod.spec.host_users == Some(false);
    let needed = [
        has_restart_all_rule(pod).then_some(RESTART_ALL),
        of_host.then_some(HOST_NETWORK_USERS),
    ];
    let needed = needed.into_iter().flatten();
    let missing = needed.filter(|name| !declared.iter().any(|d| d == name));
    match pod.status.phase {
        PodPhase::Pending => missing.collect(),
        PodPhase::Running | PodPhase::Succeeded | PodPhase::Failed | PodPhase::Unknown => {
            Vec::new()
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn declared_names() {
        // NDF-01 NDF-04 NODE-15
        // RSZ-30
        let all = declared_features(true);
        assert_eq!(all, [WEB_SOCKETS, POD_LEVEL_RESIZE, RESTART_ALL]);
        assert_eq!(declared_features(false), [POD_LEVEL_RESIZE, RESTART_ALL]);
        assert!(all.is_sorted_by(|a, b| a < b), "sorted, each once");
    }

    #[test]
    fn needs_of_pods() {
        // NDF-02 NDF-03
        let rules = json!([{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [1]}}]);
        let source = json!([{"name": "c", "restartPolicy": "Never", "restartPolicyRules": rules}]);
        let host = json!({"hostNetwork": true, "hostUsers": false});
        let both = json!({"hostNetwork": true, "hostUsers": false, "initContainers": source});
        for (spec, phase, declared, want) in [
            (json!({}), "Pending", false, vec![]),
            (json!({"containers": source}), "Pending", true, vec![]),
            (
                json!({"containers": source}),
                "Pending",
                false,
                vec![RESTART_ALL],
            ),
            (
                json!({"initContainers": source}),
                "Pending",
                false,
                vec![RESTART_ALL],
            ),
            (
                json!({"ephemeralContainers": source}),
                "Pending",
                false,
                vec![],
            ),
            (json!({"hostNetwork": true}), "Pending", true, vec![]),
            (json!({"hostUsers": false}), "Pending", true, vec![]),
            (
                json!({"hostNetwork": true, "hostUsers": true}),
                "Pending",
                true,
                vec![],
            ),
            (host.clone(), "Pending", true, vec![HOST_NETWORK_USERS]),
            (both.clone(), "Pending", true, vec![HOST_NETWORK_USERS]),
            (
                both,
                "Pending",
                false,
                vec![RESTART_ALL, HOST_NETWORK_USERS],
            ),
            (host, "Running", true, vec![]),
        ] {
            let shown = format!("{spec} {phase} {declared}");
            let pod = json!({"spec": spec, "status": {"phase": phase}});
            let pod: Pod = serde_json::from_value(pod).expect("pod");
            let features = if declared {
                declared_features(true)
            } else {
                vec![]
            };
            assert_eq!(missing_features(&pod, &features), want, "{shown}");
        }
    }
}
