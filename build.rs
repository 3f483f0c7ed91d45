//! Leaves the tables for unwinding out of an optimised program: it aborts on a panic, so nothing reads them.

use std::env;

#[expect(
    clippy::disallowed_methods,
    reason = "cargo tells a build script by its environment"
)]
fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=no-unwind.ld");
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|v| v == value);
    // `release`, and every profile that inherits from it. What the profile does on a panic is not told to a build script.
    if is("PROFILE", "release") && is("CARGO_CFG_TARGET_OS", "linux") {
        let dir = env!("CARGO_MANIFEST_DIR");
        println!("cargo::rustc-link-arg-bins=-Wl,-T,{dir}/no-unwind.ld");
    }
}
