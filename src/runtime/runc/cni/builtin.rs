//! The network of a machine on which nobody configured one: a bridge with addresses of a private subnet.

use std::{io, os::fd::AsRawFd, path::Path};

use nix::{
    libc,
    sys::socket::{
        AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto,
        socket,
    },
};
use serde_json::{Value, json};

use super::NetworkConfig;

/// Name of the built-in network.
const NAME: &str = "picolet";
/// Spoken by plugins since 0.8 (2019), so that old distributions' packages serve.
const VERSION: &str = "0.4.0";

/// What may be changed about the built-in network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuiltIn {
    /// Bridge interface, at most 15 bytes.
    pub bridge: String,
    /// Subnet of the pods, e.g. `10.88.0.0/16`; two for dual stack.
    pub subnets: Vec<String>,
    /// MTU; 0 leaves it to the kernel.
    pub mtu: u32,
}

/// The configuration. Leases lie in `leases`, which is gone at reboot as the interfaces are: a power cut leaks no address.
pub(super) fn config(built_in: &BuiltIn, leases: &Path) -> NetworkConfig {
    let ranges: Vec<Value> = built_in
        .subnets
        .iter()
        .map(|s| json!([{ "subnet": s }]))
        .collect();
    let mut routes: Vec<Value> = built_in
        .subnets
        .iter()
        .map(|s| json!({ "dst": if s.contains(':') { "::/0" } else { "0.0.0.0/0" } }))
        .collect();
    routes.dedup();
    let mut bridge = json!({
        "type": "bridge",
        "bridge": built_in.bridge,
        "isGateway": true,
        // One rule for the whole subnet instead of eight calls of iptables a pod: see `masquerade`.
        "ipMasq": false,
        // A pod reaches itself through its own hostPort.
        "hairpinMode": true,
        "ipam": {
            "type": "host-local",
            "dataDir": leases,
            "ranges": ranges,
            "routes": routes,
        },
    });
    if built_in.mtu > 0 {
        bridge["mtu"] = built_in.mtu.into();
    }
    // `snat` makes hostPorts reachable at 127.0.0.1 too.
    let portmap =
        json!({ "type": "portmap", "snat": true, "capabilities": { "portMappings": true } });
    let object = |v: Value| match v {
        Value::Object(map) => map,
        _ => serde_json::Map::new(),
    };
    NetworkConfig {
        // Two agents on one machine have two networks: plugins name iptables chains and leases after it.
        name: format!("{NAME}-{}", built_in.bridge),
        version: VERSION.into(),
        plugins: vec![object(bridge), object(portmap)],
        disable_check: false,
        disable_gc: false,
        built_in: true,
        file: Default::default(),
    }
}

/// Deletes the bridge. Absent counts as deleted.
///
/// Source: rtnetlink(7): one RTM_DELLINK request that names the interface, and its acknowledgement.
pub(super) fn remove_bridge(name: &str) -> io::Result<()> {
    const DELLINK: u16 = 17;
    const REQUEST_AND_ACK: u16 = 1 | 4;
    const NAME_ATTRIBUTE: u16 = 3;
    const NAME_LIMIT: usize = 15;
    const HEADER: usize = 16;
    const LINK: usize = 16;
    if name.is_empty() || name.len() > NAME_LIMIT {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let attribute = 4 + name.len() + 1;
    let padded = attribute.next_multiple_of(4);
    let length = u32::try_from(HEADER + LINK + padded).map_err(io::Error::other)?;
    let mut message = Vec::with_capacity(HEADER + LINK + padded);
    // struct nlmsghdr: length, type, flags, sequence, port
    message.extend(length.to_ne_bytes());
    message.extend(DELLINK.to_ne_bytes());
    message.extend(REQUEST_AND_ACK.to_ne_bytes());
    message.extend([0; 8]);
    // struct ifinfomsg, all zero: the name decides
    message.extend([0; LINK]);
    // struct rtattr: length, type; the name with its zero
    message.extend(
        u16::try_from(attribute)
            .map_err(io::Error::other)?
            .to_ne_bytes(),
    );
    message.extend(NAME_ATTRIBUTE.to_ne_bytes());
    message.extend(name.as_bytes());
    message.resize(HEADER + LINK + padded, 0);
    let fd = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::NetlinkRoute,
    )?;
    sendto(
        fd.as_raw_fd(),
        &message,
        &NetlinkAddr::new(0, 0),
        MsgFlags::empty(),
    )?;
    let mut answer = [0; 256];
    let got = recv(fd.as_raw_fd(), &mut answer, MsgFlags::empty())?;
    if got < HEADER + 4 {
        return Err(io::Error::other("rtnetlink gave no acknowledgement"));
    }
    // The negative errno follows the header.
    match i32::from_ne_bytes([answer[16], answer[17], answer[18], answer[19]]) {
        0 => Ok(()),
        code if code == -libc::ENODEV => Ok(()),
        code => Err(io::Error::from_raw_os_error(code.saturating_neg())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_a_bridge_with_portmap() {
        let built_in = BuiltIn {
            bridge: "pico0".into(),
            subnets: vec!["10.88.0.0/16".into(), "fd00:88::/64".into()],
            mtu: 1400,
        };
        let config = config(&built_in, Path::new("/run/p/cni/leases"));
        assert_eq!(config.programs(), ["bridge", "host-local", "portmap"]);
        let bridge = &config.plugins[0];
        assert_eq!(bridge["mtu"], 1400);
        assert_eq!(bridge["ipam"]["dataDir"], "/run/p/cni/leases");
        assert_eq!(bridge["ipam"]["ranges"][1][0]["subnet"], "fd00:88::/64");
        assert_eq!(bridge["ipam"]["routes"][1]["dst"], "::/0");
    }
}
