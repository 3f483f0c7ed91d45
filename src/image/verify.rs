//! Check of a store's images: is each layer still what was unpacked? Damaged images can be repaired.
//!
//! Everything is read, from the disk rather than from the kernel's cache, one layer after the other: other work on the
//! same lane comes in between. Only [`ImageVerifier::repair_image`] changes anything.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use serde::{Deserialize, Serialize};

use super::error::ImageError;
use super::record::LayerRecord;
use super::store::ImageStore;
use super::sum;
use crate::api::order::GatherExt as _;
use crate::error::error_chain;

/// A store that is being checked.
pub struct ImageVerifier {
    store: ImageStore,
    /// Layers that are still to be checked, last one first.
    todo: Vec<LayerRecord>,
    layers: usize,
    bytes: u64,
    unrecorded: usize,
    /// Damage of layers, in words, by the layer's directory.
    damaged: BTreeMap<String, String>,
}

/// Findings of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VerifyFindings {
    /// Images in the store.
    pub images: usize,
    /// Layers that were checked.
    pub layers: usize,
    /// Layers of an earlier version, without a kept sum to compare with.
    pub unrecorded: usize,
    /// Damaged images, by id.
    pub damaged: Vec<DamagedImage>,
}

/// An image that differs from what was unpacked or written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DamagedImage {
    /// Id of the image.
    pub id: String,
    /// Names of the image; may be none.
    pub names: Vec<String>,
    /// Problems in words, at least one.
    pub problems: Vec<String>,
    /// Set if only the record is wrong. A record is written again from memory.
    pub record_only: bool,
}

/// Result of repairing a damaged image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RepairResult {
    /// The record was written again.
    Rewritten,
    /// The image was removed.
    Removed,
    /// The image has come again since it was checked, and is whole now.
    Whole,
    /// A container uses the image, or another image with the damaged layer. The id is that of the image in use.
    InUse(String),
    /// The image could not be removed.
    Failed(String),
}

/// Result of a check of all images.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoreVerification {
    /// Findings of the check.
    pub found: VerifyFindings,
    /// Repair of each damaged image, in the same order; `None` where no repair was wanted.
    pub repairs: Vec<Option<RepairResult>>,
}

impl ImageVerifier {
    /// Begins with the images that are in the store now.
    #[must_use]
    pub fn new(store: ImageStore) -> Self {
        // By directory, for two layers never share one.
        let layers: BTreeMap<String, LayerRecord> = store
            .layer_records()
            .into_values()
            .map(|layer| (layer.dir.clone(), layer))
            .gather_items();
        let todo: Vec<LayerRecord> = layers.into_values().rev().collect();
        Self {
            layers: todo.len(),
            store,
            todo,
            bytes: 0,
            unrecorded: 0,
            damaged: BTreeMap::new(),
        }
    }

    /// Layers done, all of them, and the bytes in those that are done.
    #[must_use]
    pub const fn progress_counts(&self) -> (usize, usize, u64) {
        (self.layers - self.todo.len(), self.layers, self.bytes)
    }

    /// Checks the next layer; `false`: there is none. Blocks on the disk.
    pub fn check_next_layer(&mut self) -> bool {
        let Some(layer) = self.todo.pop() else {
            return false;
        };
        let mut problem = self.check_layer(&layer);
        self.bytes += layer.size_bytes;
        if problem.is_some() {
            // It may have been removed meanwhile, and another one been unpacked in its place.
            let change = self.store.lock_changes();
            let known = self.store.layer_records().remove(&layer.key);
            problem = known
                .filter(|known| known.dir == layer.dir)
                .and_then(|known| self.check_layer(&known));
            drop(change);
        }
        if let Some(problem) = problem {
            let diff_id = &layer.diff_id;
            self.damaged
                .insert(layer.dir, format!("layer {diff_id}: {problem}"));
        } else if layer.sum.is_none() {
            self.unrecorded += 1;
        }
        true
    }

