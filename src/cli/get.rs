//! `picolet get pods|images|node|devices|events|configmaps|secrets`.

use core::time::Duration;
use std::io::{IsTerminal as _, Write as _};

use serde_json::Value;

use super::{
    AgentClient, CliError,
    args::{CliWord, CliWords, unexpected_word},
    commands::KINDS,
    live::{self, LiveRow, LiveTable},
    print_text, table,
};
use crate::{
    api::{Event, Pod, WallTime, cri::StoredImage, order::OrderExt as _, strict, yaml::yaml_text},
    server::{
        backend::{DeviceReport, ObjectList},
        http::percent_encode,
    },
    sys::clock,
};

/// First words of the agent's message about a pull.
const PULLING: &str = "Pulling image ";

/// Namespace of pods that name none, as kubectl has it.
pub(crate) const DEFAULT_NAMESPACE: &str = "default";

#[derive(Debug, Default, PartialEq, Eq)]
enum OutputFormat {
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
            CliWord::Value(value) if get.kind.is_empty() => match value.split_once('/') {
                Some((kind, name)) => {
                    get.kind = kind.to_owned();
                    get.names.push(name.to_owned());
                }
                None => get.kind = value,
            },
            CliWord::Value(value) => get.names.push(value),
            other @ CliWord::Flag(_) => return Err(unexpected_word(other)),
        }
    }
    let client = match get.watch {
        true => words.agent_client().with_patience(live::PATIENCE),
        false => words.agent_client(),
    };
    if get.watch {
        return watch_objects(client, get);
    }
    match parse_kind(&get.kind)? {
        RequestedKind::Objects(kind) => run_get_objects(&client, &get, kind),
        RequestedKind::Images => run_get_images(&client, &get),
        RequestedKind::Devices => run_get_devices(&client, &get),
        RequestedKind::Node => run_get_node(&client, &get),
        RequestedKind::Events => run_get_events(&client, &get),
    }
}

/// Kind of things that was asked for.
#[derive(Clone, Copy)]
enum RequestedKind {
    Objects(&'static ObjectKind),
    Images,
    Devices,
    Node,
    Events,
}

fn parse_kind(kind: &str) -> Result<RequestedKind, CliError> {
    Ok(match kind {
        "pod" | "pods" | "po" => RequestedKind::Objects(&PODS),
        "image" | "images" => RequestedKind::Images,
        "device" | "devices" => RequestedKind::Devices,
        "node" | "nodes" | "no" => RequestedKind::Node,
        "event" | "events" | "ev" => RequestedKind::Events,
        "configmap" | "configmaps" | "cm" => RequestedKind::Objects(&CONFIG_MAPS),
        "secret" | "secrets" => RequestedKind::Objects(&SECRETS),
        "" => {
            return Err(CliError::new(format!(
                "you must say what to get: {}",
                KINDS.join(", ")
            )));
        }
        other => {
            return Err(CliError::new(format!(
                "the server doesn't have a resource type \"{other}\""
            )));
        }
    })
}

fn parse_output_format(text: &str) -> Result<OutputFormat, CliError> {
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

/// Prints `value` in the form that was asked for; `None` if that is a table.
fn print_object(value: &Value, output: &OutputFormat) -> Option<Result<(), CliError>> {
    Some(print_text(&match output {
        OutputFormat::Json => format!("{value:#}\n"),
        OutputFormat::Yaml => yaml_text(value),
        OutputFormat::Table | OutputFormat::Wide | OutputFormat::Name => return None,
    }))
}

/// A kind of namespaced objects: its route and its table.
struct ObjectKind {
    /// Route, and the kind's name in the plural.
    route: &'static str,
    singular: &'static str,
    header: fn(all_namespaces: bool, wide: bool) -> Vec<&'static str>,
    row: ObjectRowFn,
}

/// Makes a row of an object: (object, now, of all namespaces, wide). Errors: the object is malformed.
type ObjectRowFn = fn(&Value, WallTime, bool, bool) -> Result<Vec<String>, CliError>;

static PODS: ObjectKind = ObjectKind {
    route: "pods",
    singular: "pod",
    header: table::pod_header,
    row: |item, now, all_namespaces, wide| {
        let malformed = |e| CliError::new(format!("malformed pod: {e}"));
        let pod = strict::typed_from_value::<Pod>(item).map_err(malformed)?;
        Ok(table::pod_row(&pod, now, all_namespaces, wide))
    },
};
static CONFIG_MAPS: ObjectKind = ObjectKind {
    route: "configmaps",
    singular: "configmap",
    header: |all_namespaces, _| table::object_header(all_namespaces, false),
    row: |item, now, all_namespaces, _| Ok(table::object_row(item, now, all_namespaces, false)),
};
static SECRETS: ObjectKind = ObjectKind {
    route: "secrets",
    singular: "secret",
    header: |all_namespaces, _| table::object_header(all_namespaces, true),
    row: |item, now, all_namespaces, _| Ok(table::object_row(item, now, all_namespaces, true)),
};

fn object_name(item: &Value) -> &str {
    item["metadata"]["name"].as_str().unwrap_or("")
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
    let route = kind.route;
    let target = if get.all_namespaces {
        format!("/{route}")
    } else {
        format!("/{route}?namespace={}", percent_encode(namespace))
    };
    let mut list = client.request_json("GET", &target)?;
    let mut items = list
        .get_mut("items")
        .and_then(|i| i.as_array_mut())
        .map(core::mem::take)
        .unwrap_or_default();
    let mut missing = None;
    if !get.names.is_empty() {
        for name in &get.names {
            if !items.iter().any(|i| object_name(i) == name) {
                let message = format!("Error from server (NotFound): {route} \"{name}\" not found");
                missing.get_or_insert(CliError { message, code: 1 });
            }
        }
        items.retain(|i| get.names.iter().any(|name| name == object_name(i)));
    }
    Ok((list, items, missing))
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
            Ok([one]) if get.names.len() == 1 => one,
            Ok(one) => list_with_items(&mut list, one.into()),
            Err(_) if get.names.len() == 1 && missing => return Ok(()),
            Err(items) => list_with_items(&mut list, items),
        };
        return print_object(&value, &get.output).unwrap_or(Ok(()));
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
            report_nothing_found(get);
        }
        return Ok(());
    }
    let (now, wide) = (clock::wall_now(), get.output == OutputFormat::Wide);
    let rows = items
        .iter()
        .map(|item| (kind.row)(item, now, get.all_namespaces, wide))
        .collect::<Result<Vec<_>, _>>()?;
    let header = (kind.header)(get.all_namespaces, wide);
    show_table(&header, &rows, get.no_headers)?;
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

