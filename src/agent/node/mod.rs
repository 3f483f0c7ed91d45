//! The machine as a node: facts read at start, and the Node object. There is one object, registered or only shown by
//! `get node`. Its content is decided in [`crate::logic::node`].
//!
//! - [`mod@facts`]: facts read once. [`machine`]: facts from `/proc`, `/sys` and `/etc`. [`network`]: addresses of the
//!   machine; [`follow`](mod@follow): changes of them.
//! - [`LocalNode`] owns all of it; [`LocalNode::gather_facts`] reads what may have changed,
//!   [`LocalNode::apply_current_facts`] puts it into an object.

pub(super) mod facts;
pub(in crate::agent) mod follow;
pub(super) mod machine;
mod network;

use alloc::rc::Rc;
use core::{
    cell::{Cell, RefCell},
    net::IpAddr,
    ops::Deref,
    time::Duration,
};

pub(crate) use facts::MachineFacts;
pub(super) use facts::{max_pods, read_machine_facts};
pub(in crate::agent) use network::local_addresses as addresses;

use super::{clock::Clock, complaints::Complaints, times::DateCorrector};
use crate::{
    api::{
        MonoTime, Node as Object, WallTime,
        cluster_network::K3sClusterFacts,
        cri::{
            FsInfo, HandlerCapabilities, RuntimeCondition, RuntimeVersion, StoredImage,
            UserNamespaceSupport,
        },
        node::{NodeAddress, NodeCondition, RuntimeHandler, RuntimeHandlerFeatures},
    },
    image::import::{RESERVE_BYTES, RESERVE_INODES},
    logic::{
        admission,
        eviction::{PressureConditions, is_condition_held},
        extended_resources::ResourceUnits,
        generate::NodeContext,
        node::{
            self, AppliedStatus, K3sNodeRules, LocalAddresses, MachineResources, NodeEvent,
            NodePressures, NodeView, RuntimeAbilities,
        },
    },
    runtime::RuntimeService,
};

/// Facts of the Node object that other owners know.
#[derive(Debug)]
pub(super) struct NodeConditionInputs {
    /// Reasons of the runtime why the node is not ready; empty if it is.
    pub(super) not_ready: Vec<String>,
    /// Set while records of pods wait for a disk that cannot be written.
    pub(super) records_wait: bool,
    /// Conditions of pressure: resources that the node is short of.
    pub(super) pressure: PressureConditions,
    /// Time for which a condition holds after its cause was last seen.
    pub(super) transition: Duration,
    /// Set if an apiserver has the Node.
    pub(super) is_member: bool,
    /// Condition that tells people if the apiserver answers; `None` without an apiserver.
    pub(super) apiserver: Option<NodeCondition>,
}

/// Reads the present addresses of the machine with this name.
pub(super) type AddressReader = fn(&str) -> LocalAddresses;

/// The machine as a node: its facts, its addresses, the resources that pods may ask for, and its Node object. There is
/// one of each, so nothing here grows. The apiserver's answers come in by [`LocalNode::learn_node_object`]; the
/// starters of pods and the reporters of the node ask.
pub(crate) struct LocalNode {
    facts: Rc<MachineFacts>,
    addresses: AddressReader,
    context: Rc<NodeContext>,
    /// Host IPs, primary first, as the Node last had them.
    host_ips: RefCell<Vec<IpAddr>>,
    admission: RefCell<admission::AdmissionNodeFacts>,
    /// Devices that are given to pods.
    devices: RefCell<Vec<ResourceUnits>>,
    /// Last time at which a disk was seen that cannot be written or is too full.
    disk_trouble: Cell<Option<MonoTime>>,
    /// The Node object without its images. In a cluster: as the apiserver last had it; `None` until it was read. On a
    /// node that stands alone: as it was last shown, because conditions say since when they hold.
    object: RefCell<Option<Object>>,
    /// Facts of a cluster of k3s; `None`: it is none, or they are not known yet.
    k3s: RefCell<Option<Rc<K3sClusterFacts>>>,
}

