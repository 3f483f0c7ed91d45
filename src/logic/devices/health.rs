//! Health of a pod's devices in its status (DEV-15).

use alloc::{
    collections::{BTreeMap, BTreeSet},
    string::String,
    vec::Vec,
};

use crate::{
    api::{
        PodStatus,
        pod_status::{ResourceHealth, ResourceStatus},
    },
    extended_resources::HeldUnits,
};

/// Health of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnitHealth {
    /// The unit can be used.
    Healthy,
    /// The unit cannot be used: it is gone, or its plugin is.
    Unhealthy,
    /// The health is not known yet: the plugin is starting.
    Unsaid,
}

impl UnitHealth {
    /// The API's word. An unknown health keeps its last word.
    fn api_health(self, before: &str) -> &str {
        match self {
            Self::Healthy => "Healthy",
            Self::Unhealthy => "Unhealthy",
            Self::Unsaid if before.is_empty() => "Unknown",
            Self::Unsaid => before,
        }
    }
}

/// Puts the health of the units that regular containers hold into a status; `health` tells it of a resource and an id.
/// A pod that has ended keeps the health that was last reported: other pods may soon hold its units.
///
/// - Shape: sorted by resource and id, so that equal health gives an equal status.
/// - Source: `ContainerStatus.allocatedResourcesStatus`, KEP-4680. A kubelet shows a unit that is not listed as healthy.
pub fn set_unit_health(
    status: &mut PodStatus,
    previous: &PodStatus,
    held: &[HeldUnits],
    health: &dyn Fn(&str, &str) -> UnitHealth,
) {
    let has_ended = status.phase.is_terminal();
    for container in &mut status.container_statuses {
        let mut told = previous.container_statuses.iter();
        let told = told.find(|told| told.name == container.name);
        let told = told.map_or(&[][..], |told| &told.allocated_resources_status);
        let own = held
            .iter()
            .filter(|held| *held.container == *container.name);
        let by_resource: BTreeMap<&str, &HeldUnits> =
            own.map(|held| (&*held.resource, held)).collect();
        if by_resource.is_empty() || has_ended && !told.is_empty() {
            if has_ended {
                container.allocated_resources_status = told.to_vec();
            }
            continue;
        }
        let of = |resource: &str, held: &HeldUnits| {
            let ids: BTreeSet<&str> = held.ids.iter().map(|id| &**id).collect();
            let before = told.iter().find(|told| told.name == *resource);
            let before = before.map_or(&[][..], |told| &told.resources);
            let ids = ids.into_iter().map(|id| {
                let before = before.iter().find(|told| told.resource_id == *id);
                let before = before.map_or("", |told| &*told.health);
                ResourceHealth {
                    resource_id: id.into(),
                    health: String::from(health(resource, id).api_health(before)),
                }
            });
            ResourceStatus {
                name: resource.into(),
                resources: ids.collect(),
            }
        };
        let all = by_resource
            .into_iter()
            .map(|(resource, held)| of(resource, held));
        container.allocated_resources_status = all.collect::<Vec<_>>();
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use serde_json::{Value, json};

    use super::*;
    use crate::api::pod_status::PodPhase;

    fn held(container: &str, resource: &str, ids: &[&str]) -> HeldUnits {
        HeldUnits {
            container: container.into(),
            resource: resource.into(),
            ids: ids.iter().map(|id| (*id).into()).collect(),
            plain_init: false,
            plugin: true,
        }
    }

    fn status(phase: &str) -> PodStatus {
        let status = json!({"phase": phase, "containerStatuses": [{"name": "c"}, {"name": "d"}]});
        serde_json::from_value(status).expect("status")
    }

    fn shown(status: &PodStatus) -> [Value; 2] {
        let status = serde_json::to_value(status).expect("status");
        [0, 1].map(|n| status["containerStatuses"][n]["allocatedResourcesStatus"].clone())
    }

    #[test]
    fn what_is_held_is_told() {
        // DEV-15
        let all = [
            held("c", "b.io/y", &["2", "1", "1"]),
            held("c", "a.io/x", &["0"]),
            held("init", "a.io/x", &["9"]),
        ];
        let health = |resource: &str, id: &str| match (resource, id) {
            ("b.io/y", "1") => UnitHealth::Healthy,
            ("b.io/y", "2") => UnitHealth::Unhealthy,
            _ => UnitHealth::Unsaid,
        };
        let mut first = status("Running");
        set_unit_health(&mut first, &PodStatus::default(), &all, &health);
        let told = |health: &str| {
            json!([
                {"name": "a.io/x", "resources": [{"resourceID": "0", "health": health}]},
                {"name": "b.io/y", "resources": [
                    {"resourceID": "1", "health": "Healthy"}, {"resourceID": "2", "health": "Unhealthy"}]},
            ])
        };
        assert_eq!(shown(&first), [told("Unknown"), Value::Null]);
        // A health that is not known yet keeps its last word.
        let mut before = first.clone();
        let x = &mut before.container_statuses[0].allocated_resources_status[0];
        x.resources[0].health = "Healthy".into();
        let mut next = status("Running");
        set_unit_health(&mut next, &before, &all, &health);
        assert_eq!(shown(&next), [told("Healthy"), Value::Null]);
        // The order of the holdings does not count.
        let turned: Vec<HeldUnits> = all.iter().rev().cloned().collect();
        let mut again = status("Running");
        set_unit_health(&mut again, &next, &turned, &health);
        assert_eq!(again, next);
        // A running container without units has no list.
        let mut without = status("Running");
        set_unit_health(&mut without, &next, &[], &health);
        assert_eq!(without, status("Running"));
    }

    #[test]
    fn what_has_ended_keeps_it() {
        // DEV-15
        let all = vec![held("c", "a.io/x", &["0"])];
        let mut running = status("Running");
        set_unit_health(&mut running, &PodStatus::default(), &all, &|_, _| {
            UnitHealth::Healthy
        });
        for held in [&all[..], &[]] {
            let mut ended = status("Succeeded");
            set_unit_health(&mut ended, &running, held, &|_, _| UnitHealth::Unhealthy);
            assert_eq!(shown(&ended), shown(&running));
        }
        // A pod whose health was not reported while it ran.
        let mut ended = status("Failed");
        set_unit_health(&mut ended, &PodStatus::default(), &all, &|_, _| {
            UnitHealth::Unhealthy
        });
        assert_eq!(ended.phase, PodPhase::Failed);
        assert_eq!(shown(&ended)[0][0]["resources"][0]["health"], "Unhealthy");
    }
}
