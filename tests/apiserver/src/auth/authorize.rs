//! Whether a user may do what a request asks.
//!
//! Source: `plugin/pkg/auth/authorizer/node`, and the roles that RBAC starts with
//! (`plugin/pkg/auth/authorizer/rbac/bootstrappolicy`). Roles and bindings are no objects here: a test grants.

use super::User;
use super::graph::related;
use crate::config::Config;
use crate::path::Info;
use crate::store::Store;

/// A permission that a test gave: who, which verb, which `resource[/subresource]`; `*` is anything.
#[derive(Clone, Debug)]
pub struct Grant {
    /// A user's name or one of its groups.
    pub subject: String,
    /// As the authorizer names it: `get`, `list`, `create`, ….
    pub verb: String,
    /// `pods`, `nodes/proxy`, or a path that starts with a slash.
    pub resource: String,
}

impl Grant {
    fn allows(&self, user: &User, info: &Info) -> bool {
        let subject = self.subject == user.name || user.in_group(&self.subject);
        let verb = self.verb == "*" || self.verb == info.verb;
        let resource = if !info.is_resource {
            info.path.clone()
        } else if info.sub.is_empty() {
            info.plural.clone()
        } else {
            format!("{}/{}", info.plural, info.sub)
        };
        subject && verb && (self.resource == "*" || self.resource == resource)
    }
}

/// Says no with the authorizer's reason, which may be empty.
pub(crate) fn authorize(
    config: &Config,
    store: &Store,
    grants: &[Grant],
    user: &User,
    info: &Info,
) -> Result<(), String> {
    if user.in_group("system:masters") || grants.iter().any(|g| g.allows(user, info)) {
        return Ok(());
    }
    if everyone(user, info) || bootstrapper(user, info) || kube_proxy(user, info) {
        return Ok(());
    }
    match user.node() {
        Some(node) if info.is_resource => authorize_node(config, store, node, info),
        _ => Err(String::new()),
    }
}

