//! The status of a pod, as a node writes it.
//!
//! Source: `pkg/registry/core/pod/strategy.go`, `ValidatePodStatusUpdate`.

use std::net::IpAddr;

use serde_json::{Value, json};

use super::meta;
use super::pod::MIRROR;
use crate::error::Fields;
use crate::json::{array_mut, at, carry, child, has, list, text};

pub(super) fn prepare(new: &mut Value, old: &Value) {
    carry(&old["metadata"], &mut new["metadata"], "ownerReferences");
    if text(new, "/status/qosClass").is_empty() {
        let class = at(old, "/status/qosClass").clone();
        child(new, &["status"]).insert("qosClass".to_owned(), class);
    }
    one_pod_ip(new);
    // What was once observed is not unobserved.
    let observed = at(old, "/status/observedGeneration").clone();
    if !has(new, "/status/observedGeneration") && !observed.is_null() {
        new["status"]["observedGeneration"] = observed;
    }
    let before = list(old, "/status/conditions").to_vec();
    for condition in array_mut(new, "/status/conditions") {
        let was = before.iter().find(|c| c["type"] == condition["type"]);
        if let Some(observed) = was.and_then(|c| c.get("observedGeneration"))
            && condition.get("observedGeneration").is_none()
        {
            condition["observedGeneration"] = observed.clone();
        }
    }
}

pub(super) fn validate(new: &Value, old: &Value, errors: &mut Fields) {
    if new["metadata"]["annotations"].get(MIRROR) != old["metadata"]["annotations"].get(MIRROR) {
        errors.forbidden(
            &format!("metadata.annotations[{MIRROR}]"),
            "may not remove or update mirror pod annotation",
        );
    }
    let negative = |value: &Value| value.as_i64().is_some_and(|n| n < 0);
    for (n, condition) in list(new, "/status/conditions").iter().enumerate() {
        let path = format!("status.conditions[{n}]");
        let observed = at(condition, "/observedGeneration");
        if negative(observed) {
            errors.invalid(
                &format!("{path}.observedGeneration"),
                observed,
                "must be a non-negative integer",
            );
        }
        let ty = text(condition, "/type");
        if !["PodScheduled", "Ready", "Initialized"].contains(&ty) {
            meta::qualified_name(&format!("{path}.Type"), ty, errors);
        }
    }
    let observed = at(new, "/status/observedGeneration");
    if negative(observed) {
        errors.invalid(
            "status.observedGeneration",
            observed,
            "must be a non-negative integer",
        );
    }
    if at(new, "/status/qosClass") != at(old, "/status/qosClass") {
        errors.invalid(
            "status.qosClass",
            at(new, "/status/qosClass"),
            "field is immutable",
        );
    }
    let nominated = at(new, "/status/nominatedNodeName");
    if nominated != at(old, "/status/nominatedNodeName") && !nominated.is_null() {
        errors.forbidden(
            "status.nominatedNodeName",
            "may not be set on pods that are already bound to a node",
        );
    }
    transitions(new, old, "containerStatuses", errors);
    transitions(new, old, "initContainerStatuses", errors);
    transitions(new, old, "ephemeralContainerStatuses", errors);
    ips(new, old, "podIPs", errors);
    let first = list(new, "/status/hostIPs")
        .first()
        .map_or("", |ip| text(ip, "/ip"));
    if !first.is_empty() && first != text(new, "/status/hostIP") {
        errors.invalid(
            "status.hostIPs[0].ip",
            &json!(first),
            "must be equal to `hostIP`",
        );
    }
    ips(new, old, "hostIPs", errors);
}

/// A container that ended may run again only where its policy says so.
fn transitions(new: &Value, old: &Value, key: &str, errors: &mut Fields) {
    if key != "ephemeralContainerStatuses" && all_may_restart(old) {
        return;
    }
    let pointer = format!("/status/{key}");
    for (n, was) in list(old, &pointer).iter().enumerate() {
        let name = text(was, "/name");
        let Some(ended) = was["state"].get("terminated") else {
            continue;
        };
        let is = list(new, &pointer)
            .iter()
            .find(|c| text(c, "/name") == name);
        let runs_again = is.is_some_and(|c| c["state"].get("terminated").is_none());
        let exit = at(ended, "/exitCode").as_i64().unwrap_or(0);
        if runs_again && !may_restart(old, key, name, exit) {
            errors.forbidden(
                &format!("status.{key}[{n}].state"),
                "may not be transitioned to non-terminated state",
            );
        }
    }
}

fn may_restart(pod: &Value, key: &str, name: &str, exit: i64) -> bool {
    let list_of = match key {
        "containerStatuses" => "containers",
        "initContainerStatuses" => "initContainers",
        // No policy of the pod restarts these.
        _ => return false,
    };
    let spec = list(pod, &format!("/spec/{list_of}"))
        .iter()
        .find(|c| text(c, "/name") == name);
    let policy = text(pod, "/spec/restartPolicy");
    let own = spec.map_or("", |c| text(c, "/restartPolicy"));
    let rules = spec.map_or(&[][..], |c| list(c, "/restartPolicyRules"));
    let matched = rules.iter().any(|rule| {
        let values = list(rule, "/exitCodes/values");
        let listed = values.iter().any(|v| v.as_i64() == Some(exit));
        listed == (text(rule, "/exitCodes/operator") == "In")
    });
    match if own.is_empty() { policy } else { own } {
        _ if matched => true,
        "Always" => true,
        "OnFailure" => exit != 0,
        _ => false,
    }
}

/// Whether some container's rule restarts all of them.
fn all_may_restart(pod: &Value) -> bool {
    ["containers", "initContainers"]
        .into_iter()
        .flat_map(|key| list(pod, &format!("/spec/{key}")))
        .flat_map(|c| list(c, "/restartPolicyRules"))
        .any(|rule| text(rule, "/action") == "RestartAllContainers")
}

/// The single field and the list are one thing; the single field wins, as from an older client.
fn one_pod_ip(new: &mut Value) {
    let single = text(new, "/status/podIP").to_owned();
    let first = text(new, "/status/podIPs/0/ip").to_owned();
    if !single.is_empty() && single != first {
        new["status"]["podIPs"] = json!([{"ip": single}]);
    } else if single.is_empty() && !first.is_empty() {
        new["status"]["podIP"] = json!(first);
    }
}

/// Each is an address, and at most one of each family.
fn ips(new: &Value, old: &Value, many: &str, errors: &mut Fields) {
    let pointer = format!("/status/{many}");
    let all = list(new, &pointer);
    let before = list(old, &pointer);
    let mut families = [0, 0];
    for (n, ip) in all.iter().enumerate() {
        match text(ip, "/ip").parse::<IpAddr>() {
            Ok(IpAddr::V4(_)) => families[0] += 1,
            Ok(IpAddr::V6(_)) => families[1] += 1,
            Err(_) if before.contains(ip) => {}
            Err(_) => errors.invalid(
                &format!("status.{many}[{n}]"),
                &ip["ip"],
                "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
            ),
        }
    }
    if all.len() > 1 && families != [1, 1] {
        errors.invalid(
            &format!("status.{many}"),
            at(new, &pointer),
            "may specify no more than one IP for each IP family",
        );
    }
}
