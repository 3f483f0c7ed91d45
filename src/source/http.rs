//! Client for a document that may not have changed: one `GET` with TLS, proxies, redirects, limits. No retries.

use alloc::sync::Arc;
use core::time::Duration;
use std::io::{self, Read as _};
use std::path::PathBuf;

use ureq::http::Response;
use ureq::{Agent, Body};

use crate::api::link::LinkClass;
use crate::config::decode::MAX_DOCUMENT_BYTES;
use crate::net::tls::{self, PemSource, ServerRoots};
use crate::net::{ProxyVariables, Url, client};
use crate::sys::clock;

/// Time limit of a look, from the name of the server to the last byte, redirects included (SRC-22).
pub const WHOLE_TIMEOUT: Duration = Duration::from_secs(10);
/// Most redirects followed for one look.
pub const MAX_REDIRECTS: usize = 5;
/// Longest entity tag, or date, that is remembered, bytes.
const MAX_TAG_BYTES: usize = 1024;
/// Buffer of a connection, bytes.
const BUFFER_BYTES: usize = 16 * 1024;

/// Address of the document, and the way to ask its server.
#[derive(Clone, Debug)]
pub struct DocumentLocation {
    /// URL of the document.
    pub url: Url,
    /// Headers that are sent to the URL's server, but to no other one that it redirects to.
    pub headers: Vec<(String, String)>,
    /// The CAs of `https`, instead of those of the system.
    pub ca: Option<PathBuf>,
    /// Proxies of this machine.
    pub proxies: ProxyVariables,
    /// [`WHOLE_TIMEOUT`], shorter in tests.
    pub time: Duration,
}

/// Tags by which a server names the state of a document: asked with them, it need not send the same again.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct DocumentTags {
    /// `ETag`, quotes included.
    #[serde(default)]
    pub(crate) etag: String,
    /// `Last-Modified`.
    #[serde(default)]
    pub(crate) modified: String,
}

/// A server's answer.
pub(crate) enum DocumentAnswer {
    /// The document is unchanged.
    Same,
    /// The whole document, and its state.
    Body(Vec<u8>, DocumentTags),
}

/// Reason why there is no document: a fault of the server, of the link or of this machine.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HttpError {
    /// No answer in time, or not a whole one.
    #[error("cannot be read: {0}")]
    Link(String),
    /// The answer is not the document.
    #[error("answers with status {0}")]
    Status(u16),
    /// A redirect that is not followed.
    #[error("{0}")]
    Redirect(String),
    /// More bytes than are read.
    #[error("sends {MAX_DOCUMENT_BYTES} bytes or more: it is not used")]
    TooLarge,
    /// A compressed document: none is unpacked here.
    #[error("sends a document that is compressed: it is not used")]
    Packed,
    /// Fault of this machine: it cannot ask.
    #[error("cannot be asked: {0}")]
    Local(String),
}

/// Client for a document. Connections, and TLS sessions of the server, are kept until a request fails.
#[derive(Debug)]
pub(crate) struct DocumentClient {
    place: DocumentLocation,
    agent: Option<Agent>,
}

impl DocumentClient {
    pub(crate) const fn new(place: DocumentLocation) -> Self {
        Self { place, agent: None }
    }

    pub(crate) const fn document_url(&self) -> &Url {
        &self.place.url
    }

    /// Asks for the document, unless it is unchanged. Blocks for [`WHOLE_TIMEOUT`] at most.
    pub(crate) fn fetch_document(
        &mut self,
        tags: &DocumentTags,
    ) -> Result<DocumentAnswer, HttpError> {
        let answer = self.try_fetch_document(tags);
        if answer.is_err() {
            // Has the files of CAs read anew.
            self.agent = None;
        }
        answer
    }

    fn try_fetch_document(&mut self, tags: &DocumentTags) -> Result<DocumentAnswer, HttpError> {
        let known = [
            ("if-none-match", &*tags.etag),
            ("if-modified-since", &*tags.modified),
        ];
        let url = self.place.url.clone();
        let answer = self.open_document(&url, &known, self.place.time)?;
        match answer.status().as_u16() {
            200 => {}
            304 if *tags != DocumentTags::default() => return Ok(DocumentAnswer::Same),
            other => return Err(HttpError::Status(other)),
        }
        let tags = DocumentTags {
            etag: header_text(&answer, "etag"),
            modified: header_text(&answer, "last-modified"),
        };
        let limit = u64::try_from(MAX_DOCUMENT_BYTES).unwrap_or(u64::MAX);
        if answer.body().content_length().is_some_and(|n| n >= limit) {
            return Err(HttpError::TooLarge);
        }
        let mut bytes = Vec::new();
        let read = body_reader(answer).take(limit).read_to_end(&mut bytes);
        read.map_err(|e| HttpError::Link(e.to_string()))?;
        if bytes.len() >= MAX_DOCUMENT_BYTES {
            return Err(HttpError::TooLarge);
        }
        Ok(DocumentAnswer::Body(bytes, tags))
    }

