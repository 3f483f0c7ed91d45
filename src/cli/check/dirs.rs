//! Facts of the preflight about the directories that the agent writes to.

use std::{
    fs::{self, File},
    io::Read as _,
    path::{Path, PathBuf},
};

use nix::sys::statvfs::{FsFlags, statvfs};

use crate::{
    agent::POD_RECORD_VERSION,
    bus::logind::LogindPaths,
    config::AgentConfig,
    image::record,
    logic::check::{AgentDirectoryFacts, DirectoryFacts, DiskWearFacts},
    runtime::runc,
    shim,
    sys::{disk_wear, mount, namespaces},
};

pub(super) fn gather_dirs(cfg: &AgentConfig, agent: Option<u32>) -> AgentDirectoryFacts {
    let mut mounts = Vec::new();
    let _ = mount::each_mount(|m| mounts.push((m.target, m.kind)));
    let host_mounts = match agent {
        Some(pid) => {
            let of = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
            of(pid).zip(of(1)).map(|(agent, host)| agent == host)
        }
        None => namespaces::in_host_mount_namespace().ok(),
    };
    AgentDirectoryFacts {
        root_disk: find_disk(&cfg.dirs.root),
        root: gather_dir(&cfg.dirs.root, "--root-dir", &mounts),
        run: gather_dir(&cfg.dirs.run, "--run-dir", &mounts),
        logs: gather_dir(&cfg.dirs.pod_logs, "--pod-logs-dir", &mounts),
        others: other_written_dirs(cfg)
            .into_iter()
            .map(|(path, flag)| gather_dir(&path, flag, &mounts))
            .collect(),
        host_mounts,
        foreign_record: find_newer_record(cfg),
    }
}

/// Finds the disk that `path` is on.
fn find_disk(path: &Path) -> Option<DiskWearFacts> {
    let disk = disk_wear::read_disk_wear(path)?;
    Some(DiskWearFacts {
        name: disk.name,
        written: disk.written,
        used_life: disk.used_life,
        at_its_end: disk.at_its_end,
    })
}

/// Lists the other places that the agent writes to, beside its three directories, with the flag that names another
/// place, if there is one (SVC-20).
fn other_written_dirs(cfg: &AgentConfig) -> Vec<(PathBuf, &'static str)> {
    let cluster = &cfg.cluster;
    let mut all = vec![
        (cfg.dirs.container_logs.clone(), "--container-log-dir"),
        (cfg.dirs.image_drop_in.clone(), "--image-dir"),
    ];
    if cluster.is_member() {
        all.push((cluster.cert_dir.clone(), "--cert-dir"));
    }
    // The kubeconfig is written once the bootstrap has led to a certificate.
    if cluster.bootstrap_kubeconfig.is_some()
        && let Some(dir) = cluster.kubeconfig.as_deref().and_then(Path::parent)
    {
        all.push((dir.to_owned(), "--kubeconfig"));
    }
    if !cfg.shutdown.is_empty() {
        all.push((LogindPaths::default().drop_ins, ""));
    }
    all
}

/// Finds a record of a pod, image, sandbox or container that is too new for this program.
fn find_newer_record(cfg: &AgentConfig) -> Option<(String, u32)> {
    let images = cfg.dirs.images_dir();
    [
        (cfg.dirs.root.join("pods"), "pod.json", POD_RECORD_VERSION),
        (images.join("records"), "", record::RECORD_VERSION),
        (
            cfg.dirs.run.join("sandboxes"),
            runc::record::FILE,
            runc::record::VERSION,
        ),
        (
            cfg.dirs.run.join("containers"),
            runc::record::FILE,
            runc::record::VERSION,
        ),
        (
            cfg.dirs.run.join("containers"),
            shim::file::STATE,
            shim::record::VERSION,
        ),
    ]
    .into_iter()
    .find_map(|(dir, file, reads)| {
        let entries = fs::read_dir(dir).ok()?.flatten();
        // Joining an empty name would end the path in a slash.
        let paths = entries.map(|entry| match file {
            "" => entry.path(),
            file => entry.path().join(file),
        });
        let mut versions = paths.filter_map(|path| Some((read_record_version(&path)?, path)));
        let (version, path) = versions.find(|(version, _)| *version > reads)?;
        Some((path.display().to_string(), version))
    })
}

/// Reads the version that a record begins with. A damaged record has none: the agent deals with it.
fn read_record_version(path: &Path) -> Option<u32> {
    let mut head = [0; 32];
    let n = File::open(path).ok()?.read(&mut head).ok()?;
    let rest = core::str::from_utf8(&head[..n])
        .ok()?
        .strip_prefix("{\"v\":")?;
    let end = rest.find(|c: char| !c.is_ascii_digit())?;
    rest[..end].parse().ok()
}

/// Finds the file system on which a directory is, or will be once it is made.
fn gather_dir(path: &Path, moved_by: &str, mounts: &[(PathBuf, String)]) -> DirectoryFacts {
    let there = path.ancestors().find(|p| p.exists()).unwrap_or(path);
    let real = fs::canonicalize(there).unwrap_or_else(|_| there.to_owned());
    // The longest target above it; of two mounts at one place the later hides the earlier.
    let on = mounts
        .iter()
        .filter(|(target, _)| real.starts_with(target))
        .max_by_key(|(target, _)| target.as_os_str().len());
    let mut dir = DirectoryFacts {
        path: path.display().to_string(),
        kind: on.map_or_else(String::new, |(_, kind)| kind.clone()),
        moved_by: moved_by.into(),
        ..DirectoryFacts::default()
    };
    if let Ok(fs) = statvfs(&real) {
        let block = u64::from(fs.fragment_size());
        let has = |flag| fs.flags().contains(flag);
        dir.read_only = has(FsFlags::ST_RDONLY);
        dir.restricted = [
            ("nosuid", FsFlags::ST_NOSUID),
            ("nodev", FsFlags::ST_NODEV),
            ("noexec", FsFlags::ST_NOEXEC),
        ]
        .into_iter()
        .filter(|(_, flag)| has(*flag))
        .map(|(name, _)| name.to_owned())
        .collect();
        dir.size = u64::from(fs.blocks()).saturating_mul(block);
        dir.free = u64::from(fs.blocks_available()).saturating_mul(block);
        dir.inodes = u64::from(fs.files());
        dir.inodes_free = u64::from(fs.files_available());
    }
    dir
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_records() {
        let path = crate::testing::unused_path("record");
        for (text, version) in [
            ("{\"v\":1,\"source\":\"file\"}\n{}", Some(1)),
            ("{\"v\":12}", Some(12)),
            ("{\"v\":", None),
            ("{\"v\":99999999999999,", None),
            ("torn", None),
            ("", None),
        ] {
            fs::write(&path, text).expect("written");
            assert_eq!(read_record_version(&path), version, "{text:?}");
        }
        fs::remove_file(&path).expect("removed");
        assert_eq!(read_record_version(&path), None);
    }

    #[test]
    fn the_file_system_of_a_directory_to_be() {
        let mounts = [("/", "ext4"), ("/run", "tmpfs"), ("/run/lock", "ramfs")]
            .map(|(target, kind)| (target.into(), kind.to_owned()));
        let absent = gather_dir(Path::new("/run/no-such-dir/x"), "--x", &mounts);
        assert_eq!(
            (absent.kind.as_str(), absent.path.as_str()),
            ("tmpfs", "/run/no-such-dir/x")
        );
        assert!(absent.size > 0);
        assert_eq!(
            gather_dir(Path::new("/runner"), "--x", &mounts).kind,
            "ext4"
        );
    }
}
