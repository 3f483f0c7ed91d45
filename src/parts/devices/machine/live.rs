//! Device nodes that come and go in containers while these run (DEV-44): a directory for each container and resource,
//! in a file system of its own, because that of the run directory takes no nodes. The container has it mounted, and
//! cannot write there. It may use exactly the nodes that are there: its control group is told of each change.
//!
//! ```text
//! <run>/live/<pod>/<container>/rules.json               what the container may use
//! <run>/live/<pod>/<container>/<resource>/nodes/        it and the nodes in it belong to the user of the container
//! <run>/live/<pod>/<container>/<resource>/record.json   which units these are
//! ```
//!
//! None of this needs a running agent, and the file system is removed when it is empty. All functions here block, and
//! are called by one thread.

use alloc::collections::BTreeSet;
use std::{
    fs::{self, FileType, Metadata},
    io,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _, chown, lchown},
    path::{Component, Path, PathBuf},
};

use nix::{
    mount::MsFlags,
    sys::stat::{Mode, SFlag, mknod},
};

use serde::{Serialize, de::DeserializeOwned};

use crate::{
    api::{
        PodUid,
        cri::{ContainerDeviceNode, device_node_owner},
        device::{DeviceAccess, LiveDeviceRecord, LiveDeviceRules},
        strict::from_json,
    },
    cgroup::Cgroups,
    sys::{file, mount, open},
};

/// Names: the directory in the run directory, and the entries of a directory of a container or a resource.
const NAME: &str = "live";
const NODES: &str = "nodes";
const RECORD: &str = "record.json";
const RULES: &str = "rules.json";
/// A node is made under this name, and is moved to its place when it is whole.
const NEW: &str = ".new";
/// Size of the file system, bytes: a record takes a page, nodes take none.
const SIZE_BYTES: u64 = 4 << 20;
/// Largest record, bytes: enough for the names of 256 units, or 1024 nodes.
const MAX_RECORD_BYTES: u64 = 64 << 10;
/// Directories that a node lies in within each other.
const MAX_DEPTH: usize = 16;

/// The place on this machine.
#[derive(Clone, Debug)]
pub(crate) struct LiveNodes {
    root: PathBuf,
}

/// Device nodes and records that are kept for one container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeptLiveNodes {
    /// Pod.
    pub(crate) pod: PodUid,
    /// Container.
    pub(crate) container: Box<str>,
    /// Records of the container, one for each resource.
    pub(crate) records: Vec<LiveDeviceRecord>,
    dir: PathBuf,
    /// Directories of the records.
    dirs: Vec<PathBuf>,
}

impl LiveNodes {
    /// Place in the run directory of the agent.
    #[must_use]
    pub(crate) fn new(run_dir: &Path) -> Self {
        Self {
            root: run_dir.join(NAME),
        }
    }

    /// Makes the directory of a container that is about to start, with these nodes, and keeps `record`. Returns its path.
    /// `name`: that of the resource, for a file.
    ///
    /// # Errors
    /// It cannot be made, or one of the nodes is another device now.
    pub(crate) fn make_container_nodes(
        &self,
        pod: &PodUid,
        container: &str,
        name: &str,
        record: &LiveDeviceRecord,
        nodes: &[ContainerDeviceNode],
    ) -> io::Result<PathBuf> {
        self.mount()?;
        let dir = self.root.join(pod.as_str()).join(container).join(name);
        let at = dir.join(NODES);
        // Only root and the container can reach it.
        file::make_dirs(&at, 0o755)?;
        // The container's user is not known yet. It may differ from the user of the last instance.
        chown(&at, Some(0), Some(0))?;
        save(&dir.join(RECORD), record)?;
        self.fill(&at, nodes).map(|()| at)
    }

    fn mount(&self) -> io::Result<()> {
        file::make_dirs(&self.root, 0o700)?;
        // The mount table knows real paths only.
        let at = fs::canonicalize(&self.root)?;
        if mount::is_mount_point(&at)? {
            return Ok(());
        }
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC;
        mount::mount_tmpfs(&at, Some(SIZE_BYTES), 0o700, flags)
    }

