//! From an archive to images in the store: plan, unpack, settle, commit.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use core::ops::ControlFlow;
use std::fs::{self, DirBuilder};
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

use super::archive::{Archive, MemberKind};
use super::below::{self, ImpliedDirsResult, LowerLayers};
use super::compress::{self, StreamCompression};
use super::digest::{Digest, HashingReader};
use super::error::{ImageError, ImageProblem, LayerError};
use super::layer::{self, SpaceBudget, UnpackedLayer};
use super::plan::{self, PlannedImage, PlannedLayer};
use super::platform::MachinePlatform;
use super::progress::{ImageProgress, ImageStage};
use super::record::{ImageRecord, LayerRecord, RECORD_VERSION};
use super::reference::ImageReference;
use super::store::{ImageStore, StagedLayer};
use super::sum::{self, LayerSum};
use super::tree;
use super::whose::{LayerSharing, RegistryAccess, SharePermission};
use crate::api::order::GatherExt as _;

/// Disk space that unpacking leaves free, bytes: the machine must go on writing logs and records.
pub const RESERVE_BYTES: u64 = 64 * 1024 * 1024;
/// Inodes that unpacking leaves free.
pub const RESERVE_INODES: u64 = 2048;
/// Bytes written between two looks at the free space: other programs write to the disk as well.
const LOOK_BYTES: u64 = 4 * 1024 * 1024;
/// Entries of layers and pieces of files between two such looks.
const LOOK_STEPS: u32 = 4096;
/// Bytes between two reports of progress.
const TICK_BYTES: u64 = 4 * 1024 * 1024;

/// Options of an import.
#[derive(Clone, Debug, Default)]
pub struct ImportOptions {
    /// Names for the image instead of the archive's own. Only for archives that hold one image.
    pub names: Vec<String>,
    /// Keep it from `prune` and image GC.
    pub pinned: bool,
}

/// Hears of progress: at each layer's end and every few MiB. `Break` cancels the import.
pub type ProgressCallback<'t> = &'t mut dyn FnMut(ImageProgress) -> ControlFlow<()>;

/// Limits of an import, and the machine that it is for.
#[derive(Clone, Debug)]
pub(super) struct ImportLimits {
    pub(super) machine: MachinePlatform,
    /// Bytes that stay free.
    pub(super) reserve_bytes: u64,
    /// Upper bound besides the free space, bytes.
    pub(super) max_bytes: u64,
    /// Upper bound besides the free inodes.
    pub(super) max_inodes: u64,
}

impl Default for ImportLimits {
    fn default() -> Self {
        Self {
            machine: MachinePlatform::detect_current(),
            reserve_bytes: RESERVE_BYTES,
            max_bytes: u64::MAX,
            max_inodes: u64::MAX,
        }
    }
}

/// Source of images.
#[derive(Clone, Copy)]
enum ImportOrigin<'a> {
    Archive { pinned: bool },
    Registry(&'a RegistryAccess),
}

impl ImportOrigin<'_> {
    /// Notes the holders that a layer has gained.
    fn record_holder(self, layer: &mut LayerRecord, planned: &PlannedLayer) {
        match self {
            Self::Archive { .. } => {
                layer.open = true;
                layer.holders.clear();
            }
            Self::Registry(way) => way.record_holder(layer, planned.blob.map(|(digest, _)| digest)),
        }
    }
}

/// The import itself; the caller holds the store's change lock and empties `staging` afterwards.
pub(super) fn import_archive(
    store: &ImageStore,
    path: &Path,
    options: &ImportOptions,
    tick: ProgressCallback<'_>,
) -> Result<Vec<Arc<ImageRecord>>, ImageError> {
    let located = |(blob, source): plan::LocatedProblem| ImageError::Import {
        archive: path.into(),
        blob,
        entry: None,
        source: Box::new(source),
    };
    let names = options
        .names
        .iter()
        .map(|name| ImageReference::parse(name))
        .collect::<Result<Vec<_>, _>>()?;
    let archive = Archive::open(path).map_err(|problem| located((None, problem)))?;
    let planned =
        plan::plan_archive(&archive, &names, store.import_limits().machine).map_err(located)?;
    let origin = ImportOrigin::Archive {
        pinned: options.pinned,
    };
    import_images(store, path, &archive, planned, origin, tick)
}

/// Imports an image that was planned from a registry; the blobs that [`find_missing_layers`] names lie in `layout` as
/// its members. The caller holds the store's change lock and empties `staging` afterwards.
pub(super) fn import_planned_image(
    store: &ImageStore,
    layout: &Path,
    planned: PlannedImage,
    shares: &LayerSharing<'_>,
    tick: ProgressCallback<'_>,
) -> Result<Arc<ImageRecord>, ImageError> {
    let limit = compute_space_budget(store)?.bytes;
    let known = store.layer_records();
    for (layer, record) in pair_with_known_layers(&known, &planned) {
        if record.is_some_and(|record| !may_reuse_layer(shares, record, layer)) {
            verify_fetched_layer(layout, layer, limit, tick).map_err(|problem| {
                ImageError::Import {
                    archive: layout.into(),
                    blob: Some(layer.member.clone()),
                    entry: None,
                    source: Box::new(problem),
                }
            })?;
        }
    }
    // Files of other pulls lie beside them, in any number.
    let members: BTreeSet<String> = planned.layers.iter().map(|l| l.member.clone()).collect();
    let archive = Archive::open_members(layout.into(), members.into_iter().collect());
    let mut images = import_images(
        store,
        layout,
        &archive,
        vec![planned],
        ImportOrigin::Registry(shares.way),
        tick,
    )?;
    Ok(images.pop().expect("one image was planned"))
}

/// The layers of an image that the store does not have for this pull, lowest first, each member once.
pub(super) fn find_missing_layers(
    store: &ImageStore,
    image: &PlannedImage,
    shares: &LayerSharing<'_>,
) -> Vec<PlannedLayer> {
    let known = store.layer_records();
    let mut missing: Vec<PlannedLayer> = Vec::new();
    for (layer, record) in pair_with_known_layers(&known, image) {
        if !record.is_some_and(|record| may_reuse_layer(shares, record, layer))
            && !missing.iter().any(|m| m.member == layer.member)
        {
            missing.push(layer.clone());
        }
    }
    missing
}

/// Blobs of layers that the store has, and that the image may have if its registry says so.
pub(super) fn find_blobs_to_confirm(
    store: &ImageStore,
    image: &PlannedImage,
    shares: &LayerSharing<'_>,
) -> BTreeSet<Digest> {
    let known = store.layer_records();
    pair_with_known_layers(&known, image)
        .filter_map(|(layer, record)| {
            let blob = layer.blob.map(|(digest, _)| digest);
            (shares.judge_layer(record?, blob) == SharePermission::Ask).then_some(blob?)
        })
        .gather_items()
}

fn may_reuse_layer(shares: &LayerSharing<'_>, record: &LayerRecord, layer: &PlannedLayer) -> bool {
    shares.judge_layer(record, layer.blob.map(|(digest, _)| digest)) == SharePermission::Yes
}

/// Each layer of an image with its record in the store, if there is one.
fn pair_with_known_layers<'a>(
    known: &'a BTreeMap<String, LayerRecord>,
    image: &'a PlannedImage,
) -> impl Iterator<Item = (&'a PlannedLayer, Option<&'a LayerRecord>)> {
    let mut chain = None;
    image.layers.iter().enumerate().map(move |(at, layer)| {
        let key = chain_id(chain, layer.diff_id);
        chain = Some(key);
        (layer, find_reusable_layer(known, key, layer.diff_id, at))
    })
}

