//! Local commands on images.

use alloc::rc::Rc;
use core::ops::ControlFlow;
use std::path::PathBuf;

use serde_json::{Value, json};
use smol::channel::Sender;

use super::{
    owner::AgentImages,
    stock::{ImageStock, shown_names},
};
use crate::{
    api::{cri::StoredImage, strict},
    error::error_chain,
    image::{
        ImageError, ImageProgress, ImageReference, ImportOptions, RepairResult, StoreVerification,
        progress::ImageStage,
    },
    logic::image_names,
    runtime::{RuntimeError, RuntimeService},
    server::http::Refusal,
    sys::memory,
};

/// Carries out local commands.
pub(in crate::agent) struct ImageCommands {
    /// Owner of the agent's images.
    pub(in crate::agent) images: Rc<AgentImages>,
    /// Keeper of the images.
    pub(in crate::agent) stock: ImageStock,
    /// Runtime whose containers use images.
    pub(in crate::agent) runtime: Rc<dyn RuntimeService>,
}

fn internal_refusal(e: RuntimeError) -> Refusal {
    match e {
        RuntimeError::Invalid(text) => Refusal::bad_request(text),
        other => Refusal::new(500, other.to_string()),
    }
}

fn image_not_found(reference: &str) -> Refusal {
    Refusal::not_found(format!("images \"{reference}\" not found"))
}

impl ImageCommands {
    /// All images, sorted by id.
    pub(in crate::agent) async fn list_images(&self) -> Result<Vec<StoredImage>, Refusal> {
        self.runtime.list_images().await.map_err(internal_refusal)
    }

    /// Imports an archive. Returns the references it brought. `steps` gets the progress; closing it ends the import.
    pub(in crate::agent) async fn import_archive(
        &self,
        path: PathBuf,
        name: String,
        steps: Option<Sender<ImageProgress>>,
    ) -> Result<Vec<String>, Refusal> {
        let mut options = ImportOptions::default();
        if !name.is_empty() {
            options.names = vec![name];
        }
        let tick = move |progress: ImageProgress| match &steps {
            Some(steps) if steps.is_closed() => ControlFlow::Break(()),
            Some(steps) => {
                // Full: the reader is slow, and the next step says all that this one does.
                let _ = steps.try_send(progress);
                ControlFlow::Continue(())
            }
            None => ControlFlow::Continue(()),
        };
        let imported = self
            .stock
            .own_store("import")?
            .import_archive(path, options, tick)
            .await;
        let records = imported.map_err(|e| Refusal::bad_request(error_chain(&e)))?;
        let ids: Vec<&str> = records.iter().map(|record| &*record.id).collect();
        self.images.note_imported_images(&ids).await;
        memory::trim_memory();
        Ok(records
            .iter()
            .flat_map(|record| shown_names(&record.names, &record.id))
            .collect())
    }

    /// Pulls `reference`; `now`: whatever the link has left. Returns the image's id.
    pub(in crate::agent) async fn pull_image(
        &self,
        reference: &str,
        now: bool,
    ) -> Result<String, Refusal> {
        let pulled = self.images.pull_for_node(reference, now).await;
        pulled.map_err(|e| match e {
            RuntimeError::Deferred(text) => Refusal::new(
                429,
                format!("the link's budget for today is too small for it: {text} (--now pulls it anyway)"),
            ),
            other => internal_refusal(other),
        })
    }

    /// Progress of the pull of `reference`, if one is under way.
    pub(in crate::agent) fn pull_progress(&self, reference: &str) -> Option<ImageProgress> {
        self.runtime.pull_progress(reference)
    }

    /// Finds the image that `reference` names, or whose id begins so. Names come first.
    async fn find_image(&self, reference: &str) -> Result<StoredImage, Refusal> {
        let found = self.runtime.image_status(reference).await;
        if let Ok(Some(image)) = found {
            return Ok(image);
        }
        // Not for pods: the name of an image that is missing could be the beginning of another one's id.
        let images = self.list_images().await?;
        let begun = image_names::find_by_short_id(&images, reference);
        match begun.map_err(|e| Refusal::bad_request(e.0))? {
            Some(image) => Ok(image.clone()),
            None => {
                found.map_err(internal_refusal)?;
                Err(image_not_found(reference))
            }
        }
    }

