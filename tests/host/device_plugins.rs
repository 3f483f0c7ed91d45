//! Device plugins, as a user sees them: one registers, containers get what it gives, and it and the agent come and go.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use nix::sys::signal::{Signal, kill};
use nix::sys::stat::{Mode, SFlag, mknod};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::containerd;
use crate::host::{self, Host, IDLE, full, sh, status_of, with};
use crate::metrics;
use crate::plugin::{
    self, CdiMessage, Gift, Habits, Info, MountMessage, NodeMessage, Plugin, register,
};

/// Four bytes of a device that no container may use by itself.
const DEVICE: &str = "/dev/cpu_dma_latency";
const RESOURCE: &str = "example.com/probe";
const CONFIG: &str = r#"
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
evictionHard: {memory.available: 1Mi}
imageGCHighThresholdPercent: 100
picolet:
  devicePlugins: true
  devicePluginDir: DIR
  cdiSpecDirs: [DIR.cdi]
  devices:
  - resource: example.com/declared
    match: {path: /dev/full}
"#;

/// A host that plugins may come to, and where.
fn start() -> Option<(Host, PathBuf)> {
    if !host::able() {
        return None;
    }
    let mut host = Host::new(&[]);
    let dir = configure(&mut host);
    host.start_agent();
    host.import();
    Some((host, dir))
}

/// Lets plugins come, from the agent's next start on. Returns where.
fn configure(host: &mut Host) -> PathBuf {
    let (config, dir) = (host.path("config.yaml"), host.path("plugins"));
    let text = CONFIG.replace("DIR", &dir.display().to_string());
    fs::write(&config, text).expect("configuration");
    host.flags
        .extend(["--config".into(), config.display().to_string()]);
    dir
}

fn units(all: &[(&str, bool)]) -> Vec<(String, bool)> {
    let all = all.iter();
    all.map(|(id, healthy)| ((*id).into(), *healthy)).collect()
}

/// Says what it got of one unit, and goes on.
fn prober(script: &str) -> Value {
    let script = format!("echo IDS=$IDS; {script} echo said; {IDLE}");
    let container = with(
        sh("main", &script),
        json!({"resources": {"limits": {RESOURCE: 1}}}),
    );
    json!({"containers": [container]})
}

fn says(host: &Host, pod: &str, wanted: &str) {
    host.until("it says what it got", |host| {
        let log = host.cli(&["logs", &full(pod)]);
        let log = host::text(&log.stdout);
        (log.contains(wanted) && log.ends_with("said\n"), log)
    });
}

fn waits(host: &Host, name: &str) -> String {
    let pod = host.wait_pod(name, "waits", |pod| {
        pod["status"]["phase"] == "Pending" && pod["status"]["reason"] == "DeviceNotReady"
    });
    pod["status"]["message"].as_str().unwrap_or_default().into()
}

fn messages(host: &Host, reason: &str) -> Vec<String> {
    let list = host.ok(&["get", "events", "-A", "-o", "json"]);
    let list: Value = serde_json::from_str(&list).expect("events");
    let all = list["items"].as_array().expect("items").iter();
    let all = all.filter(|event| event["reason"] == reason);
    all.map(|event| event["message"].as_str().unwrap_or_default().into())
        .collect()
}

/// Waits until the node has so many units, and may give so many.
fn node_has(host: &Host, capacity: &str, allocatable: &str) {
    host.until("amounts of the node", |host| {
        let node: Value =
            serde_json::from_str(&host.ok(&["get", "node", "-o", "json"])).expect("node");
        let node = node["items"].get(0).cloned().unwrap_or(node);
        let of = |list: &str| node["status"][list][RESOURCE].clone();
        let has = (of("capacity"), of("allocatable"));
        (
            has == (json!(capacity), json!(allocatable)),
            format!("{has:?}"),
        )
    });
}

/// Units of the plugin with their states and holders.
fn shown(host: &Host) -> Vec<String> {
    let table = host.ok(&["get", "devices", "--no-headers"]);
    let rows = table.lines().filter(|line| line.starts_with(RESOURCE));
    rows.map(|row| {
        let words: Vec<&str> = row.split_whitespace().collect();
        [words[1], words[3], words[5]].join(" ")
    })
    .collect()
}

