//! Keeper of the network: makes device, entries and rules as they are to be, at each change and each minute, and tells the
//! cluster where this node is.

use alloc::rc::Rc;
use core::{future::pending, net::IpAddr, time::Duration};
use std::{collections::BTreeSet, fs, io, os::fd::OwnedFd, path::Path};

use async_io::Async;
use serde_json::Value;
use smol::future::FutureExt as _;

use super::{
    KERNEL_PORT, VNI, device_name, firewall,
    kernel::{self, DeviceRequest, ExternalInterface, PodNetworkError},
    shared::PodNetworkShared,
};
use crate::{
    agent::{clock::align_to_second, recorder::EventSeverity},
    api::{MonoTime, Node},
    error::error_chain,
    logic::{
        node::Cidr,
        pod_network::{
            HardwareAddress, PodNetworkBackend,
            announcement::{
                NodePlace, OwnAnnouncement, announced_address, announced_ip, announced_mac,
            },
            choice::{ChosenNetwork, NetworkChoice, choose_network, own_families},
            device::WantedDevice,
            entries::EntryPlan,
            health::PodNetworkHealth,
            look::node_ranges,
            mark::FILE,
            peers::OwnPlace,
            rules::{is_port_open, table_rules},
            subnet_env::format_subnet_file,
        },
    },
    runtime::runc::cni::{SpanningSettings, exempt_ranges},
    sys::{
        file,
        netlink::pod_network::{drain_change_monitor, open_change_monitor},
    },
};

/// Time between two looks at device, entries and rules if nothing says that they changed.
const LOOK: Duration = Duration::from_secs(60);
/// Time that changes of the kernel gather before they are looked at.
const SETTLE: Duration = Duration::from_secs(2);
/// First and longest pause before the next try while the network is not ready.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(15);
/// Time after which a patch of the own Node that is still not seen there is sent again.
const PATCH_AGAIN: Duration = Duration::from_secs(60);
const FILE_MODE: u32 = 0o644;

/// Network in one family.
#[derive(Clone, Copy)]
struct FamilyNetwork {
    own: Cidr,
    /// Own address on the external interface.
    local: IpAddr,
    /// Index of the vxlan device; 0 with another backend.
    device: u32,
    mac: HardwareAddress,
}

impl FamilyNetwork {
    const fn is_v6(&self) -> bool {
        self.own.address.is_ipv6()
    }
}

/// Result of a look.
pub(super) enum LookEnd {
    /// The network stands, or there is to be none.
    Done,
    /// It cannot be made yet.
    NotReady(String),
}

impl PodNetworkShared {
    /// Keeps the network, as long as the agent runs.
    pub(super) async fn keep_network(self: Rc<Self>) {
        let monitor = open_change_monitor().and_then(Async::new);
        if let Err(e) = &monitor {
            log::warn!("pod network: changes of interfaces are seen within a minute only: {e}");
        }
        let monitor = monitor.ok();
        let mut retry = FIRST_RETRY;
        loop {
            // From before the look: what changes meanwhile counts.
            let told = self.cluster.changed();
            let now = self.clock.now();
            let next = match Box::pin(self.look()).await {
                LookEnd::Done => {
                    retry = FIRST_RETRY;
                    align_to_second(now + LOOK, now)
                }
                LookEnd::NotReady(why) => {
                    self.show_trouble(&why);
                    let next = self.clock.now() + retry;
                    retry = (retry * 2).min(LONGEST_RETRY);
                    next
                }
            };
            let alarm = self.clock.sleep_until(next);
            let peers = self.state.peers_changed.wait_for_wake();
            let changes = self.wait_for_changes(monitor.as_ref());
            alarm.or(told).or(peers).or(changes).await;
        }
    }

    /// Waits until an interface, an address or a route has changed, and for what else changes with it.
    async fn wait_for_changes(&self, monitor: Option<&Async<OwnedFd>>) {
        let Some(monitor) = monitor else {
            return pending().await;
        };
        if monitor.readable().await.is_err() {
            return pending().await;
        }
        self.clock.sleep_until(self.clock.now() + SETTLE).await;
        drain_change_monitor(monitor.get_ref());
    }

