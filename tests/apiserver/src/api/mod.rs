//! From an authorized request to an answer.

mod delete;
mod discovery;
mod read;
mod review;
mod subresource;
mod table;
mod watch;
mod write;

pub(crate) use delete::delete;
pub(crate) use subresource::set_condition;
pub(crate) use watch::{Next, Watch};
pub(crate) use write::{commit, create, update};

use serde_json::{Value, json};

use crate::auth::User;
use crate::core::Core;
use crate::error::ApiError;
use crate::json::object;
use crate::kinds::Kind;
use crate::path::{Info, Query};
use crate::proxy::Call;
use crate::store::Key;

/// What a request brought.
pub(crate) struct Request<'a> {
    pub(crate) user: &'a User,
    pub(crate) info: &'a Info,
    pub(crate) query: &'a Query,
    pub(crate) content_type: &'a str,
    pub(crate) accept: &'a str,
    pub(crate) body: &'a [u8],
    /// Fault: read as of so many versions ago.
    pub(crate) behind: u64,
}

/// An answer that is a success.
pub(crate) enum Reply {
    Object(u16, Value),
    Text(String),
    Watch(Box<Watch>),
    /// The answer is a node's.
    Node(Box<Call>),
    /// A session of the node of that name begins.
    Session(String),
}

/// In which form objects are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Full,
    /// `PartialObjectMetadata`.
    Meta,
    Table,
}

/// Reads `Accept`, in which earlier types are preferred.
pub(crate) fn form(accept: &str, list: bool) -> Result<Form, ApiError> {
    if accept.trim().is_empty() {
        return Ok(Form::Full);
    }
    for clause in accept.split(',') {
        let mut params = clause.split(';').map(str::trim);
        let media = params.next().unwrap_or("");
        if !["application/json", "application/*", "*/*"].contains(&media) {
            continue;
        }
        let mut wanted = ("", "", "");
        for (key, value) in params.filter_map(|p| p.split_once('=')) {
            match key {
                "as" => wanted.0 = value,
                "g" => wanted.1 = value,
                "v" => wanted.2 = value,
                _ => {}
            }
        }
        match wanted {
            ("", ..) => return Ok(Form::Full),
            ("PartialObjectMetadata", "meta.k8s.io", "v1") if !list => return Ok(Form::Meta),
            ("PartialObjectMetadataList", "meta.k8s.io", "v1") if list => return Ok(Form::Meta),
            ("Table", "meta.k8s.io", "v1") => return Ok(Form::Table),
            _ => {}
        }
    }
    Err(ApiError::not_acceptable())
}

/// A stored object as its resource shows it.
pub(crate) fn present(kind: &Kind, stored: &Value) -> Value {
    let mut value = stored.clone();
    let map = object(&mut value);
    map.insert("kind".to_owned(), json!(kind.kind));
    map.insert("apiVersion".to_owned(), json!(kind.api_version()));
    value
}

/// The metadata of a stored object alone.
pub(crate) fn metadata_only(stored: &Value) -> Value {
    json!({
        "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": stored["metadata"],
    })
}

pub(crate) fn show(form: Form, kind: &Kind, stored: &Value) -> Value {
    match form {
        Form::Meta => metadata_only(stored),
        Form::Full | Form::Table => present(kind, stored),
    }
}

pub(crate) fn key(kind: &Kind, ns: &str, name: &str) -> Key {
    let ns = if kind.namespaced { ns } else { "" };
    (kind.storage(), ns.to_owned(), name.to_owned())
}

/// Reads a JSON body and its type.
///
/// `kind` and `apiVersion` may be left out, but not be another's.
fn decode(content_type: &str, version: &str, kind: &str, body: &[u8]) -> Result<Value, ApiError> {
    let media = content_type.split(';').next().unwrap_or("").trim();
    if !matches!(media, "" | "application/json") {
        return Err(ApiError::media_type(&["application/json"]));
    }
    let mut value: Value = serde_json::from_slice(body)
        .map_err(|e| ApiError::bad_request(format!("the object provided is unrecognized: {e}")))?;
    if !value.is_object() {
        return Err(ApiError::bad_request(
            "the object provided is not an object",
        ));
    }
    let map = object(&mut value);
    let given = map.remove("apiVersion");
    if let Some(given) = given.filter(|v| v.as_str() != Some(version) && v.as_str() != Some("")) {
        return Err(ApiError::bad_request(format!(
            "the API version in the data ({}) does not match the expected API version ({version})",
            given.as_str().unwrap_or("")
        )));
    }
    let given = map.remove("kind");
    if let Some(given) = given.filter(|v| v.as_str() != Some(kind) && v.as_str() != Some("")) {
        return Err(ApiError::bad_request(format!(
            "{} in version {version:?} cannot be handled as a {kind}",
            given.as_str().unwrap_or("")
        )));
    }
    Ok(value)
}

