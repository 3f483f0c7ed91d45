//! Chains and elements of one Service (PROX-05 to PROX-17, PROX-24).

use alloc::{
    collections::BTreeMap,
    format,
    string::{String, ToString as _},
    vec::Vec,
};
use core::{fmt, net::IpAddr};

use super::{
    AddressFamily, AddressRange, ProxyNetwork, ProxyNode, ProxyProtocol,
    endpoints::{
        EndpointCollector, EndpointFlags, NeededPolicies, ServiceEndpoint, choose_endpoints,
    },
    object::{ObjectFaults, ProxyPort, ProxyService},
    range_contains, render,
    transaction::MAX_SERVICE_BYTES,
};
use crate::digest::FnvHasher;

/// Most endpoints of a port whose clients keep theirs: each has a chain and a set. A port with more has no affinity.
pub const MAX_AFFINITY_ENDPOINTS: usize = 1000;

/// Bytes of text that a chain takes besides its rules, and an element, about.
const CHAIN_BYTES: usize = 256;
const ELEMENT_BYTES: usize = 128;

/// Purpose of a chain of a Service's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChainKind {
    /// Sends on to the endpoints of policy Cluster.
    Cluster,
    /// Sends on to this node's endpoints.
    Local,
    /// Decides about connections to an external address or a port of the node.
    External,
    /// Drops sources that may not use the load balancer.
    Firewall,
    /// Sends on to one endpoint, and remembers the client.
    Endpoint(IpAddr, u16),
}

/// Name of a chain. It depends on nothing that a user of the API may choose, but the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChainName {
    /// Digest of the Service's UID.
    pub uid: u64,
    /// Protocol of the Service's port.
    pub protocol: ProxyProtocol,
    /// The Service's port.
    pub port: u16,
    /// Purpose.
    pub kind: ChainKind,
}

impl ChainName {
    /// Set of the clients of an endpoint.
    #[must_use]
    pub fn affinity_set(&self) -> String {
        format!("affinity-{}", self.suffix())
    }

    fn suffix(&self) -> String {
        let Self {
            uid,
            protocol,
            port,
            kind,
        } = self;
        let port_words = format!("{uid:016x}-{protocol}-{port}");
        match kind {
            ChainKind::Endpoint(IpAddr::V4(ip), port) => format!("{port_words}-{ip}-{port}"),
            // A name has no colon.
            ChainKind::Endpoint(IpAddr::V6(ip), port) => {
                format!("{port_words}-{:032x}-{port}", u128::from(*ip))
            }
            ChainKind::Cluster | ChainKind::Local | ChainKind::External | ChainKind::Firewall => {
                port_words
            }
        }
    }

    /// Reads the name of a chain; `None`: it is not that of a Service.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let mut words = name.split('-');
        let mut word = || words.next();
        let kind = word()?;
        let uid = u64::from_str_radix(word()?, 16).ok()?;
        let protocol = ProxyProtocol::from_nft(word()?)?;
        let port = word()?.parse().ok()?;
        let kind = match kind {
            "service" => ChainKind::Cluster,
            "local" => ChainKind::Local,
            "external" => ChainKind::External,
            "firewall" => ChainKind::Firewall,
            "endpoint" => {
                let ip = word()?;
                let v6 = || {
                    u128::from_str_radix(ip, 16)
                        .ok()
                        .map(|bits| IpAddr::V6(bits.into()))
                };
                let ip = ip.parse().ok().or_else(v6)?;
                ChainKind::Endpoint(ip, word()?.parse().ok()?)
            }
            _ => return None,
        };
        Some(Self {
            uid,
            protocol,
            port,
            kind,
        })
    }
}

impl fmt::Display for ChainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            ChainKind::Cluster => "service",
            ChainKind::Local => "local",
            ChainKind::External => "external",
            ChainKind::Firewall => "firewall",
            ChainKind::Endpoint(..) => "endpoint",
        };
        f.write_str(&format!("{kind}-{}", self.suffix()))
    }
}

/// A map of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TableMap {
    /// From addresses to chains that send on.
    Services,
    /// From ports of the node to such chains.
    NodePorts,
    /// From addresses to chains that look at the source.
    Firewall,
}

