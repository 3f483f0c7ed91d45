//! Reader of a CDI file (CDI-02).

use alloc::{borrow::ToOwned as _, boxed::Box, collections::BTreeSet, string::String, vec::Vec};

use serde_json::Value;

use super::edits::edit_count;
use crate::{
    api::{
        cdi::{CdiEdits, CdiFile, DeviceNode, HostNodeLookup},
        oci::{Hook, Mount, OciDevice},
        strict::WrongValue,
    },
    fields::RemainingFields,
};

/// Versions of the interface, the first one first.
const VERSIONS: [&str; 8] = [
    "0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0",
];
/// Places in [`VERSIONS`] of those that brought new fields.
const V0_4: usize = 1;
const V0_5: usize = 2;
const V0_6: usize = 3;
const V0_7: usize = 4;
const V1_1: usize = 7;
/// Stages at which hooks run.
const HOOKS: [&str; 6] = [
    "prestart",
    "createRuntime",
    "createContainer",
    "startContainer",
    "poststart",
    "poststop",
];
/// Longest text, bytes: enough for the longest path, and for a variable with a few of them.
const MAX_TEXT: usize = 32 << 10;
/// Longest vendor, class and name of a device, bytes.
const MAX_VENDOR: usize = 253;
const MAX_CLASS: usize = 63;
const MAX_NAME: usize = 255;

/// Reads the devices of these names from a file.
///
/// - Errors: the first thing that is wrong with the file, whatever it concerns. All of it is void then.
pub fn read_named_devices(value: Value, names: &[String]) -> Result<CdiFile, WrongValue> {
    read_cdi_file(value, &|name| names.iter().any(|wanted| wanted == name))
}

/// Reads the devices that are wanted, by their qualified names, from a file.
pub(crate) fn read_cdi_file(
    value: Value,
    wanted: &dyn Fn(&str) -> bool,
) -> Result<CdiFile, WrongValue> {
    let mut fields = RemainingFields::from_value(value, "")?.with_max_text_bytes(MAX_TEXT);
    let mut reader = CdiFileReader::default();
    let version = fields.take_text("cdiVersion")?;
    let plain = version.strip_prefix('v').unwrap_or(&version);
    let Some(version_at) = VERSIONS.iter().position(|known| *known == plain) else {
        let message = format!("is {version:?}, must be one of {}", VERSIONS.join(", "));
        return Err(fields.wrong_field("cdiVersion", message));
    };
    let kind = fields.take_text("kind")?;
    if !is_cdi_kind(&kind) {
        let message = format!("is {kind:?}, must be such as vendor.com/class");
        return Err(fields.wrong_field("kind", message));
    }
    let class = kind.split_once('/').map_or("", |(_, class)| class);
    if class.contains('.') {
        reader.require_version(V0_6, &fields, "kind");
    }
    reader.check_annotations(&mut fields)?;
    let mut file = CdiFile::default();
    let mut names = BTreeSet::new();
    let devices = fields.take_list("devices")?;
    if devices.is_empty() {
        return Err(fields.wrong_field("devices", "must have at least one"));
    }
    for (n, value) in devices.into_iter().enumerate() {
        let path = format!("devices[{n}]");
        let (name, edits) = reader.read_device(value, &path)?;
        let qualified = format!("{kind}={name}");
        if !names.insert(name) {
            let message = format!("{qualified} is there twice");
            return Err(WrongValue::new(format!("{path}.name"), message));
        }
        if wanted(&qualified) {
            file.devices.push((qualified, edits));
        }
    }
    file.common = reader.read_edits(&mut fields)?.unwrap_or_default();
    if let Some(field) = reader.field.filter(|_| version_at < reader.version) {
        let least = VERSIONS[reader.version];
        let message = format!("is {version:?}, must be at least {least} for {field}");
        return Err(fields.wrong_field("cdiVersion", message));
    }
    fields.expect_empty()?;
    Ok(file)
}

