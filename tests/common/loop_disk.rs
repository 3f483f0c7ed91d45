//! A disk of ext4 on a loop device, of which the kernel counts what is written to it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::mount::{MsFlags, mount};

/// Room for one image and a few pods.
pub(crate) const DISK_BYTES: u64 = 128 << 20;
/// Pods of a node at rest.
pub(crate) const PODS: usize = 10;
/// Pods one after the other, whose costs are added up.
const ROUNDS: usize = 4;
/// Pods that are tried for them: while somebody syncs all disks, a pod's block that changes twice is written twice.
const MAX_ROUNDS: usize = 5 * ROUNDS;
/// Start and end of a pod, on average.
pub(crate) const LIFE_BYTES: u64 = 192 << 10;

/// Bytes of what `stat` calls a sector. Source: kernel documentation `block/stat.rst`.
const SECTOR: u64 = 512;

/// Bytes of the disk that nobody writes to: the smallest that can be made.
const IDLE_BYTES: u64 = 1 << 20;

/// Goes with its mount.
pub(crate) struct LoopDisk {
    /// `loop3`
    name: String,
    /// Where it is mounted.
    dir: PathBuf,
    /// Another one, which is idle: what it is told to write down, all disks of the machine are told (sync(2)).
    idle: String,
}

impl LoopDisk {
    /// Makes one of `bytes` and mounts it at `dir`, and an idle one beside it; `None`, said aloud: this machine has no loop
    /// devices.
    pub(crate) fn mount(test: &str, bytes: u64, dir: &Path) -> Option<Self> {
        let beside = dir.with_extension("idle");
        fs::create_dir(&beside).expect("directory");
        let disks = mount_one(bytes, dir).zip(mount_one(IDLE_BYTES, &beside));
        if disks.is_none() {
            skipped!("{test}: no loop device");
        }
        let (name, idle) = disks?;
        let dir = dir.to_owned();
        Some(Self { name, dir, idle })
    }

    /// `loop3`
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Bytes that it was written, with what waited in memory.
    pub(crate) fn written(&self) -> u64 {
        let dir = File::open(&self.dir).expect("mounted");
        nix::unistd::syncfs(&dir).expect("synced");
        figure(&self.name, 6) * SECTOR
    }

    /// How often it was told to write down what it holds, and how often the idle one was: without a journal once for each
    /// `fsync`, for each call of [`Self::written`], and whenever anybody syncs all disks of the machine.
    fn flushes(&self) -> [u64; 2] {
        [&self.name, &self.idle].map(|name| figure(name, 15))
    }

    /// Bytes that `act` costs, with what it leaves in memory, and how often it has the disk write down what it holds.
    pub(crate) fn cost(&self, act: impl FnOnce()) -> Cost {
        let (bytes, flushes) = (self.written(), self.flushes());
        act();
        let [own, of_all] = self.flushes();
        let flushes_of_all = of_all - flushes[1];
        let flushes = (own - flushes[0]).saturating_sub(flushes_of_all);
        let bytes = self.written() - bytes;
        eprintln!("{bytes} bytes, {flushes} flushes, {flushes_of_all} of all disks");
        Cost {
            bytes,
            flushes,
            is_disturbed: flushes_of_all > 0,
        }
    }
}

/// Makes a disk of `bytes` and mounts it at `dir`; `None`: this machine has no loop devices.
///
/// There is no journal, and all tables are written by now: only what is changed is written to it. Times of access
/// stay as they are, which is usual on boards.
fn mount_one(bytes: u64, dir: &Path) -> Option<String> {
    let image = dir.with_extension("disk");
    let file = File::create(&image).expect("image");
    file.set_len(bytes).expect("size");
    let made = Command::new("mkfs.ext4")
        .args(["-q", "-m0", "-b4096", "-O", "^has_journal"])
        .args(["-E", "lazy_itable_init=0"])
        .arg(&image)
        .status();
    assert!(made.expect("mkfs.ext4").success());
    let losetup = |words: &[&str]| {
        let output = Command::new("losetup").args(words).output();
        let output = output.expect("losetup");
        let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        output.status.success().then_some(said)
    };
    let image = image.display().to_string();
    let device = losetup(&["-f", "--show", &image])?;
    let flags = MsFlags::MS_NOATIME;
    mount(Some(&*device), dir, Some("ext4"), flags, None::<&str>).expect("mounted");
    // It is in use, so it goes when it is unmounted: a test that is killed leaves none.
    losetup(&["-d", &device]).expect("taken off");
    fs::remove_file(image).expect("removed");
    Some(device.trim_start_matches("/dev/").to_owned())
}

/// A figure of what the kernel counts of a disk.
fn figure(disk: &str, at: usize) -> u64 {
    let text = fs::read_to_string(format!("/sys/block/{disk}/stat")).expect("figures");
    let figure = text.split_whitespace().nth(at);
    figure.and_then(|f| f.parse().ok()).expect("a number")
}

/// Bytes and flushes that something cost a disk.
#[derive(Clone, Copy)]
pub(crate) struct Cost {
    bytes: u64,
    flushes: u64,
    /// Somebody had all disks of the machine write down what they hold meanwhile.
    is_disturbed: bool,
}

/// Demands that the first [`ROUNDS`] of the same that nobody disturbs cost no more than so many times these `bytes` and
/// `flushes`, all together.
pub(crate) fn assert_costs(
    what: &str,
    costs: impl Iterator<Item = Cost>,
    bytes: u64,
    flushes: u64,
) {
    let costs = costs.take(MAX_ROUNDS).filter(|cost| !cost.is_disturbed);
    let costs: Vec<Cost> = costs.take(ROUNDS).collect();
    assert_eq!(
        costs.len(),
        ROUNDS,
        "{what}: in {MAX_ROUNDS} rounds somebody synced all disks of the machine"
    );
    let rounds = costs.len() as u64;
    let all: u64 = costs.iter().map(|cost| cost.bytes).sum();
    let bytes = bytes * rounds;
    assert!(all <= bytes, "{what}: {all} bytes, at most {bytes}");
    let all: u64 = costs.iter().map(|cost| cost.flushes).sum();
    let flushes = flushes * rounds;
    assert!(all <= flushes, "{what}: {all} flushes, at most {flushes}");
}

/// Keeps times of access below `dir` as they are, so that reading there writes nothing.
pub(crate) fn no_access_times(dir: &Path) {
    let none = None::<&str>;
    let bind = MsFlags::MS_BIND | MsFlags::MS_REC;
    mount(Some(dir), dir, none, bind, none).expect("bound");
    let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_NOATIME;
    mount(none, dir, none, flags, none).expect("remounted");
}

/// Bytes that a process had written to disks, as the kernel counts them; `None`: it has ended. Source: proc_pid_io(5).
pub(crate) fn written_by(pid: i32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/io")).ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("write_bytes: "));
    line?.parse().ok()
}
