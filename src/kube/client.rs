//! Exchanges with the apiserver: one request, one answer, over connections that are kept.
//!
//! ```text
//! Ask ─▶ turn (rate) ─▶ connection of this moment (server, certificates) ─▶ token ─▶ answer
//!             ▲                                                                 │
//!             │  not connected: the next server, each once                      │
//!             └─ 401 with a token that may have changed: once more ◀────────────┘
//! ```
//!
//! Nothing else is repeated here: callers know what a repetition means, and [`KubeError::may_pass`] and
//! [`KubeError::retry_after`] tell them when. Everything blocks and is made for a lane. TLS, CAs and names are not touched
//! before the first request.

use alloc::sync::{Arc, Weak};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use core::time::Duration;
use std::io::Read;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use ureq::http::{Method, Request, Response};
use ureq::unversioned::transport::{ConnectProxyConnector, Connector as _};
use ureq::{Agent, Proxy};

use super::body::UnpackedBody;
use super::cancel::WatchCancel;
use super::connect::{MarkedConnector, MarkedResolver, transport_error, url_without_query};
use super::credentials::ApiCredentials;
use super::date;
use super::error::{ApiError, KubeError, MAX_STATUS_BYTES};
use super::kubeconfig::{Kubeconfig, ServerTrust};
use super::rate::RequestRate;
use super::stream::{self, BUFFER_BYTES, DocumentReadError, ListItemError, ListMeta};
use crate::api::{MonoTime, WallTime, link::LinkClass};
use crate::net::known_time::{KNOWN, SharedKnownTime};
use crate::net::tcp::LongTcpConnector;
use crate::net::tls::TlsConnector;
use crate::net::way::PeerAddress;
use crate::net::{NameResolver, ProxyVariables, Url};
use crate::sys::clock;

/// Time limit of connecting and the TLS handshake.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// Time limit until the head of an answer is there.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Time without a single byte after which an answer counts as cut.
pub const STALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit of an exchange of the heartbeat client from start to end, unless the configuration asks for less
/// (CONF-21).
pub const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time after which an unused connection is closed. The apiserver closes it after 90 s itself.
pub const MAX_IDLE: Duration = Duration::from_secs(80);
/// Time in which a kept connection turns out to be closed. A later error has another cause.
const STALE_WITHIN: Duration = Duration::from_secs(1);
/// Time for which watches use one connection: then they follow names, load balancers and the way out anew.
const MAX_WATCH_AGE: Duration = Duration::from_secs(3600);
/// Unused connections kept by one client.
const MAX_IDLE_CONNECTIONS: usize = 2;
/// Largest head of an answer, bytes.
const MAX_HEAD_BYTES: usize = 32 * 1024;
/// Buffer that a request with its token is written from, bytes.
const OUTPUT_BYTES: usize = 8 * 1024;
/// Bytes read of an answer that nobody needs, so that its connection can be used again.
const MAX_UNUSED_BYTES: u64 = 4 * 1024 * 1024;
/// Watches that may be open on one apiserver.
const MAX_WATCHES: usize = 4;

/// `User-Agent` header of requests.
#[cfg(target_arch = "x86_64")]
pub const USER_AGENT: &str = concat!("picolet/", env!("CARGO_PKG_VERSION"), " (linux/amd64)");
/// `User-Agent` header of requests.
#[cfg(target_arch = "aarch64")]
pub const USER_AGENT: &str = concat!("picolet/", env!("CARGO_PKG_VERSION"), " (linux/arm64)");
/// `User-Agent` header of requests.
#[cfg(target_arch = "arm")]
pub const USER_AGENT: &str = concat!("picolet/", env!("CARGO_PKG_VERSION"), " (linux/arm)");
/// `User-Agent` header of requests.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "arm")))]
pub const USER_AGENT: &str = concat!("picolet/", env!("CARGO_PKG_VERSION"), " (linux)");

/// Time limits, shorter in tests.
#[derive(Clone, Copy, Debug)]
pub struct ClientTimeouts {
    /// [`CONNECT_TIMEOUT`]
    pub connect: Duration,
    /// [`ANSWER_TIMEOUT`]
    pub answer: Duration,
    /// [`STALL_TIMEOUT`]
    pub stall: Duration,
    /// Time limit of the whole exchange, if it has one.
    pub whole: Option<Duration>,
}

