//! Deletions, graceful where the resource knows grace: pods.
//!
//! Source: apiserver `pkg/registry/rest/delete.go`, `pkg/registry/generic/registry/store.go`.

use serde_json::{Value, json};

use super::write::restrict;
use super::{Reply, Request, decode, dry_run, key, present};
use crate::auth::User;
use crate::auth::restriction::Operation;
use crate::clock;
use crate::core::Core;
use crate::error::{ApiError, Fields};
use crate::json::{at, has, list, text};
use crate::kinds::Kind;
use crate::select::Selector;
use crate::store::{Key, Store};

/// Namespaces that stay.
const IMMORTAL: &[&str] = &["default", "kube-system", "kube-public"];

/// Reads `DeleteOptions` from the body or the query.
fn options(request: &Request<'_>) -> Result<Value, ApiError> {
    let mut options = json!({});
    if !request.body.is_empty() {
        // Either name of the type is taken.
        options =
            decode(request.content_type, "v1", "DeleteOptions", request.body).or_else(|_| {
                decode(
                    request.content_type,
                    "meta.k8s.io/v1",
                    "DeleteOptions",
                    request.body,
                )
            })?;
    } else if request.query.has("gracePeriodSeconds") {
        let grace = request.query.get("gracePeriodSeconds");
        let seconds: i64 = grace.parse().map_err(|_| {
            ApiError::bad_request(format!("gracePeriodSeconds: Invalid value: {grace:?}"))
        })?;
        options["gracePeriodSeconds"] = json!(seconds);
    }
    let policy = match text(&options, "/propagationPolicy") {
        "" => request.query.get("propagationPolicy"),
        some => some,
    };
    if !["", "Orphan", "Background", "Foreground"].contains(&policy) {
        let mut errors = Fields::default();
        errors.unsupported(
            "propagationPolicy",
            &json!(policy),
            &["Foreground", "Background", "Orphan", "nil"],
        );
        errors.finish_as("meta.k8s.io", "DeleteOptions", "")?;
    }
    let dry = list(&options, "/dryRun")
        .iter()
        .any(|v| v.as_str() == Some("All"))
        || dry_run(request.query)?;
    options["dry"] = json!(dry);
    Ok(options)
}

pub(super) fn handle(
    core: &Core,
    request: &Request<'_>,
    kind: &Kind,
    ns: &str,
) -> Result<Reply, ApiError> {
    let options = options(request)?;
    let name = request.info.name.as_str();
    Ok(Reply::Object(
        200,
        delete(core, request.user, kind, ns, name, &options)?,
    ))
}

pub(super) fn collection(
    core: &Core,
    request: &Request<'_>,
    kind: &Kind,
    ns: &str,
) -> Result<Reply, ApiError> {
    if kind.namespaced && ns.is_empty() {
        return Err(ApiError::method());
    }
    let options = options(request)?;
    let query = request.query;
    let selector = Selector::parse(kind, query.get("labelSelector"), query.get("fieldSelector"))?;
    let names: Vec<String> = core
        .store()
        .iter(kind.storage(), ns)
        .filter(|(_, object)| selector.matches(kind, object))
        .map(|(key, _)| key.2.clone())
        .collect();
    let mut items = Vec::new();
    for name in names {
        let before = core
            .store()
            .get(&key(kind, ns, &name))
            .map(|o| Value::clone(o));
        match delete(core, request.user, kind, ns, &name, &options) {
            Ok(_) => items.extend(before),
            Err(e) if e.code == 404 => {}
            Err(e) => return Err(e),
        }
    }
    let rv = core.store().rv().to_string();
    Ok(Reply::Object(
        200,
        json!({
            "kind": format!("{}List", kind.kind), "apiVersion": kind.api_version(),
            "metadata": {"resourceVersion": rv}, "items": items,
        }),
    ))
}

