//! `picolet upgrade FILE`: takes another program in place of the one that runs, watches it, and puts the old one back if it
//! does not become healthy (PKG-20 to PKG-22).
//!
//! `systemd/guard.sh` describes the files beside the program, and who undoes which step. Each step leaves one whole
//! program. An upgrade that was cut off is continued by the guard at the next start of the agent, and by
//! `upgrade --watch` of `picolet-upgrade.service`.

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
};

use super::{
    release::{self, ReleaseProof},
    running::{self, CheckReportFinding, RunningAgent},
    switch::{self, ProgramPaths},
    watch::{self, TrialOutcome},
};
use crate::{
    cli::{
        CliError,
        args::{CliWord, CliWords, unexpected_word},
        client::AgentClient,
        health, print_text,
    },
    logic::update::upgrade::{MAX_PATIENCE_S, MIN_PATIENCE_S, PATIENCE_S, is_older_version},
};

/// Options of an upgrade.
#[derive(Debug)]
pub(super) struct UpgradeOptions {
    pub(super) proof: ReleaseProof,
    pub(super) restart: Option<String>,
    pub(super) wait_s: u64,
    pub(super) force: bool,
    pub(super) quiet: bool,
}

pub(super) fn run_upgrade(mut words: CliWords) -> Result<(), CliError> {
    let mut asked = UpgradeOptions {
        proof: ReleaseProof::Listed(None),
        restart: None,
        wait_s: PATIENCE_S,
        force: false,
        quiet: false,
    };
    let (mut given, mut dry_run, mut watch) = (None::<PathBuf>, false, false);
    while let Some(word) = words.next_word()? {
        match word {
            CliWord::Flag("key") => {
                asked.proof = ReleaseProof::Listed(Some(words.flag_value()?.into()))
            }
            CliWord::Flag("restart") => asked.restart = Some(words.flag_value()?),
            CliWord::Flag("wait") => asked.wait_s = check_patience(words.number_value("--wait")?)?,
            CliWord::Flag("dry-run") => dry_run = words.switch_value()?,
            CliWord::Flag("force") => asked.force = words.switch_value()?,
            CliWord::Flag("watch") => watch = words.switch_value()?,
            CliWord::Flag("quiet") => asked.quiet = words.switch_value()?,
            CliWord::Value(file) if given.is_none() => given = Some(file.into()),
            other => return Err(unexpected_word(other)),
        }
    }
    must_be_root()?;
    match (watch, given) {
        (true, None) => resume_trial(asked.quiet),
        (false, Some(file)) => begin_upgrade(&words.agent_client(), &asked, &file, dry_run),
        _ => Err(CliError::new(
            "expected 'picolet upgrade FILE', a program or the tarball of a release",
        )),
    }
}

/// Checks the time that a new program is given: too little is refused, and too much.
fn check_patience(seconds: u64) -> Result<u64, CliError> {
    if (MIN_PATIENCE_S..=MAX_PATIENCE_S).contains(&seconds) {
        return Ok(seconds);
    }
    Err(CliError::new(format!(
        "invalid argument \"{seconds}\" for \"--wait\": must be between {MIN_PATIENCE_S} and {MAX_PATIENCE_S} seconds"
    )))
}

/// Watches a trial that began earlier: the power failed, or its command was ended.
fn resume_trial(quiet: bool) -> Result<(), CliError> {
    let own = std::env::current_exe().map_err(|e| CliError::new(e.to_string()))?;
    let places = ProgramPaths::of_old_program(&own);
    let file = File::open(&own).map_err(|e| file_error("open", &own, &e))?;
    // The process that watches holds this lock.
    file.lock().map_err(|e| file_error("lock", &own, &e))?;
    match switch::read_trial(&places)? {
        Some(trial) => Ok(report_outcome(watch::watch_trial(&places, &trial, quiet)?)?),
        None => print_text("no program is on trial\n"),
    }
}

