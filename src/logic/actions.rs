//! Work of one sync on a pod's sandbox and containers, as a value. Names follow kubelet
//! `kuberuntime/kuberuntime_manager.go` (`computePodActions`).
//!
//! The result is carried out in this order (ACT-03): kill pod, or kill single containers; remove instances; create
//! sandbox; start ephemeral, init, regular containers. It contains no time: back-off and image pulls belong to the
//! start of a container.

use alloc::{string::String, vec::Vec};

use crate::api::order::OrderExt;
use crate::api::{
    Container, ContainerId, Pod, SandboxId,
    cri::{
        ContainerState, ContainerStatus, NamespaceMode, PodRuntimeStatus, SandboxState,
        SandboxStatus,
    },
    pod::RestartPolicy,
    pod_status::PodStatus,
};

use super::kill::{KillCause, single_kill_grace_s};
pub use super::probe::{ProbeResult, ProbeResults};
pub use super::restart::should_restart;
use super::restart::{
    effective_restart_policy, failed_init_restarts, init_failed, restart_all_pending,
    triggers_restart_all,
};
use super::spec_hash::is_spec_hash_current;

/// Single container to kill; its sandbox and the other containers are untouched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerToKill {
    /// Instance.
    pub id: ContainerId,
    /// Container name.
    pub name: String,
    /// Reason of the kill.
    pub cause: KillCause,
    /// Text of the `Killing` event.
    pub message: String,
    /// Grace, seconds; the stop call never gets less than 2 (KILL-05).
    pub grace_s: i64,
}

/// Work of one sync. Indexes point into the spec's list of that kind and ascend; a container is in at most one start
/// list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodActions {
    /// Kill everything that runs and stop every sandbox ([`super::kill::plan_pod_kill`]).
    pub kill_pod: bool,
    /// Then make a new sandbox.
    pub create_sandbox: bool,
    /// Attempt of the sandbox to make or to use.
    pub attempt: u32,
    /// The sandbox to use; when one is to be made, the one it replaces (`SandboxChanged` is emitted if there is one).
    pub sandbox_id: Option<SandboxId>,
    /// Single containers to kill. Empty if `kill_pod`.
    pub to_kill: Vec<ContainerToKill>,
    /// Instances to remove after the kills, in this order.
    pub to_remove: Vec<ContainerId>,
    /// The removals start the whole pod over (ACT-72): logs are kept, and the next sync follows at once.
    pub restart_all: bool,
    /// Indexes into `spec.ephemeralContainers`.
    pub ephemeral_to_start: Vec<usize>,
    /// Indexes into `spec.initContainers`. A failed start of a plain one ends the pass, of a sidecar not (ACT-04).
    pub init_to_start: Vec<usize>,
    /// Indexes into `spec.containers`.
    pub to_start: Vec<usize>,
}

impl PodActions {
    /// Returns true if nothing is to be done at the runtime (SYNC-18).
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !self.kill_pod
            && !self.create_sandbox
            && self.to_kill.is_empty()
            && self.to_remove.is_empty()
            && !self.starts_anything()
    }

    /// Returns true if any container is to be started.
    #[must_use]
    pub fn starts_anything(&self) -> bool {
        !(self.ephemeral_to_start.is_empty()
            && self.init_to_start.is_empty()
            && self.to_start.is_empty())
    }
}

/// Returns whether the pod needs a new sandbox, its attempt, and the sandbox in use or replaced (ACT-10..ACT-15).
#[must_use]
pub fn sandbox_changed(pod: &Pod, status: &PodRuntimeStatus) -> (bool, u32, Option<SandboxId>) {
    let Some(latest) = latest_sandbox(status) else {
        return (true, 0, None);
    };
    let next = latest.attempt.saturating_add(1);
    let ready = status
        .sandboxes
        .iter()
        .filter(|s| s.state == SandboxState::Ready)
        .count();
    if ready > 1 || latest.state != SandboxState::Ready {
        return (true, next, Some(latest.id.clone()));
    }
    let on_host = latest.namespaces.network == NamespaceMode::Node;
    if on_host != pod.spec.host_network {
        return (true, next, None);
    }
    if !pod.spec.host_network && latest.ips.is_empty() {
        return (true, next, Some(latest.id.clone()));
    }
    (false, latest.attempt, Some(latest.id.clone()))
}

