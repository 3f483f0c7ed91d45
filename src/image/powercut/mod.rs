//! Power cuts at every operation of the store, without cutting any power.
//!
//! ```text
//! workload (a process of its own) ──system calls──▶ record ─▶ operations, marks
//! for each operation, for each way in which a disk may lose what was not synced:
//!   disk as it is then ─▶ Store::open ─▶ whole? nothing lost that was told? nothing left over? does the step work now?
//! ```
//!
//! The operations are the ones that the kernel was asked for ([`record`]), not what the store says of itself. A mark is
//! made when a call has returned: what it did was told to somebody, and must be there from then on.

mod disk;
mod record;
mod work;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use self::disk::{Cut, Disk, Kind, Name, Tree};
use self::record::{Mark, Recorded, record};
use self::work::{SCRIPTS, Script, Supplies, Worker, able, images, may_arrive};
use super::record::ImageRecord;
use super::store::ImageStore;
use crate::error::error_chain;

/// Directory of the store on the recorded disk.
const STORE: &str = "images";
/// Ways in which operations that no sync covers are lost at random.
const DRAWS: u64 = 6;
/// Operations that no sync covers of which each is lost alone.
const ALONE: usize = 12;

/// A directory in memory, removed at the end: the disk itself is not what is tested.
struct Memory(PathBuf);

impl Memory {
    fn new(name: &str) -> Self {
        let base = ["/dev/shm", "/tmp"].map(Path::new);
        let base = base.iter().find(|p| p.is_dir()).expect("a directory");
        let path = base.join(format!("picolet-powercut-{}-{name}", std::process::id()));
        fs::create_dir_all(path.join("disk")).expect("scratch");
        Self(path)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The process that is recorded: does a script and marks the end of each step. Its task is on standard input: script,
/// directory, registry.
#[ignore = "is started by the tests of power cuts"]
#[test]
fn workload() {
    let mut task = String::new();
    std::io::stdin().lock().read_line(&mut task).expect("task");
    let mut words = task.split_whitespace();
    let (Some(name), Some(dir)) = (words.next(), words.next()) else {
        return;
    };
    let script = SCRIPTS.iter().find(|s| s.name == name).expect("a script");
    let dir = Path::new(dir);
    let supplies = Supplies::of(dir, words.next().unwrap_or(""));
    let mut marks = OpenOptions::new()
        .append(true)
        .open(dir.join("marks"))
        .expect("marks");
    let mut mark = |worker: &Worker<'_>| {
        let text = serde_json::to_vec(&images(worker.store())).expect("json");
        marks.write_all(&text).expect("marked");
    };
    let mut worker = Worker::open(&supplies, &dir.join("disk").join(STORE)).expect("opened");
    mark(&worker);
    for step in script.steps {
        worker.step(*step);
        mark(&worker);
    }
}

fn run(name: &str) {
    if !able() {
        return;
    }
    let script = SCRIPTS.iter().find(|s| s.name == name).expect("a script");
    let memory = Memory::new(name);
    let mut supplies = Supplies::make(&memory.0);
    if name == "pulls" {
        supplies = supplies.with_registry();
    }
    File::create(memory.0.join("marks")).expect("scratch");
    let recorded = recorded(script, &memory.0, &supplies);
    assert_eq!(recorded.marks.len(), script.steps.len() + 1);
    let mut trial = Trial {
        script,
        recorded: &recorded,
        supplies: &supplies,
        dir: memory.0.join("state"),
        tried: 0,
        repaired: BTreeSet::new(),
    };
    trial.every_cut();
    eprintln!(
        "{name}: {} operations, {} disks, {} different ones after the repair",
        recorded.log.ops.len(),
        trial.tried,
        trial.repaired.len()
    );
}

fn recorded(script: &Script, dir: &Path, supplies: &Supplies) -> Recorded {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command
        .args(["--exact", "image::powercut::workload", "--ignored"])
        .args(["--nocapture", "--test-threads=1"])
        .stdout(Stdio::null());
    let task = format!("{} {} {}", script.name, dir.display(), supplies.registry);
    record(command, &task, &dir.join("disk"), &dir.join("marks"))
}

/// State of the store as told at a mark.
struct Told<'a> {
    images: BTreeMap<String, ImageRecord>,
    names: BTreeMap<String, String>,
    tree: &'a Tree,
}

