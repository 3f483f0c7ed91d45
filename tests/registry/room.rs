//! A disk of ext4 that has room for one image: the one that nobody uses makes room for the next.

use std::fs::{self, File};
use std::process::Command;

use nix::mount::{MsFlags, mount};

use crate::host::{Agent, PATIENCE, Place};
use crate::registry::{Registry, able, layer};
use picolet::sys::clock;

/// Size of the disk.
const DISK_BYTES: u64 = 200 << 20;
/// Of an image's only layer: fetched and unpacked it is there twice.
const LAYER_BYTES: usize = 50 << 20;

/// A loop device; taken off when dropped.
struct Loop(String);

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).status();
    }
}

// EVICT-07 IGC-02
#[test]
fn an_unused_image_makes_room_for_a_pull() {
    if !able() {
        return;
    }
    let registry = Registry::start();
    for name in ["first", "second"] {
        registry.fill(name, &[layer(name, LAYER_BYTES)], &[]);
    }
    let scratch = Place::new();
    let disk = scratch.path("disk");
    File::create(&disk)
        .expect("file")
        .set_len(DISK_BYTES)
        .expect("size");
    let made = Command::new("mkfs.ext4")
        .args(["-q", "-m0"])
        .arg(&disk)
        .status();
    assert!(made.expect("mkfs.ext4").success());
    let found = Command::new("losetup")
        .args(["-f", "--show"])
        .arg(&disk)
        .output();
    let found = found.expect("losetup");
    if !found.status.success() {
        skipped!("an_unused_image_makes_room_for_a_pull: no loop device");
        return;
    }
    // Dropped before the directories: the mounts go first.
    let device = Loop(String::from_utf8_lossy(&found.stdout).trim().to_owned());
    let place = scratch;
    let root = place.path("root");
    mount(
        Some(&*device.0),
        &root,
        Some("ext4"),
        MsFlags::empty(),
        None::<&str>,
    )
    .expect("mounted");
    let document = format!(
        "mirrors:\n  registry.test:\n    endpoint: [\"http://{}\"]\n",
        registry.address
    );
    fs::write(place.path("registries.yaml"), document).expect("registries");
    let agent = Agent::start(&place);
    let pull = |name: &str| agent.cli(&["image", "pull", &format!("registry.test/{name}:1")]);
    let listed = || {
        let listed = agent.cli(&["image", "ls"]);
        String::from_utf8_lossy(&listed.stdout).into_owned()
    };
    let first = pull("first");
    assert!(
        first.status.success(),
        "{}",
        String::from_utf8_lossy(&first.stderr)
    );
    // An image is as old as its first sight, which may be that of the first try.
    let deadline = clock::mono_now() + PATIENCE;
    loop {
        let second = pull("second");
        if second.status.success() {
            break;
        }
        let said = String::from_utf8_lossy(&second.stderr).into_owned();
        let is_full =
            said.contains("no space left on device") || said.contains("not enough disk space");
        assert!(is_full, "{said}");
        assert!(clock::mono_now() < deadline, "{said}");
    }
    let left = listed();
    assert!(
        left.contains("registry.test/second") && !left.contains("registry.test/first"),
        "{left}"
    );
    drop(agent);
    drop(place);
}