/// Returns true if the pod counts as initialised because a regular container runs, or was created in the sandbox in use
/// (ACT-50).
#[must_use]
pub fn is_initialized(pod: &Pod, status: &PodRuntimeStatus) -> bool {
    let latest = latest_sandbox(status).map(|s| &s.id);
    pod.spec.containers.iter().any(|c| {
        status
            .newest_instance(&c.name)
            .is_some_and(|s| match s.state {
                ContainerState::Running => true,
                ContainerState::Created => Some(&s.sandbox) == latest,
                ContainerState::Exited | ContainerState::Unknown => false,
            })
    })
}

/// The newest sandbox. Not trusting the order given costs nothing: a pod has one or two.
pub(super) fn latest_sandbox(status: &PodRuntimeStatus) -> Option<&SandboxStatus> {
    let order = |s: &&SandboxStatus| (s.attempt, s.created_at, core::cmp::Reverse(s.id.clone()));
    status.sandboxes.iter().max_by_key(order)
}

/// Returns true if any regular container has an instance that was created, runs or ran.
#[must_use]
pub fn any_regular_created(pod: &Pod, status: &PodRuntimeStatus) -> bool {
    pod.spec.containers.iter().any(|c| {
        status
            .newest_instance(&c.name)
            .is_some_and(|s| s.state != ContainerState::Unknown)
    })
}

/// Decides what one sync does.
///
/// - Shape: `status` has the newest instance of each container first.
/// - With a deletionTimestamp nothing starts and no single container is killed (KILL-18): the pod is only ever killed.
/// - Source: runtime.md section 1.
#[must_use]
pub fn compute_pod_actions(
    pod: &Pod,
    status: &PodRuntimeStatus,
    probes: &dyn ProbeResults,
) -> PodActions {
    let (create_sandbox, attempt, sandbox_id) = sandbox_changed(pod, status);
    let mut actions = PodActions {
        kill_pod: create_sandbox,
        create_sandbox,
        attempt,
        sandbox_id,
        ..PodActions::default()
    };
    if pod.metadata.deletion_timestamp.is_some() {
        actions.create_sandbox = false;
        let keeps = |c: &Container| {
            status
                .newest_instance(&c.name)
                .is_some_and(|s| s.state == ContainerState::Running)
        };
        let plain = |c: &&Container| !c.is_sidecar();
        actions.kill_pod |= !(pod.spec.containers.iter().any(keeps)
            || pod.spec.init_containers.iter().filter(plain).any(keeps));
        return actions;
    }
    if create_sandbox {
        recreate_sandbox(pod, status, &mut actions);
        return actions;
    }
    if restart_all_pending(pod, status) {
        restart_all(pod, status, &mut actions);
        return actions;
    }
    actions.ephemeral_to_start = matching_indexes(&pod.spec.ephemeral_containers, |c| {
        status.newest_instance(&c.name).is_none()
    });
    let initialized = init_actions(pod, status, probes, &mut actions);
    if !actions.kill_pod && initialized {
        regular_actions(pod, status, probes, &mut actions);
    }
    if actions.kill_pod {
        // Killing the pod covers the single kills, and nothing may start in a pod that ends.
        actions.to_kill.clear();
        actions.init_to_start.clear();
        actions.ephemeral_to_start.clear();
    } else {
        kill_removed(pod, status, &mut actions);
        actions.to_remove = surplus_inits(pod, status);
    }
    actions
}

/// Takes back the start of ephemeral containers that have begun before, as the pod's status says: the runtime forgets them
/// with the machine's boot, and each runs once (ACT-70).
pub fn drop_begun_ephemeral(actions: &mut PodActions, pod: &Pod, status: &PodStatus) {
    let has_begun = |name: &str| {
        let mut known = status.ephemeral_container_statuses.iter();
        known.find(|c| c.name == name).is_some_and(|c| {
            let ended = [&c.state, &c.last_state].map(|s| s.terminated.is_some());
            c.state.running.is_some() || ended.contains(&true)
        })
    };
    let containers = &pod.spec.ephemeral_containers;
    let due = &mut actions.ephemeral_to_start;
    due.retain(|&index| containers.get(index).is_some_and(|c| !has_begun(&c.name)));
}

/// Restarts instances that hold a device which came back as another one (DEV-40), unless the pod or the instance ends
/// anyway. A container that is not to be restarted is left alone.
pub fn restart_device_holders(
    actions: &mut PodActions,
    pod: &Pod,
    status: &PodRuntimeStatus,
    holders: &[ContainerId],
) {
    restart_running(actions, pod, status, &|container, instance| {
        holders.contains(&instance.id).then(|| {
            let name = &container.name;
            format!("Container {name} has a device that came back, will be restarted")
        })
    });
}

