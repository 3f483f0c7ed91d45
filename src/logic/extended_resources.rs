//! Extended resources: what a Node offers of them, what pods request (DEV-05: amounts of `limits`, container by
//! container), and what they hold.

use alloc::{boxed::Box, rc::Rc, string::String, vec::Vec};

use serde::{Deserialize, Serialize};

use crate::{
    api::{Container, Pod},
    node_resources::is_extended_resource,
};

/// Amounts of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceUnits {
    /// Resource.
    pub resource: Box<str>,
    /// Number of times that its units may be held, all together.
    pub capacity: u32,
    /// Part of `capacity` that comes from units that are here.
    pub allocatable: u32,
}

/// Request of a container for units of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceDemand {
    /// Container.
    pub container: String,
    /// Extended resource.
    pub resource: String,
    /// Number of units, more than 0.
    pub count: u32,
    /// Set if the container ends before the regular ones begin.
    pub plain_init: bool,
}

/// Units of one resource that one container holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HeldUnits {
    /// Container.
    pub container: Box<str>,
    /// Resource.
    pub resource: Box<str>,
    /// Ids of units; a unit that is held twice is there twice.
    pub ids: Vec<Box<str>>,
    /// Set if the container ends before the regular ones begin. Those may take over its units.
    #[serde(default)]
    pub plain_init: bool,
    /// Set if whoever offers the resource is asked what the container gets.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub plugin: bool,
}

/// Units that a pod holds, container by container.
pub type PodDevices = Rc<Vec<HeldUnits>>;

/// Lists the requests of the pod's containers: init containers first; those of one container by names of resources.
#[must_use]
pub fn extended_resource_demands(pod: &Pod) -> Vec<ResourceDemand> {
    let spec = &pod.spec;
    let init = spec.init_containers.iter().map(|c| (c, !c.is_sidecar()));
    let regular = spec.containers.iter().map(|c| (c, false));
    let all = init.chain(regular);
    all.flat_map(|(container, plain_init)| container_demands(container, plain_init))
        .collect()
}

fn container_demands(
    container: &Container,
    plain_init: bool,
) -> impl Iterator<Item = ResourceDemand> {
    let limits = container.resources.limits.iter();
    let extended = limits.filter(|(name, _)| is_extended_resource(name));
    extended.filter_map(move |(name, amount)| {
        let count = u32::try_from(amount.value()).unwrap_or(u32::MAX);
        (count > 0).then(|| ResourceDemand {
            container: container.name.clone(),
            resource: name.clone(),
            count,
            plain_init,
        })
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn by_limits_in_order() {
        // DEV-05
        let limits = |name: &str| json!({"limits": {name: "1", "cpu": "1"}});
        let pod: Pod = serde_json::from_value(json!({"spec": {
            "containers": [{"name": "c", "resources": {"limits": {"b.io/y": "2", "a.io/x": 1, "a.io/z": 0}}}],
            "initContainers": [
                {"name": "i", "resources": limits("a.io/x")},
                {"name": "s", "restartPolicy": "Always", "resources": limits("a.io/x")},
                {"name": "r", "resources": {"requests": {"a.io/x": 1}}},
            ],
        }}))
        .expect("a pod");
        let found: Vec<_> = extended_resource_demands(&pod)
            .into_iter()
            .map(|d| {
                format!(
                    "{} {} {} {}",
                    d.container, d.resource, d.count, d.plain_init
                )
            })
            .collect();
        assert_eq!(
            found,
            [
                "i a.io/x 1 true",
                "s a.io/x 1 false",
                "c a.io/x 1 false",
                "c b.io/y 2 false"
            ]
        );
    }
}
