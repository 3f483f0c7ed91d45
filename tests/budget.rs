//! What a node costs: memory, processes and wake-ups of an agent and its shims, beside real pods that sleep, and what is left
//! of a crowd of pods once it is gone; what probes of many pods cost. A debug build only shows the figures, of fewer pods.
//! Needs root, runc, the CNI plugins and a static busybox; says so and passes without them.
//!
//! Nothing of the library is used here: the program is looked at from outside, and this test is then linked in seconds.

#[macro_use]
#[path = "common/skipped.rs"]
mod skipped;
#[path = "common/program.rs"]
mod program;

use core::time::Duration;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, PoisonError};

use program::{is_shipped, program};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

const BUSYBOX: &str = "/bin/busybox";
const IMAGE: &str = "localhost/picolet/budget:1";

/// Pods of the crowd.
const PODS: usize = 100;
/// Where figures do not count.
const FEW_PODS: usize = 10;
/// Memory of the agent, its share of what it maps (PSS), in KiB: without pods, and with the crowd.
const AGENT_EMPTY_KIB: u64 = 4608;
const AGENT_FULL_KIB: u64 = 6 * 1024 + 512;
/// Memory of its own that a shim may have, and its share of what it maps, in KiB.
const SHIM_PRIVATE_KIB: u64 = 64;
const SHIM_PSS_KIB: u64 = 96;
/// Agent and shims together, PSS in KiB.
const STACK_KIB: u64 = 18 * 1024;
/// PSS in KiB by which an agent may be larger after the crowd than it was before: what the threads' caches of the allocator
/// keep in pages of their own, and code that was not needed before.
const GROWTH_KIB: u64 = 1024;
/// Crowds that come and go, at least, and the pods of each.
const CROWDS: usize = 12;
const CROWD: usize = 60;
/// Crowds of a node that has become old.
const OLD_CROWDS: usize = 25;
/// Crowds with which the heap finds its size: what the last of them has left is the first that is judged.
const GROWN_UP: usize = 3;
/// By which the floor of the agent's anonymous memory may grow with a crowd, in KiB: see [`floor_growth`]. A leak of
/// 1 KiB a pod is four times that.
const CROWD_CREEP_KIB: i64 = 16;
/// By which that floor may grow while a node becomes old, in KiB.
const AGE_KIB: i64 = 64;
/// Anonymous memory of the agent after a crowd that is gone, in KiB: heap, stacks, what was written of the program's data.
const AFTER_CROWD_KIB: u64 = 1536;
/// How often threads of the agent may be put on a processor in a second at rest, with or without pods: one tick a second
/// wakes the thread that waits for the kernel and the one that decides, and arms a timer again; some ticks use a lane.
const WAKES_PER_SECOND: u64 = 12;

/// Processor time of the agent for one HTTP probe of a pod, what an idle agent needs included, in hundredths of what a
/// program needs that does nothing but connect, ask, read and close. Nearly all of that is the kernel's, for both ends.
const PROBE_PER_CENT: u64 = 125;
/// Both are measured in turns, for the machine may be slower at one time than at another.
const ROUNDS: u64 = 3;
const ROUND: Duration = Duration::from_secs(5);
/// Probes by which that is measured, and the time between two: as much as between two of the agent's.
const BARE_PROBES: u64 = 400;
const BARE_PAUSE: Duration = Duration::from_millis(5);

/// Thresholds of everything.
const EVICTION: &str = "--eviction-hard=memory.available<1Mi,nodefs.available<1Mi,nodefs.inodesFree<9,imagefs.available<1Mi,\
    imagefs.inodesFree<9,pid.available<9";
/// Files of each pod whose use of the disk is counted, and the part of one processor that this may take, in hundredths.
const FILES: usize = 1000;
const COUNT_PER_CENT: u64 = 1;
/// Over which that is measured: some rounds, each of which rests for a hundred times as long as it took.
const COUNTED: Duration = Duration::from_secs(60);

