//! Makes the checked configuration from the fields of the document: defaults and rules are in this one place.

use alloc::collections::BTreeMap;
use core::time::Duration;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::HostIdentity;
use super::checks::{InvalidField, absolute, count, invalid, kept, unset_if_zero};
use super::file::{KubeletConfiguration, PicoletSection};
use super::values::{
    AgentConfig, AgentDirs, CgroupConfig, DEFAULT_BRIDGE, DEFAULT_SUBNET, GarbageConfig,
    ImageConfig, Ipv4Subnet, LogConfig, MemoryQosConfig, PodNetworkConfig, ReservedGroup,
    ReservedResources, RuntimeConfig, SwapBehavior, TimeConfig,
};
use super::{
    cluster, configz, endpoints, eviction, gates, keys, link, manifest_url, node, server,
    without_effect,
};
use crate::api::cri::CgroupDriver;
use crate::api::{Quantity, names};
use crate::image::ImageReference;
use crate::logic::{cgroup::CgroupTree, image_access::VerificationPolicy, pod_writes, shutdown};
use crate::parts;

/// Most OCI runtimes beside the default one.
const MAX_HANDLERS: usize = 16;
/// Most groups of pods that end one after the other with the machine.
const MAX_SHUTDOWN_GROUPS: usize = 64;
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// Applies defaults and checks every rule. `from_file` says whether a document was loaded: only then has
/// `evictionHard` a default (CONF-10). Adds a warning for each setting without effect.
pub(super) fn resolve(
    fields: KubeletConfiguration,
    mut document: Value,
    from_file: bool,
    host: &HostIdentity,
    warnings: &mut Vec<String>,
) -> Result<AgentConfig, InvalidField> {
    keys::check_ranges(&document)?;
    check_ids_per_pod(&document)?;
    refuse(&fields)?;
    warnings.extend(without_effect::remove(&mut document));
    let own = &fields.picolet;
    let root = absolute(
        "picolet.rootDir",
        own.root_dir.as_deref(),
        "/var/lib/picolet",
    )?;
    let run = absolute("picolet.runDir", own.run_dir.as_deref(), "/run/picolet")?;
    let under = |dir: &Path, name: &str| dir.join(name).to_string_lossy().into_owned();
    let dirs = AgentDirs {
        manifests: match fields.static_pod_path.as_deref() {
            Some("") => None,
            path => Some(absolute("staticPodPath", path, "/etc/picolet/manifests")?),
        },
        image_drop_in: absolute(
            "picolet.imageDir",
            own.image_dir.as_deref(),
            &under(&root, "import"),
        )?,
        pod_logs: pod_logs_dir(fields.pod_logs_dir.as_deref())?,
        container_logs: absolute(
            "picolet.containerLogDir",
            own.container_log_dir.as_deref(),
            "/var/log/containers",
        )?,
        socket: absolute(
            "picolet.socket",
            own.socket.as_deref(),
            &under(&run, "picolet.sock"),
        )?,
        root,
        run,
    };
    let node = node::resolve(&fields)?;
    let endpoints = endpoints::resolve(&fields)?;
    let cgroup = cgroup(&fields)?;
    let cluster = cluster::resolve(&fields, &dirs.root)?;
    let manifest_url = manifest_url::resolve(&fields)?;
    let server = server::resolve(&fields, cluster.is_member(), node.port)?;
    let mut config = AgentConfig {
        parts: Vec::new(),
        link: link::resolve(own)?,
        server,
        document: configz::shown(&document, cluster.is_member()),
        node_name: node::name(own.hostname_override.as_deref(), host)?,
        node_ips: node::ips(own.node_ip.as_deref().unwrap_or(""))?,
        node,
        cluster,
        manifest_url,
        verbosity: u8::try_from(fields.logging.verbosity.unwrap_or(0)).unwrap_or(u8::MAX),
        doorbells: own.doorbells.unwrap_or(true),
        times: times(&fields),
        max_pods: count(fields.max_pods, 110),
        pods_per_core: count(fields.pods_per_core, 0),
        runtime: RuntimeConfig {
            endpoints,
            program: own
                .oci_runtime
                .as_deref()
                .filter(|p| !p.is_empty())
                .unwrap_or("runc")
                .into(),
            process: endpoints::process(&fields)?,
            handlers: handlers(&own.handlers)?,
            root: absolute(
                "picolet.ociRuntimeRoot",
                own.oci_runtime_root.as_deref(),
                &under(&dirs.run, "oci"),
            )?,
        },
        eviction: eviction::resolve(&fields, from_file, cgroup.enforce_pods)?,
        cgroup,
        reserved: reserved(&fields)?,
        shutdown: shutdown(&fields)?,
        logs: logs(&fields)?,
        images: images(&fields)?,
        garbage: garbage(&fields),
        network: network(&fields)?,
        seccomp_default: fields.seccomp_default.unwrap_or(false),
        allowed_unsafe_sysctls: fields.allowed_unsafe_sysctls,
        dirs,
    };
    config.parts = parts::configure(&document["picolet"], &config)?;
    Ok(config)
}

