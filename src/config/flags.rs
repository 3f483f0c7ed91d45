//! Flags of a command line: their parser and their help text. The table is in [`super::keys`].
//!
//! Every flag stands for one field of the configuration document. The flags of a command line become a document of
//! their own that is laid over the file's (CONF-03).

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use lexopt::{Arg, ValueExt as _};
use serde_json::{Map, Value, json};

use super::keys::{ConfigFlag, KEYS, flag};
use super::{duration, without_effect};
use crate::api::quantity::{Quantity, QuantityError};
use crate::logic::{spelling::suggest_name, text::two_columns};

/// Kind of a flag's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlagValueKind {
    /// `--name` or `--name=false`.
    Switch,
    Number,
    Text,
    /// A path; a relative one counts from the working directory.
    Path,
    Time,
    Size,
    /// Separated by commas; may be repeated.
    List,
    /// `key=value,…` with this separator; may be repeated.
    Map(&'static str),
    /// `name:value,…`; may be repeated, also for one name.
    Headers,
    /// Like `Map("=")` with `true` and `false`.
    Gates,
    /// `key=value:effect` or `key:effect`, separated by commas; may be repeated.
    Taints,
}

impl FlagValueKind {
    fn value_hint(self) -> &'static str {
        match self {
            Self::Switch => "",
            Self::Number => " N",
            Self::Text => " TEXT",
            Self::Path => " PATH",
            Self::Time => " DURATION",
            Self::Size => " QUANTITY",
            Self::List => " A,B,…",
            Self::Headers => " NAME:VALUE,…",
            Self::Map("<") => " SIGNAL<VALUE,…",
            Self::Map(_) | Self::Gates => " KEY=VALUE,…",
            Self::Taints => " KEY=VALUE:EFFECT,…",
        }
    }
}

/// Flag for the file of the configuration, which stands for no key.
#[rustfmt::skip]
const CONFIG: ConfigFlag = flag("config", FlagValueKind::Path, "KubeletConfiguration file (default /etc/picolet/config.yaml if it exists)");
/// Flag for the drop-ins, which stands for no key either.
#[rustfmt::skip]
const CONFIG_DIR: ConfigFlag = flag("config-dir", FlagValueKind::Path, "directory of drop-ins: each *.conf in it is merged over the file, in the order of their paths");
/// A flag that the table does not have, for its meaning differs with and without a value.
const VERSION: &str = "version";
/// Field that `--version=v…` sets.
const KUBELET_VERSION: &str = "picolet.kubeletVersion";

/// Lists all flags in the order of the help, each with the key that it stands for; empty: none.
fn all_flags() -> impl Iterator<Item = (&'static str, &'static ConfigFlag)> {
    let of_files = [("", &CONFIG), ("", &CONFIG_DIR)];
    let of_keys = KEYS.iter().filter_map(|key| Some((key.name, key.flag?)));
    of_files.into_iter().chain(of_keys)
}

/// A flag of the table, for help, completion and the manual.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlagDescription {
    /// Name without dashes.
    pub name: &'static str,
    /// Kind of the flag's value in capitals, with a blank before; empty for a switch.
    pub hint: &'static str,
    /// Help text in one line.
    pub help: &'static str,
    /// The field of the configuration, dotted; empty for `--config` and `--config-dir`.
    pub field: &'static str,
    /// Set if the value is a path.
    pub path: bool,
}

/// All flags, in the order of the table.
pub fn flag_descriptions() -> impl Iterator<Item = FlagDescription> {
    all_flags().map(|(key, flag)| FlagDescription {
        name: flag.name,
        hint: flag.kind.value_hint(),
        help: flag.help,
        field: key,
        path: flag.kind == FlagValueKind::Path,
    })
}

/// Flags of a command line, read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CommandLineFlags {
    /// `--config`, absolute.
    pub config: Option<PathBuf>,
    /// `--config-dir`, absolute.
    pub config_dir: Option<PathBuf>,
    /// The other flags as a document without `apiVersion` and `kind`.
    pub overlay: Map<String, Value>,
    /// Set if `-h` or `--help` was given: nothing else counts then.
    pub help: bool,
    /// Set if `--version` or `--version=raw` was given: nothing else counts then.
    pub version: bool,
    /// Flags of a kubelet that are without effect, each once, in the order of the command line.
    pub without_effect: Vec<&'static str>,
    /// Set by the caller if the program was called as `kubelet`.
    pub as_kubelet: bool,
}