/// Reads a layer that was fetched although the store has it: its bytes are the proof that this pull may have it.
/// `limit`: most bytes of it, unpacked.
fn verify_fetched_layer(
    layout: &Path,
    layer: &PlannedLayer,
    limit: u64,
    tick: &mut dyn FnMut(ImageProgress) -> ControlFlow<()>,
) -> Result<(), ImageProblem> {
    let read = |e: LayerError| e.problem;
    let file = fs::File::open(layout.join(&layer.member)).map_err(ImageProblem::from_read_error)?;
    let mut file = io::BufReader::new(file);
    let mut blob = HashingReader::new(&mut file, true);
    let diff_id = {
        let (_, mut stream) =
            compress::open_decoder(&mut blob).map_err(ImageProblem::from_read_error)?;
        let mut plain = HashingReader::new(&mut *stream, true);
        let mut bytes = 0;
        loop {
            let piece = io::copy(&mut (&mut plain).take(TICK_BYTES), &mut io::sink());
            let piece = piece.map_err(ImageProblem::from_read_error)?;
            bytes += piece;
            if bytes > limit {
                let what = "bytes of a layer";
                return Err(ImageProblem::Limit { what, limit });
            }
            let now = ImageProgress {
                stage: ImageStage::Unpacking,
                ..ImageProgress::default()
            };
            if tick(now).is_break() {
                return Err(ImageProblem::Cancelled);
            }
            if piece == 0 {
                break plain.finish().expect("it is hashed");
            }
        }
    };
    io::copy(&mut blob, &mut io::sink()).map_err(ImageProblem::from_read_error)?;
    if let Some((expected, _)) = layer.blob {
        check_digest(expected, blob.finish().expect("it is hashed")).map_err(read)?;
    }
    check_digest(layer.diff_id, diff_id).map_err(read)
}

fn import_images(
    store: &ImageStore,
    path: &Path,
    archive: &Archive,
    planned: Vec<PlannedImage>,
    origin: ImportOrigin<'_>,
    tick: ProgressCallback<'_>,
) -> Result<Vec<Arc<ImageRecord>>, ImageError> {
    let mut import = ImportRun {
        store,
        path,
        origin,
        budget: compute_space_budget(store)?,
        known: store.layer_records(),
        staged: Vec::new(),
        unpacked: BTreeMap::new(),
        viewed: BTreeMap::new(),
        not_alone: BTreeSet::new(),
        next_staged: 0,
        tick,
        progress: ImageProgress {
            stage: ImageStage::Unpacking,
            ..ImageProgress::default()
        },
    };
    let mut records = BTreeMap::new();
    let mut waiting = planned;
    // Once around as a rule. A layer that leans on different layers in two images is unpacked for each; one that needs a
    // view of those below waits for them. Each time around at least the lowest layer that is missing is unpacked.
    while !waiting.is_empty() {
        import.unpack_missing_layers(archive, &waiting)?;
        let mut again = Vec::new();
        for image in waiting {
            match import.assemble_layers(&image)? {
                Some(layers) => {
                    let record = build_image_record(&image, layers, origin);
                    records.insert(image.order, record);
                }
                None => again.push(image),
            }
        }
        waiting = again;
    }
    store.commit_images(&import.staged, records.into_values().collect())
}

fn compute_space_budget(store: &ImageStore) -> Result<SpaceBudget, ImageError> {
    let fs = store.filesystem_info()?;
    let limits = store.import_limits();
    let bytes = fs
        .available_bytes
        .saturating_sub(limits.reserve_bytes)
        .min(limits.max_bytes);
    // File systems without an inode table say 0 of 0.
    let inodes = if fs.inodes == 0 {
        limits.max_inodes
    } else {
        fs.inodes_free
            .saturating_sub(RESERVE_INODES)
            .min(limits.max_inodes)
    };
    Ok(SpaceBudget {
        bytes,
        bytes_left: bytes,
        inodes,
        inodes_left: inodes,
    })
}

/// Counter that says when to look at the free space again.
#[derive(Default)]
struct FreeSpaceRecheck {
    bytes: u64,
    steps: u32,
}

impl FreeSpaceRecheck {
    /// Counts a step; `bytes` are written in all. Returns true if it is time for a look.
    const fn is_recheck_due(&mut self, bytes: u64) -> bool {
        self.steps += 1;
        let is_due = self.steps >= LOOK_STEPS || bytes - self.bytes >= LOOK_BYTES;
        if is_due {
            *self = Self { bytes, steps: 0 };
        }
        is_due
    }
}

/// Checks that the disk has more left than has to stay free, whoever has written to it. `budget`: the space at the
/// start, for the error.
fn check_free_space(store: &ImageStore, budget: SpaceBudget) -> Result<(), ImageProblem> {
    // A disk that cannot be asked now is no reason to stop.
    let Ok(fs) = store.filesystem_info() else {
        return Ok(());
    };
    if fs.available_bytes < store.import_limits().reserve_bytes {
        return Err(ImageProblem::NoSpace {
            available: budget.bytes,
        });
    }
    if fs.inodes > 0 && fs.inodes_free < RESERVE_INODES {
        return Err(ImageProblem::NoInodes {
            available: budget.inodes,
        });
    }
    Ok(())
}

fn build_image_record(
    image: &PlannedImage,
    layers: Vec<LayerRecord>,
    origin: ImportOrigin<'_>,
) -> ImageRecord {
    let mut dirs = BTreeSet::new();
    let size_bytes = layers
        .iter()
        .filter(|layer| dirs.insert(&layer.dir))
        .map(|layer| layer.size_bytes)
        .sum();
    ImageRecord {
        v: RECORD_VERSION,
        id: image.id.to_string(),
        sequence: 0,
        names: image.names.clone(),
        digests: image.digests.clone(),
        led_by: image.led_by.clone(),
        size_bytes,
        pinned: matches!(origin, ImportOrigin::Archive { pinned: true }),
        pulled: matches!(origin, ImportOrigin::Registry(_)),
        layers,
        config: image.config.clone(),
    }
}

struct ImportRun<'a> {
    store: &'a ImageStore,
    path: &'a Path,
    origin: ImportOrigin<'a>,
    budget: SpaceBudget,
    /// Layers of the store and of this import, by key.
    known: BTreeMap<String, LayerRecord>,
    staged: Vec<StagedLayer>,
    /// Unpacked alone and not yet assigned, by diff id.
    unpacked: BTreeMap<Digest, StagingEntry>,
    /// Unpacked with a view of the layers below, by chain id.
    viewed: BTreeMap<Digest, StagingEntry>,
    /// Diff ids and chain ids of layers that cannot be unpacked alone.
    not_alone: BTreeSet<Digest>,
    /// Number of the next directory in `staging`.
    next_staged: usize,
    tick: ProgressCallback<'a>,
    progress: ImageProgress,
}

/// A layer in `staging`.
struct StagingEntry {
    /// Name of its directory.
    name: String,
    unpacked: UnpackedLayer,
    /// Bytes and inodes that it took from the budget.
    cost: (u64, u64),
}

/// Layers to unpack from one member of the archive.
#[derive(Default)]
struct MemberLayers {
    /// Layers, alone. Two diff ids for one member cannot both be right, so the first is held against it.
    alone: Vec<PlannedLayer>,
    /// A layer to unpack with a view of the layers below it, and its chain id.
    viewed: Option<(PlannedLayer, Digest, Vec<LayerRecord>)>,
}

