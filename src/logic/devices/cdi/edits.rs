//! Choice of the file for each device (CDI-03), and the changes to a container's configuration (CDI-04 to CDI-07).

use alloc::{collections::BTreeSet, string::String, vec::Vec};
use core::mem;

use crate::{
    api::{
        PodError,
        cdi::{CdiEdits, CdiFile, DeviceNode, HostNodeLookup},
        oci::{DeviceRule, OciDevice, Spec, may_mount_at},
        order::OrderExt as _,
    },
    devices::escape_message,
    oci::{sort_by_depth, trim_trailing_slashes},
};

/// Most invalid files that the error for an unknown device names.
const MAX_NAMED: usize = 4;
/// Variables, nodes, mounts, hooks and groups that one container gets.
const MAX_EDITS: usize = 4096;

/// Chooses among the files that have a device, by the numbers of their directories. The file in the last directory
/// counts if it is the only one there; its place in `dirs` is returned.
pub(crate) fn choose_file_by_dir(dirs: &[usize]) -> Option<usize> {
    let last = dirs.iter().max()?;
    let mut of_last = (0..dirs.len()).filter(|at| dirs[*at] == *last);
    of_last.next().filter(|_| of_last.next().is_none())
}

/// Collects the edits for devices of these names, in their order, from all files that have one of them. `skipped`:
/// errors of other files. `may_hook`: hooks may run.
///
/// - Errors: a name is in no file, or in two of one directory; an edit is not allowed, or not possible here.
pub fn resolve_edits(
    mut files: Vec<CdiFile>,
    names: &[String],
    skipped: &[String],
    may_hook: bool,
) -> Result<Vec<CdiEdits>, PodError> {
    let mut chosen = Vec::new();
    let mut unknown = Vec::new();
    for name in names {
        let mut places = Vec::new();
        for (n, file) in files.iter().enumerate() {
            let at = file.devices.iter().position(|(known, _)| known == name);
            places.extend(at.map(|at| (n, at)));
        }
        let dirs: Vec<usize> = places.iter().map(|(n, _)| files[*n].dir).collect();
        match choose_file_by_dir(&dirs) {
            Some(at) => chosen.push((name, places[at])),
            // Names come from plugins, which may say anything.
            None if places.is_empty() => unknown.push(escape_message(name)),
            None => {
                let all = places.iter().map(|(n, _)| &*files[*n].path);
                let all: Vec<&str> = all.collect();
                unknown.push(format!("{name} (it is in {})", all.join(" and in ")));
            }
        }
    }
    if !unknown.is_empty() {
        let mut text = format!("unresolvable CDI devices {}", unknown.join(", "));
        for wrong in skipped.iter().take(MAX_NAMED) {
            text.push_str("; not valid: ");
            text.push_str(wrong);
        }
        return Err(PodError::Node(text));
    }
    let mut done = Vec::new();
    let mut count = 0;
    let mut begun = BTreeSet::new();
    for (name, (n, at)) in chosen {
        let file = &mut files[n];
        let common = begun.insert(n).then(|| mem::take(&mut file.common));
        let own = mem::take(&mut file.devices[at].1);
        for mut edits in common.into_iter().chain([own]) {
            let path = &file.path;
            if let Some(field) = edits.impossible {
                return Err(PodError::Node(format!(
                    "CDI device {name}: {path} asks for {field}, which only a runtime that serves CRI may give"
                )));
            }
            if !may_hook && !edits.hooks.is_empty() {
                return Err(PodError::Node(format!(
                    "CDI device {name}: {path} has hooks, which run as root on the machine: picolet.cdiHooks is not set"
                )));
            }
            count += edit_count(&edits);
            if count > MAX_EDITS {
                return Err(PodError::Node(format!(
                    "CDI device {name}: {path}: more than {MAX_EDITS} variables, nodes, mounts, hooks and groups"
                )));
            }
            edits.file.clone_from(path);
            done.push(edits);
        }
    }
    Ok(done)
}

/// Number of variables, nodes, mounts, hooks and groups in the edits.
pub(super) const fn edit_count(edits: &CdiEdits) -> usize {
    let CdiEdits {
        env,
        nodes,
        mounts,
        hooks,
        gids,
        ..
    } = edits;
    env.len() + nodes.len() + mounts.len() + hooks.len() + gids.len()
}

