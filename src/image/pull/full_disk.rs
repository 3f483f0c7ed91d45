//! Pulls to a disk that is full, fills up, or cannot be written.

use core::ops::ControlFlow;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;
use std::{fs, iter};

use nix::mount::MsFlags;

use super::tests::{Offer, Server, file, quick};
use super::*;
use crate::error::error_chain;
use crate::image::error::{ImageError, ImageProblem};
use crate::image::import::{ImportLimits, ImportOptions};
use crate::image::testing::docker_archive;
use crate::sys::mount;
use crate::testing::TestDir;

/// Attempts while the disk is busy. A disk that stays busy fails the test.
const MAX_BUSY: usize = 10_000;

/// A small disk of a test, removed at its end.
struct Disk {
    scratch: TestDir,
}

impl Disk {
    fn new(bytes: u64) -> Option<Self> {
        if !nix::unistd::geteuid().is_root() {
            skipped!("mounting needs root");
            return None;
        }
        let scratch = TestDir::new("full-disk");
        let disk = Self { scratch };
        fs::create_dir(disk.path()).expect("scratch");
        mount::mount_tmpfs(&disk.path(), Some(bytes), 0o755, MsFlags::empty()).expect("tmpfs");
        Some(disk)
    }

    fn path(&self) -> PathBuf {
        self.scratch.join("disk")
    }

    /// A child that another test forks may hold files of this disk open until it executes its program. The disk is busy
    /// for that moment.
    fn remount(&self, how: &str) {
        let remount = || {
            let mut mount = Command::new("mount");
            mount.args(["-o", &format!("remount,{how}")]);
            mount.arg(self.path()).output().expect("mount")
        };
        let mut tries = iter::repeat_with(remount).take(MAX_BUSY);
        let last = tries.find(|done| {
            thread::yield_now();
            !String::from_utf8_lossy(&done.stderr).contains("busy")
        });
        let done = last.expect("it is not busy for ever");
        assert!(done.status.success(), "{how}: {done:?}");
    }

    fn store(&self) -> ImageStore {
        self.store_with(0)
    }

    /// Opens the store with `reserve_bytes` that stay free.
    fn store_with(&self, reserve_bytes: u64) -> ImageStore {
        let limits = ImportLimits {
            reserve_bytes,
            ..ImportLimits::default()
        };
        loop {
            match ImageStore::open_with(&self.path().join("images"), limits.clone()) {
                // The thread of the last pull is about to end.
                Err(ImageError::Locked(_)) => thread::yield_now(),
                store => return store.unwrap_or_else(|e| panic!("{}", error_chain(&e))),
            }
        }
    }

    /// Names and sizes below a directory of the store.
    fn files(&self, dir: &str) -> Vec<(String, u64)> {
        let list = fs::read_dir(self.path().join("images").join(dir)).expect("directory");
        let mut files: Vec<(String, u64)> = list
            .map(|entry| {
                let entry = entry.expect("entry");
                let size = entry.metadata().expect("entry").size();
                (entry.file_name().into_string().expect("utf-8"), size)
            })
            .collect();
        files.sort();
        files
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = mount::unmount(&self.path());
    }
}

fn puller(store: &ImageStore) -> Puller {
    Puller::new(store.clone(), quick(PullSettings::default()))
}

fn pull(puller: &Puller, server: &Server) -> PullOutcome {
    let image = format!("{}/team/app:1", server.address);
    smol::block_on(puller.pull_image(&image, None))
}

/// Requests for layers of an offer.
fn asked(server: &Server, offer: &Offer) -> usize {
    let seen = server.seen();
    seen.iter().filter(|s| offer.is_layer(&s.path)).count()
}