/// Over which wake-ups are counted.
const REST: Duration = Duration::from_secs(15);
/// After which an agent counts as at rest: two passes of housekeeping.
const SETTLE: Duration = Duration::from_secs(5);
/// Between two looks at a condition.
const LOOK: Duration = Duration::from_millis(50);
/// Looks before a condition counts as never met: three minutes.
const LOOKS: usize = 3600;

/// One crowd at a time: they would be in each other's way.
static TURN: Mutex<()> = Mutex::new(());

#[test]
fn a_crowd_of_sleeping_pods() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(why) = missing() {
        skipped!("what a node costs: {why}");
        return;
    }
    let node = Node::start(0);
    node.import_image();
    pass(SETTLE);
    let empty = node.figures();
    empty.show("without pods");

    let pods = if is_shipped() { PODS } else { FEW_PODS };
    node.crowd_comes(pods);
    pass(SETTLE);
    let full = node.figures();
    full.show("with pods");

    node.crowd_goes(pods);
    pass(SETTLE);
    let after = node.figures();
    after.show("after them");

    assert_eq!(full.shims.len(), pods, "one shim a container");
    assert_eq!(
        full.processes,
        1 + pods,
        "agent and shims, nothing else is resident"
    );
    assert_eq!(after.processes, 1, "the agent alone");
    if is_shipped() {
        let most = |f: fn(&Memory) -> u64| full.shims.iter().map(f).max().unwrap_or_default();
        for (what, found, limit) in [
            ("agent without pods, PSS", empty.agent.pss, AGENT_EMPTY_KIB),
            ("agent with pods, PSS", full.agent.pss, AGENT_FULL_KIB),
            ("a shim, private", most(|m| m.private), SHIM_PRIVATE_KIB),
            ("a shim, PSS", most(|m| m.pss), SHIM_PSS_KIB),
            ("agent and shims, PSS", full.stack(), STACK_KIB),
            (
                "growth of the agent by a crowd that is gone, PSS",
                after.agent.pss.saturating_sub(empty.agent.pss),
                GROWTH_KIB,
            ),
        ] {
            assert!(found <= limit, "{what}: {found} KiB, at most {limit}");
        }
        for (when, figures) in [("without", &empty), ("with", &full), ("after", &after)] {
            let found = figures.wakes / REST.as_secs();
            assert!(
                found <= WAKES_PER_SECOND,
                "{found} wake-ups a second {when} pods, at most {WAKES_PER_SECOND}"
            );
        }
    }
    node.stop();
}

/// What crowds leave in the agent's heap does not grow from one to the next.
#[test]
fn crowds_that_come_and_go() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(why) = missing() {
        skipped!("what crowds leave: {why}");
        return;
    }
    let node = Node::start(2);
    node.import_image();
    pass(SETTLE);
    let agent = node.agent.id();
    let empty = memory(agent).anonymous;
    let crowd = if is_shipped() { CROWD } else { FEW_PODS };
    let mut left = Vec::new();
    let is_open = |left: &[u64]| {
        left.len() < CROWDS
            || is_shipped() && creep(left) > CROWD_CREEP_KIB && left.len() < OLD_CROWDS
    };
    while is_open(&left) {
        node.crowd_comes(crowd);
        node.crowd_goes(crowd);
        pass(SETTLE);
        left.push(memory(agent).anonymous);
    }
    eprintln!("anonymous memory of the agent: {empty} KiB, after crowds of {crowd} {left:?} KiB");
    if is_shipped() {
        assert!(
            left.iter().all(|kib| *kib <= AFTER_CROWD_KIB),
            "{left:?} KiB, at most {AFTER_CROWD_KIB}"
        );
        let creep = creep(&left);
        assert!(
            creep <= CROWD_CREEP_KIB,
            "{creep} KiB a crowd, at most {CROWD_CREEP_KIB}: {left:?} KiB"
        );
    }
    node.stop();
}

