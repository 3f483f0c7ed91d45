//! What pods cost, as it is told, beside what they do.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;

use serde_json::{Value, json};

use crate::host::{self, Host, IDLE, sh, with};

/// Never gives the processor back.
const BURN: &str = "trap 'exit 0' TERM; while :; do :; done";
/// Processor time of the burning pod from which on figures are compared, nanoseconds.
const BURNT_NS: u64 = 2_000_000_000;
/// Processor time a second that the burning pod has at least, nanoseconds: a twentieth of a core, on a machine that is busy.
const MOST_OF_LITTLE: u64 = 50_000_000;
/// Reads of a page by a client that does not read.
const DEAF: usize = 4;
/// By how much the agent may grow for clients that do not read, KiB: a sample and a piece for each.
const GROWTH_KIB: u64 = 2 * 1024;

// MET-07 MET-08 MET-10 MET-11 MET-12 MET-13 MET-14 SRV-16
#[test]
fn figures_tell_a_burning_pod_from_a_sleeping_one() {
    if !host::able() {
        return;
    }
    let host = Host::start(&[]);
    host.pod("burn", json!({"containers": [sh("main", BURN)]}));
    host.pod(
        "idle",
        json!({
            "containers": [
                with(
                    sh("main", &format!("dd if=/dev/zero of=/layer bs=1M count=3; dd if=/dev/zero of=/data/x bs=1M count=2; {IDLE}")),
                    json!({
                        "resources": {"limits": {"memory": "64Mi"}},
                        "volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "fast", "mountPath": "/fast"}],
                    }),
                ),
                sh("side", IDLE),
            ],
            "volumes": [{"name": "data", "emptyDir": {}}, {"name": "fast", "emptyDir": {"medium": "Memory"}}],
        }),
    );
    host.wait_ready("burn");
    host.wait_ready("idle");

    // The processor.
    host.until("the burning pod has used its share", |host| {
        let now = summary(host, "?only_cpu_and_memory=true");
        let used = cpu_ns(&pod(&now, "burn-node"));
        (used > BURNT_NS, used.to_string())
    });
    let text = get(&host, "/metrics/resource");
    let cpu = samples(&text, "container_cpu_usage_seconds_total");
    let of = |pod: &str, container: &str| {
        let series = format!("{{container=\"{container}\",namespace=\"default\",pod=\"{pod}\"}}");
        cpu.get(&series)
            .copied()
            .unwrap_or_else(|| panic!("{series} in {cpu:?}"))
    };
    let (burning, sleeping) = (of("burn-node", "main"), of("idle-node", "side"));
    assert!(burning > 10.0 * sleeping, "{burning} and {sleeping}");
    let node = samples(&text, "node_cpu_usage_seconds_total")[""];
    assert!(node >= burning, "{node} and {burning}");
    let of_pod = samples(&text, "pod_cpu_usage_seconds_total");
    assert!(
        of_pod["{namespace=\"default\",pod=\"burn-node\"}"] >= burning * 0.9,
        "{of_pod:?}"
    );
    let memory = samples(&text, "container_memory_working_set_bytes");
    assert_eq!(memory.len(), 3, "{memory:?}");
    let total = samples(&text, "node_memory_working_set_bytes")[""];
    assert!(memory.values().all(|m| *m > 0.0 && *m < total));
    assert_eq!(samples(&text, "resource_scrape_error")[""], 0.0);

    // Everything.
    let full = summary(&host, "");
    let idle = pod(&full, "idle-node");
    let main = container(&idle, "main");
    let bytes = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{idle}"));
    let layer = bytes(&main["rootfs"]["usedBytes"]);
    assert!((3 << 20..4 << 20).contains(&layer), "{main}");
    assert!(bytes(&main["logs"]["usedBytes"]) > 0, "{main}");
    let available = bytes(&main["memory"]["availableBytes"]);
    let used = bytes(&main["memory"]["workingSetBytes"]);
    assert_eq!(available + used, 64 << 20);
    assert!(main["cpu"]["time"].is_string(), "{main}");
    let volumes = idle["volume"].as_array().expect("volumes");
    let volume = |name: &str| {
        let found = volumes.iter().find(|v| v["name"] == name);
        found.unwrap_or_else(|| panic!("{name} in {idle}"))
    };
    let data = bytes(&volume("data")["usedBytes"]);
    assert!((2 << 20..3 << 20).contains(&data), "{idle}");
    assert!(volume("fast")["capacityBytes"].is_u64(), "{idle}");
    let ephemeral = bytes(&idle["ephemeral-storage"]["usedBytes"]);
    assert!((5 << 20..7 << 20).contains(&ephemeral), "{idle}");
    assert_eq!(idle["network"]["name"], "eth0", "{idle}");
    assert!(bytes(&idle["process_stats"]["process_count"]) >= 2);
    // Rates: of what was used between two samples, so the first one has none.
    let rate = |of: &Value| of["cpu"]["usageNanoCores"].as_u64();
    host.until("rates tell them apart", |host| {
        let all = summary(host, "");
        let rates = ["burn-node", "idle-node"].map(|name| rate(&pod(&all, name)));
        let machine = rate(&all["node"]);
        let are_told = match (rates, machine) {
            ([Some(burns), Some(sleeps)], Some(machine)) => {
                burns > MOST_OF_LITTLE && burns > 10 * sleeps && machine >= burns / 2
            }
            _ => false,
        };
        (are_told, format!("{rates:?} {machine:?}"))
    });
    let names: Vec<&Value> = full["node"]["systemContainers"]
        .as_array()
        .expect("groups")
        .iter()
        .map(|g| &g["name"])
        .collect();
    assert!(names.contains(&&json!("pods")) && names.contains(&&json!("runtime")));
    assert!(full["node"]["fs"]["usedBytes"].is_u64());
    assert!(full["node"]["runtime"]["imageFs"]["usedBytes"].is_u64());

    let text = get(&host, "/metrics/cadvisor");
    let received = samples(&text, "container_network_receive_bytes_total");
    assert!(
        received
            .keys()
            .any(|k| k.contains("pod=\"idle-node\"") && k.contains("interface=\"eth0\"")),
        "{received:?}"
    );
    assert!(text.contains("container_fs_usage_bytes{container=\"main\""));
    assert!(text.contains("\nmachine_memory_bytes "));
    // PSI-01
    let pressed = samples(&text, "container_pressure_cpu_waiting_seconds_total");
    let counted = std::fs::read_to_string("/proc/pressure/cpu").is_ok();
    assert_eq!(
        pressed.keys().any(|k| k.contains("id=\"/\"")),
        counted,
        "{pressed:?}"
    );

    never_read(&host);
    host.finish();
}

