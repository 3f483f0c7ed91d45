//! Values of cgroups (RES-01 to RES-14, CG-02, CG-07 to CG-15): the path of a pod's group, and the values of this group
//! and of its containers' groups. Writing is the part of `crate::cgroup`; containers' values travel through the OCI
//! runtime.

use alloc::{
    collections::BTreeMap,
    string::{String, ToString},
    vec::Vec,
};

use crate::api::cri::{CgroupDriver, LinuxResources};
use crate::api::oci::PodCgroup;
use crate::api::order::GatherExt;
use crate::api::pod_status::QosClass;
use crate::api::{Container, Pod, PodError, Quantity};
use crate::cpu_manager::{count_exclusive_containers, exclusive_cpus};
use crate::pod_kind;
use crate::pod_resources::{
    AmountKind, amount_in_base_unit, container_amount, containers_sum, pod_level_amount, pod_sum,
    pod_sum_without_overhead, stated_resource_names,
};
use crate::pod_writes::WriteLimits;

/// Fewest shares the kernel takes.
pub const MIN_SHARES: u64 = 2;
/// Most shares the kernel takes.
pub const MAX_SHARES: u64 = 262_144;
/// Shortest quota the kernel takes, microseconds.
pub const MIN_QUOTA_US: i64 = 1000;
/// Default of `cpuCFSQuotaPeriod`, microseconds.
pub const DEFAULT_PERIOD_US: u64 = 100_000;
/// oom_score_adj of Guaranteed and node-critical pods.
const GUARANTEED_OOM: i64 = -997;
/// "Unlimited" huge pages of the tiers, bytes.
const HUGETLB_UNLIMITED: u64 = 1 << 62;
/// Name of the group above all pods.
const KUBEPODS: &str = "kubepods";

/// Settings of the machine and the configuration that shape cgroup values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupSettings {
    /// Place of the pods' groups.
    pub tree: CgroupTree,
    /// `cpuCFSQuota`.
    pub cfs_quota: bool,
    /// `cpuCFSQuotaPeriod`, microseconds.
    pub cfs_period_us: u64,
    /// `cpuManagerPolicy` is `static`: containers may have processors of their own.
    pub static_cpus: bool,
    /// `podPidsLimit`; not positive means none.
    pub pod_pids_limit: i64,
    /// Limits on the rate at which a pod may write to the disk of the root directory.
    pub writes: WriteLimits,
    /// `singleProcessOOMKill`.
    pub single_process_oom_kill: bool,
    /// Memory is throttled and protected; `None`: neither.
    pub memory_qos: Option<MemoryQos>,
    /// `memorySwap.swapBehavior` is `LimitedSwap`.
    pub limited_swap: bool,
    /// Unified hierarchy.
    pub v2: bool,
    /// The kernel accounts swap (`memory.swap.max` or `memory.memsw.*` exists).
    pub swap_controller: bool,
    /// Memory of the machine, bytes.
    pub node_memory_bytes: i64,
    /// Swap of the machine, bytes.
    pub node_swap_bytes: i64,
    /// Huge page sizes of the machine, bytes.
    pub hugepage_sizes: Vec<u64>,
}

impl Default for CgroupSettings {
    fn default() -> Self {
        Self {
            tree: CgroupTree::default(),
            cfs_quota: true,
            cfs_period_us: DEFAULT_PERIOD_US,
            static_cpus: false,
            pod_pids_limit: -1,
            writes: WriteLimits::default(),
            single_process_oom_kill: false,
            memory_qos: None,
            limited_swap: false,
            v2: true,
            swap_controller: false,
            node_memory_bytes: 0,
            node_swap_bytes: 0,
            hugepage_sizes: Vec::new(),
        }
    }
}

/// Throttling and protection of memory (CG-16): only cgroup version 2 can do it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryQos {
    /// `memoryThrottlingFactor`, thousandths; `None`: no container is slowed down.
    pub throttling_permille: Option<i64>,
    /// `memoryReservationPolicy` is `TieredReservation`.
    pub reserves: bool,
    /// Allocatable memory of the pods together, bytes.
    pub allocatable_bytes: i64,
    /// Bytes of a page.
    pub page_bytes: i64,
}

/// Requests of all active pods together: they set the shares and the protection of the groups above the pods'.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodRequestTotals {
    /// CPU of Burstable ones, thousandths.
    pub burstable_milli: i64,
    /// Memory of Burstable pods, bytes.
    pub burstable_bytes: i64,
    /// Memory of Guaranteed pods, bytes.
    pub guaranteed_bytes: i64,
}

/// cpu.shares for a CPU request in thousandths (RES-01).
#[must_use]
pub fn cpu_shares(cpu_milli: i64) -> u64 {
    let milli = u64::try_from(cpu_milli).unwrap_or(0);
    (milli.saturating_mul(1024) / 1000).clamp(MIN_SHARES, MAX_SHARES)
}

/// CFS quota in microseconds for a CPU limit in thousandths (RES-02); 0 for no limit.
#[must_use]
pub fn cfs_quota_us(cpu_milli: i64, period_us: u64) -> i64 {
    if cpu_milli <= 0 {
        return 0;
    }
    let us = i128::from(cpu_milli) * i128::from(period_us) / 1000;
    i64::try_from(us).unwrap_or(i64::MAX).max(MIN_QUOTA_US)
}

/// Place of the pods' groups, and the driver that makes them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CgroupTree {
    /// `cgroupRoot`; empty or `/` for none.
    pub root: String,
    /// `cgroupDriver`.
    pub driver: CgroupDriver,
}

/// Suffix of the name of a systemd group.
const SLICE: &str = ".slice";
/// Prefix of the UID in the name of a pod's group.
const POD: &str = "pod";

impl CgroupTree {
    /// Absolute path of the group above all pods: `/kubepods` below `cgroupRoot`.
    #[must_use]
    pub fn kubepods_path(&self) -> String {
        self.join_path(&[])
    }

    /// Absolute path of a tier; Guaranteed pods have none and stand directly below `kubepods`.
    #[must_use]
    pub fn tier_path(&self, qos: QosClass) -> String {
        self.join_path(tier_name(qos))
    }

