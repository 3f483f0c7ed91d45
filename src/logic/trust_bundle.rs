//! Trust bundles of projected volumes: the object or the selection that a source names, and the text of the file
//! (CTB-01, CTB-02).

use alloc::{string::String, vec::Vec};

use super::pod_refs::{PodObjectKey, PodObjectKind};
use crate::api::PodError;
use crate::api::pod::{ClusterTrustBundleProjection, LabelSelector};

/// Longest selection of bundles, bytes: it is a part of a URL.
const MAX_SELECTION_BYTES: usize = 4096;
/// Most bytes of all certificates that one source may choose: as many as one object of the API may have.
const MAX_ANCHOR_BYTES: usize = 1 << 20;
/// Most bundles and selections of bundles of one pod: all of them are in memory while its volumes are made.
pub const MAX_POD_BUNDLES: usize = 16;
/// Separates signer and labels in the name of a selection. No name of a bundle has it, and no name of a signer.
const SEPARATOR: char = '?';

/// Names the bundle, or the bundles, that a source chooses; `None`: it chooses none.
///
/// Errors: the source says neither, or both.
pub fn bundle_key(source: &ClusterTrustBundleProjection) -> Result<Option<PodObjectKey>, PodError> {
    let name = match (&*source.name, &*source.signer_name) {
        ("", "") => return Err(wrong_source("either name or signerName must be specified")),
        (name, "") => name.into(),
        ("", signer) => match &source.label_selector {
            None => return Ok(None),
            Some(selector) => format!("{signer}{SEPARATOR}{}", selector_text(selector)?),
        },
        _ => return Err(wrong_source("only one of name and signerName may be used")),
    };
    if name.len() > MAX_SELECTION_BYTES {
        return Err(wrong_source(&format!(
            "a selection of ClusterTrustBundles has more than {MAX_SELECTION_BYTES} bytes"
        )));
    }
    let kind = PodObjectKind::TrustBundle;
    Ok(Some(PodObjectKey::new(kind, "", &name)))
}

/// The error of each further bundle of a pod.
#[must_use]
pub fn many_error() -> PodError {
    wrong_source(&format!(
        "the pod chooses more than {MAX_POD_BUNDLES} ClusterTrustBundles or selections of them"
    ))
}

fn wrong_source(why: &str) -> PodError {
    PodError::Spec(format!("clusterTrustBundle: {why}"))
}

/// Splits the name of a [`bundle_key`] that is a selection into signer and labels; `None`: it is the name of a bundle.
#[must_use]
pub fn split_selection(name: &str) -> Option<(&str, &str)> {
    name.split_once(SEPARATOR)
}

/// Writes a selector as a query of the API has it; an empty one chooses everything.
fn selector_text(selector: &LabelSelector) -> Result<String, PodError> {
    let labels = selector.match_labels.iter();
    let mut parts: Vec<String> = labels
        .map(|(label, value)| format!("{label}={value}"))
        .collect();
    for wanted in &selector.match_expressions {
        let (key, values) = (&*wanted.key, wanted.values.join(","));
        parts.push(match &*wanted.operator {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "Exists" => key.into(),
            "DoesNotExist" => format!("!{key}"),
            other => {
                return Err(wrong_source(&format!(
                    "{other:?} is not a valid label selector operator"
                )));
            }
        });
    }
    Ok(parts.join(","))
}

/// Certificates that a source chooses, each once, in an order that only their content decides.
#[derive(Debug, Default)]
pub struct TrustAnchors {
    /// DER
    found: Vec<Vec<u8>>,
    bytes: usize,
}

