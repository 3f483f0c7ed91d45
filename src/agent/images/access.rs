//! Access of pods to images that are there (IMG-20): records on disk of the credentials that images were pulled with.
//! [`PulledRecord`] decides.
//!
//! ```text
//! <root>/image_manager/pulled/<64 hex digits>     an image, and the credentials of its pulls, or that it was imported
//! <root>/image_manager/pulling/<64 hex digits>    a pull with a pod's credentials, from before its begin
//!                                                 until after the record
//! ```
//!
//! A pull whose pod is deleted may still bring its image. Its note stays until the runtime says that the pull is over.
//!
//! An image with neither file was not pulled by this agent: unless the node's policy wants it otherwise, every pod may
//! use it. A record ends with its image.

use alloc::{collections::BTreeMap, rc::Rc};
use core::cell::RefCell;
use std::{io, path::Path};

use super::{
    credentials::{NodeKeyring, PullCredentials, find_brought},
    for_pod::StartingPod,
    records::{ImageRecordFiles, record_file_name},
};
use crate::{
    agent::complaints::Complaints,
    image::ImageReference,
    logic::image_access::{ImageRight, PullSecret, PulledRecord, VerificationPolicy},
    runtime::ImageService,
    sys::lane::Lane,
};

/// Looks of [`ImageAccess::tidy_records`] for which the note of a dropped pull stays at a runtime that does not tell
/// of it: two may come one after the other, the third comes a collection of garbage later.
const MAX_LOOKS: u32 = 3;

/// Right of pods to use the images that are there.
pub(super) struct ImageAccess {
    files: ImageRecordFiles,
    policy: VerificationPolicy,
    disk: Lane,
    complaints: Rc<Complaints>,
    /// Pulls with credentials of pods that are under way, by reference: as many as there are pods at most.
    under_way: RefCell<BTreeMap<String, u32>>,
    /// Pulls that were dropped and may still bring their image, by reference: as many as pods were deleted meanwhile at most.
    dropped: RefCell<BTreeMap<String, AbandonedPull>>,
}

/// A pull that has begun.
#[derive(Debug)]
pub(super) struct StartedPull {
    reference: String,
    /// Id of the image that had this name before.
    before: Option<String>,
}

/// A pull without waiters.
#[derive(Debug)]
struct AbandonedPull {
    /// Id of the image that had this name before: the pull did not bring that one.
    before: Option<String>,
    /// Times that [`ImageAccess::tidy_records`] has met the pull.
    looks: u32,
}

impl ImageAccess {
    /// Makes the access with the records below `root`.
    pub(super) fn new(
        root: &Path,
        policy: VerificationPolicy,
        disk: Lane,
        complaints: Rc<Complaints>,
    ) -> Self {
        Self {
            files: ImageRecordFiles::below_root(root),
            policy,
            disk,
            complaints,
            under_way: RefCell::default(),
            dropped: RefCell::default(),
        }
    }

    /// Returns true if the pod may use the image that `reference` names without asking the registry.
    pub(super) async fn may_use(
        &self,
        keyring: &dyn NodeKeyring,
        pod: &dyn StartingPod,
        reference: &str,
        id: &str,
    ) -> bool {
        let Ok(parsed) = ImageReference::parse(reference) else {
            return false;
        };
        let repository = parsed.repository();
        let (files, image, name) = (self.files.clone(), id.to_owned(), reference.to_owned());
        let found = self.disk.run_job(move || {
            Ok::<_, io::Error>((files.read_record(&image)?, files.is_pull_noted(&name)))
        });
        let needed = |preloaded| self.policy.is_needed(repository, preloaded);
        let record = match found.await {
            Ok((Some(record), _)) if !needed(record.imported) => return true,
            Ok((Some(record), _)) => record,
            Ok((None, is_pulling)) => return !needed(!is_pulling),
            Err(e) => {
                self.complaints.complain(&format!(
                    "cannot read with which credentials image {id} was pulled: {e}"
                ));
                return false;
            }
        };
        if record.is_open_to_all(repository) {
            return true;
        }
        let brought = find_brought(keyring, pod, repository).await;
        match record.right_of_pod(repository, &brought) {
            ImageRight::Known => true,
            ImageRight::New => {
                self.note_pull_secrets(id, repository, brought).await;
                true
            }
            ImageRight::Ask => false,
        }
    }

