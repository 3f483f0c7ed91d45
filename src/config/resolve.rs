//! Makes the checked configuration from the fields of the document: defaults and rules are in this one place.

use alloc::collections::BTreeMap;
use core::time::Duration;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::checks::{
    InvalidField, count_or_default, duration_or_default, invalid_field,
    nonzero_duration_or_default, read_absolute_path,
};
use super::file::{KubeletConfiguration, PicoletSection};
use super::values::{
    AgentConfig, AgentDirs, CgroupConfig, CpuPolicyConfig, DEFAULT_BRIDGE, DEFAULT_SUBNET,
    GarbageConfig, ImageConfig, Ipv4Subnet, LogConfig, MemoryQosConfig, PodNetworkConfig,
    ReservedGroup, ReservedResources, RuntimeConfig, SwapBehavior, TimeConfig,
};
use super::{FieldWarning, HostIdentity};
use super::{
    cluster, configz, endpoints, eviction, gates, keys, link, manifest_url, node, server,
    without_effect,
};
use crate::api::cri::CgroupDriver;
use crate::api::{Quantity, names};
use crate::image::ImageReference;
use crate::logic::user_namespaces::{DEFAULT_IDS_PER_POD, PodIds};
use crate::logic::{
    cgroup::CgroupTree,
    cpu_manager::{CpuPolicyOptions, STATIC_POLICY},
    cpu_set::CpuSet,
    image_access::VerificationPolicy,
    pod_writes, shutdown,
};
use crate::parts;

/// Most OCI runtimes beside the default one.
const MAX_HANDLERS: usize = 16;
/// Most groups of pods that end one after the other with the machine.
const MAX_SHUTDOWN_GROUPS: usize = 64;
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// Applies defaults and checks every rule. `from_file` says whether a document was loaded: only then has
/// `evictionHard` a default (CONF-10). Adds a warning for each setting without effect.
pub(super) fn resolve_config(
    fields: KubeletConfiguration,
    mut document: Value,
    from_file: bool,
    host: &HostIdentity,
    warnings: &mut Vec<FieldWarning>,
) -> Result<AgentConfig, InvalidField> {
    keys::check_ranges(&document)?;
    let max_pods = count_or_default(fields.max_pods, 110);
    let ids_per_pod = read_ids_per_pod(&fields, max_pods)?;
    refuse_unsupported(&fields)?;
    warnings.extend(without_effect::remove_ignored_keys(&mut document));
    let own = &fields.picolet;
    let root = read_absolute_path(
        "picolet.rootDir",
        own.root_dir.as_deref(),
        "/var/lib/picolet",
    )?;
    let run = read_absolute_path("picolet.runDir", own.run_dir.as_deref(), "/run/picolet")?;
    let under = |dir: &Path, name: &str| dir.join(name).to_string_lossy().into_owned();
    let dirs = AgentDirs {
        manifests: match fields.static_pod_path.as_deref() {
            Some("") => None,
            path => Some(read_absolute_path(
                "staticPodPath",
                path,
                "/etc/picolet/manifests",
            )?),
        },
        image_drop_in: read_absolute_path(
            "picolet.imageDir",
            own.image_dir.as_deref(),
            &under(&root, "import"),
        )?,
        pod_logs: pod_logs_dir(fields.pod_logs_dir.as_deref())?,
        container_logs: read_absolute_path(
            "picolet.containerLogDir",
            own.container_log_dir.as_deref(),
            "/var/log/containers",
        )?,
        socket: read_absolute_path(
            "picolet.socket",
            own.socket.as_deref(),
            &under(&run, "picolet.sock"),
        )?,
        root,
        run,
    };
    let node = node::resolve_node(&fields)?;
    let endpoints = endpoints::resolve_endpoints(&fields)?;
    let cgroup = resolve_cgroups(&fields)?;
    let cluster = cluster::resolve_cluster(&fields, &dirs.root)?;
    let manifest_url = manifest_url::resolve_manifest_url(&fields)?;
    let server = server::resolve_server(&fields, cluster.is_member(), node.port)?;
    let mut config = AgentConfig {
        parts: Vec::new(),
        link: link::resolve_link(own)?,
        server,
        document: configz::render_configz(&document, cluster.is_member()),
        node_name: node::resolve_node_name(own.hostname_override.as_deref(), host)?,
        node_ips: node::read_node_ips("picolet.nodeIP", own.node_ip.as_deref())?,
        node_external_ips: node::read_node_ips(
            "picolet.nodeExternalIP",
            own.node_external_ip.as_deref(),
        )?,
        node,
        cluster,
        manifest_url,
        verbosity: u8::try_from(fields.logging.verbosity.unwrap_or(0)).unwrap_or(u8::MAX),
        doorbells: own.doorbells.unwrap_or(true),
        times: resolve_times(&fields),
        max_pods,
        ids_per_pod,
        pods_per_core: count_or_default(fields.pods_per_core, 0),
        runtime: RuntimeConfig {
            endpoints,
            program: own
                .oci_runtime
                .as_deref()
                .filter(|p| !p.is_empty())
                .unwrap_or("runc")
                .into(),
            process: endpoints::read_process_directories(&fields)?,
            handlers: read_handlers(&own.handlers)?,
            root: read_absolute_path(
                "picolet.ociRuntimeRoot",
                own.oci_runtime_root.as_deref(),
                &under(&dirs.run, "oci"),
            )?,
        },
        eviction: eviction::resolve_eviction(&fields, from_file, cgroup.enforce_pods)?,
        cgroup,
        reserved: read_reserved_resources(&fields)?,
        shutdown: read_shutdown_groups(&fields)?,
        logs: resolve_logs(&fields)?,
        images: resolve_images(&fields)?,
        garbage: resolve_garbage(&fields),
        network: resolve_pod_network(&fields)?,
        seccomp_default: fields.seccomp_default.unwrap_or(false),
        allowed_unsafe_sysctls: fields.allowed_unsafe_sysctls,
        dirs,
    };
    config.parts = parts::configure_parts(&document["picolet"], &config)?;
    Ok(config)
}

