//! `/metrics`: counts of the agent's own work, under a kubelet's names (MET-01 to MET-06) where a kubelet counts the
//! same, under `picolet_` otherwise.

use alloc::{collections::BTreeMap, string::String};
use core::time::Duration;

use super::{
    evictions::EvictionCounts,
    exposition::{MetricType, MetricsText, SampleValue, SampleWriter, families},
    histogram::{CONTAINERS, DEFAULT, Histogram, OPERATION, POD_START},
    plugins::PluginCounts,
    resizes::ResizeCounts,
};
use crate::{
    api::{
        WallTime,
        cri::FsInfo,
        link::{LinkBytes, LinkClass},
    },
    check::DiskWearFacts,
    eviction::PressureConditions,
    housekeeping::{PodGauges, PodTotals, WorkConfig},
    pleg::RunningCounts,
};

/// Calls to the runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "named like the methods")]
pub enum RuntimeOperation {
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
    UpdatePodSandbox,
    CheckpointContainer,
}

impl RuntimeOperation {
    /// The label `operation_type` of each, in order: a kubelet's words.
    const LABELS: [&'static str; 26] = [
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
        "update_podsandbox_resources",
        "checkpoint_container",
    ];
}

/// Kind of a container in its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ContainerType {
    /// Container of `containers`.
    Regular,
    /// Container of `initContainers`.
    Init,
    /// Container of `ephemeralContainers`.
    Ephemeral,
}

impl ContainerType {
    const LABELS: [&'static str; 3] = ["container", "init_container", "ephemeral_container"];
}

/// Kind of a call of a pod worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerCallKind {
    /// Sync: brings the pod to its desired state.
    Sync,
    /// Kill: ends the pod.
    Kill,
}

impl WorkerCallKind {
    const LABELS: [&'static str; 2] = ["sync", "kill"];
}

#[derive(Clone, Copy, Debug, Default)]
struct OperationCounts {
    errors: u64,
    took: Histogram<14>,
}

/// Counters that the agent keeps while it works.
#[derive(Clone, Debug, Default)]
pub struct AgentCounters {
    calls: [OperationCounts; RuntimeOperation::LABELS.len()],
    relist: Histogram<11>,
    relist_interval: Histogram<11>,
    relist_seen: WallTime,
    discarded_events: u64,
    pod_start: Histogram<25>,
    worker_start: Histogram<11>,
    containers: Histogram<5>,
    work: [Histogram<11>; WorkerCallKind::LABELS.len()],
    started: [u64; ContainerType::LABELS.len()],
    /// Failed starts by kind and reason. The reasons are names in this program: there are few.
    start_errors: BTreeMap<(ContainerType, &'static str), u64>,
    image_volumes: ImageVolumeCounts,
    /// Rejected pods by reason; there are few reasons.
    rejections: BTreeMap<&'static str, u64>,
    /// Pods that the node itself ended.
    evictions: EvictionCounts,
    plugins: PluginCounts,
    resizes: ResizeCounts,
    /// Containers that asked for processors of their own, and those that did not get them.
    pinning: [u64; 2],
}
const _: () = assert!(size_of::<AgentCounters>() <= 4096, "one in an agent");

impl AgentCounters {
    /// Counts a call to the runtime that came back.
    pub fn count_runtime_call(&mut self, operation: RuntimeOperation, took: Duration, ok: bool) {
        let calls = &mut self.calls[operation as usize];
        calls.took.observe(&OPERATION, took);
        calls.errors += u64::from(!ok);
    }

    /// Counts a relist that ended; `since`: time since the one before began.
    pub fn count_relist(&mut self, took: Duration, since: Option<Duration>, at: WallTime) {
        self.relist.observe(&DEFAULT, took);
        if let Some(since) = since {
            self.relist_interval.observe(&DEFAULT, since);
        }
        self.relist_seen = at;
    }

    /// Sets the total number of pod events that found no room.
    pub const fn set_discarded_events(&mut self, events: u64) {
        self.discarded_events = events;
    }

