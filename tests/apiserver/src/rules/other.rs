//! Everything but pods.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::meta;
use crate::auth::User;
use crate::csr;
use crate::error::Fields;
use crate::json::{array_mut, at, child, default as fill, has, list, map, object, text};
use crate::kinds::Kind;

/// Bytes of the data of one Secret or ConfigMap.
const MAX_DATA: usize = 1024 * 1024;

/// Characters of an event's note, and of its other texts.
const MAX_NOTE: usize = 1024;
const MAX_EVENT_TEXT: usize = 128;

pub(super) fn default(kind: &Kind, new: &mut Value) {
    match kind.plural {
        "secrets" => fill(new, &[], "type", json!("Opaque")),
        "namespaces" => {
            let name = at(new, "/metadata/name").clone();
            child(new, &["metadata", "labels"])
                .insert("kubernetes.io/metadata.name".to_owned(), name);
        }
        "nodes" => {
            let capacity = at(new, "/status/capacity").clone();
            if !capacity.is_null() {
                fill(new, &["status"], "allocatable", capacity);
            }
        }
        "services" => {
            for (key, value) in [
                ("sessionAffinity", json!("None")),
                ("type", json!("ClusterIP")),
                ("internalTrafficPolicy", json!("Cluster")),
            ] {
                fill(new, &["spec"], key, value);
            }
            for port in array_mut(new, "/spec/ports") {
                let number = port["port"].clone();
                fill(port, &[], "protocol", json!("TCP"));
                fill(port, &[], "targetPort", number);
            }
        }
        "persistentvolumes" => {
            fill(
                new,
                &["spec"],
                "persistentVolumeReclaimPolicy",
                json!("Retain"),
            );
            fill(new, &["spec"], "volumeMode", json!("Filesystem"));
            if new["spec"]["hostPath"].is_object() {
                fill(new, &["spec", "hostPath"], "type", json!(""));
            }
            // No pointer, as it is in a claim: the empty one is none.
            if text(new, "/spec/storageClassName").is_empty() {
                child(new, &["spec"]).remove("storageClassName");
            }
        }
        "persistentvolumeclaims" => fill(new, &["spec"], "volumeMode", json!("Filesystem")),
        "podcertificaterequests" => fill(new, &["spec"], "maxExpirationSeconds", json!(86400)),
        "priorityclasses" => fill(new, &[], "preemptionPolicy", json!("PreemptLowerPriority")),
        _ => {}
    }
}

pub(super) fn prepare_csr(user: &User, new: &mut Value) {
    let spec = child(new, &["spec"]);
    for key in ["username", "uid", "groups", "extra"] {
        spec.remove(key);
    }
    spec.insert("username".to_owned(), json!(user.name));
    spec.insert("groups".to_owned(), json!(user.groups));
    if !user.extra.is_empty() {
        spec.insert("extra".to_owned(), json!(user.extra));
    }
    new["status"] = json!({});
}

/// A status update sets certificates and the condition Failed, never the approval.
pub(super) fn keep_approvals(new: &mut Value, old: &Value) {
    let approval = |c: &&Value| ["Approved", "Denied"].contains(&text(c, "/type"));
    let mut conditions: Vec<Value> = list(old, "/status/conditions")
        .iter()
        .filter(approval)
        .cloned()
        .collect();
    conditions.extend(
        list(new, "/status/conditions")
            .iter()
            .filter(|c| !approval(c))
            .cloned(),
    );
    if !conditions.is_empty() {
        new["status"]["conditions"] = Value::Array(conditions);
    }
}

/// What keeps a volume while it is in use.
pub(super) fn protect(kind: &Kind, new: &mut Value) {
    let finalizer = if kind.namespaced {
        "kubernetes.io/pvc-protection"
    } else {
        "kubernetes.io/pv-protection"
    };
    let all = child(new, &["metadata"])
        .entry("finalizers")
        .or_insert(json!([]));
    if let Some(all) = all.as_array_mut()
        && !all.iter().any(|f| f == finalizer)
    {
        all.push(json!(finalizer));
    }
}

