//! The operator's entries (DEV-30), from the value of `picolet.devices` in the configuration.

use alloc::{
    borrow::ToOwned as _,
    collections::BTreeSet,
    format,
    string::{String, ToString as _},
    vec::Vec,
};

use serde_json::Value;

use super::{
    MAX_ENTRIES, MAX_MATCHES, MAX_SHARES, cdi, glob, preset,
    udev::{self, UdevPattern},
};
use crate::{
    api::{
        cri::is_path_within,
        device::{DeviceFilter, NodeDeviceFacts, UsbPlace},
        names,
        strict::WrongValue,
    },
    fields::RemainingFields,
    node_resources::is_extended_resource,
};

/// Prefix of a resource that is written without one.
const PREFIX: &str = "picolet/";
/// Subsystem of the nodes below `/dev/bus/usb`.
pub(super) const USB: &str = "usb";
/// Name of the CDI device that stands for all of a kind.
const ALL: &str = "all";
/// Fields for nodes. What a CDI device gives is in its file.
const OF_NODES: [&str; 6] = ["permissions", "live", "containerPath", "env", "gid", "mode"];
/// Directory of the nodes that every container needs.
const DEV: &str = "/dev";

/// All entries, in the order in which they are written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeclaredDevices {
    /// At most [`MAX_ENTRIES`], no two of one resource.
    pub entries: Vec<DeviceEntry>,
}

/// Treatment of containers whose unit comes back after it was unplugged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReplugPolicy {
    /// Containers are restarted if the numbers or paths of their nodes have changed.
    #[default]
    IfChanged,
    /// Containers are restarted.
    Restart,
    /// Containers are left alone.
    Leave,
}

/// Entry of the configuration: a resource, and the devices that are given for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceEntry {
    /// Extended resource.
    pub resource: String,
    /// Alternatives, at most [`MAX_MATCHES`].
    pub(super) matches: Vec<EntryAlternative>,
    /// Number of times that each unit may be held, 1 to [`MAX_SHARES`].
    pub shares: u32,
    /// Letters of `rwm`.
    pub(super) permissions: String,
    /// Path of the first node in the container; empty: as on the machine.
    pub(super) container_path: String,
    /// Variable that tells the nodes; empty: none.
    pub(super) env: String,
    /// Treatment of the holders of a unit that comes back.
    pub on_replug: ReplugPolicy,
    /// Group in the container.
    pub(super) gid: Option<u32>,
    /// Permission bits in the container.
    pub(super) mode: Option<u32>,
    /// Set if nodes come and go while a container runs (DEV-44). `container_path` is then their directory.
    pub live: bool,
}

/// Alternative of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum EntryAlternative {
    /// Every device found is a unit of its own.
    Each(DevicePattern),
    /// The i-th device of each member belongs to the i-th unit.
    Group(Vec<GroupMember>),
}

/// A part of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GroupMember {
    pub(super) what: DevicePattern,
    /// Number of units that may share one match.
    pub(super) limit: u32,
    /// Set if a unit may be without this member.
    pub(super) optional: bool,
}

/// Pattern that selects devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DevicePattern {
    /// Nodes whose paths match the pattern.
    Path(String),
    /// Nodes of devices on the USB.
    Usb(UsbPattern),
    /// Nodes of devices with these properties in udev.
    Udev(UdevPattern),
    /// CDI devices (DEV-46): `vendor/class=pattern`.
    Cdi(String),
}

/// Returns true if the pattern `meant` selects the CDI device `name`. The device `all` is never selected: it would be
/// given again beside each single device.
pub(super) fn matches_cdi_device(meant: &str, name: &str) -> bool {
    let (Some((kind, pattern)), Some((of, device))) = (meant.split_once('='), name.split_once('='))
    else {
        return false;
    };
    kind == of && device != ALL && glob::matches_text(pattern, device)
}

/// Pattern for USB devices, and the subsystem of the nodes to give.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct UsbPattern {
    pub(super) vendor: u16,
    pub(super) product: u16,
    /// Empty: any.
    pub(super) serial: String,
    /// Empty: any.
    pub(super) port: String,
    /// Subsystem of the nodes.
    pub(super) nodes: String,
}

