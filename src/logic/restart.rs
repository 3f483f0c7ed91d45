//! Restart of containers: pod policy, container policy, exit-code rules (ACT-40, ACT-41).
//!
//! Names follow kubelet `container/helpers.go`.

use crate::api::{
    Container, Pod,
    cri::{ContainerState, ContainerStatus, OOM_KILLED, PodRuntimeStatus},
    pod::RestartPolicy,
};

/// Action of a restart rule: this container only.
const ACTION_RESTART: &str = "Restart";
/// Action of a restart rule: every container of the pod starts over.
const ACTION_RESTART_ALL: &str = "RestartAllContainers";

/// The container's own policy, else the pod's. Exit-code rules are not looked at (ACT-41).
#[must_use]
pub fn effective_restart_policy(pod: &Pod, container: &Container) -> RestartPolicy {
    container.restart_policy.unwrap_or(pod.spec.restart_policy)
}

/// Action of the first rule that matches `exit_code`; rules count only beside a policy of the container's own.
fn rule_action(container: &Container, exit_code: i32) -> Option<&str> {
    container.restart_policy?;
    container
        .restart_policy_rules
        .iter()
        .find(|rule| {
            rule.exit_codes.as_ref().is_some_and(|codes| {
                let listed = codes.values.contains(&exit_code);
                match codes.operator.as_str() {
                    "In" => listed,
                    "NotIn" => !listed,
                    _ => false,
                }
            })
        })
        .map(|rule| rule.action.as_str())
}

/// Returns true if an exit with `exit_code` is followed by a restart, deletion of the pod aside.
#[must_use]
pub fn restarts_after_exit(pod: &Pod, container: &Container, exit_code: i32) -> bool {
    if let Some(ACTION_RESTART | ACTION_RESTART_ALL) = rule_action(container, exit_code) {
        return true;
    }
    match effective_restart_policy(pod, container) {
        RestartPolicy::Always => true,
        RestartPolicy::OnFailure => exit_code != 0,
        RestartPolicy::Never => false,
    }
}

/// Returns true if the next sync should start an instance, given the newest one.
///
/// No instance starts once the pod has a deletionTimestamp. A running instance is left as it is.
#[must_use]
pub fn should_restart(pod: &Pod, container: &Container, newest: Option<&ContainerStatus>) -> bool {
    if pod.metadata.deletion_timestamp.is_some() {
        return false;
    }
    match newest.map(|c| c.state) {
        None | Some(ContainerState::Created | ContainerState::Unknown) => true,
        Some(ContainerState::Running) => false,
        Some(ContainerState::Exited) => {
            newest.is_some_and(|c| restarts_after_exit(pod, container, c.exit_code))
        }
    }
}

/// Returns true if a container of the pod has a rule that restarts all containers.
#[must_use]
pub fn has_restart_all_rule(pod: &Pod) -> bool {
    pod.spec
        .init_containers
        .iter()
        .chain(&pod.spec.containers)
        .any(|c| {
            c.restart_policy.is_some()
                && c.restart_policy_rules
                    .iter()
                    .any(|rule| rule.action == ACTION_RESTART_ALL)
        })
}

/// Returns true if the newest instance of `container` ended in a way that restarts the whole pod (ACT-72).
#[must_use]
pub fn triggers_restart_all(container: &Container, newest: Option<&ContainerStatus>) -> bool {
    newest.is_some_and(|c| {
        c.state == ContainerState::Exited
            && rule_action(container, c.exit_code) == Some(ACTION_RESTART_ALL)
    })
}

/// Containers whose end restarts the whole pod.
pub fn restart_all_sources<'a>(
    pod: &'a Pod,
    status: &'a PodRuntimeStatus,
) -> impl Iterator<Item = &'a Container> {
    let all = pod.spec.init_containers.iter().chain(&pod.spec.containers);
    all.filter(|c| triggers_restart_all(c, status.newest_instance(&c.name)))
}

/// Returns true if a container's end restarts the whole pod and the pod is not being deleted.
#[must_use]
pub fn restart_all_pending(pod: &Pod, status: &PodRuntimeStatus) -> bool {
    pod.metadata.deletion_timestamp.is_none() && restart_all_sources(pod, status).next().is_some()
}

/// Returns true if a plain init container's instance has failed: wrong exit code, killed for memory, or lost (ACT-54).
#[must_use]
pub fn init_failed(pod: &Pod, runtime: &PodRuntimeStatus, instance: &ContainerStatus) -> bool {
    instance.state == ContainerState::Unknown
        || (instance.state == ContainerState::Exited && instance.exit_code != 0)
        || init_lacked_memory(pod, runtime, instance)
}