/// Reads the other OCI runtimes, by handler.
fn handlers(all: &BTreeMap<String, String>) -> Result<BTreeMap<String, String>, InvalidField> {
    let field = "picolet.handlers";
    if all.len() > MAX_HANDLERS {
        return invalid(
            field,
            format!(
                "has {} entries, must have at most {MAX_HANDLERS}",
                all.len()
            ),
        );
    }
    for (name, path) in all {
        if !names::is_dns_label(name) {
            return invalid(
                field,
                format!("{name:?} is no name of a handler: lower-case letters, digits and '-'"),
            );
        }
        if !path.starts_with('/') {
            return invalid(
                &format!("{field}.{name}"),
                format!("is {path:?}, must be the absolute path of an OCI runtime"),
            );
        }
    }
    Ok(all.clone())
}

/// Checks the number of ids of a user namespace, which is no range.
fn check_ids_per_pod(document: &Value) -> Result<(), InvalidField> {
    let ids = &document["userNamespaces"]["idsPerPod"];
    if !ids.is_null() && !ids.as_i64().is_some_and(|n| n >= 65536 && n % 65536 == 0) {
        return invalid(
            "userNamespaces.idsPerPod",
            format!("is {ids}, must be a multiple of 65536"),
        );
    }
    Ok(())
}

/// Refuses settings that a kubelet has and this version has not: to do something else in silence would be worse.
fn refuse(fields: &KubeletConfiguration) -> Result<(), InvalidField> {
    if fields.run_once == Some(true) {
        return invalid("runOnce", "must be false");
    }
    let mut gates = fields.feature_gates.keys();
    if let Some(name) = gates.find(|name| !gates::is_known(name)) {
        return invalid(
            &format!("featureGates.{name}"),
            "no Kubernetes has this feature gate; only MemoryQoS has an effect here",
        );
    }
    Ok(())
}

fn times(fields: &KubeletConfiguration) -> TimeConfig {
    let backoff = kept(
        fields.crash_loop_back_off.max_container_restart_period,
        300 * SECOND,
    );
    TimeConfig {
        sync: unset_if_zero(fields.sync_frequency, MINUTE),
        file_check: unset_if_zero(fields.file_check_frequency, 20 * SECOND),
        runtime_request: unset_if_zero(fields.runtime_request_timeout, 2 * MINUTE),
        max_restart_backoff: backoff,
        streaming_idle: unset_if_zero(fields.streaming_connection_idle_timeout, 4 * 60 * MINUTE),
        volume_stats: unset_if_zero(fields.volume_stats_agg_period, MINUTE),
    }
}

