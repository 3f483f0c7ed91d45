//! One request: who sends it, what a fault makes of it, the answer, the note of it.

use std::io;
use std::time::Duration;

use serde_json::{Value, json};

use crate::api::{self, Next, Reply, Request, Watch};
use crate::audit::Entry;
use crate::auth::User;
use crate::auth::authorize::authorize;
use crate::auth::grants;
use crate::clock;
use crate::core::Core;
use crate::error::ApiError;
use crate::faults::Fault;
use crate::http::{Answer, Head, Portion, STREAM_END, stream_chunk};
use crate::path::{Info, Query};
use crate::proxy;
use crate::server::{Shared, Wire};
use crate::supervisor::{Call, Supervisor};
use crate::token::ISSUER;
use crate::{control, lock, remotedialer};

/// How often a quiet watch looks whether its client is still there.
const WATCH_POLL: Duration = Duration::from_millis(500);

/// Bodies smaller than this are not compressed, as upstream has it.
const GZIP_FROM: usize = 128 * 1024;

/// Answers what is no request.
pub(crate) fn unreadable(code: u16) -> Vec<u8> {
    Answer {
        code,
        headers: vec![("Connection", "close".to_owned())],
        content_type: "text/plain; charset=utf-8",
        body: b"bad request",
        gzip_from: usize::MAX,
        portion: Portion::Whole,
    }
    .encode(&Head::default())
}

fn authenticate(shared: &Shared, wire: &Wire, head: &Head) -> Result<User, ApiError> {
    let core = &shared.core;
    if let Some(chain) = wire.peer_certificates() {
        return match chain.first().filter(|_| shared.verified(chain)) {
            Some(first) => User::from_certificate(first).ok_or_else(ApiError::unauthorized),
            None => Err(ApiError::unauthorized()),
        };
    }
    let header = head.header("authorization");
    if header.is_empty() {
        return Ok(User::anonymous());
    }
    let token = header
        .split_once(' ')
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .map(|(_, token)| token.trim())
        .ok_or_else(ApiError::unauthorized)?;
    if let Some((name, groups)) = core.config.tokens.get(token) {
        let groups: Vec<&str> = groups.iter().map(String::as_str).collect();
        return Ok(User::known(name, &groups));
    }
    let store = core.store();
    core.signer
        .authenticate(&store, core.clock.now_s(), token, &[ISSUER.to_owned()])
        .map(|(user, _)| user)
        .ok_or_else(ApiError::unauthorized)
}

/// The authorizer's refusal in upstream's words.
fn forbidden(user: &User, info: &Info, reason: &str) -> ApiError {
    let colon = if reason.is_empty() { "" } else { ": " };
    let mut error = if info.is_resource {
        let dot = if info.group.is_empty() { "" } else { "." };
        let what = format!("{}{dot}{}", info.plural, info.group);
        let named = if info.name.is_empty() {
            String::new()
        } else {
            format!(" {:?}", info.name)
        };
        let sub = if info.sub.is_empty() {
            String::new()
        } else {
            format!("/{}", info.sub)
        };
        let place = if info.ns.is_empty() {
            "at the cluster scope".to_owned()
        } else {
            format!("in the namespace {:?}", info.ns)
        };
        ApiError::new(
            403,
            "Forbidden",
            format!(
                "{what}{named} is forbidden: User {:?} cannot {} resource \"{}{sub}\" in API group {:?} {place}{colon}{reason}",
                user.name, info.verb, info.plural, info.group
            ),
        )
    } else {
        ApiError::new(
            403,
            "Forbidden",
            format!(
                "forbidden: User {:?} cannot {} path {:?}{colon}{reason}",
                user.name, info.verb, info.path
            ),
        )
    };
    error.details = json!({});
    if info.is_resource {
        error.details["kind"] = json!(info.plural);
        if !info.name.is_empty() {
            error.details["name"] = json!(info.name);
        }
        if !info.group.is_empty() {
            error.details["group"] = json!(info.group);
        }
    }
    error
}

fn injected(code: u16, retry_after_s: Option<u32>) -> ApiError {
    let (reason, message) = match code {
        401 => ("Unauthorized", "Unauthorized"),
        403 => ("Forbidden", "forbidden: injected"),
        404 => ("NotFound", "injected: not found"),
        409 => (
            "Conflict",
            "Operation cannot be fulfilled: the object has been modified; please apply your changes to the latest \
             version and try again",
        ),
        410 => (
            "Expired",
            "The resourceVersion for the provided list is too old.",
        ),
        429 => (
            "TooManyRequests",
            "The server has received too many requests and has asked us to try again later",
        ),
        503 => (
            "ServiceUnavailable",
            "the server is currently unable to handle the request",
        ),
        504 => (
            "Timeout",
            "request did not complete within the allotted timeout",
        ),
        _ => ("InternalError", "Internal error occurred: injected"),
    };
    let mut error = ApiError::new(code, reason, message);
    error.retry_after_s = retry_after_s;
    error
}

