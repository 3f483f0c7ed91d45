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
use super::compress::{self, Coding};
use super::digest::{Digest, Hashing};
use super::error::{ImageError, Problem};
use super::layer::{self, Budget, LayerError, Unpacked};
use super::plan::{self, PlannedImage, PlannedLayer};
use super::platform::Machine;
use super::record::{ImageRecord, LayerRecord, RECORD_VERSION};
use super::reference::Reference;
use super::store::{StagedLayer, Store};

/// Disk space that unpacking leaves free, bytes: the machine must go on writing logs and records.
pub const RESERVE_BYTES: u64 = 64 * 1024 * 1024;
/// Inodes that unpacking leaves free.
pub const RESERVE_INODES: u64 = 2048;
/// Bytes between two reports of progress.
const TICK_BYTES: u64 = 4 * 1024 * 1024;

/// How to import.
#[derive(Clone, Debug, Default)]
pub struct ImportOptions {
    /// Names for the image instead of the archive's own. Only for archives that hold one image.
    pub names: Vec<String>,
    /// Keep it from `prune` and image GC.
    pub pinned: bool,
}

/// How far an import is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Layers done.
    pub layers_done: usize,
    /// Layers that must be unpacked; those the store has are not among them.
    pub layers: usize,
    /// Bytes unpacked so far, over all layers.
    pub bytes: u64,
}

/// Hears of progress: at each layer's end and every few MiB. `Break` cancels the import.
pub type Tick<'t> = &'t mut dyn FnMut(Progress) -> ControlFlow<()>;

/// What an import may use.
#[derive(Clone, Debug)]
pub(super) struct Limits {
    pub(super) machine: Machine,
    /// Bytes that stay free.
    pub(super) reserve_bytes: u64,
    /// Upper bound besides the free space, bytes.
    pub(super) max_bytes: u64,
    /// Upper bound besides the free inodes.
    pub(super) max_inodes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            machine: Machine::this(),
            reserve_bytes: RESERVE_BYTES,
            max_bytes: u64::MAX,
            max_inodes: u64::MAX,
        }
    }
}

/// The import itself; the caller holds the store's change lock and empties `staging` afterwards.
pub(super) fn run(
    store: &Store,
    path: &Path,
    options: &ImportOptions,
    tick: Tick<'_>,
) -> Result<Vec<Arc<ImageRecord>>, ImageError> {
    let located = |(blob, source): plan::Located| ImageError::Import {
        archive: path.into(),
        blob,
        entry: None,
        source: Box::new(source),
    };
    let names = options
        .names
        .iter()
        .map(|name| Reference::parse(name))
        .collect::<Result<Vec<_>, _>>()?;
    let archive = Archive::open(path).map_err(|problem| located((None, problem)))?;
    let planned = plan::plan(&archive, &names, store.limits().machine).map_err(located)?;
    let mut import = Import {
        store,
        path,
        budget: budget(store)?,
        known: store.layers(),
        staged: Vec::new(),
        unpacked: BTreeMap::new(),
        tick,
        progress: Progress {
            layers_done: 0,
            layers: 0,
            bytes: 0,
        },
    };
    let mut records = Vec::new();
    let mut waiting: Vec<PlannedImage> = planned;
    // Once around as a rule. A layer that leans on different layers in two images is unpacked for each.
    while !waiting.is_empty() {
        import.unpack_missing(&archive, &waiting)?;
        let mut again = Vec::new();
        for image in waiting {
            match import.assemble(&image)? {
                Some(layers) => records.push(record_of(image, layers, options.pinned)),
                None => again.push(image),
            }
        }
        waiting = again;
    }
    store.commit(&import.staged, records)
}

fn budget(store: &Store) -> Result<Budget, ImageError> {
    let fs = store.fs_info()?;
    let limits = store.limits();
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
    Ok(Budget {
        bytes,
        bytes_left: bytes,
        inodes,
        inodes_left: inodes,
    })
}

fn record_of(image: PlannedImage, layers: Vec<LayerRecord>, pinned: bool) -> ImageRecord {
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
        names: image.names,
        digests: image.digests,
        size_bytes,
        pinned,
        layers,
        config: image.config,
    }
}

