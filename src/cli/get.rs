//! `picolet get pods|images|node|devices|events|configmaps|secrets`.

mod kinds;
mod output;

use core::time::Duration;
use std::io::{IsTerminal as _, Write as _};

use serde_json::Value;

use kinds::find_kind;
pub(super) use kinds::{
    CONFIG_MAPS, EVENT_HISTORY, EVENTS, KINDS, NODE, ObjectKind, PODS, SECRETS,
};
use output::TableColumn;
pub(super) use output::{OutputFormat, object_text, parse_output_format};

use super::{
    AgentClient, CliError,
    args::{CliWord, CliWords},
    live::{self, LiveRow, LiveTable},
    pods, print_text,
};
use crate::{
    api::{WallTime, order::OrderExt as _},
    logic::{
        field_selector::FieldSelector,
        jsonpath::{self, Template},
        label_selector::LabelSelector,
    },
    server::http::percent_encode,
    sys::clock,
};

/// First words of the agent's message about a pull.
const PULLING: &str = "Pulling image ";

/// Namespace of pods that name none, as kubectl has it.
pub(crate) const DEFAULT_NAMESPACE: &str = "default";

/// A kind and the names that were given for it.
pub(super) type ResourceRequest = (&'static ObjectKind, Vec<String>);

#[derive(Default)]
pub(super) struct GetCommand {
    /// An empty one means all.
    pub(super) namespace: Option<String>,
    pub(super) all_namespaces: bool,
    output: OutputFormat,
    pub(super) no_headers: bool,
    pub(super) watch: bool,
    /// Output format as it was given.
    printer: String,
    selector: String,
    pub(super) field_selector: String,
    /// Labels that have a column each.
    label_columns: Vec<TableColumn<String>>,
    show_labels: bool,
    show_kind: bool,
    ignore_not_found: bool,
    sort_by: Option<Template>,
}

/// Flags without a value.
const SWITCHES: [&str; 6] = [
    "all-namespaces",
    "no-headers",
    "watch",
    "show-labels",
    "show-kind",
    "ignore-not-found",
];

pub(crate) fn run_get(mut words: CliWords) -> Result<(), CliError> {
    let mut get = GetCommand::default();
    let mut values = Vec::new();
    while let Some(word) = words.next_word()? {
        match word {
            CliWord::Flag(name) => {
                let value = match SWITCHES.contains(&name) {
                    true => words.switch_value()?.to_string(),
                    false => words.flag_value()?,
                };
                get.read_flag(name, value)?;
            }
            CliWord::Value(value) => values.push(value),
        }
    }
    get.check_flags()?;
    get.show_kind |= values.first().is_some_and(|first| first == "all");
    let has_namespace = get.namespace.is_some() || get.all_namespaces;
    let requests = parse_resources(&values, &KINDS, has_namespace)?;
    let has_names = requests.iter().any(|(_, names)| !names.is_empty());
    if has_names && !(get.selector.is_empty() && get.field_selector.is_empty()) {
        let text = "name cannot be provided when a selector is specified: use only one of them";
        return Err(CliError::new(text));
    }
    get.show_kind |= requests.len() > 1;
    get.show_objects(words.agent_client(), requests, "resources")
}

/// Reads `TYPE[,TYPE...] [NAME...]` or `TYPE/NAME...` of these kinds. Errors: a namespace is asked for where there is none.
pub(super) fn parse_resources(
    words: &[String],
    kinds: &[&'static ObjectKind],
    has_namespace: bool,
) -> Result<Vec<ResourceRequest>, CliError> {
    let mut requests: Vec<ResourceRequest> = Vec::new();
    let first = words.first().map_or("", String::as_str);
    if first.contains('/') {
        for word in words {
            let parts = word.split_once('/');
            let parts = parts.filter(|(kind, name)| !kind.is_empty() && !name.is_empty());
            let Some((kind, name)) = parts else {
                return Err(CliError::new(format!(
                    "expected TYPE/NAME like the words before, not {word:?}"
                )));
            };
            let (kind, name) = (find_kind(kind, kinds)?, name.to_owned());
            match requests
                .iter_mut()
                .find(|(known, _)| known.route == kind.route)
            {
                Some((_, names)) => names.push(name),
                None => requests.push((kind, vec![name])),
            }
        }
    } else {
        for kind in first.split(',') {
            requests.push((find_kind(kind, kinds)?, words[1..].to_vec()));
        }
    }
    if has_namespace && !requests.iter().any(|(kind, _)| kind.is_namespaced) {
        return Err(CliError::new(format!(
            "{first}: not in a namespace; remove --namespace and --all-namespaces"
        )));
    }
    Ok(requests)
}

/// Lists the names of an object, the one that is shown first: that of its metadata, an image's references and id, a device's
/// id and resource.
fn object_names(item: &Value) -> impl Iterator<Item = &str> {
    let tags = item["repoTags"].as_array().into_iter().flatten();
    let before = [&item["metadata"]["name"]].into_iter().chain(tags);
    let all = before.chain([&item["id"], &item["resource"]]);
    all.filter_map(Value::as_str)
        .filter(|name| !name.is_empty())
}

fn object_name(item: &Value) -> &str {
    object_names(item).next().unwrap_or("")
}

/// Lists the names of the objects of a kind, for completion; `None`: no such kind, or no answer.
pub(super) fn list_names(
    client: &AgentClient,
    kind: &str,
    namespace: Option<&str>,
) -> Option<Vec<String>> {
    let items = list_objects(client, find_kind(kind, &KINDS).ok()?, namespace)?;
    let names = items.iter().map(|item| object_name(item).to_owned());
    Some(names.collect())
}

/// Lists the containers of a pod, for completion.
pub(super) fn list_containers(
    client: &AgentClient,
    pod: &str,
    namespace: Option<&str>,
) -> Option<Vec<String>> {
    let pods = list_objects(client, &PODS, namespace)?;
    let pod = pods.iter().find(|item| object_name(item) == pod)?;
    let lists = ["containers", "initContainers", "ephemeralContainers"];
    let all = lists
        .iter()
        .filter_map(|list| pod["spec"][*list].as_array());
    let names = all.flatten().filter_map(|c| c["name"].as_str());
    Some(names.map(str::to_owned).collect())
}

/// Lists the namespaces that have pods, for completion.
pub(super) fn list_namespaces(client: &AgentClient) -> Option<Vec<String>> {
    let pods = list_objects(client, &PODS, Some(""))?;
    let namespaces = pods
        .iter()
        .filter_map(|p| p["metadata"]["namespace"].as_str());
    let mut namespaces: Vec<String> = namespaces.map(str::to_owned).collect();
    namespaces.stable_sort();
    namespaces.dedup();
    Some(namespaces)
}

fn list_objects(
    client: &AgentClient,
    kind: &ObjectKind,
    namespace: Option<&str>,
) -> Option<Vec<Value>> {
    let get = GetCommand {
        namespace: namespace.map(str::to_owned),
        ..GetCommand::default()
    };
    let found = get.fetch_objects(client, kind, &[]);
    found.ok().map(|found| found.items)
}

struct FoundObjects {
    items: Vec<Value>,
    /// An error for each name that does not exist.
    missing: Vec<String>,
}

impl GetCommand {
    fn is_table(&self) -> bool {
        matches!(self.output, OutputFormat::Table | OutputFormat::Wide)
    }

    /// Takes a flag. `value`: of a switch `true` or `false`.
    fn read_flag(&mut self, name: &str, value: String) -> Result<(), CliError> {
        let is_on = value == "true";
        match name {
            "namespace" => self.namespace = Some(value),
            "all-namespaces" => self.all_namespaces = is_on,
            "no-headers" => self.no_headers = is_on,
            "watch" => self.watch = is_on,
            "show-labels" => self.show_labels = is_on,
            "show-kind" => self.show_kind = is_on,
            "ignore-not-found" => self.ignore_not_found = is_on,
            "output" => {
                self.output = parse_output_format(&value)?;
                self.printer = value;
            }
            "selector" => self.selector = value,
            "field-selector" => self.field_selector = value,
            "label-columns" => {
                self.label_columns.extend(value.split(',').map(|label| {
                    let last = label.rsplit('/').next().unwrap_or(label);
                    (&*last.to_uppercase().leak(), label.to_owned())
                }));
            }
            _ => self.sort_by = Some(Template::parse_path(&value).map_err(CliError::new)?),
        }
        Ok(())
    }

    /// Checks that all flags fit together.
    fn check_flags(&self) -> Result<(), CliError> {
        for (flag, is_given) in [
            ("show-labels", self.show_labels),
            ("label-columns", !self.label_columns.is_empty()),
            ("show-kind", self.show_kind),
        ] {
            if is_given && !self.is_table() {
                let printer = self.printer.split('=').next().unwrap_or("");
                return Err(CliError::new(format!(
                    "--{flag} option cannot be used with {printer} printer"
                )));
            }
        }
        Ok(())
    }

    /// Shows what was asked for. `things`: the word for it, if there is none.
    pub(super) fn show_objects(
        self,
        client: AgentClient,
        requests: Vec<ResourceRequest>,
        things: &'static str,
    ) -> Result<(), CliError> {
        if self.watch {
            return self.watch_objects(client.with_patience(live::PATIENCE), requests, things);
        }
        let mut found = Vec::new();
        let mut missing = Vec::new();
        for (kind, names) in &requests {
            let objects = self.fetch_objects(&client, kind, names)?;
            missing.extend(objects.missing);
            found.push((*kind, objects.items));
        }
        let is_one = match requests.as_slice() {
            [(kind, names)] => names.len() == 1 || names.is_empty() && kind.route == NODE.route,
            _ => false,
        };
        print_text(&self.objects_text(&found, is_one)?)?;
        let mut notes = Vec::new();
        if self.is_table() {
            let items = found.iter().flat_map(|(_, items)| items);
            notes = items.clone().flat_map(pull_progress_lines).collect();
            if missing.is_empty() && !self.ignore_not_found && items.count() == 0 {
                let is_namespaced = found.iter().any(|(kind, _)| kind.is_namespaced);
                notes.push(self.nothing_found_text(is_namespaced, things));
            }
        }
        for note in notes {
            // If standard error is closed, nobody can be told.
            let _ = writeln!(std::io::stderr(), "{note}");
        }
        match missing.is_empty() {
            true => Ok(()),
            false => Err(CliError {
                message: missing.join("\n"),
                code: 1,
            }),
        }
    }

    fn fetch_objects(
        &self,
        client: &AgentClient,
        kind: &ObjectKind,
        names: &[String],
    ) -> Result<FoundObjects, CliError> {
        let fields = FieldSelector::parse(&self.field_selector, kind.fields)
            .map_err(|e| CliError::from_server(400, &format!("{}: {e}", kind.names[0])))?;
        let labels = match self.selector.is_empty() {
            true => LabelSelector::default(),
            false => pods::parse_selector(&self.selector)?,
        };
        let namespace = self.namespace.as_deref().unwrap_or(DEFAULT_NAMESPACE);
        let mut target = format!("/{}", kind.route);
        if kind.is_namespaced && !self.all_namespaces {
            target += "?namespace=";
            target += &percent_encode(namespace);
        }
        // The node is no list.
        let all = client.fetch_items(&target)?;
        let (items, missing) = choose_objects(all, kind, names);
        let mut found = FoundObjects { items, missing };
        if self.ignore_not_found {
            found.missing.clear();
        }
        found
            .items
            .retain(|item| labels.matches(item) && fields.matches(item));
        if let Some(path) = &self.sort_by {
            found.items = sort_objects(found.items, path)?;
        }
        Ok(found)
    }

    fn nothing_found_text(&self, is_namespaced: bool, things: &str) -> String {
        let namespace = self.namespace.as_deref().unwrap_or(DEFAULT_NAMESPACE);
        match is_namespaced && !self.all_namespaces && !namespace.is_empty() {
            true => format!("No {things} found in {namespace} namespace."),
            // kubectl ends only one of its two lines with a point.
            false if things == "resources" => "No resources found".to_owned(),
            false => format!("No {things} found."),
        }
    }

    fn watch_objects(
        self,
        client: AgentClient,
        mut requests: Vec<ResourceRequest>,
        things: &'static str,
    ) -> Result<(), CliError> {
        if !self.is_table() && !matches!(self.output, OutputFormat::Columns(_)) {
            return Err(CliError::new(
                "--watch shows only a table: remove --output, or use --output wide",
            ));
        }
        let (kind, names) = match (requests.pop(), requests.is_empty()) {
            (Some(request), true) => request,
            _ => {
                return Err(CliError::new(
                    "you may only specify a single resource type with --watch",
                ));
            }
        };
        let (since, no_headers) = (clock::wall_now(), self.no_headers);
        let mut first = true;
        let look = move || {
            let seen = self.read_live_table(&client, (kind, &names), since, first, things);
            first = false;
            seen
        };
        live::watch_table(EVERY, no_headers, Box::new(look))
    }

    /// Reads the present objects. Ages count from `since` where lines are compared, so that time alone is no change.
    /// `first`: missing names are an error; later they have ended.
    fn read_live_table(
        &self,
        client: &AgentClient,
        (kind, names): (&ObjectKind, &[String]),
        since: WallTime,
        first: bool,
        things: &str,
    ) -> Result<LiveTable, CliError> {
        let now = clock::wall_now();
        let found = self.fetch_objects(client, kind, names)?;
        if let Some(message) = found.missing.into_iter().next().filter(|_| first) {
            return Err(CliError { message, code: 1 });
        }
        let mut seen = LiveTable {
            header: self.table_header(kind),
            ..LiveTable::default()
        };
        for item in &found.items {
            let namespace = item["metadata"]["namespace"].as_str().unwrap_or("");
            let said = self.object_rows(kind, item, since)?;
            for (cells, mut said) in self.object_rows(kind, item, now)?.into_iter().zip(said) {
                // An event that happens again may look the same.
                said.push(item["count"].to_string());
                let id = match kind.name_cells {
                    0 => format!("{namespace}/{}", object_name(item)),
                    count => cells[..count.min(cells.len())].join(" "),
                };
                seen.rows.push(LiveRow { id, said, cells });
            }
        }
        if kind.route == EVENTS.route {
            if std::io::stdout().is_terminal() {
                // What happened last is at the top, where it is never cut off.
                seen.rows.reverse();
            }
        } else if self.sort_by.is_none() {
            seen.rows.stable_sort_by(|a, b| a.id.cmp(&b.id));
        }
        seen.notes = found.items.iter().flat_map(pull_progress_lines).collect();
        if seen.rows.is_empty() {
            seen.notes
                .push(self.nothing_found_text(kind.is_namespaced, things));
        }
        Ok(seen)
    }
}

/// Chooses the objects that were named, in the order of the names; without names all. Returns also an error for each
/// name that does not exist.
fn choose_objects(
    all: Vec<Value>,
    kind: &ObjectKind,
    names: &[String],
) -> (Vec<Value>, Vec<String>) {
    if names.is_empty() {
        return (all, Vec::new());
    }
    let (mut items, mut missing) = (Vec::new(), Vec::new());
    for name in names {
        let before = items.len();
        let is_named = |item: &&Value| object_names(item).any(|known| known == name);
        items.extend(all.iter().filter(is_named).cloned());
        if items.len() == before {
            let text = format!("{} \"{name}\" not found", kind.names[0]);
            missing.push(CliError::from_server(404, &text).message);
        }
    }
    (items, missing)
}

/// Sorts objects by the value at a path. Objects without it come first, as with kubectl.
fn sort_objects(items: Vec<Value>, path: &Template) -> Result<Vec<Value>, CliError> {
    let mut keyed = Vec::new();
    for item in items {
        let key = path.find(&item).map_err(CliError::new)?;
        let key = key.first().map(|key| (*key).clone());
        keyed.push((key, item));
    }
    if !keyed.is_empty() && keyed.iter().all(|(key, _)| key.is_none()) {
        return Err(CliError::new(
            "couldn't find any field with the path of --sort-by in the list of objects",
        ));
    }
    keyed.stable_sort_by(|(a, _), (b, _)| match (a, b) {
        (Some(a), Some(b)) => jsonpath::compare_sort_keys(a, b),
        (a, b) => a.is_some().cmp(&b.is_some()),
    });
    Ok(keyed.into_iter().map(|(_, item)| item).collect())
}

/// Lines with the progress of the images that a pod waits for. They stand beside the table, which has kubectl's columns
/// and is read by programs.
pub(crate) fn pull_progress_lines(pod: &Value) -> Vec<String> {
    let mut lines = Vec::new();
    for list in ["initContainerStatuses", "containerStatuses"] {
        for container in pod["status"][list].as_array().into_iter().flatten() {
            let message = container.pointer("/state/waiting/message");
            let message = message.and_then(Value::as_str).unwrap_or("");
            if let Some(at) = message.find(PULLING) {
                let line = format!("pod/{}: {}", object_name(pod), &message[at..]);
                if !lines.contains(&line) {
                    lines.push(line);
                }
            }
        }
    }
    lines
}

/// Time between two looks of `get -w`.
const EVERY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
