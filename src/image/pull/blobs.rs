//! Layers between registry and store: one file each, shared by the pulls that want them.
//!
//! ```text
//! <store>/pulls/blobs/sha256/<64 hex>-<16 hex>.part   growing, or left by a cut: the beginning of the layer
//!                            <64 hex>                whole, digest checked, durable
//!                            <64 hex>-<16 hex>       the same, of a pull with a credential that only its pod has
//! ```
//!
//! Pulls share a part if they agree on layer, size and registry (its mirrors included). Until the last byte has arrived
//! and the digest is checked, another registry may send anything for the same digest. Its bytes therefore go to another
//! part and cannot spoil this one.
//!
//! Parts and whole layers outlive the agent, so that no byte is fetched twice. They are removed when the image is in
//! the store, when no pull asked for them in [`MAX_AGE`], or when their space is wanted.

use alloc::collections::BTreeMap;
use core::time::Duration;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::LOOK;
use crate::api::order::OrderExt;
use crate::api::{MonoTime, WallTime};
use crate::image::digest::Digest;
use crate::image::registry::RegistryError;
use crate::image::registry::blob;
use crate::image::whose::RegistryAccess;
use crate::net::pace::StopFlag;
use crate::sys::clock;
use crate::sys::file::{self, sync_dir};

/// Age from which a layer is removed at the next start if no pull asked for it.
pub(super) const MAX_AGE: Duration = Duration::from_secs(14 * 24 * 3600);
/// Time that a layer is kept after its last byte arrived, or after a start, even if space is wanted. It is longer than
/// the back-off of a pull, so the next attempt finds the layer. An attempt that brings no byte does not extend the
/// time. Else a layer that can never be unpacked would stay, and other images would be removed for it again and again.
pub const RESUME_TIME: Duration = Duration::from_secs(1800);

/// A layer as one registry has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct BlobKey {
    pub(super) digest: Digest,
    /// Hash of registry and size, and of the credential if only the pod has it.
    origin: u64,
    /// Set if the layer is fetched with a credential that only the pod has. No other pod gets the bytes then.
    is_private: bool,
}

impl BlobKey {
    pub(super) fn new(digest: Digest, size: u64, access: &RegistryAccess) -> Self {
        let mut text = format!("{size} {}", access.registry_domain());
        if let Some(by) = access.credential_hash() {
            text = format!("{text} {by}");
        }
        let hex = Digest::compute(text.as_bytes()).hex();
        Self {
            digest,
            origin: u64::from_str_radix(&hex[..ORIGIN_DIGITS], 16).expect("hex digits"),
            is_private: access.credential_hash().is_some(),
        }
    }

    /// Path of the whole layer's file in the directory above `blobs`.
    pub(super) fn member_name(self) -> String {
        format!("blobs/sha256/{}", self.whole_file_name())
    }

    fn whole_file_name(self) -> String {
        match self.is_private {
            true => self.keyed_file_name(),
            false => self.digest.hex(),
        }
    }

    fn keyed_file_name(self) -> String {
        let Self { digest, origin, .. } = self;
        format!("{}-{origin:0ORIGIN_DIGITS$x}", digest.hex())
    }

    /// Reads a file's name: digest and origin. A whole layer that is open to every pod has no origin.
    fn parse_file_name(name: &str) -> Option<(Digest, Option<u64>)> {
        let part = name.strip_suffix(".part").unwrap_or(name);
        if part == name && !name.contains('-') {
            return Some((Digest::from_hex(name)?, None));
        }
        let (hex, origin) = part.split_once('-')?;
        let origin = u64::from_str_radix(origin, 16).ok()?;
        Some((Digest::from_hex(hex)?, Some(origin)))
    }
}

/// Hex digits of an origin.
const ORIGIN_DIGITS: usize = 16;

/// Most files that are kept for pulls that may be tried again. If there are more, the oldest are removed.
const MAX_KEPT: usize = 512;

/// The directory, and the pulls that use its files.
#[derive(Debug)]
pub(super) struct BlobDirectory {
    dir: PathBuf,
    uses: Mutex<BTreeMap<BlobKey, BlobUse>>,
    fetch_ended: Condvar,
    opened: MonoTime,
}

