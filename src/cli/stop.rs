//! `picolet stop`: ends the agent, and if it is told to, its pods before that.

use core::time::Duration;
use std::{sync::mpsc, thread};

use serde_json::Value;

use super::{
    CliError, Client,
    args::{Word, Words, unexpected},
    progress::{Progress, Shown},
};

/// Between two looks at how many pods are left.
const LOOK: Duration = Duration::from_millis(500);

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
fn with_progress(client: &Client, path: &'static str) -> Result<super::client::Answer, CliError> {
    let pods = running(client)?;
    let (asker, (answer, answers)) = (client.clone(), mpsc::channel());
    thread::spawn(move || {
        // Whoever waits may have gone.
        let _ = answer.send(asker.send("POST", path, ""));
    });
    let mut progress = Progress::new("stop", false);
    // Bounded: by the agent's answer, or its end.
    loop {
        match answers.recv_timeout(LOOK) {
            Ok(answer) => return answer,
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                return Err(CliError::new("the thread that asks the agent has ended"));
            }
        }
        // It may have gone already; then its answer is on its way.
        if let Ok(left) = running(client) {
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
