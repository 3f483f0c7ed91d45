//! A session with a repository at an endpoint: requests with credentials, repeated as long as that makes sense.
//!
//! ```text
//! request ──▶ 2xx ─────────────────────────▶ answer
//!    ▲  ├──▶ 401 ─▶ token or password ─▶ once more, then Denied; 400 of the token service: Denied
//!    │  ├──▶ 429, 5xx, no answer ─▶ delay (Retry-After, unless it is long), at most ATTEMPTS in a row
//!    └──┘
//! ```
//!
//! A name may lead to a registry of another name, which wants a token too. That token is an anonymous one; a token that
//! the credential brought never leaves the server that the credential is for.

use core::time::Duration;
use std::io::Read;
use std::sync::{Mutex, MutexGuard, PoisonError};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::Deserialize;
use ureq::Body;
use ureq::http::Response;

use super::challenge::{self, Challenge};
use super::error::RegistryError;
use super::hosts::RegistryEndpoint;
use super::http::{RegistryHttp, RegistryRequest, header_text};
use super::keyring::RegistryCredential;
use super::pace::{self, MAX_RETRY, MIN_RATE};
use crate::api::oci::Descriptor;
use crate::api::strict::from_foreign_json;
use crate::image::digest::Digest;
use crate::image::plan::MAX_JSON_BYTES;
use crate::net::Url;
use crate::net::pace::RetryDelays;
use crate::net::url::encode_query_value;
use crate::sys::clock;

/// Times in a row that a request is sent without getting anywhere.
pub(in crate::image) const ATTEMPTS: u32 = 6;
/// Times in a row that a request is sent to an endpoint that does not answer, if another endpoint is left to ask.
const ATTEMPTS_OF_SEVERAL: u32 = 2;
/// Times that credentials are presented for one request: a token may have run out in between.
const MAX_CHALLENGES: u32 = 2;
/// Largest answer of a token service, bytes.
const MAX_TOKEN_BYTES: u64 = 256 * 1024;
/// Bytes read of an error's body, and characters told of it.
const MAX_ERROR_BYTES: u64 = 16 * 1024;
pub(super) const MAX_ERROR_CHARS: usize = 400;
/// Media types of manifests and indexes, for `Accept`.
const MANIFEST_TYPES: &str = "application/vnd.oci.image.index.v1+json, \
    application/vnd.docker.distribution.manifest.list.v2+json, \
    application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.v2+json";

/// A repository at an endpoint, and one way to get in.
pub(in crate::image) struct RegistrySession<'a> {
    http: &'a RegistryHttp<'a>,
    endpoint: &'a RegistryEndpoint,
    credential: Option<&'a RegistryCredential>,
    /// Set if there are endpoints behind this one.
    further: bool,
    held: Mutex<AuthorizationValues>,
}

/// Values for `Authorization`.
#[derive(Clone, Default)]
struct AuthorizationValues {
    /// Value for the registry itself.
    own: Option<String>,
    /// A URL of the server that the registry redirects to, and the value for it. There is one at a time.
    elsewhere: Option<(Url, String)>,
}

impl AuthorizationValues {
    /// The value for the server of `url`. `is_own`: that server is the registry itself, not one that it redirects to.
    fn value_for_server(&self, url: &Url, is_own: bool) -> Option<&String> {
        if is_own {
            return self.own.as_ref();
        }
        let theirs = self.elsewhere.as_ref();
        theirs.filter(|(of, _)| of.same_origin(url)).map(|(_, w)| w)
    }
}

/// Request for a URL, without the credentials.
#[derive(Clone, Copy)]
struct BareRequest<'a> {
    accept: Option<&'a str>,
    /// First byte wanted.
    from: u64,
    /// Set if only the head of the answer is wanted.
    head: bool,
    /// Time limit of the whole body.
    body_time: Duration,
}

/// An open answer.
pub(in crate::image) struct RegistryAnswer {
    /// URL of the answer, redirects followed.
    pub(in crate::image) url: Url,
    pub(in crate::image) response: Response<Body>,
}

/// Manifest or index that a tag or digest leads to.
pub(in crate::image) struct TopManifest {
    /// Type, digest and size.
    pub(in crate::image) descriptor: Descriptor,
    /// Text of the document.
    pub(in crate::image) bytes: Vec<u8>,
}

