//! Cgroups of pods and tiers: values from `logic::cgroup`, effects in `cgroup`.

use core::time::Duration;

use super::{
    ctx::{Ctx, Shared},
    node::NodeFacts,
    pods::ConfigPod,
    recorder::Severity,
};
use crate::{
    api::{Pod, PodUid, pod_status::QosClass},
    cgroup::{CgroupError, Cgroups, Version},
    config::{Config, SwapBehavior},
    logic::{
        cgroup::{self as values, pod_cgroup},
        node_resources,
        qos::{CPU, qos_class},
    },
};

/// What cgroup values depend on.
pub(super) fn settings(
    cfg: &Config,
    node: &NodeFacts,
    cgroups: &Cgroups,
) -> values::CgroupSettings {
    let signed = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    let cgroup = &cfg.cgroup;
    values::CgroupSettings {
        cgroup_root: cgroup.root.clone(),
        cfs_quota: cgroup.cpu_cfs_quota,
        cfs_period_us: u64::try_from(cgroup.cpu_cfs_quota_period.as_micros())
            .unwrap_or(values::DEFAULT_PERIOD_US),
        pod_pids_limit: cgroup.pod_pids_limit.unwrap_or(-1),
        single_process_oom_kill: cgroup.single_process_oom_kill,
        limited_swap: cgroup.swap == SwapBehavior::LimitedSwap,
        v2: cgroups.version() == Version::V2,
        swap_controller: accounts_swap(cgroups, &cgroup.root),
        node_memory_bytes: signed(node.memory_bytes),
        node_swap_bytes: signed(node.swap_bytes),
        hugepage_sizes: node.hugepages.iter().map(|(size, _)| *size).collect(),
    }
}

/// Whether the kernel accounts swap. Version 2 has the file in every group but the root, so `kubepods` is made first.
fn accounts_swap(cgroups: &Cgroups, root: &str) -> bool {
    let kubepods = values::kubepods_path(root);
    // Failing to make it is told when the tiers are made.
    let _ = cgroups.create_leaf(&kubepods);
    let dir = cgroups.memory_dir(&kubepods);
    dir.is_some_and(|dir| {
        ["memory.swap.max", "memory.memsw.limit_in_bytes"]
            .iter()
            .any(|f| dir.join(f).exists())
    })
}

/// Between two tries to give `kubepods` its limits.
const ENFORCE_RETRY: Duration = Duration::from_secs(60);

const TIERS: [QosClass; 3] = [
    QosClass::Guaranteed,
    QosClass::Burstable,
    QosClass::BestEffort,
];

/// Path of the pod's cgroup.
pub(super) fn pod_path(ctx: &Ctx, pod: &Pod) -> String {
    values::pod_path(&ctx.cfg.cgroup.root, qos_class(pod), &pod.metadata.uid)
}

/// Makes `kubepods` and the tiers, at start and again if they have gone.
pub(super) fn ensure_tiers(ctx: &Ctx) -> Result<(), String> {
    for qos in TIERS {
        let path = values::tier_path(&ctx.cfg.cgroup.root, qos);
        let limits = if qos == QosClass::Guaranteed {
            node_resources::kubepods(
                ctx.node.capacity(),
                ctx.node.kept,
                ctx.cfg.cgroup.enforce_pods,
            )
        } else {
            let mut limits = values::tier_values(qos, 0, &ctx.node.context().cgroups);
            // Pods of an agent before this one may run there: what it was given stays until the sources are read.
            if qos == QosClass::Burstable && ctx.cgroups.exists(&path) {
                limits.cpu_shares = None;
            }
            limits
        };
        ctx.cgroups.create(&path, &limits).map_err(text)?;
    }
    ctx.burstable_milli.set(None);
    Ok(())
}