impl TableMap {
    /// All maps.
    pub const ALL: [Self; 3] = [Self::Services, Self::NodePorts, Self::Firewall];

    /// Name in the table.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Services => "service-ips",
            Self::NodePorts => "service-nodeports",
            Self::Firewall => "firewall-ips",
        }
    }
}

/// Key of an element: an address, or a port of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ElementKey {
    /// Family of the table.
    pub family: AddressFamily,
    /// Address; `None`: any of the node.
    pub ip: Option<IpAddr>,
    /// Protocol.
    pub protocol: ProxyProtocol,
    /// Port.
    pub port: u16,
}

impl fmt::Display for ElementKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let port = format!("{} . {}", self.protocol, self.port);
        match self.ip {
            Some(ip) => f.write_str(&format!("{ip} . {port}")),
            None => f.write_str(&port),
        }
    }
}

/// Answer to a connection that no endpoint may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MissingVerdict {
    /// No node has an endpoint: the client is told.
    Reject,
    /// Another node has one: the packet is dropped, as if it had not come here.
    Drop,
}

/// A chain and its rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedChain {
    /// Family of the table.
    pub family: AddressFamily,
    /// Name.
    pub name: ChainName,
    /// Rules, one a line.
    pub rules: String,
}

/// All that the table is to hold of one Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServicePlan {
    /// Digest of its UID.
    pub uid: u64,
    /// `NAMESPACE/NAME`, for people who look at the table.
    pub label: String,
    /// Chains, in order: a chain comes behind those that its rules lead to, but for those of endpoints.
    pub chains: Vec<PlannedChain>,
    /// Elements of maps.
    pub elements: BTreeMap<(TableMap, ElementKey), ChainName>,
    /// Keys without an endpoint.
    pub missing: BTreeMap<ElementKey, MissingVerdict>,
    /// Addresses in the cluster.
    pub cluster_ips: Vec<IpAddr>,
    /// Addresses of this node's endpoints, in order, each once.
    pub hairpins: Vec<IpAddr>,
}

impl ServicePlan {
    /// Returns true if the text of the Service would be longer than about [`MAX_SERVICE_BYTES`]. Then the plan may not be
    /// whole, and must not be written.
    #[must_use]
    pub fn is_too_long(&self) -> bool {
        let of_chain = |it: &PlannedChain| CHAIN_BYTES + it.rules.len();
        let chains: usize = self.chains.iter().map(of_chain).sum();
        chains + self.elements.len() * ELEMENT_BYTES > MAX_SERVICE_BYTES
    }

    /// Digest of the elements of maps, and of the chains that depend on policies: while it stays, only the rules of chains
    /// have to be written.
    #[must_use]
    pub fn frontends_digest(&self) -> u64 {
        let mut fnv = FnvHasher::default();
        for ((map, key), chain) in &self.elements {
            for text in [map.name(), &key.to_string(), &chain.to_string()] {
                fnv.write_text(text);
            }
        }
        let mut has_affinity = false;
        for chain in &self.chains {
            // Chains of endpoints are written by who reads the table.
            if let ChainKind::Endpoint(..) = chain.name.kind {
                has_affinity = true;
            } else {
                fnv.write_text(&chain.name.to_string());
            }
        }
        fnv.write(&[has_affinity.into()]);
        fnv.finish64()
    }

    /// Digest of everything.
    #[must_use]
    pub fn whole_digest(&self) -> u64 {
        let mut fnv = FnvHasher::default();
        fnv.write(&self.frontends_digest().to_be_bytes());
        for chain in &self.chains {
            fnv.write_text(chain.family.word());
            fnv.write_text(&chain.name.to_string());
            fnv.write_text(&chain.rules);
        }
        for (key, verdict) in &self.missing {
            fnv.write_text(&key.to_string());
            fnv.write(&[u8::from(*verdict == MissingVerdict::Drop)]);
        }
        for ip in &self.hairpins {
            fnv.write_text(&ip.to_string());
        }
        fnv.finish64()
    }
}