/// Reads the groups of pods that end one after the other with the machine (CONF-12, SHUT-01).
fn shutdown(fields: &KubeletConfiguration) -> Result<Vec<shutdown::PriorityGroup>, InvalidField> {
    let grace = kept(fields.shutdown_grace_period, Duration::ZERO);
    let critical = kept(fields.shutdown_grace_period_critical_pods, Duration::ZERO);
    for (field, time) in [
        ("shutdownGracePeriod", grace),
        ("shutdownGracePeriodCriticalPods", critical),
    ] {
        if !time.is_zero() && time < SECOND {
            return invalid(field, format!("is {time:?}, must be 0 or at least 1s"));
        }
    }
    if critical > grace {
        return invalid(
            "shutdownGracePeriodCriticalPods",
            format!("is {critical:?}, must not be longer than shutdownGracePeriod, {grace:?}"),
        );
    }
    let by_priority = &fields.shutdown_grace_period_by_pod_priority;
    let field = "shutdownGracePeriodByPodPriority";
    if by_priority.is_empty() {
        let seconds = |time: Duration| u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
        return Ok(shutdown::groups(seconds(grace), seconds(critical)));
    }
    if !grace.is_zero() || !critical.is_zero() {
        return invalid(
            field,
            "excludes shutdownGracePeriod and shutdownGracePeriodCriticalPods",
        );
    }
    if by_priority.len() > MAX_SHUTDOWN_GROUPS {
        return invalid(field, format!("has more than {MAX_SHUTDOWN_GROUPS} items"));
    }
    let mut groups = Vec::new();
    for (n, item) in by_priority.iter().enumerate() {
        let Ok(seconds) = u32::try_from(item.shutdown_grace_period_seconds) else {
            let why = "must be a number of seconds, 0 or more";
            return invalid(&format!("{field}[{n}].shutdownGracePeriodSeconds"), why);
        };
        groups.push(shutdown::PriorityGroup {
            priority: item.priority,
            seconds,
        });
    }
    Ok(groups)
}

/// Reads the cgroup driver. `adapt` has left `systemd` only where a CRI runtime is configured.
fn driver(fields: &KubeletConfiguration) -> Result<CgroupDriver, InvalidField> {
    match fields.cgroup_driver.as_deref() {
        None | Some("" | "cgroupfs") => Ok(CgroupDriver::Cgroupfs),
        Some("systemd") => Ok(CgroupDriver::Systemd),
        Some(other) => invalid(
            "cgroupDriver",
            format!("is {other:?}, must be \"cgroupfs\" or \"systemd\""),
        ),
    }
}

