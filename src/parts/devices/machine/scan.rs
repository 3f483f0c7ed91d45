//! A look at `/dev` and `/sys`.
//!
//! Source: sysfs(5), `Documentation/ABI/stable/sysfs-dev`, `Documentation/ABI/testing/sysfs-bus-usb`; udev's database is that of
//! `systemd/src/libsystemd/sd-device/device-private.c`.

use std::{
    fs,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

use crate::{
    api::{
        device::{
            DeviceFilter, HostDeviceNode, MachineDevices, NodeDeviceFacts, UsbDevice, UsbPlace,
        },
        order::OrderExt as _,
    },
    sys::file,
};

/// Entries of directories that one look reads at most, those of `/sys` apart.
const MAX_ENTRIES: usize = 16_384;
/// Nodes that one look returns at most.
const MAX_NODES: usize = 1024;
/// Devices on the USB: more than seven bits of a bus number, on a few buses.
const MAX_USB: usize = 512;
/// Directories below a device on the USB within each other, and all of them.
const MAX_DEPTH: usize = 10;
const MAX_DIRECTORIES: usize = 1024;
/// Devices with nodes that are looked up in udev's database, at most.
const MAX_DEVICES: usize = 4096;
/// Devices of which one is a part, and itself.
const MAX_LEVELS: usize = 16;
/// Bytes of a file of udev's database.
const MAX_DATABASE: u64 = 32 << 10;
/// Bytes of the kernel's own: a page.
const MAX_EVENT: u64 = 4096;
/// Bytes of an attribute.
const MAX_ATTRIBUTE: u64 = 512;
/// Subsystem of the nodes below `/dev/bus/usb`.
const USB: &str = "usb";

/// See [`super::DeviceMachine::find_devices`].
pub(super) fn scan_devices(root: &Path, wanted: &dyn DeviceFilter) -> MachineDevices {
    let places = DevicePaths {
        root: root.to_path_buf(),
        sys: root.join("sys"),
    };
    let mut seen = MachineDevices::default();
    let mut left = MAX_ENTRIES;
    if wanted.wants_directory("/dev") {
        places.nodes_below("/dev", wanted, &mut left, &mut seen.nodes);
    }
    if wanted.wants_any_usb() {
        seen.usb = places.find_usb_devices(wanted);
    }
    if wanted.wants_any_udev() {
        seen.udev = places.find_udev_nodes(wanted);
    }
    seen.nodes.stable_sort_by(|a, b| a.name.cmp(&b.name));
    seen
}

struct DevicePaths {
    root: PathBuf,
    sys: PathBuf,
}

impl DevicePaths {
    /// The path on the machine of the name `name`.
    fn path_on_machine(&self, name: &str) -> PathBuf {
        self.root.join(name.trim_start_matches('/'))
    }

    fn nodes_below(
        &self,
        dir: &str,
        wanted: &dyn DeviceFilter,
        left: &mut usize,
        nodes: &mut Vec<HostDeviceNode>,
    ) {
        let entries = fs::read_dir(self.path_on_machine(dir))
            .into_iter()
            .flatten();
        for entry in entries.flatten() {
            if *left == 0 || nodes.len() >= MAX_NODES {
                log::debug!("{dir}: there is more than one look reads");
                return;
            }
            *left -= 1;
            let (Ok(kind), Ok(file)) = (entry.file_type(), entry.file_name().into_string()) else {
                continue;
            };
            let name = format!("{dir}/{file}");
            if kind.is_dir() {
                if wanted.wants_directory(&name) {
                    self.nodes_below(&name, wanted, left, nodes);
                }
            } else if wanted.wants_node(&name) {
                nodes.extend(self.find_node(name));
            }
        }
    }

    /// The node of that name, or to which that leads; `None` if there is none.
    fn find_node(&self, name: String) -> Option<HostDeviceNode> {
        let path = fs::canonicalize(self.path_on_machine(&name)).ok()?;
        // A link out of the directory leads to devices that must not be given.
        if !path.starts_with(fs::canonicalize(self.path_on_machine("/dev")).ok()?) {
            return None;
        }
        let metadata = fs::metadata(&path).ok()?;
        let kind = metadata.file_type();
        if !kind.is_char_device() && !kind.is_block_device() {
            return None;
        }
        let number = metadata.rdev();
        let part = |part: u64| u32::try_from(part).ok();
        let mut node = HostDeviceNode {
            name,
            path: path.into_os_string().into_string().ok()?,
            block: kind.is_block_device(),
            major: part(libc::major(number).into())?,
            minor: part(libc::minor(number).into())?,
            ..HostDeviceNode::default()
        };
        let kind = if node.block { "block" } else { "char" };
        let link = format!("dev/{kind}/{}:{}", node.major, node.minor);
        if let Ok(device) = fs::canonicalize(self.sys.join(link)) {
            node.usb = find_usb_place(&device);
            node.sysfs = self.below_sys(&device);
        }
        Some(node)
    }

    fn below_sys(&self, device: &Path) -> String {
        let sys = fs::canonicalize(&self.sys).unwrap_or_default();
        let below = device.strip_prefix(sys).unwrap_or(device);
        format!("/{}", below.display())
    }

    fn find_usb_devices(&self, wanted: &dyn DeviceFilter) -> Vec<UsbDevice> {
        let dir = self.sys.join("bus/usb/devices");
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        let mut all = Vec::new();
        for entry in entries.take(MAX_USB) {
            let Ok(device) = fs::canonicalize(entry.path()) else {
                continue;
            };
            // Interfaces are there too, and have no product.
            let Some(place) = read_usb_place(&device) else {
                continue;
            };
            if wanted.wants_usb_device(&place) {
                let nodes = self.find_usb_nodes(&device, &place);
                all.push(UsbDevice { place, nodes });
            }
        }
        all.stable_sort_by(|a, b| a.place.port.cmp(&b.place.port));
        all
    }

    /// Finds wanted nodes by the facts of their devices.
    fn find_udev_nodes(&self, wanted: &dyn DeviceFilter) -> Vec<(u16, HostDeviceNode)> {
        let mut all = Vec::new();
        let mut left = MAX_DEVICES;
        for kind in ["block", "char"] {
            let entries = fs::read_dir(self.sys.join("dev").join(kind));
            for entry in entries.into_iter().flatten().flatten() {
                if left == 0 || all.len() >= MAX_NODES {
                    log::debug!("/sys/dev/{kind}: there is more than one look reads");
                    break;
                }
                left -= 1;
                // The cheap test first: most devices are of other subsystems.
                let link = entry.path();
                let subsystem = last_of_link(&link.join("subsystem"));
                let Some(subsystem) = subsystem.filter(|name| wanted.wants_subsystem(name)) else {
                    continue;
                };
                let (Ok(path), Ok(numbers)) =
                    (fs::canonicalize(&link), entry.file_name().into_string())
                else {
                    continue;
                };
                let database = format!("run/udev/data/{}{numbers}", &kind[..1]);
                let device = UdevDevice {
                    levels: levels(&path),
                    database: self.root.join(database),
                };
                let numbers = wanted.matching_udev_rules(&subsystem, &device);
                if numbers.is_empty() {
                    continue;
                }
                if let Some((_, node)) = self.find_node_of_device(&path) {
                    all.extend(numbers.into_iter().map(|number| (number, node.clone())));
                }
            }
        }
        all.stable_sort_by(|a, b| (a.0, &a.1.name).cmp(&(b.0, &b.1.name)));
        all
    }

    fn find_usb_nodes(&self, device: &Path, place: &UsbPlace) -> Vec<(String, HostDeviceNode)> {
        let mut nodes = Vec::new();
        let number = |name: &str| attribute(device, name)?.parse::<u16>().ok();
        if let (Some(bus), Some(number)) = (number("busnum"), number("devnum")) {
            let own = self.find_node(format!("/dev/bus/usb/{bus:03}/{number:03}"));
            nodes.extend(own.map(|node| {
                let usb = Some(place.clone());
                (USB.to_owned(), HostDeviceNode { usb, ..node })
            }));
        }
        let mut left = MAX_DIRECTORIES;
        self.nodes_under(device, MAX_DEPTH, &mut left, &mut nodes);
        nodes.stable_sort_by(|a, b| (&a.0, &a.1.name).cmp(&(&b.0, &b.1.name)));
        nodes
    }

    fn nodes_under(
        &self,
        dir: &Path,
        depth: usize,
        left: &mut usize,
        nodes: &mut Vec<(String, HostDeviceNode)>,
    ) {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        for entry in entries {
            if *left == 0 || depth == 0 || nodes.len() >= MAX_NODES {
                return;
            }
            let path = entry.path();
            // Devices that are plugged into a hub are other ones.
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) || path.join("idVendor").exists()
            {
                continue;
            }
            *left -= 1;
            if path.join("dev").exists() {
                nodes.extend(self.find_node_of_device(&path));
            }
            self.nodes_under(&path, depth - 1, left, nodes);
        }
    }

    /// The node that the kernel has made for a device, with its subsystem.
    fn find_node_of_device(&self, device: &Path) -> Option<(String, HostDeviceNode)> {
        let event = attribute(device, "uevent")?;
        let name = event.lines().find_map(|l| l.strip_prefix("DEVNAME="))?;
        let subsystem = last_of_link(&device.join("subsystem"))?;
        let node = self.find_node(format!("/dev/{name}"))?;
        let numbers = attribute(device, "dev")?;
        // A node left by an earlier device counts as none.
        (numbers == format!("{}:{}", node.major, node.minor)).then_some((subsystem, node))
    }
}

