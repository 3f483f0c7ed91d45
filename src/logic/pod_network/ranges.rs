//! Ranges of addresses: which contain others, and which overlap.

use core::net::IpAddr;

use crate::node::Cidr;

/// The address as a number, and the number of its bits.
fn number(ip: IpAddr) -> (u128, u32) {
    match ip {
        IpAddr::V4(ip) => (ip.to_bits().into(), 32),
        IpAddr::V6(ip) => (ip.to_bits(), 128),
    }
}

/// Returns true if the first `prefix` bits of both addresses are equal, and they are of one family.
fn is_prefix_equal(a: IpAddr, b: IpAddr, prefix: u8) -> bool {
    let ((a, width), (b, other)) = (number(a), number(b));
    let rest = width.saturating_sub(prefix.into());
    width == other && (a ^ b).checked_shr(rest).unwrap_or(0) == 0
}

/// Returns true if the address is in the range.
#[must_use]
pub fn contains(range: Cidr, ip: IpAddr) -> bool {
    is_prefix_equal(range.address, ip, range.prefix)
}

/// Returns true if all addresses of `inner` are in `outer`.
#[must_use]
pub fn covers(outer: Cidr, inner: Cidr) -> bool {
    outer.prefix <= inner.prefix && contains(outer, inner.address)
}

/// Returns true if the ranges have addresses in common.
#[must_use]
pub fn is_overlapping(a: Cidr, b: Cidr) -> bool {
    is_prefix_equal(a.address, b.address, a.prefix.min(b.prefix))
}

/// Returns true if another machine may have the address, as far as the address alone tells.
#[must_use]
pub fn is_host_address(ip: IpAddr) -> bool {
    let is_special = ip.is_unspecified() || ip.is_loopback() || ip.is_multicast();
    !is_special
        && match ip {
            IpAddr::V4(ip) => !ip.is_broadcast() && !ip.is_link_local() && ip.octets()[0] != 0,
            IpAddr::V6(ip) => !ip.is_unicast_link_local() && ip.to_ipv4_mapped().is_none(),
        }
}

/// Makes a range of an address and the length of its prefix; `None`: it has no room for pods.
#[must_use]
pub fn range_of(address: IpAddr, prefix: u8) -> Option<Cidr> {
    format!("{address}/{prefix}").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges() {
        let range = |text: &str| text.parse::<Cidr>().expect(text);
        for (a, b, covers_it, overlaps) in [
            ("10.42.0.0/16", "10.42.3.0/24", true, true),
            ("10.42.3.0/24", "10.42.0.0/16", false, true),
            ("10.42.3.0/24", "10.42.3.0/24", true, true),
            ("10.42.3.0/24", "10.42.2.0/24", false, false),
            ("10.42.0.0/16", "fd00::/16", false, false),
            ("fd00:42::/56", "fd00:42:0:3::/64", true, true),
            ("::/1", "ff00::/64", false, false),
        ] {
            let (a, b) = (range(a), range(b));
            let found = (covers(a, b), is_overlapping(a, b), is_overlapping(b, a));
            assert_eq!(found, (covers_it, overlaps, overlaps), "{a} {b}");
        }
        for (ip, is_host) in [
            ("192.0.2.1", true),
            ("10.0.0.1", true),
            ("fd00::1", true),
            ("0.0.0.0", false),
            ("0.1.2.3", false),
            ("127.0.0.1", false),
            ("169.254.1.1", false),
            ("224.0.0.1", false),
            ("255.255.255.255", false),
            ("::", false),
            ("::1", false),
            ("fe80::1", false),
            ("ff02::1", false),
            ("::ffff:10.0.0.1", false),
        ] {
            assert_eq!(is_host_address(ip.parse().expect(ip)), is_host, "{ip}");
        }
        let ip = "10.42.0.0".parse().expect("an address");
        assert_eq!(range_of(ip, 16), Some(range("10.42.0.0/16")));
        assert_eq!(range_of(ip, 32), None);
    }
}
