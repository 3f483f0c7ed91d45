//! Certificates of this node, asked for at a signer of the apiserver: what its client certificate and that of its server
//! have in common.

use alloc::{rc::Rc, sync::Arc};
use core::{net::IpAddr, time::Duration};
use std::path::PathBuf;

use super::link::ServerClockSkew;
use crate::{
    agent::{clock::Clock, complaints::Complaints},
    api::{WallTime, cluster_network::K3sClusterFacts},
    error::error_chain,
    kube::{
        KubeApi, KubeError, KubeLanes, Kubeconfig,
        api::ApiResult,
        bootstrap::{self, CLIENT_SIGNER, PostedCertificateRequest},
        csr::CertificateSubject,
        join::{JoinError, k3s},
        store::CertificateStore,
        x509::{self, Certificate},
    },
    logic::certificates::{
        CSR_WAIT, CsrVerdict, HeldCertificate, WantedCertificate, judge_csr, rotation_time,
    },
    net::{ProxyVariables, Url},
    sys::{crash, lane::Lane},
};

/// Longest wait for anything that the wall clock decides.
pub(super) const LOOK: Duration = Duration::from_secs(60);
/// First and longest pause between two looks at a request.
pub(super) const FIRST_POLL: Duration = Duration::from_millis(200);
const LAST_POLL: Duration = Duration::from_secs(10);

/// A certificate in use.
#[derive(Debug, Default)]
pub(super) struct CertificateInUse {
    /// Chain of the certificate; empty without one.
    pub(super) chain: Vec<Certificate>,
    /// Time of its arrival, by this machine's clock of then.
    pub(super) since: Option<WallTime>,
}

/// The number that spreads renewals, drawn once for each certificate: what tells one from another are its beginning and end.
#[derive(Debug, Default)]
pub(super) struct RenewalSpread(Option<([WallTime; 2], u32)>);

impl RenewalSpread {
    /// Returns the number of the certificate in use.
    pub(super) fn number_for(
        &mut self,
        held: &CertificateInUse,
        draw: impl FnOnce() -> u32,
    ) -> u32 {
        let term = held.chain.first().map(|c| [c.not_before, c.not_after]);
        let random = match (self.0, term) {
            (Some((of, random)), Some(term)) if of == term => random,
            _ => draw(),
        };
        self.0 = term.map(|term| (term, random));
        random
    }
}

/// Time at which to ask for a new certificate for `subject`, given the one in use and this machine's clock.
pub(super) fn renewal_time(
    held: &CertificateInUse,
    subject: &CertificateSubject,
    random: u32,
    ours: WallTime,
) -> Option<WallTime> {
    let since = held.since;
    let held = held.chain.first().map(|c| HeldCertificate {
        not_before: c.not_before,
        not_after: c.not_after,
        since,
        common_name: &c.common_name,
        organizations: &c.organizations,
        dns_names: &c.dns_names,
        ips: &c.ips,
    });
    let wanted = WantedCertificate {
        common_name: &subject.common_name,
        organization: &subject.organization,
        dns_names: &subject.dns_names,
        ips: &subject.ips,
    };
    rotation_time(held, wanted, random, ours)
}

/// Failure of a request for a certificate.
pub(super) struct SigningFailure {
    pub(super) why: String,
    /// Set if the apiserver answered.
    pub(super) answers: bool,
    pub(super) retry_after: Option<Duration>,
}

impl SigningFailure {
    pub(super) fn local(why: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            answers: false,
            retry_after: None,
        }
    }

    pub(super) fn answered(why: impl Into<String>) -> Self {
        Self {
            answers: true,
            ..Self::local(why)
        }
    }

    fn from_join_error(error: JoinError) -> Self {
        match error {
            JoinError::Kube(e) => e.into(),
            e => Self::answered(error_chain(&e)),
        }
    }

    /// Refuses to ask: the last certificates were to be renewed at once.
    pub(super) fn renewed_too_soon() -> Self {
        Self::answered("each new certificate would have to be renewed at once")
    }
}

impl From<KubeError> for SigningFailure {
    fn from(e: KubeError) -> Self {
        Self {
            answers: e.is_answer(),
            retry_after: e.retry_after(),
            why: e.to_string(),
        }
    }
}

