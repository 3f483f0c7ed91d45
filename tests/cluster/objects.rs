//! What pods of a cluster refer to, seen from inside their containers: ConfigMaps, Secrets, tokens, services; followed while
//! they run, and there again after a boot without an apiserver.

use std::{fs, os::unix::fs::PermissionsExt as _};

use nix::{
    mount::{MntFlags, umount2},
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use picolet_test_apiserver::TestServer;
use serde_json::{Value, json};

use crate::{
    host::{Host, IDLE, NODE, able, sh, with},
    pods::{cluster, finish, pod, wait_gone, wait_ready},
};

fn create(server: &TestServer, kind: &str, name: &str, fields: Value) {
    let metadata = json!({"name": name, "namespace": "default"});
    let object = json!({"apiVersion": "v1", "kind": kind, "metadata": metadata});
    server.create(&with(object, fields)).expect("created");
}

/// What a script prints in the container `c` of the pod `web`.
fn says(host: &Host, script: &str) -> String {
    let words = ["exec", "web", "-c", "c", "--", "sh", "-c", script];
    host.ok(&words).trim_end().to_owned()
}

fn web() -> Value {
    let reference = |name: &str, key: &str| json!({"name": name, "key": key});
    let env = json!([
        {"name": "COLOUR", "valueFrom": {"configMapKeyRef": reference("conf", "colour")}},
        {"name": "NOTHING", "valueFrom": {"configMapKeyRef": {"name": "none", "key": "x", "optional": true}}},
        {"name": "UID_OF_POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
    ]);
    let mounts = json!([
        {"name": "conf", "mountPath": "/conf"},
        {"name": "conf", "mountPath": "/one", "subPath": "colour"},
        {"name": "secret", "mountPath": "/secret"},
        {"name": "all", "mountPath": "/all"},
    ]);
    let container = json!({"env": env, "envFrom": [{"secretRef": {"name": "login"}, "prefix": "LOGIN_"}], "volumeMounts": mounts});
    let sources = json!([
        {"serviceAccountToken": {"path": "vault", "audience": "vault", "expirationSeconds": 600}},
        {"downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
        {"configMap": {"name": "conf", "items": [{"key": "colour", "path": "deep/colour"}]}},
    ]);
    let volumes = json!([
        {"name": "conf", "configMap": {"name": "conf"}},
        {"name": "secret", "secret": {"secretName": "login", "defaultMode": 0o400}},
        {"name": "all", "projected": {"sources": sources}},
    ]);
    let mut pod = pod(
        "web",
        json!({"containers": [with(sh("c", IDLE), container)], "volumes": volumes, "automountServiceAccountToken": true}),
    );
    pod["metadata"]["labels"] = json!({"app": "web"});
    pod
}

/// All that can be seen of the objects inside, as long as none has changed.
const SEEN: [(&str, &str); 12] = [
    ("echo $COLOUR/${NOTHING-unset}", "red/unset"),
    ("echo $LOGIN_user", "hi"),
    (
        "echo $KUBERNETES_SERVICE_HOST:$DB_SERVICE_PORT",
        "10.96.0.1:5432",
    ),
    ("cat /conf/colour /one", "redred"),
    ("cat /secret/user", "hi"),
    ("stat -L -c %a /secret/user", "400"),
    ("grep -c ' /secret tmpfs ro' /proc/mounts", "1"),
    (
        "touch /conf/x /secret/x /all/x 2>&1 | grep -c 'Read-only'",
        "3",
    ),
    ("cat /all/labels", "app=\"web\""),
    ("cat /all/deep/colour", "red"),
    ("cat $ACCOUNT/namespace", "default"),
    ("tr -cd . < $ACCOUNT/token; tr -cd . < /all/vault", "...."),
];

fn all_seen(host: &Host) {
    for (script, want) in SEEN {
        let account = "ACCOUNT=/var/run/secrets/kubernetes.io/serviceaccount; ";
        assert_eq!(says(host, &format!("{account}{script}")), want, "{script}");
    }
}

/// The machine loses its power: every process ends, and what was in memory is gone.
fn lose_power(host: &mut Host) {
    host.end_agent(Signal::SIGKILL);
    host.until("every process has ended", |host| {
        let left = host.processes();
        for (pid, _) in &left {
            // Gone already is just as well.
            let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
        }
        (left.is_empty(), format!("{left:?}"))
    });
    let (run, root) = (host.path("run"), host.path("root"));
    for point in host.mounts().iter().rev() {
        let is_below = |dir: &std::path::Path| point.starts_with(dir) && point != dir;
        if is_below(&run) || is_below(&root) {
            umount2(point, MntFlags::MNT_DETACH).expect("unmounted");
        }
    }
    for entry in fs::read_dir(&run).expect("run directory").flatten() {
        let path = entry.path();
        let is_dir = entry.file_type().expect("type").is_dir();
        if is_dir {
            fs::remove_dir_all(&path).expect("removed");
        } else {
            fs::remove_file(&path).expect("removed");
        }
    }
}

#[test]
fn objects_reach_containers_and_are_followed() {
    // OBJ-03 OBJ-06 VOL-01 VOL-02 VOL-05 VOL-06 VOL-07 VOL-09 VOL-10 VOL-11 VOL-24 VOL-26 ENV-01 ENV-02 ENV-03 ENV-07 ENV-08
    // ENV-11 TOK-01 TOK-02 TOK-05 AUTHZ-04 AUTHZ-06 AUTHZ-13 OFF-02 OFF-08
    if !able() {
        return;
    }
    let (mut host, server) = cluster(&["--sync-frequency=2s"]);
    create(
        &server,
        "ConfigMap",
        "conf",
        json!({"data": {"colour": "red"}}),
    );
    create(
        &server,
        "Secret",
        "login",
        json!({"data": {"user": "aGk="}}),
    );
    let ports = json!([{"port": 5432}]);
    create(
        &server,
        "Service",
        "db",
        json!({"spec": {"clusterIP": "10.96.0.2", "ports": ports}}),
    );
    let uid = server.create(&web()).expect("created")["metadata"]["uid"].clone();
    wait_ready(&server, "web");
    all_seen(&host);
    assert_eq!(uid, says(&host, "echo $UID_OF_POD").as_str());
    let asked = server.audit();
    let tokens = asked
        .iter()
        .filter(|e| e.method == "POST" && e.uri.ends_with("/default/token"));
    assert_eq!(tokens.count(), 2, "one a token");
    assert!(
        asked.iter().all(|e| !e.uri.contains("/secrets?")),
        "by name only"
    );
    // No copy may be read by others.
    let copies = host.path("root/objects");
    let mode = |path: &std::path::Path| {
        use std::os::unix::fs::PermissionsExt as _;
        fs::metadata(path).expect("metadata").permissions().mode() & 0o777
    };
    assert_eq!(mode(&copies), 0o700);
    for copy in fs::read_dir(&copies).expect("copies").flatten() {
        assert_eq!(mode(&copy.path()), 0o600, "{copy:?}");
    }
    // The power fails, and the apiserver is away: the pod starts again, and sees what it saw.
    let token = says(&host, "cat /all/vault");
    server.set_down(true);
    lose_power(&mut host);
    host.start_agent();
    host.until("runs again", |host| {
        let output = host.cli(&["exec", "web", "-c", "c", "--", "true"]);
        (output.status.success(), crate::host::text(&output.stderr))
    });
    all_seen(&host);
    assert_eq!(says(&host, "cat /all/vault"), token);
    // It is back: what changes is followed, where it can be.
    server.set_down(false);
    let change = json!({"data": {"colour": "blue", "new": "x"}});
    server
        .patch("configmaps", "default", "conf", "", &change)
        .expect("changed");
    host.until("the change is seen", |host| {
        let seen = says(
            host,
            "cat /conf/colour /conf/new /all/deep/colour 2>/dev/null; true",
        );
        (seen == "bluexblue", seen)
    });
    assert_eq!(says(&host, "cat /one; echo /$COLOUR"), "red/red");
    let change = json!({"metadata": {"labels": {"app": "other"}}});
    server
        .patch("pods", "default", "web", "", &change)
        .expect("changed");
    host.until("the label is seen", |host| {
        let seen = says(host, "cat /all/labels");
        (seen == "app=\"other\"", seen)
    });
    server
        .delete("pods", "default", "web", None)
        .expect("deleted");
    wait_gone(&server, "web");
    host.until("no copy is left", |_| {
        let left = fs::read_dir(&copies).expect("copies").count();
        (left == 0, format!("{left} copies"))
    });
    finish(host, &server);
}

#[test]
fn a_pod_waits_for_its_objects() {
    // VOL-07 VOL-28 ENV-03 AUTHZ-08
    if !able() {
        return;
    }
    let (host, server) = cluster(&["--sync-frequency=2s"]);
    let volume = json!({"name": "v", "secret": {"secretName": "late"}});
    let mount = json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]});
    let spec = json!({"containers": [with(sh("c", IDLE), mount)], "volumes": [volume]});
    server.create(&pod("web", spec)).expect("created");
    let told = server.wait_for("the event", crate::host::PATIENCE, |view| {
        let all = view.list("events", "default");
        all.into_iter()
            .find(|e| e["reason"] == "FailedMount")
            .cloned()
    });
    let message = told["message"].as_str().unwrap_or_default();
    assert!(message.contains("late"), "{message}");
    create(&server, "Secret", "late", json!({"data": {"user": "aGk="}}));
    wait_ready(&server, "web");
    assert_eq!(says(&host, "cat /v/user"), "hi");
    finish(host, &server);
}

