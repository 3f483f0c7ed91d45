use serde_json::{Value, json};

use super::*;
use crate::api::{
    cri::LinuxResources,
    pod_status::{ContainerStatus as ContainerStatusApi, PodStatus},
};

const MIB: i64 = 1 << 20;

/// A pod with one container `c` of these requests and limits: `cpu=1 memory=1Mi`.
fn pod(requests: &str, limits: &str) -> Pod {
    pod_of(json!([container("c", requests, limits)]))
}

fn pod_of(containers: Value) -> Pod {
    let pod = json!({
        "metadata": {"uid": "u", "name": "p", "namespace": "ns", "generation": 2},
        "spec": {"containers": containers},
    });
    serde_json::from_value(pod).expect("pod")
}

fn list(text: &str) -> Value {
    let pairs = text.split_whitespace().map(|pair| {
        let (name, amount) = pair.split_once('=').expect("name=amount");
        (String::from(name), Value::from(amount))
    });
    Value::Object(pairs.collect())
}

fn container(name: &str, requests: &str, limits: &str) -> Value {
    json!({"name": name, "resources": {"requests": list(requests), "limits": list(limits)}})
}

fn resized(old: &Pod, new: &Pod) -> PodResize {
    resized_by(old, new, &CgroupSettings::default())
}

fn resized_by(old: &Pod, new: &Pod, settings: &CgroupSettings) -> PodResize {
    let mut resize = PodResize::new(PodAllocation::settled(PodResources::of_pod(old)));
    resize.take_spec(new, settings);
    resize
}

fn amounts(cpu: i64, memory: i64) -> ResourceAmounts {
    [(CPU.into(), cpu), (MEMORY.into(), memory)].into()
}

#[test]
fn verdicts() {
    // RSZ-02 RSZ-20 RSZ-25
    let old = pod("cpu=100m memory=10Mi", "");
    let taken = |requests| ActivePod {
        requests,
        ..ActivePod::default()
    };
    let others = [taken(amounts(500, 20 * MIB)), taken(amounts(300, 30 * MIB))];
    let active: Vec<&ActivePod> = others.iter().collect();
    let free = amounts(1000, 100 * MIB);
    let defer =
        |text: &str| ResizeVerdict::Defer(format!("Node didn't have enough resource: {text}"));
    let refuse =
        |text: &str| ResizeVerdict::Refuse(format!("Node didn't have enough capacity: {text}"));
    for (name, wants, verdict) in [
        (
            "room for both",
            "cpu=200m memory=50Mi",
            ResizeVerdict::Accept,
        ),
        (
            "the processor is taken",
            "cpu=201m memory=20Mi",
            defer("cpu, requested: 201, used: 800, capacity: 1000"),
        ),
        (
            "memory is taken: all or nothing",
            "cpu=50m memory=51Mi",
            defer("memory, requested: 53477376, used: 52428800, capacity: 104857600"),
        ),
        (
            "the node is too small",
            "cpu=1001m memory=10Mi",
            refuse("cpu, requested: 1001, capacity: 1000"),
        ),
        (
            "memory is named first",
            "cpu=1001m memory=101Mi",
            refuse("memory, requested: 105906176, capacity: 104857600"),
        ),
    ] {
        let resize = resized(&old, &pod(wants, ""));
        let had = pod_request_amounts(&old);
        assert_eq!(resize.judge(&had, &free, &active), verdict, "{name}");
    }
    // What does not grow needs no room, on a node that has none.
    let resize = resized(&old, &pod("cpu=90m memory=10Mi", ""));
    let none = amounts(0, 0);
    let verdict = resize.judge(&pod_request_amounts(&old), &none, &[]);
    assert_eq!(verdict, ResizeVerdict::Accept);
}