impl UsbPattern {
    pub(super) fn matches_place(&self, place: &UsbPlace) -> bool {
        place.product == (self.vendor, self.product)
            && (self.serial.is_empty() || self.serial == place.serial)
            && (self.port.is_empty() || self.port == place.port)
    }
}

impl DeviceEntry {
    /// Returns true if a unit may come back as another product. Then only its port identifies it (DEV-45).
    pub(super) fn changes_product(&self) -> bool {
        let products = self.patterns().filter_map(|what| match what {
            DevicePattern::Usb(usb) => Some((usb.vendor, usb.product)),
            DevicePattern::Path(_) | DevicePattern::Udev(_) | DevicePattern::Cdi(_) => None,
        });
        products.collect::<BTreeSet<_>>().len() > 1
    }

    /// Returns true if one container cannot have both: the directory of one is, or lies in, that of the other.
    fn conflicts_with(&self, other: &Self) -> bool {
        let (own, other) = (&*self.container_path, &*other.container_path);
        is_path_within(own, other) || is_path_within(other, own)
    }

    pub(super) fn patterns(&self) -> impl Iterator<Item = &DevicePattern> {
        let all = self.matches.iter();
        all.flat_map(|m| {
            let (one, many): (Option<&DevicePattern>, &[GroupMember]) = match m {
                EntryAlternative::Each(what) => (Some(what), &[]),
                EntryAlternative::Group(members) => (None, members),
            };
            one.into_iter().chain(many.iter().map(|m| &m.what))
        })
    }
}

impl DeclaredDevices {
    /// The entry of a resource.
    #[must_use]
    pub fn find_entry(&self, resource: &str) -> Option<&DeviceEntry> {
        self.entries.iter().find(|e| e.resource == resource)
    }

    /// The entry of a resource whose nodes come and go in containers that run.
    #[must_use]
    pub fn find_live_entry(&self, resource: &str) -> Option<&DeviceEntry> {
        self.find_entry(resource).filter(|entry| entry.live)
    }

    fn has_pattern(&self, is: impl Fn(&DevicePattern) -> bool) -> bool {
        self.entries.iter().flat_map(DeviceEntry::patterns).any(is)
    }

    fn udev_patterns(&self) -> impl Iterator<Item = &UdevPattern> {
        let all = self.entries.iter().flat_map(DeviceEntry::patterns);
        all.filter_map(|what| match what {
            DevicePattern::Udev(udev) => Some(udev),
            DevicePattern::Path(_) | DevicePattern::Usb(_) | DevicePattern::Cdi(_) => None,
        })
    }

    fn number_udev_patterns(&mut self) {
        let alternatives = self.entries.iter_mut().flat_map(|entry| &mut entry.matches);
        let mut number = 0;
        for alternative in alternatives {
            let (one, many): (Option<&mut DevicePattern>, &mut [GroupMember]) = match alternative {
                EntryAlternative::Each(what) => (Some(what), &mut []),
                EntryAlternative::Group(members) => (None, members),
            };
            for what in one.into_iter().chain(many.iter_mut().map(|m| &mut m.what)) {
                if let DevicePattern::Udev(udev) = what {
                    udev.number = number;
                    // Entries, alternatives and members are bounded: there are 16384 at most.
                    number += 1;
                }
            }
        }
    }
}

impl DeviceFilter for DeclaredDevices {
    fn wants_node(&self, name: &str) -> bool {
        self.has_pattern(|what| matches!(what, DevicePattern::Path(pattern) if glob::matches_path(pattern, name)))
    }

    fn wants_directory(&self, path: &str) -> bool {
        self.has_pattern(|what| matches!(what, DevicePattern::Path(pattern) if glob::may_match_below(pattern, path)))
    }

    fn wants_usb_device(&self, place: &UsbPlace) -> bool {
        self.has_pattern(|what| matches!(what, DevicePattern::Usb(usb) if usb.matches_place(place)))
    }

    fn wants_any_usb(&self) -> bool {
        self.has_pattern(|what| matches!(what, DevicePattern::Usb(_)))
    }

    fn wants_any_udev(&self) -> bool {
        self.has_pattern(|what| matches!(what, DevicePattern::Udev(_)))
    }

