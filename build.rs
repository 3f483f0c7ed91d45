//! Has an optimised program linked by `sections.ld`. It leaves the tables for unwinding out: the program aborts on a panic, so
//! nothing reads them. And it keeps together what an agent at rest runs.

use std::env;

#[expect(
    clippy::disallowed_methods,
    reason = "cargo tells a build script by its environment"
)]
fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=sections.ld");
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|v| v == value);
    // `release`, and every profile that inherits from it. What the profile does on a panic is not told to a build script.
    if is("PROFILE", "release") && is("CARGO_CFG_TARGET_OS", "linux") {
        let dir = env!("CARGO_MANIFEST_DIR");
        // A compiler hands the words on to the linker; a linker that is called by itself takes them as they are.
        let bare = env::var("RUSTC_LINKER").is_ok_and(|linker| linker.ends_with("lld"));
        let option = if bare { "-T" } else { "-Wl,-T," };
        println!("cargo::rustc-link-arg-bins={option}{dir}/sections.ld");
    }
}