/// Refuses or notes fields that do not exist.
fn judge_unknown(
    kind: &str,
    query: &Query,
    unknown: Vec<String>,
    notes: &mut Vec<String>,
) -> Result<(), ApiError> {
    let directive = query.get("fieldValidation");
    if !["", "Ignore", "Warn", "Strict"].contains(&directive) {
        return Err(ApiError::bad_request(format!(
            "fieldValidation: Unsupported value: {directive:?}: supported values: \"Ignore\", \"Strict\", \"Warn\""
        )));
    }
    if directive == "Strict" && !unknown.is_empty() {
        let all: Vec<String> = unknown
            .iter()
            .map(|field| format!("unknown field {field:?}"))
            .collect();
        return Err(ApiError::bad_request(format!(
            "{kind} in version \"v1\" cannot be handled as a {kind}: strict decoding error: {}",
            all.join(", ")
        )));
    }
    notes.extend(unknown);
    Ok(())
}

fn dry_run(query: &Query) -> Result<bool, ApiError> {
    match query.get("dryRun") {
        "" => Ok(false),
        "All" => Ok(true),
        other => Err(ApiError::bad_request(format!(
            "dryRun: Unsupported value: {other:?}: supported values: \"All\""
        ))),
    }
}

/// Answers a request that is authorized. `notes` receives fields of the body that do not exist.
pub(crate) fn handle(
    core: &Core,
    request: &Request<'_>,
    notes: &mut Vec<String>,
) -> Result<Reply, ApiError> {
    let info = request.info;
    if !info.is_resource {
        return discovery::answer(core, request);
    }
    let Some(kind) = info.kind() else {
        return Err(ApiError::no_route());
    };
    // Namespaces are their own namespace in the authorizer's view.
    let ns = if kind.namespaced {
        info.ns.as_str()
    } else {
        ""
    };
    if !kind.namespaced && !info.ns.is_empty() && kind.plural != "namespaces" {
        return Err(ApiError::no_route());
    }
    if !info.sub.is_empty() {
        if !kind.has_sub(&info.sub) {
            return Err(ApiError::no_route());
        }
        return subresource::handle(core, request, kind, ns, notes);
    }
    if !kind.stored {
        return if info.verb == "create" {
            review::create(core, request, kind)
        } else {
            Err(ApiError::method())
        };
    }
    let one = !info.name.is_empty();
    match info.verb.as_str() {
        "get" => read::get(core, request, kind, ns),
        "list" => read::list(core, request, kind, ns),
        "watch" => watch::start(core, request, kind, ns),
        "create" if one => Err(ApiError::method()),
        "create" => {
            let dry = dry_run(request.query)?;
            let mut body = decode(
                request.content_type,
                &kind.api_version(),
                kind.kind,
                request.body,
            )?;
            let unknown = normalise(kind, &mut body)?;
            judge_unknown(kind.kind, request.query, unknown, notes)?;
            if kind.namespaced && ns.is_empty() {
                return Err(ApiError::method());
            }
            let created = create(core, request.user, kind, ns, body, dry, notes)?;
            Ok(Reply::Object(201, created))
        }
        "update" if one => write::put(core, request, kind, ns, "", notes),
        "patch" if one => write::patch(core, request, kind, ns, "", notes),
        "delete" => delete::handle(core, request, kind, ns),
        _ => Err(ApiError::method()),
    }
}

/// Reads an object as its type, with the message of a decoder that could not.
fn normalise(kind: &Kind, body: &mut Value) -> Result<Vec<String>, ApiError> {
    crate::schema::normalise(kind, body).map_err(|why| {
        ApiError::bad_request(format!(
            "{} in version {:?} cannot be handled as a {}: {why}",
            kind.kind, kind.version, kind.kind
        ))
    })
}
