//! The doorbell: one watch of this node's pods. Its events are only hints ("rings").
//!
//! Its objects are metadata alone, and of them only identity and version are read, through a buffer of fixed size.
//! Memory does not depend on what the cluster does or on how long the watch lasts. An event is never taken for the
//! truth: it only tells which pod to read. Whatever is odd about a watch is answered by a list.

use alloc::sync::Arc;
use core::cell::Cell;
use core::fmt;
use core::time::Duration;

use serde::de::{self, DeserializeSeed, IgnoredAny, MapAccess, Visitor};
use serde_json::Deserializer;

use super::cancel::WatchCancel;
use super::client::{ApiRequest, ApiResponse, KubeClient, body_read_error};
use super::error::{ApiError, KubeError};
use super::path::{encode_query, node_selector};
use super::requests::META;
use super::stream::{BudgetReader, DocumentReadError, PrunedValue};
use crate::api::fnv::fnv1a;

/// Longest event that is read to its end, bytes; the rest of a longer one is unknown.
pub const MAX_EVENT_BYTES: u64 = 256 * 1024;
/// Longest identity or version taken from an event, bytes. Names have at most 253.
const MAX_FIELD_BYTES: usize = 256;
/// Silence that is allowed after the time at which the apiserver was to end the watch.
const STALL_SLACK: Duration = Duration::from_secs(30);

/// Options of a watch.
#[derive(Clone, Debug)]
pub struct WatchOptions {
    /// The node whose pods are watched; empty in a watch of other objects.
    pub node: String,
    /// The version of the last list.
    pub resource_version: String,
    /// Time after which the apiserver ends the watch.
    pub timeout: Duration,
    /// Set if the apiserver is to send bookmarks: bytes about once a minute, for a version that expires later.
    pub bookmarks: bool,
}

/// Kind of change of a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WatchEventKind {
    /// The pod is new, or matches now.
    Added,
    /// The pod has changed.
    Modified,
    /// The pod is gone.
    Deleted,
    /// No pod changed: the version is that of the whole list.
    Bookmark,
    /// An unknown change; also every type that this agent does not know.
    #[default]
    Unknown,
}

/// An event of a watch. Fields are empty that the event lacked, or had too late in too long an event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchEvent {
    /// Kind of the change.
    pub kind: WatchEventKind,
    /// UID of the pod. Empty: unknown, so a list is due.
    pub uid: String,
    /// Version of the object.
    pub resource_version: String,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Service that an EndpointSlice belongs to, by its label; empty for other objects.
    pub service: String,
    /// Digest of the annotations: other ones have another digest. 0: there are none.
    pub annotations: u64,
    /// Set if the event was too long: fields, labels or annotations may be missing.
    pub is_cut: bool,
}

/// End of a watch that did not break.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchEnd {
    /// The time of the watch was over. All events until then were told.
    Clean,
    /// The apiserver sent an error in the stream, usually that the version has expired. A list is due.
    Error(ApiError),
}

pub(super) fn watch_pods(
    client: &KubeClient,
    options: &WatchOptions,
    cancel: &Arc<WatchCancel>,
    each: &mut dyn FnMut(WatchEvent),
) -> Result<WatchEnd, KubeError> {
    let path = format!("/api/v1/pods?{}", node_selector(&options.node)?);
    watch_metadata(client, &path, options, cancel, each)
}

/// Watches the metadata of the objects of `path`, which may have a query.
pub(super) fn watch_metadata(
    client: &KubeClient,
    path: &str,
    options: &WatchOptions,
    cancel: &Arc<WatchCancel>,
    each: &mut dyn FnMut(WatchEvent),
) -> Result<WatchEnd, KubeError> {
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let more = if query.is_empty() { "" } else { "&" };
    let path = format!(
        "{path}?watch=1{more}{query}&resourceVersion={}&timeoutSeconds={}&allowWatchBookmarks={}",
        encode_query(&options.resource_version),
        options.timeout.as_secs(),
        options.bookmarks,
    );
    let ask = ApiRequest {
        accept: META,
        ..ApiRequest::get(&path)
    };
    let ended = client
        .open_stream(&ask, options.timeout + STALL_SLACK, cancel)
        .and_then(|answer| read_watch_answer(answer, each));
    if !matches!(ended, Ok(WatchEnd::Clean)) {
        drop(cancel.take_connections());
    }
    match ended {
        // A cancelled watch may end with any error.
        _ if cancel.is_cancelled() => Err(KubeError::Cancelled),
        ended => ended,
    }
}

