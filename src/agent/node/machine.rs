//! Facts of the machine from `/proc`, `/sys` and `/etc`. A fact that cannot be read is empty or zero; what needs it
//! says so.

use std::{fs, path::Path};

use nix::sys::statvfs::statvfs;

use crate::{
    api::order::OrderExt as _,
    image::platform::MachinePlatform,
    logic::{check::DiskWearFacts, node::MachineIdentity},
    sys::{disk_wear, file},
};

/// Most bytes read of one file below `/proc`, `/sys` or `/etc`.
const MAX_FACT_BYTES: u64 = 64 * 1024;
/// Sizes of huge pages that are looked at; kernels have up to four.
const MAX_PAGE_SIZES: usize = 16;
/// Directory in which the kernel shows its huge pages.
const HUGEPAGES: &str = "/sys/kernel/mm/hugepages";

/// Reads the head of a file; empty if it cannot be read. Bytes that are no text are replaced.
pub(super) fn read_file_head(path: &str) -> String {
    read_head_limited(path, MAX_FACT_BYTES)
}

/// Reads at most `limit` bytes of a file; empty if it cannot be read. Bytes that are no text are replaced.
pub(super) fn read_head_limited(path: &str, limit: u64) -> String {
    let bytes = file::read_start(path.as_ref(), limit).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The disk that `path` is on, and its number; `None`: it is on no disk that tells of its wear.
pub(in crate::agent) fn disk_with_number(path: &Path) -> Option<(DiskWearFacts, String)> {
    let wear = disk_wear::read_disk_wear(path)?;
    let disk = DiskWearFacts {
        name: wear.name,
        written: wear.written,
        used_life: wear.used_life,
        at_its_end: wear.at_its_end,
    };
    Some((disk, wear.number))
}

/// Reads the ids that tell this machine from others and one boot from the next, and its kernel and system (NODE-12).
pub(super) fn read_identity() -> MachineIdentity {
    let first = |paths: &[&str]| {
        let texts = paths.iter().map(|path| trim_text(&read_file_head(path)));
        texts.into_iter().find(|t| !t.is_empty())
    };
    let machine_id = first(&["/etc/machine-id", "/var/lib/dbus/machine-id"]).unwrap_or_default();
    let system_uuid = first(&[
        "/sys/class/dmi/id/product_uuid",
        "/proc/device-tree/system-id",
        "/proc/device-tree/vm,uuid",
    ]);
    let release = ["/etc/os-release", "/usr/lib/os-release"].map(read_file_head);
    MachineIdentity {
        system_uuid: system_uuid.unwrap_or_else(|| machine_id.clone()),
        machine_id,
        boot_id: trim_text(&read_file_head("/proc/sys/kernel/random/boot_id")),
        kernel_version: trim_text(&read_file_head("/proc/sys/kernel/osrelease")),
        os_image: release
            .iter()
            .find_map(|text| pretty_name(text))
            .unwrap_or_else(|| "Linux".into()),
        architecture: MachinePlatform::detect_current().architecture.into(),
    }
}

/// Trims a text: blanks at both ends, and the zero that ends a text of the device tree.
fn trim_text(text: &str) -> String {
    text.trim_matches(|c: char| c == '\0' || c.is_whitespace())
        .to_owned()
}

/// `PRETTY_NAME` of os-release(5), quotes and backslashes of the shell taken away.
fn pretty_name(text: &str) -> Option<String> {
    let value = text
        .lines()
        .find_map(|line| line.trim_start().strip_prefix("PRETTY_NAME="))?
        .trim();
    let quoted = |quote: char| value.strip_prefix(quote)?.strip_suffix(quote);
    let name = quoted('"').or_else(|| quoted('\'')).unwrap_or(value);
    let mut escaped = false;
    let name: String = name
        .chars()
        .filter(|c| {
            escaped = *c == '\\' && !escaped;
            !escaped
        })
        .collect();
    (!name.is_empty()).then_some(name)
}

/// Memory of the machine, bytes.
pub(super) fn memory_bytes() -> u64 {
    meminfo_bytes(&read_file_head("/proc/meminfo"), "MemTotal:")
}

/// Swap of the machine, bytes.
pub(super) fn swap_bytes() -> u64 {
    meminfo_bytes(&read_file_head("/proc/meminfo"), "SwapTotal:")
}

/// Bytes of one line of `/proc/meminfo`.
fn meminfo_bytes(meminfo: &str, name: &str) -> u64 {
    let line = meminfo.lines().find_map(|l| l.strip_prefix(name));
    let kib = line.and_then(|l| l.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kib.unwrap_or(0).saturating_mul(1024)
}

/// Processors.
pub(super) fn cpu_count() -> u64 {
    let count = std::thread::available_parallelism().map_or(1, core::num::NonZero::get);
    u64::try_from(count).unwrap_or(1)
}

/// Bytes of the file system of the root dir.
pub(super) fn storage_bytes(root: &Path) -> u64 {
    statvfs(root).map_or(0, |s| {
        u64::from(s.blocks()).saturating_mul(u64::from(s.fragment_size()))
    })
}

/// The smaller of `kernel.pid_max` and `kernel.threads-max` (CG-12); 0 if neither can be read.
pub(super) fn max_pids() -> u64 {
    smaller(
        &read_file_head("/proc/sys/kernel/pid_max"),
        &read_file_head("/proc/sys/kernel/threads-max"),
    )
}

fn smaller(pid_max: &str, threads_max: &str) -> u64 {
    [pid_max, threads_max]
        .iter()
        .filter_map(|text| text.trim().parse().ok())
        .min()
        .unwrap_or(0)
}

/// Sizes of huge pages that the kernel offers, and memory in pages of this size, used or not: bytes, sorted by size.
pub(super) fn hugepages() -> Vec<(u64, u64)> {
    let Ok(entries) = fs::read_dir(HUGEPAGES) else {
        return Vec::new();
    };
    let mut sizes: Vec<(u64, u64)> = entries
        .flatten()
        .take(MAX_PAGE_SIZES)
        .filter_map(|entry| {
            let name = entry.file_name();
            let name = name.to_str()?;
            let kib = name.strip_prefix("hugepages-")?.strip_suffix("kB")?;
            let size = kib.parse::<u64>().ok()?.checked_mul(1024)?;
            let count = read_file_head(&format!("{HUGEPAGES}/{name}/nr_hugepages"));
            let count: u64 = count.trim().parse().unwrap_or(0);
            Some((size, count.saturating_mul(size)))
        })
        .collect();
    sizes.stable_sort();
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_from_text() {
        let meminfo = "MemTotal:         948092 kB\nMemFree: 1 kB\n";
        assert_eq!(meminfo_bytes(meminfo, "MemTotal:"), 948_092 * 1024);
        assert_eq!(meminfo_bytes("nonsense", "MemTotal:"), 0);
        for (pid_max, threads_max, want) in [
            ("32768\n", "7000\n", 7000),
            ("300\n", "7000\n", 300),
            ("", "7000\n", 7000),
            ("", "", 0),
        ] {
            assert_eq!(smaller(pid_max, threads_max), want);
        }
        // NODE-12
        for (text, want) in [
            (
                "NAME=x\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n",
                Some("Debian GNU/Linux 12 (bookworm)"),
            ),
            ("PRETTY_NAME='a b'", Some("a b")),
            ("PRETTY_NAME=plain\n", Some("plain")),
            ("PRETTY_NAME=\"a \\\"b\\\" \\\\\"", Some("a \"b\" \\")),
            ("PRETTY_NAME=\"\"", None),
            ("NAME=x", None),
        ] {
            assert_eq!(pretty_name(text).as_deref(), want, "{text}");
        }
        assert_eq!(trim_text("12-34\0"), "12-34");
        assert_eq!(trim_text(" ab \n"), "ab");
    }

    #[test]
    fn this_machine() {
        // NODE-09 NODE-12
        let identity = read_identity();
        assert!(!identity.boot_id.is_empty() && !identity.kernel_version.is_empty());
        assert!(!identity.os_image.is_empty() && !identity.architecture.is_empty());
        assert!(memory_bytes() > 0 && cpu_count() > 0 && storage_bytes(Path::new("/")) > 0);
        assert!(hugepages().is_sorted());
        assert_eq!(read_file_head("/nonexistent/fact"), "");
        assert_eq!(read_head_limited("/proc/self/status", 4), "Name");
    }
}
