//! The node's own certificate: asked for while there is none, renewed in time, on disk before it is used (BOOT-02 to
//! BOOT-09). What is asked when, and what follows from an answer, is [`crate::logic::certificates`].
//!
//! ```text
//! Look ──due──▶ Request ──▶ wait for the signer ──▶ stored ──▶ used by the next request
//!  ▲  └─ a minute at most ─┐    │ refused, deleted, silent for 15 min
//!  └───────────────────────┴────┘
//! ```
//!
//! It asks under its own name as long as its certificate holds, else under that of the bootstrap kubeconfig, which is read
//! each time: whoever puts a new token there needs no restart. Time is the wall clock's, which may be set at any moment: no
//! wait is longer than a minute. A clock that the apiserver's own answers prove wrong is corrected by them for the question
//! whether a certificate has ended.

use alloc::{rc::Rc, sync::Arc};
use core::{
    cell::{Cell, RefCell},
    time::Duration,
};
use std::path::PathBuf;

use smol::future::FutureExt as _;

use super::{
    link::{ApiserverLink, fleet_spread},
    membership::Membership,
    signing::{CertificateSigner, FIRST_POLL, LOOK, RenewalSpread, SigningFailure, renewal_time},
};
use crate::{
    agent::{asker::AgentHandle, core::AgentEvent},
    api::{MonoTime, WallTime},
    kube::{
        self, KubeApi, Kubeconfig,
        bootstrap::{CLIENT_SIGNER, node_subject},
        store::CertificateStore,
        x509::Certificate,
    },
    logic::certificates::{CertificateRequests, csr_retry_delay, must_restart_agent},
};

/// State of the client certificate, for status pages and for the end of the agent. One task writes it
/// ([`ClientCertificateKeeper`]).
#[derive(Debug, Default)]
pub(in crate::agent) struct ClientCertificateState {
    trouble: RefCell<Option<String>>,
    ended: RefCell<Option<String>>,
    /// End of its validity; `None` without a certificate.
    pub(super) end: Cell<Option<WallTime>>,
}

impl ClientCertificateState {
    /// Problem of the certificate, if it has one.
    pub(in crate::agent) fn certificate_trouble(&self) -> Option<String> {
        self.trouble.borrow().clone()
    }

    /// Reason why the agent ends (BOOT-09).
    pub(super) fn agent_end_reason(&self) -> Option<String> {
        self.ended.borrow().clone()
    }

    /// The certificate holds, or what is wrong with it.
    fn set_certificate_state(&self, trouble: Option<String>, end: Option<WallTime>) {
        self.end.set(end);
        if *self.trouble.borrow() != trouble {
            match &trouble {
                Some(what) => log::warn!("{what}"),
                None => log::info!(
                    "the client certificate is valid until {}",
                    end.unwrap_or(WallTime(0))
                ),
            }
        }
        self.trouble.replace(trouble);
    }
}

/// A certificate that the agent renews: its files, and the connections that show it.
pub(super) struct RenewedCertificate {
    pub(super) store: CertificateStore,
    /// The cluster whose connections show the certificate.
    pub(super) cluster: Arc<kube::SharedApiserver>,
    pub(super) bootstrap: Option<BootstrapIdentity>,
}

/// Bootstrap identity, used while there is no certificate.
pub(super) struct BootstrapIdentity {
    pub(super) kubeconfig: PathBuf,
    pub(super) servers: Vec<String>,
    pub(super) connect: Box<dyn Fn(Kubeconfig) -> Arc<dyn KubeApi>>,
}

/// Keeps the certificate.
pub(super) struct ClientCertificateKeeper {
    pub(super) node: String,
    pub(super) kept: RenewedCertificate,
    pub(super) state: Rc<ClientCertificateState>,
    pub(super) signer: CertificateSigner,
    pub(super) link: Rc<ApiserverLink>,
    pub(super) member: Rc<Membership>,
    pub(super) asker: AgentHandle,
}

/// Under whose name a certificate is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequesterIdentity {
    Own,
    Bootstrap,
}

