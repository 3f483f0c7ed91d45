//! Local commands on images.

use alloc::rc::Rc;
use core::ops::ControlFlow;
use std::path::PathBuf;

use smol::channel::Sender;

use super::{
    owner::AgentImages,
    stock::{ImageStock, shown},
};
use crate::{
    api::cri::StoredImage,
    error::chain,
    image::{
        ImageProgress, ImageReference, ImportOptions, RepairResult, StoreVerification,
        progress::ImageStage,
    },
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

fn internal(e: RuntimeError) -> Refusal {
    Refusal::new(500, e.to_string())
}

impl ImageCommands {
    /// All images, sorted by id.
    pub(in crate::agent) async fn list(&self) -> Result<Vec<StoredImage>, Refusal> {
        self.runtime.list_images().await.map_err(internal)
    }

    /// Imports an archive. Returns the references it brought. `steps` gets the progress; closing it ends the import.
    pub(in crate::agent) async fn import(
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
        let imported = self.stock.own("import")?.import(path, options, tick).await;
        let records = imported.map_err(|e| Refusal::bad(chain(&e)))?;
        let ids: Vec<&str> = records.iter().map(|record| &*record.id).collect();
        self.images.imported(&ids).await;
        memory::trim();
        Ok(records
            .iter()
            .flat_map(|record| shown(&record.names, &record.id))
            .collect())
    }

    /// Pulls `reference`; `now`: whatever the link has left. Returns the image's id.
    pub(in crate::agent) async fn pull(
        &self,
        reference: &str,
        now: bool,
    ) -> Result<String, Refusal> {
        let pulled = self.images.pull_for_node(reference, now).await;
        pulled.map_err(|e| match e {
            RuntimeError::Invalid(text) => Refusal::bad(text),
            RuntimeError::Deferred(text) => Refusal::new(
                429,
                format!("the link has no bytes left for it today: {text} (--now pulls it now)"),
            ),
            other => internal(other),
        })
    }

    /// Progress of the pull of `reference`, if one is under way.
    pub(in crate::agent) fn progress(&self, reference: &str) -> Option<ImageProgress> {
        self.runtime.pull_progress(reference)
    }

    /// Removes the image that `reference` names; by one of several names, that name only. Returns a line for each name.
    pub(in crate::agent) async fn remove(&self, reference: &str) -> Result<Vec<String>, Refusal> {
        let found = self.runtime.image_status(reference).await;
        let image = found
            .map_err(internal)?
            .ok_or_else(|| Refusal::not_found(format!("images \"{reference}\" not found")))?;
        if let ImageStock::Own(store) = &self.stock
            && let Ok(parsed) = ImageReference::parse(reference)
            && let Some(name) = parsed.tagged().filter(|_| parsed.digest().is_none())
            && image.repo_tags.contains(&name)
        {
            let untagged = store.untag(&image.id, &name).await;
            if untagged.map_err(|e| Refusal::new(500, chain(&e)))? {
                return Ok(vec![format!("Untagged: {name}")]);
            }
        }
        let removed = self.runtime.remove_image(&image.id).await;
        removed.map_err(|e| Refusal::new(409, e.to_string()))?;
        self.images.tidy().await;
        let names = shown(&image.repo_tags, &image.id).into_iter();
        Ok(names.map(|name| format!("Deleted: {name}")).collect())
    }

    /// Removes images that no container uses, and layers of pulls without waiters. Returns the removed images and the
    /// freed bytes.
    pub(in crate::agent) async fn prune(&self) -> Result<(Vec<String>, u64), Refusal> {
        let pruned = self.stock.prune(&*self.runtime).await;
        let pruned = pruned.map_err(|e| Refusal::new(500, chain(&e)))?;
        self.images.tidy().await;
        Ok(pruned)
    }

    /// Checks every image, a layer at a time, so that other work on the lane comes in between. With `repair`, damaged
    /// images that are not used are removed.
    pub(in crate::agent) async fn verify(
        &self,
        repair: bool,
        steps: Sender<ImageProgress>,
    ) -> Result<StoreVerification, Refusal> {
        let mut verifying = self.stock.own("verify")?.verifying().await;
        loop {
            let (done, layers, bytes) = verifying.get().progress();
            // Full: the reader is slow, and the next step says all that this one does.
            let step = ImageProgress {
                stage: ImageStage::Verifying,
                layers_done: done,
                layers,
                bytes,
                bytes_total: 0,
            };
            let _ = steps.try_send(step);
            if steps.is_closed() {
                return Err(Refusal::bad("nobody waits for the answer"));
            }
            let (back, more) = verifying.run(|verifying| verifying.step()).await;
            verifying = back;
            if !more {
                break;
            }
        }
        // Asked only now: containers made meanwhile count too.
        let (_, used) = self.stock.look(&*self.runtime).await.map_err(internal)?;
        let told = verifying.run(move |verifying| {
            let found = verifying.found();
            let repairs: Vec<Option<RepairResult>> = found
                .damaged
                .iter()
                .map(|image| repair.then(|| verifying.repair(image, &used)))
                .collect();
            StoreVerification { found, repairs }
        });
        let (_, answer) = told.await;
        if repair {
            self.images.tidy().await;
        }
        memory::trim();
        Ok(answer)
    }
}
