//! Effects in the kernel: the external interface, the vxlan device, and the entries for other nodes. All of it blocks for
//! some milliseconds, and longer while the kernel loads a module.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::io;

use nix::net::if_::if_indextoname;
use ring::rand::{SecureRandom as _, SystemRandom};

use crate::{
    api::route::RouteEntry,
    logic::{
        node::Cidr,
        pod_network::{
            HardwareAddress, PodNetworkBackend,
            device::{
                DeviceStep, FoundDevice, WantedDevice, choose_local, choose_mac, foreign_addresses,
            },
            entries::{EntryChange, EntryPlan, KernelEntries, is_own_route},
            ranges::is_host_address,
        },
    },
    sys::{
        namespaces,
        netlink::{
            self,
            pod_network::{
                EntryTable, LinkProperties, PermanentEntry, VxlanRequest, create_vxlan,
                delete_entry, delete_route, list_addresses, list_entries, list_routes,
                read_link_properties, set_entry, set_route,
            },
        },
    },
};

/// Addresses that no network has: the way to them is the way to everywhere else. Source: RFC 5737, RFC 3849.
const ELSEWHERE: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
];

/// Error of a step in the kernel.
#[derive(Debug, thiserror::Error)]
pub(super) enum PodNetworkError {
    /// The kernel has no vxlan.
    #[error("the kernel has no module vxlan")]
    NoVxlan,
    /// There is no way out of this machine.
    #[error("there is no default route: waiting for one, or for picolet.podNetwork.interface")]
    NoDefaultRoute,
    /// The named interface does not exist.
    #[error("there is no interface {0}: waiting for it")]
    NoInterface(String),
    /// The interface has no address of a family.
    #[error("interface {0} has no {1} address that other nodes can reach: waiting for one")]
    NoAddress(String, &'static str),
    /// The own Node, which may have the device's hardware address, is not known.
    #[error("waiting for the Node object of this node: without it {0} is not made")]
    NoOwnNode(&'static str),
    /// An interface of the device's name belongs to another program.
    #[error("interface {0} exists and is no vxlan device")]
    ForeignDevice(&'static str),
    /// The kernel refuses.
    #[error("{step}")]
    Kernel {
        /// Step that failed.
        step: String,
        /// The kernel's error.
        source: io::Error,
    },
}

fn error_at(step: impl Into<String>) -> impl FnOnce(io::Error) -> PodNetworkError {
    let step = step.into();
    move |source| PodNetworkError::Kernel { step, source }
}

/// Interface by which packets to other nodes leave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ExternalInterface {
    pub(super) name: String,
    pub(super) index: u32,
    pub(super) mtu: u32,
    /// Addresses that other machines can reach, in the kernel's order.
    pub(super) addresses: Vec<IpAddr>,
}

impl ExternalInterface {
    /// Address of a family from which this node sends: `used`, if the interface has it, else the first.
    pub(super) fn choose_local(
        &self,
        is_v6: bool,
        used: Option<IpAddr>,
    ) -> Result<IpAddr, PodNetworkError> {
        let family = if is_v6 { "IPv6" } else { "IPv4" };
        choose_local(&self.addresses, is_v6, used)
            .ok_or_else(|| PodNetworkError::NoAddress(self.name.clone(), family))
    }
}

/// Finds the external interface: the named one, else that of the default route, of IPv4 first (FLAN-10).
pub(super) fn find_external_interface(
    named: Option<&str>,
) -> Result<ExternalInterface, PodNetworkError> {
    let name = match named {
        Some(name) => name.to_owned(),
        None => {
            let [v4, v6] = ELSEWHERE.map(netlink::route_interface_to);
            let index = v4.or(v6).map_err(|_| PodNetworkError::NoDefaultRoute)?;
            let name = if_indextoname(index).map_err(|_| PodNetworkError::NoDefaultRoute)?;
            name.to_string_lossy().into_owned()
        }
    };
    let found = read_link_properties(&name).map_err(error_at(format!("look at {name}")))?;
    let Some(link) = found else {
        return Err(PodNetworkError::NoInterface(name));
    };
    let addresses = list_addresses(link.index, false)
        .map_err(error_at(format!("list the addresses of {name}")))?;
    let addresses = addresses.into_iter().map(|(ip, _)| ip);
    Ok(ExternalInterface {
        index: link.index,
        mtu: link.mtu,
        addresses: addresses.filter(|ip| is_host_address(*ip)).collect(),
        name,
    })
}

/// Vxlan device as it is to be.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeviceRequest {
    pub(super) name: &'static str,
    pub(super) wanted: WantedDevice,
    /// Hardware address that the own Node announces.
    pub(super) announced: Option<HardwareAddress>,
    /// Range of all pods, and the device's address in it.
    pub(super) network: Cidr,
    pub(super) address: IpAddr,
}

fn found_device(link: &LinkProperties) -> FoundDevice {
    let vxlan = link.vxlan.unwrap_or_default();
    FoundDevice {
        index: link.index,
        has_gbp: vxlan.has_gbp,
        vni: link.vxlan.map(|vxlan| vxlan.vni),
        parent: vxlan.parent,
        local: vxlan.local,
        port: vxlan.port,
        mtu: link.mtu,
        is_up: link.is_up,
        mac: HardwareAddress(link.mac.first_chunk().copied().unwrap_or_default()),
    }
}

/// Looks at the device of that name.
pub(super) fn read_device(name: &str) -> Result<Option<FoundDevice>, PodNetworkError> {
    let link = read_link_properties(name).map_err(error_at(format!("look at {name}")))?;
    Ok(link.as_ref().map(found_device))
}

/// Makes the device as it is to be. One that fits is kept, with its entries and hardware address (FLAN-06). With
/// `may_create` false none is made if there is none. Calls `announce` before one is made, and sets `is_made` once it is,
/// whatever fails then.
pub(super) fn keep_device(
    request: &DeviceRequest,
    may_create: bool,
    announce: &mut dyn FnMut(),
    is_made: &mut bool,
) -> Result<FoundDevice, PodNetworkError> {
    let (name, wanted) = (request.name, &request.wanted);
    let gone = || error_at(format!("look at {name}"))(io::ErrorKind::NotFound.into());
    let found = read_device(name)?;
    if found.is_some_and(|found| found.vni.is_none()) {
        return Err(PodNetworkError::ForeignDevice(name));
    }
    if found.is_none() && !may_create {
        return Err(PodNetworkError::NoOwnNode(name));
    }
    match DeviceStep::choose(wanted, found.as_ref()) {
        DeviceStep::Keep {
            sets_mtu,
            brings_up,
        } => {
            let found = found.ok_or_else(gone)?;
            if sets_mtu {
                netlink::set_mtu(found.index, wanted.mtu)
                    .map_err(error_at(format!("set the MTU of {name}")))?;
            }
            set_addresses(request, found.index)?;
            if brings_up {
                bring_up(name, found.index)?;
            }
        }
        step => {
            announce();
            if step == DeviceStep::Replace {
                log::info!("{name} does not fit: it is made anew");
                delete_device(name)?;
            }
            let mut random = [0; 6];
            // The kernel's source does not fail.
            let _ = SystemRandom::new().fill(&mut random);
            let mac = choose_mac(found.as_ref(), request.announced, random);
            let made = create_vxlan(&VxlanRequest {
                name,
                vni: wanted.vni,
                parent: wanted.parent,
                local: wanted.local,
                port: wanted.port,
                mtu: wanted.mtu,
                mac: mac.0,
            });
            made.map_err(|e| match e.raw_os_error() {
                Some(libc::EOPNOTSUPP) => PodNetworkError::NoVxlan,
                _ => error_at(format!("create {name}"))(e),
            })?;
            *is_made = true;
            // Absent where the kernel has no IPv6.
            let _ = namespaces::set_sysctl(&format!("net/ipv6/conf/{name}/accept_ra"), "0");
            let index = read_device(name)?.ok_or_else(gone)?.index;
            set_addresses(request, index)?;
            bring_up(name, index)?;
            log::info!("made {name} at {} with {mac}", wanted.local);
        }
    }
    read_device(name)?.ok_or_else(gone)
}

fn bring_up(name: &str, index: u32) -> Result<(), PodNetworkError> {
    netlink::bring_link_up(index).map_err(error_at(format!("bring {name} up")))
}

fn set_addresses(request: &DeviceRequest, index: u32) -> Result<(), PodNetworkError> {
    let (name, own) = (request.name, request.address);
    let listed = list_addresses(index, true);
    let listed = listed.map_err(error_at(format!("list the addresses of {name}")))?;
    for address in foreign_addresses(request.network, own, &listed) {
        netlink::remove_address(index, address)
            .map_err(error_at(format!("remove {} from {name}", address.0)))?;
    }
    let full = if own.is_ipv4() { 32 } else { 128 };
    if listed.contains(&(own, full)) {
        return Ok(());
    }
    netlink::add_address(index, (own, full)).map_err(error_at(format!("add {own} to {name}")))
}

/// Index of the vxlan device of that name in flannel's network; 0: there is none.
pub(super) fn find_vxlan_index(name: &str) -> u32 {
    let found = read_device(name).ok().flatten();
    let found = found.filter(|device| device.vni == Some(super::VNI));
    found.map_or(0, |device| device.index)
}

/// Deletes a device. Absent counts as deleted.
pub(super) fn delete_device(name: &str) -> Result<(), PodNetworkError> {
    netlink::delete_link(name).map_err(error_at(format!("delete {name}")))
}

/// Reads the entries of one family. `device`: index of the vxlan device, 0 if the backend has none.
pub(super) fn read_entries(device: u32, is_v6: bool) -> Result<KernelEntries, PodNetworkError> {
    let list = |table| match device {
        0 => Ok(Vec::new()),
        _ => list_entries(table, device, is_v6),
    };
    let neighbours = list(EntryTable::Neighbours).map_err(error_at("list neighbours"))?;
    let forwarding = list(EntryTable::Forwarding).map_err(error_at("list forwarding entries"))?;
    let is_own = |route: &RouteEntry| is_own_route(route, device);
    let neighbours = neighbours.iter();
    let forwarding = forwarding.iter();
    Ok(KernelEntries {
        neighbours: neighbours.map(|e| (e.ip, HardwareAddress(e.mac))).collect(),
        forwarding: forwarding.map(|e| (HardwareAddress(e.mac), e.ip)).collect(),
        routes: list_routes(is_v6, &is_own).map_err(error_at("list routes"))?,
    })
}

/// Result of a plan that was carried out.
#[derive(Debug, Default)]
pub(super) struct AppliedPlan {
    pub(super) changed: u64,
    pub(super) deleted: u64,
    /// Nodes that were not made reachable, by their place in the list, and the reason.
    pub(super) failed: Vec<(usize, String)>,
    /// Entries that were not deleted.
    pub(super) undeleted: Vec<String>,
}

/// Carries out a plan. An entry that the kernel refuses ends the work on its node alone.
pub(super) fn apply_plan(plan: &EntryPlan, device: u32, backend: PodNetworkBackend) -> AppliedPlan {
    let mut applied = AppliedPlan::default();
    for (node, change) in &plan.sets {
        if applied.failed.iter().any(|(failed, _)| failed == node) {
            continue;
        }
        match apply_change(change, device) {
            Ok(()) => applied.changed += 1,
            Err(e) => {
                let far = backend == PodNetworkBackend::HostGateway
                    && matches!(
                        e.raw_os_error(),
                        Some(libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EINVAL)
                    );
                let why = match far {
                    true => "it is not on the same link, which host-gw needs".into(),
                    false => format!("{}: {e}", change_name(change)),
                };
                applied.failed.push((*node, why));
            }
        }
    }
    for change in &plan.deletions {
        match apply_change(change, device) {
            Ok(()) => applied.deleted += 1,
            Err(e) => applied
                .undeleted
                .push(format!("{}: {e}", change_name(change))),
        }
    }
    applied
}

fn change_name(change: &EntryChange) -> String {
    match change {
        EntryChange::SetNeighbour(ip, _) => format!("set neighbour {ip}"),
        EntryChange::SetForwarding(mac, _) => format!("set forwarding entry {mac}"),
        EntryChange::SetRoute(route) => format!("set route {}/{}", route.address, route.prefix),
        EntryChange::DeleteRoute(route) => {
            format!("delete route {}/{}", route.address, route.prefix)
        }
        EntryChange::DeleteForwarding(mac, _) => format!("delete forwarding entry {mac}"),
        EntryChange::DeleteNeighbour(ip) => format!("delete neighbour {ip}"),
    }
}

fn apply_change(change: &EntryChange, device: u32) -> io::Result<()> {
    let entry = |ip, mac: HardwareAddress| PermanentEntry { ip, mac: mac.0 };
    match *change {
        EntryChange::SetNeighbour(ip, mac) => {
            set_entry(EntryTable::Neighbours, device, entry(ip, mac))
        }
        EntryChange::SetForwarding(mac, ip) => {
            set_entry(EntryTable::Forwarding, device, entry(ip, mac))
        }
        EntryChange::SetRoute(route) => set_route(&route),
        EntryChange::DeleteRoute(route) => delete_route(&route),
        EntryChange::DeleteForwarding(mac, ip) => {
            delete_entry(EntryTable::Forwarding, device, entry(ip, mac))
        }
        EntryChange::DeleteNeighbour(ip) => {
            let any = HardwareAddress::default();
            delete_entry(EntryTable::Neighbours, device, entry(ip, any))
        }
    }
}
