//! Tables, as `kubectl get` asks for them: nodes and pods with upstream's columns, all else by name and age.
//!
//! Source: `pkg/printers/internalversion/printers.go`.

use std::sync::Arc;

use serde_json::{Value, json};

use super::metadata_only;
use crate::clock;
use crate::core::Core;
use crate::json::{at, has, list, map, text};
use crate::kinds::Kind;

const NODE: &[(&str, u8)] = &[
    ("Name", 0),
    ("Status", 0),
    ("Roles", 0),
    ("Age", 0),
    ("Version", 0),
    ("Internal-IP", 1),
    ("External-IP", 1),
    ("OS-Image", 1),
    ("Kernel-Version", 1),
    ("Container-Runtime", 1),
];

const POD: &[(&str, u8)] = &[
    ("Name", 0),
    ("Ready", 0),
    ("Status", 0),
    ("Restarts", 0),
    ("Age", 0),
    ("IP", 1),
    ("Node", 1),
    ("Nominated Node", 1),
    ("Readiness Gates", 1),
];

const OTHER: &[(&str, u8)] = &[("Name", 0), ("Age", 0)];

pub(super) fn render(core: &Core, kind: &Kind, items: &[Arc<Value>], mut metadata: Value) -> Value {
    let now = core.clock.now_s();
    let columns = match kind.plural {
        "nodes" => NODE,
        "pods" => POD,
        _ => OTHER,
    };
    if let [one] = items
        && !has(&metadata, "/resourceVersion")
    {
        metadata["resourceVersion"] = one["metadata"]["resourceVersion"].clone();
    }
    let rows: Vec<Value> = items
        .iter()
        .map(|item| {
            let cells = match kind.plural {
                "nodes" => node(item, now),
                "pods" => pod(item, now),
                _ => json!([item["metadata"]["name"], age(item, now)]),
            };
            json!({"cells": cells, "object": metadata_only(item)})
        })
        .collect();
    let columns: Vec<Value> = columns
        .iter()
        .map(|(name, priority)| {
            let format = if *name == "Name" { "name" } else { "" };
            json!({"name": name, "type": "string", "format": format, "description": "", "priority": priority})
        })
        .collect();
    json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "columnDefinitions": columns,
        "rows": rows,
    })
}

fn since(then: &str, now: i64) -> String {
    let Some(then) = clock::parse_rfc3339(then) else {
        return "<unknown>".to_owned();
    };
    let s = (now - then).max(0);
    let (m, h, d) = (s / 60, s / 3600, s / 86400);
    match s {
        0..120 => format!("{s}s"),
        120..600 if s % 60 > 0 => format!("{m}m{}s", s % 60),
        120..10_800 => format!("{m}m"),
        10_800..28_800 if m % 60 > 0 => format!("{h}h{}m", m % 60),
        10_800..172_800 => format!("{h}h"),
        172_800..691_200 if h % 24 > 0 => format!("{d}d{}h", h % 24),
        _ => format!("{d}d"),
    }
}

fn age(item: &Value, now: i64) -> String {
    since(text(item, "/metadata/creationTimestamp"), now)
}

fn or_none(text: &str) -> &str {
    if text.is_empty() { "<none>" } else { text }
}

fn node(node: &Value, now: i64) -> Value {
    let ready = list(node, "/status/conditions")
        .iter()
        .find(|c| text(c, "/type") == "Ready")
        .map_or("", |c| text(c, "/status"));
    let mut status = match ready {
        "True" => "Ready",
        "" => "Unknown",
        _ => "NotReady",
    }
    .to_owned();
    if at(node, "/spec/unschedulable").as_bool() == Some(true) {
        status.push_str(",SchedulingDisabled");
    }
    let roles: Vec<&str> = map(node, "/metadata/labels")
        .filter_map(|(key, _)| key.strip_prefix("node-role.kubernetes.io/"))
        .collect();
    let address = |ty: &str| {
        let found = list(node, "/status/addresses")
            .iter()
            .find(|a| text(a, "/type") == ty);
        or_none(found.map_or("", |a| text(a, "/address"))).to_owned()
    };
    let fact = |key: &str| text(node, &format!("/status/nodeInfo/{key}")).to_owned();
    json!([
        node["metadata"]["name"],
        status,
        or_none(&roles.join(",")),
        age(node, now),
        fact("kubeletVersion"),
        address("InternalIP"),
        address("ExternalIP"),
        fact("osImage"),
        fact("kernelVersion"),
        fact("containerRuntimeVersion"),
    ])
}

