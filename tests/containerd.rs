//! A client of CRI on the real kernel: Debian's containerd, with runc below it. Needs root, containerd, runc, the CNI plugins and a
//! static busybox; says aloud when it is skipped for want of them.

#[macro_use]
#[path = "common/skipped.rs"]
mod skipped;

#[path = "common/containerd.rs"]
mod daemon;

use std::{future::Future, path::PathBuf, pin::Pin, rc::Rc, sync::Mutex, time::Duration};

use picolet::{
    api::{
        ContainerId, PodUid,
        cri::{
            ANNOTATION_TERMINATION_PATH, ContainerConfig, ContainerState, LABEL_CONTAINER_NAME,
            LABEL_POD_NAME, LABEL_POD_NAMESPACE, LABEL_POD_UID, Mount, NamespaceMode,
            NamespaceOptions, SandboxConfig, SandboxState, SandboxStatus,
        },
        stats::Detail,
    },
    cgroup::Cgroups,
    logic::oci,
    runtime::{
        ImageService as _, RuntimeError, RuntimeService, contract,
        cri::{Cri, Settings},
    },
    sys::lane::Lane,
};
use smol::LocalExecutor;

use daemon::{Containerd, IMAGE, PATIENCE, missing};

/// Plugins share the machine's iptables.
static ALONE: Mutex<()> = Mutex::new(());

struct Lab {
    containerd: Containerd,
    executor: Rc<LocalExecutor<'static>>,
}

fn lab(name: &str, test: impl AsyncFnOnce(&mut Lab)) {
    if let Some(why) = missing() {
        skipped!("{name}: {why}");
        return;
    }
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let mut lab = Lab {
        containerd: Containerd::start(),
        executor: Rc::new(LocalExecutor::new()),
    };
    let executor = Rc::clone(&lab.executor);
    smol::block_on(executor.run(async { test(&mut lab).await }));
    let groups = lab.kubepods();
    drop(lab);
    if let Ok(cgroups) = Cgroups::detect() {
        smol::block_on(cgroups.destroy(&groups)).expect("cgroups");
    }
}

impl Lab {
    fn kubepods(&self) -> String {
        format!("/{}-pods", self.containerd.bridge())
    }

    fn settings(&self) -> Settings {
        Settings {
            endpoint: self.containerd.socket(),
            image_endpoint: self.containerd.socket(),
            request_timeout: PATIENCE,
            container_log_links: self.containerd.dir.join("links"),
            kubepods: self.kubepods(),
            masked_paths: oci::MASKED_PATHS.map(str::to_owned).to_vec(),
            readonly_paths: oci::READONLY_PATHS.map(str::to_owned).to_vec(),
        }
    }

    async fn connect(&self) -> Result<Cri, RuntimeError> {
        let cgroups = Cgroups::detect().expect("cgroups");
        let disk = Lane::start("disk").expect("lane");
        Cri::open(self.settings(), &self.executor, disk, cgroups).await
    }

    async fn open(&self) -> Cri {
        let runtime = self.connect().await.expect("a runtime");
        runtime.list_pods().await.expect("a list");
        runtime
    }

    fn logs(&self) -> PathBuf {
        self.containerd.dir.join("logs")
    }

    fn sandbox(&self, name: &str) -> SandboxConfig {
        let uid = format!("uid-{name}");
        SandboxConfig {
            name: name.into(),
            namespace: "default".into(),
            uid: PodUid::new(uid.clone()),
            hostname: name.into(),
            log_directory: self.logs().join(name).display().to_string(),
            cgroup_parent: format!("{}/besteffort/pod{uid}", self.kubepods()),
            labels: labels(name, &uid),
            namespaces: NamespaceOptions {
                pid: NamespaceMode::Container,
                ..NamespaceOptions::default()
            },
            ..SandboxConfig::default()
        }
    }

    async fn container(
        &self,
        sandbox: &SandboxConfig,
        name: &str,
        script: &str,
    ) -> ContainerConfig {
        let mut labels = labels(&sandbox.name, &sandbox.uid);
        labels.insert(LABEL_CONTAINER_NAME.into(), name.into());
        let dir = self.logs().join(&sandbox.name).join(name);
        std::fs::create_dir_all(dir).expect("log directory");
        let mut config = ContainerConfig {
            name: name.into(),
            image: IMAGE.into(),
            user_image: IMAGE.into(),
            command: vec!["/bin/sh".into(), "-c".into(), script.into()],
            labels,
            log_path: format!("{name}/0.log"),
            ..ContainerConfig::default()
        };
        config.security.namespaces = sandbox.namespaces;
        config.security.run_as_user = Some(0);
        config
    }
}

fn labels(name: &str, uid: &str) -> std::collections::BTreeMap<String, String> {
    [
        (LABEL_POD_NAME, name),
        (LABEL_POD_NAMESPACE, "default"),
        (LABEL_POD_UID, uid),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into()
}

fn pause() -> Pin<Box<dyn Future<Output = ()>>> {
    Box::pin(async {
        smol::Timer::after(Duration::from_millis(20)).await;
    })
}

/// Waits until the newest instance has ended.
async fn ended(
    runtime: &Cri,
    uid: &PodUid,
    id: &ContainerId,
) -> picolet::api::cri::ContainerStatus {
    for _ in 0..PATIENCE.as_millis() / 20 {
        let pod = runtime.pod_status(uid).await.expect("status");
        let found = pod.containers.into_iter().find(|c| c.id == *id);
        let found = found.expect("listed");
        if found.state == ContainerState::Exited {
            return found;
        }
        pause().await;
    }
    panic!("{id} does not end");
}

#[test]
fn keeps_the_contract() {
    // CRI-10 CRI-43 CRI-46 CRI-52 CRI-58 CRI-75
    lab("contract", async |lab| {
        let runtime = lab.open().await;
        let mut sandbox = lab.sandbox("contract");
        sandbox.namespaces.pid = NamespaceMode::Pod;
        for name in [
            "main", "reader", "blind", "broken", "last", "again", "unknown",
        ] {
            let dir = lab.logs().join("contract").join(name);
            std::fs::create_dir_all(dir).expect("log directory");
        }
        let words = |script: &str| vec!["/bin/sh".to_owned(), "-c".to_owned(), script.to_owned()];
        let fixture = contract::Fixture {
            sandbox,
            image: IMAGE.into(),
            image_volumes: false,
            runs: words("trap 'exit 143' TERM; sleep 1000 & wait"),
            exits_3: words("exit 3"),
            cannot_start: vec!["/no/such/program".into()],
            echoes: ["/bin/echo", "heard"].map(Into::into).into(),
        };
        contract::contract(&runtime, &fixture, &pause)
            .await
            .expect("contract");
    });
}