    fn wants_subsystem(&self, name: &str) -> bool {
        self.udev_patterns()
            .any(|udev| udev.may_match_subsystem(name))
    }

    fn matching_udev_rules(&self, subsystem: &str, device: &dyn NodeDeviceFacts) -> Vec<u16> {
        let meant = self
            .udev_patterns()
            .filter(|udev| udev.may_match_subsystem(subsystem));
        let meant = meant.filter(|udev| udev.matches_device(device));
        meant.map(|udev| udev.number).collect()
    }

    fn wants_any_cdi(&self) -> bool {
        self.has_pattern(|what| matches!(what, DevicePattern::Cdi(_)))
    }

    fn wanted_cdi_devices(&self, file: Value) -> Result<Vec<String>, WrongValue> {
        let is_wanted = |name: &str| {
            self.has_pattern(
                |what| matches!(what, DevicePattern::Cdi(meant) if matches_cdi_device(meant, name)),
            )
        };
        let devices = cdi::read_cdi_file(file, &is_wanted)?.devices.into_iter();
        Ok(devices.map(|(name, _)| name).collect())
    }
}

/// Checks the entries.
///
/// - Errors: the first wrong value, with its path below `picolet.devices`.
pub fn parse_declared_devices(value: &Value) -> Result<DeclaredDevices, WrongValue> {
    let root = "picolet.devices";
    if value.is_null() {
        return Ok(DeclaredDevices::default());
    }
    let list = parse_list(value, root, MAX_ENTRIES)?;
    let mut seen = BTreeSet::new();
    let mut declared = DeclaredDevices::default();
    for (n, value) in list.iter().enumerate() {
        let path = format!("{root}[{n}]");
        let entry = parse_entry(value, &path)?;
        if !seen.insert(entry.resource.clone()) {
            return Err(WrongValue::new(
                format!("{path}.resource"),
                format!("{:?} is there twice", entry.resource),
            ));
        }
        let mut others = declared.entries.iter().filter(|other| other.live);
        if let Some(other) = others.find(|other| entry.live && entry.conflicts_with(other)) {
            let (own, other) = (&entry.container_path, &other.resource);
            return Err(WrongValue::new(
                format!("{path}.containerPath"),
                format!("is {own:?}, which is or contains the directory of {other}, or lies in it"),
            ));
        }
        declared.entries.push(entry);
    }
    declared.number_udev_patterns();
    Ok(declared)
}

fn parse_list<'a>(value: &'a Value, path: &str, most: usize) -> Result<&'a [Value], WrongValue> {
    match value.as_array() {
        Some(list) if list.len() <= most => Ok(list),
        Some(list) => Err(WrongValue::new(
            path,
            format!("has {} entries, must have at most {most}", list.len()),
        )),
        None => Err(WrongValue::new(path, "must be a list")),
    }
}

