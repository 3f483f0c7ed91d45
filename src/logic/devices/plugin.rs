//! Checks of the data that device plugins send: plugins are strangers. And what a container gets of it (DEV-02, DEV-03,
//! DEV-09).

use alloc::{
    boxed::Box,
    collections::BTreeSet,
    format,
    string::{String, ToString as _},
    vec::Vec,
};
use core::fmt;

use serde::{Deserialize, Serialize};

use super::{
    GivenDevices, ListedUnit, MAX_ALL_LISTED, MAX_LISTED, MAX_PLUGINS, PreferenceQuestion,
    PreferredUnits, declared::is_requestable_resource,
};
use crate::api::{
    cri::{ContainerDeviceNode, ContainerMount},
    device::PluginAllocation,
    order::OrderExt as _,
};

/// The only supported version of the protocol.
pub(super) const VERSION: &str = "v1beta1";
/// Health of a unit that can be given.
const HEALTHY: &str = "Healthy";
/// Bytes of an id.
const MAX_ID_BYTES: usize = 63;
/// Bytes of the name of a socket: that of its directory has to go before it.
const MAX_ENDPOINT_BYTES: usize = 64;
/// Bytes of a message that is shown.
const MAX_SHOWN_BYTES: usize = 512;
/// Entries of an answer of each kind.
const MAX_ENTRIES: usize = 256;
/// Bytes of all texts of an answer.
const MAX_ANSWER_BYTES: usize = 32 << 10;

/// Error in a message of a plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PluginMessageError {
    /// The type of the plugin is not supported.
    Kind(String),
    /// The plugin speaks another version of the protocol.
    Version(String),
    /// The name of the resource is not one that pods could request.
    Resource(String),
    /// The resource is declared in the configuration.
    Declared(String),
    /// The socket is not in the plugins' directory.
    Endpoint(String),
    /// The path of the socket is not absolute, too long, or has control characters.
    Path(String),
    /// Other plugins offer [`MAX_PLUGINS`] resources already.
    Plugins,
    /// The plugin lists too many units; their number.
    Listed(usize),
    /// All plugins together list too many units.
    AllListed,
    /// The plugin lists a unit with this id, which is empty, too long, or has control characters.
    Id(String),
    /// The plugin's answer for a container is malformed.
    Answer(String),
}

impl fmt::Display for PluginMessageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kind(kind) => write!(
                f,
                "plugins of type {kind:?} are not supported, only those of type \"DevicePlugin\""
            ),
            Self::Version(version) => write!(
                f,
                "requested API version {version:?} is not supported by kubelet. Supported version is {VERSION:?}"
            ),
            Self::Resource(name) => write!(f, "the ResourceName {name:?} is invalid"),
            Self::Declared(name) => {
                write!(f, "{name} is defined in picolet.devices: remove it there")
            }
            Self::Endpoint(name) => write!(
                f,
                "the endpoint {name:?} is not the name of a socket beside kubelet.sock"
            ),
            Self::Path(path) => write!(
                f,
                "the endpoint {path:?} is not the absolute path of a socket"
            ),
            Self::Plugins => write!(f, "plugins offer {MAX_PLUGINS} resources already"),
            Self::Listed(count) => write!(
                f,
                "it lists {count} devices, at most {MAX_LISTED} are accepted"
            ),
            Self::AllListed => write!(
                f,
                "all plugins together list more than {MAX_ALL_LISTED} devices"
            ),
            Self::Id(id) => write!(
                f,
                "it lists a device {id:?}, an id has 1 to {MAX_ID_BYTES} bytes and no control characters"
            ),
            Self::Answer(why) => write!(f, "its answer is wrong: {why}"),
        }
    }
}