/// Addresses come from a counter nobody keeps: the last two bytes of a random number.
pub(super) fn prepare_service(new: &mut Value) {
    let [a] = crate::clock::random::<1>();
    if text(new, "/spec/type") != "ExternalName" && !has(new, "/spec/clusterIP") {
        new["spec"]["clusterIP"] = json!(format!("10.96.0.{}", a.clamp(2, 254)));
    }
    if has(new, "/spec/clusterIP") {
        let ip = new["spec"]["clusterIP"].clone();
        fill(new, &["spec"], "clusterIPs", json!([ip]));
        fill(new, &["spec"], "ipFamilies", json!(["IPv4"]));
        fill(new, &["spec"], "ipFamilyPolicy", json!("SingleStack"));
    }
    new["status"] = json!({"loadBalancer": {}});
}

/// `stringData` is written, never read.
pub(super) fn string_data(new: &mut Value) {
    let Some(Value::Object(texts)) = object(new).remove("stringData") else {
        return;
    };
    let data = child(new, &["data"]);
    for (key, value) in texts {
        let encoded = STANDARD.encode(value.as_str().unwrap_or(""));
        data.insert(key, json!(encoded));
    }
}

pub(super) fn validate(kind: &Kind, new: &Value, errors: &mut Fields) {
    match kind.plural {
        "nodes" => node(new, errors),
        "leases" => lease(new, errors),
        "events" => event(new, errors),
        "certificatesigningrequests" => csr::validate(new, errors),
        "podcertificaterequests" => csr::validate_of_pod(new, errors),
        "configmaps" => data(new, &["data", "binaryData"], errors),
        "secrets" => {
            for (key, value) in map(new, "/data") {
                if value.as_str().is_none_or(|v| STANDARD.decode(v).is_err()) {
                    errors.invalid(&format!("data[{key}]"), value, "illegal base64 data");
                }
            }
            data(new, &["data"], errors);
            if text(new, "/type") == "kubernetes.io/dockerconfigjson"
                && !has(new, "/data/.dockerconfigjson")
            {
                errors.required("data[.dockerconfigjson]", "");
            }
        }
        "runtimeclasses" if text(new, "/handler").is_empty() => errors.required("handler", ""),
        _ => {}
    }
}

pub(super) fn validate_update(
    kind: &Kind,
    sub: &str,
    new: &Value,
    old: &Value,
    errors: &mut Fields,
) {
    match kind.plural {
        "nodes" => {
            node(new, errors);
            let cidrs = at(old, "/spec/podCIDRs");
            if !cidrs.is_null() && at(new, "/spec/podCIDRs") != cidrs {
                errors.forbidden(
                    "spec.podCIDRs",
                    "node updates may not change podCIDR except from \"\" to valid",
                );
            }
            let provider = text(old, "/spec/providerID");
            if !provider.is_empty() && text(new, "/spec/providerID") != provider {
                errors.forbidden(
                    "spec.providerID",
                    "node updates may not change providerID except from \"\" to valid",
                );
            }
        }
        "certificatesigningrequests" => {
            csr::validate(new, errors);
            csr::validate_update(sub, new, old, errors);
        }
        "configmaps" | "secrets" => {
            validate(kind, new, errors);
            if at(old, "/immutable").as_bool() == Some(true) {
                if at(new, "/immutable").as_bool() != Some(true) {
                    errors.forbidden("immutable", "field is immutable when `immutable` is set");
                }
                for key in ["data", "binaryData"] {
                    if new.get(key) != old.get(key) {
                        errors.forbidden(key, "field is immutable when `immutable` is set");
                    }
                }
            }
            if kind.plural == "secrets" && text(new, "/type") != text(old, "/type") {
                errors.invalid("type", at(new, "/type"), "field is immutable");
            }
        }
        _ => validate(kind, new, errors),
    }
}

fn data(new: &Value, keys: &[&str], errors: &mut Fields) {
    let mut size = 0;
    for field in keys {
        for (key, value) in map(new, &format!("/{field}")) {
            let fits = !key.is_empty()
                && key.len() <= 253
                && key
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
                && key != "."
                && !key.starts_with("..");
            if !fits {
                errors.invalid(
                    &format!("{field}[{key}]"),
                    &json!(key),
                    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  \
                     or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')",
                );
            }
            size += value.as_str().map_or(0, str::len);
        }
    }
    if size > MAX_DATA {
        errors.invalid(
            "data",
            &json!(""),
            "Too long: may not be more than 1048576 bytes",
        );
    }
}

