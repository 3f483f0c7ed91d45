//! The files of a join, which wait beside their places until its configuration counts: one rename decides to which cluster
//! this machine belongs (KADM-20).
//!
//! ```text
//! config.yaml.joining ─▶ the others, likewise ─▶ config.yaml: it counts ─▶ the others are put in their places
//!                  cut here: nothing has changed  │  cut here: the next start of the agent, or the next join, does the rest
//! ```
//!
//! As long as a configuration waits, nothing that waits beside it counts. The copy of the operator's own file is in its
//! place before, for it says what the file says. After a join that was cut off, the copy would go on counting when the
//! file is changed, so it is taken back.

use std::ffi::OsStr;
use std::fs::{self, File, TryLockError};
use std::io::{self, Read as _};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::config::{
    AgentConfig,
    join::{EARLIER_OWN_DROP_IN, ExistingNodeConfig, OWN_DROP_IN, read_existing_config},
};
use crate::kube::store::CertificateStore;
use crate::sys::{file, mount};

/// Suffix of a file's name until it counts.
const STAGED: &str = ".joining";

/// A file that cannot be written, and why.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {}", path.display())]
pub struct StageError {
    /// Place of the file.
    pub path: PathBuf,
    /// Cause.
    pub source: io::Error,
}

fn stage_error(path: &Path) -> impl FnOnce(io::Error) -> StageError {
    let path = path.to_path_buf();
    move |source| StageError { path, source }
}

/// Places of the files of a join, on a machine with this configuration.
#[must_use]
pub fn join_file_paths(cfg: &AgentConfig) -> Vec<PathBuf> {
    let cluster = &cfg.cluster;
    let files = [
        &cluster.bootstrap_kubeconfig,
        &cluster.kubeconfig,
        &cfg.server.client_ca,
    ];
    let links = [CertificateStore::client, CertificateStore::server]
        .map(|of| of(&cluster.cert_dir).current_path());
    files.into_iter().flatten().cloned().chain(links).collect()
}

/// Takes the lock that a join holds: two joins at a time would take each other's files away. The directory of the
/// configuration at `file` is locked, so that no lock file is left.
pub fn lock_join(file: &Path) -> Result<File, TryLockError> {
    let dir = File::open(parent(file)).map_err(TryLockError::Error)?;
    dir.try_lock()?;
    Ok(dir)
}

/// Finishes a join that was cut off. Files that wait count only if a join has written the configuration: otherwise they
/// may be of a join that never counted, on a machine that has become a node in another way since. Returns true if there
/// was anything to do.
///
/// - `drop_ins`: directory of drop-ins. `None`: there is none, or a join may be at work, which needs its copy.
/// - Errors: a file could not be put in its place, and still waits; or the copy of the operator's file could not be removed.
pub fn finish_interrupted_join(
    file: &Path,
    places: &[PathBuf],
    drop_ins: Option<&Path>,
) -> Result<bool, StageError> {
    match (read_existing_config(file), drop_ins) {
        (Ok(ExistingNodeConfig::Member(_)), _) => finish_join(file, places),
        (Ok(ExistingNodeConfig::Own(own)), Some(dir)) => remove_operator_copy(file, &own, dir),
        // The reader of the configuration reports an error.
        (Ok(ExistingNodeConfig::Nothing | ExistingNodeConfig::Own(_)) | Err(_), _) => Ok(false),
    }
}

/// Removes the copy of the operator's file. The file itself says `own`, and still counts.
fn remove_operator_copy(file: &Path, own: &[u8], drop_ins: &Path) -> Result<bool, StageError> {
    if !path_exists(&waiting_path(file)) {
        return Ok(false);
    }
    let mut any = false;
    // Bounded: two names.
    for copy in [OWN_DROP_IN, EARLIER_OWN_DROP_IN].map(|name| drop_ins.join(name)) {
        if has_content(&copy, own).map_err(stage_error(&copy))? == Some(true) {
            file::mark_change(&copy)
                .and_then(|()| remove_if_there(&copy))
                .and_then(|()| file::sync_dir(drop_ins))
                .map_err(stage_error(&copy))?;
            any = true;
        }
    }
    Ok(any)
}

/// Finishes the join that has written the configuration at `file`. Returns true if anything changed.
fn finish_join(file: &Path, places: &[PathBuf]) -> Result<bool, StageError> {
    if path_exists(&waiting_path(file)) {
        return Ok(false);
    }
    let mut any = false;
    for place in places {
        any |= move_into_place(place).map_err(stage_error(place))?;
    }
    Ok(any)
}