/// Returns true if the text is `vendor/class`.
pub(crate) fn is_cdi_kind(text: &str) -> bool {
    let begins = |text: &str| text.as_bytes()[0].is_ascii_alphabetic();
    text.split_once('/').is_some_and(|(vendor, class)| {
        is_name_with(vendor, b"_-.", MAX_VENDOR)
            && is_name_with(class, b"_-.", MAX_CLASS)
            && begins(vendor)
            && begins(class)
    })
}

/// Returns true if the text is the name of a device, without its kind.
fn is_device_name(text: &str) -> bool {
    is_name_with(text, b"_-.:", MAX_NAME)
}

/// Returns true if the text is letters and digits, with the bytes `inside` allowed between its ends.
fn is_name_with(text: &str, inside: &[u8], most: usize) -> bool {
    let bytes = text.as_bytes();
    let is_end = |end: Option<&u8>| end.is_some_and(u8::is_ascii_alphanumeric);
    bytes.len() <= most
        && is_end(bytes.first())
        && is_end(bytes.last())
        && bytes
            .iter()
            .all(|c| c.is_ascii_alphanumeric() || inside.contains(c))
}

/// Reader of one file. It keeps the least version of the interface that the file needs.
#[derive(Default)]
struct CdiFileReader {
    /// The least version, by its place.
    version: usize,
    /// Field that needs this version.
    field: Option<String>,
}

impl CdiFileReader {
    fn require_version(&mut self, version: usize, fields: &RemainingFields<'_>, name: &str) {
        if version > self.version {
            self.version = version;
            self.field = Some(fields.field_path(name));
        }
    }

    /// Checks annotations, which are for other programs.
    fn check_annotations(&mut self, fields: &mut RemainingFields<'_>) -> Result<(), WrongValue> {
        let Some(value) = fields.take_field("annotations") else {
            return Ok(());
        };
        let all = value.as_object();
        let all = all.filter(|all| all.values().all(Value::is_string));
        match all {
            Some(all) if all.is_empty() => {}
            Some(_) => self.require_version(V0_6, fields, "annotations"),
            None => return Err(fields.wrong_field("annotations", "must have texts in its fields")),
        }
        Ok(())
    }

    /// Reads a device: its name, and its edits.
    fn read_device(&mut self, value: Value, path: &str) -> Result<(String, CdiEdits), WrongValue> {
        let mut fields = RemainingFields::from_value(value, path)?.with_max_text_bytes(MAX_TEXT);
        let name = fields.take_text("name")?;
        if !is_device_name(&name) {
            let message = format!("is {name:?}, must be letters and digits, with _-.: inside");
            return Err(fields.wrong_field("name", message));
        }
        if name.as_bytes()[0].is_ascii_digit() {
            self.require_version(V0_5, &fields, "name");
        }
        self.check_annotations(&mut fields)?;
        let edits = self.read_edits(&mut fields)?;
        let edits =
            edits.ok_or_else(|| fields.wrong_field("containerEdits", "must not be empty"))?;
        fields.expect_empty()?;
        Ok((name, edits))
    }

    /// Reads `containerEdits`; `None` if there are none.
    fn read_edits(&mut self, of: &mut RemainingFields<'_>) -> Result<Option<CdiEdits>, WrongValue> {
        let name = "containerEdits";
        let Some(value) = of.take_field(name) else {
            return Ok(None);
        };
        let path = of.field_path(name);
        let mut fields = RemainingFields::from_value(value, &path)?.with_max_text_bytes(MAX_TEXT);
        let mut edits = CdiEdits {
            env: read_variables(&mut fields)?,
            ..CdiEdits::default()
        };
        for (value, path) in list_with_paths(&mut fields, "deviceNodes")? {
            edits.nodes.push(self.read_device_node(value, &path)?);
        }
        for (value, path) in list_with_paths(&mut fields, "mounts")? {
            edits.mounts.push(self.read_mount(value, &path)?);
        }
        for (value, path) in list_with_paths(&mut fields, "hooks")? {
            edits.hooks.push(read_hook(value, &path)?);
        }
        for (n, value) in fields.take_list("additionalGids")?.iter().enumerate() {
            self.require_version(V0_7, &fields, "additionalGids");
            let name = format!("additionalGids[{n}]");
            let gid = fields.number_of_value(&name, value, 0, u32::MAX)?;
            edits.gids.push(gid);
        }
        if let Some(value) = fields.take_field("intelRdt") {
            self.require_version(V0_7, &fields, "intelRdt");
            self.check_intel_rdt(value, &fields.field_path("intelRdt"))?;
            edits.impossible = Some("intelRdt");
        }
        if check_net_devices(&mut fields)? {
            self.require_version(V1_1, &fields, "netDevices");
            edits.impossible = Some("netDevices");
        }
        fields.expect_empty()?;
        Ok((edit_count(&edits) > 0 || edits.impossible.is_some()).then_some(edits))
    }