impl ImportRun<'_> {
    /// Goes over the archive once and unpacks each layer that is neither in the store nor unpacked yet. The order of
    /// members does not matter.
    fn unpack_missing_layers(
        &mut self,
        archive: &Archive,
        images: &[PlannedImage],
    ) -> Result<(), ImageError> {
        let mut missing: BTreeMap<String, MemberLayers> = BTreeMap::new();
        for image in images {
            let mut chain = None;
            // Those below, as long as all of them are there.
            let mut below = Some(Vec::new());
            for (at, layer) in image.layers.iter().enumerate() {
                let key = chain_id(chain, layer.diff_id);
                chain = Some(key);
                if let Some(known) = self.find_reusable_layer(key, layer.diff_id, at) {
                    if let Some(below) = &mut below {
                        below.push(known.clone());
                    }
                    continue;
                }
                let view = below.take();
                let alone = [key, layer.diff_id]
                    .iter()
                    .all(|id| !self.not_alone.contains(id));
                let wish = missing.entry(layer.member.clone()).or_default();
                if alone {
                    if !self.unpacked.contains_key(&layer.diff_id)
                        && !wish.alone.iter().any(|l| l.diff_id == layer.diff_id)
                    {
                        wish.alone.push(layer.clone());
                    }
                } else if let Some(view) = view
                    && wish.viewed.is_none()
                {
                    wish.viewed = Some((layer.clone(), key, view));
                }
            }
        }
        missing.retain(|_, wish| !wish.alone.is_empty() || wish.viewed.is_some());
        self.progress.layers += missing.len();
        if missing.is_empty() {
            return Ok(());
        }
        // The visitor can say what is wrong only as a problem; the place is kept beside it.
        let mut place = None;
        let walked = archive.visit_members(&mut |name, kind, data| {
            let (MemberKind::File(_), Some(wanted)) = (kind, missing.remove(name)) else {
                return Ok(());
            };
            self.unpack_member(name, wanted, data).map_err(|error| {
                place = Some((name.to_owned(), error.entry));
                error.problem
            })
        });
        let missed = missing.into_keys().next();
        match (walked, missed) {
            (Err(source), _) => {
                let (blob, entry) = place.map_or((None, None), |(b, e)| (Some(b), e));
                Err(self.import_error(blob, entry, source))
            }
            (Ok(()), Some(name)) => Err(self.import_error(
                Some(name),
                None,
                ImageProblem::Damaged("it vanished from the archive".into()),
            )),
            (Ok(()), None) => Ok(()),
        }
    }

    /// Unpacks a member. If it is wanted alone and with a view, the view waits for the next time around.
    fn unpack_member(
        &mut self,
        member: &str,
        wish: MemberLayers,
        data: &mut dyn Read,
    ) -> Result<(), LayerError> {
        let view = wish.viewed.filter(|_| wish.alone.is_empty());
        let (below, chain) = match &view {
            Some((_, chain, below)) => (Some(self.open_lower_layers(below)?), Some(*chain)),
            None => (None, None),
        };
        let wanted = view.map_or(wish.alone, |(layer, ..)| vec![layer]);
        let layer = wanted.first().expect("members without a wish were dropped");
        let name = format!("l{}", self.next_staged);
        self.next_staged += 1;
        let dir = self.store.root().join("staging").join(&name);
        log::debug!("unpacking {member} into {}", dir.display());
        let root =
            make_root(&dir).map_err(ImageProblem::write_error("make the layer's directory"))?;
        let before = self.budget;
        let now = self.progress.clone();
        let start = now.bytes;
        let mut next_tick = TICK_BYTES;
        let tick = &mut self.tick;
        let store = self.store;
        let mut looks = FreeSpaceRecheck::default();
        let mut on_bytes = |bytes: u64| {
            if looks.is_recheck_due(bytes) {
                check_free_space(store, before)?;
            }
            if bytes < next_tick {
                return Ok(());
            }
            next_tick = bytes + TICK_BYTES;
            let now = ImageProgress {
                bytes: start + bytes,
                ..now.clone()
            };
            match tick(now) {
                ControlFlow::Continue(()) => Ok(()),
                ControlFlow::Break(()) => Err(ImageProblem::Cancelled),
            }
        };
        let mut blob = HashingReader::new(data, layer.blob.is_some());
        let unpacked = {
            let (coding, mut stream) =
                compress::open_decoder(&mut blob).map_err(ImageProblem::from_read_error)?;
            let unpacked =
                layer::unpack(&mut *stream, root, below, &mut self.budget, &mut on_bytes)?;
            if coding != StreamCompression::Plain {
                log::debug!("{member} was {coding:?}");
            }
            unpacked
        };
        // A decoder stops at the end of its format; the blob's digest covers what follows.
        io::copy(&mut blob, &mut io::sink()).map_err(ImageProblem::from_read_error)?;
        if let Some((expected, _)) = layer.blob {
            let found = blob.finish().expect("the blob is hashed");
            check_digest(expected, found)?;
        }
        for layer in &wanted {
            check_digest(layer.diff_id, unpacked.diff_id)?;
        }
        self.progress.layers_done += 1;
        self.progress.bytes = start + unpacked.size_bytes;
        let diff_id = unpacked.diff_id;
        let staged = StagingEntry {
            name,
            cost: (
                before.bytes_left - self.budget.bytes_left,
                before.inodes_left - self.budget.inodes_left,
            ),
            unpacked,
        };
        match chain {
            Some(chain) => drop(self.viewed.insert(chain, staged)),
            None if staged.unpacked.needs_below => self.discard_unpacked_layer(diff_id, &staged)?,
            None => drop(self.unpacked.insert(diff_id, staged)),
        }
        match (self.tick)(self.progress.clone()) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(ImageProblem::Cancelled.into()),
        }
    }

    /// Throws away a layer that was unpacked alone and needs a view of the layers below; `id` is its diff id or chain
    /// id.
    fn discard_unpacked_layer(
        &mut self,
        id: Digest,
        staged: &StagingEntry,
    ) -> Result<(), LayerError> {
        let staging = self.store.root().join("staging");
        fs::File::open(&staging)
            .and_then(|dir| tree::remove_tree(dir.as_fd(), staged.name.as_bytes()))
            .map_err(ImageProblem::write_error("remove what was unpacked"))?;
        self.budget.bytes_left += staged.cost.0;
        self.budget.inodes_left += staged.cost.1;
        self.not_alone.insert(id);
        Ok(())
    }

    fn find_reusable_layer(
        &self,
        chain: Digest,
        diff_id: Digest,
        at: usize,
    ) -> Option<&LayerRecord> {
        find_reusable_layer(&self.known, chain, diff_id, at)
    }

    /// Puts together the layers of an image from known and unpacked ones. `None` if one must be unpacked once more.
    fn assemble_layers(
        &mut self,
        image: &PlannedImage,
    ) -> Result<Option<Vec<LayerRecord>>, ImageError> {
        let mut layers: Vec<LayerRecord> = Vec::new();
        let mut chain = None;
        for (at, planned) in image.layers.iter().enumerate() {
            let key = chain_id(chain, planned.diff_id);
            chain = Some(key);
            if let Some(layer) = self.find_reusable_layer(key, planned.diff_id, at) {
                let mut layer = layer.clone();
                self.origin.record_holder(&mut layer, planned);
                layers.push(layer);
                continue;
            }
            let located = |this: &Self, e: LayerError| {
                this.import_error(Some(planned.member.clone()), e.entry, e.problem)
            };
            let viewed = self.viewed.remove(&key);
            let settled = viewed.is_some();
            let Some(staged) = viewed.or_else(|| self.unpacked.remove(&planned.diff_id)) else {
                return Ok(None);
            };
            let unpacked = &staged.unpacked;
            let leans = settled || !unpacked.implied.is_empty();
            if leans && !settled && at > 0 {
                let done = self
                    .settle_staged_layer(&staged, &layers)
                    .map_err(|e| located(self, e))?;
                if done == ImpliedDirsResult::Link {
                    self.discard_unpacked_layer(key, &staged)
                        .map_err(|e| located(self, e))?;
                    return Ok(None);
                }
            }
            let sum = self
                .sum_staged_layer(&staged)
                .map_err(|e| located(self, e))?;
            let key = if leans { key } else { planned.diff_id };
            let mut record = LayerRecord {
                key: key.to_string(),
                diff_id: planned.diff_id.to_string(),
                dir: self.choose_layer_dir(key),
                size_bytes: unpacked.size_bytes,
                leans,
                opaque: unpacked.opaque,
                sum: Some(sum),
                ..LayerRecord::default()
            };
            self.origin.record_holder(&mut record, planned);
            self.known.insert(record.key.clone(), record.clone());
            self.staged.push(StagedLayer {
                staged: staged.name,
                record: record.clone(),
            });
            layers.push(record);
        }
        Ok(Some(layers))
    }

    /// Sums up a settled layer in `staging`.
    fn sum_staged_layer(&self, staged: &StagingEntry) -> Result<LayerSum, LayerError> {
        let path = self.store.root().join("staging").join(&staged.name);
        sum::compute_layer_sum(open_layer(&path)?, staged.unpacked.content)
    }

    fn settle_staged_layer(
        &self,
        staged: &StagingEntry,
        layers: &[LayerRecord],
    ) -> Result<ImpliedDirsResult, LayerError> {
        let mut below = self.open_lower_layers(layers)?;
        let path = self.store.root().join("staging").join(&staged.name);
        let layer = open_layer(&path)?;
        below::settle_implied_dirs(layer.as_fd(), &staged.unpacked.implied, &mut below)
    }

    /// A view of `layers`, which come lowest first.
    fn open_lower_layers(&self, layers: &[LayerRecord]) -> Result<LowerLayers, LayerError> {
        let staging = self.store.root().join("staging");
        let mut below = Vec::new();
        for layer in layers.iter().rev() {
            // Layers of this import are still in staging.
            let path = match self.staged.iter().find(|s| s.record.dir == layer.dir) {
                Some(staged) => staging.join(&staged.staged),
                None => self.store.layers_root().join(&layer.dir),
            };
            below.push(open_layer(&path)?);
            if layer.opaque {
                break;
            }
        }
        Ok(LowerLayers::new(below))
    }

    /// Directory name for a key: its first 16 digits, or the next ones if another layer starts alike.
    fn choose_layer_dir(&self, key: Digest) -> String {
        let hex = key.hex();
        let taken = |name: &str| self.known.values().any(|layer| layer.dir == name);
        (0..=hex.len() - 16)
            .map(|at| &hex[at..at + 16])
            .find(|name| !taken(name))
            .unwrap_or(&hex[..16])
            .to_owned()
    }

    fn import_error(
        &self,
        blob: Option<String>,
        entry: Option<String>,
        source: ImageProblem,
    ) -> ImageError {
        ImageError::Import {
            archive: self.path.into(),
            blob,
            entry,
            source: Box::new(source),
        }
    }
}

