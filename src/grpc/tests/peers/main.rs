//! Calls between the client and the server of this crate, and between each of them and others' implementations.

use core::time::Duration;
use std::{
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    rc::Rc,
};

use picolet_grpc::{
    ConnectionClock, SleepFuture, client, client::GrpcClient, proto::message, server,
    server::CallHandler,
};
use smol::{Async, LocalExecutor};

#[macro_use]
#[path = "../../../../tests/common/skipped.rs"]
mod skipped;

mod calls;
mod containerd;
mod grpcio;
mod h2;

message! {
    /// A message that is both question and answer.
    struct Text {
        1 text: String,
        2 number: i64,
    }
}

fn text(text: &str) -> Text {
    Text {
        text: text.into(),
        number: 0,
    }
}

/// The machine's time, made faster.
struct Clock {
    speed: u32,
}

impl ConnectionClock for Clock {
    fn now(&self) -> Duration {
        let since = std::time::UNIX_EPOCH.elapsed();
        since.expect("after 1970") * self.speed
    }

    fn sleep(&self, time: Duration) -> SleepFuture {
        let time = time / self.speed;
        Box::pin(async move {
            smol::Timer::after(time).await;
        })
    }
}

/// A file that the project has installed below the target directory, or a program that the machine has.
fn program(installed: &str, name: &str) -> Option<PathBuf> {
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target");
    let search = std::env::var_os("PATH").unwrap_or_default();
    let known = std::env::split_paths(&search).map(|dir| dir.join(name));
    let mut all = core::iter::once(target.join(installed)).chain(known);
    all.find(|file| file.exists())
}

fn pair() -> (Async<UnixStream>, Async<UnixStream>) {
    Async::<UnixStream>::pair().expect("socket pair")
}

/// Runs `speak` with a client whose peer has the other end.
fn speak<F: Future>(
    speed: u32,
    peer: impl FnOnce(Async<UnixStream>, Rc<LocalExecutor<'static>>),
    speak: impl FnOnce(GrpcClient) -> F,
) -> F::Output {
    let executor = Rc::new(LocalExecutor::new());
    let (ours, theirs) = pair();
    peer(theirs, executor.clone());
    let (client, driver) = client::connect(ours, "localhost", Rc::new(Clock { speed }));
    executor.spawn(driver).detach();
    smol::block_on(executor.run(speak(client)))
}

/// Runs `then` with a client of a server of this crate.
fn with_server<F: Future>(
    handler: CallHandler,
    speed: u32,
    then: impl FnOnce(GrpcClient) -> F,
) -> F::Output {
    let serve = |theirs, executor: Rc<LocalExecutor<'static>>| {
        let server = server::serve_calls(theirs, handler, Rc::new(Clock { speed: 1 }));
        executor.spawn(server).detach();
    };
    speak(speed, serve, then)
}
