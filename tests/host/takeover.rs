//! A node changes hands: pods that a kubelet left in containerd go on under picolet, and picolet leaves them as a kubelet
//! takes them. No kubelet runs here: what it leaves is written out below, in its own words.

use std::{
    collections::BTreeMap,
    fs,
    path::PathBuf,
    process::{Command, Stdio},
    rc::Rc,
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};

use nix::sys::signal::Signal;
use picolet::{
    api::{
        PodUid,
        cri::{ContainerConfig, ContainerMount, ContainerState, NamespaceMode, SandboxConfig},
    },
    cgroup::Cgroups,
    logic::oci,
    runtime::endpoint::{EndpointRuntime, EndpointSettings},
    sys::lane::Lane,
};
use serde_json::{Value, json};
use smol::LocalExecutor;

use crate::{
    containerd::{
        container,
        daemon::{Containerd, IMAGE},
        identity, start_containerd,
    },
    host::{Host, IDLE, full, manifest, sh, status_of, with},
};

/// A kubelet's hash of the container `main` with [`IMAGE`]; computed apart from this project's code.
const HASH: &str = "695cd452";
/// Of the same container before its image was edited.
const OLD_HASH: &str = "5a64f38";
const PODS: usize = 10;
/// What a kubelet of Kubernetes 1.36 asks containerd for when it makes the pod `own`, as far as it is read again by who adopts
/// the pod. Written by the rows CFG-02, CFG-04 and CFG-10, not by this project's code.
const GOLDEN: &str = include_str!("../golden/takeover.json");
/// The annotation that has the time at which the pod was first seen.
const SEEN: &str = "kubernetes.io/config.seen";

fn words(all: &[(&str, &str)]) -> BTreeMap<String, String> {
    let owned = all.iter().map(|&(k, v)| (k.to_owned(), v.to_owned()));
    owned.collect()
}

/// A client of containerd beside the agent's own.
fn client(
    containerd: &Containerd,
    executor: &Rc<LocalExecutor<'static>>,
) -> Rc<dyn EndpointRuntime> {
    let settings = EndpointSettings {
        endpoint: containerd.socket(),
        image_endpoint: containerd.socket(),
        request_timeout: Duration::from_secs(60),
        masked_paths: oci::MASKED_PATHS.map(str::to_owned).to_vec(),
        readonly_paths: oci::READONLY_PATHS.map(str::to_owned).to_vec(),
        ..EndpointSettings::default()
    };
    let cgroups = Cgroups::detect().expect("cgroups");
    let disk = Lane::start("disk").expect("lane");
    let open = picolet::parts::find_endpoint_client().expect("a client");
    let opened = open(settings, executor, disk, cgroups);
    smol::block_on(executor.run(opened)).expect("a client")
}

/// A kubelet that has ended: what it had its own.
struct Kubelet<'a> {
    cri: &'a dyn EndpointRuntime,
    host: &'a Host,
    root: PathBuf,
    kubepods: String,
}