/// Reads the other OCI runtimes, by handler.
fn read_handlers(all: &BTreeMap<String, String>) -> Result<BTreeMap<String, String>, InvalidField> {
    let field = "picolet.handlers";
    if all.len() > MAX_HANDLERS {
        return invalid_field(
            field,
            format!(
                "has {} entries, must have at most {MAX_HANDLERS}",
                all.len()
            ),
        );
    }
    for (name, path) in all {
        if !names::is_dns_label(name) {
            return invalid_field(
                field,
                format!("{name:?} is no name of a handler: lower-case letters, digits and '-'"),
            );
        }
        if !path.starts_with('/') {
            return invalid_field(
                &format!("{field}.{name}"),
                format!("is {path:?}, must be the absolute path of an OCI runtime"),
            );
        }
    }
    Ok(all.clone())
}

/// Reads the number of ids of a user namespace, which is no range. The machine must have so many for each pod.
fn read_ids_per_pod(fields: &KubeletConfiguration, max_pods: u32) -> Result<u32, InvalidField> {
    const FIELD: &str = "userNamespaces.idsPerPod";
    let Some(ids) = fields.user_namespaces.ids_per_pod else {
        return Ok(DEFAULT_IDS_PER_POD);
    };
    let read = u32::try_from(ids).ok();
    let Some(read) = read.filter(|n| *n > 0 && n % DEFAULT_IDS_PER_POD == 0) else {
        let why = format!("is {ids}, must be a multiple of {DEFAULT_IDS_PER_POD} below 2^32");
        return invalid_field(FIELD, why);
    };
    if PodIds::of_whole_host(read).count_ranges() < u64::from(max_pods) {
        let why = format!("is {read}: IDs are not enough to support {max_pods} pods");
        return invalid_field(FIELD, why);
    }
    Ok(read)
}

/// Refuses settings that a kubelet has and this version has not: to do something else in silence would be worse.
fn refuse_unsupported(fields: &KubeletConfiguration) -> Result<(), InvalidField> {
    if fields.run_once == Some(true) {
        return invalid_field("runOnce", "must be false");
    }
    let mut gates = fields.feature_gates.keys();
    if let Some(name) = gates.find(|name| !gates::is_known_gate(name)) {
        return invalid_field(
            &format!("featureGates.{name}"),
            "is not a feature gate of Kubernetes; only MemoryQoS has an effect here",
        );
    }
    Ok(())
}