    /// Checks a layer and returns its damage in words, if it has any.
    fn check_layer(&self, layer: &LayerRecord) -> Option<String> {
        let path = self.store.layers_root().join(&layer.dir);
        let root = match File::open(&path) {
            Ok(root) => OwnedFd::from(root),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return Some(format!("its directory {} is missing", layer.dir));
            }
            Err(e) => return Some(format!("cannot open {}: {e}", layer.dir)),
        };
        match (sum::compute_layer_sum(root, None), &layer.sum) {
            (Ok(found), Some(recorded)) => recorded.first_difference(&found),
            // All of it can be read: that is all that can be said.
            (Ok(_), None) => None,
            (Err(e), _) => {
                let entry = e.entry.unwrap_or_default();
                let cause = core::error::Error::source(&e.problem)
                    .map_or_else(|| e.problem.to_string(), ToString::to_string);
                Some(format!("cannot read {entry}: {cause}"))
            }
        }
    }

    /// Findings so far. Reads the records.
    #[must_use]
    pub fn collect_findings(&self) -> VerifyFindings {
        let images = self.store.list_images();
        let mut verified = VerifyFindings {
            images: images.len(),
            layers: self.layers - self.todo.len(),
            unrecorded: self.unrecorded,
            damaged: Vec::new(),
        };
        for image in &images {
            let mut problems: Vec<String> = Vec::new();
            for layer in &image.layers {
                if let Some(problem) = self.damaged.get(&layer.dir)
                    && !problems.contains(problem)
                {
                    problems.push(problem.clone());
                }
            }
            let record_only = problems.is_empty();
            if let Err(why) = self.store.check_record(image)
                && record_only
            {
                problems.push(format!("its record: {why}"));
            }
            if !problems.is_empty() {
                verified.damaged.push(DamagedImage {
                    id: image.id.clone(),
                    names: image.names.clone(),
                    problems,
                    record_only,
                });
            }
        }
        verified
    }

    /// Removes a damaged image, so that it comes again from its source; `in_use` has the ids of images that containers
    /// were made from. An image in use is kept, and so is one that shares the damaged layer with it: coming again, it
    /// would find that layer.
    pub fn repair_image(&self, image: &DamagedImage, in_use: &BTreeSet<String>) -> RepairResult {
        let done = self.try_repair(image, in_use);
        done.unwrap_or_else(|e| RepairResult::Failed(error_chain(&e)))
    }

    fn try_repair(
        &self,
        image: &DamagedImage,
        in_use: &BTreeSet<String>,
    ) -> Result<RepairResult, ImageError> {
        let _change = self.store.lock_changes();
        let Some(record) = self.store.image_by_id(&image.id) else {
            return Ok(RepairResult::Removed);
        };
        if image.record_only {
            self.store.write_record(&record)?;
            return Ok(RepairResult::Rewritten);
        }
        // A directory is named by its content: a layer that was removed meanwhile and came again has the same name.
        let again = |layer: &LayerRecord| {
            self.damaged.contains_key(&layer.dir) && self.check_layer(layer).is_some()
        };
        let damaged: BTreeSet<&String> = record
            .layers
            .iter()
            .filter(|layer| again(layer))
            .map(|layer| &layer.dir)
            .gather_items();
        if damaged.is_empty() {
            return Ok(RepairResult::Whole);
        }
        let bad = |dir: &String| damaged.contains(dir);
        let user = self.store.list_images().into_iter().find(|other| {
            let shares = |dir: &String| bad(dir) && other.layers.iter().any(|l| l.dir == *dir);
            in_use.contains(&other.id) && record.layers.iter().any(|l| shares(&l.dir))
        });
        if let Some(user) = user {
            return Ok(RepairResult::InUse(user.id.clone()));
        }
        // The note that brings the image again comes first, then the removal.
        self.store.record_lost_image(&image.id)?;
        self.store.remove_locked(&image.id, in_use)?;
        Ok(RepairResult::Removed)
    }
}

