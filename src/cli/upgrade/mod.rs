//! `picolet upgrade FILE`: takes another program in place of the one that runs, watches it, and puts the old one back if it
//! does not become healthy (PKG-20 to PKG-22).
//!
//! Files beside the program, and who undoes what: `systemd/guard.sh`. Each step leaves one whole program; one that was cut
//! off is gone on with by the guard at the next start of the agent, and by `upgrade --watch` of `picolet-upgrade.service`.

mod release;
mod running;
mod switch;
mod watch;

use std::{fs::File, io, path::PathBuf};

use super::{
    CliError,
    args::{Word, Words, unexpected},
    health, print,
};
use crate::logic::upgrade::{MAX_PATIENCE_S, PATIENCE_S, is_older};

use running::{Finding, Running};
use switch::Places;
use watch::Outcome;

/// What was typed.
#[derive(Debug)]
struct Asked {
    file: Option<PathBuf>,
    key: Option<PathBuf>,
    restart: Option<String>,
    wait_s: u64,
    dry_run: bool,
    force: bool,
    watch: bool,
    quiet: bool,
}

pub(super) fn run(mut words: Words) -> Result<(), CliError> {
    let mut asked = Asked {
        file: None,
        key: None,
        restart: None,
        wait_s: PATIENCE_S,
        dry_run: false,
        force: false,
        watch: false,
        quiet: false,
    };
    while let Some(word) = words.next()? {
        match word {
            Word::Flag("key") => asked.key = Some(words.value()?.into()),
            Word::Flag("restart") => asked.restart = Some(words.value()?),
            Word::Flag("wait") => asked.wait_s = words.number("wait")?,
            Word::Flag("dry-run") => asked.dry_run = words.switch()?,
            Word::Flag("force") => asked.force = words.switch()?,
            Word::Flag("watch") => asked.watch = words.switch()?,
            Word::Flag("quiet") => asked.quiet = words.switch()?,
            Word::Value(file) if asked.file.is_none() => asked.file = Some(file.into()),
            other => return Err(unexpected(other)),
        }
    }
    if !nix::unistd::geteuid().is_root() {
        return Err(CliError::new("must run as root: it replaces the program"));
    }
    match (asked.watch, asked.file.take()) {
        (true, None) => resume(asked.quiet),
        (false, Some(file)) => begin(&words, &asked, file),
        _ => Err(CliError::new(
            "expected 'picolet upgrade FILE', a program or the tarball of a release",
        )),
    }
}

/// Watches a trial that began before: the power failed, or its command was ended.
fn resume(quiet: bool) -> Result<(), CliError> {
    let own = std::env::current_exe().map_err(|e| CliError::new(e.to_string()))?;
    let places = Places::of_old(&own);
    let file = File::open(&own).map_err(|e| failed("open", &own, &e))?;
    // Whoever watches holds it.
    file.lock().map_err(|e| failed("lock", &own, &e))?;
    match switch::read_trial(&places)? {
        Some(trial) => told(watch::watch(&places, &trial, quiet)?),
        None => print("no program is on trial\n"),
    }
}

fn begin(words: &Words, asked: &Asked, file: PathBuf) -> Result<(), CliError> {
    let client = words.client();
    let running = Running::find(&client)?;
    let places = Places::of(&running.program);
    places.has_guard()?;
    let lock = File::open(&places.program).map_err(|e| failed("open", &places.program, &e))?;
    if lock.try_lock().is_err() || switch::read_trial(&places)?.is_some() {
        return Err(CliError::new(
            "another upgrade is under way: wait for its end, which is two minutes at most",
        ));
    }
    let restart = match &asked.restart {
        Some(command) => command.clone(),
        None => running.service()?,
    };
    let staged = release::stage(&file, asked.key.as_deref(), &places);
    let version = staged.and_then(|()| inspect(&places, &running, asked));
    let version = match version {
        Ok(Some(version)) if !asked.dry_run => version,
        other => {
            places.forget_staged();
            return match other? {
                Some(version) => print(&format!("picolet {version} can take over\n")),
                None => print("nothing to change: this program is installed\n"),
            };
        }
    };
    let trial = running.trial(&version, restart, asked.wait_s.min(MAX_PATIENCE_S), &places);
    let trial = trial.inspect_err(|_| places.forget_staged())?;
    switch::switch(&places, &trial).map_err(|e| {
        places.forget_staged();
        failed("replace", &places.program, &e)
    })?;
    // Nothing more may keep it from being restarted.
    let _ = print(&format!("picolet {version} is on trial\n"));
    running::restart(&trial)?;
    told(watch::watch(&places, &trial, asked.quiet)?)
}

/// The version of the staged program, if it may take over. `None`: it is the one that is installed.
fn inspect(places: &Places, running: &Running, asked: &Asked) -> Result<Option<String>, CliError> {
    release::fits(places)?;
    let sum = release::sum(&places.staged())?;
    if sum == release::sum(&places.program)? {
        return Ok(None);
    }
    let version = running::version(&places.staged())?;
    if !asked.force {
        may_be_tried(places, running, &version, &sum)?;
    }
    let before = running.findings(&places.program)?;
    let is_new = |found: &&Finding| {
        let is_error = |other: &Finding| other.name == found.name && other.level == "error";
        // No force makes it read what it cannot read.
        let counts = !asked.force || found.name == "records";
        counts && found.level == "error" && !before.iter().any(is_error)
    };
    match running.findings(&places.staged())?.iter().find(is_new) {
        Some(Finding { name, message, .. }) => Err(CliError::new(format!(
            "picolet {version} could not run pods here: {name}: {message}"
        ))),
        None => Ok(Some(version)),
    }
}

/// Questions that `--force` does not ask.
fn may_be_tried(
    places: &Places,
    running: &Running,
    version: &str,
    sum: &str,
) -> Result<(), CliError> {
    if let Some(why) = switch::bad(places, sum) {
        return Err(CliError::new(format!(
            "this program was put back before: {why} (--force tries it again)"
        )));
    }
    if is_older(version, crate::VERSION) {
        return Err(CliError::new(format!(
            "it is {version}, older than {} (--force takes it, if it reads what this one wrote)",
            crate::VERSION
        )));
    }
    health::look(&running.client).map(drop).map_err(|e| {
        CliError::new(format!(
            "it could not be told whether the new program is healthy, for the old one is not (--force goes on): {e}"
        ))
    })
}

fn told(outcome: Outcome) -> Result<(), CliError> {
    match outcome {
        Outcome::Stays(version) => print(&format!("picolet {version} is healthy and stays\n")),
        Outcome::Back(why) => Err(CliError::new(format!("the old program is back: {why}"))),
    }
}

fn failed(what: &str, path: &std::path::Path, e: &io::Error) -> CliError {
    CliError::new(format!("cannot {what} {}: {e}", path.display()))
}
