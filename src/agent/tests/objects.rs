//! Pods of an apiserver and the objects that they refer to: read when they are due, followed when they change, used as
//! they were while the apiserver does not answer.

use alloc::{rc::Rc, sync::Arc};
use core::time::Duration;
use std::{fs, path::PathBuf};

use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use picolet_test_apiserver::TestServer;
use serde_json::{Value, json};

use super::{
    api::{FakeApi, Link},
    api_objects::Trouble,
    member,
    world::{IMAGE, NODE, World, fault, manifest},
};
use crate::{
    agent::images::{ImageCommands, ImageFuture, ImageStock, NodeKeyring},
    api::{PodError, PodUid, WallTime, cri::AuthConfig, pod_status::PodPhase, stats::StatsDetail},
    image::{
        pull::{AccountPlugin, PluginAccount, PullSettings, RegistryAuths, TokenAttributes},
        registry::RegistryCredential,
    },
    logic::object_table::TTL_ANNOTATION,
    runtime::{
        ImageService as _, RuntimeError,
        fake::{Op, Trouble as FakeTrouble},
        runc::store_images::StoreImages,
    },
    server::backend::MetricsEndpoint,
    sys::lane::Lane,
};

/// `aGk=`
const HI: &str = "hi";

fn cluster() -> (World, Arc<FakeApi>) {
    let api = Arc::new(FakeApi::default());
    api.put_object(
        "services/default/kubernetes",
        json!({"spec": {"clusterIP": "10.0.0.1", "ports": [{"name": "https", "port": 443}]}}),
    );
    let world = World::with_api(&api);
    world.apply(&[]);
    (world, api)
}

fn config_map(text: &str) -> Value {
    json!({"data": {"key": text}})
}

fn secret() -> Value {
    json!({"data": {"key": "aGk="}, "type": "Opaque"})
}

/// Pod spec with one container that mounts these volumes, each below its name.
fn mounting(volumes: &[Value]) -> Value {
    let mounts: Vec<_> = volumes
        .iter()
        .map(|v| json!({"name": v["name"], "mountPath": format!("/{}", v["name"])}))
        .collect();
    json!({"volumes": volumes, "containers": [
        {"name": "c", "image": IMAGE, "command": ["sleep"], "volumeMounts": mounts}]})
}

fn config_volume(optional: bool) -> Value {
    json!({"name": "v", "configMap": {"name": "cm", "defaultMode": 420, "optional": optional}})
}

fn token_volume(seconds: i64) -> Value {
    let token = json!({"serviceAccountToken": {"path": "token", "expirationSeconds": seconds}});
    json!({"name": "t", "projected": {"defaultMode": 420, "sources": [token]}})
}

/// A Secret to pull images with.
fn pull_secret(uid: &str, password: &str) -> Value {
    let auths =
        format!(r#"{{"auths":{{"registry.test":{{"username":"u","password":"{password}"}}}}}}"#);
    let text = STANDARD.encode(auths);
    json!({"type": "kubernetes.io/dockerconfigjson", "data": {".dockerconfigjson": text}, "metadata": {"uid": uid}})
}

/// Pod spec with one container whose image is pulled with these Secrets.
fn pulling(secrets: &[&str], policy: &str) -> Value {
    let named: Vec<_> = secrets.iter().map(|name| json!({"name": name})).collect();
    json!({"imagePullSecrets": named, "containers": [
        {"name": "c", "image": IMAGE, "command": ["sleep"], "imagePullPolicy": policy}]})
}

fn file(world: &World, uid: &str, path: &str) -> Option<String> {
    let base = world.parts.machine.volumes.pod_dir(&PodUid::from(uid));
    fs::read_to_string(base.join("volumes").join(path)).ok()
}

const CONFIG_FILE: &str = "kubernetes.io~configmap/v/key";
const TOKEN_FILE: &str = "kubernetes.io~projected/t/token";

/// Files in the directory of copies.
fn copies(world: &World) -> Vec<PathBuf> {
    let dir = world.parts.cfg.dirs.root.join("objects");
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|e| e.path()).collect()
}

fn runs(world: &World, uid: &str) {
    world.until("runs", |w| w.phase(uid) == Some(PodPhase::Running));
}

/// Creates a pod, and waits until it runs.
fn run(world: &World, api: &FakeApi, name: &str, spec: Value) -> String {
    let uid = api.create(name, spec);
    runs(world, &uid);
    uid
}

/// Deletes a pod as a user does.
fn end(world: &World, api: &FakeApi, name: &str, uid: &str) {
    api.delete(name);
    world.until("is gone", |w| {
        w.is_gone(uid) && api.get("ns", name).is_none()
    });
}

fn asked(api: &FakeApi, what: &str) -> usize {
    let calls = api.take_asked();
    calls.iter().filter(|call| call.starts_with(what)).count()
}

/// Seconds in which each running pod is synced at least once.
const SYNC: Duration = Duration::from_secs(100);

const fn s(n: u64) -> Duration {
    Duration::from_secs(n)
}

