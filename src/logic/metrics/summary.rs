//! `/stats/summary` (MET-10 to MET-14). A figure that is not known is left out.
//!
//! The object comes in pieces, one for the node and one for each pod. Source: kubelet
//! `staging/src/k8s.io/kubelet/pkg/apis/stats/v1alpha1/types.go`.

use alloc::{
    format,
    rc::Rc,
    string::{String, ToString as _},
    vec::Vec,
};

use serde_json::{Map, Value, json};

use super::sample::{PodSample, SystemGroup, UsageSample};
use crate::api::{
    WallTime,
    cri::FsInfo,
    order::GatherExt as _,
    stats::{
        CgroupUsage, ContainerUsage, DiskUsage, InterfaceCounts, PressureStall, ResourcePressure,
        StatsDetail, VolumeUsage,
    },
};

/// The interface whose counts stand for a pod's network, by name.
const DEFAULT_INTERFACE: &str = "eth0";

/// The summary, piece by piece.
pub fn summary_pieces(
    sample: Rc<UsageSample>,
    detail: StatsDetail,
) -> impl Iterator<Item = String> {
    let pods = sample.pods.len();
    (0..pods + 2).map(move |n| match n {
        0 => format!("{{\"node\":{},\"pods\":[", node_summary(&sample, detail)),
        n if n <= pods => {
            let comma = if n == 1 { "" } else { "," };
            format!(
                "{comma}{}",
                pod_summary(&sample, &sample.pods[n - 1], detail)
            )
        }
        _ => "]}\n".into(),
    })
}

/// Makes an object of the fields that have a value.
fn object_of_present<const N: usize>(fields: [(&str, Option<Value>); N]) -> Value {
    let there = fields.into_iter().filter_map(|(k, v)| Some((k.into(), v?)));
    Value::Object(there.gather_items::<Map<_, _>>())
}

fn time_value(at: WallTime) -> Value {
    at.to_string().into()
}

fn node_summary(sample: &UsageSample, detail: StatsDetail) -> Value {
    let full = |value: Option<Value>| value.filter(|_| detail == StatsDetail::Full);
    let groups = sample
        .groups
        .iter()
        .map(|group| system_group_summary(group, detail));
    let machine = &sample.machine;
    let disk = &*sample.disk;
    let of_all = disk.node_fs.as_ref().map(DiskUsage::of_filesystem);
    let images = disk.image_fs.as_ref().map(|fs| {
        let mut fs = filesystem_stats(disk.at, Some(fs), None);
        if let Some(bytes) = disk.images_bytes {
            fs["usedBytes"] = bytes.into();
        }
        fs
    });
    let node_fs = disk.node_fs.as_ref();
    object_of_present([
        ("nodeName", Some(sample.node.as_str().into())),
        ("startTime", Some(time_value(sample.started_at))),
        ("systemContainers", Some(groups.collect())),
        ("cpu", cpu_stats(machine, sample.nano_cores)),
        ("memory", memory_stats(machine, Some(sample.memory_bytes))),
        ("swap", swap_stats(machine)),
        ("io", full(io_stats(machine))),
        (
            "network",
            full(network_stats(machine.at, sample.network.as_deref())),
        ),
        (
            "fs",
            full(node_fs.map(|fs| filesystem_stats(disk.at, Some(fs), of_all))),
        ),
        (
            "runtime",
            full(images.map(|fs| json!({ "imageFs": fs, "containerFs": fs }))),
        ),
        (
            "rlimit",
            full(Some(object_of_present([
                ("time", Some(time_value(machine.at))),
                ("maxpid", sample.max_pids.map(Value::from)),
                ("curproc", sample.tasks.map(Value::from)),
            ]))),
        ),
    ])
}

fn system_group_summary(group: &SystemGroup, detail: StatsDetail) -> Value {
    let usage = &group.usage;
    object_of_present([
        ("name", Some(group.name.into())),
        ("startTime", Some(time_value(group.started_at))),
        ("cpu", cpu_stats(usage, group.nano_cores)),
        ("memory", memory_stats(usage, None)),
        (
            "swap",
            swap_stats(usage).filter(|_| detail == StatsDetail::Full),
        ),
    ])
}

