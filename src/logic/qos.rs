//! QoS class and the resource sums of a pod (RES-09, RES-12, ADM-07). Names follow kubelet `apis/core/v1/helper/qos`
//! and component-helpers `resource/helpers.go`.

use alloc::collections::BTreeMap;

use crate::api::{Container, Pod, Quantity, pod::Resources, pod_status::QosClass};

/// Resource `cpu`.
pub const CPU: &str = "cpu";
/// Resource `memory`.
pub const MEMORY: &str = "memory";
/// Resource `ephemeral-storage`.
pub const EPHEMERAL_STORAGE: &str = "ephemeral-storage";
/// Prefix of huge page resources.
pub const HUGEPAGES: &str = "hugepages-";

/// Amounts by resource name: cpu in thousandths, everything else in its own unit (bytes, pieces).
pub type Amounts = BTreeMap<String, i64>;

/// One amount in the unit of [`Amounts`].
#[must_use]
pub fn amount(resource: &str, quantity: &Quantity) -> i64 {
    if resource == CPU {
        quantity.milli()
    } else {
        quantity.value()
    }
}

/// A list of quantities as [`Amounts`].
#[must_use]
pub fn amounts(list: &BTreeMap<String, Quantity>) -> Amounts {
    list.iter()
        .map(|(name, quantity)| (name.clone(), amount(name, quantity)))
        .collect()
}

/// Requests of a container. A resource with only a limit counts with its limit, as the apiserver defaults it.
#[must_use]
pub fn container_requests(container: &Container) -> Amounts {
    with_limits_as_requests(&container.resources)
}

fn with_limits_as_requests(resources: &Resources) -> Amounts {
    let mut list = amounts(&resources.limits);
    list.extend(amounts(&resources.requests));
    list
}

/// The class already recorded in the status, else the computed one (CG-01).
#[must_use]
pub fn qos_class(pod: &Pod) -> QosClass {
    pod.status
        .qos_class
        .unwrap_or_else(|| compute_qos_class(pod))
}

