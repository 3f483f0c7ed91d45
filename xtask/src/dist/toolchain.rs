//! What builds a program for a board. Two ways lead there:
//!
//! 1. The toolchain at hand has the board's standard library (`rustup target add TRIPLE`): plain `cargo build`, linked by its own
//!    `rust-lld` with the C library that comes along. C code needs a compiler for the board, named by `CC_<triple>`.
//! 2. Otherwise a toolchain with the sources of the standard library (`rustup component add rust-src`, or Debian's packages)
//!    builds that too, for size, and zig gives C library, C compiler and linker.

use std::{
    env, fmt, fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use super::Board;
use crate::{
    Failure, install,
    process::{cargo, cargo_at, find, output},
};

/// Version of zig, by its name in the Python package index.
const ZIG: &str = "ziglang==0.17.1";
/// The first compiler that the program can be built by.
const OLDEST_RUST: &str = env!("CARGO_PKG_RUST_VERSION");
/// What is built for other machines, and the tools for it.
pub(super) const TARGET_DIR: &str = "target/cross";
/// Where the compiler of Debian has its sources.
const DEBIAN_SYSROOT: &str = "/usr";

/// What is built of the standard library where it is built too.
#[derive(Clone, Copy)]
pub(crate) enum Std {
    /// For the program: small, and a panic aborts.
    Program,
    /// For tests, which catch panics.
    Test,
}

/// How a board's programs are built.
pub(crate) enum Toolchain {
    /// The library is there.
    Plain,
    /// The library is built by this `cargo` and `rustc`, everything is linked by zig.
    FromSources {
        cargo: PathBuf,
        rustc: PathBuf,
        zig: PathBuf,
    },
}

/// Zig for a board, as programs that take a compiler's words only.
struct Tools {
    cc: PathBuf,
    ar: PathBuf,
}

impl fmt::Display for Toolchain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain => f.write_str("the standard library of the toolchain, linked by rust-lld"),
            Self::FromSources { rustc, .. } => {
                let rustc = rustc.display();
                write!(f, "a standard library built by {rustc}, linked by zig")
            }
        }
    }
}

impl Toolchain {
    /// Finds a way to build for all of `boards`, installing what it needs where that is possible.
    pub(crate) fn find(boards: &[Board]) -> Result<Self, Failure> {
        let rustc = env::var_os("RUSTC").map_or_else(|| "rustc".into(), PathBuf::from);
        let ask = |what: &[&str]| -> Result<PathBuf, Failure> {
            Ok(output(Command::new(&rustc).args(what))?.trim().into())
        };
        let mut without = Vec::new();
        for board in boards {
            let libdir = ask(&["--print", "target-libdir", "--target", &board.triple])?;
            if !has_std(&libdir) {
                without.push(&*board.triple);
            }
        }
        if without.is_empty() {
            return Ok(Self::Plain);
        }
        let (cargo, rustc) = if has_sources(&ask(&["--print", "sysroot"])?) {
            (cargo().get_program().into(), rustc)
        } else {
            let missing = install::ensure(&[&install::STD])?;
            if !missing.is_empty() {
                return Err(format!(
                    "no standard library: run `rustup target add {}` or `rustup component add rust-src`; or, on Debian, install {}",
                    without.join(" "), missing.join(", "),
                ).into());
            }
            let bin = Path::new(DEBIAN_SYSROOT).join("bin");
            let rustc = bin.join("rustc");
            // Debian brings newer compilers by its security updates, whose lists can be out of reach for a while.
            if !is_new_enough(&rustc)? {
                install::renew(&install::STD.each_ref());
            }
            if !is_new_enough(&rustc)? {
                let is = output(Command::new(&rustc).arg("--version"))?;
                let is = is.trim();
                return Err(format!("{is} is too old: the program needs {OLDEST_RUST}").into());
            }
            (bin.join("cargo"), rustc)
        };
        Ok(Self::FromSources {
            cargo,
            rustc,
            zig: zig()?,
        })
    }

    /// `cargo subcommand` for all of `boards`, told everything that it needs; the caller adds the words of the subcommand.
    pub(crate) fn cargo(
        &self,
        subcommand: &str,
        boards: &[Board],
        std: Std,
    ) -> Result<Command, Failure> {
        let mut command = match self {
            Self::Plain => cargo(),
            Self::FromSources { cargo, rustc, .. } => {
                let mut command = cargo_at(cargo);
                command
                    .args(std.words())
                    .env("RUSTC", rustc)
                    // The standard library's sources are for its own compiler only, whose cargo builds them when told so.
                    .env("RUSTC_BOOTSTRAP", "1");
                command
            }
        };
        command.arg(subcommand).env("CARGO_TARGET_DIR", TARGET_DIR);
        for board in boards {
            command.args(["--target", &board.triple]);
            let (linker, flags) = match self {
                Self::Plain => ("rust-lld".into(), "-C linker-flavor=ld.lld"),
                Self::FromSources { zig, .. } => {
                    let tools = write_tools(board, zig)?;
                    let triple = board.triple.replace('-', "_");
                    command
                        .env(format!("CC_{triple}"), &tools.cc)
                        .env(format!("AR_{triple}"), &tools.ar);
                    (tools.cc, "-C link-self-contained=no")
                }
            };
            // Nothing unwinds: the program aborts on a panic.
            let flags = format!(
                "{flags} {}{}{}",
                board.flags,
                match std {
                    Std::Program => " -C force-unwind-tables=no",
                    Std::Test => "",
                },
                shorter_paths()
            );
            command
                .env(board.variable("LINKER"), linker)
                .env(board.variable("RUSTFLAGS"), flags);
        }
        Ok(command)
    }
}

