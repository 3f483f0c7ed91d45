//! Reading one object, and lists with their pages.
//!
//! Source: "Resource versions" and "Retrieving large results sets in chunks" of the API concepts; apiserver
//! `pkg/storage/cacher`.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use super::{Form, Reply, Request, form, key, metadata_only, present, table};
use crate::core::Core;
use crate::error::{ApiError, Fields};
use crate::json::{at, object, text};
use crate::kinds::Kind;
use crate::path::Query;
use crate::select::Selector;
use crate::store::{Key, Store};

/// How long a read waits for a version that is not reached.
const FRESH_WAIT: Duration = Duration::from_secs(3);

/// Seconds that a continue token is good.
const CONTINUE_LIFE_S: i64 = 300;

const CONTINUE_TOO_OLD: &str = "The provided continue parameter is too old to display a consistent list result. You \
    can start a new list without the continue parameter, or use the continue token in this response to retrieve the \
    remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were \
    created, modified, or deleted between the time the first chunk was returned and now may show up in the list.";

/// Refuses parameters that no agent sends.
pub(super) fn unsupported(query: &Query) -> Result<(), ApiError> {
    let mut errors = Fields::default();
    for key in ["resourceVersionMatch", "sendInitialEvents"] {
        if query.has(key) {
            errors.forbidden(key, "this server does not have it");
        }
    }
    errors.finish_as("meta.k8s.io", "ListOptions", "")
}

/// Reads a version parameter; none when it is absent.
pub(super) fn version(text: &str) -> Result<Option<u64>, ApiError> {
    if text.is_empty() {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|_| {
        ApiError::bad_request(format!(
            "invalid resource version: resourceVersion: Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: \
             invalid syntax"
        ))
    })
}

/// Waits until the state is not older than `wanted`.
fn fresh<'a>(
    core: &'a Core,
    wanted: Option<u64>,
) -> Result<std::sync::MutexGuard<'a, Store>, ApiError> {
    let mut store = core.store();
    let Some(wanted) = wanted else {
        return Ok(store);
    };
    let end = crate::clock::instant() + FRESH_WAIT;
    while store.rv() < wanted {
        let left = end.saturating_duration_since(crate::clock::instant());
        if left.is_zero() || core.stopped() {
            return Err(ApiError::too_large_version(wanted, store.rv()));
        }
        store = core.wait(store, left);
    }
    Ok(store)
}

pub(super) fn get(
    core: &Core,
    request: &Request<'_>,
    kind: &Kind,
    ns: &str,
) -> Result<Reply, ApiError> {
    let form = form(request.accept, false)?;
    let name = request.info.name.as_str();
    let store = fresh(core, version(request.query.get("resourceVersion"))?)?;
    let key = key(kind, ns, name);
    let found = if request.behind > 0 {
        let rv = store
            .rv()
            .saturating_sub(request.behind)
            .max(store.compacted());
        store
            .at(rv, kind.storage())
            .and_then(|mut all| all.remove(&key))
    } else {
        store.get(&key).cloned()
    };
    drop(store);
    let found = found.ok_or_else(|| ApiError::not_found(kind, name))?;
    Ok(Reply::Object(
        200,
        match form {
            Form::Full => present(kind, &found),
            Form::Meta => metadata_only(&found),
            Form::Table => table::render(core, kind, std::slice::from_ref(&found), json!({})),
        },
    ))
}

/// Where a page goes on.
struct Continue {
    rv: u64,
    after: (String, String),
    issued_s: i64,
}

impl Continue {
    fn encode(&self) -> String {
        let value = json!({
            "v": "meta.k8s.io/v1", "rv": self.rv, "t": self.issued_s,
            "start": format!("{}/{}\0", self.after.0, self.after.1),
        });
        URL_SAFE_NO_PAD.encode(value.to_string())
    }

    fn decode(token: &str) -> Option<Self> {
        let value: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(token).ok()?).ok()?;
        let start = text(&value, "/start").strip_suffix('\0')?;
        let (ns, name) = start.split_once('/')?;
        Some(Self {
            rv: at(&value, "/rv").as_u64()?,
            after: (ns.to_owned(), name.to_owned()),
            issued_s: at(&value, "/t").as_i64()?,
        })
    }
}

/// Which state a list shows, and from where on.
struct Snapshot {
    rv: u64,
    items: Vec<(Key, Arc<Value>)>,
    limit: usize,
}

