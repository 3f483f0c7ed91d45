//! Resources in the status of a pod (RSZ-01, RSZ-30).

use alloc::{boxed::Box, collections::BTreeMap, string::String};

use crate::api::{
    Container, Pod, Quantity,
    order::GatherExt,
    pod::Resources,
    pod_status::{ContainerStatus, PodStatus},
};

use super::{PodAllocation, PodResources};
use crate::{
    cgroup::every_container_is_limited,
    pod_resources::{AmountKind, amount_in_base_unit, pod_sum, stated_resource_names},
    qos::{CPU, MEMORY},
};

impl PodResources {
    /// Takes the resources of a pod that its status shows: those that it has had. What the status does not show is as the spec
    /// says.
    #[must_use]
    pub fn of_status(pod: &Pod) -> Self {
        let mut all = Self::of_pod(pod);
        let PodStatus {
            resources,
            init_container_statuses: init,
            container_statuses: regular,
            ..
        } = &pod.status;
        if let (Some(own), Some(shown)) = (&mut all.resources, resources) {
            lay_over(own, shown);
        }
        for status in init.iter().chain(regular) {
            if let (Some(own), Some(shown)) =
                (all.of_container_mut(&status.name), &status.resources)
            {
                lay_over(own, shown);
            }
        }
        all
    }
}

/// Shows in the status of a container what it was allocated and what it has. `container`: as it was allocated. One that
/// does not run shows what it will start with.
pub fn set_resources_status(
    container: &Container,
    allocation: Option<&PodAllocation>,
    status: &mut ContainerStatus,
) {
    status
        .allocated_resources
        .clone_from(&container.resources.requests);
    let mut shown = container.resources.clone();
    let actuated = allocation.and_then(|a| a.actuated.of_container(&container.name));
    if let Some(actuated) = actuated.filter(|_| status.state.running.is_some()) {
        lay_over(&mut shown, actuated);
    }
    status.resources = Some(shown);
}

/// Lays what is in force over what was allocated: only resources that were allocated appear.
fn lay_over(shown: &mut Resources, actuated: &Resources) {
    for (shown, actuated) in [
        (&mut shown.requests, &actuated.requests),
        (&mut shown.limits, &actuated.limits),
    ] {
        for name in [CPU, MEMORY] {
            if let (Some(shown), Some(own)) = (shown.get_mut(name), actuated.get(name)) {
                shown.clone_from(own);
            }
        }
    }
}

/// Shows in the status of a pod with resources of its own what it was allocated, and what its cgroup has (RSZ-30). `pod`: as
/// it was allocated. One of which nothing runs shows what it will start with.
pub fn set_pod_resources_status(
    pod: &Pod,
    allocation: Option<&PodAllocation>,
    status: &mut PodStatus,
) {
    if pod.spec.resources.is_none() {
        return;
    }
    let names = stated_resource_names(pod, AmountKind::Requests);
    status.allocated_resources = sums(pod, AmountKind::Requests, names.into_iter());
    let mut all = status
        .init_container_statuses
        .iter()
        .chain(&status.container_statuses);
    let mut in_force = pod.clone();
    if let Some(allocation) = allocation.filter(|_| all.any(|c| c.state.running.is_some())) {
        allocation.actuated.apply_to(&mut in_force);
    }
    let of = |kind| {
        let names = stated_resource_names(&in_force, kind).into_iter();
        let counts = |name: &&str| {
            kind == AmountKind::Requests || every_container_is_limited(&in_force, name)
        };
        let own = |name: &&str| [CPU, MEMORY].contains(name);
        sums(&in_force, kind, names.filter(own).filter(counts))
    };
    let mut shown = in_force.spec.resources.clone().unwrap_or_default();
    shown.requests.extend(of(AmountKind::Requests));
    shown.limits.extend(of(AmountKind::Limits));
    status.resources = Some(Box::new(shown));
}

/// Sums of these resources of a pod, as it states them itself if it does.
fn sums<'a>(
    pod: &Pod,
    kind: AmountKind,
    names: impl Iterator<Item = &'a str>,
) -> BTreeMap<String, Quantity> {
    let own = pod
        .spec
        .resources
        .as_ref()
        .map(|own| kind.quantities_of(own));
    let sum = |name: &str| {
        let sum = pod_sum(pod, kind, name)?;
        let stated = own.and_then(|own| own.get(name));
        if let Some(stated) = stated.filter(|own| amount_in_base_unit(name, own) == sum) {
            return Some(stated.clone());
        }
        Some(match name {
            CPU => Quantity::from_decimal_milli(sum),
            _ => Quantity::from_binary_units(sum),
        })
    };
    names
        .filter_map(|name| Some((name.into(), sum(name)?)))
        .gather_items()
}
