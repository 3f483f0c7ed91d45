//! Connections that notice a dead path: TCP below HTTP, for links that stay open for long.
//!
//! A registry's link ends with its pull, and every read of it has a time limit. A link to the apiserver may be silent for
//! minutes and still be right, so the kernel asks the other side: often enough that a NAT which forgets idle
//! connections after a minute does not forget this one. Bytes that go over either are counted.
//!
//! Source: tcp(7), RFC 1122 section 4.2.3.6, RFC 5482.

use alloc::sync::{Arc, Weak};
use core::time::Duration;
use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::AsRawFd as _;

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv, setsockopt, sockopt};
use ureq::Timeout;
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, Either, LazyBuffers, NextTimeout, ShutdownHandle,
    Transport,
};

use super::meter::ConnectionMeter;
use super::way::PeerAddress;
use crate::api::link::LinkClass;
use crate::sys::clock;

/// Silence after which the other side is asked whether it is there, seconds. Less than the 60 s after which cheap NATs
/// forget; as long as that allows, for every question costs bytes.
pub const KEEPALIVE_IDLE_S: u32 = 45;
/// Time between two questions without an answer, seconds.
pub const KEEPALIVE_INTERVAL_S: u32 = 10;
/// Questions without an answer after which the link is dead. With 2 % loss one or two may get lost.
pub const KEEPALIVE_PROBES: u32 = 3;
/// Time after which sent bytes without an acknowledgement mean a dead link too, milliseconds. The kernel applies the
/// same limit to the questions, so it must not be shorter than all of them together.
pub const USER_TIMEOUT_MS: u32 =
    (KEEPALIVE_IDLE_S + KEEPALIVE_INTERVAL_S * KEEPALIVE_PROBES) * 1000;
/// Least time for one of several addresses.
const MIN_ADDRESS_TIME: Duration = Duration::from_millis(250);

/// Opens sockets with the options above, and counts the bytes that go over them. Addresses are tried in their order;
/// each but the last has half of the time that is left.
#[derive(Debug)]
pub(crate) struct LongTcpConnector {
    /// Class that the counted bytes belong to.
    pub(crate) class: LinkClass,
    /// Receiver of the address that was reached, if one wants to know.
    pub(crate) peer: Option<Arc<PeerAddress>>,
}

impl<In: Transport> Connector<In> for LongTcpConnector {
    type Out = Either<In, LongTcp>;

    fn connect(
        &self,
        details: &ConnectionDetails<'_>,
        chained: Option<In>,
    ) -> Result<Option<Self::Out>, ureq::Error> {
        if let Some(below) = chained {
            return Ok(Some(Either::A(below)));
        }
        let end = clock::mono_now() + *details.timeout.after;
        let mut last = ureq::Error::Timeout(Timeout::Connect);
        for (n, address) in details.addrs.iter().enumerate() {
            let left = end - clock::mono_now();
            let is_last = n + 1 == details.addrs.len();
            let time = if is_last { left } else { left / 2 };
            match TcpStream::connect_timeout(address, time.max(MIN_ADDRESS_TIME)) {
                Ok(stream) => {
                    set_socket_options(&stream)?;
                    if let Some(peer) = &self.peer {
                        peer.record_address(address.ip());
                    }
                    let config = details.config;
                    let buffers =
                        LazyBuffers::new(config.input_buffer_size(), config.output_buffer_size());
                    let stream = Arc::new(stream);
                    let handle: Weak<dyn ShutdownHandle> = Arc::downgrade(&stream) as _;
                    (details.register_shutdown)(handle)?;
                    let meter = ConnectionMeter::new(&stream);
                    return Ok(Some(Either::B(LongTcp {
                        stream,
                        buffers,
                        meter,
                        class: self.class,
                    })));
                }
                Err(e) if e.kind() == io::ErrorKind::TimedOut => {
                    last = ureq::Error::Timeout(Timeout::Connect);
                }
                Err(e) => last = e.into(),
            }
        }
        Err(last)
    }
}

