//! The latest inputs and outputs of the loop: a ring in memory, bounded in bytes, that `picolet debug dump` prints and
//! the simulator replays.
//!
//! A dump is text, one JSON object a line. The first is the [`LoopHistoryHeader`]; each other one is a
//! [`RecordedLine`]: the time in milliseconds since the machine was switched on, and either an input (`in`) or an
//! output (`out`).
//!
//! ```text
//! {"v":2,"picolet":"0.1.0","nowMs":73512,"wall":"2026-01-31T12:00:00Z","lost":0,"state":"6c62272e07bb014262b821756295c58d"}
//! {"t":1204,"in":{"add":{"pod":"0a1b","name":"default/web-node","static":true,"deleted":false,"graceS":30,"restart":"Always","init":0,"containers":1}}}
//! {"t":1204,"out":{"start":{"pod":"0a1b","call":"sync","graceS":null,"kind":"create","sinceMs":1204,"first":true}}}
//! {"t":1204,"in":{"step":{"pod":"0a1b","step":"begun","phase":"Pending"}}}
//! {"t":1390,"in":{"pleg":{"pod":"0a1b","kind":"ContainerStarted","id":"picolet-0a1b-c-0"}}}
//! {"t":1395,"in":{"done":{"pod":"0a1b","outcome":"done","untilMs":null}}}
//! ```
//!
//! A dump tells every change of the facts by which the loop decides, by each [`AgentEvent`](super::core::AgentEvent) that can
//! bring one:
//!
//! ```text
//! sources      {"in":{"add":{…}}} update, reconcile, remove; objects, images
//!              {"in":{"unrecorded":{"pod":"0a1b"}}}                    its record could not be written
//!              {"in":{"unread":{"pod":"0a1b","wanted":"show"}}}        or not be read: create, show, image, evict
//!              {"in":{"recordsWait":true}}                             some wait for the disk, or no longer do
//! the runtime  {"in":{"pleg":{…}}}
//!              {"in":{"listed":{"afterMs":190000}}}                    the first list, or one after they failed for long
//!              {"in":{"conditions":{"runtime":true,"network":false}}}
//! calls        {"in":{"step":{"pod":"0a1b","step":"begun","phase":"Pending","reason":"network"}}}  see [`RecordedStep`]
//!              {"in":{"step":{"pod":"0a1b","step":"restarts","container":"c","untilMs":9000}}}
//!              {"in":{"done":{…}}}
//! probes       {"in":{"probed":{"pod":"0a1b","id":"picolet://0a1b-c-0","kind":"readiness","result":"failure"}}}
//! apiserver    {"in":{"api":{"answers":false}}}                        an outage begins
//!              {"in":{"api":{"lists":false}}}                          lists of pods fail
//!              {"in":{"api":{"write":{"pod":"0a1b","what":"status","word":"conflict"}}}}
//!              {"in":{"shown":{"pod":"0a1b","version":"812","phase":"Running"}}}  after a write
//!              {"in":{"resync":["0a1b"]}}                              another thing that they need has changed
//! commands     {"in":{"stop":{"all":true}}} shutdown, shutdownCancelled, terminate
//!              {"in":{"restart":{"pod":"0a1b"}}}                       a pod ends and starts anew
//! ```
//!
//! Timers are told by their result: a pod that is due shows as a `start`, with the time at which it became due as
//! `sinceMs`; runs of housekeeping as `housekeeping`; a look at waiting records as `recordsWait`. An event that changed
//! nothing is not told: a question, a list without a difference, an answer of the apiserver like the one before.
//!
//! An agent begins with an empty table, so a dump that has lost nothing replays from the start; `state` is then the
//! digest of no lines. Else `state` is the digest of all lines that were lost, in their order: two dumps of one agent
//! with equal digests begin in the same state.
//!
//! Names, ids, phases and times are told. Specs, environments and Secrets never are.

mod line;

use alloc::collections::VecDeque;

use serde::{Deserialize, Serialize};

pub(super) use line::{
    RecordedEffect, RecordedEvent, RecordedLine, RecordedPod, RecordedStep, cut_text,
};

use crate::api::{MonoTime, WallTime};
use crate::logic::digest::FnvHasher;

/// Version of the dump's form. Version 1 had no steps, probes and answers of the apiserver; its lines have the same
/// form in version 2.
pub(super) const VERSION: u32 = 2;
/// Bytes of lines that are kept.
pub(super) const RING_BYTES: usize = 48 * 1024;

