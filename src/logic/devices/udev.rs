//! Devices by what the kernel and udev know of them (DEV-33).

use alloc::{
    collections::BTreeMap,
    format,
    string::{String, ToString as _},
    vec::Vec,
};

use serde_json::Value;

use super::glob;
use crate::{
    api::{device::NodeDeviceFacts, strict::WrongValue},
    fields::{MAX_TEXT, RemainingFields},
};

/// Attributes, or properties, of one entry.
const MAX_NAMES: usize = 16;

/// Pattern for a device. All fields must match; an empty field matches any device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct UdevPattern {
    /// Number of this pattern among those of all entries, as [`crate::api::device::MachineDevices::udev`] uses it.
    pub(super) number: u16,
    subsystem: String,
    /// Driver of the device or of one of its parents.
    driver: String,
    /// Attribute files and patterns of their content: all of one device, either this one or one of its parents.
    attr: BTreeMap<String, String>,
    /// Names of the device's own properties and patterns of their values.
    property: BTreeMap<String, String>,
    tag: String,
}

impl UdevPattern {
    /// Returns true if the pattern may match a device of this subsystem.
    pub(super) fn may_match_subsystem(&self, subsystem: &str) -> bool {
        self.subsystem.is_empty() || glob::matches_text(&self.subsystem, subsystem)
    }

    /// Returns true if the pattern matches the device. Cheap checks come first. The subsystem is checked by
    /// [`UdevPattern::may_match_subsystem`].
    ///
    /// - Source: udev(7): attributes of parents must all be those of one parent. Here the driver may be that of another
    ///   parent, for an adapter's serial number is never beside the driver of its line.
    pub(super) fn matches_device(&self, device: &dyn NodeDeviceFacts) -> bool {
        let is = |pattern: &str, value: Option<String>| {
            value.is_some_and(|value| glob::matches_text(pattern, &value))
        };
        let mut levels = 0..device.level_count();
        if !self.driver.is_empty()
            && !levels.any(|level| is(&self.driver, device.driver_at_level(level)))
        {
            return false;
        }
        let mut levels = 0..device.level_count();
        let all_at = |level| {
            let mut all = self.attr.iter();
            all.all(|(name, pattern)| is(pattern, device.attribute_at_level(level, name)))
        };
        if !self.attr.is_empty() && !levels.any(all_at) {
            return false;
        }
        if self.property.is_empty() && self.tag.is_empty() {
            return true;
        }
        let (database, event) = (device.udev_database(), device.kernel_uevent());
        let known = UdevRecord::parse(&database, &event);
        let tag = self.tag.as_str();
        let mut properties = self.property.iter();
        (tag.is_empty()
            || known
                .tags
                .iter()
                .any(|known| glob::matches_text(tag, known)))
            && properties.all(|(name, pattern)| is(pattern, known.udev_property(name)))
    }
}

/// Content of udev's database and of the kernel's `uevent` file.
struct UdevRecord<'a> {
    /// Later ones win.
    properties: BTreeMap<&'a str, &'a str>,
    tags: Vec<&'a str>,
}

impl<'a> UdevRecord<'a> {
    /// - Source: `systemd/src/libsystemd/sd-device`. From version 247 on a file has a line `V:`; `G:` lines are then
    ///   tags that the device ever had, `Q:` lines its present tags.
    fn parse(database: &'a str, event: &'a str) -> Self {
        let own = event.lines().filter_map(|line| line.split_once('='));
        let mut properties: BTreeMap<&str, &str> = own.collect();
        let (mut ever, mut now, mut has_now) = (Vec::new(), Vec::new(), false);
        for line in database.lines() {
            match line.split_once(':') {
                Some(("E", pair)) => properties.extend(pair.split_once('=')),
                Some(("G", tag)) => ever.push(tag),
                Some(("Q", tag)) => now.push(tag),
                Some(("V", _)) => has_now = true,
                _ => {}
            }
        }
        Self {
            properties,
            tags: if has_now { now } else { ever },
        }
    }

