//! Artefacts: files that a registry keeps under one name, as `oras push` makes them. All calls block.
//!
//! An artefact is fetched like an image: with the same endpoints, credentials, certificates, proxies and limit of bytes
//! per second. Nothing of it goes into the store of images.
//!
//! Source: opencontainers/image-spec 1.1, "Guidelines for Artifact Usage"; `org.opencontainers.image.title` in its annotations.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::ops::ControlFlow;
use std::path::Path;

use super::absent::AbsentServers;
use super::node::NodeCredentials;
use super::{PullSettings, collect_credentials_at, ways};
use crate::api::oci;
use crate::api::strict::from_foreign_json;
use crate::image::digest::Digest;
use crate::image::reference::ImageReference;
use crate::image::registry::RegistryError;
use crate::image::registry::blob::BlobFetch;
use crate::image::registry::http::RegistryHttp;
use crate::image::registry::pace::Throttle;
use crate::image::registry::session::{RegistrySession, TopManifest};
use crate::net::pace::StopFlag;

/// Annotation with the file name of a layer that is a file.
const TITLE: &str = "org.opencontainers.image.title";
/// Most layers of an artefact.
const MAX_FILES: usize = 64;
/// Longest foreign text that an error quotes, in characters.
const MAX_QUOTED_CHARS: usize = 100;

/// Files by name, each with its digest and its size in bytes. At most [`MAX_FILES`].
pub type ArtifactFiles = BTreeMap<String, (Digest, u64)>;

/// Reader of one artefact of a registry.
pub struct ArtifactReader {
    settings: PullSettings,
    node: NodeCredentials,
    absent: AbsentServers,
    reference: ImageReference,
    kind: &'static str,
    stop: Arc<StopFlag>,
}

/// Reason why an artefact could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ArtifactError {
    /// Fault of the registry, of the way to it, or of this machine's disk. A later attempt may succeed.
    #[error("{0}: {1}")]
    Registry(String, String),
    /// The registry's answer is wrong, and several attempts gave a wrong answer.
    #[error("{0}: {1}")]
    Wrong(String, String),
    /// The artefact is of another type.
    #[error("{0} is of type {1:?}, not {2:?}")]
    Kind(String, String, &'static str),
}

impl core::fmt::Debug for ArtifactReader {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Artifact({})", self.reference)
    }
}

impl ArtifactReader {
    /// Makes a reader of the artefact that `reference` names. The artefact has to be of the type `kind`. No registry is
    /// asked yet.
    #[must_use]
    pub fn new(settings: PullSettings, reference: ImageReference, kind: &'static str) -> Self {
        Self {
            node: NodeCredentials::new(&settings),
            absent: AbsentServers::default(),
            settings,
            reference,
            kind,
            stop: Arc::default(),
        }
    }

    /// Name of the artefact.
    #[must_use]
    pub const fn reference(&self) -> &ImageReference {
        &self.reference
    }

    /// Asks the registry for the files that the artefact has now.
    ///
    /// # Errors
    /// The registry does not tell the files, or the artefact is not of the right type.
    pub fn list_files(&self) -> Result<ArtifactFiles, ArtifactError> {
        let digest = self.reference.digest().map(|digest| digest.to_string());
        let tag = self.reference.tag().unwrap_or("latest");
        let name = digest.as_deref().unwrap_or(tag);
        let mut top = None;
        self.ask_endpoints(&mut |session| {
            top = Some(session.read_manifest(name)?);
            Ok(())
        })?;
        self.parse_file_list(&top.expect("it was read"))
    }

    fn parse_file_list(&self, top: &TopManifest) -> Result<ArtifactFiles, ArtifactError> {
        let wrong = |why: String| ArtifactError::Wrong(self.reference.to_string(), why);
        let manifest: oci::Manifest = from_foreign_json(&top.bytes).map_err(|e| {
            wrong(format!(
                "it is no manifest: {}",
                cut_foreign_text(&e.to_string())
            ))
        })?;
        let kinds = [
            manifest.artifact_type,
            manifest.config.media_type,
            top.descriptor.media_type.clone(),
        ];
        let kind = kinds.into_iter().find(|kind| !kind.is_empty());
        let kind = kind.unwrap_or_default();
        if kind != self.kind {
            let reference = self.reference.to_string();
            return Err(ArtifactError::Kind(
                reference,
                cut_foreign_text(&kind),
                self.kind,
            ));
        }
        if manifest.layers.len() > MAX_FILES {
            return Err(wrong(format!("it has more than {MAX_FILES} files")));
        }
        let mut files = ArtifactFiles::new();
        for mut layer in manifest.layers {
            let Some(title) = layer.annotations.remove(TITLE) else {
                continue;
            };
            let digest = Digest::parse(&layer.digest)
                .map_err(|e| wrong(format!("its file {:?}: {e}", cut_foreign_text(&title))))?;
            files.insert(title, (digest, layer.size));
        }
        Ok(files)
    }

    /// Reads a small file. Its digest and size are checked.
    ///
    /// # Errors
    /// The file cannot be fetched.
    pub fn read_file(&self, (digest, size): (Digest, u64)) -> Result<Vec<u8>, ArtifactError> {
        let mut bytes = Vec::new();
        self.ask_endpoints(&mut |session| {
            bytes = session.read_blob_document(digest, size)?;
            Ok(())
        })?;
        Ok(bytes)
    }

