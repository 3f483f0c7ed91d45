//! `picolet wait pod NAME --for condition=Ready`: for scripts.

use core::time::Duration;

use serde_json::Value;

use super::{
    CliError,
    args::{CliWord, CliWords, parse_duration_ms, unexpected_word},
    get::DEFAULT_NAMESPACE,
    health, live, pods, print_text,
};
use crate::{
    logic::{
        jsonpath::{self, Template},
        label_selector::LabelSelector,
    },
    sys::clock,
};

/// Time to wait for all pods together, unless told otherwise.
const DEFAULT_TIMEOUT_MS: u64 = 30_000;
/// Longest time to wait: a week, as for kubectl if a timeout is negative.
const MAX_TIMEOUT_MS: u64 = 7 * 24 * 3600 * 1000;

/// Goal of `--for`.
#[derive(Debug)]
enum WaitGoal {
    Create,
    Delete,
    /// A condition has this status; case does not count.
    Condition(String, String),
    /// The one value at a path is this one, or any if none is given.
    Path(Template, Option<String>),
}

pub(super) fn run_wait(mut words: CliWords) -> Result<(), CliError> {
    let mut namespace = DEFAULT_NAMESPACE.to_owned();
    let (mut names, mut is_kind_known) = (Vec::new(), false);
    let (mut selector, mut all, mut goal) = (None, false, None);
    let mut timeout_ms = DEFAULT_TIMEOUT_MS;
    while let Some(word) = words.next_word()? {
        match word {
            CliWord::Flag("namespace") => namespace = words.flag_value()?,
            CliWord::Flag("selector") => {
                selector = Some(pods::parse_selector(&words.flag_value()?)?);
            }
            CliWord::Flag("all") => all = words.switch_value()?,
            CliWord::Flag("for") => goal = Some(parse_goal(&words.flag_value()?)?),
            CliWord::Flag("timeout") => {
                let text = words.flag_value()?;
                timeout_ms = parse_timeout_ms(&text).ok_or_else(|| {
                    CliError::new(format!("invalid argument {text:?} for \"--timeout\""))
                })?;
            }
            CliWord::Value(word) => pods::add_pod_word(&mut names, &mut is_kind_known, word)?,
            other @ CliWord::Flag(_) => return Err(unexpected_word(other)),
        }
    }
    let goal = goal.ok_or_else(|| CliError::new(GOALS))?;
    if all {
        if selector.is_some() {
            return Err(CliError::new("use only one of --all and --selector"));
        }
        selector = Some(LabelSelector::default());
    }
    if names.is_empty() == selector.is_none() {
        return Err(CliError::new(
            "expected 'wait pod NAME... --for GOAL', or -l or --all instead of names",
        ));
    }
    let client = words.agent_client().with_patience(live::PATIENCE);
    let deadline = clock::mono_now() + Duration::from_millis(timeout_ms);
    let mut found = pods::fetch_pods(&client, &namespace)?;
    if let Some(selector) = selector {
        let chosen = found.iter().filter(|pod| selector.matches(pod));
        names = chosen.map(|pod| pods::name_of(pod).to_owned()).collect();
        if names.is_empty() && !matches!(goal, WaitGoal::Delete) {
            return Err(CliError::new("no matching resources found"));
        }
    }
    // Another pod of the same name is not the one that was to be deleted.
    let uids = names.iter().map(|name| pods::find_pod(&found, name));
    let uids: Vec<Value> = uids.map(|pod| uid_of(pod).clone()).collect();
    for (name, uid) in names.iter().zip(&uids) {
        if matches!(goal, WaitGoal::Delete) && uid.is_null() {
            continue;
        }
        // Bounded: by the deadline.
        while !goal.is_reached(&found, name, uid)? {
            if clock::mono_now() >= deadline {
                return Err(CliError::new(match timeout_ms {
                    0 => format!("condition not met for pods/{name}"),
                    _ => format!("timed out waiting for the condition on pods/{name}"),
                }));
            }
            health::wait_for_next_look();
            found = pods::fetch_pods(&client, &namespace)?;
        }
        print_text(&format!("pod/{name} condition met\n"))?;
    }
    Ok(())
}