#[test]
fn what_was_fetched_stays_when_there_is_no_room_to_unpack_it() {
    // IMG-08
    let Some(disk) = Disk::new(1 << 20) else {
        return;
    };
    let offer = Offer::large(300_000);
    let served = offer.clone();
    let server = Server::start(move |seen| served.answer(seen));
    let store = disk.store();
    let puller = puller(&store);
    let error = pull(&puller, &server).expect_err("no room");
    // Its waiting reason is ErrImagePull.
    assert!(
        matches!(&error, PullError::Full(why) if why.contains("not enough disk space")),
        "{error}"
    );
    assert!(store.list_images().is_empty());
    assert_eq!(disk.files("staging"), []);
    assert_eq!(disk.files("records"), []);
    assert_eq!(disk.files("pulls/blobs/sha256").len(), 2, "kept");
    let before = asked(&server, &offer);
    // The next attempt has room, and goes on from there.
    disk.remount("size=8m");
    let pulled = pull(&puller, &server).expect("pulled");
    assert!(store.image_by_id(&pulled).is_some());
    assert_eq!(asked(&server, &offer), before, "no layer was asked for");
    assert_eq!(disk.files("pulls/blobs/sha256"), []);
}

#[test]
fn too_little_room_is_told_before_anything_is_fetched() {
    let Some(disk) = Disk::new(256 << 10) else {
        return;
    };
    let offer = Offer::large(300_000);
    let served = offer.clone();
    let server = Server::start(move |seen| served.answer(seen));
    let store = disk.store();
    let error = pull(&puller(&store), &server).expect_err("no room");
    assert!(
        matches!(&error, PullError::Full(why) if why.starts_with("no space left on device")),
        "{error}"
    );
    assert_eq!(asked(&server, &offer), 0);
    assert_eq!(disk.files("pulls/blobs/sha256"), []);
}

#[test]
fn a_disk_that_fills_up_meanwhile_costs_nothing_that_arrived() {
    // IMG-08
    let Some(disk) = Disk::new(4 << 20) else {
        return;
    };
    let offer = Offer::large(300_000);
    let (served, ballast) = (offer.clone(), disk.path().join("ballast"));
    let full = Arc::new(Mutex::new(false));
    let (fill, is_full) = (ballast.clone(), Arc::clone(&full));
    let server = Server::start(move |seen| {
        let mut full = is_full.lock().expect("full");
        if served.is_layer(&seen.path) && !*full {
            *full = true;
            fill_up(&fill);
        }
        served.answer(seen)
    });
    let store = disk.store();
    let puller = puller(&store);
    let error = pull(&puller, &server).expect_err("it is full");
    assert!(
        matches!(&error, PullError::Full(why) if why.contains("No space left on device")),
        "{error}"
    );
    assert!(store.list_images().is_empty());
    assert_eq!(disk.files("staging"), []);
    let parts = disk.files("pulls/blobs/sha256");
    let kept: u64 = parts.iter().map(|(_, size)| size).sum();
    assert!(kept > 0, "what arrived is kept");
    // A file that is still being written would keep its room.
    assert!(*full.lock().expect("full"));
    fs::remove_file(&ballast).expect("room");
    let before = server.seen().len();
    let pulled = pull(&puller, &server).expect("pulled");
    assert!(store.image_by_id(&pulled).is_some());
    let resumed: u64 = server.seen()[before..]
        .iter()
        .filter(|s| offer.is_layer(&s.path))
        .filter_map(|s| s.range)
        .map(|from| from as u64)
        .sum();
    let whole: u64 = parts
        .iter()
        .filter(|(name, _)| !name.ends_with(".part"))
        .map(|(_, size)| size)
        .sum();
    assert_eq!(resumed + whole, kept, "nothing was fetched twice");
    assert_eq!(disk.files("pulls/blobs/sha256"), []);
}