/// Files beside their places. Unless they are committed, they are removed again.
pub struct StagedFiles {
    /// The configuration.
    file: PathBuf,
    /// Places of the others.
    others: Vec<PathBuf>,
    /// A file that counts already, and was not there before.
    early: Option<PathBuf>,
    counts: bool,
}

impl StagedFiles {
    /// Stages the configuration, as the first file: while it waits, nothing else counts.
    pub fn stage_config(file: &Path, content: &[u8], mode: u32) -> Result<Self, StageError> {
        check_replaceable(file)?;
        let staged = Self {
            file: file.into(),
            others: Vec::new(),
            early: None,
            counts: false,
        };
        write_file(&waiting_path(file), content, mode).map_err(stage_error(file))?;
        Ok(staged)
    }

    /// Place where the configuration waits.
    #[must_use]
    pub fn waiting_config_path(&self) -> PathBuf {
        waiting_path(&self.file)
    }

    /// Removes the files that a join that was cut off has left beside these places.
    pub fn clear_leftovers(&self, places: &[PathBuf]) -> Result<(), StageError> {
        for place in places
            .iter()
            .filter(|place| path_exists(&waiting_path(place)))
        {
            remove_if_there(&waiting_path(place))
                .and_then(|()| file::sync_dir(parent(place)))
                .map_err(stage_error(place))?;
        }
        Ok(())
    }

    /// Adds a file that changes nothing: it counts at once. If it is there with the same content already, it stays even
    /// if the join fails.
    ///
    /// - Errors: also if another file has the place: its content would be lost.
    pub fn add_now(&mut self, path: &Path, content: &[u8], mode: u32) -> Result<(), StageError> {
        check_replaceable(path)?;
        match has_content(path, content).map_err(stage_error(path))? {
            None => {}
            Some(true) => return Ok(()),
            Some(false) => {
                let why = "another file is there: give it another name, and join again";
                return Err(stage_error(path)(io::Error::other(why)));
            }
        }
        self.early = Some(path.into());
        write_file(path, content, mode).map_err(stage_error(path))
    }

    /// Stages a file with this content, which is not empty.
    pub fn add_file(&mut self, path: &Path, content: &[u8], mode: u32) -> Result<(), StageError> {
        check_replaceable(path)?;
        self.others.push(path.into());
        write_file(&waiting_path(path), content, mode).map_err(stage_error(path))
    }

    /// Stages a link to `target`.
    pub fn add_link(&mut self, path: &Path, target: &Path) -> Result<(), StageError> {
        self.others.push(path.into());
        let waiting = waiting_path(path);
        remove_if_there(&waiting)
            .and_then(|()| symlink(target, &waiting))
            .and_then(|()| file::sync_dir(parent(path)))
            .map_err(stage_error(path))
    }

    /// Stages an empty file over `path`, if there is a file: the old content must not count in the new cluster.
    pub fn add_removal(&mut self, path: &Path) -> Result<(), StageError> {
        if path_exists(path) {
            self.add_file(path, b"", 0o600)?;
        }
        Ok(())
    }

    /// Puts all files in their places.
    ///
    /// - Errors: if the path is that of the configuration, nothing counts; else the rest counts after
    ///   [`finish_interrupted_join`].
    pub fn commit(mut self) -> Result<(), StageError> {
        let file = &self.file;
        let renamed = file::mark_change(file).and_then(|()| fs::rename(waiting_path(file), file));
        renamed.map_err(stage_error(file))?;
        self.counts = true;
        file::sync_dir(parent(file)).map_err(stage_error(file))?;
        finish_join(file, &self.others)?;
        Ok(())
    }
}

impl Drop for StagedFiles {
    fn drop(&mut self) {
        if self.counts {
            return;
        }
        for path in &self.others {
            let _ =
                remove_if_there(&waiting_path(path)).and_then(|()| file::sync_dir(parent(path)));
        }
        if let Some(path) = &self.early {
            let _ = remove_if_there(path).and_then(|()| file::sync_dir(parent(path)));
        }
        // The last one: see the module.
        let _ = fs::remove_file(waiting_path(&self.file));
    }
}

/// Place where a file waits until it counts.
fn waiting_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(OsStr::new(STAGED));
    name.into()
}

fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or_else(|| Path::new("/"))
}

fn path_exists(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

/// Returns true if the file at `path` has this content and no more; `None`: there is no file. A link counts as other
/// content: it is no copy.
fn has_content(path: &Path, content: &[u8]) -> io::Result<Option<bool>> {
    match fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
        Ok(found) if !found.is_file() => return Ok(Some(false)),
        Ok(_) => {}
    }
    let limit = u64::try_from(content.len()).unwrap_or(u64::MAX);
    let mut there = Vec::new();
    File::open(path)?
        .take(limit.saturating_add(1))
        .read_to_end(&mut there)?;
    Ok(Some(there == content))
}