impl LocalNode {
    /// Makes the node; no Node object is known yet.
    pub(super) fn new(
        facts: MachineFacts,
        addresses: AddressReader,
        context: NodeContext,
        admission: admission::AdmissionNodeFacts,
    ) -> Self {
        Self {
            addresses,
            host_ips: RefCell::new(facts.host_ips.clone()),
            facts: Rc::new(facts),
            context: Rc::new(context),
            admission: RefCell::new(admission),
            devices: RefCell::default(),
            disk_trouble: Cell::default(),
            object: RefCell::new(None),
            k3s: RefCell::default(),
        }
    }

    /// Takes in the facts of a cluster of k3s (K3SN-03, K3SN-07).
    pub(super) fn take_k3s_facts(&self, facts: Rc<K3sClusterFacts>) {
        let mut admission = self.admission.borrow_mut();
        let has_service_lb = facts.network.has_service_lb;
        admission.sysctls.set_service_lb(has_service_lb);
        *self.k3s.borrow_mut() = Some(facts);
    }

    /// Reason why the network of a cluster of k3s cannot have this node, if there is one (K3SN-16).
    fn family_fault(&self) -> Option<String> {
        let k3s = self.k3s.borrow();
        node::find_family_fault(&k3s.as_ref()?.network, &self.host_ips.borrow())
    }

    /// Facts that were read at the start.
    pub(super) fn facts(&self) -> &Rc<MachineFacts> {
        &self.facts
    }

    /// Facts that shape sandboxes and containers, with the addresses of the start.
    pub(super) fn context(&self) -> &Rc<NodeContext> {
        &self.context
    }

    /// Host IPs, primary first: one, or one of each family.
    pub(crate) fn host_ips(&self) -> Vec<IpAddr> {
        self.host_ips.borrow().clone()
    }

    /// Address at which the node is reached from itself.
    pub(super) fn host_ip(&self) -> IpAddr {
        node::own_address(&self.host_ips.borrow())
    }

    /// Takes the present addresses of the Node. An empty list changes nothing.
    pub(super) fn set_host_ips(&self, ips: Vec<IpAddr>) {
        let mut known = self.host_ips.borrow_mut();
        if !ips.is_empty() && *known != ips {
            log::info!("addresses of the node: {ips:?}");
            *known = ips;
        }
    }

    /// Hands the facts of the node for admission to `look`, which must not ask this owner for anything.
    pub(super) fn with_admission<T>(
        &self,
        look: impl FnOnce(&admission::AdmissionNodeFacts) -> T,
    ) -> T {
        look(&self.admission.borrow())
    }

    /// Takes over the node of a cluster as an agent before this one has kept it.
    pub(super) fn restore_admission(&self, kept: Option<admission::KeptNode>) {
        self.admission.borrow_mut().restore_kept_node(kept);
    }

    /// Sets the names of the conditions that speak against new pods.
    pub(super) fn set_pressure(&self, names: Vec<String>) {
        self.admission.borrow_mut().pressure = names;
    }

    /// Sets the amounts of the devices that are given to pods. A resource that a plugin begins to offer is the plugin's
    /// from then on: the Node's own amount of it is dropped.
    pub(super) fn set_devices(&self, amounts: Vec<ResourceUnits>) {
        let mut admission = self.admission.borrow_mut();
        admission.devices = amounts.iter().map(|a| a.resource.clone()).collect();
        let is_device = |name: &str| amounts.iter().any(|a| *a.resource == *name);
        admission.allocatable.retain(|name, _| !is_device(name));
        *self.devices.borrow_mut() = amounts;
    }

    /// The Node object, as last known; `None`: it is not known yet. It has no images.
    pub(crate) fn node_object(&self) -> Option<Object> {
        self.object.borrow().clone()
    }

