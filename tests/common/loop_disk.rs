//! A disk of ext4 on a loop device, of which the kernel counts what is written to it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::mount::{MsFlags, mount};

/// Room for one image and a few pods.
pub(crate) const DISK_BYTES: u64 = 128 << 20;
/// Pods of a node at rest.
pub(crate) const PODS: usize = 10;
/// Pods one after the other, of which the cheapest counts: other programs of the machine may write everything down (sync(2))
/// at any moment, and what they do to this disk looks like the agent's.
pub(crate) const ROUNDS: usize = 4;
/// Start and end of a pod.
pub(crate) const LIFE_BYTES: u64 = 192 << 10;

/// Bytes of what `stat` calls a sector. Source: kernel documentation `block/stat.rst`.
const SECTOR: u64 = 512;

/// Goes with its mount.
pub(crate) struct LoopDisk {
    /// `loop3`
    name: String,
    /// Where it is mounted.
    dir: PathBuf,
}

impl LoopDisk {
    /// Makes one of `bytes` and mounts it at `dir`; `None`, said aloud: this machine has no loop devices.
    ///
    /// There is no journal, and all tables are written by now: only what is changed is written to it. Times of access
    /// stay as they are, which is usual on boards.
    pub(crate) fn mount(test: &str, bytes: u64, dir: &Path) -> Option<Self> {
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
        let Some(device) = losetup(&["-f", "--show", &image]) else {
            skipped!("{test}: no loop device");
            return None;
        };
        let flags = MsFlags::MS_NOATIME;
        mount(Some(&*device), dir, Some("ext4"), flags, None::<&str>).expect("mounted");
        // It is in use, so it goes when it is unmounted: a test that is killed leaves none.
        losetup(&["-d", &device]).expect("taken off");
        fs::remove_file(image).expect("removed");
        Some(Self {
            name: device.trim_start_matches("/dev/").to_owned(),
            dir: dir.to_owned(),
        })
    }

    /// `loop3`
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Bytes that it was written, with what waited in memory.
    pub(crate) fn written(&self) -> u64 {
        let dir = File::open(&self.dir).expect("mounted");
        nix::unistd::syncfs(&dir).expect("synced");
        self.figure(6) * SECTOR
    }

    /// How often it was told to write down what it holds: without a journal once for each `fsync`, for each call of
    /// [`Self::written`], and whenever anybody syncs all disks of the machine.
    fn flushes(&self) -> u64 {
        self.figure(15)
    }

    /// Bytes that `act` costs, with what it leaves in memory, and how often it has the disk write down what it holds.
    pub(crate) fn cost(&self, act: impl FnOnce()) -> (u64, u64) {
        let (bytes, flushes) = (self.written(), self.flushes());
        act();
        let flushes = self.flushes() - flushes;
        (self.written() - bytes, flushes)
    }

    fn figure(&self, at: usize) -> u64 {
        let path = format!("/sys/block/{}/stat", self.name);
        let text = fs::read_to_string(path).expect("figures");
        let figure = text.split_whitespace().nth(at);
        figure.and_then(|f| f.parse().ok()).expect("a number")
    }
}

/// The least of each figure, of several costs of the same.
pub(crate) fn least(costs: impl Iterator<Item = (u64, u64)>) -> (u64, u64) {
    let least = |a: (u64, u64), b: (u64, u64)| (a.0.min(b.0), a.1.min(b.1));
    let least = costs
        .inspect(|cost| eprintln!("bytes and flushes: {cost:?}"))
        .reduce(least);
    least.expect("some costs")
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
