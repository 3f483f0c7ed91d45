//! A pod's requests for devices (DEV-05): amounts of `limits`, container by container.

use alloc::{string::String, vec::Vec};

use crate::{
    api::{Container, Pod},
    node_resources::is_extended,
};

/// Request of a container for units of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Container.
    pub container: String,
    /// Extended resource.
    pub resource: String,
    /// Number of units, more than 0.
    pub count: u32,
    /// Set if the container ends before the regular ones begin.
    pub plain_init: bool,
}

/// Lists the requests of the pod's containers: init containers first; those of one container by names of resources.
#[must_use]
pub fn demands(pod: &Pod) -> Vec<Demand> {
    let spec = &pod.spec;
    let init = spec.init_containers.iter().map(|c| (c, !c.is_sidecar()));
    let regular = spec.containers.iter().map(|c| (c, false));
    let all = init.chain(regular);
    all.flat_map(|(container, plain_init)| of(container, plain_init))
        .collect()
}

fn of(container: &Container, plain_init: bool) -> impl Iterator<Item = Demand> {
    let limits = container.resources.limits.iter();
    let extended = limits.filter(|(name, _)| is_extended(name));
    extended.filter_map(move |(name, amount)| {
        let count = u32::try_from(amount.value()).unwrap_or(u32::MAX);
        (count > 0).then(|| Demand {
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
        let found: Vec<_> = demands(&pod)
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
