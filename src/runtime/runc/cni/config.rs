//! Reading network configurations.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value};

use super::{CniError, read_limited};
use crate::api::order::Order;

/// Versions of the CNI specification spoken here, oldest first.
pub(super) const VERSIONS: [&str; 4] = ["0.3.1", "0.4.0", "1.0.0", "1.1.0"];
/// Longest configuration file that is read, bytes.
const FILE_LIMIT: u64 = 256 * 1024;
/// Plugins in one chain at most.
const MAX_PLUGINS: usize = 16;

/// One network: a chain of plugins.
#[derive(Clone, Debug, PartialEq)]
pub struct NetworkConfig {
    /// Name, part of the identity of an attachment.
    pub name: String,
    /// One of [`VERSIONS`].
    pub version: String,
    /// At least one; each a JSON object with a `type`.
    pub plugins: Vec<Map<String, Value>>,
    /// CHECK must not be called.
    pub disable_check: bool,
    /// GC must not be called.
    pub disable_gc: bool,
    /// Made by this agent, its leases gone with the run directory.
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

    /// Whether this network speaks at least `version`.
    #[must_use]
    pub fn speaks(&self, version: &str) -> bool {
        let rank = |v: &str| VERSIONS.iter().position(|x| *x == v);
        rank(&self.version) >= rank(version)
    }

    /// Every executable that the chain needs: plugin types and their `ipam` types, sorted.
    #[must_use]
    pub fn programs(&self) -> Vec<&str> {
        Self::programs_of(self.plugins.iter())
    }

    /// The executables that some plugins need.
    pub(super) fn programs_of<'a>(
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
        all.order();
        all.dedup();
        all
    }

    /// Reads the first configuration of `dir` in the order of file names, as every CRI runtime does. `None` if there is none.
    ///
    /// # Errors
    /// The first file is unreadable or wrong: a broken file does not silently hand the node over to the next one.
    pub fn first_in(dir: &Path) -> Result<Option<Self>, CniError> {
        let wrong = |path: &Path, why: String| CniError::Config {
            path: path.to_owned(),
            why,
        };
        let entries = match fs::read_dir(dir) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(wrong(dir, e.to_string())),
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
        files.order();
        let Some(path) = files.into_iter().next() else {
            return Ok(None);
        };
        let text = read_limited(&path, FILE_LIMIT).map_err(|e| wrong(&path, e.to_string()))?;
        let mut config = Self::parse(&text).map_err(|why| wrong(&path, why))?;
        config
            .add_from_folder(dir)
            .map_err(|why| wrong(&path, why))?;
        config.file = path;
        Ok(Some(config))
    }

    /// Parses a plugin list or a single plugin. The error says what is wrong.
    ///
    /// Source: CNI specification 1.1, "Network configuration format".
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        let root: Value =
            serde_json::from_slice(text).map_err(|e| format!("not valid JSON: {e}"))?;
        let Value::Object(mut root) = root else {
            return Err("not a JSON object".into());
        };
        let name = text_of(&root, "name").unwrap_or_default();
        if !valid_name(&name) {
            return Err(format!("name {name:?} is empty or has unusual characters"));
        }
        let version = version_of(&root)?;
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
                    _ => Err("a plugin is not a JSON object".to_owned()),
                })
                .collect::<Result<Vec<_>, _>>()?,
            Some(_) => return Err("plugins is not a list".into()),
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
        config.check_plugins()?;
        Ok(config)
    }

    /// Adds the plugins of `<dir>/<network>/*.conf` when the list itself has none (specification 1.1).
    fn add_from_folder(&mut self, dir: &Path) -> Result<(), String> {
        if self.plugins.is_empty() {
            let mut files: Vec<PathBuf> = fs::read_dir(dir.join(&self.name))
                .map(|entries| entries.flatten().map(|e| e.path()).collect())
                .unwrap_or_default();
            files.retain(|p| p.extension().is_some_and(|x| x == "conf"));
            files.order();
            for file in files {
                let text = read_limited(&file, FILE_LIMIT).map_err(|e| e.to_string())?;
                match serde_json::from_slice(&text) {
                    Ok(Value::Object(plugin)) => self.plugins.push(plugin),
                    other => {
                        let why = other.map_or_else(|e| format!(": {e}"), |_| String::new());
                        return Err(format!("{}: not a JSON object{why}", file.display()));
                    }
                }
            }
            self.check_plugins()?;
        }
        if self.plugins.is_empty() {
            return Err("it has no plugins".into());
        }
        Ok(())
    }

    fn check_plugins(&self) -> Result<(), String> {
        if self.plugins.len() > MAX_PLUGINS {
            return Err(format!("more than {MAX_PLUGINS} plugins"));
        }
        for name in self.plugins.iter().map(Self::plugin_type) {
            if name.is_empty() || name.contains('/') || name == ".." {
                return Err(format!("plugin type {name:?} is not the name of a program"));
            }
        }
        Ok(())
    }
}

fn text_of(object: &Map<String, Value>, key: &str) -> Option<String> {
    object.get(key).and_then(Value::as_str).map(str::to_owned)
}

/// `cniVersions` (1.1) offers several: the newest that is spoken here wins. Without any version 0.1.0 is meant, which is not.
fn version_of(root: &Map<String, Value>) -> Result<String, String> {
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
        format!(
            "cniVersion {stated:?} is not spoken (known: {})",
            VERSIONS.join(", ")
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

    #[test]
    fn lists_and_single_plugins() {
        let list = NetworkConfig::parse(
            br#"{"cniVersion":"1.0.0","name":"net","disableCheck":true,"plugins":[
                {"type":"bridge","ipam":{"type":"host-local"}},{"type":"portmap"}]}"#,
        )
        .expect("list");
        assert_eq!((list.plugins.len(), list.disable_check), (2, true));
        assert_eq!(list.programs(), ["bridge", "host-local", "portmap"]);
        assert!(list.speaks("0.4.0") && !list.speaks("1.1.0"));
        let single = NetworkConfig::parse(br#"{"cniVersion":"0.3.1","name":"n","type":"ptp"}"#)
            .expect("one");
        assert_eq!(single.programs(), ["ptp"]);
        assert!(!single.speaks("0.4.0"));
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
            (r#"{"cniVersion":"1.0.0","type":"x"}"#, "name"),
            (r#"{"cniVersion":"1.0.0","name":"../x","type":"x"}"#, "name"),
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
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn first_by_name_wins() {
        let dir = std::env::temp_dir().join(format!("picolet-cni-conf-{}", std::process::id()));
        fs::create_dir_all(dir.join("folder")).expect("dir");
        assert_eq!(
            NetworkConfig::first_in(&dir.join("none")).expect("absent"),
            None
        );
        assert_eq!(NetworkConfig::first_in(&dir).expect("empty"), None);
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
        let found = NetworkConfig::first_in(&dir).expect("read").expect("found");
        assert_eq!((found.name.as_str(), found.built_in), ("early", false));
        put("05.json", r#"{"cniVersion":"1.1.0","name":"folder"}"#);
        let empty = NetworkConfig::first_in(&dir).expect_err("no plugins");
        assert!(empty.to_string().contains("05.json"), "{empty}");
        put("folder/1.conf", r#"{"type":"c"}"#);
        let found = NetworkConfig::first_in(&dir).expect("read").expect("found");
        assert_eq!(found.programs(), ["c"]);
        fs::remove_dir_all(dir).expect("clean");
    }
}