/// Restarts running sidecars and regular containers that `message` has a text for.
fn restart_running(
    actions: &mut PodActions,
    pod: &Pod,
    status: &PodRuntimeStatus,
    message: &dyn Fn(&Container, &ContainerStatus) -> Option<String>,
) {
    if actions.kill_pod || pod.metadata.deletion_timestamp.is_some() {
        return;
    }
    let regular = pod.spec.containers.iter().enumerate();
    let regular = regular.map(|(index, c)| (c, Some(index)));
    let sidecars = pod.spec.init_containers.iter().filter(|c| c.is_sidecar());
    for (container, place) in regular.chain(sidecars.map(|c| (c, None))) {
        let newest = status.newest_instance(&container.name);
        let Some(instance) = newest.filter(|s| s.state == ContainerState::Running) else {
            continue;
        };
        let ends = actions.to_kill.iter().any(|kill| kill.id == instance.id);
        let once =
            place.is_some() && effective_restart_policy(pod, container) == RestartPolicy::Never;
        let Some(message) = message(container, instance).filter(|_| !ends && !once) else {
            continue;
        };
        let cause = KillCause::Changed;
        add_container_kill(actions, pod, container, instance, cause, message);
        // The next sync starts a sidecar that ended.
        actions.to_start.extend(place);
    }
    actions.to_start.stable_sort();
}

/// Restarts containers whose policy wants that for their new resources (ACT-37, RSZ-29), unless the pod or the instance
/// ends anyway.
pub fn restart_resized(
    actions: &mut PodActions,
    pod: &Pod,
    status: &PodRuntimeStatus,
    due: &[String],
) {
    restart_running(actions, pod, status, &|container, _| {
        let is_due = due.contains(&container.name);
        is_due.then(|| format!("Container {} resize requires restart", container.name))
    });
}

/// Kills containers that an edit took out of the pod: only a manifest with a uid of its own can be edited so.
fn kill_removed(pod: &Pod, status: &PodRuntimeStatus, actions: &mut PodActions) {
    let of_spec = |name: &str| pod.spec.all_containers().any(|c| c.name == name);
    let running = status.containers.iter();
    for instance in running.filter(|s| s.state == ContainerState::Running && !of_spec(&s.name)) {
        let cause = KillCause::Changed;
        actions.to_kill.push(ContainerToKill {
            id: instance.id.clone(),
            name: instance.name.clone(),
            cause,
            message: format!("Container {} is no longer part of the pod", instance.name),
            grace_s: single_kill_grace_s(pod, None, cause),
        });
    }
}

/// Starts over a pod that needs a new sandbox, or ends it (ACT-16..ACT-18).
fn recreate_sandbox(pod: &Pod, status: &PodRuntimeStatus, actions: &mut PodActions) {
    // With `Never` each container runs once. When the agent or the power failed, that run may not have begun: an
    // instance that was only created does not count, nor does one with another name, of an earlier spec of the same
    // uid.
    let has_run = |c: &Container| {
        let mut instances = status.container_instances(&c.name);
        instances.any(|s| s.state != ContainerState::Created)
    };
    let once = pod.spec.restart_policy == RestartPolicy::Never && actions.attempt > 0;
    let candidates = matching_indexes(&pod.spec.containers, |c| match once {
        true => !has_run(c),
        false => {
            effective_restart_policy(pod, c) != RestartPolicy::OnFailure
                || !status
                    .newest_instance(&c.name)
                    .is_some_and(|s| s.state == ContainerState::Exited && s.exit_code == 0)
        }
    });
    if candidates.is_empty() && any_regular_created(pod, status) {
        actions.create_sandbox = false;
        return;
    }
    let is_init = |s: &&ContainerStatus| pod.spec.init_containers.iter().any(|c| c.name == s.name);
    actions.to_remove = status
        .containers
        .iter()
        .filter(is_init)
        .map(|s| s.id.clone())
        .collect();
    if pod.spec.init_containers.is_empty() {
        actions.to_start = candidates;
    } else {
        actions.init_to_start = vec![0];
    }
}

