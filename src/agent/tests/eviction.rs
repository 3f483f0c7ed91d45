//! A node that runs short of resources: the choice of pods to evict, and their statuses.

use alloc::sync::Arc;
use core::time::Duration;
use std::fs;

use serde_json::{Value, json};

use super::{
    api::FakeApi,
    order::pod_dir,
    world::{IMAGE, World, fails, fault, manifest},
};
use crate::{
    agent::recorder::EventSeverity,
    api::{PodUid, pod_status::PodPhase},
    runtime::{
        RuntimeError,
        fake::{Fault, Op, Trouble},
    },
    server::backend::MetricsEndpoint,
};

const MIB: i64 = 1 << 20;

const fn s(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn world(flags: &'static [&'static str]) -> (World, Arc<FakeApi>) {
    let api = Arc::new(FakeApi::default());
    let world = World::with_flags_and_api(flags, &api);
    world.left.set_memory(500 * MIB);
    world.left.set_disk(1 << 33);
    world.apply(&[]);
    (world, api)
}

/// Spec whose container requests so much memory; every container of the fake runtime uses 2 MiB.
fn asking(memory: &str) -> Value {
    json!({"containers": [{"name": "c", "image": IMAGE, "command": ["sleep"],
        "resources": {"requests": {"memory": memory}}}]})
}

fn runs(world: &World, api: &FakeApi, names: &[&str]) {
    world.until("all run", |_| {
        names.iter().all(|name| api.phase(name) == "Running")
    });
}

fn condition(world: &World, kind: &str) -> String {
    let node = world.node_object();
    let all = node["status"]["conditions"].as_array().expect("conditions");
    let found = all.iter().find(|c| c["type"] == kind).expect(kind);
    found["status"].as_str().expect("status").into()
}

/// Names of the pods that were evicted.
fn evicted(api: &FakeApi, names: &[&str]) -> Vec<String> {
    let is_evicted = |name: &&&str| {
        let pod = api.get("ns", name).expect("there");
        pod["status"]["reason"] == "Evicted"
    };
    let found = names.iter().filter(is_evicted);
    found.map(|name| (*name).into()).collect()
}

const MESSAGE: &str = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 90Mi. \
    Container c was using 2Mi, request is 0, has larger consumption of memory. ";

#[test]
fn the_pod_that_takes_more_than_it_asked_for_goes() {
    // EVICT-04 EVICT-06 EVICT-08 EVICT-12 EVICT-13 EVICT-14 EVICT-15
    let (world, api) = world(&[]);
    let greedy = api.create("greedy", json!({}));
    api.create("modest", asking("10Mi"));
    let all = ["greedy", "modest"];
    runs(&world, &api, &all);
    world.advance(s(60));
    assert_eq!(condition(&world, "MemoryPressure"), "False");
    world.left.set_memory(90 * MIB);
    world.until("is evicted", |_| api.phase("greedy") == "Failed");
    let pod = api.get("ns", "greedy").expect("it stays");
    assert_eq!(pod["status"]["reason"], "Evicted");
    assert_eq!(pod["status"]["message"], MESSAGE);
    let conditions = pod["status"]["conditions"].as_array().expect("conditions");
    let disruption = conditions.iter().find(|c| c["type"] == "DisruptionTarget");
    let disruption = disruption.expect("told");
    assert_eq!(disruption["status"], "True");
    assert_eq!(disruption["reason"], "TerminationByKubelet");
    assert_eq!(disruption["message"], MESSAGE);
    world.left.set_memory(500 * MIB);
    assert!(!world.fake.runs(&PodUid::from(&*greedy)));
    assert_eq!(condition(&world, "MemoryPressure"), "True");
    assert_eq!(world.events_of("Evicted"), 1);
    assert!(world.events_of("EvictionThresholdMet") >= 1);
    let object = world
        .parts
        .tools
        .recorder
        .newest_events(None, usize::MAX)
        .into_iter()
        .find(|e| e.reason == "Evicted");
    let annotations = object
        .expect("told")
        .into_api_event("node")
        .metadata
        .annotations;
    let annotations: Vec<_> = annotations.iter().map(|(k, v)| (&**k, &**v)).collect();
    assert_eq!(
        annotations,
        [
            ("offending_containers", "c"),
            ("offending_containers_usage", "2Mi"),
            ("starved_resource", "memory"),
        ]
    );
    let page = world.wait(world.metrics.metrics_page(MetricsEndpoint::Own));
    let page = page.map_err(|refusal| refusal.status);
    let page: String = page.expect("served").collect();
    for line in [
        "kubelet_evictions{eviction_signal=\"memory.available\"} 1\n",
        "kubelet_eviction_stats_age_seconds_count{eviction_signal=\"memory.available\"} 1\n",
    ] {
        assert!(page.contains(line), "{page}");
    }
    // The status is kept unchanged, also by the next agent.
    world.advance(s(120));
    let world = world.restart_agent();
    world.left.set_memory(500 * MIB);
    world.apply(&[]);
    world.advance(s(120));
    let pod = api.get("ns", "greedy").expect("nobody deletes it");
    assert_eq!(pod["status"]["message"], MESSAGE);
    assert_eq!(evicted(&api, &all), ["greedy"]);
    assert!(!world.fake.runs(&PodUid::from(&*greedy)));
    assert_eq!(api.phase("modest"), "Running");
}

