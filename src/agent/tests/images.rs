//! Images of containers and of their volumes, and the status of a container that cannot start.

use core::time::Duration;

use serde_json::{Value, json};

use super::super::{core::AgentEvent, recorder::EventSeverity};
use super::world::{IMAGE, World, manifest};
use crate::{
    api::{PodUid, cri::ContainerState, pod_status::PodPhase},
    image::{ImageProgress, progress::ImageStage},
    runtime::{
        RuntimeError,
        fake::{Fake, Fault, Op, Trouble},
    },
};

/// Image of the volume.
const MODEL: &str = "model:1";

const fn s(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn fails(op: Op, target: &str, times: u32) -> Fault {
    Fault {
        op,
        target: Some(target.into()),
        times,
        trouble: Trouble::Fails(RuntimeError::Failed("broken".into())),
    }
}

/// Manifest of a pod whose first container mounts no image, and whose others mount `image` as their volume.
fn with_volume(uid: &str, image: Value) -> Value {
    let container = |name: &str, mounts: Value| json!({"name": name, "image": IMAGE, "command": ["sleep"], "volumeMounts": mounts});
    manifest(
        uid,
        json!({
            "volumes": [{"name": "v", "image": image}, {"name": "unused", "image": {"reference": "nobody/s:1"}}],
            "containers": [
                container("alone", json!([])),
                container("reads", json!([{"name": "v", "mountPath": "/v"}])),
                container("reads-too", json!([
                    {"name": "v", "mountPath": "/a", "subPath": "part/of"},
                    {"name": "v", "mountPath": "/b"},
                ])),
            ],
        }),
    )
}

fn waiting(world: &World, uid: &str, name: &str) -> Option<(String, String)> {
    let status = world.status(uid)?;
    let mut all = status
        .init_container_statuses
        .iter()
        .chain(&status.container_statuses);
    let waiting = all.find(|c| c.name == name)?.state.waiting.clone()?;
    Some((waiting.reason, waiting.message))
}

fn running(world: &World, uid: &str, name: &str) -> bool {
    let container = world.fake.container(&PodUid::from(uid), name);
    container.is_some_and(|c| c.state == ContainerState::Running)
}

/// Events with this reason: the field path of the container, empty for the pod, and the message.
fn events(world: &World, reason: &str) -> Vec<(String, String)> {
    let recorder = &world.parts.tools.recorder;
    let mut all: Vec<_> = recorder
        .newest_events(None, usize::MAX)
        .into_iter()
        .filter(|e| *e.reason == *reason)
        .map(|e| (e.field_path.clone(), e.message.clone()))
        .collect();
    all.sort();
    all
}

fn pulls(world: &World, image: &str) -> usize {
    let calls = world.fake.take_calls().into_iter();
    calls
        .filter(|(op, target)| *op == Op::PullImage && target == image)
        .count()
}

#[test]
fn an_image_volume_that_is_missing_holds_up_those_that_mount_it_alone() {
    // IMG-21 VOL-18 WAIT-13
    // Reference, policy as written, present before, pulls of it in the first pass, reason, part of the message.
    for (reference, policy, there, asked, reason, part) in [
        (MODEL, "", false, 1, "ErrImagePull", "model:1 not found"),
        (MODEL, "IfNotPresent", false, 1, "ErrImagePull", "not found"),
        (MODEL, "Always", true, 1, "ErrImagePull", "not found"),
        (
            "model",
            "",
            true,
            1,
            "ErrImagePull",
            "model:latest not found",
        ),
        ("model:latest", "", true, 1, "ErrImagePull", "not found"),
        (
            MODEL,
            "Never",
            false,
            0,
            "ErrImageNeverPull",
            "Container image \"model:1\" is not present with pull policy of Never",
        ),
        (
            "Upper:1",
            "",
            false,
            0,
            "InvalidImageName",
            "Failed to apply default image tag \"Upper:1\"",
        ),
        (
            "unreadable:1",
            "",
            false,
            0,
            "ImageInspectError",
            "Failed to inspect image \"unreadable:1\": broken",
        ),
    ] {
        let what = format!("{reference} {policy:?} {there}");
        let world = World::new();
        if there {
            world.fake.add_image(MODEL);
            world.fake.add_image("model:latest");
        }
        world
            .fake
            .add_fault(fails(Op::ImageStatus, "unreadable:1", 100));
        let mut image = json!({"reference": reference});
        if !policy.is_empty() {
            image["pullPolicy"] = policy.into();
        }
        world.apply(&[with_volume("a", image)]);
        world.until(&what, |w| {
            waiting(w, "a", "reads-too").is_some_and(|w| w.0 == reason)
        });
        let (shown, message) = waiting(&world, "a", "reads").expect("waits");
        assert!(
            shown == reason && message.contains(part),
            "{what}: {shown}: {message}"
        );
        assert!(running(&world, "a", "alone"), "{what}");
        assert_eq!(world.phase("a"), Some(PodPhase::Pending), "{what}");
        let full = if reference == "model" {
            "model:latest"
        } else {
            reference
        };
        assert_eq!(
            pulls(&world, full),
            asked,
            "{what}: once, whoever mounts it"
        );
        // Events of the pod tell of the image, events of each waiting container of its start.
        let mut told: Vec<String> = events(&world, "Failed")
            .into_iter()
            .filter(|(_, message)| message.starts_with("Error: "))
            .map(|(about, message)| format!("{about} {message}"))
            .collect();
        told.sort();
        assert_eq!(
            told,
            ["reads-too", "reads"].map(|c| format!("spec.containers{{{c}}} Error: {reason}")),
            "{what}"
        );
        let pulling = events(&world, "Pulling");
        let wanted = format!("Pulling image \"{full}\"");
        assert_eq!(
            pulling
                .iter()
                .any(|e| *e == (String::new(), wanted.clone())),
            asked > 0,
            "{what}: {pulling:?}"
        );
        assert!(
            world.fake.container(&"a".into(), "reads").is_none(),
            "{what}"
        );
    }
}

#[test]
fn what_waits_for_an_image_volume_starts_when_it_is_there() {
    // IMG-09 IMG-10 IMG-21
    let world = World::new();
    world.apply(&[with_volume("a", json!({"reference": MODEL}))]);
    world.until("backs off", |w| {
        waiting(w, "a", "reads").is_some_and(|w| w.0 == "ImagePullBackOff")
    });
    let (_, message) = waiting(&world, "a", "reads").expect("waits");
    assert!(
        message.contains("Back-off pulling image \"model:1\"") && message.contains("not found"),
        "{message}"
    );
    world.advance(s(200));
    world.fake.offer_image(MODEL);
    let before = world.now();
    world
        .events
        .try_send(AgentEvent::ImagesArrived)
        .expect("room");
    world.until("runs", |w| w.phase("a") == Some(PodPhase::Running));
    assert!(world.now() - before < s(2), "nobody waits out a back-off");
    // An image that no container mounts was not pulled.
    assert_eq!(pulls(&world, "nobody/s:1"), 0);
}

#[test]
fn an_image_volume_reaches_the_runtime_and_is_in_use() {
    // IMG-19 IMG-21 VOL-18 VOL-26 GC-11
    let world = World::new();
    world.fake.offer_image(MODEL);
    world.apply(&[with_volume("a", json!({"reference": MODEL}))]);
    world.until("runs", |w| w.phase("a") == Some(PodPhase::Running));
    let uid = PodUid::from("a");
    let image = world.fake.add_image(MODEL);
    let mounts = |name: &str| {
        let config = world.fake.config(&uid, name).expect("created");
        let volumes = config.mounts.into_iter().filter(|m| m.image.is_some());
        let all = volumes.map(|m| {
            let spec = m.image.expect("filtered");
            assert_eq!((&*spec.image, &*spec.user_image), (&*image, MODEL));
            assert!(m.read_only && m.host_path.is_empty());
            format!("{} {}", m.container_path, m.image_sub_path)
        });
        all.collect::<Vec<_>>()
    };
    assert_eq!(mounts("alone"), [""; 0]);
    assert_eq!(mounts("reads"), ["/v "]);
    assert_eq!(mounts("reads-too"), ["/a part/of", "/b "]);
    let used = |name: &str| {
        world
            .fake
            .container(&uid, name)
            .expect("there")
            .volume_images
    };
    assert_eq!(used("reads-too"), [image]);
    assert_eq!(used("alone"), [""; 0]);
}

#[test]
fn an_init_container_without_its_image_volume_holds_up_the_pod() {
    // IMG-21 ACT-04
    let world = World::new();
    let mount = json!([{"name": "v", "mountPath": "/v"}]);
    world.apply(&[manifest(
        "a",
        json!({
            "volumes": [{"name": "v", "image": {"reference": MODEL, "pullPolicy": "Never"}}],
            "initContainers": [{"name": "i", "image": IMAGE, "command": ["true"], "volumeMounts": mount}],
        }),
    )]);
    world.until("waits", |w| {
        waiting(w, "a", "i").is_some_and(|w| w.0 == "ErrImageNeverPull")
    });
    world.advance(s(60));
    assert!(world.fake.container(&"a".into(), "c").is_none());
    assert_eq!(
        waiting(&world, "a", "c").map(|w| w.0).as_deref(),
        Some("PodInitializing")
    );
}

#[test]
fn a_pod_that_is_to_end_waits_for_no_image_of_a_volume() {
    // PW-14 IMG-21
    let world = World::new();
    world.fake.add_fault(Fault {
        op: Op::PullImage,
        target: Some(MODEL.into()),
        times: 1,
        trouble: Trouble::Hangs,
    });
    world.apply(&[with_volume("a", json!({"reference": MODEL}))]);
    world.until("pulls", |w| w.fake.hanging(Op::PullImage) == 1);
    let before = world.now();
    world.apply(&[]);
    world.until("is gone", |w| w.is_gone("a"));
    assert!(world.now() - before < s(30));
}

#[test]
fn events_of_a_long_pull_name_the_server_that_is_asked() {
    // IMG-28
    let world = World::new();
    world.fake.add_fault(Fault {
        op: Op::PullImage,
        target: Some("a:1".into()),
        times: 1,
        trouble: Trouble::Hangs,
    });
    world.fake.set_pull_progress(ImageProgress {
        stage: ImageStage::Resolving,
        host: "mirror.example:5000".into(),
        ..ImageProgress::default()
    });
    let container = json!({"name": "c", "image": "a:1", "command": ["sleep"]});
    world.apply(&[manifest("a", json!({"containers": [container]}))]);
    let wanted = "Pulling image \"a:1\": resolving at mirror.example:5000";
    world.until("tells", |w| {
        let told = events(w, "Pulling");
        told.iter().any(|(_, message)| message == wanted)
    });
}

#[test]
fn what_was_pulled_is_noted_for_a_pod_that_is_to_end_too() {
    let world = World::new();
    world.fake.offer_image("a:1");
    world.fake.add_fault(Fault {
        op: Op::ImageStatus,
        target: Some(Fake::new().add_image("a:1")),
        times: 1,
        trouble: Trouble::Hangs,
    });
    let container = json!({"name": "c", "image": "a:1", "command": ["sleep"]});
    world.apply(&[manifest("a", json!({"containers": [container]}))]);
    world.until("looks", |w| w.fake.hanging(Op::ImageStatus) == 1);
    world.apply(&[]);
    world.advance(s(5));
    // Dropping a call before its end is a violation.
    world.fake.release(Op::ImageStatus);
    world.until("is gone", |w| w.is_gone("a"));
}

#[test]
fn a_container_is_made_of_what_lookup_or_pull_returned() {
    // IMG-19
    // The image as the pod has it, its reference, present before.
    for (written, reference, there) in [
        ("a:1", "a:1", true),
        ("a:1", "a:1", false),
        ("a", "a:latest", false),
        ("host:5000/deep/a", "host:5000/deep/a:latest", false),
    ] {
        let what = format!("{written} {there}");
        let world = World::new();
        if there {
            world.fake.add_image(reference);
        } else {
            world.fake.offer_image(reference);
        }
        let container = json!({"name": "c", "image": written, "command": ["sleep"]});
        world.apply(&[manifest("a", json!({"containers": [container]}))]);
        world.until(&what, |w| w.phase("a") == Some(PodPhase::Running));
        let config = world.fake.config(&"a".into(), "c").expect("created");
        assert_eq!(config.image, world.fake.add_image(reference), "{what}");
        assert_ne!(config.image, reference, "{what}: an id");
        assert_eq!(config.user_image, written, "{what}: as written");
    }
}

#[test]
fn a_runtime_that_refuses_is_the_reason_a_container_waits() {
    // WAIT-11 WAIT-01 ACT-07
    for (op, reason) in [
        (Op::CreateContainer, "CreateContainerError"),
        (Op::StartContainer, "RunContainerError"),
    ] {
        let world = World::new();
        world.fake.add_fault(fails(op, "c", 1));
        world.apply(&[manifest("a", json!({}))]);
        world.until(reason, |w| waiting(w, "a", "c").is_some());
        world.until(reason, |w| {
            waiting(w, "a", "c") == Some((reason.into(), "broken".into()))
        });
        assert_eq!(world.phase("a"), Some(PodPhase::Pending));
        let told = [("spec.containers{c}".to_owned(), "Error: broken".to_owned())];
        assert_eq!(events(&world, "Failed"), told, "{reason}");
        // A call that was refused once is tried again.
        world.until("runs", |w| w.phase("a") == Some(PodPhase::Running));
        assert_eq!(waiting(&world, "a", "c"), None);
    }
}

#[test]
fn whatever_keeps_a_container_from_starting_is_told_of_it() {
    // EVT-11 IMG-01 IMG-04 IMG-08
    type Told = &'static [(&'static str, &'static str)];
    // Name of the case, fields of the container, failing operation, waiting reason, events: reason and begin of the
    // message.
    let cases: [(&str, Value, Option<Op>, &str, Told); 6] = [
        (
            "it cannot be pulled",
            json!({"image": "registry.test/none:1"}),
            None,
            "ErrImagePull",
            &[
                ("Failed", "Failed to pull image \"registry.test/none:1\": "),
                ("Failed", "Error: ErrImagePull"),
            ],
        ),
        (
            "its name is none",
            json!({"image": "Not A Name"}),
            None,
            "InvalidImageName",
            &[(
                "InspectFailed",
                "Failed to apply default image tag \"Not A Name\": ",
            )],
        ),
        (
            "it must not be pulled",
            json!({"image": "registry.test/none:1", "imagePullPolicy": "Never"}),
            None,
            "ErrImageNeverPull",
            &[(
                "ErrImageNeverPull",
                "Container image \"registry.test/none:1\" is not present with pull policy of Never",
            )],
        ),
        (
            "what it asks for cannot be",
            json!({"securityContext": {"runAsNonRoot": true, "runAsUser": 0}}),
            None,
            "CreateContainerConfigError",
            &[("Failed", "Error: ")],
        ),
        (
            "it is not created",
            json!({}),
            Some(Op::CreateContainer),
            "CreateContainerError",
            &[("Failed", "Error: broken")],
        ),
        (
            "it is not started",
            json!({}),
            Some(Op::StartContainer),
            "RunContainerError",
            &[("Failed", "Error: broken")],
        ),
    ];
    for (name, fields, op, reason, expected) in cases {
        let world = World::new();
        if let Some(op) = op {
            world.fake.add_fault(fails(op, "c", 100));
        }
        let mut container = json!({"name": "c", "image": IMAGE, "command": ["sleep"]});
        for (key, value) in fields.as_object().expect("fields") {
            container[key] = value.clone();
        }
        world.apply(&[manifest("a", json!({"containers": [container]}))]);
        let told = |w: &World| {
            let all = w
                .parts
                .tools
                .recorder
                .newest_events(None, usize::MAX)
                .into_iter();
            let about = all.filter(|e| e.field_path == "spec.containers{c}");
            about
                .filter(|e| e.severity == EventSeverity::Warning)
                .collect::<Vec<_>>()
        };
        world.until(name, |w| {
            waiting(w, "a", "c").is_some_and(|(why, _)| why == reason) && !told(w).is_empty()
        });
        assert_eq!(world.phase("a"), Some(PodPhase::Pending), "{name}");
        let told = told(&world);
        for (reason, begins) in expected {
            assert!(
                told.iter()
                    .any(|e| e.reason == *reason && e.message.starts_with(begins)),
                "{name}: {reason} {begins} in {told:?}"
            );
        }
        let known = |reason: &str| expected.iter().any(|(known, _)| *known == reason);
        assert!(told.iter().all(|e| known(&e.reason)), "{name}: {told:?}");
    }
}

#[test]
fn a_program_that_cannot_be_started_is_a_reason_and_a_last_state() {
    // WAIT-11 WAIT-20 RTM-03
    let world = World::new();
    let command = |policy: &str| {
        json!({
            "restartPolicy": policy,
            "containers": [{"name": "c", "image": IMAGE, "command": ["/nonexistent/program"]}],
        })
    };
    let text = "exec /nonexistent/program: no such file or directory";
    world.apply(&[
        manifest("again", command("Always")),
        manifest("once", command("Never")),
    ]);
    let ended = |w: &World, uid: &str, over: bool| {
        let status = w.status(uid)?;
        let container = status.container_statuses.first()?;
        let state = match over {
            true => &container.state,
            false => &container.last_state,
        };
        let ended = state.terminated.clone()?;
        Some((ended.exit_code, ended.reason, ended.message))
    };
    let wanted = (128, "StartError".to_owned(), text.to_owned());
    world.until("waits, and says how it went", |w| {
        waiting(w, "again", "c") == Some(("RunContainerError".into(), text.into()))
            && ended(w, "again", false).as_ref() == Some(&wanted)
    });
    world.until("fails", |w| w.phase("once") == Some(PodPhase::Failed));
    assert_eq!(
        ended(&world, "once", true),
        Some(wanted),
        "nothing is due: it has ended"
    );
    assert_eq!(waiting(&world, "once", "c"), None);
}
