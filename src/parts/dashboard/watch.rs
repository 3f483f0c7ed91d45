//! Asks the agent if a page asks and the last answer is old. Without a page nothing runs.

use alloc::{collections::VecDeque, sync::Arc};
use core::{fmt::Write as _, time::Duration};
use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use serde_json::Value;

use super::{spawn, view};
use crate::{
    api::{MonoTime, cri::StoredImage, stats::DiskUsage},
    cli::{AgentClient, CliError, check},
    logic::fnv::fnv1a,
    net::traffic,
    server::backend::ObjectList,
    sys::{clock, disk_usage},
};

/// Age of the last answer below which the agent is not asked again.
const FRESH: Duration = Duration::from_millis(500);
/// Time between two points of a plot.
const SAMPLE: Duration = Duration::from_secs(5);
/// Most points that are kept: an hour.
const MAX_SAMPLES: usize = 720;
/// Time between two rounds of checks, which look at the whole machine.
const CHECK: Duration = Duration::from_secs(120);
/// Stack of the thread that runs the checks, bytes.
const CHECK_STACK_BYTES: usize = 2 << 20;
/// Most events that are shown.
const MAX_EVENTS: usize = 100;

/// Last known state of the node. One request at a time asks the agent; the others wait for its answer.
pub(super) struct NodeStateCache {
    client: AgentClient,
    root: PathBuf,
    flags: Vec<OsString>,
    known: Mutex<KnownNodeState>,
    checked: Arc<Mutex<CheckResult>>,
}

#[derive(Default)]
struct KnownNodeState {
    asked: Option<MonoTime>,
    /// JSON of what the page shows, and its hash.
    state: String,
    hash: String,
    samples: VecDeque<PlotSample>,
    /// Number of the first sample that is kept.
    first: u64,
    sampled: Option<MonoTime>,
    /// Bytes received and sent at the last sample.
    traffic: Option<(u64, u64)>,
    /// Usage of pods by `namespace/name`: JSON.
    usage: String,
}

/// A point of the plots: seconds since 1970, thousandths of processors, bytes of memory and of the disk, bytes a second
/// received and sent. Unknown values are null.
type PlotSample = [Option<u64>; 6];

#[derive(Default)]
struct CheckResult {
    at: Option<MonoTime>,
    is_running: bool,
    found: Value,
}

/// Makes the answer that tells an error instead of the state.
fn trouble_answer(e: CliError) -> Value {
    view::json_object(&mut [("trouble", e.message.into())])
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // State that a thread left behind in a panic is asked anew.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_due(at: Option<MonoTime>, after: Duration, now: MonoTime) -> bool {
    at.is_none_or(|at| now - at >= after)
}

impl NodeStateCache {
    pub(super) fn new(client: AgentClient, root: PathBuf, flags: Vec<OsString>) -> Self {
        Self {
            client,
            root,
            flags,
            known: Mutex::default(),
            checked: Arc::default(),
        }
    }

    /// Forgets when the agent was last asked: an action may have changed the state.
    pub(super) fn mark_stale(&self) {
        lock(&self.known).asked = None;
    }

    /// Returns what the page does not know yet. The page has seen the state of hash `seen`, and the samples before
    /// number `from`.
    pub(super) fn news_since(&self, seen: &str, from: u64, allow_actions: bool) -> String {
        let now = clock::mono_now();
        self.check_machine(now);
        let mut known = lock(&self.known);
        if is_due(known.asked, FRESH, now) {
            if is_due(known.sampled, SAMPLE, now) {
                self.take_sample(&mut known, now);
            }
            let mut state = match self.read_agent_state(allow_actions) {
                Ok(state) => state,
                Err(e) => trouble_answer(e),
            };
            // It looks at the machine itself, and so tells most about an agent that is gone.
            state["check"] = lock(&self.checked).found.clone();
            known.state = state.to_string();
            known.hash = format!("{:x}", fnv1a(known.state.bytes()));
            known.asked = Some(clock::mono_now());
        }
        known.render_news(seen, from)
    }

    fn read_agent_state(&self, allow_actions: bool) -> Result<Value, CliError> {
        let ask = |target: &str| self.client.request_json("GET", target);
        let pods = ask("/pods")?;
        let events = ask(&format!("/events?limit={MAX_EVENTS}"))?;
        let images: ObjectList<StoredImage> = self.client.fetch_typed("/images")?;
        let fs = disk_usage::read_file_system(&self.root).ok();
        Ok(view::json_object(&mut [
            ("actions", allow_actions.into()),
            ("node", view::node_view(&ask("/node")?)),
            ("pressure", ask("/pressure?order=true")?),
            ("pods", view::pods_view(&pods)),
            ("pulls", view::pull_lines(&pods)),
            ("events", view::events_view(&events)),
            ("images", view::image_rows(&images.items)),
            ("disk", fs.map(|fs| fs.capacity_bytes).into()),
        ]))
    }

    /// Checks the machine in a thread of its own, for that takes a while.
    fn check_machine(&self, now: MonoTime) {
        let mut checked = lock(&self.checked);
        if checked.is_running || !is_due(checked.at, CHECK, now) {
            return;
        }
        checked.is_running = true;
        let (flags, kept) = (self.flags.clone(), Arc::clone(&self.checked));
        let look = move || {
            let found = match check::check_as_json(flags) {
                Ok(found) => found,
                Err(e) => trouble_answer(e),
            };
            let mut checked = lock(&kept);
            checked.found = found;
            checked.at = Some(clock::mono_now());
            checked.is_running = false;
        };
        if spawn(CHECK_STACK_BYTES, Box::new(look)).is_err() {
            checked.is_running = false;
        }
    }

