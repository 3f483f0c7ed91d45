//! Steps that are done on the store while it is recorded, and again after each cut.

use core::ops::ControlFlow;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use core::time::Duration;

use crate::api::MonoTime;
use crate::error::error_chain;
use crate::image::digest::Digest;
use crate::image::dropin::{DropInPoller, DropInReport, SETTLE};
use crate::image::error::ImageError;
use crate::image::import::{ImportLimits, ImportOptions};
use crate::image::progress::ImageProgress;
use crate::image::pull::tests::{Offer, Server, file, quick, reply};
use crate::image::pull::{PullError, PullSettings, Puller};
use crate::image::record::ImageRecord;
use crate::image::store::ImageStore;
use crate::image::testing::{Layout, Stream, config, docker_archive, gzip, zstd};
use crate::image::verify::{ImageVerifier, RepairResult};
use crate::sys::file::sync_dir;

/// A request to the store.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    /// The agent ends and starts again.
    Open,
    /// An archive is imported.
    Import(&'static str),
    /// An image gets another name.
    Tag(&'static str, &'static str),
    /// An image is removed.
    Remove(&'static str),
    /// Every image is removed but this one and pinned ones.
    PruneAllBut(&'static str),
    /// A drop-in directory is looked at.
    Look(&'static str),
    /// A drop-in directory is looked at, and no file is imported.
    LookInVain(&'static str),
    /// A repository's tag 1 is pulled.
    Pull(&'static str),
    /// The pull of it fails.
    PullInVain(&'static str),
    /// The disk damages an image's lowest layer.
    Harm(&'static str),
    /// Damaged images are removed, to be brought again.
    Repair,
    /// Layers on their way are removed, as image GC does.
    Clear,
}

/// A sequence of steps with a name.
pub(super) struct Script {
    pub(super) name: &'static str,
    pub(super) steps: &'static [Step],
}

/// All scripts that are recorded.
pub(super) const SCRIPTS: &[Script] = &[
    Script {
        name: "archives",
        steps: &[
            Step::Import("docker"),
            Step::Import("layout"),
            Step::Tag("app:1", "other:2"),
            Step::Open,
            Step::Import("bare"),
            Step::Import("pair"),
            Step::Import("docker"),
            Step::Remove("app:1"),
            Step::Remove("bare:1"),
            Step::PruneAllBut("first:1"),
        ],
    },
    Script {
        name: "bare",
        steps: &[Step::Import("bare"), Step::Remove("bare:1")],
    },
    Script {
        name: "dropin",
        steps: &[
            Step::Look("one"),
            Step::LookInVain("one"),
            Step::Look("two"),
            Step::LookInVain("two"),
            Step::Look("three"),
            Step::PruneAllBut("none"),
            Step::LookInVain("three"),
        ],
    },
    Script {
        name: "repair",
        steps: &[
            Step::Look("one"),
            Step::Harm("app:1"),
            Step::Repair,
            Step::Look("one"),
            Step::LookInVain("one"),
        ],
    },
    Script {
        name: "pulls",
        steps: &[
            Step::PullInVain("cut"),
            Step::Open,
            Step::Pull("app"),
            Step::Pull("next"),
            Step::Remove("app"),
            Step::PullInVain("cut"),
            Step::Clear,
            Step::Pull("app"),
        ],
    },
];

/// Archives and a registry, made once for a script.
pub(super) struct Supplies {
    pub(super) dir: PathBuf,
    pub(super) registry: String,
    _server: Option<Server>,
}

/// A layer with everything that costs the store an operation of its own.
fn base() -> Vec<u8> {
    Stream::new()
        .dir("etc", 0o711)
        .file("etc/conf", b"one")
        .dir("old", 0o755)
        .file("old/a", b"a")
        .file("big", &[7; 9000])
        .hard_link("same", "big")
        .symlink("way", "etc")
        .bytes()
}

/// A layer that leans on the one below, and hides some of it.
fn upper() -> Vec<u8> {
    Stream::new()
        .file("etc/more", b"two")
        .file("old/.wh..wh..opq", b"")
        .file("old/b", b"b")
        .file(".wh.big", b"")
        .bytes()
}

impl Supplies {
    /// Makes them below `dir`.
    pub(super) fn make(dir: &Path) -> Self {
        let (base, upper) = (base(), upper());
        let docker = docker_archive("app:1", &[&base, &upper]);
        let packed = [gzip(&base), zstd(&file("top", b"three"))];
        let plain = file("top", b"three");
        let mut layout = Layout::new();
        let image = layout.image(
            &config(&[&base, &plain], "layout"),
            &[&packed[0], &packed[1]],
        );
        layout.name(image, "docker.io/library/app:1");
        let mut pair = Layout::new();
        for (name, text) in [("first:1", b"first".as_slice()), ("second:1", b"second")] {
            let layer = file("name", text);
            let image = pair.image(&config(&[&base, &layer], name), &[&base, &layer]);
            pair.name(image, &format!("docker.io/library/{name}"));
        }
        let bare = docker_archive("bare:1", &[]);
        let archives = dir.join("archives");
        fs::create_dir_all(&archives).expect("scratch");
        for (name, data) in [
            ("docker", &docker),
            ("layout", &gzip(&layout.tar())),
            ("pair", &pair.tar()),
            ("bare", &bare),
        ] {
            fs::write(archives.join(name), data).expect("scratch");
        }
        // What `b.tar` is stays the same from one directory to the next.
        for (name, files) in [
            ("one", &[("a.tar", "docker"), ("b.tar", "pair")][..]),
            ("two", &[("a.tar", "layout"), ("b.tar", "pair")]),
            ("three", &[("a.tar", "layout")]),
        ] {
            fs::create_dir_all(dir.join(name)).expect("scratch");
            for (name_in, archive) in files {
                fs::hard_link(archives.join(archive), dir.join(name).join(name_in))
                    .expect("scratch");
            }
        }
        Self {
            dir: dir.to_owned(),
            registry: String::new(),
            _server: None,
        }
    }

    /// Adds a registry that has `app`, `next` on the same base, and `cut`, whose layers never arrive whole.
    pub(super) fn with_registry(mut self) -> Self {
        let noise: Vec<u8> = (0_u32..20_000)
            .map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes()[0])
            .collect();
        let base = file("noise", &noise);
        let app = Offer::of(&[base.clone(), file("app", b"app")]);
        let next = Offer::of(&[base, file("next", b"next")]);
        let server = Server::start(move |seen| {
            if seen.path.contains("/next/") {
                return next.answer(seen);
            }
            let mut answer = app.answer(seen);
            if seen.path.contains("/cut/") && app.is_layer(&seen.path) {
                if seen.range.is_some() {
                    return reply(404, "");
                }
                answer.cut = Some(answer.body.len() / 2);
            }
            answer
        });
        self.registry = server.address.to_string();
        self._server = Some(server);
        self
    }

    /// Supplies that another process made.
    pub(super) fn of(dir: &Path, registry: &str) -> Self {
        Self {
            dir: dir.to_owned(),
            registry: registry.to_owned(),
            _server: None,
        }
    }
}

/// A store at work.
pub(super) struct Worker<'a> {
    supplies: &'a Supplies,
    root: PathBuf,
    /// Always there but while it is opened again.
    open: Option<(ImageStore, Puller)>,
}

impl<'a> Worker<'a> {
    pub(super) fn open(supplies: &'a Supplies, root: &Path) -> Result<Self, ImageError> {
        let limits = ImportLimits {
            reserve_bytes: 0,
            ..ImportLimits::default()
        };
        let store = loop {
            match ImageStore::open_with(root, limits.clone()) {
                // The thread of a pull that has told its outcome is about to end.
                Err(ImageError::Locked(_)) => thread::yield_now(),
                store => break store?,
            }
        };
        let puller = Puller::new(store.clone(), quick(PullSettings::default()));
        Ok(Self {
            supplies,
            root: root.to_owned(),
            open: Some((store, puller)),
        })
    }

    pub(super) fn store(&self) -> &ImageStore {
        &self.open.as_ref().expect("open").0
    }

    /// Does a step. What the step removes or names may be gone or named already.
    pub(super) fn step(&mut self, step: Step) {
        let find =
            |worker: &Self, name: &str| worker.store().resolve_reference(name).expect("a name");
        match step {
            Step::Open => {
                self.open = None;
                *self = Self::open(self.supplies, &self.root).expect("opened again");
            }
            Step::Import(name) => {
                let path = self.supplies.dir.join("archives").join(name);
                let options = ImportOptions::default();
                let imported = self.store().import_archive(&path, &options, &mut go);
                imported.unwrap_or_else(|e| panic!("{name}: {}", error_chain(&e)));
            }
            Step::Tag(name, new) => {
                let image = find(self, name).expect("it is there");
                self.store().tag_image(&image.id, new).expect("tagged");
            }
            Step::Remove(name) => {
                let name = if name.contains(':') {
                    name.to_owned()
                } else {
                    self.image(name)
                };
                if let Some(image) = find(self, &name) {
                    let removed = self.store().remove_image(&image.id, &BTreeSet::new());
                    removed.expect("removed");
                }
            }
            Step::PruneAllBut(name) => {
                let used = find(self, name).map(|image| image.id.clone());
                let pruned = self.store().prune_images(&used.into_iter().collect());
                pruned.expect("pruned");
            }
            Step::Look(dir) => drop(self.look(dir)),
            Step::LookInVain(dir) => assert_eq!(self.look(dir), [""; 0], "imported again"),
            Step::Pull(name) => self.pull(name).unwrap_or_else(|e| panic!("{name}: {e}")),
            Step::PullInVain(name) => drop(self.pull(name).expect_err("it is cut")),
            Step::Harm(name) => {
                let image = find(self, name).expect("it is there");
                let dirs = self.store().layer_dirs(&image.id).expect("layers");
                let file = dirs.last().expect("a layer").join("harm");
                fs::write(&file, "").expect("harmed");
                sync_dir(&file).expect("harmed");
                sync_dir(file.parent().expect("the layer")).expect("harmed");
            }
            Step::Repair => {
                let mut verifying = ImageVerifier::new(self.store().clone());
                while verifying.check_next_layer() {}
                for image in verifying.collect_findings().damaged {
                    let repaired = verifying.repair_image(&image, &BTreeSet::new());
                    assert_eq!(repaired, RepairResult::Removed);
                }
            }
            Step::Clear => drop(
                self.puller()
                    .remove_unused_layers(Duration::ZERO)
                    .expect("cleared"),
            ),
        }
    }

    fn puller(&self) -> &Puller {
        &self.open.as_ref().expect("open").1
    }

    fn image(&self, name: &str) -> String {
        format!("{}/{name}/x:1", self.supplies.registry)
    }

    fn pull(&self, name: &str) -> Result<(), PullError> {
        let image = self.image(name);
        smol::block_on(self.puller().pull_image(&image, None)).map(drop)
    }

    /// Looks at a drop-in directory whose files have settled. Returns those that were imported.
    fn look(&self, dir: &str) -> Vec<String> {
        let mut dropin = DropInPoller::open(self.store().clone(), self.supplies.dir.join(dir));
        let mut imported = Vec::new();
        for now in [MonoTime(1000), MonoTime(1000) + SETTLE] {
            for report in dropin.scan_directory(now, &mut go).reports {
                match report {
                    DropInReport::Imported { file, .. } => imported.push(file),
                    DropInReport::Pulled { wanted, .. } => panic!("there is no list: {wanted:?}"),
                    DropInReport::Failed { error, .. } => panic!("{error}"),
                }
            }
        }
        imported
    }
}

fn go(_: ImageProgress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// All images, without their sequence numbers, which differ between two ways to the same state.
pub(super) fn images(store: &ImageStore) -> Vec<ImageRecord> {
    let list = store.list_images();
    list.iter()
        .map(|image| ImageRecord {
            sequence: 0,
            ..(**image).clone()
        })
        .collect()
}

/// Returns true if a file among the layers on their way may be there after a cut: a growing one, or one with the digest
/// of its name.
pub(super) fn may_arrive(name: &str, data: &[u8]) -> bool {
    match name.strip_suffix(".part") {
        Some(part) => part
            .split_once('-')
            .is_some_and(|(hex, _)| Digest::from_hex(hex).is_some()),
        None => name == Digest::compute(data).hex(),
    }
}

/// Returns true for root; else skips with a message: layers hold files of root.
pub(super) fn able() -> bool {
    let able = nix::unistd::geteuid().is_root();
    if !able {
        skipped!("unpacking needs root");
    }
    able
}
