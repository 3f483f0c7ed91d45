//! Bringing a Node's status up to date (NODE-09 to NODE-15).

use alloc::{borrow::ToOwned as _, format, string::String, vec::Vec};

use super::{
    ARCH, HUGEPAGES, LINUX, NodeView, OS,
    addresses::{self, AddressError},
    conditions,
    events::NodeEvent,
    k3s,
};
use crate::api::{
    Node, Quantity, WallTime,
    cri::StoredImage,
    node::{ContainerImage, NodeFeatures, NodeInfo, NodeSwap, ResourceList},
    order::OrderExt as _,
};
use crate::node_resources::{self, is_extended_resource};

/// Number of names of one image in a status.
const MAX_IMAGE_NAMES: usize = 5;

/// Result of [`apply_node_status`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AppliedStatus {
    /// Events to record.
    pub events: Vec<NodeEvent>,
    /// Reason why the addresses stayed as they were.
    pub no_address: Option<AddressError>,
}

/// Brings the labels and the status of `node`, as last seen or as to be created, up to date.
///
/// Labels, conditions and resources of others stay. An equal amount keeps its notation, so that a comparison finds no
/// change.
///
/// - Source: kubelet `updateNode`, `defaultNodeStatusFuncs`.
pub fn apply_node_status(node: &mut Node, view: &NodeView<'_>, now: WallTime) -> AppliedStatus {
    let now = now.truncated_to_second();
    let mut done = AppliedStatus::default();
    for (label, value) in [(OS, LINUX), (ARCH, view.identity.architecture.as_str())] {
        if node.metadata.labels.get(label).is_none_or(|v| v != value) {
            node.metadata.labels.insert(label.into(), value.into());
        }
    }
    let settings = view.settings;
    let seen = view.k3s.map(|rules| (rules, node.status.addresses.clone()));
    done.no_address = addresses::set_node_addresses(
        node,
        &settings.node_ips,
        settings.external_cloud,
        &settings.name,
        view.local,
    )
    .err();
    if let Some((rules, seen)) = seen {
        k3s::mark_node(node, seen, settings, rules);
    }
    let status = &mut node.status;
    let boot = &mut status.node_info.boot_id;
    if !boot.is_empty() && *boot != view.identity.boot_id {
        done.events.push(NodeEvent::Rebooted);
    }
    status.node_info = node_info(view);
    set_resource_amounts(&mut status.capacity, &mut status.allocatable, view);
    status.daemon_endpoints.kubelet_endpoint.port = settings.port.unwrap_or(0);
    status.images = largest_images(view.images.unwrap_or_default(), settings.max_images);
    status.runtime_handlers = view.runtime.handlers.clone();
    status
        .runtime_handlers
        .stable_sort_by(|a, b| a.name.cmp(&b.name));
    status.features = Some(NodeFeatures {
        supplemental_groups_policy: Some(view.runtime.supplemental_groups_policy),
    });
    status
        .declared_features
        .clone_from(&settings.declared_features);
    conditions::set_pressure_conditions(
        &mut status.conditions,
        view.pressure,
        now,
        &mut done.events,
    );
    conditions::set_ready_condition(
        &mut status.conditions,
        view.not_ready,
        &status.capacity,
        settings.local_storage,
        now,
        &mut done.events,
    );
    // A condition goes when its source is gone: what ran external pods was taken out of the configuration, another disk.
    let all = &mut status.conditions;
    conditions::set_own_condition(all, "ProviderReady", view.external_pods, false, now);
    conditions::set_own_condition(all, "StorageWorn", view.storage, true, now);
    if let Some(volumes) = view.volumes_in_use {
        status.volumes_in_use = volumes.to_vec();
    }
    done
}

