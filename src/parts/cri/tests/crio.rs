//! Differences of CRI-O from containerd, by its source (rows CRI): the double has its habits.

use super::*;
use crate::api::stats::StatsDetail;

/// An id as CRI-O makes it: bare, in hexadecimal.
const ID: &str = "5f1b3a";

fn image(id: &str) -> Reply {
    say(&mut wire::ImageStatusResponse {
        image: Some(wire::ImageMessage {
            id: id.into(),
            size: 9,
            ..wire::ImageMessage::default()
        }),
    })
}

fn lists(state: i32) -> Reply {
    let mut container = listed_container(ID, state);
    container.image_ref = "0badcafe".into();
    say(&mut wire::ListContainersResponse {
        containers: vec![container],
    })
}

#[test]
fn events_that_end_at_once_are_not_offered() {
    // CRI-11 CRI-67
    test(async |double| {
        double.on("Version", version("cri-o"));
        double.on("GetContainerEvents", Reply::End);
        let cri = double.client().await;
        assert_eq!(cri.version().name, "cri-o");
        until("it asked", || double.calls("GetContainerEvents") >= 1).await;
        for _ in 0..20 {
            cri.list_pods().await.expect("a list");
            pause().await;
        }
        assert!(double.calls("GetContainerEvents") <= 2, "no loop");
    });
}

#[test]
fn what_finished_late_is_given_to_the_same_question() {
    // CRI-41
    test(async |double| {
        let cri = double.client().await;
        let attempts = Rc::new(RefCell::new(Vec::new()));
        let asked = Rc::clone(&attempts);
        double.script("RunPodSandbox", move |request| {
            let request: wire::RunPodSandboxRequest = read(request);
            let metadata = request.config.and_then(|config| config.metadata);
            asked
                .borrow_mut()
                .push(metadata.map(|metadata| metadata.attempt));
            match asked.borrow().len() {
                1 => Reply::Hang,
                _ => word("s"),
            }
        });
        double.on("PodSandboxStatus", sandbox_status("s", wire::SANDBOX_READY));
        let late = cri.run_pod_sandbox(&sandbox_config(4)).await;
        assert!(
            matches!(late, Err(RuntimeError::Timeout { .. })),
            "it is not listed yet"
        );
        let made = cri.run_pod_sandbox(&sandbox_config(4)).await;
        assert_eq!(made.expect("made").id, "s".into());
        assert_eq!(*attempts.borrow(), [Some(4), Some(4)]);
    });
}

#[test]
fn ends_and_starts_are_told_in_its_words() {
    // CRI-43 CRI-58 CRI-97
    test(async |double| {
        let cri = double.client().await;
        let id = ContainerId::new(ID);
        // A container that cannot be started is gone.
        double.on("StartContainer", Reply::Fail(2, "no such file"));
        double.on("ContainerStatus", Reply::Fail(5, "not found"));
        assert_eq!(cri.start_container(&id).await, Err(failed("no such file")));
        double.on("ListContainers", lists(wire::CONTAINER_EXITED));
        let uid = PodUid::new("u");
        let pod = cri.pod_status(&uid).await.expect("a status");
        assert!(pod.containers.is_empty());

        for (code, reason) in [(-1, "Error"), (159, "seccomp killed")] {
            let mut ended = container_status(ID, wire::CONTAINER_EXITED);
            (ended.exit_code, ended.reason) = (code, reason.into());
            double.on("ContainerStatus", of_container(ended));
            let pod = cri.pod_status(&uid).await.expect("a status");
            let main = &pod.containers[0];
            assert_eq!((main.exit_code, &*main.reason), (code, reason));
        }
        double.on("ExecSync", Reply::Fail(5, "container is not running"));
        let refused = cri.exec_sync(&id, &["true".into()], None, 9).await;
        assert!(matches!(refused, Err(RuntimeError::NotFound(_))));
    });
}

