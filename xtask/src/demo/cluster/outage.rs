//! The steps while the apiserver is away, and the end.

use std::time::Duration;

use super::{
    audit, objects,
    steps::{KEPT, STATIC, show_table},
    world::{GONE, Runs, START, World, expect, is_ready, is_true, name, runs, text, uid},
};
use crate::{
    Failure,
    demo::Show,
    stage::NODE,
    wait::{pass, until},
};

/// How long nobody answers while pods are only looked at.
const AWAY: Duration = Duration::from_secs(15);
/// The first sign of life after an outage: back-off, and the lease's pace.
const BACK: Duration = Duration::from_secs(60);
/// A static pod that comes while the apiserver is away.
const LATE: &str = "late";
/// Apps whose pods must not notice anything.
const KEEP: [&str; 2] = [STATIC, KEPT];

pub(super) fn all(show: &mut Show, world: &mut World<'_>) -> Result<(), Failure> {
    away(show, world)?;
    offline_start(show, world)?;
    end(show, world)
}

/// Processes of the apps that stay.
fn processes(world: &World<'_>) -> Result<Vec<u32>, Failure> {
    let mut all = Vec::new();
    for app in KEEP {
        all.extend(world.processes(app, 1)?);
    }
    Ok(all)
}

/// The same pods in the API, all ready; their runs.
fn seen(world: &World<'_>) -> Result<Runs, Failure> {
    let mut pods = Vec::new();
    for app in KEEP {
        pods.extend(world.ready(app, 1)?);
    }
    Ok(runs(&pods))
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, before: &T, now: &T) -> Result<(), Failure> {
    if before == now {
        Ok(())
    } else {
        Err(format!("{what} were {before:?}, are {now:?}").into())
    }
}

/// Waits until the node has given a sign of life since `before`, and is ready.
fn back(world: &World<'_>, before: &str) -> Result<String, Failure> {
    until(BACK, || {
        let beat = world.heartbeat()?;
        if beat == before {
            return Err("the node gives no sign of life".into());
        }
        is_true(&world.node()?, "Ready")?;
        Ok(String::new())
    })
}

fn away(show: &mut Show, world: &mut World<'_>) -> Result<(), Failure> {
    let mark = world.stage.mark.clone();
    let (before, pids) = (seen(world)?, processes(world)?);
    let beat = world.heartbeat()?;
    show.step("The apiserver stops: pods run on and can be seen", || {
        world.plane.down()?;
        pass(AWAY);
        same("processes", &pids, &processes(world)?)?;
        let shown = world.stage.client(&["get", "pods", "-A"])?;
        for pod in before.keys() {
            let row = shown.lines().find(|row| row.contains(pod.as_str()));
            if !row.is_some_and(|row| row.contains("Running")) {
                return Err(format!("get pods does not show {pod} Running").into());
            }
        }
        Ok(format!("{} pods", before.len()))
    })?;
    show.step("Meanwhile a static pod starts", || {
        let manifest = objects::static_pod(&mark, LATE, "one");
        let file = format!("{LATE}.yaml");
        world.stage.write_manifest(&file, &manifest)?;
        until(START, || world.processes(LATE, 1).map(|_| String::new()))
    })?;
    show.step(
        "It comes back: the node is Ready, nothing was restarted",
        || {
            world.plane.up()?;
            back(world, &beat)?;
            same("runs", &before, &seen(world)?)?;
            same("processes", &pids, &processes(world)?)?;
            until(START, || is_ready(&world.pod(&format!("{LATE}-{NODE}"))?))?;
            Ok(format!("processes {pids:?}"))
        },
    )?;
    world.stage.remove_manifest(&format!("{LATE}.yaml"))?;
    world.gone(LATE)
}

