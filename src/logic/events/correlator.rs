//! Correlation of events: equal ones are counted, similar ones folded, too many of one object dropped.

use alloc::{boxed::Box, string::ToString};
use core::time::Duration;

use serde_json::json;

use super::{EventOccurrence, EventPost, event_name, event_object, lru::Lru};
use crate::api::{MonoTime, WallTime};
use crate::fnv::fnv1a;

/// Number of different messages of one reason and object from which on they are folded into one event.
const MAX_MESSAGES: usize = 10;
/// Longest pause between similar events that are counted together.
const SIMILAR_WITHIN: Duration = Duration::from_secs(600);
/// Number of events that one object may have at once.
pub const SPAM_BURST: u32 = 25;
/// Time after which an object may have one more event.
const SPAM_REFILL: Duration = Duration::from_secs(300);
/// Number of groups of similar events that are remembered.
pub const MAX_SIMILAR: usize = 128;
/// Number of events whose counts are remembered; a forgotten one begins as a new object.
pub const MAX_SEEN: usize = 256;
/// Number of objects whose event rate is remembered: a node's pods.
pub const MAX_BUCKETS: usize = 160;

/// Messages of one group, as digests.
#[derive(Clone, Debug)]
pub(super) struct SimilarMessages {
    messages: [u32; MAX_MESSAGES],
    count: usize,
    last: Option<MonoTime>,
}

/// An event that has an object in the API.
#[derive(Clone, Copy, Debug)]
pub(super) struct PostedEvent {
    count: u32,
    first: WallTime,
}

/// Token bucket. Tokens are kept as the time in which they grow.
#[derive(Clone, Copy, Debug)]
pub(super) struct TokenBucket {
    tokens_ms: u64,
    at: MonoTime,
}

/// Memory of the events that were sent. See the docs of the module.
#[derive(Clone, Debug)]
pub struct EventCorrelator {
    node: Box<str>,
    pub(super) similar: Lru<SimilarMessages>,
    pub(super) seen: Lru<PostedEvent>,
    pub(super) buckets: Lru<TokenBucket>,
    thin: bool,
}

impl EventCorrelator {
    /// Creates an empty correlator. `node`: host of the events' source.
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

    /// Restricts events to warnings, for links that cost money. A repeated warning is sent only when its count has
    /// doubled.
    pub const fn set_warnings_only(&mut self, thin: bool) {
        self.thin = thin;
    }

    /// Turns an event into a request: a new object, or a higher count of one (EVT-03). `None`: the event is dropped.
    pub fn correlate(&mut self, occurrence: &EventOccurrence, now: MonoTime) -> Option<EventPost> {
        if self.thin && !occurrence.warning {
            return None;
        }
        let group = group_digest(occurrence);
        let folded = self.fold_into_similar(group, occurrence, now);
        let (key, first) = if folded {
            (group, occurrence.last)
        } else {
            (message_digest(group, occurrence), occurrence.first)
        };
        let seen = self
            .seen
            .entry_or_insert(key, || PostedEvent { count: 0, first });
        let before = seen.count;
        seen.count = before.saturating_add(occurrence.times.max(1));
        let PostedEvent { count, first } = *seen;
        if !self.take_token(occurrence, now) {
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
        Some(EventPost {
            namespace: occurrence.subject.event_namespace().into(),
            object: event_object(occurrence, &name, &message, count, first, &self.node),
            name,
            patch: (before > 0).then_some(patch),
        })
    }

    /// Returns true if the event is folded into the one that stands for all similar ones.
    fn fold_into_similar(
        &mut self,
        group: u64,
        occurrence: &EventOccurrence,
        now: MonoTime,
    ) -> bool {
        let similar = self.similar.entry_or_insert(group, || SimilarMessages {
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
            // Once the group is full, a new message replaces the last one: the group stays full.
            let place = similar.count.min(MAX_MESSAGES - 1);
            similar.messages[place] = short;
            similar.count = place + 1;
        }
        similar.count >= MAX_MESSAGES
    }

    /// Takes a token of the event's object. Returns false if none is left: the event is not sent, though it was
    /// counted.
    fn take_token(&mut self, occurrence: &EventOccurrence, now: MonoTime) -> bool {
        let refill_ms = u64::try_from(SPAM_REFILL.as_millis()).unwrap_or(u64::MAX);
        let full = refill_ms * u64::from(SPAM_BURST);
        let subject = &occurrence.subject;
        let key = digest_texts(&[
            subject.kind,
            &subject.namespace,
            &subject.name,
            &subject.uid,
        ]);
        let bucket = self.buckets.entry_or_insert(key, || TokenBucket {
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

/// Digest that events share which differ at most in message and `fieldPath`.
fn group_digest(occurrence: &EventOccurrence) -> u64 {
    let subject = &occurrence.subject;
    let kind = if occurrence.warning {
        "Warning"
    } else {
        "Normal"
    };
    digest_texts(&[
        subject.kind,
        &subject.namespace,
        &subject.name,
        &subject.uid,
        kind,
        &occurrence.reason,
    ])
}

fn message_digest(group: u64, occurrence: &EventOccurrence) -> u64 {
    let own = digest_texts(&[&occurrence.subject.field_path, &occurrence.message]);
    fnv1a(group.to_le_bytes().into_iter().chain(own.to_le_bytes()))
}

/// Hash of texts. Each is ended by a byte that occurs in none of them.
fn digest_texts(texts: &[&str]) -> u64 {
    fnv1a(texts.iter().flat_map(|text| text.bytes().chain([0xff])))
}
