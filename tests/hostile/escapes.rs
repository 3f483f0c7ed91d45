//! The ways out that callers of runc, and kubelets, left open: each tried from inside a container, with a secret of the
//! host at the end of it.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    process::Stdio,
};

use serde_json::{Value, json};

use crate::bystander::Bystander;
use crate::held_port::held_port;
use crate::host::{self, Host, full, sh, status_of, with};

/// Most memory that the agent may have used beside such containers, KiB.
const MAX_PEAK_KIB: u64 = 32 * 1024;
/// What no container may see.
const SECRET: &str = "host-secret";

/// Starts a host with a secret in its directory.
fn start() -> (Host, Bystander) {
    let host = Host::start(&["--file-check-frequency", "2s"]);
    let good = Bystander::start(&host, MAX_PEAK_KIB);
    fs::write(host.path("secret"), SECRET).expect("secret");
    good.forget_peak();
    (host, good)
}

/// The log of one container, whatever became of it.
fn log(host: &Host, pod: &str, container: &str) -> String {
    host::text(&host.cli(&["logs", &full(pod), "-c", container]).stdout)
}

/// Whether the container has ended, or cannot be started; and the reason.
fn outcome(pod: &Value, container: &str) -> Option<String> {
    let status = status_of(pod, container);
    let ended = &status["state"]["terminated"];
    if ended.is_object() {
        return Some(ended["message"].as_str().unwrap_or_default().to_owned());
    }
    let waiting = &status["state"]["waiting"];
    let message = waiting["message"].as_str().unwrap_or_default();
    (!message.is_empty()).then(|| message.to_owned())
}

// CVE-2024-21626: a working directory by way of a descriptor that the runtime or its caller left open leads to the host.
// SEC-01
#[test]
fn no_descriptor_leads_to_the_host() {
    if !host::able() {
        return;
    }
    let (host, good) = start();
    let steal = format!(
        "for up in . .. ../.. ../../.. ../../../.. ../../../../.. ../../../../../.. ../../../../../../../..; do \
         cat $up{0} $up/../secret; done; ls -d /proc/self/fd/*/..{0}; true",
        host.path("secret").display()
    );
    let containers: Vec<Value> = (3..16)
        .map(|n| {
            with(
                sh(&format!("c{n}"), &steal),
                json!({"workingDir": format!("/proc/self/fd/{n}")}),
            )
        })
        .collect();
    host.pod(
        "thief",
        json!({"restartPolicy": "Never", "containers": containers}),
    );
    host.wait_pod("thief", "all were tried", |pod| {
        (3..16).all(|n| outcome(pod, &format!("c{n}")).is_some())
    });
    let pod = host.get("thief");
    let mut refused = 0;
    for n in 3..16 {
        let name = format!("c{n}");
        let said = log(&host, "thief", &name);
        assert!(!said.contains(SECRET), "{name}: {said}");
        let why = outcome(&pod, &name).unwrap_or_default();
        refused += usize::from(why.contains(&format!("/proc/self/fd/{n}")));
    }
    assert!(refused > 0, "the runtime says why: {}", pod["status"]);
    // The same through exec, whose working directory is the container's.
    host.pod(
        "later",
        json!({"containers": [with(sh("main", "rm -rf /w; ln -s /proc/self/fd/7 /w; sleep 1000"), json!({"workingDir": "/w"}))]}),
    );
    host.wait_phase("later", "Running");
    for _ in 0..3 {
        let tried = host.cli(&["exec", &full("later"), "--", "sh", "-c", &steal]);
        assert!(!host::text(&tried.stdout).contains(SECRET), "{tried:?}");
    }
    good.is_untouched(&host, "working directories");
    host.finish();
}