fn resolve_times(fields: &KubeletConfiguration) -> TimeConfig {
    let backoff = duration_or_default(
        fields.crash_loop_back_off.max_container_restart_period,
        300 * SECOND,
    );
    TimeConfig {
        sync: nonzero_duration_or_default(fields.sync_frequency, MINUTE),
        file_check: nonzero_duration_or_default(fields.file_check_frequency, 20 * SECOND),
        runtime_request: nonzero_duration_or_default(fields.runtime_request_timeout, 2 * MINUTE),
        max_restart_backoff: backoff,
        streaming_idle: nonzero_duration_or_default(
            fields.streaming_connection_idle_timeout,
            4 * 60 * MINUTE,
        ),
        volume_stats: nonzero_duration_or_default(fields.volume_stats_agg_period, MINUTE),
    }
}

/// Reads the groups of pods that end one after the other with the machine (CONF-12, SHUT-01).
fn read_shutdown_groups(
    fields: &KubeletConfiguration,
) -> Result<Vec<shutdown::PriorityGroup>, InvalidField> {
    let grace = duration_or_default(fields.shutdown_grace_period, Duration::ZERO);
    let critical = duration_or_default(fields.shutdown_grace_period_critical_pods, Duration::ZERO);
    for (field, time) in [
        ("shutdownGracePeriod", grace),
        ("shutdownGracePeriodCriticalPods", critical),
    ] {
        if !time.is_zero() && time < SECOND {
            return invalid_field(field, format!("is {time:?}, must be 0 or at least 1s"));
        }
    }
    if critical > grace {
        return invalid_field(
            "shutdownGracePeriodCriticalPods",
            format!("is {critical:?}, must not be longer than shutdownGracePeriod, {grace:?}"),
        );
    }
    let by_priority = &fields.shutdown_grace_period_by_pod_priority;
    let field = "shutdownGracePeriodByPodPriority";
    if by_priority.is_empty() {
        let seconds = |time: Duration| u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
        return Ok(shutdown::shutdown_groups(seconds(grace), seconds(critical)));
    }
    if !grace.is_zero() || !critical.is_zero() {
        return invalid_field(
            field,
            "excludes shutdownGracePeriod and shutdownGracePeriodCriticalPods",
        );
    }
    if by_priority.len() > MAX_SHUTDOWN_GROUPS {
        return invalid_field(field, format!("has more than {MAX_SHUTDOWN_GROUPS} items"));
    }
    let mut groups = Vec::new();
    for (n, item) in by_priority.iter().enumerate() {
        let Ok(seconds) = u32::try_from(item.shutdown_grace_period_seconds) else {
            let why = "must be a number of seconds, 0 or more";
            return invalid_field(&format!("{field}[{n}].shutdownGracePeriodSeconds"), why);
        };
        groups.push(shutdown::PriorityGroup {
            priority: item.priority,
            seconds,
        });
    }
    Ok(groups)
}

/// Reads the cgroup driver. `adapt_document` has left `systemd` only where a CRI runtime is configured.
fn read_cgroup_driver(fields: &KubeletConfiguration) -> Result<CgroupDriver, InvalidField> {
    match fields.cgroup_driver.as_deref() {
        None | Some("" | "cgroupfs") => Ok(CgroupDriver::Cgroupfs),
        Some("systemd") => Ok(CgroupDriver::Systemd),
        Some(other) => invalid_field(
            "cgroupDriver",
            format!("is {other:?}, must be \"cgroupfs\" or \"systemd\""),
        ),
    }
}

/// Reads the policy of the CPU manager (CPUM-20).
fn read_cpu_policy(fields: &KubeletConfiguration) -> Result<Option<CpuPolicyConfig>, InvalidField> {
    let field = "cpuManagerPolicy";
    let has_options = !fields.cpu_manager_policy_options.is_empty();
    match fields.cpu_manager_policy.as_deref().unwrap_or_default() {
        "" | "none" if has_options => {
            return invalid_field("cpuManagerPolicyOptions", "needs cpuManagerPolicy: static");
        }
        "" | "none" => return Ok(None),
        STATIC_POLICY => {}
        other => {
            return invalid_field(
                field,
                format!("is {other:?}, must be \"none\" or \"static\""),
            );
        }
    }
    let mut options = CpuPolicyOptions::default();
    for (name, value) in &fields.cpu_manager_policy_options {
        let option = match name.as_str() {
            "full-pcpus-only" => &mut options.full_cores,
            "strict-cpu-reservation" => &mut options.strict_reservation,
            _ => {
                let known = "is not an option here; known: full-pcpus-only, strict-cpu-reservation";
                return invalid_field(&format!("cpuManagerPolicyOptions[{name}]"), known);
            }
        };
        let Ok(is_on) = value.parse() else {
            let place = format!("cpuManagerPolicyOptions[{name}]");
            return invalid_field(&place, format!("is {value:?}, must be true or false"));
        };
        *option = is_on;
    }
    let reserved = read_reserved_resources(fields)?;
    let milli =
        |list: &BTreeMap<String, Quantity>| list.get("cpu").map_or(0, Quantity::milli_value);
    let milli = milli(&reserved.system).saturating_add(milli(&reserved.kube));
    let reserved_count = usize::try_from(milli).unwrap_or(0).div_ceil(1000);
    if reserved_count == 0 {
        return invalid_field(
            field,
            "is \"static\": [cpumanager] the static policy requires systemreserved.cpu + kubereserved.cpu to be greater than zero; \
             set systemReserved.cpu or reservedSystemCPUs",
        );
    }
    Ok(Some(CpuPolicyConfig {
        options,
        reserved_count,
    }))
}