/// Finds the place on the USB of a device, or of the USB device that it belongs to.
fn find_usb_place(device: &Path) -> Option<UsbPlace> {
    let mut interface = "";
    for dir in device.ancestors() {
        if dir.join("idVendor").exists() {
            let interface = interface.to_owned();
            return read_usb_place(dir).map(|place| UsbPlace { interface, ..place });
        }
        let name = dir.file_name()?.to_str()?;
        interface = name.split_once(':').map_or("", |(_, interface)| interface);
    }
    None
}

fn read_usb_place(device: &Path) -> Option<UsbPlace> {
    let hex = |name: &str| u16::from_str_radix(&attribute(device, name)?, 16).ok();
    Some(UsbPlace {
        port: device.file_name()?.to_str()?.to_owned(),
        interface: String::new(),
        product: (hex("idVendor")?, hex("idProduct")?),
        serial: attribute(device, "serial").unwrap_or_default(),
    })
}

fn attribute(device: &Path, name: &str) -> Option<String> {
    read_trimmed_text(&device.join(name), MAX_ATTRIBUTE)
}

fn read_trimmed_text(path: &Path, most: u64) -> Option<String> {
    let text = file::read_start(path, most).ok()?;
    // The rest of it is as good as it was, whatever one byte is.
    let text = String::from_utf8_lossy(&text);
    Some(text.trim_end().to_owned())
}

