//! `/metrics/cadvisor`: the page that dashboards read (MET-08). A series for each control group with known figures,
//! with the labels that cAdvisor gives it; where a label does not apply it is empty.
//!
//! The page has those of cAdvisor's families whose figures this agent knows. Source: cAdvisor `metrics/prometheus.go`.

use alloc::{rc::Rc, vec::Vec};

use super::{
    exposition::{FamilyPage, MetricFamily, MetricType, SampleValue, SampleWriter, families},
    sample::{SampleRows, UsageSample},
};
use crate::api::{
    WallTime,
    stats::{CgroupUsage, InterfaceCounts, PressureStall, ResourcePressure, TrafficCounts},
};

/// The page of one sample.
#[must_use]
pub fn cadvisor_page(sample: Rc<UsageSample>) -> FamilyPage<SampleRows> {
    FamilyPage::new(FAMILIES, SampleRows::new(sample))
}

/// A control group.
struct CgroupRow<'a> {
    id: &'a str,
    container: &'a str,
    image: &'a str,
    name: &'a str,
    namespace: &'a str,
    pod: &'a str,
    started_at: WallTime,
    usage: &'a CgroupUsage,
    network: Option<&'a [InterfaceCounts]>,
    /// Size of the container's files, if it is known.
    disk_bytes: Option<u64>,
}

impl CgroupRow<'_> {
    /// Labels of the group, together with `more`, sorted.
    fn sorted_labels<'a>(&'a self, more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
        let mut all = Vec::with_capacity(8);
        all.extend_from_slice(&[
            ("container", self.container),
            ("id", self.id),
            ("image", self.image),
            ("name", self.name),
            ("namespace", self.namespace),
            ("pod", self.pod),
        ]);
        for label in more {
            let at = all.iter().position(|known| known.0 > label.0);
            all.insert(at.unwrap_or(all.len()), *label);
        }
        all
    }
}

/// Row `n`: the machine, the system's groups, pods, containers.
fn cgroup_row(rows: &SampleRows, n: usize) -> Option<CgroupRow<'_>> {
    let sample = &*rows.sample;
    let system = |id, usage, network| CgroupRow {
        id,
        container: "",
        image: "",
        name: "",
        namespace: "",
        pod: "",
        started_at: WallTime(0),
        usage,
        network,
        disk_bytes: None,
    };
    let Some(n) = n.checked_sub(1) else {
        return Some(system("/", &sample.machine, sample.network.as_deref()));
    };
    if let Some(group) = sample.groups.get(n) {
        return Some(system(&group.cgroup, &group.usage, None));
    }
    let n = n - sample.groups.len();
    if let Some(pod) = rows.pod_at(n) {
        return Some(CgroupRow {
            namespace: &pod.namespace,
            pod: &pod.name,
            started_at: pod.started_at,
            ..system(&pod.cgroup, &pod.usage, pod.network.as_deref())
        });
    }
    let (pod, container) = rows.container_at(n - sample.pods.len())?;
    Some(CgroupRow {
        container: &container.name,
        image: &container.image,
        name: &container.id,
        namespace: &pod.namespace,
        pod: &pod.name,
        started_at: container.started_at,
        disk_bytes: rows.container_disk_bytes(&container.id),
        ..system(&container.cgroup, &container.usage, None)
    })
}

