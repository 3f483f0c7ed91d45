//! Resources in the status of a pod (RSZ-01, RSZ-30).

use crate::api::{Container, pod::Resources, pod_status::ContainerStatus};

use super::PodAllocation;
use crate::qos::{CPU, MEMORY};

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
        show_actuated(&mut shown, actuated);
    }
    status.resources = Some(shown);
}

/// Lays what is in force over what was allocated: only resources that were allocated appear.
fn show_actuated(shown: &mut Resources, actuated: &Resources) {
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