/// Applies edits to a container's configuration, in this order, once the nodes were looked at.
///
/// - Errors: a node is not what it is to be. The configuration is of no use then.
pub fn apply_edits(spec: &mut Spec, all: Vec<CdiEdits>) -> Result<(), PodError> {
    let mut mounts = false;
    for edits in all {
        for variable in edits.env {
            set_variable(&mut spec.process.env, variable);
        }
        for node in edits.nodes {
            add_device_node(spec, node).map_err(|e| e.with_subject(&edits.file))?;
        }
        for mount in edits.mounts {
            if !may_mount_at(&mount.destination) {
                return Err(PodError::Node(format!(
                    "{}: nothing can be mounted at {:?}, which is inside /proc",
                    edits.file, mount.destination
                )));
            }
            // The rootfs propagation must be as open as the most open mount, or changes below that mount would not
            // arrive.
            let has = |one: &str| mount.options.iter().any(|option| option == one);
            let propagation = &mut spec.linux.rootfs_propagation;
            if has("rshared") || has("shared") {
                *propagation = "rshared".into();
            } else if propagation.is_empty() && (has("rslave") || has("slave")) {
                *propagation = "rslave".into();
            }
            let at = trim_trailing_slashes(&mount.destination);
            spec.mounts
                .retain(|known| trim_trailing_slashes(&known.destination) != at);
            spec.mounts.push(mount);
            mounts = true;
        }
        for (name, hook) in edits.hooks {
            spec.hooks.entry(name).or_default().push(hook);
        }
        let gids = &mut spec.process.user.additional_gids;
        gids.extend(edits.gids.into_iter().filter(|gid| *gid > 0));
        gids.stable_sort();
        gids.dedup();
    }
    if mounts {
        sort_by_depth(&mut spec.mounts);
    }
    Ok(())
}

/// Sets `NAME=value`; a variable of that name is replaced where it stands.
fn set_variable(env: &mut Vec<String>, variable: String) {
    let end = variable.find('=').map_or(variable.len(), |at| at + 1);
    let known = env.iter_mut().find(|v| v.starts_with(&variable[..end]));
    match known {
        Some(known) => *known = variable,
        None => env.push(variable),
    }
}

fn add_device_node(spec: &mut Spec, node: DeviceNode) -> Result<(), PodError> {
    let access = node.access.clone();
    let mut device = complete_node(node)?;
    let user = &spec.process.user;
    let [uid, gid] = [user.uid, user.gid].map(|id| Some(id).filter(|id| *id > 0));
    device.uid = device.uid.or(uid);
    device.gid = device.gid.or(gid);
    // A FIFO needs no rule, and runtimes accept no rule without letters.
    if device.kind != "p" && !access.is_empty() {
        spec.linux.resources.devices.push(DeviceRule {
            allow: true,
            kind: device.kind.clone(),
            major: Some(device.major),
            minor: Some(device.minor),
            access,
        });
    }
    let nodes = &mut spec.linux.devices;
    nodes.retain(|known| known.path != device.path);
    nodes.push(device);
    Ok(())
}

/// Completes a node with the values of the machine's device where the file gives none. The device is not needed if the
/// file gives the type and the major number.
fn complete_node(node: DeviceNode) -> Result<OciDevice, PodError> {
    let DeviceNode {
        mut device,
        host_path,
        seen,
        ..
    } = node;
    let is_told = !device.kind.is_empty() && (device.major > 0 || device.kind == "p");
    let seen = match seen {
        HostNodeLookup::Node(seen) => seen,
        HostNodeLookup::Not | HostNodeLookup::Wrong(_) if is_told => return Ok(device),
        HostNodeLookup::Not => return Err(PodError::Node(format!("device {host_path:?}"))),
        HostNodeLookup::Wrong(why) => {
            return Err(PodError::Node(format!("device {host_path:?}: {why}")));
        }
    };
    device.file_mode = device.file_mode.or(seen.file_mode);
    if is_told {
        return Ok(device);
    }
    if !device.kind.is_empty() && device.kind != seen.kind {
        return Err(PodError::Node(format!(
            "device {host_path:?}: is of type {}, must be of type {}",
            seen.kind, device.kind
        )));
    }
    if device.major == 0 {
        (device.major, device.minor) = (seen.major, seen.minor);
    }
    device.kind = seen.kind;
    Ok(device)
}

