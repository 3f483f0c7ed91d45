//! Registration of the Node in the cluster (NODE-01 to NODE-06).

use alloc::{
    borrow::ToOwned as _,
    boxed::Box,
    collections::{BTreeMap, BTreeSet},
    string::String,
    vec::Vec,
};
use core::time::Duration;

use super::{
    ARCH, CONTROLLER_ATTACHES, HOSTNAME, HUGEPAGES, LINUX, NodeEvent, NodeSettings, NodeView, OS,
    k3s, status::apply_node_status,
};
use crate::api::{
    Node, Quantity, WallTime,
    node::{ResourceList, Taint},
    order::GatherExt as _,
};
use crate::node_resources::is_extended_resource;

/// Labels that an old Node of the same name gets from a new one.
const DEFAULT_LABELS: [&str; 11] = [
    HOSTNAME,
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
    OS,
    ARCH,
    BETA_OS,
    BETA_ARCH,
];
const BETA_OS: &str = "beta.kubernetes.io/os";
const BETA_ARCH: &str = "beta.kubernetes.io/arch";
/// Taint of a node that no cloud controller has seen yet.
const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";
/// First pause before a try, milliseconds.
const FIRST_PAUSE_MS: u64 = 100;
/// Longest pause, milliseconds.
const LONGEST_PAUSE_MS: u64 = 7000;

/// Makes the Node to create, status included, and the events of its first conditions.
///
/// - Source: kubelet `initialNode`.
#[must_use]
pub fn initial_node(view: &NodeView<'_>, now: WallTime) -> (Node, Vec<NodeEvent>) {
    let settings = view.settings;
    let mut node = Node::default();
    node.metadata.name.clone_from(&settings.name);
    node.metadata.labels = new_node_labels(settings, &view.identity.architecture);
    if settings.controller_attach_detach {
        let note = (CONTROLLER_ATTACHES.to_owned(), "true".to_owned());
        node.metadata.annotations.extend([note]);
    }
    node.spec.provider_id.clone_from(&settings.provider_id);
    let gives_id = view.k3s.is_some_and(|rules| rules.has_cloud_controller);
    if gives_id && settings.provider_id.is_empty() && !settings.external_cloud {
        // Its cloud controller would give the same one later.
        node.spec.provider_id = k3s::provider_id(&settings.name);
    }
    node.spec.taints.clone_from(&settings.taints);
    if settings.external_cloud {
        node.spec.taints.push(Taint {
            key: UNINITIALIZED.into(),
            value: "true".into(),
            effect: "NoSchedule".into(),
            time_added: None,
        });
    }
    let applied = apply_node_status(&mut node, view, now);
    (node, applied.events)
}