pub(super) fn must_be_root() -> Result<(), CliError> {
    if nix::unistd::geteuid().is_root() {
        return Ok(());
    }
    Err(CliError::new("must run as root: it replaces the program"))
}

fn begin_upgrade(
    client: &AgentClient,
    asked: &UpgradeOptions,
    file: &Path,
    dry_run: bool,
) -> Result<(), CliError> {
    match stage_and_check(RunningAgent::find(client)?, asked, file)? {
        None => print_text("nothing to change: this program is installed\n"),
        Some(staged) if dry_run => print_text(&format!(
            "picolet {} can replace the installed program\n",
            staged.version
        )),
        Some(staged) => Ok(staged.take_over(asked)?),
    }
}

/// Reason why a program does not take over.
#[derive(Debug, thiserror::Error)]
#[error("{why}")]
pub(super) struct TakeoverFailure {
    pub(super) why: CliError,
    /// Set if the program or the release is at fault: another try would fail in the same way.
    pub(super) lasts: bool,
}

impl TakeoverFailure {
    pub(super) fn lasting(why: impl Into<String>) -> Self {
        Self {
            why: CliError::new(why),
            lasts: true,
        }
    }
}

impl From<CliError> for TakeoverFailure {
    fn from(why: CliError) -> Self {
        Self { why, lasts: false }
    }
}

impl From<TakeoverFailure> for CliError {
    fn from(e: TakeoverFailure) -> Self {
        e.why
    }
}

/// A program that may take over, beside the one that runs. On drop its file is removed, unless it has taken over.
pub(super) struct StagedProgram {
    running: RunningAgent,
    places: ProgramPaths,
    pub(super) version: String,
    /// SHA-256 of the program, in hexadecimal.
    pub(super) sum: String,
    restart: String,
    /// Lock of the installed program: no other upgrade may begin meanwhile.
    _lock: File,
}

impl Drop for StagedProgram {
    fn drop(&mut self) {
        self.places.forget_staged();
    }
}

/// Stages the program and checks that it may take over. `None`: it is the one that is installed.
pub(super) fn stage_and_check(
    running: RunningAgent,
    asked: &UpgradeOptions,
    file: &Path,
) -> Result<Option<StagedProgram>, TakeoverFailure> {
    let places = ProgramPaths::of_program(&running.program);
    places.check_guard()?;
    let lock = File::open(&places.program).map_err(|e| file_error("open", &places.program, &e))?;
    if lock.try_lock().is_err() || switch::read_trial(&places)?.is_some() {
        return Err(trial_under_way_error(&places).into());
    }
    let restart = match &asked.restart {
        Some(command) => command.clone(),
        None => running.find_restart_command()?,
    };
    let mut staged = StagedProgram {
        running,
        places,
        version: String::new(),
        sum: String::new(),
        restart,
        _lock: lock,
    };
    release::stage_program(file, &asked.proof, &staged.places)?;
    let found = inspect_staged(&staged.places, &staged.running, asked.force)?;
    Ok(found.map(|(version, sum)| {
        (staged.version, staged.sum) = (version, sum);
        staged
    }))
}

/// Makes the error of a program that is on trial already. Its upgrade may have been killed.
pub(super) fn trial_under_way_error(places: &ProgramPaths) -> CliError {
    CliError::new(format!(
        "another upgrade is running: wait some minutes until it ends. If it was interrupted: {} upgrade --watch",
        places.old_path().display()
    ))
}

