//! The pods of `tests/common/pods.rs` on real containers: of the direct backend, and of containerd.

#[path = "../common/pods.rs"]
pub(crate) mod pods;

use std::fs;

use serde_json::Value;

use crate::{
    containerd::{daemon, start},
    host::{self, Host, IMAGE, full},
};

/// All at once; then all are gone.
fn become_what_they_are_to(host: &Host, image: &str) {
    let cases = pods::cases(image);
    for case in &cases {
        host.pod(&case.name, case.spec.clone());
    }
    // A state may pass, as a back-off does: each look is at every pod that was not yet seen as it is to be.
    let mut open: Vec<_> = cases.iter().collect();
    for case in &cases {
        host.until(&case.name, |host| {
            let pods = host.pods();
            let missing = |case: &pods::Case| {
                let name = full(&case.name);
                let pod = pods.iter().find(|p| p["metadata"]["name"] == *name);
                case.missing(pod.unwrap_or(&Value::Null))
            };
            open.retain(|case| !missing(case).is_empty());
            let is_seen = open.iter().all(|left| left.name != case.name);
            (is_seen, missing(case).join("; "))
        });
    }
    for case in &cases {
        host.remove(&format!("{}.yaml", case.name));
    }
    for case in &cases {
        host.wait_gone(&case.name);
    }
    let left = host.pods();
    assert!(left.is_empty(), "{left:#?}");
    host.until("no pod has a directory", |host| {
        let left = fs::read_dir(host.path("root/pods"))
            .expect("directory")
            .count();
        (left == 0, left.to_string())
    });
}

#[test]
fn pods_on_the_direct_backend() {
    if host::able() {
        let host = Host::start(&[]);
        become_what_they_are_to(&host, IMAGE);
        host.finish();
    }
}

#[test]
fn pods_on_containerd() {
    let Some((containerd, host)) = start("pods_on_containerd") else {
        return;
    };
    become_what_they_are_to(&host, daemon::IMAGE);
    assert_eq!(containerd.tasks(), 0, "tasks");
    host.finish();
}
