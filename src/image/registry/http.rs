//! An exchange over HTTP: TLS, proxies, redirects, time limits. No retries, no credentials.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use core::time::Duration;
use std::sync::{Mutex, PoisonError};

use ureq::http::Response;
use ureq::{Agent, Body, Proxy};

use super::error::RegistryError;
use super::hosts::{RegistriesConfig, RegistryEndpoint};
use crate::api::link::LinkClass;
use crate::image::progress::Tracker;
use crate::net::pace::StopFlag;
use crate::net::url::split_port;
use crate::net::{ProxyVariables, Url, client};

/// Connecting and the TLS handshake.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// Time until the head of an answer is there.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(45);
/// Time without a single byte after which a link counts as cut.
pub const STALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for the body of a document, a token, an error: a server that needs longer for one is as good as silent.
pub const DOCUMENT_TIMEOUT: Duration = Duration::from_secs(120);
/// Redirects followed for one request.
pub const MAX_REDIRECTS: usize = 5;
/// Buffer of a connection, bytes.
const BUFFER_BYTES: usize = 32 * 1024;
/// Servers whose connections are kept open for one pull.
const MAX_AGENTS: usize = 32;
/// Time limits, shorter in tests.
#[derive(Clone, Copy, Debug)]
pub struct RegistryTimeLimits {
    /// [`STALL_TIMEOUT`]
    pub stall: Duration,
    /// [`ANSWER_TIMEOUT`]
    pub answer: Duration,
    /// [`DOCUMENT_TIMEOUT`]
    pub document: Duration,
    /// [`super::pace::RETRY`]
    pub retry: Duration,
}

impl Default for RegistryTimeLimits {
    fn default() -> Self {
        Self {
            stall: STALL_TIMEOUT,
            answer: ANSWER_TIMEOUT,
            document: DOCUMENT_TIMEOUT,
            retry: super::pace::RETRY,
        }
    }
}

/// Connections to registries, for one pull.
pub(in crate::image) struct RegistryHttp<'a> {
    registries: &'a RegistriesConfig,
    proxies: &'a ProxyVariables,
    limits: RegistryTimeLimits,
    /// Ends the exchanges under way.
    stop: Arc<StopFlag>,
    /// Place that hears which server is asked.
    pub(in crate::image) tracker: Option<&'a Tracker>,
    /// HTTP clients by scheme and host.
    agents: Mutex<BTreeMap<String, Agent>>,
    /// Servers whose scheme is a guess ([`RegistryEndpoint::guessed`]): any certificate is taken from them.
    guessed: Mutex<BTreeSet<String>>,
}

/// A request to send.
pub(super) struct RegistryRequest<'a> {
    pub(super) url: &'a Url,
    pub(super) accept: Option<&'a str>,
    /// Authorization for the origin of `url` only.
    pub(super) authorization: Option<&'a str>,
    /// Authorization for the origin of another URL, to which `url` redirects.
    pub(super) elsewhere: Option<&'a (Url, String)>,
    /// First byte wanted, if not all are.
    pub(super) from: u64,
    /// A form to post; without one it is a `GET`, or a `HEAD`.
    pub(super) form: Option<&'a str>,
    pub(super) head: bool,
    /// Time limit of the whole body.
    pub(super) body_time: Duration,
}

impl<'a> RegistryHttp<'a> {
    pub(in crate::image) const fn new(
        registries: &'a RegistriesConfig,
        proxies: &'a ProxyVariables,
        limits: RegistryTimeLimits,
        stop: Arc<StopFlag>,
    ) -> Self {
        Self {
            registries,
            proxies,
            limits,
            stop,
            tracker: None,
            agents: Mutex::new(BTreeMap::new()),
            guessed: Mutex::new(BTreeSet::new()),
        }
    }

    pub(in crate::image) const fn time_limits(&self) -> RegistryTimeLimits {
        self.limits
    }