fn resolve_cgroups(fields: &KubeletConfiguration) -> Result<CgroupConfig, InvalidField> {
    let root = match fields.cgroup_root.as_deref() {
        None | Some("") => "/",
        Some(path) => path,
    };
    if !is_clean(root) {
        return invalid_field("cgroupRoot", format!("is {root:?}, {CLEAN}"));
    }
    let period = duration_or_default(fields.cpu_cfs_quota_period, Duration::from_millis(100));
    let factor = fields.memory_throttling_factor;
    if let Some(factor) = factor
        && !(factor > 0.0 && factor <= 1.0)
    {
        return invalid_field(
            "memoryThrottlingFactor",
            format!("is {factor}, must be greater than 0 and at most 1"),
        );
    }
    let per_qos = fields.cgroups_per_qos.unwrap_or(true);
    let (enforce_pods, reserved_groups) = read_enforced_limits(fields, per_qos)?;
    Ok(CgroupConfig {
        tree: CgroupTree {
            root: root.into(),
            driver: read_cgroup_driver(fields)?,
        },
        per_qos,
        enforce_pods,
        reserved_groups,
        cpu_cfs_quota: fields.cpu_cfs_quota.unwrap_or(true),
        cpu_cfs_quota_period: period,
        cpu_policy: read_cpu_policy(fields)?,
        pod_pids_limit: fields.pod_pids_limit.filter(|n| *n > 0),
        pod_write_limit: pod_write_limit(fields, per_qos)?,
        oom_score_adj: i32::try_from(fields.oom_score_adj.unwrap_or(-999)).unwrap_or(-999),
        fail_swap_on: fields.fail_swap_on.unwrap_or(false),
        fail_cgroup_v1: fields.fail_cgroup_v1.unwrap_or(false),
        protect_kernel_defaults: fields.protect_kernel_defaults.unwrap_or(false),
        swap: match fields.memory_swap.swap_behavior.as_str() {
            "" | "NoSwap" => SwapBehavior::NoSwap,
            "LimitedSwap" => SwapBehavior::LimitedSwap,
            other => {
                return invalid_field(
                    "memorySwap.swapBehavior",
                    format!("is {other:?}, must be \"NoSwap\" or \"LimitedSwap\""),
                );
            }
        },
        memory_qos: memory_qos(fields, factor.map(permille))?,
        single_process_oom_kill: fields.single_process_oom_kill,
    })
}

/// Reads a pod's limit of writes, bytes a second, which its cgroup holds (WEAR-07).
fn pod_write_limit(
    fields: &KubeletConfiguration,
    per_qos: bool,
) -> Result<Option<u64>, InvalidField> {
    let field = "picolet.podWriteLimit";
    let Some(limit) = &fields.picolet.pod_write_limit else {
        return Ok(None);
    };
    if !per_qos {
        return invalid_field(field, "needs cgroupsPerQOS: pods have no cgroup without it");
    }
    match pod_writes::parse_write_rate(limit) {
        Ok(rate) => Ok(Some(rate)),
        Err(why) => invalid_field(field, format!("is {limit}, {why}")),
    }
}

/// Reads the settings of `MemoryQoS`, which is off unless its gate is named (CG-16).
fn memory_qos(
    fields: &KubeletConfiguration,
    throttling_permille: Option<u32>,
) -> Result<Option<MemoryQosConfig>, InvalidField> {
    let is_on = fields.feature_gates.get(gates::MEMORY_QOS) == Some(&true);
    let field = "memoryReservationPolicy";
    let reserves = match fields.memory_reservation_policy.as_deref() {
        None | Some("" | "None") => false,
        Some("TieredReservation") if is_on => true,
        Some(policy @ "TieredReservation") => {
            let message = format!("is {policy:?}, which needs featureGates: {{MemoryQoS: true}}");
            return invalid_field(field, message);
        }
        Some(other) => {
            let message = format!("is {other:?}, must be \"None\" or \"TieredReservation\"");
            return invalid_field(field, message);
        }
    };
    Ok(is_on.then_some(MemoryQosConfig {
        throttling_permille,
        reserves,
    }))
}

