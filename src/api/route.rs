//! Route of the kernel's main table.

use core::net::IpAddr;

/// Unicast route of the main table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteEntry {
    /// First address of the destinations.
    pub address: IpAddr,
    /// Length of the prefix of the destinations.
    pub prefix: u8,
    /// Next hop; `None`: the destinations are on the link.
    pub via: Option<IpAddr>,
    /// Index of the interface.
    pub interface: u32,
    /// Set if the next hop is on the link although no other route says so.
    pub is_on_link: bool,
    /// Preference. 0 in a request is the kernel's default.
    pub metric: u32,
    /// Number of the program that made it, as in `linux/rtnetlink.h`.
    pub origin: u8,
}
