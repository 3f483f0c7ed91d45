//! Look at one Node: the addresses of its pods, and whether it takes part (FLAN-01).

use alloc::{string::String, vec::Vec};

use serde::Deserialize;
use serde_json::Value;

use super::{
    PodNetworkBackend,
    announcement::{Annotations, read_announcement},
};
use crate::node::Cidr;

/// Node as one look at it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeLook {
    /// UID of the Node object.
    pub uid: String,
    /// Ranges of its pods.
    pub ranges: Vec<Cidr>,
    /// Set for IPv4, and for IPv6, if the node has a range that is no network with room for pods.
    pub has_wrong: [bool; 2],
    /// Set if it takes part in the network.
    pub takes_part: bool,
}

/// The fields of a Node that count here. Whatever else it has may be of any kind.
#[derive(Default, Deserialize)]
#[serde(default)]
struct LookedNode {
    metadata: LookedMetadata,
    spec: LookedSpec,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct LookedMetadata {
    uid: String,
    annotations: Option<Annotations>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct LookedSpec {
    #[serde(rename = "podCIDR")]
    pod_cidr: Option<String>,
    #[serde(rename = "podCIDRs")]
    pod_cidrs: Option<Vec<String>>,
}

/// Takes from a Node what counts; `None`: it cannot be read.
#[must_use]
pub fn look_at_node(object: Value, backend: PodNetworkBackend) -> Option<NodeLook> {
    let LookedNode { metadata, spec } = serde_json::from_value(object).ok()?;
    let annotations = metadata.annotations.unwrap_or_default();
    let one = spec.pod_cidr.unwrap_or_default();
    let many = spec.pod_cidrs.unwrap_or_default();
    let wrong: Vec<&str> = node_range_texts(&one, &many)
        .filter(|text| !text.is_empty() && text.parse::<Cidr>().is_err())
        .collect();
    Some(NodeLook {
        uid: metadata.uid,
        ranges: node_ranges(&one, &many),
        has_wrong: [false, true].map(|is_v6| wrong.iter().any(|it| it.contains(':') == is_v6)),
        takes_part: matches!(read_announcement(&annotations, backend), Ok(Some(_))),
    })
}

/// Texts of the ranges that count: at most one a family.
fn node_range_texts<'a>(
    pod_cidr: &'a str,
    pod_cidrs: &'a [String],
) -> impl Iterator<Item = &'a str> {
    const FAMILIES: usize = 2;
    let many = pod_cidrs.iter().map(String::as_str);
    let all = many.chain(pod_cidrs.is_empty().then_some(pod_cidr));
    all.take(FAMILIES)
}

/// Reads the ranges of a node's pods: at most one of each family. One that cannot be read is left out.
#[must_use]
pub fn node_ranges(pod_cidr: &str, pod_cidrs: &[String]) -> Vec<Cidr> {
    let mut ranges: Vec<Cidr> = Vec::new();
    let texts = node_range_texts(pod_cidr, pod_cidrs);
    for range in texts.filter_map(|text| text.parse::<Cidr>().ok()) {
        let is_new = |known: &Cidr| known.address.is_ipv4() != range.address.is_ipv4();
        if ranges.iter().all(is_new) {
            ranges.push(range);
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use alloc::borrow::ToOwned as _;

    use serde_json::json;

    use super::*;

    fn range(text: &str) -> Cidr {
        text.parse().expect(text)
    }

    #[test]
    fn only_what_counts_of_a_node_is_read() {
        // FLAN-01 FLAN-09
        let look = |node: Value| look_at_node(node, PodNetworkBackend::HostGateway);
        let annotations = json!({
            "flannel.alpha.coreos.com/kube-subnet-manager": "true",
            "flannel.alpha.coreos.com/backend-type": "host-gw",
            "flannel.alpha.coreos.com/public-ip": "192.0.2.1",
        });
        let node = json!({
            "metadata": {"uid": "u", "annotations": annotations, "creationTimestamp": 7},
            "spec": {"podCIDRs": ["10.42.1.0/24"], "taints": "none"},
            "status": [],
        });
        let whole = NodeLook {
            uid: "u".into(),
            ranges: vec![range("10.42.1.0/24")],
            has_wrong: [false; 2],
            takes_part: true,
        };
        assert_eq!(look(node), Some(whole));
        let bare = NodeLook {
            uid: "u".into(),
            ranges: Vec::new(),
            has_wrong: [false; 2],
            takes_part: false,
        };
        let node =
            json!({"metadata": {"uid": "u", "annotations": null}, "spec": {"podCIDRs": null}});
        assert_eq!(look(node), Some(bare));
        let wrong = json!({"metadata": {"uid": "u"}, "spec": {"podCIDR": 7}});
        assert_eq!(look(wrong), None);
        for (spec, has_wrong) in [
            (json!({"podCIDR": "0.0.0.0/0"}), [true, false]),
            (json!({"podCIDR": "10.42.1.0/31"}), [true, false]),
            (json!({"podCIDR": ""}), [false, false]),
            (
                json!({"podCIDRs": ["10.42.1.0/24", "fd42::/127"]}),
                [false, true],
            ),
        ] {
            let node = json!({"metadata": {"uid": "u"}, "spec": spec});
            let looked = look(node).expect("a Node");
            assert_eq!(looked.has_wrong, has_wrong, "{spec}");
        }
    }

    #[test]
    fn ranges_of_nodes() {
        // FLAN-01
        let many = |texts: &[&str]| texts.iter().map(|t| (*t).to_owned()).collect::<Vec<_>>();
        for (one, all, expected) in [
            ("10.42.1.0/24", &[][..], &["10.42.1.0/24"][..]),
            ("", &[], &[]),
            ("x", &[], &[]),
            ("10.42.1.0/24", &["10.42.2.0/24"], &["10.42.2.0/24"]),
            (
                "",
                &["10.42.2.0/24", "fd42::/64"],
                &["10.42.2.0/24", "fd42::/64"],
            ),
            ("", &["10.42.2.0/24", "10.42.3.0/24"], &["10.42.2.0/24"]),
            ("", &["x", "fd42::/64", "10.42.2.0/24"], &["fd42::/64"]),
        ] {
            let expected: Vec<_> = expected.iter().map(|text| range(text)).collect();
            assert_eq!(node_ranges(one, &many(all)), expected, "{one} {all:?}");
        }
    }
}