/// Growth of the least that is left, from the first half of the crowds that are judged to the second, in KiB. Pieces
/// that outlive a crowd lie where chance put them, and some crowds leave 200 KiB of pages around them, until the next
/// goes. A leak never goes. The first time that they come is after some 500 pods: where the floor rises for that between
/// the halves, more crowds tell.
fn floor_growth(left: &[u64]) -> i64 {
    let judged = &left[GROWN_UP - 1..];
    let (early, late) = judged.split_at(judged.len() / 2);
    let floor = |half: &[u64]| i64::try_from(*half.iter().min().expect("crowds")).expect("KiB");
    floor(late) - floor(early)
}

/// Growth of the floor with each crowd, in KiB.
fn creep(left: &[u64]) -> i64 {
    let distance = (left.len() + 1 - GROWN_UP) / 2;
    floor_growth(left) / i64::try_from(distance).expect("few")
}

#[test]
fn a_leak_of_a_kibibyte_a_pod_is_seen() {
    // Measured at a sound agent.
    let sound: [u64; CROWDS] = [832, 832, 832, 836, 844, 824, 844, 852, 904, 928, 976, 1008];
    let leaks = |kib: usize| {
        let left = (1..)
            .zip(sound)
            .map(|(crowd, left)| left + crowd * u64::try_from(kib).expect("few"));
        creep(&left.collect::<Vec<_>>())
    };
    assert!(creep(&sound) <= CROWD_CREEP_KIB, "{}", creep(&sound));
    // Two kibibytes of each pod, one, and a third.
    for kib in [CROWD * 2, CROWD, CROWD / 3] {
        assert!(leaks(kib) > CROWD_CREEP_KIB, "{kib}: {}", leaks(kib));
    }
    let back: Vec<u64> = sound.into_iter().rev().collect();
    assert!(creep(&back) <= CROWD_CREEP_KIB, "{}", creep(&back));
}

/// Age: crowds come and go, and nothing of them stays.
#[test]
#[ignore = "long: twenty-five crowds take five minutes"]
fn many_crowds() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(why) = missing() {
        skipped!("what crowds leave over time: {why}");
        return;
    }
    let node = Node::start(3);
    node.import_image();
    let pods = if is_shipped() { PODS } else { FEW_PODS };
    let left: Vec<Left> = (0..OLD_CROWDS)
        .map(|_| {
            node.crowd_comes(pods);
            node.crowd_goes(pods);
            pass(SETTLE);
            node.left()
        })
        .collect();
    for (n, left) in left.iter().enumerate() {
        eprintln!("after crowd {}: {left:?}", n + 1);
    }
    let (grown, old) = (&left[GROWN_UP - 1], &left[OLD_CROWDS - 1]);
    let places = |left: &Left| (left.descriptors, left.threads, left.files.clone());
    assert_eq!(places(old), places(grown));
    if is_shipped() {
        let all: Vec<u64> = left.iter().map(|left| left.anonymous_kib).collect();
        let grown = floor_growth(&all);
        assert!(grown <= AGE_KIB, "{grown} KiB, at most {AGE_KIB}");
    }
    node.stop();
}