/// Writes a sample of each group that has the figure.
fn write_each_group(
    rows: &SampleRows,
    n: usize,
    samples: &mut SampleWriter<'_>,
    value: impl Fn(&CgroupRow<'_>) -> Option<SampleValue>,
) -> bool {
    write_each_labelled_group(rows, n, samples, &[], value)
}

/// Writes a sample of each group that has the figure, with more labels.
fn write_each_labelled_group(
    rows: &SampleRows,
    n: usize,
    samples: &mut SampleWriter<'_>,
    more: &[(&str, &str)],
    value: impl Fn(&CgroupRow<'_>) -> Option<SampleValue>,
) -> bool {
    let Some(row) = cgroup_row(rows, n) else {
        return false;
    };
    if let Some(value) = value(&row) {
        samples.write_sample(&row.sorted_labels(more), value, Some(row.usage.at));
    }
    true
}

fn write_each_interface(
    rows: &SampleRows,
    n: usize,
    samples: &mut SampleWriter<'_>,
    count: impl Fn(&InterfaceCounts) -> u64,
) -> bool {
    let Some(row) = cgroup_row(rows, n) else {
        return false;
    };
    for interface in row.network.unwrap_or_default() {
        let labels = row.sorted_labels(&[("interface", &interface.name)]);
        let value = SampleValue::Count(count(interface));
        samples.write_sample(&labels, value, Some(rows.sample.machine.at));
    }
    true
}

fn write_received(
    rows: &SampleRows,
    n: usize,
    s: &mut SampleWriter<'_>,
    count: fn(&TrafficCounts) -> u64,
) -> bool {
    write_each_interface(rows, n, s, |i| count(&i.rx))
}

fn write_transmitted(
    rows: &SampleRows,
    n: usize,
    s: &mut SampleWriter<'_>,
    count: fn(&TrafficCounts) -> u64,
) -> bool {
    write_each_interface(rows, n, s, |i| count(&i.tx))
}

fn write_page_faults(rows: &SampleRows, n: usize, samples: &mut SampleWriter<'_>) -> bool {
    let Some(row) = cgroup_row(rows, n) else {
        return false;
    };
    if let Some((all, major)) = row.usage.memory.and_then(|m| m.faults) {
        for (kind, count) in [("pgfault", all), ("pgmajfault", major)] {
            let labels = row.sorted_labels(&[("failure_type", kind), ("scope", "hierarchy")]);
            samples.write_sample(&labels, SampleValue::Count(count), Some(row.usage.at));
        }
    }
    true
}

/// Writes a stall time of each group. `kind`: 0 for the processor, 1 for memory, 2 for disks.
fn write_stall_times(
    rows: &SampleRows,
    n: usize,
    samples: &mut SampleWriter<'_>,
    kind: usize,
    stall: fn(&ResourcePressure) -> &PressureStall,
) -> bool {
    write_each_group(rows, n, samples, |row| {
        let pressure = row.usage.pressure.as_ref()?[kind].as_ref()?;
        Some(SampleValue::Nanos(
            stall(pressure).total_us.saturating_mul(1000),
        ))
    })
}

fn cpu_value(
    row: &CgroupRow<'_>,
    ns: impl Fn(crate::api::stats::CpuUsage) -> Option<u64>,
) -> Option<SampleValue> {
    row.usage.cpu.and_then(ns).map(SampleValue::Nanos)
}

fn throttled_value(
    row: &CgroupRow<'_>,
    value: impl Fn(crate::api::stats::CpuThrottling) -> SampleValue,
) -> Option<SampleValue> {
    // A group without a quota is never throttled.
    row.usage.cpu_quota?;
    row.usage.cpu?.throttled.map(value)
}

fn memory_value(
    row: &CgroupRow<'_>,
    bytes: impl Fn(crate::api::stats::MemoryUsage) -> Option<u64>,
) -> Option<SampleValue> {
    row.usage.memory.and_then(bytes).map(SampleValue::Count)
}

/// Writes a sample about the machine.
fn write_machine_value(
    rows: &SampleRows,
    n: usize,
    samples: &mut SampleWriter<'_>,
    value: fn(&UsageSample) -> u64,
) -> bool {
    if n == 0 {
        samples.write_sample(&[], SampleValue::Count(value(&rows.sample)), None);
    }
    n == 0
}

/// Sorted by name.
const FAMILIES: &[MetricFamily<SampleRows>] = families![MetricFamily:
    "container_cpu_cfs_periods_total" Counter "Periods of the quota in which something ran."
        |r, n, s| write_each_group(r, n, s, |row| throttled_value(row, |t| SampleValue::Count(t.periods)));
    "container_cpu_cfs_throttled_periods_total" Counter "Periods of the quota that ended early."
        |r, n, s| write_each_group(r, n, s, |row| throttled_value(row, |t| SampleValue::Count(t.throttled_periods)));
    "container_cpu_cfs_throttled_seconds_total" Counter "Time for which the quota stopped what ran."
        |r, n, s| write_each_group(r, n, s, |row| throttled_value(row, |t| SampleValue::Nanos(t.throttled_ns)));
    "container_cpu_system_seconds_total" Counter "Processor time in the kernel, in core-seconds."
        |r, n, s| write_each_group(r, n, s, |row| cpu_value(row, |c| c.user_system_ns.map(|(_, system)| system)));
    "container_cpu_usage_seconds_total" Counter "Processor time, in core-seconds."
        |r, n, s| write_each_labelled_group(r, n, s, &[("cpu", "total")], |row| cpu_value(row, |c| Some(c.total_ns)));
    "container_cpu_user_seconds_total" Counter "Processor time in programs, in core-seconds."
        |r, n, s| write_each_group(r, n, s, |row| cpu_value(row, |c| c.user_system_ns.map(|(user, _)| user)));
    "container_fs_usage_bytes" Gauge "What the container has written and logged, in bytes on disk."
        |r, n, s| {
            let device = r.sample.disk.device.as_str();
            write_each_labelled_group(r, n, s, &[("device", device)], |row| row.disk_bytes.map(SampleValue::Count))
        };
    "container_last_seen" Gauge "When these figures were read, in seconds since 1970."
        |r, n, s| write_each_group(r, n, s, |row| (row.usage.at.0 > 0).then(|| SampleValue::Time(WallTime::from_unix_seconds(row.usage.at.unix_seconds()))));
    "container_memory_cache" Gauge "Page cache, in bytes."
        |r, n, s| write_each_group(r, n, s, |row| memory_value(row, |m| m.cache_bytes));
    "container_memory_failures_total" Counter "Page faults."
        write_page_faults;
    "container_memory_mapped_file" Gauge "Page cache that is mapped, in bytes."
        |r, n, s| write_each_group(r, n, s, |row| memory_value(row, |m| m.mapped_file_bytes));
    "container_memory_rss" Gauge "Anonymous memory, in bytes."
        |r, n, s| write_each_group(r, n, s, |row| memory_value(row, |m| m.rss_bytes));
    "container_memory_swap" Gauge "Swap, in bytes."
        |r, n, s| write_each_group(r, n, s, |row| row.usage.swap.map(|swap| SampleValue::Count(swap.usage_bytes)));
    "container_memory_usage_bytes" Gauge "Memory with all page cache, in bytes."
        |r, n, s| write_each_group(r, n, s, |row| memory_value(row, |m| Some(m.usage_bytes)));
    "container_memory_working_set_bytes" Gauge "Memory without page cache that was not used lately, in bytes."
        |r, n, s| write_each_group(r, n, s, |row| memory_value(row, |m| Some(m.working_set_bytes)));
    "container_network_receive_bytes_total" Counter "Bytes received."
        |r, n, s| write_received(r, n, s, |t| t.bytes);
    "container_network_receive_errors_total" Counter "Packets received with errors."
        |r, n, s| write_received(r, n, s, |t| t.errors);
    "container_network_receive_packets_dropped_total" Counter "Packets received and dropped."
        |r, n, s| write_received(r, n, s, |t| t.dropped);
    "container_network_receive_packets_total" Counter "Packets received."
        |r, n, s| write_received(r, n, s, |t| t.packets);
    "container_network_transmit_bytes_total" Counter "Bytes sent."
        |r, n, s| write_transmitted(r, n, s, |t| t.bytes);
    "container_network_transmit_errors_total" Counter "Packets that could not be sent."
        |r, n, s| write_transmitted(r, n, s, |t| t.errors);
    "container_network_transmit_packets_dropped_total" Counter "Packets to be sent and dropped."
        |r, n, s| write_transmitted(r, n, s, |t| t.dropped);
    "container_network_transmit_packets_total" Counter "Packets sent."
        |r, n, s| write_transmitted(r, n, s, |t| t.packets);
    "container_oom_events_total" Counter "Processes that were killed for want of memory."
        |r, n, s| write_each_group(r, n, s, |row| row.usage.oom_kills.map(SampleValue::Count));
    "container_pressure_cpu_stalled_seconds_total" Counter "Time in which everything waited for a processor."
        |r, n, s| write_stall_times(r, n, s, 0, |p| &p.full);
    "container_pressure_cpu_waiting_seconds_total" Counter "Time in which something waited for a processor."
        |r, n, s| write_stall_times(r, n, s, 0, |p| &p.some);
    "container_pressure_io_stalled_seconds_total" Counter "Time in which everything waited for a disk."
        |r, n, s| write_stall_times(r, n, s, 2, |p| &p.full);
    "container_pressure_io_waiting_seconds_total" Counter "Time in which something waited for a disk."
        |r, n, s| write_stall_times(r, n, s, 2, |p| &p.some);
    "container_pressure_memory_stalled_seconds_total" Counter "Time in which everything waited for memory."
        |r, n, s| write_stall_times(r, n, s, 1, |p| &p.full);
    "container_pressure_memory_waiting_seconds_total" Counter "Time in which something waited for memory."
        |r, n, s| write_stall_times(r, n, s, 1, |p| &p.some);
    "container_scrape_error" Gauge "1 if the figures of containers could not be read, else 0."
        |r, n, s| write_machine_value(r, n, s, |sample| sample.failed.into());
    "container_spec_cpu_period" Gauge "Period of the quota, in microseconds."
        |r, n, s| write_each_group(r, n, s, |row| row.usage.cpu_quota.map(|(_, period)| SampleValue::Count(period)));
    "container_spec_cpu_quota" Gauge "Quota of processor time in a period, in microseconds."
        |r, n, s| write_each_group(r, n, s, |row| row.usage.cpu_quota.map(|(quota, _)| SampleValue::Count(quota)));
    "container_spec_cpu_shares" Gauge "Share of the processors, beside others."
        |r, n, s| write_each_group(r, n, s, |row| row.usage.cpu_shares.map(SampleValue::Count));
    "container_spec_memory_limit_bytes" Gauge "Limit of memory, in bytes; 0 for none."
        |r, n, s| write_each_group(r, n, s, |row| memory_value(row, |m| Some(m.limit_bytes.unwrap_or(0))));
    "container_start_time_seconds" Gauge "When it was started, in seconds since 1970."
        |r, n, s| write_each_group(r, n, s, |row| (row.started_at.0 > 0 && row.usage.at.0 > 0).then_some(SampleValue::Time(row.started_at)));
    "container_threads" Gauge "Processes and threads."
        |r, n, s| write_each_group(r, n, s, |row| row.usage.pids.map(SampleValue::Count));
    "machine_cpu_cores" Gauge "Processors of the machine."
        |r, n, s| write_machine_value(r, n, s, |sample| sample.cpu_milli / 1000);
    "machine_memory_bytes" Gauge "Memory of the machine, in bytes."
        |r, n, s| write_machine_value(r, n, s, |sample| sample.memory_bytes);
];

#[cfg(test)]
mod tests {
    use super::{super::sample::testing, *};
    use alloc::string::String;

    #[test]
    fn the_page() {
        // MET-08
        let text: String = cadvisor_page(Rc::new(testing::sample())).collect();
        testing::golden("cadvisor.txt", &text);
        assert!(FAMILIES.is_sorted_by_key(|f| f.name));
    }

    #[test]
    fn pressure_is_shown_in_seconds() {
        // PSI-01
        let text: String = cadvisor_page(Rc::new(testing::pressed_sample())).collect();
        let found = |kind: &str, word: &str| -> Vec<&str> {
            let name = alloc::format!("container_pressure_{kind}_{word}_seconds_total");
            let counter = alloc::format!("# TYPE {name} counter\n");
            assert!(text.contains(&counter), "{name}");
            let lines = text.lines().filter_map(|line| line.strip_prefix(&*name));
            lines.filter_map(|line| line.split(' ').nth(1)).collect()
        };
        // The machine, the pod and its container. A group without figures has no sample.
        for (kind, waiting, stalled) in [
            ("cpu", ["1", "2", "3"], ["1.000001", "2.000001", "3.000001"]),
            (
                "memory",
                ["1.00001", "2.00001", "3.00001"],
                ["1.000011", "2.000011", "3.000011"],
            ),
            (
                "io",
                ["1.00002", "2.00002", "3.00002"],
                ["1.000021", "2.000021", "3.000021"],
            ),
        ] {
            assert_eq!(found(kind, "waiting"), waiting, "{kind}");
            assert_eq!(found(kind, "stalled"), stalled, "{kind}");
        }
        let machine = "container_pressure_io_waiting_seconds_total{container=\"\",id=\"/\",image=\"\",name=\"\",namespace=\"\",pod=\"\"} ";
        assert!(text.contains(machine), "{text}");
    }
}
