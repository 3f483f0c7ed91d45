//! Pods of a cluster, from their creation to their end, through what happens to links and agents on the way.

use std::fs;

use nix::sys::signal::Signal;
use picolet_test_apiserver::{Fault, Rule, TestServer, View};
use serde_json::{Value, json};

use crate::containerd::daemon;
use crate::host::{Host, IDLE, IMAGE, NODE, PATIENCE, able, manifest, sh};

/// The newest minor version that the server behaves as.
const NEWEST: u32 = 36;

/// A server that knows the node, and an agent that is it.
pub(crate) fn cluster(flags: &[&str]) -> (Host, TestServer) {
    let server = TestServer::builder().start().expect("server");
    cluster_with(server, flags)
}

/// The same with a server that is there.
pub(crate) fn cluster_with(server: TestServer, flags: &[&str]) -> (Host, TestServer) {
    cluster_on(server, flags, |_| {})
}

/// The same on directories that `prepare` has made ready.
pub(crate) fn cluster_on(
    server: TestServer,
    flags: &[&str],
    prepare: impl FnOnce(&Host),
) -> (Host, TestServer) {
    // What the control plane writes to each node of a small cluster.
    let ttl = json!({"node.alpha.kubernetes.io/ttl": "0"});
    let metadata = json!({"name": NODE, "annotations": ttl});
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata});
    server.create(&node).expect("node");
    let config = server.kubeconfig_for_node(NODE).expect("kubeconfig");
    let path = std::env::temp_dir().join(format!("picolet-kubeconfig-{}", server.port()));
    fs::write(&path, config).expect("write");
    let path = path.display().to_string();
    let mut all = vec!["--kubeconfig", &*path];
    all.extend(flags);
    let mut host = Host::new(&all);
    prepare(&host);
    host.start_agent();
    // Images of another runtime are its own.
    if !flags.contains(&"--container-runtime-endpoint") {
        host.import();
    }
    (host, server)
}

/// A pod bound to the node.
pub(crate) fn pod(name: &str, more: Value) -> Value {
    let mut spec = json!({"containers": [sh("c", IDLE)], "nodeName": NODE, "automountServiceAccountToken": false});
    for (key, value) in more.as_object().expect("an object") {
        spec[key] = value.clone();
    }
    let mut pod = manifest(name, spec);
    pod["metadata"]["namespace"] = "default".into();
    pod
}

fn is_ready(pod: &Value) -> bool {
    let all = pod["status"]["conditions"].as_array();
    all.is_some_and(|all| {
        all.iter()
            .any(|c| c["type"] == "Ready" && c["status"] == "True")
    })
}

pub(crate) fn wait_ready(server: &TestServer, name: &str) -> Value {
    server.wait_for(&format!("{name} is ready"), PATIENCE, |view: &View<'_>| {
        view.get("pods", "default", name)
            .filter(|p| is_ready(p))
            .cloned()
    })
}

pub(crate) fn wait_gone(server: &TestServer, name: &str) {
    server.wait_until_gone("pods", "default", name, PATIENCE);
}

fn container_id(pod: &Value) -> String {
    let id = pod["status"]["containerStatuses"][0]["containerID"].as_str();
    id.unwrap_or_default().to_owned()
}

/// Ends the host, and demands that the agent has asked for nothing wrong.
pub(crate) fn finish(host: Host, server: &TestServer) {
    let wrong = server.wrong();
    assert!(wrong.is_empty(), "{wrong:#?}");
    host.finish();
    let _ =
        fs::remove_file(std::env::temp_dir().join(format!("picolet-kubeconfig-{}", server.port())));
}

