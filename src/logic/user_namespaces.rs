//! Host ids of pods with a user namespace (`hostUsers: false`): which range a pod gets, and the file that keeps it.
//!
//! Every range begins at a multiple of its length and above the ids of the machine itself. No two pods of one agent share
//! an id, so what breaks out of one pod owns nothing of another one. Two agents on one machine know nothing of each other,
//! and give the same ids.

use alloc::{
    string::{String, ToString as _},
    vec::Vec,
};

use serde_json::Value;

use crate::api::{PodError, cri::IdMap};

/// Ids that a pod gets if `userNamespaces.idsPerPod` does not say otherwise, and the unit of that setting.
pub const DEFAULT_IDS_PER_POD: u32 = 65_536;
/// Number of ids that a host has: 2^32 - 1 is none, the kernel refuses a map that has it. Source: user_namespaces(7).
const ALL_IDS: u64 = (1 << 32) - 1;
/// Entries of a damaged file that are looked at.
const MAX_ENTRIES: usize = 64;

/// Ids of the host that pods may get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodIds {
    /// First id.
    first: u64,
    /// Number of ids.
    length: u64,
    /// Ids of one pod.
    per_pod: u32,
}

impl PodIds {
    /// All ids of the host but the first ones: those belong to the machine.
    #[must_use]
    pub fn of_whole_host(per_pod: u32) -> Self {
        let first = u64::from(per_pod);
        Self {
            first,
            length: ALL_IDS.saturating_sub(first),
            per_pod,
        }
    }

    /// The ids that the machine has set aside for the user `kubelet`, as `getsubids` tells them: once for users and
    /// once for groups.
    ///
    /// # Errors
    /// They differ, cannot be read, do not fit the size of a pod's range, or are too few for `max_pods`.
    pub fn from_sub_ids(
        users: &str,
        groups: &str,
        per_pod: u32,
        max_pods: u32,
    ) -> Result<Self, PodError> {
        if users != groups {
            let why = "mismatched subuids and subgids for user \"kubelet\"";
            return Err(PodError::Node(why.into()));
        }
        // "0: kubelet 65536 2147483648", and no other line.
        let words: Vec<&str> = users.split_whitespace().collect();
        let number = |word: &str| word.parse::<u64>().ok().filter(|n| *n < ALL_IDS);
        let read = match words[..] {
            [_, _, first, length] => number(first).zip(number(length)),
            _ => None,
        };
        let Some((first, length)) = read else {
            return Err(PodError::Node(format!(
                "getsubids says {users:?} for user \"kubelet\": it must be one range"
            )));
        };
        let unit = u64::from(per_pod);
        let wrong = |why: String| Err(PodError::Node(format!("kubelet user assigned {why}")));
        if first % unit != 0 || first < unit {
            return wrong(format!("ID {first} is not a multiple of {per_pod} above 0"));
        }
        if length % unit != 0 || first + length > ALL_IDS + 1 {
            return wrong(format!(
                "IDs length {length} is not a multiple of {per_pod}"
            ));
        }
        let ids = Self {
            first,
            length: length.min(ALL_IDS - first),
            per_pod,
        };
        match ids.count_ranges() < u64::from(max_pods) {
            true => wrong(format!("IDs are not enough to support {max_pods} pods")),
            false => Ok(ids),
        }
    }

    /// Number of pods that can have a range each.
    #[must_use]
    pub fn count_ranges(&self) -> u64 {
        self.length / u64::from(self.per_pod)
    }

    /// Chooses the lowest range that overlaps none of `taken`; `None`: all are taken.
    #[must_use]
    pub fn choose_range(&self, taken: &[IdMap]) -> Option<IdMap> {
        let unit = u64::from(self.per_pod);
        let mut host_id = self.first;
        // Bounded: each round that goes on jumps behind one of `taken`.
        while host_id + unit <= self.first + self.length {
            let overlaps = |map: &&IdMap| {
                let begin = u64::from(map.host_id);
                begin < host_id + unit && host_id < begin + u64::from(map.length)
            };
            match taken.iter().find(overlaps) {
                Some(map) => {
                    let end = u64::from(map.host_id) + u64::from(map.length);
                    host_id = end.div_ceil(unit) * unit;
                }
                None => {
                    return Some(IdMap {
                        host_id: u32::try_from(host_id).ok()?,
                        length: self.per_pod,
                    });
                }
            }
        }
        None
    }
}

