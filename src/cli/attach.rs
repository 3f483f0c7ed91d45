//! `picolet attach [-it] POD [-c CONTAINER]`.

use std::io::{self, Write as _};
use std::process::ExitCode;

use serde_json::Value;

use super::{
    CliError,
    args::{CliWord, CliWords, unexpected_word},
    exec::parse_pod_name,
    get::DEFAULT_NAMESPACE,
    logs::container_or_default,
    pods,
    remote::{self, TerminalStreams},
};
use crate::server::http::percent_encode;

pub(super) fn run_attach(mut words: CliWords) -> Result<ExitCode, CliError> {
    let mut namespace = DEFAULT_NAMESPACE.to_owned();
    let mut container = String::new();
    let mut pod = String::new();
    let mut streams = TerminalStreams::default();
    while let Some(word) = words.next_word()? {
        match word {
            CliWord::Flag("namespace") => namespace = words.flag_value()?,
            CliWord::Flag("container") => container = words.flag_value()?,
            CliWord::Flag("stdin") => streams.stdin = words.switch_value()?,
            CliWord::Flag("tty") => streams.tty = words.switch_value()?,
            CliWord::Value(value) if pod.is_empty() => pod = parse_pod_name(value),
            CliWord::Value(name) => {
                return Err(CliError::new(format!(
                    "unexpected argument {name:?}: name a container with -c"
                )));
            }
            other @ CliWord::Flag(_) => return Err(unexpected_word(other)),
        }
    }
    if pod.is_empty() {
        return Err(CliError::new("pod or type/name must be specified"));
    }
    let client = words.agent_client();
    let found = pods::fetch_pods(&client, &namespace)?;
    let object = pods::find_pod(&found, &pod);
    drop_missing_streams(&mut streams, object, &container);
    streams.drop_absent_terminal();
    if streams.tty {
        let text = "If you don't see a command prompt, try pressing enter.";
        let _ = writeln!(io::stderr(), "{text}");
    }
    let target = format!(
        "/attach/{}/{}/{}?{}",
        percent_encode(&namespace),
        percent_encode(&pod),
        percent_encode(container_or_default(&container)),
        streams.query_parameters()
    );
    remote::run_remote_streams(&client, &target, streams)
}

/// Switches off the streams that the container has not, with kubectl's messages.
fn drop_missing_streams(streams: &mut TerminalStreams, pod: Option<&Value>, container: &str) {
    let lists = ["containers", "initContainers", "ephemeralContainers"];
    let all = |pod: &Value| {
        let lists = lists
            .iter()
            .filter_map(|list| pod["spec"][*list].as_array());
        lists.flatten().cloned().collect::<Vec<_>>()
    };
    let containers = pod.map(all).unwrap_or_default();
    let named = |c: &&Value| container.is_empty() || c["name"] == *container;
    // Without a name the agent chooses the container. Only the first one can be judged here.
    let Some(found) = containers.iter().find(named) else {
        return;
    };
    let name = found["name"].as_str().unwrap_or("");
    if streams.tty && found["tty"] != true {
        let text = format!("error: Unable to use a TTY - container {name} did not allocate one");
        let _ = writeln!(io::stderr(), "{text}");
        streams.tty = false;
    }
    if streams.stdin && found["stdin"] != true {
        let text = format!("error: Unable to use stdin: container {name} did not allocate one");
        let _ = writeln!(io::stderr(), "{text}");
        streams.stdin = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_container_has() {
        let pod = serde_json::json!({ "spec": {
            "containers": [{ "name": "plain" }, { "name": "shell", "stdin": true, "tty": true }],
        } });
        let all = TerminalStreams {
            stdin: true,
            tty: true,
        };
        for (name, expected) in [
            ("", TerminalStreams::default()),
            ("plain", TerminalStreams::default()),
            ("shell", all),
            ("unknown", all),
        ] {
            let mut streams = all;
            drop_missing_streams(&mut streams, Some(&pod), name);
            assert_eq!(streams, expected, "{name}");
        }
    }
}
