//! What `kubectl debug` does to a pod that runs: a container beside the others, in the processes of one of them.

use serde_json::{Value, json};

use crate::{
    host::{IDLE, IMAGE, PATIENCE, able, sh},
    pods::{cluster, finish, pod, wait_gone, wait_ready},
};

/// The container of that name, as the subresource takes it.
fn debugger(name: &str, script: &str, target: &str) -> Value {
    json!({"name": name, "image": IMAGE, "command": ["sh", "-c", script], "targetContainerName": target})
}

fn status_of<'a>(pod: &'a Value, name: &str) -> &'a Value {
    let all = pod["status"]["ephemeralContainerStatuses"].as_array();
    let mut all = all.into_iter().flatten();
    all.find(|c| c["name"] == name).unwrap_or(&Value::Null)
}

#[test]
fn a_container_beside_the_others() {
    // ACT-70 ACT-71 STAT-20
    if !able() {
        return;
    }
    let (host, server) = cluster(&[]);
    let script = format!("echo marked > /mark; {IDLE}");
    let containers = json!({"containers": [sh("c", &script), sh("other", IDLE)]});
    server.create(&pod("web", containers)).expect("create");
    let before = wait_ready(&server, "web");
    let add = |all: &[Value]| {
        let patch = json!({"spec": {"ephemeralContainers": all}});
        server
            .patch("pods", "default", "web", "ephemeralcontainers", &patch)
            .expect("patch");
    };
    let debug = debugger("debug", IDLE, "c");
    add(std::slice::from_ref(&debug));
    let wait = |name: &str, what: &str, holds: &dyn Fn(&Value) -> bool| {
        server.wait_for(what, PATIENCE, |view| {
            let pod = view.get("pods", "default", "web")?;
            holds(status_of(pod, name)).then(|| pod.clone())
        })
    };
    let pod = wait("debug", "it runs", &|status| {
        status["state"]["running"].is_object()
    });
    assert_eq!(
        before["status"]["containerStatuses"], pod["status"]["containerStatuses"],
        "the others go on as they were"
    );
    // It sees the processes of its target, and the files of the first through them, and nobody else's.
    let says = |container: &str, script: &str| {
        host.ok(&["exec", "web", "-c", container, "--", "sh", "-c", script])
    };
    assert_eq!(says("debug", "cat /proc/1/root/mark").trim(), "marked");
    let of =
        |container: &str, kind: &str| says(container, &format!("readlink /proc/self/ns/{kind}"));
    assert_eq!(of("debug", "pid"), of("c", "pid"));
    assert_ne!(of("debug", "pid"), of("other", "pid"));
    assert_eq!(of("debug", "net"), of("c", "net"));
    // Another one ends, and is not started again; one without a target has processes of its own.
    add(&[debug, debugger("once", "exit 7", "")]);
    let pod = wait("once", "it has ended", &|status| {
        status["state"]["terminated"].is_object()
    });
    let once = status_of(&pod, "once");
    assert_eq!(once["state"]["terminated"]["exitCode"], 7);
    assert_eq!(once["restartCount"], 0);
    let pod = wait_ready(&server, "web");
    assert_eq!(
        before["status"]["containerStatuses"],
        pod["status"]["containerStatuses"]
    );
    assert!(status_of(&pod, "debug")["state"]["running"].is_object());
    server
        .delete("pods", "default", "web", None)
        .expect("delete");
    wait_gone(&server, "web");
    finish(host, &server);
}
