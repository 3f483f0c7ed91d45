//! The tmpfs in which shims hold the ends of logs in memory (WEAR-05). Its size limits all of them together.
//! Blocking; called when the backend is opened.

use std::{fs, io, path::Path};

use nix::mount::MsFlags;

use crate::{
    shim,
    sys::{file, mount},
};

const MODE: u32 = 0o700;

/// Makes the tmpfs, or gives it another size. `None`: there is to be none; one in which shims still hold records stays.
///
/// # Errors
/// It cannot be mounted. A tmpfs whose content is larger than the new size keeps the old size until the next start.
pub(super) fn prepare_log_memory(run_dir: &Path, bytes: Option<u64>) -> io::Result<()> {
    let at = shim::held_logs_dir(run_dir);
    if bytes.is_none() && !at.exists() {
        return Ok(());
    }
    file::make_dirs(&at, MODE)?;
    // The mount table knows real paths only.
    let at = fs::canonicalize(at)?;
    match (mount::is_mount_point(&at)?, bytes) {
        (false, Some(bytes)) => {
            let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
            mount::mount_tmpfs(&at, Some(bytes), MODE, flags)
        }
        (true, Some(bytes)) => {
            if let Err(e) = mount::resize_tmpfs(&at, bytes) {
                log::warn!("picolet.logMemory: logs in memory keep their size: {e}");
            }
            Ok(())
        }
        (true, None) => {
            if fs::read_dir(&at)?.next().is_none() {
                mount::unmount(&at)?;
                fs::remove_dir(&at)?;
            }
            Ok(())
        }
        (false, None) => {
            // A non-empty directory is not ours, and stays.
            let _ = fs::remove_dir(&at);
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_comes_and_goes_with_the_option() {
        // WEAR-05
        if !nix::unistd::geteuid().is_root() {
            skipped!("a place for logs in memory: it needs root");
            return;
        }
        let run = crate::testing::unused_path("held");
        fs::create_dir_all(&run).expect("directory");
        let at = shim::held_logs_dir(&run);
        let size = || {
            let stat = nix::sys::statvfs::statvfs(&at).expect("stat");
            u64::from(stat.blocks()) * u64::from(stat.fragment_size())
        };
        prepare_log_memory(&run, None).expect("nothing to do");
        assert!(!at.exists());
        for mib in [2, 2, 4] {
            prepare_log_memory(&run, Some(mib << 20)).expect("made");
            assert_eq!(size(), mib << 20);
        }
        fs::write(at.join("c"), vec![0; 3 << 20]).expect("held");
        prepare_log_memory(&run, Some(1 << 20)).expect("it stays");
        assert_eq!(size(), 4 << 20);
        prepare_log_memory(&run, None).expect("it stays");
        assert!(at.join("c").exists());
        fs::remove_file(at.join("c")).expect("saved");
        prepare_log_memory(&run, None).expect("it goes");
        assert!(!at.exists());
        fs::remove_dir(&run).expect("clean up");
    }
}