    /// Absolute path of a pod's group (RES-10, SVC-31). A UID that [`CgroupTree::is_unambiguous_uid`] refuses has no
    /// group of its own.
    #[must_use]
    pub fn pod_path(&self, qos: QosClass, uid: &str) -> String {
        let name = format!("{POD}{uid}");
        self.join_path(&[tier_name(qos), &[&name]].concat())
    }

    /// Returns true if a group's name tells this UID from all others: in a slice's name `_` stands for `-`.
    #[must_use]
    pub fn is_unambiguous_uid(&self, uid: &str) -> bool {
        self.driver == CgroupDriver::Cgroupfs || !uid.contains('_')
    }

    /// Returns the paths where the group of a pod may be, one for each tier.
    #[must_use]
    pub fn pod_paths_of_tiers(&self, uid: &str) -> [String; 3] {
        TIERS.map(|qos| self.pod_path(qos, uid))
    }

    /// The pod whose group in this tier is called `name`.
    #[must_use]
    pub fn pod_uid_of(&self, qos: QosClass, name: &str) -> Option<String> {
        if self.driver == CgroupDriver::Cgroupfs {
            return name.strip_prefix(POD).map(Into::into);
        }
        let tier = self.tier_path(qos);
        let tier = tier.rsplit('/').next()?.strip_suffix(SLICE)?;
        let own = name.strip_prefix(tier)?.strip_prefix('-')?;
        let uid = own.strip_prefix(POD)?.strip_suffix(SLICE)?;
        (!uid.contains('-')).then(|| uid.replace('_', "-"))
    }

    fn join_path(&self, below: &[&str]) -> String {
        let root = self.root.split('/').filter(|part| !part.is_empty());
        let parts = root.chain([KUBEPODS]).chain(below.iter().copied());
        let mut path = String::new();
        match self.driver {
            CgroupDriver::Cgroupfs => {
                for part in parts {
                    path.push('/');
                    path.push_str(part);
                }
            }
            CgroupDriver::Systemd => {
                let mut slice = String::new();
                for part in parts {
                    if !slice.is_empty() {
                        slice.push('-');
                    }
                    // A `-` would be a level.
                    slice.push_str(&part.replace('-', "_"));
                    path.push('/');
                    path.push_str(&slice);
                    path.push_str(SLICE);
                }
            }
        }
        path
    }
}

/// Classes of pods, in the order of their groups: Guaranteed ones stand directly below `kubepods`, above the tiers.
pub const TIERS: [QosClass; 3] = [
    QosClass::Guaranteed,
    QosClass::Burstable,
    QosClass::BestEffort,
];

const fn tier_name(qos: QosClass) -> &'static [&'static str] {
    match qos {
        QosClass::Guaranteed => &[],
        QosClass::Burstable => &["burstable"],
        QosClass::BestEffort => &["besteffort"],
    }
}

/// Path and values of a pod's group (RES-11).
#[must_use]
pub fn pod_cgroup(pod: &Pod, qos: QosClass, settings: &CgroupSettings) -> PodCgroup {
    let mut values = LinuxResources {
        cpu_shares: Some(MIN_SHARES),
        pids_limit: Some(settings.pod_pids_limit).filter(|&limit| limit > 0),
        hugepage_limits: hugepages(settings, |size| {
            hugepage_sum(pod, AmountKind::Requests, size).unwrap_or(0)
        }),
        ..LinuxResources::default()
    };
    if qos != QosClass::BestEffort {
        values.cpu_shares = Some(cpu_shares(
            pod_sum(pod, AmountKind::Requests, "cpu").unwrap_or(0),
        ));
        if every_container_is_limited(pod, "cpu") {
            let limit = pod_sum(pod, AmountKind::Limits, "cpu").unwrap_or(0);
            // A quota would slow down who has processors of its own (CPUM-23).
            let is_free = settings.static_cpus && count_exclusive_containers(pod) > 0;
            values.cpu_quota_us = Some(match (settings.cfs_quota && !is_free, limit) {
                (true, 1..) => cfs_quota_us(limit, settings.cfs_period_us),
                (_, _) => -1,
            });
            values.cpu_period_us = Some(settings.cfs_period_us);
        }
        values.memory_limit_bytes = memory_limit_bytes(pod);
    }
    let asked = pod_sum(pod, AmountKind::Requests, "memory").unwrap_or(0);
    set_memory_protection(&mut values, qos, asked, settings);
    PodCgroup {
        path: settings.tree.pod_path(qos, &pod.metadata.uid),
        values,
    }
}

/// Bytes of memory that a pod may use as a whole; `None`: there is no such limit.
#[must_use]
pub fn memory_limit_bytes(pod: &Pod) -> Option<i64> {
    let limit = pod_sum(pod, AmountKind::Limits, "memory").filter(|&limit| limit > 0);
    limit.filter(|_| every_container_is_limited(pod, "memory"))
}

/// Returns true if every container is limited: by the pod's own limit, or by one of its own. A single container without
/// a limit makes the pod's sum meaningless.
#[must_use]
pub fn every_container_is_limited(pod: &Pod, name: &str) -> bool {
    let limited = |limit: Option<i64>| limit.is_some_and(|limit| limit > 0);
    let mut containers = pod.spec.init_containers.iter().chain(&pod.spec.containers);
    limited(pod_level_amount(pod, AmountKind::Limits, name))
        || containers
            .all(|container| limited(container_amount(container, AmountKind::Limits, name)))
}

/// Protects so much memory of a group: the kernel takes it last (`memory.low`, Burstable) or never (`memory.min`,
/// Guaranteed).
fn set_memory_protection(
    values: &mut LinuxResources,
    qos: QosClass,
    bytes: i64,
    settings: &CgroupSettings,
) {
    let file = match qos {
        QosClass::Guaranteed => "memory.min",
        QosClass::Burstable => "memory.low",
        QosClass::BestEffort => return,
    };
    if reserves_memory(settings) {
        values.unified.insert(file.into(), bytes.to_string());
    }
}

fn reserves_memory(settings: &CgroupSettings) -> bool {
    settings.v2 && settings.memory_qos.is_some_and(|memory| memory.reserves)
}

