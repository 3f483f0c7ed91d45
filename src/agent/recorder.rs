//! Kubernetes events: kept in a ring of fixed size, logged, and handed to who sends them, if the node has an apiserver.
//! Rows EVT-01, EVT-10 to EVT-35.

use alloc::{collections::VecDeque, rc::Rc};
use core::cell::RefCell;

use super::{clock::Clock, wake::WakeFlag};
use crate::api::event::{self, EventSource, ObjectReference};
use crate::api::order::OrderExt as _;
use crate::api::{Container, ObjectMeta, Pod, PodUid, WallTime};
use crate::logic::events::{EventOccurrence, InvolvedObject};

/// Events kept; the oldest makes room.
const EVENTS_KEPT: usize = 256;
/// Bytes of an event's message, as the API limits it.
const MAX_MESSAGE_BYTES: usize = 1024;

/// `Normal` or `Warning`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventSeverity {
    /// Part of a pod's ordinary life.
    Normal,
    /// A matter that a user should look at.
    Warning,
}

/// An event, with repeats folded into `count`. Its texts lie in the ring, one behind the other.
#[derive(Clone, Debug, PartialEq, Eq)]
struct KeptEvent {
    /// Lengths of the pod's UID, its `namespace/name`, the field path, reason, message and annotations.
    lengths: [u16; TEXTS],
    /// Severity.
    severity: EventSeverity,
    /// Number of times that it was seen in a row.
    count: u32,
    /// Part of that number that was handed over to be sent.
    told: u32,
    /// First time seen.
    first: WallTime,
    /// Last time seen.
    last: WallTime,
}

/// Texts of an event.
const TEXTS: usize = 6;

impl KeptEvent {
    fn len(&self) -> usize {
        self.lengths.iter().map(|len| usize::from(*len)).sum()
    }
}

/// All events of this agent. Whoever has something to tell records it here; local commands read them here, and one task
/// sends them to the apiserver ([`EventRecorder::next_untold`]). At most [`EVENTS_KEPT`].
pub(crate) struct EventRecorder {
    clock: Rc<dyn Clock>,
    node: String,
    kept: RefCell<KeptEvents>,
    /// Wakes who sends.
    recorded: WakeFlag,
}

impl EventRecorder {
    /// Begins without an event. `node`: name of the node.
    pub(crate) fn new(clock: Rc<dyn Clock>, node: String) -> Self {
        Self {
            clock,
            node,
            kept: RefCell::default(),
            recorded: WakeFlag::default(),
        }
    }

    /// Records an event of a pod.
    pub(crate) fn record_pod_event(
        &self,
        pod: &Pod,
        severity: EventSeverity,
        reason: &str,
        message: &str,
    ) {
        self.record_event(EventSubject::pod_field(pod, ""), severity, reason, message);
    }

    /// Records an event of a container.
    pub(crate) fn record_container_event(
        &self,
        pod: &Pod,
        container: &str,
        severity: EventSeverity,
        reason: &str,
        message: &str,
    ) {
        let has = |list: &[Container]| list.iter().any(|c| c.name == container);
        let field = if has(&pod.spec.init_containers) {
            "initContainers"
        } else if has(&pod.spec.ephemeral_containers) {
            "ephemeralContainers"
        } else {
            "containers"
        };
        let field_path = format!("spec.{field}{{{container}}}");
        self.record_event(
            EventSubject::pod_field(pod, &field_path),
            severity,
            reason,
            message,
        );
    }

    /// Records an event of the node, which has no namespace; its name stands for its UID, as in the events of a kubelet.
    pub(crate) fn record_node_event(&self, severity: EventSeverity, reason: &str, message: &str) {
        let uid = PodUid::new(self.node.clone());
        let about = EventSubject::whole_object(&uid, "", &self.node);
        self.record_event(about, severity, reason, message);
    }

    /// Records an event of something of which there may be no object at hand.
    pub(crate) fn record_event(
        &self,
        about: EventSubject<'_>,
        severity: EventSeverity,
        reason: &str,
        message: &str,
    ) {
        let now = self.clock.wall_time();
        self.kept
            .borrow_mut()
            .push_event(about, severity, reason, message, now);
        self.recorded.wake_waiters();
    }

    /// Waits until something was recorded since the last wait.
    pub(crate) async fn wait_for_event(&self) {
        self.recorded.wait_for_wake().await;
    }

    /// The oldest event that was not handed over yet, with all its repeats since. What the ring drops before is lost.
    pub(crate) fn next_untold(&self) -> Option<EventOccurrence> {
        self.kept.borrow_mut().next_untold()
    }