#[cfg(test)]
mod tests {
    use alloc::{borrow::ToOwned as _, string::ToString as _};

    use serde_json::{Value, json};

    use super::*;
    use crate::{
        api::oci::{Linux, Mount, Process, User},
        devices::cdi::read_named_devices,
    };

    const NAMES: [&str; 4] = ["v.com/c=a", "v.com/c=b", "v.com/c=c", "w.com/c=a"];

    fn names(all: &[&str]) -> Vec<String> {
        all.iter().map(|name| (*name).to_owned()).collect()
    }

    /// A file with devices of these names and their edits.
    fn file(
        path: &str,
        dir: usize,
        kind: &str,
        common: &str,
        devices: &[(&str, Value)],
    ) -> CdiFile {
        let devices = devices.iter();
        let devices = devices.map(|(name, edits)| json!({"name": name, "containerEdits": edits}));
        let value = json!({
            "cdiVersion": "1.1.0",
            "kind": kind,
            "containerEdits": {"env": [format!("COMMON={common}")]},
            "devices": devices.collect::<Vec<Value>>(),
        });
        let mut file = read_named_devices(value, &names(&NAMES)).expect("valid");
        file.path = path.into();
        file.dir = dir;
        file
    }

    fn env(text: &str) -> Value {
        json!({"env": [format!("A={text}")]})
    }

    fn resolved(files: &[CdiFile], wanted: &[&str]) -> Result<Vec<String>, String> {
        let all = resolve_edits(files.to_vec(), &names(wanted), &["/x: bad".into()], false);
        let all = all.map_err(|e| e.to_string())?;
        Ok(all.into_iter().flat_map(|edits| edits.env).collect())
    }

    #[test]
    fn which_file_counts() {
        // CDI-03
        for (dirs, at) in [
            (&[][..], None),
            (&[0], Some(0)),
            (&[0, 1], Some(1)),
            (&[1, 0], Some(0)),
            (&[1, 1], None),
            (&[0, 0, 2], Some(2)),
            (&[0, 2, 2], None),
        ] {
            assert_eq!(choose_file_by_dir(dirs), at, "{dirs:?}");
        }
        let files = [
            file(
                "/0/a",
                0,
                "v.com/c",
                "0a",
                &[("a", env("0a")), ("b", env("0b")), ("c", env("0c"))],
            ),
            file(
                "/1/a",
                1,
                "v.com/c",
                "1a",
                &[("a", env("1a")), ("c", env("1c"))],
            ),
            file("/1/b", 1, "v.com/c", "1b", &[("c", env("other"))]),
            file("/1/w", 1, "w.com/c", "1w", &[("a", env("w"))]),
        ];
        let ok = |all: &[&str]| Ok(names(all));
        // CDI-04: in the order of the names, what is common before the first device of a file.
        assert_eq!(
            resolved(&files, &["v.com/c=b", "w.com/c=a", "v.com/c=a"]),
            ok(&["COMMON=0a", "A=0b", "COMMON=1w", "A=w", "COMMON=1a", "A=1a"])
        );
        assert_eq!(
            resolved(&files[1..2], &["v.com/c=c", "v.com/c=a"]),
            ok(&["COMMON=1a", "A=1c", "A=1a"])
        );
        assert_eq!(
            resolved(&files, &["v.com/c=a", "v.com/c=none", "v.com/c=c", "\u{7}"]),
            Err(
                "unresolvable CDI devices v.com/c=none, v.com/c=c (it is in /0/a and in /1/a and in /1/b), \\u{7}; \
                 not valid: /x: bad"
                    .into()
            )
        );
        assert_eq!(resolved(&files, &[]), ok(&[]));
    }