impl Default for ClientTimeouts {
    fn default() -> Self {
        Self {
            connect: CONNECT_TIMEOUT,
            answer: ANSWER_TIMEOUT,
            stall: STALL_TIMEOUT,
            whole: None,
        }
    }
}

/// Receiver of the apiserver's time and of ours, to the second, with each answer over a trusted connection.
pub type DateReceiver = dyn Fn(WallTime, WallTime) + Send + Sync;

/// An apiserver, however many URLs it has: the state that all its clients share.
pub struct SharedApiserver {
    config: Kubeconfig,
    credentials: ApiCredentials,
    proxies: ProxyVariables,
    on_date: Option<Box<DateReceiver>>,
    known_time: &'static SharedKnownTime,
    /// Index of the server in use, modulo their number.
    server: AtomicUsize,
    /// Number of the credentials that connections were last opened with; 0 before the first.
    generation: AtomicU64,
    watches: Mutex<Vec<Weak<WatchCancel>>>,
    /// Address at which the apiserver was last reached.
    peer: Arc<PeerAddress>,
}

impl SharedApiserver {
    /// Makes a cluster. Reads and sends nothing yet.
    #[must_use]
    pub fn new(
        config: Kubeconfig,
        proxies: ProxyVariables,
        on_date: Option<Box<DateReceiver>>,
    ) -> Self {
        Self {
            config,
            credentials: ApiCredentials::new(),
            proxies,
            on_date,
            known_time: &KNOWN,
            server: AtomicUsize::new(0),
            generation: AtomicU64::new(0),
            watches: Mutex::new(Vec::new()),
            peer: Arc::default(),
        }
    }

    /// Looks at the files of certificates with the next request: there may be a new pair (BOOT-08).
    pub fn reread_credentials(&self) {
        self.credentials.reread_files();
    }

    /// Address at which the apiserver was last reached, by whichever client.
    #[must_use]
    pub fn peer(&self) -> Arc<PeerAddress> {
        Arc::clone(&self.peer)
    }

    fn current_server(&self) -> (usize, &Url) {
        let at = self.server.load(Ordering::Relaxed) % self.config.servers.len();
        (at, &self.config.servers[at])
    }

    /// Moves on from server `at`, unless another client has done so.
    fn next_server(&self, at: usize) {
        let next = (at + 1) % self.config.servers.len();
        let _ = self
            .server
            .compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Registers a watch, which has to end when the credentials change.
    pub(super) fn register_watch(&self, cancel: &Arc<WatchCancel>) {
        let mut watches = self.lock_watches();
        watches.retain(|w| w.strong_count() > 0);
        let is_known = watches.iter().any(|w| w.as_ptr() == Arc::as_ptr(cancel));
        if !is_known && watches.len() < MAX_WATCHES {
            watches.push(Arc::downgrade(cancel));
        }
    }

    /// Notes the number of the credentials. If it has changed, watches with the old ones are cut, whichever client sees
    /// the new ones first.
    fn note_generation(&self, generation: u64) {
        let before = self.generation.swap(generation, Ordering::Relaxed);
        if before == 0 || before == generation {
            return;
        }
        for cancel in self.lock_watches().iter().filter_map(Weak::upgrade) {
            cancel.interrupt();
        }
    }

    fn lock_watches(&self) -> MutexGuard<'_, Vec<Weak<WatchCancel>>> {
        self.watches.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request.
pub(super) struct ApiRequest<'a> {
    pub(super) method: Method,
    /// Path from its slash on, with the query.
    pub(super) path: &'a str,
    pub(super) accept: &'a str,
    pub(super) body: Option<(&'a str, &'a [u8])>,
    pub(super) packed: bool,
    /// Set if the request waits for its turn. A request in place of a kubelet's watch does not wait: the watch costs no
    /// turn either, and the caller limits such requests.
    pub(super) paced: bool,
    /// Headers beside the usual ones.
    pub(super) more: &'a [(&'a str, &'a str)],
}

/// Media type of answers, unless another one is asked for.
pub(super) const JSON: &str = "application/json";

impl<'a> ApiRequest<'a> {
    pub(super) const fn get(path: &'a str) -> Self {
        Self {
            method: Method::GET,
            path,
            accept: JSON,
            body: None,
            packed: false,
            paced: true,
            more: &[],
        }
    }