fn cgroup(fields: &KubeletConfiguration) -> Result<CgroupConfig, InvalidField> {
    let root = match fields.cgroup_root.as_deref() {
        None | Some("") => "/",
        Some(path) => path,
    };
    if !is_clean(root) {
        return invalid("cgroupRoot", format!("is {root:?}, {CLEAN}"));
    }
    let period = kept(fields.cpu_cfs_quota_period, Duration::from_millis(100));
    let factor = fields.memory_throttling_factor.unwrap_or(0.9);
    if !(factor > 0.0 && factor <= 1.0) {
        return invalid(
            "memoryThrottlingFactor",
            format!("is {factor}, must be greater than 0 and at most 1"),
        );
    }
    let per_qos = fields.cgroups_per_qos.unwrap_or(true);
    let (enforce_pods, reserved_groups) = enforce(fields, per_qos)?;
    Ok(CgroupConfig {
        tree: CgroupTree {
            root: root.into(),
            driver: driver(fields)?,
        },
        per_qos,
        enforce_pods,
        reserved_groups,
        cpu_cfs_quota: fields.cpu_cfs_quota.unwrap_or(true),
        cpu_cfs_quota_period: period,
        pod_pids_limit: fields.pod_pids_limit.filter(|n| *n > 0),
        pod_write_limit: pod_write_limit(fields, per_qos)?,
        oom_score_adj: i32::try_from(fields.oom_score_adj.unwrap_or(-999)).unwrap_or(-999),
        max_open_files: u64::try_from(fields.max_open_files.unwrap_or(1_000_000)).unwrap_or(0),
        fail_swap_on: fields.fail_swap_on.unwrap_or(false),
        fail_cgroup_v1: fields.fail_cgroup_v1.unwrap_or(false),
        protect_kernel_defaults: fields.protect_kernel_defaults.unwrap_or(false),
        swap: match fields.memory_swap.swap_behavior.as_str() {
            "" | "NoSwap" => SwapBehavior::NoSwap,
            "LimitedSwap" => SwapBehavior::LimitedSwap,
            other => {
                return invalid(
                    "memorySwap.swapBehavior",
                    format!("is {other:?}, must be \"NoSwap\" or \"LimitedSwap\""),
                );
            }
        },
        memory_qos: memory_qos(fields, permille(factor))?,
        single_process_oom_kill: fields.single_process_oom_kill.unwrap_or(false),
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
        return invalid(field, "needs cgroupsPerQOS: pods have no cgroup without it");
    }
    match pod_writes::rate(limit) {
        Ok(rate) => Ok(Some(rate)),
        Err(why) => invalid(field, format!("is {limit}, {why}")),
    }
}

/// Reads the settings of `MemoryQoS`, which is off unless its gate is named (CG-16).
fn memory_qos(
    fields: &KubeletConfiguration,
    throttling_permille: u32,
) -> Result<Option<MemoryQosConfig>, InvalidField> {
    let is_on = fields.feature_gates.get(gates::MEMORY_QOS) == Some(&true);
    let field = "memoryReservationPolicy";
    let reserves = match fields.memory_reservation_policy.as_deref() {
        None | Some("" | "None") => false,
        Some("TieredReservation") if is_on => true,
        Some(policy @ "TieredReservation") => {
            let message = format!("is {policy:?}, which needs featureGates: {{MemoryQoS: true}}");
            return invalid(field, message);
        }
        Some(other) => {
            let message = format!("is {other:?}, must be \"None\" or \"TieredReservation\"");
            return invalid(field, message);
        }
    };
    Ok(is_on.then_some(MemoryQosConfig {
        throttling_permille,
        reserves,
    }))
}

/// Reads the limits to hold: true if all pods together are limited, and the limited groups of the operator (CONF-12).
fn enforce(
    fields: &KubeletConfiguration,
    per_qos: bool,
) -> Result<(bool, Vec<ReservedGroup>), InvalidField> {
    let field = "enforceNodeAllocatable";
    let tiers = fields.enforce_node_allocatable.clone();
    let tiers = tiers.unwrap_or_else(|| vec!["pods".into()]);
    let mut groups: Vec<ReservedGroup> = Vec::new();
    for (n, tier) in tiers.iter().enumerate() {
        if tiers[..n].contains(tier) {
            return invalid(field, format!("has {tier} twice"));
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
                return invalid(field, format!("has {tier:?}, known are {known}"));
            }
        };
        let Some(path) = path.as_deref().filter(|path| !path.is_empty()) else {
            return invalid(key, format!("is missing, which {tier} in {field} needs"));
        };
        if path == "/" || !is_clean(path) {
            return invalid(key, format!("is {path:?}, {CLEAN}"));
        }
        if groups.iter().any(|group| group.field == key) {
            return invalid(field, format!("has {name} and {name}-compressible"));
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
        return invalid(field, "none excludes all others");
    }
    if !(has("none") || tiers.is_empty() || per_qos) {
        return invalid(field, "must be [none] when cgroupsPerQOS is false");
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

fn reserved(fields: &KubeletConfiguration) -> Result<ReservedResources, InvalidField> {
    for (field, map) in [
        ("systemReserved", &fields.system_reserved),
        ("kubeReserved", &fields.kube_reserved),
    ] {
        for (name, quantity) in map {
            if !["cpu", "memory", "ephemeral-storage", "pid"].contains(&name.as_str()) {
                return invalid(
                    &format!("{field}[{name}]"),
                    "must be one of cpu, memory, ephemeral-storage, pid",
                );
            }
            if quantity.milli() < 0 {
                return invalid(&format!("{field}[{name}]"), "must not be negative");
            }
        }
    }
    let mut system = fields.system_reserved.clone();
    let mut kube = fields.kube_reserved.clone();
    if let Some(list) = fields
        .reserved_system_cpus
        .as_deref()
        .filter(|l| !l.is_empty())
    {
        let Some(cpus) = cpu_list(list) else {
            return invalid(
                "reservedSystemCPUs",
                format!("is {list:?}, must be a list of processors such as 0-1,3"),
            );
        };
        kube.remove("cpu");
        let cpus = Quantity::parse(&cpus.to_string()).expect("a number is a quantity");
        system.insert("cpu".into(), cpus);
    }
    Ok(ReservedResources {
        system,
        kube,
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

/// Counts the processors in a list such as `0-1,3`.
fn cpu_list(text: &str) -> Option<usize> {
    /// Highest processor number a list may name: the kernel's own build-time limit.
    const MAX_CPU: u32 = 8191;
    let mut cpus = alloc::collections::BTreeSet::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if first > last || last > MAX_CPU {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus.len())
}

fn logs(fields: &KubeletConfiguration) -> Result<LogConfig, InvalidField> {
    let size = fields
        .container_log_max_size
        .as_ref()
        .map_or(10 << 20, Quantity::value);
    if size == 0 {
        return invalid(
            "containerLogMaxSize",
            "must not be 0; a negative size means that no log is rotated",
        );
    }
    let interval = kept(fields.container_log_monitor_interval, 10 * SECOND);
    let max_size_bytes = u64::try_from(size).ok();
    let field = "picolet.maxLogBytes";
    let all = fields.picolet.max_log_bytes.as_ref();
    let max_all_bytes = all.map(|all| u64::try_from(all.value()).unwrap_or(0));
    match (max_all_bytes, max_size_bytes) {
        (Some(_), None) => {
            return invalid(field, "needs a containerLogMaxSize that is not negative");
        }
        (Some(all), Some(one)) if all < one => {
            let message = format!("is {all}, must be at least containerLogMaxSize, {one}");
            return invalid(field, message);
        }
        (Some(_) | None, _) => {}
    }
    Ok(LogConfig {
        max_size_bytes,
        max_all_bytes,
        memory_bytes: log_memory(&fields.picolet)?,
        max_files: count(fields.container_log_max_files, 5),
        workers: count(fields.container_log_max_workers, 1),
        monitor_interval: interval,
    })
}

/// Reads the limit of logs in memory, bytes (WEAR-05).
fn log_memory(own: &PicoletSection) -> Result<Option<u64>, InvalidField> {
    /// Least limit: a hundred shims have a few pages each.
    const MIN_BYTES: u64 = 1 << 20;
    let bytes = own.log_memory.as_ref();
    match bytes.map(|bytes| u64::try_from(bytes.value()).unwrap_or(0)) {
        Some(bytes) if bytes < MIN_BYTES => invalid(
            "picolet.logMemory",
            format!("is {bytes}, must be at least {MIN_BYTES}"),
        ),
        bytes => Ok(bytes),
    }
}

fn images(fields: &KubeletConfiguration) -> Result<ImageConfig, InvalidField> {
    let own = &fields.picolet;
    let percent = |n: Option<i64>, default| n.and_then(|n| u8::try_from(n).ok()).unwrap_or(default);
    let high = percent(fields.image_gc_high_threshold_percent, 85);
    let low = percent(fields.image_gc_low_threshold_percent, 80);
    if low >= high {
        return invalid(
            "imageGCLowThresholdPercent",
            format!("is {low}, must be lower than imageGCHighThresholdPercent, {high}"),
        );
    }
    let min_age = unset_if_zero(fields.image_minimum_gc_age, 2 * MINUTE);
    let max_age = fields
        .image_maximum_gc_age
        .map(|age| age.0)
        .filter(|age| !age.is_zero());
    if let Some(max_age) = max_age
        && max_age <= min_age
    {
        return invalid(
            "imageMaximumGCAge",
            format!("is {max_age:?}, must be 0 or longer than imageMinimumGCAge, {min_age:?}"),
        );
    }
    let parallel = fields.max_parallel_image_pulls;
    let serialize = fields
        .serialize_image_pulls
        .unwrap_or_else(|| parallel.is_none_or(|n| n < 2));
    if serialize && parallel.is_some_and(|n| n > 1) {
        return invalid(
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
        pull_qps: count(fields.registry_pull_qps, 5),
        pull_burst: count(fields.registry_burst, 10),
        bytes_per_second: own
            .image_pull_bandwidth
            .as_ref()
            .map(bytes_per_second)
            .transpose()?
            .filter(|rate| *rate > 0),
        registries: absolute(
            "picolet.registriesFile",
            own.registries_file.as_deref(),
            "/etc/picolet/registries.yaml",
        )?,
        credential_providers: credential_providers(own)?,
        allowed_registries: own.image_policy.allowed_registries.clone(),
        require_digest: own.image_policy.require_digest.unwrap_or(false),
        verification: verification(fields)?,
    })
}

fn verification(fields: &KubeletConfiguration) -> Result<VerificationPolicy, InvalidField> {
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
                patterns.map(|(n, one)| allowed_images(&format!("{list_field}[{n}]"), one));
            let patterns: Result<_, InvalidField> = patterns.collect();
            return patterns.map(VerificationPolicy::NotAllowed);
        }
        "AlwaysVerify" => VerificationPolicy::Always,
        other => {
            return invalid(
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
        return invalid(list_field, why);
    }
    Ok(policy)
}

/// A pattern of the list, as [`VerificationPolicy::NotAllowed`] has it.
///
/// - Source: kubelet `pkg/kubelet/images/pullmanager/image_pull_policies.go`, `getAllowlistImagePattern`.
fn allowed_images(field: &str, pattern: &str) -> Result<String, InvalidField> {
    let wrong = |why: &str| invalid(field, format!("is {pattern:?}, {why}"));
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
        Err(e) => return invalid(field, e.to_string()),
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
        Err(_) => invalid(field, format!("is {rate}, must not be negative")),
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
            absolute(config, own.image_credential_provider_config.as_deref(), "")?,
            absolute(dir, own.image_credential_provider_bin_dir.as_deref(), "")?,
        ))),
        (true, false) => invalid(dir, format!("must be set beside {config}")),
        (false, true) => invalid(config, format!("must be set beside {dir}")),
    }
}

fn garbage(fields: &KubeletConfiguration) -> GarbageConfig {
    let own = &fields.picolet;
    // Negative means no limit.
    let limit = |n: i64| u32::try_from(n).ok();
    GarbageConfig {
        min_age: kept(own.minimum_container_ttl_duration, Duration::ZERO),
        max_per_container: limit(own.maximum_dead_containers_per_container.unwrap_or(1)),
        max_total: limit(own.maximum_dead_containers.unwrap_or(-1)),
    }
}

fn network(fields: &KubeletConfiguration) -> Result<PodNetworkConfig, InvalidField> {
    let own = &fields.picolet;
    let mut cluster_dns = Vec::new();
    for (n, text) in fields.cluster_dns.iter().enumerate() {
        match text.parse() {
            Ok(ip) => cluster_dns.push(ip),
            Err(_) => {
                return invalid(
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
        (field, text) => match self::subnet(text) {
            Some(subnet) => subnet,
            None => {
                return invalid(
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
        return invalid(
            "picolet.builtinNetwork.bridge",
            format!("is {bridge:?}, must be an interface name of 1 to 15 characters"),
        );
    }
    Ok(PodNetworkConfig {
        cni_conf: absolute(
            "picolet.cniConfDir",
            own.cni_conf_dir.as_deref(),
            "/etc/cni/net.d",
        )?,
        cni_bin: absolute(
            "picolet.cniBinDir",
            own.cni_bin_dir.as_deref(),
            "/opt/cni/bin",
        )?,
        builtin_subnet,
        subnet_is_given: !subnet.1.is_empty(),
        builtin_bridge: bridge.into(),
        resolv_conf: match fields.resolv_conf.as_deref() {
            Some("") => None,
            path => Some(absolute("resolvConf", path, "/etc/resolv.conf")?),
        },
        cluster_dns,
        cluster_domain: fields.cluster_domain.clone().unwrap_or_default(),
    })
}

fn subnet(text: &str) -> Option<Ipv4Subnet> {
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
    let path = absolute("podLogsDir", path, "/var/log/pods")?;
    let text = path.to_string_lossy();
    let clean = text.is_ascii()
        && !text.ends_with('/')
        && text[1..].split('/').all(|p| !matches!(p, "" | "." | ".."));
    if clean {
        return Ok(path);
    }
    invalid(
        "podLogsDir",
        format!("is {path:?}, must be a clean path in ASCII"),
    )
}
