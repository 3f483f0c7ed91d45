use alloc::{
    string::{String, ToString},
    vec::Vec,
};

use serde_json::json;

use super::*;
use crate::static_pod;

/// Merges `patch` into `base`; a list in `patch` replaces.
fn patch(base: &mut Value, patch: Value) {
    match (base, patch) {
        (Value::Object(base), Value::Object(fields)) => {
            for (name, value) in fields {
                self::patch(base.entry(name).or_insert(Value::Null), value);
            }
        }
        (base, value) => *base = value,
    }
}

/// Errors of a valid pod with `spec` patched in and `container` patched into its only container.
fn errors(spec: Value, container: Value) -> Vec<String> {
    let mut raw = json!({
        "metadata": {"name": "pod", "namespace": "default"},
        "spec": {"containers": [], "volumes": [{"name": "v", "emptyDir": {}}]},
    });
    let mut own = json!({"name": "c", "image": "i"});
    patch(&mut own, container);
    raw["spec"]["containers"] = json!([own]);
    patch(&mut raw["spec"], spec);
    let pod = static_pod::decode_recorded_pod(&raw).expect("decodes");
    let mut all = find_unmodelled_fields(&raw);
    all.extend(validate_pod(&pod));
    all.extend(find_static_references(&pod));
    all.iter().map(ToString::to_string).collect()
}

#[test]
fn valid() {
    let none = Vec::<String>::new();
    assert_eq!(errors(json!({}), json!({})), none);
    let spec = json!({
        "initContainers": [
            {"name": "i", "image": "i", "ports": [{"containerPort": 1, "hostPort": 80}],
                "resources": {"limits": {"memory": "1Gi"}, "requests": {"memory": "1Mi"}},
                "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"}]},
            {"name": "s", "image": "i", "restartPolicy": "Always", "startupProbe": {"exec": {"command": ["a"]}},
                "ports": [{"containerPort": 1, "hostPort": 80}]},
        ],
        "volumes": [
            {"name": "v", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
            {"name": "h", "hostPath": {"path": "/a", "type": "Directory"}},
            {"name": "m", "configMap": {"name": "a.b", "items": [{"key": "K_1", "path": "d/f"}]}},
            {"name": "s", "secret": {"secretName": "A_b", "optional": true, "items": [{"key": "a/b", "path": "c"}]}},
            {"name": "d", "downwardAPI": {"items": [
                {"path": "l", "fieldRef": {"fieldPath": "metadata.labels"}},
                {"path": "a", "fieldRef": {"fieldPath": "metadata.annotations['a.io/B']"}},
                {"path": "c", "resourceFieldRef": {"containerName": "c", "resource": "limits.cpu", "divisor": "0.001"}},
                {"path": "c", "resourceFieldRef": {"containerName": "c", "resource": "limits.memory", "divisor": "1024Ki"}},
            ]}},
            {"name": "p", "projected": {"sources": [
                {"configMap": {"name": "a", "items": [{"key": "k", "path": "x"}]}},
                {"secret": {"name": "a", "items": [{"key": "k", "path": "y"}]}},
            ]}},
        ],
        "tolerations": [{"operator": "Exists"}, {"key": "a", "value": "b", "effect": "NoExecute", "tolerationSeconds": 3}],
        "dnsPolicy": "None",
        "dnsConfig": {"nameservers": ["::1"], "searches": ["_a.b.", "."], "options": [{"name": "ndots", "value": "2"}]},
        "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["a.b"]}],
        "securityContext": {
            "sysctls": [{"name": "net.ipv4.tcp_syncookies", "value": "1"}], "runAsUser": 0, "seLinuxChangePolicy": "Recursive",
            "appArmorProfile": {"type": "Localhost", "localhostProfile": "/usr/sbin/some//child"},
        },
        "preemptionPolicy": "Never", "topologySpreadConstraints": [{"maxSkew": 1}], "hostnameOverride": "a.b",
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "a.io/b", "operator": "In", "values": ["c", ""]}, {"key": "d", "operator": "Gt", "values": ["5"]}]},
            {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["node"]}]},
        ]}}},
        "resources": {"limits": {"cpu": "2", "memory": "128Mi"}, "requests": {"cpu": "1"}},
        "imagePullSecrets": [{"name": "a"}, {"name": ""}, {"name": "A_b"}],
    });
    let container = json!({
        "ports": [{"name": "http", "containerPort": 80, "hostPort": 80}, {"containerPort": 53, "hostPort": 80, "protocol": "UDP"}],
        "env": [{"name": "a.b", "value": "c"}, {"name": "X", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}],
        "envFrom": [{"prefix": "P_", "configMapRef": {"name": "a", "optional": true}}],
        "volumeMounts": [{"name": "v", "mountPath": "/a", "subPath": "b/c"}, {"name": "h", "mountPath": "/b:c", "readOnly": true, "recursiveReadOnly": "Enabled"}],
        "resources": {"limits": {"cpu": "1", "memory": "64Mi", "hugepages-2Mi": "4Mi"}, "requests": {"cpu": "500m"}},
        "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"}, {"resourceName": "memory", "restartPolicy": "RestartContainer"}],
        "livenessProbe": {"httpGet": {"port": "http"}, "terminationGracePeriodSeconds": 5},
        "lifecycle": {"preStop": {"sleep": {"seconds": 30}}},
        "restartPolicy": "Never", "restartPolicyRules": [
            {"action": "Restart", "exitCodes": {"operator": "In", "values": [3]}}, {"action": "Restart", "exitCodes": {"operator": "NotIn"}},
        ],
        "securityContext": {"seccompProfile": {"type": "Localhost", "localhostProfile": "a/b.json"}},
    });
    assert_eq!(errors(spec, container), none);
    // An apiserver takes it as well; such a pod is killed with a grace of 1 s.
    let hasty = json!({"terminationGracePeriodSeconds": -1});
    assert_eq!(errors(hasty, json!({})), none);
}

