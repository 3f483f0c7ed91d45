//! The client against a double: a server that answers as it is told, with the traps of real runtimes.

mod answers;
mod calls;
mod crio;

use std::{
    cell::RefCell,
    collections::BTreeMap,
    fs,
    os::unix::net::{UnixListener, UnixStream},
    path::PathBuf,
};

use smol::{Async, Task, Timer};

use super::*;
use crate::{
    api::cri::{
        ANNOTATION_HASH, ANNOTATION_RESTART_COUNT, ContainerMount, ContainerState,
        LABEL_CONTAINER_NAME, LABEL_POD_UID, SandboxState, UserNamespaceSupport,
    },
    grpc::{
        ConnectionClock, SleepFuture,
        hpack::HeaderField,
        proto::{Limits, decode, encode},
        server::{self, ServerCall},
    },
    sys::clock,
};

/// Time limit for most calls here: short, because some tests wait for it; long enough for an emulator beside others.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Reply of the double to a call.
#[derive(Clone)]
enum Reply {
    Say(Vec<u8>),
    Fail(u32, &'static str),
    /// No reply, for as long as the caller waits.
    Hang,
    /// Many events of a kilobyte each, then none.
    Events(usize),
    /// No answer, and a good end.
    End,
}

type Script = Rc<dyn Fn(&[u8]) -> Reply>;

struct Real;

impl ConnectionClock for Real {
    fn now(&self) -> Duration {
        clock::mono_now() - crate::api::MonoTime(0)
    }
    fn sleep(&self, time: Duration) -> SleepFuture {
        Box::pin(async move {
            Timer::after(time).await;
        })
    }
}

struct Double {
    path: PathBuf,
    executor: Rc<LocalExecutor<'static>>,
    scripts: Rc<RefCell<BTreeMap<&'static str, Script>>>,
    calls: Rc<RefCell<Vec<String>>>,
    /// The header fields of each call.
    heads: Rc<RefCell<Vec<Vec<HeaderField>>>>,
    serving: RefCell<Option<Task<()>>>,
}

fn say(message: &mut dyn Message) -> Reply {
    Reply::Say(encode(message))
}

fn read<M: Message + Default>(bytes: &[u8]) -> M {
    let mut message = M::default();
    decode(&mut message, bytes, Limits::default()).expect("a message");
    message
}

fn version(name: &str) -> Reply {
    say(&mut wire::VersionResponse {
        version: "0.1.0".into(),
        runtime_name: name.into(),
        runtime_version: "1".into(),
        runtime_api_version: "v1".into(),
    })
}

fn status(ready: bool) -> Reply {
    let condition = |kind: &str, status| wire::ConditionMessage {
        kind: kind.into(),
        status,
        ..wire::ConditionMessage::default()
    };
    say(&mut wire::StatusResponse {
        status: Some(wire::ConditionsMessage {
            conditions: vec![
                condition("RuntimeReady", ready),
                condition("NetworkReady", true),
            ],
        }),
        handlers: vec![wire::HandlerMessage {
            name: "kata".into(),
            features: Some(wire::HandlerFeatures {
                user_namespaces: true,
                recursive_read_only_mounts: true,
            }),
        }],
        features: None,
    })
}

impl Double {
    fn new(executor: &Rc<LocalExecutor<'static>>) -> Self {
        let double = Self {
            path: crate::testing::unused_path("cri"),
            executor: Rc::clone(executor),
            scripts: Rc::default(),
            calls: Rc::default(),
            heads: Rc::default(),
            serving: RefCell::default(),
        };
        double.on("Version", version("double"));
        double.on("Status", status(true));
        double.on("ImageFsInfo", image_fs());
        for list in ["ListPodSandbox", "ListContainers", "ListImages"] {
            double.on(list, say(&mut wire::CriEmpty::default()));
        }
        double.serve();
        double
    }

    /// From now on the double answers a call with this.
    fn on(&self, method: &'static str, reply: Reply) {
        self.script(method, move |_| reply.clone());
    }

    fn script(&self, method: &'static str, script: impl Fn(&[u8]) -> Reply + 'static) {
        self.scripts.borrow_mut().insert(method, Rc::new(script));
    }

    fn calls(&self, method: &str) -> usize {
        let calls = self.calls.borrow();
        calls.iter().filter(|call| *call == method).count()
    }

    /// Ends the server and every connection; the socket stays, as a dead daemon's does.
    fn kill(&self) {
        self.serving.replace(None);
    }

