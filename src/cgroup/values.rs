//! Writing limits.

use std::{fs, io, path::Path};

use super::{CgroupError, CgroupVersion, Hierarchy, read_control_file};
use crate::api::cri::LinuxResources;

/// Writes the fields that are set. Memory first: a lowered memory limit is the write that can be refused.
pub(super) fn write_limits(
    hierarchy: &Hierarchy,
    path: &str,
    values: &LinuxResources,
) -> Result<(), CgroupError> {
    match hierarchy.cgroup_version() {
        CgroupVersion::V1 => write_v1(hierarchy, path, values),
        CgroupVersion::V2 => write_v2(hierarchy, path, values),
    }
}

/// Processors are not chosen here: only an OCI runtime does that on version 1, where every group above needs some too.
///
/// Source: kernel documentation `admin-guide/cgroup-v1`.
fn write_v1(hierarchy: &Hierarchy, path: &str, values: &LinuxResources) -> Result<(), CgroupError> {
    let put = |controller: &'static str, file: &str, value: String| {
        let dir = hierarchy
            .controller_dir(controller, path)
            .ok_or(CgroupError::NoController(controller))?;
        write_control_file(&dir.join(file), &value)
    };
    if let Some(bytes) = values.memory_limit_bytes {
        put("memory", "memory.limit_in_bytes", format_limit(bytes, "-1"))?;
    }
    if let Some(bytes) = values.memory_swap_bytes
        // Absent when the kernel does not account swap.
        && hierarchy
            .controller_dir("memory", path)
            .is_some_and(|d| d.join("memory.memsw.limit_in_bytes").exists())
    {
        put(
            "memory",
            "memory.memsw.limit_in_bytes",
            format_limit(bytes, "-1"),
        )?;
    }
    if let Some(shares) = values.cpu_shares {
        put("cpu", "cpu.shares", shares.to_string())?;
    }
    if let Some(period) = values.cpu_period_us {
        put("cpu", "cpu.cfs_period_us", period.to_string())?;
    }
    if let Some(quota) = values.cpu_quota_us {
        // 0 is "unset" above this layer; the kernel's word is -1.
        put("cpu", "cpu.cfs_quota_us", format_limit(quota, "-1"))?;
    }
    if let Some(limit) = values.pids_limit {
        put("pids", "pids.max", format_limit(limit, "max"))?;
    }
    for (size, bytes) in &values.hugepage_limits {
        let file = format!("hugetlb.{size}.limit_in_bytes");
        write_huge_page_limit(
            hierarchy
                .controller_dir("hugetlb", path)
                .map(|d| d.join(file)),
            bytes,
        )?;
    }
    Ok(())
}

/// Source: kernel documentation `admin-guide/cgroup-v2.rst`.
fn write_v2(hierarchy: &Hierarchy, path: &str, values: &LinuxResources) -> Result<(), CgroupError> {
    let Some(dir) = hierarchy.controller_dir("", path) else {
        return Err(CgroupError::NotMounted);
    };
    let put = |controller: &'static str, file: &str, value: String| match write_control_file(
        &dir.join(file),
        &value,
    ) {
        // Unless the group has gone altogether.
        Err(CgroupError::Io { source, .. })
            if source.kind() == io::ErrorKind::NotFound && dir.is_dir() =>
        {
            Err(CgroupError::NoController(controller))
        }
        other => other,
    };
    if let Some(bytes) = values.memory_limit_bytes {
        put("memory", "memory.max", format_limit(bytes, "max"))?;
    }
    if let Some(shares) = values.cpu_shares {
        put("cpu", "cpu.weight", weight_from_shares(shares).to_string())?;
    }
    if values.cpu_quota_us.is_some() || values.cpu_period_us.is_some() {
        /// The kernel's own default, microseconds.
        const DEFAULT_PERIOD_US: u64 = 100_000;
        let quota = format_limit(values.cpu_quota_us.unwrap_or(-1), "max");
        let period = values.cpu_period_us.unwrap_or(DEFAULT_PERIOD_US);
        put("cpu", "cpu.max", format!("{quota} {period}"))?;
    }
    if let Some(cpus) = &values.cpuset_cpus {
        put("cpuset", "cpuset.cpus", cpus.clone())?;
    }
    if let Some(limit) = values.pids_limit {
        put("pids", "pids.max", format_limit(limit, "max"))?;
    }
    for (size, bytes) in &values.hugepage_limits {
        write_huge_page_limit(Some(dir.join(format!("hugetlb.{size}.max"))), bytes)?;
    }
    for (file, value) in &values.unified {
        if file.contains('/') {
            return Err(CgroupError::BadPath(file.clone()));
        }
        write_control_file(&dir.join(file), value)?;
    }
    Ok(())
}

/// Converts shares (2..=262144) into a weight (1..=10000), as a kubelet does for pod and tier groups (RES-14).
pub(super) fn weight_from_shares(shares: u64) -> u64 {
    1 + shares.clamp(2, 262_144).saturating_sub(2) * 9999 / 262_142
}

/// Zero or below means no limit.
fn format_limit(value: i64, word: &str) -> String {
    if value > 0 {
        value.to_string()
    } else {
        word.to_owned()
    }
}