fn pod_summary(sample: &UsageSample, pod_sample: &PodSample, detail: StatsDetail) -> Value {
    let full = |value: Option<Value>| value.filter(|_| detail == StatsDetail::Full);
    let pod = &pod_sample.pod;
    let disk = &*sample.disk;
    let rates = &pod_sample.container_nano_cores;
    let containers = pod.containers.iter().enumerate();
    let containers = containers.map(|(n, c)| {
        let rate = rates.get(n).copied().flatten();
        container_summary(sample, c, rate, detail)
    });
    let volumes: &[VolumeUsage] = disk.volumes.get(&pod.uid).map_or(&[], Vec::as_slice);
    let volume = |v: &VolumeUsage| {
        let mut fs = filesystem_stats(disk.at, v.fs.as_ref(), v.used);
        fs["name"] = v.name.as_str().into();
        if let Some(claim) = &v.claim {
            fs["pvcRef"] = json!({ "name": claim, "namespace": pod.namespace });
        }
        fs
    };
    let counted = !disk.containers.is_empty();
    let processes = pod.usage.pids;
    object_of_present([
        (
            "podRef",
            Some(json!({ "name": pod.name, "namespace": pod.namespace, "uid": pod.uid.as_str() })),
        ),
        ("startTime", Some(time_value(pod.started_at))),
        ("containers", Some(containers.collect())),
        ("cpu", cpu_stats(&pod.usage, pod_sample.nano_cores)),
        ("memory", memory_stats(&pod.usage, None)),
        ("swap", swap_stats(&pod.usage)),
        ("io", full(io_stats(&pod.usage))),
        (
            "network",
            full(network_stats(pod.usage.at, pod.network.as_deref())),
        ),
        (
            "volume",
            full((!volumes.is_empty()).then(|| volumes.iter().map(volume).collect())),
        ),
        (
            "ephemeral-storage",
            full(
                counted
                    .then(|| {
                        let used = ephemeral_storage_usage(sample, pod_sample)?;
                        let fs = disk.node_fs.as_ref();
                        Some(filesystem_stats(disk.at, fs, Some(used)))
                    })
                    .flatten(),
            ),
        ),
        (
            "process_stats",
            full(processes.map(|count| json!({ "process_count": count }))),
        ),
    ])
}

/// Usage of the node's disk by the pod (MET-13); `None` if some of its files could not be counted.
#[must_use]
pub fn ephemeral_storage_usage(sample: &UsageSample, pod_sample: &PodSample) -> Option<DiskUsage> {
    let pod = &pod_sample.pod;
    let disk = &*sample.disk;
    let mut sum = disk.hosts.get(&pod.uid).copied().unwrap_or_default();
    for container in &pod.containers {
        let files = disk.containers.get(&container.id)?;
        sum += files.layer?;
        sum += files.logs?;
    }
    let volumes = disk.volumes.get(&pod.uid).into_iter().flatten();
    for volume in volumes.filter(|v| v.ephemeral) {
        sum += volume.used?;
    }
    Some(sum)
}

fn container_summary(
    sample: &UsageSample,
    container: &ContainerUsage,
    nano_cores: Option<u64>,
    detail: StatsDetail,
) -> Value {
    let full = |value: Option<Value>| value.filter(|_| detail == StatsDetail::Full);
    let usage = &container.usage;
    let disk = &*sample.disk;
    let files = disk
        .containers
        .get(&container.id)
        .copied()
        .unwrap_or_default();
    let fs = |info: &Option<FsInfo>, used: Option<DiskUsage>| {
        used.map(|used| filesystem_stats(disk.at, info.as_ref(), Some(used)))
    };
    object_of_present([
        ("name", Some(container.name.as_str().into())),
        ("startTime", Some(time_value(container.started_at))),
        ("cpu", cpu_stats(usage, nano_cores)),
        ("memory", memory_stats(usage, None)),
        ("swap", swap_stats(usage)),
        ("io", full(io_stats(usage))),
        ("rootfs", full(fs(&disk.image_fs, files.layer))),
        ("logs", full(fs(&disk.node_fs, files.logs))),
    ])
}

fn cpu_stats(usage: &CgroupUsage, nano_cores: Option<u64>) -> Option<Value> {
    let cpu = usage.cpu?;
    Some(object_of_present([
        ("time", Some(time_value(usage.at))),
        ("usageNanoCores", nano_cores.map(Value::from)),
        ("usageCoreNanoSeconds", Some(cpu.total_ns.into())),
        ("psi", psi_stats(usage, 0)),
    ]))
}

/// `capacity` stands for a limit that the machine has and a group's files do not tell.
fn memory_stats(usage: &CgroupUsage, capacity: Option<u64>) -> Option<Value> {
    let memory = usage.memory?;
    let limit = memory.limit_bytes.or(capacity);
    let available = limit.map(|limit| limit.saturating_sub(memory.working_set_bytes));
    Some(object_of_present([
        ("time", Some(time_value(usage.at))),
        ("availableBytes", available.map(Value::from)),
        ("usageBytes", Some(memory.usage_bytes.into())),
        ("workingSetBytes", Some(memory.working_set_bytes.into())),
        ("rssBytes", memory.rss_bytes.map(Value::from)),
        ("pageFaults", memory.faults.map(|(all, _)| all.into())),
        (
            "majorPageFaults",
            memory.faults.map(|(_, major)| major.into()),
        ),
        ("psi", psi_stats(usage, 1)),
    ]))
}

fn swap_stats(usage: &CgroupUsage) -> Option<Value> {
    let swap = usage.swap?;
    let available = swap
        .limit_bytes
        .map(|limit| limit.saturating_sub(swap.usage_bytes));
    Some(object_of_present([
        ("time", Some(time_value(usage.at))),
        ("swapAvailableBytes", available.map(Value::from)),
        ("swapUsageBytes", Some(swap.usage_bytes.into())),
    ]))
}