fn parse_entry(value: &Value, path: &str) -> Result<DeviceEntry, WrongValue> {
    let mut fields = RemainingFields::from_borrowed(value, path)?;
    let preset = fields.take_text("preset")?;
    let mut entry = match &*preset {
        "" => DeviceEntry {
            shares: 1,
            permissions: "rw".to_owned(),
            ..DeviceEntry::default()
        },
        name => preset::preset_entry(name).ok_or_else(|| {
            let all = preset::preset_names();
            fields.wrong_field("preset", format!("is {name:?}, must be one of {all}"))
        })?,
    };
    let resource = fields.take_text("resource")?;
    if !resource.is_empty() {
        entry.resource = match resource.contains('/') {
            true => resource,
            false => format!("{PREFIX}{resource}"),
        };
    }
    if let Some(why) = resource_name_error(&entry.resource) {
        return Err(fields.wrong_field("resource", why));
    }
    match (fields.take_field("match"), preset.is_empty()) {
        (None, false) => {}
        (Some(_), false) => return Err(fields.wrong_field("match", "is set by preset already")),
        (None, true) => return Err(fields.wrong_field("match", "is missing")),
        (Some(value), true) => {
            entry.matches = parse_alternatives(&value, &format!("{path}.match"))?
        }
    }
    if entry
        .patterns()
        .any(|what| matches!(what, DevicePattern::Cdi(_)))
        && let Some(name) = OF_NODES.iter().find(|name| fields.has_field(name))
    {
        return Err(fields.wrong_field(name, "cannot be set with cdi: its file says what is given"));
    }
    if let Some(count) = fields.take_number("count", 1, MAX_SHARES)? {
        entry.shares = count;
    }
    let permissions = fields.take_text("permissions")?;
    if !permissions.is_empty() {
        let letters: BTreeSet<char> = permissions.chars().collect();
        if letters.len() != permissions.len() || letters.iter().any(|c| !"rwm".contains(*c)) {
            let message = format!("is {permissions:?}, must be letters of \"rwm\", each once");
            return Err(fields.wrong_field("permissions", message));
        }
        entry.permissions = permissions;
    }
    entry.live = fields.take_flag("live", entry.live)?;
    let at = fields.take_text("containerPath")?;
    // A live preset keeps its own directory.
    if !at.is_empty() || !entry.live {
        entry.container_path = at;
    }
    if let Some(why) = container_path_error(&entry.container_path, entry.live) {
        return Err(fields.wrong_field("containerPath", why));
    }
    entry.env = fields.take_text("env")?;
    if entry.env.contains('=') || entry.env.chars().any(char::is_control) {
        return Err(fields.wrong_field("env", "must be the name of a variable"));
    }
    let replug = fields.take_text("onReplug")?;
    entry.on_replug = match &*replug {
        "" => ReplugPolicy::IfChanged,
        "restart" => ReplugPolicy::Restart,
        "none" => ReplugPolicy::Leave,
        _ => {
            let message = format!("is {replug:?}, must be restart or none");
            return Err(fields.wrong_field("onReplug", message));
        }
    };
    entry.gid = fields.take_number("gid", 0, u32::MAX - 1)?;
    entry.mode = match fields.take_field("mode") {
        None => None,
        Some(value) => Some(parse_mode(&value).ok_or_else(|| {
            fields.wrong_field("mode", format!("is {value}, must be such as \"0660\""))
        })?),
    };
    fields.expect_empty()?;
    Ok(entry)
}

fn container_path_error(at: &str, live: bool) -> Option<String> {
    let is_path = at.starts_with('/') && !at.split('/').skip(1).any(is_invalid_component);
    match (at, live) {
        ("", false) => None,
        ("", true) => Some("is missing: with live, nodes come and go in that directory".into()),
        (DEV, true) => Some(format!(
            "is {at:?}, must be a directory of its own with live, such as {DEV}/live"
        )),
        _ if is_path => None,
        _ => Some(format!("is {at:?}, must be an absolute path")),
    }
}

pub(super) fn is_invalid_component(part: &str) -> bool {
    part.is_empty() || part == "." || part == ".."
}

fn parse_mode(value: &Value) -> Option<u32> {
    let text = value.as_str()?;
    u32::from_str_radix(text, 8).ok().filter(|m| *m <= 0o777)
}

/// Returns true if pods can request this resource and a quota can count it.
///
/// - Source: `pkg/apis/core/v1/helper`, `IsExtendedResourceName`: a quota has `requests.` before it.
pub(super) fn is_requestable_resource(name: &str) -> bool {
    is_extended_resource(name)
        && !name.starts_with("requests.")
        && names::is_qualified_name(&format!("requests.{name}"))
}

fn resource_name_error(name: &str) -> Option<String> {
    if name.is_empty() {
        return Some("is missing".into());
    }
    if !is_requestable_resource(name) {
        return Some(format!(
            "is {name:?}, must be the name of an extended resource, such as {PREFIX}serial"
        ));
    }
    None
}

/// Reads a single alternative, or a list of them.
fn parse_alternatives(value: &Value, path: &str) -> Result<Vec<EntryAlternative>, WrongValue> {
    if value.is_object() {
        return Ok(Vec::from([parse_alternative(value, path)?]));
    }
    let list = parse_list(value, path, MAX_MATCHES)?;
    if list.is_empty() {
        return Err(WrongValue::new(path, "is empty"));
    }
    let all = list.iter().enumerate();
    all.map(|(n, value)| parse_alternative(value, &format!("{path}[{n}]")))
        .collect()
}

