//! Kubernetes events: kept in a ring of fixed size and logged. Rows EVT-01, EVT-10 to EVT-35.

use alloc::collections::VecDeque;

use crate::api::{PodUid, Wall};

/// Events kept; the oldest makes room.
pub(super) const EVENTS_KEPT: usize = 256;
/// Bytes of an event's message, as the API limits it.
pub(super) const MAX_MESSAGE_BYTES: usize = 1024;

/// `Normal` or `Warning`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Severity {
    /// Part of a pod's ordinary life.
    Normal,
    /// Something a user should look at.
    Warning,
}

/// One event, repeats folded into `count`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Event {
    /// Pod it is about.
    pub(super) uid: PodUid,
    /// `namespace/name` of the pod.
    pub(super) pod: Box<str>,
    /// `spec.containers{name}` and the like; empty for the pod itself.
    pub(super) field_path: Box<str>,
    /// Severity.
    pub(super) severity: Severity,
    /// CamelCase reason.
    pub(super) reason: Box<str>,
    /// Text.
    pub(super) message: Box<str>,
    /// How often it was seen in a row.
    pub(super) count: u32,
    /// First time seen.
    pub(super) first: Wall,
    /// Last time seen.
    pub(super) last: Wall,
}

/// The ring of events.
#[derive(Debug, Default)]
pub(super) struct Recorder {
    ring: VecDeque<Event>,
}

/// What an event is about.
#[derive(Clone, Copy, Debug)]
pub(super) struct About<'a> {
    /// Pod UID.
    pub(super) uid: &'a PodUid,
    /// Pod namespace.
    pub(super) namespace: &'a str,
    /// Pod name.
    pub(super) name: &'a str,
    /// `spec.containers{name}`; empty for the pod.
    pub(super) field_path: &'a str,
}

impl Recorder {
    /// Records an event. An event equal to a kept one but for its times only grows that one's count.
    pub(super) fn record(
        &mut self,
        about: About<'_>,
        severity: Severity,
        reason: &str,
        message: &str,
        now: Wall,
    ) {
        let message = cut(message, MAX_MESSAGE_BYTES);
        let same = |e: &&mut Event| {
            e.uid == *about.uid
                && *e.reason == *reason
                && *e.field_path == *about.field_path
                && *e.message == *message
        };
        if let Some(known) = self.ring.iter_mut().rev().find(same) {
            known.count = known.count.saturating_add(1);
            known.last = now;
            log::debug!(
                "pod={}/{} reason={reason} count={}: {message}",
                about.namespace,
                about.name,
                known.count
            );
            return;
        }
        let place = if about.field_path.is_empty() { "" } else { " " };
        match severity {
            Severity::Normal => {
                log::info!(
                    "pod={}/{}{place}{} {reason}: {message}",
                    about.namespace,
                    about.name,
                    about.field_path
                );
            }
            Severity::Warning => {
                log::warn!(
                    "pod={}/{}{place}{} {reason}: {message}",
                    about.namespace,
                    about.name,
                    about.field_path
                );
            }
        }
        if self.ring.len() == EVENTS_KEPT {
            self.ring.pop_front();
        }
        self.ring.push_back(Event {
            uid: about.uid.clone(),
            pod: format!("{}/{}", about.namespace, about.name).into(),
            field_path: about.field_path.into(),
            severity,
            reason: reason.into(),
            message: message.into(),
            count: 1,
            first: now,
            last: now,
        });
    }

    /// All kept events, oldest first.
    #[cfg(test)]
    pub(super) fn events(&self) -> impl Iterator<Item = &Event> {
        self.ring.iter()
    }
}

/// The head of `text`, at most `limit` bytes, cut at a character.
fn cut(text: &str, limit: usize) -> &str {
    let mut end = text.len().min(limit);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeats_are_folded_and_the_ring_is_bounded() {
        // EVT-01
        let mut recorder = Recorder::default();
        let uid = PodUid::from("u");
        let about = About {
            uid: &uid,
            namespace: "default",
            name: "p",
            field_path: "spec.containers{c}",
        };
        for n in 0..3 {
            recorder.record(
                about,
                Severity::Warning,
                "BackOff",
                "again",
                Wall::from_secs(n),
            );
        }
        let first = recorder.events().next().expect("one event");
        assert_eq!(
            (first.count, first.first, first.last),
            (3, Wall::from_secs(0), Wall::from_secs(2))
        );
        for n in 0..2 * EVENTS_KEPT {
            recorder.record(about, Severity::Normal, "Pulled", &n.to_string(), Wall(0));
        }
        assert_eq!(recorder.events().count(), EVENTS_KEPT);
    }

    #[test]
    fn messages_are_cut_at_a_character() {
        assert_eq!(cut("aäb", 2), "a");
        assert_eq!(cut("aäb", 3), "aä");
    }
}