/// Makes what a kubelet leaves of a running pod. Returns the container's id.
async fn left_by_a_kubelet(kubelet: &Kubelet<'_>, name: &str, hash: &str) -> String {
    let Kubelet {
        cri,
        host,
        root,
        kubepods,
    } = kubelet;
    let (uid, own) = (format!("uid-{name}"), full(name));
    let logs = host.path("logs").join(format!("default_{own}_{uid}"));
    let dir = root.join("pods").join(&uid);
    // A volume with data, and the file for its last words.
    let data = dir.join("volumes/kubernetes.io~empty-dir/data");
    let ready = dir.join("plugins/kubernetes.io~empty-dir/data");
    let last_words = dir.join("containers/main/0badcafe");
    let hosts = dir.join("etc-hosts");
    for dir in [
        &data,
        &ready,
        &dir.join("containers/main"),
        &logs.join("main"),
    ] {
        fs::create_dir_all(dir).expect("directory");
    }
    for (file, text) in [
        (data.join("kept"), name),
        (ready.join("ready"), ""),
        (last_words.clone(), ""),
        (hosts.clone(), "127.0.0.1 localhost\n"),
    ] {
        fs::write(file, text).expect("file");
    }
    let labels = [
        ("io.kubernetes.pod.name", &*own),
        ("io.kubernetes.pod.namespace", "default"),
        ("io.kubernetes.pod.uid", &*uid),
    ];
    let mut sandbox = SandboxConfig {
        name: own.clone(),
        namespace: "default".into(),
        uid: PodUid::new(uid.clone()),
        hostname: own.clone(),
        log_directory: logs.display().to_string(),
        cgroup_parent: format!("{kubepods}/besteffort/pod{uid}"),
        labels: words(&labels),
        annotations: words(&[
            (
                "kubernetes.io/config.seen",
                "2026-01-02T03:04:05.678901234Z",
            ),
            ("kubernetes.io/config.source", "api"),
        ]),
        ..SandboxConfig::default()
    };
    sandbox.namespaces.pid = NamespaceMode::Container;
    let made = cri.run_pod_sandbox(&sandbox).await.expect("a sandbox");
    let mount = |host_path: String, container_path: &str| ContainerMount {
        host_path,
        container_path: container_path.into(),
        ..ContainerMount::default()
    };
    let mut config = ContainerConfig {
        name: "main".into(),
        attempt: 3,
        image: IMAGE.into(),
        user_image: IMAGE.into(),
        command: [
            "sh",
            "-c",
            "echo up; trap 'exit 0' TERM; while :; do sleep 1000 & wait; done",
        ]
        .map(Into::into)
        .into(),
        labels: words(&[&labels[..], &[("io.kubernetes.container.name", "main")]].concat()),
        annotations: words(&[
            ("io.kubernetes.container.hash", hash),
            ("io.kubernetes.container.restartCount", "3"),
            (
                "io.kubernetes.container.terminationMessagePath",
                "/dev/termination-log",
            ),
            ("io.kubernetes.container.terminationMessagePolicy", "File"),
            ("io.kubernetes.pod.terminationGracePeriod", "1"),
        ]),
        mounts: vec![
            mount(data.display().to_string(), "/data"),
            mount(hosts.display().to_string(), "/etc/hosts"),
            mount(last_words.display().to_string(), "/dev/termination-log"),
        ],
        log_path: "main/3.log".into(),
        ..ContainerConfig::default()
    };
    config.security.namespaces = sandbox.namespaces;
    config.security.run_as_user = Some(0);
    let made = cri
        .create_container(&made.id, &config, Some(&sandbox))
        .await;
    let id = made.expect("a container");
    cri.start_container(&id).await.expect("started");
    format!("containerd://{id}")
}

fn pod(name: &str) -> Value {
    let mounts = json!({"volumeMounts": [{"name": "data", "mountPath": "/data"}]});
    let script = "echo up; trap 'exit 0' TERM; while :; do sleep 1000 & wait; done";
    let mut pod = manifest(
        name,
        json!({
            "containers": [container("main", script, &mounts)],
            "volumes": [{"name": "data", "emptyDir": {}}],
        }),
    );
    pod["metadata"]["uid"] = format!("uid-{name}").into();
    pod
}

fn cgroup_root(host: &Host) -> String {
    let flag = host.flags.iter().position(|flag| flag == "--cgroup-root");
    host.flags[flag.expect("a flag") + 1].clone()
}

/// The configuration by which a sandbox or a container was asked for, as containerd keeps it.
fn asked_for(containerd: &Containerd, id: &str) -> Value {
    let told = containerd.ctr().args(["containers", "info", id]).output();
    let told: Value = serde_json::from_slice(&told.expect("ctr").stdout).expect("JSON");
    let extensions = told["Extensions"].as_object().expect("extensions");
    let mut own = extensions.iter();
    let own = own.find(|(name, _)| name.starts_with("io.cri-containerd."));
    let bytes = own.expect("what CRI keeps").1["value"].as_str();
    let bytes = STANDARD.decode(bytes.expect("bytes")).expect("base64");
    let mut kept: Value = serde_json::from_slice(&bytes).expect("JSON");
    kept["Metadata"]["Config"].take()
}

fn write(host: &Host, name: &str) {
    host.write(&format!("{name}.yaml"), &pod(name).to_string());
}