/// Checks the registration of a plugin that offers a resource. `declared`: the configuration offers the resource.
///
/// - Errors: the answer to the plugin (DEV-02).
/// - Source: kubelet `cm/devicemanager/plugin/v1beta1/server.go`, `Register`.
pub fn check_registration(
    version: &str,
    endpoint: &str,
    resource: &str,
    declared: bool,
) -> Result<(), PluginMessageError> {
    if version != VERSION {
        return Err(PluginMessageError::Version(shorten_to_id_limit(version)));
    }
    check_offered_resource(resource, declared)?;
    let is_name = !endpoint.is_empty()
        && endpoint.len() <= MAX_ENDPOINT_BYTES
        && ![".", ".."].contains(&endpoint)
        && !endpoint.contains('/')
        && !has_controls(endpoint);
    if !is_name {
        return Err(PluginMessageError::Endpoint(shorten_to_id_limit(endpoint)));
    }
    Ok(())
}

/// Checks that a plugin may offer the resource.
pub(super) fn check_offered_resource(
    resource: &str,
    declared: bool,
) -> Result<(), PluginMessageError> {
    if !is_requestable_resource(resource) {
        return Err(PluginMessageError::Resource(shorten_to_id_limit(resource)));
    }
    if declared {
        return Err(PluginMessageError::Declared(resource.into()));
    }
    Ok(())
}

/// Returns true if a text has control characters, which would change a terminal or a log.
pub(super) fn has_controls(text: &str) -> bool {
    text.contains(char::is_control)
}

/// Escapes and shortens a plugin's message for logs and events: its beginning, on one line.
#[must_use]
pub fn escape_message(text: &str) -> String {
    let len = text.floor_char_boundary(MAX_SHOWN_BYTES);
    let mut out = String::new();
    for c in text[..len].chars() {
        match c.is_control() {
            true => out.extend(c.escape_default()),
            false => out.push(c),
        }
    }
    if len < text.len() {
        out.push_str(" …");
    }
    out
}

/// Shortens a text of a plugin to its first [`MAX_ID_BYTES`] bytes.
pub(super) fn shorten_to_id_limit(text: &str) -> String {
    let len = text.floor_char_boundary(MAX_ID_BYTES);
    text[..len].into()
}

/// Checks a plugin's list of ids and their health (DEV-03). `others`: number of units that other plugins list.
///
/// - Errors: the plugin is cut off, and the error is logged.
pub fn check_unit_list(
    units: Vec<(String, String)>,
    others: usize,
) -> Result<Vec<ListedUnit>, PluginMessageError> {
    if units.len() > MAX_LISTED {
        return Err(PluginMessageError::Listed(units.len()));
    }
    if units.len() + others > MAX_ALL_LISTED {
        return Err(PluginMessageError::AllListed);
    }
    let all = units.into_iter().map(|(id, health)| {
        if id.is_empty() || id.len() > MAX_ID_BYTES || has_controls(&id) {
            return Err(PluginMessageError::Id(shorten_to_id_limit(&id)));
        }
        Ok(ListedUnit {
            id: id.into(),
            healthy: health == HEALTHY,
        })
    });
    all.collect()
}

/// Checks a plugin's preference. Of its ids only available ones are kept, each once, at most as many as were asked for.
#[must_use]
pub fn check_preference(question: PreferenceQuestion, ids: Vec<String>) -> PreferredUnits {
    let PreferenceQuestion {
        container,
        resource,
        mut available,
        size,
        ..
    } = question;
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    let taken = ids.into_iter().filter_map(|id| {
        let at = available.iter().position(|free| **free == *id)?;
        Some(available.swap_remove(at))
    });
    PreferredUnits {
        container,
        resource,
        ids: taken.take(size).collect(),
    }
}

