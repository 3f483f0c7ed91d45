//! The directories of a reset: entries of the agent go, entries of an operator stay.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use crate::{
    api::PodUid,
    logic::gc,
    runtime::{CHECKPOINT_DIR, log_links::LogLinks},
    sys::{lock, mount, remove},
};

/// Entries of the root directory beside images: all of it is the agent's own. Secrets are among `objects`, and in the
/// manifests that a URL gave. The node's certificates stay: a kubeconfig names them.
const ROOT_ENTRIES: [&str; 15] = [
    "pods",
    "objects",
    "manifest-url",
    "link-budget.json",
    "device-plugins.json",
    "node-resources.json",
    "node-labels.json",
    "cpu_manager_state",
    "containers",
    "sandboxes",
    "cni",
    "boot.json",
    "pod-cidrs",
    "update",
    CHECKPOINT_DIR,
];
/// Entries for images, and for the pods that may use them.
const IMAGE_ENTRIES: [&str; 2] = ["images", "image_manager"];
/// Name of the lock of a directory.
const LOCK: &str = "picolet.lock";

/// A path that could not be removed, and why.
#[derive(Debug, thiserror::Error)]
pub(super) enum RemovalError {
    #[error("{}", .0.display())]
    Io(PathBuf, #[source] io::Error),
    /// A volume could not be unmounted. Nothing below it is deleted: the data behind a mount belongs to somebody else.
    #[error("{} is still mounted", .0.display())]
    Mounted(PathBuf),
}

/// Makes the error of a `path` that stays.
fn removal_error(path: &Path) -> impl FnOnce(io::Error) -> RemovalError {
    let path = path.to_owned();
    move |e| RemovalError::Io(path, e)
}

/// Unmounts and removes the run directory; the backend has removed most of it.
pub(super) fn remove_run(run: &Path) -> Result<(), RemovalError> {
    let mut result = Ok(());
    for name in dir_entry_names(run) {
        let path = run.join(name);
        let gone = mount::unmount_below(&path).and_then(|_| remove_tree(&path));
        let gone = gone.map_err(removal_error(&path));
        result = result.and(gone);
    }
    let gone = mount::unmount_self_binds(run).map_err(removal_error(run));
    result = result.and(gone);
    // A disk that the operator mounted there stays, empty.
    let _ = fs::remove_dir(run);
    result
}

/// Names of the agent's own entries in the root directory.
fn own_entry_names(images: bool) -> impl Iterator<Item = &'static str> {
    let own = ROOT_ENTRIES.iter().copied();
    let of_images = IMAGE_ENTRIES.into_iter().filter(move |_| images);
    own.chain(of_images)
}

/// Lists the agent's own entries that the root directory has, with the number of entries in each directory.
pub(super) fn root_entries(root: &Path, images: bool) -> Vec<(PathBuf, usize)> {
    let paths = own_entry_names(images).map(|name| root.join(name));
    let there = paths.filter(|path| path.exists());
    there
        .map(|path| (path.clone(), dir_entry_names(&path).count()))
        .collect()
}

/// Returns true if an agent holds the lock of a directory.
pub(super) fn is_locked(dir: &Path) -> bool {
    lock::is_locked(&dir.join(LOCK)).unwrap_or(false)
}

/// Removes the agent's own entries of the root directory, and the directory itself if nothing else is there.
pub(super) fn remove_root(root: &Path, images: bool) -> Result<(), RemovalError> {
    let pods = root.join("pods");
    let mounts = mount::mounts_below(&pods).map_err(removal_error(&pods))?;
    if let Some(first) = mounts.into_iter().next() {
        return Err(RemovalError::Mounted(first));
    }
    let mut result = Ok(());
    let own = own_entry_names(images).chain([LOCK]);
    for path in own.map(|name| root.join(name)) {
        let gone = remove_tree(&path).map_err(removal_error(&path));
        result = result.and(gone);
    }
    // The directory for archives is the agent's own as long as it is empty.
    let _ = fs::remove_dir(root.join("import"));
    let gone = mount::unmount_self_binds(root).map_err(removal_error(root));
    result = result.and(gone);
    let _ = fs::remove_dir(root);
    result
}

/// Removes the log directories of pods and the links to logs that are gone.
pub(super) fn remove_logs(pods: &Path, links: &Path) -> Result<(), RemovalError> {
    let mut result = Ok(());
    for path in log_dirs(pods) {
        let gone = remove_tree(&path).map_err(removal_error(&path));
        result = result.and(gone);
    }
    match LogLinks::open(links) {
        Ok(open) => {
            let dir = open.as_ref().map(LogLinks::fd_path);
            for link in dir.iter().flat_map(|dir| links_into_pods(pods, dir)) {
                if !link.exists() {
                    let shown = links.join(link.file_name().unwrap_or_default());
                    let gone = remove_tree(&link).map_err(removal_error(&shown));
                    result = result.and(gone);
                }
            }
        }
        // No link there is ours.
        Err(e) if e.kind() == io::ErrorKind::NotADirectory => {
            log::warn!("{}: {e}", links.display());
        }
        Err(e) => {
            let stays = Err(removal_error(links)(e));
            result = result.and(stays);
        }
    }
    for dir in [pods, links] {
        // Other programs may have their logs there.
        let _ = fs::remove_dir(dir);
    }
    result
}

