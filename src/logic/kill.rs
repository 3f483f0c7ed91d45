//! Killing containers and pods: grace, hooks' share of it, stop order. Names follow kubelet
//! `kuberuntime_container.go` and `kuberuntime_termination_order.go`.

use alloc::{string::String, vec::Vec};
use core::time::Duration;

use crate::api::order::OrderExt;
use crate::api::{
    Container, ContainerId, Pod, SandboxId,
    cri::{ContainerState, PodRuntimeStatus},
};
use crate::defaults::GRACE_S;

/// Shortest grace of a stop call, seconds: a process must at least be able to notice the signal.
pub const MIN_STOP_GRACE_S: i64 = 2;
pub use super::pod_worker::RUNTIME_ONLY_GRACE_S;
/// Longest wait of a pod's stop for a record that cannot be read: without its spec no hook runs.
pub const MAX_RECORD_WAIT: Duration = Duration::from_secs(10);

/// Reason why one container is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KillCause {
    /// The pod ends, or its sandbox is replaced.
    Pod,
    /// Name or image of the container changed.
    Changed,
    /// Liveness probe failed.
    Liveness,
    /// Startup probe failed.
    Startup,
    /// The runtime lost track of it.
    Unknown,
    /// postStart hook failed.
    PostStart,
    /// Every container of the pod starts over.
    RestartAll,
}

/// Grace of one container, seconds; may be 0 or negative if asked for (KILL-01).
///
/// `override_s` is the caller's value and wins; a pod termination passes the worker's grace here (KILL-02).
#[must_use]
pub fn container_grace_s(
    pod: &Pod,
    container: Option<&Container>,
    cause: KillCause,
    override_s: Option<i64>,
) -> i64 {
    if let Some(seconds) = override_s.or(pod.metadata.deletion_grace_period_seconds) {
        return seconds;
    }
    let probe = match cause {
        KillCause::Liveness => container.and_then(|c| c.liveness_probe.as_ref()),
        KillCause::Startup => container.and_then(|c| c.startup_probe.as_ref()),
        KillCause::RestartAll => return 0,
        KillCause::Pod | KillCause::Changed | KillCause::Unknown | KillCause::PostStart => None,
    };
    probe
        .and_then(|p| p.termination_grace_period_seconds)
        .or(pod.spec.termination_grace_period_seconds)
        .unwrap_or(MIN_STOP_GRACE_S)
}

/// Grace of a pod that ends as its spec says, seconds: at least 1, as a kubelet has it. Without a spec the API's default.
#[must_use]
pub fn specified_grace_s(pod: Option<&Pod>) -> u32 {
    let grace_s = pod.and_then(|pod| pod.spec.termination_grace_period_seconds);
    u32::try_from(grace_s.unwrap_or(GRACE_S).max(1)).unwrap_or(u32::MAX)
}

/// Rest of `grace_s` after `spent`, in whole seconds of `spent` rounded down (KILL-05). May be negative.
#[must_use]
pub fn remaining_s(grace_s: i64, spent: Duration) -> i64 {
    grace_s.saturating_sub(i64::try_from(spent.as_secs()).unwrap_or(i64::MAX))
}

/// Grace to pass to the runtime's stop call when `remaining_s` are left: never under 2 s (KILL-05).
#[must_use]
pub fn stop_grace(remaining_s: i64) -> Duration {
    Duration::from_secs(u64::try_from(remaining_s.max(MIN_STOP_GRACE_S)).unwrap_or(0))
}

/// Returns true if the preStop hook runs: there is one, and grace for it (KILL-04).
#[must_use]
pub fn runs_pre_stop(container: &Container, grace_s: i64) -> bool {
    grace_s > 0
        && container
            .lifecycle
            .as_ref()
            .is_some_and(|l| l.pre_stop.is_some())
}

/// Text of the `Killing` event of a container (EVT-16).
#[must_use]
pub fn killing_message(name: &str) -> String {
    format!("Stopping container {name}")
}

/// Container to stop when its whole pod is killed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodKillTarget {
    /// Instance.
    pub id: ContainerId,
    /// Container name.
    pub name: String,
    /// Grace, seconds; the clock of all targets starts together.
    pub grace_s: i64,
    /// Run the preStop hook first. Hooks of all targets run at once, whatever the wave.
    pub pre_stop: bool,
    /// The stop signal waits until every [`Self::gates`] target of a smaller wave has ended or the grace is over.
    pub wave: u32,
    /// Set if later waves wait for this container (regular containers and sidecars).
    pub gates: bool,
    /// Text of the `Killing` event.
    pub message: String,
}

/// All that must be stopped to kill a pod: first the containers, in parallel, then the sandboxes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodKill {
    /// Running instances, sorted by wave; at most all containers of the pod.
    pub containers: Vec<PodKillTarget>,
    /// Every sandbox, ready or not: stopping is idempotent and releases what a half-made one still holds.
    pub sandboxes: Vec<SandboxId>,
}

