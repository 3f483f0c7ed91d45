//! Pods of a provider that may be slow, silent, forgetful, repeating, lying or started anew; and pods of containers
//! beside them.

use alloc::{collections::BTreeMap, rc::Rc, sync::Arc};
use core::cell::RefCell;
use std::io;

use serde_json::{Value, json};

use super::{
    PodProviders,
    socket::StreamedBody,
    wire::{
        CALL_TIMEOUT, MAX_POD_BYTES, ProviderCall, ProviderError, ProviderRequest,
        ProviderResponse, ProviderWire,
    },
};
use crate::{
    agent::tests::{
        api::FakeApi,
        probes::s,
        world::{MakeExternal, NODE, World, manifest},
    },
    api::pod_status::PodPhase,
};

/// Handler of the provider's pods.
const HANDLER: &str = "lamps";
/// A moment before all tests.
const THEN: &str = "2023-11-14T22:13:20Z";

/// Behaviour of the provider.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Mood {
    #[default]
    Good,
    /// The socket has no listener.
    Silent,
    /// Calls do not end in time.
    Slow,
    /// Every call is answered with 500.
    Broken,
    /// A list has each pod twice.
    Repeats,
    /// A request for a list is answered with 500; other calls are carried out.
    NoLists,
    /// A pod that is handed over is refused, and does not come into the lists.
    Refuses,
}

#[derive(Default)]
struct State {
    mood: Mood,
    instance: u32,
    /// Pods by UID, as they are listed.
    pods: BTreeMap<String, Value>,
    told: Vec<Value>,
    /// Methods and paths of calls, except lists.
    calls: Vec<String>,
    lists: u32,
    /// Set if its pods do not end when they are told to.
    is_stubborn: bool,
    cursor: u32,
}

/// A provider in memory; see the module.
#[derive(Default)]
struct FakeProvider(RefCell<State>);

fn container(name: &str) -> Value {
    json!({"name": name, "state": "running", "startedAt": THEN})
}

fn end(container: &mut Value, code: i32) {
    container["state"] = "terminated".into();
    container["finishedAt"] = THEN.into();
    container["exitCode"] = code.into();
}

impl State {
    fn answer(&mut self, request: &ProviderRequest) -> Result<ProviderResponse, ProviderError> {
        let path = request.target.split('?').next().unwrap_or_default();
        let uid = path.trim_start_matches("/pods/").to_owned();
        if path == "/pods" {
            self.lists += 1;
        } else {
            self.calls.push(format!("{} {path}", request.method));
        }
        let refused = |status, text: &str| {
            let text = text.to_owned();
            Err(ProviderError::Refused { status, text })
        };
        match self.mood {
            Mood::NoLists if request.method == "GET" => return refused(500, "no lists"),
            Mood::Good | Mood::Repeats | Mood::NoLists => {}
            Mood::Silent => {
                let error = io::ErrorKind::ConnectionRefused;
                return Err(ProviderError::Unreachable(error.into()));
            }
            Mood::Slow => return Err(ProviderError::Slow(CALL_TIMEOUT)),
            Mood::Broken => return refused(500, "broken"),
            Mood::Refuses if request.method == "PUT" => return refused(422, "no such lamp"),
            Mood::Refuses => {}
        }
        let ok = |status, body: Value| {
            let body = body.to_string().into_bytes();
            Ok(ProviderResponse { status, body })
        };
        match request.method {
            "GET" => {
                let mut pods: Vec<&Value> = self.pods.values().collect();
                if self.mood == Mood::Repeats {
                    pods.extend(self.pods.values());
                }
                let cursor = format!("t:{}", self.cursor);
                let instance = self.instance.to_string();
                ok(
                    200,
                    json!({"instance": instance, "cursor": cursor, "pods": pods}),
                )
            }
            "PUT" => {
                let told: Value = serde_json::from_slice(&request.body).expect("JSON");
                let meta = &told["pod"]["metadata"];
                let names = told["pod"]["spec"]["containers"].as_array().expect("list");
                let names = names.iter().map(|c| c["name"].as_str().expect("name"));
                let made = json!({
                    "uid": uid, "node": told["node"], "generation": told["generation"],
                    "namespace": meta["namespace"], "name": meta["name"],
                    "status": {"containers": names.map(container).collect::<Vec<_>>()},
                });
                let pod = self.pods.entry(uid).or_insert(made);
                pod["generation"] = told["generation"].clone();
                let pod = pod.clone();
                self.told.push(told);
                ok(200, pod)
            }
            _ => {
                let Some(pod) = self.pods.get_mut(&uid) else {
                    return ok(404, Value::Null);
                };
                let all = pod["status"]["containers"].as_array_mut().expect("list");
                if all.iter().all(|c| c["state"] == "terminated") {
                    let pod = self.pods.remove(&uid).expect("there");
                    return ok(200, pod);
                }
                if !self.is_stubborn {
                    all.iter_mut().for_each(|c| end(c, 143));
                }
                ok(202, Value::Null)
            }
        }
    }
}

