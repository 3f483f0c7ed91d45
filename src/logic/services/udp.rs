//! Flows of UDP whose endpoint is gone (PROX-20).
//!
//! The kernel sends all packets of a flow where it sent the first, also when that endpoint has ended. A client with one
//! source port, for example a resolver, would never get an answer again.
//!
//! Source: kubernetes `pkg/proxy/conntrack/cleanup.go`.

use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use super::{
    AddressFamily, ProxyProtocol,
    endpoints::{EndpointCollector, EndpointFlags},
    object::ProxyService,
    plan::ElementKey,
};

/// A port of UDP, and the endpoints that may answer on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UdpPort {
    /// Addresses of the Service with its port.
    pub addresses: Vec<SocketAddr>,
    /// Port of the node.
    pub node_port: Option<u16>,
    /// Endpoints that serve, in order; never empty.
    pub serving: Vec<SocketAddr>,
}

impl UdpPort {
    /// Leaves out an address or port that another Service has: its flows are its own.
    pub fn leave_out(&mut self, lost: &ElementKey) {
        if lost.protocol != ProxyProtocol::Udp {
            return;
        }
        match lost.ip {
            Some(ip) => {
                let lost = SocketAddr::new(ip, lost.port);
                self.addresses.retain(|address| *address != lost);
            }
            None => self.node_port = self.node_port.filter(|port| *port != lost.port),
        }
    }
}

/// A flow that the kernel remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpFlow {
    /// Destination of the client's first packet.
    pub dialled: SocketAddr,
    /// Source of the answers: the endpoint.
    pub answers: SocketAddr,
}

/// Lists the ports of UDP of a Service. One without an endpoint that serves is left out: its flows may stay. So may
/// those of a Service with endpoints that were left out.
#[must_use]
pub fn udp_ports(service: &ProxyService, endpoints: &EndpointCollector) -> Vec<UdpPort> {
    if endpoints.is_cut() {
        return Vec::new();
    }
    let of_family = |family: AddressFamily| {
        let ports = service.ports.iter().enumerate();
        let ports = ports.filter(|(_, port)| port.protocol == ProxyProtocol::Udp);
        let with_endpoints = ports.map(move |(index, port)| {
            let all = endpoints.of_port(index).iter();
            let all = all.filter(|it| it.flags.has(EndpointFlags::SERVING));
            let serving = all.map(|it| SocketAddr::new(it.ip, it.port));
            let ips = service.cluster_ips.iter();
            let ips = ips
                .chain(&service.external_ips)
                .chain(&service.balancer_ips);
            let mine = |ip: IpAddr| AddressFamily::of(ip) == family;
            UdpPort {
                addresses: ips
                    .filter(|ip| mine(**ip))
                    .map(|ip| SocketAddr::new(*ip, port.port))
                    .collect(),
                node_port: port.node_port,
                serving: serving.filter(|it| mine(it.ip())).collect(),
            }
        });
        with_endpoints
            .filter(|port| !port.serving.is_empty())
            .collect::<Vec<_>>()
    };
    AddressFamily::ALL.into_iter().flat_map(of_family).collect()
}

/// Returns true if a flow goes to one of these ports, and no endpoint of it answers. `own`: addresses of this node.
#[must_use]
pub fn is_stale_flow(flow: &UdpFlow, ports: &[UdpPort], own: &[IpAddr]) -> bool {
    let is_to = |port: &&UdpPort| {
        let of_node = || {
            let family = port.serving.first().map(SocketAddr::is_ipv4);
            port.node_port == Some(flow.dialled.port())
                && family == Some(flow.dialled.is_ipv4())
                && own.contains(&flow.dialled.ip())
        };
        port.addresses.contains(&flow.dialled) || of_node()
    };
    let mut ports = ports.iter().filter(is_to);
    ports.any(|port| port.serving.binary_search(&flow.answers).is_err())
}
