//! Requests and limits.

use alloc::{collections::BTreeMap, string::String};

use super::field::{Errors, qualified_name};
use crate::api::Quantity;
use crate::api::pod::Resources;

/// Requests and limits of one container.
pub(super) fn of_container(resources: &Resources, path: &str, errors: &mut Errors) {
    quantities(&resources.limits, &format!("{path}.limits"), errors);
    quantities(&resources.requests, &format!("{path}.requests"), errors);
    for (name, request) in &resources.requests {
        let Some(limit) = resources.limits.get(name) else {
            if name.starts_with("hugepages-") {
                errors.required(
                    &format!("{path}.limits"),
                    "Limit must be set for non overcommitable resources",
                );
            }
            continue;
        };
        let field = format!("{path}.requests");
        if request.milli() > limit.milli() {
            errors.invalid(
                &field,
                request.as_str(),
                &format!("must be less than or equal to {name} limit of {limit}"),
            );
        } else if request.milli() != limit.milli() && !overcommittable(name) {
            errors.invalid(
                &field,
                request.as_str(),
                &format!("must be equal to {name} limit of {limit}"),
            );
        }
    }
}

/// Requests and limits of the pod as a whole.
pub(super) fn of_pod(resources: &Resources, errors: &mut Errors) {
    let path = "spec.resources";
    for (kind, map) in [
        ("limits", &resources.limits),
        ("requests", &resources.requests),
    ] {
        for name in map.keys() {
            if name != "cpu" && name != "memory" && !name.starts_with("hugepages-") {
                errors.one_of(
                    &format!("{path}.{kind}[{name}]"),
                    name,
                    &["cpu", "hugepages-", "memory"],
                );
            }
        }
    }
    of_container(resources, path, errors);
}

/// Names and signs of a resource list.
pub(super) fn quantities(map: &BTreeMap<String, Quantity>, path: &str, errors: &mut Errors) {
    for (name, quantity) in map {
        let path = format!("{path}[{name}]");
        if let Some(detail) = qualified_name(name) {
            errors.invalid(&path, name, detail);
        } else if !name.contains('/') && !standard(name) {
            errors.invalid(
                &path,
                name,
                "must be a standard resource type or fully qualified",
            );
        }
        if quantity.milli() < 0 {
            errors.invalid(
                &path,
                quantity.as_str(),
                "must be greater than or equal to 0",
            );
        }
        if !overcommittable(name) && quantity.milli() % 1000 != 0 {
            errors.invalid(&path, quantity.as_str(), "must be an integer");
        }
    }
}

fn standard(name: &str) -> bool {
    ["cpu", "memory", "ephemeral-storage"].contains(&name) || name.starts_with("hugepages-")
}

/// Resources of which a container may get more than it asked for.
fn overcommittable(name: &str) -> bool {
    !name.starts_with("hugepages-") && (!name.contains('/') || name.starts_with("kubernetes.io/"))
}
