//! Announcements of nodes: annotations of their Node objects say where each is and how it is reached (FLAN-01, FLAN-03).
//!
//! Source: flannel `pkg/subnet/kube/annotations.go`, `kube.go`.

use alloc::{borrow::ToOwned as _, collections::BTreeMap, string::String, vec::Vec};
use core::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{PodNetworkBackend, ranges::is_host_address};

/// Annotations of a Node.
pub type Annotations = BTreeMap<String, String>;

/// Prefix of all annotations of flannel.
const PREFIX: &str = "flannel.alpha.coreos.com/";
const MANAGED: &str = "kube-subnet-manager";
const TYPE: &str = "backend-type";
/// Longest data of a backend that is read, bytes: an identifier and a hardware address take 48.
const MAX_DATA_BYTES: usize = 1024;
/// Most bytes of a foreign text that are shown to people.
const SHOWN_BYTES: usize = 64;

/// Annotations of one family.
struct FamilyKeys {
    public_ip: &'static str,
    overwrite: &'static str,
    data: &'static str,
}

const V4: FamilyKeys = FamilyKeys {
    public_ip: "public-ip",
    overwrite: "public-ip-overwrite",
    data: "backend-data",
};
const V6: FamilyKeys = FamilyKeys {
    public_ip: "public-ipv6",
    overwrite: "public-ipv6-overwrite",
    data: "backend-v6-data",
};

const fn keys(is_v6: bool) -> &'static FamilyKeys {
    if is_v6 { &V6 } else { &V4 }
}

fn find<'a>(annotations: &'a Annotations, name: &str) -> Option<&'a str> {
    let text = annotations.get(&format!("{PREFIX}{name}"))?;
    (!text.is_empty()).then_some(text)
}

/// Hardware address of a vxlan device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct HardwareAddress(pub [u8; 6]);

impl HardwareAddress {
    /// Makes a local address of one device from random bytes.
    #[must_use]
    pub const fn from_random(mut bytes: [u8; 6]) -> Self {
        bytes[0] = bytes[0] & 0xfe | 2;
        Self(bytes)
    }

    fn parse(text: &str) -> Option<Self> {
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().filter(|part| part.len() == 2)?;
            *byte = u8::from_str_radix(part, 16).ok()?;
        }
        let is_of_one_device = bytes[0] & 1 == 0 && bytes != [0; 6];
        (parts.next().is_none() && is_of_one_device).then_some(Self(bytes))
    }
}

impl fmt::Display for HardwareAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// Place of a node in one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodePlace {
    /// Address to which other nodes send.
    pub public_ip: IpAddr,
    /// Address of its vxlan device; zeros if the backend has none.
    pub mac: HardwareAddress,
}

/// Announcement of a node that takes part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeAnnouncement {
    /// Place for IPv4.
    pub v4: Option<NodePlace>,
    /// Place for IPv6.
    pub v6: Option<NodePlace>,
    /// Reason why one of them is missing, if it is an error.
    pub fault: Option<AnnouncementFault>,
}

