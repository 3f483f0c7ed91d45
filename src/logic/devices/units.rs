//! Units with lasting ids, from a look at the machine (DEV-31 to DEV-36), and the nodes that a container gets of a
//! unit.

use alloc::{
    borrow::ToOwned as _, boxed::Box, collections::BTreeSet, format, string::String, vec::Vec,
};

use super::{
    DeclaredDevices, DeviceEntry, MAX_UNITS, ReplugPolicy,
    cdi::choose_file_by_dir,
    declared::{DevicePattern, EntryAlternative, matches_cdi_device},
    glob,
    table::FoundUnit,
};
use crate::{
    api::{
        PodError,
        cri::{ContainerDeviceNode, ContainerMount},
        device::{DeviceNumber, HostDeviceNode, LiveDeviceRecord, MachineDevices},
        order::OrderExt as _,
    },
    extended_resources::HeldUnits,
    fnv::fnv1a,
};

/// Directory in which a node's last name component alone is not unique.
const USB_NODES: &str = "/dev/bus/usb/";

/// Unit of an entry that is here.
struct MachineUnit<'a> {
    id: String,
    parts: Vec<UnitPart<'a>>,
}

impl<'a> MachineUnit<'a> {
    fn nodes(&self) -> impl Iterator<Item = &'a HostDeviceNode> {
        nodes_of_parts(&self.parts)
    }
}

/// Part of a unit: a node or a CDI device.
#[derive(Clone, Copy)]
enum UnitPart<'a> {
    Node(&'a HostDeviceNode),
    /// A CDI device, by its qualified name. Its file says what is given for it.
    Cdi(&'a str),
}

impl<'a> UnitPart<'a> {
    const fn display_name(&self) -> &'a str {
        match self {
            Self::Node(node) => node.name.as_str(),
            Self::Cdi(name) => name,
        }
    }

    /// Key that identifies the part. Another name of the same node has the same key.
    fn identity_key(&self) -> (Option<DeviceNumber>, &'a str) {
        match self {
            Self::Node(node) => (Some(node_number(node)), ""),
            Self::Cdi(name) => (None, name),
        }
    }
}

fn nodes_of_parts<'a>(parts: &[UnitPart<'a>]) -> impl Iterator<Item = &'a HostDeviceNode> {
    parts.iter().filter_map(|part| match part {
        UnitPart::Node(node) => Some(*node),
        UnitPart::Cdi(_) => None,
    })
}

/// Finds the units of each entry that are here, in the order of the entries. All entries together have at most
/// [`MAX_UNITS`]; the first ones win.
#[must_use]
pub fn find_units(declared: &DeclaredDevices, seen: &MachineDevices) -> Vec<Vec<FoundUnit>> {
    let mut room = MAX_UNITS;
    let all = declared.entries.iter();
    all.map(|entry| {
        let mut found = find_entry_units(entry, seen);
        found.truncate(room);
        room -= found.len();
        let found = found.iter();
        found
            .map(|unit| FoundUnit {
                id: unit.id.as_str().into(),
                nodes: part_names(&unit.parts).join(",").into(),
                mark: hash_nodes(&unit.parts),
                numbers: unit.nodes().map(node_number).collect(),
            })
            .collect()
    })
    .collect()
}

/// Devices that a container gets for the units it holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GivenDevices {
    /// Nodes, in the order of the resources' names.
    pub nodes: Vec<ContainerDeviceNode>,
    /// Environment variables that name the nodes.
    pub env: Vec<(String, String)>,
    /// Mounts.
    pub mounts: Vec<ContainerMount>,
    /// Annotations, for the runtime.
    pub annotations: Vec<(String, String)>,
    /// Names of CDI devices.
    pub cdi_devices: Vec<String>,
    /// Nodes that come and go while the container runs.
    pub live: Vec<LiveUnits>,
}

/// Units of one resource whose nodes come and go while the container runs (DEV-44).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveUnits {
    /// Resource.
    pub resource: Box<str>,
    /// Ids of the units that the container holds.
    pub ids: Vec<Box<str>>,
    /// The directory in the container.
    pub container_path: String,
    /// Letters of `rwm`.
    pub permissions: String,
    /// Group of the nodes; `None`: that of the process.
    pub gid: Option<u32>,
    /// Nodes of now; their paths are relative to `container_path`.
    pub nodes: Vec<ContainerDeviceNode>,
}

