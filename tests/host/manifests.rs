//! Manifests that change: edited, broken, removed, renamed, refused.

use core::time::Duration;
use std::net::{Ipv4Addr, SocketAddr};

use picolet::sys::clock;
use serde_json::{Value, json};

use crate::held_port::held_port;
use crate::host::{self, Host, IDLE, full, http, manifest, sh, status_of, text, with};

/// Says on the host when it is told to end, and takes a second for it.
const SLOW: &str = "trap 'date +%s > /say/$NAME.asked; sleep 1; date +%s > /say/$NAME.ended; exit 0' TERM; \
     while :; do sleep 1000 & wait $!; done";

/// A pod that runs [`SLOW`] under `word`, with enough grace.
fn slow(host: &Host, word: &str) -> Value {
    json!({
        "terminationGracePeriodSeconds": 20,
        "containers": [with(
            sh("main", SLOW),
            json!({
                "env": [{"name": "NAME", "value": word}],
                "volumeMounts": [{"name": "say", "mountPath": "/say"}]
            }),
        )],
        "volumes": [{"name": "say", "hostPath": {"path": host.path("shared"), "type": "Directory"}}]
    })
}

fn said(host: &Host, file: &str) -> Option<u64> {
    let text = std::fs::read_to_string(host.path("shared").join(file)).ok()?;
    text.trim().parse().ok()
}

/// What has not changed was looked at all the same.
#[test]
fn a_quiet_node_is_healthy() {
    if !host::able() {
        return;
    }
    let host = Host::start(&["--file-check-frequency", "1s"]);
    let asked = |host: &Host| {
        let said = host.cli(&["health"]);
        (said.status.success(), text(&said.stderr))
    };
    host.until("it is healthy", asked);
    let begun = clock::mono_now();
    host.until("more than three times the interval has passed", |_| {
        (
            clock::mono_now() - begun > Duration::from_secs(4),
            String::new(),
        )
    });
    host.until("it is healthy still", asked);
}

