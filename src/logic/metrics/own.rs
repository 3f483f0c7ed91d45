//! `/metrics`: what the agent counts of its own work, under a kubelet's names (MET-01 to MET-06) where a kubelet counts the
//! same, under `picolet_` otherwise.

use alloc::{collections::BTreeMap, string::String};
use core::time::Duration;

use super::{
    evictions::Evictions,
    exposition::{Kind, Labels, Samples, Text, Value},
    histogram::{DEFAULT, Histogram, OPERATION, POD_START},
    plugins::Plugins,
};
use crate::{
    api::{
        Wall,
        cri::FsInfo,
        link::{LinkBytes, LinkClass},
    },
    check::Disk,
    eviction::Conditions,
    housekeeping::{Gauges, Totals, WorkConfig},
    pleg::RunningCounts,
};

/// Calls to the runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "named like the methods")]
pub enum Operation {
    Status,
    ListPods,
    PodStatus,
    RunPodSandbox,
    StopPodSandbox,
    RemovePodSandbox,
    CreateContainer,
    StartContainer,
    StopContainer,
    RemoveContainer,
    ReopenLog,
    UpdateContainer,
    ExecSync,
    Exec,
    Attach,
    PortForward,
    ImageStatus,
    ListImages,
    PullImage,
    RemoveImage,
    ImageFsInfo,
    ListPodUsage,
    WritableLayer,
    UpdatePodCidrs,
}

impl Operation {
    /// The label `operation_type` of each, in order: a kubelet's words.
    const LABELS: [&'static str; 24] = [
        "status",
        "list_podsandbox",
        "podsandbox_status",
        "run_podsandbox",
        "stop_podsandbox",
        "remove_podsandbox",
        "create_container",
        "start_container",
        "stop_container",
        "remove_container",
        "reopen_container_log",
        "update_container",
        "exec_sync",
        "exec",
        "attach",
        "port_forward",
        "image_status",
        "list_images",
        "pull_image",
        "remove_image",
        "image_fs_info",
        "list_podsandbox_stats",
        "container_stats",
        "update_runtime_config",
    ];
}

/// What a container is in its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ContainerType {
    /// One of `containers`.
    Regular,
    /// One of `initContainers`.
    Init,
    /// One of `ephemeralContainers`.
    Ephemeral,
}

impl ContainerType {
    const LABELS: [&'static str; 3] = ["container", "init_container", "ephemeral_container"];
}

/// What a call of a pod worker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Brings the pod to what it should be.
    Sync,
    /// Ends it.
    Kill,
}

impl Work {
    const LABELS: [&'static str; 2] = ["sync", "kill"];
}

#[derive(Clone, Copy, Debug, Default)]
struct Calls {
    errors: u64,
    took: Histogram<14>,
}

/// Everything that is counted while the agent works.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    calls: [Calls; Operation::LABELS.len()],
    relist: Histogram<11>,
    relist_interval: Histogram<11>,
    relist_seen: Wall,
    discarded_events: u64,
    pod_start: Histogram<25>,
    work: [Histogram<11>; Work::LABELS.len()],
    started: [u64; ContainerType::LABELS.len()],
    /// By kind and reason, of which there are few: they are names in this program.
    start_errors: BTreeMap<(ContainerType, &'static str), u64>,
    /// By reason; few as well.
    rejections: BTreeMap<&'static str, u64>,
    /// Pods that the node itself ended.
    evictions: Evictions,
    plugins: Plugins,
}
const _: () = assert!(size_of::<Counters>() <= 4096, "one in an agent");

impl Counters {
    /// A call to the runtime came back.
    pub fn called(&mut self, operation: Operation, took: Duration, ok: bool) {
        let calls = &mut self.calls[operation as usize];
        calls.took.observe(&OPERATION, took);
        calls.errors += u64::from(!ok);
    }

    /// A relist ended; `since` the one before began.
    pub fn relisted(&mut self, took: Duration, since: Option<Duration>, at: Wall) {
        self.relist.observe(&DEFAULT, took);
        if let Some(since) = since {
            self.relist_interval.observe(&DEFAULT, since);
        }
        self.relist_seen = at;
    }

