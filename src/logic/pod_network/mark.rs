//! Mark of the network that this agent made: the boot, and the numbers of its things (PROX-28).

use alloc::{format, string::String};

/// Numbers by which the kernel knows the devices of both families, and the file for plugins, in this boot; 0: there is
/// none.
pub type ThingNumbers = [u64; 3];
/// Place of the file among them.
pub const FILE: usize = 2;
/// Word for a device that is not about to be made.
const NOT_BEFORE: &str = "-";

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetworkMark {
    /// Things that this agent made. Another program's device that fits is used, and stays that program's.
    own: ThingNumbers,
    /// Number of the file when the last of them was made, whoever wrote it.
    seen_file: u64,
    /// Numbers that devices had when they were about to be made: one that has another number now was made.
    before: [Option<u64>; FILE],
}

impl NetworkMark {
    /// Writes the mark of a boot.
    #[must_use]
    pub fn format(&self, boot: &str) -> String {
        let [v4, v6, file] = self.own;
        let [v4_before, v6_before] = self
            .before
            .map(|number| number.map_or_else(|| NOT_BEFORE.into(), |number| format!("{number}")));
        let seen = self.seen_file;
        format!("{boot} {v4} {v6} {file} {seen} {v4_before} {v6_before}")
    }

    /// Reads a mark; `None`: it is of another boot, or names nothing.
    #[must_use]
    pub fn parse(text: &str, boot: &str) -> Option<Self> {
        let mut words = text.split(' ');
        if words.next()? != boot {
            return None;
        }
        let mut mark = Self::default();
        for number in mark.own.iter_mut().chain([&mut mark.seen_file]) {
            *number = words.next()?.parse().ok()?;
        }
        for number in &mut mark.before {
            *number = match words.next()? {
                NOT_BEFORE => None,
                word => Some(word.parse().ok()?),
            };
        }
        Some(mark)
    }

    /// Returns the mark with what was `made` since, as it is `found`, and with what an agent was about to make and did.
    ///
    /// A real flannel that starts keeps a device that fits, but writes the file anew: then all is its own.
    #[must_use]
    pub fn settle(&self, found: ThingNumbers, made: [bool; 3]) -> Self {
        let was_made = |thing: usize| {
            let before = self.before.get(thing).copied().flatten();
            before.is_some_and(|before| ![0, before].contains(&found[thing]))
        };
        let is_taken_over = !made[FILE] && ![0, self.seen_file].contains(&found[FILE]);
        let own = core::array::from_fn(|thing| match made[thing] {
            true => found[thing],
            false if is_taken_over => 0,
            false if was_made(thing) => found[thing],
            false => self.own[thing],
        });
        let seen_file = match made.contains(&true) {
            true => found[FILE],
            false => self.seen_file,
        };
        // What could not be made is tried again, and was said already.
        let before = core::array::from_fn(|thing| {
            let is_made = made[thing] || was_made(thing);
            self.before[thing].filter(|_| !is_made)
        });
        Self {
            own,
            seen_file,
            before,
        }
    }

    /// Returns the mark from before a `device` is made. If the agent dies before it notes that, the next one knows.
    #[must_use]
    pub fn announce(&self, device: usize, found: ThingNumbers) -> Self {
        let mut mark = *self;
        mark.before[device] = Some(found[device]);
        mark.seen_file = found[FILE];
        mark
    }

