//! Reading network configurations.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value};

use super::{CniError, read_limited};
use crate::api::{
    order::OrderExt,
    strict::{JsonTextError, WrongValue},
};

/// Versions of the CNI specification spoken here, oldest first.
pub(super) const VERSIONS: [&str; 4] = ["0.3.1", "0.4.0", "1.0.0", "1.1.0"];
/// Longest configuration file that is read, bytes.
const FILE_LIMIT: u64 = 256 * 1024;
/// Plugins in one chain at most.
const MAX_PLUGINS: usize = 16;

/// Reason why a network configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum NetworkConfigError {
    /// The configuration cannot be read.
    #[error(transparent)]
    Unread(#[from] io::Error),
    /// The text is wrong: its author has to mend it.
    #[error(transparent)]
    Wrong(#[from] JsonTextError),
}

impl NetworkConfigError {
    fn at_path(self, path: &Path) -> CniError {
        CniError::Config {
            path: path.to_owned(),
            source: self,
        }
    }
}

/// A network: a chain of plugins.
#[derive(Clone, Debug, PartialEq)]
pub struct NetworkConfig {
    /// Name, part of the identity of an attachment.
    pub name: String,
    /// Version of the specification, one of [`VERSIONS`].
    pub version: String,
    /// Plugins, at least one; each a JSON object with a `type`.
    pub plugins: Vec<Map<String, Value>>,
    /// CHECK must not be called.
    pub disable_check: bool,
    /// GC must not be called.
    pub disable_gc: bool,
    /// Set for the network made by this agent; its leases are lost with the run directory.
    pub built_in: bool,
    /// File it was read from, empty for the built-in one.
    pub file: PathBuf,
}

impl NetworkConfig {
    /// Type of plugin `index`, the name of its executable.
    #[must_use]
    pub fn plugin_type(plugin: &Map<String, Value>) -> &str {
        plugin.get("type").and_then(Value::as_str).unwrap_or("")
    }

    /// Returns true if this network speaks `version` or a later one.
    #[must_use]
    pub fn supports_version(&self, version: &str) -> bool {
        let rank = |v: &str| VERSIONS.iter().position(|x| *x == v);
        rank(&self.version) >= rank(version)
    }

    /// Every executable that the chain needs: plugin types and their `ipam` types, sorted.
    #[must_use]
    pub fn list_executables(&self) -> Vec<&str> {
        Self::executables_of_plugins(self.plugins.iter())
    }

    /// The executables that some plugins need.
    pub(super) fn executables_of_plugins<'a>(
        plugins: impl Iterator<Item = &'a Map<String, Value>>,
    ) -> Vec<&'a str> {
        let mut all: Vec<&str> = plugins
            .flat_map(|p| {
                let ipam = p.get("ipam").and_then(|i| i.get("type"));
                [p.get("type"), ipam]
            })
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        all.stable_sort();
        all.dedup();
        all
    }

    /// Reads the first configuration of `dir` in the order of file names, as every CRI runtime does. `None` if there is none.
    ///
    /// # Errors
    /// The first file is unreadable or wrong: a broken file does not silently hand the node over to the next one.
    pub fn read_first_in(dir: &Path) -> Result<Option<Self>, CniError> {
        let entries = match fs::read_dir(dir) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(NetworkConfigError::Unread(e).at_path(dir)),
        };
        let mut files: Vec<PathBuf> = entries
            .flatten()
            .map(|e| e.path())
            .filter(|p| {
                let known = p
                    .extension()
                    .is_some_and(|x| x == "conflist" || x == "conf" || x == "json");
                known && p.is_file()
            })
            .collect();
        files.stable_sort();
        let Some(path) = files.into_iter().next() else {
            return Ok(None);
        };
        let mut config = read_config_file(&path, Self::parse)?;
        if config.plugins.is_empty() {
            config.add_from_folder(dir)?;
            let checked = config.check_plugins();
            checked.map_err(|e| NetworkConfigError::Wrong(e).at_path(&path))?;
        }
        config.file = path;
        Ok(Some(config))
    }

    /// Parses a plugin list or a single plugin. A list without plugins of its own is not whole.
    ///
    /// Source: CNI specification 1.1, "Network configuration format".
    ///
    /// # Errors
    /// The first fault.
    pub fn parse(text: &[u8]) -> Result<Self, JsonTextError> {
        let mut root = parse_json_object(text)?;
        let name = text_field(&root, "name").unwrap_or_default();
        if !valid_name(&name) {
            let why = format!("{name:?} is empty or has unusual characters");
            return Err(wrong_value("name", why));
        }
        let version = choose_version(&root)?;
        let flag = |key: &str| {
            root.get(key)
                .is_some_and(|v| v == &Value::Bool(true) || v.as_str() == Some("true"))
        };
        let (disable_check, disable_gc) = (flag("disableCheck"), flag("disableGC"));
        let only_inlined = flag("loadOnlyInlinedPlugins");
        let plugins = match root.remove("plugins") {
            Some(Value::Array(list)) => list
                .into_iter()
                .map(|p| match p {
                    Value::Object(p) => Ok(p),
                    _ => Err(wrong_value("plugins", "one is not a JSON object")),
                })
                .collect::<Result<Vec<_>, _>>()?,
            Some(_) => return Err(wrong_value("plugins", "not a list")),
            // A single plugin is a chain of one.
            None if root.contains_key("type") => vec![root],
            None if only_inlined => Vec::new(),
            // Version 1.1: the plugins lie in a folder of the network's name.
            None => Vec::new(),
        };
        let config = Self {
            name,
            version,
            plugins,
            disable_check,
            disable_gc,
            built_in: false,
            file: PathBuf::new(),
        };
        if !config.plugins.is_empty() {
            config.check_plugins()?;
        }
        Ok(config)
    }

    /// Adds the plugins of `<dir>/<network>/*.conf` (specification 1.1).
    fn add_from_folder(&mut self, dir: &Path) -> Result<(), CniError> {
        let mut files: Vec<PathBuf> = fs::read_dir(dir.join(&self.name))
            .map(|entries| entries.flatten().map(|e| e.path()).collect())
            .unwrap_or_default();
        files.retain(|p| p.extension().is_some_and(|x| x == "conf"));
        files.stable_sort();
        for file in files {
            self.plugins
                .push(read_config_file(&file, parse_json_object)?);
        }
        Ok(())
    }

    fn check_plugins(&self) -> Result<(), JsonTextError> {
        if self.plugins.is_empty() {
            return Err(wrong_value("plugins", "there are none"));
        }
        if self.plugins.len() > MAX_PLUGINS {
            return Err(wrong_value("plugins", format!("more than {MAX_PLUGINS}")));
        }
        for name in self.plugins.iter().map(Self::plugin_type) {
            if name.is_empty() || name.contains('/') || name == ".." {
                let why = format!("plugin type {name:?} is not the name of a program");
                return Err(wrong_value("plugins", why));
            }
        }
        Ok(())
    }
}

