//! One row, one rule. A row starts from a pod and its runtime status and names what the sync does in one line of text.

use alloc::{collections::BTreeMap, string::String, vec::Vec};

use serde_json::json;

use super::*;
use crate::api::WallTime;
use crate::api::pod::{Probe, RestartRule, RestartRuleExitCodes};
use crate::testing::{
    Random, container, exited, instance, nth, pod_with, running_pod, sandbox, sidecar,
};
use ContainerState::{Created, Exited, Running, Unknown};
use RestartPolicy::{Always, Never, OnFailure};

/// Probe results by `<instance id>`; `l`, `r`, `s` in front name the probe.
#[derive(Default)]
struct Results(BTreeMap<String, ProbeResult>);

impl ProbeResults for Results {
    fn liveness(&self, id: &ContainerId) -> Option<ProbeResult> {
        self.0.get(&format!("l {id}")).copied()
    }
    fn readiness(&self, id: &ContainerId) -> Option<ProbeResult> {
        self.0.get(&format!("r {id}")).copied()
    }
    fn startup(&self, id: &ContainerId) -> Option<ProbeResult> {
        self.0.get(&format!("s {id}")).copied()
    }
}

/// The actions as one line: `-` for none.
fn line(actions: &PodActions) -> String {
    let mut words = Vec::new();
    if actions.kill_pod {
        words.push("kill-pod".into());
    }
    if actions.create_sandbox {
        let old = actions.sandbox_id.as_ref().map_or("none", |id| id.as_str());
        words.push(format!("sandbox {} for {old}", actions.attempt));
    }
    for kill in &actions.to_kill {
        words.push(format!("kill {}", kill.id));
    }
    for id in &actions.to_remove {
        words.push(format!("remove {id}"));
    }
    for (kind, list) in [
        ("eph", &actions.ephemeral_to_start),
        ("init", &actions.init_to_start),
        ("start", &actions.to_start),
    ] {
        for index in list {
            words.push(format!("{kind} {index}"));
        }
    }
    if words.is_empty() {
        words.push("-".into());
    }
    words.join(", ")
}

struct Case {
    pod: Pod,
    status: PodRuntimeStatus,
    probes: Results,
}

impl Case {
    fn new(regular: &[&str], containers: Vec<ContainerStatus>) -> Self {
        Self {
            pod: pod_with(regular),
            status: running_pod(containers),
            probes: Results::default(),
        }
    }
    fn policy(mut self, policy: RestartPolicy) -> Self {
        self.pod.spec.restart_policy = policy;
        self
    }
    fn inits(mut self, inits: Vec<Container>) -> Self {
        self.pod.spec.init_containers = inits;
        self
    }
    fn probe(mut self, key: &str, result: ProbeResult) -> Self {
        self.probes.0.insert(key.into(), result);
        self
    }
    fn sandboxes(mut self, sandboxes: Vec<SandboxStatus>) -> Self {
        self.status.sandboxes = sandboxes;
        self
    }
    fn edit(mut self, edit: impl FnOnce(&mut Pod)) -> Self {
        edit(&mut self.pod);
        self
    }
    fn actions(&self) -> PodActions {
        compute_pod_actions(&self.pod, &self.status, &self.probes)
    }
}

fn check(rows: Vec<(&str, Case, &str)>) {
    for (name, case, expected) in rows {
        assert_eq!(line(&case.actions()), expected, "{name}");
    }
}

fn running(names: &[&str]) -> Vec<ContainerStatus> {
    names.iter().map(|n| instance(n, Running)).collect()
}

fn changed(mut status: ContainerStatus) -> ContainerStatus {
    status.hash ^= 1;
    status
}

fn with_probes(mut container: Container) -> Container {
    container.startup_probe = Some(Probe::default());
    container.liveness_probe = Some(Probe::default());
    container
}

fn with_rule(mut container: Container, code: i32, action: &str) -> Container {
    container.restart_policy = Some(Never);
    container.restart_policy_rules = vec![RestartRule {
        action: action.into(),
        exit_codes: Some(RestartRuleExitCodes {
            operator: "In".into(),
            values: vec![code],
        }),
    }];
    container
}

const READY: SandboxState = SandboxState::Ready;
const DEAD: SandboxState = SandboxState::NotReady;

