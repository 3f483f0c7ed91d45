//! `cargo xtask test`: everything a change has to pass, in one command.
//!
//! The run is made of lanes. What lanes share is built once: the program as it is shipped, and all test programs with the
//! checks of a debug build, beside a program with crash points. Then what measures has the machine for itself. What wants
//! processors runs beside what starts machines and kills agents, and has ended when the tests begin.

mod ledger;
mod list;
mod load;
mod older;
mod run;

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
    process::Command,
};

use self::{
    load::Load,
    run::{Run, Step},
};
use crate::{
    Failure,
    demo::{DOUBLE, Double},
    dist, fuzz, install,
    process::{cargo, is_root, itself, output},
    sim,
    stage::{self, SHIPPED},
    suite, vm,
};

pub(crate) use self::list::{List, Row};

/// What is skipped, and where it runs.
pub(crate) const LIST: &str = "tests/skipped.md";
/// Boards of whose words are different widths.
const EMULATED_IN_LONG: [&str; 2] = ["aarch64", "armv7"];
/// The board whose program is linked and measured in every run, and that is started whole.
const FIRST_BOARD: &str = "aarch64";
/// The board whose program is only compiled: it has code of its own.
const COMPILED_BOARD: &str = "armv7";
/// Schedules of each simulation of a long run.
const LONG_SCHEDULES: u64 = 100_000;
/// Seconds of fuzzing of a long run.
const LONG_FUZZ_S: u32 = 600;
/// Names directories in which tests look for a kubectl.
const KUBECTLS: &str = "K8S_BIN";
/// Names a directory in which tests find a runc and a CRIU that are newer than those of the current Debian.
const NEWER_PROGRAMS: &str = "PICOLET_NEWER_PROGRAMS";

/// Lanes that want processors. In a whole run that is not long, they run beside those that mostly wait. Of these only `board`
/// needs what is built here, and waits for it.
const BESIDE: [&str; 6] = [
    "boards",
    "lints",
    "documentation",
    "rules",
    "simulation",
    "emulation",
];
/// Test programs that run nodes.
const NODES: [&str; 2] = ["cluster", "host"];
/// Test programs that mostly wait, for containers and for times.
const WAITING: [&str; 3] = ["cluster", "host", LIBRARY];
/// Tests of each of them at once.
pub(crate) const AT_ONCE: &str = "4";
/// Test programs that neither touch the kernel nor measure: they run beside those.
const RULES: [&str; 3] = ["picolet_api", "picolet_grpc", "picolet_logic"];
/// Test programs of which another lane runs a part, or all.
const BUDGETS: [&str; 3] = ["budget", "pull_memory", "shim_memory"];
/// The test of the first of them that measures memory only.
const CROWDS: &str = "crowds_that_come_and_go";
/// What the options for the edge cost, among the tests of a cluster.
const EDGE_AT_REST: &str = "rest_memory::everything_configured_costs_little_at_rest";
/// Tests of the library that are lanes of their own.
const LANES_OF_THEIR_OWN: [&str; 3] = [
    "agent::sim::schedules",
    "agent::sim::cluster_schedules",
    "agent::sim::resize_schedules",
];

/// When a lane runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    Always,
    /// If this is root.
    Root,
    /// If this is root, and `--long` is asked for.
    Long,
}