#[test]
fn a_container_that_may_swap_is_not_resized_in_place() {
    // RSZ-25
    let settings = CgroupSettings {
        swap_controller: true,
        limited_swap: true,
        node_memory_bytes: 1 << 30,
        node_swap_bytes: 1 << 30,
        ..CgroupSettings::default()
    };
    let old = pod("memory=10Mi", "");
    for (name, wants, policy, refused) in [
        ("memory changes", "memory=20Mi", json!([]), true),
        (
            "the processor alone",
            "memory=10Mi cpu=5m",
            json!([]),
            false,
        ),
        (
            "it restarts for it",
            "memory=20Mi",
            json!([{"resourceName": "memory", "restartPolicy": "RestartContainer"}]),
            false,
        ),
    ] {
        let mut new = container("c", wants, "");
        new["resizePolicy"] = policy;
        let resize = resized_by(&old, &pod_of(json!([new])), &settings);
        let verdict = resize.judge(&amounts(0, 0), &amounts(1000, 1 << 30), &[]);
        let text = "In-place resize of containers with swap is not supported.";
        assert_eq!(
            verdict == ResizeVerdict::Refuse(text.into()),
            refused,
            "{name}"
        );
    }
}

#[test]
fn a_pod_that_may_have_processors_of_its_own_is_not_resized_in_place() {
    // RSZ-25 CPUM-23
    let settings = CgroupSettings {
        static_cpus: true,
        ..CgroupSettings::default()
    };
    for (name, old, new, refused) in [
        (
            "of its processors",
            "cpu=1 memory=1Mi",
            "cpu=2 memory=1Mi",
            true,
        ),
        (
            "memory alone",
            "cpu=1 memory=1Mi",
            "cpu=1 memory=2Mi",
            false,
        ),
    ] {
        let resize = resized_by(&pod(old, old), &pod(new, new), &settings);
        let verdict = resize.judge(&amounts(0, 0), &amounts(9000, 1 << 30), &[]);
        let text =
            "Resize is infeasible for Guaranteed Pods alongside CPU Manager policy \"static\"";
        let is_refused = verdict == ResizeVerdict::Refuse(text.into());
        assert_eq!(is_refused, refused, "{name}");
        let detail = match refused {
            true => "guaranteed_pod_cpu_manager_static_policy",
            false => "insufficient_node_allocatable",
        };
        assert_eq!(resize.infeasible_detail(), detail);
    }
    let (old, new) = (pod("cpu=1", ""), pod("cpu=2", ""));
    let burstable = resized_by(&old, &new, &settings);
    let verdict = burstable.judge(&amounts(0, 0), &amounts(9000, 1 << 30), &[]);
    assert_eq!(verdict, ResizeVerdict::Accept);
}

