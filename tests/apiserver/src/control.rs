//! The control API, below `/_test/`, for tests that run the server as a process. Only for `system:masters`.

use std::time::Duration;

use serde_json::{Value, json};

use crate::auth::authorize::Grant;
use crate::error::ApiError;
use crate::faults::Rule;
use crate::json::{at, text};
use crate::lock;
use crate::server::Shared;

/// Answers a request to the control API.
///
/// - `POST faults` adds a rule and tells its number; `DELETE faults` removes all; `GET faults/N` counts its hits.
/// - `POST restore`, `compact`, `advance` `{"seconds"}`, `break`, `refuse` `{"ms"}`, `grant`, `clear-audit`.
/// - `GET audit`, `wrong`, `totals`.
pub(crate) fn answer(
    shared: &Shared,
    method: &str,
    path: &str,
    body: &[u8],
) -> Result<Value, ApiError> {
    let core = &shared.core;
    let what = path.trim_start_matches("/_test/");
    let body: Value = if body.is_empty() {
        json!({})
    } else {
        serde_json::from_slice(body).map_err(|e| ApiError::bad_request(e.to_string()))?
    };
    let number = |key: &str| {
        at(&body, &format!("/{key}"))
            .as_u64()
            .ok_or_else(|| ApiError::bad_request(format!("{key}: a number is wanted")))
    };
    let done = Ok(json!({"done": true}));
    match (method, what) {
        ("POST", "faults") => {
            let rule = Rule::from_json(&body)
                .ok_or_else(|| ApiError::bad_request(format!("not a fault: {body}")))?;
            Ok(json!({"id": core.faults.add(rule)}))
        }
        ("DELETE", "faults") => {
            core.faults.clear();
            done
        }
        ("GET", _) if what.starts_with("faults/") => {
            let id = what.trim_start_matches("faults/").parse().unwrap_or(0);
            Ok(json!({"hits": core.faults.hits(id)}))
        }
        ("POST", "restore") => {
            let restored = core.store().restore(number("resourceVersion")?);
            core.notify();
            Ok(json!({"done": restored}))
        }
        ("POST", "compact") => {
            core.store().compact();
            core.notify();
            done
        }
        ("POST", "advance") => {
            core.clock.advance(Duration::from_secs(number("seconds")?));
            core.notify();
            done
        }
        ("POST", "break") => {
            shared.break_connections();
            done
        }
        ("POST", "refuse") => {
            let time = Duration::from_millis(number("ms")?);
            let core = std::sync::Arc::clone(core);
            core.faults.refuse_connections(true);
            std::thread::spawn(move || {
                core.faults.pause(time);
                core.faults.refuse_connections(false);
            });
            done
        }
        ("POST", "grant") => {
            lock(&core.grants).push(Grant {
                subject: text(&body, "/subject").to_owned(),
                verb: text(&body, "/verb").to_owned(),
                resource: text(&body, "/resource").to_owned(),
            });
            done
        }
        ("POST", "clear-audit") => {
            core.audit.clear();
            done
        }
        ("GET", "audit") => Ok(core
            .audit
            .entries()
            .iter()
            .map(crate::audit::Entry::json)
            .collect()),
        ("GET", "wrong") => Ok(core
            .audit
            .entries()
            .iter()
            .filter(|e| e.is_wrong())
            .map(crate::audit::Entry::json)
            .collect()),
        ("GET", "totals") => {
            let t = core.audit.totals();
            Ok(json!({
                "connections": t.connections, "fullHandshakes": t.full_handshakes,
                "resumedHandshakes": t.resumed_handshakes, "requests": t.requests,
                "bytesIn": t.bytes_in, "bytesOut": t.bytes_out,
            }))
        }
        _ => Err(ApiError::no_route()),
    }
}