/// What the faults that hit a request ask for.
#[derive(Default)]
struct Plan {
    reset_after: bool,
    half: bool,
    behind: u64,
    watch_break: Option<u32>,
    watch_drop: bool,
    skew_s: i64,
    status: Option<ApiError>,
    any: bool,
}

/// Collects what the faults that hit a request ask for.
fn plan(hits: Vec<Fault>) -> Plan {
    let mut plan = Plan::default();
    for fault in hits {
        // A wrong clock makes no answer wrong.
        plan.any |= !matches!(fault, Fault::DateSkew(_));
        match fault {
            Fault::ResetAfter => plan.reset_after = true,
            Fault::Status {
                code,
                retry_after_s,
            } => plan.status = Some(injected(code, retry_after_s)),
            Fault::HalfBody => plan.half = true,
            Fault::Stale(behind) => plan.behind = behind,
            Fault::WatchBreak(events) => plan.watch_break = Some(events),
            Fault::WatchDrop => plan.watch_drop = true,
            Fault::DateSkew(seconds) => plan.skew_s = seconds,
        }
    }
    plan
}

/// Answers one request. False when the connection must end.
pub(crate) fn request(
    shared: &Shared,
    wire: &mut Wire,
    head: &Head,
    body: &[u8],
) -> io::Result<bool> {
    let core = &shared.core;
    let (path, query) = head.uri.split_once('?').unwrap_or((&head.uri, ""));
    let query = Query::parse(query);
    let info = Info::parse(&head.method, path, &query);
    let user = authenticate(shared, wire, head);
    let by = user.as_ref().cloned().unwrap_or_default();
    let name = by.name.as_str();
    if path.starts_with("/_test/") {
        let code_and_body = match &user {
            Ok(user) if user.in_group("system:masters") => {
                control::answer(core, &head.method, path)
            }
            Ok(user) => Err(forbidden(user, &info, "")),
            Err(error) => Err(error.clone()),
        };
        let (code, value) = match code_and_body {
            Ok(value) => (200, value),
            Err(error) => (error.code, error.status()),
        };
        let body = value.to_string();
        let answer = answer(core, code, &[], body.as_bytes(), 0, Portion::Whole);
        wire.send(&answer.encode(head))?;
        return Ok(!head.wants_close());
    }
    let number = core.audit.begin(Entry {
        at_ms: core.clock.now_ms(),
        method: head.method.clone(),
        uri: head.uri.clone(),
        verb: info.verb.clone(),
        user: name.to_owned(),
        code: 0,
        message: String::new(),
        unknown_fields: Vec::new(),
        fault: false,
        race: false,
    });
    let plan = plan(core.faults.hit(&head.method, &head.uri));
    let mut notes = Vec::new();
    let outcome = match &plan.status {
        Some(error) => Err(error.clone()),
        None if core.supervisor.is_some() && Supervisor::owns(path) => {
            let call = Call {
                path,
                head,
                body,
                user,
            };
            let supervisor = core.supervisor.as_ref();
            supervisor.map_or_else(|| Err(ApiError::unauthorized()), |s| s.answer(core, call))
        }
        None => user.and_then(|user| {
            let request = Request {
                user: &user,
                info: &info,
                query: &query,
                content_type: head.header("content-type"),
                accept: head.header("accept"),
                body,
                behind: plan.behind,
            };
            decide(core, &request, &mut notes)
        }),
    };
    let refused = matches!(&outcome, Err(error) if error.code == 403);
    let race = refused && lost_race(core, &by, &info);
    core.audit.amend(number, |entry| {
        entry.fault = plan.any;
        entry.race = race;
        entry.unknown_fields.clone_from(&notes);
        match &outcome {
            Ok(Reply::Object(code, _)) => entry.code = *code,
            Ok(_) => entry.code = 200,
            Err(error) => {
                entry.code = error.code;
                entry.message.clone_from(&error.message);
            }
        }
    });
    if plan.reset_after {
        wire.reset();
        return Err(io::ErrorKind::ConnectionAborted.into());
    }
    let keep = !head.wants_close();
    match outcome {
        Ok(Reply::Watch(watch)) => stream(core, wire, *watch, &plan).map(|clean| clean && keep),
        Ok(Reply::Node(call)) => proxy::relay(core, wire, &call, head),
        Ok(Reply::Session(node)) => {
            if let Some(supervisor) = &core.supervisor {
                remotedialer::serve(core, &supervisor.sessions, wire, node, head)?;
            }
            Ok(false)
        }
        other => {
            let bytes = encode(core, head, other, &plan, &notes);
            wire.send(&bytes)?;
            Ok(keep && !plan.half)
        }
    }
}

