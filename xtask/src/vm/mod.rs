//! `cargo xtask vm`: the pod host as the boards run it, on control groups version 2 and under systemd, in a virtual machine of
//! 512 MiB made of Debian packages. The machine is User Mode Linux, or qemu where the processor helps it.
//!
//! The task is on both sides. Outside it makes the disks, starts the machine and reads verdicts from the second serial port; inside
//! the same program ([`guest`]) does what is to be checked and reports. The machine has no network. It is started twice: the
//! first time its power is cut in the middle of churn, the second time it has to come up by itself. A second machine has
//! 256 MiB and shows how many pods that is enough for, a third one boots in 1970. Two more are started only if they are asked for: `--pressure` runs short
//! of everything, in `--chaos` agents are killed.
//!
//! `cargo xtask board`: the same on emulated boards, installed from a release, and what only these show ([`emulated`]).

mod disk;
mod emulated;
mod guest;
mod machine;
mod manifests;
mod report;
mod shelf;
mod uml;

use std::path::{Path, PathBuf};

use emulated::EMULATED;
use machine::{Backend, Machine, Plan};
use report::Boot;

use crate::{
    Failure,
    demo::Double,
    install,
    process::is_root,
    stage,
    wait::{Watch, until},
};

pub(crate) use guest::{CHAOS_GUEST, run as run_guest};

/// Disks and logs.
const DIR: &str = "target/vm";
/// Lines of a console that are shown when something did not hold.
const TAIL_LINES: usize = 100;

/// Whether the agent told of each pod of the small machine that it ends it. Nothing else there has ended a pod: what is
/// told was told while the machine went down. How long that took says little on an emulated processor.
fn all_ended(console: &Path) -> Result<(), Failure> {
    let said = std::fs::read(console)?;
    let said = String::from_utf8_lossy(&said);
    let ended = said
        .lines()
        .filter(|line| line.contains(" Killing: Stopping container "))
        .count();
    if ended == manifests::SMALL_CROWD {
        Ok(())
    } else {
        Err(format!(
            "the agent ended {ended} of {} pods: see {}",
            manifests::SMALL_CROWD,
            console.display()
        )
        .into())
    }
}

/// Whether there is a machine of this machine's kind.
pub(crate) fn is_possible() -> bool {
    std::env::consts::ARCH == "x86_64"
}

/// `--qemu` or `--uml`: what the machine is, else what is quick here. `--program FILE`: what is shown, else the release
/// program. `--pressure`: only the machine that runs short. `--clock`: only the one that boots in 1970, which no board does.
/// `--chaos`: only the one where agents are killed; then FILE is the program with crash points.
pub(crate) fn run(words: &[String]) -> Result<(), Failure> {
    const KNOWN: &str = "known: --qemu, --uml, --clock, --pressure, --chaos, --program FILE";
    let mut backend = Backend::quick();
    let mut program = None;
    let mut boots = Boot::MACHINE.to_vec();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--qemu" => backend = Backend::Qemu,
            "--uml" => backend = Backend::Uml,
            "--clock" => boots = vec![Boot::Clock],
            "--pressure" => boots = vec![Boot::Pressure],
            "--chaos" => boots = vec![Boot::Chaos],
            "--program" => {
                let file = words.next().ok_or_else(|| format!("which? {KNOWN}"))?;
                program = Some(PathBuf::from(file));
            }
            odd => return Err(format!("unknown option {odd:?}; {KNOWN}").into()),
        }
    }
    if !is_possible() {
        eprintln!("SKIPPED vm: its image is for x86-64");
        return Ok(());
    }
    if !is_root() {
        return Err("the machine's image holds files of root: run this as root".into());
    }
    let its_own: &[install::Need] = match backend {
        Backend::Qemu => &install::QEMU,
        Backend::Uml => &install::UML,
        Backend::Board(_) => &install::BOARD,
    };
    let missing = install::ensure(&[&install::BUILD, &install::HOST, &install::VM, its_own])?;
    if !missing.is_empty() {
        eprintln!("SKIPPED vm: not installed: {}", missing.join(", "));
        return Ok(());
    }
    let with_points = boots == [Boot::Chaos];
    let program = match program {
        Some(file) => file,
        None => {
            println!("Building the program");
            match with_points {
                true => stage::build("try", &["--features", "crash-points"])?,
                false => stage::program()?,
            }
        }
    };
    let apiserver = Double::build()?;
    show(backend, &boots, |tree, _| {
        disk::fill(tree, &program)?;
        disk::fill_apiserver(tree, &apiserver)?;
        match with_points {
            true => disk::fill_chaos(tree, &program),
            false => Ok(()),
        }
    })
}

