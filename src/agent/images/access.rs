//! What images were pulled with, on disk, and whether a pod may use one that is there (IMG-20). What is decided is
//! [`PulledRecord`]'s.
//!
//! ```text
//! <root>/image_manager/pulled/<64 hex digits>     an image, and what it was had with, or that it was imported
//! <root>/image_manager/pulling/<64 hex digits>    a pull with a pod's credentials, from before its begin until after the record
//! ```
//!
//! An image without either was not pulled by this agent: everybody may use it. A record ends with its image.

use alloc::{collections::BTreeMap, rc::Rc};
use core::cell::RefCell;
use std::{io, path::Path};

use super::{
    credentials::Credentials,
    for_pod::ForPod,
    records::{Files, file_name},
};
use crate::{
    agent::complaints::Complaints,
    image::Reference,
    logic::image_access::{PullSecret, PulledRecord, Standing},
    runtime::ImageService,
    sys::lane::Lane,
};

/// Who may use the images that are there.
pub(super) struct Access {
    files: Files,
    disk: Lane,
    complaints: Rc<Complaints>,
    /// Pulls with credentials of pods that are under way, by reference: as many as there are pods at most.
    under_way: RefCell<BTreeMap<String, u32>>,
}

/// A pull that has begun.
#[derive(Debug)]
pub(super) struct Begun {
    reference: String,
}

impl Access {
    /// With the records below `root`.
    pub(super) fn new(root: &Path, disk: Lane, complaints: Rc<Complaints>) -> Self {
        Self {
            files: Files::below(root),
            disk,
            complaints,
            under_way: RefCell::default(),
        }
    }

    /// Whether the pod may use the image that `reference` names without asking the registry.
    pub(super) async fn may_use(&self, pod: &dyn ForPod, reference: &str, id: &str) -> bool {
        let Ok(parsed) = Reference::parse(reference) else {
            return false;
        };
        let repository = parsed.repository();
        let (files, image, name) = (self.files.clone(), id.to_owned(), reference.to_owned());
        let found = self
            .disk
            .run(move || Ok::<_, io::Error>((files.record(&image)?, files.is_pulling(&name))));
        let record = match found.await {
            Ok((Some(record), _)) => record,
            Ok((None, is_pulling)) => return !is_pulling,
            Err(e) => {
                self.complaints.complain(&format!(
                    "what image {id} was pulled with is not known: {e}"
                ));
                return false;
            }
        };
        if record.everybody_may(repository) {
            return true;
        }
        let brought = pod.pull_secrets().await.brought(repository);
        match record.standing(repository, &brought) {
            Standing::Known => true,
            Standing::New => {
                self.note(id, repository, brought).await;
                true
            }
            Standing::Ask => false,
        }
    }

    /// A pull is to begin.
    ///
    /// - Errors: that could not be noted, and without a note the image would be everybody's after a crash.
    pub(super) async fn begin(
        &self,
        reference: &str,
        credentials: &Credentials,
    ) -> io::Result<Option<Begun>> {
        if credentials.brought.is_empty() {
            return Ok(None);
        }
        {
            let mut under_way = self.under_way.borrow_mut();
            *under_way.entry(reference.into()).or_default() += 1;
        }
        let begun = Begun {
            reference: reference.into(),
        };
        let (files, name) = (self.files.clone(), reference.to_owned());
        if let Err(e) = self.disk.run(move || files.begin(&name)).await {
            self.end(Some(begun)).await;
            return Err(e);
        }
        Ok(Some(begun))
    }

    /// An image is there: with the credential of this digest, or without any of the pod's.
    pub(super) async fn pulled(
        &self,
        reference: &str,
        id: &str,
        credentials: &Credentials,
        with: Option<&str>,
    ) {
        let Ok(parsed) = Reference::parse(reference) else {
            return;
        };
        let with = match with {
            None => Vec::new(),
            Some(digest) => {
                let mut good = credentials.brought.clone();
                good.retain(|own| own.digest == digest);
                if good.is_empty() {
                    // No Secret has it any more, which makes it nobody's, not everybody's.
                    return self.note_pulled(id).await;
                }
                good
            }
        };
        self.note(id, parsed.repository(), with).await;
    }

    /// The operator brought these images: they are everybody's, whatever the same bytes were pulled with before.
    pub(super) async fn imported(&self, ids: &[&str]) {
        for id in ids {
            let image = (*id).to_owned();
            self.change(id, move |record| {
                *record = PulledRecord::imported(&image);
                true
            })
            .await;
        }
    }

    /// A pull that has begun is over, however it ended.
    pub(super) async fn end(&self, begun: Option<Begun>) {
        let Some(Begun { reference }) = begun else {
            return;
        };
        let is_last = {
            let mut under_way = self.under_way.borrow_mut();
            let count = under_way.remove(&reference).unwrap_or_default();
            if count > 1 {
                under_way.insert(reference.clone(), count - 1);
            }
            count <= 1
        };
        if is_last {
            let files = self.files.clone();
            self.disk.run(move || files.end(&reference)).await;
        }
    }

    /// Turns what crashed pulls have left into records, and removes those of images that are gone.
    pub(super) async fn tidy(&self, service: &dyn ImageService) {
        let files = self.files.clone();
        let (records, mut intents) = self
            .disk
            .run(move || (files.records(), files.intents()))
            .await;
        intents.retain(|name| !self.under_way.borrow().contains_key(name));
        for reference in intents {
            // While the runtime does not answer nothing is known.
            let Ok(found) = service.image_status(&reference).await else {
                return;
            };
            if let Some(image) = found {
                self.note_pulled(&image.id).await;
            }
            let files = self.files.clone();
            self.disk.run(move || files.end(&reference)).await;
        }
        if records.is_empty() {
            return;
        }
        let Ok(images) = service.list_images().await else {
            return;
        };
        let there: Vec<String> = images.iter().map(|image| file_name(&image.id)).collect();
        let gone = records.into_iter().filter(|name| !there.contains(name));
        let gone: Vec<String> = gone.collect();
        if !gone.is_empty() {
            let files = self.files.clone();
            self.disk.run(move || files.remove(&gone)).await;
        }
    }

    async fn note(&self, id: &str, repository: &str, with: Vec<PullSecret>) {
        let repository = repository.to_owned();
        self.change(id, move |record| record.note(&repository, &with))
            .await;
    }

    /// Only that it was pulled: whoever wants it asks.
    async fn note_pulled(&self, id: &str) {
        self.change(id, |_| true).await;
    }

    async fn change(
        &self,
        id: &str,
        change: impl FnOnce(&mut PulledRecord) -> bool + Send + 'static,
    ) {
        let (files, image) = (self.files.clone(), id.to_owned());
        let written = self.disk.run(move || files.change(&image, change));
        if let Err(e) = written.await {
            self.complaints.complain(&format!(
                "what image {id} was pulled with cannot be noted: {e}"
            ));
        }
    }
}
