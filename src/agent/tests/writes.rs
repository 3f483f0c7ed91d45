//! Pods that write much to the disk.

use alloc::{rc::Rc, sync::Arc};
use core::time::Duration;
use std::fs;

use serde_json::json;

use super::world::{World, manifest};
use crate::agent::{record::read_boot_id, write_watch::WriteWatch};

const TEN_MINUTES: Duration = Duration::from_secs(600);

fn watch(world: &World) {
    let (tools, machine) = (&world.parts.tools, &world.parts.machine);
    let watch = WriteWatch {
        cgroups: Arc::clone(&machine.cgroups),
        pod_cgroups: machine.pod_cgroups.clone(),
        disk: machine.disk.clone(),
        clock: Rc::clone(&tools.clock),
        recorder: Rc::clone(&tools.recorder),
        asker: world.asker.clone(),
        run_dir: world.parts.cfg.dirs.run.clone(),
        boot_id: read_boot_id(),
        on: ("mmcblk0".into(), "179:0".into()),
    };
    world.executor.spawn(watch.watch_writes()).detach();
    world.settle();
}

#[test]
fn a_pod_that_writes_much_is_told_of_once() {
    // WEAR-07
    let world = World::new();
    let both = [manifest("a", json!({})), manifest("b", json!({}))];
    world.apply(&both);
    let tier = world.dir().join("cgroup/kubepods/besteffort");
    let wrote = |uid: &str, bytes: u64| {
        let dir = tier.join(format!("pod{uid}"));
        fs::create_dir_all(&dir).expect("directory");
        let text = format!("8:0 rbytes=1 wbytes=9\n179:0 rbytes=7 wbytes={bytes} rios=1\n");
        fs::write(dir.join("io.stat"), text).expect("file");
    };
    wrote("a", 5 << 30);
    watch(&world);
    let told = |world: &World| world.events_of("WritesMuch");
    assert_eq!(told(&world), 0, "nobody knows since when");
    wrote("a", (6 << 30) + 1);
    wrote("b", 1 << 30);
    world.advance(TEN_MINUTES);
    world.until("it is told", |w| told(w) == 1);
    let events = world.parts.tools.recorder.newest_events(None, usize::MAX);
    let event = events.iter().find(|e| *e.reason == *"WritesMuch");
    let message = &event.expect("told").message;
    assert!(message.contains("1 GiB to mmcblk0 in a day"), "{message}");
    wrote("a", 9 << 30);
    world.advance(TEN_MINUTES);
    assert_eq!(told(&world), 1, "once a day");
    // The next agent goes on with the counts of this one, whatever the clock says.
    world.jump(400 * 24 * 3600);
    let world = world.restart_agent();
    world.apply(&both);
    wrote("a", 20 << 30);
    wrote("b", (1 << 30) + 1);
    let before = told(&world);
    watch(&world);
    world.advance(TEN_MINUTES);
    world.until("the other is told of", |w| told(w) == before + 1);
    world.advance(TEN_MINUTES);
    assert_eq!(told(&world), before + 1);
}