/// Reads the limits to hold: true if all pods together are limited, and the limited groups of the operator (CONF-12).
fn read_enforced_limits(
    fields: &KubeletConfiguration,
    per_qos: bool,
) -> Result<(bool, Vec<ReservedGroup>), InvalidField> {
    let field = "enforceNodeAllocatable";
    let tiers = fields.enforce_node_allocatable.clone();
    let tiers = tiers.unwrap_or_else(|| vec!["pods".into()]);
    let mut groups: Vec<ReservedGroup> = Vec::new();
    for (n, tier) in tiers.iter().enumerate() {
        if tiers[..n].contains(tier) {
            return invalid_field(field, format!("has {tier} twice"));
        }
        let (name, compressible) = match tier.strip_suffix("-compressible") {
            Some(name) => (name, true),
            None => (&**tier, false),
        };
        let (key, path) = match name {
            "pods" | "none" if !compressible => continue,
            "system-reserved" => ("systemReservedCgroup", &fields.system_reserved_cgroup),
            "kube-reserved" => ("kubeReservedCgroup", &fields.kube_reserved_cgroup),
            _ => {
                let known =
                    "none, pods, system-reserved, kube-reserved and their -compressible forms";
                return invalid_field(field, format!("has {tier:?}, known are {known}"));
            }
        };
        let Some(path) = path.as_deref().filter(|path| !path.is_empty()) else {
            return invalid_field(key, format!("is missing, but {tier} in {field} needs it"));
        };
        if path == "/" || !is_clean(path) {
            return invalid_field(key, format!("is {path:?}, {CLEAN}"));
        }
        if groups.iter().any(|group| group.field == key) {
            return invalid_field(field, format!("has {name} and {name}-compressible"));
        }
        groups.push(ReservedGroup {
            field: key,
            path: path.into(),
            is_system: name == "system-reserved",
            compressible,
        });
    }
    let has = |name: &str| tiers.iter().any(|tier| tier == name);
    if has("none") && tiers.len() > 1 {
        return invalid_field(field, "must have no other item beside none");
    }
    if !(has("none") || tiers.is_empty() || per_qos) {
        return invalid_field(field, "must be [none] when cgroupsPerQOS is false");
    }
    Ok((has("pods"), groups))
}

/// Rule of [`is_clean`], for messages.
const CLEAN: &str = "must be an absolute path without '.', '..' and doubled slashes";

fn is_clean(path: &str) -> bool {
    let rest = path.strip_prefix('/');
    path == "/"
        || rest.is_some_and(|rest| rest.split('/').all(|part| !matches!(part, "" | "." | "..")))
}

fn read_reserved_resources(
    fields: &KubeletConfiguration,
) -> Result<ReservedResources, InvalidField> {
    for (field, map) in [
        ("systemReserved", &fields.system_reserved),
        ("kubeReserved", &fields.kube_reserved),
    ] {
        for (name, quantity) in map {
            if !["cpu", "memory", "ephemeral-storage", "pid"].contains(&name.as_str()) {
                return invalid_field(
                    &format!("{field}[{name}]"),
                    "must be one of cpu, memory, ephemeral-storage, pid",
                );
            }
            if quantity.milli_value() < 0 {
                return invalid_field(&format!("{field}[{name}]"), "must not be negative");
            }
        }
    }
    let mut system = fields.system_reserved.clone();
    let mut kube = fields.kube_reserved.clone();
    let list = fields.reserved_system_cpus.as_deref().unwrap_or_default();
    let Some(cpus) = CpuSet::parse(list) else {
        return invalid_field(
            "reservedSystemCPUs",
            format!("is {list:?}, must be a list of processors such as 0-1,3"),
        );
    };
    if !cpus.is_empty() {
        kube.remove("cpu");
        let count = Quantity::parse(&cpus.len().to_string()).expect("a number is a quantity");
        system.insert("cpu".into(), count);
    }
    Ok(ReservedResources {
        system,
        kube,
        cpus,
        local_storage: fields.local_storage_capacity_isolation.unwrap_or(true),
    })
}