/// Takes back the memory protection that an earlier policy may have given a tier. BestEffort never had one.
pub fn clear_memory_protection(
    values: &mut LinuxResources,
    qos: QosClass,
    settings: &CgroupSettings,
) {
    if qos != QosClass::BestEffort && !reserves_memory(settings) {
        for file in ["memory.min", "memory.low"] {
            values.unified.insert(file.into(), "0".into());
        }
    }
}

/// Cuts the memory that the groups above the pods protect to what all pods may have (MQOS-04): if they protected more, the
/// kernel would have to kill programs of the machine.
fn cut_to_allocatable(asked: PodRequestTotals, settings: &CgroupSettings) -> PodRequestTotals {
    let most = settings
        .memory_qos
        .map_or(i64::MAX, |memory| memory.allocatable_bytes);
    let guaranteed_bytes = asked.guaranteed_bytes.min(most);
    PodRequestTotals {
        guaranteed_bytes,
        burstable_bytes: asked.burstable_bytes.min(most - guaranteed_bytes),
        ..asked
    }
}

/// Memory that `kubepods` protects for the pods below it: no group protects more than those above it. `None`: no memory
/// is protected.
#[must_use]
pub fn kubepods_protection(
    asked: PodRequestTotals,
    settings: &CgroupSettings,
) -> Option<LinuxResources> {
    let asked = cut_to_allocatable(asked, settings);
    let mut values = LinuxResources::default();
    set_memory_protection(
        &mut values,
        QosClass::Guaranteed,
        asked.guaranteed_bytes,
        settings,
    );
    set_memory_protection(
        &mut values,
        QosClass::Burstable,
        asked.burstable_bytes,
        settings,
    );
    (!values.unified.is_empty()).then_some(values)
}

/// Values of a tier (RES-13).
#[must_use]
pub fn tier_values(
    qos: QosClass,
    asked: PodRequestTotals,
    settings: &CgroupSettings,
) -> LinuxResources {
    let sizes = settings.hugepage_sizes.iter();
    let mut values = LinuxResources {
        cpu_shares: match qos {
            QosClass::Guaranteed => None,
            QosClass::Burstable => Some(cpu_shares(asked.burstable_milli)),
            QosClass::BestEffort => Some(MIN_SHARES),
        },
        hugepage_limits: sizes
            .map(|&size| (page_size_name(size), HUGETLB_UNLIMITED))
            .gather_items(),
        ..LinuxResources::default()
    };
    if qos == QosClass::Burstable {
        let kept = cut_to_allocatable(asked, settings).burstable_bytes;
        set_memory_protection(&mut values, qos, kept, settings);
    }
    values
}

/// Values of `kubepods` (CG-12): what is left for pods after reservations. `pids`: `None` leaves it alone.
#[must_use]
pub fn kubepods_values(cpu_milli: i64, memory_bytes: i64, pids: Option<i64>) -> LinuxResources {
    LinuxResources {
        cpu_shares: Some(cpu_shares(cpu_milli)),
        memory_limit_bytes: Some(memory_bytes),
        pids_limit: pids,
        ..LinuxResources::default()
    }
}

/// Values of one container (RES-01 to RES-08), for the OCI runtime.
#[must_use]
pub fn container_resources(
    pod: &Pod,
    container: &Container,
    qos: QosClass,
    settings: &CgroupSettings,
) -> LinuxResources {
    let limit = |name| {
        let own = container_amount(container, AmountKind::Limits, name).filter(|&limit| limit > 0);
        own.or_else(|| pod_level_amount(pod, AmountKind::Limits, name))
            .filter(|&limit| limit > 0)
    };
    let cpu_limit = limit("cpu");
    let cpu_request = container_amount(container, AmountKind::Requests, "cpu").or(cpu_limit);
    let memory_limit = limit("memory");
    let is_free = settings.static_cpus && exclusive_cpus(pod, container).is_some();
    let quota = cpu_limit
        .filter(|_| settings.cfs_quota && !is_free)
        .map(|limit| cfs_quota_us(limit, settings.cfs_period_us));
    let mut values = LinuxResources {
        cpu_shares: Some(cpu_shares(cpu_request.unwrap_or(0))),
        cpu_quota_us: quota,
        cpu_period_us: quota.map(|_| settings.cfs_period_us),
        memory_limit_bytes: memory_limit,
        oom_score_adj: oom_score_adj(pod, container, qos, settings.node_memory_bytes),
        hugepage_limits: hugepages(settings, |size| {
            let own = hugepage_amount(AmountKind::Limits.quantities_of(&container.resources), size);
            let whole = pod.spec.resources.as_ref();
            own.or_else(|| {
                whole.and_then(|r| hugepage_amount(AmountKind::Limits.quantities_of(r), size))
            })
            .unwrap_or(0)
        }),
        ..LinuxResources::default()
    };
    if settings.v2 && !settings.single_process_oom_kill {
        values.unified.insert("memory.oom.group".into(), "1".into());
    }
    if settings.v2
        && let Some(qos_memory) = settings.memory_qos
    {
        let request = container_amount(container, AmountKind::Requests, "memory").unwrap_or(0);
        if qos != QosClass::Guaranteed
            && let Some(high) = memory_high_bytes(request, memory_limit, qos_memory)
        {
            values
                .unified
                .insert("memory.high".into(), high.to_string());
        }
        set_memory_protection(&mut values, qos, request, settings);
    }
    if settings.swap_controller {
        if settings.v2 {
            let swap = swap_bytes(pod, container, qos, settings);
            values
                .unified
                .insert("memory.swap.max".into(), swap.to_string());
        } else {
            values.memory_swap_bytes = memory_limit;
        }
    }
    values
}

/// Use of memory from which on a container is slowed down (`memory.high`), bytes, whole pages. `None`: no such mark.
/// The container's limit is a hard end.
fn memory_high_bytes(request: i64, limit: Option<i64>, memory: MemoryQos) -> Option<i64> {
    let most = limit.unwrap_or(memory.allocatable_bytes);
    let factor = i128::from(memory.throttling_permille?);
    let spare = i128::from(most.saturating_sub(request)) * factor;
    let bytes = request.saturating_add(i64::try_from(spare / 1000).ok()?);
    let high = bytes - bytes.checked_rem(memory.page_bytes)?;
    (limit != Some(request) && high > request).then_some(high)
}