/// Two HTTP probes a second of each pod: liveness and readiness.
#[test]
fn a_crowd_that_is_probed() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(why) = missing() {
        skipped!("what a node costs: {why}");
        return;
    }
    let node = Node::start(1);
    node.import_image();
    let probe = json!({"httpGet": {"path": "/yes", "port": 8080}, "periodSeconds": 1});
    let serve = "/busybox mkdir /w; /busybox touch /w/yes; exec /busybox httpd -f -p 8080 -h /w";
    let count = if is_shipped() { PODS } else { FEW_PODS };
    for n in 0..count {
        let more = json!({
            "command": ["/busybox", "sh", "-c", serve], "livenessProbe": probe, "readinessProbe": probe,
        });
        node.write_pod(n, &more);
    }
    until("every pod is ready", || {
        let pods = node.pods()?;
        let ready = pods
            .iter()
            .filter(|p| p["status"]["containerStatuses"][0]["ready"] == true);
        (pods.len() == count && ready.count() == count).then_some(())
    });
    pass(SETTLE);
    let agent = node.agent.id();
    let pods = node.pods().expect("pods");
    let ips: Vec<&str> = pods
        .iter()
        .filter_map(|p| p["status"]["podIP"].as_str())
        .collect();
    let number = |probes: &Value, key: &str| probes[key].as_u64().expect("a number");
    let before = node.probes();
    let (mut used_ns, mut ended, mut bare_us) = (0, 0, 0);
    for _ in 0..ROUNDS {
        let (started, used) = (node.probes(), ran_ns(agent));
        pass(ROUND);
        used_ns += ran_ns(agent) - used;
        ended += number(&node.probes(), "ended") - number(&started, "ended");
        bare_us += bare_probe_us(&ips) / ROUNDS;
    }
    let late = number(&node.probes(), "late") - number(&before, "late");
    let probe_us = used_ns / 1000 / ended.max(1);
    let span_s = ROUNDS * ROUND.as_secs();
    eprintln!(
        "{count} pods, two probes a second each: {} ms of processor time a second, {probe_us} µs a probe ({bare_us} bare), {} probes a second, {late} late; agent {} KiB PSS",
        used_ns / 1_000_000 / span_s,
        ended / span_s,
        memory(agent).pss,
    );
    let pods = node.pods().expect("pods");
    let restarted = pods
        .iter()
        .filter(|p| p["status"]["containerStatuses"][0]["restartCount"] != 0);
    assert_eq!(restarted.count(), 0);
    if is_shipped() {
        assert_eq!(late, 0, "a period late, or more");
        let due = u64::try_from(2 * count).expect("a number") * span_s;
        assert!(ended * 100 >= due * 98, "{ended} probes of {due}");
        assert!(
            probe_us * 100 <= bare_us * PROBE_PER_CENT,
            "{probe_us} µs a probe, {bare_us} bare"
        );
    }
    node.stop();
}

/// What the files of pods take is counted for those that have a limit; without one nobody asks.
#[test]
#[ignore = "long: two crowds with many files take some minutes"]
fn a_crowd_with_files() {
    // EVICT-11
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(why) = missing() {
        skipped!("what counting files costs: {why}");
        return;
    }
    let node = Node::start(4);
    node.import_image();
    let agent = node.agent.id();
    let pods = if is_shipped() { PODS } else { FEW_PODS };
    let fill = format!(
        "/busybox mkdir /w; cd /w; /busybox seq 1 {FILES} | /busybox xargs /busybox touch; echo full; exec /busybox sleep 86400"
    );
    let mut used = [0; 2];
    for (used, limits) in used
        .iter_mut()
        .zip([json!({}), json!({"ephemeral-storage": "16Mi"})])
    {
        for n in 0..pods {
            let more = json!({
                "command": ["/busybox", "sh", "-c", fill],
                "resources": {"limits": limits, "requests": {"ephemeral-storage": "1Mi"}},
            });
            node.write_pod(n, &more);
        }
        let logs = node.base.join("logs");
        until("every pod has its files", || {
            let all = node.pods()?;
            let is_full = |pod: &Value| {
                let of = &pod["metadata"];
                let word = |key: &str| of[key].as_str().unwrap_or_default();
                let dir = format!("default_{}_{}/main/0.log", word("name"), word("uid"));
                let said = fs::read_to_string(logs.join(dir));
                said.is_ok_and(|said| said.contains(" full"))
            };
            (all.len() == pods && all.iter().all(is_full)).then_some(())
        });
        // One round at least, of which the next one knows how long it took.
        pass(3 * SETTLE);
        let before = ran_ns(agent);
        pass(COUNTED);
        *used = ran_ns(agent) - before;
        assert_eq!(node.shims().len(), pods, "nobody goes");
        node.crowd_goes(pods);
        // Pods whose files are still being removed have their places.
        pass(3 * SETTLE);
    }
    let per_mille = used.map(|ns| ns / 1_000_000 / COUNTED.as_secs());
    eprintln!(
        "{pods} pods of {FILES} files: the agent runs {per_mille:?} ms a second, without limits and with"
    );
    if is_shipped() {
        let counting = used[1].saturating_sub(used[0]);
        let most = COUNTED.as_nanos() * u128::from(COUNT_PER_CENT) / 100;
        assert!(
            u128::from(counting) <= most,
            "{counting} ns, at most {most}"
        );
        assert!(counting > 0, "nobody counted");
    }
    node.stop();
}

