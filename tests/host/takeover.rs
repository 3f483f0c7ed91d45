//! A node changes hands: pods that a kubelet left in containerd go on under picolet, and picolet leaves them as a kubelet
//! takes them. No kubelet runs here: what it leaves is written out below, in its own words.

use std::{collections::BTreeMap, fs, rc::Rc, time::Duration};

use nix::sys::signal::Signal;
use picolet::{
    api::{
        PodUid,
        cri::{ContainerConfig, ContainerState, Mount, NamespaceMode, SandboxConfig},
    },
    cgroup::Cgroups,
    logic::oci,
    runtime::{
        RuntimeService as _,
        cri::{Cri, Settings},
    },
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
    host::{Host, full, manifest, status_of},
};

/// A kubelet's hash of the container `main` with [`IMAGE`]; computed apart from this project's code.
const HASH: &str = "695cd452";
/// Of the same container before its image was edited.
const OLD_HASH: &str = "5a64f38";
const PODS: usize = 10;

fn words(all: &[(&str, &str)]) -> BTreeMap<String, String> {
    let owned = all.iter().map(|&(k, v)| (k.to_owned(), v.to_owned()));
    owned.collect()
}

/// A client of containerd beside the agent's own.
fn client(containerd: &Containerd, kubepods: &str, executor: &Rc<LocalExecutor<'static>>) -> Cri {
    let settings = Settings {
        endpoint: containerd.socket(),
        image_endpoint: containerd.socket(),
        request_timeout: Duration::from_secs(60),
        kubepods: kubepods.into(),
        masked_paths: oci::MASKED_PATHS.map(str::to_owned).to_vec(),
        readonly_paths: oci::READONLY_PATHS.map(str::to_owned).to_vec(),
        ..Settings::default()
    };
    let cgroups = Cgroups::detect().expect("cgroups");
    let disk = Lane::start("disk").expect("lane");
    let opened = Cri::open(settings, executor, disk, cgroups);
    smol::block_on(executor.run(opened)).expect("a client")
}

/// Makes what a kubelet leaves of a running pod. Returns the container's id.
async fn left_by_a_kubelet(
    cri: &Cri,
    host: &Host,
    kubepods: &str,
    name: &str,
    hash: &str,
) -> String {
    let (uid, own) = (format!("uid-{name}"), full(name));
    let logs = host.path("logs").join(format!("default_{own}_{uid}"));
    let dir = host.path("root").join("pods").join(&uid);
    // A volume with data, and the file for its last words.
    let data = dir.join("volumes/kubernetes.io~empty-dir/data");
    let ready = dir.join("plugins/kubernetes.io~empty-dir/data");
    let last_words = dir.join("containers/main/0badcafe");
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
    let mount = |host_path: String, container_path: &str| Mount {
        host_path,
        container_path: container_path.into(),
        ..Mount::default()
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

fn write(host: &Host, name: &str) {
    host.write(&format!("{name}.yaml"), &pod(name).to_string());
}

#[test]
fn pods_of_a_kubelet_go_on_and_could_go_back() {
    // CRI-93 CRI-94
    let Some((containerd, mut host)) = start_containerd("pods_of_a_kubelet_go_on") else {
        return;
    };
    let flag = host.flags.iter().position(|flag| flag == "--cgroup-root");
    let root = host.flags[flag.expect("a flag") + 1].clone();
    let kubepods = format!("{root}/kubepods");
    let executor = Rc::new(LocalExecutor::new());
    let cri = client(&containerd, &kubepods, &executor);
    let names: Vec<String> = (0..PODS).map(|n| format!("left{n}")).collect();
    let (made, edited, moved) = smol::block_on(executor.run(async {
        cri.list_pods().await.expect("a list");
        let mut made = Vec::new();
        for name in &names {
            made.push(left_by_a_kubelet(&cri, &host, &kubepods, name, HASH).await);
        }
        let edited = left_by_a_kubelet(&cri, &host, &kubepods, "edited", OLD_HASH).await;
        let moved = left_by_a_kubelet(&cri, &host, &kubepods, "moved", HASH).await;
        (made, edited, moved)
    }));

    for name in names.iter().map(String::as_str).chain(["edited"]) {
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
    // Edited while nobody looked: that one alone is made anew.
    let pod = host.wait_pod("edited", "made anew", |pod| {
        status_of(pod, "main")["restartCount"] == 4
    });
    assert_ne!(identity(&pod)[0].0, edited);

    // A static pod without a uid in its manifest gets another one here: what the kubelet made of it ends first.
    assert_eq!(identity(&host.wait_ready("moved"))[0].1, 0);
    let running = containerd.ctr().args(["tasks", "ls", "-q"]).output();
    let running = String::from_utf8_lossy(&running.expect("ctr").stdout).into_owned();
    let old = moved.trim_start_matches("containerd://");
    assert!(!running.contains(old), "{old} still runs");

    // What is made here has a kubelet's labels, and its hash and count.
    host.remove("left0.yaml");
    host.wait_gone("left0");
    write(&host, "own");
    let own = identity(&host.wait_ready("own"));
    host.end_agent(Signal::SIGKILL);
    let uid = PodUid::new("uid-own");
    let pod = smol::block_on(executor.run(cri.pod_status(&uid))).expect("a status");
    let main = &pod.containers[0];
    assert_eq!(
        (main.state, main.restart_count),
        (ContainerState::Running, 0)
    );
    assert_eq!(format!("{:x}", main.hash), HASH);
    let sandbox = &pod.sandboxes[0];
    assert_eq!((&*sandbox.name, sandbox.attempt), (&*full("own"), 0));
    let labels = |id: &str| -> BTreeMap<String, String> {
        let told = containerd.ctr().args(["containers", "info", id]).output();
        let told: Value = serde_json::from_slice(&told.expect("ctr").stdout).expect("JSON");
        serde_json::from_value(told["Labels"].clone()).expect("labels")
    };
    let of_pod = [
        ("io.kubernetes.pod.name", full("own")),
        ("io.kubernetes.pod.namespace", "default".into()),
        ("io.kubernetes.pod.uid", "uid-own".into()),
    ];
    for (key, value) in &of_pod {
        assert_eq!(labels(&sandbox.id).get(*key), Some(value), "{key}");
        assert_eq!(labels(&main.id).get(*key), Some(value), "{key}");
    }
    let name = labels(&main.id).remove("io.kubernetes.container.name");
    assert_eq!(name.as_deref(), Some("main"));

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
