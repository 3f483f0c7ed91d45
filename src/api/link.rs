//! Bytes that went over the link of this machine: what for, and which way.

use serde::{Deserialize, Serialize};

/// Purpose of bytes on the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkClass {
    /// Lease and status of the node.
    Heartbeat,
    /// All else that is exchanged with the apiserver, and manifests at a URL.
    Api,
    /// Images.
    Image,
    /// Streams to servers of a tunnel.
    Tunnel,
    /// Logs, and streams of exec, attach and port forwarding, for clients that dial this node.
    Stream,
    /// Metrics and statistics, for the same.
    Figures,
    /// Releases of this program.
    Update,
}

impl LinkClass {
    /// Number of classes.
    pub const COUNT: usize = 7;
    /// All of them.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Heartbeat,
        Self::Api,
        Self::Image,
        Self::Tunnel,
        Self::Stream,
        Self::Figures,
        Self::Update,
    ];
    /// The name of each, in order.
    pub const NAMES: [&'static str; Self::COUNT] = [
        "heartbeat",
        "api",
        "image",
        "tunnel",
        "stream",
        "figures",
        "update",
    ];
}

/// Bytes by class, in the order of the classes: received and sent. With the headers of TCP and IP, without those below.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkBytes(pub [[u64; 2]; LinkClass::COUNT]);

impl LinkBytes {
    /// All of it.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.0.as_flattened().iter().sum()
    }
}

/// Priority of a pull over the link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum PullUrgency {
    /// The image can wait.
    #[default]
    Normal,
    /// For a critical pod.
    Critical,
    /// The operator wants it now, whatever that costs.
    Now,
}
