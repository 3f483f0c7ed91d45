//! Requests and limits.

use alloc::{collections::BTreeMap, string::String};

use super::field::{FieldErrors, qualified_name};
use crate::api::Quantity;
use crate::api::pod::{PodSpec, Resources};
use crate::defaults;
use crate::node_resources::is_extended_resource;

/// Beginning of the names of huge pages; the size of a page follows.
const HUGE_PAGES: &str = "hugepages-";

/// Requests and limits of one container.
pub(super) fn validate_container_resources(
    resources: &Resources,
    path: &str,
    errors: &mut FieldErrors,
) {
    validate_quantities(&resources.limits, &format!("{path}.limits"), errors);
    validate_quantities(&resources.requests, &format!("{path}.requests"), errors);
    for (name, request) in &resources.requests {
        let Some(limit) = resources.limits.get(name) else {
            if !is_overcommittable(name) {
                errors.required(
                    &format!("{path}.limits"),
                    "Limit must be set for non overcommitable resources",
                );
            }
            continue;
        };
        let field = format!("{path}.requests");
        if request.milli_value() > limit.milli_value() {
            errors.invalid(
                &field,
                request.as_str(),
                &format!("must be less than or equal to {name} limit of {limit}"),
            );
        } else if request.milli_value() != limit.milli_value() && !is_overcommittable(name) {
            errors.invalid(
                &field,
                request.as_str(),
                &format!("must be equal to {name} limit of {limit}"),
            );
        }
    }
}

/// Checks that a container with huge pages, or its pod, has cpu or memory too.
pub(super) fn validate_huge_pages(
    container: &Resources,
    pod: Option<&Resources>,
    path: &str,
    errors: &mut FieldErrors,
) {
    let keys = |resources: &Resources, is_it: fn(&str) -> bool| {
        let mut all = resources.limits.keys().chain(resources.requests.keys());
        all.any(|name| is_it(name))
    };
    let is_plain = |name: &str| name == "cpu" || name == "memory";
    let mut both = pod.into_iter().chain([container]);
    if keys(container, |name| name.starts_with(HUGE_PAGES)) && !both.any(|one| keys(one, is_plain))
    {
        errors.forbidden(
            path,
            "huge pages need a request or a limit of cpu or memory too",
        );
    }
}

/// Requests and limits of the pod as a whole.
pub(super) fn validate_pod_resources(resources: &Resources, errors: &mut FieldErrors) {
    let path = "spec.resources";
    for (kind, map) in [
        ("limits", &resources.limits),
        ("requests", &resources.requests),
    ] {
        for name in map.keys() {
            if name != "cpu" && name != "memory" && !name.starts_with("hugepages-") {
                errors.require_one_of(
                    &format!("{path}.{kind}[{name}]"),
                    name,
                    &["cpu", "hugepages-", "memory"],
                );
            }
        }
    }
    validate_container_resources(resources, path, errors);
    validate_huge_pages(resources, None, path, errors);
}

/// Checks that the containers together ask for no more than the pod, and that no regular one may have more.
pub(super) fn validate_resource_sums(own: &Resources, spec: &PodSpec, errors: &mut FieldErrors) {
    for (name, whole) in &own.requests {
        let sum = defaults::containers_request(spec, name);
        if let Some(sum) = sum.filter(|sum| sum.milli_value() > whole.milli_value()) {
            errors.invalid(
                &format!("spec.resources.requests[{name}]"),
                whole.as_str(),
                &format!("must be greater than or equal to the requests of all containers, {sum}"),
            );
        }
    }
    for (n, container) in spec.containers.iter().enumerate() {
        for (name, limit) in &container.resources.limits {
            let whole = own.limits.get(name);
            if let Some(whole) = whole.filter(|whole| limit.milli_value() > whole.milli_value()) {
                errors.invalid(
                    &format!("spec.containers[{n}].resources.limits[{name}]"),
                    limit.as_str(),
                    &format!("must be less than or equal to the pod's limit of {whole}"),
                );
            }
        }
    }
}

/// Names and signs of a resource list.
pub(super) fn validate_quantities(
    map: &BTreeMap<String, Quantity>,
    path: &str,
    errors: &mut FieldErrors,
) {
    for (name, quantity) in map {
        let path = format!("{path}[{name}]");
        if let Some(detail) = qualified_name(name) {
            errors.invalid(&path, name, detail);
        } else if !name.contains('/') && !is_standard_resource(name) {
            errors.invalid(
                &path,
                name,
                "must be a standard resource type or fully qualified",
            );
        }
        if quantity.milli_value() < 0 {
            errors.invalid(
                &path,
                quantity.as_str(),
                "must be greater than or equal to 0",
            );
        }
        if !is_overcommittable(name) && quantity.milli_value() % 1000 != 0 {
            errors.invalid(&path, quantity.as_str(), "must be an integer");
        }
        if let Some(page) = name.strip_prefix(HUGE_PAGES)
            && !is_page_multiple(quantity, page)
        {
            errors.invalid(
                &path,
                quantity.as_str(),
                "must be a multiple of the page size in the resource's name",
            );
        }
    }
}

fn is_page_multiple(quantity: &Quantity, page: &str) -> bool {
    Quantity::parse(page).is_ok_and(|page| {
        let size = page.value();
        size > 0 && page.milli_value() % 1000 == 0 && quantity.value() % size == 0
    })
}

fn is_standard_resource(name: &str) -> bool {
    ["cpu", "memory", "ephemeral-storage"].contains(&name) || name.starts_with("hugepages-")
}

/// Resources of which a container may get more than it asked for.
fn is_overcommittable(name: &str) -> bool {
    !name.starts_with(HUGE_PAGES) && !is_extended_resource(name)
}
