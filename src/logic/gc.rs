//! Garbage collection of dead instances, sandboxes, log directories (GC-01..GC-06). Images: [`super::image_gc`].
//! Names follow kubelet `kuberuntime_gc.go` and `pod_container_deletor.go`.

use alloc::vec::Vec;
use core::{cmp::Reverse, time::Duration};

use crate::api::order::OrderExt;
use crate::api::{
    ContainerId, PodUid, SandboxId, WallTime,
    cri::{
        ContainerItem, ContainerState, ContainerStatus, PodItem, PodRuntimeStatus, SandboxState,
    },
};

/// Rules for keeping dead instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContainerGcPolicy {
    /// Younger ones are kept, by creation time.
    pub min_age: Duration,
    /// Dead instances kept per container of a living pod.
    pub max_per_container: usize,
    /// Dead instances kept on the whole node; `None` for no limit.
    pub max_total: Option<usize>,
}

impl Default for ContainerGcPolicy {
    fn default() -> Self {
        Self {
            min_age: Duration::ZERO,
            max_per_container: 1,
            max_total: None,
        }
    }
}

/// State of a pod in the pod table, as far as garbage collection needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodGcState {
    /// Configured, or on its way out: its last instances are still of use.
    Kept,
    /// Gone, or evicted, and without a running container
    /// ([`PodTable::is_garbage`](crate::pod_table::PodTable::is_garbage)): all instances may be removed.
    ContentRemovable,
}

/// An instance to remove.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceRemoval {
    /// Instance.
    pub id: ContainerId,
    /// Set if the instance must be stopped first: its state is unknown, so it may still run.
    pub stop_first: bool,
}

/// Chooses dead instances (GC-01, GC-03, IGC-03).
///
/// - Running ones are never chosen; nor is the newest instance of a living pod's container while it is only Created,
///   for its start may be under way.
/// - `age` tells the time that has passed since a creation.
/// - `fate` is asked only when `sources_ready`; before that every pod counts as kept.
/// - Order: pod by pod as given, oldest first within a container; those over the global limit last.
#[must_use]
pub fn removable_containers(
    pods: &[PodItem],
    fate: &dyn Fn(&PodUid) -> PodGcState,
    sources_ready: bool,
    policy: &ContainerGcPolicy,
    age: &dyn Fn(WallTime) -> Duration,
) -> Vec<InstanceRemoval> {
    let mut out = Vec::new();
    let mut units: Vec<Vec<&ContainerItem>> = Vec::new();
    for pod in pods {
        let gone = sources_ready && fate(&pod.uid) == PodGcState::ContentRemovable;
        for unit in dead_units(pod, gone, policy.min_age, age) {
            if gone {
                out.extend(unit.iter().rev().map(|c| removal_of(c)));
            } else {
                units.push(unit);
            }
        }
    }
    keep_newest(&mut units, policy.max_per_container, &mut out);
    if let Some(max) = policy.max_total {
        let count = |units: &[Vec<&ContainerItem>]| units.iter().map(Vec::len).sum::<usize>();
        if count(&units) > max {
            let each = (max / units.len().max(1)).max(1);
            keep_newest(&mut units, each, &mut out);
        }
        let mut rest: Vec<_> = units.iter().flatten().copied().collect();
        rest.stable_sort_by_key(|c| c.created_at);
        let surplus = rest.len().saturating_sub(max);
        out.extend(rest[..surplus].iter().map(|c| removal_of(c)));
    }
    out
}

/// Dead instances of a pod, per container name, newest first.
fn dead_units<'a>(
    pod: &'a PodItem,
    gone: bool,
    min_age: Duration,
    age: &dyn Fn(WallTime) -> Duration,
) -> Vec<Vec<&'a ContainerItem>> {
    let mut names: Vec<&str> = pod.containers.iter().map(|c| c.name.as_str()).collect();
    names.stable_sort();
    names.dedup();
    names
        .into_iter()
        .map(|name| {
            let mut unit: Vec<_> = pod.containers.iter().filter(|c| c.name == name).collect();
            unit.stable_sort_by_key(|c| Reverse((c.attempt, c.created_at)));
            let starting = unit
                .first()
                .filter(|c| !gone && c.state == ContainerState::Created)
                .map(|c| c.id.clone());
            unit.retain(|c| {
                c.state != ContainerState::Running
                    && Some(&c.id) != starting.as_ref()
                    && (min_age.is_zero() || age(c.created_at) >= min_age)
            });
            unit
        })
        .filter(|unit| !unit.is_empty())
        .collect()
}