/// Kills and removes all instances, and keeps the sandbox. The containers that asked for it go last, so that a pass
/// that is cut short decides the same again (ACT-72).
fn restart_all(pod: &Pod, status: &PodRuntimeStatus, actions: &mut PodActions) {
    let source = |c: &Container| triggers_restart_all(c, status.newest_instance(&c.name));
    let mut order: Vec<&Container> = Vec::new();
    for wanted in [false, true] {
        order.extend(pod.spec.containers.iter().filter(|c| source(c) == wanted));
        order.extend(
            pod.spec
                .init_containers
                .iter()
                .filter(|c| source(c) == wanted),
        );
    }
    for container in order {
        for instance in status.container_instances(&container.name) {
            if instance.state != ContainerState::Exited {
                let message = format!(
                    "Container {} will be restarted with its pod",
                    container.name
                );
                add_container_kill(
                    actions,
                    pod,
                    container,
                    instance,
                    KillCause::RestartAll,
                    message,
                );
            }
            actions.to_remove.push(instance.id.clone());
        }
    }
    actions.restart_all = true;
}

/// Decides about init containers, from last to first (ACT-50..ACT-59). Returns true if the pod is initialised.
fn init_actions(
    pod: &Pod,
    status: &PodRuntimeStatus,
    probes: &dyn ProbeResults,
    actions: &mut PodActions,
) -> bool {
    let inits = &pod.spec.init_containers;
    if inits.is_empty() {
        return true;
    }
    let mut initialized = is_initialized(pod, status);
    // An instance that ended in an earlier sandbox, or was only created there, may be left over. It does not count for
    // this one.
    let latest = latest_sandbox(status).map(|s| &s.id);
    // True after the frontier was found: the containers that follow in this loop were passed before it.
    let mut passed = initialized;
    for (index, container) in inits.iter().enumerate().rev() {
        let newest = status.newest_instance(&container.name);
        let sidecar = container.is_sidecar();
        let counts = |i: &&ContainerStatus| match i.state {
            ContainerState::Running | ContainerState::Unknown => true,
            ContainerState::Created | ContainerState::Exited => Some(&i.sandbox) == latest,
        };
        let Some(instance) = newest.filter(counts) else {
            if passed && sidecar {
                actions.init_to_start.push(index);
            }
            continue;
        };
        if passed && !sidecar {
            continue;
        }
        let step = if sidecar {
            sidecar_step(pod, container, instance, probes, actions)
        } else {
            plain_step(pod, status, container, instance, actions)
        };
        match step {
            InitStep::Start => actions.init_to_start.push(index),
            InitStep::Wait => {}
            InitStep::Done { restart } => {
                if !passed {
                    if index + 1 == inits.len() {
                        initialized = true;
                    } else {
                        actions.init_to_start.push(index + 1);
                    }
                }
                if restart {
                    actions.init_to_start.push(index);
                }
            }
            InitStep::Fail => {
                actions.kill_pod = true;
                return false;
            }
        }
        passed = true;
    }
    if !passed {
        actions.init_to_start.push(0);
    }
    actions.init_to_start.stable_sort();
    initialized
}

/// Next step for an init container, decided by its newest instance.
enum InitStep {
    /// Start it (again).
    Start,
    /// Leave it alone; the containers after it wait.
    Wait,
    /// The containers after it may start. `restart`: the container itself is to be replaced.
    Done {
        /// Start it again.
        restart: bool,
    },
    /// The pod cannot be initialised.
    Fail,
}

/// Decides about a plain init container at the frontier (ACT-53).
fn plain_step(
    pod: &Pod,
    status: &PodRuntimeStatus,
    container: &Container,
    instance: &ContainerStatus,
    actions: &mut PodActions,
) -> InitStep {
    match instance.state {
        ContainerState::Created => InitStep::Start,
        ContainerState::Running => InitStep::Wait,
        ContainerState::Exited if !init_failed(pod, status, instance) => {
            InitStep::Done { restart: false }
        }
        ContainerState::Exited if failed_init_restarts(pod, container, instance.exit_code) => {
            InitStep::Start
        }
        ContainerState::Unknown
            if effective_restart_policy(pod, container) != RestartPolicy::Never =>
        {
            kill_unknown(actions, pod, container, instance);
            InitStep::Start
        }
        ContainerState::Exited | ContainerState::Unknown => InitStep::Fail,
    }
}