/// Computes what `container` gets for the units that its pod holds, as they are seen now (DEV-41). The numbers of the
/// nodes are those of that look: whoever opens a node checks that it still has them.
///
/// - Errors: a unit is not here, or its resource is no longer declared.
pub fn compute_given_devices(
    declared: &DeclaredDevices,
    seen: &MachineDevices,
    held: &[HeldUnits],
    container: &str,
) -> Result<GivenDevices, PodError> {
    let mut given = GivenDevices::default();
    let own = held.iter().filter(|h| *h.container == *container);
    // A plugin's units give what its answer says.
    let mut own: Vec<&HeldUnits> = own.filter(|h| !h.plugin).collect();
    own.stable_sort_by(|a, b| a.resource.cmp(&b.resource));
    for held in own {
        let resource = &held.resource;
        let entry = declared
            .find_entry(resource)
            .ok_or_else(|| PodError::Node(format!("{resource} is no longer in picolet.devices")))?;
        let found = find_entry_units(entry, seen);
        // A unit may be held more than once; its nodes are given once.
        let ids: BTreeSet<&str> = held.ids.iter().map(|id| &**id).collect();
        if entry.live {
            for id in &ids {
                find_present_unit(&found, id, resource)?;
            }
            if !entry.env.is_empty() {
                let at = entry.container_path.clone();
                given.env.push((entry.env.clone(), at));
            }
            let (nodes, clash) = nodes_in_live_dir(entry, &found, &held.ids);
            if let Some([first, second]) = clash {
                return Err(PodError::Node(format!(
                    "{first} and {second} have one name in the directory of {resource}"
                )));
            }
            given.live.push(LiveUnits {
                resource: resource.clone(),
                ids: ids.into_iter().map(Into::into).collect(),
                container_path: entry.container_path.clone(),
                permissions: entry.permissions.clone(),
                gid: entry.gid,
                nodes,
            });
            continue;
        }
        let mut paths = Vec::new();
        for id in ids {
            for part in &find_present_unit(&found, id, resource)?.parts {
                let node = match part {
                    UnitPart::Node(node) => node,
                    UnitPart::Cdi(name) => {
                        given.cdi_devices.push((*name).to_owned());
                        continue;
                    }
                };
                let container_path = match (&*entry.container_path, paths.len()) {
                    ("", _) => node.name.clone(),
                    (path, 0) => path.to_owned(),
                    (path, more) => format!("{path}.{more}"),
                };
                paths.push(container_path.clone());
                given
                    .nodes
                    .push(container_device(entry, node, container_path));
            }
        }
        if !entry.env.is_empty() {
            given.env.push((entry.env.clone(), paths.join(",")));
        }
    }
    let mut taken = BTreeSet::new();
    given
        .nodes
        .retain(|node| taken.insert(node.container_path.clone()));
    Ok(given)
}

/// Nodes that a running container has now, of the units that it holds (DEV-44).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerLiveNodes {
    /// Nodes that the container can use; units that are away have none.
    pub nodes: Vec<ContainerDeviceNode>,
    /// Set if the container must be restarted: there are other nodes, which it can use only then.
    pub restart: bool,
}

/// Computes the nodes that a running container has now. `None`: the resource has no live entry.
#[must_use]
pub fn compute_live_nodes(
    declared: &DeclaredDevices,
    seen: &MachineDevices,
    kept: &LiveDeviceRecord,
) -> Option<ContainerLiveNodes> {
    let entry = declared.find_live_entry(&kept.resource)?;
    let (all, _) = nodes_in_live_dir(entry, &find_entry_units(entry, seen), &kept.ids);
    let all = all.into_iter();
    let is_usable = |node: &ContainerDeviceNode| kept.majors.contains(&(node.block, node.major));
    let (nodes, others): (Vec<_>, Vec<_>) = all.partition(is_usable);
    Some(ContainerLiveNodes {
        nodes,
        restart: !others.is_empty() && entry.on_replug != ReplugPolicy::Leave,
    })
}

/// Lists the nodes of these units by their paths in the directory of a live entry. A node below [`USB_NODES`] keeps its
/// path there, any other node the last component of its name.
///
/// - Errors: two nodes have one path; their paths on the machine.
fn nodes_in_live_dir(
    entry: &DeviceEntry,
    found: &[MachineUnit<'_>],
    ids: &[Box<str>],
) -> (Vec<ContainerDeviceNode>, Option<[String; 2]>) {
    let held = found
        .iter()
        .filter(|unit| ids.iter().any(|id| **id == *unit.id));
    let (mut nodes, mut clash) = (Vec::<ContainerDeviceNode>::new(), None);
    for node in held.flat_map(MachineUnit::nodes) {
        let on_usb = node.name.strip_prefix(USB_NODES);
        let path = on_usb.or_else(|| node.name.rsplit('/').next());
        let path = path.unwrap_or("");
        match nodes.iter().find(|known| known.container_path == path) {
            Some(known) => clash = Some([known.host_path.clone(), node.path.clone()]),
            None => nodes.push(container_device(entry, node, path.to_owned())),
        }
    }
    (nodes, clash)
}

fn find_present_unit<'a, 'b>(
    found: &'b [MachineUnit<'a>],
    id: &str,
    resource: &str,
) -> Result<&'b MachineUnit<'a>, PodError> {
    let unit = found.iter().find(|unit| unit.id == id);
    unit.ok_or_else(|| PodError::Node(format!("device {id} of {resource} is not here")))
}