fn report_nothing_found(get: &GetCommand) {
    // If standard error is closed, nobody can be told.
    let _ = writeln!(std::io::stderr(), "{}", nothing_found_text(get));
}

fn nothing_found_text(get: &GetCommand) -> String {
    let place = if get.all_namespaces {
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

fn show_table(header: &[&str], rows: &[Vec<String>], no_headers: bool) -> Result<(), CliError> {
    let text = table::render_table(header, rows);
    print_text(if no_headers {
        text.split_once('\n').map_or("", |(_, rest)| rest)
    } else {
        &text
    })
}

/// `get images` and `image ls`.
pub(crate) fn show_images(
    client: &AgentClient,
    wide: bool,
    no_headers: bool,
) -> Result<(), CliError> {
    let rows = fetch_image_rows(client, wide)?;
    show_table(&table::IMAGE_HEADER, &rows, no_headers)
}

fn fetch_image_rows(client: &AgentClient, wide: bool) -> Result<Vec<Vec<String>>, CliError> {
    let images: ObjectList<StoredImage> = client.fetch_typed("/images")?;
    let rows = images.items.iter();
    Ok(rows.flat_map(|i| table::image_rows(i, wide)).collect())
}

fn run_get_images(client: &AgentClient, get: &GetCommand) -> Result<(), CliError> {
    if matches!(get.output, OutputFormat::Json | OutputFormat::Yaml) {
        let list = client.request_json("GET", "/images")?;
        return print_object(&list, &get.output).unwrap_or(Ok(()));
    }
    show_images(client, get.output == OutputFormat::Wide, get.no_headers)
}

fn run_get_devices(client: &AgentClient, get: &GetCommand) -> Result<(), CliError> {
    if matches!(get.output, OutputFormat::Json | OutputFormat::Yaml) {
        let list = client.request_json("GET", "/devices")?;
        return print_object(&list, &get.output).unwrap_or(Ok(()));
    }
    let rows = fetch_device_rows(client)?;
    if rows.is_empty() {
        report_nothing_found(get);
        return Ok(());
    }
    show_table(&table::DEVICE_HEADER, &rows, get.no_headers)
}

fn fetch_device_rows(client: &AgentClient) -> Result<Vec<Vec<String>>, CliError> {
    let list: ObjectList<DeviceReport> = client.fetch_typed("/devices")?;
    Ok(list.items.iter().map(table::device_row).collect())
}

fn run_get_events(client: &AgentClient, get: &GetCommand) -> Result<(), CliError> {
    let target = events_target(get);
    if matches!(get.output, OutputFormat::Json | OutputFormat::Yaml) {
        let list = client.request_json("GET", &target)?;
        return print_object(&list, &get.output).unwrap_or(Ok(()));
    }
    let list: ObjectList<Event> = client.fetch_typed(&target)?;
    let now = clock::wall_now();
    let rows: Vec<Vec<String>> = list
        .items
        .iter()
        .map(|event| table::event_row(event, now, get.all_namespaces))
        .collect();
    if rows.is_empty() {
        report_nothing_found(get);
        return Ok(());
    }
    show_table(&event_header(get), &rows, get.no_headers)
}

fn events_target(get: &GetCommand) -> String {
    let namespace = get.namespace.as_deref().unwrap_or(DEFAULT_NAMESPACE);
    match get.all_namespaces {
        true => "/events".into(),
        false => format!("/events?namespace={}", percent_encode(namespace)),
    }
}

fn event_header(get: &GetCommand) -> Vec<&'static str> {
    let mut header = vec!["LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"];
    if get.all_namespaces {
        header.insert(0, "NAMESPACE");
    }
    header
}

fn run_get_node(client: &AgentClient, get: &GetCommand) -> Result<(), CliError> {
    let node = fetch_own_node(client, get)?;
    if let Some(done) = print_object(&node, &get.output) {
        return done;
    }
    if get.output == OutputFormat::Name {
        return print_text(&format!("node/{}\n", object_name(&node)));
    }
    let wide = get.output == OutputFormat::Wide;
    let row = node_row(&node, clock::wall_now(), wide);
    show_table(&node_header(wide), &[row], get.no_headers)
}

/// The node; an error if another was asked for.
fn fetch_own_node(client: &AgentClient, get: &GetCommand) -> Result<Value, CliError> {
    let node = client.request_json("GET", "/node")?;
    match get.names.iter().find(|name| **name != object_name(&node)) {
        None => Ok(node),
        Some(other) => Err(CliError {
            message: format!("Error from server (NotFound): nodes \"{other}\" not found"),
            code: 1,
        }),
    }
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

fn watch_objects(client: AgentClient, get: GetCommand) -> Result<(), CliError> {
    if !matches!(get.output, OutputFormat::Table | OutputFormat::Wide) {
        return Err(CliError::new(
            "--watch shows only a table: remove --output, or use --output wide",
        ));
    }
    let kind = parse_kind(&get.kind)?;
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
    kind: RequestedKind,
    since: WallTime,
    first: bool,
) -> Result<LiveTable, CliError> {
    let (now, wide) = (clock::wall_now(), get.output == OutputFormat::Wide);
    let mut seen = LiveTable::default();
    match kind {
        RequestedKind::Objects(kind) => {
            let (_, items, missing) = fetch_objects(client, get, kind)?;
            if let Some(missing) = missing.filter(|_| first) {
                return Err(missing);
            }
            seen.header = (kind.header)(get.all_namespaces, wide);
            for item in &items {
                let namespace = item["metadata"]["namespace"].as_str().unwrap_or("");
                let row = |at: WallTime| (kind.row)(item, at, get.all_namespaces, wide);
                seen.rows.push(LiveRow {
                    id: format!("{namespace}/{}", object_name(item)),
                    said: row(since)?,
                    cells: row(now)?,
                });
            }
            seen.rows.stable_sort_by(|a, b| a.id.cmp(&b.id));
            seen.notes = items.iter().flat_map(pull_progress_lines).collect();
        }
        RequestedKind::Images => {
            seen.header = table::IMAGE_HEADER.to_vec();
            let rows = fetch_image_rows(client, wide)?;
            let rows = rows.into_iter();
            // A name may move to another image, and an image may have none.
            seen.rows = rows
                .map(|cells| LiveRow::with_name_cells(cells, 3))
                .collect();
            seen.rows.stable_sort_by(|a, b| a.id.cmp(&b.id));
        }
        RequestedKind::Devices => {
            seen.header = table::DEVICE_HEADER.to_vec();
            let rows = fetch_device_rows(client)?.into_iter();
            // A unit may be of two resources.
            let id = |cells: &[String]| format!("{} {}", cells[0], cells[1]);
            seen.rows = rows
                .map(|cells| LiveRow {
                    id: id(&cells),
                    said: cells.clone(),
                    cells,
                })
                .collect();
        }
        RequestedKind::Node => {
            let node = fetch_own_node(client, get)?;
            seen.header = node_header(wide);
            seen.rows = vec![LiveRow {
                id: object_name(&node).to_owned(),
                said: node_row(&node, since, wide),
                cells: node_row(&node, now, wide),
            }];
        }
        RequestedKind::Events => {
            let list: ObjectList<Event> = client.fetch_typed(&events_target(get))?;
            seen.header = event_header(get);
            let rows = list.items.iter().map(|event| LiveRow {
                id: format!("{}/{}", event.metadata.namespace, event.metadata.name),
                said: vec![event.count.to_string(), event.message.clone()],
                cells: table::event_row(event, now, get.all_namespaces),
            });
            seen.rows = rows.collect();
            if std::io::stdout().is_terminal() {
                // What happened last is at the top, where it is never cut off.
                seen.rows.reverse();
            }
        }
    }
    if seen.rows.is_empty() {
        seen.notes.push(nothing_found_text(get));
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