// CVE-2025-31133, CVE-2025-52565: /dev/null and /dev/console are links of the pod's while the runtime masks paths with the
// one and mounts the terminal on the other. A pod gets at them where it may mount a volume of its own on /dev.
// CFG-32
#[test]
fn devices_cannot_be_prepared() {
    if !host::able() {
        return;
    }
    let (host, good) = start();
    let link = |names: &str| {
        format!(
            "cd /v && for f in {names}; do ln -s /proc/sys/kernel/ostype $f; done; ln -s pts/ptmx ptmx"
        )
    };
    let look = "cat /proc/interrupts /proc/kcore /proc/keys /proc/timer_list 2>&1 | head -c 2000; \
                (: >> /proc/sys/kernel/hostname) && echo writable; echo end";
    let volume = |at: &str| json!({"volumeMounts": [{"name": "v", "mountPath": at}]});
    for (name, names, tty, at, says) in [
        ("masks", "null", false, "/dev", "did not mask /proc/"),
        (
            "by-detour",
            "null",
            false,
            "/proc/../dev/",
            "did not mask /proc/",
        ),
        ("gone", "other", false, "/dev", "/dev/null"),
        ("console", "console", true, "/dev", "/dev/ptmx"),
    ] {
        host.pod(
            name,
            json!({
                "restartPolicy": "Never",
                "initContainers": [with(sh("prepare", &link(names)), volume("/v"))],
                "containers": [with(with(sh("main", look), volume(at)), json!({"tty": tty}))],
                "volumes": [{"name": "v", "emptyDir": {}}]
            }),
        );
        host.wait_pod(name, "it was tried", |pod| {
            outcome(pod, "main").is_some() || outcome(pod, "prepare").is_some_and(|m| !m.is_empty())
        });
        let said = log(&host, name, "main");
        let seen = said.contains("Linux") || said.contains("writable");
        assert!(!seen, "{name}: {said}");
        let why = outcome(&host.get(name), "main").unwrap_or_default();
        assert!(why.contains(says), "{name}: {why}");
    }
    good.is_untouched(&host, "devices");
    host.finish();
}

// CVE-2021-25741, CVE-2021-30465, CVE-2025-52881: a container swaps directories and links in a volume while the runtime
// mounts into it, over and over, by subPath and by a mount point below another mount.
// VOL-24 VOL-25
#[test]
fn renames_during_mounts_lead_nowhere() {
    if !host::able() {
        return;
    }
    let (host, good) = start();
    // In the container `/` is the host's only for who walks with the host's root.
    let swap = format!(
        "mkdir -p /v/a/sub /v/b /v/spare; ln -s / /v/link; ln -s {0} /v/link2; echo up; \
         while :; do mv -T /v/a /v/t; mv -T /v/link /v/a; mv -T /v/a /v/link; mv -T /v/t /v/a; \
         mv -T /v/b /v/t; mv -T /v/link2 /v/b; mv -T /v/b /v/link2; mv -T /v/t /v/b; done",
        host.path("").display()
    );
    let look = "cat /part/secret /v/b/secret /part/var/tmp/*/secret 2>/dev/null; ls -d /part/sbin/runc /part/usr/sbin/runc /part/root 2>/dev/null; echo tried";
    let mounts = json!({"volumeMounts": [
        {"name": "v", "mountPath": "/v"},
        {"name": "v", "mountPath": "/part", "subPath": "a/sub"},
        {"name": "w", "mountPath": "/v/b"}
    ]});
    let victims: Vec<Value> = (0..4)
        .map(|n| with(sh(&format!("victim-{n}"), look), mounts.clone()))
        .collect();
    let table = || {
        fs::read_to_string("/proc/self/mountinfo")
            .expect("mounts")
            .lines()
            .filter(|l| l.contains("/var/tmp/picolet-"))
            .count()
    };
    let volumes = json!([{"name": "v", "emptyDir": {}}, {"name": "w", "emptyDir": {}}]);
    let swapper = with(
        sh("swapper", &swap),
        json!({
            "restartPolicy": "Always",
            "resources": {"limits": {"cpu": "500m"}},
            "volumeMounts": [{"name": "v", "mountPath": "/v"}]
        }),
    );
    for round in 0..3 {
        let name = format!("racer-{round}");
        host.pod(&name, json!({"restartPolicy": "Never", "initContainers": [swapper.clone()], "containers": victims, "volumes": volumes.clone()}));
        host.wait_pod(&name, "all were tried", |pod| {
            (0..4).all(|n| outcome(pod, &format!("victim-{n}")).is_some())
        });
        for n in 0..4 {
            let said = log(&host, &name, &format!("victim-{n}"));
            assert!(said.lines().all(|l| l == "tried"), "{name}: {said}");
        }
        host.remove(&format!("{name}.yaml"));
        host.wait_gone(&name);
    }
    assert_eq!(
        fs::read_to_string(host.path("secret")).expect("secret"),
        SECRET
    );
    host.until("no mount of theirs stays", |host| {
        let left: Vec<String> = host
            .left()
            .into_iter()
            .filter(|l| l.starts_with("mount") && l.contains("subpath"))
            .collect();
        (left.is_empty(), format!("{left:?} of {}", table()))
    });
    good.is_untouched(&host, "renames during mounts");
    host.finish();
}

