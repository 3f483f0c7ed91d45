//! Questions to the server that leave nothing behind: whose token is this, may they do that.

use serde_json::{Value, json};

use super::{Reply, Request, decode};
use crate::auth::User;
use crate::auth::authorize::authorize;
use crate::core::Core;
use crate::error::{ApiError, Fields};
use crate::json::{has, list, text};
use crate::kinds::Kind;
use crate::lock;
use crate::path::Info;
use crate::token::ISSUER;

pub(super) fn create(core: &Core, request: &Request<'_>, kind: &Kind) -> Result<Reply, ApiError> {
    let mut body = decode(
        request.content_type,
        &kind.api_version(),
        kind.kind,
        request.body,
    )?;
    if kind.plural == "tokenreviews" {
        body["status"] = token_review(core, &body)?;
    } else {
        let user = reviewed(&body)?;
        body["status"] = access_review(core, &user, &body)?;
    }
    body["kind"] = json!(kind.kind);
    body["apiVersion"] = json!(kind.api_version());
    if !has(&body, "/metadata") {
        body["metadata"] = json!({});
    }
    Ok(Reply::Object(201, body))
}

fn user_json(user: &User) -> Value {
    let mut value = json!({"username": user.name, "groups": user.groups});
    if !user.uid.is_empty() {
        value["uid"] = json!(user.uid);
    }
    if !user.extra.is_empty() {
        value["extra"] = json!(user.extra);
    }
    value
}

fn strings(value: &Value, pointer: &str) -> Vec<String> {
    list(value, pointer)
        .iter()
        .filter_map(|v| v.as_str().map(str::to_owned))
        .collect()
}

fn token_review(core: &Core, body: &Value) -> Result<Value, ApiError> {
    let token = text(body, "/spec/token");
    if token.is_empty() {
        return Err(ApiError::bad_request(
            "token is required for TokenReview in authentication",
        ));
    }
    let mut wanted = strings(body, "/spec/audiences");
    let given = !wanted.is_empty();
    if !given {
        wanted.push(ISSUER.to_owned());
    }
    let found = match core.config.tokens.get(token) {
        Some((name, groups)) => {
            let groups: Vec<&str> = groups.iter().map(String::as_str).collect();
            Some((User::known(name, &groups), vec![ISSUER.to_owned()]))
        }
        None => {
            let store = core.store();
            core.signer
                .authenticate(&store, core.clock.now_s(), token, &wanted)
        }
    };
    Ok(match found {
        Some((user, audiences)) => {
            let mut status = json!({"authenticated": true, "user": user_json(&user)});
            if given {
                status["audiences"] = json!(audiences);
            }
            status
        }
        None => json!({"user": {}, "error": "invalid bearer token"}),
    })
}

fn reviewed(body: &Value) -> Result<User, ApiError> {
    let user = User {
        name: text(body, "/spec/user").to_owned(),
        uid: text(body, "/spec/uid").to_owned(),
        groups: strings(body, "/spec/groups"),
        extra: Default::default(),
    };
    if user.name.is_empty() && user.groups.is_empty() {
        let mut errors = Fields::default();
        errors.invalid(
            "spec.user",
            &json!(""),
            "at least one of user or group must be specified",
        );
        errors.finish_as("authorization.k8s.io", "", "")?;
    }
    Ok(user)
}

fn access_review(core: &Core, user: &User, body: &Value) -> Result<Value, ApiError> {
    let resource = &body["spec"]["resourceAttributes"];
    let path = &body["spec"]["nonResourceAttributes"];
    if resource.is_null() == path.is_null() {
        let mut errors = Fields::default();
        errors.invalid(
            "spec.resourceAttributes",
            resource,
            "exactly one of nonResourceAttributes or resourceAttributes must be specified",
        );
        errors.finish_as("authorization.k8s.io", "", "")?;
    }
    let get = |key: &str| text(resource, &format!("/{key}")).to_owned();
    let info = if resource.is_null() {
        Info {
            verb: text(path, "/verb").to_owned(),
            path: text(path, "/path").to_owned(),
            ..Info::default()
        }
    } else {
        Info {
            is_resource: true,
            verb: get("verb"),
            group: get("group"),
            version: get("version"),
            plural: get("resource"),
            ns: get("namespace"),
            name: get("name"),
            sub: get("subresource"),
            ..Info::default()
        }
    };
    let grants = lock(&core.grants).clone();
    let store = core.store();
    Ok(
        match authorize(&core.config, &store, &grants, user, &info) {
            Ok(()) => json!({"allowed": true}),
            Err(reason) if reason.is_empty() => json!({"allowed": false}),
            Err(reason) => json!({"allowed": false, "reason": reason}),
        },
    )
}
