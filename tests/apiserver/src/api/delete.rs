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
use crate::store::Store;

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
    core.notify();
    Ok(answer)
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
        if !list(&old, "/metadata/finalizers").is_empty() {
            if !has(&next, "/metadata/deletionTimestamp") {
                next["metadata"]["deletionTimestamp"] = json!(clock::rfc3339(now));
                next["metadata"]["deletionGracePeriodSeconds"] = json!(0);
                bump_generation(&mut next);
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
