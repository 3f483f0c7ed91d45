//! `picolet get pods|images|node|devices|events|configmaps|secrets`.

use core::time::Duration;
use std::io::{IsTerminal as _, Write as _};

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{
    AgentClient, CliError,
    args::{CliWord, CliWords, unexpected_word},
    live::{self, LiveRow, LiveTable},
    print_text, table,
};
use crate::{
    api::{Event, Pod, WallTime, order::OrderExt as _, strict, yaml::yaml_text},
    logic::spelling::suggest_name,
    server::http::percent_encode,
    sys::clock,
};

/// First words of the agent's message about a pull.
const PULLING: &str = "Pulling image ";

/// Namespace of pods that name none, as kubectl has it.
pub(crate) const DEFAULT_NAMESPACE: &str = "default";

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum OutputFormat {
    #[default]
    Table,
    Wide,
    Json,
    Yaml,
    Name,
}

#[derive(Default)]
struct GetCommand {
    kind: String,
    names: Vec<String>,
    namespace: Option<String>,
    all_namespaces: bool,
    output: OutputFormat,
    no_headers: bool,
    watch: bool,
}

pub(crate) fn run_get(mut words: CliWords) -> Result<(), CliError> {
    let mut get = GetCommand::default();
    while let Some(word) = words.next_word()? {
        match word {
            CliWord::Flag("namespace") => get.namespace = Some(words.flag_value()?),
            CliWord::Flag("all-namespaces") => get.all_namespaces = words.switch_value()?,
            CliWord::Flag("output") => get.output = parse_output_format(&words.flag_value()?)?,
            CliWord::Flag("no-headers") => get.no_headers = words.switch_value()?,
            CliWord::Flag("watch") => get.watch = words.switch_value()?,
            CliWord::Value(value) => add_kind_or_name(&mut get.kind, &mut get.names, value),
            other @ CliWord::Flag(_) => return Err(unexpected_word(other)),
        }
    }
    let kind = find_kind(&get.kind, &KINDS)?;
    let has_namespace = get.namespace.is_some() || get.all_namespaces;
    expect_namespaced(kind, has_namespace)?;
    match get.watch {
        true => watch_objects(
            words.agent_client().with_patience(live::PATIENCE),
            get,
            kind,
        ),
        false => run_get_objects(&words.agent_client(), &get, kind),
    }
}

/// Takes a word behind `get` or `describe`: `KIND`, `KIND/NAME`, or another name.
pub(super) fn add_kind_or_name(kind: &mut String, names: &mut Vec<String>, word: String) {
    match word.split_once('/') {
        Some((of, name)) if kind.is_empty() || of == kind.as_str() => {
            *kind = of.to_owned();
            names.push(name.to_owned());
        }
        _ if kind.is_empty() => *kind = word,
        _ => names.push(word),
    }
}

/// Finds a kind by one of its names.
pub(super) fn find_kind(
    word: &str,
    kinds: &[&'static ObjectKind],
) -> Result<&'static ObjectKind, CliError> {
    if let Some(kind) = kinds.iter().find(|kind| kind.names.contains(&word)) {
        return Ok(kind);
    }
    let known: Vec<&str> = kinds.iter().map(|kind| kind.names[0]).collect();
    let known = known.join(", ");
    if word.is_empty() {
        return Err(CliError::new(format!("you must say what to show: {known}")));
    }
    let mut names = kinds.iter().flat_map(|kind| kind.names).copied();
    let meant = suggest_name(word, "", &mut names);
    Err(CliError::new(format!(
        "the server doesn't have a resource type \"{word}\"{meant}\nThese can be shown: {known}"
    )))
}

/// Checks that no namespace is asked for where there is none.
pub(super) fn expect_namespaced(kind: &ObjectKind, has_namespace: bool) -> Result<(), CliError> {
    if kind.namespaced || !has_namespace {
        return Ok(());
    }
    let name = kind.names[0];
    Err(CliError::new(format!(
        "{name}: not in a namespace; remove --namespace and --all-namespaces"
    )))
}

