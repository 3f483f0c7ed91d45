//! The machine as a node: facts read at start, and the Node object: one, whether it is registered or only shown by
//! `get node`. What it says is decided in [`crate::logic::node`].
//!
//! - [`mod@facts`]: what is read once. [`machine`]: what `/proc`, `/sys` and `/etc` say. [`network`]: its addresses;
//!   [`follow`](mod@follow): whether these change.
//! - [`Node`] owns all of it; [`Node::gather`] reads what may have changed, [`Node::bring_up_to_date`] puts it into an object.

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

pub(super) use facts::{NodeFacts, facts, max_pods};
pub(in crate::agent) use network::local as addresses;

use super::{clock::Clock, complaints::Complaints, times::Times};
use crate::{
    api::{
        Mono, Node as Object, Wall,
        cri::{Condition, FsInfo, Handler, Image, Version},
        node::{NodeAddress, NodeCondition, RuntimeHandler, RuntimeHandlerFeatures},
    },
    image::import::{RESERVE_BYTES, RESERVE_INODES},
    logic::{
        admission,
        devices::Amount,
        eviction::{Conditions, is_recent},
        generate::NodeContext,
        node::{self, Applied, Local, NodeEvent, Pressure, Resources, RuntimeView, View},
    },
    runtime::RuntimeService,
};

/// What the Node object says that others know.
#[derive(Debug)]
pub(super) struct Standing {
    /// Why the node is not ready, as far as the runtime goes; empty if it is.
    pub(super) not_ready: Vec<String>,
    /// Records of pods wait for a disk that cannot be written.
    pub(super) records_wait: bool,
    /// What the node is short of.
    pub(super) pressure: Conditions,
    /// How long a condition holds after its cause was last seen.
    pub(super) transition: Duration,
    /// Whether an apiserver has the Node.
    pub(super) is_member: bool,
    /// Whether that answers, for people; `None` without one.
    pub(super) apiserver: Option<NodeCondition>,
}

/// What is known now of the addresses of the machine with that name.
pub(super) type Addresses = fn(&str) -> Local;

/// This node: the machine's facts, its addresses, what pods may ask of it, and its Node object. One of each, so that nothing
/// of it grows. The apiserver's answers come in by [`Node::learn`]; whoever starts pods or tells of the node asks.
pub(super) struct Node {
    facts: Rc<NodeFacts>,
    addresses: Addresses,
    context: Rc<NodeContext>,
    /// Host IPs, primary first, as the Node last had them.
    host_ips: RefCell<Vec<IpAddr>>,
    admission: RefCell<admission::NodeFacts>,
    /// Devices that are given to pods.
    devices: RefCell<Vec<Amount>>,
    /// When a disk was last seen that cannot be written.
    disk_trouble: Cell<Option<Mono>>,
    /// The Node object without its images. Of a cluster: as the apiserver last had it; `None` until it was read. Of a node
    /// that stands alone: as it was last shown, for conditions say since when they hold.
    object: RefCell<Option<Object>>,
}

