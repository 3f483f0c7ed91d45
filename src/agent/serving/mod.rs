//! The node's server, put together: what it listens with, whom it asks, what it shows.
//!
//! | file | what it is |
//! |---|---|
//! | `certificates` | the certificate it shows, and the CAs of its clients: made, read, read again |
//! | `reviews` | what the apiserver is asked about clients |
//!
//! A certificate that the apiserver's signer issues is kept by [`super::cluster::serving`].

mod certificates;
mod reviews;

use alloc::{rc::Rc, sync::Arc};
use core::pin::Pin;

use smol::LocalExecutor;

use super::{cluster, ctx::Shared};
use crate::{
    config::ServingCertificate,
    net::serving::{self, Offer, Shown},
    server::{
        backend::Backend,
        healthz,
        network::{Access, AccessSettings, Authorization, Network, Reviewer, Settings},
    },
};

/// Something that runs as long as the agent.
type Task = Pin<Box<dyn Future<Output = ()>>>;

/// Makes all that serves over the network. Reads, and at the first start writes, a few small files.
///
/// - Errors: what the operator has to mend.
pub(super) fn prepare(
    ctx: &Shared,
    executor: &Rc<LocalExecutor<'static>>,
    backend: Rc<dyn Backend>,
) -> Result<Vec<Task>, String> {
    let mut tasks: Vec<Task> = Vec::new();
    let cfg = &ctx.cfg.server;
    if let Some(address) = cfg.healthz {
        tasks.push(Box::pin(healthz::serve(address, Rc::clone(executor))));
    }
    let Some(listen) = cfg.listen else {
        return Ok(tasks);
    };
    let shown = Arc::new(Shown::default());
    let offer = Offer {
        cipher_suites: cfg.cipher_suites.clone(),
        curves: cfg.curves.clone(),
        only_1_3: cfg.only_1_3,
        client_certificates: cfg.client_ca.is_some(),
    };
    let tls = serving::config(&offer, Arc::clone(&shown))
        .map_err(|e| format!("TLS as configured cannot be spoken: {e}"))?;
    let reviewer = ctx.cluster.is_some().then(|| {
        let reviews: Box<dyn Reviewer> = Box::new(reviews::Reviews(Rc::clone(ctx)));
        reviews
    });
    let authorization = match cfg.authorization {
        Some((yes, no)) => Authorization::Webhook(yes, no),
        None => Authorization::AlwaysAllow,
    };
    let settings = AccessSettings {
        tokens: cfg.tokens,
        anonymous: cfg.anonymous,
        authorization,
    };
    let access = Rc::new(Access::new(settings, reviewer));
    if let Some(path) = &cfg.client_ca {
        let trusted = certificates::trust(path, &access)?;
        let again = certificates::trust_again(Rc::clone(ctx), path.clone(), Rc::clone(&access));
        tasks.push(Box::pin(again(trusted)));
    }
    match &cfg.certificate {
        ServingCertificate::Requested => {
            tasks.push(Box::pin(cluster::serving::run(Rc::clone(ctx), shown)));
        }
        ServingCertificate::SelfSigned => certificates::own(ctx, &shown)?,
        ServingCertificate::Files(certificate, key) => {
            let files = (certificate.clone(), key.clone());
            let seen = certificates::show(&files, &shown)?;
            let again = certificates::show_again(Rc::clone(ctx), files, shown);
            tasks.push(Box::pin(again(seen)));
        }
    }
    let settings = Settings {
        listen,
        debugging: cfg.debugging,
    };
    let network = Rc::new(Network::new(settings, tls, access, backend));
    tasks.push(Box::pin(network.serve(Rc::clone(executor))));
    Ok(tasks)
}