/// Makes the plan of a Service.
///
/// - Source: kubernetes `pkg/proxy/nftables/proxier.go`, `syncProxyRules`.
#[must_use]
pub fn plan_service(
    service: &ProxyService,
    endpoints: &EndpointCollector,
    network: &ProxyNetwork,
    node: &ProxyNode,
    faults: &mut ObjectFaults,
) -> ServicePlan {
    let mut plan = ServicePlan {
        uid: service.uid,
        label: format!("{}/{}", service.namespace, service.name),
        ..ServicePlan::default()
    };
    if endpoints.is_cut() {
        faults.push("has too many endpoints: some are left out".into());
    }
    for cluster_ip in &service.cluster_ips {
        let family = AddressFamily::of(*cluster_ip);
        if !network.families.contains(&family) {
            continue;
        }
        plan.cluster_ips.push(*cluster_ip);
        for (index, port) in service.ports.iter().enumerate() {
            if plan.is_too_long() {
                return plan;
            }
            let of_port = PortPlanner {
                service,
                port,
                family,
                network,
                node,
            };
            of_port.plan_port(*cluster_ip, endpoints.of_port(index), &mut plan, faults);
        }
    }
    plan.hairpins.sort_unstable();
    plan.hairpins.dedup();
    plan
}

/// One port of a Service in one family.
struct PortPlanner<'a> {
    service: &'a ProxyService,
    port: &'a ProxyPort,
    family: AddressFamily,
    network: &'a ProxyNetwork,
    node: &'a ProxyNode,
}