#[test]
fn a_container_that_never_ran_stays_ended_for_the_next_agent() {
    // SM-10
    let (world, api) = world(&[]);
    world.fake.add_fault(fails(Op::CreateContainer, u32::MAX));
    // With `Never` SM-03 would keep its end anyway.
    let uid = api.create("late", json!({"restartPolicy": "OnFailure"}));
    let shown = || api.get("ns", "late").expect("it stays")["status"].clone();
    let state = || shown()["containerStatuses"][0]["state"].clone();
    world.until("waits", |_| !state()["waiting"].is_null());
    world.left.set_memory(90 * MIB);
    world.until("the last word", |_| !state()["terminated"].is_null());
    let before = shown();
    assert_eq!(
        (&before["phase"], &before["reason"]),
        (&json!("Failed"), &json!("Evicted"))
    );
    // The agent was killed after it had told the last status, and before it had kept it.
    let path = pod_dir(&world, &uid).join("outcome.json");
    let mut kept: Value = serde_json::from_slice(&fs::read(&path).expect("kept")).expect("JSON");
    kept["status"]["containerStatuses"][0]["state"] = json!({"waiting": {"reason": "no"}});
    fs::write(&path, kept.to_string()).expect("written");
    // The next agent cannot list pods for a while: it tells the status known from before, or nothing.
    world.fake.add_fault(fails(Op::ListPods, 40));
    let world = world.restart_agent();
    world.left.set_memory(500 * MIB);
    world.apply(&[]);
    world.advance(s(30));
    assert_eq!(shown(), before);
    world.advance(s(300));
    assert_eq!(shown(), before);
}

#[test]
fn the_status_is_told_before_anything_is_stopped() {
    // EVICT-12
    let (world, api) = world(&[]);
    let uid = api.create("greedy", json!({}));
    runs(&world, &api, &["greedy"]);
    world
        .fake
        .add_fault(fault(Op::StopContainer, 1, Trouble::Hangs));
    world.left.set_memory(90 * MIB);
    world.until("is being stopped", |w| {
        w.fake.hanging(Op::StopContainer) == 1
    });
    let status = world.status(&uid).expect("known");
    assert_eq!(
        (status.phase, &*status.reason),
        (PodPhase::Failed, "Evicted")
    );
    assert!(world.fake.runs(&PodUid::from(&*uid)));
    assert_eq!(world.events_of("ExceededGracePeriod"), 0);
    world.advance(s(11));
    assert_eq!(world.events_of("ExceededGracePeriod"), 1);
    world.fake.release(Op::StopContainer);
    world.left.set_memory(500 * MIB);
    world.until("has ended", |_| api.phase("greedy") == "Failed");
}