/// Whether a node was refused a read only because the pod that it was for is gone.
fn lost_race(core: &Core, user: &User, info: &Info) -> bool {
    let read = info.verb == "get" || info.verb == "create" && info.sub == "token";
    let Some(node) = user.node().filter(|_| read) else {
        return false;
    };
    let store = core.store();
    store
        .since(0)
        .filter(|change| change.deleted && change.key.0 == "pods")
        .any(|change| grants(&change.new, node, &info.plural, &info.ns, &info.name))
}

fn decide(core: &Core, request: &Request<'_>, notes: &mut Vec<String>) -> Result<Reply, ApiError> {
    let allowed = {
        let grants = lock(&core.grants).clone();
        let store = core.store();
        authorize(&core.config, &store, &grants, request.user, request.info)
    };
    allowed.map_err(|reason| forbidden(request.user, request.info, &reason))?;
    api::handle(core, request, notes)
}

fn answer<'a>(
    core: &Core,
    code: u16,
    notes: &[String],
    body: &'a [u8],
    skew_s: i64,
    portion: Portion,
) -> Answer<'a> {
    let mut headers = vec![
        ("Audit-Id", clock::uuid()),
        ("Cache-Control", "no-cache, private".to_owned()),
        ("Date", clock::http_date(core.clock.now_s() + skew_s)),
        // Of a fixed size, as upstream's are.
        (
            "X-Kubernetes-Pf-Flowschema-Uid",
            "3d1c4ca4-0000-4000-8000-000000000001".to_owned(),
        ),
        (
            "X-Kubernetes-Pf-Prioritylevel-Uid",
            "3d1c4ca4-0000-4000-8000-000000000002".to_owned(),
        ),
    ];
    for field in notes {
        headers.push((
            "Warning",
            format!("299 - \"unknown field \\\"{field}\\\"\""),
        ));
    }
    Answer {
        code,
        headers,
        content_type: "application/json",
        body,
        gzip_from: GZIP_FROM,
        portion,
    }
}

fn encode(
    core: &Core,
    head: &Head,
    outcome: Result<Reply, ApiError>,
    plan: &Plan,
    notes: &[String],
) -> Vec<u8> {
    let portion = if plan.half {
        Portion::Half
    } else {
        Portion::Whole
    };
    let json = |value: &Value| {
        let mut text = value.to_string();
        text.push('\n');
        text
    };
    let (code, body, text, retry) = match &outcome {
        Ok(Reply::Text(text)) => (200, text.clone(), true, None),
        Ok(Reply::Object(code, value)) => (*code, json(value), false, None),
        Ok(Reply::Watch(_) | Reply::Node(_) | Reply::Session(_)) => {
            (500, String::new(), true, None)
        }
        Err(error) => (
            error.code,
            json(&error.status()),
            false,
            error.retry_after_s,
        ),
    };
    let mut answer = answer(core, code, notes, body.as_bytes(), plan.skew_s, portion);
    if text {
        answer.content_type = "text/plain; charset=utf-8";
    }
    if let Some(seconds) = retry {
        answer.headers.push(("Retry-After", seconds.to_string()));
    }
    if code == 401 {
        answer
            .headers
            .push(("WWW-Authenticate", "Bearer realm=\"kubernetes\"".to_owned()));
    }
    answer.encode(head)
}

/// Sends a watch until it ends. True when it ended cleanly.
fn stream(core: &Core, wire: &mut Wire, mut watch: Watch, plan: &Plan) -> io::Result<bool> {
    let head = answer(core, 200, &[], b"", plan.skew_s, Portion::Whole).encode_stream_head();
    wire.send(&head)?;
    let mut sent = 0_u32;
    loop {
        if plan.watch_break.is_some_and(|events| sent >= events) {
            wire.send(&stream_chunk(b"{\"type\":\"MODIFIED\",\"object\":{\"ki"))?;
            wire.reset();
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        match watch.next(core, WATCH_POLL) {
            Next::End => break,
            Next::Idle => {
                if wire.disturbed() {
                    return Ok(false);
                }
            }
            Next::Events(events) => {
                for (event, change) in events {
                    if change && plan.watch_drop {
                        continue;
                    }
                    let mut line = event.to_string();
                    line.push('\n');
                    let bytes = stream_chunk(line.as_bytes());
                    wire.send(&bytes)?;
                    sent = sent.saturating_add(1);
                    if plan.watch_break.is_some_and(|events| sent >= events) {
                        break;
                    }
                }
            }
        }
    }
    wire.send(STREAM_END)?;
    Ok(true)
}