fn container_device(
    entry: &DeviceEntry,
    node: &HostDeviceNode,
    container_path: String,
) -> ContainerDeviceNode {
    ContainerDeviceNode {
        container_path,
        host_path: node.path.clone(),
        permissions: entry.permissions.clone(),
        block: node.block,
        major: node.major,
        minor: node.minor,
        gid: entry.gid,
        mode: entry.mode,
    }
}

fn part_names<'a>(parts: &[UnitPart<'a>]) -> Vec<&'a str> {
    parts.iter().map(UnitPart::display_name).collect()
}

fn node_number(node: &HostDeviceNode) -> DeviceNumber {
    (node.block, node.major, node.minor)
}

/// Hash of the nodes. If it changes, whoever has opened the nodes cannot go on with them. The name does not count: udev
/// may make a link to the node a moment later.
fn hash_nodes(parts: &[UnitPart<'_>]) -> u64 {
    let text = |node: &HostDeviceNode| {
        let HostDeviceNode {
            path,
            block,
            major,
            minor,
            ..
        } = node;
        format!("{path} {block} {major}:{minor}\n")
    };
    fnv1a(nodes_of_parts(parts).map(text).collect::<String>().bytes())
}

/// Finds the units of an entry, in the order of its alternatives and of the names of their nodes. A node that one
/// alternative has found is not given again by a later one: the first alternative defines the unit, even if a later one
/// has more nodes of it.
fn find_entry_units<'a>(entry: &DeviceEntry, seen: &'a MachineDevices) -> Vec<MachineUnit<'a>> {
    let mut sets: Vec<Vec<UnitPart<'a>>> = Vec::new();
    let mut taken = BTreeSet::new();
    for alternative in &entry.matches {
        let first = sets.len();
        let mut known = BTreeSet::new();
        let all = match_alternative(alternative, seen).into_iter();
        sets.extend(all.filter(|parts| {
            let keys: Vec<_> = parts.iter().map(UnitPart::identity_key).collect();
            // A node may have two names of one pattern. Members of a group may be in several units of it.
            let is_new = !keys.iter().any(|key| taken.contains(key));
            is_new && !keys.is_empty() && known.insert(keys)
        }));
        taken.extend(sets[first..].iter().flatten().map(UnitPart::identity_key));
    }
    sets.truncate(MAX_UNITS);
    assign_unit_ids(sets, entry.changes_product())
}

/// Finds the units of one alternative: the parts of each.
fn match_alternative<'a>(
    alternative: &EntryAlternative,
    seen: &'a MachineDevices,
) -> Vec<Vec<UnitPart<'a>>> {
    let members = match alternative {
        EntryAlternative::Each(what) => return match_pattern(what, seen),
        EntryAlternative::Group(members) => members,
    };
    let matches: Vec<_> = members
        .iter()
        .map(|m| match_pattern(&m.what, seen))
        .collect();
    let most = |at: usize| {
        let limit = usize::try_from(members[at].limit).unwrap_or(usize::MAX);
        matches[at].len().saturating_mul(limit)
    };
    let required = (0..members.len()).filter(|at| !members[*at].optional);
    let count = required.map(most).min().unwrap_or(0).min(MAX_UNITS);
    let unit = |n: usize| {
        let members = (0..members.len()).filter(|at| n < most(*at));
        members
            .flat_map(|at| matches[at][n % matches[at].len()].iter().copied())
            .collect()
    };
    (0..count).map(unit).collect()
}

/// Finds the devices of one pattern. Each item is given as a whole.
fn match_pattern<'a>(what: &DevicePattern, seen: &'a MachineDevices) -> Vec<Vec<UnitPart<'a>>> {
    let alone = |node| Vec::from([UnitPart::Node(node)]);
    match what {
        DevicePattern::Path(pattern) => {
            let all = seen.nodes.iter();
            let found = all.filter(|node| glob::matches_path(pattern, &node.name));
            found.map(alone).collect()
        }
        DevicePattern::Usb(usb) => {
            let mut sets = Vec::new();
            for device in seen.usb.iter().filter(|d| usb.matches_place(&d.place)) {
                // Nodes of one interface belong together: a camera has two nodes there, an adapter of four lines four
                // interfaces.
                let mut interfaces: Vec<(&str, Vec<UnitPart<'_>>)> = Vec::new();
                for (_, node) in device.nodes.iter().filter(|(s, _)| *s == usb.nodes) {
                    let interface = node.usb.as_ref().map_or("", |place| &place.interface);
                    match interfaces.iter_mut().find(|(known, _)| *known == interface) {
                        Some((_, parts)) => parts.push(UnitPart::Node(node)),
                        None => interfaces.push((interface, alone(node))),
                    }
                }
                sets.extend(interfaces.into_iter().map(|(_, parts)| parts));
            }
            sets
        }
        DevicePattern::Udev(udev) => {
            let all = seen.udev.iter();
            let found = all.filter(|(number, _)| *number == udev.number);
            found.map(|(_, node)| alone(node)).collect()
        }
        DevicePattern::Cdi(meant) => {
            let of_name = seen.cdi.chunk_by(|(a, _), (b, _)| a == b);
            let found = of_name.filter_map(|all| {
                let (name, _) = all
                    .first()
                    .filter(|(name, _)| matches_cdi_device(meant, name))?;
                let dirs: Vec<usize> = all.iter().map(|(_, dir)| *dir).collect();
                // An ambiguous CDI device would let the container fail.
                choose_file_by_dir(&dirs)?;
                Some(Vec::from([UnitPart::Cdi(name)]))
            });
            found.collect()
        }
    }
}

