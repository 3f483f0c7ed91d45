//! `picolet describe configmap` and `describe secret`.

use core::fmt::Write as _;

use serde_json::{Map, Value};

use super::{
    super::{AgentClient, CliError, elastic, print},
    items, pairs, text,
};
use crate::server::http::encode;

pub(super) fn run(
    client: &AgentClient,
    route: &str,
    namespace: &str,
    names: &[String],
) -> Result<(), CliError> {
    let target = format!("/{route}?namespace={}", encode(namespace));
    let mut all = client.json("GET", &target).map(items)?;
    let name_of = |object: &Value| text(object, "/metadata/name").to_owned();
    if let Some(name) = names
        .iter()
        .find(|n| !all.iter().any(|o| name_of(o) == **n))
    {
        return Err(CliError {
            message: format!("Error from server (NotFound): {route} \"{name}\" not found"),
            code: 1,
        });
    }
    all.retain(|object| names.is_empty() || names.contains(&name_of(object)));
    let texts: Vec<String> = all.iter().map(shown).collect();
    print(&texts.join("\n\n"))
}

fn shown(object: &Value) -> String {
    let mut head = String::new();
    for (title, path) in [
        ("Name", "/metadata/name"),
        ("Namespace", "/metadata/namespace"),
    ] {
        let _ = writeln!(head, "{title}:\t{}", text(object, path));
    }
    let metadata = |field: &str| object["metadata"].get(field);
    pairs(&mut head, "Labels", metadata("labels"), "=");
    pairs(&mut head, "Annotations", metadata("annotations"), ": ");
    // The rest is the owner's text, whose columns are left alone.
    let mut out = elastic::align(&head);
    if object["immutable"] == true {
        out.push_str("\nImmutable:  true\n");
    }
    if object["kind"] == "Secret" {
        let _ = write!(out, "\nType:  {}\n\nData\n====\n", text(object, "/type"));
        let mut sizes = String::new();
        for (key, size) in fields(object, "dataBytes") {
            let _ = writeln!(sizes, "{key}:\t{size} bytes");
        }
        return out + &elastic::align(&sizes);
    }
    out.push_str("\nData\n====\n");
    for (key, value) in fields(object, "data") {
        let _ = write!(out, "{key}:\n----\n{}\n\n", value.as_str().unwrap_or(""));
    }
    out.push_str("\nBinaryData\n====\n");
    for (key, value) in fields(object, "binaryData") {
        let _ = writeln!(
            out,
            "{key}: {} bytes",
            decoded_len(value.as_str().unwrap_or(""))
        );
    }
    out
}

fn fields<'a>(object: &'a Value, field: &str) -> impl Iterator<Item = (&'a String, &'a Value)> {
    let fields = object.get(field).and_then(Value::as_object);
    fields.into_iter().flat_map(Map::iter)
}

/// Counts the bytes that padded base64 text stands for.
fn decoded_len(base64: &str) -> usize {
    let padding = base64.bytes().rev().take_while(|b| *b == b'=').count();
    (base64.len() / 4 * 3).saturating_sub(padding)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn config_maps_and_secrets() {
        let map = json!({
            "kind": "ConfigMap",
            "metadata": {"name": "settings", "namespace": "default", "labels": {"a": "b", "c": "d"}},
            "data": {"greeting": "hello", "motd": "of\tthe\nday\n"},
            "binaryData": {"blob": "AAEC", "one": "AA==", "none": ""},
            "immutable": true
        });
        assert_eq!(
            shown(&map),
            "Name:         settings\nNamespace:    default\nLabels:       a=b\n              c=d\nAnnotations:  <none>\n\n\
             Immutable:  true\n\nData\n====\ngreeting:\n----\nhello\n\nmotd:\n----\nof\tthe\nday\n\n\n\n\
             BinaryData\n====\nblob: 3 bytes\nnone: 0 bytes\none: 1 bytes\n"
        );
        let secret = json!({
            "kind": "Secret",
            "metadata": {"name": "token", "namespace": "x"},
            "type": "Opaque",
            "dataBytes": {"user": 4, "password": 12}
        });
        assert_eq!(
            shown(&secret),
            "Name:         token\nNamespace:    x\nLabels:       <none>\nAnnotations:  <none>\n\nType:  Opaque\n\nData\n====\n\
             password:  12 bytes\nuser:      4 bytes\n"
        );
    }
}