/// Tries [`ensure_tiers`] until it has succeeded once (CG-12).
pub(super) async fn enforce_allocatable(ctx: Shared) {
    loop {
        match ensure_tiers(&ctx) {
            Ok(()) => {
                ctx.node_event(
                    Severity::Normal,
                    "NodeAllocatableEnforced",
                    "Updated Node Allocatable limit across pods",
                );
                return;
            }
            Err(e) => ctx.node_event(
                Severity::Warning,
                "FailedNodeAllocatableEnforcement",
                &format!(
                    "Failed to update Node Allocatable Limits {:?}: {e}",
                    values::kubepods_path(&ctx.cfg.cgroup.root)
                ),
            ),
        }
        ctx.clock.until(ctx.clock.now() + ENFORCE_RETRY).await;
    }
}

/// Whether the Burstable tier's share is not what its pods now ask for together.
pub(super) fn tiers_are_stale(ctx: &Ctx) -> bool {
    ctx.cfg.cgroup.per_qos && ctx.burstable_milli.get() != Some(burstable_milli(ctx))
}

/// Gives the Burstable tier the share that its pods ask for together, if it has another (CG-11).
pub(super) fn refresh_tiers(ctx: &Ctx) -> Result<(), String> {
    if !tiers_are_stale(ctx) {
        return Ok(());
    }
    let milli = burstable_milli(ctx);
    let qos = QosClass::Burstable;
    let path = values::tier_path(&ctx.cfg.cgroup.root, qos);
    let limits = values::tier_values(qos, milli, &ctx.node.context().cgroups);
    ctx.cgroups.create(&path, &limits).map_err(text)?;
    ctx.burstable_milli.set(Some(milli));
    Ok(())
}

/// Sum of the CPU requests of active Burstable pods, thousandths.
fn burstable_milli(ctx: &Ctx) -> i64 {
    let burstable = |pod: &ConfigPod| pod.qos == QosClass::Burstable;
    ctx.pods.with_active(|active| {
        active
            .filter(|(_, pod)| burstable(pod))
            .filter_map(|(_, pod)| pod.takes.requests.get(CPU))
            .fold(0_i64, |sum, milli| sum.saturating_add(*milli))
    })
}

/// Makes the pod's cgroup with its limits, or brings its limits up to date.
pub(super) fn ensure(ctx: &Ctx, pod: &Pod) -> Result<(), String> {
    let qos = qos_class(pod);
    let wanted = pod_cgroup(pod, qos, &ctx.node.context().cgroups);
    // One that an agent before this one left may have died before its limits were written.
    let uid = &pod.metadata.uid;
    if ctx.cgroups.exists(&wanted.path) && ctx.pods.is_limited(uid) {
        return Ok(());
    }
    if !ctx
        .cgroups
        .exists(&values::tier_path(&ctx.cfg.cgroup.root, qos))
    {
        ensure_tiers(ctx)?;
    }
    refresh_tiers(ctx)?;
    ctx.cgroups
        .create(&wanted.path, &wanted.values)
        .map_err(text)?;
    ctx.pods.set_limited(uid, true);
    Ok(())
}

fn text(e: CgroupError) -> String {
    super::sync::chain(&e)
}

/// Kills what is left in the pod's cgroup, whatever its tier, and removes it. None there is success (SYNC-32).
pub(super) async fn remove(ctx: &Ctx, uid: &PodUid) -> Result<(), String> {
    for qos in TIERS {
        let path = values::pod_path(&ctx.cfg.cgroup.root, qos, uid);
        if ctx.cgroups.exists(&path) {
            ctx.cgroups
                .destroy(&path)
                .await
                .map_err(|e| super::sync::chain(&e))?;
        }
    }
    ctx.pods.set_limited(uid, false);
    Ok(())
}

/// Pods that have a cgroup, with its path.
pub(super) fn list(ctx: &Ctx) -> Vec<(PodUid, String)> {
    ctx.cgroups
        .list_pods(&values::kubepods_path(&ctx.cfg.cgroup.root))
}
