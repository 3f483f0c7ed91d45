//! A socket at which plugins, and those who count devices, find the agent where they look for a kubelet.

use alloc::rc::Rc;
use core::{cell::Cell, time::Duration};
use std::{
    fs, io,
    os::unix::{
        fs::{DirBuilderExt as _, FileTypeExt as _, PermissionsExt as _},
        net::UnixListener,
    },
    path::Path,
};

use smol::{Async, LocalExecutor, future::or};

use crate::grpc::{
    Time,
    server::{Handler, serve},
    status::{Code, Status},
};

/// Its name.
const SOCKET: &str = "kubelet.sock";
/// Connections at a time.
const MAX_CONNECTIONS: usize = 16;
/// How long one may last, of those that ask once.
const SHORT: Duration = Duration::from_secs(60);
/// Pause after a connection that could not be taken.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug)]
pub struct Listener {
    socket: Async<UnixListener>,
    short: bool,
}

impl Listener {
    /// For plugins that register: all sockets in `dir` are unlinked, which is a plugin's sign to register again (DEV-01); other
    /// files stay.
    pub fn of_plugins(dir: &Path) -> io::Result<Self> {
        make(dir)?;
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            if entry.file_type()?.is_socket() {
                fs::remove_file(entry.path())?;
            }
        }
        Self::bind(dir, true)
    }

    /// For those who ask what pods have: they may stay.
    pub fn of_readers(dir: &Path) -> io::Result<Self> {
        make(dir)?;
        match fs::remove_file(dir.join(SOCKET)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        Self::bind(dir, false)
    }

    fn bind(dir: &Path, short: bool) -> io::Result<Self> {
        let path = dir.join(SOCKET);
        let socket = UnixListener::bind(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        let socket = Async::new(socket)?;
        Ok(Self { socket, short })
    }

    /// Answers calls until it is dropped.
    pub(super) async fn serve(
        self,
        handler: Handler,
        executor: Rc<LocalExecutor<'static>>,
        time: Rc<dyn Time>,
    ) {
        let open = Rc::new(Cell::new(0_usize));
        // Bounded: each turn waits for a client.
        loop {
            let accepted = self.socket.accept().await;
            let pipe = match accepted {
                Ok((pipe, _)) if open.get() < MAX_CONNECTIONS => pipe,
                // It is closed.
                Ok(_) => continue,
                Err(e) => {
                    log::warn!("sockets of device plugins: cannot accept: {e}");
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
                    Status::new(Code::DEADLINE_EXCEEDED, "it lasts too long")
                };
                or(serve(pipe, handler, time), late).await;
                open.set(open.get() - 1);
            };
            executor.spawn(connection).detach();
        }
    }
}

fn make(dir: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true).mode(0o750).create(dir)
}
