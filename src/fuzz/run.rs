//! Runs the targets on mutated seeds: a short fixed run as a test, a longer one by `cargo xtask fuzz`.

use alloc::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use nix::time::{ClockId, clock_gettime};

use super::mutate::{Dice, mutate};
use super::{TARGETS, Target, scratch, seeds};
use crate::sys::{clock, lane::LANE_STACK_BYTES};

/// Most inputs that a target keeps, each for a new kind of outcome.
const MAX_KEPT: usize = 300;
/// Most processor time for one input of at most 64 KiB, in a build without optimisation, ms.
const MAX_MS: i64 = 5000;
/// Inputs of the short run.
const SHORT_RUNS: u64 = 150;
/// Most memory that the process of a longer run may ever have used, KiB.
const MAX_PEAK_KIB: u64 = 512 * 1024;

/// End of a target's run.
#[derive(Clone, Copy)]
enum Until {
    Runs(u64),
    Milliseconds(u64),
}

/// Runs one target, on a stack no larger than that of a lane. Returns the number of inputs and of kinds of outcome.
fn hunt(target: &'static Target, seed: u64, until: Until) -> (u64, usize) {
    let hunter = std::thread::Builder::new()
        .stack_size(LANE_STACK_BYTES)
        .spawn(move || {
            let mut dice = Dice::new(seed);
            let mut kept = seeds::of(target.name);
            let mut seen = BTreeSet::new();
            for input in &kept {
                seen.insert(kind(&feed(target, input)));
            }
            let begun = clock::mono_now();
            let mut runs = 0;
            loop {
                let enough = match until {
                    Until::Runs(n) => runs >= n,
                    Until::Milliseconds(n) => {
                        (clock::mono_now() - begun).as_millis() >= u128::from(n)
                    }
                };
                if enough {
                    break;
                }
                let at = dice.roll(kept.len());
                let other = dice.roll(kept.len());
                let input = mutate(&mut dice, &kept[at], &kept[other]);
                if seen.insert(kind(&feed(target, &input))) && kept.len() < MAX_KEPT {
                    kept.push(input);
                }
                runs += 1;
            }
            let _ = std::fs::remove_dir_all(scratch());
            (runs, seen.len())
        });
    match hunter.expect("thread").join() {
        Ok(counts) => counts,
        Err(_) => panic!("{} with seed {seed} found something", target.name),
    }
}

/// Runs a target on one input. An input that breaks it is written to a file, which `fuzz/` and a regression test can
/// use.
fn feed(target: &Target, input: &[u8]) -> String {
    let begun = cpu_ms();
    let done = catch_unwind(AssertUnwindSafe(|| (target.run)(input)));
    let took = cpu_ms() - begun;
    if done.is_err() || took > MAX_MS {
        let file =
            std::env::temp_dir().join(format!("picolet-fuzz-{}-{}", target.name, input.len()));
        let kept = std::fs::write(&file, input);
        panic!(
            "{}: panicked or took {took} ms; input in {} ({kept:?}): {:?}",
            target.name,
            file.display(),
            &String::from_utf8_lossy(&input[..input.len().min(2000)])
        );
    }
    done.unwrap_or_default()
}

fn cpu_ms() -> i64 {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("clock");
    i64::from(time.tv_sec()) * 1000 + i64::from(time.tv_nsec()) / 1_000_000
}

/// Strips an outcome of all that differs from input to input: digits, and everything from the first quote to the last.
fn kind(outcome: &str) -> String {
    let quote = ['"', '`', '\''];
    let (start, end) = match (outcome.find(quote), outcome.rfind(quote)) {
        (Some(start), Some(end)) => (&outcome[..start], &outcome[end..]),
        _ => (outcome, ""),
    };
    start
        .chars()
        .chain(end.chars())
        .filter(|c| !c.is_ascii_digit())
        .take(120)
        .collect()
}

fn applicable(target: &Target) -> bool {
    // Unpacking sets owners and extended attributes, which only root may.
    target.name != "layer" || nix::unistd::geteuid().is_root()
}

#[test]
fn seeds_and_a_short_run() {
    for target in TARGETS.iter().filter(|t| applicable(t)) {
        let (runs, kinds) = hunt(target, 1, Until::Runs(SHORT_RUNS));
        assert_eq!(runs, SHORT_RUNS);
        assert!(kinds > 0, "{}", target.name);
    }
}

/// Compares the targets with those of libFuzzer.
#[test]
fn every_target_can_be_fuzzed_with_coverage() {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz");
    let list = std::fs::read_to_string(dir.join("Cargo.toml")).expect("fuzz/Cargo.toml");
    for target in TARGETS {
        let (name, file) = (target.name, format!("fuzz_targets/{}.rs", target.name));
        assert!(
            list.contains(&format!("name = \"{name}\"\npath = \"{file}\"")),
            "{name}"
        );
        let text = std::fs::read_to_string(dir.join(&file)).expect(name);
        assert!(
            text.contains(&format!("picolet::fuzz::run(\"{name}\", data)")),
            "{name}"
        );
    }
    assert_eq!(list.matches("[[bin]]").count(), TARGETS.len());
}

/// The run of `cargo xtask fuzz`. `PICOLET_FUZZ` is `SECONDS RUNS SEED [TARGET]`: seconds for all targets together, or,
/// if they are 0, so many inputs for each.
#[ignore = "as long as it is asked to: cargo xtask fuzz"]
#[expect(clippy::disallowed_methods, reason = "the settings of a test")]
#[test]
fn longer_run() {
    let words = std::env::var("PICOLET_FUZZ").unwrap_or_default();
    let mut words = words.split(' ');
    let mut number = |default: u64| words.next().and_then(|w| w.parse().ok()).unwrap_or(default);
    let (seconds, runs, seed) = (number(10), number(0), number(1));
    let wanted = words.next().unwrap_or_default();
    let chosen: Vec<&Target> = TARGETS
        .iter()
        .filter(|t| applicable(t) && (wanted.is_empty() || t.name == wanted))
        .collect();
    assert!(!chosen.is_empty(), "there is no target {wanted:?}");
    let until = match seconds {
        0 => Until::Runs(runs),
        n => Until::Milliseconds(n * 1000 / chosen.len() as u64),
    };
    for target in chosen {
        let (runs, kinds) = hunt(target, seed, until);
        println!(
            "{:16} {runs:>9} inputs {kinds:>5} kinds of outcome",
            target.name
        );
        assert!(runs > 0, "{}", target.name);
    }
    let status = std::fs::read_to_string("/proc/self/status").expect("status");
    let peak = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    let peak = peak.and_then(|l| l.split_whitespace().next()?.parse().ok());
    let peak: u64 = peak.expect("peak memory");
    println!("peak memory {peak} KiB");
    assert!(peak < MAX_PEAK_KIB, "{peak} KiB");
}
