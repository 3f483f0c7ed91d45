//! Paths and directories for the unit tests of all modules.

use core::{
    ops::Deref,
    sync::atomic::{AtomicU32, Ordering},
};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Returns a path of the directory for temporary files that no other test has, of this process or of another.
pub(crate) fn unused_path(name: &str) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("picolet-{name}-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        // An earlier process of this number may have left one.
        if fs::symlink_metadata(&path).is_err() {
            return path;
        }
    }
}

/// Directory of one test, removed with the value.
pub(crate) struct TestDir(pub(crate) PathBuf);

impl TestDir {
    /// Makes it at [`unused_path`].
    pub(crate) fn new(name: &str) -> Self {
        let path = unused_path(name);
        fs::create_dir_all(&path).expect("a directory for a test");
        Self(path)
    }
}

impl Deref for TestDir {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl Drop for TestDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Writes a program that can be executed at once. Another process copies it: if this one wrote it, a child that another test
/// forks meanwhile would hold the file open, and the kernel would execute it no more ("Text file busy").
pub(crate) fn write_script(path: &Path, text: &str) {
    let from = path.with_extension("text");
    fs::write(&from, text).expect("script");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&from, mode).expect("mode");
    let mut copy = std::process::Command::new("cp");
    let copied = copy.arg(&from).arg(path).status();
    assert!(copied.expect("cp").success());
    fs::remove_file(from).expect("script");
}