/// Checks a plugin's answer for a container.
///
/// - Errors: the fault of the answer.
pub fn check_allocate_answer(
    mut answer: PluginAllocation,
) -> Result<PluginAllocation, PluginMessageError> {
    let wrong = |why: String| Err(PluginMessageError::Answer(why));
    let counts = [
        answer.env.len(),
        answer.mounts.len(),
        answer.nodes.len(),
        answer.annotations.len(),
        answer.cdi_devices.len(),
    ];
    if counts.into_iter().any(|count| count > MAX_ENTRIES) {
        return wrong(format!("more than {MAX_ENTRIES} entries of a kind"));
    }
    let pairs = answer.env.iter().chain(&answer.annotations);
    let pairs = pairs.map(|(key, value)| key.len() + value.len());
    let mounts = answer.mounts.iter();
    let mounts = mounts.map(|m| m.container_path.len() + m.host_path.len());
    let nodes = answer.nodes.iter();
    let nodes = nodes.map(|n| n.container_path.len() + n.host_path.len() + n.permissions.len());
    let names = answer.cdi_devices.iter().map(String::len);
    if pairs.chain(mounts).chain(nodes).chain(names).sum::<usize>() > MAX_ANSWER_BYTES {
        return wrong(format!("more than {MAX_ANSWER_BYTES} bytes"));
    }
    let mounts = answer.mounts.iter();
    let mounts = mounts.flat_map(|m| [&m.container_path, &m.host_path]);
    let nodes = answer.nodes.iter();
    let nodes = nodes.flat_map(|n| [&n.container_path, &n.host_path]);
    let is_wrong = |path: &&String| !path.starts_with('/') || path.contains('\0');
    if let Some(path) = mounts.chain(nodes).find(is_wrong) {
        return wrong(format!(
            "{:?} is not an absolute path",
            shorten_to_id_limit(path)
        ));
    }
    for node in &mut answer.nodes {
        if node.permissions.is_empty() {
            node.permissions = "rwm".into();
        }
        if node.permissions.contains(|c| !"rwm".contains(c)) {
            return wrong(format!(
                "permissions {:?}, must be letters of rwm",
                shorten_to_id_limit(&node.permissions)
            ));
        }
    }
    Ok(answer)
}

/// Answer of a plugin for units that a container holds. The answer is kept with the pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HeldUnitsAnswer {
    /// Container.
    pub container: Box<str>,
    /// Resource.
    pub resource: Box<str>,
    /// Ids of the units for which the answer was given.
    pub ids: Vec<Box<str>>,
    /// Set if the plugin must be called before each start of the container.
    #[serde(default)]
    pub pre_start: bool,
    /// Answer, checked by [`check_allocate_answer`].
    pub answer: PluginAllocation,
}

/// Adds the plugins' answers for a container (DEV-09), sorted by names of resources. Of several items with one name or
/// path the first wins.
pub fn merge_answers(given: &mut GivenDevices, mut answers: Vec<HeldUnitsAnswer>) {
    answers.stable_sort_by(|a, b| a.resource.cmp(&b.resource));
    for HeldUnitsAnswer { answer, .. } in answers {
        given.env.extend(answer.env);
        given.mounts.extend(answer.mounts);
        given.nodes.extend(answer.nodes);
        given.annotations.extend(answer.annotations);
        given.cdi_devices.extend(answer.cdi_devices);
    }
    keep_first_of_key(&mut given.env, |(name, _)| name);
    keep_first_of_key(&mut given.mounts, |mount: &ContainerMount| {
        &mount.container_path
    });
    keep_first_of_key(&mut given.nodes, |node: &ContainerDeviceNode| {
        &node.container_path
    });
    keep_first_of_key(&mut given.annotations, |(key, _)| key);
    keep_first_of_key(&mut given.cdi_devices, |name| name);
}