#[test]
fn pods_come_change_and_go() {
    // SRC-29 SRC-03 SM-04 SM-05 SM-11 DEL-04 STAT-08 STAT-09
    if !able() {
        return;
    }
    let (host, server) = cluster(&[]);
    host.write_image("second.tar", "localhost/busybox:2", &json!({}));
    let second = host.path("second.tar").display().to_string();
    host.ok(&["image", "import", &second]);
    server.create(&pod("web", json!({}))).expect("create");
    let first = wait_ready(&server, "web");
    assert_eq!(first["status"]["phase"], "Running");
    assert!(!first["status"]["podIP"].is_null());
    // Another image: the container is replaced, the pod stays.
    let image = json!({"spec": {"containers": [{"name": "c", "image": "localhost/busybox:2", "command": ["sh", "-c", IDLE]}]}});
    server
        .patch("pods", "default", "web", "", &image)
        .expect("patch");
    let second = server.wait_for("the new image runs", PATIENCE, |view| {
        let pod = view.get("pods", "default", "web")?;
        let status = &pod["status"]["containerStatuses"][0];
        (status["restartCount"] == 1 && is_ready(pod)).then(|| pod.clone())
    });
    assert_eq!(first["status"]["podIP"], second["status"]["podIP"]);
    // A job ends well, another badly.
    for (name, script, phase) in [
        ("well", "exit 0", "Succeeded"),
        ("badly", "exit 3", "Failed"),
    ] {
        let job = json!({"restartPolicy": "Never", "containers": [sh("c", script)]});
        server.create(&pod(name, job)).expect("create");
        let ended = server.wait_for_phase("default", name, phase, PATIENCE);
        let state = &ended["status"]["containerStatuses"][0]["state"]["terminated"];
        assert_eq!(state["exitCode"], if name == "well" { 0 } else { 3 });
    }
    for name in ["web", "well", "badly"] {
        server
            .delete("pods", "default", name, None)
            .expect("delete");
        wait_gone(&server, name);
    }
    // By force, and the name is used again at once.
    server.create(&pod("web", json!({}))).expect("create");
    let old = wait_ready(&server, "web");
    server
        .delete("pods", "default", "web", Some(0))
        .expect("delete");
    server.create(&pod("web", json!({}))).expect("create");
    let new = wait_ready(&server, "web");
    assert_ne!(old["metadata"]["uid"], new["metadata"]["uid"]);
    host.until("the old one is gone", |host| {
        // Those that had ended before their deletion are missed by the next list of all phases.
        let pods = host.pods();
        let named = |p: &&Value| p["metadata"]["name"] == "web";
        let count = pods.iter().filter(named).count();
        (count == 1, format!("{count} pods"))
    });
    // Statuses go before events, which are told one after the other.
    for reason in ["Created", "Started", "Killing"] {
        server.wait_for(&format!("an event {reason}"), PATIENCE, |view| {
            let events = view.list("events", "default");
            events.iter().any(|e| e["reason"] == reason).then_some(())
        });
    }
    finish(host, &server);
}

#[test]
fn a_pod_is_resized_while_it_runs() {
    // RSZ-02 RSZ-03 RSZ-21 RSZ-23
    if !able() {
        return;
    }
    let (host, server) = cluster(&[]);
    let sized = |memory: &str| {
        let mut container = sh("c", IDLE);
        let requests = json!({"cpu": "100m", "memory": memory});
        container["resources"] = json!({"requests": requests, "limits": {"memory": memory}});
        json!({"containers": [container]})
    };
    server.create(&pod("web", sized("48Mi"))).expect("create");
    let first = wait_ready(&server, "web");
    let uid = first["metadata"]["uid"].as_str().expect("a uid").to_owned();
    // Of the pod's control group, and of the container's below it.
    let limits = || -> Vec<String> {
        let group = format!("pod{uid}");
        let is_of_pod = |dir: &std::path::PathBuf| dir.iter().any(|name| *name == *group);
        let of_pod = host.cgroups().into_iter().filter(is_of_pod);
        of_pod
            .flat_map(|dir| ["memory.limit_in_bytes", "memory.max"].map(|file| dir.join(file)))
            .filter_map(|file| fs::read_to_string(file).ok())
            .map(|text| text.trim().to_owned())
            .collect()
    };
    let has = |mib: u32| vec![(mib << 20).to_string(); 2];
    assert_eq!(limits(), has(48));
    let in_progress = |pod: &Value| {
        let all = pod["status"]["conditions"].as_array().cloned();
        let mut all = all.into_iter().flatten();
        all.find(|c| c["type"] == "PodResizeInProgress")
    };
    let resize = |memory: &str| {
        let spec = json!({"spec": sized(memory)});
        server
            .patch("pods", "default", "web", "resize", &spec)
            .expect("patch")
    };
    for mib in [64, 32] {
        let memory = format!("{mib}Mi");
        resize(&memory);
        let shown = server.wait_for(&memory, PATIENCE, |view| {
            let pod = view.get("pods", "default", "web")?;
            let now = &pod["status"]["containerStatuses"][0]["resources"]["limits"]["memory"];
            (*now == *memory && in_progress(pod).is_none()).then(|| pod.clone())
        });
        assert_eq!(limits(), has(mib));
        assert_eq!(container_id(&shown), container_id(&first), "it runs on");
    }
    // Less than what is in use.
    resize("4Ki");
    let refused = server.wait_for("the limit stays", PATIENCE, |view| {
        let condition = in_progress(view.get("pods", "default", "web")?)?;
        (condition["reason"] == "Error").then(|| condition["message"].to_string())
    });
    assert!(
        refused.contains("cannot decrease memory limits: "),
        "{refused}"
    );
    assert_eq!(limits(), has(32));
    resize("32Mi");
    let shown = server.wait_for("taken back", PATIENCE, |view| {
        let pod = view.get("pods", "default", "web")?;
        in_progress(pod).is_none().then(|| pod.clone())
    });
    assert_eq!(limits(), has(32));
    assert_eq!(container_id(&shown), container_id(&first), "it runs on");
    finish(host, &server);
}