/// `cargo xtask chaos` names places where the agent dies; the program that is shipped knows none of them.
#[test]
fn no_trace_of_crash_points() {
    fn collect(dir: &Path, found: &mut Vec<String>) {
        for entry in fs::read_dir(dir).expect("sources").flatten() {
            let path = entry.path();
            if path.is_dir() {
                collect(&path, found);
            } else if let Ok(text) = fs::read_to_string(&path) {
                for call in ["crash::point(\"", "crash::shim_point(\""] {
                    let names = text.split(call).skip(1);
                    found.extend(names.filter_map(|n| n.split('"').next()).map(str::to_owned));
                }
            }
        }
    }
    if !is_shipped() {
        return;
    }
    let mut words = vec!["PICOLET_CRASH_AT".to_owned(), "--crash-at".to_owned()];
    collect(Path::new("src"), &mut words);
    assert!(words.len() > 50, "{words:?}");
    let program = fs::read(program()).expect("program");
    for word in words {
        let found = program.windows(word.len()).any(|w| w == word.as_bytes());
        assert!(!found, "{word} is in the program");
    }
}

/// Why this machine cannot run pods.
fn missing() -> Option<String> {
    let present = |paths: &[&str]| paths.iter().any(|p| Path::new(p).exists());
    if !nix::unistd::geteuid().is_root() {
        return Some("tests/budget.rs: needs root".into());
    }
    for (what, paths) in [
        (
            "runc",
            &["/usr/sbin/runc", "/usr/bin/runc", "/usr/local/sbin/runc"][..],
        ),
        (
            "CNI plugins",
            &["/usr/lib/cni/bridge", "/opt/cni/bin/bridge"],
        ),
        ("iptables", &["/usr/sbin/iptables", "/sbin/iptables"]),
        ("busybox", &[BUSYBOX]),
    ] {
        if !present(paths) {
            return Some(format!("tests/budget.rs: {what} is not installed"));
        }
    }
    None
}

/// An agent on directories of its own. Dropping it ends its pods and removes its traces.
struct Node {
    mark: String,
    base: PathBuf,
    agent: Child,
}

/// What the kernel says of an agent and its shims.
struct Figures {
    agent: Memory,
    shims: Vec<Memory>,
    /// Processes of ours; containers are not.
    processes: usize,
    /// Switches to a thread of the agent within [`REST`].
    wakes: u64,
}

/// Memory of one process in KiB.
struct Memory {
    private: u64,
    /// What no file backs.
    anonymous: u64,
    /// Of that, pages of files.
    clean: u64,
    pss: u64,
}

/// What crowds leave.
#[derive(Debug)]
struct Left {
    anonymous_kib: u64,
    descriptors: usize,
    threads: usize,
    /// Of the node's directories, and its cgroups.
    files: Vec<PathBuf>,
}

impl Figures {
    fn stack(&self) -> u64 {
        self.agent.pss + self.shims.iter().map(|m| m.pss).sum::<u64>()
    }

    fn show(&self, when: &str) {
        let largest = self.shims.iter().max_by_key(|m| m.private);
        eprintln!(
            "{when}: agent {} KiB PSS, {} KiB private; {} shims, largest {} KiB private ({} KiB of files), {} KiB PSS; stack {} KiB PSS; {} wake-ups in {} s",
            self.agent.pss,
            self.agent.private,
            self.shims.len(),
            largest.map_or(0, |m| m.private),
            largest.map_or(0, |m| m.clean),
            self.shims.iter().map(|m| m.pss).max().unwrap_or(0),
            self.stack(),
            self.wakes,
            REST.as_secs(),
        );
    }
}

