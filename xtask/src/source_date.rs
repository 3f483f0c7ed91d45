//! The day that the sources are of: every file of a release carries it, and its program knows that it is later.

use std::{env, process::Command};

use crate::{Failure, process::output};

/// Seconds since 1970. Source: reproducible-builds.org.
pub(crate) const VARIABLE: &str = "SOURCE_DATE_EPOCH";

/// What the variable says, else when the last commit was made.
pub(crate) fn get() -> Result<u64, Failure> {
    if let Some(set) = env::var_os(VARIABLE) {
        let set = set.to_string_lossy();
        return Ok(set.parse().map_err(|e| format!("{VARIABLE}={set}: {e}"))?);
    }
    let told = output(Command::new("git").args(["log", "-1", "--format=%ct"]));
    let told = told.map_err(|e| format!("no commit to take the date of: set {VARIABLE}: {e}"))?;
    Ok(told.trim().parse()?)
}
