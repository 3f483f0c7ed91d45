//! A link whose reads end soon when their pull is told to stop, however little comes over it.
//!
//! It stands between the socket and TLS, so that a handshake, a head and the frames of a body are watched alike.

use alloc::sync::Arc;
use core::time::Duration;
use std::io;

use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, NextTimeout, Transport, time,
};

use super::pace::Stop;
use crate::sys::clock;

/// Time that a read waits before it looks whether it is still wanted.
const LOOK: Duration = Duration::from_secs(1);

/// Watches the links that are made below it.
#[derive(Debug)]
pub(super) struct Watch(pub(super) Arc<Stop>);

/// A watched link.
#[derive(Debug)]
pub(super) struct Watched<T> {
    below: T,
    stop: Arc<Stop>,
}

impl<In: Transport> Connector<In> for Watch {
    type Out = Watched<In>;

    fn connect(
        &self,
        _: &ConnectionDetails<'_>,
        chained: Option<In>,
    ) -> Result<Option<Self::Out>, ureq::Error> {
        Ok(chained.map(|below| Watched {
            below,
            stop: Arc::clone(&self.0),
        }))
    }
}

impl<T> Watched<T> {
    fn check(&self) -> Result<(), ureq::Error> {
        if self.stop.is_stopped() {
            return Err(io::Error::other("cancelled").into());
        }
        Ok(())
    }
}

impl<T: Transport> Transport for Watched<T> {
    fn buffers(&mut self) -> &mut dyn Buffers {
        self.below.buffers()
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), ureq::Error> {
        self.check()?;
        self.below.transmit_output(amount, timeout)
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, ureq::Error> {
        let end = clock::mono() + *timeout.for_read().after;
        loop {
            self.check()?;
            let left = end - clock::mono();
            if left <= LOOK {
                return self.below.await_input(timeout_of(left, timeout));
            }
            match self.below.await_input(timeout_of(LOOK, timeout)) {
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
fn timeout_of(after: Duration, timeout: NextTimeout) -> NextTimeout {
    NextTimeout {
        after: time::Duration::Exact(after),
        reason: timeout.for_read().reason,
        ..timeout
    }
}
