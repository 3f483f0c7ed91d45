//! Services of the cluster on this node: the rules by which the kernel sends connections to them on to endpoints.
//!
//! ```text
//! Service, EndpointSlices ─object─▶ ProxyService, EndpointCollector ─endpoints─▶ usable endpoints of each policy
//!      ─plan─▶ ServicePlan: chains, elements of maps and sets, digests ─transaction─▶ text for `nft -f -`
//! ```
//!
//! | file | content |
//! |---|---|
//! | `object` | the parts of a Service and of an EndpointSlice that count |
//! | `endpoints` | endpoints of a port, and which of them a policy may use |
//! | `plan`, `render` | chains and elements of one Service |
//! | `table` | names of the table, and all that does not belong to one Service |
//! | `live` | reads what `nft list` shows of the table |
//! | `transaction` | the text that brings the table from what it holds to a plan |
//! | `index` | what is kept of each Service, and which Services have to be read again |
//! | `udp` | which flows of UDP lead to an endpoint that is gone |
//! | `pause` | pauses that grow |
//! | `health` | answers of health check ports, the finding of `picolet check`, figures of `/metrics` |
//!
//! The maps lead from an address to a chain whose name depends only on the Service's UID and port. So a change of
//! endpoints rewrites chains alone, and the kernel's table is the only place where elements are kept.
//!
//! Source: kubernetes `pkg/proxy/nftables`, `pkg/proxy/topology.go`, `pkg/proxy/endpointslicecache.go`.

pub mod endpoints;
pub mod health;
pub mod index;
pub mod live;
pub mod object;
pub mod pause;
pub mod plan;
mod render;
pub mod table;
pub mod transaction;
pub mod udp;

#[cfg(test)]
mod change_tests;
#[cfg(test)]
mod tests;

use core::{fmt, net::IpAddr};

pub use crate::api::cluster_network::AddressRange;

/// Family of addresses. Each has a table of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AddressFamily {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl AddressFamily {
    /// Both.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// Family of an address.
    #[must_use]
    pub const fn of(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }

    /// Word of nftables for the family of a table, and for the header of a packet.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::V4 => "ip",
            Self::V6 => "ip6",
        }
    }
}

/// Protocol of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProxyProtocol {
    /// TCP.
    #[default]
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

impl ProxyProtocol {
    const ALL: [(Self, &'static str, &'static str, u8); 3] = [
        (Self::Tcp, "TCP", "tcp", 6),
        (Self::Udp, "UDP", "udp", 17),
        (Self::Sctp, "SCTP", "sctp", 132),
    ];

    /// Reads the word of the API; empty stands for TCP.
    fn from_api(text: &str) -> Option<Self> {
        if text.is_empty() {
            return Some(Self::Tcp);
        }
        let found = Self::ALL.iter().find(|row| row.1 == text);
        found.map(|row| row.0)
    }

    /// Reads the word or the number of nftables.
    fn from_nft(text: &str) -> Option<Self> {
        let number = text.parse().ok();
        let is_it = |row: &&(Self, &str, &str, u8)| row.2 == text || Some(row.3) == number;
        Self::ALL.iter().find(is_it).map(|row| row.0)
    }

    const fn word(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        }
    }
}

impl fmt::Display for ProxyProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// Settings of the node for Services: the same for all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProxyNetwork {
    /// Families that have a table.
    pub families: alloc::vec::Vec<AddressFamily>,
    /// Ranges of pods. Without one of a family, no connection of that family counts as a pod's.
    pub cluster_ranges: alloc::vec::Vec<AddressRange>,
    /// Ranges of Services: unused addresses in them are dropped.
    pub service_ranges: alloc::vec::Vec<AddressRange>,
    /// Ranges of the node's addresses that serve ports of nodes; empty: all addresses.
    pub node_port_ranges: alloc::vec::Vec<AddressRange>,
}

/// The node, as far as the choice of endpoints depends on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProxyNode {
    /// Name.
    pub name: alloc::string::String,
    /// Label `topology.kubernetes.io/zone`; empty without one.
    pub zone: alloc::string::String,
    /// Addresses.
    pub addresses: alloc::vec::Vec<IpAddr>,
}

/// Reads `ADDRESS/BITS`.
#[must_use]
pub fn parse_range(text: &str) -> Option<AddressRange> {
    let (ip, bits) = text.trim().split_once('/')?;
    let (ip, bits): (IpAddr, u8) = (ip.parse().ok()?, bits.parse().ok()?);
    let most = if ip.is_ipv4() { 32 } else { 128 };
    (bits <= most).then_some((ip, bits))
}

/// Returns true if `ip` lies in the range.
#[must_use]
pub fn range_contains((network, bits): AddressRange, ip: IpAddr) -> bool {
    let (a, b, width) = match (network, ip) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (u32::from(a).into(), u32::from(b).into(), 32),
        (IpAddr::V6(a), IpAddr::V6(b)) => (u128::from(a), u128::from(b), 128),
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => return false,
    };
    let differs: u128 = a ^ b;
    differs
        .checked_shr(width - u32::from(bits).min(width))
        .unwrap_or(0)
        == 0
}