impl PodKill {
    /// Returns true if target `index` may get its stop signal. `ended`: the targets that have ended, in the order of
    /// `containers`. `left_s`: seconds left of its grace; without any, the target waits for no other.
    #[must_use]
    pub fn may_signal(&self, index: usize, ended: &[bool], left_s: i64) -> bool {
        let Some(target) = self.containers.get(index) else {
            return false;
        };
        left_s <= 0
            || self
                .containers
                .iter()
                .zip(ended)
                .all(|(other, ended)| *ended || !other.gates || other.wave >= target.wave)
    }
}

/// Plans the kill of a pod: all running instances in parallel, sidecars last and in reverse order (KILL-07, KILL-08).
///
/// - `override_s`: grace for every container; `None` uses each one's own (KILL-01).
/// - An instance whose container is no longer in the spec is stopped in the first wave.
/// - An instance in state Unknown may still run and is stopped too.
#[must_use]
pub fn plan_pod_kill(pod: &Pod, status: &PodRuntimeStatus, override_s: Option<i64>) -> PodKill {
    let stoppable =
        |s: ContainerState| matches!(s, ContainerState::Running | ContainerState::Unknown);
    let sidecars = || {
        pod.spec
            .init_containers
            .iter()
            .rev()
            .filter(|c| c.is_sidecar())
    };
    let mut containers: Vec<PodKillTarget> = status
        .containers
        .iter()
        .filter(|c| stoppable(c.state))
        .map(|instance| {
            let spec = pod.spec.all_containers().find(|c| c.name == instance.name);
            let grace_s = container_grace_s(pod, spec, KillCause::Pod, override_s);
            let rank = sidecars()
                .position(|c| c.name == instance.name)
                .and_then(|n| u32::try_from(n + 1).ok());
            PodKillTarget {
                id: instance.id.clone(),
                name: instance.name.clone(),
                grace_s,
                pre_stop: instance.state == ContainerState::Running
                    && spec.is_some_and(|c| runs_pre_stop(c, grace_s)),
                wave: rank.unwrap_or(0),
                gates: rank.is_some()
                    || pod.spec.containers.iter().any(|c| c.name == instance.name),
                message: killing_message(&instance.name),
            }
        })
        .collect();
    containers.stable_sort_by_key(|target| target.wave);
    PodKill {
        containers,
        sandboxes: status.sandboxes.iter().map(|s| s.id.clone()).collect(),
    }
}

/// Plans the kill, within `grace_s`, of a pod whose spec is not known: no hooks, no order. A pod that only the runtime
/// knows gets [`RUNTIME_ONLY_GRACE_S`] (thus 2; KILL-16, SYNC-28).
#[must_use]
pub fn plan_runtime_pod_kill(status: &PodRuntimeStatus, grace_s: i64) -> PodKill {
    plan_pod_kill(&Pod::default(), status, Some(grace_s))
}

/// Wait of a pod's stop for a record that cannot be read: at most [`MAX_RECORD_WAIT`], and half of the grace.
#[must_use]
pub fn record_wait(grace_s: Option<u32>) -> Duration {
    let grace = Duration::from_secs(grace_s.unwrap_or(0).into());
    (grace / 2).min(MAX_RECORD_WAIT)
}

