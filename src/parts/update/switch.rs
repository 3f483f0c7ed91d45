//! Puts the staged program in place of the installed one, so that a power cut after any step leaves one whole program and
//! the guard knows what to do.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use super::upgrade::failed;
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
    pub(super) fn of(program: &Path) -> Self {
        Self {
            program: program.into(),
        }
    }

    /// Finds the places from the path of the old program, which watches.
    pub(super) fn of_old(own: &Path) -> Self {
        let is_old = own.extension().is_some_and(|end| end == "old");
        Self::of(&if is_old {
            own.with_extension("")
        } else {
            own.into()
        })
    }

    fn beside(&self, end: &str) -> PathBuf {
        let mut path = self.program.clone().into_os_string();
        path.push(end);
        path.into()
    }

    /// Path of the new program before it is in place.
    pub(super) fn staged(&self) -> PathBuf {
        self.beside(".new")
    }

    /// Path of the old program.
    pub(super) fn old(&self) -> PathBuf {
        self.beside(".old")
    }

    pub(super) fn trial(&self) -> PathBuf {
        self.beside(upgrade::TRIAL)
    }

    fn part(&self) -> PathBuf {
        self.beside(".part")
    }

    /// Directory of all these files.
    pub(super) fn dir(&self) -> &Path {
        self.program.parent().unwrap_or_else(|| Path::new("/"))
    }

    fn library(&self) -> PathBuf {
        let above = self.dir().parent().unwrap_or_else(|| Path::new("/"));
        above.join("lib/picolet")
    }

    /// Path of the installed `systemd/guard.sh`.
    pub(super) fn guard(&self) -> PathBuf {
        self.library().join("guard")
    }

    /// Path of the key that releases are signed by.
    pub(super) fn key(&self) -> PathBuf {
        self.library().join("release.pub")
    }

    /// Checks that the guard is installed: without it nobody would put the old program back.
    pub(super) fn has_guard(&self) -> Result<(), CliError> {
        let guard = self.guard();
        if guard.is_file() {
            return Ok(());
        }
        Err(CliError::new(format!(
            "{} is not there, which would put the old program back: install the release by its install.sh once",
            guard.display()
        )))
    }

    /// Removes the files of an upgrade that does not take place.
    pub(super) fn forget_staged(&self) {
        let _ = fs::remove_file(self.staged());
    }
}

/// Returns true if both paths are one file.
pub(super) fn is_same(one: &Path, other: &Path) -> bool {
    let of = |path: &Path| fs::metadata(path).map(|m| (m.dev(), m.ino()));
    matches!((of(one), of(other)), (Ok(one), Ok(other)) if one == other)
}

/// Reads which program is on trial, if one is.
pub(super) fn read_trial(places: &ProgramPaths) -> Result<Option<UpgradeTrial>, CliError> {
    let path = places.trial();
    let mut text = String::new();
    let read = File::open(&path).and_then(|f| f.take(MAX_TRIAL_BYTES).read_to_string(&mut text));
    match read {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(failed("read", &path, &e)),
        Ok(_) => text
            .parse()
            .map(Some)
            .map_err(|e| CliError::new(format!("{}: {e}", path.display()))),
    }
}

/// Reads why a program was put back: its version and the reason; `None`: it was not put back.
pub(super) fn bad(places: &ProgramPaths, sum: &str) -> Option<String> {
    let mut text = String::new();
    let file = File::open(places.beside(".bad")).ok()?;
    file.take(MAX_BAD_BYTES).read_to_string(&mut text).ok()?;
    let why = |line: &str| line.strip_prefix(sum)?.strip_prefix(' ').map(str::to_owned);
    text.lines().rev().find_map(why)
}

/// Puts the staged program, which is on disk, in place.
///
/// - Order: the old one under its second name, then the trial, then the new one. As long as the new one is not in
///   place, both names are one file, and the guard sees no trial.
pub(super) fn switch(places: &ProgramPaths, trial: &UpgradeTrial) -> io::Result<()> {
    let (program, old) = (&places.program, places.old());
    if !is_same(program, &old) {
        link_over(program, &old, &places.part())?;
    }
    file::sync_dir(places.dir())?;
    let text = trial.to_string();
    file::write_atomic(&places.trial(), text.as_bytes(), 0o600, true)?;
    file::change(program)?;
    let done = fs::rename(places.staged(), program).and_then(|()| file::sync_dir(places.dir()));
    if let Err(e) = done {
        if is_same(program, &old) {
            let _ = fs::remove_file(places.trial());
        }
        return Err(e);
    }
    // If the trial is gone, an agent that started a moment ago took it for an earlier one.
    if places.trial().exists() {
        return Ok(());
    }
    file::write_atomic(&places.trial(), text.as_bytes(), 0o600, true)
}

/// Puts the old program back, which still runs. The order is that of the guard, which continues after a power cut.
pub(super) fn undo(places: &ProgramPaths) -> io::Result<()> {
    let (program, old) = (&places.program, places.old());
    if !is_same(program, &old) {
        link_over(&old, program, &places.part())?;
    }
    file::sync_dir(places.dir())?;
    end_trial(places)
}

/// Gives the file `of` the name `to` too, by a third name, even if another file has it.
fn link_over(of: &Path, to: &Path, part: &Path) -> io::Result<()> {
    file::change(part)?;
    match fs::remove_file(part) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    file::change(part)?;
    fs::hard_link(of, part)?;
    file::change(to)?;
    fs::rename(part, to)
}