impl TrustAnchors {
    /// Adds the certificates of one bundle. Errors: there are too many.
    pub fn add_bundle(
        &mut self,
        certificates: impl IntoIterator<Item = Vec<u8>>,
    ) -> Result<(), PodError> {
        for certificate in certificates {
            let Err(at) = self.found.binary_search(&certificate) else {
                continue;
            };
            self.bytes += certificate.len();
            if self.bytes > MAX_ANCHOR_BYTES {
                return Err(PodError::Object(format!(
                    "the chosen ClusterTrustBundles have more than {MAX_ANCHOR_BYTES} bytes of certificates"
                )));
            }
            self.found.insert(at, certificate);
        }
        Ok(())
    }

    /// The certificates in DER, sorted.
    pub fn certificates(&self) -> impl Iterator<Item = &[u8]> {
        self.found.iter().map(Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use alloc::{string::ToString as _, vec};

    use serde_json::{Value, json};

    use super::*;

    fn key_of(source: Value) -> String {
        let source = serde_json::from_value(source).expect("source");
        match bundle_key(&source) {
            Ok(Some(key)) => key.name.into(),
            Ok(None) => "none".into(),
            Err(e) => format!("error: {e}"),
        }
    }

    #[test]
    fn sources_choose_bundles() {
        // CTB-01
        for (source, want) in [
            (json!({"name": "a:b"}), "a:b"),
            (json!({"signerName": "e.com/s"}), "none"),
            (
                json!({"signerName": "e.com/s", "labelSelector": {}}),
                "e.com/s?",
            ),
            (
                json!({"signerName": "e.com/s", "labelSelector": {"matchLabels": {"b": "1", "a": "2"}, "matchExpressions": [
                    {"key": "c", "operator": "In", "values": ["x", "y"]}, {"key": "d", "operator": "NotIn", "values": ["z"]},
                    {"key": "e", "operator": "Exists"}, {"key": "f", "operator": "DoesNotExist"}]}}),
                "e.com/s?a=2,b=1,c in (x,y),d notin (z),e,!f",
            ),
            (
                json!({"signerName": "s", "labelSelector": {"matchExpressions": [{"key": "c", "operator": "Like"}]}}),
                "error: clusterTrustBundle: \"Like\" is not a valid label selector operator",
            ),
            (
                json!({"path": "p"}),
                "error: clusterTrustBundle: either name or signerName must be specified",
            ),
            (
                json!({"name": "a", "signerName": "b"}),
                "error: clusterTrustBundle: only one of name and signerName may be used",
            ),
        ] {
            assert_eq!(key_of(source.clone()), want, "{source}");
        }
        assert_eq!(split_selection("e.com/s?a=2"), Some(("e.com/s", "a=2")));
        assert_eq!(split_selection("a:b"), None);
        let long = "x".repeat(MAX_SELECTION_BYTES + 1);
        assert!(key_of(json!({"name": long})).contains("more than 4096 bytes"));
    }

    #[test]
    fn anchors_are_sorted_and_unique() {
        // CTB-01 CTB-02
        let merged = |bundles: &[&[&[u8]]]| {
            let mut anchors = TrustAnchors::default();
            for bundle in bundles {
                let certificates = bundle.iter().map(|der| der.to_vec());
                anchors.add_bundle(certificates).expect("few");
            }
            anchors
                .certificates()
                .map(<[u8]>::to_vec)
                .collect::<Vec<_>>()
        };
        let (a, b, c) = (&b"a"[..], &b"b"[..], &b"c"[..]);
        let want = [b"a", b"b", b"c"].map(|der| der.to_vec());
        assert_eq!(merged(&[&[c, a], &[b, a]]), want);
        assert_eq!(merged(&[&[a, b], &[a, c, c]]), want, "whatever the order");
        let mut anchors = TrustAnchors::default();
        let half = vec![vec![0; MAX_ANCHOR_BYTES / 2], vec![1; MAX_ANCHOR_BYTES / 2]];
        anchors.add_bundle(half.clone()).expect("fits");
        anchors.add_bundle(half).expect("nothing new");
        let error = anchors.add_bundle([b"x".to_vec()]).expect_err("too many");
        assert!(error.to_string().contains("1048576 bytes"), "{error}");
    }
}
