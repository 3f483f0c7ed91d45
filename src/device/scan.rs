//! One look at `/dev` and `/sys`.
//!
//! Source: sysfs(5), `Documentation/ABI/stable/sysfs-dev`, `Documentation/ABI/testing/sysfs-bus-usb`.

use std::{
    fs,
    io::Read as _,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

use crate::api::{
    device::{Node, Place, Seen, Usb, Wanted},
    order::Order as _,
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
/// Bytes of an attribute.
const MAX_ATTRIBUTE: u64 = 512;
/// Subsystem of the nodes below `/dev/bus/usb`.
const USB: &str = "usb";

/// See [`super::Machine::look`].
pub(super) fn look(root: &Path, wanted: &dyn Wanted) -> Seen {
    let places = Places {
        root: root.to_path_buf(),
        sys: root.join("sys"),
    };
    let mut seen = Seen::default();
    let mut left = MAX_ENTRIES;
    if wanted.directory("/dev") {
        places.nodes_below("/dev", wanted, &mut left, &mut seen.nodes);
    }
    if wanted.any_usb() {
        seen.usb = places.usb(wanted);
    }
    seen.nodes.order_by(|a, b| a.name.cmp(&b.name));
    seen
}

struct Places {
    root: PathBuf,
    sys: PathBuf,
}

impl Places {
    /// The path on the machine of what is called `name`.
    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name.trim_start_matches('/'))
    }

    fn nodes_below(&self, dir: &str, wanted: &dyn Wanted, left: &mut usize, nodes: &mut Vec<Node>) {
        let entries = fs::read_dir(self.path(dir)).into_iter().flatten();
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
                if wanted.directory(&name) {
                    self.nodes_below(&name, wanted, left, nodes);
                }
            } else if wanted.node(&name) {
                nodes.extend(self.node(name));
            }
        }
    }

    /// The node of that name, or to which that leads; `None` if there is none.
    fn node(&self, name: String) -> Option<Node> {
        let path = fs::canonicalize(self.path(&name)).ok()?;
        // A link out of it leads to what is nobody's to give.
        if !path.starts_with(fs::canonicalize(self.path("/dev")).ok()?) {
            return None;
        }
        let metadata = fs::metadata(&path).ok()?;
        let kind = metadata.file_type();
        if !kind.is_char_device() && !kind.is_block_device() {
            return None;
        }
        let number = metadata.rdev();
        let part = |part: u64| u32::try_from(part).ok();
        let mut node = Node {
            name,
            path: path.into_os_string().into_string().ok()?,
            block: kind.is_block_device(),
            major: part(libc::major(number).into())?,
            minor: part(libc::minor(number).into())?,
            ..Node::default()
        };
        let kind = if node.block { "block" } else { "char" };
        let link = format!("dev/{kind}/{}:{}", node.major, node.minor);
        if let Ok(device) = fs::canonicalize(self.sys.join(link)) {
            node.usb = place(&device);
            node.sysfs = self.below_sys(&device);
        }
        Some(node)
    }

    fn below_sys(&self, device: &Path) -> String {
        let sys = fs::canonicalize(&self.sys).unwrap_or_default();
        let below = device.strip_prefix(sys).unwrap_or(device);
        format!("/{}", below.display())
    }

    fn usb(&self, wanted: &dyn Wanted) -> Vec<Usb> {
        let dir = self.sys.join("bus/usb/devices");
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        let mut all = Vec::new();
        for entry in entries.take(MAX_USB) {
            let Ok(device) = fs::canonicalize(entry.path()) else {
                continue;
            };
            // Interfaces are there too, and have no product.
            let Some(place) = of_device(&device) else {
                continue;
            };
            if wanted.usb(&place) {
                let nodes = self.nodes_of(&device, &place);
                all.push(Usb { place, nodes });
            }
        }
        all.order_by(|a, b| a.place.port.cmp(&b.place.port));
        all
    }

    fn nodes_of(&self, device: &Path, place: &Place) -> Vec<(String, Node)> {
        let mut nodes = Vec::new();
        let number = |name: &str| attribute(device, name)?.parse::<u16>().ok();
        if let (Some(bus), Some(number)) = (number("busnum"), number("devnum")) {
            let own = self.node(format!("/dev/bus/usb/{bus:03}/{number:03}"));
            nodes.extend(own.map(|node| {
                let usb = Some(place.clone());
                (USB.to_owned(), Node { usb, ..node })
            }));
        }
        let mut left = MAX_DIRECTORIES;
        self.nodes_under(device, MAX_DEPTH, &mut left, &mut nodes);
        nodes.order_by(|a, b| (&a.0, &a.1.name).cmp(&(&b.0, &b.1.name)));
        nodes
    }

    fn nodes_under(
        &self,
        dir: &Path,
        depth: usize,
        left: &mut usize,
        nodes: &mut Vec<(String, Node)>,
    ) {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        for entry in entries {
            if *left == 0 || depth == 0 || nodes.len() >= MAX_NODES {
                return;
            }
            let path = entry.path();
            // What is plugged into a hub is another device.
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) || path.join("idVendor").exists()
            {
                continue;
            }
            *left -= 1;
            if path.join("dev").exists() {
                nodes.extend(self.node_of(&path));
            }
            self.nodes_under(&path, depth - 1, left, nodes);
        }
    }

    /// The node that the kernel has made for a device, with its subsystem.
    fn node_of(&self, device: &Path) -> Option<(String, Node)> {
        let event = attribute(device, "uevent")?;
        let name = event.lines().find_map(|l| l.strip_prefix("DEVNAME="))?;
        let subsystem = fs::read_link(device.join("subsystem")).ok()?;
        let subsystem = subsystem.file_name()?.to_str()?.to_owned();
        let node = self.node(format!("/dev/{name}"))?;
        let numbers = attribute(device, "dev")?;
        // A node that another device had before this one is as good as none.
        (numbers == format!("{}:{}", node.major, node.minor)).then_some((subsystem, node))
    }
}

