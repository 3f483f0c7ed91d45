//! A tunnel, by which the apiserver reaches a node that it cannot dial: the node dials. These are the decisions of an
//! agent of a konnectivity server. Rows TUN-01 to TUN-15.
//!
//! | module | decisions |
//! |---|---|
//! | [`carried`] | connections of a stream, of either protocol |
//! | [`stream`] | effect of each packet on the connections that are carried |
//! | [`mod@line`] | servers to dial, times of the next tries, and pings |
//! | [`health`] | state of the tunnel for people |
//! | `remotedialer` | the same for the tunnel of a k3s server, as far as it differs (rows K3ST) |
//! | here | identity of this node, and the target that may be dialled |

pub mod carried;
pub mod health;
pub mod line;
#[cfg(feature = "k3s")]
pub mod remotedialer;
pub mod stream;

use alloc::{borrow::ToOwned as _, string::String, vec::Vec};
use core::net::IpAddr;

use crate::api::node::NodeAddress;

/// Id of this agent for servers. A server files connections under the id, and an old stream of an agent may linger
/// there; so each boot of the machine has an id of its own (TUN-04).
#[must_use]
pub fn agent_id(node: &str, boot_id: &str) -> String {
    format!("{node}-{boot_id}")
}

/// Names under which a server finds this node: those of its Node, in the same order (TUN-07).
#[must_use]
pub fn agent_identifiers(node: &str, addresses: &[NodeAddress]) -> String {
    let mut out = format!("host={node}");
    for NodeAddress { address, .. } in addresses {
        let kind = match address.parse() {
            Ok(IpAddr::V4(_)) => "ipv4",
            Ok(IpAddr::V6(_)) => "ipv6",
            Err(_) if address == node => continue,
            Err(_) => "host",
        };
        out += &format!("&{kind}={address}");
    }
    out
}

/// The only target that may be dialled: the server of this node, under the node's own names (TUN-06).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnServer {
    /// Name of the node.
    pub node: String,
    /// Addresses and names of its Node.
    pub addresses: Vec<String>,
    /// Port of the node's server.
    pub port: u16,
}

impl OwnServer {
    /// Creates the target for a node with these addresses.
    #[must_use]
    pub fn new(node: &str, addresses: &[NodeAddress], port: u16) -> Self {
        Self {
            node: node.to_owned(),
            addresses: addresses.iter().map(|a| a.address.clone()).collect(),
            port,
        }
    }

    /// Returns true if a dial is for this target.
    #[must_use]
    pub fn is_dial_target(&self, protocol: &str, target: &str) -> bool {
        let Some((host, port)) = target.rsplit_once(':') else {
            return false;
        };
        let bracketed = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
        let host = bracketed.unwrap_or(host);
        let is_host = |own: &str| {
            let same = || Some(own.parse::<IpAddr>().ok()? == host.parse::<IpAddr>().ok()?);
            own.eq_ignore_ascii_case(host) || same().unwrap_or(false)
        };
        protocol == "tcp"
            && port.parse() == Ok(self.port)
            && (is_host(&self.node) || self.addresses.iter().any(|own| is_host(own)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(all: &[(&str, &str)]) -> Vec<NodeAddress> {
        let address = |(kind, address): &(&str, &str)| NodeAddress {
            kind: (*kind).to_owned(),
            address: (*address).to_owned(),
        };
        all.iter().map(address).collect()
    }

    #[test]
    fn who_this_is() {
        // TUN-04 TUN-07
        assert_eq!(agent_id("n", "b"), "n-b");
        let all = addresses(&[
            ("InternalIP", "192.168.1.2"),
            ("InternalIP", "fd00::2"),
            ("Hostname", "n"),
            ("InternalDNS", "n.lan"),
        ]);
        assert_eq!(
            agent_identifiers("n", &all),
            "host=n&ipv4=192.168.1.2&ipv6=fd00::2&host=n.lan"
        );
        assert_eq!(agent_identifiers("n", &[]), "host=n");
    }

    #[test]
    fn what_may_be_dialled() {
        // TUN-06
        let all = addresses(&[("InternalIP", "192.168.1.2"), ("InternalIP", "fd00::2")]);
        let own = OwnServer::new("n", &all, 10250);
        for (target, want) in [
            ("n:10250", true),
            ("N:10250", true),
            ("192.168.1.2:10250", true),
            ("[fd00::2]:10250", true),
            ("[fd00:0::2]:10250", true),
            ("fd00::2:10250", true),
            ("n:10251", false),
            ("n", false),
            ("n:", false),
            ("n:010250x", false),
            ("192.168.1.3:10250", false),
            ("127.0.0.1:10250", false),
            ("localhost:10250", false),
            ("other:10250", false),
            ("", false),
            (":10250", false),
        ] {
            assert_eq!(own.is_dial_target("tcp", target), want, "{target}");
        }
        assert!(!own.is_dial_target("udp", "n:10250"));
    }
}
