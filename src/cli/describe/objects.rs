//! `picolet describe configmap` and `describe secret`.

use core::fmt::Write as _;

use serde_json::{Map, Value};

use super::{
    super::{AgentClient, CliError, elastic, escape_controls, print_text},
    text_at, write_annotations, write_labels,
};
use crate::server::http::percent_encode;

pub(super) fn describe_objects(
    client: &AgentClient,
    route: &str,
    namespace: &str,
    names: &[String],
) -> Result<(), CliError> {
    let target = format!("/{route}?namespace={}", percent_encode(namespace));
    let mut all = client.fetch_items(&target)?;
    let name_of = |object: &Value| text_at(object, "/metadata/name").to_owned();
    if let Some(name) = names
        .iter()
        .find(|n| !all.iter().any(|o| name_of(o) == **n))
    {
        return Err(CliError::from_server(
            404,
            &format!("{route} \"{name}\" not found"),
        ));
    }
    all.retain(|object| names.is_empty() || names.contains(&name_of(object)));
    let texts: Vec<String> = all.iter().map(object_description).collect();
    print_text(&escape_controls(&texts.join("\n\n")))
}

fn object_description(object: &Value) -> String {
    let mut head = String::new();
    for (title, path) in [
        ("Name", "/metadata/name"),
        ("Namespace", "/metadata/namespace"),
    ] {
        let _ = writeln!(head, "{title}:\t{}", text_at(object, path));
    }
    let metadata = |field: &str| object["metadata"].get(field);
    write_labels(&mut head, "Labels", metadata("labels"));
    write_annotations(&mut head, metadata("annotations"));
    // The rest is the owner's text, whose columns are left alone.
    let mut out = elastic::align_columns(&head);
    if object["immutable"] == true {
        out.push_str("\nImmutable:  true\n");
    }
    if object["kind"] == "Secret" {
        let _ = write!(out, "\nType:  {}\n\nData\n====\n", text_at(object, "/type"));
        let mut sizes = String::new();
        for (key, size) in object_fields(object, "dataBytes") {
            let _ = writeln!(sizes, "{key}:\t{size} bytes");
        }
        return out + &elastic::align_columns(&sizes);
    }
    out.push_str("\nData\n====\n");
    for (key, value) in object_fields(object, "data") {
        // What would move the cursor of a terminal is shown, as kubectl does.
        let text = value.as_str().unwrap_or("");
        let text = text.replace('\u{1b}', "^[").replace('\r', "\\r");
        let _ = write!(out, "{key}:\n----\n{text}\n\n");
    }
    out.push_str("\nBinaryData\n====\n");
    for (key, value) in object_fields(object, "binaryData") {
        let _ = writeln!(
            out,
            "{key}: {} bytes",
            decoded_len(value.as_str().unwrap_or(""))
        );
    }
    out.push_str("\nEvents:  <none>\n");
    out
}

fn object_fields<'a>(
    object: &'a Value,
    field: &str,
) -> impl Iterator<Item = (&'a String, &'a Value)> {
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
            object_description(&map),
            "Name:         settings\nNamespace:    default\nLabels:       a=b\n              c=d\nAnnotations:  <none>\n\n\
             Immutable:  true\n\nData\n====\ngreeting:\n----\nhello\n\nmotd:\n----\nof\tthe\nday\n\n\n\n\
             BinaryData\n====\nblob: 3 bytes\nnone: 0 bytes\none: 1 bytes\n\nEvents:  <none>\n"
        );
        let secret = json!({
            "kind": "Secret",
            "metadata": {"name": "token", "namespace": "x"},
            "type": "Opaque",
            "dataBytes": {"user": 4, "password": 12}
        });
        assert_eq!(
            object_description(&secret),
            "Name:         token\nNamespace:    x\nLabels:       <none>\nAnnotations:  <none>\n\nType:  Opaque\n\nData\n====\n\
             password:  12 bytes\nuser:      4 bytes\n"
        );
    }
}