fn id_of(host: &Host, pod: &str) -> Value {
    status_of(&host.get(pod), "main")["containerID"].clone()
}

/// Ends the container's process; another one takes its place.
fn start_anew(host: &Host, pod: &str) {
    let before = id_of(host, pod);
    let pid = Pid::from_raw(host.pid(pod, "main"));
    kill(pid, Signal::SIGKILL).expect("killed");
    host.wait_pod(pod, "starts anew", |pod| {
        let status = status_of(pod, "main");
        status["containerID"] != before && !status["state"]["running"].is_null()
    });
}

// DEV-01 DEV-02 DEV-03 DEV-05 DEV-06 DEV-09 DEV-10 DEV-17
#[test]
fn what_a_plugin_gives() {
    if !Path::new(DEVICE).exists() {
        skipped!("devices need {DEVICE}");
        return;
    }
    let Some((host, dir)) = start() else {
        return;
    };
    let mode = fs::metadata(&dir).expect("directory").mode() & 0o777;
    assert_eq!(mode, 0o750);
    // What nobody has offered yet may come.
    host.pod(
        "first",
        prober(
            "ls /given; od -An -tu4 -N4 /dev/probe || exit 1; touch /given/x 2>/dev/null || echo read-only;",
        ),
    );
    let message = waits(&host, "first");
    assert_eq!(
        message,
        "waits for a device: cannot allocate unregistered device example.com/probe"
    );
    for (version, endpoint, resource, why) in [
        (
            "v1alpha",
            "probe.sock",
            RESOURCE,
            "requested API version \"v1alpha\" is not supported by kubelet. Supported version is \"v1beta1\"",
        ),
        (
            "v1beta1",
            "probe.sock",
            "probe",
            "the ResourceName \"probe\" is invalid",
        ),
        (
            "v1beta1",
            "probe.sock",
            "example.com/declared",
            "example.com/declared is defined in picolet.devices: remove it there",
        ),
        (
            "v1beta1",
            "../probe.sock",
            RESOURCE,
            "the endpoint \"../probe.sock\" is not the name of a socket beside kubelet.sock",
        ),
    ] {
        assert_eq!(register(&dir, version, endpoint, resource), Err(why.into()));
    }
    let refused = register(&dir, "v1beta1", "probe.sock", RESOURCE).expect_err("nobody serves");
    let beginning = format!("cannot dial {}/probe.sock: ", dir.display());
    assert!(refused.starts_with(&beginning), "{refused}");

    // A node, a directory, a variable.
    let (node, given) = (host.path("shared/node"), host.path("shared/given"));
    let number = fs::metadata(DEVICE).expect("device").rdev();
    mknod(&node, SFlag::S_IFCHR, Mode::empty(), number).expect("node");
    fs::set_permissions(&node, fs::Permissions::from_mode(0o600)).expect("mode");
    fs::create_dir(&given).expect("directory");
    fs::write(given.join("file-of-the-plugin"), "").expect("file");
    let gift = Gift {
        mounts: vec![MountMessage {
            container_path: "/given".into(),
            host_path: given.display().to_string(),
            read_only: true,
        }],
        nodes: vec![NodeMessage {
            container_path: "/dev/probe".into(),
            host_path: node.display().to_string(),
            permissions: "rw".into(),
        }],
        ..Gift::default()
    };
    let habits = Habits {
        units: units(&[("one", true), ("two", false), ("three", true)]),
        gift,
        pre_start: true,
        prefers: true,
        ..Habits::default()
    };
    let plugin = Plugin::start(&dir.join("probe.sock"), habits);
    plugin.register(RESOURCE);
    host.wait_ready("first");
    says(&host, "first", "IDS=three\nfile-of-the-plugin\n");
    says(&host, "first", "read-only\n");
    assert_eq!(
        plugin.calls(),
        [
            "GetPreferredAllocation one,three",
            "Allocate three",
            "PreStartContainer three"
        ]
    );
    node_has(&host, "3", "2");
    let of_first = format!("default/{}/main", full("first"));
    assert_eq!(
        shown(&host),
        [
            "one Healthy <none>".to_owned(),
            format!("three Healthy {of_first}"),
            "two Unhealthy <none>".to_owned(),
        ]
    );
    let described = host.ok(&["describe", "node"]);
    assert!(described.contains(RESOURCE), "{described}");

    // DEV-15 DEV-18: how it is, and what it was asked.
    let told = status_of(&host.get("first"), "main")["allocatedResourcesStatus"].clone();
    assert_eq!(
        told,
        json!([{"name": RESOURCE, "resources": [{"resourceID": "three", "health": "Healthy"}]}])
    );
    let figures = metrics::get(&host, "/metrics");
    for name in ["registration_total", "alloc_duration_seconds_count"] {
        let line = format!("kubelet_device_plugin_{name}{{resource_name=\"{RESOURCE}\"}} 1");
        assert!(figures.lines().any(|l| l == line), "{line} in {figures}");
    }
    let checks = metrics::get(&host, "/metrics/slis");
    let line = "kubernetes_healthcheck{name=\"device-plugin\",type=\"healthz\"} 1";
    assert!(checks.lines().any(|l| l == line), "{checks}");

    // Each start is told, what it gives is known.
    start_anew(&host, "first");
    says(&host, "first", "IDS=three\n");
    assert_eq!(plugin.calls()[3..], ["PreStartContainer three"]);

    // A second pod gets another one, a third one waits.
    host.pod("second", prober(""));
    host.wait_ready("second");
    says(&host, "second", "IDS=one\n");
    host.pod("third", prober(""));
    let message = waits(&host, "third");
    assert!(message.ends_with("Requested: 1, Available: 0"), "{message}");
    // It is healthy by now.
    plugin.change(|habits| habits.units[1].1 = true);
    host.wait_ready("third");
    says(&host, "third", "IDS=two\n");
    node_has(&host, "3", "3");

    // Who counts devices sees who has which, of plugins and of the machine.
    let of_machine = with(
        sh("main", IDLE),
        json!({"resources": {"limits": {"example.com/declared": 1}}}),
    );
    let without = sh("beside", IDLE);
    host.pod("fourth", json!({"containers": [of_machine, without]}));
    host.wait_ready("fourth");
    let readers = host.path("pod-resources");
    let list = plugin::list(&readers).expect("a list");
    let line = |pod: &str, held: &str| format!("default/{}/{held}", full(pod));
    let (declared, id) = list[2].rsplit_once('=').expect("an id");
    assert_eq!(
        declared,
        line("fourth", "main: example.com/declared"),
        "{list:?}"
    );
    let first = line("first", "main: example.com/probe=three");
    assert_eq!(
        list,
        [
            first.clone(),
            line("fourth", "beside: "),
            line("fourth", &format!("main: example.com/declared={id}")),
            line("second", "main: example.com/probe=one"),
            line("third", "main: example.com/probe=two"),
        ]
    );
    let own = plugin::get(&readers, "default", &full("first"));
    assert_eq!(own, Ok(vec![first]));
    let none = plugin::get(&readers, "default", "none");
    assert_eq!(none, Err("pod none in namespace default not found".into()));
    let all = plugin::allocatable(&readers).expect("devices");
    assert_eq!(
        all,
        format!("example.com/declared={id} example.com/probe=one+three+two")
    );
    let refused = plugin::hurry(&readers, 100_000);
    let text = "ResourceExhausted: rejected by rate limit";
    assert_eq!(refused, Err(text.into()));
    // It may again a while later.
    host.until("it is answered", |_| {
        let list = plugin::list(&readers);
        (list.is_ok(), format!("{list:?}"))
    });

    // A unit that is held becomes ill: it runs on.
    let running = id_of(&host, "first");
    plugin.change(|habits| habits.units[2].1 = false);
    host.until("it is told", |host| {
        let told = messages(host, "DeviceLost");
        (
            told == ["Device example.com/probe (three) is unhealthy"],
            format!("{told:?}"),
        )
    });
    node_has(&host, "3", "2");
    host.until("it is told", |_| {
        let all = plugin::allocatable(&readers).expect("devices");
        (all.ends_with("example.com/probe=one+two"), all)
    });
    plugin.change(|habits| habits.units[2].1 = true);
    host.until("it is told", |host| {
        let told = messages(host, "DeviceBack");
        (
            told == ["Device example.com/probe (three) is healthy"],
            format!("{told:?}"),
        )
    });
    node_has(&host, "3", "3");
    assert_eq!(id_of(&host, "first"), running);
    host.finish();
}