    pub(in crate::image) fn stop_flag(&self) -> &StopFlag {
        &self.stop
    }

    /// Sends a request and follows redirects. The returned URL is that of the answer.
    ///
    /// The authorization stays with the first origin: blob stores that registries redirect to must not see it. They get
    /// the one for their own origin, if there is one.
    pub(super) fn send_request(
        &self,
        ask: &RegistryRequest<'_>,
    ) -> Result<(Url, Response<Body>), RegistryError> {
        let mut url = ask.url.clone();
        for _ in 0..=MAX_REDIRECTS {
            let authorization = if url.same_origin(ask.url) {
                ask.authorization
            } else {
                let theirs = ask.elsewhere.filter(|(of, _)| url.same_origin(of));
                theirs.map(|(_, words)| words.as_str())
            };
            let answer = self.send_once(&url, authorization, ask)?;
            if !matches!(answer.status().as_u16(), 301 | 302 | 303 | 307 | 308)
                || ask.form.is_some()
            {
                return Ok((url, answer));
            }
            let location = header_text(&answer, "location").unwrap_or("");
            let next = url.resolve_location(location).map_err(|why| {
                RegistryError::unusable_answer(
                    &url,
                    format!("it redirects to an invalid URL: {why}"),
                )
            })?;
            if url.https && !next.https {
                return Err(RegistryError::unusable_answer(
                    &url,
                    format!("it redirects from https to {}", next.without_query()),
                ));
            }
            url = next;
        }
        Err(RegistryError::unusable_answer(
            ask.url,
            format!("it redirects more than {MAX_REDIRECTS} times"),
        ))
    }

    /// Turns the guess of an endpoint's scheme into what its server speaks: TLS, if it answers so.
    pub(in crate::image) fn settle_scheme(&self, endpoint: &mut RegistryEndpoint) {
        if !endpoint.guessed {
            return;
        }
        let url = Url {
            https: true,
            authority: endpoint.base.authority.clone(),
            path: "/v2/".into(),
        };
        self.guessed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(url.authority.clone());
        let asked = self.send_once(
            &url,
            None,
            &RegistryRequest {
                url: &url,
                accept: None,
                authorization: None,
                elsewhere: None,
                from: 0,
                form: None,
                head: true,
                body_time: self.limits.document,
            },
        );
        // Without a port another server was asked: it has to answer as a registry does.
        let has_port = split_port(&url.authority).1.is_some();
        endpoint.base.https =
            asked.is_ok_and(|answer| has_port || matches!(answer.status().as_u16(), 200 | 401));
    }

    fn send_once(
        &self,
        url: &Url,
        authorization: Option<&str>,
        ask: &RegistryRequest<'_>,
    ) -> Result<Response<Body>, RegistryError> {
        self.check_not_stopped()?;
        if let (_, Some(port)) = split_port(&url.authority)
            && !port.parse::<u16>().is_ok_and(|port| port > 0)
        {
            let why = format!("{port} is not a port (1 to 65535)");
            return Err(RegistryError::unusable_answer(url, why));
        }
        if let Some(tracker) = self.tracker {
            tracker.note_host(&url.authority);
        }
        let agent = self.agent_for_url(url)?;
        let text = url.to_string();
        let body_time = Some(ask.body_time);
        let sent = if let Some(form) = ask.form {
            agent
                .post(&text)
                .config()
                .timeout_recv_body(body_time)
                .build()
                .header("content-type", "application/x-www-form-urlencoded")
                .send(form)
        } else {
            let mut request = if ask.head {
                agent.head(&text)
            } else {
                agent.get(&text)
            };
            if let Some(accept) = ask.accept {
                request = request.header("accept", accept);
            }
            if let Some(authorization) = authorization {
                request = request.header("authorization", authorization);
            }
            if ask.from > 0 {
                request = request.header("range", format!("bytes={}-", ask.from));
            }
            request.config().timeout_recv_body(body_time).build().call()
        };
        sent.map_err(|e| match self.check_not_stopped() {
            Ok(()) => transport_error(url, e),
            Err(cancelled) => cancelled,
        })
    }