#[test]
fn one_pod_a_round_as_long_as_it_is_short() {
    // EVICT-04 EVICT-06
    let (world, api) = world(&[]);
    let names = ["a", "b", "c"];
    for name in names {
        api.create(name, json!({}));
    }
    runs(&world, &api, &names);
    world.left.set_memory(90 * MIB);
    world.until("one goes", |w| w.events_of("Evicted") > 0);
    assert_eq!(world.events_of("Evicted"), 1);
    // A pod has stopped before the next one is chosen: no two end at a time.
    for _ in 0..600 {
        world.advance(Duration::from_millis(100));
        let ending = names.iter().filter(|name| {
            let pod = api.get("ns", name).expect("there");
            let uid = pod["metadata"]["uid"].as_str().expect("uid").to_owned();
            let told = world.status(&uid).is_some_and(|s| s.reason == "Evicted");
            told && world.fake.runs(&PodUid::from(&*uid))
        });
        assert!(ending.count() <= 1);
    }
    assert_eq!(evicted(&api, &names).len(), 3);
    assert_eq!(world.events_of("Evicted"), 3);
}

#[test]
fn conditions_and_what_they_keep_out() {
    // EVICT-05 EVICT-15 ADM-03 ADM-11
    let (world, api) = world(&[]);
    // Critical pods stay: there is no pod that could be evicted.
    world.apply(&[manifest("static", json!({}))]);
    world.until("runs", |w| w.phase("static") == Some(PodPhase::Running));
    world.left.set_memory(99 * MIB);
    world.until("is short", |w| condition(w, "MemoryPressure") == "True");
    assert_eq!(condition(&world, "DiskPressure"), "False");
    api.create("late", json!({}));
    api.create("asking", asking("10Mi"));
    world.until("is refused", |_| api.phase("late") == "Failed");
    let late = api.get("ns", "late").expect("there");
    assert_eq!(late["status"]["reason"], "Evicted");
    assert_eq!(
        late["status"]["message"],
        "Pod was rejected: The node had condition: [MemoryPressure]. "
    );
    let told = world.parts.tools.recorder.newest_events(None, usize::MAX);
    let told = told.iter().find(|event| event.pod == "ns/late");
    let told = told.expect("an event");
    assert_eq!(
        (told.severity, &*told.reason, &*told.message),
        (
            EventSeverity::Warning,
            "Evicted",
            "The node had condition: [MemoryPressure]. "
        )
    );
    world.left.set_memory(500 * MIB);
    world.until("runs", |_| api.phase("asking") == "Running");
    world.advance(s(280));
    assert_eq!(condition(&world, "MemoryPressure"), "True");
    world.advance(s(40));
    assert_eq!(condition(&world, "MemoryPressure"), "False");
    let late = api.create("later", json!({}));
    runs(&world, &api, &["later"]);
    assert!(world.fake.runs(&PodUid::from(&*late)));
    world.left.set_disk(1 << 20);
    world.until("is short", |w| condition(w, "DiskPressure") == "True");
    assert_eq!(world.phase("static"), Some(PodPhase::Running));
}

