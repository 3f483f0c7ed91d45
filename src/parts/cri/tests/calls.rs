//! Calls to a runtime: their form, their content, and their order.

use std::path::Path;

use super::*;
use crate::testing::TestDir;

/// Calls that the double received, from the first call of this name on.
fn since(double: &Double, first: &str) -> Vec<String> {
    let calls = double.calls.borrow();
    let begin = calls.iter().position(|call| call == first);
    let calls = calls[begin.expect("it was asked")..].iter();
    let is_question = |call: &&String| *call != "GetContainerEvents";
    calls.filter(is_question).cloned().collect()
}

/// Keeps the questions of a method.
fn heard<M: Message + Default + 'static>(
    double: &Double,
    method: &'static str,
    reply: Reply,
) -> Rc<RefCell<Vec<M>>> {
    let heard = Rc::new(RefCell::new(Vec::new()));
    let at = Rc::clone(&heard);
    double.script(method, move |request| {
        at.borrow_mut().push(read(request));
        reply.clone()
    });
    heard
}

#[test]
fn calls_are_of_one_version_and_begin_at_once() {
    // CRI-02
    let executor = Rc::new(LocalExecutor::new());
    let double = Double::new(&executor);
    smol::block_on(executor.run(async {
        let cri = double.client().await;
        double.on("ImageStatus", say(&mut wire::CriEmpty::default()));
        assert_eq!(cri.image_status("x").await, Ok(None));
        let seen = |services: &[&str]| {
            let heads = double.heads.borrow();
            for head in heads.iter() {
                let value = |wanted: &str| {
                    let found = head.iter().find(|(name, _)| name == wanted.as_bytes());
                    String::from_utf8_lossy(&found.expect("a field").1).into_owned()
                };
                assert_eq!(value(":authority"), "localhost");
                assert_eq!(value(":scheme"), "http");
                let path = value(":path");
                let (service, method) = path.rsplit_once('/').expect("a path");
                let of_images = method.contains("Image");
                assert_eq!(service, services[usize::from(of_images)], "{path}");
            }
            heads.len()
        };
        let services = ["/runtime.v1.RuntimeService", "/runtime.v1.ImageService"];
        assert!(seen(&services) >= 5);

        // A runtime that knows only another version is asked for this one alone.
        double.scripts.borrow_mut().clear();
        double.heads.borrow_mut().clear();
        let refused = double.open().await.err().expect("not this version");
        assert!(refused.to_string().contains("unknown method"), "{refused}");
        assert_eq!(seen(&services), 1);

        // The longest message that is taken, and one byte more. Field 15 is unknown here.
        for (bytes, is_taken) in [(16_usize << 20, true), ((16 << 20) + 1, false)] {
            let Reply::Say(mut answer) = version("double") else {
                unreachable!("an answer");
            };
            let length = bytes - answer.len() - 5;
            answer.push(15 << 3 | 2);
            // Four bytes of a length that has 24 bits.
            let parts = [0, 7, 14, 21].map(|shift| (length >> shift) & 0x7f);
            let last = parts.len() - 1;
            for (at, part) in parts.into_iter().enumerate() {
                let more = if at == last { 0 } else { 0x80 };
                answer.push(u8::try_from(part).expect("seven bits") | more);
            }
            answer.resize(bytes, 0);
            double.on("Version", Reply::Say(answer));
            double.on("Status", status(true));
            double.on(
                "ImageFsInfo",
                say(&mut wire::ImageFsInfoResponse {
                    image_filesystems: vec![wire::FilesystemUsage {
                        fs_id: Some(wire::TextMessage { word: "/".into() }),
                        ..wire::FilesystemUsage::default()
                    }],
                    ..wire::ImageFsInfoResponse::default()
                }),
            );
            let opened = double.open().await;
            let why = opened.err().map(|e| e.to_string()).unwrap_or_default();
            assert_eq!(why.is_empty(), is_taken, "{bytes}: {why}");
            assert!(is_taken || why.contains("larger than max"), "{why}");
        }
    }));

    // Nothing is asked before HTTP/2 is spoken.
    let path = crate::testing::unused_path("cri-raw");
    let _ = fs::remove_file(&path);
    let listener = Async::<UnixListener>::bind(&path).expect("socket");
    smol::block_on(executor.run(async {
        let settings = EndpointSettings {
            endpoint: path.clone(),
            image_endpoint: path.clone(),
            ..double.settings()
        };
        let line = "1 1 0:1 / /nowhere rw - cgroup2 none rw";
        let hierarchy = crate::cgroup::Hierarchy::parse(line).expect("a tree");
        let opening = CriClient::connect(
            settings,
            &executor,
            Lane::without_thread(),
            Cgroups::with_hierarchy(hierarchy),
        );
        let reading = async {
            let (mut pipe, _) = listener.accept().await.expect("a connection");
            let mut begin = [0; 24];
            smol::io::AsyncReadExt::read_exact(&mut pipe, &mut begin)
                .await
                .expect("bytes");
            begin
        };
        let begin = smol::future::or(reading, async {
            drop(opening.await);
            [0; 24]
        });
        assert_eq!(&begin.await, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    }));
    fs::remove_file(&path).expect("removed");
}

#[test]
fn a_sandbox_is_stopped_before_anything_of_it_is_removed() {
    // CRI-45 GC-05
    test(async |double| {
        let cri = double.client().await;
        let mut other = listed_container("of-another", wire::CONTAINER_RUNNING);
        other.sandbox = "s2".into();
        double.on(
            "ListContainers",
            say(&mut wire::ListContainersResponse {
                containers: vec![listed_container("a", wire::CONTAINER_EXITED), other],
            }),
        );
        let ended = container_status("a", wire::CONTAINER_EXITED);
        double.on("ContainerStatus", of_container(ended));
        let done = || say(&mut wire::CriEmpty::default());
        double.on("RemoveContainer", done());
        double.on("RemovePodSandbox", done());
        let text = "cni plugin not initialized";
        double.on("StopPodSandbox", Reply::Fail(2, text));
        let refused = cri.remove_pod_sandbox(&"s".into()).await;
        assert_eq!(refused, Err(failed(text)), "it is tried again");
        let removals = || double.calls("RemoveContainer") + double.calls("RemovePodSandbox");
        assert_eq!(removals(), 0);

        double.on("StopPodSandbox", done());
        double.calls.borrow_mut().clear();
        assert_eq!(cri.remove_pod_sandbox(&"s".into()).await, Ok(()));
        let order = [
            "StopPodSandbox",
            "ContainerStatus",
            "RemoveContainer",
            "RemovePodSandbox",
        ];
        assert_eq!(since(double, "StopPodSandbox"), order);
    });
}

#[test]
fn lists_are_of_all_or_of_one_pod() {
    // CRI-50
    test(async |double| {
        let cri = double.open().await.expect("a runtime");
        let nothing = || say(&mut wire::CriEmpty::default());
        let sandboxes: Rc<RefCell<Vec<wire::ListPodSandboxRequest>>> =
            heard(double, "ListPodSandbox", nothing());
        let containers: Rc<RefCell<Vec<wire::ListContainersRequest>>> =
            heard(double, "ListContainers", nothing());
        double.calls.borrow_mut().clear();
        cri.list_pods().await.expect("a list");
        assert_eq!(
            since(double, "ListPodSandbox"),
            ["ListPodSandbox", "ListContainers"]
        );
        assert_eq!(sandboxes.borrow_mut().pop().expect("asked").filter, None);
        assert_eq!(containers.borrow_mut().pop().expect("asked").filter, None);

        cri.pod_status(&PodUid::new("u")).await.expect("a status");
        let of_pod: wire::TextMap = [(LABEL_POD_UID.to_owned(), "u".to_owned())].into();
        let filter = sandboxes.borrow_mut().pop().expect("asked").filter;
        let filter = filter.expect("a selector");
        assert_eq!((&*filter.id, &filter.labels), ("", &of_pod));
        let filter = containers.borrow_mut().pop().expect("asked").filter;
        let filter = filter.expect("a selector");
        assert_eq!(
            (&*filter.id, &*filter.sandbox, &filter.labels),
            ("", "", &of_pod)
        );

        // Half a list is none.
        for broken in ["ListPodSandbox", "ListContainers"] {
            double.on(broken, Reply::Fail(2, "no"));
            assert_eq!(cri.list_pods().await, Err(failed("no")), "{broken}");
            double.on(broken, nothing());
        }
    });
}

#[test]
fn what_mounts_from_another_root_is_not_what_its_hash_says() {
    // CRI-95
    let dir = crate::testing::unused_path("roots");
    let (own, other, link) = (dir.join("own"), dir.join("other"), dir.join("link"));
    for root in [&own, &other] {
        fs::create_dir_all(root).expect("directory");
    }
    std::os::unix::fs::symlink(&own, &link).expect("link");
    let executor = Rc::new(LocalExecutor::new());
    let double = Double::new(&executor);
    smol::block_on(executor.run(async {
        let line = "1 1 0:1 / /nowhere rw - cgroup2 none rw";
        let cgroups =
            Cgroups::with_hierarchy(crate::cgroup::Hierarchy::parse(line).expect("a tree"));
        let settings = EndpointSettings {
            root_dir: own.clone(),
            ..double.settings()
        };
        let opened = CriClient::connect(settings, &executor, Lane::without_thread(), cgroups);
        let cri = opened.await.expect("a runtime");
        let running = wire::CONTAINER_RUNNING;
        double.on(
            "ListContainers",
            say(&mut wire::ListContainersResponse {
                containers: vec![listed_container("a", running)],
            }),
        );
        for (path, hash) in [
            (own.join("pods/u/etc-hosts"), 7),
            (link.join("pods/u/etc-hosts"), 7),
            // Of another pod, or of none: its own business.
            (other.join("pods/v/etc-hosts"), 7),
            (other.join("data"), 7),
            (other.join("pods/u/etc-hosts"), 0),
            (dir.join("gone/pods/u/etc-hosts"), 0),
        ] {
            let mut status = container_status("a", running);
            status.mounts = vec![wire::MountMessage {
                host_path: path.display().to_string(),
                ..wire::MountMessage::default()
            }];
            let written = (ANNOTATION_HASH.to_owned(), "7".to_owned());
            status.annotations = [written].into();
            double.on("ContainerStatus", of_container(status));
            let pod = cri.pod_status(&PodUid::new("u")).await.expect("a status");
            assert_eq!(pod.containers[0].hash, hash, "{}", path.display());
        }
    }));
    fs::remove_dir_all(&dir).expect("clean up");
}

#[test]
fn a_log_that_cannot_be_opened_anew_is_told() {
    // CRI-82
    test(async |double| {
        let cri = double.client().await;
        let asked: Rc<RefCell<Vec<wire::TextMessage>>> = heard(
            double,
            "ReopenContainerLog",
            Reply::Fail(2, "container is not running"),
        );
        let refused = cri.reopen_container_log(&"a".into()).await;
        assert_eq!(refused, Err(failed("container is not running")));
        assert_eq!(asked.borrow()[0].word, "a");
        double.on("ReopenContainerLog", say(&mut wire::CriEmpty::default()));
        assert_eq!(cri.reopen_container_log(&"a".into()).await, Ok(()));
    });
}

#[test]
fn new_limits_are_the_whole_message() {
    // CRI-84
    test(async |double| {
        let cri = double.client().await;
        let nothing = say(&mut wire::CriEmpty::default());
        let asked: Rc<RefCell<Vec<wire::UpdateContainerResourcesRequest>>> =
            heard(double, "UpdateContainerResources", nothing);
        let limits = LinuxResources {
            cpu_shares: Some(512),
            cpu_quota_us: Some(50_000),
            cpu_period_us: Some(100_000),
            memory_limit_bytes: Some(64 << 20),
            oom_score_adj: 993,
            hugepage_limits: [("2MB".into(), 0)].into(),
            unified: [("memory.oom.group".into(), "1".into())].into(),
            ..LinuxResources::default()
        };
        let changed = cri.update_container_resources(&"a".into(), &limits).await;
        assert_eq!(changed, Ok(()));
        let sent = asked.borrow_mut().pop().expect("asked");
        assert_eq!(sent.id, "a");
        assert_eq!(
            sent.linux,
            Some(wire::LinuxContainerResources {
                cpu_period: 100_000,
                cpu_quota: 50_000,
                cpu_shares: 512,
                memory_limit_in_bytes: 64 << 20,
                oom_score_adj: 993,
                cpuset_cpus: String::new(),
                hugepage_limits: vec![wire::HugepageLimit {
                    page_size: "2MB".into(),
                    limit: 0,
                }],
                unified: [("memory.oom.group".into(), "1".into())].into(),
                memory_swap_limit_in_bytes: 0,
            })
        );
        // CRI-O refuses a limit below the usage: the refusal must not count as success.
        double.on(
            "UpdateContainerResources",
            Reply::Fail(2, "cannot set memory limit below current usage"),
        );
        let refused = cri.update_container_resources(&"a".into(), &limits).await;
        assert!(refused.expect_err("refused").to_string().contains("below"));
    });
}

#[test]
fn a_checkpoint_is_made_by_the_runtime() {
    // SRV-14 CKPT-01
    let scratch = TestDir::new("cri-checkpoint");
    test(async |double| {
        let cri = double.client().await;
        let done = say(&mut wire::CriEmpty::default());
        let asked: Rc<RefCell<Vec<wire::CheckpointContainerRequest>>> =
            heard(double, "CheckpointContainer", done);
        let id = "a".into();
        let location = scratch.join("checkpoints/a.tar");
        let timeout = Duration::from_secs(7);
        let made = cri.checkpoint_container(&id, &location, timeout);
        assert_eq!(made.await, Ok(()));
        let sent = asked.borrow_mut().pop().expect("asked");
        assert_eq!((&*sent.container_id, sent.timeout_s), ("a", 7));
        assert_eq!(Path::new(&sent.location), location);
        assert!(scratch.join("checkpoints").is_dir());
        let text = "method CheckpointContainer not implemented";
        double.on("CheckpointContainer", Reply::Fail(12, text));
        let refused = cri.checkpoint_container(&id, &location, timeout);
        let text = format!("rpc error: code = Unimplemented desc = {text}");
        assert_eq!(refused.await, Err(failed(&text)));
    });
}
