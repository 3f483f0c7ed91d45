//! Puts the staged program in place of the installed one, so that a power cut after any step leaves one whole program and
//! the guard knows what to do.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use super::upgrade::file_error;
use crate::{
    cli::CliError,
    logic::update::upgrade::{self, MAX_TRIAL_BYTES, UpgradeTrial},
    sys::file,
};

/// Most bytes read of the list of programs that were put back.
const MAX_BAD_BYTES: u64 = 16 * 1024;

/// Paths of the installed program and of the files beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProgramPaths {
    pub(super) program: PathBuf,
}

impl ProgramPaths {
    pub(super) fn of_program(program: &Path) -> Self {
        Self {
            program: program.into(),
        }
    }

    /// Finds the places from the path of the old program, which watches.
    pub(super) fn of_old_program(own: &Path) -> Self {
        let is_old = own.extension().is_some_and(|end| end == "old");
        Self::of_program(&if is_old {
            own.with_extension("")
        } else {
            own.into()
        })
    }

    fn path_beside(&self, end: &str) -> PathBuf {
        let mut path = self.program.clone().into_os_string();
        path.push(end);
        path.into()
    }

    /// Path of the new program before it is in place.
    pub(super) fn staged_path(&self) -> PathBuf {
        self.path_beside(".new")
    }

    /// Path of the old program.
    pub(super) fn old_path(&self) -> PathBuf {
        self.path_beside(".old")
    }

    pub(super) fn trial_path(&self) -> PathBuf {
        self.path_beside(upgrade::TRIAL)
    }

    fn part_path(&self) -> PathBuf {
        self.path_beside(".part")
    }

    /// Directory of all these files.
    pub(super) fn program_dir(&self) -> &Path {
        self.program.parent().unwrap_or_else(|| Path::new("/"))
    }

    fn library_dir(&self) -> PathBuf {
        let above = self
            .program_dir()
            .parent()
            .unwrap_or_else(|| Path::new("/"));
        above.join("lib/picolet")
    }

    /// Path of the installed `systemd/guard.sh`.
    pub(super) fn guard_path(&self) -> PathBuf {
        self.library_dir().join("guard")
    }

    /// Path of the key that releases are signed by.
    pub(super) fn release_key_path(&self) -> PathBuf {
        self.library_dir().join("release.pub")
    }

    /// Checks that the guard is installed: without it nobody would put the old program back.
    pub(super) fn check_guard(&self) -> Result<(), CliError> {
        let guard = self.guard_path();
        if guard.is_file() {
            return Ok(());
        }
        Err(CliError::new(format!(
            "{} is missing, but it is needed to put the old program back: install a release with its install.sh once",
            guard.display()
        )))
    }

    /// Removes the files of an upgrade that does not take place.
    pub(super) fn forget_staged(&self) {
        let _ = fs::remove_file(self.staged_path());
    }
}

/// Returns true if both paths are one file.
pub(super) fn is_same_file(one: &Path, other: &Path) -> bool {
    let of = |path: &Path| fs::metadata(path).map(|m| (m.dev(), m.ino()));
    matches!((of(one), of(other)), (Ok(one), Ok(other)) if one == other)
}

/// Reads which program is on trial, if one is.
pub(super) fn read_trial(places: &ProgramPaths) -> Result<Option<UpgradeTrial>, CliError> {
    let path = places.trial_path();
    let mut text = String::new();
    let read = File::open(&path).and_then(|f| f.take(MAX_TRIAL_BYTES).read_to_string(&mut text));
    match read {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(file_error("read", &path, &e)),
        Ok(_) => text
            .parse()
            .map(Some)
            .map_err(|e| CliError::new(format!("{}: {e}", path.display()))),
    }
}

/// Reads why a program was put back: its version and the reason; `None`: it was not put back.
pub(super) fn read_put_back_reason(places: &ProgramPaths, sum: &str) -> Option<String> {
    let mut text = String::new();
    let file = File::open(places.path_beside(".bad")).ok()?;
    file.take(MAX_BAD_BYTES).read_to_string(&mut text).ok()?;
    let why = |line: &str| line.strip_prefix(sum)?.strip_prefix(' ').map(str::to_owned);
    text.lines().rev().find_map(why)
}