    fn serve(&self) {
        let _ = fs::remove_file(&self.path);
        let listener = Async::<UnixListener>::bind(&self.path).expect("socket");
        let (scripts, calls) = (Rc::clone(&self.scripts), Rc::clone(&self.calls));
        let heads = Rc::clone(&self.heads);
        let handler: server::CallHandler = Rc::new(move |exchange| {
            heads.borrow_mut().push(exchange.metadata().to_vec());
            Box::pin(answer(exchange, Rc::clone(&scripts), Rc::clone(&calls)))
        });
        let executor = Rc::new(LocalExecutor::new());
        let connections = Rc::clone(&executor);
        let accept = async move {
            loop {
                let (pipe, _) = listener.accept().await.expect("a connection");
                let pipe: Async<UnixStream> = pipe;
                let served = server::serve_calls(pipe, Rc::clone(&handler), Rc::new(Real));
                connections
                    .spawn(async {
                        served.await;
                    })
                    .detach();
            }
        };
        let run = async move { executor.run(accept).await };
        self.serving.replace(Some(self.executor.spawn(run)));
    }

    fn settings(&self) -> EndpointSettings {
        EndpointSettings {
            endpoint: self.path.clone(),
            image_endpoint: self.path.clone(),
            request_timeout: TIMEOUT,
            ..EndpointSettings::default()
        }
    }

    async fn open(&self) -> Result<CriClient, RuntimeError> {
        self.open_as(CgroupDriver::Cgroupfs).await
    }

    async fn open_as(&self, cgroup_driver: CgroupDriver) -> Result<CriClient, RuntimeError> {
        let line = "1 1 0:1 / /nowhere rw - cgroup2 none rw";
        let hierarchy = crate::cgroup::Hierarchy::parse(line).expect("a tree");
        let cgroups = Cgroups::with_hierarchy(hierarchy);
        let settings = EndpointSettings {
            cgroup_driver,
            ..self.settings()
        };
        CriClient::connect(settings, &self.executor, Lane::without_thread(), cgroups).await
    }