impl PortPlanner<'_> {
    const fn chain(&self, kind: ChainKind) -> ChainName {
        ChainName {
            uid: self.service.uid,
            protocol: self.port.protocol,
            port: self.port.port,
            kind,
        }
    }

    const fn key(&self, ip: Option<IpAddr>, port: u16) -> ElementKey {
        ElementKey {
            family: self.family,
            ip,
            protocol: self.port.protocol,
            port,
        }
    }

    fn of_family(&self, ips: &[IpAddr]) -> Vec<IpAddr> {
        let mine = |ip: &&IpAddr| AddressFamily::of(**ip) == self.family;
        ips.iter().filter(mine).copied().collect()
    }

    fn plan_port(
        &self,
        cluster_ip: IpAddr,
        endpoints: &[ServiceEndpoint],
        plan: &mut ServicePlan,
        faults: &mut ObjectFaults,
    ) {
        let service = self.service;
        let external_ips = self.of_family(&service.external_ips);
        let balancer_ips = self.of_family(&service.balancer_ips);
        let is_external =
            self.port.node_port.is_some() || !external_ips.is_empty() || !balancer_ips.is_empty();
        let needed = NeededPolicies::of(service, is_external);
        let usable = choose_endpoints(endpoints, self.family, needed);
        let here = |it: &&&ServiceEndpoint| it.flags.has(EndpointFlags::LOCAL);
        let mine = usable.cluster.iter().chain(&usable.local).filter(here);
        plan.hairpins.extend(mine.map(|it| it.ip));

        self.plan_endpoints(&usable.cluster, &usable.local, needed, plan, faults);
        let verdict = |is_local: bool| match (usable.has_any, is_local && usable.local.is_empty()) {
            (false, _) => Some(MissingVerdict::Reject),
            (true, true) => Some(MissingVerdict::Drop),
            (true, false) => None,
        };
        let internal = match service.is_internal_local {
            true => ChainKind::Local,
            false => ChainKind::Cluster,
        };
        let mut add = |map, key: ElementKey, kind, missing: Option<MissingVerdict>| {
            // An address may stand in several lists; that in the cluster is the first.
            if plan.elements.contains_key(&(map, key)) {
                return;
            }
            plan.elements.insert((map, key), self.chain(kind));
            if let Some(verdict) = missing {
                plan.missing.insert(key, verdict);
            }
        };
        let number = self.port.port;
        let inside = verdict(service.is_internal_local);
        add(
            TableMap::Services,
            self.key(Some(cluster_ip), number),
            internal,
            inside,
        );
        if !is_external {
            return;
        }
        let outside = verdict(service.is_external_local);
        for ip in external_ips.iter().chain(&balancer_ips) {
            add(
                TableMap::Services,
                self.key(Some(*ip), number),
                ChainKind::External,
                outside,
            );
        }
        if let Some(port) = self.port.node_port {
            add(
                TableMap::NodePorts,
                self.key(None, port),
                ChainKind::External,
                outside,
            );
        }
        let sources = self.allowed_sources(&balancer_ips);
        if !sources.is_empty() {
            for ip in &balancer_ips {
                add(
                    TableMap::Firewall,
                    self.key(Some(*ip), number),
                    ChainKind::Firewall,
                    None,
                );
            }
        }
        if !sources.is_empty() {
            let rules = render::firewall_rules(self.family, &sources);
            self.add_chain(ChainKind::Firewall, rules, plan);
        }
        let has_outside = usable.has_any && outside.is_none();
        let rules = match (usable.has_any, service.is_external_local) {
            (false, _) => String::new(),
            (true, false) => render::masquerade_and_go(&self.chain(ChainKind::Cluster)),
            (true, true) => render::local_only_rules(
                self.family,
                &self.network.cluster_ranges,
                &self.chain(ChainKind::Cluster),
                has_outside.then(|| self.chain(ChainKind::Local)).as_ref(),
            ),
        };
        self.add_chain(ChainKind::External, rules, plan);
    }

    /// Sources that may use the load balancer, as texts; empty: all may.
    fn allowed_sources(&self, balancer_ips: &[IpAddr]) -> Vec<String> {
        let mine = |range: &&AddressRange| AddressFamily::of(range.0) == self.family;
        let ranges: Vec<AddressRange> = self
            .service
            .source_ranges
            .iter()
            .filter(mine)
            .copied()
            .collect();
        // A range of all addresses is the same as no range.
        if balancer_ips.is_empty() || ranges.iter().any(|(_, bits)| *bits == 0) {
            return Vec::new();
        }
        let mut sources: Vec<String> = ranges.iter().copied().map(render::range_text).collect();
        let is_own = |ip: &IpAddr| ranges.iter().any(|range| range_contains(*range, *ip));
        if self.node.addresses.iter().any(is_own) {
            // A node that has the address of the load balancer dials with that address as its source.
            sources.extend(balancer_ips.iter().map(|ip| ip.to_string()));
        }
        sources
    }

    fn add_chain(&self, kind: ChainKind, rules: String, plan: &mut ServicePlan) {
        plan.chains.push(PlannedChain {
            family: self.family,
            name: self.chain(kind),
            rules,
        });
    }

    /// Chains of the two policies, and of endpoints that remember their clients.
    fn plan_endpoints(
        &self,
        cluster: &[&ServiceEndpoint],
        local: &[&ServiceEndpoint],
        needed: NeededPolicies,
        plan: &mut ServicePlan,
        faults: &mut ObjectFaults,
    ) {
        let affinity_s = self.service.affinity_s;
        let is_much = cluster.len().max(local.len()) > MAX_AFFINITY_ENDPOINTS;
        if affinity_s.is_some() && is_much {
            faults.push(format!(
                "spec.sessionAffinity is ignored: port {} has more than {MAX_AFFINITY_ENDPOINTS} endpoints",
                self.port.port
            ));
        }
        let policies = [
            (needed.cluster, ChainKind::Cluster, cluster),
            (needed.local, ChainKind::Local, local),
        ];
        let Some(timeout_s) = affinity_s.filter(|_| !is_much) else {
            for (_, kind, endpoints) in policies.iter().filter(|it| it.0) {
                let rules = render::dnat_rules(self.family, self.port.protocol, endpoints);
                self.add_chain(*kind, rules, plan);
            }
            return;
        };
        let mut remembering: Vec<(IpAddr, u16)> = cluster
            .iter()
            .chain(local)
            .map(|it| (it.ip, it.port))
            .collect();
        remembering.sort_unstable();
        remembering.dedup();
        for (ip, port) in remembering {
            let name = self.chain(ChainKind::Endpoint(ip, port));
            let rules = render::remember_and_dnat(self.family, &name, timeout_s, (ip, port));
            self.add_chain(name.kind, rules, plan);
        }
        for (_, kind, endpoints) in policies.iter().filter(|it| it.0) {
            let names = endpoints
                .iter()
                .map(|it| self.chain(ChainKind::Endpoint(it.ip, it.port)));
            let rules = render::affinity_rules(self.family, &names.collect::<Vec<_>>());
            self.add_chain(*kind, rules, plan);
        }
    }
}
