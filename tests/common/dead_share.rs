//! A file system whose server never answers, as a share has when its server is gone: whoever asks it for a file waits.

use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};

/// Goes with its mount; whoever waits gets an error then.
pub(crate) struct DeadShare {
    /// The kernel's end of what a server of FUSE reads. Nobody does.
    server: Option<File>,
    at: PathBuf,
}

impl DeadShare {
    /// Makes the directory `at` and mounts one there; `None`, said aloud: this machine cannot.
    pub(crate) fn mount(at: &Path) -> Option<Self> {
        fs::create_dir_all(at).expect("directory");
        let mut flags = File::options();
        let mounted = flags
            .read(true)
            .write(true)
            .open("/dev/fuse")
            .and_then(|server| {
                let fd = server.as_raw_fd();
                let options = format!("fd={fd},rootmode=40000,user_id=0,group_id=0");
                mount(
                    Some("dead"),
                    at,
                    Some("fuse"),
                    MsFlags::empty(),
                    Some(&*options),
                )?;
                Ok(server)
            });
        match mounted {
            Ok(server) => Some(Self {
                server: Some(server),
                at: at.into(),
            }),
            Err(e) => {
                skipped!("a share without a server: {e}");
                None
            }
        }
    }
}

impl Drop for DeadShare {
    fn drop(&mut self) {
        drop(self.server.take());
        let _ = umount2(&self.at, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW);
    }
}
