//! Texts about a pod that is evicted because the node is short of a resource (EVICT-12, EVICT-14).

use alloc::{format, string::String, vec::Vec};

use super::{
    rank::PodFigures,
    threshold::{StarvedResource, shortest_quantity},
};
use crate::{
    api::{Container, Pod, Quantity},
    qos::{EPHEMERAL_STORAGE, MEMORY},
};

/// Texts about an evicted pod: the message of its status and event, and annotations of the event for programs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EvictionTexts {
    /// Message for people. Ends with a blank, as a kubelet's does.
    pub message: String,
    /// Annotations of the event.
    pub annotations: Vec<(&'static str, String)>,
}

/// Writes the texts for `pod`. `quantities`: the amount that must be left, and the amount that was left.
#[must_use]
pub fn eviction_texts(
    starved: StarvedResource,
    pod: &Pod,
    quantities: Option<&(Quantity, Quantity)>,
    figures: Option<&PodFigures>,
) -> EvictionTexts {
    let resource = starved.name();
    let mut message = format!("The node was low on resource: {resource}. ");
    if let Some((threshold, available)) = quantities {
        message.push_str(&format!(
            "Threshold quantity: {threshold}, available: {available}. "
        ));
    }
    let Some(figures) = figures else {
        return EvictionTexts {
            message,
            annotations: Vec::new(),
        };
    };
    let (mut names, mut usages) = (Vec::new(), Vec::new());
    let spec = &pod.spec;
    for measured in &figures.containers {
        // An ephemeral container cannot have a request, so it is not named.
        let mut all = spec.containers.iter().chain(&spec.init_containers);
        let Some(container) = all.find(|c| c.name == measured.name) else {
            continue;
        };
        let (used, asked) = match starved {
            StarvedResource::Memory => {
                (measured.memory_bytes, container_request(container, MEMORY))
            }
            StarvedResource::EphemeralStorage => {
                let files = measured.rootfs.zip(measured.logs);
                let used = files.map(|(a, b)| a.used_bytes.saturating_add(b.used_bytes));
                (used, container_request(container, EPHEMERAL_STORAGE))
            }
            StarvedResource::Inodes | StarvedResource::Pids => {
                (None, Quantity::from_decimal_units(0))
            }
        };
        let used = used.map(|used| i64::try_from(used).unwrap_or(i64::MAX));
        let Some(used) = used.filter(|used| *used > asked.value()) else {
            continue;
        };
        let (name, used) = (&container.name, Quantity::from_binary_units(used));
        message.push_str(&format!(
            "Container {name} was using {used}, request is {asked}, has larger consumption of {resource}. "
        ));
        names.push(name.as_str());
        usages.push(used);
    }
    let usages: Vec<&str> = usages.iter().map(Quantity::as_str).collect();
    EvictionTexts {
        message,
        annotations: vec![
            ("offending_containers", names.join(",")),
            ("offending_containers_usage", usages.join(",")),
            ("starved_resource", resource.into()),
        ],
    }
}

fn container_request(container: &Container, resource: &str) -> Quantity {
    let request = container.resources.requests.get(resource);
    request.map_or_else(
        || Quantity::from_decimal_units(0),
        |q| shortest_quantity(q, q.value()),
    )
}

#[cfg(test)]
mod tests {
    use super::{super::rank::ContainerFigures, *};
    use crate::{
        api::stats::DiskUsage,
        testing::{container, pod_with},
    };

    fn asking(name: &str, resource: &str, quantity: &str) -> Container {
        let mut container = container(name);
        let quantity = Quantity::parse(quantity).expect("quantity");
        container
            .resources
            .requests
            .insert(resource.into(), quantity);
        container
    }

    fn figures() -> PodFigures {
        let disk = |used_bytes| {
            Some(DiskUsage {
                used_bytes,
                inodes_used: 1,
            })
        };
        let of = |name: &str, memory_bytes, rootfs, logs| ContainerFigures {
            name: name.into(),
            memory_bytes,
            rootfs,
            logs,
        };
        PodFigures {
            containers: vec![
                of("big", Some(200 << 20), disk(1 << 20), disk(1 << 20)),
                of("debugger", Some(1 << 30), disk(1 << 30), disk(0)),
                of("exact", Some(64 << 20), disk(1 << 30), None),
                of("free", Some(1025), disk(1000), disk(24)),
            ],
            ..PodFigures::default()
        }
    }

    #[test]
    fn the_words_of_an_eviction() {
        // EVICT-12 EVICT-14
        let mut pod = pod_with(&[]);
        pod.spec.containers = vec![
            asking("big", MEMORY, "102400Ki"),
            asking("exact", MEMORY, "64Mi"),
            container("free"),
        ];
        let quantities = (
            Quantity::from_binary_units(100 << 20),
            Quantity::from_binary_units(61_440),
        );
        let words = eviction_texts(
            StarvedResource::Memory,
            &pod,
            Some(&quantities),
            Some(&figures()),
        );
        assert_eq!(
            words.message,
            "The node was low on resource: memory. Threshold quantity: 100Mi, available: 60Ki. \
             Container big was using 200Mi, request is 100Mi, has larger consumption of memory. \
             Container free was using 1025, request is 0, has larger consumption of memory. "
        );
        assert_eq!(
            words.annotations,
            [
                ("offending_containers", "big,free".into()),
                ("offending_containers_usage", "200Mi,1025".into()),
                ("starved_resource", "memory".into()),
            ]
        );
        let words = eviction_texts(
            StarvedResource::EphemeralStorage,
            &pod,
            Some(&quantities),
            Some(&figures()),
        );
        assert_eq!(
            words.message,
            "The node was low on resource: ephemeral-storage. Threshold quantity: 100Mi, available: 60Ki. \
             Container big was using 2Mi, request is 0, has larger consumption of ephemeral-storage. \
             Container free was using 1Ki, request is 0, has larger consumption of ephemeral-storage. "
        );
        for (starved, want) in [
            (
                StarvedResource::Inodes,
                "The node was low on resource: inodes. ",
            ),
            (
                StarvedResource::Pids,
                "The node was low on resource: pids. ",
            ),
        ] {
            assert_eq!(
                eviction_texts(starved, &pod, None, Some(&figures())).message,
                want
            );
        }
        let unknown = eviction_texts(StarvedResource::Memory, &pod, None, None);
        assert_eq!(unknown.message, "The node was low on resource: memory. ");
        assert_eq!(unknown.annotations, []);
    }
}
