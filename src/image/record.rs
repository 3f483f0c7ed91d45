//! The store's record of an image: one versioned JSON file each.

use serde::{Deserialize, Serialize};

use super::sum::LayerSum;
use super::whose::LayerHolder;
use crate::api::cri;
use crate::api::oci::ImageConfig;

/// Version of the record written. Readers accept every released version; there is one so far.
pub const RECORD_VERSION: u32 = 1;
/// Largest record read, bytes: a configuration of [`super::MAX_JSON_BYTES`] with every byte escaped stays below.
pub const MAX_RECORD_BYTES: u64 = 32 * 1024 * 1024;

/// An image that is whole and on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ImageRecord {
    /// [`RECORD_VERSION`].
    pub v: u32,
    /// `sha256:` and the digest of the image configuration.
    pub id: String,
    /// Order of writing within this store: of two records that claim one name, the higher has it.
    pub sequence: u64,
    /// Tagged names, normalised (`docker.io/library/busybox:1.36`), sorted.
    pub names: Vec<String>,
    /// Names by digest, normalised (`docker.io/library/busybox@sha256:…`), sorted. Empty for docker-archives.
    pub digests: Vec<String>,
    /// The name among `digests` that the image was last pulled or imported by: of the index, if there is one. Records
    /// written before this was kept have none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub led_by: String,
    /// Bytes of the files of all layers, unpacked.
    pub size_bytes: u64,
    /// Set if `prune_images` and image GC keep the image: its archive lies in the drop-in directory.
    pub pinned: bool,
    /// Set if the image came from a registry at least once: it can be pulled again, so image GC may remove it.
    #[serde(skip_serializing_if = "core::ops::Not::not")]
    pub pulled: bool,
    /// Lowest first, at most [`super::MAX_LAYERS`].
    pub layers: Vec<LayerRecord>,
    /// Configuration: entrypoint, command, environment, user, working directory, stop signal.
    pub config: ImageConfig,
}

/// An unpacked layer, shared by every image that has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LayerRecord {
    /// Key by which images share the layer: the diff id, or the chain id if its content depends on the layers below
    /// (see [`super::layer`]).
    pub key: String,
    /// Digest of its uncompressed tar stream.
    pub diff_id: String,
    /// Name of its directory below `layers/`: 16 hex digits.
    pub dir: String,
    /// Bytes of its files.
    pub size_bytes: u64,
    /// Set if the layer leaves directories to the layers below. Then it may be shared as lowest layer only.
    pub leans: bool,
    /// Set if the layer hides every layer below.
    pub opaque: bool,
    /// Set if every pod may have the layer: see [`super::whose`].
    #[serde(skip_serializing_if = "core::ops::Not::not")]
    pub open: bool,
    /// Holders of the layer if it is not open. Records written before this was kept have none: their pulled layers are
    /// fetched once more.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub holders: Vec<LayerHolder>,
    /// Sum of the layer as it was unpacked. Records written before this was kept have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sum: Option<LayerSum>,
}

impl ImageRecord {
    /// The image in CRI's words.
    #[must_use]
    pub fn to_cri_image(&self) -> cri::StoredImage {
        let user = self.config.config.user.split(':').next().unwrap_or("");
        let uid = user.parse::<u32>().ok().map(i64::from);
        let mut repo_digests = self.digests.clone();
        // Where one is shown it is the first.
        if let Some(at) = self.pulled_digest_index() {
            repo_digests[..=at].rotate_right(1);
        }
        cri::StoredImage {
            id: self.id.clone(),
            repo_tags: self.names.clone(),
            repo_digests,
            size_bytes: self.size_bytes,
            uid,
            username: if uid.is_none() {
                user.to_owned()
            } else {
                String::new()
            },
            pinned: self.pinned,
            stop_signal: self.config.config.stop_signal.clone(),
        }
    }

    /// The `imageID` of the API: the name by digest that the image was pulled by, else the id.
    #[must_use]
    pub fn image_id(&self) -> &str {
        let led = self.pulled_digest_index().unwrap_or(0);
        self.digests.get(led).unwrap_or(&self.id)
    }