    /// Reads the records of the pods for which `pods` returns true, and removes the directories of all others. Faults
    /// are added to `wrong`.
    pub(crate) fn read_kept_nodes(
        &self,
        pods: impl Fn(&PodUid) -> bool,
        wrong: &mut Vec<String>,
    ) -> Vec<KeptLiveNodes> {
        let mut all = Vec::new();
        let pods_there = entries(&self.root);
        let is_left = pods_there.is_empty() && self.root.exists();
        for (name, dir) in pods_there {
            let pod = PodUid::from(&*name);
            if !pods(&pod) {
                let removed = fs::remove_dir_all(&dir);
                if let Err(e) = removed.or_else(|_| fs::remove_file(&dir)) {
                    wrong.push(format!("remove {}: {e}", dir.display()));
                }
                continue;
            }
            for (container, dir) in entries(&dir) {
                let mut dirs: Vec<_> = entries(&dir).into_iter().map(|(_, dir)| dir).collect();
                dirs.retain(|dir| dir.is_dir());
                let records = dirs.iter().map(|dir| read_record(&dir.join(RECORD)));
                match records.collect() {
                    Ok(records) => all.push(KeptLiveNodes {
                        pod: pod.clone(),
                        container,
                        records,
                        dir,
                        dirs,
                    }),
                    // The directory stays as it is.
                    Err(e) => wrong.push(format!("{}: {e}", dir.display())),
                }
            }
        }
        if is_left {
            let gone = mount::unmount(&self.root).and_then(|()| fs::remove_dir(&self.root));
            if let Err(e) = gone {
                wrong.push(format!("remove {}: {e}", self.root.display()));
            }
        }
        all
    }

    /// Lets a container that runs have these nodes, and no others, of each of its records.
    ///
    /// # Errors
    /// The first; the rest is done all the same, and the next call tries all of it again.
    pub(crate) fn update_container_nodes(
        &self,
        of: &KeptLiveNodes,
        nodes: &[Vec<ContainerDeviceNode>],
        cgroups: &Cgroups,
    ) -> Result<(), LiveNodeError> {
        let wanted = of.records.iter().zip(nodes).flat_map(|(record, nodes)| {
            nodes.iter().map(|node| DeviceAccess {
                number: (node.block, node.major, node.minor),
                access: record.permissions.clone(),
            })
        });
        let wanted: BTreeSet<DeviceAccess> = wanted.collect();
        let rules = of.dir.join(RULES);
        // There are none yet, or the container may use all devices.
        let rules = rules.exists().then_some(rules);
        let allow = |allowed: &BTreeSet<DeviceAccess>| match &rules {
            Some(path) => allow_only_nodes(path, allowed, cgroups),
            None => Ok(()),
        };
        let before = rules
            .as_ref()
            .and_then(|path| read_record::<LiveDeviceRules>(path).ok());
        let before = before.map_or_else(Vec::new, |rules| rules.allowed);
        // A node that can be seen may be used: so both sets are allowed while nodes change.
        let both: BTreeSet<DeviceAccess> = wanted.iter().cloned().chain(before).collect();
        let mut done = allow(&both);
        for (dir, nodes) in of.dirs.iter().zip(nodes) {
            let at = dir.join(NODES);
            let filled = self
                .fill(&at, nodes)
                .map_err(|e| LiveNodeError { at, source: e });
            done = done.and(filled);
        }
        let closed = allow(&wanted);
        done.and(closed)
    }

    /// - Errors: the first; the rest is done all the same.
    fn fill(&self, at: &Path, wanted: &[ContainerDeviceNode]) -> io::Result<()> {
        let owner = fs::metadata(at)?;
        let mut done = Ok(());
        for path in nodes_in(at) {
            let is_wanted = |device: &&ContainerDeviceNode| at.join(&device.container_path) == path;
            if !wanted.iter().any(|device| is_wanted(&device)) {
                let removed = remove_node(at, &path);
                done = done.and(removed);
            }
        }
        for device in wanted {
            let put = self.put_device_node(at, device, &owner).map_err(|e| {
                let text = format!("device {:?}: {e}", device.host_path);
                io::Error::new(e.kind(), text)
            });
            done = done.and(put);
        }
        done
    }