/// Grace of a failed postStart, and of every other single kill, is the container's own (HOOK-01, KILL-18): sidecar
/// order does not apply.
#[must_use]
pub fn single_kill_grace_s(pod: &Pod, container: Option<&Container>, cause: KillCause) -> i64 {
    container_grace_s(pod, container, cause, None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::cri::SandboxState;
    use crate::api::pod::{Lifecycle, LifecycleHandler, Probe};
    use crate::testing::{instance, pod_with, sandbox, sidecar};
    use ContainerState::{Exited, Running};
    use KillCause as Cause;

    #[test]
    fn grace_of_a_container() {
        // KILL-01
        let probe = |s| Probe {
            termination_grace_period_seconds: s,
            ..Probe::default()
        };
        for (name, deletion, spec, probe_s, cause, over, expected) in [
            (
                "caller wins",
                Some(5),
                Some(30),
                Some(90),
                Cause::Liveness,
                Some(1),
                1,
            ),
            (
                "deletion before probe",
                Some(5),
                Some(30),
                Some(90),
                Cause::Liveness,
                None,
                5,
            ),
            (
                "probe may exceed the pod",
                None,
                Some(30),
                Some(90),
                Cause::Liveness,
                None,
                90,
            ),
            (
                "startup probe",
                None,
                Some(30),
                Some(3),
                Cause::Startup,
                None,
                3,
            ),
            (
                "probe without a grace",
                None,
                Some(30),
                None,
                Cause::Startup,
                None,
                30,
            ),
            (
                "other causes use the pod's",
                None,
                Some(30),
                Some(90),
                Cause::Changed,
                None,
                30,
            ),
            ("nothing given", None, None, None, Cause::Pod, None, 2),
            ("zero is kept", None, Some(0), None, Cause::Pod, None, 0),
        ] {
            let mut pod = pod_with(&["a"]);
            pod.metadata.deletion_grace_period_seconds = deletion;
            pod.spec.termination_grace_period_seconds = spec;
            pod.spec.containers[0].liveness_probe = Some(probe(probe_s));
            pod.spec.containers[0].startup_probe = Some(probe(probe_s));
            let container = pod.spec.containers[0].clone();
            assert_eq!(
                container_grace_s(&pod, Some(&container), cause, over),
                expected,
                "{name}"
            );
        }
    }

    #[test]
    fn hook_time_counts() {
        // KILL-05 KILL-12
        for (name, grace, spent_ms, stop_s) in [
            ("no hook", 30, 0, 30),
            ("whole seconds, rounded down", 30, 2_999, 28),
            ("hook used everything", 30, 31_000, 2),
            ("override 0", 0, 0, 2),
            ("one second is two", 1, 0, 2),
        ] {
            let left = remaining_s(grace, Duration::from_millis(spent_ms));
            assert_eq!(stop_grace(left), Duration::from_secs(stop_s), "{name}");
        }
    }

    #[test]
    fn grace_of_a_pod_by_its_spec() {
        // KILL-02
        for (spec, expected) in [
            (Some(-7), 1),
            (Some(i64::MIN), 1),
            (Some(0), 1),
            (Some(5), 5),
            (Some(i64::MAX), u32::MAX),
            (None, 30),
        ] {
            let mut pod = pod_with(&[]);
            pod.spec.termination_grace_period_seconds = spec;
            assert_eq!(specified_grace_s(Some(&pod)), expected, "{spec:?}");
        }
        assert_eq!(specified_grace_s(None), 30);
    }

    #[test]
    fn pre_stop_needs_grace() {
        // KILL-04
        let container = Container {
            lifecycle: Some(Lifecycle {
                pre_stop: Some(LifecycleHandler::default()),
                ..Lifecycle::default()
            }),
            ..Container::default()
        };
        assert!(runs_pre_stop(&container, 1));
        assert!(!runs_pre_stop(&container, 0));
        assert!(!runs_pre_stop(&Container::default(), 30));
    }

    #[test]
    fn sidecars_stop_last_and_backwards() {
        // KILL-08
        let mut pod = pod_with(&["app", "web"]);
        pod.spec.init_containers = vec![sidecar("s1"), sidecar("s2"), sidecar("s3")];
        let mut status = PodRuntimeStatus::default();
        for (name, state) in [
            ("app", Running),
            ("web", Exited),
            ("s1", Running),
            ("s2", Exited),
            ("s3", Running),
        ] {
            status.containers.push(instance(name, state));
        }
        status.sandboxes = vec![
            sandbox(1, SandboxState::Ready),
            sandbox(0, SandboxState::NotReady),
        ];
        let kill = plan_pod_kill(&pod, &status, Some(9));
        assert_eq!(kill.sandboxes.len(), 2, "every sandbox, ready or not");
        let rows: Vec<_> = kill
            .containers
            .iter()
            .map(|t| (t.name.as_str(), t.wave, t.grace_s))
            .collect();
        assert_eq!(rows, [("app", 0, 9), ("s3", 1, 9), ("s1", 3, 9)]);
        for (ended, allowed) in [
            ([false, false, false], [true, false, false]),
            ([true, false, false], [true, true, false]),
            ([true, true, false], [true, true, true]),
            // A sidecar that ended by itself does not let an earlier one pass the regular containers.
            ([false, true, false], [true, false, false]),
        ] {
            let got: Vec<_> = (0..3).map(|i| kill.may_signal(i, &ended, 1)).collect();
            assert_eq!(got, allowed, "{ended:?}");
        }
        assert!(
            (0..3).all(|i| kill.may_signal(i, &[false; 3], 0)),
            "once the grace is over nobody waits; each gets the least a stop call gives"
        );
        assert_eq!(stop_grace(0), Duration::from_secs(2));
    }

    #[test]
    fn pods_of_the_runtime_only() {
        // KILL-16
        let mut status = PodRuntimeStatus::default();
        status.containers.push(instance("x", Running));
        status.containers.push(instance("y", Running));
        let kill = plan_runtime_pod_kill(&status, RUNTIME_ONLY_GRACE_S);
        assert!(
            kill.containers
                .iter()
                .all(|t| t.grace_s == 1 && t.wave == 0 && !t.pre_stop)
        );
        assert_eq!(stop_grace(1), Duration::from_secs(2));
    }

    #[test]
    fn a_record_is_waited_for_within_the_grace() {
        for (grace_s, wait_ms) in [
            (None, 0),
            (Some(1), 500),
            (Some(10), 5000),
            (Some(600), 10_000),
        ] {
            assert_eq!(record_wait(grace_s).as_millis(), wait_ms, "{grace_s:?}");
        }
    }
}