impl Node {
    fn start(number: u8) -> Self {
        let mark = format!("pb{number}d{}x", std::process::id());
        // In memory, as a run directory is everywhere; overlays can write on it.
        let base = Path::new("/dev/shm").join(&mark);
        for dir in ["root", "run", "manifests", "images", "logs", "links", "cni"] {
            fs::create_dir_all(base.join(dir)).expect("directory");
        }
        let log = fs::File::create(base.join("agent.log")).expect("log");
        let mut command = Command::new(program());
        command.arg("run");
        for (flag, dir) in [
            ("--root-dir", "root"),
            ("--run-dir", "run"),
            ("--pod-manifest-path", "manifests"),
            ("--image-dir", "images"),
            ("--pod-logs-dir", "logs"),
            ("--container-log-dir", "links"),
            ("--cni-conf-dir", "cni"),
        ] {
            command.arg(flag).arg(base.join(dir));
        }
        let agent = command
            .args(["--cgroup-root", &format!("/{mark}"), "--bridge", &mark])
            .args(["--hostname-override", "node", "--fail-swap-on=false"])
            .args(["--pod-cidr", &subnet()])
            // What is promised is promised with eviction on: nothing of this is ever short.
            .args(["--evict-static-pods", EVICTION])
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("log"))
            .stderr(log)
            .spawn()
            .expect("agent");
        let node = Self { mark, base, agent };
        until("the agent answers", || node.pods());
        node
    }

    /// Every pod.
    fn pods(&self) -> Option<Vec<Value>> {
        Some(self.ask("pods")?["items"].as_array()?.clone())
    }

    /// What is counted of its probes.
    fn probes(&self) -> Value {
        self.ask("health").expect("an answer")["probes"].clone()
    }

    fn ask(&self, what: &str) -> Option<Value> {
        let mut stream = UnixStream::connect(self.base.join("run/picolet.sock")).ok()?;
        let head = format!("GET /{what} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        let (_, body) = text.split_once("\r\n\r\n")?;
        serde_json::from_str(body).ok()
    }

    fn client(&self, words: &[&str]) -> Output {
        Command::new(program())
            .args(words)
            .env("PICOLET_SOCKET", self.base.join("run/picolet.sock"))
            .stdin(Stdio::null())
            .output()
            .expect("client")
    }

    fn import_image(&self) {
        let path = self.base.join("image.tar");
        fs::write(&path, image()).expect("image");
        let output = self.client(&["image", "import", &path.display().to_string()]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "import: {said}");
        fs::remove_file(path).expect("image");
    }

    fn manifest(&self, n: usize) -> PathBuf {
        self.base.join(format!("manifests/sleep-{n}.json"))
    }

    fn write_manifest(&self, n: usize) {
        self.write_pod(n, &json!({"command": ["/busybox", "sleep", "86400"]}));
    }

    /// So many pods, until all of them run.
    fn crowd_comes(&self, pods: usize) {
        for n in 0..pods {
            self.write_manifest(n);
        }
        until("every pod runs", || {
            let all = self.pods()?;
            let running = all.iter().filter(|p| p["status"]["phase"] == "Running");
            (all.len() == pods && running.count() == pods).then_some(())
        });
    }

    /// Until nothing of them is left.
    fn crowd_goes(&self, pods: usize) {
        for n in 0..pods {
            fs::remove_file(self.manifest(n)).expect("manifest");
        }
        until("every pod is gone", || {
            (self.pods()?.is_empty() && self.shims().is_empty()).then_some(())
        });
    }

    /// What there is of an agent without pods.
    fn left(&self) -> Left {
        let agent = self.agent.id();
        let count = |dir: &str| {
            let entries = fs::read_dir(format!("/proc/{agent}/{dir}"));
            entries.expect("of the agent").count()
        };
        let mut files = below(&self.base);
        let versions = fs::read_dir("/sys/fs/cgroup").expect("cgroups").flatten();
        for dir in versions.map(|e| e.path()).chain(["/sys/fs/cgroup".into()]) {
            files.extend(below(&dir.join(&self.mark)));
        }
        files.sort();
        Left {
            anonymous_kib: memory(agent).anonymous,
            descriptors: count("fd"),
            threads: count("task"),
            files,
        }
    }

    /// A pod of one container, which has these fields more.
    fn write_pod(&self, n: usize, more: &Value) {
        let mut pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": format!("sleep-{n}")},
            "spec": {
                "terminationGracePeriodSeconds": 1,
                "containers": [{
                    "name": "main",
                    "image": IMAGE,
                    "imagePullPolicy": "Never",
                }],
            },
        });
        for (key, value) in more.as_object().expect("fields") {
            pod["spec"]["containers"][0][key] = value.clone();
        }
        let hidden = self.base.join("manifests/.new");
        fs::write(&hidden, pod.to_string()).expect("manifest");
        fs::rename(hidden, self.manifest(n)).expect("manifest");
    }

    /// Processes with the mark in a word of their command line: agent, shims, and what they run for a moment.
    fn processes(&self) -> Vec<(u32, Vec<u8>)> {
        let entries = fs::read_dir("/proc").expect("proc").flatten();
        entries
            .filter_map(|e| {
                let pid: u32 = e.file_name().to_str()?.parse().ok()?;
                let line = fs::read(e.path().join("cmdline")).ok()?;
                let marked = String::from_utf8_lossy(&line).contains(&self.mark);
                marked.then_some((pid, line))
            })
            .collect()
    }

    fn shims(&self) -> Vec<u32> {
        let is_shim = |line: &[u8]| line.split(|b| *b == 0).nth(1) == Some(b"shim");
        let all = self.processes().into_iter();
        all.filter(|(_, line)| is_shim(line))
            .map(|(pid, _)| pid)
            .collect()
    }

    /// Measured over [`REST`].
    fn figures(&self) -> Figures {
        let agent = self.agent.id();
        let before = switches(agent);
        pass(REST);
        let wakes = switches(agent) - before;
        Figures {
            agent: memory(agent),
            shims: self.shims().into_iter().map(memory).collect(),
            processes: self.processes().len(),
            wakes,
        }
    }

    fn stop(mut self) {
        let output = self.client(&["stop", "--all"]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "stop: {said}");
        assert!(self.agent.wait().expect("agent").success(), "agent's end");
    }
}

