//! Device nodes that come and go in containers while these run (DEV-44): a directory for each container and resource, in a file
//! system of its own, for that of the run directory takes no nodes. The container has it mounted, and cannot write there.
//!
//! ```text
//! <run>/live/<pod>/<container>/<resource>/nodes/        it and the nodes in it belong to the user of the container
//! <run>/live/<pod>/<container>/<resource>/record.json   which units these are, and what the container may use
//! ```
//!
//! Nothing of it needs an agent to be there, and it goes when nothing is in it. Everything here blocks, and is called by one
//! thread.

use std::{
    fs::{self, DirBuilder, FileType, Metadata},
    io::{self, Read as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _, chown, lchown},
    path::{Component, Path, PathBuf},
};

use nix::{
    mount::MsFlags,
    sys::stat::{Mode, SFlag, mknod},
};

use crate::{
    api::{PodUid, cri::Device, device::LiveRecord, strict::from_json},
    sys::{file, mount, open},
};

/// Names of the directory in the run directory, and of what is in one of a container and a resource.
const NAME: &str = "live";
const NODES: &str = "nodes";
const RECORD: &str = "record.json";
/// A node is made under this name, and is moved to its place when it is whole.
const NEW: &str = ".new";
/// All of it may have so much, bytes: a record takes a page, nodes take none.
const SIZE_BYTES: u64 = 4 << 20;
/// Bytes of a record: what names 256 units.
const MAX_RECORD_BYTES: u64 = 32 << 10;
/// Directories that a node lies in within each other.
const MAX_DEPTH: usize = 16;

/// The place on this machine.
#[derive(Clone, Debug)]
pub struct LiveNodes {
    root: PathBuf,
}

/// What a container has there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Pod.
    pub pod: PodUid,
    /// Container.
    pub container: Box<str>,
    /// Its record.
    pub record: LiveRecord,
    dir: PathBuf,
}

impl LiveNodes {
    /// In the run directory of the agent.
    #[must_use]
    pub fn new(run_dir: &Path) -> Self {
        Self {
            root: run_dir.join(NAME),
        }
    }

    /// Makes the directory of a container that is about to start, with these nodes, and keeps `record`. Returns its path.
    /// `name`: that of the resource, for a file.
    ///
    /// # Errors
    /// It cannot be made, or one of the nodes is another device now.
    pub fn begin(
        &self,
        pod: &PodUid,
        container: &str,
        name: &str,
        record: &LiveRecord,
        nodes: &[Device],
    ) -> io::Result<PathBuf> {
        self.mount()?;
        let dir = self.root.join(pod.as_str()).join(container).join(name);
        let at = dir.join(NODES);
        // Nobody but root has a way there, and the container.
        DirBuilder::new().recursive(true).mode(0o755).create(&at)?;
        let text = serde_json::to_vec(record)?;
        file::write_atomic(&dir.join(RECORD), &text, 0o600, false)?;
        self.fill(&at, nodes).map(|()| at)
    }

    fn mount(&self) -> io::Result<()> {
        let mut private = DirBuilder::new();
        private.recursive(true).mode(0o700).create(&self.root)?;
        // The mount table knows real paths only.
        let at = fs::canonicalize(&self.root)?;
        if mount::is_mount_point(&at)? {
            return Ok(());
        }
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC;
        mount::tmpfs(&at, Some(SIZE_BYTES), 0o700, flags)
    }

    /// What there is, of pods that are among these; that of others is removed.
    #[must_use]
    pub fn kept(&self, pods: impl Fn(&PodUid) -> bool) -> Vec<Kept> {
        let mut all = Vec::new();
        for (name, dir) in entries(&self.root) {
            let pod = PodUid::from(&*name);
            if !pods(&pod) {
                let removed = fs::remove_dir_all(&dir);
                if let Err(e) = removed.or_else(|_| fs::remove_file(&dir)) {
                    log::warn!("remove {}: {e}", dir.display());
                }
                continue;
            }
            for (container, dir) in entries(&dir) {
                for (_, dir) in entries(&dir) {
                    match record(&dir) {
                        Ok(record) => all.push(Kept {
                            pod: pod.clone(),
                            container: container.clone(),
                            record,
                            dir,
                        }),
                        Err(e) => log::warn!("{}: {e}", dir.join(RECORD).display()),
                    }
                }
            }
        }
        // One that is mounted in a container stays there.
        if all.is_empty() && self.root.exists() && entries(&self.root).is_empty() {
            let gone = mount::unmount(&self.root).and_then(|()| fs::remove_dir(&self.root));
            if let Err(e) = gone {
                log::debug!("{}: {e}", self.root.display());
            }
        }
        all
    }