    pub(super) async fn look(&self) -> LookEnd {
        let cluster = self.cluster.current();
        let choice = choose_network(&self.settings.choice, cluster.as_deref());
        let backend = match &choice {
            NetworkChoice::Use(network) => Some(network.backend),
            _ => None,
        };
        self.set_backend(backend);
        match choice {
            NetworkChoice::Use(network) => self.look_at_network(&network).await,
            NetworkChoice::Unknown => {
                LookEnd::NotReady("waiting for a server to tell the network of the cluster".into())
            }
            NetworkChoice::Off => {
                self.remove_remains().await;
                let now = self.clock.wall_time();
                self.status.change_health(now, |health| {
                    *health = PodNetworkHealth {
                        is_off: true,
                        ..PodNetworkHealth::default()
                    };
                });
                LookEnd::Done
            }
            NetworkChoice::Foreign(name) => {
                self.remove_remains().await;
                let why = format!(
                    "the cluster has backend {name:?}, which picolet does not make: pods here do not reach those of other nodes"
                );
                let mut present = BTreeSet::new();
                self.tell_once(&mut present, "PodNetworkBackendUnknown", why.clone());
                *self.state.told.borrow_mut() = present;
                let now = self.clock.wall_time();
                self.status.change_health(now, |health| {
                    health.is_off = false;
                    health.is_ready = false;
                    health.backend = name;
                    health.trouble = Some(why);
                });
                LookEnd::Done
            }
        }
    }

    /// Removes what was made for another choice. What is left is tried again at the next look.
    async fn remove_remains(&self) {
        // From now on no pod that starts exempts the ranges again.
        self.spanning.set_settings(SpanningSettings::default());
        self.state.made.set([false; 3]);
        if !self.remains.has_mark() {
            return;
        }
        *self.state.rules_seen.borrow_mut() = None;
        self.state.subnet_file.borrow_mut().clear();
        for what in self.remains.remove(true, Some(&self.disk)).await {
            let text = format!("pod network: cannot remove what is left of it: {what}");
            self.complaints.complain(&text);
        }
    }

    async fn look_at_network(&self, network: &ChosenNetwork) -> LookEnd {
        let own = self.own_node.node_object();
        let ranges = own
            .as_ref()
            .map(|node| node_ranges(&node.spec.pod_cidr, &node.spec.pod_cidrs));
        let ranges = ranges.filter(|ranges| !ranges.is_empty());
        let ranges = ranges.unwrap_or_else(|| self.kept_ranges.clone());
        let families = match own_families(network, &ranges) {
            Ok(families) => families,
            Err(e) => return LookEnd::NotReady(e.to_string()),
        };
        let named = self.settings.interface.clone();
        let find = move || kernel::find_external_interface(named.as_deref());
        let external = self.disk.run_job(find).await;
        // Packets of pods fit whatever family they go by.
        let has_v6 = families.iter().any(|(_, own)| own.address.is_ipv6());
        let mtu = network.backend.pod_mtu(
            external.as_ref().ok().map(|external| external.mtu),
            self.spanning.current_settings().mtu,
            has_v6,
        );
        self.tell_pods(&families, mtu).await;
        self.note_things().await;
        let external = match external {
            Ok(external) => external,
            Err(e) => return LookEnd::NotReady(error_chain(&e)),
        };
        let is_recent = |(of, seen): &(Vec<(Cidr, Cidr)>, MonoTime)| {
            *of == families && self.clock.now() - *seen + SETTLE < LOOK
        };
        let seen = self
            .state
            .rules_seen
            .borrow()
            .as_ref()
            .is_some_and(is_recent);
        if !seen {
            self.look_at_rules(network, &families).await;
            let seen = (families.clone(), self.clock.now());
            *self.state.rules_seen.borrow_mut() = Some(seen);
        }
        let (families, trouble) = self
            .make_devices(network, &families, &external, own.as_ref())
            .await;
        self.note_things().await;
        if families.is_empty() {
            let why = trouble.unwrap_or_else(|| "no family has an address".into());
            return LookEnd::NotReady(why);
        }
        // As soon as there is a list, answers find their way before others send here.
        let entries = self.look_at_entries(network, &families, &external).await;
        let announced = self.announce(network, &families, own.as_ref()).await;
        let list = self.state.list_trouble.borrow().clone();
        let trouble = trouble.or(announced).or(entries).or(list);
        let has_list = self.state.has_list.get();
        let now = self.clock.wall_time();
        self.status.change_health(now, |health| {
            network.backend.name().clone_into(&mut health.backend);
            health.is_off = false;
            health.is_ready = has_list;
            health.trouble = match (trouble, has_list) {
                (None, false) => Some("waiting for the first list of nodes".into()),
                (trouble, _) => trouble,
            };
        });
        LookEnd::Done
    }

