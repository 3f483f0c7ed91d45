//! Pods of an apiserver, from the object to the calls of the runtime, and back into the object.

use alloc::sync::Arc;
use core::time::Duration;

use serde_json::{Value, json};

use super::{
    super::ring::{self, RecordedEvent},
    api::{FakeApi, Link, NODE_UID},
    order,
    world::{NODE, World, fault, manifest},
};
use crate::{
    api::{
        PodUid,
        pod::{CONFIG_HASH, CONFIG_MIRROR, CONFIG_SOURCE},
        pod_status::PodPhase,
    },
    runtime::{
        RuntimeError,
        fake::{Op, Trouble},
    },
};

const fn s(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn world() -> (World, Arc<FakeApi>) {
    let api = Arc::new(FakeApi::default());
    let world = World::with_api(&api);
    world.apply(&[]);
    (world, api)
}

fn ready(pod: &Value) -> Option<&str> {
    let all = pod["status"]["conditions"].as_array()?;
    all.iter().find(|c| c["type"] == "Ready")?["status"].as_str()
}

fn is_ready(api: &FakeApi, name: &str) -> bool {
    api.get("ns", name)
        .is_some_and(|pod| ready(&pod) == Some("True"))
}

fn starts(world: &World) -> usize {
    let calls = world.fake.take_calls().into_iter();
    calls.filter(|(op, _)| *op == Op::StartContainer).count()
}

fn exit(world: &World, uid: &str, code: i32) {
    let container = world.fake.container(&PodUid::from(uid), "c").expect("runs");
    assert!(world.fake.exit(&container.id, code));
}

#[test]
fn a_pod_comes_and_goes() {
    // SRC-13 SRC-29 LOOP-10 SM-04 SM-11 DEL-04 EVT-01
    let (world, api) = world();
    let uid = api.create("a", json!({}));
    world.until("runs", |_| is_ready(&api, "a"));
    assert_eq!(api.phase("a"), "Running");
    world.advance(s(60));
    assert_eq!(starts(&world), 1);
    api.take_seen();
    world.advance(s(60));
    let seen = api.take_seen();
    assert!(
        seen.iter().all(|what| what.starts_with("LIST")),
        "nothing is written or read while nothing changes: {seen:?}"
    );
    // The node controller does this after an outage.
    api.edit("a", |pod| {
        let all = pod["status"]["conditions"].as_array_mut().expect("list");
        let ready = all.iter_mut().find(|c| c["type"] == "Ready");
        ready.expect("ready")["status"] = "False".into();
    });
    world.advance(s(11));
    assert!(is_ready(&api, "a"), "repaired within one poll");
    api.delete("a");
    world.until("is gone", |w| {
        api.get("ns", "a").is_none() && w.is_gone(&uid)
    });
    assert_eq!(world.events_of("Killing"), 1);
    let told = api.events();
    for reason in ["Created", "Started", "Killing"] {
        assert!(told.iter().any(|r| r == reason), "{reason}: {told:?}");
    }
}

#[test]
fn what_a_source_says_is_taken_as_what_it_is() {
    // LOOP-06
    let (world, api) = world();
    let uid = api.create("a", json!({}));
    world.until("runs", |_| is_ready(&api, "a"));
    assert!(world.wait(world.asker.ask_agent(|agent| agent.sources_ready())));
    api.edit("a", |pod| {
        pod["metadata"]["labels"] = json!({"new": "label"});
    });
    world.advance(s(11));
    api.edit("a", |pod| pod["status"]["message"] = "of another".into());
    world.advance(s(11));
    api.delete("a");
    world.until("is gone", |w| w.is_gone(&uid));
    let dump = world.agent.borrow().dump_history();
    let (_, lines) = ring::tests::parse_dump(&dump).expect("a dump");
    let mut heard: Vec<&str> = lines
        .iter()
        .filter_map(|line| match line.heard.as_ref()? {
            RecordedEvent::Add(_) => Some("additions"),
            RecordedEvent::Update(seen) if seen.deleted => Some("updates, for its deletion"),
            RecordedEvent::Update(_) => Some("updates"),
            RecordedEvent::Reconcile(_) => Some("reconcile"),
            RecordedEvent::Remove { .. } => Some("removes"),
            _ => None,
        })
        .collect();
    heard.dedup();
    let expected = [
        "additions",
        "updates",
        "reconcile",
        "updates, for its deletion",
        "removes",
    ];
    assert_eq!(heard, expected);
}

#[test]
fn an_end_is_told_before_the_deletion() {
    // DEL-02 DEL-03 DEL-04 DEL-05 SM-08 SM-10
    let (world, api) = world();
    let uid = api.create("job", json!({"restartPolicy": "Never"}));
    world.until("runs", |_| is_ready(&api, "job"));
    exit(&world, &uid, 0);
    world.until("has ended", |_| api.phase("job") == "Succeeded");
    world.advance(s(120));
    assert_eq!(world.phase(&uid), Some(PodPhase::Succeeded));
    assert_eq!(starts(&world), 1);
    // An ended pod goes at once when a user deletes it. Without a doorbell the list of all phases shows the deletion.
    api.delete("job");
    world.advance(s(70));
    assert!(world.is_gone(&uid));
}

#[test]
fn pods_that_end_with_the_machine_start_again() {
    // With an apiserver in reach or without.
    for link in [Link::Up, Link::Down] {
        let (world, api) = world();
        let uid = api.create("a", json!({}));
        world.until("runs", |_| is_ready(&api, "a"));
        api.set_link(link);
        let answer = world.stop(true);
        world.until("ends", World::has_ended);
        assert!(answer.is_closed());
        assert_eq!(api.phase("a"), "Running", "{link:?}: nothing was told");
        assert!(!world.fake.runs(&PodUid::from(&*uid)));
        api.set_link(Link::Up);
        let world = world.restart_agent();
        world.apply(&[]);
        world.until("runs again", |w| {
            w.fake.runs(&PodUid::from(&*uid)) && is_ready(&api, "a")
        });
    }
}

#[test]
fn new_labels_and_a_new_image() {
    // SRC-03 LOOP-13
    let (world, api) = world();
    world.fake.add_image("new:1");
    let uid = api.create("a", json!({}));
    world.until("runs", |_| is_ready(&api, "a"));
    api.edit("a", |pod| pod["metadata"]["labels"] = json!({"x": "y"}));
    world.advance(s(20));
    assert_eq!(starts(&world), 1, "labels restart nothing");
    api.edit("a", |pod| {
        pod["spec"]["containers"][0]["image"] = "new:1".into();
    });
    world.until("runs the new image", |w| {
        let known = w.fake.config(&PodUid::from(&*uid), "c");
        known.is_some_and(|c| c.user_image == "new:1")
    });
    world.until("is told", |_| {
        let pod = api.get("ns", "a").expect("there");
        pod["status"]["containerStatuses"][0]["restartCount"] == 1
    });
}

#[test]
fn a_container_that_is_replaced_does_not_end_its_pod() {
    // LOOP-13
    let (world, api) = world();
    world.fake.add_image("new:1");
    api.create("a", json!({"restartPolicy": "Never"}));
    world.until("runs", |_| is_ready(&api, "a"));
    let phase = || api.get("ns", "a").expect("there")["status"]["phase"].clone();
    world
        .fake
        .add_fault(fault(Op::CreateContainer, 1, Trouble::Hangs));
    let lost = Trouble::FailsAfter(RuntimeError::Failed("no".into()));
    world.fake.add_fault(fault(Op::StartContainer, 1, lost));
    api.edit("a", |pod| {
        pod["spec"]["containers"][0]["image"] = "new:1".into();
    });
    world.until("hangs", |w| w.fake.hanging(Op::CreateContainer) == 1);
    // The time is long enough for a look at the pod without a running container.
    world.advance(s(10));
    world.fake.release(Op::CreateContainer);
    world.until("is told", |_| {
        assert_eq!(phase(), "Running");
        let pod = api.get("ns", "a").expect("there");
        pod["status"]["containerStatuses"][0]["restartCount"] == 1
    });
}

#[test]
fn the_name_of_another() {
    // SRC-07 SRC-31 LOOP-14 OFF-09
    let (world, api) = world();
    let old = api.create("a", json!({}));
    world.until("runs", |_| is_ready(&api, "a"));
    // The pod is deleted by force and made again between two polls.
    api.remove("ns", "a");
    let new = api.create("a", json!({}));
    world.until("the new one runs", |w| {
        w.fake.runs(&PodUid::from(&*new)) && is_ready(&api, "a")
    });
    world.until("the old one is gone", |w| w.is_gone(&old));
}

#[test]
fn no_news_removes_nothing() {
    // OFF-01 OFF-03 OFF-04 SRC-30
    let (world, api) = world();
    let names = ["a", "b", "c", "d"];
    let uids = names.map(|name| api.create(name, json!({})));
    world.until("all run", |_| names.iter().all(|n| is_ready(&api, n)));
    starts(&world);
    for link in [Link::Down, Link::Cut, Link::Mute] {
        api.set_link(link);
        world.advance(s(600));
        for uid in &uids {
            assert!(world.fake.runs(&PodUid::from(&**uid)), "{link:?}");
        }
    }
    // A container that ends meanwhile is started again, and its end is told later.
    api.set_link(Link::Down);
    exit(&world, &uids[0], 1);
    world.until("is started again", |w| {
        w.fake.runs(&PodUid::from(&*uids[0]))
    });
    assert_eq!(starts(&world), 1);
    api.delete("b");
    api.remove("ns", "c");
    api.edit("d", |pod| {
        pod["status"]["phase"] = "Failed".into();
        pod["status"]["reason"] = "NodeLost".into();
    });
    world.advance(s(300));
    assert_eq!(world.fake.pods().len(), 4);
    api.set_link(Link::Up);
    world.until("deletions are carried out", |w| {
        api.get("ns", "b").is_none() && w.is_gone(&uids[1]) && w.is_gone(&uids[2])
    });
    world.until("the failed one ends", |w| {
        !w.fake.runs(&PodUid::from(&*uids[3]))
    });
    world.until("the restart is told", |_| {
        let pod = api.get("ns", "a").expect("there");
        pod["status"]["containerStatuses"][0]["restartCount"] == 1
    });
    assert_eq!(starts(&world), 0, "nothing else is started");
}

#[test]
fn an_agent_begins_offline() {
    // OFF-06 OFF-08 SRC-14
    let (world, api) = world();
    let uids = ["a", "b"].map(|name| api.create(name, json!({})));
    world.until("both run", |_| is_ready(&api, "a") && is_ready(&api, "b"));
    let start_time = |api: &FakeApi| api.get("ns", "a").expect("a")["status"]["startTime"].clone();
    let began = start_time(&api);
    world.advance(s(30));
    starts(&world);
    api.set_link(Link::Down);
    let world = world.restart_agent();
    world.apply(&[]);
    world.advance(s(60));
    assert_eq!(starts(&world), 0, "what runs goes on");
    exit(&world, &uids[0], 1);
    world.until("is started again", |w| {
        w.fake.runs(&PodUid::from(&*uids[0]))
    });
    api.remove("ns", "b");
    world.advance(s(300));
    assert!(world.fake.runs(&PodUid::from(&*uids[1])), "nobody said so");
    api.set_link(Link::Up);
    world.until("the deletion is carried out", |w| w.is_gone(&uids[1]));
    world.until("is told", |_| is_ready(&api, "a"));
    assert_eq!(starts(&world), 1);
    assert_eq!(start_time(&api), began, "STAT-33");
}

#[test]
fn pods_of_another_cluster_are_not_started_and_end() {
    // KADM-32
    let (world, api) = world();
    let uid = PodUid::from(&*api.create("a", json!({})));
    world.until("it runs", |_| is_ready(&api, "a"));
    starts(&world);
    api.set_link(Link::Down);
    // The pod's record is older than identities of clusters; then the cluster gets a new authority, by a bundle of
    // both.
    let world = ["old", "new,old", "new"]
        .into_iter()
        .fold(world, |world, authority| {
            let world = world.restart_agent_of(authority);
            world.apply(&[]);
            world.advance(s(60));
            world
        });
    exit(&world, &uid, 1);
    world.until("it is started again", |w| w.fake.runs(&uid));
    starts(&world);

    let world = world.restart_agent_of("other");
    world.apply(&[]);
    exit(&world, &uid, 1);
    world.advance(s(600));
    assert_eq!(starts(&world), 0, "it is another cluster's");
    api.remove("ns", "a");
    api.set_link(Link::Up);
    world.until("it is ended", |w| w.is_gone(&uid));
    assert_eq!(starts(&world), 0);
}

#[test]
fn a_boot_without_an_apiserver() {
    // OFF-03 OFF-08 SYNC-35
    let (world, api) = world();
    let [web, job, ended] = [("web", "Always"), ("job", "OnFailure"), ("ended", "Never")]
        .map(|(name, policy)| api.create(name, json!({"restartPolicy": policy})));
    world.until("all run", |_| {
        ["web", "job", "ended"].iter().all(|n| is_ready(&api, n))
    });
    exit(&world, &ended, 0);
    world.until("one has ended", |_| api.phase("ended") == "Succeeded");
    starts(&world);
    api.set_link(Link::Down);
    let world = world.reboot();
    world.apply(&[]);
    world.until("assigned pods start again", |w| {
        [&web, &job]
            .iter()
            .all(|u| w.fake.runs(&PodUid::from(&***u)))
    });
    world.advance(s(120));
    assert_eq!(starts(&world), 2, "what has ended does not begin again");
    assert!(!world.fake.runs(&PodUid::from(&*ended)));
    api.remove("ns", "job");
    let late = api.create("late", json!({}));
    api.set_link(Link::Up);
    world.until("all is as the API wants it", |w| {
        w.is_gone(&job) && w.fake.runs(&PodUid::from(&*late)) && is_ready(&api, "late")
    });
    assert!(is_ready(&api, "web"));
    assert_eq!(starts(&world), 1, "what is unchanged is not restarted");
    assert_eq!(api.phase("ended"), "Succeeded");
    let pod = api.get("ns", "web").expect("there");
    assert_eq!(pod["status"]["containerStatuses"][0]["restartCount"], 1);
}

#[test]
fn how_containers_of_a_pod_ended_that_others_have_failed_is_known_after_a_boot() {
    // SM-10 SYNC-35
    let (world, api) = world();
    let uid = api.create("a", json!({}));
    world.until("runs", |_| is_ready(&api, "a"));
    world
        .fake
        .add_fault(fault(Op::StopContainer, 1, Trouble::Hangs));
    api.edit("a", |pod| pod["status"]["phase"] = "Failed".into());
    world.until("is being stopped", |w| {
        w.fake.hanging(Op::StopContainer) == 1
    });
    // The end of its container is not told to the apiserver.
    api.set_link(Link::Down);
    exit(&world, &uid, 3);
    world.fake.release(Op::StopContainer);
    let code = |world: &World| {
        let status = world.status(&uid)?;
        let ended = status.container_statuses[0].state.terminated.as_ref()?;
        Some(ended.exit_code)
    };
    world.until("has ended", |w| code(w) == Some(3));
    world.advance(s(60));
    let world = world.reboot();
    world.apply(&[]);
    api.set_link(Link::Up);
    world.until("it is told", |_| {
        let pod = api.get("ns", "a").expect("it stays");
        pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 3
    });
    assert_eq!(api.phase("a"), "Failed");
}

#[test]
fn a_store_from_a_backup() {
    // SRC-30: versions go back
    let (world, api) = world();
    let old = api.create("old", json!({}));
    world.until("runs", |_| is_ready(&api, "old"));
    api.keep();
    let new = api.create("new", json!({}));
    world.until("runs", |_| is_ready(&api, "new"));
    api.restore();
    world.until("what is not there ends", |w| w.is_gone(&new));
    assert!(world.fake.runs(&PodUid::from(&*old)));
    let again = api.create("again", json!({}));
    world.until("it sees what comes", |w| {
        w.fake.runs(&PodUid::from(&*again)) && is_ready(&api, "again")
    });
}

#[test]
fn a_pod_at_a_url_has_a_mirror() {
    // SRC-12 SRC-26 MIR-06
    let api = Arc::new(FakeApi::default());
    let world = World::with_flags_and_api(&["--manifest-url=http://h/m"], &api);
    world.apply(&[]);
    world.apply_from_url(&[manifest("s", json!({}))]);
    let name = format!("s-{NODE}");
    world.until("its mirror is ready", |_| {
        let mirror = api.get("default", &name);
        mirror.is_some_and(|pod| ready(&pod) == Some("True"))
    });
    let mirror = api.get("default", &name).expect("there");
    let notes = &mirror["metadata"]["annotations"];
    assert_eq!(
        (&notes[CONFIG_SOURCE], &notes[CONFIG_MIRROR]),
        (&json!("http"), &json!("s"))
    );
    world.apply_from_url(&[]);
    world.until("both are gone", |w| {
        api.get("default", &name).is_none() && w.is_gone("s")
    });
}

#[test]
fn mirrors_of_static_pods() {
    // MIR-01 MIR-03 MIR-04 MIR-05 MIR-06 MIR-08 MIR-09 MIR-10 SM-14 SYNC-07
    let (world, api) = world();
    let name = format!("s-{NODE}");
    let mirror = || api.get("default", &name);
    world.apply(&[manifest("s", json!({}))]);
    world.until("its mirror is ready", |_| {
        mirror().is_some_and(|pod| ready(&pod) == Some("True"))
    });
    let first = mirror().expect("there");
    let annotations = &first["metadata"]["annotations"];
    assert_eq!(annotations[CONFIG_MIRROR], annotations[CONFIG_HASH]);
    assert_eq!(first["metadata"]["ownerReferences"][0]["uid"], NODE_UID);
    assert_ne!(first["metadata"]["uid"], "s");
    assert_eq!(world.fake.pods().len(), 1, "a mirror is not run");
    api.remove("default", &name);
    world.until("it is there again", |_| {
        mirror().is_some_and(|pod| ready(&pod) == Some("True"))
    });
    assert_eq!(starts(&world), 1, "and the static pod never stopped");
    // The mirror was left by another node, or by an older version.
    let (pod, hash) = (mirror().expect("there"), "another".to_owned());
    api.remove("default", &name);
    let mut stale = pod;
    stale["metadata"]["annotations"][CONFIG_MIRROR] = hash.clone().into();
    api.put("default", &name, stale);
    world.until("it is replaced", |_| {
        mirror().is_some_and(|pod| pod["metadata"]["annotations"][CONFIG_MIRROR] != *hash)
    });
    // Another agent finds the mirror and makes no new one.
    let before = mirror().expect("there")["metadata"]["uid"].clone();
    let world = world.restart_agent();
    world.apply(&[manifest("s", json!({}))]);
    world.advance(s(120));
    assert_eq!(mirror().expect("there")["metadata"]["uid"], before);
    world.apply(&[]);
    world.until("both are gone", |w| mirror().is_none() && w.is_gone("s"));
}

#[test]
fn an_edited_manifest_gives_its_name_on() {
    // MIR-02
    let (world, api) = world();
    let name = format!("s-{NODE}");
    let hash = || {
        let mirror = api.get("default", &name).unwrap_or_default();
        mirror["metadata"]["annotations"][CONFIG_MIRROR].clone()
    };
    let with_uid = |uid: &str| {
        let mut pod = manifest("s", json!({}));
        pod["metadata"]["uid"] = uid.into();
        pod
    };
    world.apply(&[with_uid("first")]);
    world.until("its mirror is there", |_| hash() == "first");
    world.apply(&[with_uid("second")]);
    world.until("the mirror is the other's", |w| {
        hash() == "second" && w.is_gone("first")
    });
    world.advance(s(60));
    // The index by name leads to the new pod: its status is told.
    let mirror = api.get("default", &name).expect("there");
    assert_eq!(ready(&mirror), Some("True"));
    let dump = world.agent.borrow().dump_history();
    let (_, lines) = ring::tests::parse_dump(&dump).expect("a dump");
    let heard: Vec<String> = lines
        .into_iter()
        .filter_map(|line| match line.heard? {
            RecordedEvent::Add(seen) => Some(format!("add {}", seen.pod)),
            RecordedEvent::Remove { pod } => Some(format!("remove {pod}")),
            _ => None,
        })
        .collect();
    assert_eq!(heard, ["add first", "remove first", "add second"]);
}

#[test]
fn a_mirror_that_cannot_be_deleted_is_no_concern_of_its_pod() {
    // MIR-07
    let (world, api) = world();
    let name = |pod: &str| format!("{pod}-{NODE}");
    let is_there = |pod: &str| api.get("default", &name(pod)).is_some();
    let all = ["gone", "other", "away"].map(|pod| manifest(pod, json!({})));
    world.apply(&all);
    world.until("their mirrors are there", |_| {
        ["gone", "other", "away"].into_iter().all(is_there)
    });
    world.advance(s(20));
    let deletions = |api: &FakeApi| {
        let mut seen = api.take_seen();
        seen.retain(|what| what.starts_with("DELETE"));
        seen
    };
    deletions(&api);
    // Between two polls another client removes one mirror, and makes another one anew.
    let copy = api.get("default", &name("other")).expect("there");
    api.remove("default", &name("gone"));
    api.remove("default", &name("other"));
    api.put("default", &name("other"), copy);
    world.apply(&all[2..]);
    world.advance(s(60));
    let mut asked = deletions(&api);
    asked.sort();
    asked.dedup();
    let both = ["gone", "other"].map(|pod| format!("DELETE default/{}", name(pod)));
    assert_eq!(asked, both);
    // For the second mirror the first request had an old uid.
    assert!(!is_there("gone") && !is_there("other"));

    // While the apiserver is away no other pod ends, and the request is repeated later.
    api.set_link(Link::Down);
    world.apply(&[manifest("next", json!({}))]);
    world.advance(s(60));
    assert!(is_there("away") && !world.fake.runs(&PodUid::from("away")));
    assert_eq!(world.phase("next"), Some(PodPhase::Running));
    api.set_link(Link::Up);
    world.advance(s(120));
    assert!(!is_there("away") && is_there("next"));
}

#[test]
fn a_mirror_that_shows_an_end() {
    // MIR-10: no list of pods alive has it
    let (world, api) = world();
    let name = format!("s-{NODE}");
    let phase = || api.get("default", &name).unwrap_or_default()["status"]["phase"].clone();
    let job = manifest("s", json!({"restartPolicy": "Never"}));
    world.apply(core::slice::from_ref(&job));
    world.until("runs", |_| phase() == "Running");
    exit(&world, "s", 0);
    world.until("has ended", |_| phase() == "Succeeded");
    let world = world.restart_agent();
    world.apply(&[job]);
    world.advance(s(60));
    assert_eq!(phase(), "Succeeded");
    world.apply(&[]);
    world.until("both are gone", |w| {
        api.get("default", &name).is_none() && w.is_gone("s")
    });
}

#[test]
fn what_cannot_be_taken() {
    // LOOP-10 LOOP-22 STAT-14 SM-13 CLEAN-10
    let (world, api) = world();
    let good = api.create("good", json!({}));
    let cases = [
        (
            "greedy",
            json!({"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "99"}}}]}),
            "OutOfcpu",
        ),
        (
            "odd",
            json!({"containers": [{"name": "c", "image": 7}]}),
            "UnexpectedAdmissionError",
        ),
    ];
    for (name, spec, _) in &cases {
        api.create(name, spec.clone());
    }
    world.until("the good one runs", |_| is_ready(&api, "good"));
    for (name, _, reason) in cases {
        world.until(name, |_| api.phase(name) == "Failed");
        let pod = api.get("ns", name).expect("there");
        assert_eq!(pod["status"]["reason"], reason, "{pod}");
        api.delete(name);
    }
    world.until("one is left", |w| {
        w.agent.borrow().pods().configured_uids().len() == 1
    });
    assert!(world.fake.runs(&PodUid::from(&*good)));
    assert_eq!(starts(&world), 1);
}

#[test]
fn fields_that_this_node_leaves_out_are_told_once() {
    // SRC-33
    let (world, api) = world();
    let with_mode = json!({
        "containers": [{"name": "c", "image": "busybox:1", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
        "volumes": [{"name": "v", "emptyDir": {"mode": 448}}],
    });
    let look = |name: &str, options: Value| {
        json!({"name": name, "image": "busybox:1", "command": ["sleep"],
            "volumeMounts": [{"name": "v", "mountPath": "/v", "bindMountOptions": options}]})
    };
    api.create("with-mode", with_mode);
    api.create(
        "plain",
        json!({"preemptionPolicy": "Never", "topologySpreadConstraints": [{}]}),
    );
    world.until("both run", |_| {
        is_ready(&api, "with-mode") && is_ready(&api, "plain")
    });
    let told = |world: &World| world.events_of("UnsupportedField");
    let text = "field spec.volumes[0].emptyDir.mode is not supported by this node";
    assert_eq!(order::told(&world, "UnsupportedField"), [text]);
    api.edit("with-mode", |pod| {
        pod["metadata"]["labels"] = json!({"a": "b"})
    });
    world.advance(s(60));
    assert_eq!(told(&world), 1, "an edit is no new pod");
    // An ephemeral container is new.
    let of = |n: u32, field: &str| format!("spec.ephemeralContainers[{n}].volumeMounts[0].{field}");
    api.edit("with-mode", |pod| {
        pod["spec"]["ephemeralContainers"] = json!([look("one", json!(["noexec"]))]);
    });
    world.advance(s(60));
    assert_eq!(told(&world), 2);
    api.edit("with-mode", |pod| {
        let all = pod["spec"]["ephemeralContainers"].as_array_mut();
        let all = all.expect("a list");
        all.extend(["two", "three"].map(|name| look(name, json!(["nodev"]))));
    });
    world.advance(s(60));
    assert_eq!(told(&world), 3);
    let mut texts = order::told(&world, "UnsupportedField");
    texts.sort();
    let [one, two, three] = [0, 1, 2].map(|n| of(n, "bindMountOptions"));
    assert_eq!(
        texts,
        [
            format!("field {one} is not supported by this node"),
            text.into(),
            format!("fields {two}, {three} are not supported by this node"),
        ]
    );
    let world = world.restart_agent();
    world.apply(&[]);
    world.advance(s(60));
    assert_eq!(told(&world), 0, "the next agent knows the pod");
}

#[test]
fn files_come_before_the_apiserver() {
    let (world, api) = world();
    // The mirror has the first uid of the apiserver.
    world.apply(&[manifest("u2", json!({}))]);
    world.until("runs", |w| w.phase("u2") == Some(PodPhase::Running));
    world.advance(s(20));
    // A pod of the apiserver that claims the uid of a static one.
    assert_eq!(api.create("thief", json!({})), "u2");
    world.advance(s(60));
    assert!(
        world
            .agent
            .borrow()
            .pods()
            .config(&PodUid::from("u2"))
            .map(|c| c.is_static)
            == Some(true)
    );
    assert_eq!(api.phase("thief"), "Pending");
    assert_eq!(starts(&world), 1);
}

#[test]
fn many_pods_at_once() {
    let (world, api) = world();
    world.advance(s(5));
    api.take_seen();
    let names: Vec<String> = (0..40).map(|n| format!("p{n}")).collect();
    for name in &names {
        api.create(name, json!({}));
    }
    world.until("all run", |_| names.iter().all(|n| is_ready(&api, n)));
    let seen = api.take_seen();
    let reads = seen.iter().filter(|w| w.starts_with("GET")).count();
    assert!(reads <= 2, "{reads} single reads");
    assert_eq!(starts(&world), 40);
}

#[test]
fn housekeeping_waits_for_the_whole() {
    // SRC-13 SRC-14 LOOP-20 OFF-07
    let (world, api) = world();
    let uid = api.create("a", json!({}));
    world.until("runs", |_| is_ready(&api, "a"));
    starts(&world);
    // The pod's record is lost, and the apiserver away: the agent does not know the pod, and the pod runs on.
    let world = world.restart_agent_with(|_| api.set_link(Link::Down));
    world.apply(&[]);
    std::fs::remove_file(
        world
            .parts
            .machine
            .store
            .pod_dir(&PodUid::from(&*uid))
            .join("pod.json"),
    )
    .unwrap_or_default();
    let configured = world.agent.borrow().pods().configured_uids();
    for uid in configured {
        let _ = world.agent.borrow_mut().pods_mut().remove_config(&uid);
    }
    world.advance(s(300));
    assert!(!world.wait(world.asker.ask_agent(|agent| agent.sources_ready())));
    assert!(world.fake.runs(&PodUid::from(&*uid)));
    assert_eq!(starts(&world), 0);
}