fn parse_alternative(value: &Value, path: &str) -> Result<EntryAlternative, WrongValue> {
    let mut fields = RemainingFields::from_borrowed(value, path)?;
    let Some(group) = fields.take_field("group") else {
        let what = parse_pattern(&mut fields)?;
        fields.expect_empty()?;
        return Ok(EntryAlternative::Each(what));
    };
    let name = format!("{path}.group");
    fields.expect_empty()?;
    let mut members = Vec::new();
    for (n, value) in parse_list(&group, &name, MAX_MATCHES)?.iter().enumerate() {
        let path = format!("{name}[{n}]");
        let mut fields = RemainingFields::from_borrowed(value, &path)?;
        members.push(GroupMember {
            limit: fields.take_number("limit", 1, MAX_SHARES)?.unwrap_or(1),
            optional: fields.take_flag("optional", false)?,
            what: parse_pattern(&mut fields)?,
        });
        fields.expect_empty()?;
    }
    match members.iter().any(|m| !m.optional) {
        true => Ok(EntryAlternative::Group(members)),
        false => Err(WrongValue::new(
            name,
            "must have a member that is not optional",
        )),
    }
}

fn parse_pattern(fields: &mut RemainingFields<'_>) -> Result<DevicePattern, WrongValue> {
    let names = ["path", "usb", "udev", "cdi"];
    let mut there = names.into_iter().filter(|name| fields.has_field(name));
    let (Some(name), None) = (there.next(), there.next()) else {
        return Err(WrongValue::new(
            fields.path(),
            "must have one of path, usb, udev, cdi and group",
        ));
    };
    let path = fields.field_path(name);
    match name {
        "path" => {
            let pattern = fields.take_text(name)?;
            match glob::path_pattern_error(&pattern) {
                Some(why) => Err(fields.wrong_field(name, why)),
                None => Ok(DevicePattern::Path(pattern)),
            }
        }
        "cdi" => {
            let meant = fields.take_text(name)?;
            match cdi_pattern_error(&meant) {
                Some(why) => Err(fields.wrong_field(name, why)),
                None => Ok(DevicePattern::Cdi(meant)),
            }
        }
        _ => {
            let value = fields.take_field(name).unwrap_or_default();
            match name {
                "usb" => parse_usb_pattern(&value, &path).map(DevicePattern::Usb),
                _ => udev::parse_udev_pattern(&value, &path).map(DevicePattern::Udev),
            }
        }
    }
}

fn cdi_pattern_error(meant: &str) -> Option<String> {
    let parts = meant.split_once('=');
    let parts = parts.filter(|(kind, pattern)| cdi::is_cdi_kind(kind) && !pattern.is_empty());
    let Some((_, pattern)) = parts else {
        return Some(format!("is {meant:?}, must be such as vendor.com/class=*"));
    };
    if pattern == ALL {
        return Some(format!(
            "is {meant:?}: {ALL} is never a unit, must be such as *"
        ));
    }
    glob::text_pattern_error(pattern)
}

