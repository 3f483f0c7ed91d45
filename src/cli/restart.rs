//! `picolet restart POD`: ends static pods and starts them anew.

use super::{
    CliError,
    args::{CliWord, CliWords, unexpected_word},
    exec::parse_pod_name,
    get::DEFAULT_NAMESPACE,
};
use crate::server::http::percent_encode;

pub(super) fn run_restart(mut words: CliWords) -> Result<(), CliError> {
    let mut namespace = DEFAULT_NAMESPACE.to_owned();
    let mut names = Vec::new();
    while let Some(word) = words.next_word()? {
        match word {
            CliWord::Flag("namespace") => namespace = words.flag_value()?,
            CliWord::Value(name) => names.push(parse_pod_name(name)),
            other @ CliWord::Flag(_) => return Err(unexpected_word(other)),
        }
    }
    if names.is_empty() {
        return Err(CliError::new("expected 'restart POD...'"));
    }
    let client = words.agent_client();
    for name in names {
        let target = restart_target(&namespace, &name);
        let mut answer = client.send_request("POST", &target, "")?;
        answer.copy_body_to(&mut std::io::stdout())?;
    }
    Ok(())
}

/// Path at the agent that restarts a pod.
pub(crate) fn restart_target(namespace: &str, pod: &str) -> String {
    let (namespace, pod) = (percent_encode(namespace), percent_encode(pod));
    format!("/pods/{namespace}/{pod}/restart")
}
