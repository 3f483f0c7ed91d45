//! `picolet events`: the events that are kept, of one object or of some types.

use super::{
    CliError,
    args::{CliWord, CliWords, unexpected_word},
    get::{EVENT_HISTORY, GetCommand},
};

/// Runs `events`: `get events` with flags of its own.
pub(super) fn run_events(mut words: CliWords) -> Result<(), CliError> {
    let mut get = GetCommand::default();
    let (mut object, mut types) = (String::new(), Vec::new());
    while let Some(word) = words.next_word()? {
        match word {
            CliWord::Flag("namespace") => get.namespace = Some(words.flag_value()?),
            CliWord::Flag("all-namespaces") => get.all_namespaces = words.switch_value()?,
            CliWord::Flag("for") => {
                object = words.flag_value()?;
                let (kind, name) = parse_object(&object)?;
                get.field_selector =
                    format!("involvedObject.kind={kind},involvedObject.name={name},");
            }
            CliWord::Flag("types") => types.push(words.flag_value()?),
            CliWord::Flag("watch") => get.watch = words.switch_value()?,
            CliWord::Flag("no-headers") => get.no_headers = words.switch_value()?,
            other => return Err(unexpected_word(other)),
        }
    }
    if object.starts_with("no") && get.namespace.is_none() {
        // A node is in no namespace.
        get.namespace = Some(String::new());
    }
    if !types.is_empty() {
        get.field_selector += parse_types(&types.join(","))?;
    }
    let request = (&EVENT_HISTORY, Vec::new());
    get.show_objects(words.agent_client(), vec![request], "events")
}

/// Reads the value of `--for`: `pod/NAME` or `node/NAME`. No name has a sign of a selector.
fn parse_object(text: &str) -> Result<(&'static str, &str), CliError> {
    let is_name = |(_, name): &(&str, &str)| !name.is_empty() && !name.contains([',', '=']);
    match text.split_once('/').filter(is_name) {
        Some(("pod" | "pods" | "po", name)) => Ok(("Pod", name)),
        Some(("node" | "nodes" | "no", name)) => Ok(("Node", name)),
        _ => Err(CliError::new(format!(
            "invalid argument {text:?} for \"--for\": expected pod/NAME or node/NAME"
        ))),
    }
}

/// Reads the value of `--types`. Returns a field selector; both types are all.
fn parse_types(text: &str) -> Result<&'static str, CliError> {
    let (mut normal, mut warning) = (false, false);
    for one in text.split(',') {
        match one {
            _ if one.eq_ignore_ascii_case("normal") => normal = true,
            _ if one.eq_ignore_ascii_case("warning") => warning = true,
            _ => return Err(CliError::new("valid --types are Normal or Warning")),
        }
    }
    Ok(match (normal, warning) {
        (true, true) => "",
        (true, false) => "type=Normal,",
        (false, _) => "type=Warning,",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_that_are_shown() {
        // CMD-04
        for (text, found) in [
            ("pod/a", ("Pod", "a")),
            ("po/b", ("Pod", "b")),
            ("no/a", ("Node", "a")),
        ] {
            assert_eq!(parse_object(text).ok(), Some(found), "{text}");
        }
        for (text, found) in [
            ("warning", "type=Warning,"),
            ("Normal", "type=Normal,"),
            ("Warning,normal", ""),
        ] {
            assert_eq!(parse_types(text).ok(), Some(found), "{text}");
        }
        for bad in ["a", "pod/", "deployment/a", "pod/a,type=Normal"] {
            assert!(parse_object(bad).is_err(), "{bad}");
        }
        for bad in ["", "Error", "Normal,"] {
            assert!(parse_types(bad).is_err(), "{bad}");
        }
    }
}
