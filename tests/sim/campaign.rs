//! Many schedules, and what is left of one that fails.

use alloc::rc::Rc;
use core::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::Mutex,
};

use super::{
    super::tests::{gauge, world::Template},
    Kind,
    control::Control,
    counts::Counts,
    dump,
    input::{self, Input, Timed, Trouble},
    machine::Machine,
    pressure, resizes,
};
use crate::{
    api::{MonoTime, PodUid},
    runtime::fake::Op,
    sys::clock,
};

/// Time after the end of all trouble within which everything is as wanted: two of the longest back-offs, the time
/// between syncs, and some housekeeping.
const SETTLE_LIMIT: Duration = Duration::from_secs(900);
/// The latest an event is, and a relist, and a sync after one that failed: ten seconds, and half of that.
const ARRIVAL: Duration = Duration::from_secs(16);
/// The longest that calls go on which hang one after the other: three looks of a probe.
const HANGING: Duration = Duration::from_secs(70);
/// The same of a node of a cluster: the longest back-off of a list, lengthened by half, and what happened to ended pods is
/// found by the next list of all phases.
const CLUSTER_ARRIVAL: Duration = Duration::from_secs(155);
/// Time for which nothing may happen then.
const QUIET: Duration = Duration::from_secs(5);
/// The same of a node of a cluster: longer than the paces of its writers.
const CLUSTER_QUIET: Duration = Duration::from_secs(45);
/// A sync that has nothing to do has ended within this time: some calls of the runtime.
const IDLE_LIMIT: Duration = Duration::from_secs(30);
/// By then the runtime has been listed again.
const RELIST: Duration = Duration::from_secs(2);
/// Time for finding out what a failure needs.
const SHRINK_TIME: Duration = Duration::from_secs(180);
/// Such times until nothing is left to be removed: garbage goes once a minute.
const MAX_QUIETS: u32 = 8;

/// A schedule that fails.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) seed: Option<u64>,
    pub(super) schedule: Vec<Timed>,
    pub(super) what: String,
}

/// What an agent of the simulation takes: more than a schedule from a seed ever has.
const MAX_PODS: u32 = 8;
/// The same for schedules of resizes.
const MAX_PODS_RESIZED: u32 = 30;
/// The same for schedules from elsewhere.
const MAX_PODS_REPLAYED: u32 = 110;

/// What agents of this thread are made of, with their files below `root`.
pub(super) struct Site {
    template: Rc<Template>,
}

impl Site {
    /// For schedules from seeds.
    fn new(root: &Path, kind: Kind) -> Self {
        match kind {
            Kind::Alone | Kind::Cluster => Self::with(root, MAX_PODS, &[]),
            Kind::Resizes => Self::with(root, MAX_PODS_RESIZED, &["--cgroups-per-qos=true"]),
        }
    }

    /// For schedules from elsewhere: those of resizes, or all others.
    pub(super) fn for_replay(root: &Path, resizes: bool) -> Self {
        match resizes {
            true => Self::new(root, Kind::Resizes),
            false => Self::with(root, MAX_PODS_REPLAYED, &[]),
        }
    }

    fn with(root: &Path, max_pods: u32, more: &[&str]) -> Self {
        std::fs::create_dir_all(root.join("cgroup")).expect("directory");
        let max_pods = format!("--max-pods={max_pods}");
        let flags = [&[&*max_pods, gauge::HARD], more].concat();
        let mut template = Template::new(root, &flags);
        template.volumes = template.volumes.without_mounts();
        Self {
            template: Rc::new(template),
        }
    }

    fn machine(&self, joins: Option<(bool, u64)>, journal: bool) -> Machine {
        self.template.wipe();
        Machine::new(Rc::clone(&self.template), journal, joins)
    }
}

/// Runs one schedule to its end, then until everything is as wanted, then until nothing is left.
fn run(site: &Site, schedule: &[Timed], journal: bool) -> (Result<(), String>, Machine) {
    let joins = schedule.iter().find_map(|timed| match timed.input {
        Input::Join { doorbell, seed } => Some((doorbell, seed)),
        _ => None,
    });
    let mut machine = site.machine(joins, journal);
    let result = go(&mut machine, schedule);
    if result.is_err() && journal {
        machine.note_memory();
    }
    (result, machine)
}

