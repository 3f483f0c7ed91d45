//! Layers of the configuration: the file, drop-ins and flags, each with its name. Finds the one that has set a field, and
//! removes a faulty field from the whole.

use std::path::Path;

use serde_json::{Map, Value};

use super::{ConfigError, ConfigWarning, checks::InvalidField, file::ConfigDocument, keys};

/// Name of the layer of flags.
const COMMAND_LINE: &str = "the command line";

/// Names and documents of all layers, in the order in which they are laid over each other.
#[derive(Debug, Default)]
pub(super) struct ConfigLayers(Vec<(Option<String>, Value)>);

impl ConfigLayers {
    /// Adds a file, and its warnings to the others. Returns its document.
    pub(super) fn push_file(
        &mut self,
        path: &Path,
        document: ConfigDocument,
        warnings: &mut Vec<ConfigWarning>,
    ) -> Value {
        let place = path.display().to_string();
        warnings.extend(document.warnings.into_iter().map(|message| ConfigWarning {
            place: place.clone(),
            message,
        }));
        self.0.push((Some(place), document.value.clone()));
        document.value
    }

    /// Adds the flags.
    pub(super) fn push_flags(&mut self, overlay: &Map<String, Value>) {
        self.0.push((None, Value::Object(overlay.clone())));
    }

    /// Makes the error of a field.
    pub(super) fn config_error(&self, field: String, message: String) -> ConfigError {
        ConfigError::Invalid {
            path: self.name_source(&field),
            field,
            message,
        }
    }

    /// Names the file or the flag that has set a field: of those that know the longest part of its path the last one. If
    /// none knows it, the first layer. A flag may stand for a field.
    pub(super) fn name_source(&self, field: &str) -> String {
        if field.starts_with("--") {
            return COMMAND_LINE.into();
        }
        let known = self.0.iter();
        let known = known.map(|(file, document)| (matched_bytes(document, field), file));
        let last = known.max_by_key(|(bytes, _)| *bytes);
        match last.filter(|(bytes, _)| *bytes > 0) {
            Some((_, Some(file))) => file.clone(),
            Some((_, None)) => match keys::find_flag(field) {
                Some(flag) => format!("--{flag}"),
                None => COMMAND_LINE.into(),
            },
            None => {
                let first = self.0.first().and_then(|(file, _)| file.clone());
                first.unwrap_or_else(|| COMMAND_LINE.into())
            }
        }
    }
}

/// Splits a path behind its first name, the longest one that `fields` has: names may have dots.
fn split_path<'a>(fields: &Map<String, Value>, path: &'a str) -> Option<(&'a str, &'a str)> {
    let ends = (1..=path.len()).rev().filter(|&at| {
        path.is_char_boundary(at) && matches!(path.as_bytes().get(at), None | Some(b'.' | b'['))
    });
    let mut names = ends.map(|at| path.split_at(at));
    names.find(|(name, _)| fields.contains_key(*name))
}

/// Counts the bytes of the names in `path` that a document has. An item of a list counts as the list.
fn matched_bytes(document: &Value, path: &str) -> usize {
    let known = document.as_object().and_then(|map| split_path(map, path));
    known.map_or(0, |(name, rest)| {
        name.len() + path_below(rest).map_or(0, |rest| matched_bytes(&document[name], rest))
    })
}

/// Returns the path below a section, or the key of an entry, which rules write in brackets.
fn path_below(rest: &str) -> Option<&str> {
    let entry = || rest.strip_prefix('[')?.strip_suffix(']');
    rest.strip_prefix('.').or_else(entry)
}

/// Removes a field with all that is below it. An item of a list is removed with the list. Returns false if there is no
/// such field.
fn remove_field(document: &mut Value, path: &str) -> bool {
    let Some(fields) = document.as_object_mut() else {
        return false;
    };
    let Some((name, rest)) = split_path(fields, path) else {
        return false;
    };
    match (path_below(rest), &mut fields[name]) {
        (Some(rest), value @ Value::Object(_)) => remove_field(value, rest),
        _ => fields.remove(name).is_some(),
    }
}

