//! The image store of this machine: calls of the backend for containers, and calls that only a backend with its own
//! store offers. No other part of the agent opens the store.
//!
//! Imports, removals and checks wait for each other, so they run in a lane of their own (`unpack`). Pods do not wait
//! for them.

use core::{ops::ControlFlow, time::Duration};
use std::{collections::BTreeSet, io, path::PathBuf, sync::Arc};

use smol::{Timer, future::FutureExt as _};

use super::images::{BackendImageHold, BackendImageStore, ResolvedImage};
use crate::api::order::GatherExt as _;
use crate::{
    api::cri::{AuthConfig, FsInfo, PodRuntimeStatus, StoredImage},
    image::{
        DropInPoller, ImageError, ImageProgress, ImageRecord, ImageStore, ImageVerifier,
        ImportOptions, PullError, Puller,
        pull::{NodeCredentialLookup, PullSettings},
    },
    runtime::{RuntimeCall, RuntimeError},
    sys::lane::{Lane, OnLane},
};

/// Time limit for the disk to tell how full it is: the Node object shows that, and must not wait for a disk that hangs.
const FS_TIMEOUT: Duration = Duration::from_secs(3);

/// The store, and the puller that fills it. A copy is the same store.
#[derive(Clone)]
pub struct StoreImages {
    store: ImageStore,
    puller: Puller,
    disk: Lane,
    unpack: Lane,
}

impl StoreImages {
    /// Opens the store in `dir`, which is repaired; `settings` say how it is filled.
    ///
    /// # Errors
    /// The store cannot be read or made.
    pub async fn open(
        dir: PathBuf,
        settings: PullSettings,
        disk: Lane,
        unpack: Lane,
    ) -> Result<Self, ImageError> {
        let opened = disk.run_job(move || {
            let store = ImageStore::open(&dir)?;
            let puller = Puller::new(store.clone(), settings);
            Ok((store, puller))
        });
        let (store, puller) = opened.await?;
        Ok(Self {
            store,
            puller,
            disk,
            unpack,
        })
    }

    /// All images, sorted by id. From memory.
    #[must_use]
    pub fn image_records(&self) -> Vec<Arc<ImageRecord>> {
        self.store.list_images()
    }

    /// Ids of the images that instances of `pods` were made from or mount, dead ones included. From memory.
    #[must_use]
    pub fn images_used_by(&self, pods: &[PodRuntimeStatus]) -> BTreeSet<String> {
        let mut used = BTreeSet::new();
        for container in pods.iter().flat_map(|pod| &pod.containers) {
            let volumes = container.volume_images.iter();
            for image in volumes.chain([&container.image_id]) {
                if let Ok(Some(record)) = self.store.resolve_reference(image) {
                    used.insert(record.id.clone());
                }
            }
        }
        used
    }

    /// Imports every image of an archive, and returns them. `tick` hears of progress, and may stop it.
    ///
    /// # Errors
    /// The archive is wrong, or the disk fails: see [`ImageStore::import_archive`].
    pub async fn import_archive(
        &self,
        archive: PathBuf,
        options: ImportOptions,
        mut tick: impl FnMut(ImageProgress) -> ControlFlow<()> + Send + 'static,
    ) -> Result<Vec<Arc<ImageRecord>>, ImageError> {
        let store = self.store.clone();
        let import = move || store.import_archive(&archive, &options, &mut tick);
        self.unpack.run_job(import).await
    }

    /// Removes an image that is not in `used`. Returns the bytes freed.
    ///
    /// # Errors
    /// It is in use, or the disk cannot be changed.
    pub async fn remove_unused(
        &self,
        id: &str,
        used: &BTreeSet<String>,
    ) -> Result<u64, ImageError> {
        let (store, id, used) = (self.store.clone(), id.to_owned(), used.clone());
        self.unpack
            .run_job(move || store.remove_image(&id, &used))
            .await
    }

    /// Takes a name from an image that has others. Returns false if it has no other.
    ///
    /// # Errors
    /// The disk cannot be changed.
    pub async fn untag_image(&self, id: &str, name: &str) -> Result<bool, ImageError> {
        let (store, id, name) = (self.store.clone(), id.to_owned(), name.to_owned());
        self.unpack
            .run_job(move || store.untag_image(&id, &name))
            .await
    }

