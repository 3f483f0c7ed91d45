//! Plugins that wait at sockets of their own below one directory until they are asked for name and kind (DEV-16): this
//! module finds the sockets, signals changes among them, and speaks with the plugins. It makes no decision.
//!
//! Source: kubelet `pluginmanager/pluginwatcher`, `pkg/apis/pluginregistration/v1/api.proto`.

use alloc::{collections::BTreeMap, rc::Rc, sync::Arc};
use core::time::Duration;
use std::{
    ffi::OsString,
    fs, io,
    os::unix::{
        ffi::OsStrExt as _,
        fs::{FileTypeExt as _, MetadataExt as _},
    },
    path::{Path, PathBuf},
};

use async_io::Async;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use smol::{LocalExecutor, Task};

use super::plugin::{call_with_bounds, connect_socket};
use crate::{
    api::order::OrderExt as _,
    grpc::{ConnectionClock, client::GrpcClient, proto::message, status::GrpcStatus},
};

/// Sockets that are asked.
pub(crate) const MAX_SOCKETS: usize = 32;
/// Entries that are looked at, and directories within each other.
const MAX_ENTRIES: usize = 1024;
const MAX_DEPTH: usize = 8;
/// Time limits for a plugin: to tell its name and kind, and to take in the result of its registration.
const INFO_TIME: Duration = Duration::from_secs(1);
const NOTIFY_TIME: Duration = Duration::from_secs(5);

message! {
    struct RegistrationEmpty {}
    /// Name and kind of a plugin, as it tells them.
    pub(crate) struct PluginInfo {
        /// Type of the plugin: tells which part of a kubelet uses it.
        1 kind: String,
        /// Name of the plugin; for a device plugin the resource.
        2 name: String,
        /// The socket at which it serves; empty: the one that was asked.
        3 endpoint: String,
        /// Versions of its protocol.
        4 versions: Vec<String>,
    }
    struct RegistrationStatus {
        1 registered: bool,
        2 error: String,
    }
}

/// A socket that was dialled. The connection ends with it.
pub(crate) struct PluginRegistration {
    client: GrpcClient,
    _driver: Task<()>,
}

impl PluginRegistration {
    /// Dials a socket, and asks for the plugin's name and kind.
    pub(crate) async fn dial(
        path: &Path,
        executor: &LocalExecutor<'static>,
        time: Rc<dyn ConnectionClock>,
    ) -> Result<(Self, PluginInfo), GrpcStatus> {
        let (client, driver) = connect_socket(path, executor, time).await?;
        let mut info = PluginInfo::default();
        let method = "/pluginregistration.Registration/GetInfo";
        call_with_bounds(
            &client,
            method,
            &mut RegistrationEmpty {},
            &mut info,
            INFO_TIME,
        )
        .await?;
        let own = Self {
            client,
            _driver: driver,
        };
        Ok((own, info))
    }

    /// Tells the plugin the result of its registration; an empty text: it is registered.
    pub(crate) async fn notify(&self, error: &str) -> Result<(), GrpcStatus> {
        let mut status = RegistrationStatus {
            registered: error.is_empty(),
            error: error.into(),
        };
        let method = "/pluginregistration.Registration/NotifyRegistrationStatus";
        call_with_bounds(
            &self.client,
            method,
            &mut status,
            &mut RegistrationEmpty {},
            NOTIFY_TIME,
        )
        .await
    }
}

/// Identity of a socket: a new socket at the same path has another mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SocketMark([i64; 3]);

/// Sockets below the directory.
#[derive(Debug, Default)]
pub(crate) struct PluginSockets {
    /// Sockets with their marks; at most [`MAX_SOCKETS`].
    pub(crate) sockets: BTreeMap<PathBuf, SocketMark>,
    /// Set if there is more than is looked at.
    pub(crate) more: bool,
    entries: usize,
}

/// Looks for sockets at any depth. Names that begin with a dot are passed over, links are not followed. Blocking.
///
/// - Errors: the directory cannot be read. One that is not there has no sockets.
pub(crate) fn find_plugin_sockets(
    dir: &Path,
    bell: Option<&DirectoryDoorbell>,
) -> io::Result<PluginSockets> {
    let mut seen = PluginSockets::default();
    match seen.walk(dir, bell, 0) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(seen),
    }
}

impl PluginSockets {
    fn walk(
        &mut self,
        dir: &Path,
        bell: Option<&DirectoryDoorbell>,
        depth: usize,
    ) -> io::Result<()> {
        // Watched before it is read: a change after the read rings.
        if let Some(bell) = bell {
            bell.watch(dir);
        }
        let mut names: Vec<OsString> = Vec::new();
        for entry in fs::read_dir(dir)? {
            self.entries += 1;
            if self.entries > MAX_ENTRIES {
                self.more = true;
                break;
            }
            let name = entry?.file_name();
            if !name.as_bytes().starts_with(b".") {
                names.push(name);
            }
        }
        // Sorted: if there are too many sockets, the same ones are taken each time.
        names.stable_sort_by(Ord::cmp);
        for name in names {
            let path = dir.join(name);
            // It may have gone meanwhile.
            let Ok(metadata) = fs::symlink_metadata(&path) else {
                continue;
            };
            let kind = metadata.file_type();
            if kind.is_dir() {
                match depth < MAX_DEPTH {
                    true => drop(self.walk(&path, bell, depth + 1)),
                    false => self.more = true,
                }
            } else if kind.is_socket() {
                if self.sockets.len() >= MAX_SOCKETS {
                    self.more = true;
                    return Ok(());
                }
                let mark = [
                    metadata.ino().cast_signed(),
                    metadata.mtime(),
                    metadata.mtime_nsec(),
                ];
                self.sockets.insert(path, SocketMark(mark));
            }
        }
        Ok(())
    }
}

