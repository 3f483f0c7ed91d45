//! Devices of the machine, which come and go as a test wants it.

use std::sync::Mutex;

use crate::{
    api::device::{Node, Seen, Wanted},
    device::Machine,
};

/// Devices of a machine.
#[derive(Default)]
pub(in crate::agent) struct FakeDevices(Mutex<Seen>);

impl FakeDevices {
    /// These nodes are there now: names, and minor numbers.
    pub(in crate::agent) fn set(&self, nodes: &[(&str, u32)]) {
        let node = |(name, minor): &(&str, u32)| Node {
            name: (*name).into(),
            path: (*name).into(),
            major: 188,
            minor: *minor,
            ..Node::default()
        };
        let nodes = nodes.iter().map(node).collect();
        *self.0.lock().expect("devices") = Seen {
            nodes,
            usb: Vec::new(),
        };
    }
}

impl Machine for FakeDevices {
    fn look(&self, wanted: &dyn Wanted) -> Seen {
        let mut seen = self.0.lock().expect("devices").clone();
        seen.nodes.retain(|node| wanted.node(&node.name));
        seen
    }
}