#[test]
fn its_images_have_bare_ids() {
    // CRI-73 CRI-75 CRI-97
    test(async |double| {
        let cri = double.client().await;
        double.on("PullImage", word("app@sha256:d"));
        double.on("ImageStatus", image("0badcafe"));
        let pulled = cri.pull_image("app:1", None, None).await;
        assert_eq!(pulled, Ok("0badcafe".into()));
        // Since 1.36 it answers with the id.
        double.on("PullImage", word("0badcafe"));
        let pulled = cri.pull_image("app:1", None, None).await;
        assert_eq!(pulled, Ok("0badcafe".into()));

        let mut made = container_status(ID, wire::CONTAINER_RUNNING);
        made.image_ref = "other".into();
        double.on("ContainerStatus", of_container(made));
        double.on("ListContainers", lists(wire::CONTAINER_RUNNING));
        assert!(cri.remove_image("0badcafe").await.is_err(), "it is used");
        double.on("ListContainers", say(&mut wire::CriEmpty::default()));
        let text = "image used by 5f1b3a";
        double.on("RemoveImage", Reply::Fail(2, text));
        assert_eq!(cri.remove_image("0badcafe").await, Err(failed(text)));
    });
}

#[test]
fn cgroups_bear_the_names_of_their_runtimes() {
    // CRI-85 CRI-86 SVC-31
    use crate::api::cri::CgroupDriver::{Cgroupfs, Systemd};
    const SLICES: &str = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podu.slice";
    let root = crate::testing::unused_path("groups");
    for (n, (driver, pod, container)) in [
        (Cgroupfs, "kubepods/burstable/podu", ID.to_owned()),
        (Cgroupfs, "kubepods/burstable/podu", format!("crio-{ID}")),
        (Systemd, SLICES, format!("cri-containerd-{ID}.scope")),
        (Systemd, SLICES, format!("crio-{ID}.scope")),
    ]
    .into_iter()
    .enumerate()
    {
        let tree = root.join(n.to_string());
        let group = tree.join(pod).join(&container);
        fs::create_dir_all(&group).expect("directory");
        fs::write(group.join("cpu.stat"), "usage_usec 7\n").expect("file");
        let executor = Rc::new(LocalExecutor::new());
        let double = Double::new(&executor);
        smol::block_on(executor.run(async {
            let line = format!("1 1 0:1 / {} rw - cgroup2 none rw", tree.display());
            let cgroups =
                Cgroups::with_hierarchy(crate::cgroup::Hierarchy::parse(&line).expect("a tree"));
            let settings = EndpointSettings {
                cgroup_driver: driver,
                // As the agent has it: `logic::cgroup` says where.
                pod_groups: Some(|driver, root, uid| {
                    let tier = match driver {
                        Cgroupfs => "kubepods/burstable/pod".to_owned(),
                        Systemd => SLICES.trim_end_matches("u.slice").to_owned(),
                    };
                    let end = if driver == Systemd { ".slice" } else { "" };
                    assert_eq!(root, "/");
                    ["/none".into(), format!("/{tier}{uid}{end}"), "/none".into()]
                }),
                cgroup_root: "/".into(),
                ..double.settings()
            };
            let opened = CriClient::connect(settings, &executor, Lane::without_thread(), cgroups);
            let cri = opened.await.expect("a runtime");
            double.on(
                "ListPodSandbox",
                say(&mut wire::ListPodSandboxResponse {
                    items: vec![listed_sandbox("s", 0)],
                }),
            );
            double.on("ListContainers", lists(wire::CONTAINER_RUNNING));
            let running = container_status(ID, wire::CONTAINER_RUNNING);
            double.on("ContainerStatus", of_container(running));
            let usage = cri.list_pod_usage(StatsDetail::Basic).await.expect("usage");
            let main = &usage[0].containers[0];
            assert_eq!(main.cgroup, format!("/{pod}/{container}"));
            assert!(main.usage.cpu.is_some());
            // CRI-85: what it costs needs no status, and is no reason to have no figures of any pod.
            double.on("ContainerStatus", Reply::Fail(13, "its shim is gone"));
            let usage = cri.list_pod_usage(StatsDetail::Basic).await.expect("usage");
            let unread = &usage[0].containers[0];
            assert_eq!((&*unread.name, &*unread.log_path), ("c", ""));
            assert_eq!(
                unread.started_at,
                crate::api::WallTime(8),
                "as the list says"
            );
            assert!(unread.usage.cpu.is_some());
            assert!(cri.unread.borrow().contains(ID), "told once");
        }));
    }
    fs::remove_dir_all(root).expect("clean up");
}