pub(super) fn parse_output_format(text: &str) -> Result<OutputFormat, CliError> {
    Ok(match text {
        "" => OutputFormat::Table,
        "wide" => OutputFormat::Wide,
        "json" => OutputFormat::Json,
        "yaml" => OutputFormat::Yaml,
        "name" => OutputFormat::Name,
        other => {
            return Err(CliError::new(format!(
                "unable to match a printer suitable for the output format \"{other}\", allowed formats are: json,name,wide,yaml"
            )));
        }
    })
}

/// Writes `value` as JSON or YAML.
pub(super) fn object_text(value: &Value, output: &OutputFormat) -> String {
    match output {
        OutputFormat::Yaml => yaml_text(value),
        _ => format!("{value:#}\n"),
    }
}

/// A kind of objects: its route and its table.
pub(super) struct ObjectKind {
    /// Names on the command line: that of completion first, then those that kubectl takes too.
    pub(super) names: &'static [&'static str],
    /// Name in the plural, as kubectl's messages have it. The route is the same, but for the only node.
    pub(super) plural: &'static str,
    singular: &'static str,
    namespaced: bool,
    header: fn(all_namespaces: bool, wide: bool) -> Vec<&'static str>,
    rows: ObjectRowsFn,
}

/// Makes the rows of an object: (object, now, of all namespaces, wide). Errors: the object is malformed.
type ObjectRowsFn = fn(&Value, WallTime, bool, bool) -> Result<Vec<Vec<String>>, CliError>;

/// Kinds that can be shown, as the help lists them.
pub(super) static KINDS: [&ObjectKind; 7] = [
    &PODS,
    &IMAGES,
    &NODE,
    &DEVICES,
    &EVENTS,
    &CONFIG_MAPS,
    &SECRETS,
];
pub(super) static PODS: ObjectKind = ObjectKind {
    names: &["pods", "pod", "po"],
    plural: "pods",
    singular: "pod",
    namespaced: true,
    header: table::pod_header,
    rows: |item, now, all_namespaces, wide| {
        let pod: Pod = read_item(item)?;
        Ok(vec![table::pod_row(&pod, now, all_namespaces, wide)])
    },
};
static IMAGES: ObjectKind = ObjectKind {
    names: &["images", "image"],
    plural: "images",
    singular: "image",
    namespaced: false,
    header: |_, _| table::IMAGE_HEADER.to_vec(),
    rows: |item, _, _, wide| Ok(table::image_rows(&read_item(item)?, wide)),
};
pub(super) static NODE: ObjectKind = ObjectKind {
    names: &["node", "nodes", "no"],
    plural: "nodes",
    singular: "node",
    namespaced: false,
    header: |_, wide| node_header(wide),
    rows: |item, now, _, wide| Ok(vec![node_row(item, now, wide)]),
};
static DEVICES: ObjectKind = ObjectKind {
    names: &["devices", "device"],
    plural: "devices",
    singular: "device",
    namespaced: false,
    header: |_, _| table::DEVICE_HEADER.to_vec(),
    rows: |item, _, _, _| Ok(vec![table::device_row(&read_item(item)?)]),
};
static EVENTS: ObjectKind = ObjectKind {
    names: &["events", "event", "ev"],
    plural: "events",
    singular: "event",
    namespaced: true,
    header: |all_namespaces, _| event_header(all_namespaces),
    rows: |item, now, all_namespaces, _| {
        let event: Event = read_item(item)?;
        Ok(vec![table::event_row(&event, now, all_namespaces)])
    },
};
pub(super) static CONFIG_MAPS: ObjectKind = ObjectKind {
    names: &["configmaps", "configmap", "cm"],
    plural: "configmaps",
    singular: "configmap",
    namespaced: true,
    header: |all_namespaces, _| table::object_header(all_namespaces, false),
    rows: |item, now, all_namespaces, _| {
        Ok(vec![table::object_row(item, now, all_namespaces, false)])
    },
};
pub(super) static SECRETS: ObjectKind = ObjectKind {
    names: &["secrets", "secret"],
    plural: "secrets",
    singular: "secret",
    namespaced: true,
    header: |all_namespaces, _| table::object_header(all_namespaces, true),
    rows: |item, now, all_namespaces, _| {
        Ok(vec![table::object_row(item, now, all_namespaces, true)])
    },
};