/// Tools to get a certificate signed.
pub(super) struct CertificateSigner {
    pub(super) lanes: KubeLanes,
    pub(super) clock: Rc<dyn Clock>,
    pub(super) complaints: Rc<Complaints>,
    pub(super) disk: Lane,
    /// Supervisor of k3s, which signs in place of the apiserver.
    pub(super) k3s: Option<Arc<K3sSigner>>,
    /// The apiserver's clock.
    pub(super) skew: Arc<ServerClockSkew>,
}

/// The supervisor of a cluster of k3s (K3SJ-08).
pub(super) struct K3sSigner {
    pub(super) node: String,
    pub(super) kubeconfig: PathBuf,
    /// Store of the certificate, if this node renews it.
    pub(super) kept: Option<CertificateStore>,
    /// Servers: first the one that was joined, then those asked if it is silent or not ready.
    pub(super) servers: Vec<Url>,
    pub(super) password_file: PathBuf,
    pub(super) proxies: ProxyVariables,
}

impl K3sSigner {
    /// Chain and key, PEM. Blocks.
    pub(super) fn certify_key(
        &self,
        purpose: k3s::CertificatePurpose,
        ips: Vec<IpAddr>,
    ) -> Result<(String, String), SigningFailure> {
        let password = k3s::read_node_password(&self.password_file);
        let path = self.password_file.display();
        let password = match password {
            _ if purpose == k3s::CertificatePurpose::KubeProxy => String::new(),
            Ok(Some(password)) => password,
            Ok(None) => return Err(SigningFailure::local(format!("{path} is missing"))),
            Err(e) => return Err(SigningFailure::local(format!("{path}: {e}"))),
        };
        let config = self.read_kubeconfig()?;
        let node = k3s::K3sNodeIdentity {
            name: self.node.clone(),
            password,
            ips,
        };
        let made = k3s::renew_certificate(&config, &self.servers, &self.proxies, &node, purpose);
        made.map_err(SigningFailure::from_join_error)
    }

    /// Facts that the servers tell of their cluster now. Blocks.
    pub(super) fn read_facts(&self) -> Result<K3sClusterFacts, SigningFailure> {
        let config = self.read_kubeconfig()?;
        let read = k3s::read_facts(&config, &self.servers, &self.proxies);
        read.map_err(SigningFailure::from_join_error)
    }

    fn read_kubeconfig(&self) -> Result<Kubeconfig, SigningFailure> {
        let config = bootstrap::kubeconfig_in_use(&self.kubeconfig, &[], self.kept.as_ref());
        config.map_err(|e| SigningFailure::local(e.to_string()))
    }
}

impl CertificateSigner {
    /// The time as the apiserver has it, as far as that is known.
    pub(super) fn server_time(&self) -> WallTime {
        self.skew.server_time(&*self.clock)
    }

    /// Gets one certificate, from the fresh key to the pair in the store. Asks under another name, if one is given.
    pub(super) async fn obtain_certificate(
        &self,
        what: &str,
        signer: &'static str,
        subject: CertificateSubject,
        store: &CertificateStore,
        other: Option<Arc<dyn KubeApi>>,
    ) -> Result<(), SigningFailure> {
        if let Some(k3s) = self.k3s.clone() {
            let purpose = if signer == CLIENT_SIGNER {
                k3s::CertificatePurpose::Client
            } else {
                k3s::CertificatePurpose::Serving
            };
            let obtained = self.obtain_from_supervisor(what, k3s, purpose, subject.ips, store);
            return obtained.await;
        }
        let request =
            move |api: &dyn KubeApi| bootstrap::post_certificate_request(api, signer, &subject);
        let requested = self.ask_apiserver(other.clone(), request).await?;
        crash::point("certificate.requested");
        log::info!(
            "request {} for a {what} certificate waits for its approval",
            requested.name
        );
        let requested = Arc::new(requested);
        let certificate = self.wait_for_issue(other, &requested).await?;
        let pair = requested.checked_pair(&certificate);
        let (chain_pem, key) = pair.map_err(|e| SigningFailure::answered(error_chain(&e)))?;
        self.store_certificate(what, store, chain_pem, key.to_owned())
            .await
    }

