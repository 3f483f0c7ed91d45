//! Hash of the parts of a container whose change makes a running instance obsolete: its name and its image, nothing
//! else (ACT-42). It is equal to a kubelet's. So no container restarts when picolet takes a node over from a kubelet,
//! or a kubelet from picolet (CRI-94).

use alloc::{format, string::String};
use core::fmt::Write as _;

use crate::api::Container;
use crate::fnv::{fnv1a, fnv1a_32};

/// Hash that is written with each instance: FNV-1a, 32 bit, over the way in which Go prints the bytes of a JSON text.
///
/// Source: kubelet `container/helpers.go`, `HashContainer`.
#[must_use]
pub fn spec_hash(container: &Container) -> u64 {
    let text = name_and_image_json(container);
    let mut printed = String::from("([]uint8)[");
    for (at, byte) in text.bytes().enumerate() {
        let space = if at > 0 { " " } else { "" };
        let _ = write!(printed, "{space}{byte}");
    }
    printed.push(']');
    fnv1a_32(printed.bytes()).into()
}

/// Returns true if an instance that was written with this hash matches the container as it is now.
#[must_use]
pub fn is_spec_hash_current(container: &Container, hash: u64) -> bool {
    hash == spec_hash(container) || hash == first_hash(container)
}

/// Hash that the first versions wrote: FNV-1a, 64 bit, over `name 0xff image`.
fn first_hash(container: &Container) -> u64 {
    let name = container.name.bytes().chain([0xff]);
    fnv1a(name.chain(container.image.bytes()))
}

/// Name and image as Go writes them in JSON, keys sorted.
fn name_and_image_json(container: &Container) -> String {
    let (image, name) = (quoted(&container.image), quoted(&container.name));
    format!("{{\"image\":{image},\"name\":{name}}}")
}

/// A string as Go writes it, which also keeps it out of the way of HTML and JavaScript.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        let _ = match c {
            '"' | '\\' => write!(quoted, "\\{c}"),
            '\n' => quoted.write_str("\\n"),
            '\r' => quoted.write_str("\\r"),
            '\t' => quoted.write_str("\\t"),
            '\u{8}' => quoted.write_str("\\b"),
            '\u{c}' => quoted.write_str("\\f"),
            '\0'..' ' | '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                write!(quoted, "\\u{:04x}", u32::from(c))
            }
            c => quoted.write_char(c),
        };
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container(name: &str, image: &str) -> Container {
        Container {
            name: name.into(),
            image: image.into(),
            ..Container::default()
        }
    }

    #[test]
    fn hashes_are_those_of_a_kubelet() {
        // ACT-42 CRI-94
        for (name, image, hash) in [
            // The first is a kubelet's own test value; the others were computed from the text apart from this code.
            ("test_container", "foo/image:v1", 0x8e45_cbd0),
            ("main", "picolet.test/app:1", 0x695c_d452),
            ("main", "picolet.test/app:2", 0x05a6_4f38),
            ("side", "picolet.test/app:1", 0xb0f8_74aa),
            ("a", "", 0x033f_2e30),
            ("é", "i", 0x2814_604b),
            ("x", "a<&>\"\\b\n", 0x092d_5571),
        ] {
            let hash_is = spec_hash(&container(name, image));
            assert_eq!(hash_is, hash, "{name} {image}: {hash_is:x}");
            assert!(is_spec_hash_current(&container(name, image), hash));
        }
    }

    #[test]
    fn only_name_and_image_count() {
        // ACT-42
        let base = container("a", "i");
        let mut other = base.clone();
        other.working_dir = "/x".into();
        other.command = alloc::vec!["y".into()];
        assert!(is_spec_hash_current(&other, spec_hash(&base)));
        for changed in [container("a", "i2"), container("b", "i")] {
            assert!(!is_spec_hash_current(&changed, spec_hash(&base)));
            assert!(!is_spec_hash_current(&changed, first_hash(&base)));
        }
        // Stored by earlier versions: it counts as long as their containers run.
        let first = first_hash(&container("a", "i"));
        assert_eq!(first, 0xe57d_9819_03de_2500);
        assert!(is_spec_hash_current(&base, first));
        assert!(!is_spec_hash_current(&base, 0), "written by nobody");
    }
}
