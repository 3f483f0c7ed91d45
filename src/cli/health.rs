//! `picolet health`: whether the agent does its work, for programs that wait for it: the mark of a good image, an upgrade.

use core::time::Duration;

use super::{
    CliError,
    args::{CliWord, CliWords, unexpected_word},
    client::AgentClient,
    live, print_text,
};
use crate::{
    api::health::AgentHealth,
    logic::check,
    sys::{clock, start},
};

/// Longest time that is waited, seconds.
const MAX_WAIT_S: u64 = 3600;
/// Time between two looks, milliseconds.
pub(crate) const LOOK_MS: i32 = 500;

pub(crate) fn run_health(mut words: CliWords) -> Result<(), CliError> {
    let mut wait_s: u64 = 0;
    while let Some(word) = words.next_word()? {
        match word {
            CliWord::Flag("wait") => wait_s = words.number_value("--wait")?,
            other => return Err(unexpected_word(other)),
        }
    }
    if wait_s > MAX_WAIT_S {
        return Err(CliError::new(format!(
            "invalid argument \"{wait_s}\" for \"--wait\": must be at most {MAX_WAIT_S} seconds"
        )));
    }
    let client = words.agent_client().with_patience(live::PATIENCE);
    let deadline = clock::mono_now() + Duration::from_secs(wait_s);
    // Bounded: by the deadline.
    loop {
        match check_health(&client) {
            Ok(_) => return print_text("ok\n"),
            Err(e) if clock::mono_now() >= deadline => return Err(e),
            Err(_) => wait_for_next_look(),
        }
    }
}

/// Reads the agent's health. An agent that is not well is an error; a silent apiserver is not its fault.
pub(crate) fn check_health(client: &AgentClient) -> Result<AgentHealth, CliError> {
    let health: AgentHealth = client.fetch_typed("/health")?;
    match check::agent_trouble(&health) {
        None => Ok(health),
        Some(why) => Err(CliError::new(format!("the agent {why}"))),
    }
}

/// Passes the time until the next look.
pub(crate) fn wait_for_next_look() {
    // Cut short, the next look comes sooner.
    let _ = start::poll_fds(&mut [], LOOK_MS);
}