#[derive(Debug, Default)]
struct BlobUse {
    /// Number of pulls that want the layer. 0: it is only kept for the next attempt.
    pulls: usize,
    /// Arrival of the last byte; `None`: none arrived since the start.
    arrived: Option<MonoTime>,
    /// Set while a pull fetches the layer; the others wait.
    fetching: bool,
}

/// Layers that one pull wants. The claim ends when it is dropped.
pub(super) struct BlobClaim<'a> {
    blobs: &'a BlobDirectory,
    layers: Vec<BlobKey>,
}

impl BlobDirectory {
    /// Opens the directory below `layout`, makes it if absent, and removes forgotten layers. If the disk cannot be
    /// written, this is only logged, and the agent still starts. The next pull fails with the same error.
    pub(super) fn open(layout: &Path, now: WallTime) -> Self {
        let blobs = Self {
            dir: layout.join("blobs/sha256"),
            uses: Mutex::new(BTreeMap::new()),
            fetch_ended: Condvar::new(),
            opened: clock::mono_now(),
        };
        let opened = blobs
            .make_directory()
            // A layer is durable only if its directory and the directories above it are, up to the store's root.
            .and_then(|()| blobs.dir.ancestors().take(4).try_for_each(sync_dir))
            .and_then(|()| blobs.remove_older(now, MAX_AGE).map(drop));
        if let Err(e) = opened {
            log::warn!("partly pulled layers in {}: {e}", blobs.dir.display());
        }
        blobs
    }

    fn make_directory(&self) -> io::Result<()> {
        file::make_dirs(&self.dir, 0o700)
    }