/// Numbers that look random (an xorshift).
fn next_random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Pods that are resized beside each other; `PICOLET_RESIZED_PODS` says how many else.
const RESIZED_PODS: usize = 2;
const RESIZES_PER_POD: usize = 10;

#[test]
fn resizes_under_kills_end_as_asked() {
    // RSZ-03 RSZ-22 RSZ-27 RSZ-30
    if able() {
        resizes_end_as_asked(&[], &json!({}));
    }
}

#[test]
fn resizes_at_containerd_under_kills_end_as_asked() {
    // RSZ-03 RSZ-22 RSZ-27
    if let Some(why) = daemon::missing() {
        skipped!("resizes at containerd: {why}");
        return;
    }
    let containerd = daemon::Containerd::start();
    let endpoint = format!("unix://{}", containerd.socket().display());
    let image = json!({"image": daemon::IMAGE, "imagePullPolicy": "Never"});
    resizes_end_as_asked(&["--container-runtime-endpoint", &endpoint], &image);
}

/// With an agent that has these flags, and containers that have these fields.
fn resizes_end_as_asked(flags: &[&str], fields: &Value) {
    let (mut host, server) = cluster(flags);
    let asked = std::env::var_os("PICOLET_RESIZED_PODS");
    let asked = asked.and_then(|count| count.to_str()?.parse().ok());
    let count = asked.unwrap_or(RESIZED_PODS);
    let seed = std::process::id();
    println!("seed {seed}");
    let mut random = u64::from(seed) | 1 << 40;
    // A pod has resources of its own: its first container follows them, its second has a half.
    let of = |mib: u64, milli: u64| {
        let memory = format!("{mib}Mi");
        json!({"requests": {"cpu": format!("{milli}m"), "memory": memory}, "limits": {"memory": memory}})
    };
    let spec = |mib: u64, milli: u64| {
        let mut second = sh("d", IDLE);
        second["resources"] = of(mib / 2, 50);
        let mut all = [sh("c", IDLE), second];
        for container in &mut all {
            for (key, value) in fields.as_object().expect("an object") {
                container[key] = value.clone();
            }
        }
        json!({"resources": of(mib, milli), "containers": all})
    };
    let name = |n: usize| format!("web-{n}");
    for n in 0..count {
        let made = pod(&name(n), spec(64, 60));
        server.create(&made).expect("create");
    }
    let first: Vec<_> = (0..count).map(|n| wait_ready(&server, &name(n))).collect();
    // A server refuses such a resize on a node that does not say that it can.
    server.wait_for("the node's features", PATIENCE, |view| {
        let node = view.get("nodes", "", NODE)?;
        let all = node["status"]["declaredFeatures"].as_array()?;
        let feature = "InPlacePodLevelResourcesVerticalScaling";
        all.iter().any(|name| name == feature).then_some(())
    });
    // Nor before the status of each container shows what it has.
    for n in 0..count {
        server.wait_for("what they have", PATIENCE, |view| {
            let pod = view.get("pods", "default", &name(n))?;
            let all = pod["status"]["containerStatuses"].as_array()?;
            let shows = |c: &Value| !c["resources"].is_null();
            (all.len() == 2 && all.iter().all(shows)).then_some(())
        });
    }
    let ids = |pod: &Value| -> Vec<Value> {
        let all = pod["status"]["containerStatuses"].as_array();
        let all = all.into_iter().flatten();
        all.map(|c| json!([c["name"], c["containerID"]])).collect()
    };
    let mut pick = |from: &[u64]| {
        let below = u64::try_from(from.len()).expect("small");
        from[usize::try_from(next_random(&mut random) % below).expect("small")]
    };
    let all: Vec<u64> = (0..).take(count).collect();
    let mut wanted = vec![(64, 60); count];
    for n in 0..RESIZES_PER_POD * count {
        let at = usize::try_from(pick(&all)).expect("small");
        let (mib, milli) = (pick(&[32, 48, 64, 96]), pick(&[60, 70, 80, 90]));
        wanted[at] = (mib, milli);
        let patch = json!({"spec": spec(mib, milli)});
        server
            .patch("pods", "default", &name(at), "resize", &patch)
            .expect("patch");
        if n % 5 == 1 {
            host.end_agent(Signal::SIGKILL);
            host.start_agent();
        }
    }
    for (n, (mib, milli)) in wanted.into_iter().enumerate() {
        let shown = server.wait_for("the last resize", PATIENCE, |view| {
            let pod = view.get("pods", "default", &name(n))?;
            let conditions = pod["status"]["conditions"].as_array()?;
            let is_open = conditions.iter().any(|c| {
                let kind = c["type"].as_str().unwrap_or_default();
                kind.starts_with("PodResize")
            });
            (pod["status"]["resources"] == of(mib, milli) && !is_open).then(|| pod.clone())
        });
        assert_eq!(ids(&shown), ids(&first[n]), "they run on");
        let requests = &of(mib, milli)["requests"];
        assert_eq!(shown["status"]["allocatedResources"], *requests);
        // Of the pod's control group, and of those of the containers below it.
        let uid = first[n]["metadata"]["uid"].as_str().expect("a uid");
        let group = format!("pod{uid}");
        let mut limits: Vec<u64> = host
            .cgroups()
            .into_iter()
            .filter(|dir| dir.iter().any(|name| *name == *group))
            .flat_map(|dir| ["memory.limit_in_bytes", "memory.max"].map(|file| dir.join(file)))
            .filter_map(|file| fs::read_to_string(file).ok()?.trim().parse().ok())
            .map(|bytes: u64| bytes >> 20)
            // A sandbox of another runtime has a container of its own.
            .filter(|mib| *mib <= 96)
            .collect();
        limits.sort_unstable();
        assert_eq!(limits, [mib / 2, mib, mib], "{}", name(n));
    }
    finish(host, &server);
}

