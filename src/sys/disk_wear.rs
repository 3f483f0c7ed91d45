//! Wear of a disk, as the disk itself reports it. Sources: kernel documentation `block/stat.rst`,
//! `driver-api/mmc/mmc-dev-attrs.rst`.

use std::{fs, os::unix::fs::MetadataExt as _, path::Path};

use nix::sys::stat;

use super::proc::read_small;

/// Bytes of a sector in `stat`.
const SECTOR: u64 = 512;
/// Normal, of three stages of spare blocks.
const NORMAL: u8 = 1;

/// A disk, as sysfs has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskWear {
    /// `mmcblk0`, `sda`, …
    pub name: String,
    /// Number of the device, as the kernel has it: `179:0`.
    pub number: String,
    /// Bytes written to it since the machine was started.
    pub written: u64,
    /// Used part of its life, at most, percent; `None`: the disk does not say.
    pub used_life: Option<u8>,
    /// Set if the disk says that its spare blocks come to an end.
    pub at_its_end: bool,
}

/// The disk that `path` is on; `None`: it is on none that could tell.
#[must_use]
pub fn read_disk_wear(path: &Path) -> Option<DiskWear> {
    let there = path.ancestors().find(|p| p.exists())?;
    let dev = fs::metadata(there).ok()?.dev();
    let at = format!("/sys/dev/block/{}:{}", stat::major(dev), stat::minor(dev));
    let mut at = fs::canonicalize(at).ok()?;
    if at.join("partition").exists() {
        at.pop();
    }
    read_sysfs_disk(&at)
}

/// The disk in this directory of sysfs.
fn read_sysfs_disk(at: &Path) -> Option<DiskWear> {
    let read = |name: &str| {
        let mut buffer = [0; 512];
        let path = at.join(name);
        let text = read_small(path.to_str()?, &mut buffer).ok()?;
        Some(text.to_owned())
    };
    let hex = |word: &str| u8::from_str_radix(word.strip_prefix("0x")?, 16).ok();
    // Two numbers, for two kinds of cells, each in tenths; 0: the disk does not say.
    let tenths = read("device/life_time").unwrap_or_default();
    let tenths = tenths.split_whitespace().filter_map(hex).max();
    let stat = read("stat")?;
    let sectors = stat.split_whitespace().nth(6)?.parse::<u64>().ok()?;
    let eol = read("device/pre_eol_info").unwrap_or_default();
    Some(DiskWear {
        name: at.file_name()?.to_string_lossy().into(),
        number: read("dev").unwrap_or_default().trim().into(),
        written: sectors.saturating_mul(SECTOR),
        used_life: tenths.filter(|n| *n > 0).map(|n| n.min(10) * 10),
        at_its_end: hex(eol.trim()).is_some_and(|stage| stage > NORMAL),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_card_says() {
        let dir = crate::testing::unused_path("wear");
        let disk = dir.join("mmcblk0");
        fs::create_dir_all(disk.join("device")).expect("directory");
        let write = |name: &str, text: &str| fs::write(disk.join(name), text).expect("file");
        assert_eq!(read_sysfs_disk(&disk), None, "no disk");
        write("stat", "   10 0 80 5 20 0 2048 7 0 9 12\n");
        write("dev", "179:0\n");
        let silent = DiskWear {
            name: "mmcblk0".into(),
            number: "179:0".into(),
            written: 1 << 20,
            ..DiskWear::default()
        };
        assert_eq!(read_sysfs_disk(&disk), Some(silent.clone()));
        for (life, eol, used_life, at_its_end) in [
            ("0x01 0x03", "0x01", Some(30), false),
            ("0x0b 0x01", "0x02", Some(100), true),
            ("0x09 0x01", "0x01", Some(90), false),
            ("0x00 0x00", "0x00", None, false),
        ] {
            write("device/life_time", &format!("{life}\n"));
            write("device/pre_eol_info", &format!("{eol}\n"));
            let want = DiskWear {
                used_life,
                at_its_end,
                ..silent.clone()
            };
            assert_eq!(read_sysfs_disk(&disk), Some(want), "{life}");
        }
        fs::remove_dir_all(dir).expect("removed");
    }
}
