//! Mount points of the control group hierarchies.

use crate::api::order::OrderExt;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// The layout of control groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupVersion {
    /// Each controller has its own mount; a bare version 2 tree may lie beside them.
    V1,
    /// All controllers share one tree.
    V2,
}

/// Mount points by controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hierarchy {
    version: CgroupVersion,
    /// Version 1: controller or `name=x` → mount point. Version 2: empty.
    controllers: BTreeMap<String, PathBuf>,
    /// The version 2 tree, if mounted.
    unified: Option<PathBuf>,
}

/// Controllers in which limits of pods are written.
const LIMITING: [&str; 4] = ["cpu", "memory", "pids", "hugetlb"];

impl Hierarchy {
    /// Reads `/proc/<pid>/mountinfo`. `None` if no usable hierarchy is mounted.
    ///
    /// Source: `proc_pid_mountinfo(5)`.
    #[must_use]
    pub fn parse(mountinfo: &str) -> Option<Self> {
        let mut controllers = BTreeMap::new();
        let mut unified = None;
        for line in mountinfo.lines() {
            let Some((left, right)) = line.split_once(" - ") else {
                continue;
            };
            let Some(point) = left.split(' ').nth(4) else {
                continue;
            };
            // A mount point with blanks is escaped; nobody mounts control groups there.
            let point = PathBuf::from(point);
            let mut right = right.split(' ');
            match (right.next(), right.nth(1)) {
                (Some("cgroup2"), _) => {
                    unified.get_or_insert(point);
                }
                (Some("cgroup"), Some(options)) => {
                    for name in options.split(',').filter(|o| {
                        !matches!(*o, "rw" | "ro" | "xattr" | "clone_children" | "noprefix")
                            && !o.starts_with("release_agent=")
                    }) {
                        controllers
                            .entry(name.to_owned())
                            .or_insert_with(|| point.clone());
                    }
                }
                _ => {}
            }
        }
        let version = if controllers.contains_key("cpu") || controllers.contains_key("memory") {
            CgroupVersion::V1
        } else {
            unified.as_ref()?;
            controllers.clear();
            CgroupVersion::V2
        };
        Some(Self {
            version,
            controllers,
            unified,
        })
    }

    /// The layout.
    #[must_use]
    pub const fn cgroup_version(&self) -> CgroupVersion {
        self.version
    }

    /// Returns true if the controller can be used. On version 2 the root's list decides.
    #[must_use]
    pub fn has_controller(&self, controller: &str) -> bool {
        match self.version {
            CgroupVersion::V1 => self.controllers.contains_key(controller),
            CgroupVersion::V2 => self.unified.as_ref().is_some_and(|root| {
                super::read_control_file(&root.join("cgroup.controllers"))
                    .is_ok_and(|list| list.split_whitespace().any(|c| c == controller))
            }),
        }
    }

    /// Directory of `path` where `controller` keeps its files.
    #[must_use]
    pub fn controller_dir(&self, controller: &str, path: &str) -> Option<PathBuf> {
        let mount = match self.version {
            CgroupVersion::V1 => self.controllers.get(controller),
            CgroupVersion::V2 => self.unified.as_ref(),
        }?;
        Some(join_below(mount, path))
    }

    /// The version 2 root. Only on version 2.
    #[must_use]
    pub fn unified_root(&self) -> Option<&Path> {
        match self.version {
            CgroupVersion::V1 => None,
            CgroupVersion::V2 => self.unified.as_deref(),
        }
    }

    /// Directories that `path` may have, one for each mount.
    #[must_use]
    pub fn mounted_dirs(&self, path: &str) -> Vec<PathBuf> {
        let mut mounts: Vec<&PathBuf> = self.controllers.values().collect();
        mounts.extend(self.unified.as_ref());
        mounts.stable_sort();
        mounts.dedup();
        mounts.into_iter().map(|m| join_below(m, path)).collect()
    }

    /// Directories of `path` for processes of our own: where they would else be counted to the agent's unit. A cpuset
    /// is left alone: a new one takes no process before it is filled.
    #[must_use]
    pub fn process_dirs(&self, path: &str) -> Vec<PathBuf> {
        let mut dirs: Vec<PathBuf> = [
            "cpu",
            "cpuacct",
            "hugetlb",
            "memory",
            "pids",
            "name=systemd",
        ]
        .iter()
        .filter_map(|c| self.controller_dir(c, path))
        .chain(self.unified.as_deref().map(|m| join_below(m, path)))
        .collect();
        dirs.stable_sort();
        dirs.dedup();
        dirs
    }

    /// Directories of `path` in the hierarchies that hold limits.
    #[must_use]
    pub fn limit_dirs(&self, path: &str) -> Vec<PathBuf> {
        let mut dirs: Vec<PathBuf> = LIMITING
            .iter()
            .filter_map(|c| self.controller_dir(c, path))
            .collect();
        dirs.stable_sort();
        dirs.dedup();
        dirs
    }
}

fn join_below(mount: &Path, path: &str) -> PathBuf {
    mount.join(path.trim_start_matches('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
22 27 0:21 / /proc rw,relatime - proc proc rw
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,release_agent=/lib/x,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";

    #[test]
    fn finds_mounts() {
        let v1 = Hierarchy::parse(HYBRID).expect("mounted");
        assert_eq!(v1.cgroup_version(), CgroupVersion::V1);
        assert_eq!(
            v1.controller_dir("cpu", "/kubepods/podx"),
            Some("/sys/fs/cgroup/cpu,cpuacct/kubepods/podx".into())
        );
        assert_eq!(v1.controller_dir("pids", "/kubepods"), None);
        assert!(v1.has_controller("memory") && !v1.has_controller("pids"));
        assert_eq!(
            v1.mounted_dirs("/a"),
            [
                "/sys/fs/cgroup/cpu,cpuacct/a",
                "/sys/fs/cgroup/memory/a",
                "/sys/fs/cgroup/systemd/a",
                "/sys/fs/cgroup/unified/a"
            ]
            .map(PathBuf::from)
        );
        assert_eq!(v1.limit_dirs("/a").len(), 2);

        let v2 = Hierarchy::parse(
            "30 23 0:27 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
        )
        .expect("mounted");
        assert_eq!(v2.cgroup_version(), CgroupVersion::V2);
        assert_eq!(
            v2.controller_dir("memory", "/kubepods"),
            Some("/sys/fs/cgroup/kubepods".into())
        );
        assert_eq!(v2.mounted_dirs("/a").len(), 1);

        assert_eq!(
            Hierarchy::parse("22 27 0:21 / /proc rw - proc proc rw\n"),
            None
        );
        assert_eq!(Hierarchy::parse("rubbish\n - cgroup"), None);
    }
}