    /// So many events of pods found no room, in all.
    pub const fn discarded(&mut self, events: u64) {
        self.discarded_events = events;
    }

    /// Admission refused a pod (ADM-03).
    pub fn rejected(&mut self, reason: &'static str) {
        *self.rejections.entry(reason).or_default() += 1;
    }

    /// Pods that the node itself ends are counted here.
    pub const fn evictions(&mut self) -> &mut Evictions {
        &mut self.evictions
    }

    /// Device plugins are counted here.
    pub const fn plugins(&mut self) -> &mut Plugins {
        &mut self.plugins
    }

    /// A pod runs, for the first time since it was seen.
    pub fn pod_started(&mut self, took: Duration) {
        self.pod_start.observe(&POD_START, took);
    }

    /// A call of a pod worker ended.
    pub fn worked(&mut self, work: Work, took: Duration) {
        self.work[work as usize].observe(&DEFAULT, took);
    }

    /// A container was to be started; `Err`: why it was not.
    pub fn container_started(&mut self, kind: ContainerType, result: Result<(), &'static str>) {
        self.started[kind as usize] += 1;
        if let Err(reason) = result {
            *self.start_errors.entry((kind, reason)).or_default() += 1;
        }
    }
}

/// What the page is made of.
#[derive(Clone, Debug)]
pub struct Facts<'a> {
    /// Name of the node.
    pub node: &'a str,
    /// Version of the agent.
    pub version: &'a str,
    /// Version of the control groups.
    pub cgroup_version: u64,
    /// When the agent started.
    pub started_at: Wall,
    /// Its own figures; `None`: they could not be read.
    pub process: Option<Process>,
    /// Set with every pass of housekeeping.
    pub gauges: Gauges,
    /// Only grow.
    pub totals: Totals,
    /// Of the last relist.
    pub running: RunningCounts,
    /// Places of the pod table: taken, and all.
    pub slots: [u64; 2],
    /// Probes that began more than a period late.
    pub probes_late: u64,
    /// Answers with figures under way.
    pub readers: u64,
    /// Since when the apiserver has not answered; `None` without one, or before its first answer.
    pub apiserver_age: Option<Duration>,
    /// The tunnel; `None`: there is none.
    pub tunnel: Option<TunnelFigures>,
    /// What went over the link.
    pub link: LinkBytes,
    /// The machine below.
    pub machine: Machine,
    /// Everything else.
    pub counters: &'a Counters,
}

/// What is counted of a tunnel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TunnelFigures {
    /// Streams that are open.
    pub streams: u64,
    /// Dials that became connections.
    pub opened: u64,
    /// Dials that were too many, or came too late.
    pub refused: u64,
    /// Dials that were meant for others.
    pub misrouted: u64,
    /// Bytes of connections, from servers.
    pub bytes_in: u64,
    /// The same to them.
    pub bytes_out: u64,
}

/// What is told of the machine, because alarms need it and nobody else on a board tells it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// The node is ready.
    pub ready: bool,
    /// What it is short of.
    pub pressure: Conditions,
    /// Somebody keeps its clock right; `None`: the kernel does not say.
    pub clock_synchronized: Option<bool>,
    /// File system of the root directory.
    pub fs: Option<FsInfo>,
    /// The disk below it.
    pub disk: Option<Disk>,
    /// Seconds for which the client certificate still holds; `None`: the agent keeps none. The inner one: it has none yet.
    pub certificate_s: Option<Option<i64>>,
}

/// What a process uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// Processor time, nanoseconds.
    pub cpu_ns: u64,
    /// Memory that is mapped in, bytes.
    pub resident_bytes: u64,
    /// Open files.
    pub files: u64,
}

fn count(n: usize) -> Value {
    Value::Count(u64::try_from(n).unwrap_or(u64::MAX))
}

/// Writes a family of one sample.
fn one(text: &mut Text, name: &str, kind: Kind, help: &str, labels: Labels<'_>, value: Value) {
    text.family(name, kind, help, |s| s.put(labels, value, None));
}

/// Writes one sample for each of (not static, static).
fn by_static(s: &mut Samples<'_>, values: [Value; 2]) {
    for (label, value) in ["", "true"].into_iter().zip(values) {
        s.put(&[("static", label)], value, None);
    }
}