// CVE-2017-1002101 for logs: a pod that has the log directory mounted puts links in the place of its own log and directory.
#[test]
fn links_in_the_place_of_logs_show_nothing() {
    if !host::able() {
        return;
    }
    let (host, good) = start();
    let link = format!(
        "d=/logs/default_linker-node_$POD_UID/main; n=$(ls $d | grep 'log$' | head -n 1); mkdir -p /logs/away; \
         case $HOW in file) rm $d/$n; ln -s {0} $d/$n;; dir) mv $d /logs/away/; ln -s {1} $d;; esac; echo linked; sleep 1000",
        host.path("secret").display(),
        host.path("").display()
    );
    for how in ["file", "dir"] {
        host.pod(
            "linker",
            json!({
                "containers": [with(sh("main", &link), json!({
                    "env": [
                        {"name": "HOW", "value": how},
                        // The pod before this one may still have its logs.
                        {"name": "POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}
                    ],
                    "volumeMounts": [{"name": "l", "mountPath": "/logs"}]
                }))],
                "volumes": [{"name": "l", "hostPath": {"path": host.path("logs")}}]
            }),
        );
        host.wait_ready("linker");
        let mut tried = host.cli(&["logs", &full("linker")]);
        host.until("it is linked", |host| {
            tried = host.cli(&["logs", &full("linker")]);
            (!tried.status.success(), host::text(&tried.stdout))
        });
        let said = host::text(&tried.stderr);
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(
            !host::text(&tried.stdout).contains(SECRET) && !said.contains(SECRET),
            "{tried:?}"
        );
        good.is_untouched(&host, how);
        host.remove("linker.yaml");
        host.wait_gone("linker");
        assert_eq!(
            fs::read_to_string(host.path("secret")).expect("secret"),
            SECRET,
            "{how}"
        );
        assert!(
            host.path("manifests").is_dir(),
            "{how}: nothing through the link was removed"
        );
    }
    host.finish();
}

/// A container with these capabilities beside the default ones, or with all that is dropped and refused but `only` these.
fn capable(script: &str, only: bool, capabilities: &[&str]) -> Value {
    let context = match only {
        true => json!({
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "seccompProfile": {"type": "RuntimeDefault"},
            "capabilities": {"drop": ["ALL"], "add": capabilities}
        }),
        false => json!({"capabilities": {"add": capabilities}}),
    };
    with(sh("main", script), json!({"securityContext": context}))
}

// The init of a shared PID namespace is a process of ours within reach of the pod. With SYS_PTRACE a container may follow its
// links, and read and write its memory; with SYS_ADMIN it may enter its namespaces too.
// RTM-17
#[test]
fn the_init_of_a_pod_leads_nowhere() {
    if !host::able() {
        return;
    }
    let (host, good) = start();
    let (secret, made) = (host.path("secret"), host.path("made"));
    let script = format!(
        r#"s={0} m={1}; cd /proc/1; readlink root && echo looked
        for way in root cwd root/.. cwd/../.. root/proc/1/root task/1/root task/1/cwd fd/* fd/*/.. map_files/*; do
            cat $way$s; ls -A $way/ | sed "s,^,$way has ,"; echo x > $way$m
        done
        for way in exe map_files/*; do
            grep -q host-secre[t] $way && echo $way has it; echo x > $way && echo $way is changed
        done
        ls fd task/1/fd | grep '^[0-9]'; cat environ; tr '\0' ' ' < cmdline; echo
        dd if=mem bs=4096 skip=1024 count=1 | grep -c ELF
        dd if=/dev/zero of=mem bs=8 seek=524289 count=1 conv=notrunc && echo wrote
        for kind in m n u i p; do
            nsenter -t 1 -$kind cat $s; nsenter -t 1 -$kind sh -c "echo x > $m"
        done
        kill -KILL 1; kill -USR1 1
        sh -c 'sleep 0 & echo $! > /dev/shm/orphan'; read orphan < /dev/shm/orphan
        while [ -e /proc/$orphan ]; do :; done
        echo sees $(pidof sleep | wc -w) that sleep; sleep 1000"#,
        secret.display(),
        made.display(),
    );
    for (name, only, capabilities) in [
        ("added", false, &["SYS_PTRACE"][..]),
        ("alone", true, &["SYS_PTRACE"]),
        ("default", false, &[]),
        ("mighty", false, &["SYS_PTRACE", "SYS_ADMIN"]),
    ] {
        let containers = [
            sh("other", "sleep 4321"),
            capable(&script, only, capabilities),
        ];
        host.pod(
            name,
            json!({"shareProcessNamespace": true, "containers": containers}),
        );
        let mut said = String::new();
        host.until("all was tried, and its orphan is reaped", |host| {
            said = log(host, name, "main");
            (said.contains(" that sleep"), said.clone())
        });
        assert!(!said.contains(SECRET), "{name}: {said}");
        assert!(!said.contains(" has "), "{name}: it is not empty: {said}");
        assert!(!said.contains("is changed"), "{name}: {said}");
        assert!(!made.exists(), "{name}: a file on the host");
        // It was the right process, and the container could do what it should.
        assert!(said.contains("picolet pod-init "), "{name}: {said}");
        assert!(said.contains("sees 1 that sleep"), "{name}: {said}");
        let traces = !capabilities.is_empty();
        assert_eq!(said.contains("looked"), traces, "{name}: {said}");
        assert!(traces || !said.contains("wrote"), "{name}: {said}");
        let pod = host.get(name);
        for container in ["main", "other"] {
            let status = status_of(&pod, container);
            assert_eq!(status["restartCount"], 0, "{name}: {status}");
        }
        good.is_untouched(&host, name);
        host.remove(&format!("{name}.yaml"));
        host.wait_gone(name);
    }
    host.finish();
}

// What of ours or of the runtime's enters the namespaces of a pod is seen by a container with SYS_PTRACE, be it for a moment:
// other containers that start, commands, probes by command, connections to ports.
// RTM-17
#[test]
fn what_enters_a_pod_leads_nowhere() {
    if !host::able() {
        return;
    }
    let (host, good) = start();
    // All processes but the init and itself, and all ways by which they may lead out.
    let watch = format!(
        r#"s={}; cd /proc; echo up; while :; do
            for p in [0-9]*; do
                [ $p = 1 ] || [ $p = $$ ] || last=$p
                for way in root cwd exe fd/0 fd/1 fd/2 fd/3 fd/4 fd/5 fd/6 fd/7 fd/8 fd/9 fd/10 fd/11 fd/12; do
                    for up in '' /.. /../../../../../..; do
                        [ -e $p/$way$up$s ] || continue
                        echo $way$up of $p: $(cat $p/$way$up$s $p/comm)
                    done
                done
            done
            [ -e /dev/shm/stop ] && echo ended after $last && exec sleep 1000
        done"#,
        host.path("secret").display()
    );
    let probed = with(
        sh("probed", "exec nc -ll -p 8080 -e cat"),
        json!({"livenessProbe": {"exec": {"command": ["true"]}, "periodSeconds": 1}}),
    );
    // It starts beside the watcher, twice.
    let again = sh(
        "again",
        "until [ -e /dev/shm/go ]; do sleep 0.1; done; exit 1",
    );
    host.pod(
        "watched",
        json!({
            "shareProcessNamespace": true,
            "containers": [capable(&watch, false, &["SYS_PTRACE"]), probed, again]
        }),
    );
    host.wait_ready("watched");
    for _ in 0..10 {
        assert_eq!(host.exec("watched", "probed", "echo here"), "here\n");
    }
    host.exec("watched", "probed", "touch /dev/shm/go");
    host.until("another container starts again", |host| {
        let pod = host.get("watched");
        let status = status_of(&pod, "again");
        (status["restartCount"] != 0, status.to_string())
    });
    let port = held_port();
    let mut forward = host
        .command(&["port-forward", &full("watched"), &format!("{port}:8080")])
        .stdout(Stdio::null())
        .spawn()
        .expect("picolet");
    host.until("a connection to a port", |_| {
        let asked = TcpStream::connect(("127.0.0.1", port)).and_then(|mut peer| {
            peer.write_all(b"x")?;
            peer.read_exact(&mut [0])
        });
        (asked.is_ok(), format!("{asked:?}"))
    });
    forward.kill().expect("kill");
    forward.wait().expect("wait");
    host.exec("watched", "probed", "touch /dev/shm/stop");
    let mut said = String::new();
    host.until("the watcher ends", |host| {
        said = log(host, "watched", "main");
        (said.contains("ended after"), said.clone())
    });
    assert!(!said.contains(SECRET), "{said}");
    good.is_untouched(&host, "what enters a pod");
    host.finish();
}