/// What every user may do, and what nobody known may.
fn everyone(user: &User, info: &Info) -> bool {
    let known = user.in_group("system:authenticated");
    if info.is_resource {
        return false;
    }
    let get = info.verb == "get";
    let path = info.path.as_str();
    let below = |roots: &[&str]| {
        roots.iter().any(|root| {
            path.strip_prefix(root)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    };
    let public = ["/healthz", "/livez", "/readyz", "/version", "/version/"].contains(&path);
    get && (public || known && below(&["/api", "/apis", "/openapi"]))
}

/// Role `system:node-bootstrapper`.
fn bootstrapper(user: &User, info: &Info) -> bool {
    user.in_group("system:bootstrappers")
        && info.plural == "certificatesigningrequests"
        && info.sub.is_empty()
        && ["create", "get", "list", "watch"].contains(&info.verb.as_str())
}

/// Role `system:node-proxier`, which is bound to `system:kube-proxy`.
fn kube_proxy(user: &User, info: &Info) -> bool {
    if user.name != "system:kube-proxy" || !info.sub.is_empty() {
        return false;
    }
    let verb = info.verb.as_str();
    match (info.group.as_str(), info.plural.as_str()) {
        ("", "nodes") => ["get", "list", "watch"].contains(&verb),
        ("", "services") | ("discovery.k8s.io", "endpointslices") => {
            ["list", "watch"].contains(&verb)
        }
        ("" | "events.k8s.io", "events") => ["create", "patch", "update"].contains(&verb),
        _ => false,
    }
}

fn authorize_node(config: &Config, store: &Store, node: &str, info: &Info) -> Result<(), String> {
    let verb = info.verb.as_str();
    let no = |why: &str| Err(why.to_owned());
    let is_related = || {
        if info.name.is_empty() {
            return no("No Object name found");
        }
        if related(store, node, &info.plural, &info.ns, &info.name) {
            Ok(())
        } else {
            Err(format!(
                "no relationship found between node '{node}' and this object"
            ))
        }
    };
    let read = ["get", "list", "watch"].contains(&verb);
    match (info.group.as_str(), info.plural.as_str(), info.sub.as_str()) {
        ("", "secrets" | "configmaps", sub) => {
            if !read {
                return no("can only read resources of this type");
            }
            if !sub.is_empty() {
                return no("cannot read subresource");
            }
            if info.ns.is_empty() {
                return no("can only read namespaced object of this type");
            }
            is_related()
        }
        ("certificates.k8s.io", "podcertificaterequests", "") => match verb {
            "create" => Ok(()),
            "get" => is_related(),
            _ => no("can only create and get individual resources of this type"),
        },
        ("", "persistentvolumeclaims", "status") => match verb {
            "update" | "patch" => is_related(),
            _ => no("can only get/update/patch this type"),
        },
        ("", "persistentvolumeclaims" | "persistentvolumes", sub) => match (verb, sub) {
            ("get", "") => is_related(),
            ("get", _) => no("cannot get subresource"),
            _ => no("can only get individual resources of this type"),
        },
        ("", "serviceaccounts", sub) => match (verb, sub) {
            // Since 1.34, for credential providers.
            ("get", "") if config.minor >= 34 => is_related(),
            ("get", "") => no("not allowed to get service accounts"),
            ("create", "token") => is_related(),
            ("create", _) if !info.name.is_empty() => {
                no("can only create token subresource of serviceaccount")
            }
            _ => no("can only create tokens for individual service accounts"),
        },
        ("coordination.k8s.io", "leases", _) => {
            if !["get", "create", "update", "patch", "delete"].contains(&verb) {
                return no("can only get, create, update, patch, or delete a node lease");
            }
            if info.ns != "kube-node-lease" {
                return no("can only access leases in the \"kube-node-lease\" system namespace");
            }
            if verb != "create" && info.name != node {
                return no("can only access node lease with the same name as the requesting node");
            }
            Ok(())
        }
        ("", "nodes", sub) if config.node_selectors() => match (sub, verb) {
            ("", "create" | "update" | "patch") | ("status", "update" | "patch") => Ok(()),
            ("", "get" | "list" | "watch") if info.name == node => Ok(()),
            ("", "get" | "list" | "watch") if info.name.is_empty() => Err(format!(
                "node '{node}' cannot read all nodes, only its own Node object"
            )),
            ("", "get" | "list" | "watch") => Err(format!(
                "node '{node}' cannot read '{}', only its own Node object",
                info.name
            )),
            _ => no(""),
        },
        ("", "pods", sub) if config.node_selectors() => match (sub, verb) {
            ("", "get") => is_related(),
            ("", "list" | "watch") => {
                let own = info
                    .field_equals
                    .iter()
                    .any(|(key, value)| key == "spec.nodeName" && value == node);
                if own {
                    Ok(())
                } else if !info.name.is_empty() {
                    is_related()
                } else {
                    no("can only list/watch pods with spec.nodeName field selector")
                }
            }
            ("", "create" | "delete") | ("status", "update" | "patch") | ("eviction", "create") => {
                Ok(())
            }
            _ => no(""),
        },
        (group, plural, sub) if node_rules(group, plural, sub, verb) => Ok(()),
        _ => no(""),
    }
}

/// What nodes may do without regard to what it is about.
fn node_rules(group: &str, plural: &str, sub: &str, verb: &str) -> bool {
    let read = ["get", "list", "watch"].contains(&verb);
    match (group, plural, sub) {
        ("authentication.k8s.io", "tokenreviews", "")
        | ("authorization.k8s.io", "subjectaccessreviews", "")
        | ("", "pods", "eviction") => verb == "create",
        ("", "services", "")
        | ("node.k8s.io", "runtimeclasses", "")
        | ("certificates.k8s.io", "clustertrustbundles", "") => read,
        // Before 1.32 reads of these two were not narrowed.
        ("", "nodes", "") => read || ["create", "update", "patch"].contains(&verb),
        ("", "pods", "") => read || ["create", "delete"].contains(&verb),
        ("", "nodes" | "pods", "status") => verb == "update" || verb == "patch",
        ("", "events", "") => ["create", "update", "patch"].contains(&verb),
        ("certificates.k8s.io", "certificatesigningrequests", "") => read || verb == "create",
        _ => false,
    }
}
