//! The built-in network's own plugin: a pair of interfaces, one in the pod, the other a port of a bridge whose address is the
//! pod's gateway. It does what `bridge` with `host-local` would, without starting two programs for every pod and its end.
//!
//! Source: containernetworking-plugins `plugins/main/bridge`; veth(4); `Documentation/networking/ip-sysctl.rst` of Linux for
//! `arp_notify`.

use core::net::IpAddr;
use std::{fs::File, io, os::fd::AsFd, path::Path};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{CniError, INTERFACE};
use crate::{
    api::SandboxId,
    sys::{
        namespaces,
        netlink::{self, InterfaceAddress, NetworkLink},
    },
};

/// Type of this plugin in a network configuration.
pub(super) const TYPE: &str = "picolet-bridge";
/// Prefix of the interface's name on the host's side; as much of the sandbox's id follows as a name may have.
const PREFIX: &str = "veth";
/// Bytes of an interface's name.
const NAME_LIMIT: usize = 15;

/// An address that a pod has for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AddressLease {
    pub(super) address: IpAddr,
    /// Length of the subnet's prefix.
    pub(super) prefix: u8,
    pub(super) gateway: IpAddr,
}

/// Attachment of a pod: all that is needed to make it, and to undo it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct BridgeAttachment {
    pub(super) bridge: String,
    pub(super) mtu: u32,
    pub(super) leases: Vec<AddressLease>,
}

fn bridge_error_at(step: impl Into<String>) -> impl FnOnce(io::Error) -> CniError {
    let step = step.into();
    move |source| CniError::Bridge { step, source }
}

impl BridgeAttachment {
    /// Writes it as a plugin of an attachment.
    pub(super) fn to_plugin(&self) -> Map<String, Value> {
        let mut map = match serde_json::to_value(self) {
            Ok(Value::Object(map)) => map,
            _ => Map::new(),
        };
        map.insert("type".into(), TYPE.into());
        map
    }

    pub(super) fn from_plugin(plugin: &Map<String, Value>) -> Result<Self, serde_json::Error> {
        serde_json::from_value(Value::Object(plugin.clone()))
    }

    /// Attaches a pod and returns a plugin's answer. **The calling thread stays in the pod's network namespace**: call
    /// it on one that ends afterwards. After an error, [`detach_pod`] undoes the steps done so far.
    pub(super) fn attach_pod(
        &self,
        id: &SandboxId,
        version: &str,
        netns: &Path,
    ) -> Result<Value, CniError> {
        let namespace = File::open(netns).map_err(bridge_error_at(format!(
            "open the namespace {}",
            netns.display()
        )))?;
        let bridge = self.make_bridge()?;
        let host = host_interface_name(id);
        let pair =
            || netlink::create_veth_pair(&host, INTERFACE, self.mtu, bridge, namespace.as_fd());
        pair()
            .or_else(|e| match e.raw_os_error() {
                // Half an attachment, left by a killed agent.
                Some(libc::EEXIST) => netlink::delete_link(&host).and_then(|()| pair()),
                _ => Err(e),
            })
            .map_err(bridge_error_at(format!("create {host} and {INTERFACE}")))?;
        let port = find_interface(&host)?.index;
        netlink::enable_hairpin(port)
            .map_err(bridge_error_at(format!("set hairpin mode of {host}")))?;
        drop(namespace);
        namespaces::join_namespace(netns).map_err(bridge_error_at("join the pod's namespace"))?;
        self.configure_pod_interface()?;
        Ok(self.build_cni_result(&host, version, netns))
    }

    /// Makes the missing parts of the bridge; returns its index.
    fn make_bridge(&self) -> Result<u32, CniError> {
        let name = &self.bridge;
        let made = match netlink::create_bridge(name, self.mtu) {
            Ok(()) => true,
            Err(e) if e.raw_os_error() == Some(libc::EEXIST) => false,
            Err(e) => return Err(bridge_error_at(format!("create bridge {name}"))(e)),
        };
        let found = find_interface(name)?;
        if found.kind != "bridge" {
            let why = io::Error::other("an interface of this name exists and is not a bridge");
            return Err(bridge_error_at(format!("use {name}"))(why));
        }
        let bridge = found.index;
        if made {
            // If it is not set, it is the lowest address of the ports, and changes when they come and go.
            netlink::set_hardware_address(bridge, &found.hardware_address).map_err(
                bridge_error_at(format!("set the hardware address of {name}")),
            )?;
            // Absent where the kernel has no IPv6.
            let _ = namespaces::set_sysctl(&format!("net/ipv6/conf/{name}/accept_ra"), "0");
        }
        if !made && self.mtu > 0 {
            // The way between nodes may carry other packets than before: pods that are there keep what they have.
            netlink::set_mtu(bridge, self.mtu)
                .map_err(bridge_error_at(format!("set the MTU of {name}")))?;
        }
        netlink::bring_link_up(bridge).map_err(bridge_error_at(format!("bring {name} up")))?;
        for lease in &self.leases {
            netlink::add_address(bridge, (lease.gateway, lease.prefix))
                .map_err(bridge_error_at(format!("add {} to {name}", lease.gateway)))?;
            let forward = match lease.gateway {
                IpAddr::V4(_) => "net/ipv4/ip_forward",
                IpAddr::V6(_) => "net/ipv6/conf/all/forwarding",
            };
            namespaces::set_sysctl(forward, "1")
                .map_err(bridge_error_at(format!("set {forward}")))?;
        }
        Ok(bridge)
    }

