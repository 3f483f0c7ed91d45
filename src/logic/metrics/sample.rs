//! Figures of machine, pods and containers at one time.

use alloc::{collections::BTreeMap, rc::Rc, string::String, vec::Vec};

use crate::api::{
    ContainerId, MonoTime, PodUid, WallTime,
    cri::FsInfo,
    stats::{
        CgroupUsage, ContainerDiskUsage, ContainerUsage, DiskUsage, InterfaceCounts, PodUsage,
        VolumeUsage,
    },
};

use super::rate::CpuRates;

/// Control group of the system's own, with its usage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SystemGroup {
    /// Name in statistics: `kubelet`, `runtime`, `pods`.
    pub name: &'static str,
    /// Path of the control group.
    pub cgroup: String,
    /// Time since which its usage is counted.
    pub started_at: WallTime,
    /// Usage of the group.
    pub usage: CgroupUsage,
    /// Rate of processor use, in billionths of a processor.
    pub nano_cores: Option<u64>,
}

/// A pod with the rates that belong to its figures.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodSample {
    /// The pod.
    pub pod: PodUsage,
    /// Rate of processor use, in billionths of a processor.
    pub nano_cores: Option<u64>,
    /// Rates of processor use of its containers, in their order.
    pub container_nano_cores: Vec<Option<u64>>,
}

/// Usage of disks when it was last counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskSample {
    /// Time of the count.
    pub at: WallTime,
    /// The file system of the root directory.
    pub node_fs: Option<FsInfo>,
    /// Device of the file system of the root directory.
    pub device: String,
    /// The file system of the images.
    pub image_fs: Option<FsInfo>,
    /// Size of the images, bytes.
    pub images_bytes: Option<u64>,
    /// Files of containers.
    pub containers: BTreeMap<ContainerId, ContainerDiskUsage>,
    /// Volumes that pods hold data in.
    pub volumes: BTreeMap<PodUid, Vec<VolumeUsage>>,
    /// The `hosts` files of pods.
    pub hosts: BTreeMap<PodUid, DiskUsage>,
}

/// All figures of one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsageSample {
    /// Name of the node.
    pub node: String,
    /// Time since which the agent counts.
    pub started_at: WallTime,
    /// The whole machine.
    pub machine: CgroupUsage,
    /// Rate of processor use, in billionths of a processor.
    pub nano_cores: Option<u64>,
    /// Memory of the machine, bytes.
    pub memory_bytes: u64,
    /// Processors, thousandths.
    pub cpu_milli: u64,
    /// Interfaces of the machine.
    pub network: Option<Vec<InterfaceCounts>>,
    /// Groups of the system.
    pub groups: Vec<SystemGroup>,
    /// Pods, sorted by UID.
    pub pods: Vec<PodSample>,
    /// Processes and threads of the machine.
    pub tasks: Option<u64>,
    /// Highest possible number of processes and threads.
    pub max_pids: Option<u64>,
    /// Usage of disks; empty unless all details were requested.
    pub disk: Rc<DiskSample>,
    /// Set if the runtime could not list its pods.
    pub failed: bool,
}

impl UsageSample {
    /// Fills in the rates.
    pub fn with_rates(mut self, rates: &mut CpuRates, now: MonoTime) -> Self {
        let mut rate = |name: &str, usage: &CgroupUsage| {
            let total_ns = usage.cpu?.total_ns;
            rates.take_cpu_rate(name, total_ns, now)
        };
        self.nano_cores = rate("/", &self.machine);
        for group in &mut self.groups {
            group.nano_cores = rate(&group.cgroup, &group.usage);
        }
        for sample in &mut self.pods {
            let pod = &sample.pod;
            sample.nano_cores = rate(&pod.cgroup, &pod.usage);
            let of_containers = pod.containers.iter().map(|c| rate(&c.cgroup, &c.usage));
            sample.container_nano_cores = of_containers.collect();
        }
        self
    }
}

/// Rows of a page: the pods and containers of a sample.
#[derive(Clone, Debug)]
pub struct SampleRows {
    /// Sample with the figures.
    pub sample: Rc<UsageSample>,
    /// Index of the pod, and of the container in it, for each container.
    containers: Vec<(usize, usize)>,
}

impl SampleRows {
    /// Makes the index.
    #[must_use]
    pub fn new(sample: Rc<UsageSample>) -> Self {
        let pods = sample.pods.iter().enumerate();
        let containers = pods.flat_map(|(p, s)| (0..s.pod.containers.len()).map(move |c| (p, c)));
        Self {
            containers: containers.collect(),
            sample,
        }
    }