/// Reason why a command line cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlagError {
    /// No such flag.
    #[error("unknown flag --{}{} (try --help)", .0, suggest_flag(.0))]
    Unknown(String),
    /// An argument that belongs to no flag (CONF-03).
    #[error("unexpected argument {0:?}")]
    Stray(String),
    /// A flag with an unusable value, or without one.
    #[error("--{flag}: {why}")]
    Value {
        /// The flag's name without dashes.
        flag: String,
        /// Fault of the value.
        why: FlagValueError,
    },
    /// An argument that is not UTF-8, or not a flag for another reason.
    #[error("{0}")]
    Syntax(String),
}

/// Reason why a text cannot be the value of a flag.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlagValueError {
    /// The value is missing.
    #[error("needs a value")]
    Missing,
    /// Not a value of a switch.
    #[error("{0:?} is neither true nor false")]
    Switch(String),
    /// Not a number.
    #[error("{0:?} is not a number")]
    Number(String),
    /// Not a path, which has to be UTF-8.
    #[error("is not UTF-8")]
    Path,
    /// Not a duration.
    #[error("{0:?} is not a duration (such as 10s, 1m30s, 100ms)")]
    Time(String),
    /// Not an amount of bytes.
    #[error(transparent)]
    Size(#[from] QuantityError),
    /// Not a taint.
    #[error("{0:?} is not key=value:effect")]
    Taint(String),
    /// Not an entry of a map: the part, and the sign that must be between key and value.
    #[error("{0:?} has no {1:?}")]
    Pair(String, &'static str),
}

/// Makes the end of the error about an unknown flag: the flag that was meant.
fn suggest_flag(name: &str) -> String {
    let known = all_flags().map(|(_, flag)| flag.name);
    suggest_name(name, "--", &mut known.chain([VERSION, "help"]))
}

/// Reads flags. `arguments` come without program and command name; `cwd` is absolute.
pub fn parse_flags(arguments: Vec<OsString>, cwd: &Path) -> Result<CommandLineFlags, FlagError> {
    let mut parser = lexopt::Parser::from_args(arguments);
    let mut flags = CommandLineFlags::default();
    loop {
        let argument = parser
            .next()
            .map_err(|e| FlagError::Syntax(e.to_string()))?;
        let name = match argument {
            None => return Ok(flags),
            Some(Arg::Short('h') | Arg::Long("help")) => {
                flags.help = true;
                return Ok(flags);
            }
            // klog's spelling of verbosity.
            Some(Arg::Short('v')) => "v".to_owned(),
            // A kubelet takes underscores for dashes.
            Some(Arg::Long(name)) => name.replace('_', "-"),
            Some(Arg::Short(c)) => return Err(FlagError::Unknown(c.into())),
            Some(Arg::Value(text)) => return Err(FlagError::Stray(text.to_string_lossy().into())),
        };
        let wrong = |why: FlagValueError| FlagError::Value {
            flag: name.clone(),
            why,
        };
        if name == VERSION {
            let value = parser.optional_value().map(|v| v.to_string_lossy().into());
            if set_version(value, &mut flags).map_err(wrong)? {
                return Ok(flags);
            }
            continue;
        }
        let known = all_flags().find(|(_, flag)| flag.name == name);
        let ignored = without_effect::find_ignored_flag(&name);
        let kind = known
            .map(|(_, flag)| flag.kind)
            .or_else(|| ignored.map(|(_, kind)| *kind));
        let kind = kind.ok_or_else(|| FlagError::Unknown(name.clone()))?;
        let text = match (kind, parser.optional_value()) {
            (FlagValueKind::Switch, None) => "true".to_owned(),
            (_, value) => value
                .map_or_else(|| parser.value(), Ok)
                .and_then(|v| v.string())
                .map_err(|_| wrong(FlagValueError::Missing))?,
        };
        let Some((key, flag)) = known else {
            set_flag_value(&mut Value::Null, kind, &text, cwd).map_err(wrong)?;
            let name = ignored.map(|(name, _)| *name);
            if name.is_some_and(|name| !flags.without_effect.contains(&name)) {
                flags.without_effect.extend(name);
            }
            continue;
        };
        if flag.name == CONFIG.name {
            flags.config = Some(cwd.join(&text));
            continue;
        }
        if flag.name == CONFIG_DIR.name {
            // An empty text means no directory, as for a kubelet.
            flags.config_dir = Some(cwd.join(&text)).filter(|_| !text.is_empty());
            continue;
        }
        let place = overlay_entry(&mut flags.overlay, key);
        set_flag_value(place, flag.kind, &text, cwd).map_err(wrong)?;
    }
}

/// Takes `--version`, which needs no value, and whose value cannot be a separate word. Returns true if the version is
/// asked for.
///
/// Source: Kubernetes `component-base/version/verflag`.
fn set_version(
    value: Option<String>,
    flags: &mut CommandLineFlags,
) -> Result<bool, FlagValueError> {
    match value.as_deref() {
        None | Some("raw") => {
            flags.version = true;
            Ok(true)
        }
        // The version that is told to the cluster.
        Some(told) if told.starts_with('v') => {
            *overlay_entry(&mut flags.overlay, KUBELET_VERSION) = told.into();
            Ok(false)
        }
        Some(text) => {
            let mut asked = Value::Null;
            set_flag_value(&mut asked, FlagValueKind::Switch, text, Path::new(""))?;
            flags.version = asked == true;
            Ok(flags.version)
        }
    }
}

/// The help text: all flags in the order of the table.
#[must_use]
pub fn help_text() -> String {
    let rows = all_flags().map(|(key, flag)| {
        let key = match key {
            "" => String::new(),
            key => format!(" [{key}]"),
        };
        (
            format!("--{}{}", flag.name, flag.kind.value_hint()),
            format!("{}{key}", flag.help),
        )
    });
    let rows: Vec<_> = rows.collect();
    two_columns(rows.iter().map(|(left, right)| (&**left, &**right)))
}

/// Objects that are merged field by field; others are replaced whole.
const MERGED: [&str; 9] = [
    "anonymous",
    "authentication",
    "authorization",
    "builtinNetwork",
    "featureGates",
    "logging",
    "picolet",
    "webhook",
    "x509",
];

/// Lays the typed flags over the file's document. Of maps with keys of their own only `featureGates` is merged.
pub fn overlay_flags(document: &mut Value, overlay: Map<String, Value>) {
    if !document.is_object() {
        *document = Value::Object(Map::new());
    }
    let Some(base) = document.as_object_mut() else {
        return;
    };
    for (name, value) in overlay {
        let merged = MERGED.contains(&name.as_str());
        match (base.get_mut(&name), value) {
            (Some(old @ Value::Object(_)), Value::Object(fields)) if merged => {
                overlay_flags(old, fields)
            }
            (_, value) => {
                base.insert(name, value);
            }
        }
    }
}

pub(super) fn overlay_entry<'a>(overlay: &'a mut Map<String, Value>, field: &str) -> &'a mut Value {
    match field.split_once('.') {
        None => overlay.entry(field).or_insert(Value::Null),
        Some((parent, rest)) => {
            let parent = overlay
                .entry(parent)
                .or_insert_with(|| Value::Object(Map::new()));
            overlay_entry(
                parent
                    .as_object_mut()
                    .expect("the table has no field both above and below another"),
                rest,
            )
        }
    }
}

