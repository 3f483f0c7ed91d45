//! `picolet get pods|images|node`.

use super::{
    CliError, Client,
    args::{Word, Words, unexpected},
    print, table,
};
use crate::api::strict;
use crate::{
    api::{Pod, cri::Image},
    server::http::encode,
    sys::clock,
};

/// Namespace of pods that name none, as kubectl has it.
pub(super) const DEFAULT_NAMESPACE: &str = "default";

#[derive(Debug, Default, PartialEq, Eq)]
enum Output {
    #[default]
    Table,
    Wide,
    Json,
    Yaml,
    Name,
}

#[derive(Default)]
struct Get {
    kind: String,
    names: Vec<String>,
    namespace: Option<String>,
    all_namespaces: bool,
    output: Output,
    no_headers: bool,
}

pub(super) fn run(mut words: Words) -> Result<(), CliError> {
    let mut get = Get::default();
    while let Some(word) = words.next()? {
        match word {
            Word::Flag("namespace") => get.namespace = Some(words.value()?),
            Word::Flag("all-namespaces") => get.all_namespaces = words.switch()?,
            Word::Flag("output") => get.output = output(&words.value()?)?,
            Word::Flag("no-headers") => get.no_headers = words.switch()?,
            Word::Value(value) if get.kind.is_empty() => match value.split_once('/') {
                Some((kind, name)) => {
                    get.kind = kind.to_owned();
                    get.names.push(name.to_owned());
                }
                None => get.kind = value,
            },
            Word::Value(value) => get.names.push(value),
            other @ Word::Flag(_) => return Err(unexpected(other)),
        }
    }
    let client = words.client();
    match get.kind.as_str() {
        "pod" | "pods" | "po" => pods(&client, &get),
        "image" | "images" => images(&client, &get),
        "node" | "nodes" | "no" => node(&client, &get),
        "event" | "events" | "ev" => events(&client, &get),
        "" => Err(CliError::new(
            "you must say what to get: pods, images, node or events",
        )),
        other => Err(CliError::new(format!(
            "the server doesn't have a resource type \"{other}\""
        ))),
    }
}

fn output(text: &str) -> Result<Output, CliError> {
    Ok(match text {
        "" => Output::Table,
        "wide" => Output::Wide,
        "json" => Output::Json,
        "yaml" => Output::Yaml,
        "name" => Output::Name,
        other => {
            return Err(CliError::new(format!(
                "unable to match a printer suitable for the output format \"{other}\", allowed formats are: json,name,wide,yaml"
            )));
        }
    })
}

/// Prints `value` as the caller asked; `None` if a table is wanted.
fn print_object(value: &serde_json::Value, output: &Output) -> Option<Result<(), CliError>> {
    let text = match output {
        Output::Json => serde_json::to_string_pretty(value)
            .map(|t| t + "\n")
            .map_err(|e| e.to_string()),
        Output::Yaml => serde_yaml_ng::to_string(value).map_err(|e| e.to_string()),
        Output::Table | Output::Wide | Output::Name => return None,
    };
    Some(
        text.map_err(|e| CliError::new(format!("cannot print: {e}")))
            .and_then(|t| print(&t)),
    )
}

fn pods(client: &Client, get: &Get) -> Result<(), CliError> {
    let namespace = get.namespace.as_deref().unwrap_or(DEFAULT_NAMESPACE);
    let target = if get.all_namespaces {
        "/pods".into()
    } else {
        format!("/pods?namespace={}", encode(namespace))
    };
    let mut list = client.json("GET", &target)?;
    let mut items = list
        .get_mut("items")
        .and_then(|i| i.as_array_mut())
        .map(core::mem::take)
        .unwrap_or_default();
    let mut missing = None;
    if !get.names.is_empty() {
        let name_of =
            |item: &serde_json::Value| item["metadata"]["name"].as_str().unwrap_or("").to_owned();
        for name in &get.names {
            if !items.iter().any(|i| name_of(i) == *name) {
                let message = format!("Error from server (NotFound): pods \"{name}\" not found");
                missing.get_or_insert(CliError { message, code: 1 });
            }
        }
        items.retain(|i| get.names.contains(&name_of(i)));
    }
    show_pods(items, list, get, namespace, missing.is_some())?;
    missing.map_or(Ok(()), Err)
}