#[test]
fn a_config_map_is_followed_and_never_emptied_by_trouble() {
    // OBJ-03 OBJ-04 OBJ-06 VOL-07 VOL-08
    let (world, api) = cluster();
    api.put_object("configmaps/ns/cm", config_map("one"));
    let uid = run(&world, &api, "a", mounting(&[config_volume(true)]));
    let text = |w: &World| file(w, &uid, CONFIG_FILE);
    assert_eq!(text(&world).as_deref(), Some("one"));
    assert_eq!(asked(&api, "configmaps/ns/cm"), 1);
    api.put_object("configmaps/ns/cm", config_map("two"));
    world.until("follows", |w| text(w).as_deref() == Some("two"));
    for trouble in [
        Trouble::Silent,
        Trouble::Refuses(500),
        Trouble::Refuses(403),
        // The 404 comes from a proxy that does not know the path.
        Trouble::Refuses(404),
    ] {
        api.trouble("configmaps/", 1000, trouble);
        api.take_asked();
        world.advance(SYNC);
        assert_eq!(text(&world).as_deref(), Some("two"), "{trouble:?}");
        assert!(asked(&api, "configmaps/") > 0, "{trouble:?}");
        api.heal();
    }
    // The ConfigMap is gone: an optional source is empty from then on.
    api.remove_object("configmaps/ns/cm");
    world.until("is emptied", |w| text(w).is_none());
    assert_eq!(world.phase(&uid), Some(PodPhase::Running));
    api.put_object("configmaps/ns/cm", config_map("three"));
    world.until("comes back", |w| text(w).as_deref() == Some("three"));
}

#[test]
fn a_pod_waits_for_what_it_requires() {
    // VOL-07 VOL-27 VOL-28 OBJ-02
    let (world, api) = cluster();
    let volumes = [
        config_volume(false),
        json!({"name": "w", "secret": {"secretName": "s", "defaultMode": 420}}),
        json!({"name": "e", "emptyDir": {}}),
    ];
    let uid = api.create("a", mounting(&volumes));
    let told = |w: &World, volume: &str| -> u32 {
        let text = format!("MountVolume.SetUp failed for volume \"{volume}\" : ");
        let all = w.parts.tools.recorder.newest_events(None, usize::MAX);
        let of = all
            .iter()
            .filter(|e| e.reason == "FailedMount" && e.message.starts_with(&text));
        of.map(|e| e.count).sum()
    };
    // Each sync tries each of them, and tells of each that failed.
    world.until("both are told again", |w| {
        told(w, "v") > 1 && told(w, "w") > 1
    });
    let all = told(&world, "v") + told(&world, "w");
    assert_eq!(world.events_of("FailedMount"), all, "and of nothing else");
    let empty = world.parts.machine.volumes.pod_dir(&PodUid::from(&*uid));
    assert!(empty.join("volumes/kubernetes.io~empty-dir/e").is_dir());
    api.put_object("secrets/ns/s", secret());
    world.advance(SYNC);
    assert_eq!(world.waiting(&uid).as_deref(), Some("ContainerCreating"));
    let calls = world.fake.take_calls();
    assert!(calls.iter().all(|(op, _)| *op != Op::CreateContainer));
    api.put_object("configmaps/ns/cm", config_map("one"));
    runs(&world, &uid);
    assert!(!copies(&world).is_empty());
    // The files of a required source stay.
    api.remove_object("configmaps/ns/cm");
    world.advance(SYNC + SYNC);
    assert_eq!(file(&world, &uid, CONFIG_FILE).as_deref(), Some("one"));
    end(&world, &api, "a", &uid);
    assert_eq!(
        copies(&world),
        Vec::<PathBuf>::new(),
        "nothing is kept of what nobody needs"
    );
}

#[test]
fn a_volume_of_a_csi_driver_is_refused_by_name() {
    // VOL-20 VOL-27
    let (world, api) = cluster();
    let volume = json!({"name": "v", "csi": {"driver": "d"}});
    let uid = api.create("a", mounting(&[volume]));
    world.until("is told", |w| w.events_of("FailedMount") > 1);
    let all = world.parts.tools.recorder.newest_events(None, usize::MAX);
    let told = all.iter().find(|e| e.reason == "FailedMount");
    assert_eq!(
        told.expect("told").message,
        "MountVolume.SetUp failed for volume \"v\" : volumes of type \"csi\" are not supported by this agent"
    );
    assert_eq!(world.waiting(&uid).as_deref(), Some("ContainerCreating"));
    let calls = world.fake.take_calls();
    assert!(calls.iter().all(|(op, _)| *op != Op::CreateContainer));
}