/// Where on the USB a device is, or what it belongs to.
fn place(device: &Path) -> Option<Place> {
    let mut interface = "";
    for dir in device.ancestors() {
        if dir.join("idVendor").exists() {
            let interface = interface.to_owned();
            return of_device(dir).map(|place| Place { interface, ..place });
        }
        let name = dir.file_name()?.to_str()?;
        interface = name.split_once(':').map_or("", |(_, interface)| interface);
    }
    None
}

fn of_device(device: &Path) -> Option<Place> {
    let hex = |name: &str| u16::from_str_radix(&attribute(device, name)?, 16).ok();
    Some(Place {
        port: device.file_name()?.to_str()?.to_owned(),
        interface: String::new(),
        product: (hex("idVendor")?, hex("idProduct")?),
        serial: attribute(device, "serial").unwrap_or_default(),
    })
}

fn attribute(device: &Path, name: &str) -> Option<String> {
    let mut text = String::new();
    let file = fs::File::open(device.join(name)).ok()?;
    file.take(MAX_ATTRIBUTE).read_to_string(&mut text).ok()?;
    Some(text.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use nix::sys::stat::{Mode, SFlag, makedev, mknod};

    use super::*;

    /// Everything.
    struct All;

    impl Wanted for All {
        fn node(&self, _: &str) -> bool {
            true
        }

        fn directory(&self, path: &str) -> bool {
            !path.ends_with("/pts")
        }

        fn usb(&self, place: &Place) -> bool {
            place.product.0 == 0x403
        }

        fn any_usb(&self) -> bool {
            true
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
        let root = std::env::temp_dir().join(format!("picolet-scan-{}", std::process::id()));
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
        let seen = look(&root, &All);
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
        let at = Place {
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
}