    /// Gets one certificate from the supervisor of k3s, from the fresh key to the pair in the store.
    pub(super) async fn obtain_from_supervisor(
        &self,
        what: &str,
        k3s: Arc<K3sSigner>,
        purpose: k3s::CertificatePurpose,
        ips: Vec<IpAddr>,
        store: &CertificateStore,
    ) -> Result<(), SigningFailure> {
        let ask = move |_: &dyn KubeApi| k3s.certify_key(purpose, ips);
        let (pem, key) = self.lanes.run_request(ask).await?;
        self.store_certificate(what, store, pem, key).await
    }

    /// The certificate of `store` in use, if there is one that can be read. `what`: its name in a complaint.
    pub(super) async fn read_current(
        &self,
        what: &str,
        store: &CertificateStore,
    ) -> CertificateInUse {
        let store = store.clone();
        let read = self.disk.run_job(move || {
            let Some(pair) = store.read_current().map_err(|e| error_chain(&e))? else {
                return Ok(CertificateInUse::default());
            };
            let since = Some(pair.since);
            let read = x509::read_chain(&pair.chain).map_err(|e| error_chain(&e));
            read.map(|chain| CertificateInUse { chain, since })
        });
        match read.await {
            Ok(found) => found,
            Err(why) => {
                self.complaints
                    .complain(&format!("the {what} certificate: {why}"));
                CertificateInUse::default()
            }
        }
    }

    async fn store_certificate(
        &self,
        what: &str,
        store: &CertificateStore,
        chain_pem: String,
        key: String,
    ) -> Result<(), SigningFailure> {
        let (store, now) = (store.clone(), self.clock.wall_time());
        let stored = self
            .disk
            .run_job(move || store.store_pair(&chain_pem, &key, now));
        let path = stored
            .await
            .map_err(|e| SigningFailure::local(error_chain(&e)))?;
        log::info!("new {what} certificate {}", path.display());
        Ok(())
    }

    /// The certificate that was issued, base64.
    async fn wait_for_issue(
        &self,
        other: Option<Arc<dyn KubeApi>>,
        requested: &Arc<PostedCertificateRequest>,
    ) -> Result<String, SigningFailure> {
        let (clock, name) = (&self.clock, &requested.name);
        let end = clock.now() + CSR_WAIT;
        let mut pause = FIRST_POLL;
        while clock.now() < end {
            clock.sleep_until(clock.now() + pause).await;
            pause = (pause * 2).min(LAST_POLL);
            let asked = Arc::clone(requested);
            let look = move |api: &dyn KubeApi| bootstrap::read_certificate_request(api, &asked);
            match self.ask_apiserver(other.clone(), look).await {
                Ok(csr) => match judge_csr(&csr, &requested.uid) {
                    CsrVerdict::Wait => {}
                    CsrVerdict::Issued(certificate) => return Ok(certificate),
                    CsrVerdict::Over(why) => {
                        return Err(SigningFailure::answered(format!("request {name}: {why}")));
                    }
                },
                Err(e) if e.is_not_found() || e.http_status() == Some(401) => return Err(e.into()),
                Err(e) => {
                    self.complaints.complain(&format!("request {name}: {e}"));
                    pause = pause.max(e.retry_after().unwrap_or_default());
                }
            }
        }
        Err(SigningFailure::answered(format!(
            "nobody has signed request {name}"
        )))
    }

    async fn ask_apiserver<T: Send + 'static>(
        &self,
        other: Option<Arc<dyn KubeApi>>,
        job: impl FnOnce(&dyn KubeApi) -> ApiResult<T> + Send + 'static,
    ) -> ApiResult<T> {
        let work = move |api: &dyn KubeApi| match other {
            Some(other) => job(&*other),
            None => job(api),
        };
        self.lanes.run_request(work).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_draw_for_each_certificate() {
        // BOOT-07: those of a signer that dates them back all begin at one time.
        let held = |from, to| CertificateInUse {
            chain: vec![Certificate {
                not_before: WallTime(from),
                not_after: WallTime(to),
                ..Certificate::default()
            }],
            since: None,
        };
        let mut draw = RenewalSpread::default();
        for (held, next, want) in [
            (CertificateInUse::default(), 1, 1),
            (held(1, 5), 2, 2),
            (held(1, 5), 3, 2),
            (held(1, 6), 4, 4),
            (held(2, 6), 5, 5),
        ] {
            assert_eq!(draw.number_for(&held, || next), want);
        }
    }
}
