//! One run: steps, the time they take, what they skip, and what is said of them at the end.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, VecDeque},
    env,
    fs::{self, File},
    io::{BufRead, BufReader, Write, pipe},
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::Duration,
};

use nix::sys::{
    resource::{UsageWho, getrusage},
    time::TimeValLike,
};
use serde_json::{Value, json};

use super::{Alone, List, Tests};
use crate::{
    Failure,
    process::{is_root, itself, show},
    stage,
    wait::Watch,
};

/// What a test prints when it cannot run here.
const SKIPPED: &str = "SKIPPED ";
/// What a test program prints of a test that it was not asked for: `test NAME ... ignored, REASON`.
const IGNORED: [&str; 2] = ["test ", " ... ignored"];

/// Lines of a failed step that are repeated at the end, of each kind: what says that something failed, and the last ones.
const MAX_REPEATED: usize = 30;
/// What a line has before the one that says why a test failed.
const PANICKED: &str = "panicked at";
/// What a line has that says so.
const TELLING: [&str; 6] = [
    "FAILED",
    PANICKED,
    AGAIN,
    "error: ",
    "error[",
    "timeout: sending",
];
/// Begin of a line in which a failed test says what shows its failure again.
const AGAIN: &str = "again: ";

/// What the build beside other steps said, and the lanes beside others.
const BUILD_LOG: &str = "target/program.log";
const LANES_LOG: &str = "target/lanes.log";
/// Where the lanes beside others put what the table and the end are made of, and the variable that tells them.
const LANES_SUMMARY: &str = "target/lanes.json";
const SUMMARY: &str = "PICOLET_RUN_SUMMARY";
/// Tests that the end of a run names for their time.
const SLOWEST: usize = 10;

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
    pub(super) lane: &'static str,
    rows: Vec<Row>,
    /// What was skipped and is on the list; what is not.
    skipped: [Vec<String>; 2],
    failed: Vec<(String, Telling)>,
    /// Tests that failed, or lanes where none is named: what runs them alone, how often they failed.
    failed_tests: BTreeMap<String, u32>,
    /// Seconds and names of tests.
    times: Vec<(f64, String)>,
    tests: Option<Tests>,
    build: Option<Beside>,
    lanes: Option<Beside>,
    shipped: Option<PathBuf>,
    /// The test API server, if it is built already.
    pub(super) double: Option<PathBuf>,
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
    /// Of the processes that ended, which is not what an agent leaves running. Of steps at once nobody knows whose it is.
    processor: Option<Duration>,
    failed: bool,
}