fn node_info(view: &NodeView<'_>) -> NodeInfo {
    let identity = view.identity;
    let swap = view.resources.swap_bytes;
    NodeInfo {
        machine_id: identity.machine_id.clone(),
        system_uuid: identity.system_uuid.clone(),
        boot_id: identity.boot_id.clone(),
        kernel_version: identity.kernel_version.clone(),
        os_image: identity.os_image.clone(),
        container_runtime_version: view.runtime.version.clone(),
        kubelet_version: view.settings.kubelet_version.clone(),
        kube_proxy_version: String::new(),
        operating_system: LINUX.into(),
        architecture: identity.architecture.clone(),
        swap: (swap > 0).then_some(NodeSwap {
            capacity: Some(swap),
        }),
    }
}

fn set_quantity(list: &mut ResourceList, name: &str, amount: Quantity) {
    match list.get_mut(name) {
        Some(known) if known.same_amount(&amount) => {}
        Some(known) => *known = amount,
        None => {
            list.insert(name.into(), amount);
        }
    }
}

/// Sets the capacity of the resources that this agent manages, and the allocatable amounts of all.
fn set_resource_amounts(
    capacity: &mut ResourceList,
    allocatable: &mut ResourceList,
    view: &NodeView<'_>,
) {
    let resources = view.resources;
    let has = resources.capacity;
    let left = node_resources::compute_allocatable(has, resources.kept);
    let pods = Quantity::from_decimal_units(view.settings.max_pods);
    set_quantity(capacity, "cpu", Quantity::from_decimal_milli(has.cpu_milli));
    set_quantity(
        capacity,
        "memory",
        Quantity::from_binary_units(has.memory_bytes),
    );
    set_quantity(capacity, "pods", pods);
    if view.settings.local_storage {
        set_quantity(
            capacity,
            "ephemeral-storage",
            Quantity::from_binary_units(has.storage_bytes),
        );
    }
    for (size, bytes) in &resources.hugepages {
        let name = format!("{HUGEPAGES}{}", Quantity::from_binary_units(*size));
        set_quantity(capacity, &name, Quantity::from_binary_units(*bytes));
    }
    let whole = |n: u32| Quantity::from_decimal_units(n.into());
    for device in &resources.devices {
        set_quantity(capacity, &device.resource, whole(device.capacity));
    }
    allocatable.retain(|name, _| capacity.contains_key(name) || !is_extended_resource(name));
    for (name, amount) in capacity.iter() {
        let here = resources.devices.iter().find(|d| *d.resource == **name);
        if let Some(device) = here {
            set_quantity(allocatable, name, whole(device.allocatable));
            continue;
        }
        let amount = match name.as_str() {
            "cpu" => Quantity::from_decimal_milli(left.cpu_milli),
            "memory" => Quantity::from_binary_units(left.memory_bytes),
            "ephemeral-storage" => Quantity::from_binary_units(left.ephemeral_storage_bytes),
            _ => amount.clone(),
        };
        set_quantity(allocatable, name, amount);
    }
}

