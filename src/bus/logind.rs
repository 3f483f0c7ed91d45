//! logind: its signal that the machine goes down, and the lock that delays that.
//!
//! Source: org.freedesktop.login1(5), "Inhibitor Locks"; kubelet `nodeshutdown/systemd/inhibit_linux.go`.

use core::time::Duration;
use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use super::{
    BusConnection, BusError,
    wire::{BusMessage, CallArguments, MethodAddress},
};
use crate::{error::error_chain, sys::file};

/// Time limit of logind's answers, and of a message that has begun to come.
const PATIENCE: Duration = Duration::from_secs(5);
/// Most looks at logind's delay until it has read its configuration anew, and the pause between them.
const LOOKS: u32 = 20;
/// See [`LOOKS`].
const LOOK_PAUSE: Duration = Duration::from_millis(100);
/// Name of the drop-in, the same as a kubelet's: whichever of the two was here last is heeded.
const DROP_IN: &str = "99-kubelet.conf";
/// Name of the signal.
const WORD: &str = "PrepareForShutdown";
/// Error of a name that nobody on the bus has.
const NO_OWNER: &str = "org.freedesktop.DBus.Error.NameHasNoOwner";
/// Signal on which logind reads its configuration anew.
const SIGHUP: i32 = 1;

const DAEMON: MethodAddress = MethodAddress {
    destination: "org.freedesktop.DBus",
    path: "/org/freedesktop/DBus",
    interface: "org.freedesktop.DBus",
};
const LOGIND: MethodAddress = MethodAddress {
    destination: "org.freedesktop.login1",
    path: "/org/freedesktop/login1",
    interface: "org.freedesktop.login1.Manager",
};
const PROPERTIES: MethodAddress = MethodAddress {
    interface: "org.freedesktop.DBus.Properties",
    ..LOGIND
};
const SYSTEMD: MethodAddress = MethodAddress {
    destination: "org.freedesktop.systemd1",
    path: "/org/freedesktop/systemd1",
    interface: "org.freedesktop.systemd1.Manager",
};

/// Paths of the bus and of logind's configuration.
#[derive(Clone, Debug)]
pub struct LogindPaths {
    /// Socket of the system's bus.
    pub bus: PathBuf,
    /// Directory of drop-ins of logind's configuration.
    pub drop_ins: PathBuf,
}

impl Default for LogindPaths {
    fn default() -> Self {
        Self {
            bus: "/run/dbus/system_bus_socket".into(),
            drop_ins: "/etc/systemd/logind.conf.d".into(),
        }
    }
}

/// A lock that delays the end of the machine, and the connection on which logind's signal comes. Dropping it lets go.
#[derive(Debug)]
pub struct ShutdownInhibitor {
    bus: BusConnection,
    lock: Option<OwnedFd>,
    /// Longest time that logind waits.
    delay: Duration,
}

impl ShutdownInhibitor {
    /// Takes the lock. Has logind wait `needed`, if it would wait less; [`Self::max_delay`] tells the time that it then
    /// waits. Blocks.
    ///
    /// # Errors
    /// See [`BusError`]: there is no bus, no logind, or it does not let us.
    pub fn acquire(places: &LogindPaths, needed: Duration) -> Result<Self, BusError> {
        let mut bus = BusConnection::open(&places.bus, WORD, PATIENCE)?;
        bus.call_method(DAEMON, "Hello", CallArguments::default())?;
        let rule = "type='signal',sender='org.freedesktop.login1',\
                    interface='org.freedesktop.login1.Manager',member='PrepareForShutdown'";
        bus.call_method(DAEMON, "AddMatch", CallArguments::default().with_text(rule))?;
        let mut delay = read_inhibit_delay(&mut bus)?;
        if delay < needed {
            match lengthen_inhibit_delay(&mut bus, &places.drop_ins, needed) {
                Ok(lengthened) => delay = lengthened,
                // A shorter wait is better than none. If the bus is gone, taking the lock fails, too.
                Err(e) => log::warn!("cannot make logind wait longer: {}", error_chain(&e)),
            }
        }
        let mut inhibitor = Self {
            bus,
            lock: None,
            delay,
        };
        inhibitor.take_lock()?;
        Ok(inhibitor)
    }

    /// Longest time that logind waits.
    #[must_use]
    pub const fn max_delay(&self) -> Duration {
        self.delay
    }