#[test]
fn sandbox_decision() {
    let ab = || Case::new(&["a", "b"], running(&["a", "b"]));
    let mut foreign_net = sandbox(2, READY);
    foreign_net.namespaces.network = NamespaceMode::Node;
    let mut no_ip = sandbox(2, READY);
    no_ip.ips.clear();
    let mut on_host = foreign_net.clone();
    on_host.ips.clear();
    // ACT-10 ACT-11 ACT-13 ACT-14 ACT-15 ACT-16 SYNC-18
    check(vec![
        (
            "new pod",
            Case::new(&["a", "b"], vec![]).sandboxes(vec![]),
            "kill-pod, sandbox 0 for none, start 0, start 1",
        ),
        ("all is well", ab(), "-"),
        (
            "latest is dead",
            ab().sandboxes(vec![sandbox(0, DEAD)]),
            "kill-pod, sandbox 1 for sb-0, start 0, start 1",
        ),
        (
            "two ready",
            ab().sandboxes(vec![sandbox(1, READY), sandbox(0, READY)]),
            "kill-pod, sandbox 2 for sb-1, start 0, start 1",
        ),
        (
            "an older one is dead",
            ab().sandboxes(vec![sandbox(1, READY), sandbox(0, DEAD)]),
            "-",
        ),
        (
            "an older one is ready",
            ab().sandboxes(vec![sandbox(1, DEAD), sandbox(0, READY)]),
            "kill-pod, sandbox 2 for sb-1, start 0, start 1",
        ),
        (
            "network mode changed",
            ab().sandboxes(vec![foreign_net.clone()]),
            "kill-pod, sandbox 3 for none, start 0, start 1",
        ),
        (
            "no address",
            ab().sandboxes(vec![no_ip]),
            "kill-pod, sandbox 3 for sb-2, start 0, start 1",
        ),
        (
            "host network needs no address",
            ab().sandboxes(vec![on_host])
                .edit(|pod| pod.spec.host_network = true),
            "-",
        ),
        (
            "init instances are purged, only init 0 starts",
            Case::new(
                &["a"],
                vec![
                    nth(1, exited("i", 0)),
                    exited("i", 1),
                    exited("j", 0),
                    instance("a", Running),
                ],
            )
            .inits(vec![container("i"), container("j")])
            .sandboxes(vec![sandbox(0, DEAD)]),
            "kill-pod, sandbox 1 for sb-0, remove i-1, remove i-0, remove j-0, init 0",
        ),
    ]);
}

#[test]
fn latest_sandbox_order() {
    // ACT-11
    let (mut old, mut new) = (sandbox(1, DEAD), sandbox(1, READY));
    old.created_at = WallTime::from_unix_seconds(5);
    new.created_at = WallTime::from_unix_seconds(6);
    new.id = "z".into();
    let case = Case::new(&["a"], running(&["a"])).sandboxes(vec![old, new]);
    assert_eq!(
        sandbox_changed(&case.pod, &case.status),
        (false, 1, Some("z".into())),
        "same attempt: the newest creation counts"
    );
}

#[test]
fn recreation_by_policy() {
    let dead = |case: Case| case.sandboxes(vec![sandbox(0, DEAD)]);
    // ACT-17 ACT-18
    check(vec![
        (
            "never, something ran: the pod is over",
            dead(Case::new(&["a"], vec![exited("a", 1)]).policy(Never)),
            "kill-pod",
        ),
        (
            "never, and what was created never ran",
            dead(Case::new(&["a"], vec![instance("a", Created)]).policy(Never)),
            "kill-pod, sandbox 1 for sb-0, start 0",
        ),
        (
            "never, nothing was created yet",
            dead(Case::new(&["a"], vec![]).policy(Never)),
            "kill-pod, sandbox 1 for sb-0, start 0",
        ),
        (
            "never, and of two only one ran",
            dead(Case::new(&["a", "b"], vec![exited("a", 137)]).policy(Never)),
            "kill-pod, sandbox 1 for sb-0, start 1",
        ),
        (
            "never, and what ran is no longer part of the pod",
            dead(Case::new(&["a"], vec![exited("old", 0)]).policy(Never)),
            "kill-pod, sandbox 1 for sb-0, start 0",
        ),
        (
            "never, and only the init container ran",
            dead(Case::new(&["a"], vec![exited("i", 0)]).policy(Never)).inits(vec![container("i")]),
            "kill-pod, sandbox 1 for sb-0, remove i-0, init 0",
        ),
        (
            "the pod's policy counts, not the container's",
            dead(
                Case::new(&["a"], vec![exited("a", 1)])
                    .policy(Never)
                    .edit(|pod| pod.spec.containers[0].restart_policy = Some(Always)),
            ),
            "kill-pod",
        ),
        (
            "never, first sandbox",
            Case::new(&["a"], vec![]).policy(Never).sandboxes(vec![]),
            "kill-pod, sandbox 0 for none, start 0",
        ),
        (
            "on failure: the one that succeeded stays out",
            dead(Case::new(&["a", "b"], vec![exited("a", 0), exited("b", 2)]).policy(OnFailure)),
            "kill-pod, sandbox 1 for sb-0, start 1",
        ),
        (
            "on failure: all succeeded",
            dead(Case::new(&["a", "b"], vec![exited("a", 0), exited("b", 0)]).policy(OnFailure)),
            "kill-pod",
        ),
        (
            "on failure: all succeeded, with inits",
            dead(
                Case::new(&["a"], vec![exited("a", 0), exited("i", 0)])
                    .policy(OnFailure)
                    .inits(vec![container("i")]),
            ),
            "kill-pod",
        ),
        (
            "always: success does not matter",
            dead(Case::new(&["a"], vec![exited("a", 0)])),
            "kill-pod, sandbox 1 for sb-0, start 0",
        ),
        (
            "own policy OnFailure counts as well",
            dead(
                Case::new(&["a", "b"], vec![exited("a", 0), exited("b", 0)])
                    .edit(|pod| pod.spec.containers[0].restart_policy = Some(OnFailure)),
            ),
            "kill-pod, sandbox 1 for sb-0, start 1",
        ),
        (
            "ephemeral containers wait for the next pass",
            dead(Case::new(&["a"], vec![]))
                .edit(|pod| pod.spec.ephemeral_containers = vec![container("e")]),
            "kill-pod, sandbox 1 for sb-0, start 0",
        ),
    ]);
}

