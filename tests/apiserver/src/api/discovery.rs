//! Paths that are no resources: health, version, and what resources there are.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{Reply, Request};
use crate::core::Core;
use crate::error::ApiError;
use crate::kinds::{KINDS, Kind};

pub(super) fn answer(core: &Core, request: &Request<'_>) -> Result<Reply, ApiError> {
    if request.info.verb != "get" && request.info.verb != "head" {
        return Err(ApiError::method());
    }
    let path = request.info.path.trim_end_matches('/');
    let value = match path {
        "/healthz" | "/livez" | "/readyz" => return Ok(Reply::Text("ok".to_owned())),
        "/version" => json!({
            "major": "1", "minor": core.config.minor.to_string(), "gitVersion": core.config.git_version(),
            "gitCommit": "0000000000000000000000000000000000000000", "gitTreeState": "clean",
            "buildDate": "2026-01-01T00:00:00Z", "goVersion": "none", "compiler": "rustc", "platform": "linux/test",
        }),
        "/api" => json!({
            "kind": "APIVersions", "versions": ["v1"],
            "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": "kubernetes"}],
        }),
        "/apis" => json!({
            "kind": "APIGroupList", "apiVersion": "v1",
            "groups": groups().iter().map(|(group, versions)| api_group(group, versions)).collect::<Vec<_>>(),
        }),
        "" => {
            json!({"paths": ["/api", "/api/v1", "/apis", "/healthz", "/livez", "/readyz", "/version"]})
        }
        "/api/v1" => resources("", "v1").ok_or_else(ApiError::no_route)?,
        "/openid/v1/jwks" | "/.well-known/openid-configuration" => return Err(ApiError::no_route()),
        _ => {
            let rest = path.strip_prefix("/apis/").ok_or_else(ApiError::no_route)?;
            match rest.split_once('/') {
                Some((group, version)) => {
                    resources(group, version).ok_or_else(ApiError::no_route)?
                }
                None => {
                    let all = groups();
                    let versions = all.get(rest).ok_or_else(ApiError::no_route)?;
                    let mut group = api_group(rest, versions);
                    group["kind"] = json!("APIGroup");
                    group["apiVersion"] = json!("v1");
                    group
                }
            }
        }
    };
    Ok(Reply::Object(200, value))
}

fn groups() -> BTreeMap<&'static str, Vec<&'static str>> {
    let mut groups: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for kind in KINDS.iter().filter(|k| !k.group.is_empty()) {
        let versions = groups.entry(kind.group).or_default();
        if !versions.contains(&kind.version) {
            versions.push(kind.version);
        }
    }
    groups
}

fn api_group(group: &str, versions: &[&str]) -> Value {
    let version = |v: &&str| json!({"groupVersion": format!("{group}/{v}"), "version": v});
    json!({
        "name": group, "versions": versions.iter().map(version).collect::<Vec<_>>(),
        "preferredVersion": versions.first().map(version),
    })
}

fn resources(group: &str, version: &str) -> Option<Value> {
    let mut rows = Vec::new();
    let kinds: Vec<&Kind> = KINDS
        .iter()
        .filter(|k| k.group == group && k.version == version)
        .collect();
    for kind in &kinds {
        let mut row = json!({
            "name": kind.plural, "singularName": kind.kind.to_ascii_lowercase(), "namespaced": kind.namespaced,
            "kind": kind.kind, "verbs": kind.verbs(),
        });
        if !kind.short.is_empty() {
            row["shortNames"] = json!(kind.short);
        }
        if ["pods", "services"].contains(&kind.plural) {
            row["categories"] = json!(["all"]);
        }
        rows.push(row);
        for sub in kind.subresources {
            let mut row = json!({
                "name": format!("{}/{sub}", kind.plural), "singularName": "", "namespaced": kind.namespaced,
                "kind": kind.kind, "verbs": ["get", "patch", "update"],
            });
            let other = match *sub {
                "binding" => Some(("", "v1", "Binding")),
                "eviction" => Some(("policy", "v1", "Eviction")),
                "token" => Some(("authentication.k8s.io", "v1", "TokenRequest")),
                _ => None,
            };
            if let Some((group, version, kind)) = other {
                row["kind"] = json!(kind);
                row["group"] = json!(group);
                row["version"] = json!(version);
                row["verbs"] = json!(["create"]);
            }
            rows.push(row);
        }
    }
    let group_version = if group.is_empty() {
        version.to_owned()
    } else {
        format!("{group}/{version}")
    };
    (!kinds.is_empty()).then(|| {
        json!({
            "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": rows,
        })
    })
}
