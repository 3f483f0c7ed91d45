//! Rules of the network between pods of different nodes, as flannel makes it (FLAN-01 to FLAN-19).
//!
//! | file | content |
//! |---|---|
//! | `announcement` | annotations by which nodes tell each other where they are |
//! | `choice` | settings of the node and of the cluster → the network |
//! | `device` | the vxlan device: kept, changed or made anew |
//! | `entries` | changes of the kernel's tables that make them as wanted |
//! | `health` | texts for people: `check`, the condition, metrics |
//! | `look` | the fields of a Node that count |
//! | `mark` | note of what this agent has made |
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
pub mod look;
pub mod mark;
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

    /// Largest packet of a pod, bytes. `external`: that of the interface to other nodes, if there is one. Without it, pods
    /// keep what they were `told` (0: nothing yet), else they get what nearly every interface allows: they start, and only
    /// the way to other nodes is missing.
    #[must_use]
    pub const fn pod_mtu(self, external: Option<u32>, told: u32, has_v6: bool) -> u32 {
        let external = match external {
            None if told > 0 => return told,
            None => USUAL_MTU,
            Some(mtu) => mtu,
        };
        external.saturating_sub(self.overhead(has_v6))
    }
}

/// Largest packet of an interface of Ethernet, bytes.
const USUAL_MTU: u32 = 1500;

#[cfg(test)]
mod tests {
    use super::PodNetworkBackend;

    #[test]
    fn pods_have_an_mtu_without_a_way_out() {
        // FLAN-10 FLAN-12
        let vxlan = PodNetworkBackend::Vxlan;
        for (external, told, has_v6, mtu) in [
            (Some(1500), 0, false, 1450),
            (Some(1500), 0, true, 1430),
            (Some(1400), 1450, false, 1350),
            (None, 0, false, 1450),
            (None, 0, true, 1430),
            (None, 1350, false, 1350),
        ] {
            assert_eq!(vxlan.pod_mtu(external, told, has_v6), mtu, "{external:?}");
        }
        let gateway = PodNetworkBackend::HostGateway;
        assert_eq!(gateway.pod_mtu(None, 0, true), 1500);
    }
}