impl ProviderWire for Rc<FakeProvider> {
    fn send_request(&self, request: ProviderRequest) -> ProviderCall<'_, ProviderResponse> {
        if request.target.starts_with("/changes") {
            let provider = Self::clone(self);
            return Box::pin(core::future::poll_fn(move |_| {
                // The cursor is looked at with every poll: anything that happens in a test polls this task.
                let state = provider.0.borrow();
                let now = format!("/changes?after=t%3A{}", state.cursor);
                if now == request.target || state.mood != Mood::Good {
                    return core::task::Poll::Pending;
                }
                core::task::Poll::Ready(Ok(ProviderResponse {
                    status: 200,
                    body: Vec::new(),
                }))
            }));
        }
        let answer = self.0.borrow_mut().answer(&request);
        Box::pin(core::future::ready(answer))
    }

    fn open_stream(&self, _: &'static str, _: String) -> ProviderCall<'_, StreamedBody> {
        Box::pin(core::future::ready(Err(ProviderError::Slow(CALL_TIMEOUT))))
    }
}

impl FakeProvider {
    fn mood(&self, mood: Mood) {
        self.0.borrow_mut().mood = mood;
    }

    /// Calls since this was last asked, except lists.
    fn calls(&self) -> Vec<String> {
        core::mem::take(&mut self.0.borrow_mut().calls)
    }

    fn has(&self, uid: &str) -> bool {
        self.0.borrow().pods.contains_key(uid)
    }

    /// Changes the status of a pod's first container, as the provider lists it.
    fn say(&self, uid: &str, change: impl FnOnce(&mut Value)) {
        let mut state = self.0.borrow_mut();
        state.cursor += 1;
        change(&mut state.pods.get_mut(uid).expect("pod")["status"]["containers"][0]);
    }

    /// Starts the provider anew; with `memory` it has forgotten no pod.
    fn restart(&self, memory: bool) {
        let mut state = self.0.borrow_mut();
        state.instance += 1;
        if !memory {
            state.pods.clear();
        }
    }
}

fn lamp(uid: &str) -> Value {
    lamp_with(uid, json!({}))
}

fn lamp_with(uid: &str, more: Value) -> Value {
    let mut pod = manifest(uid, more);
    pod["spec"]["runtimeClassName"] = HANDLER.into();
    pod
}

#[test]
fn a_node_without_providers_pays_nothing_for_them() {
    assert_eq!(World::new().external_tasks(), None, "no thread, no task");
    let (with_one, _) = world();
    assert_eq!(with_one.external_tasks(), Some(1));
}

/// Makes a machine with a provider beside the runtime.
fn with_provider(provider: &Rc<FakeProvider>) -> World {
    with_providers(vec![(HANDLER, Rc::clone(provider))])
}

