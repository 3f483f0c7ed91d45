//! The configuration in force as a document, for `/configz` (SRV-13): the configured fields over a kubelet's defaults
//! and ours.

use serde_json::{Map, Value};

use crate::api::cri::CgroupDriver;

/// Fields whose values only the operator may see.
pub(crate) const SECRET: [&str; 1] = ["staticPodURLHeader"];

/// Makes the document as JSON text.
pub(super) fn shown(document: &Value, member: bool) -> String {
    let mut all = defaults(member);
    if let Some(said) = document.as_object() {
        lay_over(&mut all, said);
    }
    for field in SECRET {
        if all.contains_key(field) {
            all.insert(field.into(), "<masked>".into());
        }
    }
    Value::Object(all).to_string()
}

/// Changes the cgroup driver of the document.
pub(super) fn with_cgroup_driver(document: &str, driver: CgroupDriver) -> String {
    let mut all: Value = serde_json::from_str(document).unwrap_or_default();
    all["cgroupDriver"] = driver.word().into();
    all.to_string()
}

fn lay_over(base: &mut Map<String, Value>, over: &Map<String, Value>) {
    for (name, value) in over {
        match (base.get_mut(name), value) {
            (Some(Value::Object(base)), Value::Object(over)) if !MAPS.contains(&&**name) => {
                lay_over(base, over);
            }
            _ => {
                base.insert(name.clone(), value.clone());
            }
        }
    }
}

/// Maps with keys of their own: a map that is given replaces the default whole.
const MAPS: [&str; 3] = ["evictionHard", "systemReserved", "kubeReserved"];

fn defaults(member: bool) -> Map<String, Value> {
    let mut all: Value = serde_json::from_str(DEFAULTS).unwrap_or_default();
    all["enableServer"] = member.into();
    all["authentication"]["webhook"]["enabled"] = member.into();
    match all {
        Value::Object(all) => all,
        _ => Map::new(),
    }
}

/// Default document, but for the values that depend on whether there is an apiserver.
const DEFAULTS: &str = r#"{"apiVersion":"kubelet.config.k8s.io/v1beta1","kind":"KubeletConfiguration","address":"0.0.0.0",
"authentication":{"anonymous":{"enabled":false},"webhook":{"cacheTTL":"2m0s","enabled":false},"x509":{}},
"authorization":{"mode":"Webhook","webhook":{"cacheAuthorizedTTL":"5m0s","cacheUnauthorizedTTL":"30s"}},
"cgroupDriver":"cgroupfs","cgroupsPerQOS":true,"configMapAndSecretChangeDetectionStrategy":"Cache",
"containerLogMaxFiles":5,"containerLogMaxSize":"10Mi","containerLogMaxWorkers":1,
"containerLogMonitorInterval":"10s","cpuCFSQuota":true,"cpuCFSQuotaPeriod":"100ms",
"crashLoopBackOff":{"maxContainerRestartPeriod":"5m0s"},"enableControllerAttachDetach":true,
"enableDebuggingHandlers":true,"enableServer":false,"enforceNodeAllocatable":["pods"],"eventBurst":100,
"eventRecordQPS":50,"evictionHard":{"imagefs.available":"15%","imagefs.inodesFree":"5%",
"memory.available":"100Mi","nodefs.available":"10%","nodefs.inodesFree":"5%"},
"evictionPressureTransitionPeriod":"5m0s","failCgroupV1":false,
"failSwapOn":false,"fileCheckFrequency":"20s","healthzBindAddress":"127.0.0.1","healthzPort":10248,
"httpCheckFrequency":"20s",
"imageGCHighThresholdPercent":85,"imageGCLowThresholdPercent":80,"imageMaximumGCAge":"0s",
"imageMinimumGCAge":"2m0s","kubeAPIBurst":100,"kubeAPIQPS":50,"localStorageCapacityIsolation":true,
"maxOpenFiles":1000000,"maxPods":110,"memorySwap":{},"memoryThrottlingFactor":0.9,
"nodeLeaseDurationSeconds":40,"nodeStatusMaxImages":50,"nodeStatusReportFrequency":"5m0s",
"nodeStatusUpdateFrequency":"10s","oomScoreAdj":-999,"podLogsDir":"/var/log/pods","podPidsLimit":-1,
"port":10250,"registerNode":true,"registryBurst":10,"registryPullQPS":5,"resolvConf":"/etc/resolv.conf",
"runtimeRequestTimeout":"2m0s","seccompDefault":false,"serializeImagePulls":true,"shutdownGracePeriod":"0s",
"shutdownGracePeriodCriticalPods":"0s","staticPodPath":"/etc/picolet/manifests",
"streamingConnectionIdleTimeout":"4h0m0s","syncFrequency":"1m0s","volumeStatsAggPeriod":"1m0s"}"#;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_was_said_counts() {
        // SRV-13
        let said = json!({
            "maxPods": 7,
            "authentication": { "anonymous": { "enabled": true } },
            "evictionHard": { "memory.available": "1Mi" },
            "staticPodURLHeader": { "Authorization": ["secret"] },
            "picolet": { "metered": true },
        });
        let text = shown(&said, true);
        assert!(!text.contains("secret"));
        let all: Value = serde_json::from_str(&text).expect("json");
        assert_eq!(all["maxPods"], 7);
        assert_eq!(all["kind"], super::super::file::KIND);
        assert_eq!(all["authentication"]["anonymous"]["enabled"], true);
        assert_eq!(all["authentication"]["webhook"]["enabled"], true);
        assert_eq!(all["evictionHard"], json!({ "memory.available": "1Mi" }));
        assert_eq!(all["picolet"]["metered"], true);
        assert_eq!(all["healthzPort"], 10248);
        let known = all.as_object().expect("object").keys();
        for field in known.filter(|field| *field != "picolet") {
            assert!(super::super::file::tests::is_known(field), "{field}");
        }
    }
}
