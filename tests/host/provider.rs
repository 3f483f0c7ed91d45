//! Pods at the provider of docs/provider.md, and as processes of the machine, beside containers.

use std::{
    collections::BTreeMap,
    fs::{self, Permissions},
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    os::unix::fs::PermissionsExt as _,
    path::PathBuf,
    process::{Command, Stdio},
};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::{
    containerd::{self, daemon},
    held_port::held_port,
    host::{self, Host, IDLE, IMAGE, full, sh, text},
    lamps::{self, Lamps, lamp},
    live::Terminal,
    metrics,
    mischief::{Mischief, Mood},
    suite::pods,
};

/// Programs that pods may run as processes.
const APPS: [(&str, &str); 5] = [
    (
        "idle",
        "trap 'exit 0' TERM; echo begun $GREETING; while :; do sleep 1000 & wait $!; done",
    ),
    ("ends", "exit $1"),
    ("leaves", "sleep 1000 & echo $!; exit 1"),
    ("stubborn", "trap '' TERM; while :; do sleep 1000; done"),
    (
        "id",
        "id -u; id -g; grep -E '^(NoNewPrivs|CapEff|CapBnd)' /proc/self/status; cat /proc/self/cgroup",
    ),
];

fn process(name: &str, code: Option<u8>) -> Value {
    let command = match code {
        None => vec!["idle".to_owned()],
        Some(code) => vec!["ends".into(), code.to_string()],
    };
    json!({"name": name, "image": "none", "command": command})
}

fn lamp_spec() -> Value {
    json!({"runtimeClassName": "lamps"})
}

fn process_spec() -> Value {
    json!({
        "runtimeClassName": "process", "hostNetwork": true, "terminationGracePeriodSeconds": 5,
        "securityContext": {"runAsUser": 4242, "runAsGroup": 4243},
    })
}

fn with(mut spec: Value, field: &str, value: Value) -> Value {
    spec[field] = value;
    spec
}

/// An agent with the provider, processes and an image.
fn start() -> Option<(Lamps, Host)> {
    start_with(Lamps::socket)
}

/// The same with the provider at the socket that is named.
fn start_with(socket: impl FnOnce(&Lamps) -> PathBuf) -> Option<(Lamps, Host)> {
    if !host::able() {
        return None;
    }
    let mut host = Host::new(&[]);
    let lamps = Lamps::start(&host.path("lamps"));
    let apps = host.programs();
    for (name, script) in APPS {
        let path = apps.join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("program");
        fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("mode");
    }
    let own = json!({
        "providers": {"lamps": socket(&lamps)},
        "process": {"directories": [apps], "variables": ["GREET*"]},
    });
    begin(&mut host, &own);
    host.import();
    // What is bound last is dropped first: an agent ends its pods at the provider.
    Some((lamps, host))
}

/// Starts the agent with that part of the configuration.
fn begin(host: &mut Host, own: &Value) {
    let none = lamps::NO_THRESHOLDS.map(|name| (name, "0%"));
    let config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "imageGCHighThresholdPercent": 100, "evictionHard": BTreeMap::from(none), "picolet": own,
    });
    let path = host.path("config.yaml");
    fs::write(&path, config.to_string()).expect("configuration");
    host.flags
        .extend(["--config".into(), path.display().to_string()]);
    host.start_agent();
}

/// Demands that nothing is left; the provider has nothing to do any more.
fn finish(host: Host, lamps: Lamps) {
    drop(lamps);
    host.finish();
}

fn container(pod: &Value, at: usize) -> &Value {
    &pod["status"]["containerStatuses"][at]
}

#[test]
fn every_driver_runs_the_same_pods() {
    // PRVD-08 PRVD-09
    let Some((lamps, host)) = start() else {
        return;
    };
    for (kind, make, laid) in [
        ("containers", pods::of_images as pods::Make, json!({})),
        ("lamps", lamp, lamp_spec()),
        ("processes", process, process_spec()),
    ] {
        let cases = pods::of_every_driver(IMAGE, make, &laid);
        for case in &cases {
            host.pod(&case.name, case.spec.clone());
        }
        for case in &cases {
            host.until(&format!("{kind}: {}", case.name), |host| {
                let missing = case.missing(&host.get(&case.name));
                (missing.is_empty(), missing.join("; "))
            });
        }
        for case in &cases {
            host.remove(&format!("{}.yaml", case.name));
        }
        for case in &cases {
            host.wait_gone(&case.name);
        }
    }
    host.until("the provider forgets them", |_| {
        let left = lamps.pods();
        (left.is_empty(), format!("{left:?}"))
    });
    finish(host, lamps);
}

