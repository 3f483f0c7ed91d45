//! The agent whole, simulated: its real loop, pollers, workers and syncs over the fake runtime under a clock of its own,
//! with everything going wrong that a seed can think of.
//!
//! | file | what it is |
//! |---|---|
//! | `input` | what can happen, as data, and schedules drawn from a seed |
//! | `pods` | the pods of the simulation |
//! | `machine` | one machine: runtime, manifests, an agent that can be killed at each step of its tasks |
//! | `control` | the control plane of a node of a cluster: a faulty apiserver, the way there, the doorbell, users |
//! | `pressure` | what runs short on the node, and what must hold of those that go for it |
//! | `resizes` | schedules of resizes, and whether all agree about them in the end |
//! | `disk` | the machine's disk, which fails, stops at an instant, and loses what was not synced |
//! | `ops` | judges every operation at the runtime as it begins |
//! | `rules` | what must hold at every instant, and in the end |
//! | `truth` | whether the API shows in the end what is true |
//! | `dump` | what an agent kept, as a schedule |
//! | `counts` | what happened, for what never happens is not tried |
//! | `campaign` | many schedules in many threads; what is left of one that fails |
//!
//! A schedule is a plain list of inputs and their times. It is run, then all trouble ends, and everything has to become
//! as the manifests want it; then the manifests are removed, and nothing may be left. There are two kinds of schedules:
//! of a machine that stands alone, and of one that is a node of a cluster, where pods are users' as well and the API has to
//! show in the end what is true.
//!
//! `cargo xtask sim` runs this with the settings that `Settings` reads.

mod campaign;
mod control;
mod counts;
mod disk;
mod dump;
mod input;
mod machine;
mod ops;
mod pods;
mod pressure;
mod resizes;
mod rules;
mod truth;

use std::{env, path::PathBuf, process};

/// Schedules of a plain `cargo test`, whose program is slow.
const FEW: u64 = 300;

/// The same of those of a cluster, which take longer.
const FEW_OF_CLUSTER: u64 = 60;

/// The same of those of resizes, each of which has 200 of 20 pods.
const FEW_OF_RESIZES: u64 = 1;

/// What a schedule is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A machine that stands alone.
    Alone,
    /// A node of a cluster.
    Cluster,
    /// A node of a cluster whose pods are resized.
    Resizes,
}

/// So many bring about everything that schedules can.
const MANY: u64 = 5000;

/// From the environment: what `cargo xtask sim` was asked for.
struct Settings {
    first: u64,
    schedules: Option<u64>,
    jobs: u64,
    failures: u64,
}

impl Settings {
    fn read() -> Self {
        let number = |name: &str| env_of(name).and_then(|text| text.parse().ok());
        let seed = number("PICOLET_SIM_SEED");
        Self {
            first: seed.unwrap_or(1),
            schedules: number("PICOLET_SIM_SCHEDULES").or_else(|| seed.map(|_| 1)),
            jobs: number("PICOLET_SIM_JOBS").unwrap_or(2),
            failures: number("PICOLET_SIM_FAILURES").unwrap_or(1),
        }
    }

    fn schedules(&self, kind: Kind) -> u64 {
        self.schedules.unwrap_or(match kind {
            Kind::Alone => FEW,
            Kind::Cluster => FEW_OF_CLUSTER,
            Kind::Resizes => FEW_OF_RESIZES,
        })
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a test takes no arguments of its own"
)]
fn env_of(name: &str) -> Option<String> {
    env::var(name).ok()
}

/// Files of the agents: in memory where there is such a place, for there is nothing to keep.
fn root(test: &str) -> PathBuf {
    let shm = PathBuf::from("/dev/shm");
    let base = if shm.is_dir() { shm } else { env::temp_dir() };
    base.join(format!("picolet-sim-{test}-{}", process::id()))
}

#[test]
fn schedules() {
    campaign(Kind::Alone);
}

/// A node of a cluster whose apiserver fails.
#[test]
fn cluster_schedules() {
    // SRC-30 SRC-31 MIR-01 MIR-10 DEL-02 DEL-04 DEL-05 DEL-06 SM-01 SM-03 SM-04 SM-05 SM-08 OFF-01 OFF-03 OFF-08
    campaign(Kind::Cluster);
}

/// A node whose pods are resized, under kills, power cuts and updates that fail.
#[test]
fn resize_schedules() {
    // RSZ-01 RSZ-03 RSZ-20 RSZ-27 RSZ-28 RSZ-29 RSZ-30
    campaign(Kind::Resizes);
}

fn campaign(kind: Kind) {
    let mut settings = Settings::read();
    if kind == Kind::Resizes && settings.schedules.is_none() {
        // Few are tried, and others each time.
        settings.first = crate::sys::clock::wall_now().unix_seconds().unsigned_abs();
        println!("seeds from {} on", settings.first);
    }
    let root = root(match kind {
        Kind::Alone => "schedules",
        Kind::Cluster => "cluster",
        Kind::Resizes => "resizes",
    });
    let begin = crate::sys::clock::mono_now();
    let result = campaign::run_many(
        &root,
        kind,
        settings.first,
        settings.schedules(kind),
        settings.jobs,
        settings.failures,
    );
    let _ = std::fs::remove_dir_all(&root);
    match result {
        Ok(counts) => {
            println!(
                "{} schedules ({kind:?}) in {} s: {counts}",
                settings.schedules(kind),
                (crate::sys::clock::mono_now() - begin).as_secs()
            );
            println!("seeds {} and on", settings.first);
            let missing = counts.missing(kind, settings.schedules(kind));
            assert!(
                missing.is_empty() || settings.schedules(kind) < MANY,
                "so many schedules, and this never happened: {missing:?}"
            );
        }
        Err(text) => panic!("{text}"),
    }
}

/// Schedules that failed once.
#[test]
fn regressions() {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/sim/regressions");
    let root = root("regressions");
    let site = |kind, resizes| campaign::Site::for_replay(&root.join(kind), resizes);
    let (others, resizes) = (site("others", false), site("resizes", true));
    let mut count = 0;
    for entry in std::fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("readable").path();
        let text = std::fs::read_to_string(&path).expect("readable");
        let schedule = campaign::read(&text).expect("a schedule");
        let site = match campaign::is_of_resizes(&schedule) {
            true => &resizes,
            false => &others,
        };
        if let Err(failure) = campaign::replay(site, None, schedule) {
            panic!("{}: {}", path.display(), failure.what);
        }
        count += 1;
    }
    let _ = std::fs::remove_dir_all(&root);
    assert!(count > 0, "nothing to replay");
}

#[test]
#[ignore = "needs a file: cargo xtask sim --replay"]
fn replay() {
    let file = env_of("PICOLET_SIM_REPLAY").expect("PICOLET_SIM_REPLAY names a file");
    let text = std::fs::read_to_string(&file).expect("readable");
    let schedule = campaign::read(&text).expect("a schedule");
    let root = root("replay");
    let site = campaign::Site::for_replay(&root, campaign::is_of_resizes(&schedule));
    let result = campaign::replay(&site, None, schedule);
    let text = result.err().map(|failure| campaign::report(&site, failure));
    let _ = std::fs::remove_dir_all(&root);
    if let Some(text) = text {
        panic!("{text}");
    }
}