#[test]
fn regular_containers() {
    let one = |status| Case::new(&["a", "b"], vec![status, instance("b", Running)]);
    let failed = ProbeResult::Failure;
    // ACT-30 ACT-32 ACT-33 ACT-34 ACT-35 ACT-38 ACT-40
    check(vec![
        ("none", Case::new(&["a", "b"], running(&["b"])), "start 0"),
        ("created", one(instance("a", Created)), "start 0"),
        ("unknown", one(instance("a", Unknown)), "kill a-0, start 0"),
        ("exited, always", one(exited("a", 0)), "start 0"),
        (
            "exited well, on failure",
            one(exited("a", 0)).policy(OnFailure),
            "-",
        ),
        (
            "exited badly, on failure",
            one(exited("a", 1)).policy(OnFailure),
            "start 0",
        ),
        ("exited, never", one(exited("a", 1)).policy(Never), "-"),
        (
            "created, never",
            one(instance("a", Created)).policy(Never),
            "start 0",
        ),
        (
            "newest instance decides",
            Case::new(&["a"], vec![nth(1, instance("a", Running)), exited("a", 1)]),
            "-",
        ),
        (
            "image changed",
            one(changed(instance("a", Running))),
            "kill a-0, start 0",
        ),
        (
            "image changed, never",
            one(changed(instance("a", Running))).policy(Never),
            "kill a-0, start 0",
        ),
        (
            "liveness failed",
            one(instance("a", Running)).probe("l a-0", failed),
            "kill a-0, start 0",
        ),
        (
            "liveness failed, never",
            one(instance("a", Running))
                .policy(Never)
                .probe("l a-0", failed),
            "kill a-0",
        ),
        (
            "startup failed, on failure",
            one(instance("a", Running))
                .policy(OnFailure)
                .probe("s a-0", failed),
            "kill a-0, start 0",
        ),
        (
            "result of an older instance",
            one(nth(1, instance("a", Running))).probe("l a-0", failed),
            "-",
        ),
        (
            "readiness kills nothing",
            one(instance("a", Running)).probe("r a-0", failed),
            "-",
        ),
        (
            "rule restarts in a pod that never does",
            one(exited("a", 42)).policy(Never).edit(|pod| {
                pod.spec.containers[0] = with_rule(container("a"), 42, "Restart");
            }),
            "start 0",
        ),
        (
            "rule does not match",
            one(exited("a", 41)).edit(|pod| {
                pod.spec.containers[0] = with_rule(container("a"), 42, "Restart");
            }),
            "-",
        ),
    ]);
}

#[test]
fn rules_do_not_judge_probe_kills() {
    // ACT-41
    let case = Case::new(&["a", "b"], running(&["a", "b"]))
        .edit(|pod| pod.spec.containers[0] = with_rule(container("a"), 137, "Restart"))
        .probe("l a-0", ProbeResult::Failure);
    assert_eq!(line(&case.actions()), "kill a-0");
}