/// Class by cpu and memory of regular and init containers, or of the pod-level resources where set (RES-09).
#[must_use]
pub fn compute_qos_class(pod: &Pod) -> QosClass {
    let mut requests = Amounts::new();
    let mut limits = Amounts::new();
    let mut guaranteed = true;
    let positive = |list: Amounts| {
        list.into_iter()
            .filter(|(name, n)| *n > 0 && (name == CPU || name == MEMORY))
            .collect::<Amounts>()
    };
    let mut take = |resources: &Resources| {
        let own_limits = positive(amounts(&resources.limits));
        guaranteed &= own_limits.len() == 2;
        add(&mut requests, &positive(with_limits_as_requests(resources)));
        add(&mut limits, &own_limits);
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

/// What the pod asks for (ADM-07, RES-12): containers, or pod-level requests where set, plus overhead.
#[must_use]
pub fn pod_requests(pod: &Pod) -> Amounts {
    let mut sum = aggregate(pod, container_requests);
    if let Some(resources) = &pod.spec.resources {
        replace(&mut sum, with_limits_as_requests(resources));
    }
    add(&mut sum, &amounts(&pod.spec.overhead));
    sum
}

/// What the pod is limited to; a resource without any limit is absent. Overhead is added only where a limit is.
///
/// A limit may be present although only some containers have one: whether it holds for the pod is RES-11's question,
/// see [`all_have_limit`].
#[must_use]
pub fn pod_limits(pod: &Pod) -> Amounts {
    let mut sum = aggregate(pod, |c| amounts(&c.resources.limits));
    if let Some(resources) = &pod.spec.resources {
        replace(&mut sum, amounts(&resources.limits));
    }
    for (name, extra) in amounts(&pod.spec.overhead) {
        if let Some(limit) = sum.get_mut(&name) {
            *limit = limit.saturating_add(extra);
        }
    }
    sum
}

/// Whether every regular and init container has a positive limit of `resource`, or the pod as a whole has one.
#[must_use]
pub fn all_have_limit(pod: &Pod, resource: &str) -> bool {
    let has = |resources: &Resources| {
        resources
            .limits
            .get(resource)
            .is_some_and(|q| amount(resource, q) > 0)
    };
    pod.spec.resources.as_ref().is_some_and(has)
        || pod
            .spec
            .containers
            .iter()
            .chain(&pod.spec.init_containers)
            .all(|c| has(&c.resources))
}

/// max( Σ regular + Σ sidecars, max over plain inits i of (i + Σ sidecars before i) ), per resource.
fn aggregate(pod: &Pod, of: impl Fn(&Container) -> Amounts) -> Amounts {
    let mut sum = Amounts::new();
    for container in &pod.spec.containers {
        add(&mut sum, &of(container));
    }
    let mut sidecars = Amounts::new();
    let mut during_init = Amounts::new();
    for container in &pod.spec.init_containers {
        let own = of(container);
        if container.is_sidecar() {
            add(&mut sidecars, &own);
            max(&mut during_init, &sidecars);
        } else {
            let mut with_sidecars = sidecars.clone();
            add(&mut with_sidecars, &own);
            max(&mut during_init, &with_sidecars);
        }
    }
    add(&mut sum, &sidecars);
    max(&mut sum, &during_init);
    sum
}

/// Pod-level values stand in for the sums of the resources they may name: cpu, memory, huge pages.
fn replace(sum: &mut Amounts, pod_level: Amounts) {
    sum.extend(
        pod_level
            .into_iter()
            .filter(|(name, _)| name == CPU || name == MEMORY || name.starts_with(HUGEPAGES)),
    );
}

/// Adds `other` to `sum`.
pub fn add(sum: &mut Amounts, other: &Amounts) {
    for (name, n) in other {
        match sum.get_mut(name) {
            Some(have) => *have = have.saturating_add(*n),
            None => {
                sum.insert(name.clone(), *n);
            }
        }
    }
}

fn max(have: &mut Amounts, other: &Amounts) {
    for (name, n) in other {
        match have.get_mut(name) {
            Some(old) => *old = (*old).max(*n),
            None => {
                have.insert(name.clone(), *n);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logic::testing::{container, pod_with, sidecar};
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
            ("limits only", a("", full), vec![], None, Guaranteed),
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
    fn sums() {
        let mib = |n: i64| n << 20;
        // RES-12 ADM-07
        for (name, inits, containers, pod_level, overhead, cpu, memory) in [
            (
                "regular containers add up",
                vec![],
                vec![
                    with(container("a"), "cpu=100m memory=1Mi", ""),
                    with(container("b"), "cpu=200m", ""),
                ],
                None,
                "",
                Some(300),
                Some(mib(1)),
            ),
            (
                "limit stands in for a missing request",
                vec![],
                vec![with(container("a"), "cpu=100m", "cpu=1 memory=5Mi")],
                None,
                "",
                Some(100),
                Some(mib(5)),
            ),
            (
                "the largest init container counts, not their sum",
                vec![
                    with(container("i"), "cpu=500m", ""),
                    with(container("j"), "cpu=400m", ""),
                ],
                vec![with(container("a"), "cpu=300m", "")],
                None,
                "",
                Some(500),
                None,
            ),
            (
                "sidecars add to regulars",
                vec![with(sidecar("s"), "cpu=100m", "")],
                vec![with(container("a"), "cpu=300m", "")],
                None,
                "",
                Some(400),
                None,
            ),
            (
                "an init counts with the sidecars before it only",
                vec![
                    with(sidecar("s"), "cpu=100m", ""),
                    with(container("i"), "cpu=500m", ""),
                    with(sidecar("t"), "cpu=50m", ""),
                ],
                vec![with(container("a"), "cpu=10m", "")],
                None,
                "",
                Some(600),
                None,
            ),
            (
                "pod level replaces, overhead comes last",
                vec![],
                vec![with(container("a"), "cpu=100m memory=1Mi", "")],
                Some(res("cpu=2", "")),
                "cpu=250m",
                Some(2250),
                Some(mib(1)),
            ),
        ] {
            let mut pod = pod_with(&[]);
            pod.spec.init_containers = inits;
            pod.spec.containers = containers;
            pod.spec.resources = pod_level;
            pod.spec.overhead = list(overhead);
            let sum = pod_requests(&pod);
            assert_eq!(sum.get(CPU).copied(), cpu, "{name}");
            assert_eq!(sum.get(MEMORY).copied(), memory, "{name}");
        }
    }

    #[test]
    fn limits() {
        // RES-12 RES-11
        let mut pod = pod_with(&[]);
        pod.spec.containers = vec![with(container("a"), "", "memory=1Mi"), container("b")];
        pod.spec.overhead = list("cpu=1 memory=2Mi");
        let sum = pod_limits(&pod);
        assert_eq!(sum.get(MEMORY).copied(), Some(3 << 20));
        assert_eq!(sum.get(CPU), None, "overhead adds only where a limit is");
        assert!(!all_have_limit(&pod, MEMORY));
        pod.spec.containers.pop();
        assert!(all_have_limit(&pod, MEMORY));
        pod.spec.init_containers = vec![container("i")];
        assert!(!all_have_limit(&pod, MEMORY), "init containers as well");
        pod.spec.resources = Some(res("", "memory=9Mi"));
        assert!(all_have_limit(&pod, MEMORY));
        assert_eq!(pod_limits(&pod).get(MEMORY).copied(), Some(11 << 20));
    }
}