fn preconditions(kind: &Kind, name: &str, object: &Value, options: &Value) -> Result<(), ApiError> {
    for (key, what, hint) in [
        ("uid", "UID", "deleted and then recreated"),
        ("resourceVersion", "ResourceVersion", "modified"),
    ] {
        let wanted = text(options, &format!("/preconditions/{key}"));
        let has = text(object, &format!("/metadata/{key}"));
        if !wanted.is_empty() && wanted != has {
            return Err(ApiError::precondition(
                kind,
                name,
                &format!(
                    "the {what} in the precondition ({wanted}) does not match the {what} in record ({has}). The object \
                     might have been {hint}"
                ),
            ));
        }
    }
    Ok(())
}

/// Deletes, or begins to. Returns the body of the answer.
pub(crate) fn delete(
    core: &Core,
    user: &User,
    kind: &Kind,
    ns: &str,
    name: &str,
    options: &Value,
) -> Result<Value, ApiError> {
    let mut guard = core.store();
    let store = &mut *guard;
    let answer = delete_locked(core, store, user, kind, ns, name, options)?;
    release_volumes(store);
    sweep_namespaces(core, store);
    core.notify();
    Ok(answer)
}

/// What the protection controllers do: claims and volumes that are going and not in use go.
fn release_volumes(store: &mut Store) {
    let going = |store: &Store, storage: &'static str, finalizer: &str| -> Vec<Key> {
        store
            .iter(storage, "")
            .filter(|(_, o)| {
                has(o, "/metadata/deletionTimestamp")
                    && matches!(list(o, "/metadata/finalizers"), [only] if only == finalizer)
            })
            .map(|(key, _)| key.clone())
            .collect()
    };
    for key in going(
        store,
        "persistentvolumeclaims",
        "kubernetes.io/pvc-protection",
    ) {
        let used = store.iter("pods", &key.1).any(|(_, pod)| {
            let finished = ["Failed", "Succeeded"].contains(&text(pod, "/status/phase"));
            let named = list(pod, "/spec/volumes")
                .iter()
                .any(|v| text(v, "/persistentVolumeClaim/claimName") == key.2);
            named && !finished && !text(pod, "/spec/nodeName").is_empty()
        });
        if !used {
            store.remove(&key);
        }
    }
    for key in going(store, "persistentvolumes", "kubernetes.io/pv-protection") {
        let bound = store
            .get(&key)
            .is_some_and(|volume| text(volume, "/status/phase") == "Bound");
        if !bound {
            store.remove(&key);
        }
    }
}

fn delete_locked(
    core: &Core,
    store: &mut Store,
    user: &User,
    kind: &Kind,
    ns: &str,
    name: &str,
    options: &Value,
) -> Result<Value, ApiError> {
    let key = key(kind, ns, name);
    let old = store
        .get(&key)
        .map(|o| Value::clone(o))
        .ok_or_else(|| ApiError::not_found(kind, name))?;
    restrict(
        core,
        store,
        user,
        kind,
        "",
        Operation::Delete,
        ns,
        name,
        &Value::Null,
        &old,
    )?;
    if kind.plural == "namespaces" && IMMORTAL.contains(&name) {
        return Err(ApiError::forbidden(
            kind,
            name,
            "this namespace may not be deleted",
        ));
    }
    preconditions(kind, name, &old, options)?;
    let dry = at(options, "/dry").as_bool() == Some(true);
    let now = core.clock.now_s();
    let mut next = old.clone();
    if kind.plural == "pods" {
        let before = next.clone();
        if !shorten(&mut next, at(options, "/gracePeriodSeconds").as_i64(), now) {
            return Ok(present(kind, &old));
        }
        let ends_now = at(&next, "/metadata/deletionGracePeriodSeconds").as_i64() == Some(0);
        let held = !list(&next, "/metadata/finalizers").is_empty();
        if dry {
            return Ok(present(kind, &next));
        }
        if next != before {
            // Watchers see the deletion begin even when it ends at once.
            next = Value::clone(&store.put(key.clone(), next));
        }
        if !ends_now || held {
            return Ok(present(kind, &next));
        }
    } else {
        let held = !list(&old, "/metadata/finalizers").is_empty();
        let namespace = kind.plural == "namespaces";
        if held || namespace {
            if !has(&next, "/metadata/deletionTimestamp") {
                next["metadata"]["deletionTimestamp"] = json!(clock::rfc3339(now));
                if !namespace {
                    next["metadata"]["deletionGracePeriodSeconds"] = json!(0);
                }
                bump_generation(&mut next);
            }
            if namespace {
                next["status"]["phase"] = json!("Terminating");
            }
            if !dry {
                next = Value::clone(&store.put(key, next));
            }
            return Ok(present(kind, &next));
        }
    }
    if dry {
        return Ok(present(kind, &old));
    }
    let gone = store.remove(&key).map_or(old, |o| Value::clone(&o));
    if kind.returns_deleted {
        return Ok(present(kind, &gone));
    }
    let mut details =
        json!({"name": name, "kind": kind.plural, "uid": text(&gone, "/metadata/uid")});
    if !kind.group.is_empty() {
        details["group"] = json!(kind.group);
    }
    Ok(json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details,
    }))
}