    /// Takes a point of the plots. The agent's own figures are those of processor and memory; disk and network are read here.
    fn take_sample(&self, known: &mut KnownNodeState, now: MonoTime) {
        let target = "/stats/summary?only_cpu_and_memory=true";
        let stats = self.client.request_json("GET", target).unwrap_or_default();
        let number = |path: &str| stats.pointer(path).and_then(Value::as_u64);
        let ms = known.sampled.map_or(0, |at| now.since_ms(at)).max(1);
        let traffic = count_traffic_bytes();
        let rate = |of: fn((u64, u64)) -> u64| {
            let (before, after) = known.traffic.zip(traffic)?;
            Some(of(after).checked_sub(of(before))? * 1000 / ms)
        };
        let sample = [
            u64::try_from(clock::wall_now().unix_seconds()).ok(),
            number("/node/cpu/usageNanoCores").map(|nano| nano / 1_000_000),
            number("/node/memory/workingSetBytes"),
            used_disk_bytes(&self.root),
            rate(|(received, _)| received),
            rate(|(_, sent)| sent),
        ];
        known.usage = view::pod_usage_view(&stats).to_string();
        known.traffic = traffic;
        known.sampled = Some(now);
        known.keep_sample(sample);
    }
}

impl KnownNodeState {
    fn keep_sample(&mut self, sample: PlotSample) {
        self.samples.push_back(sample);
        if self.samples.len() > MAX_SAMPLES {
            self.samples.pop_front();
            self.first += 1;
        }
    }

    fn render_news(&self, seen: &str, from: u64) -> String {
        let state = match *seen == *self.hash {
            true => "null",
            false => &self.state,
        };
        let usage = match self.usage.is_empty() {
            true => "{}",
            false => &self.usage,
        };
        let now = clock::wall_now().0 / 1_000_000;
        let mut text = format!(
            r#"{{"now":{now},"seen":"{}","state":{state},"usage":{usage},"first":{},"samples":["#,
            self.hash, self.first,
        );
        let skip = usize::try_from(from.saturating_sub(self.first)).unwrap_or(usize::MAX);
        let mut comma = "";
        for sample in self.samples.iter().skip(skip) {
            for (n, figure) in sample.iter().enumerate() {
                text += if n == 0 { comma } else { "," };
                text += if n == 0 { "[" } else { "" };
                let _ = match figure {
                    Some(figure) => write!(text, "{figure}"),
                    None => write!(text, "null"),
                };
            }
            text.push(']');
            comma = ",";
        }
        let next = self.first + u64::try_from(self.samples.len()).unwrap_or(0);
        let _ = write!(text, r#"],"from":{next}}}"#);
        text
    }
}

/// Measures the used bytes of the file system with the agent's data.
fn used_disk_bytes(root: &Path) -> Option<u64> {
    let fs = disk_usage::read_file_system(root).ok()?;
    Some(DiskUsage::of_filesystem(&fs).used_bytes)
}

/// Counts the bytes received and sent by this machine. Traffic over a bridge is counted at the interface by which it
/// leaves.
fn count_traffic_bytes() -> Option<(u64, u64)> {
    let mut all = traffic::read_thread_interfaces().ok()?;
    all.retain(|of| {
        !Path::new("/sys/class/net")
            .join(&of.name)
            .join("bridge")
            .exists()
    });
    let sum = |sum: (u64, u64), of: &crate::api::stats::InterfaceCounts| {
        (sum.0 + of.rx.bytes, sum.1 + of.tx.bytes)
    };
    Some(all.iter().fold((0, 0), sum))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_hour_is_kept() {
        let mut known = KnownNodeState::default();
        for n in 0..1000 {
            known.keep_sample([Some(n); 6]);
        }
        assert_eq!((known.samples.len(), known.first), (MAX_SAMPLES, 280));
        assert_eq!(known.samples[0], [Some(280); 6]);
        assert_eq!(SAMPLE * 720, Duration::from_hours(1));
    }

    #[test]
    fn only_news_are_told() {
        let mut known = KnownNodeState {
            state: r#"{"a":1}"#.into(),
            hash: "h".into(),
            first: 10,
            ..KnownNodeState::default()
        };
        known.samples.extend([[Some(1); 6], [None; 6]]);
        let told = |seen: &str, from: u64| -> Value {
            serde_json::from_str(&known.render_news(seen, from)).expect("JSON")
        };
        let all = told("", 0);
        assert_eq!((&all["state"]["a"], &all["from"]), (&json!(1), &json!(12)));
        assert_eq!(all["samples"][0], json!([1, 1, 1, 1, 1, 1]));
        assert_eq!(all["samples"][1][0], Value::Null);
        let some = told("h", 11);
        assert_eq!(some["state"], Value::Null);
        assert_eq!(some["samples"].as_array().map(Vec::len), Some(1));
        assert_eq!(told("h", 12)["samples"], json!([]));
        // The numbers of an earlier dashboard.
        assert_eq!(told("h", 5000)["samples"], json!([]));
    }
}