    /// Notes that so many events were handed over and given up.
    pub(crate) fn note_lost_events(&self, given_up: u64) {
        self.kept.borrow_mut().given_up = given_up;
    }

    /// Events that nobody at the apiserver will hear of: given up, or dropped before they were handed over. Counted also
    /// where there is no apiserver.
    pub(crate) fn lost_event_count(&self) -> u64 {
        let kept = self.kept.borrow();
        kept.given_up + kept.dropped
    }

    /// The events that were seen last, at most `limit`, oldest first; of pods of one namespace, if one is named.
    pub(crate) fn newest_events(&self, namespace: Option<&str>, limit: usize) -> Vec<EventRecord> {
        self.kept.borrow().newest_events(namespace, limit)
    }
}

/// The ring of events. Two allocations, whatever the number: events are made in the midst of everything else, and a text
/// of each on the heap would keep a page of it for as long as the event is kept (measured: 1.5 MiB after 100 pods).
#[derive(Debug, Default)]
struct KeptEvents {
    ring: VecDeque<KeptEvent>,
    /// Texts of all events, oldest first.
    texts: VecDeque<u8>,
    /// Dropped before they were handed over.
    dropped: u64,
    /// Handed over, and not taken.
    given_up: u64,
}

/// Subject of an event.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EventSubject<'a> {
    /// Pod UID.
    pub(crate) uid: &'a PodUid,
    /// Pod namespace; empty for the node.
    pub(crate) namespace: &'a str,
    /// Pod name.
    pub(crate) name: &'a str,
    /// `spec.containers{name}`; empty for the pod.
    pub(crate) field_path: &'a str,
    /// Annotations, for programs, as a JSON object of texts; empty for none.
    pub(crate) annotations: &'a str,
}

impl<'a> EventSubject<'a> {
    /// A pod of that name as a whole, or the node.
    pub(crate) const fn whole_object(uid: &'a PodUid, namespace: &'a str, name: &'a str) -> Self {
        Self {
            uid,
            namespace,
            name,
            field_path: "",
            annotations: "",
        }
    }

    fn pod_field(pod: &'a Pod, field_path: &'a str) -> Self {
        let meta = &pod.metadata;
        Self {
            uid: &meta.uid,
            namespace: &meta.namespace,
            name: &meta.name,
            field_path,
            annotations: "",
        }
    }
}

impl core::fmt::Display for EventSubject<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.namespace {
            "" => write!(f, "node={}", self.name),
            namespace => write!(f, "pod={namespace}/{}", self.name),
        }
    }
}

impl KeptEvents {
    /// Records an event. An event equal to a kept one but for its times only grows that one's count.
    fn push_event(
        &mut self,
        about: EventSubject<'_>,
        severity: EventSeverity,
        reason: &str,
        message: &str,
        now: WallTime,
    ) {
        let message = truncate_text(message, MAX_MESSAGE_BYTES);
        let pod = format!("{}/{}", about.namespace, about.name);
        // Half an object is none.
        let fits = about.annotations.len() <= MAX_MESSAGE_BYTES;
        let annotations = if fits { about.annotations } else { "" };
        let texts = [
            about.uid.as_str(),
            &pod,
            about.field_path,
            reason,
            message,
            annotations,
        ];
        let texts = texts.map(|text| truncate_text(text, MAX_MESSAGE_BYTES));
        let lengths = texts.map(|text| u16::try_from(text.len()).unwrap_or(u16::MAX));
        let bytes = || texts.iter().flat_map(|text| text.bytes());
        let mut end = self.texts.len();
        let known = self.ring.iter_mut().rev().find(|event| {
            let start = end - event.len();
            let same =
                event.lengths == lengths && self.texts.range(start..end).copied().eq(bytes());
            end = start;
            same
        });
        if let Some(known) = known {
            known.count = known.count.saturating_add(1);
            known.last = now;
            log::debug!("{about} reason={reason} count={}: {message}", known.count);
            return;
        }
        let place = if about.field_path.is_empty() { "" } else { " " };
        let field_path = about.field_path;
        match severity {
            EventSeverity::Normal => log::info!("{about}{place}{field_path} {reason}: {message}"),
            EventSeverity::Warning => log::warn!("{about}{place}{field_path} {reason}: {message}"),
        }
        if self.ring.len() == EVENTS_KEPT
            && let Some(oldest) = self.ring.pop_front()
        {
            self.texts.drain(..oldest.len());
            self.dropped += u64::from(oldest.told < oldest.count);
        }
        self.texts.extend(bytes());
        self.ring.push_back(KeptEvent {
            lengths,
            severity,
            count: 1,
            told: 0,
            first: now,
            last: now,
        });
    }

