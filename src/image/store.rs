//! The store: images that are whole and on disk, and nothing else.
//!
//! ```text
//! <root>/            0700: set-user-id files of images are out of reach of the machine's users
//!   lock             held while the store is open
//!   records/<64 hex>.json   one per image, written last
//!   layers/<16 hex>/        one per unpacked layer, root of its own, 0755; `layers/empty` for images without any
//!   lost/<64 hex>           one per image that was damaged and removed, and is to come again
//!   staging/                layers being unpacked or removed; emptied at open
//!   pulls/blobs/sha256/     layers on their way from a registry, `.part` while they grow; see [`super::pull`]
//!   dropin.json             imports from the drop-in directory
//! ```
//!
//! Order of a commit: files unpacked into `staging` → `syncfs` → layers renamed → directory synced → record written
//! by rename. A power cut in between leaves staging files or layers without a record; [`ImageStore::open`] removes both.
//! Neither manifests nor blobs are kept: the record has all that running an image needs.
//!
//! **Mounting.** Layer names are short so that 127 of them fit into the 4096 bytes of `mount(2)` data: change into
//! [`ImageStore::layers_root`] and name them relative ([`ImageStore::layer_names`], 17 bytes each), or add them one by one with
//! `fsconfig("lowerdir+")` (Linux 6.5). The upper directory must be 0755 root: a layer's own root carries no metadata.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::digest::Digest;
use super::error::ImageError;
use super::import::{self, ImportLimits, ImportOptions, ProgressCallback};
use super::plan::PlannedImage;
use super::record::{ImageRecord, LayerRecord, MAX_RECORD_BYTES, RECORD_VERSION};
use super::reference::{ImageReference, ReferenceError};
use super::tree;
use super::whose::{self, LayerSharing};
use crate::api::cri::FsInfo;
use crate::api::order::{GatherExt, OrderExt};
use crate::api::strict::{JsonTextError, from_json};
use crate::error::error_chain;
use crate::sys::{crash, disk_usage, file, lock};