#[test]
fn kill_texts() {
    // ACT-41 KILL-01
    let probe = |s| {
        Some(Probe {
            termination_grace_period_seconds: s,
            ..Probe::default()
        })
    };
    let base = || {
        Case::new(&["a", "b"], running(&["a", "b"])).edit(|pod| {
            pod.spec.containers[0].liveness_probe = probe(Some(77));
            pod.spec.containers[0].startup_probe = probe(Some(66));
        })
    };
    let failed = ProbeResult::Failure;
    let mut unknown = base();
    unknown.status.containers[0].state = Unknown;
    let mut hash = base();
    hash.status.containers[0].hash ^= 1;
    for (case, cause, grace, text) in [
        (
            hash,
            KillCause::Changed,
            30,
            "Container a definition changed, will be restarted",
        ),
        (
            base().probe("l a-0", failed),
            KillCause::Liveness,
            77,
            "Container a failed liveness probe, will be restarted",
        ),
        (
            base().probe("s a-0", failed),
            KillCause::Startup,
            66,
            "Container a failed startup probe, will be restarted",
        ),
        (
            base().probe("s a-0", failed).policy(Never),
            KillCause::Startup,
            66,
            "Container a failed startup probe",
        ),
        (
            unknown,
            KillCause::Unknown,
            30,
            "Container a is in \"unknown\" state, try killing it before restart",
        ),
    ] {
        let actions = case.actions();
        let kill = &actions.to_kill[0];
        assert_eq!((kill.cause, kill.grace_s), (cause, grace), "{text}");
        assert_eq!(kill.message, text);
    }
}

#[test]
fn end_of_the_pod() {
    // ACT-39
    check(vec![
        (
            "never, all exited",
            Case::new(&["a", "b"], vec![exited("a", 0), exited("b", 1)]).policy(Never),
            "kill-pod",
        ),
        (
            "a pending sidecar start is dropped",
            Case::new(&["a"], vec![exited("a", 0), exited("s", 0), exited("i", 0)])
                .policy(Never)
                .inits(vec![sidecar("s"), container("i")]),
            "kill-pod",
        ),
        (
            "unless the sidecar itself is the frontier: judged again once it runs",
            Case::new(&["a"], vec![exited("a", 0), exited("s", 0)])
                .policy(Never)
                .inits(vec![sidecar("s")]),
            "init 0",
        ),
        (
            "a running sidecar does not either",
            Case::new(&["a"], vec![exited("a", 0), instance("s", Running)])
                .policy(Never)
                .inits(vec![sidecar("s")]),
            "kill-pod",
        ),
        (
            "an ephemeral container does not",
            Case::new(&["a"], vec![exited("a", 0), instance("e", Running)])
                .policy(Never)
                .edit(|pod| pod.spec.ephemeral_containers = vec![container("e")]),
            "kill-pod",
        ),
        (
            "liveness failed in the only container, never",
            Case::new(&["a"], running(&["a"]))
                .policy(Never)
                .probe("l a-0", ProbeResult::Failure),
            "kill-pod",
        ),
    ]);
}

#[test]
fn nothing_starts_after_deletion() {
    let deleted = |case: Case| {
        case.edit(|pod| pod.metadata.deletion_timestamp = Some(WallTime::from_unix_seconds(1)))
    };
    // ACT-40 KILL-18
    check(vec![
        ("running", deleted(Case::new(&["a"], running(&["a"]))), "-"),
        (
            "exited",
            deleted(Case::new(
                &["a", "b"],
                vec![exited("a", 1), instance("b", Running)],
            )),
            "-",
        ),
        (
            "all exited",
            deleted(Case::new(&["a"], vec![exited("a", 1)])),
            "kill-pod",
        ),
        (
            "no sandbox",
            deleted(Case::new(&["a"], vec![]).sandboxes(vec![])),
            "kill-pod",
        ),
        (
            "image changed",
            deleted(Case::new(&["a"], vec![changed(instance("a", Running))])),
            "-",
        ),
        (
            "liveness failed",
            deleted(Case::new(&["a"], running(&["a"]))).probe("l a-0", ProbeResult::Failure),
            "-",
        ),
        (
            "init in progress",
            deleted(Case::new(&["a"], running(&["i"])).inits(vec![container("i")])),
            "-",
        ),
        (
            "ephemeral",
            deleted(Case::new(&["a"], running(&["a"])))
                .edit(|pod| pod.spec.ephemeral_containers = vec![container("e")]),
            "-",
        ),
    ]);
}

