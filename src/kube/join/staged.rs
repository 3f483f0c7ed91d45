//! The files of a join, which wait beside their places until its configuration counts: one rename decides to which cluster
//! this machine belongs (KADM-20).
//!
//! ```text
//! config.yaml.joining ─▶ the others, likewise ─▶ config.yaml: it counts ─▶ the others are put in their places
//!                  cut here: nothing has changed  │  cut here: the next start of the agent, or the next join, does the rest
//! ```
//!
//! As long as a configuration waits, nothing that waits beside it counts.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::config::{
    Config,
    join::{Before, before},
};
use crate::kube::store::Store;
use crate::sys::{file, mount};

/// How the name of a file ends before it counts.
const STAGED: &str = ".joining";

/// A file that cannot be written, and why.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {}", path.display())]
pub struct StageError {
    /// Its place.
    pub path: PathBuf,
    /// Cause.
    pub source: io::Error,
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> StageError {
    let path = path.to_path_buf();
    move |source| StageError { path, source }
}

/// Where files of a join go, on a machine with this configuration.
#[must_use]
pub fn places(cfg: &Config) -> Vec<PathBuf> {
    let cluster = &cfg.cluster;
    let files = [
        &cluster.bootstrap_kubeconfig,
        &cluster.kubeconfig,
        &cfg.server.client_ca,
    ];
    let links = [Store::client, Store::server].map(|of| of(&cluster.cert_dir).current_path());
    files.into_iter().flatten().cloned().chain(links).collect()
}

/// Does what a join has left to do that was cut off. Only a configuration that a join has written decides about it: what waits
/// may be of a join that never counted, on a machine that another way has made a node since. Returns whether there was anything.
///
/// - Errors: a file could not be put in its place. It still waits.
pub fn finish_left(file: &Path, places: &[PathBuf]) -> Result<bool, StageError> {
    match before(file) {
        Ok(Before::Member(_)) => finish(file, places),
        // Whoever reads it complains.
        Ok(Before::Nothing | Before::Own(_)) | Err(_) => Ok(false),
    }
}

/// The same for a configuration, at `file`, that a join has written.
fn finish(file: &Path, places: &[PathBuf]) -> Result<bool, StageError> {
    if is_there(&beside(file)) {
        return Ok(false);
    }
    let mut any = false;
    for place in places {
        any |= settle(place).map_err(failed(place))?;
    }
    Ok(any)
}

/// Files beside their places. Unless they are committed, they are removed again.
pub struct Staged {
    /// The configuration.
    file: PathBuf,
    /// Places of the others.
    others: Vec<PathBuf>,
    /// What counts already.
    early: Option<PathBuf>,
    counts: bool,
}

impl Staged {
    /// Begins with the configuration: while it waits, nothing else counts.
    pub fn begin(file: &Path, content: &[u8], mode: u32) -> Result<Self, StageError> {
        may_be_replaced(file)?;
        let staged = Self {
            file: file.into(),
            others: Vec::new(),
            early: None,
            counts: false,
        };
        write(&beside(file), content, mode).map_err(failed(file))?;
        Ok(staged)
    }

    /// Where the configuration waits.
    #[must_use]
    pub fn waiting(&self) -> PathBuf {
        beside(&self.file)
    }

    /// Removes what a join that was cut off has left beside these places.
    pub fn clear(&self, places: &[PathBuf]) -> Result<(), StageError> {
        for place in places.iter().filter(|place| is_there(&beside(place))) {
            remove(&beside(place))
                .and_then(|()| file::sync_dir(parent(place)))
                .map_err(failed(place))?;
        }
        Ok(())
    }

    /// A file that says nothing new: it counts at once.
    pub fn add_now(&mut self, path: &Path, content: &[u8], mode: u32) -> Result<(), StageError> {
        may_be_replaced(path)?;
        self.early = Some(path.into());
        write(path, content, mode).map_err(failed(path))
    }

    /// A file with this content, of which there is some.
    pub fn add(&mut self, path: &Path, content: &[u8], mode: u32) -> Result<(), StageError> {
        may_be_replaced(path)?;
        self.others.push(path.into());
        write(&beside(path), content, mode).map_err(failed(path))
    }

    /// A link to `target`.
    pub fn add_link(&mut self, path: &Path, target: &Path) -> Result<(), StageError> {
        self.others.push(path.into());
        let waiting = beside(path);
        remove(&waiting)
            .and_then(|()| symlink(target, &waiting))
            .and_then(|()| file::sync_dir(parent(path)))
            .map_err(failed(path))
    }