/// Finds a layer that can be used as it is: settled for this very chain, or independent of the layers below.
fn find_reusable_layer(
    known: &BTreeMap<String, LayerRecord>,
    chain: Digest,
    diff_id: Digest,
    at: usize,
) -> Option<&LayerRecord> {
    known.get(&chain.to_string()).or_else(|| {
        known
            .get(&diff_id.to_string())
            .filter(|layer| at == 0 || !layer.leans)
    })
}

fn open_layer(path: &Path) -> Result<OwnedFd, LayerError> {
    fs::File::open(path)
        .map(OwnedFd::from)
        .map_err(|e| ImageProblem::write_error("open a layer")(e).into())
}

fn check_digest(expected: Digest, found: Digest) -> Result<(), LayerError> {
    if expected == found {
        Ok(())
    } else {
        Err(ImageProblem::WrongDigest { expected, found }.into())
    }
}

/// Makes a layer's root directory, 0755 whatever the umask, and opens it.
fn make_root(path: &Path) -> io::Result<OwnedFd> {
    DirBuilder::new().mode(0o755).create(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    fs::File::open(path).map(OwnedFd::from)
}

/// Id of a layer on top of others. Source: image-spec `config.md`, "Layer ChainID".
fn chain_id(below: Option<Digest>, diff_id: Digest) -> Digest {
    match below {
        None => diff_id,
        Some(below) => Digest::compute(format!("{below} {diff_id}").as_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use crate::error::error_chain;
    use std::path::PathBuf;

    use super::super::testing::{
        Layout, Stream, architecture, config, docker_archive, estargz, gzip, zstd, zstd_chunked,
    };
    use super::*;
    use crate::testing::TestDir;

    struct Bench {
        scratch: TestDir,
        store: ImageStore,
    }

    impl Bench {
        fn new() -> Self {
            Self::with(ImportLimits::default())
        }

        fn with(limits: ImportLimits) -> Self {
            let scratch = TestDir::new("import");
            let store = ImageStore::open_with(&scratch.join("images"), limits).expect("store");
            Self { scratch, store }
        }

        fn write(&self, archive: &[u8]) -> PathBuf {
            let path = self.scratch.join("archive");
            fs::write(&path, archive).expect("scratch");
            path
        }

        fn import(&self, archive: &[u8]) -> Result<Vec<Arc<ImageRecord>>, ImageError> {
            self.import_as(archive, &[])
        }

        fn import_as(
            &self,
            archive: &[u8],
            names: &[&str],
        ) -> Result<Vec<Arc<ImageRecord>>, ImageError> {
            let path = self.write(archive);
            let options = ImportOptions {
                names: names.iter().map(|&n| n.into()).collect(),
                pinned: false,
            };
            self.store
                .import_archive(&path, &options, &mut |_| ControlFlow::Continue(()))
        }

        fn ok(&self, archive: &[u8]) -> Vec<Arc<ImageRecord>> {
            self.import(archive)
                .unwrap_or_else(|e| panic!("{}", error_chain(&e)))
        }

        fn error(&self, archive: &[u8]) -> String {
            let error = error_chain(&self.import(archive).expect_err("must fail"));
            self.is_clean();
            error
        }

        /// Asserts that the store holds the layers and records of its images and no other files.
        fn is_clean(&self) {
            let names = |dir: &str| {
                let list = fs::read_dir(self.store.root().join(dir)).expect("store");
                list.map(|e| e.expect("entry").file_name().into_string().expect("utf-8"))
                    .collect::<BTreeSet<String>>()
            };
            assert_eq!(names("staging"), BTreeSet::new());
            let mut want: BTreeSet<String> = self
                .store
                .layer_records()
                .into_values()
                .map(|l| l.dir)
                .collect();
            want.insert("empty".into());
            assert_eq!(names("layers"), want);
            assert_eq!(names("records").len(), self.store.list_images().len());
        }

        fn reopen(&mut self) {
            // The lock must be free before the next one.
            let elsewhere = ImageStore::open(&self.scratch.join("other")).expect("store");
            self.store = elsewhere;
            self.store = ImageStore::open(&self.scratch.join("images")).expect("store");
        }

        /// A file of an image as a container would see it, from the uppermost layer that has it.
        fn text(&self, image: &ImageRecord, name: &str) -> String {
            let dirs = self.store.layer_dirs(&image.id).expect("layers");
            let path = dirs.iter().map(|d| d.join(name)).find(|p| p.exists());
            fs::read_to_string(path.expect(name)).expect("file")
        }
    }

    fn layer(name: &str, text: &str) -> Vec<u8> {
        Stream::new().file(name, text.as_bytes()).bytes()
    }

    #[test]
    fn layers_made_for_lazy_pulling_are_read_as_plain_ones() {
        let noise: Vec<u8> = (0_u32..70_000)
            .map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes()[0])
            .collect();
        let files: [(&str, &[u8]); 3] = [("etc/conf", b"one"), ("empty", b""), ("big", &noise)];
        for (name, (packed, plain), own) in [
            ("estargz", estargz(&files), &["stargz.index.json"][..]),
            ("zstd:chunked", zstd_chunked(&files), &[]),
        ] {
            let bench = Bench::new();
            let mut layout = Layout::new();
            let image = layout.image(&config(&[&plain], name), &[&packed]);
            layout.name(image, "lazy:1");
            let image = bench
                .import(&layout.tar())
                .unwrap_or_else(|e| panic!("{name}: {}", error_chain(&e)))
                .remove(0);
            let dir = &bench.store.layer_dirs(&image.id).expect("layers")[0];
            for (file, data) in files {
                assert!(
                    fs::read(dir.join(file)).expect(file) == data,
                    "{name}: {file}"
                );
            }
            // The table of contents of the one is a file like any other; that of the other is no part of the layer.
            let mut found: Vec<String> = fs::read_dir(dir)
                .expect("layer")
                .map(|e| e.expect("entry").file_name().into_string().expect("utf-8"))
                .collect();
            found.sort();
            let mut wanted = [&["big", "empty", "etc"], own].concat();
            wanted.sort_unstable();
            assert_eq!(found, wanted, "{name}");
            // Cut anywhere, in the frames behind the files too, it is not taken.
            for cut in [packed.len() / 2, packed.len() - 60, packed.len() - 1] {
                let mut layout = Layout::new();
                let image = layout.image(&config(&[&plain], name), &[&packed[..cut]]);
                layout.name(image, "cut:1");
                let error = Bench::new().import(&layout.tar()).expect_err(name);
                assert!(
                    matches!(&error, ImageError::Import { source, .. }
                        if matches!(**source, ImageProblem::Truncated | ImageProblem::WrongDigest { .. })),
                    "{name} cut at {cut}: {}",
                    error_chain(&error)
                );
            }
        }
    }

    #[test]
    fn every_form_of_archive() {
        let (base, top) = (layer("a", "base"), layer("b", "top"));
        let config = config(&[&base, &top], "x");
        let layout = |layers: [Vec<u8>; 2]| {
            let mut layout = Layout::new();
            let image = layout.image(&config, &[&layers[0], &layers[1]]);
            layout.name(image, "quay.io/a/b:1");
            layout
        };
        let plain = layout([base.clone(), top.clone()]).tar();
        let docker = docker_archive("quay.io/a/b:1", &[&base, &top]);
        for (name, archive) in [
            ("docker-archive", docker.clone()),
            ("gzip around", gzip(&docker)),
            ("zstd around", zstd(&docker)),
            ("OCI", plain.clone()),
            ("gzip around OCI", gzip(&plain)),
            ("zstd around OCI", zstd(&plain)),
            ("gzip layers", layout([gzip(&base), gzip(&top)]).tar()),
            ("zstd layers", layout([zstd(&base), zstd(&top)]).tar()),
            (
                "mixed, twice",
                gzip(&layout([base.clone(), zstd(&top)]).tar()),
            ),
        ] {
            let bench = Bench::new();
            let images = bench
                .import(&archive)
                .unwrap_or_else(|e| panic!("{name}: {}", error_chain(&e)));
            assert_eq!(images.len(), 1, "{name}");
            assert_eq!(images[0].names, ["quay.io/a/b:1"], "{name}");
            assert_eq!(bench.text(&images[0], "a"), "base", "{name}");
            assert_eq!(bench.text(&images[0], "b"), "top", "{name}");
            assert_eq!(images[0].size_bytes, 7, "{name}");
            bench.is_clean();
        }
        let bench = Bench::new();
        let dir = bench.scratch.join("layout");
        layout([base.clone(), gzip(&top)]).write_to(&dir);
        let images = bench
            .store
            .import_archive(&dir, &ImportOptions::default(), &mut |_| {
                ControlFlow::Continue(())
            })
            .unwrap_or_else(|e| panic!("{}", error_chain(&e)));
        assert_eq!(bench.text(&images[0], "b"), "top");
    }

    #[test]
    fn links_between_the_layers_of_a_docker_archive() {
        let (base, top) = (layer("a", "1"), layer("b", "2"));
        let config = config(&[&base, &top, &base], "x");
        let manifest = serde_json::json!([{
            "Config": "c.json", "RepoTags": ["a:1", "b:2"],
            "Layers": ["x/layer.tar", "y/layer.tar", "z/layer.tar"],
        }]);
        let bench = Bench::new();
        let images = bench.ok(&Stream::new()
            .file("base.tar", &base)
            .symlink("x/layer.tar", "../base.tar")
            .file("y/layer.tar", &top)
            .hard_link("z/layer.tar", "base.tar")
            .file("c.json", &config)
            .file("manifest.json", manifest.to_string().as_bytes())
            .bytes());
        assert_eq!(
            images[0].names,
            ["docker.io/library/a:1", "docker.io/library/b:2"]
        );
        assert_eq!(images[0].layers.len(), 3);
        let dirs = bench.store.layer_dirs(&images[0].id).expect("layers");
        assert_eq!(dirs.len(), 2, "overlayfs takes a directory once");
        assert_eq!(images[0].size_bytes, 2);
    }

    #[test]
    fn an_image_for_this_machine_is_chosen() {
        let mine = layer("a", "mine");
        let other = layer("a", "other");
        let mut layout = Layout::new();
        let mut foreign = layout.image(&config(&[&other], "foreign"), &[&other]);
        foreign["platform"] = serde_json::json!({"os": "linux", "architecture": "s390x"});
        let mut windows = foreign.clone();
        windows["platform"] = serde_json::json!({"os": "windows", "architecture": architecture()});
        let mut suits = layout.image(&config(&[&mine], "mine"), &[&mine]);
        suits["platform"] = serde_json::json!({"os": "linux", "architecture": architecture()});
        let mut proof = foreign.clone();
        proof["platform"] = serde_json::json!({"os": "unknown", "architecture": "unknown"});
        let inner = layout.index(&[windows.clone(), foreign.clone(), proof, suits]);
        let outer = layout.index(&[inner]);
        let top_digest = outer["digest"].as_str().expect("digest").to_owned();
        layout.name(outer, "a:1");
        let bench = Bench::new();
        let images = bench.ok(&layout.tar());
        assert_eq!(bench.text(&images[0], "a"), "mine");
        let by_digest = format!("a@{top_digest}");
        assert_eq!(
            bench
                .store
                .resolve_reference(&by_digest)
                .expect("valid")
                .as_ref(),
            Some(&images[0]),
            "the digest that a registry would show finds it"
        );

        let mut layout = Layout::new();
        let mut foreign = layout.image(&config(&[&other], "foreign"), &[&other]);
        foreign["platform"] = serde_json::json!({"os": "linux", "architecture": "s390x"});
        let index = layout.index(&[foreign, windows]);
        layout.name(index, "a:1");
        let error = Bench::new().error(&layout.tar());
        assert!(
            error.contains(&format!("no image for linux/{}", architecture()))
                && error.contains("linux/s390x"),
            "{error}"
        );
    }

    #[test]
    fn a_32_bit_image_is_taken_where_there_is_no_other() {
        let layer = layer("a", "1");
        let image = |layout: &mut Layout, architecture: &str, is_told: bool| {
            let text = config(&[&layer], "");
            let mut config: serde_json::Value = serde_json::from_slice(&text).expect("json");
            config["architecture"] = architecture.into();
            let mut image = layout.image(config.to_string().as_bytes(), &[&layer]);
            if is_told {
                image["platform"] =
                    serde_json::json!({"os": "linux", "architecture": architecture});
            }
            image
        };
        let found = |wide: &'static str, archive: &[u8]| {
            let bench = Bench::with(ImportLimits {
                machine: MachinePlatform {
                    architecture: wide,
                    variant: 1,
                },
                ..ImportLimits::default()
            });
            let images = bench.ok(archive).into_iter();
            images
                .map(|i| i.config.architecture.clone())
                .collect::<Vec<_>>()
        };
        for (wide, narrow) in [("arm64", "arm"), ("amd64", "386")] {
            for (name, listed, want) in [
                ("alone", &[narrow][..], narrow),
                ("after its own", &[wide, narrow], wide),
                ("before its own", &[narrow, wide], wide),
            ] {
                // Otherwise only the configuration tells; or it tells of one of them.
                for told in [&[wide, narrow][..], &[], &[narrow]] {
                    let mut layout = Layout::new();
                    let images: Vec<_> = listed
                        .iter()
                        .map(|&architecture| {
                            image(&mut layout, architecture, told.contains(&architecture))
                        })
                        .collect();
                    for image in &images {
                        layout.name(image.clone(), "a:1");
                    }
                    let beside = layout.tar();
                    layout.manifests.clear();
                    let index = layout.index(&images);
                    layout.name(index, "a:1");
                    for archive in [layout.tar(), beside] {
                        assert_eq!(found(wide, &archive), [want], "{wide}, {name}, {told:?}");
                    }
                }
            }
            // Of another name it is another image.
            let mut layout = Layout::new();
            for (architecture, name) in [(wide, "a:1"), (narrow, "b:1")] {
                let image = image(&mut layout, architecture, true);
                layout.name(image, name);
            }
            assert_eq!(found(wide, &layout.tar()), [wide, narrow]);
        }
    }

    #[test]
    fn names() {
        let base = layer("a", "1");
        let with_name = |name: &str| {
            let mut layout = Layout::new();
            let image = layout.image(&config(&[&base], "x"), &[&base]);
            layout.name(image, name);
            layout.tar()
        };
        let bench = Bench::new();
        let error = bench.error(&with_name("latest"));
        assert!(
            error.contains("has no name for its image: import it with --name NAME"),
            "{error}"
        );
        let images = bench
            .import_as(&with_name("latest"), &["mine", "quay.io/other:2"])
            .unwrap_or_else(|e| panic!("{}", error_chain(&e)));
        assert_eq!(
            images[0].names,
            ["docker.io/library/mine:latest", "quay.io/other:2"]
        );
        assert!(images[0].digests.iter().all(|d| !d.starts_with("unnamed")));
        assert_eq!(images[0].digests.len(), 2);
        assert!(images[0].image_id().starts_with("docker.io/library/mine@"));
        let error = bench
            .import_as(&with_name("a:1"), &["Not A Name"])
            .expect_err("invalid");
        assert!(matches!(error, ImageError::InvalidReference { .. }));
        let error = bench.error(&with_name("UPPER:1"));
        assert!(error.contains("lower case"), "{error}");
        let wrong = format!("a@{}", Digest::compute(b"other"));
        let error = bench.error(&with_name(&wrong));
        assert!(
            error.contains("no manifest of it has that digest"),
            "{error}"
        );

        let mut two = Layout::new();
        for mark in ["x", "y"] {
            let image = two.image(&config(&[&base], mark), &[&base]);
            two.name(image, &format!("{mark}:1"));
        }
        assert_eq!(bench.ok(&two.tar()).len(), 2);
        let error = bench.import_as(&two.tar(), &["z"]).expect_err("two");
        assert!(
            error_chain(&error).contains("holds 2 images"),
            "{}",
            error_chain(&error)
        );
    }

    #[test]
    fn hostile_archives() {
        // IMG-27
        let base = layer("a", "1");
        let good = config(&[&base], "x");
        let docker = |config_name: &str, config: &[u8], layers: &[&str]| {
            let manifest =
                serde_json::json!([{"Config": config_name, "RepoTags": ["a:1"], "Layers": layers}]);
            Stream::new()
                .file("l.tar", &base)
                .file(config_name, config)
                .file("manifest.json", manifest.to_string().as_bytes())
                .bytes()
        };
        let mut wrong_blob = Layout::new();
        let image = wrong_blob.image(&good, &[&base]);
        wrong_blob.name(image, "a:1");
        let mut other = layer("a", "2");
        let at = wrong_blob.blobs.iter().position(|(_, b)| *b == base);
        core::mem::swap(&mut wrong_blob.blobs[at.expect("layer")].1, &mut other);
        let mut wrong_manifest = Layout::new();
        let image = wrong_manifest.image(&good, &[&base]);
        wrong_manifest.name(image, "a:1");
        wrong_manifest
            .blobs
            .last_mut()
            .expect("manifest")
            .1
            .push(b' ');
        let mut no_layer = Layout::new();
        let image = no_layer.image(&good, &[&base]);
        no_layer.name(image, "a:1");
        no_layer.blobs.retain(|(_, b)| *b != base);
        let mut diff = Layout::new();
        let image = diff.image(&config(&[&layer("a", "2")], "x"), &[&gzip(&base)]);
        diff.name(image, "a:1");
        let mut wrong_size = Layout::new();
        let mut image = wrong_size.image(&good, &[&base]);
        image["digest"] = serde_json::json!("sha256:../../../etc/passwd");
        wrong_size.name(image, "a:1");
        let mut nested = Layout::new();
        let mut index = nested.image(&good, &[&base]);
        for _ in 0..8 {
            index = nested.index(&[index]);
        }
        nested.name(index, "a:1");
        let mut encrypted = Layout::new();
        let layer_blob = encrypted.blob(
            "application/vnd.oci.image.layer.v1.tar+gzip+encrypted",
            b"?",
        );
        let config_blob = encrypted.blob("application/vnd.oci.image.config.v1+json", &good);
        let manifest = serde_json::json!({"config": config_blob, "layers": [layer_blob]});
        let manifest = encrypted.blob(
            "application/vnd.oci.image.manifest.v1+json",
            manifest.to_string().as_bytes(),
        );
        encrypted.name(manifest, "a:1");
        let escape = Stream::new().hard_link("x", "../../escape").bytes();
        let truncated = docker_archive("a:1", &[&base]);
        let many: Vec<&str> = core::iter::repeat_n("l.tar", 128).collect();
        for (name, archive, wants) in [
            ("empty file", Vec::new(), &["ends early"][..]),
            ("a text", b"hello world".to_vec(), &["not an image archive"]),
            (
                "a compressed text",
                gzip(b"hello world"),
                &["not an image archive"],
            ),
            (
                "a compressed part of a header",
                gzip(&truncated[..300]),
                &["ends early"],
            ),
            (
                "a part of a header",
                truncated[..300].to_vec(),
                &["ends early"],
            ),
            (
                "some other file",
                vec![b'x'; 4096],
                &["not an image archive"],
            ),
            (
                "a plain tar",
                layer("etc/passwd", "x"),
                &["neither oci-layout nor manifest.json"],
            ),
            (
                "before Docker 1.10",
                layer("repositories", "{}"),
                &["before 1.10"],
            ),
            ("bzip2", b"BZh91AY&SY".to_vec(), &["bzip2", "not supported"]),
            ("truncated", truncated[..3000].to_vec(), &["ends early"]),
            (
                "truncated gzip",
                gzip(&truncated)[..300].to_vec(),
                &["ends early"],
            ),
            (
                "wrong config digest",
                docker(&format!("{}.json", "0".repeat(64)), &good, &["l.tar"]),
                &["digest is sha256:", "000000.json"],
            ),
            (
                "config that is no JSON",
                docker("c.json", b"{broken", &["l.tar"]),
                &["c.json", "line 1"],
            ),
            (
                "fewer layers than listed",
                docker("c.json", &good, &[]),
                &["lists 1 layers, the manifest 0"],
            ),
            (
                "missing layer",
                docker("c.json", &good, &["../l.tar"]),
                &["../l.tar", "not in the archive"],
            ),
            (
                "too many layers",
                docker("c.json", &good, &many),
                &["more than 127 layers"],
            ),
            (
                "wrong layer digest",
                wrong_blob.tar(),
                &["the content is damaged, or was changed: its digest is sha256:"],
            ),
            (
                "wrong manifest digest",
                wrong_manifest.tar(),
                &["digest is sha256:"],
            ),
            ("absent layer", no_layer.tar(), &["not in the archive"]),
            (
                "wrong diff id",
                diff.tar(),
                &["digest is sha256:", "not sha256:"],
            ),
            (
                "digest with a path",
                wrong_size.tar(),
                &["64 lower-case hex"],
            ),
            (
                "indexes without end",
                nested.tar(),
                &["more than 4 indexes"],
            ),
            ("encrypted layer", encrypted.tar(), &["+encrypted"]),
            (
                "a link out of the layer",
                docker_archive("a:1", &[&base, &escape]),
                &["1/layer.tar", "\"../../escape\"", "neither the layer nor"],
            ),
            (
                "a circle of links",
                Stream::new()
                    .symlink("manifest.json", "m2.json")
                    .symlink("m2.json", "manifest.json")
                    .bytes(),
                &["neither"],
            ),
        ] {
            let bench = Bench::new();
            let error = bench.error(&archive);
            for want in wants {
                assert!(error.contains(want), "{name}: {error}");
            }
            assert!(bench.store.list_images().is_empty(), "{name}");
        }
    }

    #[test]
    fn all_images_of_an_archive_or_none() {
        let (good, bad) = (layer("a", "1"), Stream::new().hard_link("x", "y").bytes());
        let mut layout = Layout::new();
        for (mark, layer) in [("x", &good), ("y", &bad)] {
            let image = layout.image(&config(&[layer], mark), &[layer]);
            layout.name(image, &format!("{mark}:1"));
        }
        let bench = Bench::new();
        bench.error(&layout.tar());
        assert!(bench.store.list_images().is_empty());
    }

    #[test]
    fn layers_are_shared_and_go_with_their_last_image() {
        let (base, one, two) = (layer("a", "base"), layer("b", "1"), layer("b", "22"));
        let bench = Bench::new();
        let first = bench.ok(&docker_archive("a:1", &[&base, &one])).remove(0);
        let mut unpacked = 0;
        let path = bench.write(&docker_archive("a:2", &[&base, &two]));
        let second = bench
            .store
            .import_archive(&path, &ImportOptions::default(), &mut |progress| {
                unpacked = progress.layers;
                ControlFlow::Continue(())
            })
            .expect("second")
            .remove(0);
        assert_eq!(unpacked, 1, "the base is there");
        assert_eq!(first.layers[0], second.layers[0]);
        let in_use = BTreeSet::from([first.id.clone()]);
        assert!(matches!(
            bench.store.remove_image(&first.id, &in_use),
            Err(ImageError::InUse(_))
        ));
        assert_eq!(
            bench
                .store
                .remove_image(&first.id, &BTreeSet::new())
                .expect("rm"),
            1
        );
        assert_eq!(bench.text(&second, "a"), "base");
        bench.is_clean();
        assert_eq!(
            bench
                .store
                .remove_image(&first.id, &BTreeSet::new())
                .expect("again"),
            0
        );
        let (removed, freed) = bench.store.prune_images(&BTreeSet::new()).expect("prune");
        assert_eq!((removed.len(), freed), (1, 6));
        bench.is_clean();
    }

    #[test]
    fn what_is_held_stays_whatever_is_known_of_its_users() {
        // GC-11
        let bench = Bench::new();
        let image = bench
            .ok(&docker_archive("a:1", &[&layer("a", "1")]))
            .remove(0);
        let (store, nobody) = (&bench.store, BTreeSet::new());
        assert!(store.hold_image("sha256:absent").is_none());
        let first = store.hold_image(&image.id).expect("there");
        let second = store.hold_image(&image.id).expect("there");
        drop(first);
        for _ in 0..2 {
            let refused = store.remove_image(&image.id, &nobody);
            assert!(matches!(refused, Err(ImageError::InUse(_))), "{refused:?}");
            assert_eq!(store.prune_images(&nobody).expect("prune"), (Vec::new(), 0));
        }
        assert_eq!(bench.text(&image, "a"), "1");
        drop(second);
        assert_eq!(store.prune_images(&nobody).expect("prune").0.len(), 1);
        assert!(store.hold_image(&image.id).is_none(), "gone");
    }

    #[test]
    fn a_name_moves_to_the_later_image() {
        let mut bench = Bench::new();
        let first = bench
            .ok(&docker_archive("a:1", &[&layer("a", "1")]))
            .remove(0);
        let second = bench
            .ok(&docker_archive("a:1", &[&layer("a", "2")]))
            .remove(0);
        let holder = |bench: &Bench| {
            let image = bench.store.resolve_reference("a:1").expect("valid");
            image.expect("named").id.clone()
        };
        assert_eq!(holder(&bench), second.id);
        assert!(
            bench
                .store
                .image_by_id(&first.id)
                .expect("kept")
                .names
                .is_empty()
        );
        // A crash between the two records leaves the name in both: the later has it.
        let old = bench
            .store
            .root()
            .join("records")
            .join(format!("{}.json", &first.id[7..]));
        fs::write(&old, serde_json::to_vec(&*first).expect("json")).expect("record");
        bench.reopen();
        assert_eq!(holder(&bench), second.id);
        bench.store.tag_image(&first.id, "a:1").expect("tag");
        assert_eq!(holder(&bench), first.id);
        bench.reopen();
        assert_eq!(holder(&bench), first.id);
        // The same archive again: nothing new but the name.
        bench.ok(&docker_archive("a:1", &[&layer("a", "2")]));
        assert_eq!(holder(&bench), second.id);
    }

    #[test]
    fn a_power_cut_leaves_a_store_that_repairs_itself() {
        let mut bench = Bench::new();
        let kept = bench
            .ok(&docker_archive("kept:1", &[&layer("a", "1")]))
            .remove(0);
        let lost = bench
            .ok(&docker_archive("lost:1", &[&layer("a", "2")]))
            .remove(0);
        let root = bench.store.root().to_path_buf();
        // Cut while unpacking; after the layers were renamed; while a record was written; a layer gone missing.
        fs::create_dir_all(root.join("staging/l0/etc")).expect("scratch");
        fs::create_dir_all(root.join("layers/00000000000000ff/etc")).expect("scratch");
        fs::write(root.join("records/.x.json.tmp"), b"{").expect("scratch");
        let half = format!("records/{}.json", "1".repeat(64));
        fs::write(root.join(&half), b"{\"v\":1").expect("scratch");
        fs::remove_dir_all(bench.store.layer_dirs(&lost.id).expect("layers").remove(0))
            .expect("scratch");
        // A record that points elsewhere must not make us remove or mount that.
        let mut evil = (*kept).clone();
        evil.id = format!("sha256:{}", "2".repeat(64));
        evil.layers[0].dir = "../../../etc".into();
        let path = format!("records/{}.json", "2".repeat(64));
        fs::write(root.join(path), serde_json::to_vec(&evil).expect("json")).expect("scratch");
        bench.reopen();
        assert_eq!(bench.store.list_images(), [Arc::clone(&kept)]);
        assert_eq!(bench.text(&kept, "a"), "1");
        bench.is_clean();
        assert!(matches!(
            ImageStore::open(&root),
            Err(ImageError::Locked(_))
        ));
    }

    #[test]
    fn a_leaning_layer_is_shared_only_where_it_leans_on_the_same() {
        if !nix::unistd::geteuid().is_root() {
            skipped!("owners need root");
            return;
        }
        let sticky = Stream::new().dir("tmp", 0o1777).bytes();
        let private = Stream::new().dir("tmp", 0o700).bytes();
        let top = Stream::new().file("tmp/x", b"1").bytes();
        let mut layout = Layout::new();
        for (mark, base) in [
            ("sticky", &sticky),
            ("private", &private),
            ("again", &sticky),
        ] {
            let image = layout.image(&config(&[base, &top], mark), &[base, &top]);
            layout.name(image, &format!("{mark}:1"));
        }
        let bench = Bench::new();
        let images = bench.ok(&layout.tar());
        let mode = |image: &ImageRecord| {
            let dirs = bench.store.layer_dirs(&image.id).expect("layers");
            fs::metadata(dirs[0].join("tmp"))
                .expect("tmp")
                .permissions()
                .mode()
                & 0o7777
        };
        let modes: Vec<u32> = images.iter().map(|i| mode(i)).collect();
        assert_eq!(modes, [0o1777, 0o700, 0o1777]);
        assert_eq!(images[0].layers, images[2].layers);
        assert_ne!(images[0].layers[1].dir, images[1].layers[1].dir);
        bench.is_clean();
    }

    #[test]
    fn an_image_without_layers_can_be_mounted() {
        let bench = Bench::new();
        let image = bench.ok(&docker_archive("scratch:1", &[])).remove(0);
        let dirs = bench.store.layer_dirs(&image.id).expect("dirs");
        assert_eq!(dirs, [bench.store.layers_root().join("empty")]);
        assert!(dirs[0].is_dir());
    }

    #[test]
    fn what_is_free_is_looked_at_again_every_few_mebibytes_and_entries() {
        let mut looks = FreeSpaceRecheck::default();
        assert!(!looks.is_recheck_due(0) && !looks.is_recheck_due(LOOK_BYTES - 1));
        assert!(looks.is_recheck_due(LOOK_BYTES) && !looks.is_recheck_due(2 * LOOK_BYTES - 1));
        assert!(looks.is_recheck_due(2 * LOOK_BYTES));
        // Without any data.
        let due = (1..=3 * LOOK_STEPS).filter(|_| looks.is_recheck_due(2 * LOOK_BYTES));
        assert_eq!(due.count(), 3);
    }

    #[test]
    fn documents_that_are_led_to_again_and_again_have_an_end() {
        let of_platform = |n: usize| {
            serde_json::json!({
                "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "digest": Digest::compute(&n.to_be_bytes()).to_string(),
                "size": 1,
                "platform": {"os": "linux", "architecture": format!("a{n}")},
            })
        };
        let archive = |platforms: usize, times: usize| {
            let mut layout = Layout::new();
            let platforms: Vec<_> = (0..platforms).map(of_platform).collect();
            let index = layout.index(&platforms);
            layout.manifests = vec![index; times];
            layout.tar()
        };
        for (name, archive, says) in [
            (
                "as many as may be",
                archive(20, plan::MAX_ARCHIVE_DOCUMENTS),
                "it has no image for linux/".to_owned(),
            ),
            (
                "one more",
                archive(20, plan::MAX_ARCHIVE_DOCUMENTS + 1),
                format!("more than {} documents", plan::MAX_ARCHIVE_DOCUMENTS),
            ),
            (
                "of many bytes",
                archive(5000, plan::MAX_ARCHIVE_DOCUMENTS),
                format!("more than {} bytes of documents", plan::MAX_FOLLOWED_BYTES),
            ),
        ] {
            let error = Bench::new().error(&archive);
            assert!(error.contains(&says), "{name}: {error}");
        }
    }

    #[test]
    fn a_cancelled_or_too_large_import_leaves_nothing() {
        let archive = docker_archive("a:1", &[&layer("a", "1")]);
        let bench = Bench::new();
        let path = bench.write(&archive);
        let error = bench
            .store
            .import_archive(&path, &ImportOptions::default(), &mut |_| {
                ControlFlow::Break(())
            })
            .expect_err("cancelled");
        assert!(error.is_transient());
        bench.is_clean();
        let bench = Bench::with(ImportLimits {
            max_bytes: 100,
            ..ImportLimits::default()
        });
        let error = bench.import(&archive).expect_err("too large");
        assert!(
            error.is_transient() && error_chain(&error).contains("100 bytes"),
            "{}",
            error_chain(&error)
        );
        bench.is_clean();
    }

    #[test]
    fn an_import_fits_into_a_lane_s_stack() {
        let bench = Bench::new();
        let base = layer("a", &"x".repeat(1_000_000));
        let mut layout = Layout::new();
        let image = layout.image(
            &config(&[&base, &layer("b", "2")], "x"),
            &[&zstd(&base), &gzip(&layer("b", "2"))],
        );
        layout.name(image, "a:1");
        let path = bench.write(&zstd(&layout.tar()));
        let store = bench.store.clone();
        // Less than a lane has, in a build without optimisation.
        std::thread::Builder::new()
            .stack_size(crate::sys::lane::LANE_STACK_BYTES * 3 / 4)
            .spawn(move || {
                store
                    .import_archive(&path, &ImportOptions::default(), &mut |_| {
                        ControlFlow::Continue(())
                    })
                    .expect("imported");
            })
            .expect("thread")
            .join()
            .expect("no overflow");
    }
}