#[test]
fn a_static_pod_has_a_mirror() {
    // MIR-03 MIR-05 MIR-06 MIR-09 MIR-10 SM-14
    if !able() {
        return;
    }
    let (host, server) = cluster(&[]);
    let name = format!("s-{NODE}");
    host.pod("s", json!({"containers": [sh("c", IDLE)]}));
    let first = wait_ready(&server, &name);
    let id = container_id(&first);
    server
        .delete("pods", "default", &name, Some(0))
        .expect("delete");
    let again = server.wait_for("it is there again", PATIENCE, |view| {
        let pod = view.get("pods", "default", &name)?;
        (pod["metadata"]["uid"] != first["metadata"]["uid"] && is_ready(pod)).then(|| pod.clone())
    });
    assert_eq!(container_id(&again), id, "the static pod never stopped");
    host.pod(
        "s",
        json!({"containers": [sh("c", IDLE)], "terminationGracePeriodSeconds": 2}),
    );
    server.wait_for("the mirror of the new version", PATIENCE, |view| {
        let pod = view.get("pods", "default", &name)?;
        (container_id(pod) != id && is_ready(pod)).then_some(())
    });
    host.remove("s.yaml");
    wait_gone(&server, &name);
    finish(host, &server);
}

#[test]
fn an_apiserver_comes_and_goes() {
    // OFF-01 OFF-03 OFF-04 OFF-06 OFF-08 SRC-30
    if !able() {
        return;
    }
    let (mut host, server) = cluster(&[]);
    for name in ["stays", "goes"] {
        server.create(&pod(name, json!({}))).expect("create");
    }
    let id = container_id(&wait_ready(&server, "stays"));
    wait_ready(&server, "goes");
    server.set_down(true);
    // Another agent finds them with no apiserver to ask.
    host.end_agent(Signal::SIGKILL);
    host.start_agent();
    host.until("both are known", |host| {
        let pods = host.pods();
        (pods.len() == 2, format!("{} pods", pods.len()))
    });
    server
        .delete("pods", "default", "goes", None)
        .expect("delete");
    server.create(&pod("comes", json!({}))).expect("create");
    server.set_down(false);
    wait_gone(&server, "goes");
    wait_ready(&server, "comes");
    let stays = server.get("pods", "default", "stays").expect("there");
    assert_eq!(container_id(&stays), id, "never restarted");
    assert!(is_ready(&stays));
    finish(host, &server);
}