    /// Tells that the mark cannot be written. Pods need the network more than a later removal needs the note.
    fn complain_of_mark(&self, written: io::Result<()>) {
        if let Err(e) = written {
            let text = format!("pod network: cannot note what is made: {e}");
            self.complaints.complain(&text);
        }
    }

    /// Notes the things of the network that were made, for a later removal.
    async fn note_things(&self) {
        let (remains, made) = (self.remains.clone(), self.state.made.get());
        let write = move || remains.write_mark(made);
        let written = self.disk.run_job(write).await;
        if written.is_ok() {
            self.state.made.set([false; 3]);
        }
        self.complain_of_mark(written);
    }

    /// Tells the built-in network, and plugins of others, what pods are to know.
    async fn tell_pods(&self, families: &[(Cidr, Cidr)], mtu: u32) {
        let before = self.spanning.set_settings(SpanningSettings {
            not_ready: None,
            mtu,
            reachable: families.iter().map(|(all, _)| all.to_string()).collect(),
        });
        if before.mtu > mtu {
            let text = format!(
                "packets between nodes have at most {mtu} bytes now, {} before: pods that run keep their MTU until they are restarted",
                before.mtu
            );
            log::warn!("pod network: {text}");
            self.recorder
                .record_node_event(EventSeverity::Warning, "PodNetworkMTUShrank", &text);
        }
        let text = format_subnet_file(families, mtu);
        if *self.state.subnet_file.borrow() == text {
            return;
        }
        let (path, written) = (self.remains.subnet_file.clone(), text.clone());
        let write = move || write_subnet_file(&path, &written);
        match self.disk.run_job(write).await {
            Ok(is_made) => {
                *self.state.subnet_file.borrow_mut() = text;
                if is_made {
                    self.set_made(FILE);
                }
            }
            Err(e) => self.complaints.complain(&format!(
                "pod network: cannot write {}: {e}",
                self.remains.subnet_file.display()
            )),
        }
    }

    /// Looks at rules of the firewall, settings and modules of the kernel. What fails is told; the rest goes on.
    async fn look_at_rules(&self, network: &ChosenNetwork, families: &[(Cidr, Cidr)]) {
        let has = |is_v6: bool| {
            families
                .iter()
                .any(|(_, own)| own.address.is_ipv6() == is_v6)
        };
        let is_loaded = firewall::load_bridge_filter().await;
        let (v4, v6) = (has(false), has(true));
        let set = move || firewall::set_sysctls(v4, v6);
        for failed in self.disk.run_job(set).await {
            self.complaints.complain(&format!("pod network: {failed}"));
        }
        let mut closed = None;
        for (all, own) in families {
            let is_v6 = own.address.is_ipv6();
            let hides = !is_v6 || network.hides_v6;
            let tables = table_rules(*all, *own, hides);
            match firewall::ensure_rules(&tables, is_v6).await {
                Ok(true) => log::info!("pod network: made iptables rules for {all}"),
                Ok(false) => {}
                Err(e) => {
                    let text = format!("pod network: iptables: {}", error_chain(&e));
                    self.complaints.complain(&text);
                }
            }
            if network.backend == PodNetworkBackend::Vxlan {
                let port = match self.settings.port {
                    0 => KERNEL_PORT,
                    port => port,
                };
                let rules = firewall::list_input_rules(is_v6).await;
                if rules.is_some_and(|rules| !is_port_open(&rules, port)) {
                    closed = Some(port);
                }
            }
        }
        // Pods that run since before the network was known.
        let ranges: Vec<_> = families.iter().map(|(all, _)| all.to_string()).collect();
        match exempt_ranges(&self.remains.bridge, &ranges).await {
            Ok(true) => log::info!("pod network: pods that run keep their addresses, too"),
            Ok(false) => {}
            Err(e) => {
                let text = format!("pod network: iptables: {}", error_chain(&e));
                self.complaints.complain(&text);
            }
        }
        let now = self.clock.wall_time();
        self.status.change_health(now, |health| {
            health.closed_port = closed;
            health.missing_module = (!is_loaded).then(|| firewall::BRIDGE_FILTER.to_owned());
        });
    }