fn go(machine: &mut Machine, schedule: &[Timed]) -> Result<(), String> {
    let start = machine.now();
    for timed in schedule {
        machine.advance_to(start + Duration::from_millis(timed.at_ms))?;
        machine.apply(&timed.input)?;
    }
    machine.heal()?;
    // What is still on its way arrives, and what was lost without a sound is found: behind a watch that tells nothing, when
    // that is given up.
    let (arrival, quiet) = match machine.control {
        Some(_) => (CLUSTER_ARRIVAL, CLUSTER_QUIET),
        None => (ARRIVAL, QUIET),
    };
    let hangs = |timed: &Timed| {
        let Input::Fault { trouble, .. } = timed.input else {
            return false;
        };
        matches!(trouble, Trouble::TimesOut { .. })
    };
    let arrival = if schedule.iter().any(hangs) {
        arrival.max(HANGING)
    } else {
        arrival
    };
    let mute_until = machine.control.as_ref().and_then(Control::mute_until);
    let now = machine.now();
    let end = mute_until.map_or(now, |until| until.max(now)) + arrival;
    let eve = MonoTime(end.0 - u64::try_from(quiet.as_millis()).expect("short"));
    machine.advance_to(eve)?;
    machine.fake.take_calls();
    machine.advance_to(end)?;
    settle(machine, "with all manifests")?;
    if machine.now() > end {
        // The apiserver was found again late, and what it has to say of ended pods comes after that.
        let end = machine.now() + arrival;
        machine.advance_to(end)?;
    }
    rests(machine, quiet)?;
    if !machine.is_restless() {
        // A sync that is due anyway may be under way: of so many pods as are resized, nearly always one.
        let end = machine.now() + IDLE_LIMIT;
        let rests = |machine: &Machine| {
            machine.is_idle() && !(machine.has_groups() && machine.is_settled().is_err())
        };
        while !rests(machine) && machine.now() < end {
            let next = machine.now() + Duration::from_millis(500);
            machine.advance_to(next)?;
        }
        // Garbage may go at this very moment: the next relist knows of it.
        if machine.is_settled().is_err() {
            let next = machine.now() + RELIST;
            machine.advance_to(next)?;
        }
        machine.is_settled()?;
    }
    if machine.has_groups() {
        return Ok(());
    }
    machine.remove_all()?;
    settle(machine, "without manifests")
}

/// Whether nothing is done and nothing is told any more. When the instances of a container that has ended are removed,
/// something of its pod's status goes, and that is told: within the time of quiet in which they went, or in the next one.
fn rests(machine: &mut Machine, quiet: Duration) -> Result<(), String> {
    let is_removal = |(op, _): &(Op, String)| *op == Op::RemoveContainer;
    let mut removed = machine.fake.take_calls().iter().any(is_removal);
    let _ = machine.take_write();
    let _ = machine.take_acts();
    for round in 0..MAX_QUIETS {
        let end = machine.now() + quiet;
        machine.advance_to(end)?;
        let acts = machine.take_acts();
        let busy = |(op, _): &&(Op, PodUid)| {
            matches!(
                op,
                Op::RunPodSandbox | Op::CreateContainer | Op::StartContainer | Op::StopContainer
            )
        };
        if let Some((op, uid)) = acts.iter().find(busy) {
            return Err(format!("{op:?} of pod {uid}, and nothing has changed"));
        }
        // What others of them do is told, and what they do is judged one by one: twice shows it.
        match machine.is_restless() {
            true if round > 0 => return Ok(()),
            true => continue,
            false => {}
        }
        // The journal takes for itself what is asked for here.
        if machine.journal.is_some() {
            continue;
        }
        let calls = machine.fake.take_calls();
        let before = core::mem::replace(&mut removed, calls.iter().any(is_removal));
        match machine.take_write() {
            None => return Ok(()),
            Some(_) if before || removed => {}
            Some(what) => return Err(format!("{what}, and nothing has changed")),
        }
    }
    match machine.journal {
        Some(_) => Ok(()),
        None => Err("statuses are told again and again".into()),
    }
}

fn settle(machine: &mut Machine, when: &str) -> Result<(), String> {
    let start = machine.now();
    loop {
        let waited = machine.now() - start;
        let in_time = machine.deadlines_are_met()?;
        match machine.is_settled() {
            Ok(()) if in_time => return Ok(()),
            Ok(()) => {}
            Err(e) if waited > SETTLE_LIMIT => return Err(format!("never settles {when}: {e}")),
            Err(_) => {}
        }
        let step = if waited < Duration::from_secs(10) {
            500
        } else {
            3000
        };
        let end = machine.now() + Duration::from_millis(step);
        machine.advance_to(end)?;
    }
}

/// Runs a schedule; what panics fails.
fn attempt(site: &Site, schedule: &[Timed]) -> Result<Counts, String> {
    let run = || {
        let (result, machine) = run(site, schedule, false);
        result.map(|()| machine.counted())
    };
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(result) => result,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            Err(format!("panic: {}", text.unwrap_or("?")))
        }
    }
}

/// Whether a schedule is one of a node whose pods are resized: in no other do updates fail.
pub(super) fn is_of_resizes(schedule: &[Timed]) -> bool {
    let fail = |timed: &Timed| matches!(timed.input, Input::UpdatesFail { .. });
    schedule.iter().any(fail)
}

