//! Addresses for pods that the control plane gave to this node (NODE-16).

use alloc::{
    string::{String, ToString as _},
    vec::Vec,
};
use core::{fmt, net::IpAddr, str::FromStr};

use crate::api::node::NodeSpec;

/// A network of either family; host bits are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    /// Network address.
    pub address: IpAddr,
    /// Length of the network part. It leaves room for at least two pods, the gateway and the broadcast address.
    pub prefix: u8,
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// Reason why the control plane's pod CIDRs cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CidrError {
    /// The text is not `address/length`, or the length leaves no room.
    #[error("pod CIDR {0:?} is not a network with room for pods")]
    NoNetwork(String),
    /// There are more than one of each family.
    #[error("pod CIDRs {0:?} must be one, or one of each family")]
    TooMany(String),
}

impl FromStr for Cidr {
    type Err = CidrError;

    fn from_str(text: &str) -> Result<Self, CidrError> {
        let no = || CidrError::NoNetwork(text.into());
        let (address, prefix) = text.split_once('/').ok_or_else(no)?;
        let address: IpAddr = address.parse().map_err(|_| no())?;
        let prefix: u8 = prefix.parse().map_err(|_| no())?;
        let (most, network) = match address {
            IpAddr::V4(ip) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(prefix.min(32)));
                let bits = ip.to_bits() & mask.unwrap_or(0);
                (29, IpAddr::V4(bits.into()))
            }
            IpAddr::V6(ip) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(prefix.min(128)));
                let bits = ip.to_bits() & mask.unwrap_or(0);
                (125, IpAddr::V6(bits.into()))
            }
        };
        if prefix == 0 || prefix > most {
            return Err(no());
        }
        Ok(Self {
            address: network,
            prefix,
        })
    }
}

/// Pod CIDRs that the runtime last accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodCidrs {
    accepted: String,
}

impl PodCidrs {
    /// Restores the pod CIDRs that were accepted before the agent started, as [`PodCidrs::accepted_networks`] gave them.
    #[must_use]
    pub fn from_accepted(accepted: String) -> Self {
        Self { accepted }
    }

    /// Networks to hand to the runtime, primary first, if they differ from those it last accepted. An empty list is no
    /// change.
    ///
    /// - Errors: the networks cannot be used; the caller asks again each round.
    pub fn changed_networks(&self, spec: &NodeSpec) -> Result<Option<Vec<Cidr>>, CidrError> {
        let given = Self::joined_cidrs(spec);
        if given.is_empty() || given == self.accepted {
            return Ok(None);
        }
        let cidrs: Vec<Cidr> = given.split(',').map(str::parse).collect::<Result<_, _>>()?;
        let ok = match cidrs.as_slice() {
            [_] => true,
            [a, b] => a.address.is_ipv4() != b.address.is_ipv4(),
            _ => false,
        };
        if ok {
            Ok(Some(cidrs))
        } else {
            Err(CidrError::TooMany(given))
        }
    }

    /// Takes in that the runtime accepted the networks that [`PodCidrs::changed_networks`] found in `spec`. Until it
    /// does, `news` returns them again.
    pub fn record_accepted(&mut self, spec: &NodeSpec) {
        self.accepted = Self::joined_cidrs(spec);
    }

    /// Networks of the runtime, joined with commas; empty before the first.
    #[must_use]
    pub fn accepted_networks(&self) -> &str {
        &self.accepted
    }

    fn joined_cidrs(spec: &NodeSpec) -> String {
        if spec.pod_cidrs.is_empty() {
            spec.pod_cidr.to_string()
        } else {
            spec.pod_cidrs.join(",")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(cidrs: &str) -> NodeSpec {
        NodeSpec {
            pod_cidrs: cidrs.split_whitespace().map(Into::into).collect(),
            ..NodeSpec::default()
        }
    }

    #[test]
    fn networks() {
        for (text, want) in [
            ("10.42.1.0/24", Some("10.42.1.0/24")),
            ("10.42.1.9/24", Some("10.42.1.0/24")),
            ("10.0.0.0/8", Some("10.0.0.0/8")),
            ("fd00:1::/64", Some("fd00:1::/64")),
            ("fd00:1::5/64", Some("fd00:1::/64")),
            ("10.42.1.0/30", None),
            ("10.42.1.0/0", None),
            ("10.42.1.0/33", None),
            ("fd00::/200", None),
            ("fd00::/126", None),
            ("10.42.1.0", None),
            ("x/24", None),
            ("", None),
        ] {
            let got = text.parse::<Cidr>().ok().map(|c| c.to_string());
            assert_eq!(got.as_deref(), want, "{text}");
        }
    }

    #[test]
    fn news() {
        // NODE-16
        let mut known = PodCidrs::default();
        let shown = |known: &PodCidrs, given: &str| {
            known.changed_networks(&spec(given)).map(|news| {
                news.map(|list| {
                    let list: Vec<String> = list
                        .iter()
                        .map(alloc::string::ToString::to_string)
                        .collect();
                    list.join(" ")
                })
            })
        };
        assert_eq!(shown(&known, ""), Ok(None), "an empty list is ignored");
        let first = "10.42.1.0/24 fd00:1::/64";
        assert_eq!(shown(&known, first), Ok(Some(first.into())));
        assert_eq!(
            shown(&known, first),
            Ok(Some(first.into())),
            "retried until it is accepted"
        );
        known.record_accepted(&spec(first));
        assert_eq!(known.accepted_networks(), "10.42.1.0/24,fd00:1::/64");
        assert_eq!(shown(&known, first), Ok(None));
        assert_eq!(shown(&known, ""), Ok(None));
        let other = "10.42.2.0/24";
        assert_eq!(shown(&known, other), Ok(Some(other.into())));
        assert_eq!(
            PodCidrs::from_accepted("10.42.2.0/24".into()).changed_networks(&spec(other)),
            Ok(None)
        );
        for bad in [
            "10.42.1.0/24 10.42.2.0/24",
            "junk",
            "10.1.0.0/24 fd00::/64 fd01::/64",
        ] {
            assert!(shown(&known, bad).is_err(), "{bad}");
        }
        let old = NodeSpec {
            pod_cidr: other.into(),
            ..NodeSpec::default()
        };
        assert!(known.changed_networks(&old).expect("network").is_some());
    }
}