#[test]
fn plain_init_containers() {
    let inits = |containers| {
        Case::new(&["a"], containers).inits(vec![container("i"), container("j"), container("k")])
    };
    let oom = |name| {
        let mut oom = exited(name, 0);
        oom.reason = "OOMKilled".into();
        oom
    };
    let of_old_sandbox = |mut instance: ContainerStatus| {
        instance.sandbox = "sb-old".into();
        instance
    };
    // ACT-50 ACT-51 ACT-53 ACT-54 ACT-58 ACT-59
    check(vec![
        ("none", inits(vec![]), "init 0"),
        ("first runs", inits(running(&["i"])), "-"),
        (
            "first created",
            inits(vec![instance("i", Created)]),
            "init 0",
        ),
        ("first done", inits(vec![exited("i", 0)]), "init 1"),
        (
            "last has an instance, earlier ones are gone",
            inits(running(&["k"])),
            "-",
        ),
        ("last done", inits(vec![exited("k", 0)]), "start 0"),
        ("failed, always", inits(vec![exited("i", 1)]), "init 0"),
        (
            "failed, on failure",
            inits(vec![exited("i", 1)]).policy(OnFailure),
            "init 0",
        ),
        (
            "failed, never",
            inits(vec![exited("i", 1)]).policy(Never),
            "kill-pod",
        ),
        (
            "failed, own rule",
            inits(vec![exited("i", 42)]).policy(Never).edit(|pod| {
                pod.spec.init_containers[0] = with_rule(container("i"), 42, "Restart");
            }),
            "init 0",
        ),
        (
            "out of memory counts as failed",
            inits(vec![oom("i")]),
            "init 0",
        ),
        (
            "out of memory, on failure",
            inits(vec![oom("i")]).policy(OnFailure),
            "init 0",
        ),
        (
            "out of memory, never",
            inits(vec![oom("i")]).policy(Never),
            "kill-pod",
        ),
        (
            "out of memory, and the pod went on",
            inits(vec![exited("a", 1), oom("k")]),
            "start 0",
        ),
        (
            "out of memory, and the pod went on in another sandbox",
            inits(vec![of_old_sandbox(exited("a", 1)), oom("k")]),
            "init 2",
        ),
        (
            "out of memory with a next init container",
            inits(vec![exited("j", 0), oom("i")]),
            "init 2",
        ),
        (
            "unknown",
            inits(vec![instance("i", Unknown)]),
            "kill i-0, init 0",
        ),
        (
            "unknown, never",
            inits(vec![instance("i", Unknown)]).policy(Never),
            "kill-pod",
        ),
        (
            "image of an init changed",
            inits(vec![instance("a", Running), changed(exited("k", 0))]),
            "-",
        ),
        (
            "initialised, instances removed",
            inits(running(&["a"])),
            "-",
        ),
        (
            "initialised by a created one",
            inits(vec![instance("a", Created)]),
            "start 0",
        ),
        (
            "all regulars exited: the last init speaks",
            inits(vec![exited("a", 1), exited("k", 0)]),
            "start 0",
        ),
        (
            "all regulars exited, no init instance: from the start",
            inits(vec![exited("a", 1)]),
            "init 0",
        ),
        (
            "older instances are pruned",
            inits(vec![
                nth(2, exited("i", 1)),
                nth(1, exited("i", 1)),
                nth(0, instance("i", Unknown)),
            ]),
            "remove i-1, remove i-0, init 0",
        ),
        (
            "a running one is never pruned",
            inits(vec![nth(2, exited("i", 0)), nth(1, instance("i", Running))]),
            "init 1",
        ),
    ]);
}