// DEV-01 DEV-04 DEV-11 DEV-12
#[test]
fn plugin_and_agent_start_anew() {
    let Some((mut host, dir)) = start() else {
        return;
    };
    let socket = dir.join("probe.sock");
    let habits = Habits {
        units: units(&[("one", true), ("two", true)]),
        pre_start: true,
        ..Habits::default()
    };
    let plugin = Plugin::start(&socket, habits.clone());
    plugin.register(RESOURCE);
    host.pod("first", prober(""));
    host.wait_ready("first");
    says(&host, "first", "IDS=one\n");
    let running = id_of(&host, "first");
    node_has(&host, "2", "2");

    // The plugin goes. What runs goes on, and a container that starts waits for it to come back.
    drop(plugin);
    node_has(&host, "2", "0");
    host.pod("second", prober(""));
    let message = waits(&host, "second");
    assert!(
        message.ends_with("cannot allocate unhealthy devices example.com/probe"),
        "{message}"
    );
    assert_eq!(id_of(&host, "first"), running);
    let plugin = Plugin::start(&socket, habits.clone());
    plugin.register(RESOURCE);
    node_has(&host, "2", "2");
    host.wait_ready("second");
    says(&host, "second", "IDS=two\n");
    assert_eq!(plugin.calls(), ["Allocate two", "PreStartContainer two"]);
    assert!(messages(&host, "DeviceLost").is_empty());

    // Another agent: it takes the sockets away, which tells the plugin to register again.
    fs::write(dir.join("a-file"), "").expect("file");
    host.end_agent(Signal::SIGKILL);
    host.start_agent();
    host.until("the socket goes", |_| {
        (!socket.exists(), format!("{}", socket.display()))
    });
    assert!(dir.join("a-file").exists());
    let own = fs::metadata(dir.join("kubelet.sock")).expect("socket");
    assert!(own.file_type().is_socket());
    host.wait_ready("first");
    host.wait_ready("second");
    node_has(&host, "0", "0");
    assert_eq!(id_of(&host, "first"), running);
    host.pod("third", prober(""));
    waits(&host, "third");
    drop(plugin);
    let mut habits = habits;
    habits.units.push(("three".into(), true));
    let plugin = Plugin::start(&socket, habits);
    plugin.register(RESOURCE);
    node_has(&host, "3", "3");
    host.wait_ready("third");
    says(&host, "third", "IDS=three\n");
    assert_eq!(id_of(&host, "first"), running);
    start_anew(&host, "first");
    says(&host, "first", "IDS=one\n");
    assert_eq!(
        plugin.calls(),
        [
            "Allocate three",
            "PreStartContainer three",
            "PreStartContainer one"
        ]
    );
    host.finish();
}

