//! Stopping all processes of a group for a while. Source: cgroups-v1 freezer-subsystem.rst, cgroup-v2.rst.

use core::time::Duration;
use std::{fs, io, path::PathBuf};

use super::{CgroupError, CgroupVersion, Hierarchy, read_control_file};

/// Longest wait until all stand still, and pause between two looks: a process that waits for a dead share never does.
const WAIT: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(2);

/// File to write, word for stop and for go on, file to look at, and its line once all stand still.
struct FreezerFiles {
    dir: PathBuf,
    write: &'static str,
    words: [&'static str; 2],
    look: &'static str,
    stopped: &'static str,
}

fn find_freezer_files(hierarchy: &Hierarchy, path: &str) -> Result<FreezerFiles, CgroupError> {
    let dir = hierarchy.controller_dir("freezer", path);
    let dir = dir.ok_or(CgroupError::NoController("freezer"))?;
    Ok(match hierarchy.cgroup_version() {
        CgroupVersion::V1 => FreezerFiles {
            dir,
            write: "freezer.state",
            words: ["FROZEN", "THAWED"],
            look: "freezer.state",
            stopped: "FROZEN",
        },
        CgroupVersion::V2 => FreezerFiles {
            dir,
            write: "cgroup.freeze",
            words: ["1", "0"],
            look: "cgroup.events",
            stopped: "frozen 1",
        },
    })
}

pub(super) async fn freeze(hierarchy: &Hierarchy, path: &str) -> Result<(), CgroupError> {
    let files = find_freezer_files(hierarchy, path)?;
    let write = files.dir.join(files.write);
    if let Err(e) = fs::write(&write, files.words[0]) {
        // A group that is being removed takes no word any more, and its directory is still there for a moment.
        if e.raw_os_error() == Some(libc::ENODEV) {
            async_io::Timer::after(LOOK).await;
        }
        return if files.dir.is_dir() {
            Err(CgroupError::at_path(&write, e))
        } else {
            Ok(())
        };
    }
    let look = files.dir.join(files.look);
    let rounds = WAIT.as_millis() / LOOK.as_millis();
    for _ in 0..rounds {
        match read_control_file(&look) {
            Ok(text) if text.lines().any(|line| line == files.stopped) => return Ok(()),
            Ok(_) => {}
            Err(_) if !files.dir.is_dir() => return Ok(()),
            Err(e) => return Err(CgroupError::at_path(&look, e)),
        }
        async_io::Timer::after(LOOK).await;
    }
    Err(CgroupError::at_path(&look, io::ErrorKind::TimedOut.into()))
}

pub(super) fn thaw(hierarchy: &Hierarchy, path: &str) -> Result<(), CgroupError> {
    let files = find_freezer_files(hierarchy, path)?;
    let write = files.dir.join(files.write);
    match fs::write(&write, files.words[1]) {
        Err(e) if files.dir.is_dir() => Err(CgroupError::at_path(&write, e)),
        _ => Ok(()),
    }
}