#[test]
fn sidecars() {
    let (success, failure) = (ProbeResult::Success, ProbeResult::Failure);
    let frontier = |containers| {
        Case::new(&["a"], containers).inits(vec![
            container("i"),
            with_probes(sidecar("s")),
            container("j"),
        ])
    };
    // ACT-55
    check(vec![
        (
            "plain init done, the sidecar is next",
            frontier(vec![exited("i", 0)]),
            "init 1",
        ),
        ("created", frontier(vec![instance("s", Created)]), "init 1"),
        ("exited", frontier(vec![exited("s", 0)]), "init 1"),
        (
            "unknown",
            frontier(vec![instance("s", Unknown)]),
            "kill s-0, init 1",
        ),
        ("no startup result", frontier(running(&["s"])), "-"),
        (
            "startup undecided",
            frontier(running(&["s"])).probe("s s-0", ProbeResult::Unknown),
            "-",
        ),
        (
            "startup failed",
            frontier(running(&["s"])).probe("s s-0", failure),
            "kill s-0, init 1",
        ),
        (
            "started: next",
            frontier(running(&["s"])).probe("s s-0", success),
            "init 2",
        ),
        (
            "started, liveness failed: restarted and next",
            frontier(running(&["s"]))
                .probe("s s-0", success)
                .probe("l s-0", failure),
            "kill s-0, init 1, init 2",
        ),
        (
            "readiness does not gate",
            frontier(running(&["s"]))
                .probe("s s-0", success)
                .probe("r s-0", failure),
            "init 2",
        ),
        (
            "last init is a started sidecar: regulars start in this pass",
            Case::new(&["a"], running(&["s"])).inits(vec![sidecar("s")]),
            "start 0",
        ),
    ]);
    let done = |containers| {
        Case::new(&["a"], containers).inits(vec![
            with_probes(sidecar("s")),
            container("i"),
            sidecar("t"),
        ])
    };
    let a = || instance("a", Running);
    let t = || instance("t", Running);
    let s = || instance("s", Running);
    // ACT-57 ACT-59
    check(vec![
        (
            "missing ones start, in order",
            done(vec![a()]),
            "init 0, init 2",
        ),
        (
            "exited, even in a pod that never restarts",
            done(vec![a(), exited("s", 1), t()]).policy(Never),
            "init 0",
        ),
        (
            "created",
            done(vec![a(), instance("s", Created), t()]),
            "init 0",
        ),
        (
            "unknown",
            done(vec![a(), instance("s", Unknown), t()]),
            "kill s-0, init 0",
        ),
        (
            "startup failed",
            done(vec![a(), s(), t()]).probe("s s-0", failure),
            "kill s-0, init 0",
        ),
        (
            "changed, but not yet started",
            done(vec![a(), changed(s()), t()]),
            "-",
        ),
        (
            "changed and started",
            done(vec![a(), changed(s()), t()]).probe("s s-0", success),
            "kill s-0, init 0",
        ),
        (
            "changed, no startup probe",
            done(vec![a(), s(), changed(t())]),
            "kill t-0, init 2",
        ),
        (
            "liveness failed and started",
            done(vec![a(), s(), t()])
                .probe("s s-0", success)
                .probe("l s-0", failure),
            "kill s-0, init 0",
        ),
        (
            "before the frontier: restarted beside the next start",
            done(vec![exited("i", 0), exited("s", 1)]),
            "init 0, init 2",
        ),
    ]);
}

#[test]
fn ephemeral_containers() {
    let with = |containers| {
        Case::new(&["a"], containers).edit(|pod| {
            pod.spec.ephemeral_containers = vec![container("e"), container("f")];
        })
    };
    // ACT-70
    check(vec![
        ("new", with(running(&["a"])), "eph 0, eph 1"),
        (
            "during init",
            with(running(&["i"])).inits(vec![container("i")]),
            "eph 0, eph 1",
        ),
        (
            "never again",
            with(vec![
                instance("a", Running),
                exited("e", 1),
                instance("f", Unknown),
            ]),
            "-",
        ),
        (
            "changed",
            with(vec![
                instance("a", Running),
                changed(instance("e", Running)),
                instance("f", Created),
            ]),
            "-",
        ),
    ]);
}

#[test]
fn an_ephemeral_container_that_the_runtime_has_forgotten() {
    // ACT-70
    for (name, status, expected) in [
        ("nothing is shown of it", json!({}), vec![0, 1]),
        (
            "it waits",
            json!({"state": {"waiting": {"reason": "ErrImagePull"}}}),
            vec![0, 1],
        ),
        ("it ran", json!({"state": {"running": {}}}), vec![0]),
        (
            "it has ended",
            json!({"state": {"terminated": {"exitCode": 0}}}),
            vec![0],
        ),
        (
            "it ended once",
            json!({"lastState": {"terminated": {"exitCode": 1}}}),
            vec![0],
        ),
    ] {
        let mut pod = pod_with(&["a"]);
        pod.spec.ephemeral_containers = vec![container("e"), container("f")];
        let mut shown = status;
        shown["name"] = "f".into();
        let shown = json!({"ephemeralContainerStatuses": [shown]});
        let shown: PodStatus = serde_json::from_value(shown).expect("status");
        let runtime = running_pod(running(&["a"]));
        let mut actions = compute_pod_actions(&pod, &runtime, &Results::default());
        drop_begun_ephemeral(&mut actions, &pod, &shown);
        assert_eq!(actions.ephemeral_to_start, expected, "{name}");
    }
}

