//! A pull from start to end, on threads of its own.
//!
//! ```text
//! for each endpoint, for each credential of the node's for a mirror:
//!   manifest ─▶ policy ─▶ documents ─▶ plan ─▶ layers that are missing, several at once ─▶ import
//! ```
//!
//! After a refusal or failure the next credential or endpoint is asked; bytes that arrived stay.

use alloc::borrow::Cow;
use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use core::cell::{Cell, RefCell};
use core::ops::ControlFlow;
use core::time::Duration;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::thread;

use super::blobs::BlobKey;
use super::{OwnFetchSlot, PullError, PullerShared, ways};
use crate::api::MonoTime;
use crate::api::oci::Descriptor;
use crate::error::error_chain;
use crate::image::digest::Digest;
use crate::image::error::{ImageError, ImageProblem};
use crate::image::import;
use crate::image::plan::{
    self, DocumentSource, LocatedProblem, MAX_JSON_TOTAL_BYTES, PlannedImage, PlannedLayer,
};
use crate::image::progress::{ImageStage, Tracker};
use crate::image::record::{ImageRecord, LayerRecord};
use crate::image::reference::ImageReference;
use crate::image::registry::blob::BlobFetch;
use crate::image::registry::hosts::RegistryEndpoint;
use crate::image::registry::http::RegistryHttp;
use crate::image::registry::session::{RegistrySession, TopManifest};
use crate::image::registry::{RegistryCredential, RegistryError};
use crate::image::whose::{LayerSharing, RegistryAccess};
use crate::net::pace::StopFlag;
use crate::sys::clock;

/// Layers that one pull fetches at once. Each pull has one slot of its own. All pulls that run at the same time share
/// the others.
pub const MAX_LAYERS_AT_ONCE: usize = 4;
/// Stack of a thread that fetches, in bytes. A TLS handshake needs most of it. Only pages that are used cost memory.
pub(super) const STACK_BYTES: usize = 512 * 1024;
/// Most documents that are read for one image. Usual are an index, a manifest and a configuration. There are more if an
/// index does not say for which machine its images are.
const MAX_DOCUMENTS: usize = 48;
/// Time for reading the documents of an image. A registry that sends documents without end is cut off then.
const PLAN_TIMEOUT: Duration = Duration::from_secs(600);
/// Times that layers are fetched again because other layers were removed from the store meanwhile.
const MAX_ROUNDS: usize = 3;

/// A pull that runs.
pub(super) struct PullJob<'a> {
    pub(super) inner: &'a PullerShared,
    pub(super) reference: &'a ImageReference,
    /// Credential for the registry itself.
    pub(super) credential: Option<&'a RegistryCredential>,
    pub(super) tracker: &'a Tracker,
    pub(super) stop: &'a Arc<StopFlag>,
}

/// Failure of an attempt, by whether another endpoint or credential may help.
enum AttemptFailure {
    /// Fault of this endpoint or credential. Another one may help.
    TryNext(RegistryError),
    /// Fault of the image or of this machine. No other endpoint helps.
    Final(PullError),
}

impl From<RegistryError> for AttemptFailure {
    fn from(error: RegistryError) -> Self {
        if let RegistryError::Local { kind, .. } = &error {
            Self::Final(local_disk_error(*kind, error.to_string()))
        } else if error.is_local_fault() {
            Self::Final(PullError::Failed(error.to_string()))
        } else {
            Self::TryNext(error)
        }
    }
}