/// Rings when something comes or goes in the directories that were looked at. It may be lost.
#[derive(Clone, Debug)]
pub(crate) struct DirectoryDoorbell(Arc<Async<Inotify>>);

impl DirectoryDoorbell {
    /// Makes a doorbell that watches no directory yet.
    pub(crate) fn open() -> io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        Ok(Self(Arc::new(Async::new(inotify)?)))
    }

    fn watch(&self, dir: &Path) {
        let events = AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_MOVED_FROM
            | AddWatchFlags::IN_MOVE_SELF
            | AddWatchFlags::IN_DONT_FOLLOW
            | AddWatchFlags::IN_ONLYDIR;
        // Without a watch the next look finds the change.
        let _ = self.0.get_ref().add_watch(dir, events);
    }

    /// Waits until it rings. Returns false if it must be replaced: a watched directory was moved away or unmounted.
    pub(crate) async fn wait_for_ring(&self) -> bool {
        if self.0.readable().await.is_err() {
            return false;
        }
        let ends = AddWatchFlags::IN_MOVE_SELF | AddWatchFlags::IN_UNMOUNT;
        match self.0.get_ref().read_events() {
            Ok(events) => !events.iter().any(|event| event.mask.intersects(ends)),
            Err(e) => matches!(e, nix::errno::Errno::EAGAIN | nix::errno::Errno::EINTR),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;
    use crate::testing::TestDir;

    struct Dir(TestDir);

    impl Dir {
        fn new(name: &str) -> Self {
            Self(TestDir::new(name))
        }

        fn socket(&self, path: &str) -> PathBuf {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().expect("parent")).expect("directory");
            let _ = fs::remove_file(&path);
            UnixListener::bind(&path).expect("socket");
            path
        }

        fn names(&self) -> Vec<String> {
            let seen = find_plugin_sockets(&self.0, None).expect("seen");
            let names = seen.sockets.keys();
            let below = names.map(|path| path.strip_prefix(&*self.0).expect("below"));
            below.map(|path| path.display().to_string()).collect()
        }
    }

    #[test]
    fn sockets_at_any_depth() {
        // DEV-16
        let dir = Dir::new("registry");
        for path in ["b.sock", "a/x/y.sock", ".hidden", ".dir/z.sock"] {
            dir.socket(path);
        }
        fs::write(dir.0.join("file"), "").expect("file");
        std::os::unix::fs::symlink(dir.0.join("b.sock"), dir.0.join("link")).expect("link");
        std::os::unix::fs::symlink(&*dir.0, dir.0.join("loop")).expect("link");
        assert_eq!(dir.names(), ["a/x/y.sock", "b.sock"]);
        let none = find_plugin_sockets(&dir.0.join("none"), None).expect("nothing");
        assert!(none.sockets.is_empty() && !none.more);
        find_plugin_sockets(&dir.0.join("file"), None).expect_err("no directory");
        // One made anew is another one.
        let before = find_plugin_sockets(&dir.0, None).expect("seen");
        let path = dir.0.join("b.sock");
        // It holds its inode: the next one gets another.
        fs::rename(&path, dir.0.join(".before")).expect("renamed");
        dir.socket("b.sock");
        let after = find_plugin_sockets(&dir.0, None).expect("seen");
        assert_ne!(before.sockets[&path], after.sockets[&path]);
        let other = dir.0.join("a/x/y.sock");
        assert_eq!(before.sockets[&other], after.sockets[&other]);
        assert!(!after.more);
        // Too deep, and too many.
        dir.socket(&format!("{}deep.sock", "d/".repeat(MAX_DEPTH + 1)));
        let seen = find_plugin_sockets(&dir.0, None).expect("seen");
        assert!(seen.more && seen.sockets.len() == 2);
        for n in 0..MAX_SOCKETS {
            dir.socket(&format!("c/{n:02}.sock"));
        }
        let names = dir.names();
        assert_eq!((names.len(), &*names[0]), (MAX_SOCKETS, "a/x/y.sock"));
        assert!(find_plugin_sockets(&dir.0, None).expect("seen").more);
    }

    #[test]
    fn what_comes_and_goes_rings() {
        // DEV-16
        let dir = Dir::new("registry-bell");
        fs::create_dir_all(dir.0.join("below")).expect("directory");
        let bell = DirectoryDoorbell::open().expect("laid");
        find_plugin_sockets(&dir.0, Some(&bell)).expect("seen");
        let path = dir.socket("below/a.sock");
        smol::block_on(async {
            assert!(bell.wait_for_ring().await);
            fs::remove_file(&path).expect("removed");
            assert!(bell.wait_for_ring().await);
            fs::rename(dir.0.join("below"), dir.0.join("moved")).expect("moved");
            // One event comes after the other, or all at once.
            while bell.wait_for_ring().await {}
        });
    }
}