/// Labels of a new Node: the usual ones, then the operator's on top. `arch` is in Go's words.
#[must_use]
pub fn new_node_labels(settings: &NodeSettings, arch: &str) -> BTreeMap<String, String> {
    [
        (HOSTNAME, settings.name.as_str()),
        (OS, LINUX),
        (ARCH, arch),
        (BETA_OS, LINUX),
        (BETA_ARCH, arch),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into_iter()
    .chain(settings.labels.clone())
    .gather_items()
}

/// Brings an old Node of the same name up to date (NODE-03, NODE-04); `None`: no change. The Node goes out as a patch
/// of the status.
///
/// - `before`: extended resources that agents before this one have offered; `None`: not known. The amount of such a
///   resource becomes 0 if the initial Node does not have it, until it is offered again; if `before` is not known, that
///   of every extended resource.
/// - Source: kubelet `tryRegisterWithAPIServer` and the `reconcile…` functions.
#[must_use]
pub fn reconcile_node(
    existing: &Node,
    initial: &Node,
    before: Option<&BTreeSet<Box<str>>>,
) -> Option<Node> {
    let mut node = existing.clone();
    match initial.metadata.annotations.get(CONTROLLER_ATTACHES) {
        Some(value) => {
            let annotations = &mut node.metadata.annotations;
            annotations.insert(CONTROLLER_ATTACHES.into(), value.clone());
        }
        None => {
            node.metadata.annotations.remove(CONTROLLER_ATTACHES);
        }
    }
    renew_labels(&mut node.metadata.labels, &initial.metadata.labels);
    reconcile_resources(&mut node.status.capacity, &initial.status.capacity);
    reconcile_resources(&mut node.status.allocatable, &initial.status.allocatable);
    let is_gone = |name: &String| {
        let was_offered = before.is_none_or(|before| before.contains(name.as_str()));
        was_offered && is_extended_resource(name) && !initial.status.capacity.contains_key(name)
    };
    let gone = node.status.capacity.keys().filter(|name| is_gone(name));
    let gone: Vec<String> = gone.cloned().collect();
    for name in gone {
        for list in [&mut node.status.capacity, &mut node.status.allocatable] {
            list.insert(name.clone(), Quantity::from_decimal_units(0));
        }
    }
    (node != *existing).then_some(node)
}

/// Puts the usual labels of a new Node into those of an old one of the same name.
pub fn renew_labels(labels: &mut BTreeMap<String, String>, initial: &BTreeMap<String, String>) {
    for label in DEFAULT_LABELS {
        match initial.get(label) {
            // An empty value removes the label.
            Some(value) if value.is_empty() => {
                labels.remove(label);
            }
            Some(value) => {
                labels.insert(label.into(), value.clone());
            }
            None => {}
        }
    }
}

/// Extended resources of the initial Node: those that this agent offers.
#[must_use]
pub fn offered_resources(initial: &Node) -> BTreeSet<Box<str>> {
    let all = initial.status.capacity.keys();
    let offered = all.filter(|name| is_extended_resource(name));
    offered.map(|name| name.as_str().into()).collect()
}

/// Fills an empty list completely; in another list only huge pages are replaced.
fn reconcile_resources(list: &mut ResourceList, initial: &ResourceList) {
    if list.is_empty() {
        list.clone_from(initial);
        return;
    }
    list.retain(|name, _| !name.starts_with(HUGEPAGES) || initial.contains_key(name));
    for (name, amount) in initial {
        let known = list
            .get(name)
            .is_some_and(|known| known.same_amount(amount));
        if name.starts_with(HUGEPAGES) && !known {
            list.insert(name.clone(), amount.clone());
        }
    }
}

/// Answer to the creation of the Node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateAnswer {
    /// Created.
    Created,
    /// 409, reason `AlreadyExists`.
    AlreadyExists,
    /// 403: perhaps creating is not allowed, and the Node exists.
    Forbidden,
    /// Any other answer, or none.
    Failed,
}

/// Next step after the creation of the Node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterCreate {
    /// Done, for the life of the process.
    Registered,
    /// Read the Node, [`reconcile_node`] it, patch it. If one of them fails, wait for [`RegisterBackoff::next_pause`].
    Reconcile,
    /// Pause and create again.
    Retry,
}

/// Decides the next step after the creation of the Node (NODE-01, NODE-02).
#[must_use]
pub const fn after_create(answer: CreateAnswer) -> AfterCreate {
    match answer {
        CreateAnswer::Created => AfterCreate::Registered,
        CreateAnswer::AlreadyExists | CreateAnswer::Forbidden => AfterCreate::Reconcile,
        CreateAnswer::Failed => AfterCreate::Retry,
    }
}

/// Pauses between tries, without end: 100 ms, doubling, at most 7 s.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegisterBackoff {
    last_ms: u64,
}

impl RegisterBackoff {
    /// Pause before the next try, the first one included.
    pub fn next_pause(&mut self) -> Duration {
        let next = self.last_ms.saturating_mul(2);
        self.last_ms = next.clamp(FIRST_PAUSE_MS, LONGEST_PAUSE_MS);
        Duration::from_millis(self.last_ms)
    }
}

#[cfg(test)]
mod tests {
    use alloc::{string::ToString as _, vec};

    use super::*;
    use crate::node::testing::Parts;

    fn made(parts: &Parts) -> Node {
        initial_node(&parts.view(), WallTime::from_unix_seconds(100)).0
    }