    /// Sets up the inside of the pod: addresses, then up, then the default route.
    fn configure_pod_interface(&self) -> Result<(), CniError> {
        let set = |family: &str, key: &str, value: &str| {
            namespaces::set_sysctl(&format!("net/{family}/conf/{INTERFACE}/{key}"), value)
        };
        let interface = find_interface(INTERFACE)?.index;
        // Neighbours may remember the former owner of the address: the kernel tells them when the interface comes up.
        set("ipv4", "arp_notify", "1").map_err(bridge_error_at("set arp_notify"))?;
        if self.leases.iter().any(|l| l.address.is_ipv6()) {
            set("ipv6", "disable_ipv6", "0").map_err(bridge_error_at("enable IPv6"))?;
        }
        for lease in &self.leases {
            let address: InterfaceAddress = (lease.address, lease.prefix);
            netlink::add_address(interface, address).map_err(bridge_error_at(format!(
                "add {} to {INTERFACE}",
                lease.address
            )))?;
        }
        netlink::bring_link_up(interface)
            .map_err(bridge_error_at(format!("bring {INTERFACE} up")))?;
        for lease in &self.leases {
            netlink::add_default_route(interface, lease.gateway).map_err(bridge_error_at(
                format!("add the route by {}", lease.gateway),
            ))?;
        }
        Ok(())
    }

    /// Source: CNI specification 0.4.0, "Result".
    fn build_cni_result(&self, host: &str, version: &str, netns: &Path) -> Value {
        let ips: Vec<Value> = self
            .leases
            .iter()
            .map(|l| {
                json!({
                    "version": if l.address.is_ipv4() { "4" } else { "6" },
                    "interface": 2,
                    "address": format!("{}/{}", l.address, l.prefix),
                    "gateway": l.gateway,
                })
            })
            .collect();
        json!({
            "cniVersion": version,
            "interfaces": [
                { "name": self.bridge },
                { "name": host },
                { "name": INTERFACE, "sandbox": netns },
            ],
            "ips": ips,
            "dns": {},
        })
    }

    /// Checks that the host's side is as it was made. The pod's side may be changed by the pod.
    pub(super) fn check_host_side(&self, id: &SandboxId) -> Result<(), CniError> {
        let host = host_interface_name(id);
        let (found, bridge) = (find_interface(&host)?, find_interface(&self.bridge)?);
        if found.master == bridge.index {
            return Ok(());
        }
        let why = io::Error::other("it is a port of another bridge, or of none");
        Err(bridge_error_at(format!(
            "find {host} at bridge {}",
            self.bridge
        ))(why))
    }
}

/// Detaches a pod: the interface of the pod goes with the other of the pair. Absent counts as done.
pub(super) fn detach_pod(id: &SandboxId) -> Result<(), CniError> {
    let host = host_interface_name(id);
    netlink::delete_link(&host).map_err(bridge_error_at(format!("delete interface {host}")))
}

fn host_interface_name(id: &SandboxId) -> String {
    let letters = id.as_str().chars().filter(char::is_ascii_alphanumeric);
    PREFIX.chars().chain(letters).take(NAME_LIMIT).collect()
}

fn find_interface(interface: &str) -> Result<NetworkLink, CniError> {
    netlink::find_link(interface).map_err(bridge_error_at(format!("find interface {interface}")))
}

#[cfg(test)]
mod tests {
    use std::{fs, net::UdpSocket, path::PathBuf, thread};

    use nix::{
        mount::{MsFlags, mount},
        sched::{CloneFlags, unshare},
    };

    use super::*;

    fn lease(address: &str, prefix: u8, gateway: &str) -> AddressLease {
        AddressLease {
            address: address.parse().expect("address"),
            prefix,
            gateway: gateway.parse().expect("gateway"),
        }
    }

    /// Two leases, of IPv4 and of IPv6.
    fn attach(last: u8) -> BridgeAttachment {
        BridgeAttachment {
            bridge: "pico7".into(),
            mtu: 1400,
            leases: vec![
                lease(&format!("10.77.0.{last}"), 24, "10.77.0.1"),
                lease(&format!("fd00:77::{last}"), 64, "fd00:77::1"),
            ],
        }
    }

