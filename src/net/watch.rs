//! A link whose reads end soon when their pull is told to stop, however little comes over it.
//!
//! It stands between the socket and TLS, so that a handshake, a head and the frames of a body are watched alike.

use alloc::sync::Arc;
use core::time::Duration;
use std::io;

use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, NextTimeout, Transport, time,
};

use super::pace::StopFlag;
use crate::sys::clock;

/// Time that a read waits before it looks whether it is still wanted.
const LOOK: Duration = Duration::from_secs(1);

/// Watches the links that are made below it.
#[derive(Debug)]
pub(super) struct StoppableConnector(pub(super) Arc<StopFlag>);

/// A watched link.
#[derive(Debug)]
pub(super) struct StoppableTransport<T> {
    below: T,
    stop: Arc<StopFlag>,
}

impl<In: Transport> Connector<In> for StoppableConnector {
    type Out = StoppableTransport<In>;

    fn connect(
        &self,
        _: &ConnectionDetails<'_>,
        chained: Option<In>,
    ) -> Result<Option<Self::Out>, ureq::Error> {
        Ok(chained.map(|below| StoppableTransport {
            below,
            stop: Arc::clone(&self.0),
        }))
    }
}

impl<T> StoppableTransport<T> {
    fn check_not_stopped(&self) -> Result<(), ureq::Error> {
        if self.stop.is_stopped() {
            return Err(io::Error::other("cancelled").into());
        }
        Ok(())
    }
}

impl<T: Transport> Transport for StoppableTransport<T> {
    fn buffers(&mut self) -> &mut dyn Buffers {
        self.below.buffers()
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), ureq::Error> {
        self.check_not_stopped()?;
        self.below.transmit_output(amount, timeout)
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, ureq::Error> {
        let end = clock::mono_now() + *timeout.for_read().after;
        loop {
            self.check_not_stopped()?;
            let left = end - clock::mono_now();
            if left <= LOOK {
                return self.below.await_input(replace_timeout(left, timeout));
            }
            match self.below.await_input(replace_timeout(LOOK, timeout)) {
                Err(ureq::Error::Timeout(_)) => {}
                done => return done,
            }
        }
    }

    fn is_open(&mut self) -> bool {
        self.below.is_open()
    }

    fn is_tls(&self) -> bool {
        self.below.is_tls()
    }
}

/// Makes the timeout with the same reason and another time.
fn replace_timeout(after: Duration, timeout: NextTimeout) -> NextTimeout {
    NextTimeout {
        after: time::Duration::Exact(after),
        reason: timeout.for_read().reason,
        ..timeout
    }
}
