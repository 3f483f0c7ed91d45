//! Subresources: status, binding, eviction, tokens and the like.

use serde_json::{Value, json};

use super::{Reply, Request, commit, decode, delete, dry_run, judge_unknown, key, read, write};
use crate::auth::restriction::Operation;
use crate::clock;
use crate::core::Core;
use crate::error::ApiError;
use crate::json::{at, child, has, list, map, text};
use crate::kinds::{self, Kind};
use crate::proxy;
use crate::schema;

fn success() -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201})
}

pub(super) fn handle(
    core: &Core,
    request: &Request<'_>,
    kind: &'static Kind,
    ns: &str,
    notes: &mut Vec<String>,
) -> Result<Reply, ApiError> {
    let info = request.info;
    match (kind.plural, info.sub.as_str(), info.verb.as_str()) {
        ("serviceaccounts", "token", "create") => token(core, request, kind, ns, notes),
        ("pods", "binding", "create") => {
            let body = decode(request.content_type, "v1", "Binding", request.body)?;
            bind(core, ns, &info.name, &body, dry_run(request.query)?)?;
            Ok(Reply::Object(201, success()))
        }
        ("pods", "eviction", "create") => evict(core, request, kind, ns),
        ("pods", "log", "get") => {
            let call = proxy::log(core, kind, ns, &info.name, request.query)?;
            Ok(Reply::Node(Box::new(call)))
        }
        ("pods", "exec" | "attach" | "portforward", "get" | "create") => {
            let call = proxy::streams(core, kind, ns, &info.name, &info.sub, request.query)?;
            Ok(Reply::Node(Box::new(call)))
        }
        ("serviceaccounts", "token", _)
        | ("pods", "binding" | "eviction" | "log" | "exec" | "attach" | "portforward", _) => {
            Err(ApiError::method())
        }
        (_, _, "get") => read::get(core, request, kind, ns),
        (_, sub, "update") => write::put(core, request, kind, ns, sub, notes),
        (_, sub, "patch") => write::patch(core, request, kind, ns, sub, notes),
        _ => Err(ApiError::method()),
    }
}

fn token(
    core: &Core,
    request: &Request<'_>,
    kind: &Kind,
    ns: &str,
    notes: &mut Vec<String>,
) -> Result<Reply, ApiError> {
    let name = request.info.name.as_str();
    let mut body = decode(
        request.content_type,
        "authentication.k8s.io/v1",
        "TokenRequest",
        request.body,
    )?;
    let unknown = schema::normalise_as("authentication.k8s.io", "tokenrequests", &mut body)
        .map_err(ApiError::bad_request)?;
    judge_unknown("TokenRequest", request.query, unknown, notes)?;
    let store = core.store();
    // The account first: admission runs within the creation.
    if store.find("serviceaccounts", ns, name).is_none() {
        return Err(ApiError::not_found(kind, name));
    }
    write::restrict(
        core,
        &store,
        request.user,
        kind,
        "token",
        Operation::Create,
        ns,
        name,
        &body,
        &Value::Null,
    )?;
    let answer = core
        .signer
        .request(&store, core.clock.now_s(), ns, name, body)?;
    Ok(Reply::Object(201, answer))
}