fn set_socket_options(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    setsockopt(stream, sockopt::KeepAlive, &true)?;
    setsockopt(stream, sockopt::TcpKeepIdle, &KEEPALIVE_IDLE_S)?;
    setsockopt(stream, sockopt::TcpKeepInterval, &KEEPALIVE_INTERVAL_S)?;
    setsockopt(stream, sockopt::TcpKeepCount, &KEEPALIVE_PROBES)?;
    setsockopt(stream, sockopt::TcpUserTimeout, &USER_TIMEOUT_MS)?;
    Ok(())
}

/// A connection that another thread can end: the agent's shutdown finds the socket as long as this lives.
#[derive(Debug)]
pub(crate) struct LongTcp {
    stream: Arc<TcpStream>,
    buffers: LazyBuffers,
    meter: ConnectionMeter,
    class: LinkClass,
}

impl Drop for LongTcp {
    fn drop(&mut self) {
        self.meter.count_last_bytes(&self.stream, self.class);
    }
}

impl Transport for LongTcp {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), ureq::Error> {
        let timeout = check_timeout(timeout.for_write())?;
        self.stream
            .set_write_timeout(timeout.not_zero().map(|t| *t))?;
        let mut stream = &*self.stream;
        let written = stream.write_all(&self.buffers.output()[..amount]);
        self.meter.count_new_bytes(&self.stream, self.class);
        written.map_err(|e| map_timeout_error(e, timeout))
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, ureq::Error> {
        let timeout = check_timeout(timeout.for_read())?;
        self.stream
            .set_read_timeout(timeout.not_zero().map(|t| *t))?;
        let mut stream = &*self.stream;
        let amount = loop {
            match stream.read(self.buffers.input_append_buf()) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                read => break read.map_err(|e| map_timeout_error(e, timeout))?,
            }
        };
        self.meter.count_new_bytes(&self.stream, self.class);
        self.buffers.input_appended(amount);
        Ok(amount > 0)
    }

    /// An unused connection has nothing to say: bytes, an end and an error all mean that it is of no use.
    fn is_open(&mut self) -> bool {
        let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        let peeked = recv(self.stream.as_raw_fd(), &mut [0], flags);
        peeked == Err(Errno::EAGAIN)
    }
}

/// Errors: the time is over already. A socket cannot be told to wait for none.
fn check_timeout(timeout: NextTimeout) -> Result<NextTimeout, ureq::Error> {
    if timeout.after.is_zero() {
        return Err(ureq::Error::Timeout(timeout.reason));
    }
    Ok(timeout)
}

/// A socket's time limit shows as `EAGAIN`.
fn map_timeout_error(error: io::Error, timeout: NextTimeout) -> ureq::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => ureq::Error::Timeout(timeout.reason),
        _ => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use nix::sys::socket::getsockopt;

    use super::*;

    #[test]
    fn a_silent_link_is_asked_before_a_nat_forgets_it() {
        const { assert!(KEEPALIVE_IDLE_S < 60 && KEEPALIVE_INTERVAL_S < 60) };
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("listener");
        let stream = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
        set_socket_options(&stream).expect("options");
        assert!(getsockopt(&stream, sockopt::KeepAlive).expect("option"));
        for (found, wanted) in [
            (getsockopt(&stream, sockopt::TcpKeepIdle), KEEPALIVE_IDLE_S),
            (
                getsockopt(&stream, sockopt::TcpKeepInterval),
                KEEPALIVE_INTERVAL_S,
            ),
            (getsockopt(&stream, sockopt::TcpKeepCount), KEEPALIVE_PROBES),
            (
                getsockopt(&stream, sockopt::TcpUserTimeout),
                USER_TIMEOUT_MS,
            ),
        ] {
            assert_eq!(found, Ok(wanted));
        }
    }
}