#[test]
fn an_environment_waits_for_its_objects() {
    // ENV-03 ENV-07 OBJ-01
    let (world, api) = cluster();
    let from = |name: &str, optional| json!({"name": name, "key": "key", "optional": optional});
    let container = json!({"name": "c", "image": IMAGE, "command": ["sleep"], "env": [
        {"name": "X", "valueFrom": {"secretKeyRef": from("s", false)}},
        {"name": "Y", "valueFrom": {"configMapKeyRef": from("none", true)}}]});
    let uid = api.create("a", json!({"containers": [container]}));
    let waits = |w: &World| w.waiting(&uid).as_deref() == Some("CreateContainerConfigError");
    // An object that cannot be read does not count as absent, even if it is optional.
    api.trouble("configmaps/", 1000, Trouble::Refuses(403));
    world.until("waits", waits);
    api.put_object("secrets/ns/s", secret());
    world.advance(SYNC);
    assert!(waits(&world));
    api.heal();
    runs(&world, &uid);
    let config = world.fake.config(&PodUid::from(&*uid), "c").expect("made");
    let value = |name: &str| {
        let found = config.env.iter().find(|(n, _)| n == name);
        found.map(|(_, value)| value.clone())
    };
    assert_eq!(value("X").as_deref(), Some(HI));
    assert_eq!(value("Y"), None);
    assert_eq!(
        value("KUBERNETES_SERVICE_HOST").as_deref(),
        Some("10.0.0.1")
    );
}

#[test]
fn environments_wait_for_services() {
    // ENV-07 ENV-09
    let (world, api) = cluster();
    api.trouble("services/", 1000, Trouble::Refuses(500));
    let uid = api.create("a", json!({}));
    world.until("waits", |w| {
        w.waiting(&uid).as_deref() == Some("CreateContainerConfigError")
    });
    api.heal();
    api.put_object(
        "services/ns/my-db",
        json!({"spec": {"clusterIP": "10.0.0.2", "ports": [{"port": 5432}]}}),
    );
    runs(&world, &uid);
    let config = world.fake.config(&PodUid::from(&*uid), "c").expect("made");
    let has = |name: &str, value: &str| config.env.iter().any(|(n, v)| n == name && v == value);
    assert!(has("MY_DB_SERVICE_PORT", "5432") && has("KUBERNETES_SERVICE_PORT_HTTPS", "443"));
    // A pod is told of the services that existed when it came, with one request a pod.
    api.put_object(
        "services/ns/new",
        json!({"spec": {"clusterIP": "10.0.0.3", "ports": [{"port": 1}]}}),
    );
    api.take_asked();
    let uid = run(&world, &api, "b", json!({}));
    let config = world.fake.config(&PodUid::from(&*uid), "c").expect("made");
    assert!(config.env.iter().any(|(n, _)| n == "NEW_SERVICE_HOST"));
    assert_eq!(asked(&api, "services/"), 1);
}

#[test]
fn the_authorizer_may_learn_late_of_a_pod() {
    // AUTHZ-08
    let (world, api) = cluster();
    api.put_object("configmaps/ns/cm", config_map("one"));
    api.trouble("configmaps/", 2, Trouble::Refuses(403));
    api.trouble("tokens/", 2, Trouble::Refuses(403));
    let volumes = [config_volume(false), token_volume(3600)];
    run(&world, &api, "a", mounting(&volumes));
    assert_eq!(world.events_of("FailedMount"), 0);
}

#[test]
fn what_cannot_change_is_read_once() {
    // OBJ-05
    let (world, api) = cluster();
    let mut fixed = config_map("one");
    fixed["immutable"] = true.into();
    api.put_object("configmaps/ns/cm", fixed);
    for name in ["a", "b"] {
        run(&world, &api, name, mounting(&[config_volume(false)]));
        world.advance(s(300));
    }
    assert_eq!(asked(&api, "configmaps/"), 1);
}

#[test]
fn tokens_are_replaced_in_time_and_go_with_the_pod() {
    // TOK-01 TOK-02 TOK-03 TOK-04
    let (world, api) = cluster();
    let uid = run(&world, &api, "a", mounting(&[token_volume(600)]));
    let token = |w: &World| file(w, &uid, TOKEN_FILE);
    let first = token(&world).expect("token");
    world.advance(s(300));
    assert_eq!(token(&world).as_ref(), Some(&first));
    assert_eq!(asked(&api, "tokens/ns/default"), 1);
    world.advance(s(290));
    let second = token(&world).expect("token");
    assert_ne!(first, second, "before it expires");
    assert_eq!(asked(&api, "tokens/"), 1);
    // Another agent reads the token from its file, and requests no new one before it is due.
    let world = world.restart_agent();
    world.apply(&[]);
    world.advance(SYNC);
    assert_eq!(token(&world).as_ref(), Some(&second));
    assert_eq!(asked(&api, "tokens/"), 0);
    // A token that cannot be replaced goes on in use, and stays when it has expired.
    api.trouble("tokens/", 1000, Trouble::Refuses(500));
    world.advance(s(900));
    assert_eq!(token(&world).as_ref(), Some(&second));
    assert!(world.events_of("FailedMount") > 0, "it has expired");
    api.heal();
    world.until("is replaced", |w| token(w).as_ref() != Some(&second));
    let kept = |w: &World| {
        let name = |path: &PathBuf| path.display().to_string();
        copies(w)
            .iter()
            .filter(|p| name(p).contains("/token-"))
            .count()
    };
    assert_eq!(kept(&world), 1, "the first");
    end(&world, &api, "a", &uid);
    assert_eq!(kept(&world), 0);
    // A new pod with the same name gets a token of its own.
    let again = run(&world, &api, "a", mounting(&[token_volume(600)]));
    assert_ne!(file(&world, &again, TOKEN_FILE), Some(second));
}

