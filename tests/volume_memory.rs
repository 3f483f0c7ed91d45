//! What a volume that a pod filled costs the agent: memory while the volume is given to a group (fsGroup).
//!
//! A process of its own, because peaks of memory are told of processes. Needs root and the right to mount; says so and
//! passes without them.

#[macro_use]
#[path = "common/skipped.rs"]
mod skipped;

use std::fs;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};

use picolet::api::PodUid;
use picolet::volume::{PodVolume, PodVolumes, VolumeSource, Volumes};

/// Most that the process may grow by while a volume is walked, KiB; no matter how many names a directory has.
const GROWTH_KIB: u64 = 1024;
/// Bytes of each name.
const NAME_BYTES: usize = 200;
/// Group of the volume.
const GROUP: u32 = 4321;

// VOL-21
#[test]
fn a_directory_of_many_names() {
    walks(100_000);
}

/// The measured run: half a gigabyte of the kernel's memory, and half a minute.
#[test]
#[ignore = "a million names"]
fn a_directory_of_a_million_names() {
    walks(1_000_000);
}

fn walks(names: usize) {
    let Some(scratch) = Scratch::new() else {
        return;
    };
    let disk = scratch.0.join("disk");
    fs::create_dir(&disk).expect("directory");
    let first = disk.join("first");
    fs::write(&first, "").expect("file");
    for n in 1..names {
        fs::hard_link(&first, disk.join(format!("{n:0NAME_BYTES$}"))).expect("name");
    }
    let volumes = Volumes::new(&scratch.0.join("root")).expect("root");
    let pod = PodVolumes {
        uid: PodUid::new("0f0e0d0c-0000-4000-8000-000000000001"),
        fs_group: Some(GROUP),
        volumes: vec![PodVolume {
            name: "v".into(),
            source: VolumeSource::Local {
                name: "pv".into(),
                path: disk.display().to_string(),
                read_only: false,
            },
            nested: Vec::new(),
        }],
        ..PodVolumes::default()
    };
    // Peaks count from here.
    fs::write("/proc/self/clear_refs", "5").expect("clear_refs");
    let before = kib("VmRSS:");
    volumes.set_up_volumes(&pod).into_result().expect("set up");
    let peak = kib("VmHWM:");
    println!("{names} names: {before} KiB before, at most {peak} KiB");
    assert!(
        peak <= before + GROWTH_KIB,
        "{names} names: from {before} to {peak} KiB"
    );
    let group =
        |path: &Path| std::os::unix::fs::MetadataExt::gid(&fs::metadata(path).expect("stat"));
    assert_eq!((group(&first), group(&disk)), (GROUP, GROUP));
    volumes.tear_down_pod(&pod.uid).expect("torn down");
}

/// A number of `/proc/self/status`, KiB.
fn kib(key: &str) -> u64 {
    let text = fs::read_to_string("/proc/self/status").expect("status");
    let line = text.lines().find_map(|l| l.strip_prefix(key));
    let number = line.and_then(|l| l.split_whitespace().next());
    number.and_then(|n| n.parse().ok()).expect(key)
}

/// A tmpfs that goes with the value.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Option<Self> {
        let dir = std::env::temp_dir().join(format!(
            "picolet-names-{}-{}",
            std::process::id(),
            nix::unistd::gettid()
        ));
        fs::create_dir_all(&dir).expect("scratch directory");
        let scratch = Self(fs::canonicalize(dir).expect("scratch directory"));
        let options = Some("nr_inodes=0");
        let mounted = mount(
            Some("tmpfs"),
            &scratch.0,
            Some("tmpfs"),
            MsFlags::empty(),
            options,
        );
        match mounted {
            Ok(()) => Some(scratch),
            Err(e) => {
                skipped!("names of a volume: cannot mount a tmpfs: {e}");
                None
            }
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
        let _ = fs::remove_dir(&self.0);
    }
}
