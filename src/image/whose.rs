//! Holders of a layer: the pods that may have it from the store without fetching it.
//!
//! An image names its layers by digest, and whoever writes an image can name any. A layer that came with a pod's own
//! Secret is therefore not given to another pod just because that pod's image names it: with a registry of her own the
//! other pod's author would read what she may not pull. A pull takes such a layer from the store
//!
//! - if the same credential had it from the same registry before, or
//! - if the registry that it came from has the very blob in this repository, for these credentials (a HEAD request; the word
//!   of another registry counts for nothing).
//!
//! Else it is fetched like a missing one, and the copy is thrown away once its digests are right: who has the bytes may
//! have the layer. A layer that came anonymously, with the node's own credentials, or from a file of the operator's is
//! open to every pod.

use alloc::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::digest::Digest;
use super::record::LayerRecord;
use super::registry::RegistryCredential;

/// Holders kept for one layer; with more the first ones go, and have to ask again.
const MAX_HOLDERS: usize = 8;
/// Hex digits of a hash that is kept.
const HEX_DIGITS: usize = 32;

/// A holder of a layer, in hashes: nothing of a Secret is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LayerHolder {
    /// Hash of the registry and the credential.
    pub by: String,
    /// Hash of the registry and the layer's blob there.
    pub blob: String,
}

/// A way into a registry.
#[derive(Clone, Debug)]
pub(super) struct RegistryAccess {
    registry: String,
    /// Hash of registry and credential; `None`: the way is open to every pod of the node.
    by: Option<String>,
}

impl RegistryAccess {
    /// `registry`: the domain of the image's name. `own`: the credential, if only the pod has it.
    pub(super) fn new(registry: &str, own: Option<&RegistryCredential>) -> Self {
        Self {
            registry: registry.into(),
            by: own.map(|credential| hash_words(&[registry, &credential.credential_digest()])),
        }
    }

    /// The domain of the image's name.
    pub(super) fn registry_domain(&self) -> &str {
        &self.registry
    }

    /// Hash that tells this way from other ways into the registry; `None`: it is open to every pod.
    pub(super) fn credential_hash(&self) -> Option<&str> {
        self.by.as_deref()
    }

    fn blob_hash(&self, blob: Digest) -> String {
        hash_words(&[&self.registry, &blob.to_string()])
    }

    /// Returns true if every pod that goes this way had this layer, or if its holders are not known (a record of an
    /// earlier version).
    pub(super) fn holds_layer(&self, layer: &LayerRecord) -> bool {
        let had = |holder: &LayerHolder| Some(holder.by.as_str()) == self.credential_hash();
        layer.open || layer.holders.is_empty() || layer.holders.iter().any(had)
    }

    /// Notes that this way led to the layer, there called `blob`.
    pub(super) fn record_holder(&self, layer: &mut LayerRecord, blob: Option<Digest>) {
        let Some(by) = &self.by else {
            layer.open = true;
            layer.holders.clear();
            return;
        };
        if layer.open {
            return;
        }
        let holder = LayerHolder {
            by: by.clone(),
            blob: blob.map(|blob| self.blob_hash(blob)).unwrap_or_default(),
        };
        // A pod that has the layer already was not asked for this blob: another layer may be behind its digest.
        let has = layer.holders.iter().any(|h| h.by == holder.by);
        let known = layer.holders.iter().any(|h| h.blob == holder.blob);
        if !layer.holders.contains(&holder) && (known || !has) {
            layer.holders.push(holder);
        }
        let over = layer.holders.len().saturating_sub(MAX_HOLDERS);
        layer.holders.drain(..over);
    }
}

/// Layers that a pull may take from the store.
#[derive(Clone, Debug)]
pub(super) struct LayerSharing<'a> {
    pub(super) way: &'a RegistryAccess,
    /// Blobs that the registry said to have.
    pub(super) confirmed: BTreeSet<Digest>,
}

/// Permission to take a layer from the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SharePermission {
    Yes,
    /// Yes, if the registry has the blob.
    Ask,
    No,
}