fn read_watch_answer(
    answer: ApiResponse,
    each: &mut dyn FnMut(WatchEvent),
) -> Result<WatchEnd, KubeError> {
    let (url, body) = answer.into_reader()?;
    read_events(Box::new(body), each).map_err(|e| body_read_error(&url, e))
}

/// Reads events, one a line, until their end.
pub(super) fn read_events(
    input: Box<dyn std::io::Read + '_>,
    each: &mut dyn FnMut(WatchEvent),
) -> Result<WatchEnd, DocumentReadError> {
    let budget = Cell::new(0);
    let mut stream = BudgetReader::new(input, &budget);
    loop {
        if stream
            .is_at_end()
            .map_err(|e| DocumentReadError::from_io(&e))?
        {
            return Ok(WatchEnd::Clean);
        }
        budget.set(MAX_EVENT_BYTES);
        let mut event = ParsedWatchEvent::default();
        let read =
            WatchEventDocument(&mut event).deserialize(&mut Deserializer::from_reader(&mut stream));
        match read {
            Ok(()) => {}
            // The part that came may tell the pod.
            Err(_) if budget.get() == 0 => {
                if event.error.is_some() {
                    return Err(DocumentReadError::Wrong("its error is too long".into()));
                }
                event.ring.is_cut = true;
            }
            Err(e) => return Err(DocumentReadError::from_json(e)),
        }
        if let Some(status) = event.error {
            return Ok(WatchEnd::Error(status));
        }
        each(event.ring);
        if !stream
            .skip_line()
            .map_err(|e| DocumentReadError::from_io(&e))?
        {
            return Ok(WatchEnd::Clean);
        }
    }
}

#[derive(Default)]
struct ParsedWatchEvent {
    ring: WatchEvent,
    error: Option<ApiError>,
}

/// `{"type": …, "object": …}`
struct WatchEventDocument<'a>(&'a mut ParsedWatchEvent);

impl<'de> DeserializeSeed<'de> for WatchEventDocument<'_> {
    type Value = ();
    fn deserialize<D: de::Deserializer<'de>>(self, reader: D) -> Result<(), D::Error> {
        reader.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for WatchEventDocument<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an event")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
        while let Some(name) = fields.next_key_seed(SHORT_TEXT)? {
            match name.as_str() {
                "type" => {
                    let kind = fields.next_value_seed(SHORT_TEXT)?;
                    self.0.ring.kind = match kind.as_str() {
                        "ADDED" => WatchEventKind::Added,
                        "MODIFIED" => WatchEventKind::Modified,
                        "DELETED" => WatchEventKind::Deleted,
                        "BOOKMARK" => WatchEventKind::Bookmark,
                        _ => WatchEventKind::Unknown,
                    };
                    if kind == "ERROR" {
                        self.0.error = Some(ApiError::default());
                    }
                }
                "object" if self.0.error.is_some() => {
                    // A `Status` is small, so it is read whole.
                    let status = fields.next_value_seed(PrunedValue::new(&Cell::new(0)))?;
                    let text = status.to_string();
                    self.0.error = Some(ApiError::from_body(200, None, text.as_bytes()));
                }
                "object" => fields.next_value_seed(WatchedFields {
                    event: &mut self.0.ring,
                    level: WatchedLevel::Object,
                })?,
                _ => {
                    fields.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}

/// Label of an EndpointSlice that names its Service.
const SERVICE_LABEL: &str = "kubernetes.io/service-name";

/// Depth of a field of an event.
#[derive(Clone, Copy)]
enum WatchedLevel {
    Object,
    Metadata,
    Labels,
    Annotations,
}

/// The object of an event, its metadata, its labels or its annotations.
struct WatchedFields<'a> {
    event: &'a mut WatchEvent,
    level: WatchedLevel,
}

impl<'de> DeserializeSeed<'de> for WatchedFields<'_> {
    type Value = ();
    fn deserialize<D: de::Deserializer<'de>>(self, reader: D) -> Result<(), D::Error> {
        reader.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for WatchedFields<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
        while let Some(name) = fields.next_key_seed(SHORT_TEXT)? {
            let inner = match (self.level, name.as_str()) {
                (WatchedLevel::Object, "metadata") => Some(WatchedLevel::Metadata),
                (WatchedLevel::Metadata, "labels") => Some(WatchedLevel::Labels),
                (WatchedLevel::Metadata, "annotations") => Some(WatchedLevel::Annotations),
                _ => None,
            };
            if let Some(level) = inner {
                let event = &mut *self.event;
                fields.next_value_seed(WatchedFields { event, level })?;
                continue;
            }
            let field = match (self.level, name.as_str()) {
                (WatchedLevel::Metadata, "uid") => &mut self.event.uid,
                (WatchedLevel::Metadata, "resourceVersion") => &mut self.event.resource_version,
                (WatchedLevel::Metadata, "namespace") => &mut self.event.namespace,
                (WatchedLevel::Metadata, "name") => &mut self.event.name,
                (WatchedLevel::Labels, SERVICE_LABEL) => &mut self.event.service,
                (WatchedLevel::Annotations, _) => {
                    // The sum does not depend on their order.
                    let value = fields.next_value_seed(TEXT_DIGEST)?;
                    let one = value ^ fnv1a(name.bytes()).rotate_left(1);
                    self.event.annotations = self.event.annotations.wrapping_add(one);
                    continue;
                }
                _ => {
                    fields.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            *field = fields.next_value_seed(SHORT_TEXT)?;
        }
        Ok(())
    }
}

/// Reader of a text: what the function makes of it.
struct TextAs<T>(fn(&str) -> T);

impl<'de, T> DeserializeSeed<'de> for TextAs<T> {
    type Value = T;
    fn deserialize<D: de::Deserializer<'de>>(self, reader: D) -> Result<T, D::Error> {
        reader.deserialize_str(self)
    }
}