    /// Fetches a file into `part`, whole and durable. Bytes that are in `part` already count as the beginning of the
    /// file. After an error the bytes stay there.
    ///
    /// # Errors
    /// The file cannot be fetched, or cannot be written.
    pub fn fetch_file(
        &self,
        (digest, size): (Digest, u64),
        part: &Path,
    ) -> Result<(), ArtifactError> {
        let throttle = Throttle::new(self.settings.bytes_per_second);
        self.ask_endpoints(&mut |session| {
            BlobFetch {
                digest,
                size,
                part,
                throttle: &throttle,
                stop: &self.stop,
                room: &|| Ok(()),
                pause: &|time| session.pause_before_retry(time),
                arrived: &|_| (),
            }
            .fetch_blob(session)
        })
    }

    /// Calls `ask` for one endpoint after the other, with the node's credentials for it.
    fn ask_endpoints(
        &self,
        ask: &mut dyn FnMut(&RegistrySession<'_>) -> Result<(), RegistryError>,
    ) -> Result<(), ArtifactError> {
        let settings = &self.settings;
        let stop = Arc::clone(&self.stop);
        let http = RegistryHttp::new(
            &settings.registries,
            &settings.proxies,
            settings.limits,
            stop,
        );
        let mut outcome = None;
        let mut errors = ways::try_endpoints(
            &http,
            settings.registries.image_endpoints(&self.reference),
            &self.absent,
            &|endpoint| {
                let authority = &endpoint.base.authority;
                let image = match &endpoint.mirrored {
                    None => self.reference.repository().to_owned(),
                    Some(_) => format!("{authority}/{}", endpoint.repository),
                };
                collect_credentials_at(settings, &self.node, &image, authority, false)
            },
            &mut |session, endpoint, _| match ask(session) {
                Err(error) if !error.is_local_fault() => {
                    log::debug!("{} from {}: {error}", self.reference, endpoint.base);
                    ControlFlow::Continue(error)
                }
                result => {
                    outcome = Some(result);
                    ControlFlow::Break(())
                }
            },
        );
        match outcome {
            Some(Ok(())) => return Ok(()),
            Some(Err(error)) => errors = vec![error],
            None => {}
        }
        // A bad link does not spoil every attempt. A server that sent wrong content each time will send it again.
        let is_permanent = |e: &RegistryError| {
            matches!(
                e,
                RegistryError::Wrong { .. } | RegistryError::Unusable { .. }
            )
        };
        let (name, why) = (self.reference.to_string(), ways::join_errors(&errors));
        Err(match errors.iter().all(is_permanent) {
            true => ArtifactError::Wrong(name, why),
            false => ArtifactError::Registry(name, why),
        })
    }
}

/// Returns the beginning of a foreign text.
fn cut_foreign_text(text: &str) -> String {
    text.chars().take(MAX_QUOTED_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::api::oci::Descriptor;

    const KIND: &str = "application/vnd.example.release.v1";
    const NONE: &str = "application/vnd.oci.empty.v1+json";
    const IMAGE: &str = "application/vnd.oci.image.config.v1+json";

    fn listed(manifest: &Value) -> Result<ArtifactFiles, ArtifactError> {
        let reference = ImageReference::parse("a.example/r:t").expect("a reference");
        let artifact = ArtifactReader::new(PullSettings::default(), reference, KIND);
        let bytes = manifest.to_string().into_bytes();
        let kind = manifest["mediaType"].as_str().unwrap_or_default();
        artifact.parse_file_list(&TopManifest {
            descriptor: Descriptor {
                media_type: kind.into(),
                ..Descriptor::default()
            },
            bytes,
        })
    }

    #[test]
    fn files_by_their_titles() {
        // UPD-02
        let digest = Digest::compute(b"x");
        let layer = |title: &str| json!({"digest": digest.to_string(), "size": 1, "annotations": {TITLE: title}});
        let nameless = json!({"digest": "sha512:0", "size": 1});
        let of = |kind: &str, config: &str, layers: &[Value]| {
            listed(
                &json!({"artifactType": kind, "config": {"mediaType": config}, "layers": layers}),
            )
        };
        for (kind, config) in [(KIND, NONE), ("", KIND)] {
            let files = of(kind, config, &[layer("a"), nameless.clone(), layer("b")]);
            let files = files.expect("files");
            assert_eq!(files.keys().collect::<Vec<_>>(), ["a", "b"]);
            assert_eq!(files["b"], (digest, 1));
        }
        let index =
            json!({"mediaType": "application/vnd.oci.image.index.v1+json", "manifests": []});
        let bad = json!({"digest": "md5:0", "annotations": {TITLE: "a"}});
        let many = vec![layer("a"); MAX_FILES + 1];
        for (found, says) in [
            (
                of("", IMAGE, &[]),
                format!("a.example/r:t is of type {IMAGE:?}, not {KIND:?}"),
            ),
            (
                listed(&index),
                "a.example/r:t is of type \"application/vnd.oci.image.index.v1+json\"".into(),
            ),
            (
                listed(&json!([])),
                "a.example/r:t: it is no manifest".into(),
            ),
            (of(KIND, NONE, &[bad]), "its file \"a\": ".into()),
            (of(KIND, NONE, &many), "it has more than 64 files".into()),
        ] {
            let said = found.expect_err(&says).to_string();
            assert!(said.contains(&says) && said.len() < 400, "{said}");
        }
    }
}