/// Gives each unit its id: by the serial numbers of its devices, by their ports where that is not enough, and at last by its
/// place among those that differ in nothing (DEV-36). `by_port`: a serial number would not last.
fn assign_unit_ids(sets: Vec<Vec<UnitPart<'_>>>, by_port: bool) -> Vec<MachineUnit<'_>> {
    let text = |parts: &[UnitPart<'_>], by_port: bool| -> String {
        let all = parts.iter();
        all.map(|part| lasting_identity(part, by_port)).collect()
    };
    let serials: Vec<String> = sets.iter().map(|parts| text(parts, false)).collect();
    let mut texts = Vec::with_capacity(sets.len());
    for (at, parts) in sets.iter().enumerate() {
        let own = &serials[at];
        let shared = serials.iter().filter(|other| *other == own).count() > 1;
        let text = if shared || by_port {
            text(parts, true)
        } else {
            own.clone()
        };
        let same = texts.iter().filter(|(known, _)| *known == text).count();
        texts.push((text, same));
    }
    sets.into_iter()
        .zip(texts)
        .map(|(parts, (text, same))| MachineUnit {
            id: hash_unit_id(&text, same),
            parts,
        })
        .collect()
}

fn hash_unit_id(text: &str, same: usize) -> String {
    let text = match same {
        0 => text.to_owned(),
        more => format!("{text}#{more}"),
    };
    format!("{:016x}", fnv1a(text.bytes()))
}

/// Text of a part that stays the same over a reboot and after unplugging.
fn lasting_identity(part: &UnitPart<'_>, by_port: bool) -> String {
    let node = match part {
        UnitPart::Node(node) => node,
        UnitPart::Cdi(name) => return format!("cdi {name}\n"),
    };
    match &node.usb {
        Some(place) if !by_port && !place.serial.is_empty() => {
            let ((vendor, product), interface) = (place.product, &place.interface);
            format!(
                "serial {vendor:04x}:{product:04x} {} {interface}\n",
                place.serial
            )
        }
        // The product does not count: a device may come back as another one.
        Some(place) => format!("port {} {}\n", place.port, place.interface),
        None if !node.sysfs.is_empty() => format!("sysfs {}\n", node.sysfs),
        None => format!("node {}\n", node.name),
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString as _;

    use serde_json::{Value, json};

    use super::*;
    use crate::{
        api::device::{UsbDevice, UsbPlace},
        devices::parse_declared_devices,
    };

    fn one(value: &Value) -> DeclaredDevices {
        let mut entry = json!({"resource": "x"});
        for (name, field) in value.as_object().expect("fields") {
            entry[name] = field.clone();
        }
        parse_declared_devices(&json!([entry])).expect("right")
    }

    fn node(name: &str, minor: u32) -> HostDeviceNode {
        HostDeviceNode {
            name: name.into(),
            path: name.into(),
            major: 188,
            minor,
            ..HostDeviceNode::default()
        }
    }

    fn seen(nodes: Vec<HostDeviceNode>) -> MachineDevices {
        MachineDevices {
            nodes,
            ..MachineDevices::default()
        }
    }

    fn stick(port: &str, serial: &str, tty: u32) -> UsbDevice {
        let place = UsbPlace {
            port: port.into(),
            product: (0x403, 0x6001),
            serial: serial.into(),
            ..UsbPlace::default()
        };
        let line = HostDeviceNode {
            usb: Some(UsbPlace {
                interface: "1.0".into(),
                ..place.clone()
            }),
            sysfs: format!("/devices/{port}/ttyUSB{tty}"),
            ..node(&format!("/dev/ttyUSB{tty}"), tty)
        };
        UsbDevice {
            nodes: vec![("tty".into(), line)],
            place,
        }
    }

    fn usb(sticks: Vec<UsbDevice>) -> MachineDevices {
        MachineDevices {
            usb: sticks,
            ..MachineDevices::default()
        }
    }

    fn shown(declared: &DeclaredDevices, seen: &MachineDevices) -> Vec<String> {
        let all = find_units(declared, seen).remove(0);
        all.iter().map(|unit| unit.nodes.to_string()).collect()
    }

    fn ids(declared: &DeclaredDevices, seen: &MachineDevices) -> Vec<String> {
        let all = find_units(declared, seen).remove(0);
        all.iter().map(|unit| unit.id.to_string()).collect()
    }

    #[test]
    fn nodes_by_name() {
        // DEV-31
        let by_name =
            one(&json!({"match": [{"path": "/dev/serial/by-id/*"}, {"path": "/dev/ttyUSB*"}]}));
        let link = HostDeviceNode {
            name: "/dev/serial/by-id/b".into(),
            path: "/dev/ttyUSB1".into(),
            ..node("", 1)
        };
        let nodes = vec![link, node("/dev/ttyUSB0", 0), node("/dev/ttyUSB1", 1)];
        assert_eq!(
            shown(&by_name, &seen(nodes)),
            ["/dev/serial/by-id/b", "/dev/ttyUSB0"],
            "a node is one unit, under its first name"
        );
    }

    #[test]
    fn equal_sticks_are_two() {
        // DEV-32
        let entry =
            json!({"match": {"usb": {"vendor": "0403", "product": "6001", "nodes": "tty"}}});
        let all = one(&entry);
        let both = usb(vec![stick("1-1", "A", 0), stick("1-2", "B", 1)]);
        assert_eq!(shown(&all, &both), ["/dev/ttyUSB0", "/dev/ttyUSB1"]);
        let by = |name: &str, value: &str| {
            let mut entry = entry.clone();
            entry["match"]["usb"][name] = value.into();
            shown(&one(&entry), &both)
        };
        assert_eq!(by("serial", "B"), ["/dev/ttyUSB1"]);
        assert_eq!(by("port", "1-1"), ["/dev/ttyUSB0"]);
        assert_eq!(by("product", "6002"), [""; 0]);
        assert_eq!(by("nodes", "hidraw"), [""; 0]);
    }

    #[test]
    fn by_what_udev_knows() {
        // DEV-33
        let entry = |what: &str| json!({"resource": what, "match": {"udev": {"subsystem": what}}});
        let all = parse_declared_devices(&json!([entry("a"), entry("b")])).expect("right");
        let here = MachineDevices {
            udev: vec![
                (0, node("/dev/x", 1)),
                (1, node("/dev/x", 1)),
                (1, node("/dev/y", 2)),
            ],
            ..MachineDevices::default()
        };
        let found = find_units(&all, &here);
        let names = |n: usize| found[n].iter().map(|u| &*u.nodes).collect::<Vec<_>>();
        assert_eq!(names(0), ["/dev/x"]);
        assert_eq!(names(1), ["/dev/x", "/dev/y"], "each is a unit");
    }

    #[test]
    fn interfaces_are_units() {
        // DEV-32
        let all =
            one(&json!({"match": {"usb": {"vendor": "403", "product": "6001", "nodes": "tty"}}}));
        let mut quad = stick("1-1", "A", 0);
        for n in 1..3 {
            let mut line = stick("1-1", "A", n).nodes.remove(0);
            line.1.usb.as_mut().expect("place").interface = format!("1.{}", n / 2);
            quad.nodes.push(line);
        }
        let seen = usb(vec![quad]);
        assert_eq!(
            shown(&all, &seen),
            ["/dev/ttyUSB0,/dev/ttyUSB1", "/dev/ttyUSB2"]
        );
        let ids = ids(&all, &seen);
        assert_ne!(ids[0], ids[1]);
    }

    #[test]
    fn ids_last() {
        // DEV-36
        let all =
            one(&json!({"match": {"usb": {"vendor": "403", "product": "6001", "nodes": "tty"}}}));
        let before = ids(&all, &usb(vec![stick("1-1", "A", 0)]));
        assert!(before[0].len() <= 63);
        assert_eq!(
            ids(&all, &usb(vec![stick("1-4", "A", 7)])),
            before,
            "the serial number counts, neither port nor name"
        );
        assert_ne!(ids(&all, &usb(vec![stick("1-1", "B", 0)])), before);
        // Without a serial number the port counts, whatever is plugged in.
        let nameless = ids(&all, &usb(vec![stick("1-1", "", 0)]));
        assert_eq!(ids(&all, &usb(vec![stick("1-1", "", 3)])), nameless);
        assert_ne!(ids(&all, &usb(vec![stick("1-2", "", 0)])), nameless);
        // Cheap devices all have the same serial number.
        let same = ids(&all, &usb(vec![stick("1-1", "A", 0), stick("1-2", "A", 1)]));
        let turned = ids(&all, &usb(vec![stick("1-1", "A", 1), stick("1-2", "A", 0)]));
        assert_ne!(same[0], same[1]);
        assert_eq!(same, turned);
        // A node without USB: its place in sysfs counts.
        let path = one(&json!({"match": {"path": "/dev/*"}}));
        let at = |sysfs: &str, minor| {
            let node = HostDeviceNode {
                sysfs: sysfs.into(),
                ..node("/dev/i2c-1", minor)
            };
            ids(&path, &seen(vec![node]))
        };
        assert_eq!(at("/devices/a", 1), at("/devices/a", 2));
        assert_ne!(at("/devices/a", 1), at("/devices/b", 1));
        assert_eq!(at("", 1), at("", 2));
    }

    #[test]
    fn a_link_comes_later() {
        // DEV-40
        let all =
            one(&json!({"match": [{"path": "/dev/serial/by-id/*"}, {"path": "/dev/ttyUSB*"}]}));
        let line = HostDeviceNode {
            sysfs: "/devices/1-1/ttyUSB0".into(),
            ..node("/dev/ttyUSB0", 0)
        };
        let link = HostDeviceNode {
            name: "/dev/serial/by-id/a".into(),
            ..line.clone()
        };
        let of = |nodes: Vec<HostDeviceNode>| find_units(&all, &seen(nodes)).remove(0).remove(0);
        let before = of(vec![line.clone()]);
        let after = of(vec![link, line.clone()]);
        assert_ne!(before.nodes, after.nodes);
        assert_eq!((&before.id, before.mark), (&after.id, after.mark));
        assert_eq!(after.numbers, [(false, 188, 0)]);
        for other in [
            HostDeviceNode {
                minor: 1,
                ..line.clone()
            },
            HostDeviceNode {
                block: true,
                ..line.clone()
            },
            HostDeviceNode {
                path: "/dev/ttyUSB1".into(),
                ..line
            },
        ] {
            assert_ne!(of(vec![other]).mark, before.mark);
        }
    }

    #[test]
    fn nodes_that_come_and_go() {
        // DEV-44
        let all = one(
            &json!({"match": {"path": "/dev/serial/by-id/*"}, "live": true,
            "containerPath": "/dev/lines", "env": "LINES", "gid": 7, "count": 2}),
        );
        let line = |name: &str, major: u32, minor: u32| HostDeviceNode {
            major,
            sysfs: format!("/devices/{name}"),
            ..node(&format!("/dev/serial/by-id/{name}"), minor)
        };
        let here = seen(vec![line("a", 188, 0), line("b", 188, 1)]);
        let found = find_units(&all, &here).remove(0);
        let ids: Vec<Box<str>> = found.iter().map(|unit| unit.id.clone()).collect();
        let held = |ids: &[Box<str>]| {
            Vec::from([HeldUnits {
                container: "c".into(),
                resource: "picolet/x".into(),
                ids: ids.into(),
                plain_init: false,
                plugin: false,
            }])
        };
        let given = compute_given_devices(&all, &here, &held(&ids[..1]), "c").expect("here");
        assert!(given.nodes.is_empty());
        assert_eq!(given.env, [("LINES".into(), "/dev/lines".into())]);
        let [live] = &given.live[..] else {
            panic!("one")
        };
        let of = (&*live.resource, &live.ids[..], &*live.container_path);
        assert_eq!(of, ("picolet/x", &ids[..1], "/dev/lines"));
        assert_eq!((&*live.permissions, live.gid), ("rw", Some(7)));
        let names = |nodes: &[ContainerDeviceNode]| -> Vec<(String, u32)> {
            let all = nodes.iter();
            all.map(|node| (node.container_path.clone(), node.minor))
                .collect()
        };
        assert_eq!(names(&live.nodes), [("a".into(), 0)]);
        // A unit must be here at the start, or the container waits.
        let gone = seen(Vec::new());
        compute_given_devices(&all, &gone, &held(&ids), "c").expect_err("not here");
        let now = |all: &DeclaredDevices, seen: &MachineDevices| {
            let kept = LiveDeviceRecord {
                resource: "picolet/x".into(),
                ids: ids[..1].to_vec(),
                majors: vec![(false, 188)],
                ..LiveDeviceRecord::default()
            };
            let now = compute_live_nodes(all, seen, &kept)?;
            Some((names(&now.nodes), now.restart))
        };
        assert_eq!(now(&all, &gone), Some((vec![], false)));
        // The node is back under another minor number: no restart.
        let back = seen(vec![line("a", 188, 9), line("b", 188, 1)]);
        assert_eq!(now(&all, &back), Some((vec![("a".into(), 9)], false)));
        // The container's rules do not cover the node's new major.
        let other = seen(vec![line("a", 166, 0)]);
        assert_eq!(now(&all, &other), Some((vec![], true)));
        let block = HostDeviceNode {
            block: true,
            ..line("a", 188, 0)
        };
        assert_eq!(now(&all, &seen(vec![block])), Some((vec![], true)));
        let mut left = all.clone();
        left.entries[0].on_replug = ReplugPolicy::Leave;
        assert_eq!(now(&left, &other), Some((vec![], false)));
        assert_eq!(
            now(&one(&json!({"match": {"path": "/dev/x"}})), &back),
            None
        );
    }

    #[test]
    fn a_unit_that_becomes_another_product() {
        // DEV-45
        let all = parse_declared_devices(&json!([{"preset": "coral"}])).expect("right");
        let stick = |port: &str, product, serial: &str, number: u32| {
            let place = UsbPlace {
                port: port.into(),
                product,
                serial: serial.into(),
                ..UsbPlace::default()
            };
            let name = format!("/dev/bus/usb/001/{number:03}");
            let own = HostDeviceNode {
                usb: Some(place.clone()),
                major: 189,
                ..node(&name, number)
            };
            let nodes = vec![("usb".into(), own)];
            UsbDevice { place, nodes }
        };
        let usb = |sticks: &[UsbDevice]| MachineDevices {
            usb: sticks.to_vec(),
            ..MachineDevices::default()
        };
        let (new, used) = ((0x1a6e, 0x089a), (0x18d1, 0x9302));
        let before = usb(&[stick("1-1", new, "", 4), stick("1-2", new, "", 5)]);
        let after = usb(&[stick("1-1", used, "77", 6), stick("1-2", new, "", 5)]);
        let [first, second] = [&before, &after].map(|seen| find_units(&all, seen).remove(0));
        let ids = |found: &[FoundUnit]| {
            let mut ids: Vec<Box<str>> = found.iter().map(|unit| unit.id.clone()).collect();
            ids.sort();
            ids
        };
        assert_eq!(ids(&first), ids(&second));
        let id = first.iter().find(|unit| unit.nodes.ends_with("004"));
        let kept = LiveDeviceRecord {
            resource: "picolet/coral".into(),
            ids: vec![id.expect("unit").id.clone()],
            majors: vec![(false, 189)],
            ..LiveDeviceRecord::default()
        };
        for (seen, at) in [(&before, "001/004"), (&after, "001/006")] {
            let now = compute_live_nodes(&all, seen, &kept).expect("declared");
            let names: Vec<_> = now.nodes.iter().map(|node| &*node.container_path).collect();
            assert_eq!((names, now.restart), (vec![at], false));
        }
    }

    #[test]
    fn groups() {
        // DEV-34
        let of = |group: Value| one(&json!({"match": {"group": group}}));
        let nodes = |names: &[&str]| {
            let all = names.iter().zip(0..);
            seen(all.map(|(name, n)| node(name, n)).collect())
        };
        let two = nodes(&["/dev/c0", "/dev/c1", "/dev/m0"]);
        let pair = |limit: u32, optional: bool| {
            of(
                json!([{"path": "/dev/c*"}, {"path": "/dev/m*", "limit": limit, "optional": optional}]),
            )
        };
        assert_eq!(shown(&pair(1, false), &two), ["/dev/c0,/dev/m0"]);
        assert_eq!(
            shown(&pair(2, false), &two),
            ["/dev/c0,/dev/m0", "/dev/c1,/dev/m0"]
        );
        assert_eq!(shown(&pair(1, true), &two), ["/dev/c0,/dev/m0", "/dev/c1"]);
        let none = nodes(&["/dev/c0"]);
        assert_eq!(shown(&pair(1, false), &none), [""; 0]);
        assert_eq!(shown(&pair(1, true), &none), ["/dev/c0"]);
    }

    #[test]
    fn alternatives_share_no_node() {
        // DEV-30
        let usb_nodes = json!({"usb": {"vendor": "403", "product": "6001", "nodes": "tty"}});
        let mut camera = stick("1-1", "A", 0);
        // A second node of the same interface.
        camera.nodes.push(stick("1-1", "A", 1).nodes.remove(0));
        let nodes = camera.nodes.iter().map(|(_, node)| node.clone());
        let here = MachineDevices {
            nodes: nodes.chain([node("/dev/ttyUSB2", 2)]).collect(),
            usb: vec![camera],
            ..MachineDevices::default()
        };
        let path = json!({"path": "/dev/ttyUSB*"});
        let of = |all: Value| shown(&one(&json!({"match": all})), &here);
        assert_eq!(
            of(json!([usb_nodes, path])),
            ["/dev/ttyUSB0,/dev/ttyUSB1", "/dev/ttyUSB2"]
        );
        assert_eq!(
            of(json!([path, usb_nodes])),
            ["/dev/ttyUSB0", "/dev/ttyUSB1", "/dev/ttyUSB2"]
        );
        // Within one alternative, units may share a node.
        let group = json!({"group": [path, {"path": "/dev/ttyUSB2", "limit": 2}]});
        assert_eq!(
            of(json!([group, path])),
            ["/dev/ttyUSB0,/dev/ttyUSB2", "/dev/ttyUSB1,/dev/ttyUSB2"]
        );
    }

    #[test]
    fn cdi_devices() {
        // DEV-46
        let all = one(&json!({"match": {"cdi": "v.com/gpu=*"}}));
        let name = |name: &str, dir| (name.to_owned(), dir);
        let seen = MachineDevices {
            cdi: Vec::from([
                name("other.com/gpu=0", 0),
                name("v.com/gpu=0", 0),
                name("v.com/gpu=0", 1),
                name("v.com/gpu=1", 0),
                // An ambiguous device cannot be given.
                name("v.com/gpu=2", 1),
                name("v.com/gpu=2", 1),
                name("v.com/gpu=all", 0),
                name("v.com/npu=0", 0),
            ]),
            ..MachineDevices::default()
        };
        assert_eq!(shown(&all, &seen), ["v.com/gpu=0", "v.com/gpu=1"]);
        let alone = MachineDevices {
            cdi: Vec::from([name("v.com/gpu=1", 1)]),
            ..MachineDevices::default()
        };
        let alone = ids(&all, &alone);
        let ids = ids(&all, &seen);
        assert_ne!(ids[0], ids[1]);
        assert_eq!(alone, ids[1..], "by its name, whatever else there is");
        let held = [HeldUnits {
            container: "c".into(),
            resource: "picolet/x".into(),
            ids: Vec::from([ids[1].as_str().into()]),
            plain_init: false,
            plugin: false,
        }];
        let given_now = compute_given_devices(&all, &seen, &held, "c").expect("here");
        assert_eq!(given_now.cdi_devices, ["v.com/gpu=1"]);
        assert_eq!((given_now.nodes, given_now.env), Default::default());
        let gone = compute_given_devices(&all, &MachineDevices::default(), &held, "c");
        assert!(gone.is_err_and(|e| e.to_string().contains("is not here")));
        // A CDI device and a node make one unit; neither is given twice.
        let all = one(&json!({"match": [
            {"group": [{"cdi": "v.com/gpu=1"}, {"path": "/dev/ttyUSB*"}]},
            {"cdi": "v.com/gpu=[01]"},
        ]}));
        let seen = MachineDevices {
            nodes: Vec::from([node("/dev/ttyUSB0", 0)]),
            ..seen
        };
        assert_eq!(
            shown(&all, &seen),
            ["v.com/gpu=1,/dev/ttyUSB0", "v.com/gpu=0"]
        );
    }

    #[test]
    fn no_more_than_there_is_room_for() {
        // DEV-46
        let all = parse_declared_devices(&json!([
            {"resource": "a", "match": {"path": "/dev/a*"}},
            {"resource": "b", "match": {"path": "/dev/*"}},
        ]))
        .expect("right");
        let many = (0..400).map(|n| node(&format!("/dev/a{n}"), n)).collect();
        let counts: Vec<usize> = find_units(&all, &seen(many)).iter().map(Vec::len).collect();
        assert_eq!(counts, [MAX_UNITS, 0]);
    }

    #[test]
    fn what_a_container_gets() {
        // DEV-30 DEV-31 DEV-41
        let entry = json!({"match": {"path": "/dev/by-id/*"}, "containerPath": "/dev/line", "env": "LINE", "gid": 20,
                           "mode": "0660"});
        let all = one(&entry);
        let link = |name: &str, minor| HostDeviceNode {
            name: format!("/dev/by-id/{name}"),
            ..node(&format!("/dev/ttyUSB{minor}"), minor)
        };
        let now = seen(vec![link("a", 0), link("b", 1)]);
        let found = ids(&all, &now);
        let held = |ids: &[String]| {
            let ids = ids.iter().map(|id| id.as_str().into()).collect();
            vec![HeldUnits {
                container: "c".into(),
                resource: "picolet/x".into(),
                ids,
                plain_init: false,
                plugin: false,
            }]
        };
        let got = compute_given_devices(&all, &now, &held(&found[1..]), "c").expect("here");
        let [device] = &*got.nodes else {
            panic!("one node");
        };
        assert_eq!(
            (&*device.container_path, &*device.host_path, device.minor),
            ("/dev/line", "/dev/ttyUSB1", 1)
        );
        assert_eq!((device.gid, device.mode), (Some(20), Some(0o660)));
        assert_eq!(got.env, [("LINE".to_owned(), "/dev/line".to_owned())]);
        assert_eq!(
            compute_given_devices(&all, &now, &held(&found), "d"),
            Ok(GivenDevices::default())
        );
        let both = compute_given_devices(&all, &now, &held(&found), "c").expect("here");
        let paths: Vec<&str> = both.nodes.iter().map(|n| &*n.container_path).collect();
        assert_eq!(paths, ["/dev/line", "/dev/line.1"]);
        // Without containerPath the link keeps its name.
        let plain = one(&json!({"match": {"path": "/dev/by-id/*"}}));
        let got = compute_given_devices(&plain, &now, &held(&found[1..]), "c").expect("here");
        assert_eq!(got.nodes[0].container_path, "/dev/by-id/b");
        // The device is gone.
        let gone = seen(vec![link("a", 1)]);
        let error = compute_given_devices(&all, &gone, &held(&found[1..]), "c").expect_err("gone");
        let error = error.to_string();
        assert!(error.contains("is not here"), "{error}");
        let error = compute_given_devices(&DeclaredDevices::default(), &now, &held(&found), "c")
            .expect_err("unknown");
        let error = error.to_string();
        assert!(error.contains("is no longer in picolet.devices"), "{error}");
    }
}