#[test]
fn disk_and_processes() {
    // EVICT-02 EVICT-06 EVICT-09 EVICT-12
    let (world, api) = world(&["--eviction-hard=nodefs.available<10%,pid.available<100"]);
    api.create("a", json!({}));
    runs(&world, &api, &["a"]);
    world.left.set_disk(1 << 30);
    world.until("goes", |_| api.phase("a") == "Failed");
    let pod = api.get("ns", "a").expect("there");
    let message = pod["status"]["message"].as_str().expect("text");
    let start = "The node was low on resource: ephemeral-storage. Threshold quantity: 1717986944, available: 1Gi. \
        Container c was using ";
    assert!(message.starts_with(start), "{message}");
    world.left.set_disk(1 << 33);
    world.advance(s(320));
    api.create("b", json!({}));
    runs(&world, &api, &["b"]);
    world.left.set_pids(99);
    world.until("goes", |_| api.phase("b") == "Failed");
    let pod = api.get("ns", "b").expect("there");
    assert_eq!(
        pod["status"]["message"],
        "The node was low on resource: pids. Threshold quantity: 100, available: 99. "
    );
    assert_eq!(condition(&world, "PIDPressure"), "True");
}

/// Makes trouble with all calls about this pod.
fn about(uid: &str, op: Op, trouble: Trouble) -> Fault {
    Fault {
        target: Some(uid.into()),
        ..fault(op, u32::MAX, trouble)
    }
}

#[test]
fn who_has_no_figure_of_a_container_is_not_the_largest() {
    // EVICT-09
    let (world, api) = world(&["--eviction-hard=nodefs.available<10%"]);
    let with_data = json!({
        "containers": [{"name": "c", "image": IMAGE, "command": ["sleep"],
            "volumeMounts": [{"name": "data", "mountPath": "/data"}]}],
        "volumes": [{"name": "data", "emptyDir": {}}],
    });
    let large = api.create("large", with_data);
    let names = ["crashes", "large"];
    // The container of this pod ends between the list and the look at its files.
    let crashes = api.create("crashes", json!({}));
    runs(&world, &api, &names);
    let gone = RuntimeError::Failed("container is not running".into());
    let trouble = Trouble::Fails(gone);
    world
        .fake
        .add_fault(about(&crashes, Op::WritableLayer, trouble));
    let pod = world.parts.machine.store.pod_dir(&PodUid::from(&*large));
    let file = pod.join("volumes/kubernetes.io~empty-dir/data/x");
    fs::write(&file, vec![1; 1 << 20]).expect("written");
    world.left.set_disk(1 << 30);
    world.until("one goes", |_| !evicted(&api, &names).is_empty());
    assert_eq!(evicted(&api, &names), ["large"]);
}

#[test]
fn who_has_more_files_than_are_counted_is_the_largest() {
    // EVICT-09
    let (world, api) = world(&["--eviction-hard=nodefs.available<10%"]);
    let names = ["a", "b", "c"];
    let uids = names.map(|name| api.create(name, json!({})));
    runs(&world, &api, &names);
    let trouble = Trouble::Fails(RuntimeError::Exhausted("too large to be counted".into()));
    world
        .fake
        .add_fault(about(&uids[1], Op::WritableLayer, trouble));
    world.left.set_disk(1 << 30);
    world.until("one goes", |_| !evicted(&api, &names).is_empty());
    assert_eq!(evicted(&api, &names), ["b"]);
}

#[test]
fn who_comes_late_is_not_the_largest() {
    // EVICT-09
    let (world, api) = world(&["--eviction-hard=nodefs.available<10%"]);
    let names = ["a", "b", "c"];
    let mut pods = names.map(|name| (PodUid::from(&*api.create(name, json!({}))), name));
    pods.sort_unstable();
    runs(&world, &api, &names);
    let hanging = |world: &World| world.fake.hanging(Op::WritableLayer) == 1;
    let hangs = fault(Op::WritableLayer, 2, Trouble::Hangs);
    world.fake.add_fault(hangs);
    world.left.set_disk(1 << 30);
    world.until("the first is counted", hanging);
    world.advance(s(7));
    world.fake.release(Op::WritableLayer);
    world.settle();
    assert!(hanging(&world), "the second is counted");
    // The round ends with that.
    world.until("one goes", |_| !evicted(&api, &names).is_empty());
    assert_eq!(
        evicted(&api, &names),
        [pods[0].1],
        "it is the only one that has figures"
    );
}