impl<T> Visitor<'_> for TextAs<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text")
    }

    fn visit_str<E>(self, text: &str) -> Result<T, E> {
        Ok((self.0)(text))
    }
}

/// Digest of a text of any length.
const TEXT_DIGEST: TextAs<u64> = TextAs(|text| fnv1a(text.bytes()));

/// A text; empty if it is longer than [`MAX_FIELD_BYTES`].
const SHORT_TEXT: TextAs<String> = TextAs(|text| {
    if text.len() <= MAX_FIELD_BYTES {
        text.into()
    } else {
        String::new()
    }
});

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(kind: WatchEventKind, uid: &str, version: &str, name: &str) -> WatchEvent {
        WatchEvent {
            kind,
            uid: uid.into(),
            resource_version: version.into(),
            namespace: if name.is_empty() { "" } else { "shop" }.into(),
            name: name.into(),
            service: String::new(),
            annotations: 0,
            is_cut: false,
        }
    }

    #[test]
    fn other_annotations_have_another_digest() {
        // FLAN-02
        let digest = |annotations: &str| {
            let text = format!("\"annotations\":{annotations},\"labels\":{{");
            let (end, rings) = read(ONE.replace("\"labels\":{", &text).as_bytes());
            assert_eq!(end.expect("end"), WatchEnd::Clean);
            rings[0].annotations
        };
        let one = digest(r#"{"a":"1","b":"2"}"#);
        assert_eq!(one, digest(r#"{"b":"2","a":"1"}"#));
        assert_eq!(digest("{}"), 0);
        let long = format!(r#"{{"a":"{}","b":"2"}}"#, "x".repeat(5000));
        let longer = long.replace("x\"", "xy\"");
        for other in [
            r#"{"a":"2","b":"1"}"#,
            r#"{"a":"1"}"#,
            r#"{"a":"1","b":"3"}"#,
            r#"{"a":"1","c":"2"}"#,
            &long,
        ] {
            assert_ne!(digest(other), one, "{other}");
        }
        assert_ne!(digest(&long), digest(&longer));
    }

    #[test]
    fn slices_name_their_service() {
        // PROX-21
        let slice = ONE.replace(
            r#"{"uid":"x"}"#,
            r#"{"uid":"x","kubernetes.io/service-name":"api"}"#,
        );
        let (end, rings) = read(slice.as_bytes());
        assert!(end.is_ok());
        let expected = WatchEvent {
            service: "api".into(),
            ..ring(WatchEventKind::Modified, "u1", "7", "web")
        };
        assert_eq!(rings, [expected]);
    }

    fn read(text: &[u8]) -> (Result<WatchEnd, DocumentReadError>, Vec<WatchEvent>) {
        let mut rings = Vec::new();
        let end = read_events(Box::new(text), &mut |ring| rings.push(ring));
        (end, rings)
    }

    const ONE: &str = r#"{"type":"MODIFIED","object":{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"web","namespace":"shop","uid":"u1","resourceVersion":"7","labels":{"uid":"x"},"ownerReferences":[{"uid":"y"}],"managedFields":[{"f":{}}]}}}"#;

    #[test]
    fn rings() {
        let text = format!(
            "{ONE}\n{}\n{}\n{}\n{}\n",
            ONE.replace("MODIFIED", "ADDED").replace("\"7\"", "\"8\""),
            ONE.replace("MODIFIED", "DELETED"),
            r#"{"type":"BOOKMARK","object":{"kind":"Pod","metadata":{"resourceVersion":"99","creationTimestamp":null}}}"#,
            r#"{"object":{"metadata":{"uid":"u1"}},"type":"NEW"}"#,
        );
        let (end, rings) = read(text.as_bytes());
        assert_eq!(end.expect("end"), WatchEnd::Clean);
        assert_eq!(
            rings,
            [
                ring(WatchEventKind::Modified, "u1", "7", "web"),
                ring(WatchEventKind::Added, "u1", "8", "web"),
                ring(WatchEventKind::Deleted, "u1", "7", "web"),
                ring(WatchEventKind::Bookmark, "", "99", ""),
                ring(WatchEventKind::Unknown, "u1", "", ""),
            ]
        );
        // The last line may lack its end; a line that is cut is a break.
        assert_eq!(read(ONE.as_bytes()).0.expect("end"), WatchEnd::Clean);
        assert_eq!(read(b"").0.expect("end"), WatchEnd::Clean);
        for end in 1..ONE.len() {
            let (result, rings) = read(&ONE.as_bytes()[..end]);
            assert!(matches!(result, Err(DocumentReadError::Cut(_))), "{end}");
            assert_eq!(rings, []);
        }
    }

    #[test]
    fn an_event_that_is_too_long_is_a_ring() {
        let long = "x".repeat(1 << 20);
        // Whom it is about comes early.
        let late = ONE.replace(
            "\"labels\":{",
            &format!("\"labels\":{{\"{long}\":\"{long}\","),
        );
        let early = ONE.replace("\"name\":\"web\"", &format!("\"name\":\"{long}\""));
        let (end, rings) = read(format!("{late}\n{early}\n{ONE}\n").as_bytes());
        assert_eq!(end.expect("end"), WatchEnd::Clean);
        let cut = |ring| WatchEvent {
            is_cut: true,
            ..ring
        };
        assert_eq!(
            rings,
            [
                cut(ring(WatchEventKind::Modified, "u1", "7", "web")),
                cut(ring(WatchEventKind::Modified, "", "", "")),
                ring(WatchEventKind::Modified, "u1", "7", "web"),
            ]
        );
        // A field that is too long for what it says it is, in an event that is not.
        let odd = ONE.replace("\"u1\"", &format!("\"{}\"", "u".repeat(300)));
        assert_eq!(
            read(odd.as_bytes()).1,
            [ring(WatchEventKind::Modified, "", "7", "web")]
        );
    }

    #[test]
    fn errors_in_the_stream() {
        let gone = r#"{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"too old resource version: 1 (9)","reason":"Expired","code":410}}"#;
        let (end, rings) = read(format!("{ONE}\n{gone}\n{ONE}\n").as_bytes());
        let Ok(WatchEnd::Error(error)) = end else {
            panic!("{end:?}");
        };
        assert_eq!((error.status, error.reason.as_str()), (410, "Expired"));
        assert_eq!(rings.len(), 1, "nothing counts after it");
        for text in [
            &b"<html>\n"[..],
            b"[]\n",
            b"{\"type\":1}\n",
            b"{\"type\":\"ADDED\",\"object\":{\"metadata\":{\"uid\":1}}}\n",
            b"\xff\n",
        ] {
            let (end, rings) = read(text);
            assert!(matches!(end, Err(DocumentReadError::Wrong(_))), "{end:?}");
            assert_eq!(rings, []);
        }
    }
}