#[test]
fn a_lamp_is_reached_like_a_container() {
    // PRVD-01 PRVD-02
    let Some((mut lamps, host)) = start() else {
        return;
    };
    let mut one = lamp("main", None);
    one["env"] =
        json!([{"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]);
    one["readinessProbe"] = json!({"exec": {"command": ["state"]}, "periodSeconds": 1});
    host.pod("lamp", with(lamp_spec(), "containers", json!([one])));
    host.wait_ready("lamp");
    let name = full("lamp");
    let said = host.ok(&["logs", &name]);
    assert_eq!(said, "main is on for the 1. time {'NODE': 'node'}\n");
    assert_eq!(host.ok(&["exec", &name, "--", "state"]), "running\n");
    let refused = host.cli(&["exec", &name, "--", "dance"]);
    assert_eq!(refused.status.code(), Some(127));
    assert_eq!(
        text(&refused.stderr).lines().next(),
        Some("a lamp knows state and cat")
    );
    let mut cat = host
        .command(&["exec", "-i", &name, "--", "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("picolet");
    let mut stdin = cat.stdin.take().expect("input");
    let sent = "0123456789abcdef".repeat(20_000);
    let writer = {
        let sent = sent.clone();
        std::thread::spawn(move || stdin.write_all(sent.as_bytes()).expect("input"))
    };
    let output = cat.wait_with_output().expect("picolet");
    writer.join().expect("writer");
    assert!(output.status.success());
    assert_eq!(text(&output.stdout), sent);
    assert_eq!(host.ok(&["attach", &name]), "running\n");

    // What it has used is what its provider says: 1000 ns of the processor, 4096 bytes.
    let pod = metrics::pod(&metrics::summary(&host, ""), "lamp-node");
    for of in [&pod, &metrics::container(&pod, "main")] {
        let figures = [
            &of["cpu"]["usageCoreNanoSeconds"],
            &of["memory"]["usageBytes"],
            &of["memory"]["workingSetBytes"],
        ];
        assert_eq!(
            figures.map(Value::as_u64),
            [1000, 4096, 4096].map(Some),
            "{of}"
        );
    }

    // On a terminal its `cat` says everything that reaches it, sizes too.
    let mut terminal = Terminal::start(&host, &["exec", "-it", &name, "--", "cat"]);
    let says = |terminal: &Terminal, what: &str| {
        host.until(what, |_| {
            let said = terminal.said();
            (said.contains(what), said)
        });
    };
    says(&terminal, "{\"columns\": 80, \"rows\": 24}");
    terminal.type_in("a key");
    says(&terminal, "a key");
    terminal.resize(100, 30);
    says(&terminal, "{\"columns\": 100, \"rows\": 30}");
    drop(terminal);

    let port = held_port();
    let mut forward = host
        .command(&["port-forward", &name, &format!("{port}:80")])
        .stdout(Stdio::null())
        .spawn()
        .expect("picolet");
    let at = SocketAddr::from(([127, 0, 0, 1], port));
    let mut answer = String::new();
    host.until("the lamp listens", |_| {
        let asked = TcpStream::connect(at).and_then(|mut peer| {
            peer.write_all(b"hello\n")?;
            answer.clear();
            peer.read_to_string(&mut answer)
        });
        (asked.is_ok() && !answer.is_empty(), format!("{asked:?}"))
    });
    assert_eq!(answer, "a lamp listens: hello\n");
    forward.kill().expect("kill");
    forward.wait().expect("wait");

    // A followed log ends with its lamp.
    let follow = host
        .command(&["logs", "-f", &name])
        .stdout(Stdio::piped())
        .spawn()
        .expect("picolet");
    host.remove("lamp.yaml");
    let output = follow.wait_with_output().expect("picolet");
    assert!(text(&output.stdout).ends_with("main is off\n"));
    host.wait_gone("lamp");

    // Whoever is not root's is told nothing.
    lamps.kill();
    lamps.begin();
    host.until("its socket", |_| (lamps.socket().exists(), String::new()));
    fs::set_permissions(lamps.socket(), Permissions::from_mode(0o666)).expect("mode");
    host.pod(
        "lamp",
        with(lamp_spec(), "containers", json!([lamp("main", None)])),
    );
    host.until("it is not trusted", |host| {
        let node = host.ok(&["get", "node", "-o", "json"]);
        (node.contains("must be root's, with mode 0600"), node)
    });
    lamps.kill();
    let stranger = "import os, socket, sys, time\nos.umask(0o177)\ns = socket.socket(socket.AF_UNIX)\n\
                    s.bind(sys.argv[1])\nos.setuid(65534)\ns.listen()\ntime.sleep(1000)";
    let mut stranger = Command::new("python3")
        .args(["-c", stranger])
        .arg(lamps.socket())
        .spawn()
        .expect("python3");
    host.until("nor is whoever serves it", |host| {
        let node = host.ok(&["get", "node", "-o", "json"]);
        (
            node.contains("served by a process that is not root's"),
            node,
        )
    });
    stranger.kill().expect("kill");
    stranger.wait().expect("wait");
    assert!(lamps.pods().is_empty());
    fs::remove_file(lamps.socket()).expect("its socket");
    lamps.begin();
    host.wait_ready("lamp");
    host.remove("lamp.yaml");
    host.wait_gone("lamp");
    finish(host, lamps);
}

#[test]
fn logs_of_a_lamp_outlive_it() {
    // PRVD-10
    let Some((mut lamps, mut host)) = start() else {
        return;
    };
    let spec = with(lamp_spec(), "restartPolicy", json!("Never"));
    host.pod(
        "job",
        with(spec, "containers", json!([lamp("main", Some(3))])),
    );
    host.wait_phase("job", "Failed");
    let name = full("job");
    let whole = "main is on for the 1. time {}\nmain is off\n";
    assert_eq!(host.ok(&["logs", &name]), whole);
    // Neither a new agent nor a new provider forgets them.
    host.end_agent(Signal::SIGKILL);
    lamps.kill();
    lamps.begin();
    host.start_agent();
    host.until("its log", |host| {
        let said = host.cli(&["logs", &name]);
        (text(&said.stdout) == whole, format!("{said:?}"))
    });
    assert_eq!(lamps.pods().len(), 1);
    host.remove("job.yaml");
    host.wait_gone("job");
    host.until("the provider forgets it", |_| {
        let left = lamps.pods();
        (left.is_empty(), format!("{left:?}"))
    });
    finish(host, lamps);
}

#[test]
fn a_provider_beside_containerd() {
    // PRVD-01 PRVD-09
    let Some((containerd, begun)) = containerd::start_containerd("a_provider_beside_containerd")
    else {
        return;
    };
    let lamps = Lamps::start(&begun.path("lamps"));
    // What is bound last is dropped first: an agent ends its pods at the provider.
    let mut host = begun;
    begin(&mut host, &json!({"providers": {"lamps": lamps.socket()}}));
    let idle = containerd::container("c", IDLE, &json!({}));
    let of_box = json!({"containers": [idle]});
    host.pod("box", of_box.clone());
    // It does not tell its handlers: a provider's is not the only one for that.
    host.pod(
        "other",
        with(of_box, "runtimeClassName", json!(daemon::HANDLER)),
    );
    let before = host.wait_ready("box");
    host.wait_ready("other");
    let cases = pods::of_every_driver(IMAGE, lamp, &lamp_spec());
    for case in &cases {
        host.pod(&case.name, case.spec.clone());
    }
    for case in &cases {
        host.until(&case.name, |host| {
            let missing = case.missing(&host.get(&case.name));
            (missing.is_empty(), missing.join("; "))
        });
    }
    host.pod(
        "lamp",
        with(lamp_spec(), "containers", json!([lamp("main", None)])),
    );
    host.wait_ready("lamp");
    let (lamp, own) = (full("lamp"), full("box"));
    assert_eq!(host.ok(&["exec", &lamp, "--", "state"]), "running\n");
    assert_eq!(host.ok(&["exec", &own, "--", "echo", "own"]), "own\n");
    assert!(host.ok(&["logs", &lamp]).starts_with("main is on"));
    let summary = metrics::summary(&host, "");
    let bytes = |name: &str| {
        let pod = metrics::pod(&summary, &format!("{name}-node"));
        pod["memory"]["workingSetBytes"].as_u64()
    };
    assert_eq!(bytes("lamp"), Some(4096), "{summary}");
    assert!(
        bytes("box").is_some_and(|bytes| bytes > 0 && bytes != 4096),
        "{summary}"
    );
    // Both are found again.
    host.end_agent(Signal::SIGKILL);
    host.start_agent();
    host.wait_ready("lamp");
    assert_eq!(container(&host.wait_ready("box"), 0), container(&before, 0));
    let names = cases.iter().map(|case| case.name.as_str());
    for name in names.clone().chain(["lamp", "box", "other"]) {
        host.remove(&format!("{name}.yaml"));
    }
    for name in names.chain(["lamp", "box", "other"]) {
        host.wait_gone(name);
    }
    host.until("the provider has nothing", |_| {
        let left = lamps.pods();
        (left.is_empty(), format!("{left:?}"))
    });
    finish(host, lamps);
    drop(containerd);
}

#[test]
fn kills_of_the_agent_and_of_the_provider_lose_and_double_nothing() {
    // PRVD-07
    let Some((mut lamps, mut host)) = start() else {
        return;
    };
    host.pod("box", json!({"containers": [sh("c", IDLE)]}));
    host.pod(
        "proc",
        with(process_spec(), "containers", json!([process("c", None)])),
    );
    host.pod(
        "lamp",
        with(lamp_spec(), "containers", json!([lamp("c", None)])),
    );
    let all = ["box", "proc", "lamp"];
    let before = all.map(|name| host.wait_ready(name));
    for _ in 0..3 {
        host.end_agent(Signal::SIGKILL);
        lamps.kill();
        host.start_agent();
        lamps.begin();
    }
    for (name, before) in all.iter().zip(&before) {
        host.until(name, |host| {
            let now = host.get(name);
            let same = container(&now, 0) == container(before, 0);
            (same, container(&now, 0).to_string())
        });
        host.remove(&format!("{name}.yaml"));
    }
    for name in all {
        host.wait_gone(name);
    }
    assert!(lamps.pods().is_empty());
    // What it forgets while nobody looks it is told again: another instance.
    host.pod(
        "lamp",
        with(lamp_spec(), "containers", json!([lamp("c", None)])),
    );
    host.wait_ready("lamp");
    lamps.kill();
    lamps.remember(&json!({"instance": "another", "cursor": 0, "pods": {}}));
    lamps.begin();
    host.until("it is told again", |_| {
        (lamps.pods().len() == 1, String::new())
    });
    host.wait_ready("lamp");
    host.remove("lamp.yaml");
    host.wait_gone("lamp");
    finish(host, lamps);
}

#[test]
fn mischief_of_a_provider_is_its_own_pods_affair() {
    // PRVD-05 PRVD-06 PRVD-07 PRVD-09
    let mut between = None;
    let started = start_with(|lamps| {
        let real = lamps.socket();
        let dir = real.parent().expect("a directory").to_owned();
        let mischief = between.insert(Mischief::start(&dir, real));
        mischief.socket().to_owned()
    });
    let Some((mut lamps, host)) = started else {
        return;
    };
    let between = between.expect("made");
    let of_lamp = || with(lamp_spec(), "containers", json!([lamp("c", None)]));
    host.pod("box", json!({"containers": [sh("c", IDLE)]}));
    host.pod("lamp", of_lamp());
    let all = ["box", "lamp"];
    let before = all.map(|name| host.wait_ready(name));
    let untouched = |host: &Host, when: &str, names: &[&str]| {
        for (name, before) in all.iter().zip(&before) {
            if names.contains(name) {
                let now = host.get(name);
                assert_eq!(container(&now, 0), container(before, 0), "{when}: {name}");
            }
        }
    };
    let condition = |host: &Host, wanted: &str| {
        host.until(&format!("ProviderReady is {wanted}"), |host| {
            let node: Value =
                serde_json::from_str(&host.ok(&["get", "node", "-o", "json"])).expect("node");
            let conditions = node["status"]["conditions"].as_array().expect("conditions");
            let found = conditions.iter().find(|c| c["type"] == "ProviderReady");
            (
                found.is_some_and(|c| c["status"] == wanted),
                node["status"]["conditions"].to_string(),
            )
        });
    };
    for mood in [Mood::Slow, Mood::Repeats, Mood::Silent, Mood::Broken] {
        let when = format!("{mood:?}");
        between.set(mood);
        let is_deaf = matches!(mood, Mood::Silent | Mood::Broken);
        if is_deaf {
            condition(&host, "False");
        }
        host.pod("new", of_lamp());
        host.pod("other", json!({"containers": [sh("c", IDLE)]}));
        host.wait_ready("other");
        // Who waits for figures waits for none that is late.
        metrics::pod(&metrics::summary(&host, ""), "box-node");
        if is_deaf {
            assert_eq!(lamps.pods().len(), 1, "{when}: it was told");
            untouched(&host, &when, &all);
            between.set(Mood::Honest);
        }
        host.wait_ready("new");
        untouched(&host, &when, &all);
        host.remove("new.yaml");
        host.remove("other.yaml");
        host.wait_gone("new");
        host.wait_gone("other");
        between.set(Mood::Honest);
        condition(&host, "True");
    }
    // It dies while it is told of a pod, and while one ends.
    host.pod("new", of_lamp());
    lamps.kill();
    lamps.begin();
    host.wait_ready("new");
    host.remove("new.yaml");
    lamps.kill();
    lamps.begin();
    host.wait_gone("new");
    untouched(&host, "restarted", &all);

    between.set(Mood::Lies);
    host.until("the lie is told", |host| {
        let events = host.ok(&["get", "events"]);
        (events.contains("ProviderStatusInvalid"), events)
    });
    untouched(&host, "lies", &all);
    between.set(Mood::Forgets);
    let failed = host.wait_phase("lamp", "Failed");
    assert_eq!(failed["status"]["reason"], "NotFound");
    untouched(&host, "forgets", &["box"]);
    // What comes to light again is wanted by nobody.
    between.set(Mood::Honest);
    host.remove("lamp.yaml");
    host.wait_gone("lamp");
    host.until("the provider has nothing", |_| {
        let left = lamps.pods();
        (left.is_empty(), format!("{left:?}"))
    });
    untouched(&host, "at the end", &["box"]);
    host.remove("box.yaml");
    host.wait_gone("box");
    finish(host, lamps);
}

#[test]
fn processes_have_what_their_pod_says_and_nothing_more() {
    // PRVD-08
    let Some((lamps, mut host)) = start() else {
        return;
    };
    let mut idle = process("c", None);
    idle["env"] = json!([{"name": "GREETING", "value": "hello"}]);
    idle["resources"] = json!({"limits": {"memory": "64Mi"}});
    idle["readinessProbe"] = json!({"exec": {"command": ["ends", "0"]}, "periodSeconds": 1});
    host.pod("proc", with(process_spec(), "containers", json!([idle])));
    let pod = host.wait_ready("proc");
    let name = full("proc");
    host.until("its log", |host| {
        let said = host.ok(&["logs", &name]);
        (said == "begun hello\n", said)
    });
    let said = host.ok(&["exec", &name, "--", "id"]);
    let mut lines = said.lines();
    assert_eq!(
        (lines.next(), lines.next()),
        (Some("4242"), Some("4243")),
        "{said}"
    );
    for wanted in [
        "NoNewPrivs:\t1",
        "CapEff:\t0000000000000000",
        "CapBnd:\t0000000000000000",
    ] {
        assert!(said.lines().any(|line| line == wanted), "{wanted}: {said}");
    }
    let uid = pod["metadata"]["uid"].as_str().expect("uid");
    assert!(said.contains(&format!("/pod{uid}/")), "{said}");
    let pid = host.pid("proc", "c");
    let limits = fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("cgroup");
    let memory = limits
        .lines()
        .find_map(|l| l.split_once(":memory:").or_else(|| l.split_once("0::")));
    let path = memory.expect("a memory cgroup").1;
    let limit = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"]
        .iter()
        .flat_map(|root| {
            ["memory.limit_in_bytes", "memory.max"].map(|f| format!("{root}{path}/{f}"))
        })
        .find_map(|file| fs::read_to_string(file).ok());
    assert_eq!(limit.as_deref().map(str::trim), Some("67108864"));

    // Adopted, not begun again.
    host.end_agent(Signal::SIGKILL);
    host.start_agent();
    host.wait_ready("proc");
    assert_eq!(host.pid("proc", "c"), pid);
    host.remove("proc.yaml");
    host.wait_gone("proc");
    host.wait_process_gone(pid);

    // One that does not end by itself is ended after its grace.
    let stubborn = json!({"name": "c", "image": "none", "command": ["stubborn"]});
    let spec = with(process_spec(), "terminationGracePeriodSeconds", json!(1));
    host.pod("stubborn", with(spec, "containers", json!([stubborn])));
    host.wait_ready("stubborn");
    let pid = host.pid("stubborn", "c");
    host.remove("stubborn.yaml");
    host.wait_gone("stubborn");
    host.wait_process_gone(pid);

    // What one has started ends with it.
    let leaves = json!({"name": "c", "image": "none", "command": ["leaves"]});
    let spec = with(process_spec(), "restartPolicy", json!("Never"));
    host.pod("leaves", with(spec, "containers", json!([leaves])));
    host.wait_phase("leaves", "Failed");
    let left = host.ok(&["logs", &full("leaves")]);
    host.wait_process_gone(left.trim().parse().expect("a process id"));
    host.remove("leaves.yaml");
    host.wait_gone("leaves");

    // What it cannot honour it refuses by name.
    // One in a directory that others than root may write.
    let loose = host.programs().join("loose");
    fs::create_dir(&loose).expect("directory");
    fs::copy(host.programs().join("ends"), loose.join("ends")).expect("program");
    fs::set_permissions(&loose, Permissions::from_mode(0o1777)).expect("mode");
    let may_write = format!("others than root may write \"{}\"", loose.display());
    // The text is within JSON.
    let may_write = may_write.replace('"', "\\\"");
    let refusals: [(&str, &str, Value, &str); 10] = [
        ("network", "/hostNetwork", json!(false), "hostNetwork"),
        (
            "privileged",
            "/containers/0/securityContext",
            json!({"privileged": true}),
            "privileged",
        ),
        ("terminal", "/containers/0/tty", json!(true), "tty"),
        (
            "outside",
            "/containers/0/command",
            json!(["/bin/sh"]),
            "none of the directories",
        ),
        (
            "root",
            "/securityContext",
            json!({"runAsUser": 0}),
            "allowRoot",
        ),
        ("nobody", "/securityContext", json!({}), "runAsUser"),
        (
            "group",
            "/securityContext",
            json!({"runAsUser": 4242, "runAsGroup": 0}),
            "group 0",
        ),
        (
            "loose",
            "/containers/0/command",
            json!(["loose/ends", "0"]),
            &may_write,
        ),
        (
            "startup",
            "/containers/0/env",
            json!([{"name": "BASH_ENV", "value": "/tmp/a.sh"}]),
            "it is not in picolet.process.variables",
        ),
        (
            "preload",
            "/containers/0/env",
            json!([{"name": "LD_PRELOAD", "value": "/tmp/a.so"}]),
            "LD_PRELOAD",
        ),
    ];
    for (name, at, value, why) in refusals {
        let mut spec = with(process_spec(), "containers", json!([process("c", None)]));
        let (parent, field) = at.rsplit_once('/').expect("a pointer");
        spec.pointer_mut(parent).expect("there")[field] = value;
        host.pod(name, spec);
        host.wait_pod(name, why, |pod| {
            let state = container(pod, 0);
            state["state"].to_string().contains(why) || state["lastState"].to_string().contains(why)
        });
        host.remove(&format!("{name}.yaml"));
        host.wait_gone(name);
    }
    finish(host, lamps);
}