/// Name, when it runs, what it does.
type Lane = (&'static str, When, fn(&mut Run) -> Result<(), Failure>);

/// In their order: first what tells most a minute, and what measures; last the tests.
const LANES: [Lane; 24] = [
    ("format", When::Always, format),
    ("crates", When::Always, crates),
    ("budgets", When::Root, budgets),
    // First of those beside others: the lane `board` wants its program.
    ("boards", When::Always, boards),
    ("lints", When::Always, lints),
    ("documentation", When::Always, documentation),
    ("rules", When::Always, rules),
    ("simulation", When::Always, simulation),
    ("fuzz", When::Always, fuzz),
    ("emulation", When::Always, emulation),
    ("machine", When::Root, machine),
    ("chaos", When::Root, chaos),
    ("board", When::Root, board),
    ("long simulation", When::Long, long_simulation),
    ("long fuzz", When::Long, long_fuzz),
    ("long tests", When::Long, long_tests),
    ("older build", When::Long, older_build),
    ("pressure", When::Long, pressure),
    ("whole chaos", When::Long, whole_chaos),
    ("demos", When::Long, demos),
    ("all boards", When::Long, all_boards),
    ("whole boards", When::Long, whole_boards),
    ("bench", When::Long, bench),
    ("tests", When::Always, tests),
];

/// What was typed.
#[derive(Debug, Default, PartialEq)]
struct Args {
    long: bool,
    /// Lanes, by name; none: all.
    only: Vec<String>,
    /// So often, a lane or a test program.
    repeat: Option<(u32, String)>,
}

fn parse(words: &[String]) -> Result<Args, Failure> {
    const KNOWN: &str = "--long, --only LANE,…, --repeat N LANE";
    let mut args = Args::default();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--long" => args.long = true,
            "--only" => {
                let names = words.next().ok_or("--only: which lanes?")?;
                args.only = names.split(',').map(str::to_owned).collect();
            }
            "--repeat" => {
                let times = words.next().and_then(|n| n.parse().ok());
                let times = times.ok_or("--repeat: how often?")?;
                let name = words
                    .next()
                    .ok_or("--repeat: which lane or test program?")?;
                args.repeat = Some((times, name.clone()));
            }
            odd => return Err(format!("unknown option {odd:?}; known: {KNOWN}").into()),
        }
    }
    if let Some(odd) = args.only.iter().find(|name| lane(name).is_none()) {
        return Err(unknown(odd));
    }
    Ok(args)
}

fn lane(name: &str) -> Option<&'static Lane> {
    LANES.iter().find(|lane| lane.0 == name)
}

fn unknown(lane: &str) -> Failure {
    let names: Vec<_> = LANES.iter().map(|lane| lane.0).collect();
    format!("unknown lane {lane:?}; there are {}", names.join(", ")).into()
}

pub(crate) fn run(words: &[String]) -> Result<(), Failure> {
    let args = parse(words)?;
    let mut run = Run::new(List::read(Path::new(LIST))?);
    for missing in install::ensure(&[
        &install::BUILD,
        &install::HOST,
        &install::TEST,
        &install::BROWSER,
    ])? {
        run.skip(&format!("{missing} is not installed"));
    }
    if let Some((times, name)) = &args.repeat {
        repeat(&mut run, *times, name)?;
        return run.end_repeated(*times);
    }
    let is_whole = args.only.is_empty();
    if is_whole && is_root() && env::var_os(SHIPPED).is_none() {
        run.build_beside()?;
    }
    for (name, when, work) in LANES {
        let asked = args.only.iter().any(|only| only == name);
        let wanted = asked || is_whole && (args.long || when != When::Long);
        if !wanted {
            if is_whole {
                run.skip(&format!("lane {name}"));
            }
        } else if when != When::Always && !is_root() {
            run.skip(&format!("lane {name}: it needs root"));
        } else {
            run.begin(name);
            let done = if is_whole && !args.long && BESIDE.contains(&name) {
                beside(&mut run, name)
            } else {
                work(&mut run)
            };
            if let Err(e) = done {
                run.fail(&e.to_string());
            }
        }
    }
    run.end_lanes()?;
    if let Err(e) = ledger::write(&run) {
        println!("Warning: the ledger of long lanes is not written: {e}");
    }
    if is_whole {
        ledger::warn();
    }
    run.end()
}

/// Begins all lanes of [`BESIDE`] with the first of them.
fn beside(run: &mut Run, name: &str) -> Result<(), Failure> {
    if name != BESIDE[0] {
        return Ok(());
    }
    // What they need is installed by one process at a time, and what others need is built before they build.
    dist::prepare(&[FIRST_BOARD, COMPILED_BOARD]).or_else(|e| match env::var_os("CI") {
        Some(_) => Err(e),
        None => Ok(()),
    })?;
    if is_root() {
        run.double = Some(Double::build()?);
    }
    run.lanes_beside(&BESIDE)
}

/// Runs a lane, or a test program, so often beside a load.
fn repeat(run: &mut Run, times: u32, name: &str) -> Result<(), Failure> {
    let lane = lane(name);
    if lane.is_none() && !run.tests()?.names().iter().any(|known| known == name) {
        let programs = run.tests()?.names().join(", ");
        return Err(format!("{}; test programs are {programs}", unknown(name)).into());
    }
    run.begin(lane.map_or("tests", |lane| lane.0));
    let peers = match lane {
        Some(_) => Peers::default(),
        None => peers(run)?,
    };
    let _load = Load::start();
    for n in 1..=times {
        println!("\n== {name}: run {n} of {times}");
        let done = match lane {
            Some((_, _, work)) => work(run),
            None => {
                let step = test_step(run, name, &peers)?;
                run.steps_in_turn(vec![step]);
                Ok(())
            }
        };
        if let Err(e) = done {
            run.fail(&e.to_string());
        }
    }
    Ok(())
}

