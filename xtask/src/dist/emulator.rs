//! `cargo xtask emulate`: the unit tests as built for other machines.
//!
//! What words of 32 bits may break is built for a PC of 32 bits in each run: rules, formats, the API, and what calls the kernel.
//! Most machines run such programs by themselves, and their own kernel answers. As built for a board, qemu's user mode runs the
//! tests, and most of what a test of the kernel then sees is qemu: this takes minutes, and is for long runs.
//!
//! Emulators before 9.2 do not know openat2, by which every path that others control is opened. Debian 12 has a newer one
//! among its backports; it is one static file, taken out of its package and not installed.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
    slice,
};

use super::{
    Std, Toolchain,
    board::{Board, boards},
    toolchain::TARGET_DIR,
};
use crate::{
    Failure,
    process::{find, is_root, output, run as run_command},
    suite,
    test::{AT_ONCE, LIST, List, Row, TestProgram},
};

/// The first emulator with openat2.
const OLDEST: (u32, u32) = (9, 2);
/// Packages for the current Debian that are newer than it.
const BACKPORTS: &str = "bookworm-backports";
/// Starts a program in a time namespace where the machine was started seconds ago that a clock of 32 bits cannot say.
const LATE: [&str; 4] = ["unshare", "--time", "--boottime", "3000000000"];
const LATE_TEST: &str = "sys::clock::tests::the_clock_is_read_whole";

/// The lanes whose rows of the list of skipped tests are meant: of the PC of 32 bits, and of boards.
const LANE: &str = "emulation";
const EMULATED_LANE: &str = "all boards";

/// Schedules of each simulation while the tests are not optimized: as many as elsewhere would take ten minutes.
const SCHEDULES: &str = "20";

/// What most of the time of tests is spent in, and is optimized in any case. The C of ring is built like its Rust.
const OPTIMIZED: [&str; 9] = [
    "sha2",
    "miniz_oxide",
    "ruzstd",
    "crc32fast",
    "adler2",
    "simd-adler32",
    "rustls",
    "ring",
    "hashbrown",
];
/// The same of what is emulated: optimizing it takes longer than a machine needs that runs the tests by itself.
const OPTIMIZED_IF_EMULATED: [&str; 4] = ["core", "alloc", "std", "compiler_builtins"];

/// Crates whose unit tests are run.
const CRATES: [&str; 4] = ["picolet", "picolet-api", "picolet-grpc", "picolet-logic"];
/// Modules of the first of them that call the kernel. The others do not.
const OF_THE_KERNEL: [&str; 9] = [
    "cgroup",
    "image",
    "net",
    "parts::cri",
    "parts::devices",
    "runtime",
    "shim",
    "sys",
    "volume",
];

/// Optimizes the tests and runs those of all crates: quick to run, long to build.
const ALL: &str = "--all";

/// Runs the tests for the boards named.
pub(crate) fn run(words: &[String]) -> Result<(), Failure> {
    let all = words.iter().any(|word| word == ALL);
    let names: Vec<_> = words.iter().filter(|word| *word != ALL).collect();
    if names.is_empty() {
        return Err("which board?".into());
    }
    if names == [PC] {
        return run_by_itself();
    }
    let boards = boards(&names)?;
    let tests = Tests {
        toolchain: Toolchain::find(&boards)?,
        crates: if all { &CRATES } else { &CRATES[..1] },
        optimized: all,
        emulated: true,
    };
    println!("Built with {}.", tests.toolchain);
    run_command(tests.cargo(&boards)?.arg("--no-run"))?;

    let skipped = skipped_tests(EMULATED_LANE)?;
    for board in &boards {
        let emulator = emulator(board)?;
        println!("{}: run by {}", board.name, emulator.display());
        let listed = output(tests.emulated(board, &emulator, &[])?.arg("--list"))?;
        let known = listed_tests(&listed);
        let mut command = tests.emulated(board, &emulator, &[])?;
        command.arg("--exact").args(skip(&skipped, &known)?);
        if !all {
            command.args(of_the_kernel(&known)?);
        }
        run_command(&mut command)?;
        run_late(&mut tests.emulated(board, &emulator, &LATE)?)?;
    }
    Ok(())
}