#[test]
fn what_a_crash_left_goes_although_a_pod_has_ended() {
    // OBJ-02
    let (world, api) = cluster();
    api.put_object("configmaps/ns/cm", config_map(HI));
    let mut spec = mounting(&[config_volume(false)]);
    run(&world, &api, "stays", spec.clone());
    spec["restartPolicy"] = "Never".into();
    let uid = run(&world, &api, "ended", spec);
    let container = world.fake.container(&PodUid::from(uid.as_str()), "c");
    assert!(world.fake.exit(&container.expect("runs").id, 0));
    world.until("has ended", |_| api.phase("ended") == "Succeeded");
    let left = world.parts.cfg.dirs.root.join("objects/secret-left");
    fs::write(&left, "").expect("left");
    world.until("is looked for", |_| !left.exists());
    let kept = copies(&world);
    let of_map = |path: &&PathBuf| path.display().to_string().contains("configmap-");
    assert_eq!(kept.iter().filter(of_map).count(), 1, "{kept:?}");
}

#[test]
fn a_clock_that_is_set_does_not_outdate_tokens() {
    // TOK-03
    let (world, api) = cluster();
    let uid = run(&world, &api, "a", mounting(&[token_volume(3600)]));
    let first = file(&world, &uid, TOKEN_FILE).expect("token");
    assert_eq!(asked(&api, "tokens/"), 1);
    // The age of a token that this agent asked for does not depend on the time of day.
    for by_s in [-7200, 14_400, -7200] {
        world.jump_clock(by_s);
        world.advance(SYNC);
    }
    assert_eq!(asked(&api, "tokens/"), 0);
    // The age of a token that another agent asked for is taken from the clock: once that is right, the token is
    // replaced in time.
    world.jump_clock(-1_000_000_000);
    let world = world.restart_agent();
    world.apply(&[]);
    world.advance(s(2400));
    assert_eq!(file(&world, &uid, TOKEN_FILE), Some(first.clone()));
    world.jump_clock(1_000_000_000);
    world.advance(s(300));
    assert_ne!(file(&world, &uid, TOKEN_FILE), Some(first));
    assert_eq!(asked(&api, "tokens/"), 1);
}

#[test]
fn a_clock_that_is_set_while_nobody_answers_ends_no_token() {
    // TIME-04 TOK-04 OFF-02
    const YEAR_S: i64 = 365 * 86_400;
    let api = Arc::new(FakeApi::default());
    let world = World::with_wrong_clock(-50 * YEAR_S, &api);
    world.apply(&[]);
    let uid = run(&world, &api, "a", mounting(&[token_volume(YEAR_S)]));
    let first = file(&world, &uid, TOKEN_FILE).expect("token");
    // Another agent knows only the token's own dates: it was issued days ago, and is to be replaced.
    let world = world.restart_agent();
    world.apply(&[]);
    let cluster = world.parts.owners.cluster.as_ref().expect("a cluster");
    let later = WallTime::from_unix_seconds(world.true_wall().unix_seconds() + 3 * 86_400);
    cluster.take_server_date(later, world.now());
    api.set_link(Link::Down);
    asked(&api, "tokens/");
    for by_s in [50 * YEAR_S, 20 * YEAR_S, -70 * YEAR_S] {
        world.jump(by_s);
        world.advance(s(300));
        assert_eq!(file(&world, &uid, TOKEN_FILE).as_ref(), Some(&first));
        assert_eq!(world.events_of("FailedMount"), 0, "{by_s}");
    }
    api.set_link(Link::Up);
    world.until("is replaced", |w| {
        file(w, &uid, TOKEN_FILE).as_ref() != Some(&first)
    });
}

#[test]
fn a_boot_without_the_apiserver_uses_what_was_known() {
    // OFF-02 OFF-08 OBJ-04
    let (world, api) = cluster();
    api.put_object("configmaps/ns/cm", config_map("one"));
    api.put_object("secrets/ns/s", secret());
    let volumes = [
        config_volume(false),
        json!({"name": "s", "secret": {"secretName": "s", "defaultMode": 420}}),
        json!({"name": "o", "secret": {"secretName": "none", "defaultMode": 420, "optional": true}}),
        token_volume(3600),
    ];
    let uid = run(&world, &api, "a", mounting(&volumes));
    let token = file(&world, &uid, TOKEN_FILE);
    world.advance(s(60));
    api.set_link(Link::Down);
    let world = world.reboot();
    world.apply(&[]);
    world.until("runs again", |w| w.fake.runs(&PodUid::from(&*uid)));
    assert_eq!(file(&world, &uid, CONFIG_FILE).as_deref(), Some("one"));
    assert_eq!(
        file(&world, &uid, "kubernetes.io~secret/s/key").as_deref(),
        Some(HI)
    );
    assert_eq!(file(&world, &uid, TOKEN_FILE), token);
    // The apiserver is back: changes that were made meanwhile are followed.
    api.put_object("configmaps/ns/cm", config_map("two"));
    world.advance(s(600));
    api.set_link(Link::Up);
    world.until("follows", |w| {
        file(w, &uid, CONFIG_FILE).as_deref() == Some("two")
    });
    // A pod waits for an object that was never known.
    api.trouble("", u32::MAX, Trouble::Silent);
    let other = json!({"name": "v", "configMap": {"name": "other", "defaultMode": 420}});
    let uid = api.create("b", mounting(&[other]));
    world.until("is told", |w| w.events_of("FailedMount") > 0);
    assert_eq!(world.phase(&uid), Some(PodPhase::Pending));
    api.take_asked();
    world.advance(s(600));
    let questions = api.take_asked().len();
    assert!(questions <= 61, "{questions} questions to nobody");
}