    /// A machine of the test's own: the calling thread, and those that it starts, have their own interfaces.
    fn own_machine() {
        unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS).expect("namespaces");
        let none = None::<&str>;
        let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
        mount(none, "/", none, private, none).expect("private mounts");
        mount(Some("sysfs"), "/sys", Some("sysfs"), MsFlags::empty(), none).expect("sysfs");
    }

    fn on_thread<T: Send + 'static>(job: impl FnOnce() -> T + Send + 'static) -> T {
        thread::spawn(job).join().expect("thread")
    }

    fn pod(dir: &Path, name: &str) -> PathBuf {
        let net = dir.join(name);
        let sandbox = namespaces::SandboxNamespaces {
            net: Some(net.clone()),
            ..namespaces::SandboxNamespaces::default()
        };
        on_thread(move || namespaces::create_namespaces(&sandbox, None)).expect("pod");
        net
    }

    /// Sends a datagram from a pod to an address of another, or of the machine, and returns where it came from.
    fn send(from: &Path, to: Option<&Path>, address: &str) -> IpAddr {
        let (from, to) = (from.to_owned(), to.map(Path::to_owned));
        let any = if address.contains(':') {
            "[::]:0"
        } else {
            "0.0.0.0:0"
        };
        let address: IpAddr = address.parse().expect("address");
        let receiver = on_thread(move || {
            if let Some(to) = to {
                namespaces::join_namespace(&to).expect("join");
            }
            UdpSocket::bind((address, 0)).expect("an address of its own")
        });
        let target = receiver.local_addr().expect("bound");
        let limit = core::time::Duration::from_millis(100);
        receiver.set_read_timeout(Some(limit)).expect("limit");
        // The kernel makes the route of a new IPv6 address a moment after the address: packets before that are lost.
        let arrived = (0..100).find_map(|_| {
            let from = from.clone();
            on_thread(move || {
                namespaces::join_namespace(&from).expect("join");
                let sender = UdpSocket::bind(any).expect("socket");
                sender.send_to(b"x", target).expect("a way");
            });
            receiver.recv_from(&mut [0; 1]).ok()
        });
        arrived.expect("arrived").1.ip()
    }

    #[test]
    fn pods_reach_each_other() {
        if !nix::unistd::geteuid().is_root() {
            skipped!("the built-in bridge: it needs root");
            return;
        }
        on_thread(|| {
            own_machine();
            let dir = crate::testing::unused_path("bridge");
            fs::create_dir_all(&dir).expect("dir");
            let (a, b) = (pod(&dir, "a"), pod(&dir, "b"));
            let (id_a, id_b) = (SandboxId::new("aaaa"), SandboxId::new("bbbb"));
            let add = |attach: BridgeAttachment, id: &SandboxId, netns: &Path| {
                let (id, netns) = (id.clone(), netns.to_owned());
                on_thread(move || attach.attach_pod(&id, "0.4.0", &netns))
            };
            let answer = add(attach(2), &id_a, &a).expect("attached");
            let ips = super::super::result::parse_pod_ips(&answer);
            let leased: Vec<IpAddr> = attach(2).leases.iter().map(|l| l.address).collect();
            assert_eq!(ips, leased);
            add(attach(3), &id_b, &b).expect("attached");
            for (target, source) in [("10.77.0.3", "10.77.0.2"), ("fd00:77::3", "fd00:77::2")] {
                let source: IpAddr = source.parse().expect("address");
                assert_eq!(send(&a, Some(&b), target), source, "{target}");
            }
            // And the rest of the world by way of the gateway.
            let lo = netlink::find_link("lo").expect("lo").index;
            netlink::bring_link_up(lo).expect("up");
            for (target, prefix, source) in [
                ("10.99.0.1", 32, "10.77.0.2"),
                ("fd00:99::1", 128, "fd00:77::2"),
            ] {
                let ip = target.parse().expect("address");
                netlink::add_address(lo, (ip, prefix)).expect("added");
                let source: IpAddr = source.parse().expect("address");
                assert_eq!(send(&a, None, target), source, "{target}");
            }
            // A pod reaches itself by way of the bridge when a rule sends it back: the port has to allow it.
            let hairpin = "/sys/class/net/vethaaaa/brport/hairpin_mode";
            assert_eq!(fs::read_to_string(hairpin).expect("port").trim(), "1");
            let mtu = fs::read_to_string("/sys/class/net/vethaaaa/mtu").expect("mtu");
            assert_eq!(mtu.trim(), "1400");
            let address = || fs::read_to_string("/sys/class/net/pico7/address").expect("address");
            let before = address();
            attach(2).check_host_side(&id_a).expect("as made");

            // Half an attachment does not hinder a new one.
            let c = pod(&dir, "c");
            add(attach(4), &id_a, &c).expect("the former interface is replaced");
            detach_pod(&id_a).expect("detached");
            detach_pod(&id_a).expect("again");
            attach(4).check_host_side(&id_a).expect_err("gone");
            detach_pod(&id_b).expect("detached");
            assert_eq!(address(), before, "the bridge's address is its own");

            let other = BridgeAttachment {
                bridge: "lo".into(),
                ..attach(2)
            };
            let fault = add(other, &id_a, &a).expect_err("lo is no bridge");
            assert!(
                matches!(&fault, CniError::Bridge { step, .. } if step == "use lo"),
                "{fault}"
            );
            for name in ["a", "b", "c"] {
                let sandbox = namespaces::SandboxNamespaces {
                    net: Some(dir.join(name)),
                    ..namespaces::SandboxNamespaces::default()
                };
                namespaces::unpin_namespaces(&sandbox).expect("removed");
            }
            fs::remove_dir_all(&dir).expect("dir");
        });
    }
}
