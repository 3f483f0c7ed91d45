//! The certificate that the node's server shows, where the apiserver's signer is to issue it (BOOT-11): asked for with the
//! addresses of the Node, renewed in time and when there are more of them, on disk before it is shown. As long as nobody
//! approves, there is none, and no handshake ends well.

use alloc::{rc::Rc, sync::Arc};
use core::net::IpAddr;
use core::time::Duration;

use super::{
    link::fleet_spread,
    signing::{
        CertificateInUse, CertificateSigner, LOOK, RenewalSpread, SigningFailure, renewal_time,
    },
};
use crate::{
    agent::node,
    api::Node,
    error::error_chain,
    kube::{
        bootstrap::{SERVING_SIGNER, node_subject},
        csr::CertificateSubject,
        store::{CertificateStore, CertificateStoreError, StoredCertificate},
        x509::{self, CertificateError},
    },
    logic::certificates::{CertificateRequests, csr_retry_delay},
    net::serving::ServingCertificateSlot,
};

/// Pause between looks for an address to ask a certificate for.
const FIRST_LOOK: Duration = Duration::from_secs(1);

/// Reason why the certificate on disk cannot be used.
#[derive(Debug, thiserror::Error)]
enum ServingCertificateError {
    #[error(transparent)]
    Store(#[from] CertificateStoreError),
    #[error(transparent)]
    Certificate(#[from] CertificateError),
}

/// Keeps the certificate of the node's server.
pub(in crate::agent) struct ServingCertificateKeeper {
    pub(super) node: String,
    pub(super) store: CertificateStore,
    pub(super) signer: CertificateSigner,
    pub(super) own: Rc<node::LocalNode>,
    /// Certificate that the HTTPS server shows.
    pub(super) shown: Arc<ServingCertificateSlot>,
}

impl ServingCertificateKeeper {
    /// For as long as the agent runs.
    pub(in crate::agent) async fn keep_certificate(self) {
        let (clock, complaints) = (&self.signer.clock, &self.signer.complaints);
        let recovering = self.store.clone();
        if let Err(e) = self.signer.disk.run_job(move || recovering.recover()).await {
            log::warn!("serving certificates: {}", error_chain(&e));
        }
        let random = || u32::try_from(fleet_spread(&**clock, &self.node) % 1000).unwrap_or(0);
        let mut requests = CertificateRequests::default();
        let mut last: Option<Vec<u8>> = None;
        let mut draw = RenewalSpread::default();
        loop {
            let (stored, held) = match self.read_current().await {
                Ok(Some((stored, held))) => (Some(stored), held),
                Ok(None) => (None, CertificateInUse::default()),
                Err(e) => {
                    complaints.complain(&format!("the serving certificate: {}", error_chain(&e)));
                    (None, CertificateInUse::default())
                }
            };
            if let Some(stored) = stored.filter(|stored| last.as_ref() != Some(&stored.chain)) {
                match self.shown.set_certificate(&stored.chain, &stored.key) {
                    Ok(()) => last = Some(stored.chain),
                    Err(e) => {
                        complaints
                            .complain(&format!("the serving certificate: {}", error_chain(&e)));
                    }
                }
            }
            let Some(subject) = self.wanted_subject() else {
                clock.sleep_until(clock.now() + FIRST_LOOK).await;
                continue;
            };
            let drawn = draw.number_for(&held, random);
            let now = self.signer.server_time();
            if renewal_time(&held, &subject, drawn, clock.wall_time()).is_some_and(|due| due > now)
            {
                requests = CertificateRequests::default();
                clock.sleep_until(clock.now() + LOOK).await;
                continue;
            }
            let asked = if requests.may_request(clock.now()) {
                let signer = &self.signer;
                let signed = signer.obtain_certificate(
                    "serving",
                    SERVING_SIGNER,
                    subject,
                    &self.store,
                    None,
                );
                signed.await
            } else {
                Err(SigningFailure::renewed_too_soon())
            };
            let Err(failed) = asked else {
                requests.record_obtained(clock.now());
                continue;
            };
            let failures = requests.record_failure();
            complaints.complain(&format!(
                "cannot get a new serving certificate: {}",
                failed.why
            ));
            let delay =
                csr_retry_delay(failures, random()).max(failed.retry_after.unwrap_or_default());
            clock.sleep_until(clock.now() + delay).await;
        }
    }

    async fn read_current(
        &self,
    ) -> Result<Option<(StoredCertificate, CertificateInUse)>, ServingCertificateError> {
        let store = self.store.clone();
        let read = self.signer.disk.run_job(move || {
            let Some(pair) = store.read_current()? else {
                return Ok(None);
            };
            let held = CertificateInUse {
                chain: x509::read_chain(&pair.chain)?,
                since: Some(pair.since),
            };
            Ok(Some((pair, held)))
        });
        read.await
    }

    /// Subject of the wanted certificate; `None` until the Node has an address.
    fn wanted_subject(&self) -> Option<CertificateSubject> {
        let (dns_names, ips) = node_names(&self.own.node_object()?);
        let subject = if self.signer.k3s.is_some() {
            // What its supervisor writes, whatever is asked for.
            CertificateSubject {
                common_name: self.node.clone(),
                ips,
                ..CertificateSubject::default()
            }
        } else {
            CertificateSubject {
                dns_names,
                ips,
                ..node_subject(&self.node)
            }
        };
        (!subject.ips.is_empty()).then_some(subject)
    }
}

/// Names and addresses of a Node, each once.
fn node_names(node: &Node) -> (Vec<String>, Vec<IpAddr>) {
    let (mut dns_names, mut ips) = (Vec::new(), Vec::new());
    for address in &node.status.addresses {
        let text = &address.address;
        let ip = text.parse::<IpAddr>().ok();
        match (address.kind.as_str(), ip) {
            ("Hostname" | "InternalIP" | "ExternalIP", Some(ip)) if !ips.contains(&ip) => {
                ips.push(ip);
            }
            ("Hostname" | "InternalDNS" | "ExternalDNS", None) if !dns_names.contains(text) => {
                dns_names.push(text.clone());
            }
            _ => {}
        }
    }
    (dns_names, ips)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::node::NodeAddress;

    #[test]
    fn names_of_a_node() {
        // BOOT-11
        let mut node = Node::default();
        for (kind, address) in [
            ("InternalIP", "10.0.0.1"),
            ("InternalIP", "fd00::1"),
            ("ExternalIP", "10.0.0.1"),
            ("Hostname", "node-a"),
            ("InternalDNS", "node-a"),
            ("ExternalDNS", "node-a.example"),
            ("Other", "x"),
        ] {
            node.status.addresses.push(NodeAddress {
                kind: kind.into(),
                address: address.into(),
            });
        }
        let (dns_names, ips) = node_names(&node);
        assert_eq!(dns_names, ["node-a", "node-a.example"]);
        let wanted: Vec<IpAddr> = ["10.0.0.1", "fd00::1"]
            .map(|ip| ip.parse().expect("ip"))
            .into();
        assert_eq!(ips, wanted);
        node.status.addresses.truncate(0);
        node.status.addresses.push(NodeAddress {
            kind: "Hostname".into(),
            address: "10.0.0.9".into(),
        });
        assert_eq!(node_names(&node).1.len(), 1);
    }
}