// SRC-15 SRC-16 SRC-25 SRC-03 PW-10 PW-19 PW-20 LOOP-14 KILL-01 KILL-11 CLEAN-05
#[test]
fn edited_broken_removed() {
    if !host::able() {
        return;
    }
    let host = Host::start(&["--file-check-frequency", "2s"]);
    host.pod("a", slow(&host, "first"));
    host.pod("bystander", json!({"containers": [sh("main", IDLE)]}));
    let first = host.wait_ready("a");
    host.wait_ready("bystander");
    let bystander = host.pid("bystander", "main");
    let uid = |pod: &Value| {
        pod["metadata"]["uid"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };

    // Edited: a new pod takes the old one's place once that has ended, at its own pace.
    host.pod("a", slow(&host, "second"));
    let second = host.wait_pod("a", "replaced", |pod| {
        uid(pod) != uid(&first) && status_of(pod, "main")["ready"] == true
    });
    let asked = said(&host, "first.asked").expect("the old pod was asked to end");
    let ended = said(&host, "first.ended").expect("and given the time to");
    let began = host.exec("a", "main", "stat -c %Y /proc/1");
    let began: u64 = began.trim().parse().expect("seconds");
    assert!(asked <= ended && ended <= began, "{asked} {ended} {began}");

    // Broken: its file is named; on the next reading of the directory its pod ends.
    host.write(
        "a.yaml",
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: [a\n",
    );
    host.wait_gone("a");
    assert!(said(&host, "second.ended").is_some());
    let log = host.agent_log();
    assert!(
        log.lines()
            .any(|l| !l.starts_with("INFO") && l.contains("manifests/a.yaml")),
        "the broken file is not named: {log}"
    );
    // Not valid, though it can be read: the field is named.
    let mut bad = manifest("a", slow(&host, "bad"));
    bad["spec"]["containers"][0]["name"] = "Not_A_Label".into();
    host.write("a.yaml", &bad.to_string());
    host.until("the field is named", |host| {
        let log = host.agent_log();
        (log.contains("spec.containers[0].name"), log)
    });

    // Mended: it comes back; renamed: the old name ends, the new one comes.
    host.pod("a", slow(&host, "third"));
    host.wait_ready("a");
    host.write("a.yaml", &manifest("b", slow(&host, "fourth")).to_string());
    host.wait_ready("b");
    host.wait_gone("a");
    assert!(said(&host, "third.ended").is_some());

    // Removed: it ends with its grace, and what it had on disk goes.
    host.remove("a.yaml");
    host.wait_gone("b");
    host.until("the last pod has ended", |host| {
        (said(host, "fourth.ended").is_some(), String::new())
    });
    let dir = host.path("root/pods").join(uid(&second));
    host.until("its files go", |_| {
        (!dir.exists(), dir.display().to_string())
    });
    assert_eq!(
        host.pid("bystander", "main"),
        bystander,
        "nothing of this concerned it"
    );
    host.finish();
}

// ADM-01 ADM-03 ADM-06 ADM-09 LOOP-09 LOOP-10 LOOP-11 STAT-14 PW-18
#[test]
fn admission() {
    if !host::able() {
        return;
    }
    let host = Host::start(&["--max-pods", "3", "--file-check-frequency", "2s"]);
    let host_port = held_port();
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, host_port));
    let port = |page: &str| {
        json!({"containers": [with(
            sh("main", &format!("mkdir /w; echo {page} > /w/index.html; exec httpd -f -p 80 -h /w")),
            json!({"ports": [{"containerPort": 80, "hostPort": host_port}]}),
        )]})
    };
    host.pod("port-1", port("first"));
    host.wait_ready("port-1");
    host.pod("port-2", port("second"));
    let refused = host.wait_phase("port-2", "Failed");
    let status = &refused["status"];
    assert_eq!(status["reason"], "NodePorts", "{status}");
    let message = status["message"].as_str().unwrap_or_default();
    assert!(
        message.starts_with(
            "Pod was rejected: Predicate NodePorts failed: node(s) didn't have free ports"
        ),
        "{message}"
    );
    assert_eq!(status["qosClass"], "BestEffort");
    assert_eq!(
        status["containerStatuses"],
        Value::Null,
        "nothing was created"
    );
    let table = host.ok(&["get", "pods", "--no-headers", &full("port-2")]);
    assert!(table.contains("NodePorts"), "{table}");
    host.until("the first still answers", |_| {
        let page = http(address);
        (
            page.as_ref().is_ok_and(|p| p == "first\n"),
            format!("{page:?}"),
        )
    });

    // Resources nobody has.
    host.pod(
        "greedy",
        json!({"containers": [with(sh("main", IDLE), json!({"resources": {"requests": {"memory": "100Ti"}}}))]}),
    );
    // A static pod is critical (ADM-14): others would have to go for it, and none of them is less so.
    let refused = host.wait_phase("greedy", "Failed");
    assert_eq!(
        refused["status"]["reason"], "UnexpectedAdmissionError",
        "{refused}"
    );
    let message = refused["status"]["message"].as_str().unwrap_or_default();
    assert!(
        message.contains("no set of running pods found to reclaim resources: [(res: memory, q: "),
        "{message}"
    );

    // Refused pods count for nothing: two more fit, a third does not.
    for n in 1..=2 {
        host.pod(
            &format!("fits-{n}"),
            json!({"containers": [sh("main", IDLE)]}),
        );
        host.wait_ready(&format!("fits-{n}"));
    }
    host.pod("too-many", json!({"containers": [sh("main", IDLE)]}));
    let refused = host.wait_phase("too-many", "Failed");
    assert_eq!(
        refused["status"]["reason"], "UnexpectedAdmissionError",
        "{refused}"
    );
    let message = refused["status"]["message"].as_str().unwrap_or_default();
    assert!(
        message
            .contains("no set of running pods found to reclaim resources: [(res: pods, q: 1), ]"),
        "{message}"
    );

    // Not tried again by itself; written anew it is another pod, which gets the port that has become free.
    host.remove("port-1.yaml");
    host.wait_gone("port-1");
    host.pod("port-2", port("third"));
    host.wait_ready("port-2");
    host.until("the new pod answers", |_| {
        let page = http(address);
        (
            page.as_ref().is_ok_and(|p| p == "third\n"),
            format!("{page:?}"),
        )
    });
    host.finish();
}