fn node(new: &Value, errors: &mut Fields) {
    let mut seen: Vec<(&str, &str)> = Vec::new();
    for (n, taint) in list(new, "/spec/taints").iter().enumerate() {
        let path = format!("metadata.taints[{n}]");
        let key = text(taint, "/key");
        meta::qualified_name(&format!("{path}.key"), key, errors);
        let effect = text(taint, "/effect");
        match effect {
            "" => errors.required(&format!("{path}.effect"), ""),
            "NoSchedule" | "PreferNoSchedule" | "NoExecute" => {}
            _ => errors.unsupported(
                &format!("{path}.effect"),
                &taint["effect"],
                &["NoExecute", "NoSchedule", "PreferNoSchedule"],
            ),
        }
        if seen.contains(&(key, effect)) {
            errors.duplicate(&path, taint);
        }
        seen.push((key, effect));
    }
    let addresses = list(new, "/status/addresses");
    for (n, address) in addresses.iter().enumerate() {
        if addresses[..n].contains(address) {
            errors.duplicate(&format!("status.addresses[{n}]"), address);
        }
    }
    let features = list(new, "/status/declaredFeatures");
    for (n, pair) in features.windows(2).enumerate() {
        if pair[0].as_str() >= pair[1].as_str() {
            errors.invalid(
                &format!("status.declaredFeatures[{}]", n + 1),
                &pair[1],
                "list must be sorted alphabetically",
            );
        }
    }
    let cidrs = list(new, "/spec/podCIDRs");
    if !cidrs.is_empty() && text(new, "/spec/podCIDR") != cidrs[0].as_str().unwrap_or("") {
        errors.invalid("spec.podCIDRs[0]", &cidrs[0], "must equal podCIDR");
    }
    for key in ["capacity", "allocatable"] {
        for (name, quantity) in map(new, &format!("/status/{key}")) {
            if quantity.as_str().is_some_and(|q| q.starts_with('-')) {
                errors.invalid(
                    &format!("status.{key}.{name}"),
                    quantity,
                    "must be greater than or equal to 0",
                );
            }
        }
    }
}

fn lease(new: &Value, errors: &mut Fields) {
    let duration = at(new, "/spec/leaseDurationSeconds");
    if duration.as_i64().is_some_and(|s| s <= 0) {
        errors.invalid(
            "spec.leaseDurationSeconds",
            duration,
            "must be greater than 0",
        );
    }
    let transitions = at(new, "/spec/leaseTransitions");
    if transitions.as_i64().is_some_and(|n| n < 0) {
        errors.invalid(
            "spec.leaseTransitions",
            transitions,
            "must be greater than or equal to 0",
        );
    }
}

fn event(new: &Value, errors: &mut Fields) {
    let ns = text(new, "/metadata/namespace");
    let about = text(new, "/involvedObject/namespace");
    let mismatch = |errors: &mut Fields| {
        errors.invalid(
            "involvedObject.namespace",
            at(new, "/involvedObject/namespace"),
            "does not match event.namespace",
        );
    };
    if !has(new, "/eventTime") {
        if about.is_empty() && ns != "default" || !about.is_empty() && about != ns {
            mismatch(errors);
        }
        return;
    }
    if about.is_empty() && ns != "default" && ns != "kube-system" {
        mismatch(errors);
    }
    for (key, field, limit) in [
        ("reportingComponent", "reportingController", MAX_EVENT_TEXT),
        ("reportingInstance", "reportingInstance", MAX_EVENT_TEXT),
        ("action", "action", MAX_EVENT_TEXT),
        ("reason", "reason", MAX_EVENT_TEXT),
        ("message", "message", MAX_NOTE),
    ] {
        let value = text(new, &format!("/{key}"));
        if value.is_empty() && key != "message" {
            errors.required(field, "");
        }
        if value.len() > limit {
            errors.invalid(
                field,
                &json!(""),
                &format!("can have at most {limit} characters"),
            );
        }
    }
    if has(new, "/series") && at(new, "/series/count").as_i64().is_none_or(|n| n < 2) {
        errors.invalid("series.count", &json!(""), "should be at least 2");
    }
}
