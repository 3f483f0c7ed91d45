//! Events about the node (NODE-12, NODE-21).

use alloc::{format, string::String};

/// Event about the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeEvent {
    /// The agent started.
    Starting,
    /// The machine has booted since the Node was last updated.
    Rebooted,
    /// The node became ready.
    Ready,
    /// The node is not ready any more.
    NotReady,
    /// Memory is no longer short.
    SufficientMemory,
    /// Memory is short.
    InsufficientMemory,
    /// A disk is short.
    DiskPressure,
    /// No disk is short any more.
    NoDiskPressure,
    /// Process numbers are no longer short.
    SufficientPid,
    /// Process numbers are short.
    InsufficientPid,
    /// The node was uncordoned.
    Schedulable,
    /// The node was cordoned.
    NotSchedulable,
}

impl NodeEvent {
    /// CamelCase reason.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Starting => "Starting",
            Self::Rebooted => "Rebooted",
            Self::Ready => "NodeReady",
            Self::NotReady => "NodeNotReady",
            Self::SufficientMemory => "NodeHasSufficientMemory",
            Self::InsufficientMemory => "NodeHasInsufficientMemory",
            Self::DiskPressure => "NodeHasDiskPressure",
            Self::NoDiskPressure => "NodeHasNoDiskPressure",
            Self::SufficientPid => "NodeHasSufficientPID",
            Self::InsufficientPid => "NodeHasInsufficientPID",
            Self::Schedulable => "NodeSchedulable",
            Self::NotSchedulable => "NodeNotSchedulable",
        }
    }

    /// Returns true if the event's type is `Warning`.
    #[must_use]
    pub const fn is_warning(self) -> bool {
        matches!(self, Self::Rebooted)
    }

    /// Text for people.
    #[must_use]
    pub fn message(self, node: &str, boot_id: &str) -> String {
        match self {
            Self::Starting => "Starting kubelet.".into(),
            Self::Rebooted => format!("Node {node} has been rebooted, boot id: {boot_id}"),
            Self::Ready
            | Self::NotReady
            | Self::SufficientMemory
            | Self::InsufficientMemory
            | Self::DiskPressure
            | Self::NoDiskPressure
            | Self::SufficientPid
            | Self::InsufficientPid
            | Self::Schedulable
            | Self::NotSchedulable => format!("Node {node} status is now: {}", self.reason()),
        }
    }

    /// The event for a change of `spec.unschedulable` from `before` to `now`.
    #[must_use]
    pub const fn from_cordon_change(before: bool, now: bool) -> Option<Self> {
        match (before, now) {
            (false, true) => Some(Self::NotSchedulable),
            (true, false) => Some(Self::Schedulable),
            (true, true) | (false, false) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words() {
        // NODE-12 NODE-21
        for (event, warning, message) in [
            (NodeEvent::Starting, false, "Starting kubelet."),
            (
                NodeEvent::Rebooted,
                true,
                "Node pi has been rebooted, boot id: b1",
            ),
            (NodeEvent::Ready, false, "Node pi status is now: NodeReady"),
            (
                NodeEvent::InsufficientPid,
                false,
                "Node pi status is now: NodeHasInsufficientPID",
            ),
        ] {
            assert_eq!(event.message("pi", "b1"), message);
            assert_eq!(event.is_warning(), warning);
        }
        for (before, now, event) in [
            (false, false, None),
            (false, true, Some(NodeEvent::NotSchedulable)),
            (true, true, None),
            (true, false, Some(NodeEvent::Schedulable)),
        ] {
            assert_eq!(NodeEvent::from_cordon_change(before, now), event);
        }
    }
}
