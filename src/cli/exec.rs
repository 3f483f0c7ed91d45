//! `picolet exec [-it] POD [-c CONTAINER] -- COMMAND`.

use std::process::ExitCode;

use super::{
    CliError,
    args::{CliWord, CliWords, unexpected},
    get::DEFAULT_NAMESPACE,
    logs::or_default,
    remote::{self, TerminalStreams},
};
use crate::server::http::encode;

#[derive(Default)]
struct ExecCommand {
    namespace: String,
    pod: String,
    container: String,
    streams: TerminalStreams,
    command: Vec<String>,
}

pub(super) fn run(mut words: CliWords) -> Result<ExitCode, CliError> {
    let mut exec = ExecCommand {
        namespace: DEFAULT_NAMESPACE.into(),
        ..ExecCommand::default()
    };
    while let Some(word) = words.next()? {
        match word {
            CliWord::Flag("namespace") => exec.namespace = words.value()?,
            CliWord::Flag("container") => exec.container = words.value()?,
            CliWord::Flag("stdin") => exec.streams.stdin = words.switch()?,
            CliWord::Flag("tty") => exec.streams.tty = words.switch()?,
            CliWord::Value(value) if exec.pod.is_empty() => exec.pod = pod_name(value),
            CliWord::Value(first) => {
                exec.command.push(first);
                exec.command.extend(words.rest()?);
            }
            other @ CliWord::Flag(_) => return Err(unexpected(other)),
        }
    }
    if exec.pod.is_empty() {
        return Err(CliError::new("pod or type/name must be specified"));
    }
    if exec.command.is_empty() {
        return Err(CliError::new(
            "you must specify at least one command for the container",
        ));
    }
    exec.streams.settle();
    remote::run(&words.client(), &exec.target(), exec.streams)
}

/// Reads the name of a pod: `NAME` or `pod/NAME`.
pub(super) fn pod_name(word: String) -> String {
    let bare = word
        .strip_prefix("pod/")
        .or_else(|| word.strip_prefix("pods/"));
    bare.map(str::to_owned).unwrap_or(word)
}

impl ExecCommand {
    fn target(&self) -> String {
        let mut target = format!(
            "/exec/{}/{}/{}?{}",
            encode(&self.namespace),
            encode(&self.pod),
            encode(or_default(&self.container)),
            self.streams.query()
        );
        for word in &self.command {
            target.push_str("&command=");
            target.push_str(&encode(word));
        }
        target
    }
}