#[cfg(test)]
mod tests {
    use core::ops::ControlFlow;
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::PathBuf;

    use super::super::dropin::{DropInPoller, DropInReport, SETTLE};
    use super::super::import::{ImportLimits, ImportOptions};
    use super::super::testing::{Stream, docker_archive};
    use super::*;
    use crate::api::MonoTime;
    use crate::testing::TestDir;

    struct Bench {
        scratch: TestDir,
        store: ImageStore,
    }

    impl Bench {
        fn new() -> Option<Self> {
            if !nix::unistd::geteuid().is_root() {
                skipped!("unpacking needs root");
                return None;
            }
            let scratch = TestDir::new("verify");
            let store = ImageStore::open(&scratch.join("images")).expect("store");
            Some(Self { scratch, store })
        }

        fn import(&self, name: &str, layers: &[&[u8]]) -> String {
            let path = self.scratch.join("archive");
            fs::write(&path, docker_archive(name, layers)).expect("scratch");
            let options = ImportOptions::default();
            let go = &mut |_| ControlFlow::Continue(());
            let images = self.store.import_archive(&path, &options, go);
            images.unwrap_or_else(|e| panic!("{}", error_chain(&e)))[0]
                .id
                .clone()
        }

        fn verify(&self) -> (ImageVerifier, VerifyFindings) {
            let mut verifying = ImageVerifier::new(self.store.clone());
            while verifying.check_next_layer() {}
            let found = verifying.collect_findings();
            (verifying, found)
        }

        /// A file of the lowest layer of an image.
        fn file(&self, id: &str, name: &str) -> PathBuf {
            let dirs = self.store.layer_dirs(id).expect("layers");
            dirs.last().expect("a layer").join(name)
        }
    }

    /// A layer with everything that is summed in a way of its own.
    fn odd_layer() -> Vec<u8> {
        Stream::new()
            .dir("etc", 0o711)
            .file("etc/conf", b"first")
            // Replaced by a later entry: summed from the disk.
            .file("etc/conf", b"second")
            .file("big", &[7; 200_001])
            .hard_link("same", "big")
            .file("zeros", &[0; 70_000])
            .symlink("way", "etc")
            .pax(&[("SCHILY.xattr.user.mark", b"x")])
            .file("marked", b"m")
            .bytes()
    }

