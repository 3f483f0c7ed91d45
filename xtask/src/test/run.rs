//! One run: steps, the time they take, what they skip, and what is said of them at the end.

use std::{
    collections::VecDeque,
    env,
    fs::{self, File},
    io::{BufRead, BufReader, Write, pipe},
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

use nix::sys::{
    resource::{UsageWho, getrusage},
    time::TimeValLike,
};

use super::{List, Tests};
use crate::{
    Failure,
    process::{is_root, show},
    stage,
    wait::Watch,
};

/// What a test prints when it cannot run here.
const SKIPPED: &str = "SKIPPED ";
/// What a test program prints of a test that it was not asked for: `test NAME ... ignored, REASON`.
const IGNORED: [&str; 2] = ["test ", " ... ignored"];

/// Lines of a failed step that are repeated at the end, of each kind: what says that something failed, and the last ones.
const MAX_REPEATED: usize = 30;
/// What a line has that says so.
const TELLING: [&str; 5] = [
    "FAILED",
    "panicked at",
    "error: ",
    "error[",
    "timeout: sending",
];

/// What the build beside other steps said, and the lanes beside others.
const BUILD_LOG: &str = "target/program.log";
const LANES_LOG: &str = "target/lanes.log";

/// Seconds that one step may take where nobody watches: one that hangs fails, and the others are still heard of. A step of
/// `--long` may take longer, and is watched.
const STEP_LIMIT_S: u32 = 40 * 60;
/// The same of what runs beside others, at a lower priority: of several lanes as a whole.
const BESIDE_LIMIT_S: u32 = 60 * 60;
/// Seconds that it then has to end.
const STEP_GRACE_S: u32 = 10;

pub(super) struct Run {
    list: List,
    watch: Watch,
    /// The lane that runs.
    lane: &'static str,
    rows: Vec<Row>,
    /// What was skipped and is on the list; what is not.
    skipped: [Vec<String>; 2],
    failed: Vec<(String, Telling)>,
    tests: Option<Tests>,
    build: Option<Beside>,
    lanes: Option<Beside>,
    shipped: Option<PathBuf>,
}

/// What runs beside other steps: the build of the program as it is shipped, most of which keeps one processor busy, and lanes.
struct Beside {
    name: String,
    log: &'static str,
    child: Child,
    watch: Watch,
}

/// A line of the table at the end.
struct Row {
    name: String,
    wall: Duration,
    /// Of the processes that ended, which is not what an agent leaves running.
    processor: Duration,
    failed: bool,
}

impl Run {
    pub(super) fn new(list: List) -> Self {
        Self {
            list,
            watch: Watch::start(),
            lane: "",
            rows: Vec::new(),
            skipped: [Vec::new(), Vec::new()],
            failed: Vec::new(),
            tests: None,
            build: None,
            lanes: None,
            shipped: None,
        }
    }

    /// The steps that follow are this lane's.
    pub(super) fn begin(&mut self, lane: &'static str) {
        self.lane = lane;
    }

    /// Something is not done.
    pub(super) fn skip(&mut self, what: &str) {
        let unknown = usize::from(!self.list.has(self.lane, what));
        if !self.skipped[unknown].iter().any(|known| known == what) {
            self.skipped[unknown].push(what.to_owned());
        }
    }

    /// The lane cannot be run.
    pub(super) fn fail(&mut self, why: &str) {
        println!("== {}: FAILED: {why}", self.lane);
        let mut telling = Telling::default();
        telling.note(why);
        self.failed.push((self.lane.to_owned(), telling));
    }

    /// Runs one command of the lane.
    pub(super) fn step(&mut self, command: &mut Command) {
        self.step_called(self.lane, command);
    }

    /// [`Run::step`] with a line of its own in the table.
    pub(super) fn step_called(&mut self, name: &str, command: &mut Command) {
        println!("\n== {name}: {}", show(command));
        let (watch, before) = (Watch::start(), processor());
        let result = self.watch_output(command);
        let (wall, processor) = (watch.elapsed(), processor().saturating_sub(before));
        let telling = match result {
            Ok(telling) => telling,
            Err(e) => {
                let mut telling = Telling::default();
                telling.note(&e.to_string());
                Some(telling)
            }
        };
        let failed = telling.is_some();
        let verdict = if failed { "FAILED" } else { "passed" };
        println!("== {name}: {verdict} in {} s", wall.as_secs());
        self.failed
            .extend(telling.map(|lines| (name.to_owned(), lines)));
        match self.rows.last_mut() {
            Some(row) if row.name == name => {
                row.wall += wall;
                row.processor += processor;
                row.failed |= failed;
            }
            _ => self.rows.push(Row {
                name: name.to_owned(),
                wall,
                processor,
                failed,
            }),
        }
    }

    /// All test programs, built once.
    pub(super) fn tests(&mut self) -> Result<&Tests, Failure> {
        if self.tests.is_none() {
            self.step_called("build: tests", &mut Tests::command());
            self.tests = Some(Tests::find()?);
        }
        Ok(self.tests.as_ref().expect("just found"))
    }

    /// Begins to build the program as it is shipped.
    pub(super) fn build_beside(&mut self) -> Result<(), Failure> {
        let command = stage::build_command("release");
        self.build = Some(Beside::begin("build: program".into(), BUILD_LOG, &command)?);
        Ok(())
    }

    /// Begins these lanes. They leave the processors to whatever else wants one.
    pub(super) fn lanes_beside(&mut self, lanes: &[&str]) -> Result<(), Failure> {
        let mut command = Command::new("nice");
        let words = "-n 19 cargo xtask test --only";
        command.args(words.split(' ')).arg(lanes.join(","));
        self.lanes = Some(Beside::begin(lanes.join(", "), LANES_LOG, &command)?);
        Ok(())
    }

    /// Waits for the lanes that run beside others, if any does.
    pub(super) fn end_lanes(&mut self) -> Result<(), Failure> {
        self.lanes.take().map_or(Ok(()), |lanes| self.join(lanes))
    }

    /// Waits for what runs beside other steps, and says how it went.
    fn join(&mut self, mut beside: Beside) -> Result<(), Failure> {
        let name = beside.name;
        let before = processor();
        let status = beside.child.wait()?;
        let said = fs::read_to_string(beside.log)?;
        println!("\n== {name}: {status}\n{said}");
        if !status.success() {
            let mut telling = Telling::default();
            said.lines().for_each(|line| telling.note(line));
            self.failed.push((name.clone(), telling));
        }
        self.rows.push(Row {
            name,
            wall: beside.watch.elapsed(),
            processor: processor().saturating_sub(before),
            failed: !status.success(),
        });
        Ok(())
    }

    /// The program as it is shipped, built once.
    pub(super) fn shipped(&mut self) -> Result<PathBuf, Failure> {
        if let Some(build) = self.build.take() {
            self.join(build)?;
        }
        if self.shipped.is_none() {
            self.shipped = Some(stage::program()?);
        }
        Ok(self.shipped.clone().expect("just built"))
    }

    /// Runs `command`, passing its output on and noting what it says it skipped; returns what it said if it failed.
    fn watch_output(&mut self, command: &Command) -> Result<Option<Telling>, Failure> {
        let mut command = limited(command, STEP_LIMIT_S);
        // One pipe for both streams keeps their order; what was printed before must be out.
        std::io::stdout().flush()?;
        let (output, writer) = pipe()?;
        command
            .stdin(Stdio::null())
            .stdout(writer.try_clone()?)
            .stderr(writer);
        let mut child = command.spawn()?;
        // This process's own ends would keep the pipe open.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut lines = Telling::default();
        for line in BufReader::new(output).split(b'\n') {
            let line = line?;
            let line = String::from_utf8_lossy(&line);
            println!("{line}");
            if let Some(what) = skipped(&line) {
                self.skip(what);
            }
            lines.note(&line);
        }
        let status = child.wait()?;
        if status.success() {
            return Ok(None);
        }
        lines.note(&format!("It ended with {status}."));
        Ok(Some(lines))
    }

    /// Says how it went.
    pub(super) fn end(mut self) -> Result<(), Failure> {
        let [listed, unlisted] = &mut self.skipped;
        println!();
        for (what, mark) in [(listed, ""), (&mut *unlisted, " (not on the list)")] {
            what.sort();
            for what in what {
                println!("Skipped: {what}{mark}");
            }
        }
        // Without root half of the run is missing, and every kernel test says so.
        if !self.skipped[1].is_empty() && is_root() {
            self.lane = "skipped";
            self.fail(&format!(
                "{} skipped and not in {}",
                self.skipped[1].join("; "),
                super::LIST
            ));
        }
        for (name, lines) in &self.failed {
            println!("\n== what {name} said:");
            lines.print();
        }
        let minutes = |time: Duration| time.as_secs_f64() / 60.0;
        println!("\n{:<32} {:>7} {:>9}", "lane", "minutes", "processor");
        for row in &self.rows {
            println!(
                "{:<32} {:>7.1} {:>9.1}{}",
                row.name,
                minutes(row.wall),
                minutes(row.processor),
                if row.failed { "  FAILED" } else { "" }
            );
        }
        println!(
            "{:<32} {:>7.1} {:>9.1}",
            "all",
            minutes(self.watch.elapsed()),
            minutes(processor())
        );
        if self.failed.is_empty() {
            println!("All passed.");
            return Ok(());
        }
        let mut names: Vec<_> = self.failed.into_iter().map(|(name, _)| name).collect();
        names.dedup();
        Err(format!("failed: {}", names.join(", ")).into())
    }
}

impl Beside {
    fn begin(name: String, log: &'static str, command: &Command) -> Result<Self, Failure> {
        let file = File::create(log)?;
        let mut command = limited(command, BESIDE_LIMIT_S);
        command.stdin(Stdio::null()).stdout(file.try_clone()?);
        Ok(Self {
            name,
            log,
            child: command.stderr(file).spawn()?,
            watch: Watch::start(),
        })
    }
}

/// What a line of output says that was not run.
fn skipped(line: &str) -> Option<&str> {
    if let Some(at) = line.find(SKIPPED) {
        return Some(&line[at + SKIPPED.len()..]);
    }
    let (name, _) = line.strip_prefix(IGNORED[0])?.split_once(IGNORED[1])?;
    Some(name)
}

/// Processor time of all processes that this one has waited for, and of those that they have.
fn processor() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN);
    usage.map_or(Duration::ZERO, |usage| {
        [usage.user_time(), usage.system_time()]
            .into_iter()
            .map(|time| Duration::from_micros(u64::try_from(time.num_microseconds()).unwrap_or(0)))
            .sum()
    })
}