    fn put_device_node(
        &self,
        at: &Path,
        device: &ContainerDeviceNode,
        owner: &Metadata,
    ) -> io::Result<()> {
        let path = Path::new(&device.container_path);
        let is_name = |part| matches!(part, Component::Normal(_));
        if !path.components().all(is_name) || path.components().count() > MAX_DEPTH {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let of_machine = open::read_device_metadata(device)?;
        let (user, node) = (
            (owner.uid(), owner.gid()),
            (of_machine.uid(), of_machine.gid()),
        );
        let (uid, gid) = device_node_owner(user, node, device.gid);
        let mode = device.mode.unwrap_or_else(|| of_machine.mode() & 0o777);
        let target = at.join(path);
        let is_it = |there: Metadata| {
            there.rdev() == of_machine.rdev()
                && there.file_type() == of_machine.file_type()
                && (there.uid(), there.gid(), there.mode() & 0o777) == (uid, gid, mode)
        };
        if fs::symlink_metadata(&target).is_ok_and(is_it) {
            return Ok(());
        }
        if let Some(dir) = target.parent() {
            file::make_dirs(dir, 0o755)?;
        }
        let new = self.root.join(NEW);
        // A killed agent may have left one.
        let _ = fs::remove_file(&new);
        let kind = match device.block {
            true => SFlag::S_IFBLK,
            false => SFlag::S_IFCHR,
        };
        mknod(&new, kind, Mode::empty(), of_machine.rdev())?;
        chown(&new, Some(uid), Some(gid))?;
        fs::set_permissions(&new, fs::Permissions::from_mode(mode))?;
        fs::rename(&new, &target)
    }
}

/// Gives a directory of [`LiveNodes::make_container_nodes`], and the nodes in it, to the user of the container that
/// is about to start. `gid`: group of the nodes, instead.
///
/// # Errors
/// As of the calls.
pub(crate) fn give_nodes(at: &Path, user: (u32, u32), gid: Option<u32>) -> io::Result<()> {
    chown(at, Some(user.0), Some(user.1))?;
    for path in nodes_in(at) {
        let node = fs::symlink_metadata(&path)?;
        let (uid, gid) = device_node_owner(user, (node.uid(), node.gid()), gid);
        lchown(&path, Some(uid), Some(gid))?;
    }
    Ok(())
}

/// Keeps the rules of a container that is about to be made, beside the directory `at` of [`LiveNodes::make_container_nodes`].
///
/// # Errors
/// As of the calls.
pub(crate) fn keep_rules(at: &Path, rules: &LiveDeviceRules) -> io::Result<()> {
    save(&container_dir(at)?.join(RULES), rules)
}

/// Lets a container that is about to start use the nodes that are there, and no other devices of these kinds.
///
/// # Errors
/// It cannot be done: nothing of the container must run.
pub(crate) fn open_nodes(at: &Path, cgroups: &Cgroups) -> io::Result<()> {
    let dir = container_dir(at)?;
    let path = dir.join(RULES);
    let mut rules: LiveDeviceRules = read_record(&path)?;
    let mut allowed = BTreeSet::new();
    for (_, dir) in entries(dir).into_iter().filter(|(_, dir)| dir.is_dir()) {
        let record: LiveDeviceRecord = read_record(&dir.join(RECORD))?;
        for node in nodes_in(&dir.join(NODES)) {
            let node = fs::symlink_metadata(node)?;
            let number = node.rdev();
            allowed.insert(DeviceAccess {
                number: (
                    node.file_type().is_block_device(),
                    libc::major(number),
                    libc::minor(number),
                ),
                access: record.permissions.clone(),
            });
        }
    }
    rules.allowed = allowed.into_iter().collect();
    cgroups.allow_devices(&rules, &[])?;
    save(&path, &rules)
}

fn container_dir(at: &Path) -> io::Result<&Path> {
    let dir = at.parent().and_then(Path::parent);
    dir.ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

/// Error of a change for a container that runs.
#[derive(Debug, thiserror::Error)]
#[error("device nodes in {at:?}: {source}")]
pub(crate) struct LiveNodeError {
    at: PathBuf,
    source: io::Error,
}

/// Lets the container use these nodes and no others. Does nothing if that is so already, or if the container does not
/// run: at its start the nodes that are there then count.
fn allow_only_nodes(
    path: &Path,
    allowed: &BTreeSet<DeviceAccess>,
    cgroups: &Cgroups,
) -> Result<(), LiveNodeError> {
    let change = || {
        let mut rules: LiveDeviceRules = read_record(path)?;
        if !cgroups.has_group(&rules.cgroup) || allowed.iter().eq(&rules.allowed) {
            return Ok(());
        }
        let before = core::mem::take(&mut rules.allowed);
        rules.allowed = allowed.iter().cloned().collect();
        // Kept before the change: if the agent is killed now, the file names at least what was opened.
        if allowed.len() > before.len() {
            save(path, &rules)?;
        }
        cgroups.allow_devices(&rules, &before)?;
        save(path, &rules)
    };
    change().map_err(|source| LiveNodeError {
        at: path.to_owned(),
        source,
    })
}

fn save(path: &Path, record: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_vec(record)?;
    file::write_atomic(path, &text, 0o600, false)
}

fn read_record<T: DeserializeOwned>(path: &Path) -> io::Result<T> {
    let text = file::read_start(path, MAX_RECORD_BYTES)?;
    from_json(&text).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e.to_string()))
}