/// See the file.
const FORGET_NETWORK: &str = include_str!("common/forget-network.sh");

impl Drop for Node {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "{}",
                fs::read_to_string(self.base.join("agent.log")).unwrap_or_default()
            );
            let _ = self.client(&["stop", "--all"]);
        }
        let _ = self.agent.kill();
        let _ = self.agent.wait();
        for (pid, _) in self.processes() {
            if let Ok(pid) = i32::try_from(pid) {
                let _ = nix::sys::signal::kill(
                    nix::unistd::Pid::from_raw(pid),
                    nix::sys::signal::Signal::SIGKILL,
                );
            }
        }
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let mounts = table.lines().filter_map(|line| line.split(' ').nth(4));
        for point in mounts.filter(|p| p.contains(&self.mark)).rev() {
            let _ = nix::mount::umount2(point, nix::mount::MntFlags::MNT_DETACH);
        }
        let _ = Command::new("sh")
            .args(["-c", FORGET_NETWORK, "sh", &self.mark])
            .output();
        let roots = fs::read_dir("/sys/fs/cgroup")
            .into_iter()
            .flatten()
            .flatten();
        for root in roots
            .map(|e| e.path())
            .chain([PathBuf::from("/sys/fs/cgroup")])
        {
            remove_cgroups(&root.join(&self.mark));
        }
        let _ = fs::remove_dir_all(&self.base);
    }
}

/// Another run's, killed, may have left its bridge: no two have one subnet.
fn subnet() -> String {
    format!("10.{}.0.0/16", 128 + std::process::id() % 64)
}

/// All files and directories below `dir`.
fn below(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            found.extend(below(&entry.path()));
        }
        found.push(entry.path());
    }
    found
}