impl<'a> RegistrySession<'a> {
    pub(in crate::image) fn new(
        http: &'a RegistryHttp<'a>,
        endpoint: &'a RegistryEndpoint,
        credential: Option<&'a RegistryCredential>,
        further: bool,
    ) -> Self {
        Self {
            http,
            endpoint,
            credential,
            further,
            held: Mutex::default(),
        }
    }

    /// Reads the manifest or index that `name` (a tag, or `sha256:…`) leads to. A name by digest is checked against it.
    pub(in crate::image) fn read_manifest(&self, name: &str) -> Result<TopManifest, RegistryError> {
        let url = self.repository_url(&format!("manifests/{name}"));
        let expected = Digest::parse(name).ok();
        let what = BareRequest {
            accept: Some(MANIFEST_TYPES),
            ..self.document_request()
        };
        self.request_with_retries(&url, what, |answer| {
            let told = header_text(&answer.response, "docker-content-digest")
                .and_then(|text| Digest::parse(text).ok());
            let media_type = header_text(&answer.response, "content-type")
                .and_then(|text| text.split(';').next())
                .unwrap_or("")
                .trim()
                .to_owned();
            let at = answer.url.clone();
            let bytes = self.read_body(answer, MAX_JSON_BYTES)?;
            // The page of a hotel's network, or of a proxy.
            let is_json = media_type.ends_with("json");
            if !is_json && bytes.trim_ascii_start().first() != Some(&b'{') {
                let kind = match &*media_type {
                    "" => "no JSON",
                    kind => kind,
                };
                let why = format!("this is not a registry: it answers with {kind}, not a manifest");
                return Err(RegistryError::unusable_answer(&at, why));
            }
            let found = Digest::compute(&bytes);
            for promised in expected.into_iter().chain(told) {
                if promised != found {
                    return Err(RegistryError::wrong_answer(
                        &at,
                        wrong_digest(found, promised),
                    ));
                }
            }
            Ok(TopManifest {
                descriptor: Descriptor {
                    media_type: claimed_manifest_type(&bytes, media_type),
                    digest: found.to_string(),
                    size: bytes.len() as u64,
                    ..Descriptor::default()
                },
                bytes,
            })
        })
    }

    /// The digest that `name` leads to, without reading the document. `None` if the registry does not tell: ask for the
    /// manifest then.
    pub(in crate::image) fn head_manifest(
        &self,
        name: &str,
    ) -> Result<Option<Digest>, RegistryError> {
        let url = self.repository_url(&format!("manifests/{name}"));
        let what = BareRequest {
            accept: Some(MANIFEST_TYPES),
            head: true,
            ..self.document_request()
        };
        let told = self.request_with_retries(&url, what, |answer| {
            Ok(header_text(&answer.response, "docker-content-digest")
                .and_then(|text| Digest::parse(text).ok()))
        });
        match told {
            Err(RegistryError::Status { status: 405, .. }) => Ok(None),
            told => told,
        }
    }

    /// Asks whether the repository has a blob, for these credentials.
    pub(in crate::image) fn head_blob(&self, digest: Digest) -> Result<(), RegistryError> {
        let what = BareRequest {
            head: true,
            ..self.document_request()
        };
        self.request_with_retries(
            &self.repository_url(&format!("blobs/{digest}")),
            what,
            |_| Ok(()),
        )
    }

    /// Reads a document that is a blob: the configuration. Its digest and size are checked.
    pub(in crate::image) fn read_blob_document(
        &self,
        digest: Digest,
        size: u64,
    ) -> Result<Vec<u8>, RegistryError> {
        let url = self.repository_url(&format!("blobs/{digest}"));
        if size > MAX_JSON_BYTES {
            return Err(RegistryError::unusable_answer(
                &url,
                format!("the document is larger than {MAX_JSON_BYTES} bytes"),
            ));
        }
        self.request_with_retries(&url, self.document_request(), |answer| {
            let at = answer.url.clone();
            let bytes = self.read_body(answer, size)?;
            let found = Digest::compute(&bytes);
            if found != digest {
                return Err(RegistryError::wrong_answer(
                    &at,
                    wrong_digest(found, digest),
                ));
            }
            Ok(bytes)
        })
    }