/// Makes a machine with providers beside the runtime, asked in this order.
fn with_providers(providers: Vec<(&'static str, Rc<FakeProvider>)>) -> World {
    World::beside(make_providers(providers))
}

fn make_providers(providers: Vec<(&'static str, Rc<FakeProvider>)>) -> MakeExternal {
    Rc::new(move |clock| {
        let wires = providers.iter().map(|(handler, fake)| {
            let wire: Box<dyn ProviderWire> = Box::new(Rc::clone(fake));
            ((*handler).to_owned(), wire)
        });
        PodProviders::new(wires.collect(), NODE, clock)
    })
}

/// Makes a world with a provider, a pod of it named `lamp`, and a pod of a container named `box`. Both run.
fn world() -> (World, Rc<FakeProvider>) {
    let provider = Rc::new(FakeProvider::default());
    let world = with_provider(&provider);
    world.apply(&[manifest("box", json!({})), lamp("lamp")]);
    runs(&world, "box");
    runs(&world, "lamp");
    provider.calls();
    world.fake.take_calls();
    (world, provider)
}

fn runs(world: &World, uid: &str) {
    world.until(uid, |w| w.phase(uid) == Some(PodPhase::Running));
}

/// Checks that no container was touched: that of the pod beside the provider's still runs.
fn box_is_untouched(world: &World) {
    let container = world.fake.container(&"box".into(), "c").expect("it runs");
    assert_eq!(container.restart_count, 0);
    assert_eq!(world.phase("box"), Some(PodPhase::Running));
}

fn condition(world: &World, kind: &str) -> String {
    let node = world.node_object();
    let all = node["status"]["conditions"].as_array().expect("conditions");
    let found = all.iter().find(|c| c["type"] == kind);
    found.map_or_else(String::new, |c| c["status"].as_str().unwrap_or("").into())
}

#[test]
fn a_pod_is_told_once_and_ends_by_the_handshake() {
    // PRVD-01 PRVD-06 PROV-01 PROV-06 PROV-07 PROV-09 PROV-10 PROV-11
    let provider = Rc::new(FakeProvider::default());
    let world = with_provider(&provider);
    world.apply(&[manifest("box", json!({})), lamp("lamp")]);
    runs(&world, "lamp");
    runs(&world, "box");
    assert_eq!(provider.calls(), ["PUT /pods/lamp"]);
    let boxes: Vec<_> = world
        .fake
        .pods()
        .iter()
        .map(|p| p.uid.to_string())
        .collect();
    assert_eq!(boxes, ["box"], "the runtime has nothing to do with it");
    world.advance(s(600));
    assert_eq!(provider.calls(), [""; 0], "nothing is said twice");

    // The pod does not end by a timer, however long its end takes.
    provider.0.borrow_mut().is_stubborn = true;
    world.apply(&[manifest("box", json!({}))]);
    world.advance(s(600));
    assert!(!world.is_gone("lamp"));
    assert!(
        provider
            .calls()
            .iter()
            .all(|call| call == "DELETE /pods/lamp")
    );
    provider.0.borrow_mut().is_stubborn = false;
    world.until("gone", |w| w.is_gone("lamp"));
    assert!(!provider.has("lamp"));
    box_is_untouched(&world);
}

#[test]
fn what_it_changes_is_heard_and_what_changes_here_is_told() {
    // PROV-02 PROV-06 PROV-11 PRVD-04
    let (world, provider) = world();
    // A change of the spec that counts, and one that does not.
    let mut pod = lamp("lamp");
    pod["metadata"]["labels"] = json!({"bright": "very"});
    world.apply(&[manifest("box", json!({})), pod.clone()]);
    world.until("told", |_| provider.calls() == ["PUT /pods/lamp"]);
    pod["spec"]["priority"] = 5.into();
    world.apply(&[manifest("box", json!({})), pod]);
    world.advance(s(60));
    assert_eq!(provider.calls(), [""; 0]);

    // With a doorbell a change is seen before the next look is due; without one it is seen then.
    world.advance(s(600));
    let lists = provider.0.borrow().lists;
    world.until("a look at the interval", |_| {
        provider.0.borrow().lists > lists
    });
    let lists = provider.0.borrow().lists;
    provider.say("lamp", |c| end(c, 3));
    world.advance(s(1));
    assert!(
        provider.0.borrow().lists > lists,
        "the doorbell was not heard"
    );
    let state = |w: &World| w.status("lamp").expect("status").container_statuses[0].clone();
    world.until("seen", |w| {
        state(w).last_state.terminated.is_some() || state(w).state.terminated.is_some()
    });
    provider.say("lamp", |c| {
        *c = container("c");
        c["restartCount"] = 1.into();
    });
    world.until("runs again", |w| {
        state(w).restart_count == 1 && state(w).state.running.is_some()
    });
    assert_eq!(provider.calls(), [""; 0], "its restarts are its own");
}

#[test]
fn everything_that_a_pod_refers_to_is_resolved() {
    // PRVD-03
    let provider = Rc::new(FakeProvider::default());
    let world = with_provider(&provider);
    let item = json!([{"path": "k", "fieldRef": {"fieldPath": "metadata.namespace"}}]);
    let more = json!({
        "volumes": [{"name": "files", "downwardAPI": {"items": item}}],
        "containers": [{
            "name": "c", "image": "none", "volumeMounts": [{"name": "files", "mountPath": "/x"}],
            "env": [
                {"name": "A", "value": "1"}, {"name": "B", "value": "$(A)2"},
                {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            ],
        }],
    });
    world.apply(&[lamp_with("lamp", more)]);
    runs(&world, "lamp");
    let told = provider.0.borrow().told[0].clone();
    let container = &told["pod"]["spec"]["containers"][0];
    let name = &told["pod"]["metadata"]["name"];
    let plain = |name: &str, value: &str| json!({"name": name, "value": value});
    let name = name.as_str().expect("name");
    assert_eq!(
        container["env"],
        json!([plain("A", "1"), plain("B", "12"), plain("POD", name)])
    );
    let path = told["volumes"]["files"]["path"].as_str().expect("path");
    assert_eq!(
        std::fs::read_to_string(format!("{path}/k")).expect("file"),
        "default"
    );
    assert_eq!(told["node"], NODE);
}

#[test]
fn objects_of_the_cluster_are_resolved_and_tokens_renewed() {
    // PRVD-03
    let (provider, api) = (
        Rc::new(FakeProvider::default()),
        Arc::new(FakeApi::default()),
    );
    for (path, object) in [
        ("runtimeclasses//lamps", json!({"handler": HANDLER})),
        ("configmaps/ns/conf", json!({"data": {"colour": "red"}})),
        (
            "secrets/ns/key",
            json!({"data": {"word": "aGk="}, "type": "Opaque"}),
        ),
        (
            "services/default/kubernetes",
            json!({"spec": {"clusterIP": "10.0.0.1", "ports": [{"name": "https", "port": 443}]}}),
        ),
        (
            "services/ns/db",
            json!({"spec": {"clusterIP": "10.0.0.2", "ports": [{"port": 5432}]}}),
        ),
    ] {
        api.put_object(path, object);
    }
    let wires = vec![(HANDLER, Rc::clone(&provider))];
    let world = World::beside_in_cluster(make_providers(wires), &api);
    world.apply(&[]);
    let lamp = |volumes: Value| {
        let names = volumes.as_array().expect("list").iter();
        let names = names.map(|volume| volume["name"].as_str().expect("name"));
        let mounts = names.map(|name| json!({"name": name, "mountPath": format!("/{name}")}));
        json!({
            "runtimeClassName": HANDLER,
            "containers": [{
                "name": "c", "image": "none", "volumeMounts": mounts.collect::<Vec<_>>(),
                "env": [
                    {"name": "COLOUR", "valueFrom": {"configMapKeyRef": {"name": "conf", "key": "colour"}}},
                    {"name": "WORD", "valueFrom": {"secretKeyRef": {"name": "key", "key": "word"}}},
                ],
            }],
            "volumes": volumes,
        })
    };
    let token = json!({"serviceAccountToken": {"path": "token", "expirationSeconds": 600}});
    let volumes = json!([
        {"name": "conf", "configMap": {"name": "conf", "defaultMode": 420}},
        {"name": "key", "secret": {"secretName": "key", "defaultMode": 420}},
        {"name": "token", "projected": {"defaultMode": 420, "sources": [token]}},
    ]);
    let uid = api.create("lamp", lamp(volumes));
    runs(&world, &uid);
    let told = provider.0.borrow().told[0].clone();
    let env = &told["pod"]["spec"]["containers"][0]["env"];
    for (name, value) in [
        ("COLOUR", "red"),
        ("WORD", "hi"),
        ("DB_SERVICE_HOST", "10.0.0.2"),
    ] {
        let wanted = json!({"name": name, "value": value});
        assert!(
            env.as_array().expect("list").contains(&wanted),
            "{name}: {env}"
        );
    }
    let file = |volume: &str, name: &str| {
        let path = told["volumes"][volume]["path"].as_str().expect("path");
        std::fs::read_to_string(format!("{path}/{name}")).expect("file")
    };
    assert_eq!(
        (&*file("conf", "colour"), &*file("key", "word")),
        ("red", "hi")
    );
    let token = file("token", "token");
    world.advance(s(590));
    assert_ne!(file("token", "token"), token, "before it expires");
    assert_eq!(provider.calls(), [format!("PUT /pods/{uid}")]);
    // A volume that the agent cannot set up keeps the pod from the provider.
    let odd = json!([{"name": "disk", "iscsi": {"targetPortal": "a", "iqn": "b", "lun": 0}}]);
    let before = world.events_of("FailedMount");
    api.create("odd", lamp(odd));
    world.until("it is told", |w| w.events_of("FailedMount") > before);
    assert_eq!(provider.calls(), [""; 0]);
}

#[test]
fn nothing_is_done_before_the_first_whole_list() {
    // PROV-03 PRVD-04 PRVD-07
    for mood in [Mood::Silent, Mood::Slow, Mood::Broken] {
        let provider = Rc::new(FakeProvider::default());
        provider.mood(mood);
        let world = with_provider(&provider);
        world.apply(&[manifest("box", json!({})), lamp("lamp")]);
        runs(&world, "box");
        world.advance(s(120));
        assert_eq!(provider.calls(), [""; 0], "{mood:?}");
        assert_ne!(world.phase("lamp"), Some(PodPhase::Running), "{mood:?}");
        assert!(world.events_of("ProviderNotReady") > 0, "{mood:?}");
        assert_eq!(condition(&world, "ProviderReady"), "False", "{mood:?}");
        assert_eq!(condition(&world, "Ready"), "True", "{mood:?}");
        provider.mood(Mood::Good);
        runs(&world, "lamp");
        assert_eq!(condition(&world, "ProviderReady"), "True", "{mood:?}");
    }
}

#[test]
fn silence_changes_nothing_but_that_new_pods_wait() {
    // PRVD-07 PROV-05
    for mood in [Mood::Silent, Mood::Slow, Mood::Broken, Mood::Repeats] {
        let (world, provider) = world();
        let before = world.status("lamp");
        provider.mood(mood);
        world.advance(s(30));
        world.apply(&[
            manifest("box", json!({})),
            lamp("lamp"),
            lamp("new"),
            manifest("box2", json!({})),
        ]);
        runs(&world, "box2");
        world.advance(s(300));
        assert_eq!(world.status("lamp"), before, "{mood:?}");
        assert_eq!(condition(&world, "ProviderReady"), "False", "{mood:?}");
        assert_eq!(condition(&world, "Ready"), "True", "{mood:?}");
        if mood != Mood::Repeats {
            // A pod that cannot be handed over is not lost: it is handed over as soon as the provider answers.
            assert_eq!(world.phase("new"), Some(PodPhase::Pending), "{mood:?}");
            world.apply(&[
                manifest("box", json!({})),
                lamp("new"),
                manifest("box2", json!({})),
            ]);
            world.advance(s(300));
            assert!(!world.is_gone("lamp"), "{mood:?}");
        }
        provider.mood(Mood::Good);
        runs(&world, "new");
        if mood != Mood::Repeats {
            world.until("gone", |w| w.is_gone("lamp"));
        }
        box_is_untouched(&world);
    }
}

#[test]
fn one_that_starts_anew_is_told_again() {
    // PRVD-07
    for memory in [true, false] {
        let (world, provider) = world();
        let before = world.status("lamp");
        provider.restart(memory);
        world.advance(s(30));
        let wanted: &[&str] = if memory { &[] } else { &["PUT /pods/lamp"] };
        assert_eq!(provider.calls(), wanted);
        assert_eq!(world.status("lamp"), before);
        assert!(provider.has("lamp"));
        box_is_untouched(&world);
    }
}

#[test]
fn one_that_has_forgotten_how_often_containers_ran_counts_anew() {
    // PRVD-05 PRVD-07
    let (world, provider) = world();
    let count = |w: &World| w.status("lamp").expect("status").container_statuses[0].restart_count;
    provider.say("lamp", |c| c["restartCount"] = 3.into());
    world.until("three restarts", |w| count(w) == 3);
    provider.restart(false);
    world.until("told again", |_| provider.has("lamp"));
    // The cluster's count of restarts goes on. The provider's status is believed.
    provider.say("lamp", |c| end(c, 7));
    world.until("its end", |w| {
        let status = w.status("lamp").expect("status").container_statuses[0].clone();
        let ends = [status.state.terminated, status.last_state.terminated];
        ends.iter().flatten().any(|end| end.exit_code == 7)
    });
    assert!(count(&world) >= 3);
    assert_eq!(world.events_of("ProviderStatusInvalid"), 0);
    box_is_untouched(&world);
}

#[test]
fn a_pod_between_two_runs_is_told_to_stop_and_waited_for() {
    // PRVD-06
    let (world, provider) = world();
    provider.say("lamp", |c| end(c, 1));
    world.until("seen", |w| {
        let status = w.status("lamp").expect("status");
        status.container_statuses[0].state.running.is_none()
    });
    // The container runs once more when the stop is told, and does not end.
    let mut state = provider.0.borrow_mut();
    let pod = state.pods.get_mut("lamp").expect("pod");
    pod["status"]["containers"][0] = container("c");
    pod["status"]["containers"][0]["restartCount"] = 1.into();
    state.is_stubborn = true;
    drop(state);
    world.apply(&[manifest("box", json!({}))]);
    world.advance(s(300));
    assert!(!world.is_gone("lamp"), "it still runs");
    assert!(provider.calls().contains(&"DELETE /pods/lamp".to_owned()));
    provider.0.borrow_mut().is_stubborn = false;
    world.until("gone", |w| w.is_gone("lamp"));
    assert!(!provider.has("lamp"));
    box_is_untouched(&world);
}

#[test]
fn one_without_lists_is_not_told_of_an_end_all_the_time() {
    // PRVD-06 PRVD-07
    let (world, provider) = world();
    provider.mood(Mood::NoLists);
    provider.0.borrow_mut().is_stubborn = true;
    world.apply(&[manifest("box", json!({}))]);
    world.advance(s(100));
    let told = provider.calls().len();
    assert!((2..=20).contains(&told), "told {told} times in 100 s");
    provider.0.borrow_mut().is_stubborn = false;
    provider.mood(Mood::Good);
    world.until("gone", |w| w.is_gone("lamp"));
    box_is_untouched(&world);
}

#[test]
fn a_provider_takes_no_pod_of_others() {
    // PRVD-05 PROV-04
    let (world, provider) = world();
    let claim = |uid: &str| {
        let mut pod = provider.0.borrow().pods["lamp"].clone();
        pod["uid"] = uid.into();
        let mut state = provider.0.borrow_mut();
        state.cursor += 1;
        state.pods.insert(uid.into(), pod);
    };
    claim("box");
    world.advance(s(60));
    box_is_untouched(&world);
    world.apply(&[lamp("lamp")]);
    world.until("ended where it runs", |w| w.is_gone("box"));
    let left = world.fake.pods();
    assert!(
        !left.iter().any(|pod| pod.uid.as_str() == "box"),
        "its container runs on"
    );
    // A text that cannot be a UID makes the whole list invalid.
    claim("../lamp");
    world.until("it is not believed", |w| {
        condition(w, "ProviderReady") == "False"
    });
    assert_eq!(world.phase("lamp"), Some(PodPhase::Running));
}

#[test]
fn a_provider_takes_no_pod_of_another_one() {
    // PRVD-05 PROV-05
    let (rogue, provider) = (
        Rc::new(FakeProvider::default()),
        Rc::new(FakeProvider::default()),
    );
    let both = [("candles", &rogue), (HANDLER, &provider)];
    let both = both.map(|(handler, of)| (handler, Rc::clone(of)));
    let world = with_providers(both.into());
    world.apply(&[lamp("lamp")]);
    runs(&world, "lamp");
    let mut claimed = provider.0.borrow().pods["lamp"].clone();
    end(&mut claimed["status"]["containers"][0], 9);
    let mut state = rogue.0.borrow_mut();
    state.cursor += 1;
    state.pods.insert("lamp".into(), claimed);
    drop(state);
    provider.calls();
    world.advance(s(60));
    assert_eq!(world.phase("lamp"), Some(PodPhase::Running));
    world.apply(&[]);
    world.until("ended where it runs", |w| w.is_gone("lamp"));
    assert!(!provider.has("lamp"));
    world.until("and where it never ran", |_| !rogue.has("lamp"));
}

#[test]
fn what_it_forgets_has_failed() {
    // PRVD-07
    let (world, provider) = world();
    provider.0.borrow_mut().pods.clear();
    let lists = provider.0.borrow().lists;
    world.until("one list without it", |_| {
        provider.0.borrow().lists == lists + 1
    });
    assert_eq!(
        world.phase("lamp"),
        Some(PodPhase::Running),
        "once is not enough"
    );
    world.until("failed", |w| w.phase("lamp") == Some(PodPhase::Failed));
    let status = world.status("lamp").expect("status");
    assert_eq!(status.reason, "NotFound");
    world.advance(s(300));
    let calls = provider.calls();
    assert!(
        !calls.iter().any(|call| call.starts_with("PUT")),
        "{calls:?}"
    );
    assert_eq!(world.phase("lamp"), Some(PodPhase::Failed));
    box_is_untouched(&world);
}

#[test]
fn lies_are_not_believed() {
    // PRVD-05
    type Lie = fn(&mut Value);
    let lies: [(&str, Lie); 8] = [
        ("a foreign container", |c| c["name"] = "other".into()),
        ("no state", |c| c["state"] = "glowing".into()),
        ("no time", |c| c["startedAt"] = "yesterday".into()),
        ("not yet", |c| {
            c["startedAt"] = "2033-01-01T00:00:00Z".into()
        }),
        ("backwards", |c| {
            end(c, 0);
            c["finishedAt"] = "2003-01-01T00:00:00Z".into();
        }),
        ("an end without a time", |c| {
            c["state"] = "terminated".into()
        }),
        ("too long", |c| c["message"] = "x".repeat(5000).into()),
        ("a running one that finished", |c| {
            c["finishedAt"] = THEN.into()
        }),
    ];
    for (name, lie) in lies {
        let (world, provider) = world();
        let before = world.status("lamp");
        let good = provider.0.borrow().pods["lamp"].clone();
        provider.say("lamp", lie);
        world.advance(s(60));
        assert_eq!(world.status("lamp"), before, "{name}");
        assert_eq!(
            world.events_of("ProviderStatusInvalid"),
            1,
            "{name}: told once"
        );
        assert_eq!(condition(&world, "ProviderReady"), "True", "{name}");
        provider.0.borrow_mut().pods.insert("lamp".into(), good);
        provider.say("lamp", |c| end(c, 0));
        world.until(name, |w| {
            let status = w.status("lamp").expect("status");
            status.container_statuses[0].state.running.is_none()
        });
        box_is_untouched(&world);
    }
}

#[test]
fn what_has_ended_stays_so() {
    // PRVD-05 PROV-08 PROV-11
    let provider = Rc::new(FakeProvider::default());
    let world = with_provider(&provider);
    world.apply(&[lamp_with("job", json!({"restartPolicy": "Never"}))]);
    runs(&world, "job");
    provider.say("job", |c| end(c, 0));
    world.until("succeeded", |w| w.phase("job") == Some(PodPhase::Succeeded));
    world.advance(s(60));
    assert_eq!(
        provider.calls(),
        ["PUT /pods/job"],
        "it is left where it is, for its logs"
    );
    // Neither its provider nor a new agent begins the pod again.
    provider.restart(false);
    world.advance(s(60));
    let world = world.restart_agent();
    world.apply(&[lamp_with("job", json!({"restartPolicy": "Never"}))]);
    world.advance(s(60));
    assert_eq!(world.phase("job"), Some(PodPhase::Succeeded));
    let calls = provider.calls();
    assert!(
        !calls.iter().any(|call| call.starts_with("PUT")),
        "{calls:?}"
    );
}

#[test]
fn what_has_ended_is_kept_until_its_object_goes() {
    // PRVD-10 PROV-08
    let (world, provider) = world();
    let all = || {
        [
            manifest("box", json!({})),
            lamp("lamp"),
            lamp_with("job", json!({"restartPolicy": "Never"})),
        ]
    };
    world.apply(&all());
    runs(&world, "job");
    provider.say("job", |c| end(c, 3));
    world.until("failed", |w| w.phase("job") == Some(PodPhase::Failed));
    provider.calls();
    world.advance(s(600));
    let world = world.restart_agent();
    world.apply(&all());
    world.advance(s(600));
    assert_eq!(provider.calls(), [""; 0]);
    assert!(provider.has("job"));
    // A later status that differs does not count.
    provider.say("job", |c| *c = container("c"));
    world.advance(s(60));
    assert_eq!(world.phase("job"), Some(PodPhase::Failed));
    provider.say("job", |c| end(c, 3));
    world.apply(&[manifest("box", json!({})), lamp("lamp")]);
    world.until("removed", |_| !provider.has("job"));
    let calls = provider.calls();
    assert!(
        calls.iter().all(|call| call == "DELETE /pods/job"),
        "{calls:?}"
    );
    box_is_untouched(&world);
}

#[test]
fn pods_that_nobody_wants_are_ended_and_those_of_others_are_not() {
    // PROV-04 PROV-05 PRVD-04
    let provider = Rc::new(FakeProvider::default());
    let pod = |uid: &str, node: &str| {
        json!({"uid": uid, "node": node, "generation": "1", "namespace": "default", "name": uid,
            "status": {"containers": [container("c")]}})
    };
    for (uid, node) in [("dangling", NODE), ("foreign", "other-node")] {
        provider
            .0
            .borrow_mut()
            .pods
            .insert(uid.into(), pod(uid, node));
    }
    let world = with_provider(&provider);
    world.advance(s(60));
    assert_eq!(provider.calls(), [""; 0], "before the sources have spoken");
    world.apply(&[lamp("lamp")]);
    runs(&world, "lamp");
    world.until("ended", |_| !provider.has("dangling"));
    world.advance(s(60));
    assert!(provider.has("foreign") && provider.has("lamp"));
}

#[test]
fn an_agent_that_starts_tells_nothing_again_and_ends_what_went_meanwhile() {
    // PROV-06 PRVD-04
    let (world, provider) = world();
    world.apply(&[manifest("box", json!({})), lamp("lamp"), lamp("other")]);
    runs(&world, "other");
    provider.calls();
    let world = world.restart_agent();
    world.apply(&[manifest("box", json!({})), lamp("lamp")]);
    runs(&world, "lamp");
    world.until("ended", |_| !provider.has("other"));
    world.advance(s(60));
    let calls = provider.calls();
    assert!(
        calls.iter().all(|call| call == "DELETE /pods/other"),
        "{calls:?}"
    );

    // The provider is silent when the agent starts and the pod goes: the pod is ended there once the provider answers.
    provider.mood(Mood::Silent);
    let world = world.restart_agent();
    world.apply(&[manifest("box", json!({}))]);
    world.advance(s(300));
    assert!(provider.has("lamp"));
    provider.mood(Mood::Good);
    world.until("ended", |_| !provider.has("lamp"));
    box_is_untouched(&world);
}

#[test]
fn what_is_not_there_any_more_has_ended() {
    // PROV-01 PROV-07
    let (world, provider) = world();
    provider.0.borrow_mut().pods.clear();
    world.apply(&[manifest("box", json!({}))]);
    world.until("gone", |w| w.is_gone("lamp"));
    let calls = provider.calls();
    assert!(
        !calls.is_empty() && calls.iter().all(|call| call == "DELETE /pods/lamp"),
        "{calls:?}"
    );
    box_is_untouched(&world);
}

#[test]
fn what_is_too_large_is_not_told() {
    // PRVD-02
    let provider = Rc::new(FakeProvider::default());
    let world = with_provider(&provider);
    let long = "x".repeat(MAX_POD_BYTES);
    let env = json!([{"name": "LONG", "value": long}]);
    let more = json!({"containers": [{"name": "c", "image": "none", "env": env}]});
    world.apply(&[manifest("box", json!({})), lamp_with("lamp", more)]);
    runs(&world, "box");
    world.until("refused", |w| {
        w.waiting("lamp").as_deref() == Some("ProviderFailed")
    });
    world.advance(s(300));
    assert_eq!(provider.calls(), [""; 0]);
}

#[test]
fn a_refusal_is_shown_and_tried_again() {
    // PROV-06 PROV-12
    let provider = Rc::new(FakeProvider::default());
    provider.mood(Mood::Refuses);
    let world = with_provider(&provider);
    world.apply(&[manifest("box", json!({})), lamp("lamp")]);
    world.until("refused", |w| {
        w.waiting("lamp").as_deref() == Some("ProviderFailed")
    });
    assert_eq!(world.phase("lamp"), Some(PodPhase::Pending));
    assert!(world.events_of("ProviderFailed") > 0);
    let calls = provider.calls().len();
    world.advance(s(300));
    assert!(provider.calls().len() > calls, "it is tried again");
    provider.mood(Mood::Good);
    runs(&world, "lamp");
    runs(&world, "box");
}