    #[test]
    fn what_must_not_be() {
        // CDI-06 CDI-07
        let hooks = json!({"hooks": [{"hookName": "prestart", "path": "/bin/a"}]});
        let net = json!({"netDevices": [{"hostInterfaceName": "a", "name": "b"}]});
        let mut files = [file(
            "/0/a",
            0,
            "v.com/c",
            "x",
            &[("a", hooks), ("b", net), ("c", env("c"))],
        )];
        let refused = |files: &[CdiFile], name: &str, may_hook| {
            let all = resolve_edits(files.to_vec(), &names(&[name]), &[], may_hook);
            all.map(|_| ()).map_err(|e| e.to_string())
        };
        let text = "CDI device v.com/c=a: /0/a has hooks, which run as root on the machine: picolet.cdiHooks is not set";
        assert_eq!(refused(&files, "v.com/c=a", false), Err(text.into()));
        assert_eq!(refused(&files, "v.com/c=a", true), Ok(()));
        assert_eq!(refused(&files, "v.com/c=c", false), Ok(()));
        let text = "CDI device v.com/c=b: /0/a asks for netDevices, which only a runtime that serves CRI may give";
        assert_eq!(refused(&files, "v.com/c=b", true), Err(text.into()));
        // The common edits of a file count for each of its devices.
        files[0].common.hooks = files[0].devices[0].1.hooks.clone();
        assert!(refused(&files, "v.com/c=c", false).is_err());
        let many: Vec<String> = (0..MAX_EDITS).map(|n| format!("A{n}=")).collect();
        let many = [file(
            "/0/a",
            0,
            "v.com/c",
            "x",
            &[("a", json!({"env": many}))],
        )];
        assert!(refused(&many, "v.com/c=a", false).is_err_and(|e| e.contains("more than 4096")));
    }

    fn spec(uid: u32, gid: u32) -> Spec {
        let mount = |destination: &str| Mount {
            destination: destination.into(),
            ..Mount::default()
        };
        Spec {
            process: Process {
                user: User {
                    uid,
                    gid,
                    additional_gids: Vec::from([3, 9]),
                },
                env: names(&["PATH=/bin", "A=old", "AB=c"]),
                ..Process::default()
            },
            mounts: ["/proc", "/dev", "/dev/pts", "/etc/hosts", "/data/"]
                .map(mount)
                .into(),
            ..Spec::default()
        }
    }

    fn edits(value: &Value) -> CdiEdits {
        let mut file = file("/0/a", 0, "v.com/c", "x", &[("a", value.clone())]);
        file.devices.remove(0).1
    }

    fn node(value: &Value, seen: HostNodeLookup) -> CdiEdits {
        let mut edits = edits(&json!({"deviceNodes": [value]}));
        edits.nodes[0].seen = seen;
        edits.file = "/0/a".into();
        edits
    }

    fn there(kind: &str, major: i64, minor: i64) -> HostNodeLookup {
        HostNodeLookup::Node(OciDevice {
            kind: kind.into(),
            major,
            minor,
            file_mode: Some(0o640),
            ..OciDevice::default()
        })
    }

    #[test]
    fn nodes_and_their_rules() {
        // CDI-05
        let absent = || HostNodeLookup::Wrong("No such file".into());
        let given = |value: Value, seen| {
            let mut spec = spec(0, 0);
            apply_edits(&mut spec, [node(&value, seen)].into()).map_err(|e| e.to_string())?;
            let Linux {
                devices, resources, ..
            } = spec.linux;
            let device = &devices[0];
            let rule = resources.devices.first();
            let rule = rule.map(|r| (r.kind.clone(), r.major, r.minor, r.access.clone()));
            let shown = (
                device.kind.clone(),
                device.major,
                device.minor,
                device.file_mode,
            );
            Ok::<_, String>((shown, rule))
        };
        let c = || "c".to_owned();
        let rule =
            |major, minor, access: &str| Some((c(), Some(major), Some(minor), access.to_owned()));
        for (value, seen, want) in [
            (
                json!({"path": "/dev/a", "permissions": "wr"}),
                there("c", 5, 6),
                Ok(((c(), 5, 6, Some(0o640)), rule(5, 6, "rw"))),
            ),
            (
                json!({"path": "/dev/a", "type": "c", "fileMode": 0o600, "permissions": "none"}),
                there("c", 5, 6),
                Ok(((c(), 5, 6, Some(0o600)), None)),
            ),
            // Told as a whole: what is there does not matter, but for its mode.
            (
                json!({"path": "/dev/a", "type": "c", "major": 7}),
                there("b", 5, 6),
                Ok(((c(), 7, 0, Some(0o640)), rule(7, 0, "rwm"))),
            ),
            (
                json!({"path": "/dev/a", "type": "c", "major": 7, "minor": 8}),
                absent(),
                Ok(((c(), 7, 8, None), rule(7, 8, "rwm"))),
            ),
            (
                json!({"path": "/dev/a", "type": "p"}),
                absent(),
                Ok((("p".into(), 0, 0, None), None)),
            ),
            (
                json!({"path": "/dev/a", "type": "b"}),
                there("c", 5, 6),
                Err("/0/a: device \"/dev/a\": is of type c, must be of type b".to_owned()),
            ),
            (
                json!({"path": "/dev/a", "major": 7}),
                absent(),
                Err("/0/a: device \"/dev/a\": No such file".to_owned()),
            ),
        ] {
            assert_eq!(given(value.clone(), seen), want, "{value}");
        }
    }