/// One that waits to be asked what it is.
fn found(kind: &str, endpoint: &str, all: &[(&str, bool)]) -> Habits {
    Habits {
        units: units(all),
        info: Info {
            kind: kind.into(),
            name: RESOURCE.into(),
            endpoint: endpoint.into(),
            versions: vec!["v1beta1".into()],
        },
        ..Habits::default()
    }
}

/// Waits until it was told so, by now so often.
fn is_told(host: &Host, plugin: &Plugin, wanted: &str, times: usize) {
    host.until("it is told", |_| {
        let calls = plugin.calls();
        let count = calls.iter().filter(|call| *call == wanted).count();
        (count == times, format!("{calls:?}"))
    });
}

// DEV-16 DEV-12
#[test]
fn plugins_that_are_found() {
    let Some((mut host, dir)) = start() else {
        return;
    };
    let registered = "NotifyRegistrationStatus true,";
    let registry = dir.with_file_name("plugins_registry");
    assert!(!registry.exists(), "nobody made it");
    let below = registry.join("example.com/deep");
    fs::create_dir_all(&below).expect("directory");
    let socket = below.join("probe.sock");
    let one = found("DevicePlugin", "", &[("one", true)]);
    let hidden = Plugin::start(&below.join(".hidden.sock"), one.clone());
    let plugin = Plugin::start(&socket, one.clone());
    host.pod("first", prober(""));
    host.wait_ready("first");
    says(&host, "first", "IDS=one\n");
    is_told(&host, &plugin, registered, 1);
    node_has(&host, "1", "1");
    let running = id_of(&host, "first");

    // Its socket goes, though it is there itself. Then it is restarted.
    fs::remove_file(&socket).expect("removed");
    node_has(&host, "1", "0");
    assert!(host.agent_log().contains("has gone, and so has its socket"));
    drop(plugin);
    let plugin = Plugin::start(&socket, one.clone());
    node_has(&host, "1", "1");
    is_told(&host, &plugin, registered, 1);
    // One that ends by itself and leaves its socket has gone as well, until it is made anew.
    let left = below.join("left.sock");
    fs::rename(&socket, &left).expect("renamed");
    is_told(&host, &plugin, registered, 2);
    drop(plugin);
    node_has(&host, "1", "0");
    fs::remove_file(&left).expect("removed");
    let plugin = Plugin::start(&left, one.clone());
    node_has(&host, "1", "1");
    is_told(&host, &plugin, registered, 1);

    // Another agent: the plugin notices nothing but that it is asked again.
    host.end_agent(Signal::SIGKILL);
    host.start_agent();
    is_told(&host, &plugin, registered, 2);
    node_has(&host, "1", "1");
    host.wait_ready("first");
    assert_eq!(id_of(&host, "first"), running);
    assert!(left.exists());

    // What it serves is elsewhere.
    let elsewhere = host.path("serves.sock");
    let many = found("", "", &[("one", true), ("two", true)]);
    let serves = Plugin::start(&elsewhere, many);
    drop(plugin);
    let endpoint = elsewhere.display().to_string();
    let plugin = Plugin::start(&left, found("DevicePlugin", &endpoint, &[]));
    node_has(&host, "2", "2");
    is_told(&host, &plugin, registered, 1);

    // One that fails is asked again; one that is of no use here is told so, once.
    let late = registry.join("late.sock");
    let mut refuses = found("DevicePlugin", "", &[("late", true)]);
    refuses.refuses = "GetInfo";
    refuses.info.name = "example.com/late".into();
    let late = Plugin::start(&late, refuses);
    let csi = Plugin::start(&registry.join("csi.sock"), found("CSIPlugin", "", &[]));
    let refusal = "NotifyRegistrationStatus false,plugins of type \"CSIPlugin\" are not supported, \
                   only those of type \"DevicePlugin\"";
    is_told(&host, &csi, refusal, 1);
    host.until("it is logged", |host| {
        let log = host.agent_log();
        (log.contains("late.sock: not today"), log)
    });
    late.change(|habits| habits.refuses = "");
    is_told(&host, &late, registered, 1);
    let of_csi = "csi.sock: it is refused: plugins of type";
    assert_eq!(host.agent_log().matches(of_csi).count(), 1);
    assert_eq!(csi.calls(), ["GetInfo ", refusal]);
    assert!(hidden.calls().is_empty(), "{:?}", hidden.calls());
    drop((plugin, serves));
    host.finish();
}

