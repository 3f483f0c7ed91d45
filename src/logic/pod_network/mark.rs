//! Mark of the network that this agent made: the boot, and the numbers of its things (PROX-28).

use alloc::{format, string::String};

/// Numbers by which the kernel knows the devices of both families, and the file for plugins, in this boot; 0: there is
/// none.
pub type ThingNumbers = [u64; 3];
/// Place of the file among them.
pub const FILE: usize = 2;

/// Writes the mark of a boot.
#[must_use]
pub fn format_mark(boot: &str, [v4, v6, file]: ThingNumbers) -> String {
    format!("{boot} {v4} {v6} {file}")
}

/// Reads a mark; `None`: it is of another boot, or names nothing.
#[must_use]
pub fn parse_mark(text: &str, boot: &str) -> Option<ThingNumbers> {
    let mut words = text.split(' ');
    if words.next()? != boot {
        return None;
    }
    let mut numbers = ThingNumbers::default();
    for number in &mut numbers {
        *number = words.next()?.parse().ok()?;
    }
    Some(numbers)
}

/// Chooses the numbers to note: `found` of things that this agent has `made` since, as `noted` of the others. Another
/// program's device that fits is used, and stays that program's.
#[must_use]
pub fn own_numbers(found: ThingNumbers, noted: ThingNumbers, made: [bool; 3]) -> ThingNumbers {
    core::array::from_fn(|thing| match made[thing] {
        true => found[thing],
        false => noted[thing],
    })
}

/// Chooses the things that may be removed: those that are there under the number that was noted. A real flannel that
/// starts keeps a device that fits, but writes the file anew: then all is its own.
#[must_use]
pub fn removable_numbers(found: ThingNumbers, noted: ThingNumbers) -> ThingNumbers {
    let is_taken_over = noted[FILE] != 0 && ![0, noted[FILE]].contains(&found[FILE]);
    core::array::from_fn(|thing| match found[thing] == noted[thing] {
        true if !is_taken_over => found[thing],
        _ => 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_made_is_noted_and_removed() {
        // PROX-28
        for (what, found, noted, made, removable) in [
            ("all made", [7, 8, 9], [0; 3], [true; 3], [7, 8, 9]),
            (
                "a device of flannel that fits",
                [7, 0, 9],
                [0; 3],
                [false, false, true],
                [0, 0, 9],
            ),
            (
                "a device of flannel, and its file",
                [7, 0, 9],
                [0; 3],
                [false; 3],
                [0; 3],
            ),
            ("as before", [7, 0, 9], [7, 0, 9], [false; 3], [7, 0, 9]),
            (
                "another's device",
                [8, 0, 9],
                [7, 0, 9],
                [false; 3],
                [0, 0, 9],
            ),
            (
                "made anew",
                [8, 0, 9],
                [7, 0, 9],
                [true, false, false],
                [8, 0, 9],
            ),
            ("taken over", [7, 0, 10], [7, 0, 9], [false; 3], [0; 3]),
            (
                "without the file",
                [7, 0, 0],
                [7, 0, 9],
                [false; 3],
                [7, 0, 0],
            ),
        ] {
            let own = own_numbers(found, noted, made);
            assert_eq!(removable_numbers(found, own), removable, "{what}");
        }
    }

    #[test]
    fn marks_are_of_one_boot() {
        // PROX-28
        let mark = format_mark("b", [7, 0, 9]);
        assert_eq!(parse_mark(&mark, "b"), Some([7, 0, 9]));
        // An older version wrote an empty one, which names nothing: nothing is removed.
        for (text, boot) in [(&*mark, "c"), ("", "b"), ("b 7", "b"), ("b x 0 9", "b")] {
            assert_eq!(parse_mark(text, boot), None, "{text:?}");
        }
    }
}