fn format(run: &mut Run) -> Result<(), Failure> {
    run.step(cargo().args(["fmt", "--all", "--check"]));
    Ok(())
}

fn crates(run: &mut Run) -> Result<(), Failure> {
    run.step(&mut task("crates")?);
    Ok(())
}

fn lints(run: &mut Run) -> Result<(), Failure> {
    let words = "clippy --workspace --all-targets -- -D warnings";
    run.step(cargo().args(words.split(' ')));
    run.step(cargo().args(CORE_ALONE));
    Ok(())
}

/// The core compiles without any part.
const CORE_ALONE: [&str; 5] = [
    "check",
    "--quiet",
    "--package",
    "picolet",
    "--no-default-features",
];

/// The core compiles with each part alone.
fn each_part(run: &mut Run) -> Result<(), Failure> {
    for part in dist::parts()? {
        run.step(cargo().args(CORE_ALONE).args(["--features", &part]));
    }
    Ok(())
}

fn documentation(run: &mut Run) -> Result<(), Failure> {
    let words = "doc --workspace --no-deps --document-private-items";
    run.step(
        cargo()
            .args(words.split(' '))
            .env("RUSTDOCFLAGS", "-D warnings"),
    );
    Ok(())
}

/// Rules of `logic` that the program cannot reach.
fn rules(run: &mut Run) -> Result<(), Failure> {
    run.step(&mut task("reach")?);
    Ok(())
}

fn simulation(run: &mut Run) -> Result<(), Failure> {
    for (kind, schedules) in sim::IN_EACH_RUN {
        let mut command = run.tests()?.library();
        sim::set(&mut command, &[kind], schedules);
        run.step(&mut command);
    }
    Ok(())
}

fn long_simulation(run: &mut Run) -> Result<(), Failure> {
    let mut command = run.tests()?.library();
    sim::set(&mut command, &sim::KINDS, LONG_SCHEDULES);
    run.step(&mut command);
    Ok(())
}

/// Another seed than the tests' own short run.
fn fuzz(run: &mut Run) -> Result<(), Failure> {
    let mut command = run.tests()?.library();
    fuzz::set(
        &mut command,
        fuzz::Long::Seconds(fuzz::SHORT_SECONDS),
        2,
        "",
    );
    run.step(&mut command);
    Ok(())
}

fn long_fuzz(run: &mut Run) -> Result<(), Failure> {
    let mut command = run.tests()?.library();
    fuzz::set(&mut command, fuzz::Long::Seconds(LONG_FUZZ_S), 3, "");
    run.step(&mut command);
    Ok(())
}

/// Budgets count for the program as it is shipped.
fn budgets(run: &mut Run) -> Result<(), Failure> {
    // Both builds at once, and nothing beside what is measured.
    run.tests()?;
    let shipped = run.shipped()?;
    let mut alone = budget_steps(run, &shipped)?;
    // What measures nothing but memory may run beside each other: processors are for what measures them.
    let of_memory = alone.split_off(1);
    run.steps_in_turn(alone);
    let tests = run.tests()?;
    let mut command = tests.program("cluster")?;
    command.args(["--ignored", "--exact", EDGE_AT_REST]);
    command.env(SHIPPED, &shipped);
    let at_rest = Step {
        name: format!("{}: at rest", run.lane),
        alone: run.tests()?.alone("cluster")?.with_shipped(&shipped),
        command,
    };
    run.steps_at_once(vec![at_rest], of_memory);
    Ok(())
}

/// The programs that measure one after the other: first what measures more than memory.
fn budget_steps(run: &mut Run, shipped: &Path) -> Result<Vec<Step>, Failure> {
    let name = run.lane.to_owned();
    let tests = run.tests()?;
    let parts: [(_, &[&str]); 4] = [
        (BUDGETS[0], &["--skip", CROWDS]),
        (BUDGETS[0], &["--exact", CROWDS]),
        (BUDGETS[1], &[]),
        (BUDGETS[2], &[]),
    ];
    let steps = parts.into_iter().map(|(program, words)| {
        let mut command = tests.program(program)?;
        command.args(words).env(SHIPPED, shipped);
        Ok(Step {
            name: name.clone(),
            alone: tests.alone(program)?.with_shipped(shipped),
            command,
        })
    });
    steps.collect()
}

