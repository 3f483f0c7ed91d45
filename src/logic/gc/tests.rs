use alloc::{
    string::{String, ToString},
    vec::Vec,
};

use super::*;
use crate::testing::{exited, instance, nth, running_pod, sandbox};
use ContainerState::{Created, Running, Unknown};

const NOW: WallTime = WallTime::from_unix_seconds(10_000);

fn age(at: WallTime) -> Duration {
    Duration::from_nanos((NOW.0 - at.0).unsigned_abs())
}

fn pod(uid: &str, containers: Vec<ContainerStatus>) -> PodRuntimeStatus {
    let mut pod = running_pod(containers);
    pod.uid = PodUid::from(uid);
    pod
}

fn listed(pods: &[PodRuntimeStatus]) -> Vec<PodItem> {
    pods.iter().map(PodItem::from).collect()
}

/// Pods whose UID begins with `gone` are gone.
fn fate(uid: &PodUid) -> PodGcState {
    if uid.starts_with("gone") {
        PodGcState::ContentRemovable
    } else {
        PodGcState::Kept
    }
}

fn ids(removals: &[InstanceRemoval]) -> String {
    removals
        .iter()
        .map(|r| {
            let stop = if r.stop_first { "!" } else { "" };
            format!("{}{stop}", r.id)
        })
        .collect::<Vec<_>>()
        .join(" ")
}

#[test]
fn dead_instances() {
    let three = || {
        vec![
            nth(2, exited("a", 0)),
            nth(1, exited("a", 0)),
            exited("a", 0),
        ]
    };
    let policy = |per_container, total| ContainerGcPolicy {
        max_per_container: per_container,
        max_total: total,
        ..ContainerGcPolicy::default()
    };
    let usual = || policy(1, None);
    // GC-01 GC-03 IGC-03
    for (name, pods, ready, policy, expected) in [
        (
            "newest is kept",
            vec![pod("p", three())],
            true,
            usual(),
            "a-0 a-1",
        ),
        (
            "a running one does not use up the place",
            vec![pod(
                "p",
                vec![
                    nth(2, instance("a", Running)),
                    nth(1, exited("a", 0)),
                    exited("a", 0),
                ],
            )],
            true,
            usual(),
            "a-0",
        ),
        (
            "per container",
            vec![pod(
                "p",
                vec![nth(1, exited("a", 0)), exited("a", 0), exited("b", 0)],
            )],
            true,
            usual(),
            "a-0",
        ),
        (
            "more are kept if asked",
            vec![pod("p", three())],
            true,
            policy(2, None),
            "a-0",
        ),
        (
            "none is kept if asked",
            vec![pod("p", three())],
            true,
            policy(0, None),
            "a-0 a-1 a-2",
        ),
        (
            "a start under way is left alone",
            vec![pod(
                "p",
                vec![nth(1, instance("a", Created)), exited("a", 0)],
            )],
            true,
            policy(0, None),
            "a-0",
        ),
        (
            "unknown ones are stopped first",
            vec![pod(
                "p",
                vec![nth(1, exited("a", 0)), instance("a", Unknown)],
            )],
            true,
            usual(),
            "a-0!",
        ),
        (
            "all of a pod that is gone, running ones excepted",
            vec![pod(
                "gone",
                vec![
                    nth(1, instance("a", Running)),
                    exited("a", 0),
                    instance("b", Created),
                ],
            )],
            true,
            usual(),
            "a-0 b-0",
        ),
        (
            "not before sources are ready",
            vec![pod("gone", vec![exited("a", 0)])],
            false,
            usual(),
            "",
        ),
        (
            "global limit: equal shares first, then the oldest",
            vec![
                pod(
                    "p",
                    vec![
                        nth(7, exited("a", 0)),
                        nth(6, exited("a", 0)),
                        nth(5, exited("a", 0)),
                    ],
                ),
                pod("q", vec![nth(4, exited("b", 0))]),
                pod("r", vec![nth(3, exited("c", 0))]),
            ],
            true,
            policy(5, Some(2)),
            "a-5 a-6 c-3",
        ),
    ] {
        let got = removable_containers(&listed(&pods), &fate, ready, &policy, &age);
        assert_eq!(ids(&got), expected, "{name}");
    }
    let young = ContainerGcPolicy {
        min_age: Duration::from_secs(100),
        ..policy(0, None)
    };
    let mut dead = exited("a", 0);
    dead.created_at = WallTime::from_unix_seconds(9_950);
    let pods = [pod("p", vec![dead, exited("b", 0)])];
    let got = removable_containers(&listed(&pods), &fate, true, &young, &age);
    assert_eq!(ids(&got), "b-0", "younger than the minimum age");
}

#[test]
fn after_a_death() {
    let status = || {
        pod(
            "p",
            vec![
                nth(3, instance("a", Running)),
                nth(2, exited("a", 0)),
                nth(1, exited("a", 0)),
                exited("a", 0),
                nth(1, exited("b", 0)),
                exited("b", 0),
            ],
        )
    };
    // CLEAN-14
    for (name, died, keep, fate, expected) in [
        ("same container only", "a-2", 1, PodGcState::Kept, "a-1 a-0"),
        ("limit", "a-2", 2, PodGcState::Kept, "a-0"),
        ("at least one stays", "a-2", 0, PodGcState::Kept, "a-1 a-0"),
        ("unknown instance", "x-9", 1, PodGcState::Kept, ""),
        (
            "pod content may go",
            "x-9",
            1,
            PodGcState::ContentRemovable,
            "a-2 a-1 a-0 b-1 b-0",
        ),
    ] {
        let got: Vec<_> = removable_after_death(&status(), &ContainerId::from(died), keep, fate)
            .iter()
            .map(|id| id.to_string())
            .collect();
        assert_eq!(got.join(" "), expected, "{name}");
    }
}