#[test]
fn soft_thresholds() {
    // EVICT-03 EVICT-05 EVICT-10
    let (world, api) = world(&[
        "--eviction-hard=memory.available<10Mi",
        "--eviction-soft=memory.available<200Mi",
        "--eviction-soft-grace-period=memory.available=60s",
        "--eviction-max-pod-grace-period=3",
    ]);
    api.create("a", json!({}));
    runs(&world, &api, &["a"]);
    world.left.set_memory(150 * MIB);
    world.advance(s(50));
    assert_eq!(condition(&world, "MemoryPressure"), "True");
    assert_eq!(world.events_of("Evicted"), 0);
    world.advance(s(25));
    assert_eq!(world.events_of("Evicted"), 1);
    world.until("goes", |_| api.phase("a") == "Failed");
}

#[test]
fn static_pods_go_only_if_they_may() {
    // EVICT-10
    let pods = || {
        let priority = |n: i64| json!({"priority": n});
        let critical = priority(2_000_000_000);
        [manifest("a", json!({})), manifest("critical", critical)]
    };
    for (flags, want) in [
        (&["--eviction-hard=memory.available<100Mi"][..], 0),
        (
            &[
                "--eviction-hard=memory.available<100Mi",
                "--evict-static-pods",
            ],
            1,
        ),
    ] {
        let world = World::with(flags, None);
        world.left.set_memory(500 * MIB);
        world.apply(&pods());
        world.until("both run", |w| {
            ["a", "critical"].map(|p| w.phase(p)) == [Some(PodPhase::Running); 2]
        });
        world.left.set_memory(90 * MIB);
        world.advance(s(60));
        assert_eq!(world.events_of("Evicted"), want);
        assert_eq!(world.phase("critical"), Some(PodPhase::Running));
        let ended = world.phase("a") == Some(PodPhase::Failed);
        assert_eq!(ended, want == 1);
        // The pod stays as it is, until its manifest changes or the agent starts anew.
        world.left.set_memory(500 * MIB);
        world.advance(s(120));
        assert_eq!(world.phase("a") == Some(PodPhase::Failed), want == 1);
    }
}

#[test]
fn a_critical_pod_makes_others_go() {
    // ADM-14 ADM-15
    let (world, api) = world(&[]);
    let guaranteed = json!({"containers": [{"name": "c", "image": IMAGE, "command": ["sleep"],
        "resources": {"limits": {"cpu": "1", "memory": "300Mi"}}}]});
    api.create("guaranteed", guaranteed);
    api.create("big", asking("400Mi"));
    // This pod is the smaller one of those that are large enough.
    let small = api.create("small", asking("200Mi"));
    runs(&world, &api, &["guaranteed", "big", "small"]);
    world
        .fake
        .add_fault(fault(Op::StopContainer, 1, Trouble::Hangs));
    world.apply(&[manifest("static", asking("300Mi"))]);
    world.until("stops", |w| w.fake.hanging(Op::StopContainer) == 1);
    world.advance(s(5));
    assert!(
        !world.fake.runs(&PodUid::from("static")),
        "there is no room yet"
    );
    assert_eq!(world.phase("static"), None, "it is not refused");
    world.fake.release(Op::StopContainer);
    world.until("runs", |w| w.phase("static") == Some(PodPhase::Running));
    world.until("is told", |_| api.phase("small") == "Failed");
    let pod = api.get("ns", "small").expect("there");
    assert_eq!(pod["status"]["reason"], "Preempting");
    assert_eq!(
        pod["status"]["message"],
        "Preempted in order to admit critical pod"
    );
    let conditions = pod["status"]["conditions"].as_array().expect("conditions");
    let disruption = conditions.iter().find(|c| c["type"] == "DisruptionTarget");
    let disruption = disruption.expect("told");
    assert_eq!(disruption["reason"], "TerminationByKubelet");
    assert_eq!(
        disruption["message"],
        "Pod was preempted by Kubelet to accommodate a critical pod."
    );
    assert_eq!(world.events_of("Preempting"), 1);
    assert!(!world.fake.runs(&PodUid::from(&*small)));
    for stays in ["guaranteed", "big"] {
        assert_eq!(api.phase(stays), "Running", "{stays}");
    }
    // No pod is evicted for a pod that would not fit even then.
    world.apply(&[
        manifest("static", asking("300Mi")),
        manifest("huge", asking("2Gi")),
    ]);
    world.until("is refused", |w| w.phase("huge") == Some(PodPhase::Failed));
    let huge = world.status("huge").expect("refused");
    assert_eq!(huge.reason, "UnexpectedAdmissionError");
    assert_eq!(world.events_of("Preempting"), 1);
}