    /// The oldest event that was not handed over yet, with all its repeats since. What the ring drops before is lost.
    fn next_untold(&mut self) -> Option<EventOccurrence> {
        let mut at = 0;
        let index = self.ring.iter().position(|event| {
            let untold = event.told < event.count;
            at += if untold { 0 } else { event.len() };
            untold
        })?;
        let event = &mut self.ring[index];
        let times = event.count - event.told;
        event.told = event.count;
        let event = self.ring[index].clone();
        let [uid, pod, field_path, reason, message, annotations] = self.texts_of(&event, at);
        let (namespace, name) = pod.split_once('/').unwrap_or(("", &pod));
        Some(EventOccurrence {
            subject: InvolvedObject {
                kind: involved_kind(namespace),
                namespace: namespace.into(),
                name: name.into(),
                uid: uid.as_str().into(),
                field_path: field_path.into(),
            },
            warning: event.severity == EventSeverity::Warning,
            reason: reason.into(),
            message: message.into(),
            annotations: annotations.into(),
            times,
            first: event.first,
            last: event.last,
        })
    }

    /// Texts of the event that begin at this place.
    fn texts_of(&self, event: &KeptEvent, mut at: usize) -> [String; TEXTS] {
        event.lengths.map(|len| {
            let start = at;
            at += usize::from(len);
            let bytes: Vec<u8> = self.texts.range(start..at).copied().collect();
            // They were texts, cut at characters.
            String::from_utf8(bytes).unwrap_or_default()
        })
    }

    /// See [`EventRecorder::newest_events`]. Of the others nothing is kept while it looks.
    fn newest_events(&self, namespace: Option<&str>, limit: usize) -> Vec<EventRecord> {
        let is_meant = |e: &EventRecord| namespace.is_none_or(|n| e.namespace() == n);
        let meant = self.all_events().filter(is_meant);
        let mut times: Vec<WallTime> = meant.map(|e| e.last).collect();
        times.stable_sort();
        let since = times.get(times.len().saturating_sub(limit)).copied();
        let late = |e: &EventRecord| since.is_some_and(|since| e.last >= since);
        let mut events: Vec<EventRecord> = self
            .all_events()
            .filter(|e| is_meant(e) && late(e))
            .collect();
        events.stable_sort_by_key(|e| e.last);
        events.split_off(events.len().saturating_sub(limit))
    }

    /// All kept events, oldest first.
    fn all_events(&self) -> impl Iterator<Item = EventRecord> {
        let mut at = 0;
        self.ring.iter().map(move |event| {
            let [uid, pod, field_path, reason, message, annotations] = self.texts_of(event, at);
            at += event.len();
            EventRecord {
                uid,
                pod,
                field_path,
                reason,
                message,
                annotations,
                severity: event.severity,
                count: event.count,
                first: event.first,
                last: event.last,
            }
        })
    }
}

/// A kept event, whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EventRecord {
    pub(crate) uid: String,
    /// `namespace/name`.
    pub(crate) pod: String,
    pub(crate) field_path: String,
    pub(crate) reason: String,
    pub(crate) message: String,
    /// JSON, or empty.
    pub(crate) annotations: String,
    pub(crate) severity: EventSeverity,
    pub(crate) count: u32,
    pub(crate) first: WallTime,
    pub(crate) last: WallTime,
}

impl EventRecord {
    /// Namespace of the pod; empty for the node.
    pub(crate) fn namespace(&self) -> &str {
        self.pod
            .split_once('/')
            .map_or("", |(namespace, _)| namespace)
    }

    /// The Event object; `node` is its source's host.
    pub(crate) fn into_api_event(self, node: &str) -> event::Event {
        let (namespace, name) = self.pod.split_once('/').unwrap_or(("", &self.pod));
        event::Event {
            api_version: "v1".into(),
            kind: "Event".into(),
            metadata: ObjectMeta {
                name: format!("{name}.{:x}", self.first.0),
                namespace: namespace.into(),
                creation_timestamp: Some(self.first),
                annotations: serde_json::from_str(&self.annotations).unwrap_or_default(),
                ..ObjectMeta::default()
            },
            involved_object: ObjectReference {
                api_version: "v1".into(),
                kind: involved_kind(namespace).into(),
                namespace: namespace.into(),
                name: name.into(),
                uid: self.uid.into(),
                field_path: self.field_path,
            },
            severity: match self.severity {
                EventSeverity::Normal => "Normal".into(),
                EventSeverity::Warning => "Warning".into(),
            },
            reason: self.reason,
            message: self.message,
            count: self.count,
            first_timestamp: Some(self.first),
            last_timestamp: Some(self.last),
            source: EventSource {
                component: "kubelet".into(),
                host: node.into(),
            },
        }
    }
}

