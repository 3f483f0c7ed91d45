//! Endpoints of a Service's ports, and which of them a policy may use (PROX-03, PROX-07, PROX-16).

use alloc::vec::Vec;
use core::{cmp::Reverse, net::IpAddr};

use super::{AddressFamily, object::ProxyService};

/// Most endpoints of one port; the rest is left out, with an event.
pub const MAX_ENDPOINTS: usize = 20_000;

/// State of an endpoint, and where it is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct EndpointFlags(u8);

impl EndpointFlags {
    // The order decides which state counts if two slices name one endpoint: the higher number.
    /// Wanted by nodes of some zones.
    pub const ZONE_HINT: u8 = 1;
    /// Wanted by nodes of this zone.
    pub const FOR_ZONE: u8 = 2;
    /// Wanted by some nodes.
    pub const NODE_HINT: u8 = 4;
    /// Wanted by this node.
    pub const FOR_NODE: u8 = 8;
    /// Ends.
    pub const TERMINATING: u8 = 16;
    /// Answers.
    pub const SERVING: u8 = 32;
    /// Takes new connections.
    pub const READY: u8 = 64;
    /// Runs on this node.
    pub const LOCAL: u8 = 128;

    /// Sets or clears a flag.
    pub const fn set(&mut self, flag: u8, is_set: bool) {
        match is_set {
            true => self.0 |= flag,
            false => self.0 &= !flag,
        }
    }

    /// Returns true if all these flags are set.
    #[must_use]
    pub const fn has(self, flags: u8) -> bool {
        self.0 & flags == flags
    }
}

/// An endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServiceEndpoint {
    /// Address.
    pub ip: IpAddr,
    /// Port.
    pub port: u16,
    /// State.
    pub flags: EndpointFlags,
}

impl ServiceEndpoint {
    const fn has(&self, flags: u8) -> bool {
        self.flags.has(flags)
    }
}

/// Endpoints of a Service, gathered from its slices in any order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointCollector {
    /// Endpoints of each port of the Service, in its order.
    ports: Vec<Vec<ServiceEndpoint>>,
    /// Sum of the digests of all slices.
    slices: u64,
    /// Set if there were too many endpoints.
    is_cut: bool,
}

impl EndpointCollector {
    /// Begins with no endpoint of a Service with so many ports.
    #[must_use]
    pub fn new(ports: usize) -> Self {
        Self {
            ports: vec![Vec::new(); ports],
            ..Self::default()
        }
    }

    /// Adds an endpoint of a port.
    pub fn add_endpoint(&mut self, port: usize, endpoint: ServiceEndpoint) {
        let Some(of_port) = self.ports.get_mut(port) else {
            return;
        };
        match of_port.len() < MAX_ENDPOINTS {
            true => of_port.push(endpoint),
            false => self.is_cut = true,
        }
    }

    /// Counts a slice. The order does not matter.
    pub const fn count_slice(&mut self, digest: u64) {
        self.slices = self.slices.wrapping_add(digest);
    }

    /// Sum of the digests of all slices.
    #[must_use]
    pub const fn slices(&self) -> u64 {
        self.slices
    }

    /// Returns true if endpoints were left out because there were too many.
    #[must_use]
    pub const fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Orders the endpoints, once all slices were added. An endpoint that is in two slices counts once: while it moves
    /// from one to the other it is in both.
    pub fn finish(&mut self) {
        for of_port in &mut self.ports {
            of_port.sort_unstable_by_key(|it| (it.ip, it.port, Reverse(it.flags)));
            of_port.dedup_by_key(|it| (it.ip, it.port));
            of_port.shrink_to_fit();
        }
    }

    /// Endpoints of a port, in order.
    #[must_use]
    pub fn of_port(&self, port: usize) -> &[ServiceEndpoint] {
        self.ports.get(port).map(Vec::as_slice).unwrap_or_default()
    }

    /// Number of this node's endpoints that take connections, each address once.
    #[must_use]
    pub fn count_local_ready(&self) -> usize {
        let all = self.ports.iter().flatten();
        let mine = all.filter(|it| it.has(EndpointFlags::LOCAL | EndpointFlags::READY));
        let mut ips: Vec<IpAddr> = mine.map(|it| it.ip).collect();
        ips.sort_unstable();
        ips.dedup();
        ips.len()
    }
}

/// Endpoints that the two policies may use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsableEndpoints<'a> {
    /// For policy Cluster.
    pub cluster: Vec<&'a ServiceEndpoint>,
    /// For policy Local.
    pub local: Vec<&'a ServiceEndpoint>,
    /// Set if any endpoint of any node may be used: then a policy without endpoints drops, and does not reject.
    pub has_any: bool,
}

/// Policies that a port of a Service needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeededPolicies {
    /// Policy Cluster. Even with external policy Local, pods and the node itself use it.
    pub cluster: bool,
    /// Policy Local.
    pub local: bool,
}

impl NeededPolicies {
    /// Policies of a Service, one of whose ports may have a port on nodes.
    #[must_use]
    pub const fn of(service: &ProxyService, is_external: bool) -> Self {
        Self {
            cluster: !service.is_internal_local || is_external,
            local: service.is_internal_local || (service.is_external_local && is_external),
        }
    }
}

/// Chooses the endpoints of each policy: those that are ready; without any, those that still serve while they end.
///
/// - Source: kubernetes `pkg/proxy/topology.go`, `CategorizeEndpoints`.
#[must_use]
pub fn choose_endpoints<'a>(
    all: &'a [ServiceEndpoint],
    family: AddressFamily,
    needed: NeededPolicies,
) -> UsableEndpoints<'a> {
    const READY: u8 = EndpointFlags::READY;
    const ENDING: u8 = EndpointFlags::SERVING | EndpointFlags::TERMINATING;
    const HERE: u8 = EndpointFlags::LOCAL;
    let start = all.partition_point(|it| AddressFamily::of(it.ip) < family);
    let end = all.partition_point(|it| AddressFamily::of(it.ip) <= family);
    let of_family = all.get(start..end).unwrap_or_default();
    let with = |flags: u8| -> Vec<&'a ServiceEndpoint> {
        of_family.iter().filter(|it| it.has(flags)).collect()
    };
    let first_of = |choices: [u8; 2]| {
        let found = choices.into_iter().map(with);
        found
            .into_iter()
            .find(|found| !found.is_empty())
            .unwrap_or_default()
    };
    let mut usable = UsableEndpoints::default();
    if needed.cluster {
        let hint = wanted_hint(of_family);
        usable.cluster = first_of([READY | hint, ENDING]);
        usable.has_any |= !usable.cluster.is_empty();
    }
    if needed.local {
        usable.has_any |= of_family.iter().any(|it| it.has(READY) || it.has(ENDING));
        usable.local = first_of([HERE | READY, HERE | ENDING]);
    }
    usable
}

/// The flag that an endpoint needs because of hints: each ready endpoint has one, and one of them is for this node.
fn wanted_hint(endpoints: &[ServiceEndpoint]) -> u8 {
    let ready = || endpoints.iter().filter(|it| it.has(EndpointFlags::READY));
    let follows =
        |hint: u8, own: u8| ready().all(|it| it.has(hint)) && ready().any(|it| it.has(own));
    if follows(EndpointFlags::NODE_HINT, EndpointFlags::FOR_NODE) {
        return EndpointFlags::FOR_NODE;
    }
    if follows(EndpointFlags::ZONE_HINT, EndpointFlags::FOR_ZONE) {
        return EndpointFlags::FOR_ZONE;
    }
    0
}
