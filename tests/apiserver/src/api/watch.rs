//! Watches: what changed since a version, for whoever wants it.
//!
//! Source: apiserver `pkg/storage/cacher/cache_watcher.go`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::read::{unsupported, version};
use super::{Form, Reply, Request, form, show};
use crate::clock;
use crate::core::Core;
use crate::error::ApiError;
use crate::kinds::Kind;
use crate::select::Selector;

/// Shortest time that a watch without `timeoutSeconds` stays open; upstream draws up to twice that.
const MIN_TIMEOUT: Duration = Duration::from_secs(1800);

/// The pace of bookmarks.
const BOOKMARKS: Duration = Duration::from_secs(60);

/// How long before its end a watch gets its last bookmark.
const LAST_BOOKMARK: Duration = Duration::from_secs(2);

/// A watch that is under way.
pub(crate) struct Watch {
    kind: &'static Kind,
    ns: String,
    name: String,
    selector: Selector,
    form: Form,
    bookmarks: bool,
    /// The last version that was looked at.
    position: u64,
    restores: u64,
    end: Instant,
    next_bookmark: Instant,
    /// Sent before anything else.
    first: Vec<Value>,
}

/// What a watch has to send.
pub(crate) enum Next {
    /// Lines, and whether each is a change that a fault may drop.
    Events(Vec<(Value, bool)>),
    /// Nothing for now.
    Idle,
    /// Closed cleanly.
    End,
}

/// When the next bookmark is due: at the pace, and once shortly before the end.
fn bookmark_after(now: Instant, end: Instant) -> Instant {
    let last = end.checked_sub(LAST_BOOKMARK).unwrap_or(end);
    if now < last {
        last.min(now + BOOKMARKS)
    } else {
        now + BOOKMARKS
    }
}

fn event(ty: &str, object: Value) -> Value {
    json!({"type": ty, "object": object})
}

pub(super) fn start(
    core: &Core,
    request: &Request<'_>,
    kind: &'static Kind,
    ns: &str,
) -> Result<Reply, ApiError> {
    let query = request.query;
    unsupported(query)?;
    let form = match form(request.accept, false)? {
        Form::Table => Form::Full,
        other => other,
    };
    let selector = Selector::parse(kind, query.get("labelSelector"), query.get("fieldSelector"))?;
    // Upstream's watch cache answers this with a plain 500.
    let wanted = version(query.get("resourceVersion")).map_err(|e| {
        let message = e.message.replacen("invalid resource version: ", "", 1);
        ApiError::new(500, "", message)
    })?;
    let timeout = match query.get("timeoutSeconds") {
        "" | "0" => {
            let [extra] = clock::random::<1>();
            MIN_TIMEOUT + MIN_TIMEOUT * u32::from(extra) / 256
        }
        text => Duration::from_secs(text.parse().map_err(|_| {
            ApiError::bad_request(format!("timeoutSeconds: Invalid value: {text:?}"))
        })?),
    };
    let bookmarks = query.flag("allowWatchBookmarks");
    let now = clock::instant();
    let store = core.store();
    let mut watch = Watch {
        kind,
        ns: ns.to_owned(),
        name: request.info.name.clone(),
        selector,
        form,
        bookmarks,
        position: wanted.filter(|rv| *rv != 0).unwrap_or_else(|| store.rv()),
        restores: store.restores,
        end: now + timeout,
        next_bookmark: bookmark_after(now, now + timeout),
        first: Vec::new(),
    };
    let from_state = wanted.is_none_or(|rv| rv == 0);
    if from_state {
        watch.position = store.rv();
        let objects: Vec<Arc<Value>> = store
            .iter(kind.storage(), &watch.ns)
            .map(|(_, object)| Arc::clone(object))
            .collect();
        watch.first = objects
            .iter()
            .filter(|o| watch.wants(o))
            .map(|o| event("ADDED", show(form, kind, o)))
            .collect();
    } else if watch.position < store.compacted() {
        let error = ApiError::expired(format!(
            "too old resource version: {} ({})",
            watch.position,
            store.compacted()
        ));
        watch.first.push(event("ERROR", error.status()));
        watch.end = now;
    }
    drop(store);
    Ok(Reply::Watch(Box::new(watch)))
}

impl Watch {
    fn wants(&self, object: &Value) -> bool {
        let name = &object["metadata"]["name"];
        (self.name.is_empty() || name.as_str() == Some(&self.name))
            && self.selector.matches(self.kind, object)
    }

    fn bookmark(&self) -> Value {
        let mut empty = json!({});
        // As a typed object without anything in it.
        let _ = crate::schema::normalise(self.kind, &mut empty);
        let mut object = show(self.form, self.kind, &empty);
        object["metadata"] =
            json!({"resourceVersion": self.position.to_string(), "creationTimestamp": null});
        event("BOOKMARK", object)
    }

    /// What happened since the last call; waits at most `limit` for something to happen.
    pub(crate) fn next(&mut self, core: &Core, limit: Duration) -> Next {
        if !self.first.is_empty() {
            let first = std::mem::take(&mut self.first);
            return Next::Events(first.into_iter().map(|e| (e, false)).collect());
        }
        let now = clock::instant();
        let mut store = core.store();
        if core.stopped() || now >= self.end || store.restores != self.restores {
            return Next::End;
        }
        if self.position >= store.rv() {
            let mut until = self.end.min(now + limit);
            if self.bookmarks {
                until = until.min(self.next_bookmark);
            }
            store = core.wait(store, until.saturating_duration_since(now));
        }
        if store.restores != self.restores {
            return Next::End;
        }
        if self.position < store.compacted() {
            // Too slow for the history: upstream closes such a watch.
            return Next::End;
        }
        let mut events = Vec::new();
        let changes: Vec<_> = store
            .since(self.position)
            .filter(|c| {
                c.key.0 == self.kind.storage() && (self.ns.is_empty() || c.key.1 == self.ns)
            })
            .cloned()
            .collect();
        let reached = store.rv();
        drop(store);
        for change in changes {
            let before = change.old.as_ref().is_some_and(|old| self.wants(old));
            let after = !change.deleted && self.wants(&change.new);
            let (ty, shown) = match (before, after) {
                (false, true) => ("ADDED", Value::clone(&change.new)),
                (true, true) => ("MODIFIED", Value::clone(&change.new)),
                // The last state that matched, with the version at which it ceased to.
                (true, false) => {
                    let mut last = change.old.as_deref().cloned().unwrap_or_default();
                    last["metadata"]["resourceVersion"] = json!(change.rv.to_string());
                    ("DELETED", last)
                }
                (false, false) => continue,
            };
            events.push((event(ty, show(self.form, self.kind, &shown)), true));
        }
        // A version from before a restore is never reached: such a watch stays silent, as upstream's does.
        self.position = self.position.max(reached);
        let now = clock::instant();
        if self.bookmarks && now >= self.next_bookmark {
            events.push((self.bookmark(), false));
            self.next_bookmark = bookmark_after(now, self.end);
        }
        if events.is_empty() {
            Next::Idle
        } else {
            Next::Events(events)
        }
    }
}