    /// Value of a property as udev tells it: the kernel leaves the directory out of the node's name.
    fn udev_property(&self, name: &str) -> Option<String> {
        let value = *self.properties.get(name)?;
        Some(match name == "DEVNAME" && !value.starts_with('/') {
            true => format!("/dev/{value}"),
            false => value.to_string(),
        })
    }
}

/// Checks a pattern of the configuration.
///
/// - Errors: the first wrong value, with its path.
pub(super) fn parse_udev_pattern(value: &Value, path: &str) -> Result<UdevPattern, WrongValue> {
    let mut fields = RemainingFields::from_borrowed(value, path)?;
    let udev = UdevPattern {
        number: 0,
        subsystem: parse_glob(&mut fields, "subsystem")?,
        driver: parse_glob(&mut fields, "driver")?,
        attr: parse_globs(&mut fields, "attr", is_attribute_path)?,
        property: parse_globs(&mut fields, "property", |name| !name.contains('='))?,
        tag: parse_glob(&mut fields, "tag")?,
    };
    fields.expect_empty()?;
    if udev == UdevPattern::default() {
        let text = "must have one of subsystem, driver, attr, property and tag";
        return Err(WrongValue::new(path, text));
    }
    Ok(udev)
}

/// Returns true for the relative path of a file of the device, such as `power/control`: none outside of its directory.
fn is_attribute_path(name: &str) -> bool {
    let mut parts = name.split('/');
    parts.all(|part| !super::declared::is_invalid_component(part))
}

fn parse_glob(fields: &mut RemainingFields<'_>, name: &str) -> Result<String, WrongValue> {
    let text = fields.take_text(name)?;
    match glob::text_pattern_error(&text) {
        Some(why) => Err(fields.wrong_field(name, why)),
        None => Ok(text),
    }
}