#[test]
fn restart_of_all_containers() {
    // ACT-72 RAC-01 RAC-05
    let case = Case::new(
        &["a", "b"],
        vec![
            exited("a", 7),
            instance("b", Running),
            instance("s", Running),
            exited("i", 0),
        ],
    )
    .inits(vec![container("i"), sidecar("s")])
    .edit(|pod| pod.spec.containers[0] = with_rule(container("a"), 7, "RestartAllContainers"));
    let actions = case.actions();
    assert_eq!(
        line(&actions),
        "kill b-0, kill s-0, remove b-0, remove i-0, remove s-0, remove a-0"
    );
    assert!(actions.restart_all);
    assert!(actions.to_kill.iter().all(|kill| kill.grace_s == 0));
    // After each removal the rest leads to the same decision, until no instance is left.
    let mut status = case.status.clone();
    for id in &actions.to_remove {
        let again = compute_pod_actions(&case.pod, &status, &case.probes);
        assert!(again.restart_all, "before removing {id}");
        status.containers.retain(|c| c.id != *id);
    }
    let fresh = compute_pod_actions(&case.pod, &status, &case.probes);
    assert_eq!(line(&fresh), "init 0", "same sandbox, from the first init");
    // A probe that fails meanwhile starts nothing.
    let probed = case.probe("l s-0", ProbeResult::Failure);
    assert_eq!(line(&probed.actions()), line(&actions));
    // A container that has succeeded and one that never restarts start over too; an ephemeral one stays.
    let ended = Case::new(
        &["a", "b", "c"],
        vec![
            exited("a", 7),
            exited("b", 0),
            exited("c", 1),
            instance("e", Running),
        ],
    )
    .policy(Never)
    .edit(|pod| {
        pod.spec.containers[0] = with_rule(container("a"), 7, "RestartAllContainers");
        pod.spec.ephemeral_containers = vec![container("e")];
    });
    assert_eq!(line(&ended.actions()), "remove b-0, remove c-0, remove a-0");
    let mut status = ended.status.clone();
    status.containers.retain(|c| c.name == "e");
    let fresh = compute_pod_actions(&ended.pod, &status, &ended.probes);
    assert_eq!(line(&fresh), "start 0, start 1, start 2");
    // An init container that fails in the second run, and never restarts, ends the pod.
    let again = Case::new(&["a"], vec![nth(1, exited("i", 1))])
        .inits(vec![container("i")])
        .policy(Never)
        .edit(|pod| pod.spec.containers[0] = with_rule(container("a"), 7, "RestartAllContainers"));
    assert_eq!(line(&again.actions()), "kill-pod");
}

#[test]
fn reboot_initialises_again() {
    // ACT-62 ACT-50
    let mut case = Case::new(
        &["a"],
        vec![exited("a", 137), exited("s", 137), exited("i", 0)],
    )
    .inits(vec![container("i"), sidecar("s")])
    .sandboxes(vec![sandbox(0, DEAD)]);
    assert_eq!(
        line(&case.actions()),
        "kill-pod, sandbox 1 for sb-0, remove s-0, remove i-0, init 0"
    );
    case.status.sandboxes.insert(0, sandbox(1, READY));
    case.status.containers.retain(|c| c.name == "a");
    // An instance that was created before the reboot and never started does not count for the new sandbox.
    let mut other = case.status.clone();
    other.containers[0].state = Created;
    let fresh = compute_pod_actions(&case.pod, &other, &case.probes);
    assert_eq!(
        line(&fresh),
        "init 0",
        "created in the sandbox that is gone"
    );
    for (step, expected) in [
        (nth(1, instance("i", Running)), "-"),
        (nth(1, exited("i", 0)), "init 1"),
        (nth(1, instance("s", Running)), "start 0"),
        (nth(1, instance("a", Running)), "-"),
    ] {
        case.status.containers.retain(|c| c.id != step.id);
        case.status.containers.insert(0, step);
        case.status.containers[0].sandbox = case.status.sandboxes[0].id.clone();
        assert_eq!(line(&case.actions()), expected);
    }
    // An instance that could not be removed with the earlier sandbox has not run in this one.
    let mut left = case.status.clone();
    left.containers.retain(|c| c.name == "i" || c.name == "a");
    left.containers[0] = exited("a", 137);
    left.containers[1].sandbox = sandbox(0, DEAD).id;
    let again = compute_pod_actions(&case.pod, &left, &case.probes);
    assert_eq!(line(&again), "init 0");
    // An instance that was only created there has not run, either.
    for state in [Created, Exited] {
        let mut side = instance("s", state);
        side.sandbox = sandbox(0, DEAD).id;
        let mut left = left.clone();
        left.containers = vec![side];
        let again = compute_pod_actions(&case.pod, &left, &case.probes);
        assert_eq!(line(&again), "init 0", "{state:?}");
    }
}

