//! Has an optimised program linked by a script. It leaves the tables for unwinding out: the program aborts on a panic, so
//! nothing reads them. And it keeps together what an agent at rest runs, by `cross/rest.txt` and `cross/layout.txt`.
//!
//! Packs the page of the dashboard: a browser unpacks it, and the program has a third of the bytes.

use std::{env, fs, io::Write as _, path::Path};

use flate2::{Compression, write::GzEncoder};

/// See the files. What both name goes by the first.
const LAYOUTS: [&str; 2] = ["cross/rest.txt", "cross/layout.txt"];
/// The page of the dashboard.
const PAGE: [&str; 3] = ["page.html", "app.js", "style.css"];
/// Signs of script and style that need no space. Nothing that the page says has one of them with its spaces.
const SPACED: [&str; 13] = [
    " = ", " => ", " + ", " - ", " * ", " / ", " ? ", " : ", " < ", " > ", " === ", " {", " }",
];
const PAGE_DIR: &str = "src/parts/dashboard";
/// Crates that come with the compiler.
const COMPILERS: [&str; 3] = ["alloc", "core", "std"];
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
    for layout in LAYOUTS {
        println!("cargo::rerun-if-changed={layout}");
    }
    let out = env::var_os("OUT_DIR").expect("cargo names it");
    let out = Path::new(&out);
    for name in PAGE {
        let path = Path::new(PAGE_DIR).join(name);
        println!("cargo::rerun-if-changed={}", path.display());
        let text = fs::read_to_string(&path).expect("a part of the page");
        fs::write(out.join(format!("{name}.gz")), packed(&text)).expect("the directory is there");
    }
    // The board that this program is for, as releases call it.
    let target = env::var("TARGET").expect("cargo names it");
    let board = target.split('-').next().unwrap_or_default();
    let board = if board == "arm" { "armv6" } else { board };
    println!("cargo::rustc-env=PICOLET_BOARD={board}");
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|v| v == value);
    // Two minutes of a linker's time, for a program whose memory nobody measures.
    let layouts: &[&str] = if is("OPT_LEVEL", "z") { &LAYOUTS } else { &[] };
    let script = script(layouts);
    // `release`, and every profile that inherits from it. What the profile does on a panic is not told to a build script.
    if is("PROFILE", "release") && is("CARGO_CFG_TARGET_OS", "linux") {
        let file = out.join("sections.ld");
        fs::write(&file, script).expect("the directory is there");
        // A compiler hands the words on to the linker; a linker that is called by itself takes them as they are.
        let bare = env::var("RUSTC_LINKER").is_ok_and(|linker| linker.ends_with("lld"));
        let option = if bare { "-T" } else { "-Wl,-T," };
        println!("cargo::rustc-link-arg-bins={option}{}", file.display());
    }
}

/// A text by gzip, without what only people read: how far lines are indented, lines of comment, spaces around signs.
fn packed(text: &str) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::best());
    for line in text.lines().map(str::trim) {
        if !line.is_empty() && !line.starts_with("// ") {
            let apart = |line: String, sign: &&str| line.replace(sign, sign.trim());
            let line = SPACED.iter().fold(line.to_owned(), apart);
            writeln!(packed, "{line}").expect("memory");
        }
    }
    packed.finish().expect("memory")
}

/// The script that is added to the linker's own, with these layouts. One file: of several some linkers take the last.
fn script(layouts: &[&str]) -> String {
    let crates = fs::read_to_string("Cargo.lock").expect("it is beside Cargo.toml");
    let mut script = format!("SECTIONS\n{{\n{TABLES}\n");
    let mut is_open = false;
    let read = |file: &&str| fs::read_to_string(file).unwrap_or_else(|e| panic!("{file}: {e}"));
    let layouts: Vec<_> = layouts.iter().map(read).collect();
    for line in layouts.join("\n").lines() {
        if let Some(name) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            script += if is_open { "}\n" } else { "" };
            script += &format!(".text.{name} :\n{{\n");
            is_open = true;
        } else if line.starts_with('*') {
            script += &format!("{line}\n");
        } else if !line.is_empty() && !line.starts_with('#') {
            let name = mangled(line, &crates);
            // The compiler keeps what it takes for rare apart, such as the growth of a vector.
            script += &format!("*(.text._R*_{name}* .text.unlikely._R*_{name}*)\n");
        }
    }
    script + if is_open { "}\n" } else { "" } + "}\nINSERT AFTER .text;\n"
}

/// The part of a name that a crate, a module, or a function in one has in the compiler's v0 mangling, which is set in
/// `.cargo/config.toml`: length and name of each segment. Generic code speaks of its instances so, too.
fn mangled(entry: &str, crates: &str) -> String {
    let segments: Vec<&str> = entry.split("::").collect();
    let (first, others) = (segments[0], &segments[1..]);
    let own = OWN.iter().find(|(name, _)| *name == first);
    // Modules lie next to each other; between a type, its methods and what they are made for there is more.
    let modules = if let Some((_, dir)) = own {
        let mut path = Path::new(dir).to_path_buf();
        let is_module = |segment: &&&str| {
            path.push(segment);
            path.is_dir() || path.with_extension("rs").is_file()
        };
        let modules = others.iter().take_while(is_module).count();
        assert!(
            modules == others.len() || modules > 0,
            "there is no module {entry}: see {LAYOUTS:?}"
        );
        modules
    } else {
        let is_lower = |segment: &&&str| segment.starts_with(|c: char| c.is_ascii_lowercase());
        let is_there = |name: &str| crates.contains(&format!("\nname = \"{name}\"\n"));
        assert!(
            COMPILERS.contains(&first) || is_there(first) || is_there(&first.replace('_', "-")),
            "there is no crate {entry}: see {LAYOUTS:?}"
        );
        others.iter().take_while(is_lower).count()
    };
    // The name of a library is not always that of its package.
    let first = first.replace('-', "_").replace("rustls_webpki", "webpki");
    let mut name = String::new();
    for (n, segment) in [&*first].iter().chain(others).enumerate() {
        name += if n > modules { "*" } else { "" };
        // A name that begins like a number is kept from the number before it.
        let gap = if segment.starts_with('_') { "_" } else { "" };
        name += &format!("{}{gap}{segment}", segment.len());
    }
    // The number tells a crate from one that begins the same.
    if others.is_empty() && own.is_none() {
        name + "[0-9]"
    } else {
        name
    }
}
