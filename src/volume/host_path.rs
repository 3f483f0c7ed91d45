//! hostPath: checks the path that the pod names, and at most makes it. Nothing is mounted, and nothing is ever removed.

use std::{
    fs::{self, File, Permissions},
    io,
    os::unix::fs::{FileTypeExt, PermissionsExt},
    path::{Component, Path, PathBuf},
};

use super::{StepContext, VolumeErrorCause, mkdir_all};

/// Required kind of a hostPath. Source: core/v1 `HostPathType`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum HostPathType {
    /// The path is neither checked nor made.
    #[default]
    Unset,
    /// A directory, made with 0755 if missing.
    DirectoryOrCreate,
    /// A directory that must exist.
    Directory,
    /// A file, made with 0644 if missing; its directory must exist.
    FileOrCreate,
    /// A file that must exist.
    File,
    /// A unix socket.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
    /// A type that this agent does not know, as written.
    Other(String),
}

impl From<&str> for HostPathType {
    fn from(text: &str) -> Self {
        match text {
            "" => Self::Unset,
            "DirectoryOrCreate" => Self::DirectoryOrCreate,
            "Directory" => Self::Directory,
            "FileOrCreate" => Self::FileOrCreate,
            "File" => Self::File,
            "Socket" => Self::Socket,
            "CharDevice" => Self::CharDevice,
            "BlockDevice" => Self::BlockDevice,
            other => Self::Other(other.into()),
        }
    }
}

/// Checks `path` and returns it.
///
/// - Source: kubelet `pkg/volume/hostpath/host_path.go`; symbolic links are followed, as there.
pub(super) fn set_up_host_path(
    path: &str,
    kind: &HostPathType,
) -> Result<PathBuf, VolumeErrorCause> {
    let path = Path::new(path);
    if path.components().any(|c| c == Component::ParentDir) {
        return Err(VolumeErrorCause::Refused(format!(
            "invalid HostPath {:?}: must not contain '..'",
            path.display()
        )));
    }
    if !path.is_absolute() {
        return Err(VolumeErrorCause::Refused(format!(
            "invalid HostPath {:?}: must be an absolute path",
            path.display()
        )));
    }
    // The path is not looked at: it may be on a share whose server is gone.
    if *kind == HostPathType::Unset {
        return Ok(path.into());
    }
    let found = match fs::metadata(path) {
        Ok(found) => Some(found),
        Err(e)
            if matches!(
                e.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            None
        }
        Err(e) => return Err(e).at_step("hostPath type check failed"),
    };
    let is = |test: fn(&fs::FileType) -> bool| found.as_ref().is_some_and(|m| test(&m.file_type()));
    let (right, what) = match kind {
        HostPathType::Unset => return Ok(path.into()),
        HostPathType::DirectoryOrCreate if found.is_none() => {
            mkdir_all(path, 0o755).at_step("failed to make the directory of the hostPath")?;
            return Ok(path.into());
        }
        HostPathType::FileOrCreate if found.is_none() => {
            make_file(path).at_step("failed to make the file of the hostPath")?;
            return Ok(path.into());
        }
        HostPathType::DirectoryOrCreate | HostPathType::Directory => {
            (is(fs::FileType::is_dir), "a directory")
        }
        HostPathType::FileOrCreate | HostPathType::File => (is(fs::FileType::is_file), "a file"),
        HostPathType::Socket => (is(fs::FileType::is_socket), "a socket file"),
        HostPathType::CharDevice => (is(fs::FileType::is_char_device), "a character device"),
        HostPathType::BlockDevice => (is(fs::FileType::is_block_device), "a block device"),
        HostPathType::Other(text) => {
            return Err(VolumeErrorCause::Refused(format!(
                "{text} is an invalid volume type"
            )));
        }
    };
    if right {
        Ok(path.into())
    } else {
        Err(VolumeErrorCause::Refused(format!(
            "hostPath type check failed: {} is not {what}",
            path.display()
        )))
    }
}

fn make_file(path: &Path) -> io::Result<()> {
    let file = File::options().write(true).create_new(true).open(path)?;
    file.set_permissions(Permissions::from_mode(0o644))
}

#[cfg(test)]
mod tests {
    use core::time::Duration;
    use std::{os::unix::net::UnixListener, sync::mpsc, thread};

    use super::{super::testing::Scratch, *};
    use crate::dead_share::DeadShare;

    #[test]
    fn without_a_type_nothing_is_looked_at() {
        // VOL-15
        let scratch = Scratch::new();
        let dir = scratch.path().join("share");
        let Some(share) = DeadShare::mount(&dir) else {
            return;
        };
        let path = dir.join("x").display().to_string();
        let (tell, told) = mpsc::channel();
        let thread = thread::spawn(move || {
            let answer = set_up_host_path(&path, &HostPathType::Unset);
            let _ = tell.send(answer.is_ok());
        });
        let answer = told.recv_timeout(Duration::from_secs(10));
        drop(share);
        thread.join().unwrap();
        assert_eq!(answer, Ok(true), "its server is gone");
    }

    #[test]
    fn types() {
        // VOL-15
        let scratch = Scratch::new();
        let base = scratch.path();
        fs::create_dir(base.join("dir")).unwrap();
        fs::write(base.join("file"), "").unwrap();
        let _socket = UnixListener::bind(base.join("socket")).unwrap();
        let at = |name: &str| {
            if name.starts_with('/') {
                name.to_owned()
            } else {
                base.join(name).display().to_string()
            }
        };
        let fails = |name: &str, what: &str| {
            Some(format!(
                "hostPath type check failed: {} is not {what}",
                at(name)
            ))
        };
        for (kind, path, error) in [
            ("", "missing", None),
            ("Directory", "dir", None),
            ("Directory", "file", fails("file", "a directory")),
            ("Directory", "missing", fails("missing", "a directory")),
            ("DirectoryOrCreate", "dir", None),
            ("DirectoryOrCreate", "file", fails("file", "a directory")),
            ("DirectoryOrCreate", "new/deep", None),
            ("File", "file", None),
            ("File", "dir", fails("dir", "a file")),
            ("File", "missing", fails("missing", "a file")),
            ("FileOrCreate", "file", None),
            ("FileOrCreate", "dir", fails("dir", "a file")),
            ("FileOrCreate", "dir/new", None),
            (
                "FileOrCreate",
                "no-parent/new",
                Some("failed to make the file of the hostPath: No such file or directory (os error 2)".into()),
            ),
            ("Socket", "socket", None),
            ("Socket", "file", fails("file", "a socket file")),
            ("CharDevice", "/dev/null", None),
            ("CharDevice", "file", fails("file", "a character device")),
            ("BlockDevice", "/dev/null", fails("/dev/null", "a block device")),
            ("Door", "file", Some("Door is an invalid volume type".into())),
            (
                "",
                "/a/../b",
                Some("invalid HostPath \"/a/../b\": must not contain '..'".into()),
            ),
        ] {
            let answer = set_up_host_path(&at(path), &HostPathType::from(kind));
            assert_eq!(answer.err().map(|e| e.to_string()), error, "{kind} {path}");
        }
        assert!(!base.join("missing").exists(), "no type makes nothing");
        let mode =
            |name: &str| fs::metadata(base.join(name)).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode("new"), 0o755);
        assert_eq!(mode("new/deep"), 0o755);
        assert_eq!(mode("dir/new"), 0o644);
    }
}