struct Import<'a> {
    store: &'a Store,
    path: &'a Path,
    budget: Budget,
    /// Layers of the store and of this import, by key.
    known: BTreeMap<String, LayerRecord>,
    staged: Vec<StagedLayer>,
    /// Unpacked into `staging/<name>` and not yet assigned, by diff id.
    unpacked: BTreeMap<Digest, (String, Unpacked)>,
    tick: Tick<'a>,
    progress: Progress,
}

impl Import<'_> {
    /// One pass over the archive: unpacks what is neither in the store nor unpacked yet. Any order will do.
    fn unpack_missing(
        &mut self,
        archive: &Archive,
        images: &[PlannedImage],
    ) -> Result<(), ImageError> {
        let mut missing: BTreeMap<String, Vec<PlannedLayer>> = BTreeMap::new();
        for image in images {
            let mut chain = None;
            for (at, layer) in image.layers.iter().enumerate() {
                let key = chain_id(chain, layer.diff_id);
                chain = Some(key);
                let wanted = missing.entry(layer.member.clone()).or_default();
                if self.shared(key, layer.diff_id, at).is_none()
                    && !self.unpacked.contains_key(&layer.diff_id)
                    && !wanted.iter().any(|l| l.diff_id == layer.diff_id)
                {
                    wanted.push(layer.clone());
                }
            }
        }
        missing.retain(|_, wanted| !wanted.is_empty());
        self.progress.layers += missing.len();
        if missing.is_empty() {
            return Ok(());
        }
        // The visitor can say what is wrong only as a problem; the place is kept beside it.
        let mut place = None;
        let walked = archive.each(&mut |name, kind, data| {
            let (MemberKind::File(_), Some(wanted)) = (kind, missing.remove(name)) else {
                return Ok(());
            };
            self.unpack_one(name, &wanted, data).map_err(|error| {
                place = Some((name.to_owned(), error.entry));
                error.problem
            })
        });
        let missed = missing.into_keys().next();
        match (walked, missed) {
            (Err(source), _) => {
                let (blob, entry) = place.map_or((None, None), |(b, e)| (Some(b), e));
                Err(self.error(blob, entry, source))
            }
            (Ok(()), Some(name)) => Err(self.error(
                Some(name),
                None,
                Problem::Damaged("it vanished from the archive".into()),
            )),
            (Ok(()), None) => Ok(()),
        }
    }

    /// Unpacks a member. Two diff ids for one member cannot both be right, so the first is held against it.
    fn unpack_one(
        &mut self,
        member: &str,
        wanted: &[PlannedLayer],
        data: &mut dyn Read,
    ) -> Result<(), LayerError> {
        let layer = wanted.first().expect("members without a wish were dropped");
        let name = format!("l{}", self.progress.layers_done);
        let dir = self.store.root().join("staging").join(&name);
        log::debug!("unpacking {member} into {}", dir.display());
        let root = make_root(&dir).map_err(Problem::write("make the layer's directory"))?;
        let (done, layers) = (self.progress.layers_done, self.progress.layers);
        let start = self.progress.bytes;
        let mut next_tick = TICK_BYTES;
        let tick = &mut self.tick;
        let mut on_bytes = |bytes: u64| {
            if bytes < next_tick {
                return ControlFlow::Continue(());
            }
            next_tick = bytes + TICK_BYTES;
            tick(Progress {
                layers_done: done,
                layers,
                bytes: start + bytes,
            })
        };
        let mut blob = Hashing::new(data, layer.blob.is_some());
        let unpacked = {
            let (coding, mut stream) = compress::decoder(&mut blob).map_err(Problem::from_read)?;
            let unpacked = layer::unpack(&mut *stream, root, &mut self.budget, &mut on_bytes)?;
            if coding != Coding::Plain {
                log::debug!("{member} was {coding:?}");
            }
            unpacked
        };
        // A decoder stops at the end of its format; the blob's digest covers what follows.
        io::copy(&mut blob, &mut io::sink()).map_err(Problem::from_read)?;
        if let Some((expected, _)) = layer.blob {
            let found = blob.finish().expect("the blob is hashed");
            check(expected, found)?;
        }
        for layer in wanted {
            check(layer.diff_id, unpacked.diff_id)?;
        }
        self.progress.layers_done += 1;
        self.progress.bytes = start + unpacked.size_bytes;
        self.unpacked.insert(unpacked.diff_id, (name, unpacked));
        match (self.tick)(self.progress) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Problem::Cancelled.into()),
        }
    }

    /// A layer that can be used as it is: settled for this very chain, or independent of what is below.
    fn shared(&self, chain: Digest, diff_id: Digest, at: usize) -> Option<&LayerRecord> {
        self.known.get(&chain.to_string()).or_else(|| {
            self.known
                .get(&diff_id.to_string())
                .filter(|layer| at == 0 || !layer.leans)
        })
    }

    /// The layers of an image from what is known and unpacked. `None` if one must be unpacked once more.
    fn assemble(&mut self, image: &PlannedImage) -> Result<Option<Vec<LayerRecord>>, ImageError> {
        let mut layers: Vec<LayerRecord> = Vec::new();
        let mut chain = None;
        for (at, planned) in image.layers.iter().enumerate() {
            let key = chain_id(chain, planned.diff_id);
            chain = Some(key);
            if let Some(layer) = self.shared(key, planned.diff_id, at) {
                layers.push(layer.clone());
                continue;
            }
            let Some((staged, unpacked)) = self.unpacked.remove(&planned.diff_id) else {
                return Ok(None);
            };
            let leans = !unpacked.implied.is_empty();
            let key = if leans { key } else { planned.diff_id };
            if leans && at > 0 {
                self.settle(&staged, &unpacked, &layers)
                    .map_err(|e| self.error(Some(planned.member.clone()), e.entry, e.problem))?;
            }
            let record = LayerRecord {
                key: key.to_string(),
                diff_id: planned.diff_id.to_string(),
                dir: self.free_name(key),
                size_bytes: unpacked.size_bytes,
                leans,
                opaque: unpacked.opaque,
            };
            self.known.insert(record.key.clone(), record.clone());
            self.staged.push(StagedLayer {
                staged,
                record: record.clone(),
            });
            layers.push(record);
        }
        Ok(Some(layers))
    }

    fn settle(
        &self,
        staged: &str,
        unpacked: &Unpacked,
        layers: &[LayerRecord],
    ) -> Result<(), LayerError> {
        let staging = self.store.root().join("staging");
        let open = |path: &Path| {
            fs::File::open(path)
                .map(OwnedFd::from)
                .map_err(Problem::write("open a layer below"))
        };
        let mut below = Vec::new();
        for layer in layers.iter().rev() {
            // Layers of this import are still in staging.
            let path = match self.staged.iter().find(|s| s.record.dir == layer.dir) {
                Some(staged) => staging.join(&staged.staged),
                None => self.store.layers_root().join(&layer.dir),
            };
            below.push(open(&path)?);
            if layer.opaque {
                break;
            }
        }
        let layer = open(&staging.join(staged))?;
        layer::settle(layer.as_fd(), &unpacked.implied, &below)
    }

    /// Directory name for a key: its first 16 digits, or the next ones if another layer starts alike.
    fn free_name(&self, key: Digest) -> String {
        let hex = key.hex();
        let taken = |name: &str| self.known.values().any(|layer| layer.dir == name);
        (0..=hex.len() - 16)
            .map(|at| &hex[at..at + 16])
            .find(|name| !taken(name))
            .unwrap_or(&hex[..16])
            .to_owned()
    }

    fn error(&self, blob: Option<String>, entry: Option<String>, source: Problem) -> ImageError {
        ImageError::Import {
            archive: self.path.into(),
            blob,
            entry,
            source: Box::new(source),
        }
    }
}

fn check(expected: Digest, found: Digest) -> Result<(), LayerError> {
    if expected == found {
        Ok(())
    } else {
        Err(Problem::WrongDigest { expected, found }.into())
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
        Some(below) => Digest::of(format!("{below} {diff_id}").as_bytes()),
    }
}
