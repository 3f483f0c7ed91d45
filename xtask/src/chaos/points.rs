//! The crash points: found in the sources, each met once.

use std::{fs, os::unix::process::ExitStatusExt, path::Path, time::Duration};

use super::{
    cluster::Cluster,
    world::{Kind, World},
};
use crate::{
    Failure,
    wait::{Watch, pass},
};

/// By then an agent, or a shim, has come to its point under churn that leads there.
const REACH_LIMIT: Duration = Duration::from_secs(45);
/// Between two things done on the way; in a quick run, which settles less often, too.
const STEP: Duration = Duration::from_millis(300);
const QUICK_STEP: Duration = Duration::from_millis(120);
/// Passed while a launch is undone that an agent left which died at [`LAUNCHED`].
const UNDOING: [&str; 2] = ["recover.abandoned", "recover.cleared"];
const LAUNCHED: &str = "container.launched";
/// Those that only an agent with an apiserver comes to, by the beginnings of their names.
const IN_CLUSTER: [&str; 6] = [
    "certificate.",
    "deletion.",
    "mirror.",
    "object.",
    "resize.",
    "status.",
];
/// The variable and the file of `sys::crash`.
const VARIABLE: &str = "PICOLET_CRASH_AT";
pub(super) const SHIM_MARK: &str = "crashed-";

/// Names of all points in the sources below `dir`, sorted. Each is there once.
pub(super) fn all(dir: &Path) -> Result<Vec<String>, Failure> {
    let mut found = Vec::new();
    collect(dir, &mut found)?;
    found.sort();
    for pair in found.windows(2) {
        if pair[0] == pair[1] {
            return Err(format!("crash point {} is there twice", pair[0]).into());
        }
    }
    if found.is_empty() {
        return Err(format!("no crash point in {}", dir.display()).into());
    }
    Ok(found)
}

fn collect(dir: &Path, found: &mut Vec<String>) -> Result<(), Failure> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, found)?;
        } else if path.extension().is_some_and(|e| e == "rs") {
            let text = fs::read_to_string(&path)?;
            for call in ["crash::point(\"", "crash::shim_point(\""] {
                found.extend(
                    text.split(call)
                        .skip(1)
                        .filter_map(|rest| rest.split('"').next())
                        .map(str::to_owned),
                );
            }
        }
    }
    Ok(())
}

/// Whether only an agent with an apiserver comes to this point.
pub(super) fn is_of_cluster(point: &str) -> bool {
    IN_CLUSTER.iter().any(|begin| point.starts_with(begin))
}

/// Starts an agent that dies at `point`, leads it there, and starts another one.
pub(super) fn meet(world: &mut World, point: &str, quick: bool) -> Result<(), Failure> {
    world.stage.kill_agent()?;
    if UNDOING.contains(&point) {
        reach(world, LAUNCHED, quick)?;
    }
    if point.starts_with("certificate.") {
        Cluster::forget_identity(&world.stage)?;
    }
    reach(world, point, quick)?;
    world.stage.start_agent()
}

fn reach(world: &mut World, point: &str, quick: bool) -> Result<(), Failure> {
    let of_shim = point.starts_with("shim.");
    let mark = world.stage.run.join(format!("{SHIM_MARK}{point}"));
    let nth = match point {
        "recover.container" => 1 + world.rng.below(4),
        // The first ones are those of all pods together.
        "cgroup.made" => 5 + world.rng.below(4),
        "status.due" | "status.answered" => 1 + world.rng.below(4),
        _ if point.starts_with("object.") => 1 + world.rng.below(3),
        _ => 1,
    };
    world.stage.variables = vec![(VARIABLE, format!("{point}:{nth}"))];
    world.stage.spawn_agent()?;
    world.stage.variables.clear();
    let watch = Watch::start();
    let mut step = 0;
    loop {
        match world.stage.agent_ended()? {
            Some(status) if status.signal() == Some(9) && !of_shim => return Ok(()),
            Some(status) => {
                let end = world.stage.end_of_agent(status);
                return Err(format!("{point}: {end}").into());
            }
            // It stays: other shims of this agent know the point, too.
            None if of_shim && fs::metadata(&mark).is_ok_and(|m| m.len() > 0) => {
                world.stage.kill_agent()?;
                world.lost_shim(Path::new(&fs::read_to_string(&mark)?));
                return Ok(());
            }
            None => {}
        }
        if watch.elapsed() > REACH_LIMIT {
            return Err(format!("{point} was not reached: {:?}", world.told()).into());
        }
        match world.cluster.is_some() {
            true => lead_member(world, step)?,
            false => lead(world, step)?,
        }
        step += 1;
        pass(if quick { QUICK_STEP } else { STEP });
    }
}

/// One step of a tour along all that an agent does.
fn lead(world: &mut World, step: usize) -> Result<(), Failure> {
    match step % 24 {
        0 => {
            world.add(Kind::Full)?;
            world.remove_oldest(Kind::Full).map(drop)
        }
        1 => world.add(Kind::Broken),
        2 => world.drop_image(),
        3 => world.add(Kind::Plain),
        4 => {
            world.remove_oldest(Kind::Plain)?;
            world.remove_oldest(Kind::Broken).map(drop)
        }
        5 => world.add(Kind::Lamp),
        6 => world.add(Kind::Job),
        8 => world.kill_shim().map(drop),
        9 => {
            world.remove_known_image();
            Ok(())
        }
        10 => world.remove_oldest(Kind::Job).map(drop),
        11 => world.remove_oldest(Kind::Lamp).map(drop),
        _ => Ok(()),
    }
}

/// The same for what an agent does in a cluster.
fn lead_member(world: &mut World, step: usize) -> Result<(), Failure> {
    match step % 12 {
        0 => {
            world.add(Kind::Member)?;
            world.remove_oldest(Kind::Member).map(drop)
        }
        1 => world.add(Kind::Task),
        2 => world.add(Kind::Plain),
        3 => world.edit_any(),
        4 => world.remove_oldest(Kind::Task).map(drop),
        5 => world.remove_oldest(Kind::Plain).map(drop),
        6 => world.hold_session(),
        7 => world.kill_shim().map(drop),
        8 => world.resize_any(),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_once() {
        let points = all(Path::new("../src")).unwrap();
        assert!(points.len() > 50, "{points:?}");
        for part in [
            "sandbox.",
            "container.",
            "network.",
            "image.",
            "pod.",
            "volume.",
            "shim.",
            "outcome.",
        ]
        .iter()
        .chain(&IN_CLUSTER)
        {
            assert!(points.iter().any(|p| p.starts_with(part)), "{part}");
        }
    }
}