/// The file name of a link's target.
fn last_of_link(link: &Path) -> Option<String> {
    let to = fs::read_link(link).ok()?;
    Some(to.file_name()?.to_str()?.to_owned())
}

/// The directories of a device and of its parents. Each has a file `uevent`; directories without it lie between them.
fn levels(device: &Path) -> Vec<PathBuf> {
    let all = device.ancestors();
    let all = all.filter(|dir| dir.join("uevent").exists());
    all.take(MAX_LEVELS).map(Path::to_path_buf).collect()
}

/// Facts that udev rules can ask of a device with a node.
struct UdevDevice {
    /// Directories of the device and of its parents, its own first.
    levels: Vec<PathBuf>,
    /// The file of udev's database.
    database: PathBuf,
}

impl NodeDeviceFacts for UdevDevice {
    fn level_count(&self) -> usize {
        self.levels.len()
    }

    fn driver_at_level(&self, level: usize) -> Option<String> {
        last_of_link(&self.levels.get(level)?.join("driver"))
    }

    fn attribute_at_level(&self, level: usize, name: &str) -> Option<String> {
        attribute(self.levels.get(level)?, name)
    }

    fn udev_database(&self) -> String {
        read_trimmed_text(&self.database, MAX_DATABASE).unwrap_or_default()
    }