#[test]
fn what_is_short_and_who_would_go() {
    let (world, api) = world(&[]);
    api.create("modest", asking("10Mi"));
    api.create("greedy", json!({}));
    runs(&world, &api, &["modest", "greedy"]);
    world.apply(&[manifest("static", json!({}))]);
    world.until("runs", |w| w.phase("static") == Some(PodPhase::Running));
    let view = world.wait(world.asker.ask_agent(|agent| agent.pressure_view()));
    assert_eq!(view.short, []);
    let mut names: Vec<_> = view.names.values().map(|n| n.name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["greedy", "modest"], "who is critical does not go");
    assert_eq!(view.candidates.len(), 2);
    world.left.set_memory(90 * MIB);
    world.until("goes", |_| api.phase("greedy") == "Failed");
    let view = world.wait(world.asker.ask_agent(|agent| agent.pressure_view()));
    let names: Vec<_> = view.names.values().map(|n| n.name.as_str()).collect();
    assert!(!names.contains(&"greedy"), "it has gone");
    let short = &view.short[0];
    let shown = (
        short.signal.name(),
        short.limit.as_str(),
        short.available.as_str(),
    );
    assert_eq!(shown, ("memory.available", "100Mi", "90Mi"));
}

#[test]
fn limits_are_looked_at_within_a_budget() {
    // EVICT-11
    let (world, api) = world(&[]);
    let with = |dir: Value| {
        json!({
            "containers": [{"name": "c", "image": IMAGE, "command": ["sleep"],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}]}],
            "volumes": [{"name": "data", "emptyDir": dir}],
        })
    };
    let uid = api.create("full", with(json!({"sizeLimit": "1Mi"})));
    api.create("free", with(json!({})));
    runs(&world, &api, &["full", "free"]);
    let volume = |uid: &str| {
        let pod = world.parts.machine.store.pod_dir(&PodUid::from(uid));
        pod.join("volumes/kubernetes.io~empty-dir/data")
    };
    let looks = || {
        let calls = world.fake.take_calls().into_iter();
        calls.filter(|(op, _)| *op == Op::ListPodUsage).count()
    };
    looks();
    world.advance(s(60));
    assert_eq!(looks(), 6, "what costs nothing is done in each round");
    // A look that takes three seconds is the last one for five minutes.
    world
        .fake
        .add_fault(fault(Op::ListPodUsage, 1, Trouble::Hangs));
    world.until("looks", |w| w.fake.hanging(Op::ListPodUsage) == 1);
    world.advance(s(3));
    world.fake.release(Op::ListPodUsage);
    looks();
    world.advance(s(290));
    assert_eq!(looks(), 0);
    world.advance(s(30));
    assert!(looks() >= 1);
    let file = volume(&uid).join("x");
    let written = fs::write(&file, vec![1; 2 << 20]);
    written.unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    world.until("goes", |_| api.phase("full") == "Failed");
    let pod = api.get("ns", "full").expect("there");
    assert_eq!(
        pod["status"]["message"],
        "Usage of EmptyDir volume \"data\" exceeds the limit \"1Mi\". "
    );
    let conditions = pod["status"]["conditions"].as_array().expect("conditions");
    assert!(conditions.iter().all(|c| c["type"] != "DisruptionTarget"));
    assert_eq!(api.phase("free"), "Running");
}