/// Ends the trial: the program in place stays, and its starts are no longer counted.
pub(super) fn end_trial(places: &ProgramPaths) -> io::Result<()> {
    let trial = places.trial();
    file::change(&trial)?;
    fs::remove_file(&trial)?;
    file::sync_dir(places.dir())
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
            let places = ProgramPaths::of(&dir.join("bin/picolet"));
            let guard = Path::new(env!("CARGO_MANIFEST_DIR")).join("systemd/guard.sh");
            fs::copy(guard, places.guard()).expect("guard");
            fs::write(&places.program, "one").expect("written");
            fs::write(places.staged(), "two").expect("written");
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

        /// Starts the agent once, as a unit does. With `cut`, the power fails as [`Self::guard`] says.
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
                .arg(self.places.guard())
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
        file::watched::watch(Some(Rc::new(move |_, is_synced| {
            if !is_synced {
                if left.get() == 0 {
                    panic::resume_unwind(Box::new(()));
                }
                left.set(left.get() - 1);
            }
            Ok(())
        })));
        let done = panic::catch_unwind(panic::AssertUnwindSafe(what));
        file::watched::watch(None);
        done.is_ok_and(|done| done.is_ok())
    }

    #[test]
    fn one_whole_program_after_a_power_cut_at_any_step() {
        // PKG-07 PKG-20 PKG-22 UPD-04
        for n in 0.. {
            let board = Board::new(&format!("cut-{n}"));
            let places = &board.places;
            let whole = cut_at(n, || switch(places, &Board::trial()));
            let is_new = board.runs() == "two";
            assert!(is_new || board.runs() == "one", "cut {n}");
            if is_new {
                assert!(
                    places.trial().exists(),
                    "cut {n}: it would run without a trial"
                );
                assert_eq!(fs::read_to_string(places.old()).expect("old"), "one");
            }
            for start in 0..3 {
                assert!(board.start(None), "cut {n}, start {start}");
                assert_eq!(board.runs() == "two", is_new, "cut {n}, start {start}");
                assert_eq!(places.trial().exists(), is_new, "cut {n}, start {start}");
            }
            assert!(board.start(None));
            assert_eq!(board.runs(), "one", "cut {n}");
            assert_eq!(bad(places, "abc").is_some(), is_new, "cut {n}");
            // Nothing of it is in the way of the next one.
            fs::write(places.staged(), "two").expect("written");
            switch(places, &Board::trial()).expect("again");
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
            switch(places, &Board::trial()).expect("switched");
            let whole = cut_at(n, || undo(places));
            let runs = board.runs();
            assert!(runs == "one" || !whole && runs == "two", "cut {n}: {runs}");
            assert!(
                runs == "one" || places.trial().exists(),
                "cut {n}: it would run without a trial"
            );
            for start in 0..4 {
                assert!(board.start(None), "cut {n}, start {start}");
            }
            assert_eq!(board.runs(), "one", "cut {n}");
            assert!(!places.trial().exists(), "cut {n}");
            // The guard alone says that a program is bad.
            assert_eq!(bad(places, "abc").is_some(), runs == "two", "cut {n}");
            fs::write(places.staged(), "two").expect("written");
            switch(places, &Board::trial()).expect("again");
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
                switch(&board.places, &trial).expect("switched");
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
                let why = bad(&board.places, "abc");
                assert!(
                    why.is_some_and(|why| why.starts_with("2.0.0 ")),
                    "{tries} {n}"
                );
                let list = fs::read_to_string(board.places.beside(".bad")).expect("list");
                assert_eq!(list.lines().count(), 1, "{tries} {n}: {list}");
                assert!(
                    board.places.beside(upgrade::BACK).exists() && !board.places.trial().exists()
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
                switch(places, &trial).expect("switched");
                let whole = board.back("it loses pods", Some(n));
                let left = read_trial(places).expect("whole");
                let is_untouched =
                    left.as_ref().is_some_and(|left| left.tries == tries) && tries > 0;
                outcomes[usize::from(is_untouched)] += 1;
                if is_untouched {
                    // Nobody knows of the verdict yet: it is told again.
                    assert_eq!(board.runs(), "two", "{tries} {n}");
                    assert_eq!(bad(places, "abc"), None, "{tries} {n}");
                    assert!(board.back("it loses pods", None), "{tries} {n}");
                } else {
                    let left = left.map_or(0, |left| left.tries);
                    assert_eq!(left, 0, "{tries} {n}: it would get another start");
                    assert!(board.start(None), "{tries} {n}");
                }
                assert_eq!(board.runs(), "one", "{tries} {n}");
                assert!(!places.trial().exists(), "{tries} {n}");
                let list = fs::read_to_string(places.beside(".bad")).expect("list");
                assert!(
                    list.starts_with("abc 2.0.0 it ") && list.lines().count() == 1,
                    "{tries} {n}: {list}"
                );
                assert!(places.beside(upgrade::BACK).exists(), "{tries} {n}");
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
            fs::write(board.places.staged(), "two").expect("written");
            let trial = UpgradeTrial {
                tries: 0,
                sum: format!("sum{n}x"),
                ..Board::trial()
            };
            switch(&board.places, &trial).expect("switched");
            assert!(board.start(None));
            assert_eq!(board.runs(), "one");
        }
        assert_eq!(bad(&board.places, "sum3x"), None);
        assert!(bad(&board.places, "sum4x").is_some() && bad(&board.places, "sum11x").is_some());
    }

    #[test]
    fn places() {
        let places = ProgramPaths::of(Path::new("/usr/local/bin/picolet"));
        assert_eq!(places.guard(), Path::new("/usr/local/lib/picolet/guard"));
        assert_eq!(ProgramPaths::of_old(&places.old()), places);
        assert_eq!(ProgramPaths::of_old(&places.program), places);
    }
}