fn machine(run: &mut Run) -> Result<(), Failure> {
    if !vm::is_possible() {
        run.skip("lane machine: its image is for x86-64");
        return Ok(());
    }
    let shipped = run.shipped()?;
    let mut command = task("vm")?;
    command.arg("--clock").envs(double(run));
    run.step(command.env(SHIPPED, shipped));
    Ok(())
}

/// The test API server, if it is built already.
fn double(run: &Run) -> Option<(&'static str, PathBuf)> {
    run.double.clone().map(|file| (DOUBLE, file))
}

/// The machine that runs short.
fn pressure(run: &mut Run) -> Result<(), Failure> {
    let shipped = run.shipped()?;
    run.step(task("vm")?.arg("--pressure").env(SHIPPED, shipped));
    Ok(())
}

fn chaos(run: &mut Run) -> Result<(), Failure> {
    let program = run.tests()?.crashing.clone();
    let mut command = task("chaos")?;
    command.arg("--quick").arg("--program").arg(program);
    run.step(command.envs(double(run)));
    Ok(())
}

fn whole_chaos(run: &mut Run) -> Result<(), Failure> {
    let program = run.tests()?.crashing.clone();
    run.step(task("chaos")?.arg("--program").arg(&program));
    // On control groups version 2.
    if vm::is_possible() {
        run.step(task("vm")?.args(["--chaos", "--program"]).arg(&program));
    }
    Ok(())
}

/// The program of one board as it is given away, and what the lane `board` starts beside it. Those of the others are
/// compiled, and linked in a long run.
fn boards(run: &mut Run) -> Result<(), Failure> {
    if can_build(run, &[FIRST_BOARD, COMPILED_BOARD]) {
        let mut program = task("dist")?;
        if is_root() {
            program.arg("--guest");
        }
        run.step(program.arg(FIRST_BOARD));
        run.step(task("dist")?.args(["--check", COMPILED_BOARD]));
    }
    Ok(())
}

/// Words of 32 bits, and the kernel as programs with such words see it.
fn emulation(run: &mut Run) -> Result<(), Failure> {
    if can_build(run, &[FIRST_BOARD]) {
        run.step(task("emulate")?.arg("i686"));
    }
    Ok(())
}

fn all_boards(run: &mut Run) -> Result<(), Failure> {
    each_part(run)?;
    run.step(task("dist")?.arg("--start"));
    run.step(task("dist")?.args(["--core", "--start"]));
    run.step(task("emulate")?.arg("--all").args(EMULATED_IN_LONG));
    // What the program costs with the C library of boards; this machine is of one of their names.
    for board in dist::boards(&[env::consts::ARCH])? {
        let program = std::path::absolute(dist::program(&board, dist::Edition::Full))?;
        let steps = budget_steps(run, &program)?;
        run.steps_in_turn(steps);
    }
    Ok(())
}

/// A whole board, installed from a release: what it does in the first minutes.
fn board(run: &mut Run) -> Result<(), Failure> {
    if can_build(run, &[FIRST_BOARD]) {
        run.step(task("board")?.args(["--first", FIRST_BOARD]));
    }
    Ok(())
}

/// Whole boards, and all that is shown on them and on the virtual machine.
fn whole_boards(run: &mut Run) -> Result<(), Failure> {
    if vm::is_possible() {
        let shipped = run.shipped()?;
        run.step(task("vm")?.env(SHIPPED, shipped));
    }
    if can_build(run, &EMULATED_IN_LONG) {
        run.step(&mut task("board")?);
    }
    Ok(())
}

/// What CI does not build would rot: only elsewhere the lack of a toolchain is no fault.
fn can_build(run: &mut Run, boards: &[&str]) -> bool {
    match dist::prepare(boards) {
        Err(e) if env::var_os("CI").is_none() => {
            run.skip(&format!("programs for boards: {e}"));
            false
        }
        _ => true,
    }
}