    /// Takes the lock again after the machine's shutdown was called off. Blocks.
    ///
    /// # Errors
    /// See [`BusError`].
    pub fn take_lock(&mut self) -> Result<(), BusError> {
        self.bus.set_time_limit(Some(PATIENCE));
        let body = CallArguments::default()
            .with_text("shutdown")
            .with_text("kubelet");
        let body = body
            .with_text("Kubelet needs time to handle node shutdown")
            .with_text("delay");
        self.bus.call_method(LOGIND, "Inhibit", body)?;
        self.lock = self.bus.take_fd();
        match self.lock {
            Some(_) => Ok(()),
            None => Err(BusError::Nonsense("no lock")),
        }
    }

    /// Releases the lock: the machine may go down.
    pub fn release_lock(&mut self) {
        self.lock = None;
    }

    /// Descriptor that can be read when there is something to hear.
    #[must_use]
    pub fn signal_descriptor(&self) -> BorrowedFd<'_> {
        self.bus.as_fd()
    }

    /// Reads logind's word: true if the machine goes down, false if it does not after all. `None`: no such word. Blocks
    /// until a message that has begun has come whole.
    ///
    /// # Errors
    /// See [`BusError`]: nothing will be heard on this connection any more.
    pub fn read_shutdown_signal(&mut self) -> Result<Option<bool>, BusError> {
        // Bounded: by the messages that come.
        loop {
            self.bus.set_time_limit(Some(LOOK_PAUSE));
            let signal = match self.bus.next_signal(WORD) {
                Ok(signal) => signal,
                Err(BusError::Late { .. }) => return Ok(None),
                Err(e) => return Err(e),
            };
            if self.is_from_logind(&signal)? {
                return Ok(Some(signal.arguments("b")?.read_u32()? != 0));
            }
        }
    }

    /// Returns true if the signal is logind's. Any client of the bus may send a signal of this name; the bus writes its
    /// sender.
    fn is_from_logind(&mut self, signal: &BusMessage) -> Result<bool, BusError> {
        self.bus.set_time_limit(Some(PATIENCE));
        let name = CallArguments::default().with_text(LOGIND.destination);
        match self.bus.call_method(DAEMON, "GetNameOwner", name) {
            Ok(owner) => Ok(owner.arguments("s")?.read_text()? == signal.sender),
            Err(e) if e.is_error_named(NO_OWNER) => Ok(false),
            Err(e) => Err(e),
        }
    }
}

fn read_inhibit_delay(bus: &mut BusConnection) -> Result<Duration, BusError> {
    let body = CallArguments::default()
        .with_text(LOGIND.interface)
        .with_text("InhibitDelayMaxUSec");
    let answer = bus.call_method(PROPERTIES, "Get", body)?;
    let mut value = answer.arguments("v")?;
    match value.read_signature()? {
        "t" => Ok(Duration::from_micros(value.read_u64()?)),
        _ => Err(BusError::Nonsense("an answer of another type")),
    }
}

/// Has logind wait longer (SHUT-02). Returns the time that it then waits.
fn lengthen_inhibit_delay(
    bus: &mut BusConnection,
    drop_ins: &Path,
    needed: Duration,
) -> Result<Duration, BusError> {
    let path = drop_ins.join(DROP_IN);
    let seconds = needed.as_millis().div_ceil(1000);
    let text = format!(
        "# Written by picolet, as a kubelet does: pods get this time when the machine goes down.\n\
         [Login]\nInhibitDelayMaxSec={seconds}\n"
    );
    file::make_dirs(drop_ins, 0o755)
        .and_then(|()| file::write_atomic(&path, text.as_bytes(), 0o644, true))
        .map_err(|source| BusError::Io { path, source })?;
    let body = CallArguments::default()
        .with_text("systemd-logind.service")
        .with_text("all");
    bus.call_method(SYSTEMD, "KillUnit", body.with_signed(SIGHUP))?;
    let mut delay = read_inhibit_delay(bus)?;
    let mut looks = 0;
    while delay < needed && looks < LOOKS {
        bus.set_time_limit(Some(LOOK_PAUSE));
        // A pause; messages that come are kept for later.
        bus.wait_until_limit("logind's configuration");
        bus.set_time_limit(Some(PATIENCE));
        delay = read_inhibit_delay(bus)?;
        looks += 1;
    }
    Ok(delay)
}