    /// Notes that a pull is to begin.
    ///
    /// - Errors: the note could not be written. Without it every pod might use the image after a crash.
    pub(super) async fn begin_pull(
        &self,
        service: &dyn ImageService,
        reference: &str,
        credentials: &PullCredentials,
    ) -> io::Result<Option<StartedPull>> {
        if credentials.brought.is_empty() {
            return Ok(None);
        }
        // If that is not known, it counts as brought by the pull.
        let before = service.image_status(reference).await.ok().flatten();
        {
            let mut under_way = self.under_way.borrow_mut();
            *under_way.entry(reference.into()).or_default() += 1;
        }
        let begun = StartedPull {
            reference: reference.into(),
            before: before.map(|image| image.id),
        };
        let (files, name) = (self.files.clone(), reference.to_owned());
        if let Err(e) = self
            .disk
            .run_job(move || files.note_pull_begin(&name))
            .await
        {
            self.end_pull(Some(begun)).await;
            return Err(e);
        }
        Ok(Some(begun))
    }

    /// An image is there: with the credential of this digest, or without any of the pod's.
    pub(super) async fn note_pulled_image(
        &self,
        reference: &str,
        id: &str,
        credentials: &PullCredentials,
        with: Option<&str>,
    ) {
        let Ok(parsed) = ImageReference::parse(reference) else {
            return;
        };
        let with = match with {
            None => Vec::new(),
            Some(digest) => {
                let mut good = credentials.brought.clone();
                good.retain(|own| own.digest == digest);
                if good.is_empty() {
                    // No Secret has the credential any more: then no pod may use the image without asking, rather than
                    // every pod.
                    return self.note_credentials_unknown(id).await;
                }
                good
            }
        };
        self.note_pull_secrets(id, parsed.repository(), with).await;
    }

    /// Notes that the operator brought these images: they are preloaded, whatever they were pulled with before.
    pub(super) async fn note_imported_images(&self, ids: &[&str]) {
        for id in ids {
            self.change_record(id, |record| {
                record.imported = true;
                true
            })
            .await;
        }
    }

    /// A pull that has begun is over, however it ended.
    pub(super) async fn end_pull(&self, begun: Option<StartedPull>) {
        let Some(StartedPull { reference, .. }) = begun else {
            return;
        };
        self.decrease_pull_count(&reference);
        if !self.dropped.borrow().contains_key(&reference) {
            self.remove_pull_note(reference).await;
        }
    }

    /// Notes that a begun pull has no waiter any more. Its note on disk stays as long as the pull may bring its image.
    pub(super) async fn note_abandoned_pull(
        &self,
        service: &dyn ImageService,
        begun: Option<StartedPull>,
    ) {
        let Some(StartedPull { reference, before }) = begun else {
            return;
        };
        self.decrease_pull_count(&reference);
        let dropped = AbandonedPull { before, looks: 0 };
        self.dropped
            .borrow_mut()
            .entry(reference)
            // The image that the first pull found was there before all of them.
            .or_insert(dropped);
        self.settle_abandoned_pulls(service).await;
    }

    /// Notes the images that dropped pulls have brought, once those pulls are over.
    pub(super) async fn settle_abandoned_pulls(&self, service: &dyn ImageService) {
        let over: Vec<(String, Option<String>)> = {
            let dropped = self.dropped.borrow();
            dropped
                .iter()
                .filter(|(reference, _)| service.is_pulling(reference) == Some(false))
                .map(|(reference, one)| (reference.clone(), one.before.clone()))
                .collect()
        };
        for (reference, before) in over {
            self.close_abandoned_pull(service, reference, before).await;
        }
    }

