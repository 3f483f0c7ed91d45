//! Lent addresses of the built-in network. The records of attachments name them, so nothing else is kept on disk: an
//! address is in such a record before it is used, and free when the record is gone.

use alloc::collections::{BTreeMap, BTreeSet};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{CniError, bridge::AddressLease, gateway};

/// Offset of the gateway in its subnet, as `host-local` has it.
const GATEWAY: u128 = 1;
/// Offset of the first address of a pod.
const FIRST: u128 = 2;
/// Most addresses of an IPv6 subnet that are lent.
const MAX_ADDRESSES: u128 = 1 << 32;

/// A subnet whose addresses are lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LeaseSubnet {
    base: u128,
    prefix: u8,
    is_v4: bool,
}

/// The addresses that are lent, and where the search for the next begins.
#[derive(Debug, Default)]
pub(super) struct AddressPool {
    lent: BTreeSet<IpAddr>,
    /// Offset after the one lent last, by base: a returned address is lent again as late as possible.
    next: BTreeMap<(u128, u8), u128>,
}

impl AddressPool {
    /// Notes an address that is lent already.
    pub(super) fn mark_lent(&mut self, ip: IpAddr) {
        self.lent.insert(ip);
    }

    pub(super) fn give_back_address(&mut self, ip: IpAddr) {
        self.lent.remove(&ip);
    }

    /// Lends one address of each subnet, or none at all.
    pub(super) fn lend_addresses(
        &mut self,
        subnets: &[String],
    ) -> Result<Vec<AddressLease>, CniError> {
        let mut leases: Vec<AddressLease> = Vec::with_capacity(subnets.len());
        for text in subnets {
            let found = LeaseSubnet::parse(text)
                .ok_or_else(|| CniError::NoSubnet(text.clone()))
                .and_then(|subnet| {
                    self.find_free_address(subnet)
                        .ok_or_else(|| CniError::NoAddressLeft(text.clone()))
                });
            match found {
                Ok(lease) => {
                    self.lent.insert(lease.address);
                    leases.push(lease);
                }
                Err(why) => {
                    for lease in leases {
                        self.give_back_address(lease.address);
                    }
                    return Err(why);
                }
            }
        }
        Ok(leases)
    }

    fn find_free_address(&mut self, subnet: LeaseSubnet) -> Option<AddressLease> {
        let end = subnet.end_offset();
        // After an agent's start the search begins behind the last known address.
        let known = || {
            let last = self
                .lent
                .iter()
                .filter_map(|ip| subnet.address_offset(*ip))
                .max();
            last.map_or(FIRST, |offset| offset + 1)
        };
        let key = (subnet.base, subnet.prefix);
        let start = self.next.get(&key).copied().unwrap_or_else(known);
        let start = if (FIRST..end).contains(&start) {
            start
        } else {
            FIRST
        };
        let offset = (start..end)
            .chain(FIRST..start)
            .find(|offset| !self.lent.contains(&subnet.address_at(*offset)))?;
        self.next.insert(key, offset + 1);
        Some(AddressLease {
            address: subnet.address_at(offset),
            prefix: subnet.prefix,
            gateway: subnet.address_at(GATEWAY),
        })
    }
}

/// Gateway of the pods of a subnet. `None` for IPv6: those addresses stay at the bridge.
pub(super) fn subnet_gateway(subnet: &str) -> Option<gateway::BridgeAddress> {
    let subnet = LeaseSubnet::parse(subnet)?;
    match subnet.address_at(GATEWAY) {
        IpAddr::V4(ip) => Some((ip, subnet.prefix)),
        IpAddr::V6(_) => None,
    }
}

impl LeaseSubnet {
    /// Reads a subnet. `None` too where there is no room for a gateway and a pod.
    fn parse(text: &str) -> Option<Self> {
        let (ip, prefix) = text.split_once('/')?;
        let ip: IpAddr = ip.parse().ok()?;
        let prefix: u8 = prefix.parse().ok()?;
        let (bits, value) = match ip {
            IpAddr::V4(ip) => (32_u32, u128::from(ip.to_bits())),
            IpAddr::V6(ip) => (128, ip.to_bits()),
        };
        let host_bits = bits.checked_sub(prefix.into())?;
        let hosts = u128::MAX
            .checked_shr(128_u32.checked_sub(host_bits)?)
            .unwrap_or(0);
        let subnet = Self {
            base: value & !hosts,
            prefix,
            is_v4: ip.is_ipv4(),
        };
        (host_bits > 1).then_some(subnet)
    }

    /// Offset behind the last address that is lent. The last address of an IPv4 subnet is its broadcast address.
    fn end_offset(&self) -> u128 {
        let bits = if self.is_v4 { 32 } else { 128 };
        let hosts = 1_u128.checked_shl(bits - u32::from(self.prefix));
        hosts.map_or(MAX_ADDRESSES, |h| h.min(MAX_ADDRESSES)) - u128::from(self.is_v4)
    }