    #[test]
    fn owners_of_nodes() {
        // CDI-05
        for (value, user, want) in [
            (json!({"path": "/dev/a"}), (0, 0), (None, None)),
            (json!({"path": "/dev/a"}), (10, 20), (Some(10), Some(20))),
            (
                json!({"path": "/dev/a", "uid": 0, "gid": 5}),
                (10, 20),
                (Some(0), Some(5)),
            ),
        ] {
            let mut spec = spec(user.0, user.1);
            spec.linux.devices.push(OciDevice {
                path: "/dev/a".into(),
                major: 99,
                ..OciDevice::default()
            });
            apply_edits(&mut spec, [node(&value, there("c", 5, 6))].into()).expect("done");
            // A node with the same path replaces the first.
            let [device] = &*spec.linux.devices else {
                panic!("one: {:?}", spec.linux.devices);
            };
            assert_eq!((device.uid, device.gid), want, "{value}");
        }
    }

    #[test]
    fn mounts_variables_groups_and_hooks() {
        // CDI-05 CDI-06 CDI-07
        let mount = |at: &str, options: &[&str]| json!({"hostPath": "/x", "containerPath": at, "options": options});
        let one = edits(&json!({
            "env": ["A=new", "B=1"],
            "additionalGids": [0, 5, 3],
            "mounts": [mount("/usr/lib/x", &["ro", "bind"]), mount("/data", &["bind", "rslave"]), mount("/opt", &[])],
            "hooks": [{"hookName": "prestart", "path": "/bin/a", "args": ["a"], "env": ["E=1"], "timeout": 3},
                      {"hookName": "poststop", "path": "/bin/b"}],
        }));
        let two = edits(&json!({
            "env": ["B=2"],
            "hooks": [{"hookName": "prestart", "path": "/bin/c"}],
        }));
        let mut spec = spec(1, 1);
        apply_edits(&mut spec, [one, two].into()).expect("done");
        assert_eq!(spec.process.env, ["PATH=/bin", "A=new", "AB=c", "B=2"]);
        assert_eq!(spec.process.user.additional_gids, [3, 5, 9]);
        let at: Vec<(&str, &str)> = spec
            .mounts
            .iter()
            .map(|m| (&*m.destination, &*m.source))
            .collect();
        assert_eq!(
            at,
            [
                ("/proc", ""),
                ("/dev", ""),
                ("/data", "/x"),
                ("/opt", "/x"),
                ("/dev/pts", ""),
                ("/etc/hosts", ""),
                ("/usr/lib/x", "/x"),
            ]
        );
        assert_eq!(spec.linux.rootfs_propagation, "rslave");
        let written = serde_json::to_value(&spec).expect("json");
        assert_eq!(
            written["hooks"],
            json!({
                "prestart": [{"path": "/bin/a", "args": ["a"], "env": ["E=1"], "timeout": 3}, {"path": "/bin/c"}],
                "poststop": [{"path": "/bin/b"}],
            })
        );
        let hidden = edits(&json!({"mounts": [mount("/proc/self/attr", &[])]}));
        let refused = apply_edits(&mut spec, [hidden].into()).expect_err("inside /proc");
        assert!(
            format!("{refused}").contains(r#"at "/proc/self/attr""#),
            "{refused}"
        );
        // A container without such devices has no word of it.
        let mut spec = self::spec(1, 1);
        let before = spec.clone();
        apply_edits(&mut spec, Vec::new()).expect("done");
        assert_eq!(spec, before);
        assert!(
            serde_json::to_value(&spec)
                .expect("json")
                .get("hooks")
                .is_none()
        );
    }
}