#[test]
fn pods_of_a_kubelet_go_on_and_could_go_back() {
    // CRI-93 CRI-94 CRI-95
    let Some((containerd, mut host)) = start_containerd("pods_of_a_kubelet_go_on") else {
        return;
    };
    let cgroup_root = cgroup_root(&host);
    let kubepods = format!("{cgroup_root}/kubepods");
    let executor = Rc::new(LocalExecutor::new());
    let cri = client(&containerd, &executor);
    let names: Vec<String> = (0..PODS).map(|n| format!("left{n}")).collect();
    let kubelet = |root: &str, kubepods: &str| Kubelet {
        cri: &*cri,
        host: &host,
        root: host.path(root),
        kubepods: kubepods.into(),
    };
    let same = kubelet("root", &kubepods);
    let (made, left) = smol::block_on(executor.run(async {
        cri.list_pods().await.expect("a list");
        let mut made = Vec::new();
        for name in &names {
            made.push(left_by_a_kubelet(&same, name, HASH).await);
        }
        // Made otherwise than picolet makes them here: another image, another root directory, another cgroup driver.
        let mut left = BTreeMap::new();
        let slices = format!("{cgroup_root}/kubepods.slice");
        for (name, kubelet, hash) in [
            ("edited", &same, OLD_HASH),
            ("moved", &same, HASH),
            ("rooted", &kubelet("kubelet", &kubepods), HASH),
            ("sliced", &kubelet("root", &slices), HASH),
        ] {
            left.insert(name, left_by_a_kubelet(kubelet, name, hash).await);
        }
        (made, left)
    }));
    let others = ["edited", "rooted", "sliced"];

    for name in names.iter().map(String::as_str).chain(others) {
        write(&host, name);
    }
    let mut anew = pod("moved");
    anew["metadata"] = json!({"name": "moved"});
    host.write("moved.yaml", &anew.to_string());
    host.start_agent();
    for (name, id) in names.iter().zip(&made) {
        let pod = host.wait_ready(name);
        assert_eq!(identity(&pod), [(id.clone(), 3)], "{name} was started anew");
        let data = host.path("root").join(format!(
            "pods/uid-{name}/volumes/kubernetes.io~empty-dir/data/kept"
        ));
        assert_eq!(fs::read_to_string(data).expect("its data"), *name);
        assert_eq!(host.ok(&["logs", &full(name)]), "up\n");
    }
    // Those are made anew, and nothing else: in their sandbox, or with it where there is no cgroup of theirs.
    for (name, count) in [("edited", 4), ("rooted", 4), ("sliced", 4)] {
        let pod = host.wait_pod(name, "made anew", |pod| {
            status_of(pod, "main")["restartCount"] == count
                && status_of(pod, "main")["ready"] == true
        });
        assert_ne!(identity(&pod)[0].0, left[name], "{name}");
    }
    let kept = host.path("kubelet/pods/uid-rooted/volumes/kubernetes.io~empty-dir/data/kept");
    assert!(kept.exists(), "what another root directory has stays");

    // A static pod without a uid in its manifest gets another one here: what the kubelet made of it ends first.
    assert_eq!(identity(&host.wait_ready("moved"))[0].1, 0);
    let running = containerd.ctr().args(["tasks", "ls", "-q"]).output();
    let running = String::from_utf8_lossy(&running.expect("ctr").stdout).into_owned();
    for old in left.values() {
        let old = old.trim_start_matches("containerd://");
        assert!(!running.contains(old), "{old} still runs");
    }

    // What is made here has a kubelet's labels, and its hash and count.
    host.remove("left0.yaml");
    host.wait_gone("left0");
    let mut spec = pod("own");
    spec["metadata"]["labels"] = json!({"app": "web"});
    spec["metadata"]["annotations"] = json!({"example.com/note": "kept"});
    let main = &mut spec["spec"]["containers"][0];
    *main = with(
        main.clone(),
        json!({
            "ports": [{"name": "http", "containerPort": 80}],
            "lifecycle": {"preStop": {"exec": {"command": ["true"]}}},
        }),
    );
    host.write("own.yaml", &spec.to_string());
    let own = identity(&host.wait_ready("own"));
    host.end_agent(Signal::SIGKILL);
    let uid = PodUid::new("uid-own");
    let pod = smol::block_on(executor.run(cri.pod_status(&uid))).expect("a status");
    let (sandbox, main) = (&pod.sandboxes[0], &pod.containers[0]);
    assert_eq!(main.state, ContainerState::Running);
    let logs = host.path("logs").display().to_string();
    let golden = GOLDEN.replace("{logs}", &logs);
    let golden: Value =
        serde_json::from_str(&golden.replace("{kubepods}", &kubepods)).expect("JSON");
    for (id, wanted) in [
        (&*sandbox.id, &golden["sandbox"]),
        (&*main.id, &golden["container"]),
    ] {
        let mut found = asked_for(&containerd, id);
        if let Some(annotations) = found["annotations"].as_object_mut() {
            annotations.remove(SEEN);
        }
        for (field, wanted) in wanted.as_object().expect("fields") {
            let mut found = found[field].take();
            // The rest is made anew at each sync, and no kubelet reads it again.
            if field == "linux" {
                let of = |fields: &Value, name: &str| fields[name].clone();
                let security = of(&found, "security_context");
                found = json!({
                    "cgroup_parent": of(&found, "cgroup_parent"),
                    "security_context": {
                        "namespace_options": of(&security, "namespace_options"),
                        "seccomp": of(&security, "seccomp"),
                    },
                });
            }
            assert_eq!(found, *wanted, "{field}");
        }
    }

    // The next owner finds all of them running.
    host.start_agent();
    assert_eq!(identity(&host.wait_ready("own")), own);
    for (name, id) in names.iter().zip(&made).skip(1) {
        assert_eq!(
            identity(&host.wait_ready(name)),
            [(id.clone(), 3)],
            "{name}"
        );
    }
}