/// Converts a part of 1 into thousandths; at least one if it is not zero.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped to 0..=1000 before"
)]
fn permille(part: f64) -> u32 {
    let rounded = (part * 1000.0).round().clamp(0.0, 1000.0) as u32;
    if part > 0.0 { rounded.max(1) } else { rounded }
}

fn resolve_logs(fields: &KubeletConfiguration) -> Result<LogConfig, InvalidField> {
    let size = fields
        .container_log_max_size
        .as_ref()
        .map_or(10 << 20, Quantity::value);
    if size == 0 {
        return invalid_field(
            "containerLogMaxSize",
            "must not be 0; a negative size means that no log is rotated",
        );
    }
    let interval = duration_or_default(fields.container_log_monitor_interval, 10 * SECOND);
    let max_size_bytes = u64::try_from(size).ok();
    let field = "picolet.maxLogBytes";
    let all = fields.picolet.max_log_bytes.as_ref();
    let max_all_bytes = all.map(|all| u64::try_from(all.value()).unwrap_or(0));
    match (max_all_bytes, max_size_bytes) {
        (Some(_), None) => {
            return invalid_field(field, "needs a containerLogMaxSize that is not negative");
        }
        (Some(all), Some(one)) if all < one => {
            let message = format!("is {all}, must be at least containerLogMaxSize, {one}");
            return invalid_field(field, message);
        }
        (Some(_) | None, _) => {}
    }
    Ok(LogConfig {
        max_size_bytes,
        max_all_bytes,
        memory_bytes: read_log_memory_bytes(&fields.picolet)?,
        max_files: count_or_default(fields.container_log_max_files, 5),
        workers: count_or_default(fields.container_log_max_workers, 1),
        monitor_interval: interval,
    })
}

/// Reads the limit of logs in memory, bytes (WEAR-05).
fn read_log_memory_bytes(own: &PicoletSection) -> Result<Option<u64>, InvalidField> {
    /// Least limit: a hundred shims have a few pages each.
    const MIN_BYTES: u64 = 1 << 20;
    let bytes = own.log_memory.as_ref();
    match bytes.map(|bytes| u64::try_from(bytes.value()).unwrap_or(0)) {
        Some(bytes) if bytes < MIN_BYTES => invalid_field(
            "picolet.logMemory",
            format!("is {bytes}, must be at least {MIN_BYTES}"),
        ),
        bytes => Ok(bytes),
    }
}

fn resolve_images(fields: &KubeletConfiguration) -> Result<ImageConfig, InvalidField> {
    let own = &fields.picolet;
    let percent = |n: Option<i64>, default| n.and_then(|n| u8::try_from(n).ok()).unwrap_or(default);
    let high = percent(fields.image_gc_high_threshold_percent, 85);
    let low = percent(fields.image_gc_low_threshold_percent, 80);
    if low >= high {
        return invalid_field(
            "imageGCLowThresholdPercent",
            format!("is {low}, must be lower than imageGCHighThresholdPercent, {high}"),
        );
    }
    let min_age = nonzero_duration_or_default(fields.image_minimum_gc_age, 2 * MINUTE);
    let max_age = fields
        .image_maximum_gc_age
        .map(|age| age.0)
        .filter(|age| !age.is_zero());
    if let Some(max_age) = max_age
        && max_age <= min_age
    {
        return invalid_field(
            "imageMaximumGCAge",
            format!("is {max_age:?}, must be 0 or longer than imageMinimumGCAge, {min_age:?}"),
        );
    }
    let parallel = fields.max_parallel_image_pulls;
    let serialize = fields
        .serialize_image_pulls
        .unwrap_or_else(|| parallel.is_none_or(|n| n < 2));
    if serialize && parallel.is_some_and(|n| n > 1) {
        return invalid_field(
            "maxParallelImagePulls",
            "must be 1 when serializeImagePulls is true",
        );
    }
    Ok(ImageConfig {
        parallel_pulls: if serialize {
            Some(1)
        } else {
            parallel.and_then(|n| u32::try_from(n).ok())
        },
        min_age,
        max_age,
        high_percent: high,
        low_percent: low,
        pull_qps: count_or_default(fields.registry_pull_qps, 5),
        pull_burst: count_or_default(fields.registry_burst, 10),
        bytes_per_second: own
            .image_pull_bandwidth
            .as_ref()
            .map(bytes_per_second)
            .transpose()?
            .filter(|rate| *rate > 0),
        registries: read_absolute_path(
            "picolet.registriesFile",
            own.registries_file.as_deref(),
            "/etc/picolet/registries.yaml",
        )?,
        credential_providers: credential_providers(own)?,
        allowed_registries: own.image_policy.allowed_registries.clone(),
        require_digest: own.image_policy.require_digest.unwrap_or(false),
        verification: read_image_verification(fields)?,
    })
}