    /// A client that has listed all pods.
    async fn client(&self) -> CriClient {
        let cri = self.open().await.expect("a runtime");
        cri.list_pods().await.expect("a list");
        cri
    }
}

impl Drop for Double {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

async fn answer(
    mut exchange: ServerCall,
    scripts: Rc<RefCell<BTreeMap<&'static str, Script>>>,
    calls: Rc<RefCell<Vec<String>>>,
) -> Result<(), GrpcStatus> {
    let method = exchange
        .method_path()
        .rsplit('/')
        .next()
        .unwrap_or_default()
        .to_owned();
    let request = exchange.next_message().await?.unwrap_or_default();
    calls.borrow_mut().push(method.clone());
    let script = scripts.borrow().get(&*method).cloned();
    let unknown = || GrpcStatus::new(GrpcCode::UNIMPLEMENTED, format!("unknown method {method}"));
    match script.ok_or_else(unknown)?(&request) {
        Reply::Say(bytes) => exchange.send_message(&bytes).await,
        Reply::Fail(code, text) => Err(GrpcStatus::new(GrpcCode(code), text)),
        Reply::Hang => core::future::pending().await,
        Reply::End => Ok(()),
        Reply::Events(n) => {
            for _ in 0..n {
                exchange.send_message(&[0; 1000]).await?;
                calls.borrow_mut().push("event".into());
            }
            core::future::pending().await
        }
    }
}

fn test<T>(test: impl AsyncFnOnce(&Double) -> T) -> T {
    let executor = Rc::new(LocalExecutor::new());
    let double = Double::new(&executor);
    smol::block_on(executor.run(async { test(&double).await }))
}

async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..2000 {
        if is_so() {
            return;
        }
        Timer::after(Duration::from_millis(5)).await;
    }
    panic!("not so in time: {what}");
}

fn failed(text: &str) -> RuntimeError {
    RuntimeError::Failed(text.into())
}

fn sandbox_config(attempt: u32) -> SandboxConfig {
    SandboxConfig {
        name: "p".into(),
        namespace: "ns".into(),
        uid: "u".into(),
        attempt,
        log_directory: std::env::temp_dir().display().to_string(),
        ..SandboxConfig::default()
    }
}

fn metadata(attempt: u32) -> Option<wire::PodSandboxMetadata> {
    Some(wire::PodSandboxMetadata {
        name: "p".into(),
        uid: "u".into(),
        namespace: "ns".into(),
        attempt,
    })
}

fn listed_sandbox(id: &str, attempt: u32) -> wire::PodSandbox {
    wire::PodSandbox {
        id: id.into(),
        metadata: metadata(attempt),
        state: wire::SANDBOX_READY,
        created_at: 7,
    }
}

fn sandbox_status(id: &str, state: i32) -> Reply {
    say(&mut wire::PodSandboxStatusResponse {
        status: Some(wire::PodSandboxStatus {
            id: id.into(),
            metadata: metadata(0),
            state,
            created_at: 7,
            network: Some(wire::PodSandboxNetworkStatus {
                ip: "10.0.0.9".into(),
                additional_ips: vec![wire::TextMessage {
                    word: "fd00::9".into(),
                }],
            }),
            ..wire::PodSandboxStatus::default()
        }),
    })
}

fn container_labels() -> wire::TextMap {
    [(LABEL_POD_UID, "u"), (LABEL_CONTAINER_NAME, "c")]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
}

fn listed_container(id: &str, state: i32) -> wire::ContainerMessage {
    wire::ContainerMessage {
        id: id.into(),
        sandbox: "s".into(),
        metadata: Some(wire::ContainerMetadata {
            name: "c".into(),
            attempt: 3,
        }),
        image: Some(wire::ImageSpecMessage {
            image: "sha256:i".into(),
            ..wire::ImageSpecMessage::default()
        }),
        state,
        created_at: 8,
        labels: container_labels(),
        ..wire::ContainerMessage::default()
    }
}

fn container_status(id: &str, state: i32) -> wire::ContainerStatusMessage {
    wire::ContainerStatusMessage {
        id: id.into(),
        metadata: Some(wire::ContainerMetadata {
            name: "c".into(),
            attempt: 3,
        }),
        state,
        created_at: 8,
        image: Some(wire::ImageSpecMessage {
            image: "app:1".into(),
            ..wire::ImageSpecMessage::default()
        }),
        image_ref: "app@sha256:d".into(),
        labels: container_labels(),
        ..wire::ContainerStatusMessage::default()
    }
}

fn of_container(status: wire::ContainerStatusMessage) -> Reply {
    say(&mut wire::ContainerStatusResponse {
        status: Some(status),
    })
}

fn word(word: &str) -> Reply {
    say(&mut wire::TextMessage { word: word.into() })
}

fn image_fs() -> Reply {
    say(&mut wire::ImageFsInfoResponse {
        image_filesystems: vec![wire::FilesystemUsage {
            fs_id: Some(wire::TextMessage { word: "/".into() }),
            ..wire::FilesystemUsage::default()
        }],
        ..wire::ImageFsInfoResponse::default()
    })
}

#[test]
fn whoever_does_not_say_who_it_is_is_no_runtime() {
    // CRI-03 CRI-10 CRI-12
    test(async |double| {
        assert!(double.open().await.is_ok(), "an old one: no RuntimeConfig");
        let driver = |driver| {
            say(&mut wire::RuntimeConfigResponse {
                linux: Some(wire::LinuxRuntimeConfiguration {
                    cgroup_driver: driver,
                }),
            })
        };
        double.on("RuntimeConfig", driver(CGROUPFS));
        assert!(double.open().await.is_ok());
        double.on("RuntimeConfig", say(&mut wire::CriEmpty::default()));
        assert!(double.open().await.is_ok(), "it says nothing of Linux");
        double.on("RuntimeConfig", driver(7));
        let refused = double.open().await.err().expect("another driver");
        assert!(refused.to_string().contains("number 7"), "{refused}");
        double.on("RuntimeConfig", driver(CGROUPFS));
        double.on("ImageFsInfo", say(&mut wire::CriEmpty::default()));
        assert!(double.open().await.is_err(), "no file system of images");
        double.on("ImageFsInfo", image_fs());
        for (answer, is_one) in [
            (["0.1.0", "r", "1", "v1"], true),
            // What it calls its own API is not read.
            (["0.1.0", "r", "1", "v9"], true),
            (["0.2.0", "r", "1", "v1"], false),
            (["", "r", "1", "v1"], false),
            (["0.1.0", "", "1", "v1"], false),
            (["0.1.0", "r", "", "v1"], false),
            (["0.1.0", "r", "1", ""], false),
        ] {
            let [version, runtime_name, runtime_version, runtime_api_version] =
                answer.map(Into::into);
            double.on(
                "Version",
                say(&mut wire::VersionResponse {
                    version,
                    runtime_name,
                    runtime_version,
                    runtime_api_version,
                }),
            );
            assert_eq!(double.open().await.is_ok(), is_one, "{answer:?}");
        }
    });
}

#[test]
fn the_runtime_says_who_makes_cgroups() {
    // CONF-18 CRI-12
    test(async |double| {
        let says = |driver| {
            say(&mut wire::RuntimeConfigResponse {
                linux: Some(wire::LinuxRuntimeConfiguration {
                    cgroup_driver: driver,
                }),
            })
        };
        let nothing = || say(&mut wire::CriEmpty::default());
        use CgroupDriver::{Cgroupfs, Systemd};
        for configured in [Cgroupfs, Systemd] {
            for (answer, told) in [
                (says(SYSTEMD), Some(Systemd)),
                (says(CGROUPFS), Some(Cgroupfs)),
                (nothing(), None),
                (Reply::Fail(GrpcCode::UNIMPLEMENTED.0, "old"), None),
            ] {
                double.on("RuntimeConfig", answer);
                let cri = double.open_as(configured).await.expect("a runtime");
                assert_eq!(cri.reported_cgroup_driver(), told);
                assert_eq!(cri.cgroup_driver(), told.unwrap_or(configured));
            }
        }
        // A runtime that fails is asked three times, and then not believed.
        let before = double.calls("RuntimeConfig");
        double.on("RuntimeConfig", Reply::Fail(GrpcCode::INTERNAL.0, "no"));
        assert!(double.open().await.is_err());
        assert_eq!(double.calls("RuntimeConfig") - before, 3);
    });
}

#[test]
fn an_old_containerd_shows_who_makes_cgroups() {
    // CRI-12
    let config = |options: &str| {
        let text = r#"{"containerd":{"defaultRuntimeName":"r","runtimes":{"q":{"options":{"SystemdCgroup":true}},"r":{OPTIONS}}}}"#;
        text.replace("OPTIONS", options)
    };
    for (config, want) in [
        (
            config(r#""options":{"SystemdCgroup":true}"#),
            Some(CgroupDriver::Systemd),
        ),
        (
            config(r#""options":{"SystemdCgroup":false}"#),
            Some(CgroupDriver::Cgroupfs),
        ),
        (config(r#""options":null"#), Some(CgroupDriver::Cgroupfs)),
        ("{}".into(), None),
        ("no JSON".into(), None),
    ] {
        test(async |double| {
            let cri = double.open().await.expect("a runtime");
            let shown = cri.configured_cgroup_driver().await.expect("a status");
            assert_eq!(shown, None, "it shows nothing");
            let kept = config.clone();
            double.script("Status", move |request| {
                assert!(read::<wire::StatusRequest>(request).verbose);
                say(&mut wire::StatusInfo {
                    info: [("config".to_owned(), kept.clone())].into(),
                })
            });
            let shown = cri.configured_cgroup_driver().await.expect("a status");
            assert_eq!(shown, want, "{config}");
        });
    }
}

#[test]
fn conditions_and_abilities() {
    // CRI-13 CRI-14
    test(async |double| {
        let cri = double.client().await;
        let read = cri.runtime_status().await.expect("a status");
        assert!(read.runtime_ready.ok && read.network_ready.ok);
        let can = cri.capabilities();
        assert!(can.supports_recursive_read_only("kata") && !can.supports_recursive_read_only(""));
        let users = |handler| can.judge_user_namespaces(handler) == UserNamespaceSupport::Works;
        assert!(users("kata") && !users(""));
        double.on("Status", status(false));
        let read = cri.runtime_status().await.expect("a status");
        assert!(!read.runtime_ready.ok);
        assert_eq!(
            cri.capabilities(),
            can,
            "what it says while not ready does not count"
        );
        double.on("Status", say(&mut wire::CriEmpty::default()));
        assert!(
            cri.runtime_status().await.is_err(),
            "too little is a failed poll"
        );
    });
}

#[test]
fn a_sandbox_names_its_handler_and_what_its_pod_uses() {
    // CRI-21 CRI-23 CRI-24
    test(async |double| {
        let cri = double.client().await;
        double.script("RunPodSandbox", |request| {
            let request: wire::RunPodSandboxRequest = read(request);
            assert_eq!(request.runtime_handler, "kata");
            let linux = request.config.and_then(|config| config.linux);
            let linux = linux.expect("linux");
            let user = linux.security.expect("a message");
            let run_as = |value: &Option<wire::Int64Value>| value.as_ref().map(|v| v.value);
            assert_eq!(run_as(&user.run_as_user), Some(0), "0 is said");
            assert_eq!(run_as(&user.run_as_group), None);
            assert_eq!(user.supplemental_groups, [1, 2]);
            assert_eq!(user.supplemental_groups_policy, 1);
            assert_eq!(user.selinux.map(|label| label.level), Some("s0:c1".into()));
            let own = linux.resources.expect("a message");
            assert_eq!((own.cpu_shares, own.memory_limit_in_bytes), (1024, 1 << 20));
            let beside = linux.overhead.expect("a message, also where it is empty");
            assert_eq!((beside.cpu_quota, beside.cpu_period), (25_000, 100_000));
            word("s")
        });
        double.script("PodSandboxStatus", |_| {
            say(&mut wire::PodSandboxStatusResponse {
                status: Some(wire::PodSandboxStatus {
                    id: "s".into(),
                    metadata: metadata(0),
                    created_at: 7,
                    runtime_handler: "kata".into(),
                    ..wire::PodSandboxStatus::default()
                }),
            })
        });
        let mut of = sandbox_config(0);
        of.runtime_handler = "kata".into();
        of.user.run_as_user = Some(0);
        of.user.supplemental_groups = vec![1, 2];
        of.user.strict_supplemental_groups = true;
        of.user.selinux_label = "u:r:t:s0:c1".into();
        of.resources.cpu_shares = Some(1024);
        of.resources.memory_limit_bytes = Some(1 << 20);
        of.overhead.cpu_quota_us = Some(25_000);
        of.overhead.cpu_period_us = Some(100_000);
        let made = cri.run_pod_sandbox(&of).await.expect("made");
        assert_eq!(made.runtime_handler, "kata");
    });
}

#[test]
fn a_runtime_that_dies_and_comes_back_is_another_connection() {
    // CRI-04 CRI-11 CRI-90 CRI-91
    test(async |double| {
        let cri = double.client().await;
        double.on("RunPodSandbox", word("s"));
        double.on("PodSandboxStatus", sandbox_status("s", wire::SANDBOX_READY));
        assert!(cri.run_pod_sandbox(&sandbox_config(0)).await.is_ok());
        double.kill();
        assert!(cri.list_pods().await.is_err(), "the connection has ended");
        let refused = cri.list_pods().await.expect_err("nobody listens");
        assert!(refused.to_string().contains("dial unix"), "{refused}");
        assert_eq!(cri.version().name, "double", "as last known");
        double.on("Version", version("other"));
        double.serve();
        let asked = double.calls("Version");
        // The pause after a failure is short; until it is over calls fail at once.
        let refused = loop {
            let made = cri.run_pod_sandbox(&sandbox_config(0)).await;
            let refused = made.expect_err("not listed yet").to_string();
            if !refused.contains("dial unix") {
                break refused;
            }
            pause().await;
        };
        assert!(refused.contains("listed first"), "{refused}");
        while cri.list_pods().await.is_err() {
            pause().await;
        }
        while cri.run_pod_sandbox(&sandbox_config(0)).await.is_err() {
            cri.list_pods().await.expect("a list");
        }
        assert_eq!(cri.version().name, "other");
        assert_eq!(double.calls("Version"), asked + 1, "once a connection");
    });
}

async fn pause() {
    Timer::after(Duration::from_millis(20)).await;
}

#[test]
fn a_runtime_that_hangs_holds_up_nothing_for_long_and_no_stop() {
    // CRI-05 CRI-92
    test(async |double| {
        let cri = Rc::new(double.client().await);
        double.on("ListPodSandbox", Reply::Hang);
        double.on("Status", Reply::Hang);
        double.on("StopPodSandbox", say(&mut wire::CriEmpty::default()));
        let hung: Vec<_> = (0..100)
            .map(|_| {
                let cri = Rc::clone(&cri);
                double.executor.spawn(async move { cri.list_pods().await })
            })
            .collect();
        until("calls hang", || double.calls("ListPodSandbox") >= 40).await;
        let stopped = cri.stop_pod_sandbox(&"s".into()).await;
        assert_eq!(stopped, Ok(()), "stops have places of their own");
        for call in hung {
            let late = call.await.expect_err("late");
            assert!(matches!(late, RuntimeError::Timeout { .. }), "{late}");
        }
        assert!(cri.runtime_status().await.is_err());
        assert!(
            double.calls("ListPodSandbox") <= 141,
            "no more than places, in turns"
        );
    });
}

#[test]
fn what_a_call_made_that_broke_off_is_taken_not_made_twice() {
    // CRI-40 CRI-41 CRI-42
    test(async |double| {
        let cri = double.client().await;
        let made = Rc::new(RefCell::new(Vec::new()));
        let list = Rc::clone(&made);
        double.script("ListPodSandbox", move |_| {
            say(&mut wire::ListPodSandboxResponse {
                items: list.borrow().clone(),
            })
        });
        // Reserved, and not to be seen: later, with the same attempt.
        double.on(
            "RunPodSandbox",
            Reply::Fail(9, "name \"p\" is reserved for \"s\""),
        );
        let refused = cri.run_pod_sandbox(&sandbox_config(0)).await;
        assert_eq!(refused, Err(failed("name \"p\" is reserved for \"s\"")));
        // Made, but its answer does not come.
        let at = Rc::clone(&made);
        double.script("RunPodSandbox", move |request| {
            let request: wire::RunPodSandboxRequest = read(request);
            let metadata = request.config.expect("config").metadata.expect("metadata");
            at.borrow_mut().push(listed_sandbox("s", metadata.attempt));
            Reply::Hang
        });
        double.on("PodSandboxStatus", sandbox_status("s", wire::SANDBOX_READY));
        let taken = cri.run_pod_sandbox(&sandbox_config(0)).await;
        assert_eq!(taken.expect("taken").id, "s".into());
        assert_eq!(double.calls("RunPodSandbox"), 2);
        // A sandbox that cannot be used is not taken.
        double.on("PodSandboxStatus", sandbox_status("s", 1));
        let refused = cri.run_pod_sandbox(&sandbox_config(0)).await;
        assert!(matches!(refused, Err(RuntimeError::Timeout { .. })));
        double.on("RunPodSandbox", word(""));
        assert!(
            cri.run_pod_sandbox(&sandbox_config(9)).await.is_err(),
            "no id"
        );

        double.on("PodSandboxStatus", sandbox_status("s", wire::SANDBOX_READY));
        double.on("CreateContainer", Reply::Hang);
        let config = ContainerConfig {
            name: "c".into(),
            attempt: 3,
            ..ContainerConfig::default()
        };
        let of = sandbox_config(0);
        for (state, is_taken) in [
            (wire::CONTAINER_CREATED, true),
            (wire::CONTAINER_RUNNING, false),
            (wire::CONTAINER_EXITED, false),
        ] {
            double.on(
                "ListContainers",
                say(&mut wire::ListContainersResponse {
                    containers: vec![listed_container("id", state)],
                }),
            );
            let created = cri.create_container(&"s".into(), &config, Some(&of)).await;
            assert_eq!(created.is_ok(), is_taken, "{state}");
        }
    });
}

#[test]
fn nothing_is_made_of_what_is_not_there() {
    // CRI-28 CRI-47
    test(async |double| {
        let cri = double.client().await;
        let of = sandbox_config(0);
        let mut config = ContainerConfig::default();
        double.on("CreateContainer", word("id"));
        double.on("PodSandboxStatus", sandbox_status("s", 1));
        let refused = cri.create_container(&"s".into(), &config, Some(&of)).await;
        assert_eq!(refused, Err(failed("sandbox s is not ready")));
        double.on("PodSandboxStatus", sandbox_status("s", wire::SANDBOX_READY));
        config.mounts = vec![ContainerMount {
            host_path: "/no/such/place".into(),
            container_path: "/a".into(),
            ..ContainerMount::default()
        }];
        let refused = cri.create_container(&"s".into(), &config, Some(&of)).await;
        assert!(
            refused
                .expect_err("no source")
                .to_string()
                .contains("/no/such/place")
        );
        assert_eq!(double.calls("CreateContainer"), 0);
        config.mounts.clear();
        let made = cri.create_container(&"s".into(), &config, Some(&of)).await;
        assert_eq!(made, Ok("id".into()));
    });
}

#[test]
fn lists_and_statuses() {
    // CRI-51 CRI-53 CRI-54 CRI-55 CRI-56 CRI-57 CRI-58 CRI-59 CRI-61 CRI-99
    test(async |double| {
        let cri = double.client().await;
        let mut foreign = listed_container("foreign", 1);
        foreign.labels.clear();
        double.on(
            "ListPodSandbox",
            say(&mut wire::ListPodSandboxResponse {
                items: vec![
                    listed_sandbox("s", 0),
                    listed_sandbox("s", 5),
                    wire::PodSandbox::default(),
                    listed_sandbox("", 1),
                ],
            }),
        );
        let lists = |containers| say(&mut wire::ListContainersResponse { containers });
        let mut counted = listed_container("b", 2);
        let count = (ANNOTATION_RESTART_COUNT.to_owned(), "4".to_owned());
        counted.annotations = [count].into();
        double.on(
            "ListContainers",
            lists(vec![
                listed_container("a", 2),
                foreign,
                counted,
                listed_container("a", 1),
            ]),
        );
        let pods = cri.list_pods().await.expect("a list");
        assert_eq!(pods.len(), 1);
        assert_eq!(pods[0].sandboxes.len(), 1, "the first of one id counts");
        assert_eq!(pods[0].sandboxes[0].attempt, 0);
        let found = pods[0]
            .containers
            .iter()
            .map(|c| (&*c.id, c.attempt, c.state));
        let found: Vec<_> = found.collect();
        let ended = ContainerState::Exited;
        assert_eq!(found, [("a", 3, ended), ("b", 4, ended)]);

        // Lost with a restart of the runtime; and one that never started.
        double.on("PodSandboxStatus", sandbox_status("s", wire::SANDBOX_READY));
        double.on("ListContainers", lists(vec![listed_container("a", 2)]));
        let mut lost = container_status("a", wire::CONTAINER_EXITED);
        (lost.exit_code, lost.reason) = (255, "Unknown".into());
        lost.finished_at = i64::MAX;
        lost.user = Some(wire::ContainerUserMessage {
            linux: Some(wire::LinuxUser {
                uid: 1000,
                gid: 2000,
                supplemental_groups: vec![3000],
            }),
        });
        double.on("ContainerStatus", of_container(lost.clone()));
        let uid = PodUid::new("u");
        let pod = cri.pod_status(&uid).await.expect("a status");
        assert_eq!(pod.ips.len(), 2);
        let instance = &pod.containers[0];
        assert_eq!((instance.exit_code, &*instance.reason), (255, "Unknown"));
        assert_eq!(instance.started_at, None, "not 1970");
        assert_eq!(instance.finished_at.map(|at| at.0), Some(i64::MAX));
        assert_eq!(instance.image, "app:1");
        assert_eq!(instance.image_id, "app@sha256:d");
        assert_eq!(instance.user, Some((1000, 2000, vec![3000])));
        // A running container has not ended, whatever its answer says of an end.
        lost.state = wire::CONTAINER_RUNNING;
        double.on("ContainerStatus", of_container(lost.clone()));
        let pod = cri.pod_status(&uid).await.expect("a status");
        let instance = &pod.containers[0];
        assert_eq!((instance.exit_code, instance.finished_at), (0, None));
        assert_eq!(instance.reason, "");

        // Half a status, or another pod's: no status of this pod at all. A container that is gone is left out.
        let mut half = lost.clone();
        half.image_ref.clear();
        let mut other = lost.clone();
        other.id = "b".into();
        for wrong in [
            of_container(half),
            of_container(other),
            say(&mut wire::CriEmpty::default()),
            Reply::Fail(2, "no"),
        ] {
            double.on("ContainerStatus", wrong);
            assert!(cri.pod_status(&uid).await.is_err());
        }
        double.on("ContainerStatus", Reply::Fail(5, "gone"));
        let pod = cri.pod_status(&uid).await.expect("a status");
        assert!(pod.containers.is_empty());
        // A sandbox that is not ready has no address, whatever its answer says.
        double.on("PodSandboxStatus", sandbox_status("s", 1));
        let pod = cri.pod_status(&uid).await.expect("a status");
        assert_eq!(pod.sandboxes[0].state, SandboxState::NotReady);
        assert!(pod.ips.is_empty());
        double.on("PodSandboxStatus", sandbox_status("other", 0));
        assert!(cri.pod_status(&uid).await.is_err());
    });
}

#[test]
fn a_stop_counts_once_it_is_seen() {
    // CRI-44 CRI-46
    test(async |double| {
        let cri = double.client().await;
        let id = ContainerId::new("a");
        let grace = Duration::from_millis(1500);
        double.script("StopContainer", |request| {
            let request: wire::StopContainerRequest = read(request);
            assert_eq!(request.timeout_s, 2, "whole seconds, none lost");
            say(&mut wire::CriEmpty::default())
        });
        let running = container_status("a", wire::CONTAINER_RUNNING);
        double.on("ContainerStatus", of_container(running));
        let stopped = cri.stop_container(&id, grace).await;
        assert!(stopped.is_err(), "it says so, but it did not");
        let ended = container_status("a", wire::CONTAINER_EXITED);
        double.on("ContainerStatus", of_container(ended));
        assert_eq!(cri.stop_container(&id, grace).await, Ok(()));
        double.on("StopContainer", Reply::Fail(5, "not found"));
        double.on("ContainerStatus", Reply::Fail(5, "not found"));
        assert_eq!(cri.stop_container(&id, grace).await, Ok(()));
        assert_eq!(
            cri.remove_container(&id, LogRetention::Remove).await,
            Ok(())
        );
        double.on("StopPodSandbox", Reply::Fail(2, "no network"));
        let refused = cri.remove_pod_sandbox(&"s".into()).await;
        assert_eq!(refused, Err(failed("no network")), "it is tried again");
    });
}

#[test]
fn commands() {
    // CRI-77 CRI-78
    test(async |double| {
        let cri = double.client().await;
        let id = ContainerId::new("a");
        let words = ["true".to_owned()];
        double.script("ExecSync", |request| {
            let request: wire::ExecSyncRequest = read(request);
            say(&mut wire::ExecSyncResponse {
                stdout: format!("{:05}", request.timeout_s).into_bytes(),
                stderr: vec![b'e'; 100],
                exit_code: 7,
            })
        });
        for (timeout, told) in [(None, "0000"), (Some(300), "0000"), (Some(2000), "0000")] {
            let timeout = timeout.map(Duration::from_millis);
            let output = cri.exec_sync(&id, &words, timeout, 4).await;
            let output = output.expect("output");
            assert_eq!((output.exit_code, output.stderr.len()), (7, 4));
            assert_eq!(output.stdout, told.as_bytes());
        }
        let output = cri
            .exec_sync(&id, &words, Some(Duration::from_millis(300)), 9)
            .await;
        assert_eq!(
            output.expect("output").stdout,
            b"00001",
            "0 would be no limit"
        );
        double.on("ExecSync", Reply::Fail(4, "too late"));
        let late = cri.exec_sync(&id, &words, Some(TIMEOUT), 4).await;
        assert!(matches!(late, Err(RuntimeError::Timeout { .. })));
        for (url, want) in [
            ("http://[::1]:1/exec/t", Some("http://[::1]:1/exec/t")),
            ("//127.0.0.1:1/t", None),
            ("", None),
        ] {
            double.on("Exec", word(url));
            let options = ExecOptions {
                command: words.to_vec(),
                ..ExecOptions::default()
            };
            let opened = cri.exec(&id, &options).await;
            match (opened, want) {
                (Ok(StreamRoute::Url(url)), Some(want)) => assert_eq!(url, want),
                (Ok(StreamRoute::Url(url)), None) => assert!(url.starts_with("http://"), "{url}"),
                (opened, want) => assert!(opened.is_err() && want.is_none() && url.is_empty()),
            }
        }
    });
}

#[test]
fn images() {
    // CRI-70 CRI-71 CRI-73 CRI-74 CRI-75
    test(async |double| {
        let cri = double.client().await;
        let image = |size| {
            say(&mut wire::ImageStatusResponse {
                image: Some(wire::ImageMessage {
                    id: "sha256:i".into(),
                    repo_digests: vec!["app@sha256:d".into()],
                    size,
                    uid: Some(wire::Int64Value { value: 0 }),
                    username: "ignored".into(),
                    ..wire::ImageMessage::default()
                }),
            })
        };
        double.on("ImageStatus", say(&mut wire::CriEmpty::default()));
        assert_eq!(cri.image_status("x").await, Ok(None));
        double.on("ImageStatus", image(0));
        assert!(cri.image_status("x").await.is_err(), "an image of no size");
        double.on("ImageStatus", image(9));
        let found = cri
            .image_status("x")
            .await
            .expect("an image")
            .expect("there");
        assert_eq!((found.uid, &*found.username), (Some(0), ""));

        let auth = AuthConfig {
            username: "me".into(),
            ..AuthConfig::default()
        };
        double.script("PullImage", |request| {
            let request: wire::PullImageRequest = read(request);
            let who = request.auth.map(|auth| auth.username);
            assert_eq!(who.as_deref(), Some("me"));
            let config = request.sandbox_config.expect("the sandbox goes with it");
            assert_eq!(config.metadata.map(|m| m.name), Some("p".into()));
            word("app@sha256:d")
        });
        let of = sandbox_config(0);
        let pulled = cri.pull_image("app:1", Some(&auth), Some(&of)).await;
        assert_eq!(
            pulled,
            Ok("sha256:i".into()),
            "a digested name is looked up"
        );
        double.script("PullImage", |request| {
            assert_eq!(read::<wire::PullImageRequest>(request).auth, None);
            Reply::Fail(2, "RegistryUnavailable: no route")
        });
        let refused = cri.pull_image("app:1", None, None).await;
        let text = "RegistryUnavailable: no route";
        assert_eq!(
            refused,
            Err(RuntimeError::Denied(text.into())),
            "the words alone"
        );
        let text = "failed to copy: write /blob: no space left on device";
        double.script("PullImage", |_| {
            Reply::Fail(2, "failed to copy: write /blob: no space left on device")
        });
        let refused = cri.pull_image("app:1", None, None).await;
        assert_eq!(refused, Err(RuntimeError::Full(text.into())));
        double.on("PullImage", Reply::Fail(13, "broken"));
        let refused = cri.pull_image("app:1", None, None).await;
        let text = refused.expect_err("refused").to_string();
        assert!(
            text.contains("Internal") && text.contains("broken"),
            "{text}"
        );

        // A runtime would remove it from under a container.
        double.on("RemoveImage", say(&mut wire::CriEmpty::default()));
        let lists = |image: &str| {
            let mut container = listed_container("a", 1);
            container.image_ref = image.into();
            container.image = Some(wire::ImageSpecMessage::default());
            say(&mut wire::ListContainersResponse {
                containers: vec![container],
            })
        };
        let mut other = container_status("a", 1);
        other.image_ref = "other".into();
        double.on("ContainerStatus", of_container(other.clone()));
        for used in ["sha256:i", "app@sha256:d"] {
            double.on("ListContainers", lists(used));
            assert!(cri.remove_image("sha256:i").await.is_err(), "{used}");
        }
        double.on("ListContainers", lists("other"));
        let mut mounting = other.clone();
        mounting.mounts = vec![wire::MountMessage {
            image: Some(wire::ImageSpecMessage {
                image: "sha256:i".into(),
                ..wire::ImageSpecMessage::default()
            }),
            ..wire::MountMessage::default()
        }];
        double.on("ContainerStatus", of_container(mounting));
        assert!(cri.remove_image("sha256:i").await.is_err(), "mounted");
        assert_eq!(double.calls("RemoveImage"), 0);
        double.on("ContainerStatus", of_container(other));
        assert_eq!(cri.remove_image("sha256:i").await, Ok(()));
        assert_eq!(double.calls("RemoveImage"), 1);
    });
}

#[test]
fn events_ring_and_are_always_read() {
    // CRI-65 CRI-66 CRI-67
    test(async |double| {
        // More than any window or queue holds; no task waits for the bell.
        double.on("GetContainerEvents", Reply::Events(2000));
        let cri = double.client().await;
        until("it listens", || double.calls("GetContainerEvents") == 1).await;
        cri.wait_for_doorbell().await;
        for _ in 0..20 {
            cri.list_pods().await.expect("nothing is held up");
        }
        until("all of them are read", || double.calls("event") == 2000).await;
    });
    test(async |double| {
        let cri = double.client().await;
        until("it asked", || double.calls("GetContainerEvents") >= 1).await;
        // Its first call may have made the connection that it is told of: then it asks once more.
        for _ in 0..20 {
            cri.list_pods().await.expect("a list");
            pause().await;
        }
        assert!(
            double.calls("GetContainerEvents") <= 2,
            "not offered: no loop"
        );
    });
}