    fn read_device_node(&mut self, value: Value, path: &str) -> Result<DeviceNode, WrongValue> {
        let mut fields = RemainingFields::from_value(value, path)?.with_max_text_bytes(MAX_TEXT);
        let path = read_absolute_path(&mut fields, "path")?;
        let host_path = match &*fields.take_text("hostPath")? {
            "" => path.clone(),
            written => {
                self.require_version(V0_5, &fields, "hostPath");
                check_absolute_path(&fields, "hostPath", written.to_owned())?
            }
        };
        let kind = fields.take_text("type")?;
        let kind = match &*kind {
            // `u` is another word for a character device.
            "u" => "c",
            "" | "b" | "c" | "p" => &*kind,
            _ => {
                return Err(
                    fields.wrong_field("type", format!("is {kind:?}, must be b, c, u or p"))
                );
            }
        };
        let mut number = |name| fields.take_number(name, 0, u32::MAX);
        let (major, minor) = (number("major")?, number("minor")?);
        let (uid, gid) = (number("uid")?, number("gid")?);
        let permissions = fields.take_text("permissions")?;
        let access = match &*permissions {
            "" => "rwm".to_owned(),
            "none" => String::new(),
            some if some.chars().all(|c| "rwm".contains(c)) => {
                "rwm".chars().filter(|c| some.contains(*c)).collect()
            }
            _ => {
                let message = format!("is {permissions:?}, must be letters of \"rwm\", or none");
                return Err(fields.wrong_field("permissions", message));
            }
        };
        let device = OciDevice {
            kind: kind.to_owned(),
            path,
            major: major.unwrap_or(0).into(),
            minor: minor.unwrap_or(0).into(),
            file_mode: read_permission_bits(&mut fields)?,
            uid,
            gid,
        };
        fields.expect_empty()?;
        Ok(DeviceNode {
            device,
            host_path,
            access,
            seen: HostNodeLookup::Not,
        })
    }

    fn read_mount(&mut self, value: Value, path: &str) -> Result<Mount, WrongValue> {
        let mut fields = RemainingFields::from_value(value, path)?.with_max_text_bytes(MAX_TEXT);
        let kind = fields.take_text("type")?;
        if !kind.is_empty() {
            self.require_version(V0_4, &fields, "type");
        }
        // For a file system without a device `hostPath` is a name.
        let source = match matches!(&*kind, "" | "bind" | "none") {
            true => read_absolute_path(&mut fields, "hostPath")?,
            false => fields.take_text("hostPath")?,
        };
        if source.is_empty() || source.contains('\0') {
            return Err(fields.wrong_field("hostPath", "is missing"));
        }
        let mount = Mount {
            destination: read_absolute_path(&mut fields, "containerPath")?,
            kind,
            source,
            options: fields.take_texts("options")?,
            ..Mount::default()
        };
        fields.expect_empty()?;
        Ok(mount)
    }

    /// Checks `intelRdt`. It has no effect here, but a mistake in it makes the file invalid.
    fn check_intel_rdt(&mut self, value: Value, path: &str) -> Result<(), WrongValue> {
        let mut fields = RemainingFields::from_value(value, path)?.with_max_text_bytes(MAX_TEXT);
        for name in ["closID", "l3CacheSchema", "memBwSchema"] {
            fields.take_text(name)?;
        }
        if fields.has_field("schemata") {
            self.require_version(V1_1, &fields, "schemata");
        }
        fields.take_texts("schemata")?;
        if fields.take_flag("enableMonitoring", false)? {
            self.require_version(V1_1, &fields, "enableMonitoring");
        }
        fields.expect_empty()
    }
}