    /// Notes the image that a dropped pull has brought, and that the pull has ended. Returns false if that is not known
    /// yet. `before`: id of the image that had the name before, if that is known.
    async fn close_abandoned_pull(
        &self,
        service: &dyn ImageService,
        reference: String,
        before: Option<String>,
    ) -> bool {
        // While the runtime does not answer nothing is known.
        let Ok(found) = service.image_status(&reference).await else {
            return false;
        };
        if let Some(image) = found.filter(|image| before.as_ref() != Some(&image.id)) {
            self.note_credentials_unknown(&image.id).await;
        }
        // It was asked for again, and dropped, meanwhile.
        if service.is_pulling(&reference) == Some(true) {
            return true;
        }
        self.dropped.borrow_mut().remove(&reference);
        self.remove_pull_note(reference).await;
        true
    }

    fn decrease_pull_count(&self, reference: &str) {
        let mut under_way = self.under_way.borrow_mut();
        let count = under_way.remove(reference).unwrap_or_default();
        if count > 1 {
            under_way.insert(reference.into(), count - 1);
        }
    }

    /// Removes the note of pulls of `reference`, unless one is under way.
    async fn remove_pull_note(&self, reference: String) {
        if !self.under_way.borrow().contains_key(&reference) {
            let files = self.files.clone();
            self.disk
                .run_job(move || files.note_pull_end(&reference))
                .await;
        }
    }

    /// Turns the notes of crashed pulls into records, and removes the records of images that are gone.
    pub(super) async fn tidy_records(&self, service: &dyn ImageService) {
        self.settle_abandoned_pulls(service).await;
        let files = self.files.clone();
        let (records, mut intents) = self
            .disk
            .run_job(move || (files.list_records(), files.unfinished_pulls()))
            .await;
        intents.retain(|name| {
            !self.under_way.borrow().contains_key(name) && self.is_pull_over(service, name)
        });
        let before = |reference: &String| {
            let dropped = self.dropped.borrow();
            let one = dropped.get(reference);
            one.and_then(|one| one.before.clone())
        };
        let intents: Vec<_> = intents
            .into_iter()
            .map(|reference| (before(&reference), reference))
            .collect();
        for (before, reference) in intents {
            if !self.close_abandoned_pull(service, reference, before).await {
                return;
            }
        }
        if records.is_empty() {
            return;
        }
        let Ok(images) = service.list_images().await else {
            return;
        };
        let there: Vec<String> = images
            .iter()
            .map(|image| record_file_name(&image.id))
            .collect();
        let gone = records.into_iter().filter(|name| !there.contains(name));
        let gone: Vec<String> = gone.collect();
        if !gone.is_empty() {
            let files = self.files.clone();
            self.disk.run_job(move || files.remove_records(&gone)).await;
        }
    }

    /// Returns true if a noted pull that is not under way can bring no image any more, as far as the runtime tells.
    fn is_pull_over(&self, service: &dyn ImageService, reference: &str) -> bool {
        if let Some(is_pulling) = service.is_pulling(reference) {
            return !is_pulling;
        }
        match self.dropped.borrow_mut().get_mut(reference) {
            Some(dropped) => {
                dropped.looks += 1;
                dropped.looks >= MAX_LOOKS
            }
            // It ended with an agent of before.
            None => true,
        }
    }

    async fn note_pull_secrets(&self, id: &str, repository: &str, with: Vec<PullSecret>) {
        let repository = repository.to_owned();
        self.change_record(id, move |record| {
            record.record_pull_secrets(&repository, &with)
        })
        .await;
    }

    /// Notes only that the image was pulled: every pod has to ask the registry.
    async fn note_credentials_unknown(&self, id: &str) {
        self.change_record(id, |_| true).await;
    }

    async fn change_record(
        &self,
        id: &str,
        change: impl FnOnce(&mut PulledRecord) -> bool + Send + 'static,
    ) {
        let (files, image) = (self.files.clone(), id.to_owned());
        let written = self
            .disk
            .run_job(move || files.change_record(&image, change));
        if let Err(e) = written.await {
            self.complaints.complain(&format!(
                "cannot store with which credentials image {id} was pulled: {e}"
            ));
        }
    }
}
