//! A node of a cluster on containerd: what the cluster sees while containerd hangs, while it is gone, and when it is back.

#[path = "../common/containerd.rs"]
pub(crate) mod daemon;

use core::time::Duration;
use std::fs;

use picolet::sys::clock;
use picolet_test_apiserver::TestServer;
use serde_json::{Value, json};

use self::daemon::Containerd;
use crate::host::{Host, IDLE, PATIENCE, full, pause, sh, with};
use crate::member::condition;
use crate::pods::{cluster_with, finish, pod, wait_gone, wait_ready};

/// How long containerd hangs: more than twice the deadline of a call, and shorter than pods bear a node that is not ready.
const HANG: Duration = Duration::from_mins(5);
/// Between two looks at a node that is to stay as it is.
const LOOK: Duration = Duration::from_secs(1);

fn idle() -> Value {
    let fields = json!({"image": daemon::IMAGE, "imagePullPolicy": "Never"});
    json!({"containers": [with(sh("c", IDLE), fields)]})
}

/// Name, uid, container and restart count of a pod.
fn identity(pod: &Value) -> (Value, Value, Value) {
    let status = &pod["status"]["containerStatuses"][0];
    let of = |value: &Value| value.clone();
    (
        of(&pod["metadata"]["uid"]),
        of(&status["containerID"]),
        of(&status["restartCount"]),
    )
}

fn ready_condition(server: &TestServer) -> Value {
    let node = server.get("nodes", "", crate::host::NODE).expect("a node");
    condition(&node, "Ready").clone()
}

fn wait_node(server: &TestServer, status: &str) {
    let what = format!("Ready is {status}");
    server.wait_for(&what, PATIENCE, |view| {
        let node = view.get("nodes", "", crate::host::NODE)?;
        (condition(node, "Ready")["status"] == status).then_some(())
    });
}

/// Static and API pods come, go and stay while `trouble` lasts; afterwards each is there once, or gone.
fn survives(
    host: &Host,
    server: &TestServer,
    containerd: &mut Containerd,
    round: &str,
    trouble: impl FnOnce(&mut Containerd, &dyn Fn()),
) {
    let named = |kind: &str, what: &str| format!("{kind}-{what}-{round}");
    let (api, fixed) = (
        |what: &str| named("api", what),
        |what: &str| named("static", what),
    );
    for what in ["stays", "goes"] {
        server.create(&pod(&api(what), idle())).expect("pod");
        host.pod(&fixed(what), idle());
    }
    let mirror = |what: &str| full(&fixed(what));
    let stays = || {
        let names = [api("stays"), mirror("stays")];
        names.map(|name| identity(&wait_ready(server, &name)))
    };
    let before = stays();
    wait_ready(server, &api("goes"));
    wait_ready(server, &mirror("goes"));
    wait_node(server, "True");
    trouble(containerd, &|| {
        server.create(&pod(&api("late"), idle())).expect("pod");
        host.pod(&fixed("late"), idle());
        server
            .delete("pods", "default", &api("goes"), None)
            .expect("deleted");
        host.remove(&format!("{}.yaml", fixed("goes")));
        wait_node(server, "False");
        let pod = server.get("pods", "default", &api("stays")).expect("a pod");
        assert_eq!(pod["status"]["phase"], "Running", "none counts as lost");
    });
    wait_node(server, "True");
    wait_ready(server, &api("late"));
    wait_ready(server, &mirror("late"));
    wait_gone(server, &api("goes"));
    wait_gone(server, &mirror("goes"));
    assert_eq!(stays(), before, "nothing was started anew");
    host.until("a sandbox and a container for each of four pods", |_| {
        let tasks = containerd.tasks();
        (tasks == 2 * 4, tasks.to_string())
    });
    for what in ["stays", "late"] {
        server
            .delete("pods", "default", &api(what), None)
            .expect("deleted");
        host.remove(&format!("{}.yaml", fixed(what)));
        wait_gone(server, &api(what));
        wait_gone(server, &mirror(what));
    }
    host.until("containerd runs nothing any more", |_| {
        let tasks = containerd.tasks();
        (tasks == 0, tasks.to_string())
    });
}

#[test]
#[ignore = "takes minutes"]
fn containerd_hangs_for_five_minutes_and_loses_its_socket() {
    // CRI-90 CRI-92
    if let Some(why) = daemon::missing() {
        skipped!("five minutes without containerd: {why}");
        return;
    }
    let mut containerd = Containerd::start();
    let endpoint = format!("unix://{}", containerd.socket().display());
    let server = TestServer::builder().start().expect("server");
    let (host, server) = cluster_with(server, &["--container-runtime-endpoint", &endpoint]);
    survives(
        &host,
        &server,
        &mut containerd,
        "hang",
        |containerd, meanwhile| {
            let hung = containerd.hang();
            let end = clock::mono_now() + HANG;
            meanwhile();
            while clock::mono_now() < end {
                let ready = ready_condition(&server);
                assert_eq!(ready["status"], "False", "{ready}");
                // Its local commands answer all the time.
                host.ok(&["get", "pods", "-A"]);
                pause(LOOK);
            }
            drop(hung);
        },
    );
    survives(
        &host,
        &server,
        &mut containerd,
        "socket",
        |containerd, meanwhile| {
            fs::remove_file(containerd.socket()).expect("removed");
            // A connection that is there needs no file: containerd loses it too, and its name is nowhere.
            containerd.kill();
            meanwhile();
            containerd.run();
        },
    );
    finish(host, &server);
}
