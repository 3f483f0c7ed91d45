//! Fields of a Node's status that an older apiserver drops.
//!
//! A node that goes on setting them would find a change in every round, and send its status every
//! `nodeStatusUpdateFrequency` for nothing. So a field that did not come back is left out until the agent starts again.
//! A newer apiserver gets the field then; until then it takes this node for an older one.

use crate::api::Node;

/// Parts of a status that the apiserver does not keep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnkeptFields {
    /// Dropped before 1.31.
    runtime_handlers: bool,
    /// Dropped before 1.33.
    features: bool,
    /// Dropped before 1.34.
    swap: bool,
    /// Dropped before 1.36.
    declared_features: bool,
}

impl UnkeptFields {
    /// Compares a Node that was sent with the answer to it.
    pub fn learn_from_answer(&mut self, sent: &Node, answer: &Node) {
        let (sent, got) = (&sent.status, &answer.status);
        self.runtime_handlers |=
            !sent.runtime_handlers.is_empty() && got.runtime_handlers.is_empty();
        self.features |= sent.features.is_some() && got.features.is_none();
        self.swap |= sent.node_info.swap.is_some() && got.node_info.swap.is_none();
        self.declared_features |=
            !sent.declared_features.is_empty() && got.declared_features.is_empty();
    }

    /// Removes the fields from a Node that would be dropped.
    pub fn remove_unkept(self, node: &mut Node) {
        let status = &mut node.status;
        if self.runtime_handlers {
            status.runtime_handlers.clear();
        }
        if self.features {
            status.features = None;
        }
        if self.swap {
            status.node_info.swap = None;
        }
        if self.declared_features {
            status.declared_features.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::node::{NodeFeatures, NodeSwap, RuntimeHandler};
    use crate::node::compute_status_patch;

    #[test]
    fn what_does_not_come_back_is_not_sent_again() {
        // NODE-15 NODE-23
        let mut sent = Node::default();
        sent.status.runtime_handlers = alloc::vec![RuntimeHandler::default()];
        sent.status.features = Some(NodeFeatures::default());
        sent.status.node_info.swap = Some(NodeSwap { capacity: Some(1) });
        sent.status.declared_features = alloc::vec!["A".into()];
        let mut known = UnkeptFields::default();
        known.learn_from_answer(&sent, &sent);
        assert_eq!(known, UnkeptFields::default(), "a server that keeps all");
        let answer = Node::default();
        assert!(compute_status_patch(&answer, &sent).is_some());
        known.learn_from_answer(&sent, &answer);
        let mut next = sent.clone();
        known.remove_unkept(&mut next);
        assert_eq!(compute_status_patch(&answer, &next), None);
        // Nothing sent, nothing learnt.
        let mut other = UnkeptFields::default();
        other.learn_from_answer(&answer, &answer);
        assert_eq!(other, UnkeptFields::default());
    }
}