/// Clients that do not read cost a sample each, and no more of them are served than that.
fn never_read(host: &Host) {
    let before = anonymous_kib(host.agent_pid());
    let deaf: Vec<UnixStream> = (0..DEAF).map(|_| ask(host, "/metrics/cadvisor")).collect();
    for mut stream in &deaf {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("the answer begins");
    }
    let grown = anonymous_kib(host.agent_pid()).saturating_sub(before);
    assert!(grown < GROWTH_KIB, "grown by {grown} KiB");
    drop(deaf);
    host.until("others are served again", |host| {
        let text = get(host, "/metrics/resource");
        (text.contains("node_cpu_usage_seconds_total"), text)
    });
}

fn ask(host: &Host, target: &str) -> UnixStream {
    let mut stream = UnixStream::connect(host.path("run/picolet.sock")).expect("socket");
    let head = format!("GET {target} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).expect("request");
    stream
}

pub(crate) fn get(host: &Host, target: &str) -> String {
    let mut text = String::new();
    ask(host, target).read_to_string(&mut text).expect("answer");
    let (_, body) = text.split_once("\r\n\r\n").expect("a body");
    body.to_owned()
}

pub(crate) fn summary(host: &Host, query: &str) -> Value {
    let text = get(host, &format!("/stats/summary{query}"));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

pub(crate) fn pod(summary: &Value, name: &str) -> Value {
    let pods = summary["pods"].as_array().expect("pods");
    let found = pods.iter().find(|p| p["podRef"]["name"] == name);
    found.unwrap_or_else(|| panic!("{summary}")).clone()
}

pub(crate) fn container(pod: &Value, name: &str) -> Value {
    let all = pod["containers"].as_array().expect("containers");
    let found = all.iter().find(|c| c["name"] == name);
    found.unwrap_or_else(|| panic!("{pod}")).clone()
}

fn cpu_ns(of: &Value) -> u64 {
    of["cpu"]["usageCoreNanoSeconds"].as_u64().unwrap_or(0)
}

/// Values of one family by their labels.
pub(crate) fn samples(text: &str, family: &str) -> BTreeMap<String, f64> {
    text.lines()
        .filter_map(|line| line.strip_prefix(family))
        .filter(|rest| rest.starts_with(['{', ' ']))
        .map(|rest| {
            let end = rest.rfind('}').map_or(0, |at| at + 1);
            let (labels, value) = rest.split_at(end);
            let value = value.split_whitespace().next().and_then(|v| v.parse().ok());
            (labels.to_owned(), value.expect("a number"))
        })
        .collect()
}

/// Heap, stacks and what was written of the program's data, KiB. The agents of other tests share the rest, and come and go.
pub(crate) fn anonymous_kib(pid: i32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("smaps");
    let line = text.lines().find_map(|l| l.strip_prefix("Anonymous:"));
    let kib = line.and_then(|l| l.split_whitespace().next()?.parse().ok());
    kib.expect("Anonymous")
}
