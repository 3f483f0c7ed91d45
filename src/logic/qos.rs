//! QoS class of a pod and what it asks for (RES-09, ADM-07). Names follow kubelet `apis/core/v1/helper/qos`.
//!
//! Requests are taken as they stand: defaulting has given a container with only a limit its request.

use alloc::{collections::BTreeMap, string::String};

use crate::api::order::GatherExt;
use crate::api::{Pod, Quantity, pod::Resources, pod_status::QosClass};

use super::pod_resources::{AmountKind, amount_in_base_unit, pod_sum, stated_resource_names};

/// Resource `cpu`.
pub const CPU: &str = "cpu";
/// Resource `memory`.
pub const MEMORY: &str = "memory";
/// Resource `ephemeral-storage`.
pub const EPHEMERAL_STORAGE: &str = "ephemeral-storage";

/// Amounts by resource name: cpu in thousandths, everything else in its own unit (bytes, pieces).
pub type ResourceAmounts = BTreeMap<String, i64>;

pub(super) fn parse_amounts(list: &BTreeMap<String, Quantity>) -> ResourceAmounts {
    list.iter()
        .map(|(name, quantity)| (name.clone(), amount_in_base_unit(name, quantity)))
        .gather_items()
}

/// Class recorded in the status, or else the computed one (CG-01).
#[must_use]
pub fn qos_class(pod: &Pod) -> QosClass {
    pod.status
        .qos_class
        .unwrap_or_else(|| compute_qos_class(pod))
}

/// Class by cpu and memory of regular and init containers, or of the pod-level resources where set (RES-09).
#[must_use]
pub fn compute_qos_class(pod: &Pod) -> QosClass {
    let mut requests = ResourceAmounts::new();
    let mut limits = ResourceAmounts::new();
    let mut guaranteed = true;
    let positive = |list: ResourceAmounts| {
        list.into_iter()
            .filter(|(name, n)| *n > 0 && (name == CPU || name == MEMORY))
            .gather_items::<ResourceAmounts>()
    };
    let mut take = |resources: &Resources| {
        let own_limits = positive(parse_amounts(&resources.limits));
        guaranteed &= own_limits.len() == 2;
        add_amounts(&mut requests, &positive(parse_amounts(&resources.requests)));
        add_amounts(&mut limits, &own_limits);
    };
    match &pod.spec.resources {
        Some(resources) => take(resources),
        None => {
            for container in pod.spec.containers.iter().chain(&pod.spec.init_containers) {
                take(&container.resources);
            }
        }
    }
    if requests.is_empty() && limits.is_empty() {
        QosClass::BestEffort
    } else if guaranteed && requests == limits {
        QosClass::Guaranteed
    } else {
        QosClass::Burstable
    }
}

/// Requests of the pod for each resource that it names (ADM-07): of its containers, or pod-level ones, plus overhead.
#[must_use]
pub fn pod_request_amounts(pod: &Pod) -> ResourceAmounts {
    let overhead = pod.spec.overhead.keys().map(String::as_str);
    stated_resource_names(pod, AmountKind::Requests)
        .into_iter()
        .chain(overhead)
        .filter_map(|name| Some((name.into(), pod_sum(pod, AmountKind::Requests, name)?)))
        .gather_items()
}

/// Adds `other` to `sum`.
fn add_amounts(sum: &mut ResourceAmounts, other: &ResourceAmounts) {
    for (name, n) in other {
        match sum.get_mut(name) {
            Some(have) => *have = have.saturating_add(*n),
            None => {
                sum.insert(name.clone(), *n);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;
    use crate::api::Container;
    use crate::testing::{container, pod_with, sidecar};
    use QosClass::{BestEffort, Burstable, Guaranteed};

    /// `"cpu=1 memory=1Gi"` as a list.
    fn list(text: &str) -> BTreeMap<String, Quantity> {
        text.split_whitespace()
            .map(|pair| {
                let (name, amount) = pair.split_once('=').expect("name=amount");
                (name.into(), Quantity::parse(amount).expect("quantity"))
            })
            .collect()
    }

    fn res(requests: &str, limits: &str) -> Resources {
        Resources {
            requests: list(requests),
            limits: list(limits),
        }
    }

    fn with(mut container: Container, requests: &str, limits: &str) -> Container {
        container.resources = res(requests, limits);
        container
    }

    #[test]
    fn classes() {
        let full = "cpu=1 memory=1Gi";
        let a = |requests, limits| vec![with(container("a"), requests, limits)];
        // RES-09 CG-01
        for (name, containers, inits, pod_level, expected) in [
            ("nothing", a("", ""), vec![], None, BestEffort),
            (
                "zero is nothing",
                a("cpu=0", "memory=0"),
                vec![],
                None,
                BestEffort,
            ),
            (
                "other resources do not count",
                a("ephemeral-storage=1Gi", ""),
                vec![],
                None,
                BestEffort,
            ),
            ("equal", a(full, full), vec![], None, Guaranteed),
            (
                "equal in other words",
                a("cpu=1000m memory=1Gi", "cpu=1 memory=1024Mi"),
                vec![],
                None,
                Guaranteed,
            ),
            ("requests only", a(full, ""), vec![], None, Burstable),
            ("only cpu", a("cpu=1", "cpu=1"), vec![], None, Burstable),
            (
                "limit above",
                a("cpu=1 memory=1Gi", "cpu=2 memory=1Gi"),
                vec![],
                None,
                Burstable,
            ),
            (
                "a bare init container spoils it",
                a(full, full),
                vec![container("i")],
                None,
                Burstable,
            ),
            (
                "an init container alone",
                a("", ""),
                vec![with(container("i"), "cpu=1", "")],
                None,
                Burstable,
            ),
            (
                "pod level, equal",
                a("", ""),
                vec![],
                Some(res(full, full)),
                Guaranteed,
            ),
            (
                "pod level wins over containers",
                a(full, full),
                vec![],
                Some(res("cpu=1", "")),
                Burstable,
            ),
            (
                "pod level, one limit",
                a(full, full),
                vec![],
                Some(res("cpu=1", "cpu=1")),
                Burstable,
            ),
        ] {
            let mut pod = pod_with(&[]);
            pod.spec.containers = containers;
            pod.spec.init_containers = inits;
            pod.spec.resources = pod_level;
            assert_eq!(compute_qos_class(&pod), expected, "{name}");
        }
        let mut pod = pod_with(&["a"]);
        pod.spec.ephemeral_containers = a(full, full);
        assert_eq!(
            compute_qos_class(&pod),
            BestEffort,
            "ephemeral containers do not count"
        );
        pod.status.qos_class = Some(Guaranteed);
        assert_eq!(qos_class(&pod), Guaranteed, "what the status says is kept");
    }

    #[test]
    fn requests_of_a_pod() {
        // ADM-07
        let mut pod = pod_with(&[]);
        pod.spec.init_containers = vec![with(sidecar("s"), "cpu=100m", "")];
        pod.spec.containers = vec![with(container("a"), "cpu=300m x.io/y=2", "memory=5Mi")];
        pod.spec.resources = Some(res("memory=1Mi", ""));
        pod.spec.overhead = list("memory=1Mi ephemeral-storage=1");
        let sum = pod_request_amounts(&pod);
        let rows: Vec<_> = sum.iter().map(|(name, n)| (name.as_str(), *n)).collect();
        assert_eq!(
            rows,
            [
                ("cpu", 400),
                ("ephemeral-storage", 1),
                ("memory", 2 << 20),
                ("x.io/y", 2),
            ]
        );
    }
}