pub(super) fn list(
    core: &Core,
    request: &Request<'_>,
    kind: &Kind,
    ns: &str,
) -> Result<Reply, ApiError> {
    let form = form(request.accept, true)?;
    let query = request.query;
    let selector = Selector::parse(kind, query.get("labelSelector"), query.get("fieldSelector"))?;
    let snapshot = snapshot(core, request, kind)?;
    let mut chosen = Vec::new();
    let mut left = 0_usize;
    for (key, item) in snapshot.items {
        if !(ns.is_empty() || key.1 == ns) || !selector.matches(kind, &item) {
            continue;
        }
        if chosen.len() < snapshot.limit {
            chosen.push((key, item));
        } else {
            left += 1;
        }
    }
    let mut metadata = json!({"resourceVersion": snapshot.rv.to_string()});
    if left > 0 {
        if let Some(((_, ns, name), _)) = chosen.last() {
            let next = Continue {
                rv: snapshot.rv,
                after: (ns.clone(), name.clone()),
                issued_s: core.clock.now_s(),
            };
            metadata["continue"] = json!(next.encode());
        }
        // Counting what a selector leaves is more than upstream does.
        if query.get("labelSelector").is_empty() && query.get("fieldSelector").is_empty() {
            metadata["remainingItemCount"] = json!(left);
        }
    }
    let values: Vec<Arc<Value>> = chosen.into_iter().map(|(_, item)| item).collect();
    let answer = match form {
        Form::Table => table::render(core, kind, &values, metadata),
        Form::Meta => json!({
            "kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
            "items": values.iter().map(|v| metadata_only(v)).collect::<Vec<_>>(),
        }),
        Form::Full => json!({
            "kind": format!("{}List", kind.kind), "apiVersion": kind.api_version(), "metadata": metadata,
            "items": values.iter().map(|v| bare(v)).collect::<Vec<_>>(),
        }),
    };
    Ok(Reply::Object(200, answer))
}

/// An element of a list, which does not say what it is.
fn bare(stored: &Value) -> Value {
    let mut value = stored.clone();
    object(&mut value).remove("kind");
    value
}

fn snapshot(core: &Core, request: &Request<'_>, kind: &Kind) -> Result<Snapshot, ApiError> {
    let query = request.query;
    unsupported(query)?;
    let wanted = version(query.get("resourceVersion"))?;
    let limit: usize = match query.get("limit") {
        "" => 0,
        text => text.parse().map_err(|_| {
            ApiError::bad_request(format!(
                "strconv.ParseInt: parsing {text:?}: invalid syntax"
            ))
        })?,
    };
    let limit = if limit == 0 { usize::MAX } else { limit };
    let all = |store: &Store, rv: u64| -> Option<Vec<(Key, Arc<Value>)>> {
        Some(store.at(rv, kind.storage())?.into_iter().collect())
    };
    let token = query.get("continue");
    if !token.is_empty() {
        if wanted.is_some_and(|rv| rv != 0) {
            return Err(ApiError::bad_request(
                "specifying resource version is not allowed when using continue",
            ));
        }
        let from = Continue::decode(token).ok_or_else(|| {
            ApiError::bad_request("invalid continue token: continue key is not valid")
        })?;
        let store = core.store();
        let late = core.clock.now_s() - from.issued_s > CONTINUE_LIFE_S;
        let items = if late { None } else { all(&store, from.rv) };
        let Some(items) = items else {
            return Err(ApiError::expired(CONTINUE_TOO_OLD));
        };
        let after = (from.after.0, from.after.1);
        return Ok(Snapshot {
            rv: from.rv,
            items: items
                .into_iter()
                .filter(|(key, _)| (&key.1, &key.2) > (&after.0, &after.1))
                .collect(),
            limit,
        });
    }
    let store = fresh(core, wanted)?;
    let now = store.rv();
    let rv = now.saturating_sub(request.behind).max(store.compacted());
    let items = all(&store, rv).ok_or_else(|| {
        ApiError::expired(format!(
            "The resourceVersion for the provided list is too old: {rv}"
        ))
    })?;
    Ok(Snapshot {
        rv,
        items,
        // From the watch cache, which has no pages.
        limit: if wanted == Some(0) { usize::MAX } else { limit },
    })
}