/// Kind of what has this namespace: the node has none.
const fn involved_kind(namespace: &str) -> &'static str {
    if namespace.is_empty() { "Node" } else { "Pod" }
}

/// The head of `text`, at most `limit` bytes, cut at a character.
fn truncate_text(text: &str, limit: usize) -> &str {
    let mut end = text.len().min(limit);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_newest_are_shown() {
        let mut recorder = KeptEvents::default();
        let uid = PodUid::from("u");
        let mut record = |namespace, reason, second| {
            let about = EventSubject {
                uid: &uid,
                namespace,
                name: "p",
                field_path: "",
                annotations: "",
            };
            recorder.push_event(
                about,
                EventSeverity::Normal,
                reason,
                "",
                WallTime::from_unix_seconds(second),
            );
        };
        record("a", "Old", 1);
        record("a", "Late", 9);
        record("b", "Other", 5);
        record("a", "Same", 9);
        let shown = |namespace, limit| {
            let newest = recorder.newest_events(namespace, limit).into_iter();
            newest.map(|e| e.reason).collect::<Vec<_>>()
        };
        assert_eq!(shown(None, 9), ["Old", "Other", "Late", "Same"]);
        assert_eq!(shown(None, 3), ["Other", "Late", "Same"]);
        assert_eq!(shown(None, 1), ["Same"]);
        assert_eq!(shown(Some("a"), 2), ["Late", "Same"]);
        assert_eq!(shown(Some("b"), 2), ["Other"]);
        assert!(shown(None, 0).is_empty() && shown(Some("c"), 1).is_empty());
    }

    #[test]
    fn repeats_are_folded_and_the_ring_is_bounded() {
        // EVT-01
        let mut recorder = KeptEvents::default();
        let uid = PodUid::from("u");
        let about = EventSubject {
            uid: &uid,
            namespace: "default",
            name: "p",
            field_path: "spec.containers{c}",
            annotations: "",
        };
        for n in 0..3 {
            recorder.push_event(
                about,
                EventSeverity::Warning,
                "BackOff",
                "again",
                WallTime::from_unix_seconds(n),
            );
        }
        let first = recorder.all_events().next().expect("one event");
        assert_eq!(
            serde_json::to_value(first.into_api_event("n")).expect("event"),
            json!({
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {
                    "name": "p.0",
                    "namespace": "default",
                    "creationTimestamp": "1970-01-01T00:00:00Z",
                },
                "involvedObject": {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "namespace": "default",
                    "name": "p",
                    "uid": "u",
                    "fieldPath": "spec.containers{c}",
                },
                "type": "Warning",
                "reason": "BackOff",
                "message": "again",
                "count": 3,
                "firstTimestamp": "1970-01-01T00:00:00Z",
                "lastTimestamp": "1970-01-01T00:00:02Z",
                "source": {"component": "kubelet", "host": "n"},
            })
        );
        let node = EventSubject {
            uid: &PodUid::from("n"),
            namespace: "",
            name: "n",
            field_path: "",
            annotations: "",
        };
        recorder.push_event(node, EventSeverity::Normal, "Starting", "", WallTime(0));
        let told = recorder
            .all_events()
            .last()
            .expect("an event")
            .into_api_event("n");
        assert_eq!(told.involved_object.kind, "Node");
        for n in 0..2 * EVENTS_KEPT {
            recorder.push_event(
                about,
                EventSeverity::Normal,
                "Pulled",
                &n.to_string(),
                WallTime(0),
            );
        }
        assert_eq!(recorder.all_events().count(), EVENTS_KEPT);
        let texts: usize = recorder.ring.iter().map(KeptEvent::len).sum();
        assert_eq!(texts, recorder.texts.len(), "texts go with their events");
    }

    #[test]
    fn messages_are_cut_at_a_character() {
        assert_eq!(truncate_text("aäb", 2), "a");
        assert_eq!(truncate_text("aäb", 3), "aä");
    }
}