    /// Opens a blob of `size` bytes at byte `from`. No retries but for credentials: the reader knows how far it got.
    pub(in crate::image) fn open_blob(
        &self,
        digest: Digest,
        from: u64,
        size: u64,
    ) -> Result<RegistryAnswer, RegistryError> {
        let what = BareRequest {
            from,
            // A server that knows no ranges sends all of it.
            body_time: self.http.time_limits().document + Duration::from_secs(size / MIN_RATE),
            ..self.document_request()
        };
        self.send_authorized(&self.repository_url(&format!("blobs/{digest}")), what)
    }

    /// Delays for one blob's attempts.
    pub(in crate::image) fn retry_delays(&self) -> RetryDelays {
        RetryDelays::new(self.http.time_limits().retry, MAX_RETRY)
    }

    /// Times in a row that a request may end with `error`.
    pub(super) const fn max_attempts(&self, error: &RegistryError) -> u32 {
        match error {
            RegistryError::Unreachable { .. } if self.further => ATTEMPTS_OF_SEVERAL,
            _ => ATTEMPTS,
        }
    }

    /// Waits before the next attempt.
    pub(in crate::image) fn pause_before_retry(&self, time: Duration) -> Result<(), RegistryError> {
        if self.http.stop_flag().wait_unless_stopped(time).is_break() {
            return Err(RegistryError::Cancelled);
        }
        Ok(())
    }