    fn kernel_uevent(&self) -> String {
        let own = self.levels.first();
        let own = own.and_then(|own| read_trimmed_text(&own.join("uevent"), MAX_EVENT));
        own.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::{AtomicUsize, Ordering};
    use std::os::unix::fs::symlink;

    use nix::sys::stat::{Mode, SFlag, makedev, mknod};
    use serde_json::Value;

    use super::*;
    use crate::api::strict::WrongValue;

    /// Wants everything.
    struct All;

    impl DeviceFilter for All {
        fn wants_node(&self, _: &str) -> bool {
            true
        }

        fn wants_directory(&self, path: &str) -> bool {
            !path.ends_with("/pts")
        }

        fn wants_usb_device(&self, place: &UsbPlace) -> bool {
            place.product.0 == 0x403
        }

        fn wants_any_usb(&self) -> bool {
            true
        }

        fn wants_any_udev(&self) -> bool {
            true
        }

        fn wants_subsystem(&self, name: &str) -> bool {
            name == "tty"
        }

        fn matching_udev_rules(&self, subsystem: &str, device: &dyn NodeDeviceFacts) -> Vec<u16> {
            assert_eq!(subsystem, "tty");
            let levels = 0..device.level_count();
            let drivers: Vec<String> = levels
                .clone()
                .filter_map(|n| device.driver_at_level(n))
                .collect();
            let serial = levels
                .filter_map(|n| device.attribute_at_level(n, "serial"))
                .next();
            let facts = [
                drivers == ["ftdi_sio", "usb"],
                serial.as_deref() == Some("A1"),
                device.attribute_at_level(0, "dev").as_deref() == Some("188:1"),
                device.udev_database() == "E:ID_MODEL=x\nG:tag",
                device.kernel_uevent().ends_with("DEVNAME=ttyUSB1"),
                device.level_count() == 4,
            ];
            (0..)
                .zip(facts)
                .filter(|(_, is)| *is)
                .map(|(n, _)| n)
                .collect()
        }

        fn wants_any_cdi(&self) -> bool {
            false
        }

        fn wanted_cdi_devices(&self, _: Value) -> Result<Vec<String>, WrongValue> {
            Ok(Vec::new())
        }
    }

    fn make(root: &Path, name: &str, minor: u64) -> bool {
        let path = root.join(name.trim_start_matches('/'));
        fs::create_dir_all(path.parent().expect("parent")).expect("directory");
        let mode = Mode::from_bits_truncate(0o600);
        mknod(&path, SFlag::S_IFCHR, mode, makedev(188, minor)).is_ok()
    }

    fn put(dir: &Path, files: &[(&str, &str)]) {
        fs::create_dir_all(dir).expect("directory");
        for (name, text) in files {
            fs::write(dir.join(name), text).expect("written");
        }
    }

    #[test]
    fn a_machine() {
        // DEV-31 DEV-32
        let root = crate::testing::unused_path("scan");
        if !make(&root, "/dev/ttyUSB0", 0) {
            println!("SKIPPED: not root");
            return;
        }
        let root = fs::canonicalize(&root).expect("root");
        for (name, minor) in [
            ("/dev/ttyUSB1", 1),
            ("/dev/bus/usb/001/005", 100),
            ("/dev/pts/3", 3),
        ] {
            assert!(make(&root, name, minor));
        }
        let link = |to: &str, at: &str| {
            let at = root.join(at);
            fs::create_dir_all(at.parent().expect("parent")).expect("directory");
            symlink(to, at).expect("link");
        };
        link("../../ttyUSB1", "dev/serial/by-id/usb-b");
        link("../../ttyUSB9", "dev/serial/by-id/usb-gone");
        link("/dev/null", "dev/outside");
        fs::write(root.join("dev/file"), "x").expect("file");
        let hub = root.join("sys/devices/usb1/1-1");
        let stick = hub.join("1-1.4");
        put(&hub, &[("idVendor", "1d6b\n"), ("idProduct", "0002\n")]);
        put(
            &stick,
            &[
                ("idVendor", "0403\n"),
                ("idProduct", "6001\n"),
                ("serial", "A1\n"),
                ("busnum", "1\n"),
                ("devnum", "5\n"),
            ],
        );
        let line = stick.join("1-1.4:1.0/ttyUSB1/tty/ttyUSB1");
        let event = "MAJOR=188\nMINOR=1\nDEVNAME=ttyUSB1\n";
        put(&line, &[("dev", "188:1\n"), ("uevent", event)]);
        // Its node was not made yet: that is another one's.
        let other = stick.join("1-1.4:1.1/ttyUSB0/tty/ttyUSB0");
        let event = "DEVNAME=ttyUSB0\n";
        put(&other, &[("dev", "188:7\n"), ("uevent", event)]);
        for dir in [&line, &other] {
            symlink("/class/tty", dir.join("subsystem")).expect("link");
        }
        let line_link = "../../devices/usb1/1-1/1-1.4/1-1.4:1.0/ttyUSB1/tty/ttyUSB1";
        link(line_link, "sys/dev/char/188:1");
        link("../../../devices/usb1/1-1", "sys/bus/usb/devices/1-1");
        link(
            "../../../devices/usb1/1-1/1-1.4",
            "sys/bus/usb/devices/1-1.4",
        );
        link(
            "../../../devices/usb1/1-1/1-1.4/1-1.4:1.0",
            "sys/bus/usb/devices/1-1.4:1.0",
        );
        // DEV-33: what it is a part of, with directories between, and another one that nobody asked for.
        for (dir, driver) in [("1-1.4:1.0/ttyUSB1", "ftdi_sio"), ("", "usb")] {
            let dir = stick.join(dir);
            put(&dir, &[("uevent", "")]);
            symlink(format!("/bus/drivers/{driver}"), dir.join("driver")).expect("link");
        }
        put(&hub, &[("uevent", "")]);
        put(
            &root.join("run/udev/data"),
            &[("c188:1", "E:ID_MODEL=x\nG:tag\n")],
        );
        link("../../devices/usb1/1-1", "sys/dev/char/189:1");
        link("/class/usb", "sys/devices/usb1/1-1/subsystem");
        let seen = scan_devices(&root, &All);
        let wanted: Vec<(u16, &str)> = seen
            .udev
            .iter()
            .map(|(n, node)| (*n, &*node.name))
            .collect();
        let all: Vec<(u16, &str)> = (0..6).map(|n| (n, "/dev/ttyUSB1")).collect();
        assert_eq!(wanted, all);
        assert_eq!(
            seen.udev[0].1.usb.as_ref().map(|at| &*at.port),
            Some("1-1.4")
        );
        let names: Vec<&str> = seen.nodes.iter().map(|n| &*n.name).collect();
        assert_eq!(
            names,
            [
                "/dev/bus/usb/001/005",
                "/dev/serial/by-id/usb-b",
                "/dev/ttyUSB0",
                "/dev/ttyUSB1"
            ]
        );
        let by_id = &seen.nodes[1];
        assert_eq!(by_id.path, root.join("dev/ttyUSB1").display().to_string());
        assert_eq!((by_id.block, by_id.major, by_id.minor), (false, 188, 1));
        assert_eq!(
            by_id.sysfs,
            "/devices/usb1/1-1/1-1.4/1-1.4:1.0/ttyUSB1/tty/ttyUSB1"
        );
        let at = UsbPlace {
            port: "1-1.4".into(),
            interface: "1.0".into(),
            product: (0x403, 0x6001),
            serial: "A1".into(),
        };
        assert_eq!(by_id.usb, Some(at.clone()));
        assert_eq!((&seen.nodes[2].usb, &*seen.nodes[2].sysfs), (&None, ""));
        let [usb] = &*seen.usb else {
            panic!("one stick: {:?}", seen.usb);
        };
        let found: Vec<(&str, &str)> = usb.nodes.iter().map(|(s, n)| (&**s, &*n.name)).collect();
        assert_eq!(
            found,
            [("tty", "/dev/ttyUSB1"), ("usb", "/dev/bus/usb/001/005")]
        );
        assert_eq!(usb.nodes[0].1.usb, Some(at));
        fs::remove_dir_all(&root).expect("removed");
    }

    /// Counts the devices about which it is asked.
    #[derive(Default)]
    struct Asked(AtomicUsize);

    impl DeviceFilter for Asked {
        fn wants_node(&self, _: &str) -> bool {
            false
        }

        fn wants_directory(&self, _: &str) -> bool {
            false
        }

        fn wants_usb_device(&self, _: &UsbPlace) -> bool {
            false
        }

        fn wants_any_usb(&self) -> bool {
            false
        }

        fn wants_any_udev(&self) -> bool {
            true
        }

        fn wants_subsystem(&self, _: &str) -> bool {
            self.0.fetch_add(1, Ordering::Relaxed);
            false
        }

        fn matching_udev_rules(&self, _: &str, _: &dyn NodeDeviceFacts) -> Vec<u16> {
            Vec::new()
        }

        fn wants_any_cdi(&self) -> bool {
            false
        }

        fn wanted_cdi_devices(&self, _: Value) -> Result<Vec<String>, WrongValue> {
            Ok(Vec::new())
        }
    }

    #[test]
    fn more_than_one_look_reads() {
        // DEV-33
        let root = crate::testing::unused_path("scan-much");
        let mut device = root.join("sys/devices");
        for _ in 0..MAX_LEVELS + 4 {
            device = device.join("d");
            put(&device, &[("uevent", "A=1\n")]);
        }
        let long = "x".repeat(600);
        let database = format!("E:A={}", "y".repeat(40 << 10));
        put(&device, &[("long", &long), ("broken", "")]);
        fs::write(device.join("broken"), b"a\xff").expect("written");
        put(&root, &[("database", &database)]);
        let facts = UdevDevice {
            levels: levels(&device),
            database: root.join("database"),
        };
        assert_eq!(facts.level_count(), MAX_LEVELS);
        assert_eq!(
            facts.attribute_at_level(0, "long").map(|text| text.len()),
            Some(512)
        );
        assert_eq!(
            facts.attribute_at_level(0, "broken").as_deref(),
            Some("a\u{fffd}")
        );
        assert_eq!(facts.attribute_at_level(0, "none"), None);
        assert_eq!(
            facts.attribute_at_level(MAX_LEVELS, "uevent"),
            None,
            "beyond"
        );
        assert_eq!(
            (facts.udev_database().len(), &*facts.kernel_uevent()),
            (32 << 10, "A=1")
        );
        symlink("/class/tty", device.join("subsystem")).expect("link");
        let char = root.join("sys/dev/char");
        fs::create_dir_all(&char).expect("directory");
        for minor in 0..MAX_DEVICES + 4 {
            symlink(&device, char.join(format!("4:{minor}"))).expect("link");
        }
        let asked = Asked::default();
        assert_eq!(scan_devices(&root, &asked), MachineDevices::default());
        assert_eq!(asked.0.load(Ordering::Relaxed), MAX_DEVICES);
        fs::remove_dir_all(&root).expect("removed");
    }
}
