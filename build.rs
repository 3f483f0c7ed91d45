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
/// The compiler's start and end files refer to their own part of the table.
const TABLES: &str = "/DISCARD/ : { *(EXCLUDE_FILE(*crtbegin*.o *crtend*.o) .eh_frame) *(.gcc_except_table .gcc_except_table.*) }";

#[expect(
    clippy::disallowed_methods,
    reason = "cargo tells a build script by its environment"
)]
fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={LAYOUT}");
    let script = script();
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|v| v == value);
    // `release`, and every profile that inherits from it. What the profile does on a panic is not told to a build script.
    if is("PROFILE", "release") && is("CARGO_CFG_TARGET_OS", "linux") {
        let file = Path::new(&env::var_os("OUT_DIR").expect("cargo names it")).join("sections.ld");
        fs::write(&file, script).expect("the directory is there");
        // A compiler hands the words on to the linker; a linker that is called by itself takes them as they are.
        let bare = env::var("RUSTC_LINKER").is_ok_and(|linker| linker.ends_with("lld"));
        let option = if bare { "-T" } else { "-Wl,-T," };
        println!("cargo::rustc-link-arg-bins={option}{}", file.display());
    }
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