/// The page: about 20 KiB once everything has happened.
#[must_use]
pub fn page(facts: &Facts<'_>) -> String {
    let mut text = Text::default();
    let t = &mut text;
    pods(t, facts);
    work(t, facts.counters);
    runtime(t, facts.counters);
    agent(t, facts);
    machine(t, &facts.machine);
    text.0
}

/// Conditions that the Node has, whatever there is to be said of them.
const CONDITIONS: [&str; 4] = ["DiskPressure", "MemoryPressure", "PIDPressure", "Ready"];

fn machine(t: &mut Text, machine: &Machine) {
    use Kind::{Counter, Gauge};
    let n = Value::Count;
    t.family(
        "picolet_node_condition",
        Gauge,
        "Whether a condition of the node holds: 1, or 0.",
        |s| {
            for name in CONDITIONS {
                let holds = match name {
                    "Ready" => machine.ready,
                    name => machine.pressure.names().any(|holds| holds == name),
                };
                s.put(&[("condition", name)], n(holds.into()), None);
            }
        },
    );
    if let Some(synchronized) = machine.clock_synchronized {
        let help = "Whether somebody keeps the clock right (NTP, GPS): 1, or 0.";
        one(
            t,
            "picolet_clock_synchronized",
            Gauge,
            help,
            &[],
            n(synchronized.into()),
        );
    }
    if let Some(left) = machine.certificate_s {
        one(
            t,
            "kubelet_certificate_manager_client_ttl_seconds",
            Gauge,
            "Seconds for which the client certificate still holds.",
            &[],
            Value::Left(left),
        );
    }
    if let Some(fs) = machine.fs {
        for (name, help, value) in [
            (
                "picolet_filesystem_avail_bytes",
                "Bytes that are free for everybody on the file system of the root directory.",
                fs.available_bytes,
            ),
            (
                "picolet_filesystem_files",
                "Inodes of the file system of the root directory.",
                fs.inodes,
            ),
            (
                "picolet_filesystem_files_free",
                "Inodes that are free on it.",
                fs.inodes_free,
            ),
            (
                "picolet_filesystem_size_bytes",
                "Bytes of the file system of the root directory.",
                fs.capacity_bytes,
            ),
        ] {
            one(t, name, Gauge, help, &[], n(value));
        }
    }
    if let Some(disk) = &machine.disk {
        let labels = [("device", &*disk.name)];
        let help = "Bytes written to the disk of the root directory since the machine was started.";
        one(
            t,
            "picolet_disk_written_bytes_total",
            Counter,
            help,
            &labels,
            n(disk.written),
        );
        let help = "Whether the disk says that its spare blocks come to an end: 1, or 0.";
        one(
            t,
            "picolet_disk_at_its_end",
            Gauge,
            help,
            &labels,
            n(disk.at_its_end.into()),
        );
        if let Some(used) = disk.used_life {
            let help = "How much of the life of the disk is used at most, as it says: 1 is all.";
            one(
                t,
                "picolet_disk_used_life_ratio",
                Gauge,
                help,
                &labels,
                Value::Percent(used),
            );
        }
    }
}

fn pods(t: &mut Text, facts: &Facts<'_>) {
    use Kind::{Counter, Gauge};
    let (gauges, totals, running) = (&facts.gauges, &facts.totals, &facts.running);
    t.family(
        "kubelet_active_pods",
        Gauge,
        "Pods that count in admission.",
        |s| {
            by_static(s, gauges.active.map(count));
        },
    );
    t.family(
        "kubelet_desired_pods",
        Gauge,
        "Pods that are configured.",
        |s| {
            by_static(s, gauges.desired.map(count));
        },
    );
    one(
        t,
        "kubelet_mirror_pods",
        Gauge,
        "Mirror pods that the API has.",
        &[],
        count(gauges.mirrors),
    );
    t.family(
        "kubelet_working_pods",
        Gauge,
        "Pods that have a worker.",
        |s| {
            let states = ["sync", "terminating", "terminated"];
            for (lifecycle, counts) in states.into_iter().zip(gauges.working) {
                for ((config, is_static), n) in WorkConfig::LABELS.into_iter().zip(counts) {
                    let labels = [
                        ("config", config),
                        ("lifecycle", lifecycle),
                        ("static", is_static),
                    ];
                    s.put(&labels, count(n), None);
                }
            }
        },
    );
    one(
        t,
        "kubelet_orphaned_runtime_pods_total",
        Counter,
        "Pods found only in the runtime, and killed.",
        &[],
        Value::Count(totals.orphaned_runtime),
    );
    t.family(
        "kubelet_restarted_pods_total",
        Counter,
        "Pods that were removed and added again while they ended.",
        |s| {
            by_static(s, totals.restarted.map(Value::Count));
        },
    );
    one(
        t,
        "kubelet_running_pods",
        Gauge,
        "Pods with a usable sandbox.",
        &[],
        count(running.pods),
    );
    t.family(
        "kubelet_running_containers",
        Gauge,
        "Containers by state.",
        |s| {
            let states = [
                ("exited", running.exited),
                ("running", running.running),
                ("unknown", running.unknown),
            ];
            for (state, n) in states {
                s.put(&[("container_state", state)], count(n), None);
            }
        },
    );
}