/// Lists a directory: names and paths. No bound is needed: this module alone makes the entries.
fn entries(dir: &Path) -> Vec<(Box<str>, PathBuf)> {
    let all = fs::read_dir(dir).into_iter().flatten().flatten();
    all.map(|entry| (entry.file_name().to_string_lossy().into(), entry.path()))
        .collect()
}

fn nodes_in(at: &Path) -> Vec<PathBuf> {
    let is_dir = |kind: FileType| kind.is_dir();
    let mut nodes = Vec::new();
    let mut dirs = vec![at.to_path_buf()];
    // Bounded: only this module adds nodes.
    while let Some(dir) = dirs.pop() {
        for (_, path) in entries(&dir) {
            let kind = fs::symlink_metadata(&path).map(|m| m.file_type());
            if kind.is_ok_and(is_dir) {
                dirs.push(path);
            } else {
                nodes.push(path);
            }
        }
    }
    nodes
}

/// Removes a node, and directories that become empty.
fn remove_node(at: &Path, path: &Path) -> io::Result<()> {
    fs::remove_file(path)?;
    let dirs = path.ancestors().skip(1).take_while(|dir| *dir != at);
    for dir in dirs {
        if fs::remove_dir(dir).is_err() {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::Hierarchy;

    /// A run directory, and the nodes of a machine.
    struct Place {
        dir: PathBuf,
        live: LiveNodes,
    }

    impl Place {
        fn new(name: &str) -> Option<Self> {
            if !nix::unistd::geteuid().is_root() {
                skipped!("device nodes: it needs root");
                return None;
            }
            let dir = crate::testing::unused_path(&format!("live-{name}"));
            fs::create_dir_all(dir.join("dev")).expect("directory");
            let live = LiveNodes::new(&dir.join("run"));
            Some(Self { dir, live })
        }

        /// A control group of version 1, and its directory.
        fn group(&self, name: &str) -> (PathBuf, Cgroups) {
            let dir = self.dir.join("cgroup").join(name);
            fs::create_dir_all(&dir).expect("group");
            let top = self.dir.join("cgroup");
            let text = format!(
                "1 1 0:1 / {} rw - cgroup cgroup rw,devices,memory",
                top.display()
            );
            let hierarchy = Hierarchy::parse(&text).expect("version 1");
            (dir, Cgroups::with_hierarchy(hierarchy))
        }

        /// A node of the machine with this minor number, which is at `path` in containers.
        fn node(&self, path: &str, minor: u32) -> ContainerDeviceNode {
            let at = self.dir.join("dev").join(path.replace('/', "-"));
            let _ = fs::remove_file(&at);
            let mode = Mode::from_bits_truncate(0o660);
            let number = nix::sys::stat::makedev(188, minor.into());
            mknod(&at, SFlag::S_IFCHR, mode, number).expect("node");
            chown(&at, Some(0), Some(20)).expect("owner");
            fs::set_permissions(&at, fs::Permissions::from_mode(0o660)).expect("mode");
            ContainerDeviceNode {
                host_path: at.display().to_string(),
                container_path: path.into(),
                major: 188,
                minor,
                ..ContainerDeviceNode::default()
            }
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = mount::unmount(&self.live.root);
            let _ = fs::remove_dir_all(&self.dir);
        }
    }

    /// Paths with minor numbers, owners and permission bits.
    fn shown(at: &Path) -> Vec<(String, u64, u32, u32, u32)> {
        let mut all: Vec<_> = nodes_in(at)
            .iter()
            .map(|path| {
                let m = fs::symlink_metadata(path).expect("node");
                assert!(m.file_type().is_char_device(), "{path:?}");
                let name = path.strip_prefix(at).expect("below").display().to_string();
                let minor = nix::sys::stat::minor(m.rdev());
                (name, minor, m.uid(), m.gid(), m.mode() & 0o777)
            })
            .collect();
        all.sort();
        all
    }

    #[test]
    fn nodes_come_and_go() {
        // DEV-44
        let Some(place) = Place::new("come") else {
            return;
        };
        let live = &place.live;
        let pod = PodUid::from("a");
        let record = LiveDeviceRecord {
            resource: "picolet/x".into(),
            ids: vec!["1".into()],
            majors: vec![(false, 188)],
            permissions: "rw".into(),
        };
        let first = place.node("001/004", 4);
        let begun =
            live.make_container_nodes(&pod, "c", "x", &record, core::slice::from_ref(&first));
        let at = begun.expect("made");
        assert_eq!(shown(&at), [("001/004".into(), 4, 0, 20, 0o660)]);
        // The container's user, and root, has them as from the start.
        give_nodes(&at, (1000, 1001), None).expect("given");
        let own = |name: &str, minor| (name.to_owned(), minor, 1000, 1001, 0o660);
        assert_eq!(shown(&at), [own("001/004", 4)]);
        let owner = fs::metadata(&at).expect("directory");
        assert_eq!((owner.uid(), owner.mode() & 0o777), (1000, 0o755));
        // It may use the nodes that are there when it starts.
        let (group, cgroups) = place.group("g");
        let rules = LiveDeviceRules {
            cgroup: "/g".into(),
            majors: vec![(false, 188)],
            ..LiveDeviceRules::default()
        };
        keep_rules(&at, &rules).expect("kept");
        open_nodes(&at, &cgroups).expect("open");
        let told = || {
            ["devices.allow", "devices.deny"].map(|name| {
                let path = group.join(name);
                let text = fs::read_to_string(&path).unwrap_or_default();
                let _ = fs::remove_file(path);
                text
            })
        };
        assert_eq!(told(), ["c 188:4 rw", ""]);
        // A later agent finds the directory, with its records.
        let live = LiveNodes::new(&place.dir.join("run"));
        let mut wrong = Vec::new();
        let all = live.read_kept_nodes(|uid| *uid == pod, &mut wrong);
        let [kept] = &all[..] else { panic!("{all:?}") };
        assert_eq!(
            (&*kept.container, &kept.records[..]),
            ("c", core::slice::from_ref(&record))
        );
        let update = |nodes: &[ContainerDeviceNode]| {
            live.update_container_nodes(kept, &[nodes.to_vec()], &cgroups)
        };
        update(core::slice::from_ref(&first)).expect("done");
        assert_eq!(told(), ["", ""], "nothing is new");
        update(&[]).expect("done");
        assert_eq!(shown(&at), []);
        assert!(!at.join("001").exists(), "no empty directory");
        assert_eq!(told(), ["", "c 188:4 rw"]);
        let mut grouped = place.node("tty", 9);
        (grouped.gid, grouped.mode) = (Some(44), Some(0o600));
        let again = place.node("001/005", 5);
        update(&[again, grouped.clone()]).expect("done");
        let tty = ("tty".to_owned(), 9, 1000, 44, 0o600);
        assert_eq!(shown(&at), [own("001/005", 5), tty.clone()]);
        // Under its name there is another one now.
        told();
        let other = place.node("001/005", 6);
        update(&[other.clone(), grouped]).expect("done");
        assert_eq!(shown(&at), [own("001/005", 6), tty.clone()]);
        let [allowed, denied] = told();
        assert_eq!(denied, "c 188:5 rw");
        assert!(allowed.starts_with("c 188:"), "{allowed}");
        // A node that has changed since the look is left out, and does not hold up others.
        let stale = ContainerDeviceNode { minor: 7, ..other };
        let fresh = place.node("002/001", 8);
        let at_path = |path: String| ContainerDeviceNode {
            container_path: path,
            ..fresh.clone()
        };
        let (odd, deep) = (
            at_path("../x".into()),
            at_path("a/".repeat(MAX_DEPTH) + "b"),
        );
        update(&[odd, deep, stale.clone(), fresh.clone()]).expect_err("odd ones");
        let now = shown(&at);
        assert!(now.contains(&own("002/001", 8)), "{now:?}");
        assert_eq!(now.len(), 2, "{now:?}");
        assert!(!now.contains(&tty), "{now:?}");
        assert!(!at.parent().expect("parent").join("x").exists());
        // A group that does not run is told nothing, and takes the nodes that are there when it starts.
        told();
        fs::rename(&group, group.with_extension("old")).expect("gone");
        update(core::slice::from_ref(&fresh)).expect("done");
        fs::rename(group.with_extension("old"), &group).expect("back");
        assert_eq!(told(), ["", ""]);
        // The next instance is of another user.
        let refused = live.make_container_nodes(&pod, "c", "x", &record, &[stale]);
        let text = refused.expect_err("another device").to_string();
        assert!(text.ends_with("is another device now"), "{text}");
        let begun =
            live.make_container_nodes(&pod, "c", "x", &record, core::slice::from_ref(&fresh));
        begun.expect("made");
        assert_eq!(shown(&at), [("002/001".into(), 8, 0, 20, 0o660)]);
        let size = nix::sys::statvfs::statvfs(&live.root).expect("a file system");
        assert_eq!(
            u64::from(size.blocks()) * u64::from(size.fragment_size()),
            SIZE_BYTES
        );
        // A record that an agent cannot read is left as it is, and reported.
        let path = at.with_file_name(RECORD);
        let size = usize::try_from(MAX_RECORD_BYTES).expect("size");
        let long = LiveDeviceRecord {
            resource: "x".repeat(size).into(),
            ..record
        };
        for text in [serde_json::to_vec(&long).expect("text"), b"{}".to_vec()] {
            fs::write(&path, text).expect("written");
            let mut wrong = Vec::new();
            let kept = live.read_kept_nodes(|_| true, &mut wrong);
            assert!(kept.is_empty() && wrong.len() == 1, "{wrong:?}");
            open_nodes(&at, &cgroups).expect_err("not known");
        }
        assert_eq!(shown(&at).len(), 1);
        // The pod has gone, and an agent was killed.
        fs::write(live.root.join(NEW), "").expect("left");
        assert_eq!(live.read_kept_nodes(|_| false, &mut wrong), []);
        assert_eq!(live.read_kept_nodes(|_| false, &mut wrong), []);
        assert!(!live.root.exists(), "nothing is left");
        assert_eq!(live.read_kept_nodes(|_| true, &mut wrong), []);
        assert!(wrong.is_empty(), "{wrong:?}");
    }
}
