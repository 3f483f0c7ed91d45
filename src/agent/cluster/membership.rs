//! Membership of the node in the cluster: what is known of it besides the Node object itself.

use core::{
    cell::{Cell, RefCell},
    mem,
};

use crate::{
    agent::waker_set::WakerSet,
    api::{
        Node,
        node::{ContainerImage, NodeSpec},
    },
    logic::node::{Cidr, CidrError, NodeEvent, PodCidrs, UnkeptFields, is_ready},
};

/// Membership of this node in the cluster. [`super::node`] writes it. Others wait here for the Node, or report that it
/// may have been changed by somebody else. One value each, never a queue.
#[derive(Debug, Default)]
pub(in crate::agent) struct Membership {
    /// The Node was read since the agent started.
    read: Cell<bool>,
    waiters: WakerSet,
    /// The last answer may no longer be the Node.
    doubted: Cell<bool>,
    /// The loop wants it read.
    wanted: Cell<bool>,
    /// Images of the last answer: the one part of it that is not kept with the Node.
    images: RefCell<Vec<ContainerImage>>,
    unschedulable: Cell<bool>,
    /// Events that were recorded and whose cause the API does not know yet: not to be recorded again.
    recorded: RefCell<Vec<NodeEvent>>,
    /// Fields of the Node that the apiserver drops.
    unkept: Cell<UnkeptFields>,
    /// Pod CIDRs that the runtime was given.
    cidrs: RefCell<PodCidrs>,
    /// The Node has a pod CIDR.
    has_cidr: Cell<bool>,
    /// Readiness that the Node shows.
    ready: Cell<Option<bool>>,
}

impl Membership {
    /// With the pod CIDRs that the runtime was started with.
    pub(super) fn new(cidrs: PodCidrs) -> Self {
        Self {
            cidrs: RefCell::new(cidrs),
            ..Self::default()
        }
    }

    /// Returns true if the Node has been read from the API.
    pub(super) fn is_node_read(&self) -> bool {
        self.read.get()
    }

    /// Waits until the Node has been read from the API: before that no pod of the API is taken up (OFF-07).
    pub(in crate::agent) fn wait_for_node_read(&self) -> impl Future<Output = ()> {
        self.waiters.wait_until(|| self.read.get().then_some(()))
    }

    /// Has the Node read soon, and before the next status: somebody else may have written to it.
    pub(in crate::agent) fn request_reread(&self) {
        self.doubted.set(true);
        self.waiters.wake_all();
    }

    /// Has the Node read before the next status, without hurrying that one.
    pub(super) fn request_reread_quietly(&self) {
        self.doubted.set(true);
    }

    /// Returns true if the Node may have changed since the last answer.
    pub(super) fn is_doubted(&self) -> bool {
        self.doubted.get()
    }

    /// Waits until it is so.
    pub(super) fn wait_for_doubt(&self) -> impl Future<Output = ()> {
        self.waiters.wait_until(|| self.doubted.get().then_some(()))
    }

    /// The loop wants the Node read once, from now on; it is told what came of it.
    pub(in crate::agent) fn request_loop_read(&self) {
        self.wanted.set(true);
        self.waiters.wake_all();
    }

    /// Waits until it does, which is taken note of.
    pub(super) fn wait_for_loop_request(&self) -> impl Future<Output = ()> {
        self.waiters
            .wait_until(|| self.wanted.replace(false).then_some(()))
    }

    /// The Node was read, or written: takes its images out of it. Returns the event of a cordon that is new.
    pub(super) fn take_node_answer(&self, node: &mut Node) -> Option<NodeEvent> {
        let before = self.unschedulable.replace(node.spec.unschedulable);
        *self.images.borrow_mut() = mem::take(&mut node.status.images);
        self.has_cidr.set(!node.spec.pod_cidr.is_empty());
        self.ready.set(is_ready(&node.status.conditions));
        self.doubted.set(false);
        NodeEvent::from_cordon_change(before, node.spec.unschedulable)
    }

    /// All that follows from the Node was done: who waits for it goes on.
    pub(super) fn set_node_read(&self) {
        if !self.read.replace(true) {
            self.waiters.wake_all();
        }
    }

    /// Puts the images of the last answer back.
    pub(super) fn add_images(&self, node: &mut Node) {
        node.status.images.clone_from(&self.images.borrow());
    }

    /// Takes out of a Node what the apiserver is known to drop.
    pub(super) fn remove_dropped_fields(&self, wanted: &mut Node) {
        self.unkept.get().remove_unkept(wanted);
    }

    /// A status was sent: what was recorded is known there, and what did not come back is dropped there.
    pub(super) fn note_status_sent(&self, wanted: &Node, answer: &Node) {
        self.recorded.borrow_mut().clear();
        let mut unkept = self.unkept.get();
        unkept.learn_from_answer(wanted, answer);
        self.unkept.set(unkept);
    }

    /// Returns true if the event is to be recorded: it was not since the last status.
    pub(super) fn is_new(&self, event: NodeEvent) -> bool {
        let mut recorded = self.recorded.borrow_mut();
        let is_new = !recorded.contains(&event);
        if is_new {
            recorded.push(event);
        }
        is_new
    }

    /// Readiness that the Node shows; `None` if it shows none.
    pub(super) fn shown_readiness(&self) -> Option<bool> {
        self.ready.get()
    }

    /// Returns true if the Node has a pod CIDR.
    pub(super) fn has_cidr(&self) -> bool {
        self.has_cidr.get()
    }

    /// Pod CIDRs that the runtime does not have yet.
    pub(super) fn new_pod_cidrs(&self, spec: &NodeSpec) -> Result<Option<Vec<Cidr>>, CidrError> {
        self.cidrs.borrow().changed_networks(spec)
    }

    /// The runtime has them. Returns what is to be kept of them.
    pub(super) fn accept_cidrs(&self, spec: &NodeSpec) -> String {
        let mut cidrs = self.cidrs.borrow_mut();
        cidrs.record_accepted(spec);
        cidrs.accepted_networks().to_owned()
    }
}