fn read_image_verification(
    fields: &KubeletConfiguration,
) -> Result<VerificationPolicy, InvalidField> {
    let policy_field = "imagePullCredentialsVerificationPolicy";
    let list_field = "preloadedImagesVerificationAllowlist";
    let list = &fields.preloaded_images_verification_allowlist;
    let policy = fields.image_pull_credentials_verification_policy.as_deref();
    let policy = match policy.unwrap_or_default() {
        "NeverVerify" => VerificationPolicy::Never,
        "" | "NeverVerifyPreloadedImages" => VerificationPolicy::NotPreloaded,
        "NeverVerifyAllowlistedImages" => {
            let patterns = list.iter().enumerate();
            let patterns =
                patterns.map(|(n, one)| read_image_pattern(&format!("{list_field}[{n}]"), one));
            let patterns: Result<_, InvalidField> = patterns.collect();
            return patterns.map(VerificationPolicy::NotAllowed);
        }
        "AlwaysVerify" => VerificationPolicy::Always,
        other => {
            return invalid_field(
                policy_field,
                format!(
                    "is {other:?}, must be NeverVerify, NeverVerifyPreloadedImages, \
                     NeverVerifyAllowlistedImages or AlwaysVerify"
                ),
            );
        }
    };
    if !list.is_empty() {
        let why = format!("must be set only with {policy_field} NeverVerifyAllowlistedImages");
        return invalid_field(list_field, why);
    }
    Ok(policy)
}

/// A pattern of the list, as [`VerificationPolicy::NotAllowed`] has it.
///
/// - Source: kubelet `pkg/kubelet/images/pullmanager/image_pull_policies.go`, `getAllowlistImagePattern`.
fn read_image_pattern(field: &str, pattern: &str) -> Result<String, InvalidField> {
    let wrong = |why: &str| invalid_field(field, format!("is {pattern:?}, {why}"));
    if pattern.trim() != pattern {
        return wrong("must not begin or end with a space");
    }
    let is_prefix = pattern.ends_with("/*");
    let name = pattern.strip_suffix("/*").unwrap_or(pattern);
    if is_prefix && name.is_empty() {
        return wrong("must name a registry");
    }
    if name.contains('*') {
        return wrong("must have a * only at the end, behind a slash");
    }
    // A registry alone is no reference.
    let probe = match is_prefix {
        true => format!("{name}/x/x"),
        false => name.to_owned(),
    };
    let parsed = match ImageReference::parse(&probe) {
        Ok(parsed) => parsed,
        Err(e) => return invalid_field(field, e.to_string()),
    };
    let last = name.rsplit('/').next().unwrap_or(name);
    if name.contains('@') || (!is_prefix && last.contains(':')) {
        return wrong("but neither tag nor digest is accepted in an image reference");
    }
    Ok(match is_prefix {
        true => {
            let whole = parsed.repository();
            whole.strip_suffix("x/x").unwrap_or(whole).to_owned()
        }
        false => parsed.repository().to_owned(),
    })
}

fn bytes_per_second(rate: &Quantity) -> Result<u64, InvalidField> {
    let field = "picolet.imagePullBandwidth";
    match u64::try_from(rate.value()) {
        Ok(rate) => Ok(rate),
        Err(_) => invalid_field(field, format!("is {rate}, must not be negative")),
    }
}

fn credential_providers(own: &PicoletSection) -> Result<Option<(PathBuf, PathBuf)>, InvalidField> {
    let (config, dir) = (
        "picolet.imageCredentialProviderConfig",
        "picolet.imageCredentialProviderBinDir",
    );
    let set = |path: &Option<String>| path.as_deref().is_some_and(|p| !p.is_empty());
    match (
        set(&own.image_credential_provider_config),
        set(&own.image_credential_provider_bin_dir),
    ) {
        (false, false) => Ok(None),
        (true, true) => Ok(Some((
            read_absolute_path(config, own.image_credential_provider_config.as_deref(), "")?,
            read_absolute_path(dir, own.image_credential_provider_bin_dir.as_deref(), "")?,
        ))),
        (true, false) => invalid_field(dir, format!("must be set beside {config}")),
        (false, true) => invalid_field(config, format!("must be set beside {dir}")),
    }
}