/// The entries of a list with their paths.
fn list_with_paths(
    fields: &mut RemainingFields<'_>,
    name: &str,
) -> Result<Vec<(Value, String)>, WrongValue> {
    let path = fields.field_path(name);
    let all = fields.take_list(name)?.into_iter().enumerate();
    Ok(all
        .map(|(n, value)| (value, format!("{path}[{n}]")))
        .collect())
}

fn read_absolute_path(fields: &mut RemainingFields<'_>, name: &str) -> Result<String, WrongValue> {
    let path = fields.take_text(name)?;
    check_absolute_path(fields, name, path)
}

fn check_absolute_path(
    fields: &RemainingFields<'_>,
    name: &str,
    path: String,
) -> Result<String, WrongValue> {
    match path.starts_with('/') && !path.contains('\0') {
        true => Ok(path),
        false => Err(fields.wrong_field(name, format!("is {path:?}, must be an absolute path"))),
    }
}

fn read_variables(fields: &mut RemainingFields<'_>) -> Result<Vec<String>, WrongValue> {
    let all = fields.take_texts("env")?;
    let is_wrong = |text: &String| text.find('=').unwrap_or(0) == 0 || text.contains('\0');
    match all.iter().position(is_wrong) {
        None => Ok(all),
        // The value may be a secret, so it is not in the error.
        Some(n) => Err(fields.wrong_field(&format!("env[{n}]"), "must be such as NAME=value")),
    }
}

/// Permission bits. The YAML reader gives 0660 as a text.
fn read_permission_bits(fields: &mut RemainingFields<'_>) -> Result<Option<u32>, WrongValue> {
    let name = "fileMode";
    let Some(value) = fields.take_field(name) else {
        return Ok(None);
    };
    let octal = value.as_str().filter(|text| text.starts_with('0'));
    let mode = match octal.and_then(|text| u32::from_str_radix(text, 8).ok()) {
        Some(mode) => mode,
        None => fields.number_of_value(name, &value, 0, u32::MAX)?,
    };
    // Other bits may tell the kind of the file.
    Ok(Some(mode & 0o7777))
}

fn read_hook(value: Value, path: &str) -> Result<(Box<str>, Hook), WrongValue> {
    let mut fields = RemainingFields::from_value(value, path)?.with_max_text_bytes(MAX_TEXT);
    let name = fields.take_text("hookName")?;
    if !HOOKS.contains(&&*name) {
        let message = format!("is {name:?}, must be one of {}", HOOKS.join(", "));
        return Err(fields.wrong_field("hookName", message));
    }
    let hook = Hook {
        path: read_absolute_path(&mut fields, "path")?,
        args: fields.take_texts("args")?,
        env: read_variables(&mut fields)?,
        timeout: fields.take_number("timeout", 1, i32::MAX.unsigned_abs())?,
    };
    fields.expect_empty()?;
    Ok((name.into(), hook))
}

