//! Images that a disk has damaged.

use std::fs;
use std::path::PathBuf;
use std::process::Output;

use nix::sys::signal::Signal;
use serde_json::json;

use crate::host::{self, Host, IDLE, sh, status_of, text};

const DROPPED: &str = "localhost/dropped:2";

/// The directory of the layer that all images of these tests share.
fn layer(host: &Host) -> PathBuf {
    let list = fs::read_dir(host.path("root/images/layers")).expect("layers");
    let mut dirs = list.map(|e| e.expect("entry").path());
    let layer = dirs.find(|dir| !dir.ends_with("empty"));
    layer.expect("a layer")
}

fn verify(host: &Host, words: &[&str]) -> (Option<i32>, String) {
    let said: Output = host.cli(&[&["image", "verify", "--quiet"], words].concat());
    assert!(said.stderr.is_empty(), "{}", text(&said.stderr));
    (said.status.code(), text(&said.stdout))
}

#[test]
fn damaged_images_are_named_and_come_again() {
    if !host::able() {
        return;
    }
    let mut host = Host::start(&[]);
    host.write_image("images/dropped.tar", DROPPED, &json!({"Env": ["A=b"]}));
    host.write(
        "user.yaml",
        &host::manifest("user", json!({"containers": [sh("c", IDLE)]})).to_string(),
    );
    let listed = |host: &Host| {
        let table = host.ok(&["image", "ls"]);
        (table.contains("localhost/dropped"), table)
    };
    host.until("the dropped image is imported", listed);
    host.until("the pod runs", |host| {
        let pod = host.get("user");
        (status_of(&pod, "c")["ready"] == true, pod.to_string())
    });
    let fine = (
        Some(0),
        "2 images with 1 layers checked, 0 damaged\n".to_owned(),
    );
    assert_eq!(verify(&host, &[]), fine);

    fs::write(layer(&host).join("harm"), "").expect("harmed");
    let (code, said) = verify(&host, &[]);
    assert_eq!(code, Some(1));
    for image in [host::IMAGE, DROPPED] {
        let line = said.lines().find(|l| l.starts_with(image)).expect(image);
        assert!(line.contains("files and directories"), "{said}");
    }
    // A container uses the one, and with it the layer of the other.
    let (code, said) = verify(&host, &["--repair"]);
    assert_eq!(
        (code, said.matches("Kept: ").count()),
        (Some(1), 2),
        "{said}"
    );
    assert!(listed(&host).0);

    host.remove("user.yaml");
    host.until("nobody uses them", |host| {
        let (code, said) = verify(host, &["--repair"]);
        assert_eq!(code, Some(1), "{said}");
        (said.matches("Deleted: ").count() == 2, said)
    });
    // One lies in the drop-in directory; the other one has nowhere to come from.
    host.until("the dropped image is imported again", listed);
    assert!(!listed(&host).1.contains("localhost/busybox"));
    let fine = (
        Some(0),
        "1 images with 1 layers checked, 0 damaged\n".to_owned(),
    );
    assert_eq!(verify(&host, &[]), fine);

    // Without an agent too, but never beside one.
    let root = host.path("root").display().to_string();
    let refused = host.cli(&["image", "verify", "--root-dir", &root]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("is used by a running agent"));
    host.end_agent(Signal::SIGTERM);
    assert_eq!(verify(&host, &["--root-dir", &root]), fine);
    fs::write(layer(&host).join("harm"), "").expect("harmed");
    let (code, said) = verify(&host, &["--root-dir", &root]);
    assert!(code == Some(1) && said.starts_with(DROPPED), "{said}");
}