impl PullJob<'_> {
    /// Runs the pull. Blocks for as long as the link takes.
    pub(super) fn run_pull(&self) -> Result<Arc<ImageRecord>, PullError> {
        let settings = &self.inner.settings;
        if self.stop.is_stopped() {
            return Err(PullError::Failed(RegistryError::Cancelled.to_string()));
        }
        settings
            .policy
            .check_reference(self.reference)
            .map_err(|why| PullError::Failed(why.to_string()))?;
        self.tracker.begin_stage(ImageStage::Resolving);
        let mut http = RegistryHttp::new(
            &settings.registries,
            &settings.proxies,
            settings.limits,
            Arc::clone(self.stop),
        );
        http.tracker = Some(self.tracker);
        let endpoints = settings.registries.image_endpoints(self.reference);
        let mut outcome = None;
        let errors = ways::try_endpoints(
            &http,
            endpoints,
            &self.inner.absent,
            &|endpoint| self.endpoint_credentials(endpoint),
            &mut |session, endpoint, credential| {
                // The node's own credentials are good for every pod.
                let is_pod_credential = |c: &&RegistryCredential| {
                    endpoint.mirrored.is_none() && !self.inner.node.is_node_credential(c)
                };
                let pod_credential = credential.filter(is_pod_credential);
                let access = RegistryAccess::new(self.reference.domain(), pod_credential);
                outcome = Some(match self.pull_from_endpoint(session, &access) {
                    Ok(image) => Ok(image),
                    Err(AttemptFailure::Final(error)) => Err(error),
                    Err(AttemptFailure::TryNext(error)) => {
                        log::debug!("image {} from {}: {error}", self.reference, endpoint.base);
                        return ControlFlow::Continue(error);
                    }
                });
                ControlFlow::Break(())
            },
        );
        outcome.unwrap_or_else(|| Err(join_pull_errors(&errors)))
    }

    /// Credentials to present at an endpoint, in order. A mirror gets only the credentials that the node has for the
    /// mirror. It must not see a secret for the registry.
    fn endpoint_credentials(&self, endpoint: &RegistryEndpoint) -> Vec<RegistryCredential> {
        match &endpoint.mirrored {
            None => self.credential.cloned().into_iter().collect(),
            Some(_) => self.inner.node_credentials_at(
                &format!("{}/{}", endpoint.base.authority, endpoint.repository),
                &endpoint.base.authority,
            ),
        }
    }

    fn pull_from_endpoint(
        &self,
        session: &RegistrySession<'_>,
        access: &RegistryAccess,
    ) -> Result<Arc<ImageRecord>, AttemptFailure> {
        self.tracker.begin_stage(ImageStage::Resolving);
        let store = &self.inner.store;
        if let Some(image) = self.find_unchanged_image(session, access)? {
            return Ok(image);
        }
        let name = match self.reference.digest() {
            Some(digest) => digest.to_string(),
            None => self.reference.tag().unwrap_or("latest").to_owned(),
        };
        let top = session.read_manifest(&name)?;
        let mut planned = self.plan_image(session, &top)?;
        for layer in &mut planned.layers {
            if let Some(blob) = layer.blob {
                layer.member = layer_blob_key(blob, access).member_name();
            }
        }
        let mut shares = LayerSharing {
            way: access,
            confirmed: BTreeSet::new(),
        };
        for _ in 0..MAX_ROUNDS {
            self.confirm_shared_layers(session, &planned, &mut shares);
            let missing = import::find_missing_layers(store, &planned, &shares);
            let blobs = missing.iter().filter_map(|l| l.blob);
            let claim = self
                .inner
                .blobs
                .claim_layers(blobs.map(|b| layer_blob_key(b, access)));
            self.fetch_layers(session, access, &missing)?;
            self.tracker.begin_stage(ImageStage::Unpacking);
            let stop = self.stop;
            let mut tick = |p| {
                self.tracker.set_progress(p);
                if stop.is_stopped() {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            };
            let (layout, image) = (&self.inner.layout, planned.clone());
            let imported = store.import_planned(layout, image, &shares, &mut tick);
            match imported {
                Ok(image) => {
                    claim.discard_layers();
                    return Ok(image);
                }
                // Another image that shared a layer was removed meanwhile. The missing layers are fetched again.
                Err(_) if !self.has_all_layers(&planned, &shares) => {}
                Err(error) => {
                    // Layers that cannot be unpacked are of no use. If only space or time was missing, they are kept.
                    if !error.is_transient() {
                        claim.discard_layers();
                    }
                    return Err(AttemptFailure::Final(import_pull_error(&error)));
                }
            }
        }
        Err(AttemptFailure::Final(PullError::Failed(
            "its layers were removed from the store while it was pulled".into(),
        )))
    }

    /// Finds the image in the store, if the name still leads to it. Asks the registry with one request without a body.
    fn find_unchanged_image(
        &self,
        session: &RegistrySession<'_>,
        access: &RegistryAccess,
    ) -> Result<Option<Arc<ImageRecord>>, AttemptFailure> {
        let store = &self.inner.store;
        let digest = match self.reference.digest() {
            // The digest names the image. The registry is still asked below, because it decides who may have the image.
            Some(digest) => digest,
            None => match self.reference.tag() {
                Some(tag)
                    if self
                        .find_stored_image(&self.reference.to_string())
                        .is_some() =>
                {
                    match session.head_manifest(tag)? {
                        Some(digest) => digest,
                        None => return Ok(None),
                    }
                }
                _ => return Ok(None),
            },
        };
        let name = format!("{}@{digest}", self.reference.repository());
        let Some(image) = self.find_stored_image(&name) else {
            return Ok(None);
        };
        // The image may have layers that only the pod may have for which the image was pulled.
        let layers = store.layer_records();
        let may_use = |layer: &LayerRecord| {
            layers
                .get(&layer.key)
                .is_some_and(|l| access.holds_layer(l))
        };
        if !image.layers.iter().all(may_use) {
            return Ok(None);
        }
        if self.reference.digest().is_some()
            && session.head_manifest(&digest.to_string())?.is_none()
        {
            return Ok(None);
        }
        // An earlier version of the agent did not record the digest.
        let image = match image.led_by.is_empty() {
            true => store
                .record_pulled_digest(&image.id, &name)
                .unwrap_or(image),
            false => image,
        };
        match self.reference.tagged_name() {
            // If the registry was asked by digest, it said nothing about the tag.
            Some(tag) if self.reference.digest().is_none() && !image.names.contains(&tag) => store
                .tag_image(&image.id, &tag)
                .map(Some)
                .map_err(|e| AttemptFailure::Final(PullError::Failed(error_chain(&e)))),
            _ => Ok(Some(image)),
        }
    }

    fn find_stored_image(&self, name: &str) -> Option<Arc<ImageRecord>> {
        self.inner.store.resolve_reference(name).ok().flatten()
    }

    fn plan_image(
        &self,
        session: &RegistrySession<'_>,
        top: &TopManifest,
    ) -> Result<PlannedImage, AttemptFailure> {
        let documents = RegistryDocuments {
            session,
            top,
            error: RefCell::new(None),
            read: Cell::new((0, 0)),
            deadline: clock::mono_now() + PLAN_TIMEOUT,
        };
        let machine = self.inner.store.import_limits().machine;
        let planned = plan::plan_remote(&documents, &top.descriptor, self.reference, machine);
        planned.map_err(|(place, problem)| match documents.error.take() {
            Some(error) => error.into(),
            None => {
                let place = place.map_or_else(String::new, |p| format!("{p}: "));
                AttemptFailure::Final(PullError::Failed(format!("{place}{problem}")))
            }
        })
    }

    /// Fetches missing layers, several at once. After the first error no further layer is begun, and those under way
    /// are finished.
    fn fetch_layers(
        &self,
        session: &RegistrySession<'_>,
        access: &RegistryAccess,
        missing: &[PlannedLayer],
    ) -> Result<(), AttemptFailure> {
        let sizes = missing.iter().filter_map(|l| l.blob);
        let total: u64 = sizes.clone().map(|(_, size)| size).sum();
        let present: u64 = sizes
            .map(|blob| {
                self.inner
                    .blobs
                    .present_bytes(layer_blob_key(blob, access))
                    .min(blob.1)
            })
            .sum();
        self.tracker.begin_fetching(missing.len(), total);
        self.check_disk_room(total.saturating_sub(present))
            .map_err(|e| AttemptFailure::Final(local_disk_error(e.kind(), e.to_string())))?;
        let needed = total.saturating_sub(present);
        let gate = self.inner.settings.gate.as_deref();
        let deferred = |why| AttemptFailure::Final(PullError::Deferred(why));
        let admitted = gate.map(|gate| gate.admit_fetch(self.reference, needed));
        admitted.transpose().map_err(deferred)?;
        let fetched = self.fetch_all(session, access, missing);
        let Some(gate) = gate else {
            return fetched.map_err(AttemptFailure::from);
        };
        gate.record_fetch_end(needed);
        fetched.map_err(|e| match gate.may_continue_fetch(self.reference) {
            Err(why) => deferred(why),
            Ok(()) => e.into(),
        })
    }

    fn fetch_all(
        &self,
        session: &RegistrySession<'_>,
        access: &RegistryAccess,
        missing: &[PlannedLayer],
    ) -> Result<(), RegistryError> {
        let own_slot = OwnFetchSlot::default();
        let next = Mutex::new(0);
        let failed = Mutex::new(None);
        let fetch_next_layers = || {
            loop {
                let index = {
                    let mut next = next.lock().unwrap_or_else(PoisonError::into_inner);
                    let has_failed = failed
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .is_some();
                    if has_failed || *next == missing.len() {
                        return;
                    }
                    *next += 1;
                    *next - 1
                };
                if let Err(e) = self.fetch_layer(session, access, &missing[index], &own_slot) {
                    failed
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .get_or_insert(e);
                }
            }
        };
        thread::scope(|scope| {
            for _ in 1..missing.len().min(MAX_LAYERS_AT_ONCE) {
                let started = thread::Builder::new()
                    .name("pull-layer".into())
                    .stack_size(STACK_BYTES)
                    .spawn_scoped(scope, fetch_next_layers);
                if started.is_err() {
                    // With fewer threads the pull is slower, not wrong.
                    break;
                }
            }
            fetch_next_layers();
        });
        match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    fn fetch_layer(
        &self,
        session: &RegistrySession<'_>,
        access: &RegistryAccess,
        layer: &PlannedLayer,
        own_slot: &OwnFetchSlot,
    ) -> Result<(), RegistryError> {
        let Some((digest, size)) = layer.blob else {
            return Ok(());
        };
        let wanted = layer_blob_key((digest, size), access);
        let take_slot = || {
            let slot = self.inner.slots.take_slot(own_slot, self.stop);
            slot.ok_or(RegistryError::Cancelled)
        };
        let fetched = self.inner.blobs.complete_layer(wanted, self.stop, |part| {
            let slot = RefCell::new(Some(take_slot()?));
            BlobFetch {
                digest,
                size,
                part,
                throttle: &self.inner.throttle,
                stop: self.stop,
                room: &|| self.check_may_continue(),
                pause: &|time| {
                    slot.take();
                    session.pause_before_retry(time)?;
                    slot.replace(Some(take_slot()?));
                    Ok(())
                },
                arrived: &|bytes| self.tracker.add_fetched_bytes(bytes),
            }
            .fetch_blob(session)
        })?;
        if !fetched {
            self.tracker
                .add_fetched_bytes(i64::try_from(size).unwrap_or(i64::MAX));
        }
        self.tracker.count_fetched_layer();
        Ok(())
    }

    /// Checks that the disk has room for more, and that the link has bytes left.
    fn check_may_continue(&self) -> io::Result<()> {
        if let Some(gate) = &self.inner.settings.gate {
            gate.may_continue_fetch(self.reference)
                .map_err(io::Error::other)?;
        }
        self.check_disk_room(0)
    }

    /// Checks that `needed` more bytes may be written, besides the space that has to stay free.
    fn check_disk_room(&self, needed: u64) -> io::Result<()> {
        let store = &self.inner.store;
        let info = store
            .filesystem_info()
            .map_err(|e| io::Error::other(error_chain(&e)))?;
        let available = info
            .available_bytes
            .checked_sub(store.import_limits().reserve_bytes);
        match available {
            Some(available) if needed <= available => Ok(()),
            available => Err(io::Error::new(
                io::ErrorKind::StorageFull,
                format!(
                    "no space left on device: {needed} bytes are to be fetched, {} may be used",
                    available.unwrap_or(0)
                ),
            )),
        }
    }

    /// Returns true if all layers are in the store or fetched completely. Then an import failed for another reason than
    /// a missing layer.
    fn has_all_layers(&self, planned: &PlannedImage, shares: &LayerSharing<'_>) -> bool {
        import::find_missing_layers(&self.inner.store, planned, shares)
            .iter()
            .filter_map(|layer| layer.blob)
            .all(|blob| {
                let layer = layer_blob_key(blob, shares.way);
                self.inner.blobs.is_layer_whole(layer, blob.1)
            })
    }

    /// Asks the registry for the layers that came from it with another pod's credential. A layer that it does not
    /// confirm is fetched.
    fn confirm_shared_layers(
        &self,
        session: &RegistrySession<'_>,
        planned: &PlannedImage,
        shares: &mut LayerSharing<'_>,
    ) {
        for blob in import::find_blobs_to_confirm(&self.inner.store, planned, shares) {
            match session.head_blob(blob) {
                Ok(()) => drop(shares.confirmed.insert(blob)),
                Err(e) => log::debug!("image {}: {e}; pulling the layer again", self.reference),
            }
        }
    }
}

/// Key of the layer with this digest and size, as the image's registry has it.
fn layer_blob_key((digest, size): (Digest, u64), access: &RegistryAccess) -> BlobKey {
    BlobKey::new(digest, size, access)
}

/// Documents from the registry, as the plan asks for them.
struct RegistryDocuments<'a> {
    session: &'a RegistrySession<'a>,
    top: &'a TopManifest,
    /// Error of the registry. It is kept here, because the plan can only return problems.
    error: RefCell<Option<RegistryError>>,
    /// Number of documents read from the registry, and their bytes.
    read: Cell<(usize, u64)>,
    deadline: MonoTime,
}