    /// What is there must not count in the new cluster. An empty file stands for that.
    pub fn add_removal(&mut self, path: &Path) -> Result<(), StageError> {
        if is_there(path) {
            self.add(path, b"", 0o600)?;
        }
        Ok(())
    }

    /// Has all of them count.
    ///
    /// - Errors: the path is that of the configuration: nothing counts; another: the rest counts after [`finish_left`].
    pub fn commit(mut self) -> Result<(), StageError> {
        let file = &self.file;
        let renamed = file::change(file).and_then(|()| fs::rename(beside(file), file));
        renamed.map_err(failed(file))?;
        self.counts = true;
        file::sync_dir(parent(file)).map_err(failed(file))?;
        finish(file, &self.others)?;
        Ok(())
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if self.counts {
            return;
        }
        for path in &self.others {
            let _ = remove(&beside(path)).and_then(|()| file::sync_dir(parent(path)));
        }
        if let Some(path) = &self.early {
            let _ = fs::remove_file(path);
        }
        // The last one: see the module.
        let _ = fs::remove_file(beside(&self.file));
    }
}

/// Where a file waits until it counts.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(OsStr::new(STAGED));
    name.into()
}

fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or_else(|| Path::new("/"))
}

fn is_there(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

/// A rename cannot put a file where a directory is, or something is mounted.
fn may_be_replaced(path: &Path) -> Result<(), StageError> {
    let mut is_mount = false;
    let read = mount::each_mount(|mount| is_mount |= mount.target == path);
    read.map_err(failed(path))?;
    if is_mount {
        return Err(failed(path)(io::Error::other("something is mounted there")));
    }
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => Err(failed(path)(io::ErrorKind::IsADirectory.into())),
        _ => Ok(()),
    }
}