    /// Counts a pod that admission rejected (ADM-03).
    pub fn count_rejection(&mut self, reason: &'static str) {
        *self.rejections.entry(reason).or_default() += 1;
    }

    /// Counters of pods that the node itself ends.
    pub const fn eviction_counts(&mut self) -> &mut EvictionCounts {
        &mut self.evictions
    }

    /// Counters of resizes.
    pub const fn resize_counts(&mut self) -> &mut ResizeCounts {
        &mut self.resizes
    }

    /// Counts containers of an admitted pod that ask for processors of their own (CPUM-23).
    pub fn count_pinning(&mut self, containers: usize, failed: bool) {
        self.pinning[0] += u64::try_from(containers).unwrap_or(0);
        self.pinning[1] += u64::from(failed);
    }

    /// Counters of device plugins.
    pub const fn plugin_counts(&mut self) -> &mut PluginCounts {
        &mut self.plugins
    }

    /// Counts a pod that runs for the first time since it was seen.
    pub fn count_pod_start(&mut self, took: Duration) {
        self.pod_start.observe(&POD_START, took);
    }

    /// Counts the first sync of a pod that was new; `took`: time since it was seen; `containers`: regular ones.
    pub fn count_worker_start(&mut self, took: Duration, containers: usize) {
        let containers = u64::try_from(containers).unwrap_or(u64::MAX);
        self.worker_start.observe(&DEFAULT, took);
        self.containers
            .observe(&CONTAINERS, Duration::from_secs(containers));
    }

    /// Counts a call of a pod worker that ended.
    pub fn count_worker_call(&mut self, work: WorkerCallKind, took: Duration) {
        self.work[work as usize].observe(&DEFAULT, took);
    }

    /// Counts a start of a container; `Err`: the reason why it failed.
    pub fn count_container_start(&mut self, kind: ContainerType, result: Result<(), &'static str>) {
        self.started[kind as usize] += 1;
        if let Err(reason) = result {
            *self.start_errors.entry((kind, reason)).or_default() += 1;
        }
    }

    /// Counts the images that a container which was to start mounts as volumes; `mounted`: `None` if it did not come to
    /// that.
    pub const fn count_image_volumes(&mut self, volumes: u64, mounted: Option<bool>) {
        let counts = &mut self.image_volumes;
        counts.requested += volumes;
        match mounted {
            Some(true) => counts.mounted += volumes,
            // The runtime stops at the first that it cannot mount.
            Some(false) => counts.failed += 1,
            None => {}
        }
    }
}

/// Images as volumes: how often containers were to start with one, and how the mounts ended (OAV-03).
#[derive(Clone, Copy, Debug, Default)]
struct ImageVolumeCounts {
    requested: u64,
    mounted: u64,
    failed: u64,
}

/// Figures from which the page is made.
#[derive(Clone, Debug)]
pub struct AgentMetricFacts<'a> {
    /// Name of the node.
    pub node: &'a str,
    /// Version of the agent.
    pub version: &'a str,
    /// Version of the control groups.
    pub cgroup_version: u64,
    /// Start of the agent.
    pub started_at: WallTime,
    /// Usage of the agent; `None`: it could not be read.
    pub process: Option<ProcessUsage>,
    /// Gauges, set with every pass of housekeeping.
    pub gauges: PodGauges,
    /// Totals, which only grow.
    pub totals: PodTotals,
    /// Counts of the last relist.
    pub running: RunningCounts,
    /// Slots of the pod table: taken ones, and all.
    pub slots: [u64; 2],
    /// Number of probes that began more than a period late.
    pub probes_late: u64,
    /// Number of requests for metrics under way.
    pub readers: u64,
    /// Time since the apiserver last answered; `None` without one, or before its first answer.
    pub apiserver_age: Option<Duration>,
    /// Traffic of the link.
    pub link: LinkBytes,
    /// Figures of the machine.
    pub machine: MachineFigures,
    /// Counters of the agent's work.
    pub counters: &'a AgentCounters,
}

/// Figures of the machine that alarms need and that no other program on a board exports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineFigures {
    /// Set if the node is ready.
    pub ready: bool,
    /// Pressure conditions of the node.
    pub pressure: PressureConditions,
    /// Set if the clock is kept right (NTP, GPS); `None`: the kernel does not say.
    pub clock_synchronized: Option<bool>,
    /// File system of the root directory.
    pub fs: Option<FsInfo>,
    /// Disk below that file system.
    pub disk: Option<DiskWearFacts>,
    /// Seconds for which the client certificate is still valid. `None`: the agent keeps none. `Some(None)`: it has none
    /// yet.
    pub certificate_s: Option<Option<i64>>,
}