fn work(t: &mut Text, counters: &Counters) {
    use Kind::{Counter, Histogram};
    let sandboxes = &counters.calls[Operation::RunPodSandbox as usize];
    one(
        t,
        "kubelet_started_pods_total",
        Counter,
        "Sandboxes that were to be made.",
        &[],
        Value::Count(sandboxes.took.count()),
    );
    one(
        t,
        "kubelet_started_pods_errors_total",
        Counter,
        "Sandboxes that could not be made.",
        &[],
        Value::Count(sandboxes.errors),
    );
    t.family(
        "kubelet_started_containers_total",
        Counter,
        "Containers that were to be started.",
        |s| {
            for (kind, n) in ContainerType::LABELS.iter().zip(counters.started) {
                s.put(&[("container_type", kind)], Value::Count(n), None);
            }
        },
    );
    t.family(
        "kubelet_started_containers_errors_total",
        Counter,
        "Containers that could not be started.",
        |s| {
            for ((kind, code), n) in &counters.start_errors {
                let labels = [
                    ("code", *code),
                    ("container_type", ContainerType::LABELS[*kind as usize]),
                ];
                s.put(&labels, Value::Count(*n), None);
            }
        },
    );
    t.family(
        "kubelet_admission_rejections_total",
        Counter,
        "Pods that admission refused.",
        |s| {
            for (reason, n) in &counters.rejections {
                s.put(&[("reason", *reason)], Value::Count(*n), None);
            }
        },
    );
    counters.evictions.write(t);
    counters.plugins.write(t);
    t.family(
        "kubelet_pod_start_duration_seconds",
        Histogram,
        "From a pod's arrival to its running.",
        |s| {
            counters.pod_start.write(&POD_START, &[], s);
        },
    );
    t.family(
        "kubelet_pod_worker_duration_seconds",
        Histogram,
        "Calls of pod workers.",
        |s| {
            for (work, took) in Work::LABELS.iter().zip(&counters.work) {
                took.write(&DEFAULT, &[("operation_type", work)], s);
            }
        },
    );
}

fn runtime(t: &mut Text, counters: &Counters) {
    use Kind::{Counter, Gauge, Histogram};
    let called = || {
        let all = Operation::LABELS.iter().zip(&counters.calls);
        all.filter(|(_, calls)| calls.took.count() > 0)
    };
    t.family(
        "kubelet_runtime_operations_total",
        Counter,
        "Calls to the runtime.",
        |s| {
            for (label, calls) in called() {
                s.put(
                    &[("operation_type", label)],
                    Value::Count(calls.took.count()),
                    None,
                );
            }
        },
    );
    t.family(
        "kubelet_runtime_operations_errors_total",
        Counter,
        "Calls to the runtime that failed.",
        |s| {
            for (label, calls) in called().filter(|(_, calls)| calls.errors > 0) {
                s.put(
                    &[("operation_type", label)],
                    Value::Count(calls.errors),
                    None,
                );
            }
        },
    );
    t.family(
        "kubelet_runtime_operations_duration_seconds",
        Histogram,
        "How long calls to the runtime took.",
        |s| {
            for (label, calls) in called() {
                calls
                    .took
                    .write(&OPERATION, &[("operation_type", label)], s);
            }
        },
    );
    t.family(
        "kubelet_pleg_relist_duration_seconds",
        Histogram,
        "How long relists took.",
        |s| {
            counters.relist.write(&DEFAULT, &[], s);
        },
    );
    t.family(
        "kubelet_pleg_relist_interval_seconds",
        Histogram,
        "Time between relists.",
        |s| {
            counters.relist_interval.write(&DEFAULT, &[], s);
        },
    );
    one(
        t,
        "kubelet_pleg_last_seen_seconds",
        Gauge,
        "When the last relist ended, in seconds since 1970.",
        &[],
        Value::Time(counters.relist_seen),
    );
    one(
        t,
        "kubelet_pleg_discard_events",
        Counter,
        "Changes at the runtime that found no room; their pods are looked at later.",
        &[],
        Value::Count(counters.discarded_events),
    );
}