    fn pulled_digest_index(&self) -> Option<usize> {
        self.digests.iter().position(|name| *name == self.led_by)
    }

    /// Layer directories for overlayfs, top first, each once, cut below a layer that hides the rest.
    /// Overlayfs refuses one directory twice; of equal layers only the upper one can be seen.
    pub(super) fn lower_dirs(&self) -> Vec<&str> {
        let mut dirs: Vec<&str> = Vec::with_capacity(self.layers.len());
        for layer in self.layers.iter().rev() {
            if !dirs.contains(&layer.dir.as_str()) {
                dirs.push(&layer.dir);
            }
            if layer.opaque {
                break;
            }
        }
        dirs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(dir: &str, opaque: bool) -> LayerRecord {
        LayerRecord {
            dir: dir.into(),
            opaque,
            ..LayerRecord::default()
        }
    }

    #[test]
    fn lower_dirs() {
        let record = |layers: &[(&str, bool)]| ImageRecord {
            layers: layers.iter().map(|&(d, o)| layer(d, o)).collect(),
            ..ImageRecord::default()
        };
        for (name, layers, want) in [
            (
                "top first",
                &[("a", false), ("b", false)][..],
                &["b", "a"][..],
            ),
            (
                "equal layers once, the upper one stays",
                &[("a", false), ("b", false), ("a", false)],
                &["a", "b"],
            ),
            (
                "nothing below an opaque root",
                &[("a", false), ("b", true), ("c", false)],
                &["c", "b"],
            ),
            ("no layers", &[], &[]),
        ] {
            assert_eq!(record(layers).lower_dirs(), want, "{name}");
        }
    }

    #[test]
    fn the_digest_that_it_was_pulled_by_comes_first() {
        // IMG-22
        let digests = ["a@1", "a@2", "a@3"].map(String::from);
        for (led_by, want) in [
            ("a@2", ["a@2", "a@1", "a@3"]),
            ("a@1", ["a@1", "a@2", "a@3"]),
            // Not kept at the time, or made room for another one.
            ("", ["a@1", "a@2", "a@3"]),
            ("a@9", ["a@1", "a@2", "a@3"]),
        ] {
            let record = ImageRecord {
                digests: digests.clone().into(),
                led_by: led_by.into(),
                ..ImageRecord::default()
            };
            assert_eq!(record.to_cri_image().repo_digests, want, "{led_by}");
            assert_eq!(record.image_id(), want[0], "{led_by}");
        }
    }

    #[test]
    fn user_is_number_or_name() {
        for (user, uid, name) in [
            ("", None, ""),
            ("0", Some(0), ""),
            ("1000:100", Some(1000), ""),
            ("www-data:www", None, "www-data"),
            ("4294967296", None, "4294967296"),
        ] {
            let mut record = ImageRecord::default();
            record.config.config.user = user.into();
            let image = record.to_cri_image();
            assert_eq!(
                (image.uid, image.username.as_str()),
                (uid, name),
                "{user:?}"
            );
        }
    }

    #[test]
    fn record_of_version_1_is_still_read() {
        let text = r#"{"v":1,"id":"sha256:00","sequence":3,"names":["docker.io/library/a:1"],"digests":[],
            "sizeBytes":5,"pinned":true,
            "layers":[{"key":"sha256:aa","diffId":"sha256:aa","dir":"00000000000000aa","sizeBytes":5,"leans":false,"opaque":false}],
            "config":{"architecture":"arm64","os":"linux","config":{"Cmd":["sh"],"Env":["A=b"]},"rootfs":{"type":"layers","diff_ids":["sha256:aa"]}}}"#;
        let record: ImageRecord = serde_json::from_str(text).expect("version 1");
        assert_eq!(record.image_id(), "sha256:00");
        assert_eq!(record.layers[0].dir, "00000000000000aa");
        assert_eq!(record.config.config.env, ["A=b"]);
    }
}