    /// Takes note of a pull's layers, so that they are not removed. If too many files of other pulls are left, the
    /// oldest are removed.
    pub(super) fn claim_layers(&self, layers: impl Iterator<Item = BlobKey>) -> BlobClaim<'_> {
        let mut claim = BlobClaim {
            blobs: self,
            layers: Vec::new(),
        };
        let mut uses = self.lock();
        for layer in layers {
            if !claim.layers.contains(&layer) {
                uses.entry(layer).or_default().pulls += 1;
                claim.layers.push(layer);
            }
        }
        drop(uses);
        if !claim.layers.is_empty()
            && let Err(e) = self.remove_beyond(MAX_KEPT)
        {
            log::warn!("partly pulled layers in {}: {e}", self.dir.display());
        }
        claim
    }

    /// Bytes of a layer that are here already.
    pub(super) fn present_bytes(&self, layer: BlobKey) -> u64 {
        let length = |path: PathBuf| fs::metadata(path).ok().map(|m| m.len());
        length(self.whole_path(layer))
            .or_else(|| length(self.part_path(layer)))
            .unwrap_or(0)
    }

    /// Returns true if the layer is here, fetched completely, with `size` bytes.
    pub(super) fn is_layer_whole(&self, layer: BlobKey, size: u64) -> bool {
        fs::metadata(self.whole_path(layer)).is_ok_and(|m| m.len() == size)
    }

    /// Completes a layer. `fetch` gets the path of the growing file. If another pull is fetching the layer from the
    /// same registry, this one waits. If the other one fails, this one fetches itself. Returns whether `fetch` was
    /// called.
    pub(super) fn complete_layer(
        &self,
        layer: BlobKey,
        stop: &StopFlag,
        fetch: impl FnOnce(&Path) -> Result<(), RegistryError>,
    ) -> Result<bool, RegistryError> {
        let mut uses = self.lock();
        while uses.get(&layer).is_some_and(|u| u.fetching) {
            if stop.is_stopped() {
                return Err(RegistryError::Cancelled);
            }
            (uses, _) = self
                .fetch_ended
                .wait_timeout(uses, LOOK)
                .unwrap_or_else(PoisonError::into_inner);
        }
        let whole = self.whole_path(layer);
        if whole.exists() {
            return Ok(false);
        }
        uses.entry(layer).or_default().fetching = true;
        drop(uses);
        let part = self.part_path(layer);
        let bytes_before = self.present_bytes(layer);
        let result = self
            .make_directory()
            .map_err(RegistryError::local_file_error("make", &self.dir));
        let result = result.and_then(|()| fetch(&part)).and_then(|()| {
            fs::rename(&part, &whole)
                .and_then(|()| sync_dir(&self.dir))
                .map_err(RegistryError::local_file_error("rename", &part))
        });
        let mut uses = self.lock();
        let layer_use = uses.entry(layer).or_default();
        layer_use.fetching = false;
        if result.is_ok() || self.present_bytes(layer) > bytes_before {
            layer_use.arrived = Some(clock::mono_now());
        }
        drop(uses);
        self.fetch_ended.notify_all();
        result.map(|()| true)
    }

    /// Removes layers that no pull uses and that did not grow in the last `unused`. Returns the bytes freed.
    pub(super) fn remove_unused(&self, unused: Duration, now: MonoTime) -> io::Result<u64> {
        self.remove_if(&|arrived, _| now - arrived >= unused)
    }

    fn remove_older(&self, now: WallTime, age: Duration) -> io::Result<u64> {
        let age = i64::try_from(age.as_nanos()).unwrap_or(i64::MAX);
        let limit = now.0.saturating_sub(age);
        // While the clock is not set, all files look young. They are removed another time.
        self.remove_if(&|_, metadata| metadata.mtime().saturating_mul(1_000_000_000) < limit)
    }

    /// Removes the oldest of the files that no pull uses, if there are more than `most` of them.
    fn remove_beyond(&self, most: usize) -> io::Result<()> {
        let mut uses = self.lock();
        let mut left: Vec<(i64, PathBuf)> = Vec::new();
        self.visit_unclaimed_files(&uses, &mut |path, _, metadata| {
            left.push((metadata.mtime(), path));
            Ok(())
        })?;
        left.stable_sort();
        for (_, path) in left.iter().rev().skip(most) {
            blob::remove_if_present(path)?;
        }
        self.forget_unused(&mut uses);
        drop(uses);
        Ok(())
    }

    /// Removes files that no pull uses and for which `is_unwanted` returns true. It gets the arrival of the last byte,
    /// and the metadata. Returns the bytes freed.
    fn remove_if(&self, is_unwanted: &dyn Fn(MonoTime, &fs::Metadata) -> bool) -> io::Result<u64> {
        let mut uses = self.lock();
        let mut freed = 0;
        self.visit_unclaimed_files(&uses, &mut |path, arrived, metadata| {
            if is_unwanted(arrived, metadata) {
                blob::remove_if_present(&path)?;
                freed += metadata.len();
            }
            Ok(())
        })?;
        self.forget_unused(&mut uses);
        drop(uses);
        Ok(freed)
    }

    /// Visits each file that no pull uses, with the arrival of its last byte. If that is not known, the time of the
    /// start takes its place.
    fn visit_unclaimed_files(
        &self,
        uses: &BTreeMap<BlobKey, BlobUse>,
        visit: &mut dyn FnMut(PathBuf, MonoTime, &fs::Metadata) -> io::Result<()>,
    ) -> io::Result<()> {
        let list = match fs::read_dir(&self.dir) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            list => list?,
        };
        for entry in list {
            let entry = entry?;
            let name = entry.file_name();
            let parsed_name = name.to_str().and_then(BlobKey::parse_file_name);
            let matching_uses = || {
                uses.iter().filter(|(layer, _)| {
                    parsed_name.is_some_and(|(digest, origin)| {
                        layer.digest == digest && origin.is_none_or(|o| layer.origin == o)
                    })
                })
            };
            let used = matching_uses().any(|(_, u)| u.pulls > 0 || u.fetching);
            let arrived = matching_uses().filter_map(|(_, u)| u.arrived).max();
            let metadata = entry.metadata()?;
            if !used && metadata.is_file() {
                visit(entry.path(), arrived.unwrap_or(self.opened), &metadata)?;
            }
        }
        Ok(())
    }

    fn forget_unused(&self, uses: &mut BTreeMap<BlobKey, BlobUse>) {
        uses.retain(|layer, u| u.pulls > 0 || u.fetching || self.present_bytes(*layer) > 0);
    }

    fn whole_path(&self, layer: BlobKey) -> PathBuf {
        self.dir.join(layer.whole_file_name())
    }

    pub(super) fn part_path(&self, layer: BlobKey) -> PathBuf {
        self.dir.join(layer.keyed_file_name() + ".part")
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<BlobKey, BlobUse>> {
        self.uses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BlobClaim<'_> {
    /// Removes the layers that no other pull wants: they are in the store, or of no use.
    pub(super) fn discard_layers(self) {
        let uses = self.blobs.lock();
        let count_pulls = |wanted: &dyn Fn(&BlobKey) -> bool| -> usize {
            let all = uses.iter().filter(|(layer, _)| wanted(layer));
            all.map(|(_, u)| u.pulls).sum()
        };
        for &layer in &self.layers {
            let whole = self.blobs.whole_path(layer);
            let part = self.blobs.part_path(layer);
            for (path, pulls) in [
                (
                    whole,
                    count_pulls(&|other| other.whole_file_name() == layer.whole_file_name()),
                ),
                (part, count_pulls(&|other| *other == layer)),
            ] {
                if pulls <= 1
                    && let Err(e) = blob::remove_if_present(&path)
                {
                    log::warn!("cannot remove {}: {e}", path.display());
                }
            }
        }
    }
}

impl Drop for BlobClaim<'_> {
    fn drop(&mut self) {
        let mut uses = self.blobs.lock();
        for layer in &self.layers {
            if let Some(layer_use) = uses.get_mut(layer) {
                layer_use.pulls -= 1;
                if layer_use.pulls == 0 && self.blobs.present_bytes(*layer) == 0 {
                    uses.remove(layer);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::testing::TestDir;

    const NO_TIME: Duration = Duration::ZERO;

    fn open(scratch: &TestDir) -> BlobDirectory {
        BlobDirectory::open(&scratch.join("pulls"), clock::wall_now())
    }

    fn layer(text: &[u8]) -> BlobKey {
        BlobKey::new(
            Digest::compute(text),
            text.len() as u64,
            &RegistryAccess::new("registry.example", None),
        )
    }

    fn put(layer: BlobKey, text: &'static str) -> impl FnOnce(&Path) -> Result<(), RegistryError> {
        move |path| {
            assert!(path.to_string_lossy().contains(&layer.digest.hex()));
            fs::write(path, text).map_err(RegistryError::local_file_error("write", path))
        }
    }

    #[test]
    fn a_layer_is_fetched_once_and_stays_while_it_is_wanted() {
        let scratch = TestDir::new("blobs");
        let blobs = open(&scratch);
        let (a, b) = (layer(b"a"), layer(b"b"));
        let one = blobs.claim_layers([a, a, b].into_iter());
        let two = blobs.claim_layers([b].into_iter());
        assert!(
            blobs
                .complete_layer(a, &StopFlag::default(), put(a, "a"))
                .expect("fetched")
        );
        assert!(
            !blobs
                .complete_layer(a, &StopFlag::default(), |_| panic!("it is there"))
                .expect("there")
        );
        assert!(
            blobs
                .complete_layer(b, &StopFlag::default(), put(b, "bb"))
                .expect("fetched")
        );
        assert_eq!((blobs.present_bytes(a), blobs.present_bytes(b)), (1, 2));
        let clear = |unused| {
            blobs
                .remove_unused(unused, clock::mono_now())
                .expect("clear")
        };
        assert_eq!(clear(NO_TIME), 0, "wanted");
        one.discard_layers();
        assert_eq!(
            (blobs.present_bytes(a), blobs.present_bytes(b)),
            (0, 2),
            "b is wanted by two"
        );
        drop(two);
        assert_eq!(blobs.present_bytes(b), 2, "kept for the next attempt");
        assert_eq!(clear(RESUME_TIME), 0, "it may be asked for again");
        assert_eq!(clear(NO_TIME), 2);
    }

    #[test]
    fn a_start_on_a_full_disk_keeps_what_may_be_resumed() {
        let scratch = TestDir::new("blobs");
        let a = layer(b"a");
        let blobs = open(&scratch);
        assert!(
            blobs
                .complete_layer(a, &StopFlag::default(), put(a, "a"))
                .expect("fetched")
        );
        let blobs = open(&scratch);
        let later = |time| clock::mono_now() + time;
        assert_eq!(
            blobs
                .remove_unused(RESUME_TIME, later(RESUME_TIME / 2))
                .expect("clear"),
            0
        );
        assert_eq!(
            blobs
                .remove_unused(RESUME_TIME, later(RESUME_TIME))
                .expect("clear"),
            1
        );
    }

    #[test]
    fn asking_again_keeps_nothing() {
        let scratch = TestDir::new("blobs");
        let blobs = open(&scratch);
        let a = layer(b"a");
        assert!(
            blobs
                .complete_layer(a, &StopFlag::default(), put(a, "a"))
                .expect("fetched")
        );
        let later = clock::mono_now() + RESUME_TIME;
        // Half an hour later a pull that cannot unpack it asks for it once more.
        blobs.lock().get_mut(&a).expect("known").arrived = Some(MonoTime(0));
        let claim = blobs.claim_layers([a].into_iter());
        let again = blobs.complete_layer(a, &StopFlag::default(), |_| panic!("it is there"));
        assert!(!again.expect("there"));
        assert_eq!(
            blobs.remove_unused(NO_TIME, later).expect("clear"),
            0,
            "in use"
        );
        drop(claim);
        assert_eq!(
            blobs
                .remove_unused(
                    RESUME_TIME,
                    clock::mono_now().max(MonoTime(0) + RESUME_TIME)
                )
                .expect("clear"),
            1
        );
        // An attempt that brings nothing does not extend the time. One that brings a byte does.
        for (bytes, kept) in [("", 0), ("x", 1)] {
            let fetched = blobs.complete_layer(a, &StopFlag::default(), |path| {
                fs::write(path, bytes).expect("part");
                Err(RegistryError::Cancelled)
            });
            assert!(fetched.is_err());
            let known = blobs.lock().get(&a).is_some_and(|u| u.arrived.is_some());
            assert_eq!(u64::from(known), kept);
        }
    }

    #[test]
    fn what_is_left_is_limited() {
        let scratch = TestDir::new("blobs");
        let blobs = open(&scratch);
        let layers: Vec<BlobKey> = (0..6).map(|n: u8| layer(&[n])).collect();
        for (age, one) in layers.iter().enumerate() {
            let fetched = blobs.complete_layer(*one, &StopFlag::default(), put(*one, "x"));
            assert!(fetched.expect("fetched"));
            let file = fs::File::options()
                .append(true)
                .open(blobs.whole_path(*one));
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1000 - age as u64);
            file.expect("layer").set_modified(time).expect("time");
        }
        // The oldest one is in use.
        let claim = blobs.claim_layers([layers[5]].into_iter());
        blobs.remove_beyond(2).expect("removed");
        let there: Vec<u64> = layers.iter().map(|l| blobs.present_bytes(*l)).collect();
        assert_eq!(there, [1, 1, 0, 0, 0, 1]);
        assert_eq!(blobs.lock().len(), 3);
        drop(claim);
    }

    #[test]
    fn who_waits_takes_over_when_the_other_one_fails() {
        let scratch = TestDir::new("blobs");
        let blobs = open(&scratch);
        let a = layer(b"a");
        let started = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            let first = scope.spawn(|| {
                blobs.complete_layer(a, &StopFlag::default(), |path| {
                    started.wait();
                    fs::write(path, "half").expect("part");
                    Err(RegistryError::Cancelled)
                })
            });
            started.wait();
            let second = blobs.complete_layer(a, &StopFlag::default(), |path| {
                assert_eq!(fs::read(path).expect("part"), b"half");
                Ok(())
            });
            assert!(second.expect("second"));
            assert!(first.join().expect("thread").is_err());
        });
        assert_eq!(blobs.present_bytes(a), 4);
    }

    #[test]
    fn who_waits_for_another_pull_can_be_stopped() {
        let scratch = TestDir::new("blobs");
        let blobs = open(&scratch);
        let a = layer(b"a");
        let stop = StopFlag::default();
        let fetched = blobs.complete_layer(a, &stop, |path| {
            let second = std::thread::scope(|scope| {
                let second =
                    scope.spawn(|| blobs.complete_layer(a, &stop, |_| panic!("under way")));
                stop.stop();
                second.join().expect("thread")
            });
            assert!(matches!(second, Err(RegistryError::Cancelled)));
            fs::write(path, "a").map_err(RegistryError::local_file_error("write", path))
        });
        assert!(fetched.expect("fetched"));
    }

    #[test]
    fn a_part_is_for_those_of_one_mind() {
        let scratch = TestDir::new("blobs");
        let blobs = open(&scratch);
        let digest = Digest::compute(b"abc");
        let mine = BlobKey::new(digest, 3, &RegistryAccess::new("registry.example", None));
        let half = |path: &Path| {
            fs::write(path, "ab").expect("part");
            Err(RegistryError::Cancelled)
        };
        assert!(
            blobs
                .complete_layer(mine, &StopFlag::default(), half)
                .is_err()
        );
        // Another registry, or another size: neither sees it nor touches it, even at the same time.
        for other in [
            BlobKey::new(digest, 3, &RegistryAccess::new("evil.example", None)),
            BlobKey::new(digest, 1, &RegistryAccess::new("registry.example", None)),
        ] {
            let claims = (
                blobs.claim_layers([mine].into_iter()),
                blobs.claim_layers([other].into_iter()),
            );
            let resumed = blobs.complete_layer(mine, &StopFlag::default(), |path| {
                assert_eq!(fs::read(path).expect("part"), b"ab");
                let beside = blobs.complete_layer(other, &StopFlag::default(), |path| {
                    assert!(!path.exists());
                    fs::write(path, "x").expect("part");
                    Err(RegistryError::Cancelled)
                });
                assert!(beside.is_err());
                Err(RegistryError::Cancelled)
            });
            assert!(resumed.is_err());
            claims.1.discard_layers();
            assert_eq!(
                (blobs.present_bytes(mine), blobs.present_bytes(other)),
                (2, 0)
            );
        }
        assert!(
            blobs
                .complete_layer(mine, &StopFlag::default(), |path| {
                    assert_eq!(fs::read(path).expect("part"), b"ab");
                    Ok(())
                })
                .expect("whole")
        );
        // A whole layer has the right digest, whoever sent it.
        let other = BlobKey::new(digest, 3, &RegistryAccess::new("evil.example", None));
        assert!(
            !blobs
                .complete_layer(other, &StopFlag::default(), |_| panic!("there"))
                .expect("there")
        );
        assert_eq!(
            blobs
                .remove_unused(NO_TIME, clock::mono_now())
                .expect("clear"),
            2
        );
        assert!(blobs.lock().is_empty());
    }

    #[test]
    fn what_is_forgotten_goes_at_the_next_start() {
        let scratch = TestDir::new("blobs");
        let a = layer(b"a");
        let blobs = open(&scratch);
        assert!(
            blobs
                .complete_layer(a, &StopFlag::default(), put(a, "a"))
                .expect("fetched")
        );
        assert_eq!(open(&scratch).present_bytes(a), 1);
        let day = 24 * 3600 * 1_000_000_000;
        let later = |days: i64| WallTime(clock::wall_now().0 + days * day);
        let reopened = |now| BlobDirectory::open(&scratch.join("pulls"), now);
        assert_eq!(
            reopened(WallTime(0)).present_bytes(a),
            1,
            "a clock that is not set"
        );
        assert_eq!(reopened(later(13)).present_bytes(a), 1);
        assert_eq!(reopened(later(15)).present_bytes(a), 0);
    }
}
