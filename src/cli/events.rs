//! `picolet events`: the events that are kept, of one object or of some types.

use core::time::Duration;
use std::io::Write as _;

use super::{
    AgentClient, CliError,
    args::{CliWord, CliWords, unexpected_word},
    get::DEFAULT_NAMESPACE,
    live::{self, LiveRow, LiveTable},
    print_text, table,
};
use crate::{
    api::Event,
    server::{backend::ObjectList, http::percent_encode},
    sys::clock,
};

/// Time between two looks of `events -w`.
const EVERY: Duration = Duration::from_secs(1);

/// Events that are shown.
struct EventsCommand {
    /// Path at the agent.
    target: String,
    all_namespaces: bool,
    /// Kind and name of the object; `None`: of all objects.
    about: Option<(&'static str, String)>,
    /// Types, separated by commas; empty: all.
    types: String,
}

pub(super) fn run_events(mut words: CliWords) -> Result<(), CliError> {
    let mut namespace = DEFAULT_NAMESPACE.to_owned();
    let (mut watch, mut no_headers) = (false, false);
    let mut events = EventsCommand {
        target: "/events".to_owned(),
        all_namespaces: false,
        about: None,
        types: String::new(),
    };
    while let Some(word) = words.next_word()? {
        match word {
            CliWord::Flag("namespace") => namespace = words.flag_value()?,
            CliWord::Flag("all-namespaces") => events.all_namespaces = words.switch_value()?,
            CliWord::Flag("for") => events.about = Some(parse_object(&words.flag_value()?)?),
            CliWord::Flag("types") => events.types = parse_types(words.flag_value()?)?,
            CliWord::Flag("watch") => watch = words.switch_value()?,
            CliWord::Flag("no-headers") => no_headers = words.switch_value()?,
            other => return Err(unexpected_word(other)),
        }
    }
    // The node has no namespace.
    let is_of_node = matches!(events.about, Some(("Node", _)));
    if !events.all_namespaces && !is_of_node {
        events.target += &format!("?namespace={}", percent_encode(&namespace));
    }
    let client = words.agent_client();
    if watch {
        let client = client.with_patience(live::PATIENCE);
        let look = move || events.read_table(&client);
        return live::watch_table(EVERY, no_headers, Box::new(look));
    }
    let seen = events.read_table(&client)?;
    if seen.rows.is_empty() {
        // If standard error is closed, nobody can be told.
        let _ = writeln!(std::io::stderr(), "No events found.");
        return Ok(());
    }
    let rows: Vec<Vec<String>> = seen.rows.into_iter().map(|row| row.cells).collect();
    print_text(&table::render_table(&seen.header, &rows, no_headers))
}

/// Reads the value of `--for`: `pod/NAME` or `node/NAME`.
fn parse_object(text: &str) -> Result<(&'static str, String), CliError> {
    let kind = match text.split_once('/') {
        Some(("pod" | "pods" | "po", _)) => "Pod",
        Some(("node" | "nodes" | "no", _)) => "Node",
        _ => {
            return Err(CliError::new(format!(
                "invalid argument {text:?} for \"--for\": expected pod/NAME or node/NAME"
            )));
        }
    };
    let name = text.split_once('/').map_or("", |(_, name)| name);
    Ok((kind, name.to_owned()))
}

fn parse_types(text: String) -> Result<String, CliError> {
    let is_known = |t: &str| ["normal", "warning"].contains(&t.to_ascii_lowercase().as_str());
    if !text.split(',').all(is_known) {
        return Err(CliError::new("valid --types are Normal or Warning"));
    }
    Ok(text)
}

impl EventsCommand {
    fn wants(&self, event: &Event) -> bool {
        let object = &event.involved_object;
        let mut types = self.types.split(',');
        let is_about = |(kind, name): &(&str, String)| object.kind == *kind && object.name == *name;
        self.about.as_ref().is_none_or(is_about)
            && (self.types.is_empty() || types.any(|t| t.eq_ignore_ascii_case(&event.severity)))
    }

    fn read_table(&self, client: &AgentClient) -> Result<LiveTable, CliError> {
        let list: ObjectList<Event> = client.fetch_typed(&self.target)?;
        let now = clock::wall_now();
        let mut seen = LiveTable {
            header: vec!["LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"],
            ..LiveTable::default()
        };
        if self.all_namespaces {
            seen.header.insert(0, "NAMESPACE");
        }
        for event in list.items.iter().filter(|event| self.wants(event)) {
            seen.rows.push(LiveRow {
                id: format!("{}/{}", event.metadata.namespace, event.metadata.name),
                said: vec![event.count.to_string(), event.message.clone()],
                cells: table::event_row(event, now, self.all_namespaces),
            });
        }
        Ok(seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_that_are_shown() {
        // CMD-04
        let event = |kind: &str, name: &str, severity: &str| {
            let mut event = Event {
                severity: severity.into(),
                ..Event::default()
            };
            event.involved_object.kind = kind.into();
            event.involved_object.name = name.into();
            event
        };
        let all = [
            event("Pod", "a", "Normal"),
            event("Pod", "a", "Warning"),
            event("Pod", "b", "Normal"),
            event("Node", "a", "Warning"),
        ];
        for (about, types, shown) in [
            ("", "", &[0, 1, 2, 3][..]),
            ("pod/a", "", &[0, 1]),
            ("pods/a", "warning", &[1]),
            ("no/a", "", &[3]),
            ("", "Normal", &[0, 2]),
            ("", "Warning,normal", &[0, 1, 2, 3]),
            ("pod/c", "", &[]),
        ] {
            let command = EventsCommand {
                target: String::new(),
                all_namespaces: false,
                about: (!about.is_empty()).then(|| parse_object(about).expect(about)),
                types: types.into(),
            };
            let wanted = (0..all.len()).filter(|n| command.wants(&all[*n]));
            assert_eq!(wanted.collect::<Vec<_>>(), shown, "{about} {types}");
        }
        for bad in ["a", "deployment/a"] {
            assert!(parse_object(bad).is_err(), "{bad}");
        }
        for bad in ["", "Error", "Normal,"] {
            assert!(parse_types(bad.into()).is_err(), "{bad}");
        }
    }
}
