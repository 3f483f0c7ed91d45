//! core/v1 Node, limited to what the agent reads or writes. Field names and meanings are upstream's.
//!
//! The agent never sends a whole Node but when it creates one: fields that are not modelled here are other people's, and
//! patches leave them as they are.
#![expect(missing_docs, reason = "field names and meanings are those of core/v1")]

use alloc::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    ObjectMeta, Quantity, WallTime,
    pod::{is_default, object},
};

/// Amounts by resource name.
pub type ResourceList = BTreeMap<String, Quantity>;

object!(
    /// A node: metadata, spec and status.
    Node { metadata: ObjectMeta, spec: NodeSpec, status: NodeStatus }
);

impl Node {
    /// With `apiVersion` and `kind`, as it stands alone.
    pub fn to_object(&self) -> serde_json::Value {
        let mut object = serde_json::to_value(self).unwrap_or_default();
        object["apiVersion"] = "v1".into();
        object["kind"] = "Node".into();
        object
    }
}

object!(NodeSpec {
    #[serde(rename = "podCIDR")]
    pod_cidr: String,
    /// A CIDR, or one of each family.
    #[serde(rename = "podCIDRs")]
    pod_cidrs: Vec<String>,
    #[serde(rename = "providerID")]
    provider_id: String,
    taints: Vec<Taint>,
    unschedulable: bool,
});

object!(
    /// `effect` is `NoSchedule`, `PreferNoSchedule` or `NoExecute`; `value` may be empty.
    Taint { key: String, value: String, effect: String, time_added: Option<WallTime> }
);

object!(NodeStatus {
    capacity: ResourceList,
    /// Resources that pods may request together.
    allocatable: ResourceList,
    conditions: Vec<NodeCondition>,
    addresses: Vec<NodeAddress>,
    daemon_endpoints: DaemonEndpoints,
    node_info: NodeInfo,
    /// Largest first, at most `nodeStatusMaxImages`.
    images: Vec<ContainerImage>,
    volumes_in_use: Vec<String>,
    volumes_attached: Vec<AttachedVolume>,
    runtime_handlers: Vec<RuntimeHandler>,
    features: Option<NodeFeatures>,
    declared_features: Vec<String>,
});

object!(
    /// `kind` is the field `type`; `status` is `True`, `False` or `LookupError`.
    NodeCondition {
        #[serde(rename = "type")]
        kind: String,
        status: String,
        last_heartbeat_time: Option<WallTime>,
        last_transition_time: Option<WallTime>,
        reason: String,
        message: String,
    }
);

object!(
    /// `kind` is the field `type`: `InternalIP`, `Hostname` and those of cloud providers.
    NodeAddress {
        #[serde(rename = "type")]
        kind: String,
        address: String,
    }
);

object!(DaemonEndpoints {
    kubelet_endpoint: DaemonEndpoint
});
object!(DaemonEndpoint {
    #[serde(rename = "Port")]
    port: u16
});

/// `nodeInfo`: every text is written, empty or not, as upstream does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeInfo {
    #[serde(rename = "machineID")]
    pub machine_id: String,
    #[serde(rename = "systemUUID")]
    pub system_uuid: String,
    #[serde(rename = "bootID")]
    pub boot_id: String,
    pub kernel_version: String,
    pub os_image: String,
    pub container_runtime_version: String,
    pub kubelet_version: String,
    pub kube_proxy_version: String,
    pub operating_system: String,
    pub architecture: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap: Option<NodeSwap>,
}

object!(
    /// Bytes; absent without swap.
    NodeSwap { capacity: Option<i64> }
);
object!(
    /// Digests before tags, at most 5 names.
    ContainerImage { names: Vec<String>, size_bytes: i64 }
);
object!(AttachedVolume {
    name: String,
    device_path: String
});
object!(
    /// The default handler has an empty name.
    RuntimeHandler { name: String, features: Option<RuntimeHandlerFeatures> }
);
object!(RuntimeHandlerFeatures {
    recursive_read_only_mounts: Option<bool>,
    user_namespaces: Option<bool>,
});
object!(NodeFeatures {
    supplemental_groups_policy: Option<bool>
});

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn as_an_apiserver_writes_it() {
        let text = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": "pi", "uid": "u", "resourceVersion": "7", "labels": {"a": "b"}, "managedFields": []},
            "spec": {"podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24"], "unschedulable": true,
                "taints": [{"key": "k", "effect": "NoExecute", "timeAdded": "2024-01-01T00:00:00Z"}]},
            "status": {
                "capacity": {"cpu": "4", "hugepages-2Mi": "0"},
                "conditions": [{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown",
                    "lastHeartbeatTime": "2024-01-01T00:00:00Z"}],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
                "nodeInfo": {"machineID": "m", "systemUUID": "s", "bootID": "b", "swap": {"capacity": 1024}},
                "runtimeHandlers": [{"name": "", "features": {"userNamespaces": false}}],
                "config": {"error": "of long ago"},
            },
        });
        let node: Node = serde_json::from_value(text).expect("node");
        assert_eq!(node.spec.pod_cidrs, ["10.1.0.0/24"]);
        assert!(node.spec.unschedulable);
        assert_eq!(node.status.conditions[0].kind, "Ready");
        assert_eq!(node.status.daemon_endpoints.kubelet_endpoint.port, 10250);
        let back: Value = serde_json::to_value(&node).expect("text");
        // NODE-13
        assert_eq!(
            back["status"]["daemonEndpoints"],
            json!({"kubeletEndpoint": {"Port": 10250}})
        );
        assert_eq!(back["status"]["nodeInfo"]["kubeProxyVersion"], "");
        assert_eq!(
            back["status"]["nodeInfo"]["swap"],
            json!({"capacity": 1024})
        );
        // What is false is said too.
        assert_eq!(
            back["status"]["runtimeHandlers"][0]["features"],
            json!({"userNamespaces": false})
        );
    }
}
