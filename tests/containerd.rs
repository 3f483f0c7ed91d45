//! A client of CRI on the real kernel: Debian's containerd, with runc below it. Needs root, containerd, runc, the CNI plugins and a
//! static busybox; says aloud when it is skipped for want of them.

#[macro_use]
#[path = "common/skipped.rs"]
mod skipped;

#[path = "common/containerd.rs"]
#[expect(dead_code, reason = "tests of the whole agent use more of it")]
mod daemon;

use std::{future::Future, path::PathBuf, pin::Pin, rc::Rc, sync::Mutex, time::Duration};

use picolet::{
    api::{
        ContainerId, PodUid,
        cri::{
            ANNOTATION_TERMINATION_PATH, CgroupDriver, ContainerConfig, ContainerMount,
            ContainerState, LABEL_CONTAINER_NAME, LABEL_POD_NAME, LABEL_POD_NAMESPACE,
            LABEL_POD_UID, LinuxResources, NamespaceMode, NamespaceOptions, SandboxConfig,
            SandboxState,
        },
        stats::StatsDetail,
    },
    cgroup::Cgroups,
    logic::{cgroup::CgroupTree, oci},
    parts,
    runtime::{
        RuntimeError, contract,
        endpoint::{EndpointRuntime, EndpointSettings},
    },
    sys::lane::Lane,
};
use smol::LocalExecutor;

use daemon::{Containerd, HANDLER, IMAGE, PATIENCE, missing};

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
    let groups = lab.cgroup_root();
    drop(lab);
    if let Ok(cgroups) = Cgroups::detect() {
        smol::block_on(cgroups.destroy_group(&groups)).expect("cgroups");
    }
}

fn pod_groups(driver: CgroupDriver, root: &str, uid: &PodUid) -> [String; 3] {
    let root = root.to_owned();
    CgroupTree { root, driver }.pod_paths_of_tiers(uid)
}

impl Lab {
    fn cgroup_root(&self) -> String {
        format!("/{}-pods", self.containerd.bridge())
    }

    fn kubepods(&self) -> String {
        format!("{}/kubepods", self.cgroup_root())
    }

    fn settings(&self) -> EndpointSettings {
        EndpointSettings {
            endpoint: self.containerd.socket(),
            image_endpoint: self.containerd.socket(),
            request_timeout: PATIENCE,
            container_log_links: self.containerd.dir.join("links"),
            root_dir: self.containerd.dir.clone(),
            cgroup_root: self.cgroup_root(),
            cgroup_driver: CgroupDriver::Cgroupfs,
            pod_groups: Some(pod_groups),
            masked_paths: oci::MASKED_PATHS.map(str::to_owned).to_vec(),
            readonly_paths: oci::READONLY_PATHS.map(str::to_owned).to_vec(),
        }
    }

    async fn connect(&self) -> Result<Rc<dyn EndpointRuntime>, RuntimeError> {
        let cgroups = Cgroups::detect().expect("cgroups");
        let disk = Lane::start("disk").expect("lane");
        parts::find_endpoint_client()?(self.settings(), &self.executor, disk, cgroups).await
    }

    async fn open(&self) -> Rc<dyn EndpointRuntime> {
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

    fn container(&self, sandbox: &SandboxConfig, name: &str, script: &str) -> ContainerConfig {
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
    runtime: &dyn EndpointRuntime,
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
        let fixture = contract::ContractFixture {
            sandbox,
            image: IMAGE.into(),
            image_volumes: false,
            runs: words("trap 'exit 143' TERM; sleep 1000 & wait"),
            exits_3: words("exit 3"),
            cannot_start: vec!["/no/such/program".into()],
            echoes: ["/bin/echo", "heard"].map(Into::into).into(),
        };
        contract::run_contract(&*runtime, &fixture, &pause)
            .await
            .expect("contract");
    });
}