    const fn document_request(&self) -> BareRequest<'_> {
        BareRequest {
            accept: None,
            from: 0,
            head: false,
            body_time: self.http.time_limits().document,
        }
    }

    fn repository_url(&self, rest: &str) -> Url {
        let base = &self.endpoint.base;
        let mut path = format!("{}/{}/{rest}", base.path, self.endpoint.repository);
        if let Some(mirrored) = &self.endpoint.mirrored {
            path.push_str("?ns=");
            path.push_str(&encode_query_value(mirrored));
        }
        base.with_path(path)
    }

    /// Reads a body of at most `limit` bytes as a whole.
    fn read_body(&self, answer: RegistryAnswer, limit: u64) -> Result<Vec<u8>, RegistryError> {
        let mut bytes = Vec::new();
        let read = answer
            .response
            .into_body()
            .into_with_config()
            .limit(u64::MAX)
            .reader()
            .take(limit + 1)
            .read_to_end(&mut bytes);
        if let Err(e) = read {
            self.http.check_not_stopped()?;
            return Err(RegistryError::Unreachable {
                url: answer.url.without_query(),
                why: e.to_string(),
            });
        }
        if bytes.len() as u64 > limit {
            return Err(RegistryError::unusable_answer(
                &answer.url,
                format!("it has more than {limit} bytes"),
            ));
        }
        Ok(bytes)
    }

    /// Sends and reads until it works. An answer cut or spoiled on the way counts as an outage.
    fn request_with_retries<T>(
        &self,
        url: &Url,
        what: BareRequest<'_>,
        mut read: impl FnMut(RegistryAnswer) -> Result<T, RegistryError>,
    ) -> Result<T, RegistryError> {
        let end = clock::mono_now() + self.http.time_limits().document * 2;
        let mut delays = self.retry_delays();
        let mut attempts = 1;
        loop {
            let error = match self.send_authorized(url, what).and_then(&mut read) {
                Err(e) if e.may_pass() => e,
                done => return done,
            };
            if attempts >= self.max_attempts(&error) || clock::mono_now() >= end {
                return Err(error);
            }
            attempts += 1;
            log::debug!("{error}; trying again");
            // The usual delay comes on top, so that not all come back at once.
            self.pause_before_retry(error.retry_after() + delays.next_delay())?;
        }
    }

    /// Sends a request, with credentials as the registry asks for them. Only answers that are a success are returned.
    fn send_authorized(
        &self,
        url: &Url,
        what: BareRequest<'_>,
    ) -> Result<RegistryAnswer, RegistryError> {
        let mut challenges = 0;
        loop {
            let held = self.lock().clone();
            let (at, response) = self.http.send_request(&RegistryRequest {
                url,
                accept: what.accept,
                authorization: held.own.as_deref(),
                elsewhere: held.elsewhere.as_ref(),
                from: what.from,
                form: None,
                head: what.head,
                body_time: what.body_time,
            })?;
            let status = response.status().as_u16();
            if matches!(status, 200 | 206) {
                return Ok(RegistryAnswer { url: at, response });
            }
            if status == 401 && challenges < MAX_CHALLENGES {
                challenges += 1;
                let is_own = at.same_origin(url);
                self.answer_challenge(&at, is_own, held.value_for_server(&at, is_own), response)?;
                continue;
            }
            return Err(self.refusal_error(&at, status, response));
        }
    }

    /// Replaces the authorization for the server of `url` (see [`AuthorizationValues::value_for_server`]), unless
    /// another thread has done so since `sent`.
    fn answer_challenge(
        &self,
        url: &Url,
        is_own: bool,
        sent: Option<&String>,
        response: Response<Body>,
    ) -> Result<(), RegistryError> {
        let mut held = self.lock();
        if held.value_for_server(url, is_own) != sent {
            return Ok(());
        }
        let credential = self.credential.filter(|_| is_own);
        let basic = credential.and_then(RegistryCredential::basic_auth);
        let mut fresh = None;
        for challenge in &challenges_of(&response) {
            fresh = match challenge {
                // A blob store has its own words for a signature that ran out: asked again, the registry makes a new one.
                Challenge::Bearer { realm, .. } if realm.is_empty() && !is_own => None,
                Challenge::Bearer {
                    realm,
                    service,
                    scope,
                } => Some(format!(
                    "Bearer {}",
                    self.fetch_token(credential, url, realm, service, scope)?
                )),
                Challenge::Basic => basic
                    .as_ref()
                    .map(|(user, password)| basic_header(user, password)),
            };
            if fresh.is_some() {
                break;
            }
        }
        // Presented, and refused with the very same words.
        let Some(fresh) = fresh.filter(|f| Some(f) != sent) else {
            drop(held);
            return Err(self.refusal_error(url, 401, response));
        };
        if is_own {
            held.own = Some(fresh);
        } else {
            held.elsewhere = Some((url.clone(), fresh));
        }
        Ok(())
    }

    /// Gets a token; without a credential an anonymous one. Source: distribution `spec/auth/token.md`,
    /// `spec/auth/oauth.md`.
    fn fetch_token(
        &self,
        credential: Option<&RegistryCredential>,
        url: &Url,
        realm: &str,
        service: &str,
        scope: &str,
    ) -> Result<String, RegistryError> {
        if let Some(credential) = credential
            && !credential.registry_token.is_empty()
        {
            return Ok(credential.registry_token.clone());
        }
        let realm = url.resolve_location(realm).map_err(|why| {
            RegistryError::unusable_answer(
                url,
                format!("the URL of its token service is not valid: {why}"),
            )
        })?;
        if url.https && !realm.https {
            return Err(RegistryError::unusable_answer(
                url,
                format!("its token service is not https: {}", realm.without_query()),
            ));
        }
        let default_scope = format!("repository:{}:pull", self.endpoint.repository);
        let scope = if scope.is_empty() {
            &default_scope
        } else {
            scope
        };
        let identity = credential.map_or("", |c| c.identity_token.as_str());
        let fields = format!(
            "service={}&scope={}",
            encode_query_value(service),
            encode_query_value(scope)
        );
        let basic = credential.and_then(RegistryCredential::basic_auth);
        let (form, authorization, target) = if identity.is_empty() {
            let separator = if realm.path.contains('?') { '&' } else { '?' };
            let target = realm.with_path(format!("{}{separator}{fields}", realm.path));
            (None, basic.map(|(u, p)| basic_header(&u, &p)), target)
        } else {
            let form = format!(
                "grant_type=refresh_token&client_id=picolet&{fields}&refresh_token={}",
                encode_query_value(identity)
            );
            (Some(form), None, realm.clone())
        };
        let (at, response) = self.http.send_request(&RegistryRequest {
            url: &target,
            accept: None,
            authorization: authorization.as_deref(),
            elsewhere: None,
            from: 0,
            form: form.as_deref(),
            head: false,
            body_time: self.http.time_limits().document,
        })?;
        let status = response.status().as_u16();
        // So it speaks of an identity token that was revoked. Source: RFC 6749, section 5.2.
        if status == 400 && credential.is_some() {
            return Err(self.denied_error(&at, read_error_message(response)));
        }
        if status != 200 {
            return Err(self.refusal_error(&at, status, response));
        }
        let bytes = self.read_body(RegistryAnswer { url: at, response }, MAX_TOKEN_BYTES)?;
        read_token(&bytes)
            .ok_or_else(|| RegistryError::wrong_answer(&realm, "its answer holds no token"))
    }

    fn refusal_error(&self, url: &Url, status: u16, response: Response<Body>) -> RegistryError {
        let date = header_text(&response, "date");
        let retry_after = header_text(&response, "retry-after")
            .filter(|_| matches!(status, 429 | 503))
            .and_then(|text| pace::parse_retry_after(text, date, clock::wall_now()));
        let message = read_error_message(response);
        if status == 401 {
            return self.denied_error(url, message);
        }
        RegistryError::Status {
            url: url.without_query(),
            status,
            message,
            retry_after,
        }
    }

    fn denied_error(&self, url: &Url, message: String) -> RegistryError {
        RegistryError::Denied {
            host: url.authority.clone(),
            repository: self.endpoint.repository.clone(),
            message,
        }
    }

    fn lock(&self) -> MutexGuard<'_, AuthorizationValues> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn wrong_digest(found: Digest, wanted: Digest) -> String {
    format!("the registry sent other content than requested: its digest is {found}, not {wanted}")
}