/// Usage of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessUsage {
    /// Processor time, nanoseconds.
    pub cpu_ns: u64,
    /// Memory that is mapped in, bytes.
    pub resident_bytes: u64,
    /// Open files.
    pub files: u64,
}

/// Metric family of the page.
struct AgentFamily {
    name: &'static str,
    kind: MetricType,
    help: &'static str,
    samples: fn(&AgentMetricFacts<'_>, &mut SampleWriter<'_>),
}

/// Writes the page: about 20 KiB once all families have samples.
#[must_use]
pub fn agent_page(facts: &AgentMetricFacts<'_>) -> String {
    let mut text = MetricsText::default();
    for family in FAMILIES {
        let samples = |s: &mut SampleWriter<'_>| (family.samples)(facts, s);
        text.write_family(family.name, family.kind, family.help, samples);
    }
    text.0
}

/// Families of the page: about pods, the work on them, the runtime, the agent, the machine.
const FAMILIES: &[AgentFamily] = families![AgentFamily:
    "kubelet_active_pods" Gauge "Pods that count in admission."
        |f, s| write_values_by_static(s, f.gauges.active);
    "kubelet_desired_pods" Gauge "Pods that are configured."
        |f, s| write_values_by_static(s, f.gauges.desired);
    "kubelet_mirror_pods" Gauge "Mirror pods that the API has."
        |f, s| write_value(s, f.gauges.mirrors);
    "kubelet_working_pods" Gauge "Pods that have a worker."
        write_working_pods;
    "kubelet_orphaned_runtime_pods_total" Counter "Pods found only in the runtime, and killed."
        |f, s| write_value(s, f.totals.orphaned_runtime);
    "kubelet_restarted_pods_total" Counter "Pods that were removed and added again while they ended."
        |f, s| write_values_by_static(s, f.totals.restarted);
    "kubelet_running_pods" Gauge "Pods with a usable sandbox."
        |f, s| write_value(s, f.running.pods);
    "kubelet_running_containers" Gauge "Containers by state."
        |f, s| {
            let (exited, running, unknown) = (f.running.exited, f.running.running, f.running.unknown);
            let states = [("exited", exited), ("running", running), ("unknown", unknown)];
            write_labelled_values(s, "container_state", states);
        };

    "kubelet_started_pods_total" Counter "Sandboxes that were to be made."
        |f, s| write_value(s, f.counters.sandbox_calls().took.count());
    "kubelet_started_pods_errors_total" Counter "Sandboxes that could not be made."
        |f, s| write_value(s, f.counters.sandbox_calls().errors);
    "kubelet_started_containers_total" Counter "Containers that were to be started."
        |f, s| write_labelled_values(s, "container_type", ContainerType::LABELS.into_iter().zip(f.counters.started));
    "kubelet_started_containers_errors_total" Counter "Containers that could not be started."
        |f, s| for ((kind, code), n) in &f.counters.start_errors {
            let kind = ContainerType::LABELS[*kind as usize];
            s.write_sample(&[("code", *code), ("container_type", kind)], SampleValue::Count(*n), None);
        };
    "kubelet_image_volume_requested_total" Counter "Images that containers were to mount as volumes."
        |f, s| write_value(s, f.counters.image_volumes.requested);
    "kubelet_image_volume_mounted_succeed_total" Counter "Images that containers mounted as volumes."
        |f, s| write_value(s, f.counters.image_volumes.mounted);
    "kubelet_image_volume_mounted_errors_total" Counter "Images that could not be mounted as volumes."
        |f, s| write_value(s, f.counters.image_volumes.failed);
    "kubelet_admission_rejections_total" Counter "Pods that admission refused."
        |f, s| write_counts_by_name(s, "reason", &f.counters.rejections);
    "kubelet_evictions" Counter "Pods that were evicted, by what was short."
        |f, s| write_counts_by_name(s, "eviction_signal", &f.counters.evictions.evicted);
    "kubelet_eviction_stats_age_seconds" Histogram "Age of the figures for which a pod was evicted."
        |f, s| for (signal, ages) in &f.counters.evictions.ages {
            ages.write_series(&DEFAULT, &[("eviction_signal", *signal)], s);
        };
    "kubelet_preemptions" Counter "Pods that made room for critical ones, by what was lacking."
        |f, s| write_counts_by_name(s, "preemption_signal", &f.counters.evictions.preempted);
    "kubelet_container_requested_resizes_total" Counter "Amounts of containers that edits were to change."
        |f, s| f.counters.resizes.write_requested(s);
    "kubelet_pod_pending_resizes" Gauge "Resizes that were not accepted, by the reason."
        |f, s| write_labelled_values(s, "reason", ["deferred", "infeasible"].into_iter().zip(f.gauges.pending_resizes));
    "kubelet_pod_in_progress_resizes" Gauge "Resizes that were accepted and are not in force."
        |f, s| write_value(s, f.gauges.resizes_in_progress);
    "kubelet_cpu_manager_pinning_requests_total" Counter "Containers that asked for processors of their own."
        |f, s| write_value(s, f.counters.pinning[0]);
    "kubelet_cpu_manager_pinning_errors_total" Counter "Containers that did not get processors of their own."
        |f, s| write_value(s, f.counters.pinning[1]);
    "kubelet_pod_infeasible_resizes_total" Counter "Resizes that this node can never carry out."
        |f, s| write_counts_by_name(s, "reason_detail", &f.counters.resizes.infeasible);
    "kubelet_pod_deferred_accepted_resizes_total" Counter "Resizes that waited for room and got it, by what had the node look again."
        |f, s| write_counts_by_name(s, "retry_trigger", &f.counters.resizes.accepted_late);
    "kubelet_pod_resize_duration_milliseconds" Histogram "From the order to give a pod its resources to the last step."
        |f, s| f.counters.resizes.write_took(s);
    "kubelet_device_plugin_registration_total" Counter "Registrations of device plugins."
        |f, s| f.counters.plugins.write_registrations(s);
    "kubelet_device_plugin_alloc_duration_seconds" Histogram "Time of calls that ask a device plugin what a container gets."
        |f, s| f.counters.plugins.write_allocations(s);
    "kubelet_pod_start_duration_seconds" Histogram "From a pod's arrival to its running."
        |f, s| f.counters.pod_start.write_series(&POD_START, &[], s);
    "kubelet_pod_worker_start_duration_seconds" Histogram "From a pod's arrival to its first sync."
        |f, s| f.counters.worker_start.write_series(&DEFAULT, &[], s);
    "kubelet_containers_per_pod_count" Histogram "Containers of pods, once a pod, at its first sync."
        |f, s| f.counters.containers.write_series(&CONTAINERS, &[], s);
    "kubelet_pod_worker_duration_seconds" Histogram "Calls of pod workers."
        |f, s| for (work, took) in WorkerCallKind::LABELS.iter().zip(&f.counters.work) {
            took.write_series(&DEFAULT, &[("operation_type", work)], s);
        };

    "kubelet_runtime_operations_total" Counter "Calls to the runtime."
        |f, s| write_labelled_values(s, OPERATION_TYPE, f.counters.calls_made().map(|(label, calls)| (label, calls.took.count())));
    "kubelet_runtime_operations_errors_total" Counter "Calls to the runtime that failed."
        |f, s| {
            let failed = f.counters.calls_made().filter(|(_, calls)| calls.errors > 0);
            write_labelled_values(s, OPERATION_TYPE, failed.map(|(label, calls)| (label, calls.errors)));
        };
    "kubelet_runtime_operations_duration_seconds" Histogram "How long calls to the runtime took."
        |f, s| for (label, calls) in f.counters.calls_made() {
            calls.took.write_series(&OPERATION, &[(OPERATION_TYPE, label)], s);
        };
    "kubelet_pleg_relist_duration_seconds" Histogram "How long relists took."
        |f, s| f.counters.relist.write_series(&DEFAULT, &[], s);
    "kubelet_pleg_relist_interval_seconds" Histogram "Time between relists."
        |f, s| f.counters.relist_interval.write_series(&DEFAULT, &[], s);
    "kubelet_pleg_last_seen_seconds" Gauge "When the last relist ended, in seconds since 1970."
        |f, s| write_value(s, SampleValue::Time(f.counters.relist_seen));
    "kubelet_pleg_discard_events" Counter "Changes at the runtime that found no room; their pods are looked at later."
        |f, s| write_value(s, f.counters.discarded_events);

    "kubelet_node_name" Gauge "The node's name; always 1."
        |f, s| write_labelled_values(s, "node", [(f.node, 1_u64)]);
    "kubelet_cgroup_version" Gauge "Version of the control groups."
        |f, s| write_value(s, f.cgroup_version);
    "picolet_build_info" Gauge "Version of the agent; always 1."
        |f, s| write_labelled_values(s, "version", [(f.version, 1_u64)]);
    "picolet_pod_slots" Gauge "Places of the pod table."
        |f, s| write_labelled_values(s, "state", [("all", f.slots[1]), ("taken", f.slots[0])]);
    "picolet_late_probes_total" Counter "Probes that began more than a period late."
        |f, s| write_value(s, f.probes_late);
    "picolet_figure_readers" Gauge "Answers with figures under way, this one not counted."
        |f, s| write_value(s, f.readers);
    "picolet_apiserver_answer_age_seconds" Gauge "Time since the apiserver last answered."
        |f, s| write_optional_value(s, f.apiserver_age.map(|age| SampleValue::Nanos(u64::try_from(age.as_nanos()).unwrap_or(u64::MAX))));
    "picolet_link_bytes_total" Counter "Bytes of the agent that left this machine or came to it, with headers, by what they were for."
        |f, s| for (class, both) in LinkClass::NAMES.iter().zip(f.link.0) {
            for (direction, n) in ["in", "out"].into_iter().zip(both) {
                s.write_sample(&[("class", *class), ("direction", direction)], SampleValue::Count(n), None);
            }
        };
    "process_start_time_seconds" Gauge "When the agent was started, in seconds since 1970."
        |f, s| write_value(s, SampleValue::Time(f.started_at));
    "process_cpu_seconds_total" Counter "Processor time of the agent."
        |f, s| write_optional_value(s, f.process.map(|process| SampleValue::Nanos(process.cpu_ns)));
    "process_resident_memory_bytes" Gauge "Memory of the agent that is mapped in."
        |f, s| write_optional_value(s, f.process.map(|process| process.resident_bytes));
    "process_open_fds" Gauge "Open files of the agent."
        |f, s| write_optional_value(s, f.process.map(|process| process.files));

    "picolet_node_condition" Gauge "Whether a condition of the node holds: 1, or 0."
        |f, s| write_labelled_values(s, "condition", CONDITIONS.map(|name| (name, f.machine.has_pressure(name))));
    "picolet_clock_synchronized" Gauge "Whether somebody keeps the clock right (NTP, GPS): 1, or 0."
        |f, s| write_optional_value(s, f.machine.clock_synchronized);
    "kubelet_certificate_manager_client_ttl_seconds" Gauge "Seconds for which the client certificate still holds."
        |f, s| write_optional_value(s, f.machine.certificate_s.map(SampleValue::Left));
    "picolet_filesystem_avail_bytes" Gauge "Bytes that are free for everybody on the file system of the root directory."
        |f, s| write_optional_value(s, f.machine.fs.map(|fs| fs.available_bytes));
    "picolet_filesystem_files" Gauge "Inodes of the file system of the root directory."
        |f, s| write_optional_value(s, f.machine.fs.map(|fs| fs.inodes));
    "picolet_filesystem_files_free" Gauge "Inodes that are free on it."
        |f, s| write_optional_value(s, f.machine.fs.map(|fs| fs.inodes_free));
    "picolet_filesystem_size_bytes" Gauge "Bytes of the file system of the root directory."
        |f, s| write_optional_value(s, f.machine.fs.map(|fs| fs.capacity_bytes));
    "picolet_disk_written_bytes_total" Counter "Bytes written to the disk of the root directory since the machine was started."
        |f, s| write_disk_value(f, s, |disk| Some(SampleValue::Count(disk.written)));
    "picolet_disk_at_its_end" Gauge "Whether the disk says that its spare blocks come to an end: 1, or 0."
        |f, s| write_disk_value(f, s, |disk| Some(disk.at_its_end.into()));
    "picolet_disk_used_life_ratio" Gauge "How much of the life of the disk is used at most, as it says: 1 is all."
        |f, s| write_disk_value(f, s, |disk| disk.used_life.map(SampleValue::Percent));
];

