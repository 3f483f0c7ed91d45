//! The init of a shared PID namespace: reaps what the containers leave, and keeps the namespace while none of them runs.
//!
//! The only process a sandbox ever has, and only with `shareProcessNamespace`. It outlives the agent; stopping the sandbox
//! kills it, and with it everything in the namespace. Its argument is the sandbox's directory, for whoever lists processes.
//!
//! It begins by waiting for [`RECORDED`] on its standard input. An agent that dies, or fails, between the start of it and the
//! record of it closes that pipe unwritten, and it ends: otherwise nobody would know of it any more.
//!
//! Containers of the pod see it, and those with `SYS_PTRACE` can read and steer it. So it gives up all that is the host's before
//! one of them can start: mounts, capabilities, descriptors, system calls, and this program ([`pod_init_program`]). All of that
//! together: without capabilities alone it could be traced by who has none. The namespaces that are left are the pod's, and
//! those that containers have too. An end of its standard output without a word says that it is done.

use std::{
    convert::Infallible,
    ffi::{CString, OsString},
    io,
    os::unix::ffi::OsStringExt as _,
    path::Path,
    process::ExitCode,
};

use nix::{
    sys::signal::{SigSet, Signal},
    unistd::{read, setsid},
};

use crate::sys::{confine, pod_init_program, start};

/// First argument that makes the program one.
pub const COMMAND: &str = "pod-init";

/// A directory that each machine has, and that root of a user namespace can reach, too.
const EVERYWHERE: &str = "/proc";

/// Byte that the agent writes once the process is recorded and in its control group.
pub const RECORDED: u8 = b'.';

/// Becomes the program that runs until SIGTERM or SIGINT. `words`: the sandbox's directory.
#[must_use]
pub fn run_pod_init(words: Vec<OsString>) -> ExitCode {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGTERM);
    signals.add(Signal::SIGINT);
    if signals.thread_block().is_err() {
        return ExitCode::FAILURE;
    }
    let mut word = [0];
    // Not through the buffer of standard input, which would be too much for one byte.
    if !matches!(read(io::stdin(), &mut word), Ok(1)) || word != [RECORDED] {
        return ExitCode::SUCCESS;
    }
    let Err((step, error)) = confine_and_run(words);
    start::write_stdout(format!("{step}: {error}").as_bytes());
    ExitCode::FAILURE
}

/// Returns only if it fails: with what could not be done.
fn confine_and_run(words: Vec<OsString>) -> Result<Infallible, (&'static str, io::Error)> {
    let at = |step| move |e: io::Error| (step, e);
    let mut args = vec![c"picolet".to_owned()];
    let named = [COMMAND.into()].into_iter().chain(words);
    let named = named.map(|word| CString::new(word.into_vec()));
    for word in named {
        args.push(word.map_err(|e| ("take its arguments", e.into()))?);
    }
    // A terminal that the agent was started from is not the pod's.
    setsid().map_err(|e| ("begin a session", e.into()))?;
    confine::ignore_children().map_err(at("ignore its children"))?;
    let program = pod_init_program::open_program().map_err(at("keep its program in memory"))?;
    confine::leave_host(Path::new(EVERYWHERE)).map_err(at("leave the host's mounts"))?;
    confine::drop_all_capabilities().map_err(at("drop its capabilities"))?;
    Err((
        "run its program",
        pod_init_program::exec_program(&program, &args),
    ))
}