    /// Asks for `url` with these headers, empty ones left out, and follows redirects. The whole answer, with its body,
    /// has to come within `time`.
    pub(crate) fn open_document(
        &mut self,
        url: &Url,
        headers: &[(&str, &str)],
        time: Duration,
    ) -> Result<Response<Body>, HttpError> {
        let end = clock::mono_now() + time;
        let mut url = url.clone();
        for _ in 0..=MAX_REDIRECTS {
            let left = end - clock::mono_now();
            if left.is_zero() {
                return Err(HttpError::Link("it took too long".into()));
            }
            let answer = self.request_once(&url, headers, left)?;
            if !matches!(answer.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
                let is_plain =
                    matches!(&*header_text(&answer, "content-encoding"), "" | "identity");
                if answer.status().is_success() && !is_plain {
                    return Err(HttpError::Packed);
                }
                return Ok(answer);
            }
            let location = answer.headers().get("location");
            let location = location.and_then(|v| v.to_str().ok()).unwrap_or("");
            let next = url.resolve_location(location).map_err(|why| {
                HttpError::Redirect(format!("redirects to an invalid URL: {why}"))
            })?;
            if url.https && !next.https {
                let to = next.without_query();
                let why = format!("redirects from https to {to}: that is not followed");
                return Err(HttpError::Redirect(why));
            }
            url = next;
        }
        Err(HttpError::Redirect(format!(
            "redirects more than {MAX_REDIRECTS} times"
        )))
    }

    fn request_once(
        &mut self,
        url: &Url,
        headers: &[(&str, &str)],
        left: Duration,
    ) -> Result<Response<Body>, HttpError> {
        // Each server may have a proxy of its own.
        let own = url.same_origin(&self.place.url);
        let agent = match &self.agent {
            Some(agent) if own => agent.clone(),
            _ => {
                let agent = new_agent(&self.place, url)?;
                if own {
                    self.agent = Some(agent.clone());
                }
                agent
            }
        };
        let mut request = agent.get(url.to_string());
        if own {
            for (name, value) in &self.place.headers {
                request = request.header(name, value);
            }
        }
        for (name, value) in headers.iter().filter(|(_, value)| !value.is_empty()) {
            request = request.header(*name, *value);
        }
        let request = request.config().timeout_global(Some(left)).build();
        request.call().map_err(|e| HttpError::Link(e.to_string()))
    }
}

/// Returns a header; empty if it is absent or too long.
pub(crate) fn header_text(answer: &Response<Body>, name: &str) -> String {
    let value = answer.headers().get(name).and_then(|v| v.to_str().ok());
    let fits = value.filter(|v| v.len() <= MAX_TAG_BYTES);
    fits.unwrap_or("").to_owned()
}

/// Returns the body, however long: the reader has to bound it.
pub(crate) fn body_reader(answer: Response<Body>) -> impl io::Read {
    let body = answer.into_body().into_with_config();
    body.limit(u64::MAX).reader()
}

fn new_agent(place: &DocumentLocation, url: &Url) -> Result<Agent, HttpError> {
    let proxy = place.proxies.tunnel_for(url);
    let config = client::common_config()
        .input_buffer_size(BUFFER_BYTES)
        .output_buffer_size(4 * 1024)
        .max_idle_connections(1)
        .proxy(proxy.map_err(|why| HttpError::Local(why.into()))?);
    let roots = match &place.ca {
        Some(ca) => ServerRoots::Only(PemSource::File(ca)),
        None => ServerRoots::SystemAnd(None),
    };
    let tls = url
        .https
        .then(|| tls::client_config(roots, None))
        .transpose();
    let tls = tls.map_err(|e| HttpError::Local(crate::error::error_chain(&e)))?;
    // A look is not cancelled before its time.
    Ok(client::build_agent(
        config.build(),
        tls,
        Arc::default(),
        LinkClass::Api,
    ))
}
