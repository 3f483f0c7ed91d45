//! Pods of a cluster at the provider of docs/provider.md: what kubectl does with them, and what kills do to them.

#[path = "../common/lamps.rs"]
#[expect(
    dead_code,
    reason = "more is used by the tests of a node without a cluster"
)]
mod lamps;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
};

use lamps::{Lamps, lamp};
use nix::sys::signal::Signal;
use picolet_test_apiserver::TestServer;
use serde_json::{Value, json};

use crate::{
    host::{Host, NODE, able, pause},
    kubectl::kubectls,
    pods::{cluster_with, finish, pod, wait_gone, wait_ready},
};

/// Kills of the agent, and as many of the provider.
const KILLS: usize = 20;

/// A cluster with a provider and its class.
fn start() -> Option<(Lamps, TestServer, Host)> {
    if !able() {
        return None;
    }
    let server = TestServer::builder()
        .controllers(true)
        .start()
        .expect("server");
    let dir: PathBuf = std::env::temp_dir().join(format!("picolet-lamps-{}", server.port()));
    let lamps = Lamps::start(&dir);
    let config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "imageGCHighThresholdPercent": 100, "evictionHard": lamps::NO_THRESHOLDS.map(|name| (name, "0%")).into_iter().collect::<BTreeMap<_, _>>(),
        "picolet": {"providers": {"lamps": lamps.socket()}},
    });
    let path = dir.join("config.yaml");
    fs::write(&path, config.to_string()).expect("configuration");
    let class = json!({
        "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass",
        "metadata": {"name": "lights"}, "handler": "lamps",
    });
    server.create(&class).expect("class");
    let ca = dir.join("ca.crt");
    fs::write(&ca, server.ca_pem()).expect("write");
    let (path, ca) = (path.display().to_string(), ca.display().to_string());
    let (host, server) = cluster_with(server, &["--config", &path, "--client-ca-file", &ca]);
    // What is bound last is dropped first: an agent ends its pods at the provider.
    Some((lamps, server, host))
}

fn clean(host: Host, server: &TestServer, lamps: Lamps) {
    let dir = lamps.socket().parent().expect("directory").to_owned();
    drop(lamps);
    finish(host, server);
    let _ = fs::remove_dir_all(dir);
}

fn lit(name: &str) -> Value {
    let spec = json!({
        "runtimeClassName": "lights", "containers": [lamp("main", None)],
        "terminationGracePeriodSeconds": 5,
    });
    pod(name, spec)
}

/// A pod of that colour, with a word of a Secret.
fn coloured(colour: &str, number: usize) -> Value {
    let mut one = lamp("main", None);
    one["env"] = json!([
        {"name": "COLOUR", "value": colour},
        {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "s", "key": "word"}}},
    ]);
    let mut pod = lit(&format!("{colour}-{number}"));
    pod["spec"]["containers"] = json!([one]);
    pod
}

/// Names of the pods that run and are ready.
fn ready(server: &TestServer) -> BTreeSet<String> {
    let is_ready = |pod: &Value| {
        let all = pod["status"]["conditions"].as_array();
        pod["metadata"]["deletionTimestamp"].is_null()
            && all.is_some_and(|all| {
                all.iter()
                    .any(|c| c["type"] == "Ready" && c["status"] == "True")
            })
    };
    let pods = server.list("pods", "default");
    let pods = pods.iter().filter(|pod| is_ready(pod));
    pods.map(|pod| pod["metadata"]["name"].as_str().unwrap_or("").to_owned())
        .collect()
}