pub(super) fn read_item<T: DeserializeOwned>(item: &Value) -> Result<T, CliError> {
    let malformed = |e| CliError::new(format!("the agent's answer is not understood: {e}"));
    strict::typed_from_value(item).map_err(malformed)
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

fn run_get_objects(
    client: &AgentClient,
    get: &GetCommand,
    kind: &ObjectKind,
) -> Result<(), CliError> {
    let (list, items, missing) = fetch_objects(client, get, kind)?;
    show_objects(items, list, get, kind, missing.is_some())?;
    missing.map_or(Ok(()), Err)
}

/// The list without its items, the items that were asked for, and the error of a name that is missing.
type FoundObjects = (Value, Vec<Value>, Option<CliError>);

fn fetch_objects(
    client: &AgentClient,
    get: &GetCommand,
    kind: &ObjectKind,
) -> Result<FoundObjects, CliError> {
    let namespace = get.namespace.as_deref().unwrap_or(DEFAULT_NAMESPACE);
    let plural = kind.plural;
    let target = match kind.namespaced && !get.all_namespaces {
        true => format!("/{plural}?namespace={}", percent_encode(namespace)),
        false if is_node(kind) => "/node".into(),
        false => format!("/{plural}"),
    };
    let mut list = client.request_json("GET", &target)?;
    let mut items = match list.get_mut("items").and_then(Value::as_array_mut) {
        Some(items) => core::mem::take(items),
        None => vec![list.take()],
    };
    let mut missing = None;
    if !get.names.is_empty() {
        let has = |item: &Value, wanted: &str| object_names(item).any(|name| name == wanted);
        for name in &get.names {
            if !items.iter().any(|item| has(item, name)) {
                let text = format!("{plural} \"{name}\" not found");
                missing.get_or_insert(CliError::from_server(404, &text));
            }
        }
        items.retain(|item| get.names.iter().any(|name| has(item, name)));
    }
    Ok((list, items, missing))
}

/// Lists the names of the objects of a kind, for completion; `None`: no such kind, or no answer.
pub(super) fn list_names(
    client: &AgentClient,
    kind: &str,
    namespace: Option<&str>,
) -> Option<Vec<String>> {
    let items = list_objects(client, kind, namespace, false)?;
    Some(
        items
            .iter()
            .map(|item| object_name(item).to_owned())
            .collect(),
    )
}

/// Lists the containers of a pod, for completion.
pub(super) fn list_containers(
    client: &AgentClient,
    pod: &str,
    namespace: Option<&str>,
) -> Option<Vec<String>> {
    let pods = list_objects(client, "pods", namespace, false)?;
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
    let pods = list_objects(client, "pods", None, true)?;
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
    kind: &str,
    namespace: Option<&str>,
    all_namespaces: bool,
) -> Option<Vec<Value>> {
    let get = GetCommand {
        namespace: namespace.map(str::to_owned),
        all_namespaces,
        ..GetCommand::default()
    };
    let (_, items, _) = fetch_objects(client, &get, find_kind(kind, &KINDS).ok()?).ok()?;
    Some(items)
}

/// Returns true for the kind of which there is one object, which the agent sends by itself.
fn is_node(kind: &ObjectKind) -> bool {
    kind.singular == NODE.singular
}

fn show_objects(
    items: Vec<Value>,
    mut list: Value,
    get: &GetCommand,
    kind: &ObjectKind,
    missing: bool,
) -> Result<(), CliError> {
    if matches!(get.output, OutputFormat::Json | OutputFormat::Yaml) {
        // One name, one object; otherwise a list, as kubectl prints it.
        let value = match <[_; 1]>::try_from(items) {
            Ok([one]) if get.names.len() == 1 || is_node(kind) => one,
            Ok(one) => list_with_items(&mut list, one.into()),
            Err(items) if items.is_empty() && missing && get.names.len() == 1 => return Ok(()),
            Err(items) => list_with_items(&mut list, items),
        };
        return print_text(&object_text(&value, &get.output));
    }
    if get.output == OutputFormat::Name {
        let lines = items.iter().map(object_name);
        return print_text(
            &lines
                .map(|name| format!("{}/{name}\n", kind.singular))
                .collect::<String>(),
        );
    }
    if items.is_empty() {
        if !missing {
            // If standard error is closed, nobody can be told.
            let _ = writeln!(std::io::stderr(), "{}", nothing_found_text(get, kind));
        }
        return Ok(());
    }
    let (now, wide) = (clock::wall_now(), get.output == OutputFormat::Wide);
    let mut rows = Vec::new();
    for item in &items {
        rows.extend((kind.rows)(item, now, get.all_namespaces, wide)?);
    }
    if kind.singular == IMAGES.singular {
        rows.stable_sort();
    }
    let header = (kind.header)(get.all_namespaces, wide);
    print_text(&table::render_table(&header, &rows, get.no_headers))?;
    for line in items.iter().flat_map(pull_progress_lines) {
        // If standard error is closed, nobody can be told.
        let _ = writeln!(std::io::stderr(), "{line}");
    }
    Ok(())
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

fn nothing_found_text(get: &GetCommand, kind: &ObjectKind) -> String {
    let place = if get.all_namespaces || !kind.namespaced {
        String::new()
    } else {
        let namespace = get.namespace.as_deref().unwrap_or(DEFAULT_NAMESPACE);
        format!(" in {namespace} namespace")
    };
    format!("No resources found{place}.")
}

fn list_with_items(list: &mut Value, items: Vec<Value>) -> Value {
    // kubectl's word for whatever it has put together.
    list["kind"] = "List".into();
    list["items"] = items.into();
    list.take()
}

fn event_header(all_namespaces: bool) -> Vec<&'static str> {
    let mut header = vec!["LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"];
    if all_namespaces {
        header.insert(0, "NAMESPACE");
    }
    header
}

fn node_header(wide: bool) -> Vec<&'static str> {
    let mut header = vec!["NAME", "STATUS", "ROLES", "AGE", "VERSION"];
    if wide {
        header.extend([
            "INTERNAL-IP",
            "EXTERNAL-IP",
            "OS-IMAGE",
            "KERNEL-VERSION",
            "CONTAINER-RUNTIME",
        ]);
    }
    header
}

