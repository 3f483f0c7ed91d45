//! Creations and updates.
//!
//! Source: apiserver `pkg/registry/rest`, `pkg/registry/generic/registry/store.go`.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{Reply, Request, decode, dry_run, judge_unknown, key, normalise, present};
use crate::auth::User;
use crate::auth::authorize::{self, Grant};
use crate::auth::restriction::{self, Attributes, Operation};
use crate::clock;
use crate::core::Core;
use crate::error::{ApiError, Fields};
use crate::json::{at, child, list, object, text};
use crate::kinds::Kind;
use crate::path::Info;
use crate::rules::{self, Context};
use crate::store::{Key, Store};
use crate::{csr, lock, managed, patch, schema};

/// Writes, and does at once what controllers of every cluster do a moment later.
pub(crate) fn commit(core: &Core, store: &mut Store, key: Key, value: Value) -> Arc<Value> {
    let storage = key.0;
    let name = key.2.clone();
    let written = store.put(key.clone(), value);
    match storage {
        "certificatesigningrequests" => settle_request(core, store, &key),
        "namespaces" => furnish(core, store, &name),
        _ => {}
    }
    core.notify();
    written
}

/// What a namespace holds from its beginning.
fn furnish(core: &Core, store: &mut Store, ns: &str) {
    let metadata = |name: &str| {
        json!({
            "name": name, "namespace": ns, "uid": clock::uuid(),
            "creationTimestamp": clock::rfc3339(core.clock.now_s()),
        })
    };
    let here = |storage: &'static str, name: &str| (storage, ns.to_owned(), name.to_owned());
    let account = here("serviceaccounts", "default");
    if store.get(&account).is_none() {
        store.put(account, json!({"metadata": metadata("default")}));
    }
    let roots = here("configmaps", "kube-root-ca.crt");
    if store.get(&roots).is_none() {
        let data = json!({"ca.crt": core.authority.pem});
        store.put(
            roots,
            json!({"metadata": metadata("kube-root-ca.crt"), "data": data}),
        );
    }
}

/// Approves and signs as configured.
fn settle_request(core: &Core, store: &mut Store, key: &Key) {
    use crate::config::CsrMode;
    let Some(found) = store.get(key).map(|o| Value::clone(o)) else {
        return;
    };
    let Ok(request) = csr::parse(&found) else {
        return;
    };
    let mode = core.config.csr;
    let now = core.clock.now_s();
    let mut next = found;
    let decided = csr::has_condition(&next, "Approved") || csr::has_condition(&next, "Denied");
    if !decided && csr::auto_approves(&next, &request) && mode != CsrMode::Manual {
        let time = clock::rfc3339(now);
        next["status"]["conditions"] = json!([{"type": "Approved", "status": "True", "reason": "AutoApproved",
            "message": "Auto approving kubelet client certificate after SubjectAccessReview.",
            "lastUpdateTime": time, "lastTransitionTime": time}]);
        store.put(key.clone(), next.clone());
    }
    let ready = csr::has_condition(&next, "Approved")
        && !csr::has_condition(&next, "Failed")
        && text(&next, "/status/certificate").is_empty();
    let signer = text(&next, "/spec/signerName");
    let ours = signer == csr::CLIENT_SIGNER || signer == csr::SERVING_SIGNER;
    if !ready || !ours {
        return;
    }
    if let Err(why) = csr::signer_accepts(&next, &request) {
        let failed = json!({"type": "Failed", "status": "True", "reason": "SignerValidationFailure", "message": why});
        if let Some(conditions) = next["status"]["conditions"].as_array_mut() {
            conditions.push(failed);
        }
        store.put(key.clone(), next);
        return;
    }
    let configured = i64::try_from(core.config.certificate_life.as_secs()).unwrap_or(i64::MAX);
    let life = at(&next, "/spec/expirationSeconds")
        .as_i64()
        .map_or(configured, |s| s.min(configured));
    let usages: Vec<&str> = list(&next, "/spec/usages")
        .iter()
        .filter_map(Value::as_str)
        .collect();
    if let Ok(pem) = core.authority.sign(&request.der, &usages, now, now + life) {
        use base64::Engine as _;
        let encoded = base64::engine::general_purpose::STANDARD.encode(pem);
        next["status"]["certificate"] = json!(encoded);
        store.put(key.clone(), next);
    }
}

