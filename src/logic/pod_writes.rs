//! Limit of a pod's writes to the disk of the root directory, and a count of the pods that write much in a day
//! (WEAR-07).

use alloc::{
    collections::BTreeMap,
    string::{String, ToString as _},
    vec::Vec,
};

use serde::{Deserialize, Serialize};

use crate::api::{Pod, PodError, PodUid, Quantity};

/// The control file of version 2 that limits a group.
pub const FILE: &str = "io.max";
/// Annotation of a pod that may write less than others, bytes a second.
const ANNOTATION: &str = "picolet/write-limit";
/// Least that a pod may be limited to, bytes a second: below that it would hardly start.
const MIN_BYTES_PER_SECOND: u64 = 64 << 10;
/// Bytes a day above which a pod writes much.
const MUCH_BYTES: u64 = 1 << 30;
const DAY_SECONDS: u64 = 24 * 3600;
/// Reason of the event of a pod that writes much.
pub const WRITES_MUCH: &str = "WritesMuch";

/// Write limits that the configuration sets, and the disk they apply to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriteLimits {
    /// `picolet.podWriteLimit`.
    pub bytes_per_second: Option<u64>,
    /// The disk of the root directory, `179:0`; `None`: this machine cannot limit what is written to it.
    pub disk: Option<String>,
}

/// Message for a machine without a [`WriteLimits::disk`].
pub const CANNOT_LIMIT: &str = "this machine cannot limit what a pod writes: that needs cgroup v2 with the io \
                                controller, and the root directory on a disk";

/// Reads the value of `picolet.podWriteLimit` or of the annotation, bytes a second.
///
/// - Errors: the rule that the value breaks, in words that follow it.
pub fn parse_write_rate(limit: &Quantity) -> Result<u64, &'static str> {
    let bytes = u64::try_from(limit.value()).unwrap_or(0);
    if bytes < MIN_BYTES_PER_SECOND {
        return Err("must be at least 64Ki");
    }
    Ok(bytes)
}

/// Value for [`FILE`] of the pod's group; `None`: the pod may write as fast as the disk can. The smaller one of the
/// node's limit and the pod's own counts.
///
/// - Errors: the annotation is no limit, or cannot be held here.
pub fn effective_write_limit(pod: &Pod, limits: &WriteLimits) -> Result<Option<String>, PodError> {
    let own = pod.metadata.annotations.get(ANNOTATION);
    let own = own.map(|text| {
        let rate = Quantity::parse(text)
            .map_err(|e| e.to_string())
            .and_then(|limit| parse_write_rate(&limit).map_err(String::from));
        rate.map_err(|why| PodError::Spec(format!("annotation {ANNOTATION}: {text:?}: {why}")))
    });
    let own = own.transpose()?;
    let Some(least) = own.into_iter().chain(limits.bytes_per_second).min() else {
        return Ok(None);
    };
    let Some(disk) = &limits.disk else {
        let why = PodError::Node(CANNOT_LIMIT.into());
        return Err(why.with_subject(format_args!("annotation {ANNOTATION}")));
    };
    Ok(Some(format!("{disk} wbps={least}")))
}

/// Value that takes the limit of `disk` from a group that had one.
#[must_use]
pub fn unlimited_writes(disk: &str) -> String {
    format!("{disk} wbps=max")
}

/// Text of the event of a pod that writes much. The same each day, so that it is one event.
#[must_use]
pub fn heavy_writes_message(disk: &str) -> String {
    format!(
        "wrote more than {} GiB to {disk} in a day, which wears out flash: picolet.podWriteLimit or the annotation {ANNOTATION} slows it down",
        MUCH_BYTES >> 30
    )
}

/// Bytes that each pod wrote in its day, which begins when the pod is first seen. Time is the time since boot alone.
/// Kept for the next agent of this boot: the kernel's counters go on between two agents.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodWriters {
    /// Set after the first look: a pod that is new then has written all its bytes since.
    looked: bool,
    pods: BTreeMap<PodUid, WriteDay>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct WriteDay {
    /// Start of the day, seconds since boot.
    began: u64,
    /// Bytes that the pod had written by then.
    before: u64,
    told: bool,
}