    /// Describes an image as `crictl inspecti` does: `status`, and `info` with its configuration and layers if they are
    /// in the store of this agent. `layers`: they have to be there.
    pub(in crate::agent) async fn inspect_image(
        &self,
        reference: &str,
        layers: bool,
    ) -> Result<Value, Refusal> {
        if layers {
            self.stock.own_store("save")?;
        }
        let image = self.find_image(reference).await?;
        let mut shown = json!({"status": strict::to_value(&image).unwrap_or_default()});
        if let ImageStock::Own(store) = &self.stock {
            match store.image_info(&image.id) {
                Some(info) => shown["info"] = info,
                // It was removed meanwhile. What is saved without layers would look like an image.
                None if layers => return Err(image_not_found(reference)),
                None => {}
            }
        }
        Ok(shown)
    }

    /// Gives the image that `reference` names a further name. Returns the name in its full form.
    pub(in crate::agent) async fn tag_image(
        &self,
        reference: &str,
        name: &str,
    ) -> Result<String, Refusal> {
        let bad_name = |e: ImageError| Refusal::bad_request(error_chain(&e));
        let store = self.stock.own_store("tag")?;
        let image = self.find_image(reference).await?;
        store.tag_image(&image.id, name).await.map_err(bad_name)?;
        let name = ImageReference::parse(name).map_err(bad_name)?;
        Ok(name.to_string())
    }

    /// Removes the image that `reference` names; by one of several names, that name only. Returns a line for each name.
    pub(in crate::agent) async fn remove_image(
        &self,
        reference: &str,
    ) -> Result<Vec<String>, Refusal> {
        let image = self.find_image(reference).await?;
        if let ImageStock::Own(store) = &self.stock
            && let Ok(parsed) = ImageReference::parse(reference)
            && let Some(name) = parsed.tagged_name().filter(|_| parsed.digest().is_none())
            && image.repo_tags.contains(&name)
        {
            let untagged = store.untag_image(&image.id, &name).await;
            if untagged.map_err(|e| Refusal::new(500, error_chain(&e)))? {
                return Ok(vec![format!("Untagged: {name}")]);
            }
        }
        let removed = self.runtime.remove_image(&image.id).await;
        removed.map_err(|e| Refusal::new(409, e.to_string()))?;
        self.images.tidy_access_records().await;
        let names = shown_names(&image.repo_tags, &image.id).into_iter();
        Ok(names.map(|name| format!("Deleted: {name}")).collect())
    }

    /// Removes images that no container uses, and layers of pulls without waiters. Returns the removed images and the
    /// freed bytes.
    pub(in crate::agent) async fn prune_images(&self) -> Result<(Vec<String>, u64), Refusal> {
        let pruned = self.stock.prune_images(&*self.runtime).await;
        let pruned = pruned.map_err(|e| Refusal::new(500, error_chain(&e)))?;
        self.images.tidy_access_records().await;
        Ok(pruned)
    }

    /// Checks every image, a layer at a time, so that other work on the lane comes in between. With `repair`, damaged
    /// images that are not used are removed.
    pub(in crate::agent) async fn verify_images(
        &self,
        repair: bool,
        steps: Sender<ImageProgress>,
    ) -> Result<StoreVerification, Refusal> {
        let mut verifying = self.stock.own_store("verify")?.begin_verification().await;
        loop {
            let (done, layers, bytes) = verifying.get().progress_counts();
            // Full: the reader is slow, and the next step says all that this one does.
            let step = ImageProgress {
                stage: ImageStage::Verifying,
                layers_done: done,
                layers,
                bytes,
                ..ImageProgress::default()
            };
            let _ = steps.try_send(step);
            if steps.is_closed() {
                return Err(Refusal::bad_request("nobody waits for the answer"));
            }
            let (back, more) = verifying
                .run_piece(|verifying| verifying.check_next_layer())
                .await;
            verifying = back;
            if !more {
                break;
            }
        }
        // Asked only now: containers made meanwhile count too.
        let (_, used) = self
            .stock
            .list_images_and_used(&*self.runtime)
            .await
            .map_err(internal_refusal)?;
        let told = verifying.run_piece(move |verifying| {
            let found = verifying.collect_findings();
            let repairs: Vec<Option<RepairResult>> = found
                .damaged
                .iter()
                .map(|image| repair.then(|| verifying.repair_image(image, &used)))
                .collect();
            StoreVerification { found, repairs }
        });
        let (_, answer) = told.await;
        if repair {
            self.images.tidy_access_records().await;
        }
        memory::trim_memory();
        Ok(answer)
    }
}