/// Label of calls to the runtime.
const OPERATION_TYPE: &str = "operation_type";
/// Conditions of the Node, whether they hold or not.
const CONDITIONS: [&str; 4] = ["DiskPressure", "MemoryPressure", "PIDPressure", "Ready"];

impl AgentCounters {
    const fn sandbox_calls(&self) -> &OperationCounts {
        &self.calls[RuntimeOperation::RunPodSandbox as usize]
    }

    /// Kinds of calls that were made, with their labels.
    fn calls_made(&self) -> impl Iterator<Item = (&'static str, &OperationCounts)> {
        let all = RuntimeOperation::LABELS.into_iter().zip(&self.calls);
        all.filter(|(_, calls)| calls.took.count() > 0)
    }
}

impl MachineFigures {
    fn has_pressure(&self, condition: &str) -> bool {
        match condition {
            "Ready" => self.ready,
            name => self.pressure.condition_names().any(|holds| holds == name),
        }
    }
}

/// Writes the one sample of a family.
fn write_value(s: &mut SampleWriter<'_>, value: impl Into<SampleValue>) {
    s.write_sample(&[], value.into(), None);
}

/// Writes the one sample of a family, if there is a value.
fn write_optional_value(s: &mut SampleWriter<'_>, value: Option<impl Into<SampleValue>>) {
    if let Some(value) = value {
        write_value(s, value);
    }
}