fn offline_start(show: &mut Show, world: &mut World<'_>) -> Result<(), Failure> {
    let mut uids = Vec::new();
    for app in KEEP {
        uids.extend(world.ready(app, 1)?.iter().map(uid));
    }
    let beat = world.heartbeat()?;
    show.step("The power is cut, and the apiserver is away", || {
        world.plane.down()?;
        let spared = world.plane.pids();
        world.stage.cut_power(&spared)?;
        for app in KEEP {
            world.no_process(app)?;
        }
        Ok("no process, mount, cgroup or run directory is left".into())
    })?;
    show.step("The next agent starts the pods from its disk", || {
        world.stage.start_agent()?;
        let pids = until(START, || processes(world))?;
        Ok(format!("processes {pids:?}"))
    })?;
    let pids = processes(world)?;
    show.step(
        "The apiserver comes back: they are the same pods, and run on",
        || {
            world.plane.up()?;
            back(world, &beat)?;
            let mut now = Vec::new();
            let runs = until(START, || {
                let runs = seen(world)?;
                // What the API has may be of before the power was cut.
                let local = world.stage.pods()?;
                for pod in &local {
                    let id = text(&pod["status"]["containerStatuses"][0]["containerID"]);
                    if !runs.values().any(|(of_api, _)| *of_api == id) {
                        return Err(format!("the API does not know how {} runs", name(pod)).into());
                    }
                }
                Ok(runs)
            })?;
            for app in KEEP {
                now.extend(world.pods(app)?.iter().map(uid));
            }
            // A mirror that was deleted meanwhile would be another, the others not.
            same("uids", &uids, &now)?;
            same("processes", &pids, &processes(world)?)?;
            let restarts: Vec<u64> = runs.values().map(|(_, restarts)| *restarts).collect();
            Ok(format!("restart counts {restarts:?}"))
        },
    )
}

fn end(show: &mut Show, world: &mut World<'_>) -> Result<(), Failure> {
    show_table(show, world, &["get", "pods", "-o", "wide"])?;
    show.step("The static pod goes", || {
        world.stage.remove_manifest(&format!("{STATIC}.yaml"))?;
        world.gone(STATIC)?;
        Ok(String::new())
    })?;
    let pod = world.pod(KEPT)?;
    show.step(
        "stop --all ends what is left, and the API still wants it",
        || {
            world.stage.stop_all()?;
            world.no_process(KEPT)?;
            let now = world.pod(KEPT)?;
            same("uids", &uid(&pod), &uid(&now))?;
            expect(&now["status"]["phase"], "Running")?;
            Ok(String::new())
        },
    )?;
    show.step("So the next agent starts it, until it is deleted", || {
        world.stage.start_agent()?;
        until(START, || world.processes(KEPT, 1))?;
        until(START, || is_ready(&world.pod(KEPT)?))?;
        let path = format!("/api/v1/namespaces/default/pods/{KEPT}");
        world.plane.client.delete(&path, None)?;
        world.gone(KEPT)?;
        world.stage.stop_all()?;
        Ok(String::new())
    })?;
    show.step(
        "No request was one that a kubelet would not have sent",
        || {
            let asked = world.plane.asked()?;
            let wrong: Vec<String> = asked
                .iter()
                .filter(|asked| asked.is_wrong())
                .map(|a| format!("{} {} {} {}", a.verb, a.uri, a.code, a.fault))
                .collect();
            if !wrong.is_empty() {
                return Err(format!("{}:\n  {}", wrong.len(), wrong.join("\n  ")).into());
            }
            let by_node = asked
                .iter()
                .any(|a| a.user == format!("system:node:{NODE}"));
            if !by_node {
                return Err("the log has nothing of the node".into());
            }
            Ok(format!("{} requests", asked.len()))
        },
    )?;
    println!("  {}", audit::summary(&world.plane.asked()?));
    Ok(())
}

/// After the control plane has ended.
pub(super) fn nothing_left(show: &mut Show, stage: &crate::stage::Stage) -> Result<(), Failure> {
    show.step("Nothing is left behind", || {
        stage.dismantle()?;
        // The kernel takes a namespace's interfaces down a moment after its last process.
        until(GONE, || match stage.traces() {
            traces if traces.is_empty() => Ok(()),
            traces => Err(traces.join(", ").into()),
        })?;
        stage.remove_dirs()?;
        Ok("no process, mount, cgroup, interface, filter rule or directory".into())
    })
}