impl Node {
    /// A node that nobody has heard of yet.
    pub(super) fn new(
        facts: NodeFacts,
        addresses: Addresses,
        context: NodeContext,
        admission: admission::NodeFacts,
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
        }
    }

    /// What was read at the start.
    pub(super) fn facts(&self) -> &Rc<NodeFacts> {
        &self.facts
    }

    /// What shapes sandboxes and containers, with the addresses of the start.
    pub(super) fn context(&self) -> &Rc<NodeContext> {
        &self.context
    }

    /// Host IPs, primary first: one, or one of each family.
    pub(super) fn host_ips(&self) -> Vec<IpAddr> {
        self.host_ips.borrow().clone()
    }

    /// Where the node can be asked from itself.
    pub(super) fn host_ip(&self) -> IpAddr {
        node::own_address(&self.host_ips.borrow())
    }

    /// The Node has these addresses now. None is no news.
    pub(super) fn set_host_ips(&self, ips: Vec<IpAddr>) {
        let mut known = self.host_ips.borrow_mut();
        if !ips.is_empty() && *known != ips {
            log::info!("addresses of the node: {ips:?}");
            *known = ips;
        }
    }

    /// Hands what admission knows of the node to `look`, which must not ask this owner for anything.
    pub(super) fn with_admission<T>(&self, look: impl FnOnce(&admission::NodeFacts) -> T) -> T {
        look(&self.admission.borrow())
    }

    /// The node is one of a cluster, of which an agent before this one has kept that.
    pub(super) fn recall(&self, kept: Option<admission::KeptNode>) {
        self.admission.borrow_mut().recall(kept);
    }

    /// Names of the conditions that speak against new pods.
    pub(super) fn set_pressure(&self, names: Vec<String>) {
        self.admission.borrow_mut().pressure = names;
    }

    /// Amounts of the devices that are given to pods. What a plugin begins to offer is its own from then on, whatever the Node
    /// had of it.
    pub(super) fn set_devices(&self, amounts: Vec<Amount>) {
        let mut admission = self.admission.borrow_mut();
        admission.devices = amounts.iter().map(|a| a.resource.clone()).collect();
        let is_device = |name: &str| amounts.iter().any(|a| *a.resource == *name);
        admission.allocatable.retain(|name, _| !is_device(name));
        *self.devices.borrow_mut() = amounts;
    }

    /// The Node object, as last known; `None`: it is not known yet. It has no images.
    pub(super) fn object(&self) -> Option<Object> {
        self.object.borrow().clone()
    }

    /// Addresses of the Node as the apiserver has it; `None`: it is not known yet, or has none.
    pub(super) fn published_addresses(&self) -> Option<Vec<NodeAddress>> {
        let object = self.object.borrow();
        let addresses = &object.as_ref()?.status.addresses;
        (!addresses.is_empty()).then(|| addresses.clone())
    }

    /// The Node as the apiserver has it now, its images taken away.
    pub(super) fn learn(&self, object: Object) {
        self.admission.borrow_mut().learn(&object);
        self.set_host_ips(node::of_node(&object));
        *self.object.borrow_mut() = Some(object);
    }

    /// All that pods can have, as it is now.
    fn resources(&self) -> Resources {
        Resources {
            devices: self.devices.borrow().clone(),
            ..self.facts.resources()
        }
    }

    /// Reads what a Node says. A few small files, and the list of images.
    pub(super) async fn gather(
        &self,
        runtime: &dyn RuntimeService,
        standing: &Standing,
        now: Mono,
    ) -> Gathered {
        let disk = runtime.image_fs_info().await.ok();
        let trouble = if standing.records_wait {
            Some("the root directory cannot be written, records of pods wait in memory".to_owned())
        } else {
            disk.as_ref().and_then(too_full)
        };
        if trouble.is_some() {
            self.disk_trouble.set(Some(now));
        }
        // A pull that fails over and over for want of room fills and empties the disk: the condition must not come and go with it.
        let seen = self.disk_trouble.get();
        let has_trouble = seen.is_some_and(|seen| is_recent(seen, now, standing.transition));
        let (Version { name, version }, capabilities) = (runtime.version(), runtime.capabilities());
        Gathered {
            resources: self.resources(),
            local: (self.addresses)(&self.facts.name),
            runtime: RuntimeView {
                version: format!("{name}://{version}"),
                handlers: capabilities.handlers.into_iter().map(shown).collect(),
                supplemental_groups_policy: capabilities.supplemental_groups_policy,
            },
            images: runtime.list_images().await.ok(),
            pressure: Pressure {
                memory: standing.pressure.memory,
                disk: standing.pressure.disk || has_trouble,
                disk_detail: trouble.unwrap_or_default(),
                pid: standing.pressure.pid,
            },
            not_ready: standing.not_ready.clone(),
            providers: runtime.providers(),
        }
    }

    fn view<'a>(&'a self, gathered: &'a Gathered) -> View<'a> {
        View {
            settings: &self.facts.settings,
            identity: &self.facts.identity,
            resources: &gathered.resources,
            local: &gathered.local,
            runtime: &gathered.runtime,
            images: gathered.images.as_deref(),
            pressure: &gathered.pressure,
            not_ready: &gathered.not_ready,
            providers: gathered.providers.as_ref(),
            storage: self.facts.storage.as_ref(),
            volumes_in_use: None,
        }
    }

    /// The Node to create, and what there is to tell of its first conditions.
    pub(super) fn initial(&self, gathered: &Gathered, wall: Wall) -> (Object, Vec<NodeEvent>) {
        node::initial(&self.view(gathered), wall)
    }

    /// Puts what was gathered into a Node, as last seen in the API or as last shown.
    pub(super) fn bring_up_to_date(
        &self,
        object: &mut Object,
        gathered: &Gathered,
        times: &Times,
        wall: Wall,
    ) -> Applied {
        let applied = node::apply(object, &self.view(gathered), wall);
        put_right(&mut object.status.conditions, times);
        applied
    }

    /// The Node object of this machine, for people: as it is, or would be, registered. `made`: when it was made, if it is
    /// nowhere yet.
    pub(super) async fn show(
        &self,
        runtime: &dyn RuntimeService,
        standing: Standing,
        (clock, times): (&dyn Clock, &Times),
        complaints: &Complaints,
        made: Wall,
    ) -> Object {
        let gathered = self.gather(runtime, &standing, clock.now()).await;
        let mut object = match self.object() {
            Some(mut object) => {
                let applied = self.bring_up_to_date(&mut object, &gathered, times, clock.wall());
                if let Some(error) = applied.no_address {
                    complaints.complain(&error.to_string());
                }
                object
            }
            None => {
                let (mut object, _) = self.initial(&gathered, clock.wall());
                object.metadata.creation_timestamp = Some(made.truncated());
                object
            }
        };
        if !standing.is_member {
            // Kept without its largest part, which is made anew each time. What a cluster has is the apiserver's to say.
            let images = core::mem::take(&mut object.status.images);
            *self.object.borrow_mut() = Some(object.clone());
            object.status.images = images;
        }
        object.status.conditions.extend(standing.apiserver);
        put_right(&mut object.status.conditions, times);
        object
    }
}

