//! The vxlan device of this node: kept if it fits, else made anew (FLAN-06).
//!
//! Source: flannel `pkg/backend/vxlan/device.go`, `ensureLink`.

use core::net::IpAddr;

use super::HardwareAddress;

/// Vxlan device that the network needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WantedDevice {
    /// Identifier of the network.
    pub vni: u32,
    /// Index of the interface that carries its packets.
    pub parent: u32,
    /// Address of this node from which they come.
    pub local: IpAddr,
    /// UDP port; 0: that of the kernel.
    pub port: u16,
    /// Largest packet, bytes.
    pub mtu: u32,
}

/// Device of that name as the kernel has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundDevice {
    /// Index of the device.
    pub index: u32,
    /// Set if it is a vxlan device with policies of groups (GBP).
    pub has_gbp: bool,
    /// Identifier of the network; `None`: it is no vxlan device.
    pub vni: Option<u32>,
    /// Index of its parent; 0: none.
    pub parent: u32,
    /// Local address, if it has one.
    pub local: Option<IpAddr>,
    /// UDP port.
    pub port: u16,
    /// Largest packet, bytes.
    pub mtu: u32,
    /// Set if it is up.
    pub is_up: bool,
    /// Hardware address of the device.
    pub mac: HardwareAddress,
}

/// Work on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceStep {
    /// There is none: it is made.
    Create,
    /// Deleted and made: properties differ that only a new device can have.
    Replace,
    /// It is kept. The MTU is set if it differs, and it is brought up if it is down.
    Keep {
        /// Set if the MTU differs.
        sets_mtu: bool,
        /// Set if it is down.
        brings_up: bool,
    },
}

impl DeviceStep {
    /// Compares the device that exists with the wanted one.
    #[must_use]
    pub fn choose(wanted: &WantedDevice, found: Option<&FoundDevice>) -> Self {
        let Some(found) = found else {
            return Self::Create;
        };
        let fits = found.vni == Some(wanted.vni)
            && found.parent == wanted.parent
            && found.local == Some(wanted.local)
            && (wanted.port == 0 || found.port == wanted.port)
            && !found.has_gbp;
        if !fits {
            return Self::Replace;
        }
        Self::Keep {
            sets_mtu: found.mtu != wanted.mtu,
            brings_up: !found.is_up,
        }
    }
}

/// Chooses the hardware address of a new device: that of the one it replaces, so that others need not learn another,
/// else the one that the own Node announces, else a random one.
#[must_use]
pub fn choose_mac(
    replaced: Option<&FoundDevice>,
    announced: Option<HardwareAddress>,
    random: [u8; 6],
) -> HardwareAddress {
    let replaced = replaced.filter(|found| found.vni.is_some());
    let replaced = replaced.map(|found| found.mac);
    announced
        .or(replaced)
        .unwrap_or_else(|| HardwareAddress::from_random(random))
}

/// Chooses the address from which this node sends to others: the one in use (`used`), as long as the interface has it,
/// else the first. The kernel lists IPv6 addresses in another order whenever one was renewed.
#[must_use]
pub fn choose_local(addresses: &[IpAddr], is_v6: bool, used: Option<IpAddr>) -> Option<IpAddr> {
    let mut usable = addresses.iter().filter(|ip| ip.is_ipv6() == is_v6);
    let used = usable.clone().find(|ip| Some(**ip) == used);
    used.or_else(|| usable.next()).copied()
}

