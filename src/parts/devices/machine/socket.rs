//! A socket at which plugins, and those who count devices, find the agent where they look for a kubelet.

use alloc::rc::Rc;
use core::{
    cell::{Cell, RefCell},
    time::Duration,
};
use std::{
    fs, io,
    os::unix::{
        fs::{FileTypeExt as _, PermissionsExt as _},
        net::UnixListener,
    },
    path::Path,
};

use smol::{Async, LocalExecutor, future::or};

use crate::grpc::{
    ConnectionClock,
    server::{CallHandler, serve_calls},
    status::{GrpcCode, GrpcStatus},
};
use crate::sys::file;

/// Name of the socket.
const SOCKET: &str = "kubelet.sock";
/// Connections at a time.
const MAX_CONNECTIONS: usize = 16;
/// Longest time of a connection whose client asks only once.
const SHORT: Duration = Duration::from_secs(60);
/// Pause after a connection that could not be taken.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// Reason why no client can be served at the moment; `None` while clients are served.
pub(crate) type ListenerTrouble = Rc<RefCell<Option<String>>>;

/// See the module.
#[derive(Debug)]
pub(crate) struct DeviceSocketListener {
    socket: Async<UnixListener>,
    short: bool,
    trouble: ListenerTrouble,
}

impl DeviceSocketListener {
    /// Listens for plugins that register: all sockets in `dir` are unlinked, which is a plugin's sign to register again
    /// (DEV-01); other files stay.
    pub(crate) fn bind_for_plugins(dir: &Path) -> io::Result<Self> {
        make_directory(dir)?;
        let entries = fs::read_dir(dir).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        for entry in entries.map_err(|e| socket_error("read the directory", dir, &e))? {
            let path = entry.path();
            let cleared = match entry.file_type() {
                Ok(kind) if kind.is_socket() => fs::remove_file(&path),
                Ok(_) => Ok(()),
                Err(e) => Err(e),
            };
            unless_gone(cleared).map_err(|e| socket_error("remove the socket", &path, &e))?;
        }
        Self::bind(dir, true)
    }

    /// Listens for clients that ask for the devices of pods: their connections may last.
    pub(crate) fn bind_for_readers(dir: &Path) -> io::Result<Self> {
        make_directory(dir)?;
        let path = dir.join(SOCKET);
        unless_gone(fs::remove_file(&path))
            .map_err(|e| socket_error("remove the socket", &path, &e))?;
        Self::bind(dir, false)
    }

    fn bind(dir: &Path, short: bool) -> io::Result<Self> {
        let path = dir.join(SOCKET);
        let bound = UnixListener::bind(&path).and_then(|socket| {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
            Async::new(socket)
        });
        let socket = bound.map_err(|e| socket_error("make the socket", &path, &e))?;
        Ok(Self {
            socket,
            short,
            trouble: ListenerTrouble::default(),
        })
    }

    /// Returns a shared view of the trouble: every look at it shows the present state (DEV-18).
    #[must_use]
    pub(crate) fn shared_trouble(&self) -> ListenerTrouble {
        Rc::clone(&self.trouble)
    }