/// Removes what a rule complains of: the field; without it another field that the rule names; without that the section of
/// the field. Returns false if there is nothing to remove.
pub(super) fn remove_fault(document: &mut Value, fault: &InvalidField) -> bool {
    let mut named = keys::key_names().filter(|name| fault.message.contains(name));
    let section = fault.field.rsplit_once('.').map(|(section, _)| section);
    let section = section.filter(|section| *section != "picolet");
    remove_field(document, &fault.field)
        || named.any(|name| remove_field(document, name))
        || section.is_some_and(|section| remove_field(document, section))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_source_of_a_field() {
        let mut layers = ConfigLayers::default();
        assert_eq!(layers.name_source("maxPods"), "the command line");
        let file = json!({"maxPods": 1, "evictionHard": {"memory.available": "x"}, "picolet": {"nodeIP": "a"}});
        let drop_in = json!({"maxPods": 2, "clusterDNS": ["x"], "evictionHard": {"nodefs.available": "x"},
            "picolet": {"rootDir": null}});
        for (path, value) in [("FILE", file), ("DROP-IN", drop_in)] {
            let warnings = vec!["odd".into()];
            let mut said = Vec::new();
            layers.push_file(
                Path::new(path),
                ConfigDocument { value, warnings },
                &mut said,
            );
            assert_eq!(said[0].to_string(), format!("{path}: odd"));
        }
        let flags =
            json!({"port": 3, "featureGates": {"A": true}, "picolet": {"kubeletVersion": "v1"}});
        layers.push_flags(flags.as_object().expect("a map"));
        for (field, source) in [
            ("maxPods", "DROP-IN"),
            ("evictionHard[memory.available]", "FILE"),
            ("evictionHard[nodefs.available]", "DROP-IN"),
            ("picolet.nodeIP", "FILE"),
            ("picolet.rootDir", "DROP-IN"),
            ("clusterDNS[0]", "DROP-IN"),
            ("port", "--port"),
            ("featureGates.A", "--feature-gates"),
            ("picolet.kubeletVersion", "the command line"),
            ("syncFrequency", "FILE"),
        ] {
            assert_eq!(layers.name_source(field), source, "{field}");
        }
    }

    #[test]
    fn a_fault_is_removed_alone() {
        let document = json!({
            "clusterDNS": ["x", "y"], "evictionHard": {"memory.available": "x", "nodefs.available": "1%"}, "port": "x",
            "picolet": {"handlers": {"a.b": "x"}, "imageCredentialProviderConfig": "/c", "process": {"allowRoot": true}},
        });
        let beside = "must be set beside picolet.imageCredentialProviderConfig";
        for (field, message, removed) in [
            ("clusterDNS[1]", "", Some("/clusterDNS")),
            (
                "evictionHard[memory.available]",
                "",
                Some("/evictionHard/memory.available"),
            ),
            ("picolet.handlers.a.b", "", Some("/picolet/handlers/a.b")),
            ("port.x", "", Some("/port")),
            (
                "picolet.imageCredentialProviderBinDir",
                beside,
                Some("/picolet/imageCredentialProviderConfig"),
            ),
            (
                "picolet.process.directories",
                "must be set for picolet.process",
                Some("/picolet/process"),
            ),
            ("picolet.hostnameOverride", "the host has no name", None),
        ] {
            let (mut left, fault) = (
                document.clone(),
                InvalidField {
                    field: field.into(),
                    message: message.into(),
                },
            );
            assert_eq!(
                remove_fault(&mut left, &fault),
                removed.is_some(),
                "{field}"
            );
            let mut want = document.clone();
            if let Some((parent, name)) = removed.and_then(|removed| removed.rsplit_once('/')) {
                let fields = want.pointer_mut(parent).and_then(Value::as_object_mut);
                fields.expect("a section").remove(name);
            }
            assert_eq!(left, want, "{field}");
        }
    }
}
