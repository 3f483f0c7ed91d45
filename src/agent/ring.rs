//! What the loop lately heard and did: a ring in memory, bounded in bytes, that `picolet debug dump` prints and the
//! simulator replays.
//!
//! A dump is text, one JSON object a line. The first is the [`Header`]; each other one is a [`Line`]: the time in
//! milliseconds since the machine was switched on, and either what came `in` or what went `out`.
//!
//! ```text
//! {"v":1,"picolet":"0.1.0","nowMs":73512,"wall":"2026-01-31T12:00:00Z","lost":0,"state":"6c62272e07bb014262b821756295c58d"}
//! {"t":1204,"in":{"add":{"pod":"0a1b","name":"default/web-node","static":true,"deleted":false,"graceS":30,"restart":"Always","init":0,"containers":1}}}
//! {"t":1204,"out":{"start":{"pod":"0a1b","call":"sync","graceS":null,"kind":"create","sinceMs":1204,"first":true}}}
//! {"t":1390,"in":{"pleg":{"pod":"0a1b","kind":"ContainerStarted","id":"picolet-0a1b-c-0"}}}
//! {"t":1395,"in":{"done":{"pod":"0a1b","outcome":"done","untilMs":null}}}
//! ```
//!
//! An agent begins with an empty table, so a dump that has lost nothing replays from the start; `state` is then the digest
//! of nothing. Else it is the digest of all lines that were lost, in their order: two dumps of one agent whose digests are
//! equal begin in the same state. Ticks that led to nothing are not told.

use alloc::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::api::{Mono, Pod, Wall};
use crate::logic::{
    digest::Fnv,
    pod_table::Start,
    pod_worker::{Call, Outcome, UpdateKind},
    work_queue::Retry,
};

/// Version of the dump's form.
pub(super) const VERSION: u32 = 1;
/// Bytes of lines that are kept.
pub(super) const RING_BYTES: usize = 48 * 1024;
/// Bytes of one text in a line; names and ids are shorter.
const MAX_TEXT_BYTES: usize = 320;

/// First line of a dump.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Header {
    /// [`VERSION`].
    pub(super) v: u32,
    /// Version of the program.
    pub(super) picolet: String,
    /// When the dump was made.
    pub(super) now_ms: u64,
    /// The same by the wall clock.
    pub(super) wall: String,
    /// Lines that came before the first one here.
    pub(super) lost: u64,
    /// Digest of them.
    pub(super) state: String,
}

/// Another line of a dump; exactly one of the two is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Line {
    /// Milliseconds since the machine was switched on.
    pub(super) t: u64,
    /// What the loop heard.
    #[serde(rename = "in", default, skip_serializing_if = "Option::is_none")]
    pub(super) heard: Option<Heard>,
    /// What it made be done.
    #[serde(rename = "out", default, skip_serializing_if = "Option::is_none")]
    pub(super) done: Option<Made>,
}

/// An input of the loop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Heard {
    /// A pod is new in its source.
    Add(Seen),
    /// It changed, deletion included.
    Update(Seen),
    /// Only its status differs.
    Reconcile(Seen),
    /// It is no longer in its source.
    Remove { pod: String },
    /// ConfigMaps or Secrets changed.
    Objects,
    /// Images were imported.
    Images,
    /// The runtime was found changed.
    Pleg {
        pod: String,
        kind: String,
        id: String,
    },
    /// A call of a worker ended; the pod is empty if its slot is another's by now.
    #[serde(rename_all = "camelCase")]
    Done {
        pod: String,
        /// `done`, `terminal`, `canceled`, `failed`, `networkNotReady`, `backOff`.
        outcome: String,
        /// When the back-off ends.
        until_ms: Option<u64>,
    },
    /// A local command: end the agent, with `all` every pod first.
    Stop { all: bool },
    /// A signal.
    Terminate,
}

/// A pod as its source has it, as far as the loop decides by it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Seen {
    pub(super) pod: String,
    /// `namespace/name`.
    pub(super) name: String,
    #[serde(rename = "static")]
    pub(super) is_static: bool,
    /// Its end is announced.
    pub(super) deleted: bool,
    /// Of the announcement, else of the spec.
    pub(super) grace_s: Option<i64>,
    /// Restart policy.
    pub(super) restart: String,
    /// Init containers.
    pub(super) init: usize,
    /// Containers.
    pub(super) containers: usize,
}

