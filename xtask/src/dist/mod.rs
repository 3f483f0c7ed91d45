//! `cargo xtask dist`: the program for each kind of board, one static file in `target/dist`.

mod board;
pub(crate) mod emulator;
mod toolchain;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

pub(crate) use board::{Board, boards};
pub(crate) use toolchain::c_compiler;
use toolchain::{Std, TARGET_DIR, Toolchain};

use crate::{
    Failure, elf,
    process::{output, run as run_command},
    source_date,
};

/// Where the programs are put.
const DIR: &str = "target/dist";

/// A program of the project.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Edition {
    /// Everything.
    Full,
    /// The kubelet alone, without parts.
    Core,
}

impl Edition {
    /// Name of its files.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Full => "picolet",
            Self::Core => "picolet-core",
        }
    }

    /// Words for cargo that choose its features.
    pub(crate) fn features(self) -> &'static [&'static str] {
        match self {
            Self::Full => &[],
            Self::Core => &["--no-default-features"],
        }
    }

    /// Words of this task that build it.
    pub(crate) fn dist_words(self) -> &'static str {
        match self {
            Self::Full => "",
            Self::Core => "--core ",
        }
    }

    fn max_bytes(self, board: &Board) -> usize {
        match self {
            Self::Full => board.max_bytes,
            Self::Core => board.max_core_bytes,
        }
    }
}

/// Names of the parts: the features that are on by default.
pub(crate) fn parts() -> Result<Vec<String>, Failure> {
    let text = fs::read_to_string("Cargo.toml")?;
    let (_, list) = text
        .split_once("\ndefault = [")
        .ok_or("Cargo.toml has no default features")?;
    let list = list.split(']').next().unwrap_or(list);
    let names = list.split(',').map(|name| name.trim().trim_matches('"'));
    Ok(names
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect())
}

/// Has an emulator start each program.
const START: &str = "--start";
/// Only has the compiler look at it.
const CHECK: &str = "--check";
/// Builds the part of this task that runs on the board, too.
const GUEST: &str = "--guest";
/// Builds the program without parts.
const CORE: &str = "--core";

/// Builds and checks the program for the boards named, or for all of them.
pub(crate) fn run(words: &[String]) -> Result<(), Failure> {
    let has = |flag: &str| words.iter().any(|word| word == flag);
    let (start, check_only) = (has(START), has(CHECK));
    let names = words
        .iter()
        .filter(|word| ![START, CHECK, CORE, GUEST].contains(&&***word));
    let edition = if has(CORE) {
        Edition::Core
    } else {
        Edition::Full
    };
    let boards = boards(&names.collect::<Vec<_>>())?;
    let toolchain = Toolchain::find(&boards)?;
    println!("Built with {toolchain}.");
    // One call for all: they are linked beside each other. What is only looked at shares its tools with the tests.
    let (subcommand, profile) = match check_only {
        true => ("check", "dev"),
        false => ("build", "release"),
    };
    let mut command = toolchain.cargo(subcommand, &boards, Std::Program)?;
    command.args(["--profile", profile, "--package", "picolet"]);
    command.args(["--bin", "picolet"]);
    command.env("CARGO_PROFILE_DEV_PANIC", "abort");
    command.args(edition.features());
    // Sources without commits and without a date are built too.
    if let Ok(date) = source_date::get() {
        command.env(source_date::VARIABLE, date.to_string());
    }
    run_command(&mut command)?;
    if check_only {
        return Ok(());
    }
    fs::create_dir_all(DIR)?;
    println!("{:<8} {:>10} {:>10}  file", "board", "bytes", "limit");
    for board in &boards {
        let made = Path::new(TARGET_DIR)
            .join(&board.triple)
            .join("release/picolet");
        let file = program(board, edition);
        let bytes = fs::read(&made)?;
        let (name, limit, len) = (&board.name, edition.max_bytes(board), bytes.len());
        println!("{name:<8} {len:>10} {limit:>10}  {}", file.display());
        check(board, edition, &bytes)?;
        // Another lane may read the file at this moment.
        let new = file.with_extension(std::process::id().to_string());
        fs::copy(made, &new)?;
        fs::rename(new, &file)?;
        if start {
            let mut command = Command::new(emulator::emulator(board)?);
            command.args(board.emulator_words.split_whitespace());
            let said = output(command.arg(&file).arg("version"))?;
            println!("  {}", said.trim());
        }
        if has(GUEST) {
            guest(board)?;
        }
    }
    Ok(())
}

/// Makes ready what building for the boards named, and for a PC of 32 bits, needs.
pub(crate) fn prepare(names: &[&str]) -> Result<(), Failure> {
    let mut boards = boards(names)?;
    boards.push(emulator::pc());
    Toolchain::find(&boards)?;
    Ok(())
}

/// Builds this task for a board, and returns where it is. It waits more than it works: to optimize it takes minutes.
pub(crate) fn guest(board: &Board) -> Result<PathBuf, Failure> {
    // Its directory is its own: who starts a board would wait for the lock of one where tests are built.
    const PROFILE: &str = "guest";
    let boards = std::slice::from_ref(board);
    let mut command = Toolchain::find(boards)?.cargo("build", boards, Std::Test)?;
    command.args(["--profile", PROFILE, "--package", "xtask", "--bin", "xtask"]);
    run_command(&mut command)?;
    let built = Path::new(TARGET_DIR).join(&board.triple);
    Ok(built.join(PROFILE).join("xtask"))
}

/// Where the program for a board is put.
pub(crate) fn program(board: &Board, edition: Edition) -> PathBuf {
    PathBuf::from(DIR).join(format!("{}-{}", edition.name(), board.name))
}

/// What every program that is given away must be.
pub(crate) fn check(board: &Board, edition: Edition, file: &[u8]) -> Result<(), Failure> {
    let linked = elf::linked(file).ok_or_else(|| format!("{}: not an ELF file", board.name))?;
    let fault = if linked.machine != board.machine {
        format!("is for machine {}, not {}", linked.machine, board.machine)
    } else if linked.interpreted {
        "needs a dynamic loader: it has to be static".into()
    } else if !linked.fixed {
        // Relocations would cost each shim about 60 KiB.
        "is position independent".into()
    } else if linked.page < board.page {
        let (page, pages) = (linked.page, board.page);
        format!("is laid out for pages of {page} bytes: kernels of this board have up to {pages}")
    } else if file.len() > edition.max_bytes(board) {
        let limit = edition.max_bytes(board);
        format!("has {} bytes, more than {limit}", file.len())
    } else {
        return Ok(());
    };
    Err(format!("the program for {} {fault}", board.name).into())
}