/// Lists the addresses of the device that are to be removed: those of the network other than its own (FLAN-06).
#[must_use]
pub fn foreign_addresses(
    network: crate::node::Cidr,
    own: IpAddr,
    found: &[(IpAddr, u8)],
) -> alloc::vec::Vec<(IpAddr, u8)> {
    let full = if own.is_ipv4() { 32 } else { 128 };
    let found = found.iter().copied();
    found
        .filter(|&(ip, prefix)| super::ranges::contains(network, ip) && (ip, prefix) != (own, full))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_kept_if_they_fit() {
        // FLAN-06 FLAN-12
        let local = "192.0.2.7".parse().expect("an address");
        let wanted = WantedDevice {
            vni: 1,
            parent: 2,
            local,
            port: 0,
            mtu: 1450,
        };
        let found = FoundDevice {
            index: 9,
            has_gbp: false,
            vni: Some(1),
            parent: 2,
            local: Some(local),
            port: 8472,
            mtu: 1450,
            is_up: true,
            mac: HardwareAddress([2, 0, 0, 0, 0, 1]),
        };
        let keep = |sets_mtu, brings_up| DeviceStep::Keep {
            sets_mtu,
            brings_up,
        };
        assert_eq!(DeviceStep::choose(&wanted, None), DeviceStep::Create);
        let other = "192.0.2.8".parse().ok();
        for (name, device, step) in [
            ("as wanted", found, keep(false, false)),
            ("mtu", FoundDevice { mtu: 1400, ..found }, keep(true, false)),
            (
                "down",
                FoundDevice {
                    is_up: false,
                    ..found
                },
                keep(false, true),
            ),
            (
                "no vxlan",
                FoundDevice { vni: None, ..found },
                DeviceStep::Replace,
            ),
            (
                "network",
                FoundDevice {
                    vni: Some(2),
                    ..found
                },
                DeviceStep::Replace,
            ),
            (
                "parent",
                FoundDevice { parent: 3, ..found },
                DeviceStep::Replace,
            ),
            (
                "local",
                FoundDevice {
                    local: other,
                    ..found
                },
                DeviceStep::Replace,
            ),
            (
                "gbp",
                FoundDevice {
                    has_gbp: true,
                    ..found
                },
                DeviceStep::Replace,
            ),
        ] {
            assert_eq!(DeviceStep::choose(&wanted, Some(&device)), step, "{name}");
        }
        let port = WantedDevice {
            port: 4789,
            ..wanted
        };
        assert_eq!(DeviceStep::choose(&port, Some(&found)), DeviceStep::Replace);
    }

    #[test]
    fn hardware_addresses_stay() {
        // FLAN-06
        let mac = |last| HardwareAddress([2, 0, 0, 0, 0, last]);
        let found = |vni| FoundDevice {
            index: 9,
            has_gbp: false,
            vni,
            parent: 2,
            local: None,
            port: 8472,
            mtu: 1450,
            is_up: true,
            mac: mac(1),
        };
        assert_eq!(choose_mac(None, Some(mac(2)), [0; 6]), mac(2));
        assert_eq!(choose_mac(Some(&found(Some(1))), None, [0; 6]), mac(1));
        assert_eq!(choose_mac(Some(&found(None)), None, [0; 6]), mac(0));
        assert_eq!(choose_mac(None, None, [1; 6]).0, [2, 1, 1, 1, 1, 1]);
    }

    #[test]
    fn the_address_in_use_stays() {
        // FLAN-10
        let ip = |text: &str| text.parse::<IpAddr>().expect(text);
        let both = [ip("192.0.2.7"), ip("2001:db8::2"), ip("2001:db8::1")];
        for (is_v6, used, chosen) in [
            (true, None, Some("2001:db8::2")),
            (true, Some("2001:db8::1"), Some("2001:db8::1")),
            (true, Some("2001:db8::9"), Some("2001:db8::2")),
            (true, Some("192.0.2.7"), Some("2001:db8::2")),
            (false, Some("2001:db8::1"), Some("192.0.2.7")),
        ] {
            let found = choose_local(&both, is_v6, used.map(ip));
            assert_eq!(found, chosen.map(ip), "{used:?}");
        }
        assert_eq!(choose_local(&both[1..], false, None), None);
    }

    #[test]
    fn addresses_of_former_ranges_go() {
        // FLAN-06
        let ip = |text: &str| text.parse::<IpAddr>().expect(text);
        let network = "10.42.0.0/16".parse().expect("a range");
        let found = [
            (ip("10.42.3.0"), 32),
            (ip("10.42.9.0"), 32),
            (ip("10.42.3.0"), 24),
            (ip("192.0.2.1"), 24),
            (ip("fe80::1"), 64),
        ];
        assert_eq!(
            foreign_addresses(network, ip("10.42.3.0"), &found),
            [(ip("10.42.9.0"), 32), (ip("10.42.3.0"), 24)]
        );
    }
}