fn demos(run: &mut Run) -> Result<(), Failure> {
    let shipped = run.shipped()?;
    run.step(task("demo")?.env(SHIPPED, &shipped));
    run.step(task("demo")?.arg("--cluster").env(SHIPPED, &shipped));
    run.step(
        task("demo")?
            .args(["--runtime", "containerd"])
            .env(SHIPPED, shipped),
    );
    Ok(())
}

fn bench(run: &mut Run) -> Result<(), Failure> {
    let shipped = run.shipped()?;
    run.step(task("bench")?.env(SHIPPED, &shipped));
    run.step(task("bench")?.arg("pull").env(SHIPPED, &shipped));
    run.step(
        task("bench")?
            .args(["--runtime", "containerd"])
            .env(SHIPPED, shipped),
    );
    Ok(())
}

/// Tests that are ignored because they take minutes.
fn long_tests(run: &mut Run) -> Result<(), Failure> {
    let shipped = run.shipped()?;
    for (program, test) in [
        (
            "picolet_logic",
            "api_sim::converges_and_never_errs_in_many_schedules",
        ),
        ("image", "memory_does_not_grow_with_the_archive"),
        ("volume_memory", "a_directory_of_a_million_names"),
        ("budget", "many_crowds"),
        ("budget", "a_crowd_with_files"),
        ("host", "eviction::pods_that_take_too_much"),
        ("host", "logs::a_flood_of_a_minute"),
        (
            "host",
            "containerd::containerd_is_killed_many_times_while_pods_come_and_go",
        ),
        ("host", "upgrade::fifty_upgrades_and_power_cuts"),
        (
            "cluster",
            "containerd::containerd_hangs_for_five_minutes_and_loses_its_socket",
        ),
        ("cluster", "flash::an_hour_at_rest"),
    ] {
        let mut command = run.tests()?.program(program)?;
        let alone = run.tests()?.alone(program)?;
        command.env(SHIPPED, &shipped);
        command.args(["--ignored", "--exact", test, "--nocapture"]);
        run.step_called(run.lane, &alone, &mut command);
    }
    Ok(())
}

/// This build and an earlier one, in turn, with the same pods.
fn older_build(run: &mut Run) -> Result<(), Failure> {
    let Some(older) = older::program()? else {
        run.skip("older build: its commit is not in this clone");
        return Ok(());
    };
    let mut command = run.tests()?.program("host")?;
    let test = "older::pods_of_an_older_build_and_back";
    run.step(command.env("PICOLET_OLDER", older).args([
        "--ignored",
        "--exact",
        test,
        "--nocapture",
    ]));
    Ok(())
}

/// The rest of all test programs. Those that run nodes wait for each other's turn of the processors, and rules take what
/// they leave; whatever may measure has the machine for itself.
fn tests(run: &mut Run) -> Result<(), Failure> {
    let peers = peers(run)?;
    let mut names = run.tests()?.names();
    names.retain(|name| !BUDGETS.contains(&&**name));
    let (nodes, others): (Vec<_>, Vec<_>) =
        names.iter().partition(|name| NODES.contains(&&***name));
    let (rules, others): (Vec<_>, Vec<_>) = others
        .into_iter()
        .partition(|name| RULES.contains(&&***name));
    let mut steps = |names: &[&String]| -> Result<Vec<Step>, Failure> {
        let steps = names.iter().map(|name| test_step(run, name, &peers));
        steps.collect()
    };
    let (nodes, rules, others) = (steps(&nodes)?, steps(&rules)?, steps(&others)?);
    run.end_lanes()?;
    run.steps_at_once(nodes, rules);
    run.steps_in_turn(others);
    Ok(())
}

/// One test program, as the lane `tests` runs it.
fn test_step(run: &mut Run, name: &str, peers: &Peers) -> Result<Step, Failure> {
    let tests = run.tests()?;
    let mut command = tests.program(name)?;
    command.env(KUBECTLS, &peers.kubectls);
    command.envs(peers.newer.iter().map(|dir| (NEWER_PROGRAMS, dir)));
    if WAITING.contains(&name) {
        command.args(["--test-threads", AT_ONCE]);
    }
    if name == LIBRARY {
        command.args(LANES_OF_THEIR_OWN.iter().flat_map(|test| ["--skip", test]));
    }
    Ok(Step {
        name: format!("tests: {name}"),
        alone: tests.alone(name)?,
        command,
    })
}