fn link(t: &mut Text, bytes: &LinkBytes) {
    t.family(
        "picolet_link_bytes_total",
        Kind::Counter,
        "Bytes of the agent that left this machine or came to it, with headers, by what they were for.",
        |s| {
            for (class, both) in LinkClass::NAMES.iter().zip(bytes.0) {
                for (direction, n) in ["in", "out"].into_iter().zip(both) {
                    let labels = [("class", *class), ("direction", direction)];
                    s.put(&labels, Value::Count(n), None);
                }
            }
        },
    );
}

fn of_tunnel(t: &mut Text, tunnel: &TunnelFigures) {
    use Kind::{Counter, Gauge};
    let n = Value::Count;
    one(
        t,
        "picolet_tunnel_streams",
        Gauge,
        "Streams to servers of the tunnel that are open.",
        &[],
        n(tunnel.streams),
    );
    let mut of_label = |name, help, label, values: &[(&str, u64)]| {
        t.family(name, Counter, help, |s| {
            for (value, count) in values {
                s.put(&[(label, *value)], n(*count), None);
            }
        });
    };
    of_label(
        "picolet_tunnel_dials_total",
        "Dials that came through the tunnel.",
        "result",
        &[
            ("opened", tunnel.opened),
            ("refused", tunnel.refused),
            ("misrouted", tunnel.misrouted),
        ],
    );
    of_label(
        "picolet_tunnel_bytes_total",
        "Bytes of connections that the tunnel carried.",
        "direction",
        &[("in", tunnel.bytes_in), ("out", tunnel.bytes_out)],
    );
}