/// Reason why the annotations of a node are not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnnouncementFault {
    /// The node uses another backend.
    #[error("its backend is {0:?}")]
    Backend(String),
    /// The address cannot be that of a node.
    #[error("annotation {0} has {1:?}, which is not the address of a node")]
    PublicIp(&'static str, String),
    /// The data names no hardware address.
    #[error("annotation {0} names no hardware address of a device")]
    Data(&'static str),
    /// The node names no address at all.
    #[error("it has no annotation public-ip")]
    NoPlace,
}

fn shown(text: &str) -> String {
    let mut end = text.len().min(SHOWN_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

/// Data of the backend vxlan.
#[derive(Deserialize)]
struct VxlanData {
    #[serde(rename = "VtepMAC")]
    vtep_mac: String,
}

fn parse_public_ip(text: &str, is_v6: bool) -> Option<IpAddr> {
    let ip = match is_v6 {
        true => text.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
        false => text.parse::<Ipv4Addr>().ok().map(IpAddr::V4),
    };
    ip.filter(|ip| is_host_address(*ip))
}

/// Reads the address to which other nodes of that family send.
#[must_use]
pub fn announced_ip(annotations: &Annotations, is_v6: bool) -> Option<IpAddr> {
    parse_public_ip(find(annotations, keys(is_v6).public_ip)?, is_v6)
}

/// Reads the hardware address of the vxlan device of a node of that family.
#[must_use]
pub fn announced_mac(annotations: &Annotations, is_v6: bool) -> Option<HardwareAddress> {
    let text = find(annotations, keys(is_v6).data)?;
    if text.len() > MAX_DATA_BYTES {
        return None;
    }
    let data: VxlanData = serde_json::from_str(text).ok()?;
    HardwareAddress::parse(&data.vtep_mac)
}

fn read_place(
    annotations: &Annotations,
    backend: PodNetworkBackend,
    is_v6: bool,
) -> Result<Option<NodePlace>, AnnouncementFault> {
    let keys = keys(is_v6);
    let Some(text) = find(annotations, keys.public_ip) else {
        return Ok(None);
    };
    let public_ip = parse_public_ip(text, is_v6)
        .ok_or_else(|| AnnouncementFault::PublicIp(keys.public_ip, shown(text)))?;
    let mac = match backend {
        PodNetworkBackend::Vxlan => {
            announced_mac(annotations, is_v6).ok_or(AnnouncementFault::Data(keys.data))?
        }
        PodNetworkBackend::HostGateway => HardwareAddress::default(),
    };
    Ok(Some(NodePlace { public_ip, mac }))
}

/// Reads the announcement of a node; `None`: the node takes no part. A family whose annotations are wrong is left out.
///
/// - Errors: nothing of it can be used.
pub fn read_announcement(
    annotations: &Annotations,
    backend: PodNetworkBackend,
) -> Result<Option<NodeAnnouncement>, AnnouncementFault> {
    if find(annotations, MANAGED) != Some("true") {
        return Ok(None);
    }
    let kind = find(annotations, TYPE).unwrap_or_default();
    if kind != backend.name() {
        return Err(AnnouncementFault::Backend(shown(kind)));
    }
    let mut read = NodeAnnouncement::default();
    let places = [(false, &mut read.v4), (true, &mut read.v6)];
    for (is_v6, place) in places {
        match read_place(annotations, backend, is_v6) {
            Ok(found) => *place = found,
            Err(fault) => read.fault = Some(fault),
        }
    }
    match (&read.v4, &read.v6) {
        (None, None) => Err(read.fault.unwrap_or(AnnouncementFault::NoPlace)),
        _ => Ok(Some(read)),
    }
}

/// Chooses the address that this node announces: `own` unless an annotation names another, or `external` is to be used.
#[must_use]
pub fn announced_address(
    annotations: &Annotations,
    own: IpAddr,
    external: Option<IpAddr>,
) -> IpAddr {
    let is_v6 = own.is_ipv6();
    let overwrite = find(annotations, keys(is_v6).overwrite);
    let overwrite = overwrite.and_then(|text| parse_public_ip(text, is_v6));
    overwrite.or(external).unwrap_or(own)
}

/// Announcement of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnAnnouncement {
    /// Backend that the node uses.
    pub backend: PodNetworkBackend,
    /// Identifier of the network between vxlan devices.
    pub vni: u32,
    /// Place of each family in use, at most one of each.
    pub places: Vec<NodePlace>,
}

impl OwnAnnouncement {
    fn wanted_annotations(&self) -> Vec<(&'static str, String)> {
        let mut wanted = vec![
            (MANAGED, "true".to_owned()),
            (TYPE, self.backend.name().to_owned()),
        ];
        for place in &self.places {
            let keys = keys(place.public_ip.is_ipv6());
            wanted.push((keys.public_ip, format!("{}", place.public_ip)));
            let data = match self.backend {
                // As flannel writes it: nodes compare the text.
                PodNetworkBackend::Vxlan => {
                    format!("{{\"VNI\":{},\"VtepMAC\":\"{}\"}}", self.vni, place.mac)
                }
                PodNetworkBackend::HostGateway => "null".to_owned(),
            };
            wanted.push((keys.data, data));
        }
        wanted
    }

    /// Writes the patch of the Node that makes its annotations say this; `None`: they say it already.
    #[must_use]
    pub fn patch_for(&self, annotations: &Annotations) -> Option<Value> {
        let wanted = self.wanted_annotations().into_iter();
        let changed = wanted.filter(|(name, text)| find(annotations, name) != Some(text));
        let changed: Map<String, Value> = changed
            .map(|(name, text)| (format!("{PREFIX}{name}"), text.into()))
            .collect();
        (!changed.is_empty()).then(|| json!({ "metadata": { "annotations": changed } }))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Annotations of flannel, by their names without the prefix.
    pub(crate) fn annotations(pairs: &[(&str, &str)]) -> Annotations {
        let pairs = pairs.iter();
        pairs
            .map(|(name, text)| (format!("{PREFIX}{name}"), (*text).to_owned()))
            .collect()
    }

    const MAC: &str = r#"{"VNI":1,"VtepMAC":"02:00:00:00:00:0a"}"#;
    const BASE: [(&str, &str); 2] = [(MANAGED, "true"), (TYPE, "vxlan")];

    fn with(more: &[(&str, &str)]) -> Annotations {
        let mut all = annotations(&BASE);
        all.extend(annotations(more));
        all
    }

    fn place(ip: &str, last: u8) -> NodePlace {
        NodePlace {
            public_ip: ip.parse().expect(ip),
            mac: HardwareAddress([2, 0, 0, 0, 0, last]),
        }
    }

    #[test]
    fn announcements_are_read() {
        // FLAN-01 FLAN-18
        let read = |a: &Annotations| read_announcement(a, PodNetworkBackend::Vxlan);
        assert_eq!(read(&annotations(&[(TYPE, "vxlan")])), Ok(None));
        assert_eq!(read(&with(&[(MANAGED, "false")])), Ok(None));
        let v4 = [("public-ip", "192.0.2.7"), ("backend-data", MAC)];
        let v6 = [("public-ipv6", "2001:db8::7"), ("backend-v6-data", MAC)];
        let both: Vec<_> = v4.into_iter().chain(v6).collect();
        let full = NodeAnnouncement {
            v4: Some(place("192.0.2.7", 10)),
            v6: Some(place("2001:db8::7", 10)),
            fault: None,
        };
        assert_eq!(read(&with(&both)), Ok(Some(full.clone())));
        let only = |v4, v6, fault| Ok(Some(NodeAnnouncement { v4, v6, fault }));
        assert_eq!(read(&with(&v4)), only(full.v4, None, None));
        assert_eq!(read(&with(&v6)), only(None, full.v6, None));
        let mut half = with(&both);
        half.extend(annotations(&[("public-ipv6", "nowhere")]));
        let fault = AnnouncementFault::PublicIp("public-ipv6", "nowhere".into());
        assert_eq!(read(&half), only(full.v4, None, Some(fault)));
    }

    #[test]
    fn wrong_announcements_are_refused() {
        // FLAN-01
        let long = format!(
            "{{\"VtepMAC\":\"02:00:00:00:00:0a\",\"x\":\"{}\"}}",
            "x".repeat(MAX_DATA_BYTES)
        );
        let ip = ("public-ip", "192.0.2.7");
        for (more, says) in [
            (&[(TYPE, "wireguard")][..], "its backend is \"wireguard\""),
            (&[(TYPE, "")], "its backend is \"\""),
            (&[], "it has no annotation public-ip"),
            (
                &[ip],
                "annotation backend-data names no hardware address of a device",
            ),
            (
                &[ip, ("backend-data", "null")],
                "annotation backend-data names",
            ),
            (
                &[ip, ("backend-data", "{\"VtepMAC\":")],
                "annotation backend-data names",
            ),
            (&[ip, ("backend-data", &long)], "annotation backend-data"),
            (
                &[ip, ("backend-data", r#"{"VtepMAC":"01:00:00:00:00:0a"}"#)],
                "annotation backend-data",
            ),
            (
                &[ip, ("backend-data", r#"{"VtepMAC":"00:00:00:00:00:00"}"#)],
                "annotation backend-data",
            ),
            (
                &[
                    ip,
                    ("backend-data", r#"{"VtepMAC":"02:00:00:00:00:0a:0b"}"#),
                ],
                "annotation backend-data",
            ),
            (
                &[("public-ip", "127.0.0.1"), ("backend-data", MAC)],
                "annotation public-ip has \"127.0.0.1\", which is not the address of a node",
            ),
            (
                &[("public-ip", "fd00::1"), ("backend-data", MAC)],
                "annotation public-ip has \"fd00::1\"",
            ),
        ] {
            let read = read_announcement(&with(more), PodNetworkBackend::Vxlan);
            let fault = read.expect_err(says);
            assert!(format!("{fault}").starts_with(says), "{fault} {says}");
        }
        let long = with(&[(TYPE, &"ä".repeat(99))]);
        let fault = read_announcement(&long, PodNetworkBackend::Vxlan).expect_err("another");
        assert_eq!(fault, AnnouncementFault::Backend("ä".repeat(32)));
    }

    #[test]
    fn a_gateway_needs_no_data() {
        // FLAN-16
        let mut all = with(&[("public-ip", "192.0.2.7"), ("backend-data", "null")]);
        all.extend(annotations(&[(TYPE, "host-gw")]));
        let read = read_announcement(&all, PodNetworkBackend::HostGateway);
        let place = NodePlace {
            mac: HardwareAddress::default(),
            ..place("192.0.2.7", 0)
        };
        let read = read.expect("right").expect("it takes part");
        assert_eq!((read.v4, read.v6), (Some(place), None));
    }

    #[test]
    fn own_annotations_are_written_if_they_differ() {
        // FLAN-03
        let own = OwnAnnouncement {
            backend: PodNetworkBackend::Vxlan,
            vni: 1,
            places: vec![place("192.0.2.7", 10), place("2001:db8::7", 11)],
        };
        let patch = own.patch_for(&Annotations::new()).expect("all is new");
        assert_eq!(
            patch,
            json!({"metadata": {"annotations": {
                "flannel.alpha.coreos.com/kube-subnet-manager": "true",
                "flannel.alpha.coreos.com/backend-type": "vxlan",
                "flannel.alpha.coreos.com/public-ip": "192.0.2.7",
                "flannel.alpha.coreos.com/backend-data": MAC,
                "flannel.alpha.coreos.com/public-ipv6": "2001:db8::7",
                "flannel.alpha.coreos.com/backend-v6-data": MAC.replace("0a", "0b"),
            }}})
        );
        let texts = &patch["metadata"]["annotations"];
        let mut written: Annotations = serde_json::from_value(texts.clone()).expect("texts");
        assert_eq!(own.patch_for(&written), None);
        written.extend(annotations(&[("public-ip", "192.0.2.8")]));
        let patch = own.patch_for(&written).expect("one differs");
        assert_eq!(
            patch,
            json!({"metadata": {"annotations": {"flannel.alpha.coreos.com/public-ip": "192.0.2.7"}}})
        );
        let gateway = OwnAnnouncement {
            backend: PodNetworkBackend::HostGateway,
            places: vec![place("192.0.2.7", 0)],
            ..own
        };
        let patch = gateway.patch_for(&written).expect("another backend");
        let data = &patch["metadata"]["annotations"]["flannel.alpha.coreos.com/backend-data"];
        assert_eq!(data, "null");
    }

    #[test]
    fn the_announced_address() {
        // FLAN-10
        let own: IpAddr = "10.0.0.7".parse().expect("an address");
        let external: IpAddr = "192.0.2.7".parse().expect("an address");
        let none = Annotations::new();
        assert_eq!(announced_address(&none, own, None), own);
        assert_eq!(announced_address(&none, own, Some(external)), external);
        for (text, announced) in [("198.51.100.1", "198.51.100.1"), ("x", "192.0.2.7")] {
            let named = annotations(&[("public-ip-overwrite", text)]);
            let found = announced_address(&named, own, Some(external));
            assert_eq!(found, announced.parse::<IpAddr>().expect("an address"));
        }
        let local = HardwareAddress::from_random([0xff; 6]);
        assert_eq!(format!("{local}"), "fe:ff:ff:ff:ff:ff");
        assert_eq!(HardwareAddress::from_random([0; 6]).0, [2, 0, 0, 0, 0, 0]);
    }
}
