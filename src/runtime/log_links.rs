//! The directory of links to container logs, `/var/log/containers` (CFG-11). Blocking.
//!
//! A pod may write in `/var/log` by a hostPath, and put a link in the place of this directory. So that is opened without
//! following one, and whoever works in it does so by its descriptor. What is above it belongs to root, and may be a link.

use std::{
    fs::{self, File},
    io,
    os::fd::AsRawFd as _,
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::OFlag,
    sys::stat::{Mode, mkdirat},
};

use crate::sys::open;

/// Mode of a directory that is made.
const MODE: u32 = 0o755;
/// Error for a link in its place.
const IS_LINK: &str = "the directory is a symbolic link, and the agent makes and removes nothing behind a link: remove the link, or set picolet.containerLogDir to the directory itself";

/// The directory of links to logs, open.
#[derive(Debug)]
pub(crate) struct LogLinks(File);

impl LogLinks {
    /// Opens it. `None`: there is none.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotADirectory`] if something else is in its place, a link too. Others of the disk.
    pub(crate) fn open(path: &Path) -> io::Result<Option<Self>> {
        match open_links_at(path, false) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            opened => opened.map(Some),
        }
    }

    /// Opens it, and makes it if there is none. Errors are those of [`Self::open`].
    pub(crate) fn open_or_make(path: &Path) -> io::Result<Self> {
        open_links_at(path, true)
    }

    /// A path that leads there as long as this is open, whatever is in its place by now.
    pub(crate) fn fd_path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.0.as_raw_fd()).into()
    }
}

fn open_links_at(path: &Path, make: bool) -> io::Result<LogLinks> {
    let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    if make {
        fs::create_dir_all(above)?;
    }
    let above = open::open_dir(above)?;
    if make {
        match mkdirat(&above, name, Mode::from_bits_truncate(MODE)) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(e) => return Err(e.into()),
        }
    }
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
    let opened = open::open_without_symlinks(&above, Path::new(name), flags, 0);
    opened.map(LogLinks).map_err(|e| {
        if e.raw_os_error() != Some(libc::ELOOP) {
            return e;
        }
        io::Error::new(io::ErrorKind::NotADirectory, IS_LINK)
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_link_in_its_place_is_not_followed() {
        // LOG-09
        let top = crate::testing::unused_path("loglinks");
        fs::create_dir_all(top.join("disk/victim")).expect("directory");
        // The operator's own, above.
        symlink("disk", top.join("log")).expect("link");
        let path = top.join("log/containers");
        assert!(LogLinks::open(&path).expect("absent is fine").is_none());
        let made = LogLinks::open_or_make(&path).expect("made");
        symlink("/nowhere", made.fd_path().join("a.log")).expect("link");
        assert!(top.join("disk/containers/a.log").is_symlink());
        LogLinks::open_or_make(&path).expect("made already");
        // It is another one by now: what is open still is that directory.
        fs::rename(&path, top.join("log/before")).expect("renamed");
        symlink("victim", &path).expect("link");
        symlink("/nowhere", made.fd_path().join("b.log")).expect("link");
        assert!(top.join("disk/before/b.log").is_symlink());
        for refused in [
            LogLinks::open_or_make(&path),
            LogLinks::open(&path).map(|o| o.expect("something")),
        ] {
            let e = refused.expect_err("a link");
            assert_eq!(e.kind(), io::ErrorKind::NotADirectory);
            assert_eq!(e.to_string(), IS_LINK);
        }
        assert_eq!(
            fs::read_dir(top.join("disk/victim"))
                .expect("there")
                .count(),
            0
        );
        fs::remove_dir_all(top).expect("clean");
    }
}