/// Binds a pod to a node.
///
/// - Errors: 409 when it is bound, going, or gated; 404 when it is not there.
/// - Source: `pkg/registry/core/pod/storage/storage.go` `BindingREST`.
fn bind(core: &Core, ns: &str, name: &str, binding: &Value, dry: bool) -> Result<(), ApiError> {
    let kind = kinds::plural("pods").ok_or_else(ApiError::no_route)?;
    if text(binding, "/metadata/name") != name {
        return Err(ApiError::bad_request(
            "name in URL does not match name in Binding object",
        ));
    }
    let node = text(binding, "/target/name");
    let mut errors = crate::error::Fields::default();
    if !["", "Node"].contains(&text(binding, "/target/kind")) {
        errors.unsupported(
            "target.kind",
            at(binding, "/target/kind"),
            &["Node", "<empty>"],
        );
    }
    if node.is_empty() {
        errors.required("target.name", "");
    }
    errors.finish_as("", "Binding", name)?;
    let mut guard = core.store();
    let store = &mut *guard;
    let key = key(kind, ns, name);
    let mut pod = store
        .get(&key)
        .map(|p| Value::clone(p))
        .ok_or_else(|| ApiError::not_found(kind, name))?;
    let refuse = |why: String| {
        let mut error = ApiError::conflict(kind, name, &why);
        error.message = error.message.replacen("on pods ", "on pods/binding ", 1);
        error.details["kind"] = json!("pods/binding");
        Err(error)
    };
    let uid = text(binding, "/metadata/uid");
    if !uid.is_empty() && uid != text(&pod, "/metadata/uid") {
        return Err(ApiError::uid_precondition(
            kind,
            ns,
            name,
            uid,
            text(&pod, "/metadata/uid"),
        ));
    }
    if has(&pod, "/metadata/deletionTimestamp") {
        return refuse(format!(
            "pod {name} is being deleted, cannot be assigned to a host"
        ));
    }
    let bound = text(&pod, "/spec/nodeName");
    if !bound.is_empty() {
        return refuse(format!("pod {name} is already assigned to node {bound:?}"));
    }
    if !list(&pod, "/spec/schedulingGates").is_empty() {
        return refuse(format!("pod {name} has non-empty .spec.schedulingGates"));
    }
    pod["spec"]["nodeName"] = json!(node);
    for field in ["annotations", "labels"] {
        let given: Vec<(String, Value)> = map(binding, &format!("/metadata/{field}"))
            .map(|(key, value)| (key.to_owned(), value.clone()))
            .collect();
        if !given.is_empty() {
            child(&mut pod, &["metadata", field]).extend(given);
        }
    }
    set_condition(
        &mut pod,
        &json!({"type": "PodScheduled", "status": "True", "lastProbeTime": null}),
        core.clock.now_s(),
    );
    if !dry {
        commit(core, store, key, pod);
    }
    Ok(())
}

/// Sets a condition of a pod; its transition time moves when its status does.
pub(crate) fn set_condition(object: &mut Value, condition: &Value, now_s: i64) {
    let mut next = condition.clone();
    let conditions = child(object, &["status"])
        .entry("conditions")
        .or_insert_with(|| json!([]));
    let Some(conditions) = conditions.as_array_mut() else {
        return;
    };
    let old = conditions.iter_mut().find(|c| c["type"] == next["type"]);
    let same = old.as_ref().is_some_and(|c| c["status"] == next["status"]);
    next["lastTransitionTime"] = match &old {
        Some(c) if same => c["lastTransitionTime"].clone(),
        _ => json!(clock::rfc3339(now_s)),
    };
    match old {
        Some(c) => *c = next,
        None => conditions.push(next),
    }
}

fn evict(core: &Core, request: &Request<'_>, kind: &Kind, ns: &str) -> Result<Reply, ApiError> {
    let name = request.info.name.as_str();
    let body = decode(request.content_type, "policy/v1", "Eviction", request.body)?;
    if text(&body, "/metadata/name") != name {
        return Err(ApiError::bad_request(
            "name in URL does not match name in Eviction object",
        ));
    }
    let mut options = at(&body, "/deleteOptions").clone();
    if options.is_null() {
        options = json!({});
    }
    {
        let mut guard = core.store();
        let store = &mut *guard;
        write::restrict(
            core,
            store,
            request.user,
            kind,
            "eviction",
            Operation::Create,
            ns,
            name,
            &body,
            &Value::Null,
        )?;
        let key = key(kind, ns, name);
        let mut pod = store
            .get(&key)
            .map(|p| Value::clone(p))
            .ok_or_else(|| ApiError::not_found(kind, name))?;
        let uid = text(&options, "/preconditions/uid");
        let has = text(&pod, "/metadata/uid");
        if !uid.is_empty() && uid != has {
            return Err(ApiError::precondition(
                kind,
                name,
                &format!(
                    "the UID in the precondition ({uid}) does not match the UID in record ({has}). The object might \
                     have been deleted and then recreated"
                ),
            ));
        }
        set_condition(
            &mut pod,
            &json!({"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
                "message": "Eviction API: evicting", "lastProbeTime": null}),
            core.clock.now_s(),
        );
        commit(core, store, key, pod);
    }
    delete(core, request.user, kind, ns, name, &options)?;
    Ok(Reply::Object(201, success()))
}
