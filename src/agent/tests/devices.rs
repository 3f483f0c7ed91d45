//! Devices of the machine, which a test adds and removes.

use alloc::{rc::Rc, sync::Arc};
use core::{any::Any, time::Duration};
use std::sync::Mutex;

use serde_json::{Value, json};

use super::{
    api::FakeApi,
    order::pod_dir,
    world::{IMAGE, World, fails, fault, manifest},
};
use crate::{
    agent::core::AgentEvent,
    api::{
        PodUid,
        cri::ContainerStatus,
        device::{DeviceFilter, HostDeviceNode, MachineDevices},
        pod_status::PodPhase,
    },
    config::AgentConfig,
    logic::devices::{ListedUnit, MAX_PLUGINS, UnitHolder},
    parts::devices::{
        DeviceGiver, DeviceLoop, DeviceMachine, DeviceNews, FollowedContainers, with_machine,
    },
    runtime::fake::{Op, Trouble},
    server::backend::MetricsEndpoint,
};

/// Devices of a machine, set by a test.
#[derive(Debug, Default)]
pub(in crate::agent) struct FakeDevices(Mutex<MachineDevices>);

impl FakeDevices {
    /// Sets the device nodes of the machine: names, and minor numbers.
    pub(in crate::agent) fn set(&self, nodes: &[(&str, u32)]) {
        *self.0.lock().expect("devices") = seen(nodes);
    }

    /// Sets the CDI devices of the machine, which has no others then.
    fn set_cdi_devices(&self, names: &[&str]) {
        *self.0.lock().expect("devices") = MachineDevices {
            cdi: names.iter().map(|name| ((*name).to_owned(), 0)).collect(),
            ..MachineDevices::default()
        };
    }
}

fn seen(nodes: &[(&str, u32)]) -> MachineDevices {
    let node = |(name, minor): &(&str, u32)| HostDeviceNode {
        name: (*name).into(),
        path: (*name).into(),
        major: 188,
        minor: *minor,
        ..HostDeviceNode::default()
    };
    MachineDevices {
        nodes: nodes.iter().map(node).collect(),
        ..MachineDevices::default()
    }
}

impl DeviceMachine for FakeDevices {
    fn find_devices(&self, wanted: &dyn DeviceFilter) -> MachineDevices {
        let mut seen = self.0.lock().expect("devices").clone();
        seen.nodes.retain(|node| wanted.wants_node(&node.name));
        seen
    }
}

const LINES: &str = r#"[{resource: serial, match: {path: /dev/ttyUSB*}, env: LINE}]"#;