    /// Lets a container that runs have these nodes, and no others. What cannot be done is told in the log, and is tried again
    /// with the next call.
    pub fn update(&self, of: &Kept, nodes: &[Device]) {
        let at = of.dir.join(NODES);
        if let Err(e) = self.fill(&at, nodes) {
            log::warn!("device nodes in {}: {e}", at.display());
        }
    }

    /// - Errors: the first; the rest is done all the same.
    fn fill(&self, at: &Path, wanted: &[Device]) -> io::Result<()> {
        let owner = fs::metadata(at)?;
        let mut done = Ok(());
        for path in nodes_in(at) {
            let is_wanted = |device: &&Device| at.join(&device.container_path) == path;
            if !wanted.iter().any(|device| is_wanted(&device)) {
                let removed = remove(at, &path);
                done = done.and(removed);
            }
        }
        for device in wanted {
            let put = self.put(at, device, &owner).map_err(|e| {
                let text = format!("device {:?}: {e}", device.host_path);
                io::Error::new(e.kind(), text)
            });
            done = done.and(put);
        }
        done
    }

    fn put(&self, at: &Path, device: &Device, owner: &Metadata) -> io::Result<()> {
        let path = Path::new(&device.container_path);
        let is_name = |part| matches!(part, Component::Normal(_));
        if !path.components().all(is_name) || path.components().count() > MAX_DEPTH {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let of_machine = open::device(device)?;
        let (uid, gid) = owner_of(&of_machine, (owner.uid(), owner.gid()), device.gid);
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
            DirBuilder::new().recursive(true).mode(0o755).create(dir)?;
        }
        let new = self.root.join(NEW);
        // What an agent has left that was killed.
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

/// Gives a directory of [`LiveNodes::begin`], and the nodes in it, to the user of the container that is about to start. `gid`:
/// group of the nodes, instead.
///
/// # Errors
/// As of the calls.
pub fn give_nodes(at: &Path, user: (u32, u32), gid: Option<u32>) -> io::Result<()> {
    chown(at, Some(user.0), Some(user.1))?;
    for path in nodes_in(at) {
        let (uid, gid) = owner_of(&fs::symlink_metadata(&path)?, user, gid);
        lchown(&path, Some(uid), Some(gid))?;
    }
    Ok(())
}

/// As of nodes that containers have from their start (DEV-43).
fn owner_of(node: &Metadata, user: (u32, u32), gid: Option<u32>) -> (u32, u32) {
    let not_root = |id: u32| Some(id).filter(|id| *id > 0);
    let uid = not_root(user.0).unwrap_or_else(|| node.uid());
    let gid = gid
        .or_else(|| not_root(user.1))
        .unwrap_or_else(|| node.gid());
    (uid, gid)
}

fn record(dir: &Path) -> io::Result<LiveRecord> {
    let mut text = Vec::new();
    let file = fs::File::open(dir.join(RECORD))?;
    file.take(MAX_RECORD_BYTES).read_to_end(&mut text)?;
    from_json(&text).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e.to_string()))
}

/// Nobody but this module makes any.
fn entries(dir: &Path) -> Vec<(Box<str>, PathBuf)> {
    let all = fs::read_dir(dir).into_iter().flatten().flatten();
    all.map(|entry| (entry.file_name().to_string_lossy().into(), entry.path()))
        .collect()
}