/// An output of the loop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Made {
    /// A call of a worker began.
    #[serde(rename_all = "camelCase")]
    Start {
        pod: String,
        /// `sync`, `terminating`, `terminatingRuntime`, `terminated`.
        call: String,
        /// Of `terminating`, if one was said.
        grace_s: Option<u32>,
        /// `create`, `update`, `sync`, `kill`: what it serves.
        kind: String,
        since_ms: u64,
        first: bool,
    },
    /// A relist was asked for.
    Relist { pod: String },
    /// A running call was told to end early.
    Cancel { pod: String },
    /// Nothing of the pod runs any more.
    Stopped { pod: String },
    /// The pod's status could not be read.
    StatusFailed { pod: String },
    /// The pod's slot is free; with `restart` it is created again.
    Gone { pod: String, restart: bool },
    /// Surplus dead instances are removed.
    TidyDead { pod: String, id: String },
    /// Housekeeping removes what nobody owns.
    Housekeeping,
}

impl Seen {
    /// What is told of `pod`.
    pub(super) fn of(pod: &Pod, is_static: bool) -> Self {
        let meta = &pod.metadata;
        Self {
            pod: cut(meta.uid.as_str()),
            name: cut(&format!("{}/{}", meta.namespace, meta.name)),
            is_static,
            deleted: meta.deletion_timestamp.is_some(),
            grace_s: meta
                .deletion_grace_period_seconds
                .or(pod.spec.termination_grace_period_seconds),
            restart: format!("{:?}", pod.spec.restart_policy),
            init: pod.spec.init_containers.len(),
            containers: pod.spec.containers.len(),
        }
    }
}

impl Heard {
    /// The end of a call.
    pub(super) fn done(pod: &str, outcome: Outcome) -> Self {
        let (word, until) = match outcome {
            Outcome::Done => ("done", None),
            Outcome::Terminal => ("terminal", None),
            Outcome::Canceled => ("canceled", None),
            Outcome::Failed(Retry::Error) => ("failed", None),
            Outcome::Failed(Retry::NetworkNotReady) => ("networkNotReady", None),
            Outcome::Failed(Retry::BackOff(until)) => ("backOff", Some(until.0)),
        };
        Self::Done {
            pod: cut(pod),
            outcome: word.into(),
            until_ms: until,
        }
    }
}

impl Made {
    /// The begin of a call.
    pub(super) fn start(pod: &str, start: &Start) -> Self {
        let (call, grace_s) = match start.call {
            Call::Sync => ("sync", None),
            Call::Terminating { grace_s } => ("terminating", grace_s),
            Call::TerminatingRuntime => ("terminatingRuntime", None),
            Call::Terminated => ("terminated", None),
        };
        let kind = match start.kind {
            UpdateKind::Create => "create",
            UpdateKind::Update => "update",
            UpdateKind::Sync => "sync",
            UpdateKind::Kill => "kill",
        };
        Self::Start {
            pod: cut(pod),
            call: call.into(),
            grace_s,
            kind: kind.into(),
            since_ms: start.since.0,
            first: start.first,
        }
    }
}