/// Writes one sample for each value of a label.
fn write_labelled_values<'a, V: Into<SampleValue>>(
    s: &mut SampleWriter<'_>,
    label: &str,
    values: impl IntoIterator<Item = (&'a str, V)>,
) {
    for (text, value) in values {
        s.write_sample(&[(label, text)], value.into(), None);
    }
}

fn write_counts_by_name(
    s: &mut SampleWriter<'_>,
    label: &str,
    counts: &BTreeMap<&'static str, u64>,
) {
    write_labelled_values(s, label, counts.iter().map(|(name, n)| (*name, *n)));
}

/// Writes one sample for each of (not static, static).
fn write_values_by_static<V: Into<SampleValue>>(s: &mut SampleWriter<'_>, values: [V; 2]) {
    write_labelled_values(s, "static", ["", "true"].into_iter().zip(values));
}

fn write_disk_value(
    f: &AgentMetricFacts<'_>,
    s: &mut SampleWriter<'_>,
    value: fn(&DiskWearFacts) -> Option<SampleValue>,
) {
    if let Some(disk) = &f.machine.disk {
        write_labelled_values(s, "device", value(disk).map(|value| (&*disk.name, value)));
    }
}

fn write_working_pods(f: &AgentMetricFacts<'_>, s: &mut SampleWriter<'_>) {
    let states = ["sync", "terminating", "terminated"];
    for (lifecycle, counts) in states.into_iter().zip(f.gauges.working) {
        for ((config, is_static), n) in WorkConfig::LABELS.into_iter().zip(counts) {
            let labels = [
                ("config", config),
                ("lifecycle", lifecycle),
                ("static", is_static),
            ];
            s.write_sample(&labels, n.into(), None);
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use alloc::vec::Vec;

    use super::*;

    /// The page of an agent that has counted this.
    pub(in crate::metrics) fn page_of(counters: &AgentCounters) -> String {
        agent_page(&facts(counters))
    }

    fn facts(counters: &AgentCounters) -> AgentMetricFacts<'_> {
        let mut gauges = PodGauges {
            desired: [2, 1],
            active: [1, 1],
            mirrors: 1,
            ..PodGauges::default()
        };
        gauges.working[0][WorkConfig::Desired as usize] = 2;
        AgentMetricFacts {
            node: "node",
            version: "0.1.0",
            cgroup_version: 2,
            started_at: WallTime::from_unix_seconds(1_700_000_000),
            process: Some(ProcessUsage {
                cpu_ns: 1_230_000_000,
                resident_bytes: 4 << 20,
                files: 20,
            }),
            gauges,
            totals: PodTotals {
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
            link: LinkBytes(core::array::from_fn(|n| {
                let n = u64::try_from(n).expect("small");
                [n, 10 * n]
            })),
            machine: MachineFigures {
                ready: true,
                pressure: PressureConditions {
                    disk: true,
                    ..PressureConditions::default()
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
                disk: Some(DiskWearFacts {
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
        // MET-01 MET-02 MET-03 MET-04 MET-05 MET-06 ADM-03 PLEG-12 PW-39
        let mut counters = AgentCounters::default();
        let ms = Duration::from_millis;
        counters.count_runtime_call(RuntimeOperation::RunPodSandbox, ms(40), true);
        counters.count_runtime_call(RuntimeOperation::RunPodSandbox, ms(900), false);
        counters.count_runtime_call(RuntimeOperation::ListPods, ms(0), true);
        counters.count_relist(ms(1), None, WallTime::from_unix_seconds(1_700_000_050));
        counters.count_relist(
            ms(1),
            Some(ms(1001)),
            WallTime::from_unix_seconds(1_700_000_051),
        );
        counters.set_discarded_events(2);
        counters.count_rejection("OutOfcpu");
        counters.count_worker_start(ms(20), 3);
        counters.count_pod_start(ms(700));
        counters.count_worker_call(WorkerCallKind::Sync, ms(300));
        counters.count_container_start(ContainerType::Regular, Ok(()));
        counters.count_container_start(ContainerType::Init, Err("ErrImagePull"));
        counters.count_image_volumes(3, Some(true));
        counters.count_image_volumes(2, Some(false));
        counters.count_image_volumes(4, None);
        super::super::sample::testing::golden("own.txt", &agent_page(&facts(&counters)));
    }

    #[test]
    fn a_page_stays_small() {
        // All counters have samples: no label is a pod's.
        let mut counters = AgentCounters::default();
        for n in 0..RuntimeOperation::LABELS.len() {
            counters.calls[n].took.observe(&OPERATION, Duration::ZERO);
            counters.calls[n].errors = 1;
        }
        let text = agent_page(&facts(&counters));
        assert!(text.len() < 64 * 1024, "{}", text.len());
        let families = text.lines().filter(|l| l.starts_with("# TYPE "));
        let mut names: Vec<&str> = families.collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all, "a family is told of once");
    }
}
