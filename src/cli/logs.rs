//! `picolet logs POD`.

use core::fmt::Write as _;

use super::{
    CliError,
    args::{CliWord, CliWords, parse_duration_ms, unexpected_word},
    exec::parse_pod_name,
    get::DEFAULT_NAMESPACE,
};
use crate::server::http::percent_encode;

pub(crate) fn run_logs(mut words: CliWords) -> Result<(), CliError> {
    let mut namespace = DEFAULT_NAMESPACE.to_owned();
    let mut container = String::new();
    let mut names: Vec<String> = Vec::new();
    let mut query = String::new();
    let mut ask = |name: &str, value: &str| {
        let _ = write!(query, "&{name}={}", percent_encode(value));
    };
    let mut since = 0;
    while let Some(word) = words.next_word()? {
        match word {
            CliWord::Flag(name) => match name {
                "namespace" => namespace = words.flag_value()?,
                "container" => container = words.flag_value()?,
                "follow" => ask("follow", &words.switch_value()?.to_string()),
                "previous" => ask("previous", &words.switch_value()?.to_string()),
                "timestamps" => ask("timestamps", &words.switch_value()?.to_string()),
                "tail" => {
                    let lines: i64 = words.number_value("--tail")?;
                    if lines >= 0 {
                        ask("tailLines", &lines.to_string());
                    }
                }
                "limit-bytes" => ask(
                    "limitBytes",
                    &words.number_value::<u64>("--limit-bytes")?.to_string(),
                ),
                "since" => {
                    let text = words.flag_value()?;
                    let ms = parse_duration_ms(&text).ok_or_else(|| {
                        CliError::new(format!("invalid argument {text:?} for \"--since\""))
                    })?;
                    since += 1;
                    ask("sinceSeconds", &ms.div_ceil(1000).to_string());
                }
                "since-time" => {
                    since += 1;
                    ask("sinceTime", &words.flag_value()?);
                }
                _ => return Err(unexpected_word(CliWord::Flag(name))),
            },
            CliWord::Value(value) => names.push(value),
        }
    }
    if since > 1 {
        return Err(CliError::new(
            "only one of --since-time / --since may be used",
        ));
    }
    let mut names = names.into_iter();
    let (pod, second) = (names.next(), names.next());
    let (Some(pod), None) = (pod, names.next()) else {
        return Err(CliError::new("expected 'logs POD [-c CONTAINER]'"));
    };
    let pod = &*parse_pod_name(pod);
    if let Some(second) = second {
        if !container.is_empty() {
            return Err(CliError::new(
                "only one of -c or an inline [CONTAINER] arg is allowed",
            ));
        }
        container = second;
    }
    let target = format!(
        "/containerLogs/{}/{}/{}?{query}",
        percent_encode(&namespace),
        percent_encode(pod),
        percent_encode(container_or_default(&container))
    );
    let mut answer = words.agent_client().request_stream(&target)?;
    answer.copy_body_to(&mut std::io::stdout())
}

/// Returns the path segment of a container; empty means the one that the agent would choose.
pub(crate) fn container_or_default(container: &str) -> &str {
    if container.is_empty() { "-" } else { container }
}