/// A pod's spec that selects nodes by one term.
fn required(term: Value) -> Value {
    let selector = json!({"nodeSelectorTerms": [term]});
    json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": selector}}})
}

#[test]
fn wrong_pods() {
    // SRC-20 HNO-01
    for (spec, says) in [
        (json!({"containers": []}), "spec.containers: Required value"),
        (
            json!({"containers": [{"name": "c", "image": "i"}, {"name": "c", "image": "i"}]}),
            "spec.containers[1].name: Duplicate value: \"c\"",
        ),
        (
            json!({"initContainers": [{"name": "c", "image": "i"}]}),
            "spec.initContainers[0].name: Duplicate value: \"c\"",
        ),
        (
            json!({"initContainers": [{"name": "i", "image": "i", "livenessProbe": {"exec": {"command": ["a"]}}}]}),
            "spec.initContainers[0].livenessProbe: Forbidden: may not be set for init containers without restartPolicy=Always",
        ),
        (
            json!({"initContainers": [{"name": "i", "image": "i", "lifecycle": {"preStop": {"exec": {"command": ["a"]}}}}]}),
            "spec.initContainers[0].lifecycle: Forbidden: may not be set for init containers without restartPolicy=Always",
        ),
        (
            json!({"os": {"name": "linux"}, "initContainers": [{"name": "i", "image": "i", "lifecycle": {"stopSignal": "SIGINT"}}]}),
            "spec.initContainers[0].lifecycle: Forbidden: may not be set for init containers without restartPolicy=Always",
        ),
        (
            json!({"ephemeralContainers": [{"name": "e", "image": "i"}]}),
            "spec.ephemeralContainers: Forbidden: cannot be set on create",
        ),
        (
            json!({"volumes": [{"name": "v"}, {"name": "v"}]}),
            "spec.volumes[1].name: Duplicate value: \"v\"",
        ),
        (
            json!({"volumes": [{"name": "V"}]}),
            "spec.volumes[0].name: Invalid value: \"V\": a lowercase RFC 1123 label",
        ),
        (
            json!({"volumes": [{"name": "v", "emptyDir": {}, "hostPath": {"path": "/"}}]}),
            "spec.volumes[0].hostPath: Forbidden: may not specify more than 1 volume type",
        ),
        (
            json!({"volumes": [{"name": "v", "iscsi": {"iqn": "x"}}]}),
            "spec.volumes[0].iscsi: Forbidden: unknown or unsupported volume source",
        ),
        (
            json!({"volumes": [{"name": "v", "projected": {"sources": [{"someday": {}}]}}]}),
            "spec.volumes[0].projected.sources[0].someday: Forbidden: unknown or unsupported",
        ),
        (
            json!({"volumes": [{"name": "v", "hostPath": {}}]}),
            "spec.volumes[0].hostPath.path: Required value",
        ),
        (
            json!({"volumes": [{"name": "v", "hostPath": {"path": "/a/../b"}}]}),
            "spec.volumes[0].hostPath.path: Invalid value: \"/a/../b\": must not contain '..'",
        ),
        (
            json!({"volumes": [{"name": "v", "hostPath": {"path": "/a", "type": "Dir"}}]}),
            "spec.volumes[0].hostPath.type: Unsupported value: \"Dir\": supported values: \"BlockDevice\"",
        ),
        (
            json!({"volumes": [{"name": "v", "image": {}}]}),
            "spec.volumes[0].image.reference: Required value",
        ),
        (
            json!({"volumes": [{"name": "v", "image": {"reference": "a", "pullPolicy": "Maybe"}}]}),
            "spec.volumes[0].image.pullPolicy: Unsupported value: \"Maybe\": supported values: \"Always\", \"IfNotPresent\", \"Never\"",
        ),
        (
            json!({"volumes": [{"name": "v", "image": {"reference": "a"}, "emptyDir": {}}]}),
            "spec.volumes[0].image: Forbidden: may not specify more than 1 volume type",
        ),
        (
            json!({"volumes": [{"name": "v", "configMap": {}}]}),
            "spec.volumes[0].configMap.name: Required value",
        ),
        (
            json!({"volumes": [{"name": "v", "configMap": {"name": "a", "defaultMode": 512}}]}),
            "spec.volumes[0].configMap.defaultMode: Invalid value: 512: must be a number between 0 and 0777",
        ),
        (
            json!({"volumes": [{"name": "v", "secret": {"secretName": "a", "items": [{"key": "k", "path": "../x"}]}}]}),
            "spec.volumes[0].secret.items[0].path: Invalid value: \"../x\": must not contain '..'",
        ),
        (
            json!({"volumes": [{"name": "v", "downwardAPI": {"items": [{"path": "..x", "fieldRef": {"fieldPath": "status.podIP"}}]}}]}),
            "spec.volumes[0].downwardAPI.items[0].fieldRef.fieldPath: Unsupported value: \"status.podIP\"",
        ),
        (
            json!({"volumes": [{"name": "v", "projected": {"sources": [
                {"secret": {"name": "a", "items": [{"key": "k", "path": "x"}]}},
                {"configMap": {"name": "a", "items": [{"key": "k", "path": "x"}]}}]}}]}),
            "Duplicate value: \"x\"",
        ),
        (
            json!({"activeDeadlineSeconds": 0}),
            "spec.activeDeadlineSeconds: Invalid value: 0",
        ),
        (
            json!({"dnsPolicy": "Some"}),
            "spec.dnsPolicy: Unsupported value: \"Some\"",
        ),
        (
            json!({"dnsPolicy": "None"}),
            "spec.dnsConfig.nameservers: Required value",
        ),
        (
            json!({"dnsConfig": {"nameservers": ["x"]}}),
            "spec.dnsConfig.nameservers[0]: Invalid value: \"x\": must be a valid IP address",
        ),
        (
            json!({"dnsConfig": {"searches": ["a b"]}}),
            "spec.dnsConfig.searches[0]: Invalid value",
        ),
        (
            json!({"hostAliases": [{"ip": "a"}]}),
            "spec.hostAliases[0].ip: Invalid value",
        ),
        (
            json!({"hostname": "a.b"}),
            "spec.hostname: Invalid value: \"a.b\"",
        ),
        (
            json!({"tolerations": [{"operator": "Equal"}]}),
            "spec.tolerations[0].operator: Invalid value: \"Equal\": operator must be Exists",
        ),
        (
            json!({"tolerations": [{"operator": "Exists", "effect": "X"}]}),
            "spec.tolerations[0].effect: Unsupported value: \"X\"",
        ),
        (
            json!({"os": {"name": "plan9"}}),
            "spec.os.name: Unsupported value: \"plan9\"",
        ),
        (
            json!({"shareProcessNamespace": true, "hostPID": true}),
            "spec.shareProcessNamespace: Invalid value: true",
        ),
        (
            json!({"securityContext": {"sysctls": [{"name": "a b", "value": "1"}]}}),
            "spec.securityContext.sysctls[0].name: Invalid value: \"a b\"",
        ),
        (
            json!({"hostNetwork": true, "securityContext": {"sysctls": [{"name": "net.core.somaxconn", "value": "1"}]}}),
            "may not be specified when 'hostNetwork' is true",
        ),
        (
            json!({"securityContext": {"runAsUser": -1}}),
            "spec.securityContext.runAsUser: Invalid value: -1: must be between 0 and 2147483647",
        ),
        (
            json!({"securityContext": {"seccompProfile": {"type": "Localhost"}}}),
            "spec.securityContext.seccompProfile.localhostProfile: Required value",
        ),
        (
            json!({"overhead": {"cpu": "-1"}}),
            "spec.overhead[cpu]: Invalid value: \"-1\"",
        ),
        (
            json!({"resources": {"limits": {"ephemeral-storage": "1"}}}),
            "spec.resources.limits[ephemeral-storage]: Unsupported value",
        ),
        (
            json!({"resources": {"limits": {"hugepages-2Mi": "2Mi"}}}),
            "spec.resources: Forbidden: huge pages need a request or a limit of cpu or memory too",
        ),
        (
            json!({"hostnameOverride": "a", "hostNetwork": true}),
            "spec.hostnameOverride: Forbidden: may not be set when `hostNetwork` is true",
        ),
        (
            json!({"hostnameOverride": "a", "setHostnameAsFQDN": true}),
            "spec.hostnameOverride: Forbidden: may not be set when `setHostnameAsFQDN` is true",
        ),
        (
            json!({"hostnameOverride": ""}),
            "spec.hostnameOverride: Required value",
        ),
        (
            json!({"hostnameOverride": "a".repeat(65)}),
            "may not be more than 64 bytes",
        ),
        (
            json!({"preemptionPolicy": "Foo"}),
            "spec.preemptionPolicy: Unsupported value: \"Foo\": supported values: \"Never\", \"PreemptLowerPriority\"",
        ),
        (
            json!({"preemptionPolicy": 5}),
            "spec.preemptionPolicy: Unsupported value: \"5\"",
        ),
        (
            json!({"securityContext": {"seLinuxChangePolicy": "Foo"}}),
            "spec.securityContext.seLinuxChangePolicy: Unsupported value: \"Foo\"",
        ),
        (
            json!({"schedulingGates": [{"name": "a"}]}),
            "spec.schedulingGates: Forbidden",
        ),
        (
            json!({"serviceAccount": "a"}),
            "spec.serviceAccount: Forbidden: static pods may not reference serviceaccounts",
        ),
        (
            json!({"resources": {"requests": {"cpu": "1"}}, "containers": [
                {"name": "a", "image": "i", "resources": {"requests": {"cpu": "600m"}}},
                {"name": "b", "image": "i", "resources": {"requests": {"cpu": "500m"}}}]}),
            "spec.resources.requests[cpu]: Invalid value: \"1\": must be greater than or equal to the requests of all containers, 1100m",
        ),
        (
            json!({"resources": {"limits": {"memory": "1Gi"}}, "containers": [
                {"name": "a", "image": "i", "resources": {"limits": {"memory": "2Gi"}}}]}),
            "spec.containers[0].resources.limits[memory]: Invalid value: \"2Gi\": must be less than or equal to the pod's limit of 1Gi",
        ),
        (
            json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}}}),
            "nodeSelectorTerms: Required value: must have at least one node selector term",
        ),
        (
            required(
                json!({"matchExpressions": [{"key": "a", "operator": "Equals", "values": ["b"]}]}),
            ),
            "nodeSelectorTerms[0].matchExpressions[0].operator: Unsupported value: \"Equals\"",
        ),
        (
            required(json!({"matchExpressions": [{"key": "", "operator": "Exists"}]})),
            ".matchExpressions[0].key: Required value",
        ),
        (
            required(json!({"matchExpressions": [{"key": "a", "operator": "In"}]})),
            ".matchExpressions[0].values: Required value: must be set",
        ),
        (
            required(
                json!({"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]}),
            ),
            ".matchExpressions[0].values: Forbidden",
        ),
        (
            required(
                json!({"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1", "2"]}]}),
            ),
            ".matchExpressions[0].values: Required value: must be a single value",
        ),
        (
            required(
                json!({"matchExpressions": [{"key": "a", "operator": "In", "values": ["b c"]}]}),
            ),
            ".matchExpressions[0].values[0]: Invalid value: \"b c\"",
        ),
        (
            required(
                json!({"matchFields": [{"key": "metadata.uid", "operator": "In", "values": ["a"]}]}),
            ),
            ".matchFields[0].key: Unsupported value: \"metadata.uid\"",
        ),
        (
            required(
                json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a", "b"]}]}),
            ),
            ".matchFields[0].values: Required value: must be the name of one node",
        ),
        (
            json!({"initContainers": [{"name": "i", "image": "i", "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]}]}),
            "spec.initContainers[0].resizePolicy[0].restartPolicy: Invalid value: \"RestartContainer\"",
        ),
        (
            json!({"volumes": [{"name": "v", "emptyDir": {"mode": 448}}]}),
            "spec.volumes[0].emptyDir.mode: Forbidden: this field is not supported by this node",
        ),
        (
            json!({"securityContext": {"appArmorProfile": {"type": "Localhost", "localhostProfile": " a"}}}),
            "spec.securityContext.appArmorProfile.localhostProfile: Invalid value",
        ),
    ] {
        let shown = spec.to_string();
        let all = errors(spec, json!({}));
        assert!(
            all.iter().any(|e| e.contains(says)),
            "{shown}\n wants {says}\n got {all:#?}"
        );
    }
}

#[test]
fn wrong_containers() {
    // SRC-20 CRR-01 ENVF-01 RRO-04 STS-01
    for (container, says) in [
        (json!({"name": ""}), ".name: Required value"),
        (json!({"name": "A"}), ".name: Invalid value: \"A\""),
        (json!({"image": ""}), ".image: Required value"),
        (
            json!({"image": " i"}),
            ".image: Invalid value: \" i\": must not have leading or trailing whitespace",
        ),
        (
            json!({"imagePullPolicy": "Maybe"}),
            ".imagePullPolicy: Unsupported value: \"Maybe\": supported values: \"Always\", \"IfNotPresent\", \"Never\"",
        ),
        (
            json!({"ports": [{}]}),
            ".ports[0].containerPort: Required value",
        ),
        (
            json!({"ports": [{"containerPort": 1, "name": "1"}]}),
            ".ports[0].name: Invalid value: \"1\"",
        ),
        (
            json!({"ports": [{"containerPort": 1, "protocol": "tcp"}]}),
            ".ports[0].protocol: Unsupported value: \"tcp\"",
        ),
        (
            json!({"ports": [{"containerPort": 1, "hostPort": 5}, {"containerPort": 2, "hostPort": 5}]}),
            ".ports[1].hostPort: Duplicate value: TCP//5",
        ),
        (
            json!({"env": [{"name": "A=B"}]}),
            ".env[0].name: Invalid value: \"A=B\"",
        ),
        (
            json!({"env": [{"name": "A", "valueFrom": {}}]}),
            ".env[0].valueFrom: Invalid value: \"\": must specify one of",
        ),
        (
            json!({"env": [{"name": "A", "value": "x", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]}),
            ".env[0].valueFrom: Invalid value: \"\": may not be specified when `value` is not empty",
        ),
        (
            json!({"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.hostname"}}}]}),
            ".env[0].valueFrom.fieldRef.fieldPath: Unsupported value: \"spec.hostname\"",
        ),
        (
            json!({"env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "a"}}}]}),
            ".env[0].valueFrom.configMapKeyRef.key: Required value",
        ),
        (
            json!({"env": [{"name": "A", "valueFrom": {"resourceFieldRef": {"resource": "limits.gpu"}}}]}),
            ".env[0].valueFrom.resourceFieldRef.resource: Unsupported value: \"limits.gpu\"",
        ),
        (
            json!({"envFrom": [{}]}),
            ".envFrom[0]: Invalid value: \"\": must specify one of",
        ),
        (
            json!({"volumeMounts": [{"name": "x", "mountPath": "/a"}]}),
            ".volumeMounts[0].name: Not found: \"x\"",
        ),
        (
            json!({"volumeMounts": [{"name": "v"}]}),
            ".volumeMounts[0].mountPath: Required value",
        ),
        (
            json!({"volumeMounts": [{"name": "v", "mountPath": "/a"}, {"name": "v", "mountPath": "/a"}]}),
            ".volumeMounts[1].mountPath: Invalid value: \"/a\": must be unique",
        ),
        (
            json!({"volumeMounts": [{"name": "v", "mountPath": "/a", "subPath": "/b"}]}),
            ".volumeMounts[0].subPath: Invalid value: \"/b\": must be a relative path",
        ),
        (
            json!({"volumeMounts": [{"name": "v", "mountPath": "/a", "subPath": "a/../b"}]}),
            ".volumeMounts[0].subPath: Invalid value: \"a/../b\": must not contain '..'",
        ),
        (
            json!({"volumeMounts": [{"name": "v", "mountPath": "/a", "mountPropagation": "Bidirectional"}]}),
            ".volumeMounts[0].mountPropagation: Forbidden: Bidirectional mount propagation is available only to privileged containers",
        ),
        (
            json!({"volumeMounts": [{"name": "v", "mountPath": "/a", "recursiveReadOnly": "Enabled"}]}),
            ".volumeMounts[0].recursiveReadOnly: Forbidden: may only be specified when readOnly is true",
        ),
        (
            json!({"resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "2"}}}),
            ".resources.requests: Invalid value: \"2\": must be less than or equal to cpu limit of 1",
        ),
        (
            json!({"resources": {"limits": {"memory": "-1"}}}),
            ".resources.limits[memory]: Invalid value: \"-1\": must be greater than or equal to 0",
        ),
        (
            json!({"resources": {"limits": {"memory": "1Mi", "hugepages-1500m": "2"}}}),
            ".resources.limits[hugepages-1500m]: Invalid value: \"2\": must be a multiple of the page size",
        ),
        (
            json!({"resources": {"limits": {"gpu": "1"}}}),
            ".resources.limits[gpu]: Invalid value: \"gpu\": must be a standard resource type or fully qualified",
        ),
        (
            json!({"resources": {"limits": {"x.io/gpu": "500m"}}}),
            ".resources.limits[x.io/gpu]: Invalid value: \"500m\": must be an integer",
        ),
        (
            json!({"resources": {"limits": {"x.io/gpu": "2"}, "requests": {"x.io/gpu": "1"}}}),
            "must be equal to x.io/gpu limit of 2",
        ),
        (
            json!({"resources": {"requests": {"x.io/gpu": "1"}}}),
            ".resources.limits: Required value: Limit must be set for non overcommitable resources",
        ),
        (
            json!({"env": [{"name": "A", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "3Mi"}}}]}),
            ".env[0].valueFrom.resourceFieldRef.divisor: Unsupported value: \"3Mi\"",
        ),
        (
            json!({"livenessProbe": {}}),
            ".livenessProbe: Required value: must specify a handler type",
        ),
        (
            json!({"livenessProbe": {"exec": {"command": ["a"]}, "tcpSocket": {"port": 1}}}),
            ".livenessProbe: Forbidden: may not specify more than 1 handler type",
        ),
        (
            json!({"livenessProbe": {"exec": {}}}),
            ".livenessProbe.exec.command: Required value",
        ),
        (
            json!({"livenessProbe": {"httpGet": {"port": 0}}}),
            ".livenessProbe.httpGet.port: Invalid value: 0: must be between 1 and 65535",
        ),
        (
            json!({"startupProbe": {"tcpSocket": {"port": 1}, "successThreshold": 2}}),
            ".startupProbe.successThreshold: Invalid value: 2: must be 1",
        ),
        (
            json!({"readinessProbe": {"tcpSocket": {"port": 1}, "terminationGracePeriodSeconds": 2}}),
            ".readinessProbe.terminationGracePeriodSeconds: Invalid value: 2: must not be set for readinessProbes",
        ),
        (
            json!({"readinessProbe": {"tcpSocket": {"port": 1}, "periodSeconds": -2}}),
            ".readinessProbe.periodSeconds: Invalid value: -2",
        ),
        (
            json!({"lifecycle": {"preStop": {}}}),
            ".lifecycle.preStop: Required value: must specify a handler type",
        ),
        (
            json!({"lifecycle": {"preStop": {"sleep": {"seconds": 31}}}}),
            ".lifecycle.preStop.sleep: Invalid value: 31",
        ),
        (
            json!({"lifecycle": {"stopSignal": "SIGFOO"}}),
            r#".lifecycle.stopSignal: Unsupported value: "SIGFOO": supported values: "SIGABRT", "#,
        ),
        (
            json!({"lifecycle": {"stopSignal": "SIGRTMIN+16"}}),
            ".lifecycle.stopSignal: Unsupported value",
        ),
        (
            json!({"lifecycle": {"stopSignal": "TERM"}}),
            ".lifecycle.stopSignal: Unsupported value",
        ),
        (
            json!({"lifecycle": {"stopSignal": "SIGRTMIN++5"}}),
            ".lifecycle.stopSignal: Unsupported value",
        ),
        (
            json!({"lifecycle": {"stopSignal": "SIGRTMIN+05"}}),
            ".lifecycle.stopSignal: Unsupported value",
        ),
        (
            json!({"lifecycle": {"stopSignal": ""}}),
            ".lifecycle.stopSignal: Unsupported value",
        ),
        (
            json!({"restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "In", "values": [1]}}]}),
            ".restartPolicy: Required value: must specify restartPolicy when restart rules are used",
        ),
        (
            json!({"securityContext": {"procMount": "Unmasked"}}),
            ".securityContext.procMount: Invalid value: \"Unmasked\": `hostUsers` must be false",
        ),
        (
            json!({"securityContext": {"privileged": true, "allowPrivilegeEscalation": false}}),
            "cannot set `allowPrivilegeEscalation` to false and `privileged` to true",
        ),
        (
            json!({"volumeDevices": [{"name": "v", "devicePath": "/dev/x"}]}),
            ".volumeDevices: Forbidden",
        ),
        (
            json!({"resizePolicy": [{"resourceName": "foo", "restartPolicy": "NotRequired"}]}),
            ".resizePolicy[0].resourceName: Unsupported value: \"foo\": supported values: \"cpu\", \"memory\"",
        ),
        (
            json!({"resizePolicy": [{"resourceName": "cpu"}]}),
            ".resizePolicy[0].restartPolicy: Unsupported value: \"\"",
        ),
        (
            json!({"resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"}, {"resourceName": "cpu", "restartPolicy": "NotRequired"}]}),
            ".resizePolicy[1].resourceName: Duplicate value: \"cpu\"",
        ),
        (
            json!({"env": [{"name": "A", "valueFrom": {"fileKeyRef": {"volumeName": "h", "path": "p", "key": "K"}}}]}),
            ".env[0].valueFrom.fileKeyRef.volumeName: Not found: \"h\"",
        ),
        (
            json!({"env": [{"name": "A", "valueFrom": {"fileKeyRef": {"volumeName": "h", "path": "/p", "key": "K"}}}]}),
            ".env[0].valueFrom.fileKeyRef.path: Invalid value: \"/p\": must be a relative path",
        ),
        (
            json!({"env": [{"name": "A", "valueFrom": {"fileKeyRef": {"volumeName": "h", "path": "a/../p", "key": "K"}}}]}),
            ".env[0].valueFrom.fileKeyRef.path: Invalid value: \"a/../p\": must not contain '..'",
        ),
        (
            json!({"env": [{"name": "A", "valueFrom": {"fileKeyRef": {"volumeName": "h", "path": "p", "key": "K=1"}}}]}),
            ".env[0].valueFrom.fileKeyRef.key: Invalid value: \"K=1\"",
        ),
        (
            json!({"env": [{"name": "A", "valueFrom": {"fileKeyRef": {"volumeName": "h", "path": "p", "key": "K".repeat(129)}}}]}),
            "may not be more than 128 bytes",
        ),
        (
            json!({"volumeMounts": [{"name": "v", "mountPath": "/a", "readOnly": true, "mountPropagation": "HostToContainer", "recursiveReadOnly": "IfPossible"}]}),
            ".volumeMounts[0].recursiveReadOnly: Forbidden: may only be specified when mountPropagation is None or not specified",
        ),
        (
            json!({"volumeMounts": [{"name": "v", "mountPath": "/a", "readOnly": true, "recursiveReadOnly": "Odd"}]}),
            ".volumeMounts[0].recursiveReadOnly: Unsupported value: \"Odd\"",
        ),
        (
            json!({"resources": {"limits": {"hugepages-2Mi": "4Mi"}}}),
            ".resources: Forbidden: huge pages need a request or a limit of cpu or memory too",
        ),
        (
            json!({"resources": {"limits": {"hugepages-2Mi": "3Mi", "cpu": "1"}}}),
            ".resources.limits[hugepages-2Mi]: Invalid value: \"3Mi\": must be a multiple of the page size",
        ),
        (
            json!({"resources": {"limits": {"hugepages-big": "3Mi", "cpu": "1"}}}),
            ".resources.limits[hugepages-big]: Invalid value: \"3Mi\": must be a multiple of the page size",
        ),
        (
            json!({"resources": {"claims": [{"name": "gpu"}]}}),
            ".resources.claims: Forbidden: this field is not supported by this node",
        ),
        (
            json!({"livenessProbe": {"httpGet": {"port": 80, "protocol": "H2C"}}}),
            ".livenessProbe.httpGet.protocol: Forbidden: this field is not supported by this node",
        ),
        (
            json!({"restartPolicy": "Never", "restartPolicyRules": (0..21).map(|_| json!({"action": "Restart", "exitCodes": {"operator": "In", "values": [3]}})).collect::<Vec<_>>()}),
            ".restartPolicyRules: Invalid value: 21: must not have more than 20 rules",
        ),
        (
            json!({"restartPolicy": "Never", "restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "In", "values": vec![3; 256]}}]}),
            ".restartPolicyRules[0].exitCodes.values: Invalid value: 256: must not have more than 255 values",
        ),
        (
            json!({"restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "In", "values": [3]}}]}),
            ".restartPolicy: Required value: must specify restartPolicy when restart rules are used",
        ),
        (
            json!({"restartPolicy": "Never", "restartPolicyRules": [{"action": "Stop", "exitCodes": {"operator": "In", "values": [3]}}]}),
            ".restartPolicyRules[0].action: Unsupported value: \"Stop\": supported values: \"Restart\", \"RestartAllContainers\"",
        ),
        (
            json!({"restartPolicy": "Never", "restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "Out", "values": [3]}}]}),
            ".restartPolicyRules[0].exitCodes.operator: Unsupported value: \"Out\": supported values: \"In\", \"NotIn\"",
        ),
        (
            json!({"restartPolicy": "Never", "restartPolicyRules": [{"action": "Restart"}]}),
            ".restartPolicyRules[0].exitCodes: Required value: must be specified",
        ),
    ] {
        let shown = container.to_string();
        let all = errors(json!({}), container);
        let hit = |e: &String| {
            e.strip_prefix("spec.containers[0]").is_some_and(|rest| {
                if says.starts_with('.') {
                    rest.starts_with(says)
                } else {
                    rest.contains(says)
                }
            })
        };
        assert!(all.iter().any(hit), "{shown}\n wants {says}\n got {all:#?}");
    }
    let of_host = json!({"volumes": [{"name": "h", "hostPath": {"path": "/a"}}]});
    let key = json!({"volumeName": "h", "path": "p", "key": "K"});
    assert_eq!(
        errors(
            of_host,
            json!({"env": [{"name": "A", "valueFrom": {"fileKeyRef": key}}]})
        ),
        [
            "spec.containers[0].env[0].valueFrom.fileKeyRef.volumeName: Invalid value: \"h\": must be an emptyDir"
        ]
    );
    let restarts = json!([{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]);
    assert_eq!(
        errors(
            json!({"restartPolicy": "Never"}),
            json!({"resizePolicy": restarts})
        ),
        [
            "spec.containers[0].resizePolicy[0].restartPolicy: Unsupported value: \"RestartContainer\": supported values: \"NotRequired\""
        ]
    );
    let of_init = json!({"hostNetwork": true, "initContainers": [{"name": "i", "image": "i",
        "ports": [{"containerPort": 1, "hostPort": 5}, {"containerPort": 2, "hostPort": 5}]}]});
    assert_eq!(
        errors(of_init, json!({})),
        ["spec.initContainers[0].ports[1].hostPort: Duplicate value: TCP//5"]
    );
    assert_eq!(
        errors(
            json!({"hostNetwork": true}),
            json!({"ports": [{"containerPort": 1, "hostPort": 5}]})
        ),
        [
            "spec.containers[0].ports[0].hostPort: Invalid value: 5: must match `containerPort` when `hostNetwork` is true"
        ]
    );
}

#[test]
fn pods_with_users_of_their_own_share_no_namespace_of_the_host() {
    // UNS-29
    for name in ["hostNetwork", "hostPID", "hostIPC"] {
        let told = errors(json!({"hostUsers": false, name: true}), json!({}));
        let want = format!("spec.{name}: Forbidden: when `hostUsers` is false");
        assert_eq!(told, [want]);
        let told = errors(json!({"hostUsers": true, name: true}), json!({}));
        assert_eq!(told, [""; 0]);
    }
    let unmasked = json!({"securityContext": {"procMount": "Unmasked"}});
    let told = errors(json!({"hostUsers": false}), unmasked.clone());
    assert_eq!(told, [""; 0]);
    assert_eq!(errors(json!({}), unmasked).len(), 1);
}

#[test]
fn static_pods_refer_to_no_api_objects() {
    // SRC-21 PCT-06, with the extension that ConfigMaps and Secrets of the manifest directory may be named
    for (spec, says) in [
        (
            json!({"serviceAccountName": "a"}),
            "static pods may not reference serviceaccounts",
        ),
        (
            json!({"resourceClaims": [{"name": "a"}]}),
            "static pods may not reference resourceclaims",
        ),
        (
            json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "a"}}]}),
            "static pods may not reference persistentvolumeclaims",
        ),
        (
            json!({"volumes": [{"name": "v", "csi": {"driver": "a"}}]}),
            "spec.volumes[0].csi: Forbidden",
        ),
        (
            json!({"volumes": [{"name": "v", "ephemeral": {}}]}),
            "spec.volumes[0].ephemeral: Forbidden",
        ),
        (
            json!({"volumes": [{"name": "v", "glusterfs": {}}]}),
            "spec.volumes[0].glusterfs: Forbidden",
        ),
        (
            json!({"volumes": [{"name": "v", "azureFile": {}}]}),
            "spec.volumes[0].azureFile: Forbidden",
        ),
        (
            json!({"volumes": [{"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]}),
            "spec.volumes[0].projected.sources[0].serviceAccountToken: Forbidden: static pods may not reference serviceaccounts",
        ),
        (
            json!({"volumes": [{"name": "v", "projected": {"sources": [{"clusterTrustBundle": {"name": "t"}}]}}]}),
            "spec.volumes[0].projected.sources[0].clusterTrustBundle: Forbidden: static pods may not reference clustertrustbundles",
        ),
        (
            json!({"volumes": [{"name": "v", "projected": {"sources": [{"podCertificate": {"signerName": "t"}}]}}]}),
            "spec.volumes[0].projected.sources[0].podCertificate: Forbidden: static pods may not reference podcertificates",
        ),
    ] {
        let shown = spec.to_string();
        let all = errors(spec, json!({}));
        assert!(all.iter().any(|e| e.contains(says)), "{shown}: {all:?}");
    }
}

#[test]
fn many_errors_are_cut() {
    let containers: Vec<Value> = (0..1000).map(|_| json!({})).collect();
    assert_eq!(
        errors(json!({"containers": containers}), json!({})).len(),
        MAX_ERRORS
    );
}

#[test]
fn metadata_rules() {
    for (metadata, says) in [
        (
            json!({"name": "A", "namespace": "default"}),
            "metadata.name: Invalid value: \"A\"",
        ),
        (
            json!({"name": "a", "namespace": "a.b"}),
            "metadata.namespace: Invalid value: \"a.b\"",
        ),
        (
            json!({"name": "a", "namespace": "b", "labels": {"-": "x"}}),
            "metadata.labels: Invalid value: \"-\"",
        ),
        (
            json!({"name": "a", "namespace": "b", "labels": {"a": "x y"}}),
            "metadata.labels[a]: Invalid value: \"x y\"",
        ),
        (
            json!({"name": "a", "namespace": "b", "annotations": {"a b": ""}}),
            "metadata.annotations: Invalid value: \"a b\"",
        ),
        (
            json!({"name": "a", "namespace": "b", "annotations": {"a": "x".repeat(MAX_ANNOTATION_BYTES)}}),
            "metadata.annotations: Forbidden: may not be more than",
        ),
        (
            json!({"name": "a", "namespace": "b", "annotations": app_armor("d", "localhost/x")}),
            "metadata.annotations[container.apparmor.security.beta.kubernetes.io/d]: Invalid value: \"d\": container not found",
        ),
        (
            json!({"name": "a", "namespace": "b", "annotations": app_armor("c", "x")}),
            "metadata.annotations[container.apparmor.security.beta.kubernetes.io/c]: Invalid value: \"x\": invalid AppArmor",
        ),
    ] {
        let raw =
            json!({"metadata": metadata, "spec": {"containers": [{"name": "c", "image": "i"}]}});
        let all = validate_pod(&static_pod::decode_recorded_pod(&raw).expect("pod"));
        assert_eq!(all.len(), 1, "{all:?}");
        assert!(all[0].to_string().starts_with(says), "{all:?}");
    }
    let named = json!({"type": "Localhost", "localhostProfile": "x"});
    for (annotation, field, wrong) in [
        ("", json!(null), 0),
        ("localhost/x", json!(null), 0),
        ("localhost/x", named.clone(), 0),
        ("localhost/y", named, 1),
        ("unconfined", json!({"type": "Unconfined"}), 0),
        ("unconfined", json!({"type": "RuntimeDefault"}), 1),
        ("runtime/default", json!({"type": "RuntimeDefault"}), 0),
    ] {
        for place in ["/spec", "/spec/containers/0"] {
            let mut raw = json!({
                "metadata": {"name": "a", "namespace": "b", "annotations": app_armor("c", annotation)},
                "spec": {"containers": [{"name": "c", "image": "i"}]},
            });
            if !field.is_null() {
                let at = raw.pointer_mut(place).expect("place");
                at["securityContext"] = json!({"appArmorProfile": field});
            }
            let all = validate_pod(&static_pod::decode_recorded_pod(&raw).expect("pod"));
            assert_eq!(all.len(), wrong, "{annotation} {field} {all:?}");
        }
    }
}

/// The annotation that asks for an AppArmor profile of a container.
fn app_armor(container: &str, profile: &str) -> Value {
    let key = format!("container.apparmor.security.beta.kubernetes.io/{container}");
    json!({(key): profile})
}
