//! Two things that a node of k3s asks its servers for: facts of the cluster, at start and each hour (K3SN-01), and a
//! certificate to read what no node may read, if a part of this node wants that (K3SN-02).

use alloc::{rc::Rc, sync::Arc};
use core::time::Duration;
use std::path::PathBuf;

use smol::future::FutureExt as _;

use super::{
    certificates::earliest_chain_end,
    link::{ApiserverLink, fleet_spread},
    membership::Membership,
    signing::{
        CertificateSigner, FIRST_POLL, K3sSigner, RenewalSpread, SigningFailure, renewal_time,
    },
};
use crate::{
    agent::{
        cluster_network::{self, ClusterNetworkBoard},
        node::LocalNode,
    },
    error::error_chain,
    kube::{
        ClusterReader,
        join::k3s::{CertificatePurpose, kube_proxy_subject},
        store::CertificateStore,
    },
    logic::certificates::{CertificateRequests, csr_retry_delay},
};

/// Time between two questions for the facts.
const FACTS_PAUSE: Duration = Duration::from_secs(60 * 60);
/// First and longest pause after a question that no server has answered; it doubles.
const FIRST_RETRY: Duration = Duration::from_secs(5);
const LAST_RETRY: Duration = Duration::from_secs(5 * 60);
/// Longest wait for the renewal of a certificate. A clock that turns out to be wrong ends it.
const LOOK: Duration = Duration::from_secs(60 * 60);

/// Asks for the facts of the cluster.
pub(super) struct K3sFactsKeeper {
    pub(super) k3s: Arc<K3sSigner>,
    pub(super) signer: CertificateSigner,
    pub(super) root: PathBuf,
    pub(super) board: Rc<ClusterNetworkBoard>,
    /// The machine as a node.
    pub(super) node: Rc<LocalNode>,
    pub(super) member: Rc<Membership>,
}

impl K3sFactsKeeper {
    /// For as long as the agent runs.
    pub(super) async fn keep_facts(self) {
        let clock = &self.signer.clock;
        let mut retry = FIRST_RETRY;
        let mut is_kept = self.board.facts().is_some();
        loop {
            let k3s = Arc::clone(&self.k3s);
            let pause = match self
                .signer
                .lanes
                .run_request(move |_| k3s.read_facts())
                .await
            {
                Ok(facts) => {
                    retry = FIRST_RETRY;
                    let is_news = self.board.set_facts(facts);
                    if is_news {
                        self.apply_facts();
                        // Annotations may have to change.
                        self.member.request_reread();
                    }
                    if is_news || !is_kept {
                        is_kept = self.keep_record().await;
                    }
                    FACTS_PAUSE
                }
                Err(failed) => {
                    self.complain(&format!("configuration of the cluster: {}", failed.why));
                    let pause = retry.max(failed.retry_after.unwrap_or_default());
                    retry = (retry * 2).min(LAST_RETRY);
                    pause
                }
            };
            clock.sleep_until(clock.now() + pause).await;
        }
    }

    /// Gives the newest facts to the node.
    fn apply_facts(&self) {
        if let Some(facts) = self.board.facts() {
            self.node.take_k3s_facts(facts);
        }
    }

    /// Keeps the facts for the next agent. Returns true if they are on disk.
    async fn keep_record(&self) -> bool {
        let Some(facts) = self.board.facts() else {
            return false;
        };
        let (root, k3s, facts) = (self.root.clone(), Arc::clone(&self.k3s), (*facts).clone());
        let kept = self
            .signer
            .disk
            .run_job(move || cluster_network::keep_facts(&root, &k3s.servers[0], facts));
        let kept = kept.await;
        if let Err(e) = &kept {
            // Only a start without a server is worse off.
            self.complain(&format!(
                "cannot keep the configuration of the cluster: {e}"
            ));
        }
        kept.is_ok()
    }

    fn complain(&self, text: &str) {
        self.signer.complaints.complain(text);
    }
}

/// Keeps the certificate of a [`ClusterReader`].
pub(super) struct ReaderCertificateKeeper {
    pub(super) node: String,
    pub(super) k3s: Arc<K3sSigner>,
    pub(super) store: CertificateStore,
    pub(super) signer: CertificateSigner,
    pub(super) reader: Rc<ClusterReader>,
    pub(super) link: Rc<ApiserverLink>,
}

impl ReaderCertificateKeeper {
    /// For as long as the agent runs.
    pub(super) async fn keep_certificate(self) {
        const WHAT: &str = "kube-proxy";
        let (clock, complaints) = (&self.signer.clock, &self.signer.complaints);
        let recovering = self.store.clone();
        if let Err(e) = self.signer.disk.run_job(move || recovering.recover()).await {
            log::warn!("certificates: {}", error_chain(&e));
        }
        let random = || u32::try_from(fleet_spread(&**clock, &self.node) % 1000).unwrap_or(0);
        let subject = kube_proxy_subject();
        let mut requests = CertificateRequests::default();
        let mut draw = RenewalSpread::default();
        loop {
            let held = self.signer.read_current(WHAT, &self.store).await;
            let now = self.signer.server_time();
            let holds = earliest_chain_end(&held.chain).is_some_and(|end| end > now);
            if holds {
                self.reader.reread_credentials();
                self.reader.set_ready();
            }
            let drawn = draw.number_for(&held, random);
            let due = renewal_time(&held, &subject, drawn, clock.wall_time()).filter(|_| holds);
            if let Some(due) = due.filter(|due| *due > now) {
                requests = CertificateRequests::default();
                let left = due.0.saturating_sub(now.0) / 1_000_000;
                let left = Duration::from_millis(u64::try_from(left).unwrap_or(0));
                let look = clock.now() + left.clamp(FIRST_POLL, LOOK);
                let changed = self.link.wait_clock_change();
                clock.sleep_until(look).or(changed).await;
                continue;
            }
            let asked = match requests.may_request(clock.now()) {
                true => {
                    let (k3s, purpose) = (Arc::clone(&self.k3s), CertificatePurpose::KubeProxy);
                    let signer = &self.signer;
                    let ask =
                        signer.obtain_from_supervisor(WHAT, k3s, purpose, Vec::new(), &self.store);
                    ask.await
                }
                false => Err(SigningFailure::renewed_too_soon()),
            };
            let Err(failed) = asked else {
                requests.record_obtained(clock.now());
                continue;
            };
            let failures = requests.record_failure();
            complaints.complain(&format!(
                "cannot get a certificate to read Nodes and Services: {}",
                failed.why
            ));
            let delay =
                csr_retry_delay(failures, random()).max(failed.retry_after.unwrap_or_default());
            clock.sleep_until(clock.now() + delay).await;
        }
    }
}
