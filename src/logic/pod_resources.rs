//! Requests and limits of a whole pod (RES-12).

use alloc::{
    collections::{BTreeMap, BTreeSet},
    string::String,
};

use crate::api::order::GatherExt;
use crate::api::pod::Resources;
use crate::api::{Container, Pod, Quantity};

/// Kind of the amounts to sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AmountKind {
    /// `requests`.
    Requests,
    /// `limits`.
    Limits,
}

impl AmountKind {
    /// The map of `resources`.
    #[must_use]
    pub const fn quantities_of(self, resources: &Resources) -> &BTreeMap<String, Quantity> {
        match self {
            Self::Requests => &resources.requests,
            Self::Limits => &resources.limits,
        }
    }

    /// The map of `resources`, to be changed.
    #[must_use]
    pub const fn quantities_of_mut(
        self,
        resources: &mut Resources,
    ) -> &mut BTreeMap<String, Quantity> {
        match self {
            Self::Requests => &mut resources.requests,
            Self::Limits => &mut resources.limits,
        }
    }
}

/// A quantity in the unit decisions are made in: thousandths for `cpu`, whole units for the rest.
#[must_use]
pub fn amount_in_base_unit(name: &str, quantity: &Quantity) -> i64 {
    if name == "cpu" {
        quantity.milli_value()
    } else {
        quantity.value()
    }
}

/// Amount of the resource `name` that a container states, if it does.
#[must_use]
pub fn container_amount(container: &Container, which: AmountKind, name: &str) -> Option<i64> {
    let map = which.quantities_of(&container.resources);
    map.get(name)
        .map(|quantity| amount_in_base_unit(name, quantity))
}

/// Amount of the resource `name` that the pod itself states (pod-level resources), if it does.
#[must_use]
pub fn pod_level_amount(pod: &Pod, which: AmountKind, name: &str) -> Option<i64> {
    let map = which.quantities_of(pod.spec.resources.as_ref()?);
    map.get(name)
        .map(|quantity| amount_in_base_unit(name, quantity))
}

/// Sum of the containers of a pod: the larger of all regular containers and sidecars together, and the largest need
/// while its init containers run. `None` if no container states the resource.
#[must_use]
pub fn containers_sum(pod: &Pod, which: AmountKind, name: &str) -> Option<i64> {
    let of = |container: &Container| container_amount(container, which, name);
    let mut stated = false;
    let mut sidecars = 0_i64;
    let mut start = 0_i64;
    for init in &pod.spec.init_containers {
        let need = of(init);
        stated |= need.is_some();
        let need = need.unwrap_or(0);
        if init.is_sidecar() {
            sidecars = sidecars.saturating_add(need);
        } else {
            start = start.max(need.saturating_add(sidecars));
        }
    }
    let mut regular = sidecars;
    for need in pod.spec.containers.iter().map(of) {
        stated |= need.is_some();
        regular = regular.saturating_add(need.unwrap_or(0));
    }
    stated.then_some(regular.max(start))
}

/// Amount for a pod without its overhead: its own, or the sum of its containers. `None` if neither is stated.
#[must_use]
pub fn pod_sum_without_overhead(pod: &Pod, which: AmountKind, name: &str) -> Option<i64> {
    pod_level_amount(pod, which, name).or_else(|| containers_sum(pod, which, name))
}

/// Amount for a pod: its own, or else the sum of its containers, with overhead added last. Limits get the overhead only
/// if one is stated. `None` if there is no amount.
#[must_use]
pub fn pod_sum(pod: &Pod, which: AmountKind, name: &str) -> Option<i64> {
    let sum = pod_sum_without_overhead(pod, which, name);
    let overhead = pod
        .spec
        .overhead
        .get(name)
        .map(|q| amount_in_base_unit(name, q));
    match (sum, overhead) {
        (None, Some(overhead)) if which == AmountKind::Requests => Some(overhead),
        (sum, None) | (sum @ None, Some(_)) => sum,
        (Some(0), Some(_)) if which == AmountKind::Limits => Some(0),
        (Some(sum), Some(overhead)) => Some(sum.saturating_add(overhead)),
    }
}

/// Names of all resources that the pod or a container of it states, sorted.
#[must_use]
pub fn stated_resource_names(pod: &Pod, which: AmountKind) -> BTreeSet<&str> {
    let containers = pod.spec.init_containers.iter().chain(&pod.spec.containers);
    let own = containers.map(|container| &container.resources);
    own.chain(&pod.spec.resources)
        .flat_map(|resources| which.quantities_of(resources).keys().map(String::as_str))
        .gather_items()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums() {
        // RES-12
        for (name, spec, requests, limits) in [
            ("nothing", r#"{"containers":[{}]}"#, None, None),
            (
                "regular containers",
                r#"{"containers":[{"resources":{"requests":{"cpu":"100m"},"limits":{"cpu":"1"}}},
                    {"resources":{"requests":{"cpu":"200m"}}}]}"#,
                Some(300),
                Some(1000),
            ),
            (
                "the start needs more",
                r#"{"initContainers":[{"resources":{"requests":{"cpu":"500m"}}}],
                    "containers":[{"resources":{"requests":{"cpu":"300m"}}}]}"#,
                Some(500),
                None,
            ),
            (
                "sidecars count from where they stand",
                r#"{"initContainers":[{"resources":{"requests":{"cpu":"400m"}}},
                    {"restartPolicy":"Always","resources":{"requests":{"cpu":"100m"}}},
                    {"resources":{"requests":{"cpu":"350m"}}}],
                    "containers":[{"resources":{"requests":{"cpu":"200m"}}}]}"#,
                Some(450),
                None,
            ),
            (
                "sidecars and regular containers",
                r#"{"initContainers":[{"restartPolicy":"Always","resources":{"requests":{"cpu":"100m"}}}],
                    "containers":[{"resources":{"requests":{"cpu":"200m"}}}]}"#,
                Some(300),
                None,
            ),
            (
                "pod level replaces, overhead is added",
                r#"{"resources":{"requests":{"cpu":"1"}},"overhead":{"cpu":"50m"},
                    "containers":[{"resources":{"requests":{"cpu":"200m"},"limits":{"cpu":"400m"}}}]}"#,
                Some(1050),
                Some(450),
            ),
            (
                "overhead makes no limit",
                r#"{"overhead":{"cpu":"50m"},"containers":[{}]}"#,
                Some(50),
                None,
            ),
        ] {
            let pod: Pod = serde_json::from_str(&format!(r#"{{"spec":{spec}}}"#)).expect(name);
            assert_eq!(
                pod_sum(&pod, AmountKind::Requests, "cpu"),
                requests,
                "{name}"
            );
            assert_eq!(pod_sum(&pod, AmountKind::Limits, "cpu"), limits, "{name}");
        }
    }
}