/// Returns true if a plain init container's instance ended with 0 and has failed all the same, for want of memory.
///
/// An agent that did not count killed children let the pod go on. Its init container has passed: a container after it was
/// created in the same sandbox.
#[must_use]
pub fn init_lacked_memory(
    pod: &Pod,
    runtime: &PodRuntimeStatus,
    instance: &ContainerStatus,
) -> bool {
    let was_passed = || {
        let inits = pod.spec.init_containers.iter();
        let later = inits.skip_while(|c| c.name != instance.name).skip(1);
        let mut later = later.chain(&pod.spec.containers);
        later.any(|c| {
            let mut instances = runtime.container_instances(&c.name);
            instances.any(|i| i.sandbox == instance.sandbox)
        })
    };
    instance.state == ContainerState::Exited
        && instance.exit_code == 0
        && instance.reason == OOM_KILLED
        && !was_passed()
}

/// Returns true if a plain init container that has failed ([`init_failed`]) runs again. With exit code 0 it has failed for
/// want of memory.
#[must_use]
pub fn failed_init_restarts(pod: &Pod, container: &Container, exit_code: i32) -> bool {
    restarts_after_exit(pod, container, exit_code)
        || (exit_code == 0 && effective_restart_policy(pod, container) != RestartPolicy::Never)
}

/// Restart count, thus attempt, of a new instance (CFG-06): one more than the newest instance's; if the runtime knows
/// none, one more than `highest_log`, the largest N of the files `N.log…` left in the container's log directory.
#[must_use]
pub fn next_restart_count(newest: Option<&ContainerStatus>, highest_log: Option<u32>) -> u32 {
    newest
        .map(|c| c.restart_count)
        .or(highest_log)
        .map_or(0, |n| n.saturating_add(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::pod::{RestartRule, RestartRuleExitCodes};
    use RestartPolicy::{Always, Never, OnFailure};

    fn rule(operator: &str, values: &[i32], action: &str) -> RestartRule {
        RestartRule {
            action: action.into(),
            exit_codes: Some(RestartRuleExitCodes {
                operator: operator.into(),
                values: values.to_vec(),
            }),
        }
    }

    #[test]
    fn after_exit() {
        // ACT-40 CRR-01
        for (name, pod_policy, own, rules, code, expected) in [
            ("always, ok", Always, None, vec![], 0, true),
            ("on failure, ok", OnFailure, None, vec![], 0, false),
            ("on failure, failed", OnFailure, None, vec![], 3, true),
            ("never, failed", Never, None, vec![], 3, false),
            ("own policy wins", Never, Some(Always), vec![], 0, true),
            ("own never wins", Always, Some(Never), vec![], 1, false),
            ("own on failure", Never, Some(OnFailure), vec![], 1, true),
            (
                "rule In",
                Never,
                Some(Never),
                vec![rule("In", &[42], "Restart")],
                42,
                true,
            ),
            (
                "rule In, other code falls back to the policy",
                Always,
                Some(Never),
                vec![rule("In", &[42], "Restart")],
                41,
                false,
            ),
            (
                "rule NotIn",
                Never,
                Some(Never),
                vec![rule("NotIn", &[1, 2], "Restart")],
                3,
                true,
            ),
            (
                "rule for all containers restarts this one too",
                Never,
                Some(Never),
                vec![rule("In", &[7], "RestartAllContainers")],
                7,
                true,
            ),
            (
                "first match decides",
                Never,
                Some(Never),
                vec![rule("In", &[7], "Unheard"), rule("In", &[7], "Restart")],
                7,
                false,
            ),
            (
                "rules without an own policy are ignored",
                Never,
                None,
                vec![rule("In", &[42], "Restart")],
                42,
                false,
            ),
        ] {
            let mut pod = Pod::default();
            pod.spec.restart_policy = pod_policy;
            let container = Container {
                restart_policy: own,
                restart_policy_rules: rules,
                ..Container::default()
            };
            assert_eq!(
                restarts_after_exit(&pod, &container, code),
                expected,
                "{name}"
            );
        }
    }

    #[test]
    fn counting() {
        // CFG-06
        use crate::testing::{exited, nth};
        let third = nth(3, exited("a", 1));
        assert_eq!(next_restart_count(None, None), 0);
        assert_eq!(next_restart_count(None, Some(6)), 7, "after a reboot");
        assert_eq!(next_restart_count(Some(&third), Some(6)), 4);
    }
}