/// Conditions may have been dated before the clock was right.
pub(super) fn put_right(conditions: &mut [NodeCondition], times: &Times) {
    for condition in conditions {
        let since = &mut condition.last_transition_time;
        *since = since.map(|at| times.believed(at));
    }
}

/// The facts: they never change.
impl Deref for Node {
    type Target = NodeFacts;

    fn deref(&self) -> &NodeFacts {
        &self.facts
    }
}

/// Why no image can be pulled or imported any more, if the disk is the reason. Images that are there can be used.
fn too_full(fs: &FsInfo) -> Option<String> {
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
    // File systems without an inode table say 0 of 0.
    (fs.inodes > 0 && fs.inodes_free <= RESERVE_INODES).then(|| {
        format!(
            "the disk of the images has {} inodes left, {RESERVE_INODES} are kept free: nothing can be pulled or imported",
            fs.inodes_free
        )
    })
}

fn shown(handler: Handler) -> RuntimeHandler {
    RuntimeHandler {
        name: handler.name,
        features: Some(RuntimeHandlerFeatures {
            recursive_read_only_mounts: Some(handler.recursive_read_only_mounts),
            user_namespaces: Some(handler.user_namespaces),
        }),
    }
}

/// What a Node says that may change while the agent runs, as it was when it was read.
pub(super) struct Gathered {
    resources: Resources,
    local: Local,
    runtime: RuntimeView,
    images: Option<Vec<Image>>,
    pressure: Pressure,
    not_ready: Vec<String>,
    providers: Option<Condition>,
}

#[cfg(test)]
mod tests;