/// The log directories of pods.
pub(super) fn log_dirs(pods: &Path) -> Vec<PathBuf> {
    let all: Vec<String> = dir_entry_names(pods).collect();
    let nobodys = |_: &PodUid| gc::PodGcState::ContentRemovable;
    let own = gc::removable_log_dirs(all.iter().map(String::as_str), &nobodys, true);
    own.into_iter().map(|name| pods.join(name)).collect()
}

/// The links in `links` that lead into `pods`.
pub(super) fn links_into_pods<'a>(
    pods: &'a Path,
    links: &'a Path,
) -> impl Iterator<Item = PathBuf> + 'a {
    let all = dir_entry_names(links).map(move |name| links.join(name));
    all.filter(move |link| fs::read_link(link).is_ok_and(|to| to.starts_with(pods)))
}

/// Names in a directory; none if it cannot be read.
pub(super) fn dir_entry_names(dir: &Path) -> impl Iterator<Item = String> + use<> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|e| e.file_name().into_string().ok())
}

/// Removes a file, a link or a tree. Absent is fine, and so is a disk that is mounted there and now empty.
fn remove_tree(path: &Path) -> io::Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => remove_dir(path),
        Ok(_) => fs::remove_file(path),
        Err(e) => Err(e),
    };
    match removed {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Removes a directory. The directory may be a mount point itself; nothing below it is one.
fn remove_dir(path: &Path) -> io::Result<()> {
    let entries = fs::read_dir(path)?.collect::<Result<Vec<_>, _>>()?;
    for entry in entries {
        remove::remove_path(&entry.path())?;
    }
    match fs::remove_dir(path) {
        Err(e) if e.kind() == io::ErrorKind::ResourceBusy => Ok(()),
        removed => removed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_its_own_goes() {
        let base = crate::testing::unused_path("reset");
        let (root, logs, links) = (base.join("root"), base.join("logs"), base.join("links"));
        for dir in [
            "pods/u",
            "objects/secrets-1",
            "containers/c",
            "update",
            "checkpoints",
            "images",
            "import",
            "seccomp",
        ] {
            fs::create_dir_all(root.join(dir)).expect("directory");
        }
        fs::write(root.join("seccomp/mine.json"), "{}").expect("file");
        fs::write(root.join("manifest-url"), "{}").expect("file");
        for file in [
            "link-budget.json",
            "device-plugins.json",
            "node-resources.json",
            "node-labels.json",
            "cpu_manager_state",
        ] {
            fs::write(root.join(file), "{}").expect("file");
        }
        fs::create_dir_all(logs.join("default_web_u1/c")).expect("directory");
        fs::create_dir_all(logs.join("else")).expect("directory");
        fs::create_dir_all(&links).expect("directory");
        let link = |name: &str, to: &Path| {
            std::os::unix::fs::symlink(to, links.join(name)).expect("link");
        };
        link("ours.log", &logs.join("default_web_u1/c/0.log"));
        link("theirs.log", Path::new("/somewhere/else.log"));
        for images in [false, true, true] {
            remove_root(&root, images).expect("root");
            remove_logs(&logs, &links).expect("logs");
            assert_eq!(root.join("images").exists(), !images);
            for gone in [
                "pods",
                "containers",
                "objects",
                "manifest-url",
                "link-budget.json",
                "device-plugins.json",
                "node-resources.json",
                "node-labels.json",
                "cpu_manager_state",
                "update",
                "checkpoints",
            ] {
                assert!(!root.join(gone).exists(), "{gone}");
            }
            assert!(root.join("seccomp/mine.json").exists(), "an operator's");
            assert!(!logs.join("default_web_u1").exists());
            assert!(logs.join("else").exists(), "no log directory of a pod");
            assert!(!links.join("ours.log").is_symlink() && links.join("theirs.log").is_symlink());
        }
        // A link in the place of the directory of links leads nowhere.
        let planted = base.join("planted");
        std::os::unix::fs::symlink(&links, &planted).expect("link");
        link("ours.log", &logs.join("default_web_u1/c/0.log"));
        remove_logs(&logs, &planted).expect("nothing behind it is ours");
        assert!(links.join("ours.log").is_symlink() && planted.is_symlink());
        fs::remove_dir_all(root.join("seccomp")).expect("clean up");
        remove_root(&root, true).expect("root");
        assert!(!root.exists(), "nothing else was there");
        fs::remove_dir_all(&base).expect("clean up");
    }
}