    pub(super) const fn with_body(
        method: Method,
        path: &'a str,
        kind: &'a str,
        body: &'a [u8],
    ) -> Self {
        Self {
            method,
            path,
            accept: JSON,
            body: Some((kind, body)),
            packed: false,
            paced: true,
            more: &[],
        }
    }
}

/// A client of the apiserver: connections of its own, its own rate.
pub struct KubeClient {
    pub(super) cluster: Arc<SharedApiserver>,
    timeouts: ClientTimeouts,
    rate: Option<Arc<RequestRate>>,
    /// Class that the client's bytes count in.
    class: LinkClass,
    connections: Mutex<Option<ServerConnections>>,
}

/// Connections to one server, opened with the credentials of one moment.
#[derive(Clone)]
pub(super) struct ServerConnections {
    pub(super) agent: Agent,
    server: usize,
    generation: u64,
    /// Silence that a watch allows; `None`: they are for requests that end.
    stall: Option<Duration>,
    opened: MonoTime,
}

impl KubeClient {
    /// A client that waits for its turn by `rate`. Its bytes count as `class`.
    #[must_use]
    pub fn new(
        cluster: Arc<SharedApiserver>,
        timeouts: ClientTimeouts,
        rate: Option<Arc<RequestRate>>,
        class: LinkClass,
    ) -> Self {
        Self {
            cluster,
            timeouts,
            rate,
            class,
            connections: Mutex::new(None),
        }
    }

    /// Closes connections that are not in use; those in use are not used again. After repeated failures the path may be
    /// dead without telling (CONF-21).
    pub fn close_connections(&self) {
        *self.lock() = None;
    }

    /// Sends a request. A refusal is an error.
    pub(super) fn send_request(&self, ask: &ApiRequest<'_>) -> Result<ApiResponse, KubeError> {
        if let Some(rate) = &self.rate
            && ask.paced
            && !rate.wait_for_turn()
        {
            return Err(KubeError::Local("too many requests wait to be sent".into()));
        }
        let mut untried = self.cluster.config.servers.len() - 1;
        // The server may have closed a kept connection at this very moment.
        let mut again = ask.method == Method::GET;
        let mut renew = true;
        let begun = clock::mono_now();
        loop {
            let (at, server) = self.cluster.current_server();
            let url = format!("{server}{}", ask.path);
            let kept = self.lock().clone();
            let result = self
                .current_connections(None, kept)
                .and_then(|connections| self.send_once(&connections.agent, &url, ask));
            match result {
                Ok(answer) if answer.status() == 401 && renew => {
                    renew = false;
                    if !self
                        .cluster
                        .credentials
                        .forget_refused_token(&self.cluster.config)
                    {
                        return Err(answer.into_api_error());
                    }
                    answer.discard_body();
                }
                Ok(answer) if answer.response.status().is_success() => return Ok(answer),
                Ok(answer) => return Err(answer.into_api_error()),
                Err(KubeError::Unreachable { sent: false, .. }) if untried > 0 => {
                    untried -= 1;
                    self.cluster.next_server(at);
                }
                Err(KubeError::Unreachable { sent: true, .. })
                    if again && clock::mono_now() - begun < STALE_WITHIN =>
                {
                    again = false;
                    self.close_connections();
                }
                Err(e) => {
                    if matches!(e, KubeError::Unreachable { sent: false, .. }) {
                        self.cluster.next_server(at);
                    }
                    return Err(e);
                }
            }
        }
    }

    /// Sends a request whose answer may never end to the present server, over a connection that `cancel` can cut: that of
    /// the watch before, if it ended well.
    pub(super) fn open_stream(
        &self,
        ask: &ApiRequest<'_>,
        stall: Duration,
        cancel: &Arc<WatchCancel>,
    ) -> Result<ApiResponse, KubeError> {
        let (at, server) = self.cluster.current_server();
        let url = format!("{server}{}", ask.path);
        let kept = cancel.take_connections();
        let mut is_kept = kept.is_some();
        let mut connections = self.current_connections(Some(stall), kept)?;
        self.cluster.register_watch(cancel);
        let begun = clock::mono_now();
        let sent = loop {
            if !cancel.set_connections(connections.clone()) {
                return Err(KubeError::Cancelled);
            }
            match self.send_once(&connections.agent, &url, ask) {
                // The server may have closed the kept connection at this very moment.
                Err(KubeError::Unreachable { sent: true, .. })
                    if is_kept && clock::mono_now() - begun < STALE_WITHIN =>
                {
                    is_kept = false;
                    connections = self.current_connections(Some(stall), None)?;
                }
                sent => break sent,
            }
        };
        match sent {
            Ok(answer) if answer.response.status().is_success() => Ok(answer),
            Ok(answer) => {
                if answer.status() == 401 {
                    self.cluster
                        .credentials
                        .forget_refused_token(&self.cluster.config);
                }
                Err(answer.into_api_error())
            }
            Err(_) if cancel.is_cancelled() => Err(KubeError::Cancelled),
            Err(e) => {
                if matches!(e, KubeError::Unreachable { sent: false, .. }) {
                    self.cluster.next_server(at);
                }
                Err(e)
            }
        }
    }

