//! A cluster that this machine is to become a node of, found by what an operator can type: an address and a token.
//!
//! | module | the cluster is one of |
//! |---|---|
//! | [`k3s`] | k3s: its supervisor, known by the digest in the token |
//!
//! A server is told nothing before it is verified. Nothing is written but by [`mod@staged`], which puts the findings on
//! disk.

pub mod k3s;
pub mod staged;
#[cfg(test)]
mod tests;

use alloc::sync::Arc;
use core::sync::atomic::{AtomicI64, Ordering};
use core::time::Duration;

use serde_json::Value;
use smol::Timer;

use super::client::{ApiRequest, ClientTimeouts, KubeClient, SharedApiserver};
use super::error::KubeError;
use super::kubeconfig::{Kubeconfig, KubeconfigMaterial, KubeconfigUser, ServerTrust};
use crate::api::{WallTime, link::LinkClass};
use crate::net::{ProxyVariables, Url};

/// Time limit of an exchange from start to end.
const ANSWER_TIME: Duration = Duration::from_secs(15);
/// Requests to a server that is busy, or not ready yet, before giving up.
const BUSY_TRIES: u32 = 6;
/// Pause before a busy server is asked again, unless it says another time.
const BUSY_PAUSE: Duration = Duration::from_secs(5);
/// Longest pause before another try, whatever the server asks for.
const MAX_BUSY_PAUSE: Duration = Duration::from_secs(30);
/// Difference from which a clock counts as wrong, seconds. Certificates are dated back by five minutes.
const MAX_SKEW_S: u64 = 300;

/// Reason why this machine cannot join. The messages say what to do where that is known.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// No answer, or not that of an apiserver.
    #[error(transparent)]
    Kube(#[from] KubeError),
    /// The clocks differ, and certificates hold for a time.
    #[error(
        "{error}. This machine's clock says {ours}, the server's {theirs}. Set it: date -u -s '{theirs}'"
    )]
    Clock {
        /// Error that the difference has caused.
        error: KubeError,
        /// Time of this machine.
        ours: WallTime,
        /// Time of the server.
        theirs: WallTime,
    },
    /// Fault of the text typed as a token.
    #[error("the token {0}")]
    Token(&'static str),
    /// The text typed as a digest is not one.
    #[error("--discovery-token-ca-cert-hash: each value must be sha256: and 64 hexadecimal digits")]
    Pin,
    /// The server is not the expected one.
    #[error(
        "{url} has no ConfigMap cluster-info that can be read without credentials: it is not a kubeadm cluster, or its operator has closed this access"
    )]
    NoClusterInfo {
        /// The server.
        url: String,
    },
    /// The token's first half is not known there.
    #[error(
        "the cluster does not know the token {id:?}: it is wrong or has expired. Run on the control plane: kubeadm token create --print-join-command"
    )]
    UnknownToken {
        /// The part before the dot, which is no secret.
        id: String,
    },
    /// The token's second half is another one, or another server answers.
    #[error(
        "the answer of {url} is not signed with this token: the part behind the dot is wrong, or this is not the cluster"
    )]
    Signature {
        /// The server.
        url: String,
    },
    /// The CA is another one.
    #[error(
        "the CA of {url} has the digest {found}, which is not a given one: the given digest is wrong, the CA has changed, or this is not the cluster"
    )]
    OtherCa {
        /// The server.
        url: String,
        /// Digest, as the operator would name it.
        found: String,
    },
    /// Two answers that must be the same and are not.
    #[error(
        "{url} answers differently when its CA is checked and when it is not: somebody between here and the server changes the answers"
    )]
    TwoAnswers {
        /// The server.
        url: String,
    },
    /// The token is known, and is not let in.
    #[error(
        "{url} refuses this token: it is wrong, has expired, or is not for authentication ({error})"
    )]
    Refused {
        /// The server.
        url: String,
        /// The server's error.
        error: KubeError,
    },
    /// The token is let in, but may not do what joining needs.
    #[error("this token may not read {what}: {error}")]
    Forbidden {
        /// Object that may not be read.
        what: &'static str,
        /// The server's error.
        error: KubeError,
    },
    /// The node has had a password before.
    #[error(
        "the cluster has another password for node {node:?}. If this board is new or was wiped, run on a server: kubectl -n kube-system delete secret {node}.node-password.k3s. If another board has that name, choose one with --hostname-override"
    )]
    NodePassword {
        /// Name of the node.
        node: String,
    },
    /// The answer cannot be used.
    #[error("{what} of {url}: {why}")]
    Wrong {
        /// Name of the answer.
        what: &'static str,
        /// The server.
        url: String,
        /// Fault of the answer.
        why: String,
    },
}