#[test]
fn secrets_may_be_kept_in_memory_only() {
    // OFF-02: offlineSecrets
    let api = Arc::new(FakeApi::default());
    api.put_object("configmaps/ns/cm", config_map("one"));
    api.put_object("secrets/ns/s", secret());
    let world = World::with_flags_and_api(&["--offline-secrets=memory"], &api);
    world.apply(&[]);
    let secret = json!({"name": "s", "secret": {"secretName": "s", "defaultMode": 420}});
    let plain = run(&world, &api, "plain", mounting(&[config_volume(false)]));
    let secretive = run(&world, &api, "secretive", mounting(&[secret]));
    world.advance(s(60));
    let name = |path: PathBuf| path.display().to_string();
    assert!(
        copies(&world)
            .into_iter()
            .all(|p| !name(p).contains("secret-"))
    );
    api.set_link(Link::Down);
    let world = world.reboot();
    world.apply(&[]);
    world.until("runs again", |w| w.fake.runs(&PodUid::from(&*plain)));
    world.until("is told", |w| w.events_of("FailedMount") > 0);
    api.set_link(Link::Up);
    world.until("runs again", |w| w.fake.runs(&PodUid::from(&*secretive)));
}

#[test]
fn one_read_serves_many_pods() {
    // OBJ-03
    let (world, api) = cluster();
    api.put_object("configmaps/ns/cm", config_map("one"));
    let create = |n: u32| api.create(&format!("p{n}"), mounting(&[config_volume(false)]));
    let uids: Vec<_> = (0..20).map(create).collect();
    uids.iter().for_each(|uid| runs(&world, uid));
    assert_eq!(asked(&api, "configmaps/"), 1);
}

#[test]
fn the_cluster_says_how_long_objects_are_known() {
    // OBJ-03
    let (world, api) = cluster();
    world.advance(s(1));
    api.edit_node(|node| node["metadata"]["annotations"][TTL_ANNOTATION] = "3600".into());
    world
        .parts
        .owners
        .cluster
        .as_ref()
        .expect("joined")
        .member
        .request_reread();
    world.advance(s(2));
    api.put_object("configmaps/ns/cm", config_map("one"));
    run(&world, &api, "a", mounting(&[config_volume(false)]));
    world.advance(s(300));
    assert_eq!(asked(&api, "configmaps/"), 1);
}

#[test]
fn static_pods_know_nothing_of_the_cluster() {
    // SRC-21
    let (world, api) = cluster();
    api.put_object("configmaps/ns/cm", config_map("one"));
    world.apply(&[manifest("a", mounting(&[config_volume(false)]))]);
    world.until("is told", |w| w.events_of("FailedMount") > 0);
    world.apply(&[manifest("b", json!({}))]);
    runs(&world, "b");
    assert_eq!(api.take_asked(), Vec::<String>::new());
}

#[test]
fn claims_are_read_live_once() {
    // VOL-16 VOL-17 SEC-04 OFF-02
    let (world, api) = cluster();
    let disk = world.dir().join("disk");
    fs::create_dir(&disk).expect("directory");
    let claimed = json!({"name": "d", "persistentVolumeClaim": {"claimName": "data"}});
    api.put_object(
        "claims/ns/data",
        json!({"metadata": {"uid": "c1"}, "spec": {}, "status": {"phase": "Pending"}}),
    );
    let uid = api.create("a", mounting(core::slice::from_ref(&claimed)));
    world.until("is told", |w| w.events_of("FailedMount") > 0);
    api.put_object(
        "claims/ns/data",
        json!({"metadata": {"uid": "c1"}, "spec": {"volumeName": "pv"}, "status": {"phase": "Bound"}}),
    );
    api.put_object(
        "volumes//pv",
        json!({"spec": {"claimRef": {"uid": "c1"}, "local": {"path": disk}},
            "metadata": {"annotations": {"pv.beta.kubernetes.io/gid": "44"}}}),
    );
    runs(&world, &uid);
    let config = world.fake.config(&PodUid::from(&*uid), "c").expect("made");
    assert_eq!(config.security.supplemental_groups, [44]);
    fs::write(disk.join("x"), "1").expect("file");
    let shown = "kubernetes.io~local-volume/pv/x";
    assert_eq!(file(&world, &uid, shown).as_deref(), Some("1"));
    api.take_asked();
    // MET-06 MET-12
    let figures = |figures| -> String {
        let page = world.wait(world.metrics.metrics_page(figures));
        page.expect("served").collect()
    };
    let capacity =
        "kubelet_volume_stats_capacity_bytes{namespace=\"ns\",persistentvolumeclaim=\"data\"} ";
    assert!(figures(MetricsEndpoint::Own).contains(capacity));
    let summary: Value =
        serde_json::from_str(&figures(MetricsEndpoint::Summary(StatsDetail::Full))).expect("JSON");
    let volumes = summary["pods"][0]["volume"].as_array().expect("volumes");
    let claimed_one = volumes.iter().find(|v| v["pvcRef"]["name"] == "data");
    let claimed_one = claimed_one.expect("the claim's");
    assert_eq!(claimed_one["pvcRef"]["namespace"], "ns");
    assert!(claimed_one["capacityBytes"].as_u64() > claimed_one["usedBytes"].as_u64());
    world.advance(SYNC);
    let asked: Vec<_> = api.take_asked();
    assert!(
        !asked
            .iter()
            .any(|a| a.starts_with("claims") || a.starts_with("volumes")),
        "bound is bound: {asked:?}"
    );
    // The files keep the group of the first pod.
    let mut sharing = mounting(core::slice::from_ref(&claimed));
    sharing["securityContext"] = json!({"fsGroup": 4321});
    let second = api.create("second", sharing);
    runs(&world, &second);
    assert_eq!(world.events_of("AlreadyMountedVolume"), 1);
    end(&world, &api, "second", &second);
    end(&world, &api, "a", &uid);
    assert!(disk.join("x").exists());
    // The claim is read anew for another pod.
    api.trouble("claims/", 1000, Trouble::Silent);
    let told = world.events_of("FailedMount");
    api.create("b", mounting(&[claimed]));
    world.until("is told", |w| w.events_of("FailedMount") > told);
}