const fn s(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// Spec whose container asks for one `picolet/serial`.
fn asking() -> Value {
    json!({"containers": [{"name": "c", "image": IMAGE, "command": ["sleep"],
        "resources": {"limits": {"picolet/serial": "1"}}}]})
}

/// Makes a machine whose pods may ask for devices: `declared` is `picolet.devices`.
fn with_devices(declared: &str, devices: &Arc<FakeDevices>, api: Option<&Arc<FakeApi>>) -> World {
    let machine: Arc<dyn DeviceMachine> = devices.clone();
    let adapt = move |config: &mut AgentConfig| with_machine(config, &machine);
    World::configured(format!("devices: {declared}"), Rc::new(adapt), api)
}

fn world(nodes: &[(&str, u32)]) -> (World, Arc<FakeDevices>) {
    let devices = Arc::new(FakeDevices::default());
    devices.set(nodes);
    (with_devices(LINES, &devices, None), devices)
}

fn runs(world: &World, uid: &str) {
    world.until("runs", |w| w.phase(uid) == Some(PodPhase::Running));
}

/// Device nodes of the newest instance of `c`.
fn nodes(world: &World, uid: &str) -> Vec<String> {
    let config = world.fake.config(&PodUid::from(uid), "c");
    let nodes = config.expect("made").devices.into_iter();
    nodes.map(|node| node.container_path).collect()
}

fn instance(world: &World, uid: &str) -> ContainerStatus {
    let newest = world.fake.container(&PodUid::from(uid), "c");
    newest.expect("there")
}

fn amounts(world: &World) -> (String, String) {
    let status = world.node_object()["status"].clone();
    let of = |list: &str| {
        status[list]["picolet/serial"]
            .as_str()
            .unwrap_or("-")
            .into()
    };
    (of("capacity"), of("allocatable"))
}

fn message(world: &World, uid: &str) -> String {
    world.status(uid).expect("told").message
}

#[test]
fn one_has_it_and_the_other_waits() {
    // DEV-05 DEV-14 DEV-38
    let (world, _) = world(&[("/dev/ttyUSB0", 0)]);
    world.apply(&[manifest("a", asking())]);
    runs(&world, "a");
    assert_eq!(nodes(&world, "a"), ["/dev/ttyUSB0"]);
    let env = world
        .fake
        .config(&PodUid::from("a"), "c")
        .expect("made")
        .env;
    assert!(
        env.contains(&("LINE".into(), "/dev/ttyUSB0".into())),
        "{env:?}"
    );
    assert_eq!(amounts(&world), ("1".into(), "1".into()));
    let both = [manifest("a", asking()), manifest("b", asking())];
    world.apply(&both);
    world.until("waits", |w| w.phase("b") == Some(PodPhase::Pending));
    let status = world.status("b").expect("told");
    assert_eq!(status.reason, "DeviceNotReady");
    assert_eq!(
        status.message,
        "waits for a device: requested number of devices unavailable for picolet/serial. Requested: 1, Available: 0"
    );
    world.advance(s(600));
    assert_eq!(
        world.phase("b"),
        Some(PodPhase::Pending),
        "a static pod waits for ever"
    );
    assert_eq!(world.events_of("DeviceNotReady"), 1);
    // The first pod goes.
    world.apply(&[manifest("b", asking())]);
    runs(&world, "b");
    assert_eq!(nodes(&world, "b"), ["/dev/ttyUSB0"]);
    assert_eq!(world.status("b").expect("told").reason, "");
}

#[test]
fn what_nobody_offers_is_refused() {
    // DEV-05 DEV-07
    let (world, _) = world(&[]);
    let mut other = asking();
    other["containers"][0]["resources"] = json!({"limits": {"example.com/x": 1}});
    world.apply(&[manifest("a", other)]);
    world.until("is refused", |w| w.phase("a") == Some(PodPhase::Failed));
    assert_eq!(
        world.status("a").expect("told").reason,
        "UnexpectedAdmissionError"
    );
    assert_eq!(
        message(&world, "a"),
        "Pod was rejected: Allocate failed due to cannot allocate unregistered device example.com/x, which is unexpected"
    );
}

#[test]
fn a_pod_waits_until_its_device_is_there() {
    // DEV-38 DEV-39
    let (world, devices) = world(&[]);
    world.apply(&[manifest("a", asking())]);
    world.until("waits", |w| w.phase("a") == Some(PodPhase::Pending));
    assert_eq!(
        message(&world, "a"),
        "waits for a device: no healthy devices present; cannot allocate unhealthy devices picolet/serial"
    );
    assert_eq!(amounts(&world), ("0".into(), "0".into()));
    // An edit does not start the pod, and neither does its end.
    let mut edited = manifest("a", asking());
    edited["metadata"]["labels"] = json!({"x": "y"});
    world.apply(&[edited.clone()]);
    world.advance(s(300));
    assert_eq!(world.phase("a"), Some(PodPhase::Pending));
    assert!(world.fake.container(&PodUid::from("a"), "c").is_none());
    devices.set(&[("/dev/ttyUSB3", 3)]);
    runs(&world, "a");
    assert_eq!(nodes(&world, "a"), ["/dev/ttyUSB3"]);
    assert_eq!(amounts(&world), ("1".into(), "1".into()));
    world.apply(&[]);
    world.until("is gone", |w| w.is_gone("a"));
}

#[test]
fn one_that_waits_can_go() {
    // DEV-38
    let (world, _) = world(&[]);
    world.apply(&[manifest("a", asking())]);
    world.until("waits", |w| w.phase("a") == Some(PodPhase::Pending));
    world.apply(&[]);
    world.until("is gone", |w| w.is_gone("a"));
}

#[test]
fn pods_of_an_apiserver_wait_for_two_minutes() {
    // DEV-07 DEV-13 DEV-38
    let api = Arc::new(FakeApi::default());
    let devices = Arc::new(FakeDevices::default());
    devices.set(&[("/dev/ttyUSB0", 0)]);
    let world = with_devices(LINES, &devices, Some(&api));
    world.apply(&[]);
    api.create("a", asking());
    world.until("runs", |_| api.phase("a") == "Running");
    api.create("b", asking());
    world.until("waits", |_| {
        api.get("ns", "b")
            .is_some_and(|pod| pod["status"]["reason"] == "DeviceNotReady")
    });
    let since = world.now();
    world.until("is refused", |_| api.phase("b") == "Failed");
    let waited = world.now() - since;
    assert!(waited >= s(110) && waited < s(140), "{waited:?}");
    let pod = api.get("ns", "b").expect("it stays");
    assert_eq!(pod["status"]["reason"], "UnexpectedAdmissionError");
    assert_eq!(
        pod["status"]["message"],
        "Pod was rejected: Allocate failed due to requested number of devices unavailable for picolet/serial. \
         Requested: 1, Available: 0, which is unexpected"
    );
    // A pod that waits is deleted.
    api.create("d", asking());
    world.until("waits", |_| {
        api.get("ns", "d")
            .is_some_and(|pod| pod["status"]["reason"] == "DeviceNotReady")
    });
    api.delete("d");
    world.until("is gone", |_| api.get("ns", "d").is_none());
}

#[test]
fn one_that_waits_after_a_reboot_is_not_ready_and_keeps_what_is_known_of_it() {
    // DEV-13 DEV-38
    let api = Arc::new(FakeApi::default());
    let devices = Arc::new(FakeDevices::default());
    devices.set(&[("/dev/ttyUSB0", 0)]);
    let world = with_devices(LINES, &devices, Some(&api));
    world.apply(&[]);
    let mut once = asking();
    once["restartPolicy"] = json!("Never");
    once["volumes"] = json!([{"name": "own", "emptyDir": {}}]);
    once["containers"][0]["volumeMounts"] = json!([{"name": "own", "mountPath": "/own"}]);
    api.create("a", asking());
    world.until("runs", |_| api.phase("a") == "Running");
    let is_ready = || {
        let pod = api.get("ns", "a").expect("there");
        let all = pod["status"]["conditions"].as_array().cloned();
        let mut all = all.into_iter().flatten();
        all.any(|c| c["type"] == "Ready" && c["status"] == "True")
    };
    world.until("is ready", |_| is_ready());
    devices.set(&[]);
    let world = world.reboot();
    world.apply(&[]);
    world.until("waits", |_| {
        api.get("ns", "a").expect("there")["status"]["reason"] == "DeviceNotReady"
    });
    let status = api.get("ns", "a").expect("there")["status"].clone();
    assert_eq!(status["phase"], "Pending");
    assert!(!is_ready(), "{status}");
    let container = &status["containerStatuses"][0];
    assert_eq!(container["restartCount"], 1);
    assert_eq!(
        container["lastState"]["terminated"]["reason"],
        "ContainerStatusUnknown"
    );
    devices.set(&[("/dev/ttyUSB0", 0)]);
    world.until("runs", |_| api.phase("a") == "Running" && is_ready());
    let status = api.get("ns", "a").expect("there")["status"].clone();
    assert!(status["reason"].is_null(), "{status}");
    api.delete("a");
    world.until("is gone", |_| api.get("ns", "a").is_none());
    // A pod that cannot run again has ended: it waits for no device, and is taken down as any other pod.
    let uid = api.create("b", once);
    world.until("runs", |_| api.phase("b") == "Running");
    let its_data = pod_dir(&world, &uid).join("volumes/kubernetes.io~empty-dir/own");
    assert!(its_data.exists());
    devices.set(&[]);
    let world = world.reboot();
    world.apply(&[]);
    world.until("has ended", |_| api.phase("b") == "Failed");
    world.until("its volume goes", |_| !its_data.exists());
    assert_eq!(world.events_of("DeviceNotReady"), 0);
}

#[test]
fn unplugged_and_back() {
    // DEV-40
    let (world, devices) = world(&[("/dev/ttyUSB0", 0)]);
    world.apply(&[manifest("a", asking())]);
    runs(&world, "a");
    let first = instance(&world, "a");
    devices.set(&[]);
    world.until("is told", |w| w.events_of("DeviceLost") == 1);
    assert_eq!(amounts(&world), ("1".into(), "0".into()));
    world.advance(s(60));
    assert_eq!(instance(&world, "a").id, first.id, "it runs on");
    assert_eq!(world.phase("a"), Some(PodPhase::Running));
    // The device is back unchanged: nothing is to be done.
    devices.set(&[("/dev/ttyUSB0", 0)]);
    world.until("is told", |w| w.events_of("DeviceBack") == 1);
    world.advance(s(60));
    assert_eq!(instance(&world, "a").id, first.id);
    // The device is back under another number: a container that has it open cannot go on.
    devices.set(&[]);
    world.until("is told", |w| w.events_of("DeviceLost") == 2);
    devices.set(&[("/dev/ttyUSB0", 4)]);
    world.until("is restarted", |w| instance(w, "a").id != first.id);
    let config = world.fake.config(&PodUid::from("a"), "c").expect("made");
    assert_eq!(config.devices[0].minor, 4);
    let second = instance(&world, "a");
    world.advance(s(60));
    assert_eq!(instance(&world, "a").id, second.id, "once");
    // A container that ends while its device is away waits for it.
    devices.set(&[]);
    world.until("is told", |w| w.events_of("DeviceLost") == 3);
    assert!(world.fake.exit(&second.id, 1));
    world.until("waits", |w| {
        w.waiting("a").as_deref() == Some("CreateContainerError")
    });
    world.advance(s(600));
    assert_eq!(world.phase("a"), Some(PodPhase::Running));
    devices.set(&[("/dev/ttyUSB0", 5)]);
    world.until("runs again", |w| instance(w, "a").id != second.id);
}

#[test]
fn who_wants_it_is_restarted_after_a_short_absence_too() {
    // DEV-39 DEV-40
    const RESTARTED: &str =
        r#"[{resource: serial, match: {path: /dev/ttyUSB*}, onReplug: restart}]"#;
    let line = [("/dev/ttyUSB0", 0)];
    let devices = Arc::new(FakeDevices::default());
    devices.set(&line);
    let world = with_devices(RESTARTED, &devices, None);
    world.apply(&[manifest("a", asking())]);
    runs(&world, "a");
    let first = instance(&world, "a");
    let looks = |nodes: &[(&str, u32)]| {
        let news = DeviceNews::Looked {
            seen: Box::new(seen(nodes)),
            followed: FollowedContainers::default(),
        };
        tell(&world, news);
        world.settle();
    };
    looks(&line);
    world.advance(s(60));
    assert_eq!(instance(&world, "a").id, first.id, "it was never away");
    looks(&[]);
    looks(&line);
    world.until("is restarted", |w| instance(w, "a").id != first.id);
    let told = ["DeviceLost", "DeviceBack"].map(|reason| world.events_of(reason));
    assert_eq!(told, [0, 0], "nobody is told");
}

#[test]
fn a_cdi_device_restarts_its_container_only_where_that_is_asked_for() {
    // DEV-46
    for (on_replug, restarts) in [
        ("", false),
        (", onReplug: none", false),
        (", onReplug: restart", true),
    ] {
        let declared =
            format!(r#"[{{resource: serial, match: {{cdi: "v.com/line=*"}}{on_replug}}}]"#);
        let devices = Arc::new(FakeDevices::default());
        devices.set_cdi_devices(&["v.com/line=0"]);
        let world = with_devices(&declared, &devices, None);
        world.apply(&[manifest("a", asking())]);
        runs(&world, "a");
        let first = instance(&world, "a");
        let config = world.fake.config(&PodUid::from("a"), "c").expect("made");
        assert_eq!(config.cdi_devices, ["v.com/line=0"]);
        devices.set_cdi_devices(&[]);
        world.until("is told", |w| w.events_of("DeviceLost") == 1);
        devices.set_cdi_devices(&["v.com/line=0"]);
        world.until("is told", |w| w.events_of("DeviceBack") == 1);
        world.advance(s(60));
        let is_another = instance(&world, "a").id != first.id;
        assert_eq!(is_another, restarts, "{declared}");
    }
}

#[test]
fn who_sees_devices_live_is_restarted_only_if_it_cannot_go_on() {
    // DEV-44 DEV-45
    let line = [("/dev/ttyUSB0", 0)];
    let (world, _) = world(&line);
    let plain = json!({"containers": [{"name": "c", "image": IMAGE, "command": ["sleep"]}]});
    world.apply(&[manifest("a", asking()), manifest("b", plain)]);
    runs(&world, "a");
    runs(&world, "b");
    let instances = || ["a", "b"].map(|uid| instance(&world, uid).id);
    let [first, other] = instances();
    let holder = || {
        vec![UnitHolder {
            pod: "a".into(),
            container: "c".into(),
        }]
    };
    let look = |nodes: &[(&str, u32)], unfit| {
        let followed = FollowedContainers {
            live: holder(),
            unfit,
            ..FollowedContainers::default()
        };
        let news = DeviceNews::Looked {
            seen: Box::new(seen(nodes)),
            followed,
        };
        tell(&world, news);
    };
    // The node changes, and changes back. Its holder sees devices live and can go on: nothing is restarted.
    look(&[("/dev/ttyUSB0", 7)], Vec::new());
    look(&line, Vec::new());
    world.settle();
    world.advance(s(60));
    assert_eq!(instances(), [first.clone(), other.clone()]);
    // The holder cannot go on. That is told again while its restart is under way.
    look(&line, holder());
    look(&line, holder());
    world.until("is restarted", |w| instance(w, "a").id != first);
    let [second, _] = instances();
    world.advance(s(600));
    assert_eq!(instances(), [second, other], "once, and nobody else");
}

#[test]
fn what_runs_keeps_its_device_until_it_has_ended() {
    // DEV-14
    let (world, _) = world(&[("/dev/ttyUSB0", 0)]);
    world.apply(&[manifest("a", asking())]);
    runs(&world, "a");
    // The pod's manifest goes while no agent runs, and the pod does not end at once.
    let world = world.restart_agent_with(|fake| {
        fake.add_fault(fault(Op::StopContainer, 1, Trouble::Hangs));
    });
    world.apply(&[manifest("b", asking())]);
    world.until("is to end", |w| w.fake.hanging(Op::StopContainer) == 1);
    world.advance(s(10));
    assert!(world.fake.runs(&PodUid::from("a")));
    assert!(world.fake.container(&PodUid::from("b"), "c").is_none());
    assert_eq!(world.phase("b"), Some(PodPhase::Pending));
    world.fake.release(Op::StopContainer);
    runs(&world, "b");
    assert_eq!(nodes(&world, "b"), ["/dev/ttyUSB0"]);
}

#[test]
fn what_an_ended_pod_held_is_free_though_nobody_waits() {
    // DEV-11 DEV-14
    let (world, devices) = world(&[("/dev/ttyUSB0", 0)]);
    world.apply(&[manifest("a", asking())]);
    runs(&world, "a");
    assert_eq!(amounts(&world), ("1".into(), "1".into()));
    world.apply(&[]);
    world.until("is gone", |w| w.status("a").is_none());
    devices.set(&[]);
    world.until("nobody holds what is lost", |w| {
        amounts(w) == ("0".into(), "0".into())
    });
    assert_eq!(world.events_of("DeviceLost"), 0);
}

#[test]
fn what_runs_without_a_record_gets_a_device_when_it_starts_again() {
    // DEV-10 DEV-12
    let (world, _) = world(&[("/dev/ttyUSB0", 0)]);
    world.apply(&[manifest("a", asking())]);
    runs(&world, "a");
    let first = instance(&world, "a");
    let dir = world.parts.machine.store.pod_dir(&PodUid::from("a"));
    std::fs::remove_file(dir.join("devices.json")).expect("lost");
    let world = world.restart_agent();
    world.apply(&[manifest("a", asking())]);
    world.advance(s(60));
    assert_eq!(instance(&world, "a").id, first.id, "it runs on");
    assert_eq!(held(&world), [""; 0]);
    // Another pod gets the device first.
    world.apply(&[manifest("a", asking()), manifest("b", asking())]);
    runs(&world, "b");
    assert!(world.fake.exit(&first.id, 1));
    world.until("waits", |w| w.events_of("DeviceNotReady") > 0);
    world.advance(s(600));
    assert_eq!(instance(&world, "a").id, first.id, "it waits");
    assert_eq!(world.phase("a"), Some(PodPhase::Running));
    world.apply(&[manifest("a", asking())]);
    world.until("runs again", |w| instance(w, "a").id != first.id);
    assert_eq!(nodes(&world, "a"), ["/dev/ttyUSB0"]);
    assert_eq!(held(&world).len(), 1);
}

#[test]
fn what_is_offered_no_more_is_none() {
    // NODE-03 DEV-12
    let api = Arc::new(FakeApi::default());
    let devices = Arc::new(FakeDevices::default());
    devices.set(&[("/dev/ttyUSB0", 0)]);
    let of_node = |list: &str, name: &str| {
        let mut node = Value::Null;
        api.edit_node(|object| node = object.clone());
        node["status"][list][name].as_str().map(str::to_owned)
    };
    let both = |name: &str| {
        ["capacity", "allocatable"].map(|list| of_node(list, name).unwrap_or_default())
    };
    let world = with_devices(LINES, &devices, Some(&api));
    world.until("is told", |_| both("picolet/serial") == ["1", "1"]);
    // Another program counts dongles.
    api.edit_node(|node| node["status"]["capacity"]["example.com/dongle"] = "4".into());
    let world = world.restart_agent_configured(format!("devices: {}", "[]"));
    world.until("is told", |_| both("picolet/serial") == ["0", "0"]);
    world.advance(s(60));
    assert_eq!(both("picolet/serial"), ["0", "0"]);
    assert_eq!(both("example.com/dongle"), ["4", "4"]);
    let world = world.restart_agent_configured(format!("devices: {}", LINES));
    world.until("is told", |_| both("picolet/serial") == ["1", "1"]);
    assert_eq!(both("example.com/dongle"), ["4", "4"]);
    // The record of offered resources is lost.
    std::fs::remove_file(world.dir().join("root/node-resources.json")).expect("there");
    let world = world.restart_agent();
    world.until("is told", |_| both("example.com/dongle") == ["0", "0"]);
    world.until("is told", |_| both("picolet/serial") == ["1", "1"]);
}

#[test]
fn nothing_is_decided_before_the_runtime_was_seen() {
    // DEV-12
    let (world, devices) = world(&[("/dev/ttyUSB0", 0)]);
    world.apply(&[manifest("a", asking())]);
    runs(&world, "a");
    let running = instance(&world, "a");
    devices.set(&[]);
    let world = world.restart_agent_with(|fake| fake.add_fault(fails(Op::ListPods, 5)));
    world.apply(&[manifest("a", asking()), manifest("b", asking())]);
    assert_eq!(world.status("b"), None);
    world.until("waits", |w| w.phase("b") == Some(PodPhase::Pending));
    assert_eq!(world.events_of("DeviceNotReady"), 1);
    runs(&world, "a");
    assert_eq!(instance(&world, "a").id, running.id);
    assert!(world.fake.container(&PodUid::from("b"), "c").is_none());
}

#[test]
fn another_agent_takes_over() {
    // DEV-12
    let (world, devices) = world(&[("/dev/ttyUSB0", 0), ("/dev/ttyUSB1", 1)]);
    let both = [manifest("a", asking()), manifest("b", asking())];
    world.apply(&both);
    runs(&world, "a");
    runs(&world, "b");
    let (of_a, of_b) = (nodes(&world, "a"), nodes(&world, "b"));
    let running = instance(&world, "b");
    // The device of b is away when the agent begins.
    let left = if of_a == ["/dev/ttyUSB0"] { 0 } else { 1 };
    devices.set(&[(&*of_a[0], left)]);
    let world = world.restart_agent();
    world.apply(&both);
    world.advance(s(60));
    assert_eq!(instance(&world, "b").id, running.id);
    assert_eq!(world.phase("b"), Some(PodPhase::Running));
    assert_eq!(amounts(&world), ("2".into(), "1".into()));
    // The assignment of devices is kept over a boot, too.
    devices.set(&[("/dev/ttyUSB0", 0), ("/dev/ttyUSB1", 1)]);
    let world = world.reboot();
    world.apply(&[manifest("b", asking()), manifest("a", asking())]);
    world.until("run", |w| {
        let made = |uid: &str| w.fake.config(&PodUid::from(uid), "c").is_some();
        made("a") && made("b")
    });
    assert_eq!((nodes(&world, "a"), nodes(&world, "b")), (of_a, of_b));
}

/// Makes a machine on which device plugins may register.
fn plugged() -> World {
    let devices = Arc::new(FakeDevices::default());
    with_devices("[]\n  devicePlugins: true", &devices, None)
}

const OF_PLUGIN: &str = "example.com/x";

/// Spec whose container asks for one unit of a plugin's resource.
fn asking_a_plugin() -> Value {
    let mut spec = asking();
    spec["containers"][0]["resources"] = json!({"limits": {OF_PLUGIN: 1}});
    spec
}

fn tell(world: &World, news: DeviceNews) {
    let event = AgentEvent::Resources(Box::new(news));
    world.events.try_send(event).expect("room");
}

/// Has the plugin list these units.
fn lists(world: &World, units: &[(&str, bool)]) {
    let units = units.iter().map(|(id, healthy)| ListedUnit {
        id: (*id).into(),
        healthy: *healthy,
    });
    let news = DeviceNews::Listed {
        resource: OF_PLUGIN.into(),
        units: units.collect(),
    };
    tell(world, news);
}

/// Units that are held by pods.
fn held(world: &World) -> Vec<String> {
    let all = world.agent.borrow().shown_resources().into_iter();
    let held = all.filter(|unit| !unit.holders.is_empty());
    held.map(|unit| unit.id).collect()
}

#[test]
fn one_that_waits_for_a_plugin_is_not_created_again_and_again() {
    // DEV-05 DEV-13
    let world = plugged();
    world.apply(&[manifest("a", asking_a_plugin())]);
    world.until("waits", |w| w.phase("a") == Some(PodPhase::Pending));
    assert_eq!(
        message(&world, "a"),
        "waits for a device: cannot allocate unregistered device example.com/x"
    );
    world.advance(s(60));
    let page = world.wait(world.metrics.metrics_page(MetricsEndpoint::Own));
    let page: String = page.map_err(|e| e.status).expect("figures").collect();
    let restarted = "kubelet_restarted_pods_total{static=\"true\"} ";
    let count = page.lines().find_map(|line| line.strip_prefix(restarted));
    assert_eq!(count, Some("0"), "{page}");
}

/// Makes a world where a plugin has two units and a pod asks for one. The plugin itself cannot be called.
fn asked_for_one_of_two() -> World {
    let world = plugged();
    let news = DeviceNews::Registered {
        resource: OF_PLUGIN.into(),
        prefers: false,
    };
    tell(&world, news);
    lists(&world, &[("one", true), ("two", true)]);
    world.apply(&[manifest("a", asking_a_plugin())]);
    world
}

#[test]
fn a_unit_that_went_bad_before_it_was_used_is_replaced() {
    // DEV-08
    let world = asked_for_one_of_two();
    world.until("cannot begin", |w| w.events_of("DeviceNotReady") > 0);
    world.advance(s(60));
    assert_eq!(held(&world), ["one"], "which is well");
    lists(&world, &[("one", false), ("two", true)]);
    world.until("has another one", |w| held(w) == ["two"]);
    // No healthy unit is left: a static pod waits.
    lists(&world, &[("one", false), ("two", false)]);
    world.advance(s(600));
    assert_eq!(held(&world), ["two"]);
    assert_eq!(world.phase("a"), Some(PodPhase::Pending));
    lists(&world, &[("one", true), ("two", false)]);
    world.until("has the first one again", |w| held(w) == ["one"]);
}

#[test]
fn what_an_ended_pod_had_replaces_a_bad_unit() {
    // DEV-08 DEV-14
    let world = asked_for_one_of_two();
    world.until("has one", |w| held(w) == ["one"]);
    let both = ["a", "b"].map(|name| manifest(name, asking_a_plugin()));
    world.apply(&both);
    world.until("has the other", |w| held(w) == ["one", "two"]);
    let [a, _] = both;
    world.apply(&[a]);
    lists(&world, &[("one", false), ("two", true)]);
    world.until("has what the other had", |w| held(w) == ["two"]);
}

#[test]
fn a_pod_of_an_apiserver_that_cannot_begin_is_refused_in_the_end() {
    // DEV-08 DEV-13
    let api = Arc::new(FakeApi::default());
    let devices = Arc::new(FakeDevices::default());
    let world = with_devices("[]\n  devicePlugins: true", &devices, Some(&api));
    world.apply(&[]);
    let news = DeviceNews::Registered {
        resource: OF_PLUGIN.into(),
        prefers: false,
    };
    tell(&world, news);
    lists(&world, &[("one", true)]);
    api.create("a", asking_a_plugin());
    world.until("cannot begin", |w| w.events_of("DeviceNotReady") > 0);
    world.advance(s(600));
    assert_eq!(api.phase("a"), "Pending", "its unit is well");
    lists(&world, &[("one", false)]);
    let since = world.now();
    world.until("is refused", |_| api.phase("a") == "Failed");
    let waited = world.now() - since;
    assert!(waited >= s(110), "{waited:?}");
    let pod = api.get("ns", "a").expect("it stays");
    assert_eq!(pod["status"]["reason"], "UnexpectedAdmissionError");
}

#[test]
fn a_resource_that_nobody_needs_makes_room() {
    // DEV-11
    let world = plugged();
    let giver = world.parts.machine.resources.clone().expect("devices");
    let giver: Rc<dyn Any> = giver;
    let devices = giver.downcast_ref::<DeviceGiver>().expect("devices");
    let plugins = devices.plugins.as_ref().expect("plugins");
    let agent = DeviceLoop(world.asker.clone());
    let remember = |name: &str| {
        let kept = world.wait(plugins.remember_resource(name, &agent));
        kept.map_err(|e| e.to_string())
    };
    let name = |n: usize| format!("example.com/{n:02}");
    let registers = |n: usize| DeviceNews::Registered {
        resource: name(n).into(),
        prefers: false,
    };
    for n in 0..MAX_PLUGINS {
        assert_eq!(remember(&name(n)), Ok(()));
        tell(&world, registers(n));
        world.settle();
    }
    let full = Err("plugins offer 64 resources already".into());
    assert_eq!(remember(&name(64)), full, "all are there");
    assert_eq!(remember(&name(63)), Ok(()), "it is known");
    for n in [5, 7] {
        let resource = name(n).into();
        tell(&world, DeviceNews::Gone { resource });
    }
    world.advance(s(60));
    assert_eq!(remember(&name(64)), full, "they may come back");
    // A resource that a pod waits for stays.
    let mut waits = asking();
    waits["containers"][0]["resources"] = json!({"limits": {name(5): 1}});
    world.apply(&[manifest("a", waits)]);
    world.until("waits", |w| w.phase("a") == Some(PodPhase::Pending));
    world.advance(s(300));
    assert_eq!(remember(&name(64)), Ok(()));
    let known = plugins.known_resources();
    assert_eq!(known.len(), MAX_PLUGINS);
    assert!(known.contains(&name(5).into()) && known.contains(&name(64).into()));
    assert!(!known.contains(&name(7).into()));
    tell(&world, registers(64));
    world.advance(s(60));
    let status = world.node_object()["status"].clone();
    assert_eq!(status["capacity"][name(5)], "0");
    assert_eq!(status["capacity"][name(64)], "0");
    assert_eq!(remember(&name(65)), full);
}

/// Health of the devices of `c`, as the API shows it.
fn health(api: &FakeApi, name: &str) -> Value {
    let pod = api.get("ns", name).expect("there");
    pod["status"]["containerStatuses"][0]["allocatedResourcesStatus"].clone()
}

#[test]
fn how_devices_are_is_told() {
    // DEV-15
    let api = Arc::new(FakeApi::default());
    let devices = Arc::new(FakeDevices::default());
    devices.set(&[("/dev/ttyUSB0", 0)]);
    let world = with_devices(LINES, &devices, Some(&api));
    world.apply(&[]);
    api.create("a", asking());
    world.until("runs", |_| api.phase("a") == "Running");
    let told = |health: &str| {
        let id = held(&world).remove(0);
        json!([{"name": "picolet/serial", "resources": [{"resourceID": id, "health": health}]}])
    };
    assert_eq!(health(&api, "a"), told("Healthy"));
    let first = instance(&world, &uid_of(&api, "a"));
    devices.set(&[]);
    world.until("is told", |_| health(&api, "a") == told("Unhealthy"));
    devices.set(&[("/dev/ttyUSB0", 0)]);
    world.until("is told", |_| health(&api, "a") == told("Healthy"));
    assert_eq!(
        instance(&world, &uid_of(&api, "a")).id,
        first.id,
        "it runs on"
    );
    // The health causes no writes while it does not change, also under another agent.
    let version = || api.get("ns", "a").expect("there")["metadata"]["resourceVersion"].clone();
    let before = version();
    world.advance(s(300));
    assert_eq!(version(), before);
    let world = world.restart_agent();
    world.apply(&[]);
    world.advance(s(300));
    assert_eq!(version(), before);
}

fn uid_of(api: &FakeApi, name: &str) -> String {
    let pod = api.get("ns", name).expect("there");
    pod["metadata"]["uid"].as_str().expect("uid").into()
}

#[test]
fn how_devices_of_plugins_are_is_told() {
    // DEV-15
    let world = plugged();
    let registers = || DeviceNews::Registered {
        resource: OF_PLUGIN.into(),
        prefers: false,
    };
    tell(&world, registers());
    lists(&world, &[("one", true)]);
    world.apply(&[manifest("a", asking_a_plugin())]);
    let is_told = |world: &World, expected: &str| {
        let status = world.status("a").unwrap_or_default();
        let all = status.container_statuses.iter();
        let mut all = all.flat_map(|c| &c.allocated_resources_status);
        let told = all.next().is_some_and(|told| {
            let [unit] = &*told.resources else {
                return false;
            };
            let is_it = told.name == OF_PLUGIN && unit.resource_id == "one";
            is_it && unit.health == expected
        });
        told && all.next().is_none()
    };
    world.until("is told", |w| is_told(w, "Healthy"));
    lists(&world, &[("one", false)]);
    world.until("is told", |w| is_told(w, "Unhealthy"));
    lists(&world, &[("one", true)]);
    world.until("is told", |w| is_told(w, "Healthy"));
    let resource = OF_PLUGIN.into();
    tell(&world, DeviceNews::Gone { resource });
    world.until("is told", |w| is_told(w, "Unhealthy"));
    // The plugin is back, and its list is awaited.
    tell(&world, registers());
    world.advance(s(60));
    assert!(is_told(&world, "Unhealthy"));
    lists(&world, &[("one", true)]);
    world.until("is told", |w| is_told(w, "Healthy"));
    // The list does not have the unit any more.
    lists(&world, &[]);
    world.until("is told", |w| is_told(w, "Unhealthy"));
}