/// Makes the error of an answer that cannot be used. Nobody tells the faults apart, so `why` becomes text.
pub(crate) fn wrong_answer(
    what: &'static str,
    url: &Url,
    why: impl core::fmt::Display,
) -> JoinError {
    JoinError::Wrong {
        what,
        url: url.without_query(),
        why: why.to_string(),
    }
}

/// A server that is asked before this machine is a node.
pub(crate) struct JoinServer {
    pub(crate) url: Url,
    client: KubeClient,
    /// Requests made while the server is busy.
    tries: u32,
    /// The server's time, in seconds since 1970, and ours at that moment; 0: not heard.
    dates: Arc<[AtomicI64; 2]>,
}

impl JoinServer {
    pub(crate) fn new(config: Kubeconfig, proxies: &ProxyVariables) -> Self {
        let dates = Arc::new([AtomicI64::new(0), AtomicI64::new(0)]);
        let heard = Arc::clone(&dates);
        let on_date = move |theirs: WallTime, ours: WallTime| {
            heard[0].store(theirs.unix_seconds(), Ordering::Relaxed);
            heard[1].store(ours.unix_seconds(), Ordering::Relaxed);
        };
        let timeouts = ClientTimeouts {
            whole: Some(ANSWER_TIME),
            ..ClientTimeouts::default()
        };
        let url = config.servers[0].clone();
        let cluster = SharedApiserver::new(config, proxies.clone(), Some(Box::new(on_date)));
        Self {
            url,
            client: KubeClient::new(Arc::new(cluster), timeouts, None, LinkClass::Api),
            tries: BUSY_TRIES,
            dates,
        }
    }

    /// Asks again while the server is busy or not ready.
    fn send_with_retries<T>(
        &self,
        ask: &ApiRequest<'_>,
        read: impl Fn(super::client::ApiResponse) -> Result<T, KubeError>,
    ) -> Result<T, KubeError> {
        let mut tries = self.tries;
        loop {
            let failed = match self.client.send_request(ask).and_then(&read) {
                Err(e) if matches!(e.http_status(), Some(429 | 503)) => e,
                other => return other,
            };
            tries -= 1;
            if tries == 0 {
                return Err(failed);
            }
            let pause = failed.retry_after().unwrap_or(BUSY_PAUSE);
            smol::block_on(Timer::after(pause.min(MAX_BUSY_PAUSE)));
        }
    }

    pub(crate) fn read_document(&self, path: &str) -> Result<Value, KubeError> {
        self.send_with_retries(
            &ApiRequest::get(path),
            super::client::ApiResponse::read_document,
        )
    }

    /// Makes it an error of the clocks, if they may be why a server is not trusted. `heard`: the server that told the
    /// time.
    pub(crate) fn explain_clock_error(heard: &Self, error: KubeError) -> JoinError {
        let [theirs, ours] = [0, 1].map(|n| heard.dates[n].load(Ordering::Relaxed));
        match error {
            KubeError::Tls { clock: true, .. }
                if theirs != 0 && theirs.abs_diff(ours) >= MAX_SKEW_S =>
            {
                JoinError::Clock {
                    error,
                    ours: WallTime::from_unix_seconds(ours),
                    theirs: WallTime::from_unix_seconds(theirs),
                }
            }
            error => error.into(),
        }
    }
}

/// Makes a kubeconfig for one server, trusted as `trust` says, without a user.
pub(crate) fn anonymous_kubeconfig(url: &Url, trust: ServerTrust) -> Kubeconfig {
    Kubeconfig {
        path: "join".into(),
        // Paths are appended to it.
        servers: vec![url.with_path(String::new())],
        trust,
        tls_server_name: None,
        proxy_url: None,
        user: KubeconfigUser::default(),
        exec_config: None,
    }
}

/// Returns true for 32 bytes in hexadecimal digits.
pub(crate) fn is_digest(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Splits a bootstrap token `id.secret`.
///
/// - Source: `k8s.io/cluster-bootstrap` `token/api/types.go`.
pub(crate) fn split_bootstrap_token(token: &str) -> Option<(&str, &str)> {
    let is_part = |text: &str, length| {
        text.len() == length
            && text
                .bytes()
                .all(|b| b.is_ascii_digit() || b.is_ascii_lowercase())
    };
    token
        .split_once('.')
        .filter(|(id, secret)| is_part(id, 6) && is_part(secret, 16))
}