/// Programs that tests try picolet with.
#[derive(Default)]
struct Peers {
    /// Directories with a kubectl: tests take every one that they find.
    kubectls: OsString,
    /// The directory with a newer runc and CRIU.
    newer: Option<PathBuf>,
}

/// Peers for tests, where they can be had.
fn peers(run: &mut Run) -> Result<Peers, Failure> {
    let mut kubectls: Vec<PathBuf> = env::var_os(KUBECTLS)
        .iter()
        .flat_map(env::split_paths)
        .collect();
    for (name, found) in [
        ("Debian's kubectl", install::old_kubectl()),
        ("kubectl 1.36", install::new_kubectl()),
    ] {
        match found {
            Ok(dir) => kubectls.push(dir),
            Err(e) => run.skip(&format!("{name}: {e}")),
        }
    }
    for (name, done) in [
        ("Debian's containerd", install::containerd().map(|_| ())),
        ("Debian's prometheus", install::prometheus().map(|_| ())),
        ("grpcio", install::grpcio()),
    ] {
        if let Err(e) = done {
            run.skip(&format!("{name}: {e}"));
        }
    }
    let newer = suite::newer_programs();
    if let Err(e) = &newer {
        run.skip(&format!("runc and CRIU of a newer Debian: {e}"));
    }
    Ok(Peers {
        kubectls: env::join_paths(kubectls)?,
        newer: newer.ok(),
    })
}

/// A task of this project. Cargo would wait for whoever builds at the time.
fn task(name: &str) -> Result<Command, Failure> {
    let mut command = Command::new(itself()?);
    command.arg(name);
    Ok(command)
}

/// Words that run a step alone, or a test of it.
#[derive(Clone)]
struct Alone {
    words: String,
    /// Whether they take a test's name.
    of_tests: bool,
}

impl Alone {
    fn lane(name: &str) -> Self {
        let quote = if name.contains(' ') { "'" } else { "" };
        Self {
            words: format!("cargo xtask test --only {quote}{name}{quote}"),
            of_tests: false,
        }
    }

    /// The test program `name` of a package; `kind` as cargo has it.
    fn program(package: &str, kind: &str, name: &str) -> Self {
        let features = match package == LIBRARY {
            true => " --features picolet/crash-points",
            false => "",
        };
        let target = match kind {
            "test" | "bin" => format!("--{kind} {name}"),
            _ => "--lib".to_owned(),
        };
        Self {
            words: format!("cargo test --profile sim{features} -p {package} {target}"),
            of_tests: true,
        }
    }

    /// Has the program `shipped` tried, as the lane does.
    fn with_shipped(mut self, shipped: &Path) -> Self {
        let below = env::current_dir().ok();
        let below = below.and_then(|here| shipped.strip_prefix(here).ok());
        let file = match below {
            Some(file) => format!("$PWD/{}", file.display()),
            None => shipped.display().to_string(),
        };
        self.words = format!("{SHIPPED}={file} {}", self.words);
        self
    }

    fn whole(&self) -> String {
        self.words.clone()
    }

    fn test(&self, name: &str) -> String {
        match self.of_tests {
            true => format!("{} -- --exact --include-ignored {name}", self.words),
            false => format!("{} ({name})", self.words),
        }
    }
}

/// Name of the library's tests.
const LIBRARY: &str = "picolet";

/// What [`Run::tests`] builds.
struct Tests {
    programs: Vec<TestProgram>,
    /// The program, with crash points.
    crashing: PathBuf,
}

/// A program of tests that cargo has built.
pub(crate) struct TestProgram {
    name: String,
    /// The package, and what of it this is a test of.
    pub(crate) package: String,
    kind: String,
    /// Where cargo would start it.
    dir: PathBuf,
    file: PathBuf,
}

impl TestProgram {
    /// Those that cargo's messages name.
    pub(crate) fn list(messages: &str) -> Result<Vec<Self>, Failure> {
        let mut programs = Vec::new();
        for (file, message) in executables(messages) {
            if message["profile"]["test"] != true {
                continue;
            }
            let name = message["target"]["name"].as_str().ok_or("no name")?;
            let manifest = message["manifest_path"].as_str().ok_or("no manifest")?;
            let dir = Path::new(manifest).parent().ok_or("no directory")?;
            let kind = message["target"]["kind"][0].as_str().unwrap_or_default();
            programs.push(Self {
                name: name.to_owned(),
                package: package(message["package_id"].as_str().unwrap_or_default()),
                kind: kind.to_owned(),
                dir: dir.to_owned(),
                file,
            });
        }
        programs.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(programs)
    }