/// Values for a sandbox: of the pod's containers together, and of its overhead, which is request and limit at once. For
/// runtimes that make a machine for the pod (CRI-23).
#[must_use]
pub fn sandbox_resources(pod: &Pod, settings: &CgroupSettings) -> (LinuxResources, LinuxResources) {
    let values = |request: Option<i64>, cpu: i64, memory: i64| {
        let quota = Some(cpu)
            .filter(|&cpu| settings.cfs_quota && cpu > 0)
            .map(|cpu| cfs_quota_us(cpu, settings.cfs_period_us));
        let mut values = LinuxResources {
            cpu_shares: Some(cpu_shares(request.unwrap_or(cpu))),
            cpu_quota_us: quota,
            cpu_period_us: quota.map(|_| settings.cfs_period_us),
            memory_limit_bytes: Some(memory).filter(|&memory| memory > 0),
            ..LinuxResources::default()
        };
        if settings.v2 && !settings.single_process_oom_kill {
            values.unified.insert("memory.oom.group".into(), "1".into());
        }
        values
    };
    let limit = |name| pod_sum_without_overhead(pod, AmountKind::Limits, name).unwrap_or(0);
    let own = values(
        pod_sum_without_overhead(pod, AmountKind::Requests, "cpu"),
        limit("cpu"),
        limit("memory"),
    );
    if pod.spec.overhead.is_empty() {
        return (own, LinuxResources::default());
    }
    let overhead = |name| {
        pod.spec
            .overhead
            .get(name)
            .map_or(0, |q| amount_in_base_unit(name, q))
    };
    let beside = values(None, overhead("cpu"), overhead("memory"));
    (own, beside)
}

/// Swap of a container, bytes (RES-08). Only cgroup v2 can share swap out.
pub(super) fn swap_bytes(
    pod: &Pod,
    container: &Container,
    qos: QosClass,
    settings: &CgroupSettings,
) -> i64 {
    let request = container_amount(container, AmountKind::Requests, "memory").unwrap_or(0);
    let limit = container_amount(container, AmountKind::Limits, "memory");
    let gets_some = settings.limited_swap
        && qos == QosClass::Burstable
        && !pod_kind::is_critical(pod)
        && (1..=settings.node_memory_bytes).contains(&request)
        && limit != Some(request);
    if !gets_some {
        return 0;
    }
    let share = i128::from(request) * i128::from(settings.node_swap_bytes)
        / i128::from(settings.node_memory_bytes);
    i64::try_from(share).unwrap_or(i64::MAX)
}

/// oom_score_adj of a container (RES-04).
#[must_use]
pub fn oom_score_adj(
    pod: &Pod,
    container: &Container,
    qos: QosClass,
    node_memory_bytes: i64,
) -> i32 {
    let score = match qos {
        _ if pod_kind::is_node_critical(pod) => GUARANTEED_OOM,
        QosClass::Guaranteed => GUARANTEED_OOM,
        QosClass::BestEffort => 1000,
        QosClass::Burstable => burstable_oom(pod, container, node_memory_bytes),
    };
    i32::try_from(score).unwrap_or(1000)
}

fn burstable_oom(pod: &Pod, container: &Container, node_memory_bytes: i64) -> i64 {
    let request = |container: &Container| {
        container_amount(container, AmountKind::Requests, "memory").unwrap_or(0)
    };
    let extra = unallocated_share(pod);
    let score = |bytes: i64| {
        let bytes = i128::from(bytes.saturating_add(extra));
        let part = (1000 * bytes).checked_div(i128::from(node_memory_bytes));
        1000 - i64::try_from(part.unwrap_or(0)).unwrap_or(1000).min(1000)
    };
    let mut own = score(request(container));
    // A sidecar must not be killed before the containers it serves.
    let is_sidecar = container.is_sidecar()
        && pod
            .spec
            .init_containers
            .iter()
            .any(|init| init.name == container.name);
    if is_sidecar && let Some(smallest) = pod.spec.containers.iter().map(request).min() {
        own = own.min(score(smallest));
    }
    match own.max(1000 + GUARANTEED_OOM) {
        1000 => 999,
        own => own,
    }
}

/// Each container's share of the memory that the pod requests beyond its containers' requests.
fn unallocated_share(pod: &Pod) -> i64 {
    let Some(whole) =
        pod_level_amount(pod, AmountKind::Requests, "memory").filter(|&whole| whole > 0)
    else {
        return 0;
    };
    let count = pod.spec.containers.len() + pod.spec.init_containers.len();
    let spare = whole - containers_sum(pod, AmountKind::Requests, "memory").unwrap_or(0);
    let count = i64::try_from(count).unwrap_or(i64::MAX).max(1);
    spare.max(0) / count
}

/// Limit for every page size of the machine (RES-06).
fn hugepages(settings: &CgroupSettings, bytes: impl Fn(u64) -> i64) -> BTreeMap<String, u64> {
    let sizes = settings.hugepage_sizes.iter();
    sizes
        .map(|&size| {
            let limit = u64::try_from(bytes(size)).unwrap_or(0);
            (page_size_name(size), limit)
        })
        .gather_items()
}

/// The pod's sum for one page size, however its name is written.
fn hugepage_sum(pod: &Pod, which: AmountKind, size: u64) -> Option<i64> {
    let name = stated_resource_names(pod, which)
        .into_iter()
        .find(|name| is_page_size(name, size))?;
    pod_sum(pod, which, name)
}

fn hugepage_amount(map: &BTreeMap<String, Quantity>, size: u64) -> Option<i64> {
    map.iter()
        .find(|(name, _)| is_page_size(name, size))
        .map(|(_, quantity)| quantity.value())
}

/// Returns true if a resource such as `hugepages-2Mi` names pages of `size` bytes.
fn is_page_size(resource: &str, size: u64) -> bool {
    resource
        .strip_prefix("hugepages-")
        .and_then(parse_page_size)
        == Some(size)
}