/// What a failed step said, as far as it is repeated where a long log ends.
#[derive(Default)]
struct Telling {
    /// Lines that say what failed: the first of them.
    telling: Vec<String>,
    last: VecDeque<String>,
}

impl Telling {
    fn note(&mut self, line: &str) {
        if self.telling.len() < MAX_REPEATED && TELLING.iter().any(|word| line.contains(word)) {
            self.telling.push(line.to_owned());
        }
        if self.last.len() == MAX_REPEATED {
            self.last.pop_front();
        }
        self.last.push_back(line.to_owned());
    }

    fn print(&self) {
        for line in &self.telling {
            println!("{line}");
        }
        println!("[...]");
        for line in &self.last {
            println!("{line}");
        }
    }
}

/// `command` with an end to its patience in CI, by timeout(1). A person ends what hangs, and that with all its children.
fn limited(command: &Command, limit_s: u32) -> Command {
    let mut limited = if env::var_os("CI").is_some() {
        let mut timeout = Command::new("timeout");
        timeout
            .arg("--verbose")
            .arg(format!("--kill-after={STEP_GRACE_S}"))
            .arg(limit_s.to_string())
            .arg(command.get_program());
        timeout
    } else {
        Command::new(command.get_program())
    };
    limited.args(command.get_args());
    if let Some(dir) = command.get_current_dir() {
        limited.current_dir(dir);
    }
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    limited
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_run() {
        for (line, expected) in [
            ("SKIPPED shims: no runc", Some("shims: no runc")),
            (
                "test a::b ... SKIPPED shims: no runc",
                Some("shims: no runc"),
            ),
            ("test a::b ... ignored, takes minutes", Some("a::b")),
            ("test a::b ... ok", None),
            (
                "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured",
                None,
            ),
        ] {
            assert_eq!(skipped(line), expected, "{line}");
        }
    }
}