    /// Pod `n`.
    #[must_use]
    pub fn pod_at(&self, n: usize) -> Option<&PodUsage> {
        self.sample.pods.get(n).map(|s| &s.pod)
    }

    /// Size of a container's files; `None`: not known.
    #[must_use]
    pub fn container_disk_bytes(&self, id: &ContainerId) -> Option<u64> {
        let files = self.sample.disk.containers.get(id)?;
        let mut sum = files.layer?;
        sum += files.logs?;
        Some(sum.used_bytes)
    }

    /// Container `n` and its pod.
    #[must_use]
    pub fn container_at(&self, n: usize) -> Option<(&PodUsage, &ContainerUsage)> {
        let (pod, container) = *self.containers.get(n)?;
        let pod = self.pod_at(pod)?;
        Some((pod, pod.containers.get(container)?))
    }
}

#[cfg(test)]
pub(super) mod testing {
    use super::*;
    use crate::api::stats::{
        CpuThrottling, CpuUsage, MemoryUsage, PressureStall, ResourcePressure, SwapUsage,
        TrafficCounts,
    };
    use alloc::{boxed::Box, vec};

    const MIB: u64 = 1 << 20;
    const AT: WallTime = WallTime(1_700_000_100_250_000_000);

    fn usage(n: u64) -> CgroupUsage {
        CgroupUsage {
            at: AT,
            cpu: Some(CpuUsage {
                total_ns: n * 1_500_000_000,
                user_system_ns: Some((n * 1_000_000_000, n * 500_000_000)),
                throttled: Some(CpuThrottling {
                    periods: 10,
                    throttled_periods: 3,
                    throttled_ns: 700_000,
                }),
            }),
            memory: Some(MemoryUsage {
                usage_bytes: n * 10 * MIB,
                working_set_bytes: n * 8 * MIB,
                rss_bytes: Some(n * 4 * MIB),
                cache_bytes: Some(n * 6 * MIB),
                mapped_file_bytes: Some(0),
                faults: Some((n * 900, n)),
                limit_bytes: None,
            }),
            pids: Some(n),
            oom_kills: Some(0),
            ..CgroupUsage::default()
        }
    }

    fn container(name: &str, n: u64) -> ContainerUsage {
        ContainerUsage {
            id: alloc::format!("{n:032x}").into(),
            name: name.into(),
            image: "docker.io/library/busybox:1.36".into(),
            started_at: WallTime(1_700_000_001_000_000_000),
            cgroup: alloc::format!("/kubepods/burstable/pod0a1b/{n:032x}"),
            log_path: alloc::format!("/var/log/pods/{name}/0.log"),
            usage: usage(n),
        }
    }

    fn interface(name: &str) -> InterfaceCounts {
        InterfaceCounts {
            name: name.into(),
            rx: TrafficCounts {
                bytes: 1000,
                packets: 10,
                errors: 1,
                dropped: 2,
            },
            tx: TrafficCounts {
                bytes: 2000,
                packets: 20,
                errors: 0,
                dropped: 0,
            },
        }
    }

    fn disk() -> DiskSample {
        let used = |n: u64| DiskUsage {
            used_bytes: n * 4096,
            inodes_used: n,
        };
        let fs = FsInfo {
            capacity_bytes: 1024 * MIB,
            available_bytes: 512 * MIB,
            free_bytes: 600 * MIB,
            inodes: 65536,
            inodes_free: 60000,
            read_only: false,
        };
        let volume = |name: &str, ephemeral, n| VolumeUsage {
            name: name.into(),
            claim: None,
            ephemeral,
            used: Some(used(n)),
            fs: Some(fs),
        };
        let files = [(1, 2), (2, 3)].map(|(n, layer)| {
            let disk = ContainerDiskUsage {
                layer: Some(used(layer)),
                logs: Some(used(1)),
            };
            (alloc::format!("{n:032x}").into(), disk)
        });
        DiskSample {
            at: WallTime(1_700_000_090_000_000_000),
            node_fs: Some(fs),
            device: "/dev/mmcblk0p2".into(),
            image_fs: Some(fs),
            images_bytes: Some(4_096_000),
            containers: BTreeMap::from(files),
            volumes: BTreeMap::from([(
                "0a1b".into(),
                vec![
                    volume("data", true, 100),
                    volume("token", false, 5),
                    VolumeUsage {
                        claim: Some("music".into()),
                        ..volume("own", false, 7)
                    },
                ],
            )]),
            hosts: BTreeMap::from([("0a1b".into(), used(1))]),
        }
    }