/// `2Mi` in bytes.
fn parse_page_size(text: &str) -> Option<u64> {
    let quantity = Quantity::parse(text).ok()?;
    u64::try_from(quantity.value())
        .ok()
        .filter(|size| *size > 0)
}

/// Bytes of one page of an emptyDir whose medium is `HugePages` or `HugePages-<size>`; `None` for any other medium (VOL-14).
///
/// - Errors: why the pod cannot have it, for the event.
/// - Source: kubelet `pkg/volume/emptydir/empty_dir.go`, `getPageSizeMountOption`.
#[must_use]
pub fn medium_page_size(pod: &Pod, medium: &str) -> Option<Result<u64, PodError>> {
    let size = medium.strip_prefix("HugePages")?;
    let mut asked = stated_resource_names(pod, AmountKind::Requests)
        .into_iter()
        .filter_map(|name| parse_page_size(name.strip_prefix("hugepages-")?));
    Some(match size.strip_prefix('-') {
        Some(size) => match parse_page_size(size) {
            Some(size) if asked.any(|other| other == size) => Ok(size),
            Some(_) => Err(PodError::Spec(format!(
                "no container requests hugepages-{size}"
            ))),
            None => Err(PodError::Spec(format!(
                "emptyDir medium {medium:?} names no page size"
            ))),
        },
        None if size.is_empty() => match asked.next() {
            None => Err(PodError::Spec("no container requests huge pages".into())),
            Some(size) if asked.all(|other| other == size) => Ok(size),
            Some(_) => Err(PodError::Spec(
                "containers request huge pages of more than one size".into(),
            )),
        },
        None => return None,
    })
}