/// One of several steps that run at once.
pub(super) struct Step {
    /// Its name in the table.
    pub(super) name: String,
    pub(super) alone: Alone,
    pub(super) command: Command,
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
            failed_tests: BTreeMap::new(),
            times: Vec::new(),
            tests: None,
            build: None,
            lanes: None,
            shipped: None,
            double: None,
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
        self.failed_alone(&Alone::lane(self.lane), Vec::new());
    }

    /// Notes that `names` failed; without names the whole.
    fn failed_alone(&mut self, alone: &Alone, names: Vec<String>) {
        let all = match &names[..] {
            [] => vec![alone.whole()],
            names => names.iter().map(|name| alone.test(name)).collect(),
        };
        for command in all {
            *self.failed_tests.entry(command).or_default() += 1;
        }
    }

    /// Runs one command of the lane.
    pub(super) fn step(&mut self, command: &mut Command) {
        self.step_called(self.lane, &Alone::lane(self.lane), command);
    }

    /// [`Run::step`] with a line of its own in the table. What runs a test of it alone is told by `alone`.
    pub(super) fn step_called(&mut self, name: &str, alone: &Alone, command: &mut Command) {
        println!("\n== {name}: {}", show(command));
        let (watch, before) = (Watch::start(), processor());
        let mut heard = Heard::default();
        let status = hear(command, |line| {
            println!("{line}");
            heard.note(line);
        });
        let processor = processor().saturating_sub(before);
        self.account(name, alone, heard, status, watch.elapsed(), Some(processor));
    }

    /// Runs steps one after the other.
    pub(super) fn steps_in_turn(&mut self, steps: Vec<Step>) {
        for mut step in steps {
            self.step_called(&step.name, &step.alone, &mut step.command);
        }
    }

    /// Runs steps at once, `last` one after the other beside them; what one says is printed when it has ended.
    pub(super) fn steps_at_once(&mut self, steps: Vec<Step>, last: Vec<Step>) {
        let (sender, ended) = std::sync::mpsc::channel();
        let mut queues: Vec<Vec<Step>> = steps.into_iter().map(|step| vec![step]).collect();
        queues.push(last);
        thread::scope(|scope| {
            for queue in queues {
                let sender = sender.clone();
                scope.spawn(move || {
                    for step in queue {
                        let watch = Watch::start();
                        let mut lines = Vec::new();
                        let status = hear(&step.command, |line| lines.push(line.to_owned()))
                            .map_err(|e| e.to_string());
                        // The receiver lives as long as this scope.
                        let _ = sender.send((step, lines, status, watch.elapsed()));
                    }
                });
            }
            drop(sender);
            for (step, lines, status, wall) in ended {
                println!("\n== {}: {}", step.name, show(&step.command));
                let mut heard = Heard::default();
                for line in lines {
                    println!("{line}");
                    heard.note(&line);
                }
                let status = status.map_err(Failure::from);
                self.account(&step.name, &step.alone, heard, status, wall, None);
            }
        });
    }

    /// Notes what a step said and how it ended.
    fn account(
        &mut self,
        name: &str,
        alone: &Alone,
        mut heard: Heard,
        status: Result<ExitStatus, Failure>,
        wall: Duration,
        processor: Option<Duration>,
    ) {
        for what in &heard.skipped {
            self.skip(what);
        }
        for (seconds, test) in heard.times {
            self.times.push((seconds, format!("{name}: {test}")));
        }
        let failed = !matches!(&status, Ok(status) if status.success());
        if failed {
            let end = status.map_or_else(|e| e.to_string(), |s| format!("It ended with {s}."));
            heard.telling.note(&end);
            self.failed.push((name.to_owned(), heard.telling));
            if heard.again.is_empty() {
                self.failed_alone(alone, heard.failed);
            }
            for command in heard.again {
                *self.failed_tests.entry(command).or_default() += 1;
            }
        }
        let verdict = if failed { "FAILED" } else { "passed" };
        println!("== {name}: {verdict} in {} s", wall.as_secs());
        match self.rows.last_mut() {
            Some(row) if row.name == name => {
                row.wall += wall;
                row.processor = row.processor.zip(processor).map(|(a, b)| a + b);
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

    /// All test programs, built once: a lane beside others finds them built.
    pub(super) fn tests(&mut self) -> Result<&Tests, Failure> {
        if self.tests.is_none() {
            if env::var_os(SUMMARY).is_none() {
                let alone = Alone::lane(self.lane);
                self.step_called("build: tests", &alone, &mut Tests::command());
            }
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
        // What an earlier run told must not be taken for what this one tells.
        if let Err(e) = fs::remove_file(LANES_SUMMARY)
            && e.kind() != std::io::ErrorKind::NotFound
        {
            return Err(format!("{LANES_SUMMARY}: {e}").into());
        }
        let mut command = Command::new("nice");
        command.args(["-n", "19"]).arg(itself()?);
        command.args(["test", "--only"]).arg(lanes.join(","));
        command.env(SUMMARY, std::path::absolute(LANES_SUMMARY)?);
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
        let known = self.failed.len();
        if beside.log == LANES_LOG
            && self.take_summary().is_ok()
            && (status.success() || self.failed.len() > known)
        {
            return Ok(());
        }
        if !status.success() {
            let mut telling = Telling::default();
            said.lines().for_each(|line| telling.note(line));
            self.failed.push((name.clone(), telling));
            let alone = Alone::lane(self.lane);
            self.failed_alone(&alone, Vec::new());
        }
        self.rows.push(Row {
            name,
            wall: beside.watch.elapsed(),
            processor: Some(processor().saturating_sub(before)),
            failed: !status.success(),
        });
        Ok(())
    }

    /// Takes what the lanes beside others had to tell for their own.
    fn take_summary(&mut self) -> Result<(), Failure> {
        let text = fs::read_to_string(LANES_SUMMARY)?;
        fs::remove_file(LANES_SUMMARY)?;
        let told: Value = serde_json::from_str(&text)?;
        let list = |name: &str| told[name].as_array().into_iter().flatten();
        let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        for row in list("rows") {
            let time = |name: &str| row[name].as_f64().map(Duration::from_secs_f64);
            self.rows.push(Row {
                name: word(&row["name"]),
                wall: time("wall").unwrap_or_default(),
                processor: time("processor"),
                failed: row["failed"] == true,
            });
        }
        for failed in list("failed") {
            let mut telling = Telling::default();
            let lines = failed["lines"].as_array().into_iter().flatten();
            lines.for_each(|line| telling.note(&word(line)));
            self.failed.push((word(&failed["name"]), telling));
        }
        for command in list("failed_tests") {
            *self.failed_tests.entry(word(command)).or_default() += 1;
        }
        for time in list("times") {
            self.times
                .push((time[0].as_f64().unwrap_or_default(), word(&time[1])));
        }
        Ok(())
    }

    /// The other side of [`Run::take_summary`].
    fn put_summary(&self, file: &std::ffi::OsStr) -> Result<(), Failure> {
        let rows: Vec<_> = self.rows.iter().map(|row| {
            let processor = row.processor.map(|time| time.as_secs_f64());
            json!({"name": row.name, "wall": row.wall.as_secs_f64(), "processor": processor, "failed": row.failed})
        }).collect();
        let failed: Vec<_> = self
            .failed
            .iter()
            .map(|(name, telling)| json!({"name": name, "lines": telling.lines().collect::<Vec<_>>()}))
            .collect();
        let failed_tests: Vec<_> = self.failed_tests.keys().collect();
        let told = json!({"rows": rows, "failed": failed, "failed_tests": failed_tests, "times": self.times});
        Ok(fs::write(file, told.to_string())?)
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
        self.times.sort_by(|a, b| b.0.total_cmp(&a.0));
        self.times.truncate(SLOWEST);
        if let Some(file) = env::var_os(SUMMARY) {
            self.put_summary(&file)?;
        }
        let minutes = |time: Duration| time.as_secs_f64() / 60.0;
        println!("\n{:<32} {:>7} {:>9}", "lane", "minutes", "processor");
        for row in &self.rows {
            println!(
                "{:<32} {:>7.1} {:>9}{}",
                row.name,
                minutes(row.wall),
                row.processor
                    .map_or_else(|| "-".to_owned(), |time| format!("{:.1}", minutes(time))),
                if row.failed { "  FAILED" } else { "" }
            );
        }
        println!(
            "{:<32} {:>7.1} {:>9.1}",
            "all",
            minutes(self.watch.elapsed()),
            minutes(processor())
        );
        if !self.times.is_empty() {
            println!("\n{:>7}  slowest tests", "seconds");
        }
        for (seconds, test) in &self.times {
            println!("{seconds:>7.1}  {test}");
        }
        if self.failed.is_empty() {
            println!("All passed.");
            return Ok(());
        }
        // After the tables: where a log is kept in part, it is the end that is kept.
        for (name, telling) in &self.failed {
            println!("\n== what {name} said last:");
            telling.last.iter().for_each(|line| println!("{line}"));
        }
        for (name, telling) in &self.failed {
            println!("\n== why {name} failed:");
            telling.telling.iter().for_each(|line| println!("{line}"));
        }
        println!("\nWhat failed, and what runs it alone:");
        for command in self.failed_tests.keys() {
            println!("  {command}");
        }
        let mut names: Vec<_> = self.failed.into_iter().map(|(name, _)| name).collect();
        names.dedup();
        Err(format!("failed: {}", names.join(", ")).into())
    }

    /// Says of what was run so often which tests ever failed, and how often.
    pub(super) fn end_repeated(self, times: u32) -> Result<(), Failure> {
        let mut failed: Vec<_> = self.failed_tests.into_iter().collect();
        failed.sort_by_key(|(_, count)| Reverse(*count));
        if failed.is_empty() {
            println!("Nothing failed in {times} runs beside a load.");
            return Ok(());
        }
        println!("\nFailed in {times} runs beside a load; what runs it alone:");
        for (command, count) in &failed {
            println!("{count:>4}  {command}");
        }
        Err(format!("{} fail at times", failed.len()).into())
    }

    /// Minutes that a lane's steps took, and whether one failed.
    pub(super) fn outcome(&self, lane: &str) -> Option<(f64, bool)> {
        let failed = self.failed.iter().any(|(name, _)| name == lane);
        let mut rows = self.rows.iter().filter(|row| row.name == lane).peekable();
        rows.peek()?;
        Some((
            rows.map(|row| row.wall.as_secs_f64()).sum::<f64>() / 60.0,
            failed,
        ))
    }
}

/// Runs `command` and has `each` hear every line that it says.
fn hear(command: &Command, mut each: impl FnMut(&str)) -> Result<ExitStatus, Failure> {
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
    for line in BufReader::new(output).split(b'\n') {
        each(&String::from_utf8_lossy(&line?));
    }
    Ok(child.wait()?)
}

/// What the lines of a step have told.
#[derive(Default)]
struct Heard {
    telling: Telling,
    skipped: Vec<String>,
    failed: Vec<String>,
    /// Commands that a failed test says to show its failure again.
    again: BTreeSet<String>,
    /// Seconds of tests that say it.
    times: Vec<(f64, String)>,
}

impl Heard {
    fn note(&mut self, line: &str) {
        self.skipped.extend(skipped(line).map(str::to_owned));
        self.again
            .extend(line.strip_prefix(AGAIN).map(str::to_owned));
        if let Some((name, passed, seconds)) = test_result(line) {
            self.times
                .extend(seconds.map(|seconds| (seconds, name.to_owned())));
            if !passed {
                self.failed.push(name.to_owned());
            }
        }
        self.telling.note(line);
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

/// Name of a test, whether it passed, and its seconds: "test a::b ... ok <0.012s>".
fn test_result(line: &str) -> Option<(&str, bool, Option<f64>)> {
    let (name, end) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let name = name.strip_suffix(" - should panic").unwrap_or(name);
    let (verdict, time) = end.split_once(" <").unwrap_or((end, ""));
    let passed = match verdict {
        "ok" => true,
        "FAILED" => false,
        _ => return None,
    };
    let seconds = time.strip_suffix("s>").and_then(|time| time.parse().ok());
    Some((name, passed, seconds))
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
    /// The line before said that a test panicked: the next one says why.
    has_panicked: bool,
}

impl Telling {
    fn note(&mut self, line: &str) {
        let tells = self.has_panicked || TELLING.iter().any(|word| line.contains(word));
        if self.telling.len() < MAX_REPEATED && tells {
            self.telling.push(line.to_owned());
        }
        self.has_panicked = line.contains(PANICKED);
        if self.last.len() == MAX_REPEATED {
            self.last.pop_front();
        }
        self.last.push_back(line.to_owned());
    }

    fn lines(&self) -> impl Iterator<Item = &str> {
        let last = self.last.iter().map(String::as_str);
        let telling = self.telling.iter().map(String::as_str);
        telling.chain(["[...]"]).chain(last)
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
    fn results_of_tests() {
        for (line, expected) in [
            (
                "test a::b ... ok <0.012s>",
                Some(("a::b", true, Some(0.012))),
            ),
            (
                "test a::b ... FAILED <61.5s>",
                Some(("a::b", false, Some(61.5))),
            ),
            ("test a - should panic ... FAILED", Some(("a", false, None))),
            ("test a::b ... ignored, takes minutes", None),
            ("test a::b ... it says something", None),
            ("test result: ok. 3 passed; 0 failed", None),
        ] {
            assert_eq!(test_result(line), expected, "{line}");
        }
    }

    fn heard(lines: &[&str]) -> Heard {
        let mut heard = Heard::default();
        lines.iter().for_each(|line| heard.note(line));
        heard
    }

    fn status(code: i32) -> Result<ExitStatus, Failure> {
        Ok(std::os::unix::process::ExitStatusExt::from_raw(code << 8))
    }

    #[test]
    fn what_fails_is_named_with_what_runs_it_alone() {
        let mut run = Run::new(List { rows: Vec::new() });
        let host = Alone::program("picolet", "test", "host");
        let second = Duration::from_secs(1);
        let said = ["test a ... ok <2.000s>", "test b::c ... FAILED <1.000s>"];
        run.account(
            "tests: host",
            &host,
            heard(&said),
            status(101),
            second,
            None,
        );
        run.account("tests: host", &host, heard(&[]), status(101), second, None);
        let lints = Alone::lane("lints");
        run.account(
            "lints",
            &lints,
            heard(&["error: odd"]),
            status(1),
            second,
            None,
        );
        let said = [
            "again: cargo xtask sim --seed 7",
            "test sim ... FAILED <3.000s>",
        ];
        let simulation = Alone::lane("simulation");
        run.account(
            "simulation",
            &simulation,
            heard(&said),
            status(101),
            second,
            None,
        );
        run.account(
            "crates",
            &Alone::lane("crates"),
            heard(&[]),
            status(0),
            second,
            None,
        );
        let failed: Vec<_> = run.failed_tests.iter().collect();
        let alone =
            "cargo test --profile sim --features picolet/crash-points -p picolet --test host";
        let [whole, one] = [
            alone.to_owned(),
            format!("{alone} -- --exact --include-ignored b::c"),
        ];
        let lints = "cargo xtask test --only lints".to_owned();
        let again = "cargo xtask sim --seed 7".to_owned();
        assert_eq!(
            failed,
            [(&whole, &1), (&one, &1), (&again, &1), (&lints, &1)]
        );
        assert_eq!(run.outcome("lints"), Some((1.0 / 60.0, true)));
        assert_eq!(run.outcome("crates").map(|(_, failed)| failed), Some(false));
        assert_eq!(run.outcome("machine"), None);
        assert_eq!(run.times[0], (2.0, "tests: host: a".to_owned()));
        run.end_repeated(2).expect_err("four things fail");
    }

    #[test]
    fn steps_at_once_are_all_accounted_for() {
        let mut run = Run::new(List { rows: Vec::new() });
        let step = |name: &str, script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            let (name, alone) = (name.to_owned(), Alone::lane("tests"));
            Step {
                name,
                alone,
                command,
            }
        };
        let dir = env::temp_dir().join(format!("picolet-run-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let fifo = dir.join("fifo").display().to_string();
        // Neither ends without the other.
        let first = format!("mkfifo {fifo}; echo x > {fifo}");
        let second = format!("until cat {fifo} 2>/dev/null; do :; done");
        let last = ["c", "d"].map(|name| step(name, "echo 'SKIPPED all'; exit 1"));
        run.steps_at_once(vec![step("a", &first), step("b", &second)], last.into());
        fs::remove_dir_all(&dir).unwrap();
        let mut rows: Vec<_> = run
            .rows
            .iter()
            .map(|row| (&*row.name, row.failed))
            .collect();
        rows.sort_unstable();
        assert_eq!(rows, [("a", false), ("b", false), ("c", true), ("d", true)]);
        assert_eq!(run.skipped[1], ["all"]);
    }

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