/// First line of a dump.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct LoopHistoryHeader {
    /// [`VERSION`].
    pub(super) v: u32,
    /// Version of the program.
    pub(super) picolet: String,
    /// Time of the dump, milliseconds since the machine was switched on.
    pub(super) now_ms: u64,
    /// Time of the dump by the wall clock.
    pub(super) wall: String,
    /// Lines that came before the first one here.
    pub(super) lost: u64,
    /// Digest of the lines that were lost.
    pub(super) state: String,
}

/// The ring. One allocation that grows to [`RING_BYTES`] and no further.
#[derive(Debug, Default)]
pub(super) struct LoopHistory {
    /// Whole lines, each with its newline.
    lines: VecDeque<u8>,
    lost: u64,
    /// Digest of the lines that were lost.
    state: FnvHasher,
}

impl LoopHistory {
    /// Adds an input of the loop.
    pub(super) fn record_event(&mut self, now: MonoTime, heard: RecordedEvent) {
        self.push_line(&RecordedLine {
            t: now.0,
            heard: Some(heard),
            done: None,
        });
    }

    /// Adds an output of the loop.
    pub(super) fn record_effect(&mut self, now: MonoTime, done: RecordedEffect) {
        self.push_line(&RecordedLine {
            t: now.0,
            heard: None,
            done: Some(done),
        });
    }

    fn push_line(&mut self, line: &RecordedLine) {
        // A line consists of numbers and texts, so it can always be serialized.
        let Ok(mut text) = serde_json::to_vec(line) else {
            return;
        };
        text.push(b'\n');
        while self.lines.len() + text.len() > RING_BYTES {
            let end = self.lines.iter().position(|b| *b == b'\n');
            let Some(end) = end else { break };
            for byte in self.lines.drain(..=end) {
                self.state.write(&[byte]);
            }
            self.lost += 1;
        }
        if self.lines.capacity() < RING_BYTES
            && self.lines.capacity() < self.lines.len() + text.len()
        {
            // The capacity doubles, but never beyond the limit of the ring.
            let wanted = (self.lines.capacity() * 2).clamp(4096, RING_BYTES);
            self.lines.reserve_exact(wanted - self.lines.len());
        }
        self.lines.extend(text);
    }