    /// Gives an image a further name, which moves from the image that had it.
    ///
    /// # Errors
    /// The name is malformed, or the disk cannot be changed.
    pub async fn tag_image(&self, id: &str, name: &str) -> Result<(), ImageError> {
        let (store, id, name) = (self.store.clone(), id.to_owned(), name.to_owned());
        let tag = move || store.tag_image(&id, &name).map(drop);
        self.unpack.run_job(tag).await
    }

    /// Configuration and layers of an image. From memory.
    #[must_use]
    pub fn image_info(&self, id: &str) -> Option<serde_json::Value> {
        self.store.image_info(id)
    }

    /// Removes all images that are neither pinned nor in `used`. Returns them and the bytes freed.
    ///
    /// # Errors
    /// The disk cannot be changed.
    pub async fn prune_images(
        &self,
        used: BTreeSet<String>,
    ) -> Result<(Vec<Arc<ImageRecord>>, u64), ImageError> {
        let store = self.store.clone();
        self.unpack.run_job(move || store.prune_images(&used)).await
    }

    /// Removes the parts of unfinished pulls that were not taken up again for `unused`. Returns the bytes freed.
    ///
    /// # Errors
    /// The disk cannot be read or changed.
    pub async fn clear_unfinished(&self, unused: Duration) -> io::Result<u64> {
        let puller = self.puller.clone();
        self.unpack
            .run_job(move || puller.remove_unused_layers(unused))
            .await
    }

    /// The lookup of the node's own credentials.
    #[must_use]
    pub fn credential_lookup(&self) -> NodeCredentialLookup {
        self.puller.credential_lookup()
    }

    /// Begins to check all images: one layer a step.
    pub async fn begin_verification(&self) -> OnLane<ImageVerifier> {
        let store = self.store.clone();
        OnLane::new(&self.unpack, move || ImageVerifier::new(store)).await
    }

    /// Opens the directory whose archives are imported and whose lists are pulled.
    pub async fn open_drop_in(&self, dir: PathBuf) -> OnLane<DropInPoller> {
        let store = self.store.clone();
        OnLane::new(&self.unpack, move || DropInPoller::open(store, dir)).await
    }
}

impl BackendImageStore for StoreImages {
    fn resolve_image(&self, reference: &str) -> Result<Option<ResolvedImage>, ImageError> {
        let Some(image) = self.store.resolve_reference(reference)? else {
            return Ok(None);
        };
        // An image removed meanwhile counts as absent.
        Ok(self
            .store
            .layer_dirs(&image.id)
            .map(|layers| ResolvedImage {
                id: image.id.clone(),
                reference: image.image_id().to_owned(),
                process: image.config.config.clone(),
                layers,
            }))
    }

    fn describe_image(&self, reference: &str) -> Result<Option<StoredImage>, ImageError> {
        let image = self.store.resolve_reference(reference)?;
        Ok(image.map(|i| i.to_cri_image()))
    }

    fn hold_image(&self, id: &str) -> Option<BackendImageHold> {
        let hold = self.store.hold_image(id)?;
        Some(Box::new(hold))
    }

    fn list_stored_images(&self) -> Vec<StoredImage> {
        self.store
            .list_images()
            .iter()
            .map(|i| i.to_cri_image())
            .collect()
    }

    fn pull_to_store<'a>(
        &'a self,
        reference: &'a str,
        credential: Option<AuthConfig>,
    ) -> RuntimeCall<'a, String> {
        Box::pin(async move {
            let pulled = self
                .puller
                .pull_image(reference, credential.map(Into::into))
                .await;
            pulled.map_err(to_runtime_error)
        })
    }

    fn pull_progress(&self, reference: &str) -> Option<ImageProgress> {
        self.puller.pull_progress(reference)
    }

    fn is_pulling(&self, reference: &str) -> bool {
        self.puller.is_pull_running(reference)
    }

    fn remove_stored_image<'a>(&'a self, id: &'a str, in_use: Vec<String>) -> RuntimeCall<'a, ()> {
        Box::pin(async move {
            let (store, id) = (self.store.clone(), id.to_owned());
            let removed = self
                .unpack
                .run_job(move || store.remove_image(&id, &in_use.into_iter().gather_items()));
            removed.await.map(drop).map_err(super::failed_error)
        })
    }

    fn store_fs_info(&self) -> RuntimeCall<'_, FsInfo> {
        Box::pin(async {
            let store = self.store.clone();
            let info = async {
                let read = self.disk.run_job(move || store.filesystem_info());
                read.await.map_err(super::failed_error)
            };
            let late = async {
                Timer::after(FS_TIMEOUT).await;
                Err(RuntimeError::Timeout {
                    what: "the image file system".into(),
                    after: FS_TIMEOUT,
                })
            };
            info.or(late).await
        })
    }
}

