//! Messages to the service manager. Source: sd_notify(3).

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixDatagram;

/// The service manager's socket.
#[derive(Debug)]
pub struct ServiceNotifier {
    socket: UnixDatagram,
}

impl ServiceNotifier {
    /// Connects to the address in `NOTIFY_SOCKET`: a path, or `@` and an abstract name. Reading the environment, and
    /// hiding the variable from children, is the caller's affair.
    pub fn connect(address: &OsStr) -> io::Result<Self> {
        use std::os::linux::net::SocketAddrExt;
        use std::os::unix::net::SocketAddr;
        let address = match address.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            [b'/', ..] => SocketAddr::from_pathname(address)?,
            _ => return Err(io::ErrorKind::InvalidInput.into()),
        };
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        socket.connect_addr(&address)?;
        Ok(Self { socket })
    }

    /// Start-up is complete.
    pub fn send_ready(&self) -> io::Result<()> {
        self.send_message("READY=1")
    }

    /// The agent is alive; to be sent more often than the unit's `WatchdogSec`.
    pub fn send_watchdog(&self) -> io::Result<()> {
        self.send_message("WATCHDOG=1")
    }

    /// The agent is about to end.
    pub fn send_stopping(&self) -> io::Result<()> {
        self.send_message("STOPPING=1")
    }

    /// Never waits: a full queue is `WouldBlock`.
    fn send_message(&self, message: &str) -> io::Result<()> {
        self.socket.send(message.as_bytes()).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_address() {
        use std::os::linux::net::SocketAddrExt;
        use std::os::unix::net::SocketAddr;
        let path = crate::testing::unused_path("notify");
        let name = path.display().to_string();
        let by_path = UnixDatagram::bind(&path).expect("bind");
        let address = SocketAddr::from_abstract_name(&name).expect("name");
        let by_name = UnixDatagram::bind_addr(&address).expect("bind");
        for (manager, address) in [
            (by_path, path.as_os_str()),
            (by_name, format!("@{name}").as_ref()),
        ] {
            let notify = ServiceNotifier::connect(address).expect("connect");
            for (sent, text) in [
                (notify.send_ready(), "READY=1"),
                (notify.send_watchdog(), "WATCHDOG=1"),
                (notify.send_stopping(), "STOPPING=1"),
            ] {
                sent.expect("send");
                let mut buffer = [0; 64];
                let len = manager.recv(&mut buffer).expect("receive");
                assert_eq!(&buffer[..len], text.as_bytes());
            }
        }
        assert!(ServiceNotifier::connect("vsock:1".as_ref()).is_err());
        std::fs::remove_file(&path).expect("remove");
    }
}