    /// Answers calls until it is dropped.
    pub(super) async fn serve_calls(
        self,
        handler: CallHandler,
        executor: Rc<LocalExecutor<'static>>,
        time: Rc<dyn ConnectionClock>,
    ) {
        let open = Rc::new(Cell::new(0_usize));
        // Bounded: each turn waits for a client.
        loop {
            // If a client still cannot be served, the next accept sets it again before it is read.
            self.trouble.take();
            let accepted = self.socket.accept().await;
            let pipe = match accepted {
                Ok((pipe, _)) if open.get() < MAX_CONNECTIONS => pipe,
                // There are too many: this one is closed.
                Ok(_) => continue,
                Err(e) => {
                    log::warn!("sockets of device plugins: cannot accept: {e}");
                    *self.trouble.borrow_mut() = Some(format!("cannot accept: {e}"));
                    time.sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            open.set(open.get() + 1);
            let (open, handler, time) = (Rc::clone(&open), Rc::clone(&handler), Rc::clone(&time));
            let late = self.short.then(|| time.sleep(SHORT));
            let connection = async move {
                let late = async {
                    match late {
                        Some(late) => late.await,
                        None => core::future::pending().await,
                    }
                    GrpcStatus::new(GrpcCode::DEADLINE_EXCEEDED, "it lasts too long")
                };
                or(serve_calls(pipe, handler, time), late).await;
                open.set(open.get() - 1);
            };
            executor.spawn(connection).detach();
        }
    }
}

fn make_directory(dir: &Path) -> io::Result<()> {
    let made = file::make_dirs(dir, 0o750);
    made.map_err(|e| socket_error("make the directory", dir, &e))
}

/// Makes "not found" a success: a plugin may have removed the file meanwhile.
fn unless_gone(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

fn socket_error(what: &str, path: &Path, why: &io::Error) -> io::Error {
    let text = format!("cannot {what} {}: {why}", path.display());
    io::Error::new(why.kind(), text)
}

#[cfg(test)]
mod tests {
    use std::os::{fd::OwnedFd, unix::net::UnixStream};

    use super::*;

    #[test]
    fn errors_name_the_path() {
        // DEV-01
        let root = crate::testing::unused_path("socket");
        fs::create_dir_all(root.join("dir").join(SOCKET)).expect("directory");
        fs::write(root.join("file"), "").expect("file");
        let shown = root.display();
        let text =
            |listener: io::Result<DeviceSocketListener>| listener.expect_err("wrong").to_string();
        let said = text(DeviceSocketListener::bind_for_plugins(&root.join("file")));
        let beginning = format!("cannot make the directory {shown}/file: ");
        assert!(said.starts_with(&beginning), "{said}");
        let said = text(DeviceSocketListener::bind_for_plugins(&root.join("dir")));
        let beginning = format!("cannot make the socket {shown}/dir/{SOCKET}: ");
        assert!(said.starts_with(&beginning), "{said}");
        let said = text(DeviceSocketListener::bind_for_readers(&root.join("dir")));
        let beginning = format!("cannot remove the socket {shown}/dir/{SOCKET}: ");
        assert!(said.starts_with(&beginning), "{said}");
        // A socket goes, another file stays.
        let dir = root.join("plugins");
        fs::create_dir(&dir).expect("directory");
        let old = UnixListener::bind(dir.join("old.sock"));
        fs::write(dir.join("file"), "").expect("file");
        DeviceSocketListener::bind_for_plugins(&dir).expect("listens");
        let names = fs::read_dir(&dir).expect("directory");
        let mut names: Vec<_> = names.map(|e| e.expect("entry").file_name()).collect();
        names.sort();
        assert_eq!(names, ["file", SOCKET]);
        drop(old);
        assert!(unless_gone(fs::remove_file(dir.join("none"))).is_ok());
        fs::remove_dir_all(root).expect("clean");
    }

    /// A clock whose pauses never end.
    struct Still;

    impl ConnectionClock for Still {
        fn now(&self) -> Duration {
            Duration::ZERO
        }

        fn sleep(&self, _: Duration) -> crate::grpc::SleepFuture {
            Box::pin(core::future::pending())
        }
    }

    #[test]
    fn what_cannot_be_served_is_told() {
        // DEV-18
        let root = crate::testing::unused_path("deaf");
        let handler: CallHandler = Rc::new(|_| Box::pin(async { Ok(()) }));
        for is_deaf in [false, true] {
            let mut listener = DeviceSocketListener::bind_for_plugins(&root).expect("listens");
            if is_deaf {
                // A socket that does not listen accepts no client.
                let (end, _other) = UnixStream::pair().expect("pair");
                let end = UnixListener::from(OwnedFd::from(end));
                listener.socket = Async::new(end).expect("socket");
            }
            let trouble = listener.shared_trouble();
            let executor = Rc::new(LocalExecutor::new());
            let serve =
                listener.serve_calls(Rc::clone(&handler), Rc::clone(&executor), Rc::new(Still));
            let task = executor.spawn(serve);
            assert!(executor.try_tick());
            assert_eq!(trouble.borrow().is_some(), is_deaf, "{trouble:?}");
            drop(task);
        }
        fs::remove_dir_all(root).expect("clean");
    }
}
