//! `picolet reset`: lists the things to remove, asks, and removes them.

use std::{
    ffi::OsString,
    io::{self, BufRead as _, IsTerminal as _, Read as _, Write as _},
};

use super::{CliError, args, client::AgentClient, commands::CliCommand, print_text, stop};
use crate::{
    agent::{ResetError, ResetOptions, ResetPlan},
    error::error_chain,
};

/// Most bytes of an answer.
const MAX_ANSWER_BYTES: u64 = 64;

/// The command's own flags.
#[derive(Clone, Copy, Debug, Default)]
struct ResetFlags {
    choice: ResetOptions,
    yes: bool,
    dry_run: bool,
    stop: bool,
}

pub(super) fn run_reset(
    command: &'static CliCommand,
    words: Vec<OsString>,
) -> Result<(), CliError> {
    let (own, agent) = args::split_flags(command, words)?;
    let flags = parse_reset_flags(&own)?;
    let refused = |e: ResetError| CliError::new(error_chain(&e));
    let reset = ResetPlan::new(agent, flags.choice).map_err(refused)?;
    let survey = reset.list_removals();
    let agent_runs = reset.is_agent_running();
    if flags.dry_run {
        return print_text(&survey_text(&survey, agent_runs));
    }
    if agent_runs && !flags.stop {
        return Err(CliError::new(
            "the agent is running: use --stop to end it and its pods first. To end only the agent: systemctl disable --now picolet, or rc-service picolet stop",
        ));
    }
    if survey.is_empty() && !agent_runs {
        return print_text("There is nothing to remove.\n");
    }
    if !flags.yes {
        print_text(&survey_text(&survey, agent_runs))?;
        if !ask_confirmation()? {
            return Err(CliError::new("nothing was removed"));
        }
    }
    if agent_runs {
        // The agent of the directories that are removed, even if the environment names another socket.
        let client = AgentClient::new(reset.agent_socket());
        let service = stop::find_supervised_service(&client);
        client
            .send_request("POST", "/stop?all=true", "")?
            .read_text()?;
        if let Some(name) = service {
            stop::stop_supervisor(name);
        }
    }
    let locked = reset.lock_dirs(agent_runs).map_err(refused)?;
    match locked.carry_out() {
        Ok(()) => print_text("Everything was removed.\n"),
        Err(left) => Err(CliError::new(format!(
            "some things could not be removed. Correct what is wrong, then run this again:\n{}",
            indent_lines(&left)
        ))),
    }
}

fn parse_reset_flags(own: &[(&'static str, String)]) -> Result<ResetFlags, CliError> {
    let mut flags = ResetFlags::default();
    for (name, value) in own {
        let on = || args::parse_switch(value);
        match *name {
            "yes" | "force" => flags.yes |= on()?,
            "dry-run" => flags.dry_run = on()?,
            "stop" => flags.stop = on()?,
            "keep-images" => flags.choice.keep_images = on()?,
            "grace-period" => {
                let seconds = value.parse().ok().filter(|s: &i64| *s >= 0);
                let seconds = seconds.ok_or_else(|| {
                    CliError::new(format!(
                        "invalid argument {value:?} for \"grace-period\": not a number of seconds"
                    ))
                })?;
                flags.choice.grace_s = Some(seconds);
            }
            _ => unreachable!("the table of commands has no such flag"),
        }
    }
    Ok(flags)
}

fn survey_text(survey: &[String], agent_runs: bool) -> String {
    let mut lines = survey.to_vec();
    if agent_runs {
        lines.insert(0, "the running agent, ended first (with --stop)".into());
    }
    if lines.is_empty() {
        return "There is nothing to remove.\n".into();
    }
    format!("This would be removed:\n{}\n", indent_lines(&lines))
}

fn indent_lines(lines: &[String]) -> String {
    let lines: Vec<String> = lines.iter().map(|l| format!("  {l}")).collect();
    lines.join("\n")
}

fn ask_confirmation() -> Result<bool, CliError> {
    if !io::stdin().is_terminal() {
        return Err(CliError::new(
            "cannot ask for confirmation, because standard input is not a terminal: use --yes",
        ));
    }
    let _ = write!(io::stderr(), "Remove all of it? [y/N] ");
    let mut answer = String::new();
    let _ = io::stdin()
        .lock()
        .take(MAX_ANSWER_BYTES)
        .read_line(&mut answer);
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_typed() {
        let parsed = |words: &[(&'static str, &str)]| {
            let own: Vec<_> = words.iter().map(|(n, v)| (*n, (*v).to_owned())).collect();
            parse_reset_flags(&own).map_err(|e| e.to_string())
        };
        let all =
            parsed(&[("force", "true"), ("stop", "1"), ("grace-period", "0")]).expect("flags");
        assert!(all.yes && all.stop && !all.dry_run && !all.choice.keep_images);
        assert_eq!(all.choice.grace_s, Some(0));
        assert!(!parsed(&[("yes", "false")]).expect("flags").yes);
        for (name, value) in [
            ("yes", "maybe"),
            ("grace-period", "-1"),
            ("grace-period", "1m"),
        ] {
            let said = parsed(&[(name, value)]).expect_err("refused");
            assert!(said.contains(value), "{said}");
        }
    }

    #[test]
    fn the_agent_counts_as_something_to_remove() {
        assert_eq!(survey_text(&[], false), "There is nothing to remove.\n");
        let text = survey_text(&["pod a/b".into()], true);
        assert!(text.contains("running agent") && text.contains("\n  pod a/b\n"));
    }
}