/// Those of the tests `known` that belong to [`OF_THE_KERNEL`].
fn of_the_kernel<'a>(known: &[&'a str]) -> Result<Vec<&'a str>, Failure> {
    let mut found = Vec::new();
    for module in OF_THE_KERNEL {
        let before = found.len();
        let begins = |test: &&str| {
            let rest = test.strip_prefix(module);
            rest.is_some_and(|rest| rest.starts_with("::"))
        };
        found.extend(known.iter().copied().filter(begins));
        if found.len() == before {
            return Err(format!("no test is in the module {module}").into());
        }
    }
    Ok(found)
}

/// The name of a PC of 32 bits. No program is given away for it.
const PC: &str = "i686";

/// That PC.
pub(super) fn pc() -> Board {
    Board {
        name: PC.into(),
        triple: "i686-unknown-linux-musl".into(),
        zig: "x86-linux-musl".into(),
        zig_assembler: "x86-linux-musl".into(),
        zig_processor: "pentium4".into(),
        flags: String::new(),
        machine: 3,
        page: 4096,
        max_core_bytes: 0,
        max_bytes: usize::MAX,
        debian: None,
        emulator: "qemu-i386".into(),
        emulator_words: String::new(),
    }
}

/// Runs the tests as built for a PC of 32 bits, by this machine itself if it can: of the first crate those that call the kernel,
/// and only by the machine itself.
fn run_by_itself() -> Result<(), Failure> {
    let pc = pc();
    let tests = Tests {
        toolchain: Toolchain::find(slice::from_ref(&pc))?,
        crates: &CRATES,
        optimized: false,
        emulated: false,
    };
    println!("Built with {}.", tests.toolchain);
    let build = || tests.cargo(slice::from_ref(&pc));
    run_command(build()?.arg("--no-run"))?;
    let messages = output(build()?.args(["--no-run", "--quiet", "--message-format", "json"]))?;
    let programs = TestProgram::list(&messages)?;
    if programs.len() != CRATES.len() {
        return Err(format!("cargo named {} test programs", programs.len()).into());
    }
    let skipped = skipped_tests(LANE)?;
    let is_able = output(programs[0].run_by(&[]).arg("--list")).is_ok();
    let emulator = match is_able {
        true => None,
        false => Some(emulator(&pc)?.display().to_string()),
    };
    for program in programs {
        let tests = |runner: &[&str]| {
            let mut command = program.run_by(runner);
            command.args(["--test-threads", AT_ONCE]);
            command
        };
        println!("\n{}", program.package);
        if program.package != CRATES[0] {
            run_command(&mut tests(emulator.as_deref().as_slice()))?;
        } else if is_able {
            let listed = output(tests(&[]).arg("--list"))?;
            let known = listed_tests(&listed);
            let mut command = tests(&[]);
            command.arg("--exact").args(skip(&skipped, &known)?);
            run_command(command.args(of_the_kernel(&known)?))?;
            run_late(&mut tests(&LATE))?;
        } else {
            eprintln!(
                "SKIPPED calls of the kernel by a PC of 32 bits: this machine runs no such programs"
            );
        }
    }
    Ok(())
}

/// Tests that this lane skips, each told. What no lane runs is ignored by the tests themselves.
fn skipped_tests(lane: &str) -> Result<Vec<String>, Failure> {
    let list = List::read(Path::new(LIST))?;
    let rows = list.rows.into_iter();
    let tests = rows.filter(|row| row.lane == lane && row.what.contains("::"));
    let told = |row: Row| {
        eprintln!("SKIPPED {}: {}", row.what, row.why);
        row.what
    };
    Ok(tests.map(told).collect())
}

/// Words that have the tests `skipped` skipped, all of which must be `known`.
fn skip<'a>(skipped: &'a [String], known: &[&str]) -> Result<Vec<&'a str>, Failure> {
    if let Some(odd) = skipped.iter().find(|test| !known.contains(&&***test)) {
        return Err(format!("no test has the name {odd}, which is to be skipped").into());
    }
    Ok(skipped.iter().flat_map(|test| ["--skip", test]).collect())
}

/// Names in what a test program lists.
fn listed_tests(listed: &str) -> Vec<&str> {
    let lines = listed.lines();
    lines
        .filter_map(|line| line.strip_suffix(": test"))
        .collect()
}

/// Runs the test of a clock that is far ahead; `tests` is started late.
fn run_late(tests: &mut Command) -> Result<(), Failure> {
    if is_root() {
        return run_command(tests.args(["--ignored", "--exact", LATE_TEST]));
    }
    eprintln!("SKIPPED {LATE_TEST}: a time namespace needs root");
    Ok(())
}

/// How the tests are built.
struct Tests {
    toolchain: Toolchain,
    /// Whose tests.
    crates: &'static [&'static str],
    optimized: bool,
    emulated: bool,
}