#[test]
fn sandboxes() {
    let ready = || sandbox(2, SandboxState::Ready);
    let dead = |n| sandbox(n, SandboxState::NotReady);
    let with = |uid, sandboxes, containers| {
        let mut pod = pod(uid, containers);
        pod.sandboxes = sandboxes;
        pod
    };
    // GC-05 IGC-03
    for (name, pod, sources, expected) in [
        (
            "older dead ones go",
            with("p", vec![ready(), dead(1), dead(0)], vec![]),
            true,
            "sb-1 sb-0",
        ),
        (
            "the newest stays, though dead",
            with("p", vec![dead(1), dead(0)], vec![]),
            true,
            "sb-0",
        ),
        (
            "one that an instance refers to stays",
            with("p", vec![ready(), dead(1), dead(0)], vec![exited("a", 0)]),
            true,
            "sb-1",
        ),
        (
            "a ready one stays, whatever the pod",
            with("gone", vec![ready(), dead(1)], vec![]),
            true,
            "sb-1",
        ),
        (
            "all of a pod that is gone",
            with("gone", vec![dead(1), dead(0)], vec![]),
            true,
            "sb-1 sb-0",
        ),
        (
            "not before sources are ready",
            with("gone", vec![dead(0)], vec![]),
            false,
            "",
        ),
    ] {
        let got: Vec<_> = removable_sandboxes(&listed(&[pod]), &fate, sources)
            .iter()
            .map(|id| id.to_string())
            .collect();
        assert_eq!(got.join(" "), expected, "{name}");
    }
}

#[test]
fn dangling_links() {
    // GC-06
    let pods = [pod(
        "p",
        vec![
            instance("running", Running),
            instance("made", Created),
            exited("ended", 0),
        ],
    )];
    let id = |name: &str| {
        let all = &pods[0].containers;
        let one = all.iter().find(|c| c.name == name).expect("instance");
        one.id.as_str().replace('-', "")
    };
    let mut pods = pods.clone();
    // Real ids have no dash, unlike the names in this test.
    for container in &mut pods[0].containers {
        container.id = container.id.as_str().replace('-', "").into();
    }
    let link = |name: &str| format!("web-node_default_{name}-{}.log", id(name));
    let (running, made, ended) = (link("running"), link("made"), link("ended"));
    let names = [
        running.as_str(),
        made.as_str(),
        ended.as_str(),
        "web-node_default_gone-0123abcd.log",
        "notours-0123.log",
        "web_default_c.log",
        "web_default_c-.log",
    ];
    assert_eq!(
        removable_links(names, &listed(&pods)),
        [&*ended, "web-node_default_gone-0123abcd.log"]
    );
}

#[test]
fn log_directories() {
    // GC-06
    let names = [
        "ns_p_gone1",
        "ns_p_living",
        "gone2",
        "lost+found",
        "ns_p_gone_3",
        "_p_gone4",
        "ns__gone5",
        "ns_p_",
    ];
    assert_eq!(
        removable_log_dirs(names, &fate, true),
        ["ns_p_gone1", "ns_p_gone_3"],
        "a manifest may name a uid with an underscore"
    );
    assert!(removable_log_dirs(names, &fate, false).is_empty());
}

#[test]
fn never_too_much() {
    // GC-01 GC-05: whatever the runtime shows, nothing that runs goes, and a living pod keeps its newest instance.
    let mut random = crate::testing::Random(3);
    for round in 0..5_000 {
        let mut containers = Vec::new();
        for name in ["a", "b"] {
            for n in (0..u32::try_from(random.below(5)).expect("small")).rev() {
                let states = [Created, Running, ContainerState::Exited, Unknown];
                let state = states[usize::try_from(random.below(4)).expect("small")];
                containers.push(nth(n, instance(name, state)));
            }
        }
        let gone = random.one_in(3);
        let mut status = pod(if gone { "gone" } else { "p" }, containers);
        status.sandboxes = (0..u32::try_from(random.below(4)).expect("small"))
            .rev()
            .map(|n| {
                let ready = random.one_in(2);
                sandbox(
                    n,
                    if ready {
                        SandboxState::Ready
                    } else {
                        SandboxState::NotReady
                    },
                )
            })
            .collect();
        let policy = ContainerGcPolicy {
            max_total: random
                .one_in(2)
                .then(|| usize::try_from(random.below(4)).expect("small")),
            ..ContainerGcPolicy::default()
        };
        let pods = [status];
        let removed = removable_containers(&listed(&pods), &fate, true, &policy, &age);
        for c in &pods[0].containers {
            let times = removed.iter().filter(|r| r.id == c.id).count();
            assert!(times <= 1, "{round}: {} twice", c.id);
            if c.state == Running {
                assert_eq!(times, 0, "{round}: {} runs", c.id);
            }
            let newest = pods[0]
                .newest_instance(&c.name)
                .is_some_and(|n| n.id == c.id);
            if newest && !gone && policy.max_total.is_none() {
                assert_eq!(times, 0, "{round}: {} is the newest", c.id);
            }
            if c.state != Running && gone {
                assert_eq!(times, 1, "{round}: {} belongs to nobody", c.id);
            }
        }
        for id in removable_sandboxes(&listed(&pods), &fate, true) {
            let sandbox = pods[0]
                .sandboxes
                .iter()
                .find(|s| s.id == id)
                .expect("listed");
            assert_eq!(sandbox.state, SandboxState::NotReady, "{round}");
            assert!(
                pods[0].containers.iter().all(|c| c.sandbox != id),
                "{round}"
            );
        }
    }
}