fn remove_cgroups(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            remove_cgroups(&entry.path());
        }
    }
    let _ = fs::remove_dir(dir);
}

/// A docker archive whose one layer holds busybox.
fn image() -> Vec<u8> {
    let hex = |data: &[u8]| -> String {
        Sha256::digest(data)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    };
    let busybox = fs::read(BUSYBOX).expect("busybox");
    let layer = archive(&[("busybox", 0o755, &busybox)]);
    let config = json!({
        "architecture": if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" },
        "os": "linux",
        "config": {"Cmd": ["/busybox"]},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{}", hex(&layer))]},
    })
    .to_string();
    let name = format!("{}.json", hex(config.as_bytes()));
    let manifest = json!([{"Config": name, "RepoTags": [IMAGE], "Layers": ["layer.tar"]}]);
    archive(&[
        (&name, 0o644, config.as_bytes()),
        ("layer.tar", 0o644, &layer),
        ("manifest.json", 0o644, manifest.to_string().as_bytes()),
    ])
}

fn archive(files: &[(&str, u32, &[u8])]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for (name, mode, data) in files {
        let mut header = tar::Header::new_gnu();
        header.set_mode(*mode);
        header.set_size(data.len() as u64);
        tar.append_data(&mut header, name, *data).expect("file");
    }
    tar.into_inner().expect("archive")
}

fn memory(pid: u32) -> Memory {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("smaps");
    let sum = |names: &[&str]| numbers(&text, names);
    Memory {
        anonymous: sum(&["Anonymous:"]),
        private: sum(&["Private_Clean:", "Private_Dirty:"]),
        clean: sum(&["Private_Clean:"]),
        pss: sum(&["Pss:"]),
    }
}

/// How often threads of a process were put on a processor, whether they had waited or were pushed aside before.
fn switches(pid: u32) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("tasks");
    let texts = tasks
        .flatten()
        .filter_map(|task| fs::read_to_string(task.path().join("status")).ok());
    texts
        .map(|text| {
            numbers(
                &text,
                &["voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:"],
            )
        })
        .sum()
}

/// How long threads of a process ran, ns.
fn ran_ns(pid: u32) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("tasks");
    let texts = tasks
        .flatten()
        .filter_map(|task| fs::read_to_string(task.path().join("schedstat")).ok());
    texts
        .filter_map(|text| text.split_whitespace().next()?.parse::<u64>().ok())
        .sum()
}

/// Sum of the lines `name:  123 …`.
fn numbers(text: &str, names: &[&str]) -> u64 {
    let mut sum = 0;
    for line in text.lines() {
        let mut words = line.split_whitespace();
        if words.next().is_some_and(|name| names.contains(&name)) {
            let word = words.next().expect("a number");
            sum += word.parse::<u64>().expect("a number");
        }
    }
    sum
}

fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    for _ in 0..LOOKS {
        if let Some(found) = look() {
            return found;
        }
        pass(LOOK);
    }
    panic!("never: {what}");
}

/// Processor time of one probe without any agent, µs.
fn bare_probe_us(ips: &[&str]) -> u64 {
    let clock = || {
        let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID);
        Duration::from(time.expect("clock"))
    };
    let mut used = Duration::ZERO;
    for (ip, _) in ips.iter().cycle().zip(0..BARE_PROBES) {
        pass(BARE_PAUSE);
        let before = clock();
        let mut stream = TcpStream::connect((*ip, 8080)).expect("connect");
        let head = format!("GET /yes HTTP/1.1\r\nHost: {ip}:8080\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).expect("ask");
        let got = stream.read(&mut [0; 2048]).expect("answer");
        assert_ne!(got, 0, "an answer");
        drop(stream);
        used += clock() - before;
    }
    u64::try_from(used.as_micros()).expect("short") / BARE_PROBES
}

/// Lets time pass: what is measured here happens over time.
fn pass(time: Duration) {
    smol::block_on(async_io::Timer::after(time));
}
