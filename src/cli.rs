//! What was typed, and the local commands.

use std::process::ExitCode;

/// Entry point of the program.
#[must_use]
pub fn main() -> ExitCode {
    ExitCode::SUCCESS
}