impl<'a> Told<'a> {
    fn at(mark: &'a Mark) -> Self {
        let list: Vec<ImageRecord> = serde_json::from_str(&mark.text).expect("a mark");
        let names = list.iter().flat_map(|image| {
            let names = image.names.iter().chain(&image.digests);
            names.map(|name| (name.clone(), image.id.clone()))
        });
        Self {
            names: names.collect(),
            images: list.iter().map(|i| (i.id.clone(), i.clone())).collect(),
            tree: &mark.tree,
        }
    }
}

struct Trial<'a> {
    script: &'a Script,
    recorded: &'a Recorded,
    supplies: &'a Supplies,
    dir: PathBuf,
    tried: usize,
    /// Step, and what the store was after its repair.
    repaired: BTreeSet<(usize, Tree)>,
}

impl Trial<'_> {
    fn every_cut(&mut self) {
        let marks = &self.recorded.marks;
        let mut cuts = vec![
            Cut::Nothing,
            Cut::Torn,
            Cut::Unsynced,
            Cut::AllButLast,
            Cut::Data,
            Cut::Zeros,
        ];
        for (step, pair) in marks.windows(2).enumerate() {
            let (before, after) = (Told::at(&pair[0]), Told::at(&pair[1]));
            let mut seen = BTreeSet::new();
            for n in pair[0].at..=pair[1].at {
                self.arrived_is_kept(n);
                let draws = (0..DRAWS).map(|draw| Cut::Some(n as u64 * DRAWS + draw));
                cuts.truncate(6);
                cuts.extend(draws);
                let alone = self.recorded.log.unsynced(n, ALONE);
                cuts.extend(alone.into_iter().map(Cut::Without));
                // At the step's own mark it has been told.
                let before = if n == pair[1].at { &after } else { &before };
                for cut in &cuts {
                    let disk = self.recorded.log.after(n, *cut);
                    if seen.insert((n == pair[1].at, disk.tree(0))) {
                        let place = format!(
                            "{} cut at operation {n} of step {step} {:?}, {cut:?}; the last ones: {:#?}",
                            self.script.name,
                            self.script.steps[step],
                            self.recorded.log.ops[n.saturating_sub(6)..n]
                                .iter()
                                .map(|op| op.brief())
                                .collect::<Vec<_>>(),
                        );
                        self.one(&disk, step, before, &after, &place);
                    }
                }
            }
        }
    }

    /// Bytes of a layer on its way that were synced can be found again: the names that lead to them are on disk as well.
    fn arrived_is_kept(&self, n: usize) {
        let log = &self.recorded.log;
        let (most, least) = (log.after(n, Cut::Nothing), log.after(n, Cut::Unsynced));
        let synced: BTreeSet<disk::Id> = log.ops[..n]
            .iter()
            .filter_map(|op| match op {
                disk::Op::Sync { id, .. } => Some(*id),
                _ => None,
            })
            .collect();
        for id in synced {
            let arrives = |path: &Name| path.starts_with(b"images/pulls/blobs/sha256/");
            if most.path_of(id).is_some_and(|path| arrives(&path)) {
                assert!(
                    least.path_of(id).is_some_and(|path| arrives(&path)),
                    "{}: what arrived and was synced is lost at operation {n}",
                    self.script.name
                );
            }
        }
    }

    /// Tries one disk: the store on it is repaired, whole, and goes on.
    fn one(&mut self, disk: &Disk, step: usize, before: &Told<'_>, after: &Told<'_>, place: &str) {
        self.tried += 1;
        let _ = fs::remove_dir_all(&self.dir);
        fs::create_dir_all(&self.dir).expect("scratch");
        disk::write(&disk.tree(0), &self.dir).expect("scratch");
        let root = self.dir.join(STORE);
        let open = |why: &str| {
            Worker::open(self.supplies, &root)
                .unwrap_or_else(|e| panic!("{place}: {why}: {}", error_chain(&e)))
        };
        let mut worker = open("it does not open");
        let found = images(worker.store());
        whole(worker.store(), before, after, place);
        let tree = disk::read(&root).expect("the store");
        // What arrived costs nothing a second time.
        let arrived =
            |tree: &Tree, root: &str| below(tree, format!("{root}pulls/blobs/sha256").as_bytes());
        let (was, is) = (disk.tree(0), arrived(&tree, ""));
        let was = arrived(&was, "images/");
        assert!(
            was.iter().all(|one| is.contains(one)),
            "{place}: what arrived was removed"
        );
        tidy(&tree, &found, self.script.name == "repair", place);
        if self.repaired.insert((step, tree)) {
            drop(worker);
            worker = open("it does not open again");
            assert_eq!(images(worker.store()), found, "{place}: opened again");
            worker.step(self.script.steps[step]);
            let ids: Vec<ImageRecord> = after.images.values().cloned().collect();
            assert_eq!(images(worker.store()), ids, "{place}: done again");
            whole(worker.store(), after, after, place);
            drop(worker);
            let found = images(open("it does not open after the step").store());
            assert_eq!(found, ids, "{place}: opened after the step");
        }
    }
}