// DEV-03 DEV-08 DEV-10
#[test]
fn plugins_that_misbehave() {
    let Some((host, dir)) = start() else {
        return;
    };
    let socket = dir.join("probe.sock");
    let habits = |mute, refuses| Habits {
        units: units(&[("one", true)]),
        pre_start: true,
        mute,
        refuses,
        ..Habits::default()
    };
    // One that speaks another protocol is no plugin, neither here nor there.
    let mut garbage = UnixStream::connect(dir.join("kubelet.sock")).expect("connected");
    garbage.write_all(&[0xff; 4096]).expect("written");
    let listener = UnixListener::bind(dir.join("garbage.sock")).expect("socket");
    let speak = std::thread::spawn(move || {
        let (mut agent, _) = listener.accept().expect("the agent");
        agent.write_all(&[b'x'; 4096]).expect("written");
        agent
    });
    let refused = register(&dir, "v1beta1", "garbage.sock", RESOURCE).expect_err("garbage");
    assert!(refused.starts_with("GetDevicePluginOptions: "), "{refused}");
    drop((garbage, speak.join()));
    // One that does not say what it can do neither.
    let plugin = Plugin::start(&socket, habits("GetDevicePluginOptions", ""));
    // Eight may try that at a time.
    let refused: Vec<String> = std::thread::scope(|scope| {
        let ask = || register(&dir, "v1beta1", "probe.sock", RESOURCE);
        let asked: Vec<_> = (0..12).map(|_| scope.spawn(ask)).collect();
        let asked = asked.into_iter().map(|asked| asked.join().expect("asked"));
        asked.map(|asked| asked.expect_err("mute")).collect()
    });
    let late = "GetDevicePluginOptions: context deadline exceeded";
    let many = "8 device plugins are registering already";
    assert!(refused.iter().any(|text| text == late), "{refused:?}");
    assert!(refused.iter().any(|text| text == many), "{refused:?}");
    let is_known = |text: &String| text == late || text == many;
    assert!(refused.iter().all(is_known), "{refused:?}");
    // One that does not answer holds up the pod that asks for it, and nobody else.
    plugin.change(|all| *all = habits("Allocate", ""));
    plugin.register(RESOURCE);
    host.pod("first", prober(""));
    host.until("it is asked", |_| {
        let calls = plugin.calls();
        (
            calls.iter().any(|call| call == "Allocate "),
            format!("{calls:?}"),
        )
    });
    let other = json!({"containers": [sh("main", IDLE)]});
    host.pod("other", other);
    host.wait_ready("other");
    let late = "the device plugin of example.com/probe: Allocate: context deadline exceeded";
    // It was there while the first one still waited: that takes half a minute.
    let told = messages(&host, "DeviceNotReady");
    assert!(!told.iter().any(|told| told == late), "{told:?}");
    host.until("it is told", |host| {
        let told = messages(host, "DeviceNotReady");
        (told.iter().any(|told| told == late), format!("{told:?}"))
    });
    // One that refuses a start holds up that start.
    plugin.change(|all| *all = habits("", "PreStartContainer"));
    host.wait_pod("first", "waits", |pod| {
        let waiting = &status_of(pod, "main")["state"]["waiting"];
        waiting["reason"] == "CreateContainerConfigError"
            && waiting["message"]
                == "the device plugin of example.com/probe: PreStartContainer: not today"
    });
    plugin.change(|all| *all = habits("", ""));
    host.wait_ready("first");
    // One that lists far too much is cut off. It can come again.
    let running = id_of(&host, "first");
    plugin.change(|all| {
        all.units = (0..2000).map(|n| (n.to_string(), true)).collect();
    });
    node_has(&host, "1", "0");
    let log = host.agent_log();
    assert!(
        log.contains("the device plugin of example.com/probe has gone: it lists 2000 devices, at most 1024 are accepted"),
        "{log}"
    );
    plugin.change(|all| *all = habits("", ""));
    plugin.register(RESOURCE);
    node_has(&host, "1", "1");
    assert_eq!(id_of(&host, "first"), running);
    host.remove("first.yaml");
    host.wait_gone("first");
    // One that does not answer before a start does not hold up the end of the pod either.
    plugin.change(|all| *all = habits("PreStartContainer", ""));
    host.pod("ends", prober(""));
    host.until("it is asked", |_| {
        let calls = plugin.calls();
        let is_asked = calls.iter().any(|call| call == "PreStartContainer ");
        (is_asked, format!("{calls:?}"))
    });
    host.remove("ends.yaml");
    host.wait_gone("ends");
    let told = messages(&host, "Failed");
    let is_late = |told: &String| told.contains("PreStartContainer: context deadline exceeded");
    assert!(!told.iter().any(is_late), "{told:?}");
    plugin.change(|all| *all = habits("", ""));
    // CDI-04: what is in no file is not left out. The container is made once it is there.
    let name = "vendor.com/class=one";
    plugin.change(|all| all.gift.cdi_devices = vec![CdiMessage { name: name.into() }]);
    host.pod("second", prober(""));
    host.wait_pod("second", "waits", |pod| {
        let waiting = &status_of(pod, "main")["state"]["waiting"];
        let message = waiting["message"].as_str().unwrap_or_default();
        waiting["reason"] == "CreateContainerError"
            && message.contains("unresolvable CDI devices vendor.com/class=one")
    });
    let dir = host.path("plugins.cdi");
    fs::create_dir(&dir).expect("directory");
    let file = json!({"cdiVersion": "0.5.0", "kind": "vendor.com/class",
        "devices": [{"name": "one", "containerEdits": {"env": ["IDS=of the file"]}}]});
    fs::write(dir.join("one.json"), file.to_string()).expect("file");
    host.wait_ready("second");
    says(&host, "second", "IDS=of the file\n");
    // Resources without a healthy device are named.
    plugin.change(|all| all.units[0].1 = false);
    node_has(&host, "1", "0");
    let check = host.command_with_flags("check", &[]);
    let said = host::text(&check.stdout);
    assert!(
        said.contains("no device of example.com/probe is healthy"),
        "{said}"
    );
    host.finish();
}