fn is_sidecar(pod: &Value, name: &str) -> bool {
    list(pod, "/spec/initContainers")
        .iter()
        .any(|c| text(c, "/name") == name && text(c, "/restartPolicy") == "Always")
}

/// Why a container that ended did so, for the column Status.
fn ended(state: &Value) -> String {
    let reason = text(state, "/terminated/reason");
    if !reason.is_empty() {
        return reason.to_owned();
    }
    match at(state, "/terminated/signal").as_i64().filter(|s| *s != 0) {
        Some(signal) => format!("Signal:{signal}"),
        None => format!(
            "ExitCode:{}",
            at(state, "/terminated/exitCode").as_i64().unwrap_or(0)
        ),
    }
}

fn pod(pod: &Value, now: i64) -> Value {
    let mut reason = match text(pod, "/status/reason") {
        "" => text(pod, "/status/phase"),
        some => some,
    }
    .to_owned();
    let mut total = list(pod, "/spec/containers").len();
    let inits = list(pod, "/spec/initContainers");
    total += inits
        .iter()
        .filter(|c| is_sidecar(pod, text(c, "/name")))
        .count();
    let (mut ready, mut restarts) = (0, 0);
    let mut initialising = false;
    for (n, status) in list(pod, "/status/initContainerStatuses")
        .iter()
        .enumerate()
    {
        let state = &status["state"];
        let sidecar = is_sidecar(pod, text(status, "/name"));
        restarts += at(status, "/restartCount").as_i64().unwrap_or(0);
        if sidecar && at(status, "/ready").as_bool() == Some(true) {
            ready += 1;
        }
        if initialising
            || has(state, "/terminated") && at(state, "/terminated/exitCode").as_i64() == Some(0)
            || sidecar && at(status, "/started").as_bool() == Some(true)
        {
            continue;
        }
        initialising = true;
        let waiting = text(state, "/waiting/reason");
        reason = if has(state, "/terminated") {
            format!("Init:{}", ended(state))
        } else if !waiting.is_empty() && waiting != "PodInitializing" {
            format!("Init:{waiting}")
        } else {
            format!("Init:{n}/{}", inits.len())
        };
    }
    if !initialising {
        let mut running = false;
        for status in list(pod, "/status/containerStatuses").iter().rev() {
            let state = &status["state"];
            restarts += at(status, "/restartCount").as_i64().unwrap_or(0);
            let waiting = text(state, "/waiting/reason");
            if !waiting.is_empty() {
                waiting.clone_into(&mut reason);
            } else if has(state, "/terminated") {
                reason = ended(state);
            } else if has(state, "/running") && at(status, "/ready").as_bool() == Some(true) {
                running = true;
                ready += 1;
            }
        }
        if reason == "Completed" && running {
            let is_ready = list(pod, "/status/conditions")
                .iter()
                .any(|c| text(c, "/type") == "Ready" && text(c, "/status") == "True");
            reason = if is_ready { "Running" } else { "NotReady" }.to_owned();
        }
    }
    if has(pod, "/metadata/deletionTimestamp") {
        reason = if text(pod, "/status/reason") == "NodeLost" {
            "Unknown".to_owned()
        } else if ["Failed", "Succeeded"].contains(&text(pod, "/status/phase")) {
            reason
        } else {
            "Terminating".to_owned()
        };
    }
    json!([
        pod["metadata"]["name"],
        format!("{ready}/{total}"),
        reason,
        restarts.to_string(),
        age(pod, now),
        or_none(text(pod, "/status/podIP")),
        or_none(text(pod, "/spec/nodeName")),
        or_none(text(pod, "/status/nominatedNodeName")),
        "<none>",
    ])
}