/// Reads a file of the configuration.
fn read_config_file<T>(
    path: &Path,
    parse: fn(&[u8]) -> Result<T, JsonTextError>,
) -> Result<T, CniError> {
    let text = read_limited(path, FILE_LIMIT).map_err(NetworkConfigError::from);
    let parsed = text.and_then(|text| Ok(parse(&text)?));
    parsed.map_err(|e| e.at_path(path))
}

fn parse_json_object(text: &[u8]) -> Result<Map<String, Value>, JsonTextError> {
    match serde_json::from_slice(text) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(wrong_value(".", "not a JSON object")),
        Err(e) => Err(JsonTextError::Syntax(format!("not valid JSON: {e}"))),
    }
}

fn wrong_value(path: &str, why: impl Into<String>) -> JsonTextError {
    JsonTextError::Value(WrongValue::new(path, why))
}

fn text_field(object: &Map<String, Value>, key: &str) -> Option<String> {
    object.get(key).and_then(Value::as_str).map(str::to_owned)
}

/// Chooses the version. `cniVersions` (1.1) offers several: the newest that is spoken here wins. No version means
/// 0.1.0, which is not spoken here.
fn choose_version(root: &Map<String, Value>) -> Result<String, JsonTextError> {
    let offered: Vec<&str> = match root.get("cniVersions").and_then(Value::as_array) {
        Some(list) => list.iter().filter_map(Value::as_str).collect(),
        None => Vec::new(),
    };
    let stated = root
        .get("cniVersion")
        .and_then(Value::as_str)
        .unwrap_or("0.1.0");
    let best = VERSIONS
        .iter()
        .rfind(|v| offered.contains(v) || stated == **v);
    best.map(|v| (*v).to_owned()).ok_or_else(|| {
        let known = VERSIONS.join(", ");
        wrong_value(
            "cniVersion",
            format!("{stated:?} is not supported (known: {known})"),
        )
    })
}

