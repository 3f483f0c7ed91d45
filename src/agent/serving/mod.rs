//! The node's server, put together: its certificate, its reviews of clients, the agent that it serves.
//!
//! | file | what it is |
//! |---|---|
//! | `certificates` | the certificate that it shows, and the CAs of its clients: made, read, read again |
//! | `reviews` | questions to the apiserver about clients |
//!
//! A certificate that the apiserver's signer issues is kept by [`super::cluster`].

mod certificates;
mod reviews;

use alloc::{rc::Rc, sync::Arc};
use std::path::PathBuf;

use smol::LocalExecutor;

pub(super) use certificates::find_unusable_files;
pub(super) use reviews::ApiserverReviews;

use certificates::{CertificatePoller, ServingFileError};

use super::{clock::Clock, complaints::Complaints, node::MachineFacts, tasks::AgentTask};
use crate::{
    config::{ServerConfig, ServingCertificateSource},
    net::{
        serving::{self, ServingCertificateSlot, TlsOffer},
        tls::TlsError,
    },
    server::{
        backend::ServerBackend,
        healthz,
        network::{
            AccessControl, AccessSettings, AuthorizationMode, NetworkServer, NetworkServerSettings,
            NodeLogSettings, Reviewer,
        },
    },
    sys::lane::Lane,
};

/// Shows the certificate that the apiserver's signer issues.
pub(super) type IssuedCertificateSource = Box<dyn FnOnce(Arc<ServingCertificateSlot>) -> AgentTask>;

/// Parts of the server.
pub(super) struct ServingInputs<'a> {
    /// Configuration of the server.
    pub(super) cfg: &'a ServerConfig,
    /// Directory for a certificate of the server's own.
    pub(super) cert_dir: PathBuf,
    /// Facts of the node that the certificate names.
    pub(super) node: Rc<MachineFacts>,
    /// Time.
    pub(super) clock: Rc<dyn Clock>,
    /// Lane on which files are read.
    pub(super) disk: Lane,
    /// Warnings about files that cannot be used.
    pub(super) complaints: Rc<Complaints>,
    /// Asks the apiserver about clients; `None`: there is no apiserver.
    pub(super) reviews: Option<ApiserverReviews>,
    /// Shows an issued certificate, if the configuration wants one.
    pub(super) issued: IssuedCertificateSource,
    /// The agent that is served.
    pub(super) backend: Rc<dyn ServerBackend>,
}

/// Reason why nothing can be served over the network. The operator mends it.
#[derive(Debug, thiserror::Error)]
pub(super) enum ServingError {
    /// The TLS settings of the configuration cannot be used.
    #[error("cannot use TLS as configured")]
    Offer(#[from] TlsError),
    #[error(transparent)]
    File(#[from] ServingFileError),
}

/// Tasks of the server, and the server itself.
pub(super) struct PreparedServing {
    /// Tasks to be run.
    pub(super) tasks: Vec<AgentTask>,
    /// Server for connections that are made otherwise; `None`: nothing is served over the network.
    pub(super) network: Option<Rc<NetworkServer>>,
}

/// Makes all that serves over the network. Reads, and at the first start writes, a few small files.
pub(super) fn prepare_serving(
    parts: ServingInputs<'_>,
    executor: &Rc<LocalExecutor<'static>>,
) -> Result<PreparedServing, ServingError> {
    let mut tasks: Vec<AgentTask> = Vec::new();
    let cfg = parts.cfg;
    if let Some(address) = cfg.healthz {
        tasks.push(Box::pin(healthz::serve_healthz(
            address,
            Rc::clone(executor),
        )));
    }
    let Some(listen) = cfg.listen else {
        let network = None;
        return Ok(PreparedServing { tasks, network });
    };
    let shown = Arc::new(ServingCertificateSlot::default());
    let offer = TlsOffer {
        cipher_suites: cfg.cipher_suites.clone(),
        curves: cfg.curves.clone(),
        only_1_3: cfg.only_1_3,
        client_certificates: cfg.client_ca.is_some(),
    };
    let tls = serving::build_server_config(&offer, Arc::clone(&shown))?;
    let reviewer = parts
        .reviews
        .map(|reviews| Box::new(reviews) as Box<dyn Reviewer>);
    let looker = Rc::new(CertificatePoller {
        clock: parts.clock,
        disk: parts.disk,
        complaints: parts.complaints,
    });
    let authorization = match cfg.authorization {
        Some((yes, no)) => AuthorizationMode::Webhook(yes, no),
        None => AuthorizationMode::AlwaysAllow,
    };
    let settings = AccessSettings {
        tokens: cfg.tokens,
        anonymous: cfg.anonymous,
        authorization,
    };
    let access = Rc::new(AccessControl::new(settings, reviewer));
    if let Some(path) = &cfg.client_ca {
        let trusted = certificates::trust_authorities(path, &access)?;
        let again = certificates::follow_authorities_file(
            Rc::clone(&looker),
            path.clone(),
            Rc::clone(&access),
        );
        tasks.push(Box::pin(again(trusted)));
    }
    match &cfg.certificate {
        ServingCertificateSource::Requested => {
            tasks.push((parts.issued)(shown));
        }
        ServingCertificateSource::SelfSigned => {
            certificates::show_own_certificate(
                &parts.cert_dir,
                &parts.node.name,
                &parts.node.host_ips,
                &shown,
            )?;
        }
        ServingCertificateSource::Files(certificate, key) => {
            let files = (certificate.clone(), key.clone());
            let seen = certificates::show_certificate(&files, &shown)?;
            let again = certificates::follow_pair_files(looker, files, shown);
            tasks.push(Box::pin(again(seen)));
        }
    }
    let settings = NetworkServerSettings {
        listen,
        debugging: cfg.debugging,
        node_logs: cfg.node_logs.then(NodeLogSettings::of_this_machine),
    };
    let network = Rc::new(NetworkServer::new(settings, tls, access, parts.backend));
    let serve = Rc::clone(&network).serve_network(Rc::clone(executor));
    tasks.push(Box::pin(serve));
    let network = Some(network);
    Ok(PreparedServing { tasks, network })
}