    /// Makes the devices of all families. Returns the families that have what they need, and why another has not.
    async fn make_devices(
        &self,
        network: &ChosenNetwork,
        families: &[(Cidr, Cidr)],
        external: &ExternalInterface,
        own: Option<&Node>,
    ) -> (Vec<FamilyNetwork>, Option<String>) {
        let (mut made, mut trouble) = (Vec::new(), None);
        for &(all, range) in families {
            let is_v6 = range.address.is_ipv6();
            let name = device_name(is_v6);
            let used = self.disk.run_job(move || kernel::read_device(name)).await;
            let used = used.ok().flatten().and_then(|device| device.local);
            let announced = |node: &Node| announced_ip(&node.metadata.annotations, is_v6);
            let used = used.or_else(|| own.and_then(announced));
            let local = match external.choose_local(is_v6, used) {
                Ok(local) => local,
                Err(e) => {
                    trouble = Some(error_chain(&e));
                    continue;
                }
            };
            let mut family = FamilyNetwork {
                own: range,
                local,
                device: 0,
                mac: HardwareAddress::default(),
            };
            let result = match network.backend {
                PodNetworkBackend::HostGateway => {
                    // That of the backend before.
                    let remains = self.remains.clone();
                    let delete = move || remains.delete_device(is_v6);
                    self.disk.run_job(delete).await.map(|()| None)
                }
                PodNetworkBackend::Vxlan => {
                    let request = DeviceRequest {
                        name,
                        wanted: WantedDevice {
                            vni: VNI,
                            parent: external.index,
                            local,
                            port: self.settings.port,
                            mtu: external.mtu.saturating_sub(network.backend.overhead(is_v6)),
                        },
                        announced: own
                            .and_then(|node| announced_mac(&node.metadata.annotations, is_v6)),
                        network: all,
                        address: range.address,
                    };
                    // Other nodes know its hardware address: without the own Node, which has it, none is invented.
                    let may_create = own.is_some();
                    let (remains, made) = (self.remains.clone(), self.state.made.get());
                    let keep = move || {
                        let (mut is_made, mut announced) = (false, Ok(()));
                        let mut announce = || {
                            announced = remains.announce_device(usize::from(is_v6), made);
                        };
                        let kept =
                            kernel::keep_device(&request, may_create, &mut announce, &mut is_made);
                        (kept, is_made, announced)
                    };
                    let (kept, is_made, announced) = self.disk.run_job(keep).await;
                    self.complain_of_mark(announced);
                    if is_made {
                        self.set_made(usize::from(is_v6));
                    }
                    kept.map(Some)
                }
            };
            match result {
                Ok(found) => {
                    if let Some(found) = found {
                        family.device = found.index;
                        family.mac = found.mac;
                    }
                    made.push(family);
                }
                Err(e) => {
                    if matches!(e, PodNetworkError::NoVxlan) {
                        let now = self.clock.wall_time();
                        self.status.change_health(now, |health| {
                            health.missing_module = Some("vxlan".into());
                        });
                    }
                    trouble = Some(error_chain(&e));
                }
            }
        }
        (made, trouble)
    }

    /// Makes the own Node say where this node is (FLAN-03). Returns what failed.
    async fn announce(
        &self,
        network: &ChosenNetwork,
        families: &[FamilyNetwork],
        own: Option<&Node>,
    ) -> Option<String> {
        let own = own?;
        let annotations = &own.metadata.annotations;
        let external = |is_v6: bool| {
            let addresses = own.status.addresses.iter();
            let mut external = addresses
                .filter(|address| network.uses_external_ip && address.kind == "ExternalIP")
                .filter_map(|address| address.address.parse::<IpAddr>().ok());
            external.find(|ip| ip.is_ipv6() == is_v6)
        };
        let announcement = OwnAnnouncement {
            backend: network.backend,
            vni: VNI,
            places: families
                .iter()
                .map(|family| NodePlace {
                    public_ip: announced_address(
                        annotations,
                        family.local,
                        external(family.is_v6()),
                    ),
                    mac: family.mac,
                })
                .collect(),
        };
        let patch = announcement.patch_for(annotations)?;
        let now = self.clock.now();
        let is_known = |(last, at): &(Value, MonoTime)| *last == patch && now - *at < PATCH_AGAIN;
        if self.state.patched.borrow().as_ref().is_some_and(is_known) {
            return None;
        }
        match self.own_node.patch_node(&patch).await {
            Ok(()) => {
                *self.state.patched.borrow_mut() = Some((patch, now));
                None
            }
            Err(e) => {
                let text = format!("cannot announce this node: {}", error_chain(&e));
                self.complaints.complain(&format!("pod network: {text}"));
                Some(text)
            }
        }
    }