/// The kernel's name of a page size: `2MB`.
#[must_use]
pub fn page_size_name(bytes: u64) -> String {
    let units = ["B", "KB", "MB", "GB"];
    let mut size = bytes;
    let mut unit = 0;
    while size >= 1024 && size.is_multiple_of(1024) && unit + 1 < units.len() {
        size /= 1024;
        unit += 1;
    }
    let name = units.get(unit).copied().unwrap_or_default();
    format!("{size}{name}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use QosClass::{BestEffort, Burstable, Guaranteed};

    const GIB: i64 = 1 << 30;

    fn pod(spec: &str) -> Pod {
        let text = format!(r#"{{"metadata":{{"uid":"u-1"}},"spec":{spec}}}"#);
        serde_json::from_str(&text).expect("pod")
    }

    #[test]
    fn conversions() {
        // RES-01 RES-14 CG-07 CG-08
        for (milli, want_shares) in [
            (-5, 2),
            (0, 2),
            (1, 2),
            (100, 102),
            (250, 256),
            (1000, 1024),
            (256_000, 262_144),
            (i64::MAX, 262_144),
        ] {
            assert_eq!(cpu_shares(milli), want_shares, "{milli}");
        }
        // RES-02
        for (milli, period, want) in [
            (0, 100_000, 0),
            (1, 100_000, 1000),
            (10, 100_000, 1000),
            (11, 100_000, 1100),
            (200, 100_000, 20_000),
            (1500, 10_000, 15_000),
            (i64::MAX, 1_000_000, i64::MAX),
        ] {
            assert_eq!(cfs_quota_us(milli, period), want, "{milli} {period}");
        }
    }

    #[test]
    fn paths() {
        // RES-10 CG-02
        for (root, qos, want) in [
            ("", Guaranteed, "/kubepods/podu-1"),
            ("/", Burstable, "/kubepods/burstable/podu-1"),
            ("/a/b/", BestEffort, "/a/b/kubepods/besteffort/podu-1"),
        ] {
            let tree = CgroupTree {
                root: root.into(),
                driver: CgroupDriver::Cgroupfs,
            };
            let path = tree.pod_path(qos, "u-1");
            assert_eq!(path, want);
            let name = path.rsplit('/').next().expect("a name");
            assert_eq!(tree.pod_uid_of(qos, name).as_deref(), Some("u-1"));
            assert_eq!(tree.pod_uid_of(qos, "burstable"), None);
        }
    }

    #[test]
    fn slices() {
        // SVC-31 CRI-19
        for (root, qos, want) in [
            ("", Guaranteed, "/kubepods.slice/kubepods-podu_1.slice"),
            (
                "/",
                Burstable,
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podu_1.slice",
            ),
            (
                "/a-b/c/",
                BestEffort,
                "/a_b.slice/a_b-c.slice/a_b-c-kubepods.slice/a_b-c-kubepods-besteffort.slice/\
                 a_b-c-kubepods-besteffort-podu_1.slice",
            ),
        ] {
            let tree = CgroupTree {
                root: root.into(),
                driver: CgroupDriver::Systemd,
            };
            let path = tree.pod_path(qos, "u-1");
            assert_eq!(path, want);
            assert!(tree.pod_paths_of_tiers("u-1").contains(&path));
            let name = path.rsplit('/').next().expect("a name");
            for tier in TIERS {
                let wanted = (tier == qos).then_some("u-1");
                assert_eq!(
                    tree.pod_uid_of(tier, name).as_deref(),
                    wanted,
                    "{name} {tier:?}"
                );
            }
            assert!(tree.is_unambiguous_uid("u-1") && !tree.is_unambiguous_uid("u_1"));
            for other in [
                &tree.tier_path(qos),
                "kubepods-podx.scope",
                "podu_1.slice",
                "x-podu_1.slice",
            ] {
                let name = other.rsplit('/').next().expect("a name");
                assert_eq!(tree.pod_uid_of(qos, name), None, "{other}");
            }
        }
    }

    fn facts() -> CgroupSettings {
        CgroupSettings {
            node_memory_bytes: 4 * GIB,
            node_swap_bytes: 2 * GIB,
            hugepage_sizes: vec![2 << 20, 1 << 30],
            ..CgroupSettings::default()
        }
    }

    const LIMITED: &str = r#"{"resources":{"requests":{"cpu":"250m","memory":"64Mi"},
        "limits":{"cpu":"500m","memory":"128Mi"}}}"#;

    #[test]
    fn pod_values() {
        // RES-11 CG-10
        let (both, one) = (
            format!(r#"{{"containers":[{LIMITED},{LIMITED}]}}"#),
            format!(r#"{{"containers":[{LIMITED},{{}}]}}"#),
        );
        let init = format!(r#"{{"initContainers":[{{}}],"containers":[{LIMITED}]}}"#);
        let whole = format!(
            r#"{{"resources":{{"limits":{{"cpu":"2","memory":"1Gi"}}}},"containers":[{LIMITED},{{}}]}}"#
        );
        for (name, spec, qos, cfs, want) in [
            (
                "all limited",
                &both,
                Burstable,
                true,
                (512, Some(100_000), Some(256 << 20)),
            ),
            (
                "one without limit",
                &one,
                Burstable,
                true,
                (256, None, None),
            ),
            (
                "an init container without limit",
                &init,
                Burstable,
                true,
                (256, None, None),
            ),
            (
                "pod limits stand in",
                &whole,
                Burstable,
                true,
                (256, Some(200_000), Some(GIB)),
            ),
            (
                "guaranteed",
                &both,
                Guaranteed,
                true,
                (512, Some(100_000), Some(256 << 20)),
            ),
            (
                "no quotas",
                &both,
                Guaranteed,
                false,
                (512, Some(-1), Some(256 << 20)),
            ),
            ("best effort", &both, BestEffort, true, (2, None, None)),
        ] {
            let settings = CgroupSettings {
                cfs_quota: cfs,
                ..facts()
            };
            let got = pod_cgroup(&pod(spec), qos, &settings).values;
            let (shares, quota, memory) = want;
            assert_eq!(got.cpu_shares, Some(shares), "{name}");
            assert_eq!(got.cpu_quota_us, quota, "{name}");
            assert_eq!(got.cpu_period_us, quota.map(|_| 100_000), "{name}");
            assert_eq!(got.memory_limit_bytes, memory, "{name}");
            assert_eq!(got.pids_limit, None, "{name}");
            if qos != BestEffort {
                // VOL-10
                assert_eq!(memory_limit_bytes(&pod(spec)), memory, "{name}");
            }
            assert_eq!(got.hugepage_limits["2MB"], 0, "{name}");
        }
        let huge = r#"{"containers":[{"resources":{"requests":{"hugepages-2Mi":"4Mi"},
            "limits":{"hugepages-2Mi":"4Mi"}}}]}"#;
        let settings = CgroupSettings {
            pod_pids_limit: 100,
            ..facts()
        };
        let got = pod_cgroup(&pod(huge), Burstable, &settings);
        assert_eq!(got.path, "/kubepods/burstable/podu-1");
        assert_eq!(got.values.pids_limit, Some(100));
        assert_eq!(got.values.hugepage_limits["2MB"], 4 << 20);
        assert_eq!(got.values.hugepage_limits["1GB"], 0);
    }

    #[test]
    fn tiers_and_root() {
        // RES-13 CG-11 CG-12
        let settings = facts();
        for (qos, milli, want) in [
            (BestEffort, 5000, Some(2)),
            (Burstable, 0, Some(2)),
            (Burstable, 1000, Some(1024)),
            (Guaranteed, 1000, None),
        ] {
            let asked = PodRequestTotals {
                burstable_milli: milli,
                ..PodRequestTotals::default()
            };
            let values = tier_values(qos, asked, &settings);
            assert_eq!(values.cpu_shares, want);
            assert_eq!(values.hugepage_limits["1GB"], 1 << 62);
        }
        let root = kubepods_values(4000, GIB, Some(1000));
        assert_eq!(
            (root.cpu_shares, root.memory_limit_bytes, root.pids_limit),
            (Some(4096), Some(GIB), Some(1000))
        );
    }

    #[test]
    fn container_values() {
        // RES-01 RES-02 RES-03 RES-06 CG-14 OOMW-04
        let pod_limits =
            r#""resources":{"limits":{"cpu":"1","memory":"1Gi","hugepages-2Mi":"8Mi"}},"#;
        for (name, whole, resources, want) in [
            ("nothing", "", "{}", (2, None, None, 0)),
            (
                "both",
                "",
                r#"{"requests":{"cpu":"100m","memory":"1Mi"},"limits":{"cpu":"200m","memory":"2Mi"}}"#,
                (102, Some(20_000), Some(2 << 20), 0),
            ),
            (
                "limit stands for the request",
                "",
                r#"{"limits":{"cpu":"1"}}"#,
                (1024, Some(100_000), None, 0),
            ),
            (
                "a zero request is a request",
                "",
                r#"{"requests":{"cpu":"0"},"limits":{"cpu":"1"}}"#,
                (2, Some(100_000), None, 0),
            ),
            (
                "pod limits",
                pod_limits,
                "{}",
                (1024, Some(100_000), Some(GIB), 8 << 20),
            ),
            (
                "own limits first",
                pod_limits,
                r#"{"limits":{"cpu":"500m","memory":"2Mi","hugepages-2Mi":"2Mi"}}"#,
                (512, Some(50_000), Some(2 << 20), 2 << 20),
            ),
        ] {
            let pod = pod(&format!(
                r#"{{{whole}"containers":[{{"resources":{resources}}}]}}"#
            ));
            let got = container_resources(&pod, &pod.spec.containers[0], Burstable, &facts());
            let (shares, quota, memory, huge) = want;
            assert_eq!(got.cpu_shares, Some(shares), "{name}");
            assert_eq!(got.cpu_quota_us, quota, "{name}");
            assert_eq!(got.memory_limit_bytes, memory, "{name}");
            assert_eq!(got.hugepage_limits["2MB"], huge, "{name}");
            assert_eq!(got.hugepage_limits["1GB"], 0, "{name}");
            assert_eq!(got.unified["memory.oom.group"], "1", "{name}");
            assert!(!got.unified.contains_key("memory.swap.max"), "{name}");
        }
        let pod = pod(&format!(r#"{{"containers":[{LIMITED}]}}"#));
        let settings = CgroupSettings {
            single_process_oom_kill: true,
            cfs_quota: false,
            ..facts()
        };
        let got = container_resources(&pod, &pod.spec.containers[0], Burstable, &settings);
        assert_eq!((got.cpu_quota_us, got.cpu_period_us), (None, None));
        assert!(got.unified.is_empty());
    }

    #[test]
    fn who_has_processors_of_its_own_has_no_quota() {
        // CPUM-23
        let amounts = |cpu: &str| format!(r#"{{"cpu":"{cpu}","memory":"1Mi"}}"#);
        let container = |cpu: &str| {
            let amounts = amounts(cpu);
            format!(r#"{{"resources":{{"requests":{amounts},"limits":{amounts}}}}}"#)
        };
        let (whole, part) = (container("1"), container("500m"));
        let pod = pod(&format!(r#"{{"containers":[{whole},{part}]}}"#));
        for (static_cpus, want) in [(false, [100_000, 50_000, 150_000]), (true, [0, 50_000, -1])] {
            let settings = CgroupSettings {
                static_cpus,
                ..facts()
            };
            let quota = |n: usize| {
                let container = &pod.spec.containers[n];
                let values = container_resources(&pod, container, Guaranteed, &settings);
                assert!(values.cpu_shares > Some(MIN_SHARES));
                values.cpu_quota_us.unwrap_or(0)
            };
            let of_pod = pod_cgroup(&pod, Guaranteed, &settings).values;
            let of_pod = of_pod.cpu_quota_us.expect("every container is limited");
            assert_eq!([quota(0), quota(1), of_pod], want, "{static_cpus}");
        }
    }

    #[test]
    fn memory_that_is_throttled_and_kept() {
        // CG-16 MQOS-01 MQOS-02 MQOS-03 MQOS-04
        let pod = pod(r#"{"containers":[
            {"resources":{"requests":{"memory":"100Mi"},"limits":{"memory":"200Mi"}}},
            {"resources":{"requests":{"memory":"100Mi"}}},
            {"resources":{"requests":{"memory":"64Mi"},"limits":{"memory":"64Mi"}}},
            {}]}"#);
        let mut settings = CgroupSettings {
            memory_qos: Some(MemoryQos {
                throttling_permille: Some(900),
                reserves: false,
                allocatable_bytes: 1000 << 20,
                page_bytes: 4096,
            }),
            ..facts()
        };
        let got = |n: usize, qos, settings: &CgroupSettings| {
            let got = container_resources(&pod, &pod.spec.containers[n], qos, settings).unified;
            ["high", "low", "min"].map(|name| {
                let text = got.get(&format!("memory.{name}"))?;
                Some(text.parse::<i64>().expect("bytes"))
            })
        };
        // 100 + 0.9 * 100 MiB; 100 + 0.9 * 900 MiB; whole pages.
        for (n, high) in [
            (0, Some(190 << 20)),
            (1, Some(910 << 20)),
            (2, None),
            (3, Some(900 << 20)),
        ] {
            assert_eq!(got(n, Burstable, &settings), [high, None, None], "{n}");
        }
        for n in 0..4 {
            assert_eq!(got(n, Guaranteed, &settings), [None; 3], "{n}");
        }
        let mut unset = settings.clone();
        unset.memory_qos.as_mut().expect("on").throttling_permille = None;
        assert_eq!(got(0, Burstable, &unset), [None; 3], "no factor");
        let odd = MemoryQos {
            throttling_permille: Some(333),
            ..settings.memory_qos.expect("on")
        };
        assert_eq!(memory_high_bytes(1, Some(10_000), odd), None, "no page");
        assert_eq!(memory_high_bytes(1, Some(20_000), odd), Some(4096));
        assert_eq!(
            kubepods_protection(PodRequestTotals::default(), &settings),
            None
        );

        settings.memory_qos.as_mut().expect("on").reserves = true;
        let kept = Some(100 << 20);
        assert_eq!(got(0, Burstable, &settings)[1..], [kept, None]);
        assert_eq!(got(0, Guaranteed, &settings)[1..], [None, kept]);
        assert_eq!(got(3, BestEffort, &settings)[1..], [None, None]);
        let group = pod_cgroup(&pod, Burstable, &settings).values.unified;
        assert_eq!(group["memory.low"], (264 << 20).to_string());
        let asked = PodRequestTotals {
            burstable_milli: 0,
            burstable_bytes: 7,
            guaranteed_bytes: 9,
        };
        assert_eq!(
            tier_values(Burstable, asked, &settings).unified["memory.low"],
            "7"
        );
        let above = kubepods_protection(asked, &settings).expect("kept").unified;
        assert_eq!((&*above["memory.min"], &*above["memory.low"]), ("9", "7"));
        // More than all pods may have is not protected.
        for (burstable, guaranteed, kept) in [
            (600, 300, [600, 300]),
            (600, 500, [500, 500]),
            (600, 1200, [0, 1000]),
        ] {
            let asked = PodRequestTotals {
                burstable_milli: 0,
                burstable_bytes: burstable << 20,
                guaranteed_bytes: guaranteed << 20,
            };
            let [low, min] = kept.map(|mib: i64| (mib << 20).to_string());
            let above = kubepods_protection(asked, &settings).expect("kept").unified;
            assert_eq!((&above["memory.low"], &above["memory.min"]), (&low, &min));
            let tier = tier_values(Burstable, asked, &settings).unified;
            assert_eq!(tier["memory.low"], low);
        }
        settings.v2 = false;
        assert_eq!(got(0, Burstable, &settings), [None, None, None], "v1");
        assert!(
            pod_cgroup(&pod, Burstable, &settings)
                .values
                .unified
                .is_empty()
        );
    }

    #[test]
    fn swap() {
        // RES-08 CG-17 SWP-01 SWP-02
        let pod = pod(&format!(
            r#"{{"containers":[{LIMITED},{{"resources":{{
            "requests":{{"memory":"1Gi"}},"limits":{{"memory":"1Gi"}}}}}}]}}"#
        ));
        let mut settings = CgroupSettings {
            swap_controller: true,
            ..facts()
        };
        let swap = |n: usize, qos, settings: &CgroupSettings| {
            let got = container_resources(&pod, &pod.spec.containers[n], qos, settings);
            (
                got.unified.get("memory.swap.max").cloned(),
                got.memory_swap_bytes,
            )
        };
        assert_eq!(
            swap(0, Burstable, &settings),
            (Some("0".into()), None),
            "NoSwap"
        );
        settings.limited_swap = true;
        assert_eq!(
            swap(0, Burstable, &settings),
            (Some((32 << 20).to_string()), None),
            "its share"
        );
        assert_eq!(
            swap(1, Burstable, &settings).0,
            Some("0".into()),
            "request is the limit"
        );
        for (asked, want) in [
            ("256Mi", "134217728"),
            ("1Gi", "536870912"),
            ("1025Mi", "0"),
        ] {
            let of = self::pod(&format!(
                r#"{{"containers":[{{"resources":{{"requests":{{"memory":"{asked}"}}}}}}]}}"#
            ));
            let small = CgroupSettings {
                node_memory_bytes: GIB,
                node_swap_bytes: GIB / 2,
                ..settings.clone()
            };
            let got = container_resources(&of, &of.spec.containers[0], Burstable, &small);
            assert_eq!(got.unified["memory.swap.max"], want, "{asked} of 1Gi");
        }
        assert_eq!(
            swap(0, Guaranteed, &settings).0,
            Some("0".into()),
            "guaranteed"
        );
        settings.v2 = false;
        assert_eq!(swap(0, Burstable, &settings), (None, Some(128 << 20)), "v1");
        settings.swap_controller = false;
        assert_eq!(swap(0, Burstable, &settings), (None, None), "not counted");
    }

    #[test]
    fn oom_scores() {
        // RES-04 CG-15
        let memory = |request: &str| {
            format!(
                r#"{{"name":"c{request}","resources":{{"requests":{{"memory":"{request}"}}}}}}"#
            )
        };
        for (name, spec, qos, want) in [
            (
                "guaranteed",
                format!(r#"{{"containers":[{}]}}"#, memory("1Gi")),
                Guaranteed,
                -997,
            ),
            (
                "best effort",
                r#"{"containers":[{}]}"#.into(),
                BestEffort,
                1000,
            ),
            (
                "node critical",
                r#"{"priority":2000001000,"containers":[{}]}"#.into(),
                BestEffort,
                -997,
            ),
            (
                "cluster critical is not enough",
                r#"{"priority":2000000000,"containers":[{}]}"#.into(),
                BestEffort,
                1000,
            ),
            (
                "a quarter",
                format!(r#"{{"containers":[{}]}}"#, memory("1Gi")),
                Burstable,
                750,
            ),
            ("nothing", r#"{"containers":[{}]}"#.into(), Burstable, 999),
            (
                "everything",
                format!(r#"{{"containers":[{}]}}"#, memory("4Gi")),
                Burstable,
                3,
            ),
            (
                "more than there is",
                format!(r#"{{"containers":[{}]}}"#, memory("9Gi")),
                Burstable,
                3,
            ),
            (
                "unallocated part is shared",
                format!(
                    r#"{{"resources":{{"requests":{{"memory":"3Gi"}}}},"containers":[{},{{}}]}}"#,
                    memory("1Gi")
                ),
                Burstable,
                500,
            ),
        ] {
            let pod = pod(&spec);
            let got = oom_score_adj(&pod, &pod.spec.containers[0], qos, 4 * GIB);
            assert_eq!(got, want, "{name}");
        }
        let pod = pod(&format!(
            r#"{{"initContainers":[{{"name":"side","restartPolicy":"Always"}}],"containers":[{},{}]}}"#,
            memory("1Gi"),
            memory("2Gi")
        ));
        let side = &pod.spec.init_containers[0];
        assert_eq!(
            oom_score_adj(&pod, side, Burstable, 4 * GIB),
            750,
            "sidecar"
        );
    }

    #[test]
    fn page_sizes_of_media() {
        // VOL-14
        let asking = |first: &[&str], second: &[&str]| -> Pod {
            let of = |sizes: &[&str]| {
                let all = sizes
                    .iter()
                    .map(|size| format!(r#""hugepages-{size}":"1Gi""#));
                let all: Vec<String> = all.collect();
                format!(r#"[{{"resources":{{"requests":{{{}}}}}}}]"#, all.join(","))
            };
            let (first, second) = (of(first), of(second));
            pod(&format!(
                r#"{{"initContainers":{first},"containers":{second}}}"#
            ))
        };
        for (name, pod, medium, want) in [
            ("the disk", asking(&[], &["2Mi"]), "", None),
            ("memory", asking(&[], &["2Mi"]), "Memory", None),
            (
                "of that size",
                asking(&[], &["1Gi", "2Mi"]),
                "HugePages-2Mi",
                Some(Ok(2 << 20)),
            ),
            (
                "for the init container",
                asking(&["1Gi"], &[]),
                "HugePages-1024Mi",
                Some(Ok(1 << 30)),
            ),
            (
                "the one size",
                asking(&["2Mi"], &["2Mi"]),
                "HugePages",
                Some(Ok(2 << 20)),
            ),
            (
                "two sizes",
                asking(&["2Mi"], &["1Gi"]),
                "HugePages",
                Some(Err("containers request huge pages of more than one size")),
            ),
            (
                "none",
                asking(&[], &[]),
                "HugePages",
                Some(Err("no container requests huge pages")),
            ),
            (
                "another size",
                asking(&[], &["2Mi"]),
                "HugePages-1Gi",
                Some(Err("no container requests hugepages-1Gi")),
            ),
            (
                "no size",
                asking(&[], &["2Mi"]),
                "HugePages-x",
                Some(Err("emptyDir medium \"HugePages-x\" names no page size")),
            ),
        ] {
            let want = want.map(|want| want.map_err(|why: &str| PodError::Spec(why.into())));
            assert_eq!(medium_page_size(&pod, medium), want, "{name}");
        }
    }

    #[test]
    fn page_sizes() {
        for (bytes, want) in [
            (64 << 10, "64KB"),
            (2 << 20, "2MB"),
            (1 << 30, "1GB"),
            (16 << 30, "16GB"),
        ] {
            assert_eq!(page_size_name(bytes), want);
        }
    }
}
