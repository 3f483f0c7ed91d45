//! `picolet exec [-it] POD [-c CONTAINER] -- COMMAND`.

use std::process::ExitCode;

use super::{
    CliError,
    args::{CliWord, CliWords, unexpected_word},
    get::DEFAULT_NAMESPACE,
    logs::container_or_default,
    remote::{self, TerminalStreams},
};
use crate::server::http::percent_encode;

/// A command to run in a container.
#[derive(Default)]
pub(super) struct ExecCommand {
    pub(super) namespace: String,
    pub(super) pod: String,
    /// Name of the container; empty: the default one.
    pub(super) container: String,
    pub(super) streams: TerminalStreams,
    /// Words of the command.
    pub(super) command: Vec<String>,
}

pub(super) fn run_exec(mut words: CliWords) -> Result<ExitCode, CliError> {
    let mut exec = ExecCommand {
        namespace: DEFAULT_NAMESPACE.into(),
        ..ExecCommand::default()
    };
    while let Some(word) = words.next_word()? {
        match word {
            CliWord::Flag("namespace") => exec.namespace = words.flag_value()?,
            CliWord::Flag("container") => exec.container = words.flag_value()?,
            CliWord::Flag("stdin") => exec.streams.stdin = words.switch_value()?,
            CliWord::Flag("tty") => exec.streams.tty = words.switch_value()?,
            CliWord::Value(value) if exec.pod.is_empty() => exec.pod = parse_pod_name(value),
            CliWord::Value(first) => {
                exec.command.push(first);
                exec.command.extend(words.remaining_words()?);
            }
            other @ CliWord::Flag(_) => return Err(unexpected_word(other)),
        }
    }
    if exec.pod.is_empty() {
        return Err(CliError::new("pod or type/name must be specified"));
    }
    if exec.command.is_empty() {
        return Err(CliError::new(
            "you must specify at least one command for the container, as in 'picolet exec POD -- COMMAND'",
        ));
    }
    exec.streams.drop_absent_terminal();
    remote::run_remote_streams(&words.agent_client(), &exec.request_target(), exec.streams)
}

/// Reads the name of a pod: `NAME` or `pod/NAME`. A name of another kind stays whole: no pod has it.
pub(super) fn parse_pod_name(word: String) -> String {
    match word.split_once('/') {
        Some(("pod" | "pods" | "po", name)) => name.to_owned(),
        _ => word,
    }
}

impl ExecCommand {
    /// Path at the agent that runs the command.
    pub(super) fn request_target(&self) -> String {
        let mut target = format!(
            "/exec/{}/{}/{}?{}",
            percent_encode(&self.namespace),
            percent_encode(&self.pod),
            percent_encode(container_or_default(&self.container)),
            self.streams.query_parameters()
        );
        for word in &self.command {
            target.push_str("&command=");
            target.push_str(&percent_encode(word));
        }
        target
    }
}
