//! Images as volumes.

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::host::{self, Host, IDLE, full, sh, status_of, text, with};

const MODEL: &str = "localhost/model:1";

/// Mounts of images in containers.
fn mounts(host: &Host) -> Vec<String> {
    let all = host.mounts().into_iter().map(|m| m.display().to_string());
    all.filter(|m| m.contains("/volumes/")).collect()
}

// IMG-21 VOL-18 VOL-26 GC-11 WAIT-13 OAV-01 OAV-03
#[test]
fn an_image_is_mounted_read_only_and_kept() {
    if !host::able() {
        return;
    }
    let mut host = Host::start(&[]);
    let reads = |name: &str, mounts: Value| with(sh(name, IDLE), json!({"volumeMounts": mounts}));
    host.pod(
        "reader",
        json!({
            "volumes": [{"name": "model", "image": {"reference": MODEL, "pullPolicy": "Never"}}],
            "containers": [
                reads("main", json!([
                    {"name": "model", "mountPath": "/all"},
                    {"name": "model", "mountPath": "/part", "subPath": "etc"},
                ])),
                reads("other", json!([{"name": "model", "mountPath": "/all", "subPathExpr": "./bin"}])),
                sh("alone", IDLE),
                reads("lost", json!([{"name": "model", "mountPath": "/all", "subPath": "not/there"}])),
            ],
        }),
    );
    // Until it is there only who does not need it runs.
    let pod = host.wait_pod("reader", "waits", |pod| {
        let waits =
            |name: &str| status_of(pod, name)["state"]["waiting"]["reason"] == "ErrImageNeverPull";
        waits("main") && waits("other") && status_of(pod, "alone")["ready"] == true
    });
    assert_eq!(pod["status"]["phase"], "Pending");
    let message = &status_of(&pod, "main")["state"]["waiting"]["message"];
    let wanted = format!("Container image \"{MODEL}\" is not present with pull policy of Never");
    assert_eq!(*message, json!(wanted));
    assert_eq!(mounts(&host), [""; 0]);
    let archive = host.path("model.tar").display().to_string();
    host.write_image("model.tar", MODEL, &json!({"Env": ["A=model"]}));
    host.ok(&["image", "import", &archive]);
    let pod = host.wait_pod("reader", "runs", |pod| {
        let lost = &status_of(pod, "lost")["state"]["waiting"];
        status_of(pod, "main")["ready"] == true
            && status_of(pod, "other")["ready"] == true
            && lost["reason"] == "CreateContainerError"
    });
    let message = &status_of(&pod, "lost")["state"]["waiting"]["message"];
    let wanted = format!(
        "ImageVolumeMountFailed: image \"{MODEL}\" at \"/all\": subPath \"not/there\" is not in the image"
    );
    assert_eq!(*message, json!(wanted));
    let mount = &status_of(&pod, "main")["volumeMounts"][1];
    let image = mount["volumeStatus"]["image"]["imageRef"].as_str();
    assert!(
        image.is_some_and(|image| image.starts_with("sha256:")),
        "{mount}"
    );
    assert_eq!(
        *mount,
        json!({"name": "model", "mountPath": "/part", "volumeStatus": {"image": {"imageRef": image}}})
    );
    let shown = host.ok(&["describe", "pod", &full("reader")]);
    for line in [
        "Type:        Image (a container image or OCI artifact)",
        "Reference:   localhost/model:1",
        "PullPolicy:  Never",
    ] {
        assert!(shown.contains(line), "{shown}");
    }

    let inside =
        |host: &Host, container: &str, script: &str| host.exec("reader", container, script);
    assert!(inside(&host, "main", "cat /part/passwd").starts_with("root:x:0:0:"));
    assert_eq!(
        inside(&host, "main", "/all/bin/busybox echo runs"),
        "runs\n"
    );
    assert_eq!(inside(&host, "other", "/all/busybox echo runs"), "runs\n");
    let refused = inside(
        &host,
        "main",
        "touch /all/new /part/new 2>&1; rm /part/passwd 2>&1; true",
    );
    assert_eq!(
        refused.matches("Read-only file system").count(),
        3,
        "{refused}"
    );
    assert_eq!(mounts(&host).len(), 2, "one for each container");

    // In use, for this agent and for one that knows of it from the records alone.
    let keeps = |host: &Host| {
        let removed = host.cli(&["image", "rm", MODEL]);
        assert!(!removed.status.success(), "{removed:?}");
        assert!(text(&removed.stderr).contains("use"), "{removed:?}");
        host.ok(&["image", "prune"]);
        assert!(host.ok(&["image", "ls"]).contains("localhost/model"));
    };
    keeps(&host);
    let before = host.pid("reader", "main");
    host.end_agent(Signal::SIGKILL);
    host.start_agent();
    host.wait_pod("reader", "is found again", |pod| {
        status_of(pod, "main")["ready"] == true
    });
    assert_eq!(host.pid("reader", "main"), before);
    keeps(&host);
    assert!(inside(&host, "main", "cat /part/passwd").starts_with("root:x:0:0:"));

    host.remove("reader.yaml");
    host.wait_gone("reader");
    host.until("its containers are removed", |host| {
        let left = mounts(host);
        (left.is_empty(), format!("{left:?}"))
    });
    host.until("nobody uses the image", |host| {
        let removed = host.cli(&["image", "rm", MODEL]);
        (removed.status.success(), format!("{removed:?}"))
    });
    host.finish();
}