#[test]
fn links_that_lie_and_lose() {
    // SRC-30 SRC-31 SM-05 DEL-05: lost answers, half bodies, stale lists, versions that go back
    if !able() {
        return;
    }
    let (host, server) = cluster(&[]);
    let faults = [
        Rule::new(Fault::ResetAfter)
            .on("PATCH", "/status")
            .one_in(3),
        Rule::new(Fault::ResetAfter)
            .on("DELETE", "/pods/")
            .one_in(2),
        Rule::new(Fault::HalfBody).on("GET", "/pods").one_in(4),
        Rule::new(Fault::Status {
            code: 500,
            retry_after_s: None,
        })
        .on("GET", "/pods")
        .one_in(5),
        Rule::new(Fault::Stale(3)).on("GET", "/pods?").one_in(3),
        Rule::new(Fault::WatchBreak(2))
            .on("GET", "watch=1")
            .one_in(2),
        Rule::new(Fault::WatchDrop).on("GET", "watch=1").one_in(3),
    ];
    for rule in faults {
        server.faults().add(rule);
    }
    server.create(&pod("keeps", json!({}))).expect("create");
    let id = container_id(&wait_ready(&server, "keeps"));
    for round in 0..3 {
        let name = format!("p{round}");
        server.create(&pod(&name, json!({}))).expect("create");
        wait_ready(&server, &name);
        server
            .delete("pods", "default", &name, None)
            .expect("delete");
        wait_gone(&server, &name);
    }
    server.faults().clear();
    let version = server.resource_version();
    server.create(&pod("lost", json!({}))).expect("create");
    wait_ready(&server, "lost");
    assert!(server.restore(version), "from a backup");
    server.create(&pod("late", json!({}))).expect("create");
    wait_ready(&server, "late");
    host.until("what the backup does not have ends", |host| {
        let pods = host.pods();
        let left = pods.iter().any(|p| p["metadata"]["name"] == "lost");
        (!left, "it is there".into())
    });
    let keeps = wait_ready(&server, "keeps");
    assert_eq!(container_id(&keeps), id, "nothing was restarted");
    // The server has forgotten that there was such a pod, so its authorizer sees no race in asking for it.
    let mut wrong = server.wrong();
    wrong.retain(|e| !(e.method == "GET" && e.code == 403 && e.uri.ends_with("/pods/lost")));
    assert!(wrong.is_empty(), "{wrong:#?}");
    server.clear_audit();
    finish(host, &server);
}

#[test]
fn without_a_doorbell() {
    // SRC-29: slower, never wrong
    if !able() {
        return;
    }
    let (host, server) = cluster(&["--doorbells=false"]);
    server
        .create(&pod(
            "web",
            json!({"containers": [{"name": "c", "image": IMAGE, "command": ["sh", "-c", IDLE]}]}),
        ))
        .expect("create");
    wait_ready(&server, "web");
    let watches = server
        .audit()
        .iter()
        .filter(|e| e.uri.contains("watch=1"))
        .count();
    assert_eq!(watches, 0);
    server
        .delete("pods", "default", "web", None)
        .expect("delete");
    server.wait_until_gone("pods", "default", "web", PATIENCE);
    finish(host, &server);
}

#[test]
fn older_apiservers() {
    // Without generations (before 1.33), without fields that came later, and with a node's right to read more widely.
    if !able() {
        return;
    }
    for minor in 30..NEWEST {
        let server = TestServer::builder().version(minor).start();
        let (host, server) = cluster_with(server.expect("server"), &[]);
        let metadata = json!({"name": "conf", "namespace": "default"});
        let data = json!({"colour": "red"});
        server
            .create(&json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}))
            .expect("create");
        let conf = json!([{"name": "conf", "configMap": {"name": "conf"}}]);
        let more = json!({"volumes": conf, "automountServiceAccountToken": true});
        server.create(&pod("web", more)).expect("create");
        host.pod("s", json!({"containers": [sh("c", IDLE)]}));
        let web = wait_ready(&server, "web");
        wait_ready(&server, &format!("s-{NODE}"));
        let has_generation = !web["metadata"]["generation"].is_null();
        assert_eq!(has_generation, minor >= 33, "1.{minor}");
        let observed = &web["status"]["observedGeneration"];
        assert_eq!(observed.is_null(), minor < 34, "1.{minor}: {observed}");
        // What the node controller writes when it has not heard of the node for a while.
        let condition = json!({"type": "Ready", "status": "False", "reason": "NodeNotReady"});
        let foreign = json!({"status": {"conditions": [condition]}});
        server
            .patch("pods", "default", "web", "status", &foreign)
            .expect("patch");
        server.wait_for(&format!("1.{minor}: it is repaired"), PATIENCE, |view| {
            view.get("pods", "default", "web")
                .filter(|p| is_ready(p))
                .map(drop)
        });
        server
            .delete("pods", "default", "web", None)
            .expect("delete");
        wait_gone(&server, "web");
        finish(host, &server);
    }
}