impl ClientCertificateKeeper {
    /// For as long as the agent runs.
    pub(super) async fn keep_certificate(self) {
        let (clock, complaints) = (&self.signer.clock, &self.signer.complaints);
        let random = || u32::try_from(fleet_spread(&**clock, &self.node) % 1000).unwrap_or(0);
        let subject = node_subject(&self.node);
        let mut draw = RenewalSpread::default();
        let mut requests = CertificateRequests::default();
        let mut without_since: Option<MonoTime> = None;
        loop {
            let held = self.signer.read_current("client", &self.kept.store).await;
            let holds = self.is_valid_now(&held.chain);
            without_since = (!holds).then(|| without_since.unwrap_or_else(|| clock.now()));
            let drawn = draw.number_for(&held, random);
            let due = renewal_time(&held, &subject, drawn, clock.wall_time()).filter(|_| holds);
            let now = self.signer.server_time();
            if let Some(due) = due.filter(|due| *due > now) {
                requests = CertificateRequests::default();
                let left = due.0.saturating_sub(now.0) / 1_000_000;
                let left = Duration::from_millis(u64::try_from(left).unwrap_or(0));
                let look = clock.now() + left.clamp(FIRST_POLL, LOOK);
                clock
                    .sleep_until(look)
                    .or(self.link.wait_clock_change())
                    .await;
                continue;
            }
            let name = if holds {
                RequesterIdentity::Own
            } else {
                RequesterIdentity::Bootstrap
            };
            let asked = if requests.may_request(clock.now()) {
                self.renew_certificate(name).await
            } else {
                Err(SigningFailure::renewed_too_soon())
            };
            let Err(failed) = asked else {
                requests.record_obtained(clock.now());
                continue;
            };
            let failures = requests.record_failure();
            complaints.complain(&format!(
                "cannot get a new client certificate: {}",
                failed.why
            ));
            let may_end = self.kept.bootstrap.is_some();
            if may_end && must_restart_agent(without_since, false, failed.answers, clock.now()) {
                let why = "the node has had no valid client certificate for 5 minutes, although the apiserver answers";
                self.state.ended.replace(Some(why.into()));
                self.asker.send_event(AgentEvent::Terminate).await;
                return;
            }
            let delay =
                csr_retry_delay(failures, random()).max(failed.retry_after.unwrap_or_default());
            clock.sleep_until(clock.now() + delay).await;
        }
    }

    /// Returns true if the certificate is valid now.
    fn is_valid_now(&self, held: &[Certificate]) -> bool {
        let end = earliest_chain_end(held);
        let trouble = match end {
            None => Some("this node has no client certificate yet".to_owned()),
            Some(end) if end < self.signer.server_time() => Some(format!(
                "the client certificate of this node expired at {end}"
            )),
            Some(_) => None,
        };
        let holds = trouble.is_none();
        self.state.set_certificate_state(trouble, end);
        holds
    }

    /// Gets one certificate, from the fresh key to the pair in use.
    async fn renew_certificate(&self, name: RequesterIdentity) -> Result<(), SigningFailure> {
        let other: Option<Arc<dyn KubeApi>> = match (name, &self.kept.bootstrap) {
            (RequesterIdentity::Own, _) | (RequesterIdentity::Bootstrap, None) => None,
            (RequesterIdentity::Bootstrap, Some(from)) => {
                let (path, servers) = (from.kubeconfig.clone(), from.servers.clone());
                let disk = &self.signer.disk;
                let read = disk.run_job(move || Kubeconfig::load(&path, &servers));
                let config = read
                    .await
                    .map_err(|e| SigningFailure::local(e.to_string()))?;
                Some((from.connect)(config))
            }
        };
        let subject = node_subject(&self.node);
        self.signer
            .obtain_certificate("client", CLIENT_SIGNER, subject, &self.kept.store, other)
            .await?;
        self.kept.cluster.reread_credentials();
        self.member.request_reread();
        Ok(())
    }
}

/// The first end of any certificate of a chain.
pub(super) fn earliest_chain_end(chain: &[Certificate]) -> Option<WallTime> {
    chain.iter().map(|c| c.not_after).min()
}