/// Names become parts of file names of plugins.
fn valid_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::error_chain;

    #[test]
    fn lists_and_single_plugins() {
        let list = NetworkConfig::parse(
            br#"{"cniVersion":"1.0.0","name":"net","disableCheck":true,"plugins":[
                {"type":"bridge","ipam":{"type":"host-local"}},{"type":"portmap"}]}"#,
        )
        .expect("list");
        assert_eq!((list.plugins.len(), list.disable_check), (2, true));
        assert_eq!(list.list_executables(), ["bridge", "host-local", "portmap"]);
        assert!(list.supports_version("0.4.0") && !list.supports_version("1.1.0"));
        let single = NetworkConfig::parse(br#"{"cniVersion":"0.3.1","name":"n","type":"ptp"}"#)
            .expect("one");
        assert_eq!(single.list_executables(), ["ptp"]);
        assert!(!single.supports_version("0.4.0"));
        let offered = NetworkConfig::parse(
            br#"{"cniVersion":"0.4.0","cniVersions":["0.4.0","1.1.0","9.0.0"],"name":"n","type":"ptp"}"#,
        );
        assert_eq!(offered.expect("offered").version, "1.1.0");
    }

    #[test]
    fn wrong_ones_say_why() {
        for (text, why) in [
            ("", "not valid JSON"),
            ("[]", "not a JSON object"),
            (
                r#"{"cniVersion":"1.0.0","type":"x"}"#,
                "name: \"\" is empty",
            ),
            (
                r#"{"cniVersion":"1.0.0","name":"../x","type":"x"}"#,
                "name: \"../x\"",
            ),
            (r#"{"name":"n","type":"x"}"#, "0.1.0"),
            (r#"{"cniVersion":"2.0.0","name":"n","type":"x"}"#, "2.0.0"),
            (
                r#"{"cniVersion":"1.0.0","name":"n","plugins":3}"#,
                "not a list",
            ),
            (
                r#"{"cniVersion":"1.0.0","name":"n","plugins":[3]}"#,
                "object",
            ),
            (
                r#"{"cniVersion":"1.0.0","name":"n","plugins":[{}]}"#,
                "type",
            ),
            (
                r#"{"cniVersion":"1.0.0","name":"n","type":"../sh"}"#,
                "type",
            ),
        ] {
            let error = NetworkConfig::parse(text.as_bytes()).expect_err(text);
            assert!(error.to_string().contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn first_by_name_wins() {
        let dir = crate::testing::unused_path("cni-conf");
        fs::create_dir_all(dir.join("folder")).expect("dir");
        assert_eq!(
            NetworkConfig::read_first_in(&dir.join("none")).expect("absent"),
            None
        );
        assert_eq!(NetworkConfig::read_first_in(&dir).expect("empty"), None);
        let put = |name: &str, text: &str| fs::write(dir.join(name), text).expect("write");
        put(
            "90.conflist",
            r#"{"cniVersion":"1.0.0","name":"late","plugins":[{"type":"a"}]}"#,
        );
        put("00.txt", "not a configuration");
        put(
            "10.conf",
            r#"{"cniVersion":"1.0.0","name":"early","type":"b"}"#,
        );
        let found = NetworkConfig::read_first_in(&dir)
            .expect("read")
            .expect("found");
        assert_eq!((found.name.as_str(), found.built_in), ("early", false));
        put("05.json", r#"{"cniVersion":"1.1.0","name":"folder"}"#);
        let empty = NetworkConfig::read_first_in(&dir).expect_err("no plugins");
        let path = dir.join("05.json");
        assert_eq!(
            error_chain(&empty),
            format!(
                "network configuration {}: plugins: there are none",
                path.display()
            )
        );
        put("folder/1.conf", "[]");
        let list = NetworkConfig::read_first_in(&dir).expect_err("no plugin");
        assert!(
            error_chain(&list).ends_with("folder/1.conf: not a JSON object"),
            "{list}"
        );
        put("folder/1.conf", r#"{"type":"c"}"#);
        let found = NetworkConfig::read_first_in(&dir)
            .expect("read")
            .expect("found");
        assert_eq!(found.list_executables(), ["c"]);
        fs::remove_dir_all(dir).expect("clean");
    }
}