/// Checks network devices, and returns true if there are any. They have no effect here.
fn check_net_devices(fields: &mut RemainingFields<'_>) -> Result<bool, WrongValue> {
    let all = list_with_paths(fields, "netDevices")?;
    let any = !all.is_empty();
    let mut taken = BTreeSet::new();
    for (value, path) in all {
        let mut fields = RemainingFields::from_value(value, &path)?.with_max_text_bytes(MAX_TEXT);
        for field in ["hostInterfaceName", "name"] {
            let name = fields.take_text(field)?;
            if name.is_empty() {
                return Err(fields.wrong_field(field, "is missing"));
            }
            if !taken.insert((field, name.clone())) {
                return Err(fields.wrong_field(field, format!("{name:?} is there twice")));
            }
        }
        fields.expect_empty()?;
    }
    Ok(any)
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString as _;

    use serde_json::json;

    use super::*;

    /// A file of one device with these edits.
    fn file(version: &str, edits: &Value) -> Value {
        json!({
            "cdiVersion": version,
            "kind": "vendor.com/class",
            "devices": [{"name": "one", "containerEdits": edits}],
        })
    }

    fn edits(value: &Value) -> CdiEdits {
        let mut file = read_cdi_file(file("1.1.0", value), &|_| true).expect("valid");
        file.devices.remove(0).1
    }

    fn wrong(value: &Value) -> String {
        read_cdi_file(value.clone(), &|_| true)
            .expect_err("wrong")
            .to_string()
    }

    #[test]
    fn what_a_file_says() {
        // CDI-02
        let value = json!({
            "cdiVersion": "v0.6.0",
            "kind": "vendor.com/a.class",
            "annotations": {"note": "x"},
            "containerEdits": {"env": ["ALL=1"]},
            "devices": [
                {"name": "0", "annotations": {}, "containerEdits": {"env": ["A=b=c"]}},
                {"name": "a-b_c.d:e", "containerEdits": {"mounts": [{"hostPath": "/a", "containerPath": "/b"}]}},
                {"name": "z", "containerEdits": {"hooks": [{"hookName": "poststop", "path": "/bin/a", "timeout": 1}]}},
            ],
        });
        let file = read_named_devices(
            value.clone(),
            &["vendor.com/a.class=0".into(), "vendor.com/a.class=z".into()],
        );
        let file = file.expect("valid");
        assert_eq!(file.common.env, ["ALL=1"]);
        let names: Vec<&str> = file.devices.iter().map(|(name, _)| &**name).collect();
        assert_eq!(names, ["vendor.com/a.class=0", "vendor.com/a.class=z"]);
        assert_eq!(file.devices[0].1.env, ["A=b=c"]);
        let (name, hook) = &file.devices[1].1.hooks[0];
        assert_eq!(
            (&**name, &*hook.path, hook.timeout),
            ("poststop", "/bin/a", Some(1))
        );
        assert!(
            read_named_devices(value, &[])
                .expect("valid")
                .devices
                .is_empty()
        );
    }

    #[test]
    fn nodes_as_they_are_written() {
        // CDI-05
        let all = edits(&json!({"deviceNodes": [
            {"path": "/dev/a"},
            {"path": "/dev/b", "hostPath": "/dev/x", "type": "u", "major": 5, "minor": 6, "fileMode": 8630,
             "permissions": "mr", "uid": 0, "gid": 7},
            {"path": "/dev/c", "type": "p", "permissions": "none", "fileMode": "0660"},
        ]}));
        let [plain, full, fifo] = &*all.nodes else {
            panic!("three");
        };
        assert_eq!(
            (&*plain.host_path, &*plain.access, &*plain.device.kind),
            ("/dev/a", "rwm", "")
        );
        let device = &full.device;
        assert_eq!(
            (&*full.host_path, &*full.access, &*device.kind),
            ("/dev/x", "rm", "c")
        );
        assert_eq!((device.major, device.minor), (5, 6));
        assert_eq!(
            (device.file_mode, device.uid, device.gid),
            (Some(0o666), Some(0), Some(7))
        );
        assert_eq!((&*fifo.access, fifo.device.file_mode), ("", Some(0o660)));
    }

    #[test]
    fn what_is_wrong_is_named() {
        // CDI-02 CDI-07
        let whole = file("0.3.0", &json!({"env": ["A=b"]}));
        let changed = |name: &str, value: Value| {
            let mut file = whole.clone();
            file[name] = value;
            file
        };
        let named = |name: &str| {
            changed(
                "devices",
                json!([{"name": name, "containerEdits": {"env": ["A=b"]}}]),
            )
        };
        let one = |name: &str, value: Value| file("1.1.0", &json!({name: [value]}));
        assert!(read_cdi_file(whole.clone(), &|_| true).is_ok());
        for (value, says) in [
            (json!([]), ".: must have fields"),
            (
                json!({}),
                "cdiVersion: is \"\", must be one of 0.3.0, 0.4.0",
            ),
            (
                changed("cdiVersion", json!("0.2.0")),
                "cdiVersion: is \"0.2.0\", must be one of",
            ),
            (
                changed("cdiVersion", json!(1)),
                "cdiVersion: is 1, must be a text",
            ),
            (
                changed("kind", json!("vendor.com")),
                "kind: is \"vendor.com\", must be such as",
            ),
            (changed("kind", json!("vendor.com/a/b")), "kind: is"),
            (changed("kind", json!("0.com/a")), "kind: is"),
            (changed("kind", json!("a-/b")), "kind: is"),
            (
                changed("kind", json!(format!("{}/a", "v".repeat(254)))),
                "kind: is",
            ),
            (changed("extra", json!(1)), "extra: is not known"),
            (
                changed("annotations", json!({"a": 1})),
                "annotations: must have texts",
            ),
            (
                changed("devices", json!([])),
                "devices: must have at least one",
            ),
            (changed("devices", json!({})), "devices: must be a list"),
            (
                changed("devices", json!([{"name": "a"}])),
                "devices[0].containerEdits: must not be empty",
            ),
            (
                changed(
                    "devices",
                    json!([{"name": "a", "containerEdits": {"env": []}}]),
                ),
                "devices[0].containerEdits: must not be empty",
            ),
            (
                changed(
                    "devices",
                    json!([{"name": "a", "containerEdits": {"env": ["A="]}, "x": 1}]),
                ),
                "devices[0].x: is not known",
            ),
            (
                changed(
                    "devices",
                    json!([
                        {"name": "a", "containerEdits": {"env": ["A="]}},
                        {"name": "a", "containerEdits": {"env": ["A="]}},
                    ]),
                ),
                "devices[1].name: vendor.com/class=a is there twice",
            ),
            (named(""), "devices[0].name: is \"\", must be letters"),
            (named("-a"), "devices[0].name: is \"-a\""),
            (named("a:"), "devices[0].name: is \"a:\""),
            (named("a b"), "devices[0].name: is \"a b\""),
            (
                changed("containerEdits", json!({"devices": []})),
                "containerEdits.devices: is not known",
            ),
            (
                one("env", json!("=a")),
                "devices[0].containerEdits.env[0]: must be such as NAME=value",
            ),
            (one("env", json!("a")), "env[0]: must be such as"),
            (one("env", json!(1)), "env[0]: is 1, must be a text"),
            (
                one("deviceNodes", json!({})),
                "deviceNodes[0].path: is \"\", must be an absolute path",
            ),
            (
                one("deviceNodes", json!({"path": "/a", "hostPath": "b"})),
                "deviceNodes[0].hostPath: is \"b\"",
            ),
            (
                one("deviceNodes", json!({"path": "/a", "type": "x"})),
                "deviceNodes[0].type: is \"x\", must be b, c, u or p",
            ),
            (
                one("deviceNodes", json!({"path": "/a", "major": -1})),
                "deviceNodes[0].major: is -1",
            ),
            (
                one("deviceNodes", json!({"path": "/a", "permissions": "rx"})),
                "deviceNodes[0].permissions: is \"rx\"",
            ),
            (
                one("deviceNodes", json!({"path": "/a", "fileMode": "rw"})),
                "deviceNodes[0].fileMode: is \"rw\"",
            ),
            (
                one("deviceNodes", json!({"path": "/a", "x": 1})),
                "deviceNodes[0].x: is not known",
            ),
            (
                one("mounts", json!({"containerPath": "/a"})),
                "mounts[0].hostPath: is \"\"",
            ),
            (
                one(
                    "mounts",
                    json!({"hostPath": "a", "containerPath": "/a", "type": "bind"}),
                ),
                "mounts[0].hostPath: is \"a\"",
            ),
            (
                one("mounts", json!({"hostPath": "/a", "containerPath": "a"})),
                "mounts[0].containerPath: is \"a\"",
            ),
            (
                one(
                    "mounts",
                    json!({"hostPath": "/a", "containerPath": "/a", "options": "ro"}),
                ),
                "mounts[0].options: must be a list",
            ),
            (
                one("hooks", json!({"hookName": "late", "path": "/a"})),
                "hooks[0].hookName: is \"late\", must be one of prestart",
            ),
            (
                one("hooks", json!({"hookName": "prestart", "path": "a"})),
                "hooks[0].path: is \"a\"",
            ),
            (
                one(
                    "hooks",
                    json!({"hookName": "prestart", "path": "/a", "timeout": 0}),
                ),
                "hooks[0].timeout: is 0",
            ),
            (
                one(
                    "hooks",
                    json!({"hookName": "prestart", "path": "/a", "env": ["x"]}),
                ),
                "hooks[0].env[0]: must be such as",
            ),
            (one("additionalGids", json!(-1)), "additionalGids[0]: is -1"),
            (
                one("netDevices", json!({"hostInterfaceName": "a"})),
                "netDevices[0].name: is missing",
            ),
            (
                file(
                    "1.1.0",
                    &json!({"netDevices": [
                    {"hostInterfaceName": "a", "name": "b"}, {"hostInterfaceName": "a", "name": "c"}]}),
                ),
                "netDevices[1].hostInterfaceName: \"a\" is there twice",
            ),
            (
                file("1.1.0", &json!({"intelRdt": {"enableCMT": true}})),
                "intelRdt.enableCMT: is not known",
            ),
        ] {
            let error = wrong(&value);
            assert!(error.contains(says), "{value}: {error}");
        }
    }

    #[test]
    fn versions_of_what_is_there() {
        // CDI-02
        let mount = json!({"hostPath": "/a", "containerPath": "/a", "type": "bind"});
        let node = json!({"path": "/a", "hostPath": "/b"});
        let net = json!({"hostInterfaceName": "a", "name": "b"});
        for (edits, before, least) in [
            (json!({"mounts": [mount]}), "0.3.0", "0.4.0"),
            (json!({"deviceNodes": [node]}), "0.4.0", "0.5.0"),
            (json!({"additionalGids": [1]}), "0.6.0", "0.7.0"),
            (json!({"intelRdt": {"closID": "a"}}), "0.6.0", "0.7.0"),
            (json!({"intelRdt": {"schemata": []}}), "1.0.0", "1.1.0"),
            (json!({"netDevices": [net]}), "1.0.0", "1.1.0"),
        ] {
            let field = edits
                .as_object()
                .and_then(|e| e.keys().next())
                .expect("one");
            let error = wrong(&file(before, &edits));
            let says = format!(
                "cdiVersion: is {before:?}, must be at least {least} for devices[0].containerEdits.{field}"
            );
            assert!(error.starts_with(&says), "{error}");
            assert!(
                read_cdi_file(file(least, &edits), &|_| true).is_ok(),
                "{edits}"
            );
        }
        let edits = json!({"env": ["A=b"]});
        for (change, value, least) in [
            ("/kind", json!("vendor.com/a.b"), "0.6.0"),
            ("/devices/0/name", json!("0"), "0.5.0"),
            ("/annotations", json!({"a": "b"}), "0.6.0"),
            ("/devices/0/annotations", json!({"a": "b"}), "0.6.0"),
        ] {
            let mut file = file("0.4.0", &edits);
            file["annotations"] = json!({});
            file["devices"][0]["annotations"] = json!({});
            *file.pointer_mut(change).expect("there") = value;
            assert!(wrong(&file).contains(&format!("must be at least {least} for")));
            file["cdiVersion"] = least.into();
            assert!(read_cdi_file(file.clone(), &|_| true).is_ok(), "{file}");
        }
    }

    #[test]
    fn what_has_no_effect_here_is_known() {
        // CDI-06
        let net = json!({"netDevices": [{"hostInterfaceName": "eth1", "name": "eth0"}]});
        assert_eq!(edits(&net).impossible, Some("netDevices"));
        assert_eq!(edits(&json!({"intelRdt": {}})).impossible, Some("intelRdt"));
        assert_eq!(edits(&json!({"additionalGids": [0]})).gids, [0]);
    }
}