#[test]
fn what_others_write_meanwhile_counts() {
    const MIB: u64 = 1 << 20;
    let Some(disk) = Disk::new(12 * MIB) else {
        return;
    };
    let offer = Offer::large(3 << 19);
    let (served, ballast) = (offer.clone(), disk.path().join("ballast"));
    let server = Server::start(move |seen| {
        if served.is_layer(&seen.path) && !ballast.exists() {
            fs::write(&ballast, vec![1; 8 << 20]).expect("room");
        }
        served.answer(seen)
    });
    // At first 4 MiB may be used. Then none may: only 4 MiB are free, and 8 have to stay free.
    let store = disk.store_with(8 * MIB);
    let error = pull(&puller(&store), &server).expect_err("no room");
    assert!(
        matches!(&error, PullError::Full(why) if why.contains("no space left on device")),
        "{error}"
    );
    let arrived: u64 = disk.files("pulls/blobs/sha256").iter().map(|f| f.1).sum();
    assert!(arrived < 2 * MIB, "{arrived}");
}

#[test]
fn what_others_write_while_it_is_unpacked_counts() {
    const MIB: u64 = 1 << 20;
    let Some(disk) = Disk::new(24 * MIB) else {
        return;
    };
    let store = disk.store_with(4 * MIB);
    let archive = disk.scratch.join("archive.tar");
    let layer = file("a", &vec![7; 12 << 20]);
    fs::write(&archive, docker_archive("a:1", &[&layer])).expect("archive");
    let ballast = disk.path().join("ballast");
    // 20 MiB may be used. After the first 4 another program writes 14.
    let mut tick = |_| {
        if !ballast.exists() {
            fs::write(&ballast, vec![1; 14 << 20]).expect("room");
        }
        ControlFlow::Continue(())
    };
    let error = store
        .import_archive(&archive, &ImportOptions::default(), &mut tick)
        .expect_err("no room");
    let ImageError::Import { source, .. } = &error else {
        panic!("{}", error_chain(&error));
    };
    assert!(matches!(**source, ImageProblem::NoSpace { .. }), "{source}");
    assert!(error.is_transient() && store.list_images().is_empty());
    assert_eq!(disk.files("staging"), []);
    // With enough room the import succeeds.
    fs::remove_file(&ballast).expect("room");
    let mut go = |_| ControlFlow::Continue(());
    let imported = store.import_archive(&archive, &ImportOptions::default(), &mut go);
    assert_eq!(imported.expect("imported").len(), 1);
}

/// Fills the disk except for some pages.
fn fill_up(path: &Path) {
    const LEFT: usize = 128 << 10;
    let mut data = vec![1; 4 << 20];
    // Writes as much as there is room for, and then fails.
    let _ = fs::write(path, &data);
    let length = fs::metadata(path).expect("ballast").size();
    data.truncate(usize::try_from(length).expect("small").saturating_sub(LEFT));
    fs::write(path, &data).expect("ballast");
}

#[test]
fn images_on_a_disk_that_cannot_be_written_can_be_used() {
    let Some(disk) = Disk::new(8 << 20) else {
        return;
    };
    let offer = Offer::small();
    let server = Server::start(move |seen| offer.answer(seen));
    let store = disk.store();
    let id = pull(&puller(&store), &server).expect("pulled");
    drop(store);
    // Files that an interrupted import leaves.
    let left = disk.path().join("images/staging/l0");
    fs::create_dir(&left).expect("left");
    let orphan = disk.path().join("images/layers/0123456789abcdef");
    fs::create_dir(&orphan).expect("left");
    disk.remount("ro");
    let store = disk.store();
    let dirs = store.layer_dirs(&id).expect("layers");
    assert!(dirs.iter().any(|dir| dir.join("a").exists()));
    let other = Offer::large(1000);
    let served = other.clone();
    let server = Server::start(move |seen| served.answer(seen));
    let reader = puller(&store);
    let error = pull(&reader, &server).expect_err("it cannot be written");
    assert!(
        matches!(&error, PullError::Failed(why) if why.contains("Read-only file system")),
        "{error}"
    );
    assert_eq!(store.list_images().len(), 1);
    drop((reader, store));
    disk.remount("rw");
    let store = disk.store();
    assert!(
        !left.exists() && !orphan.exists(),
        "repaired when it can be"
    );
    pull(&puller(&store), &server).expect("pulled");
}