    /// Errors: the pull is told to stop.
    pub(super) fn check_not_stopped(&self) -> Result<(), RegistryError> {
        if self.stop.is_stopped() {
            return Err(RegistryError::Cancelled);
        }
        Ok(())
    }

    /// The connections to a server, made when it is first asked.
    fn agent_for_url(&self, url: &Url) -> Result<Agent, RegistryError> {
        let key = format!("{}://{}", url.scheme(), url.authority);
        let mut agents = self.agents.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(agent) = agents.get(&key) {
            return Ok(agent.clone());
        }
        if agents.len() >= MAX_AGENTS {
            agents.clear();
        }
        let agent = self.new_agent(url)?;
        agents.insert(key, agent.clone());
        Ok(agent)
    }

    fn new_agent(&self, url: &Url) -> Result<Agent, RegistryError> {
        let config = client::common_config()
            .input_buffer_size(BUFFER_BYTES)
            .output_buffer_size(8 * 1024)
            .timeout_resolve(Some(CONNECT_TIMEOUT))
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_recv_response(Some(self.limits.answer))
            .timeout_per_read(Some(self.limits.stall))
            .timeout_per_write(Some(self.limits.stall))
            .proxy(self.proxy_for_url(url)?);
        let tls = if url.https {
            let host = self.registries.host_config(&url.authority);
            let given = host.and_then(|h| h.tls.clone());
            let guessed = self.guessed.lock().unwrap_or_else(PoisonError::into_inner);
            let takes_any = given.is_none() && guessed.contains(&url.authority);
            drop(guessed);
            let mut files = given.unwrap_or_default();
            files.insecure_skip_verify |= takes_any;
            Some(
                files
                    .client_config()
                    .map_err(|e| RegistryError::tls_failure(url, e))?,
            )
        } else {
            None
        };
        let stop = Arc::clone(&self.stop);
        Ok(client::build_agent(
            config.build(),
            tls,
            stop,
            LinkClass::Image,
        ))
    }

    fn proxy_for_url(&self, url: &Url) -> Result<Option<Proxy>, RegistryError> {
        let refuse = |why: &str| RegistryError::Unreachable {
            url: url.without_query(),
            why: why.into(),
        };
        self.proxies.tunnel_for(url).map_err(refuse)
    }
}

/// A header of an answer, if it is text.
pub(super) fn header_text<'r>(answer: &'r Response<Body>, name: &str) -> Option<&'r str> {
    answer.headers().get(name).and_then(|v| v.to_str().ok())
}

fn transport_error(url: &Url, error: ureq::Error) -> RegistryError {
    let why = match &error {
        // rustls speaks through the reader it wraps.
        ureq::Error::Io(e) => match e.get_ref().and_then(|e| e.downcast_ref::<rustls::Error>()) {
            Some(e) => {
                return RegistryError::Tls {
                    host: url.authority.clone(),
                    why: e.to_string(),
                };
            }
            None => e.to_string(),
        },
        other => other.to_string(),
    };
    RegistryError::Unreachable {
        url: url.without_query(),
        why,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_that_cannot_be_used_is_not_passed_by() {
        let registries = RegistriesConfig::default();
        let url = Url::parse("https://a.example/").expect("a URL");
        for (proxy, says) in [
            ("socks5://p:1", "neither http:// nor https://"),
            ("http://", "not valid"),
        ] {
            let proxies = ProxyVariables {
                https: proxy.into(),
                ..ProxyVariables::default()
            };
            let http = RegistryHttp::new(
                &registries,
                &proxies,
                RegistryTimeLimits::default(),
                Arc::default(),
            );
            let e = http.proxy_for_url(&url).expect_err(proxy);
            assert!(e.to_string().contains(says), "{e}");
        }
    }
}