#[test]
fn nobody_else_runs_pods_beside() {
    // CRI-96
    let Some((containerd, mut host)) = start_containerd("nobody_else_runs_pods_beside") else {
        return;
    };
    let refused = |host: &Host| {
        let ended = host.command_with_flags("run", &[]);
        let told = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(!ended.status.success(), "it runs: {told}");
        told
    };
    // A shell by the name of a kubelet, with its flags, and with another cgroup root and other logs.
    let program = host.path("kubelet");
    fs::copy("/bin/sh", &program).expect("program");
    let endpoint = format!(
        "--container-runtime-endpoint=unix://{}",
        containerd.socket().display()
    );
    let mut kubelet = Command::new(&program)
        .args([
            "-c",
            "read word",
            "kubelet",
            "--cgroup-root=/elsewhere",
            &endpoint,
        ])
        .stdin(Stdio::piped())
        .spawn()
        .expect("a kubelet");
    let pid = kubelet.id();
    let told = refused(&host);
    assert!(
        told.contains(&format!("a kubelet (process {pid})")),
        "{told}"
    );
    drop(kubelet.stdin.take());
    kubelet.wait().expect("ended");

    // Pods of containerd are not seen by who runs pods itself, and the other way round.
    host.pod(
        "stays",
        json!({"containers": [container("main", "sleep 1000", &json!({}))]}),
    );
    host.start_agent();
    host.wait_ready("stays");
    host.end_agent(Signal::SIGTERM);
    let with_endpoint = host.flags.clone();
    let flag = host
        .flags
        .iter()
        .position(|flag| flag == "--container-runtime-endpoint");
    host.flags
        .drain(flag.expect("a flag")..=flag.expect("a flag") + 1);
    let own = host.flags.clone();
    let told = refused(&host);
    let socket = containerd.socket().display().to_string();
    assert!(
        told.contains(&format!("pods of {socket} still run")),
        "{told}"
    );
    host.flags = with_endpoint.clone();
    host.start_agent();
    host.remove("stays.yaml");
    host.wait_gone("stays");
    host.end_agent(Signal::SIGTERM);

    // Nothing runs any more: now it may.
    host.flags = own;
    host.start_agent();
    host.import();
    host.pod("stays", json!({"containers": [sh("main", IDLE)]}));
    host.wait_ready("stays");
    host.end_agent(Signal::SIGTERM);
    host.flags = with_endpoint;
    let told = refused(&host);
    assert!(told.contains("pods of picolet itself still run"), "{told}");
    let flag = host
        .flags
        .iter()
        .position(|flag| flag == "--container-runtime-endpoint");
    host.flags
        .drain(flag.expect("a flag")..=flag.expect("a flag") + 1);
    host.start_agent();
    host.finish();
}