#[test]
fn a_resize_from_the_edit_to_its_end() {
    // RSZ-02 RSZ-20 RSZ-28 RSZ-32
    let (old, mut new) = (pod("cpu=100m", ""), pod("cpu=2", ""));
    let mut resize = resized(&old, &new);
    let wall = WallTime::from_unix_seconds(1);
    let shown = |resize: &PodResize| -> Vec<(String, String, Option<i64>)> {
        let all = resize.conditions().into_iter();
        all.map(|c| (c.kind, c.reason, c.observed_generation))
            .collect()
    };
    let row = |kind: &str, reason: &str, generation| (kind.into(), reason.into(), Some(generation));
    let deferred = ResizeVerdict::Defer("later".into());
    let now = MonoTime(1000);
    let (is_change, event) = resize.apply_verdict(deferred.clone(), wall, now);
    let event = event.filter(|_| is_change).expect("an event");
    assert_eq!(event.reason, "ResizeDeferred");
    assert_eq!(
        event.message,
        r#"Pod resize Deferred: {"containers":[{"name":"c","resources":{"requests":{"cpu":"2"}}}],"generation":2,"error":"later"}"#
    );
    assert!(event.is_warning());
    assert_eq!(shown(&resize), [row(RESIZE_PENDING, "Deferred", 2)]);
    // It is judged again, and told only if something changed.
    assert!(resize.awaits_verdict());
    assert_eq!(resize.apply_verdict(deferred, wall, now), (false, None));
    let short = |used: u32| ResizeVerdict::Defer(format!("cpu, used: {used}"));
    let told = |resize: &mut PodResize, used, now| {
        let (is_change, event) = resize.apply_verdict(short(used), wall, now);
        (is_change, event.is_some())
    };
    assert_eq!(told(&mut resize, 7, now), (true, true), "another cause");
    assert_eq!(told(&mut resize, 8, now), (true, false), "other figures");
    // Events do not last: one that was lost, or has gone, comes again.
    let later = now + TOLD_AGAIN;
    assert_eq!(told(&mut resize, 8, later), (false, true));
    assert_eq!(told(&mut resize, 8, later), (false, false));

    // Another edit before the decision merges into it.
    new = pod("cpu=1", "");
    new.metadata.generation = 3;
    resize.take_spec(&new, &CgroupSettings::default());
    let (_, event) = resize.apply_verdict(ResizeVerdict::Accept, wall, now);
    let event = event.expect("an event");
    assert_eq!(
        event.message,
        r#"Pod resize started: {"containers":[{"name":"c","resources":{"requests":{"cpu":"1"}}}],"generation":3}"#
    );
    assert!(!event.is_warning() && !resize.awaits_verdict() && !resize.is_settled());
    assert_eq!(shown(&resize), [row(RESIZE_IN_PROGRESS, "", 3)]);

    let had = resize.allocation.clone();
    // Returns whether it is tried again with the next sync, and whether an event tells of it.
    let fail_at = |resize: &mut PodResize, cause: &str, figure: &str, now| {
        let message = format!("{cause}{figure}");
        let failure = StepFailure {
            message: message.clone(),
            is_refusal: true,
        };
        let event = resize.note_actuated(had.clone(), Some(failure), now);
        if let Some(event) = &event {
            assert_eq!(event.reason, "ResizeError");
            let end = format!(r#""error":"{message}"}}"#);
            assert!(event.message.ends_with(&end), "{event:?}");
        }
        assert_eq!(resize.conditions()[0].message, message);
        (resize.may_step(now), event.is_some())
    };
    let fail =
        |resize: &mut PodResize, cause: &str, figure: &str| fail_at(resize, cause, figure, now);
    assert_eq!(fail(&mut resize, "no", ""), (true, true));
    assert_eq!(shown(&resize), [row(RESIZE_IN_PROGRESS, "Error", 3)]);
    assert_eq!(fail(&mut resize, "no", ""), (false, false), "the same");
    assert!(resize.may_step(now + FAILURE_PAUSE));
    assert_eq!(fail(&mut resize, "used: ", "1"), (true, true));
    assert_eq!(fail(&mut resize, "used: ", "2"), (true, false));
    assert_eq!(fail(&mut resize, "used: ", "2"), (false, false));
    // Two causes in turns are two, not one anew each time.
    assert_eq!(fail(&mut resize, "no", ""), (true, false));
    assert!(fail_at(&mut resize, "no", "", now + TOLD_AGAIN).1);
    for n in 0..2 * MAX_TOLD {
        let text = format!("x{n}");
        assert_eq!(fail(&mut resize, &text, "").1, n < MAX_TOLD - 2, "{text}");
    }
    let mut done = resize.allocation.clone();
    done.note_all_done();
    let event = resize.note_actuated(done, None, now).expect("an event");
    assert_eq!(event.reason, "ResizeCompleted");
    assert!(resize.is_settled() && shown(&resize).is_empty());

    // What is infeasible is not judged again; taking it back ends it.
    let mut resize = resized(&old, &new);
    let _ = resize.apply_verdict(ResizeVerdict::Refuse("never".into()), wall, now);
    assert_eq!(shown(&resize), [row(RESIZE_PENDING, "Infeasible", 3)]);
    assert!(!resize.awaits_verdict());
    resize.take_spec(&old, &CgroupSettings::default());
    assert!(resize.is_settled() && shown(&resize).is_empty());
}

#[test]
fn the_order_of_decisions() {
    // RSZ-20
    let rank = |priority, class| PodRank {
        class,
        critical: false,
        priority: Some(priority),
    };
    let had = amounts(100, 0);
    let grows = resized(&pod("cpu=100m", ""), &pod("cpu=200m", ""));
    let shrinks = resized(&pod("cpu=100m", ""), &pod("cpu=50m", ""));
    let mut waited = grows.clone();
    waited.waits_since = Some(WallTime::from_unix_seconds(1));
    let order = [
        shrinks.order_key(&had, &rank(0, QosClass::Burstable)),
        grows.order_key(&had, &rank(9, QosClass::Burstable)),
        grows.order_key(&had, &rank(0, QosClass::Guaranteed)),
        waited.order_key(&had, &rank(0, QosClass::Burstable)),
        grows.order_key(&had, &rank(0, QosClass::Burstable)),
    ];
    assert!(order.is_sorted_by(|a, b| a < b), "{order:?}");
}

/// Steps in short words.
fn steps(plan: &ResizePlan) -> Vec<String> {
    let words = |r: &LinuxResources| {
        let mut all = Vec::new();
        all.extend(r.memory_limit_bytes.map(|n| format!("memory {}", n / MIB)));
        all.extend(r.cpu_quota_us.map(|n| format!("quota {n}")));
        all.extend(r.cpu_shares.map(|n| format!("shares {n}")));
        all.join(" ")
    };
    let step = |step: &ResizeStep| match step {
        ResizeStep::PodCgroup { values, .. } => format!("pod: {}", words(values)),
        ResizeStep::Container {
            name, resources, ..
        } => format!("{name}: {}", words(resources)),
    };
    plan.steps.iter().map(step).collect()
}

#[test]
fn the_order_of_writes() {
    // RSZ-03 RSZ-21 RSZ-22 RSZ-31
    let pair = |a: [&str; 2], b: [&str; 2]| {
        pod_of(json!([
            container("a", a[0], a[1]),
            container("b", b[0], b[1])
        ]))
    };
    let small = ["cpu=100m memory=8Mi", "cpu=100m memory=8Mi"];
    let large = ["cpu=200m memory=16Mi", "cpu=200m memory=16Mi"];
    let all = [String::from("a"), String::from("b")];
    let settings = CgroupSettings::default();
    let grown = plan_resize(&[pair(small, small)], &pair(large, small), &all, &settings);
    assert_eq!(
        steps(&grown),
        [
            "pod: memory 24",
            "a: memory 16 quota 10000 shares 102",
            "pod: quota 30000",
            "pod: shares 307",
            "a: memory 16 quota 20000 shares 204",
        ]
    );
    assert_eq!(grown.lowered, []);
    let shrunk = plan_resize(&[pair(large, small)], &pair(small, small), &all, &settings);
    assert_eq!(
        steps(&shrunk),
        [
            "a: memory 8 quota 20000 shares 204",
            "pod: memory 16",
            "a: memory 8 quota 10000 shares 102",
            "pod: shares 204",
            "pod: quota 20000",
        ]
    );
    let lowered = |container: Option<&str>, mib: i64| LoweredLimit {
        container: container.map(Into::into),
        bytes: mib * MIB,
    };
    assert_eq!(shrunk.lowered, [lowered(None, 16), lowered(Some("a"), 8)]);
    // One falls and one grows: the falling one goes first, whatever its place.
    let moved = plan_resize(&[pair(small, large)], &pair(large, small), &all, &settings);
    assert_eq!(
        steps(&moved),
        [
            "b: memory 8 quota 20000 shares 204",
            "a: memory 16 quota 10000 shares 102",
            "b: memory 8 quota 10000 shares 102",
            "a: memory 16 quota 20000 shares 204",
        ]
    );
    // What does not run is not written, and its limit not checked.
    let idle = plan_resize(
        &[pair(large, small)],
        &pair(small, small),
        &all[1..],
        &settings,
    );
    assert_eq!(
        steps(&idle),
        ["pod: memory 16", "pod: shares 204", "pod: quota 20000"]
    );
    assert_eq!(idle.lowered, [lowered(None, 16)]);
    // A limit that is taken away is named.
    let without = pair([small[0], ""], small);
    let taken = plan_resize(&[pair(small, small)], &without, &all, &settings);
    assert_eq!(
        steps(&taken),
        [
            "pod: memory 0",
            "a: memory 0 quota 10000 shares 102",
            "pod: quota -1",
            "a: quota -1 shares 102",
        ]
    );
    let same = plan_resize(&[pair(small, small)], &pair(small, small), &all, &settings);
    assert!(same.steps.is_empty() && same.lowered.is_empty());
}

#[test]
fn writes_that_the_kernel_takes_whatever_is_in_force() {
    // RSZ-22 RSZ-26
    let of = |cpu: u32| {
        let amounts = format!("cpu={cpu}m memory={cpu}Mi");
        let half = format!("cpu={0}m memory={0}Mi", cpu / 2);
        pod_of(json!([
            container("a", &amounts, &amounts),
            container("b", &half, &half)
        ]))
    };
    let settings = CgroupSettings::default();
    let all = [String::from("a"), String::from("b")];
    let quota = |milli: u32| i64::from(milli) * 100;
    let plan = plan_resize(&[of(400), of(100)], &of(200), &all, &settings);
    assert_eq!(
        steps(&plan),
        [
            "pod: memory 600",
            "pod: quota 60000",
            "pod: shares 307",
            "a: memory 200 quota 20000 shares 204",
            "b: memory 100 quota 10000 shares 102",
            "pod: memory 300",
            "pod: quota 30000",
        ]
    );
    // Version 1 of control groups: a quota is at most that of the group above.
    for first in [100, 200, 400] {
        for second in [100, 200, 400] {
            for wants in [100, 200, 400] {
                for actual in [first, second] {
                    let plan = plan_resize(&[of(first), of(second)], &of(wants), &all, &settings);
                    let mut of_pod = quota(actual + actual / 2);
                    let mut own = [quota(actual), quota(actual / 2)];
                    for step in &plan.steps {
                        match step {
                            ResizeStep::PodCgroup { values, amount } => {
                                of_pod = values.cpu_quota_us.unwrap_or(of_pod);
                                let last = quota(wants + wants / 2);
                                assert!(amount.is_some() || values.cpu_shares.is_none());
                                assert!(
                                    values.cpu_quota_us.is_none()
                                        || amount.is_some() == (of_pod == last)
                                );
                            }
                            ResizeStep::Container {
                                name, resources, ..
                            } => {
                                let place = usize::from(name == "b");
                                own[place] = resources.cpu_quota_us.expect("a quota");
                            }
                        }
                        assert!(
                            own.iter().all(|&own| own <= of_pod),
                            "{first} {second} {actual} {wants}: {:?}",
                            steps(&plan)
                        );
                    }
                    let done = [quota(wants), quota(wants / 2), quota(wants + wants / 2)];
                    assert_eq!([own[0], own[1], of_pod], done);
                }
            }
        }
    }
}

#[test]
fn a_pods_cgroup_has_room_for_each_state() {
    // RSZ-27
    let settings = CgroupSettings::default();
    let of = |amounts: &str| {
        let pod = pod(amounts, amounts);
        cgroup::pod_cgroup(&pod, QosClass::Burstable, &settings).values
    };
    let amounts = |values: &LinuxResources| {
        let memory = values.memory_limit_bytes.map(|bytes| bytes >> 20);
        (memory, values.cpu_quota_us, values.cpu_shares)
    };
    let most = (Some(20), Some(40_000), Some(409));
    for [first, second] in [
        ["cpu=400m memory=10Mi", "cpu=200m memory=20Mi"],
        ["cpu=200m memory=20Mi", "cpu=400m memory=10Mi"],
        ["cpu=200m memory=10Mi", "cpu=400m memory=20Mi"],
    ] {
        let mut values = of(first);
        raise_pod_values(&mut values, &of(second));
        assert_eq!(amounts(&values), most, "{first} {second}");
        // One without limits has room for all.
        raise_pod_values(&mut values, &of(""));
        assert_eq!(amounts(&values), (None, None, Some(409)));
    }
}

#[test]
fn a_container_that_starts_leaves_the_pods_sum_in_doubt() {
    // RSZ-26
    let of = |mib: i64| {
        let amount = format!("memory={mib}Mi");
        pod_of(json!([
            container("a", &amount, &amount),
            container("b", "memory=8Mi", "memory=8Mi"),
        ]))
    };
    let settings = CgroupSettings::default();
    for (had, wants) in [(8, 16), (16, 8)] {
        let new = of(wants);
        let mut allocation = PodAllocation::settled(PodResources::of_pod(&of(had)));
        allocation.allocated = PodResources::of_pod(&new);
        allocation.note_starts(&["a".into()]);
        assert!(
            !allocation.is_actuated(),
            "the pod's cgroup was not written"
        );
        let in_force: Vec<_> = allocation
            .states_in_force()
            .map(|state| {
                let mut pod = new.clone();
                state.apply_to(&mut pod);
                pod
            })
            .collect();
        // It does not run yet.
        let plan = plan_resize(&in_force, &new, &["b".into()], &settings);
        let memory = format!("pod: memory {}", wants + 8);
        assert_eq!(steps(&plan).last(), Some(&memory), "{had} {wants}");
        // Its next start is no news.
        let before = allocation.clone();
        allocation.note_starts(&["a".into()]);
        assert_eq!(allocation.actuated, before.actuated);
        assert!(allocation.in_doubt.len() <= 1);
    }
}

#[test]
fn containers_that_restart() {
    // ACT-37 RSZ-03 RSZ-29
    let policy = |name: &str| json!([{"resourceName": name, "restartPolicy": "RestartContainer"}]);
    let with = |policy: &Value, requests: &str, limits: &str| {
        let mut own = container("c", requests, limits);
        own["resizePolicy"] = policy.clone();
        pod_of(json!([own]))
    };
    for (name, of, had, wants, restarts) in [
        (
            "cpu, by the policy of memory",
            "memory",
            "cpu=1",
            "cpu=2",
            false,
        ),
        ("memory", "memory", "memory=1Mi", "memory=2Mi", true),
        ("cpu", "cpu", "cpu=1", "cpu=2", true),
        ("nothing", "cpu", "cpu=1", "cpu=1", false),
    ] {
        let policy = policy(of);
        // The request alone changes.
        let (old, new) = (with(&policy, had, ""), with(&policy, wants, ""));
        let mut allocation = PodAllocation::settled(PodResources::of_pod(&old));
        allocation.allocated = PodResources::of_pod(&new);
        let due = containers_to_restart(&new, &allocation);
        assert_eq!(due == ["c"], restarts, "{name}");
        // It starts with what it was allocated.
        allocation.note_starts(&["c".into()]);
        assert_eq!(allocation.actuated, allocation.allocated);
        assert!(containers_to_restart(&new, &allocation).is_empty());
    }
    // The pod's limit is that of a container without one.
    let memory = policy(MEMORY);
    let [mut old, mut new] = [
        with(&memory, "memory=1Mi", ""),
        with(&memory, "memory=1Mi", ""),
    ];
    for (pod, limit) in [(&mut old, "memory=4Mi"), (&mut new, "memory=8Mi")] {
        let own = json!({"limits": list(limit)});
        pod.spec.resources = Some(serde_json::from_value(own).expect("resources"));
    }
    let mut allocation = PodAllocation::settled(PodResources::of_pod(&old));
    allocation.allocated = PodResources::of_pod(&new);
    assert_eq!(containers_to_restart(&new, &allocation), ["c"]);
}

#[test]
fn what_the_status_shows() {
    // RSZ-01
    let (old, new) = (
        pod("cpu=100m memory=8Mi", "memory=8Mi"),
        pod("cpu=200m memory=16Mi", "memory=16Mi cpu=1"),
    );
    let mut allocation = PodAllocation::settled(PodResources::of_pod(&old));
    allocation.allocated = PodResources::of_pod(&new);
    let shown = |runs: bool, allocation: Option<&PodAllocation>| {
        let mut status = ContainerStatusApi {
            name: "c".into(),
            ..ContainerStatusApi::default()
        };
        status.state.running = runs.then(Default::default);
        set_resources_status(&new.spec.containers[0], allocation, &mut status);
        (status.allocated_resources, status.resources.expect("shown"))
    };
    let wanted = &new.spec.containers[0].resources;
    for (runs, allocation) in [(true, None), (false, None), (false, Some(&allocation))] {
        assert_eq!(
            shown(runs, allocation),
            (wanted.requests.clone(), wanted.clone())
        );
    }
    let (allocated, has) = shown(true, Some(&allocation));
    assert_eq!(allocated, wanted.requests);
    let expected =
        json!({"requests": list("cpu=100m memory=8Mi"), "limits": list("memory=8Mi cpu=1")});
    let expected: Resources = serde_json::from_value(expected).expect("resources");
    assert_eq!(
        has, expected,
        "what it was not given yet is shown as it was allocated"
    );
}

/// A pod whose own limit is `pod` MiB, with containers `a`, which follows it, and `b`, which has a limit of its own.
fn pod_level(pod: i64, own: i64) -> Pod {
    let mut made = pod_of(json!([
        container("a", "", ""),
        container("b", "", &format!("memory={own}Mi")),
    ]));
    let level = json!({"requests": list("cpu=100m"), "limits": list(&format!("memory={pod}Mi"))});
    made.spec.resources = Some(serde_json::from_value(level).expect("resources"));
    made
}

#[test]
fn the_pods_limit_and_its_containers() {
    // RSZ-03 RSZ-22 RSZ-23 RSZ-30
    let settings = CgroupSettings::default();
    let running = [String::from("a"), String::from("b")];
    let (small, large) = (pod_level(16, 8), pod_level(32, 8));
    let plan = plan_resize(core::slice::from_ref(&small), &large, &running, &settings);
    assert_eq!(steps(&plan), ["pod: memory 32", "a: memory 32 shares 2"]);
    let plan = plan_resize(core::slice::from_ref(&large), &small, &running, &settings);
    assert_eq!(steps(&plan), ["a: memory 16 shares 2", "pod: memory 16"]);
    let limits: Vec<_> = plan
        .lowered
        .iter()
        .map(|l| l.container.as_deref())
        .collect();
    assert_eq!(limits, [None, Some("a")]);

    // After the first step alone, what was allocated is taken back, or not.
    let mut allocation = PodAllocation::settled(PodResources::of_pod(&small));
    allocation.allocated = PodResources::of_pod(&large);
    allocation.pin_pod_limits();
    allocation.note_step(&StepAmount::OfPod(AmountKind::Limits, MEMORY), true);
    let mut reached = small.clone();
    allocation.actuated.apply_to(&mut reached);
    let plan = plan_resize(core::slice::from_ref(&reached), &large, &running, &settings);
    assert_eq!(steps(&plan), ["a: memory 32 shares 2"]);
    let plan = plan_resize(core::slice::from_ref(&reached), &small, &running, &settings);
    assert_eq!(steps(&plan), ["pod: memory 16"]);
    assert_eq!(plan.lowered.len(), 1, "it may be in use by now");
    // A container that starts has the new limit.
    allocation.note_starts(&["a".into()]);
    let own = allocation.actuated.of_container("a").expect("there");
    assert!(own.limits.is_empty(), "it follows the pod again");
}

#[test]
fn what_a_killed_agent_may_have_done() {
    // RSZ-27
    let (small, large) = (
        pod("memory=8Mi", "memory=8Mi"),
        pod("memory=16Mi", "memory=16Mi"),
    );
    let settings = CgroupSettings::default();
    let mut kept = PodAllocation::settled(PodResources::of_pod(&small));
    kept.allocated = PodResources::of_pod(&large);
    // Taken back: what is in force is one or the other, so all of it is written.
    let mut resize = PodResize::new(kept.clone());
    resize.take_spec(&small, &settings);
    let _ = resize.apply_verdict(
        ResizeVerdict::Accept,
        WallTime::from_unix_seconds(1),
        MonoTime(1),
    );
    assert!(!resize.is_settled() && resize.may_step(MonoTime(1)));
    let states: Vec<_> = resize.allocation.states_in_force().cloned().collect();
    assert_eq!(states, [kept.allocated.clone(), kept.actuated.clone()]);
    resize.allocation.note_all_done();
    assert!(resize.is_settled());
    // A step that failed may have done its work, until one succeeds.
    let own = kept.allocated.of_container("c").expect("there").clone();
    let amount = StepAmount::OfContainer("c".into(), own.clone());
    let mut failed = PodAllocation::settled(PodResources::of_pod(&small));
    failed.note_step(&amount, false);
    assert!(!failed.is_actuated() && failed.allocated == failed.actuated);
    let mut resize = PodResize::new(failed.clone());
    resize.take_spec(&small, &settings);
    let fails_by = |resize: &mut PodResize, is_refusal| {
        let failure = StepFailure {
            message: "no".into(),
            is_refusal,
        };
        resize.note_actuated(failed.clone(), Some(failure), MonoTime(1))
    };
    // Nobody knows the use of memory, so nothing was tried.
    let mut unchecked = resize.clone();
    for _ in 0..3 {
        let _ = fails_by(&mut unchecked, false);
        assert!(!unchecked.is_settled() && unchecked.has_failed(), "kept");
    }
    assert_eq!(unchecked.allocation.in_doubt, failed.in_doubt);
    assert!(!unchecked.may_step(MonoTime(1)) && unchecked.may_step(MonoTime(1) + FAILURE_PAUSE));
    let fails = |resize: &mut PodResize| fails_by(resize, true);
    assert!(fails(&mut resize).is_some() && !resize.is_settled());
    assert!(
        fails(&mut resize).is_none() && resize.is_settled(),
        "it cannot"
    );
    failed.note_step(&amount, true);
    assert_eq!(
        (failed.in_doubt.len(), failed.actuated.of_container("c")),
        (0, Some(&own))
    );
    // The next agents may be killed as well.
    for mib in 20..30 {
        let amount = format!("memory={mib}Mi");
        kept.allocated = PodResources::of_pod(&pod(&amount, &amount));
        kept = PodResize::new(kept).allocation;
        assert!(kept.in_doubt.len() <= MAX_IN_DOUBT);
        assert_eq!(kept.in_doubt.last(), Some(&kept.allocated));
    }
    // Only what was begun is in doubt.
    let settled = PodAllocation::settled(PodResources::of_pod(&small));
    assert!(PodResize::new(settled).is_settled());
}

#[test]
fn what_a_pod_had_by_its_status() {
    // RSZ-26
    let mut wants = pod_level(32, 16);
    assert_eq!(
        PodResources::of_status(&wants),
        PodResources::of_pod(&wants),
        "not started"
    );
    let had = pod_level(16, 8);
    let allocation = PodAllocation::settled(PodResources::of_pod(&had));
    for container in &had.spec.containers {
        let mut own = ContainerStatusApi {
            name: container.name.clone(),
            ..ContainerStatusApi::default()
        };
        set_resources_status(container, Some(&allocation), &mut own);
        wants.status.container_statuses.push(own);
    }
    let mut status = core::mem::take(&mut wants.status);
    set_pod_resources_status(&had, Some(&allocation), &mut status);
    wants.status = status;
    assert_eq!(PodResources::of_status(&wants), PodResources::of_pod(&had));
}

#[test]
fn what_the_status_shows_of_the_pod_level() {
    // RSZ-30
    let (small, large) = (pod_level(16, 8), pod_level(32, 8));
    let mut allocation = PodAllocation::settled(PodResources::of_pod(&small));
    allocation.allocated = PodResources::of_pod(&large);
    let shown = |pod: &Pod, runs: bool| {
        let mut own = ContainerStatusApi::default();
        own.state.running = runs.then(Default::default);
        let mut status = PodStatus {
            container_statuses: [own].into(),
            ..PodStatus::default()
        };
        set_pod_resources_status(pod, Some(&allocation), &mut status);
        serde_json::to_value((&status.allocated_resources, &status.resources)).expect("plain")
    };
    let both = |mib: &str| json!([{"cpu": "100m"}, {"requests": {"cpu": "100m"}, "limits": {"memory": mib}}]);
    assert_eq!(shown(&large, false), both("32Mi"));
    assert_eq!(shown(&large, true), both("16Mi"));
    // Sums stand for what the pod does not state, limits only if each container has one.
    let mut mixed = pod_of(json!([
        container("a", "memory=8Mi", "cpu=500m"),
        container("b", "memory=8Mi", "cpu=1 memory=8Mi"),
    ]));
    mixed.spec.resources = large.spec.resources.clone().map(|own| Resources {
        limits: [].into(),
        ..own
    });
    assert_eq!(
        shown(&mixed, false),
        json!([{"cpu": "100m", "memory": "16Mi"}, {"requests": {"cpu": "100m", "memory": "16Mi"}, "limits": {"cpu": "1500m"}}])
    );
    assert_eq!(
        shown(&pod("cpu=1", ""), true),
        json!([{}, null]),
        "of no other pod"
    );
}
