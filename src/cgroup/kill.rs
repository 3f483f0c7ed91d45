//! Emptying and removing groups.

use core::time::Duration;
use std::{
    fs, io,
    path::{Path, PathBuf},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::{CgroupError, CgroupVersion, Hierarchy, read_control_file};
use crate::api::order::OrderExt;

/// Rounds of "kill all, try to remove" before giving up (RES-16).
pub(super) const ROUNDS: u32 = 5;
/// Wait after the first round; it quadruples, so that all rounds together take about 0.7 s.
const FIRST_WAIT: Duration = Duration::from_millis(2);
/// Levels that are followed below a pod's group: pod, container, and groups that a container nests itself.
const MAX_DEPTH: usize = 16;

/// Processes of `path` and below in any hierarchy, sorted, each once.
pub(super) fn list_pids(hierarchy: &Hierarchy, path: &str) -> Vec<i32> {
    let mut all = Vec::new();
    for dir in hierarchy.mounted_dirs(path) {
        for group in subtree(&dir) {
            let Ok(text) = read_control_file(&group.join("cgroup.procs")) else {
                continue;
            };
            // 0 stands for a process of a foreign PID namespace: not ours to signal.
            all.extend(
                text.lines()
                    .filter_map(|l| l.parse::<i32>().ok())
                    .filter(|p| *p > 0),
            );
        }
    }
    all.stable_sort();
    all.dedup();
    all
}

pub(super) fn kill_once(hierarchy: &Hierarchy, path: &str) -> usize {
    let found = list_pids(hierarchy, path);
    if found.is_empty() {
        return 0;
    }
    // Since Linux 5.14 one write kills all, faster than any fork.
    if hierarchy.cgroup_version() == CgroupVersion::V2
        && let Some(dir) = hierarchy.controller_dir("", path)
        && fs::write(dir.join("cgroup.kill"), "1").is_ok()
    {
        return found.len();
    }
    for pid in &found {
        // The process may have ended meanwhile.
        let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
    }
    thaw_v1_groups(hierarchy, path);
    found.len()
}

/// Thaws all groups in version 1, where a frozen process takes no signal.
fn thaw_v1_groups(hierarchy: &Hierarchy, path: &str) {
    if hierarchy.cgroup_version() == CgroupVersion::V1
        && let Some(dir) = hierarchy.controller_dir("freezer", path)
    {
        for group in subtree(&dir) {
            // Without the file nothing was frozen.
            let _ = fs::write(group.join("freezer.state"), "THAWED");
        }
    }
}

/// Stops all forks in the group, so that processes cannot multiply faster than they are killed. For groups that are
/// about to be removed; without the controller nothing is done.
fn stop_forks(hierarchy: &Hierarchy, path: &str) {
    if let Some(dir) = hierarchy.controller_dir("pids", path) {
        let _ = fs::write(dir.join("pids.max"), "0");
    }
}

pub(super) async fn drain(hierarchy: &Hierarchy, path: &str) -> Result<(), CgroupError> {
    let mut wait = FIRST_WAIT;
    for _ in 0..ROUNDS {
        if kill_once(hierarchy, path) == 0 {
            return Ok(());
        }
        stop_forks(hierarchy, path);
        async_io::Timer::after(wait).await;
        wait *= 4;
    }
    match list_pids(hierarchy, path).len() {
        0 => Ok(()),
        left => Err(CgroupError::Busy {
            path: path.to_owned(),
            left,
        }),
    }
}

pub(super) async fn destroy(hierarchy: &Hierarchy, path: &str) -> Result<(), CgroupError> {
    let mut wait = FIRST_WAIT;
    let mut last = Ok(());
    for _ in 0..ROUNDS {
        if kill_once(hierarchy, path) > 0 {
            stop_forks(hierarchy, path);
        }
        last = remove(hierarchy, path);
        match &last {
            Ok(()) => return Ok(()),
            Err(CgroupError::Io { source, .. }) if is_busy_error(source) => {}
            Err(_) => return last,
        }
        async_io::Timer::after(wait).await;
        wait *= 4;
    }
    match last {
        Err(CgroupError::Io { source, .. }) if is_busy_error(&source) => Err(CgroupError::Busy {
            path: path.to_owned(),
            left: list_pids(hierarchy, path).len(),
        }),
        other => other,
    }
}

fn is_busy_error(e: &io::Error) -> bool {
    e.kind() == io::ErrorKind::ResourceBusy || e.kind() == io::ErrorKind::DirectoryNotEmpty
}

fn remove(hierarchy: &Hierarchy, path: &str) -> Result<(), CgroupError> {
    for dir in hierarchy.mounted_dirs(path) {
        let mut groups = subtree(&dir);
        groups.reverse(); // children before parents
        for group in groups {
            match fs::remove_dir(&group) {
                Ok(()) => {}
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Err(CgroupError::at_path(&group, e)),
            }
        }
    }
    Ok(())
}

/// `dir` and all groups below it, parents first. Empty if `dir` does not exist.
fn subtree(dir: &Path) -> Vec<PathBuf> {
    fn walk(dir: &Path, depth: usize, out: &mut Vec<PathBuf>) {
        let Ok(entries) = fs::read_dir(dir) else {
            return;
        };
        out.push(dir.to_owned());
        if depth == 0 {
            return;
        }
        for entry in entries.flatten() {
            if entry.file_type().is_ok_and(|t| t.is_dir()) {
                walk(&entry.path(), depth - 1, out);
            }
        }
    }
    let mut out = Vec::new();
    walk(dir, MAX_DEPTH, &mut out);
    out
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::super::Cgroups;
    use crate::api::cri::LinuxResources;

    /// A process that only SIGKILL ends.
    fn stubborn() -> Child {
        let mut command = Command::new("sh");
        // It starts no child: a child started before the move into the group would stay behind.
        command.args(["-c", "trap '' TERM INT HUP; echo; read never"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("sh");
        let mut line = String::new();
        let mut said = std::io::BufReader::new(child.stdout.as_mut().expect("pipe"));
        std::io::BufRead::read_line(&mut said, &mut line).expect("it has set its traps");
        child
    }

    /// The machine's groups, with one for a pod; where that cannot be made the test says so.
    fn groups_with(path: &str, test: &str) -> Option<Cgroups> {
        let made = Cgroups::detect().and_then(|groups| {
            groups.create_group(path, &LinuxResources::default())?;
            Ok(groups)
        });
        match made {
            Ok(groups) => Some(groups),
            Err(e) => {
                skipped!("{test}: {e}");
                None
            }
        }
    }

    #[test]
    fn what_multiplies_is_stopped_first() {
        // RTM-06 RES-16
        let path = format!("/picolet-forks-{}/pod1", std::process::id());
        let Some(groups) = groups_with(&path, "what_multiplies_is_stopped_first") else {
            return;
        };
        if groups.hierarchy.controller_dir("pids", &path).is_none() {
            skipped!("what_multiplies_is_stopped_first: there is no pids controller");
            return;
        }
        let mut command = Command::new("sh");
        command.args(["-c", "read go; (:); echo made; read go; (:); echo made"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("sh");
        let pid = i32::try_from(child.id()).expect("pid");
        let leaf = format!("{path}/c");
        groups.create_leaf(&leaf).expect("leaf");
        groups.move_process(&leaf, pid).expect("joined");
        let mut said = std::io::BufReader::new(child.stdout.take().expect("pipe"));
        let mut stdin = child.stdin.take().expect("pipe");
        let mut go = || {
            let mut line = String::new();
            std::io::Write::write_all(&mut stdin, b"go\n").expect("written");
            std::io::BufRead::read_line(&mut said, &mut line).expect("read");
            line
        };
        assert_eq!(go(), "made\n");
        super::stop_forks(&groups.hierarchy, &path);
        // The shell gives up.
        assert_eq!(go(), "");
        child.wait().expect("ended");
        let (parent, _) = path.rsplit_once('/').expect("a parent");
        smol::future::block_on(groups.destroy_group(&path)).expect("destroyed");
        groups.remove_empty_group(parent);
    }

    #[test]
    fn what_is_left_in_a_group_is_killed_and_the_group_removed() {
        // RES-16 CG-06
        let path = format!("/picolet-kill-{}/pod1", std::process::id());
        let Some(groups) = groups_with(
            &path,
            "what_is_left_in_a_group_is_killed_and_the_group_removed",
        ) else {
            return;
        };
        let (parent, _) = path.rsplit_once('/').expect("a parent");
        // On version 2 processes are in leaves only.
        let leaves = ["c/deeper", "d"].map(|leaf| format!("{path}/{leaf}"));
        let mut children: Vec<Child> = Vec::new();
        for leaf in &leaves {
            groups.create_leaf(leaf).expect("leaf");
            for _ in 0..2 {
                let child = stubborn();
                let pid = i32::try_from(child.id()).expect("pid");
                groups.move_process(leaf, pid).expect("joined");
                children.push(child);
            }
        }
        let mut inside: Vec<i32> = children
            .iter()
            .map(|child| i32::try_from(child.id()).expect("pid"))
            .collect();
        inside.sort_unstable();
        let found = groups.list_pids(&path);
        assert!(inside.iter().all(|pid| found.contains(pid)), "{found:?}");

        // While its volumes are there, it only has next to no processor.
        groups.reduce_cpu(&path).expect("reduced");
        if let Some(dir) = groups.hierarchy.controller_dir("cpu", &path) {
            let read = |file: &str| std::fs::read_to_string(dir.join(file)).ok();
            let least = [("cpu.shares", "2\n"), ("cpu.weight", "1\n")];
            assert!(
                least
                    .iter()
                    .any(|(file, value)| read(file).as_deref() == Some(value)),
                "{}",
                dir.display()
            );
        }
        assert_eq!(groups.list_pids(&path), found, "and all goes on");

        // A machine that is short of processors takes longer to end them than one call waits.
        const CALLS: usize = 100;
        let destroy = || smol::future::block_on(groups.destroy_group(&path));
        let done = core::iter::repeat_with(destroy)
            .take(CALLS)
            .find(|done| !matches!(done, Err(crate::cgroup::CgroupError::Busy { .. })));
        done.expect("not busy for ever").expect("destroyed");
        for child in &mut children {
            use std::os::unix::process::ExitStatusExt as _;
            let end = child.wait().expect("ended");
            assert_eq!(end.signal(), Some(9));
        }
        assert!(
            groups
                .hierarchy
                .mounted_dirs(&path)
                .iter()
                .all(|dir| !dir.exists())
        );
        smol::future::block_on(groups.destroy_group(&path)).expect("again is success");
        groups.reduce_cpu(&path).expect("nothing is needed");
        groups.remove_empty_group(parent);
        assert!(
            groups
                .hierarchy
                .mounted_dirs(parent)
                .iter()
                .all(|dir| !dir.exists())
        );
    }
}