fn write(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    fs::create_dir_all(parent(path))?;
    file::write_atomic(path, content, mode, true)
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// Puts what waits for this place there. Returns whether anything did.
fn settle(path: &Path) -> io::Result<bool> {
    let waiting = beside(path);
    let found = match fs::symlink_metadata(&waiting) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
        found => found?,
    };
    file::change(path)?;
    if found.is_file() && found.len() == 0 {
        remove(path)?;
        file::sync_dir(parent(path))?;
        remove(&waiting)?;
    } else {
        match fs::rename(&waiting, path) {
            // An agent that starts at the end of a join does the same.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            renamed => renamed?,
        }
    }
    file::sync_dir(parent(path))?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::BTreeMap;
    use std::rc::Rc;

    use super::*;
    use crate::error::chain;
    use crate::image::testing::Scratch;
    use crate::sys::file::watched;

    /// Names below the directory with what is in the files; links are followed.
    fn tree(dir: &Path) -> BTreeMap<String, String> {
        let entries = fs::read_dir(dir).expect("list").map(|e| e.expect("entry"));
        entries
            .map(|entry| {
                let name = entry.file_name().into_string().expect("text");
                let content = fs::read_to_string(entry.path());
                (name, content.unwrap_or_else(|_| "-".into()))
            })
            .collect()
    }

    fn of(all: &[(&str, &str)]) -> BTreeMap<String, String> {
        let own = |text: &str| String::from(text);
        all.iter()
            .map(|(name, text)| (own(name), own(text)))
            .collect()
    }

    #[test]
    fn what_never_counted_is_left_alone() {
        // KADM-20
        let scratch = Scratch::new();
        let (file, ca) = (scratch.join("other.yaml"), scratch.join("ca"));
        fs::write(&ca, "kubeadm's").expect("file");
        fs::write(beside(&ca), "of a join").expect("file");
        let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
        let finish = |text: &str| {
            fs::write(&file, format!("{head}{text}")).expect("file");
            finish_left(&file, core::slice::from_ref(&ca)).expect("finished")
        };
        assert!(!finish("clusterDNS: [10.96.0.10]\n"), "kubeadm's");
        assert!(!finish("]"), "no configuration");
        assert_eq!(fs::read_to_string(&ca).expect("file"), "kubeadm's");
        assert!(finish("picolet: {kubeconfig: /k}\n"), "a member's");
        assert_eq!(fs::read_to_string(&ca).expect("file"), "of a join");
    }

    /// A member of cluster `a`.
    fn member() -> Scratch {
        let scratch = Scratch::new();
        for name in ["ca", "config", "kubeconfig", "pair-a"] {
            fs::write(scratch.join(name), "a").expect("file");
        }
        symlink(scratch.join("pair-a"), scratch.join("current")).expect("link");
        scratch
    }

    const A: [(&str, &str); 5] = [
        ("ca", "a"),
        ("config", "a"),
        ("current", "a"),
        ("kubeconfig", "a"),
        ("pair-a", "a"),
    ];

    fn all_places(scratch: &Scratch) -> Vec<PathBuf> {
        ["ca", "kubeconfig", "current", "new"]
            .map(|name| scratch.join(name))
            .into()
    }

    /// It joins cluster `b`, whose pair is there already, or which has it ask for one.
    fn join(scratch: &Scratch, has_pair: bool) -> Result<(), StageError> {
        let place = |name: &str| scratch.join(name);
        let mut staged = Staged::begin(&place("config"), b"b", 0o644)?;
        staged.clear(&all_places(scratch))?;
        staged.add(&place("ca"), b"b", 0o644)?;
        if has_pair {
            staged.add(&place("kubeconfig"), b"b", 0o600)?;
            staged.add_link(&place("current"), &place("pair-b"))?;
        } else {
            staged.add_removal(&place("kubeconfig"))?;
            staged.add_removal(&place("current"))?;
            staged.add_removal(&place("new"))?;
        }
        staged.commit()
    }

    #[test]
    fn one_rename_decides() {
        // KADM-20: whatever cuts the join off, the machine is whole in one cluster after the next start.
        for has_pair in [true, false] {
            let after = |scratch: &Scratch| {
                let mut tree = tree(&scratch.0);
                tree.remove("pair-b");
                tree
            };
            let want = match has_pair {
                true => of(&[
                    ("ca", "b"),
                    ("config", "b"),
                    ("current", "b"),
                    ("kubeconfig", "b"),
                    ("pair-a", "a"),
                ]),
                false => of(&[("ca", "b"), ("config", "b"), ("pair-a", "a")]),
            };
            let mut outcomes = [0, 0];
            for cut in 0.. {
                let scratch = member();
                fs::write(scratch.join("pair-b"), "b").expect("file");
                // From then on the disk takes nothing more, as after a power cut.
                let (changes, seen) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
                let (count, hit) = (Rc::clone(&changes), Rc::clone(&seen));
                watched::watch(Some(Rc::new(move |_: &Path, is_synced: bool| {
                    count.set(count.get() + i32::from(!is_synced));
                    hit.set(hit.get() || count.get() > cut);
                    match hit.get() {
                        true => Err(io::Error::other("cut")),
                        false => Ok(()),
                    }
                })));
                let joined = join(&scratch, has_pair);
                watched::watch(None);
                if !seen.get() {
                    joined.expect("nothing was in its way");
                    assert_eq!(after(&scratch), want);
                    break;
                }
                let counts = fs::read(scratch.join("config")).expect("config") == b"b";
                finish(&scratch.join("config"), &all_places(&scratch)).expect("finished");
                match counts {
                    true => assert_eq!(after(&scratch), want, "cut {cut}"),
                    false => assert_eq!(after(&scratch), of(&A), "cut {cut}"),
                }
                outcomes[usize::from(counts)] += 1;
            }
            assert!(outcomes[0] > 3 && outcomes[1] > 2, "{outcomes:?}");
        }
    }

    #[test]
    fn what_waits_does_not_count() {
        // KADM-20: the power failed before the configuration was renamed.
        let scratch = member();
        let waits = ["config", "ca", "new"].map(|name| beside(&scratch.join(name)));
        for path in &waits {
            fs::write(path, "old").expect("file");
        }
        let places = all_places(&scratch);
        let finished = finish(&scratch.join("config"), &places);
        assert!(!finished.expect("looked"));
        assert!(waits.iter().all(|path| path.exists()));
        // The next join takes nothing of it.
        fs::write(scratch.join("pair-b"), "b").expect("file");
        join(&scratch, true).expect("joined");
        assert!(!waits.iter().any(|path| path.exists()));
        assert!(!scratch.join("new").exists());
        assert!(!finish(&scratch.join("config"), &places).expect("nothing is left"));
    }

    #[test]
    fn a_directory_is_in_the_way() {
        // KADM-20
        let scratch = member();
        fs::remove_file(scratch.join("ca")).expect("removed");
        fs::create_dir(scratch.join("ca")).expect("directory");
        let before = tree(&scratch.0);
        let why = chain(&join(&scratch, true).expect_err("refused"));
        assert!(why.contains("/ca: "), "{why}");
        assert_eq!(tree(&scratch.0), before);
        let why = may_be_replaced("/proc".as_ref()).expect_err("a mount point");
        assert!(chain(&why).contains("mounted"), "{why}");
    }
}
