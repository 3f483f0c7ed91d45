//! Outcome of a pod, for the time after a reboot (SYNC-35). A kubelet reads it from the dead containers that its
//! runtime keeps across boots. Here the agent keeps the status; for a pod that goes on, it keeps the containers that
//! have succeeded.

use alloc::{boxed::Box, vec::Vec};

use super::{
    container_status::{LOST_EXIT_CODE, LOST_MESSAGE, STATUS_UNKNOWN},
    restart::effective_restart_policy,
};
use crate::api::{
    Pod,
    cri::{self, PodRuntimeStatus},
    pod::RestartPolicy,
    pod_status::{ContainerState, ContainerStatus, PodPhase, PodStatus, Terminated},
};

/// Returns true if `status` is worth keeping: the pod has ended, or it began and must not begin twice (ACT-17).
///
/// Pods that run for ever have no outcome.
#[must_use]
pub fn is_worth_keeping(pod: &Pod, status: &PodStatus) -> bool {
    match pod.spec.restart_policy {
        RestartPolicy::Always => false,
        RestartPolicy::OnFailure => status.phase.is_terminal(),
        RestartPolicy::Never => status.phase.is_terminal() || has_begun(status),
    }
}

/// Returns true if the kept status counts as the pod's end even though the machine was not booted since.
///
/// - A pod of the API that has ended stays so: the API may have been told.
/// - Another pod stays ended if it ran: the runtime may have removed its dead containers (SYNC-35). If it was only
///   refused, it is tried again.
#[must_use]
pub fn stays_ended(kept: &PodStatus, of_the_api: bool) -> bool {
    kept.phase.is_terminal() && (of_the_api || has_begun(kept))
}

fn has_begun(status: &PodStatus) -> bool {
    let begun = |s: &ContainerState| s.running.is_some() || s.terminated.is_some();
    all_container_statuses(status).any(|c| begun(&c.state) || begun(&c.last_state))
}

fn all_container_statuses(status: &PodStatus) -> impl Iterator<Item = &ContainerStatus> {
    status
        .init_container_statuses
        .iter()
        .chain(&status.container_statuses)
        .chain(&status.ephemeral_container_statuses)
}

/// Returns true if `newer` has the end of a container that `kept`, the status of the ended pod, does not have. A pod
/// ends before its containers if it is refused, evicted, or failed by another party.
#[must_use]
pub fn has_new_container_end(kept: &PodStatus, newer: &PodStatus) -> bool {
    let known = |name: &str| {
        all_container_statuses(kept).any(|c| c.name == name && c.state.terminated.is_some())
    };
    let mut ended = all_container_statuses(newer).filter(|c| c.state.terminated.is_some());
    newer.phase.is_terminal() && ended.any(|c| !known(&c.name))
}

/// Containers of the pod that have succeeded and do not run again, in the pod's order: neither a new sandbox (ACT-16)
/// nor the next boot starts them.
#[must_use]
pub fn succeeded_containers(pod: &Pod, runtime: &PodRuntimeStatus) -> Vec<cri::ContainerStatus> {
    let newest = |name: &str| {
        runtime
            .newest_instance(name)
            .filter(|c| has_succeeded(c))
            .cloned()
    };
    let once = pod.spec.containers.iter();
    once.filter(|c| effective_restart_policy(pod, c) == RestartPolicy::OnFailure)
        .filter_map(|c| newest(&c.name))
        .collect()
}

fn has_succeeded(container: &cri::ContainerStatus) -> bool {
    container.state == cri::ContainerState::Exited && container.exit_code == 0
}

/// Adds to the runtime's status the containers that had succeeded before the boot and that the runtime has forgotten,
/// at the end.
#[must_use]
pub fn with_succeeded(
    mut runtime: PodRuntimeStatus,
    succeeded: &[cri::ContainerStatus],
) -> PodRuntimeStatus {
    for container in succeeded {
        if runtime.newest_instance(&container.name).is_none() {
            runtime.containers.push(container.clone());
        }
    }
    runtime
}