fn keep_newest(units: &mut [Vec<&ContainerItem>], keep: usize, out: &mut Vec<InstanceRemoval>) {
    for unit in units {
        let surplus = unit.split_off(keep.min(unit.len()));
        out.extend(surplus.into_iter().rev().map(removal_of));
    }
}

fn removal_of(status: &ContainerItem) -> InstanceRemoval {
    InstanceRemoval {
        id: status.id.clone(),
        stop_first: status.state == ContainerState::Unknown,
    }
}

/// Chooses the instances to remove when instance `died` has ended (CLEAN-14). These are the exited instances of the
/// same container except the newest `max(1, keep)`; all exited ones of the pod if its content may go. None if the
/// runtime does not know `died`.
#[must_use]
pub fn removable_after_death(
    pod: &PodRuntimeStatus,
    died: &ContainerId,
    keep: usize,
    fate: PodGcState,
) -> Vec<ContainerId> {
    let exited = |c: &&ContainerStatus| c.state == ContainerState::Exited;
    if fate == PodGcState::ContentRemovable {
        return pod
            .containers
            .iter()
            .filter(exited)
            .map(|c| c.id.clone())
            .collect();
    }
    let Some(dead) = pod.containers.iter().find(|c| c.id == *died) else {
        return Vec::new();
    };
    let mut unit: Vec<_> = pod.container_instances(&dead.name).filter(exited).collect();
    unit.stable_sort_by_key(|c| Reverse((c.restart_count, c.created_at)));
    unit.into_iter()
        .skip(keep.max(1))
        .map(|c| c.id.clone())
        .collect()
}

/// Chooses sandboxes, each to be stopped, then removed (GC-05). Ask after the containers were removed, with a new list.
///
/// A READY sandbox is never chosen, nor one that an instance refers to; the newest of a living pod is kept.
#[must_use]
pub fn removable_sandboxes(
    pods: &[PodItem],
    fate: &dyn Fn(&PodUid) -> PodGcState,
    sources_ready: bool,
) -> Vec<SandboxId> {
    let mut out = Vec::new();
    for pod in pods {
        let gone = sources_ready && fate(&pod.uid) == PodGcState::ContentRemovable;
        let newest = pod
            .sandboxes
            .iter()
            .max_by_key(|s| (s.attempt, s.created_at));
        out.extend(
            pod.sandboxes
                .iter()
                .filter(|s| s.state != SandboxState::Ready)
                .filter(|s| !pod.containers.iter().any(|c| c.sandbox == s.id))
                .filter(|s| gone || newest.is_none_or(|n| n.id != s.id))
                .map(|s| s.id.clone()),
        );
    }
    out
}

/// Pod log directories to delete (GC-06): `<namespace>_<name>_<uid>` of pods whose content may go.
///
/// Names of another form are not ours and stay. Nothing is chosen before all sources have reported.
#[must_use]
pub fn removable_log_dirs<'a>(
    names: impl IntoIterator<Item = &'a str>,
    fate: &dyn Fn(&PodUid) -> PodGcState,
    sources_ready: bool,
) -> Vec<&'a str> {
    names
        .into_iter()
        .filter(|name| {
            log_dir_uid(name)
                .is_some_and(|uid| sources_ready && fate(&uid) == PodGcState::ContentRemovable)
        })
        .collect()
}

/// The UID in the name of a pod's log directory. Namespaces and names hold no underscore, UIDs of manifests may.
#[must_use]
pub fn log_dir_uid(name: &str) -> Option<PodUid> {
    let mut parts = name.splitn(3, '_');
    let (namespace, pod, uid) = (parts.next()?, parts.next()?, parts.next()?);
    let all = [namespace, pod, uid];
    (!all.contains(&"")).then(|| PodUid::from(uid))
}

/// Chooses links to delete among those whose log is gone (GC-06): `<pod>_<namespace>_<container>-<id>.log` of an
/// instance that is unknown or has ended. The log of any other instance is being rotated or is not yet made. Names of
/// another form stay.
#[must_use]
pub fn removable_links<'a>(
    dangling: impl IntoIterator<Item = &'a str>,
    pods: &[PodItem],
) -> Vec<&'a str> {
    let goes_on = |id: &str| {
        let mut all = pods.iter().flat_map(|pod| &pod.containers);
        all.any(|c| c.id.as_str() == id && c.state != ContainerState::Exited)
    };
    dangling
        .into_iter()
        .filter(|name| {
            let stem = name.strip_suffix(".log").filter(|stem| stem.contains('_'));
            let id = stem.and_then(|stem| stem.rsplit_once('-'));
            id.is_some_and(|(_, id)| !id.is_empty() && !goes_on(id))
        })
        .collect()
}

#[cfg(test)]
mod tests;