/// Translates the error of a pull into the runtime's. The prefix of the text is the waiting reason (IMG-08).
fn to_runtime_error(error: PullError) -> RuntimeError {
    match error {
        PullError::Invalid(_) => RuntimeError::Invalid(error.to_string()),
        PullError::Denied(_) | PullError::Limited(_) => RuntimeError::Denied(error.to_string()),
        PullError::Full(_) => RuntimeError::Full(error.to_string()),
        PullError::Deferred(why) => RuntimeError::Deferred(why.0),
        PullError::Unavailable(_) | PullError::Failed(_) => RuntimeError::Failed(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        api::cri::ContainerState,
        image::testing::{Stream, docker_archive},
        logic::testing::instance,
        testing::TestDir,
    };

    #[test]
    fn a_disk_that_hangs_is_not_waited_for() {
        let temp = TestDir::new("store-images");
        let disk = Lane::start("disk").expect("a thread");
        let settings = PullSettings::default();
        let opened = StoreImages::open(
            temp.join("store"),
            settings,
            disk.clone(),
            Lane::without_thread(),
        );
        let images = smol::block_on(opened).expect("store");
        let (thaw, frozen) = std::sync::mpsc::channel::<()>();
        let hangs = async {
            let _ = disk.run_job(move || frozen.recv()).await;
            unreachable!("it hangs until it is thawed");
        };
        let info = smol::block_on(hangs.or(images.store_fs_info()));
        assert!(
            matches!(info, Err(RuntimeError::Timeout { .. })),
            "{info:?}"
        );
        drop(thaw);
        assert!(smol::block_on(images.store_fs_info()).is_ok());
    }

    #[test]
    fn another_credential_is_tried_at_a_registry_that_had_too_many_requests() {
        // IMG-08 IMG-13
        let limited = to_runtime_error(PullError::Limited("too many".into()));
        assert_eq!(
            limited,
            RuntimeError::Denied("RegistryUnavailable: too many".into())
        );
        let away = to_runtime_error(PullError::Unavailable("no answer".into()));
        assert!(matches!(away, RuntimeError::Failed(_)), "{away:?}");
    }

    #[test]
    fn what_dead_and_living_instances_are_made_of_and_mount_is_in_use() {
        // GC-11 IGC-02
        let temp = TestDir::new("store-images");
        let lane = Lane::without_thread();
        let opened = StoreImages::open(
            temp.join("store"),
            PullSettings::default(),
            lane.clone(),
            lane,
        );
        let images = smol::future::block_on(opened).expect("store");
        let add = |name: &str| {
            let layer = Stream::new().file("name", name.as_bytes()).bytes();
            let archive = temp.join("archive.tar");
            std::fs::write(&archive, docker_archive(name, &[&layer])).expect("archive");
            let tick = |_| ControlFlow::Continue(());
            let imported = images.import_archive(archive, ImportOptions::default(), tick);
            let imported = smol::future::block_on(imported).expect("imported");
            imported[0].id.clone()
        };
        let [own, dead, volume, _free] = ["own:1", "dead:1", "volume:1", "free:1"].map(add);
        let mut running = instance("a", ContainerState::Running);
        running.image_id = own.clone();
        running.volume_images = vec![volume.clone(), "sha256:absent".into()];
        let mut ended = instance("b", ContainerState::Exited);
        ended.image_id = dead.clone();
        let pod = PodRuntimeStatus {
            containers: vec![running, ended],
            ..PodRuntimeStatus::default()
        };
        assert_eq!(images.images_used_by(&[pod]), [own, dead, volume].into());
    }
}