fn parse_globs(
    fields: &mut RemainingFields<'_>,
    name: &str,
    is_name: fn(&str) -> bool,
) -> Result<BTreeMap<String, String>, WrongValue> {
    let Some(value) = fields.take_field(name) else {
        return Ok(BTreeMap::new());
    };
    let all = value.as_object().filter(|all| all.len() <= MAX_NAMES);
    let Some(all) = all else {
        let text = format!("must have fields, at most {MAX_NAMES}");
        return Err(fields.wrong_field(name, text));
    };
    let mut patterns = BTreeMap::new();
    for (key, value) in all {
        let wrong = |why: String| fields.wrong_field(&format!("{name}.{key}"), why);
        if key.is_empty()
            || key.len() > MAX_TEXT
            || key.chars().any(char::is_control)
            || !is_name(key)
        {
            return Err(wrong("is not a name".into()));
        }
        let text = value.as_str().filter(|text| text.len() <= MAX_TEXT);
        let text = text.ok_or_else(|| {
            wrong(format!(
                "is {value}, must be a text of at most {MAX_TEXT} bytes"
            ))
        })?;
        if let Some(why) = glob::text_pattern_error(text) {
            return Err(wrong(why));
        }
        patterns.insert(key.clone(), text.into());
    }
    Ok(patterns)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A line of an adapter: itself, its port, the interface, the adapter, a hub.
    struct Line {
        database: &'static str,
    }

    impl NodeDeviceFacts for Line {
        fn level_count(&self) -> usize {
            5
        }

        fn driver_at_level(&self, level: usize) -> Option<String> {
            let driver = ["", "ftdi_sio", "ftdi_sio", "usb", "usb"][level];
            (!driver.is_empty()).then(|| driver.into())
        }

        fn attribute_at_level(&self, level: usize, name: &str) -> Option<String> {
            let value = match (level, name) {
                (3, "idVendor") => "0403",
                (3, "idProduct") => "6001",
                (3, "product") => "USB [Serial]",
                (4, "idVendor") => "1d6b",
                (4, "idProduct") => "0002",
                _ => return None,
            };
            Some(value.into())
        }

        fn udev_database(&self) -> String {
            self.database.into()
        }

        fn kernel_uevent(&self) -> String {
            "MAJOR=188\nDEVNAME=ttyUSB0\nID_MODEL=kernel\n".into()
        }
    }

    const NEW: &str =
        "I:12\nE:ID_MODEL=FT232R=x\nE:ID_SERIAL=A1\nG:old\nG:systemd\nQ:systemd\nV:1\nS:serial/x\n";

    fn is(value: &Value, database: &'static str) -> bool {
        parse_udev_pattern(value, "x")
            .expect("right")
            .matches_device(&Line { database })
    }

    #[test]
    fn all_must_hold() {
        // DEV-33
        for (value, expected) in [
            (json!({"driver": "ftdi_sio"}), true),
            (json!({"driver": "ftdi_*"}), true),
            (json!({"driver": "ftdi"}), false),
            (
                json!({"attr": {"idVendor": "0403", "idProduct": "6001"}}),
                true,
            ),
            (json!({"attr": {"product": "USB*"}}), true),
            (json!({"attr": {"product": "USB [[]Serial]"}}), true),
            // Each attribute is somewhere, but no device has both.
            (
                json!({"attr": {"idVendor": "0403", "idProduct": "0002"}}),
                false,
            ),
            (json!({"attr": {"none": "*"}}), false),
            (
                json!({"driver": "ftdi_sio", "attr": {"idVendor": "0403"}}),
                true,
            ),
            (
                json!({"driver": "other", "attr": {"idVendor": "0403"}}),
                false,
            ),
            (
                json!({"property": {"ID_MODEL": "FT232R=x", "ID_SERIAL": "?1"}}),
                true,
            ),
            (
                json!({"property": {"ID_MODEL": "FT232R=x", "ID_SERIAL": "B1"}}),
                false,
            ),
            (json!({"property": {"DEVNAME": "/dev/ttyUSB0"}}), true),
            (json!({"property": {"NONE": "*"}}), false),
            (json!({"tag": "systemd"}), true),
            (json!({"tag": "old"}), false),
            (json!({"driver": "ftdi_sio", "tag": "old"}), false),
        ] {
            assert_eq!(is(&value, NEW), expected, "{value}");
        }
        let subsystem = parse_udev_pattern(&json!({"subsystem": "tty"}), "x").expect("right");
        assert!(subsystem.may_match_subsystem("tty") && !subsystem.may_match_subsystem("usb"));
    }

    #[test]
    fn with_an_older_udev_and_without() {
        // DEV-33
        let tag = json!({"tag": "old"});
        assert!(is(&tag, "G:old\n"), "its tags have one kind of line");
        assert!(!is(&tag, ""));
        let model = |model: &str| json!({"property": {"ID_MODEL": model}});
        assert!(is(&model("kernel"), ""), "what the kernel says");
        assert!(!is(&model("kernel"), NEW), "udev knows better");
        assert!(is(&json!({"property": {"MAJOR": "188"}}), NEW));
        assert!(is(&model("kernel"), "E:ID_MODEL"), "a torn line is none");
    }

    #[test]
    fn what_is_wrong_is_named() {
        // DEV-33
        let many: serde_json::Map<String, Value> =
            (0..17).map(|n| (n.to_string(), json!("x"))).collect();
        for (value, says) in [
            (json!({}), "x: must have one of subsystem"),
            (json!([]), "x: must have fields"),
            (json!({"subsystem": 1}), "x.subsystem: is 1, must be a text"),
            (
                json!({"driver": "[a"}),
                "x.driver: is \"[a\", whose \"[\" has no end",
            ),
            (json!({"attr": "a"}), "x.attr: must have fields, at most 16"),
            (
                json!({"attr": many}),
                "x.attr: must have fields, at most 16",
            ),
            (json!({"attr": {"../a": "1"}}), "x.attr.../a: is not a name"),
            (json!({"attr": {"/a": "1"}}), "x.attr./a: is not a name"),
            (json!({"attr": {"a": 1}}), "x.attr.a: is 1, must be a text"),
            (
                json!({"property": {"a=b": "1"}}),
                "x.property.a=b: is not a name",
            ),
            (
                json!({"property": {"a": "[b"}}),
                "x.property.a: is \"[b\", whose",
            ),
            (json!({"tags": "a"}), "x.tags: is not known"),
        ] {
            let error = parse_udev_pattern(&value, "x")
                .expect_err("wrong")
                .to_string();
            assert!(error.contains(says), "{value}: {error}");
        }
    }
}