#[test]
fn pull_secrets_come_from_the_apiserver() {
    // IMG-13
    let (world, api) = cluster();
    api.put_object("secrets/ns/pull", pull_secret("s1", "p"));
    world.fake.offer_image(IMAGE);
    run(&world, &api, "a", pulling(&["pull"], "Always"));
    assert_eq!(world.events_of("FailedToRetrieveImagePullSecret"), 0);
    assert_eq!(asked(&api, "secrets/ns/pull"), 1);
    run(&world, &api, "b", pulling(&["none"], "Always"));
    assert_eq!(world.events_of("FailedToRetrieveImagePullSecret"), 1);
}

const PRIVATE: &str = "registry.test/app:1";

/// A keyring with a plugin that has a credential for one service account.
struct AccountKeyring;

impl NodeKeyring for AccountKeyring {
    fn lookup_credentials<'a>(&'a self, _: &'a str, _: bool) -> ImageFuture<'a, Vec<AuthConfig>> {
        Box::pin(core::future::ready(Vec::new()))
    }

    fn account_plugins(&self, repository: &str) -> Vec<AccountPlugin> {
        assert_eq!(repository, "registry.test/app");
        let attributes = TokenAttributes {
            service_account_token_audience: "registry.test".into(),
            cache_type: "Token".into(),
            require_service_account: Some(true),
            required_service_account_annotation_keys: vec!["team".into()],
            optional_service_account_annotation_keys: Vec::new(),
        };
        vec![AccountPlugin {
            name: "plugin".into(),
            attributes,
            place: 0,
        }]
    }

    fn ask_account_plugin<'a>(
        &'a self,
        _: &AccountPlugin,
        _: &str,
        account: &PluginAccount,
        token: String,
    ) -> ImageFuture<'a, Result<RegistryAuths, PodError>> {
        assert_eq!((&*account.namespace, &*account.name), ("ns", "robot"));
        let team = ("team".to_owned(), "red".to_owned());
        assert_eq!(account.annotations, [team].into());
        let claims = token.split('.').nth(1).expect("a payload");
        let claims = URL_SAFE_NO_PAD.decode(claims).expect("base64");
        let claims: Value = serde_json::from_slice(&claims).expect("json");
        assert_eq!(claims["aud"], json!(["registry.test"]));
        assert!(claims["uid"].is_string(), "bound to the pod: {claims}");
        let credential = RegistryCredential {
            username: account.uid.clone(),
            password: token,
            ..RegistryCredential::default()
        };
        let auths = [("registry.test".to_owned(), credential)].into();
        Box::pin(core::future::ready(Ok(auths)))
    }
}

#[test]
fn plugins_are_asked_with_the_service_account_of_the_pod() {
    // ICV-07
    let (world, api) = cluster();
    let world = world.restart_agent_with_keyring(Rc::new(AccountKeyring));
    world.apply(&[]);
    world.fake.offer_private_image(PRIVATE, "uid of robot");
    let account = |annotations: Value| json!({"metadata": {"uid": "uid of robot", "annotations": annotations}});
    api.put_object(
        "accounts/ns/robot",
        account(json!({"team": "red", "other": "x"})),
    );
    let spec = || {
        let mut spec = pulling(&[], "Always");
        spec["serviceAccountName"] = "robot".into();
        spec["containers"][0]["image"] = PRIVATE.into();
        spec
    };
    run(&world, &api, "a", spec());
    assert_eq!(world.events_of("FailedToRetrieveImagePullCredentials"), 0);
    // An account without the annotation is not served, which is no fault.
    world.advance(s(61));
    api.put_object("accounts/ns/robot", account(json!({"other": "x"})));
    let other = api.create("b", spec());
    world.until("is refused", |w| {
        w.waiting(&other).is_some_and(|r| r == "ErrImagePull")
    });
    assert_eq!(world.events_of("FailedToRetrieveImagePullCredentials"), 0);
    // Neither is one that cannot be read.
    world.advance(s(61));
    api.trouble("accounts/", 1000, Trouble::Silent);
    api.create("c", {
        let mut spec = spec();
        spec["serviceAccountName"] = "absent".into();
        spec
    });
    world.until("is told", |w| {
        w.events_of("FailedToRetrieveImagePullCredentials") > 0
    });
}