// KILL-01 KILL-04 KILL-05 KILL-08 KILL-11 HOOK-01 HOOK-03 HOOK-04 RTM-06 PW-10 WAIT-20
#[test]
fn ends_in_order() {
    if !host::able() {
        return;
    }
    let host = Host::start(&["--file-check-frequency", "2s"]);
    host.write_image(
        "images/quit.tar",
        "localhost/quit:1",
        &json!({"StopSignal": "SIGQUIT"}),
    );
    host.until("the image is imported", |host| {
        let table = host.ok(&["image", "ls"]);
        (table.contains("localhost/quit"), table)
    });
    // Appends what happens to one file on the host, in the order it happens.
    let say = |word: &str| format!("echo {word} >> /say/order");
    let volume = json!({"volumeMounts": [{"name": "say", "mountPath": "/say"}]});
    let ends = |word: &str, signal: &str| {
        format!(
            "trap '{}; exit 0' {signal}; while :; do sleep 1000 & wait $!; done",
            say(word)
        )
    };
    let hook = |script: &str| json!({"exec": {"command": ["sh", "-c", script]}});
    let pod = json!({
        "terminationGracePeriodSeconds": 20,
        "initContainers": [
            with(with(sh("side-1", &ends("side-1", "TERM")), volume.clone()), json!({"restartPolicy": "Always"})),
            with(with(sh("side-2", &ends("side-2", "TERM")), volume.clone()), json!({"restartPolicy": "Always"})),
        ],
        "containers": [with(with(sh("main", &ends("main", "QUIT")), volume.clone()), json!({
            "image": "localhost/quit:1",
            "lifecycle": {"postStart": hook(&say("post-start")), "preStop": hook(&say("pre-stop"))}
        }))],
        "volumes": [{"name": "say", "hostPath": {"path": host.path("shared")}}]
    });
    host.pod("orderly", pod);
    // One that does not listen is killed when its grace is over.
    host.pod(
        "stubborn",
        json!({
            "terminationGracePeriodSeconds": 3,
            "containers": [with(sh("main", "trap '' TERM; echo $$ > /say/stubborn; while :; do sleep 1; done"), volume.clone())],
            "volumes": [{"name": "say", "hostPath": {"path": host.path("shared")}}]
        }),
    );
    // A hook that fails ends its container.
    host.pod(
        "hooked",
        json!({"containers": [with(sh("main", IDLE), json!({"lifecycle": {"postStart": hook("exit 4")}}))]}),
    );
    host.wait_ready("orderly");
    host.wait_ready("stubborn");
    let order = || std::fs::read_to_string(host.path("shared/order")).unwrap_or_default();
    host.until("the hook has run", |_| (order() == "post-start\n", order()));
    host.wait_pod("hooked", "its hook failed", |pod| {
        let main = status_of(pod, "main");
        let waiting = &main["state"]["waiting"]["reason"];
        main["restartCount"].as_u64() >= Some(1)
            && (waiting == "PostStartHookError" || waiting == "CrashLoopBackOff")
    });
    let log = host.agent_log();
    assert!(log.contains("FailedPostStartHook"), "{log}");

    host.remove("orderly.yaml");
    host.wait_gone("orderly");
    let wanted = "post-start\npre-stop\nmain\nside-2\nside-1\n";
    host.until("all have ended", |_| (order() == wanted, order()));

    let pid = host.pid("stubborn", "main");
    let asked = clock::mono_now();
    host.remove("stubborn.yaml");
    host.wait_process_gone(pid);
    let took = (clock::mono_now() - asked).as_secs();
    assert!((3..30).contains(&took), "killed after {took} s");
    host.wait_gone("stubborn");
    host.finish();
}

// SRC-16 SRC-20
#[test]
fn odd_files_harm_nobody() {
    if !host::able() {
        return;
    }
    let host = Host::start(&["--file-check-frequency", "2s"]);
    let dir = host.path("manifests");
    std::fs::create_dir(dir.join("folder")).expect("directory");
    nix::unistd::mkfifo(&dir.join("pipe.yaml"), nix::sys::stat::Mode::S_IRWXU).expect("pipe");
    std::os::unix::fs::symlink("/nowhere", dir.join("link.yaml")).expect("link");
    host.write("empty.yaml", "");
    host.write("binary.yaml", "\u{0}\u{1}\u{2}");
    host.write("list.yaml", "[1, 2, 3]");
    host.write(
        "other.yaml",
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x}\n",
    );
    host.write("deep.json", &"[".repeat(200_000));
    host.write("bomb.yaml", &bomb());
    host.pod("good", json!({"containers": [sh("main", IDLE)]}));
    host.wait_ready("good");
    host.until("each is named", |host| {
        let log = host.agent_log();
        let silent: Vec<&str> = [
            "binary.yaml",
            "list.yaml",
            "other.yaml",
            "deep.json",
            "bomb.yaml",
            "link.yaml",
        ]
        .into_iter()
        .filter(|f| !log.contains(f))
        .collect();
        (silent.is_empty(), format!("not named: {silent:?}"))
    });
    assert_eq!(host.pods().len(), 1);
    let said = host.cli(&["get", "pods"]);
    assert!(text(&said.stdout).contains("good-node"));
    host.finish();
}

/// Grows to a thousand million words when its references are followed.
fn bomb() -> String {
    let mut text = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for n in 1..9 {
        let before = format!("*a{}", n - 1);
        text.push_str(&format!("a{n}: &a{n} [{}]\n", vec![before; 10].join(", ")));
    }
    text
}
