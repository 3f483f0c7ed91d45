//! Tasks of the project. Each runs from a clean clone on Debian 12; `demo`, `test` and `bench` want root.

mod bench;
#[path = "../../tests/common/browser.rs"]
mod browser;
mod chaos;
#[path = "../../tests/common/containerd.rs"]
#[expect(dead_code, reason = "tests use more of it")]
mod containerd;
mod crates;
mod demo;
mod dist;
mod elf;
#[path = "../../tests/common/evicted.rs"]
mod evicted;
mod fuzz;
#[path = "../../tests/common/held_port.rs"]
mod held_port;
mod image;
mod install;
#[path = "../../tests/common/lamps.rs"]
#[expect(dead_code, reason = "tests use more of it")]
mod lamps;
#[cfg(target_arch = "x86_64")]
mod layout;
mod mutants;
mod pictures;
mod png;
mod process;
mod reach;
mod release;
mod sim;
mod source_date;
mod spec;
mod stage;
mod suite;
mod test;
mod vm;
mod wait;

use std::{env, path::Path, process::ExitCode};

const HELP: &str = "\
Tasks of picolet. Usage: cargo xtask TASK

  demo     Show the pod host on this machine, step by step, each checked (root); `--cluster`: a node of a cluster, whose
           control plane are the real programs if they are on PATH, else the test API server; `--runtime containerd`: pods run
           on Debian's containerd, started for this; `--program FILE` shows that file
  test     Install what the tests need and run all of them (root; without it the kernel tests are skipped);
           `--long`: with all that takes long; `--only LANE,…`: only these; `--repeat N LANE`: a lane, or a test program, N
           times beside a load, with the tests that ever failed
  fuzz     Feed mutated inputs to every parser: fuzz [--seconds N | --runs N] [--seed N] [TARGET]
  layout   Name the functions that agents at rest run, for cross/rest.txt: layout PID…
  reach    Name what the program as it ships cannot reach: rules that only their own tests call
  crates   Check licences, sources and versions of the crates that the project uses
  pictures Take pictures of the dashboard for docs/dashboard.md, and record the demo as text in docs/demo.md (root)
  spec     Count the rows of tests/spec that a test names, and list the [core] rows without one
  bench    Measure memory, processor time and latency beside runc and CNI called bare (root); `bench pull`: a large image
           from a registry, beside skopeo and umoci; `bench --runtime containerd`: the agent alone, with pods on Debian's
           containerd; `--program FILE` measures that file
  chaos    Kill agent and shims at random and at every crash point, alone and in a cluster, break runc and the disk, audit what
           is left (root)
           [--kills N] [--seed S] [--minutes M] [--quick] [--only PHASE,…] [--program FILE]
  sim      Simulate the agent: 10,000 schedules of everything going wrong, or as many as asked for
  mutants  Plant the bugs of tests/mutants, one after the other, and name the tests that notice: mutants [--all] [NAME…]
  dist     Build the program for boards: aarch64, armv7, armv6, x86_64 or all of them, each one static file in target/dist;
           `--start`: and have qemu start each; `--check`: only compile them; `--guest`: also what `board` starts inside
  release  Pack what `dist` has built, for the boards named or all of them, into target/release-files: tarballs, Debian packages,
           SHA256SUMS, and a signature: `--key FILE` or PICOLET_RELEASE_KEY name a private key for Ed25519 in PEM. Before that
           cargo-deny holds Cargo.lock against known advisories; without it: `--skip-advisories REASON`
  emulate  Run the unit tests that call the kernel as built for the boards named, by qemu; `--all`: all unit tests; `i686`:
           those that call the kernel, and those of logic, api and grpc, as built for a PC of 32 bits, by this machine itself
  vm       Show the pod host on cgroup v2 under systemd, in virtual machines of 512 and 256 MiB, through a power cut (root)
           [--uml|--qemu]: by User Mode Linux, or by qemu, which is taken where there is KVM; `--program FILE` shows that file;
           `--clock`: only the machine that boots in 1970;
           `--pressure`: instead a machine that runs short of memory, disk, inodes and process numbers
  board    Show a release on whole emulated boards: aarch64, armv7 or both. install.sh, pods, power cuts, cable, clock, upgrades (root);
           `--first`: only the boots that wait for nothing: not those with the cable out and those of upgrades
";

/// What a task could not do; printed once, at the end.
type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let task = env::args().nth(1).unwrap_or_default();
    // The part of `vm` and `board` that runs inside the machine, where there is no project.
    if task == "vm-guest" {
        return vm::run_guest();
    }
    if task == vm::CHAOS_GUEST {
        return ended(chaos::run(&env::args().skip(2).collect::<Vec<_>>()));
    }
    // The part of `chaos` that runs inside of containers.
    if task == chaos::WITNESS {
        return chaos::witness();
    }
    // The tasks speak of files below the project's root, wherever they are called from.
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask lies in the project");
    if let Err(e) = env::set_current_dir(root) {
        eprintln!("error: {}: {e}", root.display());
        return ExitCode::FAILURE;
    }
    let done = match task.as_str() {
        "demo" => demo::run(&env::args().skip(2).collect::<Vec<_>>()),
        "test" => test::run(&env::args().skip(2).collect::<Vec<_>>()),
        "fuzz" => fuzz::run(&env::args().skip(2).collect::<Vec<_>>()),
        "sim" => sim::run(&env::args().skip(2).collect::<Vec<_>>()),
        #[cfg(target_arch = "x86_64")]
        "layout" => layout::run(&env::args().skip(2).collect::<Vec<_>>()),
        "reach" => reach::run(),
        "crates" => crates::run(),
        "pictures" => pictures::run(),
        "spec" => spec::run(),
        "chaos" => chaos::run(&env::args().skip(2).collect::<Vec<_>>()),
        "bench" => bench::run(&env::args().skip(2).collect::<Vec<_>>()),
        "mutants" => mutants::run(&env::args().skip(2).collect::<Vec<_>>()),
        "dist" => dist::run(&env::args().skip(2).collect::<Vec<_>>()),
        "release" => release::run(&env::args().skip(2).collect::<Vec<_>>()),
        "emulate" => dist::emulator::run(&env::args().skip(2).collect::<Vec<_>>()),
        "vm" => vm::run(&env::args().skip(2).collect::<Vec<_>>()),
        "board" => vm::run_boards(&env::args().skip(2).collect::<Vec<_>>()),
        "" | "help" | "-h" | "--help" => {
            print!("{HELP}");
            Ok(())
        }
        other => Err(format!("unknown task {other:?}\n\n{HELP}").into()),
    };
    ended(done)
}

fn ended(done: Result<(), Failure>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
    }
}