impl Tests {
    /// `cargo test` for `boards`.
    fn cargo(&self, boards: &[Board]) -> Result<Command, Failure> {
        let mut command = self.toolchain.cargo("test", boards, Std::Test)?;
        let more: &[&str] = match self.emulated {
            true => &OPTIMIZED_IF_EMULATED,
            false => &[],
        };
        let optimized = OPTIMIZED.iter().chain(more);
        command.args(optimized.flat_map(|name| {
            let level = format!("profile.dev.package.{name}.opt-level=2");
            ["--config".to_owned(), level]
        }));
        let level = if self.optimized { "1" } else { "0" };
        command.env("CARGO_PROFILE_DEV_OPT_LEVEL", level);
        command.env("CARGO_PROFILE_DEV_DEBUG", "false");
        command.env("CARGO_INCREMENTAL", "0");
        command.args(self.crates.iter().flat_map(|name| ["--package", name]));
        command.arg("--lib");
        Ok(command)
    }

    /// Runs them; the caller adds words for the tests.
    fn tests(&self, board: &Board) -> Result<Command, Failure> {
        let mut command = self.cargo(slice::from_ref(board))?;
        command.args(["--", "--test-threads", AT_ONCE]);
        if !self.optimized {
            command.env("PICOLET_SIM_SCHEDULES", SCHEDULES);
        }
        Ok(command)
    }

    /// [`Tests::tests`] by the emulator, which `before` starts.
    fn emulated(
        &self,
        board: &Board,
        emulator: &Path,
        before: &[&str],
    ) -> Result<Command, Failure> {
        let emulator = emulator.display().to_string();
        let mut words = before.to_vec();
        words.push(&emulator);
        words.extend(board.emulator_words.split_whitespace());
        let runner = words.join(" ");
        let mut command = self.tests(board)?;
        command.env(board.variable("RUNNER"), runner);
        Ok(command)
    }
}

/// Finds an emulator that is new enough, or fetches it.
pub(crate) fn emulator(board: &Board) -> Result<PathBuf, Failure> {
    let name = &board.emulator;
    let dir = env::current_dir()?.join(TARGET_DIR).join("qemu");
    let fetched = dir.join("usr/bin").join(name);
    let at_hand = [
        find(name),
        find(&format!("{name}-static")),
        Some(fetched.clone()),
    ];
    if let Some(found) = at_hand.into_iter().flatten().find(|p| is_new_enough(p)) {
        return Ok(found);
    }
    if find("apt-get").is_none() {
        return Err(format!("no {name} of version {}.{} or newer", OLDEST.0, OLDEST.1).into());
    }
    println!("Fetching {name} below {}", dir.display());
    suite::unpack(BACKPORTS, &["download", "qemu-user"], &dir)?;
    if is_new_enough(&fetched) {
        Ok(fetched)
    } else {
        Err(format!("{} cannot be used", fetched.display()).into())
    }
}

fn is_new_enough(emulator: &Path) -> bool {
    emulator.exists()
        && output(Command::new(emulator).arg("--version"))
            .is_ok_and(|text| version(&text).is_some_and(|v| v >= OLDEST))
}

/// Major and minor number in "qemu-arm version 10.0.2 (Debian …)".
fn version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split_once(" version ")?.1.split(['.', ' ', '\n']);
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_that_call_the_kernel() {
        let names: Vec<_> = OF_THE_KERNEL.map(|module| format!("{module}::a")).into();
        let mut known: Vec<&str> = names.iter().map(String::as_str).collect();
        known.extend(["agent::sys::a", "systems::a"]);
        assert_eq!(of_the_kernel(&known).unwrap(), known[..names.len()]);
        let without = of_the_kernel(&known[1..]).unwrap_err().to_string();
        assert_eq!(without, "no test is in the module cgroup");
    }

    #[test]
    fn versions() {
        for (text, expected, enough) in [
            (
                "qemu-arm version 10.0.2 (Debian 1:10.0.2+ds)\nCopyright",
                Some((10, 0)),
                true,
            ),
            ("qemu-arm version 9.2.0\n", Some((9, 2)), true),
            (
                "qemu-aarch64 version 7.2.22 (Debian 1:7.2)\n",
                Some((7, 2)),
                false,
            ),
            ("something else", None, false),
        ] {
            assert_eq!(version(text), expected);
            assert_eq!(version(text).is_some_and(|v| v >= OLDEST), enough);
        }
    }
}