/// A random pod with a random status: any combination a runtime might show.
fn random_case(random: &mut Random) -> Case {
    let policies = [Always, OnFailure, Never];
    let states = [Created, Running, Exited, Unknown];
    let pick = |random: &mut Random, n: u64| usize::try_from(random.below(n)).expect("small");
    let names = ["a", "b", "c"];
    let regular = 1 + pick(random, 3);
    let mut case = Case::new(&names[..regular], vec![]).policy(policies[pick(random, 3)]);
    for name in ["i", "j", "s"].iter().take(pick(random, 4)) {
        let mut init = if random.one_in(2) {
            sidecar(name)
        } else {
            container(name)
        };
        if random.one_in(3) {
            init = with_probes(init);
        }
        case.pod.spec.init_containers.push(init);
    }
    if random.one_in(4) {
        case.pod.spec.ephemeral_containers = vec![container("e")];
    }
    if random.one_in(6) {
        case.pod.spec.containers[0] = with_rule(container("a"), 1, "RestartAllContainers");
    }
    let all: Vec<String> = case
        .pod
        .spec
        .all_containers()
        .map(|c| c.name.clone())
        .collect();
    for name in all {
        for n in (0..u32::try_from(random.below(3)).expect("small")).rev() {
            let mut status = nth(n, instance(&name, states[pick(random, 4)]));
            status.exit_code = i32::from(random.one_in(2));
            if random.one_in(8) {
                status.hash ^= 1;
            }
            case.status.containers.push(status);
        }
        for probe in ["l", "r", "s"] {
            if random.one_in(3) {
                let result = [
                    ProbeResult::Success,
                    ProbeResult::Failure,
                    ProbeResult::Unknown,
                ][pick(random, 3)];
                case.probes.0.insert(format!("{probe} {name}-0"), result);
            }
        }
    }
    case.status.sandboxes = (0..u32::try_from(random.below(3)).expect("small"))
        .rev()
        .map(|n| sandbox(n, if random.one_in(3) { DEAD } else { READY }))
        .collect();
    if random.one_in(5) {
        case.pod.metadata.deletion_timestamp = Some(WallTime::from_unix_seconds(1));
    }
    case
}

#[test]
fn properties_of_every_decision() {
    // ACT-16 ACT-40 ACT-59
    let mut random = Random(7);
    for round in 0..20_000 {
        let case = random_case(&mut random);
        let actions = case.actions();
        let text = line(&actions);
        if case.pod.metadata.deletion_timestamp.is_some() {
            assert!(
                !actions.starts_anything() && !actions.create_sandbox,
                "{round}: starts after deletion: {text}"
            );
        }
        if actions.create_sandbox {
            assert!(actions.kill_pod, "{round}: {text}");
        }
        if actions.kill_pod {
            assert!(actions.to_kill.is_empty(), "{round}: {text}");
            assert!(
                actions.create_sandbox || !actions.starts_anything(),
                "{round}: starts in a killed pod: {text}"
            );
        }
        for list in [
            &actions.init_to_start,
            &actions.to_start,
            &actions.ephemeral_to_start,
        ] {
            assert!(list.is_sorted_by(|a, b| a < b), "{round}: {text}");
        }
        assert!(
            actions
                .init_to_start
                .iter()
                .all(|i| *i < case.pod.spec.init_containers.len())
        );
        // No second instance beside a running one.
        if !actions.kill_pod {
            let starts = actions
                .to_start
                .iter()
                .map(|i| &case.pod.spec.containers[*i])
                .chain(
                    actions
                        .init_to_start
                        .iter()
                        .map(|i| &case.pod.spec.init_containers[*i]),
                );
            for container in starts {
                if let Some(newest) = case.status.newest_instance(&container.name) {
                    let killed = actions.to_kill.iter().any(|k| k.id == newest.id);
                    assert!(
                        killed || matches!(newest.state, Created | Exited),
                        "{round}: {} would run twice: {text}",
                        container.name
                    );
                }
            }
        }
        // The decision depends on nothing but its input.
        assert_eq!(actions, case.actions());
    }
}