#[test]
fn an_image_that_a_secret_brought_is_not_everybodys() {
    // IMG-20
    let (world, api) = cluster();
    world.fake.offer_private_image(PRIVATE, "u");
    api.put_object("secrets/ns/pull", pull_secret("s1", "p"));
    let pulls = |w: &World| {
        let calls = w.fake.take_calls();
        calls.iter().filter(|(op, _)| *op == Op::PullImage).count()
    };
    let of = |secrets: &[&str], policy| {
        let mut spec = pulling(secrets, policy);
        spec["containers"][0]["image"] = PRIVATE.into();
        spec
    };
    run(&world, &api, "first", of(&["pull"], "IfNotPresent"));
    assert_eq!(pulls(&world), 1);
    // The image may be used with the same Secret, changed or not, and with the same credential in another Secret.
    run(&world, &api, "same", of(&["pull"], "Never"));
    api.put_object("secrets/ns/copy", pull_secret("s2", "p"));
    run(&world, &api, "copy", of(&["copy"], "IfNotPresent"));
    world.advance(s(61));
    api.put_object("secrets/ns/pull", pull_secret("s1", "another"));
    run(&world, &api, "changed", of(&["pull"], "IfNotPresent"));
    assert_eq!(pulls(&world), 0);
    // Without the Secret the registry is asked, and refuses; also under another agent.
    let world = world.restart_agent();
    world.apply(&[]);
    let without = api.create("without", of(&[], "IfNotPresent"));
    let never = api.create("never", of(&[], "Never"));
    world.until("both are refused", |w| {
        w.waiting(&without).is_some_and(|r| r.ends_with("Pull"))
            && w.events_of("ErrImageNeverPull") > 0
    });
    assert_eq!(world.waiting(&never).as_deref(), Some("ErrImageNeverPull"));
    assert!(pulls(&world) > 0);
    // An image that the registry gives without a credential may be used by every pod.
    world.fake.offer_image("registry.test/public:1");
    let users = [("public", &["pull"][..]), ("anybody", &[])].map(|(name, secrets)| {
        let mut spec = pulling(secrets, "IfNotPresent");
        spec["containers"][0]["image"] = "registry.test/public:1".into();
        (name, run(&world, &api, name, spec))
    });
    // Records of images that are gone are removed.
    let records = || {
        let dir = world.parts.cfg.dirs.root.join("image_manager");
        ["pulled", "pulling"].map(|kind| fs::read_dir(dir.join(kind)).expect("directory").count())
    };
    assert_eq!(records(), [2, 0]);
    for (name, uid) in &users {
        end(&world, &api, name, uid);
    }
    let image = smol::future::block_on(world.fake.image_status("registry.test/public:1"));
    let id = image.expect("answer").expect("there").id;
    smol::future::block_on(world.fake.remove_image(&id)).expect("removed");
    smol::future::block_on(world.parts.owners.images.tidy_access_records());
    assert_eq!(records(), [1, 0]);
}

#[test]
fn what_an_image_was_pulled_with_ends_with_it() {
    // IMG-20
    let (world, api) = cluster();
    world.fake.offer_private_image(PRIVATE, "u");
    api.put_object("secrets/ns/pull", pull_secret("s1", "p"));
    let of = |secrets: &[&str]| {
        let mut spec = pulling(secrets, "IfNotPresent");
        spec["containers"][0]["image"] = PRIVATE.into();
        spec
    };
    let uid = run(&world, &api, "first", of(&["pull"]));
    end(&world, &api, "first", &uid);
    let (parts, lane) = (&world.parts, Lane::without_thread());
    let store = world.dir().join("store");
    let store = StoreImages::open(store, PullSettings::default(), lane.clone(), lane);
    let commands = ImageCommands {
        images: Rc::clone(&parts.owners.images),
        stock: ImageStock::Own(smol::future::block_on(store).expect("store")),
        runtime: Rc::clone(&parts.machine.runtime),
    };
    smol::future::block_on(commands.remove_image(PRIVATE)).expect("removed");
    // The same image comes back by other means, and the registry is away.
    world.fake.add_image(PRIVATE);
    world.fake.add_fault(fault(
        Op::PullImage,
        1000,
        FakeTrouble::Fails(RuntimeError::Failed("no route to host".into())),
    ));
    run(&world, &api, "without", of(&[]));
}