    /// Addresses of the Node as the apiserver has it; `None`: it is not known yet, or has none.
    pub(crate) fn published_addresses(&self) -> Option<Vec<NodeAddress>> {
        let object = self.object.borrow();
        let addresses = &object.as_ref()?.status.addresses;
        (!addresses.is_empty()).then(|| addresses.clone())
    }

    /// Value of a label of the Node as the apiserver has it; `None`: it is not known yet, or has no such label.
    #[cfg(feature = "services")]
    pub(crate) fn label(&self, name: &str) -> Option<String> {
        self.object
            .borrow()
            .as_ref()?
            .metadata
            .labels
            .get(name)
            .cloned()
    }

    /// Takes the Node as the apiserver has it now, without its images.
    pub(crate) fn learn_node_object(&self, object: Object) {
        self.admission.borrow_mut().learn_from_node(&object);
        self.set_host_ips(node::node_host_ips(&object));
        *self.object.borrow_mut() = Some(object);
    }

    /// All resources that pods can have at present.
    fn present_resources(&self) -> MachineResources {
        MachineResources {
            devices: self.devices.borrow().clone(),
            ..self.facts.resources()
        }
    }

    /// Reads the facts of a Node that may have changed: a few small files, and the list of images.
    pub(super) async fn gather_facts(
        &self,
        runtime: &dyn RuntimeService,
        standing: &NodeConditionInputs,
        now: MonoTime,
    ) -> CurrentNodeFacts {
        let disk = runtime.image_fs_info().await.ok();
        let trouble = if standing.records_wait {
            Some("the root directory cannot be written, records of pods wait in memory".to_owned())
        } else {
            disk.as_ref().and_then(disk_full_reason)
        };
        if trouble.is_some() {
            self.disk_trouble.set(Some(now));
        }
        // A pull that fails again and again for want of room fills and empties the disk each time: the condition must
        // not come and go with it.
        let seen = self.disk_trouble.get();
        let has_trouble =
            seen.is_some_and(|seen| is_condition_held(seen, now, standing.transition));
        let (RuntimeVersion { name, version }, capabilities) =
            (runtime.version(), runtime.capabilities());
        CurrentNodeFacts {
            resources: self.present_resources(),
            local: (self.addresses)(&self.facts.name),
            runtime: RuntimeAbilities {
                version: format!("{name}://{version}"),
                handlers: capabilities
                    .handlers
                    .into_iter()
                    .map(runtime_handler)
                    .collect(),
                supplemental_groups_policy: capabilities.supplemental_groups_policy,
            },
            images: runtime.list_images().await.ok(),
            pressure: NodePressures {
                memory: standing.pressure.memory,
                disk: standing.pressure.disk || has_trouble,
                disk_detail: trouble.unwrap_or_default(),
                pid: standing.pressure.pid,
            },
            not_ready: {
                let all = standing.not_ready.iter().cloned();
                all.chain(self.family_fault()).collect()
            },
            external_pods: runtime.external_pods_condition(),
        }
    }

    fn node_view<'a>(&'a self, gathered: &'a CurrentNodeFacts) -> NodeView<'a> {
        NodeView {
            settings: &self.facts.settings,
            identity: &self.facts.identity,
            resources: &gathered.resources,
            local: &gathered.local,
            runtime: &gathered.runtime,
            images: gathered.images.as_deref(),
            pressure: &gathered.pressure,
            not_ready: &gathered.not_ready,
            external_pods: gathered.external_pods.as_ref(),
            storage: self.facts.storage.as_ref(),
            volumes_in_use: None,
            k3s: {
                let facts = self.k3s.borrow();
                let facts = facts.as_ref();
                facts.map(|facts| K3sNodeRules::from_facts(facts))
            },
        }
    }

    /// Makes the Node to create, and the events that tell of its first conditions.
    pub(super) fn initial_node(
        &self,
        gathered: &CurrentNodeFacts,
        wall: WallTime,
    ) -> (Object, Vec<NodeEvent>) {
        node::initial_node(&self.node_view(gathered), wall)
    }