/// Asserts that all told images and names are kept, and that each image is whole.
fn whole(store: &ImageStore, before: &Told<'_>, after: &Told<'_>, place: &str) {
    for id in before.images.keys() {
        let kept = !after.images.contains_key(id) || store.image_by_id(id).is_some();
        assert!(kept, "{place}: image {id} is lost");
    }
    for (name, id) in &before.names {
        let Some(next) = after.names.get(name) else {
            continue;
        };
        let found = store
            .resolve_reference(name)
            .expect("a name")
            .map(|i| i.id.clone());
        assert!(
            found.as_ref().is_some_and(|f| f == id || f == next),
            "{place}: {name} leads to {found:?}"
        );
    }
    let layers = disk::read(&store.layers_root()).expect("layers");
    for image in images(store) {
        let told: Vec<(&ImageRecord, &Tree)> = [before, after]
            .into_iter()
            .filter_map(|told| Some((told.images.get(&image.id)?, told.tree)))
            .collect();
        assert!(!told.is_empty(), "{place}: {} comes from nowhere", image.id);
        let names = |of: fn(&ImageRecord) -> &Vec<String>| {
            let known = |name| told.iter().any(|(t, _)| of(t).contains(name));
            of(&image).iter().all(known)
        };
        assert!(
            names(|i| &i.names) && names(|i| &i.digests),
            "{place}: {:?} {:?}",
            image.names,
            image.digests
        );
        let right = told.iter().any(|(record, tree)| {
            let same = record.layers == image.layers && record.config == image.config;
            let layers_right = image.layers.iter().all(|layer| {
                let recorded = below(tree, format!("{STORE}/layers/{}", layer.dir).as_bytes());
                below(&layers, layer.dir.as_bytes()) == recorded
            });
            same && layers_right
        });
        assert!(right, "{place}: {} is not whole", image.id);
    }
}

/// The entry called `path` and what is in it.
fn below(tree: &Tree, path: &[u8]) -> Vec<(Name, disk::Shape)> {
    tree.iter()
        .filter_map(|(name, shape)| {
            let rest = name.strip_prefix(path)?;
            matches!(rest.first(), None | Some(b'/')).then(|| (rest.to_vec(), shape.clone()))
        })
        .collect()
}

/// Asserts that the store has no file that does not belong there.
fn tidy(tree: &Tree, images: &[ImageRecord], noted: bool, place: &str) {
    let layers: BTreeSet<&str> = images
        .iter()
        .flat_map(|i| &i.layers)
        .map(|l| l.dir.as_str())
        .collect();
    for (path, shape) in tree {
        let text = String::from_utf8_lossy(path);
        let parts: Vec<&str> = text.split('/').collect();
        let belongs = match parts[..] {
            ["lock" | "dropin.json"] => shape.kind == Kind::File,
            // A note is written before an image is removed, and stays until it has come again.
            ["lost", _] => noted,
            ["records" | "layers" | "lost" | "staging" | "pulls"] | ["layers", "empty"] => true,
            ["pulls", "blobs"] | ["pulls", "blobs", "sha256"] => true,
            ["records", file] => images
                .iter()
                .any(|i| i.id["sha256:".len()..] == *file.trim_end_matches(".json")),
            ["layers", dir, ..] => layers.contains(dir),
            ["pulls", "blobs", "sha256", file] => may_arrive(file, &shape.data),
            _ => false,
        };
        assert!(belongs, "{place}: {text} was left");
    }
}

#[test]
fn imports_from_archives() {
    // IMG-04
    run("archives");
}

#[test]
fn an_image_without_layers() {
    run("bare");
}

#[test]
fn the_memory_of_the_drop_in_directory() {
    run("dropin");
}

#[test]
fn damaged_images_that_are_removed_and_come_again() {
    run("repair");
}

#[test]
fn pulls_and_what_arrived() {
    run("pulls");
}
