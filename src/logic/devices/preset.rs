//! Entries that many boards need (DEV-37), under a name.

use alloc::{format, string::String, vec::Vec};

use super::declared::{DeviceEntry, DevicePattern, EntryAlternative, USB, UsbPattern};

/// Shares of a unit that many containers use at once.
const SHARED: u32 = 64;

/// Name, patterns, and shares of each unit. Sorted.
const PATHS: [(&str, &[&str], u32); 12] = [
    ("dri", &["/dev/dri/renderD*"], SHARED),
    ("fuse", &["/dev/fuse"], SHARED),
    ("gpio", &["/dev/gpiochip*"], SHARED),
    ("hailo", &["/dev/hailo[0-9]*"], 1),
    ("i2c", &["/dev/i2c-*"], SHARED),
    ("input", &["/dev/input/event*"], SHARED),
    ("kvm", &["/dev/kvm"], SHARED),
    ("rtc", &["/dev/rtc[0-9]*"], 1),
    (
        "serial",
        // The first name of a serial line is the one that is given: the lasting one.
        &[
            "/dev/serial/by-id/*",
            "/dev/ttyUSB*",
            "/dev/ttyACM*",
            "/dev/ttyAMA*",
        ],
        1,
    ),
    ("spi", &["/dev/spidev*"], 1),
    ("tun", &["/dev/net/tun"], SHARED),
    ("watchdog", &["/dev/watchdog[0-9]*"], 1),
];
/// Accelerators that return as another device after their first use: containers have to see that (DEV-45).
const CORAL: (&str, [(u16, u16); 2]) = ("coral", [(0x1a6e, 0x089a), (0x18d1, 0x9302)]);
/// Directory in which the drivers of Coral accelerators look for them.
const CORAL_PLACE: &str = "/dev/bus/usb";

/// The entry of that name.
pub(super) fn preset_entry(name: &str) -> Option<DeviceEntry> {
    let is_coral = name == CORAL.0;
    let (matches, shares) = if is_coral {
        let of = |(vendor, product)| {
            EntryAlternative::Each(DevicePattern::Usb(UsbPattern {
                vendor,
                product,
                nodes: USB.into(),
                ..UsbPattern::default()
            }))
        };
        (CORAL.1.into_iter().map(of).collect(), 1)
    } else {
        let (_, patterns, shares) = PATHS.iter().find(|(known, ..)| *known == name)?;
        let each = |pattern: &&str| EntryAlternative::Each(DevicePattern::Path((*pattern).into()));
        (patterns.iter().map(each).collect(), *shares)
    };
    Some(DeviceEntry {
        resource: format!("picolet/{name}"),
        matches,
        shares,
        permissions: "rw".into(),
        container_path: if is_coral { CORAL_PLACE } else { "" }.into(),
        live: is_coral,
        ..DeviceEntry::default()
    })
}

/// All names, for people.
pub(super) fn preset_names() -> String {
    let mut all: Vec<&str> = PATHS.iter().map(|(name, ..)| *name).collect();
    all.insert(0, CORAL.0);
    all.join(", ")
}