/// Reason why a record on disk is of no use. Whatever wrote it, the image is removed and brought again.
#[derive(Debug, thiserror::Error)]
pub(super) enum ImageRecordError {
    /// The file cannot be read.
    #[error(transparent)]
    Read(#[from] io::Error),
    /// The text is cut short, or is no record.
    #[error(transparent)]
    Text(#[from] JsonTextError),
    /// A later agent wrote it.
    #[error("version {0} is not known")]
    Version(u32),
    /// The record is of another image, with this id.
    #[error("it belongs to image {0:?}")]
    Other(String),
    /// The directory of a layer has no such name.
    #[error("{0:?} is not a layer")]
    NoLayer(String),
    /// The directory of a layer is not there.
    #[error("layer {0} is missing")]
    Missing(String),
    /// The record differs from the one in memory.
    #[error("its content is not what was written")]
    Changed,
}

/// Images a store holds at most. Each costs a few KiB of memory.
pub const MAX_IMAGES: usize = 1000;
/// Names an image has at most, and as many by digest. With one more, the first of those that it had before goes.
pub const MAX_NAMES: usize = 256;
/// Directory below `layers/` for images that have no layer: overlayfs wants at least one.
const EMPTY: &str = "empty";

/// The image store of one agent. Clones share it.
///
/// Reading calls take a short lock and touch no disk; calls that change something (`import_archive`, `tag`, `remove`,
/// `prune_images`, `set_pinned`) block on the disk and on each other: run them on the unpack lane.
#[derive(Clone)]
pub struct ImageStore {
    inner: Arc<ImageStoreShared>,
}

struct ImageStoreShared {
    root: PathBuf,
    limits: ImportLimits,
    index: Mutex<StoreIndex>,
    /// Lock of calls that change the store: one change at a time.
    change: Mutex<()>,
    _lock: File,
}

#[derive(Default)]
struct StoreIndex {
    /// Images by id.
    images: BTreeMap<String, Arc<ImageRecord>>,
    /// Highest sequence number given.
    sequence: u64,
    /// Ids of images that were damaged and removed, and did not come back.
    lost: BTreeSet<String>,
    /// Number of holds by image id.
    held: BTreeMap<String, usize>,
    /// The image that is being removed: too late to hold it.
    going: Option<String>,
}

/// Keeps an image in the store until it is dropped, whatever the remover knows of the image's users.
pub struct StoredImageHold {
    store: ImageStore,
    id: String,
}

impl Drop for StoredImageHold {
    fn drop(&mut self) {
        let mut index = self.store.lock_index();
        if let Some(count) = index.held.get_mut(&self.id) {
            *count -= 1;
            if *count == 0 {
                index.held.remove(&self.id);
            }
        }
    }
}

/// A layer that lies unpacked in `staging`.
pub(super) struct StagedLayer {
    /// Name below `staging/`.
    pub(super) staged: String,
    /// Record that the layer gets in the store.
    pub(super) record: LayerRecord,
}

impl ImageStore {
    /// Opens the store at `root` (made if absent) and repairs it after a power cut.
    ///
    /// Errors: [`ImageError::Locked`] if another process has it open; [`ImageError::Store`].
    pub fn open(root: &Path) -> Result<Self, ImageError> {
        Self::open_with(root, ImportLimits::default())
    }

    pub(super) fn open_with(root: &Path, limits: ImportLimits) -> Result<Self, ImageError> {
        let above = first_existing_ancestor(root);
        make_dir(root, 0o700)?;
        let lock_path = root.join("lock");
        let lock = lock::try_lock_patiently(&lock_path)
            .map_err(ImageError::store_error("lock", &lock_path))?
            .ok_or_else(|| ImageError::Locked(root.into()))?;
        for (name, mode) in [("records", 0o700), ("layers", 0o755), ("staging", 0o700)] {
            make_dir(&root.join(name), mode)?;
        }
        // A store of an earlier version has none, and may be on a disk that cannot be written any more.
        ignore_read_only(make_dir(&root.join("lost"), 0o700))?;
        make_dir(&root.join("layers").join(EMPTY), 0o755)?;
        // An entry of a directory is on disk only if the directory is, and the names that lead to it.
        let named = |dir: &&Path| !dir.as_os_str().is_empty();
        for dir in root.ancestors().take_while(named) {
            sync_dir(dir)?;
            if dir == above {
                break;
            }
        }
        let store = Self {
            inner: Arc::new(ImageStoreShared {
                root: root.into(),
                limits,
                index: Mutex::new(StoreIndex::default()),
                change: Mutex::new(()),
                _lock: lock,
            }),
        };
        ignore_read_only(store.clear_staging())?;
        ignore_read_only(store.remove_temporary())?;
        let index = store.load_records()?;
        ignore_read_only(store.remove_orphan_layers(&index))?;
        *store.lock_index() = index;
        Ok(store)
    }

    /// Imports every image of an archive: docker-archive or OCI layout, plain, gzip or zstd, or an OCI layout
    /// directory. If it fails none of them becomes visible; a power cut may leave the first ones. `tick` hears of progress
    /// and may stop the import.
    ///
    /// Returns the images in the order of the archive. Layers that the store has are not unpacked again.
    /// A name that another image had moves to the new one.
    ///
    /// Errors: [`ImageError::Import`] names archive, blob, entry and fault; see [`ImageError::is_transient`].
    pub fn import_archive(
        &self,
        archive: &Path,
        options: &ImportOptions,
        tick: ProgressCallback<'_>,
    ) -> Result<Vec<Arc<ImageRecord>>, ImageError> {
        let _change = self.lock_changes();
        let result = import::import_archive(self, archive, options, tick);
        // Layers of a failed import, or a layer that two members held alike. The import's own error comes first.
        let cleared = self.clear_staging();
        let images = result?;
        cleared?;
        Ok(images)
    }

    /// Imports a planned image from the blobs in `layout`; see [`import::import_planned_image`].
    pub(super) fn import_planned(
        &self,
        layout: &Path,
        planned: PlannedImage,
        shares: &LayerSharing<'_>,
        tick: ProgressCallback<'_>,
    ) -> Result<Arc<ImageRecord>, ImageError> {
        let _change = self.lock_changes();
        let result = import::import_planned_image(self, layout, planned, shares, tick);
        let cleared = self.clear_staging();
        let image = result?;
        cleared?;
        Ok(image)
    }

    /// The image that `reference` names: a name (normalised or not), a name by digest, or an id.
    /// With tag and digest the digest decides.
    ///
    /// Errors: [`ImageError::InvalidReference`] (waiting reason `InvalidImageName`).
    pub fn resolve_reference(
        &self,
        reference: &str,
    ) -> Result<Option<Arc<ImageRecord>>, ImageError> {
        let index = self.lock_index();
        if Digest::parse(reference).is_ok() {
            return Ok(index.images.get(reference).cloned());
        }
        if Digest::from_hex(reference).is_some() {
            return Ok(index.images.get(&format!("sha256:{reference}")).cloned());
        }
        let reference = ImageReference::parse(reference)?;
        Ok(index.find_by_reference(&reference))
    }

    /// The image with this id (`sha256:…`).
    #[must_use]
    pub fn image_by_id(&self, id: &str) -> Option<Arc<ImageRecord>> {
        self.lock_index().images.get(id).cloned()
    }

    /// Keeps the image with this id from being removed; `None` if it is not there.
    ///
    /// A caller of [`ImageStore::remove_image`] or [`ImageStore::prune_images`] knows the images in use as of its
    /// request. A container may have been made since, for a removal waits its turn behind imports.
    #[must_use]
    pub fn hold_image(&self, id: &str) -> Option<StoredImageHold> {
        let mut index = self.lock_index();
        if !index.images.contains_key(id) || index.going.as_deref() == Some(id) {
            return None;
        }
        *index.held.entry(id.into()).or_default() += 1;
        Some(StoredImageHold {
            store: self.clone(),
            id: id.into(),
        })
    }

    /// All images, sorted by id.
    #[must_use]
    pub fn list_images(&self) -> Vec<Arc<ImageRecord>> {
        self.lock_index().images.values().cloned().collect()
    }

    /// Gives an image a further name. The name moves from the image that had it.
    pub fn tag_image(&self, id: &str, name: &str) -> Result<Arc<ImageRecord>, ImageError> {
        let _change = self.lock_changes();
        let reference = ImageReference::parse(name)?;
        let tagged = reference.tagged_name();
        let Some(name) = tagged.filter(|_| reference.digest().is_none()) else {
            return Err(ImageError::InvalidReference {
                reference: name.into(),
                reason: ReferenceError::ByDigest,
            });
        };
        let image = self
            .image_by_id(id)
            .ok_or_else(|| ImageError::NotFound(id.into()))?;
        let mut record = (*image).clone();
        insert_sorted(&mut record.names, name.clone());
        trim_former_names(&mut record.names, &[name]);
        self.put_record(record)
    }

    /// Notes by which of its names by digest an image was pulled.
    pub fn record_pulled_digest(
        &self,
        id: &str,
        name: &str,
    ) -> Result<Arc<ImageRecord>, ImageError> {
        let _change = self.lock_changes();
        let image = self
            .image_by_id(id)
            .ok_or_else(|| ImageError::NotFound(id.into()))?;
        let mut record = (*image).clone();
        record.led_by = name.into();
        self.put_record(record)
    }

    /// Takes a name from an image that has others. Returns false, and takes nothing, if it has no other.
    pub fn untag_image(&self, id: &str, name: &str) -> Result<bool, ImageError> {
        let _change = self.lock_changes();
        let Some(image) = self.image_by_id(id).filter(|image| image.names.len() > 1) else {
            return Ok(false);
        };
        let mut record = (*image).clone();
        record.names.retain(|other| other != name);
        self.put_record(record)?;
        Ok(true)
    }

    /// Marks an image as kept by `prune_images` and image GC, or takes the mark away.
    ///
    /// Errors: [`ImageError::NotFound`] if it is to be kept and is not there; [`ImageError::Store`].
    pub fn set_pinned(&self, id: &str, pinned: bool) -> Result<(), ImageError> {
        let _change = self.lock_changes();
        match self.image_by_id(id) {
            None if pinned => Err(ImageError::NotFound(id.into())),
            Some(image) if image.pinned != pinned => {
                let mut record = (*image).clone();
                record.pinned = pinned;
                self.put_record(record).map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Removes an image with all its names, and the layers that no other image has.
    /// Returns the bytes freed; an image that is not there is a success.
    ///
    /// Errors: [`ImageError::InUse`] if `in_use` (ids of images that containers use) has it, or a [`StoredImageHold`] keeps it.
    pub fn remove_image(&self, id: &str, in_use: &BTreeSet<String>) -> Result<u64, ImageError> {
        let _change = self.lock_changes();
        self.remove_locked(id, in_use)
    }

    /// Removes every image that is neither pinned nor held nor in `in_use`. Returns the removed images and the bytes freed.
    pub fn prune_images(
        &self,
        in_use: &BTreeSet<String>,
    ) -> Result<(Vec<Arc<ImageRecord>>, u64), ImageError> {
        let _change = self.lock_changes();
        let mut removed = Vec::new();
        let mut freed = 0;
        for image in self.list_images() {
            if image.pinned {
                continue;
            }
            match self.remove_locked(&image.id, in_use) {
                Err(ImageError::InUse(_)) => {}
                bytes => {
                    freed += bytes?;
                    removed.push(image);
                }
            }
        }
        Ok((removed, freed))
    }

    /// Layer directories of an image for overlayfs, absolute, top first; at least one, at most [`super::MAX_LAYERS`].
    #[must_use]
    pub fn layer_dirs(&self, id: &str) -> Option<Vec<PathBuf>> {
        let root = self.layers_root();
        let names = self.layer_names(id)?;
        Some(names.iter().map(|name| root.join(name)).collect())
    }

    /// Layer directories of an image as [`ImageStore::layer_dirs`] has them, as names below
    /// [`ImageStore::layers_root`], at most 16 bytes each.
    #[must_use]
    pub fn layer_names(&self, id: &str) -> Option<Vec<String>> {
        let image = self.image_by_id(id)?;
        let mut names: Vec<String> = image.lower_dirs().into_iter().map(String::from).collect();
        if names.is_empty() {
            names.push(EMPTY.into());
        }
        Some(names)
    }

    /// Directory that holds the layers.
    #[must_use]
    pub fn layers_root(&self) -> PathBuf {
        self.inner.root.join("layers")
    }

    /// The file system that holds the store.
    pub fn filesystem_info(&self) -> Result<FsInfo, ImageError> {
        let root = &self.inner.root;
        disk_usage::read_file_system(root).map_err(ImageError::store_error("examine", root))
    }

    pub(super) fn root(&self) -> &Path {
        &self.inner.root
    }

    pub(super) fn import_limits(&self) -> &ImportLimits {
        &self.inner.limits
    }

    /// Every layer of the store by its key.
    pub(super) fn layer_records(&self) -> BTreeMap<String, LayerRecord> {
        self.lock_index().layer_records()
    }

    /// Makes staged layers and then images durable and visible, in that order. The caller holds the change lock.
    /// The images get sequence numbers here; one that is there already gains the new names.
    pub(super) fn commit_images(
        &self,
        staged: &[StagedLayer],
        images: Vec<ImageRecord>,
    ) -> Result<Vec<Arc<ImageRecord>>, ImageError> {
        let root = &self.inner.root;
        let layers = self.layers_root();
        let new = images
            .iter()
            .filter(|image| self.image_by_id(&image.id).is_none())
            .count();
        if self.lock_index().images.len() + new > MAX_IMAGES {
            return Err(ImageError::Store {
                action: "add to",
                path: root.clone(),
                source: io::Error::other(format!("it holds {MAX_IMAGES} images, its limit")),
            });
        }
        if !staged.is_empty() {
            let dir = open_dir(root)?;
            crash::point("image.unpacked");
            nix::unistd::syncfs(&dir).map_err(ImageError::store_error("sync", root))?;
            for layer in staged {
                let target = layers.join(&layer.record.dir);
                if target.exists() {
                    // Left by a commit that failed after its renames: no record has it.
                    let trash = root.join("staging").join(&layer.record.dir);
                    fs::rename(&target, trash)
                        .map_err(ImageError::store_error("replace", &target))?;
                }
                fs::rename(root.join("staging").join(&layer.staged), &target)
                    .map_err(ImageError::store_error("rename a layer to", target))?;
            }
            sync_dir(&layers)?;
            crash::point("image.renamed");
        }
        let mut done = Vec::with_capacity(images.len());
        for mut image in images {
            if let Some(old) = self.image_by_id(&image.id) {
                for (list, before) in [
                    (&mut image.names, &old.names),
                    (&mut image.digests, &old.digests),
                ] {
                    let fresh = list.clone();
                    for name in before {
                        insert_sorted(list, name.clone());
                    }
                    trim_former_names(list, &fresh);
                }
                if image.led_by.is_empty() {
                    image.led_by.clone_from(&old.led_by);
                }
                image.pinned |= old.pinned;
                image.pulled |= old.pulled;
            }
            done.push(self.put_record(image)?);
        }
        Ok(done)
    }

    /// Writes a record and moves its names to it. A record that is equal to the present one is not written.
    fn put_record(&self, mut record: ImageRecord) -> Result<Arc<ImageRecord>, ImageError> {
        record.names.truncate(MAX_NAMES);
        record.digests.truncate(MAX_NAMES);
        let losers: Vec<ImageRecord> = {
            let mut index = self.lock_index();
            if let Some(old) = index.images.get(&record.id) {
                record.sequence = old.sequence;
                if **old == record {
                    return Ok(Arc::clone(old));
                }
            }
            index.sequence += 1;
            record.sequence = index.sequence;
            index
                .images
                .values()
                .filter(|i| i.id != record.id && i.names.iter().any(|n| record.names.contains(n)))
                .map(|image| {
                    let mut loser = (**image).clone();
                    loser.names.retain(|name| !record.names.contains(name));
                    loser
                })
                .collect()
        };
        self.write_record(&record)?;
        crash::point("image.recorded");
        self.clear_lost_image(&record.id);
        let record = Arc::new(record);
        {
            let mut index = self.lock_index();
            index.images.insert(record.id.clone(), Arc::clone(&record));
            for loser in &losers {
                index
                    .images
                    .insert(loser.id.clone(), Arc::new(loser.clone()));
            }
        }
        // After a crash in between, the sequence numbers tell which image has the name.
        for loser in &losers {
            self.write_record(loser)?;
        }
        Ok(record)
    }

    pub(super) fn remove_locked(
        &self,
        id: &str,
        in_use: &BTreeSet<String>,
    ) -> Result<u64, ImageError> {
        let Some(image) = self.image_by_id(id) else {
            return Ok(0);
        };
        {
            let mut index = self.lock_index();
            if in_use.contains(id) || index.held.contains_key(id) {
                return Err(ImageError::InUse(id.into()));
            }
            index.going = Some(id.into());
        }
        let unrecorded = self.remove_record(id);
        let left = {
            let mut index = self.lock_index();
            index.going = None;
            unrecorded?;
            index.images.remove(id);
            index.layer_records()
        };
        let mut freed = 0;
        let mut gone = BTreeSet::new();
        for layer in &image.layers {
            if !left.contains_key(&layer.key) && gone.insert(&layer.dir) {
                // Renamed first: half a layer must never stand under its name.
                let path = self.layers_root().join(&layer.dir);
                let trash = self.inner.root.join("staging").join(&layer.dir);
                match fs::rename(&path, trash) {
                    Ok(()) => freed += layer.size_bytes,
                    Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                    Err(e) => return Err(ImageError::store_error("remove", path)(e)),
                }
            }
        }
        self.clear_staging()?;
        Ok(freed)
    }

    fn remove_record(&self, id: &str) -> Result<(), ImageError> {
        let path = self.record_path(id);
        match fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                return Err(ImageError::store_error("remove", path)(e));
            }
            _ => sync_dir(&self.inner.root.join("records"))?,
        }
        crash::point("image.unrecorded");
        Ok(())
    }

    fn record_path(&self, id: &str) -> PathBuf {
        let hex = id.strip_prefix("sha256:").unwrap_or(id);
        self.inner.root.join("records").join(format!("{hex}.json"))
    }

    /// Takes note, on disk, of an image that is about to be removed because it is damaged.
    pub(super) fn record_lost_image(&self, id: &str) -> Result<(), ImageError> {
        let dir = self.inner.root.join("lost");
        let path = dir.join(id.strip_prefix("sha256:").unwrap_or(id));
        File::create(&path).map_err(ImageError::store_error("write", path))?;
        sync_dir(&dir)?;
        self.lock_index().lost.insert(id.into());
        Ok(())
    }

    /// Ids of images that were damaged and removed, and are to come again.
    pub(super) fn lost_images(&self) -> BTreeSet<String> {
        self.lock_index().lost.clone()
    }

    /// Removes the note that an image is lost: it need not be brought again. A note that stays costs one more import.
    pub(super) fn clear_lost_image(&self, id: &str) {
        if self.lock_index().lost.remove(id) {
            let hex = id.strip_prefix("sha256:").unwrap_or(id);
            let path = self.inner.root.join("lost").join(hex);
            if let Err(e) = fs::remove_file(&path) {
                log::warn!("cannot remove {}: {e}", path.display());
            }
        }
    }

    pub(super) fn write_record(&self, record: &ImageRecord) -> Result<(), ImageError> {
        let path = self.record_path(&record.id);
        let bytes = serde_json::to_vec(record)
            .map_err(io::Error::from)
            .map_err(ImageError::store_error("write", &path))?;
        file::write_atomic(&path, &bytes, 0o600, true)
            .map_err(ImageError::store_error("write", path))
    }

    /// Removes temporary files that a power cut left while a file was being replaced.
    fn remove_temporary(&self) -> Result<(), ImageError> {
        let root = &self.inner.root;
        for entry in fs::read_dir(root).map_err(ImageError::store_error("list", root))? {
            let path = entry.map_err(ImageError::store_error("list", root))?.path();
            let name = path.file_name().and_then(|n| n.to_str()).unwrap_or("");
            if name.starts_with('.') && name.ends_with(".tmp") {
                fs::remove_file(&path).map_err(ImageError::store_error("remove", path))?;
            }
        }
        Ok(())
    }

    fn clear_staging(&self) -> Result<(), ImageError> {
        let path = self.inner.root.join("staging");
        let dir = open_dir(&path)?;
        tree::clear_directory(dir).map_err(ImageError::store_error("empty", path))
    }

    /// Reads all records. A half, foreign or stale one is removed with a warning: an image is there whole or not at all.
    fn load_records(&self) -> Result<StoreIndex, ImageError> {
        let dir = self.inner.root.join("records");
        let mut records: Vec<ImageRecord> = Vec::new();
        for entry in fs::read_dir(&dir).map_err(ImageError::store_error("list", &dir))? {
            let path = entry.map_err(ImageError::store_error("list", &dir))?.path();
            match self.load_record(&path) {
                Ok(record) => records.push(record),
                Err(reason) => {
                    log::warn!("image record {} is dropped: {reason}", path.display());
                    // A file that a cut write left behind is no lost image: its image was never there, or still is.
                    let hex = path
                        .file_name()
                        .and_then(|n| n.to_str()?.strip_suffix(".json"));
                    if let Some(id) = hex.and_then(Digest::from_hex)
                        && let Err(e) = self.record_lost_image(&id.to_string())
                    {
                        log::warn!("{}", error_chain(&e));
                    }
                    let removed = fs::remove_file(&path);
                    ignore_read_only(removed.map_err(ImageError::store_error("remove", &path)))?;
                }
            }
        }
        records.stable_sort_by_key(|record| core::cmp::Reverse(record.sequence));
        let mut index = StoreIndex {
            sequence: records.first().map_or(0, |record| record.sequence),
            ..StoreIndex::default()
        };
        index.lost = self.load_lost()?;
        let mut claimed = BTreeSet::new();
        for mut record in records {
            let before = record.names.len();
            record.names.retain(|name| claimed.insert(name.clone()));
            if record.names.len() < before {
                // Else it has the name again once the record goes that the name has moved to.
                let written = ignore_read_only(self.write_record(&record));
                if let Err(e) = written {
                    log::warn!("{}", error_chain(&e));
                }
            }
            index.images.insert(record.id.clone(), Arc::new(record));
        }
        Ok(index)
    }

    fn load_lost(&self) -> Result<BTreeSet<String>, ImageError> {
        let dir = self.inner.root.join("lost");
        let list = match fs::read_dir(&dir) {
            // A store of an earlier version on a disk that cannot be written.
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
            list => list.map_err(ImageError::store_error("list", &dir))?,
        };
        let names = list.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        Ok(names
            .filter_map(|hex| Digest::from_hex(&hex))
            .map(|id| id.to_string())
            .take(MAX_IMAGES)
            .gather_items())
    }

    /// Compares the record on disk with the one in memory, but for the names.
    pub(super) fn check_record(&self, image: &ImageRecord) -> Result<(), ImageRecordError> {
        let found = self.load_record(&self.record_path(&image.id))?;
        // A name that moved to another image may still stand in this one's record.
        let same = found.layers == image.layers && found.config == image.config;
        if same {
            Ok(())
        } else {
            Err(ImageRecordError::Changed)
        }
    }

    fn load_record(&self, path: &Path) -> Result<ImageRecord, ImageRecordError> {
        let record: ImageRecord = from_json(&file::read_start(path, MAX_RECORD_BYTES)?)?;
        if record.v != RECORD_VERSION {
            return Err(ImageRecordError::Version(record.v));
        }
        if Digest::parse(&record.id).is_err() || self.record_path(&record.id) != path {
            return Err(ImageRecordError::Other(record.id));
        }
        for layer in &record.layers {
            if !is_layer_name(&layer.dir) {
                return Err(ImageRecordError::NoLayer(layer.dir.clone()));
            }
            if !self.layers_root().join(&layer.dir).is_dir() {
                return Err(ImageRecordError::Missing(layer.dir.clone()));
            }
        }
        Ok(record)
    }

    fn remove_orphan_layers(&self, index: &StoreIndex) -> Result<(), ImageError> {
        let known: BTreeSet<String> = index
            .layer_records()
            .into_values()
            .map(|l| l.dir)
            .gather_items();
        let dir = self.layers_root();
        let mut orphans = 0;
        for entry in fs::read_dir(&dir).map_err(ImageError::store_error("list", &dir))? {
            let entry = entry.map_err(ImageError::store_error("list", &dir))?;
            let name = entry.file_name();
            let kept = name
                .to_str()
                .is_some_and(|name| name == EMPTY || known.contains(name));
            if !kept {
                let trash = self.inner.root.join("staging").join(&name);
                fs::rename(entry.path(), trash)
                    .map_err(ImageError::store_error("remove", entry.path()))?;
                orphans += 1;
            }
        }
        if orphans > 0 {
            log::info!("{orphans} layers without an image removed");
            self.clear_staging()?;
        }
        Ok(())
    }

    fn lock_index(&self) -> MutexGuard<'_, StoreIndex> {
        self.inner
            .index
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn lock_changes(&self) -> MutexGuard<'_, ()> {
        self.inner
            .change
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl StoreIndex {
    fn find_by_reference(&self, reference: &ImageReference) -> Option<Arc<ImageRecord>> {
        let digest = reference
            .digest()
            .map(|digest| format!("{}@{digest}", reference.repository()));
        let tagged = reference.tagged_name();
        self.images
            .values()
            .find(|image| match (&digest, &tagged) {
                (Some(digest), _) => image.digests.contains(digest),
                (None, Some(tagged)) => image.names.contains(tagged),
                (None, None) => false,
            })
            .cloned()
    }

    fn layer_records(&self) -> BTreeMap<String, LayerRecord> {
        let mut all: BTreeMap<String, LayerRecord> = BTreeMap::new();
        for image in self.images.values() {
            for layer in &image.layers {
                let known = all
                    .entry(layer.key.clone())
                    .or_insert_with(|| layer.clone());
                whose::merge_holders(known, layer);
                // A layer from a file of the operator's is open to every pod.
                known.open |= !image.pulled;
            }
        }
        all
    }
}

/// Inserts into a sorted list without duplicates.
pub(super) fn insert_sorted(list: &mut Vec<String>, item: String) {
    if let Err(at) = list.binary_search(&item) {
        list.insert(at, item);
    }
}

/// Removes former names until there are at most [`MAX_NAMES`]: an image must be found under the name just asked for.
/// `fresh`: the names that stay, sorted.
fn trim_former_names(list: &mut Vec<String>, fresh: &[String]) {
    let mut over = list.len().saturating_sub(MAX_NAMES);
    list.retain(|name| {
        let stays = over == 0 || fresh.binary_search(name).is_ok();
        over -= usize::from(!stays);
        stays
    });
}

/// 16 lower-case hex digits: no record can lead out of `layers/`.
fn is_layer_name(name: &str) -> bool {
    name.len() == 16
        && name
            .bytes()
            .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

/// Permission, set-id and sticky bits of a mode.
const MODE_BITS: u32 = 0o7777;

/// Passes over the error of a disk that can only be read: its images can still be run. Leftovers stay there.
fn ignore_read_only(result: Result<(), ImageError>) -> Result<(), ImageError> {
    match result {
        Err(ImageError::Store { source, .. })
            if source.kind() == io::ErrorKind::ReadOnlyFilesystem =>
        {
            Ok(())
        }
        result => result,
    }
}

/// The lowest directory above `path` that is there.
fn first_existing_ancestor(path: &Path) -> &Path {
    let mut above = path.ancestors().skip(1);
    above
        .find(|dir| dir.is_dir())
        .unwrap_or_else(|| Path::new("/"))
}

fn make_dir(path: &Path, mode: u32) -> Result<(), ImageError> {
    let made = file::make_dirs(path, mode);
    let settled = || {
        let wanted = fs::Permissions::from_mode(mode);
        // On a disk that has become read-only, a directory with the right mode can stay.
        if fs::metadata(path)?.permissions().mode() & MODE_BITS == mode {
            return Ok(());
        }
        // The mode above passed through the umask.
        fs::set_permissions(path, wanted)
    };
    made.and_then(|()| settled())
        .map_err(ImageError::store_error("make", path))
}

fn open_dir(path: &Path) -> Result<OwnedFd, ImageError> {
    File::open(path)
        .map(OwnedFd::from)
        .map_err(ImageError::store_error("open", path))
}

fn sync_dir(path: &Path) -> Result<(), ImageError> {
    file::sync_dir(path).map_err(ImageError::store_error("sync", path))
}

#[cfg(test)]
mod tests {
    use core::ops::ControlFlow;

    use super::super::testing::{Layout, Stream, config, docker_archive};
    use super::*;
    use crate::testing::TestDir;

    fn go(_: crate::image::ImageProgress) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn import(store: &ImageStore, scratch: &TestDir, archive: &[u8]) -> Vec<Arc<ImageRecord>> {
        let path = scratch.join("archive.tar");
        fs::write(&path, archive).expect("scratch");
        store
            .import_archive(&path, &ImportOptions::default(), &mut go)
            .unwrap_or_else(|e| panic!("{}", error_chain(&e)))
    }

    #[test]
    fn imported_image_is_found_by_every_form_of_its_name() {
        // IMG-04
        let scratch = TestDir::new("store");
        let store = ImageStore::open(&scratch.join("images")).expect("store");
        let layer = Stream::new().file("a", b"1").bytes();
        let image = import(&store, &scratch, &docker_archive("busybox:1", &[&layer]))
            .pop()
            .expect("one");
        for name in [
            "busybox:1",
            "docker.io/library/busybox:1",
            "docker.io/busybox:1",
            &image.id,
            &image.id[7..],
        ] {
            assert_eq!(
                store.resolve_reference(name).expect(name).as_ref(),
                Some(&image),
                "{name}"
            );
        }
        assert_eq!(store.resolve_reference("busybox").expect("valid"), None);
        let dirs = store.layer_dirs(&image.id).expect("layers");
        assert_eq!(fs::read(dirs[0].join("a")).expect("file"), b"1");
    }

    #[test]
    fn a_name_that_has_moved_does_not_come_back() {
        // As a power cut leaves it between the record that gets a name and the one that loses it.
        let scratch = TestDir::new("store");
        let open = || ImageStore::open(&scratch.join("images")).expect("store");
        let layer = |text: &[u8]| Stream::new().file("a", text).bytes();
        let name = "app:1";
        let store = open();
        let loser = import(&store, &scratch, &docker_archive(name, &[&layer(b"1")]));
        let loser = loser[0].id.clone();
        let record = store.record_path(&loser);
        let before = fs::read(&record).expect("record");
        let winner = import(&store, &scratch, &docker_archive(name, &[&layer(b"2")]));
        let winner = winner[0].id.clone();
        drop(store);
        fs::write(&record, before).expect("record");
        let store = open();
        let found = |store: &ImageStore| {
            store
                .resolve_reference(name)
                .expect("valid")
                .map(|i| i.id.clone())
        };
        assert_eq!(found(&store), Some(winner.clone()));
        store
            .remove_image(&winner, &BTreeSet::new())
            .expect("removed");
        assert_eq!(found(&store), None);
        drop(store);
        let store = open();
        assert_eq!(found(&store), None);
        let left = store.image_by_id(&loser).expect("it is there");
        assert_eq!(left.names, [""; 0]);
    }

    #[test]
    fn one_of_several_names_is_taken_away_alone() {
        // IMG-26
        let scratch = TestDir::new("store");
        let store = ImageStore::open(&scratch.join("images")).expect("store");
        let layer = Stream::new().file("a", b"1").bytes();
        let id = import(&store, &scratch, &docker_archive("x:a", &[&layer]))[0]
            .id
            .clone();
        store.tag_image(&id, "x:b").expect("tag");
        let name = "docker.io/library/x:a";
        assert!(store.untag_image(&id, name).expect("taken"));
        assert_eq!(store.resolve_reference("x:a").expect("valid"), None);
        let left = store
            .resolve_reference("x:b")
            .expect("valid")
            .expect("there");
        assert_eq!(left.id, id);
        assert!(
            !store
                .untag_image(&id, "docker.io/library/x:b")
                .expect("kept")
        );
        assert!(
            store.resolve_reference("x:b").expect("valid").is_some(),
            "the last one"
        );
        assert!(!store.untag_image("sha256:absent", name).expect("absent"));
    }

    #[test]
    fn what_is_not_there_cannot_be_kept() {
        let scratch = TestDir::new("store");
        let store = ImageStore::open(&scratch.join("images")).expect("store");
        let absent = Digest::compute(b"absent").to_string();
        let kept = store.set_pinned(&absent, true);
        assert!(matches!(kept, Err(ImageError::NotFound(id)) if id == absent));
        store.set_pinned(&absent, false).expect("nothing to do");
    }

    #[test]
    fn the_newest_name_of_many_is_found() {
        let scratch = TestDir::new("store");
        let store = ImageStore::open(&scratch.join("images")).expect("store");
        let layer = Stream::new().file("a", b"1").bytes();
        let mut layout = Layout::new();
        let image = layout.image(&config(&[&layer], ""), &[&layer]);
        let mut archive = |name: &str| {
            layout.manifests.clear();
            layout.name(image.clone(), name);
            layout.tar()
        };
        let id = import(&store, &scratch, &archive("m:000"))[0].id.clone();
        let found = |name: &str| store.resolve_reference(name).expect(name).is_some();
        for n in 1..MAX_NAMES {
            store.tag_image(&id, &format!("m:{n:03}")).expect("tag");
        }
        assert!(found("m:000") && found("m:255"));
        // After all of them, and before.
        store.tag_image(&id, "z:1").expect("tag");
        assert!(found("z:1") && !found("m:000") && found("m:001"));
        store.tag_image(&id, "a:1").expect("tag");
        assert!(found("a:1") && !found("m:001") && found("m:002"));
        // The same by import, and by digest: with the digest of an index around it each time.
        import(&store, &scratch, &archive("z:2"));
        assert!(found("z:2") && !found("a:1"));
        for n in 0..=MAX_NAMES {
            let mut layout = layout.clone();
            let mut around = image.clone();
            around["annotations"] = serde_json::json!({"n": n.to_string()});
            let index = layout.index(&[around]);
            let digest = index["digest"].as_str().expect("digest").to_owned();
            layout.manifests.clear();
            layout.name(index, "z:3");
            import(&store, &scratch, &layout.tar());
            assert!(found("z:3") && found(&format!("z@{digest}")), "{n}");
        }
        let image = store.image_by_id(&id).expect("image");
        assert_eq!(
            (image.names.len(), image.digests.len()),
            (MAX_NAMES, MAX_NAMES)
        );
    }

    #[test]
    fn a_store_that_is_as_it_should_be_is_opened_without_a_write() {
        use std::os::unix::fs::MetadataExt as _;
        let scratch = TestDir::new("store");
        let root = scratch.join("images");
        drop(ImageStore::open(&root).expect("store"));
        let changed = || {
            ["", "records", "layers", "staging"].map(|name| {
                let meta = fs::metadata(root.join(name)).expect("directory");
                (meta.ctime(), meta.ctime_nsec())
            })
        };
        let before = changed();
        let layers = root.join("layers");
        // A write is seen only once the clock that stamps it has gone on.
        let probe = scratch.join("probe");
        let stamp = || {
            fs::write(&probe, b"x").expect("scratch");
            let meta = fs::metadata(&probe).expect("probe");
            (meta.ctime(), meta.ctime_nsec())
        };
        while stamp() <= before[0].max(before[1]).max(before[2]).max(before[3]) {}
        drop(ImageStore::open(&root).expect("store"));
        assert_eq!(changed(), before);
        fs::set_permissions(&layers, fs::Permissions::from_mode(0o700)).expect("mode");
        drop(ImageStore::open(&root).expect("store"));
        let mode = fs::metadata(layers)
            .expect("directory")
            .permissions()
            .mode();
        assert_eq!(mode & MODE_BITS, 0o755);
    }
}