#[test]
fn containers_have_what_they_are_given() {
    // CRI-19 CRI-27 CRI-28 CRI-33 CRI-34 CRI-55 CRI-60 CRI-76 CRI-85 CRI-86
    lab("given", async |lab| {
        let runtime = lab.open().await;
        let of = lab.sandbox("given");
        let made = runtime.run_pod_sandbox(&of).await.expect("a sandbox");
        assert_eq!((made.state, made.ips.len()), (SandboxState::Ready, 1));
        let words = lab.containerd.dir.join("words");
        std::fs::write(&words, "").expect("file");
        let script = "grep -q '^CapEff:.*0000000000000000$' /proc/self/status || exit 10; \
             [ \"$(id -u)\" = 33 ] || exit 11; [ \"$WORD\" = 'a b' ] || exit 12; \
             ( : > /etc/x ) 2>/dev/null && exit 13; ( : > /read/x ) 2>/dev/null && exit 14; \
             [ \"$(cat /proc/kcore | wc -c)\" = 0 ] || exit 15; \
             [ \"$(hostname)\" = given ] || exit 16; echo last > /words; exit 7";
        let mut config = lab.container(&of, "main", script);
        std::fs::set_permissions(&words, std::os::unix::fs::PermissionsExt::from_mode(0o666))
            .expect("mode");
        let mount = |host: &std::path::Path, at: &str, read_only| ContainerMount {
            host_path: host.display().to_string(),
            container_path: at.into(),
            read_only,
            ..ContainerMount::default()
        };
        config.mounts = vec![
            mount(&words, "/words", false),
            mount(&lab.containerd.dir.join("cni"), "/read", true),
        ];
        config.env = vec![
            ("WORD".into(), "a b".into()),
            ("PATH".into(), "/bin".into()),
        ];
        let place = (ANNOTATION_TERMINATION_PATH.to_owned(), "/words".to_owned());
        config.annotations = [place].into();
        config.security.run_as_user = Some(33);
        config.security.drop_capabilities = vec!["ALL".into()];
        config.security.no_new_privs = true;
        let id = runtime
            .create_container(&made.id, &config, Some(&of))
            .await
            .expect("created");
        runtime.start_container(&id).await.expect("started");
        let end = ended(&*runtime, &of.uid, &id).await;
        assert_eq!((end.exit_code, &*end.message), (7, "last\n"), "{end:?}");
        assert!(end.created_at <= end.started_at.expect("it started"));

        let idle = lab.container(&of, "idle", "sleep 1000");
        let id = runtime
            .create_container(&made.id, &idle, Some(&of))
            .await
            .expect("created");
        runtime.start_container(&id).await.expect("started");
        let usage = runtime
            .list_pod_usage(StatsDetail::Full)
            .await
            .expect("usage");
        let pod = usage.iter().find(|pod| pod.uid == of.uid).expect("the pod");
        assert_eq!(pod.cgroup, of.cgroup_parent);
        assert_eq!(pod.containers.len(), 1, "what has ended has no figures");
        let interfaces = pod.network.as_ref().expect("a network");
        assert!(
            interfaces.iter().any(|i| i.name == "eth0"),
            "{interfaces:?}"
        );
        let layer = runtime.writable_layer_usage(&id).await;
        assert!(layer.is_ok(), "{layer:?}");
        let fs = runtime.image_fs_info().await.expect("a file system");
        assert!(fs.capacity_bytes > 0);
        let (kept, places) = (
            lab.containerd.dir.join("root"),
            runtime.runtime_directories(),
        );
        assert!(
            places.images.starts_with(&kept) && places.layers.starts_with(&kept),
            "{places:?}"
        );

        // What is not there is no directory of the runtime's.
        let gone = lab.containerd.dir.join("gone");
        let mut blind = lab.container(&of, "blind", "true");
        blind.mounts = vec![mount(&gone, "/gone", false)];
        let refused = runtime.create_container(&made.id, &blind, Some(&of)).await;
        assert!(
            matches!(refused, Err(RuntimeError::Failed(_))),
            "{refused:?}"
        );
        assert!(!gone.exists());
        let log = lab.logs().join("given/main/0.log");
        assert!(log.exists());
        runtime.remove_pod_sandbox(&made.id).await.expect("removed");
        assert!(!log.exists(), "logs go with their instance");
    });
}

#[test]
fn containerd_that_is_started_anew_has_everything_again() {
    // CRI-41 CRI-91
    lab("anew", async |lab| {
        let runtime = lab.open().await;
        let of = lab.sandbox("anew");
        let made = runtime.run_pod_sandbox(&of).await.expect("a sandbox");
        let config = lab.container(&of, "main", "sleep 1000");
        let id = runtime
            .create_container(&made.id, &config, Some(&of))
            .await
            .expect("created");
        // The attempt is taken, and what was made under it is found.
        let again = runtime.create_container(&made.id, &config, Some(&of)).await;
        assert_eq!(again, Ok(id.clone()));
        let again = runtime.run_pod_sandbox(&of).await;
        assert_eq!(again.expect("the same").id, made.id);
        lab.containerd.kill();
        let refused = runtime.start_container(&id).await;
        assert!(refused.is_err());
        lab.containerd.run();
        while runtime.list_pods().await.is_err() {
            pause().await;
        }
        runtime.list_pods().await.expect("a list");
        let pod = runtime.pod_status(&of.uid).await.expect("a status");
        assert_eq!(pod.ips, made.ips, "the same address");
        assert_eq!(pod.sandboxes.len(), 1);
        runtime
            .start_container(&id)
            .await
            .expect("it can be started");
        lab.containerd.signal(nix::sys::signal::Signal::SIGSTOP);
        let late = runtime.stop_container(&id, Duration::ZERO);
        let soon = async {
            smol::Timer::after(Duration::from_secs(1)).await;
            Ok(())
        };
        // Nobody waits for it any more, and it was not done.
        smol::future::or(late, soon).await.expect("given up");
        lab.containerd.signal(nix::sys::signal::Signal::SIGCONT);
        let stopped = runtime.stop_container(&id, Duration::ZERO).await;
        assert_eq!(stopped, Ok(()));
        assert_eq!(ended(&*runtime, &of.uid, &id).await.exit_code, 137);
        runtime.remove_pod_sandbox(&made.id).await.expect("removed");
        assert!(runtime.list_pods().await.expect("a list").is_empty());
    });
}