fn node_row(node: &Value, now: WallTime, wide: bool) -> Vec<String> {
    let text = |path: &str| {
        node.pointer(path)
            .and_then(|v| v.as_str())
            .unwrap_or("<unknown>")
            .to_owned()
    };
    let ready = node["status"]["conditions"].as_array().is_some_and(|all| {
        all.iter()
            .any(|c| c["type"] == "Ready" && c["status"] == "True")
    });
    let created = WallTime::parse(&text("/metadata/creationTimestamp"));
    let status = if ready { "Ready" } else { "NotReady" };
    let mut row = vec![
        text("/metadata/name"),
        status.into(),
        "<none>".into(),
        table::human_age(created, now),
        text("/status/nodeInfo/kubeletVersion"),
    ];
    if wide {
        let addresses = node["status"]["addresses"].as_array();
        let internal = addresses.and_then(|all| all.iter().find(|a| a["type"] == "InternalIP"));
        let internal = internal
            .and_then(|a| a["address"].as_str())
            .unwrap_or("<none>");
        row.extend([
            internal.to_owned(),
            "<none>".into(),
            text("/status/nodeInfo/osImage"),
            text("/status/nodeInfo/kernelVersion"),
            text("/status/nodeInfo/containerRuntimeVersion"),
        ]);
    }
    row
}

