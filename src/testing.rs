//! Paths for the unit tests of all modules.

use core::sync::atomic::{AtomicU32, Ordering};
use std::path::PathBuf;

/// Returns a path of the directory for temporary files that no other test has, of this process or of another.
pub(crate) fn unused_path(name: &str) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("picolet-{name}-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        // An earlier process of this number may have left one.
        if std::fs::symlink_metadata(&path).is_err() {
            return path;
        }
    }
}
