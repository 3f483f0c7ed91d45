//! What containers themselves witnessed: a file per container in a directory of the host, a line per event.
//!
//! | line | written when |
//! |---|---|
//! | `S` | a process of the container starts |
//! | `D` | it starts although another one of the same container lives |
//! | `E` | it ends by itself |
//! | `T` | it is told to end |
//! | `H` | its hook runs that follows the start |
//! | `B` | its hook runs that comes before the end |
//!
//! A container holds a lock as long as any of its processes lives, so that "two at a time" and "none" are both seen. The
//! name of a container says what it may do: `idle…` never ends, `crash…` and `retry…` end and are started again, `once…`
//! is started once. The one called [`HOOKED`] has hooks.

use std::{
    collections::BTreeMap,
    fs::{self, File, TryLockError},
    os::fd::AsFd,
    path::{Path, PathBuf},
};

use crate::Failure;

/// The word by which this program is called inside of a container: takes the lock of its standard input.
pub(crate) const WITNESS: &str = "chaos-witness";

/// Name of the container that has hooks.
pub(super) const HOOKED: &str = "idle-hooked";

/// Exits with 0 if the lock on standard input is free and now held by whoever shares that descriptor.
pub(crate) fn witness() -> std::process::ExitCode {
    let input = std::io::stdin();
    let held = input
        .as_fd()
        .try_clone_to_owned()
        .map(File::from)
        .is_ok_and(|file| file.try_lock().is_ok());
    if held {
        std::process::ExitCode::SUCCESS
    } else {
        std::process::ExitCode::FAILURE
    }
}

/// The directory, and what was done to containers from outside.
pub(super) struct Ledger {
    dir: PathBuf,
    /// How often the shim of (uid, container) was killed, or its start was made to fail after it ran.
    struck: BTreeMap<(String, String), usize>,
}

impl Ledger {
    /// Makes the directory, with this program in it.
    pub(super) fn new(dir: PathBuf) -> Result<Self, Failure> {
        fs::create_dir_all(&dir)?;
        // The file itself: cargo may have put another in its place since.
        fs::copy("/proc/self/exe", dir.join(".witness"))?;
        Ok(Self {
            dir,
            struck: BTreeMap::new(),
        })
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Allows one more start of a container.
    pub(super) fn strike(&mut self, uid: &str, container: &str) {
        *self
            .struck
            .entry((uid.to_owned(), container.to_owned()))
            .or_default() += 1;
    }

    /// Whether a shim of the pod was killed.
    pub(super) fn was_struck(&self, uid: &str) -> bool {
        self.struck.keys().any(|(of, _)| of == uid)
    }

    /// Whether a process of the container lives.
    pub(super) fn lives(&self, uid: &str, container: &str) -> bool {
        let path = self.dir.join(format!("{uid}.{container}.lock"));
        File::open(path)
            .is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
    }

    /// UIDs of all pods that ever ran something.
    pub(super) fn uids(&self) -> Vec<String> {
        let mut uids: Vec<String> = self.entries().into_iter().map(|(uid, ..)| uid).collect();
        uids.dedup();
        uids
    }

    /// Starts witnessed in all.
    pub(super) fn starts(&self) -> usize {
        self.entries()
            .iter()
            .map(|(.., lines)| count(lines, "S"))
            .sum()
    }

    /// What must not have happened, a line each.
    pub(super) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for (uid, container, lines) in self.entries() {
            let mut say = |what: &str| {
                let all = lines.replace('\n', " ");
                problems.push(format!("container {container} of pod {uid} {what}: {all}"));
            };
            if count(&lines, "D") > 0 {
                say("ran twice at a time");
            }
            if told_and_started(&lines) {
                say("was started after its pod's end");
            }
            let (starts, hooks) = (count(&lines, "S"), count(&lines, "H"));
            if hooks > starts {
                say(&format!("had its hook {hooks} times after {starts} starts"));
            }
            if container == HOOKED && told_without_hook(&lines) {
                say("was told to end before its hook");
            }
            let own_ends = match container
                .split_once('-')
                .map_or(container.as_str(), |c| c.0)
            {
                "idle" | "once" => 0,
                _ => count(&lines, "E"),
            };
            let struck = self
                .struck
                .get(&(uid.clone(), container.clone()))
                .copied()
                .unwrap_or(0);
            let allowed = 1 + own_ends + struck;
            if starts > allowed {
                say(&format!("was started {starts} times, {allowed} allowed"));
            }
        }
        problems
    }

    /// (uid, container, lines), sorted.
    fn entries(&self) -> Vec<(String, String, String)> {
        let mut found: Vec<_> = fs::read_dir(&self.dir)
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| {
                let name = entry.file_name().into_string().ok()?;
                let (uid, container) = name.split_once('.')?;
                if uid.is_empty() || container.ends_with(".lock") {
                    return None;
                }
                let lines = fs::read_to_string(entry.path()).ok()?;
                Some((uid.to_owned(), container.to_owned(), lines))
            })
            .collect();
        found.sort();
        found
    }
}

fn count(lines: &str, word: &str) -> usize {
    lines.lines().filter(|line| *line == word).count()
}

fn told_and_started(lines: &str) -> bool {
    let told = lines.lines().position(|line| line == "T");
    told.is_some_and(|at| lines.lines().skip(at).any(|line| line == "S"))
}

fn told_without_hook(lines: &str) -> bool {
    let mut before = lines.lines().take_while(|line| *line != "T");
    lines.lines().any(|line| line == "T") && !before.any(|line| line == "B")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_a_problem() {
        let dir = std::env::temp_dir().join(format!("picolet-ledger-{}", std::process::id()));
        let mut ledger = Ledger::new(dir.clone()).unwrap();
        for (file, lines, problem) in [
            ("u1.idle", "S\n", ""),
            ("u1.idle-2", "S\nS\n", "started 2 times, 1 allowed"),
            ("u1.crash", "S\nE\nS\nE\nS\n", ""),
            ("u1.crash-2", "S\nE\nS\nS\n", "started 3 times, 2 allowed"),
            ("u1.once", "S\nE\n", ""),
            ("u1.once-2", "S\nE\nS\nE\n", "started 2 times, 1 allowed"),
            ("u1.idle-3", "S\nD\n", "ran twice"),
            ("u1.idle-4", "S\nT\n", ""),
            ("u1.crash-5", "S\nE\nT\nS\n", "after its pod's end"),
            ("u1.idle-hooked", "S\nH\nB\nT\n", ""),
            ("u1.idle-hooked", "S\nB\nB\nT\n", ""),
            ("u1.idle-hooked", "S\nH\nT\nB\n", "before its hook"),
            (
                "u1.idle-hooked",
                "S\nH\nH\n",
                "its hook 2 times after 1 starts",
            ),
        ] {
            fs::write(dir.join(file), lines).unwrap();
            let found = ledger.problems().join("\n");
            assert_eq!(found.is_empty(), problem.is_empty(), "{file}: {found}");
            assert!(found.contains(problem), "{file}: {found}");
            fs::remove_file(dir.join(file)).unwrap();
        }
        fs::write(dir.join("u2.idle"), "S\nS\n").unwrap();
        ledger.strike("u2", "idle");
        assert_eq!(ledger.problems(), [""; 0]);
        assert_eq!((ledger.starts(), ledger.uids()), (2, vec!["u2".into()]));
        let lock = dir.join("u2.idle.lock");
        let held = File::create(&lock).unwrap();
        assert!(!ledger.lives("u2", "idle"));
        held.lock().unwrap();
        assert!(ledger.lives("u2", "idle"));
        fs::remove_dir_all(dir).unwrap();
    }
}