fn challenges_of(response: &Response<Body>) -> Vec<Challenge> {
    response
        .headers()
        .get_all("www-authenticate")
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(challenge::parse_challenges)
        .collect()
}

fn basic_header(user: &str, password: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))
}

/// The type that a manifest claims for itself; none if it does not, then its fields tell. The type in the answer's
/// head counts only for the one kind that is neither and cannot be used.
pub(super) fn claimed_manifest_type(bytes: &[u8], answered: String) -> String {
    #[derive(Deserialize, Default)]
    #[serde(rename_all = "camelCase", default)]
    struct MediaTypeProbe {
        media_type: String,
    }
    match from_foreign_json::<MediaTypeProbe>(bytes) {
        Ok(probe) if !probe.media_type.is_empty() => probe.media_type,
        _ if answered.starts_with("application/vnd.docker.distribution.manifest.v1") => answered,
        _ => String::new(),
    }
}

/// The token in the answer of a token service.
pub(super) fn read_token(bytes: &[u8]) -> Option<String> {
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct TokenResponse {
        token: String,
        access_token: String,
    }
    let token: TokenResponse = from_foreign_json(bytes).ok()?;
    let text = if token.token.is_empty() {
        token.access_token
    } else {
        token.token
    };
    (!text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic())).then_some(text)
}

/// Reads a registry's message of an error, made fit for an event: one line, cut.
///
/// Source: distribution-spec, "Error Codes".
fn read_error_message(response: Response<Body>) -> String {
    let mut bytes = Vec::new();
    let body = response
        .into_body()
        .into_with_config()
        .limit(u64::MAX)
        .reader();
    // As much as arrives: it is only a message.
    let _ = body.take(MAX_ERROR_BYTES).read_to_end(&mut bytes);
    errors_text(&bytes)
}

/// The texts of such a document; none if it is not one.
pub(super) fn errors_text(bytes: &[u8]) -> String {
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct RegistryErrorList {
        errors: Vec<RegistryErrorEntry>,
        // Token services.
        details: String,
    }
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct RegistryErrorEntry {
        code: String,
        message: String,
    }
    let Ok(errors) = from_foreign_json::<RegistryErrorList>(bytes) else {
        return String::new();
    };
    let mut text = errors.details;
    for one in errors.errors {
        if !text.is_empty() {
            text.push_str("; ");
        }
        text.push_str(if one.message.is_empty() {
            &one.code
        } else {
            &one.message
        });
    }
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(MAX_ERROR_CHARS)
        .collect()
}