/// Returns the status after a reboot of a pod that ran when the status was kept: the reboot has ended all containers,
/// and their exit codes are not known. A terminal status stays as it is.
#[must_use]
pub fn status_after_reboot(mut status: PodStatus) -> PodStatus {
    if status.phase.is_terminal() {
        return status;
    }
    let lists = [
        &mut status.init_container_statuses,
        &mut status.container_statuses,
        &mut status.ephemeral_container_statuses,
    ];
    for container in lists.into_iter().flatten() {
        container.ready = false;
        container.started = Some(false);
        if let Some(running) = container.state.running.take() {
            container.state.terminated = Some(Box::new(Terminated {
                exit_code: LOST_EXIT_CODE,
                reason: STATUS_UNKNOWN.into(),
                message: LOST_MESSAGE.into(),
                started_at: running.started_at,
                container_id: container.container_id.clone(),
                ..Terminated::default()
            }));
        }
    }
    let succeeded = |c: &ContainerStatus| {
        let end = c.state.terminated.as_ref();
        end.is_some_and(|t| t.exit_code == 0)
    };
    status.phase = if status.container_statuses.iter().all(succeeded) {
        PodPhase::Succeeded
    } else {
        PodPhase::Failed
    };
    status
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn containers_that_have_succeeded_are_kept_and_shown_where_the_runtime_has_none() {
        // SYNC-35
        let instance = |name: &str, state: &str, code: i32| {
            let status = json!({"id": format!("{name}-{code}"), "sandbox": "s", "name": name, "restart_count": 0,
                "state": state, "created_at": "2026-01-01T00:00:00Z", "started_at": null, "finished_at": null, "exit_code": code, "reason": "",
                "message": "", "image": "", "image_id": "", "hash": 0, "user": null, "pid": 0, "log_path": ""});
            serde_json::from_value::<cri::ContainerStatus>(status).expect("instance")
        };
        let pod = |policy: &str| -> Pod {
            let containers = ["a", "b", "c"].map(|name| json!({"name": name}));
            serde_json::from_value(
                json!({"spec": {"restartPolicy": policy, "containers": containers}}),
            )
            .expect("pod")
        };
        let runtime = PodRuntimeStatus {
            containers: Vec::from([
                instance("a", "Exited", 0),
                instance("b", "Exited", 1),
                instance("b", "Exited", 0),
                instance("c", "Running", 0),
                instance("stranger", "Exited", 0),
            ]),
            ..PodRuntimeStatus::default()
        };
        let names = |of: &[cri::ContainerStatus]| -> Vec<_> {
            of.iter()
                .map(|c| alloc::string::String::from(c.id.as_str()))
                .collect()
        };
        let kept = succeeded_containers(&pod("OnFailure"), &runtime);
        assert_eq!(names(&kept), ["a-0"], "the newest instance counts");
        assert_eq!(succeeded_containers(&pod("Always"), &runtime), []);

        let empty = with_succeeded(PodRuntimeStatus::default(), &kept);
        assert_eq!(names(&empty.containers), ["a-0"]);
        let again = PodRuntimeStatus {
            containers: Vec::from([instance("a", "Running", 7)]),
            ..PodRuntimeStatus::default()
        };
        let again = with_succeeded(again, &kept);
        assert_eq!(names(&again.containers), ["a-7"]);
    }

    fn status(phase: &str, states: &[(&str, serde_json::Value)]) -> PodStatus {
        let containers: Vec<_> = states
            .iter()
            .map(|(name, state)| json!({"name": name, "containerID": format!("picolet://{name}"), "state": state}))
            .collect();
        serde_json::from_value(json!({"phase": phase, "containerStatuses": containers}))
            .expect("status")
    }

    #[test]
    fn what_is_kept() {
        let running = || json!({"running": {}});
        let waiting = || json!({"waiting": {"reason": "ContainerCreating"}});
        let ended = || json!({"terminated": {"exitCode": 0}});
        for (policy, phase, state, kept) in [
            ("Always", "Running", running(), false),
            ("Always", "Failed", ended(), false),
            ("OnFailure", "Running", running(), false),
            ("OnFailure", "Succeeded", ended(), true),
            ("Never", "Pending", waiting(), false),
            ("Never", "Running", running(), true),
            ("Never", "Pending", ended(), true),
            ("Never", "Failed", ended(), true),
        ] {
            let pod: Pod =
                serde_json::from_value(json!({"spec": {"restartPolicy": policy}})).expect("pod");
            let got = is_worth_keeping(&pod, &status(phase, &[("c", state.clone())]));
            assert_eq!(got, kept, "{policy} {phase} {state}");
        }
    }

    #[test]
    fn a_pod_may_end_before_its_containers() {
        let ended = || json!({"terminated": {"exitCode": 137}});
        let waiting = || json!({"waiting": {"reason": "ContainerCreating"}});
        let one = || status("Failed", &[("a", ended()), ("b", waiting())]);
        let all = status("Failed", &[("a", ended()), ("b", ended())]);
        assert!(has_new_container_end(&status("Failed", &[]), &all));
        assert!(has_new_container_end(&one(), &all));
        assert!(!has_new_container_end(&all, &all), "nothing is new");
        assert!(!has_new_container_end(&all, &one()), "it is older");
        let runs = status("Running", &[("a", ended()), ("b", ended())]);
        assert!(
            !has_new_container_end(&one(), &runs),
            "what has ended does not go on"
        );
    }

    #[test]
    fn a_reboot_ends_what_ran() {
        let kept = status(
            "Running",
            &[
                (
                    "a",
                    json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}}),
                ),
                ("b", json!({"terminated": {"exitCode": 0}})),
            ],
        );
        let after = status_after_reboot(kept);
        assert_eq!(after.phase, PodPhase::Failed);
        let [a, b] = &*after.container_statuses else {
            panic!("{after:?}")
        };
        let end = a.state.terminated.as_ref().expect("ended");
        assert!(a.state.running.is_none() && !a.ready);
        assert_eq!(
            (end.exit_code, &*end.reason),
            (137, "ContainerStatusUnknown")
        );
        assert!(end.started_at.is_some() && end.container_id == "picolet://a");
        assert_eq!(b.state.terminated.as_ref().map(|t| t.exit_code), Some(0));

        let ended = [("a", json!({"terminated": {"exitCode": 0}}))];
        assert_eq!(
            status_after_reboot(status("Running", &ended)).phase,
            PodPhase::Succeeded
        );
        let waits = [("a", json!({"waiting": {}}))];
        assert_eq!(
            status_after_reboot(status("Pending", &waits)).phase,
            PodPhase::Failed
        );
        let terminal = status("Succeeded", &ended);
        assert_eq!(status_after_reboot(terminal.clone()), terminal);
    }
}