/// The namespace of a new object: its own, or that of the URL.
fn adopt_namespace(kind: &Kind, ns: &str, new: &mut Value) -> Result<(), ApiError> {
    let metadata = child(new, &["metadata"]);
    if !kind.namespaced {
        metadata.remove("namespace");
        return Ok(());
    }
    let given = metadata
        .get("namespace")
        .and_then(Value::as_str)
        .unwrap_or("");
    if !given.is_empty() && given != ns {
        return Err(ApiError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    metadata.insert("namespace".to_owned(), json!(ns));
    Ok(())
}

/// Creates an object; `new` has no type, and has been read as one.
pub(crate) fn create(
    core: &Core,
    user: &User,
    kind: &Kind,
    ns: &str,
    mut new: Value,
    dry: bool,
    notes: &mut Vec<String>,
) -> Result<Value, ApiError> {
    for key in ["apiVersion", "kind"] {
        object(&mut new).remove(key);
    }
    notes.extend(normalise(kind, &mut new)?);
    schema::drop_newer(core.config.minor, kind.plural, &mut new);
    let mut guard = core.store();
    let store = &mut *guard;
    let mut value = build(core, store, user, kind, ns, new)?;
    note(core, user, kind, "", &mut value, &Value::Null);
    let name = text(&value, "/metadata/name").to_owned();
    let key = key(kind, ns, &name);
    if store.get(&key).is_some() {
        return Err(ApiError::exists(kind, &name));
    }
    if dry {
        return Ok(present(kind, &value));
    }
    Ok(present(kind, &commit(core, store, key, value)))
}

/// Has an object say who wrote its fields, if it is to.
fn note(core: &Core, user: &User, kind: &Kind, sub: &str, new: &mut Value, old: &Value) {
    // The server makes spec and status of a new request itself.
    let is_reset = kind.plural == "certificatesigningrequests" && sub.is_empty();
    if core.config.managed_fields && !is_reset {
        let time = clock::rfc3339(core.clock.now_s());
        managed::note(&user.name, sub, &kind.api_version(), &time, new, old);
    }
}

/// Everything of a creation but the write.
fn build(
    core: &Core,
    store: &Store,
    user: &User,
    kind: &Kind,
    ns: &str,
    mut new: Value,
) -> Result<Value, ApiError> {
    adopt_namespace(kind, ns, &mut new)?;
    let metadata = child(&mut new, &["metadata"]);
    if metadata.contains_key("resourceVersion") {
        return Err(ApiError::new(
            500,
            "",
            "resourceVersion should not be set on objects to be created",
        ));
    }
    for gone in [
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
    ] {
        metadata.remove(gone);
    }
    let base = metadata
        .get("generateName")
        .and_then(Value::as_str)
        .unwrap_or("");
    if !metadata.contains_key("name") && !base.is_empty() {
        let name = format!("{base}{}", clock::suffix());
        metadata.insert("name".to_owned(), json!(name));
    }
    metadata.insert("uid".to_owned(), json!(clock::uuid()));
    let now = clock::rfc3339(core.clock.now_s());
    metadata.insert("creationTimestamp".to_owned(), json!(now));
    check_namespace(store, kind, ns)?;
    rules::default(kind, &mut new);
    restrict(
        core,
        store,
        user,
        kind,
        "",
        Operation::Create,
        ns,
        "",
        &new,
        &Value::Null,
    )?;
    match kind.plural {
        "pods" => rules::admit_pod(kind, store, ns, &mut new)?,
        // Nothing may be scheduled to a node before the node controller has looked at it.
        "nodes" => not_ready(&mut new),
        _ => {}
    }
    let context = Context {
        config: &core.config,
        user,
    };
    rules::prepare_create(kind, &context, &mut new);
    rules::validate_create(kind, &new)?;
    Ok(new)
}

fn not_ready(node: &mut Value) {
    let taint = json!({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"});
    let taints = child(node, &["spec"]).entry("taints").or_insert(json!([]));
    if let Some(taints) = taints.as_array_mut()
        && !taints
            .iter()
            .any(|t| t["key"] == taint["key"] && t["effect"] == taint["effect"])
    {
        taints.push(taint);
    }
}

/// Objects are made only in namespaces that exist.
fn check_namespace(store: &Store, kind: &Kind, ns: &str) -> Result<(), ApiError> {
    if !kind.namespaced {
        return Ok(());
    }
    let namespaces = crate::kinds::plural("namespaces").ok_or_else(ApiError::no_route)?;
    let found = store.find("namespaces", "", ns);
    found.ok_or_else(|| ApiError::not_found(namespaces, ns))?;
    Ok(())
}

/// Asks NodeRestriction.
#[expect(
    clippy::too_many_arguments,
    reason = "the attributes of an admission review"
)]
pub(super) fn restrict(
    core: &Core,
    store: &Store,
    user: &User,
    kind: &Kind,
    sub: &str,
    operation: Operation,
    ns: &str,
    name: &str,
    new: &Value,
    old: &Value,
) -> Result<(), ApiError> {
    let audience = Info {
        is_resource: true,
        verb: "request-serviceaccounts-token-audience".to_owned(),
        version: "v1".to_owned(),
        plural: text(new, "/spec/audiences/0").to_owned(),
        ns: ns.to_owned(),
        name: name.to_owned(),
        ..Info::default()
    };
    let grants: Vec<Grant> = lock(&core.grants).clone();
    let any_audience = sub == "token"
        && authorize::authorize(&core.config, store, &grants, user, &audience).is_ok();
    restriction::admit(
        store,
        user,
        &Attributes {
            kind,
            sub,
            operation,
            ns,
            name,
            new,
            old,
            any_audience,
            minor: core.config.minor,
        },
    )
}

/// Answers a PUT.
pub(super) fn put(
    core: &Core,
    request: &Request<'_>,
    kind: &'static Kind,
    ns: &str,
    sub: &str,
    notes: &mut Vec<String>,
) -> Result<Reply, ApiError> {
    let dry = dry_run(request.query)?;
    let name = request.info.name.as_str();
    let mut new = decode(
        request.content_type,
        &kind.api_version(),
        kind.kind,
        request.body,
    )?;
    let unknown = normalise(kind, &mut new)?;
    judge_unknown(kind.kind, request.query, unknown, notes)?;
    let given = text(&new, "/metadata/name").to_owned();
    if given != name {
        return Err(if given.is_empty() {
            ApiError::bad_request("name must be provided")
        } else {
            ApiError::bad_request(format!(
                "the name of the object ({given}) does not match the name on the URL ({name})"
            ))
        });
    }
    adopt_namespace(kind, ns, &mut new)?;
    let exists = core.store().get(&key(kind, ns, name)).is_some();
    if !exists && kind.updates.creates && sub.is_empty() {
        let created = create(core, request.user, kind, ns, new, dry, notes)?;
        return Ok(Reply::Object(201, created));
    }
    let uid = text(&new, "/metadata/uid").to_owned();
    let written = update(core, request.user, kind, ns, name, sub, dry, |old| {
        let has = text(old, "/metadata/uid");
        if !uid.is_empty() && uid != has {
            return Err(ApiError::uid_precondition(kind, ns, name, &uid, has));
        }
        Ok(new)
    })?;
    Ok(Reply::Object(200, present(kind, &written)))
}

/// Answers a PATCH.
pub(super) fn patch(
    core: &Core,
    request: &Request<'_>,
    kind: &'static Kind,
    ns: &str,
    sub: &str,
    notes: &mut Vec<String>,
) -> Result<Reply, ApiError> {
    let dry = dry_run(request.query)?;
    let name = request.info.name.as_str();
    let media = request.content_type.split(';').next().unwrap_or("").trim();
    if !patch::MEDIA_TYPES.contains(&media) {
        return Err(ApiError::media_type(patch::MEDIA_TYPES));
    }
    let written = update(core, request.user, kind, ns, name, sub, dry, |old| {
        let mut new = patch::apply(media, kind, &present(kind, old), request.body)?;
        for (key, want) in [("kind", kind.kind), ("apiVersion", &*kind.api_version())] {
            if let Some(given) = object(&mut new)
                .remove(key)
                .filter(|v| v.as_str() != Some(want))
            {
                return Err(ApiError::bad_request(format!(
                    "the {key} in the patched object ({given}) does not match the expected ({want})"
                )));
            }
        }
        let unknown = normalise(kind, &mut new).map_err(|e| {
            let mut errors = Fields::default();
            errors.invalid(
                "patch",
                &json!(String::from_utf8_lossy(request.body)),
                &e.message,
            );
            errors.finish_as("", "", "").err().unwrap_or(e)
        })?;
        judge_unknown(kind.kind, request.query, unknown, notes)?;
        if text(&new, "/metadata/name") != name {
            return Err(ApiError::bad_request(format!(
                "the name of the object ({}) does not match the name on the URL ({name})",
                text(&new, "/metadata/name")
            )));
        }
        adopt_namespace(kind, ns, &mut new)?;
        Ok(new)
    })?;
    Ok(Reply::Object(200, present(kind, &written)))
}

/// Replaces an object by what `make` makes of it, under all rules of an update through `sub`.
#[expect(clippy::too_many_arguments, reason = "who, what, how")]
pub(crate) fn update(
    core: &Core,
    user: &User,
    kind: &Kind,
    ns: &str,
    name: &str,
    sub: &str,
    dry: bool,
    make: impl FnOnce(&Value) -> Result<Value, ApiError>,
) -> Result<Arc<Value>, ApiError> {
    let mut guard = core.store();
    let store = &mut *guard;
    let key = key(kind, ns, name);
    let old = store
        .get(&key)
        .cloned()
        .ok_or_else(|| ApiError::not_found(kind, name))?;
    let mut new = make(&old)?;
    schema::drop_newer(core.config.minor, kind.plural, &mut new);
    let given = text(&new, "/metadata/resourceVersion").to_owned();
    let version = at(&old, "/metadata/resourceVersion").clone();
    new["metadata"]["resourceVersion"] = version;
    keep_metadata(&mut new, &old);
    rules::default(kind, &mut new);
    let context = Context {
        config: &core.config,
        user,
    };
    // Admission looks at what was sent, before what the subresource leaves alone is put back: an update of a node's
    // status without its taints is refused.
    restrict(
        core,
        store,
        user,
        kind,
        sub,
        Operation::Update,
        ns,
        name,
        &new,
        &old,
    )?;
    if given.is_empty() && !kind.updates.unconditional {
        let mut errors = Fields::default();
        errors.invalid(
            "metadata.resourceVersion",
            &json!(0),
            "must be specified for an update",
        );
        return Err(errors
            .finish_as(kind.group, kind.plural, name)
            .err()
            .unwrap_or_else(ApiError::method));
    }
    if !given.is_empty() && given != text(&old, "/metadata/resourceVersion") {
        return Err(ApiError::modified(kind, name));
    }
    rules::prepare_update(kind, &context, sub, &mut new, &old);
    rules::validate_update(kind, sub, &new, &old)?;
    if dry {
        return Ok(Arc::new(new));
    }
    note(core, user, kind, sub, &mut new, &old);
    let held = !list(&new, "/metadata/finalizers").is_empty();
    let grace = at(&old, "/metadata/deletionGracePeriodSeconds")
        .as_i64()
        .unwrap_or(0);
    if !held && !text(&old, "/metadata/deletionTimestamp").is_empty() && grace == 0 {
        let gone = store.remove(&key).unwrap_or(old);
        core.notify();
        return Ok(gone);
    }
    Ok(commit(core, store, key, new))
}

/// What no update changes.
fn keep_metadata(new: &mut Value, old: &Value) {
    let before = &old["metadata"];
    let metadata = child(new, &["metadata"]);
    for key in ["creationTimestamp", "deletionTimestamp", "generation"] {
        match before.get(key) {
            Some(value) => metadata.insert(key.to_owned(), value.clone()),
            None => metadata.remove(key),
        };
    }
    for key in ["uid", "deletionGracePeriodSeconds"] {
        if let Some(value) = before.get(key) {
            metadata.entry(key).or_insert_with(|| value.clone());
        }
    }
}
