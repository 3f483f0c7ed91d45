//! The program whose costs are measured.

use std::env::var_os;
use std::path::PathBuf;

/// Names the program as it is shipped, where `cargo xtask test` has built one.
const SHIPPED: &str = "PICOLET_SHIPPED";

/// That program, or the one that was built beside the tests.
pub(crate) fn program() -> PathBuf {
    var_os(SHIPPED).map_or_else(|| env!("CARGO_BIN_EXE_picolet").into(), PathBuf::from)
}

/// Whether its figures count: it has the checks of no debug build.
pub(crate) fn is_shipped() -> bool {
    !cfg!(debug_assertions) || var_os(SHIPPED).is_some()
}