fn parse_usb_pattern(value: &Value, path: &str) -> Result<UsbPattern, WrongValue> {
    let mut fields = RemainingFields::from_borrowed(value, path)?;
    let mut hex = |name: &str| {
        let value = fields.take_field(name).unwrap_or_default();
        let text = value.as_str().unwrap_or_default();
        u16::from_str_radix(text.trim_start_matches("0x"), 16).map_err(|_| {
            let message = match value.is_null() {
                true => "is missing".to_string(),
                false => format!("is {value}, must be a hexadecimal text such as \"0403\""),
            };
            WrongValue::new(format!("{path}.{name}"), message)
        })
    };
    let (vendor, product) = (hex("vendor")?, hex("product")?);
    let mut usb = UsbPattern {
        vendor,
        product,
        serial: fields.take_text("serial")?,
        port: fields.take_text("port")?,
        nodes: fields.take_text("nodes")?,
    };
    if usb.nodes.is_empty() {
        usb.nodes = USB.into();
    }
    fields.expect_empty()?;
    Ok(usb)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn wrong(value: &Value) -> String {
        parse_declared_devices(value)
            .expect_err("wrong")
            .to_string()
    }

    #[test]
    fn nodes_that_come_and_go() {
        // DEV-44 DEV-45
        let coral = |more: Value| {
            let mut entry = json!({"preset": "coral"});
            for (name, value) in more.as_object().expect("fields") {
                entry[name] = value.clone();
            }
            let entry = parse_declared_devices(&json!([entry]))
                .expect("right")
                .entries
                .remove(0);
            (
                entry.live,
                entry.container_path.clone(),
                entry.changes_product(),
            )
        };
        assert_eq!(coral(json!({})), (true, "/dev/bus/usb".into(), true));
        let other = json!({"containerPath": "/dev/usb"});
        assert_eq!(coral(other), (true, "/dev/usb".into(), true));
        // Without `live`, the path is that of a node.
        assert_eq!(coral(json!({"live": false})), (false, String::new(), true));
        let one = |resource: &str, more: Value| {
            let mut entry = json!({"resource": resource, "match": {"path": "/dev/ttyUSB*"}});
            for (name, value) in more.as_object().expect("fields") {
                entry[name] = value.clone();
            }
            entry
        };
        let live =
            |resource: &str, at: &str| one(resource, json!({"live": true, "containerPath": at}));
        let two = parse_declared_devices(&json!([
            live("a", "/dev/a"),
            live("b", "/dev/ab"),
            one("c", json!({}))
        ]));
        let two = two.expect("right");
        assert!(
            two.find_live_entry("picolet/a").is_some()
                && two.find_live_entry("picolet/c").is_none()
        );
        for (entries, want) in [
            (
                json!([one("a", json!({"live": true}))]),
                "picolet.devices[0].containerPath: is missing: with live, nodes come and go in that directory",
            ),
            (
                json!([live("a", "/dev")]),
                "picolet.devices[0].containerPath: is \"/dev\", must be a directory of its own with live, such as /dev/live",
            ),
            (
                json!([live("a", "/dev/a"), live("b", "/dev/a/b")]),
                "picolet.devices[1].containerPath: is \"/dev/a/b\", which is or contains the directory of picolet/a, or lies in it",
            ),
            (
                json!([live("a", "/dev/a/b"), live("b", "/dev/a")]),
                "picolet.devices[1].containerPath: is \"/dev/a\", which is or contains the directory of picolet/a, or lies in it",
            ),
            (
                json!([one("a", json!({"live": "yes"}))]),
                "picolet.devices[0].live: is \"yes\", must be true or false",
            ),
        ] {
            assert_eq!(wrong(&entries), want);
        }
    }

    #[test]
    fn an_entry() {
        // DEV-30
        let value = json!([
            {"resource": "serial", "match": {"path": "/dev/ttyUSB*"}},
            {"resource": "squat.ai/camera", "count": 4, "permissions": "rwm", "containerPath": "/dev/cam",
             "env": "CAMERA", "onReplug": "none", "gid": 44, "mode": "0660",
             "match": [{"usb": {"vendor": "0x046D", "product": "82d"}},
                       {"group": [{"path": "/dev/video*"}, {"path": "/dev/media*", "limit": 2, "optional": true}]}]},
        ]);
        let declared = parse_declared_devices(&value).expect("right");
        let [serial, camera] = &*declared.entries else {
            panic!("two");
        };
        assert_eq!(
            (&*serial.resource, serial.shares, &*serial.permissions),
            ("picolet/serial", 1, "rw")
        );
        assert_eq!(serial.on_replug, ReplugPolicy::IfChanged);
        assert_eq!(
            (&*camera.resource, camera.shares, &*camera.permissions),
            ("squat.ai/camera", 4, "rwm")
        );
        assert_eq!(camera.on_replug, ReplugPolicy::Leave);
        assert_eq!((camera.gid, camera.mode), (Some(44), Some(0o660)));
        let EntryAlternative::Each(DevicePattern::Usb(usb)) = &camera.matches[0] else {
            panic!("usb");
        };
        assert_eq!((usb.vendor, usb.product, &*usb.nodes), (0x46d, 0x82d, USB));
        let place = |product| UsbPlace {
            product,
            ..UsbPlace::default()
        };
        assert!(declared.wants_usb_device(&place((0x46d, 0x82d))));
        assert!(!declared.wants_usb_device(&place((0x46d, 0x82e))));
        assert!(declared.wants_node("/dev/media0") && !declared.wants_node("/dev/null"));
        assert!(declared.wants_directory("/dev") && !declared.wants_directory("/dev/pts"));
    }

    #[test]
    fn what_is_wrong_is_named() {
        // DEV-30
        let path = json!({"path": "/dev/a"});
        for (value, says) in [
            (json!({}), "picolet.devices: must be a list"),
            (json!([1]), "picolet.devices[0]: must have fields"),
            (
                json!([{"match": path}]),
                "picolet.devices[0].resource: is missing",
            ),
            (
                json!([{"resource": "a"}]),
                "picolet.devices[0].match: is missing",
            ),
            (
                json!([{"resource": "kubernetes.io/a", "match": path}]),
                "picolet.devices[0].resource: is \"kubernetes.io/a\", must be the name",
            ),
            (
                json!([{"resource": "requests.a/b", "match": path}]),
                "must be the name",
            ),
            (
                json!([{"resource": "a b", "match": path}]),
                "must be the name",
            ),
            (
                json!([{"resource": "a", "match": path, "colour": 1}]),
                "picolet.devices[0].colour: is not known",
            ),
            (
                json!([{"resource": "a", "match": [{"path": "/tmp/a"}]}]),
                "picolet.devices[0].match[0].path: is \"/tmp/a\", must begin with /dev/",
            ),
            (
                json!([{"resource": "a", "match": {"path": "/dev/a", "usb": {}}}]),
                "picolet.devices[0].match: must have one of path, usb, udev, cdi and group",
            ),
            (
                json!([{"resource": "a", "match": []}]),
                "picolet.devices[0].match: is empty",
            ),
            (
                json!([{"resource": "a", "match": {"usb": {"vendor": "zz", "product": "1"}}}]),
                "picolet.devices[0].match.usb.vendor: is \"zz\", must be a hexadecimal",
            ),
            (
                json!([{"resource": "a", "match": {"usb": {"vendor": "1"}}}]),
                "picolet.devices[0].match.usb.product: is missing",
            ),
            (
                json!([{"resource": "a", "match": {"group": [{"path": "/dev/a", "optional": true}]}}]),
                "picolet.devices[0].match.group: must have a member that is not optional",
            ),
            (
                json!([{"resource": "a", "match": path, "count": 0}]),
                "picolet.devices[0].count: is 0, must be a whole number from 1 to 1024",
            ),
            (
                json!([{"resource": "a", "match": path, "permissions": "rr"}]),
                "picolet.devices[0].permissions: is \"rr\"",
            ),
            (
                json!([{"resource": "a", "match": path, "mode": "8"}]),
                "picolet.devices[0].mode: is \"8\"",
            ),
            (
                json!([{"resource": "a", "match": path, "containerPath": "dev/a"}]),
                "picolet.devices[0].containerPath: is \"dev/a\"",
            ),
            (
                json!([{"resource": "a", "match": path, "onReplug": "x"}]),
                "picolet.devices[0].onReplug: is \"x\", must be restart or none",
            ),
            (
                json!([{"resource": "a", "match": path}, {"resource": "picolet/a", "match": path}]),
                "picolet.devices[1].resource: \"picolet/a\" is there twice",
            ),
            (
                json!([{"preset": "moon"}]),
                "picolet.devices[0].preset: is \"moon\", must be one of",
            ),
            (
                json!([{"preset": "i2c", "match": path}]),
                "picolet.devices[0].match: is set by preset already",
            ),
        ] {
            let error = wrong(&value);
            assert!(error.contains(says), "{value}: {error}");
        }
        let many = Value::Array(vec![json!({}); MAX_ENTRIES + 1]);
        assert!(wrong(&many).contains("must have at most 64"));
    }

    #[test]
    fn each_udev_has_its_number() {
        // DEV-33
        let tty = json!({"udev": {"subsystem": "tty"}});
        let by_driver = json!({"udev": {"driver": "x"}});
        let value = json!([
            {"resource": "a", "match": [{"path": "/dev/a"}, tty]},
            {"resource": "b", "match": {"group": [tty, by_driver]}},
        ]);
        let all = parse_declared_devices(&value).expect("right");
        let numbers: Vec<u16> = all.udev_patterns().map(|udev| udev.number).collect();
        assert_eq!(numbers, [0, 1, 2]);
        assert!(all.wants_any_udev() && !all.wants_any_usb());
        assert!(all.wants_subsystem("block"), "a driver may have any");
        let tty = parse_declared_devices(&json!([{"resource": "a", "match": tty}])).expect("right");
        assert!(tty.wants_subsystem("tty") && !tty.wants_subsystem("block"));
    }

    #[test]
    fn cdi_devices() {
        // DEV-46
        let entry = |meant: &str| json!({"resource": "gpu", "match": {"cdi": meant}});
        let all = parse_declared_devices(
            &json!([entry("v.com/gpu=[0-3]"), {"resource": "a", "match": {"path": "/dev/a"}}]),
        );
        let all = all.expect("right");
        assert!(all.wants_any_cdi() && !all.wants_directory("/sys"));
        let device = |name: &str| json!({"name": name, "containerEdits": {"env": ["A="]}});
        let mut file = json!({"cdiVersion": "0.5.0", "kind": "v.com/gpu",
            "devices": [device("0"), device("3"), device("4"), device("all")]});
        let names = all.wanted_cdi_devices(file.clone()).expect("valid");
        assert_eq!(names, ["v.com/gpu=0", "v.com/gpu=3"]);
        file["kind"] = json!("v.com/npu");
        assert_eq!(
            all.wanted_cdi_devices(file.clone()).expect("valid"),
            Vec::<String>::new()
        );
        file["kind"] = json!("");
        assert!(all.wanted_cdi_devices(file.clone()).is_err());
        assert!(
            !parse_declared_devices(&json!([{"preset": "i2c"}]))
                .expect("right")
                .wants_any_cdi()
        );
        for (value, says) in [
            (
                entry("v.com/gpu"),
                "match.cdi: is \"v.com/gpu\", must be such as vendor.com/class=*",
            ),
            (entry("gpu=*"), "match.cdi: is \"gpu=*\""),
            (entry("v.com/*=0"), "match.cdi: is \"v.com/*=0\""),
            (entry("v.com/gpu="), "match.cdi: is \"v.com/gpu=\""),
            (entry("v.com/gpu=[a"), "whose \"[\" has no end"),
            (entry("v.com/gpu=all"), "all is never a unit"),
            (
                json!({"resource": "a", "match": {"cdi": "v.com/gpu=*", "path": "/dev/a"}}),
                "must have one of path, usb, udev, cdi and group",
            ),
        ] {
            let error = wrong(&json!([value]));
            assert!(error.contains(says), "{value}: {error}");
        }
        for (field, value) in [
            ("permissions", json!("r")),
            ("live", json!(true)),
            ("containerPath", json!("/dev/x")),
            ("env", json!("GPU")),
            ("gid", json!(44)),
            ("mode", json!("0660")),
        ] {
            let mut entry = entry("v.com/gpu=*");
            entry[field] = value;
            let says = format!(
                "picolet.devices[0].{field}: cannot be set with cdi: its file says what is given"
            );
            assert_eq!(wrong(&json!([entry])), says);
        }
    }

    #[test]
    fn presets() {
        // DEV-37
        for name in preset::preset_names().split(", ") {
            // Two live entries must not have the same directory.
            let value = json!([{"preset": name},
                {"preset": name, "resource": "squat.ai/x", "live": false}]);
            let declared = parse_declared_devices(&value).expect(name);
            assert!(!declared.entries[0].matches.is_empty());
            assert_eq!(declared.entries[0].matches, declared.entries[1].matches);
        }
        let shared = parse_declared_devices(&json!([{"preset": "i2c"}, {"preset": "serial"}]))
            .expect("presets");
        assert!(shared.entries[0].shares > 1);
        assert_eq!(shared.entries[1].shares, 1, "a line has one reader");
    }
}