    #[test]
    fn what_was_unpacked_is_whole_and_what_changed_is_named() {
        let Some(bench) = Bench::new() else { return };
        let id = bench.import(
            "odd:1",
            &[&odd_layer(), &Stream::new().file("big", b"b").bytes()],
        );
        let other = bench.import(
            "fine:1",
            &[&Stream::new().file("big", &[7; 200_001]).bytes()],
        );
        let (_, found) = bench.verify();
        assert_eq!(found.damaged, []);
        assert_eq!((found.images, found.layers, found.unrecorded), (2, 3, 0));
        let file = |name| bench.file(&id, name);
        type Harm<'a> = &'a dyn Fn();
        for (name, says, harm, mend) in [
            (
                "a byte",
                "what is in its files",
                &(|| {
                    let mut data = fs::read(file("big")).expect("file");
                    data[100_000] ^= 1;
                    fs::write(file("big"), data).expect("harmed");
                }) as Harm<'_>,
                &(|| fs::write(file("big"), [7; 200_001]).expect("mended")) as Harm<'_>,
            ),
            (
                "a hole filled",
                "what is in its files",
                &|| {
                    let mut data = vec![0; 70_000];
                    data[69_999] = 1;
                    fs::write(file("zeros"), data).expect("harmed");
                },
                &|| {
                    let zeros = File::create(file("zeros")).expect("mended");
                    zeros.set_len(70_000).expect("mended");
                },
            ),
            (
                "an entry more",
                "files and directories",
                &|| fs::write(file("etc/new"), "").expect("harmed"),
                &|| fs::remove_file(file("etc/new")).expect("mended"),
            ),
            (
                "cut short",
                "sizes are not",
                &|| fs::write(file("etc/conf"), "secon").expect("harmed"),
                &|| fs::write(file("etc/conf"), "second").expect("mended"),
            ),
            (
                "a mode",
                "modes",
                &|| {
                    fs::set_permissions(file("etc"), fs::Permissions::from_mode(0o755))
                        .expect("harmed");
                },
                &|| {
                    fs::set_permissions(file("etc"), fs::Permissions::from_mode(0o711))
                        .expect("mended");
                },
            ),
            (
                "an attribute",
                "attributes",
                &|| {
                    let marked = File::open(file("marked")).expect("file");
                    let marked = std::os::fd::AsFd::as_fd(&marked);
                    crate::sys::xattr::set_attribute(marked, c"user.mark", b"y").expect("harmed");
                },
                &|| {
                    let marked = File::open(file("marked")).expect("file");
                    let marked = std::os::fd::AsFd::as_fd(&marked);
                    crate::sys::xattr::set_attribute(marked, c"user.mark", b"x").expect("mended");
                },
            ),
            (
                "no directory",
                "is missing",
                &|| fs::rename(file(""), bench.scratch.join("away")).expect("harmed"),
                &|| fs::rename(bench.scratch.join("away"), file("")).expect("mended"),
            ),
        ] {
            harm();
            let (_, found) = bench.verify();
            assert_eq!(found.damaged.len(), 1, "{name}: {found:?}");
            let image = &found.damaged[0];
            assert_eq!((&image.id, image.problems.len()), (&id, 1), "{name}");
            assert!(image.problems[0].contains(says), "{name}: {image:?}");
            mend();
            assert_eq!(bench.verify().1.damaged, [], "{name}, mended");
        }
        assert!(bench.store.image_by_id(&other).is_some());
    }

    #[test]
    fn what_is_damaged_goes_unless_it_is_used() {
        let Some(bench) = Bench::new() else { return };
        let shared = Stream::new().file("base", b"base").bytes();
        let top = |text: &[u8]| Stream::new().file("top", text).bytes();
        let a = bench.import("a:1", &[&shared, &top(b"a")]);
        let b = bench.import("b:1", &[&shared, &top(b"b")]);
        let c = bench.import("c:1", &[&top(b"c")]);
        fs::write(bench.file(&a, "base"), "harm").expect("harmed");
        let record = bench
            .scratch
            .join(format!("images/records/{}.json", &c["sha256:".len()..]));
        fs::write(&record, "{").expect("harmed");
        let (verifying, found) = bench.verify();
        assert_eq!(found.damaged.len(), 3, "{found:?}");
        let repair = |in_use: &[&String]| {
            let in_use: BTreeSet<String> = in_use.iter().map(|&id| id.clone()).collect();
            let mut done: Vec<(String, RepairResult)> = Vec::new();
            for image in &found.damaged {
                done.push((
                    image.names[0].clone(),
                    verifying.repair_image(image, &in_use),
                ));
            }
            done.sort_by(|a, b| a.0.cmp(&b.0));
            done.into_iter()
                .map(|(_, repair)| repair)
                .collect::<Vec<_>>()
        };
        // b alone would only find the damaged layer again.
        let kept = RepairResult::InUse(a.clone());
        assert_eq!(repair(&[&a]), [kept.clone(), kept, RepairResult::Rewritten]);
        assert_eq!(bench.store.list_images().len(), 3);
        assert_eq!(
            repair(&[&c]),
            [
                RepairResult::Removed,
                RepairResult::Removed,
                RepairResult::Rewritten
            ]
        );
        let (_, found) = bench.verify();
        assert_eq!((found.images, found.damaged), (1, Vec::new()));
        assert_eq!(
            bench.store.lost_images(),
            BTreeSet::from([a.clone(), b.clone()]),
            "somebody may have them"
        );
        // Over a restart as well, until it is there again.
        assert_eq!(bench.import("a:1", &[&shared, &top(b"a")]), a);
        let Bench { scratch, store } = bench;
        drop((store, verifying));
        let store = ImageStore::open(&scratch.join("images")).expect("store");
        assert_eq!(store.lost_images(), BTreeSet::from([b]));
    }