/// The largest images, at most `most`; of each at most [`MAX_IMAGE_NAMES`] names, digests first (NODE-14).
fn largest_images(all: &[StoredImage], most: Option<u32>) -> Vec<ContainerImage> {
    let mut by_size: Vec<&StoredImage> = all.iter().collect();
    by_size.stable_sort_by(|a, b| (b.size_bytes, &b.id).cmp(&(a.size_bytes, &a.id)));
    let most = most.map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX));
    by_size
        .into_iter()
        .take(most)
        .map(|image| ContainerImage {
            names: image
                .repo_digests
                .iter()
                .chain(&image.repo_tags)
                .take(MAX_IMAGE_NAMES)
                .map(|name| name.as_str().to_owned())
                .collect(),
            size_bytes: i64::try_from(image.size_bytes).unwrap_or(i64::MAX),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use alloc::{vec, vec::Vec};

    use super::*;
    use crate::{
        api::node::RuntimeHandler,
        extended_resources::ResourceUnits,
        node::testing::{MIB, Parts},
    };

    fn text(list: &ResourceList) -> String {
        let list: Vec<String> = list
            .iter()
            .map(|(name, amount)| format!("{name}={amount}"))
            .collect();
        list.join(" ")
    }

    fn applied(parts: &Parts, node: &mut Node) -> AppliedStatus {
        apply_node_status(node, &parts.view(), WallTime::from_unix_seconds(100))
    }

    #[test]
    fn resources() {
        // NODE-09 NODE-10
        let mut parts = Parts::board();
        let mut node = Node::default();
        applied(&parts, &mut node);
        assert_eq!(
            text(&node.status.capacity),
            "cpu=4 ephemeral-storage=10Gi hugepages-2Mi=16Mi hugepages-64Ki=0 memory=512Mi pods=110"
        );
        assert_eq!(
            text(&node.status.allocatable),
            "cpu=3900m ephemeral-storage=9Gi hugepages-2Mi=16Mi hugepages-64Ki=0 memory=432Mi pods=110"
        );
        // Without ephemeral storage.
        parts.settings.local_storage = false;
        let mut node = Node::default();
        applied(&parts, &mut node);
        assert!(!node.status.capacity.contains_key("ephemeral-storage"));
        assert_eq!(node.status.conditions[3].status, "True");
    }

    #[test]
    fn what_others_set_stays() {
        // NODE-11 NODE-05
        let parts = Parts::board();
        let mut node = Node::default();
        let q = |text: &str| Quantity::parse(text).expect(text);
        node.metadata.labels = [(OS, "plan9"), ("zone", "a")]
            .map(|(k, v)| (k.into(), v.into()))
            .into();
        node.status.capacity = [
            ("example.com/dongle", "2"),
            ("memory", "536870912"),
            ("cpu", "2"),
        ]
        .map(|(name, amount)| (name.into(), q(amount)))
        .into();
        node.status.allocatable = [("example.com/gone", "1"), ("example.com/dongle", "1")]
            .map(|(name, amount)| (name.into(), q(amount)))
            .into();
        applied(&parts, &mut node);
        let status = &node.status;
        assert_eq!(status.capacity["example.com/dongle"], q("2"));
        assert_eq!(status.allocatable["example.com/dongle"], q("2"));
        assert!(!status.allocatable.contains_key("example.com/gone"));
        assert_eq!(status.capacity["memory"], q("536870912"), "the same amount");
        assert_eq!(status.capacity["cpu"], q("4"));
        assert_eq!(node.metadata.labels[OS], "linux");
        assert_eq!(node.metadata.labels[ARCH], "arm64");
        assert_eq!(node.metadata.labels["zone"], "a");
    }

    #[test]
    fn devices() {
        // DEV-35 DEV-40
        let mut parts = Parts::board();
        let mut node = Node::default();
        let amount = |capacity, allocatable| ResourceUnits {
            resource: "picolet/serial".into(),
            capacity,
            allocatable,
        };
        parts.resources.devices = vec![amount(2, 1)];
        applied(&parts, &mut node);
        let q = Quantity::from_decimal_units;
        let shown = |node: &Node| {
            let status = &node.status;
            let of = |list: &ResourceList| list["picolet/serial"].clone();
            (of(&status.capacity), of(&status.allocatable))
        };
        assert_eq!(shown(&node), (q(2), q(1)));
        parts.resources.devices = vec![amount(0, 0)];
        applied(&parts, &mut node);
        assert_eq!(shown(&node), (q(0), q(0)));
    }

    #[test]
    fn the_machine() {
        // NODE-12 NODE-13
        let mut parts = Parts::board();
        let mut node = Node::default();
        let first = applied(&parts, &mut node);
        assert!(!first.events.contains(&NodeEvent::Rebooted));
        let info = node.status.node_info.clone();
        assert_eq!(
            [
                &*info.machine_id,
                &*info.system_uuid,
                &*info.boot_id,
                &*info.kernel_version,
                &*info.os_image,
                &*info.container_runtime_version,
                &*info.kubelet_version,
                &*info.kube_proxy_version,
                &*info.operating_system,
                &*info.architecture
            ],
            [
                "mid",
                "suid",
                "boot-1",
                "6.1.0",
                "Debian 12",
                "picolet://1",
                "v1.36.0+p",
                "",
                "linux",
                "arm64"
            ]
        );
        assert_eq!(info.swap.and_then(|s| s.capacity), Some(64 * MIB));
        assert_eq!(node.status.daemon_endpoints.kubelet_endpoint.port, 10250);
        assert_eq!(applied(&parts, &mut node).events, []);
        parts.identity.boot_id = "boot-2".into();
        parts.resources.swap_bytes = 0;
        parts.settings.port = None;
        assert_eq!(applied(&parts, &mut node).events, [NodeEvent::Rebooted]);
        assert_eq!(node.status.node_info.boot_id, "boot-2");
        assert_eq!(node.status.node_info.swap, None);
        assert_eq!(node.status.daemon_endpoints.kubelet_endpoint.port, 0);
    }

    #[test]
    fn an_address_that_cannot_be_set() {
        // NODE-07
        let mut parts = Parts::board();
        let mut node = Node::default();
        assert_eq!(applied(&parts, &mut node).no_address, None);
        let before = node.status.addresses.clone();
        parts.settings.node_ips = vec!["203.0.113.1".parse().expect("address")];
        assert!(applied(&parts, &mut node).no_address.is_some());
        assert_eq!(node.status.addresses, before, "the round goes on");
        assert_eq!(node.status.conditions[3].status, "True");
    }

    #[test]
    fn which_images() {
        // NODE-14
        let image = |id: &str, size_bytes, digests: usize, tags: usize| StoredImage {
            id: id.into(),
            repo_digests: (0..digests).map(|n| format!("{id}@{n}")).collect(),
            repo_tags: (0..tags).map(|n| format!("{id}:{n}")).collect(),
            size_bytes,
            ..StoredImage::default()
        };
        let all = [
            image("a", 1, 1, 1),
            image("b", 3, 2, 4),
            image("c", 3, 0, 1),
            image("d", 2, 7, 0),
        ];
        let shown = |most| -> Vec<String> {
            largest_images(&all, most)
                .iter()
                .map(|i| format!("{} {}", i.size_bytes, i.names.join(",")))
                .collect()
        };
        assert_eq!(
            shown(None),
            [
                "3 c:0",
                "3 b@0,b@1,b:0,b:1,b:2",
                "2 d@0,d@1,d@2,d@3,d@4",
                "1 a@0,a:0"
            ]
        );
        assert_eq!(shown(Some(1)), ["3 c:0"]);
        assert!(shown(Some(0)).is_empty());
    }

    #[test]
    fn what_the_runtime_can_do() {
        // NODE-14 NODE-15
        let mut parts = Parts::board();
        let handler = |name: &str| RuntimeHandler {
            name: name.into(),
            ..RuntimeHandler::default()
        };
        parts.runtime.handlers = vec![handler("z"), handler(""), handler("a")];
        parts.runtime.supplemental_groups_policy = true;
        parts.volumes = Some(vec!["kubernetes.io/csi/x^1".into()]);
        let mut node = Node::default();
        node.status.declared_features = vec!["Another".into()];
        parts.settings.declared_features = vec!["ExtendWebSocketsToKubelet".into()];
        applied(&parts, &mut node);
        let names: Vec<&str> = node
            .status
            .runtime_handlers
            .iter()
            .map(|h| h.name.as_str())
            .collect();
        assert_eq!(names, ["", "a", "z"]);
        let features = node.status.features.clone().expect("features");
        assert_eq!(features.supplemental_groups_policy, Some(true));
        assert_eq!(node.status.declared_features, ["ExtendWebSocketsToKubelet"]);
        assert_eq!(node.status.volumes_in_use, ["kubernetes.io/csi/x^1"]);
        parts.volumes = None;
        applied(&parts, &mut node);
        assert_eq!(node.status.volumes_in_use.len(), 1, "not known: as it was");
    }
}