impl RegistryDocuments<'_> {
    /// Checks that another document may be read: by number, bytes and time.
    fn check_document_budget(&self) -> Result<(), ImageProblem> {
        let exceeded = |what, limit| Err(ImageProblem::Limit { what, limit });
        let (documents, bytes) = self.read.get();
        if documents >= MAX_DOCUMENTS {
            return exceeded("documents for an image", MAX_DOCUMENTS as u64);
        }
        if bytes > MAX_JSON_TOTAL_BYTES {
            return exceeded("bytes of documents for an image", MAX_JSON_TOTAL_BYTES);
        }
        if clock::mono_now() >= self.deadline {
            return exceeded("seconds for an image's documents", PLAN_TIMEOUT.as_secs());
        }
        Ok(())
    }
}

impl DocumentSource for RegistryDocuments<'_> {
    fn read_blob(
        &self,
        descriptor: &Descriptor,
    ) -> Result<(Digest, Cow<'_, [u8]>), LocatedProblem> {
        let digest = Digest::parse(&descriptor.digest)
            .map_err(|why| (Some(descriptor.digest.clone()), why.into()))?;
        if descriptor.digest == self.top.descriptor.digest {
            return Ok((digest, Cow::Borrowed(&self.top.bytes)));
        }
        self.check_document_budget()
            .map_err(|problem| (None, problem))?;
        let manifest = descriptor.media_type.contains("manifest")
            || descriptor.media_type.contains("image.index");
        let read = if manifest {
            self.session
                .read_manifest(&descriptor.digest)
                .map(|top| top.bytes)
        } else {
            self.session.read_blob_document(digest, descriptor.size)
        };
        match read {
            Ok(bytes) => {
                let (documents, total) = self.read.get();
                self.read.set((documents + 1, total + bytes.len() as u64));
                Ok((digest, Cow::Owned(bytes)))
            }
            Err(error) => {
                let problem = ImageProblem::Damaged(error.to_string());
                *self.error.borrow_mut() = Some(error);
                Err((None, problem))
            }
        }
    }
}

