//! One `GET` of a document that may not have changed: TLS, proxies, redirects, limits. No retries.

use alloc::sync::Arc;
use core::time::Duration;
use std::io::{self, Read as _};
use std::path::PathBuf;

use ureq::http::Response;
use ureq::{Agent, Body};

use crate::api::link::LinkClass;
use crate::config::decode::MAX_DOCUMENT_BYTES;
use crate::net::tls::{self, Pem, Roots};
use crate::net::{ProxyVariables, Url, client};
use crate::sys::clock;

/// From the name of the server to the last byte, redirects included (SRC-22).
pub const WHOLE_TIMEOUT: Duration = Duration::from_secs(10);
/// Redirects followed for one look.
pub const MAX_REDIRECTS: usize = 5;
/// Bytes of an entity tag, or of a date, that are remembered.
const MAX_TAG_BYTES: usize = 1024;
/// Buffer of a connection, bytes.
const BUFFER_BYTES: usize = 16 * 1024;

/// Where the document is, and how its server is asked.
#[derive(Clone, Debug)]
pub struct Place {
    /// The document.
    pub url: Url,
    /// Sent to its server, and to no other one that it redirects to.
    pub headers: Vec<(String, String)>,
    /// The CAs of `https`, instead of those of the system.
    pub ca: Option<PathBuf>,
    /// The ways out of here.
    pub proxies: ProxyVariables,
    /// [`WHOLE_TIMEOUT`], shorter in tests.
    pub time: Duration,
}

/// What a server calls the state of a document: asked with it, it need not send the same again.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct Tags {
    /// `ETag`, quotes included.
    #[serde(default)]
    pub(super) etag: String,
    /// `Last-Modified`.
    #[serde(default)]
    pub(super) modified: String,
}

/// What a server says.
pub(super) enum Answer {
    /// It is as it was.
    Same,
    /// All of it, and its state.
    Body(Vec<u8>, Tags),
}

/// Why there is no document. It is the server's, or the link's.
#[derive(Debug, thiserror::Error)]
pub(super) enum HttpError {
    /// Nobody answers, in time and whole.
    #[error("cannot be read: {0}")]
    Link(String),
    /// It answers, with something else.
    #[error("answers with status {0}")]
    Status(u16),
    /// Where it leads.
    #[error("{0}")]
    Redirect(String),
    /// More than is read.
    #[error("sends {MAX_DOCUMENT_BYTES} bytes or more: it is not used")]
    TooLarge,
    /// Nothing that is unpacked here.
    #[error("sends a document that is compressed: it is not used")]
    Packed,
    /// This machine cannot ask.
    #[error("cannot be asked: {0}")]
    Local(String),
}

/// Asks for a document. Connections, and what TLS knows of a server, are kept until something fails.
#[derive(Debug)]
pub(super) struct Client {
    place: Place,
    agent: Option<Agent>,
}

impl Client {
    pub(super) const fn new(place: Place) -> Self {
        Self { place, agent: None }
    }

    pub(super) const fn url(&self) -> &Url {
        &self.place.url
    }

    /// Blocking, for [`WHOLE_TIMEOUT`] at most.
    pub(super) fn get(&mut self, tags: &Tags) -> Result<Answer, HttpError> {
        let answer = self.try_get(tags);
        if answer.is_err() {
            // Files of CAs are read anew.
            self.agent = None;
        }
        answer
    }

    fn try_get(&mut self, tags: &Tags) -> Result<Answer, HttpError> {
        let known = [
            ("if-none-match", &*tags.etag),
            ("if-modified-since", &*tags.modified),
        ];
        let url = self.place.url.clone();
        let answer = self.open(&url, &known, self.place.time)?;
        match answer.status().as_u16() {
            200 => {}
            304 if *tags != Tags::default() => return Ok(Answer::Same),
            other => return Err(HttpError::Status(other)),
        }
        let tags = Tags {
            etag: text(&answer, "etag"),
            modified: text(&answer, "last-modified"),
        };
        let limit = u64::try_from(MAX_DOCUMENT_BYTES).unwrap_or(u64::MAX);
        if answer.body().content_length().is_some_and(|n| n >= limit) {
            return Err(HttpError::TooLarge);
        }
        let mut bytes = Vec::new();
        let read = body(answer).take(limit).read_to_end(&mut bytes);
        read.map_err(|e| HttpError::Link(e.to_string()))?;
        if bytes.len() >= MAX_DOCUMENT_BYTES {
            return Err(HttpError::TooLarge);
        }
        Ok(Answer::Body(bytes, tags))
    }

    /// Asks for `url` with these headers, those that are empty left out, and goes where it leads. All of it, its body too,
    /// comes within `time`.
    pub(super) fn open(
        &mut self,
        url: &Url,
        headers: &[(&str, &str)],
        time: Duration,
    ) -> Result<Response<Body>, HttpError> {
        let end = clock::mono() + time;
        let mut url = url.clone();
        for _ in 0..=MAX_REDIRECTS {
            let left = end - clock::mono();
            if left.is_zero() {
                return Err(HttpError::Link("it took too long".into()));
            }
            let answer = self.once(&url, headers, left)?;
            if !matches!(answer.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
                let is_plain = matches!(&*text(&answer, "content-encoding"), "" | "identity");
                if answer.status().is_success() && !is_plain {
                    return Err(HttpError::Packed);
                }
                return Ok(answer);
            }
            let location = answer.headers().get("location");
            let location = location.and_then(|v| v.to_str().ok()).unwrap_or("");
            let next = url
                .join(location)
                .map_err(|why| HttpError::Redirect(format!("redirects to no URL: {why}")))?;
            if url.https && !next.https {
                let to = next.shown();
                let why = format!("redirects from https to {to}: that is not followed");
                return Err(HttpError::Redirect(why));
            }
            url = next;
        }
        Err(HttpError::Redirect(format!(
            "redirects more than {MAX_REDIRECTS} times"
        )))
    }

    fn once(
        &mut self,
        url: &Url,
        headers: &[(&str, &str)],
        left: Duration,
    ) -> Result<Response<Body>, HttpError> {
        // A proxy is one for a server.
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

/// A short header, or nothing.
pub(super) fn text(answer: &Response<Body>, name: &str) -> String {
    let value = answer.headers().get(name).and_then(|v| v.to_str().ok());
    let fits = value.filter(|v| v.len() <= MAX_TAG_BYTES);
    fits.unwrap_or("").to_owned()
}

/// The body, however long: who reads it bounds it.
pub(super) fn body(answer: Response<Body>) -> impl io::Read {
    let body = answer.into_body().into_with_config();
    body.limit(u64::MAX).reader()
}

fn new_agent(place: &Place, url: &Url) -> Result<Agent, HttpError> {
    let proxy = place.proxies.tunnel_for(url);
    let config = client::config()
        .input_buffer_size(BUFFER_BYTES)
        .output_buffer_size(4 * 1024)
        .max_idle_connections(1)
        .proxy(proxy.map_err(|why| HttpError::Local(why.into()))?);
    let roots = match &place.ca {
        Some(ca) => Roots::Only(Pem::File(ca)),
        None => Roots::SystemAnd(None),
    };
    let tls = url.https.then(|| tls::config(roots, None)).transpose();
    let tls = tls.map_err(|e| HttpError::Local(crate::error::chain(&e)))?;
    // Nobody ends a look before its time.
    Ok(client::agent(
        config.build(),
        tls,
        Arc::default(),
        LinkClass::Api,
    ))
}
