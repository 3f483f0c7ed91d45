//! Events about the node (NODE-12, NODE-21).

use alloc::{format, string::String};

/// What happened to the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeEvent {
    /// The agent started.
    Starting,
    /// Another boot than the one on the Node.
    Rebooted,
    /// It became ready.
    Ready,
    /// It is not ready any more.
    NotReady,
    /// There is memory.
    SufficientMemory,
    /// There is not.
    InsufficientMemory,
    /// A disk is short.
    DiskPressure,
    /// None is.
    NoDiskPressure,
    /// There are process numbers.
    SufficientPid,
    /// There are not.
    InsufficientPid,
    /// Somebody uncordoned it.
    Schedulable,
    /// Somebody cordoned it.
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

    /// Whether its type is `Warning`.
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

    /// The event when `spec.unschedulable` went from `before` to `now`.
    #[must_use]
    pub const fn of_cordon(before: bool, now: bool) -> Option<Self> {
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
            assert_eq!(NodeEvent::of_cordon(before, now), event);
        }
    }
}