fn io_stats(usage: &CgroupUsage) -> Option<Value> {
    let psi = psi_stats(usage, 2)?;
    Some(json!({ "time": time_value(usage.at), "psi": psi }))
}

/// Pressure of a group. `kind`: 0 for the processor, 1 for memory, 2 for disks.
fn psi_stats(usage: &CgroupUsage, kind: usize) -> Option<Value> {
    let pressure: &ResourcePressure = usage.pressure.as_ref()?[kind].as_ref()?;
    let stall = |stall: &PressureStall| {
        let [avg10, avg60, avg300] = stall
            .averages
            .map(|hundredths| f64::from(hundredths) / 100.0);
        json!({ "total": stall.total_us, "avg10": avg10, "avg60": avg60, "avg300": avg300 })
    };
    Some(json!({ "full": stall(&pressure.full), "some": stall(&pressure.some) }))
}

fn network_stats(at: WallTime, interfaces: Option<&[InterfaceCounts]>) -> Option<Value> {
    let interfaces = interfaces?;
    let one = |i: &InterfaceCounts| {
        json!({
            "name": i.name, "rxBytes": i.rx.bytes, "rxErrors": i.rx.errors,
            "txBytes": i.tx.bytes, "txErrors": i.tx.errors,
        })
    };
    let default = interfaces.iter().find(|i| i.name == DEFAULT_INTERFACE);
    let mut all = default.map_or_else(|| json!({ "name": "" }), one);
    all["time"] = time_value(at);
    all["interfaces"] = interfaces.iter().map(one).collect();
    Some(all)
}

fn filesystem_stats(at: WallTime, fs: Option<&FsInfo>, used: Option<DiskUsage>) -> Value {
    // A file system without an inode table says 0 of 0.
    let inodes = fs.filter(|fs| fs.inodes > 0);
    object_of_present([
        ("time", Some(time_value(at))),
        ("availableBytes", fs.map(|fs| fs.available_bytes.into())),
        ("capacityBytes", fs.map(|fs| fs.capacity_bytes.into())),
        ("usedBytes", used.map(|used| used.used_bytes.into())),
        ("inodesFree", inodes.map(|fs| fs.inodes_free.into())),
        ("inodes", inodes.map(|fs| fs.inodes.into())),
        ("inodesUsed", used.map(|used| used.inodes_used.into())),
    ])
}

#[cfg(test)]
mod tests {
    use alloc::{string::String, vec::Vec};

    use super::{super::sample::testing, *};

    fn summary(detail: StatsDetail) -> Value {
        let text: String = summary_pieces(Rc::new(testing::sample()), detail).collect();
        serde_json::from_str(&text).expect("JSON")
    }

    #[test]
    fn the_whole_summary() {
        // MET-10 MET-11 MET-12 MET-13
        let text = serde_json::to_string_pretty(&summary(StatsDetail::Full)).expect("JSON");
        testing::golden("summary.json", &(text + "\n"));
    }

    #[test]
    fn pressure_has_averages_and_a_sum() {
        // PSI-02
        let text: String =
            summary_pieces(Rc::new(testing::pressed_sample()), StatsDetail::Full).collect();
        let all: Value = serde_json::from_str(&text).expect("JSON");
        let (node, pod) = (&all["node"], &all["pods"][0]);
        for (place, n) in [
            (node, 1_000_000),
            (pod, 2_000_000),
            (&pod["containers"][0], 3_000_000),
        ] {
            for (kind, more) in [("cpu", 0), ("memory", 10), ("io", 20)] {
                let stall = |total: u64| json!({ "total": total, "avg10": 1.5, "avg60": 0.25, "avg300": 99.99 });
                let wanted = json!({ "full": stall(n + more + 1), "some": stall(n + more) });
                assert_eq!(place[kind]["psi"], wanted, "{kind}");
            }
        }
        assert!(
            all["pods"][1]["containers"][0]["cpu"].get("psi").is_none(),
            "absent"
        );
        assert!(
            all["pods"][1]["containers"][0].get("io").is_none(),
            "absent"
        );
    }

    #[test]
    fn only_processor_and_memory() {
        // MET-14 SRV-16
        let all = summary(StatsDetail::Basic);
        let keys = |value: &Value| -> Vec<String> {
            value.as_object().expect("object").keys().cloned().collect()
        };
        assert_eq!(
            keys(&all["node"]),
            [
                "cpu",
                "memory",
                "nodeName",
                "startTime",
                "swap",
                "systemContainers"
            ]
        );
        let pod = &all["pods"][0];
        assert_eq!(
            keys(pod),
            ["containers", "cpu", "memory", "podRef", "startTime"]
        );
        let container = &pod["containers"][0];
        assert_eq!(
            keys(container),
            ["cpu", "memory", "name", "startTime", "swap"]
        );
        // Unknown figures are left out.
        assert_eq!(keys(&all["pods"][1]), ["containers", "podRef", "startTime"]);
        let text: String =
            summary_pieces(Rc::new(UsageSample::default()), StatsDetail::Full).collect();
        let none: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(none["pods"], json!([]));
    }
}