/// Decides about a sidecar, at the frontier or before it (ACT-55, ACT-57).
fn sidecar_step(
    pod: &Pod,
    container: &Container,
    instance: &ContainerStatus,
    probes: &dyn ProbeResults,
    actions: &mut PodActions,
) -> InitStep {
    match instance.state {
        ContainerState::Created | ContainerState::Exited => return InitStep::Start,
        ContainerState::Unknown => {
            kill_unknown(actions, pod, container, instance);
            return InitStep::Start;
        }
        ContainerState::Running => {}
    }
    let name = &container.name;
    if container.startup_probe.is_some() {
        match probes.startup(&instance.id) {
            Some(ProbeResult::Success) => {}
            Some(ProbeResult::Failure) => {
                let message =
                    format!("Init container {name} failed startup probe, will be restarted");
                add_container_kill(
                    actions,
                    pod,
                    container,
                    instance,
                    KillCause::Startup,
                    message,
                );
                return InitStep::Start;
            }
            Some(ProbeResult::Unknown) | None => return InitStep::Wait,
        }
    }
    let (cause, what) = if !is_spec_hash_current(container, instance.hash) {
        (KillCause::Changed, "definition changed")
    } else if container.liveness_probe.is_some()
        && probes.liveness(&instance.id) == Some(ProbeResult::Failure)
    {
        (KillCause::Liveness, "failed liveness probe")
    } else {
        return InitStep::Done { restart: false };
    };
    let message = format!("Init container {name} {what}, will be restarted");
    add_container_kill(actions, pod, container, instance, cause, message);
    InitStep::Done { restart: true }
}

/// Decides about regular containers of an initialised pod (ACT-30..ACT-39).
fn regular_actions(
    pod: &Pod,
    status: &PodRuntimeStatus,
    probes: &dyn ProbeResults,
    actions: &mut PodActions,
) {
    let mut kept = 0;
    for (index, container) in pod.spec.containers.iter().enumerate() {
        let newest = status.newest_instance(&container.name);
        let Some(instance) = newest.filter(|s| s.state == ContainerState::Running) else {
            if should_restart(pod, container, newest) {
                actions.to_start.push(index);
                if let Some(lost) = newest.filter(|s| s.state == ContainerState::Unknown) {
                    // It may still run: two instances at once would be worse than one kill too many.
                    kill_unknown(actions, pod, container, lost);
                }
            }
            continue;
        };
        let failed = |result| result == Some(ProbeResult::Failure);
        let (cause, what, restart) = if !is_spec_hash_current(container, instance.hash) {
            (KillCause::Changed, "definition changed", true)
        } else {
            let restart = effective_restart_policy(pod, container) != RestartPolicy::Never;
            if failed(probes.liveness(&instance.id)) {
                (KillCause::Liveness, "failed liveness probe", restart)
            } else if failed(probes.startup(&instance.id)) {
                (KillCause::Startup, "failed startup probe", restart)
            } else {
                kept += 1;
                continue;
            }
        };
        let name = &container.name;
        let after = if restart { ", will be restarted" } else { "" };
        let message = format!("Container {name} {what}{after}");
        add_container_kill(actions, pod, container, instance, cause, message);
        if restart {
            actions.to_start.push(index);
        }
    }
    if kept == 0 && actions.to_start.is_empty() {
        actions.kill_pod = true;
    }
}

fn add_container_kill(
    actions: &mut PodActions,
    pod: &Pod,
    container: &Container,
    instance: &ContainerStatus,
    cause: KillCause,
    message: String,
) {
    actions.to_kill.push(ContainerToKill {
        id: instance.id.clone(),
        name: instance.name.clone(),
        cause,
        message,
        grace_s: single_kill_grace_s(pod, Some(container), cause),
    });
}

fn kill_unknown(
    actions: &mut PodActions,
    pod: &Pod,
    container: &Container,
    instance: &ContainerStatus,
) {
    let message = format!(
        "Container {} is in \"unknown\" state, try killing it before restart",
        container.name
    );
    add_container_kill(
        actions,
        pod,
        container,
        instance,
        KillCause::Unknown,
        message,
    );
}

/// Finds the ended instances of init containers to remove: all but the newest of each (ACT-59).
fn surplus_inits(pod: &Pod, status: &PodRuntimeStatus) -> Vec<ContainerId> {
    pod.spec
        .init_containers
        .iter()
        .flat_map(|c| {
            status
                .container_instances(&c.name)
                .filter(|s| matches!(s.state, ContainerState::Exited | ContainerState::Unknown))
                .skip(1)
                .map(|s| s.id.clone())
        })
        .collect()
}

fn matching_indexes(containers: &[Container], wanted: impl Fn(&Container) -> bool) -> Vec<usize> {
    containers
        .iter()
        .enumerate()
        .filter(|(_, c)| wanted(c))
        .map(|(index, _)| index)
        .collect()
}

#[cfg(test)]
mod tests;