/// Text of the file `userns` in the directory of a pod. A kubelet reads and writes the same (UNS-21).
#[must_use]
pub fn write_map_file(map: IdMap) -> String {
    let IdMap { host_id, length } = map;
    let one = format!(r#"[{{"hostId":{host_id},"containerId":0,"length":{length}}}]"#);
    format!(r#"{{"uidMappings":{one},"gidMappings":{one}}}"#)
}

/// Reads the file `userns` of a pod.
///
/// # Errors
/// It is not what [`write_map_file`] writes: the pod cannot run then.
pub fn read_map_file(text: &[u8]) -> Result<IdMap, PodError> {
    let wrong = |why: &str| {
        let why = format!("invalid user namespace mappings file: {why}");
        Err(PodError::Node(why))
    };
    let value: Value = match serde_json::from_slice(text) {
        Ok(value) => value,
        Err(e) => return wrong(&e.to_string()),
    };
    let (users, groups) = (list_entries(&value, USERS), list_entries(&value, GROUPS));
    let ([Some((0, map))], true) = (&users[..], users == groups) else {
        return wrong("it must have one range of users from 0 on, and the same of groups");
    };
    let end = u64::from(map.host_id) + u64::from(map.length);
    // Id 0 of a pod must never be one of the machine's own.
    if map.length < DEFAULT_IDS_PER_POD || map.host_id < DEFAULT_IDS_PER_POD || end > ALL_IDS {
        return wrong("its range is too short, or not above the ids of the machine");
    }
    Ok(*map)
}

/// Ids of a pod whose sandbox lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdsInUse {
    /// The ids.
    pub ids: IdMap,
    /// Reason why the pod's file has to be written again, with these.
    pub lost: Option<String>,
}

/// Finds the ids of a pod whose sandbox lives: those that it was `made_with`, whatever the pod's file says (`kept`). A
/// runtime that does not tell them leaves the file.
///
/// # Errors
/// Neither says them. Others must not be chosen then: they would not be those of the sandbox.
pub fn find_ids_in_use(
    kept: Result<Option<IdMap>, PodError>,
    made_with: Option<IdMap>,
) -> Result<IdsInUse, PodError> {
    let Some(ids) = made_with else {
        let lost = || PodError::Node("user namespace mappings file is lost".into());
        let ids = kept?.ok_or_else(lost)?;
        return Ok(IdsInUse { ids, lost: None });
    };
    let lost = match kept {
        Ok(Some(kept)) if kept == ids => None,
        Ok(Some(_)) => Some("user namespace mappings file has other ids".into()),
        Ok(None) => Some("user namespace mappings file is lost".into()),
        Err(e) => Some(e.to_string()),
    };
    Ok(IdsInUse { ids, lost })
}

const USERS: &str = "uidMappings";
const GROUPS: &str = "gidMappings";

/// Entries of one list: the first id in the namespace, and the ids of the host. `None` for one that cannot be read.
fn list_entries(value: &Value, key: &str) -> Vec<Option<(u32, IdMap)>> {
    let number = |entry: &Value, key| u32::try_from(entry[key].as_u64()?).ok();
    let entry = |entry: &Value| {
        let map = IdMap {
            host_id: number(entry, "hostId")?,
            length: number(entry, "length")?,
        };
        Some((number(entry, "containerId")?, map))
    };
    let all = value[key].as_array().into_iter().flatten();
    all.take(MAX_ENTRIES).map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn map(host_id: u32, length: u32) -> IdMap {
        IdMap { host_id, length }
    }

    #[test]
    fn pods_share_no_ids() {
        // CFG-14 UNS-30
        let all = PodIds::of_whole_host(DEFAULT_IDS_PER_POD);
        let mut taken = Vec::new();
        for n in 1..=110 {
            let chosen = all.choose_range(&taken).expect("free");
            assert_eq!(chosen, map(n * 65_536, 65_536));
            taken.push(chosen);
        }
        // What is given back is given again.
        taken.remove(3);
        assert_eq!(all.choose_range(&taken), Some(map(4 * 65_536, 65_536)));
        // A range of an earlier setting, and one that lies across two.
        for odd in [map(65_536, 3 * 65_536), map(100_000, 131_072)] {
            let chosen = all.choose_range(&[odd]).expect("free");
            assert_eq!(chosen.host_id, 4 * 65_536, "{odd:?}");
        }
        let wide = PodIds::of_whole_host(131_072);
        let below = map(65_536, 65_536);
        assert_eq!(wide.choose_range(&[below]), Some(map(131_072, 131_072)));
    }

    #[test]
    fn ids_end() {
        // UNS-30
        let few = PodIds::from_sub_ids(
            "0: kubelet 65536 131072",
            "0: kubelet 65536 131072",
            65_536,
            2,
        );
        let few = few.expect("two pods");
        let taken = [map(65_536, 65_536), map(131_072, 65_536)];
        assert_eq!(few.choose_range(&taken[..1]), Some(taken[1]));
        assert_eq!(few.choose_range(&taken), None);
        let all = PodIds::of_whole_host(DEFAULT_IDS_PER_POD);
        // The last whole block has 2^32 - 1, which is no id.
        let top = map(u32::MAX - 131_071, 65_536);
        let rest = map(65_536, u32::MAX - 3 * 65_536 + 1);
        assert_eq!(all.choose_range(&[rest]), Some(top));
        assert_eq!(all.choose_range(&[rest, top]), None);
        assert_eq!(all.count_ranges(), 65_534);
        assert_eq!(PodIds::of_whole_host(1 << 31).count_ranges(), 0);
        let line = "0: kubelet 4294836224 131072";
        let of_user = PodIds::from_sub_ids(line, line, 65_536, 1).expect("one pod");
        assert_eq!(of_user.choose_range(&[]), Some(top));
        assert_eq!(of_user.choose_range(&[top]), None);
        assert!(PodIds::from_sub_ids(line, line, 65_536, 2).is_err());
    }

    #[test]
    fn ids_of_the_user_kubelet() {
        // UNS-30
        let line = "0: kubelet 131072 7208960\n";
        let ids = PodIds::from_sub_ids(line, line, 65_536, 110).expect("ids");
        assert_eq!(ids.choose_range(&[]), Some(map(131_072, 65_536)));
        for (users, groups, per_pod, says) in [
            (line, "", 65_536, "mismatched subuids and subgids for user"),
            ("", "", 65_536, "it must be one range"),
            ("a b\n0: kubelet 65536 7208960", "", 65_536, "mismatched"),
            (
                "0: kubelet 1 7208960",
                "0: kubelet 1 7208960",
                65_536,
                "ID 1 is not a multiple",
            ),
            (
                "0: kubelet 0 7208960",
                "0: kubelet 0 7208960",
                65_536,
                "above 0",
            ),
            (
                "0: kubelet 65536 7208961",
                "0: kubelet 65536 7208961",
                65_536,
                "length 7208961",
            ),
            (
                "0: kubelet 65536 65536",
                "0: kubelet 65536 65536",
                65_536,
                "IDs are not enough to support 110 pods",
            ),
            (
                line,
                line,
                131_072,
                "IDs are not enough to support 110 pods",
            ),
            (
                "0: kubelet 99999999999 1",
                "0: kubelet 99999999999 1",
                65_536,
                "must be one range",
            ),
        ] {
            let refused = PodIds::from_sub_ids(users, groups, per_pod, 110);
            let why = refused.expect_err(users).to_string();
            assert!(why.contains(says), "{why}");
        }
    }

    #[test]
    fn files_of_maps() {
        // UNS-21
        let text = write_map_file(map(131_072, 65_536));
        assert_eq!(
            text,
            r#"{"uidMappings":[{"hostId":131072,"containerId":0,"length":65536}],"gidMappings":[{"hostId":131072,"containerId":0,"length":65536}]}"#
        );
        assert_eq!(read_map_file(text.as_bytes()), Ok(map(131_072, 65_536)));
        for (from, to) in [
            ("131072", "0"),
            ("131072", "131072.5"),
            ("131072", "4294967295"),
            ("131072", "4294901760"),
            ("65536", "1"),
            ("\"containerId\":0", "\"containerId\":1"),
            ("gidMappings", "gids"),
            ("}]", "},{}]"),
            ("{\"uid", "uid"),
        ] {
            let bad = text.replace(from, to);
            assert!(read_map_file(bad.as_bytes()).is_err(), "{bad}");
        }
        let other = text.replacen("131072", "262144", 1);
        assert!(read_map_file(other.as_bytes()).is_err(), "{other}");
    }

    #[test]
    fn a_sandbox_keeps_its_ids() {
        // UNS-31
        let [own, other] = [map(131_072, 65_536), map(262_144, 65_536)];
        let damaged = || Err(PodError::Node("damaged".into()));
        for (kept, lost) in [
            (Ok(Some(own)), false),
            (Ok(Some(other)), true),
            (Ok(None), true),
            (damaged(), true),
        ] {
            let found = find_ids_in_use(kept.clone(), Some(own)).expect("ids");
            assert_eq!((found.ids, found.lost.is_some()), (own, lost), "{kept:?}");
        }
        // A runtime that does not tell them.
        let found = find_ids_in_use(Ok(Some(other)), None).expect("ids");
        assert_eq!((found.ids, found.lost), (other, None));
        for kept in [Ok(None), damaged()] {
            assert!(find_ids_in_use(kept.clone(), None).is_err(), "{kept:?}");
        }
    }
}