/// The head of a text.
pub(super) fn cut(text: &str) -> String {
    let mut end = text.len().min(MAX_TEXT_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

/// The ring. One allocation that grows to [`RING_BYTES`] and no further.
#[derive(Debug, Default)]
pub(super) struct Ring {
    /// Whole lines, each with its newline.
    lines: VecDeque<u8>,
    lost: u64,
    /// Of the lines that were lost.
    state: Fnv,
}

impl Ring {
    /// Something came in.
    pub(super) fn heard(&mut self, now: Mono, heard: Heard) {
        self.push(&Line {
            t: now.0,
            heard: Some(heard),
            done: None,
        });
    }

    /// Something was made be done.
    pub(super) fn made(&mut self, now: Mono, done: Made) {
        self.push(&Line {
            t: now.0,
            heard: None,
            done: Some(done),
        });
    }

    fn push(&mut self, line: &Line) {
        // What is told consists of numbers and texts: it has a form.
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
            // Doubling, but never beyond what is kept.
            let wanted = (self.lines.capacity() * 2).clamp(4096, RING_BYTES);
            self.lines.reserve_exact(wanted - self.lines.len());
        }
        self.lines.extend(text);
    }

    /// The whole dump.
    pub(super) fn dump(&self, now: Mono, wall: Wall) -> String {
        let header = Header {
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
        // A line may lie around the end of the ring: bytes are put together before they are text again.
        out.push_str(&String::from_utf8_lossy(&[front, back].concat()));
        out
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Reads a dump.
    ///
    /// Errors: the number of the line that is none, from 1.
    pub(in crate::agent) fn parse(dump: &str) -> Result<(Header, Vec<Line>), usize> {
        let mut lines = dump.lines();
        let header: Header =
            serde_json::from_str(lines.next().unwrap_or("")).map_err(|_| 1usize)?;
        if header.v != VERSION {
            return Err(1);
        }
        let read = |(n, line)| serde_json::from_str(line).map_err(|_| n + 2);
        let lines = lines.enumerate().map(read).collect::<Result<_, _>>()?;
        Ok((header, lines))
    }

    fn pleg(n: u64) -> Heard {
        Heard::Pleg {
            pod: format!("pod-{n}"),
            kind: "ContainerDied".into(),
            id: "\"ä\\\n".into(),
        }
    }

    #[test]
    fn a_dump_is_read_back() {
        let mut ring = Ring::default();
        let empty = ring.dump(Mono(1), Wall(0));
        ring.heard(Mono(5), pleg(1));
        ring.heard(Mono(6), Heard::Objects);
        ring.heard(
            Mono(7),
            Heard::done("p", Outcome::Failed(Retry::BackOff(Mono(99)))),
        );
        ring.made(Mono(8), Made::Relist { pod: "p".into() });
        ring.heard(Mono(9), Heard::Stop { all: true });
        let dump = ring.dump(Mono(10), Wall(0));
        let (header, lines) = parse(&dump).expect("dump");
        assert_eq!((header.v, header.lost, header.now_ms), (VERSION, 0, 10));
        assert_eq!(header.state, parse(&empty).expect("empty").0.state);
        assert_eq!(lines.len(), 5);
        assert_eq!(lines[0].heard, Some(pleg(1)));
        assert_eq!(lines[3].done, Some(Made::Relist { pod: "p".into() }));
        assert!(dump.contains(r#"{"t":6,"in":"objects"}"#), "{dump}");
        assert!(
            dump.contains(r#"{"t":7,"in":{"done":{"pod":"p","outcome":"backOff","untilMs":99}}}"#),
            "{dump}"
        );
        assert_eq!(parse(&format!("{dump}x\n")), Err(7));
        assert_eq!(parse(&dump.replacen("\"v\":1", "\"v\":2", 1)), Err(1));
    }

    #[test]
    fn bounded_and_loses_whole_lines_only() {
        let mut ring = Ring::default();
        for n in 0..5000 {
            ring.heard(Mono(n), pleg(n));
            assert!(ring.lines.len() <= RING_BYTES && ring.lines.capacity() <= RING_BYTES);
        }
        let dump = ring.dump(Mono(5000), Wall(0));
        let (header, lines) = parse(&dump).expect("dump");
        assert_eq!(header.lost + u64::try_from(lines.len()).expect("few"), 5000);
        assert_eq!(lines.first().map(|l| l.t), Some(header.lost));
        assert_eq!(lines.last().map(|l| l.t), Some(4999));
        // The digest is that of what was lost.
        let mut other = Ring::default();
        let mut digest = Fnv::default();
        for n in 0..header.lost {
            other.lines.clear();
            other.heard(Mono(n), pleg(n));
            digest.write(other.lines.make_contiguous());
        }
        assert_eq!(header.state, format!("{:032x}", digest.finish()));
    }

    #[test]
    fn texts_are_cut() {
        assert_eq!(cut(&"ä".repeat(1000)).len(), MAX_TEXT_BYTES);
    }
}