fn keep_first_of_key<T>(all: &mut Vec<T>, key: fn(&T) -> &String) {
    let mut taken = BTreeSet::new();
    all.retain(|one| taken.insert(key(one).to_string()));
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    #[test]
    fn who_may_register() {
        // DEV-02
        let ask =
            |version, endpoint, resource| check_registration(version, endpoint, resource, false);
        assert_eq!(ask("v1beta1", "a.sock", "example.com/a"), Ok(()));
        for (version, endpoint, resource, why) in [
            (
                "v1alpha1",
                "a.sock",
                "example.com/a",
                "requested API version \"v1alpha1\" is not supported by kubelet. Supported version is \"v1beta1\"",
            ),
            (
                "",
                "a.sock",
                "example.com/a",
                "requested API version \"\" is not supported by kubelet. Supported version is \"v1beta1\"",
            ),
            (
                "v1beta1",
                "a.sock",
                "cpu",
                "the ResourceName \"cpu\" is invalid",
            ),
            (
                "v1beta1",
                "a.sock",
                "x.kubernetes.io/a",
                "the ResourceName \"x.kubernetes.io/a\" is invalid",
            ),
            (
                "v1beta1",
                "a.sock",
                "requests.example.com/a",
                "the ResourceName \"requests.example.com/a\" is invalid",
            ),
            (
                "v1beta1",
                "a.sock",
                "example.com/a b",
                "the ResourceName \"example.com/a b\" is invalid",
            ),
            (
                "v1beta1",
                "../a.sock",
                "example.com/a",
                "the endpoint \"../a.sock\" is not the name of a socket beside kubelet.sock",
            ),
            (
                "v1beta1",
                "..",
                "example.com/a",
                "the endpoint \"..\" is not the name of a socket beside kubelet.sock",
            ),
            (
                "v1beta1",
                "",
                "example.com/a",
                "the endpoint \"\" is not the name of a socket beside kubelet.sock",
            ),
        ] {
            let refused = ask(version, endpoint, resource).expect_err(why);
            assert_eq!(refused.to_string(), why);
        }
        let refused = ask("v1beta1", "a\n.sock", "example.com/a").expect_err("control");
        assert_eq!(
            refused.to_string(),
            "the endpoint \"a\\n.sock\" is not the name of a socket beside kubelet.sock"
        );
        let long = "é".repeat(10_000);
        let refused = ask(&long, &long, &long).expect_err("long").to_string();
        assert!(refused.len() < 200);
        let declared = check_registration("v1beta1", "a", "example.com/a", true);
        assert_eq!(
            declared.expect_err("declared").to_string(),
            "example.com/a is defined in picolet.devices: remove it there"
        );
    }

    #[test]
    fn what_is_listed() {
        // DEV-03
        let unit = |id: &str, health: &str| (id.into(), health.into());
        let all = vec![
            unit("a", "Healthy"),
            unit("b", "Unhealthy"),
            unit("c", "healthy"),
            unit("d", ""),
        ];
        let all = check_unit_list(all, 0).expect("a list");
        let shown: Vec<_> = all.iter().map(|l| (&*l.id, l.healthy)).collect();
        assert_eq!(
            shown,
            [("a", true), ("b", false), ("c", false), ("d", false)]
        );
        let many = |n: usize| (0..n).map(|n| unit(&n.to_string(), "Healthy")).collect();
        assert!(check_unit_list(many(MAX_LISTED), 0).is_ok());
        let refused = check_unit_list(many(MAX_LISTED + 1), 0).expect_err("too many");
        assert_eq!(
            refused.to_string(),
            "it lists 1025 devices, at most 1024 are accepted"
        );
        assert!(check_unit_list(many(96), MAX_ALL_LISTED - 96).is_ok());
        let refused = check_unit_list(many(96), MAX_ALL_LISTED - 95).expect_err("too many");
        assert_eq!(refused, PluginMessageError::AllListed);
        for id in [String::new(), "x".repeat(64), "a\nb".into()] {
            let refused = check_unit_list(vec![(id, HEALTHY.into())], 0).expect_err("an id");
            let text = "an id has 1 to 63 bytes and no control characters";
            assert!(refused.to_string().ends_with(text));
        }
        assert!(check_unit_list(vec![("x".repeat(63), HEALTHY.into())], 0).is_ok());
    }

    #[test]
    fn what_is_shown() {
        // DEV-08
        assert_eq!(escape_message("not today: \"é\""), "not today: \"é\"");
        assert_eq!(escape_message("a\nWARN b\u{1b}[m"), "a\\nWARN b\\u{1b}[m");
        let long = escape_message(&"é".repeat(10_000));
        assert_eq!((long.len(), long.ends_with("é …")), (512 + 4, true));
    }

    #[test]
    fn what_is_preferred() {
        // DEV-06
        let texts = |ids: &[&str]| ids.iter().map(|id| (*id).into()).collect::<Vec<Box<str>>>();
        let ids = |size, ids: &[&str]| {
            let question = PreferenceQuestion {
                container: "c".into(),
                resource: "example.com/a".into(),
                available: texts(&["a", "b", "c"]),
                must_include: texts(&["b"]),
                size,
            };
            let named = ids.iter().map(|id| (*id).into()).collect();
            check_preference(question, named).ids
        };
        assert_eq!(ids(2, &["c", "a"]), texts(&["c", "a"]));
        assert_eq!(ids(2, &["c", "b", "a"]), texts(&["c", "b"]));
        let long = "x".repeat(1 << 20);
        let odd = [&long, "x", "", "b", "b", "a", "c"];
        assert_eq!(ids(2, &odd), texts(&["b", "a"]));
        assert_eq!(ids(u32::MAX, &odd), texts(&["b", "a", "c"]));
        assert_eq!(ids(0, &["a"]), texts(&[]));
    }

    fn node(container_path: &str, permissions: &str) -> ContainerDeviceNode {
        ContainerDeviceNode {
            container_path: container_path.into(),
            host_path: "/dev/null".into(),
            permissions: permissions.into(),
            ..ContainerDeviceNode::default()
        }
    }

    fn mount(container_path: &str, host_path: &str) -> ContainerMount {
        ContainerMount {
            container_path: container_path.into(),
            host_path: host_path.into(),
            ..ContainerMount::default()
        }
    }

    #[test]
    fn wrong_answers() {
        // DEV-09
        let text = |answered: PluginAllocation| {
            check_allocate_answer(answered)
                .expect_err("wrong")
                .to_string()
        };
        let nodes = |nodes| PluginAllocation {
            nodes,
            ..PluginAllocation::default()
        };
        let mounts = |mounts| PluginAllocation {
            mounts,
            ..PluginAllocation::default()
        };
        let good = check_allocate_answer(nodes(vec![node("/dev/a", ""), node("/dev/b", "mrw")]))
            .expect("good");
        assert_eq!(good.nodes[0].permissions, "rwm");
        assert_eq!(
            text(nodes(vec![node("/dev/a", "rx")])),
            "its answer is wrong: permissions \"rx\", must be letters of rwm"
        );
        assert_eq!(
            text(nodes(vec![node("dev/a", "r")])),
            "its answer is wrong: \"dev/a\" is not an absolute path"
        );
        assert_eq!(
            text(mounts(vec![mount("/a", "b")])),
            "its answer is wrong: \"b\" is not an absolute path"
        );
        assert_eq!(
            text(mounts(vec![mount("/a\0", "/b")])),
            "its answer is wrong: \"/a\\0\" is not an absolute path"
        );
        assert_eq!(
            text(mounts(vec![mount("/a", "/b"); 257])),
            "its answer is wrong: more than 256 entries of a kind"
        );
        let large = PluginAllocation {
            env: [("A".into(), "x".repeat(MAX_ANSWER_BYTES))].into(),
            ..PluginAllocation::default()
        };
        assert_eq!(text(large), "its answer is wrong: more than 32768 bytes");
    }

    #[test]
    fn the_first_one_wins() {
        // DEV-09
        let answered = |resource: &str, host_path: &str| HeldUnitsAnswer {
            container: "c".into(),
            resource: resource.into(),
            ids: vec![],
            pre_start: false,
            answer: PluginAllocation {
                env: [("WHO".into(), resource.into())].into(),
                mounts: vec![mount("/m", host_path)],
                nodes: vec![node("/dev/n", resource)],
                annotations: [("k".into(), resource.into())].into(),
                cdi_devices: vec!["vendor/class=one".into(), resource.into()],
            },
        };
        let mut given = GivenDevices {
            env: vec![("OWN".into(), "1".into())],
            ..GivenDevices::default()
        };
        merge_answers(&mut given, vec![answered("b", "/2"), answered("a", "/1")]);
        let pair = |name: &str, value: &str| (name.into(), value.into());
        assert_eq!(given.env, [pair("OWN", "1"), pair("WHO", "a")]);
        assert_eq!(given.mounts, [mount("/m", "/1")]);
        assert_eq!(given.nodes, [node("/dev/n", "a")]);
        assert_eq!(given.annotations, [pair("k", "a")]);
        assert_eq!(given.cdi_devices, ["vendor/class=one", "a", "b"]);
    }
}
