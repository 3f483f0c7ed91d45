//! `picolet stop`: ends the agent, and if it is told to, its pods before that.

use core::time::Duration;
use std::os::fd::AsRawFd as _;

use serde_json::Value;

use super::{
    CliError,
    args::{Word, Words, unexpected},
    client::{Answer, Client},
    health::LOOK_MS,
    progress::{Progress, Shown},
};
use crate::sys::start;

/// So long an agent that ends its pods may say nothing of them.
const PATIENCE: Duration = Duration::from_secs(2);

pub(super) fn run(mut words: Words) -> Result<(), CliError> {
    let (mut all, mut shutdown, mut quiet) = (false, false, false);
    while let Some(word) = words.next()? {
        match word {
            Word::Flag("all") => all = words.switch()?,
            Word::Flag("shutdown") => shutdown = words.switch()?,
            Word::Flag("quiet") => quiet = words.switch()?,
            other => return Err(unexpected(other)),
        }
    }
    let path = match (shutdown, all) {
        (true, _) => "/stop?shutdown=true",
        (false, true) => "/stop?all=true",
        (false, false) => "/stop",
    };
    let client = words.client();
    let mut answer = match (all || shutdown) && !quiet {
        true => with_progress(&client, path)?,
        false => client.send("POST", path, "")?,
    };
    answer.copy_to(&mut std::io::stdout())
}

/// Asks, and tells how many pods have ended until the answer is there.
fn with_progress(client: &Client, path: &str) -> Result<Answer, CliError> {
    // What is shown meanwhile keeps nobody from stopping.
    let look = client.clone().with_patience(PATIENCE);
    let pods = running(&look).unwrap_or(0);
    let asked = client.ask("POST", path, "")?;
    let mut progress = Progress::new("stop", false);
    // Bounded: by the agent's answer, or its end.
    loop {
        let mut answer = [libc::pollfd {
            fd: asked.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        }];
        if start::poll(&mut answer, LOOK_MS).map_or(true, |ready| ready > 0) {
            drop(progress);
            return Client::answer(asked);
        }
        // It may have gone already; then its answer is on its way.
        if pods > 0
            && let Ok(left) = running(&look)
        {
            progress.show(Shown {
                stage: "ending",
                done: pods.saturating_sub(left),
                all: pods,
                parts: "pods",
                bytes: None,
            });
        }
    }
}

/// Pods with a container that runs.
fn running(client: &Client) -> Result<u64, CliError> {
    let pods = client.json("GET", "/pods")?;
    let runs = |pod: &&Value| {
        ["initContainerStatuses", "containerStatuses"]
            .iter()
            .filter_map(|list| pod["status"][list].as_array())
            .flatten()
            .any(|container| container["state"]["running"].is_object())
    };
    let items = pods["items"].as_array();
    let count = items.map_or(0, |items| items.iter().filter(runs).count());
    Ok(u64::try_from(count).unwrap_or(u64::MAX))
}
