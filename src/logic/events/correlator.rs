//! Which events are the same, which are similar, and which are too many.

use alloc::{boxed::Box, string::ToString};
use core::time::Duration;

use serde_json::json;

use super::{Occurrence, Post, event_name, lru::Lru, object};
use crate::api::{Mono, Wall};
use crate::fnv::fnv1a;

/// Different messages of one reason and object from which on they are folded into one event.
const MAX_MESSAGES: usize = 10;
/// Similar events further apart than this do not count together.
const SIMILAR_WITHIN: Duration = Duration::from_secs(600);
/// Events of one object at once.
pub const SPAM_BURST: u32 = 25;
/// One more may come each time that this has passed.
const SPAM_REFILL: Duration = Duration::from_secs(300);
/// Groups of similar events that are remembered.
pub const MAX_SIMILAR: usize = 128;
/// Events whose counts are remembered; one that was forgotten begins as a new object.
pub const MAX_SEEN: usize = 256;
/// Objects whose number of events is remembered: a node's pods.
pub const MAX_BUCKETS: usize = 160;

/// Messages of one group, as digests.
#[derive(Clone, Debug)]
pub(super) struct Similar {
    messages: [u32; MAX_MESSAGES],
    count: usize,
    last: Option<Mono>,
}

/// An event that has an object in the API.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    count: u32,
    first: Wall,
}

/// Tokens as the time that they stand for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bucket {
    tokens_ms: u64,
    at: Mono,
}

/// The memory of what was told. See the module's words.
#[derive(Clone, Debug)]
pub struct Correlator {
    node: Box<str>,
    pub(super) similar: Lru<Similar>,
    pub(super) seen: Lru<Seen>,
    pub(super) buckets: Lru<Bucket>,
    thin: bool,
}

impl Correlator {
    /// `node`: host of the events' source.
    #[must_use]
    pub fn new(node: &str) -> Self {
        Self {
            node: node.into(),
            similar: Lru::new(MAX_SIMILAR),
            seen: Lru::new(MAX_SEEN),
            buckets: Lru::new(MAX_BUCKETS),
            thin: false,
        }
    }

    /// From now on only warnings become objects, and of their repeats only every doubling is told; for links that cost money.
    pub const fn set_thin(&mut self, thin: bool) {
        self.thin = thin;
    }

    /// What an event leads to: an object, a greater count of one, or nothing (EVT-03).
    pub fn correlate(&mut self, occurrence: &Occurrence, now: Mono) -> Option<Post> {
        if self.thin && !occurrence.warning {
            return None;
        }
        let group = group(occurrence);
        let folded = self.fold(group, occurrence, now);
        let (key, first) = if folded {
            (group, occurrence.last)
        } else {
            (with_message(group, occurrence), occurrence.first)
        };
        let seen = self.seen.entry(key, || Seen { count: 0, first });
        let before = seen.count;
        seen.count = before.saturating_add(occurrence.times.max(1));
        let Seen { count, first } = *seen;
        if !self.may_tell(occurrence, now) {
            return None;
        }
        if self.thin && before > 0 && before.ilog2() == count.ilog2() {
            return None;
        }
        let message = if folded {
            format!("(combined from similar events): {}", occurrence.message)
        } else {
            occurrence.message.to_string()
        };
        let name = event_name(&occurrence.subject.name, first);
        let mut patch = json!({"count": count, "lastTimestamp": occurrence.last.to_string()});
        if folded {
            patch["message"] = json!(message);
        }
        Some(Post {
            namespace: occurrence.subject.event_namespace().into(),
            object: object(occurrence, &name, &message, count, first, &self.node),
            name,
            patch: (before > 0).then_some(patch),
        })
    }

    /// Whether the event goes into the one that stands for all similar ones.
    fn fold(&mut self, group: u64, occurrence: &Occurrence, now: Mono) -> bool {
        let similar = self.similar.entry(group, || Similar {
            messages: [0; MAX_MESSAGES],
            count: 0,
            last: None,
        });
        if similar.last.is_none_or(|last| now - last > SIMILAR_WITHIN) {
            similar.count = 0;
        }
        similar.last = Some(now);
        let hash = fnv1a(occurrence.message.bytes());
        // Half of a digest is plenty to tell ten texts apart.
        let short = u32::try_from(hash >> 32).unwrap_or(u32::MAX);
        if !similar.messages[..similar.count].contains(&short) {
            // At the last place each new one takes that of another: the group stays just as large.
            let place = similar.count.min(MAX_MESSAGES - 1);
            similar.messages[place] = short;
            similar.count = place + 1;
        }
        similar.count >= MAX_MESSAGES
    }

    /// Whether the object still has a token. Unlike the count, which grows anyway.
    fn may_tell(&mut self, occurrence: &Occurrence, now: Mono) -> bool {
        let refill_ms = u64::try_from(SPAM_REFILL.as_millis()).unwrap_or(u64::MAX);
        let full = refill_ms * u64::from(SPAM_BURST);
        let subject = &occurrence.subject;
        let key = digest(&[
            subject.kind,
            &subject.namespace,
            &subject.name,
            &subject.uid,
        ]);
        let bucket = self.buckets.entry(key, || Bucket {
            tokens_ms: full,
            at: now,
        });
        let grown = now.since_ms(bucket.at);
        bucket.tokens_ms = bucket.tokens_ms.saturating_add(grown).min(full);
        bucket.at = now;
        let enough = bucket.tokens_ms >= refill_ms;
        if enough {
            bucket.tokens_ms -= refill_ms;
        }
        enough
    }
}

/// Events that differ at most in their message and place.
fn group(occurrence: &Occurrence) -> u64 {
    let subject = &occurrence.subject;
    let kind = if occurrence.warning {
        "Warning"
    } else {
        "Normal"
    };
    digest(&[
        subject.kind,
        &subject.namespace,
        &subject.name,
        &subject.uid,
        kind,
        &occurrence.reason,
    ])
}

fn with_message(group: u64, occurrence: &Occurrence) -> u64 {
    let own = digest(&[&occurrence.subject.field_path, &occurrence.message]);
    fnv1a(group.to_le_bytes().into_iter().chain(own.to_le_bytes()))
}

/// Texts, each ended by a byte that none of them has.
fn digest(texts: &[&str]) -> u64 {
    fnv1a(texts.iter().flat_map(|text| text.bytes().chain([0xff])))
}