// DEV-09
#[test]
fn what_a_plugin_gives_in_containerd() {
    let Some((containerd, mut host)) =
        containerd::start_containerd("device_plugins::what_a_plugin_gives_in_containerd")
    else {
        return;
    };
    let dir = configure(&mut host);
    host.start_agent();
    let given = host.path("shared/given");
    fs::create_dir(&given).expect("directory");
    fs::write(given.join("file-of-the-plugin"), "").expect("file");
    let nodes = host.path("shared/nodes");
    fs::create_dir(&nodes).expect("directory");
    let number = fs::metadata("/dev/loop-control").or_else(|_| fs::metadata("/dev/fuse"));
    let number = number
        .or_else(|_| fs::metadata("/dev/kmsg"))
        .expect("device")
        .rdev();
    mknod(&nodes.join("one"), SFlag::S_IFCHR, Mode::S_IRUSR, number).expect("node");
    let gift = Gift {
        mounts: vec![MountMessage {
            container_path: "/given".into(),
            host_path: given.display().to_string(),
            read_only: true,
        }],
        nodes: vec![NodeMessage {
            container_path: "/dev/probe".into(),
            host_path: nodes.display().to_string(),
            permissions: "mrw".into(),
        }],
        ..Gift::default()
    };
    let habits = Habits {
        units: units(&[("one", true)]),
        gift,
        ..Habits::default()
    };
    let plugin = Plugin::start(&dir.join("probe.sock"), habits);
    plugin.register(RESOURCE);
    let script = "echo IDS=$IDS; ls /given /dev/probe; test -c /dev/probe/one && \
                  : < /dev/probe/one && echo opened; echo said; while :; do sleep 1; done";
    let more = json!({"resources": {"limits": {RESOURCE: 1}}});
    let container = containerd::container("main", script, &more);
    host.pod("first", json!({"containers": [container]}));
    host.wait_ready("first");
    says(&host, "first", "IDS=one\n");
    says(&host, "first", "file-of-the-plugin\n");
    says(&host, "first", "opened\n");
    assert_eq!(plugin.calls(), ["Allocate one"]);
    drop(host);
    drop(containerd);
}