fn set_flag_value(
    place: &mut Value,
    kind: FlagValueKind,
    text: &str,
    cwd: &Path,
) -> Result<(), FlagValueError> {
    let parts = || text.split(',').filter(|part| !part.is_empty());
    match kind {
        FlagValueKind::Switch => {
            *place = match text {
                "true" | "True" | "TRUE" | "t" | "T" | "1" => true,
                "false" | "False" | "FALSE" | "f" | "F" | "0" => false,
                _ => return Err(FlagValueError::Switch(text.into())),
            }
            .into();
        }
        FlagValueKind::Number => {
            let number = text.parse::<i64>();
            *place = number
                .map_err(|_| FlagValueError::Number(text.into()))?
                .into();
        }
        FlagValueKind::Text => *place = text.into(),
        FlagValueKind::Path if text.is_empty() => *place = text.into(),
        FlagValueKind::Path => {
            let path = cwd.join(text).into_os_string();
            *place = path.into_string().map_err(|_| FlagValueError::Path)?.into();
        }
        FlagValueKind::Time => {
            duration::parse_go_duration(text).ok_or_else(|| FlagValueError::Time(text.into()))?;
            *place = text.into();
        }
        FlagValueKind::Size => {
            Quantity::parse(text)?;
            *place = text.into();
        }
        FlagValueKind::List => {
            if !place.is_array() {
                *place = Value::Array(Vec::new());
            }
            let list = place.as_array_mut().expect("made above");
            list.extend(parts().map(Value::from));
        }
        FlagValueKind::Taints => {
            if !place.is_array() {
                *place = Value::Array(Vec::new());
            }
            let list = place.as_array_mut().expect("made above");
            for part in parts() {
                let (name, effect) = part
                    .rsplit_once(':')
                    .ok_or_else(|| FlagValueError::Taint(part.into()))?;
                let (key, value) = name.split_once('=').unwrap_or((name, ""));
                list.push(json!({"key": key, "value": value, "effect": effect}));
            }
        }
        FlagValueKind::Headers => {
            if !place.is_object() {
                *place = Value::Object(Map::new());
            }
            let map = place.as_object_mut().expect("made above");
            for part in parts() {
                let (name, value) = part
                    .split_once(':')
                    .ok_or_else(|| FlagValueError::Pair(part.into(), ":"))?;
                let values = map.entry(name.trim()).or_insert_with(|| json!([]));
                if let Some(values) = values.as_array_mut() {
                    values.push(value.trim().into());
                }
            }
        }
        FlagValueKind::Map(_) | FlagValueKind::Gates => {
            if !place.is_object() {
                *place = Value::Object(Map::new());
            }
            let map = place.as_object_mut().expect("made above");
            let separator = if let FlagValueKind::Map(separator) = kind {
                separator
            } else {
                "="
            };
            for part in parts() {
                let (key, value) = part
                    .split_once(separator)
                    .ok_or_else(|| FlagValueError::Pair(part.into(), separator))?;
                let mut field = Value::from(value.trim());
                if kind == FlagValueKind::Gates {
                    set_flag_value(&mut field, FlagValueKind::Switch, value.trim(), cwd)?;
                }
                map.insert(key.trim().into(), field);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<CommandLineFlags, FlagError> {
        parse_flags(
            line.split_whitespace().map(OsString::from).collect(),
            Path::new("/cwd"),
        )
    }

    #[test]
    fn values() {
        // CONF-14
        for (line, overlay) in [
            ("", json!({})),
            ("--max-pods 7", json!({"maxPods": 7})),
            (
                "--max_pods=7 --oom-score-adj -5",
                json!({"maxPods": 7, "oomScoreAdj": -5}),
            ),
            ("--seccomp-default", json!({"seccompDefault": true})),
            (
                "--fail-swap-on=false --seccomp-default=1",
                json!({"failSwapOn": false, "seccompDefault": true}),
            ),
            (
                "--root-dir rel --run-dir /abs",
                json!({"picolet": {"rootDir": "/cwd/rel", "runDir": "/abs"}}),
            ),
            ("--pod-manifest-path=", json!({"staticPodPath": ""})),
            (
                "--cluster-dns 1.1.1.1,::1 --cluster-dns 2.2.2.2",
                json!({"clusterDNS": ["1.1.1.1", "::1", "2.2.2.2"]}),
            ),
            (
                "--eviction-hard memory.available<100Mi,nodefs.available<10%",
                json!({"evictionHard": {"memory.available": "100Mi", "nodefs.available": "10%"}}),
            ),
            (
                "--system-reserved cpu=100m --system-reserved memory=1Gi",
                json!({"systemReserved": {"cpu": "100m", "memory": "1Gi"}}),
            ),
            (
                "--register-with-taints a=b:NoSchedule,c:NoExecute",
                json!({"registerWithTaints": [
                    {"key": "a", "value": "b", "effect": "NoSchedule"},
                    {"key": "c", "value": "", "effect": "NoExecute"},
                ]}),
            ),
            (
                "--node-labels a=b,example.com/c= --provider-id=x://1 --cloud-provider=external",
                json!({"providerID": "x://1", "picolet": {"cloudProvider": "external",
                    "nodeLabels": {"a": "b", "example.com/c": ""}}}),
            ),
            (
                "--manifest-url http://h/m --manifest-url-header a:1,b:x:y --manifest-url-header a:2",
                json!({"staticPodURL": "http://h/m",
                    "staticPodURLHeader": {"a": ["1", "2"], "b": ["x:y"]}}),
            ),
            (
                "--feature-gates A=true,B=false",
                json!({"featureGates": {"A": true, "B": false}}),
            ),
            (
                "--sync-frequency 1m30s -v4",
                json!({"syncFrequency": "1m30s", "logging": {"verbosity": 4}}),
            ),
            ("--v=2", json!({"logging": {"verbosity": 2}})),
        ] {
            let flags = read(line).expect(line);
            assert_eq!(Value::Object(flags.overlay), overlay, "{line}");
        }
        assert_eq!(
            read("--config a.yaml").expect("flag").config,
            Some("/cwd/a.yaml".into())
        );
        assert!(read("--max-pods x --help").is_err() && read("-h --nonsense").expect("help").help);
    }

    #[test]
    fn what_only_a_kubelet_has() {
        // KADM-03 KADM-13
        let flags = read(
            "--pod-infra-container-image=x --container-hints y --vmodule=a=1 --lock-file= --keep_terminated_pod_volumes \
             --keep-terminated-pod-volumes=false --topology-manager-policy-options a=b --version=v1.33.2 --max-pods 7",
        );
        let flags = flags.expect("flags");
        assert_eq!(
            flags.without_effect,
            [
                "pod-infra-container-image",
                "container-hints",
                "vmodule",
                "lock-file",
                "keep-terminated-pod-volumes",
                "topology-manager-policy-options"
            ]
        );
        let overlay = json!({"maxPods": 7, "picolet": {"kubeletVersion": "v1.33.2"}});
        assert_eq!(Value::Object(flags.overlay), overlay);
        assert!(!flags.version);
        for line in ["--version", "--version=raw --nonsense", "--version=true"] {
            assert!(read(line).expect(line).version, "{line}");
        }
        assert!(!read("--version=false").expect("off").version);
        // A word that is the value of another flag does not ask for help.
        assert!(
            !read("--hostname-override --version")
                .expect("a name")
                .version
        );
        for (line, says) in [
            (
                "--housekeeping-interval=5",
                "--housekeeping-interval: \"5\" is not a duration",
            ),
            (
                "--iptables-drop-bit=x",
                "--iptables-drop-bit: \"x\" is not a number",
            ),
            ("--storage-driver-db", "--storage-driver-db: needs a value"),
            (
                "--qos-reserved=memory",
                "--qos-reserved: \"memory\" has no \"=\"",
            ),
            (
                "--version=1.36",
                "--version: \"1.36\" is neither true nor false",
            ),
            ("--network-plugin=cni", "unknown flag --network-plugin"),
        ] {
            let error = read(line).expect_err(line).to_string();
            assert!(error.starts_with(says), "{line}: {error}");
        }
    }

    #[test]
    fn a_flag_without_effect_is_in_one_table_and_found() {
        let mut before = "";
        for (name, _) in without_effect::FLAGS {
            assert!(before < *name, "{name}");
            before = name;
            assert!(without_effect::find_ignored_flag(name).is_some(), "{name}");
            assert!(all_flags().all(|(_, flag)| flag.name != *name), "{name}");
        }
    }

    #[test]
    fn wrong_lines() {
        // CONF-03
        for (line, says) in [
            ("run", "unexpected argument \"run\""),
            ("--nonsense", "unknown flag --nonsense (try --help)"),
            (
                "--max-pod 7",
                "unknown flag --max-pod, did you mean --max-pods? (try --help)",
            ),
            ("-x", "unknown flag --x"),
            ("--max-pods", "--max-pods: needs a value"),
            ("--max-pods many", "--max-pods: \"many\" is not a number"),
            (
                "--seccomp-default=maybe",
                "--seccomp-default: \"maybe\" is neither true nor false",
            ),
            ("--seccomp-default false", "unexpected argument \"false\""),
            (
                "--sync-frequency 5",
                "--sync-frequency: \"5\" is not a duration",
            ),
            (
                "--container-log-max-size big",
                "--container-log-max-size: \"big\" is not a quantity",
            ),
            (
                "--eviction-hard memory.available",
                "--eviction-hard: \"memory.available\" has no \"<\"",
            ),
            (
                "--feature-gates A=perhaps",
                "--feature-gates: \"perhaps\" is neither true nor false",
            ),
        ] {
            let error = read(line).expect_err(line).to_string();
            assert!(error.starts_with(says), "{line}: {error}");
        }
    }

    #[test]
    fn flags_win() {
        // CONF-03
        let mut document = json!({
            "maxPods": 1, "syncFrequency": "5s", "featureGates": {"A": true, "B": true},
            "evictionHard": {"memory.available": "1Mi"}, "picolet": {"rootDir": "/a", "runDir": "/b"},
        });
        let line =
            "--max-pods 2 --feature-gates B=false --eviction-hard nodefs.available<1% --run-dir /c";
        overlay_flags(&mut document, read(line).expect("flags").overlay);
        assert_eq!(
            document,
            json!({
                "maxPods": 2, "syncFrequency": "5s", "featureGates": {"A": true, "B": false},
                "evictionHard": {"nodefs.available": "1%"}, "picolet": {"rootDir": "/a", "runDir": "/c"},
            })
        );
    }

    #[test]
    fn the_table_is_whole() {
        let text = help_text();
        for (_, flag) in all_flags() {
            let same = all_flags().filter(|(_, other)| other.name == flag.name);
            assert_eq!(same.count(), 1, "{}", flag.name);
            assert!(text.contains(&format!("--{}", flag.name)), "{}", flag.name);
        }
    }
}