fn agent(t: &mut Text, facts: &Facts<'_>) {
    use Kind::{Counter, Gauge};
    let n = Value::Count;
    one(
        t,
        "kubelet_node_name",
        Gauge,
        "The node's name; always 1.",
        &[("node", facts.node)],
        n(1),
    );
    one(
        t,
        "kubelet_cgroup_version",
        Gauge,
        "Version of the control groups.",
        &[],
        n(facts.cgroup_version),
    );
    one(
        t,
        "picolet_build_info",
        Gauge,
        "Version of the agent; always 1.",
        &[("version", facts.version)],
        n(1),
    );
    t.family(
        "picolet_pod_slots",
        Gauge,
        "Places of the pod table.",
        |s| {
            for (state, places) in ["all", "taken"]
                .into_iter()
                .zip([facts.slots[1], facts.slots[0]])
            {
                s.put(&[("state", state)], n(places), None);
            }
        },
    );
    one(
        t,
        "picolet_late_probes_total",
        Counter,
        "Probes that began more than a period late.",
        &[],
        n(facts.probes_late),
    );
    one(
        t,
        "picolet_figure_readers",
        Gauge,
        "Answers with figures under way, this one not counted.",
        &[],
        n(facts.readers),
    );
    if let Some(age) = facts.apiserver_age {
        let ns = u64::try_from(age.as_nanos()).unwrap_or(u64::MAX);
        one(
            t,
            "picolet_apiserver_answer_age_seconds",
            Gauge,
            "Time since the apiserver last answered.",
            &[],
            Value::Nanos(ns),
        );
    }
    link(t, &facts.link);
    if let Some(tunnel) = &facts.tunnel {
        of_tunnel(t, tunnel);
    }
    one(
        t,
        "process_start_time_seconds",
        Gauge,
        "When the agent was started, in seconds since 1970.",
        &[],
        Value::Time(facts.started_at),
    );
    if let Some(process) = facts.process {
        one(
            t,
            "process_cpu_seconds_total",
            Counter,
            "Processor time of the agent.",
            &[],
            Value::Nanos(process.cpu_ns),
        );
        one(
            t,
            "process_resident_memory_bytes",
            Gauge,
            "Memory of the agent that is mapped in.",
            &[],
            n(process.resident_bytes),
        );
        one(
            t,
            "process_open_fds",
            Gauge,
            "Open files of the agent.",
            &[],
            n(process.files),
        );
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    fn facts(counters: &Counters) -> Facts<'_> {
        let mut gauges = Gauges {
            desired: [2, 1],
            active: [1, 1],
            mirrors: 1,
            ..Gauges::default()
        };
        gauges.working[0][WorkConfig::Desired as usize] = 2;
        Facts {
            node: "node",
            version: "0.1.0",
            cgroup_version: 2,
            started_at: Wall::from_secs(1_700_000_000),
            process: Some(Process {
                cpu_ns: 1_230_000_000,
                resident_bytes: 4 << 20,
                files: 20,
            }),
            gauges,
            totals: Totals {
                restarted: [0, 3],
                orphaned_runtime: 1,
            },
            running: RunningCounts {
                pods: 2,
                running: 3,
                exited: 1,
                unknown: 0,
            },
            slots: [3, 140],
            probes_late: 0,
            readers: 0,
            apiserver_age: Some(Duration::from_millis(1500)),
            tunnel: Some(TunnelFigures {
                streams: 1,
                opened: 2,
                refused: 3,
                misrouted: 4,
                bytes_in: 5,
                bytes_out: 6,
            }),
            link: LinkBytes(core::array::from_fn(|n| {
                let n = u64::try_from(n).expect("small");
                [n, 10 * n]
            })),
            machine: Machine {
                ready: true,
                pressure: Conditions {
                    disk: true,
                    ..Conditions::default()
                },
                clock_synchronized: Some(false),
                fs: Some(FsInfo {
                    capacity_bytes: 8 << 30,
                    available_bytes: 1 << 30,
                    free_bytes: 2 << 30,
                    inodes: 1000,
                    inodes_free: 900,
                    read_only: false,
                }),
                disk: Some(Disk {
                    name: "mmcblk0".into(),
                    written: 3 << 30,
                    used_life: Some(30),
                    at_its_end: false,
                }),
                certificate_s: Some(None),
            },
            counters,
        }
    }

    #[test]
    fn the_page() {
        // MET-01 MET-02 MET-03 MET-04 MET-05 MET-06 ADM-03 PLEG-12
        let mut counters = Counters::default();
        let ms = Duration::from_millis;
        counters.called(Operation::RunPodSandbox, ms(40), true);
        counters.called(Operation::RunPodSandbox, ms(900), false);
        counters.called(Operation::ListPods, ms(0), true);
        counters.relisted(ms(1), None, Wall::from_secs(1_700_000_050));
        counters.relisted(ms(1), Some(ms(1001)), Wall::from_secs(1_700_000_051));
        counters.discarded(2);
        counters.rejected("OutOfcpu");
        counters.pod_started(ms(700));
        counters.worked(Work::Sync, ms(300));
        counters.container_started(ContainerType::Regular, Ok(()));
        counters.container_started(ContainerType::Init, Err("ErrImagePull"));
        super::super::sample::testing::golden("own.txt", &page(&facts(&counters)));
    }

    #[test]
    fn a_page_stays_small() {
        // Everything has happened: no label is a pod's.
        let mut counters = Counters::default();
        for n in 0..Operation::LABELS.len() {
            counters.calls[n].took.observe(&OPERATION, Duration::ZERO);
            counters.calls[n].errors = 1;
        }
        let text = page(&facts(&counters));
        assert!(text.len() < 64 * 1024, "{}", text.len());
        let families = text.lines().filter(|l| l.starts_with("# TYPE "));
        let mut names: Vec<&str> = families.collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all, "a family is told of once");
    }
}