    fn send_once(
        &self,
        agent: &Agent,
        url: &str,
        ask: &ApiRequest<'_>,
    ) -> Result<ApiResponse, KubeError> {
        let cluster = &self.cluster;
        let token = cluster.credentials.current_token(&cluster.config)?;
        let mut request = Request::builder()
            .method(ask.method.clone())
            .uri(url)
            .header("accept", ask.accept);
        if ask.packed {
            request = request.header("accept-encoding", "gzip");
        }
        for (name, value) in ask.more {
            request = request.header(*name, *value);
        }
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let wrong =
            |e: ureq::http::Error| KubeError::Local(format!("{}: {e}", url_without_query(url)));
        let sent = match ask.body {
            Some((kind, body)) => {
                let request = request.header("content-type", kind).body(body);
                agent.run(request.map_err(wrong)?)
            }
            None => agent.run(request.body(()).map_err(wrong)?),
        };
        let response = sent.map_err(|e| transport_error(url, e))?;
        if url.starts_with("https:")
            && let Some(theirs) = header_text(&response, "date").and_then(date::parse_http_date)
        {
            if !matches!(cluster.config.trust, ServerTrust::Any) {
                cluster.known_time.set_trusted_time(theirs);
            }
            if let Some(on_date) = &cluster.on_date {
                on_date(theirs, clock::wall_now());
            }
        }
        Ok(ApiResponse {
            url: url_without_query(url).into(),
            response,
        })
    }

    /// Returns the connections to use now: `kept`, or fresh ones. With `stall`: for a watch.
    fn current_connections(
        &self,
        stall: Option<Duration>,
        kept: Option<ServerConnections>,
    ) -> Result<ServerConnections, KubeError> {
        let cluster = &self.cluster;
        let (server, url) = cluster.current_server();
        let (tls, generation) = if url.https {
            let (tls, generation) = cluster
                .credentials
                .current_tls(&cluster.config, cluster.known_time)?;
            (Some(tls), generation)
        } else {
            (None, 0)
        };
        cluster.note_generation(generation);
        if let Some(kept) = kept
            && kept.server == server
            && kept.generation == generation
            && kept.stall == stall
            && (stall.is_none() || clock::mono_now() - kept.opened < MAX_WATCH_AGE)
        {
            return Ok(kept);
        }
        let limits = self.timeouts;
        let is_watch = stall.is_some();
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(USER_AGENT)
            .max_response_header_size(MAX_HEAD_BYTES)
            .input_buffer_size(BUFFER_BYTES)
            .output_buffer_size(OUTPUT_BYTES)
            .max_idle_connections(MAX_IDLE_CONNECTIONS)
            .max_idle_connections_per_host(MAX_IDLE_CONNECTIONS)
            .max_idle_age(MAX_IDLE)
            .timeout_resolve(Some(limits.connect))
            .timeout_connect(Some(limits.connect))
            .timeout_recv_response(Some(limits.answer))
            .timeout_per_read(Some(stall.unwrap_or(limits.stall)))
            .timeout_per_write(Some(limits.stall))
            .timeout_global(limits.whole.filter(|_| !is_watch))
            .proxy(self.find_proxy(url)?);
        let server_name = cluster.config.tls_server_name.clone();
        let connector = ()
            .chain(ConnectProxyConnector::default())
            .chain(LongTcpConnector {
                class: self.class,
                peer: Some(cluster.peer()),
            })
            .chain(TlsConnector {
                config: tls,
                server_name: server_name.map(|name| (url.host().to_owned(), name)),
            });
        let fresh = ServerConnections {
            agent: Agent::with_parts(
                config.build(),
                MarkedConnector(connector),
                MarkedResolver(NameResolver::system_default()),
            ),
            server,
            generation,
            stall,
            opened: clock::mono_now(),
        };
        if !is_watch {
            *self.lock() = Some(fresh.clone());
        }
        Ok(fresh)
    }

