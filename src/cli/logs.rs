//! `picolet logs POD`, and the logs of several containers, one after the other or followed at once.

use core::fmt::Write as _;
use std::{io, thread};

use serde_json::Value;

use super::{
    AgentClient, CliError,
    args::{CliWord, CliWords, parse_duration_ms, unexpected_word},
    exec::parse_pod_name,
    get::DEFAULT_NAMESPACE,
    pods, print_error,
};
use crate::server::http::percent_encode;

/// Most logs that are followed at once, unless told otherwise.
const DEFAULT_MAX_FOLLOWED: usize = 5;
/// Lines from the end of each log that a selector chooses, unless told otherwise.
const SELECTOR_TAIL_LINES: i64 = 10;
/// Most bytes of a line that is kept in one piece among the lines of other logs.
const MAX_LINE_BYTES: usize = 64 * 1024;
/// Annotation that names the container of a pod that is meant if none is named.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

pub(crate) fn run_logs(mut words: CliWords) -> Result<(), CliError> {
    let mut namespace = DEFAULT_NAMESPACE.to_owned();
    let mut container = String::new();
    let mut names: Vec<String> = Vec::new();
    let mut query = String::new();
    let mut ask = |name: &str, value: &str| {
        let _ = write!(query, "&{name}={}", percent_encode(value));
    };
    let (mut since, mut tail, mut selector) = (0, None, None);
    let (mut follow, mut all, mut prefix, mut ignore_errors) = (false, false, false, false);
    let mut max_followed = DEFAULT_MAX_FOLLOWED;
    while let Some(word) = words.next_word()? {
        match word {
            CliWord::Flag(name) => match name {
                "namespace" => namespace = words.flag_value()?,
                "container" => container = words.flag_value()?,
                "selector" => selector = Some(pods::parse_selector(&words.flag_value()?)?),
                "all-containers" => all = words.switch_value()?,
                "prefix" => prefix = words.switch_value()?,
                "ignore-errors" => ignore_errors = words.switch_value()?,
                "max-log-requests" => max_followed = words.number_value("--max-log-requests")?,
                "follow" => follow = words.switch_value()?,
                "previous" => ask("previous", &words.switch_value()?.to_string()),
                "timestamps" => ask("timestamps", &words.switch_value()?.to_string()),
                "tail" => tail = Some(words.number_value::<i64>("--tail")?),
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
    if tail.is_some_and(|lines| lines < -1) {
        return Err(CliError::new("--tail must be greater than or equal to -1"));
    }
    let lines = tail.unwrap_or(match selector {
        Some(_) => SELECTOR_TAIL_LINES,
        None => -1,
    });
    if lines >= 0 {
        ask("tailLines", &lines.to_string());
    }
    ask("follow", &follow.to_string());
    let mut names = names.into_iter();
    let pod = names.next().map(parse_pod_name);
    if let Some(second) = names.next() {
        if !container.is_empty() {
            return Err(CliError::new(
                "only one of -c or an inline [CONTAINER] arg is allowed",
            ));
        }
        container = second;
    }
    if let Some(third) = names.next() {
        return Err(unexpected_word(CliWord::Value(third)));
    }
    if all && !container.is_empty() {
        return Err(CliError::new(format!(
            "--all-containers=true should not be specified with container name {container}"
        )));
    }
    let client = words.agent_client();
    let found = match (&pod, &selector) {
        (None, None) => return Err(CliError::new("expected 'logs POD [-c CONTAINER]'")),
        (Some(_), Some(_)) => {
            return Err(CliError::new(
                "only a selector (-l) or a POD name is allowed",
            ));
        }
        (None, Some(selector)) => pods::fetch_selected_pods(&client, &namespace, selector)?,
        (Some(pod), None) if all || prefix => {
            let found = pods::fetch_pods(&client, &namespace)?;
            let found = pods::find_pod(&found, pod).ok_or_else(|| pods::pod_not_found(pod))?;
            vec![found.clone()]
        }
        // The agent chooses the container.
        (Some(_), None) => Vec::new(),
    };
    let request = |pod: &str, container: &str, prefix: bool| LogRequest {
        target: format!(
            "/containerLogs/{}/{}/{}?{query}",
            percent_encode(&namespace),
            percent_encode(pod),
            percent_encode(container_or_default(container))
        ),
        prefix: match prefix {
            true => format!("[pod/{pod}/{container}] "),
            false => String::new(),
        },
    };
    let mut requests = Vec::new();
    for pod in &found {
        let containers = containers_to_read(pod, &container, all);
        let of_pod = containers.into_iter();
        requests.extend(of_pod.map(|container| request(pods::name_of(pod), container, prefix)));
    }
    if let (Some(pod), true) = (&pod, found.is_empty()) {
        requests.push(request(pod, &container, false));
    }
    if follow && requests.len() > 1 {
        if requests.len() > max_followed {
            return Err(CliError::new(format!(
                "you are attempting to follow {} log streams, but maximum allowed concurrency is {max_followed}, use --max-log-requests to increase the limit",
                requests.len()
            )));
        }
        return follow_logs(&client, requests, ignore_errors);
    }
    for request in &requests {
        match request.print_log(&client, prefix) {
            Err(e) if ignore_errors => print_error(&e),
            printed => printed?,
        }
    }
    Ok(())
}

/// Returns the path segment of a container; empty means the one that the agent would choose.
pub(crate) fn container_or_default(container: &str) -> &str {
    if container.is_empty() { "-" } else { container }
}

/// Lists the containers of a pod whose logs are meant: the named one, all in kubectl's order, or the default one.
fn containers_to_read<'a>(pod: &'a Value, named: &'a str, all: bool) -> Vec<&'a str> {
    if !named.is_empty() {
        return vec![named];
    }
    let lists = ["initContainers", "containers", "ephemeralContainers"];
    let lists = lists
        .iter()
        .filter_map(|list| pod["spec"][*list].as_array());
    let names = lists.flatten().filter_map(|c| c["name"].as_str());
    let names: Vec<&str> = names.collect();
    if all {
        return names;
    }
    let annotated = pod["metadata"]["annotations"][DEFAULT_CONTAINER].as_str();
    let annotated = annotated.filter(|name| names.contains(name));
    let first = pod["spec"]["containers"][0]["name"].as_str();
    annotated.or(first).into_iter().collect()
}

/// A log to print.
struct LogRequest {
    target: String,
    /// Text before each line.
    prefix: String,
}

impl LogRequest {
    /// Prints the log to its end. `by_lines`: only whole lines are written.
    fn print_log(&self, client: &AgentClient, by_lines: bool) -> Result<(), CliError> {
        let mut answer = client.request_stream(&self.target)?;
        let mut stdout = io::stdout();
        if !by_lines {
            return answer.copy_body_to(&mut stdout);
        }
        let mut lines = WholeLines {
            prefix: &self.prefix,
            line: Vec::new(),
            out: &mut stdout,
        };
        let copied = answer.copy_body_to(&mut lines);
        // If the reader of the output has gone, this is no error here either.
        let _ = lines.write_line();
        copied
    }
}

/// Writes whole lines, each with a prefix, so that those of several logs do not mix.
struct WholeLines<'a> {
    prefix: &'a str,
    /// Line that has no end yet, with its prefix.
    line: Vec<u8>,
    out: &'a mut dyn io::Write,
}

impl WholeLines<'_> {
    fn write_line(&mut self) -> io::Result<()> {
        let line = core::mem::take(&mut self.line);
        self.out.write_all(&line)
    }
}

impl io::Write for WholeLines<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for piece in bytes.split_inclusive(|&b| b == b'\n') {
            if self.line.is_empty() {
                self.line.extend_from_slice(self.prefix.as_bytes());
            }
            self.line.extend_from_slice(piece);
            if piece.ends_with(b"\n") || self.line.len() > MAX_LINE_BYTES {
                self.write_line()?;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Follows logs at once, a thread for each. Unless errors are ignored, the first one ends the command.
fn follow_logs(
    client: &AgentClient,
    requests: Vec<LogRequest>,
    ignore_errors: bool,
) -> Result<(), CliError> {
    let mut threads = Vec::new();
    for request in requests {
        let client = client.clone();
        let follow: Box<dyn FnOnce() + Send> = Box::new(move || {
            if let Err(e) = request.print_log(&client, true) {
                print_error(&e);
                if !ignore_errors {
                    std::process::exit(1);
                }
            }
        });
        let thread = thread::Builder::new().spawn(follow);
        threads.push(thread.map_err(|e| CliError::new(format!("cannot start a thread: {e}")))?);
    }
    for thread in threads {
        let _ = thread.join();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use serde_json::json;

    use super::*;

    #[test]
    fn containers_whose_logs_are_read() {
        // CMD-01
        let mut pod = json!({"spec": {
            "containers": [{"name": "a"}, {"name": "b"}],
            "initContainers": [{"name": "init"}],
            "ephemeralContainers": [{"name": "debug"}],
        }});
        let read = |pod: &Value, named: &str, all| containers_to_read(pod, named, all).join(" ");
        assert_eq!(read(&pod, "", true), "init a b debug");
        assert_eq!(read(&pod, "", false), "a");
        assert_eq!(read(&pod, "x", false), "x", "the agent refuses it");
        pod["metadata"]["annotations"][DEFAULT_CONTAINER] = "b".into();
        assert_eq!(read(&pod, "", false), "b");
        pod["metadata"]["annotations"][DEFAULT_CONTAINER] = "x".into();
        assert_eq!(read(&pod, "", false), "a");
    }

    #[test]
    fn lines_stay_whole() {
        // CMD-01
        let mut out = Vec::new();
        let mut lines = WholeLines {
            prefix: "[p] ",
            line: Vec::new(),
            out: &mut out,
        };
        let mut seen = Vec::new();
        for piece in ["on", "e\ntwo", "\n\nthr", "ee"] {
            lines.write_all(piece.as_bytes()).expect("written");
            seen.push(lines.line.len());
        }
        assert_eq!(seen, [6, 7, 7, 9], "only a line without an end is kept");
        lines.write_line().expect("written");
        assert_eq!(
            String::from_utf8_lossy(&out),
            "[p] one\n[p] two\n[p] \n[p] three"
        );
        let mut lines = WholeLines {
            prefix: "",
            line: Vec::new(),
            out: &mut Vec::new(),
        };
        lines
            .write_all(&[b'x'; MAX_LINE_BYTES + 1])
            .expect("written");
        assert!(lines.line.is_empty(), "its memory is bounded");
    }
}