    /// Two pods: one with a limited container and one that has all the kernel can count, one on the host's network of which
    /// nothing is known but its processor time.
    /// A sample with pressure on all three resources: of the machine, a pod and a container.
    pub(in crate::metrics) fn pressed_sample() -> UsageSample {
        let stall = |total_us| PressureStall {
            averages: [150, 25, 9999],
            total_us,
        };
        let pressure = |n| {
            Some(ResourcePressure {
                some: stall(n),
                full: stall(n + 1),
            })
        };
        let all = |n| Some(Box::new([pressure(n), pressure(n + 10), pressure(n + 20)]));
        let mut sample = sample();
        sample.machine.pressure = all(1_000_000);
        let pod = &mut sample.pods[0].pod;
        pod.usage.pressure = all(2_000_000);
        pod.containers[0].usage.pressure = all(3_000_000);
        sample
    }

    pub(in crate::metrics) fn sample() -> UsageSample {
        let mut limited = container("app", 1);
        limited.usage.swap = Some(SwapUsage {
            usage_bytes: 4096,
            limit_bytes: Some(MIB),
        });
        limited.usage.cpu_quota = Some((50_000, 100_000));
        limited.usage.cpu_shares = Some(512);
        if let Some(memory) = &mut limited.usage.memory {
            memory.limit_bytes = Some(64 * MIB);
        }
        let stall = PressureStall {
            averages: [150, 25, 0],
            total_us: 4711,
        };
        let pressure = Some(ResourcePressure {
            some: stall,
            full: PressureStall::default(),
        });
        limited.usage.pressure = Some(Box::new([pressure, pressure, None]));
        let first = PodUsage {
            uid: "0a1b".into(),
            name: "web".into(),
            namespace: "default".into(),
            started_at: WallTime(1_700_000_000_000_000_000),
            cgroup: "/kubepods/burstable/pod0a1b".into(),
            usage: usage(3),
            network: Some(vec![interface("eth0"), interface("net1")]),
            containers: vec![limited, container("side \"car\"", 2)],
        };
        let bare = |name: &str| ContainerUsage {
            usage: CgroupUsage {
                at: AT,
                cpu: Some(CpuUsage {
                    total_ns: 1,
                    ..CpuUsage::default()
                }),
                ..CgroupUsage::default()
            },
            ..container(name, 4)
        };
        let second = PodUsage {
            uid: "0c".into(),
            name: "host".into(),
            namespace: "kube-system".into(),
            started_at: WallTime(1_700_000_000_000_000_000),
            containers: vec![bare("agent")],
            ..PodUsage::default()
        };
        let pods = [first, second].map(|pod| PodSample {
            container_nano_cores: vec![Some(250_000_000); pod.containers.len()],
            nano_cores: Some(500_000_000),
            pod,
        });
        UsageSample {
            node: "node".into(),
            started_at: WallTime(1_699_999_000_000_000_000),
            machine: CgroupUsage {
                swap: Some(SwapUsage {
                    usage_bytes: 0,
                    limit_bytes: Some(0),
                }),
                ..usage(10)
            },
            nano_cores: None,
            memory_bytes: 1024 * MIB,
            cpu_milli: 4000,
            network: Some(vec![interface("eth0")]),
            groups: vec![SystemGroup {
                name: "pods",
                cgroup: "/kubepods".into(),
                started_at: WallTime(1_699_999_000_000_000_000),
                usage: usage(4),
                nano_cores: Some(1_000_000),
            }],
            pods: pods.into(),
            tasks: Some(120),
            max_pids: Some(7000),
            disk: Rc::new(disk()),
            failed: false,
        }
    }

    /// Compares with `tests/golden/metrics/<name>`; what is there instead is shown whole.
    pub(in crate::metrics) fn golden(name: &str, text: &str) {
        let goldens = [
            (
                "resource.txt",
                include_str!("../../../tests/golden/metrics/resource.txt"),
            ),
            (
                "cadvisor.txt",
                include_str!("../../../tests/golden/metrics/cadvisor.txt"),
            ),
            (
                "claims.txt",
                include_str!("../../../tests/golden/metrics/claims.txt"),
            ),
            (
                "containers.txt",
                include_str!("../../../tests/golden/metrics/containers.txt"),
            ),
            (
                "own.txt",
                include_str!("../../../tests/golden/metrics/own.txt"),
            ),
            (
                "probes.txt",
                include_str!("../../../tests/golden/metrics/probes.txt"),
            ),
            (
                "summary.json",
                include_str!("../../../tests/golden/metrics/summary.json"),
            ),
        ];
        let known = goldens.iter().find(|(known, _)| *known == name);
        let (_, want) = known.expect("a golden");
        assert!(text == *want, "{name} differs:\n{text}");
    }
}
