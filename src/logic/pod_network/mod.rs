//! Rules of the network between pods of different nodes, as flannel makes it (FLAN-01 to FLAN-19).
//!
//! | file | content |
//! |---|---|
//! | `announcement` | annotations by which nodes tell each other where they are |
//! | `choice` | settings of the node and of the cluster → the network |
//! | `device` | the vxlan device: kept, changed or made anew |
//! | `entries` | changes of the kernel's tables that make them as wanted |
//! | `health` | texts for people: `check`, the condition, metrics |
//! | `peers` | the other nodes, and which of them are believed |
//! | `ranges` | ranges of addresses |
//! | `rules` | rules of the firewall |
//! | `schedule` | times at which the nodes are listed |
//! | `subnet_env` | the file that flannel's CNI plugin reads |

pub mod announcement;
pub mod choice;
pub mod device;
pub mod entries;
pub mod health;
pub mod peers;
pub mod ranges;
pub mod rules;
pub mod schedule;
pub mod subnet_env;

pub use announcement::HardwareAddress;

/// Backend of the network: the way of a packet to another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodNetworkBackend {
    /// A vxlan device packs packets into UDP.
    Vxlan,
    /// Routes to the other nodes, which are on the same link.
    HostGateway,
}

impl PodNetworkBackend {
    /// Finds the backend of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "vxlan" => Some(Self::Vxlan),
            "host-gw" => Some(Self::HostGateway),
            _ => None,
        }
    }

    /// Name of the backend, in the configuration of k3s and in annotations.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Vxlan => "vxlan",
            Self::HostGateway => "host-gw",
        }
    }

    /// Bytes that the backend adds to a packet. `is_v6`: other nodes are reached by IPv6, whose head is longer. The kernel
    /// refuses a device that would not fit.
    #[must_use]
    pub const fn overhead(self, is_v6: bool) -> u32 {
        match (self, is_v6) {
            (Self::Vxlan, false) => 50,
            (Self::Vxlan, true) => 70,
            (Self::HostGateway, _) => 0,
        }
    }
}