/// Checks that a rename can put a file there: it cannot over a directory or a mount.
fn check_replaceable(path: &Path) -> Result<(), StageError> {
    let mut is_mount = false;
    let read = mount::each_mount(|mount| is_mount |= mount.target == path);
    read.map_err(stage_error(path))?;
    if is_mount {
        return Err(stage_error(path)(io::Error::other(
            "something is mounted there",
        )));
    }
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => Err(stage_error(path)(io::ErrorKind::IsADirectory.into())),
        _ => Ok(()),
    }
}

fn write_file(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    fs::create_dir_all(parent(path))?;
    file::write_atomic(path, content, mode, true)
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// Puts the file that waits for this place there. Returns true if there was one.
fn move_into_place(path: &Path) -> io::Result<bool> {
    let waiting = waiting_path(path);
    let found = match fs::symlink_metadata(&waiting) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
        found => found?,
    };
    file::mark_change(path)?;
    if found.is_file() && found.len() == 0 {
        remove_if_there(path)?;
        file::sync_dir(parent(path))?;
        remove_if_there(&waiting)?;
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
    use crate::error::error_chain;
    use crate::sys::file::watched;
    use crate::testing::TestDir;

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
        let scratch = TestDir::new("staged");
        let (file, ca) = (scratch.join("other.yaml"), scratch.join("ca"));
        fs::write(&ca, "kubeadm's").expect("file");
        fs::write(waiting_path(&ca), "of a join").expect("file");
        let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
        let finish = |text: &str| {
            fs::write(&file, format!("{head}{text}")).expect("file");
            finish_interrupted_join(&file, core::slice::from_ref(&ca), None).expect("finished")
        };
        assert!(!finish("clusterDNS: [10.96.0.10]\n"), "kubeadm's");
        assert!(!finish("]"), "no configuration");
        assert_eq!(fs::read_to_string(&ca).expect("file"), "kubeadm's");
        assert!(finish("picolet: {kubeconfig: /k}\n"), "a member's");
        assert_eq!(fs::read_to_string(&ca).expect("file"), "of a join");
    }

    #[test]
    fn the_copy_of_a_join_that_never_counted_goes() {
        // KADM-20
        const OWN: &str =
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: 9\n";
        for name in [OWN_DROP_IN, EARLIER_OWN_DROP_IN] {
            let scratch = TestDir::new("staged");
            let (file, dir) = (scratch.join("config"), scratch.join("config.d"));
            let (copy, other) = (dir.join(name), dir.join("10-other.conf"));
            fs::create_dir(&dir).expect("directory");
            fs::write(&file, OWN).expect("file");
            fs::write(&copy, OWN).expect("file");
            fs::write(&other, OWN).expect("file");
            let finish = |drop_ins| finish_interrupted_join(&file, &[], drop_ins).expect("looked");
            assert!(!finish(Some(&*dir)), "no join was cut off");
            fs::write(waiting_path(&file), "b").expect("file");
            assert!(!finish(None), "a join may be at work");
            fs::write(&copy, "maxPods: 8").expect("file");
            assert!(!finish(Some(&*dir)), "somebody has changed it");
            fs::write(&copy, format!("{OWN}#")).expect("file");
            assert!(!finish(Some(&*dir)), "somebody has added to it");
            fs::remove_file(&copy).expect("removed");
            symlink(&file, &copy).expect("link");
            assert!(!finish(Some(&*dir)), "a link is no copy");
            fs::remove_file(&copy).expect("removed");
            fs::write(&copy, OWN).expect("file");
            fs::write(&file, format!("{OWN}picolet: {{kubeconfig: /k}}\n")).expect("file");
            assert!(!finish(Some(&*dir)) && copy.exists(), "the join counts");
            fs::write(&file, OWN).expect("file");
            assert!(finish(Some(&*dir)) && !copy.exists());
            assert!(other.exists() && waiting_path(&file).exists());
            assert!(!finish(Some(&*dir)), "nothing is left");
        }
    }

    #[test]
    fn what_counts_at_once_takes_no_place() {
        // KADM-20
        let scratch = member();
        let copy = scratch.join("copy");
        let before = tree(&scratch.0);
        // A join that is given up leaves the files as they were.
        let begin =
            || StagedFiles::stage_config(&scratch.join("config"), b"b", 0o644).expect("begun");
        let mut staged = begin();
        staged.add_now(&copy, b"a", 0o600).expect("written");
        assert_eq!(fs::read(&copy).expect("copy"), b"a");
        drop(staged);
        assert_eq!(tree(&scratch.0), before);
        fs::write(&copy, "a").expect("file");
        let mut staged = begin();
        staged.add_now(&copy, b"a", 0o600).expect("it is there");
        drop(staged);
        assert_eq!(fs::read(&copy).expect("copy"), b"a");
        for other in ["", "b", "ab"] {
            fs::write(&copy, other).expect("file");
            let mut staged = begin();
            let why = staged.add_now(&copy, b"a", 0o600).expect_err("taken");
            assert!(
                error_chain(&why).contains("/copy: another file is there"),
                "{why}"
            );
            drop(staged);
            assert_eq!(fs::read(&copy).expect("copy"), other.as_bytes());
        }
        let mut staged = begin();
        fs::remove_file(&copy).expect("removed");
        staged.add_now(&copy, b"a", 0o600).expect("written");
        staged.commit().expect("it counts");
        assert_eq!(fs::read(&copy).expect("copy"), b"a");
        assert_eq!(fs::read(scratch.join("config")).expect("file"), b"b");
    }

    #[test]
    fn one_join_at_a_time() {
        let scratch = TestDir::new("staged");
        let file = scratch.join("config");
        let held = lock_join(&file).expect("free");
        assert!(matches!(lock_join(&file), Err(TryLockError::WouldBlock)));
        drop(held);
        lock_join(&file).expect("free again");
        let nowhere = lock_join(&scratch.join("none/config"));
        assert!(matches!(nowhere, Err(TryLockError::Error(_))));
    }

    /// A member of cluster `a`.
    fn member() -> TestDir {
        let scratch = TestDir::new("staged");
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

    fn all_places(scratch: &TestDir) -> Vec<PathBuf> {
        ["ca", "kubeconfig", "current", "new"]
            .map(|name| scratch.join(name))
            .into()
    }

    /// Joins cluster `b`, whose pair is there already, or else is to be asked for.
    fn join(scratch: &TestDir, has_pair: bool) -> Result<(), StageError> {
        let place = |name: &str| scratch.join(name);
        let mut staged = StagedFiles::stage_config(&place("config"), b"b", 0o644)?;
        staged.clear_leftovers(&all_places(scratch))?;
        staged.add_file(&place("ca"), b"b", 0o644)?;
        if has_pair {
            staged.add_file(&place("kubeconfig"), b"b", 0o600)?;
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
            let after = |scratch: &TestDir| {
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
                watched::set_watcher(Some(Rc::new(move |_: &Path, is_synced: bool| {
                    count.set(count.get() + i32::from(!is_synced));
                    hit.set(hit.get() || count.get() > cut);
                    match hit.get() {
                        true => Err(io::Error::other("cut")),
                        false => Ok(()),
                    }
                })));
                let joined = join(&scratch, has_pair);
                watched::set_watcher(None);
                if !seen.get() {
                    joined.expect("nothing was in its way");
                    assert_eq!(after(&scratch), want);
                    break;
                }
                let counts = fs::read(scratch.join("config")).expect("config") == b"b";
                finish_join(&scratch.join("config"), &all_places(&scratch)).expect("finished");
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
        let waits = ["config", "ca", "new"].map(|name| waiting_path(&scratch.join(name)));
        for path in &waits {
            fs::write(path, "old").expect("file");
        }
        let places = all_places(&scratch);
        let finished = finish_join(&scratch.join("config"), &places);
        assert!(!finished.expect("looked"));
        assert!(waits.iter().all(|path| path.exists()));
        // The next join takes nothing of it.
        fs::write(scratch.join("pair-b"), "b").expect("file");
        join(&scratch, true).expect("joined");
        assert!(!waits.iter().any(|path| path.exists()));
        assert!(!scratch.join("new").exists());
        assert!(!finish_join(&scratch.join("config"), &places).expect("nothing is left"));
    }

    #[test]
    fn a_directory_is_in_the_way() {
        // KADM-20
        let scratch = member();
        fs::remove_file(scratch.join("ca")).expect("removed");
        fs::create_dir(scratch.join("ca")).expect("directory");
        let before = tree(&scratch.0);
        let why = error_chain(&join(&scratch, true).expect_err("refused"));
        assert!(why.contains("/ca: "), "{why}");
        assert_eq!(tree(&scratch.0), before);
        let why = check_replaceable("/proc".as_ref()).expect_err("a mount point");
        assert!(error_chain(&why).contains("mounted"), "{why}");
    }
}