#[test]
fn kubectl_works_with_lamps() {
    // PRVD-01 PRVD-03 PRVD-06 PRVD-10 PROV-08
    let Some((lamps, server, host)) = start() else {
        return;
    };
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": "default"},
        "data": {"word": "c2VzYW1l"},
    });
    server.create(&secret).expect("secret");
    for number in 0..3 {
        server.create(&coloured("red", number)).expect("create");
    }
    host.until("three run", |_| {
        let ready = ready(&server);
        (ready.len() == 3, format!("{ready:?}"))
    });
    let first = ready(&server);
    let config = host.path("admin");
    fs::write(&config, server.admin_kubeconfig().expect("kubeconfig")).expect("write");
    for kubectl in kubectls(&config, "pods of a provider") {
        let got = kubectl.ok(&["get", "pods", "--no-headers"]);
        let runs = |line: &&str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            words.get(1..3) == Some(&["1/1", "Running"])
        };
        assert_eq!(got.lines().filter(runs).count(), 3, "{got}");
        let one = first.first().expect("a pod");
        let logs = kubectl.ok(&["logs", one]);
        assert!(
            logs.contains("'COLOUR': 'red', 'SECRET': 'sesame'"),
            "{logs}"
        );
        assert_eq!(kubectl.ok(&["exec", one, "--", "state"]), "running\n");
        let wrong = kubectl.run(&["exec", one, "--", "dance"]);
        assert_eq!(wrong.status.code(), Some(127));
    }
    // A rollout: each is replaced by one of another colour, which is ready first.
    for (number, old) in first.iter().enumerate() {
        let new = coloured("blue", number);
        server.create(&new).expect("create");
        wait_ready(&server, &format!("blue-{number}"));
        server.delete("pods", "default", old, None).expect("delete");
        wait_gone(&server, old);
    }
    host.until("rolled out", |_| {
        let now = ready(&server);
        let left = lamps.pods();
        let all = now.len() == 3 && now.is_disjoint(&first) && left.len() == 3;
        (all, format!("{now:?} {left:?}"))
    });
    assert!(lamps.state().to_string().contains("blue"));
    assert!(!lamps.state().to_string().contains("red"));
    let all = kubectls(&config, "pods of a provider");
    // One that has ended: its last words and its log are there until it is deleted, and then nowhere.
    for kubectl in &all {
        let mut job = lit("job");
        job["spec"]["restartPolicy"] = json!("Never");
        job["spec"]["containers"] = json!([lamp("main", Some(3))]);
        server.create(&job).expect("create");
        host.until("it has failed", |_| {
            let job = server.get("pods", "default", "job").expect("there");
            let status = &job["status"];
            let end = &status["containerStatuses"][0]["state"]["terminated"];
            let is = status["phase"] == "Failed" && end["exitCode"] == 3;
            (is, status.to_string())
        });
        assert!(kubectl.ok(&["logs", "job"]).ends_with("main is off\n"));
        assert_eq!(lamps.pods().len(), 4);
        kubectl.ok(&["delete", "pod", "job"]);
        wait_gone(&server, "job");
        host.until("the provider forgets it", |_| {
            let left = lamps.pods();
            (left.len() == 3, format!("{left:?}"))
        });
    }
    // Deleted by name, and what is left.
    for kubectl in &all {
        kubectl.ok(&["delete", "pod", "blue-0"]);
        wait_gone(&server, "blue-0");
        server.create(&coloured("blue", 0)).expect("create");
        wait_ready(&server, "blue-0");
    }
    for name in ready(&server) {
        server
            .delete("pods", "default", &name, None)
            .expect("delete");
    }
    host.until("nothing is left", |_| {
        let left = (server.list("pods", "default").len(), lamps.pods());
        (left == (0, Vec::new()), format!("{left:?}"))
    });
    clean(host, &server, lamps);
}

#[test]
fn twenty_kills_of_the_agent_and_of_the_provider() {
    // PROV-04 PRVD-04 PRVD-06 PRVD-07
    let Some((mut lamps, server, mut host)) = start() else {
        return;
    };
    server.create(&lit("steady")).expect("create");
    let steady = wait_ready(&server, "steady");
    let id = |pod: &Value| pod["status"]["containerStatuses"][0].clone();
    for round in 0..KILLS {
        let (old, new) = (format!("p{}", round.wrapping_sub(1)), format!("p{round}"));
        server.create(&lit(&new)).expect("create");
        if round > 0 {
            server
                .delete("pods", "default", &old, None)
                .expect("delete");
        }
        // Each round another while passes before it is killed.
        let before = core::time::Duration::from_millis(u64::try_from(round).expect("small") * 13);
        pause(before);
        host.end_agent(Signal::SIGKILL);
        lamps.kill();
        if round % 2 == 0 {
            lamps.begin();
            host.start_agent();
        } else {
            host.start_agent();
            lamps.begin();
        }
        wait_ready(&server, &new);
        if round > 0 {
            wait_gone(&server, &old);
        }
        let now = server.get("pods", "default", "steady").expect("there");
        assert_eq!(id(&now), id(&steady), "round {round}");
        // What has ended stays at its provider until the API has let go of it.
        let wanted = [new, "steady".into()];
        host.until("none lost, none doubled", |_| {
            let mut names: Vec<String> = lamps.pods().into_iter().map(|(_, name)| name).collect();
            names.sort();
            (names == wanted, format!("round {round}: {names:?}"))
        });
    }
    for name in ["steady", &format!("p{}", KILLS - 1)] {
        server
            .delete("pods", "default", name, None)
            .expect("delete");
        wait_gone(&server, name);
    }
    host.until("the provider has none", |_| {
        let left = lamps.pods();
        (left.is_empty(), format!("{left:?}"))
    });
    let node = server.get("nodes", "", NODE).expect("node");
    assert!(node.to_string().contains("ProviderReady"));
    host.until("ready", |_| {
        let node = server.get("nodes", "", NODE).expect("node");
        let all = node["status"]["conditions"]
            .as_array()
            .expect("list")
            .clone();
        let is = |kind: &str| {
            all.iter()
                .any(|c| c["type"] == kind && c["status"] == "True")
        };
        (
            is("ProviderReady") && is("Ready"),
            node["status"]["conditions"].to_string(),
        )
    });
    clean(host, &server, lamps);
}