fn bump_generation(object: &mut Value) {
    if let Some(generation) = at(object, "/metadata/generation")
        .as_i64()
        .filter(|g| *g > 0)
    {
        object["metadata"]["generation"] = json!(generation + 1);
    }
}

/// Begins the graceful deletion of a pod, or brings its end nearer. False when nothing changes: a deletion that is
/// under way is never prolonged.
fn shorten(pod: &mut Value, asked_s: Option<i64>, now: i64) -> bool {
    let asked = asked_s.map(|s| if s < 0 { 1 } else { s });
    let current = at(pod, "/metadata/deletionGracePeriodSeconds").as_i64();
    if let Some(end) = clock::parse_rfc3339(text(pod, "/metadata/deletionTimestamp")) {
        let current = current.unwrap_or(0);
        if current == 0 {
            return true;
        }
        let Some(mut seconds) = asked.filter(|s| *s < current) else {
            return false;
        };
        let mut end = end - current + seconds;
        if end < now {
            end = now;
            // Someone else still has to end it.
            seconds = seconds.min(1);
        }
        pod["metadata"]["deletionTimestamp"] = json!(clock::rfc3339(end));
        pod["metadata"]["deletionGracePeriodSeconds"] = json!(seconds);
        return true;
    }
    let mut seconds = asked
        .or_else(|| at(pod, "/spec/terminationGracePeriodSeconds").as_i64())
        .unwrap_or(0);
    let finished = ["Failed", "Succeeded"].contains(&text(pod, "/status/phase"));
    if text(pod, "/spec/nodeName").is_empty() || finished {
        seconds = 0;
    }
    if seconds < 0 {
        seconds = 1;
    }
    pod["metadata"]["deletionTimestamp"] = json!(clock::rfc3339(now + seconds));
    pod["metadata"]["deletionGracePeriodSeconds"] = json!(seconds);
    bump_generation(pod);
    true
}

/// What the namespace controller does: empties namespaces that are going, and lets them go when no pod is left.
pub(super) fn sweep_namespaces(core: &Core, store: &mut Store) {
    let going: Vec<String> = store
        .iter("namespaces", "")
        .filter(|(_, ns)| text(ns, "/status/phase") == "Terminating")
        .map(|(key, _)| key.2.clone())
        .collect();
    for ns in going {
        let pods: Vec<String> = store
            .iter("pods", &ns)
            .map(|(key, _)| key.2.clone())
            .collect();
        if let Some(kind) = crate::kinds::plural("pods") {
            for pod in &pods {
                let _ = delete_locked(core, store, &User::admin(), kind, &ns, pod, &json!({}));
            }
        }
        if store.iter("pods", &ns).next().is_some() {
            continue;
        }
        for kind in crate::kinds::KINDS
            .iter()
            .filter(|k| k.stored && k.namespaced)
        {
            let keys: Vec<_> = store
                .iter(kind.storage(), &ns)
                .map(|(key, _)| key.clone())
                .collect();
            for key in keys {
                store.remove(&key);
            }
        }
        store.remove(&("namespaces", String::new(), ns));
    }
}
