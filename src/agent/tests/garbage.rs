//! Leftovers that garbage collection removes.

use core::time::Duration;
use std::{fs, os::unix::fs::symlink};

use serde_json::json;

use super::world::{IMAGE, World, manifest};
use crate::{
    api::{PodUid, pod_status::PodPhase},
    runtime::{
        RuntimeError, RuntimeService as _,
        fake::{Fault, Op, Trouble},
    },
};

const fn s(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// Numbers of sandboxes and of container instances of a pod at the runtime.
fn counts(world: &World, uid: &str) -> (usize, usize) {
    let status = smol::future::block_on(world.fake.pod_status(&PodUid::from(uid))).expect("status");
    (status.sandboxes.len(), status.containers.len())
}

#[test]
fn dead_instances_and_sandboxes_go() {
    // GC-01 GC-03 GC-05
    let world = World::new();
    let crashes = json!([{"name": "c", "image": IMAGE, "command": ["sh", "-c", "exit 1"]}]);
    let pods = [
        manifest("crashes", json!({"containers": crashes})),
        manifest("lost", json!({})),
    ];
    world.apply(&pods);
    let uid = PodUid::from("crashes");
    world.until("has crashed often", |w| {
        w.fake
            .container(&uid, "c")
            .is_some_and(|c| c.restart_count >= 5)
    });
    for _ in 0..3 {
        world.until("runs", |w| w.phase("lost") == Some(PodPhase::Running));
        let one = world
            .fake
            .container(&PodUid::from("lost"), "c")
            .expect("runs");
        world.fake.lose_sandbox(&one.sandbox);
        world.until("another", |w| {
            let now = w.fake.container(&PodUid::from("lost"), "c");
            now.is_some_and(|now| now.sandbox != one.sandbox)
        });
    }
    world.advance(s(61));
    let (_, instances) = counts(&world, "crashes");
    assert!(
        instances <= 2,
        "the last one and the one before: {instances}"
    );
    let (sandboxes, instances) = counts(&world, "lost");
    assert!(sandboxes <= 2 && instances <= 2, "{sandboxes} {instances}");
    world.apply(&pods[1..]);
    world.until("is gone", |w| w.is_gone("crashes"));
}

#[test]
fn logs_and_links_of_nobody_go() {
    // GC-06
    let world = World::new();
    let (logs, links) = (world.dir().join("logs"), world.dir().join("links"));
    for dir in ["default_old_gone", "default_a-node_a", "somebodys"] {
        fs::create_dir_all(logs.join(dir).join("c")).expect("directory");
        fs::write(logs.join(dir).join("c/0.log"), "").expect("file");
    }
    let link = |name: &str, to: &std::path::Path| symlink(to, links.join(name)).expect("link");
    link(
        "old_default_c-0123.log",
        &logs.join("default_old_gone/c/0.log"),
    );
    link(
        "a-node_default_c-4567.log",
        &logs.join("default_a-node_a/c/7.log"),
    );
    link(
        "theirs_default_c-89ab.log",
        std::path::Path::new("/nowhere/0.log"),
    );
    world.advance(s(130));
    assert!(
        logs.join("default_old_gone").exists(),
        "whose it is cannot be told before the manifests were read"
    );
    world.apply(&[manifest("a", json!({}))]);
    world.advance(s(130));
    assert!(!logs.join("default_old_gone").exists());
    assert!(logs.join("default_a-node_a").exists() && logs.join("somebodys").exists());
    let left = |name: &str| links.join(name).is_symlink();
    assert!(!left("old_default_c-0123.log"), "its log is gone");
    assert!(!left("a-node_default_c-4567.log"), "its log never was");
    assert!(left("theirs_default_c-89ab.log"));
    assert_eq!(world.events_of("ContainerGCFailed"), 0);
}

#[test]
fn logs_of_what_runs_are_rotated() {
    // IGC-04 LOG-06 CRI-82
    let flags: &[&str] = &[
        "--container-log-max-size=1Ki",
        "--container-log-max-files=3",
    ];
    let off: &[&str] = &["--container-log-max-size=-1"];
    for (flags, rotates) in [(flags, true), (off, false)] {
        let world = World::with(flags, None);
        let once = json!({"restartPolicy": "Never"});
        world.apply(&[manifest("runs", json!({})), manifest("ended", once)]);
        world.until("run", |w| {
            [w.phase("runs"), w.phase("ended")] == [Some(PodPhase::Running); 2]
        });
        let found = |uid: &str| world.fake.container(&PodUid::from(uid), "c").expect("made");
        world.fake.exit(&found("ended").id, 0);
        world.until("ended", |w| w.phase("ended") == Some(PodPhase::Succeeded));
        let live = |uid: &str| std::path::PathBuf::from(found(uid).log_path);
        let write = |uid: &str, bytes: usize| {
            fs::create_dir_all(live(uid).parent().expect("directory")).expect("directory");
            fs::write(live(uid), "x".repeat(bytes)).expect("log");
        };
        let names = || {
            let dir = live("runs").parent().expect("directory").to_owned();
            let all = fs::read_dir(dir).expect("directory").flatten();
            let mut names: Vec<_> = all
                .map(|f| f.file_name().to_string_lossy().into_owned())
                .collect();
            names.sort();
            names
        };
        let reopened = || {
            let calls = world.fake.take_calls();
            calls.iter().filter(|(op, _)| *op == Op::ReopenLog).count()
        };
        write("ended", 2000);
        write("runs", 1023);
        reopened();
        world.advance(s(25));
        assert_eq!((reopened(), names()), (0, vec!["0.log".to_owned()]));
        write("runs", 1024);
        world.advance(s(11));
        if !rotates {
            assert_eq!((reopened(), names()), (0, vec!["0.log".to_owned()]));
            continue;
        }
        assert_eq!(reopened(), 1);
        let first = names();
        let form = |name: &str| {
            name.starts_with("0.log.20") && name.len() == "0.log.20231114-221320".len()
        };
        assert!(first.len() == 1 && form(&first[0]), "{first:?}");
        // The writer is told again to reopen its log, for its file is missing.
        world.advance(s(11));
        assert!(reopened() > 0);
        assert_eq!(names(), first);
        // The writer cannot be told: the file keeps its name.
        write("runs", 2000);
        world.fake.add_fault(Fault {
            op: Op::ReopenLog,
            target: None,
            times: 1,
            trouble: Trouble::Fails(RuntimeError::Failed("no".into())),
        });
        world.advance(s(11));
        assert!(live("runs").exists());
        for _ in 0..4 {
            write("runs", 2000);
            world.advance(s(11));
        }
        write("runs", 1);
        let names = names();
        let is_packed = |name: &String| name.ends_with(".gz");
        assert_eq!(names.len(), 3, "the live one with them: {names:?}");
        assert_eq!(
            names.iter().filter(|n| is_packed(n)).count(),
            1,
            "{names:?}"
        );
        assert!(
            names[0] == "0.log" && is_packed(&names[1]) && form(&names[2]),
            "{names:?}"
        );
        assert_eq!(fs::metadata(live("ended")).expect("log").len(), 2000);
    }
}

#[test]
fn a_failure_is_told_and_tried_again() {
    // GC-13 EVT-35
    let world = World::new();
    world.apply(&[manifest("a", json!({}))]);
    world.until("runs", |w| w.phase("a") == Some(PodPhase::Running));
    let one = world.fake.container(&PodUid::from("a"), "c").expect("runs");
    world.fake.add_fault(Fault {
        op: Op::RemovePodSandbox,
        target: None,
        times: 2,
        trouble: Trouble::Fails(RuntimeError::Failed("no".into())),
    });
    world.fake.lose_sandbox(&one.sandbox);
    for _ in 0..3 {
        // The last instance refers to the sandbox until the next one has ended.
        world.until("runs", |w| w.phase("a") == Some(PodPhase::Running));
        let now = world.fake.container(&PodUid::from("a"), "c").expect("runs");
        world.fake.exit(&now.id, 1);
        world.advance(s(100));
    }
    assert!(world.events_of("ContainerGCFailed") > 0);
    assert_eq!(counts(&world, "a").0, 1, "in the end it is gone");
}