    fn find_proxy(&self, url: &Url) -> Result<Option<Proxy>, KubeError> {
        let cluster = &self.cluster;
        let named = cluster.config.proxy_url.as_deref();
        let Some(text) = named.or_else(|| cluster.proxies.proxy_for(url)) else {
            return Ok(None);
        };
        // Its text may hold a password.
        Proxy::new(text)
            .map(Some)
            .map_err(|_| KubeError::Local("the proxy's address is not valid".into()))
    }

    fn lock(&self) -> MutexGuard<'_, Option<ServerConnections>> {
        self.connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// An answer whose body is still to come.
pub(super) struct ApiResponse {
    url: Box<str>,
    response: Response<ureq::Body>,
}

impl ApiResponse {
    pub(super) fn status(&self) -> u16 {
        self.response.status().as_u16()
    }

    /// The body, unpacked.
    pub(super) fn into_reader(
        self,
    ) -> Result<(Box<str>, UnpackedBody<impl Read + 'static>), KubeError> {
        let encoding = header_text(&self.response, "content-encoding").map(ToOwned::to_owned);
        let bytes = self
            .response
            .into_body()
            .into_with_config()
            .limit(u64::MAX)
            .reader();
        match UnpackedBody::new(bytes, encoding.as_deref()) {
            Ok(body) => Ok((self.url, body)),
            Err(why) => Err(KubeError::Wrong {
                url: self.url.into(),
                why: why.to_string(),
            }),
        }
    }

    /// The body as one object.
    pub(super) fn read_document(self) -> Result<Value, KubeError> {
        let (url, body) = self.into_reader()?;
        stream::read_document(Box::new(body)).map_err(|e| body_read_error(&url, e))
    }

    /// The body as it is, at most `most` bytes.
    pub(super) fn read_bytes(self, most: usize) -> Result<Vec<u8>, KubeError> {
        let (url, body) = self.into_reader()?;
        let mut bytes = Vec::new();
        let read = body.take(most as u64 + 1).read_to_end(&mut bytes);
        let read = read.map_err(|e| DocumentReadError::Cut(e.to_string()));
        let fits = read.and_then(|_| match bytes.len() <= most {
            true => Ok(bytes),
            false => Err(DocumentReadError::Wrong(format!(
                "it has more than {most} bytes"
            ))),
        });
        fits.map_err(|e| body_read_error(&url, e))
    }

    /// The body as a list, or one page of it. See [`stream::read_list_items`].
    pub(super) fn read_list(
        self,
        most: usize,
        each: &mut dyn FnMut(Value) -> Result<(), ListItemError>,
    ) -> Result<(ListMeta, usize), KubeError> {
        let (url, body) = self.into_reader()?;
        stream::read_list_items(Box::new(body), most, each).map_err(|e| body_read_error(&url, e))
    }

    /// Reads a body that nobody needs, so that the connection can be used again.
    pub(super) fn discard_body(self) {
        if let Ok((_, body)) = self.into_reader() {
            let _ = std::io::copy(&mut body.take(MAX_UNUSED_BYTES), &mut std::io::sink());
        }
    }

    fn into_api_error(self) -> KubeError {
        let status = self.status();
        let retry_after = header_text(&self.response, "retry-after").map(ToOwned::to_owned);
        let mut bytes = Vec::new();
        if let Ok((_, body)) = self.into_reader() {
            // A part of it will do: it is only a message.
            let _ = body.take(MAX_STATUS_BYTES).read_to_end(&mut bytes);
        }
        KubeError::Api(ApiError::from_body(status, retry_after.as_deref(), &bytes))
    }
}

pub(super) fn body_read_error(url: &str, error: DocumentReadError) -> KubeError {
    match error {
        DocumentReadError::Cut(why) => KubeError::Unreachable {
            url: url.into(),
            why,
            sent: true,
        },
        DocumentReadError::Wrong(why) => KubeError::Wrong {
            url: url.into(),
            why,
        },
    }
}

fn header_text<'r>(answer: &'r Response<ureq::Body>, name: &str) -> Option<&'r str> {
    answer.headers().get(name).and_then(|v| v.to_str().ok())
}

#[cfg(test)]
mod testing {
    //! What tests ask.
    use super::{SharedApiserver, SharedKnownTime};

    impl SharedApiserver {
        /// Learns the time for that one.
        pub(crate) fn knowing(mut self, known: &'static SharedKnownTime) -> Self {
            self.known_time = known;
            self
        }
    }
}