fn uid_of(pod: Option<&Value>) -> &Value {
    pod.map_or(&Value::Null, |pod| &pod["metadata"]["uid"])
}

fn parse_goal(text: &str) -> Result<WaitGoal, CliError> {
    match text.split_once('=') {
        None if text.eq_ignore_ascii_case("create") => Ok(WaitGoal::Create),
        None if text.eq_ignore_ascii_case("delete") => Ok(WaitGoal::Delete),
        Some(("condition", wanted)) if !wanted.is_empty() => {
            let (name, status) = wanted.split_once('=').unwrap_or((wanted, "true"));
            Ok(WaitGoal::Condition(name.to_owned(), status.to_owned()))
        }
        Some(("jsonpath", wanted)) => parse_path_goal(wanted),
        _ => Err(CliError::new(format!(
            "unrecognized condition: {text:?}; {GOALS}"
        ))),
    }
}

/// Goals of `--for`, for the messages.
const GOALS: &str = "--for must be create, delete, condition=NAME, condition=NAME=STATUS, jsonpath=PATH or jsonpath=PATH=VALUE";

/// Reads `PATH` or `PATH=VALUE`. A `=` within brackets or braces belongs to the path.
fn parse_path_goal(text: &str) -> Result<WaitGoal, CliError> {
    if text.is_empty() {
        return Err(CliError::new("jsonpath expression cannot be empty"));
    }
    let mut depth = 0usize;
    let equals = text.find(|c| {
        match c {
            '{' | '[' => depth += 1,
            '}' | ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == '=' && depth == 0
    });
    let (path, value) = equals.map_or((text, None), |at| (&text[..at], Some(&text[at + 1..])));
    let value = value.map(|value| value.trim_matches(['\'', '"']));
    if value == Some("") {
        return Err(CliError::new(
            "jsonpath wait has to have a value after equal sign, like --for=jsonpath='{.status.readyReplicas}'=3",
        ));
    }
    if value.is_some_and(|value| value.starts_with('=')) {
        return Err(CliError::new("use a single equal sign behind the path"));
    }
    let path = Template::parse_path(path).map_err(CliError::new)?;
    Ok(WaitGoal::Path(path, value.map(str::to_owned)))
}

/// Reads the value of `--timeout` of a command that waits as long as it takes if the value is 0.
pub(super) fn parse_timeout(text: &str) -> Result<Option<Duration>, CliError> {
    let ms = parse_timeout_ms(text);
    let ms =
        ms.ok_or_else(|| CliError::new(format!("invalid argument {text:?} for \"--timeout\"")))?;
    Ok((ms > 0).then(|| Duration::from_millis(ms)))
}

/// Parses a time to wait, in milliseconds; `None` if it is malformed.
fn parse_timeout_ms(text: &str) -> Option<u64> {
    match text.strip_prefix('-') {
        Some(rest) => parse_duration_ms(rest).map(|_| MAX_TIMEOUT_MS),
        None if text == "0" => Some(0),
        None => parse_duration_ms(text).map(|ms| ms.min(MAX_TIMEOUT_MS)),
    }
}

impl WaitGoal {
    /// Returns true if a pod has reached the goal. `uid`: its UID at the start.
    ///
    /// Errors: a pod whose condition is waited for does not exist.
    fn is_reached(&self, found: &[Value], name: &str, uid: &Value) -> Result<bool, CliError> {
        let pod = pods::find_pod(found, name);
        Ok(match self {
            Self::Create => pod.is_some(),
            Self::Delete => !found.iter().any(|pod| uid_of(Some(pod)) == uid),
            Self::Path(path, wanted) => {
                let pod = pod.ok_or_else(|| pods::pod_not_found(name))?;
                let found = path.find(pod).map_err(CliError::new)?;
                match (found.as_slice(), wanted) {
                    ([], _) => false,
                    ([_], None) => true,
                    ([Value::Array(_) | Value::Object(_)], Some(_)) => {
                        let text =
                            "jsonpath leads to a nested object or list which is not supported";
                        return Err(CliError::new(text));
                    }
                    ([value], Some(wanted)) => {
                        let mut text = String::new();
                        jsonpath::push_go_text(value, &mut text);
                        text.trim() == wanted.trim()
                    }
                    _ => {
                        let text = "given jsonpath expression matches more than one value";
                        return Err(CliError::new(text));
                    }
                }
            }
            Self::Condition(wanted, status) => {
                let pod = pod.ok_or_else(|| pods::pod_not_found(name))?;
                let is = |value: &Value, text: &str| {
                    value.as_str().is_some_and(|v| v.eq_ignore_ascii_case(text))
                };
                let conditions = pod["status"]["conditions"].as_array();
                conditions.is_some_and(|all| {
                    all.iter()
                        .any(|c| is(&c["type"], wanted) && is(&c["status"], status))
                })
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn goals_that_are_reached() {
        // CMD-03
        let pod = |name: &str, uid: &str, ready: &str| {
            json!({
                "metadata": {"name": name, "uid": uid},
                "status": {"conditions": [{"type": "Ready", "status": ready}]},
            })
        };
        let found = [pod("a", "1", "True"), pod("b", "2", "False")];
        for (goal, name, uid, reached) in [
            ("condition=Ready", "a", "1", Some(true)),
            ("condition=ready=TRUE", "a", "1", Some(true)),
            ("condition=Ready", "b", "2", Some(false)),
            ("condition=Ready=False", "b", "2", Some(true)),
            ("condition=Initialized", "a", "1", Some(false)),
            ("condition=Ready", "gone", "3", None),
            ("delete", "a", "1", Some(false)),
            ("Delete", "a", "of another before it", Some(true)),
            ("delete", "gone", "3", Some(true)),
            ("jsonpath={.metadata.name}=a", "a", "1", Some(true)),
            ("jsonpath=.metadata.name='a'", "a", "1", Some(true)),
            ("jsonpath={.metadata.uid}=2", "a", "1", Some(false)),
            ("jsonpath={.nope}", "a", "1", Some(false)),
            ("jsonpath={.metadata.uid}", "a", "1", Some(true)),
            ("jsonpath={.metadata}=a", "a", "1", None),
            ("jsonpath={.metadata.*}=a", "a", "1", None),
            (
                "jsonpath={.status.conditions[?(@.type==\"Ready\")].status}=True",
                "a",
                "1",
                Some(true),
            ),
            ("jsonpath={.x}", "gone", "3", None),
            ("create", "a", "1", Some(true)),
            ("create", "gone", "3", Some(false)),
        ] {
            let parsed = parse_goal(goal).expect(goal);
            let got = parsed.is_reached(&found, name, &uid.into());
            assert_eq!(got.ok(), reached, "{goal} {name}");
        }
        for bad in [
            "",
            "condition",
            "condition=",
            "ready",
            "jsonpath",
            "jsonpath=",
            "jsonpath={.status.phase}=",
            "jsonpath={.status.phase}{.x}=Running",
            "jsonpath={.status.phase}==Running",
        ] {
            assert!(parse_goal(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn timeouts() {
        for (text, ms) in [
            ("90s", Some(90_000)),
            ("0", Some(0)),
            ("0s", Some(0)),
            ("-1s", Some(MAX_TIMEOUT_MS)),
            ("1000h", Some(MAX_TIMEOUT_MS)),
            ("30", None),
            ("-", None),
            ("soon", None),
        ] {
            assert_eq!(parse_timeout_ms(text), ms, "{text}");
        }
    }
}