    fn address_at(&self, offset: u128) -> IpAddr {
        let value = self.base + offset;
        match u32::try_from(value) {
            Ok(bits) if self.is_v4 => Ipv4Addr::from_bits(bits).into(),
            _ => Ipv6Addr::from_bits(value).into(),
        }
    }

    fn address_offset(&self, ip: IpAddr) -> Option<u128> {
        let value = match ip {
            IpAddr::V4(ip) if self.is_v4 => u128::from(ip.to_bits()),
            IpAddr::V6(ip) if !self.is_v4 => ip.to_bits(),
            _ => return None,
        };
        let offset = value.checked_sub(self.base)?;
        (offset < self.end_offset()).then_some(offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lend(pool: &mut AddressPool, subnets: &[&str]) -> Result<String, CniError> {
        let subnets: Vec<String> = subnets.iter().map(|s| (*s).to_owned()).collect();
        let leases = pool.lend_addresses(&subnets)?;
        let words = leases
            .iter()
            .map(|l| format!("{}/{} by {}", l.address, l.prefix, l.gateway));
        Ok(words.collect::<Vec<_>>().join(", "))
    }

    #[test]
    fn one_after_the_other() {
        let mut pool = AddressPool::default();
        let small = ["10.1.2.128/29"];
        for last in 130..=134 {
            let got = lend(&mut pool, &small).expect("free");
            assert_eq!(got, format!("10.1.2.{last}/29 by 10.1.2.129"));
        }
        let full = lend(&mut pool, &small).expect_err("full");
        assert_eq!(
            full.to_string(),
            "all addresses of subnet 10.1.2.128/29 are in use by pods"
        );
        for back in ["10.1.2.131", "10.1.2.133"] {
            pool.give_back_address(back.parse().expect("ip"));
        }
        for again in [131, 133] {
            let got = lend(&mut pool, &small).expect("free");
            assert_eq!(got, format!("10.1.2.{again}/29 by 10.1.2.129"));
        }
    }

    #[test]
    fn late_again_and_after_a_start() {
        let mut pool = AddressPool::default();
        let net = ["10.0.0.0/16"];
        assert!(
            lend(&mut pool, &net)
                .expect("free")
                .starts_with("10.0.0.2/")
        );
        pool.give_back_address("10.0.0.2".parse().expect("ip"));
        assert!(
            lend(&mut pool, &net)
                .expect("free")
                .starts_with("10.0.0.3/")
        );
        let mut pool = AddressPool::default();
        for ip in ["10.0.0.9", "10.0.1.7", "10.7.0.9", "fd00::99"] {
            pool.mark_lent(ip.parse().expect("ip"));
        }
        assert!(
            lend(&mut pool, &net)
                .expect("free")
                .starts_with("10.0.1.8/")
        );
    }

    #[test]
    fn gateways() {
        for (subnet, expected) in [
            ("10.2.3.0/24", Some("10.2.3.1")),
            ("10.2.3.9/24", Some("10.2.3.1")),
            ("10.2.3.4/32", None),
            ("fd00::/64", None),
            ("x", None),
        ] {
            let ip = subnet_gateway(subnet).map(|(ip, _)| ip.to_string());
            assert_eq!(ip.as_deref(), expected, "{subnet}");
            // The same gateway is given to pods.
            if let Some(expected) = expected {
                let got = lend(&mut AddressPool::default(), &[subnet]).expect("free");
                assert!(got.ends_with(&format!("by {expected}")), "{got}");
            }
        }
    }

    #[test]
    fn both_families_or_none() {
        let mut pool = AddressPool::default();
        let both = ["10.1.0.0/30", "fd00:88::/64"];
        assert_eq!(
            lend(&mut pool, &both).expect("free"),
            "10.1.0.2/30 by 10.1.0.1, fd00:88::2/64 by fd00:88::1"
        );
        let turned = ["fd00:88::/64", "10.1.0.0/30"];
        lend(&mut pool, &turned).expect_err("no IPv4 address is left");
        assert_eq!(pool.lent.len(), 2, "what was taken before is given back");
    }

    #[test]
    fn subnets() {
        for (text, end) in [
            ("10.0.0.0/8", Some(0x00ff_ffff)),
            ("10.1.2.3/24", Some(255)),
            ("0.0.0.0/0", Some(0xffff_ffff)),
            ("10.0.0.0/30", Some(3)),
            ("10.0.0.0/31", None),
            ("10.0.0.0/32", None),
            ("10.0.0.0/33", None),
            ("fd00::/126", Some(4)),
            ("fd00::/64", Some(MAX_ADDRESSES)),
            ("::/0", Some(MAX_ADDRESSES)),
            ("fd00::/129", None),
            ("10.0.0.0", None),
            ("x/24", None),
        ] {
            let subnet = LeaseSubnet::parse(text);
            assert_eq!(subnet.map(|s| s.end_offset()), end, "{text}");
        }
        let mixed = LeaseSubnet::parse("10.1.2.3/24").map(|s| s.address_at(0));
        assert_eq!(mixed, Some("10.1.2.0".parse().expect("ip")));
    }
}