    /// Writes the whole dump.
    pub(super) fn write_dump(&self, now: MonoTime, wall: WallTime) -> String {
        let header = LoopHistoryHeader {
            v: VERSION,
            picolet: crate::VERSION.into(),
            now_ms: now.0,
            wall: wall.to_string(),
            lost: self.lost,
            state: format!("{:032x}", self.state.finish()),
        };
        let mut out = serde_json::to_string(&header).unwrap_or_default();
        out.push('\n');
        let (front, back) = self.lines.as_slices();
        // A line may lie around the end of the ring: its bytes are put together before they become text.
        out.push_str(&String::from_utf8_lossy(&[front, back].concat()));
        out
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::logic::{pod_worker::CallOutcome, work_queue::RetryCause};

    /// Reads a dump.
    ///
    /// Errors: the number, from 1, of the line that cannot be read.
    pub(in crate::agent) fn parse_dump(
        dump: &str,
    ) -> Result<(LoopHistoryHeader, Vec<RecordedLine>), usize> {
        let mut lines = dump.lines();
        let header: LoopHistoryHeader =
            serde_json::from_str(lines.next().unwrap_or("")).map_err(|_| 1usize)?;
        if !(1..=VERSION).contains(&header.v) {
            return Err(1);
        }
        let read = |(n, line)| serde_json::from_str(line).map_err(|_| n + 2);
        let lines = lines.enumerate().map(read).collect::<Result<_, _>>()?;
        Ok((header, lines))
    }

    fn pleg(n: u64) -> RecordedEvent {
        RecordedEvent::Pleg {
            pod: format!("pod-{n}"),
            kind: "ContainerDied".into(),
            id: "\"ä\\\n".into(),
        }
    }

    #[test]
    fn a_dump_is_read_back() {
        let mut ring = LoopHistory::default();
        let empty = ring.write_dump(MonoTime(1), WallTime(0));
        ring.record_event(MonoTime(5), pleg(1));
        ring.record_event(MonoTime(6), RecordedEvent::Objects);
        ring.record_event(
            MonoTime(7),
            RecordedEvent::call_done("p", CallOutcome::Failed(RetryCause::BackOff(MonoTime(99)))),
        );
        ring.record_effect(MonoTime(8), RecordedEffect::Relist { pod: "p".into() });
        ring.record_event(MonoTime(9), RecordedEvent::Stop { all: true });
        let dump = ring.write_dump(MonoTime(10), WallTime(0));
        let (header, lines) = parse_dump(&dump).expect("dump");
        assert_eq!((header.v, header.lost, header.now_ms), (VERSION, 0, 10));
        assert_eq!(header.state, parse_dump(&empty).expect("empty").0.state);
        assert_eq!(lines.len(), 5);
        assert_eq!(lines[0].heard, Some(pleg(1)));
        assert_eq!(
            lines[3].done,
            Some(RecordedEffect::Relist { pod: "p".into() })
        );
        assert!(dump.contains(r#"{"t":6,"in":"objects"}"#), "{dump}");
        assert!(
            dump.contains(r#"{"t":7,"in":{"done":{"pod":"p","outcome":"backOff","untilMs":99}}}"#),
            "{dump}"
        );
        assert_eq!(parse_dump(&format!("{dump}x\n")), Err(7));
        let of_version = |v: &str| parse_dump(&dump.replacen("\"v\":2", v, 1)).is_ok();
        assert!(of_version("\"v\":1") && !of_version("\"v\":3") && !of_version("\"v\":0"));
    }

    #[test]
    fn lines_have_their_form() {
        for text in [
            r#"{"t":1,"in":{"unrecorded":{"pod":"0a1b"}}}"#,
            r#"{"t":1,"in":{"unread":{"pod":"0a1b","wanted":"show"}}}"#,
            r#"{"t":1,"in":{"recordsWait":true}}"#,
            r#"{"t":1,"in":{"listed":{"afterMs":190000}}}"#,
            r#"{"t":1,"in":{"conditions":{"runtime":true,"network":false}}}"#,
            r#"{"t":1,"in":{"step":{"pod":"0a1b","step":"begun","phase":"Pending","reason":"network"}}}"#,
            r#"{"t":1,"in":{"step":{"pod":"0a1b","step":"restarts","container":"c","untilMs":9000}}}"#,
            r#"{"t":1,"in":{"probed":{"pod":"0a1b","id":"picolet://0a1b-c-0","kind":"readiness","result":"failure"}}}"#,
            r#"{"t":1,"in":{"api":{"answers":false}}}"#,
            r#"{"t":1,"in":{"api":{"lists":false}}}"#,
            r#"{"t":1,"in":{"api":{"write":{"pod":"0a1b","what":"status","word":"conflict"}}}}"#,
            r#"{"t":1,"in":{"shown":{"pod":"0a1b","version":"812","phase":"Running"}}}"#,
            r#"{"t":1,"in":{"resync":["0a1b"]}}"#,
        ] {
            let line: RecordedLine = serde_json::from_str(text).expect(text);
            assert_eq!(serde_json::to_string(&line).expect("a form"), text);
        }
    }

    #[test]
    fn what_an_object_holds_is_not_told() {
        let object = serde_json::json!({
            "metadata": {"resourceVersion": "7", "annotations": {"a": "hidden"}},
            "spec": {"containers": [{"env": [{"name": "A", "value": "hidden"}]}]},
            "status": {"phase": "Running", "message": "hidden"},
        });
        let told = serde_json::to_string(&RecordedEvent::shown_pod("u", &object)).expect("a form");
        assert_eq!(
            told,
            r#"{"shown":{"pod":"u","version":"7","phase":"Running"}}"#
        );
    }

    #[test]
    fn bounded_and_loses_whole_lines_only() {
        let mut ring = LoopHistory::default();
        for n in 0..5000 {
            ring.record_event(MonoTime(n), pleg(n));
            assert!(ring.lines.len() <= RING_BYTES && ring.lines.capacity() <= RING_BYTES);
        }
        let dump = ring.write_dump(MonoTime(5000), WallTime(0));
        let (header, lines) = parse_dump(&dump).expect("dump");
        assert_eq!(header.lost + u64::try_from(lines.len()).expect("few"), 5000);
        assert_eq!(lines.first().map(|l| l.t), Some(header.lost));
        assert_eq!(lines.last().map(|l| l.t), Some(4999));
        // The digest is that of the lines that were lost.
        let mut other = LoopHistory::default();
        let mut digest = FnvHasher::default();
        for n in 0..header.lost {
            other.lines.clear();
            other.record_event(MonoTime(n), pleg(n));
            digest.write(other.lines.make_contiguous());
        }
        assert_eq!(header.state, format!("{:032x}", digest.finish()));
    }

    #[test]
    fn texts_are_cut() {
        assert_eq!(cut_text(&"ä".repeat(1000)).len(), line::MAX_TEXT_BYTES);
    }
}