/// Puts the staged program, which is on disk, in place.
///
/// - Order: the old one under its second name, then the trial, then the new one. As long as the new one is not in
///   place, both names are one file, and the guard sees no trial.
pub(super) fn switch_program(places: &ProgramPaths, trial: &UpgradeTrial) -> io::Result<()> {
    let (program, old) = (&places.program, places.old_path());
    if !is_same_file(program, &old) {
        link_over(program, &old, &places.part_path())?;
    }
    file::sync_dir(places.program_dir())?;
    let text = trial.to_string();
    file::write_atomic(&places.trial_path(), text.as_bytes(), 0o600, true)?;
    file::mark_change(program)?;
    let done = fs::rename(places.staged_path(), program)
        .and_then(|()| file::sync_dir(places.program_dir()));
    if let Err(e) = done {
        if is_same_file(program, &old) {
            let _ = fs::remove_file(places.trial_path());
        }
        return Err(e);
    }
    // If the trial is gone, an agent that started a moment ago took it for an earlier one.
    if places.trial_path().exists() {
        return Ok(());
    }
    file::write_atomic(&places.trial_path(), text.as_bytes(), 0o600, true)
}

/// Puts the old program back, which still runs. The order is that of the guard, which continues after a power cut.
pub(super) fn undo_switch(places: &ProgramPaths) -> io::Result<()> {
    let (program, old) = (&places.program, places.old_path());
    if !is_same_file(program, &old) {
        link_over(&old, program, &places.part_path())?;
    }
    file::sync_dir(places.program_dir())?;
    end_trial(places)
}

/// Gives the file `of` the name `to` too, by a third name, even if another file has it.
fn link_over(of: &Path, to: &Path, part: &Path) -> io::Result<()> {
    file::mark_change(part)?;
    match fs::remove_file(part) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    file::mark_change(part)?;
    fs::hard_link(of, part)?;
    file::mark_change(to)?;
    fs::rename(part, to)
}

/// Ends the trial: the program in place stays, and its starts are no longer counted.
pub(super) fn end_trial(places: &ProgramPaths) -> io::Result<()> {
    let trial = places.trial_path();
    file::mark_change(&trial)?;
    fs::remove_file(&trial)?;
    file::sync_dir(places.program_dir())
}

#[cfg(test)]
mod tests {
    use std::{
        cell::Cell,
        ffi::OsStr,
        os::unix::fs::PermissionsExt as _,
        panic,
        process::{Command, Stdio},
        rc::Rc,
    };

    use super::*;

    /// A program that is installed, one that is staged, and the guard, in a directory that goes with the test.
    struct Board {
        dir: PathBuf,
        places: ProgramPaths,
    }

    impl Board {
        fn new(name: &str) -> Self {
            let dir = crate::testing::unused_path(name);
            let _ = fs::remove_dir_all(&dir);
            fs::create_dir_all(dir.join("bin")).expect("directory");
            fs::create_dir_all(dir.join("lib/picolet")).expect("directory");
            let places = ProgramPaths::of_program(&dir.join("bin/picolet"));
            let guard = Path::new(env!("CARGO_MANIFEST_DIR")).join("systemd/guard.sh");
            fs::copy(guard, places.guard_path()).expect("guard");
            fs::write(&places.program, "one").expect("written");
            fs::write(places.staged_path(), "two").expect("written");
            Self { dir, places }
        }

        fn trial() -> UpgradeTrial {
            UpgradeTrial {
                tries: 3,
                sum: "abc".into(),
                version: "2.0.0".into(),
                ..UpgradeTrial::default()
            }
        }

        fn runs(&self) -> String {
            fs::read_to_string(&self.places.program).expect("there is a program")
        }

        /// Starts the agent once, as a unit does. With `cut`, the power fails as [`Self::guard_path`] says.
        fn start(&self, cut: Option<u32>) -> bool {
            let program = self.places.program.as_os_str();
            self.guard(&[program], cut)
        }

        /// Has the guard put the old program back, as the watching program does.
        fn back(&self, reason: &str, cut: Option<u32>) -> bool {
            let program = self.places.program.as_os_str();
            self.guard(&["--back".as_ref(), program, reason.as_ref()], cut)
        }

