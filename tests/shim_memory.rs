//! What a shim costs, measured among a hundred beside real containers. A debug build only shows the figures.
//! Needs root, runc and busybox; says so and passes without them.

#[macro_use]
#[path = "common/skipped.rs"]
mod skipped;
#[path = "common/program.rs"]
mod program;

#[expect(dead_code, reason = "shared with the other tests of real containers")]
#[path = "common/bundle.rs"]
mod bundle;

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use bundle::{Bundle, missing};
use picolet::shim::{self, LiveShim, ShimLaunch};
use picolet::sys::pidfd;

/// Shims at a time.
const SHIMS: usize = 100;
/// Memory of its own that each may have, in KiB.
const MAX_PRIVATE_KIB: u64 = 64;
/// Its share of all memory that it uses, in KiB.
const MAX_PSS_KIB: u64 = 96;

#[test]
fn a_hundred_idle_shims() {
    if let Some(why) = missing() {
        skipped!("memory of shims: {why}");
        return;
    }
    let exe: OwnedFd = fs::File::open(program::program()).expect("program").into();
    let exe = Arc::new(exe);
    let mut running: Vec<(Bundle, LiveShim)> = Vec::new();
    for _ in 0..SHIMS {
        let bundle = Bundle::new("echo up; exec sleep 1000", |_| ());
        let launch = ShimLaunch {
            exe: Arc::clone(&exe),
            dir: bundle.dir.clone(),
            id: bundle.id.clone(),
            runtime: bundle::RUNC.into(),
            runtime_root: bundle.root.clone(),
            log: bundle.log.clone(),
            log_memory: None,
            log_limit: Some(shim::LogLimit {
                max_bytes: 10 << 20,
                max_files: 5,
            }),
            tty: false,
            stdin: false,
            stdin_once: false,
            stream_owner: None,
            memory_cgroup: Some(bundle.memory_cgroup.clone()),
            shim_cgroups: Vec::new(),
            oom_score_adj: Some(-999),
            create_limit: shim::CREATE_TIMEOUT,
        };
        let shim = smol::block_on(shim::launch_shim(&launch)).expect("launch");
        bundle.start();
        running.push((bundle, shim));
    }
    let idle = || {
        running
            .iter()
            .all(|(b, s)| !b.log().is_empty() && is_asleep(s.shim_pid))
    };
    while !idle() {
        smol::block_on(async_io::Timer::after(core::time::Duration::from_millis(
            10,
        )));
    }
    let costs: Vec<_> = running.iter().map(|(_, s)| cost(s.shim_pid)).collect();
    for (bundle, shim) in &running {
        bundle.kill("KILL");
        smol::block_on(pidfd::wait_until_ended(shim.pidfd.as_fd())).expect("end");
    }
    let private = costs.iter().map(|c| c.0).max().expect("shims");
    let pss = costs.iter().map(|c| c.1).max().expect("shims");
    eprintln!("of {SHIMS} idle shims the largest: {private} KiB private, {pss} KiB PSS");
    if program::is_shipped() {
        assert!(private <= MAX_PRIVATE_KIB, "{private} KiB private");
        assert!(pss <= MAX_PSS_KIB, "{pss} KiB PSS");
    }
}

/// It waits in poll, and for good: a shim that holds buffers polls once more without waiting.
fn is_asleep(pid: i32) -> bool {
    let state = fs::read_to_string(format!("/proc/{pid}/stat")).expect("stat");
    state
        .rsplit(')')
        .next()
        .is_some_and(|s| s.trim_start().starts_with('S'))
}

/// Private memory and proportional set size in KiB.
fn cost(pid: i32) -> (u64, u64) {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("smaps");
    let field = |name: &str| -> u64 {
        let line = text
            .lines()
            .find_map(|l| l.strip_prefix(name))
            .expect("field");
        line.trim_end_matches(" kB").trim().parse().expect("number")
    };
    (
        field("Private_Clean:") + field("Private_Dirty:"),
        field("Pss:"),
    )
}
