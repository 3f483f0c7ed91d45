//! The event loop, sync tasks and the executor.

pub mod clock;
pub mod pod_store;
pub mod recorder;

use std::{ffi::OsString, process::ExitCode};

/// `picolet run`.
#[must_use]
pub fn main(_words: Vec<OsString>) -> ExitCode {
    ExitCode::FAILURE
}