    #[test]
    fn what_came_again_since_it_was_checked_is_not_removed() {
        let Some(bench) = Bench::new() else { return };
        let layer = Stream::new().file("f", b"file").bytes();
        let id = bench.import("a:1", &[&layer]);
        fs::write(bench.file(&id, "f"), "harm").expect("harmed");
        let (verifying, found) = bench.verify();
        let nobody = BTreeSet::new();
        bench.store.remove_image(&id, &nobody).expect("removed");
        assert_eq!(bench.import("a:1", &[&layer]), id);
        assert_eq!(
            verifying.repair_image(&found.damaged[0], &nobody),
            RepairResult::Whole
        );
        assert!(bench.store.image_by_id(&id).is_some());
    }

    #[test]
    fn the_drop_in_directory_brings_a_damaged_image_again() {
        let Some(bench) = Bench::new() else { return };
        let files = bench.scratch.join("files");
        fs::create_dir(&files).expect("scratch");
        let layer = Stream::new().file("f", b"file").bytes();
        fs::write(files.join("a.tar"), docker_archive("a:1", &[&layer])).expect("scratch");
        let mut now = MonoTime(0);
        let mut dropin = DropInPoller::open(bench.store.clone(), files.clone());
        let mut look = |dropin: &mut DropInPoller| -> usize {
            let mut imported = 0;
            for _ in 0..2 {
                now = now + SETTLE;
                let reports = dropin
                    .scan_directory(now, &mut |_| ControlFlow::Continue(()))
                    .reports;
                imported += reports
                    .iter()
                    .filter(|r| matches!(r, DropInReport::Imported { .. }))
                    .count();
            }
            imported
        };
        assert_eq!(look(&mut dropin), 1);
        let id = bench.store.list_images()[0].id.clone();
        let (verifying, _) = bench.verify();
        fs::write(bench.file(&id, "f"), "harm").expect("harmed");
        let (damaged, found) = bench.verify();
        let repaired = damaged.repair_image(&found.damaged[0], &BTreeSet::new());
        assert_eq!(repaired, RepairResult::Removed);
        assert_eq!(look(&mut dropin), 1, "again");
        assert_eq!(bench.verify().1.damaged, []);
        assert_eq!(look(&mut dropin), 0);
        // An image that is removed on purpose does not come back by itself.
        bench
            .store
            .remove_image(&id, &BTreeSet::new())
            .expect("removed");
        assert_eq!(look(&mut dropin), 0);
        // An image that a start finds damaged comes again too.
        fs::remove_file(files.join("a.tar")).expect("scratch");
        assert_eq!(look(&mut dropin), 0);
        fs::write(files.join("a.tar"), docker_archive("a:1", &[&layer])).expect("scratch");
        assert_eq!(look(&mut dropin), 1);
        let Bench { scratch, store } = bench;
        let record = scratch.join(format!("images/records/{}.json", &id["sha256:".len()..]));
        drop((dropin, store, verifying, damaged));
        fs::write(record, "{").expect("harmed");
        let store =
            ImageStore::open_with(&scratch.join("images"), ImportLimits::default()).expect("store");
        assert!(store.list_images().is_empty());
        let mut dropin = DropInPoller::open(store.clone(), files);
        assert_eq!(look(&mut dropin), 1, "after the start");
        assert_eq!(store.list_images()[0].id, id);
    }
}