#[test]
fn a_pull_that_a_crash_ended_is_asked_for_again() {
    // IMG-20
    let (world, api) = cluster();
    api.put_object("secrets/ns/pull", pull_secret("s1", "p"));
    world.fake.offer_private_image(PRIVATE, "u");
    let spec = |secrets: &[&str]| {
        let mut spec = pulling(secrets, "IfNotPresent");
        spec["containers"][0]["image"] = PRIVATE.into();
        spec
    };
    world
        .fake
        .add_fault(fault(Op::PullImage, 1, FakeTrouble::Hangs));
    api.create("first", spec(&["pull"]));
    world.until("the pull has begun", |w| {
        w.fake.under_way().contains(&Op::PullImage)
    });
    // The image arrives while no agent runs.
    let world = world.restart_agent_with(|fake| {
        fake.add_image(PRIVATE);
    });
    world.apply(&[]);
    let other = api.create("other", spec(&[]));
    world.until("is refused", |w| {
        w.waiting(&other).is_some_and(|r| r.ends_with("Pull"))
    });
    smol::future::block_on(world.parts.owners.images.tidy_access_records());
    world.advance(s(600));
    assert_ne!(world.phase(&other), Some(PodPhase::Running));
}

/// Objects over HTTPS, from a server that refuses every request that a node may not make.
#[test]
fn over_the_wire() {
    // AUTHZ-04 AUTHZ-05 AUTHZ-06 AUTHZ-07 AUTHZ-13 TOK-01 TOK-03 VOL-02 VOL-07
    let server = TestServer::builder().start().expect("server");
    let world = World::with(&[], Some(member::api(&server)));
    world.apply(&[]);
    let disk = world.dir().join("disk");
    fs::create_dir(&disk).expect("directory");
    let volumes = [
        config_volume(false),
        json!({"name": "s", "secret": {"secretName": "s", "defaultMode": 420}}),
        json!({"name": "o", "configMap": {"name": "none", "defaultMode": 420, "optional": true}}),
        token_volume(600),
        json!({"name": "d", "persistentVolumeClaim": {"claimName": "data"}}),
    ];
    let mut pod = manifest("web", mounting(&volumes));
    pod["metadata"] = json!({"name": "web", "namespace": "default"});
    pod["spec"]["nodeName"] = NODE.into();
    pod["spec"]["serviceAccountName"] = "robot".into();
    let claim = json!({"accessModes": ["ReadWriteOnce"], "volumeName": "pv", "resources": {"requests": {"storage": "1Gi"}}});
    let reference = |uid: &str| json!({"kind": "PersistentVolumeClaim", "namespace": "default", "name": "data", "uid": uid});
    let made = |object: Value| server.create(&object).expect("created");
    made(
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "robot", "namespace": "default"}}),
    );
    made(
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "cm", "namespace": "default"}, "data": {"key": "one"}}),
    );
    made(
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": "default"}, "data": {"key": "aGk="}}),
    );
    made(
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "db", "namespace": "default"},
        "spec": {"clusterIP": "10.0.0.7", "ports": [{"port": 5432}]}}),
    );
    let bound = made(
        json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data", "namespace": "default"}, "spec": claim}),
    );
    let uid = bound["metadata"]["uid"].as_str().unwrap_or_default();
    made(
        json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "pv"}, "spec": {
        "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "local": {"path": disk}, "claimRef": reference(uid)}}),
    );
    let status = json!({"status": {"phase": "Bound"}});
    let bound = server.patch(
        "persistentvolumeclaims",
        "default",
        "data",
        "status",
        &status,
    );
    bound.expect("bound");
    let pod = made(pod);
    let uid = pod["metadata"]["uid"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    runs(&world, &uid);
    assert_eq!(file(&world, &uid, CONFIG_FILE).as_deref(), Some("one"));
    assert_eq!(
        file(&world, &uid, "kubernetes.io~secret/s/key").as_deref(),
        Some(HI)
    );
    let token = file(&world, &uid, TOKEN_FILE).expect("token");
    let config = world.fake.config(&PodUid::from(&*uid), "c").expect("made");
    assert!(
        config
            .env
            .iter()
            .any(|(n, v)| n == "DB_SERVICE_HOST" && v == "10.0.0.7")
    );
    let change = json!({"data": {"key": "two"}});
    server
        .patch("configmaps", "default", "cm", "", &change)
        .expect("changed");
    world.until("follows", |w| {
        file(w, &uid, CONFIG_FILE).as_deref() == Some("two")
    });
    world.advance(s(500));
    assert_ne!(
        file(&world, &uid, TOKEN_FILE),
        Some(token),
        "replaced in time"
    );
    // The server is down for a while: no content is lost meanwhile.
    server.set_down(true);
    world.advance(SYNC);
    assert_eq!(file(&world, &uid, CONFIG_FILE).as_deref(), Some("two"));
    server.set_down(false);
    server
        .delete("configmaps", "default", "cm", None)
        .expect("deleted");
    world.advance(SYNC + SYNC);
    assert_eq!(
        file(&world, &uid, CONFIG_FILE).as_deref(),
        Some("two"),
        "a required one stays"
    );
    server
        .delete("pods", "default", "web", None)
        .expect("deleted");
    world.until("is gone", |w| w.is_gone(&uid));
    assert!(server.wrong().is_empty(), "{:?}", server.wrong());
}
