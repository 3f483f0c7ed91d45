//! Answers of a runtime: odd ones, long ones, late ones.

use smol::future::FutureExt as _;

use super::*;

/// A length-delimited field of protobuf.
fn field(number: u8, value: &[u8]) -> Vec<u8> {
    let mut bytes = vec![number << 3 | 2];
    let mut left = value.len();
    while left > 0x7f {
        bytes.push(u8::try_from(left & 0x7f).expect("seven bits") | 0x80);
        left >>= 7;
    }
    bytes.push(u8::try_from(left).expect("seven bits"));
    bytes.extend_from_slice(value);
    bytes
}

#[test]
fn what_is_wrong_or_too_much_fails_one_call() {
    // CRI-98
    test(async |double| {
        let cri = double.client().await;
        let connections = double.calls("Version");
        let sandboxes = |count: usize| {
            let items = (0..count).map(|n| listed_sandbox(&n.to_string(), 0));
            say(&mut wire::ListPodSandboxResponse {
                items: items.collect(),
            })
        };
        // A sandbox is field 1, its id field 1 of that, its state a number.
        let of = |sandbox: &[u8]| Reply::Say(field(1, sandbox));
        for (what, answer, words) in [
            (
                "longer than 16 MiB",
                of(&vec![0; 17 << 20]),
                "larger than max",
            ),
            ("not UTF-8", of(&field(1, &[0xff])), ""),
            ("cut", Reply::Say(vec![1 << 3 | 2, 200, 1]), ""),
            ("another type", of(&field(3, b"ready")), ""),
            ("too many", sandboxes(5000), "more than 4096"),
        ] {
            double.on("ListPodSandbox", answer);
            let refused = cri.list_pods().await.expect_err(what).to_string();
            assert!(refused.contains(words), "{what}: {refused}");
        }
        double.on("ListPodSandbox", sandboxes(1));
        assert_eq!(cri.list_pods().await.map(|pods| pods.len()), Ok(1));
        assert_eq!(double.calls("Version"), connections, "one connection");

        double.on(
            "ExecSync",
            say(&mut wire::ExecSyncResponse {
                stdout: vec![b'x'; 1000],
                ..wire::ExecSyncResponse::default()
            }),
        );
        let (id, command) = ("c".into(), ["true".to_owned()]);
        let asked = cri.exec_sync(&id, &command, None, 10).await;
        assert_eq!(asked.expect("an answer").stdout, b"xxxxxxxxxx");
    });
}

#[test]
fn lists_have_all_that_no_event_told() {
    // CRI-68
    test(async |double| {
        let cri = double.client().await;
        // It has no events at all.
        double.on(
            "ListPodSandbox",
            say(&mut wire::ListPodSandboxResponse {
                items: vec![listed_sandbox("s", 0)],
            }),
        );
        let states = [
            (wire::CONTAINER_CREATED, ContainerState::Created),
            (wire::CONTAINER_RUNNING, ContainerState::Running),
            (wire::CONTAINER_EXITED, ContainerState::Exited),
        ];
        for (told, wanted) in states {
            let containers = vec![listed_container("a", told)];
            double.on(
                "ListContainers",
                say(&mut wire::ListContainersResponse { containers }),
            );
            let pods = cri.list_pods().await.expect("a list");
            assert_eq!(pods[0].containers[0].state, wanted);
        }
        double.on("ListContainers", say(&mut wire::CriEmpty::default()));
        let pods = cri.list_pods().await.expect("a list");
        assert!(pods[0].containers.is_empty(), "gone");
    });
}

#[test]
fn a_pull_takes_its_time() {
    // CRI-72
    test(async |double| {
        let cri = double.client().await;
        double.on("PullImage", Reply::Hang);
        let pulled = async { Some(cri.pull_image("app:1", None, None).await) };
        let later = async {
            Timer::after(TIMEOUT * 4).await;
            None
        };
        assert_eq!(pulled.or(later).await, None, "no deadline");
        assert!(double.calls("PullImage") == 1 && cri.pull_progress("app:1").is_none());
    });
}

#[test]
fn an_image_goes_as_it_was_found_and_as_the_pod_names_it() {
    // CRI-26
    test(async |double| {
        let cri = double.client().await;
        double.on("PodSandboxStatus", sandbox_status("s", wire::SANDBOX_READY));
        double.script("CreateContainer", |request| {
            let request: wire::CreateContainerRequest = read(request);
            let image = request.config.and_then(|config| config.image);
            let wanted = wire::ImageSpecMessage {
                image: "sha256:i".into(),
                user_specified_image: "app:1".into(),
                ..wire::ImageSpecMessage::default()
            };
            assert_eq!(image, Some(wanted), "nothing else is said of it");
            word("id")
        });
        let config = ContainerConfig {
            image: "sha256:i".into(),
            user_image: "app:1".into(),
            ..ContainerConfig::default()
        };
        let (sandbox, of) = ("s".into(), sandbox_config(0));
        let made = cri.create_container(&sandbox, &config, Some(&of)).await;
        assert_eq!(made, Ok("id".into()));
    });
}

#[test]
fn a_container_that_cannot_be_read_keeps_its_own_image_alone() {
    // CRI-75
    test(async |double| {
        let cri = double.client().await;
        let containers = vec![listed_container("broken", wire::CONTAINER_RUNNING)];
        double.on(
            "ListContainers",
            say(&mut wire::ListContainersResponse { containers }),
        );
        double.on("ContainerStatus", Reply::Fail(13, "its shim is gone"));
        double.on("RemoveImage", say(&mut wire::CriEmpty::default()));
        for (id, removed) in [("sha256:i", 0), ("sha256:other", 1)] {
            double.on(
                "ImageStatus",
                say(&mut wire::ImageStatusResponse {
                    image: Some(wire::ImageMessage {
                        id: id.into(),
                        size: 9,
                        ..wire::ImageMessage::default()
                    }),
                }),
            );
            assert_eq!(cri.remove_image(id).await.is_ok(), removed == 1, "{id}");
            assert_eq!(double.calls("RemoveImage"), removed, "{id}");
        }
    });
}

#[test]
fn the_runtime_says_where_its_disks_are() {
    // CRI-76
    let at = |path: &str| wire::FilesystemUsage {
        fs_id: Some(wire::TextMessage { word: path.into() }),
        ..wire::FilesystemUsage::default()
    };
    for (containers, layers) in [
        (vec![], "/proc"),
        (vec![at("/dev"), at("/sys")], "/dev"),
        (vec![at("nowhere")], "/proc"),
    ] {
        test(async |double| {
            double.on(
                "ImageFsInfo",
                say(&mut wire::ImageFsInfoResponse {
                    image_filesystems: vec![at("/proc"), at("/")],
                    container_filesystems: containers.clone(),
                }),
            );
            let cri = double.open().await.expect("a runtime");
            let (images, layers) = ("/proc".into(), layers.into());
            assert_eq!(
                *cri.runtime_directories(),
                RuntimeDirectories { images, layers }
            );
        });
    }
}