/// Makes `path` and hands the controllers down to it and to the groups that will lie below it.
///
/// A parent with processes of its own cannot hand down (EBUSY); the root can.
pub(super) fn make_v2(hierarchy: &Hierarchy, path: &str) -> Result<(), CgroupError> {
    let root = hierarchy.unified_root().ok_or(CgroupError::NotMounted)?;
    let mut dir = root.to_owned();
    enable_controllers(&dir)?;
    for part in path.split('/').filter(|p| !p.is_empty()) {
        dir.push(part);
        match fs::create_dir(&dir) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                return Err(CgroupError::at_path(&dir, e));
            }
            Ok(()) | Err(_) => enable_controllers(&dir)?,
        }
    }
    Ok(())
}

fn enable_controllers(dir: &Path) -> Result<(), CgroupError> {
    /// Controllers that containers below may need.
    const WANTED: [&str; 6] = ["cpu", "cpuset", "memory", "pids", "io", "hugetlb"];
    let read = |file: &str| {
        let path = dir.join(file);
        read_control_file(&path).map_err(|e| CgroupError::at_path(&path, e))
    };
    let available = read("cgroup.controllers")?;
    let enabled = read("cgroup.subtree_control")?;
    let has = |list: &str, name| list.split_whitespace().any(|c| c == name);
    for name in WANTED {
        if has(&available, name) && !has(&enabled, name) {
            // One write for each: a controller that cannot be handed down must not stop the others.
            write_control_file(&dir.join("cgroup.subtree_control"), &format!("+{name}"))?;
        }
    }
    Ok(())
}

fn write_control_file(path: &Path, value: &str) -> Result<(), CgroupError> {
    fs::OpenOptions::new()
        .write(true)
        .open(path)
        .and_then(|mut f| io::Write::write_all(&mut f, value.as_bytes()))
        .map_err(|e| CgroupError::at_path(path, e))
}

/// Writes a huge page limit. A machine without the controller or the page size has nothing to limit.
fn write_huge_page_limit(path: Option<std::path::PathBuf>, bytes: &u64) -> Result<(), CgroupError> {
    match path {
        Some(path) if path.exists() => write_control_file(&path, &bytes.to_string()),
        Some(_) | None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_become_weight() {
        // RES-14 CG-08
        for (shares, want) in [
            (0, 1),
            (2, 1),
            (102, 4),
            (256, 10),
            (1024, 39),
            (262_144, 10_000),
            (u64::MAX, 10_000),
        ] {
            assert_eq!(weight_from_shares(shares), want, "{shares}");
        }
    }

    #[test]
    fn a_group_that_has_gone_lacks_no_controller() {
        let root = crate::testing::unused_path("gone");
        fs::create_dir_all(root.join("there")).expect("directory");
        let line = format!("1 1 0:1 / {} rw - cgroup2 none rw", root.display());
        let hierarchy = Hierarchy::parse(&line).expect("a tree");
        let limits = LinuxResources {
            cpu_shares: Some(2),
            ..LinuxResources::default()
        };
        let there = write_limits(&hierarchy, "/there", &limits);
        assert!(matches!(there, Err(CgroupError::NoController("cpu"))));
        let gone = write_limits(&hierarchy, "/gone", &limits);
        assert!(matches!(gone, Err(CgroupError::Io { .. })), "{gone:?}");
        fs::remove_dir_all(&root).expect("clean up");
    }

    /// systemd takes away controllers that no unit below uses.
    #[test]
    fn controllers_are_handed_down_each_time() {
        // SVC-34
        let root = crate::testing::unused_path("handed");
        let tree = |path: &str| root.join(path.trim_start_matches('/'));
        let groups = ["/", "/kubepods", "/kubepods/podu"];
        for group in groups {
            let dir = tree(group);
            fs::create_dir_all(&dir).expect("directory");
            fs::write(dir.join("cgroup.controllers"), "cpuset cpu io memory pids").expect("file");
        }
        let line = format!("1 1 0:1 / {} rw - cgroup2 none rw", root.display());
        let hierarchy = Hierarchy::parse(&line).expect("a tree");
        // The controllers are read from the tree alone.
        assert!(hierarchy.has_controller("memory") && !hierarchy.has_controller("hugetlb"));
        for enabled in ["memory pids", "cpuset cpu io memory pids"] {
            for group in groups {
                fs::write(tree(group).join("cgroup.subtree_control"), enabled).expect("file");
            }
            make_v2(&hierarchy, "/kubepods/podu").expect("made");
            for group in groups {
                let asked = fs::read_to_string(tree(group).join("cgroup.subtree_control"));
                // In this plain file each write goes over the last from the beginning: cpu, cpuset, then io.
                let wanted = match enabled {
                    "memory pids" => "+iouset",
                    all => all,
                };
                let asked = asked.expect("file");
                assert!(asked.starts_with(wanted), "{group}: {asked}");
            }
        }
        fs::remove_dir_all(&root).expect("clean up");
    }

    #[test]
    fn no_limit_has_a_word() {
        assert_eq!(format_limit(0, "max"), "max");
        assert_eq!(format_limit(-1, "-1"), "-1");
        assert_eq!(format_limit(4096, "max"), "4096");
    }
}