impl StagedProgram {
    /// Puts the program in place, has the agent restarted, and watches it.
    pub(super) fn take_over(self, asked: &UpgradeOptions) -> Result<(), TakeoverFailure> {
        let Self {
            running, places, ..
        } = &self;
        let trial =
            running.make_trial(&self.version, self.restart.clone(), asked.wait_s, places)?;
        switch::switch_program(places, &trial)
            .map_err(|e| file_error("replace", &places.program, &e))?;
        // A closed standard output must not prevent the restart.
        let _ = print_text(&format!("picolet {} is on trial\n", self.version));
        if let Err(e) = running::restart_agent(&trial) {
            if running.still_runs(&places.old_path()) {
                // Without a restart no start would be counted: the trial would never end.
                switch::undo_switch(places).map_err(|_| running::restart_by_hand_error(&e))?;
                let why = format!("{}: the old program is installed again", e.bare_message());
                return Err(TakeoverFailure::lasting(why));
            }
            // The old agent has ended at least. The watch sees the rest.
            let _ = print_text(&format!("{}\n", e.bare_message()));
        }
        report_outcome(watch::watch_trial(places, &trial, asked.quiet)?)
    }
}

/// Returns version and sum of the staged program, if it may take over. `None`: it is the one that is installed.
fn inspect_staged(
    places: &ProgramPaths,
    running: &RunningAgent,
    force: bool,
) -> Result<Option<(String, String)>, TakeoverFailure> {
    release::check_processor_kind(places)?;
    let sum = release::compute_sha256(&places.staged_path())?;
    if sum == release::compute_sha256(&places.program)? {
        return Ok(None);
    }
    let version = running::ask_program_version(&places.staged_path())?;
    if !force {
        may_be_tried(places, running, &version, &sum)?;
    }
    let before = running.run_check(&places.program)?.checks;
    let is_new = |found: &&CheckReportFinding| {
        let is_error =
            |other: &CheckReportFinding| other.name == found.name && other.level == "error";
        // Records that the program cannot read stay unreadable with `--force`, too.
        let counts = !force || found.name == "records";
        counts && found.level == "error" && !before.iter().any(is_error)
    };
    let after = running.run_check(&places.staged_path())?.checks;
    match after.iter().find(is_new) {
        Some(CheckReportFinding { name, message, .. }) => Err(TakeoverFailure::lasting(format!(
            "picolet {version} could not run pods here: {name}: {message}"
        ))),
        None => Ok(Some((version, sum))),
    }
}

/// Checks that `--force` leaves out.
fn may_be_tried(
    places: &ProgramPaths,
    running: &RunningAgent,
    version: &str,
    sum: &str,
) -> Result<(), TakeoverFailure> {
    if let Some(why) = switch::read_put_back_reason(places, sum) {
        return Err(TakeoverFailure::lasting(format!(
            "this program was put back before: {why} (--force tries it again)"
        )));
    }
    if is_older_version(version, crate::VERSION) {
        return Err(TakeoverFailure::lasting(format!(
            "it is {version}, older than {} (--force installs it, if it can read what this one wrote)",
            crate::VERSION
        )));
    }
    health::check_health(&running.client).map(drop).map_err(|e| {
        CliError::new(format!(
            "the agent that runs now is not healthy, so the new one cannot be judged. Repair it first, or use --force: {e}"
        ))
        .into()
    })
}

fn report_outcome(outcome: TrialOutcome) -> Result<(), TakeoverFailure> {
    match outcome {
        TrialOutcome::Stays(version) => Ok(print_text(&format!(
            "picolet {version} is healthy and stays\n"
        ))?),
        TrialOutcome::Back(why) => Err(TakeoverFailure::lasting(format!(
            "the old program is back: {why}"
        ))),
    }
}

pub(super) fn file_error(what: &str, path: &Path, e: &io::Error) -> CliError {
    CliError::new(format!("cannot {what} {}: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_program_gets_time() {
        // PKG-21
        for seconds in [20, PATIENCE_S, 3600] {
            assert_eq!(check_patience(seconds).expect("enough"), seconds);
        }
        for seconds in [0, 1, 19, 3601, u64::MAX] {
            let said = check_patience(seconds).expect_err("refused").to_string();
            assert!(
                said.contains("must be between 20 and 3600 seconds"),
                "{said}"
            );
        }
    }
}
