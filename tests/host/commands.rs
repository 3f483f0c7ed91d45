//! A pod as its owner sees it: the local commands, the environment and files of its containers, its network.

use core::time::Duration;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::Stdio;

use serde_json::{Value, json};

use crate::held_port::held_port;
use crate::host::{self, Host, IDLE, NODE, full, http, sh, status_of, text, with};

/// Two objects beside the pods that use them, in YAML as people write it.
const OBJECTS: [(&str, &str); 2] = [
    (
        "settings.yaml",
        "apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data:
  greeting: hello
  motd: |
    of the day
binaryData: {blob: AAEC}
",
    ),
    (
        "token.yaml",
        "apiVersion: v1
kind: Secret
metadata: {name: token}
stringData: {password: s3cret}
",
    ),
];

/// Everything a pod can have beside it.
fn web(host_port: u16) -> Value {
    let mut pod = host::manifest(
        "web",
        json!({
            "initContainers": [
                with(
                    sh("prepare", "echo \"prepared by $ME\" > /www/index.html"),
                    json!({
                        "env": [{"name": "ME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
                        "volumeMounts": [{"name": "www", "mountPath": "/www"}]
                    }),
                ),
                with(sh("side", &format!("echo side is up; {IDLE}")), json!({"restartPolicy": "Always"})),
            ],
            "containers": [
                with(
                    sh("server", "exec httpd -f -p 8080 -h /www"),
                    json!({
                        "ports": [{"containerPort": 8080, "hostPort": host_port}],
                        "volumeMounts": [{"name": "www", "mountPath": "/www", "readOnly": true}]
                    }),
                ),
                with(
                    sh("talker", &format!("for n in 1 2 3 4 5; do echo line $n; done; echo to stderr >&2; {IDLE}")),
                    json!({
                        "env": [
                            {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                            {"name": "ON", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                            {"name": "MEMORY", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}},
                            {"name": "GREETING", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "greeting"}}},
                            {"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "token", "key": "password"}}},
                            {"name": "SAYS", "value": "$(GREETING), $(ON) $$(ON) $(NOBODY)"},
                            {"name": "ABSENT", "valueFrom": {"configMapKeyRef": {"name": "none", "key": "x", "optional": true}}}
                        ],
                        "envFrom": [{"prefix": "C_", "configMapRef": {"name": "settings"}}],
                        "resources": {"limits": {"memory": "32Mi"}},
                        "volumeMounts": [
                            {"name": "www", "mountPath": "/shared"},
                            {"name": "info", "mountPath": "/info"},
                            {"name": "settings", "mountPath": "/settings"},
                            {"name": "token", "mountPath": "/token"}
                        ]
                    }),
                ),
            ],
            "volumes": [
                {"name": "www", "emptyDir": {}},
                {"name": "settings", "configMap": {"name": "settings"}},
                {"name": "token", "secret": {"secretName": "token", "defaultMode": 0o400}},
                {"name": "info", "downwardAPI": {"items": [
                    {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
                    {"path": "deep/memory", "resourceFieldRef": {"containerName": "talker", "resource": "limits.memory", "divisor": "1Mi"}}
                ]}}
            ]
        }),
    );
    pod["metadata"]["labels"] = json!({"app": "web", "tier": "front"});
    pod
}

#[test]
fn pod_and_commands() {
    if !host::able() {
        return;
    }
    let host = Host::start(&[]);
    for (file, text) in OBJECTS {
        host.write(file, text);
    }
    let host_port = held_port();
    host.write("web.yaml", &web(host_port).to_string());
    let pod = host.wait_ready("web");
    shows_status(&pod);
    shows_tables(&host, &pod);
    shows_environment_and_files(&host, &pod);
    shows_logs(&host);
    shows_logs_of_many(&host);
    follows_logs(&host);
    runs_commands(&host);
    copies_files(&host);
    serves(&host, &pod, host_port);
    waits_restarts_and_deletes(&host);
    manages_images(&host);
    host.finish();
}

// STAT-05 STAT-22 STAT-33 STAT-43 STAT-44 STAT-45 PROBE-40 PROBE-41 RES-09 RTM-01
fn shows_status(pod: &Value) {
    let status = &pod["status"];
    assert_eq!(status["phase"], "Running");
    assert_eq!(status["qosClass"], "Burstable");
    assert_eq!(pod["spec"]["nodeName"], NODE);
    assert_eq!(pod["metadata"]["namespace"], "default");
    assert_eq!(
        pod["metadata"]["annotations"]["kubernetes.io/config.hash"],
        pod["metadata"]["uid"]
    );
    let prepare = status_of(pod, "prepare");
    assert_eq!(prepare["state"]["terminated"]["exitCode"], 0, "{prepare}");
    assert_eq!(prepare["ready"], true, "{prepare}");
    for name in ["side", "server", "talker"] {
        let container = status_of(pod, name);
        assert_eq!(container["ready"], true, "{container}");
        assert_eq!(container["started"], true, "{container}");
        assert_eq!(container["restartCount"], 0, "{container}");
        assert_eq!(container["image"], host::IMAGE, "{container}");
        let id = container["containerID"].as_str().unwrap_or_default();
        assert!(id.starts_with("picolet://"), "{id}");
    }
    // The init container had ended before the others began.
    let finished = prepare["state"]["terminated"]["finishedAt"].as_str();
    let started = status_of(pod, "server")["state"]["running"]["startedAt"].as_str();
    assert!(
        finished.is_some() && finished <= started,
        "{finished:?} {started:?}"
    );
    assert!(status["startTime"].is_string());
    for kind in [
        "PodScheduled",
        "PodReadyToStartContainers",
        "Initialized",
        "ContainersReady",
        "Ready",
    ] {
        let all = status["conditions"].as_array().expect("conditions");
        let one = all.iter().find(|c| c["type"] == kind);
        assert_eq!(one.map(|c| &c["status"]), Some(&json!("True")), "{kind}");
    }
}

fn shows_tables(host: &Host, pod: &Value) {
    let table = host.ok(&["get", "pods"]);
    let words =
        |line: &str| -> Vec<String> { line.split_whitespace().map(str::to_owned).collect() };
    let mut lines = table.lines();
    assert_eq!(
        lines.next().map(words),
        Some(words("NAME READY STATUS RESTARTS AGE"))
    );
    let row = words(lines.next().unwrap_or_default());
    assert_eq!(row[..4], ["web-node", "3/3", "Running", "0"], "{table}");
    let wide = host.ok(&["get", "pods", "-o", "wide", "--no-headers"]);
    let ip = pod["status"]["podIP"].as_str().unwrap_or_default();
    assert!(!ip.is_empty() && wide.contains(ip), "{wide}");
    assert!(wide.contains(NODE) && !wide.contains("NAME"), "{wide}");
    let yaml = host.ok(&["get", "pod", &full("web"), "-o", "yaml"]);
    assert!(
        yaml.contains("kind: Pod\n") && yaml.contains("phase: Running"),
        "{yaml}"
    );
    let one: Value = serde_json::from_str(&host.ok(&["get", "pod", &full("web"), "-o", "json"]))
        .expect("one object");
    assert_eq!(one["kind"], "Pod");
    let list: Value =
        serde_json::from_str(&host.ok(&["get", "pods", "-o", "json"])).expect("a list");
    assert_eq!(list["kind"], "List");
    let absent = host.cli(&["get", "pod", "nobody"]);
    assert_eq!(absent.status.code(), Some(1));
    assert_eq!(
        text(&absent.stderr),
        "Error from server (NotFound): pods \"nobody\" not found\n"
    );
    shows_chosen_objects(host);
    let node = host.ok(&["get", "node", "-o", "wide"]);
    assert!(node.contains("Ready") && node.contains("v1.36"), "{node}");
    assert_eq!(
        host.ok(&["version"]),
        format!("picolet {}\n", env!("CARGO_PKG_VERSION"))
    );
}

// GET-01 GET-02 GET-03 GET-04 GET-06 GET-07
fn shows_chosen_objects(host: &Host) {
    let name = full("web");
    for (words, expected) in [
        (
            &["get", "po", "-l", "app in (web),tier", "-o", "name"][..],
            format!("pod/{name}\n"),
        ),
        (
            &["get", "pods", "-l", "app!=web", "-o", "name"],
            String::new(),
        ),
        (
            &[
                "get",
                "pods",
                "--field-selector",
                "status.phase=Running,spec.nodeName=node",
                "-o",
                "name",
            ],
            format!("pod/{name}\n"),
        ),
        (
            &[
                "get",
                "pods",
                "-o",
                "jsonpath={range .items[*]}{.metadata.name}={.status.phase};{end}",
            ],
            format!("{name}=Running;"),
        ),
        (
            &[
                "get",
                "pods",
                "-o",
                "custom-columns=N:.metadata.name,APP:.metadata.labels.app",
            ],
            format!("{:w$}   APP\n{name}   web\n", "N", w = name.len()),
        ),
        (
            &["get", "cm/settings", "secret/token", "-o", "name"],
            "configmap/settings\nsecret/token\n".into(),
        ),
        (
            &["get", "pod", "nobody", "--ignore-not-found"],
            String::new(),
        ),
    ] {
        assert_eq!(host.ok(words), expected, "{words:?}");
    }
    let json = |words: &[&str]| -> Value {
        serde_json::from_str(&host.ok(&[words, &["-o", "json"]].concat())).expect("JSON")
    };
    let view = json(&["config", "view"]);
    assert_eq!(view["kind"], "KubeletConfiguration");
    assert_eq!(view["maxPods"], 110, "a default");
    let yaml = host.ok(&["config", "view"]);
    assert_eq!(yaml, host.ok(&["config", "view", "-o", "yaml"]));
    assert!(
        yaml.lines().any(|l| l == "kind: KubeletConfiguration"),
        "{yaml}"
    );
    let version = json!({"gitVersion": env!("CARGO_PKG_VERSION")});
    let both = json!({"clientVersion": version, "serverVersion": version});
    assert_eq!(json(&["version"]), both);
    let alone = json(&["version", "--socket", "/no/agent"]);
    assert_eq!(alone, json!({"clientVersion": version}));
    let yaml = host.ok(&["version", "-o", "yaml"]);
    assert!(yaml.starts_with("clientVersion:\n"), "{yaml}");
    assert!(yaml.contains("\nserverVersion:\n"), "{yaml}");
    let two = host.ok(&["get", "pods,cm", "-L", "app", "--show-labels"]);
    let words: Vec<&str> = two.split_whitespace().collect();
    for word in ["APP", "LABELS", "app=web,tier=front", "configmap/settings"] {
        assert!(words.contains(&word), "{word}: {two}");
    }
    let refused = host.cli(&["get", "pods", "--field-selector", "spec.image=x"]);
    let says = text(&refused.stderr);
    assert!(
        says.starts_with(
            "Error from server (BadRequest): pods: field label not supported: spec.image"
        ),
        "{says}"
    );
}

// ENV-01 ENV-02 ENV-03 ENV-04 ENV-05 ENV-11 ENV-14 VOL-05 VOL-06 VOL-10 VOL-11 VOL-12 VOL-13 RTM-08 CFG-18 CFG-20 CFG-50
fn shows_environment_and_files(host: &Host, pod: &Value) {
    let ip = pod["status"]["podIP"].as_str().unwrap_or_default();
    let env = host.exec("web", "talker", "env");
    for line in [
        &format!("IP={ip}"),
        "ON=node",
        "MEMORY=32",
        "GREETING=hello",
        "PASSWORD=s3cret",
        "SAYS=hello, node $(ON) $(NOBODY)",
        "C_greeting=hello",
        "FROM_IMAGE=yes",
        "HOSTNAME=web-node",
    ] {
        assert!(env.lines().any(|l| l == line), "{line} is not in\n{env}");
    }
    assert!(!env.contains("ABSENT") && !env.contains("C_blob"), "{env}");
    for (script, wanted) in [
        ("cat /info/labels", "app=\"web\"\ntier=\"front\""),
        ("cat /info/deep/memory", "32"),
        ("cat /settings/motd", "of the day\n"),
        ("od -An -tx1 /settings/blob", " 00 01 02\n"),
        ("cat /token/password", "s3cret"),
        ("stat -L -c %a /token/password", "400\n"),
        ("stat -c %a /shared", "777\n"),
        ("readlink /settings/motd", "..data/motd\n"),
        ("stat -f -c %T /token", "tmpfs\n"),
        ("touch /settings/x 2>/dev/null; echo $?", "1\n"),
        ("cat /shared/index.html", "prepared by web-node\n"),
        ("hostname", "web-node\n"),
    ] {
        assert_eq!(host.exec("web", "talker", script), wanted, "{script}");
    }
    let hosts = host.exec("web", "talker", "cat /etc/hosts");
    assert!(
        hosts.starts_with("# Kubernetes-managed hosts file.\n")
            && hosts.contains(&format!("{ip}\tweb-node\n")),
        "{hosts}"
    );
}

// LOG-01 LOG-03 CFG-10 CFG-11
fn shows_logs(host: &Host) {
    let pod = full("web");
    let talker = |words: &[&str]| {
        let mut all = vec!["logs", &pod, "-c", "talker"];
        all.extend(words);
        host.ok(&all)
    };
    host.until("all lines are there", |_| {
        let log = talker(&[]);
        (log.contains("stderr") && log.contains("line 5"), log)
    });
    // Two streams, read in one order only within each.
    let log = talker(&[]);
    let lines: Vec<&str> = log.lines().filter(|l| l.starts_with("line")).collect();
    assert_eq!(lines, ["line 1", "line 2", "line 3", "line 4", "line 5"]);
    assert_eq!(log.lines().count(), 6);
    assert_eq!(talker(&["--tail", "2"]).lines().count(), 2);
    assert_eq!(talker(&["--tail=0"]), "");
    assert_eq!(talker(&["--since", "1h"]), log);
    assert_eq!(talker(&["--since-time", "2200-01-01T00:00:00Z"]), "");
    assert_eq!(talker(&["--limit-bytes", "4"]), "line");
    let stamped = talker(&["--timestamps"]);
    let first = stamped.lines().next().unwrap_or_default();
    let (stamp, rest) = first.split_once(' ').unwrap_or_default();
    assert!(stamp.len() >= 30 && log.starts_with(rest), "{stamped}");
    assert_eq!(host.ok(&["logs", &pod, "side"]), "side is up\n");
    let previous = host.cli(&["logs", &pod, "-c", "talker", "-p"]);
    assert_eq!(previous.status.code(), Some(1));
    let said = text(&previous.stderr);
    assert!(said.contains("previous terminated container"), "{said}");
    let unknown = host.cli(&["logs", &pod, "-c", "nobody"]);
    assert_eq!(unknown.status.code(), Some(1));
    // The file itself, as every Kubernetes node has it.
    let uid = host.get("web")["metadata"]["uid"]
        .as_str()
        .map(str::to_owned);
    let dir = format!(
        "logs/default_{pod}_{}/talker/0.log",
        uid.unwrap_or_default()
    );
    let file = fs::read_to_string(host.path(&dir)).expect("log file");
    assert!(file.contains(" stderr F to stderr\n"), "{file}");
    let links: Vec<String> = fs::read_dir(host.path("links"))
        .expect("links")
        .map(|e| e.expect("link").file_name().to_string_lossy().into_owned())
        .collect();
    let start = format!("{pod}_default_talker-");
    assert!(links.iter().any(|l| l.starts_with(&start)), "{links:?}");
}

// CMD-01 CMD-02
fn shows_logs_of_many(host: &Host) {
    let pod = full("web");
    let all = host.ok(&["logs", &pod, "--all-containers", "--prefix", "--tail=1"]);
    let side = format!("[pod/{pod}/side] side is up");
    let talker = format!("[pod/{pod}/talker] ");
    assert!(all.lines().any(|line| line == side), "{all}");
    assert!(all.lines().any(|line| line.starts_with(&talker)), "{all}");
    let chosen = host.ok(&["logs", "-l", "app=web,tier", "-c", "talker"]);
    assert_eq!(chosen.lines().count(), 6, "{chosen}");
    let none = host.cli(&["logs", "-l", "app=db"]);
    assert!(none.status.success() && none.stdout.is_empty(), "{none:?}");
    assert_eq!(
        text(&none.stderr),
        "No resources found in default namespace.\n"
    );
    let three = ["logs", &pod, "--all-containers", "-f", "--max-log-requests"];
    for (words, says) in [
        (
            &[&three[..], &["3"]].concat()[..],
            "attempting to follow 4 log streams",
        ),
        (
            &["logs", "nobody", "--prefix"],
            "(NotFound): pods \"nobody\" not found",
        ),
        (
            &["logs", "-l", "app=web", &pod],
            "only a selector (-l) or a POD name",
        ),
        (
            &["logs", &pod, "-c", "side", "--all-containers"],
            "container name side",
        ),
        (&["logs", "-l", "app="], "No resources found"),
        (&["logs", "-l", "a b"], "invalid selector"),
        (
            &["logs", "-l", "app", "-c", "nobody", "-f"],
            "not valid for pod",
        ),
        (
            &["logs", &pod, "--all-containers", "-f", "-p"],
            "previous terminated container",
        ),
        (
            &["logs", &pod, "side", "more"],
            "unexpected argument \"more\"",
        ),
    ] {
        let said = host.cli(words);
        let is_error = !says.starts_with("No resources");
        assert_eq!(said.status.code(), Some(i32::from(is_error)), "{words:?}");
        assert!(text(&said.stderr).contains(says), "{words:?}: {said:?}");
    }
    let words = ["logs", &pod, "--all-containers", "-p", "--ignore-errors"];
    let told = host.cli(&words);
    let errors = text(&told.stderr).matches("Error from server").count();
    assert!(told.status.success() && errors == 4, "{told:?}");
}

// LOG-03
fn follows_logs(host: &Host) {
    let mut follow = host
        .command(&["logs", "-f", &full("web"), "-c", "talker", "--tail", "0"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("logs");
    let mut lines = BufReader::new(follow.stdout.take().expect("a pipe")).lines();
    // Written to the output of the container's init: its log is what it says.
    let say = "for n in 6 7 8; do echo line $n > /proc/1/fd/1; done";
    // What was written before the reader had come is not shown; so it is written until something is.
    let (sender, seen) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        for line in lines.by_ref().take(3) {
            let _ = sender.send(line.expect("a line"));
        }
    });
    let mut got = Vec::new();
    host.until("followed lines come", |host| {
        if got.is_empty() {
            host.exec("web", "talker", say);
        }
        while let Ok(line) = seen.recv_timeout(Duration::from_millis(200)) {
            got.push(line);
        }
        (got.len() == 3, format!("{got:?}"))
    });
    assert_eq!(got, ["line 6", "line 7", "line 8"]);
    reader.join().expect("reader");
    follow.kill().expect("kill");
    follow.wait().expect("logs");
}

// RTM-15 STREAM-01
fn runs_commands(host: &Host) {
    let pod = full("web");
    let code = |script: &str| {
        let words = ["exec", &pod, "-c", "talker", "--", "sh", "-c", script];
        let output = host.cli(&words);
        (
            output.status.code(),
            text(&output.stdout),
            text(&output.stderr),
        )
    };
    assert_eq!(code("true"), (Some(0), String::new(), String::new()));
    let (failed, out, err) = code("echo out; echo err >&2; exit 7");
    assert_eq!((failed, out.as_str()), (Some(7), "out\n"));
    assert!(err.starts_with("err\n"), "{err}");
    assert_eq!(code("kill -9 $$").0, Some(137));
    // A command that is not there is the runtime's error, in its own words.
    let absent = host.cli(&["exec", &pod, "-c", "talker", "--", "no-such-command"]);
    assert!(!absent.status.success());
    // Standard input, to its end, more than any pipe holds.
    let mut count = host
        .command(&["exec", "-i", &pod, "-c", "talker", "--", "wc", "-c"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("exec");
    let mut stdin = count.stdin.take().expect("a pipe");
    stdin.write_all(&vec![b'x'; 1_000_000]).expect("input");
    drop(stdin);
    let mut said = String::new();
    count
        .stdout
        .take()
        .expect("a pipe")
        .read_to_string(&mut said)
        .expect("output");
    assert_eq!(said.trim(), "1000000");
    assert!(count.wait().expect("exec").success());
    let other = host.cli(&["exec", &pod, "-c", "nobody", "--", "true"]);
    assert_eq!(other.status.code(), Some(1));
    // An init container that has ended cannot run anything.
    let ended = host.cli(&["exec", &pod, "-c", "prepare", "--", "true"]);
    assert_eq!(ended.status.code(), Some(1));
}

// CMD-07 CMD-08
fn copies_files(host: &Host) {
    let pod = full("web");
    let dir = host.path("copies");
    fs::create_dir_all(dir.join("there/deep")).expect("directory");
    let large = vec![b'x'; 1_000_001];
    fs::write(dir.join("there/deep/large"), &large).expect("file");
    fs::write(dir.join("one"), "one\n").expect("file");
    let local = |name: &str| dir.join(name).display().to_string();
    let inside = |path: &str| format!("{pod}:{path}");
    let copy = |from: &str, to: &str| host.ok(&["cp", from, to, "-c", "talker"]);
    copy(&local("there"), &inside("/tmp/new"));
    copy(&local("one"), &inside("/tmp/new/"));
    copy(&local("one"), &inside("/tmp/two"));
    let seen = host.exec(
        "web",
        "talker",
        "wc -c < /tmp/new/deep/large; cat /tmp/new/one /tmp/two",
    );
    assert_eq!(seen, "1000001\none\none\n");
    host.exec("web", "talker", "ln -s /etc/passwd /tmp/new/link");
    copy(&inside("/tmp/new"), &local("back"));
    assert_eq!(fs::read(dir.join("back/deep/large")).expect("file"), large);
    assert!(fs::symlink_metadata(dir.join("back/link")).is_err());
    copy(&inside("/tmp/new/one"), &local("back"));
    assert_eq!(
        fs::read_to_string(dir.join("back/one")).expect("file"),
        "one\n"
    );
    for (words, says) in [
        ([&inside("/absent"), &local("x")], "absent"),
        ([&local("absent"), &inside("/tmp")], "absent"),
        ([&local("one"), &local("x")], "must be a remote file"),
        ([&inside("/a"), &inside("/b")], "must be a local file"),
        (
            [&"nobody:/a".to_owned(), &local("x")],
            "(NotFound): pods \"nobody\" not found",
        ),
    ] {
        let said = host.cli(&["cp", words[0], words[1]]);
        assert!(!said.status.success(), "{words:?}");
        assert!(text(&said.stderr).contains(says), "{words:?}: {said:?}");
    }
}

// CMD-03 CMD-04 CMD-05 CMD-06 CMD-09
fn waits_restarts_and_deletes(host: &Host) {
    let brief = full("brief");
    let met = format!("pod/{brief} condition met\n");
    assert_eq!(host.ok(&["wait", "pod", &brief, "--for=delete"]), "");
    // With the usual policy it would have a warning about its DNS.
    let spec = json!({"containers": [sh("main", IDLE)], "dnsPolicy": "Default"});
    host.pod("brief", spec);
    for goal in ["create", "condition=Ready"] {
        let words = ["wait", "pod", &brief, "--for", goal, "--timeout=3m"];
        assert_eq!(host.ok(&words), met, "{goal}");
    }
    let every = host.ok(&["wait", "pod", "--all", "--for=condition=Ready"]);
    assert!(
        every.contains(&met) && every.contains(&full("web")),
        "{every}"
    );
    let events = host.ok(&["events", "--for", &format!("pod/{brief}"), "--no-headers"]);
    assert!(events.contains("Started"), "{events}");
    assert!(events.lines().all(|line| line.contains(&brief)), "{events}");
    let node = host.ok(&["events", "--for", &format!("node/{NODE}")]);
    assert!(
        node.starts_with("LAST SEEN") && node.contains("Node/"),
        "{node}"
    );
    let fields = host.ok(&["explain", "pod.spec.containers"]);
    assert!(fields.contains("\n  image\n"), "{fields}");
    let object = format!("pod/{brief}");
    let pod = object.as_str();
    for (words, code, says) in [
        (
            &["wait", pod, "--for=condition=Ready=False", "--timeout=0"][..],
            1,
            "condition not met for pods/",
        ),
        (
            &["wait", "pod", "nobody", "--for=condition=Ready"],
            1,
            "(NotFound): pods \"nobody\" not found",
        ),
        (
            &["wait", "pod", "-l", "app=db", "--for=condition=Ready"],
            1,
            "no matching resources found",
        ),
        (
            &["wait", pod, "--for=jsonpath={.spec}=x"],
            1,
            "jsonpath leads to a nested object",
        ),
        (&["wait", pod], 1, "--for must be"),
        (
            &["wait", "pod", "--for=create"],
            1,
            "expected 'wait pod NAME...",
        ),
        (
            &["wait", "web", "--for=create"],
            1,
            "expected pod NAME or pod/NAME",
        ),
        (
            &["events", "--for", pod, "--types=Warning"],
            0,
            "No events found in default namespace.",
        ),
        (
            &["explain", "pod.spec.imgae"],
            1,
            "\"pod.spec.imgae\" does not exist",
        ),
        (
            &["restart", "nobody"],
            1,
            "(NotFound): pods \"nobody\" not found",
        ),
    ] {
        let said = host.cli(words);
        assert_eq!(said.status.code(), Some(code), "{words:?}: {said:?}");
        assert!(text(&said.stderr).contains(says), "{words:?}: {said:?}");
    }
    let id = |host: &Host| status_of(&host.get("brief"), "main")["containerID"].clone();
    let before = id(host);
    assert_eq!(
        host.ok(&["restart", &brief]),
        format!("Restarting: {brief}\n")
    );
    host.until("another container runs", |host| {
        let pod = host.get("brief");
        let ready = status_of(&pod, "main")["ready"] == true;
        (ready && id(host) != before, pod.to_string())
    });
    let absent = host.command_with_flags("delete", &["pod", "nobody"]);
    assert_eq!(absent.status.code(), Some(1));
    assert_eq!(
        text(&absent.stderr),
        "Error from server (NotFound): pods \"nobody\" not found\n"
    );
    let absent = ["pod", "nobody", "--ignore-not-found"];
    let ignored = host.command_with_flags("delete", &absent);
    assert!(
        ignored.status.success() && ignored.stdout.is_empty(),
        "{ignored:?}"
    );
    let none = host.command_with_flags("delete", &["pod", "-l", "app=none"]);
    assert_eq!(text(&none.stdout), "No resources found\n");
    let both = host.command_with_flags("delete", &["pod", &brief, "--all"]);
    assert!(
        text(&both.stderr).contains("name cannot be provided"),
        "{both:?}"
    );
    let forced = host.command_with_flags("delete", &["--force", pod]);
    assert!(text(&forced.stderr).contains("--force") && !forced.status.success());
    let running = ["wait", pod, "--for=jsonpath={.status.phase}=Running"];
    assert_eq!(host.ok(&running), met);
    let deleted = host.command_with_flags("delete", &[pod, "--timeout=10m"]);
    let kept = host.path("manifests/.brief.yaml.deleted");
    assert_eq!(
        text(&deleted.stdout),
        format!(
            "pod \"{brief}\" deleted: its manifest is now {}\n",
            kept.display()
        ),
        "{deleted:?}"
    );
    assert!(deleted.status.success() && kept.exists());
    assert!(host.get("brief").is_null(), "the command waits for its end");
}

// STAT-30 RTM-12 CFG-12
fn serves(host: &Host, pod: &Value, host_port: u16) {
    let address = |field: &str, port: u16| {
        let ip: IpAddr = pod["status"][field]
            .as_str()
            .and_then(|s| s.parse().ok())
            .expect("an address");
        SocketAddr::new(ip, port)
    };
    let inside = address("podIP", 8080);
    for at in [
        inside,
        address("hostIP", host_port),
        SocketAddr::from((Ipv4Addr::LOCALHOST, host_port)),
    ] {
        host.until("the page comes", |_| match http(at) {
            Ok(page) => (page == "prepared by web-node\n", page),
            Err(e) => (false, format!("{at}: {e}")),
        });
    }
    // One network for all containers of the pod.
    let page = host.exec(
        "web",
        "side",
        "wget -q -O - http://127.0.0.1:8080/index.html",
    );
    assert_eq!(page, "prepared by web-node\n");
    host.exec("web", "talker", "echo changed > /shared/index.html");
    assert_eq!(http(inside).ok().as_deref(), Some("changed\n"));
}

// IMG-04 GC-11 RTM-16
fn manages_images(host: &Host) {
    host.write_image(
        "images/dropped.tar",
        "localhost/dropped:2",
        &json!({"Env": ["A=b"]}),
    );
    let listed = |host: &Host, name: &str| {
        let table = host.ok(&["image", "ls"]);
        (table.contains(name), table)
    };
    host.until("the dropped image is imported", |host| {
        listed(host, "localhost/dropped")
    });
    assert_eq!(host.ok(&["get", "images"]), host.ok(&["image", "ls"]));
    // One in use stays; one by name goes; prune takes what nobody uses.
    let used = host.cli(&["image", "rm", host::IMAGE]);
    assert!(
        !used.status.success() && listed(host, "localhost/busybox").0,
        "{used:?}"
    );
    let archive = host.path("images/dropped.tar").display().to_string();
    host.ok(&["image", "import", "--name", "localhost/other:1", &archive]);
    let said = host.ok(&["image", "rm", "localhost/other:1"]);
    assert_eq!(said, "Untagged: localhost/other:1\n");
    assert!(!listed(host, "localhost/other").0 && listed(host, "localhost/dropped").0);
    let said = host.ok(&["image", "rm", "localhost/dropped:2"]);
    assert_eq!(said, "Deleted: localhost/dropped:2\n");
    assert!(!listed(host, "localhost/dropped").0);
    let absent = host.cli(&["image", "rm", "localhost/dropped:2"]);
    assert_eq!(absent.status.code(), Some(1));
    host.write_image("again.tar", "localhost/again:3", &json!({"Env": ["A=c"]}));
    // Its layer is there already: nothing is unpacked, and with --quiet nothing is told of it either.
    let archive = host.path("again.tar").display().to_string();
    let said = host.cli(&["image", "import", &archive]);
    assert_eq!(
        text(&said.stdout),
        "Imported: localhost/again:3\n",
        "{said:?}"
    );
    let quiet = host.cli(&["image", "import", "--quiet", &archive]);
    assert!(
        quiet.status.success() && quiet.stderr.is_empty(),
        "{quiet:?}"
    );
    let broken = host.path("broken.tar").display().to_string();
    fs::write(&broken, "no archive").expect("file");
    let broken = host.cli(&["image", "import", &broken]);
    assert_eq!(broken.status.code(), Some(1));
    assert!(
        text(&broken.stderr).starts_with("Error from server (BadRequest): ")
            && broken.stdout.is_empty(),
        "{broken:?}"
    );
    assert!(listed(host, "localhost/again").0);
    // IMG-29 IMG-30 IMG-31
    let said = host.ok(&["image", "tag", "localhost/again:3", "localhost/saved:1"]);
    assert_eq!(said, "Tagged: localhost/saved:1\n");
    let id = host.ok(&["images", "-q", "localhost/saved"]);
    let shown = host.ok(&["image", "inspect", id.trim()]);
    let shown: Value = serde_json::from_str(&shown).expect("JSON");
    assert_eq!(shown["info"]["imageSpec"]["config"]["Env"], json!(["A=c"]));
    let archive = host.path("saved.tar").display().to_string();
    host.ok(&["image", "save", "-q", "-o", &archive, "localhost/saved:1"]);
    let said = host.ok(&["image", "import", "-q", &archive]);
    assert_eq!(said, "Imported: localhost/saved:1\n");
    host.ok(&["image", "prune"]);
    let (there, table) = listed(host, "localhost/again");
    assert!(!there && table.contains("localhost/busybox"), "{table}");
}

#[test]
fn check_knows_the_machine_and_the_agent() {
    if !host::able() {
        return;
    }
    let mut host = Host::new(&[]);
    host.write(
        "web.yaml",
        &host::manifest("web", json!({"containers": [sh("c", IDLE)]})).to_string(),
    );
    host.write("bad.yaml", "kind: Pod\n");
    let report = |host: &Host| -> Value {
        let said = host.command_with_flags("check", &["-o", "json"]);
        let report: Value = serde_json::from_slice(&said.stdout).expect("json");
        let wrong = report["errors"].as_u64().expect("errors") > 0;
        assert_eq!(said.status.code(), Some(i32::from(wrong)), "{report}");
        report
    };
    let found = |report: &Value, name: &str| -> (String, String) {
        let checks = report["checks"].as_array().expect("checks");
        let one = checks.iter().find(|c| c["name"] == name).expect("check");
        let word = |key: &str| one[key].as_str().expect("text").to_owned();
        (word("level"), word("message"))
    };
    let before = report(&host);
    assert_eq!(found(&before, "hostname"), ("ok".into(), NODE.into()));
    assert_eq!(found(&before, "runtime").0, "ok");
    assert_eq!(found(&before, "cni-plugins").0, "ok");
    assert_eq!(found(&before, "run-dir").0, "ok", "{before}");
    let (level, says) = found(&before, "manifests");
    assert!(level == "error" && says.contains("bad.yaml"), "{says}");
    assert!(found(&before, "agent").1.contains("not running"));
    host.remove("bad.yaml");
    host.start_agent();
    host.write_image("first.tar", host::IMAGE, &json!({}));
    host.ok(&[
        "image",
        "import",
        &host.path("first.tar").display().to_string(),
    ]);
    host.until("the agent is well", |host| {
        let (level, says) = found(&report(host), "agent");
        (level == "ok" && says.contains("with 1 pods"), says)
    });
    assert_eq!(found(&report(&host), "manifests").0, "ok");
    host.until("the pod runs", |host| {
        let pod = host.get("web");
        (status_of(&pod, "c")["ready"] == true, pod.to_string())
    });
    let described = host.ok(&["describe", "pod", &full("web")]);
    for line in [
        "Name:         web-node",
        "Status:       Running",
        "    State:          Running",
    ] {
        assert!(described.lines().any(|l| l == line), "{line}\n{described}");
    }
    let events = described.split("\nEvents:\n").nth(1).expect("events");
    for reason in ["Pulled", "Created", "Started"] {
        assert!(events.contains(reason), "{described}");
    }
    let listed = host.ok(&["get", "events"]);
    assert!(
        listed.contains("Started") && listed.contains("pod/web-node"),
        "{listed}"
    );
    assert!(host.ok(&["describe", "node"]).contains("(1 in total)"));
    let absent = host.cli(&["describe", "pod", "none"]);
    assert_eq!(absent.status.code(), Some(1));
    assert!(text(&absent.stderr).contains("pods \"none\" not found"));
    let dump = host.ok(&["debug", "dump"]);
    let lines: Vec<Value> = dump
        .lines()
        .map(|line| serde_json::from_str(line).expect("a JSON object a line"))
        .collect();
    assert_eq!(lines[0]["v"], 2, "{dump}");
    let added = lines
        .iter()
        .any(|l| l["in"]["add"]["name"] == "default/web-node");
    assert!(added, "{dump}");
}

/// Two pods of all sorts, running. The first one writes to `shared/ended` when it is told to end.
fn two_pods(host: &Host) {
    host.write(
        "token.yaml",
        "apiVersion: v1\nkind: Secret\nmetadata: {name: token}\nstringData: {a: b}\n",
    );
    let shared = host.path("shared").display().to_string();
    host.pod(
        "one",
        json!({
            "terminationGracePeriodSeconds": 30,
            "shareProcessNamespace": true,
            "containers": [with(
                sh("c", "trap 'sleep 1; echo done > /shared/ended; exit 0' TERM; echo hello; while :; do sleep 0.1; done"),
                json!({
                    "ports": [{"containerPort": 80, "hostPort": held_port()}],
                    "volumeMounts": [
                        {"name": "token", "mountPath": "/token"},
                        {"name": "ram", "mountPath": "/ram"},
                        {"name": "shared", "mountPath": "/shared"}
                    ]
                }),
            )],
            "volumes": [
                {"name": "token", "secret": {"secretName": "token"}},
                {"name": "ram", "emptyDir": {"medium": "Memory"}},
                {"name": "shared", "hostPath": {"path": shared}}
            ]
        }),
    );
    host.pod("two", json!({"containers": [sh("c", IDLE)]}));
    host.until("both run", |host| {
        let ready = |pod: &str| status_of(&host.get(pod), "c")["ready"] == true;
        (ready("one") && ready("two"), String::new())
    });
}

/// Looks for anything of the agent's that a reset left. What was killed still has to be reaped, by the machine's init.
fn nothing_is_left(host: &Host, images: bool) {
    host.until("nothing is left", |host| {
        let left = host.left();
        (left.is_empty(), left.join("\n"))
    });
    let rules = std::process::Command::new("iptables-save")
        .output()
        .expect("rules");
    let bridge = host.bridge();
    assert!(!text(&rules.stdout).contains(&bridge), "rules of {bridge}");
    let link = std::path::Path::new("/sys/class/net").join(&bridge);
    assert!(!link.exists(), "{bridge}");
    // The two of the operator.
    let mut mounts = host.mounts();
    mounts.retain(|m| *m != host.path("") && *m != host.path("run"));
    assert_eq!(mounts, Vec::<std::path::PathBuf>::new());
    let run = fs::read_dir(host.path("run")).expect("a disk of the operator's");
    assert_eq!(run.count(), 0, "in the run directory");
    assert_eq!(host.cgroups(), Vec::<std::path::PathBuf>::new());
    for (dir, there) in [
        ("logs", false),
        ("links", false),
        ("root", images),
        ("root/pods", false),
        ("root/containers", false),
        ("root/images", images),
        ("manifests/one.yaml", true),
    ] {
        assert_eq!(host.path(dir).exists(), there, "{dir}, images: {images}");
    }
}

#[test]
fn reset_leaves_nothing() {
    if !host::able() {
        return;
    }
    let mut host = Host::start(&[]);
    two_pods(&host);
    let refused = host.command_with_flags("reset", &["--yes"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        text(&refused.stderr).contains("the agent is running: use --stop"),
        "{refused:?}"
    );
    let mut follow = host.command(&["logs", "-f", &full("one")]);
    let follow = follow.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut follow = follow.spawn().expect("logs");
    let mut output = BufReader::new(follow.stdout.take().expect("a pipe"));
    let mut line = String::new();
    output.read_line(&mut line).expect("a line");
    assert_eq!(line, "hello\n");
    host.end_agent(nix::sys::signal::Signal::SIGKILL);
    // LOG-10
    let followed = follow.wait_with_output().expect("logs");
    assert_eq!(followed.status.code(), Some(1));
    assert!(text(&followed.stderr).contains("the answer is incomplete"));

    let listed = host.command_with_flags("reset", &["--dry-run"]);
    assert!(listed.status.success(), "{listed:?}");
    let lines = text(&listed.stdout);
    for part in [
        "  pod default/one-node\n",
        "  pod default/two-node\n",
        "/kubepods with ",
        " mounts in ",
        &format!("bridge {} ", host.bridge()),
        "root/images with ",
        "logs of 2 pods in ",
        "2 links in ",
    ] {
        assert!(lines.contains(part), "{part:?} is not in\n{lines}");
    }
    let unanswered = host.command_with_flags("reset", &[]);
    assert_eq!(unanswered.status.code(), Some(1), "nobody answered");
    assert!(
        text(&unanswered.stdout).contains("pod default/one-node")
            && text(&unanswered.stderr).contains("--yes"),
        "{unanswered:?}"
    );
    assert!(!host.left().is_empty(), "and nothing was done");

    let done = host.command_with_flags("reset", &["-y", "--keep-images"]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    nothing_is_left(&host, true);
    let ended = fs::read_to_string(host.path("shared/ended"));
    assert_eq!(ended.ok().as_deref(), Some("done\n"), "it had its grace");
    let done = host.command_with_flags("reset", &["-f"]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    nothing_is_left(&host, false);
    let again = host.command_with_flags("reset", &["--yes"]);
    assert!(again.status.success(), "{again:?}");
    assert_eq!(text(&again.stdout), "There is nothing to remove.\n");
    assert!(!host.path("root").exists(), "nor was anything made");
}

#[test]
fn reset_ends_a_running_agent_if_told_to() {
    if !host::able() {
        return;
    }
    let mut host = Host::start(&[]);
    two_pods(&host);
    let socket = host.path("run/picolet.sock").display().to_string();
    let done = host.command_with_flags("reset", &["--yes", "--stop", "--socket", &socket]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    host.reap_agent();
    nothing_is_left(&host, false);
    let ended = fs::read_to_string(host.path("shared/ended"));
    assert_eq!(ended.ok().as_deref(), Some("done\n"), "it had its grace");
}