#[test]
fn a_pod_that_is_to_be_deleted_is_not_refused() {
    // ADM-01 ADM-11
    let (world, api) = world(&[]);
    world.left.set_memory(99 * MIB);
    world.until("is short", |w| condition(w, "MemoryPressure") == "True");
    // The pod is deleted before the agent sees it.
    let uid = api.create("late", json!({}));
    api.delete("late");
    world.until("is gone", |w| {
        api.get("ns", "late").is_none() && w.is_gone(&uid)
    });
    assert!(!world.fake.runs(&PodUid::from(&*uid)));
}

#[test]
fn images_that_are_not_removed_in_time_hold_up_nothing_else() {
    // EVICT-04 EVICT-06
    let api = Arc::new(FakeApi::default());
    let flags = &["--eviction-hard=nodefs.available<10%,memory.available<100Mi"];
    let (unused, asked) = smol::channel::bounded(1);
    let world = World::with_unused_images(flags, &api, unused);
    world.left.set_memory(500 * MIB);
    world.left.set_disk(1 << 33);
    world.apply(&[]);
    api.create("a", json!({}));
    runs(&world, &api, &["a"]);
    world.left.set_disk(1 << 30);
    world.until("images are to go", |_| !asked.is_empty());
    // The remover of images unpacks one, and never answers; the disk gets room by itself.
    let _removal = asked.try_recv().expect("asked");
    world.advance(s(25));
    assert_eq!(api.phase("a"), "Running", "the round waits");
    world.left.set_disk(1 << 33);
    world.advance(s(10));
    // No other work is delayed.
    world.left.set_memory(90 * MIB);
    world.until("goes", |_| api.phase("a") == "Failed");
    let pod = api.get("ns", "a").expect("there");
    let message = pod["status"]["message"].as_str().expect("text");
    assert!(
        message.starts_with("The node was low on resource: memory."),
        "{message}"
    );
    assert_eq!(world.events_of("Evicted"), 1);
}

#[test]
fn an_edit_does_not_start_a_pod_that_waits_for_room() {
    // ADM-15 PRE-03
    let (world, api) = world(&[]);
    let mut critical = manifest("static", asking("800Mi"));
    let label = json!({"fieldRef": {"fieldPath": "metadata.labels['x']"}});
    critical["spec"]["containers"][0]["env"] = json!([{"name": "X", "valueFrom": label}]);
    let uid = PodUid::from("static");
    // Another pod has to be evicted for it, and ends slowly.
    let begin = |name: &str| {
        api.create(name, asking("900Mi"));
        runs(&world, &api, &[name]);
        let fault = fault(Op::StopContainer, 1, Trouble::Hangs);
        world.fake.add_fault(fault);
        world.apply(core::slice::from_ref(&critical));
        world.until("stops", |w| w.fake.hanging(Op::StopContainer) == 1);
    };
    // A pod that is removed while it waits is not begun again.
    begin("a");
    world.apply(&[]);
    world.until("is gone", |w| w.is_gone("static"));
    world.fake.release(Op::StopContainer);
    world.until("has gone", |_| api.phase("a") == "Failed");
    world.advance(s(60));
    assert!(world.fake.container(&uid, "c").is_none());
    begin("b");
    let mut edited = critical.clone();
    edited["metadata"]["labels"] = json!({"x": "y"});
    world.apply(&[edited]);
    world.advance(s(5));
    assert!(!world.fake.runs(&uid), "there is no room yet");
    world.fake.release(Op::StopContainer);
    world.until("runs", |w| w.fake.runs(&uid));
    let made = world.fake.config(&uid, "c").expect("made");
    assert!(
        made.env.contains(&("X".into(), "y".into())),
        "the newest record"
    );
}
