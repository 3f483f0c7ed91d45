//! Has an optimised program linked by a script. It leaves the tables for unwinding out: the program aborts on a panic, so
//! nothing reads them. And it keeps together what an agent at rest runs, by `cross/layout.txt`.

use std::{env, fs, path::Path};

/// See the file.
const LAYOUT: &str = "cross/layout.txt";
/// The project's crates that are in the program, and their sources.
const OWN: [(&str, &str); 4] = [
    ("picolet", "src"),
    ("picolet_api", "src/api"),
    ("picolet_grpc", "src/grpc"),
    ("picolet_logic", "src/logic"),
];
/// Has ring leave out the larger of its two ways to compute on the curve P-256, which has a table of 150 KB. `cross/aarch64.conf`
/// sets it for ring's C.
const SMALL: &str = "OPENSSL_SMALL";
/// What ring's Rust on aarch64 still asks for: multiplies in a time that may tell the number, and is only in the larger way.
const VARIABLE_TIME: &str = "p256_point_mul_base_vartime";
/// Takes the same, gives the same, and its time tells nothing.
const CONSTANT_TIME: &str = "p256_point_mul_base";
/// The compiler's start and end files refer to their own part of the table.
const TABLES: &str = "/DISCARD/ : { *(EXCLUDE_FILE(*crtbegin*.o *crtend*.o) .eh_frame) *(.gcc_except_table .gcc_except_table.*) }";
/// Without tables nobody can walk the stack. The function of the C library's unwinder that the standard library calls to do so is
/// one that does nothing: with what it calls it is 20 KB. Not on ARM, where another name loses which instructions a function is in.
const UNWINDER: &str = "_Unwind_Backtrace = getpid;\n";

#[expect(
    clippy::disallowed_methods,
    reason = "cargo tells a build script by its environment"
)]
fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={LAYOUT}");
    let script = script();
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|v| v == value);
    let dir = env::var_os("OUT_DIR").expect("cargo names it");
    // A compiler hands the words on to the linker; a linker that is called by itself takes them as they are.
    let bare = env::var("RUSTC_LINKER").is_ok_and(|linker| linker.ends_with("lld"));
    let option = if bare { "-T" } else { "-Wl,-T," };
    let write = |name: &str, script: &str| {
        let file = Path::new(&dir).join(name);
        fs::write(&file, script).expect("the directory is there");
        format!("{option}{}", file.display())
    };
    let small = if has_small_ring() {
        ring()
    } else {
        String::new()
    };
    // `release`, and every profile that inherits from it. What the profile does on a panic is not told to a build script.
    if is("PROFILE", "release") && is("CARGO_CFG_TARGET_OS", "linux") {
        let has_it = is("CARGO_CFG_TARGET_ENV", "musl") && !is("CARGO_CFG_TARGET_ARCH", "arm");
        let unwinder = if has_it { UNWINDER } else { "" };
        let word = write("sections.ld", &(script + &small + unwinder));
        println!("cargo::rustc-link-arg-bins={word}");
    } else if !small.is_empty() {
        println!("cargo::rustc-link-arg={}", write("ring.ld", &small));
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "cargo and the cc crate are told by the environment"
)]
fn has_small_ring() -> bool {
    let target = env::var("TARGET").expect("cargo names it");
    let flags = format!("CFLAGS_{}", target.replace('-', "_"));
    println!("cargo::rerun-if-env-changed={flags}");
    target.starts_with("aarch64") && env::var(flags).is_ok_and(|flags| flags.contains(SMALL))
}

/// The script that is added to the linker's own. One file: of several some linkers take the last.
fn script() -> String {
    let layout = fs::read_to_string(LAYOUT).unwrap_or_else(|e| panic!("{LAYOUT}: {e}"));
    let crates = fs::read_to_string("Cargo.lock").expect("it is beside Cargo.toml");
    let mut script = format!("SECTIONS\n{{\n{TABLES}\n");
    let mut is_open = false;
    for line in layout.lines() {
        if let Some(name) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            script += if is_open { "}\n" } else { "" };
            script += &format!(".text.{name} :\n{{\n");
            is_open = true;
        } else if line.starts_with('*') {
            script += &format!("{line}\n");
        } else if !line.is_empty() && !line.starts_with('#') {
            script += &format!("*(.text._R*_{}*)\n", mangled(line, &crates));
        }
    }
    script + "}\n}\nINSERT AFTER .text;\n"
}

/// The part of the script that gives a small ring what it asks for. Its names bear its version.
fn ring() -> String {
    let crates = fs::read_to_string("Cargo.lock").expect("it is beside Cargo.toml");
    let (_, rest) = crates
        .split_once("\nname = \"ring\"\nversion = \"")
        .expect("it is used");
    let (version, _) = rest.split_once('"').expect("a version ends");
    let prefix = format!("ring_core_{}_", version.replace('.', "_"));
    format!("PROVIDE({prefix}_{VARIABLE_TIME} = {prefix}_{CONSTANT_TIME});\n")
}

/// A module's or crate's part of a name in the compiler's v0 mangling, which is set in `.cargo/config.toml`: length and name of
/// each segment. Generic code speaks of its instances so, too.
fn mangled(entry: &str, crates: &str) -> String {
    let (first, modules) = entry.split_once("::").unwrap_or((entry, ""));
    if let Some((_, dir)) = OWN.iter().find(|(name, _)| *name == first) {
        let path = Path::new(dir).join(modules.replace("::", "/"));
        assert!(
            path.is_dir() || path.with_extension("rs").is_file(),
            "{LAYOUT}: there is no module {entry}"
        );
        let segments = entry.split("::");
        return segments.map(|s| format!("{}{s}", s.len())).collect();
    }
    assert!(
        crates.contains(&format!("\nname = \"{entry}\"\n")),
        "{LAYOUT}: there is no crate {entry}"
    );
    // The name of a library is not always that of its package.
    let name = entry.replace('-', "_").replace("rustls_webpki", "webpki");
    // The number tells it from one that begins the same.
    format!("{}{name}[0-9]", name.len())
}