        /// Calls the guard. With `cut`, the power fails before its command of that number: commands that change the disk are
        /// counted.
        fn guard(&self, words: &[&OsStr], cut: Option<u32>) -> bool {
            let tools = self.dir.join("tools");
            fs::create_dir_all(&tools).expect("directory");
            for name in ["cat", "rm", "ln", "mv", "sync"] {
                let script = format!(
                    "#!/bin/sh\nn=$(($(/bin/cat \"$COUNT\") + 1))\necho $n >\"$COUNT\"\n\
                     [ $n -ne \"$CUT\" ] || kill -9 0\nexec /bin/{name} \"$@\"\n"
                );
                fs::write(tools.join(name), script).expect("tool");
                let mode = fs::Permissions::from_mode(0o755);
                fs::set_permissions(tools.join(name), mode).expect("tool");
            }
            let count = self.dir.join("count");
            fs::write(&count, "0").expect("written");
            // A process group of its own ends with the power.
            let status = Command::new("setsid")
                .args(["--wait", "sh"])
                .arg(self.places.guard_path())
                .args(words)
                .env("PATH", format!("{}:/usr/bin:/bin", tools.display()))
                .env("COUNT", &count)
                .env("CUT", cut.unwrap_or(0).to_string())
                .stderr(Stdio::null())
                .status();
            status.expect("guard").success()
        }
    }

