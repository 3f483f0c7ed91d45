//! Drop-ins: small documents below `--config-dir`, each laid over the configuration (CONF-02).

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::{ConfigError, eviction::DEFAULT_HARD};
use crate::api::order::OrderExt as _;

/// Extension of a drop-in's name; other files are left alone.
const SUFFIX: &str = "conf";
/// Most drop-ins: each may be as large as a configuration.
const MAX_DROP_INS: usize = 100;
/// Most directories within each other.
const MAX_DIRS: usize = 16;

/// Lays a drop-in over `document`.
///
/// - `from_file`: true if there is a configuration below them. `evictionHard` has a default only then, and drop-ins
///   change that key by key (CONF-10).
/// - Source: kubelet `cmd/kubelet/app/server.go`, `mergeKubeletConfigurations`.
pub(super) fn apply_drop_in(document: &mut Value, drop_in: Value, from_file: bool) {
    if from_file && drop_in.get("evictionHard").is_some() {
        let defaults = DEFAULT_HARD.map(|(signal, text)| (signal.into(), text.into()));
        if let Some(base) = document.as_object_mut() {
            base.entry("evictionHard")
                .or_insert_with(|| Value::Object(defaults.into_iter().collect()));
        }
    }
    apply_merge_patch(document, drop_in);
}

/// Lists the paths of all drop-ins below `dir`, at most [`MAX_DROP_INS`], in lexical order: a later one wins.
pub(crate) fn list_drop_ins(dir: &Path) -> Result<Vec<PathBuf>, ConfigError> {
    let mut paths = Vec::new();
    collect_paths(dir, MAX_DIRS, &mut paths)?;
    Ok(paths)
}

fn collect_paths(
    dir: &Path,
    dirs_left: usize,
    paths: &mut Vec<PathBuf>,
) -> Result<(), ConfigError> {
    let of_dir = |source| ConfigError::Read {
        path: dir.into(),
        source,
    };
    let too = |message: String| ConfigError::Invalid {
        path: dir.display().to_string(),
        field: "--config-dir".into(),
        message,
    };
    if dirs_left == 0 {
        return Err(too(format!(
            "has more than {MAX_DIRS} directories within each other"
        )));
    }
    let entries = fs::read_dir(dir).map_err(of_dir)?;
    let mut entries = entries.collect::<Result<Vec<_>, _>>().map_err(of_dir)?;
    entries.stable_sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        // A symbolic link counts as a file, never as a directory, even if it leads to one.
        if entry.file_type().map_err(of_dir)?.is_dir() {
            collect_paths(&path, dirs_left - 1, paths)?;
        } else if path.extension().is_some_and(|e| e == SUFFIX) {
            if paths.len() == MAX_DROP_INS {
                return Err(too(format!("has more than {MAX_DROP_INS} drop-ins")));
            }
            paths.push(path);
        }
    }
    Ok(())
}

/// Applies a JSON merge patch: maps are merged key by key, `null` deletes, everything else is replaced whole.
///
/// - Source: RFC 7386, section 2. The decoder bounds the depth.
fn apply_merge_patch(base: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else {
        *base = patch;
        return;
    };
    if !base.is_object() {
        *base = Value::Object(Map::new());
    }
    let Some(base) = base.as_object_mut() else {
        return;
    };
    for (name, value) in patch {
        if value.is_null() {
            base.remove(&name);
        } else {
            apply_merge_patch(base.entry(name).or_insert(Value::Null), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn merge_patches() {
        // CONF-02
        for (name, base, patch, merged) in [
            (
                "added",
                json!({"a": 1}),
                json!({"b": 2}),
                json!({"a": 1, "b": 2}),
            ),
            (
                "replaced",
                json!({"a": 1}),
                json!({"a": "x"}),
                json!({"a": "x"}),
            ),
            (
                "deleted",
                json!({"a": 1, "b": 2}),
                json!({"a": null, "c": null}),
                json!({"b": 2}),
            ),
            (
                "lists are replaced",
                json!({"a": [1, 2]}),
                json!({"a": [3]}),
                json!({"a": [3]}),
            ),
            (
                "maps are merged",
                json!({"a": {"b": 1, "c": {"d": 2}}}),
                json!({"a": {"b": null, "c": {"e": 3}}}),
                json!({"a": {"c": {"d": 2, "e": 3}}}),
            ),
            (
                "a map for a number",
                json!({"a": 1}),
                json!({"a": {"b": null}}),
                json!({"a": {}}),
            ),
            (
                "from nothing",
                json!(null),
                json!({"a": {"b": 1}}),
                json!({"a": {"b": 1}}),
            ),
        ] {
            let mut got = base;
            apply_merge_patch(&mut got, patch);
            assert_eq!(got, merged, "{name}");
        }
    }
}