/// Flags that keep where things were built out of the program: 15 KB of paths that nobody else has.
fn shorter_paths() -> String {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| env::var_os("HOME").map(|home| Path::new(&home).join(".cargo")));
    let here = env::current_dir().ok();
    // Crates are named by their directories, in that of a registry: its name is another one for each cargo.
    let registries = home.as_deref().map(|home| home.join("registry/src"));
    let registries = registries.and_then(|dir| fs::read_dir(dir).ok());
    let registries = registries.into_iter().flatten().flatten();
    let registries = registries.map(|entry| (Some(entry.path()), "crates"));
    // Of several that fit the compiler takes the last.
    [(home, "cargo"), (here, "picolet")]
        .into_iter()
        .chain(registries)
        .filter_map(|(path, name)| Some((path?.into_os_string().into_string().ok()?, name)))
        // The variable separates its words by spaces and knows no other way.
        .filter(|(path, _)| !path.contains(char::is_whitespace))
        .map(|(path, name)| format!(" --remap-path-prefix={path}={name}"))
        .collect()
}

impl Std {
    fn words(self) -> &'static [&'static str] {
        match self {
            Self::Program => &[
                "-Zbuild-std=std,panic_abort",
                "-Zbuild-std-features=optimize_for_size",
            ],
            Self::Test => &[
                "-Zbuild-std=std,panic_unwind,test",
                "-Zbuild-std-features=panic-unwind",
            ],
        }
    }
}

fn has_std(libdir: &Path) -> bool {
    fs::read_dir(libdir).is_ok_and(|entries| {
        entries
            .flatten()
            .any(|e| e.file_name().to_string_lossy().starts_with("libstd-"))
    })
}

fn is_new_enough(rustc: &Path) -> Result<bool, Failure> {
    let text = output(Command::new(rustc).arg("--version"))?;
    let version = rust_version(text.strip_prefix("rustc ").unwrap_or(&text));
    Ok(version.is_some() && version >= rust_version(OLDEST_RUST))
}

/// Major and minor number in "1.96.0 (…)".
fn rust_version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split(['.', ' ', '\n']);
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn has_sources(sysroot: &Path) -> bool {
    sysroot
        .join("lib/rustlib/src/rust/library/Cargo.lock")
        .exists()
}

/// Finds zig, or installs it below the target directory.
fn zig() -> Result<PathBuf, Failure> {
    if let Some(zig) = find("zig") {
        return Ok(zig);
    }
    let dir = env::current_dir()?
        .join(TARGET_DIR)
        .join(ZIG.replace("==", "-"));
    let zig = dir.join("ziglang/zig");
    if !zig.exists() {
        install::pip(&[ZIG], &dir).map_err(|e| format!("no zig: {e}"))?;
    }
    Ok(zig)
}

/// A C compiler for a board, and its linker.
pub(crate) fn c_compiler(board: &Board) -> Result<PathBuf, Failure> {
    Ok(write_tools(board, &zig()?)?.cc)
}

/// Writes the scripts that tell zig the board: cargo, and crates that build C code, call a program without words.
fn write_tools(board: &Board, zig: &Path) -> Result<Tools, Failure> {
    let here = env::current_dir()?;
    let dir = here.join(TARGET_DIR).join("tools");
    fs::create_dir_all(&dir)?;
    let script = |name: &str, text: &str| -> Result<PathBuf, Failure> {
        let path = dir.join(format!("{}-{name}", board.name));
        let cache = here.join(TARGET_DIR).join("zig-cache");
        let text = text
            .replace("@cache@", &cache.display().to_string())
            .replace("@zig@", &zig.display().to_string())
            .replace("@assembler@", &board.zig_assembler)
            .replace("@target@", &board.zig)
            .replace("@processor@", &board.zig_processor);
        if fs::read_to_string(&path).is_ok_and(|known| known == text) {
            return Ok(path);
        }
        // Another build may run the script at this moment.
        let new = path.with_extension(std::process::id().to_string());
        fs::write(&new, text)?;
        fs::set_permissions(&new, fs::Permissions::from_mode(0o755))?;
        fs::rename(new, &path)?;
        Ok(path)
    };
    Ok(Tools {
        cc: script("cc", include_str!("../../../cross/cc.sh"))?,
        ar: script("ar", include_str!("../../../cross/ar.sh"))?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_compilers() {
        for (text, expected) in [
            ("1.96.0 (ac68faa20 2026-05-25) (Debian)\n", Some((1, 96))),
            ("1.92", Some((1, 92))),
            ("nightly", None),
        ] {
            assert_eq!(rust_version(text), expected, "{text:?}");
        }
    }
}