    impl Drop for Board {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.dir);
        }
    }

    /// Does `what` until the power fails before its change of number `n`. Whether it came to its end.
    fn cut_at(n: u32, what: impl FnOnce() -> io::Result<()>) -> bool {
        let left = Rc::new(Cell::new(n));
        file::watched::set_watcher(Some(Rc::new(move |_, is_synced| {
            if !is_synced {
                if left.get() == 0 {
                    panic::resume_unwind(Box::new(()));
                }
                left.set(left.get() - 1);
            }
            Ok(())
        })));
        let done = panic::catch_unwind(panic::AssertUnwindSafe(what));
        file::watched::set_watcher(None);
        done.is_ok_and(|done| done.is_ok())
    }

    #[test]
    fn one_whole_program_after_a_power_cut_at_any_step() {
        // PKG-07 PKG-20 PKG-22 UPD-04
        for n in 0.. {
            let board = Board::new(&format!("cut-{n}"));
            let places = &board.places;
            let whole = cut_at(n, || switch_program(places, &Board::trial()));
            let is_new = board.runs() == "two";
            assert!(is_new || board.runs() == "one", "cut {n}");
            if is_new {
                assert!(
                    places.trial_path().exists(),
                    "cut {n}: it would run without a trial"
                );
                assert_eq!(fs::read_to_string(places.old_path()).expect("old"), "one");
            }
            for start in 0..3 {
                assert!(board.start(None), "cut {n}, start {start}");
                assert_eq!(board.runs() == "two", is_new, "cut {n}, start {start}");
                assert_eq!(
                    places.trial_path().exists(),
                    is_new,
                    "cut {n}, start {start}"
                );
            }
            assert!(board.start(None));
            assert_eq!(board.runs(), "one", "cut {n}");
            assert_eq!(
                read_put_back_reason(places, "abc").is_some(),
                is_new,
                "cut {n}"
            );
            // Nothing of it is in the way of the next one.
            fs::write(places.staged_path(), "two").expect("written");
            switch_program(places, &Board::trial()).expect("again");
            assert_eq!(board.runs(), "two", "cut {n}");
            end_trial(places).expect("committed");
            assert!(board.start(None) && board.runs() == "two", "cut {n}");
            if whole {
                assert!(n > 5, "there are more steps than {n}");
                return;
            }
        }
    }

    #[test]
    fn what_is_undone_is_whole_after_a_power_cut_at_any_step() {
        // PKG-20 PKG-22
        for n in 0.. {
            let board = Board::new(&format!("undo-{n}"));
            let places = &board.places;
            switch_program(places, &Board::trial()).expect("switched");
            let whole = cut_at(n, || undo_switch(places));
            let runs = board.runs();
            assert!(runs == "one" || !whole && runs == "two", "cut {n}: {runs}");
            assert!(
                runs == "one" || places.trial_path().exists(),
                "cut {n}: it would run without a trial"
            );
            for start in 0..4 {
                assert!(board.start(None), "cut {n}, start {start}");
            }
            assert_eq!(board.runs(), "one", "cut {n}");
            assert!(!places.trial_path().exists(), "cut {n}");
            // The guard alone says that a program is bad.
            assert_eq!(
                read_put_back_reason(places, "abc").is_some(),
                runs == "two",
                "cut {n}"
            );
            fs::write(places.staged_path(), "two").expect("written");
            switch_program(places, &Board::trial()).expect("again");
            assert_eq!(board.runs(), "two", "cut {n}");
            if whole {
                assert!(n > 3, "there are more steps than {n}");
                return;
            }
        }
    }

    #[test]
    fn the_guard_goes_on_after_a_power_cut_at_any_step() {
        // PKG-22
        for tries in [3, 0] {
            let trial = UpgradeTrial {
                tries,
                ..Board::trial()
            };
            for n in 1.. {
                let board = Board::new(&format!("guard-{tries}-{n}"));
                switch_program(&board.places, &trial).expect("switched");
                let whole = board.start(Some(n));
                let runs = board.runs();
                assert!(runs == "two" || tries == 0 && runs == "one", "{tries} {n}");
                let left = read_trial(&board.places).expect("whole");
                let left = left.map_or(0, |trial| trial.tries);
                assert!((tries.saturating_sub(1)..=tries).contains(&left), "{left}");
                for _ in 0..=left {
                    assert!(board.start(None), "{tries} {n}");
                }
                assert_eq!(board.runs(), "one", "{tries} {n}");
                let why = read_put_back_reason(&board.places, "abc");
                assert!(
                    why.is_some_and(|why| why.starts_with("2.0.0 ")),
                    "{tries} {n}"
                );
                let list = fs::read_to_string(board.places.path_beside(".bad")).expect("list");
                assert_eq!(list.lines().count(), 1, "{tries} {n}: {list}");
                assert!(
                    board.places.path_beside(upgrade::BACK).exists()
                        && !board.places.trial_path().exists()
                );
                if whole {
                    assert!(n > 4, "there are more steps than {n}");
                    break;
                }
            }
        }
        // Who watches has judged it bad, and it has starts left.
        for tries in [3, 1, 0] {
            let trial = UpgradeTrial {
                tries,
                ..Board::trial()
            };
            let mut outcomes = [0, 0];
            for n in 1.. {
                let board = Board::new(&format!("back-{tries}-{n}"));
                let places = &board.places;
                switch_program(places, &trial).expect("switched");
                let whole = board.back("it loses pods", Some(n));
                let left = read_trial(places).expect("whole");
                let is_untouched =
                    left.as_ref().is_some_and(|left| left.tries == tries) && tries > 0;
                outcomes[usize::from(is_untouched)] += 1;
                if is_untouched {
                    // Nobody knows of the verdict yet: it is told again.
                    assert_eq!(board.runs(), "two", "{tries} {n}");
                    assert_eq!(read_put_back_reason(places, "abc"), None, "{tries} {n}");
                    assert!(board.back("it loses pods", None), "{tries} {n}");
                } else {
                    let left = left.map_or(0, |left| left.tries);
                    assert_eq!(left, 0, "{tries} {n}: it would get another start");
                    assert!(board.start(None), "{tries} {n}");
                }
                assert_eq!(board.runs(), "one", "{tries} {n}");
                assert!(!places.trial_path().exists(), "{tries} {n}");
                let list = fs::read_to_string(places.path_beside(".bad")).expect("list");
                assert!(
                    list.starts_with("abc 2.0.0 it ") && list.lines().count() == 1,
                    "{tries} {n}: {list}"
                );
                assert!(places.path_beside(upgrade::BACK).exists(), "{tries} {n}");
                if whole {
                    assert!(list.ends_with(" it loses pods\n"), "{list}");
                    break;
                }
            }
            // Of many commands the first ones alone say nothing yet.
            let [told, untold] = outcomes;
            assert!(
                told > 8 && untold == if tries > 0 { 3 } else { 0 },
                "{outcomes:?}"
            );
        }
    }

    #[test]
    fn a_few_bad_ones_are_remembered() {
        // PKG-22
        let board = Board::new("bad");
        for n in 0..12 {
            fs::write(board.places.staged_path(), "two").expect("written");
            let trial = UpgradeTrial {
                tries: 0,
                sum: format!("sum{n}x"),
                ..Board::trial()
            };
            switch_program(&board.places, &trial).expect("switched");
            assert!(board.start(None));
            assert_eq!(board.runs(), "one");
        }
        assert_eq!(read_put_back_reason(&board.places, "sum3x"), None);
        assert!(
            read_put_back_reason(&board.places, "sum4x").is_some()
                && read_put_back_reason(&board.places, "sum11x").is_some()
        );
    }

    #[test]
    fn places() {
        let places = ProgramPaths::of_program(Path::new("/usr/local/bin/picolet"));
        assert_eq!(
            places.guard_path(),
            Path::new("/usr/local/lib/picolet/guard")
        );
        assert_eq!(ProgramPaths::of_old_program(&places.old_path()), places);
        assert_eq!(ProgramPaths::of_old_program(&places.program), places);
    }
}