impl LayerSharing<'_> {
    /// Judges a layer. `blob`: its digest in the image's manifest.
    pub(super) fn judge_layer(&self, layer: &LayerRecord, blob: Option<Digest>) -> SharePermission {
        let had = |holder: &LayerHolder| Some(holder.by.as_str()) == self.way.credential_hash();
        if layer.open || layer.holders.iter().any(had) {
            return SharePermission::Yes;
        }
        let Some(blob) = blob else {
            return SharePermission::No;
        };
        let here = self.way.blob_hash(blob);
        if !layer.holders.iter().any(|holder| holder.blob == here) {
            return SharePermission::No;
        }
        match self.confirmed.contains(&blob) {
            true => SharePermission::Yes,
            false => SharePermission::Ask,
        }
    }
}

/// Adds the holders of another copy of the record.
pub(super) fn merge_holders(layer: &mut LayerRecord, other: &LayerRecord) {
    layer.open |= other.open;
    if layer.open {
        layer.holders.clear();
    }
    for holder in &other.holders {
        if !layer.open && layer.holders.len() < MAX_HOLDERS && !layer.holders.contains(holder) {
            layer.holders.push(holder.clone());
        }
    }
}

fn hash_words(words: &[&str]) -> String {
    // None of them has a line feed.
    let mut hex = Digest::compute(words.join("\n").as_bytes()).hex();
    hex.truncate(HEX_DIGITS);
    hex
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credential(password: &str) -> RegistryCredential {
        RegistryCredential {
            username: "user".into(),
            password: password.into(),
            ..RegistryCredential::default()
        }
    }

    #[test]
    fn who_may_have_what() {
        let (secret, other) = (credential("secret"), credential("other"));
        let [blob, wrong] = [b"blob", b"else"].map(|data| Digest::compute(data));
        let at = |registry: &str, own| RegistryAccess::new(registry, own);
        let layer = |ways: &[RegistryAccess]| {
            let mut layer = LayerRecord::default();
            ways.iter()
                .for_each(|way| way.record_holder(&mut layer, Some(blob)));
            layer
        };
        let (yes, ask, no) = (
            SharePermission::Yes,
            SharePermission::Ask,
            SharePermission::No,
        );
        let own = at("r", Some(&secret));
        let held = core::slice::from_ref(&own);
        for (name, had, way, named, want) in [
            ("an old record", &[][..], at("r", None), blob, no),
            (
                "everybody's",
                &[at("r", None)],
                at("evil", None),
                wrong,
                yes,
            ),
            ("the same Secret", held, own.clone(), wrong, yes),
            ("another one", held, at("r", Some(&other)), blob, ask),
            ("none", held, at("r", None), blob, ask),
            ("another blob there", held, at("r", None), wrong, no),
            ("another registry", held, at("evil", None), blob, no),
            (
                "the Secret elsewhere",
                held,
                at("evil", Some(&secret)),
                blob,
                no,
            ),
            (
                "opened later",
                &[own.clone(), at("r", None)],
                at("evil", None),
                blob,
                yes,
            ),
        ] {
            let mut shares = LayerSharing {
                way: &way,
                confirmed: BTreeSet::new(),
            };
            let layer = layer(had);
            assert_eq!(shares.judge_layer(&layer, Some(named)), want, "{name}");
            shares.confirmed.insert(named);
            let then = if want == ask { yes } else { want };
            assert_eq!(
                shares.judge_layer(&layer, Some(named)),
                then,
                "{name}, confirmed"
            );
        }
        // A manifest that the holder pulled named a blob that nobody looked at.
        let mut named = layer(held);
        own.record_holder(&mut named, Some(wrong));
        let stranger = at("r", None);
        let shares = LayerSharing {
            way: &stranger,
            confirmed: [wrong].into(),
        };
        assert_eq!(shares.judge_layer(&named, Some(wrong)), no);
        let many = (0..20).map(|n| RegistryAccess::new("r", Some(&credential(&n.to_string()))));
        let many = layer(&many.collect::<Vec<_>>());
        assert_eq!(many.holders.len(), MAX_HOLDERS);
        let mut joined = layer(held);
        merge_holders(&mut joined, &many);
        assert_eq!(joined.holders.len(), MAX_HOLDERS);
        merge_holders(&mut joined, &layer(&[at("r", None)]));
        assert!(joined.open && joined.holders.is_empty());
    }
}