fn resolve_garbage(fields: &KubeletConfiguration) -> GarbageConfig {
    let own = &fields.picolet;
    // Negative means no limit.
    let limit = |n: i64| u32::try_from(n).ok();
    GarbageConfig {
        min_age: duration_or_default(own.minimum_container_ttl_duration, Duration::ZERO),
        max_per_container: limit(own.maximum_dead_containers_per_container.unwrap_or(1)),
        max_total: limit(own.maximum_dead_containers.unwrap_or(-1)),
    }
}

fn resolve_pod_network(fields: &KubeletConfiguration) -> Result<PodNetworkConfig, InvalidField> {
    let own = &fields.picolet;
    let mut cluster_dns = Vec::new();
    for (n, text) in fields.cluster_dns.iter().enumerate() {
        match text.parse() {
            Ok(ip) => cluster_dns.push(ip),
            Err(_) => {
                return invalid_field(
                    &format!("clusterDNS[{n}]"),
                    format!("is {text:?}, must be an IP address"),
                );
            }
        }
    }
    let subnet = match (
        own.builtin_network.subnet.as_deref(),
        fields.pod_cidr.as_deref(),
    ) {
        (Some(text), _) => ("picolet.builtinNetwork.subnet", text),
        (None, Some(text)) => ("podCIDR", text),
        (None, None) => ("", ""),
    };
    let builtin_subnet = match subnet {
        (_, "") => DEFAULT_SUBNET,
        (field, text) => match parse_ipv4_subnet(text) {
            Some(subnet) => subnet,
            None => {
                return invalid_field(
                    field,
                    format!(
                        "is {text:?}, must be an IPv4 network with a prefix of 8 to 29 bits, such as {DEFAULT_SUBNET}"
                    ),
                );
            }
        },
    };
    let bridge = own
        .builtin_network
        .bridge
        .as_deref()
        .unwrap_or(DEFAULT_BRIDGE);
    // The kernel's rule for interface names (`dev_valid_name`), less what a shell would stumble over.
    let named = (1..=15).contains(&bridge.len())
        && bridge
            .bytes()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.'))
        && !bridge.starts_with(['.', '-']);
    if !named {
        return invalid_field(
            "picolet.builtinNetwork.bridge",
            format!("is {bridge:?}, must be an interface name of 1 to 15 characters"),
        );
    }
    Ok(PodNetworkConfig {
        cni_conf: read_absolute_path(
            "picolet.cniConfDir",
            own.cni_conf_dir.as_deref(),
            "/etc/cni/net.d",
        )?,
        cni_bin: read_absolute_path(
            "picolet.cniBinDir",
            own.cni_bin_dir.as_deref(),
            "/opt/cni/bin",
        )?,
        builtin_subnet,
        subnet_is_given: !subnet.1.is_empty(),
        builtin_bridge: bridge.into(),
        resolv_conf: match fields.resolv_conf.as_deref() {
            Some("") => None,
            path => Some(read_absolute_path("resolvConf", path, "/etc/resolv.conf")?),
        },
        cluster_dns,
        cluster_domain: fields.cluster_domain.clone().unwrap_or_default(),
    })
}

fn parse_ipv4_subnet(text: &str) -> Option<Ipv4Subnet> {
    let (address, prefix) = text.split_once('/')?;
    let address: Ipv4Addr = address.parse().ok()?;
    let prefix: u8 = prefix.parse().ok()?;
    if !(8..=29).contains(&prefix) {
        return None;
    }
    let mask = u32::MAX << (32 - prefix);
    Some(Ipv4Subnet {
        address: Ipv4Addr::from(u32::from(address) & mask),
        prefix,
    })
}

fn pod_logs_dir(path: Option<&str>) -> Result<PathBuf, InvalidField> {
    let path = read_absolute_path("podLogsDir", path, "/var/log/pods")?;
    let text = path.to_string_lossy();
    let clean = text.is_ascii()
        && !text.ends_with('/')
        && text[1..].split('/').all(|p| !matches!(p, "" | "." | ".."));
    if clean {
        return Ok(path);
    }
    invalid_field(
        "podLogsDir",
        format!("is {path:?}, must be a clean path in ASCII"),
    )
}