    /// Starts it where cargo would, by the words of `runner` if there are any.
    pub(crate) fn run_by(&self, runner: &[&str]) -> Command {
        let mut command = match runner {
            [] => Command::new(&self.file),
            [program, words @ ..] => {
                let mut command = Command::new(program);
                command.args(words).arg(&self.file);
                command
            }
        };
        command.current_dir(&self.dir);
        command
    }
}

/// Programs that cargo's messages name, each with its message.
fn executables(messages: &str) -> impl Iterator<Item = (PathBuf, serde_json::Value)> {
    messages.lines().filter_map(|message| {
        let message: serde_json::Value = serde_json::from_str(message).ok()?;
        let file = message["executable"].as_str().map(PathBuf::from)?;
        Some((file, message))
    })
}

impl Tests {
    /// What builds them.
    fn command() -> Command {
        let mut command = cargo();
        let words = "test --workspace --no-run --profile sim --features picolet/crash-points";
        command.args(words.split(' '));
        command
    }

    /// Asks cargo for what [`Tests::command`] has built.
    fn find() -> Result<Self, Failure> {
        let messages = output(Self::command().args(["--message-format", "json"]))?;
        let crashing = executables(&messages).find(|(_, message)| {
            message["profile"]["test"] != true && message["target"]["name"] == stage::PROGRAM
        });
        let (crashing, _) = crashing.ok_or("cargo named no program")?;
        Ok(Self {
            programs: TestProgram::list(&messages)?,
            crashing,
        })
    }

    fn names(&self) -> Vec<String> {
        self.programs.iter().map(|p| p.name.clone()).collect()
    }

    fn program(&self, name: &str) -> Result<Command, Failure> {
        let found = self.programs.iter().find(|p| p.name == name);
        let found = found.ok_or_else(|| format!("there are no tests called {name}"))?;
        let mut command = found.run_by(&[]);
        // Each test's time: an option that this asks for is not settled yet.
        command.args(["-Zunstable-options", "--report-time"]);
        command.env("RUSTC_BOOTSTRAP", "1");
        Ok(command)
    }

    fn alone(&self, name: &str) -> Result<Alone, Failure> {
        let found = self.programs.iter().find(|p| p.name == name);
        let found = found.ok_or_else(|| format!("there are no tests called {name}"))?;
        Ok(Alone::program(&found.package, &found.kind, name))
    }

    fn library(&self) -> Command {
        self.program(LIBRARY).expect("a library")
    }
}

/// Name of a package in cargo's identifier: `path+file:///a/b#name@0.1.0`, or without the name that the directory has.
fn package(id: &str) -> String {
    let (path, version) = id.split_once('#').unwrap_or((id, ""));
    let name = version.split_once('@').map(|(name, _)| name);
    let name = name.or_else(|| path.rsplit('/').next());
    name.unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Args, String> {
        let words: Vec<_> = line.split(' ').map(str::to_owned).collect();
        parse(&words).map_err(|e| e.to_string())
    }

    #[test]
    fn words() {
        let only = parsed("--only fuzz,tests").unwrap().only;
        assert_eq!(only, ["fuzz", "tests"]);
        let repeat = parsed("--repeat 3 host").unwrap().repeat;
        assert_eq!(repeat, Some((3, "host".to_owned())));
        for wrong in ["--only fuss", "--repeat host 3", "--repeat 3", "host"] {
            parsed(wrong).expect_err(wrong);
        }
    }

    #[test]
    fn names_of_packages() {
        for (id, expected) in [
            ("path+file:///a/b#picolet@0.1.0", "picolet"),
            ("path+file:///a/xtask#0.0.0", "xtask"),
        ] {
            assert_eq!(package(id), expected);
        }
    }

    #[test]
    fn what_runs_beside_others_begins_behind_what_measures() {
        let at = |name: &str| LANES.iter().position(|lane| lane.0 == name).unwrap();
        let first = at(BESIDE[0]);
        assert!(at("budgets") < first);
        // They run in this order too, and none before the first of them is due.
        assert!(BESIDE.is_sorted_by_key(|name| at(name)));
        assert!(at("tests") == LANES.len() - 1);
    }
}