    /// Makes the entries for other nodes as they are to be. Returns what failed.
    async fn look_at_entries(
        &self,
        network: &ChosenNetwork,
        families: &[FamilyNetwork],
        external: &ExternalInterface,
    ) -> Option<String> {
        if !self.state.has_list.get() {
            return None;
        }
        let backend = network.backend;
        let mut addresses = self.own_node.host_ips();
        addresses.extend(&external.addresses);
        let own = OwnPlace {
            network: network.ranges.clone(),
            ranges: families.iter().map(|family| family.own).collect(),
            addresses,
            macs: families.iter().map(|family| family.mac).collect(),
        };
        let (mut trouble, mut reached) = (None, BTreeSet::new());
        let mut faults: Vec<(String, String)> = Vec::new();
        for (name, fault) in &*self.state.list_faults.borrow() {
            faults.push((name.clone(), fault.to_string()));
        }
        for family in families {
            let (device, is_v6) = (family.device, family.is_v6());
            if backend == PodNetworkBackend::Vxlan && device == 0 {
                continue;
            }
            let read = move || kernel::read_entries(device, is_v6);
            let found = match self.disk.run_job(read).await {
                Ok(found) => found,
                Err(e) => {
                    trouble = Some(error_chain(&e));
                    continue;
                }
            };
            let interface = match backend {
                PodNetworkBackend::Vxlan => device,
                PodNetworkBackend::HostGateway => external.index,
            };
            let (plan, names) = {
                let peers = self.peers.borrow();
                let (chosen, refused) = peers.choose_peers(backend, is_v6, &own);
                faults.extend(
                    refused
                        .into_iter()
                        .map(|(name, fault)| (name, fault.to_string())),
                );
                reached.extend(chosen.iter().map(|peer| peer.name.to_owned()));
                let mut plan = EntryPlan::compare(backend, interface, &chosen, &found);
                if !peers.is_settled() {
                    // Entries of an earlier run may be those of a node that was not read yet.
                    plan.deletions.clear();
                }
                let names: Vec<String> = match plan.sets.is_empty() {
                    true => Vec::new(),
                    false => chosen.iter().map(|peer| peer.name.to_owned()).collect(),
                };
                (plan, names)
            };
            if plan.is_empty() {
                continue;
            }
            let apply = move || kernel::apply_plan(&plan, device, backend);
            let applied = self.disk.run_job(apply).await;
            self.note_applied(&applied);
            if let Some(why) = applied.undeleted.into_iter().next() {
                trouble = Some(why);
            }
            for (node, why) in applied.failed {
                let name = names.get(node).cloned().unwrap_or_default();
                reached.remove(&name);
                faults.push((name, why));
            }
        }
        self.tell_faults(&faults);
        self.status.change_figures(|figures| {
            figures.peers = u64::try_from(reached.len()).unwrap_or(u64::MAX);
            figures.refused = u64::try_from(faults.len()).unwrap_or(u64::MAX);
        });
        let now = self.clock.wall_time();
        self.status.change_health(now, |health| {
            health.peers = reached.len();
            let texts = faults
                .into_iter()
                .map(|(name, why)| format!("{name}: {why}"));
            health.faults = texts.take(16).collect();
        });
        trouble
    }
}

/// Writes the file for plugins. Returns false if it is there as it is to be.
fn write_subnet_file(path: &Path, text: &str) -> io::Result<bool> {
    if fs::read_to_string(path).is_ok_and(|found| found == text) {
        return Ok(false);
    }
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir)?;
    }
    file::write_atomic(path, text.as_bytes(), FILE_MODE, false)?;
    Ok(true)
}