/// Takes away what the failure does not need.
fn shrink(site: &Site, mut failure: Failure) -> Failure {
    let end = clock::mono_now() + SHRINK_TIME;
    // Long schedules take seconds each: many things at once first.
    let mut size = failure.schedule.len().div_ceil(2).max(1);
    loop {
        let mut smaller = false;
        for from in (0..failure.schedule.len()).step_by(size).rev() {
            if clock::mono_now() > end {
                return failure;
            }
            let mut less = failure.schedule.clone();
            less.drain(from..(from + size).min(less.len()));
            if is_of_resizes(&less) != is_of_resizes(&failure.schedule) {
                continue;
            }
            if let Err(what) = attempt(site, &less) {
                failure.schedule = less;
                failure.what = what;
                smaller = true;
            }
        }
        match size {
            1 if !smaller => return failure,
            1 => {}
            _ => size /= 2,
        }
    }
}

/// All there is to know about a failure.
pub(super) fn report(site: &Site, failure: Failure) -> String {
    use core::fmt::Write as _;
    let mut text = format!("{}\n", failure.what);
    if let Some(seed) = failure.seed {
        let joins = |timed: &Timed| matches!(timed.input, Input::Join { .. });
        let kind = if is_of_resizes(&failure.schedule) {
            "resizes"
        } else if failure.schedule.iter().any(joins) {
            "cluster"
        } else {
            "alone"
        };
        let _ = writeln!(text, "again: cargo xtask sim --{kind} --seed {seed}");
    }
    // What is needed for it may take long to find out.
    print!("{text}");
    let failure = shrink(site, failure);
    let _ = writeln!(text, "what is needed for it, to be given to --replay:");
    for timed in &failure.schedule {
        let line = serde_json::to_string(timed).expect("plain data");
        let _ = writeln!(text, "{line}");
    }
    let _ = writeln!(text, "fails with: {}\nwhat happened:", failure.what);
    let replay = || {
        let (_, machine) = run(site, &failure.schedule, true);
        machine.journal.clone()
    };
    if let Ok(Some(journal)) = catch_unwind(AssertUnwindSafe(replay)) {
        for line in journal {
            let _ = writeln!(text, "{line}");
        }
    }
    text
}

/// Runs one schedule.
pub(super) fn replay(
    site: &Site,
    seed: Option<u64>,
    schedule: Vec<Timed>,
) -> Result<Counts, Failure> {
    attempt(site, &schedule).map_err(|what| Failure {
        seed,
        schedule,
        what,
    })
}

/// Runs the schedules of `count` seeds from `first` on in `jobs` threads with their files below `root`. Ends after so many
/// `failures`.
pub(super) fn run_many(
    root: &Path,
    kind: Kind,
    first: u64,
    count: u64,
    jobs: u64,
    failures: u64,
) -> Result<Counts, String> {
    let next = AtomicU64::new(first);
    let failed = AtomicU64::new(0);
    let total = Mutex::new((Counts::default(), Vec::new()));
    std::thread::scope(|scope| {
        for job in 0..jobs {
            let (next, failed, total) = (&next, &failed, &total);
            let root = root.join(job.to_string());
            scope.spawn(move || {
                let site = Site::new(&root, kind);
                while failed.load(Ordering::Relaxed) < failures {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count {
                        return;
                    }
                    let schedule = match kind {
                        Kind::Alone => input::draw(seed),
                        Kind::Cluster => input::draw_cluster(seed),
                        Kind::Resizes => resizes::draw(seed),
                    };
                    let schedule = match kind {
                        Kind::Alone | Kind::Cluster => pressure::with_pressure(schedule, seed),
                        Kind::Resizes => schedule,
                    };
                    match replay(&site, Some(seed), schedule) {
                        Ok(counts) => total.lock().expect("no panic").0.add(&counts),
                        Err(failure) => {
                            if failed.fetch_add(1, Ordering::Relaxed) < failures {
                                let text = report(&site, failure);
                                total.lock().expect("no panic").1.push(text);
                            }
                        }
                    }
                }
            });
        }
    });
    match total.into_inner().expect("no panic") {
        (counts, none) if none.is_empty() => Ok(counts),
        (_, texts) => Err(texts.join("\n")),
    }
}

/// The schedule in a file of lines as [`report`] prints them, or in a dump of an agent.
pub(super) fn read(text: &str) -> Result<Vec<Timed>, String> {
    if text.contains("\"picolet\":") {
        return dump::schedule(text);
    }
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    lines
        .map(|line| serde_json::from_str(line).map_err(|e| format!("{line}: {e}")))
        .collect()
}