#[test]
fn a_class_names_the_oci_runtime_of_a_pod() {
    // CFG-16 NODE-14 RC-01 RC-02
    if !able() {
        return;
    }
    let (mut host, server) = cluster(&["--sync-frequency=2s"]);
    host.end_agent(Signal::SIGTERM);
    let (program, calls) = (host.path("other-runtime"), host.path("calls"));
    let script = format!(
        "#!/bin/sh\necho \"$@\" >> {}\nexec runc \"$@\"\n",
        calls.display()
    );
    fs::write(&program, script).expect("script");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("mode");
    let config = host.path("config.yaml");
    let text = format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
         evictionHard: {{memory.available: 1Mi}}\npicolet: {{handlers: {{other: {}}}}}\n",
        program.display()
    );
    fs::write(&config, text).expect("configuration");
    host.flags
        .extend(["--config".into(), config.display().to_string()]);
    host.start_agent();

    let limits = json!({"resources": {"limits": {"cpu": "500m", "memory": "100Mi"}}});
    let spec = json!({
        "runtimeClassName": "slow",
        "overhead": {"cpu": "250m", "memory": "20Mi"},
        "containers": [with(sh("c", IDLE), limits)],
    });
    server.create(&pod("web", spec)).expect("created");
    let told = server.wait_for("the event", crate::host::PATIENCE, |view| {
        let all = view.list("events", "default");
        let mut all = all.into_iter();
        all.find(|e| e["reason"] == "FailedCreatePodSandBox")
            .cloned()
    });
    let message = told["message"].as_str().unwrap_or_default();
    assert!(
        message.contains("RuntimeClass \"slow\" not found"),
        "{message}"
    );
    let class = json!({
        "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "slow"}, "handler": "other",
    });
    server.create(&class).expect("created");
    wait_ready(&server, "web");
    let called = fs::read_to_string(&calls).expect("calls");
    assert!(
        called.contains(" create ") && called.contains(" start "),
        "{called}"
    );
    assert_eq!(says(&host, "echo hi"), "hi");

    // The pod has room for the runtime beside that for its containers.
    let uid = server.get("pods", "default", "web").expect("there")["metadata"]["uid"].clone();
    let group = format!("pod{}", uid.as_str().expect("a uid"));
    let limits: Vec<String> = host
        .cgroups()
        .into_iter()
        .filter(|dir| dir.ends_with(&group))
        .flat_map(|dir| ["memory.limit_in_bytes", "memory.max"].map(|file| dir.join(file)))
        .filter_map(|file| fs::read_to_string(file).ok())
        .collect();
    assert_eq!(limits, [format!("{}\n", 120 << 20)]);
    server.wait_for("the node's handlers", crate::host::PATIENCE, |view| {
        let node = view.get("nodes", "", NODE)?;
        let handlers = node["status"]["runtimeHandlers"].as_array()?;
        let names: Vec<_> = handlers
            .iter()
            .map(|h| h["name"].as_str().unwrap_or_default())
            .collect();
        // What it is depends on the machine's runtime; it is told.
        let mut features = handlers.iter().map(|h| &h["features"]["userNamespaces"]);
        assert!(features.all(Value::is_boolean), "{handlers:?}");
        (names == ["", "other"]).then_some(())
    });
    finish(host, &server);
}