    /// Puts gathered facts into a Node, as last seen in the API or as last shown.
    pub(super) fn apply_current_facts(
        &self,
        object: &mut Object,
        gathered: &CurrentNodeFacts,
        times: &DateCorrector,
        wall: WallTime,
    ) -> AppliedStatus {
        let applied = node::apply_node_status(object, &self.node_view(gathered), wall);
        correct_condition_times(&mut object.status.conditions, times);
        applied
    }

    /// Makes the Node object of this machine for people, as it is, or would be, registered. `made`: its creation time,
    /// if it does not exist yet.
    pub(super) async fn show_node(
        &self,
        runtime: &dyn RuntimeService,
        standing: NodeConditionInputs,
        (clock, times): (&dyn Clock, &DateCorrector),
        complaints: &Complaints,
        made: WallTime,
    ) -> Object {
        let gathered = self.gather_facts(runtime, &standing, clock.now()).await;
        let mut object = match self.node_object() {
            Some(mut object) => {
                let applied =
                    self.apply_current_facts(&mut object, &gathered, times, clock.wall_time());
                if let Some(error) = applied.no_address {
                    complaints.complain(&error.to_string());
                }
                object
            }
            None => {
                let (mut object, _) = self.initial_node(&gathered, clock.wall_time());
                object.metadata.creation_timestamp = Some(made.truncated_to_second());
                object
            }
        };
        if !standing.is_member {
            // It is kept without the images, its largest part, which is made anew each time. In a cluster the object
            // comes from the apiserver alone.
            let images = core::mem::take(&mut object.status.images);
            *self.object.borrow_mut() = Some(object.clone());
            object.status.images = images;
        }
        object.status.conditions.extend(standing.apiserver);
        correct_condition_times(&mut object.status.conditions, times);
        object
    }
}

/// Corrects the times of conditions that were dated before the clock was right.
pub(super) fn correct_condition_times(conditions: &mut [NodeCondition], times: &DateCorrector) {
    for condition in conditions {
        let since = &mut condition.last_transition_time;
        *since = since.map(|at| times.correct_date(at));
    }
}

/// The facts: they never change.
impl Deref for LocalNode {
    type Target = MachineFacts;

    fn deref(&self) -> &MachineFacts {
        &self.facts
    }
}

/// Returns the reason why no image can be pulled or imported any more, if it is the disk. Images that are there can be
/// used.
fn disk_full_reason(fs: &FsInfo) -> Option<String> {
    if fs.read_only {
        return Some("the disk of the images is read-only".into());
    }
    if fs.capacity_bytes > 0 && fs.available_bytes <= RESERVE_BYTES {
        return Some(format!(
            "the disk of the images has {} MiB left, {} MiB are kept free: nothing can be pulled or imported",
            fs.available_bytes >> 20,
            RESERVE_BYTES >> 20
        ));
    }
    // File systems without an inode table report 0 of 0 inodes.
    (fs.inodes > 0 && fs.inodes_free <= RESERVE_INODES).then(|| {
        format!(
            "the disk of the images has {} inodes left, {RESERVE_INODES} are kept free: nothing can be pulled or imported",
            fs.inodes_free
        )
    })
}

fn runtime_handler(handler: HandlerCapabilities) -> RuntimeHandler {
    RuntimeHandler {
        name: handler.name,
        features: Some(RuntimeHandlerFeatures {
            recursive_read_only_mounts: Some(handler.recursive_read_only_mounts),
            user_namespaces: Some(handler.user_namespaces == UserNamespaceSupport::Works),
        }),
    }
}

/// Facts of a Node that may change while the agent runs, as of their reading.
pub(super) struct CurrentNodeFacts {
    resources: MachineResources,
    local: LocalAddresses,
    runtime: RuntimeAbilities,
    images: Option<Vec<StoredImage>>,
    pressure: NodePressures,
    not_ready: Vec<String>,
    external_pods: Option<RuntimeCondition>,
}

#[cfg(test)]
mod tests;