/// Boards by name; none: all.
pub(crate) fn run_boards(words: &[String]) -> Result<(), Failure> {
    let known = EMULATED.map(|board| board.name);
    let mut boots = Boot::BOARD.to_vec();
    let mut wanted = Vec::new();
    for word in words {
        match word.as_str() {
            "--first" => boots = Boot::FIRST.to_vec(),
            name if known.contains(&name) => wanted.push(name),
            odd => {
                let names = known.join(", ");
                return Err(
                    format!("unknown board {odd:?}; there are {names}, and --first").into(),
                );
            }
        }
    }
    if !is_root() {
        return Err("a board's image holds files of root: run this as root".into());
    }
    let missing = install::ensure(&[&install::HOST, &install::VM, &install::BOARD])?;
    if !missing.is_empty() {
        eprintln!("SKIPPED board: not installed: {}", missing.join(", "));
        return Ok(());
    }
    for board in &EMULATED {
        if wanted.is_empty() || wanted.contains(&board.name) {
            let first = boots == Boot::FIRST;
            let fill = |tree: &Path, base: &disk::Base| board.payload(tree, base, first);
            show(Backend::Board(board), &boots, fill)?;
        }
    }
    Ok(())
}

fn show(
    backend: Backend,
    boots: &[Boot],
    fill: impl FnOnce(&Path, &disk::Base) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let dir = &Path::new(DIR).join(backend.name());
    let base = disk::base(dir, backend)?;
    let payload = disk::payload(dir, |tree| fill(tree, &base))?;
    println!("Starting the machine ({})", backend.title());
    let watch = Watch::start();
    let site = Site {
        dir,
        base: &base,
        payload: &payload,
        boots,
    };
    let mut steps = site.show();
    // Seen once, in qemu without the processor's help: a step that takes a minute told nothing for seven.
    if steps.as_ref().is_err_and(|e| e.is::<report::Stalled>()) {
        println!("The machine stood still. From the start, once more:");
        steps = site.show();
    }
    println!(
        "\nAll {} steps held, in {:.1} s.",
        steps?,
        watch.elapsed().as_secs_f64()
    );
    Ok(())
}

/// What machines are made of.
struct Site<'a> {
    dir: &'a Path,
    base: &'a disk::Base,
    payload: &'a Path,
    boots: &'a [Boot],
}

impl Site<'_> {
    /// Starts the machines one after the other. Returns how many checks held; all did.
    fn show(&self) -> Result<u32, Failure> {
        let root = self.dir.join("root.ext4");
        let mut steps = 0;
        for &boot in self.boots {
            println!("\n== {}", boot.title());
            if boot.is_new() {
                disk::copy(self.base, &root)?;
            }
            steps += self.boot(boot, &root)?;
        }
        Ok(steps)
    }

    fn boot(&self, boot: Boot, root: &Path) -> Result<u32, Failure> {
        let mut machine = Machine::start(&Plan {
            dir: self.dir,
            base: self.base,
            root,
            payload: self.payload,
            boot,
        })?;
        let console = machine::console(self.dir, boot);
        let mut steps = machine.report(boot).inspect_err(|e| {
            println!("error: {e}; the end of what the machine's console said:");
            println!("{}", tail(&console));
        })?;
        // Else dropping it is the power cut.
        if boot.ends_in_order() {
            let watch = Watch::start();
            until(machine::OFF_LIMIT, || machine.has_ended())?;
            let time = watch.elapsed().as_secs_f64();
            println!("✓ It switches itself off with its pods running ({time:.2} s)");
            steps += 1;
            if boot == Boot::Small {
                all_ended(&console)?;
                println!("✓ and the agent ended each of them before");
                steps += 1;
            }
        }
        Ok(steps)
    }
}

/// The last lines of a console's log.
fn tail(log: &Path) -> String {
    let said = std::fs::read(log).unwrap_or_default();
    let said = String::from_utf8_lossy(&said);
    let lines: Vec<_> = said.lines().collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}