fn show_pods(
    items: Vec<serde_json::Value>,
    mut list: serde_json::Value,
    get: &Get,
    namespace: &str,
    missing: bool,
) -> Result<(), CliError> {
    if matches!(get.output, Output::Json | Output::Yaml) {
        // One name, one object; otherwise a list, as kubectl prints it.
        let value = match <[_; 1]>::try_from(items) {
            Ok([one]) if get.names.len() == 1 => one,
            Ok(one) => with_items(&mut list, one.into()),
            Err(_) if get.names.len() == 1 && missing => return Ok(()),
            Err(items) => with_items(&mut list, items),
        };
        return print_object(&value, &get.output).unwrap_or(Ok(()));
    }
    let decode = |item: serde_json::Value| {
        strict::typed::<Pod>(&item).map_err(|e| CliError::new(format!("malformed pod: {e}")))
    };
    let pods = items
        .into_iter()
        .map(decode)
        .collect::<Result<Vec<_>, _>>()?;
    if get.output == Output::Name {
        return print(
            &pods
                .iter()
                .map(|p| format!("pod/{}\n", p.metadata.name))
                .collect::<String>(),
        );
    }
    if pods.is_empty() {
        if !missing {
            let place = if get.all_namespaces {
                String::new()
            } else {
                format!(" in {namespace} namespace")
            };
            let text = format!("No resources found{place}.");
            let _ = std::io::Write::write_all(&mut std::io::stderr(), (text + "\n").as_bytes());
        }
        return Ok(());
    }
    let now = clock::wall();
    let wide = get.output == Output::Wide;
    let rows: Vec<_> = pods
        .iter()
        .map(|p| table::pod_row(p, now, get.all_namespaces, wide))
        .collect();
    show_table(
        &table::pod_header(get.all_namespaces, wide),
        &rows,
        get.no_headers,
    )
}

fn with_items(list: &mut serde_json::Value, items: Vec<serde_json::Value>) -> serde_json::Value {
    // kubectl's word for whatever it has put together.
    list["kind"] = "List".into();
    list["items"] = items.into();
    list.take()
}

fn show_table(header: &[&str], rows: &[Vec<String>], no_headers: bool) -> Result<(), CliError> {
    let text = table::render(header, rows);
    print(if no_headers {
        text.split_once('\n').map_or("", |(_, rest)| rest)
    } else {
        &text
    })
}

/// `get images` and `image ls`.
pub(super) fn show_images(client: &Client, wide: bool, no_headers: bool) -> Result<(), CliError> {
    let list = client.json("GET", "/images")?;
    let images: Vec<Image> = strict::typed(&list["items"])
        .map_err(|e| CliError::new(format!("malformed image: {e}")))?;
    let rows: Vec<_> = images
        .iter()
        .flat_map(|i| table::image_rows(i, wide))
        .collect();
    show_table(&table::IMAGE_HEADER, &rows, no_headers)
}

fn images(client: &Client, get: &Get) -> Result<(), CliError> {
    if matches!(get.output, Output::Json | Output::Yaml) {
        let list = client.json("GET", "/images")?;
        return print_object(&list, &get.output).unwrap_or(Ok(()));
    }
    show_images(client, get.output == Output::Wide, get.no_headers)
}

fn events(client: &Client, get: &Get) -> Result<(), CliError> {
    let namespace = get.namespace.as_deref().unwrap_or(DEFAULT_NAMESPACE);
    let target = if get.all_namespaces {
        "/events".into()
    } else {
        format!("/events?namespace={}", encode(namespace))
    };
    let mut list = client.json("GET", &target)?;
    if let Some(done) = print_object(&list, &get.output) {
        return done;
    }
    let items = list["items"].as_array_mut().map(core::mem::take);
    let now = clock::wall();
    let mut header = vec!["LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"];
    if get.all_namespaces {
        header.insert(0, "NAMESPACE");
    }
    let rows: Vec<Vec<String>> = items
        .unwrap_or_default()
        .iter()
        .map(|event| table::event_row(event, now, get.all_namespaces))
        .collect();
    if rows.is_empty() {
        let place = if get.all_namespaces {
            String::new()
        } else {
            format!(" in {namespace} namespace")
        };
        let text = format!("No resources found{place}.\n");
        let _ = std::io::Write::write_all(&mut std::io::stderr(), text.as_bytes());
        return Ok(());
    }
    show_table(&header, &rows, get.no_headers)
}

fn node(client: &Client, get: &Get) -> Result<(), CliError> {
    let node = client.json("GET", "/node")?;
    let text = |path: &str| {
        node.pointer(path)
            .and_then(|v| v.as_str())
            .unwrap_or("<unknown>")
            .to_owned()
    };
    let name = text("/metadata/name");
    if let Some(other) = get.names.iter().find(|n| **n != name) {
        return Err(CliError {
            message: format!("Error from server (NotFound): nodes \"{other}\" not found"),
            code: 1,
        });
    }
    if let Some(done) = print_object(&node, &get.output) {
        return done;
    }
    if get.output == Output::Name {
        return print(&format!("node/{name}\n"));
    }
    let ready = node["status"]["conditions"].as_array().is_some_and(|all| {
        all.iter()
            .any(|c| c["type"] == "Ready" && c["status"] == "True")
    });
    let created = crate::api::Wall::parse(&text("/metadata/creationTimestamp"));
    let age = created.map_or_else(
        || "<unknown>".into(),
        |at| table::human_duration(clock::wall().secs() - at.secs()),
    );
    let mut header = vec!["NAME", "STATUS", "ROLES", "AGE", "VERSION"];
    let status = if ready { "Ready" } else { "NotReady" };
    let mut row = vec![
        name,
        status.into(),
        "<none>".into(),
        age,
        text("/status/nodeInfo/kubeletVersion"),
    ];
    if get.output == Output::Wide {
        header.extend([
            "INTERNAL-IP",
            "EXTERNAL-IP",
            "OS-IMAGE",
            "KERNEL-VERSION",
            "CONTAINER-RUNTIME",
        ]);
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
    show_table(&header, &[row], get.no_headers)
}