impl PodWriters {
    /// Takes in what each pod has written since its control group was made, bytes; `up`: seconds since boot.
    ///
    /// - Shape: pods to tell of, sorted, each once in its day; whether there is something new to keep.
    pub fn observe_writes(&mut self, up: u64, seen: &[(PodUid, u64)]) -> (Vec<PodUid>, bool) {
        let mut pods = BTreeMap::new();
        let mut much = Vec::new();
        for (uid, bytes) in seen {
            let new = WriteDay {
                began: up,
                // Bytes written before the first look may be those of weeks.
                before: if self.looked { 0 } else { *bytes },
                told: false,
            };
            let mut day = self.pods.get(uid).copied().unwrap_or(new);
            match up.checked_sub(day.began) {
                Some(age) if age < DAY_SECONDS => {}
                Some(_) | None => {
                    day = WriteDay {
                        before: *bytes,
                        ..new
                    }
                }
            }
            // The pod's group was made anew.
            day.before = day.before.min(*bytes);
            if !day.told && *bytes - day.before > MUCH_BYTES {
                day.told = true;
                much.push(uid.clone());
            }
            pods.insert(uid.clone(), day);
        }
        much.sort();
        let is_new = !self.looked || pods != self.pods;
        (self.looked, self.pods) = (true, pods);
        (much, is_new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;
    const HOUR: u64 = 3600;

    fn limits(bytes_per_second: Option<u64>, disk: Option<&str>) -> WriteLimits {
        WriteLimits {
            bytes_per_second,
            disk: disk.map(Into::into),
        }
    }

    #[test]
    fn how_fast_a_pod_may_write() {
        // WEAR-07
        let (on, off) = (Some(4 << 20), None);
        let disk = Some("179:0");
        for (annotation, node, disk, want) in [
            (None, off, None, Ok(None)),
            (None, off, disk, Ok(None)),
            (None, on, disk, Ok(Some("179:0 wbps=4194304"))),
            (Some("1Mi"), on, disk, Ok(Some("179:0 wbps=1048576"))),
            (Some("1Mi"), off, disk, Ok(Some("179:0 wbps=1048576"))),
            // A pod cannot lift the operator's limit.
            (Some("1Gi"), on, disk, Ok(Some("179:0 wbps=4194304"))),
            (Some("1Mi"), off, None, Err("this machine cannot limit")),
            (Some("1"), off, disk, Err("\"1\": must be at least 64Ki")),
            (Some("-1Mi"), on, disk, Err("must be at least 64Ki")),
            (Some("fast"), on, disk, Err("picolet/write-limit: \"fast\"")),
        ] {
            let mut pod = Pod::default();
            if let Some(text) = annotation {
                pod.metadata
                    .annotations
                    .insert(ANNOTATION.into(), text.into());
            }
            let got = effective_write_limit(&pod, &limits(node, disk));
            match (want, got) {
                (Ok(want), Ok(got)) => assert_eq!(got.as_deref(), want, "{annotation:?}"),
                (Err(want), Err(got)) => {
                    assert!(got.to_string().contains(want), "{annotation:?}: {got}");
                }
                (want, got) => panic!("{annotation:?}: {want:?}, {got:?}"),
            }
        }
    }

    fn looked(writers: &mut PodWriters, up: u64, seen: &[(&str, u64)]) -> Vec<String> {
        let seen: Vec<_> = seen
            .iter()
            .map(|(uid, bytes)| (PodUid::new(*uid), *bytes))
            .collect();
        let (much, _) = writers.observe_writes(up, &seen);
        much.iter().map(|uid| uid.to_string()).collect()
    }

    #[test]
    fn who_writes_much_is_told_once_a_day() {
        // WEAR-07
        let mut writers = PodWriters::default();
        let none: [&str; 0] = [];
        // The first agent to look does not know in what time the bytes were written.
        assert_eq!(looked(&mut writers, 10 * HOUR, &[("a", 90 * GIB)]), none);
        for (up, a, b, told) in [
            (11 * HOUR, 91 * GIB, GIB, [].as_slice()),
            (12 * HOUR, 91 * GIB + 1, GIB + 1, &["a", "b"]),
            (13 * HOUR, 99 * GIB, 7 * GIB, &[]),
            // The day of a is over, that of b one hour later.
            (34 * HOUR, 99 * GIB + 5, 8 * GIB, &[]),
            (35 * HOUR, 101 * GIB, 9 * GIB, &["a"]),
            (36 * HOUR, 101 * GIB, 10 * GIB + 1, &["b"]),
            (37 * HOUR, 101 * GIB, 11 * GIB + 2, &[]),
        ] {
            let got = looked(&mut writers, up, &[("b", b), ("a", a)]);
            assert_eq!(got, told, "{up}");
        }
        // A group that was made anew counts from 0; a pod that is gone is forgotten.
        assert_eq!(looked(&mut writers, 38 * HOUR, &[("a", 5)]), none);
        assert_eq!(writers.pods.len(), 1);
    }

    #[test]
    fn the_next_agent_goes_on_where_the_last_one_was() {
        // WEAR-07
        let mut writers = PodWriters::default();
        looked(&mut writers, 0, &[]);
        let (much, is_new) = writers.observe_writes(HOUR, &[(PodUid::new("a"), GIB / 2)]);
        assert_eq!((much.len(), is_new), (0, true));
        let (_, is_new) = writers.observe_writes(HOUR + 9, &[(PodUid::new("a"), GIB)]);
        assert!(!is_new, "nothing is written for a figure alone");
        let kept = serde_json::to_string(&writers).expect("JSON");
        let mut next: PodWriters = serde_json::from_str(&kept).expect("kept");
        assert_eq!(next, writers);
        // The pod wrote on while no agent ran.
        assert_eq!(looked(&mut next, 2 * HOUR, &[("a", 2 * GIB)]), ["a"]);
        let kept = serde_json::to_string(&next).expect("JSON");
        let mut third: PodWriters = serde_json::from_str(&kept).expect("kept");
        assert_eq!(looked(&mut third, 3 * HOUR, &[("a", 4 * GIB)]), [""; 0]);
        // Time since boot does not go back. If it did, a new day would begin and nothing would break.
        assert_eq!(looked(&mut third, 1, &[("a", 9 * GIB)]), [""; 0]);
        assert_eq!(looked(&mut third, 2, &[("a", 11 * GIB)]), ["a"]);
    }
}