fn nodes_in(at: &Path) -> Vec<PathBuf> {
    let is_dir = |kind: FileType| kind.is_dir();
    let mut nodes = Vec::new();
    let mut dirs = vec![at.to_path_buf()];
    // Bounded: by what was put there.
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

/// Removes a node, and the directories that have nothing in them then.
fn remove(at: &Path, path: &Path) -> io::Result<()> {
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
    use std::os::unix::fs::FileTypeExt as _;

    use super::*;

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
            let name = format!("picolet-live-{name}-{}", std::process::id());
            let dir = std::env::temp_dir().join(name);
            fs::create_dir_all(dir.join("dev")).expect("directory");
            let live = LiveNodes::new(&dir.join("run"));
            Some(Self { dir, live })
        }

        /// A node of the machine with this minor number, which is at `path` in containers.
        fn node(&self, path: &str, minor: u32) -> Device {
            let at = self.dir.join("dev").join(path.replace('/', "-"));
            let _ = fs::remove_file(&at);
            let mode = Mode::from_bits_truncate(0o660);
            let number = nix::sys::stat::makedev(188, minor.into());
            mknod(&at, SFlag::S_IFCHR, mode, number).expect("node");
            chown(&at, Some(0), Some(20)).expect("owner");
            fs::set_permissions(&at, fs::Permissions::from_mode(0o660)).expect("mode");
            Device {
                host_path: at.display().to_string(),
                container_path: path.into(),
                major: 188,
                minor,
                ..Device::default()
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
        let record = LiveRecord {
            resource: "picolet/x".into(),
            ids: vec!["1".into()],
            majors: vec![(false, 188)],
        };
        let first = place.node("001/004", 4);
        let begun = live.begin(&pod, "c", "x", &record, core::slice::from_ref(&first));
        let at = begun.expect("made");
        assert_eq!(shown(&at), [("001/004".into(), 4, 0, 20, 0o660)]);
        // The container's user, and root, has them as from the start.
        give_nodes(&at, (1000, 1001), None).expect("given");
        let own = |name: &str, minor| (name.to_owned(), minor, 1000, 1001, 0o660);
        assert_eq!(shown(&at), [own("001/004", 4)]);
        let owner = fs::metadata(&at).expect("directory");
        assert_eq!((owner.uid(), owner.mode() & 0o777), (1000, 0o755));
        // It is found by whoever comes later, with what was kept.
        let live = LiveNodes::new(&place.dir.join("run"));
        let all = live.kept(|uid| *uid == pod);
        let [kept] = &all[..] else { panic!("{all:?}") };
        assert_eq!((&*kept.container, &kept.record), ("c", &record));
        live.update(kept, &[]);
        assert_eq!(shown(&at), []);
        assert!(!at.join("001").exists(), "no empty directory");
        let mut grouped = place.node("tty", 9);
        (grouped.gid, grouped.mode) = (Some(44), Some(0o600));
        let again = place.node("001/005", 5);
        live.update(kept, &[again, grouped.clone()]);
        let tty = ("tty".to_owned(), 9, 1000, 44, 0o600);
        assert_eq!(shown(&at), [own("001/005", 5), tty.clone()]);
        // Under its name there is another one now.
        let other = place.node("001/005", 6);
        live.update(kept, &[other.clone(), grouped.clone()]);
        assert_eq!(shown(&at), [own("001/005", 6), tty.clone()]);
        // One that has changed since it was looked at does not hold up others, and is not there.
        let stale = Device { minor: 7, ..other };
        let fresh = place.node("002/001", 8);
        let at_path = |path: String| Device {
            container_path: path,
            ..fresh.clone()
        };
        let (odd, deep) = (
            at_path("../x".into()),
            at_path("a/".repeat(MAX_DEPTH) + "b"),
        );
        live.update(kept, &[odd, deep, stale.clone(), fresh.clone()]);
        let now = shown(&at);
        assert!(now.contains(&own("002/001", 8)), "{now:?}");
        assert_eq!(now.len(), 2, "{now:?}");
        assert!(!now.contains(&tty), "{now:?}");
        assert!(!at.parent().expect("parent").join("x").exists());
        let refused = live.begin(&pod, "c", "x", &record, &[stale]);
        let text = refused.expect_err("another device").to_string();
        assert!(text.ends_with("is another device now"), "{text}");
        let size = nix::sys::statvfs::statvfs(&live.root).expect("a file system");
        assert_eq!(size.blocks() * size.fragment_size(), SIZE_BYTES);
        // What an agent cannot read is left as it is.
        let path = at.with_file_name(RECORD);
        let size = usize::try_from(MAX_RECORD_BYTES).expect("size");
        let long = LiveRecord {
            resource: "x".repeat(size).into(),
            ..record
        };
        for text in [serde_json::to_vec(&long).expect("text"), b"{}".to_vec()] {
            fs::write(&path, text).expect("written");
            assert_eq!(live.kept(|_| true), []);
        }
        assert!(at.exists());
        // The pod has gone, and an agent was killed.
        fs::write(live.root.join(NEW), "").expect("left");
        assert_eq!(live.kept(|_| false), []);
        assert!(!live.root.exists(), "nothing is left");
        assert_eq!(live.kept(|_| true), []);
    }
}