    #[test]
    fn a_new_node_tells_its_conditions() {
        // NODE-21
        let (_, events) = initial_node(&Parts::board().view(), WallTime::from_unix_seconds(100));
        let told: Vec<&str> = events.iter().map(|event| event.reason()).collect();
        assert_eq!(
            told,
            [
                "NodeHasSufficientMemory",
                "NodeHasNoDiskPressure",
                "NodeHasSufficientPID"
            ]
        );
    }

    fn strings(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(k, v)| (k.to_string(), v.to_string()))
            .collect()
    }

    #[test]
    fn a_new_node() {
        // NODE-05
        let mut parts = Parts::board();
        parts.settings.labels = strings(&[("zone", "a"), (BETA_ARCH, "mine")]);
        parts.settings.provider_id = "x://1".into();
        let taint = Taint {
            key: "k".into(),
            effect: "NoExecute".into(),
            ..Taint::default()
        };
        parts.settings.taints = vec![taint.clone()];
        let node = made(&parts);
        assert_eq!(node.metadata.name, "pi");
        assert_eq!(
            node.metadata.labels,
            strings(&[
                (HOSTNAME, "pi"),
                (OS, "linux"),
                (ARCH, "arm64"),
                (BETA_OS, "linux"),
                (BETA_ARCH, "mine"),
                ("zone", "a"),
            ])
        );
        assert_eq!(
            node.metadata.annotations,
            strings(&[(CONTROLLER_ATTACHES, "true")])
        );
        assert_eq!(node.spec.provider_id, "x://1");
        assert_eq!(node.spec.taints, [taint]);
        // NODE-17
        let kinds: Vec<&str> = node
            .status
            .conditions
            .iter()
            .map(|c| c.kind.as_str())
            .collect();
        assert_eq!(
            kinds,
            ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"]
        );
        parts.settings.external_cloud = true;
        parts.settings.controller_attach_detach = false;
        let node = made(&parts);
        assert_eq!(node.spec.taints[1].key, UNINITIALIZED);
        assert_eq!(node.spec.taints[1].value, "true");
        assert_eq!(node.spec.taints[1].effect, "NoSchedule");
        assert!(node.metadata.annotations.is_empty());
    }

    #[test]
    fn the_architecture_is_in_the_words_of_go() {
        // NODE-05
        let mut parts = Parts::board();
        parts.identity.architecture = "arm".into();
        assert_eq!(made(&parts).metadata.labels[ARCH], "arm");
    }

    #[test]
    fn an_old_node() {
        let mut parts = Parts::board();
        parts.settings.labels = strings(&[("zone", "a"), ("topology.kubernetes.io/zone", "z1")]);
        parts.settings.taints = vec![Taint {
            key: "k".into(),
            effect: "NoExecute".into(),
            ..Taint::default()
        }];
        let new = made(&parts);
        let nothing = BTreeSet::new();
        assert_eq!(reconcile_node(&new, &new, Some(&nothing)), None);
        // NODE-03 NODE-04
        let q = |text: &str| Quantity::parse(text).expect(text);
        type Edit = fn(&mut Node);
        let cases: [(&str, Edit, Edit); 9] = [
            (
                "annotation",
                |n| n.metadata.annotations.clear(),
                |n| {
                    n.metadata
                        .annotations
                        .extend([(CONTROLLER_ATTACHES.into(), "true".into())]);
                },
            ),
            (
                "default labels come back, others do not",
                |n| n.metadata.labels.clear(),
                |n| {
                    n.metadata.labels.remove("zone");
                },
            ),
            (
                "a label of others stays",
                |n| {
                    n.metadata.labels.insert("team".into(), "x".into());
                    n.metadata.labels.insert(HOSTNAME.into(), "other".into());
                },
                |n| {
                    n.metadata.labels.insert("team".into(), "x".into());
                },
            ),
            (
                "taints stay away, and so does a provider id",
                |n| {
                    n.spec.taints.clear();
                    n.metadata.labels.clear();
                },
                |n| {
                    n.spec.taints.clear();
                    n.metadata.labels.remove("zone");
                },
            ),
            (
                "huge pages of another size",
                |n| {
                    let list = &mut n.status.capacity;
                    list.remove("hugepages-2Mi");
                    list.insert("hugepages-1Gi".into(), Quantity::from_binary_units(1 << 30));
                },
                |_| {},
            ),
            (
                "more huge pages",
                |n| {
                    let list = &mut n.status.allocatable;
                    list.insert("hugepages-2Mi".into(), Quantity::from_binary_units(1 << 30));
                },
                |_| {},
            ),
            (
                "capacity is otherwise left to the next round",
                |n| {
                    n.status
                        .capacity
                        .insert("cpu".into(), Quantity::from_decimal_units(1));
                    n.metadata.labels.remove(OS);
                },
                |n| {
                    n.status
                        .capacity
                        .insert("cpu".into(), Quantity::from_decimal_units(1));
                },
            ),
            ("no capacity at all", |n| n.status.capacity.clear(), |_| {}),
            (
                "an extended resource that is still known",
                |n| {
                    let list = &mut n.status.capacity;
                    list.insert("a.com/x".into(), Quantity::from_decimal_units(3));
                    n.metadata.annotations.clear();
                },
                |n| {
                    let list = &mut n.status.capacity;
                    list.insert("a.com/x".into(), Quantity::from_decimal_units(3));
                },
            ),
        ];
        for (name, before, after) in cases {
            let (mut existing, mut want) = (new.clone(), new.clone());
            before(&mut existing);
            after(&mut want);
            let reconciled = reconcile_node(&existing, &new, Some(&nothing));
            assert_eq!(reconciled, Some(want), "{name}");
        }
        // A label that the operator leaves empty is removed.
        let mut emptied = new.clone();
        let instance = "node.kubernetes.io/instance-type";
        emptied
            .metadata
            .labels
            .insert(instance.into(), String::new());
        let mut existing = new.clone();
        existing
            .metadata
            .labels
            .insert(instance.into(), "pi".into());
        let reconciled = reconcile_node(&existing, &emptied, Some(&nothing));
        assert_eq!(reconciled, Some(new.clone()));
        let mut existing = new.clone();
        for list in [
            &mut existing.status.capacity,
            &mut existing.status.allocatable,
        ] {
            list.insert("a.com/x".into(), q("3"));
            list.insert("a.com/y".into(), q("3"));
        }
        let zeroed = reconcile_node(&existing, &new, None).expect("zeroed");
        assert_eq!(zeroed.status.capacity["a.com/x"], q("0"));
        assert_eq!(zeroed.status.allocatable["a.com/x"], q("0"));
        assert_eq!(zeroed.status.capacity["a.com/y"], q("0"));
        assert_eq!(zeroed.status.capacity["cpu"], q("4"));
        // Only resources that this agent has offered are set to 0: others belong to others.
        assert_eq!(reconcile_node(&existing, &new, Some(&nothing)), None);
        let offers = |name: &str| {
            let mut node = new.clone();
            node.status.capacity.insert(name.into(), q("1"));
            node
        };
        let before = offered_resources(&offers("a.com/x"));
        assert_eq!(before, BTreeSet::from(["a.com/x".into()]));
        let zeroed = reconcile_node(&existing, &new, Some(&before)).expect("zeroed");
        assert_eq!(zeroed.status.capacity["a.com/x"], q("0"));
        assert_eq!(zeroed.status.capacity["a.com/y"], q("3"));
        // The resource is still offered: its amount is sent in a moment.
        let still = offers("a.com/x");
        assert_eq!(reconcile_node(&existing, &still, Some(&before)), None);
    }

    #[test]
    fn until_it_is_there() {
        // NODE-01 NODE-02
        for (answer, then) in [
            (CreateAnswer::Created, AfterCreate::Registered),
            (CreateAnswer::AlreadyExists, AfterCreate::Reconcile),
            (CreateAnswer::Forbidden, AfterCreate::Reconcile),
            (CreateAnswer::Failed, AfterCreate::Retry),
        ] {
            assert_eq!(after_create(answer), then);
        }
        let mut tries = RegisterBackoff::default();
        let ms: Vec<u128> = (0..9).map(|_| tries.next_pause().as_millis()).collect();
        assert_eq!(ms, [100, 200, 400, 800, 1600, 3200, 6400, 7000, 7000]);
    }
}