#[test]
fn handlers_are_those_of_containerd() {
    // CRI-23 CRI-24
    lab("handlers", async |lab| {
        let runtime = lab.open().await;
        let mut of = lab.sandbox("nobody");
        of.runtime_handler = "nobody".into();
        let refused = runtime.run_pod_sandbox(&of).await;
        let refused = refused.expect_err("nobody runs it").to_string();
        assert!(refused.contains("nobody"), "{refused}");
        assert!(runtime.list_pods().await.expect("a list").is_empty());

        of = lab.sandbox("other");
        of.runtime_handler = HANDLER.into();
        of.overhead.memory_limit_bytes = Some(64 << 20);
        let made = runtime.run_pod_sandbox(&of).await.expect("a sandbox");
        assert_eq!(made.runtime_handler, HANDLER);
        let pod = runtime.pod_status(&of.uid).await.expect("a status");
        assert_eq!(pod.sandboxes[0].runtime_handler, HANDLER);
        let config = lab.container(&of, "main", "exit 3");
        let id = runtime
            .create_container(&made.id, &config, Some(&of))
            .await
            .expect("created");
        runtime.start_container(&id).await.expect("started");
        assert_eq!(ended(&*runtime, &of.uid, &id).await.exit_code, 3);
        runtime.remove_pod_sandbox(&made.id).await.expect("removed");
    });
}

#[test]
fn a_sandbox_that_is_stopped_takes_all_along() {
    // CRI-45 CRI-82 CRI-84
    lab("stopped", async |lab| {
        let runtime = lab.open().await;
        let of = lab.sandbox("stopped");
        let made = runtime.run_pod_sandbox(&of).await.expect("a sandbox");
        let script = "trap '' TERM; while :; do echo line; sleep 1; done";
        let config = lab.container(&of, "main", script);
        let id = runtime
            .create_container(&made.id, &config, Some(&of))
            .await
            .expect("created");
        runtime.start_container(&id).await.expect("started");

        // New limits are the kernel's at once.
        let limits = LinuxResources {
            memory_limit_bytes: Some(64 << 20),
            cpu_shares: Some(512),
            ..LinuxResources::default()
        };
        let changed = runtime.update_container_resources(&id, &limits).await;
        assert_eq!(changed, Ok(()));
        let cgroups = Cgroups::detect().expect("cgroups");
        let dir = cgroups.memory_dir(&format!("{}/{id}", of.cgroup_parent));
        let dir = dir.expect("a memory controller");
        let files = ["memory.limit_in_bytes", "memory.max"];
        let mut read = files
            .iter()
            .filter_map(|file| std::fs::read_to_string(dir.join(file)).ok());
        assert_eq!(read.next().expect("a limit").trim(), "67108864");

        // A log that was renamed is written anew where it was.
        let log = lab.logs().join("stopped/main/0.log");
        let rotated = log.with_extension("log.old");
        let lines = |path: &std::path::Path| {
            let text = std::fs::read_to_string(path).unwrap_or_default();
            text.lines().count()
        };
        daemon::until("it writes", || lines(&log) > 0);
        std::fs::rename(&log, &rotated).expect("renamed");
        assert_eq!(runtime.reopen_container_log(&id).await, Ok(()));
        daemon::until("it writes there", || lines(&log) > 0);
        assert!(lines(&rotated) > 0);

        // Without a network nothing is stopped, and nothing is removed.
        let conf = lab.containerd.dir.join("cni/1.conflist");
        let kept = lab.containerd.dir.join("kept");
        std::fs::rename(&conf, &kept).expect("renamed");
        lab.containerd.kill();
        lab.containerd.run();
        while runtime.list_pods().await.is_err() {
            pause().await;
        }
        let refused = runtime.remove_pod_sandbox(&made.id).await;
        let refused = refused.expect_err("no network").to_string();
        assert!(refused.contains("cni"), "{refused}");
        let pod = runtime.pod_status(&of.uid).await.expect("a status");
        assert_eq!((pod.sandboxes.len(), pod.containers.len()), (1, 1));
        std::fs::rename(&kept, &conf).expect("renamed");
        lab.containerd.kill();
        lab.containerd.run();
        while runtime.list_pods().await.is_err() {
            pause().await;
        }

        // The container ignores its signal: nobody asked it.
        runtime.stop_pod_sandbox(&made.id).await.expect("stopped");
        let end = ended(&*runtime, &of.uid, &id).await;
        assert_eq!(end.exit_code, 137);
        let told = runtime
            .reopen_container_log(&id)
            .await
            .expect_err("it has ended");
        assert!(told.to_string().contains("not running"), "{told}");
        runtime.remove_pod_sandbox(&made.id).await.expect("removed");
        assert!(runtime.list_pods().await.expect("a list").is_empty());
    });
}