/// Joins the errors of all ways into one. An outage of all ways counts as one of the registry.
fn join_pull_errors(errors: &[RegistryError]) -> PullError {
    let text = ways::join_errors(errors);
    let is_outage = !errors.is_empty() && errors.iter().all(RegistryError::is_outage);
    let is_refusal = errors.iter().any(RegistryError::is_refusal);
    match (is_outage, is_refusal) {
        (true, true) => PullError::Limited(text),
        (true, false) => PullError::Unavailable(text),
        (false, true) => PullError::Denied(text),
        (false, false) => PullError::Failed(text),
    }
}

/// Makes the error of a pull from an error of this machine's disk.
fn local_disk_error(kind: io::ErrorKind, text: String) -> PullError {
    match kind {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => PullError::Full(text),
        _ => PullError::Failed(text),
    }
}

/// Makes the error of a pull from an import's error, without the path of the agent's own directory.
fn import_pull_error(error: &ImageError) -> PullError {
    let ImageError::Import {
        blob,
        entry,
        source,
        ..
    } = error
    else {
        return PullError::Failed(error_chain(&error));
    };
    let mut text = String::from("cannot unpack");
    if let Some(blob) = blob {
        text.push(' ');
        let name = blob.strip_prefix("blobs/").unwrap_or(blob);
        // The part after the digest only tells the agent's own files apart.
        text.push_str(name.split('-').next().unwrap_or(name));
    }
    if let Some(entry) = entry {
        text.push_str(&format!(": entry {entry:?}"));
    }
    let mut cause: Option<&dyn core::error::Error> = Some(source.as_ref());
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    if source.is_disk_full() {
        PullError::Full(text)
    } else {
        PullError::Failed(text)
    }
}