/// Time between two looks of `get -w`.
const EVERY: Duration = Duration::from_secs(1);

fn watch_objects(
    client: AgentClient,
    get: GetCommand,
    kind: &'static ObjectKind,
) -> Result<(), CliError> {
    if !matches!(get.output, OutputFormat::Table | OutputFormat::Wide) {
        return Err(CliError::new(
            "--watch shows only a table: remove --output, or use --output wide",
        ));
    }
    let (since, no_headers) = (clock::wall_now(), get.no_headers);
    let mut first = true;
    let look = move || {
        let seen = read_live_table(&client, &get, kind, since, first);
        first = false;
        seen
    };
    live::watch_table(EVERY, no_headers, Box::new(look))
}

/// Reads the present objects. Ages count from `since` where lines are compared, so that time alone is no change.
/// `first`: missing names are an error; later they have ended.
fn read_live_table(
    client: &AgentClient,
    get: &GetCommand,
    kind: &ObjectKind,
    since: WallTime,
    first: bool,
) -> Result<LiveTable, CliError> {
    let (now, wide) = (clock::wall_now(), get.output == OutputFormat::Wide);
    let (_, items, missing) = fetch_objects(client, get, kind)?;
    if let Some(missing) = missing.filter(|_| first) {
        return Err(missing);
    }
    let mut seen = LiveTable {
        header: (kind.header)(get.all_namespaces, wide),
        notes: items.iter().flat_map(pull_progress_lines).collect(),
        ..LiveTable::default()
    };
    let is_event = kind.singular == EVENTS.singular;
    for item in &items {
        let namespace = item["metadata"]["namespace"].as_str().unwrap_or("");
        let rows = |at: WallTime| (kind.rows)(item, at, get.all_namespaces, wide);
        for (said, cells) in rows(since)?.into_iter().zip(rows(now)?) {
            seen.rows.push(LiveRow {
                id: match item.get("metadata") {
                    Some(_) => format!("{namespace}/{}", object_name(item)),
                    // The name of an image may move to another one, and an image may have none.
                    None => cells
                        .iter()
                        .take(3)
                        .map(String::as_str)
                        .collect::<Vec<_>>()
                        .join("/"),
                },
                said: match is_event {
                    true => vec![item["count"].to_string(), item["message"].to_string()],
                    false => said,
                },
                cells,
            });
        }
    }
    if !is_event {
        seen.rows.stable_sort_by(|a, b| a.id.cmp(&b.id));
    } else if std::io::stdout().is_terminal() {
        // What happened last is at the top, where it is never cut off.
        seen.rows.reverse();
    }
    if seen.rows.is_empty() {
        seen.notes.push(nothing_found_text(get, kind));
    }
    Ok(seen)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use serde_json::json;

    use super::*;
    use crate::{config::decode::parse_patch, logic::testing::Random};

    #[test]
    fn who_waits_for_an_image() {
        let status = |message: &str| json!({"state": {"waiting": {"message": message}}});
        let pulling = "Pulling image \"a:1\": fetching 1 of 2 MiB (50%), 0 of 1 layers";
        let after = format!("cannot reach x; {pulling}");
        let pod = json!({
            "metadata": {"name": "p"},
            "status": {
                "initContainerStatuses": [status(""), status(pulling)],
                "containerStatuses": [status(&after), status("no such thing"), {"state": {}}],
            },
        });
        assert_eq!(pull_progress_lines(&pod), [format!("pod/p: {pulling}")]);
        assert_eq!(
            pull_progress_lines(&json!({"metadata": {"name": "p"}})),
            [""; 0]
        );
    }

    /// Texts that readers of YAML could take for something else.
    const TRICKY: &str = "yes No ON off y N true False ~ null = << 0 -1 +7 007 0x1F 0o17 0b11 0b_ 1_000 _1 1. . ._ .5 1e3 \
        1E-3 .inf -.INF .NaN 12:30 1:2:3 190:20:30.15 8080:80 2001-12-14 2001-1-1 2001-12-14T21:59:43Z - -a --- ... ? ?a \
        : :a a: a:b # a#b *a &a !a !!int |a >a %a @a `a 'a' \"a\" [a] {a} ,a {} [] \\ \\n";

    /// Makes a text of parts that matter to YAML.
    fn random_text(random: &mut Random) -> String {
        let parts: Vec<&str> = TRICKY.split_whitespace().collect();
        let signs = [
            " ",
            "  ",
            "\n",
            "\n\n",
            "\t",
            "\r",
            "a",
            "b c",
            ": ",
            " #",
            "- ",
            "\u{85}",
            "\u{a0}",
            "\u{2028}",
            "\u{feff}",
            "\0",
            "\u{7f}",
            "\u{1f600}",
            "ü",
            "\"",
            "'",
        ];
        let mut text = String::new();
        for _ in 0..random.below(5) {
            let all: &[&str] = if random.one_in(2) { &parts } else { &signs };
            let at = random.below(all.len() as u64);
            text += all[usize::try_from(at).expect("small")];
        }
        text
    }

    fn random_value(random: &mut Random, depth: u64) -> Value {
        let mut several = |of: &mut dyn FnMut(&mut Random)| {
            for _ in 0..random.below(4) {
                of(random);
            }
        };
        match depth {
            0 => {}
            odd if odd % 2 == 1 => {
                let mut map = serde_json::Map::new();
                several(&mut |random| {
                    let key = random_text(random).repeat(1 + usize::from(random.one_in(9)) * 60);
                    map.insert(key, random_value(random, odd - 1));
                });
                return map.into();
            }
            even => {
                let mut list = Vec::new();
                several(&mut |random| list.push(random_value(random, even - 1)));
                return list.into();
            }
        }
        match random.below(8) {
            0 => random.one_in(2).into(),
            1 => random.below(u64::MAX).into(),
            2 => json!(-1.5e300),
            3 => json!(1e-7),
            _ => random_text(random).into(),
        }
    }

    #[test]
    fn yaml_is_the_same_object_for_every_reader() {
        // CLI-01
        let mut random = Random(1);
        let mut objects: Vec<Value> = TRICKY
            .split_whitespace()
            .map(|text| json!({text: text, "list": [text, [text]], "k": {text: [{text: text}]}}))
            .collect();
        objects.extend((0..2000).map(|n| json!({"o": random_value(&mut random, 1 + n % 4)})));
        for object in &objects {
            let text = yaml_text(object);
            if text.contains("\"<<\":") {
                // Our reader merges a key in quotes, too.
                continue;
            }
            let read = parse_patch(text.as_bytes()).unwrap_or_else(|e| panic!("{e}: {text}"));
            assert_eq!(read.value, *object, "{text}");
        }
        let python = |words: &[&str]| {
            let mut python = Command::new("python3");
            python
                .args(words)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped());
            python.stderr(Stdio::null()).spawn()
        };
        let has_yaml = python(&["-c", "import yaml"]).and_then(|mut child| child.wait());
        if !has_yaml.is_ok_and(|status| status.success()) {
            skipped!("yaml_is_the_same_object_for_every_reader: needs Python with PyYAML");
            return;
        }
        let script = "import json, sys, yaml\n\
            for text in json.load(sys.stdin): print(json.dumps(yaml.safe_load(text)))";
        let mut judge = python(&["-c", script]).expect("python3");
        let texts: Vec<String> = objects.iter().map(yaml_text).collect();
        let mut to = judge.stdin.take().expect("its input");
        to.write_all(json!(texts).to_string().as_bytes())
            .expect("taken");
        drop(to);
        let said = judge.wait_with_output().expect("its answer");
        let said = String::from_utf8(said.stdout).expect("text");
        assert_eq!(said.lines().count(), objects.len());
        for ((line, object), text) in said.lines().zip(&objects).zip(&texts) {
            let read: Value = line.parse().expect("JSON");
            assert_eq!(read, *object, "{text}");
        }
    }
}