    /// Chooses the things that may be removed: those that are there under the number that was noted.
    #[must_use]
    pub fn removable_numbers(&self, found: ThingNumbers) -> ThingNumbers {
        let own = self.settle(found, [false; 3]).own;
        core::array::from_fn(|thing| match found[thing] == own[thing] {
            true => found[thing],
            false => 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [bool; 3] = [false; 3];
    const DEVICE: [bool; 3] = [true, false, false];

    fn mark(own: ThingNumbers, seen_file: u64) -> NetworkMark {
        NetworkMark {
            own,
            seen_file,
            ..NetworkMark::default()
        }
    }

    #[test]
    fn only_what_was_made_is_noted_and_removed() {
        // PROX-28
        let (new, all) = (NetworkMark::default(), mark([7, 0, 9], 9));
        for (what, found, noted, made, removable) in [
            ("all made", [7, 8, 9], new, [true; 3], [7, 8, 9]),
            (
                "a device of flannel that fits",
                [7, 0, 9],
                new,
                [false, false, true],
                [0, 0, 9],
            ),
            (
                "a device of flannel, and its file",
                [7, 0, 9],
                new,
                NONE,
                [0; 3],
            ),
            ("a file of flannel", [7, 0, 9], new, DEVICE, [7, 0, 0]),
            ("as before", [7, 0, 9], all, NONE, [7, 0, 9]),
            ("another's device", [8, 0, 9], all, NONE, [0, 0, 9]),
            ("made anew", [8, 0, 9], all, DEVICE, [8, 0, 9]),
            ("taken over", [7, 0, 10], all, NONE, [0; 3]),
            (
                "taken over, the file before was another's too",
                [7, 0, 10],
                mark([7, 0, 0], 9),
                NONE,
                [0; 3],
            ),
            (
                "taken over, no file before",
                [7, 0, 10],
                mark([7, 0, 0], 0),
                NONE,
                [0; 3],
            ),
            (
                "taken over, the second family made later",
                [7, 8, 10],
                all,
                [false, true, false],
                [0, 8, 0],
            ),
            ("without the file", [7, 0, 0], all, NONE, [7, 0, 0]),
        ] {
            let own = noted.settle(found, made);
            assert_eq!(own.removable_numbers(found), removable, "{what}");
        }
    }

    #[test]
    fn what_an_agent_made_before_it_died_is_its_own() {
        // PROX-28
        let (new, all) = (NetworkMark::default(), mark([7, 0, 9], 9));
        for (what, noted, device, before, found, removable) in [
            ("a device", new, 0, [0, 0, 9], [7, 0, 9], [7, 0, 0]),
            ("no device", new, 0, [0, 0, 9], [0, 0, 9], [0; 3]),
            ("one that fits not", new, 0, [6, 0, 9], [6, 0, 9], [0; 3]),
            ("its successor", new, 0, [6, 0, 9], [7, 0, 9], [7, 0, 0]),
            ("still the own", all, 0, [7, 0, 9], [7, 0, 9], [7, 0, 9]),
            ("one of flannel", new, 0, [0, 0, 9], [7, 0, 10], [0; 3]),
        ] {
            let noted = noted.announce(device, before);
            assert_eq!(noted.removable_numbers(found), removable, "{what}");
            let settled = noted.settle(found, NONE);
            let is_made = found[device] != before[device];
            assert_eq!(settled.before[device].is_none(), is_made, "{what}");
            // A look that finds the same writes nothing.
            assert_eq!(settled.settle(found, NONE), settled, "{what}");
            if !is_made {
                assert_eq!(settled.announce(device, found), settled, "{what}");
            }
            assert_eq!(settled.removable_numbers(found), removable, "{what}");
        }
    }

    #[test]
    fn marks_are_of_one_boot() {
        // PROX-28
        for mark in [mark([7, 0, 9], 10), mark([7, 0, 9], 10).announce(1, [0; 3])] {
            let text = mark.format("b");
            assert_eq!(NetworkMark::parse(&text, "b"), Some(mark));
            assert_eq!(NetworkMark::parse(&text, "c"), None);
        }
        // An older version wrote an empty one, which names nothing: nothing is removed.
        for text in ["", "b 7", "b 7 0 9", "b x 0 9 9 - -", "b 7 0 9 9 - x"] {
            assert_eq!(NetworkMark::parse(text, "b"), None, "{text:?}");
        }
    }
}
